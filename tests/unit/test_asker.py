"""Who asks, as an operation says it of the arguments of a call: what recordings keep a digest of."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, Read, Toolbox, UncacheableArgumentsError, Write
from agent_cache.core.asker import Injected, UnknownAsker, asker_in, getters_of


class RunContext:
    __module__ = "pydantic_ai.tools"

    def __init__(self, deps: Any) -> None:
        self.deps = deps


@dataclass
class Deps:
    user: str


Deps.__module__ = "shop"  # the name of the class counts


def asker_of(tool: Any, **arguments: Any) -> Any:
    return tool.__agent_cache__.asker_of(arguments)


def test_of_reads_and_writes_the_user_fields_of_their_contexts_count():
    async def tool(ctx: RunContext, number: int) -> None: ...

    for decorator in (AgentCache("r"), AgentCacheInvalidator("r")):
        decorated = decorator(tool)
        ada, bob = [asker_of(decorated, ctx=RunContext(Deps(user)), number=7) for user in ("ada", "bob")]
        assert isinstance(ada, str)
        assert ada != bob
        assert asker_of(decorated, ctx=RunContext(Deps("ada")), number=8) == ada
        assert asker_of(decorated, ctx=RunContext(None), number=7) is None
        with pytest.raises(UnknownAsker, match="shared=True"):
            asker_of(decorated, ctx=RunContext(object()), number=7)
    for decorator in (AgentCache("s", shared=True), AgentCacheInvalidator("s", shared=True)):
        assert asker_of(decorator(tool), ctx=RunContext(Deps("ada")), number=7) is None


def test_what_vary_returns_counts_in_their_place():
    @AgentCache("r", vary=lambda given: given["ctx"].deps.user)
    async def tool(ctx: RunContext, number: int) -> None: ...

    ada, bob = [asker_of(tool, ctx=RunContext(Deps(user)), number=7) for user in ("ada", "bob")]
    assert ada != bob
    with pytest.raises(UncacheableArgumentsError, match="vary= raised AttributeError"):
        asker_of(tool, ctx=RunContext(None), number=7)


async def test_of_a_tool_known_by_name_the_callers_vary_and_context_count():
    for rule in (Read("r"), Write("r")):
        box, seen = Toolbox({"tool": rule}, namespace="desk"), []

        async def call(box: Toolbox = box, seen: list[Any] = seen, **options: Any) -> Any:
            from agent_cache.engine.scope import PLACE

            async def run() -> None:
                place: Any = PLACE.get()
                seen.append(place.call.operation.asker_of(place.call.arguments))

            await box.call("tool", {"number": len(seen)}, run, **options)
            return seen[-1]

        ada, bob = [await call(context=RunContext(Deps(user))) for user in ("ada", "bob")]
        assert ada != bob
        assert await call(context=RunContext(Deps("ada"))) == ada
        assert await call() is None
        assert await call(vary="x") is not None


def test_the_digest_of_equal_fields_is_the_same_in_every_process():
    contexts = [Injected("context", RunContext(Deps("ada")))]
    assert asker_in(contexts) == "d9d078747d7ab734192bfb2d79dff256"


def get_access_token() -> str:
    """Stands for that of a server."""
    return "token"


token_of_the_server = get_access_token


def helper() -> str:
    return get_access_token()


class Service:
    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    @property
    def user(self) -> str:
        return helper()


service = Service()


def by_name() -> str:
    return get_access_token()


def by_another_name() -> str:
    return token_of_the_server()


def by_helper() -> str:
    return helper()


def by_object() -> str:
    return service.user


def by_class() -> str:
    return Service().user


def by_closure() -> str:
    inner = [helper() for _ in range(1)]
    return inner[0]


class Unbound:
    """A proxy without its object, as those of web frameworks outside of a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


current = Unbound()


class Layer:
    def get_config(self) -> str:
        return "the layer's own"


layer = Layer()


def of_nobody() -> str:
    return f"{current}{layer}"


def for_the_user(function: Any) -> Any:
    """A decorator that passes who asks."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, token=helper())

    return inner


@for_the_user
def by_decorator(token: str) -> str:
    return token


class Inbox:
    def mails(self, folder: str) -> str:
        return f"{self._token()} {folder}"

    def _token(self) -> str:
        return helper()


TOOLS = [
    *(by_name, by_another_name, by_helper, by_object, by_class, by_closure, by_decorator, functools.partial(by_helper)),
    functools.partial(Inbox().mails, "in"),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_asks_for_its_context_is_known_by_what_it_names(tool: Any):
    assert getters_of(tool) == ("get_access_token",)
    assert AgentCache("r")(tool).__agent_cache__.parameters.getters == ("get_access_token",)
    assert getters_of(of_nobody) == ()
