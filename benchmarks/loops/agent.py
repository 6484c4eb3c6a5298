"""An agent that asks for what it is told to ask, round by round, inside of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_cache import AgentCacheSession, AgentLoopDetectedError
from benchmarks.loops.audit import Audit, Ledger
from benchmarks.loops.runs import RecordedCall
from benchmarks.loops.tools import RetailTools, ScriptedTools, Step

Asked: TypeAlias = RecordedCall | Step
"""A recorded call is made through the store's own tools, a step through a scripted one."""


@dataclass(frozen=True, slots=True)
class Round:
    """What an agent asks for at once. The user `spoke` before it, or not."""

    calls: Sequence[Asked]
    spoke: bool = False


class Agent:
    """Makes one run after the other, each in a new world.

    Attributes:
        audit: of the rounds that were `checked`.
    """

    def __init__(self, ledger: Ledger, scripted: ScriptedTools, retail: RetailTools | None = None) -> None:
        self._ledger = ledger
        self._scripted = scripted
        self._retail = retail
        self.audit = Audit()

    def start(self) -> None:
        """A new run: nothing is cached, and the store is as it was."""
        self._ledger.start_run()
        self._scripted.start()
        if self._retail is not None:
            self._retail.start()

    async def take(self, one: Round, session: AgentCacheSession) -> list[Any]:
        """What each call of a round got, exceptions among it. One call is made in this task, several in one each."""
        if one.spoke:
            session.new_turn()
        if len(one.calls) > 1:
            return await asyncio.gather(*map(self._make, one.calls), return_exceptions=True)
        try:
            return [await self._make(one.calls[0])]
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is what the agent gets
            return [error]

    async def checked(self, one: Round, session: AgentCacheSession) -> None:
        """Take a round, and judge every answer."""
        self._ledger.start_round()
        self.audit.check(one.calls, await self.take(one, session), self._ledger)

    def _make(self, call: Asked) -> Awaitable[Any]:
        if isinstance(call, Step):
            return self._scripted.call(call)
        assert self._retail is not None, "recorded calls need the store's tools"
        return self._retail.call(call)


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, AgentLoopDetectedError)
