"""A machine that sleeps: its usual clock stands still, and messages and expiries go by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache
from agent_cache.clock import CLOCK
from agent_cache.remote.redis import RedisTier, connection, reads, subscriber, transport, writes
from agent_cache.remote.redis.connection import boottime
from agent_cache.testing import reset
from tests.contract.workbench import load, read
from tests.harness.servers import Server

SLEEP = 600.0


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    reset()
    yield valkey
    reset()


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the machine have slept for ten minutes: `time.monotonic` has not moved, as on Linux."""
    slept = [0.0]
    for module in (connection, reads, subscriber, transport, writes):
        monkeypatch.setattr(module, "boottime", lambda: boottime() + slept[0], raising=True)

    def fall_asleep() -> None:
        slept[0] += SLEEP

    return fall_asleep


async def trusted(tier: RedisTier) -> None:
    deadline = time.monotonic() + 60
    while tier.trusted_until() <= CLOCK.now():
        assert time.monotonic() < deadline, "it is not trusted"
        await asyncio.sleep(0.005)


async def test_a_copy_is_not_served_to_the_first_who_asks_after_a_sleep(server: Server, sleep):
    """Not for a moment, although the clock of hits has not moved since the last of them."""
    asked = []
    async with RedisTier.from_url(server.url, max_staleness=5.0, timeout=0.9) as tier:

        @AgentCache("order:{id}", ttl=3000, remote_cache=tier)
        async def get_order(id: str) -> str:
            asked.append(id)
            return "old"

        await get_order("7")
        await trusted(tier)
        assert [await get_order("7") for _ in range(3)] == ["old"] * 3
        hits = tier.stats()["hits"]
        sleep()
        await get_order("7")
        assert tier.stats()["hits"] == hits + 1  # the server was asked


async def test_a_load_from_before_a_sleep_is_not_joined(server: Server, sleep):
    async with RedisTier.from_url(server.url, max_staleness=5.0, timeout=0.9) as tier:
        _, ticket = await tier.lookup(read("order:7"))
        assert ticket.is_joinable()
        sleep()
        assert not ticket.is_joinable()


async def test_what_was_kept_before_a_sleep_is_dropped(server: Server, sleep):
    """Its ttl was measured by the clock that stood still."""
    told: list[object] = []
    async with RedisTier.from_url(server.url, max_staleness=0.6, timeout=0.3) as tier:
        tier.subscribe(told.append)
        await load(tier, read("order:7"), "old")
        await trusted(tier)
        assert told == []
        sleep()
        assert tier.trusted_until() <= CLOCK.now()
        await trusted(tier)
        assert told == [None]


async def test_a_thread_that_is_stopped_between_two_clocks_trusts_no_longer_for_that(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """Under load it may be stopped for long wherever it stands: here, with one clock read and the other not."""

    def and_then_stop() -> float:
        reading = boottime()
        time.sleep(0.1)
        return reading

    async with RedisTier.from_url(server.url, max_staleness=5.0, timeout=0.9) as tier:
        tier.subscribe(lambda _: None)
        await trusted(tier)
        monkeypatch.setattr(subscriber, "boottime", and_then_stop)
        deadline = tier.trusted_until()
        allowed = tier._subscriber.until - boottime()
        assert deadline - CLOCK.now() <= allowed
