"""The protocol of the fleet on a real server: what each part leaves there, and what is lost without it."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("redis")

import redis
import redis.asyncio

from agent_cache.clock import CLOCK
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import Touched, WriteIntent
from agent_cache.remote.redis import RedisTier
from tests.contract.workbench import commit, load, read, value_of, write, writing
from tests.harness.proxies import Proxy
from tests.harness.rights import least
from tests.harness.servers import HOST, Server, free_port
from tests.harness.stopwatch import Stopwatch
from tests.harness.tiers import Make, making, until


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    """One that a test leaves whole."""
    yield valkey
    valkey.resume()


@pytest.fixture
def forgetful(start_server: Callable[..., Server]) -> Server:
    """One that can be told to be another."""
    return start_server(enable_debug_command="yes")


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Tiers that are listened to, and closed afterwards."""
    async with making(is_heard=True, max_staleness=3.0, timeout=1.5, lease=20.0) as make:
        yield make


def look(server: Server) -> redis.Redis:
    return server.client()


@pytest.fixture
def behind() -> Iterator[Callable[[Server], Proxy]]:
    """Put a proxy before a server."""
    with ExitStack() as exits:
        yield lambda server: exits.enter_context(Proxy.start(server.port))


def cell(client: redis.Redis, name: str) -> str | None:
    """A cell of the root `order`: S, D, or the one that begins with T or K."""
    found = client.keys("t:{agent_cache:order}:" + name + "*")
    return client.get(found[0]) if found else None


async def trusted(*tiers: RedisTier) -> None:
    for tier in tiers:
        await until(lambda: tier.trusted_until() > CLOCK.now())  # noqa: B023


# Cells, and the registry of writers


async def test_a_write_holds_its_entity_and_what_depends_on_the_root_until_it_is_committed(make, server):
    tier = make(server.url)
    with look(server) as client:
        await load(tier, read("order:7"), "old")
        before = {name: cell(client, name) for name in "STK"}
        await tier.begin(write("order:7"))
        assert cell(client, "T").startswith("!")
        assert cell(client, "D").startswith("!")
        assert cell(client, "S") == before["S"]
        assert cell(client, "K") == before["K"]
        assert client.zcard("w:{agent_cache:order}") == 1
        (held,) = client.keys("t:{agent_cache:order}:T*")
        assert 0 < client.pttl(held) <= tier.lease * 1000
        assert client.pttl("w:{agent_cache:order}") > 60_000


async def test_a_commit_leaves_fresh_tokens_and_no_writer(make, server):
    tier = make(server.url)
    with look(server) as client:
        await load(tier, read("order:7"), "old")
        before = cell(client, "T")
        intent = write("order:7")
        await tier.begin(intent)
        await commit(tier, intent)
        assert cell(client, "T")[0] not in "!~"
        assert cell(client, "T") != before
        assert client.zcard("w:{agent_cache:order}") == 0
        (idle,) = client.keys("t:{agent_cache:order}:T*")
        assert client.pttl(idle) > 3_600_000


async def test_a_write_that_will_be_told_its_entity_arms_the_root(make, server):
    tier = make(server.url)
    with look(server) as client:
        await load(tier, read("order:7"), "old")
        before = cell(client, "S")
        intent = write(late=("order",))
        await tier.begin(intent)
        assert cell(client, "S") == "~" + before
        assert cell(client, "D").startswith("~")
        assert 0 < client.pttl("t:{agent_cache:order}:S") <= tier.lease * 1000
        await commit(tier, intent, "order:7")
        assert cell(client, "S") == before
        assert client.pttl("t:{agent_cache:order}:S") > 3_600_000


async def test_a_cell_that_was_evicted_while_it_is_held_comes_back_held(make, server):
    tier = make(server.url)
    with look(server) as client:
        intent = write("order:7")
        await tier.begin(intent)
        for key in client.keys("t:*"):
            client.delete(key)
        await load(tier, read("order:7"), "half")
        assert cell(client, "T").startswith("!")
        await tier.lookup(read("order", key="all"))
        assert cell(client, "D").startswith("!")
        await commit(tier, intent)
        assert await value_of(tier, read("order:7")) == "nothing"


async def test_a_renewal_that_finds_the_registry_gone_registers_again(make, server):
    tier = make(server.url)
    with look(server) as client:
        intent = write("order:7", late=("user",))
        await tier.begin(intent)
        client.flushall()
        await tier.renew(intent)
        assert client.zcard("w:{agent_cache:order}") == 1
        assert client.zcard("w:{agent_cache:user}") == 1
        assert cell(client, "T").startswith("!")


async def test_entities_and_arguments_are_on_the_server_as_digests_alone(make, server):
    tier = make(server.url)
    with look(server) as client:
        await load(tier, read("order:secret", key="secret"), "x")
        intent = write("order:secret", "order:secret2")
        with client.pubsub() as listener:
            listener.subscribe("c:{agent_cache:order}")
            assert listener.get_message(timeout=60)["type"] == "subscribe"
            await tier.begin(intent)
            said = listener.get_message(timeout=60)["data"]
        everything = [*client.keys("*"), *client.zrange("w:{agent_cache:order}", 0, -1), said]
        assert len(everything) > 5
        assert not any("secret" in text for text in everything)


async def test_a_write_costs_as_many_commands_whatever_is_stored(make, server):
    """O(1): neither begin nor commit looks at entries."""
    tier = make(server.url)
    with look(server) as client:
        for count in (1, 300):
            for number in range(count):
                await load(tier, read(f"order:{number}", key=str(number)), "x")
            client.config_resetstat()
            async with writing(tier, "order"):
                pass
            stats = client.info("commandstats")
            assert stats["cmdstat_set"]["calls"] <= 4 + 2  # heartbeats write as well
            assert "cmdstat_scan" not in stats


# Reads


async def test_lookups_of_one_tick_are_one_round_trip(make, server):
    tier = make(server.url)
    requests = [read(f"order:{number}", key=str(number)) for number in range(50)]
    for request in requests:
        await load(tier, request, request.key)
    before = tier.stats()["batches"]
    found = await asyncio.gather(*(tier.lookup(request) for request in requests))
    assert [each.value for each, _ in found] == [request.key for request in requests]
    assert tier.stats()["batches"] == before + 1


async def test_a_lookup_does_not_share_a_batch_that_is_under_way(make, proxy):
    """It would be answered from before a write that has ended in between."""
    tier = make(proxy.url)
    await load(tier, read("order:7"), "old")
    before = tier.stats()["batches"]
    proxy.delay(to_server=0.03, to_client=0.03)
    first = asyncio.ensure_future(tier.lookup(read("order:7")))
    await asyncio.sleep(0.01)
    await tier.lookup(read("order:7"))
    await first
    assert tier.stats()["batches"] == before + 2


async def test_a_hit_with_late_tags_is_one_trip_once_they_are_known(make, server):
    a, b = make(server.url), make(server.url)
    request = read(late=("order",))
    await load(a, request, "x", "order:7", "order:8")
    await b.lookup(read("user", key="warm"))
    counts = []
    for tier in (a, b, b):
        before = tier.stats()["batches"]
        assert await value_of(tier, request) == "x"
        counts.append(tier.stats()["batches"] - before)
    assert counts == [1, 2, 1]


async def test_damaged_values_are_counted_misses(make, server):
    tier = make(server.url, max_value_size=2048)
    await load(tier, read("order:7"), "x")
    with redis.Redis(port=server.port) as client:
        (key,) = client.keys("v:*")
        good = client.get(key)
        bad = [
            b"", b"\x01", good[:30], good[:-1], b"\x02" + good[1:], good[:60] + b"\xff" + good[61:],
            b"x" * 1_000_000, b"\x80\x04\x95\x0e\x00.", good[:1] + b"\xff" * 40 + good[41:],
        ]  # fmt: skip
        for number, data in enumerate(bad):
            client.set(key, data)
            assert await value_of(tier, read("order:7")) == "nothing", data[:50]
            assert tier.stats()["bad_values"] >= number, data[:50]
        client.set(key, good)
        assert await value_of(tier, read("order:7")) == "x"


async def test_a_result_that_cannot_be_written_down_or_is_too_large_is_not_stored(make, server):
    tier = make(server.url, max_value_size=2048)
    await load(tier, read("order:7"), object())
    await load(tier, read("order:8", key="8"), "x" * 3000)
    assert tier.stats()["unencodable"] == 2
    assert await value_of(tier, read("order:7")) == "nothing"
    assert await value_of(tier, read("order:8", key="8")) == "nothing"


async def test_the_server_itself_ends_a_value(make, server):
    tier = make(server.url)
    await load(tier, read("order:7", ttl=50.0), "x")
    await load(tier, read("user:1", key="1"), "x")
    with look(server) as client:
        lives = sorted(client.pttl(key) for key in client.keys("v:*"))
        assert 40_000 < lives[0] <= 50_000
        assert 3_590_000 < lives[1] <= 3_600_000


async def test_a_value_is_no_younger_for_a_process_that_had_to_wait_for_the_server_clock(make, server, behind):
    """The moment at which the server read its clock lies anywhere between the question and the reply."""
    proxy, writer = behind(server), make(server.url, max_staleness=30.0)
    request = read("order:7", ttl=60.0)
    _, ticket = await writer.lookup(request)
    await writer.store(ticket, "x", request.tags, 0.5, age=20.0)
    stored_at = time.monotonic()
    proxy.delay(to_client=0.2)
    reader = make(proxy.url, max_staleness=30.0, timeout=5.0)
    assert await value_of(reader, request) == "x"  # it has asked for the time
    proxy.heal()
    age = 20.0 + time.monotonic() - stored_at
    found, _ = await reader.lookup(request)
    assert found is not None
    assert found.age >= age
    assert found.ttl <= 60.0 - age


async def test_a_value_that_is_not_loaded_yet_by_the_clock_of_the_server_is_none(make, server):
    """As if that was set back by 50 s since: the value would live for as long, and its ttl beyond that."""
    tier, other = make(server.url), make(server.url)
    request = read("order:7", ttl=1.0)
    _, ticket = await tier.lookup(request)
    await tier.store(ticket, "early", request.tags, 0.5, age=-50.0)
    assert [await value_of(one, request) for one in (tier, tier, other)] == ["nothing"] * 3
    await load(tier, request, "now")
    assert [await value_of(one, request) for one in (tier, tier, other)] == ["now"] * 3


async def test_a_claim_to_load_anew_ends_when_that_is_stored(make, server):
    """Were it to last for its lease, an answer would be as old as that, however short its ttl is."""
    tier, other = make(server.url, lease=60.0), make(server.url, lease=60.0)
    request = replace(read("order:7", ttl=0.1), grace=60.0)
    await load(tier, request, 0)
    for number in range(1, 4):
        await asyncio.sleep(0.3)  # far beyond its ttl: the clock of the server is known to a few milliseconds
        found, ticket = await tier.lookup(request)
        assert (found.value, found.is_to_refresh) == (number - 1, True)
        again, _ = await other.lookup(request)
        assert (again.value, again.is_to_refresh) == (number - 1, False)
        await tier.store(ticket, number, request.tags, 0.01, age=0.0)


async def test_a_claim_of_another_process_is_left_to_it(make, server):
    tier = make(server.url)
    request = replace(read("order:7", ttl=0.1), grace=60.0)
    await load(tier, request, "old")
    await asyncio.sleep(0.3)  # far beyond its ttl: the clock of the server is known to a few milliseconds
    _, ticket = await tier.lookup(request)
    with look(server) as client:
        (claim,) = client.keys("r:*")
        client.set(claim, "another")
        await tier.store(ticket, "new", request.tags, 0.01, age=0.0)
        assert client.get(claim) == "another"


async def test_a_value_depends_on_every_tag_that_its_tool_has_now(make, server):
    """What was stored by an earlier version of the tool, with fewer tags, is not found."""
    tier = make(server.url)
    await load(tier, read("order:7"), "x")
    assert await value_of(tier, read("order:7", "user:1")) == "nothing"


# The server's identity


async def test_a_server_that_forgot_who_it_was_has_no_values_and_is_a_loss(make, forgetful):
    """A restart, a failover and a failback all change the replication id."""
    tier = make(forgetful.url)
    told: list[Touched | None] = []
    tier.subscribe(told.append)
    await load(tier, read("order:7"), "old")
    await trusted(tier)
    assert await value_of(tier, read("order:7")) == "old"
    forgetful.command("DEBUG", "CHANGE-REPL-ID")
    await until(lambda: None in told)
    assert await value_of(tier, read("order:7")) == "nothing"
    await load(tier, read("order:7"), "new")
    assert await value_of(tier, read("order:7")) == "new"


async def test_a_strong_read_asks_who_the_server_is_each_time(make, forgetful):
    """Known from the last heartbeat, a server that was demoted and promoted in between would serve what is dead."""
    tier = make(forgetful.url, max_staleness=30.0, timeout=5.0)
    bounded = read("order:7")
    strong = replace(bounded, strong=True)
    await load(tier, strong, "old")
    assert await value_of(tier, strong) == "old"
    forgetful.command("DEBUG", "CHANGE-REPL-ID")
    assert await value_of(tier, bounded) == "old"
    assert await value_of(tier, strong) == "nothing"
    await load(tier, strong, "new")
    assert await value_of(tier, strong) == "new"


async def test_a_replica_is_not_used(make, server, own_valkey):
    own_valkey.command("REPLICAOF", HOST, server.port)
    tier = make(own_valkey.url)
    found, ticket = await tier.lookup(read("order:7"))
    assert found is None
    assert not ticket.is_clean()
    assert "not a master" in tier.stats()["servers"][f"127.0.0.1:{own_valkey.port}"]


# Outages


async def test_a_port_that_was_never_open_is_no_error(make):
    tier = make(f"redis://127.0.0.1:{free_port()}")
    found, ticket = await tier.lookup(read("order:7"))
    assert found is None
    assert not ticket.is_clean()
    assert not await tier.discard(read("order:7"))
    intent = write("order:7")
    await tier.begin(intent)
    await tier.renew(intent)
    await commit(tier, intent)
    assert tier.stats()["pending"] == 2


@pytest.mark.slow
async def test_what_could_not_be_said_lands_when_the_server_is_back(make, own_valkey):
    a, b = make(own_valkey.url), make(own_valkey.url)
    await load(a, read("order:7"), "old")
    await load(a, read("user:1", key="1"), "old")
    own_valkey.pause()
    intent = write("order:7")
    await a.begin(intent)
    await commit(a, intent)
    assert a.stats()["pending"] == 1
    own_valkey.resume()
    await until(lambda: a.stats()["pending"] == 0)
    await until(lambda: set(b.stats()["servers"].values()) == {"ok"})
    async with asyncio.timeout(60):
        while await value_of(b, read("user:1", key="1")) != "old":  # a busy server may seem to be away once more
            await asyncio.sleep(0.01)
    assert await value_of(b, read("order:7")) == "nothing"


async def test_nothing_is_read_or_stored_under_what_is_pending(make, server, proxy):
    """The one that wrote would find what it has overwritten; the server works for everything else."""
    tier = make(proxy.url)
    other = make(server.url)
    await load(tier, read("order:7"), "old")
    await load(tier, read("user:1", key="1"), "old")
    writer = tier._writer
    writer.deliver_pending = lambda *_: asyncio.sleep(0)  # the heartbeat delivers nothing
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    proxy.heal()
    await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
    assert tier.stats()["pending"] == 1
    assert await value_of(other, read("order:7")) == "old"
    assert await value_of(tier, read("order:7")) == "nothing"
    assert await value_of(tier, read("order", key="all")) == "nothing"
    assert await value_of(tier, read("user:1", key="1")) == "old"
    del writer.deliver_pending
    await until(lambda: tier.stats()["pending"] == 0)
    assert await value_of(other, read("order:7")) == "nothing"


async def test_a_renewal_that_lands_makes_up_for_a_begin_that_did_not(make, server, proxy):
    """The begin is no longer pending: if it landed after the commit, it would hold what nobody writes."""
    tier = make(proxy.url)
    await load(tier, read("order:7"), "old")
    writer = tier._writer
    writer.deliver_pending = lambda *_: asyncio.sleep(0)  # the heartbeat delivers nothing
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    assert tier.stats()["pending"] == 1
    proxy.heal()
    await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
    await tier.renew(intent)
    assert tier.stats()["pending"] == 0
    assert server.command("ZCARD", "w:{agent_cache:order}") == 1
    del writer.deliver_pending
    await commit(tier, intent)
    assert server.command("ZCARD", "w:{agent_cache:order}") == 0


async def test_a_begin_that_lands_while_its_tool_runs_announces_it(make, server, proxy):
    """It is retried as what it is. As a commit it would end the write for all others before its effect."""
    tier, other = make(proxy.url), make(server.url)
    proxy.refuse()
    intent = write("order:7", late=("order",))
    await tier.begin(intent)
    proxy.heal()
    await until(lambda: tier.stats()["pending"] == 0)
    assert server.command("ZCARD", "w:{agent_cache:order}") == 2
    await load(other, read("order:7"), "half")
    await load(other, read("order", key="all"), "half")
    assert await value_of(other, read("order:7")) == "nothing"
    assert await value_of(other, read("order", key="all")) == "nothing"
    await commit(tier, intent)
    assert server.command("ZCARD", "w:{agent_cache:order}") == 0


async def test_a_begin_is_not_delivered_after_its_commit(make, server, proxy):
    """It was pending when the delivery began, and the commit has landed meanwhile."""
    tier = make(proxy.url)
    writer, transport = tier._writer, tier._transport
    deliver, writer.deliver_pending = writer.deliver_pending, lambda *_: asyncio.sleep(0)
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    proxy.heal()
    await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
    (pending,) = writer.pending.calls()
    await commit(tier, intent)
    writer.pending.calls = lambda: [pending]
    (only,) = transport.topology.servers
    connection, _ = await transport.connect(only)
    await deliver(only, connection)
    connection.close()
    assert server.command("ZCARD", "w:{agent_cache:order}") == 0


@pytest.mark.slow
async def test_a_thousand_pending_paths_are_taken_together_by_root(make, own_valkey):
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    own_valkey.pause()
    for number in range(1_010):
        intent = write(f"order:{number}")
        await commit(tier, intent)
    assert 0 < tier.stats()["pending"] <= 12
    own_valkey.resume()
    await until(lambda: tier.stats()["pending"] == 0)
    assert await value_of(tier, read("order:7")) == "nothing"


# The subscription


async def test_a_subscription_that_was_cut_is_a_loss_although_the_client_is_not_told(make, server):
    tier = make(server.url)
    told: list[Touched | None] = []
    tier.subscribe(told.append)
    _, ticket = await tier.lookup(read("order:7"))
    await trusted(tier)
    assert ticket.is_clean()
    server.command("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: None in told)
    assert not ticket.is_clean()
    await trusted(tier)
    assert set(tier.stats()["servers"].values()) == {"ok"}


@pytest.mark.slow
async def test_a_lapse_is_no_loss(make, server):
    """On one connection nothing is lost: what is kept counts again with the next PONG."""
    tier = make(server.url)
    told: list[Touched | None] = []
    tier.subscribe(told.append)
    await load(tier, read("order:7"), "x")
    await trusted(tier)
    server.pause()
    try:
        await until(lambda: tier.trusted_until() == float("-inf"))
    finally:
        server.resume()
    await trusted(tier)
    assert told == [] or None in told  # a heartbeat that went unanswered may have ended the connection


async def test_trust_counts_from_when_the_ping_was_sent(make, proxy):
    """A PONG that took long proves no more than that nothing was missed before its PING."""
    tier = make(proxy.url, max_staleness=0.5, timeout=0.3)
    await load(tier, read("order:7"), "x")
    await trusted(tier)
    proxy.delay_news(0.2)
    await asyncio.sleep(0.8)
    for _ in range(20):
        left = tier.trusted_until() - CLOCK.now()
        assert left <= 0.5 - 0.2 + 0.02
        await asyncio.sleep(0.01)


async def test_messages_name_entities_that_were_met_and_spare_the_others(make, server):
    a, b = make(server.url), make(server.url)
    told: list[Touched | None] = []
    b.subscribe(told.append)
    await load(b, read("order:7"), "x")
    async with writing(a, "order:7"):
        pass
    async with writing(a, "order:unmet"):
        pass
    await until(lambda: len(told) == 4)
    assert told[0].tags == told[1].tags == ("order:7",)
    assert all(tag.startswith("order:") and "unmet" not in tag for tag in told[2].tags)


async def test_after_a_fork_the_child_trusts_nothing_and_connects_anew(make, server):
    tier = make(server.url)
    await load(tier, read("order:7"), "old")
    await trusted(tier)
    parent = tier._writer.process
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        report = "failed"
        try:
            asyncio._set_running_loop(None)
            was_trusted = tier.trusted_until() > CLOCK.now()

            async def live() -> str:
                told: list[Touched | None] = []
                tier.subscribe(told.append)
                value = await value_of(tier, read("order:7"))
                await trusted(tier)
                async with writing(tier, "order:7"):
                    pass
                return f"{was_trusted} {value} {None in told} {tier._writer.process != parent}"

            report = asyncio.run(live())
        finally:
            os.write(writer, report.encode())
            os._exit(0)
    os.close(writer)
    report = await asyncio.to_thread(os.read, reader, 1000)
    os.close(reader)
    os.waitpid(child, 0)
    assert report == b"False old True True"
    assert await value_of(tier, read("order:7")) == "nothing"


# Who is let in, and what is refused at once


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_client_that_is_there_is_a_template(server, kind):
    client = redis.Redis(port=server.port) if kind == "sync" else redis.asyncio.Redis(port=server.port)
    async with RedisTier(client, timeout=10.0, max_staleness=30.0) as tier:  # a busy machine
        await load(tier, read("order:7"), "x")
        assert await value_of(tier, read("order:7")) == "x"
    await client.aclose() if kind == "async" else client.close()


@pytest.mark.parametrize("right", ["+get", "+zrange", "+zadd", "+zrem", "+pexpire", "+publish"])
async def test_a_right_of_the_scripts_that_is_missing_is_a_failure(make, server, right):
    """And nothing that is quietly done without: `ZRANGE` is how a writer that has died is found."""
    with look(server) as client:
        client.execute_command("ACL", "SETUSER", "agent", *(each for each in least() if each != right))
    tier = make(f"redis://agent:secret@127.0.0.1:{server.port}")
    await load(tier, read("order:7"), "old")
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    assert tier.stats()["failures"] > 0


async def test_a_user_with_the_least_rights_can_do_everything(make, server):
    with look(server) as client:
        client.execute_command("ACL", "SETUSER", "agent", *least())
    tier = make(f"redis://agent:secret@127.0.0.1:{server.port}")
    await load(tier, read("order:7", ttl=5.0), "x")
    assert await value_of(tier, read("order:7", ttl=5.0)) == "x"
    await trusted(tier)
    intent = write("order:7", late=("user",), entries=(read("order:7"),))
    await tier.begin(intent)
    await tier.renew(intent)
    await commit(tier, intent, failed=True)
    assert tier.stats()["pending"] == 0
    assert tier.stats()["failures"] == 0
    assert await tier.discard(read("order:7")) is False


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": ""},
        {"namespace": "a b"},
        {"namespace": "{a}"},
        {"max_staleness": 0},
        {"max_staleness": 0.1, "timeout": 0.2},
        {"lease": -1},
        {"max_value_size": 5},
        {"codec": object()},
        {"remote_ttl": None},
    ],
)
def test_what_cannot_work_is_refused_at_once(options):
    with pytest.raises(ConfigurationError):
        RedisTier.from_url("redis://localhost", **options)


@pytest.mark.parametrize("kind", ["url", "client", "provider"])
async def test_every_connection_logs_in_with_the_settings_of_its_url_or_client(own_valkey: Server, kind: str):
    own_valkey.command("ACL", "SETUSER", "me", "on", ">p@ss", "~*", "&*", "+@all")
    address = f"redis://me:p%40ss@{HOST}:{own_valkey.port}/2?client_name=agent"
    provider = redis.UsernamePasswordCredentialProvider("me", "p@ss")
    options = {"timeout": 9.0, "max_staleness": 30.0}
    match kind:
        case "url":
            tier = RedisTier.from_url(address, **options)
        case "client":
            tier = RedisTier(redis.Redis.from_url(address), **options)
        case _:
            client = redis.Redis(
                host=HOST, port=own_valkey.port, db=2, client_name="agent", credential_provider=provider
            )
            tier = RedisTier(client, **options)
    async with tier:
        tier.subscribe(lambda _: None)
        await load(tier, read("order:7"), "answer")
        assert await value_of(tier, read("order:7")) == "answer"
        await until(lambda: tier.trusted_until() > CLOCK.now())
        with own_valkey.client() as client:
            connections = [each for each in client.client_list() if each["user"] == "me"]
            assert not client.keys("v:*")
    assert len(connections) == 3  # of this loop, and two of the thread
    assert {(each["name"], each["db"]) for each in connections} == {("agent", "2")}


@pytest.fixture
def unix_socket(start_server: Callable[..., Server]) -> Iterator[Path]:
    """In a folder of a short name: the path of a socket has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="agent_cache") as folder:
        path = Path(folder, "socket")
        start_server(unixsocket=path)
        yield path


@pytest.mark.parametrize("kind", ["url", "client"])
async def test_a_server_is_reached_over_a_unix_socket(unix_socket: Path, kind: str):
    server = f"unix://{unix_socket}" if kind == "url" else redis.Redis(unix_socket_path=str(unix_socket))
    async with making(timeout=9.0, max_staleness=30.0) as make:
        tier = make(server)
        await load(tier, read("order:7"), "answer")
        assert await value_of(tier, read("order:7")) == "answer"


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://localhost:port"])
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError):
        RedisTier.from_url(url)
    with pytest.raises(ConfigurationError) as raised:
        RedisTier.from_url("http://me:secret@localhost")
    assert "secret" not in str(raised.value)


def test_what_is_no_client_is_refused():
    with pytest.raises(ConfigurationError, match="client"):
        RedisTier(object())


async def test_a_refused_write_is_not_begun(make, own_valkey):
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "x")
    own_valkey.kill()
    with pytest.raises(RemoteTierError):
        await tier.begin(WriteIntent("w", ("order:7",), on_unreachable="refuse"))


async def test_a_subscription_that_is_refused_costs_one_read_a_wait_and_trusts_nothing(make, server):
    with look(server) as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels")
    tier = make(f"redis://deaf:secret@127.0.0.1:{server.port}", timeout=0.5)
    await load(tier, read("order:7"), "x")
    with Stopwatch() as stopwatch:
        for _ in range(20):
            found, ticket = await tier.lookup(read("order:7"))
            assert found is not None
            assert not ticket.is_clean()
    assert stopwatch.running < 2.0  # were each of them to wait, it would be 7.5 s
    assert tier.trusted_until() == float("-inf")


async def test_a_tier_that_is_no_longer_used_ends_its_thread(server):
    tier = RedisTier.from_url(server.url)
    await load(tier, read("order:7"), "x")
    thread = tier._subscriber._thread
    assert thread.is_alive()
    client = tier._transport.client()
    del tier
    gc.collect()
    await asyncio.to_thread(thread.join, 60)  # the thread itself may hold the tier for a moment
    assert not thread.is_alive()
    client.close()


async def test_news_of_single_entries_from_another_tier_name_no_request(make, server):
    """A nearer tier is told of keys alone, and knows its own digests of them."""
    a, b = make(server.url), make(server.url)
    seven, eight = read("order", key="7"), read("order", key="8")
    for request in (seven, eight):
        await load(a, request, "old")
    intent = WriteIntent("told", (), keys=((seven.tool, seven.key),))
    await a.commit(intent, (), failed=False, hold=0.0)
    assert [await value_of(b, request) for request in (seven, eight)] == ["nothing", "old"]


@pytest.mark.slow
async def test_the_heartbeat_of_a_master_that_may_not_write_stops_everything(make, own_valkey):
    """A master that is cut off from its replicas refuses, if it is told to: what it has may be overtaken."""
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    await trusted(tier)
    own_valkey.config_set(min_replicas_to_write=1)
    await until(lambda: tier.trusted_until() == float("-inf"))
    await until(lambda: "NOREPLICAS" in str(tier.stats()["servers"]))
    assert await value_of(tier, read("order:7")) == "nothing"
    own_valkey.config_set(min_replicas_to_write=0)
    await trusted(tier)
    assert await value_of(tier, read("order:7")) == "old"


@pytest.mark.slow
async def test_a_server_that_was_killed_and_started_empty_is_used_again(make, own_valkey):
    a, b = make(own_valkey.url), make(own_valkey.url)
    told: list[Touched | None] = []
    b.subscribe(told.append)
    await load(a, read("order:7"), "old")
    await load(b, read("order:8", key="8"), "old")
    await trusted(a, b)
    own_valkey.kill()
    await until(lambda: b.trusted_until() == float("-inf"))
    own_valkey.restart(empty=True)
    await trusted(a, b)
    assert None in told
    assert await value_of(b, read("order:7")) == "nothing"
    await load(a, read("order:7"), "new")
    assert await value_of(b, read("order:7")) == "new"


async def test_what_happened_is_counted_and_said_once(make, own_valkey, caplog):
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "x")
    await value_of(tier, read("order:7"))
    stats = tier.stats()
    assert (stats["hits"], stats["misses"], stats["stores"], stats["pending"]) == (1, 1, 1, 0)
    own_valkey.kill()
    for _ in range(50):
        await tier.lookup(read("order:7"))
    assert tier.stats()["misses"] == 51
    said = [record for record in caplog.records if record.name == "agent_cache"]
    assert len(said) == 1
    assert "cannot be used" in said[0].getMessage()
