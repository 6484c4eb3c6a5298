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
from agent_cache.core.keys import Part, key_part
from agent_cache.core.parameters import Named, Parameters

__all__ = ["PassedOn", "are_one_tool", "called_by", "location_of", "parameters_of"]

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
        super().__init__(shown.all, shown.signature, shown.owner, shown.contexts, shown.getters)
        self.is_positional = self.is_plain = False
        self._is_read = is_read

    def asker(self, arguments: Mapping[str, Any]) -> str | None:
        if not self.contexts.keys() <= arguments.keys():
            raise UnknownAsker("a context was left out, and a decorator of the tool may fill it in")
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


# Whether two functions of one name are one tool


def called_by(function: Any) -> Any:
    """The function that is called in the end, behind decorators, partials and methods."""
    inner = inspect.unwrap(function)
    if isinstance(inner, functools.partial | types.MethodType):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    return inner if inner is function else called_by(inner)


def location_of(function: Callable[..., Any]) -> str:
    """Module, qualified name and line of what a function calls."""
    called = called_by(function)
    code = getattr(called, "__code__", None)  # a function of an extension has none
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{called.__module__}:{called.__qualname__}{where}"


def are_one_tool(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions of one name are the same tool: one function, or a definition that was run again, as when a
    module is reloaded, or a cell of a notebook. What wraps or binds a function, and what is made inside of another
    one, is the same tool only if it is the same object: it may hold something else.
    """
    one, two = called_by(function), called_by(other)
    if one is two:
        return function is other
    if (one.__module__, one.__qualname__) != (two.__module__, two.__qualname__) or "<locals>" in one.__qualname__:
        return False
    return "<lambda>" not in one.__qualname__ or bool(one.__code__ == two.__code__)
