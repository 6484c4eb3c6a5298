"""The calls of one tool in one session: what each has come to, and the four checks when it comes to something again.

``repeat``     one signature, so many times in an epoch
``error``      one call, the same error, so many times in a row, in an epoch
``cycle``      so many calls in a row with nothing new among them, the last of them seen three times, and not all of
               them alike. It finds every period without naming one; reading a set of things twice is no cycle
``any_error``  one tool, the same error, so many times in a row, whatever the arguments
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from agent_cache.core.policies import NO_HINTS, LoopHints
from agent_cache.core.store import Entry
from agent_cache.session.loop_policy import NEVER
from agent_cache.session.loops import MASK, MAX_WITNESSES, Check, Detector, Level, Verdict
from agent_cache.session.recurrence import Identify, Recurrence
from agent_cache.values.compare import fingerprint, shown

__all__ = ["LoopChecks"]

_TIMES_AROUND: Final = 3
"""How often the last call of a cycle must have been seen: a set of entities may be read twice."""

_MAX_CALLS: Final = 1_000
"""How many different calls of one tool are remembered; the oldest are forgotten, and are new again."""

Hit = Callable[[Hashable, Entry], Verdict | None]


class LoopChecks:
    """The calls of one tool, by arguments key. Bounded.

    Args:
        identify: 16 bytes or the like that stand for a result; None if it cannot be told from others.

    Attributes:
        hit: ``(key, entry) -> Verdict | None``: `seen` for an answer from an entry; a closure over all it
            needs, since it is on the path of every hit.
    """

    __slots__ = (
        "_calls",
        "_detector",
        "_hints",
        "_identify",
        "_is_plain",
        "_is_write",
        "_levels",
        "_notice",
        "_tool",
        "hit",
    )

    hit: Hit

    def __init__(
        self,
        detector: Detector,
        tool: str,
        hints: LoopHints = NO_HINTS,
        *,
        is_write: bool = False,
        identify: Identify = fingerprint,
    ) -> None:
        self._detector = detector
        self._tool = tool
        self._is_write = is_write
        self._hints = hints
        self._identify = identify
        self._levels = detector.levels
        self._notice = detector.levels["repeat"].notice
        self._calls: dict[Hashable, Recurrence] = {}
        self._is_plain = not (is_write or hints.off or hints.poll)
        self.hit = self._make_hit() if self._is_plain else self._slow_hit

    def _make_hit(self) -> Hit:
        state, known, slow = self._detector, self._calls.get, self._slow_hit
        run, ring = state.run, state.ring
        judge, notice, mask, never, times_around = self._judge, state.cycle_notice, MASK, NEVER, _TIMES_AROUND

        def hit(key: Hashable, entry: Entry) -> Verdict | None:
            call = known(key)
            if call is state.last:  # never of an ended epoch, and never no call
                if call.witness is entry:
                    if call.shift != run.shift:
                        before, call.shift = call.shift, run.shift
                        if before >= run.since:  # another task of the same round
                            return None
                    call.count = count = call.count + 1
                    if count >= call.alert or (count >= state.cycle_count and count >= times_around):
                        return judge(call)
                    return None
            elif call is not None and call.witness is entry and call.epoch == state.epoch:
                if call.shift != run.shift:
                    before, call.shift = call.shift, run.shift
                    if before >= run.since:
                        return None
                position = state.base + state.last.count + 1
                if position - state.turned > 1:
                    state.fill(position)
                state.turned = position
                ring[position & mask] = state.last = call
                call.count = count = call.count + 1
                state.base = base = position - count
                if position > state.pending:
                    state.pending = never
                    state.cycle_at = state.fresh + notice
                state.cycle_count = ahead = state.cycle_at - base
                if count >= call.alert or (count >= ahead and count >= times_around):
                    return judge(call)
                return None
            return slow(key, entry)

        return hit

    def _slow_hit(self, key: Hashable, entry: Entry) -> Verdict | None:
        return self.seen(key, witness=entry)

    def before(self, key: Hashable | None) -> Verdict | None:
        """Why this call is refused without running, if it is. Needs asking only while `Detector.blocked` is not
        empty.
        """
        blocked = self._detector.blocked
        return blocked.get((self._tool, None)) or (None if key is None else blocked.get((self._tool, key)))

    def seen(
        self,
        key: Hashable | None,
        outcome: Hashable | None = None,
        *,
        value: object = None,
        witness: Entry | None = None,
        error: bool = False,
        began: int = NEVER,
    ) -> Verdict | None:
        """Count what a call has come to.

        Args:
            key: its arguments; None if they cannot be told from others, so that it is always new.
            outcome: what stands for its result or its error, which must differ; None if that cannot be told, or if
                `witness` holds the result.
            value: the result or the error itself, to be shown.
            witness: the entry that holds its result.
            error: whether it has failed: it raised, or what it returned says so.
            began: `Detector.moment` when it began; left out if nothing can have run beside it.
        """
        if witness is not None and self.met_first(key, witness):
            return None
        state, call = self._detector, self._of(key)
        last = state.pause()
        before = call.witness
        is_same, is_known = call.turn_to(outcome, witness, self._identify)
        if witness is None:
            state.kept.pop(call, None)
            if is_known or error:
                call.text = shown(value)
        elif witness is not before:
            state.keep_witness(call, self._identify)
        has_written = self._is_write and not error
        if has_written and not is_known:
            state.end_epoch()
        if call.epoch != state.epoch:
            call.epoch, call.count, call.row = state.epoch, 0, 0
        if self._hints.off:
            state.resume(last)
            return None
        shift, call.shift = call.shift, state.run.shift
        if is_same and call.count and (began < call.ended or state.run.since <= shift != call.shift):
            state.resume(last)
            return None
        call.row = call.row + 1 if is_same else 1
        if self._hints.poll and call.row > 1:
            state.unchanged += 1
            state.resume(last)
            call.ended = state.moment
            return self._unchanged(call)
        call.count += 1
        state.advance(call, is_new=call.count == 1 or self._hints.poll, is_turn=call is not last or not is_same)
        call.ended = state.moment
        if self._hints.poll:
            return None
        if not error:
            return self._judge(call, has_written=has_written)
        errors = state.errors_in_a_row(self._tool, call.outcome, began)
        return self._judge(call, row=call.row, errors=errors)

    def change(self, key: Hashable | None, outcome: Hashable | None) -> None:
        """A write has succeeded that is not of this run, such as one of a session inside of it: it is not counted, and
        ends the epoch if it is new here.
        """
        state, call = self._detector, self._of(key)
        last = state.pause()
        _, is_known = call.turn_to(outcome, None, self._identify)
        if not is_known:
            state.end_epoch()
        if call.epoch != state.epoch:
            call.epoch, call.count, call.row = state.epoch, 0, 0
        state.resume(last)

    def met_first(self, key: Hashable | None, witness: Entry) -> bool:
        """Count an answer to a call that was never seen; False if this is none. As `seen`, in fewer steps, since every
        miss takes them.
        """
        calls = self._calls
        if key is None or key in calls or not self._is_plain:
            return False
        if len(calls) >= _MAX_CALLS:
            del calls[next(iter(calls))]
        state = self._detector
        base = state.base + state.last.count
        position = base + 1
        calls[key] = call = Recurrence(self._tool, key, witness, state.epoch)
        call.shift, call.alert = state.run.shift, self._notice
        call.count = call.row = 1
        call.ended = position + state.unchanged
        if position - state.turned > 1:
            state.fill(position)
        state.turned = position
        state.base = base
        state.ring[position & MASK] = state.last = call
        if state.blocked or state.cycle_at != NEVER:
            state.progress(position)
        else:
            state.fresh, state.pending = position, position + 1
            state.cycle_count = NEVER - base
        state.kept[call] = self._identify
        if len(state.kept) > MAX_WITNESSES:
            state.let_go()
        return True

    def _of(self, key: Hashable | None) -> Recurrence:
        call = None if key is None else self._calls.get(key)
        if call is None:
            call = Recurrence(self._tool, key)
            if key is not None:
                if len(self._calls) >= _MAX_CALLS:
                    del self._calls[next(iter(self._calls))]
                self._calls[key] = call
        return call

    def _unchanged(self, call: Recurrence) -> Verdict | None:
        """A declared poll is judged by itself; that it is unchanged means nothing to anybody else."""
        limit = self._hints.max_unchanged
        if limit is None or call.row < limit:
            return None
        return self._found("action", "repeat", call, call.row, is_first=call.row == limit)

    def _judge(self, call: Recurrence, *, has_written: bool = False, row: int = 0, errors: int = 0) -> Verdict | None:
        """The first check that is met, at the higher level first. `row` and `errors` are 0 for what is no error."""
        state, levels, count = self._detector, self._levels, call.count
        few, many = levels["write_repeat" if has_written else "repeat"]
        call.alert = few if count < few else many
        if count >= many:
            return self._found("action", "repeat", call, count, is_first=count == many)
        if row >= levels["error"].action:
            return self._found("action", "error", call, row, is_first=row == levels["error"].action)
        goes_round = count >= state.cycle_count and count >= _TIMES_AROUND
        if goes_round and state.position - state.fresh >= levels["cycle"].action:
            is_first, state.cycle_acted = not state.cycle_acted, True
            return self._found("action", "cycle", call, count, is_first=is_first)
        if errors >= levels["any_error"].action:
            return self._found("action", "any_error", call, errors, is_first=errors == levels["any_error"].action)
        if goes_round:
            state.cycle_at = state.fresh + levels["cycle"].action
            state.cycle_count = state.cycle_at - state.base
            return self._found("notice", "cycle", call, count)
        if count == few:
            return self._found("notice", "repeat", call, count)
        if row == levels["error"].notice:
            return self._found("notice", "error", call, row)
        if errors == levels["any_error"].notice:
            return self._found("notice", "any_error", call, errors)
        return None

    def _found(self, level: Level, kind: Check, call: Recurrence, count: int, *, is_first: bool = False) -> Verdict:
        around = self._detector.round_of() if kind == "cycle" else [call]
        blocked: frozenset[tuple[str, Hashable]] = frozenset()
        if level == "action":
            if kind == "cycle":
                blocked = frozenset((each.tool, each.key) for each in around)
            elif self._is_write:  # it has run and its answer is given; what must not run is the next one
                blocked = frozenset({(self._tool, None if kind == "any_error" else call.key)})
        names = tuple(each.tool for each in around)
        first, last = around[0].told(), around[-1].told()
        verdict = Verdict(level, kind, self._tool, count, len(around), names, first, last, blocked, is_first)
        self._detector.block(verdict)
        return verdict
