"""P3: concurrent identical reads run the tool once, and nobody's cancellation is anybody else's business."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession
from agent_cache.core.store import Store
from agent_cache.engine.flight import Flight
from tests.harness.gates import Gate, cancelled, expire, idle, started, until

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


async def test_two_calls_with_different_arguments_do_not_wait_for_each_other(gate, get_order):
    """The second call ends while the first still runs."""
    first, second = await started(get_order(1)), await started(get_order(2))
    gate.calls[1].returns("two")
    assert await second == "two"
    assert not first.done()
    gate.calls[0].returns("one")
    assert await first == "one"


async def test_a_waiter_takes_over_when_the_leader_is_cancelled(gate, get_order):
    """The tool runs twice, its first run is cancelled, and every waiter gets the second one's answer."""
    leader, *waiters = [await started(get_order(1)) for _ in range(4)]
    await cancelled(leader)
    assert leader.cancelled()
    assert [held.cancelled for held in gate.calls] == [1, 0]
    gate.last.returns("second run")
    assert await asyncio.gather(*waiters) == ["second run"] * 3
    assert await get_order(1) == "second run"
    assert len(gate.calls) == 2


async def test_leaders_may_be_cancelled_one_after_the_other(gate, get_order):
    """The same flight is handed on as often as it must be."""
    callers = [await started(get_order(1)) for _ in range(5)]
    for caller in callers[:-1]:
        await cancelled(caller)
    assert [held.cancelled for held in gate.calls] == [1, 1, 1, 1, 0]
    gate.last.returns("last")
    assert await callers[-1] == "last"


async def test_a_reader_joins_a_flight_that_was_handed_over(gate, get_order):
    """Who comes after the takeover waits for the second run and does not start a third."""
    leader, waiter = await started(get_order(1)), await started(get_order(1))
    await cancelled(leader)
    late = await started(get_order(1))
    assert len(gate.calls) == 2
    gate.last.returns("shared")
    assert await asyncio.gather(waiter, late) == ["shared", "shared"]


async def test_a_reader_joins_in_the_midst_of_a_takeover(gate, get_order):
    """Who comes when the leader is gone and its successor has not woken up starts no run beside it."""
    leader, waiter = await started(get_order(1)), await started(get_order(1))
    leader.cancel()
    for _ in range(4):
        await asyncio.sleep(0)
        asyncio.ensure_future(get_order(1))
    await idle()
    assert len(gate.running) == 1
    gate.last.returns("shared")
    assert await waiter == "shared"
    await idle()


async def test_a_cancelled_waiter_concerns_nobody_else(gate, get_order):
    """Leader and the other waiters get their answer; the tool is not cancelled."""
    leader, gone, waiter = [await started(get_order(1)) for _ in range(3)]
    await cancelled(gone)
    assert gone.cancelled()
    assert gate.last.cancelled == 0
    gate.last.returns("one")
    assert await asyncio.gather(leader, waiter) == ["one", "one"]
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


@pytest.mark.parametrize("turns", range(5))
async def test_a_waiter_that_is_cancelled_before_it_wakes_passes_the_flight_on(turns, gate, get_order):
    """However many turns lie between the two cancellations, the third caller gets an answer and one run is left."""
    leader, promoted, third = [await started(get_order(1)) for _ in range(3)]
    leader.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    promoted.cancel()
    await idle()
    assert promoted.cancelled()
    assert len(gate.running) == 1
    gate.last.returns("third")
    assert await third == "third"
    assert await get_order(1) == "third"


async def test_a_waiter_that_is_cancelled_as_the_answer_arrives_concerns_nobody(gate, get_order):
    """The answer stands, is kept, and reaches the others."""
    leader, gone, waiter = [await started(get_order(1)) for _ in range(3)]
    gate.last.returns("one")
    gone.cancel()
    assert await asyncio.gather(leader, waiter) == ["one", "one"]
    await idle()
    assert gone.cancelled()
    assert await get_order(1) == "one"
    assert len(gate.calls) == 1


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


async def test_a_session_scoped_call_has_one_flight_in_each_session(gate):
    """Ten callers in two sessions: two runs; and a leader that is cancelled hands over inside its session."""

    @AgentCache("order:{order_id}", scope="session")
    async def get_order(order_id: int) -> str:
        return await gate(order_id)

    async def run() -> list[str]:
        async with AgentCacheSession(loop_detection=False):
            callers = [await started(get_order(1)) for _ in range(5)]
            await cancelled(callers[0])
            return await asyncio.gather(*callers[1:])

    sessions = [await started(run()) for _ in range(2)]
    await until(lambda: len(gate.calls) == 4)
    assert [held.cancelled for held in gate.calls].count(0) == 2
    for held in gate.running:
        held.returns("own")
    assert await asyncio.gather(*sessions) == [["own"] * 4] * 2
    assert len(gate.calls) == 4


async def test_a_session_scoped_tool_outside_of_a_session_runs_uncached(gate):
    """Every call runs the tool, the concurrent ones too, and none is kept."""

    @AgentCache("order", scope="session")
    async def list_orders() -> str:
        return await gate()

    callers = [await started(list_orders()) for _ in range(3)]
    assert len(gate.calls) == 3
    for number, held in enumerate(gate.calls):
        held.returns(number)
    assert await asyncio.gather(*callers) == [0, 1, 2]


async def test_hundreds_of_random_cancellations_hang_nobody():
    """In 300 rounds callers come and go at random turns: each gets an answer, an error or its own cancellation."""
    chance = random.Random(20)
    running = most = 0

    @AgentCache("order:{order_id}", maxsize=None)
    async def get_order(order_id: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                raise Broken
            return order_id
        finally:
            running -= 1

    for number in range(300):
        callers = [asyncio.ensure_future(get_order(number)) for _ in range(chance.randint(1, 8))]
        victims = chance.sample(callers, chance.randint(0, len(callers)))
        for victim in victims:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            victim.cancel()
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*callers, return_exceptions=True)
        for caller, outcome in zip(callers, outcomes, strict=True):
            cancelled_by_us = isinstance(outcome, asyncio.CancelledError) and caller in victims
            assert outcome == number or isinstance(outcome, Broken) or cancelled_by_us
    assert most == 1
    assert running == 0


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
