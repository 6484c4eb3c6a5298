"""Where a run stands: its epoch, its streak of calls with nothing new, its errors in a row. Pure, O(1), bounded.

Time is a *position*: how many calls were counted so far. A streak is then a difference of positions, so that a hit need
not touch it. While one call is repeated, only its own count goes up: the position is that count and `base`. A *moment*
is a position and the polls that went by uncounted: two calls have overlapped if one began at a lower moment than the
other has ended at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Literal

from agent_cache.session.loop_policy import NEVER, LoopPolicy
from agent_cache.session.progress import Progress
from agent_cache.session.recurrence import NO_CALL, Identify, Recurrence

__all__ = ["MASK", "MAX_WITNESSES", "Check", "Detector", "Level", "Verdict"]

Check = Literal["repeat", "error", "cycle", "any_error"]
Level = Literal["notice", "action"]

_RING: Final = 128
"""How many calls are remembered in order, to name the cycle they are. A power of two, so that a mask finds the
place."""

MASK: Final = _RING - 1

MAX_WITNESSES: Final = 256
"""How many calls of a session keep alive the answer that they have got last. Of the others, an answer that came again
is known by its fingerprint, and one that was seen once is new when it comes again: a long round is found one round
later.
"""

_MAX_BLOCKED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        level: ``"notice"``, once a streak, or ``"action"``, on every call that goes on with it.
        kind: the check that was met.
        tool: whose call met it.
        count: how often the signature was seen in the epoch; for errors and polls, how often in a row.
        period: how many calls the loop goes round, 1 for a plain repeat.
        calls: the tools of one round, in order.
        first, last: what the first and the last call of that round gave, as short text.
        blocked: the calls (tool, arguments key) to refuse before they run: a cycle's until something new is seen, one
            write's until the epoch ends. A key of None stands for every call of the tool. Empty where only the outcome
            tells that the loop goes on: a read's repeats and errors.
        is_first: whether this streak has not met the action level before.
    """

    level: Level
    kind: Check
    tool: str
    count: int
    period: int
    calls: tuple[str, ...]
    first: str
    last: str
    blocked: frozenset[tuple[str, Hashable]]
    is_first: bool


class Detector:
    """What the tools of a session have in common.

    Attributes:
        epoch: how many epochs have ended.
        last: the last counted call, and `base` the position less its count.
        turned: the position from which on it was the only one.
        fresh: position of the last call whose signature was new in the epoch.
        pending: the position after which a call unlike the one before it makes the streak one of several signatures.
        cycle_at: the position from which a cycle must be judged; `cycle_count` is the same as a count of the last call.
        cycle_acted: whether this streak has met the action level of a cycle.
        ring: the last calls, by position.
        run: how far it has come, and which task is running.
        levels: of the checks.
        kept: calls that keep an answer alive, in the order they got it, and what identifies it.
        tools: what is known of each tool, for who looks after it.
        unchanged: how many polls brought nothing new, and were not counted.
        blocked: what is refused before it runs, and why.
    """

    __slots__ = (
        "_error", "_error_at", "_error_counted", "_error_row", "_error_shift", "base", "blocked",
        "cycle_acted", "cycle_at", "cycle_count", "cycle_notice", "epoch", "fresh", "kept", "last", "levels", "pending",
        "ring", "run", "tools", "turned", "unchanged",
    )  # fmt: skip

    def __init__(self, policy: LoopPolicy, progress: Progress) -> None:
        self.run = progress
        self.levels = policy.thresholds
        self.cycle_notice = self.levels["cycle"].notice
        self.epoch = 0
        self.base = 0
        self.last = NO_CALL
        self.turned = 0
        self.fresh = 0
        self.pending = 1
        self.cycle_at = self.cycle_count = NEVER
        self.cycle_acted = False
        self.tools: dict[Hashable, Any] = {}
        self.unchanged = 0
        self.ring = [NO_CALL] * _RING
        self.kept: OrderedDict[Recurrence, Identify] = OrderedDict()
        self.blocked: dict[tuple[str, Hashable], Verdict] = {}
        self._error: tuple[str, Hashable] | None = None
        self._error_row = 0
        self._error_at = self._error_counted = self._error_shift = -1

    @property
    def position(self) -> int:
        """How many calls were counted."""
        return self.base + self.last.count

    @property
    def moment(self) -> int:
        """What time it is. Read it when a call begins, and give it to `LoopChecks.seen` as `began`."""
        return self.base + self.last.count + self.unchanged

    def new_turn(self) -> None:
        """The user has spoken: what was asked before may be asked again."""
        self.end_epoch()

    def end_epoch(self) -> None:
        """The world has changed: what was asked before may have another answer."""
        self.epoch += 1
        self._error = None
        self.pause()
        self.progress(self.base)
        self.blocked.clear()

    def pause(self) -> Recurrence:
        """Take the count of the last call, which is about to change, out of the position. That call, to be given to
        `resume`.
        """
        last, self.base, self.last = self.last, self.position, NO_CALL
        return last

    def resume(self, last: Recurrence) -> None:
        """Nothing was counted since `pause`."""
        if self.last is NO_CALL and last.epoch == self.epoch:
            self.base, self.last = self.base - last.count, last
            self.cycle_count = self.cycle_at - self.base

    def progress(self, position: int) -> None:
        """Something new was seen at this position: no cycle reaches back beyond it, and none stays blocked."""
        self.fresh = position
        self.pending = position + 1
        self.cycle_at = self.cycle_count = NEVER
        self.cycle_acted = False
        if self.blocked:
            for call in [call for call, verdict in self.blocked.items() if verdict.kind in ("cycle", "any_error")]:
                del self.blocked[call]

    def advance(self, call: Recurrence, *, is_new: bool, is_turn: bool) -> None:
        """Count a call whose own count has gone up, after `pause`. A turn has not the signature before it."""
        position = self.base + 1
        if position - self.turned > 1:
            self.fill(position)
        self.turned = position
        self.ring[position & MASK] = call
        if is_new:
            self.progress(position)
        elif is_turn and position > self.pending:
            self.pending = NEVER
            self.cycle_at = self.fresh + self.cycle_notice
        self.last = call
        self.base = position - call.count
        self.cycle_count = self.cycle_at - self.base

    def fill(self, position: int) -> None:
        """Note in the ring the calls before this position, all alike, which have only been counted. O(1) for each of
        them.
        """
        call = self.ring[self.turned & MASK]
        for at in range(max(self.turned + 1, position - _RING), position):
            self.ring[at & MASK] = call
        self.turned = position - 1

    def round_of(self) -> list[Recurrence]:
        """The calls of one round of the cycle that the last calls are: the shortest one that explains them all."""
        position = self.position
        self.fill(position + 1)
        length = min(position - self.fresh, _RING)
        recent = [self.ring[at & MASK] for at in range(position - length + 1, position + 1)]
        for period in range(2, length):
            if recent[period:] == recent[:-period]:
                return recent[-period:]
        return list(dict.fromkeys(recent))  # in no fixed order, or longer than the ring

    def keep_witness(self, call: Recurrence, identify: Identify) -> None:
        """The answer that this call has got is kept to compare later ones with."""
        self.kept[call] = identify
        self.kept.move_to_end(call)
        if len(self.kept) > MAX_WITNESSES:
            self.let_go()

    def let_go(self) -> None:
        """Keep one answer less, the oldest."""
        call, identify = self.kept.popitem(last=False)
        call.forget(identify)

    def errors_in_a_row(self, tool: str, outcome: Hashable, began: int) -> int:
        """Count one error of a tool, the last call counted; in how many rounds in a row there was nothing but it."""
        at, error, shift = self.position, (tool, outcome), self.run.shift
        if outcome is None or error != self._error or self._error_at != at - 1:
            self._error_row = 1
        elif began < self._error_counted or self.run.since <= self._error_shift != shift:
            self._error_at = at  # one round of a fan-out: the service is down once, however many have asked it
            return 0
        else:
            self._error_row += 1
        self._error, self._error_at, self._error_counted = error, at, at + self.unchanged
        self._error_shift = shift
        return self._error_row

    def block(self, verdict: Verdict) -> None:
        """Refuse the calls of this loop: a cycle's until something new is seen, one write's until the epoch ends."""
        for call in verdict.blocked:
            self.blocked[call] = verdict
        while len(self.blocked) > _MAX_BLOCKED:
            del self.blocked[next(iter(self.blocked))]
