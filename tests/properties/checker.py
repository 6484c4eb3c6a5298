"""An explicit-state model checker: every state that can be reached, breadth first, until one breaks its promise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Step = tuple[str, S]


class TooManyStatesError(AssertionError):
    """The configuration is larger than it may be, so nothing is known about it."""


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    """Where it starts, what may happen next, and what must never be.

    Attributes:
        steps: (what happens, the state after it), for each thing that may happen.
        broken: the promise that a state breaks, as a sentence; None if it keeps all.
    """

    start: S
    steps: Callable[[S], Iterable[Step[S]]]
    broken: Callable[[S], str | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        states: how many different ones were reached.
        broken: the promise that was broken; None if all of them hold in all states.
        trace: what leads there, one of the shortest ways.
    """

    states: int
    broken: str | None = None
    trace: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every state was looked at and keeps the promises."""
        return self.broken is None

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states:,} states, all promises kept"
        return "; ".join((*self.trace, f"{self.broken} ({self.states:,} states)"))


def explore(model: Model[S], limit: int = 300_000) -> Verdict:
    """Look at every state.

    Raises:
        TooManyStatesError: there are more than `limit`.
    """
    with _without_collections():
        return _explore(model, limit)


def _explore(model: Model[S], limit: int) -> Verdict:
    came_from: dict[S, tuple[S, str] | None] = {model.start: None}
    layer = [model.start]
    while layer:
        behind: list[S] = []
        for state in layer:
            if (broken := model.broken(state)) is not None:
                return Verdict(len(came_from), broken, _trace(state, came_from))
            for label, after in model.steps(state):
                if after not in came_from:
                    came_from[after] = (state, label)
                    behind.append(after)
        if len(came_from) > limit:
            raise TooManyStatesError(f"more than {limit:,} states")
        layer = behind
    return Verdict(len(came_from))


@contextmanager
def _without_collections() -> Iterator[None]:
    """States are tuples without cycles: to look through them again and again takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trace(state: S, came_from: dict[S, tuple[S, str] | None]) -> tuple[str, ...]:
    labels = []
    while (origin := came_from[state]) is not None:
        state, label = origin
        labels.append(label)
    return tuple(reversed(labels))
