"""What frameworks hand to a tool beside the model's arguments, and where in it who asks may be said.

`core.asker` decides what counts of a value that is found there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CONTEXTS",
    "GETTERS",
    "TRANSPORT",
    "Injected",
    "Place",
    "Role",
    "got_by",
    "identifying_headers",
    "is_context",
    "places_in",
    "sent_by",
]

Role = Literal["object", "request", "config", "state", "value", "headers", "none"]
"""What an injected parameter is: a framework's context, one whose request the tool may read, the config of a runnable,
the state of a graph, a value that the user or a dependency provides, the headers of a request, or nothing of the asker.
"""


class Injected(NamedTuple):
    """A value that a framework injects."""

    role: Role
    value: Any


CONTEXTS: Final[dict[str, tuple[Role, frozenset[str]]]] = {
    "RunContext": ("object", frozenset({"pydantic_ai", "agno"})),
    "RunContextWrapper": ("object", frozenset({"agents"})),
    "ToolContext": ("object", frozenset({"agents", "google.adk", "strands"})),
    "CallbackContext": ("object", frozenset({"google.adk"})),
    "InvocationContext": ("object", frozenset({"google.adk"})),
    "ReadonlyContext": ("object", frozenset({"google.adk"})),
    "CancellationToken": ("none", frozenset({"autogen_core"})),
    "ToolRuntime": ("object", frozenset({"langchain", "langgraph"})),
    "Runtime": ("object", frozenset({"langgraph"})),
    "RunnableConfig": ("config", frozenset({"langchain_core"})),
    "InjectedToolArg": ("value", frozenset({"langchain_core"})),
    "InjectedToolCallId": ("none", frozenset({"langchain_core"})),
    "InjectedState": ("state", frozenset({"langchain", "langgraph"})),
    "InjectedStore": ("none", frozenset({"langchain", "langgraph"})),
    "Context": ("object", frozenset({"fastmcp", "mcp", "google.adk", "llama_index", "workflows.context.context"})),
}
"""The role of each context, and the packages and modules that define it, or re-export it. LlamaIndex's is defined in
its package `workflows`, a name that others use, too."""

_PLACES: Final = {
    **dict.fromkeys(("deps", "context", "dependencies", "user_id", "tenant_id", "client_id", "server_info.user"), True),
    **dict.fromkeys(("state", "session.state", "session_state", "invocation_state"), False),
    **dict.fromkeys(("metadata", "custom_metadata", "request_context.meta"), False),
}
"""Attributes of contexts that may say who asks: with everything in them, or with the fields named for someone."""

_PATHS: Final = {name: name.split(".") for name in (*_PLACES, "config", "request_context.request")}

GETTERS: Final[dict[str, tuple[Role, tuple[str, ...]]]] = {
    "get_access_token": ("value", ("fastmcp.server.dependencies", "mcp.server.auth.middleware.auth_context")),
    "get_http_headers": ("headers", ("fastmcp.server.dependencies",)),
    "get_http_request": ("headers", ("fastmcp.server.dependencies",)),
    "get_context": ("request", ("fastmcp.server.dependencies",)),
    "get_runtime": ("object", ("langgraph.runtime",)),
    "get_config": ("config", ("langgraph.config",)),
    "ensure_config": ("config", ("langchain_core.runnables.config",)),
    "get_current_run_context": ("object", ("pydantic_ai._run_context",)),
}
"""Functions by which a tool asks for its context in place of taking it, and the modules that have them."""


def got_by(getter: str) -> list[Injected]:
    """What a tool gets that calls a function of `GETTERS` now."""
    role, modules = GETTERS[getter]
    found = []
    for module in modules:
        call = getattr(sys.modules.get(module), "get_http_request" if role == "headers" else getter, None)
        try:
            value = None if call is None else call()
        except Exception:  # noqa: BLE001 - there is no run, or no request, here
            value = None
        if value is not None:
            found.append(Injected(role, value))
    return found


def is_context(name: str, module: str) -> bool:
    """Whether a class of this name and module is a framework's context."""
    return name in CONTEXTS and any(f"{module}.".startswith(f"{package}.") for package in CONTEXTS[name][1])


@lru_cache(maxsize=256)
def _module_of_context(kind: Any) -> str | None:
    """The module of the framework's class that this one is, or derives from."""
    found = (base.__module__ for base in kind.__mro__ if is_context(base.__name__, base.__module__))
    return next(found, None)


# Requests

TRANSPORT: Final = frozenset({
    "accept", "accept-encoding", "b3", "cf-ray", "connection", "date", "host", "last-event-id", "mcp-method",
    "mcp-name", "mcp-protocol-version", "mcp-session-id", "sentry-trace", "te", "traceparent", "tracestate",
    "transfer-encoding", "user-agent", "x-amz-cf-id", "x-amzn-trace-id", "x-b3-flags", "x-b3-parentspanid",
    "x-b3-sampled", "x-b3-spanid", "x-b3-traceid", "x-cloud-trace-context", "x-correlation-id", "x-request-id",
})  # fmt: skip
"""Headers that say how a request travels, besides ``content-*``. Every other one may say who sends it."""


def identifying_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a request that may say who sends it, by their names in lower case."""
    named = {str(name).lower(): str(value) for name, value in headers.items()}
    return {name: named[name] for name in named if name not in TRANSPORT and not name.startswith("content-")}


def sent_by(request: Any) -> Any:
    """What a request says of its sender: headers, and the query of its URL."""
    headers: Any = getattr(request, "headers", None)
    if hasattr(headers, "items"):  # first: a request of Starlette's is a mapping, too, of the scope of a call
        query = getattr(getattr(request, "url", None), "query", "")
        return {"headers": identifying_headers(headers), "query": str(query)}
    return identifying_headers(request) if isinstance(request, Mapping) else request


# Places


class Place(NamedTuple):
    """A value that may say who asks.

    Attributes:
        is_whole: whether everything in it counts, or only fields that are named for someone.
        has_ids: whether a framework puts ids of its own there.
    """

    name: str
    value: Any
    is_whole: bool = True
    has_ids: bool = False


def places_in(injected: Injected) -> Iterator[Place]:
    """The values of what is injected that may say who asks."""
    role, value = injected
    match role:
        case "object" | "request":
            yield from _in_context(value, with_request=role == "request")
        case "config" if isinstance(value, Mapping):
            yield from _in_config(value)
        case "state":
            yield Place("state", value, is_whole=False)
        case "value" | "config":
            yield Place("value", value)
        case "headers":
            yield Place("headers", sent_by(value))


def _in_context(context: Any, *, with_request: bool) -> Iterator[Place]:
    kind: Any = type(context)
    module = _module_of_context(kind)
    if module is None and isinstance(context, Mapping) and "configurable" in context:
        yield from _in_config(context)
        return
    is_of_mcp = (module or "").partition(".")[0] in ("fastmcp", "mcp")
    found = {} if module is None else {name: _at(context, name) for name in _PLACES}
    found = {name: value for name, value in found.items() if value is not _NOTHING}
    if not found and not is_of_mcp:
        yield Place("", context)
    for name, value in found.items():
        yield Place(name, value, _PLACES[name])
    if module is not None and isinstance(config := _at(context, "config"), Mapping):
        yield from _in_config(config)
    if is_of_mcp:
        yield from (Place("value", one.value) for one in got_by("get_access_token"))
        if with_request and (request := _at(context, "request_context.request")) is not _NOTHING:
            yield Place("headers", sent_by(request))


def _in_config(config: Mapping[str, Any]) -> Iterator[Place]:
    yield Place("configurable", config.get("configurable"), has_ids=True)
    yield Place("metadata", config.get("metadata"), is_whole=False)


_NOTHING: Final = object()


def _at(context: Any, name: str) -> Any:
    for part in _PATHS[name]:
        try:
            context = getattr(context, part, _NOTHING)
        except Exception:  # noqa: BLE001 - a property of a framework, which may need a request
            return _NOTHING
        if context is _NOTHING:
            break
    return context
