"""Lanes: which task of asyncio, or which thread, makes a call; and the order in which answers are given.

A *lane* is what one task does in order, or what a thread does in one context. The task that enters a recording is lane
0. A context variable carries the lane: a task or a thread that was started with a copy of the context finds the lane of
its starter there, and gets a new one, *forked* from it.
"""

from __future__ import annotations

import asyncio
import threading
import types
import weakref
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_CYCLES = 20
"""Cycles of the event loop for which an error may travel from a task that it has ended to those that wait for it: two a
task. It ends the block itself if it arrives there meanwhile, with the traceback of the whole way."""
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

    __slots__ = ("forked", "lanes", "number", "owner")

    def __init__(self, lanes: Lanes, number: int, forked: int) -> None:
        self.lanes = lanes
        self.number = number
        self.forked = forked
        self.owner: Any = None

    def enter(self, task: Any) -> None:
        """Make this the lane of the running context, in which this task runs, or none."""
        self.owner = threading.get_ident() if task is None else weakref.ref(task)
        _LANES.set((self, *(lane for lane in _LANES.get() if lane.lanes is not self.lanes and not lane.lanes.is_over)))


_LANES: ContextVar[tuple[Lane, ...]] = ContextVar("agent_cache_lanes", default=())
"""In each recording around it, the lane of this context, or of the one that this is a copy of."""


class Lanes:
    """The lanes of one recording, and the task that ends when a divergence has ended another one.

    Not thread-safe: the tape asks for lanes under its lock.

    Attributes:
        is_over: whether the recording has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._next = 0
        self._first = Lane(self, 0, 0)
        self._of_task: MutableMapping[Any, Lane] = weakref.WeakKeyDictionary()
        self._thread = threading.get_ident()
        self._owner = _Owner(None)
        self._watched: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def current(self) -> Lane:
        """The lane of the running task, or, outside of tasks, of the running thread in its context."""
        task = _running_task()
        found = next((lane for lane in _LANES.get() if lane.lanes is self), None)
        if found is not None:
            owner = found.owner
            if (owner == threading.get_ident()) if task is None else (type(owner) is not int and owner() is task):
                return found
        lane = None if task is None else self._of_task.get(task)  # tasks may share a context
        if lane is None:
            lane = Lane(self, self._next, 0 if found is None else found.number) if self._next else self._first
            self._next += 1
            if task is not None:
                self._of_task[task] = lane
        lane.enter(task)
        return lane

    def begin(self) -> None:
        """Make what runs here lane 0: the block is entered."""
        self.current()
        self._owner = _Owner(_running_task())

    @contextmanager
    def continued(self) -> Iterator[None]:
        """Make the running task lane 0 for a while: it does what the block was entered for."""
        task = _running_task()
        outer, self._owner = self._owner, _Owner(task)
        self._first.enter(task)
        if task is not None:
            self._of_task[task] = self._first
        try:
            yield
        finally:
            self._owner = outer
            self.leave()

    def enter_context(self) -> None:
        """Make the running context one of the recording, as if it were a copy of the block's."""
        self.leave()
        _LANES.set((self._first, *_LANES.get()))

    def leave(self) -> None:
        """Forget the lane of the running context."""
        _LANES.set(tuple(lane for lane in _LANES.get() if lane.lanes is not self))

    # Divergences in other tasks

    def has_ended(self, error: BaseException | None) -> bool:
        """Whether an error that leaves the block is the cancellation by which a divergence has ended it."""
        return self._owner.release(error)

    def watch(self) -> None:
        """End the block when the running task has ended by an error, which was just made, unless that ends it first.

        Otherwise, what waits for the work that this task will not do any more, as `Queue.join` does, would wait for
        ever.
        """
        task = _running_task()
        if task is not None and task is not self._owner.task and task not in self._watched:
            self._watched.add(task)
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        if not (self.is_over or task.cancelled() or task.exception() is None):
            loop = task.get_loop() if self._owner.task is None else self._owner.task.get_loop()
            loop.call_soon_threadsafe(self._end_block, loop, _CYCLES)

    def _end_block(self, loop: asyncio.AbstractEventLoop, cycles: int) -> None:
        if self.is_over:
            return
        if cycles:
            loop.call_soon(self._end_block, loop, cycles - 1)
        elif self._owner.task is not None:
            self._owner.cancel([self._owner.task])
        elif threading.get_ident() == self._thread:  # the block waits for this loop, and all of its tasks end with it
            self._owner.cancel([task for task in asyncio.all_tasks(loop) if not _is_of_asyncio(task)])


def _is_of_asyncio(task: asyncio.Task[Any]) -> bool:
    """Whether it is one of the tasks by which `asyncio.run` ends its loop."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename == asyncio.base_events.__file__


class _Owner:
    """What a divergence in another task cancels: a task, or, in a block outside of tasks, those that it waits for."""

    __slots__ = ("_cancelling", "_is_cancelled", "task")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.task = task
        self._cancelling = 0 if self.task is None else self.task.cancelling()
        self._is_cancelled = False

    def cancel(self, tasks: list[asyncio.Task[Any]]) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            for task in tasks:
                task.cancel("a replay has diverged in another task")

    def release(self, error: BaseException | None) -> bool:
        """Take the cancellation back. Whether it is this one, and no other, that `error` is."""
        if not self._is_cancelled:
            return False
        self._is_cancelled = False
        is_only_one = self.task is None or self.task.uncancel() <= self._cancelling
        return is_only_one and isinstance(error, asyncio.CancelledError)


# Tasks


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@types.coroutine
def checkpoint() -> Generator[None, None, None]:
    """Let other tasks run once, and be cancelled: `asyncio.sleep(0)` without its own frame."""
    yield


class Turns:
    """Lets calls that are answered at the same time end in the order in which they had ended when they were recorded.

    So a loop over `asyncio.as_completed` gets the same answer first, and the same worker of a pool is free first. An
    answer has still a way to go: a client reads the body of a response, and tasks that wait for each other end one
    after another. So the next one waits for `_SETTLING` cycles of the event loop more.
    """

    def __init__(self) -> None:
        self._in_flight: dict[asyncio.AbstractEventLoop, list[int]] = {}  # ranks, sorted
        self._waiting: dict[int, asyncio.Event] = {}  # by rank

    async def take(self, rank: int, *, is_next: bool = True) -> None:
        """Let other tasks run, and wait for those calls in flight in this event loop that had ended earlier."""
        loop = asyncio.get_running_loop()
        ranks = self._in_flight.setdefault(loop, [])
        insort(ranks, rank)
        try:
            cycles = 1 if is_next else _BEGINNING
            while cycles and ranks[0] == rank:
                await checkpoint()
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


async def wait_for_cancellation(seconds: float | None) -> None:
    """Wait until the running task is cancelled, which raises, or this many seconds have passed; None is for ever."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def is_cancellation(error: BaseException) -> bool:
    """Whether an exception cancels the running task, and is no `CancelledError` that a coroutine raised by itself."""
    task = _running_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
