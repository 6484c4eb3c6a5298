"""Answers the calls of a run from a cassette, and reports where the run differs from it.

A call is answered by the recorded call in the same *place*: the place of the enclosing call, the digest of name and
arguments after redaction, and how many calls of that digest were made there before. The order in which calls come does
not matter. `Matcher` finds calls by place; `Player` hands out their outcomes and makes the errors.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec

from agent_cache.errors import CassetteError, DivergenceError, ReplayExhausted, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.cassette import Cassette, redacted_identity
from agent_cache.recording.cassette_file import EARLIER, RecordedCall, digest_of, with_asker
from agent_cache.recording.differences import changes, common_length, likeness
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.lanes import Lanes, Turns, checkpoint, wait_for_cancellation
from agent_cache.recording.prices import Savings, model_calls, savings_of
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.results import check_outcome, read_value
from agent_cache.recording.tagged import encode, encode_sorted

__all__ = ["ROOT_PLACE", "Matcher", "Player", "call_data", "described", "place_of"]

_LOG = logging.getLogger("agent_cache")

_PATIENCE = 5.0
"""Seconds that a replay may be slower than the recorded run before a call that should be cancelled gives up waiting."""
_OPEN_ENDED = frozenset({"stream", "cancelled", "unfinished"})
"""Outcomes of calls that end by what their caller does."""
_MAX_DIVERGENCES = 1000
_ADVICE = 'If the run has changed on purpose, record it again, or record what is new with mode="new_episodes".'


class Player:
    """A recording while it is replayed.

    Attributes:
        cassette: the recording.
        cursor: how many calls were answered from it.
        divergences: where the run differs from the recording, in order: ``{"call_id", "expected", "actual"}``, as in
            `DivergenceError`.
        error: the first of these errors; it is raised again at the end, in case something has swallowed it.
    """

    def __init__(
        self, cassette: Cassette, redaction: Redaction, *, strict: bool, matcher: Matcher | None = None
    ) -> None:
        self.cassette = cassette
        if cassette.is_partial:
            _LOG.warning("%s was left by a recording that was killed; calls may be missing", cassette.path)
        self.matcher = Matcher(cassette, redaction) if matcher is None else matcher
        self._answered = bytearray(len(cassette))
        self.strict = strict
        self.cursor = 0
        self.divergences: list[dict[str, Any]] = []
        self.error: CassetteError | None = None
        self.lanes = Lanes()
        self._turns = Turns()
        self._order = Order(self.matcher) if strict else None
        self._began = time.perf_counter()

    @property
    def remaining(self) -> int:
        """How many recorded calls were neither answered nor enclosed by one that was."""
        return self.matcher.remaining

    @cached_property
    def askers(self) -> frozenset[tuple[str, str]]:
        """Names of calls, each with the digest of an asker."""
        return frozenset((call.name, call.asker) for call in self.cassette.steps if call.asker)

    @property
    def savings(self) -> Savings:
        """Model calls that were not made, because they, or the calls that enclose them, were answered so far.

        Their prices need `genai-prices` (``pip install "agent-cache[prices]"``).
        """
        outer, steps = self.matcher.parent, self.cassette.steps

        def is_answered(index: int) -> bool:
            while index >= 0 and not self._answered[index]:
                index = outer(index)
            return index >= 0

        chosen = filter(is_answered, self.cassette.outline.of_models)
        return savings_of(model_calls(steps, chosen, outer), self.cassette.recorded_at)

    def find(self, call: ActiveCall, *, is_redacted: bool) -> int | None:
        """Index of the recorded call in the same place.

        Args:
            call: the call, with its place.
            is_redacted: whether secrets were removed from its arguments.
        """
        if self.matcher.has_foreign:
            self.matcher.adopt(call.function)
        index = self.matcher.find(call.place)
        if index is None and self.matcher.redact_again(call, is_redacted=is_redacted):
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
            raise self.broken(index, f"has a malformed outcome: {error}") from error
        if self._order is not None and (missing := self._order.start(index, call)) is not None:
            raise self._too_early(index, missing)
        self.matcher.cover(index)
        self._answered[index] = 1
        self.cursor += 1

    def pass_by(self, call: ActiveCall, index: int) -> None:
        """Note a call that runs although it was recorded."""
        call.index = index
        self.matcher.cover_alone(index)
        if self._order is not None:
            self._order.start(index, call, is_judged=False)

    def turn(self, call: ActiveCall) -> Awaitable[None]:
        """Let other tasks run, as the recorded call did, and calls that had ended earlier be answered earlier."""
        assert call.index is not None
        assert call.recorded is not None
        if self.matcher.is_concurrent and _OPEN_ENDED.isdisjoint(call.recorded.outcome):
            rank = self.matcher.rank_of_end(call.index)
            return self._turns.take(rank, is_next=self.matcher.has_made_all_before(rank))
        return checkpoint()

    def read(self, call: ActiveCall, outcome: dict[str, Any], *, is_chunk: bool = False) -> Any:
        """A recorded value or chunk, as the annotation of the function describes it.

        Raises:
            CassetteError: if it cannot be decoded.
        """
        if "value" in outcome and "made" not in outcome:
            return outcome["value"]
        schema = call.function.chunk_schema if is_chunk else call.schema
        line = 0 if call.index is None else call.index + 2
        try:
            return read_value(outcome, schema, self.cassette.path, line)
        except CassetteError as error:
            raise self.latch(error) from error.__cause__

    async def wait_until_cancelled(self, call: ActiveCall, *, is_for_ever: bool = False) -> None:
        """Wait until this task is cancelled, as it was when the call was recorded: by a timeout of the caller, for
        instance, which comes in its own time.

        The wait ends when the recorded run had come to this point, and `_PATIENCE` later. A call that had not ended
        when the recording did may wait for ever.

        Raises:
            DivergenceError: if it is not cancelled this time.
        """
        recorded = call.recorded
        assert recorded is not None
        seconds = None if is_for_ever or "unfinished" in recorded.outcome else self.time_left(recorded)
        await wait_for_cancellation(seconds)
        text = (
            f"{described(call.function.name, call.arguments)} was cancelled when it was recorded, so there is no "
            "answer, and now nobody has cancelled it"
        )
        index = -1 if call.index is None else call.index
        raise self.diverged(index, call_data(call), f"{text}\n{_ADVICE}")

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
        if not rule and call.occurrence and self.matcher.knows(enclosing, call.matched):
            index = self.matcher.find_last(enclosing, call.matched)
            text = f"{shown} was recorded {call.occurrence} times, and was called once more"
            return self.diverged(index, call_data(call), f"{text}. {_ADVICE}", ReplayExhausted)
        inside = ""
        if call.parent is not None:
            inside = f" inside {described(call.parent.function.name, call.parent.arguments)}"
        text = rule or f"{shown} was not recorded{inside}"
        nearest = nearest_to(self.matcher, call)
        if nearest is None:
            text += f". No call of {call.function.name} was recorded{self._at_other_servers(call.function.name)}"
        elif not rule:
            state = "played already" if self.matcher.is_covered(nearest) else "not played yet"
            text += f". Nearest is call {self._id(nearest)}, {state}:\n{differences(self.matcher.shown(nearest), call)}"
        return self.diverged(-1 if nearest is None else nearest, call_data(call), f"{text}\n{_ADVICE}")

    def _at_other_servers(self, name: str) -> str:
        """Where the same request was recorded, and what to do if these servers are one; empty for other calls."""
        server = _server_in(name)
        if not server:
            return ""
        request = name.replace(f"://{server}", "://", 1)
        others = [other for known in self.cassette.outline.names if (other := _server_in(known))
                  and known.replace(f"://{other}", "://", 1) == request]  # fmt: skip
        if not others:
            return ""
        host = server.rpartition(":")[0] if server.rpartition(":")[2].isdecimal() else server
        return (
            f". It was recorded at {', '.join(others[:3])}, which is another server. If that is this one, say so when "
            f"it is recorded and when it is replayed: Http(aliases={{{server!r}: {others[0]!r}}}), or, for all ports, "
            f"Http(aliases={{{host!r}: 'NAME'}})"
        )

    def check_finished(self) -> None:
        """Check the replay at its end.

        Raises:
            CassetteError: the first error, if something has swallowed it; in a strict replay also if a recorded call
                was not made.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._order is not None and (found := self._order.first_reversal()) is not None:
            raise self._too_early(*found)
        if self.strict and self.matcher.remaining:
            index = next(iter(self.matcher.left_over()))
            call = self.matcher.shown(index)
            text = (
                f"{self.matcher.remaining} recorded calls were not made. The first is call {call.id}, "
                f"{described(call.name, call.arguments)}"
            )
            raise self.diverged(index, None, text)

    def latch(self, error: CassetteError) -> CassetteError:
        """Keep the first error, to raise it again at the end, or when the running task has ended by it."""
        self.error = self.error or error
        self.lanes.watch()
        return error

    def broken(self, index: int | None, reason: str) -> CassetteError:
        """The error for a recorded call that cannot be replayed. It is latched.

        Args:
            index: of the call.
            reason: what is wrong with it.
        """
        return self.latch(CassetteError(reason, self.cassette.path, (index or 0) + 2))

    def _too_early(self, index: int, missing: int) -> CassetteError:
        call, first = self.matcher.shown(index), self.matcher.shown(missing)
        text = (
            f"{described(call.name, call.arguments)} was called too early: call {first.id}, "
            f"{described(first.name, first.arguments)}, had ended before it was called when this was recorded"
        )
        return self.diverged(missing, self._recorded(index), text)

    def _id(self, index: int) -> int | None:
        return None if index < 0 else self.cassette.outline.ids[index]

    def _recorded(self, index: int) -> dict[str, Any] | None:
        if index < 0:
            return None
        call = self.matcher.shown(index)
        return {"name": call.name, "arguments": call.arguments}

    def diverged(
        self,
        index: int,
        actual: dict[str, Any] | None,
        text: str,
        kind: type[DivergenceError | ReplayExhausted] = DivergenceError,
    ) -> CassetteError:
        """The error for a place where the run differs from the recording. It is noted, and latched.

        Args:
            index: of the recorded call, -1 if there is none.
            actual: the call that was made there, as `call_data` gives it.
            text: what differs.
            kind: the class of the error.
        """
        expected = self._recorded(index)
        if len(self.divergences) < _MAX_DIVERGENCES:
            self.divergences.append({"call_id": self._id(index), "expected": expected, "actual": actual})
        return self.latch(kind(self._id(index), expected, actual, text, self.cassette.path))


def _server_in(name: str) -> str:
    """The host and port in the name of a request, ``POST https://host:port/path``; empty in any other name."""
    method, space, url = name.partition(" ")
    scheme, separator, rest = url.partition("://")
    return rest.partition("/")[0] if space and separator and method.isupper() and scheme in ("http", "https") else ""


def call_data(call: ActiveCall) -> dict[str, Any]:
    """A call as errors have it."""
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
        self._rules = redaction.without_hook()
        self._index_of: dict[bytes, int] = {}
        self._parents = self._outline.enclosing()
        self._until = self._outline.last_overlapping()
        self._children: dict[int, array[int]] = {}
        self._adopted: set[str] = set()
        self._digests = self._outline.digests
        self._redacted_again: set[str] = set()
        self._is_covered = bytearray(len(cassette))
        self._is_over = bytearray(len(cassette))
        self._first_unmade = 0  # in the order of ends
        self.remaining = len(cassette)
        self.has_foreign = bool(self._outline.foreign)
        self.has_earlier = any(self._outline.earlier)
        self.is_concurrent = self._outline.is_concurrent
        self._read_tree()

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

    def is_earlier(self, index: int | None) -> bool:
        """Whether version 1 of the format has recorded a call."""
        return index is not None and bool(self._outline.earlier[index])

    def is_foreign(self, index: int) -> bool:
        """Whether another package has recorded a call."""
        return bool(self.cassette.steps[index].form)

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

    def is_over(self, index: int) -> bool:
        """Whether a call has ended."""
        return bool(self._is_over[index])

    def rank_of_end(self, index: int) -> int:
        """The position of a call among all calls, by their ends."""
        return self._places[~index]

    def has_made_all_before(self, rank: int) -> bool:
        """Whether all calls that had ended before this position were made, or are enclosed by one that was."""
        ends, places = self._ends, self._places
        while self._first_unmade < len(ends) and self._is_covered[ends[self._first_unmade]]:
            self._first_unmade += 1
        return self._first_unmade == len(ends) or places[~ends[self._first_unmade]] >= rank

    def until(self, index: int) -> int:
        """Index of the last call of its lane that started before it ended, other than those that it encloses."""
        return self._until.get(index, index)

    def left_over(self) -> Iterator[int]:
        """Indices of the calls that were not played."""
        return (index for index, covered in enumerate(self._is_covered) if not covered)

    def children(self, index: int) -> Sequence[int]:
        """Indices of the calls that a call encloses, in the order in which they started."""
        return self._children.get(index, ())

    def inside(self, index: int) -> list[int]:
        """Indices of the calls that a call encloses, and of those that these enclose."""
        found = list(self.children(index))
        for each in found:
            found += self.children(each)
        return found

    def forget_inside(self, index: int) -> None:
        """Forget the calls that a call encloses: it has another outcome now, which is not theirs."""
        self._children.pop(index, None)

    def events_of(self, indices: Sequence[int]) -> list[int]:
        """The index of each of these calls where it started, and ``~index`` where it ended, in their order."""
        return sorted((event for index in indices for event in (index, ~index)), key=self._places.__getitem__)

    @cached_property
    def _places(self) -> array[int]:
        return self._outline.places()

    @cached_property
    def _ends(self) -> array[int]:
        """Indices of the calls in the order in which they ended."""
        places = self._places
        return array("q", sorted(range(len(self.cassette)), key=lambda index: places[~index]))

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

    def shown(self, index: int) -> RecordedCall:
        """A call as an error may show it: without what is a secret now, and was none when it was recorded."""
        call = self.cassette.steps[index]
        arguments, key, _ = redacted_identity(call, self._rules)
        return msgspec.structs.replace(call, arguments=arguments, key=key)

    def redact_again(self, called: ActiveCall, *, is_redacted: bool) -> bool:
        """Index the calls of a function by the digests that they have without all that is a secret now.

        A version of this package that knew fewer secrets may have recorded them. That takes 10 ms for each 100 KB of
        arguments, and is done when such a call may be wanted: the first time that a call in which a secret was, or is
        left out, is not found. Returns whether a digest is another.
        """
        name = called.function.name
        if name in self._redacted_again or self.has_foreign:
            return False
        if not is_redacted and self._redaction.replacement.encode() not in encode([called.arguments, called.key]):
            return False
        self._redacted_again.add(name)
        changed: dict[int, bytes] = {}
        for index in self.named(name):
            call = self.cassette.steps[index]
            arguments, key, digest = redacted_identity(call, self._rules)
            if arguments != call.arguments or key != call.key:
                changed[index] = with_asker(digest, call.asker)
        if changed:
            self._digests = [changed.get(index, digest) for index, digest in enumerate(self._digests)]
            self._index_of.clear()
            self._children.clear()
            self._read_tree()
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
        try:
            data: Any = plain_arguments(function.recorded_arguments(arguments))[0]
        except UncacheableArgumentsError:
            return None
        return digest_of(function.name, self._redaction.apply(data))

    def _read_tree(self) -> None:
        digests = self._digests
        places: dict[int, bytes] = {-1: ROOT_PLACE}
        counts: dict[bytes, int] = {}
        are_enclosing = frozenset(self._parents)
        for index in self._outline.starts():  # a call starts after the one that encloses it
            parent = self._parents[index]
            self._children.setdefault(parent, array("q")).append(index)
            enclosing = places.get(parent)
            if enclosing is None:
                continue
            place = place_of(enclosing, digests[index], 0)
            if place in self._index_of:
                occurrence = counts.get(place, 1)
                counts[place] = occurrence + 1
                place = place_of(enclosing, digests[index], occurrence)
            if index in are_enclosing:
                places[index] = place
            self._index_of[place] = index


# Order


class Order:
    """Judges the order of calls in a strict replay: of those of one recorded lane that are made in one lane again.

    Workers that take their work from a queue share it in another way in each run. So if one lane now makes calls of two
    recorded lanes that were forked from the same one, or two lanes that were forked from the same one make calls of one
    recorded lane, these lanes are not judged. Nor are calls that several lanes have made with equal arguments: each of
    them may get the outcome of any other.

    All this is known at the end. Before, a call is refused only in the block's own task, and only if no other task had
    made calls in the same place.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._lanes, self._forked = matcher.cassette.outline.lanes, matcher.cassette.outline.forked
        self._calls: dict[tuple[int, int], list[int]] = {}  # by parent and lane, sorted by `Matcher.until`
        self._first_running: dict[tuple[int, int], int] = {}
        self._places = array("q", bytes(8 * len(self._lanes)))  # of their starts among all
        self._ambiguous = bytearray(len(self._lanes))
        self._made_in = array("q", [_NOWHERE]) * len(self._lanes)
        self._recorded_in: dict[tuple[int, int], int] = {}
        self._made_again_in: dict[tuple[int, int], int] = {}
        self._shared: set[tuple[int, int]] = set()  # parent, and group of lanes
        self._early: list[tuple[int, int]] = []
        self._read_lanes()
        self._lanes_in = Counter(parent for parent, _ in self._calls)

    def start(self, index: int, call: ActiveCall, *, is_judged: bool = True) -> int | None:
        """Note that a recorded call is made again. Returns a call that had to be made before, if that is certain."""
        self._made_in[index] = call.lane
        parent, lane = self._matcher.parent(index), self._lanes[index]
        if self._ambiguous[index]:
            return None
        group, made_group = _group(lane, self._forked[index]), _group(call.lane, call.forked)
        if (
            self._recorded_in.setdefault((call.lane, group), lane) != lane
            or self._made_again_in.setdefault((lane, made_group), call.lane) != call.lane
        ):
            self._shared.add((parent, group))
        missing = self._late(parent, lane, index) if is_judged else None
        if missing is not None and (call.lane or self._lanes_in[parent] > 1):
            self._early.append((index, missing))
            return None
        return missing

    def first_reversal(self) -> tuple[int, int] | None:
        """The first call that its lane made before one that had ended when it was recorded, and that one."""
        for index, missing in self._early:
            shared = self._matcher.parent(index), _group(self._lanes[index], self._forked[index])
            if self._made_in[missing] == self._made_in[index] and shared not in self._shared:
                return index, missing
        return None

    def _late(self, parent: int, lane: int, index: int) -> int | None:
        """A call of the same lane that had ended before this one started, and has not ended now."""
        calls = self._calls[parent, lane]
        first = self._first_running.get((parent, lane), 0)
        while first < len(calls) and self._matcher.is_over(calls[first]):
            first += 1
        self._first_running[parent, lane] = first
        missing = calls[first] if first < len(calls) else index
        return missing if self._places[self._matcher.until(missing)] < self._places[index] else None

    def _read_lanes(self) -> None:
        digests = self._matcher.cassette.outline.digests
        lanes: dict[tuple[int, bytes], int] = {}
        for index, lane in enumerate(self._lanes):
            parent = self._matcher.parent(index)
            if lanes.setdefault((parent, digests[index]), lane) != lane:
                lanes[parent, digests[index]] = _NOWHERE
        for place, index in enumerate(self._matcher.cassette.outline.starts()):
            self._places[index] = place
            parent, lane = self._matcher.parent(index), self._lanes[index]
            calls = self._calls.setdefault((parent, lane), [])
            if lanes[parent, digests[index]] == _NOWHERE:
                self._ambiguous[index] = 1
            else:
                calls.append(index)
        for calls in self._calls.values():
            calls.sort(key=lambda index: self._places[self._matcher.until(index)])


_NOWHERE = -(1 << 62)
"""The number of no lane. Those of calls that were copied from another recording are negative."""


def _group(lane: int, forked: int) -> int:
    """The number of the lane from which this and its siblings were forked. Lane 0 has none."""
    return forked if lane else _NOWHERE


# The nearest recorded call, for errors

_MAX_CANDIDATES = 200
_MAX_COMPARED = 20_000_000
"""Bytes of arguments, which are read and compared in 0.1 s."""
_MAX_TEXT = 400
_SHORT = 60
_ABSENT = object()
_ANOTHER_ASKER = (
    "the same arguments of another asker: vary=, key=, the tenant or the user of a context is not what it was"
)


def by_nobody(call: ActiveCall) -> str:
    """Why a call has no recorded answer whose asker is unknown."""
    return (
        f"the context of {call.function.name} may say who asks, in a form that cannot be compared, so no recorded call "
        "is known to be this one; give a read vary= to say what of its context counts, or the tool shared=True if "
        "nothing does"
    )


def nearest_to(matcher: Matcher, call: ActiveCall) -> int | None:
    """Index of the recorded call of the same name with the most equal arguments, preferably one that was not played.

    None if no call of that name was recorded. Of many or long calls, only the first ones are compared.
    """
    candidates = matcher.named(call.function.name) or [
        index for name in call.function.names for index in matcher.named(name)
    ]
    if len(candidates) > _MAX_CANDIDATES:
        unplayed = [index for index in candidates if not matcher.is_covered(index)]
        candidates = (unplayed or candidates)[:_MAX_CANDIDATES]
    texts = {name: encode_sorted(value) for name, value in call.arguments.items()}
    nearest, best, left = None, (-1.0, False), _MAX_COMPARED
    for index in candidates:
        arguments = matcher.cassette.steps[index].arguments
        others = {name: encode_sorted(value) for name, value in arguments.items()}
        likenesses = {
            name: likeness(arguments.get(name), value)
            for name, value in call.arguments.items()
            if type(value) in (dict, list)  # of another type nothing is alike, whatever its text
        }
        found = _similarity(others, texts, likenesses), not matcher.is_covered(index)
        if found > best:
            nearest, best = index, found
        left -= sum(map(len, others.values()))
        if left < 0:
            break
    return nearest


def described(name: str, arguments: dict[str, Any]) -> str:
    """A call as it would be written in Python, shortened."""
    inside = ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())
    return f"{name}({inside if len(inside) <= _MAX_TEXT else inside[:_MAX_TEXT] + '...'})"


def differences(recorded: RecordedCall, call: ActiveCall) -> str:
    """Both calls, and one line for each argument that differs."""
    shown, shown_now = described(recorded.name, recorded.arguments), described(call.function.name, call.arguments)
    lines = [] if shown == shown_now else [f"    recorded: {shown}", f"    called:   {shown_now}"]
    for name in dict.fromkeys((*recorded.arguments, *call.arguments)):
        was, now = recorded.arguments.get(name, _ABSENT), call.arguments.get(name, _ABSENT)
        if was != now:
            if was is _ABSENT or now is _ABSENT or len(repr(was)) + len(repr(now)) <= _MAX_TEXT:
                lines.append(f"      {name}: {_short(was, _MAX_TEXT)} -> {_short(now, _MAX_TEXT)}")
            else:
                lines += [f"      {line}" for line in changes(was, now, name)]
            if recorded.form == EARLIER and was is not _ABSENT and b'"$opaque"' in encode_sorted(was):
                lines.append(f"      {name} was recorded by an earlier version, without its content: record it again")
    if recorded.arguments == call.arguments and recorded.key == call.key:
        if recorded.asker != call.asker:
            lines.append(f"      {_ANOTHER_ASKER}")
        else:
            lines.append(
                "      the same arguments, but enclosed by other calls"
                if call.parent is not None or recorded.parent
                else "      the same call, in another place"
            )
    return "\n".join(lines)


def _similarity(was: dict[str, bytes], now: dict[str, bytes], likenesses: dict[str, float]) -> float:
    names = {*was, *now}
    if not names:
        return 1.0
    total = 0.0
    for name in names:
        if name in was and name in now:
            if was[name] == now[name]:
                total += 1.0
            else:
                total += 0.9 * (likenesses[name] if name in likenesses else _text_similarity(was[name], now[name]))
    return total / len(names)


def _text_similarity(was: bytes, now: bytes) -> float:
    """The part of two texts that is the same: their beginning, and about as much of the rest as of what comes next."""
    begin = common_length(was, now)
    after = slice(begin, begin + _MAX_TEXT)
    ratio = SequenceMatcher(None, was[after], now[after], autojunk=False).quick_ratio()
    longest = max(len(was), len(now))
    return (begin + ratio * (longest - begin)) / longest


def _short(value: Any, limit: int = _SHORT) -> str:
    if value is _ABSENT:
        return "(none)"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
