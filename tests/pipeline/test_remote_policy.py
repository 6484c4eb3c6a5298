"""What a tool may ask of the tier it shares: strong reads, refused writes, grace, shared sessions."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, RemotePolicy, RemoteTierError
from agent_cache.errors import ConfigurationError
from agent_cache.remote import WriteIntent
from agent_cache.remote.redis import RedisTier
from agent_cache.testing import FakeClock, reset
from tests.harness.servers import Server
from tests.harness.tiers import Make, making, until
from tests.pipeline.fleet import Truth

STRONG = RemotePolicy(consistency="strong")


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    reset()
    yield valkey
    reset()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    gc.collect()  # A write reaches the tiers of every tool that is alive: those of earlier tests are closed.
    async with making(lease=20.0) as make:
        yield make


@pytest.fixture
def passes(clock: FakeClock) -> Callable[..., None]:
    """Let time pass, here and on the server."""

    def passes(seconds: float, *tiers: RedisTier) -> None:
        clock.advance(seconds)
        for tier in tiers:
            tier.backend.shift += seconds

    return passes


def reader(truth: Truth, tier: RedisTier, *, body: Callable[[], Any] | None = None, **options: Any) -> Any:
    async def get_order(id: str) -> str:
        value = truth.load(id)
        if body is not None:
            await body()
        return value

    return AgentCache("order:{id}", name="get_order", remote_cache=tier, **options)(get_order)


def writer(truth: Truth, tier: RedisTier, **options: Any) -> Any:
    async def set_order(id: str) -> str:
        return truth.save(id)

    return AgentCacheInvalidator("order:{id}", name="set_order", remote_cache=tier, **options)(set_order)


async def written_elsewhere(tier: RedisTier, truth: Truth) -> None:
    """By a process that this one hears of only through the server."""
    intent = WriteIntent("elsewhere", ("order:7",))
    await tier.begin(intent)
    truth.orders["7"] = "new"
    await tier.commit(intent, ("order:7",), failed=False, hold=0.0)


# Strong


async def test_a_strong_read_sees_a_write_elsewhere_although_no_message_arrives(make, server, proxy, truth):
    """A bounded one would serve its local copy for as long as it is trusted."""
    mine, other = make(proxy.url), make(server.url)
    for options, seen in (({}, "old"), ({"remote": STRONG}, "new")):
        server.command("FLUSHALL")
        truth.orders["7"] = "old"
        get_order = reader(truth, mine, **options)
        assert await get_order("7") == "old"
        while not await mine.caught_up():
            await asyncio.sleep(0)
        assert await get_order("7") == "old"
        proxy.lose_news()
        await written_elsewhere(other, truth)
        assert await get_order("7") == seen
        proxy.heal()
        proxy.cut_followers()
        del get_order  # two live tools of one name are refused
        reset()


async def test_a_strong_read_does_not_share_a_load_that_a_write_elsewhere_has_overtaken(make, server, truth):
    mine, other = make(server.url), make(server.url)
    go = asyncio.Event()
    get_order = reader(truth, mine, body=go.wait, remote=STRONG)
    first = asyncio.ensure_future(get_order("7"))
    await until(lambda: truth.runs)
    await written_elsewhere(other, truth)
    second = asyncio.ensure_future(get_order("7"))
    await until(lambda: len(truth.runs) == 2)
    go.set()
    assert await first == "old"
    assert await second == "new"
    assert await get_order("7") == "new"


# Refuse


async def test_a_write_that_cannot_be_announced_is_refused_before_its_side_effect(make, own_valkey, truth):
    tier = make(own_valkey.url)
    runs = writer(truth, tier)
    refuses = writer(truth, tier, remote=RemotePolicy(on_unreachable="refuse"))
    assert await refuses("7") == "7"
    own_valkey.kill()
    with pytest.raises(RemoteTierError):
        await refuses("8")
    assert truth.orders["8"] == "old"
    assert await runs("8") == "8"
    assert truth.orders["8"] == "new"


# Grace


async def test_an_answer_within_its_grace_is_served_and_loaded_anew_once(make, server, truth, passes):
    a, b = make(server.url), make(server.url)
    go = asyncio.Event()

    async def body() -> None:
        if len(truth.runs) > 1:
            await go.wait()

    tools = [reader(truth, tier, ttl=10.0, grace=30.0, body=body) for tier in (a, b)]
    assert await tools[0]("7") == "old"
    truth.orders["7"] = "new"  # nobody says so
    passes(15.0, a, b)
    assert await asyncio.gather(*(tool("7") for tool in tools for _ in range(5))) == ["old"] * 10
    go.set()
    await until(lambda: a.stats()["stores"] + b.stats()["stores"] == 2)
    assert truth.runs == ["get 7"] * 2
    while await tools[0]("7") == "old":  # a local copy is served once more, and the tier asked behind it
        await asyncio.sleep(0)
    assert [await tool("7") for tool in tools] == ["new", "new"]


# Shared sessions


async def test_a_session_that_is_resumed_elsewhere_finds_its_answers(make, server, truth):
    a, b = make(server.url), make(server.url)
    here, there = (reader(truth, tier, scope="session", remote=RemotePolicy(share=True)) for tier in (a, b))
    async with AgentCacheSession("run-1"):
        assert await here("7") == "old"
    async with AgentCacheSession("run-1"):
        assert await there("7") == "old"
    assert truth.runs == ["get 7"]
    async with AgentCacheSession("run-2"):
        assert await there("7") == "old"
    async with AgentCacheSession("run-1", tenant="other"):
        assert await there("7") == "old"
    assert truth.runs == ["get 7"] * 3
    assert await there("7") == "old"  # no session, no cache
    assert truth.runs == ["get 7"] * 4


async def test_a_write_limited_to_the_session_ends_what_the_session_shares(make, server, truth):
    a, b = make(server.url), make(server.url)
    here, there = (reader(truth, tier, scope="session", remote=RemotePolicy(share=True)) for tier in (a, b))
    set_order = writer(truth, a, scope="session")
    async with AgentCacheSession("run-1"):
        assert await here("7") == "old"
        await set_order("7")
    async with AgentCacheSession("run-1"):
        assert await there("7") == "new"


# What has no meaning is refused at decoration


@pytest.mark.parametrize(
    "options",
    [
        {"consistency": "eventual"}, {"on_unreachable": "raise"}, {"share": "yes"},
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
        (AgentCache, {"remote": RemotePolicy(flight="fleet"), "scope": "session"}),
        (AgentCache, {"remote": STRONG, "scope": "session"}),
        (AgentCache, {"remote": "strong"}),
        (AgentCacheInvalidator, {"remote": STRONG}),
        (AgentCacheInvalidator, {"remote": RemotePolicy(flight="fleet")}),
        (AgentCacheInvalidator, {"remote": RemotePolicy(share=True), "scope": "session"}),
        (AgentCacheInvalidator, {"remote": object()}),
    ],
)
def test_what_has_no_meaning_for_a_tool_is_refused_at_decoration(decorator, options):
    with pytest.raises(ConfigurationError, match="remote"):
        decorator("order", **options)
