"""Where a call is made: outside of any session, or inside a chain of them. One context variable holds one immutable scope."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_cache._core.entries import Entry
from agent_cache._core.partition import Partition
from agent_cache._metrics import Stats
from agent_cache._pipeline.call import Call
from agent_cache.config import CURRENT, Configuration

if TYPE_CHECKING:
    from agent_cache._pipeline.operation import Operation

__all__ = ["ROOT", "SCOPE", "Participant", "Plan", "Scope", "Watch"]

TENANT: Final = object()
"""Marks the key of a tenant's entry. No argument can produce it."""


class Watch(Protocol):
    """What a session contributes to the calls of one operation: a gate before, an observation after.

    `admit` refuses a miss or a write by raising. `hit` sees a local hit, which is over when it is seen, and refuses it
    likewise or gives another answer. `done` sees how a call that was admitted has ended, and may give another answer.
    All are synchronous.
    """

    def admit(self, call: Call) -> None: ...
    def hit(self, key: Hashable, entry: Entry, value: Any, now: float) -> Any: ...
    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Any: ...


class Participant(Protocol):
    """Whatever takes part in the calls of a scope: a session, a tape."""

    def watch(self, operation: Operation[Any], *, is_innermost: bool) -> Watch | None:
        """Take part in the calls of this operation, or not."""
        ...

    def stats_of(self, operation: Operation[Any]) -> Stats | None:
        """Where its calls are counted, beside the process-wide counters."""
        ...

    def partition_of(self, operation: Operation[Any]) -> Partition:
        """Where the answers of a session-scoped tool live."""
        ...


class Plan:
    """How the calls of one operation run in one scope, compiled once by `assemble`.

    Attributes:
        partition: where answers are kept; None if they are not.
        admit: the synchronous half. Takes a key, returns the value of a local hit or `MISSING`.
        run: the asynchronous half, from single flight to the tool.
        uncached: the tool and nothing else.
        watches: what the sessions of the scope contribute, innermost first.
        stats: counters of the tool, in the process and in each session.
        tenant: whose entries these are.
        trust: up to when local copies may be served; None without tiers.
    """

    __slots__ = ("admit", "partition", "run", "stats", "tenant", "trust", "uncached", "watches")

    def __init__(
        self,
        *,
        partition: Partition | None,
        admit: Callable[[Hashable], Any],
        run: Callable[[Call], Awaitable[Entry]],
        uncached: Callable[[Call], Awaitable[Entry]],
        watches: tuple[Watch, ...],
        stats: tuple[Stats, ...],
        tenant: Hashable | None,
        trust: Callable[[], float] | None,
    ) -> None:
        self.partition: Any = partition
        self.admit = admit
        self.run = run
        self.uncached = uncached
        self.watches = watches
        self.stats = stats
        self.tenant = tenant
        self.trust = trust

    def qualify(self, key: Hashable) -> Hashable:
        """The key as the partition has it: with the tenant, where there is one."""
        return key if self.tenant is None else (TENANT, self.tenant, key)


class Scope:
    """An immutable place in the nesting of sessions.

    Attributes:
        participants: innermost first; empty for the root.
        tenant: whose run this is, None without tenants.
        owners: the same sessions as a set: what an invalidation with ``scope="session"`` reaches.
        plans: compiled plans by operation; a cache, and the only thing here that changes.
    """

    __slots__ = ("__weakref__", "owners", "participants", "plans", "tenant")

    def __init__(self, participants: tuple[Participant, ...] = (), tenant: Hashable | None = None) -> None:
        self.participants = participants
        self.tenant = tenant
        self.owners: frozenset[object] = frozenset(participants)
        self.plans: MutableMapping[Operation[Any], Plan] = {} if participants else weakref.WeakKeyDictionary()
        _SCOPES.add(self)

    def plan(self, operation: Operation[Any]) -> Plan:
        """The plan of an operation here, compiled at its first call."""
        plan = self.plans.get(operation)
        if plan is None:
            plan = self.plans[operation] = operation.compile(self)
        return plan


_SCOPES: weakref.WeakSet[Scope] = weakref.WeakSet()


def _forget_plans(_old: Configuration, _new: Configuration) -> None:
    for scope in list(_SCOPES):
        scope.plans.clear()


CURRENT.listeners.append(_forget_plans)

ROOT: Final = Scope()
"""Outside of any session."""

SCOPE: ContextVar[Scope] = ContextVar("agent_cache_scope", default=ROOT)
