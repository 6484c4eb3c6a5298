"""One load for the processes of one machine: real processes on one file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.harness.forks import Piped, piped_python
from tests.harness.slow import slow

_PROGRAM = """
import asyncio, sys
from agent_cache import AgentCache, RemotePolicy
from agent_cache.remote import FileTier

tier = FileTier(sys.argv[1], lease=float(sys.argv[2]))

def say(*words):
    sys.stdout.write(" ".join(words) + "\\n")
    sys.stdout.flush()

@AgentCache("order:{order_id}", name="get_order", remote_cache=tier, remote=RemotePolicy(flight=sys.argv[3]))
async def get_order(order_id: str) -> str:
    say("loading")
    result = (await asyncio.to_thread(sys.stdin.readline)).strip()
    if result == "fail":
        raise ValueError(result)
    return result

async def main():
    say("ready")
    sys.stdin.readline()
    try:
        say("answer", await get_order("7"))
    except ValueError:
        say("error")

asyncio.run(main())
"""


class Process:
    """A process that calls the tool when it is told to, and reports what it does."""

    def __init__(self, process: Piped | asyncio.subprocess.Process) -> None:
        self._process = process
        self._line: asyncio.Future[str] | None = None
        self.kill = process.kill

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def next_line(self) -> asyncio.Future[str]:
        """Its next line, of which nothing is lost if it is not waited for."""
        if self._line is None:
            self._line = asyncio.ensure_future(self._read())
        return self._line

    async def _read(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def says(self, line: str) -> None:
        """Wait for its next line."""
        async with asyncio.timeout(60):
            assert await asyncio.shield(self.next_line()) == line
        self._line = None

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if isinstance(self._process, Piped):
            self._process.close()


Start = Callable[..., Awaitable[list[Process]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start processes, and end them."""
    started: list[Process] = []

    async def start(count: int, *, lease: float = 30.0, flight: str = "fleet") -> list[Process]:
        for _ in range(count):
            command = "-c", _PROGRAM, tmp_path / "cache", lease, flight
            started.append(Process(await piped_python(*command, imports=["asyncio", "agent_cache.remote.file"])))
        for each in started:
            await each.says("ready")
            each.tell()
        return started

    yield start
    for each in started:
        await each.end()


async def loading(processes: list[Process]) -> tuple[Process, list[Process]]:
    """The process that runs the tool, and the others."""
    lines = {each.next_line(): each for each in processes}
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait(lines, return_when="FIRST_COMPLETED")
    (line,) = done
    loader = lines[line]
    await loader.says("loading")
    return loader, [each for each in processes if each is not loader]


@pytest.mark.parametrize("count", [3, *slow(6)])
async def test_of_the_processes_that_miss_a_value_one_loads_it(start: Start, count: int):
    loader, others = await loading(await start(count))
    loader.tell("new")
    for each in (loader, *others):
        await each.says("answer new")


async def test_by_default_each_process_loads_what_it_misses(start: Start):
    processes = await start(2, flight="process")
    for each in processes:
        await each.says("loading")
    for each in processes:
        each.tell("new")
        await each.says("answer new")


async def test_a_loader_that_is_killed_is_replaced_at_once(start: Start):
    """The lease is longer than the test waits: that it is dead is known by its lock."""
    loader, others = await loading(await start(3, lease=600.0))
    loader.kill()
    second, others = await loading(others)
    second.tell("new")
    for each in (second, *others):
        await each.says("answer new")


async def test_an_error_is_not_handed_over(start: Start):
    loader, others = await loading(await start(2))
    loader.tell("fail")
    await loader.says("error")
    second, _ = await loading(others)
    second.tell("new")
    await second.says("answer new")
