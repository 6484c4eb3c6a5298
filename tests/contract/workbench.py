"""Base class and helpers of the contract of tiers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest

from agent_cache.remote import Found, Request, Tier, WriteIntent

__all__ = [
    "RecordingListener", "Workbench", "commit", "load", "read", "store_over", "value_of",
    "versions_of", "write", "writing",
]  # fmt: skip

_numbers = itertools.count(1)


class Workbench:
    """Hooks of the contract that a subclass overrides.

    Attributes:
        max_staleness: the option that the tiers are made with, in seconds.
        moment: a ttl, or a hold, in seconds: longer than any machine stands still.
        lease: the option that the tiers are made with, in seconds.
    """

    max_staleness: float = 1.0
    moment: float = 100.0
    lease: float = 60.0

    async def make_tiers(self) -> tuple[Tier, Tier]:
        """Make two clients of one empty server, which stand for two processes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_tiers()")

    async def advance(self, seconds: float) -> None:
        """Let time pass, for the library and for the server."""
        raise NotImplementedError

    async def arrive(self) -> None:
        """Return when every message has arrived at its listener. By default messages take no time."""

    async def cut(self, tier: Tier) -> None:
        """Let this client's subscription lose messages without any sign."""
        pytest.skip("the subclass does not define cut() and reconnect()")

    async def reconnect(self, tier: Tier) -> None:
        """Let it subscribe again, after `cut`."""
        raise NotImplementedError

    async def stop_server(self) -> None:
        """Let the server answer no command. It loses nothing."""
        pytest.skip("the subclass does not define stop_server() and start_server()")

    async def start_server(self) -> None:
        """Let it answer again, after `stop_server`."""
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


class RecordingListener(list[Any]):
    """A listener that records its calls."""

    def __call__(self, touched: Any) -> None:
        self.append(touched)

    def concerns(self, tag: str) -> bool:
        """Whether an entry with this tag would have been dropped."""
        return any(touched is None or any(_meet(tag, path) for path in touched.tags) for touched in self)


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
    return WriteIntent(f"write-{next(_numbers)}", tags, late, entries)


async def commit(tier: Tier, write: WriteIntent, *result_tags: str, failed: bool = False, hold: float = 0.0) -> None:
    """End a write."""
    await tier.commit(write, write.tags + result_tags, failed=failed, hold=hold)


@asynccontextmanager
async def writing(tier: Tier, *tags: str, on_unreachable: Literal["run", "refuse"] = "run") -> AsyncIterator[None]:
    """A whole write: begin, and commit at the end."""
    intent = replace(write(*tags), on_unreachable=on_unreachable)
    await tier.begin(intent)
    yield
    await commit(tier, intent)


async def load(tier: Tier, request: Request, value: object, *result_tags: str, inherited: Sequence[Any] = ()) -> Any:
    """Miss, load and store, as the library does."""
    _, ticket = await tier.lookup(request)
    await store_over(tier, ticket, value, request.tags + result_tags, *inherited)
    return ticket


async def store_over(tier: Tier, ticket: Any, value: object, tags: tuple[str, ...], *inherited: Any) -> None:
    """Store a value whose load has read what had these versions, as the library does: not if some are unknown."""
    known = [versions for versions in inherited if versions is not None]
    if len(known) == len(inherited):
        await tier.store(ticket, value, tags, 0.5, age=0.0, inherited=known)


async def versions_of(tier: Tier, request: Request, *result_tags: str) -> Any:
    """Read, as the load of another read does. Returns the versions that it depends on."""
    found, ticket = await tier.lookup(request)
    if found is None:
        await tier.store(ticket, "inner", request.tags + result_tags, 0.5, age=0.0)
    return ticket.versions


async def value_of(tier: Tier, request: Request) -> object:
    """Return the value that is found, or ``"nothing"``."""
    found: Found | None = (await tier.lookup(request))[0]
    return "nothing" if found is None else found.value


def _meet(one: str, other: str) -> bool:
    return all(a == b for a, b in zip(one.split(":"), other.split(":"), strict=False))
