"""Two users of a tool that gets a framework's context share no answer, and one user has the hits that there were."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    ConfigurationError,
    Read,
    Toolbox,
    Write,
    get_metrics,
)
from agent_cache.integrations import explain, wrap
from agent_cache.recording import record, replay
from agent_cache.testing import MemoryServer, MemoryTier
from agent_cache.toolbox import ToolInfo
from tests.harness import library

pytestmark = pytest.mark.usefixtures("clock")


class RunContext:
    """Stands for Pydantic AI's, which is known by its name and module."""

    __module__ = "pydantic_ai.tools"

    def __init__(self, deps: Any, metadata: Any = None) -> None:
        self.deps = deps
        self.metadata = metadata
        self.run_id = str(uuid.uuid4())
        self.messages = [object()]


class RunContextWrapper:
    __module__ = "agents.run_context"

    def __init__(self, context: Any) -> None:
        self.context = context


class ToolRuntime:
    __module__ = "langgraph.prebuilt.tool_node"

    def __init__(self, context: Any = None, state: Any = None, **configurable: Any) -> None:
        self.context, self.state, self.store = context, state, object()
        self.config = {"configurable": {"thread_id": str(uuid.uuid4()), "__pregel_read": print, **configurable}}


class RunnableConfig(dict[str, Any]):
    __module__ = "langchain_core.runnables.config"


class ReadonlyContext:
    __module__ = "google.adk.agents.readonly_context"

    def __init__(self, user_id: str, **state: Any) -> None:
        self.user_id, self.state, self.invocation_id = user_id, state, str(uuid.uuid4())


class FunctionInvocationContext(types.SimpleNamespace):
    __module__, metadata = "agent_framework._middleware", None


class Client:
    """A connection: no data, and nothing that says who asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()


@dataclass
class Deps:
    user: str
    client: Client = field(default_factory=Client)


class Pair(NamedTuple):
    name: str
    client: Client


class Plain:
    def __init__(self, name: str) -> None:
        self._name = name


class Slots:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Name(str):
    __slots__ = ()


@dataclass
class Anonymous:
    """Deps whose user hides in an object that is no data."""

    token: Plain


class Member:
    """As of an object-relational mapper, with references in both directions."""

    def __init__(self, name: str) -> None:
        self.profile = types.SimpleNamespace(user=self, account=types.SimpleNamespace(owner=self))
        self.title = name


class Absent:
    """Computes what it has."""

    @property
    def name(self) -> str:
        return "ada"


class WrapperOfUser(RunContextWrapper):
    """A program's own, whose class is no framework's."""

    __module__ = __name__

    def __init__(self, context: Any, user: str) -> None:
        super().__init__(context)
        self.user = user


class Anyone:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def of_package(name: str, **attributes: Any) -> Any:
    """An object of a class that an installed package defines."""
    return type(name, (Anyone,), {"__module__": pytest.__name__})(**attributes)


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: {"inner": inner}, range(depth), "ada")


def reading(kind: Any = RunContext, **options: Any) -> Any:
    """A decorated tool that returns how often it has run, called with a context."""
    runs = itertools.count()

    async def tool(ctx: Any, number: int = 0) -> int:
        return next(runs)

    tool.__annotations__["ctx"] = kind
    return AgentCache("ticket", **options)(tool)


async def answers(read: Any, contexts: Any) -> list[int]:
    return [await read(one) for one in contexts]


DEPS: dict[str, Callable[[str], Any]] = {
    "a text": str,
    "a dict": lambda name: {"user": name, "client": Client()},
    "a dict of dicts": lambda name: {"session": {"user": {"id": name}}},
    "a dataclass": Deps,
    "a named tuple": lambda name: Pair("eu", types.SimpleNamespace(owner=Plain(name))),
    "a tuple": lambda name: (name, "eu"),
    "a list of roles": lambda name: {"roles": ["reader", name]},
    "a plain object": Plain,
    "an object with slots": Slots,
    "a user in a plain object": lambda name: {"auth": types.SimpleNamespace(user=Plain(name))},
    "a user beside a client in a plain object": lambda name: Anyone(user=name, client=Client()),
    "a text of a class of one's own": Name,
    "a secret": lambda name: Anonymous(Plain(name)),
    "objects of other classes in a list": lambda name: {"people": [type(name, (Plain,), {})("7")]},
    "plain objects in a list": lambda name: {"lang": "en", "people": [Plain(name)]},
    "a user who is referred to by what she has": lambda name: {"lang": "en", "user": Member(name)},
    "a user of another package's class": lambda name: {"lang": "en", "user": of_package("Principal", _raw={"s": name})},
    "a request of another package": lambda name: {
        "lang": "en",
        "http": of_package(
            "WebRequest", method="GET", headers={"Authorization": name, "TraceParent": uuid.uuid4()}, stream=Client()
        ),
    },
    "a user that a program has put on a request": lambda name: of_package(
        "WebRequest", method="GET", headers={}, stream=Client(), user_id=name
    ),
    "a request of the program's own": lambda name: dataclass(
        type("AgentRequest", (), {"__annotations__": {"user": str, "headers": dict}})
    )(name, {}),
    "a plain request of the program's own": lambda name: type("AgentRequest", (Anyone,), {})(headers={}, title=name),
    "what is called as a step, and holds a user": lambda name: {"step": {"user": name, "number": 7}},
    "what is called as an id, and holds a user": lambda name: {"run_id": {"user": name, "number": 7}},
}
CONTEXTS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    **{f"deps: {name}": (RunContext, lambda user, made=made: RunContext(made(user))) for name, made in DEPS.items()},
    "OpenAI Agents": (RunContextWrapper, lambda user: RunContextWrapper(Deps(user))),
    "LangGraph's context": (ToolRuntime, lambda user: ToolRuntime(Deps(user))),
    "LangGraph's configurable": (ToolRuntime, lambda user: ToolRuntime(customer=user)),
    "LangGraph's own user id": (ToolRuntime, lambda user: ToolRuntime(langgraph_user_id=user)),
    "a user in LangGraph's state": (ToolRuntime, lambda user: ToolRuntime(state={"m": [object()], "user_name": user})),
    "a RunnableConfig": (RunnableConfig, lambda user: {"configurable": {"user_id": user}, "callbacks": object()}),
    "a RunnableConfig with a user": (RunnableConfig, lambda user: {"user": user, "configurable": {"thread_id": 7}}),
    "metadata of a RunnableConfig": (RunnableConfig, lambda user: {"metadata": {"user_id": user, "langgraph_step": 3}}),
    "Agent Framework's run": (FunctionInvocationContext, lambda user: FunctionInvocationContext(kwargs={"plan": user})),
    "ADK's user": (ReadonlyContext, lambda user: ReadonlyContext(user)),
    "ADK's user state": (ReadonlyContext, lambda user: ReadonlyContext("a", **{"user:x": user, "turn": uuid.uuid4()})),
    "metadata of a run": (RunContext, lambda user: RunContext(None, {"tenantId": user, "attempt": uuid.uuid4()})),
    **{
        f"a subclass of a context around {context}": (
            RunContextWrapper,
            lambda user, context=context: WrapperOfUser(context, user),
        )
        for context in (None, {"region": "eu"}, {"user_id": "z"})
    },
    **{
        f"a state with {name}": (
            ToolRuntime,
            lambda user, name=name: ToolRuntime(state={name: user, "turn": uuid.uuid4(), "progress_token": object()}),
        )
        for name in (
            "user", "user_id", "userId", "userid", "user_info", "current_user", "x_user_id", "subject", "sub", "uid",
            "customer_email", "tenant", "organisation_id", "auth", "session", "token", "access_token", "claims",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONTEXTS)
async def test_users_are_told_apart_by(name: str):
    kind, made = CONTEXTS[name]
    users = ("ada", "robert", "ada", "robert")
    assert await answers(reading(kind), map(made, users)) == [0, 1, 0, 1]
    assert get_metrics()["uncached"] == 0


ONE_USER: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "nothing of its own": (RunContext, lambda number: RunContext(None) if number else None),
    "ids of runs, threads and requests": (
        RunContext,
        lambda number: RunContext({"user": "ada", "run_id": number, "trace_id": str(number), "threadId": number}),
    ),
    "the steps of a graph": (
        ToolRuntime,
        lambda step: ToolRuntime(
            state={"messages": [object()] * step, "remaining_steps": step, "draft": str(step)}, checkpoint_ns=str(step)
        ),
    ),
    "the data of a graph": (
        ToolRuntime,
        lambda step: ToolRuntime(state={"documents": {str(one): {"user": step} for one in range(20_000)}}),
    ),
    "more rows than a user can be": (
        RunContext,
        lambda number: RunContext({"user": "ada", "rows": dict.fromkeys(map(str, range(20_000)), number)}),
    ),
    "a run's id beside something else": (RunContext, lambda number: RunContext({"run_id": number, "lang": "en"})),
    **{
        f"a context made anew around {what}": (
            RunContext,
            lambda _, made=made: RunContext({"user": "ada", "lang": "en", "session": made(), "x": made()}),
        )
        for what, made in {
            "a logger": lambda: logging.getLogger("x"),
            "a function": lambda: print,
            "a client of one's own": Client,
            "a client of a package": lambda: of_package("HttpClient", headers={"x": uuid.uuid4()}, p=threading.Lock()),
            "a session of a package": lambda: of_package("AsyncSession", sync=threading.Lock(), started=uuid.uuid4()),
        }.items()
    },
}


@pytest.mark.parametrize("name", ONE_USER)
async def test_one_user_has_her_hits_with(name: str):
    kind, made = ONE_USER[name]
    assert await answers(reading(kind), map(made, range(3))) == [0] * 3
    assert get_metrics()["uncached"] == 0


# What cannot be told

OPAQUE: dict[str, tuple[str, Callable[[], Any]]] = {
    "a client alone": ("", Client),
    "a client with settings": ("", lambda: Anyone(headers={}, timeout=5.0, pool=Client())),
    "a function": ("", lambda: lambda: "ada"),
    "an object without attributes": ("", object),
    "what computes all that it has": ("", Absent),
    "a client beside a constant": ("deps.x", lambda: {"lang": "en", "x": Client()}),
    "an object that may hold a client": ("", lambda: {"lang": "en", "x": Anyone(name="ada", lock=threading.Lock())}),
    "more than a user can be": ("deps.rows", lambda: {"lang": "en", "rows": list(range(20_000))}),
    "more rows than a user can be": (
        "deps.rows",
        lambda: {"lang": "en", "rows": dict.fromkeys(map(str, range(20_000)))},
    ),
    "an id of a run alone": ("", lambda: {"run_id": 7}),
    "a step of a graph alone": ("", lambda: {"langgraph_step": 7}),
    # One user that cannot be compared keeps all from being shared.
    "a function named for someone": ("deps.user", lambda: {"tenant_id": 1, "user": lambda: "ada"}),
    "what computes all, named for someone": ("deps.auth", lambda: {"tenant_id": 1, "auth": Absent()}),
    "what is nested too deep": ("reading its context", lambda: {"tenant_id": 1, "inner": nested(2_000)}),
}


@pytest.mark.parametrize("name", OPAQUE)
async def test_nothing_is_shared_with_one_warning_by(name: str, caplog: pytest.LogCaptureFixture):
    what, made = OPAQUE[name]
    with caplog.at_level(logging.WARNING):
        assert await answers(reading(), [RunContext(made()) for _ in range(3)]) == [0, 1, 2]
    assert get_metrics()["uncached"] == 3
    (warning,) = caplog.messages
    assert f"UnknownAsker: {what}" in warning
    assert "vary=" in warning
    assert "shared=True" in warning


async def test_a_session_with_a_tenant_says_who_asks_where_the_context_does_not():
    read = reading()
    for user, expected in [("ada", 0), ("bob", 1), ("ada", 0)]:
        async with AgentCacheSession(tenant=user):
            assert await read(RunContext(Client())) == expected
    assert get_metrics()["uncached"] == 0


# Options

OPTIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "shared": ({"shared": True}, [0, 0, 0, 0]),
    "vary": ({"vary": lambda given: given["ctx"].deps["team"]}, [0, 0, 1, 0]),
    "ignore": ({"ignore": ("ctx",)}, [0, 0, 0, 0]),
    "skip_args": ({"skip_args": 1}, [0, 1, 2, 0]),
    "key": ({"key": lambda ctx, number: number}, [0, 1, 2, 0]),
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_option_says_what_of_a_context_counts(name: str):
    options, expected = OPTIONS[name]
    teams = [("ada", "a"), ("bob", "a"), ("cleo", "c"), ("ada", "a")]
    contexts = [RunContext({"user": user, "team": team}) for user, team in teams]
    assert await answers(reading(**options), contexts) == expected


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="vary says what of a context counts"):
        AgentCache("ticket", vary=lambda: 1, shared=True)
    for make in (AgentCache, AgentCacheInvalidator, Read, Write):
        with pytest.raises(ConfigurationError, match="shared must be True or False"):
            make("ticket", shared="yes")  # type: ignore[arg-type]


async def test_a_stream_and_a_tier_keep_users_apart_and_a_write_drops_the_answers_of_all():
    runs = itertools.count()

    @AgentCache("letter")
    def chunks(ctx: RunContext) -> Iterator[int]:
        yield next(runs)

    async def stream(ctx: Any) -> int:
        (answer,) = chunks(ctx)
        return answer

    @AgentCacheInvalidator("ticket", shared=True)
    async def write(ctx: RunContext) -> None: ...

    users = [RunContext(Deps(user)) for user in ("ada", "bob", "ada")]
    assert await answers(stream, users) == [0, 1, 0]
    read = reading(remote_cache=MemoryTier())
    for expected in ([0, 1, 0], [0, 1, 0], [2, 3, 2]):
        if expected[0]:
            await write(users[0])
        found = []
        for user in users:
            read.clear()  # in this process
            found.append(await read(user))
        assert found == expected


# Tools that are known by name


class Desk:
    """A toolbox, and tools that return how often they have run."""

    def __init__(self, rule: Any, door: str = "call", **options: Any) -> None:
        self.box, self.door, self.options = Toolbox({"my_*": rule}, namespace=f"desk{next(_desks)}"), door, options
        self.runs = itertools.count()

    async def __call__(self, context: Any, **options: Any) -> Any:
        async def run() -> int:
            return next(self.runs)

        asked = {"context": context, **self.options, **options}
        if self.door == "call":
            return await self.box.call("my_tickets", {}, run, **asked)
        return self.box.call_sync("my_tickets", {}, lambda: next(self.runs), **asked)


_desks = itertools.count()


@pytest.mark.parametrize("door", ["call", "call_sync"])
async def test_a_toolbox_keeps_two_users_apart_unless_its_rule_says_what_counts(door: str):
    users = [RunContext(Deps(user)) for user in ("ada", "bob", "ada")]
    desk = Desk(Read("ticket"), door)
    assert await answers(desk, users) == [0, 1, 0]
    assert await answers(desk, [RunContext(None), None]) == [2, 2]
    assert await answers(functools.partial(desk, vary="x"), users) == [3, 4, 3]
    for rule in (Read("ticket", shared=True), Read("ticket", vary=lambda: "all")):
        assert await answers(Desk(rule, door), [*users, RunContext(Client())]) == [0] * 4
    assert await answers(Desk(Read("ticket", key=lambda **given: 1), door), users) == [0, 1, 0]


async def test_a_toolbox_runs_uncached_what_nobody_can_tell_and_explain_lists_it(caplog: pytest.LogCaptureFixture):
    desk = Desk(Read("ticket"))
    with caplog.at_level(logging.WARNING):
        assert await answers(desk, [RunContext(Client())] * 3) == [0, 1, 2]
    assert "vary=" in caplog.messages[0]
    (problem,) = desk.box.explain([ToolInfo("my_tickets", takes_context=True)]).problems
    assert "my_tickets" in problem
    assert "shared=True" in problem


async def test_a_vary_that_returns_a_coroutine_is_refused():
    async def later(*_: Any) -> str:
        return "ada"

    for read in (reading(vary=lambda given: later()), lambda ctx: Desk(Read("ticket"))(None, vary=later())):
        with pytest.raises(ConfigurationError, match=r"vary.* returned a coroutine"):
            await read(RunContext(None))


RULES = """
namespace = "files"
vary = ["env:HOME"]
tools.my_tickets = { kind = "read", tags = ["ticket"] }
tools.our_tickets = { kind = "read", tags = ["ticket"], shared = true }
"""


async def test_a_file_of_rules_can_share_and_the_environment_says_nothing_of_users(tmp_path: Path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES, "utf-8")
    box, runs = Toolbox.from_file(path), itertools.count()

    async def run() -> int:
        return next(runs)

    for name, expected in [("my_tickets", [0, 1, 0]), ("our_tickets", [2, 2, 2])]:
        assert [await box.call(name, {}, run, context={"user": one}) for one in ("ada", "bob", "ada")] == expected


async def test_a_wrapped_function_keeps_two_users_apart_unless_it_is_shared():
    runs = itertools.count()

    async def my_tickets(ctx: RunContext) -> int:
        return next(runs)

    def my_letters(ctx: RunContext) -> int:
        return next(runs)

    box = Toolbox({"my_*": Read("ticket")}, namespace="wrapped")
    tickets, letters = wrap(my_tickets, box=box), wrap(my_letters, box=box)
    ours = wrap(my_tickets, box=box, name="my_own", shared=True)
    users = [RunContext(Deps(user)) for user in ("ada", "bob", "ada")]
    assert await answers(tickets, users) == [0, 1, 0]
    assert [letters(user) for user in users] == [2, 3, 2]
    assert await answers(ours, users) == [4, 4, 4]
    rows = explain([tickets, ours], box)
    assert "context" in rows[0].why + rows[1].why


async def test_a_recording_of_a_shared_tool_answers_any_user_of_a_tenant(tmp_path: Path):
    read = reading(shared=True)
    for block, user in ((record, "ada"), (replay, "bob")):
        with block(tmp_path / "run.jsonl"):
            async with AgentCacheSession(tenant="desk"):
                assert await read(RunContext(Deps(user))) == 0


class Account:
    """Whose method is a tool."""

    def __init__(self, user: str) -> None:
        self.user = user

    async def get(self) -> str:
        return self.user


class SlottedAccount:
    __slots__ = ("user",)
    __init__, get = Account.__init__, Account.get


@dataclass
class DeclaredAccount:
    user: str

    async def get(self) -> str:
        return self.user


def tool_of(user: Any) -> Callable[[], Any]:
    async def get() -> str:
        return str(user)

    return get


def around(inner: Callable[[], Any]) -> Callable[[], Any]:
    async def get() -> Any:
        return await inner()

    return get


def tool_with_client(user_id: str) -> Callable[[], Any]:
    client = Client()

    async def get() -> str:
        return f"{user_id} by {client is not None}"

    return get


async def get_of(user: str, *_: Any) -> str:
    return user


MADE_FOR: dict[str, tuple[Callable[[str], Any], bool]] = {
    "a variable around it": (tool_of, True),
    "one that is named for someone, beside a client": (tool_with_client, True),
    "a list around it": (lambda user: tool_of([user]), False),
    "an object around it": (lambda user: tool_of(types.SimpleNamespace(user=user)), False),
    "a record around it": (lambda user: tool_of(DeclaredAccount(user)), True),
    "a function around it": (lambda user: around(tool_of(user)), True),
    "the object of its method": (lambda user: Account(user).get, False),
    "an object with slots": (lambda user: SlottedAccount(user).get, False),
    "the record of its method": (lambda user: DeclaredAccount(user).get, True),
    "a partial": (lambda user: functools.partial(get_of, user), True),
    "a partial of a partial": (lambda user: functools.partial(functools.partial(get_of, user), object()), False),
}
"""Tools that were made for a user, and whether another one that is made for the same user shares the answers."""


@pytest.mark.parametrize("name", MADE_FOR)
async def test_a_wrapped_function_that_is_made_for_a_user_is_hers(name: str):
    made, is_known = MADE_FOR[name]
    box = Toolbox({"my_*": Read("ticket"), "our_*": Read("ticket", shared=True)}, namespace="made")
    ada, bob, again = (wrap(made(user), box=box, name="my_own") for user in ("ada", "bob", "ada"))
    found = [await ada(), await bob()]
    assert found[0] != found[1]
    assert [await ada(), await bob()] == found
    assert await again() == found[0]
    assert get_metrics()["hits"] == 2 + is_known
    for options in (
        {"name": "our_own"},
        {"name": "my_shared", "shared": True},
        {"name": "my_x", "vary": lambda _: "x"},
    ):
        assert [await wrap(made(user), box=box, **options)() for user in ("ada", "bob")] == [found[0]] * 2


def made_for_user(user: str, runs: list[str]) -> Any:
    def get() -> str:
        runs.append(user)
        return user

    return get


def made_by_service(user: str, runs: list[str]) -> Any:
    return (lambda self: lambda: self.append(self.user) or self.user)(
        types.SimpleNamespace(user=user, append=runs.append)
    )


def bound_to_user(user_id: str, runs: list[str]) -> Any:
    return functools.partial(lambda user_id, runs: runs.append(user_id) or user_id, user_id, runs)


def passed_around(user: str, runs: list[str]) -> Any:
    function = made_for_user(user, runs)
    return functools.wraps(function)(lambda *args: function(*args))


@pytest.mark.parametrize("made", [made_for_user, made_by_service, bound_to_user, passed_around])
def test_a_tool_that_is_made_anew_for_each_user_shares_a_tier_with_hers_alone(made: Any):
    """Its name is the same for all of them. `shared=True` says that it is made for nobody."""
    server, runs = MemoryServer(), list[str]()

    def ask(user: str, **options: Any) -> str:
        answer: str = AgentCache("ticket", remote_cache=MemoryTier(server), **options)(made(user, runs))()
        return answer

    assert [ask(user) for user in ("ada", "bob", "ada", "bob")] == ["ada", "bob"] * 2
    assert runs == ["ada", "bob"]
    assert [ask(user, shared=True) for user in ("ada", "bob")] == ["ada"] * 2


async def test_two_wrapped_functions_of_one_name_share_nothing():
    async def get_mine() -> str:
        return "mine"

    async def get_yours() -> str:
        return "yours"

    box = Toolbox({"my_*": Read("ticket", shared=True)}, namespace="named")
    mine, yours = (wrap(function, box=box, name="my_own") for function in (get_mine, get_yours))
    assert [await mine(), await yours(), await mine()] == ["mine", "yours", "mine"]
    assert get_metrics()["hits"] == 1


SAID = ContextVar("SAID", default="token")
CURRENT_USER = ContextVar("CURRENT_USER", default="nobody")
THE_USER: ContextVar[Any] = ContextVar("said", default="nobody")


def get_access_token() -> str:
    """Stands for that of a server."""
    return SAID.get()


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


class Unbound:
    """A proxy without its object, as those of web frameworks outside of a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


current = Unbound()


class Layer:
    def get_config(self) -> str:
        return "the layer's own"


layer = Layer()


def for_the_user(function: Any) -> Any:
    """A decorator that passes who asks."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, token=helper())

    return inner


def passed_on(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return inner


class Inbox:
    def mails(self, folder: str) -> str:
        return f"{self._token()} {folder}"

    def _token(self) -> str:
        return helper()

    @classmethod
    def of_the_server(cls) -> str:
        return helper()


TOOLS: dict[str, Any] = {
    "its name": lambda: get_access_token(),
    "another name": lambda: token_of_the_server(),
    "a helper": lambda: helper(),
    "an object": lambda: service.user,
    "a class": lambda: Service().user,
    "a helper in a comprehension": lambda: [helper() for _ in range(1)],
    "a decorator": for_the_user(lambda **given: given["token"]),
    "a closure": (lambda ask: lambda: ask())(helper),
    "a partial": functools.partial(helper),
    "a method": functools.partial(Inbox().mails, "in"),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK of MCP, whose function says who asks."""
    module = types.SimpleNamespace(get_access_token=get_access_token)
    monkeypatch.setitem(sys.modules, "mcp.server.auth.middleware.auth_context", module)


def hits_of_users(read: Any) -> int:
    """How many of the calls of Ada, Bob and Ada are hits."""
    before = get_metrics()["hits"]
    for user in ("ada", "bob", "ada"):
        SAID.set(user)
        read()
    return get_metrics()["hits"] - before


@pytest.mark.parametrize("name", TOOLS)
def test_users_are_kept_apart_by_a_tool_that_asks_for_its_context_by(name: str, server: None):
    assert hits_of_users(AgentCache("r")(TOOLS[name])) == 1
    assert hits_of_users(AgentCache("r")(lambda: f"{current}{layer}")) == 2


def current_user() -> str:
    return CURRENT_USER.get()


class Profile:
    def name(self) -> str:
        return self._read()

    def _read(self) -> str:
        return current_user()


this = sys.modules[__name__]
VARIABLES: dict[str, Any] = {
    "its name": lambda: CURRENT_USER.get(),
    "what the program calls it": lambda: THE_USER.get(),
    "a helper": lambda: current_user(),
    "a name in its module": lambda: this.CURRENT_USER.get(),
    "another name": (lambda variable: lambda: variable.get())(CURRENT_USER),
    "a class": (lambda held: lambda: held.asker.get())(type("Held", (), {"asker": CURRENT_USER})),
    "an object of its defaults": lambda profile=Profile(): profile.name(),  # noqa: B008 - injected by a default
    "a method": functools.partial(Profile().name),
}


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_users_are_kept_apart_by_a_tool_that_reads_a_variable_named_for_someone_by(name: str, is_wrapped: bool):
    box = Toolbox({"*": Read("r")}, namespace="variables")
    read = wrap(VARIABLES[name], box=box, name="mine") if is_wrapped else AgentCache("r")(VARIABLES[name])
    values: list[Any] = []
    for user in ("ada", DeclaredAccount("bob"), "ada", DeclaredAccount("bob"), Client()):
        CURRENT_USER.set(user)
        THE_USER.set(user)
        values.append(read())
    assert values[:4] == ["ada", DeclaredAccount("bob")] * 2
    assert type(values[4]) is Client
    assert get_metrics()["hits"] == 2


class Mailbox(Inbox):
    @AgentCache("mail")
    async def first(self) -> str:
        return self._token()

    @AgentCache("mail", skip_args=1)
    @passed_on
    async def any_box(self) -> str:
        return self._token()

    @classmethod
    @AgentCache("mail")
    async def newest(cls) -> str:
        return cls.of_the_server()


@pytest.mark.parametrize("method", ["first", "any_box", "newest"])
async def test_a_method_that_asks_by_another_method_of_its_class_keeps_users_apart(method: str, server: None):
    read, answers = getattr(Mailbox(), method), []
    for user in ("ada", "bob", "ada"):
        SAID.set(user)
        answers.append(await read())
    assert answers == ["ada", "bob", "ada"]
    assert get_metrics()["hits"] == 1


def test_a_program_that_is_installed_is_looked_into_and_another_package_is_not(tmp_path: Path, monkeypatch, server):
    """As by ``pip install .`` in an image: the tool and its helper are below ``site-packages``."""
    files = {
        "desk_app/auth.py": "from desk_server import get_access_token\n\ndef user(): return get_access_token()",
        "desk_app/tools.py": "import desk_app.auth\nfrom desk_app.auth import user as me\nfrom desk_lib import helper\n"
        "def mine(): return me()\n\n"
        "def by_module(): return desk_app.auth.user()\n\n"
        "def by_import():\n from desk_app.auth import user\n return user()\n\n"
        "def by_import_within_the_package():\n from . import auth\n return auth.user()\n\n"
        "def common(): return helper()",
        "desk_lib/__init__.py": "from desk_server import get_access_token\n\ndef helper(): return get_access_token",
        "desk_server/__init__.py": "def get_access_token(): ...",
    }
    for name, text in files.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    tools = importlib.import_module("desk_app.tools")
    asking = [tools.mine, tools.by_module, tools.by_import, tools.by_import_within_the_package]
    assert [hits_of_users(AgentCache("desk")(tool)) for tool in (*asking, tools.common)] == [1, 1, 1, 1, 2]


def test_the_time_of_a_decoration_grows_with_what_the_tool_reaches_and_not_faster():
    def instructions(length: int) -> int:
        methods = [f"    def step{at}(self): return json, re, sys, self.at{at}\n" for at in range(length)]
        reached: dict[str, Any] = {"__name__": "shop"}
        exec("import json, re, sys\nclass Shop:\n" + "".join(methods) + "async def get(i): return Shop, i\n", reached)
        with library.instructions() as count:
            AgentCache("order:{i}")(reached["get"])
        return count.total()

    instructions(1)
    assert instructions(160) < 2.5 * instructions(80)
