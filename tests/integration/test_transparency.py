"""A decorated tool is the tool: frameworks read the same signature and hints, and callers get the same exceptions."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import sys
import traceback
import typing
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AsyncCache,
    LoopHints,
    LoopPolicy,
    Read,
    RemotePolicy,
    Toolbox,
    Write,
    get_metrics,
)
from agent_cache.testing import MemoryTier
from tests.harness.gates import Gate, idle

pytestmark = pytest.mark.usefixtures("clock")

# Tools as a user's module has them: annotations that are text, types that only this module knows


@dataclass
class Order:
    order_id: str
    lines: list[str]


def plain_functions() -> dict[str, Callable[..., Any]]:
    """Undecorated tools of every shape of signature."""

    async def get_order(order_id: str, *, verbose: bool = False) -> Order:
        """Look an order up.

        Args:
            order_id: its number.
        """
        return Order(order_id, [])

    async def positional(a: int, /, b: int = 2, *args: str, c: Order | None = None, **kwargs: int) -> list[Order]:
        """Every kind of parameter."""
        return []

    async def defaults(a: list[int] = [1], b: Order = Order("1", []), c: object = print) -> dict[str, Order]:  # noqa: B006, B008
        """Defaults that no literal can spell."""
        return {}

    async def nothing() -> None:
        """Takes nothing."""

    async def shadowing(key: str, entry: int, scope: str, type: str, value: int, str: str, store: int) -> str:
        """Parameters that are called as a generated body might call its own names."""
        return key

    return {function.__name__: function for function in (get_order, positional, defaults, nothing, shadowing)}


def make_shop() -> type:
    class Shop:
        """A class whose methods are tools."""

        name = "shop"

        @AgentCache("stock:{item}")
        async def stock(self, item: str, *, at: Order | None = None) -> list[Order]:
            """How much there is."""
            return [Order(item, [self.name])]

        @AgentCacheInvalidator("stock:{item}")
        async def take(self, item: str) -> Order:
            """Take one."""
            return Order(item, [])

        @staticmethod
        @AgentCache("price:{item}")
        async def price(item: str, currency: str = "EUR") -> Order:
            """What it costs."""
            return Order(item, [currency])

        @classmethod
        @AgentCache("label")
        async def label(cls, item: str) -> Order:
            """What it is called."""
            return Order(item, [cls.name])

    return Shop


DECORATORS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "cached": lambda: AgentCache("r"),
    "cached in a session": lambda: AgentCache("r", "session"),
    "invalidating": lambda: AgentCacheInvalidator("r"),
}


@pytest.fixture(params=DECORATORS)
def decorate(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return DECORATORS[request.param]()


@pytest.mark.parametrize("name", plain_functions())
def test_a_framework_reads_the_tools_own_interface(decorate: Callable[[Any], Any], name: str):
    tool = plain_functions()[name]
    tool.note = "kept"
    decorated = decorate(tool)
    assert inspect.signature(decorated) == inspect.signature(tool)
    assert str(inspect.signature(decorated)) == str(inspect.signature(tool))
    assert typing.get_type_hints(decorated) == typing.get_type_hints(tool)
    assert inspect.iscoroutinefunction(decorated)
    assert inspect.isfunction(decorated)
    assert not inspect.isasyncgenfunction(decorated)
    for attribute in ("__annotations__", "__doc__", "__name__", "__qualname__", "__module__", "note"):
        assert getattr(decorated, attribute) == getattr(tool, attribute)
    assert decorated.__wrapped__ is tool
    assert inspect.getsource(decorated) == inspect.getsource(tool)


@pytest.mark.parametrize("name", ["stock", "take", "price", "label"])
def test_methods_keep_their_interface_on_the_class_and_on_the_instance(name: str):
    shop = make_shop()
    for owner in (shop, shop()):
        method = getattr(owner, name)
        tool = method.__wrapped__
        bound = inspect.ismethod(method)
        parameters = list(inspect.signature(tool).parameters.values())[1 if bound else 0 :]
        assert list(inspect.signature(method).parameters.values()) == parameters
        assert inspect.iscoroutinefunction(method)
        assert typing.get_type_hints(method) == typing.get_type_hints(tool)
        assert method.__doc__ == tool.__doc__
        assert method.__qualname__ == f"make_shop.<locals>.Shop.{name}"


async def test_methods_are_called_on_the_class_and_on_the_instance():
    shop = make_shop()
    one = shop()
    assert await one.stock("tea") == await shop.stock(one, "tea") == await shop.stock(self=one, item="tea")
    assert await one.price("tea") == await shop.price("tea") == await shop.price(item="tea", currency="EUR")
    assert await one.label("tea") == await shop.label("tea")
    metrics = get_metrics()
    assert (metrics["misses"], metrics["hits"]) == (3, 5)
    await shop.take(one, "tea")
    await one.stock("tea")
    assert get_metrics()["misses"] == 4


def test_a_decorated_tool_carries_what_it_was_decorated_with():
    async def tool(x: int) -> int:
        return x

    resource = ["order:{x}", "cart"]
    cached = AgentCache(resource, "session")(tool)
    assert cached.resource == resource
    assert cached.scope == "session"
    assert cached.__agent_cache__.name == f"{tool.__module__}:{tool.__qualname__}"
    write = AgentCacheInvalidator("order")(tool)
    assert (write.resource, write.scope) == ("order", "global")
    assert AgentCache("order", name="mine")(tool).__agent_cache__.name == "mine"


def test_a_decorated_tool_is_pickled_and_copied_as_a_function_is(monkeypatch: pytest.MonkeyPatch):
    async def tool(x: int) -> int:
        return x

    decorated = AgentCache("r")(tool)
    assert copy.copy(decorated) is decorated
    assert copy.deepcopy(decorated) is decorated
    decorated.__qualname__ = decorated.__name__ = "pickled_tool"
    monkeypatch.setattr(sys.modules[__name__], "pickled_tool", decorated, raising=False)
    decorated.__module__ = __name__
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    callbacks = [decorated.invalidate, decorated.clear]
    assert copy.deepcopy(callbacks) == callbacks
    for one in (*callbacks, decorated.cache_key(1)):
        with pytest.raises(TypeError, match="define it in a module that both import"):
            pickle.dumps(one)


async def test_what_settings_hold_is_copied_with_them_or_says_why_not():
    """A copy of a toolbox, a cache or a session is itself, so answers are shared; a toolbox is sent as its rules."""
    box, cache = Toolbox({"get_*": Read("order:{id}", ttl=60), "put": Write("order")}, namespace="copied"), AsyncCache()
    key = box.tool(get_order).cache_key("7")  # type: ignore[attr-defined]  # the box knows of no attributes
    held = [box, cache, key, session := AgentCacheSession("held")]
    async with session:
        assert all(one is other for one, other in zip(held, copy.deepcopy({"held": held})["held"], strict=True))
        assert list(map(copy.copy, held)) == held
        with pytest.raises(TypeError, match="'held' is entered here"):
            pickle.dumps(session)
    assert pickle.loads(pickle.dumps(session)).session_id == "held"
    await box.call("get_order", {"id": "7"}, lambda: get_order("7"))
    sent = pickle.loads(pickle.dumps(box))
    assert str(sent.explain()) == str(box.explain())
    assert await sent.call("get_order", {"id": "7"}, lambda: get_order("8")) == "8", "without the answers of here"
    assert await sent.call("get_order", {"id": "7"}, lambda: get_order("9")) == "8"
    for one in (cache, MemoryTier()):
        with pytest.raises(TypeError, match="process"):
            pickle.dumps(one)
    policies = RemotePolicy(on_unreachable="refuse"), LoopPolicy(), LoopHints(poll=True)
    for sent in (copy.deepcopy(policies), pickle.loads(pickle.dumps(policies))):
        assert sent == policies


async def get_order(id: str) -> str:
    return id


async def test_the_tool_gets_its_default_objects_and_the_very_arguments():
    default: list[int] = []
    seen = []

    async def tool(x: Any, y: Any = default) -> int:
        seen.append((x, y))
        return len(seen)

    for decorate in (AgentCache("r"), AgentCache("r", "session"), AgentCacheInvalidator("w")):
        given: list[str] = ["x"]
        await decorate(tool)(given)
        assert seen[-1][0] is given
        assert seen[-1][1] is default


@pytest.mark.parametrize("call", [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"x": 1})])
async def test_a_wrong_call_is_the_type_error_of_the_tool(decorate: Callable[[Any], Any], call: Any):
    async def tool(x: int, y: int = 2) -> int:
        return x

    args, kwargs = call
    with pytest.raises(TypeError) as expected:
        await tool(*args, **kwargs)
    with pytest.raises(TypeError) as caught:
        await decorate(tool)(*args, **kwargs)
    assert "argument" in str(expected.value)
    assert "argument" in str(caught.value)


# -- Exceptions ----------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Stop(BaseException):
    pass


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("no"),
    "BaseException": Stop,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "CancelledError": asyncio.CancelledError,
    "StopAsyncIteration": StopAsyncIteration,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), OSError("two")]),
    "unprintable": Unprintable,
}


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a session"])
@pytest.mark.parametrize("name", [name for name in ERRORS if name not in {"KeyboardInterrupt", "SystemExit"}])
async def test_what_the_tool_raises_reaches_the_caller_as_it_is(
    decorate: Callable[[Any], Any], name: str, inside: bool
):
    error = ERRORS[name]()

    async def tool() -> None:
        raise error

    decorated = decorate(tool)

    async def call() -> None:
        if not inside:
            await decorated()
        async with AgentCacheSession():
            await decorated()

    with pytest.raises(type(error)) as caught:
        await call()
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "tool"
    assert all(frame.line for frame in frames), "the source of generated code must be found"


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
def test_what_ends_the_program_ends_the_event_loop(decorate: Callable[[Any], Any], name: str):
    error = ERRORS[name]()

    async def tool() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        asyncio.run(decorate(tool)())
    assert caught.value is error
    assert error.__context__ is None


async def test_callers_that_share_a_flight_share_its_exception_and_no_context_of_each_other():
    gate = Gate()

    @AgentCache("r")
    async def tool() -> None:
        await gate()

    async def caller(business: Exception) -> Any:
        try:
            raise business
        except Exception:
            return (await asyncio.gather(tool(), return_exceptions=True))[0]

    tasks = [asyncio.ensure_future(caller(LookupError(number))) for number in range(3)]
    await idle()
    error = ValueError("no")
    gate.last.raises(error)
    assert await asyncio.gather(*tasks) == [error] * 3
    assert len(gate.calls) == 1
    assert error.__context__ is None


async def test_none_is_an_answer_like_any_other():
    tool = AgentCache("r")(asyncio.sleep)
    assert await tool(0) is await tool(0) is None
    assert tool.cache_info()[:2] == (1, 1)


# -- Nothing is kept alive -----------------------------------------------------------------------------------


async def test_a_tool_that_nobody_has_any_more_is_freed_with_its_answers():
    class Answer(str):
        pass

    async def tool(x: int) -> Answer:
        return Answer("answer")

    made = AgentCache("r:{x}", copy="never")(tool)
    answer = weakref.ref(await made(1))
    async with AgentCacheSession():
        await made(1)
    operation = weakref.ref(made.__agent_cache__)
    del made
    gc.collect()
    assert operation() is None
    assert answer() is None


async def test_the_caller_keeps_its_context_variables_and_task():
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    tasks = []

    @AgentCache("r")
    async def tool() -> str:
        tasks.append(asyncio.current_task())
        seen = variable.get()
        variable.set("by the tool")
        return seen

    variable.set("by the caller")
    assert await tool() == "by the caller"
    assert variable.get() == "by the tool", "as when the tool is awaited undecorated"
    assert tasks == [asyncio.current_task()]
