"""P3: concurrent identical reads run the tool once, and nobody's cancellation is anybody else's business."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession
from agent_cache.core.store import Store
from agent_cache.engine.flight import Flight
from tests.harness.gates import Gate, cancelled, expire, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Broken(Exception):
    """What a tool raises."""


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def get_order(gate: Gate):
    @AgentCache("order:{order_id}")
    async def get_order(order_id: int) -> str:
        return await gate(order_id)

    return get_order


async def test_callers_of_one_call_share_one_run(gate, get_order):
    """Ten callers, one execution, ten answers; and then a hit."""
    callers = [await started(get_order(1)) for _ in range(10)]
    assert len(gate.calls) == 1
    gate.last.returns("one")
    assert await asyncio.gather(*callers) == ["one"] * 10
    assert await get_order(1) == "one"
    assert len(gate.calls) == 1


@pytest.mark.parametrize("first", ["the leader", "the waiters"])
async def test_when_all_are_cancelled_at_once_the_tool_is_cancelled_once(first, gate, get_order):
    """Nobody is left to take over, so nothing runs again; the next reader starts afresh."""
    callers = [await started(get_order(1)) for _ in range(4)]
    for caller in callers if first == "the leader" else callers[::-1]:
        caller.cancel()
    await idle()
    assert all(caller.cancelled() for caller in callers)
    assert [held.cancelled for held in gate.calls] == [1]
    afresh = await started(get_order(1))
    gate.last.returns("afresh")
    assert await afresh == "afresh"


async def test_when_the_last_caller_is_cancelled_the_tool_is_cancelled(gate, get_order):
    """Waiters first, the leader last: it alone carried the run."""
    leader, *waiters = [await started(get_order(1)) for _ in range(3)]
    for waiter in waiters:
        await cancelled(waiter)
    assert gate.last.cancelled == 0
    await cancelled(leader)
    assert [held.cancelled for held in gate.calls] == [1]


async def test_a_timeout_around_the_leader_is_its_own_alone(gate, get_order):
    """It gets a TimeoutError, the waiter the answer of a second run."""
    timeout = asyncio.timeout(None)

    async def impatient() -> str:
        async with timeout:
            return await get_order(1)

    leader, waiter = await started(impatient()), await started(get_order(1))
    await expire(timeout)
    with pytest.raises(TimeoutError):
        await leader
    gate.last.returns("second run")
    assert await waiter == "second run"
    assert [held.cancelled for held in gate.calls] == [1, 0]


async def test_a_timeout_around_a_waiter_is_its_own_alone(gate, get_order):
    """It gets a TimeoutError, the leader runs on undisturbed."""
    timeout = asyncio.timeout(None)

    async def impatient() -> str:
        async with timeout:
            return await get_order(1)

    leader, waiter = await started(get_order(1)), await started(impatient())
    await expire(timeout)
    with pytest.raises(TimeoutError):
        await waiter
    gate.last.returns("one")
    assert await leader == "one"
    assert [held.cancelled for held in gate.calls] == [0]


async def test_a_timeout_inside_the_tool_reaches_every_caller(gate):
    """An error of the tool is an error of all who waited for it."""
    timeout = asyncio.timeout(None)

    @AgentCache("order")
    async def list_orders() -> str:
        async with timeout:
            return await gate()

    callers = [await started(list_orders()) for _ in range(3)]
    await expire(timeout)
    assert [type(outcome) for outcome in await asyncio.gather(*callers, return_exceptions=True)] == [TimeoutError] * 3
    assert len(gate.calls) == 1


async def test_an_error_reaches_every_caller_and_is_not_kept(gate, get_order):
    """All get the very exception; the next call runs the tool again."""
    callers = [await started(get_order(1)) for _ in range(3)]
    error = Broken("no such order")
    gate.last.raises(error)
    assert await asyncio.gather(*callers, return_exceptions=True) == [error] * 3
    again = await started(get_order(1))
    assert len(gate.calls) == 2
    gate.last.returns("there now")
    assert await again == "there now"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen(Exception):
    """Refuses to have any attribute set, its context and traceback included."""

    reason: str


class Sealed(Exception):
    """Refuses the same by methods of its own."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def with_traceback(self, traceback: TracebackType | None) -> Sealed:
        raise AttributeError("with_traceback")


@pytest.mark.parametrize("where", ["outside", "in a session", "in another load"])
@pytest.mark.parametrize("error", [Frozen("no"), Sealed("no")], ids=repr)
async def test_an_error_that_refuses_changes_reaches_every_caller_unchanged(error, where, gate, get_order):
    """What a tool raises is what each of its callers gets, also while it handles an error of its own."""

    async def caller() -> str:
        try:
            raise LookupError("an error of this caller's")
        except LookupError:
            return await get_order(1)

    async def in_session() -> str:
        async with AgentCacheSession():
            return await caller()

    @AgentCache("report:{number}")
    async def report(number: int) -> str:
        return await caller()

    forms = {"outside": lambda _: caller(), "in a session": lambda _: in_session(), "in another load": report}
    callers = [await started(forms[where](number)) for number in range(3)]
    gate.last.raises(error)
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [one is error for one in found] == [True] * 3
    assert len(gate.calls) == 1


async def test_an_error_that_nobody_waits_for_any_more_is_nobodys_complaint(gate, get_order):
    """A flight whose waiters have all gone ends without "exception was never retrieved"."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: complaints.append(report["message"]))
    leader, waiter = await started(get_order(1)), await started(get_order(1))
    gate.last.raises(Broken())
    waiter.cancel()
    await asyncio.gather(leader, waiter, return_exceptions=True)
    del leader, waiter
    await idle()
    gc.collect()
    assert complaints == []


async def test_a_tool_that_cancels_itself_hangs_nobody(gate):
    """A CancelledError of the tool's own, as from an inner task, ends its caller; each waiter runs the tool itself."""

    @AgentCache("order")
    async def list_orders() -> str:
        await gate()
        raise asyncio.CancelledError

    callers = [await started(list_orders()) for _ in range(3)]
    for _ in callers:
        gate.running[0].returns(None)
        await idle()
    assert all(caller.cancelled() for caller in callers)
    assert len(gate.calls) == 3


async def test_a_task_group_that_fails_takes_only_its_own_callers_along(gate, get_order):
    """The leader in the group is cancelled; the waiter outside takes over."""

    async def fail() -> None:
        await idle()
        raise Broken

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(get_order(1))
            tasks.create_task(get_order(1))
            tasks.create_task(fail())

    grouped = asyncio.ensure_future(group())
    await asyncio.sleep(0)
    waiter = await started(get_order(1))
    with pytest.raises(ExceptionGroup):
        await grouped
    await idle()
    assert [held.cancelled for held in gate.calls] == [1, 0]
    gate.last.returns("second run")
    assert await waiter == "second run"


async def test_an_error_in_a_task_group_is_the_tools_own(gate, get_order):
    """Two callers of one call in a group: the group shows the tool's error, once for each that it hit."""

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(get_order(1))
            tasks.create_task(get_order(1))

    grouped = await started(group())
    gate.last.raises(Broken())
    with pytest.raises(ExceptionGroup) as raised:
        await grouped
    assert {type(error) for error in raised.value.exceptions} == {Broken}


async def test_a_leader_whose_coroutine_is_closed_hands_over(gate, get_order):
    """Closing is how an abandoned call ends; whoever waits for it takes over."""
    leader = get_order(1)
    leader.send(None)
    waiter = await started(get_order(1))
    leader.close()
    await idle()
    assert len(gate.running) == 1
    gate.last.returns("second run")
    assert await waiter == "second run"


async def test_the_flight_that_was_handed_over_runs_in_its_new_leaders_context(gate):
    """The tool sees the context variables of whoever runs it."""
    seen = []

    @AgentCache("order")
    async def list_orders() -> str:
        seen.append(asyncio.current_task())
        return await gate()

    leader, waiter = await started(list_orders()), await started(list_orders())
    await cancelled(leader)
    gate.last.returns("second run")
    await waiter
    assert seen == [leader, waiter]


@pytest.mark.parametrize("order", ["last first", "first first", "the leader each time"])
async def test_a_waiter_that_leaves_is_found_without_a_search(order):
    """2,000 waiters of one flight go one by one, and none of them is compared with another."""
    comparisons = 0

    class Waiter(asyncio.Future[Any]):
        """A future that counts what it is compared with."""

        __hash__ = asyncio.Future.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return self is other

    loop = asyncio.get_running_loop()
    flight = Flight(Store(None, None), ("key", loop), (), ())
    with futures_of_class(loop, Waiter):
        waiters = [flight.join() for _ in range(2_000)]
    for waiter in reversed(waiters) if order == "last first" else waiters:
        if order == "the leader each time":
            flight.hand_over()
        else:
            waiter.cancel()
        flight.leave(waiter)
    assert comparisons == 0
    assert not flight.waiters
    flight.land(None)


@contextmanager
def futures_of_class(loop: asyncio.AbstractEventLoop, kind: type[asyncio.Future[Any]]) -> Iterator[None]:
    """Let `create_future` of a loop make futures of this class."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_future", lambda: kind(loop=loop))
        yield
