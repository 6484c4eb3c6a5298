"""Sessions in which nothing is refused, and what opening and closing one costs."""

from __future__ import annotations

import gc
from time import thread_time

from agent_cache import AgentCacheSession
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, measure

WITHOUT_LIMITS = 10**9


def unlimited_session() -> AgentCacheSession:
    """A session with the trace and the loop guard on, whose limits are out of reach of a benchmark."""
    return AgentCacheSession(max_tool_repeats=WITHOUT_LIMITS, max_execution_depth=WITHOUT_LIMITS)


def in_sessions_of(calls: int, sample: Sample) -> Sample:
    """The same sample in as many new sessions of `calls` calls as it takes; only the calls are timed.

    At least one whole session: a count of less is rounded up and the time scaled to it. What earlier sessions left is
    collected first, since memory that the system hands out for the first time costs more than the calls that fill it.
    """

    async def run(n: int) -> float:
        sessions = max(1, round(n / calls))
        seconds = 0.0
        gc.collect()
        for _ in range(sessions):
            async with unlimited_session():
                await sample(1)
                seconds += await sample(calls)
        return seconds * n / (sessions * calls)

    return run


def in_session(sample: Sample) -> Sample:
    """The same sample in new sessions of as many calls as a session may make by default."""
    return in_sessions_of(200, sample)


async def rows(effort: Effort) -> list[Row]:
    async def open_and_close(n: int) -> float:
        start = thread_time()
        for _ in range(n):
            async with AgentCacheSession():
                pass
        return thread_time() - start

    figures = await measure({"session": open_and_close}, effort, title="sessions")
    spread = figures["session"].spread.scaled(1e6)
    return [Row("session", "opening and closing a session", spread, "us", 20.0)]
