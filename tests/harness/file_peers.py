"""Processes that share a file tier, each with decorated tools over one truth, and told step by step what to do.

`Peer` is a process as its test sees it. Run as a program, the module is that process: it reads requests as lines of
JSON and answers each when it is done, so that a test can have a write wait in its midst while others go on.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.harness.file_steps import show_steps

__all__ = ["Peer", "Truth"]


class Truth:
    """What the tools read and write: a number for each entity, in memory that processes share."""

    def __init__(self, folder: Path) -> None:
        path = folder / "truth"
        if not path.exists():
            path.write_bytes(bytes(8 * 64))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def __getitem__(self, entity: int) -> int:
        return self._numbers[entity]

    def __setitem__(self, entity: int, number: int) -> None:
        self._numbers[entity] = number


class Peer:
    """Another process. Its calls have the names of the methods of `Process`.

    Attributes:
        events: what it has said without being asked: where it waits.
    """

    def __init__(self, folder: Path) -> None:
        program = [sys.executable, "-m", "tests.harness.file_peers", str(folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(program, text=True, env=environment, **pipes)
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, name: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Begin a call. The answer may be waited for."""
        number = next(self._numbers)
        future = self._answers[number] = Future()
        self._process.stdin.write(json.dumps([number, name, arguments, options]) + "\n")
        self._process.stdin.flush()
        return future

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call, and wait for the answer."""
        return self.ask(name, *arguments, **options).result(60)

    def wait(self) -> str:
        """Wait until it says something without being asked."""
        return self.events.get(timeout=60)

    def _listen(self) -> None:
        for line in self._process.stdout:
            number, result, error = json.loads(line)
            if number is None:
                self.events.put(result)
            elif error is None:
                self._answers.pop(number).set_result(result)
            else:
                self._answers.pop(number).set_exception(RuntimeError(error))
        for future in self._answers.values():
            future.set_exception(ConnectionError("the process has ended"))

    def kill(self) -> None:
        """End it as nothing else does: at once."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Have it do nothing until `resume`."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Have it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and what belongs to it here."""
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


class Process:
    """What a peer can do."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.truth = Truth(folder)
        self.folder = folder
        self.say = say
        self.loads = 0
        self.waits_at = ""
        self.may_go_on = threading.Event()  # of a step
        self.may_save = asyncio.Event()

    async def open(self, **options: Any) -> None:
        """Make a tier and tools over it."""
        from agent_cache import AgentCache, AgentCacheInvalidator
        from agent_cache.remote.file import FileTier

        self.tier = tier = FileTier(self.folder / "cache", **options)

        @AgentCache("order:{order}", name="get", ttl=3600, remote_cache=tier)
        async def get(order: int) -> int:
            self.loads += 1
            return self.truth[order]

        @AgentCacheInvalidator("order:{order}", name="put", remote_cache=tier)
        async def put(order: int, number: int, waits: bool = False) -> None:
            await self.save(order, number, waits)

        @AgentCacheInvalidator("order:{result[id]}", name="rename", remote_cache=tier)
        async def rename(order: int, number: int, waits: bool) -> dict[str, int]:
            await self.save(order, number, waits)
            return {"id": order}

        self.get, self.put, self.rename = get, put, rename

    async def save(self, order: int, number: int, waits: bool) -> None:
        """The effect of a write."""
        if waits:
            self.say("saving")
            await self.may_save.wait()
        self.truth[order] = number

    async def go_on(self) -> None:
        """Let a write that waits have its effect."""
        self.may_save.set()

    async def look_up(self, order: int) -> int | None:
        """Look an entity up in the tier, and store it if it is not there. Returns what was there."""
        from tests.contract.workbench import read

        request = read(f"order:{order}")
        found, self.ticket = await self.tier.lookup(request)
        await self.tier.store(self.ticket, self.truth[order], request.tags, 0.0, age=0.0)
        return None if found is None else found.value

    async def until_stored(self, order: int) -> None:
        """Wait until what is loaded is stored for other processes."""
        while await self.look_up(order) is None:
            await asyncio.sleep(0.005)

    async def until_trusted(self, order: int) -> None:
        """Wait until a local copy may be served."""
        await self.look_up(order)
        while not self.ticket.is_clean():
            await asyncio.sleep(0.005)
            await self.look_up(order)

    async def count_loads(self) -> int:
        """How often a tool ran to load."""
        return self.loads

    async def close(self) -> None:
        """Close the tier."""
        await self.tier.aclose()

    def step(self, text: str) -> None:
        """One is about to be done."""
        if self.waits_at and text.startswith(self.waits_at):
            self.waits_at = ""
            self.say("at")
            self.may_go_on.wait()

    async def wait_at(self, text: str) -> None:
        """Wait at the next step that begins like this: the whole process."""
        self.waits_at = text


def main(folder: str) -> None:
    """Do what the lines of the standard input say, until it ends."""
    lock = threading.Lock()

    def send(*answer: Any) -> None:
        with lock:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    process = Process(Path(folder), lambda text: send(None, text, None))
    show_steps(process.step)
    loop = asyncio.new_event_loop()

    async def answer(number: int, name: str, arguments: list[Any], options: dict[str, Any]) -> None:
        method: Callable[..., Awaitable[Any]] = getattr(process, name)
        try:
            send(number, await method(*arguments, **options), None)
        except Exception as error:  # passed on to the test
            send(number, None, f"{type(error).__name__}: {error}")

    tasks: set[Any] = set()

    def listen() -> None:
        for line in sys.stdin:
            tasks.add(asyncio.run_coroutine_threadsafe(answer(*json.loads(line)), loop))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    loop.run_forever()


if __name__ == "__main__":
    main(sys.argv[1])
