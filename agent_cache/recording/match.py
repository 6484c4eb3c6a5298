"""Which recorded call is which: places of calls, and the nearest call.

A call is answered by the recorded call in the same *place*: the place of the enclosing call, the digest of name and
arguments after redaction with the asker, and how many calls of that digest were made there before. The order in which
calls come does not matter, unless the replay is strict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec

from agent_cache.errors import DivergenceError, ReplayExhausted, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.call_text import described as described  # noqa: PLC0414 - errors of tapes have both
from agent_cache.recording.cassette import Cassette, redacted_identity
from agent_cache.recording.differences import changes
from agent_cache.recording.file import RecordedCall, digest_of
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.outcomes import common_length, encode_sorted
from agent_cache.recording.redaction import Redaction

ROOT_PLACE = b""  # of calls that no recorded call encloses


def place_of(enclosing: bytes, digest: bytes, occurrence: int) -> bytes:
    """The place of a call: number `occurrence`, from 0, among the calls of its digest in the enclosing place."""
    return blake2b(b"%b%b%d" % (enclosing, digest, occurrence), digest_size=12).digest()


class Matcher:
    """Index of a cassette's calls by place, and which of them have been played."""

    def __init__(self, cassette: Cassette, redaction: Redaction) -> None:
        self.cassette = cassette
        self.outline = cassette.outline
        self._redaction = redaction
        self._rules = redaction.without_hook()
        self.index_of: dict[bytes, int] = {}
        self.parents = self.outline.enclosing()
        self.children: dict[int, list[int]] = {}
        self._adopted: set[str] = set()
        self.is_covered = bytearray(len(cassette))
        self._first_unmade = 0  # in the order of ends
        self.remaining = len(cassette)
        self.is_concurrent = self.outline.is_concurrent
        places: dict[int, bytes] = {-1: ROOT_PLACE}
        counts: dict[tuple[bytes, bytes], int] = {}
        for index in self.outline.starts():  # a call starts after the one that encloses it
            parent, digest = self.parents[index], self.outline.digests[index]
            self.children.setdefault(parent, []).append(index)
            if (enclosing := places.get(parent)) is not None:
                number = counts.get((enclosing, digest), 0)
                counts[enclosing, digest] = number + 1
                places[index] = place = place_of(enclosing, digest, number)
                self.index_of[place] = index

    def cover(self, index: int, *, is_played: bool) -> None:
        """Mark a call as played, with those that it encloses, or as made again."""
        for each in (index, *self.inside(index)) if is_played and index in self.children else (index,):
            if not self.is_covered[each]:
                self.is_covered[each] = 1
                self.remaining -= 1

    def has_made_all_before(self, rank: int) -> bool:
        """Whether all calls that had ended before this position were made, or are enclosed by one that was."""
        ends, positions = self._ends, self.outline.positions
        while self._first_unmade < len(ends) and self.is_covered[ends[self._first_unmade]]:
            self._first_unmade += 1
        return self._first_unmade == len(ends) or positions[~ends[self._first_unmade]] >= rank

    def left_over(self) -> Iterator[int]:
        """Indices of the calls that were not played."""
        return (index for index, covered in enumerate(self.is_covered) if not covered)

    def inside(self, index: int) -> list[int]:
        """Indices of the calls that a call encloses, and of those that these enclose."""
        found = list(self.children.get(index, ()))
        for each in found:
            found += self.children.get(each, ())
        return found

    @cached_property
    def _ends(self) -> list[int]:
        """Indices of the calls in the order in which they ended."""
        return [~event for event in self.outline.events() if event < 0]

    @cached_property
    def tasks_of(self) -> dict[tuple[int, bytes], set[int]]:
        """The tasks that made calls of a digest in one enclosing call."""
        found: dict[tuple[int, bytes], set[int]] = {}
        for index, lane in enumerate(self.outline.lanes):
            found.setdefault((self.parents[index], self.outline.digests[index]), set()).add(lane)
        return found

    def shown(self, index: int) -> RecordedCall:
        """A call as an error may show it: without what is a secret now, and was none when it was recorded."""
        call = self.cassette.steps[index]
        arguments, key, _ = redacted_identity(call, self._rules)
        return msgspec.structs.replace(call, arguments=arguments, key=key)

    def adopt(self, function: RecordedFunction) -> None:
        """Index the calls of this function in a cassette of agentcassette.

        Their arguments have no names there, so they are bound to the signature of the function that is called now.
        """
        if function.name in self._adopted:
            return
        self._adopted.add(function.name)
        counts: dict[bytes, int] = {}
        for index in self.outline.foreign:
            call = self.cassette.steps[index]
            digest = self._foreign_digest(function, call) if call.name in function.names else None
            if digest is not None:
                occurrence = counts.get(digest, 0)
                counts[digest] = occurrence + 1
                self.index_of.setdefault(place_of(ROOT_PLACE, digest, occurrence), index)

    def _foreign_digest(self, function: RecordedFunction, call: RecordedCall) -> bytes | None:
        args, kwargs = call.arguments.get("args", []), call.arguments.get("kwargs", {})
        receives = function.parameters is not None and any(one.is_receiver for one in function.parameters.all)
        for given in ((*args,), (None, *args)) if receives else ((*args,),):
            try:
                data: Any = plain_arguments(function.recorded_arguments(function.bind(given, kwargs)))[0]
            except TypeError:
                continue
            except UncacheableArgumentsError:
                return None
            return digest_of(function.name, self._redaction.apply(data))
        return None


# The nearest recorded call, for errors

_MAX_CANDIDATES = 200
_MAX_TEXT = 400
_REQUEST = re.compile(r"[A-Z]+ https?://(?P<server>[^/]*)(?P<rest>/.*)?")
ADVICE = 'If the run has changed on purpose, record it again, or record what is new with mode="new_episodes".'
_OF_REQUESTS = "\nWhat differs in each run, as times and ids, Http(ignore_fields=) or a pattern of redact= leaves out."
_OF_FUNCTIONS = "\nWhat differs in each run, take from recording.now() and uuid4(), or leave out by cache_key= or key=."
_IN_EACH_RUN = re.compile(r"(?i)\d{4}-\d\d-\d\d|\d\d:\d\d|[\da-f]{8}-[\da-f]{4}-|\b0x[\da-f]{6}|\d{10}|/te?mp")


def call_data(call: ActiveCall) -> dict[str, Any]:
    """A call as errors have it."""
    return {"name": call.function.name, "arguments": call.arguments}


def nearest_to(matcher: Matcher, call: ActiveCall) -> int | None:
    """Index of the recorded call of the same name with the most similar arguments, preferably one that was not played.

    None if no call of that name was recorded. Of many calls, only the first ones are compared, by what is between their
    common beginning and end: requests of one agent share most of their text.
    """
    steps, function = matcher.cassette.steps, call.function
    candidates = [i for i, one in enumerate(steps) if one.name in function.names]
    if len(candidates) > _MAX_CANDIDATES:
        candidates = [i for i in candidates if not matcher.is_covered[i]] or candidates
    now = encode_sorted(call.arguments)

    def likeness(index: int) -> tuple[int, bool]:
        was = encode_sorted(steps[index].arguments)
        first = common_length(was, now)
        last = common_length(was[first:][::-1], now[first:][::-1])
        one, other = (text[first : len(text) - last] for text in (was, now))
        ends = SequenceMatcher(None, one[-_MAX_TEXT:], other[-_MAX_TEXT:], autojunk=False)
        alike = sum(block.size for block in ends.get_matching_blocks())
        return alike - max(len(one), len(other)), not matcher.is_covered[index]

    return max(candidates[:_MAX_CANDIDATES], key=likeness, default=None)


def differences(recorded: RecordedCall, call: ActiveCall) -> str:
    """Both calls, and one line for each place in which they differ."""
    shown, shown_now = described(recorded.name, recorded.arguments), described(call.function.name, call.arguments)
    lines = [] if shown == shown_now else [f"    recorded: {shown}", f"    called:   {shown_now}"]
    found = changes(recorded.arguments, call.arguments, "arguments")
    if not found and recorded.asker != call.asker:
        found = ["the same arguments of another asker: vary=, key=, the tenant or the user of a context has changed"]
    elif not found and recorded.key is None is call.key and recorded.digest != call.digest.hex():
        found = ["the same arguments, and the digest of others: the line was edited; Cassette.redact() makes it anew"]
    elif not found:
        is_inside = call.parent is not None or recorded.parent
        found = [f"the same call, {'enclosed by other calls' if is_inside else 'in another place'}"]
    return "\n".join((*lines, *(f"      {line}" for line in found)))


def missing(
    matcher: Matcher, call: ActiveCall, rule: str = ""
) -> tuple[int, str, type[DivergenceError | ReplayExhausted]]:
    """The error for a call without a recorded answer: the nearest recorded call or -1, its text and its class."""
    enclosing = ROOT_PLACE if call.parent is None else call.parent.place
    shown = described(call.function.name, call.arguments)
    last = matcher.index_of.get(place_of(enclosing, call.matched, call.occurrence - 1))
    if not rule and last is not None:
        text = f"{shown} was recorded {call.occurrence} times, and was called once more. {ADVICE}"
        return last, text, ReplayExhausted
    around = call.parent
    inside = "" if around is None else f" inside {described(around.function.name, around.arguments)}"
    until = " until the recording was killed, or its file cut" if matcher.cassette.is_partial else ""
    text = rule or f"{shown} was not recorded{inside}{until}"
    nearest = nearest_to(matcher, call)
    asked = _REQUEST.fullmatch(call.function.name)
    if nearest is None:
        start = call.function.name.removesuffix(asked["rest"] or "") if asked else "?"
        here = (f", but of {one.name}" for one in matcher.cassette if one.name.startswith(start))  # by another version
        elsewhere = _under_other_names(call, matcher.cassette) or next(here, "")
        text += f". No call of {call.function.name} was recorded{elsewhere}"
    elif not rule:
        found = matcher.shown(nearest)
        state = "played already" if matcher.is_covered[nearest] else "not played yet"
        differing = differences(found, call)
        text += f". Nearest is call {found.id}, {state}:\n{differing}"
        if asked:  # one of a router's servers, perhaps
            same = [one for one in matcher.cassette if one.arguments == call.arguments]
            text += _OF_REQUESTS + _under_other_names(call, same)
        elif _IN_EACH_RUN.search(differing):
            text += _OF_FUNCTIONS
    return -1 if nearest is None else nearest, f"{text}\n{ADVICE}", DivergenceError


def by_nobody(call: ActiveCall) -> str:
    """Why a call has no recorded answer whose asker is unknown."""
    return (
        f"the context of {call.function.name} may say who asks, in a form that cannot be compared, so no recorded call "
        "is known to be this one; give a read vary= to say what of its context counts, or the tool shared=True if "
        "nothing does"
    )


def _under_other_names(active: ActiveCall, cassette: Iterable[RecordedCall]) -> str:
    """Where the same request was recorded, or what may be the function by its name or arguments, and what to do."""
    asked = _REQUEST.fullmatch(active.function.name)
    if asked is None:
        last = re.split("[:.]", active.function.name)[-1]
        others = [one for one in dict.fromkeys(call.name for call in cassette) if re.split("[:.]", one)[-1] == last]
        others += [call.name for call in cassette if call.arguments and call.arguments == active.arguments]
        advice = "If that is the same function, renamed, moved, or of a file that was run, give it this name by name="
        return f", but of {others[0]}. {advice}" if others else ""
    new = asked["server"]
    found = [one for call in cassette if (one := _REQUEST.fullmatch(call.name)) and one["rest"] == asked["rest"]]
    if not (others := [one["server"] for one in found if one["server"] != new]):
        return ""
    old = others[0]
    lasting = dict.fromkeys((server.rpartition(":")[0] or server for server in (old, new)), "server")
    pair = {new: old}
    return (
        f". It was recorded at {old}, which is another server. If both are one, record it with http=Http(aliases="
        f"{lasting}), which replays know, or replay it by record(path, mode='none', http=Http(aliases={pair}))"
    )
