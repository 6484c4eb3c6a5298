"""Google ADK: the tools of an agent go through a `Toolbox`.

`cached` gives a copy of a tool whose `run_async` asks the toolbox first; callbacks, plugins, confirmations and
telemetry of the flow stay around it. What a tool gets of the context may decide its answer and take a change of the
state, so the calls of such a tool are shared within one session of ADK only.

Checked with google-adk 2.13.0. Two private methods are called: `BaseTool._get_declaration`, which every tool overrides,
for the schema of the arguments, and `FunctionTool._preprocess_args_with_validation`, for what the function gets.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from agent_cache import Toolbox
from agent_cache.core.asker import Apart
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import Private, as_tool_gets, checked_box, is_public, made_around, returned_by
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import is_shared, says_who_asks

try:
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.tools.agent_tool import AgentTool
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.tools.function_tool import FunctionTool
    from google.adk.tools.tool_context import ToolContext
    from google.adk.workflow import BaseNode
    from pydantic_core import to_json
except ImportError as error:
    raise ImportError('agent_cache.integrations.adk needs google-adk>=2.13: pip install "agent-cache[adk]"') from error

__all__ = ["cached", "describe"]

T = TypeVar("T")

Vary = Callable[[ToolContext], Any]


def cached(tool_or_agent: T, box: Toolbox, vary: Vary | None = None, *, shared: bool = False) -> T:
    """A copy of a tool, a toolset or an agent whose tool calls go through a toolbox; the original stays as it is.

    Of an agent, the copy has copies of its tools, its toolsets, its sub-agents and the agents in its fields, and of
    agents that are tools. The name of a tool in the rules is the one that the model sees.

    Not stored is what raises, an answer with an ``"error"`` or an ``"isError"``, and an answer whose tool has changed
    the state, an artifact or an action of its `ToolContext`: a hit would lose that change. A decorated tool, a
    long-running one, a generator and a tool that the model runs by itself are left alone.

    Args:
        tool_or_agent: a tool, a function, a toolset, or an agent.
        box: the toolbox.
        vary: ``vary(tool_context)`` is a part of the key: ``lambda context: context.user_id``. Without it, a function
            without a context has the same answers for all users, and any other tool has its own in each session of ADK
            and for each ``user:`` state.
        shared: whether all users share the answers of tools that get a context, or were made around something.

    Raises:
        TypeError: if it is something else.
    """
    checked_box(box, vary, "cached")
    return typing.cast("T", _Cached(box, vary, shared).of(tool_or_agent))


class _Cached(NamedTuple):
    """Copies of tools, toolsets and agents, whose calls go through a toolbox."""

    box: Toolbox
    vary: Vary | None
    shared: bool

    def of(self, given: Any) -> Any:
        if isinstance(given, BaseAgent):
            return self._agent(given, {})
        if isinstance(given, BaseToolset):
            return self._toolset(given)
        if not isinstance(given, BaseTool):
            if inspect.isclass(given) or not callable(given):
                raise TypeError(f"cached takes a tool, a function, a toolset or an agent of ADK, got {given!r}")
            if hasattr(given, "__agent_cache__"):
                return given
            given = FunctionTool(given)
        return self._tool(given, given.name)

    def _agent(self, agent: BaseAgent, copies: dict[int, Any]) -> BaseAgent:
        """A copy of an agent, which stands for it wherever it is among the fields of others."""
        if id(agent) not in copies:
            update: dict[str, Any] = {}
            for name, found in _agents_of(agent).items():
                made = [self._agent(one, copies) for one in found]
                update[name] = made if isinstance(getattr(agent, name), list) else made[0]
            if isinstance(agent, LlmAgent):
                update["tools"] = [one if isinstance(one, BaseNode) else self.of(one) for one in agent.tools]
            copies[id(agent)] = agent.clone(update)
        return typing.cast("BaseAgent", copies[id(agent)])

    def _toolset(self, toolset: BaseToolset) -> BaseToolset:
        changed: Any = copy.copy(toolset)

        async def get_tools(readonly_context: Any = None) -> list[BaseTool]:
            prefix = f"{toolset.tool_name_prefix}_" if toolset.tool_name_prefix else ""
            return [self._tool(tool, prefix + tool.name) for tool in await toolset.get_tools(readonly_context)]

        changed.get_tools = get_tools
        return changed

    def _tool(self, tool: BaseTool, name: str) -> BaseTool:
        changed: Any = copy.copy(tool)
        if isinstance(tool, AgentTool):
            changed.agent = self._agent(tool.agent, {})
            return changed
        if not _is_taken(tool) or any(hasattr(one, "__agent_cache__") for one in (tool, getattr(tool, "func", None))):
            return tool
        box, vary = self.box, self.vary
        schema, annotations, returns = _schema_of(tool), _annotations_of(tool), returned_by(getattr(tool, "func", None))
        rule = box.rule(name, annotations)
        is_said = vary is not None or self.shared or says_who_asks(rule)
        heeds_context = vary is None and not self.shared and not is_shared(rule) and _gets_context(tool)
        prepare = getattr(tool, "_preprocess_args_with_validation", None)
        check = prepare and (lambda given: prepare(given)[0])
        around = made_around(getattr(tool, "func", None), is_shared=is_said)

        async def run_async(*, args: dict[str, Any], tool_context: ToolContext) -> Any:
            async def run() -> Any:
                before = _image_of(tool_context)
                answer = await tool.run_async(args=args, tool_context=tool_context)
                return answer if before is not None and before == _image_of(tool_context) else Private(answer)

            session = tool_context.session
            who = session.user_id if heeds_context else vary and vary(tool_context)
            answer = await box.call(
                name,
                as_tool_gets(check, args),
                run,
                schema=schema,
                annotations=annotations,
                vary=Apart(who, [session.app_name, session.id, *around()] if heeds_context else around()),
                context=tool_context if heeds_context else None,
                returns=None if returns is None else typing.Union[returns, Private],  # noqa: UP007 - of any annotation
                failed=_is_error,
                store_if=is_public,
            )
            return answer.answer if type(answer) is Private else answer

        changed.run_async = run_async
        changed.__agent_cache__ = ToolInfo(name)  # which can be copied, as a box cannot
        return changed


def _image_of(context: ToolContext) -> bytes | None:
    """The actions of a call, to be compared; None if they cannot be written."""
    try:
        return to_json(vars(context.actions))
    except Exception:  # noqa: BLE001 - values of the user's
        return None


def _is_error(answer: Any) -> bool:
    """Whether an answer says that it is an error, as ADK does by ``error``, and an MCP server by ``isError``."""
    told = answer if isinstance(answer, dict) else {}
    return bool(told.get("error")) or (told.get("isError") or told.get("is_error")) is True


def _annotations_of(tool: BaseTool) -> Any:
    """What an MCP server says of its tool; None for any other tool."""
    return getattr(getattr(tool, "raw_mcp_tool", None), "annotations", None)


def _agents_of(agent: BaseAgent) -> dict[str, list[BaseAgent]]:
    """The agents in the fields of an agent, which may be one of the user's own class, but for its parent."""
    fields = {name: getattr(agent, name) for name in type(agent).model_fields if name != "parent_agent"}
    found = {name: one if isinstance(one, list) else [one] for name, one in fields.items()}
    return {name: some for name, some in found.items() if some and all(isinstance(one, BaseAgent) for one in some)}


def _is_taken(tool: BaseTool) -> bool:
    if tool.is_long_running or type(tool).run_async is BaseTool.run_async:
        return False
    function = getattr(tool, "func", None)
    bodies = function, getattr(function, "__call__", None)  # noqa: B004 - of an object that is a function
    return not any(map(inspect.isasyncgenfunction, bodies)) and not any(map(inspect.isgeneratorfunction, bodies))


def _gets_context(tool: BaseTool) -> bool:
    """Whether a tool may see the context: any, but for a function without a parameter for it."""
    if type(tool) is not FunctionTool:
        return True
    return "tool_context" in inspect.signature(tool.func).parameters or takes_context(tool.func)


def _schema_of(tool: BaseTool) -> Mapping[str, Any] | None:
    declaration = tool._get_declaration()
    if declaration is None:
        return None
    if isinstance(declaration.parameters_json_schema, Mapping):
        return declaration.parameters_json_schema
    if declaration.parameters is None:
        return {"type": "object", "properties": {}}
    schema: Mapping[str, Any] = declaration.parameters.model_dump(mode="json", exclude_none=True, by_alias=True)
    return schema


def describe(agent: Any) -> list[ToolInfo] | None:
    """The tools of an agent, for `explain`; None if it is no agent of ADK. Those of a toolset are known to ADK while an
    agent runs, so they are not among them.
    """
    if not isinstance(agent, BaseAgent):
        return None
    return list({info.name: info for info in _infos(agent)}.values())


def _infos(agent: BaseAgent) -> Iterator[ToolInfo]:
    for given in agent.tools if isinstance(agent, LlmAgent) else ():
        tool = FunctionTool(given) if callable(given) else given
        if isinstance(tool, AgentTool):
            yield from _infos(tool.agent)
        elif isinstance(tool, BaseTool) and _is_taken(tool):
            is_decorated = hasattr(getattr(tool, "func", None), "__agent_cache__")
            yield ToolInfo(tool.name, _schema_of(tool), _annotations_of(tool), is_decorated, _gets_context(tool))
    for one in itertools.chain(*_agents_of(agent).values()):
        yield from _infos(one)
