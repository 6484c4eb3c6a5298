"""Is this something that can be decorated? If not, what to do instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["checked_tool", "identity_of"]

_FRAMEWORKS = {
    "langchain_core": "LangChain's @tool",
    "langchain": "LangChain's @tool",
    "agents": "the OpenAI Agents SDK's @function_tool",
    "pydantic_ai": "Pydantic AI's Tool",
    "fastmcp": "FastMCP's @tool",
    "mcp": "MCP's @tool",
    "claude_agent_sdk": "the Claude Agent SDK's @tool",
}


def checked_tool(function: Any, decorator: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """An `async def`, or a `TypeError` that says what to do."""
    package = type(function).__module__.partition(".")[0]
    if package in _FRAMEWORKS:
        raise TypeError(
            f"{decorator} was given a tool object made by {_FRAMEWORKS[package]}; put @{decorator} closest to the "
            "function, below the framework's decorator"
        )
    if hasattr(function, "__fastmcp__"):
        raise TypeError(
            f"{decorator} was given {_name(function)}, which FastMCP has already registered without it; put "
            f"@{decorator} closest to the function, below @mcp.tool"
        )
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise TypeError(f"{decorator} was given a {kind}; put @{decorator} closest to the function, below @{kind}")
    if hasattr(function, "__agent_cache__"):
        raise TypeError(
            f"{_name(function)} is already decorated with AgentCache or AgentCacheInvalidator; one of them is enough"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{decorator} cannot take the generator {_name(function)}: a stream is not one answer. Collect it in an "
            "`async def` that returns a list, or leave it undecorated"
        )
    if isinstance(function, functools.partial):
        raise TypeError(
            f"{decorator} cannot take a functools.partial; decorate the function, and pass the rest as arguments"
        )
    if not inspect.iscoroutinefunction(function) or not inspect.isroutine(function):
        what = f"the synchronous function {_name(function)}" if inspect.isroutine(function) else f"{function!r}"
        raise TypeError(
            f"{decorator} cannot take {what}; it takes `async def` functions. Make it one, for example with "
            f"`return await asyncio.to_thread(...)`"
        )
    if inspect.ismethod(function):
        raise TypeError(f"{decorator} was given the bound method {_name(function)}; decorate it in the class body")
    checked: Callable[..., Coroutine[Any, Any, Any]] = function
    return checked


def identity_of(function: Callable[..., Any], name: str | None) -> str:
    """``module:qualname``, or the name that the user gave."""
    return name if name is not None else f"{function.__module__}:{function.__qualname__}"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
