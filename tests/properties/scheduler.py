"""An event loop that moves only when it is told to, so that an interleaving is a list of choices.

A tool body asks for a `gate` and stands there. Releasing a gate, cancelling a task, advancing the clock and
letting the loop take one turn are separate steps, all taken by the test: nothing depends on real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

ENOUGH_TURNS = 500  # A wake-up passes from task to task in a handful of turns; more is a livelock.


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still and which counts its turns and what is scheduled on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduled = self.turns = 0
        super().__init__()

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)


class Scheduler:
    """Runs tasks one turn at a time."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, report: self.complaints.append(report["message"]))

    def spawn(self, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
        """Create a task in a copy of `context`; it starts with the next turn."""
        return context.run(self.loop.create_task, work)

    def gate(self) -> asyncio.Future[None]:
        """Give something to stand at."""
        return self.loop.create_future()

    def turn(self) -> bool:
        """Run what is ready, once; tell whether that made more work ready."""
        self.loop.call_soon(self.loop.stop)
        self.loop.scheduled = 0
        self.loop.turns += 1
        self.loop.run_forever()
        return self.loop.scheduled > 0

    def drain(self) -> None:
        """Run until every task can only wait."""
        for _ in range(ENOUGH_TURNS):
            if not self.turn():
                return
        raise AssertionError(f"still busy after {ENOUGH_TURNS} turns: tasks wake each other without end")

    def close(self) -> None:
        self.loop.close()
