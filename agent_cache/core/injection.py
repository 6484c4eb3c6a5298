"""Which parameters a framework fills in by itself: run contexts and dependencies, which are no part of a call's
identity.

They are recognised by class name *and* defining package, from the text of the annotation, so that nothing is imported
and nothing is evaluated. A class of the user's own that is called ``Context`` is an argument like any other.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

__all__ = ["is_injected"]

_CONTEXTS: dict[str, frozenset[str]] = {
    "RunContext": frozenset({"pydantic_ai"}),
    "RunContextWrapper": frozenset({"agents"}),
    "ToolContext": frozenset({"agents"}),
    "ToolRuntime": frozenset({"langchain", "langgraph"}),
    "Runtime": frozenset({"langgraph"}),
    "RunnableConfig": frozenset({"langchain_core"}),
    "InjectedToolArg": frozenset({"langchain_core"}),
    "InjectedToolCallId": frozenset({"langchain_core"}),
    "InjectedState": frozenset({"langchain", "langgraph"}),
    "InjectedStore": frozenset({"langchain", "langgraph"}),
    "Context": frozenset({"fastmcp", "mcp"}),
}
_DEPENDENCIES = frozenset({"docket", "fastapi", "fast_depends", "fastmcp", "mcp", "uncalled_for"})
_TRANSPARENT = frozenset({"Annotated", "Optional", "Union"})


def is_injected(annotation: Any, default: Any, function: Callable[..., Any]) -> bool:
    """Whether a framework, and not the model, provides this parameter."""
    return _is_dependency(default) or (
        _text_is_injected(annotation, function)
        if isinstance(annotation, str)
        else _object_is_injected(annotation, function)
    )


def _is_dependency(value: Any) -> bool:
    """``Depends(f)`` as a default or in `Annotated`, or the function that makes one."""
    return any(
        "Depend" in kind.__qualname__ and _package(kind.__module__ or "") in _DEPENDENCIES
        for kind in (*type(value).__mro__, value)
        if isinstance(getattr(kind, "__qualname__", None), str)
    )


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_context(name: str, module: str) -> bool:
    return _package(module) in _CONTEXTS.get(name, ())


def _object_is_injected(hint: Any, function: Callable[..., Any]) -> bool:
    if isinstance(hint, str | typing.ForwardRef):
        return _text_is_injected(hint if isinstance(hint, str) else hint.__forward_arg__, function)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        members: tuple[Any, ...] = (hint.__origin__, *hint.__metadata__)
    elif origin is typing.Union or origin is types.UnionType:
        members = typing.get_args(hint)
    else:
        return _object_is_context(origin or hint)
    return any(_object_is_injected(member, function) for member in members)


def _object_is_context(kind: Any) -> bool:
    if _is_dependency(kind):
        return True
    if not hasattr(kind, "__qualname__"):
        kind = type(kind)  # a marker instance, as in Annotated[str, InjectedState("x")]
    return any(
        _is_context(base.__name__, base.__module__)
        for base in getattr(kind, "__mro__", (kind,))
        if hasattr(base, "__name__")
    )


def _text_is_injected(text: str, function: Callable[..., Any]) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return False
    return _tree_is_injected(tree, function)


def _tree_is_injected(node: ast.expr, function: Callable[..., Any]) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _tree_is_injected(left, function) or _tree_is_injected(right, function)
        case ast.Subscript(value=value, slice=inner):
            name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            if name in _TRANSPARENT:
                members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return any(_tree_is_injected(member, function) for member in members)
            return _tree_is_injected(value, function)
        case ast.Call(func=called):
            return _tree_is_injected(called, function)
        case ast.Constant(value=str(text)):
            return _text_is_injected(text, function)
        case ast.Name(id=name):
            return _name_is_context(name, function)
        case ast.Attribute():
            return _attribute_is_context(node, function)
    return False


def _name_is_context(name: str, function: Callable[..., Any]) -> bool:
    scope = getattr(function, "__globals__", {})
    if name in scope:
        return _object_is_context(scope[name])
    if hasattr(builtins, name):
        return False
    module, _, original = _imported_for_typing(function).get(name, "").rpartition(":")
    return _is_context(original, module)


def _attribute_is_context(node: ast.Attribute, function: Callable[..., Any]) -> bool:
    base: ast.expr = node
    path: list[str] = []
    while isinstance(base, ast.Attribute):
        path.insert(0, base.attr)
        base = base.value
    if not isinstance(base, ast.Name):
        return False
    found = getattr(function, "__globals__", {}).get(base.id)
    if found is None:
        return _is_context(path[-1], _imported_for_typing(function).get(base.id, base.id).replace(":", "."))
    for attribute in path:
        found = getattr(found, attribute, None)
    return _object_is_context(found)


def _imported_for_typing(function: Callable[..., Any]) -> dict[str, str]:
    """Names that a module imports, `TYPE_CHECKING` blocks included, as ``name -> module:original``, read from its
    source.
    """
    module = sys.modules.get(function.__module__)
    try:
        tree = ast.parse(inspect.getsource(module)) if module is not None else None
    except (OSError, TypeError, SyntaxError):
        tree = None
    names: dict[str, str] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or _package(alias.name): alias.name for alias in node.names}
    return names
