"""A thousand tasks that want one cold key at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import thread_time

from benchmarks.workload import ScalarTool, new_ids, slow_tool

TASKS = 1_000


class Crowd:
    """Times `gather` of a thousand equal calls, a new argument each time, and counts how often that ran the tool."""

    def __init__(self, decorate: Callable[[ScalarTool], Callable[[str], Awaitable[object]]] | None = None) -> None:
        self.most_executions = 0
        self._executions: list[str] = []
        tool = slow_tool(self._executions)
        self._tool: Callable[[str], Awaitable[object]] = decorate(tool) if decorate else tool
        self._ids = new_ids("cold")

    async def sample(self, n: int) -> float:
        tool = self._tool
        seconds = 0.0
        for user_id in self._ids(n):
            start = thread_time()
            await asyncio.gather(*[tool(user_id) for _ in range(TASKS)])
            seconds += thread_time() - start
            self.most_executions = max(self.most_executions, len(self._executions))
            self._executions.clear()
        return seconds
