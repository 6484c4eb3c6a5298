"""What of each call of a cassette is needed to find it again: name, digest, what it was made in, what it came after."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from agent_cache.recording.format import RecordedCall

__all__ = ["CallHead", "Outline"]

Unread: TypeAlias = dict[str, msgspec.Raw]


class CallHead(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a cassette, read no further than an `Outline` needs. The rest is there, and is JSON."""

    id: int
    parent: int | None = None
    kind: str
    name: str
    arguments: Unread = {}
    digest: str = ""
    after: int = 0
    lane: int = 0
    outcome: Unread
    form: str = ""


class Outline:
    """The calls of a cassette, in its order.

    Attributes:
        ids, parents, after, lanes: as `RecordedCall` has them; -1 for no parent.
        digests: the same, as bytes.
        names: indices by name.
        foreign: indices of those from a cassette of another package, by name.
    """

    def __init__(self) -> None:
        self.ids = array("q")
        self.parents = array("q")
        self.after = array("q")
        self.lanes = array("q")
        self.digests: list[bytes] = []
        self.names: dict[str, array[int]] = {}
        self.foreign: dict[str, array[int]] = {}

    @classmethod
    def of(cls, calls: Iterable[RecordedCall]) -> Outline:
        """Of calls that are at hand.

        Raises:
            ValueError: as `add`.
        """
        outline = cls()
        for call in calls:
            outline.add(call)
        return outline

    def add(self, call: RecordedCall | CallHead) -> None:
        """Note the next call.

        Raises:
            ValueError: if its digest is none, or a number of it is out of all bounds.
        """
        index = len(self.digests)
        try:
            digest = bytes.fromhex(call.digest)
        except ValueError:
            raise ValueError("its digest is no hexadecimal number") from None
        try:
            self.ids.append(call.id)
            self.parents.append(-1 if call.parent is None else call.parent)
            self.after.append(call.after)
            self.lanes.append(call.lane)
        except OverflowError:
            raise ValueError("a number of it is out of all bounds") from None
        self.digests.append(digest)
        if call.name not in self.names:
            self.names[call.name] = array("q")
        self.names[call.name].append(index)
        if call.form:
            self.foreign.setdefault(call.name, array("q")).append(index)

    def __len__(self) -> int:
        return len(self.digests)
