"""Rows of middleware and audits: what they cost where they are used. Unused they cost nothing, which the rows of the
other groups show against an earlier checkout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, ToolCall, configure
from benchmarks.rows.calls import in_session
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling, calling_each, measure
from benchmarks.workload import TTL, USER, new_ids, scalar_tool, users_in_turn

FILL = 256
SHARE = 0.01
"""A share of the hits to audit in production."""


async def rows(effort: Effort) -> list[Row]:
    """Hits, misses and writes with a middleware, and hits of which some are audited."""
    card = AgentCache(resource="card:{user_id}", ttl=TTL)(scalar_tool())
    audited = AgentCache(resource="card:{user_id}", ttl=TTL, audit=SHARE)(scalar_tool())
    exempt = AgentCache(resource="card:{user_id}", ttl=TTL, audit=0.0)(scalar_tool())
    put = AgentCacheInvalidator(resource="card:{user_id}")(scalar_tool())
    hit, miss, write = calling(card, USER), calling_each(card, new_ids("m")), calling_each(put, users_in_turn)
    checked, unchecked = calling(audited, USER), calling(exempt, USER)
    await miss(FILL)
    figures = await measure(
        {
            "hit": hit,
            "hit, one": observed(hit, 1),
            "miss": miss,
            "miss, one": observed(miss, 1),
            "miss, three": observed(miss, 3),
            "write": write,
            "write, one": observed(write, 1),
            "not audited": unchecked,
            "audited": checked,
            "not audited, in a session": in_session(unchecked),
            "audited, in a session": in_session(checked),
        },
        effort,
        title="middleware and audits",
    )
    one, three = figures["miss, one"], figures["miss, three"]
    return [
        Row("observe", "hit with a middleware, over one without", figures["hit, one"].over(figures["hit"]), "x", 1.15),
        Row("observe", "miss: what one middleware adds", one.above(figures["miss"]).scaled(1e6), "us", 4.5),
        Row("observe", "miss: what each further one adds", three.above(one).scaled(5e5), "us", 2.5),
        Row("observe", "write: what one adds", figures["write, one"].above(figures["write"]).scaled(1e6), "us", 6.5),
        Row(
            "observe",
            f"hit of which {SHARE:.0%} are audited, over one that is not",
            figures["audited"].over(figures["not audited"]),
            "x",
            4.0,
            "the lookup is a function of Python",
        ),
        Row(
            "observe",
            "the same in a session",
            figures["audited, in a session"].over(figures["not audited, in a session"]),
            "x",
            3.0,
        ),
    ]


def observed(sample: Sample, count: int) -> Sample:
    """The same sample with so many middleware. The plans are compiled before it is timed."""

    async def run(n: int) -> float:
        functions = [_another() for _ in range(count)]
        with configure(middleware=functions):
            await sample(1)
            return await sample(n)

    return run


def _another() -> Callable[[ToolCall, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """A middleware that does nothing."""

    async def another(call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        return await proceed()

    return another
