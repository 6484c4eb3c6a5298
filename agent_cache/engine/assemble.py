"""The order of things. This is the only module that knows it.

read:   gates [local lookup, sessions]  ->  stages [(tiers,) single flight, tiers]  ->  source [the tool, then keep]
write:  gates [sessions]                ->  stages [begin ... commit]      ->  source [the tool]

Recording and replaying stand outermost: `under_a_tape` and `beneath_a_tape` are the two halves of such a plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.coherence import Partition
from agent_cache.core.store import Entry
from agent_cache.engine.call import Call, Stage
from agent_cache.engine.identities import check_identity
from agent_cache.engine.invalidate import invalidate
from agent_cache.engine.scope import TENANT, Plan, Scope
from agent_cache.engine.single_flight import single_flight
from agent_cache.engine.sources import load, run_tool
from agent_cache.engine.state import log_once
from agent_cache.engine.tiers import ask_first, consult_tiers, trust_in
from agent_cache.engine.watches import Observe, Watch, observer
from agent_cache.metrics import Stats
from agent_cache.values.canonical import MISSING

if TYPE_CHECKING:
    from agent_cache.engine.operation import Operation
    from agent_cache.engine.read_operation import ReadOperation

__all__ = ["beneath_a_tape", "read_plan", "under_a_tape", "write_plan"]

Run = Callable[[Call], Awaitable[Entry]]


def read_plan(operation: ReadOperation, scope: Scope) -> Plan:
    """How a read tool runs in a scope."""
    configuration = CURRENT.value  # first: what another thread changes meanwhile makes it an outdated plan
    if operation.policy.scope == "global":
        partition: Partition | None = operation.partition
        tenant = scope.tenant
    else:
        partition = scope.participants[0].partition_of(operation) if scope.participants else None
        # A session has one tenant, and its answers do not leave it unless they are to be shared.
        tenant = scope.tenant if operation.policy.remote.share else None
    watches, stats = _contributions(operation, scope)
    observe = observer(watches)
    tiers = operation.tiers()
    if tiers:
        check_identity(operation)
    stages: list[Stage] = [single_flight, consult_tiers] if tiers else [single_flight]
    if operation.policy.remote.share and not tiers:
        log_once("share=True has no effect without a remote tier: see remote_cache= and configure()", operation.name)
    if tiers and operation.policy.remote.is_strong:
        stages.insert(0, ask_first)
    return Plan(
        partition=partition,
        admit=_nothing if partition is None else _local_lookup(partition, observe, operation.stats, tenant),
        observe=observe,
        run=run_tool if partition is None else _compose(stages, load),
        load=_compose(stages[stages.index(single_flight) + 1 :], load),
        uncached=run_tool,
        watches=watches,
        stats=stats,
        tenant=tenant,
        trust=trust_in(tiers),
        configuration=configuration,
    )


def write_plan(operation: Operation[Any], scope: Scope) -> Plan:
    """How a write tool runs in a scope."""
    configuration = CURRENT.value
    watches, stats = _contributions(operation, scope)
    return Plan(
        partition=None,
        admit=_nothing,
        observe=observer(watches),
        run=_compose([invalidate], run_tool),
        load=run_tool,
        uncached=run_tool,
        watches=watches,
        stats=stats,
        tenant=scope.tenant,
        trust=None,
        configuration=configuration,
    )


def under_a_tape(plan: Plan) -> Plan:
    """No gate answers: the tape is to have every call, whole, before anything is looked up."""
    taped = copy(plan)
    taped.admit = _nothing
    taped.partition = None
    return taped


def beneath_a_tape(plan: Plan, sight: Stage) -> Plan:
    """What a tape lets a call go on to: all of the plan, with `sight` seeing first what is no local hit."""
    seen = copy(plan)
    seen.run = partial(sight, proceed=plan.run)
    seen.load = partial(sight, proceed=plan.load)
    seen.uncached = partial(sight, proceed=plan.uncached)
    return seen


def _contributions(operation: Operation[Any], scope: Scope) -> tuple[tuple[Watch, ...], tuple[Stats, ...]]:
    watches = tuple(
        watch
        for index, participant in enumerate(scope.participants)
        if (watch := participant.watch(operation, is_innermost=index == 0)) is not None
    )
    counted = tuple(
        stats for participant in scope.participants if (stats := participant.stats_of(operation)) is not None
    )
    return watches, (operation.stats, *counted)


def _compose(stages: Sequence[Stage], source: Run) -> Run:
    run = source
    for stage in reversed(stages):
        run = partial(stage, proceed=run)
    return run


def _nothing(_key: Hashable, _arguments: Mapping[str, Any] | None = None) -> Any:
    return MISSING


def _local_lookup(partition: Partition, observe: Observe, stats: Stats, tenant: Hashable | None) -> Callable[..., Any]:
    """The gate that answers. The generated body of a tool says the same inline for the scopes that it may; see
    `codegen`.
    """
    store, clock = partition.store, CLOCK

    def local_lookup(key: Hashable, arguments: Mapping[str, Any] | None = None) -> Any:
        entry = store.lookup(key)
        if entry is None:
            return MISSING
        now = clock.now()
        value = entry.value if now < entry.fast else entry.recall(now)
        if value is MISSING:
            return MISSING
        value = observe(key, entry, value, now, arguments)
        if entry is not store.newest:
            store.use(key, entry)
        stats.hits += 1
        stats.time_saved += entry.cost
        return value

    if tenant is None:
        return local_lookup
    return lambda key, arguments=None: local_lookup((TENANT, tenant, key), arguments)
