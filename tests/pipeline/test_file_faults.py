"""Faults of the file tier: processes that die or stand still, a file that is locked, full, damaged or deleted."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from agent_cache.remote.file import FileTier
from tests.contract.workbench import load, read, value_of, writing
from tests.harness.file_peers import Peer, Truth
from tests.harness.processes import python, run_python, until
from tests.harness.slow import slow

LEASE = 0.3


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    return Truth(tmp_path)


@pytest.fixture
def locker(tmp_path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Locks the database as another program does that writes to it."""
    connections: list[sqlite3.Connection] = []

    def lock() -> sqlite3.Connection:
        connections.append(connection := sqlite3.connect(tmp_path / "cache", isolation_level=None))
        connection.execute("BEGIN IMMEDIATE")
        return connection

    yield lock
    for connection in connections:
        connection.close()


# Processes


@pytest.mark.slow
def test_what_a_dead_writer_names_is_held_for_a_lease(start: Callable[..., Peer], truth: Truth):
    """Its effect may still come."""
    writer, reader = start(lease=8.0), start(lease=8.0)
    assert reader.do("get", 7) == 0
    writer.ask("put", 7, 1, waits=True)
    assert writer.wait() == "saving"
    writer.kill()
    loads = reader.do("count_loads")
    assert [reader.do("get", 7) for _ in range(2)] == [0, 0]
    assert reader.do("count_loads") == loads + 2
    truth[7] = 1  # the effect
    assert reader.do("get", 7) == 1
    reader.do("until_stored", 7)
    assert reader.do("get", 7) == 1


def test_the_root_of_what_a_dead_writer_would_have_named_is_changed_with_the_end_of_its_lease(
    start: Callable[..., Peer], truth: Truth
):
    writer, reader = start(), start()
    assert reader.do("get", 7) == 0
    writer.ask("rename", 7, 1, waits=True)
    assert writer.wait() == "saving"
    writer.kill()
    truth[7] = 1
    deadline = time.monotonic() + 60
    while reader.do("get", 7) == 0:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("step", ["INSERT", *slow("COMMIT")])
def test_what_a_process_leaves_that_dies_before_its_write_has_begun_is_repaired(start: Callable[..., Peer], step: str):
    writer, reader = start(), start()
    assert reader.do("get", 7) == 0
    writer.do("wait_at", step)
    writer.ask("put", 7, 1)
    assert writer.wait() == "at"
    writer.kill()
    loads = reader.do("count_loads")
    reader.do("until_trusted", 7)
    assert reader.do("get", 7) == 0
    assert reader.do("count_loads") == loads


@pytest.mark.slow
def test_a_writer_that_stands_still_for_longer_than_its_lease_is_not_overtaken(start: Callable[..., Peer]):
    writer, reader = start(), start()
    assert reader.do("get", 7) == 0
    ended = writer.ask("put", 7, 1, waits=True)
    assert writer.wait() == "saving"
    writer.stop()
    reader.do("until_stored", 7)  # its lease is over, so what is there now may be served
    assert reader.do("get", 7) == 0
    writer.resume()
    writer.do("go_on")
    ended.result(60)
    assert reader.do("get", 7) == 1


def test_a_dead_process_does_not_keep_others_from_opening_the_files(start: Callable[..., Peer]):
    opener = start()
    opener.do("close")
    opener.do("wait_at", "BEGIN IMMEDIATE")
    opener.ask("open")
    assert opener.wait() == "at"
    opener.kill()
    assert start().do("get", 7) == 0


@pytest.mark.parametrize("loses_page", [False, True])
def test_what_a_process_had_pending_when_it_died_costs_all_values(
    tmp_path: Path, start: Callable[..., Peer], truth: Truth, locker: Callable[[], sqlite3.Connection], loses_page: bool
):
    writer, reader = start(timeout=0.1), start(timeout=0.1)
    assert [reader.do("get", order) for order in (7, 8)] == [0, 0]
    lock = locker()
    writer.do("put", 7, 1)
    writer.kill()
    assert reader.do("get", 7) == 1
    lock.execute("ROLLBACK")
    if loses_page:
        reader.kill()
        (tmp_path / "cache.page").unlink()
        reader = start(timeout=0.1)
    reader.do("until_stored", 7)
    assert reader.do("get", 7) == 1
    assert reader.do("look_up", 8) is None


TOOLS = """
import asyncio, json, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.remote.file import FileTier
from tests.harness.file_peers import Truth

folder = Path(sys.argv[1])
truth = Truth(folder)
tier = FileTier(folder / "cache", lease=0.3)

@AgentCache("order:{order}", name="get", ttl=60, remote_cache=tier)
def get(order):
    return truth[order]

@AgentCacheInvalidator("order:{order}", name="put", remote_cache=tier)
def put(order, number):
    truth[order] = number
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_and_its_parent_see_the_writes_of_each_other(tmp_path: Path):
    printed = run_python(
        f"""{TOOLS}
seen = [get(7), get(7)]
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.read(to_child[0], 1)
    inherited = get(7)
    put(7, 2)
    os.write(to_parent[1], bytes([inherited]))
    os.read(to_child[0], 1)
    os._exit(get(7))
put(7, 1)
seen.append(get(7))
os.write(to_child[1], b"x")
seen.append(os.read(to_parent[0], 1)[0])
seen.append(get(7))
put(7, 3)
os.write(to_child[1], b"x")
seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
seen.append(ThreadPoolExecutor().submit(get, 8).result(60))
print(json.dumps(seen))
""",
        arguments=[str(tmp_path)],
    )
    assert json.loads(printed) == [0, 0, 1, 1, 2, 3, 0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("writes", [2, *slow(4)])
@pytest.mark.parametrize("end", ["asyncio.run(tier.aclose())", *slow("pass")])
def test_a_child_has_the_files_open_whatever_its_parent_does(tmp_path: Path, end: str, writes: int):
    """Or who closes them last would remove the log that the child writes to. With an inherited connection SQLite would
    believe to have the locks that only its parent has.
    """
    other = f"{TOOLS}\nprint(get(7))\nasyncio.run(tier.aclose())"
    program = f"""{TOOLS}
def in_another_process():
    command = [sys.executable, "-c", {other!r}, str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

get(7)
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if not child:
    while number := os.read(to_child[0], 1)[0]:
        put(7, number)
        os.write(to_parent[1], bytes([get(7), tier.stats()["trusted"]]))
    os._exit(0)
{end}
for number in range(1, {writes + 1}):
    os.write(to_child[1], bytes([number]))
    print(number, *os.read(to_parent[0], 2), in_another_process())
os.write(to_child[1], bytes([0]))
os.waitpid(child, 0)
"""
    printed = run_python(program, arguments=[str(tmp_path)])
    assert printed.splitlines() == [f"{number} {number} 1 {number}" for number in range(1, writes + 1)]
    assert not (tmp_path / "cache.corrupt").exists()


def test_a_tool_that_runs_when_the_program_has_ended_says_nothing_of_a_tier_that_was_closed_before():
    """So does the tier's thread, which may still work."""
    program = """
import atexit, sys, tempfile
atexit.register(lambda: print(get(8)))
from agent_cache import AgentCache
from agent_cache.remote import FileTier
folder = tempfile.TemporaryDirectory()

@AgentCache("order:{order}", remote_cache=FileTier(folder.name + "/cache"))
def get(order):
    return order

print(get(7))
"""
    done = python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n8\n", "")


# The database cannot be written


async def test_a_locked_file_costs_a_call_its_timeout_and_the_next_ones_nothing(
    tmp_path: Path, locker: Callable[[], sqlite3.Connection], steps: list[Callable[[str], None]]
):
    tries: list[str] = []
    async with FileTier(tmp_path / "cache", timeout=0.2) as tier:
        await load(tier, read("order:7"), "old")
        lock = locker()
        steps.append(tries.append)
        begun = time.monotonic()
        async with writing(tier, "order:7"):
            assert time.monotonic() - begun > 0.15
            assert "PRAGMA BUSY_TIMEOUT = 0" in tries  # from now on nobody waits
        assert await value_of(tier, read("order:7")) == "nothing"
        lock.execute("ROLLBACK")
        await tier.caught_up()
        assert tier.stats()["pending"] == 0
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR])
@pytest.mark.parametrize("step", ["BEGIN IMMEDIATE", "INSERT", "DELETE", "COMMIT"])
async def test_tools_do_not_see_a_disk_that_takes_nothing(
    tmp_path: Path, steps: list[Callable[[str], None]], code: int, step: str
):
    def fail(text: str) -> None:
        if text.startswith(step):
            error = sqlite3.OperationalError("the disk")
            error.sqlite_errorcode = code
            raise error

    async with FileTier(tmp_path / "cache") as tier:
        await load(tier, read("order:7"), "old")
        steps.append(fail)
        async with writing(tier, "order:7"):
            assert await value_of(tier, read("order:7")) == "nothing"
        assert tier.stats()["pending"] == 1
        await load(tier, read("order:8"), "not stored")
        steps.clear()
        assert await tier.caught_up()
        assert await value_of(tier, read("order:7")) == "nothing"
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


# The files are damaged or gone


@pytest.mark.parametrize("how", ["garbage", "no rows", *slow("zeros", "cut", "empty")])
async def test_a_damaged_database_is_set_aside_and_a_new_one_is_begun(tmp_path: Path, how: str):
    path = tmp_path / "cache"
    async with FileTier(path, timeout=1.0) as one, FileTier(path, timeout=1.0) as other:
        for order in range(8):
            await load(one, read(f"order:{order}", key=order), "old")
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for table in ("meta", "cell", "feed", "hold", "value") if how == "no rows" else ():
                db.execute(f"DELETE FROM {table}")
        with path.open("r+b") as file:
            if how in ("zeros", "garbage"):
                file.write((b"\0" if how == "zeros" else b"\xa5") * path.stat().st_size)
            elif how != "no rows":
                file.truncate(4_096 if how == "cut" else 0)
        async with FileTier(path, timeout=1.0) as late:
            await until(lambda: how != "no rows" or (one.feed.losses and time.monotonic() > other.backend.look_by))
            await works(one, other, late)
    assert (tmp_path / "cache.corrupt").exists() or how == "empty"  # there is nothing to be set aside


@pytest.mark.parametrize("suffixes", [("",), (".page",), ("-wal",), ("", "-wal", "-shm", ".page")], ids=str)
async def test_deleted_files_are_noticed_and_made_anew(tmp_path: Path, suffixes: tuple[str, ...]):
    path = tmp_path / "cache"
    async with FileTier(path) as one, FileTier(path) as other:
        for order in (7, 8):
            await load(one, read(f"order:{order}", key=order), "old")
        async with writing(one, "order:8"):  # which is in the log
            pass
        assert await value_of(other, read("order:7", key=7)) == "old"
        for suffix in suffixes:
            (tmp_path / f"cache{suffix}").unlink()
        await until(lambda: one.stats()["losses"] and other.stats()["losses"])
        async with FileTier(path) as late:
            await works(one, other, late)
        assert all((tmp_path / f"cache{suffix}").exists() for suffix in ("", ".page"))


@pytest.mark.parametrize("how", ["before they start", "while they run", "and written to"])
async def test_an_older_copy_of_the_database_that_was_put_back_has_no_values(tmp_path: Path, how: str):
    """The page, and the processes, know of steps that it lacks."""
    async with FileTier(tmp_path / "cache") as tier:
        await load(tier, read("order:7"), "old")
        with closing(sqlite3.connect(tmp_path / "cache")) as db, closing(sqlite3.connect(tmp_path / "copy")) as copy:
            db.backup(copy)
            async with writing(tier, "order:7"):
                pass
            if how == "before they start":
                await tier.aclose()
            copy.backup(db)
        if how == "while they run":  # and nobody opens it
            await until(lambda: tier.stats()["losses"])
            assert await value_of(tier, read("order:7")) == "nothing"
        async with FileTier(tmp_path / "cache") as one, FileTier(tmp_path / "cache") as other:
            if how == "and written to":  # before anybody looks
                async with writing(one, "order:8"):
                    await until(lambda: tier.stats()["losses"])
            assert await value_of(one, read("order:7")) == "nothing"
            await works(one, other)


async def works(*tiers: FileTier) -> None:
    """What one of them writes, none of the others has an older value of."""
    request = read("order:7", key=7)
    for writer in tiers:
        async with writing(writer, "order:7"):
            pass
        assert [await value_of(tier, request) for tier in tiers] == ["nothing"] * len(tiers)
        await load(writer, request, "new")
        assert [await value_of(tier, request) for tier in tiers] == ["new"] * len(tiers)


# One process


@pytest.mark.parametrize("writes", [25, *slow(59)])
def test_loops_and_threads_share_a_tier(tmp_path: Path, truth: Truth, writes: int):
    from agent_cache import AgentCache, AgentCacheInvalidator

    tier = FileTier(tmp_path / "cache", lease=LEASE)
    ended = [0] * 8
    stale: list[tuple[int, int]] = []

    @AgentCache("order:{order}", name="get_in_many_loops", ttl=60, remote_cache=tier)
    async def get(order: int) -> int:
        await asyncio.sleep(0)
        return truth[order]

    @AgentCacheInvalidator("order:{order}", name="put_in_many_loops", remote_cache=tier)
    async def put(order: int, number: int) -> None:
        truth[order] = number

    async def work(own: int) -> None:
        for number in range(1, writes + 1):
            await put(own, number)
            ended[own] = number
            for order in range(8):
                least = ended[order]
                if (found := await get(order)) < least:
                    stale.append((found, least))

    threads = [threading.Thread(target=asyncio.run, args=(work(own),)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not stale
    asyncio.run(tier.aclose())


@pytest.mark.parametrize("how", ["closed", "forgotten"])
async def test_a_tier_that_is_closed_or_forgotten_frees_connections_and_its_thread(tmp_path: Path, how: str):
    before = {*threading.enumerate()}
    tier = FileTier(tmp_path / "cache")
    await load(tier, read("order:7"), "old")
    thread = next(one for one in threading.enumerate() if one not in before)
    if how == "closed":
        await tier.aclose()
        assert await value_of(tier, read("order:7")) == "nothing"
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    del tier
    gc.collect()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert not [one for one in _open_files() if one.startswith(str(tmp_path))]


def _open_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the iteration
            found.append(str(descriptor.readlink()))
    return found
