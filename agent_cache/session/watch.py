"""What a session contributes to the calls of one operation: it admits them, traces them, and looks for loops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.runtime import ENCLOSING, Call, Observe, Operation, Replacement
from agent_cache.metrics import Stats
from agent_cache.session.guard import LoopGuard
from agent_cache.session.identity import Identity
from agent_cache.session.loop_checks import LoopChecks
from agent_cache.session.loop_policy import LoopPolicy
from agent_cache.session.loops import Detector
from agent_cache.session.progress import Progress
from agent_cache.session.reactions import Reactions, cached_for
from agent_cache.session.trace import Trace
from agent_cache.values.canonical import MISSING
from agent_cache.values.compare import signature_of

if TYPE_CHECKING:
    from agent_cache.session.session import AgentCacheSession

__all__ = ["SessionWatch"]

# Before 3.12 asyncio says it in a Python function around this dict, which takes a tenth of a hit. Private, but of a
# version that is finished.
_CURRENT_TASK: Callable[[Any], Any] = (
    asyncio.current_task if sys.version_info >= (3, 12) else asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
)


class SessionWatch:
    """See `Watch`. `hit` is a closure over all it needs, since it is on the path of every hit.

    Args:
        policy: budgets; None if the session does not look at them.
        detector: of the session, if it looks for loops.
        is_innermost: whether it looks for them among these calls. If not, they only change its world: a new successful
            write ends the epoch. The same goes for what a tool calls by itself, which is no call of the agent's.
        deadline: clock reading after which no call is let in.
    """

    __slots__ = (
        "_add", "_changes", "_checks", "_deadline", "_detector", "_guard", "_has_own_limit", "_identity", "_kind",
        "_limit", "_max_calls", "_max_nesting", "_name", "_operation", "_progress", "_reactions", "_session", "_stats",
        "_world", "hit", "see",
    )  # fmt: skip

    hit: Observe
    see: Observe

    def __init__(
        self,
        operation: Operation[Any],
        *,
        session: AgentCacheSession,
        policy: LoopPolicy | None,
        detector: Detector | None,
        is_innermost: bool,
        guard: LoopGuard,
        progress: Progress,
        trace: Trace,
        stats: Stats,
        deadline: float,
    ) -> None:
        self._operation = operation
        self._name = operation.name
        self._session = session
        self._guard = guard
        self._progress = progress
        self._add = trace.add
        self._stats = stats
        self._reactions = Reactions(operation, session, guard, progress, trace)
        self._kind = self._reactions.kind
        self._identity = Identity(operation, guard)
        if self._kind == "read" and (operation.policy.loop.off or not is_innermost):
            detector = None
        checks = None if detector is None else self._checks_of(detector)
        self._detector = detector if is_innermost else None
        self._checks = checks if is_innermost else None
        self._changes = checks if self._kind == "write" else None
        self._world = None if is_innermost else self._changes
        self._deadline = deadline
        self._max_calls = None if policy is None else policy.calls_of(self._name)
        self._limit = NEVER if policy is None or policy.max_execution_depth is None else policy.max_execution_depth
        self._max_nesting = NEVER if policy is None or policy.max_nesting is None else policy.max_nesting
        # Whether each call must be asked about: a budget of time, or of calls of one tool.
        self._has_own_limit = self._max_calls is not None or deadline != NEVER
        self.see = self._make_hit(Progress(None))
        if self._max_calls is not None:
            self.see = self._count_used(self.see)
        self.hit = self._ask_first if self._has_own_limit else self._make_hit(progress)

    def _checks_of(self, detector: Detector) -> LoopChecks:
        """What the session knows of the tool. The plan may be compiled again: what was counted stays."""
        checks: LoopChecks | None = detector.tools.get(self._operation)
        if checks is None:
            checks = detector.tools[self._operation] = LoopChecks(
                detector,
                self._name,
                self._operation.policy.loop,
                is_write=self._kind == "write",
                identify=self._identity.outcome,
            )
        return checks

    def _make_hit(self, limits: Progress) -> Observe:
        """What sees a hit that is allowed by these limits."""
        session, progress, name, stats, add = self._session, self._progress, self._name, self._stats, self._add
        checks, told_apart = self._checks, None if self._identity.is_the_key else self._identity.of_hit
        is_new, judge, ask = None if checks is None else checks.hit, self._reactions.to_hit, self._ask_first
        enclosing, current_task, begin_tick = ENCLOSING.get, _CURRENT_TASK, session.begin_tick

        def hit(key: Hashable, entry: Entry, value: Any, now: float, arguments: Mapping[str, Any] | None) -> Any:
            number = progress.calls + 1
            if number > limits.limit:
                return ask(key, entry, value, now, arguments)
            parent = enclosing()
            inside = None if parent is None else parent.number_in(session)
            if is_new is not None and inside is None:
                loop = progress.loop or begin_tick()
                # The task is found by the loop: finding that takes a system call on 3.11.
                task = current_task(loop)
                if task is not progress.task:
                    progress.task = task
                    progress.shift += 1
                verdict = is_new(key if told_apart is None else told_apart(key, arguments), entry)
                if verdict is not None:
                    instead = judge(verdict, key, now, value)
                    if instead is not None:
                        self.answered()
                        return instead.answer
            progress.calls = number
            stats.hits += 1
            stats.time_saved += entry.cost
            add((name, key, now, inside, number))
            return value

        return hit

    def _count_used(self, see: Observe) -> Observe:
        """The same for a tool that may make so many calls. What gets another answer than the tool's is none of them."""
        progress = self._progress

        def counted(key: Hashable, entry: Entry, value: Any, now: float, arguments: Mapping[str, Any] | None) -> Any:
            calls = progress.calls
            answer = see(key, entry, value, now, arguments)
            if progress.calls != calls:
                self._use()
            return answer

        return counted

    def _use(self) -> None:
        used = self._progress.used
        used[self._name] = used.get(self._name, 0) + 1

    def _ask_first(
        self, key: Hashable, entry: Entry, value: Any, now: float, arguments: Mapping[str, Any] | None
    ) -> Any:
        """What sees a hit that a budget may have something against."""
        instead = self.ask(key, now, cached=value)
        if instead is None:
            return self.see(key, entry, value, now, arguments)
        self.answered()
        return instead.answer

    def answered(self) -> None:
        self._stats.hits += 1

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Replacement | None:
        progress, parent = self._progress, ENCLOSING.get()
        is_inside = parent is not None and parent.number_in(self._session) is not None
        detector = None if is_inside else self._detector
        if call is not None and detector is not None:
            call.loop_key = self._identity.of_call(call)
        spent: tuple[str, int] | None = None
        # A run that was stopped lets the tools that are under way end: half of what they do is worse than all of it.
        if progress.calls >= (self._limit if is_inside else progress.limit):
            spent = "depth", progress.calls
        elif now >= self._deadline:
            spent = "time", progress.calls
        elif self._max_calls is not None and progress.used.get(self._name, 0) >= self._max_calls:
            spent = "tool_calls", progress.used[self._name]
        elif call is not None and call.depth > self._max_nesting:
            spent = "nesting", call.depth
        instead = (
            None
            if spent is None
            else self._reactions.to_spent(
                spent, key, now, cached if call is None else cached_for(call, now), is_inside=is_inside
            )
        )
        if instead is None and call is not None and detector is not None and detector.blocked:
            return self._ask_loops(call, now)
        return instead

    def _ask_loops(self, call: Call, now: float) -> Replacement | None:
        """Whether the call is part of a loop that was found, and told of then."""
        assert self._checks is not None
        if self._guard.refuses:
            verdict = self._checks.before(call.loop_key)
            if verdict is not None:
                return self._reactions.to_blocked(verdict, call, now)
        return None

    def admit(self, call: Call, now: float | None = None) -> Replacement | None:
        progress, detector, parent = self._progress, self._detector, call.parent
        if parent is not None and parent.number_in(self._session) is not None:
            detector = None
        is_asked = now is None
        if now is not None and (
            progress.calls >= progress.limit
            or call.depth > self._max_nesting
            or self._has_own_limit
            or (detector is not None and detector.blocked)
        ):
            is_asked = True
            instead = self.ask(call.key, now, call)
            if instead is not None:
                return instead
        if self._max_calls is not None:
            self._use()
        progress.calls = number = progress.calls + 1
        if call.numbers is None:
            call.numbers = {self._session: number}
        else:
            call.numbers[self._session] = number
        if detector is not None:
            call.began = detector.base + detector.last.count + detector.unchanged  # its moment
            if not is_asked:
                call.loop_key = call.key if self._identity.is_the_key else self._identity.of_call(call)
        return None

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None:
        parent = None if call.parent is None else call.parent.number_in(self._session)
        outcome = "ok" if error is None else _name_of(error)
        number, duration = call.numbers[self._session], now - call.started  # type: ignore[index]  # admit() has set it
        self._add((self._name, call.key, self._kind, call.source, outcome, call.started, duration, parent, number))
        world = self._world if parent is None else self._changes
        if world is not None and error is None and self._operation.is_successful(value):
            world.change(self._identity.of_call(call), self._identity.outcome(value))
        checks = self._checks
        if checks is None or parent is not None:
            return None
        progress = self._progress
        task = _CURRENT_TASK(progress.loop or self._session.begin_tick())
        if task is not progress.task:
            progress.notice(task)
        if error is None:
            witness = call.stored_entry
            if witness is not None and checks.met_first(call.loop_key, witness):
                return None
            if witness is None:
                signature, has_failed = self._identity.outcome(value), not self._operation.is_successful(value)
            else:
                signature, has_failed = None, False
        elif not isinstance(error, Exception) or call.plan.has_refused(error):
            return None  # an interruption, or of a call that the tool has made
        else:
            witness, value, signature, has_failed = None, error, signature_of(error), True
        verdict = checks.seen(
            call.loop_key,
            signature,
            value=value,
            witness=witness,
            error=has_failed,
            began=call.began,
        )
        return None if verdict is None else self._reactions.to_run(verdict, value, witness)

    def has_refused(self, error: Exception) -> bool:
        return self._guard.has_raised(error)

    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None:
        self._reactions.record(key, now, outcome)
        self._session.metrics.acted_on_loop(kind)


def _name_of(error: BaseException) -> str:
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
