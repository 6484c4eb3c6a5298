"""Tools that stand still until the test lets them go, so that a test writes its own interleaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Held:
    """One execution of a tool that waits for the test."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.cancelled = 0
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        """Whether it still stands at its gate."""
        return not self._outcome.done()

    def returns(self, value: object) -> None:
        """Let it go with a value."""
        self._outcome.set_result(value)

    def raises(self, error: BaseException) -> None:
        """Let it go with an error."""
        self._outcome.set_exception(error)

    async def outcome(self) -> Any:
        """Stand at the gate; note a cancellation, or that the call is closed, and pass it on."""
        try:
            return await self._outcome
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            self._outcome.cancel()
            raise


class Gate:
    """Await it in a tool's body; each execution then stands in `calls` until the test lets it go."""

    def __init__(self) -> None:
        self.calls: list[Held] = []

    async def __call__(self, *arguments: object) -> Any:
        held = Held(*arguments)
        self.calls.append(held)
        return await held.outcome()

    @property
    def running(self) -> list[Held]:
        """The executions that still stand at the gate, oldest first."""
        return [held for held in self.calls if held.running]

    @property
    def last(self) -> Held:
        """The newest execution."""
        return self.calls[-1]


async def idle() -> None:
    """Let every task run until it can only wait: no wake-up in these tests is more than a few turns deep."""
    for _ in range(30):
        await asyncio.sleep(0)


async def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a call as a task of its own and let it run as far as it can."""
    task = asyncio.ensure_future(call)
    await idle()
    return task


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and let everyone whom that concerns run."""
    task.cancel()
    await idle()


async def expire(timeout: asyncio.Timeout) -> None:
    """Let an `asyncio.timeout` pass now."""
    timeout.reschedule(asyncio.get_running_loop().time())
    await idle()


async def until(happened: Callable[[], bool]) -> None:
    """Wait, turn by turn, for something that must come within a bounded number of turns."""
    for _ in range(10_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen within 10,000 turns of the event loop")
