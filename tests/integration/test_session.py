"""One run of an agent: what it remembers, how runs nest, where they end, and when one is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    Toolbox,
    Write,
    bypass,
    get_metrics,
    invalidate,
)
from agent_cache.recording import record
from agent_cache.resume import Journal
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


@pytest.mark.parametrize("detects", [True, False])
async def test_the_trace_of_a_write_says_what_it_was_called_with_as_that_of_a_read_does(*, detects: bool):
    runs = Runs()
    box = Toolbox({"cancel": Write("order:{order_id}")}, namespace="trace_of_writes")
    get = AgentCache("r", name="read of the same")(runs.write.__wrapped__)
    async with AgentCacheSession(loop_detection=detects) as session:
        for x in ("W1", "W2", "W1", object(), "x" * 100_000):
            await runs.write(x)
        await get("W1")
        for x in ("W1", "W2", "W1"):
            box.call_sync("cancel", {"order_id": x}, lambda: None)
        await get(None)
    one, other, again, unknown, long, read, *named, nothing = short(session, "key")
    assert one == again == read != other
    assert nothing is not None, "None is an argument like any other; only what has no identity has no key"
    assert "W1" in repr(one)
    assert unknown is None
    assert len(repr(long)) < 1_000, "a long one is not kept alive"
    assert named[0] == named[2] != named[1]


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


async def test_the_trace_keeps_the_newest_calls_and_can_be_read_afterwards():
    runs = Runs()
    async with AgentCacheSession(trace_size=3) as session:
        for x in range(10):
            await runs.read(x)
    assert short(session, "number") == [8, 9, 10]


# -- Nesting -------------------------------------------------------------------------------------------------


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of 3.12 and later, if there are threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_sessions_without_a_name_get_one_that_no_other_has_also_in_forked_workers():
    names = [AgentCacheSession().session_id for _ in range(250)]
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, AgentCacheSession().session_id.encode())
        os._exit(0)
    os.wait()
    with os.fdopen(reader, "rb") as told:
        names += [told.read(32).decode(), AgentCacheSession().session_id]
    os.close(writer)
    assert len(set(names)) == 252
    assert {len(name) for name in names} == {32}


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


# -- Loops ---------------------------------------------------------------------------------------------------


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
    assert short(session, "outcome", "duration")[2:] == [("AgentLoopDetectedError", 0.0)] * 5
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


# -- Tasks, requests and threads that join a session by `attach` -------------------------------------------------


async def elsewhere(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run in a task that inherits nothing, as a server starts the task of a request."""
    return await asyncio.create_task(run(), context=contextvars.Context())


async def test_requests_that_attach_share_the_cache_and_the_trace_of_one_session():
    runs = Runs("session")

    async def request() -> int:
        with session.attach() as joined:
            assert joined is session
            return await runs.read()  # type: ignore[no-any-return]

    async with AgentCacheSession() as session:
        assert await elsewhere(request) == 1
        assert await elsewhere(request) == 1
        assert await runs.read() == 1
    assert short(session, "tool", "source") == [("read", "miss"), ("read", "hit"), ("read", "hit")]


@pytest.mark.parametrize("options", [{"max_tool_repeats": 4}, {"max_execution_depth": 3}], ids=repr)
async def test_the_loop_guard_counts_over_all_that_have_joined(options: dict[str, Any]):
    runs = Runs()

    async def request() -> None:
        with session.attach():
            await runs.read()

    session = AgentCacheSession(**options)
    with pytest.raises(AgentLoopDetectedError):
        async with session:
            for _ in range(4):
                await elsewhere(request)
    assert len(session.get_execution_trace()) == 4
    assert session.loop_error is not None


async def test_a_block_is_bypassed_and_recorded_as_its_surroundings_are(tmp_path: Path):
    runs, path = Runs(), tmp_path / "run.jsonl"

    async def request() -> int:
        with bypass(), record(path), session.attach():
            return await runs.read()  # type: ignore[no-any-return]

    async with AgentCacheSession() as session:
        assert [await runs.read(), await elsewhere(request), await runs.read()] == [1, 2, 1]
    assert '"read"' in path.read_text()


async def test_a_block_outside_of_the_session_is_refused():
    session = AgentCacheSession("s7")
    with pytest.raises(ConfigurationError, match="'s7' is not entered"), session.attach():
        pass
    async with session:
        pass
    with pytest.raises(ConfigurationError, match="'s7' is not entered"):
        async with session.attach():
            pass
    runs = Runs("session")
    assert [await runs.read(), await runs.read()] == [1, 2], "these are made outside of it"


async def test_inside_of_another_session_it_is_the_innermost():
    runs = Runs("session")
    async with AgentCacheSession() as outer, AgentCacheSession() as first:
        await runs.read()
        async with AgentCacheSession() as second:
            await runs.read()
            with first.attach():
                assert await runs.read() == 1
            assert await runs.read() == 2
    assert [len(one.get_execution_trace()) for one in (outer, first, second)] == [4, 4, 3]
    marks = [[record.is_inner for record in one.get_execution_trace()] for one in (outer, first, second)]
    assert marks == [[True, True, True, True], [False, True, False, True], [False, True, False]]


async def test_the_tenant_is_that_of_the_session():
    runs = Runs()

    async def request() -> Any:
        async with AgentCacheSession(tenant="b"):
            with session.attach():
                return await runs.read()

    async with AgentCacheSession(tenant="a") as session:
        assert await runs.read() == 1
        assert await elsewhere(request) == 1
    async with AgentCacheSession() as session:
        with pytest.raises(ConfigurationError, match="tenant"):
            await elsewhere(request)


@pytest.mark.parametrize("around", ["nothing", "a session", "a block"])
async def test_calls_of_a_block_whose_session_has_ended_are_made_where_it_was_entered_for_its_tenant(around: str):
    runs, everybody, go, ready = Runs("session"), Runs(), asyncio.Event(), asyncio.Event()
    outer = AgentCacheSession()

    async def request() -> list[Any]:
        blocks = {"nothing": contextlib.nullcontext, "a session": lambda: outer, "a block": other.attach}
        async with blocks[around](), session.attach():
            answers = [await runs.read(), await runs.read()]
            child = asyncio.create_task(rest())
            return [*answers, *await rest(), *await child]

    async def rest() -> list[Any]:
        ready.set()
        await go.wait()
        return [await runs.read(), await runs.read(), await everybody.read()]

    await everybody.read()
    async with AgentCacheSession() as other, AgentCacheSession(tenant="a") as session:
        task = asyncio.create_task(elsewhere(request))
        await ready.wait()
    go.set()
    if around == "a session":
        assert await task == [1, 1, 2, 2, 2, 2, 2, 2]
        assert len(outer.get_execution_trace()) == 8
    else:
        assert await task == [1, 1, 2, 3, 2, 4, 5, 2], "outside of sessions nothing is stored"
    assert len(session.get_execution_trace()) == 2
    assert not session._stores


async def test_a_block_is_left_where_it_was_entered():
    async def crossed() -> None:
        outer, inner = session.attach(), AgentCacheSession()
        outer.__enter__()
        await inner.__aenter__()
        with pytest.raises(ConfigurationError, match="before what was entered inside it"):
            outer.__exit__(None, None, None)
        with pytest.raises(ConfigurationError, match="left in another context"):
            await inner.__aexit__(None, None, None)

    async with AgentCacheSession("s7") as session:
        block = session.attach()
        await asyncio.create_task(block.__aenter__())
        with pytest.raises(ConfigurationError, match="'s7' was left in another context"):
            block.__exit__(None, None, None)
        with pytest.raises(ConfigurationError, match="this block is not entered"):
            block.__exit__(None, None, None)
        await elsewhere(crossed)


async def test_a_write_of_a_block_is_in_the_journal_of_the_session(tmp_path: Path):
    @AgentCacheInvalidator("order:{order_id}", name="cancel")
    async def cancel(order_id: str) -> str:
        sent.append(order_id)
        return "cancelled"

    async def request() -> str:
        with session.attach():
            return await cancel("7")

    sent: list[str] = []
    for _ in range(2):
        try:
            async with AgentCacheSession("chat-1", journal=Journal(tmp_path)) as session:
                assert await elsewhere(request) == "cancelled"
                raise RuntimeError("the process dies")
        except RuntimeError:
            pass
    assert sent == ["7"]
