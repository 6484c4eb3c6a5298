"""FastMCP servers: one middleware for all tools of a server, its own, mounted and proxied ones.

``FastMCP("shop", middleware=[AgentCacheMiddleware(box)])``. Tested with fastmcp 4.1.2 on mcp 2.3.0.

A hit is given only to a client that may call the tool: the server is asked for the tool at each call. Answers differ by
access token, of which a hash is kept, by version of the tool, and of a tool that gets a context, or passes the request
on as a proxy does, by the request's headers.

These attributes are private, and each is pinned by a test: ``FastMCPProviderTool._server`` and ``._original_name``
(which tool of a mounted server is meant), and ``Context._request_state`` (whether a tool has used the state of its MCP
session).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from agent_cache import AgentLoopDetectedError, ConfigurationError, Toolbox
from agent_cache.core.asker import Apart, Injected, asker_in, got_by
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import (
    Answer,
    Check,
    Private,
    as_json,
    as_tool_gets,
    called,
    check_of,
    checked_box,
    made_around,
    requested_version,
)
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import is_shared

try:
    import mcp_types
    from fastmcp import FastMCP
    from fastmcp.exceptions import NotFoundError, ToolError
    from fastmcp.server.dependencies import fastmcp_request_ctx, get_access_token
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
    from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.tools.function_tool import FunctionTool
    from fastmcp.utilities.versions import VersionSpec
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.fastmcp needs fastmcp>=4.1: pip install "agent-cache[fastmcp]"'
    ) from error

__all__ = ["AgentCacheMiddleware", "LoopInTool", "describe"]

_OF_ITS_CLIENT: Final = frozenset({
    "create_message", "elicit", "elicit_form", "elicit_url", "list_roots", "send_request",
    "send_notification",  # with which a tool changes what the client sees of the server
})  # fmt: skip
"""What a tool uses of the session of its request that makes its answer one for this client alone."""


class LoopInTool(AgentLoopDetectedError, ToolError):
    """A loop, or a spent budget, as FastMCP passes it to the client: with its text, also if details are masked."""

    def __init__(self, *args: Any) -> None:
        AgentLoopDetectedError.__init__(self, *args)
        self.log_level = 30  # logging.WARNING: what `FastMCPError` sets, whose `__init__` takes other arguments


class AgentCacheMiddleware(Middleware):
    """Passes the calls of a server's tools through a `Toolbox`.

    Put it last in the list of middleware: what stands before it (access, rate limits, retries) then sees every call.
    What a tool answers as a task is not stored. A write that may run as a task is refused, because nobody sees its end
    here: decorate its function.

    Args:
        box: the rules. One box for each server: two servers may name different tools alike.
        vary: a function of FastMCP's `MiddlewareContext` whose result, any JSON value, keeps answers apart: a tenant,
            or a header that a tool reads in a function of its own. Access tokens are told apart without it.
        shared: whether all clients share the answers, whatever their tokens and headers, and whatever a tool is made
            around.
    """

    def __init__(
        self, box: Toolbox, vary: Callable[[MiddlewareContext[Any]], Any] | None = None, *, shared: bool = False
    ) -> None:
        checked_box(box, vary, "AgentCacheMiddleware")
        self.box = box
        self._vary = vary
        self._shared = shared
        self._known: dict[tuple[FastMCP[Any], str, Any], _Tool] = {}

    async def on_call_tool(  # noqa: D102 - FastMCP describes it
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        here, message = context.fastmcp_context, context.message
        if here is None or message.input_responses is not None or message.request_state is not None:
            return await call_next(context)  # a later round of a call that asks the client
        tool = await self._find(here.fastmcp, message.name, requested_version(message.meta))
        if tool is None or tool.passes:
            return await call_next(context)
        own: list[ToolResult] = []

        async def run() -> Answer:
            request, outer = fastmcp_request_ctx.get(), here._request_state
            session = _Session(None if request is None else request.session)
            here._request_state = state = _State(outer)
            token = fastmcp_request_ctx.set(request and replace(request, session=session))
            try:
                own.append(await call_next(context))
            finally:
                fastmcp_request_ctx.reset(token)
                here._request_state = outer
                outer.update(state)
            return _answer(own[0], is_private=session.is_used or state.is_used)

        try:
            answer = await called(
                self.box,
                message.name,
                as_tool_gets(tool.check, message.arguments or {}),
                run,
                schema=tool.schema,
                annotations=tool.annotations,
                vary=self._identity(context, tool),
            )
        except AgentLoopDetectedError as loop:
            raise LoopInTool(*loop.args) from loop
        return own[0] if own else _result(answer)

    async def _find(self, server: FastMCP[Any], name: str, version: Any) -> _Tool | None:
        """A tool as the client of this request may call it; None if it may not."""
        found = await _tool_of(server, name, version)
        if found is None:
            return None
        leaf, is_boxed = await _leaf_of(found, self.box)
        image = (getattr(leaf, "fn", None), found.parameters, _hints(found), found.version)
        known = self._known.get((server, name, version))
        if known is not None and known.image == image:
            return known
        fresh = self._tool(server, found, leaf, image, version)
        fresh.passes |= is_boxed
        if known is not None:  # the tools have changed
            self._known.clear()
            self.box.forget()
        self._known[server, name, version] = fresh
        return fresh

    def _tool(self, server: FastMCP[Any], tool: Tool, leaf: Tool, image: Any, version: Any) -> _Tool:
        if sum(isinstance(one, AgentCacheMiddleware) for one in server.middleware) > 1:
            raise ConfigurationError(f"{server.name!r} has two AgentCacheMiddleware, which count each call twice")
        function, hints = getattr(leaf, "fn", None), _hints(tool)
        rule = self.box.rule(tool.name, hints)
        shared, passes = self._shared or is_shared(rule), hasattr(function, "__agent_cache__")
        if tool.task_config.supports_tasks() and rule.kind == "write" and not passes:
            raise ConfigurationError(
                f"{tool.name!r} is a write that may run as a task, whose end is not seen here: decorate its function "
                "with AgentCacheInvalidator, or give it the rule Pass() if it writes nothing"
            )
        # A server that gets what is sent to this one may be anything; it refuses arguments as they are given
        is_checked = type(leaf) is FunctionTool and not server.strict_input_validation
        return _Tool(
            image=image,
            around=made_around(function, is_shared=shared or self._vary is not None),
            schema=tool.parameters,
            annotations=hints,
            where=[one for one in (tool.version, version if function is None else None) if one is not None],
            is_shared=shared,
            gets_context=function is None or takes_context(function),
            check=check_of(function) if is_checked else None,
            passes=passes,
        )

    def _identity(self, context: MiddlewareContext[Any], tool: _Tool) -> Any:
        """What keeps the answers of one tool apart, beside its arguments; None if nothing does."""
        who = [self._vary(context)] if self._vary is not None else []
        if not tool.is_shared:
            token, here = get_access_token(), context.fastmcp_context
            who.append(None if token is None else hashlib.sha256(token.token.encode()).hexdigest())
            if tool.gets_context and self._vary is None:
                who.append(asker_in(got_by("get_http_request")))
            if tool.gets_context and here is not None:
                meta = getattr(here.request_context, "meta", None)
                said = asker_in([Injected("state", {**meta, "client_id": None})]) if meta else None
                who += [here.client_id, said]
        who = [one for one in who if one is not None]
        where = [*tool.where, *tool.around()]
        return Apart(who or None, where or None) if who or where else None


@dataclass(slots=True)
class _Tool:
    """What is known of a tool of a server, as long as its `image` is the same. `where` is its version, and the one that
    a client asks for where another server decides which one that is. It `passes` if it, or a server below, caches its
    calls.
    """

    image: Any
    around: Callable[[], list[Any]]
    schema: Mapping[str, Any]
    annotations: Any
    where: list[Any]
    is_shared: bool
    gets_context: bool
    check: Check | None
    passes: bool


class _Session:
    """The session of a request, which notes whether a tool asks its client for anything, or tells it of a change."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.is_used = False

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ITS_CLIENT:
            self.is_used = True
        return getattr(self._session, name)


class _State(dict[str, Any]):
    """The state of a request, which `Context` looks into first for each use of the state of an MCP session."""

    is_used = False

    def __contains__(self, name: object) -> bool:
        self.is_used = True
        return super().__contains__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.is_used = True
        super().__setitem__(name, value)

    def pop(self, *args: Any) -> Any:
        self.is_used = True
        return super().pop(*args)


async def _tool_of(server: FastMCP[Any], name: str, version: Any) -> Tool | None:
    if isinstance(version, str):
        version = {"eq": version}
    try:
        return await server.get_tool(name, VersionSpec(**version) if isinstance(version, Mapping) else None)
    except NotFoundError:
        return None


def _hints(tool: Tool) -> dict[str, Any] | None:
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


# Results and answers


def _answer(result: Any, *, is_private: bool) -> Answer:
    """A result as data. All but a plain result is for its caller alone."""
    if isinstance(result, InputRequiredToolResult):
        return Private(as_json(result.input_required))
    if not isinstance(result, ToolResult):
        return Private(as_json(result))
    form, names = as_json(result), {"content": "content", "structured_content": "structuredContent", "meta": "_meta"}
    answer = {public: form[name] for name, public in names.items() if name in form}
    answer |= {"isError": True} if form["is_error"] else {}
    return Private(answer) if is_private else answer


def _result(answer: dict[str, Any]) -> ToolResult:
    """A result of an answer, which is another object for each call."""
    if answer.get("resultType") == "input_required":
        return InputRequiredToolResult(mcp_types.InputRequiredResult.model_validate(answer))
    found = mcp_types.CallToolResult.model_validate(answer)
    return ToolResult(
        content=found.content, structured_content=found.structured_content, meta=found.meta, is_error=found.is_error
    )


# For `explain`


def describe(agent: object) -> list[ToolInfo] | None:
    """The tools of a FastMCP server, for `explain`; None of anything else. A server lists them asynchronously: an event
    loop of its own runs that, in a thread, since this one may have one.
    """
    if not isinstance(agent, FastMCP):
        return None
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_listed(agent))).result()


async def _listed(server: FastMCP[Any]) -> list[ToolInfo]:
    found: dict[str, ToolInfo] = {}
    for tool in await server.list_tools(run_middleware=False):
        leaf, _ = await _leaf_of(tool, None)
        function = getattr(leaf, "fn", None)
        is_decorated, gets_context = hasattr(function, "__agent_cache__"), function is None or takes_context(function)
        found.setdefault(tool.name, ToolInfo(tool.name, tool.parameters, _hints(tool), is_decorated, gets_context))
    return list(found.values())
