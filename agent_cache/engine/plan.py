"""The order of the stages. No other module knows it.

read:   gates [local lookup, sessions]  ->  stages [(versions,) single flight, tiers]  ->  source [load: run, store]
write:  gates [sessions]                ->  stages [invalidate: begin ... commit]      ->  source [run_tool]

With `grace` or `stale_if_error` the first stage of a read is [expired], unless it is [versions]. Middleware stand
before the first stage, and before a source that runs alone, in configurations that have some. Before these stands what
audits need to know: [note_load] of a tool that is audited, [note_write] while any tool is.

Recording and replaying stand before the gates: see `engine.interception`. The decorators give `read_plan` and
`write_plan` to the operations they make; nothing else imports this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, NamedTuple

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.lease import Lease
from agent_cache.core.store import Entry, Store
from agent_cache.engine.audit import note_load, note_write, notes_writes, sampled_admit
from agent_cache.engine.expired import serve_expired
from agent_cache.engine.middleware import observe_call
from agent_cache.engine.read import ReadOperation, check_name
from agent_cache.engine.runtime import (
    PLACE,
    ROOT,
    TENANT,
    Call,
    CallObserver,
    Enter,
    Leave,
    Observe,
    Operation,
    Plan,
    Replacement,
    Scope,
    Stage,
)
from agent_cache.engine.single_flight import single_flight, thread_flight
from agent_cache.engine.state import warn_once
from agent_cache.engine.store_result import (
    inherit_entry,
    load,
    load_at_once,
    run_at_once,
    run_tool,
    run_uncached,
)
from agent_cache.engine.streaming import load_stream, stream_flight, thread_stream_flight
from agent_cache.engine.tiers import check_versions, consult_tiers, lease_in
from agent_cache.engine.write import WriteOperation, invalidate
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import Stats
from agent_cache.values.canonical import MISSING

__all__ = ["read_plan", "write_plan"]

Run = Callable[[Call], Awaitable[Entry]]


def read_plan(operation: ReadOperation, scope: Scope) -> Plan:
    """Compile how a read tool runs in a scope."""
    if scope.outside_of_load is not scope:
        return _inside_load(scope.outside_of_load.plan(operation), operation)
    configuration = CURRENT.value  # first: a change in another thread meanwhile makes this plan an outdated one
    store: Store | None
    if operation.policy.scope == "global":
        store = operation.store
        tenant = scope.tenant
    else:
        store = scope.participants[0].store_of(operation) if scope.participants else None
        # A session has one tenant, and its answers stay in it unless they are shared.
        tenant = scope.tenant if operation.policy.remote.share else None
    if scope.bypasses:
        store = None
    observers, stats = _of_sessions(operation, scope)
    observe = _observe(observers)
    shared = ROOT.plan(operation) if scope is not ROOT else None
    if shared is not None and shared.configuration is configuration:
        stages = _Stages(shared.run, shared.reload, shared.load, shared.uncached, shared.lease)
    else:
        stages = _read_stages(operation, configuration)
    admit = _no_hit if store is None else _local_lookup(store, observe, operation.stats, tenant)
    share = 0.0 if store is None or not configuration.enabled else operation.audit_share(configuration)
    return Plan(
        store=store,
        admit=sampled_admit(admit, share) if share else admit,
        unsampled=admit if share else None,
        observe=observe,
        enter=_enter(observers),
        leave=_leave(observers),
        run=stages.run,
        reload=stages.reload,
        load=stages.load,
        uncached=stages.uncached,
        observers=observers,
        stats=stats,
        tenant=tenant,
        lease=stages.lease,
        configuration=configuration,
        keeps_plain=stages.lease is None and configuration.max_bytes is None and not operation.policy.kept_for,
        follows_at_once=not observers
        and not operation.is_sync
        and not operation.policy.remote.is_strong
        and not operation.policy.kept_for  # `serve_expired` comes first
        and stages.run is stages.reload,
    )


class _Stages(NamedTuple):
    """The asynchronous half of a read, as in `Plan`."""

    run: Run
    reload: Run
    load: Run
    uncached: Run
    lease: Lease | None


def _read_stages(operation: ReadOperation, configuration: Configuration) -> _Stages:
    """No scope changes them, so all plans of an operation share them: to make them takes a tenth of its first call."""
    tiers = operation.tiers()
    if tiers:
        check_name(operation)
    flight: Stage = thread_flight if operation.is_sync else single_flight
    source = load_at_once if operation.returns_at_once else load
    if operation.is_stream:
        flight, source = thread_stream_flight if operation.is_sync else stream_flight, load_stream
    stages: list[Stage] = [flight, consult_tiers] if tiers else [flight]
    if operation.policy.remote.share and not tiers:
        warn_once("share=True has no effect without a remote tier: see remote_cache= and configure()", operation.name)
    if operation.policy.remote.shares_loads and not (tiers and hasattr(tiers[-1], "claim")):
        warn_once('flight="fleet" has no effect without a remote tier that shares loads', operation.name)
    if tiers and operation.policy.remote.is_strong:
        stages.insert(0, check_versions)  # it keeps no local copy that could be served expired
    elif operation.policy.kept_for:
        stages.insert(0, serve_expired)
    run = _compose(stages, source)
    observed = _observed(run, operation, configuration)
    return _Stages(
        partial(note_load, observed) if operation.audit_share(configuration) else observed,
        run,
        _compose(stages[stages.index(flight) + 1 :], source),
        _observed(run_uncached, operation, configuration),
        lease_in(tiers),
    )


def _observed(run: Run, operation: Operation[Any], configuration: Configuration) -> Run:
    """The same inside of the middleware that are configured."""
    middleware = configuration.middleware_of(is_sync=operation.is_sync)
    return partial(observe_call, middleware, run) if middleware else run


def _inside_load(outside: Plan, operation: ReadOperation) -> Plan:
    """The same plan for a read that the tool of another read makes: that one inherits from local hits."""
    if outside.store is None:
        return outside
    plan = copy(outside)
    plan.admit = _local_lookup(plan.store, plan.observe, operation.stats, plan.tenant, within=outside)
    if outside.unsampled is not None:
        plan.unsampled = plan.admit
        plan.admit = sampled_admit(plan.admit, operation.audit_share(outside.configuration))
    return plan


def write_plan(operation: WriteOperation, scope: Scope) -> Plan:
    """Compile how a write tool runs in a scope."""
    if scope.outside_of_load is not scope:
        return scope.outside_of_load.plan(operation)
    configuration = CURRENT.value
    observers, stats = _of_sessions(operation, scope)
    run = _RUN_WRITE_AT_ONCE if operation.returns_at_once else _RUN_WRITE
    observed = _observed(run, operation, configuration)
    return Plan(
        store=None,
        admit=_no_hit,
        observe=_observe(observers),
        enter=_enter(observers),
        leave=_leave(observers),
        run=partial(note_write, observed) if notes_writes(configuration) else observed,
        reload=run,
        load=run_tool,
        uncached=run_tool,
        observers=observers,
        stats=stats,
        tenant=scope.tenant,
        lease=None,
        configuration=configuration,
    )


def _compose(stages: Sequence[Stage], source: Run) -> Run:
    run = source
    for stage in reversed(stages):
        run = partial(stage, run)
    return run


_RUN_WRITE: Final = _compose([invalidate], run_tool)
_RUN_WRITE_AT_ONCE: Final = _compose([invalidate], run_at_once)


def _no_hit(_key: Hashable, _arguments: Mapping[str, Any] | None = None) -> Any:
    return MISSING


def _local_lookup(
    store: Store, observe: Observe, stats: Stats, tenant: Hashable | None, within: Plan | None = None
) -> Callable[..., Any]:
    """Make the gate that answers local hits. `engine.codegen` generates the same steps inline where a scope allows.

    Args:
        within: the plan outside of loads, if the load that a call is made in inherits from its hits.
    """
    clock, place_of, versions = CLOCK, PLACE.get, store.versions

    def local_lookup(key: Hashable, arguments: Mapping[str, Any] | None = None) -> Any:
        entry = store.lookup(key)
        if entry is None:
            return MISSING
        now = clock.now()
        value = entry.value if now < entry.fast and entry.lease is None else entry.value_at(now)
        if value is MISSING:
            return MISSING
        call = place_of().call
        if within is not None and call is not None and call.within is not None:
            if not inherit_entry(call.within, within, key, entry):
                return MISSING
        elif entry.checked != versions.now and not store.is_current(key, entry):
            return MISSING
        value = observe(key, entry, value, now, arguments, call)
        if entry is not store.newest:
            store.use(key, entry)
        stats.hits += 1
        stats.time_saved += entry.cost
        return value

    if tenant is None:
        return local_lookup
    return lambda key, arguments=None: local_lookup((TENANT, tenant, key), arguments)


# Sessions: one observer is called directly; of several, all are asked before any of them sees the call


def _of_sessions(operation: Operation[Any], scope: Scope) -> tuple[tuple[CallObserver, ...], tuple[Stats, ...]]:
    """The observers that the sessions of a scope contribute, innermost first, and all counters of the tool."""
    observers: tuple[CallObserver, ...] = ()
    counted: tuple[Stats, ...] = (operation.stats,)
    for participant in scope.participants:
        observer = participant.observer_of(operation, is_innermost=participant is scope.participants[0])
        observers += (observer,)
        counted += (observer.stats,)
    return observers, counted


def _enter(observers: tuple[CallObserver, ...]) -> Enter | None:
    if len(observers) < 2:
        return observers[0].admit if observers else None

    def enter(call: Call, now: float) -> Replacement | None:
        replacement = _ask(observers, call.key, now, call)
        if replacement is None:
            for observer in observers:
                observer.admit(call)
        return replacement

    return enter


def _leave(observers: tuple[CallObserver, ...]) -> Leave | None:
    """Every session sees the end of a call, also if one of them stops the run because of it."""
    if len(observers) < 2:
        return observers[0].done if observers else None

    def leave(call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None:
        last: Replacement | None = None
        stopped: AgentLoopDetectedError | None = None
        for observer in observers:
            try:
                last = observer.done(call, value, error, now) or last
            except AgentLoopDetectedError as loop:
                stopped = stopped or loop
        if stopped is not None:
            raise stopped
        return last

    return leave


def _observe(observers: tuple[CallObserver, ...]) -> Observe:
    if len(observers) == 1:
        return observers[0].hit

    def observe(
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
    ) -> Any:
        replacement = _ask(observers, key, now, cached=value)
        if replacement is not None:
            for observer in observers:
                observer.answered()
            return replacement.answer
        for observer in observers:
            try:
                value = observer.see(key, entry, value, now, arguments, parent)
            except AgentLoopDetectedError as loop:
                _report_blocked(observers, observer, key, now, type(loop).__name__, loop.kind)
                raise
        return value

    return observe


def _ask(
    observers: tuple[CallObserver, ...], key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING
) -> Replacement | None:
    for observer in observers:
        try:
            replacement = observer.ask(key, now, call, cached)
        except AgentLoopDetectedError as loop:
            _report_blocked(observers, observer, key if call is None else call.key, now, type(loop).__name__, loop.kind)
            raise
        if replacement is not None:
            key = key if call is None else call.key
            _report_blocked(observers, observer, key, now, replacement.outcome, replacement.kind)
            return replacement
    return None


def _report_blocked(
    observers: tuple[CallObserver, ...], by: CallObserver, key: Hashable, now: float, outcome: str, kind: str
) -> None:
    for observer in observers:
        if observer is not by:
            observer.blocked(key, now, outcome, kind)
