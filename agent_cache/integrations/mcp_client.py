"""MCP clients: the calls of one server's tools through a `Toolbox`.

``CachedClient(session, box)`` takes the place of a `mcp.ClientSession` (tested with mcp 1.30 and 2.3), of a
`mcp.client.client.Client`, or of FastMCP's `Client` (4.1.2).

The message handler of a `ClientSession` is private, and pinned by a test: there is no other way to hear of a changed
list of tools from a session that is open.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_cache import ConfigurationError, Toolbox
from agent_cache.core.asker import Apart
from agent_cache.integrations import shared
from agent_cache.integrations.shared import Answer, Private, as_json
from agent_cache.relay.messages import listed
from agent_cache.toolbox import ToolInfo

try:
    from mcp import types
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.mcp_client needs the SDK of MCP: pip install "agent-cache[mcp]"'
    ) from error

__all__ = ["CachedClient", "describe"]


class CachedClient:
    """A client of one MCP server whose ``call_tool`` goes through a `Toolbox`. All else is the client's own.

    The schemas and annotations of the tools come from a listing of its own, made before the first call, and again when
    the server says that its tools have changed. A call that carries ``input_responses`` or ``request_state`` is passed
    on. ``read_timeout_seconds``, ``progress_callback`` and ``meta`` are no part of the key; a hit makes no progress.
    What the client sends to its server, credentials included, belongs to the key. Where it does not show that, as a
    session does not, it shares no answers with other clients, unless `vary` says as whom it is connected.

    Args:
        session: the client. It is opened and closed by its owner. Of a `CachedClient` it is that one's.
        box: the rules. One box for each server: two servers may name different tools alike.
        vary: a function of the client whose result, any JSON value, keeps answers apart: the account that it is
            connected with.
    """

    def __init__(self, session: Any, box: Toolbox, vary: Callable[[Any], Any] | None = None) -> None:
        shared.checked_box(box, vary, "CachedClient")
        self._client: Any = session._client if isinstance(session, CachedClient) else session
        self._is_of_fastmcp = hasattr(self._client, "call_tool_mcp")
        self._is_session = not hasattr(type(self._client), "session")
        self.box = box
        self._vary = vary
        self._tools: dict[str, ToolInfo] | None = None
        self._changes = 0  # how often the list of tools has changed
        self._listing = asyncio.Lock()
        self._heard: Any = None  # the session whose messages come here
        self._asked = 0  # how often the server has asked this client for anything

    if not TYPE_CHECKING:  # a type checker is to know no other attributes than those written here

        def __getattr__(self, name):
            return getattr(object.__getattribute__(self, "_client"), name)  # copied, it has no `_client` at first

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None, *args: Any, **options: Any) -> Any:
        """Call a tool, unless its answer is known. Takes and returns what the client's own `call_tool` does."""
        if self._is_of_fastmcp:  # its `call_tool` parses what `call_tool_mcp` returns
            return await type(self._client).call_tool(self, name, arguments, *args, **options)
        return await self._answered(self._client.call_tool, name, arguments, args, options)

    async def call_tool_mcp(self, name: str, arguments: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """The same of FastMCP's client: its result is the `CallToolResult` of the protocol."""
        return await self._answered(self._client.call_tool_mcp, name, arguments, args, options)

    async def tools(self) -> list[ToolInfo]:
        """The server's tools, listed once until the server says that they have changed."""
        return list((await self._known()).values())

    async def _answered(
        self,
        method: Callable[..., Any],
        name: str,
        arguments: Mapping[str, Any] | None,
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if options and (options.get("input_responses") is not None or options.get("request_state") is not None):
            return await method(name, arguments, *args, **options)  # a later round of a call that asks this client
        tools = self._tools
        if tools is None or (self._client if self._is_session else self._client.session) is not self._heard:
            tools = await self._known()
        known = tools.get(name)
        own: list[Any] = []

        async def run() -> Answer:
            asked = self._asked
            own.append(await method(name, arguments, *args, **options))
            answer = as_json(own[0])
            is_private = self._asked != asked or not isinstance(own[0], types.CallToolResult)
            return Private(answer) if is_private else answer

        schema, hints = known and known.schema, known and known.annotations
        answer = await shared.called(
            self.box, name, arguments or {}, run, schema=schema, annotations=hints, vary=self._identity(options)
        )
        return own[0] if own else _result(answer)

    def _identity(self, options: Mapping[str, Any]) -> Any:
        """What keeps the answers of one tool apart, beside its arguments; None if nothing does."""
        version = shared.requested_version(options.get("meta")) if options else None
        given = self._vary(self._client) if self._vary is not None else None
        where = [one for one in (version, self._server()) if one is not None]
        return Apart(given, where) if where else given

    def _server(self) -> str | None:
        """What the client sends to its server beside the calls; None where `vary` says it."""
        if self._is_of_fastmcp:
            return shared.identity_of(self._client.transport)
        if self._vary is not None:
            return None
        server = getattr(self._client, "server", None)  # of the SDK's client: a URL, a command, or a server here
        is_here = type(server).__module__.startswith("mcp.server.")
        return shared.identity_of(server, server if is_here else getattr(self._client, "session", self._client))

    async def _known(self) -> dict[str, ToolInfo]:
        session = self._client if self._is_session else self._client.session  # another one after a reconnection
        if session is not self._heard:
            self._hear(session)
        async with self._listing:
            while self._tools is None:
                changes = self._changes
                found = await _listed(session)
                if changes == self._changes:
                    self._tools = found
        return self._tools

    def _hear(self, session: Any) -> None:
        """Take notice of what a server sends: a changed list of tools, and questions to this client."""
        self._heard, self._tools = session, None
        passed_on = session._message_handler

        async def message_handler(message: Any) -> None:
            if getattr(getattr(message, "root", message), "method", None) == "notifications/tools/list_changed":
                self._changes += 1
                self._tools = None
                self.box.forget()
            await passed_on(message)

        session._message_handler = message_handler
        for name in ("_elicitation_callback", "_sampling_callback", "_list_roots_callback"):
            callback = getattr(session, name)
            if getattr(callback, "__module__", "") != "mcp.client.session":  # the default, which refuses, is no answer
                setattr(session, name, self._noting(callback))

    def _noting(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        async def noting(*args: Any, **options: Any) -> Any:
            self._asked += 1  # by one of the calls that run: which one is not said
            return await callback(*args, **options)

        return noting


async def _listed(session: Any) -> dict[str, ToolInfo]:
    """All tools of a server, by name."""

    async def page(params: dict[str, Any]) -> Any:
        return as_json(await session.list_tools(params=types.PaginatedRequestParams(**params) if params else None))

    tools = await listed(page)
    return {one["name"]: ToolInfo(one["name"], one.get("inputSchema"), one.get("annotations")) for one in tools}


def _result(answer: dict[str, Any]) -> Any:
    """A result of an answer, which is another object for each call."""
    is_question = answer.get("resultType") == "input_required"
    return (types.InputRequiredResult if is_question else types.CallToolResult).model_validate(answer)


def describe(agent: object) -> list[ToolInfo] | None:
    """The tools of a `CachedClient`, for `explain`; None of anything else. Raises `ConfigurationError` if it has not
    listed them yet.
    """
    if not isinstance(agent, CachedClient):
        return None
    if agent._tools is None:
        raise ConfigurationError(
            "explain: this CachedClient has not listed the tools of its server yet; `await client.tools()` before"
        )
    return list(agent._tools.values())
