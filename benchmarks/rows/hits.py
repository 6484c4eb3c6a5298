"""Hits: a scalar argument, a nested one and mutable results, outside a session and inside one."""

from __future__ import annotations

from time import perf_counter

from agent_cache import AgentCache
from benchmarks.rows.sessions import in_session, in_sessions_of
from benchmarks.table import Row
from benchmarks.timing import Effort, calling, calling_each, hitting, measure
from benchmarks.workload import (
    FILTERS,
    LARGER_FILTERS,
    TTL,
    USER,
    USERS,
    filter_tool,
    flat_tool,
    scalar_tool,
    tree_tool,
    users_in_turn,
)

MANY_CALLS = 100_000
FEW_CALLS = 50


async def rows(effort: Effort) -> list[Row]:
    return [*await _scalar(effort), *await _flatness(effort), *await _nested(effort), *await _mutable(effort)]


async def _scalar(effort: Effort) -> list[Row]:
    tool = AgentCache(resource="card", ttl=TTL)(scalar_tool())
    entity = AgentCache(resource="card:{user_id}", ttl=TTL)(scalar_tool())
    plain = AgentCache(resource="card")(scalar_tool())
    in_turn = calling_each(AgentCache(resource="card", ttl=TTL)(scalar_tool()), users_in_turn)
    await in_turn(USERS)
    figures = await measure(
        {
            "bare": calling(scalar_tool(), USER),
            "hit": hitting(tool, USER),
            "entity": hitting(entity, USER),
            "no ttl": hitting(plain, USER),
            "session": in_session(calling(tool, USER)),
            "in turn": in_turn,
            "bare, in turn": calling_each(scalar_tool(), users_in_turn),
        },
        effort,
        title="hits, scalar argument",
    )
    bare = figures["bare"]
    nanoseconds = f"bare {bare.spread.median * 1e9:.0f} ns, hit {figures['hit'].spread.median * 1e9:.0f} ns"
    return [
        Row("hit", "scalar argument, immutable result, ttl", figures["hit"].over(bare), "x", 3.5, nanoseconds),
        Row("hit", "the same with an entity tag", figures["entity"].over(bare), "x", 3.5),
        Row("hit", "the same without a ttl", figures["no ttl"].over(bare), "x", 3.5),
        Row(
            "hit", f"{USERS} entries in turn", figures["in turn"].over(figures["bare, in turn"]), "x", None, "for scale"
        ),
        Row("hit", "the same in a session", figures["session"].over(bare), "x", 9.0, "trace and loop guard on"),
    ]


async def _flatness(effort: Effort) -> list[Row]:
    tool = AgentCache(resource="card", ttl=TTL)(scalar_tool())
    await tool(USER)
    sample = calling(
        tool, USER, clock=perf_counter
    )  # fifty calls are too short for the thread's own clock: 0.5 us a read
    rounds = Effort(rounds=max(9, effort.rounds // 8), seconds=effort.seconds * 4)
    figures = await measure(
        {"few": in_sessions_of(FEW_CALLS, sample), "many": in_sessions_of(MANY_CALLS, sample)},
        rounds,
        title=f"hits, sessions of {FEW_CALLS} and of {MANY_CALLS:,} calls",
    )
    few, many = figures["few"], figures["many"]
    note = f"{many.spread.median * 1e9:.0f} ns a call against {few.spread.median * 1e9:.0f} ns"
    what = f"a call among {MANY_CALLS:,} of a session over one among {FEW_CALLS}"
    return [Row("hit", what, many.over(few), "x", 2.0, note)]


async def _nested(effort: Effort) -> list[Row]:
    tool = AgentCache(resource="orders", ttl=TTL)(filter_tool())
    figures = await measure(
        {
            "bare": calling(filter_tool(), FILTERS),
            "hit": hitting(tool, FILTERS),
            "larger": hitting(tool, LARGER_FILTERS),
            "session": in_session(calling(tool, FILTERS)),
        },
        effort,
        title="hits, nested dict argument",
    )
    bare = figures["bare"]
    larger = "4 keys, a list and a dict inside, 6 leaves; for scale"
    return [
        Row("hit", "nested dict argument", figures["hit"].over(bare), "x", 12.0, "3 keys, a dict inside, 4 leaves"),
        Row("hit", "nested dict argument, in a session", figures["session"].over(bare), "x", 19.0),
        Row("hit", "a larger nested argument", figures["larger"].over(bare), "x", None, larger),
    ]


async def _mutable(effort: Effort) -> list[Row]:
    immutable = AgentCache(resource="card", ttl=TTL)(scalar_tool())
    flat = AgentCache(resource="user", ttl=TTL)(flat_tool())
    tree = AgentCache(resource="order", ttl=TTL)(tree_tool())
    figures = await measure(
        {
            "immutable": hitting(immutable, USER),
            "flat": hitting(flat, USER),
            "tree": hitting(tree, USER),
        },
        effort,
        title="hits, mutable results",
    )
    base = figures["immutable"]
    return [
        Row(
            "hit",
            "protection of a flat dict",
            figures["flat"].above(base).scaled(1e6),
            "us",
            0.25,
            "5 scalars; over the hit",
        ),
        Row(
            "hit", "protection of a tree", figures["tree"].above(base).scaled(1e6), "us", 0.9, "12 leaves; over the hit"
        ),
    ]
