"""Moments at which the processes of a file tier could have contradicted each other: one test for each."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache
from agent_cache.errors import ConfigurationError
from agent_cache.remote.file import FileTier, open_files, process_locks
from agent_cache.remote.file.open_files import Unreachable, filesystem_of
from tests.contract.workbench import commit, load, read, value_of, write, writing
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


async def test_nobody_uses_the_file_for_a_moment_while_one_process_has_pending_invalidations(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    """Also not at the moment at which another one looks whether it may be used again."""
    usable: list[bool] = []
    async with FileTier(tmp_path / "cache") as tier:
        files = tier._files
        files.page.suspend(files.number, 1)
        steps.append(lambda _: usable.append(files.page.is_usable))
        await files.run(lambda database: database.resume({}, 1.0))
        assert not tier.stats()["trusted"]
    assert usable
    assert not any(usable)


def test_a_pending_invalidation_outlives_a_deleted_page(tmp_path: Path, start: Callable[..., Peer], truth: Truth):
    writer, reader = start(timeout=0.1), start(timeout=0.1)
    assert reader.do("get", 7) == 0
    locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    writer.do("put", 7, 1)
    assert writer.do("stats")["pending"] == 1
    (tmp_path / "cache.page").unlink()
    writer.do("until", "losses")
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


async def test_a_database_of_which_an_inner_page_is_damaged_is_set_aside(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path) as tier:
        await load(tier, read("order:7"), "old")
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'counters'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    async with FileTier(path) as tier:
        assert await value_of(tier, read("order:7")) == "nothing"
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"
    assert (tmp_path / "cache.corrupt").exists()


async def test_a_path_can_be_opened_any_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither descriptors nor process numbers are used up."""
    monkeypatch.setattr(process_locks, "MAX_PROCESSES", 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(40):
        await FileTier(tmp_path / "cache").aclose()
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20


def test_mounts_are_found_whose_names_are_not_ascii():
    mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /mnt/b\u00fccher\\040neu rw - nfs4 host:/b rw"
    assert filesystem_of(Path("/mnt/b\u00fccher neu/mine"), mounts) == "nfs4"


def test_a_generation_is_not_given_twice_when_a_process_dies_between_a_slot_and_the_sequence_number(
    start: Callable[..., Peer],
):
    writer, reader = start(shows_steps=True), start()
    assert reader.do("look_up", 7) is None
    writer.do("wait_at", "page 0")  # the slots are written
    ended = writer.ask("end_write", 7)
    assert writer.wait() == "at"
    writer.kill()
    assert isinstance(ended.exception(10), ConnectionError)
    reader.do("look_up", 7)
    other = start()
    other.do("end_write", 7)
    assert not reader.do("is_clean")


async def test_many_pending_invalidations_end_in_one_for_all(tmp_path: Path):
    """They do not grow without a bound while the disk is full."""
    async with FileTier(tmp_path / "cache", timeout=0.05) as tier:
        await load(tier, read("order:1"), "old")
        locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        for number in range(12_000):
            tier._files.pend(f"{number}", lambda database: database.prune(), "locked")
        assert tier.stats()["pending"] < 11_000
        locker.close()
        await tier.caught_up()
        assert tier.stats()["pending"] == 0
        assert await value_of(tier, read("order:1")) == "nothing"


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
        assert tier.trusted_until() <= 0
        writer.do("pass")
        ended.result(60)
        await tier.caught_up()
        assert tier.trusted_until() > 0
        stop()


async def test_a_dead_writer_is_held_for_its_own_lease(tmp_path: Path, start: Callable[..., Peer]):
    """Not for that of the process which finds it."""
    writer = start(lease=30.0)
    writer.ask("put", 7, 1, waits=True)
    assert writer.wait() == "saving"
    writer.kill()
    async with FileTier(tmp_path / "cache", lease=0.01) as tier:
        await value_of(tier, read("order:7"))
        with closing(sqlite3.connect(tmp_path / "cache")) as other:
            ((left,),) = other.execute("SELECT span FROM writers").fetchall()
        assert left == 30.0


async def test_the_log_and_the_bytes_are_bounded_without_a_subscription(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, max_bytes=65_536) as tier:
        for number in range(300):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        await tier.caught_up()
        assert tier._files._keeper is not None


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_a_fork_waits_until_no_thread_is_inside_of_sqlite(
    tmp_path: Path, steps: list[Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
):
    """A child would wait for ever for a lock that a thread of its parent had."""
    monkeypatch.setattr(open_files, "_FORK_PATIENCE", 30.0)
    inside = threading.Event()
    is_inside = False

    def linger(_: str) -> None:
        nonlocal is_inside
        is_inside = True
        inside.set()
        threading.Event().wait(0.05)
        is_inside = False

    async with FileTier(tmp_path / "cache") as tier:
        steps.append(linger)
        done = tier._files.later(lambda database: database.size())
        assert await asyncio.to_thread(inside.wait, 10)
        child = os.fork()
        if not child:
            os._exit(is_inside)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        await asyncio.wrap_future(done)
        steps.clear()


async def test_what_is_asked_of_a_file_that_is_being_closed_does_not_wait_for_ever(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    tier = FileTier(tmp_path / "cache")
    at_work, may_end = threading.Event(), threading.Event()

    def work(_: Any) -> None:
        at_work.set()
        may_end.wait(60)

    working = tier._files.later(work)
    assert await asyncio.to_thread(at_work.wait, 10)
    closing = asyncio.ensure_future(tier.aclose())
    await asyncio.sleep(0)
    late = tier._files.later(lambda database: database.size())
    may_end.set()
    await closing
    await asyncio.wrap_future(working)
    with pytest.raises(Unreachable):
        await asyncio.wait_for(asyncio.wrap_future(late), 60)


async def test_a_read_of_nothing_that_can_be_named_is_a_miss(tmp_path: Path):
    async with FileTier(tmp_path / "cache") as tier:
        assert await value_of(tier, read(key=object())) == "nothing"  # type: ignore[arg-type]


async def test_the_keeper_survives_what_it_cannot_handle(tmp_path: Path, steps: list[Callable[[str], None]]):
    """All calls that have to wait depend on it."""

    def fail(text: str) -> None:
        if text.startswith("SELECT DISTINCT"):
            seen.set()
            raise ValueError("damaged cells")

    seen = threading.Event()
    async with FileTier(tmp_path / "cache") as tier:
        steps.append(fail)
        keeper = tier._files.later(lambda _: threading.current_thread()).result(60)
        assert await asyncio.to_thread(seen.wait, 10)
        assert tier._files.later(lambda _: threading.current_thread()).result(60) is keeper


def test_tools_run_while_the_file_cannot_be_looked_at(tmp_path: Path, start: Callable[..., Peer], truth: Truth):
    """Also those whose result names what they have read."""
    reader = start()
    truth[7] = 1
    reader.do("suspend")
    assert [reader.do(name, 7) for name in ("get", "overview", "find")] == [1, 1, 1]


async def test_the_bounds_are_kept_while_others_write_nearly_all_the_time(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    """Half of all attempts find the database locked."""
    attempts = 0

    def lock(text: str) -> None:
        nonlocal attempts
        if text == "BEGIN IMMEDIATE" and threading.current_thread() is keeper:
            attempts += 1
            if attempts % 2:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error

    async with FileTier(tmp_path / "cache", max_bytes=65_536) as tier:
        keeper = await asyncio.wrap_future(tier._files.later(lambda _: threading.current_thread()))
        for number in range(100):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
            await value_of(tier, read(f"order:{number}", key=number))
        steps.append(lock)
        tier._files._look_after_at = 0.0
        for _ in range(2):  # it looks after the files when it has done what was asked
            await asyncio.wrap_future(tier._files.later(lambda _: None))
        assert await tier._files.run(lambda database: database.size()) <= 65_536
        steps.clear()


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


async def test_an_announcement_that_was_cancelled_is_not_made_after_its_write_has_ended(tmp_path: Path):
    """It would hold what the write has named for a lease, for nothing."""
    async with FileTier(tmp_path / "cache", timeout=5.0) as tier:
        await load(tier, read("order:7"), "old")
        locker = sqlite3.connect(tmp_path / "cache", isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        intent = write("order:7")
        announcing = asyncio.ensure_future(tier.begin(intent))
        await asyncio.sleep(0)
        announcing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await announcing
        locker.close()
        await commit(tier, intent)
        tier._files.timeout = 0.0  # what is not finished by now counts as abandoned
        await tier._files.run(tier._files._finish_abandoned)
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


def test_a_ttl_that_was_set_is_known_to_a_later_process_before_its_first_hit(start: Callable[..., Peer], truth: Truth):
    """Also if the process that has set it was killed as soon as it had."""
    first = start()
    assert first.do("get", 7) == 0
    truth[7] = 1  # by what is no write here: only the ttl ends the answer
    first.do("set_ttl", "get", 0.01)
    first.kill()
    time.sleep(0.02)
    assert start().do("get", 7) == 1


async def test_a_closed_tier_starts_no_thread(tmp_path: Path):
    tier = FileTier(tmp_path / "cache")
    await tier.aclose()
    threads = threading.active_count()
    assert not await tier.caught_up()
    assert threading.active_count() == threads


async def test_what_was_seen_in_files_that_were_deleted_says_nothing_of_new_ones(tmp_path: Path):
    """In both databases the versions of cells that nobody has written are the same."""
    path = tmp_path / "cache"
    async with FileTier(path) as tier, FileTier(path) as other:
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        for suffix in ("", "-wal", "-shm", ".page", ".lock"):
            (tmp_path / f"cache{suffix}").unlink()
        former = tier._files.page
        while tier._files.page is former:
            await asyncio.sleep(0.01)
        await load(other, read("order:7"), "overwritten")
        async with writing(other, "order:7"):
            pass
        assert await value_of(tier, read("order:7")) == "nothing"


async def test_a_value_that_was_loaded_after_its_cells_were_pruned_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By a process, too, that has seen the cells before: no slot tells it that they were pruned."""
    monkeypatch.setattr("agent_cache.remote.file.database._MAX_CELLS", 1)
    path = tmp_path / "cache"
    async with FileTier(path) as tier, FileTier(path) as other:
        for _ in range(2):
            async with writing(tier, "order:7"):
                pass
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        for _ in range(8):
            tier._files.now(lambda database: database.prune())
        assert await value_of(other, read("order:7")) == "nothing"
        await load(other, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


async def test_what_was_missing_in_the_file_when_a_lookup_began_is_not_overlooked(tmp_path: Path):
    """The write that another process could not announce has ended before. It is announced while the slots are read."""
    async with FileTier(tmp_path / "cache") as tier:
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        place = tier._places.of(read("order:7"))
        files, read_slots, another = tier._files, place.read_slots, 1_000
        files.page.suspend(another, 1)

        def reading(words: Any) -> tuple[int, ...]:
            seen = read_slots(words)
            if files.page.missing(another):
                database = files._kept
                assert database is not None
                database._write(lambda: database._change(place.depends_on))
                files.page.suspend(another, 0)
                assert files.page.resume()
            return seen

        place.read_slots = reading
        assert await value_of(tier, read("order:7")) == "nothing"
        assert not files.page.missing(another)


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
