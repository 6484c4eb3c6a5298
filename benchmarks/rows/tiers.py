"""Rows of hits on local copies of tools that have a tier, over a hit of the same tool without one."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from typing import Any

from agent_cache import AgentCache
from agent_cache.core.lease import Lease
from agent_cache.remote import Found, Request, WriteIntent
from agent_cache.remote.protocol import Ticket, Versions
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, hitting, measure
from benchmarks.workload import TTL, USER, scalar_tool
from tests.harness.binaries import ServerUnavailableError
from tests.harness.servers import Server

ONE_WORD = 1.25
REDIS = 1.6


class WordTicket:
    """A ticket whose copies are valid while one word of shared memory stays as it is."""

    lasts = None
    versions: Versions | None = None

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def is_clean(self) -> bool:
        return True

    def is_joinable(self) -> bool:
        return True

    def agrees_with(self, other: Ticket) -> bool:
        return True


class WordTier:
    """A tier that holds nothing: what is measured is the local copy."""

    lease = 10.0

    def __init__(self) -> None:
        self._page = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._page[0] = 1_000_000  # it has changed often

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        return None, WordTicket(Lease(self._page, self._page[0]))

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float, **_: Any) -> None: ...

    async def discard(self, request: Request) -> bool:
        return False

    async def begin(self, write: WriteIntent) -> None: ...

    async def renew(self, write: WriteIntent) -> None: ...

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None: ...

    def trusted_until(self) -> float:
        return float("-inf")  # its tickets know better

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: None

    async def aclose(self) -> None: ...


async def hits(effort: Effort) -> list[Row]:
    """With a tier whose trust is one word, and with `RedisTier`; without that where it cannot be used."""
    subjects: dict[str, Sample] = {"none": _hit("benchmarks.rows.tiers:none", None)}
    subjects["one word"] = _hit("benchmarks.rows.tiers:word", WordTier())
    try:
        from agent_cache.remote.redis import RedisTier

        server = await asyncio.to_thread(Server.start)
    except (ImportError, ServerUnavailableError):
        return await _measured(subjects, effort)
    with server:
        async with RedisTier.from_url(server.url, namespace="hits") as tier:
            subjects["RedisTier"] = _hit("benchmarks.rows.tiers:redis", tier)
            await subjects["RedisTier"](1)
            await tier.caught_up()
            return await _measured(subjects, effort)


def _hit(name: str, tier: Any) -> Sample:
    """A sample of hits, which fails if one of the calls was none."""
    tool, runs = scalar_tool(), 0

    async def get_card(user_id: str) -> str:
        nonlocal runs
        runs += 1
        return await tool(user_id)

    sample = hitting(AgentCache(resource="card", ttl=TTL, name=name, remote_cache=tier)(get_card), USER)

    async def run(n: int) -> float:
        seconds = await sample(n)
        assert runs == 1, f"{name} ran more than once"
        return seconds

    return run


async def _measured(subjects: dict[str, Sample], effort: Effort) -> list[Row]:
    figures = await measure(subjects, effort, title="hits, with tiers")
    base = figures["none"]
    rows: Sequence[tuple[str, str, float]] = (
        ("one word", "a copy of a tier whose trust is one word", ONE_WORD),
        ("RedisTier", "a copy of RedisTier", REDIS),
    )
    return [
        Row("hit", what, figures[name].over(base), "x", limit, f"{figures[name].spread.median * 1e9:.0f} ns; over none")
        for name, what, limit in rows
        if name in figures
    ]
