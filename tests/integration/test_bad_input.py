"""What cannot work is refused at the earliest moment, by an error that names the tool or the decorator, and the fix."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    ConfigurationError,
    Inner,
    LoopHints,
    Read,
    RemotePolicy,
    Toolbox,
    Write,
    bypass,
    configure,
    get_metrics,
    invalidate,
    tags_from,
    writing,
)
from agent_cache.recording import cached_llm_call, intercept, record
from agent_cache.testing import MemoryTier

pytestmark = pytest.mark.usefixtures("clock")

BOTH = [AgentCache, AgentCacheInvalidator]


async def look_up(order_id: str, limit: int = 10) -> str:
    return order_id


def identity(value: str) -> str:
    return value


def refused(make: Callable[[], Any], *facts: str, error: type[Exception] = ConfigurationError) -> str:
    """The text of the refusal, which must hold these facts."""
    with pytest.raises(error) as caught:
        make()
    text = str(caught.value)
    assert type(caught.value) is error
    for fact in facts:
        assert fact in text, f"{fact!r} is not in {text!r}"
    return text


MALFORMED = {
    "empty": ("", "empty"),
    "no resource": ((), "non-empty"),
    "bytes": (b"order", "tags_from"),
    "one of several is a number": (["order", 5], "5"),
    "a function": ([len], "tags_from"),
    "empty middle segment": ("order::lines", "empty parts"),
    "no fixed root": ("{order_id}", "fixed root"),
    "root that is partly a field": ("order{order_id}", "fixed root"),
    "unknown parameter": ("order:{order}", "'order'"),
    "unknown parameter's attribute": ("order:{order.id}", "'order'"),
    "nameless field": ("order:{}", "fields {a}"),
    "number": ("order:{0}", "fields {a}"),
    "number with an attribute": ("order:{0.a}", "fields {a}"),
    "key of nothing": ("order:{[a]}", "fields {a}"),
    "a space before an id": ("order: {order_id}", "spaces"),
    "a space after the root": ("order :{order_id}", "spaces"),
    "a space in a field": ("order:{ order_id }", "spaces"),
    "wildcard": ("order:{order_id}:*", "wildcards"),
    "conversion": ("order:{order_id!r}", "formats"),
    "format": ("order:{order_id:>8}", "format"),
    "open brace": ("order:{order_id", "order:{order_id"),
    "empty attribute": ("order:{order_id.}", "order:{order_id.}"),
}


@pytest.mark.parametrize("decorator", BOTH)
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_resource(decorator: Any, name: str):
    resource, fact = MALFORMED[name]
    refused(lambda: decorator(resource)(look_up), "look_up", fact)
    if fact != "'order'":  # which another tool may have
        refused(lambda: (Read if decorator is AgentCache else Write)(resource), fact)


# -- What is decorated, and how ------------------------------------------------------------------------------


class Tool:
    """A class, and objects that are no functions of one result."""

    async def method(self) -> str:
        return "a"

    async def __call__(self) -> str:
        return "b"


@functools.wraps(look_up)
def wrapper(*args: Any, **kwargs: Any) -> Any:
    return look_up(*args, **kwargs)


def draw(order_id: str) -> Any:
    yield order_id


SHOP = Toolbox({"*": Read("order")}, namespace="bad")
CACHES = {"AgentCache": AgentCache("order"), "AgentCacheInvalidator": AgentCacheInvalidator("order")}
CACHES |= {"Toolbox.tool": SHOP.tool, "Toolbox.tool()": SHOP.tool()}  # type: ignore[dict-item]  # functions
RECORDERS = {"intercept": intercept, "intercept()": intercept(), "cached_llm_call": cached_llm_call}
DECORATORS: dict[str, Any] = {**CACHES, **RECORDERS, "cached_llm_call()": cached_llm_call()}
NO_FUNCTIONS = {
    "class": Tool,
    "property": property(identity),
    "cached property": functools.cached_property(identity),
    "staticmethod": staticmethod(look_up),
    "classmethod": classmethod(look_up),  # type: ignore[arg-type]  # what is inside of one does not matter here
    "partial method": functools.partialmethod(identity, "7"),
    "text": "order:{order_id}",
}
NO_TOOLS: dict[str, tuple[Any, str]] = {
    "wrapper of an async function": (wrapper, "awaited"),
    "builtin": (len, "on a `def` that calls it"),
    "partial of a tool": (functools.partial(AgentCache("order")(look_up)), "already"),
    "read tool": (AgentCache("order")(look_up), "already"),
    "write tool": (AgentCacheInvalidator("order")(look_up), "already"),
    "bound method": (Tool().method, "method"),
    "object that is called": (Tool(), "Tool"),
    "cached function": (functools.lru_cache(identity), "identity"),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_what_is_decorated_is_a_function_and_only_once(name: str):
    """Every decorator of ours says of anything else where it belongs."""
    decorator, called = DECORATORS[name], name.removesuffix("()")
    error = TypeError if name in CACHES else ConfigurationError
    for thing in NO_FUNCTIONS.values():
        refused(functools.partial(decorator, thing), called, "below", error=error)
    for thing, fact in NO_TOOLS.values() if name in CACHES else ():
        refused(functools.partial(decorator, thing), called, fact, "below" * (fact != "already"), error=error)
    for function in (identity, look_up, draw):
        decorated = decorator(function)
        assert decorated.__wrapped__ is function
        refused(functools.partial(decorator, decorated), function.__name__, "already", error=error)
    result = decorator(identity)("7")
    assert result == "7"


@pytest.mark.parametrize("decorator", BOTH)
def test_a_decorator_without_its_resource(decorator: Any):
    bare = [identity, wrapper, Tool().method, Tool, len, None, AgentCache("order"), *NO_FUNCTIONS.values()][:-1]
    for one in bare:
        refused(functools.partial(decorator, one), f'@{decorator.__name__}("order:{{order_id}}")', "parentheses")
        refused(functools.partial(decorator, resource=one), "parentheses")


@pytest.mark.parametrize("decorator", BOTH)
def test_a_function_that_fastmcp_has_registered_already_is_refused(decorator: Any):
    async def tool(x: int) -> int:
        return x

    tool.__fastmcp__ = object()  # type: ignore[attr-defined]
    refused(lambda: decorator("order")(tool), "tool", "FastMCP", "below", error=TypeError)


@pytest.mark.parametrize("make", [bypass, AgentCacheSession, configure, lambda: writing("order"), lambda: record("x")])
def test_a_block_is_no_decorator(make: Any):
    """An `async def` would run after it was left."""
    refused(lambda: make()(look_up), "decorator", "with")


@pytest.mark.parametrize("decorator", BOTH)
def test_a_function_of_tags_that_cannot_be_called_so(decorator: Any):
    for root, function, fact in (
        ("order", later, "plain"),
        ("", identity, "root"),
        (None, identity, "root"),
        ("o", "id", "'o'"),
    ):
        refused(functools.partial(tags_from, root, function), "tags_from", fact)  # type: ignore[arg-type]
    for wrong in (lambda: 1, lambda a, b, c: 1, lambda *, arguments: 1):
        computed = tags_from("order", wrong)
        refused(functools.partial(decorator(computed), look_up), "look_up", "'order'", "arguments")


async def later(*_: Any) -> Any:
    """A coroutine is true, hashable by address, and never awaited."""


OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    *((decorator, {"scope": "sesion"}, "'session'") for decorator in BOTH),
    *((decorator, {"loop": "poll"}, "LoopHints") for decorator in BOTH),
    *((decorator, {"backup": object()}, "tier") for decorator in BOTH),
    *((decorator, {"remote_cache": "redis://localhost"}, "tier") for decorator in BOTH),
    *((decorator, {"ignore": given}, '("ctx",)') for decorator in BOTH for given in ("order_id", (1,))),
    *((AgentCache, {"ttl": given}, "seconds") for given in (0, timedelta(0), -1, timedelta(seconds=-1))),
    *((AgentCache, {"ttl": given}, "seconds") for given in (float("nan"), float("inf"), "60", True)),
    *((AgentCache, {"maxsize": given}, "None") for given in (0, "128")),
    *((AgentCache, {"skip_args": given}, "positional parameters") for given in (-1, 3)),
    *((AgentCache, {"copy": given}, "function") for given in ("deep", later)),
    *((AgentCache, {"key": given}, "function") for given in ("order_id", later)),
    *((AgentCache, {"vary": given}, "function") for given in ("tenant", later)),
    *((AgentCache, {"cache_if": given}, "function") for given in (True, later, lambda: True)),
    *((AgentCache, {"vary": given}, "1 argument") for given in (lambda one, other: 1, lambda *, tenant: 1)),
    *((AgentCache, {"ttl": given}, "1 argument") for given in (lambda: 5, lambda one, other: 5)),
    (AgentCache, {"copy": lambda: 1}, "1 argument"),
    *(
        (AgentCache, {"key": given}, "('order_id', 'limit')")
        for given in (lambda order_id: 1, lambda: 1, lambda o, *, l: 1)
    ),
    *((AgentCache, {"ttl": 5, "validate": given}, "('order_id', 'limit')") for given in (lambda: 1, lambda old: 1)),
    (AgentCache, {"uncacheable": "ignore"}, "'bypass'"),
    (AgentCache, {"ttl": 5, "remote": RemotePolicy(grace=5), "grace": 5}, "twice"),
    (AgentCache, {"scope": "session", "remote_cache": MemoryTier(), "remote": RemotePolicy()}, "share=True"),
    (AgentCache, {"max_stream_bytes": 5}, "generators"),
    *((AgentCacheInvalidator, {"doubt": given}, "seconds") for given in (timedelta(seconds=-5), float("nan"))),
    (AgentCacheInvalidator, {"settle": -1}, "seconds"),
    *((AgentCacheInvalidator, {"in_doubt": given}, "exception classes") for given in (TimeoutError(), [int])),
    (AgentCacheInvalidator, {"no_effect": 5}, "exception classes"),
    *((AgentCacheInvalidator, {"ok": given}, "function") for given in (True, later, lambda: True)),
    (AgentCacheInvalidator, {"loop": LoopHints(poll=True)}, "max_unchanged"),
    (AgentCacheInvalidator, {"clear_all": "yes"}, "True or False"),
    *(
        (AgentCacheInvalidator, {"clear_all": False, "key_fn": given}, "function")
        for given in ("order_id", later, lambda key: 1)
    ),
    (AgentCacheInvalidator, {"clear_all": False}, "key_fn"),
    *((decorator, {"ignore": ("ctx",)}, "'ctx'; the parameters of the tool are: order_id") for decorator in BOTH),
    *(
        (decorator, {"name": given}, "name")
        for decorator in BOTH
        for given in (5, [], b"order", "", type(None), object())
    ),
    *((make, {"tttl": 5}, "tttl") for make in (*BOTH, Read, Write)),
]


@pytest.mark.parametrize(("decorator", "options", "fix"), OPTIONS)
def test_an_option_that_cannot_work(decorator: Any, options: dict[str, Any], fix: str):
    """The text names the tool or the decorator, the option, and what it may be."""
    error = TypeError if "tttl" in options else ConfigurationError
    text = refused(lambda: decorator("order", **options)(look_up), [*options][-1], fix, error=error)
    assert "look_up" in text or f"{decorator.__name__}('order')" in text or error is TypeError
    assert get_metrics()["tools"] == {}, "the counters can be read"


def test_ignore_of_what_a_tag_depends_on_is_refused_unless_something_else_tells_calls_apart():
    refused(lambda: AgentCache("order:{order_id}", ignore=("order_id",))(look_up), "look_up", "'order_id'", "vary")
    AgentCache("order:{order_id}", ignore=("order_id",), vary=lambda given: given["order_id"])(look_up)
    AgentCache("order:{order_id}", ignore=("order_id",), key=lambda *_: 1)(look_up)
    AgentCacheInvalidator("order:{order_id}", ignore=("order_id",))(look_up)


def test_skip_args_of_a_write_is_a_type_error_that_names_key_fn():
    refused(lambda: AgentCacheInvalidator("order", skip_args=1), "AgentCacheInvalidator", "key_fn", error=TypeError)


@pytest.mark.parametrize("returned", ["7", ("7",), "mixed"], ids=["the id", "arguments", "a key among others"])
async def test_a_key_fn_that_returns_no_key_stops_the_write_before_its_effect(returned: Any):
    effects = []
    if returned == "mixed":
        returned = [AgentCache("order")(look_up).cache_key("7"), "7"]

    @AgentCacheInvalidator("order", clear_all=False, key_fn=lambda args, kwargs: returned)
    async def cancel(order_id: str) -> None:
        effects.append(order_id)

    with pytest.raises(ConfigurationError) as caught:
        await cancel("7")
    for fact in ("cancel", "key_fn", "cache_key"):
        assert fact in str(caught.value)
    assert effects == []


SESSIONS: list[dict[str, Any]] = [
    *({"max_tool_repeats": 1, "loop_detection": detects} for detects in (True, False)),
    *({"max_execution_depth": 0, "loop_detection": detects} for detects in (True, False)),
    *({"on_notice": given} for given in ("warn", later)),
    *({"on_loop": given} for given in ("rise", later)),
    *({"loop_policy": "strict"}, {"trace_size": 0}, {"loop_detection": "off"}, {"session_id": ""}),
    *({"tenant": object()}, {"journal": object()}, {"journal": 5, "session_id": "s7"}, {"drift": 5}),
]


@pytest.mark.parametrize("options", SESSIONS, ids=lambda options: next(iter(options)))
def test_a_session_that_cannot_work(options: dict[str, Any]):
    refused(lambda: AgentCacheSession(**options), "Session", next(iter(options)))


async def test_a_session_is_not_entered_twice_at_once():
    session = AgentCacheSession("s7")
    async with session:
        with pytest.raises(ConfigurationError, match=r"s7.*already entered"):
            await session.__aenter__()
        with pytest.raises(ConfigurationError, match="s7"):
            async with session:
                pytest.fail("entered")

        async def elsewhere() -> None:
            async with session:
                pytest.fail("entered")

        with pytest.raises(ConfigurationError, match="s7"):
            await asyncio.create_task(elsewhere())
        for block in (session.attach(), configure(enabled=True)):
            with block, pytest.raises(ConfigurationError, match="block is already entered"), block:  # type: ignore[attr-defined]
                pytest.fail("entered")
        assert await AgentCache("order", "session")(look_up)("7") == "7", "the refusals have not ended it"
        assert session.get_metrics()["misses"] == 1


@pytest.mark.parametrize("where", ["in another task", "before an inner session"])
@pytest.mark.parametrize("error", [None, ValueError("the agent's own")], ids=["returns", "raises"])
async def test_a_session_is_not_left_in_another_context(where: str, error: ValueError | None):
    """And what its body raised is not lost."""
    session = AgentCacheSession("s7")
    if where == "in another task":
        await asyncio.create_task(session.__aenter__())
    else:
        await session.__aenter__()
        await AgentCacheSession("inner").__aenter__()
    with pytest.raises(ConfigurationError, match=r"'s7' was left in another context.*async with") as caught:
        await session.__aexit__(type(error), error, None)
    assert caught.value.__cause__ is error


async def test_a_session_is_not_left_without_having_been_entered():
    session = AgentCacheSession("s7")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="s7"):
            await session.__aexit__(None, None, None)
        async with session:
            pass


# -- Beside the decorators -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("max_bytes", given) for given in (0, "1 MB")),
        *(("enabled", "no"), ("remote", "redis://localhost"), ("backup", object())),
    ],
)
async def test_a_configuration_that_cannot_work_changes_nothing(option: str, given: Any):
    read = AgentCache("order")(look_up)
    await read("7")
    refused(lambda: configure(**{option: given}), "configure", option)
    await read("7")
    assert get_metrics()["hits"] == 1


def test_a_toolbox_that_cannot_work():
    refused(lambda: Toolbox(["get_order"], namespace="bad"), "rules", "mapping")  # type: ignore[arg-type]
    refused(lambda: SHOP.call_sync(7, {}, lambda: 1), "name", "7")  # type: ignore[arg-type]
    refused(lambda: SHOP.explain("get_order"), "explain", "list of names", error=TypeError)
    meta = Toolbox({"*": Inner(tool="tool", arguments="arguments")}, namespace="bad")
    refused(lambda: meta.tool(look_up), "look_up", "Toolbox.call")


@pytest.mark.parametrize(
    "tags",
    [
        *((), ("",), (("order", ""),), (("order", None),), (("order", [object()]),), (7,), ("order:7", "")),
        *(("order:*",), ("order:{order_id}",), ("user:7:{order.id}",)),
    ],
)
async def test_tags_that_are_none(tags: Any):
    with pytest.raises(ConfigurationError, match=r"tag|invalidate"):
        await invalidate(*tags)
    with pytest.raises(ConfigurationError, match=r"tag|writing"):
        async with writing(*tags):
            pytest.fail("entered")
    assert get_metrics()["invalidations"] == 0


def test_an_error_is_of_the_library_and_of_the_kind_that_python_knows():
    from agent_cache import AgentCacheError, UncacheableArgumentsError

    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(ConfigurationError, AgentCacheError)
    assert issubclass(UncacheableArgumentsError, TypeError)
    assert issubclass(UncacheableArgumentsError, AgentCacheError)
    assert "agent_cache" in sys.modules
