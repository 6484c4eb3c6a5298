"""Who asks: which parameters of a tool a framework fills in, and what of them says who its user is.

Contexts and dependencies of frameworks are recognised by class name *and* defining package: nothing is imported. A
class of the user's own that is called ``Context`` is an argument like any other.

Who asks is part of the key. One rule says what of a context counts:

- It is looked into along mappings and declared fields (dataclass, attrs, msgspec, pydantic, NamedTuple), and along the
  attributes of what the user passes for a run, and of what a field that is *named for someone* holds (`user_id`).
- All that can be compared counts: values, and objects that consist of values. Of a state and of metadata, which hold
  other things as well, only fields named for someone do. Ids of runs do not count.
- What cannot be compared, such as a client, is passed over if a field is named for someone. If none is, or if what that
  one holds cannot be compared, nobody knows who asks: `UnknownAsker`.

What the functions return counts, too, by which the body of a tool asks for its context (`_GETTERS`), and the values of
context variables that are named for someone.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import (
    StableEncoder,
    attributes_of,
    blake2b,
    by_object,
    declared_fields,
    declared_names,
    full_name,
    is_model,
)

__all__ = [
    "TRANSPORT", "Apart", "Injected", "Role", "UnknownAsker", "asker_in", "asks", "getters_of", "got_by",
    "injected_role", "meaning_of",
]  # fmt: skip

Role = Literal["context", "config", "state", "receiver", "getter", "none"]
"""What an injected value is: something that may say who asks, the config of a runnable, the state of a graph, the
object whose method the tool is, the name of one of `_GETTERS`, or nothing of the asker."""


class Injected(NamedTuple):
    """A value that a framework injects."""

    role: Role
    value: Any


class UnknownAsker(Uncacheable):
    """A context may say who asks, in a form that cannot be compared."""

    def __str__(self) -> str:
        prefix = f"{self.tool}: " if self.tool else ""
        options = "give the tool vary= to say what of its context counts, or shared=True if nothing does"
        return f"{prefix}{self.reason}; {options}"


class Apart(NamedTuple):
    """What keeps the calls of one tool apart, beside their arguments."""

    who: Any  # who asks, which recordings keep a digest of; None if that is the same for all
    where: Any  # what is asked: a server, a session, a version. It may mean nothing to another process


# Parameters that a framework fills in

_CONTEXTS: Final[dict[str, tuple[Role, tuple[str, ...]]]] = {
    "RunContext": ("context", ("pydantic_ai", "agno")),
    "RunContextWrapper": ("context", ("agents",)),
    "ToolContext": ("context", ("agents", "google.adk", "strands")),
    **dict.fromkeys(("CallbackContext", "InvocationContext", "ReadonlyContext"), ("context", ("google.adk",))),
    "CancellationToken": ("none", ("autogen_core",)),
    "ConversationContext": ("context", ("ag2",)),
    "FunctionInvocationContext": ("context", ("agent_framework",)),
    **dict.fromkeys(("ToolRuntime", "Runtime"), ("context", ("langchain", "langgraph"))),
    "RunnableConfig": ("config", ("langchain_core",)),
    "InjectedToolArg": ("context", ("langchain_core",)),
    "InjectedToolCallId": ("none", ("langchain_core",)),
    "InjectedState": ("state", ("langchain", "langgraph")),
    "InjectedStore": ("none", ("langchain", "langgraph")),
    "Context": ("context", ("fastmcp", "mcp", "google.adk", "llama_index", "workflows.context.context")),
}
"""The role of each context, and the packages and modules that define it. LlamaIndex's is defined in its package
`workflows`, a name that others use, too."""

_DEPENDENCIES: Final = frozenset({"docket", "fastapi", "fast_depends", "fastmcp", "mcp", "uncalled_for"})
_NOBODY: Final = frozenset({
    "_CurrentDocket", "_CurrentFastMCP", "_CurrentWorker", "InMemoryProgress", "Progress", "TaskLogger", "_TaskLogger",
})  # fmt: skip
"""FastMCP's dependencies that say nothing of who asks. Every other one provides a value that may."""


def injected_role(annotation: Any, default: Any, function: Callable[..., Any]) -> Role | None:
    """What a framework, and not the model, provides as the value of this parameter; None for an argument."""
    return _role_of_dependency(default) or _role_of_hint(annotation, function)


def _role_of_hint(hint: Any, function: Callable[..., Any]) -> Role | None:
    if isinstance(hint, str | typing.ForwardRef):
        text = hint if isinstance(hint, str) else hint.__forward_arg__
        try:
            hint = eval(text, dict(getattr(function, "__globals__", {})))  # noqa: S307 - as `get_type_hints` does
        except Exception:  # noqa: BLE001 - it means nothing at run time: an argument like any other
            return None
        if isinstance(hint, str):  # quoted in a module whose annotations are text anyway
            return _role_of_hint(hint, function) if text.strip()[:1] in ("'", '"') else None
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        members = hint.__origin__, *[one for one in hint.__metadata__ if not isinstance(one, str)]
    elif origin is not typing.Union and origin is not types.UnionType:
        return _role_of_object(origin or hint)
    return next((role for one in members if (role := _role_of_hint(one, function)) is not None), None)


def _role_of_object(found: Any) -> Role | None:
    """The role of a class, or of a marker in `Annotated`."""
    context = _context_of(_kind_of(found))
    role = _role_of_dependency(found) or (None if context is None else _CONTEXTS[context.__name__][0])
    return "context" if role == "state" and getattr(found, "field", None) is not None else role


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
    return "none" if any(kind.__name__ in _NOBODY for kind in kinds) else "context"


@by_object
def _context_of(kind: Any) -> Any:
    """The framework's class that this one is, or derives from."""
    for base in getattr(kind, "__mro__", ()):
        _, packages = _CONTEXTS.get(base.__name__, ("none", ()))
        if any(f"{base.__module__}.".startswith(f"{package}.") for package in packages):
            return base
    return None


# Functions by which a tool asks for its context in place of taking it

_GETTERS: Final[dict[str, tuple[str, ...]]] = {
    "get_access_token": ("fastmcp.server.dependencies", "mcp.server.auth.middleware.auth_context"),
    **dict.fromkeys(("get_context", "get_http_headers", "get_http_request"), ("fastmcp.server.dependencies",)),
    "get_runtime": ("langgraph.runtime",),
    "get_config": ("langgraph.config",),
    "ensure_config": ("langchain_core.runnables.config",),
    "get_current_run_context": ("pydantic_ai._run_context",),
}
"""Their names, and the modules that have them."""

_MAX_BODIES: Final = 500
_LIBRARY: Final = inspect.__file__.removesuffix("inspect.py")


def getters_of(tool: Any) -> tuple[Any, ...]:
    """The functions of `_GETTERS`, by their names, and the context variables named for someone, that the body of a tool
    names, or of a decorator below ours, or one that these name, and so on. Of objects and classes that are named, all
    methods count. Installed packages are not looked into, but for that of the tool: a program may be installed itself.
    """
    found: set[str] = set()
    bodies: dict[types.FunctionType, None] = {}
    kinds: dict[type, None] = {}
    variables: dict[Any, None] = {}
    named: list[Any] = [tool]
    owners = [one if type(one) is types.FunctionType else _kind_of(one) for one in _parts_of(tool)]
    own = {one.__module__.partition(".")[0] for one in owners if isinstance(one.__module__, str)}
    while named and len(bodies) < _MAX_BODIES:
        parts = [part for value in named for part in _parts_of(value)]
        if bodies:  # the tool may have such a name itself
            found |= {part.__name__ for part in parts if type(part) is types.FunctionType}
        within = dict.fromkeys(base for part in parts for base in _kind_of(part).__mro__ if base not in kinds)
        kinds |= within
        asked = [(name, member) for base in within for name, member in vars(base).items()]
        parts += [part for _, member in asked for part in _parts_of(member)]
        functions = dict.fromkeys(part for part in parts if type(part) is types.FunctionType)
        new = [one for one in functions if one not in bodies and not _is_installed(one, own)]
        bodies |= dict.fromkeys(new)
        named = []
        for body in new:
            code, names = body.__code__, _names_in(body.__code__)
            cells = zip(code.co_freevars, body.__closure__ or (), strict=False)
            enclosed = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
            found |= names
            values: list[tuple[str, Any]] = [(name, enclosed.get(name, body.__globals__.get(name))) for name in names]
            packages = accumulate(str(body.__globals__.get("__package__") or "").split("."), "{}.{}".format)
            values += [("", sys.modules.get(name)) for name in (*packages, *names)]  # of what it imports itself
            modules: set[types.ModuleType] = set()
            for _, one in values:  # grows by what is named in a module, and in a module in that
                if type(one) is types.ModuleType and one not in modules:
                    modules.add(one)
                    values += [(name, vars(one)[name]) for name in names & vars(one).keys()]
            named += [*(one for _, one in values), *(body.__defaults__ or ()), *(body.__kwdefaults__ or {}).values()]
            asked += values
        meanings = [(one, meaning_of(name), meaning_of(one.name)) for name, one in asked if _is_variable(one)]
        variables |= {one: None for one, *both in meanings if "someone" in both}
    return (*sorted(found & _GETTERS.keys()), *sorted(variables, key=lambda one: one.name))


_getters_of_class: Final = by_object(getters_of)


def asks(receiver: Any) -> tuple[Any, ...]:
    """What `getters_of` finds in the methods of an object, or of a class."""
    return _getters_of_class(receiver if issubclass(type(receiver), type) else type(receiver))


_INNER: Final[dict[Any, str]] = {
    **dict.fromkeys((classmethod, staticmethod, types.MethodType), "__func__"),
    **dict.fromkeys((functools.partial, functools.cached_property), "func"),
    property: "fget",
    types.FunctionType: "__wrapped__",
}


def _parts_of(value: Any) -> list[Any]:
    """A value, and what is inside of a decorator, a partial, a method or a property. Of anything else no attribute is
    read: it may be a proxy of nothing.
    """
    parts = [value]
    for part in parts:
        if type(part) in _INNER:
            parts.append(getattr(part, _INNER[type(part)], None))
        if type(part) is types.MethodType:
            parts.append(part.__self__)
    return parts


def _kind_of(value: Any) -> Any:
    """The class of a value; a class itself."""
    return value if issubclass(type(value), type) else type(value)


def _is_variable(value: Any) -> bool:
    """Whether it is a context variable, which is known by its class, as contexts are."""
    return type(value).__name__ == "ContextVar" and type(value).__module__ in ("_contextvars", "contextvars")


def _is_installed(function: types.FunctionType, own: set[str]) -> bool:
    path = function.__code__.co_filename
    is_own = str(function.__module__).partition(".")[0] in own
    return not is_own and ("site-packages" in path or "dist-packages" in path or path.startswith((_LIBRARY, "<")))


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def got_by(getter: Any) -> list[Injected]:
    """What a tool gets that calls a function of `_GETTERS`, or asks a context variable, now."""
    if _is_variable(getter):
        return [Injected("context", value)] if (value := getter.get(None)) is not None else []
    name, found = "get_http_request" if getter == "get_http_headers" else getter, []
    for module in _GETTERS[getter]:
        try:
            found.append(Injected("context", getattr(sys.modules.get(module), name)()))
        except Exception:  # noqa: BLE001, S112 - there is no run, or no request, here
            continue
    return [one for one in found if one.value is not None]


def _asked_for(injected: Injected) -> list[Injected]:
    """What a getter returns, or those that the methods of a receiver name; any other value by itself."""
    role, value = injected
    if role not in ("getter", "receiver"):
        return [injected]
    getters = (value,) if role == "getter" else asks(value)
    return [one for getter in getters for one in got_by(getter)]


# Who asks


def asker_in(contexts: Iterable[Injected]) -> str | None:
    """A digest of who asks: equal in every process for equal fields. None if the contexts say nothing about it.

    Raises:
        UnknownAsker: if something there may say who asks, and cannot be compared.
    """
    found: list[tuple[Path, bytes]] = []
    try:
        for injected in (one for given in contexts for one in _asked_for(given)):
            fields = _Fields()  # what one says of the asker settles nothing about another
            fields.add(injected)
            found += sorted(fields.found)
    except UnknownAsker:
        raise
    except Exception as error:
        raise UnknownAsker(f"reading its context raised {type(error).__name__}") from error
    return blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if found else None


class _Place(NamedTuple):
    """A value that may say who asks."""

    name: str
    value: Any
    is_whole: bool = True  # whether everything in it counts, or only fields that are named for someone
    has_ids: bool = False  # whether a framework puts ids of its own there


_PLACES: Final = {
    **dict.fromkeys(("deps", "context", "dependencies", "user_id", "tenant_id", "client_id", "server_info.user"), True),
    **dict.fromkeys(("validation_context", "variables", "kwargs", "request_context.request"), True),
    **dict.fromkeys(("state", "session.state", "session_state", "invocation_state", "tool_input"), False),
    **dict.fromkeys(("metadata", "custom_metadata", "request_context.meta", "run_config.trace_metadata"), False),
}
"""Attributes of contexts that may say who asks: with everything in them, or with the fields named for someone."""

Path = tuple[str, ...]
_ABSENT: Final = object()
_PATHS: Final = {path: path.split(".") for path in (*_PLACES, "config")}
_BY_FIRST: Final = {first: [path for path in _PLACES if path.split(".")[0] == first] for first, *_ in _PATHS.values()}


def _at(context: Any, path: str) -> Any:
    try:
        for name in _PATHS[path]:
            context = getattr(context, name, _ABSENT)
    except Exception:  # noqa: BLE001 - a property of a framework, which may need a request
        return _ABSENT
    return context


@by_object
def _attributes_of_class(kind: Any) -> frozenset[str]:
    """The attributes of `_PLACES` that objects of a class may have beside those in their ``__dict__``."""
    return frozenset(_BY_FIRST if hasattr(kind, "__getattr__") else dir(kind)) & _BY_FIRST.keys()


def _places_in(injected: Injected) -> Iterator[_Place]:
    role, value = injected
    kind: Any = type(value)
    if role == "state":
        yield _Place("state", value, is_whole=False)
    elif isinstance(value, Mapping) and (role == "config" or "configurable" in value):
        yield _Place("configurable", value.get("configurable"), has_ids=True)
        yield _Place("config", value, is_whole=False)
    elif role != "none" and (context := _context_of(kind)) is None:
        yield _Place("its value", value)
    elif role != "none":
        firsts = sorted(_attributes_of_class(kind) | (getattr(value, "__dict__", {}).keys() & _BY_FIRST.keys()))
        found = {path: one for at in firsts for path in _BY_FIRST[at] if (one := _at(value, path)) is not _ABSENT}
        is_of_mcp = context.__module__.partition(".")[0] in ("fastmcp", "mcp")
        if not found and not is_of_mcp:
            yield _Place("its value", value)
        yield from (_Place(name, one, _PLACES[name]) for name, one in found.items())
        if context is not kind:  # a subclass of the user's may have more
            known = {*_PLACES, *(name for base in context.__mro__ for name in inspect.get_annotations(base))}
            added = {name: one for name, one in attributes_of(value).items() if name not in known}
            yield from (_Place(name, one) for name, one in added.items() if meaning_of(name) == "someone")
        if isinstance(config := _at(value, "config"), Mapping):
            yield from _places_in(Injected("config", config))
        yield from (_Place("token", one.value) for one in (got_by("get_access_token") if is_of_mcp else ()))


# Names

_IDS: Final = frozenset({
    "checkpoint", "checkpoint_id", "checkpoint_map", "checkpoint_ns", "orig_class", "request_id", "run_id", "run_step",
    "span_id", "step", "thread_id", "tool_call_id", "trace_id",
})  # fmt: skip
_NAMES: Final = re.compile(
    r"(?:(?:^|_)(?:user|username|owner|actor|principal|subject|account|member|customer|tenant|org|organi[sz]ation|company|"
    r"workspace|team|employee|patient|auth|authorization|claims|identity|profile|requester|caller|email|login|client_id|"
    r"api_key|(?:access|auth|bearer|id)_token)(?:_?(?:ids?|key|name|uuid|email|info|data|context|details|record))?"
    r"|(?:^|_)session|^(?:sub|uid|token))$"
)


@lru_cache(maxsize=4096)
def meaning_of(name: str) -> str:
    """What a name may mean: an id of a ``run``, ``someone``, a ``session`` of someone or a connection; else nothing."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower().strip("_")
    if words.removeprefix("langgraph_") in _IDS or name.startswith("__pregel"):
        return "run"
    if not name.startswith("user:") and _NAMES.search(words) is None:  # the state that ADK keeps for each user
        return ""
    return "session" if words.endswith("session") else "someone"


# Requests

TRANSPORT: Final = frozenset({
    "accept", "accept-encoding", "b3", "cf-ray", "connection", "date", "elastic-apm-traceparent", "host",
    "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "newrelic", "sentry-trace",
    "te", "traceparent", "tracestate", "transfer-encoding", "uber-trace-id", "user-agent", "x-amz-cf-id",
    "x-amzn-trace-id", "x-b3-flags", "x-b3-parentspanid", "x-b3-sampled", "x-b3-spanid", "x-b3-traceid",
    "x-cloud-trace-context", "x-correlation-id", "x-datadog-origin", "x-datadog-parent-id",
    "x-datadog-sampling-priority", "x-datadog-trace-id", "x-request-id",
})  # fmt: skip
"""Headers that say how a request travels, besides ``content-*``. Every other one may say who sends it."""


def _sent_by(request: Any) -> dict[str, Any]:
    """What a request says of its sender: headers but those of the transport, query, path, values named for someone."""
    named = {str(name).lower(): str(value) for name, value in request.headers.items()}
    found = {name: named[name] for name in named if name not in TRANSPORT and not name.startswith("content-")}
    query = str(getattr(getattr(request, "url", None), "query", ""))
    own = attributes_of(request).items()
    added = {name: one for name, one in own if meaning_of(name) == "someone" and type(one) in _Encoder.leaves}
    return {**added, "headers": found, "query": query, "path_params": getattr(request, "path_params", None)}


# Fields

_MAX_FIELDS: Final = 10_000
_MAX_SMALL: Final = 256
"""Fields of a mapping in a state. What is larger is data in which nobody is named."""


class _Encoder(StableEncoder):
    """Writes objects that consist of values, of any class, by their attributes. Classes are known by their names."""

    __slots__ = ()

    def class_code(self, kind: type) -> bytes:
        return full_name(kind).encode()

    def fields_of(self, value: Any, kind: Any) -> list[tuple[str, Any]]:
        found = declared_fields(value, kind)
        if found is None:
            within = [("", base(value)) for base in (str, int, float, bytes, list, dict) if issubclass(kind, base)]
            found = [*within, *attributes_of(value).items()]
        if not found:
            raise Uncacheable(f"a value of type {full_name(kind)} has nothing in it")
        return found


def _fields_within(value: Any, *, is_opened: bool) -> Mapping[str, Any] | None:
    """The fields along which a value is looked into; None if it counts as a whole, or not at all."""
    kind: Any = type(value)
    if declared_names(kind) is not None or is_model(kind) or kind is types.SimpleNamespace:
        return attributes_of(value)
    if "Request" in kind.__name__ and hasattr(value, "method") and hasattr(getattr(value, "headers", None), "items"):
        return _sent_by(value)
    if isinstance(value, Mapping):
        return value if all(isinstance(name, str) for name in value) else None
    if kind.__name__ == "State" and kind.__module__.partition(".")[0] in ("google", "starlette"):
        found: Mapping[str, Any] = value.to_dict() if hasattr(value, "to_dict") else value._state
        return found
    can_open = is_opened and hasattr(value, "__dict__") and not isinstance(value, Enum)
    return (attributes_of(value) or None) if can_open else None


class _Fields:
    """What says who asks in one context."""

    def __init__(self) -> None:
        self.found: list[tuple[Path, bytes]] = []  # what counts, with the classes of what it was found in
        self.opaque: Path | None = None  # what cannot be compared, and may say it
        self.is_named = False  # whether a field that is named for someone has a value
        self._has_ids = False
        self._around: set[int] = set()

    def add(self, injected: Injected) -> None:
        """Take what counts of a context. Raises `UnknownAsker` if it may say who asks, and nothing says it."""
        for place in _places_in(injected):
            before, self._has_ids = len(self.found), False
            if place.value is not None:
                self._add_field((place.name,), place.value, whole=place.is_whole, is_opened=True)
            if place.is_whole and self._has_ids and not place.has_ids and len(self.found) == before:
                self.opaque = self.opaque or (place.name,)
        if self.opaque is not None and not self.is_named:
            raise UnknownAsker(f"{'.'.join(self.opaque)} cannot be compared, and no field is named for who asks")

    def _add_field(self, path: Path, value: Any, *, whole: bool, is_opened: bool = False) -> bool:
        """Take what counts of a field. Returns whether it is comparable."""
        meaning = meaning_of(path[-1])
        is_someone = meaning == "someone"
        if meaning == "run" and (path[-1][:2] == "__" or _fields_within(value, is_opened=False) is None):
            self._has_ids = True
            return True
        counts = meaning in ("someone", "session") or (whole and meaning == "")
        is_comparable = self._add(path, value, whole=counts, is_opened=is_opened or is_someone)
        if is_someone and not is_comparable:
            raise UnknownAsker(f"{'.'.join(path)} is a {full_name(type(value))}, which cannot be compared")
        if not is_comparable and whole and meaning != "run":
            self.opaque = self.opaque or path
        self.is_named |= is_comparable and meaning in ("someone", "session") and value is not None
        return is_comparable

    def _add(self, path: Path, value: Any, *, whole: bool, is_opened: bool) -> bool:
        leaf = _Encoder.leaves.get(type(value))
        if leaf is not None:
            self.found += [(path, leaf(value))] if whole else ()
            return whole
        if id(value) in self._around:
            return True  # what it is found in counts already
        if len(self.found) > _MAX_FIELDS:
            raise UnknownAsker(f"{path[0]} has more than {_MAX_FIELDS} fields")
        fields = _fields_within(value, is_opened=is_opened)
        if fields is None or len(fields) > (_MAX_FIELDS if whole else _MAX_SMALL):
            return whole and self._add_value(path, value)
        self._around.add(id(value))
        before = len(self.found)
        results = [self._add_field((*path, name), one, whole=whole) for name, one in fields.items()]
        self._around.discard(id(value))
        if len(self.found) > before and not isinstance(value, Mapping):
            self.found.append(((*path, "(class)"), full_name(type(value)).encode()))
        return any(results) or (isinstance(value, Mapping) and not fields)

    def _add_value(self, path: Path, value: Any) -> bool:
        try:
            self.found.append((path, _Encoder(_MAX_FIELDS).encode(value)))
        except Uncacheable:
            return False
        return True
