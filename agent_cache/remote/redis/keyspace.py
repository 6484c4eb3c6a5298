"""Keys on the server: names, cells, values and messages, and the state of them that this process knows.

An entity appears on the server as a keyed digest alone, roots are in clear text. All keys of a root are in one hash
slot. A value is

    fixed part | header: a line for each cell, "name identity token" | late tags, by the codec | the value, by the codec

and is valid only while every line of its header is current. No data of a server is trusted, since it holds no secret
of ours: a value that cannot be read is a miss. A message of a process about a root is
``process kind path path...``, where a path is ``*`` for the whole root, or the short name of the cell of an entity or
an entry. It is published on the channel of the root; and once more on that of its *part* (entities whose digests begin
alike), or for paths other than entities, on that of all parts. Who depends on few entities of a busy root listens to
their parts and to the channel of all parts, instead of the root's.
"""

from __future__ import annotations

import itertools
import re
import struct
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from redis.crc import key_slot

from agent_cache.core.tags import root_of
from agent_cache.remote.protocol import Listener, Request, Touched, WriteIntent
from agent_cache.remote.redis.connection import Counters, Log
from agent_cache.values.canonical import is_large, lasting_digest, make_room, segment_digest

__all__ = [
    "MAX_HEAD", "MAX_VALUE_CELLS", "SCHEMA", "BadValue", "CellKey", "Cells", "Header", "Invalidations", "Keyspace",
    "Memory", "Root", "SeenCell", "header_lines", "is_held", "is_idle", "late_tags_context", "messages", "pack_header",
    "parse_message", "read_header", "topics_of", "unpack_value", "value_context", "version_of", "whole_of",
]  # fmt: skip

SCHEMA = 1
"""Version of keys and values. Those of another version are not found."""

CellKey = bytes
"""Key of a cell on the server: ``t:{namespace:order}:S``."""

MAX_VALUE_CELLS = 1_024
"""Cells of one value, inherited ones included."""

MAX_HEAD = 262_144
"""Bytes of the longest header, late tags included: a line for a cell takes some 125."""

_MAX_SEGMENTS = 100_000
_MAX_ROOTS = 10_000
_MAX_TAGS = 10_000
_MAX_ENTRIES = 50_000
_MAX_CELLS = 50_000
_FEW = 16
_MAX_LONG_ENTRIES = 1_000
"""Entries with more than a few late cells: some 200 bytes for each of these."""
_MAX_DEPENDENTS = 16
"""Entries that are known to be made of one other. With more, messages about that one drop its whole root."""
_MESSAGE = re.compile(rb"[^ ]+ [BC](?: (?:\*|[TK][0-9a-f]+))+")
_FIXED = struct.Struct(">BddddII")
_FIXED_SIZE = _FIXED.size
_HELD, _ARMED = b"!~"


# Keys


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """The keys of one root. Equal by name: the table of roots is bounded, so that one root may have several objects.

    Attributes:
        absent: a key of the same slot that never exists. While a server hands the slot over to another one, key by key,
            it refuses every command that names a key which it does not have. So a command that names this one is
            executed only by a server that has the whole slot, and a script is not refused in its middle.
    """

    name: str
    slot: int
    prefix: bytes
    registry: bytes
    channel: bytes
    s: CellKey
    d: CellKey
    absent: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Root) and self.prefix == other.prefix

    def __hash__(self) -> int:
        return hash(self.prefix)  # of bytes: computed once

    def cell(self, cell_name: bytes) -> CellKey:
        """The key of one of its cells."""
        return self.prefix + cell_name

    def cell_name(self, key: CellKey) -> bytes:
        """The short name of a cell, as scripts and messages use it: ``S``, ``D``, ``T...``, ``K...``."""
        return key[len(self.prefix) :]


Cells = dict[CellKey, Root]


_next_number = itertools.count().__next__


class Memory:
    """What the digests of entities and entries stand for that were met in this process.

    All tables are bounded, and are changed in single steps of the interpreter, so that any thread may use them. If one
    of those that messages are understood by is full, all are left for new ones: see `Keyspace.memory`.

    Attributes:
        number: differs from that of every other memory.
        names, segments: cell names by segment, and segments by cell name.
        cells_read: see `Keyspace.cells_read`.
        calls: tool, key and home of entries, by digest.
        dependents: see `Keyspace.dependents`.
        late_cells, many_late_cells: see `Keyspace.late_cells`.
    """

    __slots__ = ("calls", "cells_read", "dependents", "late_cells", "many_late_cells", "names", "number", "segments")

    def __init__(self) -> None:
        self.number = _next_number()
        self.names: dict[str, bytes] = {}
        self.segments: dict[bytes, str] = {}
        self.cells_read: dict[str, Cells] = {}
        self.calls: dict[bytes, tuple[str, Hashable, Root]] = {}
        self.dependents: dict[bytes, frozenset[bytes]] = {}
        self.late_cells: dict[bytes, Cells] = {}
        self.many_late_cells: dict[bytes, Cells] = {}


class Keyspace:
    """The keys under one namespace, and which tags and calls the digests in them stand for.

    All tables are bounded. They are changed in single steps of the interpreter, so that any thread may use them.

    Attributes:
        memory: what was met in this process, since it was last full. A local copy is kept only if all that it depends
            on was met since; older ones may depend on what is not remembered any more. The first message that is not
            understood drops these, and all other copies with them: see `has_forgotten`.
        large_homes: roots that have the own cell of an entry whose key is too large to be remembered.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.memory = self._complete = Memory()
        self.large_homes: set[Root] = set()
        self._roots: dict[str, Root] = {}
        self._homes: dict[tuple[str, ...], Root] = {}
        self._values = f"v:{namespace}:".encode()

    @property
    def has_forgotten(self) -> bool:
        """Whether there may be local copies that depend on what is not remembered any more."""
        return self.memory is not self._complete

    def note_dropped(self, memory: Memory) -> None:
        """Note that all local copies were dropped after this memory had begun."""
        self._complete = memory

    def root(self, name: str) -> Root:
        """The keys of a root."""
        root = self._roots.get(name)
        if root is None:
            tag = f"{self.namespace}:{name}".replace("\n", "%0A").encode("utf-8", "surrogatepass")
            prefix = b"t:{%b}:" % tag
            root = Root(
                name, key_slot(prefix), prefix, b"w:{%b}" % tag, b"c:{%b}" % tag, prefix + b"S", prefix + b"D",
                b"w:{%b}:?" % tag,
            )  # fmt: skip
            if len(self._roots) >= _MAX_ROOTS:
                for table in (self._roots, self._homes, self.memory.cells_read):
                    table.clear()
            self._roots[name] = root
        return root

    def entity(self, root: Root, segment: str) -> CellKey:
        """The cell T of an entity."""
        memory = self.memory
        cell_name = memory.names.get(segment)
        if cell_name is None:
            cell_name = b"T" + segment_digest(segment, namespace=self.namespace).encode()
            if len(memory.names) >= _MAX_SEGMENTS:
                memory = self.memory = Memory()
            memory.segments[cell_name] = segment  # first: what is found among the names can be understood
            memory.names[segment] = cell_name
        return root.prefix + cell_name

    def segment(self, cell_name: bytes) -> str | None:
        """The segment of a tag behind the cell of an entity, if it was met here."""
        return self.memory.segments.get(cell_name)

    # The cells that a read depends on and a write moves. Tags of more than two segments count as their first two.

    def cells_read(self, tag: str) -> Cells:
        """Cells that a value with this tag depends on: S and T of an entity, D of a root."""
        memory = self.memory
        cells = memory.cells_read.get(tag)
        if cells is None:
            head, *segments = tag.split(":", 2)
            root = self.root(head)
            cells = {root.s: root, self.entity(root, segments[0]): root} if segments else {root.d: root}
            if len(memory.cells_read) >= _MAX_TAGS:
                memory.cells_read.clear()
            if memory is self.memory:  # else its segment may be among those of the new one
                memory.cells_read[tag] = cells
        return cells

    def cells_written(self, tags: Iterable[str]) -> Cells:
        """Cells that a write of these tags moves: T and D, or S and D."""
        cells: Cells = {}
        for tag in tags:
            head, *segments = tag.split(":", 2)
            root = self.root(head)
            cells[self.entity(root, segments[0]) if segments else root.s] = root
            cells[root.d] = root
        return cells

    def cells_armed(self, write: WriteIntent) -> Cells:
        """S and D of each root whose entities the result of the write will name."""
        return {cell: root for late in write.late_roots for root in [self.root(late)] for cell in (root.s, root.d)}

    # Entries

    def digest(self, request: Request) -> tuple[bytes | None, bool]:
        """The digest of an entry, None if it has no identity outside of this process; and whether that is final."""
        digest, lasts = lasting_digest(
            request.tool, (request.arguments, request.tenant, request.session), namespace=self.namespace, version=SCHEMA
        )
        return None if digest is None else digest.encode(), lasts

    def value(self, digest: bytes) -> bytes:
        """The key of a value."""
        return self._values + digest

    def claim(self, digest: bytes, cells: bytes = b"") -> bytes:
        """The key by which one process of a fleet claims to load a value: to refresh it, or to replace one that counts
        no more. In that case the lines of the new header are a part of it, so that nobody waits for a load that was
        overtaken by a write.
        """
        under = b":" + blake2b(cells, digest_size=8).hexdigest().encode() if cells else b""
        return b"r:%b:%b%b" % (self.namespace.encode(), digest, under)

    def heartbeats(self, process: bytes) -> Iterator[bytes]:
        """Keys for the heartbeats of a process, each in another slot; the first has no hash tag."""
        head = self.namespace.encode() + b":hb:"
        yield head + process
        for number in range(1 << 16):
            yield b"%b{%d}:%b" % (head, number, process)

    def home(self, request: Request) -> Root:
        """The root whose slot holds the cell of the entry itself: the first by name, so the same in every process."""
        home = self._homes.get(request.roots) if request.roots else None
        if home is None:
            home = self.root(min(request.roots or {*map(root_of, request.tags), *request.late_roots}, default=""))
            if request.roots and len(self._homes) < _MAX_ROOTS:
                self._homes[request.roots] = home
        return home

    def entry_cell(self, request: Request) -> Cells:
        """The cell of an entry, for a write that names it by its call; none if it has no digest."""
        digest, _ = self.digest(request)
        home = self.home(request)
        return {} if digest is None else {home.cell(b"K" + digest): home}

    # Memory of entries that were met in this process

    def late_cells(self, digest: bytes) -> Cells:
        """Cells that the value of an entry named beside those of its tags: read with the value, they save a trip."""
        memory = self.memory
        return memory.late_cells.get(digest) or memory.many_late_cells.get(digest) or {}

    def keep_late_cells(self, digest: bytes, cells: Cells) -> None:
        """Remember the late cells of an entry."""
        if self.late_cells(digest) != cells:
            memory = self.memory
            memory.late_cells.pop(digest, None)
            memory.many_late_cells.pop(digest, None)
            is_long = len(cells) > _FEW
            table = memory.many_late_cells if is_long else memory.late_cells
            make_room(table, _MAX_LONG_ENTRIES if is_long else _MAX_ENTRIES)
            table[digest] = cells

    def root_of_cell(self, key: CellKey) -> Root:
        """The root of a cell that only its key is known of.

        Raises:
            ValueError: if it is no key of a cell under this namespace.
        """
        head = b"t:{%b:" % self.namespace.encode()
        name, end, _ = key.removeprefix(head).rpartition(b"}:")
        if not key.startswith(head) or not end:
            raise ValueError("no cell of this namespace")
        return self.root(name.decode("utf-8", "surrogatepass"))

    def call(self, digest: bytes) -> tuple[str, Hashable] | None:
        """Tool and key of an entry, as this process has them."""
        found = self.memory.calls.get(digest)
        return None if found is None else found[:2]

    def keep_call(self, digest: bytes, request: Request, home: Root) -> None:
        """Remember tool and key of an entry, unless the key is too large."""
        memory = self.memory
        if digest in memory.calls:
            return
        if is_large(request.key):
            self.large_homes.add(home)
            return
        if len(memory.calls) >= _MAX_ENTRIES:
            memory = self.memory = Memory()
        memory.calls[digest] = request.tool, request.key, home

    def dependents(self, cell_name: bytes) -> frozenset[bytes] | None:
        """Digests of the entries whose values are made of this one, by its cell; None if there may be more."""
        if self.has_forgotten:
            return None
        found = self.memory.dependents.get(cell_name, frozenset())
        return found if len(found) <= _MAX_DEPENDENTS else None

    def keep_dependent(self, cell_name: bytes, digest: bytes) -> None:
        """Remember that the value of an entry is made of another one, known by its cell."""
        memory = self.memory
        found = memory.dependents.get(cell_name, frozenset())
        if digest not in found and len(found) <= _MAX_DEPENDENTS:
            if len(memory.dependents) >= _MAX_ENTRIES:
                memory = self.memory = Memory()
            memory.dependents[cell_name] = found | {digest}

    def calls_under(self, roots: Collection[Root]) -> tuple[tuple[str, Hashable], ...] | None:
        """The entries whose own cell is under one of these roots, and those made of them; None if not all are known."""
        if self.has_forgotten or not self.large_homes.isdisjoint(roots):
            return None
        found: dict[tuple[str, Hashable], None] = {}
        for digest, (tool, key, home) in list(self.memory.calls.items()):
            if home in roots:
                found[tool, key] = None
                dependents = self.dependents(b"K" + digest)
                calls = [self.call(dependent) for dependent in dependents or ()]
                if dependents is None or None in calls:
                    return None
                found |= dict.fromkeys(call for call in calls if call is not None)
        return tuple(found)

    def cell_of_call(self, tool: str, key: Hashable) -> Cells:
        """The cell of an entry that was read in this process. Slow: for calls that only another tier has named."""
        for digest, (own, call, home) in list(self.memory.calls.items()):
            if own == tool and call == key:
                return {home.cell(b"K" + digest): home}
        return {}


# Cells and values


class BadValue(Exception):
    """These bytes are no value of a tier."""


SeenCell = tuple[bytes, bytes]
"""A cell as it was read, and the replication id of its server. A cell that begins with ``!`` is held by a write and
matches nothing; one with ``~`` is armed: it matches, but its writer may die.
"""


def is_held(cell: SeenCell) -> bool:
    """Whether a running write holds it."""
    return cell[0][0] == _HELD


def is_idle(cell: SeenCell) -> bool:
    """Whether no running write holds or arms it."""
    return cell[0][0] != _HELD and cell[0][0] != _ARMED


def version_of(cell: SeenCell) -> bytes:
    """The version of a cell in a header: identity and token."""
    raw, identity = cell
    return identity + b" " + (raw if is_idle(cell) else raw[1:])


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a value on the server, without the value.

    Attributes:
        cells: version of each cell it was loaded under.
        loaded: when its load began, by the server's clock, in seconds.
        ttl, grace: seconds from there.
        cost: seconds its load took.
        late: tags that its result has named, as the codec wrote them; empty if there are none.
    """

    cells: Mapping[CellKey, bytes]
    loaded: float
    ttl: float
    grace: float
    cost: float
    late: bytes


def pack_header(header: Header) -> bytes:
    """The bytes before the payload. The payload is bound to them: see `value_context`."""
    cells = header_lines(header.cells)
    fixed = _FIXED.pack(SCHEMA, header.loaded, header.ttl, header.grace, header.cost, len(cells), len(header.late))
    return b"".join((fixed, cells, header.late))


def header_lines(cells: Mapping[CellKey, bytes]) -> bytes:
    """The lines of a header: the cells that a value was loaded under."""
    return b"\n".join([key + b" " + version for key, version in cells.items()])


def value_context(value_key: bytes, head: bytes) -> bytes:
    """The context that a codec binds a payload to: its entry and its header. So a signature covers these too."""
    return b"value %b %b" % (value_key, head)


def late_tags_context(value_key: bytes, cells: bytes) -> bytes:
    """The same for the late tags, which are a part of what the payload is bound to."""
    return b"late %b %b" % (value_key, cells)


def read_header(data: bytes, cells: bytes) -> tuple[float, float, float, int] | None:
    """When a value was loaded, its ttl, its cost and where its payload begins; None unless its header has exactly these
    lines and no late tags. `unpack_value` in fewer steps, for the most common hit.
    """
    if not data.startswith(cells, _FIXED_SIZE):
        return None
    schema, loaded, ttl, _, cost, size, late = _FIXED.unpack_from(data)
    if schema != SCHEMA or size != len(cells) or late:
        return None
    if not (0 <= loaded < 1e12 and 0 < ttl < 1e18 and 0 <= cost < 1e9):
        return None
    return loaded, ttl, cost, _FIXED_SIZE + size


def unpack_value(data: bytes) -> tuple[Header, bytes, bytes]:
    """The header, the bytes before the payload, and the payload.

    Raises:
        BadValue: if this is no value.
    """
    try:
        schema, loaded, ttl, grace, cost, size, late = _FIXED.unpack_from(data)
    except struct.error as error:
        raise BadValue("truncated") from error
    start = _FIXED.size
    end = start + size
    if schema != SCHEMA or len(data) < end + late:
        raise BadValue("of another schema, or truncated")
    if not (0 <= cost < 1e9 and 0 < ttl < 1e18 and 0 <= grace < 1e18 and 0 <= loaded < 1e12):
        raise BadValue("with numbers out of range")
    cells = {}
    for line in data[start:end].split(b"\n"):
        key, _, token = line.rpartition(b" ")
        key, _, identity = key.rpartition(b" ")  # a root may contain anything, a space too
        if not (key and identity and token):
            raise BadValue("with a damaged header")
        cells[key] = identity + b" " + token
    payload = end + late
    return Header(cells, loaded, ttl, grace, cost, data[end:payload]), data[:payload], data[payload:]


# Invalidations known to this process


LISTENED_TO: Final = 1
"""What the page of all leases of a tier holds while it has a listener. Without one no copy is trusted."""


class Invalidations:
    """When each cell was last invalidated, by this process or another one, and the listeners that are called then.

    One sequence number for the process, and for each cell the number of its latest invalidation. Bounded: a cell that
    was pruned counts as invalidated, never as valid, since anything older than the floor may have been.

    Attributes:
        now: the sequence number.
        listeners: see `Tier.subscribe`.
        page: the page of all leases of the tier: see `LISTENED_TO`.
    """

    def __init__(self, counters: Counters, log: Log) -> None:
        self.now = 0
        self.listeners: tuple[Listener, ...] = ()
        self.page = [0]
        self._counters = counters
        self._log = log
        self._floor = 0
        self._latest: dict[CellKey, int] = {}
        self.lock = threading.RLock()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with each invalidation. Returns a function that ends this."""
        own = partial(listener)  # one object for each subscription
        with self.lock:
            self._set_listeners((*self.listeners, own))

        def end() -> None:
            with self.lock:
                self._set_listeners(tuple(each for each in self.listeners if each is not own))

        return end

    def _set_listeners(self, listeners: tuple[Listener, ...]) -> None:
        self.listeners = listeners
        self.page[0] = LISTENED_TO if listeners else 0

    def add(self, cells: Iterable[CellKey]) -> None:
        """Note that these cells were written, by whatever process."""
        with self.lock:
            self.now += 1
            for cell in cells:
                self._latest[cell] = self.now
            if len(self._latest) > _MAX_CELLS:
                self._floor = self.now
                self._latest = {}

    def add_roots(self, roots: Iterable[Root]) -> None:
        """Note that anything under these roots may have been written: whatever has a tag there depends on S or D."""
        self.add([cell for root in roots for cell in (root.s, root.d)])

    def add_all(self) -> None:
        """Note that any cell may have been written."""
        with self.lock:
            self.now += 1
            self._floor = self.now
            self._latest = {}

    def is_valid(self, cells: Iterable[CellKey], since: int) -> bool:
        """Whether none of these cells was invalidated after the number `since`. Takes no lock."""
        if self.now == since:
            return True
        latest = self._latest  # before the floor: what is pruned in between is still in this one
        if self._floor > since:
            return False
        return all(latest.get(cell, 0) <= since for cell in cells)

    def after_fork(self) -> None:
        """In the child: another thread may have had the lock, and nothing that the parent noted counts."""
        self.lock = threading.RLock()
        self.add_all()

    def receive(self, cells: Iterable[CellKey], touched: Touched | None) -> None:
        """Apply a write that another process has begun or ended."""
        self._counters.invalidations += 1
        self.add(cells)
        self._notify(touched)

    def lose(self, roots: Collection[Root] | None, keyspace: Keyspace, *, is_loss: bool = True) -> None:
        """Drop local copies, because any number of messages about these roots may have been missed, or will be.

        Args:
            roots: None for all.
            is_loss: it is counted as one.
        """
        self._counters.losses += is_loss
        keys = None if roots is None else keyspace.calls_under(roots)
        if roots is None or keys is None:
            self.add_all()
            self._notify(None)
            return
        self.add_roots(roots)
        self._notify(Touched(tuple(root.name for root in roots if root.name), keys))

    def _notify(self, touched: Touched | None) -> None:
        for listener in self.listeners:
            try:
                listener(touched)
            except Exception as error:  # noqa: BLE001 - the user's function, in the thread that all depend on
                self._log.once("a listener raised", error)


# Messages between processes


def messages(process: bytes, kind: bytes, root: Root, cells: Iterable[CellKey]) -> list[bytes]:
    """The messages that a write of these cells begins (``B``) or has ended (``C``), each after its channel."""
    cells = list(cells)
    paths = [b"*"] if root.s in cells else [root.cell_name(cell) for cell in cells if cell != root.d]
    by_channel = {root.channel: paths} if paths else {}
    for path in paths:
        by_channel.setdefault(_part(root, path), []).append(path)
    return [text for channel, own in by_channel.items() for text in (channel, b" ".join([process, kind, *own]))]


def _part(root: Root, path: bytes) -> bytes:
    """The channel of one part of a root, or that of all parts.

    There are 65,536 parts: a process that depends on 100 entities hears of few others, and it subscribes to no more
    channels than it depends on entities.
    """
    return root.channel + b":" + (path[1:5] if path.startswith(b"T") else b"*")


def topics_of(cells: Cells) -> dict[bytes, Root]:
    """The channels of the messages about these cells: of a root if D is among them, else of the parts of its entities;
    of all parts if there is neither.
    """
    whole = {root for cell, root in cells.items() if cell == root.d}
    topics: dict[bytes, Root] = {}
    for cell, root in cells.items():
        if root in whole:
            topics[root.channel] = root
        elif (name := root.cell_name(cell)).startswith(b"T"):
            topics[_part(root, name)] = root
    heard = {*topics.values()}
    return topics | {_part(root, b"*"): root for root in cells.values() if root not in heard}


def whole_of(topic: bytes) -> bytes:
    """The channel of the root that a channel is a part of."""
    return topic if topic.endswith(b"}") else topic[: topic.rindex(b":")]


def parse_message(
    keyspace: Keyspace, process: bytes, root: Root, text: Any, log: Log
) -> tuple[list[CellKey], Touched | None] | None:
    """The cells that a message invalidates, and the tags and keys for listeners; None for messages of `process` itself.

    A message that cannot be parsed invalidates the whole root. One whose entities are unknown, while there may
    be copies that depend on something forgotten, has None for the listeners: everything.
    """
    if type(text) is not bytes or _MESSAGE.fullmatch(text) is None:
        log.once("a message cannot be understood, so all of its root was dropped", root.name)
        return [root.s, root.d], Touched((root.name,))
    sender, _, *paths = text.split(b" ")
    if sender == process:
        return None  # a writer drops its own copies itself
    cells: dict[CellKey, None] = {}
    tags: dict[str, None] = {}
    keys = []
    is_understood = True
    for path in paths:
        if path == b"*":
            cells |= {root.s: None, root.d: None}
            tags[root.name] = None
        elif path.startswith(b"T"):
            cells |= {root.cell(path): None, root.d: None}
            segment = keyspace.segment(path)
            if segment is not None:
                tags[f"{root.name}:{segment}"] = None
            elif keyspace.has_forgotten:
                is_understood = False
            else:  # entries that depend on the whole root are dropped, and no other one here can depend on this entity
                tags[f"{root.name}:{path.decode()}"] = None
        else:
            cells[root.cell(path)] = None
            dependents = keyspace.dependents(path)
            calls = [keyspace.call(digest) for digest in (path[1:], *(dependents or ()))]
            keys += [call for call in calls if call is not None]
            if keyspace.has_forgotten:  # if the entry itself was met again, maybe not all that was made of it
                is_understood = False
            if dependents is None or None in calls[1:] or (calls[0] is None and root in keyspace.large_homes):
                tags[root.name] = None
    return list(cells), Touched(tuple(tags), tuple(keys)) if is_understood else None
