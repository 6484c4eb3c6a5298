"""`AgentCacheSession`: one run of an agent, with its own cache, trace, metrics and loop guard."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Hashable
from contextvars import Context, Token
from types import TracebackType
from typing import Any, Literal, Self

from agent_cache._core.entries import Entry
from agent_cache._core.keys import Uncacheable, key_part
from agent_cache._core.loops import NO_LIMIT, Progress, Streak, Streaks, shown
from agent_cache._core.partition import Partition
from agent_cache._core.policies import checked_choice
from agent_cache._core.trace import Trace, TraceRecord
from agent_cache._metrics import Metrics, Stats
from agent_cache._pipeline.call import ENCLOSING, Call
from agent_cache._pipeline.operation import Operation, ReadOperation
from agent_cache._pipeline.reaper import free
from agent_cache._pipeline.scope import SCOPE, Scope
from agent_cache._pipeline.state import LEDGER
from agent_cache.errors import AgentLoopDetectedError, ConfigurationError

__all__ = ["AgentCacheSession"]

_LOG = logging.getLogger("agent_cache")


class AgentCacheSession:
    """One run of an agent: ``async with AgentCacheSession() as session: ...``

    Inside, session-scoped tools have a cache of their own, every call is traced and counted, and a run that repeats
    one call without progress, or makes too many calls, is stopped. Child tasks belong to the session they were
    started in. An inner session's calls also count in the trace, the metrics and the budget of the outer one. Metrics
    and trace stay readable after the end; a session may be entered again then: same id, empty cache, counters go on.

    Args:
        session_id: name of the run; a random one if left out.
        loop_detection: False traces and counts only.
        max_tool_repeats: how often one call may give one outcome; the call that does so this often is refused. At
            least 2.
        max_execution_depth: how many calls the run may make.
        on_loop: ``"raise"`` raises `AgentLoopDetectedError`; it is latched, so later calls are refused too, and it is
            raised again at exit if something has swallowed it.
        tenant: whose run this is. Tenants never see each other's answers. An inner session has the tenant of the outer
            one unless it names its own.
        trace_size: how many calls the trace keeps.

    Raises:
        ConfigurationError: if any of this cannot work; on entering a session that is already entered; on leaving it in
            another context than it was entered in.
    """

    def __init__(
        self,
        session_id: str | None = None,
        loop_detection: bool = True,  # noqa: FBT001, FBT002 - positional for those who come from async-cache's agent layer
        max_tool_repeats: int = 5,
        max_execution_depth: int = 200,
        on_loop: Literal["raise"] = "raise",
        *,
        tenant: Hashable | None = None,
        trace_size: int = 10_000,
    ) -> None:
        self.session_id = session_id if session_id is not None else os.urandom(16).hex()
        self.metrics = Metrics()
        self._max_repeats = _at_least(2, max_tool_repeats, "max_tool_repeats")
        self._detects_loops = loop_detection
        depth = _at_least(1, max_execution_depth, "max_execution_depth")
        self._max_calls = depth if loop_detection else NO_LIMIT
        self._progress = Progress(self._max_calls)
        self._on_loop = checked_choice(on_loop, ("raise",), "AgentCacheSession: on_loop")
        self._tenant = tenant
        self._tenant_part = None if tenant is None else _tenant_part(tenant)
        self._trace = Trace(_at_least(1, trace_size, "trace_size"))
        self._partitions: dict[ReadOperation, Partition] = {}
        self._loop_error: AgentLoopDetectedError | None = None
        self._token: Token[Scope] | None = None

    async def __aenter__(self) -> Self:
        if self._token is not None:
            raise ConfigurationError(
                f"session {self.session_id!r} is already entered; use another AgentCacheSession inside of it"
            )
        outer = SCOPE.get()
        tenant = self._tenant_part if self._tenant_part is not None else outer.tenant
        self._loop_error = None
        self._progress.limit = self._max_calls
        self._progress.loop = None
        self._token = SCOPE.set(outer.within(self, tenant))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is None:
            raise ConfigurationError(f"session {self.session_id!r} is not entered")
        self._close_partitions()
        try:
            SCOPE.reset(token)
        except ValueError:
            raise ConfigurationError(
                f"session {self.session_id!r} was entered in one context and left in another, so what ran in between "
                "may have been outside of it; enter and leave it in the same task, as one `async with` does"
            ) from error
        if error is None:
            self.raise_for_loop()

    def get_metrics(self) -> dict[str, Any]:
        """Counts of this session, as `agent_cache.get_metrics` gives them for the process."""
        return self.metrics.snapshot()

    def get_execution_trace(self) -> list[TraceRecord]:
        """The last `trace_size` calls, in the order they ended."""
        return self._trace.records()

    def raise_for_loop(self) -> None:
        """Raise the loop that was detected, if one was: for callers behind a framework that swallows exceptions."""
        if self._loop_error is not None:
            raise self._loop_error

    # Taking part in the calls of a scope

    def watch(self, operation: Operation[Any], *, is_innermost: bool) -> SessionWatch:
        """See every call of an operation. Repeats count in the innermost session only, budgets and trace in all."""
        return SessionWatch(self, operation, counts_repeats=is_innermost and self._detects_loops)

    def stats_of(self, operation: Operation[Any]) -> Stats:
        """Where the calls of an operation are counted in this session."""
        return self.metrics.stats_of(operation.name, operation.tags.roots)

    def partition_of(self, operation: ReadOperation) -> Partition:
        """Where the answers of a session-scoped tool live; closed once the session has ended."""
        partition = self._partitions.get(operation)
        if partition is None:
            partition = operation.new_partition(self)
            if self._token is None:  # a task that has outlived its session
                self._close(partition)
            else:
                self._partitions[operation] = partition
        return partition

    def _close_partitions(self) -> None:
        partitions, self._partitions = self._partitions, {}
        for partition in partitions.values():
            self._close(partition)

    @staticmethod
    def _close(partition: Partition) -> None:
        with LEDGER.lock:
            partition.is_open = False
            LEDGER.unregister(partition)
            garbage: list[Any] = [partition.store.drop_all()]
        free(garbage)

    # Loops and budgets

    def recent_tools(self, count: int) -> tuple[str, ...]:
        """Names of the last few calls, oldest first."""
        return self._trace.recent_tools(count)

    @property
    def loop_error(self) -> AgentLoopDetectedError | None:
        """The loop or the exhausted budget that has stopped this run, if one has."""
        return self._loop_error

    def latch(self, error: AgentLoopDetectedError, *counters: Stats) -> AgentLoopDetectedError:
        """A loop or an exhausted budget: this and every later call is refused, with the first error."""
        if self._loop_error is None:
            self._loop_error = error
            self._progress.limit = 0
            extra = {"agent_cache_event": "loop", "agent_cache_tool": error.tool}
            _LOG.warning("loop detected: %s, %s, %d calls", error.tool, error.kind, error.count, extra=extra)
        for stats in counters:
            stats.loop_detections += 1
        return self._loop_error.with_traceback(None)  # the same error may be raised a thousand times

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """A loop that was detected when this run was recorded: it is raised again at exit, as it was then."""
        if self._loop_error is None:
            self.latch(loop)

    def begin_tick(self) -> asyncio.AbstractEventLoop:
        """Notice when this iteration of the event loop is over. Costs nothing while no call is made."""
        self._progress.loop = loop = asyncio.get_running_loop()
        loop.call_soon(self._end_tick, context=Context())  # the loop need not keep this run's context until then
        return loop

    def _end_tick(self) -> None:
        self._progress.tick += 1
        self._progress.loop = None


class SessionWatch:
    """What a session contributes to the calls of one operation: see `Watch`.

    `hit` is a closure over all it needs, since it is on the path of every hit: 0.3 us (benchmarks/budgets.py).
    """

    __slots__ = (
        "_add",
        "_kind",
        "_limit",
        "_name",
        "_process_stats",
        "_progress",
        "_session",
        "_stats",
        "_streaks",
        "hit",
    )

    hit: Callable[[Hashable, Entry, Any, float], Any]

    def __init__(self, session: AgentCacheSession, operation: Operation[Any], *, counts_repeats: bool) -> None:
        self._session = session
        self._name = operation.name
        self._kind = "read" if isinstance(operation, ReadOperation) else "write"
        self._stats = session.stats_of(operation)
        self._process_stats = operation.stats
        self._add = session._trace.add
        self._progress = session._progress
        self._streaks = Streaks() if counts_repeats else None
        self._limit = session._max_repeats
        self.hit = self._make_hit()

    def _make_hit(self) -> Callable[[Hashable, Entry, Any, float], Any]:
        session, progress, name, streaks, limit = self._session, self._progress, self._name, self._streaks, self._limit
        stats = self._stats
        known = Streaks().get if streaks is None else streaks.get
        add, enclosing, current_task, begin_tick = self._add, ENCLOSING.get, asyncio.current_task, session.begin_tick

        def hit(key: Hashable, entry: Entry, value: Any, now: float) -> Any:
            number = progress.calls + 1
            if number > progress.limit:
                self.ask(key, now)
            progress.calls = number
            if streaks is not None:
                loop = progress.loop or begin_tick()
                streak = known(key)
                if streak is not None and streak.witness is entry and streak.epoch == progress.epoch:
                    task = current_task(loop)  # told the loop: finding it takes a system call on 3.11
                    if streak.task is task or streak.tick != progress.tick:
                        streak.tick, streak.task = progress.tick, task
                        count = streak.count = streak.count + 1
                        if count >= limit:
                            progress.calls -= 1
                            raise self._refused(key, now, self._repeat(streak, value))
                elif self._see(key, value, entry) >= limit:
                    progress.calls -= 1
                    raise self._refused(key, now, self._repeat(self._streak(key), value))
            stats.hits += 1
            stats.time_saved += entry.cost
            parent = enclosing()
            add(
                (
                    name,
                    key,
                    "read",
                    "hit",
                    "ok",
                    now,
                    0.0,
                    None if parent is None else parent.number_in(session),
                    number,
                )
            )
            return value

        return hit

    def ask(self, key: Hashable, now: float) -> None:
        progress = self._progress
        if progress.calls >= progress.limit:
            session = self._session
            error = session.loop_error or AgentLoopDetectedError(
                self._name, "depth", progress.calls, 0, session.recent_tools(10)
            )
            raise self._refused(key, now, error)

    def admit(self, call: Call) -> None:
        self._progress.calls += 1
        if call.numbers is None:
            call.numbers = {}
        call.numbers[self._session] = self._progress.calls

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Any:
        outcome = (
            "ok"
            if error is None
            else "cancelled"
            if isinstance(error, asyncio.CancelledError)
            else type(error).__name__
        )
        parent = None if call.parent is None else call.parent.number_in(self._session)
        number = call.number_in(self._session)
        self._add(
            (self._name, call.key, self._kind, call.source, outcome, call.started, now - call.started, parent, number)
        )
        if self._streaks is None or (error is not None and not isinstance(error, Exception)):
            return value
        if call.source == "write":
            if error is None and call.operation.is_successful(value):
                self._progress.epoch += 1  # what was asked before may be asked again
        elif call.key is not None and call.source != "shared":
            if error is not None:
                if self._see(call.key, (type(error), shown(error)), None) >= self._limit:
                    # What the tool raises reaches the caller unchanged; the next call is the one that is refused.
                    self._session.latch(self._repeat(self._streak(call.key), error), call.operation.stats, self._stats)
            elif self._see(call.key, value, None if call.source == "uncached" else call.flight.kept) >= self._limit:
                raise self._session.latch(
                    self._repeat(self._streak(call.key), value), call.operation.stats, self._stats
                )
        return value

    def blocked(self, key: Hashable, now: float, error: AgentLoopDetectedError) -> None:
        if error is not self._session.loop_error:
            self._record_blocked(key, now, error)
            self._stats.loop_detections += 1

    def _refused(self, key: Hashable, now: float, error: AgentLoopDetectedError) -> AgentLoopDetectedError:
        refused = self._session.latch(error, self._process_stats, self._stats)
        self._record_blocked(key, now, refused)
        return refused

    def _record_blocked(self, key: Hashable, now: float, error: AgentLoopDetectedError) -> None:
        parent = ENCLOSING.get()
        number = None if parent is None else parent.number_in(self._session)
        self._add(
            (self._name, key, self._kind, "blocked", type(error).__name__, now, 0.0, number, self._progress.calls)
        )

    def _streak(self, key: Hashable) -> Streak:
        assert self._streaks is not None
        return self._streaks.of(key)

    def _see(self, key: Hashable, outcome: object, witness: Entry | None) -> int:
        assert self._streaks is not None
        progress = self._progress
        task = asyncio.current_task(progress.loop or self._session.begin_tick())
        return self._streaks.of(key).see(outcome, witness, progress.epoch, progress.tick, task)

    def _repeat(self, streak: Streak, value: Any) -> AgentLoopDetectedError:
        outcome = shown(value)
        return AgentLoopDetectedError(self._name, "repeat", streak.count, 1, (self._name,), outcome, outcome)


def _at_least(bound: int, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"AgentCacheSession: {what} must be a number, {bound} or more, got {value!r}")
    return value


def _tenant_part(tenant: Hashable) -> Hashable:
    try:
        return key_part(tenant)
    except Uncacheable as error:
        raise ConfigurationError(
            f"AgentCacheSession: tenant must be a value with an identity, such as a text: {error.reason}"
        ) from error
