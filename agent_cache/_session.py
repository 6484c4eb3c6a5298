"""`AgentCacheSession`: one run of an agent, with its own cache, trace, metrics and loop guard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from contextvars import Token
from types import TracebackType
from typing import Any, Literal, NoReturn, Self
from uuid import uuid4

from agent_cache._core.entries import Entry
from agent_cache._core.keys import Uncacheable, key_part
from agent_cache._core.loops import Repeats, Streak, fingerprint
from agent_cache._core.partition import Partition
from agent_cache._core.policies import checked_choice
from agent_cache._core.trace import Trace, TraceRecord
from agent_cache._metrics import Metrics, Stats
from agent_cache._pipeline.call import ENCLOSING, NEXT_ID, Call
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.operation import Operation, ReadOperation
from agent_cache._pipeline.reaper import free
from agent_cache._pipeline.scope import SCOPE, Scope
from agent_cache._pipeline.state import LEDGER
from agent_cache.errors import AgentLoopDetectedError, ConfigurationError

__all__ = ["AgentCacheSession"]

_LOG = logging.getLogger("agent_cache")


class AgentCacheSession:
    """One run of an agent: ``async with AgentCacheSession() as session: ...``

    Inside, session-scoped tools have a cache of their own, every call is traced and counted, and a run that repeats one call
    without progress, or makes too many calls, is stopped. Child tasks belong to the session they were started in. An inner
    session's calls also count in the trace, the metrics and the budget of the outer one. Metrics and trace stay readable after
    the end; a session may be entered again then: same id, empty cache, counters go on.

    Args:
        session_id: name of the run; a random one if left out.
        loop_detection: False traces and counts only.
        max_tool_repeats: how often one call may give one outcome; the call that does so this often is refused. At least 2.
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
        loop_detection: bool = True,
        max_tool_repeats: int = 5,
        max_execution_depth: int = 200,
        on_loop: Literal["raise"] = "raise",
        *,
        tenant: Hashable | None = None,
        trace_size: int = 10_000,
    ) -> None:
        self.session_id = session_id if session_id is not None else uuid4().hex
        self.metrics = Metrics()
        self._max_repeats = _at_least(2, max_tool_repeats, "max_tool_repeats") if loop_detection else 0
        self._max_calls = _at_least(1, max_execution_depth, "max_execution_depth") if loop_detection else 0
        self._on_loop = checked_choice(on_loop, ("raise",), "AgentCacheSession: on_loop")
        self._tenant = tenant
        self._tenant_part = None if tenant is None else _tenant_part(tenant)
        self._trace = Trace(_at_least(1, trace_size, "trace_size"))
        self._partitions: dict[ReadOperation, Partition] = {}
        self._repeats = Repeats()
        self._calls = 0
        self._tick = 0
        self._tick_is_due = False
        self._loop_error: AgentLoopDetectedError | None = None
        self._times_raised = 0
        self._token: Token[Scope] | None = None

    async def __aenter__(self) -> Self:
        if self._token is not None:
            raise ConfigurationError(f"session {self.session_id!r} is already entered; use another AgentCacheSession inside of it")
        outer = SCOPE.get()
        tenant = self._tenant_part if self._tenant_part is not None else outer.tenant
        self._token = SCOPE.set(Scope((self, *outer.participants), tenant))
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
                f"session {self.session_id!r} was entered in one context and left in another, so what ran in between may have been "
                f"outside of it; enter and leave it in the same task (an `async with` inside one coroutine does)"
            ) from error
        if error is None and self._times_raised == 1:
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
            self._times_raised += 1
            raise self._loop_error

    # Taking part in the calls of a scope

    def watch(self, operation: Operation[Any], *, is_innermost: bool) -> SessionWatch:
        """See every call of an operation. Repeats count in the innermost session only, budgets and trace in all."""
        return SessionWatch(self, operation, is_innermost and self._max_repeats > 0)

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
            LEDGER.unregister(partition, partition.roots)
            garbage: list[Any] = [partition.store.drop_all()]
        free(garbage)

    # Loops and budgets

    def take_a_call(self, tool: str) -> AgentLoopDetectedError | None:
        """Count one call against the budget; the reason to refuse it, if there is one."""
        if self._loop_error is not None:
            return self._loop_error
        self._calls += 1
        if self._max_calls and self._calls > self._max_calls:
            recent = tuple(record.tool for record in self._trace.records()[-10:])
            return AgentLoopDetectedError(tool, "depth", self._calls - 1, 0, recent)
        return None

    def latch(self, error: AgentLoopDetectedError, stats: Stats) -> AgentLoopDetectedError:
        """A loop or an exhausted budget: this and every later call is refused."""
        if self._loop_error is None:
            self._loop_error = error
            _LOG.warning("loop detected: %s", error, extra={"agent_cache_event": "loop", "agent_cache_tool": error.tool})
        self._times_raised += 1
        stats.loop_detections += 1
        return self._loop_error

    def count_outcome(self, streak: Streak, outcome: bytes | None, witness: object) -> int:
        """Count one outcome of one call; how often it has been seen in this epoch."""
        return self._repeats.count(streak, outcome, witness, self._current_tick(), asyncio.current_task())

    def _current_tick(self) -> int:
        """Number of the event loop's iteration, as far as this session needs to tell them apart."""
        if not self._tick_is_due:
            self._tick_is_due = True
            asyncio.get_running_loop().call_soon(self._next_tick)
        return self._tick

    def _next_tick(self) -> None:
        self._tick += 1
        self._tick_is_due = False


class SessionWatch:
    """What a session contributes to the calls of one operation: see `Watch`."""

    __slots__ = ("_add", "_counts_repeats", "_kind", "_limit", "_name", "_repeats", "_session", "_stats")

    def __init__(self, session: AgentCacheSession, operation: Operation[Any], counts_repeats: bool) -> None:
        self._session = session
        self._name = operation.name
        self._kind = "read" if isinstance(operation, ReadOperation) else "write"
        self._stats = session.stats_of(operation)
        self._add = session._trace.add
        self._repeats = session._repeats
        self._counts_repeats = counts_repeats
        self._limit = session._max_repeats

    def admit(self, call: Call) -> None:
        call.started = CLOCK.now()
        error = self._session.take_a_call(self._name)
        if error is not None:
            self._block(call.key, call.started, call.id, error)

    def hit(self, key: Hashable, entry: Entry, value: Any, now: float) -> Any:
        session = self._session
        error = session.take_a_call(self._name)
        if error is not None:
            self._block(key, now, NEXT_ID(), error)
        if self._counts_repeats:
            streak = self._repeats.streak((self._name, key))
            outcome = streak.outcome if streak.witness is entry else fingerprint(value)
            if session.count_outcome(streak, outcome, entry) >= self._limit:
                self._block(key, now, NEXT_ID(), self._repeat(streak, value))
        parent = ENCLOSING.get()
        self._add((self._name, key, self._kind, "hit", "ok", now, 0.0, None if parent is None else parent.id, NEXT_ID()))
        return value

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Any:
        outcome = "ok" if error is None else "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
        parent = None if call.parent is None else call.parent.id
        self._add((self._name, call.key, self._kind, call.source, outcome, call.started, now - call.started, parent, call.id))
        if not self._counts_repeats or (error is not None and not isinstance(error, Exception)):
            return value
        if call.source == "write":
            if error is None and call.operation.is_successful(value):
                self._repeats.end_epoch()
            return value
        if call.key is None or call.source == "shared":
            return value
        streak = self._repeats.streak((self._name, call.key))
        seen = fingerprint(value) if error is None else fingerprint((type(error), str(error)))
        witness = call.flight.kept if error is None else None
        if self._session.count_outcome(streak, seen, witness) >= self._limit and error is None:
            raise self._session.latch(self._repeat(streak, value), self._stats)
        return value

    def _repeat(self, streak: Streak, value: Any) -> AgentLoopDetectedError:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        return AgentLoopDetectedError(self._name, "repeat", streak.count, 1, (self._name,), shown, shown)

    def _block(self, key: Hashable, now: float, number: int, error: AgentLoopDetectedError) -> NoReturn:
        parent = ENCLOSING.get()
        refused = self._session.latch(error, self._stats)
        self._add((self._name, key, self._kind, "blocked", type(error).__name__, now, 0.0, None if parent is None else parent.id, number))
        raise refused


def _at_least(bound: int, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"AgentCacheSession: {what} must be a number, {bound} or more, got {value!r}")
    return value


def _tenant_part(tenant: Hashable) -> Hashable:
    try:
        return key_part(tenant)
    except Uncacheable as error:
        raise ConfigurationError(f"AgentCacheSession: tenant must be a value with an identity, such as a text: {error.reason}") from error
