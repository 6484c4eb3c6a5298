"""Moments at which the processes of a file tier could have contradicted each other: one test for each."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import drive
from agent_cache.remote.feed import News
from agent_cache.remote.file import FileTier
from tests.contract.workbench import load, read, value_of, writing
from tests.harness import library
from tests.harness.file_peers import Peer, Truth
from tests.harness.slow import slow
from tests.harness.stopwatch import Stopwatch


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    return Truth(tmp_path)


@pytest.mark.parametrize("end", ["end_write", *slow("discard", "late")])
def test_what_a_lookup_finds_while_a_commit_is_written_is_not_trusted_after_it(start: Callable[..., Peer], end: str):
    """The page says that the write has ended, and the database does not yet."""
    writer, reader = start(shows_steps=True), start()
    for peer in (writer, reader):
        peer.do("look_up", 7)
    writer.do("store", 1)
    if end == "late":  # its lease has ended before the write
        writer.do("begin_and_outlast", 7)
        assert reader.do("look_up", 7) is None
        reader.do("store", 1)
    writer.do("wait_at", "COMMIT")
    ended = writer.ask("discard") if end == "discard" else writer.ask("end_write", 7)
    assert writer.wait() == "at"
    assert reader.do("look_up", 7) == 1
    writer.do("pass")
    ended.result(60)
    assert not reader.do("is_clean")
    assert reader.do("look_up", 7) is None


def test_a_pending_invalidation_outlives_a_deleted_page(tmp_path: Path, start: Callable[..., Peer], truth: Truth):
    writer, reader = start(timeout=0.1), start(timeout=0.1)
    assert reader.do("get", 7) == 0
    locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    writer.do("put", 7, 1)
    assert writer.do("stats")["pending"] == 1
    (tmp_path / "cache.page").unlink()
    writer.do("until_retired")
    locker.execute("ROLLBACK")
    locker.close()
    reader.do("until", "losses")
    assert [peer.do("get", 7) for peer in (writer, reader)] == [1, 1]


def test_what_a_dead_process_had_not_written_is_not_forgotten_with_the_page(
    tmp_path: Path, start: Callable[..., Peer], truth: Truth
):
    writer = start(timeout=0.1)
    assert writer.do("get", 7) == 0
    locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    writer.do("put", 7, 1)
    writer.kill()
    locker.execute("ROLLBACK")
    locker.close()
    (tmp_path / "cache.page").unlink()
    assert start(timeout=0.1).do("get", 7) == 1


@pytest.mark.slow
def test_what_was_looked_up_in_a_former_database_is_not_stored_in_the_new_one(
    tmp_path: Path, start: Callable[..., Peer], truth: Truth
):
    """Its versions say nothing about the writes between."""
    writer, reader = start(), start()
    assert reader.do("look_up", 7) is None
    truth[7] = 1
    writer.do("end_write", 7)
    (tmp_path / "cache").unlink()
    for peer in (writer, reader):
        peer.do("until", "losses")
    reader.do("store", 0)
    assert writer.do("look_up", 7) is None


async def test_a_message_that_was_being_written_at_the_subscription_is_not_missed(
    tmp_path: Path, start: Callable[..., Peer]
):
    writer = start(shows_steps=True)
    async with FileTier(tmp_path / "cache") as tier:
        writer.do("wait_at", "COMMIT")
        ended = writer.ask("end_write", 7)
        assert writer.wait() == "at"
        heard: list[Any] = []
        stop = tier.subscribe(heard.append)
        writer.do("pass")
        ended.result(60)
        await tier.caught_up()
        assert heard
        stop()


NEVER = float("inf")


async def following(path: Path) -> tuple[FileTier, list[Any]]:
    """A tier that does not look at its files by itself any more, and what it tells of the writes of others."""
    tier, told = FileTier(path), list[Any]()
    tier.subscribe(told.append)
    assert await tier.caught_up()
    tier.backend.look_by = NEVER
    return tier, told


async def test_a_copy_ends_as_soon_as_its_damaged_database_is_set_aside(tmp_path: Path):
    """Although SQLite still answers, out of its memory."""
    path = tmp_path / "cache"
    tier, told = await following(path)
    other = FileTier(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    async with writing(other, "order:7"):
        pass
    assert await tier.caught_up()
    told.clear()
    path.write_bytes(b"\xa5" * path.stat().st_size)
    async with FileTier(path):
        assert not tier.trust.is_valid() or told
        assert await tier.caught_up()
        assert told == [None]
    for each in (tier, other):
        await each.aclose()


async def test_a_damaged_database_that_another_process_replaces_meanwhile_is_not_set_aside_twice(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    path = tmp_path / "cache"
    await FileTier(path).aclose()
    path.write_bytes(b"\xa5" * path.stat().st_size)
    others: list[FileTier] = []

    def replace(_: str) -> None:
        steps.clear()
        others.append(FileTier(path))
        error = sqlite3.DatabaseError("what was there until now is not a database")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise error

    steps.append(replace)
    async with FileTier(path) as tier, others[0] as other:
        await load(other, read("order:7"), "value")
        assert await value_of(tier, read("order:7")) == "value"


async def test_a_database_that_another_process_replaces_while_it_is_opened_is_noticed(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    path = tmp_path / "cache"
    await FileTier(path).aclose()
    others: list[FileTier] = []

    def replace(text: str) -> None:
        if "MAX(NUMBER)" in text:  # it has been opened
            steps.clear()
            for file in tmp_path.iterdir():
                file.unlink()
            others.append(FileTier(path))

    steps.append(replace)
    async with FileTier(path) as tier, others[0] as other:
        for one in (tier, other):
            one.backend.look_by = 0.0
            await one.caught_up()
        await load(other, read("order:7"), "value")
        assert await value_of(tier, read("order:7")) == "value"


async def test_a_process_that_starts_while_another_one_sets_the_database_aside_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the midst of that there is no page any more, as beside a file that never was a tier's."""
    path = tmp_path / "cache"
    await FileTier(path).aclose()
    path.write_bytes(b"\xa5" * path.stat().st_size)
    replace, may_go_on = Path.replace, threading.Event()
    threads: list[threading.Thread] = []

    def slowly(source: Path, target: Path) -> Path:
        monkeypatch.undo()
        threads.append(threading.Thread(target=lambda: made.append(FileTier(path))))
        threads[0].start()
        may_go_on.wait(0.3)  # the other one may be as far as it likes
        return replace(source, target)

    made: list[FileTier] = []
    monkeypatch.setattr(Path, "replace", slowly)
    made.append(FileTier(path))
    threads[0].join()
    assert len(made) == 2
    for each in made:
        await each.aclose()


async def test_a_new_database_has_a_new_page_for_who_had_the_one_before(tmp_path: Path):
    """A process that goes on with the page of the former one would raise a number that others do not see."""
    tier, _ = await following(tmp_path / "cache")
    (tmp_path / "cache").unlink()
    tier.backend.look_by = 0.0
    assert await tier.caught_up()
    other, told = await following(tmp_path / "cache")
    tier.backend.look_by = NEVER
    async with writing(tier, "order:7"):
        pass
    assert other.trust.is_valid()  # it looks
    assert told
    for each in (tier, other):
        await each.aclose()


async def test_what_one_thread_reads_is_not_taken_for_that_of_a_database_that_another_opens_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The new one may come to the same number."""
    tier, told = await following(tmp_path / "cache")
    for _ in range(3):
        async with writing(tier, "order:7"):
            pass
    apply = tier.feed.apply

    def late(news: News) -> None:
        monkeypatch.undo()
        for file in tmp_path.iterdir():
            file.unlink()
        tier.backend.look_by = 0.0
        with suppress(ConnectionError):
            drive(tier.backend.read((), None))
        tier.backend.look_by = NEVER
        apply(news)

    monkeypatch.setattr(tier.feed, "apply", late)
    assert await tier.caught_up()
    other = FileTier(tmp_path / "cache")
    while await other.caught_up() and other.feed.number != tier.feed.number:
        async with writing(other, "order:7"):
            pass
    assert not tier.trust.is_valid() or told
    for each in (tier, other):
        await each.aclose()


@pytest.mark.slow
def test_a_deleted_log_is_noticed(tmp_path: Path, start: Callable[..., Peer], truth: Truth):
    """What SQLite had in it is missing in the database, so that is replaced."""
    writer, reader = start(), start()
    assert reader.do("get", 7) == 0
    writer.do("put", 7, 1)
    (tmp_path / "cache-wal").unlink()
    for peer in (writer, reader):
        peer.do("until", "losses")
    assert [peer.do("get", 7) for peer in (writer, reader, start())] == [1, 1, 1]


def test_tools_run_while_the_file_cannot_be_looked_at(tmp_path: Path, start: Callable[..., Peer], truth: Truth):
    """Also those whose result names what they have read."""
    reader = start()
    truth[7] = 1
    reader.do("suspend")
    assert [reader.do(name, 7) for name in ("get", "overview", "find")] == [1, 1, 1]


def test_a_file_that_is_refused_leaves_nothing_open(tmp_path: Path):
    (tmp_path / "cache").write_text("Dear diary. " * 1_000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        with pytest.raises(ConfigurationError):
            FileTier(tmp_path / "cache")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


def test_files_that_are_opened_again_while_another_program_has_them_locked_cost_a_call_no_more_than_usual(
    tmp_path: Path, start: Callable[..., Peer], truth: Truth
):
    peer = start(timeout=0.1)
    assert peer.do("get", 7) == 0
    locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    (tmp_path / "cache.page").unlink()
    peer.do("until_retired")
    with Stopwatch() as stopwatch:
        peer.do("put", 7, 1)
        assert peer.do("get", 7) == 1
    assert stopwatch.running < 4  # 5 seconds would be waited for at the first opening
    locker.close()


async def test_the_first_read_after_a_write_of_another_process_is_stored(tmp_path: Path):
    """Its lookup receives the message of that write, which is over: the tool has not started yet."""
    runs: list[str] = []
    async with FileTier(tmp_path / "cache") as here, FileTier(tmp_path / "cache") as there:

        @AgentCache("parcel:{parcel_id}", remote_cache=here)
        async def get_parcel(parcel_id: str) -> str:
            runs.append(parcel_id)
            return f"seen {len(runs)} times"

        assert await get_parcel("7") == "seen 1 times"
        async with writing(there, "parcel:7"):
            pass
        for _ in range(3):
            assert await get_parcel("7") == "seen 2 times"
    assert runs == ["7", "7"]


@pytest.mark.parametrize("ttl", [60.0, None])
async def test_a_value_that_is_not_loaded_yet_by_a_clock_that_was_set_back_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ttl: float | None
):
    """Or it would live for as long as the step was, and its ttl beyond that."""
    async with FileTier(tmp_path / "cache") as tier:
        request = read("order:7", ttl=ttl)
        await load(tier, request, "value")
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3_600)
        assert await value_of(tier, request) == "nothing"
        await load(tier, request, "another")
        assert await value_of(tier, request) == "another"


def test_a_result_does_not_outlive_its_ttl_because_the_clock_was_set_back(
    tmp_path: Path, clock: library.Clock, monkeypatch: pytest.MonkeyPatch
):
    runs: list[int] = []

    @AgentCache("price", ttl=1.0, remote_cache=FileTier(tmp_path / "cache"), name="price")
    def price() -> int:
        runs.append(1)
        return len(runs)

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3_600)
    assert price() == 1
    monkeypatch.setattr(time, "time", lambda: now)
    clock.advance(1.5)  # its local copy has ended
    assert price() == 2
