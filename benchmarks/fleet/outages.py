"""What a server that is not there costs those who read: once the timeout, then nothing.

Three ways to be not there: nobody listens on the port, the server is stopped but its system goes on accepting, and
the way to it swallows what is sent. Each meets a tier that was at work, and one that has just been made.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.remote.redis import RedisTier
from benchmarks.fleet.peers import Tool, raw_client
from benchmarks.table import Row
from benchmarks.timing import Effort, Spread, progress
from benchmarks.workload import TTL, new_ids, scalar_tool
from tests.harness.proxies import Proxy
from tests.harness.servers import Server

TIMEOUT = 0.25
FOLLOWING = 400
REPEATS = 7
LATE = 0.05
"""Seconds over the timeout that a busy machine is forgiven."""
Outage = Callable[[Server, Proxy], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one outage, in seconds: the first read, the median and the longest of those that follow, the first write."""

    first: float
    following: float
    longest: float
    write: float


OUTAGES: dict[str, Outage] = {
    "refused port": lambda server, proxy: proxy.refuse(),
    "SIGSTOP": lambda server, proxy: server.pause(),
    "black hole": lambda server, proxy: proxy.half_open(),
}


async def rows(server: Server, effort: Effort) -> list[Row]:
    raw = raw_client(server.port)
    table = []
    with Proxy.start(server.port) as proxy:
        for name, outage in OUTAGES.items():
            costs: dict[str, list[Cost]] = {"at work": [], "new": []}
            gets: list[float] = []
            for number in range(REPEATS):
                progress(f"{name}, again and again", number, REPEATS)
                gets.append(await _get(raw))
                for kind, into in costs.items():
                    with _over(server, proxy):
                        into.append(await _cost(server, proxy, outage, is_new=kind == "new"))
            progress(name, REPEATS, REPEATS)
            for kind, found in costs.items():
                table += _rows(f"{name}, {'a tier at work' if kind == 'at work' else 'a new tier'}", found, gets)
    await raw.aclose()
    return table


def _rows(what: str, found: list[Cost], gets: list[float]) -> list[Row]:
    longest = max(cost.longest for cost in found) * 1e3
    written = statistics.median(cost.write for cost in found)
    over = [cost.following / get for cost, get in zip(found, gets, strict=True)]
    return [
        Row(
            "dead server", f"{what}: first read", Spread.of([cost.first * 1e3 for cost in found]), "ms",
            (TIMEOUT + LATE) * 1e3,
            f"timeout {TIMEOUT * 1e3:.0f} ms; a write thereafter {written * 1e3:.2f} ms",
        ),
        Row(
            "dead server", f"{what}: each of the next {FOLLOWING}", Spread.of(over), "x", 1.0,
            f"of one GET when it was alive; {statistics.median(cost.following for cost in found) * 1e6:.0f} us, "
            f"longest {longest:.1f} ms",
        ),
    ]  # fmt: skip


@contextmanager
def _over(server: Server, proxy: Proxy) -> Iterator[None]:
    """What follows is an outage, and is over at the end."""
    try:
        yield
    finally:
        server.resume()
        proxy.heal()
        proxy.cut()


async def _cost(server: Server, proxy: Proxy, outage: Outage, *, is_new: bool) -> Cost:
    card = AgentCache("card:{user_id}", ttl=TTL, name="card")(scalar_tool())

    async def put(user_id: str) -> None:
        """A write tool that does nothing itself."""

    write = AgentCacheInvalidator("card:{user_id}", name="put")(put)
    users = new_ids("user_")
    async with RedisTier.from_url(proxy.url, namespace="outages", timeout=TIMEOUT) as tier:
        with configure(remote=tier):
            if not is_new:
                for user in users(20):
                    await card(user)
                if not await tier.caught_up():
                    raise AssertionError(f"the server is there, and is not used: {tier.stats()}")
            outage(server, proxy)
            (first, *rest) = [await _timed(card, user) for user in users(1 + FOLLOWING)]
            return Cost(first, statistics.median(rest), max(rest), await _timed(write, "user_1"))


async def _timed(tool: Tool, argument: str) -> float:
    start = perf_counter()
    await tool(argument)
    taken = perf_counter() - start
    await asyncio.sleep(0)  # an agent lets others have their turn, too
    return taken


async def _get(raw: object) -> float:
    taken = []
    for _ in range(200):
        start = perf_counter()
        await raw.get("nothing")  # type: ignore[attr-defined]
        taken.append(perf_counter() - start)
    return statistics.median(taken)
