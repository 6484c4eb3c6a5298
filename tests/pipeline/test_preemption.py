"""P1 between threads, line by line: a call stands still while another thread runs a whole one.

A stress hits the few instructions between "still clean?" and "store" once in many runs.
"""

from __future__ import annotations

import asyncio

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from tests.harness.preemption import stopped_everywhere

pytestmark = pytest.mark.usefixtures("nothing_left")


class Shop:
    """One order, and how it is read and written."""

    def __init__(self, resource: str) -> None:
        self.version = 0

        @AgentCache(resource)
        async def get(id: str) -> tuple[str, int]:
            return id, self.version

        @AgentCacheInvalidator("preempted:{id}")
        async def change(id: str) -> None:
            self.version += 1

        self.get, self.change = get, change

    async def read(self) -> int:
        return (await self.get("7"))[1]

    async def write(self) -> None:
        await self.change("7")


@pytest.mark.parametrize("resource", ["preempted", "preempted:{id}", "preempted:{result[0]}"])
def test_a_read_may_be_stopped_anywhere_by_a_whole_write(resource):
    """Whatever it had looked at by then: once the write has ended, nobody is given the old version."""
    shop = Shop(resource)
    for where in stopped_everywhere(shop.read, shop.write, before=shop.get.clear):
        assert asyncio.run(shop.read()) == shop.version, where


def test_a_write_may_be_stopped_anywhere_by_a_whole_read():
    """Whatever the read met: once the write has ended, nobody is given the old version."""
    shop = Shop("preempted:{id}")
    for where in stopped_everywhere(shop.write, shop.read, before=lambda: asyncio.run(shop.read())):
        assert asyncio.run(shop.read()) == shop.version, where
