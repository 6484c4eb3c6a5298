"""One load for a fleet of real processes on a real server. Without processes: `test_shared_loads`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

pytest.importorskip("redis")

from tests.harness.forks import Piped, piped_python
from tests.harness.servers import Server
from tests.harness.slow import slow
from tests.harness.stopwatch import Stopwatch
from tests.harness.tiers import server_time, until


class Process:
    """A `tests.harness.loader_process`."""

    def __init__(self, process: Piped | asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, url: str, flight: str, kind: str, lease: float) -> Process:
        command = "-m", "tests.harness.loader_process", url, flight, kind, lease
        return cls(await piped_python(*command, imports=["agent_cache.remote.redis", "redis.asyncio"]))

    def call(self, timeout: float | None = None) -> None:
        """Let it call the tool."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{'' if timeout is None else timeout}\n".encode())

    async def prints(self, *words: str) -> float:
        """Wait for its next line, which begins so. Returns the seconds in it."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            line = (await self._process.stdout.readline()).decode().split()
        assert line[: len(words)] == list(words)
        return float(line[-1]) if len(line) > len(words) else 0.0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if isinstance(self._process, Piped):
            self._process.close()


Start = Callable[..., Awaitable[list[Process]]]


@pytest.fixture
async def start(valkey: Server) -> AsyncIterator[Start]:
    """Start processes, and end them."""
    started: list[Process] = []

    async def start(
        count: int, *, flight: str = "fleet", kind: str = "async def", lease: float = 10.0
    ) -> list[Process]:
        new = [await Process.start(valkey.url, flight, kind, lease) for _ in range(count)]
        started.extend(new)
        for each in new:
            await each.prints("ready")
        return new

    valkey.command("FLUSHALL")
    yield start
    for each in started:
        await each.end()


def runs(server: Server) -> list[int]:
    """The process of each run of the tool."""
    return [int(pid) for pid in server.command("LRANGE", "runs", 0, -1)]


async def loading(server: Server, processes: list[Process]) -> tuple[Process, list[Process]]:
    """Let all processes call the tool. Returns the one that runs it, and the others, when all of them wait."""
    for each in processes:
        each.call()
    await until(lambda: runs(server), seconds=60)
    (pid,) = runs(server)
    (loader,) = [each for each in processes if each.pid == pid]
    others = [each for each in processes if each is not loader]
    for each in others:
        await each.prints("waiting")
    return loader, others


@pytest.mark.parametrize("count", [3, *slow(8)])
@pytest.mark.parametrize("kind", ["async def", *slow("def")])
async def test_processes_that_miss_a_value_load_it_once(start: Start, valkey: Server, kind, count: int):
    processes = await start(count, kind=kind)
    loader, others = await loading(valkey, processes)
    valkey.command("RPUSH", "results", "new")
    for each in (loader, *others):
        await each.prints("answer", "new")
    assert runs(valkey) == [loader.pid]


@pytest.mark.slow
async def test_by_default_each_process_loads_what_it_misses(start: Start, valkey: Server):
    processes = await start(2, flight="process")
    for each in processes:
        each.call()
    await until(lambda: len(runs(valkey)) == 2, seconds=60)
    valkey.command("RPUSH", "results", *["new"] * 2)
    for each in processes:
        await each.prints("answer", "new")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async def", *slow("def")])
async def test_a_loader_that_is_killed_is_replaced_once_and_within_the_lease(start: Start, valkey: Server, kind):
    lease = 2.5
    loader, others = await loading(valkey, await start(4, kind=kind, lease=lease))
    with Stopwatch() as stopwatch:
        loader.kill()
        await until(lambda: len(runs(valkey)) > 1)
    assert stopwatch.running < lease + 1.0  # a busy machine may be late
    await server_time(valkey, lease * 0.7)  # nobody else loads, because the second one renews its claim
    valkey.command("RPUSH", "results", "new")
    for each in others:
        await each.prints("answer", "new")
    assert len(runs(valkey)) == 2


@pytest.mark.slow
async def test_a_load_that_takes_longer_than_the_lease_is_still_one(start: Start, valkey: Server):
    lease = 4.0
    loader, others = await loading(valkey, await start(3, lease=lease))
    await server_time(valkey, 2.2 * lease)
    valkey.command("RPUSH", "results", "new")
    for each in (loader, *others):
        await each.prints("answer", "new")
    assert runs(valkey) == [loader.pid]


async def test_the_timeout_of_a_caller_ends_its_wait_at_once(start: Start, valkey: Server):
    processes = await start(2)
    loader, (other,) = await loading(valkey, processes[:1]), processes[1:]
    other.call(timeout=0.5)
    await other.prints("waiting")
    assert await other.prints("timeout") < 2.0  # and not after the lease of 10 s
    valkey.command("RPUSH", "results", "new")
    await loader[0].prints("answer", "new")
    other.call()
    await other.prints("answer", "new")
    assert runs(valkey) == [loader[0].pid]


@pytest.mark.slow
async def test_an_error_is_not_handed_over(start: Start, valkey: Server):
    loader, (other,) = await loading(valkey, await start(2))
    valkey.command("RPUSH", "results", "fail")
    await loader.prints("error")
    await until(lambda: len(runs(valkey)) == 2)
    valkey.command("RPUSH", "results", "new")
    await other.prints("answer", "new")
    await until(lambda: not valkey.command("KEYS", "r:*"))
