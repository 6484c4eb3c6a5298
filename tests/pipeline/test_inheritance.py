"""What a cached read has read through other cached reads, it depends on: tags, ends of lives, and doubts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    RemotePolicy,
    bypass,
    configure,
    invalidate,
    tags_from,
)
from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import writing as written_by
from tests.harness import library
from tests.harness.gates import Gate
from tests.harness.slow import crossed

pytestmark = pytest.mark.usefixtures("nothing_left")


class Shop:
    """Orders and reports about them. Each read says how often its tool has run."""

    def __init__(self, outer: dict[str, Any] | None = None, **inner: Any) -> None:
        self.orders = {"1": "open", "2": "open"}
        self.gate = Gate()
        self.is_held = False
        self.runs: list[str] = []

        @AgentCache("order:{id}", **inner)
        async def get_order(id: str) -> str:
            self.runs.append(id)
            found = self.orders[id]
            if self.is_held:
                await self.gate(id)
            return found

        @AgentCache("report", **(outer or {}))
        async def report(*ids: str) -> str:
            self.runs.append("report")
            return " ".join([await get_order(id) for id in ids])

        @AgentCacheInvalidator("order:{id}")
        async def cancel(id: str) -> None:
            self.orders[id] = "cancelled"

        self.get_order, self.report, self.cancel = get_order, report, cancel

    async def runs_of(self, *ids: str) -> list[str]:
        """What runs for a report."""
        self.runs.clear()
        await self.report(*ids)
        return self.runs


# -- Tags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "drop"),
    crossed(
        ["fails", "is bypassed", "has no key", "is one of many", "comes from a tier"],
        ["the call", "the tool", "the tool by a write"],
    ),
)
async def test_an_inner_read_of_which_no_entry_is_kept_apart(inner: str, drop: str, server: MemoryServer):
    """An outer answer goes with every call of the inner tool that is invalidated, if nobody knows with which."""
    runs: list[str] = []
    state = "old"
    tier = MemoryTier(server) if inner == "comes from a tier" else None

    @AgentCache("item:{id}", maxsize=None, remote_cache=tier, remote=RemotePolicy(consistency="strong"), name="item")
    async def item(id: int, about: object = None) -> str:
        if inner == "fails":
            raise LookupError(state)
        return state

    @AgentCache("page", ttl=60)
    async def page() -> str:
        runs.append("page")
        try:
            if inner == "is bypassed":
                with bypass():
                    return await item(299)
            if inner == "is one of many":
                return [await item(id) for id in range(300)][-1]
            return await item(299, object() if inner == "has no key" else None)
        except LookupError as error:
            return str(error)

    @AgentCacheInvalidator(
        "none", clear_all=False, key_fn=lambda args, kwargs: [item.cache_key(id) for id in range(2_500)]
    )
    async def touch_all() -> None: ...

    if tier is not None:
        await item(299)
    assert [await page(), await page()] == ["old", "old"]
    assert runs == ["page"]
    state = "new"
    if drop == "the call":
        await item.invalidate(299)
    elif drop == "the tool":
        item.clear()
    else:
        await touch_all()
    await page()
    assert runs == ["page", "page"]
    if tier is None:
        assert await page() == "new"


async def test_more_tags_than_are_kept_apart_count_as_their_roots():
    runs = []

    @AgentCache("item:{id}", maxsize=None)
    async def item(id: int) -> int:
        return id

    @AgentCache("sum")
    async def total(count: int) -> int:
        runs.append(count)
        return sum([await item(id) for id in range(count)])

    for count, reruns in ((256, False), (257, True)):
        await total(count)
        await invalidate("item:1000")
        runs.clear()
        await total(count)
        assert bool(runs) is reruns, count
        await invalidate("item:7")
        await total(count)
        assert runs[-1:] == [count]


async def test_what_a_read_does_not_inherit():
    shop = Shop(outer={"inherit": False})
    await shop.report("1")
    await shop.cancel("1")
    assert await shop.runs_of("1") == []

    @AgentCache("summary")
    async def summary(id: str) -> str:
        return await shop.report(id)

    await summary("1")
    await invalidate("order:1")
    shop.runs.clear()
    assert await summary("1") == "open"
    assert shop.runs == [], "what the inner read does not inherit, the outer one does not either"
    await invalidate("report")
    assert await summary("1") == "cancelled"


async def test_a_task_that_a_load_leaves_behind_is_no_part_of_it():
    shop = Shop()
    go_on = asyncio.Event()
    tasks = []

    async def later() -> None:
        await go_on.wait()
        await shop.get_order("1")
        await shop.get_order("1")

    runs = []

    @AgentCache("start")
    async def start() -> str:
        runs.append("start")
        tasks.append(asyncio.create_task(later()))
        return "started"

    await start()
    go_on.set()
    await tasks[0]
    await shop.cancel("1")
    assert await start() == "started"
    assert runs == ["start"]


async def test_reads_made_by_a_write_inside_a_load_are_made_by_the_load():
    shop = Shop()

    @AgentCacheInvalidator("log")
    async def log(id: str) -> str:
        return await shop.get_order(id)

    @AgentCache("page")
    async def page() -> str:
        return await log("1")

    await page()
    await shop.cancel("1")
    assert await page() == "cancelled"


# -- Doubts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "argument"),
    [({"cache_if": lambda _: False}, "1"), ({"scope": "session"}, "1"), ({}, object())],
    ids=["cache_if", "no session", "no key"],
)
async def test_an_inner_read_that_was_merely_not_cached(inner: dict[str, Any], argument: Any):
    orders = {"now": "open"}
    runs = []

    @AgentCache("order", **inner)
    async def get_order(which: Any) -> str:
        return orders["now"]

    async def page() -> str:
        runs.append("page")
        return await get_order(argument)

    without, with_ttl = AgentCache("page", name="without")(page), AgentCache("page", ttl=60, name="with")(page)
    for _ in range(2):
        await without()
        await with_ttl()
    assert len(runs) == 3
    orders["now"] = "cancelled"
    await invalidate("order")
    assert await with_ttl() == "cancelled", "it depends on the tags all the same"


# -- Whose it is ----------------------------------------------------------------------------------------------------


async def test_a_failed_read_ends_the_outer_answer_with_what_it_had_read(clock: library.Clock):
    broken = True

    @AgentCache("rate", ttl=10)
    async def rate() -> int:
        return 0 if broken else 1

    @AgentCache("price")
    async def price() -> float:
        return 1 / await rate()

    @AgentCache("page", ttl=60)
    async def page() -> str:
        try:
            return str(await price())
        except ZeroDivisionError:
            return "none"

    assert await page() == "none"
    broken = False
    clock.advance(11)
    assert await page() == "1.0", "the rate has expired that the price has failed for"


async def test_an_answer_of_a_session_without_a_key_does_not_leave_it_through_another_read():
    @AgentCache("cart", "session")
    async def cart(which: object) -> str:
        return whose

    @AgentCache("page", ttl=60)
    async def page() -> str:
        return await cart(object())

    for whose in ("ann", "bob"):
        async with AgentCacheSession():
            assert await page() == whose


async def test_an_unstored_answer_ends_the_outer_one_with_what_it_had_read(clock: library.Clock):
    rates = {"now": 1}

    @AgentCache("rate", ttl=10)
    async def rate() -> int:
        return rates["now"]

    @AgentCache("price", cache_if=lambda _: False)
    async def price() -> int:
        return await rate()

    @AgentCache("page", ttl=60)
    async def page() -> int:
        return await price()

    assert await page() == 1
    rates["now"] = 2
    clock.advance(11)
    assert await page() == 2


@pytest.mark.parametrize("argument", ["1", object()], ids=["a failure", "no key"])
async def test_what_a_tenant_could_not_keep_is_kept_for_no_other(argument: object):
    runs = []

    @AgentCache("order")
    async def get_order(which: object) -> str:
        if which == "1":
            raise LookupError
        return "of one tenant"

    @AgentCache("front", ttl=60)
    async def front() -> str:
        runs.append("front")
        async with AgentCacheSession(tenant="a"):
            try:
                return await get_order(argument)
            except LookupError:
                return "none"

    await front()
    await front()
    assert runs == ["front", "front"]


async def test_an_answer_of_a_tenant_is_kept_for_that_tenant():
    runs = []

    @AgentCache("order")
    async def get_order() -> str:
        return "of one tenant"

    @AgentCache("page")
    async def page() -> str:
        runs.append("page")
        return await get_order()

    @AgentCache("front")
    async def front() -> str:
        runs.append("front")
        async with AgentCacheSession(tenant="a"):
            return await get_order()

    async with AgentCacheSession(tenant="a"):
        await page()
        await page()
    assert runs == ["page"]
    await front()
    await front()
    assert runs == ["page", "front", "front"]


# -- Tiers -----------------------------------------------------------------------------------------------------------


class Process:
    """The same two tools in one of several processes, which share a store of orders."""

    def __init__(self, orders: dict[str, str], tier: Any, outer_tier: Any = None, **remote: Any) -> None:
        self.runs: list[str] = []

        @AgentCache("order:{id}", remote_cache=tier, name="get_order", remote=RemotePolicy(**remote))
        async def get_order(id: str) -> str:
            self.runs.append(id)
            return orders[id]

        @AgentCache("report", remote_cache=tier if outer_tier is None else outer_tier or None, name="report")
        async def report(*ids: str) -> str:
            self.runs.append("report")
            return " ".join([await get_order(id) for id in ids])

        @AgentCacheInvalidator("order:{id}", remote_cache=tier)
        async def cancel(id: str) -> None:
            orders[id] = "cancelled"

        self.get_order, self.report, self.cancel = get_order, report, cancel


@pytest.mark.parametrize("consistency", ["bounded", "strong"])
@pytest.mark.parametrize("warm", ["nothing", "the inner read here", "the inner read there"])
async def test_a_write_in_another_process_drops_what_has_read_it(warm: str, consistency: str, server: MemoryServer):
    orders = {"1": "open"}
    here, there = (Process(orders, MemoryTier(server), consistency=consistency) for _ in range(2))
    if warm == "the inner read here":
        await here.get_order("1")
    elif warm == "the inner read there":
        await there.get_order("1")
    assert await here.report("1") == "open"
    here.runs.clear()
    there.runs.clear()
    assert await there.report("1") == "open"
    assert there.runs == [], "found in the tier, with what it depends on"
    await there.cancel("1")
    assert await here.report("1") == "cancelled"
    assert await there.report("1") == "cancelled"


async def test_an_outer_read_without_a_tier_trusts_the_tier_of_the_inner_one(
    server: MemoryServer, clock: library.Clock
):
    orders = {"1": "open"}
    tier, elsewhere = MemoryTier(server), MemoryTier(server)
    here = Process(orders, tier, outer_tier=False)
    await here.report("1")
    await here.report("1")
    assert here.runs == ["report", "1"]
    tier.cut()
    async with written_by(elsewhere, "order:1"):  # by no tool of this process, whose local entries it would drop
        orders["1"] = "cancelled"
    clock.advance(2)
    here.runs.clear()
    assert await here.report("1") == "cancelled", "no message could arrive, so the copy is trusted no more"
    tier.reconnect()
    await here.report("1")
    here.runs.clear()
    tier.reconnect()
    await here.report("1")
    assert here.runs[:1] == ["report"], "messages may have been lost"


async def test_an_outer_read_with_a_tier_over_an_inner_one_without_is_not_shared(server: MemoryServer):
    """A write to the inner one in another process would not be seen in the tier."""
    orders = {"1": "open"}

    def process() -> Process:
        return Process(orders, None, outer_tier=MemoryTier(server))

    here, there = process(), process()
    await here.report("1")
    here.runs.clear()
    await here.report("1")
    assert here.runs == []
    await there.report("1")
    assert there.runs == ["report", "1"]


async def test_bypassed_and_switched_off_inner_reads():
    shop = Shop()
    with configure(enabled=False):
        await shop.report("1")
    await shop.report("1")
    assert await shop.runs_of("1") == []
    await shop.cancel("1")
    assert await shop.report("1") == "cancelled"


async def test_a_computed_tag_that_fails_counts_as_its_root():
    def broken(arguments: Any, result: Any) -> Any:
        raise LookupError

    runs = []

    @AgentCache(tags_from("user", broken))
    async def find() -> str:
        return "ann"

    @AgentCache("page", ttl=60)
    async def page() -> str:
        runs.append("page")
        return await find()

    await page()
    await page()
    assert runs == ["page"]
    await invalidate("user:1")
    await page()
    assert runs == ["page", "page"]
