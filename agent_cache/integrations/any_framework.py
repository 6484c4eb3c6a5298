"""Tools of any framework: `wrap` passes the calls of one function through a `Toolbox`, `explain` shows its rules.

A framework that takes functions as tools reads their names, docstrings, signatures and hints. `wrap` keeps all of
these, so the framework makes the same tool of a wrapped function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from agent_cache import ConfigurationError, Read, Toolbox, Write
from agent_cache.core.parameters import Parameters
from agent_cache.integrations.shared import note_function, returned_by
from agent_cache.toolbox import Pass, ToolInfo, ToolTable
from agent_cache.toolbox.rules import compiled_tags

__all__ = ["explain", "wrap"]

F = TypeVar("F", bound=Callable[..., Any])

_Kind = inspect.Parameter


def wrap(
    function: F,
    *,
    box: Toolbox,
    name: str | None = None,
    schema: Mapping[str, Any] | None = None,
    vary: Callable[[Mapping[str, Any]], Any] | None = None,
    shared: bool = False,
) -> F:
    """Pass the calls of a function that is a tool of some framework through a toolbox.

    The name, the docstring, the signature and the hints stay, so the framework sees the same tool. Arguments are taken
    by their names, however they are passed, with their defaults; contexts that a framework injects are none. What such
    a context says of the asker belongs to the key, unless there is `vary` or ``shared=True``. What the function raises
    reaches the framework unchanged and is not stored.

    Two functions of one name are one tool to a toolbox: give one of them another `name`, or the other's instances a
    `vary`, where their results differ.

    Args:
        function: an `async def` or `def` function, a bound method, a `functools.partial` or an object with
            ``__call__``. A function that is decorated or wrapped already is returned as it is, and so is one whose rule
            is `Pass`.
        box: the toolbox.
        name: the name of the tool in the toolbox. By default that of the function.
        schema: the JSON schema of the arguments. By default the parameters of the function.
        vary: ``vary(arguments)`` is a part of the key: a tenant, a directory. The mapping has all parameters, the
            contexts included.
        shared: whether all users share the answers although the function gets a context.

    Raises:
        ConfigurationError: if there is no name, or a template of the rule names no parameter.
        TypeError: if `function` is something else.
    """
    if getattr(function, "__agent_cache__", None) is not None:
        return function
    tool = _checked_name(function, name)
    rule = box.rule(tool)
    if isinstance(rule, Pass):
        return function
    parameters = Parameters.of(function, 0, tool)
    arguments = _Arguments(parameters)
    if isinstance(rule, Read | Write):
        names = None if parameters.surplus is not None else tuple(arguments.names)
        compiled_tags(rule, names, f"{box.namespace}:{tool}")
    described = schema if schema is not None else arguments.schema
    heeds_contexts = vary is None and not shared and parameters.may_say_who_asks
    returns = returned_by(function)
    if vary is None and not shared:
        note_function(box, tool, function)

    async def call_tool(*args: Any, **kwargs: Any) -> Any:
        bound = arguments.bind(args, kwargs)
        if bound is None:
            return await function(*args, **kwargs)  # raises what it raises without the toolbox
        run = functools.partial(function, *args, **kwargs)
        varied = None if vary is None else vary(bound)
        contexts = parameters.all_injected(bound) if heeds_contexts else None
        return await box.call(
            tool, arguments.of(bound), run, schema=described, vary=varied, returns=returns, context=contexts
        )

    def call_blocking(*args: Any, **kwargs: Any) -> Any:
        bound = arguments.bind(args, kwargs)
        if bound is None:
            return function(*args, **kwargs)
        run = functools.partial(function, *args, **kwargs)
        varied = None if vary is None else vary(bound)
        contexts = parameters.all_injected(bound) if heeds_contexts else None
        return box.call_sync(
            tool, arguments.of(bound), run, schema=described, vary=varied, returns=returns, context=contexts
        )

    is_async = inspect.iscoroutinefunction(_code_of(function))
    wrapper: Any = functools.update_wrapper(call_tool if is_async else call_blocking, function)
    if not hasattr(function, "__name__"):
        wrapper.__name__ = wrapper.__qualname__ = tool
    wrapper.__annotations__ = dict(getattr(function, "__annotations__", None) or {})
    # As a decorated function is marked, so that no adapter counts its calls again
    wrapper.__agent_cache__ = ToolInfo(tool, described, takes_context=heeds_contexts)
    wrapped: F = wrapper
    return wrapped


def _checked_name(function: Any, name: str | None) -> str:
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"wrap takes a function that a framework calls as a tool, got {function!r}")
    code = _code_of(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise TypeError(f"wrap cannot take the generator {function!r}, because a stream is not one result")
    found: str | None = name if name is not None else getattr(function, "__name__", None)
    if not found:
        raise ConfigurationError(f"wrap: {function!r} has no name of its own; add name=")
    return found


def _code_of(function: Any) -> Any:
    """The function that runs when this is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


class _Arguments:
    """The arguments of a call as a toolbox takes them: by name, without contexts and without sentinels as defaults."""

    def __init__(self, parameters: Parameters) -> None:
        every, keyed = parameters.all, [one for one in parameters.all if one.in_key]
        kinds = {one.kind for one in every}
        self._parameters, self._keyed = parameters, keyed
        # Only then may a surplus argument have the name of another parameter.
        self._keeps_surplus_apart = bool(kinds & {_Kind.POSITIONAL_ONLY, _Kind.VAR_POSITIONAL})
        self._is_simple = kinds <= {_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY}
        self._is_whole = self._is_simple and all(one.in_key and not one.is_sentinel for one in every)
        self._positional = [one.name for one in every if one.kind is _Kind.POSITIONAL_OR_KEYWORD]
        self._required = frozenset(one.name for one in every if not one.has_default)
        self._defaults = {one.name: one.default for one in every if one.has_default}
        self.names = [one.name for one in keyed if one.kind is not _Kind.VAR_KEYWORD]
        self.schema = {
            "type": "object",
            "properties": {name: {} for name in self.names},
            "additionalProperties": parameters.surplus is not None,
        }

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """All parameters with their values; None if the function does not take these arguments.

        `inspect.Signature.bind` takes 10 us, five times a hit, so the usual signatures do without.
        """
        if not self._is_simple:
            try:
                return self._parameters.bind(args, kwargs)
            except TypeError:
                return None
        given = kwargs
        if args:
            given = dict(zip(self._positional, args, strict=False)) | kwargs
            if len(given) < len(args) + len(kwargs):  # too many of them, or one of them twice
                return None
        whole = self._defaults | given
        return whole if len(whole) == len(self._parameters.names) and given.keys() >= self._required else None

    def of(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Those that identify the call."""
        if self._is_whole:
            return bound
        found: dict[str, Any] = {}
        for one in self._keyed:
            value = bound[one.name]
            if one.kind is _Kind.VAR_KEYWORD and not self._keeps_surplus_apart:
                found.update(value)
            elif one.kind is _Kind.VAR_POSITIONAL:
                found[one.name] = list(value)
            elif not (one.is_sentinel and value is one.default):
                found[one.name] = value
        return found


# Explaining

_ADAPTERS = {
    "agent_cache.integrations.mcp_client": "mcp_client",
    "agents": "openai_agents",
    "fastmcp": "fastmcp",
    "google.adk": "adk",
    "langchain": "langchain",
    "langchain_core": "langchain",
    "langgraph": "langchain",
    "mcp": "mcp_client",
    "pydantic_ai": "pydantic_ai",
}
"""The adapter that knows the agents of a package."""


def explain(agent: Any, box: Toolbox) -> ToolTable:
    """Print and return what a toolbox does with each tool of an agent: its kind, its tags, its life, and why.

    Args:
        agent: an agent of a framework that there is an adapter for, or several tools: wrapped or decorated functions,
            other objects with a name, or names.
        box: the toolbox.

    Raises:
        TypeError: if `agent` is something else.
    """
    table = box.explain(*_described(agent))
    print(table)  # noqa: T201 - that is what it is for
    return table


def _described(agent: Any) -> tuple[list[ToolInfo], int]:
    """The tools of an agent, and the number of servers and the like whose tools are not known yet."""
    packages = (package for kind in type(agent).__mro__ for package in _ADAPTERS if _is_in(kind, package))
    for adapter in dict.fromkeys(map(_ADAPTERS.__getitem__, packages)):
        module: Any = import_module(f"{__package__}.{adapter}")
        infos: list[ToolInfo] | None = module.describe(agent)
        if infos is not None:
            return infos, module.unlisted(agent) if hasattr(module, "unlisted") else 0
    if isinstance(agent, str) or not isinstance(agent, Iterable):
        raise TypeError(f"explain takes an agent of {', '.join(_ADAPTERS)}, or a list of tools, got {agent!r}")
    return [_info(tool) for tool in agent], 0


def _is_in(kind: type, package: str) -> bool:
    return f"{kind.__module__}.".startswith(f"{package}.")


def _info(tool: Any) -> ToolInfo:
    marker = getattr(tool, "__agent_cache__", None)
    for known in (tool, marker):
        if isinstance(known, ToolInfo):
            return known
    name = tool if isinstance(tool, str) else getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"explain cannot tell the name of the tool {tool!r}; pass its name")
    return ToolInfo(name, is_decorated=marker is not None)
