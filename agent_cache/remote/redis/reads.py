"""Looking an answer up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_cache.remote.codecs import Undecodable
from agent_cache.remote.protocols import Found
from agent_cache.remote.redis.clients import Fetched, LoopClient
from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.names import CellKey, RootNames
from agent_cache.remote.redis.scripts import MINT
from agent_cache.remote.redis.tickets import RedisTicket
from agent_cache.remote.redis.values import (
    BadValue,
    Header,
    Seen,
    is_held,
    is_idle,
    read_at_once,
    unpacked,
    version_of,
)
from agent_cache.remote.redis.wire import OVERSIZED, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["MAX_LATE", "look_up", "mint", "seen_in", "server_time"]

MAX_LATE = 256
"""Entities that one result may name before it depends on all of their root instead."""


async def look_up(core: Core, ticket: RedisTicket) -> Found | None:
    """Find an answer that is current, and see the cells that a new one would depend on.

    Raises:
        Unreachable: if that cannot be told.
    """
    cells, digest, strong = ticket.cells, ticket.digest, ticket.request.strong
    if core.pending.blocks(cells):
        core.counters.skipped += 1
        raise Unreachable("an invalidation is pending")
    if not _is_heard(core, ticket):
        await _listen(core, ticket)
    ticket.epoch = core.epochs.now
    client = core.client()
    memo = core.memo.cells(digest) if digest is not None and ticket.watches else {}
    wanted = [(key, root.slot) for key, root in (cells | memo if memo else cells).items()]
    value_key = b""
    if digest is not None:
        value_key = core.names.value(digest)
        wanted.append((value_key, core.slot(value_key)))
    fetched = await client.fetch(wanted, strong=strong)
    ticket.seen = seen_in(cells, fetched)
    if len(ticket.seen) < len(cells):
        ticket.seen = await _minted(core, client, cells, fetched)
    data = fetched[0][value_key] if digest is not None else None
    if data is None:
        return None
    found = _at_once(core, ticket, data)
    if found is None:
        found = await _current(core, client, ticket, data, seen_in(memo, fetched))
    return None if found is None or core.pending.blocks(ticket.seen) else found


def _is_heard(core: Core, ticket: RedisTicket) -> bool:
    attendant = core.attendant
    if attendant is None or not core.listeners:
        return True
    heard = attendant.heard
    for root in ticket.depends_on.values():
        if root.channel not in heard:
            return False
    for root in ticket.watches.values():
        if root.channel not in heard:
            return False
    ticket.is_live = True
    return True


async def _listen(core: Core, ticket: RedisTicket) -> None:
    """Before anything is read: messages about it must arrive, or nothing is kept locally."""
    attendant = core.attendant
    if attendant is None:
        return
    for root in ticket.roots:
        node = core.topology.of(root.slot)
        if not attendant.is_heard(root) and (node is None or not node.breaker.is_open):
            await attendant.hear(root)
    ticket.is_live = all(map(attendant.is_heard, ticket.roots))


def seen_in(cells: Iterable[CellKey], fetched: Fetched) -> dict[CellKey, Seen]:
    """Those that are there, and are cells."""
    values, ident = fetched
    if isinstance(ident, bytes):
        return {key: (values[key], ident) for key in cells if type(values[key]) is bytes and values[key]}
    return {key: (values[key], ident[key]) for key in cells if type(values[key]) is bytes and values[key]}


async def _minted(
    core: Core, client: LoopClient, cells: Mapping[CellKey, RootNames], fetched: Fetched
) -> dict[CellKey, Seen]:
    """All cells, those that are missing made: before the load, so that a write during it is seen."""
    seen: dict[CellKey, Seen] = {}
    for root in dict.fromkeys(cells.values()):
        keys = [key for key in cells if cells[key] is root]
        here = seen_in(keys, fetched)
        if len(here) == len(keys):
            seen.update(here)
        else:
            seen.update(await mint(core, client, root, keys))
    return seen


async def mint(core: Core, client: LoopClient, root: RootNames, keys: list[CellKey]) -> dict[CellKey, Seen]:
    """These cells of one root as they are, at one moment."""
    names = [root.name(key) for key in keys]
    head = [root.prefix, b"%d" % int(core.options.cell_ttl * 1000), os.urandom(12).hex().encode(), b"", b"0"]
    values, ident = await client.run(
        core.script(MINT), root.slot, [root.registry, *keys], [*head, b"%d" % len(names), *names]
    )
    return {key: (value, ident) for key, value in zip(keys, values, strict=True)}


def _at_once(core: Core, ticket: RedisTicket, data: Any) -> Found | None:
    """The commonest hit without the second look: everything that it depends on was known, and is as it was."""
    if data is OVERSIZED or ticket.watches:
        return None
    for cell in ticket.seen.values():
        if not is_idle(cell):
            return None
    read = read_at_once(data, b"\n".join([b"%b %b %b" % (key, cell[1], cell[0]) for key, cell in ticket.seen.items()]))
    if read is None:
        return None
    loaded, ttl, cost, payload = read
    request = ticket.request
    age = server_time(core, ticket) - loaded
    age = 0.0 if age < 0 else age
    left = (ttl if request.ttl is None or ttl < request.ttl else request.ttl) - age
    if left <= 0:
        return None
    try:
        value = core.options.codec.decode(payload, request.returns)
    except (Undecodable, ValueError, TypeError, RecursionError):
        return None  # counted by the second look
    return Found(value, request.tags, age, cost, left)


async def _current(
    core: Core, client: LoopClient, ticket: RedisTicket, data: Any, known: dict[CellKey, Seen]
) -> Found | None:
    """What the value says, if every cell that it names is as it was."""
    request = ticket.request
    assert ticket.digest is not None
    try:
        if data is OVERSIZED:
            raise BadValue("too large")  # noqa: TRY301 - counted with the others
        header, payload = unpacked(data)
        if not ticket.depends_on.keys() <= header.cells.keys():
            return None  # of a tool that was declared otherwise
        seen = ticket.seen | known
        others = [key for key in header.cells if key not in ticket.depends_on]
        unknown = [key for key in others if key not in seen]
        if unknown:
            seen |= await _fetch_more(core, client, unknown, strong=request.strong)
        for key, version in header.cells.items():
            cell = seen.get(key)
            if cell is None or is_held(cell) or version_of(cell) != version:
                return None
            if request.strong and not is_idle(cell):
                return None  # its writer may have died after its effect: others find it until the lease is over
        late = _late_tags(core, header)
        value = core.options.codec.decode(payload, request.returns)
    except (BadValue, Undecodable, ValueError, TypeError, RecursionError) as error:
        core.counters.bad_values += 1
        core.log.once("a value on the server cannot be read", f"{request.tool}: {error}")
        return None
    ticket.seen = ticket.seen | {key: seen[key] for key in others}
    if others:
        core.memo.keep_cells(ticket.digest, {key: _root_of(core, ticket, key) for key in others})
    return await _aged(core, client, ticket, header, Found(value, request.tags + late, cost=header.cost))


def _late_tags(core: Core, header: Header) -> tuple[str, ...]:
    if not header.late:
        return ()
    late = core.options.codec.decode(header.late, list[str])
    if not isinstance(late, list) or not all(isinstance(tag, str) for tag in late):
        raise BadValue("with tags that are none")
    for tag in late:  # so that messages about them can be read
        core.names.read_by(tag)
    return tuple(late)


async def _fetch_more(core: Core, client: LoopClient, keys: list[CellKey], *, strong: bool) -> dict[CellKey, Seen]:
    """Cells that only the value has named. What is not a cell of ours is not asked for."""
    prefix = b"t:{%b:" % core.names.namespace.encode()
    if len(keys) > 2 * MAX_LATE or not all(key.startswith(prefix) for key in keys):
        raise BadValue("depending on what is no cell")
    return seen_in(keys, await client.fetch([(key, core.slot(key)) for key in keys], strong=strong))


def _root_of(core: Core, ticket: RedisTicket, key: CellKey) -> RootNames:
    for root in ticket.roots:
        if key.startswith(root.prefix):
            return root
    return core.names.root(key.partition(b"{")[2].rpartition(b"}")[0].partition(b":")[2].decode())


async def _aged(core: Core, client: LoopClient, ticket: RedisTicket, header: Header, found: Found) -> Found | None:
    """How old it is and how long it may live. Past its ttl it is served while one process refreshes it."""
    assert ticket.digest is not None
    age = max(0.0, server_time(core, ticket) - header.loaded)
    ttl = header.ttl if ticket.request.ttl is None else min(header.ttl, ticket.request.ttl)
    left = ttl - age
    grace = min(header.grace, ticket.request.grace)
    if left + grace <= 0:
        return None
    is_to_refresh = False
    if left <= 0:
        claim = core.names.claim(ticket.digest)
        period = b"%d" % int(core.options.lease * 1000)
        reply, _ = await client.call(core.slot(claim), b"SET", claim, core.process, b"NX", b"PX", period)
        is_to_refresh = reply is not None
    return Found(found.value, found.tags, age, found.cost, left, is_to_refresh)


def server_time(core: Core, ticket: RedisTicket) -> float:
    """What the clock of the server that keeps a value says now: its expiry is measured by that."""
    assert ticket.digest is not None
    node = core.topology.of(core.slot(core.names.value(ticket.digest)) if core.topology.is_cluster else 0)
    if node is None or node.clock_offset is None:
        raise Unreachable("the server's clock is not known")
    return boottime() + node.clock_offset
