"""Behind the local store: first the backup, then the remote tier. Each is asked before the tool runs, and given what it returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_cache._core.entries import NEVER, Entry
from agent_cache._pipeline.call import Call, Proceed
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.keep import keepsake, put
from agent_cache._pipeline.state import log_once
from agent_cache.remote.protocols import Found, Request, Ticket, Tier

__all__ = ["consult_tiers", "request_of", "trust_in"]


async def consult_tiers(call: Call, proceed: Proceed) -> Entry:
    """Answer from the nearest tier that has it; else run the rest of the plan and let every tier keep the answer.

    A tier that fails is a miss: the tool still runs.
    """
    tiers = call.operation.tiers()
    request = request_of(call)
    flight = call.flight
    asked: list[tuple[Tier, Ticket]] = []
    for tier in tiers:
        try:
            found, ticket = await tier.lookup(request)
        except Exception as error:
            log_once(f"lookup in {type(tier).__name__} failed", call.operation.name, error)
            continue
        asked.append((tier, ticket))
        flight.tickets = tuple(ticket for _, ticket in asked)
        if found is not None and not call.is_fresh:
            return await _fill(call, found, asked)
    entry = await proceed(call)
    if flight.kept_tags is not None:
        await _give(call, asked, entry.value, flight.kept_tags, entry.cost)
    return entry


def request_of(call: Call) -> Request:
    """What a tier is told of a call."""
    operation = call.operation
    return Request(
        tool=operation.name,
        key=call.key,
        arguments=tuple((name, call.arguments[name]) for name in operation.parameters.key_names),
        tags=call.plan.partition.static + call.tags,
        late_roots=operation.late_roots,
        ttl=operation.policy.ttl,
        session=None,
        tenant=call.plan.tenant,
        returns=operation.returns,
    )


def trust_in(tiers: tuple[Tier, ...]) -> Callable[[], float] | None:
    """Up to when a local copy may be served that these tiers vouch for."""
    if not tiers:
        return None
    if len(tiers) == 1:
        return tiers[0].trusted_until
    return lambda: min(tier.trusted_until() for tier in tiers)


async def _fill(call: Call, found: Found, asked: list[tuple[Tier, Ticket]]) -> Entry:
    """A tier had it: keep a local copy that ends no later, and let the nearer tiers have it."""
    call.source = "hit"
    now = CLOCK.now()
    call.started = now - found.age
    local = call.plan.partition.static
    tags = tuple(tag for tag in found.tags if tag not in local)
    entry = Entry(found.value, NEVER if found.ttl is None else now + found.ttl, found.cost)
    kept = keepsake(call, entry, tags, entry.fast)
    if kept is not None:
        put(call, kept, tags)
    await _give(call, asked[:-1], found.value, found.tags, found.cost)
    return entry


async def _give(call: Call, asked: list[tuple[Tier, Ticket]], value: Any, tags: tuple[str, ...], cost: float) -> None:
    for tier, ticket in asked:
        try:
            await tier.store(ticket, value, tags, cost)
        except Exception as error:
            log_once(f"storing in {type(tier).__name__} failed", call.operation.name, error)

