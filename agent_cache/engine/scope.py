"""Where a call is made: outside of any session, or inside a chain of them. One context variable holds one immutable
scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_cache.config import CURRENT, Configuration
from agent_cache.core.coherence import Partition
from agent_cache.core.store import Entry
from agent_cache.engine.call import Call
from agent_cache.engine.watches import Observe, Watch, entrance, exit_past
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import Metrics, Stats

if TYPE_CHECKING:
    from agent_cache.engine.operation import Operation
    from agent_cache.engine.read_operation import ReadOperation
    from agent_cache.engine.tape import Tape

__all__ = ["ROOT", "SCOPE", "TENANT", "Participant", "Plan", "Scope"]

TENANT: Final = object()
"""Marks the key of a tenant's entry. No argument can produce it."""


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
