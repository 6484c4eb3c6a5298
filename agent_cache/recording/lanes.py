"""Lanes: which task of asyncio, or which thread, makes a call; and the order in which answers are given.

A *lane* is what one task does in order, or what a thread does in one context. The task that enters a recording is lane
0. A context variable carries the lane: a task or a thread that was started with a copy of the context finds the lane of
its starter there, and gets a new one, *forked* from it.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from asyncio.events import _get_running_loop
from bisect import bisect_left, insort
from collections.abc import Awaitable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

_SETTLING = 6
"""Cycles of the event loop between the answers of two calls: the body of a response takes three, and each task that
waits for another one takes two."""
_BEGINNING = 12
"""Cycles that a call which is started at the same time may take to begin: a request of aiohttp in a task takes six."""


class Lane:
    """What one task does in order, or what a thread does in one context.

    Attributes:
        lanes: those of the recording that it belongs to.
        number: number of the lane, in the order in which the lanes of a recording made their first call.
        forked: number of the lane that it was forked from; 0 for lane 0.
        owner: the task, weakly, or the number of the thread.
    """

    def __init__(self, lanes: Lanes, number: int, forked: int) -> None:
        self.lanes, self.number, self.forked = lanes, number, forked
        self.owner: Any = None

    def enter(self, task: Any) -> None:
        """Make this the lane of the running context, in which this task runs, or none."""
        self.owner = threading.get_ident() if task is None else weakref.ref(task)
        _LANES.set((self, *(lane for lane in _LANES.get() if lane.lanes is not self.lanes and not lane.lanes.is_over)))


_LANES: ContextVar[tuple[Lane, ...]] = ContextVar("agent_cache_lanes", default=())
"""In each recording around it, the lane of this context, or of the one that this is a copy of."""


class Lanes:
    """The lanes of one recording. Not thread-safe: the tape asks for lanes under its lock.

    Attributes:
        is_over: whether the recording has ended.
    """

    def __init__(self) -> None:
        self.is_over, self._next = False, 0
        self._first = Lane(self, 0, 0)
        self._of_task: MutableMapping[Any, Lane] = weakref.WeakKeyDictionary()  # tasks may share a context

    def current(self) -> Lane:
        """The lane of the running task, or, outside of tasks, of the running thread in its context."""
        loop = _get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
        found = None
        for lane in _LANES.get():
            found = lane if lane.lanes is self else found
        if found is not None:
            owner = found.owner
            if (owner == threading.get_ident()) if task is None else (type(owner) is not int and owner() is task):
                return found
        own = None if task is None else self._of_task.get(task)
        if own is None:
            own = Lane(self, self._next, 0 if found is None else found.number) if self._next else self._first
            self._next += 1
            if task is not None:
                self._of_task[task] = own
        own.enter(task)
        return own

    @contextmanager
    def continued(self) -> Iterator[None]:
        """Make the running task lane 0 for a while: it does what the block was entered for."""
        task = _running_task()
        self._first.enter(task)
        if task is not None:
            self._of_task[task] = self._first
        try:
            yield
        finally:
            self.leave()

    def enter_context(self) -> None:
        """Make the running context one of the recording, as if it were a copy of the block's."""
        self.leave()
        _LANES.set((self._first, *_LANES.get()))

    def leave(self) -> None:
        """Forget the lane of the running context."""
        _LANES.set(tuple(lane for lane in _LANES.get() if lane.lanes is not self))


# Tasks


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _Cycle(tuple[None]):
    """Yields once where it is awaited: `asyncio.sleep(0)` without a frame."""

    __slots__ = ()
    __await__ = tuple.__iter__


CHECKPOINT: Final[Awaitable[None]] = _Cycle((None,))  # type: ignore[assignment]  # an iterator will do
"""Awaited, it lets other tasks run once, and this one be cancelled."""


class Turns:
    """Lets calls that are answered at the same time end in the order in which they had ended when they were recorded.

    So a loop over `asyncio.as_completed` gets the same answer first, and the same worker of a pool is free first. An
    answer has still a way to go: a client reads the body of a response, and tasks that wait for each other end one
    after another. So the next one waits for `_SETTLING` cycles of the event loop more.
    """

    def __init__(self) -> None:
        self._in_flight: dict[asyncio.AbstractEventLoop, list[int]] = {}  # ranks, sorted
        self._waiting: dict[int, asyncio.Event] = {}  # by rank

    def has_before(self, rank: int) -> bool:
        """Whether a call is in flight in this event loop that had ended earlier."""
        ranks = self._in_flight.get(asyncio.get_running_loop(), [])
        return bool(ranks) and ranks[0] < rank

    async def take(self, rank: int, *, is_next: bool = True) -> None:
        """Let other tasks run, and wait for those calls in flight in this event loop that had ended earlier."""
        loop = asyncio.get_running_loop()
        ranks = self._in_flight.setdefault(loop, [])
        insort(ranks, rank)
        try:
            cycles = 1 if is_next else _BEGINNING
            while cycles and ranks[0] == rank:
                await CHECKPOINT
                cycles -= 1
            while ranks[0] < rank:
                event = self._waiting[rank] = asyncio.Event()
                await event.wait()
        finally:
            self._leave(loop, ranks, rank, _SETTLING)

    def _leave(self, loop: asyncio.AbstractEventLoop, ranks: list[int], rank: int, cycles: int) -> None:
        """Let the next one end, after this many cycles of the event loop if there is any."""
        if cycles and len(ranks) > 1 and not loop.is_closed():
            loop.call_soon(self._leave, loop, ranks, rank, cycles - 1)
            return
        del ranks[bisect_left(ranks, rank)]
        if ranks and (event := self._waiting.pop(ranks[0], None)) is not None:
            event.set()


def is_cancellation(error: BaseException) -> bool:
    """Whether an exception cancels the running task, and is no `CancelledError` that a coroutine raised by itself."""
    task = _running_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
