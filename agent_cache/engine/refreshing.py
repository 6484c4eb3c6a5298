"""Loading an answer anew while the old one is served: what `grace=` allows."""

from __future__ import annotations

import asyncio

from agent_cache.engine.call import ENCLOSING, Call
from agent_cache.engine.state import log_once

__all__ = ["refresh"]

_under_way: set[asyncio.Task[None]] = set()
"""Something must hold a task that nobody awaits."""


def refresh(call: Call) -> None:
    """Run a call's tool again behind its back. It looks at the versions itself, so a write in between is not missed.

    It is no call of the agent's: sessions neither count it nor see it, and its failure is counted and logged.
    """
    again = Call(call.operation, call.plan, call.key, call.args, call.kwargs, "miss")
    again.is_fresh = True
    again.tags = call.tags
    again.parent = again.leading = None
    task = asyncio.get_running_loop().create_task(_load(again), name=f"agent_cache refreshes {call.operation.name}")
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _load(call: Call) -> None:
    ENCLOSING.set(call)
    stats = call.operation.stats
    stats.misses += 1
    try:
        await call.plan.run(call)
    except Exception as error:  # noqa: BLE001 - the tool's own; the caller has had its answer
        stats.errors += 1
        log_once("loading an answer anew within its grace failed", call.operation.name, error)
