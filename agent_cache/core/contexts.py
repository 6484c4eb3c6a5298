"""What frameworks hand to a tool beside the model's arguments, what its body asks them for, and who asks in it.

Parameters that a framework fills in, contexts and dependencies, are recognised by class name *and* defining package:
nothing is imported. A class of the user's own that is called ``Context`` is an argument like any other.

`core.asker` decides what counts of a value that is found here. A body is followed into what the user's program has of
the names in it: functions, methods, properties and constructors of classes, partial functions, and tables of functions.
What it finds in another way is not seen.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import sys
import typing
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType, UnionType
from typing import Any, Final, Literal, NamedTuple

from agent_cache.values.contents import is_own

__all__ = [
    "CONTEXTS", "GETTERS", "TRANSPORT", "Injected", "Place", "Role", "getters_of", "got_by",
    "injected_role", "may_provide_user", "may_read_request", "places_in", "sent_by",
]  # fmt: skip

Role = Literal["object", "request", "config", "state", "value", "headers", "none"]
"""What an injected parameter is: a framework's context, one whose request the tool may read, the config of a runnable,
the state of a graph, a value that the user or a dependency provides, the headers of a request, or nothing of the asker.
"""


class Injected(NamedTuple):
    """A value that a framework injects."""

    role: Role
    value: Any


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
    **dict.fromkeys(("validation_context",), True),
    **dict.fromkeys(
        ("state", "session.state", "session_state", "invocation_state", "run_config.trace_metadata"), False
    ),
    **dict.fromkeys(("metadata", "custom_metadata", "request_context.meta", "tool_input"), False),
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

TRANSPORT: Final = frozenset({
    "accept", "accept-encoding", "b3", "cf-ray", "connection", "date", "host", "last-event-id", "mcp-method",
    "mcp-name", "mcp-protocol-version", "mcp-session-id", "sentry-trace", "te", "traceparent", "tracestate",
    "transfer-encoding", "user-agent", "x-amz-cf-id", "x-amzn-trace-id", "x-b3-flags", "x-b3-parentspanid",
    "x-b3-sampled", "x-b3-spanid", "x-b3-traceid", "x-cloud-trace-context", "x-correlation-id", "x-request-id",
})  # fmt: skip
"""Headers that say how a request travels, besides ``content-*``. Every other one may say who sends it."""


def is_context(name: str, module: str) -> bool:
    """Whether a class of this name and module is a framework's context."""
    return name in CONTEXTS and any(f"{module}.".startswith(f"{package}.") for package in CONTEXTS[name][1])


def got_by(getter: str) -> list[Injected]:
    """What a tool gets that calls a function of `GETTERS` now."""
    (role, modules), found = GETTERS[getter], []
    for module in modules:
        call = getattr(sys.modules.get(module), "get_http_request" if role == "headers" else getter, lambda: None)
        try:
            found.append(Injected(role, call()))
        except Exception:  # noqa: BLE001, S112 - there is no run, or no request, here
            continue
    return [one for one in found if one.value is not None]


def sent_by(request: Any) -> Any:
    """What a request says of its sender: headers that are not of the transport, and the query of its URL."""
    headers: Any = getattr(request, "headers", None)
    has_headers = hasattr(headers, "items")  # first: a request of Starlette's is a mapping, too, of the scope of a call
    if not has_headers and not isinstance(request, Mapping):
        return request
    named = {str(name).lower(): str(value) for name, value in (headers if has_headers else request).items()}
    found = {name: named[name] for name in named if name not in TRANSPORT and not name.startswith("content-")}
    query = getattr(getattr(request, "url", None), "query", "")
    return {"headers": found, "query": str(query)} if has_headers else found


def places_in(injected: Injected) -> Iterator[Place]:
    """The values of what is injected that may say who asks."""
    role, value = injected
    if role in ("object", "request"):
        yield from _in_context(value, with_request=role == "request")
    elif role == "config" and isinstance(value, Mapping):
        yield Place("configurable", value.get("configurable"), has_ids=True)
        yield Place("metadata", value.get("metadata"), is_whole=False)
    elif role == "state":
        yield Place("state", value, is_whole=False)
    elif role != "none":
        yield Place("headers", sent_by(value)) if role == "headers" else Place("value", value)


def _in_context(context: Any, *, with_request: bool) -> Iterator[Place]:
    kind: Any = type(context)
    module = _module_of_context(kind)
    if module is None:
        is_config = isinstance(context, Mapping) and "configurable" in context
        yield from places_in(Injected("config", context)) if is_config else (Place("", context),)
        return
    is_of_mcp = module.partition(".")[0] in ("fastmcp", "mcp")
    found = {name: value for name in _PLACES if (value := _at(context, name)) is not _ABSENT}
    if not found and not is_of_mcp:
        yield Place("", context)
    yield from (Place(name, value, _PLACES[name]) for name, value in found.items())
    if not is_of_mcp and (added := _added_to(context, kind)):
        yield Place("its attributes", added, is_whole=False)
    if isinstance(config := _at(context, "config"), Mapping):
        yield from places_in(Injected("config", config))
    if is_of_mcp:
        yield from (Place("value", one.value) for one in got_by("get_access_token"))
        if with_request and (request := _at(context, "request_context.request")) is not _ABSENT:
            yield Place("headers", sent_by(request))


@lru_cache(maxsize=256)
def _module_of_context(kind: Any) -> str | None:
    """The module of the framework's class that this one is, or derives from."""
    found = (base.__module__ for base in kind.__mro__ if is_context(base.__name__, base.__module__))
    return next(found, None)


def _added_to(context: Any, kind: Any) -> dict[str, Any]:
    """The attributes that a subclass of the user's has added to a framework's context."""
    if is_context(kind.__name__, kind.__module__) or not is_own(kind):
        return {}
    known = {name for base in kind.__mro__ if is_context(base.__name__, base.__module__) for name in _annotated(base)}
    values = {name: getattr(context, name, None) for base in kind.__mro__ if is_own(base) for name in _annotated(base)}
    values |= getattr(context, "__dict__", {})
    return {name: value for name, value in values.items() if name not in known and not name.startswith("_")}


def _annotated(kind: Any) -> Iterable[str]:
    found: Iterable[str] = vars(kind).get("__annotations__", ())
    return found


_ABSENT: Final = object()


def _at(context: Any, path: str) -> Any:
    try:
        for name in _PATHS[path]:
            context = getattr(context, name, _ABSENT)
    except Exception:  # noqa: BLE001 - a property of a framework, which may need a request
        return _ABSENT
    return context


# Parameters that a framework fills in

_DEPENDENCIES: Final = frozenset({"docket", "fastapi", "fast_depends", "fastmcp", "mcp", "uncalled_for"})
_ROLES_OF_DEPENDENCIES: Final[dict[Role, frozenset[str]]] = {
    "object": frozenset({"_CurrentContext", "_OptionalCurrentContext"}),
    "headers": frozenset({"_CurrentHeaders", "_CurrentRequest"}),
    "none": frozenset({
        "_CurrentDocket", "_CurrentFastMCP", "_CurrentWorker", "InMemoryProgress", "Progress", "TaskLogger",
        "_TaskLogger",
    }),
}  # fmt: skip
"""Of FastMCP's dependencies, by their classes. Any other one provides a value."""


def injected_role(annotation: Any, default: Any, function: Callable[..., Any]) -> Role | None:
    """What a framework, and not the model, provides as the value of this parameter; None for an argument."""
    return _role_of_dependency(default) or _role_of_hint(annotation, function)


def _role_of_dependency(value: Any) -> Role | None:
    """The role of ``Depends(f)``, as a default or in `Annotated`, or of the function that makes one."""
    kinds = [
        kind
        for kind in (*type(value).__mro__, value)
        if isinstance(getattr(kind, "__qualname__", None), str)
        and (getattr(kind, "__module__", None) or "").partition(".")[0] in _DEPENDENCIES
    ]
    if not any("Depend" in kind.__qualname__ for kind in kinds):
        return None
    names = {kind.__name__ for kind in kinds}
    return next((role for role, known in _ROLES_OF_DEPENDENCIES.items() if names & known), "value")


def _role_of_object(kind: Any) -> Role | None:
    if type(kind) is _StandIn and not is_context(kind.__name__, kind.__module__):
        kind = getattr(sys.modules.get(kind.__module__), kind.__name__, kind)
    role = _role_of_dependency(kind)
    if role is not None:
        return role
    marker = None if hasattr(kind, "__qualname__") else kind  # as in Annotated[str, InjectedState("x")]
    kind = kind if marker is None else type(marker)
    for base in getattr(kind, "__mro__", (kind,)):
        if hasattr(base, "__name__") and is_context(base.__name__, base.__module__):
            role = CONTEXTS[base.__name__][0]
            return "value" if role == "state" and getattr(marker, "field", None) is not None else role
    return None


def _role_of_hint(hint: Any, function: Callable[..., Any]) -> Role | None:
    if isinstance(hint, str | typing.ForwardRef):
        text = (hint if isinstance(hint, str) else hint.__forward_arg__).strip()
        try:
            hint = eval(text, {}, _Names(function))  # noqa: S307 - the tool's own code, as `get_type_hints` does
        except Exception:  # noqa: BLE001 - it means nothing here: an argument like any other
            return None
        if isinstance(hint, str):  # quoted in a module whose annotations are text anyway
            return _role_of_hint(hint, function) if text[:1] in "'\"" else None
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        members = hint.__origin__, *[one for one in hint.__metadata__ if not isinstance(one, str)]
    elif origin is not typing.Union and origin is not UnionType:
        return _role_of_object(origin or hint)
    return next((role for one in members if (role := _role_of_hint(one, function)) is not None), None)


class _Names(dict[str, Any]):
    """What names mean where a function is defined. One that is imported for type checkers only stands for itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, name: str) -> Any:
        for scope in (getattr(self._function, "__globals__", {}), vars(builtins)):
            if name in scope:
                return scope[name]
        return _stand_in(_imported_by(self._function).get(name, name))


class _StandIn(type):
    """A class, or module, that is known by its name alone."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__module__}.{cls.__name__}.{name}")

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return cls

    __getitem__ = __call__


def _stand_in(path: str) -> Any:
    module, _, name = path.strip(".").rpartition(".")
    return _StandIn(name, (), {"__module__": module})


def _imported_by(function: Callable[..., Any]) -> Mapping[str, str]:
    """The names that a function's module imports, also under `TYPE_CHECKING`, and of what, from its source."""
    try:
        lines, _ = inspect.findsource(sys.modules[function.__module__])
    except (KeyError, OSError, TypeError):
        return {}
    return _imported_in("".join(lines))


@lru_cache(maxsize=16)  # to parse a module with 400 tools takes 20 ms, at each of their hints
def _imported_in(source: str) -> Mapping[str, str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                names[alias.asname or package] = alias.name if alias.asname else package
    return names


# What the body of a tool asks for

_HOMES_OF_GETTERS: Final = frozenset({"fastmcp", "langchain", "langchain_core", "langgraph", "mcp", "pydantic_ai"})
_MAX_BODIES: Final = 200
_MAX_WRAPPERS: Final = 32
_HARMLESS: Final = frozenset({
    "client_id", "close_sse_stream", "debug", "delete_state", "elicit", "error", "fastmcp", "get_prompt", "get_state",
    "info", "list_prompts", "list_resources", "list_roots", "log", "read_resource", "report_progress", "request_id",
    "sample", "send_notification", "session_id", "set_state", "warning",
})  # fmt: skip
"""What a context of MCP has that says nothing of the headers of a request."""


def getters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The functions of `GETTERS` that a tool calls, or what it calls of the user's program."""
    found: set[str] = set()
    for names, scope in _bodies_of(function):
        found |= {name for name in names if name not in scope}  # an attribute, of a module perhaps
        called = (one for name in names if name in scope for one in _run_by(scope[name]))
        found |= {one.__name__ for one in called if _is_getter(one)}
    return tuple(sorted(found & GETTERS.keys()))


def may_read_request(function: Callable[..., Any], name: str) -> bool:
    """Whether a function may find the request of its client in a context of MCP, its parameter of this name: unless it
    has no other use for it than to ask it for what says nothing of the request.
    """
    code = getattr(_function_within(function), "__code__", None)
    if code is None:
        return True
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        used = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name in used and step.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD", "MAKE_CELL")):
            asks = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if used[-1] != name or not asks or following.argval not in _HARMLESS:
                return True
    return False


def may_provide_user(function: Callable[..., Any]) -> bool:
    """Whether a dependency of a function makes its value of a context variable, which nobody sees before the call."""
    return any(
        type(scope.get(name)).__name__ == "ContextVar"
        for factory in _factories_of(_function_within(function))
        for body in _run_by(factory)
        for names, scope in _bodies_of(body)
        for name in names
    )


def _is_getter(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] in _HOMES_OF_GETTERS


def _bodies_of(function: Callable[..., Any]) -> Iterator[tuple[set[str], Mapping[str, Any]]]:
    """The names in the body of a function, and what they name there; then those of all that it calls."""
    receiver = getattr(function, "__self__", None)
    pending: list[Any] = [_function_within(function)]
    for number, body in enumerate(pending):
        code = getattr(body, "__code__", None)
        if code is None or number >= _MAX_BODIES:
            continue
        names = _names_in(code)
        cells = zip(code.co_freevars, body.__closure__ or (), strict=False)
        scope = ChainMap({name: cell.cell_contents for name, cell in cells if cell != CellType()}, body.__globals__)
        yield names, scope
        used = [receiver, *(scope[name] for name in names if name in scope), *_factories_of(body)]
        called = [one for value in used for one in _run_by(value, names)]
        pending += [one for one in called if not _is_getter(one) and one not in pending]


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _factories_of(function: Any) -> list[Any]:
    """What makes the values of the dependencies of a function."""
    named = (getattr(function, "__kwdefaults__", None) or {}).values()
    defaults = [*(getattr(function, "__defaults__", None) or ()), *named]
    found = [getattr(one, "factory", None) or getattr(one, "dependency", None) for one in defaults]
    return [one for one in found if callable(one)]


def _run_by(value: Any, names: Container[str] = ()) -> list[Any]:
    """The functions that run where a name of this value is in a body: those in it, or methods of the user's class of
    these names, or of special ones.
    """
    values: Iterable[Any] = value.values() if type(value) is dict else (value,)
    found = [one for one in values if isinstance(one, FunctionType | functools.partial)]
    if not isinstance(value, FunctionType | ModuleType):
        own = [base for base in (value if isinstance(value, type) else type(value)).__mro__ if is_own(base)]
        members = [pair for base in own for pair in vars(base).items() if pair[0] in names or pair[0][:2] == "__"]
        # of a `property`, of a `cached_property`
        found += [getattr(one, "fget", None) or getattr(one, "func", None) or one for _, one in members]
    return [one for one in map(_function_within, found) if isinstance(one, FunctionType)]


def _function_within(function: Any) -> Any:
    """The function whose body runs when this is called."""
    for _ in range(_MAX_WRAPPERS):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if inner is None and isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            break
        function = inner
    return function if inspect.isroutine(function) else type(function).__call__
