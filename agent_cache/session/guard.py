"""What a session does when a run repeats itself or has spent a budget: raise, warn, answer from the cache, or tell the
model.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Final, Literal

from agent_cache.core.policies import checked_choice, checked_function
from agent_cache.engine.interception import note_loop
from agent_cache.engine.runtime import Replacement
from agent_cache.engine.state import warn_once
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics
from agent_cache.session.loops import Verdict
from agent_cache.session.progress import Progress
from agent_cache.values.canonical import MISSING

__all__ = ["Decision", "LoopGuard", "OnLoop", "OnNotice", "report_of"]

_LOG = logging.getLogger("agent_cache")

Decision = Literal["raise", "warn", "short_circuit", "notice"]
OnLoop = Decision | Callable[[AgentLoopDetectedError], Decision | None]
OnNotice = Callable[[AgentLoopDetectedError], object]

_DECISIONS: Final = ("raise", "warn", "short_circuit", "notice")


class LoopGuard:
    """The reactions of one session.

    Args:
        session_id: for the log.
        metrics: where it counts, beside the process.
        progress: of the run; a latched loop leaves it no calls.

    Attributes:
        error: the loop or the spent budget that the run was stopped for, None as long as it was not.
    """

    __slots__ = (
        "_metrics", "_on_loop", "_on_notice", "_progress", "_raised", "_session_id", "_told", "_was_raised", "error",
    )  # fmt: skip

    def __init__(
        self, session_id: str, on_loop: OnLoop, on_notice: OnNotice | None, metrics: Metrics, progress: Progress
    ) -> None:
        if callable(on_loop):
            checked_function(on_loop, "AgentCacheSession: on_loop")
        else:
            checked_choice(on_loop, _DECISIONS, "AgentCacheSession: on_loop", or_else="a function")
        checked_function(on_notice, "AgentCacheSession: on_notice")
        self._session_id = session_id
        self._on_loop = on_loop
        self._on_notice = on_notice
        self._metrics = metrics
        self._progress = progress
        self._raised: weakref.WeakSet[Exception] = weakref.WeakSet()
        self._told: set[tuple[str, str]] = set()
        self._was_raised = False
        self.error: AgentLoopDetectedError | None = None

    def reset(self) -> None:
        """The run begins, perhaps again: nothing is latched."""
        self.error = None
        self._was_raised = False
        self._told.clear()

    @property
    def swallowed(self) -> AgentLoopDetectedError | None:
        """The latched error, if somebody was told and did not say so."""
        return self.error if self._was_raised else None

    def notice(self, loop: AgentLoopDetectedError) -> None:
        """The notice level: logged, counted, given to ``on_notice``. Nothing is changed."""
        self._log(logging.INFO, "may be a loop", loop)
        for metrics in (METRICS, self._metrics):
            metrics.noticed_loop(loop.kind)
        note_loop("notice", loop.kind, self._metrics)
        if self._on_notice is not None:
            try:
                self._on_notice(loop)
            except Exception as error:  # noqa: BLE001 - the user's function; a notice changes nothing
                self.count_failure("on_notice raised", loop.tool, error)

    def act(
        self, loop: AgentLoopDetectedError, cached: Any = MISSING, *, is_first: bool = True, is_inside: bool = False
    ) -> Replacement | None:
        """The action level, of a call that has not been answered yet, or is a read.

        Args:
            cached: the answer that the cache has for exactly this call.
            is_first: whether this streak is acted upon for the first time; ``"warn"`` speaks once.
            is_inside: whether a tool has made the call, and not the agent: a text for the model would become part of
                what the tool returns, or hide that a write was left out.

        Returns:
            What the caller gets instead; None if the call is to go on as if nothing were.

        Raises:
            AgentLoopDetectedError: to refuse the call.
        """
        loop = self.error or loop
        decision = self._decide(loop)
        self.count(loop)
        if decision == "raise":
            self.latch(loop)
            self._was_raised = True
            raise self._own(loop)
        if is_first:
            self._log(logging.WARNING, "loop detected", loop)
        if decision == "notice":
            if is_inside:
                raise self._own(loop)
            return Replacement(str(loop), "notice", loop.kind)
        if decision == "short_circuit":
            if cached is MISSING:
                raise self._own(loop)
            return Replacement(cached, "short_circuit", loop.kind)
        note_loop("loop", loop.kind, self._metrics)
        return None

    def has_raised(self, error: Exception) -> bool:
        """Whether this is its own error, of a call that it has refused."""
        return error in self._raised

    def _own(self, loop: AgentLoopDetectedError) -> AgentLoopDetectedError:
        self._raised.add(loop)
        return loop.with_traceback(None)  # the same error may be raised a thousand times

    @property
    def refuses(self) -> bool:
        """Whether a call may be refused before it runs."""
        return self._on_loop != "warn"

    def act_later(self, loop: AgentLoopDetectedError, *, is_first: bool) -> None:
        """The action level, of a write that has run: its answer is given, and the next call is refused."""
        if is_first or not self.refuses:  # else it was counted before it ran
            self.count(loop)
            note_loop("loop", loop.kind, self._metrics)
        if self.error is None and self._on_loop == "raise":
            self.latch(loop)
        elif is_first:
            self._log(logging.WARNING, "loop detected", loop)

    def is_news(self, spent: AgentLoopDetectedError) -> bool:
        """Whether this budget is spent for the first time: a warning of it is given once."""
        what = spent.kind, spent.tool if spent.kind == "tool_calls" else ""
        if what in self._told:
            return False
        self._told.add(what)
        return True

    def latch(self, loop: AgentLoopDetectedError) -> None:
        """Every later call of the run is refused, with the first error."""
        if self.error is None:
            self.error = loop
            self._progress.limit = 0
            self._log(logging.WARNING, "loop detected", loop)

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """A loop that was raised when this run was recorded, and has just been raised again."""
        self._raised.add(loop)
        if self._decide(loop) == "raise":
            self.latch(loop)
            self._was_raised = True

    def count(self, loop: AgentLoopDetectedError) -> None:
        """One call was acted upon."""
        for metrics in (METRICS, self._metrics):
            metrics.acted_on_loop(loop.kind)

    def count_failure(self, what: str, tool: str, error: BaseException) -> None:
        """A function of the user's raised; the default is used. Logged once, counted."""
        for metrics in (METRICS, self._metrics):
            metrics.callback_failed()
        warn_once(f"{what}, so the default was used", tool, error)

    def _decide(self, loop: AgentLoopDetectedError) -> Decision | None:
        if self.error is not None:
            return "raise"
        on_loop = self._on_loop
        if not callable(on_loop):
            return on_loop
        try:
            decision = on_loop(loop)
        except Exception as error:  # noqa: BLE001 - the user's function; a loop that nobody judges is stopped
            self.count_failure("on_loop raised", loop.tool, error)
            return "raise"
        if decision is not None and decision not in _DECISIONS:
            self.count_failure("on_loop gave no decision", loop.tool, ValueError(f"on_loop returned {decision!r}"))
            return "raise"
        return decision

    def _log(self, level: int, what: str, loop: AgentLoopDetectedError) -> None:
        extra = {
            "agent_cache_event": "loop" if loop.level == "action" else "loop_notice",
            "agent_cache_tool": loop.tool,
            "agent_cache_kind": loop.kind,
            "agent_cache_session": self._session_id,
        }
        _LOG.log(level, "%s: %s, %s, %d calls", what, loop.tool, loop.kind, loop.count, extra=extra)


def report_of(verdict: Verdict) -> AgentLoopDetectedError:
    """What a verdict says, as the error that may be raised for it."""
    return AgentLoopDetectedError(
        verdict.tool,
        verdict.kind,
        verdict.count,
        verdict.period,
        verdict.calls,
        verdict.first,
        verdict.last,
        level=verdict.level,
    )
