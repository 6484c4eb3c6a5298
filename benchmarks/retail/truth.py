"""Judges reads of a shared store: which answers were true while a read was running, in one process or in several."""

from __future__ import annotations

import asyncio
import enum
import json
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.retail.store import READ_TOOLS, RetailStore

LINE_LIMIT = 1 << 24


class Verdict(enum.Enum):
    """Whether an answer was true at some moment between the read's start and its end."""

    TRUE = "true at some moment of the call"
    OVERLAPPED = "true until a write that was still running when the call began"
    STALE = "true at no moment since the last write that had ended before the call began"


@dataclass(slots=True, eq=False)
class _Write:
    is_running: bool = True


@dataclass(frozen=True, slots=True)
class _Superseded:
    """A former state of the store, and the write that replaced it."""

    state: RetailStore
    by: _Write
    was_running: bool


@dataclass(frozen=True, slots=True, eq=False)
class Witness:
    """A read in progress, every answer that was true since it began, and the states of the store shortly before.

    A read that overlaps a write may see the store before or after it, and both are correct. So an answer is true if it
    was true at *some* moment of the call.
    """

    tool: str
    arguments: Mapping[str, Any]
    first: str
    true_answers: set[str]
    earlier: tuple[_Superseded, ...]

    def verdict(self, answer: str) -> Verdict:
        """Classify the answer of the read.

        A read that begins while a write is running may join a load from before the write's effect: the write has not
        returned yet. To tell such an answer from a stale one, this goes back from the read's start, state by state, as
        long as each change was made by a write that was still running at that start.
        """
        if answer in self.true_answers:
            return Verdict.TRUE
        newer = self.first
        for superseded in reversed(self.earlier):
            older = superseded.state.answer(self.tool, self.arguments)
            if older != newer and not superseded.was_running:
                return Verdict.STALE
            if older == answer:
                return Verdict.OVERLAPPED
            newer = older
        return Verdict.STALE


class ObservedStore:
    """A store that updates the witnesses of all reads in progress, and counts the reads that reached it.

    The store changes at one instant inside each write, in one event loop. At that instant each open witness gets the
    answer of the new state. A former state is kept while the write that replaced it, or an earlier one, is running.
    """

    def __init__(self, store: RetailStore) -> None:
        self._store = store
        self._open: dict[int, Witness] = {}
        self._superseded: deque[tuple[RetailStore, _Write]] = deque()
        self._write: ContextVar[_Write] = ContextVar("write")
        self.reads_executed = 0

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store, and update the witnesses if that changed it."""
        if tool in READ_TOOLS:
            self.reads_executed += 1
            return self._store.answer(tool, arguments)
        before, version = self._store.copy(), self._store.version
        text = self._store.answer(tool, arguments)
        if self._store.version != version:
            self._superseded.append((before, self._write.get()))
            for witness in self._open.values():
                witness.true_answers.add(self._store.answer(witness.tool, witness.arguments))
        return text

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the states that the write in this block replaces until it has returned."""
        write = _Write()
        token = self._write.set(write)
        try:
            yield
        finally:
            write.is_running = False
            self._write.reset(token)
            while self._superseded and not self._superseded[0][1].is_running:
                self._superseded.popleft()

    @contextmanager
    def watching(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[Witness]:
        """Collect the true answers of one read while the block runs."""
        if tool not in READ_TOOLS:
            raise ValueError(f"{tool!r} is no read: the result of a write has nothing to compare it with")
        now = self._store.answer(tool, arguments)
        earlier = tuple(_Superseded(state, write, write.is_running) for state, write in self._superseded)
        witness = Witness(tool, arguments, now, {now}, earlier)
        self._open[id(witness)] = witness
        try:
            yield witness
        finally:
            del self._open[id(witness)]


class Authority:
    """Serves one observed store to several processes over a unix socket, from a thread of its own.

    A request is one JSON line, handled at one instant of this event loop. So all changes of the store have one order,
    and each read is judged by the truth of its own time, whichever process made it.

    Attributes:
        observed: the store. Its counts are complete when no process sends requests any more.
    """

    def __init__(self, store: RetailStore, path: Path) -> None:
        self.observed = ObservedStore(store)
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="authority", daemon=True)

    def __enter__(self) -> Authority:
        self._thread.start()
        listening = asyncio.start_unix_server(self._serve, str(self._path), limit=LINE_LIMIT)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one session. It is a task, so the write in progress is in its own context."""
        with ExitStack() as open_:
            witness: Witness | None = None
            while line := await reader.readline():
                match json.loads(line):
                    case ["answer", tool, arguments]:
                        response = self.observed.answer(tool, arguments)
                    case ["watch", tool, arguments]:
                        witness = open_.enter_context(self.observed.watching(tool, arguments))
                        response = "watching"
                    case ["judge", answer]:
                        assert witness is not None
                        response = witness.verdict(answer).name
                        open_.pop_all().close()
                    case ["write"]:
                        open_.enter_context(self.observed.writing())
                        response = "writing"
                    case ["written"]:
                        open_.pop_all().close()
                        response = "written"
                    case other:
                        raise ValueError(f"unknown request: {other!r}")
                writer.write(json.dumps(response).encode() + b"\n")
        writer.close()


_CLIENT: ContextVar[AuthorityClient] = ContextVar("client")


class AuthorityClient:
    """One session's connection to the authority. Requests block, so that nothing in their process comes in between."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        _CLIENT.set(self)

    def request(self, *parts: object) -> str:
        self._socket.sendall(json.dumps(parts).encode() + b"\n")
        response: str = json.loads(self._lines.readline())
        return response

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """As `ObservedStore.writing`."""
        self.request("write")
        try:
            yield
        finally:
            self.request("written")

    def watch(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Start to collect the true answers of a read."""
        self.request("watch", tool, arguments)

    def judge(self, answer: str) -> Verdict:
        """Stop collecting, and classify the read's answer."""
        return Verdict[self.request("judge", answer)]


class RemoteStore:
    """The backend of the tools in a process without the store."""

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool in the authority's process."""
        return _CLIENT.get().request("answer", tool, arguments)
