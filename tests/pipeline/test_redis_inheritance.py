"""Values whose load has made other reads, on a real server: trips, subscriptions, pending invalidations and limits."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache
from agent_cache.clock import CLOCK
from agent_cache.remote.redis.connection import NEVER
from agent_cache.remote.redis.keyspace import Keyspace
from tests.contract.workbench import commit, load, read, value_of, versions_of, write, writing
from tests.harness.slow import slow
from tests.harness.tiers import Make, making, until

ORDER = read("order:7")
REPORT = read("report", tool="shop:report", key="today")


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Tiers that are listened to, and closed afterwards."""
    async with making(is_heard=True, max_staleness=3.0, timeout=1.5, lease=20.0) as make:
        yield make


async def trips(tier, request) -> tuple[object, int]:
    """What is found, and in how many batches."""
    before = tier.stats()["batches"]
    return await value_of(tier, request), tier.stats()["batches"] - before


async def test_a_hit_that_inherits_is_one_trip_once_its_cells_are_known(make, valkey):
    """The first one in another process fetches the cells that the value names, subscribes, and looks again."""
    a, b = make(valkey.url), make(valkey.url)
    for tier in (a, b):
        await value_of(tier, read("warm", key="warm"))
    await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
    assert [await trips(tier, REPORT) for tier in (a, a, b, b)] == [("old", 1), ("old", 1), ("old", 3), ("old", 1)]
    await load(b, REPORT, "new")  # it makes no other read any more
    assert [await trips(tier, REPORT) for tier in (b, a, a)] == [("new", 1)] * 3


async def test_a_plain_value_is_found_in_one_trip_as_ever(make, valkey):
    a, b = make(valkey.url), make(valkey.url)
    for tier in (a, b):
        await value_of(tier, read("order", key="warm"))
    await load(a, ORDER, "old")
    assert [await trips(tier, ORDER) for tier in (a, b, b)] == [("old", 1)] * 3


async def test_messages_about_inherited_roots_arrive_before_a_copy_is_kept(make, valkey):
    """The process has never read that root."""
    a, b = make(valkey.url), make(valkey.url)
    await load(a, REPORT, "old", "order:7", "user:1", inherited=[await versions_of(a, read("order:7", "user:1"))])
    await until(lambda: b.trusted_until() > CLOCK.now() or b.stats()["trusted"] is not None)
    _, ticket = await b.lookup(REPORT)
    assert ticket.is_clean()
    for written in ("order:7", "user:1"):
        _, ticket = await b.lookup(REPORT)
        assert ticket.is_clean()
        async with writing(a, written):
            pass
        await b.caught_up()
        await until(lambda: not ticket.is_clean())  # noqa: B023
        await load(a, REPORT, "old", "order:7", "user:1", inherited=[await versions_of(a, read("order:7", "user:1"))])


async def test_a_write_before_the_subscription_is_not_missed(make, valkey, monkeypatch):
    """Its message reached nobody here, and the value was read before it."""
    a, b = make(valkey.url), make(valkey.url)
    await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
    await value_of(b, read("report", key="warm"))
    subscribe = b._reader._subscribe
    written = []

    async def write_first(client, ticket, topics):
        async with writing(a, "order:7"):
            written.append([root.name for root in topics.values()])
        await subscribe(client, ticket, topics)

    monkeypatch.setattr(b._reader, "_subscribe", write_first)
    assert await value_of(b, REPORT) == "nothing"
    assert written == [["report", "order"]]


async def test_a_subscription_that_fails_costs_the_copy_and_not_the_value(make, valkey, monkeypatch):
    a, b = make(valkey.url), make(valkey.url)
    await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
    await value_of(b, read("report", key="warm"))

    async def fail(topics, until):
        pass

    monkeypatch.setattr(b._reader.subscriber, "subscribe", fail)
    for _ in range(2):
        found, ticket = await b.lookup(REPORT)
        assert found is not None
        assert found.value == "old"
        assert not ticket.is_clean()


async def test_nothing_that_inherits_from_what_is_pending_is_found_or_stored(make, valkey, proxy):
    """The process that wrote would find what it has overwritten."""
    tier, other = make(proxy.url), make(valkey.url)
    inner = await versions_of(tier, ORDER)
    await load(tier, REPORT, "old", "order:7", inherited=[inner])
    writer = tier._writer
    writer.deliver_pending = lambda *_: suppressed()  # the heartbeat delivers nothing
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    proxy.heal()
    await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
    assert tier.stats()["pending"] == 1
    assert await value_of(other, REPORT) == "old"
    found, ticket = await tier.lookup(REPORT)
    assert found is None
    assert ticket.versions is None
    again = read("report", tool="shop:report", key="again")
    ticket = await load(tier, again, "old", "order:7", inherited=[inner])
    assert ticket.versions is None
    assert await value_of(other, again) == "nothing"
    del writer.deliver_pending
    await until(lambda: tier.stats()["pending"] == 0)
    assert await value_of(other, REPORT) == "nothing"


async def suppressed() -> None:
    pass


@pytest.mark.slow
async def test_versions_of_a_server_that_forgot_who_it_was_fit_nothing(make, start_server):
    """It may have lost writes: what was read before is not joined with what is read now."""
    server = start_server(enable_debug_command="yes")
    tier = make(server.url)
    before = await versions_of(tier, ORDER)
    server.command("DEBUG", "CHANGE-REPL-ID")
    server.command("CLIENT", "KILL", "TYPE", "normal")
    with suppress(AssertionError):
        await until(lambda: tier.stats()["losses"] > 1, 2.0)
    await load(tier, REPORT, "old", "order:7", inherited=[before])
    assert await value_of(tier, REPORT) == "nothing"
    async with asyncio.timeout(60):  # until it hears of the new one
        while not (after := await versions_of(tier, ORDER)):
            await asyncio.sleep(0.01)
    assert after != before
    await load(tier, REPORT, "new", "order:7", inherited=[after])
    assert await value_of(tier, REPORT) == "new"


async def test_what_depends_on_too_much_is_kept_in_its_process(make, valkey):
    """Each hit would have to look at all of it. What it depends on is known all the same."""
    tier = make(valkey.url)
    many = [{b"t:{agent_cache:order}:T%04x" % number: b"id token"} for number in range(1_023)]
    for count, is_stored in ((1_022, True), (1_023, False)):  # with two of its own
        before = tier.stats()
        ticket = await load(tier, read("report", key=count), "x", "order", inherited=many[:count])
        after = tier.stats()
        assert after["stores"] - before["stores"] == is_stored
        assert after["unencodable"] - before["unencodable"] == (not is_stored)
        assert ticket.versions is not None


async def test_a_value_that_does_not_fit_has_versions_all_the_same(make, valkey):
    """What is made of it may fit."""
    tier = make(valkey.url, max_value_size=1_024)
    inner = await load(tier, ORDER, "x" * 2_000)
    assert await value_of(tier, ORDER) == "nothing"
    await load(tier, REPORT, "old", "order:7", inherited=[inner.versions])
    assert await value_of(tier, REPORT) == "old"
    async with writing(tier, "order:7"):
        pass
    assert await value_of(tier, REPORT) == "nothing"


async def test_versions_reference_nothing_but_bytes(make, valkey):
    """They are kept with local copies, for as long as these live."""
    tier = make(valkey.url)
    late = read(late=("order",), tool="shop:find_order")
    for request, tags in ((ORDER, ()), (late, ("order:7",))):
        stored = await load(tier, request, "x" * 1_000, *tags)
        for _ in range(2):
            found = (await tier.lookup(request))[1]
            for ticket in (stored, found):
                assert type(ticket.versions) is dict
                assert {type(each) for each in gc.get_referents(ticket.versions)} <= {bytes}
                assert len(ticket.versions) == 3


@pytest.mark.parametrize("name", ["order", "a b", "a}b", "a:{b", "é\n", "\udc80", "}"])
@pytest.mark.parametrize("namespace", ["agent_cache", "a:b"])
def test_the_root_of_a_cell_is_known_by_its_key(name, namespace):
    keyspace = Keyspace(namespace)
    root = keyspace.root(name)
    for key in (root.s, root.d, keyspace.entity(root, "7")):
        assert keyspace.root_of_cell(key) == root
    for key in (b"", b"v:x", b"t:{other:order}:S", b"t:{%b:order" % namespace.encode()):
        with pytest.raises(ValueError, match="namespace"):
            keyspace.root_of_cell(key)


def test_dependents_that_are_too_many_stand_for_the_whole_root(monkeypatch):
    keyspace = Keyspace("agent_cache")
    assert keyspace.dependents(b"K1") == frozenset()
    for number in range(16):
        keyspace.keep_dependent(b"K1", b"%d" % number)
    assert len(keyspace.dependents(b"K1") or ()) == 16
    keyspace.keep_dependent(b"K1", b"16")
    assert keyspace.dependents(b"K1") is None
    assert keyspace.dependents(b"K2") == frozenset()
    monkeypatch.setattr("agent_cache.remote.redis.keyspace._MAX_ENTRIES", 1)
    keyspace.keep_dependent(b"K2", b"1")
    assert keyspace.dependents(b"K3") is None


def test_late_cells_of_long_entries_are_bounded_apart(monkeypatch):
    monkeypatch.setattr("agent_cache.remote.redis.keyspace._MAX_LONG_ENTRIES", 2)
    keyspace = Keyspace("agent_cache")
    root = keyspace.root("order")
    many = {keyspace.entity(root, str(number)): root for number in range(100)}
    for digest in (b"1", b"2", b"3"):
        keyspace.keep_late_cells(digest, many)
    keyspace.keep_late_cells(b"4", {root.s: root})
    assert [len(keyspace.late_cells(digest)) for digest in (b"1", b"2", b"3", b"4")] == [0, 100, 100, 1]
    keyspace.keep_late_cells(b"3", {})
    assert keyspace.late_cells(b"3") == {}


async def test_a_lookup_waits_for_the_commit_of_its_process_to_what_the_value_has_read(make, valkey):
    """Another server may be asked, or over another connection, on which the commit is not before the lookup."""
    tier = make(valkey.url, max_staleness=30.0, timeout=20.0)
    await load(tier, REPORT, "old", "user:1", inherited=[await versions_of(tier, read("user:1"))])
    assert await value_of(tier, REPORT) == "old"
    pending, intent = tier._writer.pending, write("user:1")
    (call,) = tier._writer.calls.commit(intent, intent.tags, NEVER, failed=False)
    pending.send(call)
    before = tier.stats()["batches"]
    lookup = asyncio.create_task(value_of(tier, REPORT))
    for _ in range(10):
        await asyncio.sleep(0)
    assert tier.stats()["batches"] == before
    pending.acknowledge(call)
    assert await lookup == "old"  # it was not sent in this test


@pytest.mark.slow
@pytest.mark.parametrize("outer_tier", [True, *slow(False)])
async def test_a_hit_of_what_has_read_a_lot_asks_for_each_connection_once(make, valkey, outer_tier):
    """And is still trusted no longer than all that it has read, whose messages go on arriving."""
    tier = make(valkey.url)
    runs = []

    @AgentCache("order:{id}", remote_cache=tier)
    async def order(id: int) -> int:
        return id

    @AgentCache("page", remote_cache=tier if outer_tier else None)
    async def page() -> int:
        runs.append("page")
        return sum([await order(id) for id in range(300)])

    @AgentCache("book", remote_cache=tier if outer_tier else None)
    async def book() -> int:
        return await page() + await order(300)

    for tool in (page, book, page, book):  # the first lookups subscribe
        await tool()
    asked = []
    ((subscription, _),) = tier._subscriber._subscriptions.values()
    term, thread = subscription.term, threading.get_ident()
    now = term.clock

    def counted() -> float:
        if threading.get_ident() == thread:
            asked.append(1)
        return now()

    term.clock = counted
    for tool in (page, book):
        asked.clear()
        runs.clear()
        await tool()
        assert (len(asked), runs) == (1, [])
    term.clock = now
    assert len(tier._subscriber._known_trusts()) > 100
    subscription.renew_term()
    before = tier.stats()["batches"]
    await book()
    assert tier.stats()["batches"] > before
