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
    "POSITIONAL",
    "JsonArguments",
    "Named",
    "Parameter",
    "Parameters",
    "default_part",
    "injected_role",
    "reads_request",
    "receiver_part",
    "takes_context",
]


_DEPENDENCIES = frozenset({"docket", "fastapi", "fast_depends", "fastmcp", "mcp", "uncalled_for"})
_TRANSPARENT = frozenset({"Annotated", "Optional", "Union"})
_ROLES_OF_DEPENDENCIES: dict[str, Role] = {
    "_CurrentContext": "object",
    "_CurrentDocket": "none",
    "_CurrentFastMCP": "none",
    "_CurrentHeaders": "headers",
    "_CurrentRequest": "headers",
    "_CurrentWorker": "none",
    "_OptionalCurrentContext": "object",
    "InMemoryProgress": "none",
    "Progress": "none",
    "TaskLogger": "none",
    "_TaskLogger": "none",
}
"""Of FastMCP's dependencies, by their classes. Any other one provides a value."""


def injected_role(annotation: Any, default: Any, function: Callable[..., Any]) -> Role | None:
    """What a framework, and not the model, provides as the value of this parameter; None for an argument."""
    role = _role_of_dependency(default)
    if role is None and isinstance(annotation, str):
        return _role_in_text(annotation, function)
    return role if role is not None else _role_of_hint(annotation, function)


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function gets anything from its framework that may say who asks; True if that cannot be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return True
    roles = (injected_role(one.annotation, one.default, function) for one in parameters)
    return any(role not in (None, "none") for role in roles) or bool(getters_of(function))


def reads_request(function: Callable[..., Any]) -> bool:
    """Whether a tool of a server may read the request of its client: its headers, or what a dependency makes of it."""
    if any(GETTERS[one][0] in ("headers", "request") for one in getters_of(function)):
        return True
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return True
    roles = {one.name: injected_role(one.annotation, one.default, function) for one in parameters}
    return any(
        role in ("headers", "request", "value") or (role == "object" and may_read_request(function, name))
        for name, role in roles.items()
    )


def _role_of_dependency(value: Any) -> Role | None:
    """The role of ``Depends(f)``, as a default or in `Annotated`, or of the function that makes one."""
    kinds = [
        kind
        for kind in (*type(value).__mro__, value)
        if isinstance(getattr(kind, "__qualname__", None), str)
        and _package(getattr(kind, "__module__", None) or "") in _DEPENDENCIES
    ]
    if not any("Depend" in kind.__qualname__ for kind in kinds):
        return None
    return next(
        (_ROLES_OF_DEPENDENCIES[one.__name__] for one in kinds if one.__name__ in _ROLES_OF_DEPENDENCIES), "value"
    )


def _package(module: str) -> str:
    return module.partition(".")[0]


def _role_of_class(name: str, module: str) -> Role | None:
    return CONTEXTS[name][0] if is_context(name, module) else None


def _role_of_imported(name: str, module: str) -> Role | None:
    """The role of a name that is imported from a module. A module that is loaded tells what it names."""
    loaded = sys.modules.get(module)
    role = _role_of_class(name, module)
    return _role_of_object(vars(loaded).get(name)) if role is None and loaded is not None else role


def _first(roles: Iterable[Role | None]) -> Role | None:
    return next((role for role in roles if role is not None), None)


def _role_of_hint(hint: Any, function: Callable[..., Any]) -> Role | None:
    if isinstance(hint, str | typing.ForwardRef):
        return _role_in_text(hint if isinstance(hint, str) else hint.__forward_arg__, function)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        members: tuple[Any, ...] = (hint.__origin__, *hint.__metadata__)
    elif origin is typing.Union or origin is types.UnionType:
        members = typing.get_args(hint)
    else:
        return _role_of_object(origin or hint)
    return _first(_role_of_hint(member, function) for member in members)


def _role_of_object(kind: Any) -> Role | None:
    role = _role_of_dependency(kind)
    if role is not None:
        return role
    marker = None
    if not hasattr(kind, "__qualname__"):
        marker, kind = kind, type(kind)  # a marker instance, as in Annotated[str, InjectedState("x")]
    bases = getattr(kind, "__mro__", (kind,))
    role = _first(_role_of_class(base.__name__, base.__module__) for base in bases if hasattr(base, "__name__"))
    return "value" if role == "state" and getattr(marker, "field", None) is not None else role


def _role_in_text(text: str, function: Callable[..., Any]) -> Role | None:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    return _role_in_tree(tree, function)


def _role_in_tree(node: ast.expr, function: Callable[..., Any]) -> Role | None:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _first(_role_in_tree(one, function) for one in (left, right))
        case ast.Subscript(value=value, slice=inner):
            name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            if name in _TRANSPARENT:
                members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return _first(_role_in_tree(member, function) for member in members)
            return _role_in_tree(value, function)
        case ast.Call(func=called, args=args, keywords=keywords):
            role = _role_in_tree(called, function)
            return "value" if role == "state" and (args or keywords) else role
        case ast.Constant(value=str(text)):
            return _role_in_text(text, function)
        case ast.Name(id=name):
            return _role_of_name(name, function)
        case ast.Attribute():
            return _role_of_attribute(node, function)
    return None


def _role_of_name(name: str, function: Callable[..., Any]) -> Role | None:
    scope = getattr(function, "__globals__", {})
    if name in scope:
        return _role_of_object(scope[name])
    if hasattr(builtins, name):
        return None
    module, _, original = _imported_for_typing(function).get(name, "").rpartition(":")
    return _role_of_imported(original, module)


def _role_of_attribute(node: ast.Attribute, function: Callable[..., Any]) -> Role | None:
    base: ast.expr = node
    path: list[str] = []
    while isinstance(base, ast.Attribute):
        path.insert(0, base.attr)
        base = base.value
    if not isinstance(base, ast.Name):
        return None
    found = getattr(function, "__globals__", {}).get(base.id)
    if found is None:
        module = _imported_for_typing(function).get(base.id, base.id).replace(":", ".")
        return _role_of_imported(path[-1], ".".join((module, *path[:-1])))
    for attribute in path:
        found = getattr(found, attribute, None)
    return _role_of_object(found)


_MAX_SOURCES = 16
_imported: dict[str, tuple[list[str], dict[str, str]]] = {}
"""The lines of some modules, and the names that they import. To parse 400 tools takes 20 ms, at each of their hints."""


def _imported_for_typing(function: Callable[..., Any]) -> dict[str, str]:
    """The names that a function's module imports, also under `TYPE_CHECKING`: ``name -> module:original``, from its
    source.
    """
    module = sys.modules.get(function.__module__)
    try:
        lines, _ = inspect.findsource(module) if module is not None else ([], 0)
    except (OSError, TypeError):
        return {}
    known = _imported.get(function.__module__)
    if known is not None and known[0] is lines:  # `linecache` makes another list when the file has changed
        return known[1]
    if len(_imported) >= _MAX_SOURCES:
        _imported.clear()
    names = _imported_in(lines)
    _imported[function.__module__] = lines, names
    return names


def _imported_in(lines: list[str]) -> dict[str, str]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return {}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or _package(alias.name)] = alias.name if alias.asname else _package(alias.name)
    return names


# The parameters of one tool


_LIKELY: dict[str, type] = {"str": str, "int": int, "bool": bool, "dict": dict, "list": list}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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


class Parameters:
    """All parameters of a tool, in order.

    Attributes:
        is_positional: whether a call in its canonical spelling is one value for each name, in order.
        surplus: the name of the parameter that takes surplus keywords, if there is one.
        owner: the qualified name of the class that a method was defined in; empty for any other function.
        contexts: the parameters that a framework fills in with what may say who asks, and what that is.
        getters: the functions by which the tool asks for such a context, names in `core.contexts.GETTERS`.
    """

    __slots__ = (
        "all", "contexts", "getters", "is_positional", "names", "owner", "positional_only", "signature", "surplus",
    )  # fmt: skip

    def __init__(
        self,
        all: tuple[Parameter, ...],  # noqa: A002 - the attribute's name
        signature: inspect.Signature,
        names: tuple[str, ...],
        is_positional: bool,  # noqa: FBT001 - in the order of the attributes
        positional_only: tuple[str, ...],
        surplus: str | None,
        owner: str,
        contexts: Mapping[str, Role] | None = None,
        getters: tuple[str, ...] = (),
    ) -> None:
        self.all: Final = all
        self.contexts: Final = contexts or {}
        self.getters: Final = getters
        self.signature: Final = signature
        self.names: Final = names
        self.is_positional: Final = is_positional
        self.positional_only: Final = positional_only
        self.surplus: Final = surplus
        self.owner: Final = owner

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of those that may be passed by position."""
        return tuple(one.name for one in self.all if one.kind in POSITIONAL)

    @property
    def shown(self) -> Parameters:
        """Those that frameworks see, for recordings."""
        return self

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        skip_args: int,
        tool: str,
        ignore: Sequence[str] = (),
        *,
        signature: inspect.Signature | None = None,
        hinted: Any = None,
    ) -> Parameters:
        """Inspect the signature of a tool.

        Args:
            function: the tool.
            skip_args: how many leading positional parameters do not identify a call.
            ignore: names of others that do not. What such a context says of the asker does not count either.
            tool: its name, for errors.
            signature: by which it is called; None for the one that frameworks see.
            hinted: the function whose module its annotations are texts of, if that is another one.

        Raises:
            ConfigurationError: if `skip_args` is negative, or larger than the number of positional parameters; if
                `ignore` names what is no parameter.
        """
        signature = signature or inspect.signature(function)
        positional = [parameter for parameter in signature.parameters.values() if parameter.kind in POSITIONAL]
        if isinstance(skip_args, bool) or not isinstance(skip_args, int) or not 0 <= skip_args <= len(positional):
            raise ConfigurationError(
                f"{tool}: skip_args must be a number from 0 to {len(positional)}, the number of the tool's positional "
                f"parameters, got {skip_args!r}"
            )
        ignored = _ignored(ignore, signature, tool)
        skipped = {parameter.name for parameter in positional[:skip_args]} | ignored
        receiver = _receiver(function, positional)
        roles = {
            one.name: role
            for one in signature.parameters.values()
            if (role := injected_role(one.annotation, one.default, hinted or function)) is not None
        }
        return cls(
            tuple(
                Parameter(
                    name=parameter.name,
                    kind=parameter.kind,
                    default=parameter.default,
                    in_key=parameter.name not in skipped and parameter.name not in roles,
                    is_receiver=parameter.name == receiver,
                    is_sentinel=parameter.default is not inspect.Parameter.empty and _is_sentinel(parameter.default),
                    hint=_hint(parameter.annotation),
                )
                for parameter in signature.parameters.values()
            ),
            signature,
            tuple(signature.parameters),
            len(positional) == len(signature.parameters),
            tuple(one.name for one in positional if one.kind is inspect.Parameter.POSITIONAL_ONLY),
            next(
                (name for name, one in signature.parameters.items() if one.kind is inspect.Parameter.VAR_KEYWORD), None
            ),
            _owner(function) if receiver is not None else "",
            {
                name: "request" if role == "object" and may_read_request(function, name) else role
                for name, role in roles.items()
                if role != "none" and name not in ignored
            },
            getters_of(function),
        )

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
        if self.is_positional:
            return dict(zip(self.names, args, strict=True))
        return self.bind(args, kwargs)

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

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            with_defaults: whether parameters that were not passed are there.

        Raises:
            TypeError: as the tool itself would.
        """
        surplus: dict[str, Any] = {}
        if self.surplus is not None:
            # Signature.bind of Python 3.11 refuses a keyword with the name of a positional-only parameter, which the
            # interpreter accepts as a surplus keyword.
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
        receiver = self.all[0]
        if args:
            value = args[0]
        elif receiver.name in kwargs and receiver.name not in self.positional_only:
            value = kwargs[receiver.name]
        else:
            return False
        kinds = (value.__class__, value) if receiver.name != "self" else (value.__class__,)
        bases = [base for kind in kinds for base in getattr(kind, "__mro__", ())]
        if any(base.__qualname__ == self.owner for base in bases):
            return True
        members = [member for base in bases for member in list(vars(base).values())]
        functions = [member.__func__ if type(member) is classmethod else member for member in members]
        return any(type(one) is types.FunctionType and vars(one).get("__agent_cache__") is tool for one in functions)

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
        return [(one.name, one.identity(arguments[one.name])) for one in self.all if one.in_key]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        """The key of a call: the part of its one argument, or a tuple of several parts.

        Raises:
            Uncacheable: if an argument has no identity.
        """
        parts = tuple(parameter.part(arguments[parameter.name]) for parameter in self.all if parameter.in_key)
        return parts[0] if len(parts) == 1 else parts


class Named(dict[str, Any]):
    """The arguments of a tool that is known by name.

    Attributes:
        vary: what else identifies the call, None without. An `UnknownAsker` if that cannot be told.
        is_read: whether one that is not there is None to a template, which stands for the whole root then. To a write,
            None names nothing below the root, and an argument that is not there may name anything.
    """

    __slots__ = ("is_read", "vary")

    def __init__(self, arguments: Mapping[str, Any], vary: Any, *, is_read: bool = True) -> None:
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

    __slots__ = ("_form", "_is_read")

    def __init__(self, *, is_read: bool, form: str | None = None) -> None:
        super().__init__((), inspect.signature(_known_by_name), (), False, (), None, "")  # noqa: FBT003 - as Parameters has them
        self._is_read = is_read
        self._form = form

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
        if type(vary) is Apart:
            vary = [vary.who, vary.where]
        elif type(vary) is UnknownAsker:
            vary = None
        others = {"vary": vary, "form": self._form}
        return [("arguments", dict(arguments)), *((name, one) for name, one in others.items() if one is not None)]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        vary = getattr(arguments, "vary", None)
        return self.key_of(key_part(dict(arguments)), vary, self._form)

    def varied(self, arguments: Mapping[str, Any]) -> Any:
        vary = getattr(arguments, "vary", None)
        if type(vary) is UnknownAsker:
            raise vary
        return vary.who if type(vary) is Apart else vary

    @staticmethod
    def key_of(part: Part, vary: Any, form: str | None) -> Part:
        """The key of a call.

        Args:
            part: that of its arguments.
            vary: what else identifies it, None without.
            form: as for the class.
        """
        if vary is not None:  # lists have aliases
            part = key_part([vary.who, vary.where] if type(vary) is Apart else vary), part
        return part if form is None else (form, part)


def _ignored(names: Sequence[str], signature: inspect.Signature, tool: str) -> set[str]:
    for name in names:
        if name not in signature.parameters:
            raise ConfigurationError(
                f"{tool}: ignore names {name!r}, which is not a parameter of the tool. Its parameters are: "
                + (", ".join(signature.parameters) or "none")
            )
    return set(names)


def receiver_part(value: Any) -> Part:
    """The key of the object whose method is called: its declared fields if it is a value, else a serial number."""
    try:
        return key_part(value)
    except Uncacheable:
        return b"#%d" % serial_of(value)


def default_part(value: Any) -> Part:
    """The key of the default object of a parameter, where that is a sentinel."""
    return key_part(Default(value))


def _is_sentinel(default: Any) -> bool:
    try:
        key_part(default)
    except Uncacheable:
        return Default.may_stand_for(default)
    return False


def _receiver(function: Callable[..., Any], positional: list[inspect.Parameter]) -> str | None:
    """The name of the ``self`` or ``cls`` parameter, if the function was defined in a class body."""
    owner = _owner(function)
    if not owner or owner.endswith("<locals>") or not positional:
        return None
    first = positional[0].name
    return first if first in {"self", "cls", "mcs"} else None


def _owner(function: Callable[..., Any]) -> str:
    owner: str = getattr(function, "__qualname__", "").rpartition(".")[0]
    return owner


def _hint(annotation: Any) -> str:
    if isinstance(annotation, str):
        text = annotation.partition("[")[0]
        return text if text in _LIKELY else ""
    kind = typing.get_origin(annotation) or annotation
    return kind.__name__ if kind in _LIKELY.values() else ""
