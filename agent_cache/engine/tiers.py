"""Behind the local store: the backup, then the remote tier, asked before the tool runs and given what it returned."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.keys import PLAIN
from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.call import Call, Proceed
from agent_cache.engine.keep import count_unstored, keepsake, put
from agent_cache.engine.news import is_trusted, settle, trust_in
from agent_cache.engine.refreshing import refresh
from agent_cache.engine.scope import TENANT
from agent_cache.engine.state import log_once
from agent_cache.remote.protocol import Found, Request, Ticket, Tier
from agent_cache.values.canonical import is_large, make_room

__all__ = ["ask_first", "consult_tiers", "request_of", "trust_in"]

_MAX_REQUESTS: Final = 1_024


async def ask_first(call: Call, proceed: Proceed) -> Entry:
    """For a tool whose every hit asks: one lookup for each call, before it shares anything.

    What others load is shared by who has seen the versions that they began with: see `Ticket.agrees_with`. Only the
    farthest tier is asked; a nearer one would be as a local copy.
    """
    (tier,) = call.operation.tiers()
    found, ticket = await _ask(tier, (), call)
    call.asked = ((tier, ticket),)
    if found is None or call.is_fresh:
        return await proceed(call)
    call.source = "hit"
    call.flight = _NOT_FLOWN
    if found.is_to_refresh:
        refresh(call)
    return Entry(found.value, 0.0, found.cost)


class _NotFlown:
    """Stands for the flight of a call that was answered before it led one: nothing was kept."""

    kept = kept_tags = None


_NOT_FLOWN: Any = _NotFlown()


async def consult_tiers(call: Call, proceed: Proceed) -> Entry:
    """Answer from the nearest tier that has it; else run the rest of the plan and let every tier keep the answer.

    A tier that fails is a miss: the tool still runs.
    """
    flight = call.flight
    asked = call.asked
    if asked:
        flight.tickets = tuple([ticket for _, ticket in asked])
    else:
        tiers = call.operation.tiers()
        for farther, tier in enumerate(tiers, 1):
            found, ticket = await _ask(tier, tiers[farther:], call)
            asked += ((tier, ticket),)
            flight.tickets += (ticket,)
            if found is not None and not call.is_fresh:
                entry = _fill(call, found)
                if farther > 1 and (found.ttl is None or found.ttl > 0):  # or it is within its grace: kept by nobody
                    await _give(call, asked, farther - 1, found.value, found.tags, found.cost)
                return entry
    entry = await proceed(call)
    if flight.kept_tags is not None:
        await _give(call, asked, len(asked), entry.value, flight.kept_tags, entry.cost)
    return entry


def request_of(call: Call) -> Request:
    """What a tier is told of a call. The same object again for a key that is all texts and numbers, which it may keep:
    no argument can have changed since.
    """
    key, home = call.key, call.plan.partition
    if home is None:
        return _request_of(call)
    request: Request | None = home.requests.get(key)
    if request is None or request.tags != home.static + call.tags:
        request = _request_of(call)
        if _is_plain(key) and not is_large((key, request.tags)):
            make_room(home.requests, _MAX_REQUESTS)
            home.requests[key] = request
    return request


def _is_plain(key: Hashable) -> bool:
    return key is TENANT or type(key) in PLAIN or (type(key) is tuple and all(map(_is_plain, key)))


def _request_of(call: Call) -> Request:
    operation, policy = call.operation, call.operation.policy
    home = call.plan.partition
    return Request(
        tool=operation.name,
        key=call.key,
        arguments=_identity(call),
        tags=operation.tags.static + call.tags,
        late_roots=operation.late_roots,
        ttl=policy.ttl,
        session=home.owner.session_id if home is not None and home.owner is not None else None,
        tenant=call.plan.tenant,
        returns=operation.returns,
        roots=operation.tags.roots,
        grace=policy.remote.grace,
        strong=policy.remote.is_strong,
    )


class _Unasked:
    """The ticket of a tier that failed: nobody knows what was being written, so nobody keeps what is loaded now.

    It may be shared for a second, the default bound of staleness, so that a broken tier does not make every caller run
    the tool.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = CLOCK.now() + 1.0

    def is_clean(self) -> bool:
        return False

    def is_joinable(self) -> bool:
        return CLOCK.now() < self._until

    lasts = None

    def agrees_with(self, other: Ticket) -> bool:  # noqa: ARG002 - it knows nothing, so it agrees with nobody
        return False


async def _ask(tier: Tier, farther: tuple[Tier, ...], call: Call) -> tuple[Found | None, Ticket]:
    try:
        if farther:
            await settle(tier, call.operation.tags.roots)
        found, ticket = await tier.lookup(request_of(call))
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        log_once(f"lookup in {type(tier).__name__} failed", call.operation.name, error)
        return None, _Unasked()
    return (found if all(map(is_trusted, farther)) else None), ticket


def _fill(call: Call, found: Found) -> Entry:
    """A tier had it: keep a local copy that ends no later."""
    call.source = "hit"
    now = CLOCK.now()
    call.started = now - found.age
    local = call.plan.partition.static
    tags = tuple([tag for tag in found.tags if tag not in local]) if local else tuple(found.tags)
    entry = Entry(found.value, NEVER if found.ttl is None else now + found.ttl, found.cost)
    kept = keepsake(call, entry, tags, entry.fast)
    if found.ttl is not None and found.ttl <= 0:  # within its grace
        if found.is_to_refresh:
            refresh(call)
        return entry
    if kept is None:
        count_unstored(call)
    else:
        put(call, kept, tags)
    return entry


async def _give(
    call: Call, asked: tuple[tuple[Tier, Ticket], ...], count: int, value: Any, tags: tuple[str, ...], cost: float
) -> None:
    """Let the nearest `count` tiers keep a value, each if all tiers behind it would let the local store keep it."""
    for farther, (tier, ticket) in enumerate(asked[:count], 1):
        if isinstance(ticket, _Unasked) or not all(behind.is_clean() for _, behind in asked[farther:]):
            continue
        try:
            await tier.store(ticket, value, tags, cost, age=CLOCK.now() - call.started)
        except Exception as error:  # noqa: BLE001 - as above
            log_once(f"storing in {type(tier).__name__} failed", call.operation.name, error)


def _identity(call: Call) -> tuple[tuple[str, Any], ...]:
    """The values that the key was made of. Two calls that `key=` or `vary=` tells apart must not meet in a tier."""
    operation, policy = call.operation, call.operation.policy
    if policy.key is None:
        arguments = call.arguments
        parts = [(name, arguments[name]) for name in operation.key_names]
    else:
        parts = [("key=", policy.key(*call.args, **call.kwargs))]
    if policy.vary is not None:
        parts.append(("vary=", policy.vary(call.arguments) if policy.vary_takes_arguments else policy.vary()))
    return tuple(parts)
