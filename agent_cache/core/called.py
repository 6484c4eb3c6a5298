"""What the body of a tool asks its framework for: contexts that it gets by a call, the request of its client.

A body is followed into what the user's program has of the names in it: functions, methods, properties and constructors
of classes, partial functions, and tables of functions. What it finds in another way is not seen.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from agent_cache.core.contexts import GETTERS
from agent_cache.values.contents import is_own

__all__ = ["getters_of", "may_provide_user", "may_read_request"]

_HOMES_OF_GETTERS: Final = frozenset({
    "fastmcp", "langchain", "langchain_core", "langgraph", "mcp", "pydantic_ai"
})  # fmt: skip
_MAX_BODIES: Final = 200
_MAX_WRAPPERS: Final = 32
_HARMLESS: Final = frozenset({
    "client_id", "close_sse_stream", "debug", "delete_state", "elicit", "error", "fastmcp", "get_prompt", "get_state",
    "info", "list_prompts", "list_resources", "list_roots", "log", "read_resource", "report_progress", "request_id",
    "sample", "send_notification", "session_id", "set_state", "warning",
})  # fmt: skip
"""What a context of MCP has that says nothing of the headers of a request."""


def getters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The functions of `GETTERS` that a tool calls, or what it calls of the user's program."""
    found: set[str] = set()
    for names, scope in _bodies_of(function):
        for name in names:
            value = scope.get(name, _ABSENT)
            found.update([name] if value is _ABSENT else (one.__name__ for one in _called(value) if _is_getter(one)))
    return tuple(sorted(found & GETTERS.keys()))


def may_read_request(function: Callable[..., Any], name: str) -> bool:
    """Whether a function may find the request of its client in a context of MCP, its parameter of this name: unless it
    has no other use for it than to ask it for what says nothing of the request.
    """
    code = getattr(_function_within(function), "__code__", None)
    if code is None:
        return True
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        used = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name in used and step.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD", "MAKE_CELL")):
            asks = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if used[-1] != name or not asks or following.argval not in _HARMLESS:
                return True
    return False


def may_provide_user(function: Callable[..., Any]) -> bool:
    """Whether a dependency of a function makes its value of a context variable, which nobody sees before the call."""
    return any(
        type(scope.get(name)).__name__ == "ContextVar"
        for factory in _factories_of(_function_within(function))
        for body in (*_called(factory), *_methods(factory, set()))
        for names, scope in _bodies_of(body)
        for name in names
    )


_ABSENT: Final = object()


def _is_getter(function: Any) -> bool:
    return _package(function) in _HOMES_OF_GETTERS


def _package(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]


def _bodies_of(function: Callable[..., Any]) -> Iterator[tuple[set[str], Mapping[str, Any]]]:
    """The names in the body of a function, and what they name there; then those of all that it calls."""
    receiver = getattr(function, "__self__", None)
    pending: list[Any] = [_function_within(function)]
    for number, body in enumerate(pending):
        code = getattr(body, "__code__", None)
        if code is None or number >= _MAX_BODIES:
            continue
        names = _names_in(code)
        cells = zip(code.co_freevars, body.__closure__ or (), strict=False)
        scope = ChainMap({name: _content(cell) for name, cell in cells}, body.__globals__)
        yield names, scope
        named = [*(scope[name] for name in names if name in scope), *_factories_of(body)]
        called = [one for value in named for one in _called(value)]
        called += [one for value in (receiver, *named) for one in _methods(value, names)]
        pending += [one for one in called if not _is_getter(one) and one not in pending]


def _factories_of(function: Any) -> list[Any]:
    """What makes the values of the dependencies of a function."""
    given = getattr(function, "__defaults__", None), (getattr(function, "__kwdefaults__", None) or {}).values()
    defaults = [one for several in given for one in several or ()]
    found = [getattr(one, "factory", None) or getattr(one, "dependency", None) for one in defaults]
    return [one for one in found if callable(one)]


def _called(value: Any) -> Iterable[Any]:
    """The functions that are called by a name of this value."""
    values = value.values() if type(value) is dict else (value,)
    functions = (_function_within(one) for one in values if isinstance(one, types.FunctionType | functools.partial))
    return [one for one in functions if isinstance(one, types.FunctionType)]


def _methods(value: Any, names: set[str]) -> Iterable[Any]:
    """What runs of a class of the user's, or of an object of one, where these attributes are asked for."""
    kind = value if isinstance(value, type) else type(value)
    bases = (
        [] if isinstance(value, types.FunctionType | types.ModuleType) else [one for one in kind.__mro__ if is_own(one)]
    )
    members = [found for base in bases for name, found in vars(base).items() if name in names or name[:2] == "__"]
    functions = [one.fget if isinstance(one, property) else getattr(one, "__func__", one) for one in members]
    functions = [getattr(one, "func", one) for one in functions]  # of a `cached_property`
    return [found for one in functions if isinstance(found := _function_within(one), types.FunctionType)]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _function_within(function: Any) -> Any:
    """The function whose body runs when this is called."""
    for _ in range(_MAX_WRAPPERS):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if inner is None and isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            break
        function = inner
    return function if inspect.isroutine(function) else type(function).__call__
