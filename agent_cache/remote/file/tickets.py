"""What a lookup depends on, and what it has seen of it: places and tickets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from agent_cache.remote.file.cell_names import CellNames
from agent_cache.remote.file.database import HELD, IDLE, Cell, mode_of
from agent_cache.remote.file.shared_page import NO_LEASE, PageLease, SharedPage, Use, reader_of
from agent_cache.remote.protocol import Request, Ticket, Versions
from agent_cache.values.canonical import is_large, make_room

__all__ = ["FileTicket", "Idle", "Owner", "Place", "Places"]

_MAX_PLACES: Final = 4_096
_FEW_LATE: Final = 16


class Owner(Protocol):
    """The tier of a ticket."""

    names: CellNames
    use: Use
    remote_ttl: float | None


class Idle(NamedTuple):
    """What a lookup has seen when no write was running: all steps that the slots show were committed.

    Attributes:
        page: where the slots are.
        slots, states, cells: those of the place.
        own: the cells that every value of the entry depends on.
        versions, header: their versions, and the same as bytes.
    """

    page: SharedPage
    slots: tuple[int, ...]
    states: tuple[Cell, ...]
    cells: dict[int, Cell]
    own: dict[int, Cell]
    versions: Versions
    header: bytes


@dataclass(slots=True, eq=False)
class Place:
    """Where an entry is and what it depends on, whatever its value.

    Attributes:
        digest: None if it has no identity outside of this process: nothing is found, nothing is stored.
        entry: its number.
        home: see `CellNames.home`.
        depends_on: cells that every value of the entry depends on, its own among them.
        watched: S and D of the roots under which the result will name entities.
        late: cells that its value named beside those when it was last found or stored.
        cells: all of these.
        read_slots: reads their slots.
        forgotten: see `CellNames`: all that it depends on was noted since then.
        known: what a lookup has seen when no write was running, and the header that a value has then. To compare with
            it is much cheaper than to look at each cell.
        request: the latest request that was found to be for this place.
    """

    digest: bytes | None
    entry: int
    home: str
    depends_on: tuple[int, ...]
    watched: tuple[int, ...]
    forgotten: int
    late: tuple[int, ...] = ()
    cells: tuple[int, ...] = ()
    read_slots: Callable[[Any], tuple[int, ...]] = field(init=False)
    known: Idle | None = None
    request: Request | None = None

    def __post_init__(self) -> None:
        self.keep_late(())

    def keep_late(self, late: Iterable[int]) -> None:
        """Read these cells with the others from now on: it saves a second statement."""
        self.late = tuple(sorted(late))[:_FEW_LATE]
        self.cells = tuple(dict.fromkeys((*self.depends_on, *self.watched, *self.late)))
        self.read_slots = reader_of(self.cells)
        self.known = None


class Places:
    """The places of entries, those of the latest requests kept. For any thread."""

    def __init__(self, names: CellNames) -> None:
        self._names = names
        self._places: dict[tuple[object, ...], Place] = {}
        self._latest: dict[int, tuple[Request, Place]] = {}  # by request, of which there is one a key

    def of(self, request: Request) -> Place:
        """The place of the entry of a request."""
        names = self._names
        latest = self._latest.get(id(request))
        if latest is not None and latest[0] is request and latest[1].forgotten == names.forgotten:
            return latest[1]
        # With types: 1 and True are equal, and are two calls. The key holds the values of arguments, not their names.
        key, tenant = request.key, request.tenant
        known = (
            request.tool, key, type(key), tenant, type(tenant), request.session, request.tags, request.late_roots,
            request.roots, *[name for name, _ in request.arguments],
        )  # fmt: skip
        place = self._places.get(known)
        if place is not None and place.forgotten == names.forgotten:
            if place.request is request:  # not one that was made for this call alone, with the arguments of a user
                make_room(self._latest, _MAX_PLACES)
                self._latest[id(request)] = request, place
            place.request = request
            return place
        place, lasts = self._new(request)
        if lasts and not is_large(key):
            make_room(self._places, _MAX_PLACES)
            self._places[known] = place
        return place

    def _new(self, request: Request) -> tuple[Place, bool]:
        names = self._names
        forgotten = names.forgotten
        digest, lasts = names.digest(request)
        home, entry = names.home(request), 0
        depends_on: dict[int, None] = {}
        if digest is not None:
            entry = names.entry(digest)
            depends_on[entry] = None
            names.keep_call(entry, request, home)
        for tag in request.tags:
            depends_on |= dict.fromkeys(names.cells_read(tag))
        watched = {cell: None for root in request.late_roots for cell in names.cells_of_root(root)}
        place = Place(
            digest, entry, home, tuple(depends_on), tuple(cell for cell in watched if cell not in depends_on), forgotten
        )
        return place, lasts


class FileTicket:
    """What a lookup saw before the load: slots of the page, and cells of the database.

    Attributes:
        cells: the cells of its place; empty if the file could not be used.
        found: those in the header of the value that was found; None without one.
        lease: the trust in a local copy: see `Ticket`.
        versions: see `Ticket`.
        former_cost: seconds that the load of a value took that is there, and counts no more.
        claim: key and number of the claim to the load, if this process has it.
        is_idle: whether no write was running on any of it.
        is_settled: whether the cells show all steps that the slots do.
        lasts: see `Ticket`.
    """

    __slots__ = (
        "_read_slots", "_slots", "cells", "claim", "former_cost", "found", "is_idle", "is_settled", "lasts", "lease",
        "place", "request", "tier", "versions",
    )  # fmt: skip

    refreshes_early = True

    def __init__(self, tier: Owner, request: Request, place: Place) -> None:
        self.tier = tier
        self.request = request
        self.place = place
        self.cells: dict[int, Cell] = {}
        self.found: dict[int, Cell] | None = None
        self.versions: Versions | None = None
        self.former_cost: float | None = None
        self.claim: tuple[int, int] | None = None
        self.is_idle = False
        self.lasts = tier.remote_ttl if request.ttl is None else request.ttl
        self.lease = NO_LEASE

    def set_slots(
        self, page: SharedPage, read: Callable[[Any], tuple[int, ...]], slots: tuple[int, ...], *, is_settled: bool
    ) -> None:
        """Note the slots, which were read before the cells, and whether these show all steps that the slots do."""
        self._read_slots, self._slots = read, slots
        self.is_settled = is_settled
        self.lease = PageLease(page, self.tier.use, read, slots)

    def _is_untouched(self) -> bool:
        """Whether no write has begun or ended since the lookup, in any process."""
        lease = self.lease
        is_same = self.found is not None or self._read_slots(lease.page) == self._slots
        return self.is_settled and is_same and lease.is_current

    @property
    def has_claim(self) -> bool:
        """See `SharedLoads`."""
        return self.claim is not None

    def is_clean(self) -> bool:
        """See `Ticket`. The slots tell it, for all processes."""
        if self.request.strong or not (self.is_idle or self._is_idle()):
            return False
        return self._is_untouched()

    def _is_idle(self) -> bool:
        cells = self.cells if self.found is None else self.found
        return (
            bool(cells)
            and all(mode_of(cell) == IDLE for cell in cells.values())
            and not any(slot & 1 for slot in self.lease.seen)
        )

    def is_joinable(self) -> bool:
        """See `Ticket`."""
        return (
            bool(self.cells)
            and not self.request.strong
            and all(mode_of(cell) != HELD for cell in self.cells.values())
            and self._is_untouched()
        )

    def agrees_with(self, other: Ticket) -> bool:
        """See `Ticket`."""
        return (
            isinstance(other, FileTicket)
            and bool(self.cells)
            and all(mode_of(cell) == IDLE for cell in self.cells.values())
            and all(other.cells.get(cell) == seen for cell, seen in self.cells.items())
        )

    def note_tags(self, tags: Sequence[str]) -> None:
        """See `Ticket`. A local copy depends on all of these tags, and no more: on an entity that the result has named,
        in place of its whole root.

        Its slot is read only now. That it is the one from before the load is proven by that of D, which every write
        under the root changes, and by S: `is_clean` compares them with what the lookup saw.
        """
        request, place = self.request, self.place
        if not self.cells or (not place.watched and len(tags) <= len(request.tags)):
            return
        cells = {*place.depends_on}.union(*map(self.tier.names.cells_read, tags))
        if self.found is not None:
            if cells <= self.found.keys():
                return
            self.found = None
        lease, self.is_idle = self.lease, False
        lease.read = reader_of(cells)
        lease.seen = lease.read(lease.page)
