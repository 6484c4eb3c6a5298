"""Reads through tiers, and a backup before one: who is asked, what is kept where, how news of others reaches copies."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, RemotePolicy, configure
from agent_cache.errors import ConfigurationError
from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import commit, value_of, write, writing
from tests.harness import library
from tests.harness.gates import Gate, started
from tests.pipeline.fleet import Process, Truth, WatchedTier

pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_ttl_that_is_set_while_the_ttls_are_read_is_not_missed(is_late: bool):
    """By another process, or by this one, if it reaches the server after they were read."""

    class Server(MemoryServer):
        then: Any = None

        async def ttls(self) -> dict[str, float]:
            found = await super().ttls()
            then, self.then = self.then, None
            if then is not None:
                then()
            return found

    def publish() -> None:
        if is_late:
            server.stop()
            server.clients.clear()  # nobody is told before it asks
        (other if is_late else one).publish_ttl("get_order", 2.0)
        server.is_up = True

    server = Server()
    one, other, known = MemoryTier(server), MemoryTier(server), dict[str, float]()
    server.then = publish
    one.publish_ttl("get_order", 1.0)
    other.follow_ttls(known.update)
    await other.caught_up()
    await other.caught_up()
    assert known == {"get_order": 2.0}


async def test_a_ttl_that_another_process_sets_before_the_place_in_the_feed_is_known_is_not_missed():
    server = MemoryServer()
    one, other, known = MemoryTier(server), MemoryTier(server), dict[str, float]()
    server.clients.clear()  # nobody is told before it asks
    one.publish_ttl("get_order", 1.0)
    other.publish_ttl("get_order", 2.0)
    one.follow_ttls(known.update)
    await one.caught_up()
    assert known == {"get_order": 2.0}


# What it is asked


async def test_an_argument_that_was_changed_since_is_another_request(here: WatchedTier):
    @AgentCache("order", remote_cache=here, maxsize=1)
    async def get_all(ids: list[str]) -> list[str]:
        return list(ids)

    ids = ["7"]
    assert await get_all(ids) == ["7"]
    await get_all([])
    ids.append("8")
    assert await get_all(ids) == ["7", "8"]
    assert await get_all(["7"]) == ["7"]
    assert dict(here.requests[-1].arguments) == {"ids": ["7"]}


# Who is asked


async def test_tags_from_a_result_come_with_the_tiers_value(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    await Process(truth, elsewhere).find_order("Mei")
    process = Process(truth, here)
    assert (await process.find_order("Mei"))["value"] == "old"
    assert truth.runs == ["get 7"]
    async with writing(elsewhere, "order:8"):
        pass
    await process.find_order("Mei")
    assert here.orders == ["lookup"]
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    assert (await process.find_order("Mei"))["value"] == "new"


async def test_configure_gives_a_tier_to_tools_without_one(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    process = Process(truth, None)
    with configure(remote=elsewhere):
        await process.get_order("7")
    with configure(remote=here):
        for _ in range(3):  # the first one keeps a copy
            assert await process.get_order("7") == "old"
    assert truth.runs == ["get 7"]
    assert here.orders == ["lookup"]


async def test_a_tiers_hit_is_the_callers_own(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    await Process(truth, elsewhere).find_order("Mei")
    process = Process(truth, here)
    (await process.find_order("Mei"))["value"] = "mine"
    (await process.find_order("Mei"))["value"] = "mine"
    assert (await process.find_order("Mei"))["value"] == "old"
    assert await value_of(elsewhere, here.requests[0]) == {"id": "7", "value": "old"}


async def test_several_backups_are_asked_nearest_first(truth: Truth, server: MemoryServer):
    near, middle, far = WatchedTier(MemoryServer()), WatchedTier(MemoryServer()), WatchedTier(server)
    await Process(truth, far).get_order("7")
    await Process(truth, far, [near, middle]).get_order("7")
    with configure(backup=(near, middle), remote=far):
        assert await Process(truth, None).get_order("7") == "old"
    assert [tier.orders.count("lookup") for tier in (near, middle, far)] == [2, 1, 2]
    assert [tier.orders.count("store") for tier in (near, middle, far)] == [1, 1, 1]
    async with writing(MemoryTier(server), "order:7"):
        truth.save("7")
    assert await Process(truth, far, [near, middle]).get_order("7") == "new"
    assert truth.runs == ["get 7", "set 7", "get 7"]


def test_what_is_no_tier_among_several_is_refused():
    with pytest.raises(ConfigurationError, match="backup must be a tier"):
        configure(backup=[MemoryTier(), "a tier"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "change", [{"version": "2"}, {"version": None}, {"more": "user"}, {"more": "user:{result[of]}"}]
)
async def test_what_an_earlier_deployment_has_stored_is_not_found(server: MemoryServer, change: dict[str, Any]):
    """By another version of a tool, or by one with a further tag: a write of that would not end it."""

    async def get_order(id: str) -> dict[str, str]:
        return {"id": id, "of": "Mei"}

    def deploy(version: str | None = "1", more: str = "order:{id}") -> Any:
        return AgentCache(["order:{id}", more], name="deployed:get", version=version, remote_cache=tier)(get_order)

    for changes, misses in ({}, 1), ({}, 0), (change, 1), ({}, 0):
        tier = MemoryTier(server)
        await deploy(**changes)("7")
        assert tier.stats()["misses"] == misses


async def test_what_the_remote_tier_had_is_given_to_the_backup_at_its_age(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier, clock: library.Clock
):
    await Process(truth, elsewhere, ttl=10).get_order("7")
    clock.advance(6)
    backup = WatchedTier(MemoryServer())
    await Process(truth, here, backup, ttl=10).get_order("7")
    assert backup.orders[-2:] == ["lookup", "store"]
    found, _ = await backup.memory.lookup(backup.requests[0])
    assert found is not None
    assert (found.age, found.ttl) == (6, 4)


async def test_a_session_scoped_tool_never_reaches_a_tier(truth: Truth, here: WatchedTier):
    @AgentCache("order:{id}", scope="session")
    async def get_order(id: str) -> str:
        return truth.load(id)

    with configure(remote=here, backup=here):
        async with AgentCacheSession():
            assert await get_order("7") == await get_order("7") == "old"
            await get_order.invalidate("7")
        await get_order("7")
    assert here.orders == []
    assert here.listeners == 0


async def test_tenants_of_all_processes_are_kept_apart(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    async with AgentCacheSession(tenant="mine"):
        await Process(truth, elsewhere).get_order("7")
    process = Process(truth, here)
    truth.orders["7"] = "new"
    assert await process.get_order("7") == "new"
    async with AgentCacheSession(tenant="yours"):
        assert await process.get_order("7") == "new"
    async with AgentCacheSession(tenant="mine"):
        assert await process.get_order("7") == "old"


async def test_a_tier_is_told_all_that_makes_a_call_what_it_is(here: WatchedTier):
    where = ["a"]

    @AgentCache("file", remote_cache=here, vary=lambda: where[0])
    async def read_file(path: str, client: object = None) -> str:
        return path

    @AgentCache("file", remote_cache=here, key=lambda path: path.lower(), vary=lambda arguments: len(arguments["path"]))
    async def find_file(path: str) -> str:
        return path

    await read_file("x")
    where[0] = "b"
    await read_file("x")
    await find_file("X")
    assert [request.arguments for request in here.requests] == [
        (("path", "x"), ("client", None), ("vary=", "a")),
        (("path", "x"), ("client", None), ("vary=", "b")),
        (("key=", "x"), ("vary=", 1)),
    ]


async def test_fresh_replaces_what_the_tier_has(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    process = Process(truth, here)
    await process.get_order("7")
    truth.orders["7"] = "new"
    assert await process.get_order.fresh("7") == "new"
    assert await value_of(elsewhere, here.requests[0]) == "new"


async def test_invalidating_a_call_discards_it_in_its_tiers(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    other, process = Process(truth, elsewhere), Process(truth, here)
    await other.get_order("7")
    await process.get_order("8")
    truth.orders |= {"7": "new", "8": "new"}
    assert await process.get_order.invalidate("7")
    assert not await process.get_order.invalidate("7")
    assert await other.get_order("7") == await process.get_order("7") == "new"
    assert await process.get_order("8") == "old"


# News


async def test_a_write_elsewhere_drops_the_local_copy(truth: Truth, here: WatchedTier, elsewhere: MemoryTier):
    process = Process(truth, here)
    await process.get_order("7")
    await process.get_order("8")
    async with writing(elsewhere, "order:7"):
        assert await process.get_order("7") == "old"
        truth.save("7")
        assert await process.get_order("7") == "new"  # nothing is kept while it runs
    asked = len(here.orders)
    assert await process.get_order("8") == "old"
    assert len(here.orders) == asked


async def test_a_load_that_a_write_elsewhere_overtakes_is_not_kept(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    gate = Gate()

    @AgentCache("order:{id}", remote_cache=here)
    async def get_order(id: str) -> Any:
        return await gate()

    early = await started(get_order("7"))
    async with writing(elsewhere, "order:7"):
        pass
    late = await started(get_order("7"))
    gate.calls[0].returns("old")
    assert await early == "old"
    gate.calls[1].returns("new")
    assert await late == "new"
    assert await get_order("7") == "new"


async def test_after_a_loss_nothing_that_the_tier_vouched_for_is_served(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    process, local = Process(truth, here), Process(truth, None)
    await process.get_order("7")
    await local.get_order("7")
    here.memory.cut()
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    assert await process.get_order("7") == "old"  # still trusted: the loss is not known yet
    here.memory.reconnect()
    assert await process.get_order("7") == "new"
    assert await local.get_order("7") == "old"  # it has no tier, so it has lost nothing


# Broken tiers


@pytest.mark.parametrize(
    ("order", "tool"),
    [("lookup", "get_order"), ("store", "get_order"), ("begin", "set_order"), ("commit", "set_order")],
)
async def test_a_tier_that_fails_breaks_no_call_and_is_logged_once(
    truth: Truth, here: WatchedTier, order: Any, tool: str, caplog: pytest.LogCaptureFixture
):
    process = Process(truth, here)
    here.fail(order, OSError("gone"), times=100)
    with caplog.at_level(logging.WARNING, "agent_cache"):
        for id in ("7", "8", "7"):
            assert tool == "get_order" or await process.set_order(id) == id
            assert await process.get_order(id) == truth.orders[id]
    assert len(caplog.records) == 1
    assert tool in caplog.text
    assert "OSError: gone" in caplog.text


async def test_what_is_loaded_without_an_answer_of_the_tier_is_not_kept(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier, clock: library.Clock
):
    process = Process(truth, here)
    await process.get_order("8")
    await elsewhere.begin(write("order:7"))
    here.fail("lookup", OSError("gone"))
    assert await process.get_order("7") == "old"
    truth.orders["7"] = "new"
    clock.advance(elsewhere.lease + 1)
    assert await process.get_order("7") == "new"


@pytest.mark.parametrize("consistency", ["bounded", "strong"])
async def test_what_has_read_what_is_written_elsewhere_is_not_kept(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier, clock: library.Clock, consistency: Any
):
    """Its writer may die, and says no more."""
    inner = RemotePolicy(consistency=consistency)

    @AgentCache("order:{id}", remote_cache=here, remote=inner, name="doubted:get_order")
    async def get_order(id: str) -> str:
        return truth.load(id)

    @AgentCache("report", ttl=3_600, remote_cache=here, name="doubted:report")
    async def report() -> str:
        return await get_order("7")

    await get_order("8")  # the tier is listened to
    await elsewhere.begin(write("order:7"))
    assert await report() == "old"
    truth.orders["7"] = "new"
    clock.advance(elsewhere.lease + 1)
    assert await report() == "new"


async def test_a_server_that_is_away_costs_hits_and_nothing_else(
    truth: Truth, server: MemoryServer, here: WatchedTier, elsewhere: MemoryTier, clock: library.Clock
):
    process = Process(truth, here)
    await process.get_order("7")
    server.stop()
    clock.advance(1.1)
    assert await process.get_order("7") == "old"
    assert await process.set_order("7") == "7"
    assert await process.get_order("7") == "new"
    server.start()
    assert await process.get_order("7") == "new"
    before = list(truth.runs)
    assert await Process(truth, elsewhere).get_order("7") == "new"
    assert truth.runs == before


# A backup: other processes do not write to it, so news must reach it, too


@pytest.fixture
def backup() -> WatchedTier:
    return WatchedTier(MemoryServer())


@pytest.fixture
def remote(server: MemoryServer) -> WatchedTier:
    return WatchedTier(server)


@pytest.fixture
def process(truth: Truth, remote: WatchedTier, backup: WatchedTier) -> Process:
    return Process(truth, remote, backup)


@pytest.mark.parametrize("how", ["tag", "entry", "the backup cannot be told", "the message is lost"])
async def test_what_is_written_elsewhere_is_not_found_in_the_backup(
    truth: Truth, process: Process, remote: WatchedTier, backup: WatchedTier, elsewhere: MemoryTier, how: str
):
    for id in ("7", "8"):
        await process.get_order(id)
    if how == "the message is lost":
        remote.memory.cut()
    intent = write(entries=(backup.requests[0],)) if how == "entry" else write("order:7")
    await elsewhere.begin(intent)
    truth.save("7")
    await commit(elsewhere, intent)
    if how == "the message is lost":
        remote.memory.reconnect()
    if how == "the backup cannot be told":
        backup.fail("commit", OSError("gone"))
    assert await process.get_order("7") == "new"
    truth.orders["8"] = "unseen"
    process.get_order.clear()
    assert await process.get_order("7") == "new"
    if how == "tag":
        assert await process.get_order("8") == "old"


async def test_what_an_earlier_process_left_in_the_backup_is_not_believed(
    truth: Truth, remote: WatchedTier, backup: WatchedTier, elsewhere: MemoryTier
):
    await Process(truth, backup).get_order("7")
    async with writing(elsewhere, "order:7"):  # nobody listens yet
        truth.save("7")
    assert await Process(truth, remote, backup).get_order("7") == "new"


async def test_what_was_loaded_while_a_writer_was_at_work_elsewhere_is_not_given_to_the_backup(
    truth: Truth, process: Process, elsewhere: MemoryTier, clock: library.Clock
):
    await process.get_order("8")  # the tiers are listened to
    await elsewhere.begin(write("order:7"))
    assert await process.get_order("7") == "old"
    truth.orders["7"] = "new"  # and then the writer dies, so nobody says more
    clock.advance(elsewhere.lease + 1)
    assert await process.get_order("7") == "new"


async def test_an_entry_that_another_process_drops_is_dropped_though_nobody_knows_any_more_whose_it_is(
    here: WatchedTier, elsewhere: MemoryTier, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agent_cache.remote.feed._MOST_KNOWN", 2)

    @AgentCache("order", remote_cache=here, name="get_order")
    async def get_order(number: int) -> int:
        return number

    for number in range(5):
        await get_order(number)
    await elsewhere.discard(get_order.cache_key(0).request)
    assert not get_order.contains(0)
