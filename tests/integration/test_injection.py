"""Parameters that a framework fills in are no arguments of a call; a class of the user's own is one."""

from __future__ import annotations

import itertools
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, get_metrics
from agent_cache.recording import record, replay

pytestmark = pytest.mark.usefixtures("clock")

STUBS = {
    "pydantic_ai": "class RunContext(Generic[T]): pass",
    "pydantic_ai.tools": "from pydantic_ai import RunContext",
    "agents": "class RunContextWrapper(Generic[T]): pass",
    "agents.tool_context": "from agents import RunContextWrapper\nclass ToolContext(RunContextWrapper[T]): pass",
    "langchain": "",
    "langchain.tools": "class ToolRuntime(Generic[T]): pass",
    "langchain_core": "",
    "langchain_core.runnables": "class RunnableConfig(dict): pass",
    "langchain_core.tools": "class InjectedToolArg: pass\nclass InjectedToolCallId(InjectedToolArg): pass",
    "langgraph": "",
    "langgraph.prebuilt": (
        "class InjectedState:\n    def __init__(self, field=None): self.field = field\n"
        "class InjectedStore: pass\n"
        "class ToolRuntime(Generic[T]): pass"
    ),
    "fastmcp": "class Context: pass",
    "fastmcp.dependencies": (
        "class _Depends:\n    def __init__(self, f): self.f = f\ndef Depends(f): return _Depends(f)"
    ),
    "fastapi": "class Depends:\n    def __init__(self, dependency=None): self.dependency = dependency",
    "mcp": "",
    "mcp.server": "",
    "mcp.server.fastmcp": "class Context(Generic[T]): pass",
    "google": "",
    "google.adk": "",
    "google.adk.agents": "",
    "google.adk.agents.readonly_context": "class ReadonlyContext: pass",
    "google.adk.agents.context": (
        "from google.adk.agents.readonly_context import ReadonlyContext\nclass Context(ReadonlyContext): pass"
    ),
    "google.adk.agents.callback_context": "from google.adk.agents.context import Context as CallbackContext",
    "google.adk.agents.invocation_context": "class InvocationContext: pass",
    "google.adk.tools": "from google.adk.agents.context import Context as ToolContext",
    "google.adk.tools.tool_context": "from google.adk.agents.context import Context as ToolContext",
    "google.genai": "class Context: pass",
    "llama_index": "",
    "llama_index.core": "",
    "workflows": "",
    "workflows.context": "",
    "workflows.context.context": "class Context(Generic[T]): pass",
    "llama_index.core.workflow": (
        "import workflows\nfrom workflows.context.context import Context\nworkflows.Context = Context"
    ),
    "autogen_core": "",
    "autogen_core._cancellation_token": (
        "import autogen_core\nclass CancellationToken: pass\nautogen_core.CancellationToken = CancellationToken"
    ),
    "strands": "",
    "strands.types": "",
    "strands.types.tools": (
        "import strands\nfrom typing import Protocol\nclass ToolContext(Protocol): pass\n"
        "strands.ToolContext = ToolContext"
    ),
    "agno": "",
    "agno.run": "",
    "agno.run.base": "import agno.run\nclass RunContext: pass\nagno.run.RunContext = RunContext",
    "shop": "class Context:\n    def __init__(self, shop): self.shop = shop\nclass RunContext(Context): pass",
}
HEAD = "from typing import Generic, TypeVar\nT = TypeVar('T')\n"


@pytest.fixture(scope="module")
def stand_ins() -> dict[str, types.ModuleType]:
    """Those of the frameworks, with the classes where the frameworks define them."""
    made: dict[str, types.ModuleType] = {}
    with pytest.MonkeyPatch.context() as patch:
        forget_frameworks(patch)
        for name, source in STUBS.items():
            module = made[name] = types.ModuleType(name)
            module.__path__ = []
            patch.setitem(sys.modules, name, module)
            package, _, leaf = name.rpartition(".")
            if package:
                setattr(made[package], leaf, module)
            exec(HEAD + source, vars(module))
    return made


def forget_frameworks(patch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] in {stub.partition(".")[0] for stub in STUBS}:
            patch.delitem(sys.modules, name)


@pytest.fixture
def frameworks(stand_ins: dict[str, types.ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are what is imported."""
    forget_frameworks(monkeypatch)
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a module, import it, and give its tool decorated."""
    number = 0

    def write(source: str) -> Any:
        nonlocal number
        number += 1
        name = f"injection_example_{number}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        module = types.ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
        vars(module)["runs"] = itertools.count()
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True), vars(module))
        return AgentCache("r", shared=True)(module.tool)  # or what a context says of its user would count

    return write


def module(imports: str, hint: str, *, text: bool, default: str = "") -> str:
    future = "from __future__ import annotations\n" if text else ""
    tool = f"async def tool(ctx: {hint}{default}, query: str = ''):\n    return next(runs)\n"
    return f"{future}import typing\nfrom typing import *\n{imports}\n\n{tool}"


INJECTED = {
    "pydantic_ai": ("from pydantic_ai import RunContext", "RunContext"),
    "under another name": ("from pydantic_ai import RunContext as RC", "RC[int]"),
    "by its module": ("import pydantic_ai", "pydantic_ai.RunContext[int]"),
    "agents, a subclass": ("from agents.tool_context import ToolContext", "ToolContext[int]"),
    "langchain runtime": ("from langchain.tools import ToolRuntime", "ToolRuntime"),
    "langgraph runtime": ("from langgraph.prebuilt import ToolRuntime", "ToolRuntime"),
    "langchain config": ("from langchain_core.runnables import RunnableConfig", "RunnableConfig"),
    "marker class": ("from langchain_core.tools import InjectedToolCallId", "Annotated[str, InjectedToolCallId]"),
    "marker instance": ("from langgraph.prebuilt import InjectedState", "Annotated[dict, InjectedState('messages')]"),
    "marker among others": (
        "from langgraph.prebuilt import InjectedStore",
        "Annotated[object, 'doc', InjectedStore()]",
    ),
    "fastmcp": ("from fastmcp import Context", "Context"),
    "mcp": ("from mcp.server.fastmcp import Context", "Context"),
    "adk": ("from google.adk.tools import ToolContext", "ToolContext"),
    "adk, of a callback": ("from google.adk.agents.callback_context import CallbackContext", "CallbackContext"),
    "adk, read-only": ("from google.adk.agents.readonly_context import ReadonlyContext", "ReadonlyContext"),
    "adk, of a run": ("from google.adk.agents.invocation_context import InvocationContext", "InvocationContext"),
    "llama-index": ("from llama_index.core.workflow import Context", "Context"),
    "autogen": ("from autogen_core import CancellationToken", "CancellationToken"),
    "strands": ("from strands import ToolContext", "ToolContext"),
    "agno": ("from agno.run import RunContext", "RunContext"),
    "optional": ("from fastmcp import Context", "Optional[Context]"),
    "union": ("from fastmcp import Context", "Context | None"),
    "annotated optional": ("from fastmcp import Context", "Annotated[Optional[Context], 'the context']"),
    "quoted": ("from fastmcp import Context", "'Context | None'"),
    "quoted inside": ("from fastmcp import Context", "Optional['Context']"),
    "an alias of one's own": ("from pydantic_ai import RunContext\nCtx = RunContext[int]", "Ctx"),
    "a subclass of one's own": (
        "from pydantic_ai import RunContext\nclass MyContext(RunContext[int]): pass",
        "MyContext",
    ),
    "fastapi dependency in the hint": ("from fastapi import Depends", "Annotated[str, Depends(print)]"),
    "fastmcp dependency in the hint": ("from fastmcp.dependencies import Depends", "Annotated[str, Depends(print)]"),
}


@pytest.mark.parametrize("text", [False, True], ids=["objects", "text"])
@pytest.mark.parametrize("name", INJECTED)
@pytest.mark.usefixtures("frameworks")
async def test_a_context_is_no_part_of_the_key(load: Any, name: str, text: bool):
    tool = load(module(*INJECTED[name], text=text))
    answer = await tool(object(), "tea")
    assert await tool(ctx=object(), query="tea") == answer
    assert await tool(object(), "coffee") != answer
    assert get_metrics()["uncached"] == 0


async def test_a_context_that_is_imported_for_typing_alone_is_an_argument_without_identity(load: Any):
    """No framework could fill it in by that hint."""
    tool = load(module("if TYPE_CHECKING:\n    from fastmcp import Context", "Context", text=True))
    assert await tool(object(), "tea") != await tool(object(), "tea")
    assert get_metrics()["uncached"] == 2


@pytest.mark.parametrize("imported", ["from fastapi import Depends", "from fastmcp.dependencies import Depends"])
@pytest.mark.parametrize("text", [False, True], ids=["objects", "text"])
@pytest.mark.usefixtures("frameworks")
async def test_what_a_dependency_provides_is_no_part_of_the_key(load: Any, imported: str, text: bool):
    tool = load(module(imported, "dict", text=text, default=" = Depends(dict)"))
    answer = await tool({"connection": 1}, "tea")
    assert await tool({"connection": 2}, "tea") == answer


OWN = {
    "a class of the module": ("class Context:\n    def __init__(self, shop): self.shop = shop", "Context"),
    "of another context's name": ("from shop import RunContext as Context", "Context"),
    "of another package of google's": ("from google.genai import Context", "Context"),
    "annotated": ("from shop import Context", "Annotated[Context, 'InjectedState']"),
}


@pytest.mark.parametrize("text", [False, True], ids=["objects", "text"])
@pytest.mark.parametrize("name", OWN)
@pytest.mark.usefixtures("frameworks")
async def test_a_class_of_the_users_own_that_is_called_context_is_an_argument(load: Any, name: str, text: bool):
    tool = load(module(*OWN[name], text=text))
    assert await tool("one", "tea") != await tool("other", "tea")
    assert await tool("one", "tea") == await tool("one", "tea")


UNREADABLE = {"unknown name": "Nowhere", "no expression": "'this is no (expression'", "a number": "1", "empty": "''"}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_hint_that_cannot_be_read_makes_an_argument(load: Any, name: str):
    tool = load(module("", UNREADABLE[name], text=name == "unknown name"))
    assert await tool("one", "tea") != await tool("other", "tea")


@pytest.mark.usefixtures("frameworks")
async def test_a_context_without_identity_is_passed_on_and_stays_out_of_everything(load: Any):
    """The tool gets the context of its own call, and `vary=` sees it, since it carries the tenant."""
    from fastmcp import Context  # type: ignore[import-not-found]

    seen = []

    async def tool(query: str, ctx: Any) -> int:
        seen.append(ctx)
        return len(seen)

    tool.__annotations__["ctx"] = Context
    decorated = AgentCache("r", vary=lambda arguments: arguments["ctx"].tenant)(tool)
    contexts = [types.SimpleNamespace(tenant=tenant) for tenant in ("a", "a", "b")]
    answers = [await decorated("tea", ctx=context) for context in contexts]
    assert answers == [1, 1, 2]
    assert seen == [contexts[0], contexts[2]]


@pytest.mark.usefixtures("frameworks")
async def test_no_framework_is_imported_to_recognise_its_context(load: Any, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"imported {name}")

    source = load(module("from fastmcp import Context", "Context", text=True)).__wrapped__
    monkeypatch.setattr("builtins.__import__", refuse)
    tool = AgentCache("again")(source)
    monkeypatch.undo()
    assert [one.name for one in tool.__agent_cache__.parameters.all if one.in_key] == ["query"]


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


async def test_what_the_user_ignores_is_in_no_recording(tmp_path: Path):
    @AgentCacheInvalidator("r", ignore=("ctx",), name="shop:buy")
    async def buy(item: str, ctx: Any) -> str:
        return f"{item} for {ctx}"

    with record(tmp_path / "run.jsonl") as recorder:
        await buy("tea", "user 1")
    assert recorder.steps[0].arguments == {"item": "tea"}
    with replay(tmp_path / "run.jsonl", strict=True):
        assert await buy("tea", object()) == "tea for user 1"
