"""Results that live on since their source says that they still hold: `validate=`.

Of such a tool an entry stays in its store after its expiry. A load that finds one asks the validator before it runs the
tool, as a part of the same flight: so equal calls share one question, a claim in a tier covers it, and what it reads
through other tools is inherited. If the result still holds, it is stored again, as if the tool had returned it, with
all that the old entry depends on. The load keeps the version at which it began, so a write that comes while the
validator runs keeps the result from being stored; then the tool runs.
"""

from __future__ import annotations

from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.core.options import plain_result
from agent_cache.core.store import NEVER, Entry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.call import run_tool
from agent_cache.engine.result import inherit_entry, store_result
from agent_cache.engine.scope import Call
from agent_cache.engine.stale import is_refresh
from agent_cache.engine.state import warn_once
from agent_cache.values.canonical import MISSING

__all__ = ["validated_load"]


async def validated_load(call: Call) -> Any:
    """Run a load of a tool with `validate=`, and store its result: its `own_load`."""
    flight, policy = call.flight, call.operation.policy
    call.within = flight if policy.inherit else None
    previous = None if call.is_fresh and not is_refresh(call) else call.local.store.lookup(call.key)
    value = MISSING if previous is None else await _validated(call, previous)
    if value is MISSING:
        value = await run_tool(call)
    store_result(call, value)
    if policy.lasts is not None and flight.result is not None:
        flight.result.loaded = call.started if previous is None or call.source == "miss" else previous.loaded
    return value


async def _validated(call: Call, previous: Entry) -> Any:
    """The value of an entry that still holds; `MISSING` if the tool must run."""
    flight, store, lasts = call.flight, call.local.store, call.operation.policy.lasts
    # Only the process that ran the tool knows when that was: in others, which have it from a tier, it does not last.
    ends = NEVER if lasts is None else getattr(previous, "loaded", -NEVER) + lasts
    call.started = CLOCK.now()
    value = previous.expired_value() if call.started < ends else MISSING
    if value is MISSING or not inherit_entry(flight, call.local, call.key, previous):
        return MISSING
    assert flight.inherited is not None
    flight.inherited.expires = ends  # that the old entry has expired says nothing now
    # The validator may change its copy, so that the caller gets another one.
    if await _still_holds(call, value) and store.is_current(call.key, previous):
        value = previous.share()
        if value is not MISSING:
            call.source, call.cost = "validated", previous.cost
            return value
    with VERSIONS.lock:  # the tool has not started yet, and depends on nothing of this
        flight.inherited, flight.since = None, store.versions.now
    return MISSING


async def _still_holds(call: Call, value: Any) -> bool:
    operation = call.operation
    try:
        answer = operation.policy.validate(value, *call.args, **call.kwargs)
        if operation.is_sync:
            plain_result(answer, "validate= of a `def`")
        elif hasattr(type(answer), "__await__"):
            answer = await answer
        return bool(answer)
    except Exception as error:
        if call.local.has_refused(error):
            raise
        warn_once("validate= raised, so the tool ran", operation.name, error)
        return False
