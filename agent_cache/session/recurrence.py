"""What one call of one tool has come to, time and again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from agent_cache.core.store import Entry
from agent_cache.session.loop_policy import NEVER
from agent_cache.values.compare import shown

__all__ = ["NO_CALL", "Identify", "Recurrence"]

Identify = Callable[[Any], Hashable | None]
"""What stands for a result; None if it cannot be told from others."""

_MAX_OUTCOMES: Final = 16
"""How many outcomes of one call are remembered beside its last one; the oldest are forgotten, and are new again."""


class Recurrence:
    """What one call of one tool has come to. Changed in place, since it is on the path of every hit.

    Attributes:
        witness: the entry that gave the last outcome, None if none is kept. While it stays the same, nothing is
            fingerprinted, and an outcome that was seen only once never is.
        outcome: what stands for the last outcome, once that was needed; None if it cannot be told from others.
        text: the last outcome as short text, once that was needed or cannot be made later.
        count: how often it was seen in `epoch`.
        row: how often in a row, hits of one witness left out.
        alert: the count at which a hit must be judged.
        shift, ended: where and when it was last counted: a `Progress.shift`, and a moment.
        others: its other outcomes, each with the epoch and the count in it.
    """

    __slots__ = (
        "alert", "count", "ended", "epoch", "key", "others", "outcome", "row", "shift", "text", "tool", "witness",
    )  # fmt: skip

    def __init__(self, tool: str, key: Hashable, witness: Entry | None = None, epoch: int = -1) -> None:
        self.tool = tool
        self.key = key
        self.witness = witness
        self.epoch = epoch
        self.outcome: Hashable = None
        self.text = ""
        self.count = 0
        self.row = 0
        self.alert = NEVER
        self.shift = -1
        self.ended = -1
        self.others: dict[Hashable, tuple[int, int]] | None = None

    def told(self) -> str:
        """The last outcome, for people."""
        if not self.text and self.witness is not None:
            self.text = shown(self.witness.share())
        return self.text

    def forget(self, identify: Identify) -> None:
        """Keep an answer alive no longer. One that has come again is still known by what stands for it; one that was
        seen once will be new.
        """
        if self.count > 1 and self.witness is not None:
            value = self.witness.share()
            if self.outcome is None:
                self.outcome = identify(value)
            self.text = self.text or shown(value)
        self.witness = None

    def turn_to(self, outcome: Hashable | None, witness: Entry | None, identify: Identify) -> tuple[bool, bool]:
        """Make this the last outcome: whether it was that already, and whether it was seen in any epoch."""
        if self.epoch < 0:
            self.outcome, self.witness = outcome, witness
            return False, False
        if witness is not None and witness is self.witness:
            return True, True
        before = self.outcome if self.outcome is not None else _outcome_of(self.witness, identify)
        now = outcome if outcome is not None else _outcome_of(witness, identify)
        self.outcome, self.witness, self.text = now, witness, ""
        if now is not None and now == before:
            return True, True
        if self.others is None:
            self.others = {}
        found = (-1, 0) if now is None else self.others.pop(now, (-1, 0))
        if before is not None:
            if len(self.others) >= _MAX_OUTCOMES:
                del self.others[next(iter(self.others))]
            self.others[before] = self.epoch, self.count
        self.epoch, self.count = found
        return False, self.epoch >= 0


def _outcome_of(witness: Entry | None, identify: Identify) -> Hashable | None:
    return None if witness is None else identify(witness.share())


NO_CALL: Final = Recurrence("", None)
