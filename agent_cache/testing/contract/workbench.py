"""What a subclass of the contract provides, and the few words its tests are written in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any
from unittest import SkipTest

from agent_cache.core.tags import meet
from agent_cache.remote.protocol import Found, Request, Tier, Touched, WriteIntent

__all__ = ["News", "Workbench", "commit", "load", "read", "value_of", "write", "writing"]

_numbers = itertools.count(1)


class Workbench:
    """What the tests stand on. A subclass overrides what it can do.

    Attributes:
        max_staleness: the bound that the tiers were made with, in seconds.
        moment: a ttl, or a hold, in seconds: short where time is really waited for, longer than a call takes.
    """

    max_staleness: float = 1.0
    moment: float = 1.0

    async def make_tiers(self) -> tuple[Tier, Tier]:
        """Two clients of one empty server: two processes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_tiers()")

    async def advance(self, seconds: float) -> None:
        """Let time pass, for the library and for the server. The default really waits."""
        await asyncio.sleep(seconds)

    async def arrive(self) -> None:
        """Return when every message that is on its way to a listener has arrived. The default trusts that none takes
        time.
        """

    async def cut(self, tier: Tier) -> None:  # noqa: ARG002 - for subclasses
        """Let this client's subscription lose messages, unnoticed."""
        raise SkipTest("the subclass does not define cut() and reconnect()")

    async def reconnect(self, tier: Tier) -> None:
        """Let it notice and subscribe again. Follows `cut`."""
        raise NotImplementedError

    async def stop_server(self) -> None:
        """Let the server answer nothing, and lose nothing."""
        raise SkipTest("the subclass does not define stop_server() and start_server()")

    async def start_server(self) -> None:
        """Let it answer again. Follows `stop_server`."""
        raise NotImplementedError

    @asynccontextmanager
    async def tiers(self) -> AsyncIterator[tuple[Tier, Tier]]:
        """Two clients, subscribed as the library subscribes them, and closed afterwards."""
        a, b = await self.make_tiers()
        ends = [tier.subscribe(lambda _: None) for tier in (a, b)]
        try:
            yield a, b
        finally:
            for end in ends:
                end()
            await a.aclose()
            await b.aclose()


class News(list[Touched | None]):
    """A listener that remembers what it was told."""

    def __call__(self, touched: Touched | None) -> None:
        """Be told."""
        self.append(touched)

    def concern(self, tag: str) -> bool:
        """Whether an entry with this tag would have been dropped."""
        return any(told is None or any(meet(tag, path) for path in told.tags) for told in self)


def read(
    *tags: str,
    key: Hashable = "7",
    tool: str = "shop:get_order",
    late: tuple[str, ...] = (),
    ttl: float | None = None,
    session: str | None = None,
    tenant: Hashable | None = None,
) -> Request:
    """A read of a tool with one argument."""
    return Request(tool, key, (("id", key),), tags, late, ttl, session, tenant, Any)


def write(*tags: str, late: tuple[str, ...] = (), entries: tuple[Request, ...] = ()) -> WriteIntent:
    """A write, not begun yet."""
    keys = tuple((request.tool, request.key) for request in entries)
    return WriteIntent(f"write-{next(_numbers)}", tags, late, keys, entries)


async def commit(tier: Tier, write: WriteIntent, *told: str, failed: bool = False, hold: float = 0.0) -> None:
    """End a write; `told` are the tags from its result."""
    await tier.commit(write, write.tags + told, failed=failed, hold=hold)


@asynccontextmanager
async def writing(tier: Tier, *tags: str) -> AsyncIterator[None]:
    """A whole write: begin, and commit at the end."""
    intent = write(*tags)
    await tier.begin(intent)
    yield
    await commit(tier, intent)


async def load(tier: Tier, request: Request, value: object, *told: str) -> None:
    """Miss, load and store: what the library does. `told` are the tags from the result."""
    _, ticket = await tier.lookup(request)
    await tier.store(ticket, value, request.tags + told, 0.5, age=0.0)


async def value_of(tier: Tier, request: Request) -> object:
    """What is found, ``"nothing"`` if there is nothing."""
    found: Found | None = (await tier.lookup(request))[0]
    return "nothing" if found is None else found.value
