"""What can be recorded: a function, settled once. Its name, what of its arguments counts, and what it returns."""

from __future__ import annotations

import collections.abc
import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from agent_cache.core.parameters import Parameters
from agent_cache.recording.llm_shapes import Extract
from agent_cache.values.annotations import Returns
from agent_cache.values.schema import Schema, schema_of

__all__ = ["KINDS", "Subject", "module_and_name"]

_LOG = logging.getLogger("agent_cache")

KINDS = ("tool", "llm", "call", "env")

_STREAMS = (
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncIterator,
    collections.abc.Generator,
    collections.abc.Iterable,
    collections.abc.Iterator,
)


class Subject:
    """A function whose calls are recorded.

    Args:
        function: what is called.
        name: its name in cassettes.
        kind: one of `KINDS`.
        parameters: its parameters, where they are known already.
        key: ``key(*args, **kwargs)`` is the identity of a call instead of its arguments.
        extract: what finds tokens and model of an LLM call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        kind: str,
        *,
        parameters: Parameters | None = None,
        key: Callable[..., str] | None = None,
        extract: Extract | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.kind = kind
        self.key = key
        self.extract = extract
        self.module: str = getattr(function, "__module__", None) or ""
        self.parameters = _parameters_of(function, name) if parameters is None else parameters
        self._recorded = tuple(
            one.name
            for one in (() if self.parameters is None else self.parameters.all)
            if one.in_key and not one.is_receiver
        )
        self._plain_names = None
        if self.parameters is not None and self.parameters.is_positional and not self.parameters.positional_only:
            self._plain_names = self.parameters.names
        path = getattr(function, "__qualname__", "")
        self.names = frozenset({name, name.rpartition(":")[2], path, path.rpartition(".")[2]}) - {""}
        """The names that a policy may call it by, and a cassette of agentcassette."""

    @cached_property
    def schema(self) -> Schema:
        """How what it returns is written."""
        return schema_of(Returns(self.function))

    @cached_property
    def chunk_schema(self) -> Schema:
        """How what it yields is written."""
        annotation = self.schema.annotation
        if typing.get_origin(annotation) in _STREAMS:
            return schema_of(typing.get_args(annotation)[0])
        return schema_of(Any)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults filled in.

        Raises:
            TypeError: if it cannot be called so.
        """
        if self.parameters is None:
            return {"args": list(args), "kwargs": dict(kwargs)}
        names = self._plain_names
        if names is not None and len(args) + len(kwargs) == len(names):  # Signature.bind takes 3 us
            try:
                values = (*args, *[kwargs[name] for name in names[len(args) :]]) if kwargs else args
                return dict(zip(names, values, strict=True))
            except KeyError:
                pass
        return self.parameters.bind(args, kwargs)

    def identity(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """What ``cache_key=`` says of a call; None if there is none, or it raises, which is a warning."""
        if self.key is None:
            return None
        try:
            return str(self.key(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the user's function; the call is known by its arguments then
            _LOG.warning("cache_key of %s raised %r; the arguments were used", self.name, error)
            return None

    def recorded(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those that are written down: without ``self``, and without what a framework passes in by itself."""
        if self.parameters is None or len(self._recorded) == len(arguments):
            return arguments
        return {name: arguments[name] for name in self._recorded}


def _parameters_of(function: Callable[..., Any], name: str) -> Parameters | None:
    try:
        return Parameters.of(function, 0, name)
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def module_and_name(function: Any, name: str | None) -> str:
    """``module:qualname`` of anything that can be called, or the name that the user gave."""
    if name is not None:
        return name
    plain = inspect.unwrap(function)
    while hasattr(plain, "func"):  # functools.partial
        plain = plain.func
    path = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or type(plain).__module__}:{path}"
