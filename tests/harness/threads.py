"""Calls of synchronous tools in threads of their own, and a tool body that stands still until it is told to go on."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["PATIENCE", "Call", "Held", "followers_of", "in_threads", "interrupting", "until"]

PATIENCE = 30.0  # seconds until something that waits for another thread counts as hung


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Call:
    """A call in a thread of its own, in a copy of this context."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()

        def run() -> None:
            try:
                self._outcome = context.run(function, *args)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What it returned, or raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._outcome


def interrupting(condition: Callable[[], object]) -> Call:
    """Press Ctrl-C in the main thread, which calls this, once a condition holds. For tests that are `interruptible`.

    A thread that is about to wait for a lock does not see a signal that comes between its last look and its wait, and
    then waits on. So it is pressed again until it was seen, as a user would.
    """
    main, seen = threading.get_ident(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not seen.is_set():
            seen.set()
            signal.default_int_handler(number, frame)

    def press() -> None:
        until(condition)
        while not seen.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            seen.wait(0.1)

    signal.signal(signal.SIGINT, handle)
    return Call(press)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function with 0, 1 and so on, each in a thread and an empty context of its own, all at the same time.

    Returns what they return, in order, or raises what the first of them raises.
    """
    calls = [contextvars.Context().run(Call, work, number) for number in range(count)]
    return [call.result() for call in calls]


class Held:
    """The body of a tool, whose runs stand still.

    Attributes:
        runs: the arguments of each run.
    """

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self._gates: list[threading.Event] = []
        self._ends: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        gate, number = threading.Event(), len(self.runs)
        self._ends.append(None)
        self._gates.append(gate)
        self.runs.append(args)
        assert gate.wait(PATIENCE), "nobody lets the tool go on"
        end = self._ends[number]
        if isinstance(end, BaseException):
            raise end
        return end

    def has_begun(self, runs: int = 1) -> None:
        """Wait until so many runs have begun."""
        until(lambda: len(self.runs) >= runs)

    def ends(self, outcome: Any, run: int = -1) -> None:
        """Let a run return this, or raise it."""
        self._ends[run] = outcome
        self._gates[run].set()


def followers_of(tool: Any) -> int:
    """How many calls wait for loads of a tool."""
    flights = list(tool.__agent_cache__.store.flights.values())
    return sum(len([one for one in list(flight.waiters or ()) if not one.done()]) for flight in flights)
