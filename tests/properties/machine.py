"""Machines: random schedules of moves, each drawn from a seed, so that a search is the same on every computer.

A machine names the moves that are possible now, and draws one, and what it needs, by `choose`. What fails is played
again with fewer and fewer moves, as long as it fails, and shown move by move. (Hypothesis draws ten times slower, and
the first of the few examples that a gate has time for is always the smallest one.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, TypeVar

import pytest

from tests.harness import library
from tests.properties.scheduler import Scheduler

T = TypeVar("T")
Moves = list[tuple[str, list[float]]]
"""The name of each move, and what it drew: shares of what there was to choose from."""


class Machine:
    """One schedule, in an empty library. A subclass says what may happen, and judges it.

    Attributes:
        steps: how many moves are made.
        share: of the schedules that a search asks for, how many are played.
        exits: closed at the end, in any case.
    """

    steps = 40
    share = 1.0

    def __init__(self) -> None:
        self.played: Moves = []
        self.shown: list[str] = []
        self._draw: Callable[[], float] = Random(0).random
        self.exits = ExitStack()
        self.clock = self.exits.enter_context(library.fresh_library())

    def moves(self) -> Iterator[str]:
        """Name the possible moves, each as often as it should be drawn."""
        raise NotImplementedError

    def check(self) -> None:
        """Judge what has happened so far. Called after each move."""

    def finish(self) -> None:
        """Bring everything to its end, and judge it."""

    def choose(self, what: str, among: Sequence[T]) -> T:
        """Draw one of these."""
        drawn = self._draw()
        chosen = among[int(drawn * len(among))]
        self.played[-1][1].append(drawn)
        self.shown[-1] += f" {what}={chosen!r}"
        return chosen

    def choose_turns(self, scheduler: Scheduler, patience: int) -> None:
        """Let the loop settle before the next move, or let that come in the midst of a wake-up."""
        turns = self.choose("turns", ("until idle",) * patience + ("none", "one", "two"))
        if turns == "until idle":
            scheduler.drain()
        for _ in range({"one": 1, "two": 2}.get(turns, 0)):
            scheduler.turn()

    def make(self, move: str, draw: Callable[[], float]) -> None:
        """Make a move."""
        self._draw = draw
        self.played.append((move, []))
        self.shown.append(f"{move}:")
        getattr(self, move)()
        self.check()

    def play(self, seed: object) -> None:
        """Make as many moves as there are steps."""
        random = Random(str(seed))
        try:
            for _ in range(self.steps):
                self.make(random.choice(list(self.moves())), random.random)
            self.finish()
        finally:
            self.exits.close()

    def repeat(self, moves: Moves) -> None:
        """Make these moves, as far as they are possible."""
        try:
            for move, drawn in moves:
                if move in self.moves():
                    shares = iter(drawn)
                    self.make(move, lambda shares=shares: next(shares, 0.0))
            self.finish()
        finally:
            self.exits.close()


def search(machine: Callable[[], Machine], seeds: int, first: int = 0) -> None:
    """Play so many schedules.

    Raises:
        pytest.fail.Exception: with the moves that lead to it, if anything is wrong in one of them.
    """
    for seed in range(first, first + seeds):
        made = machine()
        try:
            made.play(seed)
        except Exception as error:
            shown, reason = _smallest(machine, made, error)
            pytest.fail(f"seed {seed}: {type(reason).__name__}: {reason}\n  " + "\n  ".join(shown))


def _smallest(machine: Callable[[], Machine], failed: Machine, error: Exception) -> tuple[list[str], Exception]:
    """Leave out one move after the other, those made last first, as long as what is left fails."""
    moves, shown = failed.played, failed.shown
    for at in reversed(range(len(moves))):
        fewer = moves[:at] + moves[at + 1 :]
        again = machine()
        try:
            again.repeat(fewer)
        except Exception as other:
            moves, shown, error = fewer, again.shown, other
    return shown, error


def searches(machine: type[Machine], few: int, many: int, variant: str = "", **attributes: Any) -> dict[str, Any]:
    """Tests of a machine, by name: a short search, unless `few` is 0, and a long one with `-m slow`.

    Args:
        few, many: how many schedules these play.
        variant: what distinguishes the names of these tests.
        attributes: what is set for these schedules.
    """
    words = re.sub("(?<!^)(?=[A-Z])", "_", machine.__name__).lower()
    name = "_".join(filter(None, ("test", words, variant)))
    made = type(machine.__name__, (machine,), attributes)

    def short() -> None:
        search(made, max(1, round(few * machine.share)))

    def long() -> None:
        search(made, max(1, round(many * machine.share)), first=1_000_000)

    short.__doc__ = long.__doc__ = machine.__doc__
    return ({name: short} if few else {}) | {f"{name}_longer": pytest.mark.slow(long)}
