"""One run of an agent: what it remembers, how runs nest, where they end, and when one is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import os
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    LoopPolicy,
    configure,
    get_metrics,
    invalidate,
    writing,
)
from agent_cache.engine.scope import PLACE
from tests.harness import library
from tests.harness.gates import Gate, cancelled, started

pytestmark = pytest.mark.usefixtures("clock")


class Runs:
    """A read tool that answers with the number of its run, and a write tool beside it."""

    def __init__(self, scope: Any = "global", resource: str = "r", **options: Any) -> None:
        self.count = 0

        @AgentCache(resource, scope, name="read", **options)
        async def read(x: Any = 0) -> int:
            self.count += 1
            return self.count

        @AgentCacheInvalidator(resource, name="write")
        async def write(x: Any = 0) -> str:
            return "done"

        self.read, self.write = read, write


def same(scope: Any = "global", **options: Any) -> Any:
    """A read tool that answers the same again and again."""

    @AgentCache("r", scope, name="same", **options)
    async def tool(x: Any = 0) -> str:
        return "same"

    return tool


async def calls_until_stopped(call: Callable[[], Any], limit: int = 20) -> int:
    """How many calls are answered before one is refused."""
    for number in range(limit):
        try:
            await call()
        except AgentLoopDetectedError:
            return number
    return limit


def short(session: AgentCacheSession, *fields: str) -> list[Any]:
    """The trace, one line a call."""
    fields = fields or ("tool", "source", "outcome")
    lines = [tuple(getattr(record, field) for field in fields) for record in session.get_execution_trace()]
    return [line[0] if len(fields) == 1 else line for line in lines]


# -- The trace -----------------------------------------------------------------------------------------------


async def test_each_call_is_recorded_with_where_its_answer_came_from(clock: library.Clock):
    gate = Gate()
    runs = Runs()

    @AgentCache("g", name="gated")
    async def gated() -> Any:
        return await gate()

    async with AgentCacheSession() as session:
        await runs.read(1)
        await runs.read(1)
        await runs.read(object())
        await runs.write(1)
        leader, follower = await started(gated()), await started(gated())
        gate.last.returns("x")
        await asyncio.gather(leader, follower)
    assert short(session, "tool", "kind", "source", "outcome") == [
        ("read", "read", "miss", "ok"),
        ("read", "read", "hit", "ok"),
        ("read", "read", "uncached", "ok"),
        ("write", "write", "write", "ok"),
        ("gated", "read", "miss", "ok"),
        ("gated", "read", "shared", "ok"),
    ]


async def test_a_record_says_when_the_call_began_and_how_long_it_took(clock: library.Clock):
    @AgentCache("r", name="slow")
    async def slow() -> None:
        clock.advance(2.5)

    async with AgentCacheSession() as session:
        clock.advance(100)
        await slow()
        clock.advance(7)
        await slow()
    miss, hit = session.get_execution_trace()
    assert miss.duration == 2.5
    assert hit.duration == 0.0
    assert hit.started - miss.started == 9.5


async def test_equal_calls_have_equal_keys_and_others_have_others():
    runs = Runs()
    async with AgentCacheSession() as session:
        await runs.read(1)
        await runs.read(x=1)
        await runs.read(True)
        await runs.read(None)
        await runs.read(None)
        await runs.read(object())
        await runs.write(1)
    keys = short(session, "key")
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == keys[4]
    assert keys[3] is not None, "None is an argument like any other; only what has no identity has no key"
    assert keys[5] is None
    assert keys[6] is not None, "a write has one, too"
    assert len({hash(key) for key in keys[:4]}) == 3


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_hit_and_a_miss_of_one_call_have_one_key(tenant: Any):
    runs, scoped = Runs(), Runs("session")
    async with AgentCacheSession(tenant=tenant) as session:
        for tool in (runs.read, scoped.read):
            await tool(1)
            await tool(1)
    keys = short(session, "key")
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]


async def test_how_a_call_ended_is_recorded():
    class Broken(Exception):
        pass

    gate = Gate()

    @AgentCache("r", name="read")
    async def read(x: Any = 0) -> Any:
        if x:
            raise Broken
        return await gate()

    async with AgentCacheSession() as session:
        with pytest.raises(Broken):
            await read(1)
        with pytest.raises(Broken):
            await read(object())
        await cancelled(await started(read()))
        closed = read()
        closed.send(None)
        closed.close()
    assert short(session, "source", "outcome") == [
        ("miss", "Broken"),
        ("uncached", "Broken"),
        ("miss", "cancelled"),
        ("miss", "GeneratorExit"),
    ]


async def test_calls_are_numbered_as_they_begin_and_know_which_call_made_them():
    inner = Runs()

    @AgentCache("o", name="outer", inherit=False)  # it writes to what it has read
    async def outer() -> Any:
        await inner.read(1)
        await asyncio.create_task(inner.read(1))
        await asyncio.gather(inner.read(2), inner.write(3))

    async with AgentCacheSession() as session:
        await inner.read(0)
        await outer()
        await inner.read(1)
        await outer()
    lines = {
        number: (tool, source, parent)
        for tool, source, parent, number in short(session, "tool", "source", "parent", "number")
    }
    assert lines == {
        1: ("read", "miss", None),
        2: ("outer", "miss", None),
        3: ("read", "miss", 2),
        4: ("read", "hit", 2),
        5: ("read", "miss", 2),
        6: ("write", "write", 2),
        7: ("read", "miss", None),
        8: ("outer", "hit", None),
    }


async def test_the_parent_is_numbered_in_each_session_by_itself():
    inner = Runs()
    sessions = []

    @AgentCacheInvalidator("o", name="outer")
    async def outer() -> Any:
        async with AgentCacheSession() as session:
            sessions.append(session)
            await inner.read(1)
            await inner.read(1)

    async with AgentCacheSession() as around:
        await inner.read(0)
        await outer()
    assert short(around, "tool", "parent", "number") == [
        ("read", None, 1),
        ("read", 2, 3),
        ("read", 2, 4),
        ("outer", None, 2),
    ]
    assert short(sessions[0], "tool", "parent", "number") == [("read", None, 1), ("read", None, 2)]


async def test_the_trace_keeps_the_newest_calls_and_can_be_read_afterwards():
    runs = Runs()
    async with AgentCacheSession(trace_size=3) as session:
        for x in range(10):
            await runs.read(x)
    assert short(session, "number") == [8, 9, 10]


# -- Nesting -------------------------------------------------------------------------------------------------


async def test_calls_inside_an_inner_session_count_in_the_outer_one_too():
    runs = Runs()
    async with AgentCacheSession() as outer:
        await runs.read(1)
        async with AgentCacheSession() as inner:
            await runs.read(1)
            await runs.write()
        await runs.read(2)
    assert short(outer, "source") == ["miss", "hit", "write", "miss"]
    assert short(inner, "source") == ["hit", "write"]
    assert outer.session_id != inner.session_id


async def test_session_scoped_answers_live_in_the_innermost_session_and_end_with_it():
    runs = Runs("session")
    assert [await runs.read(), await runs.read()] == [1, 2]
    async with AgentCacheSession():
        assert [await runs.read(), await runs.read()] == [3, 3]
        async with AgentCacheSession():
            assert [await runs.read(), await runs.read()] == [4, 4]
        assert await runs.read() == 3
    async with AgentCacheSession():
        assert await runs.read() == 5
    assert await runs.read() == 6


async def test_sessions_side_by_side_share_nothing_of_their_own():
    runs = Runs("session")

    async def run() -> list[int]:
        async with AgentCacheSession():
            return [await runs.read(), await runs.read()]

    first, second = await asyncio.gather(run(), run())
    assert first[0] == first[1] != second[0] == second[1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of 3.12 and later, if there are threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_sessions_without_a_name_get_one_that_no_other_has_also_in_forked_workers():
    names = {AgentCacheSession().session_id for _ in range(250)}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, " ".join(AgentCacheSession().session_id for _ in range(50)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as told:
        names.update(told.read().split())
    names.update(AgentCacheSession().session_id for _ in range(50))
    assert len(names) == 350
    assert all(len(name) == 32 for name in names)


async def test_child_tasks_belong_to_the_session_they_were_started_in():
    runs = Runs("session")
    async with AgentCacheSession() as session:
        first = await runs.read()
        assert await asyncio.create_task(runs.read()) == first
        assert await asyncio.to_thread(lambda: asyncio.run(runs.read())) == first
        outside = contextvars.Context()
        assert await asyncio.get_running_loop().create_task(runs.read(), context=outside) != first
    assert session.get_metrics()["hits"] == 2
    assert session.get_metrics()["calls"] == 3


async def test_entering_again_is_the_same_run_with_an_empty_cache():
    runs = Runs("session")
    session = AgentCacheSession("mine")
    for number in (1, 2):
        async with session as entered:
            assert entered is session
            assert [await runs.read(), await runs.read()] == [number, number]
    assert session.session_id == "mine"
    assert short(session, "source", "number") == [("miss", 1), ("hit", 2), ("miss", 3), ("hit", 4)]
    assert session.get_metrics()["calls"] == 4


async def test_ids_are_made_up_where_none_is_given():
    ids = {AgentCacheSession().session_id for _ in range(100)}
    assert len(ids) == 100
    assert AgentCacheSession("mine").session_id == "mine"


async def test_a_session_that_has_ended_is_let_go_of_with_its_answers():
    class Answer(str):
        pass

    @AgentCache("r", "session", copy="never")
    async def tool() -> Answer:
        return Answer("x")

    async with AgentCacheSession() as session:
        answer = weakref.ref(await tool())
        await tool()
    reference = weakref.ref(session)
    await asyncio.sleep(0)
    del session
    gc.collect()
    assert answer() is None
    assert reference() is None


async def test_what_a_session_leaves_is_freed_without_the_garbage_collector():
    """Short sessions would leave it most of its work: it took a third of the time of recorded runs."""

    @AgentCache("r")
    async def read(x: int) -> list[int]:
        return [x]

    @AgentCache("r", "session")
    async def own(x: int) -> list[int]:
        return [x]

    @AgentCache("other")
    async def outer(x: int) -> list[int]:
        return await read(x)

    @AgentCacheInvalidator("r")
    async def write(x: int) -> list[list[int]]:
        return [[x]]

    async def run() -> weakref.ref[AgentCacheSession]:
        async with AgentCacheSession("mine", max_execution_depth=30) as session:
            for x in range(3):
                for tool in (read, own, outer, write, outer, read, own, read):
                    await tool(x)
        return weakref.ref(session)

    await run()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert (await run())() is None
        gc.collect()
        left = [each for each in gc.garbage if type(each).__module__.startswith("agent_cache")]
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert not left


# -- Tenants -------------------------------------------------------------------------------------------------

TENANTS = [None, "acme", "other", "1", 1, True, b"1", 1.0, ("acme", 1), ("acme", True)]


@pytest.mark.parametrize("scope", ["global", "session"])
async def test_tenants_never_see_each_others_answers_and_one_write_clears_them_all(scope: Any):
    runs = Runs(scope, maxsize=None)
    sessions = {repr(tenant): AgentCacheSession(tenant=tenant) for tenant in TENANTS}
    inside: dict[str, contextvars.Context] = {}
    for name, session in sessions.items():
        inside[name] = contextvars.copy_context()
        await asyncio.create_task(session.__aenter__(), context=inside[name])

    async def answers() -> list[int]:
        tasks = [asyncio.create_task(runs.read(7), context=context) for context in inside.values()]
        return [await task for task in tasks]

    first = await answers()
    assert len(set(first)) == len(TENANTS)
    assert await answers() == first
    await asyncio.create_task(runs.write(), context=inside["'acme'"])
    second = await answers()
    assert not set(first) & set(second)
    assert await answers() == second
    await invalidate("r")
    assert not set(second) & set(await answers())


async def test_an_inner_session_has_the_tenant_of_the_outer_one_unless_it_names_its_own():
    runs = Runs()
    async with AgentCacheSession(tenant="acme"):
        first = await runs.read()
        async with AgentCacheSession():
            assert await runs.read() == first
        async with AgentCacheSession(tenant="other"):
            other = await runs.read()
            assert other != first
            async with AgentCacheSession(tenant="acme"):
                assert await runs.read() == first
    assert await runs.read() not in {first, other}


async def test_a_session_scoped_call_has_an_identity_outside_of_sessions_too():
    @AgentCache("order:{id}", scope="session")
    async def get_order(id: str) -> str:
        return id

    assert get_order.cache_key("7") == get_order.cache_key(id="7")
    assert get_order.cache_key("7").request.roots == ("order",)
    assert await get_order.invalidate("7") is False


async def test_what_is_named_by_key_is_the_current_tenants():
    runs = Runs()
    async with AgentCacheSession(tenant="acme"):
        first = await runs.read(1)
        key = runs.read.cache_key(1)
    async with AgentCacheSession(tenant="other"):
        await runs.read(1)
        assert runs.read.cache_key(1) != key
        assert await runs.read.invalidate(1) is True
        assert await runs.read.invalidate(1) is False
    async with AgentCacheSession(tenant="acme"):
        assert await runs.read(1) == first
        assert runs.read.cache_key(1) == key


async def test_tenants_do_not_share_a_run_under_way():
    gate = Gate()

    @AgentCache("r")
    async def tool() -> Any:
        return await gate()

    async def run(tenant: str) -> Any:
        async with AgentCacheSession(tenant=tenant):
            return await tool()

    tasks = [await started(run(tenant)) for tenant in ("a", "b", "a")]
    assert len(gate.calls) == 2
    gate.calls[0].returns("a's")
    gate.calls[1].returns("b's")
    assert await asyncio.gather(*tasks) == ["a's", "b's", "a's"]


# -- The end of a session ------------------------------------------------------------------------------------


async def test_a_task_that_outlives_its_session_sees_nothing_old_and_keeps_nothing():
    runs = Runs("session", "r:{x}")
    go = asyncio.Event()
    answers = []

    async def lingering() -> None:
        answers.append(await runs.read(1))
        await go.wait()
        answers.append(await runs.read(1))
        answers.append(await runs.read(1))
        answers.append(await runs.read(2))
        answers.append(await runs.read(2))

    async with AgentCacheSession() as session:
        task = await started(lingering())
        await runs.read(1)
    go.set()
    await task
    assert answers == [1, 2, 3, 4, 5]
    assert not session._stores


async def test_a_load_that_outlives_its_session_is_answered_and_not_kept():
    gate = Gate()

    @AgentCache("r", "session", name="read")
    async def read() -> Any:
        return await gate()

    session = AgentCacheSession()
    async with session:
        task = await started(read())
    gate.last.returns("late")
    assert await task == "late"
    async with session:
        again = await started(read())
        assert len(gate.calls) == 2
        gate.last.returns("new")
        assert await again == "new"
    assert library.nothing_in_flight()


async def test_a_global_answer_outlives_every_session():
    runs = Runs()
    async with AgentCacheSession():
        await runs.read()
    assert await runs.read() == 1


async def test_what_the_body_raises_leaves_the_session_unchanged():
    error = LookupError("the agent's own")
    with pytest.raises(LookupError) as caught:
        async with AgentCacheSession():
            raise error
    assert caught.value is error
    runs = Runs("session")
    assert [await runs.read(), await runs.read()] == [1, 2], "outside again"


async def test_a_session_is_entered_once_at_a_time_and_left_where_it_was_entered():
    session = AgentCacheSession("s7")
    async with session:
        with pytest.raises(ConfigurationError, match="s7"):
            await session.__aenter__()
    await asyncio.create_task(session.__aenter__())
    with pytest.raises(ConfigurationError, match="s7"):
        await session.__aexit__(None, None, None)
    async with session:
        pass


# -- Loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 3, 5])
@pytest.mark.parametrize("argument", [0, "x", None, (), True, (1, [2])], ids=repr)
async def test_the_call_that_repeats_an_outcome_this_often_is_refused(limit: int, argument: Any):
    tool = same()
    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession(max_tool_repeats=limit):
            assert await calls_until_stopped(lambda: tool(argument)) == limit - 1
    assert (caught.value.tool, caught.value.kind, caught.value.count) == ("same", "repeat", limit)
    assert "same" in str(caught.value)


LOOPING: dict[str, Callable[[Any], Any]] = {
    "hits": lambda tool: tool(),
    "fresh runs": lambda tool: tool.fresh(),
    "hits of a tenant": lambda tool: tool(),
}


@pytest.mark.parametrize("how", LOOPING)
@pytest.mark.parametrize("scope", ["global", "session"])
async def test_a_loop_is_seen_however_its_answers_come_about(how: str, scope: Any):
    tool = same(scope)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(tenant="t" if "tenant" in how else None):
            answered = await calls_until_stopped(lambda: LOOPING[how](tool))
    assert answered == 4


async def test_the_error_that_comes_back_this_often_is_the_first_one_refused():
    """What the tool raises reaches the caller unchanged up to then, and is the context of what is raised instead."""

    @AgentCache("r", name="failing")
    async def tool() -> None:
        raise LookupError("not there")

    async def raised_by_next() -> str:
        try:
            await tool()
        except Exception as error:
            return type(error).__name__
        return "nothing"

    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession(max_tool_repeats=3):
            assert [await raised_by_next() for _ in range(2)] == ["LookupError"] * 2
            assert [await raised_by_next() for _ in range(2)] == ["AgentLoopDetectedError"] * 2
    assert (caught.value.tool, caught.value.kind, caught.value.count) == ("failing", "repeat", 3)


async def test_uncached_runs_of_one_outcome_are_a_loop_as_well():
    from agent_cache import configure

    tool = same()
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():
            with configure(enabled=False):
                assert await calls_until_stopped(tool) == 4


async def test_a_loop_is_seen_though_each_answer_is_a_new_entry():
    """Somebody else reloads it between the calls, with the same outcome each time."""
    tool = same()
    elsewhere = contextvars.copy_context()
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():

            async def call() -> None:
                await tool()
                await asyncio.create_task(tool.fresh(), context=elsewhere.copy())

            assert await calls_until_stopped(call) == 4


async def test_a_loop_is_seen_though_the_answer_expires_in_between(clock: library.Clock):
    tool = same(ttl=10)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():

            async def call() -> None:
                await tool()
                clock.advance(6)

            assert await calls_until_stopped(call) == 4


async def test_another_outcome_or_other_arguments_are_no_loop():
    runs = Runs()
    async with AgentCacheSession():
        for number in range(20):
            await runs.read.fresh()
            await runs.read(number + 1)


async def test_a_write_in_between_is_progress():
    tool = same()
    runs = Runs(resource="elsewhere")
    async with AgentCacheSession():
        for number in range(20):
            await tool()
            await runs.write(number)


async def test_a_write_that_changes_nothing_is_no_progress():
    """It was carried out before with the same answer, and the read beside it answers the same: that goes round."""
    tool = same()
    runs = Runs(resource="elsewhere")
    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession():

            async def call() -> None:
                await tool()
                await runs.write()

            assert await calls_until_stopped(call) == 4
    assert (caught.value.kind, caught.value.period, set(caught.value.calls)) == ("cycle", 2, {"same", "write"})


async def test_a_write_that_failed_is_no_progress():
    tool = same()

    @AgentCacheInvalidator("elsewhere", ok=lambda result: result)
    async def write(fails: bool) -> bool:
        if fails:
            raise LookupError
        return False

    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession():

            async def call() -> None:
                await tool()
                await write(False)
                try:
                    await write(True)
                except LookupError:
                    pass

            assert await calls_until_stopped(call) == 2
    assert (caught.value.kind, caught.value.period) == ("cycle", 3)


async def test_identical_reads_gathered_are_one_round():
    tool = same()
    gate = Gate()

    @AgentCache("g")
    async def gated() -> Any:
        return await gate()

    async with AgentCacheSession():
        for _ in range(3):
            await asyncio.gather(*(tool() for _ in range(20)))
        burst = [asyncio.ensure_future(gated()) for _ in range(20)]
        await started(asyncio.sleep(0))
        gate.last.returns("x")
        await asyncio.gather(*burst)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():
            assert await calls_until_stopped(lambda: asyncio.gather(*(tool() for _ in range(20)))) == 4


async def test_a_latched_loop_refuses_every_later_call_with_the_first_error():
    tool, runs = same(), Runs()
    errors = []
    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession(max_tool_repeats=3) as session:
            for call in (tool, tool, tool, tool, lambda: runs.read(1), runs.write, lambda: runs.read(object())):
                try:
                    await call()
                except AgentLoopDetectedError as error:
                    errors.append(error)
            with pytest.raises(AgentLoopDetectedError):
                session.raise_for_loop()
    assert runs.count == 0
    assert len(errors) == 5
    assert set(errors) == {caught.value}
    assert short(session, "source") == ["miss", "hit", *["blocked"] * 5]
    assert short(session, "outcome")[2:] == ["AgentLoopDetectedError"] * 5
    assert get_metrics()["loop_detections"] == session.get_metrics()["loop_detections"] == 5


async def test_a_swallowed_loop_is_raised_at_the_end_once_and_a_raised_one_not_again():
    tool = same()
    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession(max_tool_repeats=2) as session:
            await tool()
            for _ in range(3):
                with pytest.raises(AgentLoopDetectedError) as inside:
                    await tool()
    assert caught.value is inside.value
    assert session.loop_error is caught.value
    with pytest.raises(AgentLoopDetectedError) as let_through:
        async with AgentCacheSession(max_tool_repeats=2):
            await tool()
            await tool()
    assert let_through.value.__context__ is None
    error = LookupError("the agent's own")
    with pytest.raises(LookupError) as own:
        async with AgentCacheSession(max_tool_repeats=2):
            await tool()
            with pytest.raises(AgentLoopDetectedError):
                await tool()
            raise error
    assert own.value is error, "what the body raises is what the caller gets"


async def test_a_run_that_is_entered_again_is_unlatched_and_its_calls_go_on():
    tool, runs = same(), Runs()
    session = AgentCacheSession(max_tool_repeats=2, max_execution_depth=4)
    with pytest.raises(AgentLoopDetectedError, match="same"):
        async with session:
            await tool()
            await tool()
    async with session:
        session.raise_for_loop()
        await tool()
        await runs.read(1)
    assert short(session, "number", "source")[-2:] == [(2, "hit"), (3, "miss")]
    with pytest.raises(AgentLoopDetectedError) as caught:
        async with session:
            await runs.read(2)
            await runs.read(3)
    assert caught.value.kind == "depth"


async def test_a_loop_is_logged_once(caplog: pytest.LogCaptureFixture):
    tool = same()
    with caplog.at_level(logging.WARNING), pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():
            for _ in range(3):
                await calls_until_stopped(tool)
    assert len([record for record in caplog.records if "loop" in record.getMessage()]) == 1


@pytest.mark.parametrize("detection", [True, False])
async def test_a_run_makes_so_many_calls_and_no_more(detection: bool):
    runs = Runs()
    with pytest.raises(AgentLoopDetectedError) if detection else contextlib.nullcontext() as caught:
        async with AgentCacheSession(loop_detection=detection, max_execution_depth=5) as session:
            for number in range(4):
                await runs.read(number)
            await runs.write()
            await runs.read(1)
    assert short(session, "source")[-1] == ("blocked" if detection else "miss" if runs.count == 5 else "hit")
    assert session.get_metrics()["calls"] == (5 if detection else 6)
    if caught is not None:
        error = caught.value
        assert (error.tool, error.kind, error.count, error.period) == ("read", "depth", 5, 0)
        assert error.calls == ("read", "read", "read", "read", "write")
        assert "max_execution_depth" in str(error)


async def test_without_detection_nothing_is_stopped_and_all_is_traced():
    tool = same()
    async with AgentCacheSession(loop_detection=False, max_tool_repeats=2) as session:
        for _ in range(300):
            await tool()
    assert len(session.get_execution_trace()) == 300
    assert session.get_metrics()["loop_detections"] == 0


async def test_a_hit_that_the_budget_refuses_is_no_hit():
    tool = same()
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_execution_depth=2) as session:
            assert await calls_until_stopped(tool) == 2
    assert session.get_metrics()["hits"] == get_metrics()["hits"] == 1
    assert session.get_metrics()["calls"] == 2


@pytest.mark.parametrize("which", ["outer", "inner"])
@pytest.mark.parametrize("how", ["hit", "miss", "write", "uncached"])
async def test_a_call_that_one_session_refuses_is_blocked_in_both_and_counted_in_neither(which: str, how: str):
    runs = Runs()
    calls = {
        "hit": lambda: runs.read(0),
        "miss": lambda: runs.read(1),
        "write": runs.write,
        "uncached": lambda: runs.read(object()),
    }
    await runs.read(0)
    depths = {"outer": 1, "inner": 100} if which == "outer" else {"outer": 100, "inner": 1}
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_execution_depth=depths["outer"]) as outer:
            with pytest.raises(AgentLoopDetectedError) as caught:
                async with AgentCacheSession(max_execution_depth=depths["inner"]) as inner:
                    await runs.read(0)
                    await calls[how]()
            assert caught.value.kind == "depth"
            if which == "inner":
                raise caught.value
    assert runs.count == 1
    for session in (outer, inner):
        assert short(session, "source") == ["hit", "blocked"]
        metrics = session.get_metrics()
        assert (metrics["calls"], metrics["hits"], metrics["loop_detections"]) == (1, 1, 1)
    assert get_metrics()["loop_detections"] == 1


async def test_a_repeat_in_an_inner_session_is_traced_and_budgeted_in_the_outer_one():
    """A tool that ran has run: the outer trace has every call, also the one that the inner session stopped at."""
    tool = same()
    async with AgentCacheSession() as outer:
        with pytest.raises(AgentLoopDetectedError):
            async with AgentCacheSession() as inner:
                assert await calls_until_stopped(tool.fresh) == 4
        assert short(inner, "source") == ["miss"] * 5
        assert short(outer, "source") == ["miss"] * 5
        assert outer.get_metrics()["misses"] == 5
        await tool()
    assert short(outer, "number") == [1, 2, 3, 4, 5, 6]


async def test_the_inner_sessions_calls_are_no_loop_of_the_outer_one():
    tool = same()
    async with AgentCacheSession() as outer:
        for _ in range(5):
            async with AgentCacheSession():
                await tool()
                await tool()
                await tool()
    assert outer.get_metrics()["loop_detections"] == 0
    assert outer.get_metrics()["calls"] == 15


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def test_answers_and_errors_without_a_text_go_through_a_session_unchanged():
    answer = Unprintable()
    error = UnprintableError()

    @AgentCache("r", copy="never", name="odd")
    async def odd(fails: bool) -> Any:
        if fails:
            raise error
        return answer

    async with AgentCacheSession() as session:
        for _ in range(3):
            assert await odd(False) is answer
            with pytest.raises(UnprintableError) as caught:
                await odd(True)
            assert caught.value is error
    assert session.get_metrics()["errors"] == 3


async def test_a_loop_over_an_answer_without_a_text_is_reported_all_the_same():
    @AgentCache("r", copy="never", name="odd")
    async def odd() -> Any:
        return Unprintable()

    with pytest.raises(AgentLoopDetectedError) as caught:
        async with AgentCacheSession(max_tool_repeats=3):
            assert await calls_until_stopped(odd) == 2
    assert "Unprintable" in str(caught.value)


async def test_being_refused_costs_the_same_however_long_the_run_was(monkeypatch: pytest.MonkeyPatch):
    """An agent that swallows the error may go on asking; its whole trace need not be read each time."""
    from agent_cache.session import trace

    made = []
    real = trace.TraceRecord

    def counted(*fields: Any) -> Any:
        made.append(1)
        return real(*fields)

    tool = same()
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_tool_repeats=100_000, max_execution_depth=2_000):
            assert await calls_until_stopped(tool, 3_000) == 2_000
            monkeypatch.setattr(trace, "TraceRecord", counted)
            for _ in range(10):
                await calls_until_stopped(tool)
    assert len(made) <= 200


async def test_sessions_that_are_left_in_another_order_than_they_were_entered_are_refused():
    outer, inner = AgentCacheSession("outer"), AgentCacheSession("inner")
    await outer.__aenter__()
    await inner.__aenter__()
    with pytest.raises(ConfigurationError, match="'outer' was left before a session"):
        await outer.__aexit__(None, None, None)


async def test_the_running_task_is_found_without_a_call_of_asyncio():
    """On Python 3.11 by a private dict of asyncio's, which is to hold what the public function gives."""
    from agent_cache.session import loop_detector

    loop = asyncio.get_running_loop()
    assert loop_detector.task_in(loop) is asyncio.current_task()
    found = await asyncio.create_task(_running_task(loop_detector.task_in))
    assert found is not asyncio.current_task()


async def _running_task(current_task):
    assert current_task(asyncio.get_running_loop()) is asyncio.current_task()
    return current_task(asyncio.get_running_loop())


# -- Async generators that are closed in another context ------------------------------------------------------


class Streams:
    """An async generator with a session around its `yield`, and what it has opened."""

    def __init__(self) -> None:
        self.sessions: list[AgentCacheSession] = []
        self.closed = asyncio.Event()
        self.runs = Runs("session")

    async def numbers(self, around: Callable[[], Any] = contextlib.nullcontext) -> AsyncIterator[int]:
        try:
            async with AgentCacheSession() as session:
                self.sessions.append(session)
                async with around():
                    for _ in range(3):
                        yield await self.runs.read()
        finally:
            self.closed.set()


AROUND: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "a task group of asyncio": asyncio.TaskGroup,
    "an exit stack": contextlib.AsyncExitStack,
    "a write": lambda: writing("elsewhere"),
    "an inner session": AgentCacheSession,
}


def unhandled() -> list[Any]:
    """What the event loop of this test reports: nobody awaits the closing of an abandoned generator."""
    found: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context.get("exception")))
    return found


@pytest.mark.parametrize("around", AROUND)
async def test_a_loop_over_a_generator_with_a_session_may_be_left_by_break(around: str):
    """The event loop closes the generator in a context of its own. The session ends there, and the loop's context is
    outside of it again.
    """
    streams, errors = Streams(), unhandled()
    async for number in streams.numbers(AROUND[around]):
        assert number == 1
        break
    await streams.closed.wait()
    await asyncio.sleep(0)
    gc.collect()
    assert not [error for error in errors if isinstance(error, ConfigurationError)]
    (session,) = streams.sessions
    assert not session._stores
    calls = session.get_metrics()["calls"]
    assert [await streams.runs.read(), await streams.runs.read()] == [2, 3], "outside, nothing is stored"
    assert session.get_metrics()["calls"] == calls
    async with AgentCacheSession() as next_one:
        assert [await streams.runs.read(), await streams.runs.read()] == [4, 4]
    assert next_one.get_metrics()["calls"] == 2
    assert session.get_metrics()["calls"] == calls
    async with session:
        assert await streams.runs.read() == 5, "it may be entered again"


async def test_an_outer_session_is_the_current_one_again_after_a_generator_was_abandoned():
    streams, errors = Streams(), unhandled()
    async with AgentCacheSession(tenant="acme") as outer:
        first = await streams.runs.read()
        async for number in streams.numbers():
            assert number != first
            break
        await streams.closed.wait()
        assert await streams.runs.read() == first
    assert not errors
    assert outer.get_metrics()["calls"] == 3


@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_tool_may_leave_a_generator_with_a_session_by_break(is_inside: bool):
    """What the load reads afterwards is outside of that session, and the load depends on it all the same."""
    streams, numbers = Streams(), Runs(resource="elsewhere")

    @AgentCache("report", name="report")
    async def report() -> tuple[int, int]:
        async for number in streams.numbers():  # noqa: B007 - the first one
            break
        await streams.closed.wait()
        return number, await numbers.read()

    async with AgentCacheSession() if is_inside else contextlib.nullcontext():
        assert await report() == (1, 1)
        await numbers.write()
        assert (await report())[1] == 2
        calls = streams.sessions[0].get_metrics()["calls"]
        assert calls == 1


async def test_generators_with_sessions_may_be_closed_in_any_order():
    """Both run in the context of whoever asks them for the next value."""
    streams = Streams()
    first, second = streams.numbers(), streams.numbers()
    await anext(first)
    inner = await anext(second)
    await first.aclose()
    assert await streams.runs.read() == inner, "still inside of the second"
    await second.aclose()
    outside = await streams.runs.read()
    assert await streams.runs.read() != outside


async def test_a_session_in_a_generator_that_is_closed_by_the_end_of_the_loop():
    streams = Streams()

    def run() -> None:
        async def main() -> None:
            generator = streams.numbers()
            await anext(generator)
            kept.append(generator)

        kept: list[Any] = []
        asyncio.run(main())

    await asyncio.to_thread(run)
    assert not streams.sessions[0]._stores


async def test_a_fixture_that_enters_in_one_context_and_leaves_in_another_is_still_told_so():
    """No generator is closed here: it goes on to its end, and the calls in between were outside."""

    async def fixture() -> AsyncIterator[None]:
        async with AgentCacheSession("fixture"):
            yield

    generator = fixture()
    await asyncio.create_task(anext(generator))
    with pytest.raises(ConfigurationError, match="'fixture' was entered in one context and left in another"):
        await anext(generator)


# -- Long sessions -------------------------------------------------------------------------------------------


async def test_a_poll_that_schedules_itself_keeps_none_of_its_former_runs_alive():
    """Each run begins the next one before it ends, so each has the one before around it, and no more than that."""

    @AgentCacheInvalidator("poll", name="poll")
    async def poll(n: int) -> None:
        call = PLACE.get().call
        assert call is not None
        above = [call]
        while above[-1].parent is not None:
            above.append(above[-1].parent)
        assert len(above) <= 4
        depths.append(call.depth)
        if n < 100:
            began = asyncio.Event()
            tasks.append(asyncio.create_task(following(n + 1, began)))
            await began.wait()
            await asyncio.sleep(0)

    async def following(n: int, began: asyncio.Event) -> None:
        began.set()
        await poll(n)

    depths: list[int] = []
    tasks: list[asyncio.Task[None]] = []
    async with AgentCacheSession(max_execution_depth=1_000, loop_policy=LoopPolicy(max_nesting=3)) as session:
        await poll(0)
        for task in tasks:  # there are more of them meanwhile
            await task
    assert len(depths) == 101
    assert sorted(short(session, "number", "parent"))[1:] == [(n + 1, n) for n in range(1, 101)]


async def test_calls_that_have_ended_are_cut_out_between_those_that_run():
    chain: list[int] = []

    gates = [asyncio.Event() for _ in range(6)]

    @AgentCacheInvalidator("deep", name="deep")
    async def deep(n: int) -> None:
        if n < 5:
            tasks.append(asyncio.create_task(deep(n + 1)))
        await gates[n].wait()
        above, count = PLACE.get().call, 0
        while above is not None:
            above, count = above.parent, count + 1
        if n == 5:
            await probe()
        chain.append(count)

    @AgentCacheInvalidator("probe", name="probe")
    async def probe() -> None:
        call = PLACE.get().call
        assert call is not None
        depths.append(call.depth)

    depths: list[int] = []
    tasks: list[asyncio.Task[None]] = []
    first = await started(deep(0))
    for n in (4, 2, 0):
        gates[n].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    gates[5].set()
    await tasks[4]
    assert depths == [4], "1, 3 and 5 run, and the probe"
    for gate in gates:
        gate.set()
    await asyncio.gather(first, *tasks)


@pytest.mark.slow
async def test_tools_that_are_decorated_in_a_long_session_are_let_go():
    """What a session keeps of each tool has a bound, and its totals stay exact."""
    tools: list[weakref.ref[Any]] = []

    async def decorated(n: int) -> None:
        @AgentCache("long", "session", name=f"read {n}", copy="never")
        async def read() -> list[int]:
            return [n]

        @AgentCacheInvalidator("other", name=f"write {n}")
        async def write() -> int:
            return n

        assert await read() == await read() == [n]
        await write()
        tools.append(weakref.ref(read.__agent_cache__))

    async with AgentCacheSession(max_execution_depth=100_000, trace_size=100) as session:
        for n in range(1_100):
            await decorated(n)
            if n % 100 == 0:
                gc.collect()
        gc.collect()
        assert sum(tool() is not None for tool in tools) <= 1_000
        assert session._detector is not None
        assert len(session._detector.tools) <= 1_000
        assert len(session._stores) <= 1_000
        metrics = session.get_metrics()
        assert (metrics["hits"], metrics["misses"], metrics["calls"]) == (1_100, 1_100, 3_300)
        # Counters that something counts in, and as many of tools whose plans are gone.
        assert len(session.metrics._tools) <= 2_200
        assert metrics["tools"]["(others)"]["calls"] > 0


@pytest.mark.slow
async def test_a_tool_whose_plan_was_dropped_has_its_answers_and_its_history_still():
    runs = Runs("session")

    async def other(n: int) -> None:
        @AgentCacheInvalidator("other", name=f"write {n}")
        async def write() -> int:
            return n

        await write()

    async with AgentCacheSession(max_execution_depth=100_000):
        answer = await runs.read()
        for n in range(1_200):
            await other(n)
            if not n % 500:
                assert await runs.read() == answer
        assert await runs.read() == answer


async def test_a_session_is_opened_and_left_without_looking_at_the_others():
    """Counted in calls of functions, of ours and of the interpreter's; the fewest of several sessions, since a
    sweep or a sample may fall into any one of them."""
    runs = Runs("session")
    contexts = []

    async def work() -> int:
        seen = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        gc.disable()
        sys.setprofile(count)
        try:
            async with AgentCacheSession():
                await runs.read()
        finally:
            sys.setprofile(None)
            gc.enable()
        return seen

    seen = []
    for _ in range(100):  # after as many calls, a tool is checked once for what writes its roots
        await runs.read()
    for others in (1, 1_000):
        for _ in range(others):
            context = contextvars.copy_context()
            await asyncio.create_task(_enter_and_read(runs), context=context)
            contexts.append(context)
        seen.append(min([await work() for _ in range(10)]))
    assert seen[0] == seen[1]


async def _enter_and_read(runs: Runs) -> None:
    await AgentCacheSession().__aenter__()
    await runs.read()


# -- What a session keeps alive ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer that a test can see going."""

    text: str


class Kept:
    """A read tool, and how many of its answers are alive."""

    def __init__(self, **options: Any) -> None:
        self.answers: list[weakref.ref[Answer]] = []

        @AgentCache("kept:{n}", name="read", copy="never", **options)
        async def read(n: int) -> Answer:
            answer = Answer(f"answer {n}")
            self.answers.append(weakref.ref(answer))
            return answer

        @AgentCacheInvalidator("kept", name="write")
        async def write() -> str:
            return "done"

        self.read, self.write = read, write

    def meet(self) -> None:
        """Let the cache find out which of its answers are stale: it lets go of these."""
        self.read.cache_info()

    async def alive(self) -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        return sum(answer() is not None for answer in self.answers)


@pytest.mark.parametrize("scope", ["global", "session"])
async def test_a_session_keeps_no_answer_that_the_cache_has_evicted(scope: Any):
    kept = Kept(scope=scope, maxsize=3)
    async with AgentCacheSession():
        for n in range(50):
            await kept.read(n)
        assert await kept.alive() == 3


async def test_a_session_keeps_no_answer_that_is_too_large_for_the_cache():
    kept = Kept()
    with configure(max_bytes=10):
        async with AgentCacheSession():
            for n in range(50):
                await kept.read(n)
            assert await kept.alive() == 0


async def test_a_session_keeps_no_more_bytes_than_the_cache():
    kept = Kept()
    with configure(max_bytes=1_000):
        async with AgentCacheSession():
            for n in range(50):
                await kept.read(n)
            assert await kept.alive() < 20


DROPS: dict[str, Callable[[Kept], Any]] = {
    "a write": lambda kept: kept.write(),
    "a write of another session": lambda kept: asyncio.create_task(kept.write(), context=contextvars.Context()),
    "invalidate": lambda kept: invalidate("kept"),
    "clear": lambda kept: asyncio.sleep(0, kept.read.clear()),
}


@pytest.mark.parametrize("how", DROPS)
async def test_a_session_keeps_no_answer_that_the_cache_has_dropped(how: str):
    kept = Kept()
    async with AgentCacheSession() as session:
        for n in range(50):
            await kept.read(n)
            await kept.read(n)
        await DROPS[how](kept)
        kept.meet()
        assert await kept.alive() == 0
        assert session.get_metrics()["callback_errors"] == 0


@pytest.mark.parametrize("how", DROPS)
async def test_a_loop_is_seen_though_its_answer_is_dropped_each_time(how: str):
    kept = Kept()
    async with AgentCacheSession(on_loop="notice", loop_policy=LoopPolicy(write_repeat=None, cycle=None)):
        found = []
        for _ in range(6):
            found.append(type(await kept.read(1)))
            await DROPS[how](kept)
            kept.meet()
            assert await kept.alive() == 0
    # The first write is progress, and the others change nothing.
    assert found.index(str) == (5 if how == "a write" else 4)


async def test_a_session_keeps_no_answer_beyond_its_end_though_a_task_goes_on_in_it():
    kept, go = Kept(scope="session"), asyncio.Event()
    globally = Kept()

    async def lingering() -> None:
        await go.wait()
        await globally.read(100)
        await kept.read(100)

    async with AgentCacheSession():
        for n in range(50):
            await kept.read(n)
            await globally.read(n)
        task = await started(lingering())
    await invalidate("kept")
    assert await kept.alive() == 0
    go.set()
    await task
    await invalidate("kept")
    globally.meet()
    assert await kept.alive() == await globally.alive() == 0


async def test_sessions_that_share_an_answer_let_it_go_together():
    kept = Kept()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            context = contextvars.copy_context()
            await asyncio.create_task(AgentCacheSession().__aenter__(), context=context)
            await asyncio.create_task(kept.read(1), context=context)
            stack.callback(context.copy)  # keeps the session alive
        assert await kept.alive() == 1
        await invalidate("kept")
        kept.meet()
        assert await kept.alive() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", DROPS)
async def test_a_session_keeps_no_answer_of_many_that_are_dropped_at_once(how: str):
    kept = Kept(maxsize=None)
    async with AgentCacheSession(max_execution_depth=10_000):
        for n in range(2_000):
            await kept.read(n)
        await DROPS[how](kept)
        kept.meet()
        assert await kept.alive() == 0
