"""The parameters of a tool, inspected once at decoration: which of them identify a call, and in what form.

Parameters that a framework fills in, run contexts and dependencies, are no arguments: of their values counts what says
who asks (`core.asker`). They are recognised by class name *and* defining package, where need be from the text of the
annotation, so that nothing is imported and nothing is evaluated. A class of the user's own that is called ``Context``
is an argument like any other.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import types
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from agent_cache.core.asker import Apart, UnknownAsker, asker_in
from agent_cache.core.contexts import (
    CONTEXTS,
    GETTERS,
    Injected,
    Role,
    getters_of,
    got_by,
    is_context,
    may_read_request,
)
from agent_cache.core.keys import Part, Uncacheable, key_part
from agent_cache.errors import ConfigurationError
from agent_cache.values.canonical import Default, serial_of

__all__ = [
    "OMITTED", "OMITTED_PART", "POSITIONAL", "JsonArguments", "Named", "Parameter", "Parameters", "default_part",
    "injected_role", "reads_request", "receiver_part", "takes_context",
]  # fmt: skip

# What a framework fills in

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
        try:
            text = hint if isinstance(hint, str) else hint.__forward_arg__
            return _role_in_tree(ast.parse(text.strip(), mode="eval").body, function)
        except (SyntaxError, ValueError):
            return None
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _first(_role_of_hint(member, function) for member in (hint.__origin__, *hint.__metadata__))
    if origin is typing.Union or origin is types.UnionType:
        return _first(_role_of_hint(member, function) for member in typing.get_args(hint))
    return _role_of_object(origin or hint)


def _first(roles: Iterable[Role | None]) -> Role | None:
    return next((role for role in roles if role is not None), None)


def _role_in_tree(node: ast.expr, function: Callable[..., Any]) -> Role | None:
    members: list[ast.expr]
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            members = [left, right]
        case ast.Subscript(value=value, slice=inner):
            is_around = ast.unparse(value).rpartition(".")[2] in ("Annotated", "Optional", "Union")
            members = [value] if not is_around else inner.elts if isinstance(inner, ast.Tuple) else [inner]
        case ast.Call(func=called):
            role = _role_in_tree(called, function)
            return "value" if role == "state" and (node.args or node.keywords) else role
        case ast.Constant(value=str(text)):
            return _role_of_hint(text, function)
        case ast.Name() | ast.Attribute():
            return _role_of_name(ast.unparse(node), function)
        case _:
            return None
    return _first(_role_in_tree(member, function) for member in members)


def _role_of_name(dotted: str, function: Callable[..., Any]) -> Role | None:
    """The role of what a name means where a function is defined. A module that is loaded tells what it names."""
    first, *attributes = dotted.split(".")
    scope = getattr(function, "__globals__", {})
    if first in scope or hasattr(builtins, first):
        found = scope.get(first)
        for attribute in attributes:
            found = getattr(found, attribute, None)
        return _role_of_object(found)
    module, _, name = ".".join((_imported_by(function).get(first, first), *attributes)).rpartition(".")
    if is_context(name, module):
        return CONTEXTS[name][0]
    return _role_of_object(vars(sys.modules[module]).get(name)) if module in sys.modules else None


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


# The parameters of one tool

POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LIKELY: Final = (str, int, bool, dict, list)


class Parameter(NamedTuple):
    """One parameter of a tool.

    Attributes:
        in_key: whether its value identifies the call. False if it is skipped, ignored or filled in by a framework.
        is_receiver: whether it is the ``self`` or ``cls`` of a method.
        is_sentinel: whether its default is an object without an identity, such as ``UNSET = object()``. That object
            itself is a constant of the key then.
        hint: ``"str"``, ``"int"``, ``"bool"``, ``"dict"`` or ``"list"`` if that is the annotation, so that the
            generated body tests the likely type first. The key depends on the value that is passed, not on the hint.
    """

    name: str
    kind: inspect._ParameterKind
    default: Any
    in_key: bool
    is_receiver: bool
    is_sentinel: bool
    hint: str

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    def part(self, value: Any) -> Part:
        """The component of the key for a value."""
        return receiver_part(value) if self.is_receiver else key_part(self.identity(value))

    def identity(self, value: Any) -> Any:
        """What identifies a value: the value itself, but for a default that has no identity."""
        return Default(value) if self.is_sentinel and value is self.default else value


def receiver_part(value: Any) -> Part:
    """The key of the object whose method is called: its declared fields if it is a value, else a serial number."""
    try:
        return key_part(value)
    except Uncacheable:
        return b"#%d" % serial_of(value)


def default_part(value: Any) -> Part:
    """The key of the default object of a parameter, where that is a sentinel."""
    return key_part(Default(value))


OMITTED: Final = object()
"""The default of what a caller may leave out for a decorator below to fill in."""

OMITTED_PART: Final = default_part(OMITTED)


class Parameters:
    """All parameters of a tool, in order.

    Attributes:
        is_positional: whether a call in its canonical spelling is one value for each name, in order.
        positional: the names of those that may be passed by position.
        surplus: the name of the parameter that takes surplus keywords, if there is one.
        owner: the qualified name of the class that a method was defined in; empty for any other function.
        contexts: the parameters that a framework fills in with what may say who asks, and what that is.
        getters: the functions by which the tool asks for such a context, names in `core.contexts.GETTERS`.
    """

    def __init__(
        self,
        all: tuple[Parameter, ...],  # noqa: A002 - the attribute's name
        signature: inspect.Signature,
        owner: str = "",
        contexts: Mapping[str, Role] | None = None,
        getters: tuple[str, ...] = (),
    ) -> None:
        self.all, self.signature, self.owner = all, signature, owner
        self.contexts: Mapping[str, Role] = contexts or {}
        self.getters = getters
        self.names = tuple(one.name for one in all)
        self.positional = tuple(one.name for one in all if one.kind in POSITIONAL)
        self.positional_only = tuple(one.name for one in all if one.kind is inspect.Parameter.POSITIONAL_ONLY)
        self.is_positional = len(self.positional) == len(signature.parameters)
        self.surplus = next((one.name for one in all if one.kind is inspect.Parameter.VAR_KEYWORD), None)

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        skip_args: int = 0,
        tool: str = "",
        ignore: Sequence[str] = (),
        *,
        signature: inspect.Signature | None = None,
        hinted: Any = None,
    ) -> Parameters:
        """Inspect the signature of a tool.

        Args:
            function: the tool.
            skip_args: how many leading positional parameters do not identify a call.
            tool: its name, for errors.
            ignore: names of others that do not. What such a context says of the asker does not count either.
            signature: by which it is called; None for the one that frameworks see.
            hinted: the function whose module its annotations are texts of, if that is another one.

        Raises:
            ConfigurationError: if there are fewer parameters than `skip_args`, or none of a name in `ignore`.
        """
        signature = signature or inspect.signature(function)
        every = signature.parameters
        positional = [name for name, one in every.items() if one.kind in POSITIONAL]
        if isinstance(skip_args, bool) or not isinstance(skip_args, int) or not 0 <= skip_args <= len(positional):
            raise ConfigurationError(
                f"{tool}: skip_args must be a number from 0 to {len(positional)}, the number of the tool's positional "
                f"parameters, got {skip_args!r}"
            )
        if unknown := [name for name in ignore if name not in every]:
            raise ConfigurationError(
                f"{tool}: ignore names {unknown[0]!r}, which is not a parameter of the tool. Its parameters are: "
                f"{', '.join(every) or 'none'}"
            )
        roles = {name: injected_role(one.annotation, one.default, hinted or function) for name, one in every.items()}
        left_out = {*positional[:skip_args], *ignore, *(name for name, role in roles.items() if role is not None)}
        owner = getattr(function, "__qualname__", "").rpartition(".")[0]
        receiver = positional[0] if positional and owner and not owner.endswith("<locals>") else ""
        is_method = receiver in ("self", "cls", "mcs")
        found = [
            Parameter(
                name, one.kind, one.default, name not in left_out, is_method and name == receiver,
                _is_sentinel(one.default), _hint(one.annotation),
            )
            for name, one in every.items()
        ]  # fmt: skip
        contexts = {
            name: "request" if role == "object" and may_read_request(function, name) else role
            for name, role in roles.items()
            if role not in (None, "none") and name not in ignore
        }
        return cls(tuple(found), signature, owner if is_method else "", contexts, getters_of(function))

    @property
    def shown(self) -> Parameters:
        """Those that frameworks see, for recordings."""
        return self

    @property
    def may_say_who_asks(self) -> bool:
        """Whether a call gets anything from a framework that may say who asks."""
        return bool(self.contexts or self.getters)

    def all_injected(self, arguments: Mapping[str, Any]) -> tuple[Injected, ...]:
        """What a framework has injected into a call, or gives the tool for the asking."""
        taken = [Injected(role, arguments[name]) for name, role in self.contexts.items()]
        return (*taken, *(one for getter in self.getters for one in got_by(getter)))

    def varied(self, arguments: Mapping[str, Any]) -> Any:  # noqa: ARG002 - for `JsonArguments`
        """What a caller by name says of who asks; None without."""
        return None

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        """A digest of who asks, by the contexts of a call; None if they say nothing about it.

        Raises:
            UnknownAsker: as `asker_in`.
        """
        return asker_in(self.all_injected(arguments))

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter names and values of a call in its canonical spelling."""
        return dict(zip(self.names, args, strict=True)) if self.is_positional else self.bind(args, kwargs)

    def recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same as recordings have them: by the names of `shown`, with defaults."""
        return self.named(args, kwargs)

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The spelling of a call that functions of the user are given."""
        return args, kwargs

    def for_functions(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameter names and values that functions of the user are given."""
        return arguments

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, with_defaults: bool = True) -> dict[str, Any]:
        """Parameter names and values of a call, with defaults. The generated body gets the same by being called.

        Raises:
            TypeError: as the tool itself would.
        """
        surplus: dict[str, Any] = {}
        if self.surplus is not None:  # Signature.bind of Python 3.11 refuses the name of a positional-only parameter
            surplus = {name: kwargs[name] for name in self.positional_only if name in kwargs}
        bound = self.signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in surplus})
        if with_defaults:
            bound.apply_defaults()
        if surplus and self.surplus is not None:
            bound.arguments[self.surplus] = bound.arguments.get(self.surplus, {}) | surplus
        return bound.arguments

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The same parameter names and values, with the defaults of those that are not there."""
        bound = inspect.BoundArguments(self.signature, OrderedDict(arguments))
        bound.apply_defaults()
        return bound.arguments

    def has_receiver(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tool: object) -> bool:
        """Whether a call of a method is given the object whose method it is: an instance or subclass of its class.

        The class is known by its qualified name, because a class decorator may have replaced the first one
        (``dataclass(slots=True)``). A class of another name may have borrowed the method: it has an attribute that is
        marked as this `tool`.
        """
        receiver = self.all[0].name
        value = args[0] if args else kwargs.get(receiver)
        kinds = (value.__class__,) if receiver == "self" else (value.__class__, value)
        bases = [base for kind in kinds for base in getattr(kind, "__mro__", ())]
        members = [member for base in bases for member in list(vars(base).values())]
        functions = [member.__func__ if type(member) is classmethod else member for member in members]
        return any(base.__qualname__ == self.owner for base in bases) or any(
            type(one) is types.FunctionType and vars(one).get("__agent_cache__") is tool for one in functions
        )

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The canonical spelling of a call: keyword-only and surplus keywords by name, all others by position."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.all:
            value = arguments[parameter.name]
            if parameter.kind in POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                kwargs.update(value)
        return tuple(args), kwargs

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The names and values that identify a call."""
        return [
            (one.name, one.identity(arguments[one.name])) for one in self.all if one.in_key and one.name in arguments
        ]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        """The key of a call: the part of its one argument, or a tuple of several parts.

        Raises:
            Uncacheable: if an argument has no identity.
        """
        parts = tuple(
            one.part(arguments[one.name]) if one.name in arguments else OMITTED_PART for one in self.all if one.in_key
        )
        return parts[0] if len(parts) == 1 else parts


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function gets anything from its framework that may say who asks; True if that cannot be known."""
    parameters = _readable(function)
    return parameters is None or parameters.may_say_who_asks


def reads_request(function: Callable[..., Any]) -> bool:
    """Whether a tool of a server may read the request of its client: its headers, or what a dependency makes of it."""
    parameters = _readable(function)
    return (
        parameters is None
        or any(GETTERS[one][0] in ("headers", "request") for one in parameters.getters)
        or any(role in ("headers", "request", "value") for role in parameters.contexts.values())
    )


def _readable(function: Callable[..., Any]) -> Parameters | None:
    try:
        return Parameters.of(function)
    except (TypeError, ValueError):  # a builtin
        return None


def _is_sentinel(default: Any) -> bool:
    try:
        key_part(default)
    except Uncacheable:
        return Default.may_stand_for(default)
    return False


def _hint(annotation: Any) -> str:
    kind = typing.get_origin(annotation) or annotation
    text = annotation.partition("[")[0] if isinstance(annotation, str) else ""
    return next((one.__name__ for one in _LIKELY if kind is one or text == one.__name__), "")


# The arguments of a tool that is known by name


class Named(dict[str, Any]):
    """The arguments that a caller has passed, of those that there may be.

    Attributes:
        vary: what else identifies the call, None without. An `UnknownAsker` if that cannot be told.
        is_read: whether one that is not there is None to a template, which stands for the whole root then. To a write,
            None names nothing below the root, and an argument that is not there may name anything.
    """

    __slots__ = ("is_read", "vary")

    def __init__(self, arguments: Mapping[str, Any], vary: Any = None, *, is_read: bool = True) -> None:
        super().__init__(arguments)
        self.vary = vary
        self.is_read = is_read

    def __missing__(self, name: str) -> None:
        if not self.is_read:
            raise KeyError(name)


def _known_by_name(run: Any, vary: Any = None, /, **arguments: Any) -> None:
    """The signature of every tool that is known by name."""


class JsonArguments(Parameters):
    """The parameters of a tool that is known by name: whatever names there are in the JSON object that it is given.

    A call has two positional arguments that no template sees: the function that runs the tool, and what the calls of
    the tool vary by. Arguments that are absent differ from those that are null.

    Args:
        is_read: whether the tool reads.
        form: what its answers are to its callers, where others call the same tool and get others; None without.
    """

    def __init__(self, *, is_read: bool, form: str | None = None) -> None:
        super().__init__((), inspect.signature(_known_by_name))
        self._is_read, self._form = is_read, form

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return Named(kwargs, args[1] if len(args) > 1 else None, is_read=self._is_read)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, with_defaults: bool = True) -> dict[str, Any]:  # noqa: ARG002 - as Parameters has it
        return self.named(args, kwargs)

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (None, getattr(arguments, "vary", None)), dict(arguments)

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        vary = getattr(arguments, "vary", None)
        vary = [vary.who, vary.where] if type(vary) is Apart else None if type(vary) is UnknownAsker else vary
        others = ("vary", vary), ("form", self._form)
        return [("arguments", dict(arguments)), *((name, one) for name, one in others if one is not None)]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        return self.key_of(key_part(dict(arguments)), getattr(arguments, "vary", None), self._form)

    def varied(self, arguments: Mapping[str, Any]) -> Any:
        vary = getattr(arguments, "vary", None)
        if type(vary) is UnknownAsker:
            raise vary
        return vary.who if type(vary) is Apart else vary

    @staticmethod
    def key_of(part: Part, vary: Any, form: str | None) -> Part:
        """The key of a call by that of its arguments, what else identifies it, and the form of its answers."""
        if vary is not None:  # lists have aliases
            part = key_part([vary.who, vary.where] if type(vary) is Apart else vary), part
        return part if form is None else (form, part)
