"""A session that many tasks, requests and threads join at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent_cache import (
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
)
from agent_cache.engine.scope import PLACE
from agent_cache.resume import Journal
from tests.integration.test_session import Runs

pytestmark = pytest.mark.usefixtures("clock")


async def elsewhere(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run in a task that inherits nothing, as a server starts the task of a request."""
    return await asyncio.create_task(run(), context=contextvars.Context())


def tools_of(session: AgentCacheSession) -> list[tuple[str, str]]:
    return [(record.tool, record.source) for record in session.get_execution_trace()]


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
    assert tools_of(session) == [("read", "miss"), ("read", "hit"), ("read", "hit")]


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


async def test_a_block_outside_of_the_session_is_refused():
    session = AgentCacheSession("s7")
    with pytest.raises(ConfigurationError, match="'s7' is not entered"), session.attach():
        pass
    async with session:
        pass
    with pytest.raises(ConfigurationError, match="'s7' is not entered"):
        async with session.attach():
            pass
    assert PLACE.get().scope.participants == ()


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


# -- Its end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_inside", [False, True])
async def test_calls_of_a_block_whose_session_has_ended_are_made_where_it_was_entered(is_inside: bool):
    runs, go, ready = Runs("session"), asyncio.Event(), asyncio.Event()
    outer = AgentCacheSession()

    async def request() -> list[Any]:
        async with outer if is_inside else contextlib.nullcontext():
            with session.attach():
                answers = [await runs.read(), await runs.read()]
                child = asyncio.create_task(rest())
                answers += await rest()
                answers += await child
            answers.append(len(PLACE.get().scope.participants))
            return answers

    async def rest() -> list[Any]:
        ready.set()
        await go.wait()
        return [await runs.read(), await runs.read()]

    async with AgentCacheSession() as session:
        task = asyncio.create_task(elsewhere(request))
        await ready.wait()
    go.set()
    if is_inside:
        assert await task == [1, 1, 2, 2, 2, 2, 1]
        assert len(outer.get_execution_trace()) == 6
    else:
        assert await task == [1, 1, 2, 3, 4, 5, 0], "outside of sessions nothing is stored"
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


# -- Recordings ----------------------------------------------------------------------------------------------


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
