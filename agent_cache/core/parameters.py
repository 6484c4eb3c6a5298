"""The parameters of a tool, inspected once at decoration: which of them identify a call, and in what form.

Parameters that a framework fills in are no arguments: of their values counts what says who asks (`core.asker`).

Above a decorator with `functools.wraps`, `inspect.signature` shows the signature of the function inside. Where that
decorator takes ``*args`` or ``**kwargs``, it may inject an argument, or fill in one that was left out. So it gets
exactly what the caller has passed (`PassedOn`), while keys and tags name the arguments as the shown signature does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from agent_cache.core.asker import Apart, Injected, Role, UnknownAsker, asker_in, getters_of, injected_role, meaning_of
from agent_cache.core.keys import PLAIN, Part, Uncacheable, key_part
from agent_cache.errors import ConfigurationError
from agent_cache.values.canonical import MISSING, attributes_of, has_no_content, is_sentinel, serial_of

__all__ = [
    "DEFAULT_PART", "POSITIONAL", "JsonArguments", "Named", "Parameter", "Parameters", "PassedOn", "are_one_tool",
    "location_of", "name_of", "parameters_of", "receiver_part", "takes_context",
]  # fmt: skip

POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Parameter(NamedTuple):
    """One parameter of a tool."""

    name: str
    kind: inspect._ParameterKind
    default: Any
    in_key: bool  # whether it identifies the call: it is not skipped, ignored or filled in by a framework
    is_receiver: bool  # whether it is the ``self`` or ``cls`` of a method
    is_sentinel: bool  # whether its default is an object such as ``UNSET = object()``, a constant of the key then
    hint: str  # the name of one of `_LIKELY` if that is the annotation, so that the generated body tests it first

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    def part(self, value: Any) -> Part:
        """The component of the key for a value."""
        return receiver_part(value) if self.is_receiver else key_part(self.identity(value))

    def identity(self, value: Any) -> Any:
        """What identifies a value: the value itself, but for a default that has no identity."""
        return MISSING if self.is_sentinel and value is self.default else value


def bound_in(function: Any) -> dict[str, Any]:
    """What a function, or one that it wraps, was made around, by name: the variables of its closure, the arguments of a
    `functools.partial`, and the attributes of a ``self`` among these.
    """
    found: dict[str, Any] = {}
    while function is not None:
        if isinstance(function, functools.partial):
            names = inspect.signature(function.func).parameters
            found |= dict(zip(names, function.args, strict=False)) | function.keywords
        code = getattr(function, "__code__", None)
        cells = zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False)
        found |= {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
        function = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
    return found | attributes_of(found.get("self"))


def receiver_part(value: Any) -> Part:
    """The key of the object whose method is called: its declared fields if it is a value, else a serial number."""
    kind: Any = type(value)
    try:
        return b"#%d" % serial_of(value) if has_no_content(kind) else key_part(value)
    except Uncacheable:
        return b"#%d" % serial_of(value)


DEFAULT_PART: Final = key_part(MISSING)
"""The key of the default of a parameter that is a sentinel."""


class Parameters:
    """All parameters of a tool, in order.

    Attributes:
        is_positional: whether a call in its canonical spelling is one value for each name, in order.
        is_plain: whether each of these values identifies the call, by itself.
        surplus: the name of the parameter that takes surplus keywords, if there is one.
        owner: the qualified name of the class that a method was defined in; empty for any other function.
        contexts: the parameters that a framework fills in with what may say who asks, and what that is; and the
            ``self`` or ``cls`` of a method, whose other methods may ask for it.
        injected: the first of these alone.
        fields: those of the tags, which count if they are of what is injected.
        getters: the functions and variables by which the tool asks for such a context, as of `getters_of`.
    """

    def __init__(
        self,
        all: tuple[Parameter, ...],  # noqa: A002 - the attribute's name
        signature: inspect.Signature,
        owner: str = "",
        contexts: Mapping[str, Role] | None = None,
        getters: tuple[Any, ...] = (),
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.all, self.signature, self.owner, self.getters, self._function = all, signature, owner, getters, function
        self.contexts: Mapping[str, Role] = contexts or {}
        self.injected = [name for name, role in self.contexts.items() if role not in ("receiver", "none")]
        self.fields: Sequence[Any] = ()
        self.names = tuple(one.name for one in all)
        self._in_key = tuple(one for one in all if one.in_key)
        self.positional = tuple(one.name for one in all if one.kind in POSITIONAL)
        self.positional_only = tuple(one.name for one in all if one.kind is inspect.Parameter.POSITIONAL_ONLY)
        self.is_positional = len(self.positional) == len(signature.parameters)
        is_special = any(not one.in_key or one.is_receiver or one.is_sentinel for one in all)
        self.is_plain = self.is_positional and not is_special
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
    ) -> Parameters:
        """Inspect the signature of a tool, that by which it is called if it is not the one that frameworks see.

        Raises:
            ConfigurationError: if there are fewer parameters than `skip_args`, or none of a name in `ignore`.
        """
        signature = signature or inspect.signature(function)
        every = signature.parameters
        positional = [name for name, one in every.items() if one.kind in POSITIONAL]
        if isinstance(skip_args, bool) or not isinstance(skip_args, int) or not 0 <= skip_args <= len(positional):
            number = f"{len(positional)}, the number of the tool's positional parameters"
            raise ConfigurationError(f"{tool}: skip_args must be a number from 0 to {number}, got {skip_args!r}")
        if unknown := [name for name in ignore if name not in every]:
            known = ", ".join(every) or "none"
            raise ConfigurationError(f"{tool}: ignore names {unknown[0]!r}; the parameters of the tool are: {known}")
        within = inspect.unwrap(function)
        roles = {name: injected_role(one.annotation, one.default, within) for name, one in every.items()}
        left_out = {*positional[:skip_args], *ignore, *(name for name, role in roles.items() if role is not None)}
        owner = getattr(function, "__qualname__", "").rpartition(".")[0]
        if owner.endswith("<locals>") or not positional or positional[0] not in ("self", "cls", "mcs"):
            owner = ""
        contexts = {name: role for name, role in roles.items() if role not in (None, "none") and name not in ignore}
        contexts |= {positional[0]: "receiver"} if owner else {}
        found = tuple(
            Parameter(
                name, one.kind, one.default, name not in left_out, owner != "" and name == positional[0],
                _is_sentinel(one.default), _hint(one.annotation),
            )
            for name, one in every.items()
        )  # fmt: skip
        return cls(found, signature, owner, contexts, getters_of(function), function)

    @property
    def may_say_who_asks(self) -> bool:
        """Whether a call gets anything from a framework that may say who asks."""
        return bool(self.contexts or self.getters)

    def all_injected(self, arguments: Mapping[str, Any]) -> tuple[Injected, ...]:
        """What a framework has injected into a call, or gives the tool for the asking."""
        taken = [Injected(role, arguments[name]) for name, role in self.contexts.items()]
        return (*taken, *self.named_by_tags(arguments), *(Injected("getter", name) for name in self.getters))

    def named_by_tags(self, arguments: Mapping[str, Any]) -> list[Injected]:
        """What templates name of what is injected. Where it lacks that there are no tags, so the call is uncached."""
        with contextlib.suppress(Exception):
            return [Injected("context", one.value(arguments, None)) for one in self.fields if one.name in self.injected]
        return []

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        """A digest of who asks, by the contexts of a call; None if they say nothing about it. Raises as `asker_in`."""
        return asker_in(self.all_injected(arguments))

    def made_for(self) -> Any:
        """A digest of whom the tool was made for, by what is bound in it: in a tier its name is that of all such tools.
        None if that says nothing; an object without identity if nobody can tell.
        """
        try:
            return asker_in([Injected("state", bound)]) if (bound := bound_in(self._function)) else None
        except Exception as unknown:  # noqa: BLE001 - reading what is bound may run anything
            return unknown

    def varied(self, arguments: Mapping[str, Any]) -> Any:  # noqa: ARG002 - for `JsonArguments`
        """What a caller by name says of who asks; None without."""
        return None

    # The arguments of a call, by name: as they are passed, for recordings, and for functions of the user

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter names and values of a call in its canonical spelling."""
        return dict(zip(self.names, args, strict=True)) if self.is_positional else self.bind(args, kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same of any call, which raises `TypeError` as the tool itself would."""
        # Signature.bind of Python 3.11 refuses the name of a positional-only parameter.
        surplus = {name: kwargs[name] for name in self.positional_only if self.surplus is not None and name in kwargs}
        bound = self.signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in surplus})
        bound.apply_defaults()
        if surplus and self.surplus is not None:
            bound.arguments[self.surplus] = bound.arguments.get(self.surplus, {}) | surplus
        return bound.arguments

    # The spelling of a call

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The canonical spelling: by position what can be, as far as nothing is left out before it; else by name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for place, one in enumerate(self.all):
            if one.name not in arguments:
                continue
            value = arguments[one.name]
            if one.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif one.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif one.kind in POSITIONAL and place == len(args):
                args.append(value)
            else:
                kwargs[one.name] = value
        return tuple(args), kwargs

    def has_receiver(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call of a method is given an object of its class, which is known by its name.

        ``dataclass(slots=True)``, a decorator of classes, may have replaced the first class.
        """
        receiver = self.all[0].name
        value = args[0] if args else kwargs.get(receiver)
        kinds = (value.__class__,) if receiver == "self" else (value.__class__, value)
        return any(base.__qualname__ == self.owner for kind in kinds for base in getattr(kind, "__mro__", ()))

    # What identifies a call

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The names and values that do."""
        given = [one for one in self.all if one.in_key and one.name in arguments]
        return [(one.name, one.identity(arguments[one.name])) for one in given]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        """The part of its one argument, or a tuple of several. Raises `Uncacheable` if one has no identity."""
        parts: list[Part] = []
        for one in self._in_key:
            value = arguments[one.name]
            # What stands for itself takes no frame: each write in a session has a key.
            parts.append(value if type(value) in PLAIN else one.part(value))
        return parts[0] if len(parts) == 1 else tuple(parts)


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function gets anything from its framework that may say who asks; True if that cannot be known."""
    try:
        return Parameters.of(function).may_say_who_asks
    except (TypeError, ValueError):  # a builtin
        return True


def _is_sentinel(default: Any) -> bool:
    try:
        key_part(default)
    except Uncacheable:
        return is_sentinel(default)
    return False


_LIKELY: Final = (str, int, bool, dict, list)


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
        spelled: what was passed by position and by name, where the call is passed on as it was made.
    """

    __slots__ = ("is_read", "spelled", "vary")

    def __init__(
        self,
        arguments: Mapping[str, Any],
        vary: Any = None,
        *,
        is_read: bool = True,
        spelled: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {}),
    ) -> None:
        super().__init__(arguments)
        self.vary, self.is_read, self.spelled = vary, is_read, spelled

    def __missing__(self, name: str) -> None:
        if not self.is_read:
            raise KeyError(name)


def _known_by_name(run: Any, vary: Any = None, /, **arguments: Any) -> None:
    """The signature of every tool that is known by name."""


class JsonArguments(Parameters):
    """The parameters of a tool that is known by name: whatever names there are in the JSON object that it is given.

    A call has two positional arguments that no template sees: the function that runs the tool, and what the calls of
    the tool vary by. Arguments that are absent differ from those that are null. `form` is what its answers are to its
    callers, where others call the same tool and get others.
    """

    def __init__(self, *, is_read: bool, form: str | None = None) -> None:
        super().__init__((), inspect.signature(_known_by_name))
        self._is_read, self._form = is_read, form

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return Named(kwargs, args[1] if len(args) > 1 else None, is_read=self._is_read)

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (None, getattr(arguments, "vary", None)), dict(arguments)

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        vary = getattr(arguments, "vary", None)
        vary = [vary.who, vary.where] if type(vary) is Apart else None if type(vary) is UnknownAsker else vary
        others = ("vary", vary), ("form", self._form)
        return [("arguments", dict(arguments)), *((name, one) for name, one in others if one is not None)]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        part, vary = key_part(dict(arguments)), getattr(arguments, "vary", None)
        if vary is None:
            return part
        return key_part([vary.who, vary.where] if type(vary) is Apart else vary), part  # lists have aliases

    def varied(self, arguments: Mapping[str, Any]) -> Any:
        vary = getattr(arguments, "vary", None)
        if type(vary) is UnknownAsker:
            raise vary
        return vary.who if type(vary) is Apart else vary


# Tools that a decorator below ours has wrapped, or that bind things

_RESTS: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(
    tool: Callable[..., Any], decorated: Any, skip_args: int, name: str, ignore: Sequence[str], *, is_read: bool
) -> Parameters:
    """The parameters of a tool, the function that is run, with the signature that frameworks see. `decorated` is the
    same, or a `functools.partial` that it calls. The other arguments, and what is raised, are those of `Parameters.of`.
    """
    shown, of = inspect.signature(tool), functools.partial(Parameters.of, tool, skip_args, name, ignore)
    own = inspect.signature(decorated, follow_wrapped=False)
    if own != shown and any(one.kind in _RESTS for one in own.parameters.values()):
        return PassedOn(of(), is_read=is_read)
    hints = {each: one.annotation for each, one in shown.parameters.items()}  # of the function inside
    named = [one.replace(annotation=hints.get(one.name, one.annotation)) for one in own.parameters.values()]
    return of(signature=own.replace(parameters=named))


class PassedOn(Parameters):
    """The parameters of a tool that passes on what it gets: see the module. The arguments of a call are those that its
    caller has passed, without defaults. Those that are not shown have the names ``*`` and ``**``.
    """

    def __init__(self, shown: Parameters, *, is_read: bool) -> None:
        needed = [one.name for one in shown.all if one.in_key and not one.has_default and one.kind not in _RESTS]
        users: dict[str, Role] = {name: "none" for name in needed if meaning_of(name) == "someone"}
        users |= shown.contexts
        super().__init__(shown.all, shown.signature, shown.owner, users, shown.getters, shown._function)
        self.is_positional = self.is_plain = False
        self._is_read = is_read

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        if not self.contexts.keys() <= arguments.keys():
            raise UnknownAsker("a context, or a user, was left out, and a decorator of the tool may fill it in")
        return super().asker(arguments)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        others = {name: value for name, value in kwargs.items() if name not in known}
        try:
            found = self.signature.bind_partial(*args, **known).arguments
        except TypeError:  # the tool raises it, or its wrapper takes more than it shows
            found = {**known, "*": args}
        return Named(found | ({"**": others} if others else {}), is_read=self._is_read, spelled=(args, kwargs))

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call as it was spelled."""
        if not isinstance(arguments, Named):  # those of a recording
            return super().split(arguments)
        return arguments.spelled[0], dict(arguments.spelled[1])

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        others = [(name, arguments[name]) for name in ("*", "**") if name in arguments]
        return [*super().identities(arguments), *others]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        given = [(one.name, one.part(arguments[one.name])) for one in self.all if one.in_key and one.name in arguments]
        return (*given, *((name, key_part(arguments[name])) for name in ("*", "**") if name in arguments))


def called_by(function: Any) -> Any:
    """The function that is called in the end, behind decorators, partials and methods."""
    inner = inspect.unwrap(function)
    if isinstance(inner, functools.partial | types.MethodType):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    return inner if inner is function else called_by(inner)


def name_of(function: Callable[..., Any]) -> str:
    """Module and qualified name of what a function calls. For a plain one `inspect.unwrap` is spared, 2 us a call."""
    called: Any = function if type(function) is types.FunctionType and not function.__dict__ else called_by(function)
    return f"{getattr(called, '__module__', '')}:{getattr(called, '__qualname__', '')}"


def location_of(function: Callable[..., Any]) -> str:
    """Module, qualified name and line of what a function calls."""
    code = getattr(called_by(function), "__code__", None)  # a function of an extension has none
    return name_of(function) + ("" if code is None else f" ({code.co_filename}:{code.co_firstlineno})")


def are_one_tool(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions of one name, which alone tells tools apart on a shared tier, are the same tool: one
    function, or a definition that was run again, as when a module is reloaded, or a cell of a notebook. What wraps or
    binds a function, and what is made inside of another one, is the same tool only if it is the same object: it may
    hold something else, such as the token of another user.
    """
    one, two = called_by(function), called_by(other)
    if one is two:
        return function is other
    if (one.__module__, one.__qualname__) != (two.__module__, two.__qualname__) or "<locals>" in one.__qualname__:
        return False
    return "<lambda>" not in one.__qualname__ or bool(one.__code__ == two.__code__)
