"""Looking an answer up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_cache.remote.codecs import Undecodable
from agent_cache.remote.protocol import Found
from agent_cache.remote.redis.clients import Fetched, LoopClient
from agent_cache.remote.redis.keyspace import CellKey, RootNames
from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.scripts import MINT
from agent_cache.remote.redis.tickets import RedisTicket
from agent_cache.remote.redis.values import (
    BadValue,
    Header,
    Seen,
    context_of,
    is_held,
    is_idle,
    late_context_of,
    lines_of,
    read_at_once,
    unpacked,
    version_of,
)
from agent_cache.remote.redis.wire import Unreachable
from agent_cache.values.canonical import make_room

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["MAX_LATE", "look_up", "mint", "seen_in", "server_time"]

MAX_LATE = 256
"""Entities that one result may name before it depends on all of their root instead."""
_MAX_CLAIMS = 50_000


async def look_up(core: Core, ticket: RedisTicket) -> Found | None:
    """Find an answer that is current, and see the cells that a new one would depend on.

    Raises:
        Unreachable: if that cannot be told.
    """
    place, strong = ticket.place, ticket.request.strong
    cells, digest = place.cells, place.digest
    if core.pending.blocks(cells):
        core.counters.skipped += 1
        raise Unreachable("an invalidation is pending")
    client = core.client()
    ticket.since = client.loop.time()
    if not _is_heard(core, ticket):
        await _listen(core, client, ticket)
    ticket.epoch = core.epochs.now
    memo = core.memo.cells(digest) if digest is not None and place.watches else {}
    fetched: Fetched
    if memo or core.topology.is_cluster:
        wanted = [(key, root.slot) for key, root in (cells | memo).items()]
        if digest is not None:
            wanted.append((place.value_key, place.slot))
        fetched = await client.fetch(wanted, strong=strong, silent=ticket.since)
    else:
        values, ident = await client.read(place, strong=strong, silent=ticket.since)
        found = _at_once(core, ticket, values, ident)
        if found is not None:
            return None if core.pending.blocks(cells) else found
        fetched = dict(zip(place.keys, values, strict=True)), ident
    ticket.seen = seen_in(cells, fetched)
    if len(ticket.seen) < len(cells):
        ticket.seen = await _minted(core, client, cells, fetched, ticket.since)
    data = fetched[0][place.value_key] if digest is not None else None
    if data is None:
        return None
    found = await _current(core, client, ticket, data, seen_in(memo, fetched))
    return None if found is None or core.pending.blocks(ticket.seen) else found


def _is_heard(core: Core, ticket: RedisTicket) -> bool:
    attendant = core.attendant
    if attendant is None or not core.listeners:
        return True
    ticket.is_live = ticket.place.channels <= attendant.heard
    return ticket.is_live


async def _listen(core: Core, client: LoopClient, ticket: RedisTicket) -> None:
    """Before anything is read: messages about it must arrive, or nothing is kept locally.

    A read has one timeout for all that it waits for. Three quarters of it may go here, while the connection is being
    made by which it reads.
    """
    attendant = core.attendant
    if attendant is None:
        return
    missing = [root for root in ticket.place.roots if not attendant.is_heard(root) and not attendant.fails(root)]
    for root in missing:
        node = core.topology.of(root.slot)
        if node is not None:
            client.prepare(node)
    if missing:
        await attendant.hear(missing, ticket.since + 0.75 * core.timeout)
    ticket.is_live = all(map(attendant.is_heard, ticket.place.roots))


def seen_in(cells: Iterable[CellKey], fetched: Fetched) -> dict[CellKey, Seen]:
    """Those that are there, and are cells."""
    values, ident = fetched
    if isinstance(ident, bytes):
        return {key: (values[key], ident) for key in cells if type(values[key]) is bytes and values[key]}
    return {key: (values[key], ident[key]) for key in cells if type(values[key]) is bytes and values[key]}


async def _minted(
    core: Core, client: LoopClient, cells: Mapping[CellKey, RootNames], fetched: Fetched, since: float
) -> dict[CellKey, Seen]:
    """All cells, those that are missing made: before the load, so that a write during it is seen."""
    seen: dict[CellKey, Seen] = {}
    for root in dict.fromkeys(cells.values()):
        keys = [key for key in cells if cells[key] == root]
        here = seen_in(keys, fetched)
        if len(here) == len(keys):
            seen.update(here)
        else:
            seen.update(await mint(core, client, root, keys, since))
    return seen


async def mint(
    core: Core, client: LoopClient, root: RootNames, keys: list[CellKey], since: float | None = None
) -> dict[CellKey, Seen]:
    """These cells of one root as they are, at one moment."""
    names = [root.name(key) for key in keys]
    head = [root.prefix, b"%d" % int(core.options.cell_ttl * 1000), os.urandom(12).hex().encode(), b"", b"0"]
    values, ident = await client.run(
        core.script(MINT), root.slot, [root.registry, *keys], [*head, b"%d" % len(names), *names], since=since
    )
    return {key: (value, ident) for key, value in zip(keys, values, strict=True)}


def _at_once(core: Core, ticket: RedisTicket, values: list[Any], ident: bytes) -> Found | None:
    """The commonest hit without the second look: everything that it depends on was known, and is as it was."""
    place, data = ticket.place, values[-1]
    if type(data) is not bytes or place.watches or place.digest is None:
        return None
    cells, known = values[:-1], place.known
    if known is None or known[0] != cells or known[1] != ident:
        seen = [(cell, ident) for cell in cells if type(cell) is bytes and cell]
        if len(seen) < len(cells) or not all(map(is_idle, seen)):
            return None
        header = lines_of({key: version_of(cell) for key, cell in zip(place.cells, seen, strict=True)})
        place.known = known = cells, ident, header
    read = read_at_once(data, known[2])
    if read is None:
        return None
    loaded, ttl, cost, start = read
    request = ticket.request
    age = server_time(core, ticket) - loaded
    age = 0.0 if age < 0 else age
    left = (ttl if request.ttl is None or ttl < request.ttl else request.ttl) - age
    if left <= 0:
        return None
    try:
        value = core.options.codec.decode(
            data[start:], request.returns, context=context_of(place.value_key, data[:start])
        )
    except Exception:  # noqa: BLE001 - hostile data, or somebody's codec: the second look counts it
        return None
    ticket.saw_idle(*known[:2])
    return Found(value, request.tags, age, cost, left)


async def _current(
    core: Core, client: LoopClient, ticket: RedisTicket, data: Any, known: dict[CellKey, Seen]
) -> Found | None:
    """What the value says, if every cell that it names is as it was."""
    request, place = ticket.request, ticket.place
    assert place.digest is not None
    try:
        if type(data) is not bytes:
            raise BadValue("too large, or of another type")  # noqa: TRY301 - counted with the others
        header, head, payload = unpacked(data)
        if not place.depends_on.keys() <= header.cells.keys():
            return None  # of a tool that was declared otherwise
        seen = ticket.seen | known
        others = [key for key in header.cells if key not in place.depends_on]
        unknown = [key for key in others if key not in seen]
        if unknown:
            seen |= await _fetch_more(core, client, unknown, ticket)
        for key, version in header.cells.items():
            cell = seen.get(key)
            if cell is None or is_held(cell) or version_of(cell) != version:
                return None
            if request.strong and not is_idle(cell):
                return None  # its writer may have died after its effect: others find it until the lease is over
        value = _decoded(core, payload, request.returns, context_of(place.value_key, head))
        late = _late_tags(core, header, place.value_key)
    except BadValue as error:
        core.counters.bad_values += 1
        core.log.once("a value on the server cannot be read", f"{request.tool}: {error}")
        return None
    ticket.seen = ticket.seen | {key: seen[key] for key in others}
    if others:
        core.memo.keep_cells(place.digest, {key: _root_of(core, ticket, key) for key in others})
    return await _aged(core, client, ticket, header, Found(value, request.tags + late, cost=header.cost))


def _decoded(core: Core, data: bytes, returns: Any, context: bytes) -> Any:
    try:
        return core.options.codec.decode(data, returns, context=context)
    except Exception as error:
        # Whatever it is: data that is hostile, or a codec that was not made for that, is a miss and no more.
        raise BadValue(str(error) if isinstance(error, Undecodable) else type(error).__name__) from error


def _late_tags(core: Core, header: Header, value_key: bytes) -> tuple[str, ...]:
    if not header.late:
        return ()
    late = _decoded(core, header.late, list[str], late_context_of(value_key, lines_of(header.cells)))
    if not isinstance(late, list) or not all(isinstance(tag, str) for tag in late):
        raise BadValue("with tags that are none")
    for tag in late:  # so that messages about them can be read
        core.names.read_by(tag)
    return tuple(late)


async def _fetch_more(core: Core, client: LoopClient, keys: list[CellKey], ticket: RedisTicket) -> dict[CellKey, Seen]:
    """Cells that only the value has named. What is not a cell of ours is not asked for."""
    prefix = b"t:{%b:" % core.names.namespace.encode()
    if len(keys) > 2 * MAX_LATE or not all(key.startswith(prefix) for key in keys):
        raise BadValue("depending on what is no cell")
    wanted = [(key, core.slot(key)) for key in keys]
    return seen_in(keys, await client.fetch(wanted, strong=ticket.request.strong, since=ticket.since))


def _root_of(core: Core, ticket: RedisTicket, key: CellKey) -> RootNames:
    for root in ticket.place.roots:
        if key.startswith(root.prefix):
            return root
    return core.names.root(key.partition(b"{")[2].rpartition(b"}")[0].partition(b":")[2].decode())


async def _aged(core: Core, client: LoopClient, ticket: RedisTicket, header: Header, found: Found) -> Found | None:
    """How old it is and how long it may live. Past its ttl it is served while one process refreshes it."""
    place = ticket.place
    assert place.digest is not None
    age = max(0.0, server_time(core, ticket) - header.loaded)
    ttl = header.ttl if ticket.request.ttl is None else min(header.ttl, ticket.request.ttl)
    left = ttl - age
    grace = min(header.grace, ticket.request.grace)
    if left + grace <= 0:
        return None
    is_to_refresh = False
    if left <= 0:
        claim = core.names.claim(place.digest)
        period = b"%d" % int(core.options.lease * 1000)
        own = os.urandom(8).hex().encode()
        reply, _ = await client.call(core.slot(claim), b"SET", claim, own, b"NX", b"PX", period, since=ticket.since)
        is_to_refresh = reply is not None
        if is_to_refresh:
            make_room(core.claims, _MAX_CLAIMS)
            core.claims[place.digest] = own
    return Found(found.value, found.tags, age, found.cost, left, is_to_refresh)


def server_time(core: Core, ticket: RedisTicket) -> float:
    """What the clock of the server that keeps a value says now: its expiry is measured by that."""
    node = core.topology.of(ticket.place.slot)
    if node is None or node.clock_offset is None:
        raise Unreachable("the server's clock is not known")
    return boottime() + node.clock_offset
