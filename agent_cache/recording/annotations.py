"""Annotations as nodes: what may stand at each place of a value.

A node decides two things only, as builtin values describe themselves in data (`recording.tagged`): whether a
type is allowed at its place, and to which class an object belongs. Members of a union are merged into one node: nothing
is ever tried out, and data cannot choose a class that the annotation does not name.

A name in an annotation that means nothing at run time counts as `Any`.
"""

from __future__ import annotations

import collections
import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

from agent_cache.values.canonical import STANDARD, is_model, text_of_standard_value
from agent_cache.values.typed import Returns, hints_of

__all__ = ["ANYTHING", "DICTS", "Node", "Record", "annotation_of_chunks", "is_positional", "node_of", "standard_type"]


DICTS: frozenset[type] = frozenset({dict, collections.Counter, collections.OrderedDict, collections.defaultdict})
"""The types of dicts that come back as themselves."""

Bindings = Mapping[Any, Any]
"""Types that stand for type variables. Under `Any`, the classes that may also stand where anything may."""


_STREAMS = frozenset(
    getattr(collections.abc, name)
    for name in ("AsyncGenerator", "AsyncIterable", "AsyncIterator", "Generator", "Iterable", "Iterator")
)


def annotation_of_chunks(annotation: Any) -> Any:
    """The annotation of the chunks of what is annotated as a stream; `Any` if it tells nothing of them.

    A stream is an iterator or a class of which objects are iterated over, such as ``AsyncStream[Chunk]`` of OpenAI's
    client. Its methods are annotated as ``Answer | AsyncStream[Chunk]``: what is no stream does not count.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return annotation_of_chunks(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        found = [each for member in arguments if (each := annotation_of_chunks(member)) is not Any]
        return typing.Union[tuple(found)] if found else Any  # noqa: UP007 - there is no other way to make one of a list
    kind = origin or annotation
    if kind in _STREAMS:
        return arguments[0] if arguments else Any
    for name in ("__anext__", "__next__", "__aiter__"):
        method = getattr(kind, name, None)
        if inspect.isfunction(method):
            hint = Returns(method).resolve()
            chunks = annotation_of_chunks(hint) if name == "__aiter__" else hint
            return _with_types(chunks, dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False)))
    return Any


def _with_types(annotation: Any, bound: Bindings) -> Any:
    """An annotation with types in place of its type variables."""
    if isinstance(annotation, typing.TypeVar):
        return bound.get(annotation, Any)
    parameters = getattr(annotation, "__parameters__", ())
    return annotation[tuple(bound.get(each, Any) for each in parameters)] if parameters else annotation


# Nodes


class Record:
    """A class with declared fields: a TypedDict, or a class whose values are objects.

    The fields are read at the first value, so classes may name each other.
    """

    __slots__ = ("_bound", "_nodes", "_nodes_beside", "_required", "kind")

    def __init__(self, kind: Any, bound: Bindings) -> None:
        self.kind = kind
        self._bound = bound
        self._nodes: dict[str, Node] | None = None
        self._nodes_beside: dict[str, Node] | None = None
        self._required: frozenset[str] | None = None

    @property
    def identity(self) -> Hashable:
        """Equal for the same class of the same types."""
        try:
            return self.kind, frozenset(self._bound.items())
        except TypeError:  # a type with metadata that has no hash
            return id(self.kind)

    @property
    def nodes(self) -> dict[str, Node]:
        """What may stand in each field whose type is declared."""
        if self._nodes is None:
            if is_model(self.kind):
                self._nodes = _nodes_of_model(self.kind, self._bound)
            else:
                self._nodes = {name: node_of(hint, self._bound) for name, hint in hints_of(self.kind).items()}
        return self._nodes

    @property
    def nodes_beside(self) -> dict[str, Node]:
        """What may stand in what a model of pydantic's has beside its fields: private attributes and extra fields."""
        if self._nodes_beside is None:
            fields = self.nodes
            self._nodes_beside = {
                name: node_of(hint, self._bound) for name, hint in hints_of(self.kind).items() if name not in fields
            }
        return self._nodes_beside

    @property
    def required(self) -> frozenset[str]:
        """Keys that a TypedDict cannot do without."""
        if self._required is None:
            hints = hints_of(self.kind).items()
            self._required = frozenset(name for name, hint in hints if _is_required(self.kind, name, hint))
        return self._required


def _nodes_of_model(kind: Any, bound: Bindings) -> dict[str, Node]:
    """What may stand in the fields of a model of pydantic's.

    One whose class makes its objects without validation, as those of OpenAI's and Anthropic's clients do, holds
    whatever the server sent. It has a `model_construct` of its own.
    """
    nodes = {name: node_of(field.annotation, bound) for name, field in kind.__pydantic_fields__.items()}
    base = sys.modules["pydantic"].BaseModel
    if kind.model_construct.__func__ is base.model_construct.__func__:
        return nodes
    return {name: node | _anything(bound) for name, node in nodes.items()}


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """Python itself goes by `__total__` alone where annotations are text."""
    while (origin := typing.get_origin(hint)) in _QUALIFIERS or origin is typing.Annotated:
        if origin in {typing.Required, typing.NotRequired}:
            return origin is typing.Required
        hint = typing.get_args(hint)[0]
    return name in kind.__required_keys__


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """What may stand at one place: any of everything that it lists.

    Attributes:
        anything: builtin values and those of the standard library, whichever they are.
        leaves: types without parts.
        literals: values, each with its type.
        lists: types of lists, tuples and sets.
        item: what may be in these.
        fixed: what may be at each position of a tuple instead.
        mappings: types of dicts, of `DICTS`.
        key, value: what may be in these.
        dicts: the TypedDicts that a dict may be.
        records: the classes that an object may be of.
    """

    anything: bool = False
    leaves: frozenset[type] = frozenset()
    literals: frozenset[tuple[type, Any]] = frozenset()
    lists: frozenset[type] = frozenset()
    item: Node | None = None
    fixed: tuple[Node, ...] | None = None
    mappings: frozenset[type] = frozenset()
    key: Node | None = None
    value: Node | None = None
    dicts: tuple[Record, ...] = ()
    records: tuple[Record, ...] = ()
    _named_values: dict[str, Node] | None = None

    def __or__(self, other: Node) -> Node:
        both = (self, other)
        anything = self.anything or other.anything
        fixed = other.fixed if tuple not in self.lists else self.fixed if tuple not in other.lists else None
        dicts = self.dicts + other.dicts
        items = [node.item for node in both if node.item] + [place for node in both for place in node.fixed or ()]
        keys = [node.key for node in both if node.key]
        values = [node.value for node in both if node.value]
        if keys and dicts:
            keys.append(_TEXT)
        if anything:  # beside what is named here, a container may hold anything
            fixed = None
            items, keys, values = ([*nodes, ANYTHING] if nodes or dicts else nodes for nodes in (items, keys, values))
        return Node(
            anything=anything,
            leaves=self.leaves | other.leaves,
            literals=self.literals | other.literals,
            lists=self.lists | other.lists,
            item=_merged(items),
            fixed=fixed,
            mappings=self.mappings | other.mappings,
            key=_merged(keys),
            value=_merged(values),
            dicts=dicts,
            records=self.records + other.records,
        )

    def allows(self, value: Any, kind: type) -> bool:
        """Whether a value without parts may stand here."""
        if self.anything or kind in self.leaves:
            return True
        return bool(self.literals) and any(kind is literal and value == match for literal, match in self.literals)

    def record_named(self, name: object) -> Record | None:
        """The record that data calls by this name, unless two do."""
        found = [record for record in self.records if record.kind.__qualname__ == name]
        return found[0] if len({record.kind for record in found}) == 1 else None

    @property
    def named_values(self) -> dict[str, Node]:
        """What may stand under each key that a TypedDict names."""
        if self._named_values is None:
            nodes: dict[str, Node] = {}
            for record in self.dicts:
                for name, node in record.nodes.items():
                    nodes[name] = nodes[name] | node if name in nodes else node
            self._named_values = nodes
        return self._named_values

    def admits(self, keys: Collection[Any]) -> bool:
        """Whether one of the TypedDicts has all its required keys among these."""
        return any(record.required.issubset(keys) for record in self.dicts)


ANYTHING = Node(anything=True)
"""No annotation, or `Any`."""

_TEXT = Node(leaves=frozenset({str}))


def _merged(nodes: list[Node]) -> Node | None:
    merged: Node | None = None
    for node in nodes:
        merged = node if merged is None or merged is node else merged | node
    return merged


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
_MAPPINGS: dict[Any, frozenset[type]] = {
    **dict.fromkeys((dict, collections.abc.Mapping, collections.abc.MutableMapping), DICTS),
    **{kind: frozenset({kind}) for kind in DICTS if kind is not dict},
}
_QUALIFIERS = frozenset(
    getattr(typing, name)
    for name in ("ClassVar", "Final", "NotRequired", "ReadOnly", "Required")
    if hasattr(typing, name)
)


def node_of(annotation: Any, bound: Bindings = types.MappingProxyType({}), open_: frozenset[int] = frozenset()) -> Node:
    """Read an annotation. One that is not understood allows nothing that has fields of its own.

    Args:
        bound: see `Bindings`.
        open_: aliases that are being read; one that names itself allows anything there.
    """

    def inner(each: Any) -> Node:
        return node_of(each, bound, open_)

    if annotation is Any or annotation is object or isinstance(annotation, str | typing.ForwardRef):
        return _anything(bound)
    if isinstance(annotation, typing.TypeVar):
        if annotation in bound:
            return node_of(bound[annotation], _beside(bound), open_)
        return inner(annotation.__bound__) if annotation.__bound__ is not None else _anything(bound)
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
        members = dict.fromkeys(type(value) for value in arguments if isinstance(value, Enum))
        return Node(
            literals=frozenset((type(value), value) for value in arguments if not isinstance(value, Enum)),
            records=tuple(Record(kind, {}) for kind in members),
        )
    kind = origin or annotation
    if kind in _LEAVES:
        return Node(leaves=_LEAVES[kind])
    if kind is tuple:
        lists = frozenset({tuple})
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return Node(lists=lists, item=inner(arguments[0]))
        if arguments and not any(typing.get_origin(each) is typing.Unpack for each in arguments):
            return Node(lists=lists, fixed=tuple(map(inner, arguments)))
        return Node(lists=lists, item=ANYTHING)
    if kind in _LISTS:
        return Node(lists=frozenset(_LISTS[kind]), item=inner(arguments[0]) if arguments else ANYTHING)
    if kind in _MAPPINGS:
        if kind is collections.Counter and arguments:
            arguments = (*arguments, int)
        key, value = map(inner, arguments) if arguments else (ANYTHING, ANYTHING)
        return Node(mappings=_MAPPINGS[kind], key=key, value=value)
    return _node_of_class(kind, arguments, bound)


def _beside(bound: Bindings) -> dict[Any, Any]:
    return {Any: bound[Any]} if Any in bound else {}


def _anything(bound: Bindings) -> Node:
    """Anything, and objects of the classes that are given beside the annotation."""
    return Node(anything=True, records=tuple(Record(kind, {}) for kind in bound[Any])) if Any in bound else ANYTHING


def _node_of_class(kind: Any, arguments: tuple[Any, ...], bound: Bindings) -> Node:
    if not isinstance(kind, type):
        return Node()
    if text_of_standard_value(kind) is not None:
        return Node(leaves=frozenset({kind}))
    if kind.__name__ in {"Path", "PurePath"} and kind.__module__.partition(".")[0] == "pathlib":
        paths = {standard_type(name) for name in STANDARD if STANDARD[name] == "pathlib"}
        return Node(leaves=frozenset(path for path in paths if issubclass(path, kind)))
    parameters = getattr(kind, "__parameters__", ())
    if len(parameters) == len(arguments):
        types_of = {each: bound.get(given, given) for each, given in zip(parameters, arguments, strict=True)}
    else:
        types_of = {}
    if typing.is_typeddict(kind):
        return Node(dicts=(Record(kind, types_of | _beside(bound)),))
    generic = getattr(kind, "__pydantic_generic_metadata__", None)
    if not generic or generic["origin"] is None:
        return Node(records=(Record(kind, types_of | _beside(bound)),))
    # A model of pydantic's that is `Answer[T]` is a class of its own. Clients make objects of `Answer` where they
    # promise others, because a class for each `T` would cost them memory.
    origin = generic["origin"]
    own = {each: bound[each] for each in generic["parameters"] if each in bound}
    given = [bound.get(each, each) if isinstance(each, typing.TypeVar) else each for each in generic["args"]]
    types_of = dict(zip(origin.__pydantic_generic_metadata__["parameters"], given, strict=False))
    return Node(records=(Record(kind, own | _beside(bound)), Record(origin, types_of | _beside(bound))))


def standard_type(name: str) -> type:
    """A type of `STANDARD`. Its module is loaded if it is not: what nobody uses costs nobody an import."""
    from importlib import import_module

    found: type = getattr(import_module(STANDARD[name]), name)
    return found


def is_positional(kind: Any) -> bool:
    """Whether its fields are written without their names: a NamedTuple, or a Struct of msgspec's that is a list."""
    if getattr(kind, "__struct_config__", None) is not None:
        return bool(kind.__struct_config__.array_like)
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
