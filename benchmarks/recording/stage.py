"""The retail tools for agents that are recorded and replayed: with a store behind them, or with nobody."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from agent_cache.recording import intercept
from agent_cache.testing import reset
from benchmarks.retail.latency import Latency
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import RetailStore
from benchmarks.retail.tools import Tool, make_tools


class ExecutedError(AssertionError):
    """A tool ran in a replay."""


class Stage:
    """The tools, decorated once, and what stands behind them in each run.

    Attributes:
        tools: by name; those that no policy decorates are under `intercept`.
        executions: how often one ran since nobody was behind them.
    """

    def __init__(self, store: RetailStore, *, latency: Latency, with_credentials: bool = False) -> None:
        self._original = store
        self._store: RetailStore | None = None
        self.executions = 0
        policy = tags_from_results(store.owner_of)
        make = functools.partial(make_tools, self, policy=policy, latency=latency)
        tools = make(change=_carrying_a_credential) if with_credentials else make()
        self.tools: dict[str, Tool] = {
            name: tool if hasattr(tool, "__agent_cache__") else intercept(tool, name=f"retail:{name}", kind="tool")
            for name, tool in tools.items()
        }

    def live(self) -> None:
        """A store as every run found it is behind the tools, and nothing is cached."""
        reset()
        self._store = self._original.copy()

    def dead(self) -> None:
        """Nobody is behind the tools, and nothing is cached."""
        reset()
        self._store = None

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """As `Backend` has it."""
        if self._store is None:
            self.executions += 1
            raise ExecutedError(f"{tool} ran in a replay")
        return self._store.answer(tool, arguments)


def _carrying_a_credential(tool: Tool) -> Tool:
    """The same tool with one more argument, whose name says nothing, as a real one may need to log in somewhere."""

    @functools.wraps(tool)
    async def carrying(*args: Any, context: Any, **arguments: Any) -> str:
        return await tool(*args, **arguments)

    signature = inspect.signature(tool)
    one_more = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY)
    carrying.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), one_more]
    )
    return carrying
