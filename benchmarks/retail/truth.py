"""Judges reads of a shared store: which answers were true while a read was running."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from benchmarks.retail.store import READ_TOOLS, RetailStore


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
