"""A loop ends, or a task is cancelled, between any two steps: nothing waits for ever, and no invalidation is lost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import RemoteTierError
from agent_cache.remote import RedisTier, Tier
from agent_cache.testing import MemoryTier
from tests.contract.workbench import load, read, value_of, write
from tests.harness.proxies import Proxy
from tests.harness.servers import Server
from tests.harness.slow import slow
from tests.harness.tiers import until


@pytest.fixture
def tier(valkey: Server) -> Iterator[RedisTier]:
    tier = RedisTier.from_url(valkey.url, timeout=1.5, max_staleness=3.0)
    yield tier
    asyncio.run(tier.aclose())


def ends(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run it in a loop of its own. A loop that does not end fails the test, and no other."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(asyncio.run(main())), daemon=True)
    thread.start()
    thread.join(60)
    assert done, "the loop did not end"
    return done[0]


async def iterations(number: int) -> None:
    """Let the loop go round so often."""
    for _ in range(number):
        await asyncio.sleep(0)


class Shop:
    """One order, under a root of its own, and tools of one tier for it."""

    _numbers = itertools.count()

    def __init__(self, tier: Tier, id_of_write: str = "{id}", **options: Any) -> None:
        self.order = "old"
        self.root = f"order{next(self._numbers)}"
        self.has_begun, self.may_write, self.has_written = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_write.set()

        async def get(id: str) -> str:
            return self.order

        async def put(id: str) -> str:
            self.has_begun.set()
            await self.may_write.wait()
            self.order = "new"
            self.has_written.set()
            return id

        reads, writes = f"{self.root}:{{id}}", f"{self.root}:{id_of_write}"
        self.get = AgentCache(reads, name=f"{self.root}:get", remote_cache=tier)(get)
        self.put = AgentCacheInvalidator(writes, name=f"{self.root}:put", doubt=0.0, remote_cache=tier, **options)(put)


@pytest.mark.parametrize("steps", range(6))
def test_a_loop_that_ends_while_it_connects_ends(tier: RedisTier, steps: int):
    shop = Shop(tier)

    async def main() -> str:
        writing = asyncio.create_task(shop.put("7"))
        await iterations(steps)
        return writing.get_name()

    assert ends(main)


@pytest.mark.parametrize("steps", range(6))
def test_a_read_after_one_that_was_cancelled_while_it_connected_is_answered(tier: RedisTier, steps: int):
    """Whatever else was cancelled with it, as a loop does that is ending, or a test."""
    shop = Shop(tier)

    async def main() -> str:
        before = asyncio.create_task(shop.get("7"))
        await iterations(steps)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([before])
        async with asyncio.timeout(60):
            return await shop.get("8")

    assert ends(main) == "old"


@pytest.mark.parametrize("id_of_write", ["{id}", "{result}"])
@pytest.mark.parametrize("steps", range(5))
def test_a_write_whose_loop_ends_right_after_its_effect_is_committed(tier: RedisTier, id_of_write: str, steps: int):
    """By the thread of the tier. Where the result names what it has written, the root is only armed until then."""
    shop = Shop(tier, id_of_write)

    async def main() -> asyncio.Task[str]:
        assert await shop.get("7") == "old"
        shop.may_write.clear()
        writing = asyncio.create_task(shop.put("7"))
        await shop.has_begun.wait()
        await asyncio.sleep(0.01)
        shop.may_write.set()
        await shop.has_written.wait()
        await iterations(steps)
        return writing

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ends(main)
        assert [asyncio.run(shop.get("7")) for _ in range(3)] == ["new"] * 3
        gc.collect()
    assert [str(one.message) for one in said] == []
    deadline = time.monotonic() + 60
    while len(tier._writer.pending):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert asyncio.run(shop.get("7")) == "new"


def test_a_loop_that_ends_right_after_a_write_waits_for_the_answer_to_its_commit(valkey: Server):
    """Some programs run a loop for each call. What is not answered counts as undelivered, and no lookup is made."""
    with Proxy.start(valkey.port) as proxy:
        tier = RedisTier.from_url(proxy.url, timeout=5.0, max_staleness=10.0)
        shop = Shop(tier)
        assert ends(lambda: shop.get("7")) == "old"
        proxy.delay(to_client=0.02)
        ends(lambda: shop.put("7"))
        assert len(tier._writer.pending) == 0
        assert ends(lambda: shop.get("7")) == "new"
        assert tier.stats()["skipped"] == 0
        asyncio.run(tier.aclose())


def test_a_loop_ends_though_a_commit_is_not_answered(own_valkey: Server):
    tier = RedisTier.from_url(own_valkey.url, timeout=1.5, max_staleness=3.0)
    shop = Shop(tier)

    async def main() -> None:
        await shop.get("7")
        shop.may_write.clear()
        writing = asyncio.create_task(shop.put("7"))
        await shop.has_begun.wait()
        own_valkey.pause()
        shop.may_write.set()
        await writing

    try:
        ends(main)
        assert len(tier._writer.pending) == 1
    finally:
        own_valkey.resume()
    deadline = time.monotonic() + 60
    while len(tier._writer.pending):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ends(lambda: shop.get("7")) == "new"
    asyncio.run(tier.aclose())


@pytest.mark.slow
async def test_what_is_on_its_way_is_neither_read_nor_lost(tier: RedisTier, valkey: Server):
    """From the call on, before anything is awaited."""
    other = RedisTier.from_url(valkey.url)
    await load(tier, read("order:7"), "old")
    intent = write(late=("order",))
    await tier.begin(intent)
    assert await value_of(tier, read("order:7")) == "old"  # only armed
    landing = tier.commit(intent, ("order:7",), failed=False, hold=0.0)
    assert len(tier._writer.pending) == 1
    assert tier.stats()["pending"] == 0  # nothing has gone wrong yet
    assert await value_of(tier, read("order:7")) == "nothing"
    assert await value_of(other, read("order:7")) == "old"
    landing.close()  # whoever had it is gone
    await until(lambda: len(tier._writer.pending) == 0)
    assert await value_of(other, read("order:7")) == "nothing"
    await other.aclose()


async def test_a_commit_that_is_cancelled_on_its_way_is_owed(valkey: Server):
    with Proxy.start(valkey.port) as proxy:
        tier = RedisTier.from_url(proxy.url, timeout=1.5, max_staleness=3.0)
        await load(tier, read("order:7"), "old")
        intent = replace(write("order:7", "user:1"), on_unreachable="refuse")  # two roots, two commands, waited for
        await tier.begin(intent)
        proxy.delay(to_server=0.2)
        landing = asyncio.create_task(tier.commit(intent, intent.tags, failed=False, hold=0.0))
        await asyncio.sleep(0.05)
        landing.cancel()
        await asyncio.wait([landing])
        assert tier.stats()["pending"] == 2
        proxy.heal()
        await until(lambda: tier.stats()["pending"] == 0)
        await tier.aclose()


def started(monkeypatch: pytest.MonkeyPatch, start: Callable[[threading.Thread], None]) -> None:
    """Have a tier's thread started by this."""
    whole = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda each: (start if each.name.startswith("agent_cache") else whole)(each)
    )


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("on_unreachable", ["run", "refuse"])
async def test_a_tier_without_a_thread_keeps_nothing_here_and_tells_the_others(
    tier: RedisTier, valkey: Server, on_unreachable: Any, monkeypatch: pytest.MonkeyPatch
):
    """As it is where a container may have no more of them."""
    other = RedisTier.from_url(valkey.url)
    shop = Shop(tier, remote=RemotePolicy(on_unreachable=on_unreachable))
    request = read(f"{shop.root}:7", tool=f"{shop.root}:get")
    await load(other, request, "old")
    started(monkeypatch, no_thread)
    await shop.put("7")
    assert await value_of(other, request) == "nothing"
    assert await shop.get("7") == "new"
    assert not tier.stats()["trusted"]
    monkeypatch.undo()
    await other.aclose()


class Faulty(MemoryTier):
    async def begin(self, write: Any) -> None:
        raise ValueError("a bug of the tier's")


async def test_a_write_that_is_to_be_refused_is_refused_whatever_its_announcement_raises():
    shop = Shop(Faulty(), remote=RemotePolicy(on_unreachable="refuse"))
    with pytest.raises(RemoteTierError, match="ValueError"):
        await shop.put("7")
    assert shop.order == "old"


async def test_an_announcement_to_two_tiers_that_is_cancelled_at_once_leaves_nothing_behind(tier: RedisTier):
    """No coroutine that nobody awaits."""
    shop = Shop(tier)

    @AgentCache(f"{shop.root}:{{id}}", name=f"{shop.root}:other", remote_cache=MemoryTier())
    async def other(id: str) -> str:
        return shop.order

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for steps in range(4):
            writing = asyncio.create_task(shop.put("7"))
            await iterations(steps)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([writing])
        gc.collect()
    assert [str(one.message) for one in said] == []
    assert await other("7") == shop.order


@pytest.mark.parametrize("steps", [3, *slow(0, 1, 2, 4, 5, 6, 7)])
async def test_a_loop_that_was_blocked_while_it_connected_takes_no_server_for_dead(valkey: Server, steps: int):
    """Its own timer was late. Others use that server."""
    tier = RedisTier.from_url(valkey.url, timeout=0.8, max_staleness=5.0)
    reading = asyncio.create_task(tier.lookup(read("order:7")))
    await iterations(steps)
    time.sleep(1.3)
    await reading
    assert set(tier.stats()["servers"].values()) == {"ok"}
    assert tier.stats()["failures"] == 0
    await tier.aclose()


def test_a_tier_that_is_asked_while_its_thread_starts_has_one(valkey: Server, monkeypatch: pytest.MonkeyPatch):
    """A collection that starts there may close a write that somebody has given up."""
    start = threading.Thread.start

    def start_and_collect(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.undo()
        tier.commit(write("order:7"), ("order:7",), failed=False, hold=0.0).close()

    def listening() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "agent_cache listens to Redis"}

    before = listening()
    tier = RedisTier.from_url(valkey.url)
    started(monkeypatch, start_and_collect)
    tier.subscribe(lambda _: None)
    assert len(listening() - before) == 1
    asyncio.run(tier.aclose())
    assert not listening() - before


class Refusing(MemoryTier):
    async def begin(self, write: Any) -> None:
        raise RemoteTierError("not now", self)


class Slow(MemoryTier):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    async def begin(self, write: Any) -> None:
        await asyncio.sleep(0.02)
        self.said.append("begin")

    async def commit(self, write: Any, tags: Any, *, failed: bool, hold: float) -> None:
        self.said.append("commit")


async def test_a_refusal_of_one_tier_waits_for_what_the_others_were_told():
    """A begin that comes after its commit holds for a lease."""
    slow, refusing = Slow(), Refusing()
    shop = Shop(slow)

    @AgentCache(f"{shop.root}:{{id}}", name=f"{shop.root}:other", remote_cache=refusing)
    async def other(id: str) -> str:
        return shop.order

    with pytest.raises(RemoteTierError, match="not now"):
        await shop.put("7")
    assert slow.said == ["begin", "commit"]
    assert await other("7") == "old"
