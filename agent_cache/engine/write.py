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
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.options import WritePolicy
from agent_cache.core.store import Entry
from agent_cache.core.tags import MANY_PATHS, Tag, every_key_of, root_of, within_limit
from agent_cache.core.versions import VERSIONS, EntryTag, Hold, all_paths, paths_read, paths_written
from agent_cache.engine.call import run_tool
from agent_cache.engine.hooks import HookedCall
from agent_cache.engine.middleware import observed
from agent_cache.engine.operation import CacheKey, Operation, PlacedRule, Setup
from agent_cache.engine.result import insert_if_valid
from agent_cache.engine.scope import Call, Scope
from agent_cache.engine.state import TOOLS, mark_written, tags_of_keys, warn_of_unread_roots, warn_once
from agent_cache.engine.tier_writes import ENDED, WITHOUT_TIERS, Announcement, tiers_under
from agent_cache.engine.tiers import take_tickets
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Request
    from agent_cache.remote.versioned import Tier

__all__ = ["DOUBT", "WRITING", "Fill", "Outside", "Write", "WriteOperation", "tags_of_intent"]

DOUBT: Final = 5.0
"""The default of ``doubt=``: seconds in which a write with an unknown outcome may still take effect."""


class WriteOperation(Operation[WritePolicy]):
    """A decorated write tool.

    Attributes:
        is_new: whether its roots are still to be looked at, at its first call: see `warn_of_unread_roots`.
        late_roots, late_rules: the tags that are known only from its result.
        roots: every root that it may touch.
    """

    __slots__ = ("is_new", "late_roots", "late_rules", "roots")

    _is_read = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_new = True
        self.roots = self.tags.roots
        self.late_roots = tuple(dict.fromkeys(rule.root for rule in self.tags.late))
        self.late_rules: tuple[PlacedRule, ...] = tuple((rule, None, 0) for rule in self.tags.late)
        with VERSIONS.lock:
            TOOLS.writers.add(self)

    def make_setup(self, configuration: Configuration) -> Setup:
        """What stands around its calls: middleware, then the write."""
        run = observed(self, run_write, configuration)
        return Setup(configuration, run, run)

    def store_in(self, scope: Scope) -> tuple[None, Hashable | None]:
        return None, scope.tenant

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

    def cache_keys(self, call: Call | HookedCall) -> tuple[CacheKey, ...]:
        """The entries that `key_fn` names.

        Raises:
            ConfigurationError: if it returns anything but `tool.cache_key(...)` or several of them.
        """
        key_fn = self.policy.key_fn
        assert key_fn is not None
        named = key_fn(call.args, call.kwargs)
        is_collection = isinstance(named, Iterable) and not isinstance(named, str | bytes)
        keys = tuple(named) if is_collection else (named,)
        for key in keys:
            if not isinstance(key, CacheKey):
                raise ConfigurationError(
                    f"{self.name}: key_fn(args, kwargs) must return tool.cache_key(...) of a tool decorated with "
                    f"AgentCache, or a list of them; it returned {type(key).__name__}"
                )
        return keys


@dataclass(slots=True)
class Outside:
    """A writer that is no write tool: `invalidate`, `writing`, and `tool.set`.

    Attributes:
        name: for messages.
        is_sync: whether it has no event loop. Its tiers are told in the background loop then.
        roots, own_tiers: as of a `WriteOperation`.
    """

    name: str
    is_sync: bool
    roots: tuple[str, ...] = ()
    own_tiers: tuple[Tier, ...] = ()

    late_roots: ClassVar[tuple[str, ...]] = ()
    policy: ClassVar = WritePolicy(
        scope="global", settle=0.0, doubt=DOUBT, in_doubt=(), no_effect=(), ok=None, key_fn=None
    )


async def run_write(call: Call) -> Any:
    """Begin the write, run the tool, end the write: every write tool.

    A tag rule that raises makes the write invalidate the whole root; the write itself runs.
    """
    operation: WriteOperation = call.operation
    policy = operation.policy
    owners = None if operation.is_global else call.scope.owners
    if owners is not None and not owners:  # it touches nothing: it is limited to a session, outside of one
        return await run_tool(call)
    if policy.key_fn is None:
        tags, bare = _tags_from(operation.early_rules, call)
        tags = operation.tags.static + tags
        call.tags = tags + bare
        write = Write(operation, tags, bare, owners)
    else:
        named = operation.cache_keys(call)
        call.tags = tuple(dict.fromkeys(root for key in named for root in key.request.roots))
        mark_written(call.tags)
        write = Write(operation, (), (), owners, tuple(key.entry for key in named), tuple(key.request for key in named))
    try:  # a `KeyboardInterrupt` may be raised wherever a call has just been made
        if write.tiers:
            await write.begin()
        else:  # the same without a coroutine
            write.is_open = True
            VERSIONS.begin(write)
            write.former = WRITING.set(write)
        if operation.is_new:
            operation.is_new = False
            if not write.tiers and policy.key_fn is None:  # reads behind a tier may run in other processes
                warn_of_unread_roots(operation.name, operation.roots)
        for stats in call.local.stats:
            stats.invalidations += 1
        value = await run_tool(call)
        is_ok = policy.ok is None or operation.is_successful(value)
        tags = bare = ()
        if write.late:
            tags, bare = _tags_from(operation.late_rules, call, value)
            call.tags += tags + bare
        ended = write.end(tags, bare, hold=policy.settle if is_ok else 0.0, fills=write.fills if is_ok else ())
    except BaseException as error:
        await write.fail(error)
        raise
    finally:
        if write.is_open:  # its end was interrupted, or had no room on the stack
            VERSIONS.end(write, write.late)
    if ended is not ENDED:
        await ended
    return value


def tags_of_intent(call: HookedCall) -> tuple[Tag, ...]:
    """What a write may touch, as far as that is known before it runs: a root where only its result names the rest."""
    operation: Any = call.operation
    if operation.policy.key_fn is not None:
        named = operation.cache_keys(call)
        return tuple(dict.fromkeys(root for key in named for root in key.request.roots))
    tags, bare = _tags_from(operation.early_rules, call)
    return tuple(dict.fromkeys((*operation.tags.static, *tags, *bare, *operation.late_roots)))


def _tags_from(
    rules: tuple[PlacedRule, ...], call: Call | HookedCall, result: Any = None
) -> tuple[tuple[Tag, ...], tuple[str, ...]]:
    """Compute the tags of a write, and the roots for which rules gave no id. A failing rule gives its root."""
    tags: tuple[Tag, ...] = ()
    bare: tuple[str, ...] = ()
    for rule, make, position in rules:
        try:
            made = rule.make(call.arguments, result) if make is None else make(call.args[position])
            if made == (rule.root,) and not (rule.null_is_all and rule.names_null(call.arguments)):
                bare += made
                continue
        except Exception as error:  # noqa: BLE001 - the user's function; the write goes on without it
            for stats in call.local.stats if isinstance(call, Call) else ():
                stats.unstored += 1
            event = f"tags of a write could not be computed from {rule.source!r}, so all of {rule.root!r} was dropped"
            warn_once(event, call.operation.name, error)
            made = (rule.root,)
        tags += made if len(made) <= MANY_PATHS else (rule.root,)  # to look for each root takes 3 ms for 20,000 tags
    return tags, bare


class Fill(NamedTuple):
    """A result that was given to `tool.set`, to be stored when a write ends.

    Attributes:
        call: the read that it answers.
        entry: what is to be stored.
    """

    call: Call
    entry: Entry

    def is_current(self, beside: Write) -> bool:
        """Whether no write has touched it since its flight has begun, and none runs that may, but for this one."""
        flight, paths = self.call.flight, self.entry.paths or self.entry.find_paths()
        key, store = flight.key, flight.store
        return not (store.is_written(key, paths, flight.since) or store.is_held(key, paths, beside))


class Write(Hold):
    """One write, from before its side effect until it has ended everywhere.

    Args:
        writer: the tool, or what writes otherwise.
        tags: what it touches, as far as that is known before it runs. Of very many, their roots.
        bare: roots for which no id was given: only what depends on the whole root changes.
        owners: sessions it is limited to, None for everything.
        keys: (tool, key) pairs that it touches instead of tags.
        entries: `keys`, as tiers know them.

    Attributes:
        fills: the results that it stores when it ends.
        former: what to set `WRITING` back with.
        is_open: whether it has begun and not ended: it holds its tags.
        tiers: the tiers to tell of it, and whether each is in use: see `tiers_under`.
    """

    __slots__ = (
        "_announced", "_known", "_owners", "bare", "entries", "fills", "former", "is_open", "keys", "tags", "tiers",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        writer: WriteOperation | Outside,
        tags: tuple[Tag, ...],
        bare: tuple[str, ...] = (),
        owners: frozenset[object] | None = None,
        keys: tuple[tuple[Any, Hashable], ...] = (),
        entries: tuple[Request, ...] = (),
    ) -> None:
        self.writer = writer
        self.tags: tuple[Tag | EntryTag, ...] = tags if len(tags) <= MANY_PATHS else within_limit(tags)
        if keys:
            keys = keys if len(keys) <= MANY_PATHS else every_key_of(keys)
            self.tags += tuple(tags_of_keys(keys))
        # As `Hold` does, without a frame.
        self.paths = paths_written(self.tags[0]) if len(self.tags) == 1 and not bare else all_paths(self.tags, bare)
        self.scopes = (VERSIONS,) if owners is None else [VERSIONS.of_session(owner) for owner in owners]
        self.late = () if keys else writer.late_roots
        self.since = 0
        self.until = None
        self.bare = bare
        self.keys = keys
        self.entries = entries
        self._owners = owners
        self.is_open = False
        self.former: Token[Write | None] | None = None
        self.fills: tuple[Fill, ...] = ()
        self._announced: Announcement | None = None
        # Before its tiers are looked for: those that come later are found at its end.
        self._known: tuple[object, int] = CURRENT.once_configured, TOOLS.links
        self.tiers: dict[Tier, bool] = {}
        if entries or writer.own_tiers or WITHOUT_TIERS.get(writer.roots) != self._known:
            self.tiers = self._find_tiers()

    def _find_tiers(self) -> dict[Tier, bool]:
        roots = (*self.writer.roots, *[root for request in self.entries for root in request.roots])
        return tiers_under(roots, self.writer.own_tiers, in_sessions=self._owners is not None)

    def _announcement(self) -> Announcement:
        from agent_cache.remote.protocol import WriteIntent  # which whoever has a tier has loaded

        writer = self.writer
        intent = WriteIntent(
            id=os.urandom(16).hex(),
            tags=(*[tag for tag in self.tags if isinstance(tag, str)], *self.bare),
            late_roots=self.late,
            entries=self.entries,
            on_unreachable=writer.policy.remote.on_unreachable,
        )
        return Announcement(intent, self.tiers, writer.name, is_sync=writer.is_sync)

    async def begin(self, fill: Fill | None = None) -> None:
        """Announce the write, and hold its tags. Before the side effect. If this is interrupted, nothing is left of it.
        A result is taken, unless another write has touched it since it was given.

        Raises:
            RemoteTierError: if a tier refuses the write; nothing has happened then.
        """
        try:
            if self.tiers:
                self._announced = self._announcement()
                await self._announced.begin()
            self.is_open = True  # first: one whose begin was interrupted is to be ended
            with VERSIONS.lock:
                is_current = fill is not None and fill.is_current(self)
                VERSIONS.begin(self)
            if fill is not None and is_current:
                self.take(fill)
            self.former = WRITING.set(self)
        except BaseException as error:
            await self.fail(error)
            raise

    async def complete(self, fill: Fill | None = None) -> None:
        """Begin and end: what it touches has been changed already.

        Args:
            fill: a result to be stored.
        """
        try:
            await self.begin(fill)
            ended = self.end(fills=self.fills)
        except BaseException as error:
            await self.fail(error)
            raise
        await ended

    def take(self, fill: Fill) -> bool:
        """Store a result when this write ends, unless another write has overlapped it by then.

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
        flight.since = self.since  # a write that began after this one must not have touched it
        others = [one for one in self.fills if (one.call.flight.store, one.call.key) != (store, flight.key)]
        self.fills = (*others, fill)
        return True

    async def fail(self, error: BaseException) -> None:
        """End it, if it has not ended: its side effect has raised, was cancelled, or was not begun.

        The local half is done when this first awaits; the rest goes on if the caller is cancelled again.
        """
        may_wait = not isinstance(error, GeneratorExit)  # a coroutine that is being closed must not wait
        announced, policy = self._announced, self.writer.policy
        if announced is not None and announced.is_ended:
            announced = None
        if self.is_open or (announced is not None and self.since):
            if isinstance(error, policy.no_effect):
                await self.end(may_wait=may_wait)
            else:
                doubt = policy.doubt if policy.leaves_in_doubt(error) else 0.0
                await self.end(self.late, failed=True, hold=doubt, may_wait=may_wait)
        elif announced is not None:  # nothing has happened; after Ctrl-C it is taken back in the background
            may_wait = isinstance(error, Exception) if self.writer.is_sync else may_wait
            await announced.end(announced.intent.tags, failed=False, hold=0.0, may_wait=may_wait)

    def end(
        self,
        late: tuple[Tag, ...] = (),
        bare: tuple[str, ...] = (),
        *,
        fills: Sequence[Fill] = (),
        failed: bool = False,
        hold: float = 0.0,
        may_wait: bool = True,
    ) -> Awaitable[None]:
        """End it here, in this very step. Returns the rest, its end in the tiers.

        Args:
            late, bare: what it has touched beside what it began with, or may have.
            fills: the results to be stored.
            failed: whether what it has touched is not known.
            hold: seconds in which all of it is held further on.
            may_wait: whether the rest is waited for.
        """
        # Contexts of tasks that were started in the write keep it alive: let go of what it refers to.
        former, self.former, self.fills = self.former, None, ()
        if former is not None:
            try:
                WRITING.reset(former)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it began in
        if fills:
            fills = self._end_with(fills, late, bare, hold)
        else:
            VERSIONS.end(self, late, bare, CLOCK.now() + hold if hold else None)
        self.is_open = False  # after it: a write whose end was interrupted ends again
        configured, links = self._known
        if CURRENT.once_configured is not configured or TOOLS.links != links:  # tiers that have come while it ran
            self.tiers = self._find_tiers() | self.tiers
            if self._announced is not None:
                self._announced.tiers = self.tiers
            elif self.tiers:
                self._announced = self._announcement()
        announced = self._announced
        if announced is None:
            for fill in fills:
                insert_if_valid(fill.call, fill.entry)
            return ENDED
        touched, then = (*announced.intent.tags, *late, *bare), partial(self._end_again, late, bare, fills)
        return announced.end(touched, then, failed=failed, hold=hold, may_wait=may_wait, then_waits=bool(fills))

    def _end_with(
        self, fills: Sequence[Fill], late: tuple[Tag, ...], bare: tuple[str, ...], hold: float = 0.0
    ) -> Sequence[Fill]:
        """End it here, and let results count from now on that no other write has touched, nor touches now.

        Returns:
            These results.
        """
        now = CLOCK.now()
        with VERSIONS.lock:
            VERSIONS.expire(now)
            kept = [fill for fill in fills if fill.is_current(self)]
            # What loads one of these entries now is older, whatever the write turns out to touch.
            entries = tags_of_keys([(call.operation, call.key) for call, _ in kept])
            VERSIONS.end(self, (*late, *entries), bare, now + hold if hold else None)
            for call, _ in kept:
                call.flight.restart()
        return kept

    async def _end_again(self, late: tuple[Tag, ...], bare: tuple[str, ...], fills: Sequence[Fill]) -> None:
        """End it once more when the tiers know of it: entries were filled from them since its local end.

        The tiers themselves do not get the results: a write of another process may have ended since this one began, and
        its message may be on its way. It will drop a local copy, but nothing would drop the tier's.
        """
        for call, entry in self._end_with(fills, late, bare):
            try:
                call.flight.tickets = await take_tickets(call)
                for ticket in call.flight.tickets:
                    if ticket.lasts is not None:
                        entry.expire_by(call.started + ticket.lasts)
                insert_if_valid(call, entry)
            finally:
                call.flight.finish()


WRITING: ContextVar[Write | None] = ContextVar("agent_cache_writing", default=None)
"""The innermost write that runs in this context. Child tasks and threads inherit it, also beyond its end."""
