"""Runs the coroutines of the engine for synchronous tools, in the calling thread and without an event loop.

`run_blocking` drives them by hand. What they wait for is a `concurrent.futures.Future` that is yielded to this driver,
which blocks its thread until it is done:

- a `Waiter`, for the load of another thread;
- `in_background`, for a tier: what it does runs in one event loop, in a daemon thread of this process. The tier's own
  timeouts bound it.

The tool itself runs in between, in the calling thread, and is not waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextvars import Context
from functools import wraps
from types import coroutine
from typing import Any, Final, TypeVar, cast

from agent_cache.at_fork import at_fork, notice_fork

__all__ = [
    "PAUSE", "THREADS", "Waiter", "blocking", "call_in_background", "in_background", "run_blocking", "running_loop",
    "start_thread",
]  # fmt: skip

T = TypeVar("T")

THREADS: Final = "threads"
"""In the key of a flight in place of its event loop: the flights of synchronous tools are shared by all threads."""


class Waiter(Future[Any]):
    """The outcome of a load that one thread waits for."""

    def __await__(self) -> Generator[Future[Any], None, Any]:
        if not self.done():
            yield self
        return self.result(0)


PAUSE: Final = object()
"""What a coroutine of the engine yields to return to its caller, who may run it on."""


def run_blocking(coroutine: Coroutine[Any, Any, T], interruption: BaseException | None = None) -> T:
    """Run a coroutine of the engine to its end in this thread, or until it pauses.

    Whatever interrupts the wait, such as a `KeyboardInterrupt`, is raised inside of the coroutine, where it waits; and
    the `interruption` at once.

    Returns:
        What it returned; if it pauses, nothing of use.

    Raises:
        BaseException: what it raised. A `StopIteration` of the tool, which no coroutine can raise, included.
    """
    try:
        future = coroutine.send(None) if interruption is None else coroutine.throw(interruption)
        while future is not PAUSE:
            try:
                _wait_for(future)
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                future = coroutine.throw(error)
            else:
                future = None  # or an error of the load would have this frame, which has the error
                future = coroutine.send(None)
        return cast("T", future)
    except StopIteration as end:
        return cast("T", end.value)
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration) and str(error) == "coroutine raised StopIteration":
            raise error.__cause__ from error.__cause__.__cause__
        raise
    finally:
        del interruption  # as above


def _wait_for(future: object) -> None:
    """Block this thread until what a coroutine of the engine waits for is done. Its own outcome is not raised."""
    if not isinstance(future, Future):
        raise RuntimeError(  # noqa: TRY004 - as of `asyncio.get_running_loop`, which code that awaits this has missed
            f"a synchronous tool cannot wait for {future!r}, which needs an event loop"
        )
    try:
        future.exception()
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


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# Work in the background


class _BackgroundLoop:
    """The event loop of the process in which tiers work for synchronous tools. Started by the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        notice_fork()
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    # In an empty context: the loop keeps the one that it is made in, with the call that runs there.
                    loop = Context().run(asyncio.new_event_loop)
                    threading.Thread(target=loop.run_forever, name="agent_cache tiers", daemon=True).start()
                    self._loop = loop
        return self._loop


_BACKGROUND: Final = _BackgroundLoop()
at_fork(after_in_child=_BACKGROUND.__init__)  # type: ignore[misc]  # the thread is the parent's


@coroutine
def _outcome_of(future: Future[T], *, is_shielded: bool) -> Generator[Future[T], None, T]:
    try:
        if not future.done():
            yield future
        return future.result(0)
    except BaseException:
        if not is_shielded:
            future.cancel()
        raise


_works: set[Future[Any]] = set()
"""Those that have not ended. The event loop holds tasks only weakly."""


def in_background(
    function: Callable[..., Awaitable[T]], *args: Any, is_shielded: bool = False, **kwargs: Any
) -> Awaitable[T]:
    """Have what a function returns awaited in the background loop, in a copy of this context. The function is called
    there, too.

    Code that runs in the background loop itself goes on there.

    Args:
        is_shielded: whether it goes on when who waits for it is interrupted. Otherwise it is cancelled.

    Returns:
        Its outcome, to be awaited in a synchronous call.
    """
    if (loop := _BACKGROUND.get()) is running_loop():
        return function(*args, **kwargs)

    async def work() -> T:
        return await function(*args, **kwargs)

    future = asyncio.run_coroutine_threadsafe(work(), loop)
    _works.add(future)
    future.add_done_callback(_works.discard)
    return _outcome_of(future, is_shielded=is_shielded)


def call_in_background(function: Callable[[], object]) -> None:
    """Call a function in the background loop soon."""
    _BACKGROUND.get().call_soon_threadsafe(function)


# Threads for reloads

_MAX_THREADS: Final = 32
"""How many threads of ours run tools at once. A reload beyond that is not begun; the next hit asks for it again."""

_threads: list[threading.Thread] = []


def start_thread(work: Callable[[], object], name: str) -> bool:
    """Run a function in a daemon thread, unless too many run or the system has none. Returns whether it has begun."""
    _threads[:] = running = [thread for thread in _threads if thread.is_alive()]  # after a fork none is
    if len(running) >= _MAX_THREADS:
        return False
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the limit of the system, or the interpreter shuts down
        return False
    _threads.append(thread)
    return True
