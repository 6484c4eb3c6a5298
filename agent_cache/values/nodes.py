"""What may stand at one place of a value, read from an annotation.

Builtin values describe themselves (`agent_cache.values.tagged`), so a node decides two things only: whether a type is
allowed here, and which class a record of fields belongs to. Members of a union are merged into one node: nothing is
ever tried out, and data cannot choose a class that the annotation does not name.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

from agent_cache.values.annotations import hints_of
from agent_cache.values.canonical import text_of_standard_value
from agent_cache.values.leaves import STANDARD, standard_type
from agent_cache.values.parts import is_model

__all__ = ["ANYTHING", "Fields", "Node", "Record", "node_of"]

_LEAVES: dict[Any, frozenset[type]] = {
    None: frozenset({type(None)}),
    type(None): frozenset({type(None)}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),  # the numeric tower of PEP 484, which runs of real tools lean on
    float: frozenset({float, int, bool}),
    complex: frozenset({complex, float, int, bool}),
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    bytearray: frozenset({bytearray}),
    datetime: frozenset({datetime}),
    date: frozenset({date, datetime}),
    time: frozenset({time}),
    timedelta: frozenset({timedelta}),
}
_LISTS: dict[Any, tuple[type, ...]] = {
    list: (list,),
    set: (set,),
    frozenset: (frozenset,),
    collections.abc.Sequence: (list, tuple),
    collections.abc.MutableSequence: (list,),
    collections.abc.Collection: (list, tuple, set, frozenset),
    collections.abc.Iterable: (list, tuple, set, frozenset),
    collections.abc.Set: (set, frozenset),
    collections.abc.MutableSet: (set,),
}
_MAPPINGS = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_QUALIFIERS = frozenset(
    getattr(typing, name)
    for name in ("ClassVar", "Final", "NotRequired", "ReadOnly", "Required")
    if hasattr(typing, name)
)

Bindings = Mapping[Any, Any]


class Record:
    """A class known by its declared fields. They are read at the first value, so classes may name each other."""

    __slots__ = ("_bound", "_nodes", "kind")

    def __init__(self, kind: type, bound: Bindings) -> None:
        self.kind = kind
        self._bound = bound
        self._nodes: dict[str, Node] | None = None

    @property
    def name(self) -> Hashable:
        """Equal for what is the same class of the same types."""
        return _name(self.kind, self._bound)

    @property
    def nodes(self) -> dict[str, Node]:
        """What may stand in each field whose type is declared."""
        if self._nodes is None:
            if is_model(self.kind):
                fields = self.kind.__pydantic_fields__  # type: ignore[attr-defined]
                hints = {name: field.annotation for name, field in fields.items()}
            else:
                hints = hints_of(self.kind)
            self._nodes = {name: node_of(hint, self._bound) for name, hint in hints.items()}
        return self._nodes


class Fields:
    """The declared keys of a TypedDict, or of several of which a value may be any."""

    __slots__ = ("_kinds", "_nodes", "_required")

    def __init__(self, kinds: tuple[tuple[Any, Bindings], ...]) -> None:
        self._kinds = kinds
        self._nodes: dict[str, Node] | None = None
        self._required: tuple[frozenset[str], ...] = ()

    def __or__(self, other: Fields) -> Fields:
        return Fields((*self._kinds, *other._kinds))

    @property
    def name(self) -> Hashable:
        """Equal for what are the same classes of the same types."""
        return frozenset(_name(kind, bound) for kind, bound in self._kinds)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The classes of the TypedDicts."""
        return tuple(kind for kind, _ in self._kinds)

    @property
    def nodes(self) -> dict[str, Node]:
        """What may stand under each key."""
        if self._nodes is None:
            nodes: dict[str, Node] = {}
            required = []
            for kind, bound in self._kinds:
                hints = hints_of(kind)
                required.append(frozenset(name for name, hint in hints.items() if _is_required(kind, name, hint)))
                for name, hint in hints.items():
                    node = node_of(hint, bound)
                    nodes[name] = nodes[name] | node if name in nodes else node
            self._required = tuple(required)
            self._nodes = nodes
        return self._nodes

    @property
    def required(self) -> tuple[frozenset[str], ...]:
        """Keys that each of the TypedDicts cannot do without."""
        return self._required if self.nodes else (frozenset(),)

    def admits(self, keys: Iterable[Any]) -> bool:
        """Whether one of the TypedDicts has all its required keys among these."""
        present = set(keys)
        return any(names <= present for names in self.required)


def _name(kind: Any, bound: Bindings) -> Hashable:
    try:
        return kind, frozenset(bound.items())
    except TypeError:  # a type with metadata that has no hash
        return id(kind)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """Python takes its word for it from `__total__` alone where annotations are text."""
    while (origin := typing.get_origin(hint)) in _QUALIFIERS or origin is typing.Annotated:
        if origin in {typing.Required, typing.NotRequired}:
            return origin is typing.Required
        hint = typing.get_args(hint)[0]
    return name in kind.__required_keys__


class Node:
    """What may stand at one place: any of everything that it lists."""

    __slots__ = ("anything", "fields", "fixed", "item", "key", "leaves", "lists", "literals", "records", "value")

    def __init__(
        self,
        *,
        anything: bool = False,
        leaves: frozenset[type] = frozenset(),
        literals: frozenset[tuple[type, Any]] = frozenset(),
        lists: frozenset[type] = frozenset(),
        item: Node | None = None,
        fixed: tuple[Node, ...] | None = None,
        key: Node | None = None,
        value: Node | None = None,
        fields: Fields | None = None,
        records: tuple[Record, ...] = (),
    ) -> None:
        self.anything = anything
        self.leaves = leaves
        self.literals = literals
        self.lists = lists
        self.item = item
        self.fixed = fixed
        self.key = key
        self.value = value
        self.fields = fields
        self.records = records

    def __or__(self, other: Node) -> Node:
        both = (self, other)
        anything = self.anything or other.anything
        fixed = other.fixed if tuple not in self.lists else self.fixed if tuple not in other.lists else None
        fields = self.fields | other.fields if self.fields and other.fields else self.fields or other.fields
        items = [node.item for node in both if node.item] + [place for node in both for place in node.fixed or ()]
        keys = [node.key for node in both if node.key]
        values = [node.value for node in both if node.value]
        if keys and fields:
            keys.append(_TEXT)
        if anything:  # beside what is named here, a container may hold anything
            fixed = None
            items, keys, values = ([*nodes, ANYTHING] if nodes or fields else nodes for nodes in (items, keys, values))
        return Node(
            anything=anything,
            leaves=self.leaves | other.leaves,
            literals=self.literals | other.literals,
            lists=self.lists | other.lists,
            item=_merged(items),
            fixed=fixed,
            key=_merged(keys),
            value=_merged(values),
            fields=fields,
            records=self.records + other.records,
        )

    def allows(self, value: Any, kind: type) -> bool:
        """Whether a value without parts may stand here."""
        if self.anything or kind in self.leaves:
            return True
        return bool(self.literals) and any(kind is literal and value == match for literal, match in self.literals)

    def record_of(self, kind: type) -> Record | None:
        """The record for instances of exactly this class."""
        return next((record for record in self.records if record.kind is kind), None)

    def record_named(self, name: object) -> Record | None:
        """The record that data calls by this name, unless two do."""
        found = [record for record in self.records if record.kind.__qualname__ == name]
        return found[0] if len({record.kind for record in found}) == 1 else None


_TEXT = Node(leaves=frozenset({str}))
ANYTHING = Node(anything=True)
"""No annotation, or `Any`: builtin values and those of the standard library, whichever they are."""


def _merged(nodes: list[Node]) -> Node | None:
    merged: Node | None = None
    for node in nodes:
        merged = node if merged is None or merged is node else merged | node
    return merged


def node_of(annotation: Any, bound: Bindings = types.MappingProxyType({}), open_: frozenset[int] = frozenset()) -> Node:
    """What an annotation allows. What is not understood allows nothing that has fields of its own.

    Args:
        bound: what stands for the type variables.
        open_: aliases that are being read; one that names itself allows anything there.
    """

    def inner(each: Any) -> Node:
        return node_of(each, bound, open_)

    if annotation is Any or annotation is object or isinstance(annotation, str | typing.ForwardRef):
        return ANYTHING
    if isinstance(annotation, typing.TypeVar):
        if annotation in bound:
            return node_of(bound[annotation], {}, open_)
        return inner(annotation.__bound__) if annotation.__bound__ is not None else ANYTHING
    if hasattr(annotation, "__supertype__"):  # NewType
        return inner(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        if id(annotation) in open_:
            return ANYTHING
        try:
            return node_of(annotation.__value__, bound, open_ | {id(annotation)})
        except NameError:
            return ANYTHING
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated or origin in _QUALIFIERS:
        return inner(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        return _merged([inner(each) for each in arguments]) or ANYTHING
    if origin is typing.Literal:
        return _literal(arguments)
    kind = origin or annotation
    if kind in _LEAVES:
        return Node(leaves=_LEAVES[kind])
    if kind is tuple:
        return _tuple(arguments, inner)
    if kind in _LISTS:
        return Node(lists=frozenset(_LISTS[kind]), item=inner(arguments[0]) if arguments else ANYTHING)
    if kind in _MAPPINGS:
        key, value = map(inner, arguments) if arguments else (ANYTHING, ANYTHING)
        return Node(key=key, value=value)
    return _class(kind, arguments, bound)


def _literal(values: tuple[Any, ...]) -> Node:
    members = tuple({type(value): Record(type(value), {}) for value in values if isinstance(value, Enum)}.values())
    return Node(
        literals=frozenset((type(value), value) for value in values if not isinstance(value, Enum)), records=members
    )


def _tuple(arguments: tuple[Any, ...], inner: Callable[[Any], Node]) -> Node:
    lists = frozenset({tuple})
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return Node(lists=lists, item=inner(arguments[0]))
    if arguments and not any(typing.get_origin(each) is typing.Unpack for each in arguments):
        return Node(lists=lists, fixed=tuple(map(inner, arguments)))
    return Node(lists=lists, item=ANYTHING)


def _class(kind: Any, arguments: tuple[Any, ...], bound: Bindings) -> Node:
    if not isinstance(kind, type):
        return Node()
    if text_of_standard_value(kind) is not None:
        return Node(leaves=frozenset({kind}))
    if kind.__name__ in {"Path", "PurePath"} and kind.__module__.partition(".")[0] == "pathlib":
        paths = {standard_type(name) for name in STANDARD if STANDARD[name] == "pathlib"}
        return Node(leaves=frozenset(path for path in paths if issubclass(path, kind)))
    parameters = getattr(kind, "__parameters__", ())
    if len(parameters) == len(arguments):
        bound = {each: bound.get(given, given) for each, given in zip(parameters, arguments, strict=True)}
    else:
        bound = {}
    if typing.is_typeddict(kind):
        return Node(fields=Fields(((kind, bound),)))
    return Node(records=(Record(kind, bound),))
