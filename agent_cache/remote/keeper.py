"""The thread of a tier, which applies what others write and delivers what is pending; and what a fork is to tiers."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable
from contextlib import ExitStack, suppress
from typing import Any, Final

from agent_cache.at_fork import at_fork
from agent_cache.core.versions import VERSIONS

__all__ = ["TIERS", "Keeper"]

_NAME = "agent_cache follows a tier"
_NOT_STARTED = "no thread could be started, so each call looks for what others write"


class Keeper:
    """A daemon thread with an event loop of its own. It ends with its tier, which it does not keep alive.

    It calls ``tier.look_after()`` again and again. What that returns is awaited in between, without the tier.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[Any] | None = None
        self._lock = threading.RLock()

    def is_alive(self) -> bool:
        """Whether it works."""
        return self._thread is not None and self._thread.is_alive()

    def is_here(self) -> bool:
        """Whether it is this thread that works."""
        return self._thread is threading.current_thread()

    def start(self, tier: Any) -> None:
        """Begin, if it does not work."""
        if self.is_alive():
            return
        with self._lock:
            if self.is_alive():
                return
            self._thread = threading.Thread(target=self._run, args=(weakref.ref(tier),), name=_NAME, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the next call tries again
                self._thread = None
                tier.log.once(_NOT_STARTED, error)

    def _run(self, reference: weakref.ref[Any]) -> None:
        try:
            with suppress(asyncio.CancelledError), asyncio.Runner() as runner:
                runner.run(self._keep(reference))
        except OSError as error:  # there is no file descriptor left for an event loop; the next call tries again
            if (tier := reference()) is not None:
                tier.log.once(_NOT_STARTED, error)

    async def _keep(self, reference: weakref.ref[Any]) -> None:
        self.loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        while (tier := reference()) is not None and not tier.is_closed:
            try:
                pause: Awaitable[object] = await tier.look_after()
            except Exception as error:  # noqa: BLE001 - what is pending depends on this thread
                tier.log.once("what others write could not be followed", error)
                pause = asyncio.sleep(1.0)
            del tier  # it may be freed meanwhile
            try:
                await pause
            except ConnectionError:
                await asyncio.sleep(0.01)  # the next look says why

    def stop(self) -> None:
        """Let it end, from any thread."""
        if self.loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self._task.cancel)

    async def ended(self) -> None:
        """Wait until it has ended, after `stop`."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)


TIERS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The tiers of this process that something still holds."""
_ENDS_OF_FORK: Final = ExitStack()


def _before_fork() -> None:
    VERSIONS.lock.acquire()  # before those of the tiers, as in a hit
    _ENDS_OF_FORK.callback(VERSIONS.lock.release)
    for tier in list(TIERS):
        _ENDS_OF_FORK.callback(tier.before_fork())


def _after_fork_in_child() -> None:
    _ENDS_OF_FORK.close()
    for tier in list(TIERS):
        tier.after_fork()


at_fork(before=_before_fork, after_in_parent=_ENDS_OF_FORK.close, after_in_child=_after_fork_in_child)
