"""Rows of single calls: hits, misses and sessions."""

from __future__ import annotations

import gc
from time import perf_counter, thread_time

from agent_cache import AgentCache, AgentCacheSession
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling, calling_each, hitting, measure
from benchmarks.workload import (
    CARD,
    FILTERS,
    LARGER_FILTERS,
    TTL,
    USER,
    USERS,
    filter_tool,
    flat_tool,
    new_ids,
    scalar_tool,
    tree_tool,
    users_in_turn,
)

MANY_CALLS = 100_000
FEW_CALLS = 50
IN_SESSION = 2.0
"""Microseconds that a session may add to a miss."""
IN_TURN = 5.0
"""4.3 by the clock of the wall, which counts the loop over the keys on both sides more."""
FILL = 256
WITHOUT_LIMITS = 10**9


class CardShop:
    """Has a tool as a method."""

    @AgentCache(resource="card", ttl=TTL)
    async def get_card(self, user_id: str) -> str:
        return CARD


async def hits(effort: Effort) -> list[Row]:
    """Hits: scalar and nested arguments, mutable results, outside a session and inside one."""
    return [
        *await _scalar(effort),
        *await _flatness(effort),
        *await _nested(effort),
        *await _mutable(effort),
    ]


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
            "method": hitting(CardShop().get_card, USER),
            "in turn": in_turn,
            "bare, in turn": calling_each(scalar_tool(), users_in_turn),
        },
        effort,
        title="hits, scalar argument",
    )
    bare = figures["bare"]
    nanoseconds = f"bare {bare.spread.median * 1e9:.0f} ns, hit {figures['hit'].spread.median * 1e9:.0f} ns"
    return [
        Row("hit", "scalar argument, immutable result, ttl", figures["hit"].over(bare), "x", 3.4, nanoseconds),
        Row("hit", "the same with an entity tag", figures["entity"].over(bare), "x", 3.5),
        Row("hit", "the same without a ttl", figures["no ttl"].over(bare), "x", 3.5),
        Row("hit", "the same of a method", figures["method"].over(bare), "x", 12.0, "its object is part of the key"),
        Row("hit", f"{USERS} entries in turn", figures["in turn"].over(figures["bare, in turn"]), "x", IN_TURN),
        Row("hit", "the same in a session", figures["session"].over(bare), "x", 8.0, "trace and loop guard on"),
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


def _miss_samples() -> dict[str, tuple[Sample, float]]:
    card = AgentCache(resource="card", ttl=TTL)(scalar_tool())
    entity = AgentCache(resource="card:{user_id}", ttl=TTL)(scalar_tool())
    result = AgentCache(resource="card:{result}", ttl=TTL)(scalar_tool())
    nested = AgentCache(resource="order", ttl=TTL)(tree_tool())
    return {
        "static tag": (calling_each(card, new_ids("a")), 2.4),
        "entity tag": (calling_each(entity, new_ids("b")), 3.0),
        "result tag": (calling_each(result, new_ids("c")), 4.0),
        "nested result": (calling_each(nested, new_ids("d")), 7.0),
    }


async def misses(effort: Effort) -> list[Row]:
    """Misses: the first read of a key, over the undecorated tool.

    Every call has a new key, and the tool keeps its default `maxsize`. So each miss also evicts an entry: the steady
    price of a miss, not that of filling an empty cache.
    """
    subjects: dict[str, Sample] = {
        "bare": calling_each(scalar_tool(), new_ids("x")),
        "bare tree": calling_each(tree_tool(), new_ids("y")),
    }
    limits: dict[str, float] = {}
    for name, (sample, limit) in _miss_samples().items():
        await sample(FILL)
        subjects[name], limits[name] = sample, limit
    for name, (sample, limit) in _miss_samples().items():
        await sample(FILL)
        subjects[f"{name}, in a session"], limits[f"{name}, in a session"] = in_session(sample), limit + IN_SESSION
    figures = await measure(subjects, effort, title="misses")
    table = []
    for name, limit in limits.items():
        base = figures["bare tree" if name.startswith("nested") else "bare"]
        table.append(Row("miss", name, figures[name].above(base).scaled(1e6), "us", limit, "over the bare tool"))
    return table


async def sessions(effort: Effort) -> list[Row]:
    """Opening and closing a session."""

    async def open_and_close(n: int) -> float:
        start = thread_time()
        for _ in range(n):
            async with AgentCacheSession():
                pass
        return thread_time() - start

    figures = await measure({"session": open_and_close}, effort, title="sessions")
    spread = figures["session"].spread.scaled(1e6)
    return [Row("session", "opening and closing a session", spread, "us", 20.0)]


def unlimited_session() -> AgentCacheSession:
    """A session with the trace and the loop guard on, and limits that no benchmark reaches."""
    return AgentCacheSession(max_tool_repeats=WITHOUT_LIMITS, max_execution_depth=WITHOUT_LIMITS)


def in_sessions_of(calls: int, sample: Sample) -> Sample:
    """The same sample in new sessions of `calls` calls each; only the calls are timed.

    At least one whole session: a smaller count is rounded up and the time scaled. Garbage of earlier sessions is
    collected first, because memory that the system hands out for the first time costs more than the calls that fill it.
    """

    async def run(n: int) -> float:
        sessions = max(1, round(n / calls))
        seconds = 0.0
        gc.collect()
        for _ in range(sessions):
            async with unlimited_session():
                await sample(1)
                seconds += await sample(calls)
        return seconds * n / (sessions * calls)

    return run


def in_session(sample: Sample) -> Sample:
    """The same sample in new sessions of 200 calls, the default limit of a session."""
    return in_sessions_of(200, sample)
