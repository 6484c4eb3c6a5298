"""P1 step by step: a read and a write in every order, a read inside a write, and writes that overlap."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from, writing
from tests.harness.gates import Gate, cancelled, idle, started
from tests.harness.slow import slow_rows

pytestmark = pytest.mark.usefixtures("nothing_left")

READS = {
    "static": "order",
    "entity": "order:{id}",
    "below": "order:{id}:lines",
    "result": "order:{result.id}",
    "several": ["order:{id}", "cart"],
    "computed early": tags_from("order", lambda arguments: [arguments["id"]]),
    "computed late": tags_from("order", lambda arguments, result: [result.id]),
}
WRITES = {
    "root": "order",
    "entity": "order:{id}",
    "result": "order:{result}",
    "computed early": tags_from("order", lambda arguments: arguments["id"]),
    "computed late": tags_from("order", lambda arguments, result: result),
}


class Rejected(Exception):
    """The store's definite refusal."""


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


def orders(read: str, write: str) -> Iterator[str]:
    """Every way to mix the steps of two calls, each in its own order."""
    for places in combinations(range(len(read) + len(write)), len(read)):
        steps, others = iter(read), iter(write)
        yield "".join(next(steps) if at in places else next(others) for at in range(len(read) + len(write)))


def end_write(shop: Shop, how: str) -> None:
    """Let the write return, or refuse after the fact: a definite end either way."""
    if how == "returns":
        shop.ending.last.returns(None)
    else:
        shop.ending.last.raises(Rejected())


@pytest.mark.parametrize(
    ("write", "how"),
    [
        *[("root", "returns"), ("entity", "returns"), ("result", "returns"), ("root", "raises")],
        *slow_rows(*product(["computed early", "computed late"], ["returns"])),
        *slow_rows(*product(["entity", "result", "computed early", "computed late"], ["raises"])),
    ],
)
@pytest.mark.parametrize("read", READS)
async def test_whatever_the_order_of_a_read_and_a_write_nothing_old_is_kept(read, write, how):
    """S(tart), L(ook), A(nswer) of a read and B(egin), C(hange), E(nd) of a write, in all twenty orders."""
    for order in orders("SLA", "BCE"):
        shop = Shop(READS[read], WRITES[write])
        reader = writer = None
        for step in order:
            match step:
                case "S":
                    reader = await started(shop.get("7"))
                case "L":
                    shop.looking.last.returns(None)
                case "A":
                    shop.answering.last.returns(None)
                case "B":
                    writer = await started(shop.change("7"))
                case "C":
                    shop.changing.last.returns(None)
                case "E":
                    end_write(shop, how)
            await idle()
        assert reader is not None
        assert writer is not None
        await asyncio.gather(reader, writer, return_exceptions=True)
        shop.is_open = True
        assert (await shop.get("7")).version == shop.version == 1, order
        # Only what was loaded after the write had ended may have been there already.
        assert shop.loads == (1 if order == "BCESLA" else 2), order
        assert (await shop.get("7")).version == 1
        assert shop.loads == (1 if order == "BCESLA" else 2), order


@pytest.mark.parametrize("read", READS)
async def test_a_reader_that_starts_after_a_write_never_joins_a_load_from_before_it(read):
    """The old load still runs when the write has ended; the later reader runs the tool itself."""
    shop = Shop(READS[read], "order:{id}")
    early = await started(shop.get("7"))
    shop.looking.last.returns(None)
    writer = await started(shop.change("7"))
    shop.changing.last.returns(None)
    await idle()
    shop.ending.last.returns(None)
    await writer
    late = await started(shop.get("7"))
    assert shop.loads == 2
    shop.looking.last.returns(None)
    await idle()
    for held in shop.answering.running:
        held.returns(None)
    assert (await early).version == 0
    assert (await late).version == 1


async def test_readers_before_and_during_a_write_are_two_crowds():
    """Who came before it shares one load, who came during it another, who came after it a third."""
    shop = Shop("order:{id}", "order:{id}")
    before = [await started(shop.get("7")) for _ in range(2)]
    writer = await started(shop.change("7"))
    during = [await started(shop.get("7")) for _ in range(2)]
    assert shop.loads == 2
    for gate in (shop.changing, shop.ending):
        gate.last.returns(None)
        await idle()
    await writer
    after = [await started(shop.get("7")) for _ in range(2)]
    assert shop.loads == 3
    for gate in (shop.looking, shop.answering):
        for held in gate.running:
            held.returns(None)
        await idle()
    assert {answer.version for answer in await asyncio.gather(*before, *during, *after)} == {1}
    assert len(shop.looking.calls) == 3


async def test_a_waiter_of_an_outdated_load_that_takes_over_does_not_disturb_the_new_one():
    """The detached flight is handed over as any other; it neither replaces nor outlives the new one's entry."""
    shop = Shop("order:{id}", "order:{id}")
    leader, waiter = await started(shop.get("7")), await started(shop.get("7"))
    writer = await started(shop.change("7"))
    for gate in (shop.changing, shop.ending):
        gate.last.returns(None)
        await idle()
    await writer
    late = await started(shop.get("7"))
    await cancelled(leader)
    assert shop.loads == 3
    for gate in (shop.looking, shop.answering):
        for held in gate.running:
            held.returns(None)
        await idle()
    assert [(await call).version for call in (waiter, late)] == [1, 1]
    assert (await shop.get("7")).version == 1
    assert shop.loads == 3


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


@pytest.mark.parametrize("moment", ["before the effect", "after the effect"])
async def test_a_read_inside_a_write_is_answered_and_not_kept(moment):
    """A concurrent reader meets a half-done write: it gets what there is, and nobody gets it later."""
    shop = Shop("order:{id}", "order:{id}")
    writer = await started(shop.change("7"))
    if moment == "after the effect":
        shop.changing.last.returns(None)
        await idle()
    shop.is_open = True
    for loads in (1, 2):
        assert (await shop.get("7")).version == shop.version
        assert shop.loads == loads
    shop.is_open = False
    (shop.ending if moment == "after the effect" else shop.changing).last.returns(None)
    await idle()
    for held in shop.ending.running:
        held.returns(None)
    await writer
    shop.is_open = True
    assert (await shop.get("7")).version == 1
    assert (await shop.get("7")).version == 1
    assert shop.loads == 3


async def test_the_beginning_of_a_write_ends_what_was_there():
    """Whoever asks during a write asks the source: the answer from before it is not served any more."""
    shop = Shop("order:{id}", "order:{id}")
    shop.is_open = True
    await shop.get("7")
    shop.is_open = False
    writer = await started(shop.change("7"))
    shop.is_open = True
    await shop.get("7")
    assert shop.loads == 2
    shop.changing.last.returns(None)
    await writer


async def test_of_two_writes_that_overlap_the_last_to_end_counts():
    """While one of them is under way nothing is kept, whichever began first."""
    for first, second in ((0, 1), (1, 0)):
        shop = Shop("order:{id}", "order:{id}")
        writers = [await started(shop.change("7")) for _ in range(2)]
        for held in shop.changing.running:
            held.returns(None)
        await idle()
        shop.ending.calls[first].returns(None)
        await writers[first]
        shop.is_open = True
        assert [(await shop.get("7")).version for _ in range(2)] == [2, 2]
        assert shop.loads == 2
        shop.ending.calls[second].returns(None)
        await writers[second]
        assert [(await shop.get("7")).version for _ in range(2)] == [2, 2]
        assert shop.loads == 3


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
