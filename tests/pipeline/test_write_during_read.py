"""P1 step by step: a read and a write in every order, a read inside a write, and writes that overlap."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, NamedTuple

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, writing
from tests.harness.gates import Gate, cancelled, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Answer(NamedTuple):
    """What a read tool answers."""

    id: str
    version: int


class Shop:
    """One order that is read and written at gates of the test's choice."""

    def __init__(self, read: Any, write: Any) -> None:
        self.version = 0
        self.loads = 0
        self.is_open = False
        self.looking, self.answering, self.changing, self.ending = Gate(), Gate(), Gate(), Gate()

        @AgentCache(read)
        async def get(id: str) -> Answer:
            self.loads += 1
            await self.at(self.looking)
            seen = Answer(id, self.version)
            await self.at(self.answering)
            return seen

        @AgentCacheInvalidator(write)
        async def change(id: str) -> str:
            await self.at(self.changing)
            self.version += 1
            await self.at(self.ending)
            return id

        self.get, self.change = get, change

    async def at(self, gate: Gate) -> None:
        if not self.is_open:
            await gate()


async def test_what_a_write_reads_of_its_own_entity_is_not_kept():
    """A read-modify-write inside a write tool: what it read is gone when it has ended."""
    version = 0

    @AgentCache("order:{id}")
    async def get(id: str) -> int:
        return version

    @AgentCacheInvalidator("order:{id}")
    async def increase(id: str) -> int:
        nonlocal version
        before = await get(id)
        version = before + 1
        assert await get(id) == version
        return version

    assert [await increase("7") for _ in range(3)] == [1, 2, 3]
    assert await get("7") == 3


async def test_a_write_tool_may_call_a_write_tool():
    """The inner write's end does not end the outer one's hold."""
    shop = Shop("order:{id}", "order:{id}")
    gate = Gate()

    @AgentCacheInvalidator("order:{id}")
    async def change_twice(id: str) -> None:
        await shop.change(id)
        await gate()
        shop.version += 1

    shop.is_open = True
    writer = await started(change_twice("7"))
    assert (await shop.get("7")).version == 1
    gate.last.returns(None)
    await writer
    assert (await shop.get("7")).version == 2


async def test_a_write_that_is_no_tool_surrounds_its_body_likewise():
    """`async with writing(...)` drops before, holds meanwhile, and drops again."""
    shop = Shop("order:{id}", "order:{id}")
    shop.is_open = True
    await shop.get("7")
    async with writing("order:7"):
        assert [(await shop.get("7")).version for _ in range(2)] == [0, 0]
        assert shop.loads == 3
        shop.version += 1
    assert [(await shop.get("7")).version for _ in range(2)] == [1, 1]
    assert shop.loads == 4


@dataclasses.dataclass(frozen=True)
class Refusal(Exception):
    """Refuses to have its traceback and its context set."""

    reason: str


async def test_an_error_that_refuses_changes_leaves_a_write_unchanged():
    """The write is ended as after any other error, and the caller gets what was raised."""
    shop = Shop("order:{id}", "order:{id}")
    shop.is_open = True
    error = Refusal("no")

    @AgentCacheInvalidator("order:{id}")
    async def refuse(id: str) -> None:
        raise error

    async def within_writing() -> None:
        async with writing("order:7"):
            raise error

    for number, attempt in enumerate((lambda: refuse("7"), within_writing), 1):
        await shop.get("7")
        with pytest.raises(Refusal) as caught:
            await attempt()
        assert caught.value is error
        shop.version = number
        assert (await shop.get("7")).version == number


async def test_a_write_that_is_cancelled_before_its_tool_runs_changes_nothing():
    """A task that never started has written nothing and holds nothing."""
    shop = Shop("order:{id}", "order:{id}")
    shop.is_open = True
    task = asyncio.ensure_future(shop.change("7"))
    await cancelled(task)
    assert task.cancelled()
    assert [(await shop.get("7")).version for _ in range(2)] == [0, 0]
    assert shop.loads == 1


async def test_the_tags_of_a_write_are_those_of_its_arguments_before_it_changes_them():
    """A write tool that mutates what it was given still names what it was called for."""
    version = 0

    @AgentCache("order:{id}")
    async def get(id: str) -> int:
        return version

    @AgentCacheInvalidator("order:{order[id]}")
    async def change(order: dict[str, str]) -> None:
        nonlocal version
        order["id"] = "another"
        version += 1

    assert await get("7") == 0
    await change({"id": "7"})
    assert await get("7") == 1


@pytest.mark.parametrize("followers", [0, 2])
@pytest.mark.parametrize("write", ["has ended", "still runs", "names it by its result"])
async def test_a_result_that_a_write_keeps_from_being_stored_is_each_caller_s_own(followers, write):
    """Whoever waits for it has a copy, as ever, and the next call loads anew."""
    answering, changing = Gate(), Gate()

    @AgentCache("order:{result[id][0]}" if write == "names it by its result" else "order:{id}")
    async def get(id: str) -> dict[str, list[int]]:
        await answering()
        return {"id": [7], "lines": []}

    @AgentCacheInvalidator("order:{id}")
    async def change(id: str) -> None:
        await changing()

    readers = [await started(get("7")) for _ in range(1 + followers)]
    writer = await started(change("7"))
    if write == "has ended":
        changing.last.returns(None)
        await writer
    answering.last.returns(None)
    answers = [await reader for reader in readers]
    assert len({id(answer["lines"]) for answer in answers}) == 1 + followers
    if write != "has ended":
        changing.last.returns(None)
        await writer
    again = await started(get("7"))
    answering.last.returns(None)
    assert await again == {"id": [7], "lines": []}
    assert len(answering.calls) == 2, "nothing was stored"
