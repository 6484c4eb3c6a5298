"""What a tool may ask of the tier it shares: strong reads, refused writes, grace, shared sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, RemotePolicy, RemoteTierError
from agent_cache.errors import ConfigurationError
from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import writing
from tests.harness import library
from tests.harness.gates import Gate, idle, started
from tests.pipeline.fleet import Process, Truth, WatchedTier

STRONG = RemotePolicy(consistency="strong")

pytestmark = pytest.mark.usefixtures("clock")


# Strong


@pytest.mark.parametrize(("options", "seen"), [({}, "old"), ({"remote": STRONG}, "new")], ids=["bounded", "strong"])
async def test_a_strong_read_sees_a_write_elsewhere_although_no_message_arrives(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier, options: dict[str, RemotePolicy], seen: str
):
    """A bounded one serves its local copy for as long as it is trusted."""
    process = Process(truth, here, **options)
    assert await process.get_order("7") == await process.get_order("7") == "old"
    here.memory.cut()
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    assert await process.get_order("7") == seen


async def test_a_strong_read_does_not_share_a_load_that_a_write_elsewhere_has_overtaken(
    here: WatchedTier, elsewhere: MemoryTier
):
    gate = Gate()

    @AgentCache("order:{id}", name="policy:get_order", remote_cache=here, remote=STRONG)
    async def get_order(id: str) -> str:
        return await gate()

    first = await started(get_order("7"))
    async with writing(elsewhere, "order:7"):
        pass
    second = await started(get_order("7"))
    for call, value in zip(gate.calls, ("old", "new"), strict=True):
        call.returns(value)
    assert [await first, await second, await get_order("7")] == ["old", "new", "new"]


# Refuse


async def test_a_write_that_cannot_be_announced_is_refused_before_its_side_effect(
    truth: Truth, server: MemoryServer, here: WatchedTier
):
    @AgentCacheInvalidator("order:{id}", remote_cache=here, remote=RemotePolicy(on_unreachable="refuse"))
    async def set_order(id: str) -> str:
        return truth.save(id)

    assert await set_order("7") == "7"
    server.stop()
    with pytest.raises(RemoteTierError):
        await set_order("8")
    assert truth.orders == {"7": "new", "8": "old"}


# Grace


@pytest.mark.parametrize("grace", [{"remote": RemotePolicy(grace=30.0)}, {"grace": 30.0}], ids=["tier", "local too"])
async def test_an_answer_within_its_grace_is_served_and_loaded_anew_once(
    truth: Truth, server: MemoryServer, clock: library.Clock, grace: Any
):
    gate, tiers = Gate(), [MemoryTier(server), MemoryTier(server)]

    def tool_of(tier: MemoryTier):
        @AgentCache("order:{id}", name="policy:graced", ttl=10.0, remote_cache=tier, **grace)
        async def get_order(id: str) -> str:
            return await gate()

        return get_order

    tools = [tool_of(tier) for tier in tiers]
    first = await started(tools[0]("7"))
    gate.last.returns("old")
    assert await first == "old"
    clock.advance(15.0)
    assert await asyncio.gather(*(tool("7") for tool in tools for _ in range(5))) == ["old"] * 10
    await idle()
    assert len(gate.calls) == 2
    gate.last.returns("new")
    await idle()
    await tools[0]("7")  # a local copy is served once more perhaps, and the tier asked behind it
    await idle()
    assert [await tool("7") for tool in tools] == ["new", "new"]
    assert len(gate.calls) == 2


# Shared sessions


async def test_a_session_that_is_resumed_elsewhere_finds_its_answers(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    options = {"scope": "session", "remote": RemotePolicy(share=True)}
    get_here, get_there = (Process(truth, tier, **options).get_order for tier in (here, elsewhere))
    async with AgentCacheSession("run-1"):
        assert await get_here("7") == "old"
    async with AgentCacheSession("run-1"):
        assert await get_there("7") == "old"
    assert truth.runs == ["get 7"]
    async with AgentCacheSession("run-2"):
        assert await get_there("7") == "old"
    async with AgentCacheSession("run-1", tenant="other"):
        assert await get_there("7") == "old"
    assert truth.runs == ["get 7"] * 3
    assert await get_there("7") == "old"  # no session, no cache
    assert truth.runs == ["get 7"] * 4


async def test_a_write_limited_to_the_session_ends_what_the_session_shares(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    options = {"scope": "session", "remote": RemotePolicy(share=True)}
    get_here, get_there = (Process(truth, tier, **options).get_order for tier in (here, elsewhere))

    @AgentCacheInvalidator("order:{id}", scope="session", remote_cache=here)
    async def set_order(id: str) -> str:
        return truth.save(id)

    async with AgentCacheSession("run-1"):
        assert await get_here("7") == "old"
        await set_order("7")
    async with AgentCacheSession("run-1"):
        assert await get_there("7") == "new"


# What has no meaning is refused at decoration


@pytest.mark.parametrize(
    "options",
    [
        {"grace": -1}, {"grace": "5"}, {"consistency": "eventual"}, {"on_unreachable": "raise"}, {"share": "yes"},
        {"flight": "team"},
    ],
)  # fmt: skip
def test_a_policy_that_is_misspelt_is_refused(options):
    with pytest.raises(ConfigurationError, match="RemotePolicy"):
        RemotePolicy(**options)


@pytest.mark.parametrize(
    ("decorator", "options"),
    [
        (AgentCache, {"remote": RemotePolicy(on_unreachable="refuse")}),
        (AgentCache, {"remote": RemotePolicy(share=True)}),
        (AgentCache, {"remote": RemotePolicy(grace=1), "scope": "session"}),
        (AgentCache, {"remote": RemotePolicy(flight="fleet"), "scope": "session"}),
        (AgentCache, {"remote": STRONG, "scope": "session"}),
        (AgentCache, {"remote": "strong"}),
        (AgentCacheInvalidator, {"remote": STRONG}),
        (AgentCacheInvalidator, {"remote": RemotePolicy(grace=1)}),
        (AgentCacheInvalidator, {"remote": RemotePolicy(flight="fleet")}),
        (AgentCacheInvalidator, {"remote": RemotePolicy(share=True), "scope": "session"}),
        (AgentCacheInvalidator, {"remote": object()}),
    ],
)
def test_what_has_no_meaning_for_a_tool_is_refused_at_decoration(decorator, options):
    with pytest.raises(ConfigurationError, match="remote"):
        decorator("order", **options)
