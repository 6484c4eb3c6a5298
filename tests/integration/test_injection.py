"""Parameters that a framework fills in are no arguments of a call; a class of the user's own is one."""

from __future__ import annotations
import __future__

import itertools
import types
import typing
from typing import Any, Generic, TypeVar

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, get_metrics

pytestmark = pytest.mark.usefixtures("clock")

T = TypeVar("T")


def kind_of(path: str) -> Any:
    """Stands for the class of a framework, which is known by its name and module."""
    module, _, name = path.rpartition(".")
    return types.new_class(name, (Generic[T],), exec_body=lambda body: body.update(__module__=module))


def tool_of(hint: str, found: Any = None, *, text: bool, default: Any = ...) -> Any:
    """A decorated tool of a module in which `Found` is a class, with a parameter that has this hint."""
    given = "" if default is ... else " = default"
    source = f"async def tool(ctx: {hint}{given}, query: str = ''):\n    return next(runs)\n"
    names = {**vars(typing), "Found": found, "default": default, "runs": itertools.count(), "__name__": "shop"}
    exec(
        compile(source, "shop.py", "exec", __future__.annotations.compiler_flag if text else 0, dont_inherit=True),
        names,
    )
    return AgentCache("r", shared=True)(names["tool"])  # or what a context says of its user would count


CONTEXTS = [
    "pydantic_ai.tools.RunContext", "agents.run_context.RunContextWrapper", "agents.tool_context.ToolContext",
    "langchain.tools.ToolRuntime", "langgraph.prebuilt.tool_node.ToolRuntime",
    "langchain_core.runnables.config.RunnableConfig", "langchain_core.tools.InjectedToolCallId", "fastmcp.Context",
    "mcp.server.fastmcp.Context", "google.adk.agents.context.Context", "google.adk.agents.CallbackContext",
    "google.adk.agents.ReadonlyContext", "google.adk.agents.InvocationContext", "workflows.context.context.Context",
    "autogen_core._cancellation_token.CancellationToken", "strands.types.tools.ToolContext", "agno.run.base.RunContext",
    "ag2.context.ConversationContext", "agent_framework._middleware.FunctionInvocationContext",
]  # fmt: skip


RunContext, InjectedState = kind_of("pydantic_ai.tools.RunContext"), kind_of("langgraph.prebuilt.InjectedState")
Depends = kind_of("fastapi.params.Depends")
FOUND = {"a subclass": type("MyContext", (RunContext,), {}), "a marker": InjectedState(), "a dependency": Depends()}
HINTS = {
    "with its dependencies": "Found[int]",
    "annotated optional": "Annotated[Optional[Found], 'the context']",
    "quoted": "'Optional[Found]'",
    "quoted inside": "Optional['Found']",
    "a subclass": "Found",
    "a marker": "Annotated[dict, 'doc', Found]",
    "a dependency": "Annotated[str, Found]",
}


FORMS = [
    *(("Found", kind_of(path), False) for path in CONTEXTS),
    *((hint, FOUND.get(name, RunContext), text) for name, hint in HINTS.items() for text in (False, True)),
]


@pytest.mark.parametrize(("hint", "found", "text"), FORMS, ids=range(len(FORMS)))
async def test_a_context_is_recognised_in_every_form_of_hint_and_is_no_part_of_the_key(
    hint: str, found: Any, text: bool
):
    tool = tool_of(hint, found, text=text)
    answer = await tool(object(), "tea")
    assert await tool(ctx=object(), query="tea") == answer
    assert await tool(object(), "coffee") != answer
    assert get_metrics()["uncached"] == 0


async def test_what_a_dependency_provides_is_no_part_and_what_means_nothing_at_run_time_is_an_argument():
    """As a name that is imported for type checkers alone: no framework could fill it in by that hint."""
    tool = tool_of("dict", text=False, default=Depends())
    assert await tool({"connection": 1}, "tea") == await tool({"connection": 2}, "tea")
    tool = tool_of("RunContext", text=True)
    assert await tool(object(), "tea") != await tool(object(), "tea")
    assert get_metrics()["uncached"] == 2


OWN = ["shop.Context", "google.genai.Context", "shop.RunContext", "workflows.Context"]
UNREADABLE = ["'this is no (expression'", "1", "''", "Annotated[str, 'InjectedState']"]


@pytest.mark.parametrize(
    ("hint", "path"), [("Found", path) for path in OWN] + [(hint, "shop.Context") for hint in UNREADABLE]
)
async def test_a_class_of_the_users_own_and_what_cannot_be_read_are_arguments(hint: str, path: str):
    tool = tool_of(hint, kind_of(path), text=False)
    assert await tool("one", "tea") != await tool("other", "tea")
    assert await tool("one", "tea") == await tool("one", "tea")


async def test_a_context_without_identity_is_passed_on_and_stays_out_of_everything():
    """The tool gets the context of its own call, and `vary=` sees it, since it carries the tenant."""
    seen = []

    async def tool(query: str, ctx: Any) -> int:
        seen.append(ctx)
        return len(seen)

    tool.__annotations__["ctx"] = RunContext
    decorated = AgentCache("r", vary=lambda arguments: arguments["ctx"].tenant)(tool)
    contexts = [types.SimpleNamespace(tenant=tenant) for tenant in ("a", "a", "b")]
    assert [await decorated("tea", ctx=context) for context in contexts] == [1, 1, 2]
    assert seen == [contexts[0], contexts[2]]


async def test_what_a_template_names_of_a_state_tells_calls_apart():
    """Else what was read of one document would be the answer for another one."""

    async def tool(query: str, state: Any) -> Any:
        return state["doc"]

    tool.__annotations__["state"] = typing.Annotated[dict, InjectedState()]
    read = AgentCache("doc:{state[doc]}")(tool)
    assert [await read("tea", {"doc": doc, "messages": [turn]}) for turn, doc in enumerate("aba")] == ["a", "b", "a"]
    assert get_metrics()["hits"] == 1
    async with AgentCacheSession(tenant="acme"):  # which says who asks where the state does not
        assert [await read("tea", {"doc": doc, "user": object()}) for doc in "aba"] == ["a", "b", "a"]
    assert get_metrics()["hits"] == 2
    with pytest.raises(ValueError, match="depends on 'state', which shared= leaves out"):
        AgentCache("doc:{state[doc]}", shared=True)(tool)


async def test_what_the_user_ignores_identifies_no_call():
    """Neither its result, nor whether it repeats another one."""
    runs = itertools.count()

    @AgentCache("r", ignore=("ctx", "options"))
    async def read(ctx: Any, query: str, **options: Any) -> int:
        return next(runs)

    @AgentCacheInvalidator("r", ignore=["ctx"], ok=lambda result: result == "done")
    async def write(query: str, *, ctx: Any) -> str:
        return "no"

    answer = await read(object(), "tea", trace=object())
    assert await read(ctx=1, query="tea") == answer
    assert await read(1, "coffee") != answer
    assert get_metrics()["uncached"] == 0
    assert read.cache_key(1, "tea") == read.cache_key(2, "tea", trace=1)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_tool_repeats=3):
            for ctx in range(9):
                await write("tea", ctx=ctx)
