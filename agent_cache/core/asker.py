"""Who asks: the fields of an injected context that tell the callers of a tool apart.

A framework hands a tool more than the model's arguments: dependencies, a runtime, a request. Most of that differs from
call to call and decides nothing. This module knows which part of it says who asks, by one table:

- *everything plain* of what the user passes for a run: ``deps``, ``context``, ``configurable``, a dependency, the
  authenticated user of a server, an access token;
- *fields named for someone* of what holds other things as well: states and metadata. `user_id`, ``user:lang``,
  `account`;
- nothing of ids of runs, threads, checkpoints, steps and requests, of stores, and of names that begin with ``__``.

Plain are texts, numbers, truth values, None, dates, members of an `Enum`, the immutable types of the standard library,
and containers and records of these: dataclasses, named tuples, attrs, msgspec and pydantic. Clients and connections are
passed over. Where they are all that there is, nobody knows who asks: `UnknownAsker`.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import (
    PYDANTIC_STATE,
    blake2b,
    declared_names,
    full_name,
    has_native_state,
    is_model,
    text_of_standard_value,
)

__all__ = [
    "CONTEXTS",
    "GETTERS",
    "Apart",
    "Injected",
    "Role",
    "UnknownAsker",
    "asker_in",
    "got_by",
    "identifying_headers",
    "is_context",
]

Role = Literal["object", "request", "config", "state", "value", "headers", "none"]
"""What an injected parameter is: a framework's context, one whose request the tool reads, the config of a runnable, the
state of a graph, a value that the user or a dependency provides, the headers of a request, or nothing of the asker.
"""


class UnknownAsker(Uncacheable):
    """A context may say who asks, in a form that cannot be compared."""

    def __str__(self) -> str:
        prefix = f"{self.tool}: " if self.tool else ""
        options = "give the tool vary= to say what of its context counts, or shared=True if nothing does"
        return f"{prefix}{self.reason}; {options}"


class Injected(NamedTuple):
    """A value that a framework injects."""

    role: Role
    value: Any


class Apart(NamedTuple):
    """What keeps the calls of one tool apart, beside their arguments.

    Attributes:
        who: who asks, which recordings keep a digest of; None if that is the same for all.
        where: what is asked: a server, a session, a version. It may mean nothing to another process.
    """

    who: Any
    where: Any


# Contexts

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


def is_context(name: str, module: str) -> bool:
    """Whether a class of this name and module is a framework's context."""
    return name in CONTEXTS and any(f"{module}.".startswith(f"{package}.") for package in CONTEXTS[name][1])


@lru_cache(maxsize=256)
def _module_of_context(kind: Any) -> str | None:
    """The module of the framework's class that this one is, or derives from."""
    found = (base.__module__ for base in kind.__mro__ if is_context(base.__name__, base.__module__))
    return next(found, None)


_PLACES: Final[tuple[tuple[tuple[str, ...], bool], ...]] = (
    (("deps",), True),
    (("context",), True),
    (("dependencies",), True),
    (("user_id",), True),
    (("tenant_id",), True),
    (("client_id",), True),
    (("server_info", "user"), True),
    (("state",), False),
    (("session", "state"), False),
    (("session_state",), False),
    (("invocation_state",), False),
    (("metadata",), False),
    (("custom_metadata",), False),
)
"""Attributes of contexts that may say who asks: with everything plain in them, or with the fields named for someone."""

GETTERS: Final[dict[str, tuple[Role, tuple[str, ...]]]] = {
    "get_access_token": ("value", ("fastmcp.server.dependencies", "mcp.server.auth.middleware.auth_context")),
    "get_http_headers": ("headers", ("fastmcp.server.dependencies",)),
    "get_http_request": ("headers", ("fastmcp.server.dependencies",)),
    "get_context": ("object", ("fastmcp.server.dependencies",)),
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


# Headers

_TRANSPORT: Final = frozenset({
    "accept", "accept-encoding", "connection", "date", "host", "last-event-id", "mcp-method", "mcp-name",
    "mcp-protocol-version", "mcp-session-id", "te", "traceparent", "tracestate", "transfer-encoding", "user-agent",
    "x-request-id",
})  # fmt: skip
"""Headers that say how a request travels. Every other one may say who sends it."""


def identifying_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a request that may say who sends it, by their names in lower case."""
    named = {str(name).lower(): str(value) for name, value in headers.items()}
    return {name: named[name] for name in named if name not in _TRANSPORT and not name.startswith("content-")}


def _sent(request: Any) -> Any:
    """What a request says of its sender: headers, and the query of its URL."""
    headers = getattr(request, "headers", None)
    if isinstance(headers, Mapping):  # first: a request of Starlette's is a mapping, too, of the scope of a call
        query = getattr(getattr(request, "url", None), "query", "")
        return {"headers": identifying_headers(headers), "query": str(query)}
    return identifying_headers(request) if isinstance(request, Mapping) else request


# Names

_IDS: Final = frozenset({
    "checkpoint", "checkpoint_id", "checkpoint_map", "checkpoint_ns", "request_id", "run_id", "run_step", "span_id",
    "step", "thread_id", "tool_call_id", "trace_id",
})  # fmt: skip
_WHO: Final = re.compile(
    r"(?:^|_)(?:user|username|tenant|account|customer|organi[sz]ation|org|company|workspace|team|member|employee|patient|"
    r"principal|subject|identity|login|email|client_id|api_key|authorization|(?:access|auth|bearer|id)_token)"
    r"(?:_(?:id|name|key|uuid|email))?$"
)


@lru_cache(maxsize=4096)
def _named_for_a_run(name: str) -> bool:
    return name.startswith("__") or _words(name).removeprefix("langgraph_") in _IDS


@lru_cache(maxsize=4096)
def _named_for_someone(name: str) -> bool:
    if name.startswith("user:"):  # the state that ADK keeps for each user
        return True
    return _WHO.search(_words(name)) is not None


def _words(name: str) -> str:
    """A name as ``words_with_underscores``, however it is spelt."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower().strip("_")


# Values

_BUILTINS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_MOMENTS: Final = frozenset({date, datetime, time, timedelta, timezone})
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_NO_DATA: Final = (BuiltinFunctionType, FunctionType, MethodType, ModuleType, type)
_NOTHING: Final = object()
_MAX_NODES: Final = 10_000
_MAX_DEPTH: Final = 30
_MAX_STATE: Final = 256
"""Members of a mapping in a state. A larger one is data, in which nobody is named."""


@lru_cache(maxsize=1024)
def _leaf_of(kind: Any) -> Callable[[Any], Any] | None:
    """What makes builtins of plain values of a class, which are the same in every process; None of other classes."""
    if kind in _BUILTINS:
        return lambda value: value
    if kind in _MOMENTS:
        return lambda value: (kind.__name__, repr(value))
    if issubclass(kind, Enum):
        return lambda value: (full_name(kind), value._name_ or repr(value._value_))
    text = text_of_standard_value(kind)
    if text is not None:
        return lambda value: (kind.__name__, text(value) or repr(value))
    for base in (str, int, float, bytes):
        if issubclass(kind, base) and declared_names(kind) is None:
            return base.__str__ if base is str else base
    secret: Callable[[Any], Any] | None = getattr(kind, "get_secret_value", None)
    return str if secret is None and kind.__name__.lower().endswith("url") else secret


def _record(value: Any, kind: type) -> list[tuple[Any, Any]] | None:
    """Names and values of what is data by its class; None of anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if kind.__name__ == "State" and callable(getattr(kind, "to_dict", None)):  # of ADK
        return list(value.to_dict().items())
    names = declared_names(kind)
    if names is not None:
        found = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
        return found + [pair for pair in getattr(value, "__dict__", {}).items() if pair[0] not in names]
    if is_model(kind):
        found = list(value.__dict__.items())
        for state in PYDANTIC_STATE:
            found += (getattr(value, state, None) or {}).items()
        return found
    return list(vars(value).items()) if kind is SimpleNamespace else None


@lru_cache(maxsize=1024)
def _described(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The slots of a class, and its properties that are named for someone."""
    members = [(name, attribute) for base in kind.__mro__ for name, attribute in vars(base).items()]
    slots = [name for name, attribute in members if isinstance(attribute, MemberDescriptorType)]
    properties = [name for name, found in members if isinstance(found, property) and _named_for_someone(name)]
    return tuple(slots), tuple(properties)


def _attributes(value: Any, kind: Any, *, with_properties: bool) -> list[tuple[str, Any]]:
    """The attributes of an object that is no data by its class, and its properties that are named for someone."""
    slots, properties = _described(kind)
    read = [(name, _attribute(value, (name,))) for name in (*slots, *(properties if with_properties else ()))]
    return [*getattr(value, "__dict__", {}).items(), *(pair for pair in read if pair[1] is not _NOTHING)]


class _Fields:
    """The fields of all contexts of one call."""

    __slots__ = ("_depth", "_nodes", "_path", "_plain", "_skipped", "doubtful", "found", "is_named")

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []
        self.doubtful: str | None = None
        self.is_named = False  # whether a field that is named for someone has a value
        self._plain = self._skipped = self._nodes = self._depth = 0
        self._path: set[int] = set()

    def add(self, injected: Injected) -> None:
        role, value = injected
        if value is None:
            return
        match role:
            case "object" | "request":
                self._context(value, with_request=role == "request")
            case "config" if isinstance(value, Mapping):
                self._config(value)
            case "state":
                self._place("state", value, is_whole=False)
            case "value" | "config":
                self._place("value", value, is_whole=True)
            case "headers":
                self._place("headers", _sent(value), is_whole=True)

    def _context(self, context: Any, *, with_request: bool) -> None:
        kind: Any = type(context)
        module = _module_of_context(kind)
        if module is None:
            is_config = isinstance(context, Mapping) and "configurable" in context
            return self._config(context) if is_config else self._place("", context, is_whole=True)
        is_of_mcp = module.partition(".")[0] in ("fastmcp", "mcp")
        is_known = is_of_mcp
        for path, is_whole in _PLACES:
            found = _attribute(context, path)
            if found is not _NOTHING:
                is_known = True
                self._place(".".join(path), found, is_whole=is_whole)
        config = _attribute(context, ("config",))
        if isinstance(config, Mapping):
            self._config(config)
        if is_of_mcp:
            for one in got_by("get_access_token"):
                self.add(one)
            if with_request:
                request = _attribute(context, ("request_context", "request"))
                self._place("headers", None if request is _NOTHING else _sent(request), is_whole=True)
        if not is_known:
            self._place("", context, is_whole=True)
        return None

    def _config(self, config: Mapping[str, Any]) -> None:
        self._place("configurable", config.get("configurable"), is_whole=True)
        self._place("metadata", config.get("metadata"), is_whole=False)

    def _place(self, name: str, value: Any, *, is_whole: bool) -> None:
        """Take what says who asks of a value at a place that may say it."""
        if value is None:
            return
        self._plain = self._skipped = 0
        node = self._node(value, is_whole=is_whole, is_opened=True)
        if node is not _NOTHING:
            self.found.append((name, node))
        if is_whole and self._skipped and not (self._plain and _is_data(value)):
            self.doubtful = full_name(type(value))

    def _node(self, value: Any, *, is_whole: bool, is_opened: bool) -> Any:
        """What counts of a value, as builtins; `_NOTHING` if nothing does.

        Args:
            is_whole: whether all that is plain counts, or only fields that are named for someone.
            is_opened: whether an object that is no data by its class is looked into nevertheless.
        """
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            if is_whole:
                raise UnknownAsker(f"its context has more than {_MAX_NODES} fields")
            return _NOTHING
        kind: Any = type(value)
        leaf = _leaf_of(kind)
        if leaf is not None:
            self._plain += is_whole
            return leaf(value) if is_whole else _NOTHING
        if id(value) in self._path or self._depth >= _MAX_DEPTH:
            return _NOTHING
        self._path.add(id(value))
        self._depth += 1
        try:
            if isinstance(value, _SEQUENCES) and declared_names(kind) is None:
                return self._members(value) if is_whole else _NOTHING
            return self._named(value, kind, is_whole=is_whole, is_opened=is_opened)
        finally:
            self._depth -= 1
            self._path.discard(id(value))

    def _members(self, value: Iterable[Any]) -> Any:
        nodes = [self._node(one, is_whole=True, is_opened=False) for one in value]
        kept = [node for node in nodes if node is not _NOTHING]
        if not kept:
            return _NOTHING
        return ("set", *sorted(map(repr, kept))) if isinstance(value, set | frozenset) else tuple(kept)

    def _named(self, value: Any, kind: type, *, is_whole: bool, is_opened: bool) -> Any:
        items = _record(value, kind)
        is_record = items is not None
        if items is None:
            if isinstance(value, _NO_DATA) or (self._depth > 2 and not is_opened and not is_whole):
                self._skipped += 1
                return _NOTHING
            items = _attributes(value, kind, with_properties=is_opened)
            if not (is_opened and is_whole and items) or has_native_state(kind):
                self._skipped += 1
        elif not is_whole and len(items) > _MAX_STATE:
            return _NOTHING
        counts_all = is_whole and (is_record or is_opened)
        kept = []
        for name, item in items:
            is_text = isinstance(name, str)
            if is_text and _named_for_a_run(name):
                continue
            is_someone = is_text and _named_for_someone(name)
            if not is_record and not is_opened and not is_someone:
                continue  # a client: nothing inside of it but what says who
            node = self._node(item, is_whole=counts_all or is_someone, is_opened=is_someone)
            if node is _NOTHING:
                continue
            self.is_named |= is_someone and item is not None
            kept.append((name if is_text else f"key {self._key(name)!r}", node))
        kept.sort(key=_first)
        return kept or _NOTHING

    def _key(self, key: Any) -> Any:
        found = self._node(key, is_whole=True, is_opened=False) if isinstance(key, tuple) else _NOTHING
        kind: Any = type(key)
        leaf = _leaf_of(kind)
        return leaf(key) if leaf is not None else full_name(kind) if found is _NOTHING else found


_first: Final = itemgetter(0)


def _is_data(value: Any) -> bool:
    """Whether a value is data by its class: it says by itself what it consists of."""
    kind: Any = type(value)
    return _leaf_of(kind) is not None or isinstance(value, _SEQUENCES) or _record(value, kind) is not None


def _attribute(value: Any, path: tuple[str, ...]) -> Any:
    """What is found at a path; `_NOTHING` if it cannot be read here."""
    for name in path:
        try:
            value = getattr(value, name, _NOTHING)
        except Exception:  # noqa: BLE001 - a property of a framework, which may need a request
            return _NOTHING
        if value is _NOTHING:
            return value
    return value


def asker_in(contexts: Iterable[Injected]) -> str | None:
    """A digest of who asks: equal in every process for equal fields. None if the contexts say nothing about it.

    Args:
        contexts: what the framework has injected into the call.

    Raises:
        UnknownAsker: if something there may say who asks, and nothing of it can be compared.
    """
    fields = _Fields()
    try:
        for injected in contexts:
            fields.add(injected)
        image = repr(fields.found) if fields.found else None
    except UnknownAsker:
        raise
    except Exception as error:
        raise UnknownAsker(f"reading its context raised {type(error).__name__}") from error
    if fields.doubtful is not None and not fields.is_named:
        raise UnknownAsker(f"nothing in a {fields.doubtful} says who asks in a form that can be compared")
    return None if image is None else blake2b(image.encode(), digest_size=16).hexdigest()
