"""Loaders for an `AsyncCache` that stand still until the test lets them go, one key at a time or many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent_cache import AsyncCache
from tests.harness.gates import until


async def turn() -> None:
    """One turn of the event loop: every task that was created before has run up to its first wait."""
    await asyncio.sleep(0)


async def begun(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start them in this order, each up to its first wait."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await turn()
    return tasks


class HeldLoader:
    """A loader that is held until `open`, and that notes how it was called and how it ended."""

    def __init__(self, value: Any = "loaded") -> None:
        self.value = value
        self.opened = asyncio.Event()
        self.calls: list[Any] = []
        self.cancelled = 0

    def open(self) -> None:
        self.opened.set()

    async def _pass(self) -> None:
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def load(self) -> Any:
        self.calls.append(())
        await self._pass()
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    async def load_batch(self, keys: list[Any]) -> Any:
        self.calls.append(list(keys))
        await self._pass()
        if isinstance(self.value, Exception):
            raise self.value
        return {key: (self.value, key) for key in keys}


def nothing_is_left(cache: AsyncCache) -> bool:
    """Whether no load, flight or batch of a cache is under way."""
    return not (cache._loads or cache._batches)


async def one_by_one(cache: AsyncCache, gate: HeldLoader, key: Any = "k") -> Any:
    """Get a key with the loader of one."""
    return await cache.get(key, loader=gate.load)


async def in_batches(cache: AsyncCache, gate: HeldLoader, key: Any = "k") -> Any:
    """Get a key with the loader of many."""
    found = await cache.get(key, batch_loader=gate.load_batch)
    assert found[1] == key
    return found[0]


Get = Callable[..., Coroutine[Any, Any, Any]]
single_and_batched = pytest.mark.parametrize("get", [one_by_one, in_batches])


async def calls_of(gate: HeldLoader, number: int) -> None:
    """Wait until the loader has been called this often: a window of 0 ms takes a few turns of the loop."""
    await until(lambda: len(gate.calls) >= number)
