"""Which classes may come out of a cassette. No name that is found in one is ever imported.

An exception comes back if it is a builtin, one of agent_cache's or asyncio's own, stands in the module of the tool that
raised it, or was registered. Values come back as the return annotation says, or as a registered class.
"""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any, TypeVar

import agent_cache.errors
from agent_cache.errors import ConfigurationError

__all__ = ["exception_named", "name_of", "register", "registered"]

T = TypeVar("T")

_registered: dict[str, type] = {}


def register(*classes: type[T]) -> type[T]:
    """Let values and exceptions of these classes come out of cassettes as what they were. Works as a decorator, too.

    Needed for exceptions that the tool's own module does not have, and for values of functions without a return
    annotation.

    Raises:
        ConfigurationError: if one is no class.
    """
    for one in classes:
        if not isinstance(one, type):
            raise ConfigurationError(f"register takes classes, got {one!r}")
        _registered[name_of(one)] = one
    if not classes:
        raise ConfigurationError("register needs at least one class")
    return classes[0]


def registered(name: str) -> type | None:
    """The class that was registered, by ``module:qualname``."""
    return _registered.get(name)


def name_of(kind: type) -> str:
    """``module:qualname``."""
    return f"{kind.__module__}:{kind.__qualname__}"


_OWN: dict[str, type[BaseException]] = {
    name_of(one): one
    for one in (
        *(kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)),
        *(getattr(agent_cache.errors, name) for name in agent_cache.errors.__all__),
        asyncio.CancelledError,
        asyncio.InvalidStateError,
        asyncio.QueueEmpty,
        asyncio.QueueFull,
    )
}


def exception_named(name: str, module: str) -> type[BaseException] | None:
    """The exception class of that name, if it may be used here; `module` is that of the tool that raised it."""
    found = _OWN.get(name) or _registered.get(name)
    if found is None:
        where, _, path = name.partition(":")
        if where == module and "<" not in path:
            found = _attribute(sys.modules.get(where), path)
            if found is None or found.__module__ != where:
                return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _attribute(module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None
