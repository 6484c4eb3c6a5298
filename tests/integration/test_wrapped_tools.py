"""A decorator below ours keeps its way: what it injects, and what its own defaults are.

`functools.wraps` makes `inspect.signature` show the signature of the function inside. A call is made by that of the
object that is decorated: what its caller has left out is left out, and what is passed by keyword stays a keyword.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    ConfigurationError,
    Toolbox,
    Write,
    get_metrics,
)
from agent_cache.testing import MemoryTier
from tests.harness.slow import slow

pytestmark = pytest.mark.usefixtures("clock")

Decorator = Callable[[Any], Any]


class RunContext:
    """Stands for Pydantic AI's, which is known by its name and module."""

    __module__ = "pydantic_ai.tools"

    def __init__(self, deps: Any) -> None:
        self.deps = deps


# Functions


async def get_order(order_id: str, full: bool = False, *, db: Any = None) -> str:
    """Get an order."""
    return f"{order_id} {full} {db}"


def stream_order_at_once(order_id: str, full: bool = False, *, db: Any = None) -> Iterator[str]:
    yield f"{order_id} {full} {db}"


KINDS: dict[str, Any] = {"async def": get_order, "generator": stream_order_at_once}

# What is below


def around(function: Any, change: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]):
    """A wrapper of the kind of a function, which passes on what `change` makes of the arguments."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def chunks_at_once(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = change(args, kwargs)
            yield from function(*args, **kwargs)

        return chunks_at_once

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return await function(*args, **kwargs)

    return call


def passing_on(function: Any) -> Any:
    return around(function, lambda args, kwargs: (args, kwargs))


def injecting(function: Any) -> Any:
    """Passes the database beside what the caller passes, and fails if that has it as well."""
    return around(function, lambda args, kwargs: (args, {**kwargs, "db": "DB"} if "db" not in kwargs else 1 / 0))


def filling_in(function: Any) -> Any:
    return around(function, lambda args, kwargs: (args, {"full": True, **kwargs} if len(args) < 2 else kwargs))


async def result_of(tool: Any, *args: Any, **kwargs: Any) -> Any:
    found = tool(*args, **kwargs)
    if inspect.isgenerator(found):
        (only,) = found
        return only
    return await found if inspect.isawaitable(found) else found


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "by position": (("W1",), {}),
    "by keyword": ((), {"order_id": "W1"}),
    "one of each": (("W1",), {"full": True}),
    "two by keyword": ((), {"full": True, "order_id": "W1"}),
}
BELOW: dict[str, Decorator] = {
    "passing on": passing_on,
    "injecting": injecting,
    "filling in": filling_in,
    "an injecting one around one that fills in": lambda function: injecting(filling_in(function)),
}


@pytest.mark.parametrize("call", ["by position", "two by keyword", *slow("by keyword", "one of each")])
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_does_what_it_does_undecorated(kind: str, below: str, call: str):
    plain = BELOW[below](KINDS[kind])
    args, kwargs = CALLS[call]
    expected = await result_of(plain, *args, **kwargs)
    read, write = AgentCache("order:{order_id}")(plain), AgentCacheInvalidator("order:{order_id}")(plain)
    for _ in range(2):
        assert await result_of(read, *args, **kwargs) == expected
    assert await result_of(write, *args, **kwargs) == expected
    assert await result_of(read.fresh, *args, **kwargs) == expected
    assert (get_metrics()["hits"], get_metrics()["misses"]) == (1, 2)
    async with AgentCacheSession():
        assert await result_of(write, *args, **kwargs) == expected
        assert await result_of(read, *args, **kwargs) == expected


# Defaults of a wrapper


def safe(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(path: str, dry_run: bool = True) -> Any:
        return await function(path, dry_run)

    return inner


def safe_by_keyword(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(path: str, **options: Any) -> Any:
        return await function(path, **{"dry_run": True, **options})

    return inner


def safe_at_all(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any, **options: Any) -> Any:
        options.setdefault("dry_run", True)
        return await function(*args, **options)

    return inner


SAFE: dict[str, Decorator] = {
    "a default of its own": safe,
    "by keyword": safe_by_keyword,
    "a default that it fills in": safe_at_all,
    "a partial": lambda function: functools.update_wrapper(functools.partial(function, dry_run=True), function),
}


@pytest.mark.parametrize("name", SAFE)
async def test_a_write_is_run_with_the_defaults_of_what_is_decorated(name: str):
    """The function inside deletes by default."""
    done: list[tuple[str, bool]] = []

    async def delete_file(path: str, dry_run: bool = False) -> str:
        done.append((path, dry_run))
        return "would delete" if dry_run else "deleted"

    tool = AgentCacheInvalidator("file:{path}")(SAFE[name](delete_file))
    assert await tool("a") == "would delete"
    assert await tool(path="b") == "would delete"
    assert await tool("c", dry_run=False) == "deleted"
    assert done == [("a", True), ("b", True), ("c", False)]
    async with AgentCacheSession():
        assert await tool("d") == "would delete"
    box = Toolbox({"delete_file": Write("file:{path}"), "Safe": Write("file:{path}")}, namespace="wrapped")
    assert await box.tool(SAFE[name](delete_file))("e") == "would delete"


async def test_parameters_are_those_of_the_wrapper_whatever_their_names_are():
    async def fetch(identifier: str, size: int = 5) -> str:
        return f"{identifier} {size}"

    @functools.wraps(fetch)
    async def renamed(order_id: str, count: int = 1) -> str:
        return await fetch(order_id, count)

    tool = AgentCache("order:{order_id}")(renamed)
    assert [await tool("W1"), await tool(order_id="W1", count=1)] == ["W1 1"] * 2
    assert tool.cache_info().misses == 1
    with pytest.raises(ConfigurationError, match="order_id"):
        AgentCache("order:{identifier}")(renamed)


# Identity of calls through `*args, **kwargs`


def runs_of(decorate: Decorator = passing_on) -> tuple[Any, list[Any]]:
    runs: list[Any] = []

    async def search(query: str, limit: int = 10, *, exact: bool = False) -> str:
        runs.append((query, limit, exact))
        return f"{query} {limit} {exact}"

    return AgentCache("search:{query}")(decorate(search)), runs


async def test_positional_and_keyword_spellings_of_one_call_share_an_entry():
    tool, runs = runs_of()
    for call in (tool("a", 5, exact=True), tool("a", exact=True, limit=5), tool(exact=True, limit=5, query="a")):
        await call
    assert runs == [("a", 5, True)]
    assert tool.cache_key("a", 5) == tool.cache_key(limit=5, query="a")


async def test_a_tag_of_what_the_caller_left_out_is_its_whole_root():
    """The wrapper may fill in anything, also another value than the function inside shows."""
    table = "orders"

    def choosing(function: Any) -> Any:
        return around(function, lambda args, kwargs: (args, {"table": table, **kwargs}))

    async def row(key: str, table: str = "carts") -> str:
        return table

    read = AgentCache("row:{table}:{key}")(choosing(row))
    write = AgentCacheInvalidator("row:{table}:{key}")(choosing(row))
    by_name = AgentCacheInvalidator("row:{table}:{key}")(row)

    await read("1")
    await by_name("1", "orders")
    assert not read.contains("1"), "it was read from the table of orders"
    await read("1")
    await read("2", table="users")
    await write("1")
    assert not read.contains("1")
    assert not read.contains("2", table="users"), "which table was written is not known"


async def test_an_argument_that_only_the_wrapper_knows_is_a_part_of_the_call():
    def timed(function: Any) -> Any:
        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            return kwargs.pop("timeout", 1), await function(*args, **kwargs)

        return inner

    tool = AgentCache("order:{order_id}", remote_cache=MemoryTier())(timed(get_order))
    for _ in range(2):
        tool.clear()  # here, and not in the tier
        assert await tool("W1") == (1, "W1 False None")
        assert await tool("W1", timeout=5) == (5, "W1 False None")
        assert await tool(timeout=6, order_id="W1") == (6, "W1 False None")
    assert tool.cache_info().misses == 3


# Functions of the user


async def test_what_varies_by_an_argument_that_was_left_out_runs_uncached():
    """Whose answer it is is not known: the wrapper may fill in any user."""

    async def inbox(folder: str, user: str = "nobody") -> str:
        return folder

    tool = AgentCache("mail", vary=lambda arguments: arguments["user"])(passing_on(inbox))
    for _ in range(2):
        await tool("in")
        await tool("in", "ada")
    assert (get_metrics()["uncached"], get_metrics()["hits"]) == (2, 1)


@pytest.mark.parametrize("below", ["passing on", "injecting"])
async def test_two_users_are_told_apart_by_the_context_that_a_framework_injects(below: str):
    async def inbox(ctx: Any, folder: str, *, db: Any = None) -> str:
        return f"{ctx.deps}: {folder}"

    inbox.__annotations__["ctx"] = RunContext
    tool = AgentCache("mail:{folder}")(BELOW[below](inbox))
    for _ in range(2):
        assert await tool(RunContext("alice"), "in") == "alice: in"
        assert await tool(folder="in", ctx=RunContext("bob")) == "bob: in"
    assert tool.cache_info().misses == 2


async def test_whose_call_it_is_that_leaves_its_context_out_is_not_known():
    """The wrapper may fill in anybody's."""
    users = iter(["alice", "bob"])

    async def inbox(folder: str, ctx: Any = None) -> str:
        return f"{ctx}: {folder}"

    inbox.__annotations__["ctx"] = RunContext | None
    read = AgentCache("mail:{folder}")(around(inbox, lambda args, kwargs: (args, {**kwargs, "ctx": next(users)})))
    assert [await read("in"), await read("in")] == ["alice: in", "bob: in"]
    assert get_metrics()["uncached"] == 2


async def test_whose_call_it_is_that_leaves_a_needed_user_out_is_not_known():
    users = iter(["alice", "bob"])

    async def inbox(folder: str, *, user_id: str) -> str:
        return f"{user_id}: {folder}"

    read = AgentCache("mail:{folder}")(around(inbox, lambda args, kwargs: (args, {"user_id": next(users), **kwargs})))
    assert [await read("in"), await read("in")] == ["alice: in", "bob: in"]
    assert get_metrics()["uncached"] == 2
    assert read.contains("in", user_id="cleo") is False


# Other doors


async def test_a_method_keeps_its_receiver():
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @AgentCache("order:{order_id}")
        @passing_on
        async def get(self, order_id: str, full: bool = False) -> str:
            return f"{self.name} {order_id} {full}"

    one, two = Shop("one"), Shop("two")
    for _ in range(2):
        assert [await one.get("W1"), await two.get("W1")] == ["one W1 False", "two W1 False"]
    assert await Shop.get(one, order_id="W1") == "one W1 False"
    assert Shop.get.cache_info().misses == 2
    with pytest.raises(TypeError, match=r"Shop\.get\.invalidate\(shop"):
        await one.get.invalidate("W1")
    assert list(inspect.signature(one.get).parameters) == ["order_id", "full"]


async def test_retries_of_tenacity_and_functions_of_wrapt_are_passed_through():
    tenacity = pytest.importorskip("tenacity")
    wrapt = pytest.importorskip("wrapt")

    @wrapt.decorator
    async def with_db(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return await wrapped(*args, **{**kwargs, "db": "DB"})

    for decorate, answer in ((tenacity.retry(reraise=True), "W1 False None"), (with_db, "W1 False DB")):
        tool = AgentCache("order:{order_id}", name=answer)(decorate(get_order))
        assert [await tool("W1"), await tool(order_id="W1")] == [answer] * 2
        assert tool.cache_info().misses == 1
        assert inspect.signature(tool) == inspect.signature(get_order)
