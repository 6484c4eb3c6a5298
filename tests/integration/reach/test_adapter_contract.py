"""One contract for the adapters: what each of them promises, tried with the real packages of every framework.

A new one gets a class, a row of `PACKAGES`, and a place in `BY_CONTEXT` if a run is passed a context.
``docs/how-to/write-an-adapter.md`` says what else it needs. ``-k NAME`` runs all of it for one adapter.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    Pass,
    Read,
    Toolbox,
    Write,
)
from agent_cache.integrations import explain, wrap
from agent_cache.recording import record, replay
from tests.harness import page_examples
from tests.harness.library import calls_waiting
from tests.harness.scripted_models import Call, adk_model, langchain_model, openai_model, pydantic_model

pytestmark = [
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("default"),  # those of the frameworks
]

LOGGED_IN_USER: ContextVar[str] = ContextVar("LOGGED_IN_USER", default="nobody")

GET: Call = ("get_order", {"order_id": "1"})
CANCEL: Call = ("cancel_order", {"order_id": "1"})
TOTAL: Call = ("get_total", {"order_id": "1"})
LOST: Call = ("get_order", {"order_id": "lost"})
MINE: Call = ("get_mine", {})
SECRET: Call = ("get_secret", {"order_id": "1"})
DECORATED: Call = ("get_decorated", {"order_id": "1"})
WRONG: Call = ("get_order", {"no_such_argument": ["1"]})
SPELT: list[Call] = [
    ("get_number", {"number": "07"}), ("get_number", {"number": 7.0}), ("get_many", {"ids": ["7", 8]}),
    ("get_my_number", {"number": "07"}),
]  # fmt: skip


class Shop:
    """What the tools do. A run waits for `gate`, if there is one."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.gate: asyncio.Event | None = None
        self.has_begun = asyncio.Event()

    async def run(self, name: str, subject: str) -> str:
        self.runs.append(f"{name} {subject}")
        number = len(self.runs)
        self.has_begun.set()
        if self.gate is not None:
            await self.gate.wait()
        if subject == "lost":
            raise ValueError("no such order")
        return f"{name} {subject} ({number})"


@dataclass
class Total:
    order: str
    amount: Decimal


@dataclass
class Context:
    user: str
    client: Any = field(default_factory=object)


CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "a dict": lambda user: {"user": user},
    "a dict with a client": lambda user: {"user": user, "client": object()},
    "a dataclass with a client": Context,
    "an object": lambda user: type("Own", (), {"__init__": lambda self: setattr(self, "user", user)})(),
}


def user_in(context: Any) -> str:
    return str(context["user"] if isinstance(context, dict) else context.user)


class Adapter(ABC):
    """An agent of one framework, whose tools go through a toolbox. Somebody has to say yes before `get_secret`.

    A subclass makes its tools of `functions`, and gives the adapter the box and the `options` (`vary`, `shared`) in its
    `__init__`, which is to refuse what is none.

    Attributes:
        asked: how often that was asked for. Each time the answer is yes.
        streams: whether runs are those of the framework's streaming.
        in_steps: whether the model waits for the answer to each call.
        is_cached_twice: whether what the adapter made is given to it once more, where that can be.
        context: makes of a user what is passed to a run.
    """

    def __init__(self, shop: Shop, box: Any, **options: Any) -> None:
        self.shop, self.box, self.options = shop, box, options
        self.asked, self.streams, self.in_steps, self.is_cached_twice = 0, False, False, False
        self.context = CONTEXTS["a dict"]

    def steps(self, calls: tuple[Call, ...]) -> list[tuple[Call, ...]]:
        """What the model says in one run: all calls at once, or one after the other."""
        return [(call,) for call in calls] if self.in_steps else [calls]

    def functions(self, kind: Any, user_of: Callable[[Any], str]) -> tuple[list[Any], Any]:
        """The tools, and `get_secret`. `kind` is what the framework injects, of which `user_of` is the user."""
        shop = self.shop

        async def get_order(order_id: str) -> str:
            """Get an order."""
            return await shop.run("get_order", order_id)

        async def cancel_order(order_id: str) -> str:
            """Cancel an order."""
            return await shop.run("cancel_order", order_id)

        async def get_mine(tool_context: Any) -> str:
            """Get the orders of the user."""
            return await shop.run("get_mine", user_of(tool_context))

        async def get_number(number: int) -> str:
            """Get a number."""
            return await shop.run("get_number", str(number))

        async def get_many(ids: list[int]) -> str:
            """Get numbers."""
            return await shop.run("get_many", str(ids))

        async def set_number(number: int) -> str:
            """Set a number."""
            return await shop.run("set_number", str(number))

        async def get_my_number(tool_context: Any, number: int) -> str:
            """Get a number of the user."""
            return await shop.run("get_my_number", f"{user_of(tool_context)} {number}")

        async def get_total(order_id: str) -> Total:
            """Get the total of an order."""
            return Total(await shop.run("get_total", order_id), Decimal("1.50"))

        async def get_secret(order_id: str) -> str:
            """Get a secret."""
            return await shop.run("get_secret", order_id)

        @AgentCache("order:{order_id}", name="decorated")
        async def get_decorated(order_id: str) -> str:
            """Get an order, by a decorated function."""
            return await shop.run("get_decorated", order_id)

        async def get_own(tool_context: Any) -> str:
            """Get the orders of the user, by a decorated function."""
            return await shop.run("get_own", user_of(tool_context))

        async def get_account() -> str:
            """Get the account of who is logged in."""
            return await shop.run("get_account", LOGGED_IN_USER.get())

        for each in (get_mine, get_own, get_my_number):
            each.__annotations__["tool_context"] = kind
        get_own = AgentCache("mine", name="own")(get_own)
        numbers = [get_number, get_my_number, get_many, set_number, get_account]
        return [get_order, cancel_order, get_total, get_mine, *numbers, get_decorated, get_own], get_secret

    @abstractmethod
    def agent(self) -> Any:
        """What `explain` takes."""

    @abstractmethod
    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        """What the tools answer to the calls that the model makes in one turn; the text of the error of a tool that
        ends the run, with which `is_error` agrees. A loop is raised, or told by a server as an error.
        """


def is_error(text: str) -> bool:
    return any(part in text for part in ("no such order", "error occurred"))


class LangChain(Adapter):
    def __init__(self, *given: Any, **options: Any) -> None:
        from langchain_core.tools import StructuredTool
        from langgraph.prebuilt import ToolRuntime

        from agent_cache.integrations.langchain import AgentCacheMiddleware

        super().__init__(*given, **options)
        functions, secret = self.functions(ToolRuntime, lambda runtime: user_in(runtime.context))
        self.tools = [StructuredTool.from_function(coroutine=each) for each in (*functions, secret)]
        self.middleware = AgentCacheMiddleware(self.box, **self.options)

    def agent(self, *calls: Call) -> Any:
        from langchain.agents import create_agent
        from langchain.agents.middleware import HumanInTheLoopMiddleware
        from langgraph.checkpoint.memory import InMemorySaver

        model = langchain_model(*self.steps(calls))
        approvals = HumanInTheLoopMiddleware(interrupt_on={"get_secret": True})
        return create_agent(model, self.tools, middleware=[self.middleware, approvals], checkpointer=InMemorySaver())

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        from langchain_core.messages import ToolMessage
        from langgraph.types import Command

        agent, context = self.agent(*calls), self.context(user)
        config, given = {"configurable": {"thread_id": "1"}}, {"messages": [("user", "go")]}

        async def state_after(given: Any) -> Any:
            if not self.streams:
                return await agent.ainvoke(given, config, context=context)
            steps = agent.astream(given, config, context=context, stream_mode="values")
            return [state async for state in steps][-1]

        try:
            found = await state_after(given)
            while "__interrupt__" in found:
                self.asked += 1
                found = await state_after(Command(resume={"decisions": [{"type": "approve"}]}))
        except ValueError as error:
            return [str(error)]
        return [str(one.content) for one in found["messages"] if isinstance(one, ToolMessage)]


class OpenAIAgents(Adapter):
    def __init__(self, *given: Any, **options: Any) -> None:
        import agents

        super().__init__(*given, **options)
        agents.set_tracing_disabled(True)
        functions, secret = self.functions(agents.RunContextWrapper[Any], lambda run: user_in(run.context))
        self.tools = [agents.function_tool(each) for each in functions]
        self.tools.append(agents.function_tool(secret, needs_approval=True))
        self.agent()

    def agent(self, *calls: Call) -> Any:
        from agents import Agent

        from agent_cache.integrations.openai_agents import cached

        agent = cached(
            Agent("shop", model=openai_model(*self.steps(calls)), tools=self.tools), self.box, **self.options
        )
        return cached(agent, self.box, **self.options) if self.is_cached_twice else agent

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        from agents import Runner

        agent = self.agent(*calls)
        found: Any
        if self.streams:
            found = Runner.run_streamed(agent, "go", context=self.context(user))
            async for _ in found.stream_events():
                pass
        else:
            found = await Runner.run(agent, "go", context=self.context(user))
        while found.interruptions:
            state = found.to_state()
            for interruption in found.interruptions:
                self.asked += 1
                state.approve(interruption)
            found = await Runner.run(agent, state)
        outputs = [one for one in found.to_input_list() if one.get("type") == "function_call_output"]
        return [str(one["output"]) for one in outputs]


class PydanticAI(Adapter):
    def __init__(self, *given: Any, **options: Any) -> None:
        from pydantic_ai import RunContext, Tool

        from agent_cache.integrations.pydantic_ai import AgentCacheCapability

        super().__init__(*given, **options)
        functions, secret = self.functions(RunContext[Any], lambda ctx: user_in(ctx.deps))
        self.tools = [*functions, Tool(secret, requires_approval=True)]
        self.capability = AgentCacheCapability(self.box, **self.options)

    def agent(self, *calls: Call) -> Any:
        from pydantic_ai import Agent, DeferredToolRequests

        kinds: Any = [str, DeferredToolRequests]
        model = pydantic_model(*self.steps(calls))
        capabilities = [self.capability] * (2 if self.is_cached_twice else 1)
        return Agent(model, tools=self.tools, capabilities=capabilities, deps_type=object, output_type=kinds)

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        from pydantic_ai import DeferredToolRequests, DeferredToolResults
        from pydantic_ai.exceptions import UnexpectedModelBehavior
        from pydantic_ai.messages import ToolReturnPart

        agent, deps = self.agent(*calls), self.context(user)
        try:
            if self.streams:
                async with agent.run_stream("go", deps=deps) as found:
                    await found.get_output()
            else:
                found = await agent.run("go", deps=deps)
                while isinstance(found.output, DeferredToolRequests):
                    said = {call.tool_call_id: True for call in found.output.approvals}
                    self.asked += len(said)
                    found = await agent.run(
                        message_history=found.all_messages(),
                        deferred_tool_results=DeferredToolResults(approvals=said),
                        deps=deps,
                    )
        except (ValueError, UnexpectedModelBehavior) as error:
            return [str(error)]
        answers = [part for message in found.all_messages() for part in message.parts]
        return [str(part.content) for part in answers if isinstance(part, ToolReturnPart)]


def server_of(adapter: Adapter, *middleware: Any) -> Any:
    """A FastMCP server, and its tools."""
    from fastmcp import Context, FastMCP
    from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

    server: Any = FastMCP("shop", middleware=list(middleware))
    functions, secret = adapter.functions(Context, lambda ctx: str(ctx.client_id))

    async def get_secret(order_id: str, ctx: Context) -> Any:
        if ctx.input_responses is not None:
            return await secret(order_id)
        question = ElicitRequestFormParams(message="sure?", requested_schema={"type": "object", "properties": {}})
        return InputRequiredResult(input_requests={"sure": ElicitRequest(params=question)}, request_state="one")

    get_secret.__annotations__["ctx"] = Context
    for tool in (*functions, get_secret):
        server.tool(tool)
    return server


class FastMCPServer(Adapter):
    def __init__(self, *given: Any, **options: Any) -> None:
        from agent_cache.integrations.fastmcp import AgentCacheMiddleware

        super().__init__(*given, **options)
        self.server = server_of(self, AgentCacheMiddleware(self.box, **self.options))

    def agent(self) -> Any:
        return self.server

    def client(self, opened: Any, user: str) -> Any:
        return opened

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        from fastmcp import Client

        async def accept(*_: Any) -> Any:
            self.asked += 1
            return {}

        async with Client(self.server, elicitation_handler=accept) as opened:
            client = self.client(opened, user)
            made = [client.call_tool(name, args, meta={"client_id": user}) for name, args in calls]
            found = await asyncio.gather(*made, return_exceptions=True)
        if any(isinstance(one, asyncio.CancelledError) for one in found):
            raise asyncio.CancelledError
        return [str(one if isinstance(one, Exception) else one.content[0].text) for one in found]


class McpClient(FastMCPServer):
    def __init__(self, shop: Shop, box: Any, **options: Any) -> None:
        Adapter.__init__(self, shop, box, **options)
        self.server = server_of(self)
        self.client(None, "ada")

    def client(self, opened: Any, user: str) -> Any:
        from agent_cache.integrations.mcp_client import CachedClient

        options = {} if self.options.get("shared") else {"vary": lambda _: user}
        client = CachedClient(opened, self.box, **options)
        return CachedClient(client, self.box, **options) if self.is_cached_twice else client


class GoogleADK(Adapter):
    def __init__(self, *given: Any, **options: Any) -> None:
        from google.adk.tools import FunctionTool, ToolContext

        from agent_cache.integrations.adk import cached

        super().__init__(*given, **options)
        functions, secret = self.functions(ToolContext, lambda context: context.user_id)
        approved = FunctionTool(secret, require_confirmation=True)
        self.tools = [cached(each, self.box, **self.options) for each in (*functions, approved)]
        self.services: dict[str, Any] = {}

    def agent(self, *calls: Call) -> Any:
        from google.adk.agents import LlmAgent

        from agent_cache.integrations.adk import cached

        agent = LlmAgent(name="shop", model=adk_model(*self.steps(calls)), tools=self.tools)
        return cached(agent, self.box, **self.options) if self.is_cached_twice else agent

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        from google.adk.agents.run_config import RunConfig, StreamingMode
        from google.adk.runners import InMemoryRunner
        from google.genai import types

        runner = InMemoryRunner(agent=self.agent(*calls), app_name="shop")
        session = await runner.session_service.create_session(app_name="shop", user_id=user, session_id=user)
        content = types.Content(role="user", parts=[types.Part(text="hi")])
        config = RunConfig(streaming_mode=StreamingMode.SSE if self.streams else StreamingMode.NONE)
        run = runner.run_async(user_id=user, session_id=session.id, new_message=content, run_config=config)
        try:
            answers = [response.response async for event in run for response in event.get_function_responses()]
        except ValueError as error:
            return [str(error)]
        self.asked += sum("confirmation" in str(answer) for answer in answers)
        return [str(answer.get("result", answer)) for answer in answers]


class ToolContext:
    """What a framework without an adapter injects, such as Strands Agents."""

    def __init__(self, context: Any) -> None:
        self.context = context


ToolContext.__module__ = "strands.types.tools"


class AnyFramework(Adapter):
    """A framework that takes functions as tools, each of which is wrapped."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        functions, secret = self.functions(ToolContext, lambda given: user_in(given.context))
        self.tools = {one.__name__: wrap(one, box=self.box, **self.options) for one in (*functions, secret)}

    def agent(self) -> Any:
        return self.tools.values()

    async def turn(self, *calls: Call, user: str = "ada") -> list[str]:
        self.asked += sum(name == "get_secret" for name, _ in calls)
        given = {"tool_context": ToolContext(self.context(user))}
        asks, tools = ("get_mine", "get_own", "get_my_number"), self.tools
        if self.is_cached_twice:
            tools = {name: wrap(tool, box=self.box, **self.options) for name, tool in tools.items()}
        try:
            made = [tools[name](**args, **(given if name in asks else {})) for name, args in calls]
            return [str(one) for one in await asyncio.gather(*made)]
        except (TypeError, ValueError) as error:
            return [str(error)]


RULES = {
    "get_order": Read("order:{order_id}"),
    "get_secret": Read("order:{order_id}"),
    "get_mine": Read("mine"),
    "get_own": Read("mine"),
    "get_account": Read("mine"),
    "cancel_order": Write("order:{order_id}"),
    "get_number": Read("number:{number}"),
    "get_my_number": Read("number:{number}"),
    "get_many": Read("number:{ids[]}"),
    "get_total": Read("order:{order_id}"),
    "set_number": Write("number:{number}"),
}
WHO_ASKS = (
    "one run for each user: is the framework's context in _CONTEXTS of core.asker, and its attribute in _PLACES, and "
    "is it given to the toolbox?"
)
WRITES = {name for name, rule in RULES.items() if isinstance(rule, Write)}
PACKAGES: dict[type[Adapter], str] = {
    AnyFramework: "agent_cache", LangChain: "langchain", OpenAIAgents: "agents", PydanticAI: "pydantic_ai",
    FastMCPServer: "fastmcp", McpClient: "fastmcp", GoogleADK: "google.adk",
}  # fmt: skip


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of its namespace
        return False


ADAPTERS = [kind for kind, package in PACKAGES.items() if is_installed(package)]


def toolbox() -> Toolbox:
    return Toolbox(RULES, namespace="shop")


@pytest.mark.parametrize("kind", ADAPTERS)
class TestAdapterContract:
    """What every adapter promises."""

    async def test_a_read_runs_once_until_a_write(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        first = await adapter.turn(GET)
        assert first == await adapter.turn(GET) == ["get_order 1 (1)"]
        assert await adapter.turn(("get_order", {"order_id": "2"})) == ["get_order 2 (2)"]
        assert await adapter.turn(CANCEL) == ["cancel_order 1 (3)"]
        assert await adapter.turn(GET) == ["get_order 1 (4)"]
        assert await adapter.turn(("get_order", {"order_id": "2"})) == ["get_order 2 (2)"]

    async def test_equal_calls_of_one_turn_run_once(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        assert await adapter.turn(GET, GET, GET) == ["get_order 1 (1)"] * 3

    @pytest.mark.parametrize("name", ["get_mine", "get_own"])
    async def test_what_depends_on_the_user_is_shared_with_nobody(self, kind: type[Adapter], name: str) -> None:
        adapter = kind(Shop(), toolbox())
        found = [await adapter.turn((name, {}), user=user) for user in ("ada", "bob", "ada", "bob")]
        assert found == [[f"{name} ada (1)"], [f"{name} bob (2)"]] * 2, WHO_ASKS

    @pytest.mark.parametrize("name", ["get_mine", "get_own"])
    async def test_what_was_said_before_a_call_is_no_user(self, kind: type[Adapter], name: str) -> None:
        """A context may hold it."""
        adapter = kind(Shop(), toolbox())
        adapter.in_steps = True
        for before in (GET, CANCEL):
            assert f"{name} ada (2)" in await adapter.turn(before, (name, {})), WHO_ASKS

    async def test_an_error_is_not_stored(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        for number in (1, 2):
            [text] = await adapter.turn(LOST)
            assert is_error(text)
            assert len(adapter.shop.runs) == number

    async def test_the_model_reads_what_it_would_read_without_a_cache(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        plain = kind(Shop(), Toolbox({name: Pass() for name in RULES}, namespace="plain"))
        for call in (GET, LOST, WRONG, CANCEL):
            assert await adapter.turn(call) == await plain.turn(call)

    async def test_who_waits_for_a_call_that_is_cancelled_gets_an_answer(self, kind: type[Adapter]) -> None:
        shop = Shop()
        shop.gate = asyncio.Event()
        adapter = kind(shop, toolbox())
        leader = asyncio.create_task(adapter.turn(GET))
        await shop.has_begun.wait()
        follower = asyncio.create_task(adapter.turn(GET))
        while not calls_waiting():
            await asyncio.sleep(0)
        leader.cancel()
        await asyncio.wait([leader])
        shop.gate.set()
        assert (await follower)[0].startswith("get_order 1")

    async def test_a_write_that_is_cancelled_is_in_doubt(self, kind: type[Adapter]) -> None:
        shop = Shop()
        adapter = kind(shop, toolbox())
        await adapter.turn(GET)
        shop.gate, shop.has_begun = asyncio.Event(), asyncio.Event()
        writing = asyncio.create_task(adapter.turn(CANCEL))
        await shop.has_begun.wait()
        writing.cancel()
        await asyncio.wait([writing])
        shop.gate = None
        assert await adapter.turn(GET) != await adapter.turn(GET)  # it may take effect now, so nothing is stored

    async def test_a_recorded_run_replays(self, kind: type[Adapter], tmp_path: Any) -> None:
        path = tmp_path / "run.jsonl"

        async def run(adapter: Adapter) -> list[list[str]]:
            async with AgentCacheSession():
                turns = ((GET,), (GET,), (CANCEL,), (GET,), (TOTAL,))  # a total is given back by its annotation
                return [await adapter.turn(*calls) for calls in turns]

        with record(path):
            recorded = await run(kind(Shop(), toolbox()))
        shop = Shop()
        with replay(path):
            assert await run(kind(shop, toolbox())) == recorded
        assert shop.runs == []

    async def test_a_loop_is_told_in_the_name_that_the_model_knows(self, kind: type[Adapter], tmp_path: Any) -> None:
        path = tmp_path / "run.jsonl"

        async def run(adapter: Adapter) -> str:
            async with AgentCacheSession(max_tool_repeats=2, on_loop="notice"):
                await adapter.turn(GET)
                [notice] = await adapter.turn(GET)
            return notice

        with record(path):
            notice = await run(kind(Shop(), toolbox()))
        assert notice.startswith("get_order was called 2 times")
        with replay(path):
            assert await run(kind(Shop(), toolbox())) == notice

    async def test_a_loop_ends_the_run(self, kind: type[Adapter]) -> None:
        """Or an error result, which is how a server tells its client."""
        adapter = kind(Shop(), toolbox())
        with pytest.raises(AgentLoopDetectedError) as caught:
            async with AgentCacheSession(max_tool_repeats=3) as session:
                for _ in range(3):
                    answers = await adapter.turn(GET)
                assert issubclass(kind, FastMCPServer), f"the framework made an answer of the loop: {answers}"
                assert "was called 3 times" in answers[0]
                session.raise_for_loop()
        assert (caught.value.tool, caught.value.kind) == ("shop:get_order", "repeat")
        assert len(adapter.shop.runs) == 1

    async def test_a_template_that_names_no_argument_is_refused_before_the_tool_runs(self, kind: type[Adapter]) -> None:
        shop = Shop()
        try:
            adapter = kind(shop, Toolbox({"get_order": Read("order:{order_number}")}, namespace="shop"))
            told = str(await adapter.turn(GET))
        except Exception as error:
            told = str(error)
        assert "order_number" in told or kind is FastMCPServer  # which has an internal error for its client
        assert shop.runs == []

    async def test_a_yes_is_asked_for_at_every_call(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        for number in (1, 2):
            await adapter.turn(SECRET)
            assert adapter.asked == number

    async def test_a_streamed_run_gets_what_is_stored(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        adapter.streams = True
        assert await adapter.turn(GET) == ["get_order 1 (1)"]
        assert await adapter.turn(GET, GET) == ["get_order 1 (1)"] * 2

    async def test_arguments_that_the_tool_refuses_are_not_stored(self, kind: type[Adapter]) -> None:
        adapter = kind(Shop(), toolbox())
        for _ in range(2):
            await adapter.turn(WRONG)
        assert adapter.shop.runs == []
        assert await adapter.turn(GET) == ["get_order 1 (1)"]

    def test_what_is_no_toolbox_and_no_function_is_refused(self, kind: type[Adapter]) -> None:
        with pytest.raises(ConfigurationError, match="Toolbox"):
            kind(Shop(), {"get_order": Read("order:{order_id}")})
        if kind is not McpClient:  # which this harness gives a function
            with pytest.raises(ConfigurationError, match="vary"):
                kind(Shop(), toolbox(), vary="user")


IN_PROCESS = pytest.mark.parametrize("kind", [kind for kind in ADAPTERS if kind is not McpClient])


@IN_PROCESS
async def test_what_depends_on_no_user_is_shared(kind: type[Adapter]) -> None:
    """But of an MCP client, whose account belongs to all of its calls."""
    adapter = kind(Shop(), toolbox())
    assert await adapter.turn(GET, user="ada") == await adapter.turn(GET, user="bob")


@IN_PROCESS
async def test_a_decorated_tool_passes_and_is_counted_once(kind: type[Adapter]) -> None:
    adapter = kind(Shop(), toolbox())
    async with AgentCacheSession() as session:
        first = await adapter.turn(DECORATED)
        assert await adapter.turn(DECORATED) == first
    assert [(one.tool, one.source) for one in session.get_execution_trace()] == [
        ("decorated", "miss"),
        ("decorated", "hit"),
    ]


@pytest.mark.parametrize("kind", [kind for kind in ADAPTERS if kind not in (LangChain, FastMCPServer)])
async def test_what_is_cached_twice_is_counted_once(kind: type[Adapter]) -> None:
    """Where what the adapter made may be given to it again."""
    adapter = kind(Shop(), toolbox())
    adapter.is_cached_twice = True
    async with AgentCacheSession() as session:
        await adapter.turn(GET)
    assert [one.source for one in session.get_execution_trace()] == ["miss"]


@IN_PROCESS
def test_explain_says_what_is_done_with_the_tools_of_an_agent(kind: type[Adapter], capsys: Any) -> None:
    box = toolbox()
    table = explain(kind(Shop(), box).agent(), box)
    rows = {row.tool: row for row in table}
    assert {name: row.kind for name, row in rows.items()} == {
        name: "write" if name in WRITES else "decorated" if name in ("get_decorated", "get_own") else "read"
        for name in (*RULES, "get_decorated")
    }
    with_context = {name for name, row in rows.items() if "context" in row.why}
    assert with_context - {"get_secret"} == {"get_mine", "get_my_number", "get_account"}
    assert capsys.readouterr().out == f"{table}\n"


@IN_PROCESS
async def test_tools_that_are_made_for_each_user_share_nothing(kind: type[Adapter]) -> None:
    """They are made around what they read from, which nothing but themselves knows."""
    box, shops = toolbox(), (Shop(), Shop())
    for shop in (*shops, *shops):
        await kind(shop, box).turn(GET)
    assert [shop.runs for shop in shops] == [["get_order 1"]] * 2


@IN_PROCESS
async def test_users_are_told_apart_by_a_context_variable_that_is_named_for_them(kind: type[Adapter]) -> None:
    adapter, found = kind(Shop(), toolbox()), []
    for user in ("ada", "bob", "ada", "bob"):
        LOGGED_IN_USER.set(user)
        found += await adapter.turn(("get_account", {}))
    assert found == ["get_account ada (1)", "get_account bob (2)"] * 2


BY_CONTEXT = pytest.mark.parametrize(
    "kind", [one for one in ADAPTERS if one in (LangChain, OpenAIAgents, PydanticAI, AnyFramework)]
)


@BY_CONTEXT
@pytest.mark.parametrize("name", ["get_mine", "get_own"])
@pytest.mark.parametrize("form", CONTEXTS)
async def test_users_are_told_apart_by_any_form_of_a_context(kind: type[Adapter], form: str, name: str) -> None:
    adapter = kind(Shop(), toolbox())
    adapter.context = CONTEXTS[form]
    found = [await adapter.turn((name, {}), user=user) for user in ("ada", "bob", "ada", "bob")]
    assert found == [[f"{name} ada (1)"], [f"{name} bob (2)"]] * 2


@BY_CONTEXT
async def test_a_context_that_cannot_be_compared_runs_uncached_with_one_warning(
    kind: type[Adapter], caplog: pytest.LogCaptureFixture
) -> None:
    adapter = kind(Shop(), toolbox())
    adapter.context = lambda _: {"user": object()}
    for number in (1, 2):
        await adapter.turn(MINE)
        assert len(adapter.shop.runs) == number
    [warning] = [message for message in caplog.messages if "get_mine" in message]
    assert "vary=" in warning
    assert "shared=True" in warning


@pytest.mark.parametrize("call", SPELT, ids=lambda call: f"{call[0]} {call[1]}")
@pytest.mark.parametrize("kind", [kind for kind in ADAPTERS if kind not in (McpClient, GoogleADK, AnyFramework)])
async def test_two_spellings_of_an_argument_are_one(kind: type[Adapter], call: Call) -> None:
    """Where they are one to the tool: a write by one ends what was read by the other."""
    adapter = kind(Shop(), toolbox())
    first = await adapter.turn(call)
    assert await adapter.turn(call) == first
    await adapter.turn(("set_number", {"number": 7}))
    assert await adapter.turn(call) != first


@pytest.mark.parametrize("kind", ADAPTERS)
async def test_shared_and_vary_say_what_counts_of_a_context(kind: type[Adapter]) -> None:
    shared: list[dict[str, Any]] = [{"shared": True}]
    if not issubclass(kind, FastMCPServer):  # where it counts beside who the client is
        shared.append({"vary": lambda _: "all"})
    for options in shared:
        adapter = kind(Shop(), toolbox(), **options)
        assert [await adapter.turn(MINE, user=user) for user in ("ada", "bob")] == [["get_mine ada (1)"]] * 2


@IN_PROCESS
async def test_what_vary_returns_keeps_the_answers_of_every_tool_apart(kind: type[Adapter]) -> None:
    """Of a tool that gets no context, too. It is asked at each call."""
    team = [""]
    adapter = kind(Shop(), toolbox(), vary=lambda _: team[0])
    for team[0], number in (("red", 1), ("blue", 2), ("red", 1), ("blue", 2)):
        assert await adapter.turn(GET) == [f"get_order 1 ({number})"]


EXAMPLES = [
    (package, code, output)
    for page, package in (
        ("use-langchain", "langchain"), ("use-openai-agents", "agents"), ("use-pydantic-ai", "pydantic_ai"),
        ("use-fastmcp", "fastmcp"), ("use-google-adk", "google.adk"), ("restore-an-agent", "langgraph"),
        ("restore-an-agent", "agents"),
    )
    for code, output in page_examples.examples(f"how-to/{page}.md", package)
]  # fmt: skip


@pytest.mark.parametrize(("package", "code", "output"), [one for one in EXAMPLES if is_installed(one[0])])
def test_an_example_of_a_page_prints_what_the_page_says(package: str, code: str, output: str, capsys: Any) -> None:
    asyncio.set_event_loop(loop := asyncio.new_event_loop())  # `run_sync` of Pydantic AI makes one and closes none
    exec(compile(code, "page", "exec"), {"__name__": __name__})
    loop.close()
    assert capsys.readouterr().out == output
