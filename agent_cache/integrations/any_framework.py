"""Tools of any framework: `wrap` passes the calls of one function through a `Toolbox`, `explain` shows its rules.

A framework that takes functions as tools reads their names, docstrings, signatures and hints. `wrap` keeps all of
these, so the framework makes the same tool of a wrapped function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from agent_cache import ConfigurationError, Read, Toolbox, Write
from agent_cache.core.parameters import Parameters
from agent_cache.integrations.shared import apart, checked_box, made_around, returned_by
from agent_cache.toolbox import Pass, ToolInfo, ToolTable
from agent_cache.toolbox.rules import compiled_tags, says_who_asks

__all__ = ["explain", "wrap"]

F = TypeVar("F", bound=Callable[..., Any])

_Kind = inspect.Parameter


def wrap(
    function: F,
    *,
    box: Toolbox,
    name: str | None = None,
    vary: Callable[[Mapping[str, Any]], Any] | None = None,
    shared: bool = False,
) -> F:
    """Pass the calls of a function that is a tool of some framework through a toolbox.

    The name, the docstring, the signature and the hints stay, so the framework sees the same tool. Arguments are taken
    by their names, however they are passed, with their defaults; contexts that a framework injects are none. What such
    a context says of the asker belongs to the key, unless there is `vary` or ``shared=True``. What the function raises
    reaches the framework unchanged and is not stored.

    Two functions of one name are one tool to a toolbox: give one of them another `name`. What a function was made
    around keeps its answers apart: values in its closure, the object of a method.

    Args:
        function: an `async def` or `def` function, a bound method or a `functools.partial`. One that is decorated or
            wrapped already is returned as it is, and so is one whose rule is `Pass`.
        box: the toolbox.
        name: the name of the tool in the toolbox. By default that of the function.
        vary: ``vary(arguments)`` is a part of the key: a tenant, a directory. The mapping has all parameters, the
            contexts included.
        shared: whether all users share the answers although the function gets a context, or was made around something.

    Raises:
        ConfigurationError: if there is no name, a template of the rule names no parameter, `box` is no toolbox, or
            `vary` no function.
        TypeError: if `function` is something else.
    """
    checked_box(box, vary, "wrap")
    if getattr(function, "__agent_cache__", None) is not None:
        return function
    tool = _checked_name(function, name)
    rule = box.rule(tool)
    if isinstance(rule, Pass):
        return function
    parameters = Parameters.of(function, 0, tool)
    keyed = [one for one in parameters.all if one.in_key]
    names = tuple(one.name for one in keyed if one.kind is not _Kind.VAR_KEYWORD)
    if isinstance(rule, Read | Write):
        compiled_tags(rule, names if parameters.surplus is None else None, f"{box.namespace}:{tool}")
    heeds_contexts = vary is None and not shared and parameters.may_say_who_asks
    returns = returned_by(function)
    around = made_around(function, is_shared=vary is not None or shared or says_who_asks(rule))

    def identified(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The arguments that identify a call, and the options of it; None if the function does not take them."""
        try:
            bound = parameters.bind(args, kwargs)
        except TypeError:
            return None
        arguments = {
            one.name: bound[one.name] for one in keyed if not (one.is_sentinel and bound[one.name] is one.default)
        }
        for one in keyed:
            if one.kind is _Kind.VAR_POSITIONAL:
                arguments[one.name] = list(bound[one.name])
            elif one.kind is _Kind.VAR_KEYWORD and not arguments.keys() & bound[one.name].keys():
                arguments |= arguments.pop(one.name)
        varied = apart(None if vary is None else vary(bound), around())
        contexts = parameters.all_injected(bound) if heeds_contexts else None
        return arguments, {"vary": varied, "returns": returns, "context": contexts}

    async def call_tool(*args: Any, **kwargs: Any) -> Any:
        call = identified(args, kwargs)
        if call is None:
            return await function(*args, **kwargs)  # raises what it raises without the toolbox
        return await box.call(tool, call[0], functools.partial(function, *args, **kwargs), **call[1])

    def call_blocking(*args: Any, **kwargs: Any) -> Any:
        call = identified(args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        return box.call_sync(tool, call[0], functools.partial(function, *args, **kwargs), **call[1])

    is_async = inspect.iscoroutinefunction(_code_of(function))
    wrapper: Any = functools.update_wrapper(call_tool if is_async else call_blocking, function)
    if not hasattr(function, "__name__"):
        wrapper.__name__ = wrapper.__qualname__ = tool
    wrapper.__annotations__ = dict(getattr(function, "__annotations__", None) or {})
    # As a decorated function is marked, so that no adapter counts its calls again
    wrapper.__agent_cache__ = ToolInfo(tool, takes_context=heeds_contexts)
    return cast("F", wrapper)


def _checked_name(function: Any, name: str | None) -> str:
    code = _code_of(function)
    if not inspect.isroutine(code):
        raise TypeError(f"wrap takes a function that a framework calls as a tool, got {function!r}")
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
    return function


# Explaining

_ADAPTERS = {
    **dict.fromkeys(("agent_cache.integrations.mcp_client", "mcp"), "mcp_client"),
    "agents": "openai_agents",
    "fastmcp": "fastmcp",
    "google.adk": "adk",
    **dict.fromkeys(("langchain", "langchain_core", "langgraph"), "langchain"),
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
    modules = [f"{kind.__module__}." for kind in type(agent).__mro__]
    for adapter in dict.fromkeys(_ADAPTERS[one] for name in modules for one in _ADAPTERS if name.startswith(f"{one}.")):
        module: Any = import_module(f"{__package__}.{adapter}")
        infos: list[ToolInfo] | None = module.describe(agent)
        if infos is not None:
            return infos, module.unlisted(agent) if hasattr(module, "unlisted") else 0
    if isinstance(agent, str) or not isinstance(agent, Iterable):
        raise TypeError(f"explain takes an agent of {', '.join(_ADAPTERS)}, or a list of tools, got {agent!r}")
    return [_info(tool) for tool in agent], 0


def _info(tool: Any) -> ToolInfo:
    marker = getattr(tool, "__agent_cache__", None)
    for known in (tool, marker):
        if isinstance(known, ToolInfo):
            return known
    name = tool if isinstance(tool, str) else getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"explain cannot tell the name of the tool {tool!r}; pass its name")
    return ToolInfo(name, is_decorated=marker is not None)
