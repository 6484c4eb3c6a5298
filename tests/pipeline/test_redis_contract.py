"""Real servers keep the contract that every tier must keep: Valkey, Redis, and a cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.remote import Tier
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.connection import Connection
from agent_cache.remote.redis.deployments import Address, Deployment
from tests.contract import TierContract
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.servers import HOST, Server


class OnServers(TierContract):
    """Two tiers, each behind proxies of its own."""

    max_staleness = 4.0
    moment = 0.3
    short_lease = 0.6
    servers: tuple[Server, ...]

    @pytest.fixture(autouse=True)
    def proxies(self) -> Iterator[None]:
        with ExitStack() as self.exits:
            yield

    def tier(self, proxies: dict[int, Proxy], **options: Any) -> RedisTier:
        raise NotImplementedError

    def empty(self) -> Iterable[Server]:
        return self.servers

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.exits.close()
        for server in self.empty():
            server.command("FLUSHALL")
        options = {"max_staleness": self.max_staleness, "timeout": 3.0, "lease": self.lease}
        self.made = {}
        for _ in range(2):
            proxies = {
                server.port: self.exits.enter_context(Proxy.start(server.port)) for server in self.servers
            }  # fmt: skip
            self.made[self.tier(proxies, **options)] = list(proxies.values())
        # A busy machine takes a while to connect; a first read would go on without hearing of writes.
        await asyncio.gather(*(tier.caught_up() for tier in self.made))
        a, b = self.made
        return a, b

    async def cut(self, tier: Tier) -> None:
        for proxy in self.made[tier]:
            proxy.lose_news()

    async def reconnect(self, tier: Tier) -> None:
        for proxy in self.made[tier]:
            proxy.heal()
            proxy.cut_subscribers()

    async def arrive(self) -> None:
        for tier in self.made:
            for _ in range(100):
                if await tier.caught_up():
                    break
                await asyncio.sleep(0.01)

    async def stop_server(self) -> None:
        for server in self.servers:
            server.pause()
            self.exits.callback(server.resume)

    async def start_server(self) -> None:
        for server in self.servers:
            server.resume()
        for tier in self.made:
            for _ in range(500):
                stats = tier.stats()
                if not stats["pending"] and set(stats["servers"].values()) == {"ok"}:
                    break
                await asyncio.sleep(0.01)


class TestRedisTier(OnServers):
    """On one server of each kind."""

    @pytest.fixture(autouse=True)
    def server(self, any_server: Server) -> None:
        self.servers = (any_server,)

    def tier(self, proxies: dict[int, Proxy], **options: Any) -> RedisTier:
        (proxy,) = proxies.values()
        return RedisTier.from_url(proxy.url, **options)


LONG = (  # each waits half a second and more; on a file and in memory they run by default, two of their kinds here too
    "test_a_begin_that_arrives_after_its_commit_costs_a_lease_and_no_more",
    "test_a_begin_that_arrives_late_restores_nothing_that_inherits",
    "test_a_claim_that_has_become_another_ones_is_left_to_it",
    "test_a_claim_that_is_renewed_lasts",
    "test_a_commit_after_the_lease_still_ends_what_it_names",
    "test_a_death_is_noticed_although_another_writer_is_at_work",
    "test_a_load_that_begins_in_a_write_and_ends_after_it_is_never_found_either",
    "test_a_server_that_is_away_makes_every_read_a_miss",
    "test_a_value_may_live_for_less_than_others_of_its_tool",
    "test_a_write_is_made_up_for_when_the_server_is_back",
    "test_a_write_that_asks_for_it_is_refused_without_the_server",
    "test_a_write_that_is_renewed_keeps_its_hold",
    "test_a_write_that_is_renewed_keeps_its_root_armed",
    "test_a_writer_that_dies_before_it_tells_takes_what_inherits_with_it",
    "test_an_old_load_is_shared_only_as_long_as_messages_come_in",
    "test_local_copies_are_trusted_for_the_bound_of_staleness_at_the_most",
    "test_nothing_is_stored_for_a_lease_after_a_writer_has_died",
    "test_nothing_is_stored_while_what_it_depends_on_is_written",
    "test_the_end_of_a_lease_is_a_move",
    "test_trust_lapses_when_messages_stop_coming_in",
    "test_what_is_loaded_without_the_server_is_not_stored_when_it_is_back",
    "test_within_its_grace_a_value_is_known_to_be_old",
    "test_without_the_server_each_loads_by_itself",
)


def is_slow(name: str) -> Any:
    """The same test, marked."""
    test = getattr(OnServers, name)

    @functools.wraps(test)
    async def marked(self: TestRedisTier) -> None:
        await test(self)

    return pytest.mark.slow(marked)


for name in LONG:
    setattr(TestRedisTier, name, is_slow(name))
del name


@dataclass(frozen=True, slots=True)
class Detour(Deployment):
    """A cluster whose nodes are reached through proxies, wherever they say that they are."""

    detours: dict[int, Proxy] = field(default_factory=dict)


@pytest.fixture
def detours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect to the proxies of a `Detour` in place of its nodes."""
    opened = Connection.open

    async def open_detour(deployment: Deployment, address: Address, **options: Any) -> Connection:
        if isinstance(deployment, Detour):
            address = address[0], deployment.detours[address[1]].port
        return await opened(deployment, address, **options)

    monkeypatch.setattr(Connection, "open", open_detour)


@pytest.mark.slow
class TestClusterTier(OnServers):
    """On a cluster: what belongs to one write is on several servers."""

    @pytest.fixture(autouse=True)
    def whole(self, cluster: Cluster, detours: None) -> Iterator[None]:
        self.cluster = cluster
        self.servers = cluster.nodes
        self.primaries = cluster.primaries
        self.was_stopped = False
        yield
        if self.was_stopped:
            for node in cluster.nodes:
                node.resume()
            cluster.wait_until_ok()

    def empty(self) -> Iterable[Server]:
        return self.primaries

    def tier(self, proxies: dict[int, Proxy], **options: Any) -> RedisTier:
        seeds = tuple((HOST, server.port) for server in self.primaries)
        return RedisTier(Detour("cluster", {}, seeds, detours=proxies), **options)

    async def stop_server(self) -> None:
        self.was_stopped = True
        await super().stop_server()

    async def start_server(self) -> None:
        for server in self.servers:
            server.resume()
        await asyncio.to_thread(self.cluster.wait_until_ok)
        await super().start_server()
