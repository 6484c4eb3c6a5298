"""The order of what stands around the calls of a tool. No other module knows it.

read:   [audit: note the load]  [middleware]  [strong consistency: versions | expired results]  load
write:  [audit: note the write]  [middleware]  write

What is in brackets is there only where options or the configuration ask for it; for most tools nothing is. Recordings
and sessions stand before all of it: see `engine.call.run`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_cache.config import Configuration
from agent_cache.engine.audit import note_load, note_write, notes_writes
from agent_cache.engine.call import load, run_uncached
from agent_cache.engine.middleware import observe_call
from agent_cache.engine.operation import Proceed, Setup
from agent_cache.engine.stale import serve_expired
from agent_cache.engine.state import warn_once
from agent_cache.engine.tiers import check_versions, lease_in

__all__ = ["read_setup", "write_setup"]


def read_setup(operation: Any, configuration: Configuration) -> Setup:
    """What these settings add to the calls of a read tool."""
    policy = operation.policy
    tiers = operation.tiers()
    if tiers:
        operation.check_name()
    elif policy.remote.share:
        warn_once("share=True has no effect without a remote tier: see remote_cache= and configure()", operation.name)
    if policy.remote.shares_loads and not (tiers and hasattr(tiers[-1], "claim")):
        warn_once('flight="fleet" has no effect without a remote tier that shares loads', operation.name)
    run: Proceed = load
    if tiers and policy.remote.is_strong:
        run = partial(check_versions, run)  # it keeps no local copy that could be served expired
    elif policy.kept_for:
        run = partial(serve_expired, run)
    setup = Setup(
        configuration, _observed(operation, run, configuration), _observed(operation, run_uncached, configuration)
    )
    setup.reload = run
    setup.bare = run_uncached
    setup.tiers, setup.lease = tiers, lease_in(tiers)
    setup.keeps_plain = setup.lease is None and configuration.max_bytes is None and not policy.kept_for
    setup.follows_at_once = setup.run is load and not operation.is_sync
    setup.share = operation.audit_share(configuration) if configuration.enabled else 0.0
    if setup.share:
        setup.run = partial(note_load, setup.run)
        setup.follows_at_once = False
    return setup


def write_setup(operation: Any, configuration: Configuration, write: Proceed) -> Setup:
    """What these settings add to the calls of a write tool.

    Args:
        write: runs the write itself.
    """
    run = _observed(operation, write, configuration)
    return Setup(configuration, partial(note_write, run) if notes_writes(configuration) else run, run)


def _observed(operation: Any, run: Proceed, configuration: Configuration) -> Proceed:
    """The same inside of the middleware that are configured, and with what a stream needs to know of its call."""
    middleware = configuration.middleware_of(is_sync=operation.is_sync)
    if middleware:
        run = partial(observe_call, middleware, run)
    return run if operation.around is None else partial(operation.around, run)
