"""How time passes: as it does, or, for `--fast`, at once wherever everybody waits."""

from __future__ import annotations

import asyncio
import selectors
from contextlib import AbstractContextManager

from agent_cache.testing import FakeClock

__all__ = ["VirtualTimeLoop", "library_on"]


class _SkippingSelector(selectors.SelectSelector):
    """Takes note of a wait instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        self.skipped += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer whenever nothing else is left to do.

    So a run takes no time, keeps every delay, and is the same at each repetition.
    """

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped


class _LoopClock(FakeClock):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def __call__(self) -> float:
        return self._loop.time()


def library_on(loop: asyncio.AbstractEventLoop) -> AbstractContextManager[object]:
    """Let the cache measure on the loop's clock, so that what it has saved is in the demo's own seconds."""
    return _LoopClock(loop)
