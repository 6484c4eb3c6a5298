"""Which recorded call answers this one: the one in the same place. Every source of calls asks here."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.functions import Subject
from agent_cache.recording.identity import ROOT_PLACE, digest_of, place_of
from agent_cache.recording.plain import plain_arguments
from agent_cache.recording.redaction import Redaction

__all__ = ["Matcher"]


class Matcher:
    """Where each call of a cassette stands, and which have been played.

    About 200 bytes a call are kept; what was called with what, and what it returned, is read when it is needed.
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
        self._is_covered = bytearray(len(cassette))
        self._is_over = bytearray(len(cassette))
        self._lanes: dict[tuple[int, int], array[int]] = {}
        self._first_running: dict[tuple[int, int], int] = {}
        self.remaining = len(cassette)
        self.has_foreign = bool(self._outline.foreign)
        self._read()

    def find(self, place: bytes) -> int | None:
        """Index of the call in this place, or None."""
        return self._index_of.get(place)

    def knows(self, enclosing: bytes, digest: bytes) -> bool:
        """Whether any call of this digest was recorded there."""
        return place_of(enclosing, digest, 0) in self._index_of

    def find_last(self, enclosing: bytes, digest: bytes) -> int:
        """Index of the last call of this digest that was recorded there; -1 if there is none."""
        found, occurrence = -1, 0
        while (index := self._index_of.get(place_of(enclosing, digest, occurrence))) is not None:
            found, occurrence = index, occurrence + 1
        return found

    def cover(self, index: int) -> None:
        """It is being played, or has run again: neither it nor what it encloses is left over."""
        if not self._is_covered[index]:
            self._is_covered[index] = 1
            self.remaining -= 1
        for child in self._children.get(index, ()):
            self.cover(child)

    def cover_alone(self, index: int) -> None:
        """It runs again, and what it encloses will be called again."""
        if not self._is_covered[index]:
            self._is_covered[index] = 1
            self.remaining -= 1

    def is_covered(self, index: int) -> bool:
        """Whether it has been played."""
        return bool(self._is_covered[index])

    def end(self, index: int) -> None:
        """A call that was played has ended."""
        self._is_over[index] = 1

    def late(self, index: int) -> int | None:
        """A call of the same task beside this one that had ended before this one was started, and has not ended now;
        None if there is none. What other tasks do at the same time is up to the event loop.
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
        """Calls that were not played."""
        return (index for index, covered in enumerate(self._is_covered) if not covered)

    def children(self, index: int) -> Sequence[int]:
        """Calls that a call encloses, in the order they ended."""
        return self._children.get(index, ())

    def parent(self, index: int) -> int:
        """The call that encloses it, -1 if there is none."""
        return self._parents[index]

    def named(self, name: str) -> Sequence[int]:
        """Every call of that name."""
        return self._outline.names.get(name, ())

    def names(self) -> list[str]:
        """Names of all calls."""
        return list(self._outline.names)

    def adopt(self, subject: Subject) -> None:
        """Calls of another package's cassette know no parameter names: bind them to the signature of who is called."""
        if subject.name in self._adopted:
            return
        self._adopted.add(subject.name)
        counts: dict[bytes, int] = {}
        for name in subject.names:
            for index in self._outline.foreign.get(name, ()):
                digest = self._digest_for(subject, self.cassette.steps[index])
                if digest is not None:
                    occurrence = counts.get(digest, 0)
                    counts[digest] = occurrence + 1
                    self._index_of.setdefault(place_of(ROOT_PLACE, digest, occurrence), index)

    def _digest_for(self, subject: Subject, call: RecordedCall) -> bytes | None:
        args, kwargs = call.arguments.get("args", []), call.arguments.get("kwargs", {})
        receives = subject.parameters is not None and any(one.is_receiver for one in subject.parameters.all)
        try:
            arguments = subject.bind(tuple(args), kwargs)
        except TypeError:
            if not receives:
                return None
            try:
                arguments = subject.bind((None, *args), kwargs)
            except TypeError:
                return None
        data: Any = plain_arguments(subject.recorded(arguments))[0]
        return digest_of(subject.name, self._redaction.apply(data))

    def _read(self) -> None:
        outline = self._outline
        ids = {number: index for index, number in enumerate(outline.ids)}
        for index, parent in enumerate(outline.parents):
            # What was enclosed by a call that never ended, or by one that began later, is not to be reached: -2 is
            # nobody's index.
            place = -1
            if parent != -1:
                place = ids.get(parent, -2) if parent < outline.ids[index] else -2
            self._parents.append(place)
            self._after.append(ids.get(outline.after[index], -1) + 1)
            self._children.setdefault(place, array("q")).append(index)
            self._lanes.setdefault((place, outline.lanes[index]), array("q")).append(index)
        places: dict[int, bytes] = {}
        counts: dict[bytes, int] = {}
        for number in sorted(ids):  # a call starts after what encloses it
            index = ids[number]
            parent = self._parents[index]
            enclosing = ROOT_PLACE if parent == -1 else places.get(parent)
            if enclosing is None:
                continue
            own = place_of(enclosing, outline.digests[index], 0)
            if own in self._index_of:
                occurrence = counts.get(own, 1)
                counts[own] = occurrence + 1
                own = place_of(enclosing, outline.digests[index], occurrence)
            if index in self._children:
                places[index] = own
            self._index_of[own] = index
