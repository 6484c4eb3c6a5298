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
    LoopHints,
    configure,
    get_metrics,
    invalidate,
    tags_from,
    writing,
)

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
    "nameless field": ("order:{}", "parameter"),
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


class Tool:
    """A class, and a few more objects that are no functions."""

    async def method(self) -> str:
        return "a"

    async def __call__(self) -> str:
        return "b"


BARE: dict[str, tuple[Any, str]] = {
    "a function": (identity, "identity"),
    "a bound method": (Tool().method, "Tool.method"),
    "a class": (Tool, "Tool"),
    "a builtin": (len, "len"),
    "nothing": (None, "None"),
    "a decorator": (AgentCache("order"), "AgentCache"),
}


@pytest.mark.parametrize("decorator", BOTH)
@pytest.mark.parametrize("name", BARE)
def test_a_decorator_without_its_resource(decorator: Any, name: str):
    bare, fact = BARE[name]
    refused(lambda: decorator(bare), f'@{decorator.__name__}("order:{{order_id}}")', fact)
    refused(lambda: decorator(resource=bare), "parentheses", fact)


@pytest.mark.parametrize("decorator", BOTH)
def test_a_function_of_tags_that_cannot_be_called_so(decorator: Any):
    for function in (lambda: 1, lambda a, b, c: 1, lambda *, arguments: 1):
        computed = tags_from("order", function)
        refused(functools.partial(decorator(computed), look_up), "look_up", "'order'", "arguments")


def test_tags_without_a_root_or_a_function():
    refused(lambda: tags_from("", lambda arguments: 1), "tags_from", "root")
    refused(lambda: tags_from(None, lambda arguments: 1), "tags_from", "root")  # type: ignore[arg-type]
    refused(lambda: tags_from("order", "id"), "tags_from", "order", "function")  # type: ignore[arg-type]


OPTIONS: dict[str, dict[str, Any]] = {
    "unknown scope": {"scope": "sesion"},
    "ttl zero": {"ttl": 0},
    "ttl zero seconds": {"ttl": timedelta(0)},
    "ttl negative": {"ttl": -1},
    "ttl negative timedelta": {"ttl": timedelta(seconds=-1)},
    "ttl NaN": {"ttl": float("nan")},
    "ttl infinite": {"ttl": float("inf")},
    "ttl text": {"ttl": "60"},
    "ttl True": {"ttl": True},
    "maxsize zero": {"maxsize": 0},
    "maxsize text": {"maxsize": "128"},
    "loop of another kind": {"loop": "poll"},
    "copy misspelt": {"copy": "deep"},
    "uncacheable misspelt": {"uncacheable": "ignore"},
    "key no function": {"key": "order_id"},
    "vary no function": {"vary": "tenant"},
    "cache_if no function": {"cache_if": True},
    "backup no tier": {"backup": object()},
    "remote_cache no tier": {"remote_cache": "redis://localhost"},
    "skip_args negative": {"skip_args": -1},
    "skip_args too many": {"skip_args": 3},
    "ignore text": {"ignore": "order_id"},
    "ignore no names": {"ignore": (1,)},
}
FIXES = {
    "scope": "'session'",
    "ttl": "seconds",
    "maxsize": "None",
    "copy": "'auto'",
    "uncacheable": "'bypass'",
    "ignore": '("ctx",)',
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_work(name: str):
    (option, value), *_ = OPTIONS[name].items()
    text = refused(lambda: AgentCache("order", **OPTIONS[name])(look_up), option, FIXES.get(option, ""))
    assert "look_up" in text or "AgentCache" in text
    assert repr(value) in text or type(value).__name__ in text


WRITE_OPTIONS: dict[str, dict[str, Any]] = {
    "unknown scope": {"scope": "local"},
    "settle negative": {"settle": -1},
    "doubt negative": {"doubt": timedelta(seconds=-5)},
    "doubt NaN": {"doubt": float("nan")},
    "in_doubt an instance": {"in_doubt": TimeoutError()},
    "in_doubt no exception": {"in_doubt": [int]},
    "no_effect a number": {"no_effect": 5},
    "ok no function": {"ok": True},
    "loop of another kind": {"loop": None},
    "a poll without an end": {"loop": LoopHints(poll=True)},
    "clear_all no bool": {"clear_all": "yes"},
    "key_fn no function": {"clear_all": False, "key_fn": "order_id"},
    "backup no tier": {"backup": object()},
    "remote_cache no tier": {"remote_cache": "redis://localhost"},
    "ignore text": {"ignore": "order_id"},
}


@pytest.mark.parametrize("name", WRITE_OPTIONS)
def test_an_option_of_a_write_that_cannot_work(name: str):
    option = list(WRITE_OPTIONS[name])[-1]
    refused(
        lambda: AgentCacheInvalidator("order", **WRITE_OPTIONS[name])(look_up),
        "AgentCacheInvalidator",
        "'order'",
        option,
    )


def test_clear_all_false_needs_a_key_fn():
    refused(
        lambda: AgentCacheInvalidator("order", clear_all=False), "AgentCacheInvalidator('order')", "key_fn", "cache_key"
    )


@pytest.mark.parametrize("decorator", [AgentCache, AgentCacheInvalidator])
def test_ignore_of_what_is_no_parameter_names_those_there_are(decorator: Any):
    refused(lambda: decorator("order", ignore=("ctx",))(look_up), "look_up", "'ctx'", "order_id")


def test_ignore_of_what_a_tag_depends_on_is_refused_unless_something_else_tells_calls_apart():
    refused(lambda: AgentCache("order:{order_id}", ignore=("order_id",))(look_up), "look_up", "'order_id'", "vary")
    AgentCache("order:{order_id}", ignore=("order_id",), vary=lambda given: given["order_id"])(look_up)
    AgentCache("order:{order_id}", ignore=("order_id",), key=lambda *_: 1)(look_up)
    AgentCacheInvalidator("order:{order_id}", ignore=("order_id",))(look_up)


def test_skip_args_of_a_write_is_a_type_error_that_names_key_fn():
    refused(lambda: AgentCacheInvalidator("order", skip_args=1), "AgentCacheInvalidator", "key_fn", error=TypeError)


NO_KEYS: dict[str, Any] = {
    "the id": "7",
    "a tuple of arguments": ("7",),
    "a key among others": "mixed",
}


@pytest.mark.parametrize("name", NO_KEYS)
async def test_a_key_fn_that_returns_no_key_stops_the_write_before_its_effect(name: str):
    effects = []
    read = AgentCache("order")(look_up)
    returned = [read.cache_key("7"), "7"] if NO_KEYS[name] == "mixed" else NO_KEYS[name]

    @AgentCacheInvalidator("order", clear_all=False, key_fn=lambda args, kwargs: returned)
    async def cancel(order_id: str) -> None:
        effects.append(order_id)

    with pytest.raises(ConfigurationError) as caught:
        await cancel("7")
    for fact in ("cancel", "key_fn", "cache_key"):
        assert fact in str(caught.value)
    assert effects == []


async def _nothing(loop: object) -> None:
    """Its answer would be a coroutine that nobody awaits."""


SESSIONS: dict[str, dict[str, Any]] = {
    "max_tool_repeats one": {"max_tool_repeats": 1},
    "max_tool_repeats without detection": {"max_tool_repeats": 1, "loop_detection": False},
    "max_execution_depth zero": {"max_execution_depth": 0},
    "max_execution_depth without detection": {"max_execution_depth": 0, "loop_detection": False},
    "loop_policy of another kind": {"loop_policy": "strict"},
    "on_notice of another kind": {"on_notice": "warn"},
    "on_notice of no use": {"on_notice": _nothing},
    "on_loop of no use": {"on_loop": _nothing},
    "on_loop misspelt": {"on_loop": "rise"},
    "trace_size zero": {"trace_size": 0},
    "loop_detection a word": {"loop_detection": "off"},
    "session_id empty": {"session_id": ""},
    "tenant without identity": {"tenant": object()},
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_that_cannot_work(name: str):
    option = next(iter(SESSIONS[name]))
    refused(lambda: AgentCacheSession(**SESSIONS[name]), "Session", option)


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
        assert await AgentCache("order", "session")(look_up)("7") == "7", "the refusals have not ended it"
        assert session.get_metrics()["misses"] == 1


async def test_a_session_is_not_left_in_another_context():
    session = AgentCacheSession("s7")
    await asyncio.create_task(session.__aenter__())
    with pytest.raises(ConfigurationError) as caught:
        await session.__aexit__(None, None, None)
    for fact in ("s7", "context", "async with"):
        assert fact in str(caught.value)


async def test_what_the_body_raised_is_not_lost_when_a_session_is_left_in_another_context():
    session = AgentCacheSession("s7")
    await asyncio.create_task(session.__aenter__())
    error = ValueError("the agent's own")
    with pytest.raises(ConfigurationError) as caught:
        await session.__aexit__(ValueError, error, None)
    assert caught.value.__cause__ is error


async def test_a_session_is_not_left_without_having_been_entered():
    session = AgentCacheSession("s7")
    with pytest.raises(ConfigurationError, match="s7"):
        await session.__aexit__(None, None, None)
    async with session:
        pass
    with pytest.raises(ConfigurationError, match="s7"):
        await session.__aexit__(None, None, None)


# -- What is no tool -----------------------------------------------------------------------------------------


@functools.wraps(look_up)
def wrapper(*args: Any, **kwargs: Any) -> Any:
    return look_up(*args, **kwargs)


class Shop:
    async def stock(self) -> int:
        return 1


NO_TOOLS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "staticmethod": (staticmethod(look_up), ("staticmethod", "closest", "below")),
    "wrapper of an async function": (wrapper, ("look_up", "awaited", "closest")),
    "class": (Shop, ("Shop", "takes functions", "async def")),
    "builtin": (len, ("len", "takes functions")),
    "partial of a tool": (functools.partial(AgentCache("order")(look_up)), ("look_up", "already")),
    "bound method": (Shop().stock, ("stock", "method")),
    "None": (None, ("async def",)),
}


@pytest.mark.parametrize("decorator", BOTH)
@pytest.mark.parametrize("name", NO_TOOLS)
def test_what_is_no_function_of_one_result_is_refused_with_what_to_do(decorator: Any, name: str):
    thing, facts = NO_TOOLS[name]
    refused(lambda: decorator("order")(thing), decorator.__name__, *facts, error=TypeError)


@pytest.mark.parametrize("outer", BOTH)
@pytest.mark.parametrize("inner", BOTH)
def test_a_tool_is_decorated_once(outer: Any, inner: Any):
    refused(lambda: outer("order")(inner("order")(look_up)), "look_up", "already", error=TypeError)


@pytest.mark.parametrize("decorator", BOTH)
def test_a_function_that_fastmcp_has_registered_already_is_refused(decorator: Any):
    async def tool(x: int) -> int:
        return x

    tool.__fastmcp__ = object()  # type: ignore[attr-defined]
    refused(lambda: decorator("order")(tool), "tool", "FastMCP", "below", error=TypeError)


# -- Beside the decorators -----------------------------------------------------------------------------------


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "max_bytes zero": {"max_bytes": 0},
    "max_bytes text": {"max_bytes": "1 MB"},
    "enabled text": {"enabled": "no"},
    "remote no tier": {"remote": "redis://localhost"},
    "backup no tier": {"backup": object()},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
async def test_a_configuration_that_cannot_work_changes_nothing(name: str):
    option = next(iter(CONFIGURATIONS[name]))
    read = AgentCache("order")(look_up)
    await read("7")
    refused(lambda: configure(**CONFIGURATIONS[name]), "configure", option)
    await read("7")
    assert get_metrics()["hits"] == 1


NO_TAGS: dict[str, tuple[Any, ...]] = {
    "none": (),
    "empty": ("",),
    "empty in a sequence": (("order", ""),),
    "a number": (7,),
    "good and bad": ("order:7", ""),
}


@pytest.mark.parametrize("name", NO_TAGS)
async def test_tags_that_are_none(name: str):
    with pytest.raises(ConfigurationError, match=r"tag|invalidate"):
        await invalidate(*NO_TAGS[name])
    entered = False
    with pytest.raises(ConfigurationError, match=r"tag|writing"):
        async with writing(*NO_TAGS[name]):
            entered = True
    assert not entered
    assert get_metrics()["invalidations"] == 0


def test_an_error_is_of_the_library_and_of_the_kind_that_python_knows():
    from agent_cache import AgentCacheError, UncacheableArgumentsError

    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(ConfigurationError, AgentCacheError)
    assert issubclass(UncacheableArgumentsError, TypeError)
    assert issubclass(UncacheableArgumentsError, AgentCacheError)
    assert "agent_cache" in sys.modules
