"""Who asks: what an injected context says of the caller of a tool.

Who asks is part of the key, and what cannot be told apart is not shared:

- Of what the user passes for a run everything counts that has values in it. Of what holds other things as well, states
  and metadata, the *fields named for someone* do.
- *Clients* are passed over: objects of other packages that hold more than values, functions, classes and modules. What
  a field named for someone has is none. Ids of runs are passed over beside anything that counts.
- The class of what is looked into counts as its content does.
- Whatever else there is, and a context of which nothing counts, makes the asker unknown: `UnknownAsker`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from agent_cache.core.contexts import Injected, Place, places_in, sent_by
from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import MAX_DEPTH, blake2b, full_name, has_native_state
from agent_cache.values.contents import BUILTINS, FUNCTIONS, attributes_of, data_of, inside, is_own, shape_of

__all__ = ["Apart", "UnknownAsker", "asker_in", "fields_in"]


class UnknownAsker(Uncacheable):
    """A context may say who asks, in a form that cannot be compared."""

    def __str__(self) -> str:
        prefix = f"{self.tool}: " if self.tool else ""
        options = "give the tool vary= to say what of its context counts, or shared=True if nothing does"
        return f"{prefix}{self.reason}; {options}"


class Apart(NamedTuple):
    """What keeps the calls of one tool apart, beside their arguments.

    Attributes:
        who: who asks, which recordings keep a digest of; None if that is the same for all.
        where: what is asked: a server, a session, a version. It may mean nothing to another process.
    """

    who: Any
    where: Any


def asker_in(contexts: Iterable[Injected]) -> str | None:
    """A digest of who asks: equal in every process for equal fields. None if the contexts say nothing about it.

    Args:
        contexts: what the framework has injected into the call.

    Raises:
        UnknownAsker: if something there may say who asks, and cannot be compared.
    """
    found = _fields_of(contexts).found
    return blake2b(repr(found).encode(), digest_size=16).hexdigest() if found else None


def fields_in(contexts: Iterable[Injected]) -> str:
    """The names of the fields that count, and of those that do not, for `explain`.

    Raises:
        UnknownAsker: as `asker_in`.
    """
    fields = _fields_of(contexts)
    pairs = [pair for _, node in fields.found if isinstance(node, list) for pair in node]
    counted = [name for name, node in pairs if name != _CLASS and not _is_class(node)]
    counted += [place or "its value" for place, node in fields.found if not isinstance(node, list)]
    return f"{', '.join(counted) or 'nothing'}{'; not: ' if fields.passed else ''}{', '.join(fields.passed)}"


def _fields_of(contexts: Iterable[Injected]) -> _Fields:
    fields = _Fields()
    doubtful = None
    try:
        for injected in contexts:
            fields.doubtful, fields.is_named = None, False  # what one says of the asker settles nothing about another
            for place in places_in(injected):
                fields.add(place)
            doubtful = doubtful or (None if fields.is_named else fields.doubtful)
    except UnknownAsker:
        raise
    except Exception as error:
        raise UnknownAsker(f"reading its context raised {type(error).__name__}") from error
    if doubtful is not None:
        raise UnknownAsker(f"nothing in {doubtful} says who asks in a form that can be compared")
    return fields


def _is_class(node: Any) -> bool:
    return isinstance(node, list) and [name for name, _ in node] == [_CLASS]


def _unreadable(value: Any) -> UnknownAsker:
    return UnknownAsker(f" is a {full_name(type(value))}, which cannot be compared")


def _within(name: str, error: Uncacheable) -> UnknownAsker:
    """The same error, of a field around it."""
    return UnknownAsker(f"{name}{error.reason}" if error.reason[0] in " ." else f"{name}.{error.reason}")


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
def _meaning_of(name: str) -> str:
    """What a name may mean: an id of a ``run``, ``someone``, a ``session`` of someone or a connection; else nothing."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower().strip("_")
    if name.startswith("__pregel") or words.removeprefix("langgraph_") in _IDS:
        return "run"
    if not name.startswith("user:") and _NAMES.search(words) is None:  # the state that ADK keeps for each user
        return ""
    return "session" if words.endswith("session") else "someone"


def _is_named(name: str) -> bool:
    return _meaning_of(name) in ("someone", "session")


# The fields of a call

_NOTHING: Final = object()
_CLASS: Final = "(class)"
_MAX_FIELDS: Final = 10_000
_MAX_SMALL: Final = 256
"""Fields of a mapping in a state, and of an object of another package. What is larger is data in which nobody is named,
and a client."""


@lru_cache(maxsize=1024)
def _is_request(kind: Any) -> bool:
    return "Request" in kind.__name__ and not is_own(kind)


def _sent_with(request: Any) -> list[tuple[str, Any]]:
    """What a request says of its sender, with what a framework of the web has added to it."""
    around = {**(request if isinstance(request, Mapping) else {}), **vars(request)}
    added = ("COOKIES", "auth", "path_params", "session", "state", "user")
    return [*sent_by(request).items(), *((name, around[name]) for name in added if name in around)]


class _Fields:
    """The fields of all contexts of one call.

    What counts of a value is a *node*: builtins with one `repr` in every process, or `_NOTHING`. Of a *whole* value all
    counts, of another one the fields named for someone. An *opened* object is looked into though a package defines it.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []
        self.passed: list[str] = []  # the names of fields of which nothing counts
        self.doubtful: str | None = None
        self.is_named = False  # whether a field that is named for someone has a value
        self._values = self._clients = self._ids = self._nodes = 0
        self._limit = _MAX_FIELDS
        self._is_strict = False  # in an object of another package, which is a client if one is in it
        self._path: set[int] = set()

    def add(self, place: Place) -> None:
        """Take what says who asks of a value that may say it."""
        value, whole = place.value, place.is_whole
        kind: Any = type(value)
        if value is None:
            return
        self._values = self._clients = self._ids = 0
        try:
            node = self._node(value, whole=whole, opened=True)
        except Uncacheable as error:
            raise _within(place.name or "its context", error) from error.__cause__
        if node is not _NOTHING:
            self.found.append((place.name, node))
        is_empty = not self._values and (self._clients or (self._ids and not place.has_ids))
        if whole and (is_empty or (self._clients and not shape_of(kind).is_data and not _is_request(kind))):
            self.doubtful = f"{place.name or 'its context'}, a {full_name(kind)},"

    def _node(self, value: Any, *, whole: bool, opened: bool = False) -> Any:
        self._nodes += 1
        if not whole and type(value) in BUILTINS:
            return _NOTHING
        if self._nodes > self._limit or len(self._path) >= MAX_DEPTH:
            if whole:
                raise UnknownAsker(f" has more than {_MAX_FIELDS} fields, or {MAX_DEPTH} levels")
            return _NOTHING
        kind: Any = type(value)
        if kind in BUILTINS:
            self._values += 1
            return value
        if value.__class__ is not kind and isinstance(value.__class__, type):  # a proxy: what it stands for
            kind = value.__class__
            value = kind(value) if kind in BUILTINS else value
        shape = shape_of(kind)
        if shape.leaf is not None or id(value) in self._path:  # what is around it counts already
            self._values += whole
            if shape.leaf is None or not whole:
                return _NOTHING
            node = shape.leaf(value)
            return self._with_attributes((kind.__qualname__, node), value, kind) if is_own(kind) else node
        self._path.add(id(value))
        try:
            if shape.is_container:
                return self._members(value, kind, opened=opened) if whole else _NOTHING
            read = _sent_with if _is_request(kind) else shape.read
            if read is None:
                return self._object(value, kind, whole=whole, opened=opened)
            items = read(value)
            if not whole and len(items) > _MAX_SMALL:
                return _NOTHING
            self._values += whole and not items  # what is empty can be compared
            return self._pairs(items, kind, whole=whole)
        finally:
            self._path.discard(id(value))

    def _members(self, value: Any, kind: Any, *, opened: bool) -> Any:
        nodes = [self._node(one, whole=True, opened=opened) for one in value]
        self._values += not nodes
        kept = tuple(node for node in nodes if node is not _NOTHING)
        if kept and isinstance(value, Set):
            kept = ("set", *sorted(map(repr, kept)))
        return self._with_attributes(kept or _NOTHING, value, kind)

    def _with_attributes(self, node: Any, value: Any, kind: Any) -> Any:
        """The same with what an object of a class of the user's own has beside its value."""
        found = inside(value, kind) if is_own(kind) and not issubclass(kind, Enum) else None
        return (node, self._pairs(list(found.items()), kind, whole=True)) if found else node

    def _object(self, value: Any, kind: Any, *, whole: bool, opened: bool) -> Any:
        """What counts of an object that is no data by its class."""
        if isinstance(value, FUNCTIONS):
            self._clients += 1
            return _NOTHING
        if not opened and not is_own(kind):
            return self._of_another_package(value, kind, whole=whole)
        before, shape = self._values, shape_of(kind)
        items = attributes_of(value, kind, [name for name in shape.properties if _meaning_of(name) == "someone"])
        if not whole:
            items = [pair for pair in items if _is_named(pair[0])]
        node = self._pairs(items, kind, whole=whole)
        # Data may be behind descriptors, as in a row of a database, or behind what computes attributes.
        is_computed = shape.descriptors or (not items and shape.properties)
        is_lazy = hasattr(kind, "__getattr__") and all(one is None or isinstance(one, FUNCTIONS) for _, one in items)
        if whole and (is_lazy or (self._values == before and is_computed)):
            raise _unreadable(value)
        if not items or has_native_state(kind):
            self._client()
        return [(_CLASS, kind.__qualname__)] if node is _NOTHING and whole and is_own(kind) else node

    def _of_another_package(self, value: Any, kind: Any, *, whole: bool) -> Any:
        """All of an object that holds nothing but values; of a client, what it says of its user."""
        items, shape = attributes_of(value, kind), shape_of(kind)
        if whole and not items and shape.is_compared:
            raise _unreadable(value)
        if whole and items and (shape.is_compared or not shape.is_standard):
            before = self._values, self._ids, self.is_named
            outer = self._is_strict, self._nodes, self._limit
            self._is_strict, self._limit = True, min(self._limit, self._nodes + _MAX_SMALL)
            try:  # what may be a client first
                return self._pairs(sorted(items, key=lambda pair: shape_of(type(pair[1])).is_data), kind, whole=True)
            except Uncacheable:
                self._values, self._ids, self.is_named = before
            finally:
                self._is_strict, self._nodes, self._limit = outer
        self._client()
        texts = [pair for pair in items if pair[1] is not None and shape_of(type(pair[1])).leaf and _is_named(pair[0])]
        return self._pairs(texts, kind, whole=False)

    def _client(self) -> None:
        if self._is_strict:
            raise UnknownAsker(" is a client")
        self._clients += 1

    def _pairs(self, items: list[tuple[Any, Any]], kind: Any, *, whole: bool) -> Any:
        kept: list[tuple[str, Any]] = []
        for key, item in items:
            name = key if isinstance(key, str) else f"key {self._key(key)!r}"
            meaning, before, node = _meaning_of(name), self._values, _NOTHING
            if meaning == "run":
                self._ids += 1
                if shape_of(type(item)).read is not None and not name.startswith("__pregel"):
                    node = self._node(item, whole=False)  # no id, whatever its name
            else:
                try:
                    node = self._node(item, whole=whole or meaning != "", opened=meaning == "someone")
                    if meaning == "someone" and self._values == before:
                        raise _unreadable(item)
                except Uncacheable as error:
                    raise _within(name, error) from error.__cause__
            if node is not _NOTHING:
                self.is_named |= meaning != "" and item is not None
                kept.append((name, node))
            if len(self._path) == 1 and (node is _NOTHING or _is_class(node)):
                self.passed.append(name)
        if whole and kind is not dict and is_own(kind) and not issubclass(kind, tuple):  # the data of the class counts
            before, names = self._values, {name for name, _ in items}
            data = [(name, getattr(kind, name)) for name in data_of(kind) if name not in names]
            node = self._pairs(data, dict, whole=True)
            self._values = before  # it makes no object comparable
            kept += [] if node is _NOTHING else node
        if kept and not issubclass(kind, Mapping):
            kept.append((_CLASS, kind.__qualname__))
        return sorted(kept, key=itemgetter(0)) or _NOTHING

    def _key(self, key: Any) -> Any:
        found = self._node(key, whole=True)
        return full_name(type(key)) if found is _NOTHING else found
