"""Detects loops: calls that are made again and give again what they gave before.

The signature of a call is its tool, its arguments and a digest of its outcome, a result or an error. Signatures are
counted within an *epoch*, the time in which the same question should have the same answer: a successful write with a
new signature ends it, and so does a new turn of the user. A *streak* is the calls since the last new signature.
Identical calls that overlap in time, or that different tasks make in one iteration of the event loop, count once.

A repetition is no part of a loop if there was *progress* since the last time, a new signature of a call that did not
fail. So each signature has a *balance* of its repetitions without progress and those with it. `LoopPolicy` describes
the checks. Why these, and what they find and miss in 17,000 recorded runs: docs/explanation/loops.md.

A call costs O(1), however long the session, and memory is bounded: no answer is kept, only its digest. Time is the
number of calls counted so far, `LoopDetector.clock`: two calls overlapped if one began at a lower reading than the
other ended at.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import Context
from itertools import islice
from threading import get_ident
from typing import Any, Final

from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.options import LoopHints
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.session.loop_policy import ANY_NUMBER, LoopPolicy, seconds_of
from agent_cache.values.canonical import forget_oldest, full_name
from agent_cache.values.compare import fingerprint, shown
from agent_cache.values.copies import packed

__all__ = ["LoopDetector", "Signature", "ToolHistory", "digest_of"]

_MAX_CALLS: Final = 1_000
"""How many different calls of one tool are remembered. The oldest are forgotten, and are new again."""

_MAX_OUTCOMES: Final = 16
"""How many outcomes of one call are remembered beside its last one. The oldest are forgotten, and are new again."""

_MAX_TOOLS: Final = 1_000
_MAX_BLOCKED: Final = 1_000
_MAX_OBJECTS: Final = 256  # without identity, known by themselves
_MAX_PARTS: Final = 64  # of a container or an object without identity

_MAX_STREAK: Final = 128
"""How many calls of a streak are remembered in order, to report a cycle."""

_CYCLE_COUNT: Final = 3
"""How often the last call of a cycle must have been seen: a set of entities may be read twice."""

_STALE, _TRIED, _PROGRESS = 2, 1, -1
"""What a repetition adds to the balance of its signature if nothing new was seen since the last time; if only new
failures were; with progress, down to 0."""

_REPEAT_BALANCE: Final = 5
"""The balance that ``repeat`` needs, or the threshold if that is lower: three repetitions in a row without anything new
are always enough. ``error`` and ``cycle`` need any balance above 0."""

_ANY_ARGUMENTS: Final = None
"""In place of the key of a call: every call of a tool. No call has this key."""

# Which levels a signature has met in its epoch: those of `repeat`, then those of `error`.
_NOTICED, _ACTED, _ERROR_NOTICED, _ERROR_ACTED = 1, 2, 4, 8

Verdict = tuple[AgentLoopDetectedError, bool]
"""The check that a call has met, and whether its streak has not met this level before."""


# Digests of answers

_SMALL: Final = frozenset({int, float, bool, type(None)})
_TREES: Final = frozenset({dict, list, tuple, set, frozenset})


def digest_of(value: Any) -> Hashable:
    """What the same results share, in this process. A result that cannot be compared has a digest of its own.

    Trees of builtins are the same if they are equal in the same order; a tuple may be a list. MessagePack writes them
    so, runs no code of theirs, and takes 1 us for 0.8 KB, where a fingerprint takes 60.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return hash((kind, value))
    if kind in _SMALL:
        return kind, value
    if kind in _TREES:
        try:
            return hash(packed(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass  # there is something else in it
    return fingerprint(value) or object()


def _text_of(value: Any) -> str:
    """An outcome as short text: of the blocks that frameworks give to a model their text, and not how they are made."""
    with suppress(Exception):  # there are no such blocks, or it is an attribute of any class
        blocks = value.get("content", value) if type(value) is dict else getattr(value, "content", value)
        if type(blocks) is list and blocks:
            return shown("\n".join(one["text"] if type(one) is dict else one.text for one in blocks))
    return shown(value)


# Arguments without identity


class UnkeyedArguments:
    """The objects without identity that the calls of one session were given, such as clients, callbacks and images.

    A call with one is compared all the same, or one such call in each round would hide every loop. An object is known
    by its look, and counts as the last one that looked so, unless that is another one and alive: if it is gone, as a
    callback that is made anew for each call, the two are the same. Objects are referred to weakly.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[Hashable, tuple[Any, int]] = {}  # by look, the last object and its number

    def part(self, value: Any, depth: int = 0) -> Hashable:
        """The part of a key for an argument."""
        try:
            return key_part(value)
        except Uncacheable:
            kind = type(value)
        if kind in (dict, list, tuple) and depth < 4:
            members = islice(value.items() if kind is dict else value, _MAX_PARTS)
            return kind.__name__, len(value), *[self.part(each, depth + 1) for each in members]
        look = self._look_of(value)
        latest, number = self._latest.get(look, (None, 0))
        try:
            number += latest is not None and (former := latest()) is not None and former is not value
            self._latest[look] = weakref.ref(value), number
        except TypeError:  # no weak reference
            return look
        forget_oldest(self._latest, _MAX_OBJECTS)
        return look, number

    def _look_of(self, value: Any) -> Hashable:
        """The type of an object, its name, and its attributes that have keys. None of them is computed."""
        look = full_name(type(value))
        try:
            name = str(object.__getattribute__(value, "__qualname__")) if callable(value) else ""
            attributes = sorted(getattr(value, "__dict__", {}).items())[:_MAX_PARTS]
            return look, name, fingerprint([(name, one) for name, one in attributes if fingerprint(one)])
        except Exception:  # noqa: BLE001 - attribute access of any class
            return look


# Signatures


class Signature:
    """One call with one outcome, and what was counted of it. Changed in place, by every hit."""

    __slots__ = (
        "balance",  # how far its repetitions without progress outweigh those with it
        "count",  # how often it was seen in `epoch`
        "digest",  # identifies the outcome
        "ended",  # the `LoopDetector.clock` when it was last counted
        "epoch",
        "in_a_row",  # how often the call had this outcome in a row
        "iteration",  # of the event loop, and the task, in which it was last counted
        "judge_at",  # the count from which it must be judged
        "key",
        "met",  # the levels that it has met in `epoch`
        "others",  # earlier outcomes of the call, by digest: all signatures of a call share them
        "task",
        "text",  # the outcome as short text, once it may be needed
        "tool",
    )

    def __init__(
        self,
        tool: str,
        key: Hashable,
        digest: Hashable,
        others: dict[Hashable, Signature] | None = None,
        epoch: int = -1,
        judge_at: int = 0,
    ) -> None:
        self.tool, self.key, self.digest, self.others, self.text = tool, key, digest, others, ""
        self.ended = self.iteration = self.task = -1
        self.begin_epoch(epoch, judge_at)

    def begin_epoch(self, epoch: int, judge_at: int) -> None:
        self.epoch, self.judge_at = epoch, judge_at
        self.count = self.balance = self.in_a_row = self.met = 0

    def reaches(self, level: int) -> bool:
        """Whether it is a loop by `repeat` at this level."""
        return self.count >= level and self.balance >= min(_REPEAT_BALANCE, level)

    def meets(self, level: int) -> bool:
        """Note that it meets a level. Returns whether it has not met it before in this epoch."""
        is_first = not self.met & level
        self.met |= level
        return is_first


_Once = tuple[Hashable, int, int, int, int]
"""A call that was made once, in place of its `Signature`, as most are: digest, epoch, `ended`, iteration and task."""


# The state of a session


running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
"""The event loop that runs in this thread, or None, in 20 ns. `asyncio.get_running_loop` raises an error without one,
which takes 500 ns: as long as two hits of a synchronous tool."""

# Before 3.12 asyncio.current_task is a Python function around this dict, and a hit in a session takes 16 % longer with
# it. 3.11 does not change any more, and test_loop_model.py pins the attribute.
task_in: Callable[[Any], Any] = (
    asyncio.current_task if sys.version_info >= (3, 12) else asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
)
"""The running task of an event loop."""

_ITERATIONS: Final[dict[asyncio.AbstractEventLoop, int]] = {}
"""The number of the iteration that an event loop is in, where a session has made a call in it. One callback, at its
end, serves all sessions."""
_numbers: Final = itertools.count(1)


def _begin_iteration(loop: asyncio.AbstractEventLoop) -> int:
    for other in list(_ITERATIONS):
        if other.is_closed():  # so its iteration has never ended
            _ITERATIONS.pop(other, None)
    _ITERATIONS[loop] = number = next(_numbers)
    loop.call_soon(_ITERATIONS.pop, loop, None, context=Context())  # it does not keep this run's context
    return number


class LoopDetector:
    """The state that all tools of a session share, from its first call to its end."""

    __slots__ = (
        "_error", "_error_at", "_error_round", "_errors", "acted_cycle", "active", "blocked", "clock", "epoch",
        "is_mixed", "last", "length", "levels", "newest", "noticed_cycle", "pause", "progress", "streak", "tools",
        "unkeyed",
    )  # fmt: skip

    def __init__(self, policy: LoopPolicy, now: float) -> None:
        self.levels = policy.levels
        self.pause = seconds_of(policy.new_turn_after, "new_turn_after")  # without a call, after which a turn begins
        self.active = now  # the clock reading at the last call, where that matters
        self.epoch = 0  # how many have ended
        self.clock = 0  # how many calls were counted
        self.last: Signature | None = None  # the last counted call that has one
        self.streak: list[Signature] = []  # the last calls since the last new signature,
        self.length = 0  # so many of them in all;
        self.is_mixed = False  # whether they have several signatures,
        self.noticed_cycle = self.acted_cycle = False  # and have met these levels of a cycle
        self.newest = self.progress = 0  # the clock at the last new signature; at that of a call that did not fail
        self._error: tuple[str, Hashable] | None = None  # the tool and the error of the last failed call
        self._error_at, self._error_round, self._errors = -1, (-1, -1, -1), 0
        self.blocked: dict[tuple[str, Hashable], AgentLoopDetectedError] = {}  # the calls to refuse, and why
        self.tools: dict[Hashable, dict[Hashable, Signature | _Once]] = {}  # the calls of each tool
        self.unkeyed: UnkeyedArguments | None = None  # made for the first call without a key

    def calls_of(self, operation: Hashable) -> dict[Hashable, Signature | _Once]:
        """The last signature of each call of a tool."""
        found = self.tools.setdefault(operation, {})
        forget_oldest(self.tools, _MAX_TOOLS)
        return found

    def part_of_unkeyed(self, argument: Any) -> Hashable:
        """The part of a key for an argument of a call without a key."""
        if self.unkeyed is None:
            self.unkeyed = UnkeyedArguments()
        return self.unkeyed.part(argument)

    def note_activity(self, now: float) -> None:
        """Note that the agent makes a call at this clock reading. After a pause it begins a new turn."""
        if self.pause is not None:
            before, self.active = self.active, now
            if now - before > self.pause:
                self.end_epoch()

    # What is new

    def end_epoch(self) -> None:
        """Start all counts again: the same question may have another answer now."""
        self.epoch += 1
        self._error = None
        if self.blocked:
            self.blocked.clear()

    def begin_streak(self) -> None:
        """Note a new signature: no cycle reaches back beyond it, and none stays blocked."""
        self.length = 0
        self.is_mixed = self.noticed_cycle = self.acted_cycle = False
        if self.streak:
            self.streak = []
        if self.blocked:
            for call, report in list(self.blocked.items()):
                if report.kind in ("cycle", "any_error"):
                    self.blocked.pop(call, None)

    def last_round(self, last: Signature) -> list[Signature]:
        """The calls of one round of the cycle that the last calls make: of the shortest that explains them all."""
        recent = self.streak[-_MAX_STREAK:]
        for period in range(2, len(recent)):
            if recent[period:] == recent[:-period]:
                return recent[-period:]
        # In no fixed order, or longer than what is remembered; of no call at all, if another thread has just made one.
        return list(dict.fromkeys(recent or [last]))

    def count_error(self, tool: str, digest: Hashable, began: int, iteration: int, task: int) -> int:
        """Count an error of a tool, that of the last call. Returns in how many rounds in a row there was only it."""
        error, at, (ended, former_iteration, former_task) = (tool, digest), self.clock, self._error_round
        if error != self._error or self._error_at != at - 1:
            self._errors = 0
        elif began < ended or (iteration == former_iteration and task != former_task):
            self._error_at = at  # the same round of a fan-out: one outage, however many calls have met it
            return 0
        self._errors += 1
        self._error, self._error_at, self._error_round = error, at, (at, iteration, task)
        return self._errors


# The calls of one tool


class ToolHistory:
    """Records the calls of one tool in one session, and judges them."""

    __slots__ = ()

    detector: Any  # that of the session; None if it detects no loops
    calls: dict[Hashable, Signature | _Once]  # the last signature of each call that is remembered, by key
    hints: LoopHints
    is_write: bool
    name: str
    repeat: str  # the check of `LoopPolicy` that its repeated results meet

    def record(
        self, key: Hashable, digest: Hashable, value: object, *, failed: bool = False, began: int = ANY_NUMBER
    ) -> Verdict | None:
        """Count the outcome of a call, and judge it.

        Args:
            key: identifies its arguments.
            digest: identifies its result or its error.
            value: the result or the error itself, for reports.
            failed: whether it raised, or its result stands for a failure.
            began: `LoopDetector.clock` when it began; left out if no other call can have run meanwhile.
        """
        state: LoopDetector = self.detector
        loop = running_loop()
        if loop is None:
            task, iteration = get_ident(), next(_numbers)  # calls of threads are rounds if they overlap
        else:
            task, iteration = id(task_in(loop)), _ITERATIONS.get(loop) or _begin_iteration(loop)
        calls, hints = self.calls, self.hints
        known = calls.get(key)
        if known is None and not (failed or hints.off or hints.poll):  # what follows, for a call that is new
            if len(calls) >= _MAX_CALLS:
                forget_oldest(calls, _MAX_CALLS - 1)
            if self.is_write:
                state.end_epoch()
            if state.length or state.blocked:
                state.begin_streak()
            state.clock = state.newest = state.progress = clock = state.clock + 1
            calls[key] = digest, state.epoch, clock, iteration, task
            return None
        signature = former = self._made_again(key, known) if isinstance(known, tuple) else known
        if former is None or former.epoch != state.epoch or (former.digest is not digest and former.digest != digest):
            signature = self._signature(key, digest, has_written=self.is_write and not failed)
        assert signature is not None
        is_same = signature is former
        if hints.off:
            return None
        ended = signature.ended
        change = _STALE
        if ended < state.newest:
            change = _PROGRESS if ended < state.progress else _TRIED
        is_round = change == _STALE and signature.iteration == iteration and signature.task != task
        signature.iteration, signature.task = iteration, task
        if is_same and signature.count:
            if began < ended or is_round:
                signature.ended = max(ended, state.newest)
                return None  # the same round
            signature.in_a_row += 1
            if hints.poll:
                state.clock = signature.ended = state.clock + 1
                return self._judge_poll(signature, value)
        else:
            signature.in_a_row = 1
        signature.count = count = signature.count + 1
        state.clock = signature.ended = clock = state.clock + 1
        if count == 1 or hints.poll:
            if state.length or state.blocked:
                state.begin_streak()
            if type(digest) is not object or former is None or former.epoch != state.epoch:
                # What cannot be compared is progress if the call is new.
                state.newest = clock
                if not failed:
                    state.progress = clock
        else:
            if change > 0 or signature.balance:
                signature.balance += change
            if state.length and signature is not state.last:
                state.is_mixed = True
            state.length = length = state.length + 1
            state.streak.append(signature)
            if not length % _MAX_STREAK:
                del state.streak[:-_MAX_STREAK]
        state.last = signature
        if hints.poll:
            return None
        if failed:
            errors = state.count_error(self.name, digest, began, iteration, task)
            return self._judge(signature, value, signature.in_a_row, errors, has_failed=True)
        if count >= signature.judge_at or state.is_mixed:
            return self._judge(signature, value)
        return None

    def record_change(self, key: Hashable, digest: Hashable) -> None:
        """Note a successful write that is not counted here, such as one of an inner session."""
        self._signature(key, digest, has_written=True)

    def refusal_of(self, key: Hashable) -> AgentLoopDetectedError | None:
        """Why this call is to be refused without running; None if it is not."""
        blocked: dict[Any, AgentLoopDetectedError] = self.detector.blocked
        return blocked.get((self.name, _ANY_ARGUMENTS)) or blocked.get((self.name, key))

    def _made_again(self, key: Hashable, once: _Once) -> Signature:
        """The signature of a call that was made once, since it is made again."""
        state: LoopDetector = self.detector
        digest, epoch, ended, iteration, task = once
        made = self.calls[key] = Signature(self.name, key, digest, None, epoch, state.levels[self.repeat].notice)
        made.count = made.in_a_row = 1
        made.ended, made.iteration, made.task = ended, iteration, task
        return made

    def _signature(self, key: Hashable, digest: Hashable, *, has_written: bool) -> Signature:
        """The signature of a call with this outcome, in the current epoch. A new one of a write begins another."""
        state: LoopDetector = self.detector
        known = self.calls.get(key)
        found = former = self._made_again(key, known) if isinstance(known, tuple) else known
        if former is None:
            if len(self.calls) >= _MAX_CALLS:
                forget_oldest(self.calls, _MAX_CALLS - 1)
        elif former.digest != digest:
            if former.others is None:
                former.others = {}
            found = former.others.pop(digest, None)
            if type(former.digest) is not object:
                former.others[former.digest] = former
                forget_oldest(former.others, _MAX_OUTCOMES)
        judge_at = state.levels[self.repeat].notice
        if found is None:
            if has_written:
                state.end_epoch()
            others = None if former is None else former.others
            found = Signature(self.name, key, digest, others, state.epoch, judge_at)
        elif found.epoch != state.epoch:
            found.begin_epoch(state.epoch, judge_at)
        self.calls[key] = found
        return found

    def _judge_poll(self, signature: Signature, value: object) -> Verdict | None:
        """A declared poll is judged by itself, and unchanged answers of it are no part of a cycle."""
        limit, count = self.hints.max_unchanged, signature.in_a_row
        if limit is None or count < limit:
            return None
        signature.text = signature.text or _text_of(value)
        return self._found("repeat", signature, count), count == limit

    def _judge(
        self, signature: Signature, value: object, in_a_row: int = 0, errors: int = 0, *, has_failed: bool = False
    ) -> Verdict | None:
        """The first check that is met, those of the action level first. `in_a_row` and `errors` are 0 for results."""
        state, count = self.detector, signature.count
        if not signature.text:
            signature.text = _text_of(value)
        levels = state.levels
        repeat = levels["repeat" if has_failed else self.repeat]
        if signature.reaches(repeat.action):
            return self._found("repeat", signature, count), signature.meets(_ACTED)
        is_stale = signature.balance > 0
        if in_a_row >= levels["error"].action and is_stale:
            return self._found("error", signature, in_a_row), signature.meets(_ERROR_ACTED)
        is_cycle = state.is_mixed and is_stale and count >= _CYCLE_COUNT
        if is_cycle and state.length >= levels["cycle"].action:
            is_first, state.acted_cycle = not state.acted_cycle, True
            return self._found("cycle", signature, count), is_first
        if errors >= levels["any_error"].action:
            return self._found("any_error", signature, errors), errors == levels["any_error"].action
        if is_cycle and not state.noticed_cycle and state.length >= levels["cycle"].notice:
            state.noticed_cycle = True
            return self._found("cycle", signature, count, "notice"), True
        if signature.reaches(repeat.notice) and signature.meets(_NOTICED):
            signature.judge_at = repeat.action
            return self._found("repeat", signature, count, "notice"), True
        if in_a_row >= levels["error"].notice and is_stale and signature.meets(_ERROR_NOTICED):
            return self._found("error", signature, in_a_row, "notice"), True
        if errors == levels["any_error"].notice:
            return self._found("any_error", signature, errors, "notice"), True
        return None

    def _found(self, kind: str, signature: Signature, count: int, level: str = "action") -> AgentLoopDetectedError:
        """The report on a check that was met.

        The calls of a cycle are refused before they run until a new signature is seen, those of a write until the epoch
        ends, since its answer is given. Of a read only the outcome can tell whether the loop goes on.
        """
        state = self.detector
        calls = state.last_round(signature) if kind == "cycle" else [signature]
        names = tuple(one.tool for one in calls)
        report = AgentLoopDetectedError(
            self.name, kind, count, len(calls), names, calls[0].text, calls[-1].text, level=level
        )
        if level == "action":
            if kind == "cycle":
                state.blocked.update({(one.tool, one.key): report for one in calls})
            elif self.is_write:
                key = _ANY_ARGUMENTS if kind == "any_error" else signature.key
                state.blocked[self.name, key] = report
            forget_oldest(state.blocked, _MAX_BLOCKED)
        return report
