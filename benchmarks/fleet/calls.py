"""Hits, misses and writes through a server that is well, over one raw GET in the same round.

The local store is kept so small that it never has the answer, so that each read goes to the server: what it finds
there it decodes, and keeps a local copy that pushes another one out. That is part of the price.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy, configure
from agent_cache.remote.redis import RedisTier
from benchmarks.fleet.paired import Pair, at_once, far_apart, one_by_one, paired
from benchmarks.fleet.peers import PEERS, Tool, raw_client
from benchmarks.table import Row
from benchmarks.timing import Effort
from benchmarks.workload import TTL, USERS, ScalarTool, flat_tool, new_ids, scalar_tool, users_in_turn
from tests.harness.servers import Server

CALLERS = 50
AS_LONG = 20
KEPT = 4
"""Local copies, of a hundred users in turn: none is ever found again."""
RAW, OURS = "raw redis.asyncio GET", "agent_cache"


@dataclass(slots=True)
class Counted:
    """A tool that says how often it ran."""

    tool: ScalarTool
    executions: int = 0

    def wrapped(self) -> ScalarTool:
        async def get_card(user_id: str) -> str:
            self.executions += 1
            return await self.tool(user_id)

        return get_card


class SharedGet:
    """What a crowd can do by hand: all who ask in one iteration of the event loop share one raw MGET."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._waiting: list[tuple[str, asyncio.Future[object]]] = []

    async def __call__(self, user_id: str) -> object:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._waiting.append((f"raw:{user_id}", future))
        if len(self._waiting) > 1:
            return await future
        await asyncio.sleep(0)
        waiting, self._waiting = self._waiting, []
        for (_, each), value in zip(waiting, await self._raw.mget([key for key, _ in waiting]), strict=True):
            each.set_result(value)
        return future.result()


def users_onwards() -> Callable[[int], Sequence[str]]:
    """A source of users in turn that goes on where it was, so that a batch of them has none of the last one."""
    users = itertools.cycle(users_in_turn(USERS))
    return lambda n: list(itertools.islice(users, n))


async def measured(server: Server, effort: Effort) -> tuple[list[Row], list[tuple[str, ...]]]:
    """The rows of the budget, and the lines of the comparison."""
    raw = raw_client(server.port)
    try:
        async with RedisTier.from_url(server.url, namespace="calls") as tier:
            with configure(remote=tier):
                return await _measured(server, tier, raw, effort)
    finally:
        await raw.aclose()


async def _measured(
    server: Server, tier: RedisTier, raw: Any, effort: Effort
) -> tuple[list[Row], list[tuple[str, ...]]]:
    hits, misses, counted, remarks = _ours()
    for user in users_in_turn(USERS):
        await raw.set(f"raw:{user}", json.dumps(await flat_tool()(user)))

    async def get(user_id: str) -> object:
        return await raw.get(f"raw:{user_id}")

    async def put(user_id: str) -> object:
        return await raw.set(f"raw:{user_id}", b"x" * 100, ex=3600)

    hits[RAW] = get
    misses[RAW] = put
    remarks[RAW] = "no decoding; cold: SET alone"
    for peer in PEERS:
        if peer.version is not None:
            card = counted[peer.name] = Counted(scalar_tool())
            hits[peer.name] = misses[peer.name] = await peer.decorate(card.wrapped(), server.port)
            remarks[peer.name] = peer.remark
    for tool in hits.values():
        await asyncio.gather(*(tool(user) for user in users_in_turn(USERS)))
    ran = {name: card.executions for name, card in counted.items()}

    base = one_by_one(get, users_onwards())
    blocks = {f"hit, {name}": one_by_one(tool, users_onwards()) for name, tool in hits.items()}
    crowds = {f"crowd, {name}": at_once(tool, users_onwards(), CALLERS) for name, tool in hits.items()}
    # As long a block as a crowd takes: the longer one is, the more of it goes to others.
    long_base = one_by_one(get, users_onwards(), AS_LONG)
    crowds["crowd, shared"] = at_once(SharedGet(raw), users_onwards(), CALLERS)
    blocks |= {f"write, {name}": one_by_one(tool, users_onwards()) for name, tool in _writes().items()}
    alone = far_apart(_writes()["entity"], users_onwards())
    figures = await paired(
        {name: (block, base) for name, block in blocks.items()}
        | {"alone, entity": (alone, far_apart(get, users_onwards()))}
        | {name: (crowd, long_base) for name, crowd in crowds.items()},
        effort,
        title="hits and writes through the server",
    )
    again = [name for name, card in counted.items() if card.executions != ran[name]]
    if again:
        raise AssertionError(f"these were to be hits, and the tool ran: {again}; {tier.stats()}")
    cold = {f"cold, {name}": (one_by_one(tool, new_ids(f"new{name}")), base) for name, tool in misses.items()}
    figures |= await paired(cold, effort, title="cold reads")
    return _rows(figures), _lines(figures, hits, remarks)


def _ours() -> tuple[dict[str, Tool], dict[str, Tool], dict[str, Counted], dict[str, str]]:
    card, strong = Counted(scalar_tool()), Counted(scalar_tool())
    one = AgentCache("card:{user_id}", ttl=TTL, maxsize=KEPT, name="card")(card.wrapped())
    at_every = AgentCache(
        "card:{user_id}", ttl=TTL, name="strong card", remote=RemotePolicy(consistency="strong")
    )(strong.wrapped())  # fmt: skip
    flat = AgentCache("user:{user_id}", ttl=TTL, maxsize=KEPT, name="user")(flat_tool())
    hits: dict[str, Tool] = {OURS: one, f"{OURS}, strong": at_every, f"{OURS}, a dict": flat}
    remarks = {
        OURS: "coherent within max_staleness; MessagePack",
        f"{OURS}, strong": "coherent at every read; MessagePack",
        f"{OURS}, a dict": "5 scalars in place of a text",
    }
    return hits, {OURS: one}, {OURS: card, f"{OURS}, strong": strong}, remarks


def _writes() -> dict[str, Tool]:
    """Under roots of their own, so that what is to be hit stays."""

    async def put(user_id: str) -> None:
        """A write tool that does nothing itself."""

    async def rename(user_id: str) -> dict[str, str]:
        return {"user_id": user_id}

    return {
        "entity": AgentCacheInvalidator("note:{user_id}", name="put note")(put),
        "root": AgentCacheInvalidator("deck", name="put deck")(put),
        "two roots": AgentCacheInvalidator(["note:{user_id}", "owner:{user_id}"], name="put both")(put),
        "tag from the result": AgentCacheInvalidator("holder:{result[user_id]}", name="rename holder")(rename),
    }


def _rows(figures: dict[str, Pair]) -> list[Row]:
    hit = figures[f"hit, {OURS}"]
    took = f"GET {hit.base.median * 1e6:.0f} us, hit {hit.seconds.median * 1e6:.0f} us"
    rows: tuple[tuple[str, str, float | None, str], ...] = (  # the limits are of processor time
        ("hit, one caller", f"hit, {OURS}", 1.15, took),
        ("hit, one caller, strong", f"hit, {OURS}, strong", None, "for scale"),
        ("hit, one caller, a dict", f"hit, {OURS}, a dict", None, "5 scalars; for scale"),
        (f"hit, {CALLERS} concurrent", f"crowd, {OURS}", 0.35, "each of them"),
        (f"raw GET, {CALLERS} concurrent", f"crowd, {RAW}", None, "for scale"),
        (f"raw MGET, shared by {CALLERS}", "crowd, shared", None, "no cells, no decoding; for scale"),
        ("write of an entity, alone", "alone, entity", 3.1, "5 ms apart; begin, and a commit that is not waited for"),
        ("write of an entity", "write, entity", None, "one after the other; for scale"),
        ("write of a root", "write, root", None, "for scale"),
        ("write under two roots", "write, two roots", None, "for scale"),
        ("write, tag from the result", "write, tag from the result", None, "for scale"),
        ("read that finds nothing", f"cold, {OURS}", None, "look up, mint, load, store; new entities; for scale"),
    )
    return [
        Row("remote", what, pair.processor, "x", limit, f"{pair.ratio.median:.2f}x on the clock; {note}")
        for what, name, limit, note in rows
        for pair in [figures[name]]
    ]


def _lines(figures: dict[str, Pair], hits: dict[str, Tool], remarks: dict[str, str]) -> list[tuple[str, ...]]:
    order = [RAW, *(name for name in hits if name != RAW)]
    return [
        (
            name,
            *(_shown(figures[f"{what}, {name}"]) if f"{what}, {name}" in figures else "" for what in WHATS),
            remarks[name],
        )
        for name in order
    ]


def _shown(pair: Pair) -> str:
    return f"{pair.ratio.median:.2f}x ({pair.ratio.low:.2f} to {pair.ratio.high:.2f})"


WHATS = ("hit", "crowd", "cold")
COMPARISON = ("", "hit, one caller", f"hit, {CALLERS} concurrent", "cold read", "")
