"""What becomes of a call that goes on with a loop or is one too many: what the guard decides, told to the trace and the
tape.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from agent_cache.core.store import Entry
from agent_cache.engine.interception import note_answer
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.runtime import ENCLOSING, Call, Operation, Replacement
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.session.guard import LoopGuard, report_of
from agent_cache.session.loops import Verdict
from agent_cache.session.progress import Progress
from agent_cache.session.trace import Trace
from agent_cache.values.canonical import MISSING

if TYPE_CHECKING:
    from agent_cache.session.session import AgentCacheSession

__all__ = ["Reactions", "cached_for"]

_RECENT: Final = 10
"""How many calls the report on a spent budget names."""


class Reactions:
    """Of one session, to the calls of one operation."""

    __slots__ = ("_guard", "_operation", "_progress", "_session", "_trace", "kind")

    def __init__(
        self,
        operation: Operation[Any],
        session: AgentCacheSession,
        guard: LoopGuard,
        progress: Progress,
        trace: Trace,
    ) -> None:
        self._operation = operation
        self._session = session
        self._guard = guard
        self._progress = progress
        self._trace = trace
        self.kind = "read" if isinstance(operation, ReadOperation) else "write"

    def to_spent(
        self, spent: tuple[str, int], key: Hashable, now: float, cached: Any, *, is_inside: bool
    ) -> Replacement | None:
        """A budget, and how much of it was spent: all."""
        report = AgentLoopDetectedError(self._operation.name, *spent, 0, self._trace.recent_tools(_RECENT))
        return self._act(report, key, now, cached, is_first=self._guard.is_news(report), is_inside=is_inside)

    def to_blocked(self, verdict: Verdict, call: Call, now: float) -> Replacement | None:
        """A call of a loop that was found, and told of then."""
        return self._act(report_of(verdict), call.key, now, cached_for(call, now), is_first=False)

    def to_hit(self, verdict: Verdict, key: Hashable, now: float, value: Any) -> Replacement | None:
        """A hit has met a level."""
        report = report_of(verdict)
        if verdict.level == "notice":
            self._guard.notice(report)
            return None
        return self._act(report, key, now, value, is_first=verdict.is_first)

    def to_run(self, verdict: Verdict, value: Any, witness: Entry | None) -> Replacement | None:
        """A call that ran has met a level. A tool that ran has run: it is in the trace already."""
        report = report_of(verdict)
        if verdict.level == "notice":
            self._guard.notice(report)
            return None
        if self.kind == "write":
            self._guard.act_later(report, is_first=verdict.is_first)
            return None
        return self._guard.act(report, MISSING if witness is None else value, is_first=verdict.is_first)

    def _act(
        self,
        report: AgentLoopDetectedError,
        key: Hashable,
        now: float,
        cached: Any = MISSING,
        *,
        is_first: bool = True,
        is_inside: bool = False,
    ) -> Replacement | None:
        """Act upon a call that has not been answered yet, and record it if it is refused or replaced."""
        try:
            instead = self._guard.act(report, cached, is_first=is_first, is_inside=is_inside)
        except AgentLoopDetectedError as error:
            self.record(key, now, type(error).__name__)
            raise
        if instead is not None:
            self.record(key, now, instead.outcome)
            note_answer(self._operation, instead)
        return instead

    def record(self, key: Hashable, now: float, outcome: str) -> None:
        """A call was refused or replaced."""
        parent = ENCLOSING.get()
        number = None if parent is None else parent.number_in(self._session)
        self._trace.add(
            (self._operation.name, key, self.kind, "blocked", outcome, now, 0.0, number, self._progress.calls)
        )


def cached_for(call: Call, now: float) -> Any:
    """What the cache has for a call that has not looked there: one that wanted to know what is true now."""
    if not call.is_fresh or call.plan.partition is None:
        return MISSING
    entry = call.plan.partition.store.lookup(call.key)
    return MISSING if entry is None else entry.value_at(now)
