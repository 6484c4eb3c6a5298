"""OpenAI Agents SDK: every function tool and MCP server of an agent through one `agent_cache.Toolbox`.

A function tool of the SDK turns its exceptions into texts for the model, in its invoker. The cache stands inside of
that invoker, so that it sees exceptions, and outside of the function, so that approvals, guardrails, hooks and timeouts
run at every call, hits included. An MCP server is wrapped at `call_tool`, where an error result is still marked as one.

Private names of the SDK that this module reads, each pinned by a test: `_FailureHandlingFunctionToolInvoker` with
`_invoke_tool_impl` and `_function_tool`; `_agent_instance` and `_is_agent_tool` of a `FunctionTool`;
`Handoff._agent_ref`.
"""

from __future__ import annotations

import copy
import functools
import json
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeVar, cast

from agent_cache import AgentLoopDetectedError, ConfigurationError, Toolbox
from agent_cache.core.asker import Apart
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import (
    Check,
    UnansweredError,
    alone,
    apart,
    as_json,
    as_tool_gets,
    called,
    checked_box,
    identity_of,
    made_around,
    returned_by,
)
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import says_who_asks

try:
    from agents import Agent, FunctionTool, Handoff, RunContextWrapper
    from agents.exceptions import AgentsException, UserError
    from agents.function_schema import function_schema
    from agents.mcp import MCPServer
    from agents.tool import _FailureHandlingFunctionToolInvoker
    from agents.tool_context import ToolContext
    from mcp.types import CallToolResult
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.openai_agents needs openai-agents>=0.24: pip install "agent-cache[openai-agents]"'
    ) from error

__all__ = ["LoopInAgent", "cached", "describe"]

AnyAgent = TypeVar("AnyAgent", bound="Agent[Any]")
Vary = Callable[[RunContextWrapper[Any]], Any]
Invoke = Callable[[Any, str], Awaitable[Any]]

_CONTEXT: Final[ContextVar[Any]] = ContextVar("agent_cache_openai_agents_context", default=None)
"""The run's context while a tool runs: the SDK does not pass it to an MCP server."""


class LoopInAgent(AgentLoopDetectedError, AgentsException):
    """A loop, or a spent budget, that leaves `Runner.run`: the SDK lets its own exceptions pass."""


def cached(agent: AnyAgent, box: Toolbox, vary: Vary | None = None, *, shared: bool = False) -> AnyAgent:
    """Copy an agent so that its tools are called through a toolbox. The agent itself is not changed.

    The copy has copies of the function tools and wrappers of the MCP servers, and hands off to copies of agents. What
    the SDK does around a tool stays: strict schemas, approvals, guardrails, ``is_enabled``, hooks, timeouts, texts for
    failures. Decorated tools pass, as do tools that run at the provider, and those that are no function tools. An
    agent as a tool passes if its tools are cached: ``cached(inner, box).as_tool(...)``. Else nobody sees what they
    write, so it is a write, of everything without a rule, unless a rule of its name says that it is none.

    Two tools of one name, of two agents that hand off to each other, are kept apart by the names of their agents. An
    MCP tool has the name that its server gives it, whatever prefix the SDK shows to the model, and the entries of two
    servers are kept apart by their ``name``, command, environment, URL and headers; one with an ``auth`` object, a
    client factory or a class of your own is itself alone. Metadata of a call (``tool_meta_resolver``) belong to its
    key, unless `vary` is given.

    Args:
        box: the rules.
        vary: called with the context of each call; what it returns (JSON) belongs to the key. A tenant, a user. Without
            it, what can be compared in the run's ``context`` belongs to the key of a tool that gets it.
        shared: whether all users share the answers of tools that get the context, or were made around something.

    Raises:
        ConfigurationError: if `agent` is no `agents.Agent`, or `box` is no toolbox.
    """
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"cached() takes an agents.Agent, got {type(agent).__name__}")
    checked_box(box, vary, "cached()")
    return _Copies(box, vary, shared=shared).of_agent(agent)


def describe(agent: Any) -> list[ToolInfo] | None:
    """The tools that `cached` takes of an agent and of those that it hands off to, for `explain`; None if it is none.
    Those of an MCP server are among them once the SDK has listed them and keeps the list.
    """
    if not isinstance(agent, Agent):
        return None
    infos: dict[str, ToolInfo] = {}
    for each in _reached_from(agent):
        for tool in each.tools:
            if _is_taken(tool):
                told = tool.qualified_name, tool.params_json_schema, tool.mcp_annotations
                infos.setdefault(told[0], ToolInfo(*told, _is_decorated(tool), _gets_context(tool)))
        for server in each.mcp_servers:
            for one in server.cached_tools or ():
                infos.setdefault(one.name, ToolInfo(one.name, as_json(one).get("inputSchema"), one.annotations))
    return list(infos.values())


def unlisted(agent: Any) -> int:
    """How many MCP servers there are whose tools `describe` does not know."""
    return len({id(server) for each in _reached_from(agent) for server in each.mcp_servers if not server.cached_tools})


def _reached_from(agent: Agent[Any]) -> list[Agent[Any]]:
    """An agent, and those that it hands off to, each once; those that a handoff makes are not known."""
    found = [agent]
    for each in found:
        for one in each.handoffs:
            target = one if isinstance(one, Agent) else _target_of(one)
            if isinstance(target, Agent) and not any(target is known for known in found):
                found.append(target)
    return found


def _target_of(handoff: Handoff[Any, Any]) -> Any:
    return handoff._agent_ref() if handoff._agent_ref is not None else None


# Agents


class _Copies:
    """The copies of the agents that one agent can reach, each made once, since handoffs may go round."""

    def __init__(self, box: Toolbox, vary: Vary | None, *, shared: bool) -> None:
        self._box, self._vary, self._shared = box, vary, shared
        self._made: dict[int, tuple[Any, Any]] = {}  # by the id of the original, which is kept with its copy

    def of_agent(self, agent: AnyAgent) -> AnyAgent:
        known = self._made.get(id(agent))
        if known is not None:
            return cast("AnyAgent", known[1])
        made = copy.copy(agent)
        self._made[id(agent)] = agent, made
        made.tools = [self._of_tool(tool) for tool in agent.tools]
        made.mcp_servers = [
            _cached_server(each, self._box, self._vary, shared=self._shared) for each in agent.mcp_servers
        ]
        made.handoffs = [
            self._of_handoff(one) if isinstance(one, Handoff) else self.of_agent(one) for one in agent.handoffs
        ]
        if made.mcp_servers:
            made.__class__ = _passing_loops(cast("Any", type(agent)))
        return made

    def _of_tool(self, tool: Any) -> Any:
        if not _is_taken(tool) or _is_cached(tool):
            return tool
        if tool._is_agent_tool and self._box.rule(tool.qualified_name).kind != "write":
            return tool
        made, inner = copy.copy(tool), tool.on_invoke_tool
        if isinstance(inner, _FailureHandlingFunctionToolInvoker):
            made.on_invoke_tool = _Invoker(inner, made, self._through(tool, inner._invoke_tool_impl))
        else:  # of the user's own
            made.on_invoke_tool = _leaving(self._through(tool, inner))
        return made

    def _through(self, tool: FunctionTool, invoke: Invoke) -> Invoke:
        """What calls a function tool through the toolbox."""
        box, vary, function = self._box, self._vary, getattr(tool, "__wrapped__", None)
        name, schema, annotations = tool.qualified_name, tool.params_json_schema, tool.mcp_annotations
        heeds_context = vary is None and not self._shared and _gets_context(tool)
        returns, check = returned_by(function, include_extras=True), _check_of(function)
        is_shared = vary is not None or self._shared or says_who_asks(box.rule(name, annotations))
        around = made_around(function or invoke, is_shared=is_shared)

        @functools.wraps(invoke)  # by its annotations the SDK decides which context it gets
        async def invoke_cached(context: Any, raw: str) -> Any:
            try:
                arguments = json.loads(raw) if raw else {}
            except (ValueError, RecursionError):
                arguments = None
            if not isinstance(arguments, dict):
                return await invoke(context, raw)  # which refuses them, in the SDK's words
            try:
                varied = None if vary is None else _varied(vary, context)
                return await box.call(
                    name,
                    as_tool_gets(check, arguments),
                    functools.partial(invoke, context, raw),
                    schema=schema,
                    annotations=annotations,
                    vary=apart(varied, around()),
                    context=context if heeds_context else None,
                    returns=returns,
                )
            except (AgentLoopDetectedError, ConfigurationError) as error:
                _leave(error)

        return invoke_cached

    def _of_handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        made, invoke = copy.copy(handoff), handoff.on_invoke_handoff

        async def invoke_cached(context: RunContextWrapper[Any], arguments: str) -> Any:
            target = await invoke(context, arguments)
            known = self._made.get(id(target))
            # One that is made for this handoff is not kept
            return known[1] if known else _Copies(self._box, self._vary, shared=self._shared).of_agent(target)

        made.on_invoke_handoff = invoke_cached
        target = _target_of(handoff)
        if isinstance(target, Agent):
            made._agent_ref = weakref.ref(self.of_agent(target))  # by which a saved run finds its agents
        return made


@functools.cache
def _passing_loops(kind: type[Agent[Any]]) -> type[Agent[Any]]:
    """The same class of agents, but that a loop leaves the tools of its MCP servers."""

    async def get_mcp_tools(self: Any, run_context: RunContextWrapper[Any]) -> list[Any]:
        tools = await kind.get_mcp_tools(self, run_context)
        for tool in tools:
            invoker = tool.on_invoke_tool if isinstance(tool, FunctionTool) else None
            if isinstance(invoker, _FailureHandlingFunctionToolInvoker):
                tool.on_invoke_tool = _Invoker(invoker, tool, invoker._invoke_tool_impl)
        return tools

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {"get_mcp_tools": get_mcp_tools, **names})


# Function tools


class _Leaving(BaseException):
    """Carries an error past the SDK, which would make a text for the model of any `Exception`."""


def _leave(error: AgentLoopDetectedError | ConfigurationError) -> NoReturn:
    """End the run by a loop, or by a mistake in the rules."""
    is_loop = isinstance(error, AgentLoopDetectedError)
    leaving: AgentsException = LoopInAgent(*error.args) if is_loop else UserError(str(error))
    leaving.__cause__ = error
    raise _Leaving(leaving) from error


def _leaving(invoke: Invoke) -> Invoke:
    """What invokes a tool in a run, and lets errors leave it."""

    @functools.wraps(invoke)
    async def invoke_in_run(context: Any, raw: str) -> Any:
        token = _CONTEXT.set(context)
        try:
            return await invoke(context, raw)
        except _Leaving as leaving:
            raise leaving.args[0] from leaving.args[0].__cause__
        finally:
            _CONTEXT.reset(token)

    invoke_in_run._agent_cached = True  # type: ignore[attr-defined]
    return invoke_in_run


class _Invoker(_FailureHandlingFunctionToolInvoker):
    """The SDK's invoker of a tool, which lets loops pass its handling of failures."""

    _agent_cached = True

    def __init__(self, inner: _FailureHandlingFunctionToolInvoker, tool: FunctionTool, invoke: Invoke) -> None:
        self.__dict__.update(inner.__dict__)  # its mark of sync tools among them
        self._function_tool, self._invoke_tool_impl = tool, invoke

    def __agents_bind_function_tool__(self, function_tool: FunctionTool) -> Any:
        if self._function_tool is function_tool:
            return self
        return _Invoker(self, function_tool, self._invoke_tool_impl)

    async def __call__(self, ctx: ToolContext[Any], input: str) -> Any:  # noqa: A002 - the SDK's name
        return await _leaving(super().__call__)(ctx, input)


def _varied(vary: Vary, context: Any) -> Any:
    try:
        return vary(context)
    except Exception as error:
        raise ConfigurationError(f"vary(context) failed, so the tool was not called: {error!r}") from error


def _is_taken(one: Any) -> bool:
    """Whether the calls of a tool or a server go through the toolbox; of an agent as a tool, if those of its own tools
    do not.
    """
    inner = getattr(one, "_agent_instance", None)
    if not isinstance(inner, Agent):
        return isinstance(one, FunctionTool | MCPServer)
    below = (part for each in _reached_from(inner) for part in (*each.tools, *each.mcp_servers))
    return any(_is_taken(part) and not _is_cached(part) for part in below)


def _is_cached(one: Any) -> bool:
    return hasattr(getattr(one, "on_invoke_tool", one), "_agent_cached") or _is_decorated(one)


def _is_decorated(tool: Any) -> bool:
    return hasattr(getattr(tool, "__wrapped__", getattr(tool, "on_invoke_tool", None)), "__agent_cache__")


# MCP servers


def _cached_server(server: MCPServer, box: Toolbox, vary: Vary | None, *, shared: bool) -> MCPServer:
    """An MCP server whose tools are called through a toolbox. It has the state of the server itself, as it is now."""
    if hasattr(server, "_agent_cached"):
        return server
    known: dict[str, tuple[Any, Any]] = {}  # schemas and annotations by name
    is_own = vary is None and not shared
    kind: Any = type(server)

    class CachedServer(kind):
        _agent_cached = True

        async def list_tools(self, *args: Any, **kwargs: Any) -> list[Any]:
            found: list[Any] = await server.list_tools(*args, **kwargs)
            listed = {tool.name: (as_json(tool).get("inputSchema"), tool.annotations) for tool in found}
            if any(known.get(name, one) != one for name, one in listed.items()):
                box.forget()
            known.update(listed)  # filters may show another part of the list to another agent
            return found

        async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, meta: Any = None) -> Any:
            async def run() -> Any:
                given = (tool_name, arguments) if meta is None else (tool_name, arguments, meta)
                try:
                    result = await server.call_tool(*given)
                except UserError as error:  # what the SDK makes of an error of the transport
                    raise UnansweredError(str(error)) from error
                return as_json(result) if isinstance(result, CallToolResult) else result

            schema, hints = known.get(tool_name, (None, None))
            try:
                who = meta if vary is None else _varied(vary, _CONTEXT.get())
                answer = await called(
                    box, tool_name, arguments or {}, run, schema=schema, annotations=hints,
                    vary=Apart(who, [server.name, *_identity_of(server, is_own=is_own)]), returns=Any,
                )  # fmt: skip
            except (AgentLoopDetectedError, ConfigurationError) as error:
                if _CONTEXT.get() is None:
                    raise
                _leave(error)
            return CallToolResult.model_validate(answer) if type(answer) is dict else answer

    made: MCPServer = object.__new__(CachedServer)
    made.__dict__ = server.__dict__
    return made


def _identity_of(server: MCPServer, *, is_own: bool) -> list[str]:
    """What tells a server from another one of its name: what it is started with, or what it is sent. One of a class of
    the user's own is itself alone, if nothing else says who asks.
    """
    given = getattr(server, "params", None)
    params: Any = given.model_dump() if isinstance(given, BaseModel) else given
    if is_own and type(server).__module__ != "agents.mcp.server":
        return [alone(server)]
    return [identity_of(params, server)] if isinstance(params, dict) else []


def _check_of(function: Any) -> Check | None:
    """What the SDK makes of the arguments of a function; None where that cannot be known."""
    try:
        model = function_schema(function, use_docstring_info=False, strict_json_schema=False).params_pydantic_model
    except Exception:  # noqa: BLE001 - hints are evaluated, and may be anything
        return None
    return lambda given: vars(model(**given))


def _gets_context(tool: FunctionTool) -> bool:
    """Whether a function tool gets the run's context: any, but for a function without a parameter for it."""
    function = getattr(tool, "__wrapped__", None)
    return function is None or takes_context(function)
