"""Behind the local store: first the backup, then the remote tier, asked before the tool runs, given what it returned.

And the way back: what others write reaches the local store through each tier's listener, and a local copy is served
only as long as every tier behind it is trusted to have passed such news on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from agent_cache._core.entries import NEVER, Entry
from agent_cache._core.ledger import Region
from agent_cache._pipeline.call import Call, Proceed
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.keep import keepsake, put
from agent_cache._pipeline.reaper import free
from agent_cache._pipeline.state import LEDGER, drop, log_once
from agent_cache.remote.protocols import Found, Request, Ticket, Tier, Touched

__all__ = ["consult_tiers", "forget_tiers", "request_of", "trust_in"]


async def consult_tiers(call: Call, proceed: Proceed) -> Entry:
    """Answer from the nearest tier that has it; else run the rest of the plan and let every tier keep the answer.

    A tier that fails is a miss: the tool still runs.
    """
    flight = call.flight
    asked: list[tuple[Tier, Ticket]] = []
    for tier in call.operation.tiers():
        found, ticket = await _ask(tier, call)
        asked.append((tier, ticket))
        flight.tickets += (ticket,)
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
        arguments=_identity(call),
        tags=call.plan.partition.static + call.tags,
        late_roots=operation.late_roots,
        ttl=operation.policy.ttl,
        session=None,
        tenant=call.plan.tenant,
        returns=operation.returns,
    )


def trust_in(tiers: tuple[Tier, ...]) -> Callable[[], float] | None:
    """Listen to these tiers from now on. Returns up to when a local copy may be served that they vouch for."""
    deadlines = [tier.trusted_until if _listen_to(tier) else _never for tier in tiers]
    if len(deadlines) < 2:
        return deadlines[0] if deadlines else None
    return lambda: min(deadline() for deadline in deadlines)


def forget_tiers() -> None:
    """Stop listening. Plans that are compiled later listen again."""
    with LEDGER.lock:
        ends = list(_subscriptions.values())
        _subscriptions.clear()
    for end in ends:
        end()


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


async def _ask(tier: Tier, call: Call) -> tuple[Found | None, Ticket]:
    try:
        return await tier.lookup(request_of(call))
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        log_once(f"lookup in {type(tier).__name__} failed", call.operation.name, error)
        return None, _Unasked()


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
        if isinstance(ticket, _Unasked):
            continue
        try:
            await tier.store(ticket, value, tags, cost, age=CLOCK.now() - call.started)
        except Exception as error:  # noqa: BLE001 - as above
            log_once(f"storing in {type(tier).__name__} failed", call.operation.name, error)


def _identity(call: Call) -> tuple[tuple[str, Any], ...]:
    """The values that the key was made of. Two calls that `key=` or `vary=` tells apart must not meet in a tier."""
    operation, policy = call.operation, call.operation.policy
    if policy.key is None:
        parts = [(name, call.arguments[name]) for name in operation.parameters.key_names]
    else:
        parts = [("key=", policy.key(*call.args, **call.kwargs))]
    if policy.vary is not None:
        parts.append(("vary=", policy.vary(call.arguments) if policy.vary_takes_arguments else policy.vary()))
    return tuple(parts)


# News from elsewhere

_subscriptions: dict[Tier, Callable[[], None]] = {}


def _listen_to(tier: Tier) -> bool:
    """Subscribe once per tier, before anything that it vouches for is kept. Whether that succeeded."""
    with LEDGER.lock:
        if tier in _subscriptions:
            return True
    try:
        end = tier.subscribe(partial(_hear, tier))
    except Exception as error:  # noqa: BLE001 - as above
        log_once("subscription failed, so nothing it vouches for is served locally", type(tier).__name__, error)
        return False
    with LEDGER.lock:
        if _subscriptions.setdefault(tier, end) is end:
            return True
    end()  # another thread was faster
    return True


def _hear(tier: Tier, touched: Touched | None) -> None:
    """Somebody else writes, or news of that may have been missed."""
    if touched is None:
        _drop_all_behind(tier)
        return
    keys: tuple[tuple[Any, Any], ...] = ()
    if touched.keys:
        with LEDGER.lock:
            tools = {home.tool for home in LEDGER.partitions()}
        keys = tuple((tool, key) for name, key in touched.keys for tool in tools if tool.name == name)
    drop(Region(touched.tags, keys))  # what stays in this process depends on the same data, so it goes as well


def _drop_all_behind(tier: Tier) -> None:
    """Drop what this tier vouches for; tools that have nothing to do with it keep their answers."""
    garbage = []
    with LEDGER.lock:
        for tool in {home.tool for home in LEDGER.partitions()}:
            if tier in tool.tiers():
                garbage += LEDGER.clear(tool)
    free(garbage)


def _never() -> float:
    return -NEVER
