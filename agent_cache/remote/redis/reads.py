"""Lookups and stores.

A lookup reads a value and the cells it depends on in one batch; the value is a hit only if every cell in its header
still has the version it was loaded under. A store writes a value under the versions that the lookup before its load has
seen, so that a value overtaken by a write is invalid when it arrives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from agent_cache.clock import CLOCK
from agent_cache.core.lease import UNTRUSTED, Lease
from agent_cache.core.options import refresh_window
from agent_cache.core.tags import root_of
from agent_cache.remote.codecs import Undecodable, Unencodable
from agent_cache.remote.protocol import Found, LoaderWait, Request, Ticket, Versions
from agent_cache.remote.redis.connection import Moving, Unreachable, boottime, bulk
from agent_cache.remote.redis.deployments import Options
from agent_cache.remote.redis.keyspace import (
    MAX_HEAD,
    MAX_VALUE_CELLS,
    BadValue,
    CellKey,
    Cells,
    Header,
    Invalidations,
    Keyspace,
    Root,
    SeenCell,
    header_lines,
    is_held,
    is_idle,
    late_tags_context,
    pack_header,
    read_header,
    topics_of,
    unpack_value,
    value_context,
    version_of,
)
from agent_cache.remote.redis.scripts import CLAIM, MINT, RELEASE, RENEW_CLAIM
from agent_cache.remote.redis.subscriber import Subscriber, Trust
from agent_cache.remote.redis.transport import Client, Fetched, Transport
from agent_cache.remote.redis.writes import PendingInvalidations
from agent_cache.values.canonical import is_large, make_room

__all__ = ["Place", "Reader", "RedisTicket"]

_MAX_LATE = 256
"""Entities that one result may name before it depends on their whole root instead."""
_MAX_CLAIMS = 50_000
_SHORTEST_SHARED = 0.002
"""Seconds. To wait for a shorter load of another process takes longer than the load."""
_SHORTEST_PAUSE = 0.005
_MAX_PLACES = 4_096
"""A place takes some 3 KB."""


@dataclass(slots=True, eq=False)
class Place:
    """Where an entry is and what it depends on, whatever its value.

    Attributes:
        digest: None if it has no identity outside of this process: nothing is found, nothing is stored.
        value_key: key of the value; empty without a digest.
        slot: that of the value.
        depends_on: cells that every value of the entry depends on, the entry's own among them.
        watched: S and D of the roots under which the result will name entities.
        cells: all of these.
        roots: their roots.
        topics: channels that a local copy depends on, with their roots.
        channels: the same channels.
        keys, packed: keys that a lookup reads, the value last; and the same ready to be sent.
        memory: number of the memory in which all that it depends on was noted.
        known: cells as they were last read and found idle, the identity of their server, and the lines of a header with
            these, and their versions. To compare them is much cheaper than to write them again.
        has_late: a value may name more cells than these.
        trust: that in the copies that depend on its channels, as it was last seen.
        request: the latest request that was found to be for this place.
    """

    digest: bytes | None
    value_key: bytes
    slot: int
    depends_on: Cells
    watched: Cells
    cells: Cells
    roots: tuple[Root, ...]
    topics: dict[bytes, Root]
    channels: frozenset[bytes]
    keys: tuple[bytes, ...]
    packed: bytes
    memory: int
    known: tuple[list[bytes], bytes, bytes, Versions] | None = None
    has_late: bool = False
    trust: ref[Trust] | None = None
    request: Request | None = None


class RedisTicket:
    """The cells of an entry as a lookup has seen them, before the load.

    Attributes:
        asked: reading of `boottime` when the lookup began.
        sequence: number of the latest invalidation known to this process at that time.
        trust: that in a local copy, if messages about all of its roots arrived then.
        started_at: the same as `asked`, by the clock of the event loop: the timeout counts from there.
        waited: seconds of the timeout that the lookup has used up.
        versions: see `Ticket`.
        refreshes_early: see `SharedLoads`.
        former_cost: seconds that the load of a value took that is there, and counts no more; None if there is none.
        claim: key and content of the claim to load the value, if this process has it.
        may_refresh: whether the caller reloads what is found shortly before its end, so that others need not.
    """

    __slots__ = (
        "_idle", "_seen", "asked", "claim", "former_cost", "lasts", "may_refresh", "place", "reader", "request",
        "sequence", "started_at", "trust", "versions", "waited",
    )  # fmt: skip

    refreshes_early = True

    def __init__(self, reader: Reader, request: Request) -> None:
        self.reader = reader
        self.request = request
        self.place = reader.place(request)
        self._seen: dict[CellKey, SeenCell] = {}
        self._idle: tuple[list[bytes], bytes] | None = None
        self.asked = boottime()
        self.sequence = reader.invalidations.now
        self.trust: Trust | None = None
        self.started_at = 0.0
        self.waited = 0.0
        self.versions: Versions | None = None
        self.former_cost: float | None = None
        self.claim: tuple[bytes, bytes] | None = None
        self.may_refresh = True
        self.lasts = reader.options.remote_ttl if request.ttl is None else request.ttl

    @property
    def has_claim(self) -> bool:
        """See `SharedLoads`."""
        return self.claim is not None

    @property
    def seen(self) -> dict[CellKey, SeenCell]:
        """The cells as they were; empty if the server could not be asked."""
        if self._idle is not None:
            cells, identity = self._idle
            return {key: (cell, identity) for key, cell in zip(self.place.cells, cells, strict=True)}
        return self._seen

    @seen.setter
    def seen(self, seen: dict[CellKey, SeenCell]) -> None:
        self._seen, self._idle = seen, None

    def set_all_idle(self, cells: list[bytes], identity: bytes) -> None:
        """Note all cells of the place, in their order, where none is held or armed. Few hits need a table of them."""
        self._idle = cells, identity

    def is_young(self) -> bool:
        """Whether the lookup began within the bound of staleness. Its timeout is less, but a loop may be blocked."""
        return boottime() < self.asked + self.reader.options.max_staleness

    def pause(self) -> None:
        """Stop the timeout, since the lookup has ended and the tool runs. A store has the rest of it."""
        if self.started_at:
            self.waited = asyncio.get_running_loop().time() - self.started_at

    def resume(self) -> float:
        """The moment from which the timeout of the store counts."""
        return asyncio.get_running_loop().time() - self.waited

    @property
    def lease(self) -> Lease:
        """See `Ticket`. Where messages about a root may not have arrived, nothing is trusted: the tier as a whole may
        be, as soon as they do.
        """
        return UNTRUSTED if self.trust is None else self.trust

    def is_valid(self) -> bool:
        """Whether no cell that it saw has been invalidated since, as far as this process knows."""
        if self.trust is not None and self.trust.is_over:
            return False
        return self.reader.invalidations.is_valid(self._seen or self.place.cells, self.sequence)

    def is_clean(self) -> bool:
        """See `Ticket`. Under an armed cell a value may be stored on the server, where it dies with its writer's lease;
        a local copy would not. A strong read never leaves a local copy.
        """
        return (
            self.trust is not None
            and not self.trust.is_over
            and not self.request.strong
            and self.place.memory == self.reader.keyspace.memory.number
            and (self._idle is not None or (bool(self._seen) and all(map(is_idle, self._seen.values()))))
            and (self.sequence == self.reader.invalidations.now or self.is_valid())
        )

    def note_tags(self, tags: Iterable[str]) -> None:
        """See `Ticket`."""
        for tag in tags:
            self.reader.keyspace.cells_read(tag)

    def is_joinable(self) -> bool:
        """See `Ticket`."""
        if self.request.strong or not self.is_valid() or any(map(is_held, self.seen.values())):
            return False
        return self.is_young() or (self.trust is not None and self.trust.is_valid())

    def agrees_with(self, other: Ticket) -> bool:
        """Whether another lookup saw the same versions and no running write: then none has ended in between. A writer
        that had armed a cell may have died after its side effect and left the cell as it was.
        """
        return (
            isinstance(other, RedisTicket)
            and bool(self.seen)
            and all(map(is_idle, self.seen.values()))
            and _versions(self) == _versions(other)
        )


def _versions(ticket: RedisTicket) -> Mapping[CellKey, bytes]:
    return {key: version_of(cell) for key, cell in ticket.seen.items()}


def _is_current(versions: Mapping[CellKey, bytes], seen: Mapping[CellKey, SeenCell], *, strong: bool) -> bool:
    """Whether a value under these versions counts. For a strong read none of the cells may be armed: their writer may
    have died after its side effect, and others find the value until its lease ends.
    """
    for key, version in versions.items():
        cell = seen.get(key)
        if cell is None or is_held(cell) or version_of(cell) != version or (strong and not is_idle(cell)):
            return False
    return True


def _merge(cells: dict[CellKey, bytes], more: Iterable[Versions]) -> bool:
    """Add the versions of further cells. Returns whether no cell has two: such a value would be of two times."""
    return all(cells.setdefault(key, version) == version for versions in more for key, version in versions.items())


def _seen_cells(cells: Iterable[CellKey], fetched: Fetched) -> dict[CellKey, SeenCell]:
    """The fetched cells that exist and are well-formed."""
    values, identity = fetched
    if isinstance(identity, bytes):
        return {key: (values[key], identity) for key in cells if type(values[key]) is bytes and values[key]}
    return {key: (values[key], identity[key]) for key in cells if type(values[key]) is bytes and values[key]}


class Reader:
    """Finds and stores values. Its tables are bounded dicts, so that any thread may use it."""

    def __init__(
        self,
        transport: Transport,
        keyspace: Keyspace,
        invalidations: Invalidations,
        pending: PendingInvalidations,
        subscriber: Subscriber,
        options: Options,
    ) -> None:
        self.invalidations = invalidations
        self.subscriber = subscriber
        self.options = options
        self._transport = transport
        self.keyspace = keyspace
        self._pending = pending
        self._places: dict[tuple[object, ...], Place] = {}
        self._latest: dict[int, tuple[Request, Place]] = {}  # by request, of which there is one a key: see `request_of`
        self._claims: dict[bytes, bytes] = {}  # by digest, under which name this process has claimed to refresh it
        self._outlasted: dict[bytes, tuple[bytes, ...]] = {}  # by value, the held cells that were waited for in vain
        self._tried: dict[bytes, float] = {}  # by digest, when the value was loaded that it last tried to claim

    # Places

    def place(self, request: Request) -> Place:
        """The place of an entry."""
        latest = self._latest.get(id(request))
        if latest is not None and latest[0] is request and latest[1].memory == self.keyspace.memory.number:
            return latest[1]
        # With types: 1 and True are equal, and are two calls. The key holds the values of arguments, not their names.
        key, tenant = request.key, request.tenant
        names = [name for name, _ in request.arguments]
        known = (
            request.tool, key, type(key), tenant, type(tenant), request.session, request.tags, request.late_roots,
            request.roots, *names,
        )  # fmt: skip
        place = self._places.get(known)
        if place is not None and place.memory == self.keyspace.memory.number:
            if place.request is request:  # not one that was made for this call alone, with the arguments of a user
                make_room(self._latest, _MAX_PLACES)
                self._latest[id(request)] = request, place
            place.request = request
        else:
            place, lasts = self._find_place(request)
            if lasts and not is_large(key):
                make_room(self._places, _MAX_PLACES)
                self._places[known] = place
        return place

    def _find_place(self, request: Request) -> tuple[Place, bool]:
        keyspace = self.keyspace
        memory = keyspace.memory.number
        digest, lasts = keyspace.digest(request)
        depends_on: Cells = {}
        value_key = b""
        if digest is not None:
            home = keyspace.home(request)
            depends_on[home.cell(b"K" + digest)] = home
            value_key = keyspace.value(digest)
            keyspace.keep_call(digest, request, home)
        for tag in request.tags:
            depends_on |= keyspace.cells_read(tag)
        watched: Cells = {}
        for late in request.late_roots:
            root = keyspace.root(late)
            watched[root.s] = watched[root.d] = root
        cells = depends_on | watched
        roots = tuple(dict.fromkeys(cells.values()))
        topics = topics_of(cells)
        channels = frozenset(topics)
        keys = (*cells, value_key) if value_key else tuple(cells)
        slot = self._transport.slot(value_key) if value_key else 0
        packed = b"".join(map(bulk, keys))
        place = Place(
            digest, value_key, slot, depends_on, watched, cells, roots, topics, channels, keys, packed, memory
        )
        place.has_late = bool(digest is not None and keyspace.late_cells(digest))
        return place, lasts

    # Lookups

    async def lookup(self, ticket: RedisTicket) -> Found | None:
        """Find a current value, and see the cells that a new one would depend on.

        Raises:
            Unreachable: if that is unknown.
        """
        place, strong = ticket.place, ticket.request.strong
        cells, digest = place.cells, place.digest
        client = self._transport.client()
        ticket.started_at = client.loop.time()
        late = self.keyspace.late_cells(digest) if place.has_late and digest is not None else {}
        known = cells | late if late else cells
        if self._pending.blocks(known) and not await self._pending.wait(known, self._due(ticket)):
            self._transport.counters.skipped += 1
            raise Unreachable("an invalidation is pending")
        if (moving := self.subscriber.moving) and any(root.channel in moving for root in place.roots):
            raise Moving("the slot moves to another server")  # most lookups would be refused, after two trips
        topics = topics_of(known) if late else place.topics
        if self.subscriber.is_running and self.invalidations.listeners:
            ticket.trust = self._trust_in(place, topics)
            if ticket.trust is None:
                await self._subscribe(client, ticket, topics)
        ticket.sequence = self.invalidations.now
        fetched: Fetched
        if late or self._transport.topology.is_cluster:
            wanted = [(key, root.slot) for key, root in known.items()]
            if digest is not None:
                wanted.append((place.value_key, place.slot))
            fetched = await client.fetch(wanted, strong=strong, waiting_since=ticket.started_at)
        else:
            values, identity = await client.read(
                place.keys, place.packed, strong=strong, waiting_since=ticket.started_at
            )
            found = self._find_unchanged(ticket, values, identity)
            if found is not None:
                return None if self._pending.blocks(cells) else found
            fetched = dict(zip(place.keys, values, strict=True)), identity
        ticket.seen = _seen_cells(cells, fetched)
        if len(ticket.seen) < len(cells):
            ticket.seen = await self._mint_missing(client, cells, fetched, ticket.started_at)
        data = fetched[0][place.value_key] if digest is not None else None
        if data is None:
            return None
        found = await self._find_current(client, ticket, data, _seen_cells(late, fetched), late)
        return None if found is None or self._pending.blocks(ticket.seen) else found

    def _due(self, ticket: RedisTicket) -> float:
        """Until when a lookup may wait before it asks the server: that has a quarter of the timeout."""
        return ticket.started_at + 0.75 * self.options.timeout

    def _trust_in(self, place: Place, topics: dict[bytes, Root]) -> Trust | None:
        """The trust in a copy that depends on these channels, if their messages arrive."""
        if topics is not place.topics:
            return self.subscriber.trust(frozenset(topics))
        trust = place.trust() if place.trust is not None else None
        if trust is None or trust.is_over:
            trust = self.subscriber.trust(place.channels)
            place.trust = None if trust is None else ref(trust)
        else:
            trust.is_used = True
        return trust

    async def _subscribe(self, client: Client, ticket: RedisTicket, topics: dict[bytes, Root]) -> None:
        """Wait for the subscriptions to these channels, before anything is read: without them, nothing is kept locally.

        A read has one timeout for all that it waits for. Three quarters of it may be used here, while the connection is
        made that the read will need.
        """
        subscriber = self.subscriber
        missing = {
            topic: root
            for topic, root in topics.items()
            if not subscriber.hears(topic) and not subscriber.has_failed(root)
        }
        for root in missing.values():
            server = self._transport.topology.server_of(root.slot)
            if server is not None:
                client.prepare(server)
        if missing:
            await subscriber.subscribe(missing, self._due(ticket))
        ticket.trust = self._trust_in(ticket.place, topics)

    async def _mint_missing(
        self, client: Client, cells: Cells, fetched: Fetched, started_at: float
    ) -> dict[CellKey, SeenCell]:
        """All cells. Those that are missing are created, before the load, so that a write during it is seen."""
        seen: dict[CellKey, SeenCell] = {}
        for root in dict.fromkeys(cells.values()):
            keys = [key for key in cells if cells[key] == root]
            found = _seen_cells(keys, fetched)
            seen |= found if len(found) == len(keys) else await self.mint(client, root, keys, started_at)
        return seen

    async def mint(
        self, client: Client, root: Root, keys: list[CellKey], started_at: float | None = None
    ) -> dict[CellKey, SeenCell]:
        """These cells of one root at one moment, created if they are missing."""
        names = [root.cell_name(key) for key in keys]
        ttl, token = b"%d" % int(self.options.cell_ttl * 1000), os.urandom(12).hex().encode()
        arguments = [root.prefix, ttl, token, b"", b"0", b"%d" % len(names), *names]
        script = self._transport.script(MINT)
        names = [root.registry, *keys, *self._transport.whole_slot(root.absent)]
        values, identity = await client.run(script, root.slot, names, arguments, started_at=started_at)
        if type(values) is not list or len(values) != len(keys) or not all(type(v) is bytes and v for v in values):
            raise Unreachable("the server's reply is malformed")
        return {key: (value, identity) for key, value in zip(keys, values, strict=True)}

    def _find_unchanged(self, ticket: RedisTicket, values: list[Any], identity: bytes) -> Found | None:
        """The most common hit, in fewer steps than `_find_current`: all that it depends on is known and unchanged."""
        place, data = ticket.place, values[-1]
        if type(data) is not bytes or place.watched or place.digest is None:
            return None
        cells, known = values[:-1], place.known
        if known is None or known[0] != cells or known[1] != identity:
            seen = [(cell, identity) for cell in cells if type(cell) is bytes and cell]
            if len(seen) < len(cells) or not all(map(is_idle, seen)):
                return None
            versions = {key: version_of(cell) for key, cell in zip(place.cells, seen, strict=True)}
            place.known = known = cells, identity, header_lines(versions), versions
        header = read_header(data, known[2])
        if header is None:
            return None
        loaded, ttl, cost, start = header
        request = ticket.request
        age = self._server_times(ticket)[1] - loaded
        lasts = ttl if request.ttl is None or ttl < request.ttl else request.ttl
        left = lasts - age
        if age < 0 or (left <= lasts / 5 and left <= refresh_window(cost, lasts)):  # at most; `_aged` decides
            return None
        try:
            value = self.options.codec.decode(
                data[start:], request.returns, context=value_context(place.value_key, data[:start])
            )
        except Exception:  # noqa: BLE001 - hostile data, or the user's codec: `_find_current` counts it
            return None
        ticket.set_all_idle(known[0], known[1])
        ticket.versions = known[3]
        return Found(value, request.tags, age, cost, left)

    async def _find_current(
        self, client: Client, ticket: RedisTicket, data: Any, known: dict[CellKey, SeenCell], expected: Cells
    ) -> Found | None:
        """The value, if every cell in its header has the version there.

        Args:
            known: further cells that were read with the value.
            expected: all that was known of these. If the ticket is live, messages about their roots arrive.
        """
        request, place = ticket.request, ticket.place
        assert place.digest is not None
        try:
            if type(data) is not bytes:
                raise BadValue("too large, or of another type")  # noqa: TRY301 - counted with the others
            header, head, payload = unpack_value(data)
            if not place.depends_on.keys() <= header.cells.keys():
                return None  # of a tool that was declared otherwise
            seen = ticket.seen | known
            others = [key for key in header.cells if key not in place.depends_on]
            unknown = [key for key in others if key not in seen]
            if unknown:
                seen |= await self._fetch_more(client, unknown, ticket)
            if not _is_current(header.cells, seen, strong=request.strong):
                ticket.former_cost = header.cost
                return None
            value = self._decoded(payload, request.returns, value_context(place.value_key, head))
            late = self._late_tags(header, place.value_key)
            is_expected = len(others) == len(expected) and all(key in expected for key in others)
            late_cells = expected if is_expected else self._with_roots(others, place.roots, late)
        except BadValue as error:
            self._transport.counters.bad_values += 1
            self._transport.log.once("a value on the server cannot be read", f"{request.tool}: {error}")
            return None
        if not is_expected:
            self._keep_late_cells(place, late_cells)
            topics = topics_of(place.cells | late_cells)
            if ticket.trust is not None and not topics.keys() <= ticket.trust.channels:
                # A value whose load has read other roots. Its local copy needs messages about these: from now on they
                # arrive, and what was written before is seen now.
                await self._subscribe(client, ticket, topics)
                ticket.sequence = self.invalidations.now
                seen = await self._fetch_more(client, list(header.cells), ticket)
                if not _is_current(header.cells, seen, strong=request.strong):
                    return None
        ticket.seen = ticket.seen | {key: seen[key] for key in header.cells}
        ticket.versions = header.cells if all(is_idle(seen[key]) for key in header.cells) else None
        return await self._aged(client, ticket, header, Found(value, request.tags + late, cost=header.cost))

    def _decoded(self, data: bytes, returns: Any, context: bytes) -> Any:
        try:
            return self.options.codec.decode(data, returns, context=context)
        except Exception as error:
            # Whatever it is: hostile data, or a codec that was not made for it, is a miss and nothing more.
            raise BadValue(str(error) if isinstance(error, Undecodable) else type(error).__name__) from error

    def _late_tags(self, header: Header, value_key: bytes) -> tuple[str, ...]:
        if not header.late:
            return ()
        late = self._decoded(header.late, list[str], late_tags_context(value_key, header_lines(header.cells)))
        if not isinstance(late, list) or not all(isinstance(tag, str) for tag in late):
            raise BadValue("with malformed tags")
        for tag in late:  # so that messages about them can be understood
            self.keyspace.cells_read(tag)
        return tuple(late)

    async def _fetch_more(self, client: Client, keys: list[CellKey], ticket: RedisTicket) -> dict[CellKey, SeenCell]:
        """Cells that only the value has named. Keys that are no cells of this namespace are not read."""
        prefix = b"t:{%b:" % self.keyspace.namespace.encode()
        if len(keys) > MAX_VALUE_CELLS or not all(key.startswith(prefix) for key in keys):
            raise BadValue("with malformed cells")
        wanted = [(key, self._transport.slot(key)) for key in keys]
        fetched = await client.fetch(wanted, strong=ticket.request.strong, started_at=ticket.started_at)
        return _seen_cells(keys, fetched)

    def _with_roots(self, keys: Iterable[CellKey], roots: tuple[Root, ...], tags: Iterable[str]) -> Cells:
        """Cells that are known by their keys, with their roots: these, or those of the tags, as their names say."""
        cells: Cells = {}
        by_prefix: dict[bytes, Root] = {}
        for key in keys:
            prefix = key[: key.rfind(b":") + 1]
            root = by_prefix.get(prefix)
            if root is None:
                if not by_prefix:
                    by_prefix = {one.prefix: one for one in (*roots, *map(self.keyspace.root, map(root_of, tags)))}
                try:
                    root = by_prefix.get(prefix) or self.keyspace.root_of_cell(key)
                except ValueError as error:
                    raise BadValue("with malformed cells") from error
                by_prefix[prefix] = root
            cells[key] = root
        return cells

    def _keep_late_cells(self, place: Place, cells: Cells) -> None:
        """Remember the cells that a value names beside those of its place."""
        if (cells or place.has_late) and place.digest is not None:
            place.has_late = True
            self.keyspace.keep_late_cells(place.digest, cells)
            for key, root in cells.items():
                if (name := root.cell_name(key)).startswith(b"K"):
                    self.keyspace.keep_dependent(name, place.digest)

    async def _aged(self, client: Client, ticket: RedisTicket, header: Header, found: Found) -> Found | None:
        """Add age and remaining ttl. Within its grace, and shortly before its ttl ends, a value is served while one
        process of the fleet refreshes it.
        """
        place, request = ticket.place, ticket.request
        assert place.digest is not None
        age = self._server_times(ticket)[1] - header.loaded
        lasts = header.ttl if request.ttl is None else min(header.ttl, request.ttl)
        left = lasts - age
        if age < 0 or left + min(header.grace, request.grace) <= 0:  # below 0, the server's clock was set back
            ticket.former_cost = header.cost
            return None
        is_to_refresh = False
        is_ending = left <= 0 or (
            left <= refresh_window(header.cost, lasts) and self._tried.get(place.digest) != header.loaded
        )
        if is_ending and ticket.may_refresh:
            make_room(self._tried, _MAX_CLAIMS)
            self._tried[place.digest] = header.loaded
            claim, own = self.keyspace.claim(place.digest), os.urandom(8).hex().encode()
            parts = (b"SET", claim, own, b"NX", b"PX", b"%d" % int(self.options.lease * 1000))
            try:
                reply, _ = await client.call(self._transport.slot(claim), *parts, started_at=ticket.started_at)
                is_to_refresh = reply is not None
            except Unreachable:
                if left <= 0:
                    raise  # else it counts, whoever loads it again
            if is_to_refresh:
                make_room(self._claims, _MAX_CLAIMS)
                self._claims[place.digest] = own
        return Found(found.value, found.tags, age, found.cost, left, is_to_refresh)

    async def claim(self, request: Request, ticket: RedisTicket) -> tuple[Found | None, RedisTicket]:
        """Claim the load of a value that counts no more, or find what the process has loaded that was faster.

        What is found is found by a whole lookup, so a claim proves nothing and protects nothing: it only says for whom
        it is worth to wait, and for how long. Nothing is stored under a cell that a write holds. For the end of such a
        write a read waits as long as its load would take, and once: a hold may be for `settle`, or of a dead writer.
        """
        cost, key = ticket.former_cost, ticket.place.value_key
        if cost is None or cost < _SHORTEST_SHARED:
            return None, ticket
        patience = 2 * cost + self.options.timeout
        began, pause = boottime(), max(_SHORTEST_PAUSE, cost / 8)
        is_first = True
        try:
            while ticket.former_cost is not None:
                held = tuple([cell[0] for cell in ticket.seen.values() if is_held(cell)])
                ends = began + (cost if held else patience)
                if held and held == self._outlasted.get(key):
                    break
                if not held and await self._is_claimed(ticket, patience):
                    return await self._lead(request, ticket)
                if boottime() + pause > ends:
                    if held:
                        make_room(self._outlasted, _MAX_CLAIMS)
                        self._outlasted[key] = held
                    break
                await asyncio.sleep(pause if held or not is_first else max(pause, cost / 2))
                is_first = bool(held)
                ticket = RedisTicket(self, request)
                found = await self.lookup(ticket)
                if found is not None:
                    return found, ticket
                ticket.pause()
        except Unreachable:
            ticket.seen = {}
        except BaseException:
            self.give_up(ticket)
            raise
        ticket.versions = None
        return None, ticket

    async def share(
        self, request: Request, ticket: RedisTicket, may_wait: Callable[[], bool] | None
    ) -> tuple[Found | None, RedisTicket]:
        """Claim the load of a missed value, or wait for the process that has claimed it: see `SharedLoads`.

        While a write holds a cell, nothing can be stored. Its end is waited for as in `claim`: for as long as the last
        load took, if that is known.
        """
        key, began = ticket.place.value_key, boottime()
        wait = LoaderWait(may_wait)
        loader: bytes | None
        try:
            while (name := self._claim_name(ticket)) is not None:
                held = tuple([cell[0] for cell in ticket.seen.values() if is_held(cell)])
                if held:
                    loader = None
                    if ticket.former_cost is None or held == self._outlasted.get(key):
                        break
                    if boottime() >= began + ticket.former_cost:
                        make_room(self._outlasted, _MAX_CLAIMS)
                        self._outlasted[key] = held
                        break
                else:
                    loader = await self._claim_load(ticket, name)
                    if ticket.claim is not None:
                        return await self._lead(request, ticket)
                if not await wait.pause(loader):
                    break
                ticket = RedisTicket(self, request)
                found = await self.lookup(ticket)
                if found is not None:
                    return found, ticket
                ticket.pause()
        except Unreachable:
            self.give_up(ticket)
            ticket.seen = {}
        except BaseException:
            self.give_up(ticket)
            raise
        ticket.versions = None
        return None, ticket

    def _claim_name(self, ticket: RedisTicket) -> bytes | None:
        """The key of the claim to load a value under the versions that a lookup has seen; None if they are unknown."""
        place, seen = ticket.place, ticket.seen
        if place.digest is None or not place.depends_on.keys() <= seen.keys():
            return None
        lines = header_lines({key: version_of(seen[key]) for key in place.depends_on})
        return self.keyspace.claim(place.digest, lines)

    async def _claim_load(self, ticket: RedisTicket, key: bytes) -> bytes:
        """Claim a load for the lease, unless it is claimed. Returns the content of the claim that is there."""
        own = os.urandom(8).hex().encode()
        ticket.claim = key, own  # before it is known: a caller that is interrupted gives it up
        lease = b"%d" % int(self.options.lease * 1000)
        claimant, _ = await self._transport.client().run(CLAIM, self._transport.slot(key), [key], [own, lease])
        if claimant != own:
            ticket.claim = None
        return claimant if type(claimant) is bytes else b""

    def renew_claim(self, ticket: RedisTicket) -> None:
        """Let a claim last for another lease."""
        if ticket.claim is not None:
            key, own = ticket.claim
            lease = b"%d" % int(self.options.lease * 1000)
            try:
                client = self._transport.client()
                client.push(self._transport.slot(key), b"EVAL", RENEW_CLAIM.source, b"1", key, own, lease)
            except (Unreachable, RuntimeError):  # the next renewal may come in time
                pass

    async def _lead(self, request: Request, claimed: RedisTicket) -> tuple[Found | None, RedisTicket]:
        """Look once more before the load: another process may have ended one meanwhile. First all messages are awaited
        that the write has published, or the load would be taken for one that the write has overlapped. If there never
        was a value, or it has expired, nobody need have written.
        """
        if claimed.claim is None:
            return None, claimed
        try:
            # Without trust nobody knows whether messages arrive.
            if claimed.former_cost is not None and CLOCK.now() < self.subscriber.trusted_until():
                async with asyncio.timeout(self.options.timeout / 4):
                    await self.subscriber.catch_up()
        except (TimeoutError, Unreachable):
            pass
        ticket = RedisTicket(self, request)
        ticket.claim = claimed.claim
        try:
            found = await self.lookup(ticket)
        except BaseException:
            self.give_up(ticket)
            raise
        if found is not None:
            self.give_up(ticket)
        ticket.pause()
        return found, ticket

    async def _is_claimed(self, ticket: RedisTicket, patience: float) -> bool:
        """Whether this process leads the load."""
        key = self._claim_name(ticket)
        if key is None:
            return True
        own = os.urandom(8).hex().encode()
        parts = (b"SET", key, own, b"NX", b"PX", b"%d" % int(patience * 1000))
        ticket.claim = key, own  # before it is known: a caller that is interrupted gives it up
        reply, _ = await self._transport.client().call(self._transport.slot(key), *parts)
        if reply is None:
            ticket.claim = None
            return False
        return True

    def give_up(self, ticket: RedisTicket) -> None:
        """Release the claim to a load that has ended."""
        if ticket.claim is not None:
            (key, own), ticket.claim = ticket.claim, None
            try:
                client = self._transport.client()
                client.push(self._transport.slot(key), b"EVAL", RELEASE.source, b"1", key, own)
            except (Unreachable, RuntimeError):  # it expires
                pass

    def _server_times(self, ticket: RedisTicket) -> tuple[float, float]:
        """The earliest and the latest time of day that it may be on the server that keeps the value.

        What is stored takes the earliest as the time of its load, and what is found the latest as now: a value is
        never younger for another process than it is.
        """
        server = self._transport.topology.server_of(ticket.place.slot)
        if server is None or server.clock_offsets is None:
            raise Unreachable("the server's clock is not known")
        now, (least, most) = boottime(), server.clock_offsets
        return now + least, now + most

    # Stores

    async def store(
        self,
        ticket: RedisTicket,
        value: Any,
        tags: tuple[str, ...],
        cost: float,
        *,
        age: float,
        ttl: float | None = None,
        inherited: Sequence[Versions] = (),
    ) -> None:
        """Store a value under the versions that were seen before its load, and those that it inherits.

        Raises:
            Unreachable: if the server does not take it.
        """
        request, place, seen = ticket.request, ticket.place, ticket.seen
        ticket.versions = None  # those of a value that was found are not those of this one
        if place.digest is None or not place.depends_on.keys() <= seen.keys():
            return
        lasts = ticket.lasts if ttl is None else min(ttl, ticket.lasts)
        left = lasts + request.grace - age
        if left <= 0 or any(is_held(seen[key]) for key in place.depends_on):
            return
        cells = {key: version_of(seen[key]) for key in place.depends_on}
        client = self._transport.client()
        started_at = ticket.resume()
        late = named = [tag for tag in dict.fromkeys(tags) if tag not in request.tags]
        if inherited:
            if not _merge(cells, inherited):
                return
            # Those of its own result are rechecked, although they may be inherited as well: the load may have looked at
            # the data itself before a write, and made a read after it.
            named = [tag for tag in late if root_of(tag) in request.late_roots]
            if not all(self._is_covered(tag, cells) for tag in late if tag not in named):
                return
        if named:
            late_cells = await self._recheck(client, ticket, named, started_at)
            if late_cells is None or not _merge(cells, (late_cells,)):
                return
        if self._pending.blocks(cells):
            self._transport.counters.skipped += 1
            return
        if all(map(is_idle, seen.values())):
            ticket.versions = cells
        data = self._encoded(ticket, value, late, cells, cost, self._server_times(ticket)[0] - age, lasts)
        if data is None:
            return
        period = b"%d" % max(1, int(min(left, self.options.cell_ttl) * 1000))
        await client.call(place.slot, b"SET", place.value_key, data, b"PX", period, started_at=started_at)
        self._transport.counters.stores += 1
        if late:
            others = [key for key in cells if key not in place.depends_on]
            self._keep_late_cells(place, self._with_roots(others, place.roots, late))
        own = self._claims.pop(place.digest, None) if self._claims else None
        if own is not None:  # or no process could refresh it again until the claim expires, however short its ttl is
            claim = self.keyspace.claim(place.digest)
            await client.run(RELEASE, self._transport.slot(claim), [claim], [own], started_at=started_at)

    def _encoded(
        self,
        ticket: RedisTicket,
        value: Any,
        late: list[str],
        cells: dict[CellKey, bytes],
        cost: float,
        loaded: float,
        lasts: float,
    ) -> bytes | None:
        """The value as it goes to the server; None if it cannot be encoded, or is too large."""
        request, codec, key = ticket.request, self.options.codec, ticket.place.value_key
        counters, log = self._transport.counters, self._transport.log
        try:
            context = late_tags_context(key, header_lines(cells))
            packed_late = codec.encode(late, list[str], context=context) if late else b""
            head = pack_header(Header(cells, loaded, lasts, request.grace, cost, packed_late))
            data = head + codec.encode(value, request.returns, context=value_context(key, head))
        except Exception as error:  # noqa: BLE001 - an exception of the user's codec does not fail a call
            counters.unencodable += 1
            reason = error if isinstance(error, Unencodable) else type(error).__name__
            log.once(f"a result of {request.tool} cannot be encoded, so it is kept in this process alone", reason)
            return None
        if len(cells) > MAX_VALUE_CELLS or len(head) > MAX_HEAD:
            counters.unencodable += 1
            log.once(f"a result of {request.tool} depends on too much, so it is kept in this process alone", len(cells))
            return None
        if len(data) - len(head) > self.options.max_value_size:
            counters.unencodable += 1
            log.once(f"a result of {request.tool} is too large, so it is kept in this process alone", len(data))
            return None
        return data

    def _is_covered(self, tag: str, cells: Collection[CellKey]) -> bool:
        """Whether the versions of a tag's cells are known. A root may stand for its entities, if they were too many."""
        wanted = self.keyspace.cells_read(tag)
        if all(key in cells for key in wanted):
            return True
        prefix = self.keyspace.root(tag).prefix
        return ":" not in tag and any(key.startswith(prefix) for key in cells)

    async def _recheck(
        self, client: Client, ticket: RedisTicket, late: list[str], started_at: float
    ) -> dict[CellKey, bytes] | None:
        """The versions of the cells that only the result has named; None if their roots were written during the load.

        An entity's own cell, read after the load, would look current whatever was written before. D proves that it was
        not, which every write under the root moves, together with S; that neither was held before proves that no write
        was running.
        """
        named: Cells = {}
        for tag in late if len(late) <= _MAX_LATE else [tag.partition(":")[0] for tag in late]:
            named |= self.keyspace.cells_read(tag)
        roots = list(dict.fromkeys(named.values()))
        watched = {cell: root for root in roots for cell in (root.s, root.d)}
        before = ticket.seen
        if any(cell not in before or is_held(before[cell]) for cell in watched):
            return None
        after = await self.fetch_or_mint(client, named | watched, started_at)
        if any(is_held(after[cell]) or version_of(after[cell]) != version_of(before[cell]) for cell in watched):
            return None
        return {key: version_of(after[key]) for key in named}

    async def fetch_or_mint(self, client: Client, cells: Cells, started_at: float) -> dict[CellKey, SeenCell]:
        """All of these cells as they are now, created if they are missing."""
        fetched = await client.fetch([(key, root.slot) for key, root in cells.items()], started_at=started_at)
        return await self._mint_missing(client, cells, fetched, started_at)
