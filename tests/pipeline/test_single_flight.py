"""P3: concurrent identical reads run the tool once, and nobody's cancellation is anybody else's business."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import weakref
from contextlib import suppress
from types import TracebackType

import pytest

from agent_cache import AgentCache, AgentCacheSession, invalidate
from tests.harness.gates import Gate, cancelled, expire, idle, started
from tests.harness.threads import followers_of, in_threads, until

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


async def test_an_error_that_callers_share_is_freed_with_the_last_of_them():
    """With all that its traceback has, and without a garbage collection."""
    errors: list[weakref.ref[Exception]] = []

    class Seen(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    @AgentCache("order")
    async def get() -> str:
        await idle()
        raise Seen

    @AgentCache("order")
    def get_in_thread() -> str:
        until(lambda: followers_of(get_in_thread) == 1)
        raise Seen

    def call_in_thread(_: int) -> None:
        with suppress(Seen):
            get_in_thread()

    gc.disable()
    try:
        await asyncio.gather(get(), get(), return_exceptions=True)
        async with AgentCacheSession():
            await asyncio.gather(get(), get(), return_exceptions=True)
        in_threads(2, call_in_thread)
        await idle()
        assert [one() for one in errors] == [None] * 3
    finally:
        gc.enable()


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


async def test_a_leader_whose_coroutine_is_closed_hands_over(gate, get_order):
    """Closing is how an abandoned call ends; whoever waits for it takes over. What was written before is no matter."""
    leader, elsewhere = get_order(1), contextvars.copy_context()
    elsewhere.run(leader.send, None)
    waiter = await started(get_order(1))
    assert len(gate.calls) == 1
    await invalidate("order:1")
    elsewhere.run(leader.close)
    await idle()
    assert len(gate.running) == 1
    gate.last.returns("second run")
    assert await waiter == "second run"
    assert get_order.contains(1)


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
