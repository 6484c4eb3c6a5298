"""Detects loops: calls that are made again and return again what they returned before.

The signature of a call is its tool, its arguments and its outcome, a result or an error. Signatures are counted within
an *epoch*, the time in which the same question should have the same answer: a successful write with a new signature
ends it, and so does a new user turn. A *streak* is the calls since the last new signature. Identical calls that overlap
in time, or that different tasks make in one iteration of the event loop, count once.

Four checks are made when a signature comes again, each with a level for a notice and one for the action:

``repeat``     one signature, so many times in an epoch
``error``      one call with one error, so many times in a row
``cycle``      a streak of so many calls, of two signatures or more, the last of them seen three times. This finds every
               period without naming one, and lets a set of things be read twice
``any_error``  one tool with one error, so many times in a row, whatever the arguments

A repetition is no part of a loop if there was *progress* since the last time, a new signature of a call that did not
fail: a batch reads one rate for every invoice, and a pager says "ok" to every screen. So each signature has a *balance*
of its repetitions without progress and those with it, and the first three checks need one that is high enough.
``any_error`` needs none, since nothing else happens in such a row.

Why these, and what they find and miss in 17,000 recorded runs: docs/explanation/loops.md. A call costs O(1), however
long the session, and memory is bounded.

Time is the *position*, the number of calls counted so far; a streak is a difference of positions. `LoopDetector.clock`
adds the unchanged polls, which are not counted: two calls overlapped if one began at a lower reading than the other
ended at.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable
from contextvars import Context
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from threading import current_thread, get_ident
from typing import Any, Final, Literal

from agent_cache.clock import CLOCK
from agent_cache.core.options import NO_HINTS, LoopHints
from agent_cache.core.store import Entry
from agent_cache.engine.state import WITNESSES, forget_oldest, unwatch, watch
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.session.loop_policy import NEVER, LoopPolicy
from agent_cache.session.unkeyed import UnkeyedCalls
from agent_cache.values.compare import fingerprint, shown

__all__ = [
    "CURRENT_TASK",
    "NO_CALL",
    "RUNNING_TASKS",
    "CallCount",
    "CallHistory",
    "LoopDetector",
    "RunState",
    "ToolDetector",
    "Verdict",
    "running_loop",
    "task_of_thread",
]

Check = Literal["repeat", "error", "cycle", "any_error"]
Level = Literal["notice", "action"]

Identify = Callable[[Any], Hashable | None]
"""Maps a result to a value that equal results share; to None if it cannot be compared."""

_MAX_IMAGE: Final = 16_000
_MAX_IMAGES: Final = 1_000_000
"""Bytes of one answer, and of all those of a session, that are kept as images where the cache has no entry of them."""

_CYCLE_COUNT: Final = 3
"""How often the last call of a cycle must have been seen: a set of entities may be read twice."""

_MAX_CALLS: Final = 1_000
"""How many different calls of one tool are remembered. The oldest are forgotten, and are new again."""

_MAX_OUTCOMES: Final = 16
"""How many outcomes of one call are remembered beside its last one. The oldest are forgotten, and are new again."""

_MAX_RECENT: Final = 128
"""How many calls are remembered in order, to report a cycle. A power of two, so that a mask gives the place."""

_MASK: Final = _MAX_RECENT - 1

_MAX_BLOCKED: Final = 1_000

_STALE: Final = 2
_TRIED: Final = 1
_PROGRESS: Final = -1
_REPEAT_BALANCE: Final = 5
"""A repetition adds 2 to the balance of its signature if nothing new was seen since the last time, and 1 if only new
failures were. With progress it takes 1 away, down to 0.

From 5 on, or from the threshold if that is lower, a signature is a loop for ``repeat``: three repetitions in a row
without anything new are always enough. ``error`` and ``cycle`` need any balance above 0. docs/explanation/loops.md says
how this was chosen.
"""

# Which levels one signature has met in an epoch: those of `repeat`, then those of `error`.
_NOTICED, _ACTED, _ERROR_NOTICED, _ERROR_ACTED = 1, 2, 4, 8
_MAX_TOOLS: Final = 1_000
"""How many tools of a session are remembered. A long session may decorate more: the oldest are forgotten."""

# Before 3.12 asyncio.current_task is a Python function around this dict. With it a hit in a session takes 16 % longer
# (benchmarks.budgets, "the same in a session"). 3.11 does not change any more, and test_session.py pins the attribute.
CURRENT_TASK: Callable[[Any], Any] = (
    asyncio.current_task if sys.version_info >= (3, 12) else asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
)

RUNNING_TASKS: Any = asyncio.tasks._current_tasks if sys.version_info < (3, 12) else None  # type: ignore[attr-defined]
"""The running task of each event loop, where `asyncio.current_task` without a loop is slow."""

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
"""The event loop that runs in this thread, or None, in 20 ns. `asyncio.get_running_loop` raises an error without one,
which takes 500 ns: as long as two hits of a synchronous tool."""


def task_of_thread() -> Any:
    """What makes a call of a synchronous tool: the running task, or else the thread."""
    return current_thread() if running_loop() is None else asyncio.current_task()


_NO_TASK: Final = object()
"""The task that makes the current call, if none is known. No event loop has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """A check that was met.

    Attributes:
        level: ``"notice"``, once a streak, or ``"action"``, on every call that continues it.
        kind: the check.
        tool: the tool of the call that met it.
        count: how often the signature was seen in the epoch; for errors and polls, how often in a row.
        period: the number of calls in one round of the loop, 1 for a plain repeat.
        calls: the tools of one round, in order.
        first, last: the outcomes of the first and the last call of that round, as short text.
        blocked: the calls (tool, arguments key) to refuse before they run: those of a cycle until a new signature is
            seen, a write until the epoch ends. `ANY_CALL` stands for every call of the tool. Empty where only the
            outcome can tell whether the loop goes on: for repeats and errors of a read.
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

    def as_error(self) -> AgentLoopDetectedError:
        """The public form, which may be raised."""
        return AgentLoopDetectedError(
            self.tool, self.kind, self.count, self.period, self.calls, self.first, self.last, level=self.level
        )


class CallCount:
    """How many calls of one tool a run has made. Exact without a lock, as `metrics.Stats`."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class RunState:
    """How many calls a run has made, and which task in which iteration of which event loop makes the current one.

    Several threads, each with an event loop, may make calls of one run at once. It follows one of them at a time, and
    another one from its next call on; the iterations of the others go on meanwhile.

    Attributes:
        calls: calls made so far, without the refused ones.
        limit: how many calls it may make; 0 once it was stopped, so that one comparison covers both.
        used: calls made so far, by tool, for tools with a limit of their own.
        thread: the thread that made the last call; None once the iteration it was made in has ended.
        loop: the event loop of that thread, None without one.
        task: the task that made the last call of that iteration. It is not kept longer: `_NO_TASK` takes its place. Of
            a synchronous tool where no event loop runs, the thread.
        running: what `RUNNING_TASKS` is as long as that task is the only one that runs in any thread.
        step: a number for that task in that iteration. Each task and each iteration gets another one, and so do the
            calls after a new signature: since a call with the current number, nothing new was seen.
        first_step: the first number of the current iteration.
    """

    __slots__ = ("_iterations", "calls", "first_step", "limit", "loop", "running", "step", "task", "thread", "used")

    def __init__(self, limit: int | None) -> None:
        self.calls = 0
        self.step = self.first_step = 0
        self.used: dict[str, CallCount] = {}
        self._iterations: dict[asyncio.AbstractEventLoop, int] = {}  # the first step of each that has not ended
        self.restart(limit)

    def restart(self, limit: int | None) -> None:
        """Set the limit when the session is entered, perhaps again. The counters go on."""
        self.limit = NEVER if limit is None else limit
        self.thread: int | None = None
        self.loop: Any = None
        self.task: Any = _NO_TASK
        self.running: Any = None

    def release(self) -> None:
        """Keep no task and no event loop alive. The next call begins another iteration."""
        if self._iterations:
            self._iterations = {}
        self.thread = self.loop = self.running = None
        self.task = _NO_TASK

    def used_by(self, tool: str) -> CallCount:
        """The calls of one tool."""
        count = self.used.setdefault(tool, CallCount())
        forget_oldest(self.used, _MAX_TOOLS)
        return count

    def note_task(self) -> None:
        """Note the task of the next call. `SessionHooks` checks before whether it is the one of the last call."""
        if get_ident() != self.thread or self.loop is None:
            self.follow()
        task = self.task if self.loop is None else CURRENT_TASK(self.loop)
        if task is not self.task:
            self.switch_to(self.follow() if task is None else task)  # None: another loop of this thread may be running

    def switch_to(self, task: Any) -> None:
        """Note the task of the next call."""
        if task is not self.task:
            self.task = task
            self.step += 1
            self.running = {self.loop: task}

    def follow(self) -> Any:
        """Follow the current iteration of the running event loop until it ends, or another thread makes a call.

        Without calls, no callback is scheduled.

        Where no event loop runs, a synchronous tool was called: its thread counts as a task, and all that it does
        until another one makes a call as an iteration.

        Returns:
            The running task, or this thread.
        """
        loop: Any = running_loop()
        if loop is None:
            return self._follow_thread()
        first = self._iterations.get(loop)
        if first is None:
            for other in [other for other in list(self._iterations) if other.is_closed()]:
                self._iterations.pop(other, None)  # closed before its callback could run
            self.step = first = self.step + 1
            self._iterations[loop] = first
            loop.call_soon(self.end_iteration, loop, context=Context())  # it does not keep this run's context
        self.first_step = first
        self.task, self.running = _NO_TASK, None
        self.loop = loop
        self.thread = get_ident()
        return CURRENT_TASK(loop)

    def _follow_thread(self) -> Any:
        thread = current_thread()
        if self.task is not thread:
            self.task = thread
            self.step += 1
            self.first_step = self.step
        self.loop = self.running = None
        self.thread = get_ident()
        return thread

    def end_iteration(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """The next call of this loop belongs to another iteration."""
        if loop is not None:
            self._iterations.pop(loop, None)
        if self.loop is loop:
            self.step += 1
            self.first_step = self.step
            self.thread = self.loop = self.running = None
            self.task = _NO_TASK


class Room:
    """How many more bytes of images a session keeps."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size


class Image:
    """An answer of which the cache has no entry: the function that makes its copies, and the bytes it reads.

    To make the image of a tree of 0.8 KB takes 3 us, its fingerprint 60 us. Most answers are never compared.
    """

    __slots__ = ("_room", "_size", "copy")

    def __init__(self, copy: partial[Any], size: int, room: Room) -> None:
        self.copy = copy
        self._size = size
        self._room = room
        room.left -= size

    def __del__(self) -> None:
        self._room.left += self._size

    def share(self) -> Any:
        """The value, as `Entry.share`."""
        return self.copy()


Answer = Entry | Image


class Answers:
    """Compares the answers of one tool in one session.

    Attributes:
        identify: maps a result to what identifies it.
        room: the room for images.
    """

    __slots__ = ("identify", "room")

    def __init__(self, identify: Identify, room: Room) -> None:
        self.identify = identify
        self.room = room

    def image_of(self, value: Any) -> Image | None:
        """The image of a result that the cache does not store. None if it is no tree of builtins, or a large one."""
        if type(value) not in _TREES:
            return None
        file = BytesIO()
        pickler, loads = _tree_pickler()
        try:
            pickler(file, 5).dump(value)
        except Exception:  # noqa: BLE001 - it is no tree of builtins, or too deep a one
            return None
        image = file.getvalue()
        if len(image) > min(_MAX_IMAGE, self.room.left):
            return None
        return Image(partial(loads, image), len(image), self.room)

    def image_of_entry(self, entry: Entry) -> Image | None:
        """The image of an entry that the cache has dropped; None if it has none, or a large one."""
        image = _bytes_of(entry)
        if image is None or len(image) > min(_MAX_IMAGE, self.room.left):
            return None
        return Image(entry.copy, len(image), self.room)  # type: ignore[arg-type]  # `_bytes_of` says that it has one

    def outcome_of(self, answer: Answer | None) -> Hashable | None:
        """The identity of an answer."""
        return None if answer is None else self.identify(_value_of(answer))


def _value_of(answer: Answer) -> Any:
    """The value of an answer, for one reader."""
    return answer.share()


_TREES: Final = frozenset({dict, list, tuple, set, frozenset})


@cache
def _tree_pickler() -> tuple[Callable[[BytesIO, int], Any], Callable[[bytes], Any]]:
    """What pickles builtin scalars and containers alone, and runs no code of the values; and what reads it.

    It tells all types apart, which `marshal` does not: of an array that keeps the bytes. To check for such parts first
    takes four times as long as the image. Imported for the first result that needs it.
    """
    from pickle import Pickler, PicklingError, loads

    class TreePickler(Pickler):
        def reducer_override(self, value: object) -> Any:
            """Refuse an object of any other type. The pickler itself handles the builtin ones."""
            raise PicklingError(type(value).__name__)

    return TreePickler, loads


def _bytes_of(answer: Answer) -> bytes | None:
    """What the copies of an answer are read from, if they are read from bytes."""
    copy = getattr(answer, "copy", None)
    if type(copy) is partial and len(copy.args) == 1 and type(copy.args[0]) is bytes:
        return copy.args[0]
    return None


def _has_same_image(one: Answer, other: Answer) -> bool:
    """Whether two answers are copied from the same bytes: then they are the same. If not, that says nothing."""
    image = _bytes_of(one)
    return image is not None and image == _bytes_of(other) and one.copy.func is other.copy.func  # type: ignore[union-attr]  # `_bytes_of` says so


_Seen = tuple[int, int, int, int, int]
_UNSEEN: Final[_Seen] = (-1, 0, 0, 0, -1)


class CallHistory:
    """The outcomes of one call: of one tool with one set of arguments. Changed in place, by every hit.

    Attributes:
        entry: the cache entry that held the last outcome, or its image where the cache has none; None if neither is
            kept. While hits return this entry, no result is fingerprinted.
        outcome: the identity of the last outcome, once it was needed; None if it cannot be compared.
        text: the last outcome as short text, once it was needed or where it cannot be made later.
        count: how often the last outcome was seen in `epoch`.
        offset: twice the count less this is the balance of the last outcome. So a repetition without anything new, the
            usual one of a hit, changes the count only.
        in_a_row: how often it was seen in a row, without the hits of one entry.
        met: the levels that it has met in `epoch`.
        judge_at: the count from which a hit must be judged.
        step: the `RunState.step` in which the last outcome was last counted.
        ended: the `LoopDetector.clock` when the call was last counted.
        others: its earlier outcomes, each with its epoch, count, offset, levels and step.
        answers: compares it with others.
    """

    __slots__ = (
        "answers", "count", "ended", "entry", "epoch", "in_a_row", "judge_at", "key", "met", "offset", "others",
        "outcome", "step", "text", "tool",
    )  # fmt: skip

    def __init__(
        self,
        tool: str,
        key: Hashable,
        answers: Answers,
        entry: Answer | None = None,
        outcome: Hashable = None,
        epoch: int = -1,
        count: int = 0,
        judge_at: float = NEVER,
        step: int = -1,
        ended: int = -1,
    ) -> None:
        self.tool = tool
        self.key = key
        self.answers = answers
        self.entry = entry
        self.epoch = epoch
        self.outcome = outcome
        self.text = ""
        self.count = self.in_a_row = count
        self.offset = _STALE * count  # so that the balance is 0
        self.met = 0
        self.judge_at = judge_at
        self.step = step
        self.ended = ended
        self.others: dict[Hashable, _Seen] | None = None

    def let_go(self, entry: Entry, known: dict[Any, Any] | None) -> None:
        """Keep what identifies the value of an entry that the cache has dropped, and not the entry."""
        if self.entry is not entry:
            return
        if known is None:
            if self.count < 2:
                self.entry = None
                return
            known = {}
        image = self.answers.image_of_entry(entry)
        if image is not None:
            if self.entry is entry:  # no call in another thread has replaced it meanwhile
                self.entry = image
            return
        identify = self.answers.identify
        if identify not in known:
            try:
                value = entry.share()
                known[identify] = identify(value), shown(value)
            except Exception:  # noqa: BLE001 - a value of any class; the outcome is new when it comes again
                known[identify] = None, ""
        outcome, text = known[identify]
        if self.entry is entry:  # as above
            if self.outcome is None:
                self.outcome = outcome
            self.text = self.text or text
            self.entry = None

    def outcome_text(self) -> str:
        """The last outcome as short text, for reports."""
        entry = self.entry
        if not self.text and entry is not None:
            self.text = shown(_value_of(entry))
        return self.text

    def release_entry(self) -> None:
        """Stop keeping the last entry. An outcome that was not identified is new when it comes again."""
        entry, self.entry = self.entry, None
        if entry is not None and not isinstance(entry, Image):
            unwatch(entry, self)

    def set_outcome(self, outcome: Hashable | None, entry: Answer | None) -> tuple[bool, bool]:
        """Make this the last outcome. Returns whether it already was, and whether it was seen before in any epoch."""
        if self.epoch < 0:
            self.outcome, self.entry = outcome, entry
            return False, False
        former = self.entry
        if entry is not None and former is not None and (entry is former or _has_same_image(entry, former)):
            self.entry = entry
            return True, True
        before = self.outcome if self.outcome is not None else self.answers.outcome_of(former)
        now = outcome if outcome is not None else self.answers.outcome_of(entry)
        self.outcome, self.entry, self.text = now, entry, ""
        if now is not None and now == before:
            return True, True
        others = self.others
        if others is None:
            others = self.others = {}
        found = _UNSEEN if now is None else others.pop(now, _UNSEEN)
        if before is not None:
            others[before] = self.epoch, self.count, self.offset, self.met, self.step
            forget_oldest(others, _MAX_OUTCOMES)
        self.epoch, self.count, self.offset, self.met, self.step = found
        return False, self.epoch >= 0

    def enter_epoch(self, epoch: int) -> None:
        """Start the counts again if they belong to an earlier epoch."""
        if self.epoch != epoch:
            self.epoch, self.count, self.in_a_row, self.met = epoch, 0, 0, 0

    @property
    def balance(self) -> int:
        """How far the repetitions without progress outweigh those with it."""
        return _STALE * self.count - self.offset

    def count_once(self, change: int) -> None:
        """Count the last outcome, with this change of its balance."""
        self.count += 1
        self.offset = _STALE if self.count == 1 else min(self.offset + _STALE - change, _STALE * self.count)

    def reaches(self, level: int) -> bool:
        """Whether the last outcome is a loop by `repeat` at this level."""
        return self.count >= level and self.balance >= _needed(level)

    def count_to(self, level: int) -> int:
        """The count from which `reaches` may be true, if there is no more progress."""
        return max(level, -(-(self.offset + _needed(level)) // _STALE))


def _needed(level: int) -> int:
    """The balance that `repeat` needs at a level. Without progress it is there when the count is."""
    return min(_REPEAT_BALANCE, level)


NO_CALL: Final = CallHistory("", None, Answers(fingerprint, Room(0)))

ANY_CALL: Final = None
"""In place of a key: every call of a tool. No call has this key."""


class LoopDetector:
    """The state that all tools of a session share: epoch, position, streak, errors in a row, refused calls.

    Attributes:
        run: the calls and the current task of the session.
        levels: the two levels of each check.
        epoch: the number of epochs that have ended.
        position: the number of calls counted.
        unchanged: the number of polls that returned nothing new. They are not counted.
        longest_pause: seconds without a call after which a new turn begins; None if none does.
        active: the clock reading at the last call, where that matters.
        last: the last counted call of this epoch.
        streak_start: the position of the last new signature.
        newest: the `RunState.step` of the last new signature. Since a call of a later step, nothing new was seen.
        progress: likewise of the last one of a call that did not fail.
        mixed_after: a call after this position that has another signature than the one before it makes the streak one
            of several signatures.
        cycle_at: the position from which a cycle must be judged.
        repeat_notice: the count from which a new signature must be judged.
        cycle_acted: whether this streak has met the action level of a cycle.
        recent: the last calls, by position.
        is_open: whether the last entries of calls are kept, to compare later ones with them. Not once the session has
            ended: tasks that outlive it may still call.
        tools: the `ToolDetector` of each operation, kept here by `SessionHooks`.
        images: the room for answers of which the cache has no entry.
        blocked: the calls to refuse before they run, and why.
    """

    __slots__ = (
        "_error", "_error_at", "_error_clock", "_error_step", "_errors", "_unkeyed", "active", "blocked", "cycle_acted",
        "cycle_at", "cycle_notice", "epoch", "images", "is_open", "last", "levels", "longest_pause", "mixed_after",
        "newest", "position", "progress", "recent", "repeat_notice", "run", "streak_start", "tools", "unchanged",
    )  # fmt: skip

    def __init__(self, policy: LoopPolicy, run: RunState) -> None:
        self.run = run
        self.levels = policy.thresholds
        self.cycle_notice = self.levels["cycle"].notice
        self.repeat_notice = self.levels["repeat"].notice
        self.epoch = 0
        self.position = 0
        self.unchanged = 0
        self.longest_pause = policy.longest_pause
        self.active = CLOCK.now()
        self.last = NO_CALL
        self.streak_start = 0
        self.newest = self.progress = -1
        self.mixed_after = 1
        self.cycle_at = NEVER
        self.cycle_acted = False
        self.tools: dict[Hashable, ToolDetector] = {}
        self._unkeyed: UnkeyedCalls | None = None
        self.images = Room(_MAX_IMAGES)
        self.recent = [NO_CALL] * _MAX_RECENT
        self.is_open = True
        self.blocked: dict[tuple[str, Hashable], Verdict] = {}
        self._error: tuple[str, Hashable] | None = None
        self._errors = 0
        self._error_at = self._error_clock = self._error_step = -1

    def add_tool(self, operation: Hashable, tool: ToolDetector) -> ToolDetector:
        """Keep the detector of one tool. Returns the one that another thread has added meanwhile, if there is one."""
        found = self.tools.setdefault(operation, tool)
        forget_oldest(self.tools, _MAX_TOOLS)
        return found

    def close(self) -> None:
        """Keep no entry alive any more, since the session has ended: tasks that outlive it may still call."""
        self.is_open = False
        tools, self.tools = self.tools, {}
        for tool in tools.values():
            tool.release_entries()

    @property
    def unkeyed(self) -> UnkeyedCalls:
        """Identifies the calls that have no key, for `SessionHooks`. Made when there is one."""
        if self._unkeyed is None:
            self._unkeyed = UnkeyedCalls()
        return self._unkeyed

    @property
    def clock(self) -> int:
        """The logical time. Read it when a call begins, and pass it to `ToolDetector.record` as `began`."""
        return self.position + self.unchanged

    def end_epoch(self) -> None:
        """Start all counts again: the same question may have another answer now."""
        self.epoch += 1
        self.last = NO_CALL
        self._error = None
        self.end_streak(self.position)
        self.blocked.clear()

    def note_activity(self) -> None:
        """Note that the agent makes a call now. After a pause this is a new turn."""
        now, before = CLOCK.now(), self.active
        self.active = now
        if self.longest_pause is not None and now - before > self.longest_pause:
            self.end_epoch()

    def note_task(self) -> None:
        """As `RunState.note_task`, for a hit. The first one of an iteration may end a pause."""
        if self.run.loop is None:
            self.note_activity()
        self.run.note_task()

    def end_streak(self, position: int) -> None:
        """Note a new signature at this position: no cycle reaches back beyond it, and none stays blocked."""
        self.streak_start = position
        self.mixed_after = position + 1
        self.cycle_at = NEVER
        self.cycle_acted = False
        if self.blocked:
            for call, verdict in list(self.blocked.items()):
                if verdict.kind in ("cycle", "any_error"):
                    self.blocked.pop(call, None)

    def note_new(self, *, has_failed: bool) -> None:
        """Note a new signature: no repetition that comes next is one without anything new."""
        run = self.run
        self.newest = run.step
        if not has_failed:
            self.progress = run.step
        run.step += 1

    def change_since(self, step: int) -> int:
        """How the balance of a signature changes that was counted in this step, and comes again."""
        return _PROGRESS if step <= self.progress else _TRIED if step <= self.newest else _STALE

    def count_call(self, call: CallHistory, *, is_new: bool, is_turn: bool) -> None:
        """Advance by a call whose own count has gone up.

        Args:
            is_new: whether its signature is new in the epoch.
            is_turn: whether its signature differs from that of the call before.
        """
        self.position = position = self.position + 1
        self.recent[position & _MASK] = self.last = call
        if is_new:
            self.end_streak(position)
        elif is_turn and position > self.mixed_after:
            self.mixed_after = NEVER
            self.cycle_at = self.streak_start + self.cycle_notice

    def last_round(self) -> list[CallHistory]:
        """The calls of one round of the cycle that the last calls make: of the shortest that explains them all."""
        length = min(self.position - self.streak_start, _MAX_RECENT)
        recent = [self.recent[at & _MASK] for at in range(self.position - length + 1, self.position + 1)]
        for period in range(2, length):
            if recent[period:] == recent[:-period]:
                return recent[-period:]
        # In no fixed order, or longer than what is remembered; of no call at all, if another thread has just made one.
        return list(dict.fromkeys(recent or [self.last]))

    def count_error(self, tool: str, outcome: Hashable, began: int, step: int) -> int:
        """Count an error of a tool, that of the last call. Returns in how many rounds in a row there was only it.

        Args:
            step: the `RunState.step` in which it was recorded, before it was noted as new.
        """
        at, error = self.position, (tool, outcome)
        if outcome is None or error != self._error or self._error_at != at - 1:
            self._errors = 1
        elif began < self._error_clock or self.run.first_step <= self._error_step != step:
            self._error_at = at  # the same round of a fan-out: one outage, however many calls have met it
            return 0
        else:
            self._errors += 1
        self._error, self._error_at, self._error_clock = error, at, at + self.unchanged
        self._error_step = self.run.step
        return self._errors

    def block(self, verdict: Verdict) -> None:
        """Refuse the calls of a loop: those of a cycle until a new signature is seen, a write until the epoch ends."""
        for call in verdict.blocked:
            self.blocked[call] = verdict
        forget_oldest(self.blocked, _MAX_BLOCKED)


class ToolDetector:
    """Records the calls of one tool in one session, and judges them.

    Args:
        identify: maps a result to what identifies it.

    Attributes:
        calls: the calls that are remembered, by key.
        answers: compares their answers.
        detector: that of the session.
    """

    __slots__ = ("_hints", "_is_plain", "_is_write", "_tool", "answers", "calls", "detector")

    def __init__(
        self,
        detector: LoopDetector,
        tool: str,
        hints: LoopHints = NO_HINTS,
        *,
        is_write: bool = False,
        identify: Identify = fingerprint,
    ) -> None:
        self.detector = detector
        self._tool = tool
        self._is_write = is_write
        self._hints = hints
        self.answers = Answers(identify, detector.images)
        self.calls: dict[Hashable, CallHistory] = {}
        self._is_plain = not (hints.off or hints.poll)

    def __del__(self) -> None:
        if self.detector.is_open:  # a session that is never left, or has forgotten the tool
            self.release_entries()

    def release_entries(self) -> None:
        """Keep no answer of these calls any more."""
        for call in list(self.calls.values()):
            if call.entry is not None:
                call.release_entry()

    def hit(self, key: Hashable, entry: Entry) -> Verdict | None:
        """As `record`, for an answer from an entry.

        Repeats it for the case that the entry is the one of the last time (benchmarks.budgets, "the same in a
        session").
        """
        call, state = self.calls.get(key), self.detector
        if call is None or call.entry is not entry or call.epoch != state.epoch or not self._is_plain:
            return self.record(key, entry=entry)
        run = state.run
        call.count = count = call.count + 1
        if call.step != run.step:
            step, call.step = call.step, run.step
            if step <= state.newest:  # `CallHistory.count_once`
                offset, most = call.offset + _STALE - state.change_since(step), _STALE * count
                call.offset = offset = min(offset, most)
                soonest = (offset + _needed(state.repeat_notice) + 1) // _STALE
                if soonest > call.judge_at:
                    call.judge_at = soonest
            elif step >= run.first_step:  # another task of the same round
                call.count -= 1
                return None
        state.position = position = state.position + 1
        state.recent[position & _MASK] = call
        if call is not state.last:
            state.last = call
            if position > state.mixed_after:
                state.mixed_after = NEVER
                state.cycle_at = state.streak_start + state.cycle_notice
        if count >= call.judge_at or (position >= state.cycle_at and count >= _CYCLE_COUNT):
            return self._judge(call)
        return None

    def blocked(self, key: Hashable) -> Verdict | None:
        """Why this call is to be refused without running; None if it is not. Ask only if `LoopDetector.blocked`."""
        blocked = self.detector.blocked
        return blocked.get((self._tool, ANY_CALL)) or blocked.get((self._tool, key))

    def record(
        self,
        key: Hashable,
        outcome: Hashable | None = None,
        *,
        value: object = None,
        entry: Answer | None = None,
        error: bool = False,
        began: int = NEVER,
    ) -> Verdict | None:
        """Count the outcome of a call, and judge it.

        Args:
            key: identifies its arguments.
            outcome: identifies its result or its error; None if nothing does, or if `entry` holds the result.
            value: the result or the error itself, for reports.
            entry: the entry that holds its result, or its image (`Answers.image_of`).
            error: whether it failed: it raised, or its result stands for a failure.
            began: `LoopDetector.clock` when it began; left out if no other call can have run meanwhile.
        """
        if not error and self.record_first(key, entry, outcome):
            return None
        is_cached = entry is not None and type(entry) is not Image
        state, call, hints = self.detector, self._history(key), self._hints
        before, is_unseen = call.entry, call.epoch != state.epoch
        is_same, is_known = call.set_outcome(outcome, entry)
        if before is not None and not isinstance(before, Image) and entry is not before:
            unwatch(before, call)
        if entry is None:
            if is_known or error:
                call.text = shown(value)
        elif not state.is_open:
            call.release_entry()
        elif is_cached and entry is not before:
            watch(entry, call)  # type: ignore[arg-type]  # no `Image`
        has_written = self._is_write and not error
        if has_written and not is_known:
            state.end_epoch()
        call.enter_epoch(state.epoch)
        if hints.off:
            return None
        run, before_step = state.run, call.step
        call.step = step = run.step
        change = state.change_since(before_step)
        if (
            is_same
            and call.count
            and (began < call.ended or (run.first_step <= before_step != step and change == _STALE))
        ):
            return None  # the same round
        call.in_a_row = call.in_a_row + 1 if is_same else 1
        if hints.poll and call.in_a_row > 1:
            state.unchanged += 1
            call.ended = state.clock
            return self._judge_poll(call)
        call.count_once(change)
        is_turn, is_new = call is not state.last or not is_same, call.count == 1 or hints.poll
        state.count_call(call, is_new=is_new, is_turn=is_turn)
        call.ended = state.clock
        if is_new and (is_unseen or call.outcome is not None):  # no progress by a result that cannot be compared
            state.note_new(has_failed=error)
            call.step = run.step
        if hints.poll:
            return None
        if not error:
            return self._judge(call, has_written=has_written)
        return self._judge(
            call, in_a_row=call.in_a_row, errors=state.count_error(self._tool, call.outcome, began, step)
        )

    def record_first(self, key: Hashable, entry: Answer | None, outcome: Hashable | None = None) -> bool:
        """Count a result of a call that was never seen and has not failed; returns False if it was seen.

        Repeats the part of `record` that applies then (benchmarks.budgets, "static tag, in a session").
        """
        calls = self.calls
        if key in calls or not self._is_plain:
            return False
        if len(calls) >= _MAX_CALLS:
            self._forget_oldest()
        state, run = self.detector, self.detector.run
        if self._is_write:
            state.end_epoch()
        # `LoopDetector.note_new`, without the call
        state.newest = state.progress = step = run.step
        run.step = step = step + 1
        state.position = position = state.position + 1
        calls[key] = call = CallHistory(
            self._tool,
            key,
            self.answers,
            entry,
            outcome,
            state.epoch,
            1,
            state.repeat_notice,
            step,
            position + state.unchanged,
        )
        state.recent[position & _MASK] = state.last = call
        if state.blocked or state.cycle_at != NEVER:
            state.end_streak(position)
        else:
            state.streak_start, state.mixed_after = position, position + 1
        if entry is None or type(entry) is Image:
            return True
        if not state.is_open:
            call.entry = None
        elif WITNESSES.setdefault(id(entry), call) is not call:
            watch(entry, call)  # type: ignore[arg-type]  # it is no `Image`
        return True

    def record_change(self, key: Hashable, outcome: Hashable | None, image: Image | None = None) -> None:
        """Note a successful write that is not counted here, such as one of an inner session.

        It ends the epoch if its signature is new here.
        """
        state, call = self.detector, self._history(key)
        _, is_known = call.set_outcome(outcome, image)
        if not is_known:
            state.end_epoch()
        call.enter_epoch(state.epoch)

    def image_of(self, value: Any) -> Image | None:
        """What a result that is not cached is compared by, should its call come again; None if that is its identity."""
        return self.answers.image_of(value) if self.detector.is_open else None

    def _history(self, key: Hashable) -> CallHistory:
        call = self.calls.get(key)
        if call is None:
            call = CallHistory(self._tool, key, self.answers)
            self._forget_oldest()
            self.calls[key] = call
        return call

    def _forget_oldest(self) -> None:
        """Forget the oldest call, if there are as many as are remembered."""
        calls = self.calls
        while len(calls) >= _MAX_CALLS:
            try:
                calls.pop(next(iter(calls))).release_entry()
            except (KeyError, RuntimeError, StopIteration):
                continue  # another thread has changed it between the two steps

    def _judge_poll(self, call: CallHistory) -> Verdict | None:
        """A declared poll is judged by itself, and unchanged answers of it are no part of a cycle."""
        limit = self._hints.max_unchanged
        if limit is None or call.in_a_row < limit:
            return None
        return self._found("action", "repeat", call, call.in_a_row, is_first=call.in_a_row == limit)

    def _judge(
        self, call: CallHistory, *, has_written: bool = False, in_a_row: int = 0, errors: int = 0
    ) -> Verdict | None:
        """The first check that is met, those of the action level first. `in_a_row` and `errors` are 0 for results."""
        state, levels, count = self.detector, self.detector.levels, call.count
        repeat = levels["write_repeat" if has_written else "repeat"]
        call.judge_at = call.count_to(repeat.action if call.met & _NOTICED else repeat.notice)
        is_stale = call.balance > 0
        if call.reaches(repeat.action):
            return self._found("action", "repeat", call, count, is_first=_meets(call, _ACTED))
        if in_a_row >= levels["error"].action and is_stale:
            return self._found("action", "error", call, in_a_row, is_first=_meets(call, _ERROR_ACTED))
        is_cycle = state.position >= state.cycle_at and count >= _CYCLE_COUNT and is_stale
        if is_cycle and state.position - state.streak_start >= levels["cycle"].action:
            is_first, state.cycle_acted = not state.cycle_acted, True
            return self._found("action", "cycle", call, count, is_first=is_first)
        if errors >= levels["any_error"].action:
            return self._found("action", "any_error", call, errors, is_first=errors == levels["any_error"].action)
        if is_cycle:
            state.cycle_at = state.streak_start + levels["cycle"].action
            return self._found("notice", "cycle", call, count)
        if call.reaches(repeat.notice) and _meets(call, _NOTICED):
            call.judge_at = call.count_to(repeat.action)
            return self._found("notice", "repeat", call, count)
        if in_a_row >= levels["error"].notice and is_stale and _meets(call, _ERROR_NOTICED):
            return self._found("notice", "error", call, in_a_row)
        if errors == levels["any_error"].notice:
            return self._found("notice", "any_error", call, errors)
        return None

    def _found(self, level: Level, kind: Check, call: CallHistory, count: int, *, is_first: bool = False) -> Verdict:
        calls = self.detector.last_round() if kind == "cycle" else [call]
        blocked: frozenset[tuple[str, Hashable]] = frozenset()
        if level == "action":
            if kind == "cycle":
                blocked = frozenset((each.tool, each.key) for each in calls)
            elif self._is_write:  # its answer is given, since it has run; the next one is refused
                blocked = frozenset({(self._tool, ANY_CALL if kind == "any_error" else call.key)})
        names = tuple(each.tool for each in calls)
        first, last = calls[0].outcome_text(), calls[-1].outcome_text()
        verdict = Verdict(level, kind, self._tool, count, len(calls), names, first, last, blocked, is_first)
        self.detector.block(verdict)
        return verdict


def _meets(call: CallHistory, level: int) -> bool:
    """Note that the last outcome of a call meets a level; returns whether it has not met it before in this epoch."""
    is_first = not call.met & level
    call.met |= level
    return is_first
