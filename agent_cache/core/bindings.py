"""Whether two functions of one name are one tool: the same definition, which binds the same things.

What is bound is what a call uses beside its arguments: those of a `functools.partial`, the object of a method,
defaults, and what a decorator or a factory has closed over. On a shared tier only the name tells tools apart, so one
that binds alice's token must not be taken for one that binds bob's.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from agent_cache.core.keys import key_part

__all__ = ["are_one_tool", "called_by", "location_of"]

_MOST: Final = 10_000
"""Objects that are compared. Tools that bind more are two."""


def called_by(function: Any) -> Any:
    """What a function calls in the end, behind decorators, partials and methods. An object stands for its class."""
    while True:
        inner = inspect.unwrap(function)
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, types.MethodType):
            inner = inner.__func__
        if inner is function:
            return inner if inspect.isroutine(inner) or isinstance(inner, type) else type(inner)
        function = inner


def location_of(function: Callable[..., Any]) -> str:
    """Module, qualified name and line of what a function calls."""
    called = called_by(function)
    code = getattr(called, "__code__", None)  # a function of an extension has none
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{called.__module__}:{called.__qualname__}{where}"


def are_one_tool(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions of one name are the same tool.

    The same code may have run again, when a module is reloaded, or a cell of a notebook: then the functions and objects
    that it makes are others, and what they are made of is compared. Within one run of the code, two objects are the
    same only if they are values, or one object: the state of others may come to differ. Functions that are made inside
    of another one are never the same, unless they are one.
    """
    called, other_called = called_by(function), called_by(other)
    is_again = called is not other_called
    if is_again and "<locals>" in getattr(called, "__qualname__", ""):
        return False
    return _Comparison(is_again=is_again).are_same(function, other)


class _Comparison:
    """One comparison of two functions, and of all that they bind.

    Args:
        is_again: whether the code that made them may have run twice.
    """

    def __init__(self, *, is_again: bool) -> None:
        self._is_again = is_again
        self._seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # with the objects, or an id may be another's later

    def are_same(self, one: Any, two: Any) -> bool:
        if one is two:
            return True
        pair = id(one), id(two)
        if pair in self._seen:
            return True  # they are being compared
        if len(self._seen) >= _MOST:
            return False
        self._seen[pair] = one, two
        match one, two:
            case types.FunctionType(), types.FunctionType():
                return self._are_same_functions(one, two)
            case functools.partial(), functools.partial():
                bound = (one.func, one.args, one.keywords), (two.func, two.args, two.keywords)
                return self._are_same_items(*bound)
            case types.MethodType(), types.MethodType():
                return self._are_same_items((one.__func__, one.__self__), (two.__func__, two.__self__))
            case types.BuiltinMethodType(), types.BuiltinMethodType():
                return one.__name__ == two.__name__ and self.are_same(one.__self__, two.__self__)
            case type(), type():
                return self._is_again and _name_of(one) == _name_of(two)
            case (tuple() | list(), tuple() | list()) if type(one) is type(two):
                return self._are_same_items(one, two)
            case (dict(), dict()) if type(one) is type(two):
                return self._are_same_mappings(one, two)
        return self._are_same_objects(one, two)

    def _are_same_functions(self, one: types.FunctionType, two: types.FunctionType) -> bool:
        code, other_code = one.__code__, two.__code__
        if code != other_code:
            is_redefined = self._is_again and code.co_qualname == other_code.co_qualname
            if not is_redefined or "<lambda>" in code.co_qualname:
                return False
        return (
            one.__module__ == two.__module__
            and self._are_same_mappings(_closure(one), _closure(two))
            and self.are_same(one.__defaults__, two.__defaults__)
            and self.are_same(one.__kwdefaults__, two.__kwdefaults__)
        )

    def _are_same_objects(self, one: Any, two: Any) -> bool:
        try:
            return bool(key_part(one) == key_part(two))
        except Exception:  # noqa: BLE001 - no value, or its class does not let it be looked at
            if not self._is_again or _name_of(type(one)) != _name_of(type(two)):
                return False
        return self._are_same_mappings(_state(one), _state(two))

    def _are_same_items(self, one: Any, two: Any) -> bool:
        return len(one) == len(two) and all(map(self.are_same, one, two))

    def _are_same_mappings(self, one: Mapping[Any, Any], two: Mapping[Any, Any]) -> bool:
        return one.keys() == two.keys() and all(self.are_same(value, two[name]) for name, value in one.items())


def _name_of(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """What a function has closed over, by name, but for the class that `super` needs."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            try:
                found[name] = cell.cell_contents
            except ValueError:  # nothing yet
                found[name] = inspect.Parameter.empty
    return found


def _state(instance: Any) -> dict[str, Any]:
    """The attributes that an object has itself."""
    found = dict(getattr(instance, "__dict__", {}))
    for kind in type(instance).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    found[name] = slot.__get__(instance)
                except AttributeError:  # not set
                    pass
    return found
