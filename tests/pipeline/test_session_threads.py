"""One session used by several threads, each with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, LoopPolicy
from tests.harness.preemption import stopped_everywhere
from tests.harness.slow import slow

pytestmark = pytest.mark.usefixtures("nothing_left")

SESSION = (str(Path(agent_cache.__file__).parent / "session"),)
DETECTOR = "agent_cache.session.loop_detector"

at_lines = pytest.mark.parametrize("every", [9, *slow(1)])

Body = Callable[[], Coroutine[Any, Any, Any]]


class Shared:
    """A session that is entered in a context from which every thread takes a copy."""

    def __init__(self, **options: Any) -> None:
        self.session = AgentCacheSession(**options)
        self.context = contextvars.copy_context()
        _finish(self.context, self.session.__aenter__())

    def inside(self, body: Body) -> Body:
        """The same in the session, whatever context it is called from."""

        async def main() -> Any:
            return await asyncio.get_running_loop().create_task(body(), context=self.context.copy())

        return main

    def leave(self) -> None:
        _finish(self.context, self.session.__aexit__(None, None, None))


def _finish(context: contextvars.Context, coroutine: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(StopIteration):
        context.run(coroutine.send, None)


class Tools:
    """A read tool, a write tool and one that fails. Each call that is new says so by its argument."""

    def __init__(self) -> None:
        self.numbers = count()

        @AgentCache("threads", name="get")
        async def get(n: Any) -> Any:
            return ["answer", n]

        @AgentCacheInvalidator("elsewhere", name="change")
        async def change(n: Any) -> Any:
            return n

        @AgentCache("threads", name="fail")
        async def fail(n: Any) -> Any:
            raise LookupError(n)

        @AgentCache("elsewhere", name="look")
        async def look() -> None:
            return None

        self.get, self.change, self.fail, self.look = get, change, fail, look
        self.answers = 0

    async def work(self) -> None:
        """New calls, hits, loads of a known call, errors and repeated writes: what the detector keeps of each."""
        n = next(self.numbers)
        for call, expected in (
            (self.get(n), ["answer", n]),
            (self.get(n), ["answer", n]),
            (self.get.fresh(n), ["answer", n]),
            (self.change(0), 0),
            (self.change(n), n),
            (self.get(0), ["answer", 0]),
        ):
            assert await call == expected
            self.answers += 1
        with pytest.raises(LookupError):
            await self.fail(n)
        self.answers += 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are reached after two calls: what is oldest is always being forgotten."""
    for name in ("_MAX_CALLS", "_MAX_OUTCOMES", "_MAX_BLOCKED"):
        monkeypatch.setattr(f"{DETECTOR}.{name}", 2)


@pytest.mark.usefixtures("small")
@at_lines
def test_no_answer_changes_wherever_one_thread_is_stopped_by_another(every: int):
    """Nothing raises, the numbers of the trace are unique, and every call is counted once."""
    tools, shared = Tools(), Shared()

    def begin() -> None:
        nonlocal shared
        shared.leave()
        shared = Shared(on_loop="warn")
        asyncio.run(shared.inside(tools.work)())
        tools.answers = 7

    async def call() -> None:
        await shared.inside(tools.work)()

    for where in stopped_everywhere(call, call, before=begin, files=SESSION, every=every):
        trace = shared.session.get_execution_trace()
        assert sorted(record.number for record in trace) == list(range(1, 3 * 7 + 1)), where
        metrics = shared.session.get_metrics()
        assert metrics["calls"] == tools.answers == 3 * 7, where
        assert metrics["callback_errors"] == 0, where
    shared.leave()


@at_lines
def test_a_budget_of_one_tool_counts_every_call_of_every_thread(every: int):
    tools = Tools()

    async def work() -> None:
        n = next(tools.numbers)
        await tools.get(n)
        await tools.get(n)

    def begin() -> None:
        nonlocal shared, calls
        shared = Shared(loop_policy=LoopPolicy(max_tool_calls=6, max_execution_depth=None))
        calls = 0

    async def stopped() -> None:
        await shared.inside(work)()

    shared, calls = Shared(), 0
    shared.leave()
    for where in stopped_everywhere(stopped, stopped, before=begin, files=SESSION, every=every):
        asyncio.run(stopped())
        with pytest.raises(AgentLoopDetectedError, match="max_tool_calls"):
            asyncio.run(shared.inside(lambda: tools.get(0))())
        assert shared.session.get_metrics()["tools"]["get"]["calls"] == 6, where


@at_lines
def test_two_threads_that_call_a_tool_for_the_first_time_share_its_store(monkeypatch: pytest.MonkeyPatch, every: int):
    runs, made = count(1), []

    @AgentCache("threads", scope="session")
    async def get() -> int:
        return next(runs)

    operation = type(get.__agent_cache__)
    make = operation.new_store
    monkeypatch.setattr(operation, "new_store", lambda self, owner: made.append(make(self, owner)) or made[-1])

    def begin() -> None:
        nonlocal shared
        shared = Shared()
        made.clear()

    async def call() -> None:
        await shared.inside(get)()

    shared = Shared()
    for where in stopped_everywhere(call, call, before=begin, files=SESSION, every=every):
        stored = asyncio.run(shared.inside(get)())
        assert asyncio.run(shared.inside(get.fresh)()) > stored
        assert asyncio.run(shared.inside(get)()) > stored, where
        assert [len(store) for store in made] == [1], where
        shared.leave()
        assert not made[0].is_open, where


async def test_a_loop_detector_that_breaks_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is counted each time, and logged once for each tool."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("state")

    monkeypatch.setattr(f"{DETECTOR}.ToolHistory.record", broken)
    tools = Tools()
    with caplog.at_level(logging.WARNING, logger="agent_cache"):
        async with AgentCacheSession() as session:
            for n in (1, 2, 1, 2):
                assert await tools.get(n) == ["answer", n]
                assert await tools.change(n) == n
                with pytest.raises(LookupError):
                    await tools.fail(n)
    assert session.get_metrics()["callback_errors"] >= 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages
    assert len(messages) == len(set(messages))
    assert all("the loop detector failed, so the call was not checked (KeyError: 'state')" in one for one in messages)
