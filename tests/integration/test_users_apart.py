"""Two users of a tool that gets a framework's context share no answer, and one user has the hits that there were."""

from __future__ import annotations

import dataclasses
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
    UncacheableArgumentsError,
    Write,
    get_metrics,
)
from agent_cache.core.asker import Injected, UnknownAsker, asker_in, getters_of
from agent_cache.integrations import explain, wrap
from agent_cache.testing import MemoryTier
from agent_cache.toolbox import ToolInfo

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


class Secret:
    def __init__(self, text: str) -> None:
        self._text = text


class Member:
    """As of an object-relational mapper, with references in both directions."""

    def __init__(self, name: str) -> None:
        self.profile = types.SimpleNamespace(user=self, account=types.SimpleNamespace(owner=self))
        self.title = name


def of_package(name: str, **attributes: Any) -> Any:
    """An object of a class that an installed package defines."""
    kind = type(name, (), {"__module__": pytest.__name__})
    made = kind()
    made.__dict__.update(attributes)
    return made


class Anyone:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@dataclass
class Anonymous:
    """Deps whose user hides in an object that is no data."""

    token: Secret


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
    "a secret": lambda name: Anonymous(Secret(name)),
    "objects of other classes in a list": lambda name: {"people": [type(name, (Plain,), {})("7")]},
    "plain objects in a list": lambda name: {"lang": "en", "people": [Plain(name)]},
    "a user who is referred to by what she has": lambda name: {"lang": "en", "user": Member(name)},
    "a user of another package's class": lambda name: {"lang": "en", "user": of_package("Principal", _raw={"s": name})},
    "a request of another package": lambda name: {
        "lang": "en",
        "http": of_package("WebRequest", headers={"Authorization": name, "TraceParent": uuid.uuid4()}, stream=Client()),
    },
}


def reads_of(shape: str, **options: Any) -> Callable[[Any], Any]:
    """A decorated tool that returns how often it has run, called with a context."""
    runs = itertools.count()

    if shape == "async":

        @AgentCache("ticket", **options)
        async def tool(ctx: RunContext, number: int = 0) -> int:
            return next(runs)

        return tool

    @AgentCache("ticket", **options)
    def blocking_stream(ctx: RunContext, number: int = 0) -> Iterator[int]:
        yield next(runs)

    async def read_blocking(ctx: Any) -> int:
        (answer,) = blocking_stream(ctx)
        return answer

    return read_blocking


SHAPES = ["async", "sync stream"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_decorated_tool_of_every_shape_keeps_two_users_apart(shape: str):
    read = reads_of(shape)
    assert [await read(RunContext(Deps(user))) for user in ("ada", "bob", "ada", "bob")] == [0, 1, 0, 1]
    assert get_metrics()["uncached"] == 0


@pytest.mark.parametrize("kind", DEPS)
async def test_users_are_told_apart_by(kind: str):
    read, made = reads_of("async"), DEPS[kind]
    first, second = await read(RunContext(made("ada"))), await read(RunContext(made("robert")))
    assert first != second
    assert await read(RunContext(made("ada"))) == first
    assert await read(RunContext(made("robert"))) == second
    assert get_metrics()["uncached"] == 0


async def test_a_run_without_anything_of_its_own_is_cached():
    read = reads_of("async")
    assert await read(RunContext(None)) == await read(RunContext(None)) == await read(None)
    assert await read(RunContext(Deps("ada"))) != await read(RunContext(None))
    assert get_metrics()["hits"] == 3


async def test_ids_of_runs_threads_and_requests_tell_nobody_apart():
    read = reads_of("async")
    for number in range(3):
        deps = {"user": "ada", "run_id": number, "request_id": str(number), "trace_id": number, "threadId": number}
        assert await read(RunContext(deps)) == 0


CONTEXTS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "OpenAI Agents": (RunContextWrapper, lambda user: RunContextWrapper(Deps(user))),
    "LangGraph's context": (ToolRuntime, lambda user: ToolRuntime(Deps(user))),
    "LangGraph's configurable": (ToolRuntime, lambda user: ToolRuntime(customer=user)),
    "LangGraph's own user id": (ToolRuntime, lambda user: ToolRuntime(langgraph_user_id=user)),
    "a user in LangGraph's state": (
        ToolRuntime,
        lambda user: ToolRuntime(state={"messages": [object()], "user_name": user}),
    ),
    "a RunnableConfig": (RunnableConfig, lambda user: {"configurable": {"user_id": user}, "callbacks": object()}),
    "metadata of a RunnableConfig": (RunnableConfig, lambda user: {"metadata": {"user_id": user, "langgraph_step": 3}}),
    "ADK's user": (ReadonlyContext, lambda user: ReadonlyContext(user)),
    "ADK's user state": (
        ReadonlyContext,
        lambda user: ReadonlyContext("app", **{"user:plan": user, "turn": uuid.uuid4()}),
    ),
    "metadata of a run": (RunContext, lambda user: RunContext(None, {"tenantId": user, "attempt": uuid.uuid4()})),
}


@pytest.mark.parametrize("name", CONTEXTS)
async def test_each_context_says_who_asks(name: str):
    kind, made = CONTEXTS[name]
    runs = itertools.count()

    async def tool(ctx: Any) -> int:
        return next(runs)

    tool.__annotations__["ctx"] = kind
    read = AgentCache("ticket")(tool)
    assert [await read(made(user)) for user in ("ada", "bob", "ada", "bob")] == [0, 1, 0, 1]
    assert get_metrics()["uncached"] == 0


@pytest.mark.parametrize("what", ["a large state", "steps"])
async def test_the_data_and_the_steps_of_a_graph_tell_nobody_apart(what: str):
    runs = itertools.count()

    @AgentCache("ticket")
    async def read(runtime: ToolRuntime) -> int:
        return next(runs)

    for step in range(3):
        state: dict[str, Any] = {"messages": [object()] * step, "remaining_steps": step, "draft": str(step)}
        if what == "a large state":
            state = {"documents": {str(one): {"user": step} for one in range(20_000)}}
        assert await read(ToolRuntime(state=state, checkpoint_ns=str(step))) == 0
    assert get_metrics()["uncached"] == 0


# What cannot be told


async def test_a_context_that_cannot_say_who_asks_makes_its_calls_uncached(caplog: pytest.LogCaptureFixture):
    read = reads_of("async")
    with caplog.at_level(logging.WARNING):
        assert [await read(RunContext(Client())) for _ in range(3)] == [0, 1, 2]
    assert get_metrics()["uncached"] == 3
    (warning,) = caplog.messages
    assert "vary=" in warning
    assert "shared=True" in warning


class Absent:
    """Computes what it has."""

    @property
    def name(self) -> str:
        return "ada"


OPAQUE: dict[str, Callable[[], Any]] = {
    "a client alone": Client,
    "a client with settings": lambda: Anyone(headers={}, timeout=5.0, pool=Client()),
    "a function": lambda: lambda: "ada",
    "an object without attributes": object,
    "what computes all that it has": Absent,
    "a client beside a constant": lambda: {"lang": "en", "x": Client()},
    "an object that may hold a client": lambda: {"lang": "en", "x": Anyone(name="ada", lock=threading.Lock())},
    "more than a user can be": lambda: {"lang": "en", "rows": list(range(20_000))},
}


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: {"inner": inner}, range(depth), "ada")


UNREADABLE: dict[str, tuple[str, Callable[[], Any]]] = {
    "a function in a field named for someone": ("deps.user", lambda: {"user": lambda: "ada"}),
    "what computes all that it has in one": ("deps.auth", lambda: {"auth": Absent()}),
    "what is nested too deep": ("reading its context", lambda: {"inner": nested(2_000)}),
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_one_user_that_cannot_be_compared_keeps_all_from_being_shared(
    kind: str, caplog: pytest.LogCaptureFixture
):
    read, (field_name, made) = reads_of("async"), UNREADABLE[kind]
    with caplog.at_level(logging.WARNING):
        answers = [await read(RunContext({"lang": "en", "tenant_id": 1, **made()})) for _ in range(2)]
    assert answers == [0, 1]
    assert get_metrics()["uncached"] == 2
    (warning,) = caplog.messages
    assert f"UnknownAsker: {field_name}" in warning
    assert "vary=" in warning


INFRASTRUCTURE: dict[str, Callable[[], Any]] = {
    "a logger": lambda: logging.getLogger("x"),
    "a function": lambda: print,
    "a client of one's own": Client,
    "a client of another package": lambda: of_package(
        "HttpClient", headers={"x": uuid.uuid4()}, _pool=threading.Lock()
    ),
    "a session of another package": lambda: of_package("AsyncSession", sync=threading.Lock(), started=uuid.uuid4()),
}


@pytest.mark.parametrize("kind", INFRASTRUCTURE)
async def test_one_user_has_her_hits_with_a_context_made_anew_around(kind: str):
    read, made = reads_of("async"), INFRASTRUCTURE[kind]
    assert [
        await read(RunContext({"user": "ada", "lang": "en", "session": made(), "x": made()})) for _ in range(3)
    ] == [0] * 3
    assert get_metrics()["uncached"] == 0


@pytest.mark.parametrize("name", ["step", "run_id"])
async def test_what_is_called_as_an_id_and_holds_a_user_counts(name: str):
    read = reads_of("async")
    contexts = [RunContext({name: {"user": user, "number": 7}}) for user in ("ada", "bob", "ada")]
    assert [await read(context) for context in contexts] == [0, 1, 0]


class WrapperOfUser(RunContextWrapper):
    """A program's own, whose class is no framework's."""

    __module__ = __name__

    def __init__(self, context: Any, user: str) -> None:
        super().__init__(context)
        self.user = user


@pytest.mark.parametrize("context", [None, {"region": "eu"}, {"user_id": "z"}])
async def test_what_a_subclass_adds_to_a_context_counts_where_it_is_named_for_someone(context: Any):
    runs = itertools.count()

    @AgentCache("ticket")
    async def read(ctx: RunContextWrapper) -> int:
        return next(runs)

    assert [await read(WrapperOfUser(context, user)) for user in ("ada", "bob", "ada")] == [0, 1, 0]


IDS = ["run_id", "langgraph_step"]


@pytest.mark.parametrize("name", IDS)
async def test_an_id_of_a_run_as_the_only_field_says_who_asks_for_all_that_is_known(name: str):
    read = reads_of("async")
    assert [await read(RunContext({name: user})) for user in ("ada", "bob")] == [0, 1]
    assert get_metrics()["uncached"] == 2
    assert [await read(RunContext({name: user, "lang": "en"})) for user in ("ada", "bob")] == [2, 2]


NAMES = [
    "user", "user_id", "userId", "userid", "user_info", "current_user", "x_user_id", "subject", "sub", "uid",
    "customer_email", "tenant", "organisation_id", "auth", "session", "token", "access_token", "claims",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_a_field_of_a_state_that_is_named_for_someone_counts(name: str):
    runs = itertools.count()

    @AgentCache("ticket")
    async def read(runtime: ToolRuntime) -> int:
        return next(runs)

    states = [{name: one, "turn": uuid.uuid4(), "progress_token": uuid.uuid4()} for one in ("ada", "bob", "ada")]
    assert [await read(ToolRuntime(state=state)) for state in states] == [0, 1, 0]


@pytest.mark.parametrize("kind", OPAQUE)
async def test_nothing_is_shared_by(kind: str):
    read = reads_of("async")
    assert await read(RunContext(OPAQUE[kind]())) != await read(RunContext(OPAQUE[kind]()))
    assert get_metrics()["uncached"] == 2


async def test_a_session_with_a_tenant_says_who_asks_where_the_context_does_not():
    read = reads_of("async")
    for user, expected in [("ada", 0), ("bob", 1), ("ada", 0)]:
        async with AgentCacheSession(tenant=user):
            assert await read(RunContext(Client())) == expected
    assert get_metrics()["uncached"] == 0


# Options


async def test_shared_gives_all_users_the_same_answer():
    read = reads_of("async", shared=True)
    assert [await read(RunContext(deps)) for deps in (Deps("ada"), Deps("bob"), Client(), None)] == [0] * 4


async def test_vary_says_what_of_a_context_counts():
    read = reads_of("async", vary=lambda given: given["ctx"].deps["team"])
    teams = [{"user": "ada", "team": "a"}, {"user": "bob", "team": "a"}, {"user": "cleo", "team": "c"}]
    assert [await read(RunContext(deps)) for deps in teams] == [0, 0, 1]


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="vary says what of a context counts"):
        AgentCache("ticket", vary=lambda: 1, shared=True)
    for make in (AgentCache, AgentCacheInvalidator, Read, Write):
        with pytest.raises(ConfigurationError, match="shared must be True or False"):
            make("ticket", shared="yes")  # type: ignore[arg-type]


async def test_what_ignore_names_says_nothing_and_what_is_skipped_by_number_does():
    ignoring, skipping = reads_of("async", ignore=("ctx",)), reads_of("async", skip_args=1)
    assert [await ignoring(RunContext(Deps(user))) for user in ("ada", "bob")] == [0, 0]
    assert [await skipping(RunContext(Deps(user))) for user in ("ada", "bob", "ada")] == [0, 1, 0]


async def test_a_write_drops_the_answers_of_all_users():
    read = reads_of("async")

    @AgentCacheInvalidator("ticket", shared=True)
    async def write(ctx: RunContext) -> None: ...

    for user in ("ada", "bob"):
        await read(RunContext(Deps(user)))
    await write(RunContext(Deps("ada")))
    assert [await read(RunContext(Deps(user))) for user in ("ada", "bob")] == [2, 3]


async def test_two_users_share_nothing_in_a_tier_and_one_user_finds_her_answer_there():
    runs = itertools.count()

    @AgentCache("ticket", remote_cache=MemoryTier())
    async def read(ctx: RunContext) -> int:
        return next(runs)

    answers = []
    for user in ("ada", "bob", "ada", "bob"):
        answers.append(await read(RunContext(Deps(user))))
        read.clear()  # in this process
    assert answers == [0, 1, 0, 1]


# Tools that are known by name


class Desk:
    """A toolbox, and tools that return how often they have run."""

    def __init__(self, rule: Any) -> None:
        self.box = Toolbox({"my_*": rule}, namespace=f"desk{next(_desks)}")
        self.runs = itertools.count()

    async def call(self, context: Any, **options: Any) -> Any:
        async def run() -> int:
            return next(self.runs)

        return await self.box.call("my_tickets", {}, run, context=context, **options)

    async def call_sync(self, context: Any, **options: Any) -> Any:
        return self.box.call_sync("my_tickets", {}, lambda: next(self.runs), context=context, **options)


_desks = itertools.count()
DOORS = ["call", "call_sync"]


@pytest.mark.parametrize("door", DOORS)
async def test_a_toolbox_keeps_two_users_apart(door: str):
    call = getattr(Desk(Read("ticket")), door)
    assert [await call(RunContext(Deps(user))) for user in ("ada", "bob", "ada", "bob")] == [0, 1, 0, 1]
    assert [await call(RunContext(None)), await call(None)] == [2, 2]
    assert [await call(RunContext(Deps(user)), vary="x") for user in ("ada", "bob", "ada")] == [3, 4, 3]


async def test_a_rule_can_share_answers_or_say_what_counts():
    for rule in (Read("ticket", shared=True), Read("ticket", vary=lambda: "all")):
        call = Desk(rule).call
        assert [await call(RunContext(deps)) for deps in (Deps("ada"), Deps("bob"), Client())] == [0] * 3
    keyed = Desk(Read("ticket", key=lambda **given: 1)).call
    assert [await keyed(RunContext(Deps(user))) for user in ("ada", "bob", "ada")] == [0, 1, 0]


async def test_a_toolbox_runs_uncached_what_nobody_can_tell_and_explain_lists_it(caplog: pytest.LogCaptureFixture):
    desk = Desk(Read("ticket"))
    with caplog.at_level(logging.WARNING):
        assert [await desk.call(RunContext(Client())) for _ in range(3)] == [0, 1, 2]
    assert "vary=" in caplog.messages[0]
    (problem,) = desk.box.explain([ToolInfo("my_tickets", takes_context=True)]).problems
    assert "my_tickets" in problem
    assert "shared=True" in problem


@pytest.mark.parametrize("make", ["decorated", "toolbox"])
async def test_a_vary_that_returns_a_coroutine_is_refused(make: str):
    async def later(*_: Any) -> str:
        return "ada"

    if make == "decorated":
        read: Any = reads_of("async", vary=lambda given: later())
    else:
        desk = Desk(Read("ticket"))

        def read(ctx: Any) -> Any:
            return desk.call(None, vary=later())

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
    users = ("ada", "bob", "ada")
    assert [await tickets(RunContext(Deps(user))) for user in users] == [0, 1, 0]
    assert [letters(RunContext(Deps(user))) for user in users] == [2, 3, 2]
    assert [await ours(RunContext(Deps(user))) for user in users] == [4, 4, 4]
    rows = explain([tickets, ours], box)
    assert "context" in rows[0].why + rows[1].why


# Who asks, as recordings keep it


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
    deps = dataclasses.make_dataclass("Deps", [("user", str)])
    deps.__module__ = "shop"  # the name of the class counts
    contexts = [Injected("context", RunContext(deps("ada")))]
    assert asker_in(contexts) == "d9d078747d7ab734192bfb2d79dff256"


TOKEN = ContextVar("TOKEN", default="token")


def get_access_token() -> str:
    """Stands for that of a server."""
    return TOKEN.get()


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
async def test_a_method_that_asks_by_another_method_of_its_class_keeps_users_apart(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    server = types.SimpleNamespace(get_access_token=get_access_token)
    monkeypatch.setitem(sys.modules, "mcp.server.auth.middleware.auth_context", server)
    read, answers = getattr(Mailbox(), method), []
    for user in ("ada", "bob", "ada"):
        TOKEN.set(user)
        answers.append(await read())
    assert answers == ["ada", "bob", "ada"]
    assert get_metrics()["hits"] == 1


TOOLS = [
    *(by_name, by_another_name, by_helper, by_object, by_class, by_closure, by_decorator, functools.partial(by_helper)),
    functools.partial(Inbox().mails, "in"),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_asks_for_its_context_is_known_by_what_it_names(tool: Any):
    assert getters_of(tool) == ("get_access_token",)
    assert AgentCache("r")(tool).__agent_cache__.parameters.getters == ("get_access_token",)
    assert getters_of(of_nobody) == ()


def test_a_program_that_is_installed_is_looked_into_and_another_package_is_not(tmp_path: Path, monkeypatch):
    """As by ``pip install .`` in an image: the tool and its helper are below ``site-packages``."""
    files = {
        "desk_app/auth.py": "from desk_server import get_access_token\n\ndef user(): return get_access_token()",
        "desk_app/tools.py": "from desk_app.auth import user\nimport desk_lib\n\ndef mine(): return user()\n\n"
        "def common(): return desk_lib.helper()",
        "desk_lib/__init__.py": "from desk_server import get_access_token\n\ndef helper(): return get_access_token",
        "desk_server/__init__.py": "def get_access_token(): ...",
    }
    for name, text in files.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    tools = importlib.import_module("desk_app.tools")
    assert [getters_of(tools.mine), getters_of(tools.common)] == [("get_access_token",), ()]
