"""What a function says it returns, read when it is first needed and never at the price of an import.

An annotation may be text (``from __future__ import annotations``), and may name what is imported for type checkers
only. Such a name says nothing at run time: the annotation then counts as missing, as `Any` does.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Returns", "hints_of"]

_AWAITED = (collections.abc.Awaitable, collections.abc.Coroutine)


class Returns:
    """The return annotation of a function, to be passed wherever an annotation is asked for."""

    __slots__ = ("_function", "schema")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.schema: Any = None
        """What `schema_of` made of it."""

    def __repr__(self) -> str:
        return f"Returns({self._function!r})"

    def resolve(self) -> Any:
        """The annotation with every name in it looked up; `Any` if there is none or a name means nothing here."""
        function = inspect.unwrap(self._function)
        while isinstance(function, functools.partial):
            function = function.func
        if not hasattr(function, "__code__"):
            function = getattr(function, "__func__", None) or getattr(function, "__call__", function)  # noqa: B004 - an object that is called: its method has the annotations
        annotations = _annotations_of(function)
        if "return" not in annotations:
            return Any
        names = dict(getattr(function, "__globals__", {}))
        names |= {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}
        # A class local to the function around the tool is known to the tool if its body uses it, as it does to return
        # one.
        code = getattr(function, "__code__", None)
        for name, cell in zip(
            getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False
        ):
            try:
                names[name] = cell.cell_contents
            except ValueError:
                continue
        hint = _evaluated({"return": annotations["return"]}, names)["return"]
        if typing.get_origin(hint) in _AWAITED:
            hint = typing.get_args(hint)[-1]
        return hint


def hints_of(kind: type) -> dict[str, Any]:
    """Declared names of a class and what may stand there, inherited ones included; `Any` where a name means nothing."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - one name is missing: the others may be well
        found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        module = sys.modules.get(base.__module__)
        found |= _evaluated(_annotations_of(base), {**(vars(module) if module else {}), **vars(base)})
    return found


def _annotations_of(owner: Any) -> Mapping[str, Any]:
    try:
        return inspect.get_annotations(owner)
    except Exception:  # noqa: BLE001 - Python 3.14 evaluates them here
        return {}


def _evaluated(annotations: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, annotation in annotations.items():
        holder = type("Holder", (), {"__annotations__": {name: annotation}})
        try:
            found[name] = typing.get_type_hints(holder, names, {}, include_extras=True)[name]
        except Exception:  # noqa: BLE001 - the user's text may evaluate to anything, a raised error included
            found[name] = Any
    return found
