"""What stands at the end of a plan: the tool itself."""

from __future__ import annotations

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.engine.call import Call
from agent_cache.engine.keep import keep

__all__ = ["load", "run_tool"]


async def run_tool(call: Call) -> Entry:
    """Run the tool and measure what it took. What it raises goes through unchanged."""
    function = call.operation.function
    call.started = started = CLOCK.now()
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    return Entry(value, 0.0, CLOCK.now() - started)


async def load(call: Call) -> Entry:
    """Run the tool under a flight, and keep its answer before anybody has it.

    As `run_tool`, said again: a coroutine more would be a fifteenth of what a miss may cost.
    """
    function = call.operation.function
    call.started = started = CLOCK.now()
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    entry = Entry(value, 0.0, CLOCK.now() - started)
    keep(call, entry)
    return entry
