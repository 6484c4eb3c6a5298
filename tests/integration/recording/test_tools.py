"""Cached tools are recorded without more ado, and what the agent saw is what a replay gives it."""

import asyncio
import contextlib
import gc
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    get_metrics,
)
from agent_cache.recording import Cassette, CassetteError, DivergenceError, intercept, record, replay


@dataclass
class Order:
    id: str
    quantity: int


class Shop:
    """Tools that count their runs, and fail once they are switched off."""

    def __init__(self) -> None:
        self.runs = 0
        self.is_open = True
        self.quantity = 1

        @AgentCache(resource="order:{order_id}", name="shop:get_order")
        async def get_order(order_id: str) -> Order:
            self.run()
            await asyncio.sleep(0)
            return Order(order_id, self.quantity)

        @AgentCacheInvalidator(resource="order:{order_id}", name="shop:buy_more")
        async def buy_more(order_id: str) -> Order:
            self.run()
            self.quantity += 1
            return Order(order_id, self.quantity)

        @AgentCache(resource="order", scope="session", name="shop:count")
        async def count() -> int:
            self.run()
            return self.quantity

        self.get_order, self.buy_more, self.count = get_order, buy_more, count

    def run(self) -> None:
        assert self.is_open, "the real tool ran"
        self.runs += 1


@pytest.fixture
def shop(clock: object) -> Shop:
    """A shop of its own for each test, whose tools have cached nothing yet."""
    return Shop()


async def buy(shop: Shop) -> list[object]:
    first = await asyncio.gather(*(shop.get_order(one) for one in ("7", "8", "7")))
    again = await shop.get_order("7")
    bought = await shop.buy_more("7")
    return [*first, again, bought, await shop.get_order("7")]


async def test_a_replay_gives_every_answer_traces_and_counts_it_and_runs_nothing(shop, path):
    async def run() -> list[object]:
        async with AgentCacheSession() as session:
            found = [*await buy(shop), await shop.count(), await shop.count()]
        metrics = session.get_metrics()
        trace = [(one.tool, one.source, one.outcome, one.is_inner) for one in session.get_execution_trace()]
        return [*found, trace, {name: metrics[name] for name in ("hits", "misses", "shared")}]

    async with record(path):
        recorded = await run()
    runs, shop.is_open = shop.runs, False
    shop.get_order.clear()
    async with replay(path, strict=True) as player:
        replayed = await run()
    assert replayed == recorded
    assert {type(one) for one in replayed[:6]} == {Order}
    assert (shop.runs, player.cursor, player.remaining) == (runs, 8, 0)


class Counts(Counter[str]):
    """What metrics say of calls and loops."""

    def __init__(self, metrics):
        super().__init__({name: metrics[name] for name in ("hits", "misses", "loop_detections", "callback_errors")})
        for loops in ("loops", "loop_notices"):
            self.update({f"{loops} {kind}": count for kind, count in metrics[loops].items()})

    def __sub__(self, other):
        self.subtract(other)
        return self


@pytest.mark.parametrize("on_loop", ["notice", "short_circuit", "raise", "warn"])
@pytest.mark.parametrize("limits", [{"max_tool_repeats": 3}, {"max_execution_depth": 3}], ids=["repeat", "depth"])
@pytest.mark.parametrize("sessions", [1, 2])
async def test_what_a_session_did_over_a_loop_is_told_again_as_what_it_was(on_loop, limits, sessions, shop, path):
    async def circle() -> object:
        seen: list[object] = []
        async with AsyncExitStack() as stack:
            stack.push(lambda kind, *_: kind is AgentLoopDetectedError)
            opened = [
                await stack.enter_async_context(AgentCacheSession(on_loop=on_loop, **limits)) for _ in range(sessions)
            ]
            for call in [shop.get_order] * 6 + [shop.buy_more]:
                try:
                    seen.append(await call("7"))
                except AgentLoopDetectedError as error:
                    seen.append(error.kind)
        traced = [[(one.tool, one.source, one.outcome) for one in each.get_execution_trace()] for each in opened]
        metrics = [each.get_metrics() for each in opened]
        return seen, traced, [Counts(one) for one in metrics], Counts(get_metrics()) - before

    before = Counts(get_metrics())
    with record(path):
        recorded = await circle()
    assert on_loop != "raise" or "blocked" in {call.source for call in Cassette.load(path)}
    shop.is_open = False
    copy = path.with_name("copy.jsonl")
    before = Counts(get_metrics())
    with replay(path), record(copy):
        assert await circle() == recorded
    for told in ("instead", "loops"):
        assert [call.outcome.get(told) for call in Cassette.load(copy)] == [
            call.outcome.get(told) for call in Cassette.load(path)
        ]


async def test_a_policy_runs_a_tool_live_or_forbids_it(shop, path):
    with record(path):
        await buy(shop)
    runs = shop.runs
    with replay(path, policy={"buy_more": "live", "shop:get_order": "stub"}) as player:
        await buy(shop)
    assert shop.runs == runs + 1
    assert player.remaining == 0
    refused = replay(path, policy={"buy_more": "forbid"}), record(path, policy={"buy_more": "forbid"})
    for block, forbidden in zip(refused, (DivergenceError, CassetteError), strict=True):
        runs = shop.runs
        with pytest.raises(forbidden, match="forbids"), block:
            for _ in range(2):
                with contextlib.suppress(CassetteError):
                    await shop.buy_more("7")
        assert shop.runs == runs


@pytest.mark.parametrize("name", ["buy_moer", "shop:get-order", "shop.buy_more", "shop:helpr"])
@pytest.mark.parametrize("block", [record, replay])
async def test_a_misspelt_name_in_a_policy_is_refused_before_anything_runs(shop, path, block, name):
    helper = intercept(lambda: None, name="shop:helper")
    with record(path):
        helper()
    if block is replay:
        del helper  # the recording knows it
        gc.collect()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=f"policy names '{name}', and no function; is '.*' meant"):
        block(path, policy={name: "forbid"}).__enter__()
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


async def test_of_another_name_that_no_function_has_so_far_the_log_warns(path, caplog):
    with record(path, policy={"renegotiate": "stub", "unmoor": "forbid", "api.example.com": "live"}):
        intercept(lambda: None, name="shop:renegotiate")()
    unknown = "the policy names %r, and no function of that name is decorated yet"
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}: {unknown % one}" for one in ("renegotiate", "unmoor")
    ]


async def test_what_is_made_of_recorded_answers_is_not_cached(path):
    world = [1]

    @AgentCache("item", name="item")
    async def item() -> int:
        return world[-1]

    @AgentCache("pages", name="page")
    async def page() -> int:
        return await item()

    @AgentCache("books", name="book")
    async def book() -> int:
        return await page()

    with record(path):
        assert await book() == 1
    for tool in (item, page, book):
        tool.clear()
    world.append(2)
    with replay(path, policy={"book": "live", "page": "live"}):
        assert await book() == 1
    assert [await book(), await page()] == [2, 2]


async def test_a_recording_inside_of_another_is_part_of_both(shop, path):
    inner = path.with_name("inner.jsonl")
    with record(path):
        await shop.get_order("7")
        with record(inner):
            await shop.get_order("8")
            await shop.get_order("8")
    assert [call.arguments["order_id"] for call in Cassette.load(path)] == ["7", "8", "8"]
    assert [call.source for call in Cassette.load(inner)] == ["miss", "hit"]
    assert [call.source for call in Cassette.load(path)] == ["miss", "miss", "hit"]


async def test_a_session_inside_of_one_that_a_loop_has_stopped_ends_in_a_replay_as_it_did(path):
    @AgentCache("order:{order_id}", name="look_again")
    async def look_again(order_id: int) -> int:
        return order_id

    async def run() -> None:
        async with AgentCacheSession():
            for _ in range(5):
                with contextlib.suppress(AgentLoopDetectedError):
                    await look_again(1)
            async with AgentCacheSession() as inner:
                with pytest.raises(AgentLoopDetectedError):
                    await look_again(2)
            stopped.append(inner.loop_error)

    stopped: list[Exception | None] = []
    with pytest.raises(AgentLoopDetectedError), record(path):
        await run()
    with pytest.raises(AgentLoopDetectedError), replay(path):
        await run()
    assert stopped == [None, None]
