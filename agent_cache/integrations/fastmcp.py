"""FastMCP servers: one middleware for all tools of a server, its own, mounted and proxied ones.

``FastMCP("shop", middleware=[AgentCacheMiddleware(box)])``. Tested with fastmcp 4.1.2 on mcp 2.3.0.

A hit is given only to a client that may call the tool: the server is asked for the tool again, as for a call. Answers
differ by access token, of which a hash is kept, by version of the tool, and of a tool that gets a context, or passes
the request on as a proxy does, by the request's headers.

These attributes of FastMCP are private, and each is pinned by a test: ``FastMCPProviderTool._server`` and
``._original_name`` (which tool of a mounted server is meant), and ``Context._request_state`` (whether a tool has used
the state of its MCP session).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_cache import AgentLoopDetectedError, Toolbox
from agent_cache.clock import CLOCK
from agent_cache.core.asker import Apart, Injected, asker_in, got_by
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import (
    PRIVATE,
    Answer,
    Check,
    Runs,
    UnansweredError,
    as_json,
    as_tool_gets,
    called,
    check_of,
    checked_box,
    note_function,
    requested_version,
)
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import is_shared

try:
    import mcp_types
    from fastmcp import FastMCP
    from fastmcp.exceptions import NotFoundError, ToolError
    from fastmcp.server.dependencies import (
        FastMCPRequestContext,
        fastmcp_request_ctx,
        get_access_token,
        without_injected_parameters,
    )
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
    from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.tools.function_tool import FunctionTool
    from fastmcp.utilities.versions import VersionSpec
    from mcp import MCPError
except ImportError as error:
    raise ImportError('agent_cache.integrations.fastmcp needs FastMCP: pip install "agent-cache[fastmcp]"') from error

if TYPE_CHECKING:
    from mcp_types import CallToolRequestParams

__all__ = ["AgentCacheMiddleware", "LoopInTool", "describe"]

_log = logging.getLogger("agent_cache")

_FRESH = 1.0
"""Seconds for which what is known of a tool is not looked up again: that takes 40 us, a third of a call."""

_ASKS = frozenset(
    {
        "create_message",
        "elicit",
        "elicit_form",
        "elicit_url",
        "list_roots",
        "send_notification",  # with which a tool changes what the client sees of the server
        "send_request",
    }
)
"""What a tool does with the session of its request that makes its answer one for this client alone."""


class LoopInTool(AgentLoopDetectedError, ToolError):
    """A loop, or a spent budget, as FastMCP passes it to the client: with its text, also if details are masked."""

    def __init__(self, *args: Any) -> None:
        AgentLoopDetectedError.__init__(self, *args)
        self.log_level = 30  # logging.WARNING: what `FastMCPError` sets, whose `__init__` takes other arguments


class AgentCacheMiddleware(Middleware):
    """Passes the calls of a server's tools through a `Toolbox`.

    Put it last in the list of middleware: what stands before it (access, rate limits, retries) then sees every call.

    Args:
        box: the rules. One box for each server: two servers may name different tools alike.
        vary: a function of FastMCP's `MiddlewareContext` whose result, any JSON value, keeps answers apart: a tenant,
            or a header that a tool reads in a function of its own. Access tokens are told apart without it.
        shared: whether all clients share the answers, whatever their access tokens and headers.
    """

    def __init__(
        self, box: Toolbox, vary: Callable[[MiddlewareContext[Any]], Any] | None = None, *, shared: bool = False
    ) -> None:
        checked_box(box, vary, "AgentCacheMiddleware")
        self.box = box
        self._vary = vary
        self._shared = shared
        self._known: dict[tuple[FastMCP[Any], str, Any], _Tool] = {}
        self._runs: dict[str, Runs] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # the event loop has weak references alone

    async def on_call_tool(  # noqa: D102 - FastMCP describes it
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        here, message = context.fastmcp_context, context.message
        if here is None or message.input_responses is not None or message.request_state is not None:
            return await call_next(context)  # a later round of a call that asks the client
        named = here.fastmcp, message.name, requested_version(message.meta)
        tool = self._known.get(named)
        if tool is None or CLOCK.now() - tool.since >= _FRESH:
            tool = await self._find(*named)
        if tool is None or tool.passes:
            return await call_next(context)
        runs = self._runs.get(message.name) or self._runs.setdefault(message.name, Runs())
        call = _Call(self, tool, context, call_next, runs)
        if not tool.may_be_task:
            return await call.answered()
        going = asyncio.ensure_future(call.answered())
        self._tasks.add(going)
        going.add_done_callback(self._has_ended)
        return await call.answered_first(going)

    def _has_ended(self, going: asyncio.Task[Any]) -> None:
        self._tasks.discard(going)
        if not going.cancelled() and (error := going.exception()) is not None:
            _log.debug("the call of a tool ended with %r", error)  # which its client has been given, or polls for

    def forget(self) -> None:
        """Drop the results of the box, and what is known of the server's tools: they have changed."""
        self._known.clear()
        self.box.forget()

    async def _find(self, server: FastMCP[Any], name: str, version: Any) -> _Tool | None:
        known = self._known.get((server, name, version))
        found = await _tool_of(server, name, version)
        if found is None:
            self._known.pop((server, name, version), None)
            return None
        leaf, is_boxed = await _leaf_of(found, self.box)
        shared = self._shared or is_shared(self.box.rule(found.name, _hints(found)))
        is_same = known is not None and known.is_same(found, leaf)
        check = known.check if is_same and known is not None else _check_of(server, leaf)
        fresh = _Tool(found, leaf, requested=version, shared=shared, passes=is_boxed, check=check)
        if known is not None and not is_same:
            self.forget()
        elif known is None and fresh.function is not None and self._vary is None and not shared:
            note_function(self.box, name if found.version is None else f"{name} {found.version}", fresh.function)
        self._known[server, name, version] = fresh
        return fresh

    def _identity(self, context: MiddlewareContext[Any], tool: _Tool) -> Any:
        """What keeps the answers of one tool apart, beside its arguments; None if nothing does."""
        given = self._vary(context) if self._vary is not None else None
        who = [given] if given is not None else []
        if not tool.is_shared:
            token = get_access_token()
            holder = None if token is None else hashlib.sha256(token.token.encode()).hexdigest()
            sent = _sent_by_client() if tool.gets_context and self._vary is None else None
            here = context.fastmcp_context
            named = said = None
            if tool.gets_context and here is not None:
                meta = getattr(here.request_context, "meta", None)
                named = here.client_id
                said = asker_in([Injected("state", {**meta, "client_id": None})]) if meta else None
            who += [one for one in (holder, sent, named, said) if one is not None]
        where = [one for one in (tool.version, tool.forwarded) if one is not None]
        return Apart(who or None, where or None) if who or where else None


def _sent_by_client() -> str | None:
    """A hash of the headers and the query of the request that is answered; None without one."""
    return asker_in(got_by("get_http_request"))


async def _tool_of(server: FastMCP[Any], name: str, version: Any) -> Tool | None:
    """A tool as the client of this request may call it."""
    if isinstance(version, str):
        wanted: VersionSpec | None = VersionSpec(eq=version)
    else:
        wanted = VersionSpec(**version) if isinstance(version, Mapping) else None
    try:
        return await server.get_tool(name, wanted)
    except NotFoundError:
        return None


def _hints(tool: Tool) -> Answer | None:
    """The annotations of a tool by their names in the protocol."""
    return None if tool.annotations is None else as_json(tool.annotations)


async def _leaf_of(tool: Tool, box: Toolbox | None) -> tuple[Tool, bool]:
    """The tool itself of one that a mounted server has, and whether that server passes its calls to the box."""
    while isinstance(tool, FastMCPProviderTool):
        server: FastMCP[Any] = tool._server
        if any(isinstance(one, AgentCacheMiddleware) and one.box is box for one in server.middleware):
            return tool, True
        below = await _tool_of(server, tool._original_name or tool.name, tool.version)
        if below is None:
            break
        tool = below
    return tool, False


def _check_of(server: FastMCP[Any], leaf: Tool) -> Check | None:
    """What the arguments of a tool are to its function; None if that is no function, or the server refuses them as they
    are given.
    """
    if type(leaf) is not FunctionTool or server.strict_input_validation:
        return None
    return check_of(without_injected_parameters(leaf.fn))


class _Tool:
    """What is known of a tool of a server.

    Attributes:
        forwarded: the version that a client asks for, where another server decides which one that is.
        is_shared: whether all clients share its answers.
        gets_context: whether it may ask its context for its client, or for the request of this.
        check: what its arguments are to its function, None where that cannot be known.
        passes: whether it caches its own calls, or a server below does.
        may_be_task: whether a call may be answered with a task that goes on.
    """

    def __init__(
        self, tool: Tool, leaf: Tool, *, requested: Any, shared: bool, passes: bool, check: Check | None
    ) -> None:
        function = self.function = getattr(leaf, "fn", None)
        self.name, self.version, self.schema, self.annotations = tool.name, tool.version, tool.parameters, _hints(tool)
        self.requested, self.forwarded = requested, requested if function is None else None
        self.is_shared = shared
        self.gets_context = function is None or takes_context(function)
        self.check = check
        self.passes = passes or hasattr(function, "__agent_cache__")
        self.may_be_task = tool.task_config.supports_tasks()
        self.since = CLOCK.now()

    def is_same(self, tool: Tool, leaf: Tool | None = None) -> bool:
        function = getattr(tool if leaf is None else leaf, "fn", None)
        known, found = (self.schema, self.annotations, self.version), (tool.parameters, _hints(tool), tool.version)
        return (function is None or function is self.function) and known == found


@dataclass(slots=True)
class _Call:
    """One call of a tool, on its way through the box.

    Attributes:
        own: what the tool has answered to this very call.
        has_answered: is done once it has answered with a task, which goes on.
    """

    middleware: AgentCacheMiddleware
    tool: _Tool
    context: MiddlewareContext[CallToolRequestParams]
    call_next: CallNext[CallToolRequestParams, ToolResult]
    runs: Runs
    own: Any = None
    has_answered: asyncio.Future[None] | None = None

    async def answered(self) -> Any:
        """The result for the client."""
        ended = self.runs.ended
        message, tool = self.context.message, self.tool
        try:
            answer: Answer = await called(
                self.middleware.box,
                message.name,
                as_tool_gets(tool.check, message.arguments or {}),
                self._run,
                schema=tool.schema,
                annotations=tool.annotations,
                vary=self.middleware._identity(self.context, tool),
            )
        except AgentLoopDetectedError as loop:
            raise LoopInTool(*loop.args) from loop
        if self.own is not None:
            return self.own
        if PRIVATE in answer and self.runs.begun != ended:  # of the call that this one has waited for, so not recorded
            return await self.call_next(self.context)
        return await self._shared(answer)

    async def answered_first(self, going: asyncio.Task[Any]) -> Any:
        """The first result for the client: a task, or all."""
        self.has_answered = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((going, self.has_answered), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self.has_answered.done():
                going.cancel()
            raise
        return going.result() if going.done() else self.own

    async def _run(self) -> Answer:
        """Run the tool, and note what it answers, and whether it uses what only its own client has."""
        is_private = False
        with self.runs:
            if (request := fastmcp_request_ctx.get()) is None:
                own = await self.call_next(self.context)  # for a program, which is no client
            else:
                own, is_private = await self._watched(request)
        self.own = own
        if self.has_answered is not None and not isinstance(own, ToolResult):
            self.has_answered.set_result(None)
            return await _end_of_task(self.context, own)
        return _answer(own, is_private=is_private)

    async def _watched(self, request: FastMCPRequestContext) -> tuple[Any, bool]:
        here: Any = self.context.fastmcp_context
        outer = here._request_state
        session, state = _Session(request.session), _State(outer)
        here._request_state = state
        token = fastmcp_request_ctx.set(replace(request, session=session))
        try:
            result = await self.call_next(self.context)
        finally:
            fastmcp_request_ctx.reset(token)
            here._request_state = outer
            outer.clear()
            outer.update(state)
        return result, session.is_used or state.is_used

    async def _shared(self, answer: Answer) -> Any:
        """The result that another call has had, if this client may call the tool, and it is still the same tool."""
        here, tool = self.context.fastmcp_context, self.tool
        assert here is not None
        found = await _tool_of(here.fastmcp, tool.name, tool.requested)
        if found is None:
            return await self.call_next(self.context)  # which says why not
        if not tool.is_same(found):
            self.middleware.forget()
            return await self.middleware.on_call_tool(self.context, self.call_next)
        return _result(answer)


class _Session:
    """The session of a request, which notes whether a tool asks its client for anything, or tells it of a change."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.is_used = False

    def __getattr__(self, name: str) -> Any:
        if name in _ASKS:
            self.is_used = True
        return getattr(self._session, name)


class _State(dict[str, Any]):
    """The state of a request, which `Context` looks into first for each use of the state of an MCP session."""

    is_used = False


def _noting(name: str) -> Any:
    def use(self: _State, *args: Any) -> Any:
        self.is_used = True
        return getattr(dict, name)(self, *args)

    return use


for _name in ("__contains__", "__setitem__", "pop"):
    setattr(_State, _name, _noting(_name))


# Results and answers


def _answer(result: Any, *, is_private: bool) -> Answer:
    """A result as data. All but a plain result is for its caller alone."""
    if isinstance(result, InputRequiredToolResult):
        return {**as_json(result.input_required), PRIVATE: True}
    if not isinstance(result, ToolResult):
        return {**as_json(result), PRIVATE: True}
    form = as_json(result)
    answer: Answer = {"content": form["content"]}
    for name, public in (("structured_content", "structuredContent"), ("meta", "_meta")):
        if name in form:
            answer[public] = form[name]
    if form["is_error"]:
        answer["isError"] = True
    if is_private:
        answer[PRIVATE] = True
    return answer


def _result(answer: Answer) -> ToolResult:
    """A result of an answer, which is another object for each call."""
    public = {name: value for name, value in answer.items() if name != PRIVATE}
    if public.get("resultType") == "input_required":
        return InputRequiredToolResult(mcp_types.InputRequiredResult.model_validate(public))
    found = mcp_types.CallToolResult.model_validate(public)
    return ToolResult(
        content=found.content,
        structured_content=found.structured_content,
        meta=found.meta,
        is_error=found.is_error,
    )


async def _end_of_task(context: MiddlewareContext[Any], created: Any) -> Answer:
    """What a task has come to: the answer of a call that a client polls for.

    Raises:
        UnansweredError: if nobody knows what became of it.
    """
    here: Any = context.fastmcp_context
    task, name = getattr(created, "task_id", ""), context.message.name
    try:
        from fastmcp_tasks.handlers import tasks_get
    except ImportError as error:
        raise UnansweredError(f"{name} goes on as a task of an unknown kind") from error
    pause = min((created.poll_interval_ms or 1000) / 1000, 1.0)
    while True:
        try:
            state = await tasks_get(here.fastmcp, task)
        except MCPError as error:
            raise UnansweredError(f"the task {task} of {name} is gone") from error
        if state.status == "completed":
            return dict(state.result)
        if state.status == "failed":
            return {"content": [{"type": "text", "text": (state.error or {}).get("message", "")}], "isError": True}
        if state.status == "cancelled":
            raise UnansweredError(f"the task {task} of {name} was cancelled")
        await asyncio.sleep(pause)


# For `explain`


def describe(agent: object) -> list[ToolInfo] | None:
    """The tools of a FastMCP server, as `agent_cache.integrations.explain` wants them; None of anything else.

    A server lists them asynchronously: an event loop of its own runs that, in another thread if this one has one.
    """
    if not isinstance(agent, FastMCP):
        return None
    found: list[ToolInfo] = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(_listed(agent))))
    thread.start()
    thread.join()
    return found


async def _listed(server: FastMCP[Any]) -> list[ToolInfo]:
    found: dict[str, ToolInfo] = {}
    for tool in await server.list_tools(run_middleware=False):
        leaf, _ = await _leaf_of(tool, None)
        is_decorated = hasattr(getattr(leaf, "fn", None), "__agent_cache__")
        function = getattr(leaf, "fn", None)
        gets_context = function is None or takes_context(function)
        found.setdefault(tool.name, ToolInfo(tool.name, tool.parameters, _hints(tool), is_decorated, gets_context))
    return list(found.values())
