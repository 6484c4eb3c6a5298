"""A result that the caller has, given to `tool.set`: by a write at its commit, or as a write of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, get_metrics, writing
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier
from tests.contract.workbench import writing as writing_elsewhere
from tests.harness.gates import Gate, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Broken(Exception):
    """What a tool raises."""


class Shop:
    """A read tool, and a write tool that gives the read its new result and then stands at a gate."""

    def __init__(
        self, resource: Any = "order:{order_id}", write: Any = "order:{order_id}", *, name: str = "get", **options: Any
    ) -> None:
        self.loads = 0
        self.gate = Gate()
        self.taken: list[bool] = []
        written = write if isinstance(write, dict) else {"resource": write}

        @AgentCache(resource, name=name, **options)
        async def get(order_id: Any) -> Any:
            self.loads += 1
            return f"loaded {self.loads}"

        @AgentCacheInvalidator(**written)
        async def put(order_id: Any, value: Any) -> Any:
            self.taken.append(await get.set(value, order_id))
            return await self.gate()

        self.get, self.put = get, put

    async def write(self, value: Any, order_id: Any = 1) -> asyncio.Task[Any]:
        """A write up to its gate."""
        return await started(self.put(order_id, value))

    async def commit(self, write: asyncio.Task[Any], index: int = -1) -> None:
        """Let it end."""
        self.gate.calls[index].returns("ok")
        await write


# Inside a write


@pytest.mark.parametrize("how", ["raises", "cancelled", "not ok"])
async def test_a_write_that_does_not_succeed_fills_nothing(how, clock):
    shop = Shop(write={"resource": "order:{order_id}", "ok": lambda answer: answer == "ok"})
    write = await shop.write("new")
    if how == "cancelled":
        write.cancel()
    else:
        shop.gate.last.returns("refused") if how == "not ok" else shop.gate.last.raises(Broken())
    await asyncio.gather(write, return_exceptions=True)
    assert await shop.get(1) == "loaded 1"


@pytest.mark.parametrize("ends", ["before it", "after it"])
@pytest.mark.parametrize("begins", ["before it", "in it"])
async def test_a_write_of_another_root_that_overlaps_prevents_it(begins, ends):
    """The entry depends on what both have changed, and the result that is given knows of one of them."""
    shop = Shop(["order:{order_id}", "user:u1"])
    go = asyncio.Event()

    async def other() -> None:
        async with writing("user:u1"):
            await go.wait()

    if begins == "before it":
        overlapping = await started(other())
    write = await shop.write("new")
    if begins == "in it":
        overlapping = await started(other())
    assert shop.taken == [True]
    if ends == "before it":
        go.set()
        await overlapping
    await shop.commit(write)
    assert await shop.get(1) == "loaded 1"
    go.set()
    await overlapping
    assert await shop.get(1) == "loaded 1" if ends == "before it" else "loaded 2"


async def test_an_entry_that_the_write_does_not_touch_is_dropped_instead():
    shop = Shop()
    await shop.get(1)
    async with writing("order:2"):
        assert not await shop.get.set("new", 1)
    assert await shop.get(1) == "loaded 2"


# Elsewhere


async def test_elsewhere_it_is_a_write_of_that_entry():
    shop = Shop()
    assert [await shop.get(1), await shop.get(2)] == ["loaded 1", "loaded 2"]
    assert await shop.get.set("new", 1)
    assert [await shop.get(1), await shop.get(2)] == ["new", "loaded 2"]
    assert get_metrics()["invalidations"] == 1


async def test_a_load_that_runs_is_not_stored_over_it():
    gate = Gate()

    @AgentCache("order:{order_id}")
    async def get(order_id: int) -> Any:
        return await gate()

    load = await started(get(1))
    assert await get.set("new", 1)
    assert await get(1) == "new"
    gate.last.returns("old")
    assert await load == "old"
    assert await get(1) == "new"


@pytest.mark.parametrize("value", ["bad", "no life", "no copy"])
async def test_what_may_not_be_stored_drops_what_was_there(value):
    def copy(given: Any) -> Any:
        if given == ["no copy"]:
            raise Broken
        return list(given)

    shop = Shop(
        cache_if=lambda result: result != ["bad"], ttl=lambda result: 0 if result == ["no life"] else 60, copy=copy
    )
    for place in ("elsewhere", "in a write"):
        assert await shop.get.set(["good"], 1)
        if place == "elsewhere":
            assert not await shop.get.set([value], 1)
        else:
            async with writing("order:1"):
                assert not await shop.get.set([value], 1)
        loads = shop.loads
        await shop.get(1)
        assert shop.loads == loads + 1


# In a fleet


class Process:
    """The tools of one process, and another process's client of the same server."""

    def __init__(self, **options: Any) -> None:
        server = MemoryServer()
        self.tier = FaultyTier(MemoryTier(server))
        self.shop = Shop(remote_cache=self.tier, **options)
        self.elsewhere = MemoryTier(server)

    async def found_elsewhere(self) -> Any:
        """What the other process finds."""
        found, _ = await self.elsewhere.lookup(self.shop.get.cache_key(1).request)
        return None if found is None else found.value


@pytest.mark.parametrize("in_a_write", [True, False])
async def test_in_a_fleet_the_result_is_stored_in_this_process_alone(in_a_write):
    here = Process()
    assert await here.shop.get(1) == await here.found_elsewhere() == "loaded 1"
    if in_a_write:
        await here.shop.commit(await here.shop.write("new"))
    else:
        assert await here.shop.get.set("new", 1)
    assert await here.shop.get(1) == "new"
    assert await here.found_elsewhere() is None


@pytest.mark.parametrize("when", ["during the write", "during its commit", "during the lookup"])
async def test_a_write_of_another_process_prevents_it(when):
    here, over = Process(), asyncio.Event()
    write = await here.shop.write("new")
    if when == "during the write":
        async with writing_elsewhere(here.elsewhere, "order:1"):
            pass
    else:
        here.tier.hang("commit" if when == "during its commit" else "lookup", over)
    here.shop.gate.last.returns("ok")
    await idle()
    if when != "during the write":
        async with writing_elsewhere(here.elsewhere, "order:1"):
            pass
        over.set()
    await write
    assert await here.shop.get(1) == "loaded 1"


async def test_a_write_that_ends_while_the_tier_is_told_of_the_result_prevents_it():
    here, over = Process(), asyncio.Event()
    write = await here.shop.write("new")
    here.tier.hang("begin", over)
    given = await started(here.shop.get.set("old", 1))
    await here.shop.commit(write)
    over.set()
    assert not await given
    assert await here.shop.get(1) == "loaded 1"


@pytest.mark.parametrize("in_a_write", [True, False])
async def test_a_write_that_still_runs_in_another_process_prevents_it(in_a_write):
    """Also if it began long ago: its message was lost on nobody, but nothing tells when it has its effect."""
    here = Process()
    async with writing_elsewhere(here.elsewhere, "order:1"):
        if in_a_write:
            await here.shop.commit(await here.shop.write("new"))
        else:
            assert not await here.shop.get.set("new", 1)
        assert await here.shop.get(1) == "loaded 1"
