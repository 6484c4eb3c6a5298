"""Middleware observe the calls that no local hit has answered, and change nothing of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError, ToolCall, bypass, configure
from tests.harness import library

pytestmark = pytest.mark.usefixtures("clock")

Proceed = Callable[[], Awaitable[Any]]


class Seen:
    """A middleware that notes what it is shown, at the beginning and at the end of each call."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.notes: list[Any] = []
        self.calls: list[ToolCall] = []

    async def __call__(self, call: ToolCall, proceed: Proceed) -> Any:
        self.calls.append(call)
        self.notes.append((self.name, "begins", call.tool, call.source))
        try:
            result = await proceed()
        except BaseException as error:
            self.notes.append((self.name, type(error).__name__, call.tool, call.source))
            raise
        self.notes.append((self.name, result, call.tool, call.source))
        return result

    @property
    def ends(self) -> list[Any]:
        """Result, or name of the error, and source of each call that has ended."""
        return [(outcome, source) for _, outcome, _, source in self.notes if outcome != "begins"]


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    with configure(middleware=(seen,)):
        yield seen


class Orders:
    """A read and a write, each as an `async def` and as a `def`, that count their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

        async def get(order_id: str, full: bool = False) -> dict[str, str]:
            return self.run(order_id)

        def get_now(order_id: str, full: bool = False) -> dict[str, str]:
            return self.run(order_id)

        async def save(order_id: str) -> dict[str, str]:
            return self.run(order_id)

        def save_now(order_id: str) -> dict[str, str]:
            return self.run(order_id)

        self.get = AgentCache(["orders", "order:{order_id}", "user:{result[user]}"], name="get")(get)
        self.get_now = AgentCache(["orders", "order:{order_id}", "user:{result[user]}"], name="get_now")(get_now)
        self.save = AgentCacheInvalidator("order:{order_id}", name="save")(save)
        self.save_now = AgentCacheInvalidator("order:{order_id}", name="save_now")(save_now)

    def run(self, order_id: str) -> dict[str, str]:
        self.runs.append(order_id)
        if order_id.startswith("bad"):
            raise LookupError(order_id)
        return {"id": order_id, "user": "ann"}

    async def call(self, name: str, order_id: str) -> Any:
        result = getattr(self, name)(order_id)
        return await result if asyncio.iscoroutine(result) else result


@pytest.fixture
def orders() -> Orders:
    return Orders()


TOOLS = ("get", "get_now", "save", "save_now")


# What they see


async def test_a_miss_is_seen_with_its_arguments_source_and_tags(seen: Seen, orders: Orders):
    await orders.get("7")
    (call,) = seen.calls
    assert (call.tool, call.is_read_only, call.is_sync, call.is_stream) == ("get", True, False, False)
    assert call.arguments == {"order_id": "7", "full": False}
    assert seen.notes[0] == ("", "begins", "get", None)
    assert seen.ends == [({"id": "7", "user": "ann"}, "miss")]
    assert call.tags == ("orders", "order:7", "user:ann")


async def test_the_first_one_is_the_outermost(orders: Orders):
    one = Seen("one")
    two = Seen("two")
    two.notes = one.notes
    with configure(middleware=(one, two)):
        await orders.get("7")
        orders.get_now("7")
    assert [(name, what == "begins") for name, what, *_ in one.notes] == [
        ("one", True), ("two", True), ("two", False), ("one", False),
    ] * 2  # fmt: skip


async def test_calls_that_are_not_cached_are_seen(seen: Seen, orders: Orders):
    @AgentCache("mine", "session", name="own")
    async def own() -> int:
        return 1

    @AgentCache("order", name="unkeyed")
    async def unkeyed(what: Any) -> int:
        return 1

    with bypass():
        await orders.get("7")
        orders.get_now("7")
    await own()
    await unkeyed(object())
    with configure(enabled=False):
        await orders.get("7")
    assert [source for _, source in seen.ends] == ["uncached"] * 5
    assert seen.calls[0].tags == ("orders", "order:7", "user:ann")


async def test_methods_and_contexts_are_not_among_the_arguments(seen: Seen):
    class Shop:
        @AgentCache("order", ignore=("ctx",), name="Shop.get")
        async def get(self, order_id: str, *ids: str, ctx: Any = None, **more: Any) -> int:
            return 1

        @AgentCacheInvalidator("order", name="Shop.save")
        def save(self, order_id: str) -> None: ...

    await Shop().get("7", "8", ctx=object(), page=2)
    Shop().save("7")
    assert [dict(call.arguments) for call in seen.calls] == [
        {"order_id": "7", "ids": ("8",), "more": {"page": 2}},
        {"order_id": "7"},
    ]


# The tool is untouched


async def raise_before(call: ToolCall, proceed: Proceed) -> Any:
    raise KeyError("of the middleware")


async def raise_after(call: ToolCall, proceed: Proceed) -> Any:
    await proceed()
    raise KeyError("of the middleware")


async def raise_instead(call: ToolCall, proceed: Proceed) -> Any:
    try:
        await proceed()
    except LookupError as error:
        raise RuntimeError("of the middleware") from error
    raise RuntimeError("of the middleware")


async def call_nothing(call: ToolCall, proceed: Proceed) -> Any: ...


async def swallow(call: ToolCall, proceed: Proceed) -> Any:
    try:
        return await proceed()
    except LookupError:
        return None


async def call_twice(call: ToolCall, proceed: Proceed) -> Any:
    for _ in range(2):
        try:
            result = await proceed()
        except LookupError:
            result = None
    return result


INTRUDERS = [raise_before, raise_after, raise_instead, call_nothing, swallow, call_twice]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("intruder", INTRUDERS)
@pytest.mark.filterwarnings("error")
async def test_whatever_a_middleware_does_the_tool_runs_once_and_its_outcome_arrives(
    orders: Orders, intruder: Any, tool: str
):
    """Also inside of one and around one that behaves; a removed one is configured anew for the second call."""
    inner, outer = Seen(), Seen()
    with configure(middleware=(outer, intruder, inner)):
        assert await orders.call(tool, "7") == {"id": "7", "user": "ann"}
    with configure(middleware=(outer, intruder, inner)), pytest.raises(LookupError) as caught:
        await orders.call(tool, "bad")
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert orders.runs == ["7", "bad"]
    source = "miss" if tool.startswith("get") else "write"
    assert outer.ends == inner.ends == [({"id": "7", "user": "ann"}, source), ("LookupError", source)]


@pytest.mark.parametrize("intruder", [raise_before, raise_after, raise_instead])
async def test_one_that_raises_is_removed_and_logged_once(
    orders: Orders, intruder: Any, caplog: pytest.LogCaptureFixture
):
    seen = Seen()
    with configure(middleware=(intruder, seen)):
        for number in range(3):
            await orders.get(f"{number}")
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert intruder.__name__ in line.getMessage()
    assert line.__dict__["agent_cache_event"] == "a middleware raised"
    assert line.exc_info is not None
    assert len(seen.calls) == 3
    assert library.setting("middleware") == ()


async def test_one_that_awaits_something_else_is_removed_for_def_tools_alone(
    orders: Orders, caplog: pytest.LogCaptureFixture
):
    calls: list[str] = []

    async def patient(call: ToolCall, proceed: Proceed) -> None:
        calls.append(call.tool)
        await asyncio.sleep(0)
        await proceed()

    with configure(middleware=(patient,)):
        assert orders.get_now("7")["id"] == "7"
        assert orders.get_now("8")["id"] == "8"
        await orders.get("7")
        await orders.get("8")
    assert calls == ["get_now", "get", "get"]
    assert orders.runs == ["7", "8", "7", "8"]
    (line,) = caplog.records
    assert "`def`" in line.getMessage()


async def test_proceed_is_awaited_once_and_by_the_call_itself(orders: Orders, caplog: pytest.LogCaptureFixture):
    kept: list[Proceed] = []

    async def in_another_task(call: ToolCall, proceed: Proceed) -> Any:
        return await asyncio.ensure_future(proceed())

    async def left_behind(call: ToolCall, proceed: Proceed) -> Any:
        kept.append(proceed)

    with configure(middleware=(in_another_task, left_behind)):
        assert await orders.get("7") == {"id": "7", "user": "ann"}
    assert "in_another_task: a middleware raised" in caplog.text
    with pytest.raises(RuntimeError, match="awaited once, in the task of the call"):
        await kept.pop()()
    assert orders.runs == ["7"]


async def test_a_middleware_that_cancels_the_tool_gives_its_own_error_to_the_caller():
    """Nobody has cancelled the caller, so it must not see a cancellation."""

    @AgentCache("order", name="too_slow")
    async def too_slow() -> None:
        await asyncio.Event().wait()

    async def give_up(call: ToolCall, proceed: Proceed) -> None:
        async with asyncio.timeout(0):
            await proceed()

    with configure(middleware=(give_up,)), pytest.raises(TimeoutError):
        await too_slow()


# Where they run

PLACE: ContextVar[str] = ContextVar("PLACE", default="outside")


async def test_the_tool_runs_in_the_context_that_the_middleware_has_made():
    @AgentCache("order", name="where")
    async def where() -> str:
        return PLACE.get()

    @AgentCache("order", name="where_now")
    def where_now() -> str:
        return PLACE.get()

    @AgentCache("order", name="where_stream")
    async def where_stream() -> AsyncIterator[str]:
        for _ in range(2):
            yield PLACE.get()

    @AgentCacheInvalidator("order", name="where_stream_now")
    def where_stream_now() -> Iterator[str]:
        yield from map(PLACE.get, ["", ""])

    async def enter(call: ToolCall, proceed: Proceed) -> None:
        token = PLACE.set("inside")
        try:
            await proceed()
        finally:
            PLACE.reset(token)

    with configure(middleware=(enter,)):
        places = [await where(), where_now(), *[chunk async for chunk in where_stream()], *where_stream_now()]
        assert library.setting("middleware")
    assert places == ["inside"] * 6
    assert PLACE.get() == "outside"


async def test_a_stream_is_one_call_from_its_first_chunk_to_its_end(seen: Seen):
    @AgentCache("order", name="count")
    async def count(number: int) -> AsyncIterator[int]:
        for each in range(number):
            yield each

    @AgentCache("order", name="count_now")
    def count_now(number: int) -> Iterator[int]:
        yield from range(number)

    chunks = count(3)
    assert seen.notes == []
    assert await anext(chunks) == 0
    assert [call.is_stream for call in seen.calls] == [True]
    assert seen.ends == []
    assert [chunk async for chunk in chunks] == [1, 2]
    assert list(count_now(2)) == [0, 1]
    assert [chunk async for chunk in count(3)] == [0, 1, 2]
    assert seen.ends == [((0, 1, 2), "miss"), ((0, 1), "miss")]


# Configuration


async def test_instrumentation_stays_beside_what_is_configured(orders: Orders):
    notes: list[Any] = []
    outer, inner = Seen("outer"), Seen("inner")
    outer.notes = inner.notes = notes
    library.instrument(outer)
    with configure(middleware=(inner,)):
        await orders.get("1")
    await orders.get("2")
    library.instrument(None)
    await orders.get("3")
    assert [name for name, what, *_ in notes if what == "begins"] == ["outer", "inner", "outer"]
    library.instrument(outer)
    agent_cache.testing.reset()
    assert library.setting("middleware") == ()


def plain(call: Any, proceed: Any) -> Any:
    return proceed()


async def generator(call: Any, proceed: Any) -> AsyncIterator[int]:
    yield 1


async def fine(call: Any, proceed: Any) -> None: ...


NO_FUNCTIONS = [[None], [plain], [Seen], [generator], [fine, plain, fine]]


@pytest.mark.parametrize("given", [fine, None, "fine", {fine}, *NO_FUNCTIONS])
def test_what_is_no_middleware_is_refused_at_once(given: Any):
    with pytest.raises(ConfigurationError, match="`async def" if given in NO_FUNCTIONS else "must be a sequence"):
        configure(middleware=given)
    assert library.setting("middleware") == ()
