"""One load for real processes that share a file or a server. Without processes: `test_shared_loads`."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.harness.servers import Server
from tests.harness.slow import slow, slow_rows

_PROGRAM = """
import asyncio, sys
from agent_cache import AgentCache, RemotePolicy
from agent_cache.remote import from_url

url, lease, flight, kind = sys.argv[1:]
tier = from_url(url, lease=float(lease), **({"timeout": 9.0, "max_staleness": 30.0} if url[0] == "r" else {}))

def say(*words):
    sys.stdout.write(" ".join(words) + "\\n")
    sys.stdout.flush()

def load(order_id: str) -> str:
    say("loading")
    result = sys.stdin.readline().strip()
    if result == "fail":
        raise ValueError(result)
    return result

async def load_in_thread(order_id: str) -> str:
    return await asyncio.to_thread(load, order_id)

decorated = AgentCache("order:{order_id}", name="get_order", remote_cache=tier, remote=RemotePolicy(flight=flight))
get_order = decorated(load if kind == "def" else load_in_thread)

async def main():
    say("ready")
    sys.stdin.readline()
    try:
        say("answer", await (asyncio.to_thread(get_order, "7") if kind == "def" else get_order("7")))
    except ValueError:
        say("error")
    await asyncio.to_thread(sys.stdin.readline)  # it lives on

asyncio.run(main())
"""


class Process:
    """A process that calls the tool when it is told to, and reports what it does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._line: asyncio.Future[str] | None = None
        self.kill = process.kill

    def tell(self, line: str = "") -> None:
        self._process.stdin.write(f"{line}\n".encode())

    def next_line(self) -> asyncio.Future[str]:
        """Its next line, of which nothing is lost if it is not waited for."""
        if self._line is None:
            self._line = asyncio.ensure_future(self._read())
        return self._line

    async def _read(self) -> str:
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


Start = Callable[..., Awaitable[list[Process]]]


@pytest.fixture(params=["file", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of what they share."""
    if request.param == "file":
        return f"sqlite:///{tmp_path}/cache"
    pytest.importorskip("redis")
    server: Server = request.getfixturevalue("valkey")
    return server.url


@pytest.fixture
async def start(url: str) -> AsyncIterator[Start]:
    """Start processes, and end them."""
    started: list[Process] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    async def start(
        count: int, *, lease: float = 60.0, flight: str = "fleet", kind: str = "async def"
    ) -> list[Process]:
        for _ in range(count):
            program = [sys.executable, "-c", _PROGRAM, url, str(lease), flight, kind]
            process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, env=environment)
            started.append(Process(process))
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


@pytest.mark.parametrize(("count", "kind"), [(3, "async def"), *slow_rows((3, "def"), (8, "async def"))])
async def test_of_the_processes_that_miss_a_value_one_loads_it(start: Start, count: int, kind: str):
    loader, others = await loading(await start(count, kind=kind))
    loader.tell("new")
    for each in (loader, *others):
        await each.says("answer new")


@pytest.mark.parametrize("url", ["file", *slow("server")], indirect=True)
async def test_a_loader_that_is_killed_is_replaced_after_its_lease(start: Start, url: str):
    loader, others = await loading(await start(3, lease=2.5))
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
