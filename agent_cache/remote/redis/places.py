"""Where an entry is and what it depends on, whatever its value: worked out once for each call and set of tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_cache.remote.protocol import Request
from agent_cache.remote.redis.keyspace import CellKey, Names, RootNames
from agent_cache.remote.redis.memo import Memo
from agent_cache.remote.redis.wire import bulk
from agent_cache.values.canonical import is_large, make_room

__all__ = ["Place", "Places"]

_MAX = 4_096
"""A place takes some 3 KB."""


@dataclass(slots=True, eq=False)
class Place:
    """One entry.

    Attributes:
        digest: None if it has no identity outside of this process: nothing is found, nothing is stored.
        value_key: key of the value; empty without a digest.
        slot: that of the value.
        depends_on: cells that an answer depends on whatever it is, the entry's own among them.
        watches: S and D of the roots under which the result will name entities.
        cells: all of these.
        roots: their roots.
        channels: what must be listened to so that copies may be kept.
        keys, packed: what a lookup reads, the value last: names, and the same ready to be sent.
        known: cells as they were last read and found idle, their server, and the header that says the same. To be
            told again is much cheaper than to be written down again.
    """

    digest: bytes | None
    value_key: bytes
    slot: int
    depends_on: dict[CellKey, RootNames]
    watches: dict[CellKey, RootNames]
    cells: dict[CellKey, RootNames]
    roots: tuple[RootNames, ...]
    channels: frozenset[bytes]
    keys: tuple[bytes, ...]
    packed: bytes
    known: tuple[list[bytes], bytes, bytes] | None = None


class Places:
    """Those that this process has asked for. Bounded; dicts alone, so that any thread may use it."""

    def __init__(self, names: Names, memo: Memo, slot: Callable[[bytes], int]) -> None:
        self._names = names
        self._memo = memo
        self._slot = slot
        self._known: dict[tuple[object, ...], Place] = {}

    def of(self, request: Request) -> Place:
        """The place of an entry."""
        # With types: 1 and True are equal, and are two calls. What the key was made of is in it, but not their names.
        key, tenant = request.key, request.tenant
        named = [name for name, _ in request.arguments]
        known = (
            request.tool, key, type(key), tenant, type(tenant), request.session, request.tags, request.late_roots,
            request.roots, *named,
        )  # fmt: skip
        place = self._known.get(known)
        if place is None:
            place, lasts = self._found(request)
            if lasts and not is_large(key):
                make_room(self._known, _MAX)
                self._known[known] = place
        return place

    def _found(self, request: Request) -> tuple[Place, bool]:
        names = self._names
        digest, lasts = names.digest(request)
        depends_on: dict[CellKey, RootNames] = {}
        value_key = b""
        if digest is not None:
            home = names.home(request)
            depends_on[home.cell(b"K" + digest)] = home
            value_key = names.value(digest)
            self._memo.keep_call(digest, request, home)
        for tag in request.tags:
            depends_on |= names.read_by(tag)
        watches: dict[CellKey, RootNames] = {}
        for late in request.late_roots:
            root = names.root(late)
            watches[root.s] = watches[root.d] = root
        cells = depends_on | watches
        roots = tuple(dict.fromkeys(cells.values()))
        channels = frozenset(root.channel for root in roots)
        keys = (*cells, value_key) if value_key else tuple(cells)
        slot = self._slot(value_key) if value_key else 0
        return Place(
            digest, value_key, slot, depends_on, watches, cells, roots, channels, keys, b"".join(map(bulk, keys))
        ), lasts
