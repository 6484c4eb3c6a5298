"""What stands at the end of a plan: the tool itself."""

from __future__ import annotations

from agent_cache._core.entries import Entry
from agent_cache._pipeline.call import Call
from agent_cache._pipeline.clock import CLOCK

__all__ = ["run_tool"]


async def run_tool(call: Call) -> Entry:
    """Run the tool and measure what it took. What it raises goes through unchanged."""
    call.started = started = CLOCK.now()
    function = call.operation.function
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    return Entry(value, 0.0, CLOCK.now() - started)
