"""Storing an answer under the versions that were seen before its load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_cache.remote.codecs import Unencodable
from agent_cache.remote.redis.clients import LoopClient
from agent_cache.remote.redis.keyspace import CellKey, RootNames
from agent_cache.remote.redis.reads import MAX_LATE, mint, seen_in, server_time
from agent_cache.remote.redis.scripts import RELEASE
from agent_cache.remote.redis.tickets import RedisTicket
from agent_cache.remote.redis.values import (
    MAX_HEAD,
    Header,
    context_of,
    head_of,
    is_held,
    late_context_of,
    lines_of,
    version_of,
)

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["store"]


async def store(core: Core, ticket: RedisTicket, value: Any, tags: tuple[str, ...], cost: float, *, age: float) -> None:
    """Store under the versions that were seen before the load, so that a value overtaken by a write is dead.

    Raises:
        Unreachable: if the server does not take it.
    """
    request, options, place = ticket.request, core.options, ticket.place
    seen = ticket.seen
    if place.digest is None or not place.depends_on.keys() <= seen.keys():
        return
    left = ticket.lasts + request.grace - age
    if left <= 0 or any(is_held(seen[key]) for key in place.depends_on):
        return
    cells = {key: version_of(seen[key]) for key in place.depends_on}
    client = core.client()
    since = ticket.resume()
    late = [tag for tag in dict.fromkeys(tags) if tag not in request.tags]
    if late:
        more = await _recheck(core, client, ticket, late, since)
        if more is None:
            return
        cells |= more
    if core.pending.blocks(cells):
        core.counters.skipped += 1
        return
    data = _written(core, ticket, value, late, cells, cost, server_time(core, ticket) - age)
    if data is None:
        return
    period = min(left, options.cell_ttl)
    milliseconds = b"%d" % max(1, int(period * 1000))
    await client.call(place.slot, b"SET", place.value_key, data, b"PX", milliseconds, since=since)
    core.counters.stores += 1
    own = core.claims.pop(place.digest, None) if core.claims else None
    if own is not None:  # or it would not be loaded anew for a lease, however short its ttl is
        claim = core.names.claim(place.digest)
        await client.run(RELEASE, core.slot(claim), [claim], [own], since=since)


def _written(
    core: Core,
    ticket: RedisTicket,
    value: Any,
    late: list[str],
    cells: dict[CellKey, bytes],
    cost: float,
    loaded: float,
) -> bytes | None:
    """The value as it goes to the server; None if it cannot be written down, or is too large."""
    request, codec, key = ticket.request, core.options.codec, ticket.place.value_key
    try:
        context = late_context_of(key, lines_of(cells))
        said = codec.encode(late, list[str], context=context) if late else b""
        head = head_of(Header(cells, loaded, ticket.lasts, request.grace, cost, said))
        data = head + codec.encode(value, request.returns, context=context_of(key, head))
    except Exception as error:  # noqa: BLE001 - what somebody's codec raises is no reason to fail a call
        core.counters.unencodable += 1
        reason = error if isinstance(error, Unencodable) else type(error).__name__
        core.log.once(f"a result of {request.tool} cannot be written down, so it is kept in this process alone", reason)
        return None
    if len(head) > MAX_HEAD or len(data) - len(head) > core.options.max_value_size:
        core.counters.unencodable += 1
        core.log.once(f"a result of {request.tool} is too large, so it is kept in this process alone", len(data))
        return None
    return data


async def _recheck(
    core: Core, client: LoopClient, ticket: RedisTicket, late: list[str], since: float
) -> dict[CellKey, bytes] | None:
    """The cells of tags that only the result has told, if nothing under their roots was written during the load.

    An entity's own cell, read after the load, would look current whatever came before. What proves that it was not
    written is D, which every write under the root moves, and S; that none was at work before, that they were not held.
    """
    names = core.names
    named: dict[CellKey, RootNames] = {}
    for tag in late if len(late) <= MAX_LATE else [tag.partition(":")[0] for tag in late]:
        named |= names.read_by(tag)
    roots = list(dict.fromkeys(named.values()))
    watched = [cell for root in roots for cell in (root.s, root.d)]
    before = ticket.seen
    if any(cell not in before or is_held(before[cell]) for cell in watched):
        return None
    fetched = await client.fetch([(key, root.slot) for key, root in _with_watched(named, roots).items()], since=since)
    after = seen_in(_with_watched(named, roots), fetched)
    for root in roots:
        keys = [key for key, own in _with_watched(named, roots).items() if own == root]
        if any(key not in after for key in keys):
            after |= await mint(core, client, root, keys, since)
    if any(is_held(after[cell]) or version_of(after[cell]) != version_of(before[cell]) for cell in watched):
        return None
    core.memo.keep_cells(ticket.place.digest or b"", named)
    return {key: version_of(after[key]) for key in named}


def _with_watched(named: dict[CellKey, RootNames], roots: list[RootNames]) -> dict[CellKey, RootNames]:
    return named | {cell: root for root in roots for cell in (root.s, root.d)}
