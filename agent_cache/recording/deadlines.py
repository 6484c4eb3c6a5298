"""A call that was cancelled when it was recorded waits for that again, but not for the clock.

Nobody wants to wait for half a minute because the recorded run did. So when a replay has nothing else to do, and what
ends the call is a deadline of the run's own (`asyncio.timeout`, `asyncio.wait_for`, `anyio.fail_after`), the deadline
comes at once: the run sees what it saw. Time itself is left alone, and so is every other timer of the event loop.

What is to be known of a loop's timers is nowhere public. An event loop that is not asyncio's own, such as uvloop, keeps
them to itself: there a deadline comes when it comes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

from agent_cache.recording.frame import Frame

__all__ = ["until_cancelled"]

PAUSE = 0.02
"""Seconds between two looks at what else there is to do. Work in threads that takes longer is not seen."""


async def until_cancelled(frame: Frame) -> None:
    """Wait until this task is cancelled, as it was when the call of this frame was recorded, and no longer than until
    the recorded run was there. What had not ended when the recording did may take for ever.

    Raises:
        DivergenceError: if it is not cancelled this time.
    """
    player, call = frame.tape.player, frame.recorded
    assert player is not None
    assert call is not None
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    watch = _Watch(loop, asyncio.current_task())
    end = None if "unfinished" in call.outcome else loop.call_later(player.time_left(call), _release, over)
    try:
        await over
    finally:
        watch.stop()
        if end is not None:
            end.cancel()
    raise player.not_cancelled(frame)


class _Watch:
    """Looks from time to time whether a deadline of a task is all that its event loop is waiting for."""

    def __init__(self, loop: Any, task: Any) -> None:
        self._loop = loop
        self._task = task
        self._look_again()

    def stop(self) -> None:
        self._handle.cancel()

    def _look_again(self) -> None:
        self._handle = self._loop.call_later(PAUSE, self._look)

    def _look(self) -> None:
        deadline = None if getattr(self._loop, "_ready", True) else self._next_timer()
        if deadline is not None and _cancels(deadline, self._task):
            if _is_scope(owner := getattr(deadline._callback, "__self__", None)):
                self._loop.call_soon(setattr, owner, "deadline", self._loop.time(), context=deadline._context)
            else:
                self._loop.call_soon(deadline._callback, *deadline._args, context=deadline._context)
                deadline.cancel()
        self._look_again()

    def _next_timer(self) -> Any:
        """The timer that comes before all others; those of who waits like this one do not count."""
        timers = (
            timer
            for timer in getattr(self._loop, "_scheduled", ())  # other event loops keep theirs to themselves
            if not timer.cancelled() and not _is_ours(timer)  # a cancelled one has no callback any more
        )
        return min(timers, key=lambda timer: timer.when(), default=None)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_ours(timer: Any) -> bool:
    return timer._callback is _release or isinstance(getattr(timer._callback, "__self__", None), _Watch)


def _cancels(timer: Any, task: Any) -> bool:
    """Whether a timer is a deadline, and this task is, or is awaited by, what is cancelled then."""
    owner = getattr(timer._callback, "__self__", None)
    if isinstance(owner, asyncio.Timeout):
        return _reaches(getattr(owner, "_task", None), task)
    if _is_scope(owner):
        return any(_reaches(each, task) for each in _within(owner))
    # asyncio.wait_for before Python 3.12, and asyncio.wait: they wake who waits, which cancels.
    woken = timer._args[0] if timer._args else None
    return isinstance(woken, asyncio.Future) and any(_reaches(each, task) for each in _told(woken))


def _is_scope(owner: Any) -> bool:
    """Whether it is a `CancelScope` of anyio, which looks at the clock when its timer comes."""
    return type(owner).__name__ == "CancelScope" and type(owner).__module__.startswith("anyio.")


def _within(scope: Any) -> Iterator[Any]:
    """Tasks in a scope of anyio, and in those that were opened in it."""
    yield from getattr(scope, "_tasks", ())
    for inner in getattr(scope, "_child_scopes", ()):
        yield from _within(inner)


def _reaches(start: Any, task: Any) -> bool:
    waiting, seen = [start], set()
    while waiting:
        one = waiting.pop()
        if one is task:
            return True
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_children"):  # asyncio.gather
            waiting += one._children
        elif hasattr(one, "_fut_waiter"):
            waiting.append(one._fut_waiter)
        else:
            waiting += _told(one)
    return False


def _told(future: Any) -> Iterator[Any]:
    """Tasks that end what waits for this future when they are done: those of `asyncio.wait`, of a `TaskGroup`."""
    for task in asyncio.all_tasks():
        for callback, _ in getattr(task, "_callbacks", None) or ():
            if any(part is future for part in _parts(callback)):
                yield task
                break


def _parts(callback: Any) -> Iterator[Any]:
    if isinstance(callback, functools.partial):
        yield from callback.args
    for cell in getattr(callback, "__closure__", None) or ():
        yield cell.cell_contents
    yield getattr(getattr(callback, "__self__", None), "_on_completed_fut", None)
