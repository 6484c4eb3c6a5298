# ruff: noqa: D102 - the names of tests say what they are
"""The contract of backends, for whoever writes one: most promises of `agent_cache.remote.Backend` are tests.

Subclass `BackendContract` in a test module, and define `make_backends`: ``docs/how-to/write-a-backend.md`` shows it.
The tests are plain functions, for pytest without any plugin: each runs an event loop of its own. A backend that keeps
them makes a coherent tier: ``VersionedTier(YourBackend(...))``, which the last tests try.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Final

from agent_cache.remote.backend import ARMED, HELD, IDLE, Backend, Head
from agent_cache.remote.cells import EVERYTHING, STORE, Cell
from agent_cache.remote.protocol import Request, WriteIntent
from agent_cache.remote.versioned import VersionedTier

__all__ = ["BackendContract", "FlakyBackend"]

ORDER: Final = ("order:S", "order:D", "order::7")
LEASE: Final = 60.0
MODES: Final = f"these are modes: {IDLE=}, {ARMED=}, {HELD=}"
HEADLESS: Final = "the value was not found, or `open_head` gave None: is each version in it an int or a str?"

_numbers = itertools.count(1)

Test = Callable[[Any, Backend, Backend], Awaitable[None]]


def _with_two(test: Test) -> Callable[[Any], None]:
    """A test that is given two clients of an empty store, in an event loop of its own."""

    @wraps(test)
    def run(self: BackendContract) -> None:
        async def both() -> None:
            one, other = await self.make_backends()
            try:
                await test(self, one, other)
            finally:
                await one.aclose()
                await other.aclose()

        asyncio.run(both())

    del run.__wrapped__  # or pytest would ask for fixtures of these names
    return run


async def states(backend: Backend, *cells: Cell) -> dict[Cell, tuple[Any, int]]:
    """The states of some cells."""
    found = (await backend.read((*cells, STORE), None)).states
    assert found.keys() >= {*cells, STORE}, "`read` gives a state of each cell, unknown ones and `#` included"
    return {cell: found[cell] for cell in cells}


async def changed(backend: Backend, cells: Collection[Cell], by: Awaitable[object]) -> set[Cell]:
    """The cells that have another version after something."""
    before = await states(backend, *cells)
    await by
    after = await states(backend, *cells)
    return {cell for cell in cells if after[cell][0] != before[cell][0]}


async def stored(backend: Backend, address: Cell, payload: bytes, *cells: Cell, keep: float | None = 1000.0) -> None:
    """Store a value under the present versions."""
    seen = await backend.read((*cells, STORE), None)
    versions = {cell: seen.states[cell][0] for cell in (*cells, STORE)}
    head = Head(versions, seen.now, keep, 0.0, 0.1, "shop:get_order")
    await backend.put(address, head.encode(), payload, keep=keep)


class BackendContract:
    """The promises of a `Backend`, as tests."""

    async def make_backends(self) -> tuple[Backend, Backend]:
        """Make two clients of one empty store, which stand for two processes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_backends()")

    async def advance(self, seconds: float) -> None:
        """Let time pass for the store: leases, holds and values end. Override it, or tests take as long."""
        await asyncio.sleep(seconds)

    # Versions

    @_with_two
    async def test_a_cell_has_one_version_until_a_step_changes_it(self, one: Backend, other: Backend) -> None:
        assert await states(one, *ORDER) == await states(other, *ORDER) == await states(one, *ORDER)

    @_with_two
    async def test_a_step_changes_what_it_names_and_nothing_else(self, one: Backend, other: Backend) -> None:
        committed = one.commit("w", ("order:D", "order::7"), 0.0, b"")
        assert await changed(other, (*ORDER, "user:D"), committed) == {"order:D", "order::7"}

    @_with_two
    async def test_a_begin_changes_and_holds_cells_and_arms_others(self, one: Backend, other: Backend) -> None:
        began = one.begin("w", ("order::7",), ("order:S", "order:D"), LEASE, b"")
        assert await changed(other, ORDER, began) == {"order::7"}
        assert [mode for _, mode in (await states(other, *ORDER)).values()] == [ARMED, ARMED, HELD], MODES
        assert await changed(other, ORDER, one.commit("w", ("order::7",), 0.0, b"")) == {"order::7"}
        assert [mode for _, mode in (await states(other, *ORDER)).values()] == [IDLE] * 3, MODES

    @_with_two
    async def test_writers_are_known_by_name_and_not_by_number(self, one: Backend, other: Backend) -> None:
        """A begin that is repeated is one, and a commit that is does not end the hold of another one."""
        for writer in ("first", "second", "first"):
            await one.begin(writer, ("order::7",), (), LEASE, b"")
        for _ in range(2):
            await one.commit("first", ("order::7",), 0.0, b"")
        assert (await states(other, "order::7"))["order::7"][1] == HELD, MODES
        await one.commit("second", ("order::7",), 0.0, b"")
        assert (await states(other, "order::7"))["order::7"][1] == IDLE, MODES

    @_with_two
    async def test_of_two_writers_of_a_cell_the_stronger_mode_counts(self, one: Backend, other: Backend) -> None:
        for writer, held, armed in (("first", (), ORDER), ("second", ORDER, ()), ("third", (), ORDER)):
            await one.begin(writer, held, armed, LEASE, b"")
        assert [mode for _, mode in (await states(other, *ORDER)).values()] == [HELD] * 3, MODES
        await one.commit("second", (), 0.0, b"")
        assert [mode for _, mode in (await states(other, *ORDER)).values()] == [ARMED] * 3, MODES

    @_with_two
    async def test_a_writer_whose_lease_passes_has_changed_all_that_it_held_and_armed(
        self, one: Backend, other: Backend
    ) -> None:
        await one.begin("w", ("order::7",), ("order:S", "order:D"), 2.0, b"")
        assert await changed(other, ORDER, self.advance(3.0)) == set(ORDER)
        assert [mode for _, mode in (await states(other, *ORDER)).values()] == [IDLE] * 3, MODES

    @_with_two
    async def test_a_step_first_ends_the_writers_whose_lease_has_passed(self, one: Backend, other: Backend) -> None:
        steps: list[Callable[[], Awaitable[object]]] = [
            lambda: one.begin("v", ("order::8",), (), LEASE, b"later"),
            lambda: one.commit("v", ("order::8",), 0.0, b"later"),
            lambda: one.set_ttl("shop:get_order", 12.5, b"later"),
            one.clear,
            lambda: one.begin("w", ("order::7",), (), LEASE, b"later", renew=True),
        ]
        for step in steps:
            start = await other.begin("w", ("order::7",), (), 0.5, b"")
            await self.advance(1.0)
            await step()
            messages = (await other.feed(start)).messages or ()
            assert [bool(message) for _, message in messages] == [False, True], "the end of the writer comes first"

    @_with_two
    async def test_a_renewal_lets_the_lease_begin_anew(self, one: Backend, other: Backend) -> None:
        start = await one.begin("w", ("order::7",), (), 4.0, b"")
        for _ in range(3):
            await self.advance(2.0)
            assert await changed(other, ORDER, one.begin("w", ("order::7",), (), 4.0, b"", renew=True)) == set()
        assert (await states(other, "order::7"))["order::7"][1] == HELD, MODES
        assert await one.begin("w", ("order::7",), (), 4.0, b"", renew=True) == 0
        assert (await other.feed(None)).number == start, "a renewal is no step"

    @_with_two
    async def test_a_renewal_of_an_unknown_writer_begins_it(self, one: Backend, other: Backend) -> None:
        """The store may have lost it."""
        assert await changed(other, ORDER, one.begin("w", ("order::7",), (), LEASE, b"", renew=True)) == {"order::7"}
        assert (await states(other, "order::7"))["order::7"][1] == HELD, MODES

    @_with_two
    async def test_a_commit_may_hold_what_it_has_changed_for_a_time(self, one: Backend, other: Backend) -> None:
        await one.begin("w", ("order::7",), (), LEASE, b"")
        await one.commit("w", ("order::7",), 2.0, b"")
        assert (await states(other, "order::7"))["order::7"][1] == HELD, MODES
        assert await changed(other, ORDER, self.advance(3.0)) == {"order::7"}
        assert (await states(other, "order::7"))["order::7"][1] == IDLE, MODES

    @_with_two
    async def test_many_cells_are_read_at_once(self, one: Backend, other: Backend) -> None:
        cells = [f"order::{number}" for number in range(1_500)]
        await one.commit("w", cells, 0.0, b"")
        found = await states(other, *cells)
        assert len(found) == 1_500
        assert len({version for version, _ in found.values()}) == 1

    # Values

    @_with_two
    async def test_a_value_is_read_with_the_cells_in_its_head(self, one: Backend, other: Backend) -> None:
        """It has taken the place of an earlier one."""
        for payload in (b"old", b"payload \n\0"):
            await stored(one, "@1", payload, *ORDER)
        reading = await other.read(("order::7", STORE), "@1")
        assert reading.head is not None, HEADLESS
        assert reading.payload == b"payload \n\0"
        assert reading.head.encode() == reading.raw_head
        assert reading.states.keys() >= {*ORDER, STORE}
        assert {cell: reading.states[cell][0] for cell in reading.head.versions} == reading.head.versions

    @_with_two
    async def test_a_value_ends_if_it_has_an_end(self, one: Backend, other: Backend) -> None:
        assert (await other.read(ORDER, "@1")).head is None
        await stored(one, "@1", b"payload", *ORDER, keep=2.0)
        await stored(one, "@2", b"payload", *ORDER, keep=None)
        assert (await other.read(ORDER, "@1")).head is not None, HEADLESS
        await self.advance(3.0)
        assert (await other.read(ORDER, "@1")).head is None, "a value is found after its `keep`"
        assert (await other.read(ORDER, "@2")).head is not None, HEADLESS

    @_with_two
    async def test_clearing_drops_values_and_changes_everything(self, one: Backend, other: Backend) -> None:
        for address in ("@1", "@2"):
            await stored(one, address, b"payload", *ORDER, EVERYTHING)
        before = await states(other, EVERYTHING)
        assert [await one.clear(), await other.clear()] == [2, 0], "it says how many values there were"
        assert await states(other, EVERYTHING) != before
        reading = await other.read((*ORDER, EVERYTHING), "@1")
        assert reading.head is None or reading.head.versions[EVERYTHING] != reading.states[EVERYTHING][0]

    @_with_two
    async def test_the_clock_of_the_store_goes_forward(self, one: Backend, other: Backend) -> None:
        before = (await one.read(ORDER, None)).now
        await self.advance(0.1)
        assert (await other.read(ORDER, None)).now > before

    @_with_two
    async def test_an_operation_may_come_from_another_thread(self, one: Backend, other: Backend) -> None:
        """With an event loop of its own, as for `def` tools, while this one stands still."""
        before = await states(one, "order::7")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, asyncio.wait_for(one.commit("w", ("order::7",), 0.0, b""), LEASE)).result()
            after = thread.submit(asyncio.run, asyncio.wait_for(states(one, "order::7"), LEASE)).result()
        assert before != after == await states(other, "order::7")
        assert await changed(one, ORDER, one.commit("w", ("order::7",), 0.0, b"")) == {"order::7"}

    # The feed

    @_with_two
    async def test_the_feed_has_each_step_in_order(self, one: Backend, other: Backend) -> None:
        start = await other.feed(None)
        numbers = [await one.commit("w", ("order::7",), 0.0, message) for message in (b"first", b"second")]
        numbers.append(await other.begin("v", ("order::8",), (), LEASE, b"third"))
        news = await other.feed(start.number)
        told = [(number, message) for number, message in news.messages or () if message]
        assert told == list(zip(numbers, (b"first", b"second", b"third"), strict=True))
        assert (news.store, news.number) == (start.store, numbers[-1])
        store = (await one.read((STORE,), None)).states[STORE][0]
        assert str(store) == news.store, "the state of `#` is `News.store`, or values of a lost store may be found"
        assert (await one.feed(news.number)).messages in ([], ())
        first = await other.feed(None)
        assert (first.number, bool(first.messages)) == (news.number, False), "a first look gives the number alone"

    @_with_two
    async def test_a_number_that_was_never_reached_is_a_loss(self, one: Backend, other: Backend) -> None:
        """The store was emptied, or is an older copy."""
        number = await one.commit("w", ("order::7",), 0.0, b"message")
        assert (await other.feed(number + 1_000)).messages is None

    # Claims and ttls

    @_with_two
    async def test_of_two_that_claim_a_name_one_has_it(self, one: Backend, other: Backend) -> None:
        assert await one.claim("load", "me", LEASE) == "me"
        assert await other.claim("load", "you", LEASE) == "me"
        assert await other.claim("another", "you", LEASE) == "you"
        await other.claim("load", "you", 0.0)
        assert await other.claim("load", "you", LEASE) == "me"
        await one.claim("load", "me", 0.0)
        assert await other.claim("load", "you", LEASE) == "you"

    @_with_two
    async def test_a_claim_ends(self, one: Backend, other: Backend) -> None:
        await one.claim("load", "me", 4.0)
        await self.advance(3.0)
        assert await other.claim("load", "you", LEASE) == "me"
        await self.advance(3.0)
        assert await other.claim("load", "you", LEASE) == "you"

    @_with_two
    async def test_ttls_are_set_and_taken_back_and_told(self, one: Backend, other: Backend) -> None:
        start = (await other.feed(None)).number
        await one.set_ttl("shop:get_order", 12.5, b"ttls")
        assert await other.ttls() == {"shop:get_order": 12.5}
        assert [message for _, message in (await other.feed(start)).messages or ()] == [b"ttls"]
        await other.set_ttl("shop:get_order", None, b"ttls")
        assert await one.ttls() == {}

    # As a tier

    @_with_two
    async def test_a_tier_over_it_finds_what_others_have_stored_until_it_is_written(
        self, one: Backend, other: Backend
    ) -> None:
        a, b = _tiers(one, other)
        await _load(a, "old")
        assert await _value(b) == "old", f"not what the other tier has stored: {b.stats()}"
        write = WriteIntent(f"w{next(_numbers)}", ("order:7",))
        await b.begin(write)
        assert await _value(a) is None, "a write has begun since: the cells in the head are HELD, or have changed"
        await b.commit(write, ("order:7",), failed=False, hold=0.0)
        assert await _value(a) is None, "a write has begun since: the cells in the head are HELD, or have changed"
        await _load(a, "new")
        assert await _value(b) == "new", f"not what the other tier has stored: {b.stats()}"

    @_with_two
    async def test_a_tier_over_it_never_finds_what_a_write_has_overtaken(self, one: Backend, other: Backend) -> None:
        for late in ((), ("order",)):
            a, b = _tiers(one, other)
            _, ticket = await a.lookup(_request(late))
            write = WriteIntent(f"w{next(_numbers)}", ("order:7",))
            await b.begin(write)
            await b.commit(write, ("order:7",), failed=False, hold=0.0)
            await a.store(ticket, "old", ("order:7",), 0.1, age=0.0)
            assert await _value(b, late) is None

    @_with_two
    async def test_a_tier_over_it_tells_others_of_each_write_and_of_a_clear(self, one: Backend, other: Backend) -> None:
        a, b = _tiers(one, other)
        heard: list[str] = []
        b.subscribe(lambda touched: heard.extend(("everything",) if touched is None else touched.tags))
        await b.caught_up()
        write = WriteIntent(f"w{next(_numbers)}", ("order:7",))
        await a.begin(write)
        await a.commit(write, ("order:7",), failed=False, hold=0.0)
        await a.clear()
        await b.caught_up()
        assert heard == ["order:7", "order:7", "everything"]


def _tiers(one: Backend, other: Backend) -> tuple[VersionedTier, VersionedTier]:
    """Two tiers without threads of their own, which would come between the steps of a test."""
    tiers = VersionedTier(one), VersionedTier(other)
    for tier in tiers:
        tier.keeper = None
    return tiers


def _request(late: Iterable[str] = ()) -> Request:
    tags = () if late else ("order:7",)
    return Request("shop:get_order", ("7",), (("id", "7"),), tags, tuple(late), None, None, None, str)


async def _load(tier: VersionedTier, value: str) -> None:
    _, ticket = await tier.lookup(_request())
    await tier.store(ticket, value, ("order:7",), 0.1, age=0.0)


async def _value(tier: VersionedTier, late: Iterable[str] = ()) -> object:
    found, _ = await tier.lookup(_request(late))
    return None if found is None else found.value


class FlakyBackend:
    """Wraps a backend and lets its operations fail, as a server or a disk does.

    Attributes:
        faults: asked before each operation with its name: True lets it fail before it has done anything, ``"after"``
            when it has done all. By default nothing fails.

    Example: ``backend.faults = lambda name: name == "commit"``, or ``next`` of booleans that Hypothesis draws.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.faults: Callable[[str], bool | str] = lambda _: False

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.backend, name)
        if name not in _OPERATIONS:
            return operation

        async def flaky(*arguments: Any, **options: Any) -> Any:
            fault = self.faults(name)
            if fault is True:
                raise ConnectionError("injected")
            outcome = await operation(*arguments, **options)
            if fault:
                raise ConnectionError("injected after it was done")
            return outcome

        return flaky


_OPERATIONS: Final = frozenset(vars(Backend)) - frozenset(vars(object))
