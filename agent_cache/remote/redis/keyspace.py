"""How things are called on the server: cells, registries, channels and values.

An entity appears as a keyed digest alone; roots are in clear text. All that belongs to a root is in one hash slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from redis.crc import key_slot

from agent_cache.core.tags import root_of
from agent_cache.remote.digests import lasting_digest, segment_digest
from agent_cache.remote.protocol import Request, WriteIntent

__all__ = ["SCHEMA", "CellKey", "Names", "RootNames"]

SCHEMA = 1
"""Version of keys and values. Another version's are not found."""

CellKey = bytes
"""Key of a cell on the server: ``t:{namespace:order}:S``."""

_MAX_SEGMENTS = 100_000
_MAX_ROOTS = 10_000
_MAX_TAGS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class RootNames:
    """Everything that one root has on the server. Equal by name: the table of roots is bounded, so one root may be met
    as several objects.
    """

    root: str
    slot: int
    prefix: bytes
    registry: bytes
    channel: bytes
    s: CellKey
    d: CellKey

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RootNames) and self.prefix == other.prefix

    def __hash__(self) -> int:
        return hash(self.prefix)  # of bytes: computed once

    def cell(self, name: bytes) -> CellKey:
        """The key of one of its cells."""
        return self.prefix + name

    def name(self, key: CellKey) -> bytes:
        """The short name of a cell, as scripts and messages have it."""
        return key[len(self.prefix) :]


class Names:
    """The names under one namespace. Digests are remembered, so that a message can be read backwards.

    Attributes:
        has_forgotten: whether a digest may have been met here and is not remembered any more.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.has_forgotten = False
        self._roots: dict[str, RootNames] = {}
        self._segments: dict[str, bytes] = {}
        self._texts: dict[bytes, str] = {}
        self._read_by: dict[str, dict[CellKey, RootNames]] = {}
        self._homes: dict[tuple[str, ...], RootNames] = {}
        self._values = f"v:{namespace}:".encode()

    def root(self, root: str) -> RootNames:
        """Names of a root."""
        names = self._roots.get(root)
        if names is None:
            tag = f"{self.namespace}:{root}".replace("\n", "%0A").encode("utf-8", "surrogatepass")
            prefix = b"t:{%b}:" % tag
            names = RootNames(
                root, key_slot(prefix), prefix, b"w:{%b}" % tag, b"c:{%b}" % tag, prefix + b"S", prefix + b"D"
            )
            if len(self._roots) >= _MAX_ROOTS:
                for table in (self._roots, self._homes, self._read_by):
                    table.clear()
            self._roots[root] = names
        return names

    def entity(self, root: RootNames, segment: str) -> CellKey:
        """The cell T of an entity."""
        name = self._segments.get(segment)
        if name is None:
            name = b"T" + segment_digest(segment, namespace=self.namespace).encode()
            if len(self._segments) >= _MAX_SEGMENTS:
                self._segments.clear()
                self._texts.clear()
                self._read_by.clear()  # or their segments would not come back
                self.has_forgotten = True
            self._segments[segment] = name
            self._texts[name] = segment
        return root.prefix + name

    def segment(self, name: bytes) -> str | None:
        """The segment behind the cell of an entity, if it was met here."""
        return self._texts.get(name)

    # What a read depends on and a write moves. Tags of more than two segments count as their first two.

    def read_by(self, tag: str) -> dict[CellKey, RootNames]:
        """What an answer with this tag depends on: S and T of an entity, D of a root."""
        cells = self._read_by.get(tag)
        if cells is None:
            head, *segments = tag.split(":", 2)
            root = self.root(head)
            cells = {root.s: root, self.entity(root, segments[0]): root} if segments else {root.d: root}
            if len(self._read_by) >= _MAX_TAGS:
                self._read_by.clear()
            self._read_by[tag] = cells
        return cells

    def moved_by(self, tags: Iterable[str]) -> dict[CellKey, RootNames]:
        """What a write of these tags moves: T and D, or S and D."""
        cells: dict[CellKey, RootNames] = {}
        for tag in tags:
            head, *segments = tag.split(":", 2)
            root = self.root(head)
            cells[self.entity(root, segments[0]) if segments else root.s] = root
            cells[root.d] = root
        return cells

    def own_cell(self, request: Request) -> dict[CellKey, RootNames]:
        """An entry is an entity of its own, for a write that names it by its call."""
        digest, _ = self.digest(request)
        home = self.home(request)
        return {} if digest is None else {home.cell(b"K" + digest): home}

    def armed_by(self, write: WriteIntent) -> dict[CellKey, RootNames]:
        """S and D of each root whose entities the result will name."""
        return {cell: root for late in write.late_roots for root in [self.root(late)] for cell in (root.s, root.d)}

    # Entries

    def digest(self, request: Request) -> tuple[bytes | None, bool]:
        """The digest of an entry, None if it has no identity outside of this process; and whether that stays so."""
        digest, lasts = lasting_digest(request, namespace=self.namespace, version=SCHEMA)
        return None if digest is None else digest.encode(), lasts

    def value(self, digest: bytes) -> bytes:
        """The key of a value."""
        return self._values + digest

    def claim(self, digest: bytes) -> bytes:
        """The key by which one process of a fleet claims to refresh a value."""
        return b"r:%b:%b" % (self.namespace.encode(), digest)

    def heartbeats(self, process: bytes) -> Iterator[bytes]:
        """Keys that a process may write to see whether it may write: each in another slot, the first without a tag."""
        head = self.namespace.encode() + b":hb:"
        yield head + process
        for number in range(1 << 16):
            yield b"%b{%d}:%b" % (head, number, process)

    def home(self, request: Request) -> RootNames:
        """The root whose slot holds the cell of the entry itself. The same for every process: the first by name."""
        home = self._homes.get(request.roots) if request.roots else None
        if home is None:
            home = self.root(min(request.roots or {*map(root_of, request.tags), *request.late_roots}, default=""))
            if request.roots and len(self._homes) < _MAX_ROOTS:
                self._homes[request.roots] = home
        return home
