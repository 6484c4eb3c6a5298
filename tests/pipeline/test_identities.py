"""Two live tools of one name share a tier only if they are one tool: else bob gets alice's mail.

Only the name tells entries of a tier apart. A `functools.partial`, a decorator with a token, the method of a client:
all of them have the name of the function that they call.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, ConfigurationError, Read, Toolbox, configure
from agent_cache.remote import FileTier
from agent_cache.testing import MemoryServer, MemoryTier

pytestmark = pytest.mark.usefixtures("clock")

TIER = MemoryTier()
TOKENS: list[str] = []


async def read_mail(user: str, folder: str, clients: Any = ()) -> str:
    return f"{user}: {folder}"


def read_mail_at_once(user: str, folder: str) -> str:
    return f"{user}: {folder}"


async def inbox(folder: str) -> str:
    return f"{TOKENS[-1]}: {folder}"


def logged(function: Any) -> Any:
    """A decorator of somebody's: all that it makes has the same code."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


def with_token(token: str) -> Callable[[Any], Any]:
    """A decorator for a client that takes its token from a global."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            TOKENS.append(token)
            return await function(*args, **kwargs)

        return inner

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
        self.lock = threading.Lock()

    async def read(self, folder: str) -> str:
        return f"{self.user}: {folder}"


def wrapped_method(user: str) -> Any:
    method = Client(user).read

    @functools.wraps(method)
    async def read(folder: str) -> Any:
        return await method(folder)

    return read


def named_partial(user: str) -> Any:
    """A partial as frameworks want it, with the name of what it calls."""
    return functools.update_wrapper(functools.partial(read_mail, user), read_mail)


MADE: dict[str, Callable[[str], Any]] = {
    "a partial": lambda user: functools.partial(read_mail, user),
    "a partial of a def": lambda user: functools.partial(read_mail_at_once, user=user),
    "a partial with update_wrapper": named_partial,
    "a partial of a method": lambda user: functools.partial(Client(user).read),
    "a partial with a list of clients": lambda user: functools.partial(read_mail, user, clients=[Client(user)]),
    "a decorator with a token": lambda user: with_token(user)(inbox),
    "a decorator around one with a token": lambda user: logged(with_token(user)(inbox)),
    "a decorator with a token in a default": lambda user: with_default(user)(inbox),
    "a wrapper around a method": wrapped_method,
    "a default of its own": lambda user: lambda folder, user=user: f"{user}: {folder}",
}


async def answer(tool: Any, folder: str) -> Any:
    found = tool(folder=folder)
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("name", MADE)
async def test_two_that_bind_different_users_are_refused_until_they_have_names(name: str, server: MemoryServer):
    tier = MemoryTier(server)
    alice = AgentCache("mail:{folder}", remote_cache=tier)(MADE[name]("alice"))
    assert await answer(alice, "in") == "alice: in"
    with pytest.raises(ConfigurationError, match="name=") as caught:
        AgentCache("mail:{folder}", remote_cache=tier)(MADE[name]("bob"))
    assert "alice" not in str(caught.value), "nothing that is bound is shown"
    bob = AgentCache("mail:{folder}", remote_cache=tier, name="mail of bob")(MADE[name]("bob"))
    assert [await answer(bob, "in"), await answer(alice, "in")] == ["bob: in", "alice: in"]


async def test_a_tier_that_is_configured_later_is_checked_at_the_first_call(tmp_path: Path):
    alice, bob = (AgentCache("mail:{folder}")(named_partial(user)) for user in ("alice", "bob"))
    assert [await alice(folder="in"), await bob(folder="in")] == ["alice: in", "bob: in"], "each has its own store"
    with configure(remote=FileTier(tmp_path / "cache.db")):
        for tool in (alice, bob):
            with pytest.raises(ConfigurationError, match="two tools"):
                await tool(folder="out")
        with pytest.raises(ConfigurationError, match="two tools"):
            AgentCache("mail:{folder}")(named_partial("cleo"))
    assert await bob(folder="out") == "bob: out"


async def test_so_are_those_of_a_toolbox(server: MemoryServer):
    with configure(remote=MemoryTier(server)):
        box = Toolbox({"read_mail": Read("mail:{folder}")}, namespace="bound")
        alice = box.tool(functools.partial(read_mail, "alice"))
        assert await alice("in") == "alice: in"
        with pytest.raises(ConfigurationError, match="name"):
            await box.tool(functools.partial(read_mail, "bob"))("in")


UPPER, LOWER = (lambda text: text.upper()), (lambda text: text.lower())


def test_two_lambdas_of_a_module_are_two_tools(server: MemoryServer):
    tier = MemoryTier(server)
    upper = AgentCache("text", remote_cache=tier)(UPPER)
    with pytest.raises(ConfigurationError, match="name="):
        AgentCache("text", remote_cache=tier)(LOWER)
    again = AgentCache("text", remote_cache=tier)(UPPER)
    assert [upper("a"), again("a")] == ["A", "A"]


# Functions of a factory


def made(answer: str, tier: MemoryTier | None = None, **options: Any) -> Any:
    """A tool of a factory: every one has the same name."""

    async def get_order(id: str) -> str:
        return answer

    return AgentCache("order:{id}", remote_cache=tier, **options)(get_order)


@pytest.mark.parametrize("second", ["one", "another"])
async def test_two_tools_of_one_factory_are_refused_at_decoration(second: str, server: MemoryServer):
    """Also if they bind the same."""
    tier = MemoryTier(server)
    first = made("one", tier)
    with pytest.raises(ConfigurationError, match=r"made\.<locals>\.get_order.*name="):
        made(second, tier)
    assert await first("7") == "one"
    assert await made(second, tier, name="second")("7") == second


async def test_one_that_nobody_has_any_more_does_not_count(server: MemoryServer):
    """Suites define tools of one name again and again. A tool refers to itself, so it waits for the collector."""
    tier = MemoryTier(server)
    gc.disable()
    try:
        for each in ("first", "second", "third"):
            tool = made(each, tier)
            assert await tool.fresh("7") == each
            del tool
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [lambda kind: kind, dataclass, dataclass(slots=True)])
async def test_nor_does_a_class_that_nobody_has_any_more(kind: Callable[[type], Any], server: MemoryServer):
    """What is remembered of classes goes with them."""
    tier = MemoryTier(server)
    for number in ("one", "two", "three"):

        class Shop:
            @AgentCache("order:{order}", remote_cache=tier)
            async def get(self, order: str) -> str:
                return order

        assert await kind(Shop)().get(number) == number
        del Shop


async def test_other_tiers_and_none_are_not_concerned(server: MemoryServer):
    """Two processes in one interpreter, as tests have them, and tools whose answers stay here."""
    tools = [made("a", MemoryTier(server)), made("b", MemoryTier(server)), made("c"), made("d")]
    assert [await tool("7") for tool in tools] == ["a", "a", "c", "d"]


async def test_one_function_may_be_decorated_twice(server: MemoryServer):
    tier = MemoryTier(server)
    tools = [AgentCache("mail:{folder}", remote_cache=tier, ttl=ttl)(read_mail) for ttl in (1, 2)]
    assert [await tool("ada", "in") for tool in tools] == ["ada: in"] * 2


async def test_two_functions_of_two_modules_that_were_given_one_name_are_refused(server: MemoryServer):
    tier = MemoryTier(server)
    source = "@AgentCache('row:{id}', remote_cache=TIER, name='get')\nasync def get(id): return __name__"
    namespaces = [{"AgentCache": AgentCache, "TIER": tier, "__name__": name} for name in ("orders", "users")]
    exec(source, namespaces[0])
    with pytest.raises(ConfigurationError, match=r"orders:get.*users:get"):
        exec(source, namespaces[1])


async def test_a_tool_that_other_processes_could_not_name_says_that_no_tier_keeps_its_answers(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # as in a notebook, or at a prompt
    for name in ("__main__:inbox", "inbox"):
        await AgentCache("mail", name=name, remote_cache=MemoryTier(server))(logged(read_mail))("ada", "in")
    assert [record.agent_cache_tool for record in caplog.records if "name=" in record.message] == ["__main__:inbox"]


# Modules that are run again

SOURCE = """
import functools
from agent_cache import AgentCache
from tests.pipeline.test_identities import TIER, logged, with_token

UNSET = object()

@AgentCache("order:{id}", remote_cache=TIER)
async def plain(id): return "VERSION"

@AgentCache("order:{id}", remote_cache=TIER)
@with_token("TOKEN")
async def wrapped(id): return "VERSION"

@AgentCache("order:{id}", remote_cache=TIER)
@logged
async def with_default(id, page=UNSET, limit=10): return "VERSION"

class Shop:
    @AgentCache("order:{id}", remote_cache=TIER, skip_args=1)
    async def get(self, id):
        super().__init__()
        return "VERSION"

async def helper(id, other): return "VERSION"
bound = AgentCache("order:{id}", remote_cache=TIER, name="bound")(functools.partial(helper, other=UNSET))
TOOLS = [plain, wrapped, with_default, functools.partial(Shop.get, Shop()), bound]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be written anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "tools_of_a_test.py"
    path.write_text(SOURCE.replace("VERSION", "old"))
    yield path
    sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("registry_has_them", [False, True])
async def test_a_module_may_be_loaded_again(module: Path, *, registry_has_them: bool):
    """Whether somebody still has the former tools or not, and wherever the new ones stand."""
    tools = importlib.import_module(module.stem)
    registry = list(tools.TOOLS) if registry_has_them else []
    assert len([await tool("7") for tool in tools.TOOLS]) == 5
    assert await tools.plain.fresh("7") == "old"
    module.write_text("\n\n" + SOURCE.replace("VERSION", "new"))
    importlib.reload(tools)
    await tools.plain.invalidate("7")
    assert await tools.plain("7") == "new"
    if registry:
        assert await registry[0].fresh("7") == "old"


async def test_a_cell_may_be_run_again_while_a_registry_has_its_former_function(server: MemoryServer):
    """As it stood, and changed. Both are one tool, as it is to two processes of which one has the newer code."""
    namespace: dict[str, Any] = {"AgentCache": AgentCache, "TIER": MemoryTier(server), "__name__": "__main__"}
    registry = namespace["registry"] = []
    cell = """
@AgentCache("order:{id}", remote_cache=TIER, name="cell:get")
async def get(id): return "VERSION"
registry.append(get)
"""
    for number, version in enumerate(("old", "old", "new")):
        exec(compile("\n" * number + cell.replace("VERSION", version), f"<cell {number}>", "exec"), namespace)
    assert [await tool.fresh("7") for tool in registry] == ["old", "old", "new"]
