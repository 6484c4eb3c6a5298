"""What is said at the end: what happened, one line each, and what to copy."""

from __future__ import annotations

from agent_cache._demo.chronicle import Chronicle
from agent_cache._demo.signs import SIGNS, STALE, Sign

__all__ = ["EXAMPLE", "Finding", "findings", "verdict"]

Finding = tuple[Sign, int, str, str]

EXAMPLE = """\
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
@AgentCache("order:{order_id}")             # kept, shared while it loads
async def get_order(order_id: int): return await shop.get(order_id)
@AgentCacheInvalidator("order:{order_id}")  # drops what it makes stale
async def ship_order(order_id: int): return await shop.ship(order_id)
async with AgentCacheSession(): ...         # run your agent in here
"""


def findings(chronicle: Chronicle) -> list[Finding]:
    """The kinds of outcomes: how many there were, what they are called, and what each means."""
    totals = chronicle.totals()
    who = ", ".join(call.agent for call in chronicle.calls if call.outcome == "stopped") or "nobody"
    return [
        (SIGNS["miss"], totals.misses, "misses", "asked the store; kept, unless a write was under way"),
        (SIGNS["hit"], totals.hits, "hits", "asked again later: answered from the cache, at once"),
        (SIGNS["shared"], totals.shared, "shared", "asked at the same time: waited for the run that was under way"),
        (SIGNS["write"], totals.invalidations, "writes", "dropped the answers they made stale, and no others"),
        (SIGNS["stopped"], totals.stopped, "stopped", f"got the same answer five times and learned nothing: {who}"),
    ]


def verdict(chronicle: Chronicle) -> tuple[bool, str]:
    """Whether every answer was right, and the sentence that says so."""
    totals = chronicle.totals()
    checked = f"{totals.checked} of {totals.checked} answers were compared with the store"
    if totals.stale:
        return False, f"{checked}: {totals.stale} {STALE.word}, true at no moment of the call"
    return True, f"{checked}: none was stale"
