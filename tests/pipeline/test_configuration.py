"""`configure`: a base and layers over it, and the tiers that writes reach whatever is configured when they run."""

from __future__ import annotations

import gc
import itertools
import weakref
from contextlib import ExitStack
from typing import Any

import pytest

from agent_cache import configure, invalidate, writing
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.pipeline.fleet import Process, Truth, WatchedTier

pytestmark = pytest.mark.usefixtures("clock")


def in_force() -> dict[str, Any]:
    settings = {name: library.setting(name) for name in ("remote", "enabled", "max_bytes")}
    return {name: each for name, each in settings.items() if each is not None and each is not True}


# Base and layers


def test_a_setting_that_is_left_out_stays_and_none_means_none(here: WatchedTier):
    configure(remote=here)
    configure(max_bytes=1_000)
    configure(enabled=False)
    assert in_force() == {"remote": here, "max_bytes": 1_000, "enabled": False}
    configure()
    configure(max_bytes=None, enabled=True)
    assert in_force() == {"remote": here}
    configure(remote=None)
    assert in_force() == {}


def test_a_block_is_a_layer_over_the_base_and_takes_only_its_own_away(here: WatchedTier):
    with configure(max_bytes=1_000):
        configure(remote=here, max_bytes=5)  # the base: what the block sets hides it
        assert in_force() == {"remote": here, "max_bytes": 1_000}
        with configure(enabled=False):
            assert in_force() == {"remote": here, "max_bytes": 1_000, "enabled": False}
    assert in_force() == {"remote": here, "max_bytes": 5}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_that_overlap_may_be_left_in_any_order(order: tuple[int, ...]):
    configure(max_bytes=9)
    settings: list[dict[str, Any]] = [{"enabled": False}, {"enabled": True, "max_bytes": 2}, {"max_bytes": 3}]
    blocks = [configure(**each).__enter__() for each in settings]
    left = dict(enumerate(settings))
    assert in_force() == {"max_bytes": 3}
    for number in order:
        blocks[number].__exit__(None, None, None)
        del left[number]
        expected = {"max_bytes": 9, "enabled": True}
        for each in left.values():
            expected |= each
        assert in_force() == {name: value for name, value in expected.items() if value is not True}


@pytest.mark.parametrize("values", [(1_000, 2_000), (1_000, 1_000)], ids=["others", "the same"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_blocks_that_threads_make_at_once_leave_nothing_behind(values: tuple[int, int], order: tuple[int, int]):
    """Both are made before the first one is entered."""
    configure(max_bytes=9)
    blocks = [configure(max_bytes=each, enabled=False) for each in values]
    for number in order:
        with blocks[number]:
            assert in_force() == {"max_bytes": values[number], "enabled": False}
    assert in_force() == {"max_bytes": 9}


def test_the_environment_wins_over_every_layer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_CACHE_ENABLED", "0")
    with configure(enabled=True):
        assert not library.setting("enabled")
        configure(enabled=True)
        assert not library.setting("enabled")


# Writes reach every tier

LAYERS: dict[str, dict[str, Any]] = {
    "off": {"enabled": False},
    "max_bytes": {"max_bytes": 1_000},
    "no remote tier": {"remote": None},
    "another remote tier": {"remote": MemoryTier(MemoryServer())},
    "a backup": {"backup": MemoryTier(MemoryServer())},
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("how", ["tool", "invalidate", "writing", "one entry"])
async def test_a_write_inside_of_a_block_reaches_the_tier_outside_of_it(
    layer: str, how: str, truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    process, other = Process(truth, None), Process(truth, elsewhere)
    configure(remote=here)
    assert await process.get_order("7") == await other.get_order("7") == "old"
    with configure(**LAYERS[layer]):
        match how:
            case "tool":
                await process.set_order("7")
            case "invalidate":
                truth.save("7")
                await invalidate("order:7")
            case "writing":
                async with writing("order:7"):
                    truth.save("7")
            case _:
                truth.save("7")
                await process.get_order.invalidate("7")
        assert await process.get_order("7") == "new"
    assert await process.get_order("7") == "new"
    if how != "one entry":
        assert await other.get_order("7") == "new"


async def test_a_write_after_a_block_reaches_the_tier_of_the_block(
    truth: Truth, here: WatchedTier, elsewhere: MemoryTier
):
    process, other = Process(truth, None), Process(truth, elsewhere)
    with configure(remote=here):
        await process.get_order("7")
    assert await other.get_order("7") == "old"
    await process.set_order("7")
    assert await other.get_order("7") == "new"
    with configure(remote=here):
        assert await process.get_order("7") == "new"


@pytest.mark.parametrize("use", ["block", "call", "call that is kept"])
async def test_a_tier_that_nothing_uses_any_more_is_freed(use: str, truth: Truth):
    process, tier = Process(truth, None), WatchedTier(MemoryServer())
    freed = weakref.ref(tier)
    with ExitStack() as stack:
        if use == "block":
            stack.enter_context(configure(remote=tier))
        else:
            configure(remote=tier)
        await process.get_order("7")
        await process.set_order("7")
    kept = configure(remote=None)
    if use != "call that is kept":
        del kept
    else:
        kept.__exit__(None, None, None)
        configure(remote=None)
    await process.get_order("7")  # its plan has referenced the tier
    await process.set_order("7")
    del tier
    gc.collect()
    assert freed() is None
    assert library.tiers_once_configured() == []
