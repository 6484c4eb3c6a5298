"""How many Python frames a hit runs through, exact, and at most a miss, a write, and a call on a tape."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ToolCall, configure, invalidate, testing
from agent_cache.recording import record, replay
from agent_cache.resume import Journal
from tests.harness import library
from tests.pipeline.leasing import LeasingTier

HIT = 1
MUTABLE_HIT = 2  # the body, and the second look that copies
SESSION_HIT = 3  # the body, what the session observes, and what its loop guard has counted
SESSION_MISS = 14
SESSION_WRITE = 18
"""What the session admits, with the key of a write; and what it is shown at the end, with the digest of the answer."""
RESOURCES = ("card", "card:{user_id}", "card:{result}")
# What a reader who follows a call has to walk. The bounds may be lowered, not raised.
MISS = 10
"""In order: the body, `run`, its `Call`, the tag, `load`, its `Flight`, `store_result`, the `Entry`,
`insert_if_valid` with what the store is asked and told. The plan had 8: some of these steps written into others."""
WRITE = 12
"""In order: the body, `run`, its `Call`, `run_write`, the tag, the `Write` with the paths that it holds; its begin, the
tool, its end. Begin and end are one function of `Versions` each."""
RECORDED_READ = 30
REPLAYED_READ = 26
JOURNALED_WRITE = 53
"""Of one whose texts redaction has seen before. A tape adds what identifies a call, its place and its line."""
FILES = 5  # of the package, through which a miss and a write pass

PACKAGE = Path(agent_cache.__file__).parent


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    """The clock stands still, in C: a load that the machine has interrupted counts as a slow one, which is noted.

    The tools of other tests are gone: a write goes to the tiers of all that have its tag, and notes itself for audits.
    """
    gc.collect()
    testing.reset()
    with library.clock_in_c(1_000.0):
        yield
    testing.reset()


async def frames(function: Callable[..., Awaitable[Any]], *args: object, **kwargs: object) -> list[str]:
    """The names of the Python functions that one awaited call enters, the tool's own included, in order."""
    return [code.co_qualname for code in await codes(function, *args, **kwargs)]


async def codes(function: Callable[..., Awaitable[Any]], *args: object, **kwargs: object) -> list[CodeType]:
    entered: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.append(frame.f_code)

    gc.disable()  # a collection runs whatever callbacks are registered, and their frames are nobody's here
    sys.setprofile(note)
    try:
        await function(*args, **kwargs)
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered


async def get_card(user_id: str) -> str:
    return "gift_card_3827561"


async def get_user(user_id: str) -> dict[str, Any]:
    return {"user_id": user_id, "orders": [1, 2]}


async def search(filters: dict[str, Any]) -> str:
    return "#W2378156"


async def warm_frames(function: Callable[..., Awaitable[Any]], *args: object) -> list[str]:
    """The frames of the second of two equal calls: a hit."""
    await function(*args)
    return await frames(function, *args)


class Shop:
    @AgentCache(resource="card", ttl=60)
    async def get_card(self, user_id: str) -> str:
        return "#W2378156"


def tier_with_a_clock() -> LeasingTier:
    tier = LeasingTier()
    tier.with_term((1_000.0).__pos__).until = 2_000.0
    return tier


def by_keyword(tool: Any) -> Any:
    async def call(user_id: str) -> Any:
        return await tool(user_id=user_id)

    return call


HITS: dict[str, tuple[Callable[[], Any], int]] = {
    "with a static tag": (lambda: AgentCache(resource="card", ttl=60)(get_card), HIT),
    "with a tag of its argument": (lambda: AgentCache(resource="card:{user_id}", ttl=60)(get_card), HIT),
    "with a tag of its result": (lambda: AgentCache(resource="card:{result}", ttl=60)(get_card), HIT),
    "without ttl": (lambda: AgentCache(resource="card")(get_card), HIT),
    "with a tier": (lambda: AgentCache(resource="card", remote_cache=tier_with_a_clock())(get_card), HIT),
    "with a tier and a ttl": (lambda: AgentCache("card", ttl=60, remote_cache=tier_with_a_clock())(get_card), HIT),
    "of a mutable result": (lambda: AgentCache(resource="user", ttl=60)(get_user), MUTABLE_HIT),
    "of a mutable result, with a tier": (lambda: AgentCache("user", remote_cache=LeasingTier())(get_user), MUTABLE_HIT),
    "by a keyword, in a function": (lambda: by_keyword(AgentCache(resource="card")(get_card)), HIT + 1),
    "not chosen for an audit": (lambda: AgentCache(resource="card", audit=1e-9)(get_card), HIT + 1),
    "of a method": (lambda: Shop().get_card, HIT + 5),  # what tells objects apart, and whether their class asks for who
}


@pytest.mark.parametrize("hit", HITS)
def test_a_hit_is_so_many_frames(hit: str) -> None:
    """The generated body answers by itself: it compares the lease of a copy, and Python binds the arguments."""
    make, bound = HITS[hit]
    entered = asyncio.run(warm_frames(make(), "u1"))
    assert len(entered) == bound, entered


def test_observers_that_are_not_used_cost_no_frame() -> None:
    """A hit is one frame also with middleware, and where other tools are audited. When there are none any more, a miss
    and a write have as many frames as before.
    """

    async def observe(call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        return await proceed()

    tool = AgentCache(resource="card", ttl=60, audit=0.0)(get_card)
    write = AgentCacheInvalidator(resource="tip")(get_card)

    async def main() -> None:
        await tool("warm")
        await write("warm")
        miss, written = await frames(tool, "u1"), await frames(write, "u1")
        with configure(middleware=(observe,), audit=1.0):
            assert len(await warm_frames(tool, "u2")) == HIT
            assert len(await frames(tool, "u3")) > len(miss)
        await tool("warm again")
        await write("warm again")
        assert await frames(tool, "u4") == miss
        assert await frames(write, "u4") == written
        assert len(await warm_frames(tool, "u5")) == HIT

    asyncio.run(main())


def test_a_hit_with_a_nested_argument_recognises_it_without_walking_it() -> None:
    """As many frames for a large argument as for a small one, and few."""
    tool = AgentCache(resource="orders", ttl=60)(search)

    async def main() -> tuple[list[str], list[str]]:
        small = await warm_frames(tool, {"status": "pending"})
        return small, await warm_frames(tool, {"status": ["pending"], "price": {"min": 10, "max": {"of": [1, 2, 3]}}})

    small, large = asyncio.run(main())
    assert len(small) <= HIT + 1, small
    assert large == small


def test_a_hit_in_a_session_is_a_small_constant() -> None:
    """The same for the fifth call and for the thousandth: the trace and the loop guard scan nothing."""
    tool = AgentCache(resource="card", ttl=60)(get_card)

    async def main() -> tuple[list[str], list[str]]:
        async with unlimited_session():
            for _ in range(4):  # the third of them is noticed, once
                await tool("u1")
            fifth = await warm_frames(tool, "u1")
            for _ in range(1_000):
                await tool("u1")
            return fifth, await frames(tool, "u1")

    fifth, late = asyncio.run(main())
    assert len(fifth) == SESSION_HIT, fifth
    assert late == fifth


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_miss_costs_the_same_however_much_was_read(resource: str, in_session: bool) -> None:
    """In a full cache, so that the miss evicts as well. What a session adds does not grow with what it has seen."""
    tool = AgentCache(resource=resource, ttl=60, maxsize=8)(get_card)

    async def main() -> tuple[list[str], list[str]]:
        async with unlimited_session() if in_session else nullcontext():
            return await miss_frames(tool)

    early, late = asyncio.run(main())
    assert early.count("get_card") == 1
    assert late == early


async def miss_frames(tool: Callable[..., Awaitable[Any]]) -> tuple[list[str], list[str]]:
    """The frames of two misses that find the cache and what a session remembers full: the second after many more."""
    entered = []
    for last in (1_500, 3_000):
        for number in range(last):
            await tool(f"u{last}.{number}")
        entered.append(await frames(tool, f"new{last}"))
    early, late = entered
    return early, late


def test_a_miss_and_a_write_are_few_frames(tmp_path: Path) -> None:
    """Without tiers, of tools with one template, in a cache that is not full; and on a tape, answered, in a journal."""
    read = AgentCache(resource="card:{user_id}", ttl=60, maxsize=1_000, name="read")(get_card)
    write = AgentCacheInvalidator(resource="card:{user_id}", name="write")(get_card)

    async def counted(tool: Any, times: int = 2, name: str = "u1") -> int:
        for number in range(times):  # until then it is looked at what writes its roots, what redaction has seen
            read.clear()
            await read(f"warm{number}")
            await write(f"warm{number}")
            entered = await own_frames(tool, name.format(number))
        return len(entered)

    async def main() -> None:
        assert 0 < await counted(read, 101) <= MISS
        assert 0 < await counted(write) <= WRITE
        async with unlimited_session():
            assert 0 < await counted(read, 4, "u{}") <= SESSION_MISS
            assert 0 < await counted(write, 4, "u{}") <= SESSION_WRITE
        with record(tmp_path / "run.jsonl"):
            assert 0 < await counted(read) <= RECORDED_READ
        with replay(tmp_path / "run.jsonl"):
            assert 0 < await counted(read) <= REPLAYED_READ
        async with AgentCacheSession("s", journal=Journal(tmp_path)):
            await write("u1")
            assert 0 < len(await own_frames(write, "u1")) <= JOURNALED_WRITE

    asyncio.run(main())


def test_a_miss_and_a_write_pass_through_few_files() -> None:
    """Of tools that have been called before, with a static tag; the write has an answer to end."""
    read = AgentCache(resource="card", ttl=60)(get_card)
    write = AgentCacheInvalidator(resource="card")(get_card)

    async def main() -> None:
        for tool in (write, read):
            await tool("u1")
        for tool in (read, write):
            entered = {code.co_filename for code in await codes(tool, "u2")}  # a generated body is in none
            assert 0 < sum(Path(name).is_relative_to(PACKAGE) for name in entered) <= FILES

    asyncio.run(main())


def test_a_write_looks_at_none_of_the_tools_that_read_what_it_writes() -> None:
    """Of a write tool and of `invalidate`: under 100 tools they enter as many functions as under one."""
    write = AgentCacheInvalidator(resource="card:{user_id}")(get_card)

    async def main() -> None:
        counts = []
        for number in (1, 100):
            tools = [
                AgentCache(resource="card:{user_id}", name=f"tool{n} of {number}")(get_card) for n in range(number)
            ]
            await write("u1")
            await invalidate("card:u1")
            counts.append((len(await frames(write, "u1")), len(await frames(invalidate, "card:u1"))))
            del tools
        assert counts[0] == counts[1]

    asyncio.run(main())


async def own_frames(function: Callable[..., Awaitable[Any]], *args: object) -> list[str]:
    """The functions of the package that one awaited call enters, generated bodies included."""
    entered = await codes(function, *args)
    ours = (f"{PACKAGE}{os.sep}", "<agent_cache")
    return [code.co_qualname for code in entered if code.co_filename.startswith(ours)]


def unlimited_session() -> AgentCacheSession:
    """A session whose limits are out of reach."""
    return AgentCacheSession(max_tool_repeats=10**9, max_execution_depth=10**9)
