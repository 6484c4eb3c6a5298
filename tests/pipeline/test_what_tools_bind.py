"""Two tools of one name that share a tier are one tool only if they bind the same things: else bob gets alice's mail.

Only the name tells entries of a tier apart. A `functools.partial`, a decorator with a token, the method of a client:
all of them have the name of the function that they call.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, ConfigurationError, Read, Toolbox, configure
from agent_cache.remote import FileTier
from agent_cache.testing import MemoryServer, MemoryTier

pytestmark = pytest.mark.usefixtures("clock")


async def read_mail(user: str, folder: str) -> str:
    return f"{user}: {folder}"


def read_mail_at_once(user: str, folder: str) -> str:
    return f"{user}: {folder}"


async def inbox(folder: str) -> str:
    return f"{TOKENS[-1]}: {folder}"


def inbox_at_once(folder: str) -> str:
    return f"{TOKENS[-1]}: {folder}"


async def inbox_of(folder: str, client: Any = None) -> str:
    return f"{client.user}: {folder}"


TOKENS: list[str] = []


def with_token(token: str) -> Callable[[Any], Any]:
    """A decorator of somebody's, for a client that takes its token from a global."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            TOKENS.append(token)
            return await function(*args, **kwargs)

        @functools.wraps(function)
        def inner_at_once(*args: Any, **kwargs: Any) -> Any:
            TOKENS.append(token)
            return function(*args, **kwargs)

        return inner if asyncio.iscoroutinefunction(function) else inner_at_once

    return decorate


def with_default(token: str) -> Callable[[Any], Any]:
    """The same, which keeps the token in a default."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        async def inner(*args: Any, _token: str = token, **kwargs: Any) -> Any:
            TOKENS.append(_token)
            return await function(*args, **kwargs)

        return inner

    return decorate


class Client:
    def __init__(self, user: str) -> None:
        self.user = user

    async def read(self, folder: str) -> str:
        return f"{self.user}: {folder}"


def named_partial(function: Any, user: str) -> Any:
    """A partial as frameworks want it, with the name of what it calls."""
    made = functools.partial(function, user)
    functools.update_wrapper(made, function)
    return made


def wrapped_method(user: str) -> Any:
    method = Client(user).read

    @functools.wraps(method)
    async def read(folder: str) -> Any:
        return await method(folder)

    return read


def bound_client(user: str) -> Any:
    made = functools.partial(inbox_of, client=Client(user))
    functools.update_wrapper(made, inbox_of)
    return made


MADE: dict[str, Callable[[str], Any]] = {
    "a partial": lambda user: functools.partial(read_mail, user),
    "a partial by keyword": lambda user: functools.partial(read_mail, user=user),
    "a partial of a def": lambda user: functools.partial(read_mail_at_once, user),
    "a partial with update_wrapper": functools.partial(named_partial, read_mail),
    "a partial of a def with update_wrapper": functools.partial(named_partial, read_mail_at_once),
    "a partial of a partial": lambda user: functools.partial(functools.partial(read_mail), user),
    "a partial of a method": lambda user: functools.partial(Client(user).read),
    "a partial with a client": bound_client,
    "a decorator with a token": lambda user: with_token(user)(inbox),
    "the same of a def": lambda user: with_token(user)(inbox_at_once),
    "a decorator around one with a token": lambda user: with_token("nobody")(with_token(user)(inbox)),
    "a partial of what a decorator made": lambda user: functools.partial(with_token(user)(inbox)),
    "a decorator with a token in a default": lambda user: with_default(user)(inbox),
    "a wrapper around a method": wrapped_method,
}


async def answer(tool: Any, folder: str) -> Any:
    found = tool(folder=folder)
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("name", MADE)
async def test_two_that_bind_different_users_are_refused_until_they_have_names(name: str, server: MemoryServer):
    tier = MemoryTier(server)
    alice = AgentCache("mail:{folder}", remote_cache=tier)(MADE[name]("alice"))
    assert await answer(alice, "in") == "alice: in"
    with pytest.raises(ConfigurationError, match="name="):
        AgentCache("mail:{folder}", remote_cache=tier)(MADE[name]("bob"))
    bob = AgentCache("mail:{folder}", remote_cache=tier, name="mail of bob")(MADE[name]("bob"))
    assert [await answer(bob, "in"), await answer(alice, "in")] == ["bob: in", "alice: in"]


@pytest.mark.parametrize("name", MADE)
async def test_so_are_they_at_their_first_call_on_a_tier_that_is_configured(name: str, tmp_path: Path):
    alice, bob = (AgentCache("mail:{folder}")(MADE[name](user)) for user in ("alice", "bob"))
    assert [await answer(alice, "in"), await answer(bob, "in")] == ["alice: in", "bob: in"]
    with configure(remote=FileTier(tmp_path / "cache.db")):
        for tool in (alice, bob):
            with pytest.raises(ConfigurationError, match="name="):
                await answer(tool, "out")


@pytest.mark.parametrize("name", ["a partial with update_wrapper", "a decorator with a token"])
async def test_so_are_they_in_a_toolbox(name: str, server: MemoryServer):
    tool = functools.partial(MADE[name]("alice"))
    called = getattr(tool.func, "__name__", type(tool.func).__name__)
    with configure(remote=MemoryTier(server)):
        box = Toolbox({called: Read("mail:{folder}")}, namespace="bound")
        alice = box.tool(MADE[name]("alice"))
        assert await answer(alice, "in") == "alice: in"
        with pytest.raises(ConfigurationError, match="name"):
            await answer(box.tool(MADE[name]("bob")), "in")


VALUES: dict[str, Callable[[], Any]] = {
    "a partial": lambda: functools.partial(read_mail, "alice"),
    "a partial with update_wrapper": lambda: named_partial(read_mail, "alice"),
    "a decorator with a token": lambda: with_token("alice")(inbox),
    "a decorator with a token in a default": lambda: with_default("alice")(inbox),
}


@pytest.mark.parametrize("name", VALUES)
async def test_two_that_bind_the_same_values_are_one_tool(name: str, server: MemoryServer):
    tier = MemoryTier(server)
    tools = [AgentCache("mail:{folder}", remote_cache=tier)(VALUES[name]()) for _ in range(2)]
    assert [await answer(tool, "in") for tool in tools] == ["alice: in"] * 2


UPPER, LOWER = (lambda text: text.upper()), (lambda text: text.lower())


def test_two_lambdas_of_a_module_are_two_tools(server: MemoryServer):
    tier = MemoryTier(server)
    upper = AgentCache("text", remote_cache=tier)(UPPER)
    with pytest.raises(ConfigurationError, match="name="):
        AgentCache("text", remote_cache=tier)(LOWER)
    again = AgentCache("text", remote_cache=tier)(UPPER)
    assert [upper("a"), again("a")] == ["A", "A"]


async def get_mail(folder: str, clients: Any = ()) -> str:
    return f"{clients[0].user}: {folder}"


def test_what_containers_hold_is_compared_as_well(server: MemoryServer):
    tier, client = MemoryTier(server), Client("alice")

    def bound(*clients: Client) -> Any:
        return functools.partial(get_mail, clients=list(clients))

    tools = [AgentCache("mail", remote_cache=tier)(bound(client)) for _ in range(2)]
    for other in (bound(Client("bob")), bound(client, client), bound()):
        with pytest.raises(ConfigurationError, match="name="):
            tools.append(AgentCache("mail", remote_cache=tier)(other))


MODULE = """
import functools, threading
from agent_cache import AgentCache
from tests.pipeline.test_what_tools_bind import TIER, Retry, with_token

UNSET = object()

class Shop:
    def __init__(self): self.lock = threading.Lock()
    def get(self, id):
        super().__init__()
        return id

@AgentCache("order:{id}", remote_cache=TIER)
@with_token("TOKEN")
async def wrapped(id): return "VERSION"

@AgentCache("order:{id}", remote_cache=TIER)
@Retry(3)
async def retried(id): return "VERSION"

@AgentCache("order:{id}", remote_cache=TIER)
async def with_default(id, page=UNSET, limit=10): return "VERSION"

class Shop:
    @AgentCache("order:{id}", remote_cache=TIER)
    async def get(self, id):
        super().__init__()
        return "VERSION"

async def helper(id, other): return "VERSION"
bound = AgentCache("order:{id}", remote_cache=TIER, name="bound")(functools.partial(helper, other=UNSET))
TOOLS = [wrapped, retried, with_default, Shop.get, bound]
"""
TIER = MemoryTier()


class Policy:
    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self.local = threading.local()


class Retry:
    """A decorator with an object of its own for each function."""

    def __init__(self, attempts: int) -> None:
        self.policy = Policy(attempts)

    def __call__(self, function: Any) -> Any:
        policy = self.policy

        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            assert policy.attempts
            return await function(*args, **kwargs)

        return inner


def test_a_module_that_is_loaded_again_has_the_same_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While somebody still has the former tools. The objects are others, made by the same code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "bound_tools_of_a_test.py"
    path.write_text(MODULE.replace("VERSION", "old"))
    module = importlib.import_module(path.stem)
    former = list(module.TOOLS)
    path.write_text("\n" + MODULE.replace("VERSION", "new"))
    try:
        importlib.reload(module)
        assert len(former) == len(module.TOOLS) == 5
    finally:
        sys.modules.pop(path.stem, None)


def test_nothing_that_is_bound_is_in_the_error(server: MemoryServer):
    tier = MemoryTier(server)
    tools = [AgentCache("mail:{folder}", remote_cache=tier)(MADE["a partial"]("secret-of-alice"))]
    with pytest.raises(ConfigurationError) as caught:
        tools.append(AgentCache("mail:{folder}", remote_cache=tier)(MADE["a partial"]("secret-of-bob")))
    assert "secret" not in str(caught.value)
    assert "read_mail" in str(caught.value)


def test_without_a_tier_each_has_a_cache_of_its_own():
    tools = [AgentCache("mail:{folder}")(functools.partial(read_mail_at_once, user)) for user in ("alice", "bob")]
    assert [tool("in") for tool in tools] == ["alice: in", "bob: in"]
