"""Whether a run repeats itself without progress. Pure: outcomes, ticks and tasks are arguments.

A call's *signature* is its tool, its arguments and what came back. A plain repeat is one signature seen `max_repeats`
times in an *epoch*; a successful write ends the epoch, since the same question may have another answer after it.
Identical calls from different tasks in one tick of the event loop, and calls that shared one flight, are one round and count once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b

from agent_cache._core.keys import Uncacheable, canonical

__all__ = ["Repeats", "Streak", "fingerprint"]

_MAX_CALLS = 10_000
"""How many different calls are remembered in a session; the ones longest unused are forgotten."""


def fingerprint(value: object) -> bytes | None:
    """16 bytes that stand for an outcome; None if it has no identity, and is never the same as another."""
    try:
        return blake2b(canonical(value), digest_size=16).digest()
    except Uncacheable:
        return None


class Streak:
    """What one call of one tool has returned so far in this epoch.

    Attributes:
        outcome: fingerprint of its last outcome.
        witness: the entry that gave it; a hit of the same entry needs no fingerprint.
        count: how often in this epoch.
        epoch, tick, task: when and where it was last counted.
    """

    __slots__ = ("count", "epoch", "outcome", "task", "tick", "witness")

    def __init__(self) -> None:
        self.outcome: bytes | None = None
        self.witness: object = None
        self.count = 0
        self.epoch = -1
        self.tick = -1
        self.task: object = None


class Repeats:
    """Plain repeats of one session, by (tool, key)."""

    __slots__ = ("_streaks", "epoch")

    def __init__(self) -> None:
        self._streaks: OrderedDict[Hashable, Streak] = OrderedDict()
        self.epoch = 0

    def streak(self, signature: Hashable) -> Streak:
        streak = self._streaks.get(signature)
        if streak is None:
            streak = self._streaks[signature] = Streak()
            if len(self._streaks) > _MAX_CALLS:
                self._streaks.popitem(last=False)
        else:
            self._streaks.move_to_end(signature)
        return streak

    def count(self, streak: Streak, outcome: bytes | None, witness: object, tick: int, task: object) -> int:
        """Count one outcome; how often it has now been seen in this epoch."""
        if streak.epoch != self.epoch or outcome is None or outcome != streak.outcome:
            streak.epoch, streak.outcome, streak.count = self.epoch, outcome, 1
        elif streak.tick != tick or streak.task is task:
            streak.count += 1
        streak.tick, streak.task = tick, task
        streak.witness = witness
        return streak.count

    def end_epoch(self) -> None:
        """A write has succeeded: what was asked before may be asked again."""
        self.epoch += 1
