"""Tools that a decorator below ours has wrapped, or that bind things: how one is called, and whether two are one.

`functools.wraps` makes `inspect.signature` show the signature of the function inside. Where the wrapper takes ``*args``
or ``**kwargs``, it may inject an argument, or fill in one that was left out. So it gets exactly what the caller has
passed (`PassedOn`), while keys and tags name the arguments as the shown signature does.

On a shared tier only the name tells tools apart: one that binds alice's token must not be taken for bob's.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent_cache.core.asker import UnknownAsker
from agent_cache.core.keys import key_part
from agent_cache.core.parameters import OMITTED, OMITTED_PART, POSITIONAL, Named, Parameters
from agent_cache.values.contents import note_program

__all__ = ["OMITTED_PART", "PassedOn", "are_one_tool", "called_by", "location_of", "parameters_of"]

_RESTS: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(
    tool: Callable[..., Any], decorated: Any, skip_args: int, name: str, ignore: Sequence[str], *, is_read: bool
) -> Parameters:
    """The parameters of a tool, the function that is run, with the signature that frameworks see. `decorated` is the
    same, or an object that it calls. The other arguments, and what is raised, are those of `Parameters.of`.
    """
    note_program(getattr(tool, "__module__", None) or "")
    if tool is decorated and not hasattr(tool, "__wrapped__") and not hasattr(tool, "__signature__"):
        return Parameters.of(tool, skip_args, name, ignore)
    inspected = functools.partial(Parameters.of, tool, tool=name, hinted=called_by(decorated))
    own, shown = _own_signature(decorated), inspect.signature(tool)
    mine, theirs = ([(one.name, one.kind, id(one.default)) for one in of.parameters.values()] for of in (own, shown))
    if mine == theirs:
        return inspected(skip_args, ignore=ignore)
    passed = inspected(skip_args, ignore=ignore, signature=_visible(own, shown))
    if all(one.default is not OMITTED for one in passed.all):  # it names all that it takes
        return passed
    left_out = [one for one in (*passed.positional[:skip_args], *ignore) if one in shown.parameters]
    return PassedOn(passed, inspected(0, ignore=left_out), is_read=is_read)


def _own_signature(function: Any) -> inspect.Signature:
    """The signature of an object, without what it shows of others."""
    try:
        return inspect.signature(_bare(function), follow_wrapped=False)
    except (TypeError, ValueError):  # it cannot be looked into, and may take anything
        return inspect.signature(lambda *_args, **_kwargs: None)


def _bare(function: Any) -> Any:
    """The same to call, and nothing to be seen of what it wraps; None for a proxy that is no function of Python's."""
    kind = type(function)  # that of a proxy, and not what it stands for
    if kind is types.FunctionType:
        bare = types.FunctionType(function.__code__, {}, None, function.__defaults__, function.__closure__)
        bare.__kwdefaults__ = function.__kwdefaults__
        return bare
    if kind is functools.partial:
        return functools.partial(_bare(function.func), *function.args, **function.keywords)
    if kind is types.MethodType:
        return types.MethodType(_bare(function.__func__), function.__self__)
    called = getattr(kind, "__call__", None)  # noqa: B004 - it is looked into, and not asked for
    if type(called) is types.FunctionType:
        return types.MethodType(_bare(called), function)
    return None if hasattr(function, "__wrapped__") else function


def _visible(own: inspect.Signature, shown: inspect.Signature) -> inspect.Signature:
    """The parameters that a wrapper names, and behind them what it passes on, as far as that is shown.

    Those have `OMITTED` for a default. Positional arguments that it passes on belong to the shown parameters in their
    order, if its own positional ones are the first of them. Parameters that are not shown take what is left.
    """
    hints = {name: one.annotation for name, one in shown.parameters.items()}  # of the function inside
    every = [one.replace(annotation=hints.get(name, one.annotation)) for name, one in own.parameters.items()]
    rests = {one.kind: one for one in every if one.kind in _RESTS}
    named = {one.name: one for one in every if one.kind not in rests}
    others = [one for name, one in shown.parameters.items() if name not in named]
    positional = [name for name, one in named.items() if one.kind in POSITIONAL]
    first = [name for name, one in shown.parameters.items() if one.kind in POSITIONAL][: len(positional)]
    by_position = POSITIONAL if _RESTS[0] in rests and positional == first else ()
    longest = max((*own.parameters, *shown.parameters), key=len)
    found = list(named.values())
    found += [
        one.replace(kind=POSITIONAL[1] if one.kind in by_position else inspect.Parameter.KEYWORD_ONLY, default=OMITTED)
        for one in others
        if one.kind not in _RESTS and (one.kind in by_position or _RESTS[1] in rests)
    ]
    found += [
        next((other for other in others if other.kind is kind), one.replace(name=f"{longest}_{one.name}"))
        for kind, one in rests.items()
    ]
    return inspect.Signature(sorted(found, key=lambda one: one.kind))


class PassedOn(Parameters):
    """The parameters of a tool that passes on what it gets: see the module. The arguments of a call are those that its
    caller has passed, by name, with the defaults of the wrapper itself. The default of those that it passes on is
    `OMITTED`; `shown` are those that frameworks see.
    """

    def __init__(self, visible: Parameters, shown: Parameters, *, is_read: bool) -> None:
        extra = {one.name for one in visible.all if one.kind in _RESTS and one.name not in shown.names}
        injected = {one.name for one in shown.all if not one.in_key}
        parameters = [one._replace(in_key=one.in_key and one.name not in injected) for one in visible.all]
        parameters = [one._replace(is_sentinel=one.is_sentinel or one.name in extra) for one in parameters]
        contexts = {**shown.contexts, **visible.contexts}
        super().__init__(tuple(parameters), visible.signature, visible.owner, contexts, visible.getters)
        self.names = tuple(name for name in visible.names if name not in extra)
        self._extra, self._shown, self._is_read = extra, shown, is_read

    @property
    def shown(self) -> Parameters:
        return self._shown

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        if not self.contexts.keys() <= arguments.keys():
            raise UnknownAsker("a context was left out, and a decorator of the tool may fill it in")
        return super().asker(arguments)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, with_defaults: bool = True) -> dict[str, Any]:  # noqa: ARG002 - as Parameters has it
        bound = super().bind(args, kwargs).items()
        given = {name: value for name, value in bound if value is not OMITTED and (name not in self._extra or value)}
        return Named(given, is_read=self._is_read, spelled=(len(args), tuple(kwargs)))

    def recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """As the shown signature has them, with its defaults: so a recording is the same whatever is in between."""
        arguments, names = self.named(args, kwargs), self._shown.names
        filled = self._shown.filled({name: arguments[name] for name in names if name in arguments})
        return {name: filled.get(name) for name in names}

    def for_functions(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(arguments)

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call as it was spelled."""
        assert isinstance(arguments, Named)
        count, keywords = arguments.spelled
        args = [arguments[name] for name in self.positional[:count]]
        if count > len(args):
            args += next(arguments[one.name] for one in self.all if one.kind is _RESTS[0])
        surplus = {} if self.surplus is None else arguments.get(self.surplus, {})
        return tuple(args), {name: surplus[name] if name in surplus else arguments[name] for name in keywords}

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return super().split(self.named(args, kwargs))


# Whether two functions of one name are one tool


def called_by(function: Any) -> Any:
    """What a function calls in the end, behind decorators, partials and methods. An object stands for its class."""
    inner = inspect.unwrap(function)
    if isinstance(inner, functools.partial | types.MethodType):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    if inner is not function:
        return called_by(inner)
    return inner if inspect.isroutine(inner) or isinstance(inner, type) else type(inner)


def location_of(function: Callable[..., Any]) -> str:
    """Module, qualified name and line of what a function calls."""
    called = called_by(function)
    code = getattr(called, "__code__", None)  # a function of an extension has none
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{called.__module__}:{called.__qualname__}{where}"


def are_one_tool(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions of one name are the same tool: one definition that binds the same values, or one that was
    run again, as when a module is reloaded, or a cell of a notebook. Functions that are made inside of another one are
    never the same, unless they are one.
    """
    one, two = called_by(function), called_by(other)
    if one is two:
        return function is other or _made_of(function) == _made_of(other)
    if (one.__module__, one.__qualname__) != (two.__module__, two.__qualname__) or "<locals>" in one.__qualname__:
        return False
    return "<lambda>" not in one.__qualname__ or bool(one.__code__ == two.__code__)


def _made_of(value: Any, levels: int = 10) -> Any:
    """What is equal for callables that are made of the same. An object that is no value equals itself alone: the state
    of two may come to differ.
    """
    parts: Any = None
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, cells
    elif isinstance(value, functools.partial):
        parts = value.func, value.args, value.keywords
    elif isinstance(value, types.MethodType):
        parts = value.__func__, value.__self__
    elif isinstance(value, types.BuiltinMethodType):
        parts = value.__name__, value.__self__
    elif isinstance(value, dict):
        parts = [each for pair in value.items() for each in pair]
    elif type(value) in (tuple, list):
        parts = value
    if parts is not None and levels:
        return type(value), [_made_of(each, levels - 1) for each in parts]
    try:
        return key_part(value)
    except Exception:  # noqa: BLE001 - no value, or its class does not let it be looked at
        return object() if parts is not None else (type(value), id(value))
