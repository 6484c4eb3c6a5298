"""Write tools: give what a side effect touches a version, before it runs and when it has ended, however it ended.

The hardest case: a write is cancelled while its request is on the wire, during a read of the same entity. Before the
side effect its tags get a version and are held: the read is not stored, and nobody joins it any more. The cancellation
ends the write. In the same step, before anything is awaited, its hold becomes one of `doubt` seconds, and its tags get
a version again. Until that hold ends nothing under them is stored; its end gives them one more. The commit to the tiers
goes on in a task of its own.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Hashable, Iterable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.options import WritePolicy
from agent_cache.core.store import Entry
from agent_cache.core.tags import MANY_PATHS, Tag, every_key_of, root_of, within_limit
from agent_cache.core.versions import VERSIONS, EntryTag, Hold, paths_read
from agent_cache.engine.blocking import Background, in_background, start_in_background
from agent_cache.engine.call import run, run_tool
from agent_cache.engine.interception import InterceptedCall
from agent_cache.engine.operation import CacheKey, Operation, PlacedRule, Setup
from agent_cache.engine.order import write_setup
from agent_cache.engine.result import insert_if_valid
from agent_cache.engine.scope import PLACE, Call, Scope
from agent_cache.engine.state import READERS, mark_written, run_shielded, tags_of_keys, warn_of_unread_roots, warn_once
from agent_cache.engine.tier_writes import ENDED, Announcement, tiers_under
from agent_cache.engine.tiers import take_tickets
from agent_cache.errors import ConfigurationError
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

    __slots__ = ("_without_tiers", "is_new", "late_roots", "late_rules")

    is_read = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_new = True  # until its first call
        self.late_roots = tuple(dict.fromkeys(rule.root for rule in self.tags.late))
        self.late_rules: tuple[PlacedRule, ...] = tuple((rule, None, 0) for rule in self.tags.late)
        self._without_tiers: tuple[object, int] | None = None  # state of the tiers under which it has none
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

    def write_of(self, call: Call, owners: frozenset[object] | None) -> Write:
        """The write that a call makes.

        Args:
            owners: the sessions that it is limited to; None for everything.
        """
        kind = BlockingWrite if self.is_sync else Write
        if self.policy.key_fn is not None:
            named = self.cache_keys(call)
            roots: tuple[str, ...] = tuple(dict.fromkeys(root for key in named for root in key.request.roots))
            mark_written(roots)
            call.tags = roots
            keys, entries = tuple(key.entry for key in named), tuple(key.request for key in named)
            return kind(
                self.name, self.policy, (), (), call, owners, roots, self.own_tiers, call.local.stats,
                keys=keys, entries=entries,
            )  # fmt: skip
        tags: tuple[Tag, ...] = self.tags.static
        bare: tuple[str, ...] = ()
        if self.early_rules:
            paths, bare = _tags_from(self.early_rules, call, None, self.name, call.local.stats)
            tags += paths
            call.tags = tags + bare
        else:
            call.tags = tags
        # Before its tiers are looked for: those that come later are found at its end.
        known = CURRENT.once_configured, READERS.links
        tiers: dict[Tier, bool] = {}
        if self._without_tiers != known:
            tiers = tiers_under(self.tags.roots, self.own_tiers, in_sessions=owners is not None)
            self._without_tiers = None if tiers else known
        # by position: with names it takes 0.5 us more, which is 6 % of a write
        return kind(
            self.name, self.policy, tags, bare, call, owners, self.tags.roots, self.own_tiers, call.local.stats,
            tiers, known,
        )  # fmt: skip

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
    operation = call.operation
    owners = call.scope.owners if operation.policy.scope == "session" else None
    if owners is not None and not owners:  # it touches nothing: it is limited to a session, outside of one
        return await run_tool(call)
    write: Write = operation.write_of(call, owners)
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
        if write.is_open:  # its end was interrupted, or had no room on the stack
            VERSIONS.end(write, write.late)
    if committed is not ENDED:
        await committed
    return value


def tags_of_intent(call: InterceptedCall) -> tuple[Tag, ...]:
    """What a write may touch, as far as that is known before it runs: a root where only its result names the rest."""
    operation: Any = call.operation
    if operation.policy.key_fn is not None:
        named = operation.cache_keys(call)
        return tuple(dict.fromkeys(root for key in named for root in key.request.roots))
    paths, bare = _tags_from(operation.early_rules, call, None, operation.name, ())
    return tuple(dict.fromkeys((*operation.tags.static, *paths, *bare, *operation.late_roots)))


def _tags_from(
    rules: tuple[PlacedRule, ...], call: Call | InterceptedCall, result: Any, tool: str, stats: tuple[Stats, ...]
) -> tuple[tuple[Tag, ...], tuple[str, ...]]:
    """Compute the tags of a write, and the roots for which rules gave no id. A failing rule gives its root."""
    paths: tuple[Tag, ...] = ()
    bare: tuple[str, ...] = ()
    for rule, make, position in rules:
        try:
            made = rule.make(call.arguments, result) if make is None else make(call.args[position])
            if made == (rule.root,) and not (rule.null_is_all and rule.names_null(call.arguments)):
                bare += made
                continue
        except Exception as error:  # noqa: BLE001 - the user's function; the write goes on without it
            for each in stats:
                each.unstored += 1
            warn_once(
                f"tags of a write could not be computed from {rule.source!r}, so all of {rule.root!r} was dropped",
                tool,
                error,
            )
            made = (rule.root,)
        paths += made if len(made) <= MANY_PATHS else (rule.root,)  # to look for each root takes 3 ms for 20,000 tags
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


class Write(Hold):
    """One write, from before its side effect until it is committed everywhere.

    Args:
        name: the writer, for messages.
        policy: the meaning of its failures.
        tags: what it touches, as far as that is known before it runs. Of very many, their roots.
        bare: roots for which no id was given: only what depends on the whole root changes.
        call: the call of a write tool, whose result may name more; None for a write that is no tool.
        owners: sessions it is limited to, None for everything.
        roots: every root that it may touch.
        own_tiers: tiers that the writer itself names.
        stats: counters of failing tag rules.
        tiers: the tiers under its roots, if they are known.
        known: with `tiers`, which tiers and tools there were before they were looked for.
        keys: (tool, key) pairs that it touches instead of tags.
        entries: `keys`, as tiers know them.

    Attributes:
        is_open: whether it has begun and not ended: it holds its tags.
        tiers: the tiers to tell of it, and whether each is in use: see `tiers_under`.
    """

    __slots__ = (
        "_announced", "_call", "_entries", "_fills", "_former", "_keys", "_known", "_own_tiers", "_owners", "_roots",
        "_stats", "bare", "is_open", "name", "policy", "tags", "tiers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        policy: WritePolicy,
        tags: tuple[Tag, ...],
        bare: tuple[str, ...] = (),
        call: Call | None = None,
        owners: frozenset[object] | None = None,
        roots: tuple[str, ...] = (),
        own_tiers: tuple[Tier, ...] = (),
        stats: tuple[Stats, ...] = (),
        tiers: dict[Tier, bool] | None = None,
        known: tuple[object, int] | None = None,
        *,
        keys: tuple[tuple[Any, Hashable], ...] = (),
        entries: tuple[Request, ...] = (),
    ) -> None:
        self.name = name
        self.policy = policy
        paths = tags if len(tags) <= MANY_PATHS else within_limit(tags)
        self._keys = keys if len(keys) <= MANY_PATHS else every_key_of(keys)
        self.tags: tuple[Tag | EntryTag, ...] = (*paths, *tags_of_keys(self._keys)) if keys else paths
        self.bare = bare
        late = () if call is None or keys else call.operation.late_roots
        super().__init__(self.tags, bare, None if owners is None else VERSIONS.scopes_of(owners), late)
        self._call = call
        self._owners = owners
        self._entries = entries
        self._roots = roots
        self._own_tiers = own_tiers
        self._stats = stats
        self._known = known or (CURRENT.once_configured, READERS.links)
        self.tiers = self._find_tiers() if tiers is None else tiers
        self.is_open = False
        self._former: Token[Write | None] | None = None
        self._fills: dict[tuple[object, Hashable], Fill] | None = None
        self._announced: Announcement | None = None

    async def begin(self) -> None:
        """Announce the write, and hold its tags. Before the side effect.

        Raises:
            RemoteTierError: if a tier refuses the write; nothing has happened then.
        """
        if self.tiers:
            self._announced = Announcement(self._make_intent(), self.tiers, self.name)
            await self._announced.begin()
        self.begin_locally()

    def begin_locally(self) -> None:
        """The half of `begin` that does not wait: all of it without tiers, for one coroutine less."""
        self.is_open = True  # first: one whose begin was interrupted is to be ended
        VERSIONS.begin(self)
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
        flight, tags = fill.call.flight, fill.entry.tags
        store = flight.store
        if not self.is_open or not (self._owners is None or store.owner in self._owners):
            return False
        read = {path for tag in (*tags, (store.tool.number, flight.key)) for path in paths_read(tag)}
        if read.isdisjoint(self.paths) and {root_of(tag) for tag in tags if isinstance(tag, str)}.isdisjoint(self.late):
            return False
        if self._fills is None:
            self._fills = {}
        self._fills[store, flight.key] = fill
        return True

    def succeed(self, result: Any, *, ok: bool = True) -> Awaitable[None]:
        """Commit after a side effect that returned. The local half is done at once, the rest is to be awaited."""
        late: tuple[Tag, ...] = ()
        bare: tuple[str, ...] = ()
        call = self._call
        if call is not None and self.late:
            late, bare = _tags_from(call.operation.late_rules, call, result, self.name, self._stats)
            call.tags += late + bare
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
        await self._end(self.late, (), failed=True, hold=doubt, may_wait=may_wait)

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
        former, self._former, self._fills, self._call = self._former, None, None, None
        if former is not None:
            try:
                WRITING.reset(former)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it began in
        fills = self._end_locally(late, bare, hold, fills)
        configured, links = self._known
        if CURRENT.once_configured is not configured or READERS.links != links:  # tiers that have come while it ran
            self.tiers = self._find_tiers() | self.tiers
            if self._announced is not None:
                self._announced.tiers = self.tiers
            elif self.tiers:
                self._announced = Announcement(self._make_intent(), self.tiers, self.name)
        if self._announced is None:
            for fill in fills:
                insert_if_valid(fill.call, fill.entry)
            return ENDED
        return self._end_in_tiers(self._announced, late, bare, fills, may_wait=may_wait, failed=failed, hold=hold)

    def _end_in_tiers(
        self,
        announced: Announcement,
        late: tuple[Tag, ...],
        bare: tuple[str, ...],
        fills: Sequence[Fill],
        *,
        may_wait: bool,
        failed: bool,
        hold: float,
    ) -> Awaitable[None]:
        touched = (*announced.intent.tags, *late, *bare)
        commits = announced.start_commits(touched, failed=failed, hold=hold, may_skip=not fills)
        if announced.tiers and not commits and not fills:
            return ENDED
        return run_shielded(self._finish(announced, commits, late, bare, fills), *commits.values(), may_wait=may_wait)

    async def _finish(
        self,
        announced: Announcement,
        commits: dict[Tier, Awaitable[None]],
        late: tuple[Tag, ...],
        bare: tuple[str, ...],
        fills: Sequence[Fill],
    ) -> None:
        await announced.finish(commits)
        for fill in self._end_locally(late, bare, 0.0, fills):  # entries filled from a tier since its local end
            await self._store(fill)

    def _end_locally(
        self, late: tuple[Tag, ...], bare: tuple[str, ...], hold: float, fills: Sequence[Fill]
    ) -> Sequence[Fill]:
        """Give what it has touched a version, and hold it no more, or for some seconds.

        Returns:
            The results that no other write has overlapped so far. They count from the end of this one.
        """
        now = CLOCK.now() if VERSIONS.timed or hold else 0.0
        tags: tuple[Tag | EntryTag, ...] = late
        with VERSIONS.lock:
            if VERSIONS.timed:
                VERSIONS.expire(now)
            if fills:  # before the write's own end
                fills = [fill for fill in fills if self._is_current(fill)]
                # What loads one of their entries now is older, whatever the write turns out to touch.
                tags += tuple(tags_of_keys([(fill.call.operation, fill.call.key) for fill in fills]))
            if self.is_open:
                VERSIONS.end(self, tags, bare, now + hold if hold else None)
            else:
                VERSIONS.write(self.tags + tags, self.bare + bare, self.scopes)
            self.is_open = False  # after it: a write whose end was interrupted ends again
            for fill in fills:
                fill.call.flight.restart()
        return fills

    def _is_current(self, fill: Fill) -> bool:
        """Whether no other write has touched an entry since this one began, or since its local end."""
        flight, tags = fill.call.flight, fill.entry.tags
        if not self.is_open:
            return not flight.store.is_touched(flight.key, tags, flight.since)
        is_touched = flight.store.is_touched(flight.key, tags, self.since)
        return not (is_touched or flight.store.is_held_beside(self, flight.key, tags))

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
            insert_if_valid(call, fill.entry)
        finally:
            call.flight.finish()

    def _find_tiers(self) -> dict[Tier, bool]:
        return tiers_under(self._roots, self._own_tiers, in_sessions=self._owners is not None)

    def _make_intent(self) -> WriteIntent:
        from agent_cache.remote.protocol import WriteIntent  # which whoever has a tier has loaded

        return WriteIntent(
            id=os.urandom(16).hex(),
            tags=(*[tag for tag in self.tags if isinstance(tag, str)], *self.bare),
            late_roots=self.late,
            keys=tuple((tool.name, key) for tool, key in self._keys),
            entries=self._entries,
            on_unreachable=self.policy.remote.on_unreachable,
        )


class BlockingWrite(Write):
    """A write of a thread that waits for the tiers: what they do is done in the background loop, renewals included."""

    __slots__ = ()

    async def begin(self) -> None:
        """As of any write. Nothing of it is left if the caller is interrupted, wherever that is."""
        if not self.tiers:
            self.begin_locally()
            return
        self._announced = Announcement(self._make_intent(), self.tiers, self.name)
        announced = in_background(self._announced.begin, is_shielded=True)
        try:
            await announced
            self.begin_locally()
        except BaseException:
            if not self.is_open and isinstance(announced, Background):
                start_in_background(self._withdraw, self._announced, announced)
            await self.abandon()
            raise

    async def _withdraw(self, announced: Announcement, begun: Background[None]) -> None:
        """End in the tiers what was announced, since the caller was interrupted before the side effect.

        An announcement that has raised has ended itself.
        """
        await begun.end()
        if announced.is_renewed:
            await super()._end_in_tiers(announced, (), (), (), may_wait=True, failed=False, hold=0.0)

    def _end_in_tiers(self, *ended: Any, **outcome: Any) -> Awaitable[None]:
        return start_in_background(super()._end_in_tiers, *ended, **outcome)


WRITING: ContextVar[Write | None] = ContextVar("agent_cache_writing", default=None)
"""The innermost write that runs in this context. Child tasks and threads inherit it, also beyond its end."""
