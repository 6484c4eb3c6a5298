"""How far an invalidation reaches: up and down the tags, across scopes, sessions and tenants, and no further."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, invalidate, tags_from
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


async def test_ids_are_compared_by_their_text(counted):
    """7 and "7" are one order; 07 is another."""
    order = counted.tool("order", "order:{id}")
    reads = [lambda: order(7), lambda: order("7"), lambda: order("07")]
    await counted.rerun(*reads)
    await writer("order:{id}")(7)
    assert await counted.rerun(*reads) == [True, True, False]


async def test_an_id_with_a_colon_in_it_is_one_segment(counted):
    """Writing order "a" does not touch order "a:b", which lies beside it and not below."""
    order = counted.tool("order", "order:{id}")
    reads = [lambda: order("a"), lambda: order("a:b"), lambda: order("a%3Ab")]
    write = writer("order:{id}")
    await counted.rerun(*reads)
    await write("a")
    assert await counted.rerun(*reads) == [True, False, False]
    await write("a:b")
    assert await counted.rerun(*reads) == [False, True, False]
    await invalidate(("order", "a%3Ab"))
    assert await counted.rerun(*reads) == [False, False, True]


async def test_a_read_of_several_tags_goes_with_any_of_them(counted):
    """A cart of a user: the user, the cart, or all carts."""
    cart = counted.tool("cart", ["user:{id}", "cart"])
    for tag in ("user:7", "cart", "user", "cart:anything"):
        await cart("7")
        await invalidate(tag)
        assert await counted.rerun(lambda: cart("7")) == [True], tag
    await invalidate("user:8")
    assert await counted.rerun(lambda: cart("7")) == [False]


async def test_a_write_of_several_tags_drops_under_each(counted):
    """Cancelling an order touches the order and the cart."""
    order, cart, bill = (counted.tool(name, name + ":{id}") for name in ("order", "cart", "bill"))
    reads = [lambda: order("7"), lambda: cart("7"), lambda: bill("7")]
    await counted.rerun(*reads)
    await writer(["order:{id}", "cart"])("7")
    assert await counted.rerun(*reads) == [True, True, False]


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


async def test_entries_stay_within_reach_when_others_are_evicted(counted):
    """An eviction takes an entry out of the index of tags, and no other with it."""
    order = counted.tool("order", "order:{id}", maxsize=2)
    await counted.rerun(*(lambda id=id: order(id) for id in ("1", "2", "3")))
    assert await counted.rerun(lambda: order("2"), lambda: order("3")) == [False, False]
    await invalidate("order:2")
    assert await counted.rerun(lambda: order("3"), lambda: order("2")) == [False, True]


async def test_two_tools_of_one_root_are_both_reached(counted):
    """Each keeps its own entries, with its own size; a write reaches all."""
    small, large = counted.tool("small", "order:{id}", maxsize=1), counted.tool("large", "order:{id}", maxsize=100)
    reads = [lambda: small("7"), lambda: large("7"), lambda: large("8")]
    await counted.rerun(*reads)
    await writer("order:{id}")("7")
    assert await counted.rerun(*reads) == [True, True, False]


async def test_single_entries_can_be_named_by_their_key(counted):
    """`clear_all=False, key_fn=...` drops just these calls, and spoils loads of them that are under way."""
    gate = Gate()
    order, other = counted.tool("order", "order"), counted.tool("other", "order")

    @AgentCache("order")
    async def slow(id: str) -> str:
        return await gate()

    write = writer(
        "order",
        clear_all=False,
        key_fn=lambda args, kwargs: [order.cache_key(args[0]), other.cache_key(id=args[0]), slow.cache_key(args[0])],
    )
    reads = [lambda tool=tool, id=id: tool(id) for tool in (order, other) for id in ("7", "8")]
    await counted.rerun(*reads)
    loads = [await started(slow(id)) for id in ("7", "8")]
    await write("7")
    assert await counted.rerun(*reads) == [True, False, True, False]
    for held in gate.calls:
        held.returns("old")
    await asyncio.gather(*loads)
    again = [await started(slow(id)) for id in ("7", "8")]
    assert len(gate.calls) == 3
    gate.last.returns("new")
    assert await asyncio.gather(*again) == ["new", "old"]


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


@pytest.mark.parametrize("how", ["invalidate", "clear"])
async def test_what_is_forgotten_while_it_is_loaded_is_not_kept(how):
    """A load under way belongs to what was forgotten: nobody joins it, nobody is given it later."""
    gate = Gate()

    @AgentCache("order")
    async def order(id: str) -> str:
        return await gate()

    early = await started(order("7"))
    assert not (await order.invalidate("7") if how == "invalidate" else order.clear())
    late = await started(order("7"))
    assert len(gate.calls) == 2
    gate.calls[1].returns("new")
    assert await late == "new"
    gate.calls[0].returns("old")
    assert await early == "old"
    assert await order("7") == "new"


async def test_a_refresh_runs_the_tool_and_replaces_what_was_kept(counted):
    """Whatever is cached, and whatever is being loaded: who asks later gets what was loaded last."""
    order = counted.tool("order", "order")
    assert (await order("7"), await order.refresh("7"), await order.fresh("7"), await order("7")) == (1, 2, 3, 3)


async def test_a_load_from_before_a_refresh_does_not_replace_it():
    """The older answer arrives later, is returned to its caller, and is not kept."""
    gate = Gate()

    @AgentCache("order")
    async def order(id: str) -> str:
        return await gate()

    early, fresh = await started(order("7")), await started(order.refresh("7"))
    gate.calls[1].returns("new")
    assert await fresh == "new"
    gate.calls[0].returns("old")
    assert await early == "old"
    assert await order("7") == "new"


# Sessions


async def test_a_global_write_reaches_every_session_and_tenant(counted):
    """Wherever it runs: in no session, in one of them, or in that of another tenant."""
    mine, all_ours = counted.tool("mine", "order:{id}", scope="session"), counted.tool("ours", "order:{id}")
    write = writer("order:{id}")
    reads = [lambda: mine("7"), lambda: all_ours("7"), lambda: mine("8")]
    outside = copy_context()
    async with AgentCacheSession(loop_detection=False, tenant="a"):
        for elsewhere in (None, "b"):
            await counted.rerun(*reads)
            async with AgentCacheSession(loop_detection=False, tenant=elsewhere):
                await write("7")
            assert await counted.rerun(*reads) == [True, True, False]
        await counted.rerun(*reads)
        await asyncio.get_running_loop().create_task(write("7"), context=outside)
        assert await counted.rerun(*reads) == [True, True, False]


async def test_tenants_do_not_see_each_others_answers(counted):
    """One entry a tenant, and none for those without."""
    ours = counted.tool("ours", "order")
    for tenant, answer in (("a", 1), ("b", 2), (None, 3), ("a", 1), ("b", 2), (None, 3)):
        async with AgentCacheSession(loop_detection=False, tenant=tenant):
            assert await ours("7") == answer


async def test_a_session_scoped_write_reaches_the_whole_chain_of_sessions_around_it(counted):
    """From the innermost of three: all three lose their answer."""
    mine = counted.tool("mine", "order:{id}", scope="session")
    write = writer("order:{id}", scope="session")

    async def ran() -> bool:
        return (await counted.rerun(lambda: mine("7")))[0]

    async with AgentCacheSession(loop_detection=False):
        assert await ran()
        async with AgentCacheSession(loop_detection=False):
            assert await ran()
            async with AgentCacheSession(loop_detection=False):
                assert await ran()
                await write("7")
                assert await ran()
            assert await ran()
        assert await ran()
        assert not await ran()


async def test_a_session_scoped_write_reaches_no_other_session_and_nothing_global(counted):
    """Not the session beside it, not what is shared by all."""
    mine, ours = counted.tool("mine", "order", scope="session"), counted.tool("ours", "order")
    write = writer("order", scope="session")
    go_on = asyncio.Event()

    async def beside() -> list[bool]:
        async with AgentCacheSession(loop_detection=False):
            await mine()
            await go_on.wait()
            return await counted.rerun(mine)

    neighbour = await started(beside())
    await ours()
    async with AgentCacheSession(loop_detection=False):
        await mine()
        await write()
        assert await counted.rerun(mine, ours) == [True, False]
    go_on.set()
    assert await neighbour == [False]


async def test_a_session_scoped_write_spoils_the_loads_of_its_chain_and_no_other():
    """A load under way in the outer session is not kept; the global one is."""
    gates = {"mine": Gate(), "ours": Gate()}

    @AgentCache("order", scope="session")
    async def mine() -> str:
        return await gates["mine"]()

    @AgentCache("order")
    async def ours() -> str:
        return await gates["ours"]()

    write = writer("order", scope="session")
    async with AgentCacheSession(loop_detection=False):
        loads = [await started(mine()), await started(ours())]
        async with AgentCacheSession(loop_detection=False):
            await write()
        for gate in gates.values():
            gate.last.returns("old")
        await asyncio.gather(*loads)
        again = await started(mine())
        gates["mine"].last.returns("new")
        assert (await again, await ours()) == ("new", "old")


async def test_a_session_scoped_write_outside_of_a_session_just_runs(counted):
    """There is no session to limit it to: it touches nothing."""
    ours = counted.tool("ours", "order")
    await ours()
    await writer("order", scope="session")()
    assert await counted.rerun(ours) == [False]


async def test_a_session_that_is_entered_again_starts_empty(counted):
    """Same session, same id, no answers from the first time."""
    mine = counted.tool("mine", "order", scope="session")
    session = AgentCacheSession(loop_detection=False)
    for _ in range(2):
        async with session:
            assert await counted.rerun(mine, mine) == [True, False]


async def test_a_load_that_outlives_its_session_is_answered_and_not_kept(counted):
    """The session ends while a task of it still loads; when it is entered again nothing of that is there."""
    gate = Gate()

    @AgentCache("order", scope="session")
    async def mine() -> str:
        return await gate()

    session = AgentCacheSession(loop_detection=False)
    async with session:
        load = await started(mine())
    gate.last.returns("late")
    assert await load == "late"
    async with session:
        again = await started(mine())
        assert len(gate.calls) == 2
        gate.last.returns("new")
        assert await again == "new"


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
