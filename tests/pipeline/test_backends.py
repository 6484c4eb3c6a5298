"""The backends keep the contract that `agent_cache.testing.tier_contract` gives to whoever writes one."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import ConfigurationError
from agent_cache.remote import Backend, FileTier, VersionedTier
from agent_cache.remote.feed import News
from agent_cache.testing import FakeClock, MemoryServer
from agent_cache.testing.tier_contract import BackendContract
from tests.contract.workbench import commit, load, read, value_of, write, writing
from tests.harness.gates import idle


class TestMemory(BackendContract):
    @pytest.fixture(autouse=True)
    def on_a_clock_that_stands_still(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_backends(self) -> tuple[Backend, Backend]:
        server = MemoryServer()
        return server, server

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestFile(TestMemory):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"{number}.cache" for number in itertools.count())

    async def make_backends(self) -> tuple[Backend, Backend]:
        path = next(self.paths)
        self.both = FileTier(path), FileTier(path)
        return self.both[0].backend, self.both[1].backend


def alone(server: MemoryServer) -> VersionedTier:
    """A tier whose thread does not take part."""
    tier = VersionedTier(server)
    tier.keeper = None
    return tier


async def test_a_tier_over_any_backend_follows_what_others_write_and_delivers_what_is_pending():
    server, heard = MemoryServer(), threading.Event()
    async with VersionedTier(server, max_staleness=0.1) as tier, alone(server) as other:
        tier.subscribe(lambda touched: touched and heard.set())
        await tier.caught_up()
        async with writing(other, "order:7"):
            pass
        assert await asyncio.to_thread(heard.wait, 20)
        server.stop()
        async with writing(tier, "order:8"):
            pass
        assert tier.stats()["pending"] == 1
        heard.clear()
        other.subscribe(lambda _: heard.set())
        server.start()
        while not heard.is_set():
            await other.caught_up()


class Hung(MemoryServer):
    """It does not answer, and knows it. Notes which threads ask."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: str | None = "no answer"
        self.asked, self.is_well = set[threading.Thread](), threading.Event()

    async def feed(self, since: int | None) -> News:
        self.asked.add(threading.current_thread())
        if not self.is_well.is_set():
            raise ConnectionError(self.failure)
        self.failure = None
        return await super().feed(since)


async def test_in_an_outage_only_the_thread_of_a_tier_asks_the_server():
    server = Hung()
    async with VersionedTier(server, max_staleness=0.1) as tier:
        for _ in range(3):
            await tier.lookup(read("order:7"))
        assert threading.current_thread() not in server.asked
        server.is_well.set()
        while not await tier.caught_up():
            await idle()


class Gated(MemoryServer):
    """Its commits wait."""

    is_away = False

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Semaphore(0)

    async def commit(self, *arguments: Any) -> int:
        if self.is_away:
            raise ConnectionError("away")
        await self.may_commit.acquire()
        return await super().commit(*arguments)

    async def begin(self, *arguments: Any, **options: Any) -> int:
        if self.is_away:
            raise ConnectionError("away")
        return await super().begin(*arguments, **options)


async def test_nobody_reads_before_what_a_write_could_not_deliver_has_landed():
    """Also while another reader delivers it, or its commit takes the place of its begin."""
    server = Gated()
    tier = alone(server)
    await load(tier, read("order:7"), "old")
    server.is_away = True
    intents = write("order:8"), write("order:7")
    for intent in intents:
        await tier.begin(intent)
    server.is_away = False
    readers = [asyncio.create_task(value_of(tier, read("order:7"))) for _ in range(3)]
    await idle()
    ending = asyncio.create_task(commit(tier, intents[1]))
    await idle()
    server.may_commit.release()  # of the first
    await idle()
    assert not any(reader.done() for reader in readers)
    for _ in range(20):
        server.may_commit.release()
    assert await asyncio.gather(ending, *readers) == [None, *["nothing"] * 3]


class LateServer(MemoryServer):
    """Its answer to the first look at the feed is held back, and made when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = asyncio.Event()

    async def feed(self, since: int | None) -> News:
        if since is None and self.gate is not None:
            gate, self.gate = self.gate, None
            await gate.wait()
        return await super().feed(since)


async def test_a_first_look_at_the_feed_that_is_answered_after_another_misses_nothing():
    server = LateServer()
    tier, other, told = alone(server), alone(server), list[Any]()
    tier.subscribe(told.append)
    gate, late = server.gate, asyncio.create_task(tier.catch_up())
    await idle()
    await tier.catch_up()
    async with writing(other, "order:7"):
        pass
    assert gate is not None
    gate.set()
    await late
    assert [one.tags for one in told] == [("order:7",)] * 2
    assert tier.feed.losses == 0


@pytest.mark.parametrize(("number", "losses"), [(5, 0), (7, 1), (4, 1)], ids=["equal", "newer", "older"])
def test_two_answers_to_first_looks_that_are_applied_at_once_skip_nothing(number: int, losses: int):
    """In two threads: what lies between them was seen by neither."""
    feed = VersionedTier(MemoryServer()).feed
    feed.apply(News("store", 5, None))
    feed.apply(News("store", number, None))
    assert feed.losses == losses


def test_a_tier_that_would_find_nothing_is_refused():
    """A lookup counts only while a question for the feed was answered so many seconds ago."""
    with pytest.raises(ConfigurationError, match="max_staleness"):
        VersionedTier(MemoryServer(), max_staleness=0)


@pytest.mark.parametrize(
    ("owner", "name", "error"), [(asyncio, "Runner", OSError), (threading.Thread, "start", RuntimeError)]
)
async def test_a_process_that_can_start_no_thread_says_that_none_follows(
    owner: Any, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(*_: Any) -> None:
        raise error("no more")

    tier = VersionedTier(MemoryServer())
    monkeypatch.setattr(owner, name, refuse)
    await tier.lookup(read("order:7"))
    assert tier.keeper is not None
    await tier.keeper.ended()
    assert "no thread could be started, so each call looks for what others write (no more)" in caplog.text
    await tier.aclose()
