"""Processes that share a file tier, each with decorated tools over one truth, and told step by step what to do.

`Peer` is a process as its test sees it. Run as a program, the module is that process: it reads requests as lines of
JSON and answers each when it is done, so that a test can have a write wait in its midst while others go on.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import mmap
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.harness.forks import Spoken

__all__ = ["ENTITIES", "Peer", "Truth"]

ENTITIES = 64


class Truth:
    """What the tools read and write: a number for each entity, in memory that processes share."""

    def __init__(self, folder: Path) -> None:
        path = folder / "truth"
        if not path.exists():
            path.write_bytes(bytes(8 * ENTITIES))
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
        self._process = _started("-m", "tests.harness.file_peers", str(folder))
        self.pid = self._process.pid
        self._is_stopped = False
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, name: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Begin a call. The answer may be waited for."""
        number = next(self._numbers)
        future = self._answers[number] = Future()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([number, name, arguments, options]) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            future.set_exception(error)
        return future

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call, and wait for the answer."""
        return self.ask(name, *arguments, **options).result(60)

    def wait(self) -> str:
        """Wait until it says something without being asked."""
        return self.events.get(timeout=60)

    def _listen(self) -> None:
        assert self._process.stdout is not None
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

    def join(self) -> int:
        """Wait for its end. Returns how it ended."""
        return self._process.wait(60)

    def stop(self) -> None:
        """Have it do nothing until `resume`."""
        self._is_stopped = True
        os.kill(self.pid, signal.SIGSTOP)
        if isinstance(self._process, Spoken):
            self._process.wait_until_stopped()
        else:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Have it go on."""
        os.kill(self.pid, signal.SIGCONT)
        self._is_stopped = False

    def leave(self) -> bool:
        """Have it forget all that it did. Returns whether it can `enter` another folder, as one that was just started.

        It cannot if it was killed, or stands still, or is in the middle of something.
        """
        if self._process.poll() is not None or self._is_stopped or self._answers or not self.events.empty():
            return False
        try:
            self.do("leave")
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """End it, and what belongs to it here."""
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        self._process.stdout.close()
        if isinstance(self._process, Spoken):
            self._process.close()


def _started(*command: str) -> Spoken | subprocess.Popen[str]:
    if sys.platform == "linux":
        return Spoken(
            *command, imports=["agent_cache.remote.file", "tests.contract.workbench", "tests.harness.file_steps"]
        )
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


class Process:
    """What a peer can do."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.truth = Truth(folder)
        self.folder = folder
        self.say = say
        self.loads = 0
        self.waits_at = ""
        self.may_go_on = threading.Event()  # of a step
        self.may_save: dict[int, asyncio.Event] = {}
        self.write: Any = None

    async def open(self, name: str = "cache", **options: Any) -> None:
        """Make a tier and tools over it."""
        from agent_cache.remote.file import FileTier

        self.tier = FileTier(self.folder / name, **options)
        self.decorate(self.tier)

    def decorate(self, tier: Any) -> None:
        """The tools, over a tier."""
        from agent_cache import AgentCache, AgentCacheInvalidator

        @AgentCache("order:{order}", name="get", ttl=3600, remote_cache=tier)
        async def get(order: int, more: str = "") -> str:
            self.loads += 1
            return f"{self.truth[order]} {more}"

        @AgentCache("order", name="overview", ttl=3600, remote_cache=tier)
        async def overview() -> list[int]:
            self.loads += 1
            return [self.truth[order] for order in range(ENTITIES)]

        @AgentCache("order:{result[id]}", name="find", ttl=3600, remote_cache=tier)
        async def find(label: str) -> dict[str, int]:
            self.loads += 1
            order = int(label.removeprefix("label "))
            return {"id": order, "number": self.truth[order]}

        @AgentCacheInvalidator("order:{order}", name="put", remote_cache=tier)
        async def put(order: int, number: int, waits: bool) -> None:
            await self.save(order, number, waits)

        @AgentCacheInvalidator("order:{result[id]}", name="rename", remote_cache=tier)
        async def rename(label: str, number: int, waits: bool) -> dict[str, int]:
            order = int(label.removeprefix("label "))
            await self.save(order, number, waits)
            return {"id": order}

        self.tools = get, overview, find, put, rename

    async def save(self, order: int, number: int, waits: bool) -> None:
        """The effect of a write."""
        if waits:
            event = self.may_save[order] = asyncio.Event()
            self.say("saving")
            await event.wait()
        self.truth[order] = number

    async def go_on(self, order: int) -> None:
        """Let a write that waits have its effect."""
        self.may_save[order].set()

    async def get(self, order: int, more: str = "") -> int:
        """Read an entity."""
        return int((await self.tools[0](order, more)).split()[0])

    async def overview(self, order: int) -> int:
        """Read all entities. Returns one."""
        return (await self.tools[1]())[order]

    async def find(self, order: int) -> int:
        """Read an entity that only the result names."""
        return (await self.tools[2](f"label {order}"))["number"]

    async def put(self, order: int, number: int, waits: bool = False) -> None:
        """Write an entity."""
        await self.tools[3](order, number, waits)

    async def rename(self, order: int, number: int, waits: bool = False) -> None:
        """Write an entity that only the result names."""
        await self.tools[4](f"label {order}", number, waits)

    async def invalidate(self, order: int) -> None:
        """Have an entry loaded anew by everybody."""
        await self.tools[0].invalidate(order)

    # The tier without tools

    async def look_up(self, order: int) -> int | None:
        """Look an entity up in the tier. Returns what is there; the ticket is kept."""
        from tests.contract.workbench import read

        self.ticket_of = read(f"order:{order}")
        found, self.ticket = await self.tier.lookup(self.ticket_of)
        return None if found is None else found.value

    async def store(self, number: int) -> None:
        """Store what was loaded since `look_up`."""
        await self.tier.store(self.ticket, number, self.ticket_of.tags, 0.0, age=0.0)

    async def is_clean(self) -> bool:
        """Whether a local copy of what `look_up` found, or of what was loaded since, may be served."""
        return self.ticket.is_clean()

    async def discard(self) -> None:
        """Discard the entry that was looked up."""
        await self.tier.discard(self.ticket_of)

    async def end_write(self, order: int) -> None:
        """End a write that was not begun here: as a tier behind this one passes it on."""
        from tests.contract.workbench import commit, write

        await commit(self.tier, self.write or write(f"order:{order}"))

    async def begin_and_outlast(self, order: int) -> None:
        """Begin the write that `end_write` ends, and wait until its lease has ended."""
        from tests.contract.workbench import write

        self.write = write(f"order:{order}")
        await self.tier.begin(self.write)
        from tests.contract.workbench import read

        while (await self.tier.lookup(read(f"order:{order}")))[1].is_held():
            await asyncio.sleep(0.01)

    async def until_stored(self, order: int) -> None:
        """Wait until what is loaded is stored for other processes."""
        while await self.look_up(order) is None:
            await self.tier.store(self.ticket, self.truth[order], self.ticket_of.tags, 0.0, age=0.0)
            await asyncio.sleep(0.005)

    async def until_trusted(self, order: int) -> None:
        """Wait until a local copy may be served."""
        await self.look_up(order)
        while not self.ticket.is_clean():
            await asyncio.sleep(0.005)
            await self.look_up(order)

    async def until_retired(self) -> None:
        """Wait until it is noticed that the files were replaced or deleted."""
        losses = self.tier.stats()["losses"]
        while self.tier.stats()["losses"] == losses and self.tier.stats()["trusted"]:
            await asyncio.sleep(0.005)

    async def checkpoint(self) -> None:
        """Have what is in the log written into the database."""
        with closing(sqlite3.connect(self.tier.path)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")

    async def suspend(self) -> None:
        """Have it look as if another process had pending invalidations."""
        with self.tier.path.with_name(self.tier.path.name + ".page").open("r+b") as page:
            page.seek(16 + 1_000)
            page.write(b"\1")
            page.seek(0)
            page.write(b"\xff" * 8)

    async def until(self, counter: str) -> None:
        """Wait until something was counted by the tier."""
        while not self.tier.stats()[counter]:
            await asyncio.sleep(0.01)

    async def count_loads(self) -> int:
        """How often a tool ran to load."""
        return self.loads

    async def stats(self) -> dict[str, Any]:
        """Of the tier."""
        return self.tier.stats()

    async def close(self) -> None:
        """Close the tier."""
        await self.tier.aclose()

    async def leave(self) -> None:
        """Close the tier, and keep nothing of it, of the tools, or of the library's state."""
        from agent_cache import testing

        await self.close()
        say = self.say
        vars(self).clear()
        self.say = say
        gc.collect()
        testing.reset()

    async def enter(self, folder: str) -> None:
        """Begin in another folder."""
        vars(self).update(vars(Process(Path(folder), self.say)))

    # Steps

    async def show_steps(self) -> None:
        """Have `wait_at` work for the tiers that are made from now on."""
        from tests.harness.file_steps import show_steps

        show_steps(self.step)

    def step(self, text: str) -> None:
        """One is about to be done."""
        if self.waits_at and text.startswith(self.waits_at.upper()):
            self.waits_at = ""
            self.may_go_on.clear()
            self.say("at")
            self.may_go_on.wait()

    async def wait_at(self, text: str) -> None:
        """Wait at the next step that begins like this: the whole process, but for ``pass``."""
        self.waits_at = text


def main(folder: str) -> None:
    """Do what the lines of the standard input say, until it ends."""
    lock = threading.Lock()

    def send(*answer: Any) -> None:
        with lock:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    process = Process(Path(folder), lambda text: send(None, text, None))
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
            number, name, arguments, options = json.loads(line)
            if name == "pass":  # the loop may be what waits
                process.may_go_on.set()
                send(number, None, None)
            else:
                tasks.add(asyncio.run_coroutine_threadsafe(answer(number, name, arguments, options), loop))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    loop.run_forever()


if __name__ == "__main__":
    main(sys.argv[1])
