"""How far an invalidation reaches: up and down the tags, across scopes, sessions and tenants, and no further."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, invalidate, tags_from
from tests.harness.gates import Gate, cancelled, started

pytestmark = pytest.mark.usefixtures("nothing_left")

LISTED = {"listing": "order", "order": "order:{id}", "nobody": "order:{id}"}
Read = Callable[[], Coroutine[Any, Any, Any]]


class Counted:
    """Read tools by name, each of which remembers how often it ran."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}

    def tool(self, name: str, resource: Any, **options: Any) -> Any:
        """Decorate a read tool that answers with the number of its run."""
        self.runs[name] = 0

        @AgentCache(resource, name=name, **options)
        async def read(id: str = "") -> int:
            self.runs[name] += 1
            return self.runs[name]

        return read

    async def rerun(self, *reads: Read) -> list[bool]:
        """Call each; tell which of them ran its tool."""
        ran = []
        for read in reads:
            before = dict(self.runs)
            await read()
            ran.append(self.runs != before)
        return ran


def writer(resource: Any, **options: Any) -> Any:
    @AgentCacheInvalidator(resource, **options)
    async def write(id: str = "") -> None:
        pass

    return write


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def tree(counted: Counted) -> tuple[Read, ...]:
    """A list, two orders, the lines of each, and something of another root, all kept."""
    listing, order = counted.tool("listing", "order"), counted.tool("order", "order:{id}")
    lines, cart = counted.tool("lines", "order:{id}:lines"), counted.tool("cart", "cart:{id}")
    single = (lambda tool=tool, id=id: tool(id) for tool in (order, lines) for id in ("7", "8"))
    return listing, *single, lambda: cart("7")


@pytest.mark.parametrize(
    ("tag", "goes"),
    [
        ("order", [True, True, True, True, True, False]),
        ("order:7", [True, True, False, True, False, False]),
        ("order:7:lines", [True, True, False, True, False, False]),
        ("order:7:notes", [True, True, False, False, False, False]),
        ("order:9", [True, False, False, False, False, False]),
        ("ord", [False, False, False, False, False, False]),
        ("cart", [False, False, False, False, False, True]),
    ],
)
@pytest.mark.parametrize("how", ["a tool", "by hand"])
async def test_a_write_reaches_what_lies_below_it_and_above_it_and_no_sibling(counted, tree, tag, goes, how):
    """Of: list, order 7, order 8, lines of 7, lines of 8, cart 7."""
    await counted.rerun(*tree)
    await (invalidate(tag) if how == "by hand" else writer(tag)())
    assert await counted.rerun(*tree) == goes
    assert await counted.rerun(*tree) == [False] * 6


async def test_a_read_without_an_id_depends_on_the_whole_root(counted):
    """None from a template, or no id from a function: any write below the root drops it."""
    template = counted.tool("template", "order:{id}")
    function = counted.tool("function", tags_from("order", lambda arguments: []))
    reads = [lambda: template(None), function]
    await counted.rerun(*reads)
    assert await counted.rerun(*reads) == [False, False]
    await invalidate("order:7")
    assert await counted.rerun(*reads) == [True, True]


@pytest.mark.parametrize(
    "resource", ["order:{id}", tags_from("order", lambda arguments: [])], ids=["template", "function"]
)
async def test_a_write_without_an_id_has_touched_no_entity(counted, resource):
    """The list of all goes, each single order stays: nothing below the root was named."""
    listing, order, nobody = (counted.tool(name, tag) for name, tag in LISTED.items())
    reads = [listing, lambda: order("7"), lambda: nobody(None)]
    await counted.rerun(*reads)
    await writer(resource)(None)
    assert await counted.rerun(*reads) == [True, False, True]


async def test_a_call_or_a_tool_can_be_forgotten_by_hand(counted):
    """`invalidate` of a call says whether there was an answer, `clear` of a tool how many there were."""
    order, other = counted.tool("order", "order"), counted.tool("other", "order")
    for id in ("1", "2", "3"):
        await order(id)
    await other("1")
    assert await order.invalidate("1") is True
    assert await order.invalidate(id="1") is False
    assert order.clear() == 2
    assert order.clear() == 0
    assert await counted.rerun(lambda: order("2"), lambda: other("1")) == [True, False]


async def test_single_entries_that_a_lost_write_named_are_in_doubt(counted, clock):
    """What `key_fn` names is held like what tags name: for the five seconds of doubt, and the call beside it is not."""
    order, gate = counted.tool("order", "order"), Gate()

    @AgentCacheInvalidator("order", clear_all=False, key_fn=lambda args, kwargs: order.cache_key(*args))
    async def change(id: str) -> None:
        await gate()

    await cancelled(await started(change("7")))
    reads = [lambda: order("7"), lambda: order("8")]
    assert await counted.rerun(*reads) == [True, True]
    assert await counted.rerun(*reads) == [True, False]
    clock.advance(5.1)
    assert await counted.rerun(*reads) == [True, False]
    assert await counted.rerun(*reads) == [False, False]


# Sessions


async def test_a_session_scoped_write_outside_of_a_session_just_runs(counted):
    """There is no session to limit it to: it touches nothing."""
    ours = counted.tool("ours", "order")
    await ours()
    await writer("order", scope="session")()
    assert await counted.rerun(ours) == [False]


async def test_many_dropped_entries_are_freed_all_of_them():
    freed: list[int] = []

    class Answer(str):
        def __del__(self) -> None:
            freed.append(1)

    @AgentCache("many:{id}", maxsize=None, copy="never", name="many")
    async def get(id: int) -> Answer:
        return Answer("answer")

    for number in range(5_000):
        await get(number)
    assert get.clear() == 5_000
    assert len(freed) == 5_000
    assert await get(0) == "answer"
    assert len(freed) == 5_000, "the new entry is kept"


async def test_who_reads_after_a_refresh_gets_nothing_older_though_another_refresh_runs():
    gate = Gate()

    @AgentCache("order")
    async def get() -> Any:
        return await gate()

    async def refreshed() -> Any:
        return await get.fresh()

    old = await started(get())
    gate.last.returns("old")
    assert await old == "old"
    first, second = await started(refreshed()), await started(refreshed())
    gate.calls[1].returns("new")
    assert await first == "new"
    read = await started(get())
    gate.last.returns("newest")
    assert await second == "newest"
    assert await read == "newest"
