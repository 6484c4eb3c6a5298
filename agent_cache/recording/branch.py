"""`fork`: makes a recorded run again up to a call, from the recording, and goes on live from there.

The *prefix* is what had started before that call, without the calls that enclose it. It is answered from the recording,
with edits if there are any; what the run does then is a *branch*, and has a recording of its own, which is complete.

A recorded call is in one of these states, decided before the run begins:

- answered: of the prefix. What it encloses is not made.
- repeated: a write of the prefix in a sandbox. It runs, and must have its recorded outcome.
- opened: it runs, and what it encloses is decided call by call. It encloses the first live call, or a write of a
  sandbox, or it has no answer of its own: it was cancelled, or its stream was left, when the first live call was under
  way already.
- live: everything else.

A live call must not come before its *lane* (`lanes`) has made what the prefix has of it. Lanes of the run are those of
the recording whose calls they make. A lane that has made none yet, and whose first call is not in the recording, may be
any that has not begun: then these must have made theirs, too, and the one that it was forked from.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from agent_cache.core.options import checked_choice
from agent_cache.engine.operation import Operation
from agent_cache.errors import CassetteError, ConfigurationError, DivergenceError, WorldMovedError
from agent_cache.recording.api import Block, checked_path, loaded, recorded_http
from agent_cache.recording.call_log import CassetteLog
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.edits import check_edit, edited_call
from agent_cache.recording.file import RecordedCall, is_inside
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.match import Matcher, call_data, described, differences, nearest_to
from agent_cache.recording.outcomes import decode, encode
from agent_cache.recording.partial_file import is_being_recorded, is_idle
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tape import NO_CONTEXT, Tape

__all__ = ["FORK_VARIABLE", "WORLDS", "Branch", "Saved", "World", "fork"]

FORK_VARIABLE: Final = "AGENT_CACHE_FORK"
"""The environment variable that `fork.from_env` reads: a JSON object of the arguments of `fork`."""

WORLDS = ("refuse", "sandbox", "as_is")
World = Literal["refuse", "sandbox", "as_is"]

_LIVE, _ANSWERED, _REPEATED, _OPENED = range(4)
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Saved:
    """What the answered part of a branch did not take.

    Attributes:
        calls: calls that were answered, without those that they enclose.
        seconds: how long these took when they were recorded, one after another.
        input_tokens, output_tokens: of the model calls among them and inside of them, as far as they are known.
    """

    calls: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class Branch:
    """A run that has left its original.

    Attributes:
        live_from: id, in the original, of the first call that runs; None if all of the original is answered.
    """

    def __init__(self, live_from: int | None, tape: _BranchTape) -> None:
        self.live_from = live_from
        self._tape = tape

    @property
    def saved(self) -> Saved:
        """What was not run so far, because the recording had the answer."""
        models = self._tape.savings
        return Saved(self._tape.cursor, self._tape.seconds, models.input_tokens, models.output_tokens)

    @property
    def cassette(self) -> Cassette:
        """The recording of the branch; while it runs, of the calls that have ended.

        Raises:
            CassetteError: if it cannot be read.
        """
        return self._tape.cassette

    def __repr__(self) -> str:
        return f"<Branch of {self._tape.source_path or 'a cassette'}, live from call {self.live_from}>"


class fork(Block[Branch]):  # noqa: N801 - used as a function, as `record`
    """Make a recorded run again up to a call, and go on live: ``with fork("run.jsonl", at=7, to="branch.jsonl"): ...``

    What had started before that call is answered from the recording, without the calls that enclose it. From there on
    everything runs. All of it is recorded as the branch, which can be replayed, compared and forked like any recording.

    The run must make the calls that come before in the same way. A call that would run although its task has not made
    what was recorded of it before is refused, and so is every further one.

    Args:
        cassette: the original: a path, or a `Cassette`.
        at: id of the first call that runs, as ``agent-cache cassette show`` prints it. None answers all of it, and goes
            on behind its end.
        to: where the branch is recorded. There must be no file yet.
        edits: other outcomes of answered calls, by id: a value of the function's return type, or plain data of one, or
            ``Raised(error)``. An edited call does not run, in a sandbox neither. Of a recorded request the edit is the
            JSON or the text of the response; of a stream it is the list of chunks, of one of HTTP as the recording has
            them.
        world: what the branch finds there. ``"refuse"``: the world of the original, and it is an error if that has gone
            on with writes. ``"as_is"``: the same world, whatever it is like. Both answer writes from the recording.
            ``"sandbox"``: a fresh world, as the original found it: the writes before `at` run again, and each must have
            the outcome that it had.
        redact: the hook that `record` was given, if it was given one.

    Raises:
        CassetteNotFound: if there is no original.
        WorldMovedError: if the original has gone on with writes, and `world` is ``"refuse"``.
        CassetteError: if the original cannot be read, is being recorded, or has no such call; if `to` exists, or cannot
            be written.
        DivergenceError: in the run, for a call that must not run yet, or a write that has another outcome in a sandbox;
            at the end, if calls that come before `at` were not made.
        ConfigurationError: if another argument cannot work, or an edit can have no effect or cannot be written.
    """

    def __init__(
        self,
        cassette: str | os.PathLike[str] | Cassette,
        *,
        at: int | None,
        to: str | os.PathLike[str],
        edits: Mapping[int, Any] | None = None,
        world: World = "refuse",
        redact: Any = None,
    ) -> None:
        self._path = path = checked_path(to, "fork: to")
        checked_choice(world, WORLDS, "fork: world")
        if at is not None and (isinstance(at, bool) or not isinstance(at, int)):
            raise ConfigurationError(f"fork: at must be the id of a call, or None, got {at!r}")
        source = cassette if isinstance(cassette, Cassette) else checked_path(cassette, "fork")
        name = source.path if isinstance(source, Cassette) else str(source)
        if name and os.path.realpath(name) == os.path.realpath(path):
            raise CassetteError("is the original: give the branch a path of its own", path)
        if not isinstance(source, Cassette) and _is_growing(source):
            raise CassetteError("is being recorded; fork it when that has ended", source)
        _check_is_free(path)
        self._cassette, self._redaction = loaded(source, redaction_of(redact))
        self._http = recorded_http(self._cassette)
        self._prefix = _Prefix(self._cassette, at, edits, world, self._redaction)

    @classmethod
    def from_env(cls, *, redact: Any = None) -> Self | None:
        """The fork that ``agent-cache cassette fork`` has printed, from the environment; None if there is none there.

        ``with fork.from_env() or record(path): ...`` in a program makes it forkable. Nothing else reads the variable.

        Args:
            redact: as in `fork`.

        Raises:
            ConfigurationError: if the variable has something else in it.
            CassetteError: as `fork`.
        """
        text = os.environ.get(FORK_VARIABLE)
        if not text:
            return None
        try:
            given = msgspec.json.decode(text, type=_Given)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"{FORK_VARIABLE} must be what `agent-cache cassette fork` prints: {error}"
            ) from error
        return cls(
            given.cassette, at=given.at, to=given.to, edits=given.edits or None, world=given.world, redact=redact
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many calls will be ``answered``, how many of these were ``edited``, and how many writes ``repeated``.

        Calls inside of answered ones do not count.
        """
        return self._prefix.counts()

    def _open(self) -> tuple[Tape, Branch]:
        assert self._path is not None
        _check_is_free(self._path)
        prefix, redaction = self._prefix, self._redaction
        http = None if self._http is None else self._http.describe(redaction)
        file = _BranchLog(self._path, prefix, redaction, http)
        tape = _BranchTape(self._path, prefix, redaction, file, is_guarded=self.is_guarded, http=self._http)
        return tape, Branch(prefix.at, tape)


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """What the environment variable has."""

    cassette: str
    to: str
    at: int | None = None
    edits: dict[int, Any] = {}
    world: World = "refuse"


def _is_growing(path: Path) -> bool:
    """Whether a tape writes this file, or what will take its place."""
    if path.suffix != ".partial":
        return is_being_recorded(path)
    return path.is_file() and os.access(path, os.W_OK) and not is_idle(path)


def _check_is_free(path: os.PathLike[str]) -> None:
    if os.path.lexists(path):
        raise CassetteError("exists: a branch replaces no file. Delete it, or give another path", path)


# What is decided before the run


class _Prefix:
    """What of a recording comes before a branch leaves it, and what becomes of each of its calls.

    Attributes:
        cassette: the recording.
        at: id of the first call that runs, or None.
        edits: by index.
        states: by index.
        is_due: by index, whether the run must make it before its lane goes live.
        lanes: by index.
    """

    def __init__(
        self,
        cassette: Cassette,
        at: int | None,
        edits: Mapping[int, Any] | None,
        world: str,
        redaction: Redaction,
    ) -> None:
        self.cassette = cassette
        self.at = at
        outline = cassette.outline
        if outline.foreign and world != "as_is":
            raise CassetteError(
                "is a cassette of agentcassette, which does not say which calls are writes; it can be forked with "
                'world="as_is"',
                cassette.path,
            )
        count = len(outline)
        self.lanes = outline.lanes
        self._ids, self._index_of = outline.ids, outline.index_of()
        self._parents = outline.enclosing()
        self._places = outline.places()
        self.starts = outline.starts()
        self._cut = 2 * count if at is None else self._places[self._index(at, "at")]
        self._enclosing = frozenset() if at is None else frozenset(self._around(self._index_of(at)))
        self._writes = {index for index, call in enumerate(cassette.steps) if call.is_write}
        self.edits = self._checked_edits(edits)
        self.states = bytearray(count)
        self.is_due = bytearray(count)
        self._decide(world)
        self._check_reach_of_edits()
        for index, edit in self.edits.items():
            recorded = cassette[index]
            check_edit(recorded, edit, redaction)
        if world == "refuse":
            self._check_world()

    def counts(self) -> dict[str, int]:
        """How many calls are answered, edited and repeated."""
        states = Counter(itertools.compress(self.states, self._is_reached))
        return {"answered": states[_ANSWERED], "edited": len(self.edits), "repeated": states[_REPEATED]}

    def origin(self) -> dict[str, Any]:
        """What the header of the branch says of it."""
        return {
            "path": Path(self.cassette.path).name,
            "recorded_at": self.cassette.recorded_at,
            "at": self.at,
            "edits": sorted(self._ids[index] for index in self.edits),
        }

    def _index(self, number: int, name: str) -> int:
        index = self._index_of(number)
        if index < 0:
            ids = self._ids
            known = f"its calls have the ids {min(ids)} to {max(ids)}" if ids else "it has no calls"
            raise CassetteError(f"{name}: there is no call {number}; {known}", self.cassette.path)
        return index

    def _around(self, index: int) -> Iterator[int]:
        """The calls that enclose a call, the innermost first."""
        index = self._parents[index]
        while index >= 0:
            yield index
            index = self._parents[index]

    def _is_before(self, index: int) -> bool:
        """Whether a call had started before the first one that runs, and does not enclose it."""
        return self._places[index] < self._cut and index not in self._enclosing

    def _checked_edits(self, edits: Any) -> dict[int, Any]:
        if edits is None:
            return {}
        if not isinstance(edits, Mapping):
            raise ConfigurationError(f"fork: edits must map ids of calls to what they answer, got {edits!r}")
        found = {}
        for number, edit in edits.items():
            if isinstance(number, bool) or not isinstance(number, int):
                raise ConfigurationError(f"fork: edits must map ids of calls, which are numbers, got {number!r}")
            index = self._index(number, "edits")
            if not self._is_before(index):
                if number == self.at:
                    reason = "is the first that runs: fork at a later call to edit it"
                elif index in self._enclosing:
                    reason = f"encloses call {self.at}, so it runs"
                else:
                    reason = f"started after call {self.at}, so it is not answered from the recording"
                raise ConfigurationError(f"fork: edits: call {number} {reason}")
            found[index] = edit
        return found

    def _decide(self, world: str) -> None:
        opened = {around for index in self._writes for around in self._around(index)} if world == "sandbox" else set()
        is_reached = bytearray(len(self.states))
        for index in self.starts:  # a call starts after the one that encloses it
            parent = self._parents[index]
            is_reached[index] = parent == -1 or (
                parent >= 0 and is_reached[parent] and self.states[parent] != _ANSWERED
            )
            if self._places[index] >= self._cut:
                continue
            if index in self.edits:
                state = _ANSWERED
            elif index in self._enclosing or self._has_no_answer(index):
                state = _OPENED
            elif world == "sandbox" and index in self._writes:
                state = _REPEATED
            else:
                state = _OPENED if index in opened else _ANSWERED
            self.states[index] = state
            self.is_due[index] = is_reached[index]
        self._is_reached = is_reached

    def _has_no_answer(self, index: int) -> bool:
        """Whether the outcome of a call depends on what was made after the first call that runs now."""
        if self.at is not None and self._places[~index] < self._cut:
            return False
        outcome = self.cassette[index].outcome
        ends = {*outcome, *_inner_end(outcome)}
        if self.at is None:  # what else was left, was left by the run itself
            return "unfinished" in ends
        return not {"cancelled", "closed", "unfinished"}.isdisjoint(ends)

    def _check_reach_of_edits(self) -> None:
        for index in self.edits:
            if not self._is_reached[index]:
                around = next(one for one in self._around(index) if self.states[one] == _ANSWERED)
                name, outer = self.cassette[index].name, self.cassette[around].name
                raise ConfigurationError(
                    f"fork: edits: call {self._ids[index]}, {name}, is inside of call {self._ids[around]}, {outer}, "
                    f"which is answered as a whole, so the edit would change nothing; edit call {self._ids[around]}"
                )

    def _check_world(self) -> None:
        """Raise WorldMovedError if the original made a write that this run would make, or would not find made."""
        writes: list[RecordedCall] = []
        for index in sorted(self._writes, key=self._places.__getitem__):
            if not self._is_reached[index] or self.states[index] == _ANSWERED:
                continue
            call = self.cassette[index]
            if _has_succeeded(call) or self._places[index] < self._cut:  # the latter may have, and would run again
                writes.append(call)
        writes += _writes_in_doubt(self.cassette)
        if writes:
            has = "may have" if self.at is None else "has"
            count = "a write" if len(writes) == 1 else f"{len(writes)} writes"
            where = "when it ended" if self.at is None else f"from call {self.at} on"
            named = (f"\n    call {one.id}: {described(one.name, one.arguments)}" for one in writes[:_MAX_NAMED])
            more = f"\n    and {len(writes) - _MAX_NAMED} more" if len(writes) > _MAX_NAMED else ""
            reason = (
                f"{where}, the original made {count}, which the world {has} already:{''.join(named)}{more}\n"
                'Give it a fresh world and world="sandbox", or accept the world as it is with world="as_is".'
            )
            facts = [{"id": one.id, "name": one.name, "arguments": one.arguments} for one in writes]
            raise WorldMovedError(facts, reason, self.cassette.path)


def _writes_in_doubt(cassette: Cassette) -> list[RecordedCall]:
    """The writes of a journal that had begun when its process was killed: nothing says whether they were made.

    Each is announced by a line of its own, which a cassette does not have.
    """
    if not cassette.is_partial:
        return []
    begun = {
        one.id: RecordedCall(
            id=one.id, parent=one.parent, kind="write", name=one.name, arguments=one.arguments,
            outcome={"unfinished": True},
        )
        for one in cassette.intents
    }  # fmt: skip
    parents = {call.id: call.parent for call in begun.values()}
    ended = frozenset(cassette.outline.ids)
    return [call for number, call in sorted(begun.items()) if not is_inside(number, ended, parents)]


def _inner_end(outcome: dict[str, Any]) -> dict[str, Any]:
    """How the stream or the body of a response ended that is in an outcome; empty if it is another one."""
    for name in ("stream", "response"):
        found = outcome.get(name)
        if isinstance(found, dict) and isinstance(found.get("end"), dict):
            end: dict[str, Any] = found["end"]
            return end
    return {}


def _has_succeeded(call: RecordedCall) -> bool:
    """Whether a write has returned, or a request was not refused."""
    response = call.outcome.get("response")
    if isinstance(response, dict):
        status = response.get("status")
        return not isinstance(status, int) or status < 400
    return not {"error", "cancelled", "unfinished"} & call.outcome.keys()


# The run


class _BranchTape(Tape):
    """Records a branch: answers the prefix, and refuses what must not run yet.

    Attributes:
        seconds: how long the answered calls took when they were recorded.
        remaining_prefix: how many calls the run must still make before all of it may be live.
        has_edits: whether any answer was edited.
    """

    answers: Matcher

    def __init__(
        self, path: Path, prefix: _Prefix, redaction: Redaction, file: _BranchLog, *, is_guarded: bool, http: Any
    ) -> None:
        answers = Matcher(prefix.cassette, redaction)
        super().__init__(path, "fork", redaction, answers=answers, file=file, is_guarded=is_guarded, http=http)
        self.seconds = 0.0
        self._prefix = prefix
        self._is_due = bytearray(prefix.is_due)
        self._left = Counter(prefix.lanes[index] for index, is_due in enumerate(prefix.is_due) if is_due)
        self.remaining_prefix = self._left.total()
        self.has_edits = bool(prefix.edits)
        self._goal = "the end of the recording" if prefix.at is None else f"call {prefix.at}"
        self._lanes_of: dict[int, set[int]] = {}  # recorded lanes, by lanes of the run
        self._live_lanes: set[int] = set()

    def _look_up(self, call: ActiveCall, index: int | None, answers: Matcher) -> None:
        """Answer a call, or let it run.

        Args:
            call: the call.
            index: of the same call in the original.
            answers: the original.

        Raises:
            CassetteError: if it must not run.
        """
        state = _LIVE if index is None else self._prefix.states[index]
        if index is not None and state != _LIVE:
            if self._is_due[index]:
                self._note(call, index)
            if state == _ANSWERED:
                self.take(call, index, answers)
                return
        if self.error is not None:  # a program that has swallowed it must not go on
            raise self.error.with_traceback(None)
        if index is not None and state != _LIVE:
            self.pass_by(call, index, answers)
        elif self.remaining_prefix and call.lane not in self._live_lanes:
            self._check_live(call, index)

    def take(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        super().take(call, index, answers)
        assert call.recorded is not None
        self.seconds += call.recorded.duration_ms / 1000
        if index in self._prefix.edits:
            answers.forget_inside(index)
            edit, function = self._prefix.edits[index], call.function
            try:
                call.recorded = edited_call(call.recorded, edit, call.schema, function.chunk_schema, self.redaction)
            except ConfigurationError as error:
                raise self.broken(index, str(error)) from error

    def check_finished(self, answers: Matcher) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.remaining_prefix:
            missing = next(index for index in self._prefix.starts if self._is_due[index])
            call = answers.shown(missing)
            text = (
                f"the run ended before the fork: {self.remaining_prefix} calls that come before {self._goal} "
                f"were not made, the first is call {call.id}, {described(call.name, call.arguments)}"
            )
            raise self.diverged(missing, None, text)

    def compare(self, call: ActiveCall, outcome: dict[str, Any]) -> CassetteError | None:
        """The error for a write of the prefix that has another outcome than in the original; None if it has the same.

        Args:
            call: the call, which has ended.
            outcome: its outcome.
        """
        index = call.index
        if index is None or self._prefix.states[index] != _REPEATED:
            return None
        recorded = self._prefix.cassette[index]
        was, now = _comparable(recorded.outcome), _comparable(outcome)
        if was == now:
            return None
        shown = described(call.function.name, call.arguments)
        text = (
            f"call {recorded.id}, {shown}, was made again, and has another outcome than in the original:\n"
            f"    recorded: {_short(was)}\n    now:      {_short(now)}\n"
            "The sandbox is not as the world was when the original began."
        )
        return self.diverged(index, call_data(call), text)

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """As in `Tape`. Before the fork nothing runs.

        Raises:
            CassetteError: before the fork.
        """
        if self.remaining_prefix:
            text = f"{called.name} was called in a thread before the fork, and would have run: {NO_CONTEXT}"
            raise self.latch(CassetteError(text, self.path or ""))
        super().escaped(called)

    def answered(self, call: ActiveCall) -> None:
        """A call has ended that was answered from the original: it is new in the branch."""
        super().answered(call)
        self._new_calls += 1

    def _place(self, call: ActiveCall, arguments: Mapping[str, Any], answers: Matcher) -> int | None:
        if self.has_edits:
            call.passed = (), dict(arguments)  # classes among them may be what an edit is read as
        return super()._place(call, arguments, answers)

    def _raised(self, call: ActiveCall, error: BaseException) -> None:
        try:
            super()._raised(call, error)
        except DivergenceError:  # it is raised by the next call, and at the end
            if isinstance(error, Exception):  # else it ends the task, and must arrive
                raise

    def _write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        super()._write(call, outcome)
        error = self.compare(call, outcome)
        if error is not None and call.exchange is None:  # a client may try again; the next call is refused anyway
            raise error

    def _note(self, call: ActiveCall, index: int) -> None:
        """A call of the prefix is made, by this lane."""
        lane = self._prefix.lanes[index]
        self._is_due[index] = 0
        self._left[lane] -= 1
        self.remaining_prefix -= 1
        self._lanes_of.setdefault(call.lane, set()).add(lane)

    def _check_live(self, call: ActiveCall, index: int | None) -> None:
        lanes = self._lanes_of.get(call.lane)
        if lanes is None and index is not None:
            lanes = {self._prefix.lanes[index]}
        elif lanes is None:  # of a task that has made no recorded call: it may be any that has not begun
            begun = set[int]().union(*self._lanes_of.values())
            lanes = self._lanes_of.get(call.forked, set()) | ({*self._left} - begun)
        due = [one for one in self._prefix.starts if self._is_due[one] and self._prefix.lanes[one] in lanes]
        if not due:
            self._live_lanes.add(call.lane)
            return
        missing, left = due[0], len(due)
        first = self.answers.shown(missing)
        text = (
            f"{described(call.function.name, call.arguments)} would run before {self._goal} is reached: its task has "
            f"not made {left} recorded call{'' if left == 1 else 's'}. The first is call {first.id}, "
            f"{described(first.name, first.arguments)}"
        )
        nearest = missing if first.name == call.function.name else nearest_to(self.answers, call)
        if nearest is not None:
            text += f". Nearest is call {self.answers.shown(nearest).id}:\n"
            text += differences(self.answers.shown(nearest), call)
        text += "\nBefore the fork, the run must make the calls that were recorded. Fork it at an earlier call."
        raise self.diverged(missing, call_data(call), text)


def _comparable(outcome: dict[str, Any]) -> Any:
    """What is the same in two worlds that are: without marks, and without headers, which have times and numbers."""
    plain = decode(encode({name: value for name, value in outcome.items() if name not in ("loops", "awaited")}))
    if isinstance(plain.get("response"), dict):
        plain["response"].pop("headers", None)
    return plain


def _short(outcome: Any) -> str:
    text = encode(outcome).decode()
    return text if len(text) <= 400 else f"{text[:400]}..."


class _BranchLog(CassetteLog):
    """The file of a branch, which has nothing of the original but what was answered.

    Its tasks are in the order of the original, where only chance decides.
    """

    def __init__(self, path: Path, prefix: _Prefix, redaction: Redaction, http: dict[str, Any] | None) -> None:
        original = prefix.cassette
        like = Path(original.path) if original.path else None
        super().__init__(path, original.model, redaction, http, prefix.origin(), like)

    def keep_rest(self, answers: Matcher) -> None:
        """What the branch has not made is no part of it."""
