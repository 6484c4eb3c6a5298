"""LangChain and LangGraph: the tool calls of an agent, or of a bare `ToolNode`, go through a `Toolbox`.

What the toolbox sees of an answer is plain data: the text of the tool's message, or a dict of its parts where it has
more than a text. The message is built around it for the call that asks, with the id of that call. So the model reads
what it would read without the toolbox, and neither recordings nor shared tiers need a class of LangChain.

Checked with langchain 1.4.0 to 1.5.2, langgraph 1.2.22 and 1.2.24. One private attribute is read, and pinned by a test:
the scratchpad of a task, whose ``resume`` has what `interrupt` returned. What comes of that is its caller's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, get_type_hints

from agent_cache import AgentLoopDetectedError, Toolbox
from agent_cache.core.asker import Apart, Injected
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import (
    Check,
    Private,
    alone,
    apart,
    as_tool_gets,
    checked_box,
    identity_of,
    is_public,
    made_around,
)
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import says_who_asks

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import BaseMessage, ToolMessage, message_to_dict, messages_from_dict
    from langchain_core.tools import BaseTool
    from langchain_core.utils.utils import LC_AUTO_PREFIX
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
    from langgraph.prebuilt import InjectedState, ToolNode
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.langchain needs langchain>=1.4: pip install "agent-cache[langchain]"'
    ) from error
from agent_cache.values.canonical import forget_oldest

__all__ = ["AgentCacheMiddleware", "LoopInGraph", "describe"]


class LoopInGraph(AgentLoopDetectedError, GraphBubbleUp):
    """The error of a detected loop in a graph.

    LangGraph lets a `GraphBubbleUp` leave the graph whatever ``handle_tool_errors`` says, and `ToolRetryMiddleware`
    does not retry it. Any other exception becomes a text for the model there.
    """


class AgentCacheMiddleware(AgentMiddleware[Any, Any]):
    """Middleware for `langchain.agents.create_agent` that passes every tool call of the agent through a toolbox.

    Put it first in ``middleware=[...]``: then a hit passes over the others, such as `ToolRetryMiddleware`, and a
    retried call is one call. Any number of agents may share one, or have one each over the same toolbox. Its hooks also
    fit a `ToolNode`: ``ToolNode(tools, wrap_tool_call=one.wrap_tool_call, awrap_tool_call=one.awrap_tool_call)``.

    A result is not stored if it is an error, a `Command`, an interrupt, or what a tool has made of the answer to one. A
    tool that is decorated itself is left alone. Of what a tool gets injected, the fields that say who asks belong to
    the key: plain fields of the runtime's ``context`` and of ``configurable``, and a user or a tenant in the state or
    the metadata. Of all else, name what a result depends on in `vary`.

    Args:
        box: the toolbox with the rules.
        vary: called with the `ToolCallRequest`; what it returns (any JSON value) becomes part of the key of a read:
            ``lambda request: request.runtime.context.user_id``. Nothing else of what is injected counts then.
        shared: whether all users share the answers of tools that get anything injected, or were made around something.

    Raises:
        ConfigurationError: if one of them is something else.
    """

    def __init__(self, box: Toolbox, vary: Callable[[Any], Any] | None = None, *, shared: bool = False) -> None:
        super().__init__()
        checked_box(box, vary, "AgentCacheMiddleware")
        self.box = box
        self._vary = vary
        self._heeds_contexts = vary is None and not shared
        self._tools: dict[int, _Tool] = {}

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Answer a tool call of `agent.ainvoke` and `agent.astream`."""
        tool, call = self._known(request.tool), _Call(request)
        if tool.is_decorated:
            return await handler(request)

        async def run() -> Answer:
            try:
                return call.keep(await handler(request))
            except GraphBubbleUp as signal:
                return call.keep(signal)

        with _loops_leave():
            arguments = as_tool_gets(tool.check, call.given)
            return call.result(await self.box.call(call.name, arguments, run, **self._options(tool, request)))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Answer a tool call of `agent.invoke` and `agent.stream`."""
        tool, call = self._known(request.tool), _Call(request)
        if tool.is_decorated:
            return handler(request)

        def run() -> Answer:
            try:
                return call.keep(handler(request))
            except GraphBubbleUp as signal:
                return call.keep(signal)

        with _loops_leave():
            arguments = as_tool_gets(tool.check, call.given)
            return call.result(self.box.call_sync(call.name, arguments, run, **self._options(tool, request)))

    def _options(self, tool: _Tool, request: Any) -> dict[str, Any]:
        """What a call tells the toolbox beside its name, its arguments and what runs it."""
        vary = None if self._vary is None else self._vary(request)
        if tool.server is None:
            vary = apart(vary, tool.around())
        elif not (tool.has_session and vary is not None):
            vary = Apart(vary, tool.server)
        return {
            "schema": tool.schema,
            "annotations": tool.annotations,
            "vary": vary,
            "context": tool.injected(request) if self._heeds_contexts else None,
            "returns": Answer,
            "failed": _is_error,
            "store_if": is_public,
            "refused": _refusal,
        }

    def _known(self, tool: BaseTool | None) -> _Tool:
        if tool is None:  # registered nowhere: invented by the model, or made by another middleware
            return _UNKNOWN
        known = self._tools.get(id(tool))
        if known is None or known.tool is not tool:
            known = self._tools[id(tool)] = _Tool(tool)
            forget_oldest(self._tools, _MAX_TOOLS)
            is_shared = not self._heeds_contexts or says_who_asks(self.box.rule(tool.name, tool.metadata))
            known.around = made_around(known.function, is_shared=is_shared)
        return known


@contextmanager
def _loops_leave() -> Iterator[None]:
    try:
        yield
    except AgentLoopDetectedError as error:
        raise LoopInGraph(*error.args) from error


# Tools and their arguments

_MAX_TOOLS = 1000
"""Tools whose schemas are kept: agents that make their tools anew for every request would fill the memory."""


class _Tool:
    """What the toolbox has to know of a tool, worked out once; of one that is registered nowhere, that is nothing."""

    tool: BaseTool | None = None
    annotations: Any = None
    schema: Mapping[str, Any] | None = None
    check: Check | None = None
    function: Any = None
    around: Callable[[], list[Any]] = staticmethod(made_around(None))
    is_decorated, gets_context, has_session = False, True, False
    states: tuple[str, ...] = ()
    server: list[str] | None = None

    def __init__(self, tool: BaseTool | None) -> None:
        if tool is None:
            return
        self.tool, self.annotations = tool, tool.metadata
        functions = _functions_of(tool)
        self.function = next(iter(functions), tool._run)
        self.is_decorated = any(hasattr(one, "__agent_cache__") for one in (*functions, tool._arun, tool._run))
        self.gets_context, self.states = _gets_context(functions), _states_in(functions)
        self.server, self.has_session = _server_of(tool)
        found = tool.tool_call_schema
        if isinstance(found, dict) or not issubclass(found, BaseModel):
            self.schema = found if isinstance(found, dict) else found.schema()  # of a model of pydantic 1
        else:
            self.schema, self.check = found.model_json_schema(), lambda given: vars(found.model_validate(given))

    def injected(self, request: Any) -> tuple[Injected, ...] | None:
        """What the framework gives the tool beside the model's arguments; None if that is nothing."""
        if not self.gets_context:
            return None
        state = request.state if isinstance(request.state, Mapping) else getattr(request.state, "__dict__", {})
        return tuple(Injected("context", one) for one in (request.runtime, *map(state.get, self.states)))


_UNKNOWN = _Tool(None)


def _functions_of(tool: BaseTool) -> list[Any]:
    """The functions that a tool is made of; of a class of the user's own there are none, but its methods."""
    return [found for name in ("coroutine", "func") if (found := getattr(tool, name, None)) is not None]


def _gets_context(functions: list[Any]) -> bool:
    """Whether a tool gets anything injected that may say who asks; True of one whose function is LangChain's own, or
    that has none.
    """
    is_known = all(function.__module__.partition(".")[0] != "langchain_core" for function in functions)
    return not functions or not is_known or any(map(takes_context, functions))


def _server_of(tool: BaseTool) -> tuple[list[str] | None, bool]:
    """What a tool of langchain-mcp-adapters sends to its server beside the arguments, None of any other tool; and
    whether it has an open session, of which nothing is known but that it is that one.
    """
    function: Any = getattr(tool, "coroutine", None)
    if not getattr(function, "__module__", "").startswith("langchain_mcp_adapters."):
        return None, False
    around = inspect.getclosurevars(function).nonlocals
    connection, interceptors = around.get("connection"), around.get("tool_interceptors") or ()
    session = around.get("session")
    if session is not None or not isinstance(connection, Mapping):
        return [alone(function if session is None else session), *map(alone, interceptors)], True
    return [identity_of(connection, function), *map(alone, interceptors)], False


def _states_in(functions: list[Any]) -> tuple[str, ...]:
    """The fields of the graph's state that a tool gets by `InjectedState("name")`."""
    hints: dict[str, Any] = {}
    with suppress(Exception):  # hints are evaluated, and may be anything
        for function in functions:
            hints |= get_type_hints(function, include_extras=True)
    found = [marker for hint in hints.values() for marker in getattr(hint, "__metadata__", ())]
    return tuple(one.field for one in found if isinstance(one, InjectedState) and one.field)


# Answers

Answer: TypeAlias = str | dict[str, Any] | Private
"""The text of a message, its parts, or what a call did to the graph: outputs such as commands, or an interrupt. The
last is done for that call alone, and without the id of it, so that recordings give it to another."""


class _Call:
    """One tool call: keeps what the framework returned for it, so that the caller that ran the tool gets that."""

    def __init__(self, request: Any) -> None:
        self.name: str = request.tool_call["name"]
        self.given: dict[str, Any] = request.tool_call["args"]
        self._ident: str | None = request.tool_call["id"]
        config = getattr(request.runtime, "config", None) or {}
        self._scratchpad = config.get("configurable", {}).get("__pregel_scratchpad")
        self._output: Any = None
        self._answer: Any = self  # no answer is this object

    def keep(self, output: Any) -> Answer:
        """The answer for the toolbox to what the framework returned."""
        self._output = output
        answer: Answer
        if type(output) is ToolMessage and (output.status == "error" or not getattr(self._scratchpad, "resume", None)):
            answer = _parts(output, self.name)
        elif isinstance(output, GraphInterrupt):
            answer = Private({"interrupt": [[one.value, one.id] for one in (output.args or [()])[0]]})
        elif isinstance(output, GraphBubbleUp):
            answer = Private(output)  # nothing that a recording can write
        else:
            several = output if isinstance(output, list) else [output]
            answer = Private({"outputs": [_written(one, self._ident) for one in several]})
        self._answer = answer
        return answer

    def result(self, answer: Answer) -> Any:
        """What the framework is to get for an answer of the toolbox.

        Raises:
            GraphBubbleUp: if that is what the tool, or its recorded run, raised.
        """
        if answer is self._answer:
            if isinstance(self._output, GraphBubbleUp):
                raise self._output
            return self._output
        if not isinstance(answer, Private):
            parts: dict[str, Any] = {"content": answer} if isinstance(answer, str) else answer
            return ToolMessage(**{"name": self.name, **parts, "tool_call_id": self._ident})
        if "interrupt" in answer.answer:
            raise GraphInterrupt([Interrupt(value=value, id=ident) for value, ident in answer.answer["interrupt"]])
        outputs = [_read(one, self._ident) for one in answer.answer["outputs"]]
        return outputs if len(outputs) > 1 else outputs[0]


def _parts(message: ToolMessage, name: str) -> str | dict[str, Any]:
    parts: dict[str, Any] = {} if message.artifact is None else {"artifact": message.artifact}
    usual = {"status": "success", "name": name, "additional_kwargs": {}, "response_metadata": {}}
    parts |= {part: value for part, default in usual.items() if (value := getattr(message, part)) != default}
    if not parts and type(message.content) is str:
        return message.content
    return {"content": _without_made_ids(message.content), **parts}


def _without_made_ids(content: Any) -> Any:
    """Contents without the ids that LangChain gives the blocks of each message by chance. With them no two answers
    would be equal, for the loop guard or in recordings.
    """
    if type(content) is not list:
        return content
    return [
        {name: value for name, value in block.items() if name != "id" or not str(value).startswith(LC_AUTO_PREFIX)}
        if type(block) is dict
        else block
        for block in content
    ]


def _is_error(answer: Answer) -> bool:
    return type(answer) is dict and answer.get("status") == "error"


def _refusal(error: AgentLoopDetectedError) -> Answer:
    return {"content": str(error), "status": "error"}


# Commands in recordings


def _written(output: Any, ident: str | None) -> Any:
    """An output of a tool as plain data as far as it can be. Parts that cannot be written stay as they are."""
    match output:
        case Command():
            parts = {name: getattr(output, name) for name in ("graph", "update", "resume", "goto")}
            return {"command": {name: _written(part, ident) for name, part in parts.items() if part is not None}}
        case BaseMessage():
            written = message_to_dict(output)
            if isinstance(output, ToolMessage) and output.tool_call_id == ident:
                written["data"].pop("tool_call_id")
            return {"message": written}
        case dict():
            return {"dict": {name: _written(value, ident) for name, value in output.items()}}
        case list() | tuple():
            return {"list": [_written(one, ident) for one in output]}
    return output


def _read(data: Any, ident: str | None) -> Any:
    """The inverse of `_written`, for another call."""
    match data:
        case {"command": parts}:
            return Command(**{name: _read(part, ident) for name, part in parts.items()})
        case {"message": written}:
            return messages_from_dict([{**written, "data": {"tool_call_id": ident, **written["data"]}}])[0]
        case {"dict": items}:
            return {name: _read(value, ident) for name, value in items.items()}
        case {"list": items}:
            return [_read(one, ident) for one in items]
    return data


# Explaining


def describe(agent: Any) -> list[ToolInfo] | None:
    """The tools of a compiled agent or graph, those of its subgraphs included, or of a `ToolNode`; None of all else."""
    if not isinstance(agent, ToolNode | Pregel):
        return None
    nodes = [agent] if isinstance(agent, ToolNode) else _tool_nodes(agent)
    every = {name: _Tool(tool) for node in nodes for name, tool in node.tools_by_name.items()}.items()
    return [ToolInfo(name, one.schema, one.annotations, one.is_decorated, one.gets_context) for name, one in every]


def _tool_nodes(graph: Pregel) -> Iterator[ToolNode]:
    for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for node in one.nodes.values() if isinstance(one, Pregel) else ():  # others run elsewhere
            if isinstance(node.bound, ToolNode):
                yield node.bound
