"""How a scripted agent calls a tool: inside a session of its own, with every answer compared with the store."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_cache import AgentCacheSession, AgentLoopDetectedError
from agent_cache._demo.chronicle import Call, Chronicle, Outcome
from agent_cache._demo.shop import READS
from agent_cache._demo.spectator import Spectator
from agent_cache._demo.tools import Tool, tags_written
from agent_cache._demo.truth import Truth

__all__ = ["Agent"]

_OUTCOMES: dict[str, Outcome] = {
    "hit": "hit",
    "miss": "miss",
    "shared": "shared",
    "write": "write",
    "blocked": "stopped",
}
"""What the session's trace calls it, and what the demo does."""


class Agent:
    """One agent of the play. It makes its calls one after the other, and waits for nothing else but the clock."""

    def __init__(self, name: str, chronicle: Chronicle, truth: Truth, spectator: Spectator) -> None:
        self.name = name
        self.session = AgentCacheSession(session_id=name, max_tool_repeats=5)
        self._chronicle = chronicle
        self._truth = truth
        self._spectator = spectator

    async def until(self, moment: float) -> None:
        """Wait for a moment of the play, in seconds since its beginning."""
        await asyncio.sleep(max(0.0, moment - self._chronicle.clock()))

    async def think(self, seconds: float = 0.1) -> None:
        """Let some time pass, as a model does between two calls."""
        await asyncio.sleep(seconds)

    async def call(self, tool: Tool, *arguments: object) -> Any:
        """Call a tool, and enter into the chronicle what came of it."""
        call = Call(self.name, tool.__name__, arguments, self._chronicle.clock())
        self._chronicle.calls.append(call)
        traced, saved = len(self.session.get_execution_trace()), self.session.metrics.time_saved
        try:
            answer = await (self._read(call, tool) if call.tool in READS else self._write(call, tool))
        except AgentLoopDetectedError:
            call.outcome = "stopped"
            raise
        else:
            records = self.session.get_execution_trace()[traced:]
            undecorated: Outcome = "uncached" if call.tool in READS else "write"
            call.outcome = _OUTCOMES.get(records[-1].source, "uncached") if records else undecorated
            call.saved = self.session.metrics.time_saved - saved
            return answer
        finally:
            if call.outcome is not None:
                call.ended = self._chronicle.clock()
                self._spectator.call_ended(call)

    async def _read(self, call: Call, tool: Tool) -> Any:
        witness = self._truth.watch(call.tool, call.arguments)
        answer = await tool(*call.arguments)
        call.is_right = witness.confirms(answer)
        return answer

    async def _write(self, call: Call, tool: Tool) -> Any:
        with self._truth.writing():
            answer = await tool(*call.arguments)
        call.drops = tags_written(tool, call.arguments, answer)
        return answer
