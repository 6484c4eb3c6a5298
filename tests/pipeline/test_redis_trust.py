"""Local copies over real servers: each is trusted as long as the messages about its own roots arrive, and no longer."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.clock import CLOCK
from agent_cache.core.lease import Term
from agent_cache.remote import Touched
from agent_cache.remote.redis import RedisTier, keyspace, subscriber, writes
from agent_cache.remote.redis.connection import boottime
from agent_cache.remote.redis.keyspace import topics_of
from agent_cache.remote.redis.scripts import Script
from agent_cache.remote.redis.subscriber import Trust
from tests.contract.workbench import load, read, writing
from tests.harness.clusters import Cluster, slot_of
from tests.harness.proxies import Proxy
from tests.harness.rights import least
from tests.harness.servers import HOST, Server
from tests.harness.tiers import Make, making, until
from tests.pipeline.test_redis_contract import Detour, detours  # noqa: F401 - a fixture


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(max_staleness=2.0, timeout=1.0, lease=20.0) as make:
        yield make


class Shop:
    """A tool that reads orders through a tier, or what else its tags say, and counts its runs."""

    def __init__(self, tier: RedisTier, tags: str = "order:{id}", **options: Any) -> None:
        self.tier = tier
        self.runs = 0
        self.value = "old"

        @AgentCache(tags, remote_cache=tier, name=f"{tags} of {id(tier)}", **options)
        async def get(id: Any) -> Any:
            self.runs += 1
            return self.value

        self.get = get

    async def asks_server(self, *arguments: Any) -> bool:
        """Whether a read is not answered by a local copy."""
        before = self.tier.stats()
        await self.get(*arguments)
        after = self.tier.stats()
        return any(before[name] != after[name] for name in ("hits", "misses", "skipped"))

    async def keeps(self, *arguments: Any) -> None:
        """Read until a local copy answers."""
        await until_async(lambda: self.asks_server(*arguments), wanted=False)


async def until_async(condition: Callable[[], Awaitable[bool]], *, wanted: bool = True) -> None:
    async with asyncio.timeout(60):
        while await condition() is not wanted:
            await asyncio.sleep(0.005)


def subscriptions(server: Server) -> set[str]:
    """The channels about data that somebody subscribes to, without that of ttls."""
    return set(server.command("PUBSUB", "CHANNELS")) - {"c:{agent_cache::ttl}"}


# Trust per root


@pytest.fixture
def behind_proxies(cluster: Cluster, detours: None) -> Iterator[tuple[Detour, dict[int, Proxy]]]:  # noqa: F811
    """The cluster, each node of it behind a proxy."""
    with ExitStack() as exits:
        proxies = {node.port: exits.enter_context(Proxy.start(node.port)) for node in cluster.nodes}
        seeds = tuple((HOST, node.port) for node in cluster.primaries)
        yield Detour("cluster", {}, seeds, detours=proxies), proxies


@pytest.mark.slow
async def test_a_dead_shard_costs_the_copies_under_its_own_roots_and_no_others(
    make: Make, cluster: Cluster, behind_proxies
):
    deployment, proxies = behind_proxies
    tier = make(deployment)
    homes = {f"root{number}": cluster.primary_for(f"t:{{agent_cache:root{number}}}:S") for number in range(40)}
    dead, other = list(dict.fromkeys(homes.values()))[:2]
    lost, kept = (next(root for root in homes if homes[root] is node) for node in (dead, other))
    shops = {root: Shop(tier, f"{root}:{{id}}") for root in (lost, kept)}
    both = Shop(tier, f"{lost}:{{id}}, {kept}:{{id}}".split(", "))
    for shop in (*shops.values(), both):
        await shop.keeps("7")
    runs = shops[kept].runs
    proxies[dead.port].half_open()
    for shop in (shops[lost], both):
        await until_async(lambda: shop.asks_server("7"))  # noqa: B023
    assert tier.trusted_until() < CLOCK.now()
    assert not await shops[kept].asks_server("7")
    proxies[dead.port].refuse()  # and now it is a loss
    await until(lambda: tier.stats()["servers"][f"{HOST}:{dead.port}"] != "ok")
    assert not await shops[kept].asks_server("7")
    proxies[dead.port].heal()
    for shop in (shops[lost], both):
        await shop.keeps("7")
    assert not await shops[kept].asks_server("7")
    assert shops[kept].runs == runs


@pytest.mark.slow
async def test_a_lost_subscription_drops_what_its_own_server_has(make: Make, cluster: Cluster, behind_proxies):
    deployment, proxies = behind_proxies
    reader, writer = make(deployment), make(deployment)
    homes = {f"root{number}": cluster.primary_for(f"t:{{agent_cache:root{number}}}:S") for number in range(40)}
    dead, other = list(dict.fromkeys(homes.values()))[:2]
    lost, kept = (next(root for root in homes if homes[root] is node) for node in (dead, other))
    shops = {root: Shop(reader, f"{root}:{{id}}") for root in (lost, kept)}
    told: list[Touched | None] = []
    reader.subscribe(told.append)
    for shop in shops.values():
        await shop.keeps("7")
    proxies[dead.port].lose_news()
    async with writing(writer, f"{lost}:7"):
        shops[lost].value = "new"
    proxies[dead.port].heal()
    proxies[dead.port].cut_subscribers()
    await until_async(lambda: _is(shops[lost].get("7"), "new"))
    assert not await shops[kept].asks_server("7")
    assert told
    assert all(touched is not None and set(touched.tags) <= {lost, f"{lost}:7"} for touched in told)


async def _is(value: Awaitable[Any], wanted: Any) -> bool:
    return bool(await value == wanted)


# Roots that are no longer read


@pytest.mark.slow
async def test_roots_that_nothing_is_read_of_are_unsubscribed_from(make: Make, own_valkey: Server, monkeypatch):
    """Not while a copy depends on them."""
    monkeypatch.setattr(subscriber, "_IDLE_PERIOD", 0.0)
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    await shop.keeps("7")
    await load(tier, read("user:7"), "x")
    await until(lambda: subscriptions(own_valkey) == {"c:{agent_cache:order}"})
    assert not await shop.asks_server("7")
    shop.get.clear()
    await until(lambda: subscriptions(own_valkey) == set())
    await shop.keeps("7")
    shop.value = "new"
    async with writing(elsewhere, "order:7"):
        pass
    await until_async(lambda: _is(shop.get("7"), "new"))


@pytest.mark.slow
async def test_without_the_right_to_unsubscribe_everything_else_goes_on(make: Make, own_valkey: Server, monkeypatch):
    """The rights of earlier versions did not have it."""
    monkeypatch.setattr(subscriber, "_IDLE_PERIOD", 0.0)
    own_valkey.command("ACL", "SETUSER", "agent", *(right for right in least() if right != "+unsubscribe"))
    tier, elsewhere = make(f"redis://agent:secret@{HOST}:{own_valkey.port}"), make(own_valkey.url)
    told: list[Touched | None] = []
    shop = Shop(tier)
    tier.subscribe(told.append)
    await shop.keeps("7")
    await load(tier, read("user:7"), "x")
    await until(lambda: any(touched is not None and "user" in touched.tags for touched in told))
    shop.get.clear()
    await until(lambda: any(touched is not None and "order" in touched.tags for touched in told))
    await shop.keeps("7")
    shop.value = "new"
    async with writing(elsewhere, "order:7"):
        pass
    await until_async(lambda: _is(shop.get("7"), "new"))
    assert None not in told


@pytest.mark.slow
async def test_the_root_of_a_tool_that_is_gone_is_unsubscribed_from(make: Make, own_valkey: Server, monkeypatch):
    monkeypatch.setattr(subscriber, "_IDLE_PERIOD", 0.0)
    tier = make(own_valkey.url)
    await Shop(tier).keeps("7")
    await Shop(tier, "user:{id}").keeps("7")
    shop = Shop(tier, "cart:{id}")
    await shop.keeps("7")
    gc.collect()
    await until(lambda: subscriptions(own_valkey) == {"c:{agent_cache:cart}"})


async def test_roots_that_may_not_be_unsubscribed_from_cost_no_connection(make: Make, own_valkey: Server, monkeypatch):
    """Several at once, each of which is refused."""
    own_valkey.command("ACL", "SETUSER", "agent", *(right for right in least() if right != "+unsubscribe"))
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}")
    told: list[Touched | None] = []
    shop = Shop(tier)
    tier.subscribe(told.append)
    await shop.keeps("7")
    for tag in ("user:7", "cart:7"):
        await load(tier, read(tag), "x")
    monkeypatch.setattr(subscriber, "_IDLE_PERIOD", 0.0)
    tier._subscriber._next_idle = 0.0
    await until(lambda: told)
    for _ in range(3):
        assert await tier.caught_up()
    assert None not in told


async def test_a_subscription_that_is_refused_is_waited_for_once_and_not_for_each_entity(
    make: Make, own_valkey: Server
):
    own_valkey.command("ACL", "SETUSER", "agent", *(right for right in least() if not right.startswith("&")))
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}")
    shop = Shop(tier)
    await shop.get("1")
    topics = topics_of(tier._reader.keyspace.cells_read("order:2"))
    waiting = tier._subscriber.subscribe(topics, asyncio.get_running_loop().time() + 3_600)
    with pytest.raises(StopIteration):
        waiting.send(None)


async def test_what_a_strong_read_has_answered_is_no_part_of_a_copy_before_its_messages_arrive(
    make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    tier, elsewhere = make(valkey.url), make(valkey.url)
    user = Shop(tier, "user:{id}", remote=RemotePolicy(consistency="strong"))

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: str) -> Any:
        return await user.get(id) if id == "2" else "none"

    await get_order("1")
    await until(lambda: tier.stats()["trusted"])
    assert await get_order("1") == "none"
    monkeypatch.setattr(tier._subscriber, "_subscribe", lambda *_: None)  # it takes longer than a read may
    assert await get_order("2") == "old"
    user.value = "new"
    async with writing(elsewhere, "user:2"):
        pass
    assert await get_order("2") == "new"
    assert not tier._subscriber._keeps_whole


# Trusts that threads share


def parts(number: int) -> frozenset[bytes]:
    """Channels of a part of the root of orders."""
    return frozenset({b"c:{agent_cache:order}:%04d" % number, b"c:{agent_cache:order}:*"})


async def test_threads_that_read_the_same_at_once_share_one_trust(make: Make, valkey: Server, monkeypatch):
    """Of two, only one would keep the channels that the copies of both depend on."""
    tier = make(valkey.url)
    await Shop(tier).keeps("7")
    own, others = tier._subscriber, []
    lock, here = own._lock, threading.get_ident()

    class Lock:
        """Another thread is faster."""

        def __enter__(self) -> None:
            if threading.get_ident() == here and not others:
                others.append(None)
                others.append(own.trust(parts(1)))
            lock.__enter__()

        def __exit__(self, *error: object) -> None:
            lock.__exit__(*error)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(own, "_lock", Lock())
    assert own.trust(parts(1)) is others[1]
    assert others[1] is not None


async def test_trusts_that_end_while_they_are_listed_do_not_end_the_thread(make: Make, valkey: Server):
    tier = make(valkey.url)
    await Shop(tier).keeps("7")
    own = tier._subscriber
    trusts = [own.trust(parts(number)) for number in range(5)]
    own._recent.clear()

    class Watched(Term):
        @property
        def is_over(self) -> bool:  # type: ignore[override]  # read while they are listed
            del trusts[2:]
            own.trust(parts(1))
            return False

    first: Any = trusts[0]
    first.terms = (Watched(boottime),)
    with own._lock:
        assert own._topics() >= parts(0) | parts(1)


async def test_few_trusts_are_kept_without_a_copy(make: Make, valkey: Server, monkeypatch):
    monkeypatch.setattr(subscriber, "_MAX_RECENT", 3)
    tier = make(valkey.url)
    await Shop(tier).keeps("7")
    for number in range(10):
        assert tier._subscriber.trust(parts(number)) is not None
    assert len(tier._subscriber._trusts) <= 5


# Copies that no lookup has come before


async def test_a_result_that_was_given_is_dropped_by_a_write_elsewhere(make: Make, valkey: Server):
    """Also in a process that has read nothing of its root yet."""
    tier, elsewhere = make(valkey.url), make(valkey.url)
    shop = Shop(tier)
    shop.value = "new"
    await Shop(tier, "user:{id}").keeps("7")  # it listens, to another root
    await shop.get.set("old", "7")
    async with writing(elsewhere, "order:7"):
        pass
    await tier.caught_up()
    assert await shop.get("7") == "new"


async def test_a_copy_without_an_identity_elsewhere_is_dropped_by_a_write_elsewhere(make: Make, valkey: Server):
    """It is not stored on the server, where its tags would be looked up."""
    tier, elsewhere = make(valkey.url), make(valkey.url)
    shop = Shop(tier, "order:{result[id]}")
    shop.value = {"id": "7", "is": "old"}

    def function() -> None: ...

    await shop.keeps(function)
    assert shop.runs == 1
    shop.value = {"id": "7", "is": "new"}
    async with writing(elsewhere, "order:7"):
        pass
    await tier.caught_up()
    assert await shop.get(function) == shop.value


async def test_a_result_that_a_write_gives_is_dropped_by_a_write_elsewhere(make: Make, valkey: Server):
    tier, elsewhere = make(valkey.url), make(valkey.url)
    shop = Shop(tier)

    @AgentCacheInvalidator("order:{id}")
    async def save(id: str) -> None:
        await shop.get.set("saved", id)

    await Shop(tier, "user:{id}").keeps("7")
    await save("7")
    assert await shop.get("7") == "saved"
    async with writing(elsewhere, "order:7"):
        pass
    await tier.caught_up()
    assert await shop.get("7") == "old"


# What was forgotten


@pytest.mark.parametrize("limit", ["_MAX_SEGMENTS", "_MAX_ENTRIES"])
async def test_more_entities_than_can_be_remembered_do_not_end_local_copies(
    make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch, limit: str
):
    """The first message that is not understood drops them, and those that come later are understood again."""
    monkeypatch.setattr(keyspace, limit, 3)
    tier, elsewhere = make(valkey.url), make(valkey.url)
    shop = Shop(tier)
    for id in "12345":
        await shop.keeps(id)

    async def write(id: str) -> None:
        if limit == "_MAX_ENTRIES":
            await elsewhere.discard(read(f"order:{id}", key=f"another {id}"))
        else:
            async with writing(elsewhere, f"order:{id}"):
                pass
        await tier.caught_up()

    await write("unknown")
    for id in "45":
        await shop.keeps(id)
    for number in range(5):
        await write(f"another {number}")
    assert not await shop.asks_server("4")
    assert not await shop.asks_server("5")


async def test_a_write_drops_copies_of_entities_that_were_forgotten(
    make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keyspace, "_MAX_SEGMENTS", 3)
    tier, elsewhere = make(valkey.url), make(valkey.url)
    shops = Shop(tier), Shop(tier, "order:{result}")
    for turn in range(3):
        for id in "1234567":
            shops[0].value = f"{turn} {id}"
            shops[1].value = id
            await shops[0].get(id)
            await shops[1].get(id)
            await shops[0].keeps("1")
        for id in "7142536":
            for shop in shops:
                shop.value = f"new {id}"
            async with writing(elsewhere, f"order:{id}"):
                pass
            await tier.caught_up()
            assert [await shop.get(id) for shop in shops] == [f"new {id}"] * 2


# Busy roots


@pytest.fixture
def splits_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each root that any message comes about is busy."""
    monkeypatch.setattr(subscriber, "_BUSY", 0.0)


def root_is_split(server: Server) -> bool:
    return "c:{agent_cache:order}" not in subscriptions(server)


async def write_until(elsewhere: RedisTier, condition: Callable[[], bool]) -> None:
    """Write to entities of no interest until something is so."""
    async with asyncio.timeout(60):
        while not condition():
            async with writing(elsewhere, "order:of no interest"):
                pass


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_a_process_listens_to_the_parts_of_a_busy_root_that_its_copies_depend_on(make: Make, own_valkey: Server):
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    for id in "123":
        await shop.keeps(id)
    told: list[Touched | None] = []
    tier.subscribe(told.append)
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    assert len(subscriptions(own_valkey)) == 4
    for id in "123":
        assert not await shop.asks_server(id)
    await tier.caught_up()
    told.clear()
    async with writing(elsewhere, "order:of no interest"):
        pass
    await tier.caught_up()
    assert told == []
    await shop.keeps("4")  # another part
    for number, id in enumerate("1234"):
        shop.value = f"new {number}"
        async with writing(elsewhere, f"order:{id}"):
            pass
        await tier.caught_up()
        assert await shop.get(id) == f"new {number}"
    for id in "1234":
        await shop.keeps(id)
    shop.value = "new"
    async with writing(elsewhere, "order"):
        pass
    await tier.caught_up()
    assert [await shop.get(id) for id in "1234"] == ["new"] * 4
    assert shop.runs > 8


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
@pytest.mark.parametrize("way", ["key by key", "as a whole"])
async def test_a_busy_root_whose_slot_moves_takes_its_copies_with_it_and_no_others(
    make: Make, cluster: Cluster, way: str
):
    """With its parts. The connection stays, and so do the copies under other roots of its server."""
    tag = "{agent_cache:order}"
    source = cluster.primary_for(tag)
    target = cluster.another_than(source)
    neighbour = next(f"o{n}" for n in range(99) if cluster.primary_for(f"{{agent_cache:o{n}}}") is source)
    tier, elsewhere = make(cluster.url, cluster=True), make(cluster.url, cluster=True)
    shop, other = Shop(tier), Shop(tier, f"{neighbour}:{{id}}")
    await shop.keeps("1")
    await other.keeps("1")

    def is_split() -> bool:
        channels = {channel for node in cluster.primaries for channel in node.command("PUBSUB", "SHARDCHANNELS")}
        return f"c:{tag}:*" in channels and f"c:{tag}" not in channels

    await write_until(elsewhere, is_split)
    assert not await shop.asks_server("1")
    losses = tier.stats()["losses"]
    if way == "key by key":
        steps = cluster.move_slot(slot_of(tag), target)
        next(steps)
        await until_async(lambda: shop.asks_server("1"))
        shop.value = "new"
        async with writing(elsewhere, "order:1"):
            pass
        assert await shop.get("1") == "new"
        assert await shop.asks_server("1")
        for _ in steps:
            pass
    else:
        await asyncio.to_thread(cluster.move_slot_atomically, slot_of(tag), target)
        await until_async(lambda: shop.asks_server("1"))
    await shop.keeps("1")
    shop.value = "newest"
    async with writing(elsewhere, "order:1"):
        pass
    await until_async(lambda: _is(shop.get("1"), "newest"))
    assert other.runs == 1
    assert tier.stats()["losses"] == losses
    assert not await other.asks_server("1")


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_a_list_ends_the_split_of_its_root_and_a_given_result_too(make: Make, own_valkey: Server):
    for ending in ("list", "given"):
        tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
        shop = Shop(tier)
        await shop.keeps("1")
        await write_until(elsewhere, lambda: root_is_split(own_valkey))
        if ending == "list":
            whole = Shop(tier, "order")
            await whole.keeps("all")
            reads: tuple[Any, ...] = ("all",)
        else:
            whole = shop

            @AgentCacheInvalidator("order:{id}")
            async def save(id: str) -> None:
                await whole.get.set("given", id)  # noqa: B023

            await save("5")
            reads = ("5",)
        whole.value = "new"
        async with writing(elsewhere, "order:5"):
            pass
        await tier.caught_up()
        assert [await whole.get(*reads) for _ in range(3)] == ["new"] * 3
        shop.value = "new"
        async with writing(elsewhere, "order:1"):
            pass
        await tier.caught_up()
        assert await shop.get("1") == "new"
        await until(lambda: not root_is_split(own_valkey) or ending == "given")  # noqa: B023
        await tier.aclose()
        await elsewhere.aclose()


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_parts_without_a_copy_are_left_and_a_lost_connection_begins_with_the_whole(
    make: Make, own_valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    for id in "12":
        await shop.keeps(id)
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    monkeypatch.setattr(subscriber, "_IDLE_PERIOD", 0.0)
    tier._subscriber._next_idle = 0.0
    await shop.get.invalidate("2")
    await until(lambda: len(subscriptions(own_valkey)) == 2)
    assert not await shop.asks_server("1")
    monkeypatch.setattr(subscriber, "_BUSY", 1e9)
    own_valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: subscriptions(own_valkey) == {"c:{agent_cache:order}"})
    await shop.keeps("1")
    shop.value = "new"
    async with writing(elsewhere, "order:1"):
        pass
    await until_async(lambda: _is(shop.get("1"), "new"))


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_no_copy_depends_on_a_part_that_was_left(make: Make, own_valkey: Server, monkeypatch):
    """Also where it is not known which copies depend on idle roots, so that these are kept."""
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    for id in "12":
        await shop.keeps(id)
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    monkeypatch.setattr(keyspace, "_MAX_SEGMENTS", 3)
    for id in "345":
        await shop.keeps(id)
    assert tier._reader.keyspace.has_forgotten
    await shop.get.invalidate("2")
    own, seen = tier._subscriber, []

    def leave() -> None:
        for _ in range(2):
            own._next_idle = 0.0
            own.unsubscribe_idle()
        confirmed = {channel for each, _ in own._subscriptions.values() for channel in each.confirmed}
        seen.append((set(own.channels), confirmed))

    assert own._loop is not None
    own._loop.call_soon_threadsafe(leave)
    await until(lambda: seen)
    heard, confirmed = seen[0]
    assert heard == confirmed


@pytest.mark.usefixtures("splits_early")
async def test_a_busy_root_that_nothing_is_read_of_is_left_with_all_its_parts(make: Make, own_valkey: Server):
    tier = make(own_valkey.url)
    tier.subscribe(lambda _: None)
    await load(tier, read("order:7"), "x")
    own, (order,) = tier._subscriber, subscriptions(own_valkey)

    def beat() -> None:
        for _ in range(2):
            own._next_idle = 0.0
            own.unsubscribe_idle()
        for subscription, _ in own._subscriptions.values():
            subscription._heard = {order.encode(): 1}
            subscription._count_messages()

    assert own._loop is not None
    own._loop.call_soon_threadsafe(beat)
    await until(lambda: not own._roots)
    assert await tier.caught_up()
    assert subscriptions(own_valkey) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_parts_that_are_not_needed_any_more_are_left(make: Make, own_valkey: Server, monkeypatch):
    """Also where a root was about to be split as the first copy was asked for that is not known by its channels."""
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    await shop.keeps("1")
    monkeypatch.setattr(subscriber.Subscription, "listen_to_parts", subscriber.Subscription.add_parts)
    await write_until(elsewhere, lambda: len(subscriptions(own_valkey)) == 3)
    assert tier.trusted_until() > CLOCK.now()
    await until(lambda: subscriptions(own_valkey) == {"c:{agent_cache:order}"})
    assert not await shop.asks_server("1")


def unconnected() -> Any:
    """The thread of a tier that connects to nothing, and has a listener."""
    own = RedisTier.from_url("redis://127.0.0.1")._subscriber
    own._invalidations.listen(print)
    return own


def test_merged_trusts_last_as_long_as_the_first_of_them():
    """Of one tier: the others are asked as before."""
    mine, others = unconnected(), unconnected()
    readings = [0.0]

    def clock() -> float:
        return readings[0]

    terms = Term(clock, 3.0), Term(clock, 2.0), Term(clock, 1.0)

    def trust(subscriber: Any, *terms: Term) -> Trust:
        return Trust(frozenset(), terms, subscriber._invalidations)

    trusts = [trust(mine, terms[0]), trust(mine, terms[1], terms[0]), trust(mine, terms[0])]
    foreign = trust(others, terms[2])
    *kept, merged = mine.merge([foreign, *trusts])
    assert kept == [foreign]
    readings[0] = 1.9
    assert merged.is_valid()
    assert mine.merge([trusts[0]] * 2) == [trusts[0]]
    readings[0] = 2.0
    assert not merged.is_valid()
    assert trusts[0].is_valid()
    readings[0] = 0.0
    terms[1].end()
    assert not merged.is_valid()


def test_what_depends_on_one_server_is_known_to_be_valid_without_a_call():
    """Also a copy of many reads. Of several servers, each hit asks for all of them."""
    own = unconnected()
    one, other = Term(boottime, boottime() + 60.0), Term(boottime, boottime() + 60.0)
    trusts = [Trust(frozenset(), (one,), own._invalidations) for _ in range(2)]
    (merged,) = own.merge(trusts)
    (of_both,) = own.merge([merged, Trust(frozenset(), (other,), own._invalidations)])

    class NotAsked(AssertionError):
        pass

    def renew(self: Trust) -> bool:
        raise NotAsked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trust, "renew", renew)
        assert merged.is_valid()
        with pytest.raises(NotAsked):
            of_both.is_valid()
    assert of_both.is_valid()


def test_a_trust_fails_at_once_when_it_is_ended_its_connection_is_lost_or_nobody_listens():
    """And is valid again when somebody does."""
    own = unconnected()
    term, other = Term(boottime, boottime() + 60.0), Term(boottime, boottime() + 60.0)
    invalidations = own._invalidations
    lasting, ended, lost = (Trust(frozenset(), (each,), invalidations) for each in (term, term, other))
    several = Trust(frozenset(), (term, other), invalidations)
    assert all(each.is_valid() for each in (lasting, ended, lost, several))
    ended.end()
    assert not ended.is_valid()
    other.end()
    other.until = boottime() + 60.0  # a PONG that was being handled meanwhile
    assert not lost.is_valid()
    assert not several.is_valid()
    assert lasting.is_valid()
    silent = RedisTier.from_url("redis://127.0.0.1")._subscriber._invalidations
    unheard = Trust(frozenset(), (term,), silent)
    assert not unheard.is_valid()
    ends = silent.listen(print), silent.listen(print)
    assert unheard.is_valid()
    ends[0]()
    assert unheard.is_valid()
    ends[1]()
    assert not unheard.is_valid()


def test_what_is_made_of_earlier_steps_ends_with_the_first_of_them_however_many_there_are():
    """As the steps of a conversation: each of the two before it, so there are more paths than can be followed."""
    own = unconnected()
    term = Term(boottime, boottime() + 60.0)
    roots = [own._keyspace.root(name) for name in ("order", "user", "item")]
    order, user, item = [Trust(frozenset({root.channel}), (term,), own._invalidations) for root in roots]
    own._trusts.update({each.channels: each for each in (order, user, item)})
    (beside,) = own.merge([user, item])
    steps = own.merge([order, user])
    steps += own.merge([steps[0], item])
    for _ in range(3_000):
        steps += own.merge(steps[-2:])
    own.end_trust([roots[0]])
    assert not any(step.is_valid() for step in steps)
    assert beside.is_valid()


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Callable[[RedisTier], RedisTier]:
    """Let a tier write as versions do that know no parts. Tiers that have not written yet then do so, too."""

    def let(tier: RedisTier) -> RedisTier:
        transport, both = tier._transport, writes.messages

        def script(own: Script) -> Script:
            return Script.of(own.source.decode().replace("'(0', now", "'-inf', now"))

        monkeypatch.setattr(transport, "script", script)
        monkeypatch.setattr(writes, "messages", lambda *of: both(*of)[:2])
        return tier

    return let


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_all_of_a_busy_root_is_listened_to_while_an_earlier_version_writes_to_it(
    make: Make, own_valkey: Server, earlier: Callable[[RedisTier], RedisTier], monkeypatch: pytest.MonkeyPatch
):
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    for id in "12":
        await shop.keeps(id)
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    losses = tier.stats()["losses"]
    shop.value = "new"
    before = earlier(make(own_valkey.url))
    async with writing(before, "order:1"):
        pass
    await until_async(lambda: _is(shop.get("1"), "new"))
    await until(lambda: not root_is_split(own_valkey))
    assert tier.stats()["losses"] > losses
    for id in "12":
        await shop.keeps(id)
    shop.value = "newer"
    async with writing(before, "order:2"):
        pass
    await tier.caught_up()
    assert await shop.get("2") == "newer"
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    assert not subscription.may_split(b"c:{agent_cache:order}")
    monkeypatch.setattr(subscription, "_whole_until", {})
    await write_until(elsewhere, lambda: root_is_split(own_valkey))


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_a_busy_root_that_cannot_be_marked_is_listened_to_as_a_whole(make: Make, own_valkey: Server):
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    await shop.keeps("1")
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    own_valkey.command("SET", "w:{agent_cache:order}", "of another type")
    await until(lambda: not root_is_split(own_valkey) and not subscription.split)
    await shop.keeps("1")
    shop.value = "new"
    async with writing(elsewhere, "order:1"):
        pass
    await tier.caught_up()
    assert await shop.get("1") == "new"


@pytest.mark.slow
@pytest.mark.usefixtures("splits_early")
async def test_the_mark_of_a_busy_root_is_no_writer_and_no_write_of_this_version_deletes_it(
    make: Make, own_valkey: Server
):
    tier, elsewhere = make(own_valkey.url), make(own_valkey.url)
    shop = Shop(tier)
    await shop.keeps("1")
    await write_until(elsewhere, lambda: root_is_split(own_valkey))
    registry = "w:{agent_cache:order}"
    (mark,) = own_valkey.command("ZRANGE", registry, "0", "-1")
    async with writing(elsewhere, "order:1"):
        await elsewhere.lookup(read("order:2"))
    async with writing(elsewhere, "order"):
        pass
    assert own_valkey.command("ZRANGE", registry, "0", "-1", "WITHSCORES") == [mark, "0"]
    assert int(own_valkey.command("PTTL", registry)) > 0
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    assert subscription.marks == {b"c:{agent_cache:order}": mark.encode()}
    assert tier.stats()["losses"] == 0
