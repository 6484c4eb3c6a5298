"""Where a call is made: outside of any session, or inside a chain of them. One context variable holds one immutable
scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from agent_cache._core.entries import MISSING, Entry
from agent_cache._core.partition import Partition
from agent_cache._metrics import Metrics, Stats
from agent_cache._pipeline.call import Call
from agent_cache.config import CURRENT, Configuration
from agent_cache.errors import AgentLoopDetectedError

if TYPE_CHECKING:
    from agent_cache._pipeline.operation import Operation
    from agent_cache._pipeline.read_operation import ReadOperation
    from agent_cache._pipeline.tape import Tape

__all__ = ["ROOT", "SCOPE", "Instead", "Observe", "Participant", "Plan", "Scope", "Watch", "observer"]

TENANT: Final = object()
"""Marks the key of a tenant's entry. No argument can produce it."""


Observe = Callable[[Hashable, Entry, Any, float, Mapping[str, Any] | None], Any]
"""Key, entry, value and clock reading of a hit, and its arguments where the tool's loop guard needs them; gives the
value that the caller is to have, or raises.
"""


Enter = Callable[[Call, float], "Instead | None"]
"""Lets a call in by None, at this clock reading, or says what its caller gets instead, or raises."""

Leave = Callable[[Call, Any, BaseException | None, float], "Instead | None"]
"""What a call has come to: its value or its error, and the clock reading. Says what the caller gets instead; None if
that stands.
"""


class Instead(NamedTuple):
    """What a caller gets instead of what it has asked for.

    Attributes:
        answer: the value.
        outcome: how the trace calls it.
        kind: the loop or the budget that is behind it.
    """

    answer: Any
    outcome: str
    kind: str


class Watch(Protocol):
    """What a session contributes to the calls of one operation: a gate before, an observation after. All synchronous.

    `ask` refuses a call by raising, or answers it, or lets it go on by None; it counts nothing, and is given the answer
    of a hit. `admit` lets a miss or a write in; given the clock reading, it asks first. `hit` sees a local hit, which
    is over when it is seen, and refuses it likewise or gives another answer; `see` is the same of a hit that was asked
    about. `done` sees how a call that was let in has ended, and may give another answer, or raise. `blocked` is told of
    a call that another session has refused, `answered` of a hit that got another answer: it counts as a hit all the
    same. `has_refused` knows the errors that it has raised.
    """

    hit: Observe
    see: Observe

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Instead | None: ...
    def admit(self, call: Call, now: float | None = None) -> Instead | None: ...
    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Instead | None: ...
    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None: ...
    def answered(self) -> None: ...
    def has_refused(self, error: Exception) -> bool: ...


def entrance(watches: tuple[Watch, ...]) -> Enter | None:
    """What lets a call in: the session itself where there is just one; else all, once all have been asked. None where
    nobody watches.
    """
    if len(watches) < 2:
        return watches[0].admit if watches else None

    def enter(call: Call, now: float) -> Instead | None:
        instead = _ask(watches, call.key, now, call)
        if instead is None:
            for watch in watches:
                watch.admit(call)
        return instead

    return enter


def exit_past(watches: tuple[Watch, ...]) -> Leave | None:
    """What sees how a call that was let in has ended: every session, also if one of them stops the run over it."""
    if len(watches) < 2:
        return watches[0].done if watches else None

    def leave(call: Call, value: Any, error: BaseException | None, now: float) -> Instead | None:
        last: Instead | None = None
        stopped: AgentLoopDetectedError | None = None
        for watch in watches:
            try:
                last = watch.done(call, value, error, now) or last
            except AgentLoopDetectedError as loop:
                stopped = stopped or loop
        if stopped is not None:
            raise stopped
        return last

    return leave


def observer(watches: tuple[Watch, ...]) -> Observe:
    """What sees each local hit: the session itself where there is just one; else all, once all have been asked."""
    if len(watches) == 1:
        return watches[0].hit

    def observe(key: Hashable, entry: Entry, value: Any, now: float, arguments: Mapping[str, Any] | None = None) -> Any:
        instead = _ask(watches, key, now, cached=value)
        if instead is not None:
            for watch in watches:
                watch.answered()
            return instead.answer
        for watch in watches:
            try:
                value = watch.see(key, entry, value, now, arguments)
            except AgentLoopDetectedError as loop:
                _tell(watches, watch, key, now, type(loop).__name__, loop.kind)
                raise
        return value

    return observe


def _ask(
    watches: tuple[Watch, ...], key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING
) -> Instead | None:
    for watch in watches:
        try:
            instead = watch.ask(key, now, call, cached)
        except AgentLoopDetectedError as loop:
            _tell(watches, watch, key, now, type(loop).__name__, loop.kind)
            raise
        if instead is not None:
            _tell(watches, watch, key, now, instead.outcome, instead.kind)
            return instead
    return None


def _tell(watches: tuple[Watch, ...], by: Watch, key: Hashable, now: float, outcome: str, kind: str) -> None:
    for watch in watches:
        if watch is not by:
            watch.blocked(key, now, outcome, kind)


class Participant(Protocol):
    """Whatever takes part in the calls of a scope: a session, a tape."""

    metrics: Metrics

    def watch(self, operation: Operation[Any], *, is_innermost: bool) -> Watch | None:
        """Take part in the calls of this operation, or not."""
        ...

    def stats_of(self, operation: Operation[Any]) -> Stats | None:
        """Where its calls are counted, beside the process-wide counters."""
        ...

    def partition_of(self, operation: ReadOperation) -> Partition:
        """Where the answers of a session-scoped tool live."""
        ...

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """A loop that was detected when this run was recorded ends it now."""
        ...


class Plan:
    """How the calls of one operation run in one scope, compiled once by `assemble`.

    Attributes:
        partition: where answers are kept; None if they are not.
        admit: the synchronous half. Takes a key, and arguments as `observe` does; returns the value of a local hit or
            `MISSING`.
        observe: shows a local hit to the sessions, for who has found one by himself.
        enter: asks the sessions whether they let a call in; None outside of sessions.
        leave: shows them how it has ended; likewise.
        run: the asynchronous half, from single flight to the tool.
        load: what stands behind single flight.
        uncached: the tool and nothing else.
        watches: what the sessions of the scope contribute, innermost first.
        stats: counters of the tool, in the process and in each session.
        tenant: whose entries these are.
        trust: up to when local copies may be served; None without tiers.
        configuration: the settings it was compiled under.
    """

    __slots__ = (
        "admit",
        "configuration",
        "enter",
        "leave",
        "load",
        "observe",
        "partition",
        "run",
        "stats",
        "tenant",
        "trust",
        "uncached",
        "watches",
    )

    def __init__(
        self,
        *,
        partition: Partition | None,
        admit: Callable[..., Any],
        observe: Observe,
        run: Callable[[Call], Awaitable[Entry]],
        load: Callable[[Call], Awaitable[Entry]],
        uncached: Callable[[Call], Awaitable[Entry]],
        watches: tuple[Watch, ...],
        stats: tuple[Stats, ...],
        tenant: Hashable | None,
        trust: Callable[[], float] | None,
        configuration: Configuration,
    ) -> None:
        self.configuration = configuration
        self.partition: Any = partition
        self.admit = admit
        self.observe = observe
        self.run = run
        self.load = load
        self.uncached = uncached
        self.watches = watches
        self.enter = entrance(watches)
        self.leave = exit_past(watches)
        self.stats = stats
        self.tenant = tenant
        self.trust = trust

    def has_refused(self, error: Exception) -> bool:
        """Whether a session around the call has raised this, for a call that its tool has made. It says nothing of the
        tool, and nothing to other runs.
        """
        return any(watch.has_refused(error) for watch in self.watches)

    def qualify(self, key: Hashable) -> Hashable:
        """The key as the partition has it: with the tenant, where there is one."""
        return key if self.tenant is None else (TENANT, self.tenant, key)


class Scope:
    """An immutable place in the nesting of sessions.

    Attributes:
        participants: innermost first; empty for the root.
        owners: the same sessions as a set: what an invalidation with ``scope="session"`` reaches.
        tenant: whose run this is, None without tenants.
        answers_inline: whether a global tool may look into its store by itself: not for tenants, whose keys differ, nor
            under a tape, which is to see every call.
        tape: what records or replays the calls made here; None outside of recordings.
        plans: compiled plans by operation; a cache, and the only thing here that changes.
    """

    __slots__ = ("answers_inline", "owners", "participants", "plans", "tape", "tenant")

    def __init__(self, participants: tuple[Participant, ...] = (), tenant: Hashable | None = None) -> None:
        self.participants = participants
        self.tenant = tenant
        self.answers_inline = tenant is None
        self.owners: frozenset[object] = frozenset(participants)
        self.plans: dict[Operation[Any], Plan] = {}
        self.tape: Tape | None = None

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """This place, with one more session around what is called in it."""
        return Scope((participant, *self.participants), tenant)

    def plan(self, operation: Operation[Any]) -> Plan:
        """The plan of an operation here, compiled at its first call and again when the configuration has changed."""
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            plan = self.plans[operation] = operation.compile(self)
        return plan


class _Root(Scope):
    """Outside of any session. A tool that is no longer used takes its plan with it."""

    __slots__ = ()

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = operation.root_plan
        if plan is None or plan.configuration is not CURRENT.value:
            plan = operation.root_plan = operation.compile(self)
        return plan


ROOT: Final[Scope] = _Root()
"""Outside of any session."""

SCOPE: ContextVar[Scope] = ContextVar("agent_cache_scope", default=ROOT)
