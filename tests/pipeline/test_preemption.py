"""P1 between threads, line by line: a call stands still while another thread runs a whole one.

A stress hits the few instructions between "still clean?" and "store" once in many runs.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, writing
from tests.harness.preemption import stopped_everywhere
from tests.harness.slow import slow

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.parametrize("every", [5, *slow(1)])]


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
def test_a_read_may_be_stopped_anywhere_by_a_whole_write(resource, every):
    """Whatever it had looked at by then: once the write has ended, nobody is given the old version."""
    shop = Shop(resource)
    for where in stopped_everywhere(shop.read, shop.write, before=shop.get.clear, every=every):
        assert asyncio.run(shop.read()) == shop.version, where


def test_a_write_may_be_stopped_anywhere_by_a_whole_read(every):
    """Whatever the read met: once the write has ended, nobody is given the old version."""
    shop = Shop("preempted:{id}")
    for where in stopped_everywhere(shop.write, shop.read, before=lambda: asyncio.run(shop.read()), every=every):
        assert asyncio.run(shop.read()) == shop.version, where


class PlainShop:
    """The same with plain functions, and the number of runs of the read tool."""

    def __init__(self, resource: str = "preempted:{id}") -> None:
        self.version = self.runs = 0

        @AgentCache(resource)
        def get(id: str) -> tuple[str, int]:
            self.runs += 1
            return id, self.version

        @AgentCacheInvalidator("preempted:{id}")
        def change(id: str) -> None:
            self.version += 1

        self.get, self.change = get, change

    def read(self) -> int:
        return self.get("7")[1]

    def write(self) -> None:
        self.change("7")

    def forget(self) -> None:
        self.get.clear()
        self.runs = 0


@pytest.mark.parametrize("resource", ["preempted", "preempted:{id}", "preempted:{result[0]}"])
def test_a_synchronous_read_may_be_stopped_anywhere_by_a_whole_write(resource, every):
    """Whatever it had looked at by then: once the write has ended, nobody is given the old version."""
    shop = PlainShop(resource)
    for where in stopped_everywhere(shop.read, shop.write, before=shop.forget, every=every):
        assert shop.read() == shop.version, where


def test_a_synchronous_write_may_be_stopped_anywhere_by_a_whole_read(every):
    """Whatever the read met: once the write has ended, nobody is given the old version."""
    shop = PlainShop()
    for where in stopped_everywhere(shop.write, shop.read, before=shop.read, every=every):
        assert shop.read() == shop.version, where


def test_a_synchronous_read_may_be_stopped_anywhere_by_the_same_read_of_another_thread(every):
    """Whoever was first, the tool has run once for both."""
    shop = PlainShop()
    for where in stopped_everywhere(shop.read, shop.read, before=shop.forget, every=every):
        assert shop.runs == 1, where
        assert shop.read() == shop.version, where
        assert shop.runs == 1, where


def test_a_synchronous_read_may_be_stopped_anywhere_by_an_asynchronous_write_and_the_other_way_round(every):
    """The tools of both kinds depend on the same tags."""
    plain, shop = PlainShop(), Shop("preempted:{id}")

    async def write() -> None:
        await shop.write()
        plain.version += 1

    def write_plainly() -> None:
        plain.write()
        shop.version += 1

    for where in stopped_everywhere(plain.read, write, before=plain.forget, every=every):
        assert plain.read() == plain.version, where
    for where in stopped_everywhere(shop.read, write_plainly, before=shop.get.clear, every=every):
        assert asyncio.run(shop.read()) == shop.version, where


class Lists:
    """A read of something that its callers change, and what they were given."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

        @AgentCache("preempted:{id}")
        def get(id: str) -> list[str]:
            return [id]

        self.get = get

    def read(self) -> None:
        self.given.append(self.get("7"))

    def forget(self) -> None:
        self.get.clear()
        self.given.clear()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_synchronous_read_may_be_stopped_anywhere_and_no_two_callers_are_given_one_object(every, is_held):
    """While a write runs, a result that nobody else waits for needs no copy. Whether anybody does is decided once."""
    lists = Lists()
    with writing("preempted:7") if is_held else nullcontext():
        for where in stopped_everywhere(lists.read, lists.read, before=lists.forget, every=every):
            one, other = lists.given
            assert one == other == ["7"]
            assert one is not other, where
