"""Writes through tiers: announced before the side effect, renewed while it runs, committed whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemoteTierError, configure, invalidate, writing
from agent_cache.remote import WriteIntent
from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import load, read, value_of
from tests.harness import library
from tests.harness.gates import Gate, idle, started
from tests.pipeline.fleet import Process, Truth, WatchedTier

SEVEN, EIGHT, ALL = (
    read("order:7", tool="t", key="7"),
    read("order:8", tool="t", key="8"),
    read("order", tool="t", key="all"),
)


pytestmark = pytest.mark.usefixtures("clock")


async def stored(tier: MemoryTier) -> None:
    """Let another process have loaded two orders and the list of all."""
    for request in (SEVEN, EIGHT, ALL):
        await load(tier, request, "old")


async def left(tier: MemoryTier) -> list[bool]:
    """Which of these are still found."""
    return [await value_of(tier, request) == "old" for request in (SEVEN, EIGHT, ALL)]


async def test_a_write_is_announced_before_it_runs_and_committed_after_it(here: WatchedTier, elsewhere: MemoryTier):
    seen: list[Any] = []

    @AgentCacheInvalidator("order:{id}", remote_cache=here)
    async def set_order(id: str) -> str:
        seen.extend(here.orders)
        seen.append(await left(elsewhere))
        return id

    await stored(elsewhere)
    assert await set_order("7") == "7"
    assert seen == ["begin", [False, True, False]]
    assert here.orders == ["begin", "commit"]
    assert await left(elsewhere) == [False, True, False]


async def test_a_write_reaches_the_tiers_of_every_tool_that_shares_a_root(truth: Truth, here: WatchedTier):
    process, other = Process(truth, here), WatchedTier(MemoryServer())

    @AgentCache("user:{id}", remote_cache=other)
    async def get_user(id: str) -> str:
        return id

    await process.set_order("7")
    assert (here.orders, other.orders) == (["begin", "commit"], [])


async def test_a_writer_that_knew_no_tier_reaches_all_that_are_configured_later(server: MemoryServer):
    former, configured = WatchedTier(server), WatchedTier(MemoryServer())

    @AgentCacheInvalidator("order:{id}")
    async def set_order(id: str) -> None: ...

    await set_order("7")
    await set_order("7")
    configure(remote=former)
    configure(remote=configured)  # as while deployments move from one to the other
    await set_order("7")
    assert former.orders == configured.orders == ["begin", "commit"]


async def test_a_writer_reaches_the_tiers_of_a_tool_that_has_inherited_its_root(here: WatchedTier):
    @AgentCacheInvalidator("order:{id}")
    async def set_order(id: str) -> None: ...

    @AgentCache("order:{id}")
    async def get_order(id: str) -> str:
        return id

    @AgentCache("page", remote_cache=here)
    async def get_page(id: str) -> str:
        return await get_order(id)

    await set_order("7")
    assert here.orders == []
    await get_page("7")
    here.orders.clear()
    await set_order("7")
    assert here.orders == ["begin", "commit"]


async def test_writes_that_are_no_tools_reach_the_tiers(here: WatchedTier, elsewhere: MemoryTier):
    with configure(remote=here):
        await stored(elsewhere)
        await invalidate("order:7")
        assert await left(elsewhere) == [False, True, False]
        async with writing("order:8"):
            assert await left(elsewhere) == [False, False, False]
    assert here.orders == ["begin", "commit"] * 2


async def test_with_caching_switched_off_writes_still_reach_the_tiers(here: WatchedTier, truth: Truth):
    process = Process(truth, here)
    with configure(enabled=False):
        await process.get_order("7")
        await process.set_order("7")
    assert here.orders == ["begin", "commit"]


async def test_the_local_copy_goes_again_when_the_commit_has_landed(truth: Truth, here: WatchedTier):
    process = Process(truth, here)
    await process.get_order("7")
    landed = asyncio.Event()
    here.fail("begin", OSError("gone"))  # so the tier goes on answering with the old value until the commit
    here.hang("commit", until=landed)
    write = await started(process.set_order("7"))
    assert await process.get_order("7") == "old"
    assert not write.done()
    landed.set()
    await write
    assert await process.get_order("7") == "new"


async def test_a_commit_goes_on_although_its_writer_is_cancelled(here: WatchedTier, elsewhere: MemoryTier):
    @AgentCacheInvalidator("order:{id}", remote_cache=here)
    async def set_order(id: str) -> None: ...

    await stored(elsewhere)
    landed = asyncio.Event()
    here.hang("commit", until=landed)
    write = await started(set_order("7"))
    write.cancel()
    await idle()
    assert write.cancelled()
    landed.set()
    await idle()
    await load(elsewhere, SEVEN, "new")
    assert await value_of(elsewhere, SEVEN) == "new"  # nothing is held any more
    assert await left(elsewhere) == [False, True, False]


async def test_results_that_a_cancelled_write_has_given_are_stored_all_the_same(server: MemoryServer):
    """Nobody waits for ever for one of them."""

    class Slow(MemoryTier):
        may_answer: asyncio.Event | None = None

        async def lookup(self, *arguments: Any, **options: Any) -> Any:
            if self.may_answer is not None:
                await self.may_answer.wait()
            return await super().lookup(*arguments, **options)

    tier = Slow(server)

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: str) -> str:
        return "loaded"

    @AgentCacheInvalidator("order", remote_cache=tier)
    async def set_orders() -> None:
        tier.may_answer = asyncio.Event()
        for id in ("7", "8"):
            await get_order.set("given", id)

    write = await started(set_orders())
    write.cancel()
    await idle()
    assert tier.may_answer is not None
    tier.may_answer.set()
    await idle()
    assert [await get_order(id) for id in ("7", "8")] == ["given", "given"]


async def test_a_cancelled_write_leaves_its_tags_in_doubt_everywhere(
    here: WatchedTier, elsewhere: MemoryTier, clock: library.Clock
):
    gate = Gate()

    @AgentCacheInvalidator("order:{id}", remote_cache=here, doubt=3)
    async def set_order(id: str) -> None:
        await gate(id)

    write = await started(set_order("7"))
    write.cancel()
    await idle()
    assert here.orders == ["begin", "commit"]
    await load(elsewhere, SEVEN, "half")
    assert await value_of(elsewhere, SEVEN) == "nothing"
    clock.advance(3.1)
    await load(elsewhere, SEVEN, "new")
    assert await value_of(elsewhere, SEVEN) == "new"


async def test_a_write_told_its_entity_by_its_result_ends_just_that(here: WatchedTier, elsewhere: MemoryTier):
    seen: list[Any] = []

    @AgentCacheInvalidator("order:{result}", remote_cache=here)
    async def cancel_order_of(name: str) -> str:
        seen.append(await left(elsewhere))
        return "7"

    await stored(elsewhere)
    await cancel_order_of("Mei")
    assert seen == [[True, True, True]]
    assert await left(elsewhere) == [False, True, False]


async def test_a_write_of_single_entries_spares_the_others_in_all_processes(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    process, other = Process(truth, here), Process(truth, elsewhere)

    @AgentCacheInvalidator("order", clear_all=False, key_fn=lambda args, kwargs: process.get_order.cache_key(args[0]))
    async def set_order(id: str) -> None:
        truth.save(id)

    for id in ("7", "8"):
        await other.get_order(id)
        await process.get_order(id)
    truth.orders["8"] = "new"
    await set_order("7")
    assert await other.get_order("7") == await process.get_order("7") == "new"
    assert await other.get_order("8") == await process.get_order("8") == "old"


async def test_a_running_write_is_renewed_until_it_ends(server: MemoryServer):
    class RenewedTier(WatchedTier):
        async def renew(self, write: WriteIntent) -> None:
            await super().renew(write)
            if self.orders.count("renew") == 3:
                enough.set()

    enough = asyncio.Event()
    tier = RenewedTier(server, lease=0.003)

    @AgentCacheInvalidator("order:{id}", remote_cache=tier)
    async def set_order(id: str) -> None:
        await enough.wait()

    await set_order("7")
    assert tier.orders == ["begin", "renew", "renew", "renew", "commit"]
    await idle()
    assert [task for task in asyncio.all_tasks() if "renew" in task.get_name()] == []


# Broken tiers


async def test_a_tier_that_fails_does_not_keep_the_others_from_being_told(here: WatchedTier, elsewhere: MemoryTier):
    broken = WatchedTier(MemoryServer())
    for order in ("begin", "commit"):
        broken.fail(order, OSError("gone"))

    @AgentCacheInvalidator("order:{id}", remote_cache=here, backup=broken)
    async def set_order(id: str) -> None: ...

    await stored(elsewhere)
    await set_order("7")
    assert await left(elsewhere) == [False, True, False]


async def test_a_refused_write_lets_go_of_what_it_had_announced_elsewhere(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    refusing = WatchedTier(MemoryServer())
    refusing.fail("begin", RemoteTierError("no"))
    process = Process(truth, here, refusing)
    with pytest.raises(RemoteTierError):
        await process.set_order("7")
    await load(elsewhere, SEVEN, "new")
    assert await value_of(elsewhere, SEVEN) == "new"
    assert await process.get_order("7") == await process.get_order("7") == "old"
    assert truth.runs == ["get 7"]  # nothing is held here either


async def test_a_write_through_a_tier_looks_at_no_tool_by_itself(server: MemoryServer):
    """It executes no instruction for each of 200 tools beside it."""

    async def instructions() -> int:
        with library.instructions() as count:
            await set_order("7")
        return count.total()

    @AgentCacheInvalidator("order:{id}")
    async def set_order(id: str) -> None: ...

    async def get_order(id: str) -> None: ...

    with configure(remote=MemoryTier(server)):
        await set_order("7")
        alone = await instructions()
        others = [AgentCache("order:{id}", name=f"beside:{number}")(get_order) for number in range(200)]
        await set_order("7")
        assert await instructions() < alone + len(others)
