"""Whether a run repeats itself without progress. Pure: outcomes, ticks and tasks are arguments.

A call's *signature* is its tool, its arguments and what came back. A plain repeat is one signature seen `max_repeats`
times in an *epoch*; a successful write ends the epoch, since the same question may have another answer after it.
Identical calls from different tasks in one tick of the event loop, and calls that shared one flight, are one round
and count once.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, Final

from agent_cache._core.entries import MISSING, Entry
from agent_cache._core.keys import Uncacheable, canonical

__all__ = ["NO_LIMIT", "Progress", "Streak", "Streaks", "fingerprint", "shown"]

_MAX_CALLS = 1_000
"""How many different calls of one tool are remembered in a session; the oldest are forgotten."""

_MAX_SHOWN = 80

NO_LIMIT: Final = sys.maxsize


def fingerprint(value: object) -> bytes | None:
    """16 bytes that stand for an outcome; None if it has no identity, and is never the same as another."""
    if value is MISSING:
        return None
    try:
        data = b"s" + value.encode("utf-8", "surrogatepass") if type(value) is str else canonical(value)
    except Uncacheable:
        return None
    return blake2b(data, digest_size=16).digest()


def shown(value: object) -> str:
    """A value as short text for people, whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - somebody's repr; what it was asked for is only a message
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


class Streak:
    """What one call of one tool has returned so far in this epoch.

    Attributes:
        witness: the entry that gave its last outcome, None if that was an error or was not kept. A hit of the same
            entry needs no
            fingerprint, and an outcome seen once needs none either: it is taken from the witness when there is another.
        outcome: fingerprint of its last outcome, once it was needed.
        count: how often in this epoch.
        epoch, tick, task: when and where it was last counted.
    """

    __slots__ = ("count", "epoch", "outcome", "task", "tick", "witness")

    def __init__(self) -> None:
        self.witness: Entry | None = None
        self.outcome: bytes | None = None
        self.count = 0
        self.epoch = -1
        self.tick = -1
        self.task: object = None

    def see(self, outcome: object, witness: Entry | None, epoch: int, tick: int, task: object) -> int:
        """Count one outcome; how often it has now been seen in this epoch."""
        seen = None
        if self.epoch != epoch:
            self.epoch, self.count = epoch, 1
            seen = None if witness is not None else fingerprint(outcome)
        elif witness is None or witness is not self.witness:
            before = (
                self.outcome if self.outcome is not None or self.witness is None else fingerprint(self.witness.share())
            )
            seen = fingerprint(outcome)
            if seen is None or seen != before:
                self.count = 1
            elif self.tick != tick or self.task is task:
                self.count += 1
        elif self.tick != tick or self.task is task:
            self.count, seen = self.count + 1, self.outcome
        self.tick, self.task, self.witness, self.outcome = tick, task, witness, seen
        return self.count


class Streaks(dict[Hashable, Streak]):
    """The streaks of one tool in one session, by key. Bounded."""

    __slots__ = ()

    def of(self, key: Hashable) -> Streak:
        streak = self.get(key)
        if streak is None:
            if len(self) >= _MAX_CALLS:
                del self[next(iter(self))]
            streak = self[key] = Streak()
        return streak


class Progress:
    """Where a run stands: how many calls it has made, its epoch, and the tick of the event loop it is in.

    Attributes:
        calls: calls made so far, refused ones not counted.
        loop: the event loop whose current iteration has been noticed; None until a call is made in it.
        limit: how many it may make; 0 once it has been stopped, so that one comparison says both.
    """

    __slots__ = ("calls", "epoch", "limit", "loop", "tick")

    def __init__(self, limit: int) -> None:
        self.calls = 0
        self.limit = limit
        self.epoch = 0
        self.tick = 0
        self.loop: Any = None
