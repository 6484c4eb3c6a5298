"""`fork`: makes a recorded run again up to a call, from the recording, and goes on live from there.

The *prefix* is what had started before that call, without the calls that enclose it. It is answered from the recording,
with edits if there are any; what the run does then is a *branch*, and has a recording of its own, which is complete.

What becomes of a recorded call is decided before the run begins:

- it is answered, if it is of the prefix. What it encloses is not made.
- it runs again, and what it encloses is decided call by call: the writes of the prefix in a sandbox, which must have
  their recorded outcomes; what encloses these, or the first live call; and what has no answer of its own, since it was
  cancelled, or its stream was left, after the first live call.
- it is live. A live call must not come before its lane has made what the prefix has of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from agent_cache.core.options import checked_choice
from agent_cache.engine.operation import Operation
from agent_cache.errors import CassetteError, ConfigurationError, WorldMovedError
from agent_cache.recording.api import Block, checked_path, loaded, recorded_http
from agent_cache.recording.call_log import CassetteLog
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.differences import ending_of
from agent_cache.recording.exceptions import error_outcome, read_error
from agent_cache.recording.file import Intent, RecordedCall, is_inside
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.match import Matcher, call_data, described, differences
from agent_cache.recording.outcomes import (
    PlainSchema,
    check_outcome,
    decode,
    encode,
    exact_json,
    redact_response,
    schema_of,
    value_outcome,
)
from agent_cache.recording.partial_file import is_being_recorded
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tape import NO_CONTEXT, Tape
from agent_cache.values.typed import Undecodable

FORK_VARIABLE: Final = "AGENT_CACHE_FORK"
"""The environment variable that `fork.from_env` reads: a JSON object of the arguments of `fork`."""

WORLDS = ("refuse", "sandbox", "as_is")
World = Literal["refuse", "sandbox", "as_is"]

_MAX_NAMED = 5
_MAX_SHOWN = 400


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


class fork(Block["Branch"]):  # noqa: N801 - used as a function, as `record`
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
            body of the response, as the recording has it. A stream of a function is not edited.
        world: what the branch finds there. ``"refuse"``: the world of the original, and it is an error if that has gone
            on with writes. ``"as_is"``: the same world, whatever it is like. Both answer writes from the recording.
            ``"sandbox"``: a fresh world, as the original found it: the writes before `at` run again, and each must have
            the outcome that it had.
        redact: the hook that `record` was given, if it was given one.

    Raises:
        CassetteNotFound: if there is no original.
        WorldMovedError: if the original has gone on with writes, and `world` is ``"refuse"``.
        CassetteError: if the original cannot be read, is being recorded, or has no such call; if `to` exists, or cannot
            be written; in the run, for an edit of another type than its function returns.
        DivergenceError: in the run, for a call that must not run yet, or after a write that has another outcome in a
            sandbox; at the end, if calls that come before `at` were not made.
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
        if at is not None and type(at) is not int:
            raise ConfigurationError(f"fork: at must be the id of a call, or None, got {at!r}")
        if edits is not None and not (isinstance(edits, Mapping) and all(type(number) is int for number in edits)):
            raise ConfigurationError(f"fork: edits must map ids of calls to what they answer, got {edits!r}")
        source = cassette if isinstance(cassette, Cassette) else checked_path(cassette, "fork: cassette")
        if not isinstance(source, Cassette) and is_being_recorded(source):
            raise CassetteError("is being recorded; fork it when that has ended", source)
        _check_is_free(path)
        original, self._redaction = loaded(source, redaction_of(redact))
        self._http = recorded_http(original)
        self._prefix = _Prefix(original, at, edits or {}, world, self._redaction)

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
            text = f"{FORK_VARIABLE} must be what `agent-cache cassette fork` prints: {error}"
            raise ConfigurationError(text) from error
        return cls(**msgspec.structs.asdict(given), redact=redact)

    @property
    def counts(self) -> dict[str, int]:
        """How many calls will be ``answered``, how many of these were ``edited``, and how many writes ``repeated``.

        Calls inside of answered ones do not count.
        """
        prefix = self._prefix
        return {"answered": len(prefix.answered), "edited": len(prefix.edits), "repeated": len(prefix.repeated)}

    def _open(self) -> Branch:
        assert self._path is not None
        _check_is_free(self._path)
        return Branch(self._path, self._prefix, self._redaction, is_guarded=self.is_guarded, http=self._http)


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """What the environment variable has."""

    cassette: str
    to: str
    at: int | None = None
    edits: dict[int, Any] = {}
    world: World = "refuse"


def _check_is_free(path: os.PathLike[str]) -> None:
    if os.path.lexists(path):
        raise CassetteError("exists: a branch replaces no file. Delete it, or give another path", path)


# What is decided before the run


class _Prefix:
    """What of a recording comes before a branch leaves it, and what becomes of each of its calls.

    Attributes:
        due: the calls before the fork that the run must make, by index: all but those inside of answered ones.
        answered, repeated: those of them that are answered, and the writes that run again; the others are made again,
            too.
        edits: by index.
    """

    def __init__(
        self, cassette: Cassette, at: int | None, edits: Mapping[int, Any], world: str, redaction: Redaction
    ) -> None:
        outline = cassette.outline
        if outline.foreign:
            text = "was recorded by agentcassette, which does not say what writes: it cannot be forked"
            raise CassetteError(text, cassette.path)
        self.cassette, self.at, self.lanes, self._index_of = cassette, at, outline.lanes, outline.index_of
        self._parents, self._positions = outline.enclosing(), outline.positions
        first = None if at is None else self._index(at, "at")
        self._cut = 2 * len(outline) if first is None else self._positions[first]
        cut_off = set[int]()  # what is inside of a call in which the process was killed, and is made again with it
        for index in outline.starts():
            if self._parents[index] in {-2, *cut_off}:
                cut_off.add(index)
                self._positions[index] = self._cut
        self.edits = {self._index(number, "edits"): edit for number, edit in edits.items()}
        writes = [index for index in outline.starts() if cassette.steps[index].is_write]
        before = {index for index in writes if self._positions[index] < self._cut}
        self.repeated = before - self.edits.keys() if world == "sandbox" else set[int]()
        opened = self.repeated | {around for index in self.repeated for around in self._around(index)}
        opened -= self.edits.keys()
        opened |= set() if first is None else set(self._around(first))
        self.due: list[int] = []
        self.answered, live = set[int](), set[int]()
        for index in outline.starts():  # a call starts after the one that encloses it
            if any(around in self.answered for around in self._around(index)):
                self.repeated.discard(index)
            elif self._positions[index] >= self._cut:
                live.add(index)
            else:
                self.due.append(index)
                if index not in opened and (index in self.edits or not self._has_no_answer(index)):
                    self.answered.add(index)
        for index, edit in self.edits.items():
            if index not in self.answered:
                text = "can have no effect: the call runs, or is inside of one that is answered as a whole"
                raise _refused(cassette[index], text)
            edited_outcome(cassette[index], edit, redaction)
        if world == "refuse":
            runs = live.union(self.due) - self.answered
            # One that had begun before the fork and has no answer may have changed the world.
            may_be_made = before | {index for index in writes if "result" in ending_of(cassette[index].outcome)}
            self._check_world([cassette[index] for index in writes if index in runs & may_be_made])

    def _index(self, number: int, name: str) -> int:
        index = self._index_of.get(number)
        if index is None:
            raise CassetteError(f"{name}: there is no call {number}", self.cassette.path)
        return index

    def _around(self, index: int) -> Iterator[int]:
        """The calls that enclose a call, the innermost first."""
        while (index := self._parents[index]) >= 0:
            yield index

    def _has_no_answer(self, index: int) -> bool:
        """Whether the outcome of a call depends on what was made after the first call that runs now."""
        if self.at is not None and self._positions[~index] < self._cut:
            return False
        outcome = self.cassette[index].outcome
        inner = outcome.get("stream") or outcome.get("response") or {}
        ends = outcome.keys() | (inner.get("end") or {}).keys()
        # Without a fork, what else was left was left by the run itself.
        return not ends.isdisjoint(("unfinished",) if self.at is None else ("cancelled", "closed", "unfinished"))

    def _check_world(self, writes: Sequence[RecordedCall | Intent]) -> None:
        """Raise WorldMovedError if the original made a write that this run would make, or would not find made."""
        if self.cassette.is_partial:  # writes of a journal that had begun when its process was killed
            intents = {one.id: one for one in self.cassette.intents}
            parents, ended = {one.id: one.parent for one in intents.values()}, frozenset(self.cassette.outline.ids)
            writes = [*writes, *(one for number, one in intents.items() if not is_inside(number, ended, parents))]
        if not writes:
            return
        where = "when it ended" if self.at is None else f"from call {self.at} on"
        count = "a write" if len(writes) == 1 else f"{len(writes)} writes"
        has = "may have" if self.at is None else "has"
        named = "".join(f"\n    call {one.id}: {described(one.name, one.arguments)}" for one in writes[:_MAX_NAMED])
        raise WorldMovedError(
            [{"id": one.id, "name": one.name, "arguments": one.arguments} for one in writes],
            f"{where}, the original made {count}, which the world {has} already:{named}\n"
            'Give it a fresh world and world="sandbox", or accept the world as it is with world="as_is".',
            self.cassette.path,
        )


# The run


class Branch(Tape):
    """A run that has left its original: answers the prefix, and refuses what must not run yet.

    Attributes:
        live_from: id, in the original, of the first call that runs; None if all of the original is answered.
    """

    answers: Matcher
    _keeps_rest = False

    def __init__(self, path: Path, prefix: _Prefix, redaction: Redaction, *, is_guarded: bool, http: Any) -> None:
        cassette = prefix.cassette
        origin: dict[str, Any] = {"path": Path(cassette.path).name, "recorded_at": cassette.recorded_at}
        origin |= {"at": prefix.at, "edits": sorted(cassette[index].id for index in prefix.edits)}
        described_http = None if http is None else http.describe(redaction)
        file = CassetteLog(path, cassette.model, redaction, described_http, origin)
        answers = Matcher(cassette, redaction)
        super().__init__(path, "fork", redaction, answers=answers, file=file, is_guarded=is_guarded, http=http)
        self.live_from = prefix.at
        self._new_calls = 1  # also what is answered is new in the branch
        self._seconds = 0.0
        self._prefix = prefix
        self._due = set(prefix.due)
        self._goal = "the end of the recording" if prefix.at is None else f"call {prefix.at}"
        self._lanes_of: dict[int, set[int]] = {}  # recorded lanes, by lanes of the run
        self._live_lanes: set[int] = set()

    @property
    def saved(self) -> Saved:
        """What was not run so far, because the recording had the answer."""
        models = self.savings
        return Saved(self.cursor, self._seconds, models.input_tokens, models.output_tokens)

    def _look_up(self, call: ActiveCall, answers: Matcher) -> None:
        index = self._place(call, answers)
        is_due = index is not None and index in self._due
        if index is not None and is_due:
            self._due.remove(index)
            self._lanes_of.setdefault(call.lane, set()).add(self._prefix.lanes[index])
        if index is not None and index in self._prefix.answered:
            self.take(call, index, answers)
            return
        if self.error is not None:  # a program that has swallowed it must not go on
            raise self.error.with_traceback(None)
        if index is not None and is_due:
            self.pass_by(call, index, answers)
            if call.tool_call is not None:  # no hit: the run must come to what it encloses
                call.tool_call.is_fresh = True
        elif call.lane not in self._live_lanes:
            self._check_live(call, index)

    def take(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """As in `Tape`, with the edit of the call."""
        super().take(call, index, answers)
        recorded = call.recorded
        assert recorded is not None
        self._seconds += recorded.duration_ms / 1000
        if index in self._prefix.edits:
            answers.children.pop(index, None)  # another outcome is not theirs
            try:
                outcome = edited_outcome(recorded, self._prefix.edits[index], self.redaction, call.schema)
            except ConfigurationError as error:
                raise self.broken(index, str(error)) from error
            source = "" if recorded.source == "blocked" else recorded.source  # what was blocked did not answer
            call.recorded = msgspec.structs.replace(recorded, outcome=outcome, source=source)

    def check_finished(self, answers: Matcher) -> None:
        """As in `Tape`; the run must have got to the fork."""
        if self.error is None and (due := self._due_in(self._prefix.lanes)):
            call = answers.shown(due[0])
            text = (
                f"the run ended before the fork: {len(due)} calls that come before {self._goal} "
                f"were not made, the first is call {call.id}, {described(call.name, call.arguments)}"
            )
            raise self.diverged(due[0], None, text)

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """As in `Tape`; before the fork nothing runs."""
        if self._due:
            text = f"{called.name} was called in a thread before the fork, and would have run: {NO_CONTEXT}"
            raise self.latch(CassetteError(text, self.path or ""))
        super().escaped(called)

    def write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        """Write a call. If one of the prefix that was made again has another outcome, the next call is refused."""
        super().write(call, outcome)
        if call.index is None or call.index not in self._prefix.repeated:
            return
        recorded = self._prefix.cassette[call.index]
        was, now = (encode(ending_of(decode(encode(one)))).decode() for one in (recorded.outcome, outcome))
        if was != now:
            text = (
                f"call {recorded.id}, {described(call.function.name, call.arguments)}, was made again, and has another "
                f"outcome than in the original:\n    recorded: {was[:_MAX_SHOWN]}\n    now:      {now[:_MAX_SHOWN]}\n"
                "The sandbox is not as the world was when the original began."
            )
            self.diverged(call.index, call_data(call), text)

    def _due_in(self, lanes: Collection[int]) -> list[int]:
        """The calls before the fork that were not made in some recorded lanes, in their order."""
        return [one for one in self._prefix.due if one in self._due and self._prefix.lanes[one] in lanes]

    def _check_live(self, call: ActiveCall, index: int | None) -> None:
        """Refuse a call that would run before its task has made what the prefix has of it."""
        lanes = self._lanes_of.get(call.lane)
        if lanes is None and index is not None:
            lanes = {self._prefix.lanes[index]}
        elif lanes is None:  # of a task that has made no recorded call: it may be any that has not begun
            begun = set[int]().union(*self._lanes_of.values())
            lanes = self._lanes_of.get(call.forked, set()) | ({*self._prefix.lanes} - begun)
        due = self._due_in(lanes)
        if not due:
            self._live_lanes.add(call.lane)
            return
        first = self.answers.shown(due[0])
        text = (
            f"{described(call.function.name, call.arguments)} would run before {self._goal} is reached: its task has "
            f"not made {len(due)} recorded call{'' if len(due) == 1 else 's'}. The first is call {first.id}, "
            f"{described(first.name, first.arguments)}"
        )
        if first.name == call.function.name:
            text += f":\n{differences(first, call)}"
        text += "\nBefore the fork, the run must make the calls that were recorded. Fork it at an earlier call."
        raise self.diverged(due[0], call_data(call), text)


# Edits


@dataclass(frozen=True, slots=True)
class Raised:
    """In the edits of a `fork`: the call raises this, whatever it did when it was recorded.

    Args:
        error: the exception. Its class is one that a recording can write: of the builtin ones, of your own program, or
            given to `register`.

    Raises:
        ConfigurationError: if it is no exception.
    """

    error: BaseException

    def __post_init__(self) -> None:
        if not isinstance(self.error, BaseException):
            raise ConfigurationError(f"Raised takes an exception, got {self.error!r}")


def edited_outcome(
    recorded: RecordedCall, edit: Any, redaction: Redaction, schema: PlainSchema | None = None
) -> dict[str, Any]:
    """The outcome that an edit stands for, as a recording would have written it."""
    was = recorded.outcome
    if "stream" in was:
        raise _refused(recorded, "is of a call that returned a stream, which cannot be edited")
    if isinstance(edit, Raised):
        outcome = error_outcome(edit.error, redaction)
        if type(read_error(outcome["error"])) is not type(edit.error):
            raise _refused(recorded, "raises an exception that cannot be written down; register the class")
    elif "response" in was:
        outcome = {"response": redact_response(_response(recorded, edit), redaction)}
    else:
        outcome = _written(recorded, edit, redaction, schema)
    if was.get("awaited"):
        outcome["awaited"] = True
    found: dict[str, Any] = decode(encode(outcome))
    return found


def _refused(recorded: RecordedCall, reason: str) -> ConfigurationError:
    return ConfigurationError(f"fork: the edit of call {recorded.id}, {recorded.name}, {reason}")


def _written(recorded: RecordedCall, edit: Any, redaction: Redaction, schema: PlainSchema | None) -> dict[str, Any]:
    """A value as a recording writes it. Plain data is read as the object that it stands for."""
    was, value = recorded.outcome, edit
    if schema is not None and was.get("value") is None and exact_json(edit) is not None:
        if "object" in was or (schema.beside and isinstance(edit, dict | list)):
            raise _refused(recorded, "is plain data, and the function returned an object: give such an object")
        try:
            value = schema.from_plain(edit)
        except Undecodable as error:
            raise _refused(recorded, f"does not fit what the function returns: {error}") from error
    written = value_outcome(value, schema or schema_of(type(edit)), redaction)
    if "unencodable" in written or (schema is not None and ("class" in written or "redacted" in written)):
        reason = written.get("reason", "it has a secret")
        raise _refused(recorded, f"is a {type(edit).__name__}, which cannot be written down ({reason})")
    if "made" in was and written.keys() == {"value"} and isinstance(edit, dict):
        written["made"] = was["made"]  # read as a response of LiteLLM, too
    return written


def _response(recorded: RecordedCall, edit: Any) -> dict[str, Any]:
    """The recorded response with another body."""
    response = recorded.outcome["response"]
    body = next((one for one in ("events", "lines", "frames", "json") if one in response), "text")
    is_fit = isinstance(edit, str) if body == "text" else exact_json(edit) is not None and not isinstance(edit, str)
    changed = {**{name: value for name, value in response.items() if name != "end"}, body: edit}
    try:
        check_outcome({"response": changed})
    except msgspec.ValidationError:
        is_fit = False
    if not is_fit or "bytes" in response:
        text = f"is a {type(edit).__name__}; give the {body} of the response, as the recording has it"
        raise _refused(recorded, text)
    return changed
