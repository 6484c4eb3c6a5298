"""Moments at which the processes of a file tier could have contradicted each other: one test for each."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import drive
from agent_cache.remote.feed import News
from agent_cache.remote.file import FileTier
from agent_cache.testing import FakeClock
from tests.contract.workbench import commit, load, read, value_of, write, writing
from tests.harness import library
from tests.harness.processes import until


@pytest.mark.parametrize("end", ["commit", "discard"])
async def test_what_a_lookup_finds_while_a_commit_is_written_is_not_trusted_after_it(
    tmp_path: Path, steps: list[Callable[[str], None]], end: str
):
    """The page says that the write has ended, and the database does not yet."""
    request, seen = read("order:7"), list[Any]()
    async with FileTier(tmp_path / "cache") as writer, FileTier(tmp_path / "cache") as reader:
        await load(writer, request, "old")

        def look(text: str) -> None:
            if text == "COMMIT":
                steps.clear()
                seen.append(drive(reader.lookup(request)))

        steps.append(look)
        if end == "commit":
            await commit(writer, write("order:7"))
        else:
            await writer.discard(request)
        ((found, ticket),) = seen
        assert found.value == "old"
        assert not ticket.is_clean()
        assert await value_of(reader, request) == "nothing"


async def test_a_pending_invalidation_outlives_a_deleted_page(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, timeout=0.05) as writer, FileTier(path, timeout=0.05) as reader:
        await load(reader, read("order:7"), "old")
        with closing(sqlite3.connect(path, isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            await commit(writer, write("order:7"))
            assert writer.stats()["pending"] == 1
            (tmp_path / "cache.page").unlink()
            await until(lambda: reader.stats()["failures"] or not reader.stats()["trusted"])
        await until(lambda: not writer.stats()["pending"])
        assert await value_of(reader, read("order:7")) == "nothing"


async def test_writes_that_end_at_the_same_time_are_no_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """With a second tier each of them ends in a task of its own."""
    near, far = FileTier(tmp_path / "near"), FileTier(tmp_path / "far")

    @AgentCacheInvalidator("order:{order_id}", backup=near, remote_cache=far, name="at_once:put")
    async def put(order_id: str, *, fails: bool = False) -> None:
        await asyncio.sleep(0)
        if fails:
            raise TimeoutError

    async with near, far:
        calls = [put(str(number), fails=number % 3 == 0) for number in range(9)]
        await asyncio.gather(*calls, return_exceptions=True)
    assert not caplog.records
    assert near.stats()["failures"] == far.stats()["failures"] == 0


async def test_a_thread_that_has_delivered_the_last_invalidation_does_not_take_back_that_another_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "cache"
    async with FileTier(path, timeout=0.01) as writer:
        writer.keeper = None  # nobody else delivers it
        with closing(sqlite3.connect(path, isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            await commit(writer, write("order:7"))
            assert writer.stats()["pending"] == 1
            locker.execute("ROLLBACK")
            mark = writer.backend.mark

            def write_meanwhile(*, is_missing: bool) -> bool:
                if not is_missing and not other.is_alive():
                    locker.execute("BEGIN IMMEDIATE")
                    other.start()
                    other.join(0.3)  # it waits for this thread, and may not
                return mark(is_missing=is_missing)

            other = threading.Thread(target=lambda: drive(commit(writer, write("order:8"))))
            monkeypatch.setattr(writer.backend, "mark", write_meanwhile)
            with suppress(ConnectionError):
                await writer.flush()
            other.join()
            monkeypatch.undo()
            assert writer.stats()["pending"] == 1
            assert writer.backend.page is not None
            assert not writer.backend.page.is_clean()  # nobody uses the file until it is delivered


async def test_what_was_looked_up_in_a_former_database_is_not_stored_in_the_new_one(tmp_path: Path):
    """Its versions say nothing about the writes between."""
    async with FileTier(tmp_path / "cache") as writer, FileTier(tmp_path / "cache") as reader:
        _, ticket = await reader.lookup(read("order:7"))
        await commit(writer, write("order:7"))
        (tmp_path / "cache").unlink()
        for tier in (writer, reader):
            tier.backend.look_by = 0.0
            await tier.caught_up()
        await reader.store(ticket, "old", ("order:7",), 0.0, age=0.0)
        assert await value_of(writer, read("order:7")) == "nothing"


async def test_a_message_that_was_being_written_at_the_subscription_is_not_missed(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    heard: list[Any] = []
    async with FileTier(tmp_path / "cache") as writer, FileTier(tmp_path / "cache") as tier:

        def subscribe(text: str) -> None:
            if text == "COMMIT":
                steps.clear()
                tier.subscribe(heard.append)

        steps.append(subscribe)
        await commit(writer, write("order:7"))
        await tier.caught_up()
        assert heard


NEVER = float("inf")


async def following(path: Path) -> tuple[FileTier, list[Any]]:
    """A tier that does not look at its files by itself any more, and what it tells of the writes of others."""
    tier, told, is_idle = FileTier(path), list[Any](), threading.Event()
    tier.subscribe(told.append)
    assert await tier.caught_up()
    tier.backend.look_by = NEVER

    async def look_after() -> Any:
        is_idle.set()
        return asyncio.sleep(0.01)

    tier.look_after = look_after  # type: ignore[method-assign]
    await until(is_idle.is_set)
    return tier, told


async def test_copies_are_not_trusted_by_a_page_that_was_deleted(tmp_path: Path):
    """A lookup has found that out and opened the new one; nobody raises the old one any more."""
    reader, told = await following(tmp_path / "cache")
    async with reader, FileTier(tmp_path / "cache") as writer:
        assert reader.stats()["trusted"]
        (tmp_path / "cache.page").unlink()
        for tier in (writer, reader):
            tier.backend.look_by = 0.0
            await tier.lookup(read("order:8"))
        reader.backend.look_by = NEVER
        told.clear()
        await commit(writer, write("order:7"))
        reader.trust.is_valid()  # as a hit asks
        assert told


async def test_who_has_missed_what_is_gone_from_the_feed_takes_everything_as_written(tmp_path: Path):
    reader, told = await following(tmp_path / "cache")
    async with reader, FileTier(tmp_path / "cache") as writer:
        for tag in ("order:7", "order:8"):
            await commit(writer, write(tag))
        with closing(sqlite3.connect(tmp_path / "cache", isolation_level=None)) as beside:
            beside.execute("delete from feed where number < (select max(number) from feed)")
        assert await reader.caught_up()
        assert told == [None]


async def test_a_step_that_is_committed_while_the_feed_is_read_is_not_left_out(
    tmp_path: Path, steps: list[Callable[[str], None]]
):
    """The page is ahead of the rows, and the row comes between two statements of who looks."""
    reader, told = await following(tmp_path / "cache")
    async with reader, FileTier(tmp_path / "cache") as writer:
        intent, stands_still, may_end = write("order:7"), threading.Event(), threading.Event()
        beside = sqlite3.Connection(tmp_path / "cache")
        await writer.begin(intent)
        assert await reader.caught_up()
        told.clear()
        before = beside.execute("select max(number) from feed").fetchone()
        ending = threading.Thread(target=lambda: drive(commit(writer, intent)))

        def wait(text: str) -> None:
            if threading.current_thread() is ending and text == "COMMIT":
                stands_still.set()
                may_end.wait(30)
            elif text.startswith("SELECT MAX(NUMBER)"):
                may_end.set()
                while newest() == before:
                    pass

        def newest() -> object:
            return beside.execute("select max(number) from feed").fetchone()

        steps.append(wait)
        ending.start()
        assert stands_still.wait(30)
        await reader.caught_up()
        may_end.set()
        ending.join()
        assert await reader.caught_up()
        assert [one.tags for one in told] == [("order:7",)]
        beside.close()


async def test_a_copy_ends_as_soon_as_its_damaged_database_is_set_aside(tmp_path: Path):
    """Although SQLite still answers, out of its memory."""
    path = tmp_path / "cache"
    tier, told = await following(path)
    async with tier, FileTier(path) as other:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await commit(other, write("order:7"))
        assert await tier.caught_up()
        told.clear()
        path.write_bytes(b"\xa5" * path.stat().st_size)
        async with FileTier(path):
            assert not tier.trust.is_valid() or told
            assert await tier.caught_up()
            assert told == [None]


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged, and set aside once", "opened"])
async def test_a_database_that_another_process_replaces_meanwhile_is_noticed(
    tmp_path: Path, steps: list[Callable[[str], None]], *, is_damaged: bool
):
    path = tmp_path / "cache"
    await FileTier(path).aclose()
    if is_damaged:
        path.write_bytes(b"\xa5" * path.stat().st_size)
    others: list[FileTier] = []

    def replace(text: str) -> None:
        if is_damaged or "MAX(NUMBER)" in text:  # it has been opened
            steps.clear()
            for file in () if is_damaged else tmp_path.iterdir():
                file.unlink()
            others.append(FileTier(path))
        if is_damaged:
            error = sqlite3.DatabaseError("what was there until now is not a database")
            error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
            raise error

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


async def test_of_processes_that_find_no_file_one_makes_it_and_the_others_leave_what_is_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[FileTier] = []

    def exists(_: Path, is_checked: list[bool] = []) -> bool:  # noqa: B006 - of all calls
        if is_checked:
            monkeypatch.undo()
            made.append(FileTier(tmp_path / "cache"))
        is_checked.append(True)
        return False

    monkeypatch.setattr(Path, "exists", exists)
    async with FileTier(tmp_path / "cache") as tier, made[0] as other:
        await load(tier, read("order:7"), "value")
        assert await value_of(other, read("order:7")) == "value"
    assert not (tmp_path / "cache.corrupt").exists()


async def test_a_new_database_has_a_new_page_for_who_had_the_one_before(tmp_path: Path):
    """A process that goes on with the page of the former one would raise a number that others do not see."""
    tier, _ = await following(tmp_path / "cache")
    (tmp_path / "cache").unlink()
    tier.backend.look_by = 0.0
    assert await tier.caught_up()
    other, told = await following(tmp_path / "cache")
    tier.backend.look_by = NEVER
    async with tier, other:
        await commit(tier, write("order:7"))
        assert other.trust.is_valid()  # it looks
        assert told


async def test_what_one_thread_reads_is_not_taken_for_that_of_a_database_that_another_opens_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The new one may come to the same number."""
    tier, told = await following(tmp_path / "cache")
    for _ in range(3):
        await commit(tier, write("order:7"))
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
    async with tier, FileTier(tmp_path / "cache") as other:
        while await other.caught_up() and other.feed.number != tier.feed.number:
            await commit(other, write("order:7"))
        assert not tier.trust.is_valid() or told


async def test_tools_run_while_the_file_cannot_be_looked_at(tmp_path: Path):
    """Also those whose result names what they have read."""
    async with FileTier(tmp_path / "cache") as tier, FileTier(tmp_path / "cache") as other:

        @AgentCache("parcel:{result[id]}", remote_cache=tier)
        async def find_parcel(label: str) -> dict[str, str]:
            return {"id": label}

        other.backend.mark(is_missing=True)  # it lives, and could not write an invalidation
        assert await find_parcel("7") == {"id": "7"}
        assert tier.stats()["failures"] > 0
        other.backend.mark(is_missing=False)


def test_a_file_that_is_refused_leaves_nothing_open(tmp_path: Path):
    (tmp_path / "cache").write_text("Dear diary. " * 1_000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        with pytest.raises(ConfigurationError):
            FileTier(tmp_path / "cache")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


async def test_files_that_are_opened_again_while_they_are_locked_cost_no_more_than_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with FileTier(tmp_path / "cache", timeout=0.1) as tier:
        await load(tier, read("order:7"), "old")
        with closing(sqlite3.connect(tmp_path / "cache", isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            (tmp_path / "cache.page").unlink()
            tier.backend.look_by, connect, waits = 0.0, sqlite3.connect, list[float]()

            def connected(*arguments: Any, **options: Any) -> Any:
                waits.append(options["timeout"])
                return connect(*arguments, **options)

            monkeypatch.setattr(sqlite3, "connect", connected)
            async with writing(tier, "order:7"):
                assert await value_of(tier, read("order:7")) == "nothing"
            assert max(waits) == 0.1  # it is 5 by itself


async def test_the_first_read_after_a_write_of_another_process_is_stored(tmp_path: Path):
    """Its lookup receives the message of that write, which is over: the tool has not started yet."""
    runs: list[str] = []
    async with FileTier(tmp_path / "cache") as here, FileTier(tmp_path / "cache") as there:

        @AgentCache("parcel:{parcel_id}", remote_cache=here)
        async def get_parcel(parcel_id: str) -> str:
            runs.append(parcel_id)
            return f"seen {len(runs)} times"

        assert await get_parcel("7") == "seen 1 times"
        await commit(there, write("parcel:7"))
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


# Invalidations that are missing


@contextmanager
def on_a_full_disk(*tiers: FileTier) -> Iterator[None]:
    """These can write nothing, and no thread tries."""
    is_full = True

    def guarded(step: Any) -> Any:
        async def run(*arguments: Any, **options: Any) -> Any:
            if is_full:
                raise ConnectionError("the disk is full")
            return await step(*arguments, **options)

        return run

    for tier in tiers:
        tier.keeper.start = lambda _: None  # type: ignore[method-assign]
        tier.backend.begin, tier.backend.commit = guarded(tier.backend.begin), guarded(tier.backend.commit)  # type: ignore[method-assign]
    yield
    is_full = False


async def test_a_file_is_used_again_when_all_processes_have_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if two of them have chosen the same place in the page."""
    monkeypatch.setattr(secrets, "choice", lambda some: some[0])
    one, other, reader = [FileTier(tmp_path / "cache") for _ in range(3)]
    async with one, other, reader:
        with on_a_full_disk(one):
            with on_a_full_disk(other):
                for tier in (one, other):
                    async with writing(tier, "order:7"):
                        pass
                assert not await reader.caught_up()
            assert not await other.caught_up()
            assert other.stats()["pending"] == 0
            assert not await reader.caught_up()
        await one.flush()
        assert await reader.caught_up()


async def test_what_a_process_could_not_deliver_counts_for_a_lease_after_it_was_last_heard_of(tmp_path: Path):
    with FakeClock() as clock:
        writer, reader = FileTier(tmp_path / "cache", lease=10), FileTier(tmp_path / "cache", lease=10)
        async with writer, reader:
            with on_a_full_disk(writer):
                async with writing(writer, "order:7"):
                    pass
                for seconds in (8, 1):
                    clock.advance(seconds)
                    cast(Any, await writer.look_after()).close()
                    assert not await reader.caught_up()
                clock.advance(9)
                assert not await reader.caught_up()
                clock.advance(2)
                assert await reader.caught_up()
                await load(reader, read("order:8"), "its effect may still come")
                assert await value_of(reader, read("order:8")) == "nothing"
                clock.advance(11)
                await load(reader, read("order:8"), "new")
                assert await value_of(reader, read("order:8")) == "new"


async def test_a_write_that_many_later_ones_have_pushed_out_of_the_file_still_ends_what_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agent_cache.remote.database._MOST_CELLS", 100)
    async with FileTier(tmp_path / "cache") as tier, FileTier(tmp_path / "cache") as other:
        await load(tier, read("order:7"), "old")
        for tag in ("order:7", *(f"item:{number}" for number in range(150))):
            await commit(other, write(tag))
        with closing(sqlite3.connect(tmp_path / "cache")) as db:
            assert db.execute("select count(*) from cell").fetchone()[0] < 200
        assert await value_of(tier, read("order:7")) == "nothing"
        await load(tier, read("order:7"), "new")
        assert await value_of(other, read("order:7")) == "new"
