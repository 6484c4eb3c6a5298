"""Audits: a share of the local hits is checked, by running the tool again beside them.

The lookups of an audited tool find nothing in that share of the calls, drawn at random, so that these reach
`engine.call.run`. There the same lookup is made again, the caller gets its hit as ever, and `begin_audit` starts the
tool in a task of its own, or in a thread for a `def`.

A difference proves that a tag is missing only if no write has touched the entry since the hit. That is asked in the
same step in which the entry is looked up again and dropped. In a fleet the messages of other processes may still be
on their way: the farthest tier is asked whether it, too, still has the cached answer.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from agent_cache.at_fork import at_fork
from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.store import Entry, Lookup
from agent_cache.core.tags import Tag, root_of
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.middleware import shown_arguments
from agent_cache.engine.operation import TOO_LONG, Operation
from agent_cache.engine.scope import HOOKS, PLACE, ROOT, Call, LocalTool, Participant, Scope
from agent_cache.engine.state import LOG, TOOLS, random_numbers, run_beside, warn_once, write_now
from agent_cache.engine.tiers import of_tier, request_of
from agent_cache.values.canonical import MISSING
from agent_cache.values.compare import fingerprint
from agent_cache.values.copies import UncopyableError, auto_copier

__all__ = ["StaleHit", "audits_running", "begin_audit", "chooses", "forget_audits", "sampled_lookup"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StaleHit:
    """A cached answer that was found to be stale: what ``configure(on_stale=...)`` is given.

    Attributes:
        tool: ``module:qualname`` of the tool, or its `name=`.
        arguments: of the call that was answered from the cache, by parameter name, as `ToolCall.arguments`.
        cached: the answer that it got.
        fresh: what the tool has returned since.
        tags: what the cached answer depends on.
        session: the id of the innermost session of the call, None outside of sessions.
    """

    tool: str
    arguments: Mapping[str, Any]
    cached: Any
    fresh: Any
    tags: tuple[Tag, ...]
    session: str | None

    def __repr__(self) -> str:
        return f"<StaleHit of {self.tool}, tags {', '.join(self.tags)}>"


# Which hits


def chooses(share: float) -> bool:
    """Whether a hit is chosen, with this probability."""
    return random_numbers("audit").random() < share


def sampled_lookup(share: float) -> Callable[[Lookup], Lookup]:
    """Makes a lookup of generated code find nothing in this share of the calls."""
    draw = random_numbers("audit").random
    return lambda lookup: lambda key: None if draw() < share else lookup(key)


def _apply(old: Configuration, new: Configuration) -> None:
    if old.audit != new.audit:
        for tool in TOOLS.readers():
            share = tool.audit_share(CURRENT.value)
            for store in tool.stores():
                store.sample(sampled_lookup(share) if share else None)


CURRENT.listeners.append(_apply)


# Audits

_running: set[Operation[Any]] = set()
"""Tools that are audited: each once at a time."""

_excluded: weakref.WeakSet[Operation[Any]] = weakref.WeakSet()
_logged: weakref.WeakSet[Operation[Any]] = weakref.WeakSet()
"""Tools that have written while they were audited; tools whose stale answers were logged."""

at_fork(after_in_child=_running.clear)  # they go on in the parent


def audits_running() -> int:
    """How many audits have begun and not ended."""
    return len(_running)


def forget_audits() -> None:
    """Forget the audits that run, and which tools cannot be audited."""
    for known in (_running, _excluded, _logged):
        known.clear()


def begin_audit(
    operation: Operation[Any], local: LocalTool, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Audit a call that was just answered by a local hit, unless its tool is being audited already."""
    qualified = local.qualify(key)
    found = local.store.find(qualified)
    # To a recorder, a call of a thread of ours would be one that has lost its context.
    if found is None or operation in _excluded or (operation.is_sync and HOOKS):
        return
    try:  # the caller may change its arguments as soon as it has its answer, and so may the tool
        call = Call(operation, local, qualified, *_copied(operation.parameters, args, kwargs), "write")
    except UncopyableError:
        return
    with VERSIONS.lock:
        if operation in _running:
            return
        _running.add(operation)
    ended, name = partial(_running.discard, operation), f"agent_cache audits {operation.name}"
    run_beside(_Audit(call, key, found).run, name, ended, is_sync=operation.is_sync)


class _WriteRefused(RuntimeError):
    """A tool that is audited has called a write tool, or entered a block of `writing`."""


class _AuditScope(Scope):
    """Where the tool of an audit makes its calls: reads run uncached and uncounted, and a write is refused."""

    __slots__ = ("_audit",)

    def __init__(self, audit: _Audit, participants: tuple[Participant, ...], tenant: Hashable | None) -> None:
        super().__init__(participants, tenant, bypasses=True)
        self._audit = audit

    def like(self, participants: tuple[Participant, ...], tenant: Hashable | None, **_flag: bool) -> Scope:
        return _AuditScope(self._audit, participants, tenant)

    def check_write(self, name: str) -> NoReturn:
        self._audit.has_written = True
        raise _WriteRefused(f"{name} was not run: it writes, and its caller is only audited")

    async def _refuse(self, call: Call) -> NoReturn:
        self.check_write(call.operation.name)

    def add_local(self, operation: Any) -> LocalTool:
        local = super().add_local(operation)
        local.stats = ()
        local.setup = setup = copy(local.setup)
        if operation.is_read:
            setup.uncached = setup.bare
        else:
            setup.run = self._refuse
        return local


class _Audit:
    """One run of a tool beside a hit. The call, with copies of its arguments, is not made: it tells tiers which one is
    meant. The key is without a tenant.
    """

    def __init__(self, call: Call, key: Hashable, found: Entry) -> None:
        self._call, self._key, self._found = call, key, found
        self._operation, self._local = call.operation, call.local
        participants = call.scope.participants
        self._session = participants[0].session_id if participants else None
        self.has_written = False  # whether the tool wanted to write: an audit must not have any effect

    async def run(self) -> None:
        """Run the tool, and compare."""
        PLACE.set(_AuditScope(self, (), self._local.tenant))
        name = self._operation.name
        try:
            await self._compare()
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the tool's own, SystemExit too; the caller has its answer
            if not self.has_written:
                warn_once("an audit of a hit failed, so it says nothing", name, error)
        if self.has_written:
            _excluded.add(self._operation)
            warn_once("the tool writes, so its hits cannot be audited", name)

    async def _compare(self) -> None:
        operation, call = self._operation, self._call
        cached = self._found.share()
        expected = None if cached is MISSING else self._identity(cached)
        if expected is None:
            warn_once("its results cannot be compared, so its hits cannot be audited", operation.name)
            return
        fresh = operation.coroutine_function(*call.args, **call.kwargs)
        if not operation.returns_at_once:
            fresh = await fresh
        # The arguments, and what the calls of the tool vary by, must still identify the call that was answered.
        key = operation.key_of(operation.parameters.named(call.args, call.kwargs))
        if self.has_written or fresh is TOO_LONG or not operation.is_successful(fresh) or key != self._key:
            return
        found = self._identity(fresh)
        is_stale = found != expected
        if is_stale and not (found is not None and await self._is_in_tiers(expected) and self._drop()):
            return
        for stats in self._local.stats:
            stats.audits += 1
            stats.stale_found += is_stale
        if is_stale:
            self._report(cached, fresh)
            if tiers := operation.possible_tiers():
                await of_tier(call, operation.discard, tiers, call.key, self._request())

    def _identity(self, value: Any) -> bytes | None:
        outcome_key = self._operation.policy.loop.outcome_key
        return fingerprint(value if outcome_key is None else outcome_key(value))

    async def _is_in_tiers(self, expected: bytes) -> bool:
        """Whether the farthest tier has the cached answer, too. Otherwise a write of another process explains the
        difference, whose message has not arrived yet.
        """
        tiers = self._operation.tiers()
        if not tiers:
            return True
        found, _ = await of_tier(self._call, tiers[-1].lookup, self._request())
        return found is not None and self._identity(found.value) == expected

    def _request(self) -> Any:
        call = self._call
        call.tags = tuple([tag for rule in self._operation.tags.early for tag in rule.make(call.arguments, None)])
        return request_of(call)

    def _drop(self) -> bool:
        """Drop the entry, unless a write explains why the answers differ, or it may not be served any more anyway."""
        store, key, found, now = self._local.store, self._call.key, self._found, CLOCK.now()
        roots = {root_of(tag) for tag in found.tags if isinstance(tag, str)}
        with VERSIONS.lock:
            VERSIONS.expire(now)
            is_unexplained = (
                store.is_open
                and store.find(key) is found
                and all(roots.isdisjoint(write.late) for write in VERSIONS.running)
                and found.is_valid_at(now)
            )
            if is_unexplained:
                write_now(keys=((self._operation, key),))
        return is_unexplained

    def _report(self, cached: Any, fresh: Any) -> None:
        operation, call, on_stale = self._operation, self._call, CURRENT.value.on_stale
        if operation not in _logged:
            _logged.add(operation)
            _log_stale(operation)
        if on_stale is None:
            return
        arguments = shown_arguments(operation, operation.parameters.named(call.args, call.kwargs))
        tags = tuple([tag for tag in dict.fromkeys(self._found.tags) if isinstance(tag, str)])
        outside = copy_context()  # what it calls is neither audited nor a call of the session
        outside.run(PLACE.set, ROOT)
        try:
            outside.run(on_stale, StaleHit(operation.name, arguments, cached, fresh, tags, self._session))
        except Exception as error:  # noqa: BLE001 - the user's function; the entry is dropped all the same
            warn_once("on_stale raised", operation.name, error)


def _copied(parameters: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with copies of those that identify a call. Raises `UncopyableError` if one cannot be copied."""
    is_by_name = not parameters.all  # what runs a tool that is known by name is in front of its arguments
    arguments = dict(kwargs) if is_by_name else parameters.named(args, kwargs)
    keyed = set(arguments) if is_by_name else {one.name for one in parameters.all if one.in_key and not one.is_receiver}
    for name in keyed.intersection(arguments):
        copier = auto_copier(arguments[name])
        arguments[name] = arguments[name] if copier is None else copier()
    return (args, arguments) if is_by_name else parameters.split(arguments)


def _log_stale(operation: Any) -> None:
    """Log that a stale answer of a tool was found. Tags are logged without the values in them."""

    def templates(tool: Any) -> str:
        rules = tool.tags
        return ", ".join((*rules.static, *[rule.source for rule in (*rules.early, *rules.late)])) or "nothing"

    ran = [f"{tool.name} ({templates(tool)})" for tool in TOOLS.all() if not tool.is_read and tool.stats.writes]
    LOG.warning(
        "%s: an audit has found a stale answer: the tool returns another one now, and no write of its tags explains "
        "it. It depends on %s; write tools that have run: %s. A tag is missing, or something changes it without a "
        "write. If its answers differ by themselves, name what to compare: loop=LoopHints(outcome_key=...)",
        operation.name,
        templates(operation),
        ", ".join(ran[:10]) or "none in this process",
        extra={"agent_cache_event": "a stale answer", "agent_cache_tool": operation.name},
    )
