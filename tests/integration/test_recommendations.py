"""What is recommended on a clock that stands still, for results that change at a known rate, and what comes of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, Recommendation, get_ttl, recommendations, set_ttl, testing

LOAD = 0.05
_numbers = itertools.count()


pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def name() -> str:
    return f"simulated{next(_numbers)}"


def of(name: str, **options: Any) -> list[Recommendation]:
    return [each for each in recommendations(**options) if each.tool == name]


def changing_tool(clock: testing.FakeClock, name: str, *, every: float | None = 1.0, **options: Any) -> Any:
    """A tool whose result is another one after so many seconds, or always the same."""

    @AgentCache(name, name=name, **options)
    async def tool(_key: int) -> dict[str, Any]:
        clock.advance(LOAD)
        return {"number": 0 if every is None else clock.time // every}

    return tool


def ask(clock: testing.FakeClock, tool: Callable[[int], Any], keys: Iterable[int], *, seconds: float = 61.0) -> None:
    async def run() -> None:
        for key in keys:
            await tool(key)
            clock.advance(seconds)

    asyncio.run(run())


def test_a_ttl_that_is_too_short_for_what_never_changes_is_raised(clock: testing.FakeClock, name: str):
    """By the factor of four that one step allows, and from some 150 reloads on."""
    tool = changing_tool(clock, name, every=None, ttl=20.0)
    ask(clock, tool, [1] * 100, seconds=21.0)
    assert "raise_ttl" not in [each.action for each in of(name)]
    ask(clock, tool, [1] * 150, seconds=21.0)
    (found,) = of(name)
    assert (found.action, found.current, found.suggested, found.changed) == ("raise_ttl", 20.0, 80.0, 0)


@pytest.mark.parametrize(("max_stale", "ttl"), [(0.01, 3000.0), (0.01, 24.0), (0.05, 3000.0)])
def test_a_ttl_of_what_moves_is_shortened_step_by_step_until_so_many_are_stale(
    clock: testing.FakeClock, name: str, max_stale: float, ttl: Any
):
    """Of what changes every 600 s, 1 % of the answers are stale at 12 s: ``2 * 0.01 * 600``."""
    tool, right = changing_tool(clock, name, every=600.0, ttl=ttl), 2 * max_stale * 600
    for _ in range(9):
        ttl = get_ttl(tool)
        ask(clock, tool, [1] * 800, seconds=ttl * 1.003)
        found = [each for each in of(name, max_stale=max_stale) if each.action == "shorten_ttl"]
        if not found:
            break
        assert found[0].suggested is not None
        assert found[0].suggested >= 0.24 * ttl
        set_ttl(tool, found[0].suggested)
    assert 0.7 * right < ttl < 1.6 * right


def test_a_store_that_is_too_small_is_enlarged(clock: testing.FakeClock, name: str):
    """And not one that `configure(max_bytes=...)` has emptied."""
    keys = [*range(150), *range(149, -1, -1)] * 2  # those in the midst are hits
    ask(clock, changing_tool(clock, name, ttl=7200.0, maxsize=128), keys, seconds=0.5)
    (found,) = of(name)
    assert (found.action, found.current, found.suggested) == ("raise_maxsize", 128, 256)
    with agent_cache.configure(max_bytes=40_000):
        ask(clock, changing_tool(clock, f"{name} of many", ttl=7200.0, maxsize=1_000), keys, seconds=0.5)
    assert "raise_maxsize" not in [each.action for each in of(f"{name} of many")]


@pytest.mark.parametrize("ttl", [600.0, None])
def test_what_is_asked_once_need_not_be_cached(clock: testing.FakeClock, name: str, ttl: float | None):
    ask(clock, changing_tool(clock, name, ttl=ttl), range(250))
    assert [each.action for each in of(name)] == ["no_reuse"]


def test_what_is_as_it_should_be_is_kept(clock: testing.FakeClock, name: str):
    ask(clock, changing_tool(clock, name, every=200_000.0, ttl=3000.0), [1] * 3_000)
    assert [each.action for each in of(name)] == ["keep"], of(name)


# What writes explain, and what they do not


@pytest.mark.parametrize(("reloads", "is_said"), [(19, False), (20, True)])
def test_nothing_is_said_before_twenty_reloads(clock: testing.FakeClock, name: str, reloads: int, is_said: bool):
    tool = changing_tool(clock, name, ttl=60)
    ask(clock, tool, [1] * (reloads + 1))
    found = of(name)
    assert [(each.action, each.evidence, each.changed) for each in found] == [("shorten_ttl", 20, 20)] * is_said


def test_one_change_among_few_reloads_may_be_chance(clock: testing.FakeClock, name: str):
    ask(clock, changing_tool(clock, name, every=1_200.0, ttl=60), [1] * 25)
    assert of(name) == []


@pytest.mark.parametrize(
    ("options", "wanted"), [({}, ["shorten_ttl"]), ({"loop": agent_cache.LoopHints(outcome_key=len)}, [])]
)
def test_what_differs_each_time_is_left_out_by_the_outcome_key(
    clock: testing.FakeClock, name: str, options: dict[str, Any], wanted: list[str]
):
    tool = changing_tool(clock, name, ttl=60, **options)
    ask(clock, tool, [1] * 60)
    found = of(name)
    assert [each.action for each in found] == wanted
    assert all("outcome_key" in each.reason for each in found)


def test_what_was_loaded_under_a_former_ttl_is_not_counted(clock: testing.FakeClock, name: str):
    tool = changing_tool(clock, name, ttl=60)
    ask(clock, tool, [1] * 21)
    set_ttl(tool, 240)
    ask(clock, tool, [1] * 21, seconds=241.0)
    assert [each.compared for each in of(name)] == [20]


@pytest.mark.parametrize("max_stale", [0, 1, -0.1, 2, float("nan"), "0.01", True, None])
def test_a_share_that_is_none_is_refused(max_stale: Any):
    with pytest.raises(agent_cache.ConfigurationError, match="max_stale must be a share"):
        recommendations(max_stale=max_stale)
