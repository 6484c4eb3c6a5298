"""Pydantic AI: the tools of an agent, or of one toolset, through one `agent_cache.Toolbox`.

The cache stands around the leaves of a tree of toolsets: those that have tools of their own. So it is inside of all
that the framework and other toolsets do for a call, which goes on at hits too: validation, approvals, retries, usage
limits, hooks, tracing, permission checks in a `WrapperToolset` of one's own. The name of a tool is the one by which the
cached toolset is asked for it, prefixes included. It reaches the leaves in a context variable.

One private name of the framework is read, and pinned by a test: the `FunctionSchema` behind
`FunctionToolsetTool.call_func`, by which a tool's function is known.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, cast

from agent_cache import Toolbox
from agent_cache.core.parameters import takes_context
from agent_cache.integrations.shared import (
    Private,
    alone,
    apart,
    checked_box,
    identity_of,
    is_public,
    made_around,
    returned_by,
)
from agent_cache.toolbox import ToolInfo
from agent_cache.toolbox.rules import says_who_asks

try:
    from pydantic import BaseModel
    from pydantic_ai import AbstractToolset, Agent, FunctionToolset, RunContext, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
    from pydantic_ai.toolsets import CombinedToolset, DynamicToolset, WrapperToolset
    from pydantic_ai.toolsets.abstract import ToolsetTool
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.pydantic_ai needs pydantic-ai>=2.68: pip install "agent-cache[pydantic-ai]"'
    ) from error

__all__ = ["AgentCacheCapability", "AgentCacheToolset", "describe"]

Vary = Callable[[RunContext[Any]], Any]

_CALLED: Final[ContextVar[tuple[str, object] | None]] = ContextVar("agent_cache_pydantic_ai_called", default=None)
"""The name by which a tool is called from outside, and the schema of its arguments, by which a leaf knows it again."""


@dataclass
class AgentCacheToolset(WrapperToolset[Any]):
    """A toolset whose tools are called through a toolbox.

    Decorated tools pass, as do external tools, those that the framework adds, and those that durable execution runs.
    `ModelRetry` and other exceptions pass and are not stored. `ApprovalRequired` and `CallDeferred` pass, and are no
    failures. What a tool answers to an approved call is only given to approved calls. An answer that reveals tools to
    the run is not stored.

    Args:
        wrapped: the toolset.
        box: the rules. A tool has the name that this toolset gives it.
        vary: called with the `RunContext` of each call; what it returns (JSON) belongs to the key. A tenant, a user.
            Without it, what can be compared in ``deps`` belongs to the key of a tool that gets the context.
        shared: whether all users share the answers of tools that get the context, or were made around something.

    Raises:
        ConfigurationError: if `box` is no toolbox, or `vary` no function.
    """

    wrapped: AbstractToolset[Any]
    box: Toolbox
    vary: Vary | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        checked_box(self.box, self.vary, type(self).__name__)
        self.wrapped = _Leaves(self.box, self.vary, self.shared).cached_in(self.wrapped)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool: `wrapped` passes the call on to a leaf, which calls it through the toolbox."""
        token = _CALLED.set((name, tool.tool_def.parameters_json_schema))
        try:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        finally:
            _CALLED.reset(token)


@dataclass
class _CachedLeaf(WrapperToolset[Any]):
    """A toolset with tools of its own, which are called through a toolbox."""

    box: Toolbox
    vary: Vary | None
    shared: bool

    def visit_and_replace(
        self, visitor: Callable[[AbstractToolset[Any]], AbstractToolset[Any]]
    ) -> AbstractToolset[Any]:
        if getattr(visitor, "__func__", None) is _Leaves._cached:
            return self
        return super().visit_and_replace(visitor)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        described = getattr(getattr(tool, "call_func", None), "__self__", None)
        function = getattr(described, "function", None)
        if hasattr(function, "__agent_cache__"):
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)

        async def run() -> Any:
            try:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except CallDeferred as deferral:  # no failure, and the run's own
                return Private({"metadata": deferral.metadata, "kind": deferral.kind})
            except ApprovalRequired as deferral:
                return Private({"metadata": deferral.metadata})

        definition, called = tool.tool_def, _CALLED.get()
        schema = definition.parameters_json_schema
        vary = self.vary(ctx) if self.vary is not None else None
        is_shared = self.vary is not None or self.shared or says_who_asks(self.box.rule(name))
        where = [*_servers_identity(self.wrapped), *made_around(function, is_shared=is_shared)()]
        if ctx.tool_call_approved:
            where += ["approved", ctx.tool_call_metadata]
        heeds_context = self.vary is None and not self.shared and _gets_context(self.wrapped, described)
        answer = await self.box.call(
            called[0] if called is not None and called[1] is schema else name,  # else a tool that another one calls
            _named(tool_args, schema),
            run,
            schema=schema,
            annotations=definition.metadata and definition.metadata.get("annotations"),
            vary=apart(vary, where),
            context=ctx if heeds_context else None,
            returns=None if function is None else _returned_by(function),
            store_if=_is_storable,
        )
        if type(answer) is Private:
            raise (CallDeferred if "kind" in answer.answer else ApprovalRequired)(**answer.answer)
        return answer


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Puts `_CachedLeaf` around the toolsets with tools of their own, in copies of those that wrap or combine them."""

    box: Toolbox
    vary: Vary | None
    shared: bool

    def cached_in(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        if isinstance(toolset, DynamicToolset):
            return self._cached(toolset)
        visit = type(toolset).visit_and_replace
        # `visit_and_replace` of these two makes new objects by the fields, which a subclass may have more than.
        if visit is WrapperToolset.visit_and_replace:
            wrapper: Any = copy.copy(toolset)
            wrapper.wrapped = self.cached_in(wrapper.wrapped)
            return cast("AbstractToolset[Any]", wrapper)
        if visit is CombinedToolset.visit_and_replace:
            combined: Any = copy.copy(toolset)
            combined.toolsets = [self.cached_in(one) for one in combined.toolsets]
            return cast("AbstractToolset[Any]", combined)
        return toolset.visit_and_replace(self._cached)  # durable execution visits nothing here, and stays as it is

    def _cached(self, leaf: AbstractToolset[Any]) -> AbstractToolset[Any]:
        if not isinstance(leaf, DynamicToolset):
            return _CachedLeaf(leaf, self.box, self.vary, self.shared)
        if hasattr(leaf.toolset_func, "__agent_cache__"):
            return leaf
        made: Any = copy.copy(leaf)
        made.toolset_func = self._factory(leaf.toolset_func)
        return cast("AbstractToolset[Any]", made)

    def _factory(self, make: Callable[[Any], Any]) -> Any:
        """The function of a `DynamicToolset`, which makes a toolset for each run, or each step: with cached leaves."""
        last: tuple[Any, Any] = (None, None)

        async def factory(ctx: RunContext[Any]) -> Any:
            nonlocal last
            found = make(ctx)
            if inspect.isawaitable(found):
                found = await found
            if found is not None and found is not last[0]:
                # Else the framework would leave and enter the same toolset at each step
                last = found, self.cached_in(found)
            return None if found is None else last[1]

        factory.__agent_cache__ = self.box  # type: ignore[attr-defined]  # known again by `_cached`
        return factory


@dataclass
class AgentCacheCapability(AbstractCapability[Any]):
    """All function tools of an agent through a toolbox: ``Agent(..., capabilities=[AgentCacheCapability(box)])``.

    The tools of its toolsets and MCP servers are among them, by the names that the model sees. Output tools are not.
    See `AgentCacheToolset` for what passes.

    Args:
        box, vary, shared: as of `AgentCacheToolset`.

    Raises:
        ConfigurationError: if `box` is no toolbox, or `vary` no function.
    """

    box: Toolbox
    vary: Vary | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        checked_box(self.box, self.vary, type(self).__name__)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Wrap the toolset of a run."""
        return AgentCacheToolset(toolset, self.box, self.vary, self.shared)


def describe(agent: Any) -> list[ToolInfo] | None:
    """The function tools of an agent or a toolset, for `explain`; None if it is neither. Tools that a server lists, or
    a function makes for each run, are not known before a run.
    """
    if not isinstance(agent, Agent | AbstractToolset):
        return None
    found: dict[str, ToolInfo] = {}
    for toolset in _leaves_of(agent):
        for name, tool in toolset.tools.items() if isinstance(toolset, FunctionToolset) else ():
            is_decorated, schema = hasattr(tool.function, "__agent_cache__"), tool.function_schema
            gets_context = _gets_context(toolset, schema)
            found[name] = ToolInfo(name, schema.json_schema, None, is_decorated, gets_context)
    return list(found.values())


def unlisted(agent: Any) -> int:
    """How many toolsets there are whose tools `describe` does not know."""
    return sum(not isinstance(toolset, FunctionToolset) for toolset in _leaves_of(agent))


def _leaves_of(agent: Agent[Any, Any] | AbstractToolset[Any]) -> list[AbstractToolset[Any]]:
    found: list[AbstractToolset[Any]] = []
    for toolset in agent.toolsets if isinstance(agent, Agent) else [agent]:
        toolset.apply(found.append)
    return found


# Answers


def _is_storable(answer: Any) -> bool:
    """Whether an answer is one of the tool alone: it puts nothing off, and reveals no tools to the run."""
    return is_public(answer) and not (isinstance(answer, ToolReturn) and answer.tools)


# Tools


def _gets_context(toolset: AbstractToolset[Any], described: Any) -> bool:
    """Whether a tool of a toolset gets the `RunContext`; `described` is the schema of its function, if it is one."""
    if getattr(described, "function", None) is not None:
        return bool(described.takes_ctx) or takes_context(described.function)
    # A server is sent the arguments alone, unless a function or a class of the user's makes the call
    is_of_server = type(toolset).__module__ == "pydantic_ai.mcp"  # which cannot be imported everywhere
    return not is_of_server or getattr(toolset, "process_tool_call", None) is not None


def _servers_identity(toolset: AbstractToolset[Any]) -> list[Any]:
    """What tells the MCP server of a toolset from others, credentials included; empty for other toolsets."""
    if not any(kind.__module__ == "pydantic_ai.mcp" for kind in type(toolset).__mro__):
        return []
    transport = getattr(getattr(toolset, "client", None), "transport", None)
    return ["server", alone(toolset) if transport is None else identity_of(transport)]


def _named(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names in the schema: a tool whose only parameter is a model has those of its fields."""
    if len(arguments) == 1:
        ((name, value),) = arguments.items()
        if name not in schema.get("properties", ()):
            if isinstance(value, BaseModel):
                return dict(value)
            if is_dataclass(value):
                return {field.name: getattr(value, field.name) for field in fields(value)}
            if isinstance(value, dict):
                return value
    return arguments


_returned_by = functools.lru_cache(1_000)(functools.partial(returned_by, include_extras=True))
