"""Pending invalidations: large, refused, in doubt, merged. Each is delivered, and no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.clock import CLOCK
from agent_cache.remote import Touched, WriteIntent
from agent_cache.remote.protocol import SentCommit
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.connection import NEVER, boottime
from agent_cache.remote.redis.keyspace import Keyspace
from agent_cache.remote.redis.scripts import Script
from agent_cache.remote.redis.writes import Call
from agent_cache.testing import MemoryTier
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.proxies import Proxy
from tests.harness.servers import Server
from tests.harness.slow import slow
from tests.harness.tiers import Make, making, until


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Tiers that are listened to, and closed afterwards."""
    async with making(is_heard=True, max_staleness=2.0, timeout=1.5) as make:
        yield make


def of_nothing(*_: Any) -> Call:
    raise AssertionError("these are not taken together")


def is_well(tier: RedisTier) -> bool:
    return tier.stats()["pending"] == 0 and set(tier.stats()["servers"].values()) == {"ok"}


@pytest.mark.parametrize("has_another_tier", [False, True])
async def test_a_write_returns_before_its_commit_has_landed_and_lookups_of_its_process_wait_for_it(
    has_another_tier: bool, own_valkey: Server
):
    @AgentCache("order:{order}", remote_cache=MemoryTier() if has_another_tier else None)
    async def get(order: int) -> int:
        return order

    await get(7)
    async with making(is_heard=True, max_staleness=30.0, timeout=20.0) as make:
        tier, other = make(own_valkey.url), make(own_valkey.url)
        await load(tier, read("order:7"), "old")
        calls: list[int] = []

        @AgentCacheInvalidator("order:{order}")
        async def put(order: int) -> None:
            calls.append(order)
            own_valkey.pause()

        with configure(remote=tier):
            await put(7)
            lookup = asyncio.create_task(tier.lookup(read("order:7")))
            for _ in range(10):
                await asyncio.sleep(0)
            assert calls == [7]
            assert tier.stats()["batches"] == 1  # that of the first lookup of this test
            own_valkey.resume()
            found, ticket = await lookup
            assert found is None
        await tier.store(ticket, "new", ("order:7",), 0.5, age=0.0)
        assert await value_of(other, read("order:7")) == "new"
        assert is_well(tier)


async def test_a_lookup_does_not_wait_for_writes_that_end_while_it_waits(make: Make, valkey: Server):
    """In a process that writes all the time there is always a commit on its way."""
    tier, other = make(valkey.url, timeout=0.9), make(valkey.url)
    await load(tier, read("order", key="all"), "old")
    pending, landed = tier._writer.pending, []
    first, *others = [tier._writer.calls.commit_root(Keyspace("agent_cache").root("order"), NEVER) for _ in range(50)]
    pending.send(first)
    lookup = asyncio.create_task(tier.lookup(read("order", key="all")))
    for call in others:  # each is sent before the one before it has landed
        await asyncio.sleep(0)
        pending.send(call)
        pending.acknowledge(first)
        landed.append(first)
        first = call
    found, ticket = await lookup
    assert found is None  # the last one has not landed
    assert ticket.seen
    assert len(landed) == 49
    assert tier.stats()["skipped"] == 0
    pending.acknowledge(first)
    assert await value_of(other, read("order", key="all")) == "old"


async def test_a_commit_that_nobody_waits_for_is_delivered_whatever_becomes_of_its_connection(
    make: Make, valkey: Server
):
    with Proxy.start(valkey.port) as proxy:
        tier, other = make(proxy.url), make(valkey.url)
        await load(other, read("order:7"), "old")
        intent = write("order:7")
        await tier.begin(intent)
        proxy.cut()
        assert isinstance(tier.commit(intent, intent.tags, failed=False, hold=0.0), SentCommit)
        assert await value_of(other, read("order:7")) == "nothing"
        await until(lambda: is_well(tier) and not valkey.command("ZCARD", "w:{agent_cache:order}"))
        await load(other, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


@pytest.mark.parametrize(
    "why", ["a tag from its result", "refused", "failed", "settles", "not announced", "other tags"]
)
async def test_a_write_of_which_something_is_not_held_for_certain_waits_for_its_commit(
    make: Make, valkey: Server, why: str
):
    tier = make(valkey.url)
    intent = write("order:7", late=("order",) if why == "a tag from its result" else ())
    intent = replace(intent, on_unreachable="refuse" if why == "refused" else "run")
    if why != "not announced":
        await tier.begin(intent)
    tags = (*intent.tags, "order:8") if why == "other tags" else intent.tags
    commit = tier.commit(intent, tags, failed=why == "failed", hold=5.0 if why == "settles" else 0.0)
    assert not isinstance(commit, SentCommit)
    await commit
    assert is_well(tier)


@pytest.mark.parametrize("what", [*slow("the connection", "the data"), "both"])
async def test_a_write_waits_for_its_commit_after_a_loss_that_its_process_has_noticed(
    make: Make, own_valkey: Server, what: str
):
    """The server may hold nothing for it any more: what was loaded before its effect may be stored and found."""
    with Proxy.start(own_valkey.port) as proxy:
        tier = make(proxy.url)
        await load(tier, read("order:7"), "old")
        intent, losses = write("order:7"), tier.stats()["losses"]
        await tier.begin(intent)
        if what == "the connection":
            proxy.cut()
            connection = tier._transport.client().is_connected
            await until(lambda: not connection(0))
        else:
            own_valkey.restart(empty=True)
            await until(lambda: tier.stats()["losses"] > losses and is_well(tier))
        if what == "the data":
            await value_of(tier, read("order:7"))
            assert tier._transport.client().is_connected(0)
        commit = tier.commit(intent, intent.tags, failed=False, hold=0.0)
        assert not isinstance(commit, SentCommit)
        await commit
        await until(lambda: is_well(tier))  # a server that has just started may not be in time


async def test_a_write_waits_for_its_commit_if_its_server_has_failed_since_its_begin(make: Make, own_valkey: Server):
    """Another call was not answered, so the breaker is open. The commit is handed over before the write returns."""
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    intent, handed_over = write("order:7"), []
    hand_over = tier._writer.hand_over

    async def noted(calls: list[Call]) -> None:
        handed_over.extend(calls)
        await hand_over(calls)

    tier._writer.hand_over = noted
    await tier.begin(intent)
    own_valkey.pause()
    try:
        await tier.lookup(read("order:9", key="9"))
        assert set(tier.stats()["servers"].values()) != {"ok"}
        commit = tier.commit(intent, intent.tags, failed=False, hold=0.0)
        assert not isinstance(commit, SentCommit)
        await commit
        assert [call.writer for call in handed_over] == [intent.id]
        assert tier.stats()["pending"] == 1
    finally:
        own_valkey.resume()
    await until(lambda: is_well(tier))
    assert await value_of(tier, read("order:7")) == "nothing"


@pytest.mark.slow
async def test_a_write_of_very_many_entries_lands(make: Make, valkey: Server):
    """Lua unpacks some eight thousand at once, and then no more."""
    tier = make(valkey.url, timeout=10.0, max_staleness=20.0)  # which a busy server may need
    known = [read("order:7", key=str(number)) for number in (0, 8_999)]
    for request in known:
        await load(tier, request, "old")
    intent = write(entries=tuple(read("order:7", key=str(number)) for number in range(9_000)))
    await tier.begin(intent)
    await commit(tier, intent)
    assert is_well(tier)
    assert tier.stats()["failures"] == 0
    assert [await value_of(tier, request) for request in known] == ["nothing", "nothing"]
    assert valkey.command("ZCARD", "w:{agent_cache:order}") == 0


async def test_a_command_that_a_server_refuses_blocks_no_other(make: Make, valkey: Server):
    """It is no outage: all of its root is invalidated instead, and everything else goes on."""
    tier, other = make(valkey.url), make(valkey.url)
    for tag in ("order:7", "user:1"):
        await load(other, read(tag, key=tag), "old")
    for tag in ("order", "user"):
        root = Keyspace("agent_cache").root(tag)
        script = Script.of("return redis.error_reply('ERR too many results to unpack')")
        poison = Call("w", root, script, [root.registry], [b""] * 5, frozenset([root.cell(b"Tx")]), until=0.0)
        tier._writer.pending.add(poison, 1.0, of_nothing)
    assert not is_well(tier)
    await until(lambda: is_well(tier))
    assert tier.stats()["failures"] == 0
    assert [await value_of(other, read(tag, key=tag)) for tag in ("order:7", "user:1")] == ["nothing", "nothing"]


async def test_a_live_command_that_is_refused_is_no_outage(make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch):
    tier, other = make(valkey.url), make(valkey.url)
    await load(other, read("order:7"), "old")
    intent = write("order:7")
    await tier.begin(intent)
    with monkeypatch.context() as patch:
        patch.setattr(tier._transport, "script", lambda _: Script.of("return redis.error_reply('ERR no')"))
        await commit(tier, intent)
    assert tier.stats()["pending"] == 1
    assert set(tier.stats()["servers"].values()) == {"ok"}
    await until(lambda: is_well(tier))
    assert await value_of(other, read("order:7")) == "nothing"


@pytest.mark.parametrize("writes", [3, *slow(1_003)])
async def test_an_effect_in_doubt_is_not_overtaken_by_what_was_pending_before_it(
    make: Make, own_valkey: Server, writes
):
    """However many pending calls were merged meanwhile: nothing is stored until its doubt is over."""
    tier, other = make(own_valkey.url), make(own_valkey.url)
    request = read("order:0")
    for each in (tier, other):
        await each.lookup(request)
    own_valkey.pause()
    for number in range(writes):
        intent = write(f"order:{number}")
        await tier.begin(intent)
        await commit(tier, intent, hold=0.0 if number else 30.0)
    own_valkey.resume()
    await until(lambda: is_well(tier) and is_well(other))
    await load(other, request, "from before the effect")
    assert await value_of(other, request) == "nothing"


async def test_a_hold_that_is_delivered_late_ends_when_it_was_to_end(make: Make, valkey: Server, proxy):
    tier = make(proxy.url)
    await tier.lookup(read("order:7"))
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    ends = time.time() + 3.0
    await commit(tier, intent, hold=3.0)
    await asyncio.sleep(0.5)
    proxy.heal()
    await until(lambda: is_well(tier))
    with valkey.client() as client:
        ((_, deadline),) = client.zrange("w:{agent_cache:order}", 0, -1, withscores=True)
    assert ends - 0.1 < deadline / 1000 < ends + 0.2


async def test_a_command_that_is_delivered_twice_brings_no_token_back(make: Make, valkey: Server):
    """What was stored under it would count again, whatever was written between the two."""
    tier, other = make(valkey.url), make(valkey.url)
    intent = write("order:7")
    await tier.lookup(read("order:7"))
    delivered: list[Call] = []
    client = tier._transport.client()
    run = client.run

    async def remembered(script: Script, slot: int, keys: list[bytes], arguments: list[bytes], **rest: Any) -> Any:
        delivered.append(Call("w", Keyspace("agent_cache").root("order"), script, keys, arguments))
        return await run(script, slot, keys, arguments, **rest)

    client.run = remembered
    await commit(tier, intent)
    del client.run
    await load(other, read("order:7"), "old")
    assert await value_of(other, read("order:7")) == "old"
    second = write("order:7")
    await other.begin(second)
    await commit(other, second)
    connection, _ = await tier._transport.connect(tier._transport.topology.servers[0])
    await connection.run(delivered[0].script, delivered[0].keys, delivered[0].fresh_arguments())
    connection.close()
    assert await value_of(other, read("order:7")) == "nothing"


@pytest.mark.parametrize("settling", [0, *slow(300)])
async def test_a_write_looks_at_no_other_that_still_holds(make: Make, valkey: Server, settling: int):
    """Of the writers under its root it reads those that are due, and how long the last one holds each of its cells."""
    tier = make(valkey.url)
    await tier.lookup(read("order:7"))
    for number in range(settling):
        intent = write(f"order:{number}")
        await tier.begin(intent)
        await commit(tier, intent, hold=60.0)
    intent = write("order:x")
    with valkey.client() as client, client.monitor() as monitor:
        await tier.begin(intent)
        await tier.renew(intent)
        await commit(tier, intent)
        await tier.lookup(read("order:y", key="y"))
        client.echo("the end")
        said: list[str] = []
        while not said or not said[-1].startswith("ECHO"):
            said.append(monitor.next_command()["command"])
    ranges = [command.split()[2:] for command in said if command.startswith("ZRANGE")]
    assert len(ranges) > 10
    few = [["-1", "-1"], ["0", "1"]]
    assert all(rest[:2] in few or (rest[0] == "(0" and rest[2] == "BYSCORE") for rest in ranges)


async def test_a_server_that_is_full_forgets_no_writer(make: Make, own_valkey: Server):
    tier = make(own_valkey.url)
    first, second = write("order:1"), write("order:2")
    await tier.begin(first)
    writers = own_valkey.command("ZRANGE", "w:{agent_cache:order}", "0", "-1")
    assert len(writers) == 1
    own_valkey.command("CONFIG", "SET", "maxmemory", "1mb")
    await tier.begin(second)
    assert tier.stats()["pending"] == 1
    assert own_valkey.command("ZRANGE", "w:{agent_cache:order}", "0", "-1") == writers
    own_valkey.command("CONFIG", "SET", "maxmemory", "0")
    await until(lambda: is_well(tier))
    await commit(tier, first)
    await commit(tier, second)
    assert own_valkey.command("EXISTS", "w:{agent_cache:order}") == 0


async def test_a_write_that_fails_after_one_that_did_not_ends_all_that_it_had_armed(make: Make, valkey: Server):
    """What is said is worked out once for the tags of a write, and they are the same in both."""
    tier, other = make(valkey.url), read("order:8")
    for number, failed in enumerate([False, True]):
        intent = WriteIntent(f"w{number}", (), late_roots=("order",))
        await tier.begin(intent)
        await load(tier, other, "old")
        assert await value_of(tier, other) == "old"
        await tier.commit(intent, ("order:7",), failed=failed, hold=0.0)
        assert await value_of(tier, other) == ("nothing" if failed else "old")


def test_what_a_child_says_is_not_taken_for_its_parents_own():
    """Also where its parent had said the same before the fork."""
    writer = RedisTier.from_url("redis://127.0.0.1")._writer  # it connects to nothing
    intent = write("order:7")
    (before,), parent = writer.calls.begin(intent), writer.process
    assert before.arguments[-1].startswith(parent)
    writer.after_fork()
    (after,) = writer.calls.begin(intent)
    assert writer.process != parent
    assert after.arguments[-1].startswith(writer.process)


async def test_a_lookup_that_comes_before_a_begin_has_landed_keeps_nothing(make: Make, valkey: Server):
    tier, request = make(valkey.url), read("order:7")
    await load(tier, request, "old")
    client = tier._transport.client()
    run, tickets = client.run, []

    async def overtaken(*given: Any, **rest: Any) -> Any:
        found, ticket = await tier.lookup(request)
        assert found is not None
        assert ticket.is_clean()
        tickets.append(ticket)
        return await run(*given, **rest)

    client.run = overtaken  # type: ignore[method-assign]
    intent = write("order:7")
    await tier.begin(intent)
    assert [ticket.is_clean() for ticket in tickets] == [False]
    del client.run
    await commit(tier, intent)


async def test_tags_may_come_in_a_list(make: Make, valkey: Server):
    tier = make(valkey.url)
    intent = WriteIntent("w", ["order:7"])  # type: ignore[arg-type]
    await load(tier, read("order:7"), "old")
    await tier.begin(intent)
    await tier.commit(intent, ["order:7"], failed=False, hold=0.0)  # type: ignore[arg-type]
    assert await value_of(tier, read("order:7")) == "nothing"


async def test_more_holds_than_a_sweep_takes_are_all_over_when_their_time_is(make: Make, valkey: Server):
    tier, other = make(valkey.url), make(valkey.url)
    everything = read("order", key="all")
    await load(tier, everything, "old")
    for number in range(150):
        intent = write(f"order:{number}")
        await tier.begin(intent)
        await commit(tier, intent, hold=0.5)
        last = time.monotonic()
    await load(other, everything, "half")
    assert await value_of(other, everything) == "nothing"
    await asyncio.sleep(last + 0.6 - time.monotonic())
    assert await value_of(other, everything) == "nothing"
    for number in range(0, 150, 10):
        request = read(f"order:{number}", key=str(number))
        await load(other, request, number)
        assert await value_of(other, request) == number
    await load(other, everything, "new")
    assert await value_of(other, everything) == "new"
    assert valkey.command("ZCARD", "w:{agent_cache:order}") == 0
    assert valkey.command("EXISTS", "w:{agent_cache:order}:D") == 0


@pytest.mark.slow
async def test_a_writer_that_died_is_noticed_before_the_sweep_has_come_to_it(make: Make, valkey: Server):
    """It may have changed anything below the root, which another writer has kept armed meanwhile."""
    dying, other = make(valkey.url, lease=1.0), make(valkey.url, lease=30.0)
    for number in range(150):
        await dying.begin(write(f"order:x{number}"))
    await dying.begin(write(late=("order",)))
    intent = write(late=("order",))
    await other.begin(intent)
    await load(other, read("order:7"), "old")
    assert await value_of(other, read("order:7")) == "old"
    await asyncio.sleep(1.1)
    await commit(other, intent, "order:8")
    assert valkey.command("ZCARD", "w:{agent_cache:order}") == 51
    assert await value_of(other, read("order:7")) == "nothing"


async def test_a_begin_that_comes_after_its_commit_ends_no_doubt(make: Make, valkey: Server):
    """Its lease is over before the doubt is."""
    tier, other = make(valkey.url, lease=0.3), make(valkey.url)
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent, "order:7", "order:8", hold=30.0)
    await tier.begin(intent)
    await asyncio.sleep(0.4)
    for number in ("7", "8"):
        request = read(f"order:{number}", key=number)
        await load(other, request, "from before the effect")
        assert await value_of(other, request) == "nothing"


async def test_a_root_that_was_forgotten_and_met_again_is_the_same_root(make: Make, own_valkey: Server):
    """Else two commands of one write, each for a part of it, would take each other's place."""
    tier = make(own_valkey.url)
    request = read("order:7")
    await load(tier, request, "old")
    names = tier._writer.keyspace
    with own_valkey.client() as client:
        (call,) = (key.removeprefix("v:agent_cache:").encode() for key in client.keys("v:*"))
    before = names.root("order")
    for number in range(10_001):
        names.root(f"other{number}")
    assert names.root("order") is not before
    own_valkey.kill()
    intent = WriteIntent("w", ("order:8",), keys=((request.tool, request.key),))
    await commit(tier, intent, "order:8")
    pending, root = tier._writer.pending, names.root("order")
    assert pending.blocks([root.cell(b"K" + call)])
    assert pending.blocks([names.entity(root, "8")])
    assert len(pending) == 1


async def test_a_write_of_very_many_entities_moves_their_root(make: Make, valkey: Server):
    """Named one by one they would make a message that no listener takes."""
    tier, other = make(valkey.url), make(valkey.url)
    told: list[Touched | None] = []
    other.subscribe(told.append)
    await load(other, read("order:7"), "old")
    await other.caught_up()
    before = other.stats()["losses"]
    with valkey.client() as client, client.pubsub() as listener:
        listener.subscribe("c:{agent_cache:order}")
        assert listener.get_message(timeout=60)["type"] == "subscribe"
        intent = write(*(f"order:{number}" for number in range(30_000)))
        await tier.begin(intent)
        await commit(tier, intent)
        said = [listener.get_message(timeout=60)["data"] for _ in range(2)]
    assert [len(each) < 100 for each in said] == [True, True]
    await other.caught_up()
    assert is_well(tier)
    assert other.stats()["losses"] == before
    assert told == [Touched(("order",))] * 2
    assert await value_of(other, read("order:7")) == "nothing"


@pytest.mark.parametrize("what", ["begin", "renew"])
async def test_a_commit_stays_owed_whatever_of_its_write_lands_after_it(make: Make, valkey: Server, what: str):
    """Networks delay, and a renewal may be on its way when the write ends."""
    tier = make(valkey.url)
    writer = tier._writer
    deliver, writer.deliver_pending = writer.deliver_pending, lambda *_: asyncio.sleep(0)
    intent = replace(write("order:7"), on_unreachable="refuse")  # its commit is sent by its first step, not before
    await tier.begin(intent)
    tier.commit(intent, intent.tags, failed=False, hold=0.0).close()
    for call in writer.pending.overdue(0.0):
        writer.add_pending(call)
    await getattr(tier, what)(intent)
    assert tier.stats()["pending"] == 1
    writer.deliver_pending = deliver
    await until(lambda: is_well(tier))
    assert valkey.command("ZCARD", "w:{agent_cache:order}") == 0


# A server that was stopped, and goes on


async def stops(server: Server, tier: RedisTier) -> None:
    """Stop a server, until this tier does not ask it any more: what it answered before may still be on its way."""
    server.pause()
    while is_well(tier):
        await tier.lookup(read("user:1"))


def goes_on(server: Server) -> None:
    """Have a stopped server go on, and take all that it was sent: until then a later command may come before them."""
    server.resume()
    server.command("PING")


@pytest.mark.slow
async def test_what_was_not_delivered_is_on_its_way_when_the_write_returns(make: Make, own_valkey: Server):
    """A server that was stopped executes it before anything that it gets afterwards, whatever its writer does then."""
    tier, other = make(own_valkey.url), make(own_valkey.url)
    await load(other, read("order:7"), "old")
    assert await tier.caught_up()
    tier._writer.deliver_pending = lambda *_: asyncio.sleep(0)  # from now on heartbeats deliver nothing
    await stops(own_valkey, tier)
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    assert tier.stats()["pending"] == 1
    goes_on(own_valkey)
    await until(lambda: set(other.stats()["servers"].values()) == {"ok"})
    assert await value_of(other, read("order:7")) == "nothing"
    await until(lambda: tier.stats()["pending"] == 0)


async def test_a_write_that_is_cancelled_is_on_its_way_too(make: Make, own_valkey: Server):
    """However busy the thread is that sends it."""
    tier, other = make(own_valkey.url), make(own_valkey.url)
    await load(other, read("order:7"), "old")
    assert await tier.caught_up()
    tier._writer.deliver_pending = lambda *_: asyncio.sleep(0)
    await stops(own_valkey, tier)
    is_free = threading.Event()
    tier._subscriber._loop.call_soon_threadsafe(is_free.wait)
    ending = asyncio.create_task(commit(tier, write("order:7")))
    for _ in range(3):
        await asyncio.sleep(0)
        ending.cancel()
    assert not ending.done()
    is_free.set()
    await asyncio.wait([ending])
    assert ending.cancelled()
    goes_on(own_valkey)
    await until(lambda: set(other.stats()["servers"].values()) == {"ok"})
    assert await value_of(other, read("order:7")) == "nothing"


async def test_a_write_that_ends_with_its_loop_is_on_its_way_too(make: Make, own_valkey: Server):
    """Also if the loop had no connection yet, and nobody knows that the server was stopped."""
    tier, other = make(own_valkey.url), make(own_valkey.url)
    await load(other, read("order:7"), "old")
    assert await tier.caught_up()
    tier._writer.deliver_pending = lambda *_: asyncio.sleep(0)

    async def begin_to_end() -> None:
        _ending = asyncio.ensure_future(commit(tier, write("order:7")))
        await asyncio.sleep(0)

    own_valkey.pause()
    await asyncio.to_thread(asyncio.run, begin_to_end())
    goes_on(own_valkey)
    assert await value_of(other, read("order:7")) == "nothing"


async def test_what_is_on_its_way_is_executed_though_another_connection_is_accepted_before_it_was_read(
    make: Make, own_valkey: Server
):
    """A server reads 16 KB of each connection in a turn. The other one may not get to deliver anything."""
    tier, other = make(own_valkey.url), make(own_valkey.url)
    await load(other, read("order:7"), "old")
    assert await tier.caught_up()
    tier._writer.deliver_pending = lambda *_: asyncio.Event().wait()
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    await stops(own_valkey, tier)
    await until(lambda: subscription._beaten_at == NEVER)  # it connects again from now on
    for start in reversed(range(0, 4_500, 900)):  # 300 KB each
        await commit(tier, write(*(f"order:{number}" for number in range(start, start + 900))))
    assert tier.stats()["pending"] == 5
    connect, attempts = tier._transport.connect, []

    async def attempted(server: Any) -> Any:
        attempts.append(server)
        return await connect(server)

    tier._transport.connect = attempted
    await until(lambda: attempts)
    goes_on(own_valkey)
    await until(lambda: tier.stats()["pending"] == 0)
    assert await value_of(other, read("order:7")) == "nothing"


async def test_connections_to_a_server_that_refuses_heartbeats_are_not_collected(make: Make, own_valkey: Server):
    tier = make(own_valkey.url, max_staleness=0.2, timeout=0.1)
    assert await tier.caught_up()
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    own_valkey.config_set(min_replicas_to_write=1)
    seen = [subscription._commands]
    while len(seen) < 5:
        await until(lambda: subscription._commands not in seen)
        seen.append(subscription._commands)
    assert not any(connection.is_open for connection in seen[:-2])
    own_valkey.config_set(min_replicas_to_write=0)
    await until(lambda: is_well(tier) and not subscription._formers)


async def test_trust_counts_from_the_heartbeat_before_the_ping(make: Make, valkey: Server):
    """What was sent to the server before that heartbeat was executed before the PING; what came later may not have."""
    tier = make(valkey.url, max_staleness=30.0)  # the heartbeats come from here
    await until(lambda: tier.trusted_until() > CLOCK.now())
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    whole = subscription._pong
    arrived: list[float] = []

    def late(nonce: bytes) -> None:
        """After the answer to the next heartbeat."""
        subscription._beaten_at = boottime()
        whole(nonce)
        arrived.append(tier.trusted_until() - CLOCK.now())

    subscription._beaten_at -= 10.0  # the latest answer that was there when the PING was sent
    subscription._answered_at = NEVER
    subscription._pong = late
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(subscription_ping(subscription), tier._subscriber._loop))
    assert 15.0 < arrived[0] < 20.0


async def subscription_ping(subscription: Any) -> None:
    await subscription.ping()


@pytest.mark.slow
async def test_nothing_is_found_by_who_has_not_had_an_answer_for_long(make: Make, own_valkey: Server):
    """A lookup may be answered by a server that was stopped before it has executed what had come before. Another
    question is answered first, over a new connection.
    """
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    assert await value_of(tier, read("order:7")) == "old"
    await until(lambda: tier.trusted_until() > CLOCK.now())  # else the end of it would not be waited for

    async def beat(*_: Any) -> None:
        await asyncio.Event().wait()

    (subscription, _) = next(iter(tier._subscriber._subscriptions.values()))
    subscription._beat = beat
    await until(lambda: tier.trusted_until() == float("-inf"))
    # That counts from the answer before the last one, where the last one was late: see `Subscription._extend_term`.
    await until(lambda: boottime() - subscription.server.heard_at > 1.0)
    before = int(own_valkey.info("stats")["total_connections_received"])
    assert await value_of(tier, read("order:7")) == "old"
    assert await value_of(tier, read("order:7")) == "old"
    assert int(own_valkey.info("stats")["total_connections_received"]) == before + 2  # one is of these statistics
