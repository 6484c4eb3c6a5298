"""Local copies whose tickets have a lease: hits compare it, by the generated body and by the general path alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, get_metrics
from tests.harness import library
from tests.harness.gates import idle
from tests.pipeline.leasing import LeasingTier

pytestmark = pytest.mark.usefixtures("clock")

Tool = Callable[[str], Awaitable[Any]]
IMMUTABLE, MUTABLE = "text", ["list"]


def tool_of(tier: LeasingTier, result: object = IMMUTABLE, **options: Any) -> Any:
    """A tool whose copies are served while the lease of the tier is valid."""

    async def get_order(id: str) -> Any:
        return result if isinstance(result, str) else list(MUTABLE)

    return AgentCache("order:{id}", name="leases:get_order", remote_cache=tier, **options)(get_order)


async def is_hit(tier: LeasingTier, tool: Tool) -> bool:
    """Whether a call is answered without the tier."""
    before = tier.lookups
    assert await tool("7") in (IMMUTABLE, MUTABLE)
    return tier.lookups == before


def unlimited_session() -> AgentCacheSession:
    return AgentCacheSession(max_tool_repeats=10**9)


everywhere = pytest.mark.parametrize("scope", [nullcontext, unlimited_session], ids=["outside", "in a session"])
of_both_kinds = pytest.mark.parametrize("result", [IMMUTABLE, MUTABLE], ids=["immutable", "mutable"])
with_and_without_ttl = pytest.mark.parametrize("ttl", [None, 60], ids=["no ttl", "ttl"])


@everywhere
@of_both_kinds
@with_and_without_ttl
async def test_a_copy_is_served_while_the_word_is_as_it_was(scope: Any, result: object, ttl: float | None):
    """It asks nobody. Once the word is another one its lease is renewed, or not, which is asked for once."""
    tier = LeasingTier()
    tool = tool_of(tier, result, ttl=ttl)
    with scope():
        assert [await is_hit(tier, tool) for _ in range(3)] == [False, True, True]
        assert tier.own.asked == 0
        assert get_metrics()["resources"]["order"]["hits"] == 2
        tier.page[0] = 2
        assert not await is_hit(tier, tool)
        tier.own.stamp = 2
        await tool("7")
        tier.page[0] = 3
        tier.own.may_renew, tier.own.asked = True, 0
        assert [await is_hit(tier, tool) for _ in range(3)] == [True] * 3
    assert tier.own.asked == 1


@everywhere
@of_both_kinds
@with_and_without_ttl
async def test_a_copy_is_not_served_after_its_term_unless_that_moves_on(scope: Any, result: object, ttl: float | None):
    tier, readings = LeasingTier(), [0.0]
    term = tier.with_term(lambda: readings[0])
    tool = tool_of(tier, result, ttl=ttl)
    with scope():
        await tool("7")
        term.until = 5.0
        readings[0] = 4.9
        assert await is_hit(tier, tool)
        readings[0] = 5.0
        assert not await is_hit(tier, tool)
        term.until = 6.0
        assert await is_hit(tier, tool)


@of_both_kinds
@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_copy_is_served_within_its_grace_only_while_it_is_trusted(
    result: object, is_trusted: bool, clock: library.Clock
):
    tier, runs = LeasingTier(), []

    async def get_order(id: str) -> Any:
        runs.append(id)
        return f"{result} {len(runs)}" if isinstance(result, str) else [*MUTABLE, len(runs)]

    tool = AgentCache("order:{id}", name="leases:graced", ttl=10, grace=60, remote_cache=tier)(get_order)
    former = await tool("7")
    tier.page[0] += not is_trusted
    clock.advance(11)
    assert await tool("7") == former
    assert tier.counts["hits"] == (0 if is_trusted else 1), "else the tier is asked, which has it in its grace, too"
    await idle()
    assert runs == ["7", "7"]


async def test_what_has_made_reads_is_served_while_the_leases_of_all_are_valid():
    """Whether or not it has a tier itself."""
    tiers = LeasingTier(), LeasingTier()
    runs = []

    @AgentCache("order:{id}", name="leases:order", remote_cache=tiers[0])
    async def get_order(id: str) -> str:
        return id

    @AgentCache("user:{id}", name="leases:user", remote_cache=tiers[1])
    async def get_user(id: str) -> str:
        return id

    @AgentCache("page", name="leases:page")
    async def page(id: str) -> str:
        runs.append(id)
        return await get_order(id) + await get_user(id)

    await page("7")
    assert await page("7") == "77"
    assert runs == ["7"]
    tiers[1].page[0] = 2
    tiers[1].own.may_renew = True
    assert await page("7") == "77"
    assert runs == ["7"]
    tiers[0].page[0] = 2
    await page("7")
    assert runs == ["7", "7"]
