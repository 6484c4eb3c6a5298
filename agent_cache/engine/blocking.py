"""Runs the stages of synchronous tools in the calling thread, without an event loop.

The stages are the coroutine functions of asynchronous tools. `run_blocking` drives them by hand. What they wait for is
a `Waiter`, a `concurrent.futures.Future` that yields itself to this driver, which blocks its thread until it is done:

- the load of another thread;
- a tier: `in_background` runs what it does in one event loop, in a daemon thread of this process. The tier's own
  timeouts bound it.

The tool itself runs in between, in the calling thread, and is not waited for.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextvars import Context
from functools import partial, wraps
from typing import Any, Final, Generic, TypeVar

__all__ = [
    "THREADS",
    "Background",
    "Waiter",
    "blocking",
    "call_in_background",
    "has_running_loop",
    "in_background",
    "run_blocking",
    "start_in_background",
    "start_thread",
]

T = TypeVar("T")

THREADS: Final = "threads"
"""In the key of a flight in place of its event loop: the flights of synchronous tools are shared by all threads."""


class Waiter(Future[Any]):
    """What `run_blocking` waits for: the outcome of a flight, or of work in the background. One thread awaits it."""

    def __await__(self) -> Generator[Waiter, None, Any]:
        if not self.done():
            yield self
        return self.result(0)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine to its end in this thread.

    Whatever interrupts the wait, such as a `KeyboardInterrupt`, is raised inside of the coroutine, where it waits.

    Returns:
        What it returned.

    Raises:
        BaseException: what it raised. A `StopIteration` of the tool, which no coroutine can raise, included.
    """
    try:
        waiter = coroutine.send(None)
        while True:
            try:
                _wait_for(waiter)
            except BaseException as interruption:  # noqa: BLE001 - it is the coroutine's to handle
                waiter = coroutine.throw(interruption)
            else:
                waiter = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration) and str(error) == "coroutine raised StopIteration":
            raise error.__cause__ from error.__cause__.__cause__
        raise


def _wait_for(waiter: object) -> None:
    if not isinstance(waiter, Waiter):
        raise RuntimeError(  # noqa: TRY004 - as of `asyncio.get_running_loop`, which code that awaits this has missed
            f"a synchronous tool cannot wait for {waiter!r}, which needs an event loop"
        )
    try:
        waiter.exception()
    except CancelledError:
        pass  # what awaits it raises this


def blocking(
    function: Callable[..., Coroutine[Any, Any, T]], like: Callable[..., Any] | None = None
) -> Callable[..., T]:
    """A plain function that runs this coroutine function, with the name and the signature of another one."""

    @wraps(function if like is None else like)
    def run(*args: Any, **kwargs: Any) -> T:
        return run_blocking(function(*args, **kwargs))

    return run


def has_running_loop() -> bool:
    """Whether an event loop runs in this thread. It would stand still while the thread waits for another one, and that
    one may wait for this loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# Work in the background: an event loop in a thread of its own


class _BackgroundLoop:
    """The event loop of the process in which tiers work for synchronous tools. Started by the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None

    def reset(self) -> None:
        """In a forked child: the thread is the parent's. Another one may have had the lock."""
        self.__init__()  # type: ignore[misc]

    def is_current(self) -> bool:
        """Whether it runs this code."""
        return threading.get_ident() == self._thread

    def get(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            with self._lock:
                loop = self._loop
                if loop is None:
                    # In an empty context: the loop keeps the one that it is made in, with the call that runs there.
                    loop = Context().run(asyncio.new_event_loop)
                    thread = threading.Thread(target=loop.run_forever, name="agent_cache tiers", daemon=True)
                    thread.start()
                    self._thread = thread.ident
                    self._loop = loop
        return loop


_BACKGROUND: Final = _BackgroundLoop()
os.register_at_fork(after_in_child=_BACKGROUND.reset)


class Background(Generic[T]):
    """Work of the background loop. Whoever awaits it waits for its end, and starts it if nobody has.

    An interruption while it is being started leaves the object: so its caller can take back what was begun.

    Args:
        function: returns the awaitable to work on; called in that loop, in the context in which the work was started.
        is_shielded: whether it goes on when who waits for it is interrupted. Otherwise it is cancelled.
    """

    __slots__ = ("_function", "_is_shielded", "_is_started", "_task", "_waiter")

    def __init__(self, function: Callable[[], Awaitable[T]], *, is_shielded: bool) -> None:
        self._function = function
        self._is_shielded = is_shielded
        self._is_started = False
        self._waiter = Waiter()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless that was done."""
        if not self._is_started:
            self._is_started = True
            loop = _BACKGROUND.get()
            loop.call_soon_threadsafe(self._begin, loop)  # in a copy of this context

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = task = loop.create_task(self._run())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _run(self) -> None:
        try:
            result = await self._function()
        except asyncio.CancelledError as cancelled:
            self._waiter.set_exception(cancelled)
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where this is awaited
            self._waiter.set_exception(error)
        else:
            self._waiter.set_result(result)

    def __await__(self) -> Generator[Waiter, None, T]:
        try:
            self.start()
            result: T = yield from self._waiter.__await__()
        except BaseException:
            if not self._is_shielded and not self._waiter.done():
                _BACKGROUND.get().call_soon_threadsafe(self._cancel)
            raise
        return result

    async def end(self) -> None:
        """Wait for its end, whatever its outcome. In the background loop, where what was not begun by now never is."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


_tasks: set[asyncio.Task[None]] = set()
"""Those of the background loop, which holds tasks only weakly."""


def in_background(
    function: Callable[..., Awaitable[T]], *args: Any, is_shielded: bool = False, **kwargs: Any
) -> Awaitable[T]:
    """What is to be awaited in a synchronous call: what a function returns is awaited in the background loop.

    Code that runs in the background loop itself goes on there.

    Args:
        is_shielded: whether it goes on when who waits for it is interrupted. Otherwise it is cancelled.
    """
    if _BACKGROUND.is_current():
        return function(*args, **kwargs)
    return Background(partial(function, *args, **kwargs), is_shielded=is_shielded)


def start_in_background(function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> Awaitable[T]:
    """The same for what goes on whether or not it is awaited: it has begun when this returns."""
    work = in_background(function, *args, is_shielded=True, **kwargs)
    if isinstance(work, Background):
        work.start()
    return work


def call_in_background(function: Callable[[], object]) -> None:
    """Call a function in the background loop soon."""
    _BACKGROUND.get().call_soon_threadsafe(function)


# Threads for reloads

_MAX_THREADS: Final = 32
"""How many threads of ours run tools at once. A reload beyond that is not begun; the next hit asks for it again."""

_threads = threading.BoundedSemaphore(_MAX_THREADS)


def _reset_threads() -> None:
    global _threads  # noqa: PLW0603 - in a forked child none of them runs
    _threads = threading.BoundedSemaphore(_MAX_THREADS)


os.register_at_fork(after_in_child=_reset_threads)


def start_thread(work: Callable[[], object], name: str) -> bool:
    """Run a function in a daemon thread, unless too many run or the system has none. Returns whether it has begun."""
    threads = _threads
    if not threads.acquire(blocking=False):
        return False

    def run() -> None:
        try:
            work()
        finally:
            threads.release()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # the limit of the system, or the interpreter shuts down
        threads.release()
        return False
    return True
