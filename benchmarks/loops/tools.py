"""The decorated tools that runs are driven through: the retail store's own, and tools that do what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from agent_cache import AgentCache, AgentCacheInvalidator, LoopHints
from benchmarks.loops.audit import Identity, Ledger
from benchmarks.loops.runs import RecordedCall, identity_of
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, RetailStore
from benchmarks.retail.tools import make_tools

NO_HINTS: Final[Mapping[str, LoopHints]] = MappingProxyType({})


class ToolFailed(Exception):
    """What a tool raises whose call failed."""


class RetailTools:
    """The store's tools, decorated once; each run starts on a fresh copy of the database, with nothing cached.

    `think` and `transfer_to_human_agents` stay undecorated, as in the retail benchmark.
    """

    def __init__(self, store: RetailStore, ledger: Ledger) -> None:
        self._original = store
        self._store = store
        self._ledger = ledger
        self._tools: dict[str, Any] = make_tools(self, policy=tags_from_results(store.owner_of))

    def start(self) -> None:
        self._store = self._original.copy()
        for name in READ_TOOLS:
            self._tools[name].clear()

    async def call(self, call: RecordedCall) -> Any:
        return await self._tools[call.tool](**call.arguments)

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the store says; asked by the bodies of the tools."""
        call = tool, identity_of(arguments)
        self._ledger.ran(call)
        text = self._store.answer(tool, arguments)
        self._ledger.gave(call, text)
        return text


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a scripted tool, and what the tool does if it runs.

    Attributes:
        key: its arguments.
        request: another argument, that tells nothing: an id, a timestamp.
        gives: what it returns, or what it raises `ToolFailed` with if it `fails`.
        is_fresh: a read that asks anew, whatever is cached.
        round: steps in a row with one number are made at the same time; -1 for by itself.
        is_turn: the user has spoken before it.
    """

    tool: str
    key: Any
    gives: Any
    request: Any = None
    fails: bool = False
    is_write: bool = False
    is_fresh: bool = False
    round: int = -1
    is_turn: bool = False

    @property
    def identity(self) -> str:
        return repr((self.key, self.request))


class ScriptedTools:
    """Tools by name, decorated when first called. A read and a write of one name are one tool to the loop guard.

    Every write touches what every read depends on, so that no read is answered with what was loaded before it.

    Args:
        hints: by tool.
        is_success: of what a tool has returned; None says that it always is.
    """

    def __init__(
        self,
        ledger: Ledger,
        hints: Mapping[str, LoopHints] = NO_HINTS,
        is_success: Callable[[Any], bool] | None = None,
    ) -> None:
        self._ledger = ledger
        self._hints = hints
        self._is_success = is_success
        self._reads: dict[str, Any] = {}
        self._writes: dict[str, Any] = {}
        self._script: dict[Identity, Step] = {}

    def start(self) -> None:
        self._script.clear()
        for tool in self._reads.values():
            tool.clear()

    async def call(self, step: Step) -> Any:
        self._script[step.tool, step.identity] = step
        tool = self._tool(step)
        return await (tool.fresh if step.is_fresh else tool)(step.key, step.request)

    def _tool(self, step: Step) -> Any:
        made = self._writes if step.is_write else self._reads
        tool = made.get(step.tool)
        if tool is None:
            decorate = self._decorate_write if step.is_write else self._decorate_read
            tool = made[step.tool] = decorate(step.tool)
        return tool

    def _decorate_read(self, tool: str) -> Any:
        @AgentCache(
            "world", cache_if=self._is_success, loop=self._hints.get(tool, LoopHints()), name=f"scripted:{tool}"
        )
        async def read(key: Any, request: Any) -> Any:
            return await self._perform(tool, key, request)

        return read

    def _decorate_write(self, tool: str) -> Any:
        hints = self._hints.get(tool, LoopHints())

        @AgentCacheInvalidator("world", ok=self._is_success, loop=hints, name=f"scripted:{tool}")
        async def write(key: Any, request: Any) -> Any:
            return await self._perform(tool, key, request)

        return write

    async def _perform(self, tool: str, key: Any, request: Any) -> Any:
        call = tool, repr((key, request))
        self._ledger.ran(call)
        step = self._script[call]
        await asyncio.sleep(0)  # a real tool waits for something, and calls made at the same time overlap
        if step.fails:
            raise ToolFailed(step.gives)
        self._ledger.gave(call, step.gives)
        return step.gives
