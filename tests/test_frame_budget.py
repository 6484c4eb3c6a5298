"""How many Python frames a call runs through: exact, so that a frame added by accident fails here first."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, testing

GLOBAL_HIT = 1
NESTED_ARGUMENT_HIT = 2
MUTABLE_HIT = 2
SESSION_HIT = 6
MISS = 20


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    testing.reset()
    yield
    testing.reset()


async def frames(function: Callable[..., Awaitable[Any]], *args: object, **kwargs: object) -> list[str]:
    """The names of the Python functions that one awaited call enters, the tool's own included, in order."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        await function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return entered


async def get_card(user_id: str) -> str:
    return "gift_card_3827561"


async def get_user(user_id: str) -> dict[str, Any]:
    return {"user_id": user_id, "orders": [1, 2]}


async def search(filters: dict[str, Any]) -> str:
    return "#W2378156"


def test_the_counter_sees_every_frame() -> None:
    """A wrapper around a tool is one frame more, so the numbers below cannot pass by not counting."""

    async def wrapped(user_id: str) -> str:
        return await get_card(user_id)

    async def main() -> None:
        assert len(await frames(get_card, "u1")) == 1
        assert len(await frames(wrapped, "u1")) == 2

    asyncio.run(main())


@pytest.mark.parametrize("resource", ["card", "card:{user_id}", "card:{result}"])
def test_a_hit_outside_a_session_is_one_frame(resource: str) -> None:
    """The generated body answers by itself, whatever the tags are."""
    tool = AgentCache(resource=resource, ttl=60)(get_card)

    async def main() -> list[str]:
        await tool("u1")
        return await frames(tool, "u1")

    entered = asyncio.run(main())
    assert len(entered) == GLOBAL_HIT, entered


def test_a_keyword_spelling_costs_no_frame() -> None:
    """The interpreter binds the arguments, not a `Signature`."""
    tool = AgentCache(resource="card", ttl=60)(get_card)

    async def main() -> list[str]:
        await tool("u1")
        return await frames(tool, user_id="u1")

    entered = asyncio.run(main())
    assert len(entered) == GLOBAL_HIT, entered


def test_a_hit_with_a_nested_argument_adds_the_alias_of_the_argument() -> None:
    """A container argument is looked up in the table of aliases, and no deeper."""
    tool = AgentCache(resource="orders", ttl=60)(search)

    async def main() -> list[str]:
        await tool({"status": "pending", "price": {"min": 10}})
        return await frames(tool, {"status": "pending", "price": {"min": 10}})

    entered = asyncio.run(main())
    assert len(entered) <= NESTED_ARGUMENT_HIT, entered


def test_a_hit_with_a_mutable_result_adds_the_copy() -> None:
    """The slow half of a hit is one synchronous function that copies."""
    tool = AgentCache(resource="user", ttl=60)(get_user)

    async def main() -> list[str]:
        await tool("u1")
        return await frames(tool, "u1")

    entered = asyncio.run(main())
    assert len(entered) <= MUTABLE_HIT, entered


def test_a_hit_in_a_session_is_a_small_constant() -> None:
    """The same number for the second call and for the thousandth: the trace and the loop guard scan nothing."""
    tool = AgentCache(resource="card", ttl=60)(get_card)

    async def main() -> tuple[list[str], list[str]]:
        async with AgentCacheSession(max_tool_repeats=10**9, max_execution_depth=10**9):
            await tool("u1")
            second = await frames(tool, "u1")
            for _ in range(1_000):
                await tool("u1")
            return second, await frames(tool, "u1")

    second, late = asyncio.run(main())
    assert len(second) <= SESSION_HIT, second
    assert late == second


def test_a_miss_is_a_constant_and_runs_the_tool_once() -> None:
    """A full cache, so that the miss evicts as well."""
    tool = AgentCache(resource="card:{user_id}", ttl=60, maxsize=8)(get_card)

    async def main() -> list[str]:
        for number in range(100):
            await tool(f"u{number}")
        return await frames(tool, "new")

    entered = asyncio.run(main())
    assert entered.count("get_card") == 1
    assert len(entered) <= MISS, entered
