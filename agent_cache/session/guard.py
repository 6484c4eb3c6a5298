"""Reacts to loops and spent budgets: raises, warns, answers from the cache, or answers with a text for the model.

`LoopGuard` holds the reaction that the session was given (``on_loop=``, ``on_notice=``) and the error that has stopped
the run. Each reaction is logged and counted, in the process and in the session.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Final, Literal

from agent_cache.core.options import checked_choice, checked_function
from agent_cache.engine.interception import note_loop
from agent_cache.engine.scope import Replacement
from agent_cache.engine.state import warn_once
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics
from agent_cache.session.loop_detector import RunState
from agent_cache.values.canonical import MISSING

__all__ = ["Decision", "LoopGuard", "OnLoop", "OnNotice"]

_LOG = logging.getLogger("agent_cache")

Decision = Literal["raise", "warn", "short_circuit", "notice"]
OnLoop = Decision | Callable[[AgentLoopDetectedError], Decision | None]
OnNotice = Callable[[AgentLoopDetectedError], object]

_MAX_SPENT: Final = 1_000
"""How many spent budgets are remembered, to log each once. Each tool has one of its own."""

_DECISIONS: Final = ("raise", "warn", "short_circuit", "notice")


class LoopGuard:
    """The reactions of one session.

    Args:
        session_id: for the log.
        on_loop: the reaction, or a function that chooses it.
        on_notice: called at the notice level.
        metrics: the counters of the session.
        run: the state of the run; its limit becomes 0 when the run is stopped.

    Attributes:
        error: the loop or the spent budget that has stopped the run; None if none has.
    """

    __slots__ = (
        "_metrics", "_on_loop", "_on_notice", "_raised", "_run", "_session_id", "_spent", "_was_raised", "error",
    )  # fmt: skip

    def __init__(
        self, session_id: str, on_loop: OnLoop, on_notice: OnNotice | None, metrics: Metrics, run: RunState
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
        self._run = run
        self._raised: weakref.WeakSet[Exception] | None = None
        self._spent: set[tuple[str, str]] | None = None
        self._was_raised = False
        self.error: AgentLoopDetectedError | None = None

    def reset(self) -> None:
        """Begin a run, perhaps the second one of the session: nothing has stopped it."""
        self.error = None
        self._was_raised = False
        self._spent = None

    @property
    def swallowed(self) -> AgentLoopDetectedError | None:
        """The error that has stopped the run, if it was raised to a caller and did not reach the end of the session."""
        return self.error if self._was_raised else None

    def notice(self, loop: AgentLoopDetectedError) -> None:
        """React at the notice level: log, count, call ``on_notice``. The call is not changed."""
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
        self,
        loop: AgentLoopDetectedError,
        notice: Callable[[AgentLoopDetectedError], Any],
        cached: Any = MISSING,
        *,
        is_first: bool = True,
        is_inside: bool = False,
    ) -> Replacement | None:
        """React at the action level, to a read or to a call that has not run.

        Args:
            notice: `Operation.notice` of the tool.
            cached: the cached result of exactly this call.
            is_first: whether this streak has not met the action level before; ``"warn"`` logs once a streak.
            is_inside: whether a tool has made the call, and not the agent. Then a text for the model would become part
                of what the tool returns, or hide that a write was not carried out.

        Returns:
            The answer that replaces the tool's; None if the call is to go on unchanged.

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
            try:
                answer = notice(loop)
            except Exception as error:  # noqa: BLE001 - the user's function; the text says the same
                self.count_failure("refused raised", loop.tool, error)
                answer = str(loop)
            return Replacement(answer, "notice", loop.kind)
        if decision == "short_circuit":
            if cached is MISSING:
                raise self._own(loop)
            return Replacement(cached, "short_circuit", loop.kind)
        note_loop("loop", loop.kind, self._metrics)
        return None

    def has_raised(self, error: Exception) -> bool:
        """Whether this guard raised the error, to refuse a call."""
        return self._raised is not None and error in self._raised

    def _own(self, loop: AgentLoopDetectedError) -> AgentLoopDetectedError:
        self._note_raised(loop)
        return loop.with_traceback(None)  # the same error may be raised a thousand times

    def _note_raised(self, loop: AgentLoopDetectedError) -> None:
        if self._raised is None:
            self._raised = weakref.WeakSet()
        self._raised.add(loop)

    @property
    def refuses(self) -> bool:
        """Whether calls are refused before they run."""
        return self._on_loop != "warn"

    def act_later(self, loop: AgentLoopDetectedError, *, is_first: bool) -> None:
        """React at the action level to a write that has run: its answer is returned, and the next call is refused."""
        if is_first or not self.refuses:  # else it was counted when it was admitted
            self.count(loop)
            note_loop("loop", loop.kind, self._metrics)
        if self.error is None and self._on_loop == "raise":
            self.latch(loop)
        elif is_first:
            self._log(logging.WARNING, "loop detected", loop)

    def is_first_report(self, spent: AgentLoopDetectedError) -> bool:
        """Whether this budget was not reported as spent before, so that ``"warn"`` logs it once."""
        budget = spent.kind, spent.tool if spent.kind == "tool_calls" else ""
        reported = self._spent
        if reported is None or len(reported) >= _MAX_SPENT:
            reported = self._spent = set()
        if budget in reported:
            return False
        reported.add(budget)
        return True

    def latch(self, loop: AgentLoopDetectedError) -> None:
        """Stop the run: every later call is refused with this error, unless an earlier one has stopped it."""
        if self.error is None:
            self.error = loop
            self._run.limit = 0
            self._log(logging.WARNING, "loop detected", loop)

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """Stop the run for a loop that was raised when it was recorded, and has just been raised again."""
        self._note_raised(loop)
        if self._decide(loop) == "raise":
            self.latch(loop)
            self._was_raised = True

    def count(self, loop: AgentLoopDetectedError) -> None:
        """Count a call that was acted upon."""
        for metrics in (METRICS, self._metrics):
            metrics.acted_on_loop(loop.kind)

    def count_failure(self, what: str, tool: str, error: BaseException, effect: str = "the default was used") -> None:
        """Count a failure of a user's function, or of the loop detector, and log it once with its effect."""
        for metrics in (METRICS, self._metrics):
            metrics.callback_failed()
        warn_once(f"{what}, so {effect}", tool, error)

    def _decide(self, loop: AgentLoopDetectedError) -> Decision | None:
        if self.error is not None:
            return "raise"
        on_loop = self._on_loop
        if not callable(on_loop):
            return on_loop
        try:
            decision = on_loop(loop)
        except Exception as error:  # noqa: BLE001 - the user's function; the safe decision is to stop
            self.count_failure("on_loop raised", loop.tool, error)
            return "raise"
        if decision is not None and decision not in _DECISIONS:
            self.count_failure("on_loop returned no decision", loop.tool, ValueError(f"on_loop returned {decision!r}"))
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
