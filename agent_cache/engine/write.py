"""Write tools: give what a side effect touches a version, before it runs and when it has ended, however it ended.

The hardest case: a write is cancelled while its request is on the wire, during a read of the same entity. Before the
side effect its tags get a version and are held: the read is not stored, and nobody joins it any more. The cancellation
ends the write. In the same step, before anything is awaited, its hold becomes one of `doubt` seconds, and its tags get
a version again. Until that hold ends nothing under them is stored; its end gives them one more. The commit to the tiers
goes on in a task of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, Token, copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.options import WritePolicy
from agent_cache.core.store import Entry
from agent_cache.core.tags import MANY_PATHS, Tag, TagRule, every_key_of, root_of, within_limit
from agent_cache.core.versions import VERSIONS, EntryTag, Hold, Written, paths_read, paths_written
from agent_cache.engine.blocking import Background, in_background, start_in_background
from agent_cache.engine.call import run, run_tool
from agent_cache.engine.interception import InterceptedCall
from agent_cache.engine.operation import CacheKey, Operation, Setup
from agent_cache.engine.order import write_setup
from agent_cache.engine.result import insert_if_valid
from agent_cache.engine.scope import PLACE, Call, Scope
from agent_cache.engine.state import (
    READERS,
    event_loop,
    mark_written,
    run_shielded,
    tags_of_keys,
    warn_of_unread_roots,
    warn_once,
)
from agent_cache.engine.tiers import take_tickets
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.metrics import Stats

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Request, Tier, WriteIntent

__all__ = [
    "DOUBT",
    "OUTSIDE",
    "WRITING",
    "BlockingWrite",
    "Fill",
    "Write",
    "WriteOperation",
    "tags_of_intent",
]

DOUBT: Final = 5.0
"""The default of ``doubt=``: seconds in which a write with an unknown outcome may still take effect."""

OUTSIDE: Final = WritePolicy(scope="global", settle=0.0, doubt=DOUBT, in_doubt=(), no_effect=(), ok=None, key_fn=None)
"""The policy of writes that are no tools."""


class WriteOperation(Operation[WritePolicy]):
    """A decorated write tool."""

    __slots__ = ("_without_tiers", "is_new", "late_roots")

    is_read = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_new = True  # until its first call
        self.late_roots = tuple(dict.fromkeys(rule.root for rule in self.tags.late))
        self._without_tiers: tuple[object, int] | None = None
        for use in self.root_uses:
            use.writers.add(self)

    def make_setup(self, configuration: Configuration) -> Setup:
        return write_setup(self, configuration, run_write)

    def store_in(self, scope: Scope) -> tuple[None, Hashable | None]:
        return None, scope.tenant

    async def invoke(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the tool with any spelling of its arguments. The generated body does the same in fewer steps."""
        return await run(self, PLACE.get().scope, None, *self.parameters.split(self.parameters.bind(args, kwargs)))

    def is_successful(self, value: Any) -> bool:
        """Whether a write that returned this value succeeded; `settle` holds only then."""
        ok = self.policy.ok
        if ok is None:
            return True
        try:
            return bool(ok(value))
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            warn_once("ok= raised, so the write was taken for successful", self.name, error)
            return True

    def find_tiers(self, *, in_sessions: bool) -> dict[Tier, bool]:
        """The tiers under its roots: see `_tiers_under`.

        That there are none is remembered until a tier is configured, or a root is given another tool.
        """
        known = self._without_tiers
        if known is not None and known[0] is CURRENT.once_configured and known[1] == READERS.links:
            return {}
        state = CURRENT.once_configured, READERS.links  # first: what changes meanwhile makes it out of date
        found = _tiers_under(self.tags.roots, self.own_tiers, in_sessions=in_sessions)
        self._without_tiers = None if found else state
        return found

    def cache_keys(self, call: Call | InterceptedCall) -> tuple[CacheKey, ...]:
        """The entries that `key_fn` names.

        Raises:
            ConfigurationError: if it returns anything but `tool.cache_key(...)` or several of them.
        """
        key_fn = self.policy.key_fn
        assert key_fn is not None
        named = key_fn(*self.parameters.canonical(call.args, call.kwargs))
        keys = (named,) if isinstance(named, CacheKey) else named
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise ConfigurationError(_not_a_key(self.name, named))
        listed = tuple(keys)
        for key in listed:
            if not isinstance(key, CacheKey):
                raise ConfigurationError(_not_a_key(self.name, key))
        return listed


def _not_a_key(tool: str, found: object) -> str:
    return (
        f"{tool}: key_fn(args, kwargs) must return tool.cache_key(...) of a tool decorated with AgentCache, or a list "
        f"of them; it returned {type(found).__name__}"
    )


async def run_write(call: Call) -> Any:
    """Begin the write, run the tool, commit: every write tool.

    A tag or key function that raises makes the write invalidate the whole root; the write itself runs.
    """
    write = _write_of(call)
    if write is None:
        return await run_tool(call)
    operation = call.operation
    has_begun = False
    try:  # a `KeyboardInterrupt` may be raised wherever a call has just been made
        if write.tiers:
            await write.begin()
        else:
            write.begin_locally()
        has_begun = True
        if operation.is_new:
            operation.is_new = False
            # Reads behind a tier may run in other processes.
            if not write.tiers and operation.policy.key_fn is None:
                warn_of_unread_roots(operation.name, operation.tags.roots)
        for stats in call.local.stats:
            stats.invalidations += 1
        value = await run_tool(call)
        committed = write.succeed(value, ok=operation.policy.ok is None or operation.is_successful(value))
    except BaseException as error:
        if has_begun or write.is_open:
            await write.fail(error)
        raise
    finally:
        if write.hold is not None:  # its end was interrupted, or had no room on the stack
            VERSIONS.end(write.hold, (*write.tags, *write.late_roots), write.bare)
    call.tags += write.late_tags
    if committed is not ENDED:
        await committed
    return value


def _write_of(call: Call) -> Write | None:
    """The write that a call makes; None if it touches nothing, as a session-scoped invalidator outside a session."""
    operation = call.operation
    policy = operation.policy
    owners = call.scope.owners if policy.scope == "session" else None
    if owners is not None and not owners:
        return None
    kind = BlockingWrite if operation.is_sync else Write
    if policy.key_fn is not None:
        named = operation.cache_keys(call)
        roots: tuple[str, ...] = tuple(dict.fromkeys(root for key in named for root in key.request.roots))
        mark_written(roots)
        call.tags = roots
        return kind(
            operation.name,
            policy,
            (),
            keys=tuple(key.entry for key in named),
            entries=tuple(key.request for key in named),
            owners=owners,
            roots=roots,
            own_tiers=operation.own_tiers,
            stats=call.local.stats,
        )
    paths, bare = _tags_from(operation.tags.early, call.arguments, None, operation.name, call.local.stats)
    known = CURRENT.once_configured, READERS.links  # before its tiers are looked for: later ones are found at the end
    tags = operation.tags
    tiers = operation.find_tiers(in_sessions=owners is not None)
    touched = tags.static + paths
    call.tags = touched + bare
    return kind(  # by position: with names it takes 0.5 us more, which is 6 % of a write
        operation.name,
        policy,
        touched,
        tags.late,
        call.arguments,
        bare,
        (),
        owners,
        tags.roots,
        operation.own_tiers,
        call.local.stats,
        (),
        tiers,
        known,
    )


def tags_of_intent(call: InterceptedCall) -> tuple[Tag, ...]:
    """What a write may touch, as far as that is known before it runs: a root where only its result names the rest."""
    operation: Any = call.operation
    if operation.policy.key_fn is not None:
        named = operation.cache_keys(call)
        return tuple(dict.fromkeys(root for key in named for root in key.request.roots))
    tags = operation.tags
    paths, bare = _tags_from(tags.early, call.arguments, None, operation.name, ())
    return tuple(dict.fromkeys((*tags.static, *paths, *bare, *(rule.root for rule in tags.late))))


def _tags_from(
    rules: tuple[TagRule, ...], arguments: Mapping[str, Any], result: Any, tool: str, stats: tuple[Stats, ...]
) -> tuple[tuple[Tag, ...], tuple[str, ...]]:
    """Compute the tags of a write, and the roots for which rules gave no id. A failing rule gives its root."""
    paths: tuple[Tag, ...] = ()
    bare: tuple[str, ...] = ()
    for rule in rules:
        try:
            made = rule.make(arguments, result)
        except Exception as error:  # noqa: BLE001 - the user's function; the write goes on without it
            for each in stats:
                each.unstored += 1
            warn_once(
                f"tags of a write could not be computed from {rule.source!r}, so all of {rule.root!r} was dropped",
                tool,
                error,
            )
            paths += (rule.root,)
            continue
        if made == (rule.root,) and not (rule.null_is_all and rule.names_null(arguments)):
            bare += made
        else:
            # Of very many, the root: to look for that of each takes 3 ms for 20,000.
            paths += made if len(made) <= MANY_PATHS else (rule.root,)
    return paths, bare


@dataclass(slots=True, eq=False)
class Fill:
    """A result that was given to `tool.set`, to be stored when a write commits.

    Attributes:
        call: the read that it answers.
        entry: what is to be stored.
    """

    call: Call
    entry: Entry


def _bounded(fill: Fill) -> Entry:
    """The entry of a result. The ttl of its tool may have been shortened since it was given."""
    life = fill.call.operation.policy.longest_ttl
    if life is not None:
        fill.entry.expire_by(fill.call.started + life)
    return fill.entry


class Write:
    """One write, from before its side effect until it is committed everywhere.

    Args:
        name: the writer, for messages.
        policy: the meaning of its failures.
        tags: what it touches, as far as that is known before it runs. Of very many, their roots.
        late: rules that give the rest from its result.
        arguments: of the call, for the late rules.
        bare: roots for which no id was given: only what depends on the whole root changes.
        keys: (tool, key) pairs that it touches instead of tags.
        owners: sessions it is limited to, None for everything.
        roots: every root that it may touch.
        own_tiers: tiers that the writer itself names.
        stats: counters of failing tag rules.
        entries: `keys`, as tiers know them.
        tiers: the tiers under its roots, if they are known.
        known: with `tiers`, which tiers and tools there were before they were looked for.

    Attributes:
        late_roots: roots of the tags that its result names.
        tiers: the tiers to tell of it, and whether each is in use: see `_tiers_under`.
        late_tags: what its result has named, once it has succeeded.
        hold: what it holds, from its begin to its end.
    """

    __slots__ = (
        "_arguments",
        "_entries",
        "_fills",
        "_former",
        "_intent",
        "_keys",
        "_known",
        "_late",
        "_own_tiers",
        "_owners",
        "_renewal",
        "_roots",
        "_scopes",
        "_stats",
        "bare",
        "hold",
        "late_roots",
        "late_tags",
        "name",
        "policy",
        "tags",
        "tiers",
    )

    def __init__(
        self,
        name: str,
        policy: WritePolicy,
        tags: tuple[Tag, ...],
        late: tuple[TagRule, ...] = (),
        arguments: Mapping[str, Any] | None = None,
        bare: tuple[str, ...] = (),
        keys: tuple[tuple[Any, Hashable], ...] = (),
        owners: frozenset[object] | None = None,
        roots: tuple[str, ...] = (),
        own_tiers: tuple[Tier, ...] = (),
        stats: tuple[Stats, ...] = (),
        entries: tuple[Request, ...] = (),
        tiers: dict[Tier, bool] | None = None,
        known: tuple[object, int] | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        paths = tags if len(tags) <= MANY_PATHS else within_limit(tags)
        self._keys = keys if len(keys) <= MANY_PATHS else every_key_of(keys)
        self.tags: tuple[Tag | EntryTag, ...] = (*paths, *tags_of_keys(self._keys)) if keys else paths
        self.bare = bare
        self.late_roots = tuple([rule.root for rule in late]) if late else ()
        self._owners = owners
        self._scopes: Sequence[Written] | None = None if owners is None else VERSIONS.scopes_of(owners)
        self._late = late
        self._entries = entries
        self._arguments = arguments or {}
        self.hold: Hold | None = None
        self._former: Token[Write | None] | None = None
        self._fills: dict[tuple[object, Hashable], Fill] | None = None
        self._roots = roots
        self._own_tiers = own_tiers
        self._known = known or (CURRENT.once_configured, READERS.links)
        self.tiers = self._find_tiers() if tiers is None else tiers
        self._stats = stats
        self.late_tags: tuple[Tag, ...] = ()
        self._intent: WriteIntent | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None

    @property
    def paths(self) -> tuple[Tag, ...]:
        """Its tags without those of single entries."""
        return tuple([tag for tag in self.tags if isinstance(tag, str)])

    async def begin(self) -> None:
        """Announce the write, hold its tags and drop what they cover. Before the side effect.

        Raises:
            RemoteTierError: if a tier refuses the write; nothing has happened then.
        """
        if self.tiers:
            await self._announce()
        self.begin_locally()

    def begin_locally(self) -> None:
        """The half of `begin` that does not wait: all of it without tiers, for one coroutine less."""
        self.hold = VERSIONS.new_hold(self.tags, self.bare, self._scopes, self.late_roots)
        VERSIONS.begin(self.hold)
        self._former = WRITING.set(self)

    async def complete(self, fill: Fill | None = None) -> None:
        """Begin and commit: what it touches has been changed already.

        Args:
            fill: a result to be stored.
        """
        try:
            await self.begin()
            if fill is not None:
                self.take(fill)
            committed = self.succeed(None)
        except BaseException:
            await self.abandon()
            raise
        await committed

    async def abandon(self) -> None:
        """End it, if it is open, since Ctrl-C or an error has come before its side effect, or instead of its end."""
        if self.is_open:
            await self._end((), (), failed=False, hold=0.0)

    def take(self, fill: Fill) -> bool:
        """Store a result when this write commits, unless another write has overlapped it by then.

        Returns:
            False if the write has ended, or does not touch the entry.
        """
        flight = fill.call.flight
        store = flight.store
        if self.hold is None or not (self._owners is None or store.owner in self._owners):
            return False
        own = {path for tag in self.tags for path in paths_written(tag)}.union([root + ":*" for root in self.bare])
        read = {path for tag in (*fill.entry.tags, (store.tool.number, flight.key)) for path in paths_read(tag)}
        late = not self._late or not {root_of(tag) for tag in fill.entry.tags if isinstance(tag, str)}.isdisjoint(
            self.late_roots
        )
        if own.isdisjoint(read) and not (self._late and late):
            return False
        if self._fills is None:
            self._fills = {}
        self._fills[store, flight.key] = fill
        return True

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended."""
        return self.hold is not None

    def succeed(self, result: Any, *, ok: bool = True) -> Awaitable[None]:
        """Commit after a side effect that returned. The local half is done at once, the rest is to be awaited."""
        late: tuple[Tag, ...] = ()
        bare: tuple[str, ...] = ()
        if self._late:
            late, bare = _tags_from(self._late, self._arguments, result, self.name, self._stats)
            self.late_tags = late + bare
        fills = tuple(self._fills.values()) if ok and self._fills else ()
        return self._end(late, bare, failed=False, hold=self.policy.settle if ok else 0.0, fills=fills)

    async def fail(self, error: BaseException) -> None:
        """Commit after a side effect that raised, or was cancelled.

        The local half is done when this first awaits; the rest goes on if the caller is cancelled again.
        """
        may_wait = not isinstance(error, GeneratorExit)  # a coroutine that is being closed must not wait
        if isinstance(error, self.policy.no_effect):
            await self._end((), (), failed=False, hold=0.0, may_wait=may_wait)
            return
        doubt = self.policy.doubt if self.policy.leaves_in_doubt(error) else 0.0
        await self._end(self.late_roots, (), failed=True, hold=doubt, may_wait=may_wait)

    def _end(
        self,
        late: tuple[Tag, ...],
        bare: tuple[str, ...],
        *,
        failed: bool,
        hold: float,
        may_wait: bool = True,
        fills: Sequence[Fill] = (),
    ) -> Awaitable[None]:
        """End the write here. Returns the rest, its end in the tiers.

        Args:
            late, bare: what it has touched beside what it began with, or may have.
            hold: seconds in which all of it is held further on.
        """
        # Contexts of tasks that were started in the write keep it alive: let go of what it refers to.
        former, self._former, self._fills = self._former, None, None
        if former is not None:
            try:
                WRITING.reset(former)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it began in
        tags, roots = self.tags + late, self.bare + bare
        current = self._end_locally(tags, roots, hold, fills)
        configured, links = self._known
        if CURRENT.once_configured is not configured or READERS.links != links:  # tiers that have come while it ran
            self.tiers = self._find_tiers() | self.tiers
            if self.tiers and self._intent is None:
                self._intent = self._make_intent()
        if self._intent is None:
            for fill in current:
                insert_if_valid(fill.call, _bounded(fill))
            return ENDED
        return self._end_in_tiers(self._intent, tags, roots, failed=failed, hold=hold, may_wait=may_wait, fills=current)

    def _end_in_tiers(
        self,
        intent: WriteIntent,
        tags: tuple[Tag | EntryTag, ...],
        bare: tuple[str, ...],
        *,
        failed: bool,
        hold: float,
        may_wait: bool,
        fills: Sequence[Fill],
    ) -> Awaitable[None]:
        from agent_cache.remote.protocol import SentCommit  # which whoever has a tier has loaded

        if self._renewal is not None:
            self._renewal.cancel()
        told = (*[tag for tag in tags if isinstance(tag, str)], *bare)
        commits = self._start_commits(intent, told, failed=failed, hold=hold)
        if commits and not fills:  # those that are on their way need not be waited for, whatever other tiers there are
            commits = {tier: commit for tier, commit in commits.items() if not isinstance(commit, SentCommit)}
            if not commits:
                return ENDED
        return run_shielded(self._finish_commits(commits, tags, bare, fills), *commits.values(), may_wait=may_wait)

    def _end_locally(
        self, tags: tuple[Tag | EntryTag, ...], bare: tuple[str, ...], hold: float, fills: Sequence[Fill]
    ) -> Sequence[Fill]:
        """Give what it has touched a version, and hold it no more, or for some seconds.

        Returns:
            The results that no other write has overlapped so far. They count from the end of this one.
        """
        held = self.hold
        now = CLOCK.now() if VERSIONS.timed or hold else 0.0
        with VERSIONS.lock:
            if VERSIONS.timed:
                VERSIONS.expire(now)
            if fills:  # before the write's own end
                fills = [fill for fill in fills if self._is_current(fill)]
                # What loads one of their entries now is older, whatever the write turns out to touch.
                tags += tuple(tags_of_keys([(fill.call.operation, fill.call.key) for fill in fills]))
            if held is None:
                VERSIONS.write(tags, bare, self._scopes)
            else:
                VERSIONS.end(held, tags, bare, now + hold if hold else None)
            self.hold = None  # after it: a write whose end was interrupted ends again
            for fill in fills:
                fill.call.flight.restart()
        return fills

    def _is_current(self, fill: Fill) -> bool:
        """Whether no other write has touched an entry since this one began, or since its local end."""
        flight, tags = fill.call.flight, fill.entry.tags
        if self.hold is not None:
            return not (
                flight.store.is_touched(flight.key, tags, self.hold.since)
                or flight.store.is_held_beside(self.hold, flight.key, tags)
            )
        return not flight.store.is_touched(flight.key, tags, flight.since)

    # Tiers

    async def _store(self, fill: Fill) -> None:
        """Store a result locally, with the tiers' knowledge that nothing it depends on is being written.

        The tiers themselves do not get it: a write of another process may have ended since this one began, and its
        message may be on its way. It will drop a local copy, but nothing would drop the tier's.
        """
        call = fill.call
        try:
            call.flight.tickets = await take_tickets(call)
            for ticket in call.flight.tickets:
                if ticket.lasts is not None:
                    fill.entry.expire_by(call.started + ticket.lasts)
            insert_if_valid(call, _bounded(fill))
        finally:
            call.flight.finish()

    def _find_tiers(self) -> dict[Tier, bool]:
        return _tiers_under(self._roots, self._own_tiers, in_sessions=self._owners is not None)

    def _make_intent(self) -> WriteIntent:
        from agent_cache.remote.protocol import WriteIntent  # which whoever has a tier has loaded

        return WriteIntent(
            id=os.urandom(16).hex(),
            tags=self.paths + self.bare,
            late_roots=self.late_roots,
            keys=tuple((tool.name, key) for tool, key in self._keys),
            entries=self._entries,
            on_unreachable=self.policy.remote.on_unreachable,
        )

    async def _announce(self) -> None:
        loop = event_loop(self.name)
        intent = self._intent = self._make_intent()
        to_former = replace(intent, on_unreachable="run")
        cancels = _cancel_count()
        try:
            await self._send("begin", lambda tier: tier.begin(intent if self.tiers[tier] else to_former))
            if _cancel_count() > cancels:
                raise asyncio.CancelledError  # noqa: TRY301 - a tier has swallowed it; the tool must not run
        except BaseException as error:
            # Refused, or cancelled before the side effect: end what was announced.
            may_wait = not isinstance(error, GeneratorExit)
            commits = self._start_commits(intent, intent.tags, failed=False, hold=0.0)
            await run_shielded(self._finish_commits(commits, has_begun=False), *commits.values(), may_wait=may_wait)
            raise
        interval = min(tier.lease for tier in self.tiers) / 3
        context = copy_context()
        # A task is made only for a write that takes that long. The timer gets an empty context: also a cancelled one
        # keeps its context alive.
        self._renewal = loop.call_later(interval, self._start_renewing, intent, interval, context, context=Context())

    def _start_renewing(self, intent: WriteIntent, interval: float, context: Context) -> None:
        loop, name = asyncio.get_running_loop(), f"agent_cache renews {self.name}"
        self._renewal = loop.create_task(self._renew(intent, interval), name=name, context=context)

    async def _renew(self, intent: WriteIntent, interval: float) -> None:
        while True:
            await self._send("renew", lambda tier: tier.renew(intent))
            await asyncio.sleep(interval)

    def _start_commits(
        self, intent: WriteIntent, tags: tuple[Tag, ...], *, failed: bool, hold: float
    ) -> dict[Tier, Awaitable[None]]:
        """Call `commit` of every tier in this very step. What each returns is still to be awaited."""
        commits: dict[Tier, Awaitable[None]] = {}
        for tier in self.tiers:
            try:
                commits[tier] = tier.commit(intent, tags, failed=failed, hold=hold)
            except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
                self._warn_of_failure("commit", tier, error)
        return commits

    async def _finish_commits(
        self,
        commits: dict[Tier, Awaitable[None]],
        tags: tuple[Tag | EntryTag, ...] = (),
        bare: tuple[str, ...] = (),
        fills: Sequence[Fill] = (),
        *,
        has_begun: bool = True,
    ) -> None:
        await self._send("commit", commits.__getitem__, tuple(commits))
        if has_begun:  # entries filled from a tier between the end and the commit
            for fill in self._end_locally(tags, bare, 0.0, fills):
                await self._store(fill)

    async def _send(
        self, step: str, to_tier: Callable[[Tier], Awaitable[None]], tiers: tuple[Tier, ...] | None = None
    ) -> None:
        """Do one step in all tiers at once. Most writes have one tier, which takes no task."""
        tiers = tuple(self.tiers) if tiers is None else tiers
        if len(tiers) == 1:
            await self._guarded(to_tier, step, tiers[0])
        else:
            steps = (self._guarded(to_tier, step, tier) for tier in tiers)
            for outcome in await asyncio.gather(*steps, return_exceptions=True):  # wait for all before one raises
                if outcome is not None:
                    raise outcome

    async def _guarded(self, to_tier: Callable[[Tier], Awaitable[None]], step: str, tier: Tier) -> None:
        """Log a tier's failure. Only a refusal before the side effect is raised, and only that of a tier in use."""
        try:
            await to_tier(tier)
        except Exception as error:
            may_refuse = step == "begin" and self.tiers[tier]
            if may_refuse and isinstance(error, RemoteTierError):
                raise
            if may_refuse and self.policy.remote.on_unreachable == "refuse":
                text = f"the write was not begun, because announcing it raised {type(error).__name__}"
                raise RemoteTierError(text, tier) from error
            self._warn_of_failure(step, tier, error)

    def _warn_of_failure(self, step: str, tier: Tier, error: Exception) -> None:
        warn_once(f"{step} of a write in {type(tier).__name__} failed", self.name, error)


class BlockingWrite(Write):
    """A write of a thread that waits for the tiers: what they do is done in the background loop, renewals included."""

    __slots__ = ()

    async def begin(self) -> None:
        """As of any write. Nothing of it is left if the caller is interrupted, wherever that is."""
        if not self.tiers:
            self.begin_locally()
            return
        announced = in_background(self._announce, is_shielded=True)
        try:
            await announced
            self.begin_locally()
        except BaseException:
            if not self.is_open and isinstance(announced, Background):
                start_in_background(self._withdraw, announced)
            await self.abandon()
            raise

    async def _withdraw(self, announced: Background[None]) -> None:
        """End in the tiers what was announced, since the caller was interrupted before the side effect.

        An announcement that has raised has ended itself.
        """
        await announced.end()
        if self._renewal is not None and self._intent is not None:
            await super()._end_in_tiers(
                self._intent, self.tags, self.bare, failed=False, hold=0.0, may_wait=True, fills=()
            )

    def _end_in_tiers(
        self,
        intent: WriteIntent,
        tags: tuple[Tag | EntryTag, ...],
        bare: tuple[str, ...],
        *,
        failed: bool,
        hold: float,
        may_wait: bool,
        fills: Sequence[Fill],
    ) -> Awaitable[None]:
        end = super()._end_in_tiers
        return start_in_background(end, intent, tags, bare, failed=failed, hold=hold, may_wait=may_wait, fills=fills)


class _Ended:
    """The end of a write in no tier: there is nothing to wait for."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


ENDED: Final = _Ended()

WRITING: ContextVar[Write | None] = ContextVar("agent_cache_writing", default=None)
"""The innermost write that runs in this context. Child tasks and threads inherit it, also beyond its end."""


def _cancel_count() -> int:
    """How often the running task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _tiers_under(roots: tuple[str, ...], own: tuple[Tier, ...], *, in_sessions: bool = False) -> dict[Tier, bool]:
    """Every tier that may hold entries under these roots: the writer's own, those of any tool that reads there, and all
    that were ever configured, as other processes or an earlier block may have stored something there.

    Args:
        in_sessions: only tiers with answers of sessions, for a write that is limited to a session.

    Returns:
        The tiers, and whether each is in use: named by a tool, or by a plain call or an entered block of `configure`.
        The others are told like them, but a tier that was given up must not stop a write.
    """
    found: dict[Tier, bool] = {}
    readers = list(dict.fromkeys(tool for root in roots for tool in READERS.under(root)))
    if in_sessions:
        readers = [tool for tool in readers if tool.policy.remote.share]
    if not in_sessions or any(not tool.own_tiers for tool in readers):
        found.update(dict.fromkeys(CURRENT.tiers_once_configured(), False))
        if found:
            found.update(dict.fromkeys(CURRENT.configured_tiers(), True))
    if not in_sessions:
        found.update(dict.fromkeys(own, True))
    for tool in readers:
        if tool.own_tiers:
            found.update(dict.fromkeys(tool.tiers(), True))
    return found
