"""The order and the numbers of the lines of a finished cassette, and the beginnings that its calls share.

While a recording runs its lines are a *log*: in the order in which calls ended, numbered by the order in which they
started. Both depend on how long each call took. In a finished cassette they do not: the calls of one lane stand in
their order, and a lane stands behind the call after which it was forked (`order_of_lines`), so that the same run gives
the same lines however its tasks were interleaved. How they were interleaved is a table in the trailer, the *events*:
the index of a call where it started, and its complement ``~index`` where it ended.

A conversation is sent to its model as a whole with every turn. `PrefixWriter` writes the beginning of a list that an
earlier call has, too, as a reference to that call, and `PrefixReader` reads it back.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from agent_cache.recording.tagged import encode

__all__ = [
    "LEAST_SHARED",
    "PrefixReader",
    "PrefixWriter",
    "Prefixes",
    "events_of_log",
    "last_overlapping",
    "nested_events",
    "order_of_lines",
]


# Order


def events_of_log(ids: Sequence[int], after: Sequence[int]) -> list[int]:
    """The events of a log.

    Args:
        ids: numbers of the calls, in the order in which they ended.
        after: for each call, the number of the last call that had ended when it started; another number if none had.
    """
    index_of = {number: index for index, number in enumerate(ids)}
    starts: dict[int, list[int]] = {}
    for index in sorted(range(len(ids)), key=ids.__getitem__):
        starts.setdefault(index_of.get(after[index], -1), []).append(index)
    events = starts.get(-1, [])
    for index in range(len(ids)):
        events.append(~index)
        events += starts.get(index, ())
    return events


def nested_events(starts: Iterable[int], parents: Sequence[int]) -> Iterator[int]:
    """The events of calls that do not overlap, except with those that enclose them.

    Args:
        starts: indices of the calls in the order in which they started.
        parents: by index, the index of the call that encloses it, or a negative number.
    """
    running: list[int] = []
    for index in starts:
        while running and running[-1] != parents[index]:
            yield ~running.pop()
        yield index
        running.append(index)
    while running:
        yield ~running.pop()


def last_overlapping(parents: Sequence[int], lanes: Sequence[int], events: Sequence[int]) -> dict[int, int]:
    """By call, the last call of its lane that started before it ended, other than those that it encloses.

    Calls without one are left out. So it takes one number a call, also if all of them are in flight at once.
    """
    found: dict[int, int] = {}
    started: dict[int, list[int]] = {}  # by lane
    places: dict[int, int] = {}
    inside: dict[int, int] = {}  # how many calls of its lane each call encloses
    for event in events:
        if event >= 0:
            calls = started.setdefault(lanes[event], [])
            places[event] = len(calls)
            calls.append(event)
            for each in _enclosing(event, parents):
                if lanes[each] == lanes[event]:
                    inside[each] = inside.get(each, 0) + 1
        elif ~event in places:
            index = ~event
            calls = started[lanes[index]]
            if len(calls) - places[index] - 1 > inside.get(index, 0):
                found[index] = next(each for each in reversed(calls) if index not in _enclosing(each, parents))
    return found


def _enclosing(index: int, parents: Sequence[int]) -> Iterator[int]:
    """The calls that enclose a call."""
    while (index := parents[index]) >= 0:
        yield index


def order_of_lines(
    parents: Sequence[int],
    lanes: Sequence[int],
    forked: Sequence[int],
    events: Sequence[int],
    rank: Callable[[int], int],
) -> Sequence[int]:
    """Indices of the calls in the order in which a finished cassette has them.

    The calls of a lane keep their order. The calls of another lane that was forked from it stand behind the last call
    that it had started by then, and before its next one; several such lanes in the order of their first calls, or as
    `rank` says: which of several tasks is the first to make a call may depend on what they do before it.

    Args:
        parents: for each call, the index of the call that encloses it, or a negative number.
        lanes: for each call, the number of its lane.
        forked: for each call, the number of the lane that its lane was forked from.
        events: the start and the end of each call, in their order.
        rank: gives a number for the first call of a lane. Lanes with a lower one stand first.
    """
    starts = array("q", (event for event in events if event >= 0))
    if len(set(lanes)) < 2:
        return starts
    calls: dict[int, list[int]] = {}
    forks: dict[int, list[int]] = {}  # by the call behind which they stand
    outermost: list[int] = []
    for index in starts:
        lane = lanes[index]
        if lane not in calls:
            calls[lane] = []
            before = calls.get(forked[index]) if forked[index] != lane else None
            (forks.setdefault(before[-1], []) if before else outermost).append(lane)
        calls[lane].append(index)
    for group in (outermost, *forks.values()):
        group.sort(key=lambda lane: rank(calls[lane][0]))
    found: list[int] = []
    rest = [iter(calls[lane]) for lane in reversed(outermost)]
    while rest:
        index = next(rest[-1], -1)
        if index < 0:
            rest.pop()
            continue
        found.append(index)
        rest += [iter(calls[lane]) for lane in reversed(forks.get(index, ()))]
    places = {index: place for place, index in enumerate(found)}
    # A call stands behind the one that encloses it, wherever its lane came from.
    if any(parent >= 0 and places[parent] > places[index] for index, parent in enumerate(parents)):
        return starts
    return found


# Shared beginnings

_Pointer: TypeAlias = str
"""A place in a call, as a JSON Pointer (RFC 6901): ``/arguments/messages``."""

Prefixes: TypeAlias = dict[_Pointer, tuple[int, int]]
"""By the place of a list: the number of an earlier call, and how many first elements of its list come first here."""

LEAST_SHARED = 512
"""Bytes. A shorter beginning is written out, since it is easier to read."""
_LEAST_IN_OUTCOME = 4_096
"""Bytes. To put a beginning back takes 10 us, and results are often alike that are no conversations."""
_LEAST_ELEMENT = 32
"""Bytes on average. Lists of shorter elements, such as vectors, are not looked at: they are no conversations."""
_DEEPEST = 5
_LATEST = 8
"""Lists that a reader keeps whole, so that reading a conversation in its order looks at each turn once."""

_Object: TypeAlias = dict[str, msgspec.Raw]
_object_decoder = msgspec.json.Decoder(_Object)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


LoadPart: TypeAlias = Callable[[int], tuple[bytes, Prefixes]]


class PrefixWriter:
    """Finds the longest beginning of each list of a call that an earlier call of the same name has in the same place.

    It keeps 16 bytes for each element that was new.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}

    def share(self, number: int, name: str, part: _Pointer, data: bytes, found: Prefixes) -> bytes:
        """The same data with the beginnings of its lists left out.

        Args:
            number: the number of the call in the finished cassette.
            name: its name.
            part: where the data stand in the call.
            data: a JSON object.
            found: what was left out is added here.
        """
        return self._shared(number, name, part, data, found, _DEEPEST)

    def _shared(self, number: int, name: str, pointer: _Pointer, data: bytes, found: Prefixes, depth: int) -> bytes:
        least = LEAST_SHARED if pointer.startswith("/arguments") else _LEAST_IN_OUTCOME
        if data[:1] == b"[":
            return self._shared_list(number, name, pointer, data, found, least)
        if data[:1] != b"{" or not depth:
            return data
        inside, is_changed = _object_decoder.decode(data), False
        for key, raw in inside.items():
            value = bytes(raw)
            if len(value) >= least and value[:1] in b"[{":
                shared = self._shared(number, name, f"{pointer}/{_escaped(key)}", value, found, depth - 1)
                if shared is not value:
                    inside[key], is_changed = msgspec.Raw(shared), True
        return encode(inside) if is_changed else data

    def _shared_list(
        self, number: int, name: str, pointer: _Pointer, data: bytes, found: Prefixes, least: int
    ) -> bytes:
        elements = _list_decoder.decode(data)
        if len(data) < _LEAST_ELEMENT * len(elements):
            return data
        hashed = blake2b(encode([name, pointer]), digest_size=16)
        digests: list[bytes] = []
        for element in elements:
            hashed.update(b"%d:%b" % (len(bytes(element)), element))
            digests.append(hashed.digest())
        count = len(digests)
        while count and digests[count - 1] not in self._owners:
            count -= 1
        owner = self._owners[digests[count - 1]] if count else 0
        for digest in digests[count:]:
            self._owners[digest] = number
        if sum(len(bytes(element)) for element in elements[:count]) < least:
            return data
        found[pointer] = owner, count
        return encode(elements[count:])


class PrefixReader:
    """Puts the beginnings back that `PrefixWriter` has left out."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[int, _Pointer], list[msgspec.Raw]] = OrderedDict()

    def whole(self, number: int, pointer: _Pointer, data: bytes, prefix: tuple[int, int], load: LoadPart) -> bytes:
        """The same part of a call with the beginning of one list put back.

        Args:
            number: the number of the call.
            pointer: the place of the list.
            data: the part of the call that the list is in, as JSON.
            prefix: what was left out there.
            load: gives the same part of an earlier call, by its number, and what was left out of that call. It raises a
                `LookupError` for a call that is not there.

        Raises:
            ValueError: if the beginning is nowhere.
        """
        keys = pointer.split("/")[2:]
        before, elements = self._beginning(number, pointer, prefix, load), _list_at(data, keys)
        self._latest[number, pointer] = both = before + elements
        if len(self._latest) > _LATEST:
            self._latest.popitem(last=False)
        return _replaced(data, keys, encode(both))

    def _beginning(
        self, number: int, pointer: _Pointer, prefix: tuple[int, int] | None, load: LoadPart
    ) -> list[msgspec.Raw]:
        """The first elements of the list of an earlier call, which may refer to another one for its own beginning."""
        keys = pointer.split("/")[2:]
        owner, count = prefix or (0, 0)
        pieces: list[list[msgspec.Raw]] = []
        while count > 0:
            if owner >= number:
                raise ValueError(f"it begins as call {owner}, which does not come before it")
            if (known := self._latest.get((owner, pointer))) is not None:
                self._latest.move_to_end((owner, pointer))
                own, prefix, before = known, None, 0
            else:
                try:
                    data, prefixes = load(owner)
                except LookupError:
                    raise ValueError(f"it begins as call {owner}, which is missing") from None
                own, prefix = _list_at(data, keys), prefixes.get(pointer)
                before = 0 if prefix is None else prefix[1]
            if count > before + len(own):
                raise ValueError(f"it begins with {count} elements of call {owner}, which has {before + len(own)}")
            pieces.append(own[: max(0, count - before)])
            number, count = owner, min(count, before)
            if prefix is not None:
                owner = prefix[0]
        return [element for piece in reversed(pieces) for element in piece]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")


def _list_at(data: bytes, keys: list[str]) -> list[msgspec.Raw]:
    try:
        for key in keys:
            data = bytes(_object_decoder.decode(data)[_unescaped(key)])
        return _list_decoder.decode(data)
    except (KeyError, msgspec.DecodeError):
        raise ValueError("there is no list where its beginning was left out") from None


def _replaced(data: bytes, keys: list[str], new: bytes) -> bytes:
    if not keys:
        return new
    inside: dict[str, Any] = _object_decoder.decode(data)
    key = _unescaped(keys[0])
    inside[key] = msgspec.Raw(_replaced(bytes(inside[key]), keys[1:], new))
    return encode(inside)
