"""Answers the calls of a run from a cassette, and reports where the run differs from it.

A call is answered by the recorded call in the same *place*: the place of the enclosing call, the digest of name and
arguments after redaction, and how many calls of that digest were made there before. The order in which calls come does
not matter. `Matcher` finds calls by place; `Player` hands out their outcomes and makes the errors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import Any

import msgspec

from agent_cache.errors import CassetteError, DivergenceError, ReplayExhausted
from agent_cache.recording.cassette import Cassette, redacted_identity
from agent_cache.recording.cassette_file import RecordedCall, digest_of
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.results import check_outcome, read_value
from agent_cache.values.tagged import encode_sorted, plain_arguments

__all__ = ["ROOT_PLACE", "Matcher", "Player", "described", "place_of"]

_LOG = logging.getLogger("agent_cache")

_PATIENCE = 5.0
"""Seconds that a replay may be slower than the recorded run before a call that should be cancelled gives up waiting."""
_MAX_DIVERGENCES = 1000
_ADVICE = 'If the run has changed on purpose, record it again, or record what is new with mode="new_episodes".'


class Player:
    """A recording while it is replayed.

    Attributes:
        cassette: the recording.
        cursor: how many calls were answered from it.
        divergences: where the run differs from the recording, in order: ``{"index", "expected", "actual"}``.
        error: the first of these errors; it is raised again at the end, in case something has swallowed it.
    """

    def __init__(self, cassette: Cassette, redaction: Redaction, *, strict: bool) -> None:
        self.cassette = cassette
        if cassette.is_partial:
            _LOG.warning("%s was left by a recording that was killed; calls may be missing", cassette.path)
        self.matcher = Matcher(cassette, redaction)
        self.strict = strict
        self.cursor = 0
        self.divergences: list[dict[str, Any]] = []
        self.error: CassetteError | None = None
        self._began = time.perf_counter()

    @property
    def remaining(self) -> int:
        """How many recorded calls were neither answered nor enclosed by one that was."""
        return self.matcher.remaining

    def find(self, call: ActiveCall) -> int | None:
        """Index of the recorded call in the same place."""
        if self.matcher.has_foreign:
            self.matcher.adopt(call.function)
        index = self.matcher.find(call.place)
        if index is None and self.matcher.redact_again(call.function):
            index = self.matcher.find(call.place)
        return index

    def take(self, call: ActiveCall, index: int) -> None:
        """Answer a call with the recorded one at this index.

        Raises:
            CassetteError: if the recorded call cannot be read.
            DivergenceError: in a strict replay, if another recorded call had to come first.
        """
        call.index = index
        try:
            call.recorded = self.cassette.steps[index]
            outcome = call.recorded.outcome
            if len(outcome) > 1 or "value" not in outcome:
                check_outcome(outcome)
        except CassetteError as error:  # loading a cassette does not read the outcomes
            raise self.latch(error) from error.__cause__
        except msgspec.ValidationError as error:
            reason = f"has a malformed outcome: {error}"
            raise self.latch(CassetteError(reason, self.cassette.path, index + 2)) from error
        if self.strict:
            self._check_order(call, index)
        self.matcher.cover(index)
        self.cursor += 1

    def read(self, call: ActiveCall, outcome: dict[str, Any], *, is_chunk: bool = False) -> Any:
        """A recorded value or chunk, as the annotation of the function describes it.

        Raises:
            CassetteError: if it cannot be decoded.
        """
        if "value" in outcome:
            return outcome["value"]
        schema = call.function.chunk_schema if is_chunk else call.function.schema
        line = 0 if call.index is None else call.index + 2
        try:
            return read_value(outcome, schema, self.cassette.path, line)
        except CassetteError as error:
            raise self.latch(error) from error.__cause__

    async def wait_until_cancelled(self, call: ActiveCall) -> None:
        """Wait until this task is cancelled, as it was when the call was recorded: by a timeout of the caller, for
        instance, which comes in its own time.

        The wait ends when the recorded run had come to this point, and `_PATIENCE` later. A call that had not ended
        when the recording did may wait for ever.

        Raises:
            DivergenceError: if it is not cancelled this time.
        """
        recorded = call.recorded
        assert recorded is not None
        seconds = None if "unfinished" in recorded.outcome else self.time_left(recorded)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)
        text = (
            f"{described(call.function.name, call.arguments)} was cancelled when it was recorded, so there is no "
            "answer, and now nobody has cancelled it"
        )
        index = -1 if call.index is None else call.index
        raise self._noted(
            DivergenceError(index, self._expected(index), _actual(call), f"{text}\n{_ADVICE}", self.cassette.path)
        )

    def time_left(self, recorded: RecordedCall) -> float:
        """Seconds until the recorded run was at the end of this call, and `_PATIENCE` more."""
        ended = (recorded.started_ms + recorded.duration_ms) / 1000
        return max(0.0, ended - (time.perf_counter() - self._began)) + _PATIENCE

    def miss(self, call: ActiveCall, rule: str = "") -> CassetteError:
        """The error for a call that has no recorded answer. It names the nearest recorded call.

        Args:
            call: the call.
            rule: why it may not be answered, if that is not because it was not recorded.
        """
        enclosing = ROOT_PLACE if call.parent is None else call.parent.place
        shown = described(call.function.name, call.arguments)
        if not rule and self.matcher.knows(enclosing, call.digest):
            index = self.matcher.find_last(enclosing, call.digest)
            text = f"{shown} was recorded {call.occurrence} times, and was called once more"
            return self._noted(
                ReplayExhausted(index, self._expected(index), _actual(call), f"{text}. {_ADVICE}", self.cassette.path)
            )
        inside = ""
        if call.parent is not None:
            inside = f" inside {described(call.parent.function.name, call.parent.arguments)}"
        text = rule or f"{shown} was not recorded{inside}"
        nearest = nearest_to(self.matcher, call)
        if nearest is None:
            text += f". No call of {call.function.name} was recorded"
        elif not rule:
            state = "played already" if self.matcher.is_covered(nearest) else "not played yet"
            text += f". Nearest is step {nearest}, {state}:\n{differences(self.cassette.steps[nearest], call)}"
        index = -1 if nearest is None else nearest
        return self._noted(
            DivergenceError(index, self._expected(index), _actual(call), f"{text}\n{_ADVICE}", self.cassette.path)
        )

    def check_finished(self) -> None:
        """Check the replay at its end.

        Raises:
            CassetteError: the first error, if something has swallowed it; in a strict replay also if a recorded call
                was not made.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.strict and self.matcher.remaining:
            index = next(iter(self.matcher.left_over()))
            call = self.cassette.steps[index]
            text = (
                f"{self.matcher.remaining} recorded calls were not made. The first is step {index}, "
                f"{described(call.name, call.arguments)}"
            )
            raise self._noted(DivergenceError(index, self._expected(index), None, text, self.cassette.path))

    def latch(self, error: CassetteError) -> CassetteError:
        """Keep the first error, to raise it again at the end."""
        self.error = self.error or error
        return error

    def _check_order(self, call: ActiveCall, index: int) -> None:
        late = self.matcher.late(index)
        if late is None or late == index:
            return
        missing = self.cassette.steps[late]
        text = (
            f"{described(call.function.name, call.arguments)} was called too early: step {late}, "
            f"{described(missing.name, missing.arguments)}, had ended before it was called when this was recorded"
        )
        raise self._noted(DivergenceError(late, self._expected(late), _actual(call), text, self.cassette.path))

    def _expected(self, index: int) -> dict[str, Any] | None:
        if index < 0:
            return None
        call = self.cassette.steps[index]
        return {"name": call.name, "arguments": call.arguments}

    def _noted(self, error: DivergenceError | ReplayExhausted) -> DivergenceError | ReplayExhausted:
        if len(self.divergences) < _MAX_DIVERGENCES:
            self.divergences.append({"index": error.step_index, "expected": error.expected, "actual": error.actual})
        self.latch(error)
        return error


def _actual(call: ActiveCall) -> dict[str, Any]:
    return {"name": call.function.name, "arguments": call.arguments}


# Matching

ROOT_PLACE = b""
"""The place of calls that no recorded call encloses."""


def place_of(enclosing: bytes, digest: bytes, occurrence: int) -> bytes:
    """The place of a call: number `occurrence`, from 0, among the calls of its digest in the enclosing place."""
    return blake2b(b"%b%b%d" % (enclosing, digest, occurrence), digest_size=12).digest()


class Matcher:
    """Index of a cassette's calls by place, and which of them have been played.

    It keeps about 200 bytes a call. Arguments and outcomes are read from the file when they are needed.
    """

    def __init__(self, cassette: Cassette, redaction: Redaction) -> None:
        self.cassette = cassette
        self._outline = cassette.outline
        self._redaction = redaction
        self._index_of: dict[bytes, int] = {}
        self._parents = array("q")
        self._after = array("q")
        self._children: dict[int, array[int]] = {}
        self._adopted: set[str] = set()
        self._digests = self._outline.digests
        self._redacted_again: set[str] = set()
        self._is_covered = bytearray(len(cassette))
        self._is_over = bytearray(len(cassette))
        self._lanes: dict[tuple[int, int], array[int]] = {}
        self._first_running: dict[tuple[int, int], int] = {}
        self.remaining = len(cassette)
        self.has_foreign = bool(self._outline.foreign)
        self._read_tree()
        self._read_places()

    def find(self, place: bytes) -> int | None:
        """Index of the call in this place, or None."""
        return self._index_of.get(place)

    def knows(self, enclosing: bytes, digest: bytes) -> bool:
        """Whether any call of this digest was recorded in the enclosing place."""
        return place_of(enclosing, digest, 0) in self._index_of

    def find_last(self, enclosing: bytes, digest: bytes) -> int:
        """Index of the last call of this digest in the enclosing place; -1 if there is none."""
        found, occurrence = -1, 0
        while (index := self._index_of.get(place_of(enclosing, digest, occurrence))) is not None:
            found, occurrence = index, occurrence + 1
        return found

    def cover(self, index: int) -> None:
        """Mark a call, and all that it encloses, as played or made again."""
        self.cover_alone(index)
        for child in self._children.get(index, ()):
            self.cover(child)

    def cover_alone(self, index: int) -> None:
        """Mark a call as made again, which makes the calls that it encloses again, too."""
        if not self._is_covered[index]:
            self._is_covered[index] = 1
            self.remaining -= 1

    def is_covered(self, index: int) -> bool:
        """Whether a call was played or made again."""
        return bool(self._is_covered[index])

    def end(self, index: int) -> None:
        """Mark a call as ended."""
        self._is_over[index] = 1

    def late(self, index: int) -> int | None:
        """A call of the same task and the same parent that had ended before this one started, and has not ended now.

        None if there is none. The order of calls of different tasks is up to the event loop, so it is not compared.
        """
        lane = self._parents[index], self._outline.lanes[index]
        siblings = self._lanes[lane]
        first = self._first_running.get(lane, 0)
        while first < len(siblings) and self._is_over[siblings[first]]:
            first += 1
        self._first_running[lane] = first
        if first < len(siblings) and siblings[first] < self._after[index]:
            return siblings[first]
        return None

    def left_over(self) -> Iterator[int]:
        """Indices of the calls that were not played."""
        return (index for index, covered in enumerate(self._is_covered) if not covered)

    def children(self, index: int) -> Sequence[int]:
        """Indices of the calls that a call encloses, in the order in which they ended."""
        return self._children.get(index, ())

    def parent(self, index: int) -> int:
        """Index of the call that encloses it, -1 if there is none."""
        return self._parents[index]

    def named(self, name: str) -> Sequence[int]:
        """Indices of the calls of that name."""
        return self._outline.names.get(name, ())

    def adopt(self, function: RecordedFunction) -> None:
        """Index the calls of this function in a cassette of agentcassette.

        Their arguments have no names there, so they are bound to the signature of the function that is called now.
        """
        if function.name in self._adopted:
            return
        self._adopted.add(function.name)
        counts: dict[bytes, int] = {}
        for name in function.names:
            for index in self._outline.foreign.get(name, ()):
                digest = self._foreign_digest(function, self.cassette.steps[index])
                if digest is not None:
                    occurrence = counts.get(digest, 0)
                    counts[digest] = occurrence + 1
                    self._index_of.setdefault(place_of(ROOT_PLACE, digest, occurrence), index)

    def redact_again(self, function: RecordedFunction) -> bool:
        """Index the calls of this function by the digests that they have without all that is a secret now.

        A version of this package that knew fewer secrets may have recorded them. Returns whether a digest is another.
        """
        if function.name in self._redacted_again or self.has_foreign:
            return False
        self._redacted_again.add(function.name)
        rules = self._redaction.without_hook()
        changed: dict[int, bytes] = {}
        for index in self.named(function.name):
            call = self.cassette.steps[index]
            arguments, key, digest = redacted_identity(call, rules)
            if arguments != call.arguments or key != call.key:
                changed[index] = digest
        if changed:
            self._digests = [changed.get(index, digest) for index, digest in enumerate(self._digests)]
            self._index_of.clear()
            self._read_places()
        return bool(changed)

    def _foreign_digest(self, function: RecordedFunction, call: RecordedCall) -> bytes | None:
        args, kwargs = call.arguments.get("args", []), call.arguments.get("kwargs", {})
        receives = function.parameters is not None and any(one.is_receiver for one in function.parameters.all)
        try:
            arguments = function.bind(tuple(args), kwargs)
        except TypeError:
            if not receives:
                return None
            try:
                arguments = function.bind((None, *args), kwargs)
            except TypeError:
                return None
        data: Any = plain_arguments(function.recorded_arguments(arguments))[0]
        return digest_of(function.name, self._redaction.apply(data))

    def _read_tree(self) -> None:
        outline = self._outline
        ids = {number: index for index, number in enumerate(outline.ids)}
        for index, parent in enumerate(outline.parents):
            # A call whose parent never ended, or began later than the call, cannot be reached: -2 is no call's index.
            enclosing = -1
            if parent != -1:
                enclosing = ids.get(parent, -2) if parent < outline.ids[index] else -2
            self._parents.append(enclosing)
            self._after.append(ids.get(outline.after[index], -1) + 1)
            self._children.setdefault(enclosing, array("q")).append(index)
            self._lanes.setdefault((enclosing, outline.lanes[index]), array("q")).append(index)

    def _read_places(self) -> None:
        digests = self._digests
        places: dict[int, bytes] = {-1: ROOT_PLACE}
        counts: dict[bytes, int] = {}
        # In the order of ids, which is the order of starts: a call starts after the one that encloses it. Of two calls
        # with one id the later line counts.
        index_of_id = {number: index for index, number in enumerate(self._outline.ids)}
        for number in sorted(index_of_id):
            index = index_of_id[number]
            enclosing = places.get(self._parents[index])
            if enclosing is None:
                continue
            place = place_of(enclosing, digests[index], 0)
            if place in self._index_of:
                occurrence = counts.get(place, 1)
                counts[place] = occurrence + 1
                place = place_of(enclosing, digests[index], occurrence)
            if index in self._children:
                places[index] = place
            self._index_of[place] = index


# The nearest recorded call, for errors

_MAX_CANDIDATES = 200
_MAX_TEXT = 400
_SHORT = 60
_ABSENT = object()


def nearest_to(matcher: Matcher, call: ActiveCall) -> int | None:
    """Index of the recorded call of the same name with the most equal arguments, preferably one that was not played.

    None if no call of that name was recorded.
    """
    candidates = matcher.named(call.function.name) or [
        index for name in call.function.names for index in matcher.named(name)
    ]
    if len(candidates) > _MAX_CANDIDATES:
        unplayed = [index for index in candidates if not matcher.is_covered(index)]
        candidates = (unplayed or candidates)[:_MAX_CANDIDATES]
    steps = matcher.cassette.steps
    return max(
        candidates,
        key=lambda index: (
            _similarity(steps[index].arguments, call.arguments),
            not matcher.is_covered(index),
            -index,
        ),
        default=None,
    )


def described(name: str, arguments: dict[str, Any]) -> str:
    """A call as it would be written in Python, shortened."""
    inside = ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())
    return f"{name}({inside if len(inside) <= _MAX_TEXT else inside[:_MAX_TEXT] + '...'})"


def differences(recorded: RecordedCall, call: ActiveCall) -> str:
    """Both calls, and one line for each argument that differs."""
    lines = [
        f"    recorded: {described(recorded.name, recorded.arguments)}",
        f"    called:   {described(call.function.name, call.arguments)}",
    ]
    for name in dict.fromkeys((*recorded.arguments, *call.arguments)):
        was, now = recorded.arguments.get(name, _ABSENT), call.arguments.get(name, _ABSENT)
        if was != now:
            lines.append(f"      {name}: {_short(was, _MAX_TEXT)} -> {_short(now, _MAX_TEXT)}")
    if recorded.arguments == call.arguments and recorded.key == call.key:
        lines.append(
            "      the same arguments, but enclosed by other calls"
            if call.parent is not None or recorded.parent
            else "      the same call, in another place"
        )
    return "\n".join(lines)


def _similarity(was: dict[str, Any], now: dict[str, Any]) -> float:
    names = {*was, *now}
    if not names:
        return 1.0
    total = 0.0
    for name in names:
        if name in was and name in now:
            total += 1.0 if was[name] == now[name] else 0.9 * _text_similarity(was[name], now[name])
    return total / len(names)


def _text_similarity(was: Any, now: Any) -> float:
    one, other = encode_sorted(was)[:_MAX_TEXT], encode_sorted(now)[:_MAX_TEXT]
    return SequenceMatcher(None, one, other, autojunk=False).quick_ratio()


def _short(value: Any, limit: int = _SHORT) -> str:
    if value is _ABSENT:
        return "(none)"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
