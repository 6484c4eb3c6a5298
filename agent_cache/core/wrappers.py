"""The parameters of a tool that a decorator has wrapped, below ours.

`functools.wraps` makes `inspect.signature` show the signature of the function inside. How a call is made is decided by
the object that is decorated, whose parameters and defaults may be others. Where it takes ``*args`` or ``**kwargs``, it
is not known what it does with them: it may inject an argument, or fill in one that was left out. So it gets exactly
what the caller has passed (`PassedOn`), while keys and tags name the arguments as the shown signature does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent_cache.core.asker import UnknownAsker
from agent_cache.core.bindings import called_by
from agent_cache.core.keys import Part
from agent_cache.core.parameters import POSITIONAL, Parameter, Parameters, default_part
from agent_cache.values.contents import note_program

__all__ = ["OMITTED", "OMITTED_PART", "PassedOn", "parameters_of"]

_POSITIONAL_ONLY, _POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_VAR_POSITIONAL, _VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY

OMITTED: Final = object()
"""The default, in a key, of what the caller may leave out for the wrapper to fill in."""

OMITTED_PART: Final = default_part(OMITTED)


def parameters_of(
    tool: Callable[..., Any],
    decorated: Any,
    skip_args: int,
    name: str,
    ignore: Sequence[str],
    *,
    is_read: bool,
) -> Parameters:
    """The parameters of a tool.

    Args:
        tool: the function that is run, with the signature that frameworks see.
        decorated: what was decorated: the tool itself, or an object that it calls.
        skip_args, name, ignore: as for `Parameters.of`.
        is_read: whether the tool reads.

    Raises:
        ConfigurationError: as `Parameters.of`.
    """
    note_program(getattr(tool, "__module__", None) or "")
    if tool is decorated and not hasattr(tool, "__wrapped__") and not hasattr(tool, "__signature__"):
        return Parameters.of(tool, skip_args, name, ignore)
    shown = inspect.signature(tool)
    own = _own_signature(decorated)
    if own is not None and _is_equal(own, shown):
        return Parameters.of(tool, skip_args, name, ignore, hinted=called_by(decorated))
    visible = _visible(own or _ANYTHING, shown)
    hinted = called_by(decorated)
    if visible is None:  # it names all that it takes
        assert own is not None
        return Parameters.of(tool, skip_args, name, ignore, signature=_with_hints(own, shown), hinted=hinted)
    signature, extra = visible
    passed = Parameters.of(tool, skip_args, name, ignore, signature=signature, hinted=hinted)
    left_out = [one for one in (*passed.positional[:skip_args], *ignore) if one in shown.parameters]
    return PassedOn(passed, extra, Parameters.of(tool, 0, name, left_out, hinted=hinted), is_read=is_read)


def _anything(*args: Any, **kwargs: Any) -> None:
    """The signature of what cannot be looked into."""


_ANYTHING: Final = inspect.signature(_anything)


def _own_signature(function: Any) -> inspect.Signature | None:
    """The signature of an object, without what it shows of others; None if it cannot be looked into."""
    bare = _bare(function)
    if bare is None:
        return None
    try:
        return inspect.signature(bare, follow_wrapped=False)
    except (TypeError, ValueError):  # of a builtin
        return None


def _bare(function: Any) -> Any:
    """The same to call, and nothing to be seen of what it wraps. None for a proxy that is no function of Python's."""
    kind = type(function)
    if kind is types.FunctionType:
        defaults = function.__defaults__
        bare = types.FunctionType(function.__code__, {}, function.__name__, defaults, function.__closure__)
        bare.__kwdefaults__ = function.__kwdefaults__
        return bare
    if kind is functools.partial:
        inner = _bare(function.func)
        return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
    if kind is types.MethodType:
        inner = _bare(function.__func__)
        return None if inner is None else types.MethodType(inner, function.__self__)
    called = getattr(kind, "__call__", None)  # noqa: B004 - it is looked into, and not asked for
    if type(called) is types.FunctionType:
        return types.MethodType(_bare(called), function)
    return None if hasattr(function, "__wrapped__") else function


def _is_equal(own: inspect.Signature, shown: inspect.Signature) -> bool:
    mine, theirs = list(own.parameters.values()), list(shown.parameters.values())
    return len(mine) == len(theirs) and all(
        one.name == two.name and one.kind == two.kind and one.default is two.default
        for one, two in zip(mine, theirs, strict=True)
    )


def _with_hints(own: inspect.Signature, shown: inspect.Signature) -> inspect.Signature:
    """A signature with the annotations that are shown: `functools.wraps` copies those of the function inside."""
    hints = {name: one.annotation for name, one in shown.parameters.items()}
    parameters = [one.replace(annotation=hints.get(name, one.annotation)) for name, one in own.parameters.items()]
    return own.replace(parameters=parameters)


def _visible(own: inspect.Signature, shown: inspect.Signature) -> tuple[inspect.Signature, frozenset[str]] | None:
    """The parameters that a wrapper names, and behind them what it passes on, as far as that is shown.

    Those have `OMITTED` for a default. Positional arguments that it passes on belong to the shown parameters in their
    order, if its own positional ones are the first of them. Else which they belong to is not known.

    Returns:
        The signature, and the names of parameters that are not shown: they take what is left. None if nothing that it
        passes on is shown.
    """
    named = [one for one in own.parameters.values() if one.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD)]
    kinds = {one.kind: one for one in own.parameters.values()}
    takes_more, takes_keywords = _VAR_POSITIONAL in kinds, _VAR_KEYWORD in kinds
    names = {one.name for one in named}
    others = [one for one in shown.parameters.values() if one.name not in names]
    positional = [one.name for one in named if one.kind in POSITIONAL]
    of_shown = [one.name for one in shown.parameters.values() if one.kind in POSITIONAL]
    is_in_order = takes_more and positional == of_shown[: len(positional)]
    found: list[inspect.Parameter] = [one for one in named if one.kind in POSITIONAL]
    keywords: list[inspect.Parameter] = [one for one in named if one.kind is _KEYWORD_ONLY]
    more: list[inspect.Parameter] = []
    for one in others:
        if one.kind in POSITIONAL and is_in_order:
            kind = one.kind if takes_keywords else _POSITIONAL_ONLY
            more.append(one.replace(kind=kind, default=OMITTED))
        elif one.kind in (_KEYWORD_ONLY, _POSITIONAL_OR_KEYWORD) and takes_keywords:
            keywords.append(one.replace(kind=_KEYWORD_ONLY, default=OMITTED))
    if not more and len(keywords) == sum(one.kind is _KEYWORD_ONLY for one in named):
        return None
    if any(one.kind is _POSITIONAL_ONLY for one in more):  # what comes before can be no keyword either
        last = max(place for place, one in enumerate(more) if one.kind is _POSITIONAL_ONLY)
        found = [one.replace(kind=_POSITIONAL_ONLY) for one in found]
        more = [one.replace(kind=_POSITIONAL_ONLY) if place <= last else one for place, one in enumerate(more)]
    found += more
    extra: set[str] = set()
    rests: tuple[tuple[Any, list[inspect.Parameter]], ...] = (_VAR_POSITIONAL, keywords), (_VAR_KEYWORD, [])
    for kind, rest in rests:
        if kind in kinds:
            of_shown_kind = next((one for one in others if one.kind is kind), None)
            taken = of_shown_kind or kinds[kind].replace(name=_free(kinds[kind].name, {*names, *shown.parameters}))
            if of_shown_kind is None:
                extra.add(taken.name)
            found.append(taken)
        found += rest
    return _with_hints(inspect.Signature(found), shown), frozenset(extra)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


class Passed(dict[str, Any]):
    """The arguments of a call as its caller has passed them, by name, with the defaults of the wrapper itself.

    Attributes:
        count: how many were passed by position.
        keywords: the names of the others, in order.
        is_read: whether one that was left out is None to a template, which stands for the whole root then. To a write
            it may name anything.
    """

    __slots__ = ("count", "is_read", "keywords")

    def __init__(self, arguments: Mapping[str, Any], count: int, keywords: tuple[str, ...], *, is_read: bool) -> None:
        super().__init__(arguments)
        self.count = count
        self.keywords = keywords
        self.is_read = is_read

    def __missing__(self, name: str) -> None:
        if not self.is_read:
            raise KeyError(name)


class PassedOn(Parameters):
    """The parameters of a tool that passes on what it gets: see the module.

    Args:
        visible: those that it takes. Of those that it passes on the default is `OMITTED`.
        extra: the names of those that take what no other parameter does.
        shown: those that frameworks see, for recordings.
        is_read: whether the tool reads.
    """

    __slots__ = ("_by_name", "_defaults", "_first", "_is_read", "_is_simple", "_required", "_shown", "extra")

    def __init__(self, visible: Parameters, extra: frozenset[str], shown: Parameters, *, is_read: bool) -> None:
        injected = {one.name for one in shown.all if not one.in_key}
        every = [one._replace(in_key=False) if one.name in injected else one for one in visible.all]
        super().__init__(
            tuple(one._replace(is_sentinel=True) if one.name in extra else one for one in every),
            visible.signature,
            tuple(name for name in visible.names if name not in extra),
            False,  # noqa: FBT003 - as Parameters has them
            visible.positional_only,
            visible.surplus,
            visible.owner,
            {**shown.contexts, **visible.contexts},
            visible.getters,
        )
        self.extra: Final = extra
        self._shown: Final = shown
        self._is_read: Final = is_read
        named = [one for one in self.all if one.kind is not _VAR_POSITIONAL and one.kind is not _VAR_KEYWORD]
        self._first: Final = self.positional
        self._by_name: Final = frozenset(one.name for one in named if one.kind is not _POSITIONAL_ONLY)
        self._required: Final = frozenset(one.name for one in named if not one.has_default)
        known = [one for one in named if one.has_default and one.default is not OMITTED]
        self._defaults: Final = {one.name: one.default for one in known}
        self._is_simple: Final = len(named) + len(extra) == len(self.all)

    @property
    def shown(self) -> Parameters:
        return self._shown

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_simple and len(args) <= len(self._first) and kwargs.keys() <= self._by_name:
            # `Signature.bind` takes five times as long.
            given = {**dict(zip(self._first, args, strict=False)), **kwargs}
            if len(given) == len(args) + len(kwargs) and given.keys() >= self._required:
                return Passed(self._defaults | given, len(args), tuple(kwargs), is_read=self._is_read)
        arguments: dict[str, Any] = super().bind(args, kwargs, with_defaults=False)
        for one in self.all:
            if one.name not in arguments and one.name not in self.extra:
                if one.kind is _VAR_POSITIONAL or one.kind is _VAR_KEYWORD:
                    arguments[one.name] = () if one.kind is _VAR_POSITIONAL else {}
                elif one.default is not OMITTED:
                    arguments[one.name] = one.default
        return Passed(arguments, len(args), tuple(kwargs), is_read=self._is_read)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, with_defaults: bool = True) -> dict[str, Any]:  # noqa: ARG002 - as Parameters has it
        return self.named(args, kwargs)

    def recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """As the shown signature has them, with its defaults: so a recording is the same whatever is in between."""
        arguments, names = self.named(args, kwargs), self._shown.names
        filled = self._shown.filled({name: arguments[name] for name in names if name in arguments})
        return {name: filled.get(name) for name in names}

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        if not self.contexts.keys() <= arguments.keys():
            raise UnknownAsker("a context was left out, and a decorator of the tool may fill it in")
        return super().asker(arguments)

    def for_functions(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(arguments)

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call as it was spelled."""
        assert isinstance(arguments, Passed)
        positional = self._first
        args = tuple(arguments[name] for name in positional[: arguments.count])
        for one in self.all:
            if one.kind is _VAR_POSITIONAL and arguments.count > len(positional):
                args += tuple(arguments[one.name])
        surplus = {} if self.surplus is None else arguments.get(self.surplus, {})
        return args, {name: (arguments if name in self._by_name else surplus)[name] for name in arguments.keywords}

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By position what can be, as far as nothing was left out before it; all others by name."""
        arguments = self.named(args, kwargs)
        found: list[Any] = []
        others: dict[str, Any] = {}
        for one in self.all:
            if one.name not in arguments:
                continue
            value = arguments[one.name]
            if one.kind is _VAR_POSITIONAL:
                found.extend(value)
            elif one.kind is _VAR_KEYWORD:
                others.update(value)
            elif one.kind in POSITIONAL and len(found) == self._first.index(one.name):
                found.append(value)
            else:
                others[one.name] = value
        return tuple(found), others

    def identities(self, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [
            (one.name, one.identity(arguments[one.name])) for one in self.all if one.in_key and one.name in arguments
        ]

    def key(self, arguments: Mapping[str, Any]) -> Part:
        parts = tuple(self.part(one, arguments) for one in self.all if one.in_key)
        return parts[0] if len(parts) == 1 else parts

    def part(self, parameter: Parameter, arguments: Mapping[str, Any]) -> Part:
        return parameter.part(arguments[parameter.name]) if parameter.name in arguments else OMITTED_PART
