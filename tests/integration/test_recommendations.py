"""Simulations on a virtual clock: what is recommended for data that change at a known rate, and its effect."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, Recommendation, recommendations, set_ttl, testing
from tests.harness.slow import slow

LOAD = 0.05
HOUR = 3600.0
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clock() -> Iterator[testing.FakeClock]:
    testing.reset()
    with testing.FakeClock() as clock:
        yield clock
    testing.reset()


@pytest.fixture
def name() -> str:
    return f"simulated{next(_numbers)}"


class Source:
    """Values that change at random, without a write that says so.

    Args:
        between: seconds between two changes of a value on average; None for never.
    """

    def __init__(self, clock: testing.FakeClock, between: float | None, seed: int) -> None:
        self.clock = clock
        self.between = between
        self.seed = seed
        self.stale = self.answers = 0
        self._values: dict[Any, tuple[random.Random, list[float]]] = {}

    def version(self, key: Any) -> int:
        """How often a value has changed by now."""
        if self.between is None:
            return 0
        chance, changes = self._values.setdefault(key, (random.Random(f"{self.seed} {key}"), [self.clock.time]))
        while changes[-1] <= self.clock.time:
            changes.append(changes[-1] + chance.expovariate(1 / self.between))
        return len(changes) - 1

    def value(self, key: Any) -> dict[str, Any]:
        return {"key": key, "version": self.version(key), "text": "of a result " * 3}

    def check(self, key: Any, answer: dict[str, Any]) -> None:
        self.answers += 1
        self.stale += answer["version"] != self.version(key)


Tool = Callable[[int], Awaitable[dict[str, Any]]]


def tool_of(source: Source, name: str, **options: Any) -> Tool:
    @AgentCache(name, name=name, **options)
    async def simulated(key: int) -> dict[str, Any]:
        value = source.value(key)
        source.clock.advance(LOAD)
        return value

    return simulated


async def run(
    clock: testing.FakeClock, source: Source, tool: Tool, *, keys: int | None, gap: float, hours: float, seed: int
) -> None:
    """Ask for random keys at random moments; without a number of keys, for another one each time."""
    chance, fresh = random.Random(seed), itertools.count(10**6 * (seed + 1))
    end = clock.time + hours * HOUR
    source.stale = source.answers = 0
    while clock.time < end:
        clock.advance(chance.expovariate(1 / gap))
        key = next(fresh) if keys is None else chance.randrange(keys)
        source.check(key, await tool(key))


def of(name: str) -> list[Recommendation]:
    return [each for each in recommendations() if each.tool == name]


def actions(name: str) -> list[str]:
    return [each.action for each in of(name)]


seeds = pytest.mark.parametrize("seed", [1, *slow(2)])


@pytest.mark.slow
@seeds
def test_a_ttl_that_is_too_short_for_what_never_changes_is_raised(clock: testing.FakeClock, name: str, seed: int):
    """By the factor of four that one step allows."""
    source = Source(clock, None, seed)
    tool = tool_of(source, name, ttl=20.0, maxsize=1_000)
    asyncio.run(run(clock, source, tool, keys=50, gap=2.0, hours=6, seed=seed))
    (found,) = of(name)
    assert (found.action, found.current, found.suggested, found.changed) == ("raise_ttl", 20.0, 80.0, 0)
    assert found.compared >= 225


@pytest.mark.slow
@seeds
def test_a_ttl_of_what_moves_is_shortened_step_by_step_until_1_percent_is_stale(
    clock: testing.FakeClock, name: str, seed: int
):
    """3000 s with 80 % of the answers stale becomes about 12 s with 1 %: ``2 * 0.01 * 600``."""
    source, right = Source(clock, 600.0, seed), 2 * 0.01 * 600
    tool = tool_of(source, name, ttl=3000.0, maxsize=1_000)
    shares, steps = [], [3000.0]
    for number in range(9):
        hours = max(6.0, 8 * steps[-1] / HOUR)
        asyncio.run(run(clock, source, tool, keys=20, gap=4.0, hours=hours, seed=10 * seed + number))
        shares.append(source.stale / source.answers)
        found = of(name)
        if not found or found[0].action != "shorten_ttl":
            break
        assert found[0].suggested is not None
        assert found[0].suggested >= 0.24 * steps[-1]
        steps.append(found[0].suggested)
        set_ttl(tool, found[0].suggested)
    # What it would change now, it would change to what is right.
    assert all(0.5 * right < (each.suggested or steps[-1]) < 1.6 * right for each in found), found
    assert 0.5 * right < steps[-1] < 1.6 * right, steps
    assert (shares[0] > 0.5, shares[-1] < 0.02) == (True, True), shares


@pytest.mark.slow
@seeds
def test_a_store_that_is_too_small_is_enlarged(clock: testing.FakeClock, name: str, seed: int):
    """By the number of different calls that there are, at most by four."""
    source = Source(clock, None, seed)
    tool = tool_of(source, name, ttl=7200.0, maxsize=128)
    asyncio.run(run(clock, source, tool, keys=800, gap=0.5, hours=3, seed=seed))
    (found,) = of(name)
    assert (found.action, found.current) == ("raise_maxsize", 128)
    assert found.suggested is not None
    assert 256 <= found.suggested <= 512
    assert found.evidence >= 20


@seeds
@pytest.mark.parametrize("ttl", [600.0, *slow(None)])
def test_what_is_asked_once_need_not_be_cached(clock: testing.FakeClock, name: str, seed: int, ttl: float | None):
    source = Source(clock, None, seed)
    tool = tool_of(source, name, ttl=ttl)
    asyncio.run(run(clock, source, tool, keys=None, gap=1.0, hours=2, seed=seed))
    assert actions(name) == ["no_reuse"]


@seeds
def test_what_is_as_it_should_be_is_kept(clock: testing.FakeClock, name: str, seed: int):
    source = Source(clock, 200_000.0, seed)
    tool = tool_of(source, name, ttl=3000.0, maxsize=1_000)
    asyncio.run(run(clock, source, tool, keys=50, gap=1.0, hours=6, seed=seed))
    assert actions(name) == ["keep"], of(name)


# What writes explain, and what they do not


async def load_again(clock: testing.FakeClock, tool: Tool, times: int, *, seconds: float = 61.0) -> None:
    for _ in range(times):
        await tool(1)
        clock.advance(seconds)


def changing_tool(clock: testing.FakeClock, name: str, *, differs: bool = True, **options: Any) -> Tool:
    """A tool whose result is another one at each load, or always the same."""
    numbers = itertools.count()

    @AgentCache(name, name=name, **options)
    async def tool(_key: int) -> dict[str, Any]:
        clock.advance(LOAD)
        return {"number": next(numbers) if differs else 0}

    return tool


@pytest.mark.parametrize(("reloads", "is_said"), [(19, False), (20, True)])
def test_nothing_is_said_before_twenty_reloads(clock: testing.FakeClock, name: str, reloads: int, is_said: bool):
    tool = changing_tool(clock, name, ttl=60)
    asyncio.run(load_again(clock, tool, reloads + 1))
    found = of(name)
    assert [(each.action, each.evidence, each.changed) for each in found] == [("shorten_ttl", 20, 20)] * is_said


@pytest.mark.parametrize(
    ("options", "wanted"), [({}, ["shorten_ttl"]), ({"loop": agent_cache.LoopHints(outcome_key=len)}, [])]
)
def test_what_differs_each_time_is_left_out_by_the_outcome_key(
    clock: testing.FakeClock, name: str, options: dict[str, Any], wanted: list[str]
):
    tool = changing_tool(clock, name, ttl=60, **options)
    asyncio.run(load_again(clock, tool, 60))
    found = of(name)
    assert [each.action for each in found] == wanted
    assert all("outcome_key" in each.reason for each in found)


def test_what_was_loaded_under_a_former_ttl_is_not_counted(clock: testing.FakeClock, name: str):
    tool = changing_tool(clock, name, ttl=60)
    asyncio.run(load_again(clock, tool, 21))
    set_ttl(tool, 240)
    asyncio.run(load_again(clock, tool, 21, seconds=241.0))
    assert [each.compared for each in of(name)] == [20]


@pytest.mark.parametrize("max_stale", [0, 1, -0.1, 2, float("nan"), "0.01", True, None])
def test_a_share_that_is_none_is_refused(max_stale: Any):
    with pytest.raises(agent_cache.ConfigurationError, match="max_stale must be a share"):
        recommendations(max_stale=max_stale)


@pytest.mark.slow
def test_the_share_of_stale_answers_decides(clock: testing.FakeClock, name: str):
    source = Source(clock, 2_000, 1)
    tool = tool_of(source, name, ttl=400, maxsize=1_000)
    asyncio.run(run(clock, source, tool, keys=20, gap=2.0, hours=12, seed=1))
    assert actions(name) == ["shorten_ttl"]
    assert [each.action for each in recommendations(max_stale=0.1) if each.tool == name] == ["keep"]
    assert [each.action for each in recommendations(max_stale=0.5) if each.tool == name] == ["raise_ttl"]
