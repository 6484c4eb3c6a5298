"""The stage of a write: what its policy and its arguments name, around the tool that does it."""

from __future__ import annotations

from agent_cache.core.store import Entry
from agent_cache.core.tags import Tag
from agent_cache.engine.call import Call, Proceed
from agent_cache.engine.scope import SCOPE
from agent_cache.engine.state import log_once
from agent_cache.engine.writes import Write, tiers_under

__all__ = ["invalidate"]


async def invalidate(call: Call, proceed: Proceed) -> Entry:
    """Begin, run the tool, commit. A tag or key function that raises costs the whole root, never the write itself."""
    write = _write_of(call)
    if write is None:
        return await proceed(call)
    await write.begin()
    for stats in call.plan.stats:
        stats.invalidations += 1
    try:
        entry = await proceed(call)
    except BaseException as error:
        await write.fail(error)
        raise
    await write.succeed(entry.value, ok=call.operation.is_successful(entry.value))
    return entry


def _write_of(call: Call) -> Write | None:
    """What this call touches; None if that is nothing at all, as for a session-scoped invalidator outside a session."""
    operation = call.operation
    policy = operation.policy
    owners = SCOPE.get().owners if policy.scope == "session" else None
    if owners is not None and not owners:
        return None
    if policy.key_fn is not None:
        named = operation.keys_named_by(call)
        roots: tuple[str, ...] = tuple(dict.fromkeys(root for key in named for root in key.request.roots))
        return Write(
            operation.name,
            policy,
            (),
            keys=tuple(key.named for key in named),
            entries=tuple(key.request for key in named),
            owners=owners,
            tiers=tiers_under(roots, operation.own_tiers, in_sessions=owners is not None),
            stats=call.plan.stats,
        )
    tags: tuple[Tag, ...] = operation.tags.static
    bare: tuple[str, ...] = ()
    for rule in operation.tags.early:
        try:
            made = rule.make(call.arguments, None)
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            for stats in call.plan.stats:
                stats.unstored += 1
            log_once(
                f"tags of a write could not be computed from {rule.source!r}, so all of {rule.root!r} was dropped",
                operation.name,
                error,
            )
            made, tags = (), (*tags, rule.root)
        if made == (rule.root,):
            bare += made
        else:
            tags += made
    tiers = tiers_under(operation.tags.roots, operation.own_tiers, in_sessions=owners is not None)
    return Write(
        operation.name,
        policy,
        tags,
        operation.tags.late,
        call.arguments,
        bare,
        owners=owners,
        tiers=tiers,
        stats=call.plan.stats,
    )
