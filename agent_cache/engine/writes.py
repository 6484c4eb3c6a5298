"""What surrounds a side effect: hold and drop before it, drop again when it has ended, however it ended.

Hardest case, and what happens in it: a write is cancelled while its request is on the wire, during a read of the same
entity. Before the side effect its tags are held and the read's flight is spoiled and detached: its callers get what it
loads, nobody keeps it. The cancellation ends the write; in the same step, before anything is awaited, its hold turns
into one that lasts `doubt` seconds, and entries and flights under its tags are dropped again. Until the doubt is over
nothing under them is stored; its end is a move as well. The commit to the tiers goes on in a task of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, TypeVar

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.coherence import Hold, Region
from agent_cache.core.policies import WritePolicy
from agent_cache.core.tags import Tag, TagRule
from agent_cache.engine.reaper import free
from agent_cache.engine.state import LEDGER, log_once
from agent_cache.errors import RemoteTierError
from agent_cache.metrics import Stats
from agent_cache.remote.protocol import Request, Tier, WriteIntent

__all__ = ["Write", "outlive", "tiers_under"]

T = TypeVar("T")

_commits: set[asyncio.Task[Any]] = set()
"""Commits whose writer was cancelled while it waited for them. Something must hold a task that nobody awaits."""


class Write:
    """One write, from before its side effect until it is committed everywhere.

    Args:
        name: who writes, for messages.
        policy: what its failures mean.
        tags: what it touches, as far as that is known before it runs.
        late: rules that give the rest from its result.
        arguments: of the call, for the late rules.
        bare: roots below which nothing is touched, because no id was given: only what depends on all of them changes.
        keys: (tool, key) pairs that it touches instead of tags.
        entries: the same, as tiers know them.
        owners: sessions it is limited to, None for everything.
        tiers: tiers to announce it to.
        stats: counters of what could not be computed.
    """

    __slots__ = (
        "_arguments",
        "_entries",
        "_hold",
        "_intent",
        "_late",
        "_renewal",
        "_stats",
        "_tiers",
        "name",
        "policy",
        "region",
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
        tiers: tuple[Tier, ...] = (),
        stats: tuple[Stats, ...] = (),
        entries: tuple[Request, ...] = (),
    ) -> None:
        self.name = name
        self.policy = policy
        self.region = Region(tags, keys, owners, bare)
        self._late = late
        self._entries = entries
        self._arguments = arguments or {}
        self._hold: Hold | None = None
        self._tiers = tiers
        self._stats = stats
        self._intent: WriteIntent | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Before the side effect. Raises `RemoteTierError` if a tier refuses the write; nothing has happened then."""
        if self._tiers:
            await self._announce()
        with LEDGER.lock:
            self._hold = LEDGER.hold(self._all_that_may_be_touched())
            garbage = LEDGER.move(self.region)
        free(garbage)

    async def succeed(self, result: Any, *, ok: bool = True) -> None:
        """After a side effect that returned."""
        await self._end(self._touched_by(result), failed=False, hold=self.policy.settle if ok else 0.0)

    async def fail(self, error: BaseException) -> None:
        """After a side effect that raised, or was cancelled.

        The local half is done when this first awaits; the rest goes on if the caller is cancelled again.
        """
        may_wait = not isinstance(error, GeneratorExit)  # a coroutine that is being closed must not wait
        if isinstance(error, self.policy.no_effect):
            await self._end(self.region, failed=False, hold=0.0, may_wait=may_wait)
            return
        doubt = self.policy.doubt if self.policy.leaves_in_doubt(error) else 0.0
        await self._end(self._all_that_may_be_touched(), failed=True, hold=doubt, may_wait=may_wait)

    @property
    def _late_roots(self) -> tuple[str, ...]:
        return tuple(rule.root for rule in self._late)

    def _all_that_may_be_touched(self) -> Region:
        return replace(self.region, paths=self.region.paths + self._late_roots) if self._late else self.region

    def _touched_by(self, result: Any) -> Region:
        """What the write has turned out to touch."""
        if not self._late:
            return self.region
        paths, bare = self.region.paths, self.region.bare
        for rule in self._late:
            try:
                made = rule.make(self._arguments, result)
            except Exception as error:  # noqa: BLE001 - the user's function; the write has happened all the same
                for stats in self._stats:
                    stats.unstored += 1
                log_once(
                    f"tags of a write could not be computed from {rule.source!r}, so all of {rule.root!r} was dropped",
                    self.name,
                    error,
                )
                paths += (rule.root,)
                continue
            if made == (rule.root,):
                bare += made
            else:
                paths += made
        return replace(self.region, paths=paths, bare=bare)

    async def _end(self, region: Region, *, failed: bool, hold: float, may_wait: bool = True) -> None:
        self._move(region, hold)
        if self._intent is not None:
            if self._renewal is not None:
                self._renewal.cancel()
            said = self._commit(self._intent, region.paths + region.bare, failed=failed, hold=hold)
            await outlive(self._land(said, region), *said.values(), may_wait=may_wait)

    def _move(self, region: Region, hold: float) -> None:
        with LEDGER.lock:
            if self._hold is not None:
                LEDGER.release(self._hold)
                self._hold = None
            if hold:
                LEDGER.hold(region, CLOCK.now() + hold)
            garbage = LEDGER.move(region)
        free(garbage)

    # Tiers

    async def _announce(self) -> None:
        self._intent = WriteIntent(
            id=os.urandom(16).hex(),
            tags=self.region.paths + self.region.bare,
            late_roots=self._late_roots,
            keys=tuple((tool.name, key) for tool, key in self.region.keys),
            entries=self._entries,
            on_unreachable=self.policy.remote.on_unreachable,
        )
        intent, cancels = self._intent, _cancels()
        try:
            await self._tell("begin", self._tiers, lambda tier: tier.begin(intent))
            if _cancels() > cancels:
                raise asyncio.CancelledError  # noqa: TRY301 - a tier has swallowed it; the tool must not run
        except BaseException as error:
            # Refused, or cancelled before the side effect: what was announced ends again.
            may_wait = not isinstance(error, GeneratorExit)
            said = self._commit(intent, intent.tags, failed=False, hold=0.0)
            await outlive(self._land(said, None), *said.values(), may_wait=may_wait)
            raise
        interval = min(tier.lease for tier in self._tiers) / 3
        loop, context = asyncio.get_running_loop(), copy_context()
        # A task only for a write that takes so long. A timer keeps the context that it runs in, also when cancelled.
        self._renewal = loop.call_later(interval, self._go_on_renewing, intent, interval, context, context=Context())

    def _go_on_renewing(self, intent: WriteIntent, interval: float, context: Context) -> None:
        loop, name = asyncio.get_running_loop(), f"agent_cache renews {self.name}"
        self._renewal = loop.create_task(self._renew(intent, interval), name=name, context=context)

    async def _renew(self, intent: WriteIntent, interval: float) -> None:
        while True:
            await self._tell("renew", self._tiers, lambda tier: tier.renew(intent))
            await asyncio.sleep(interval)

    def _commit(
        self, intent: WriteIntent, tags: tuple[Tag, ...], *, failed: bool, hold: float
    ) -> dict[Tier, Coroutine[Any, Any, None]]:
        """Say that it has ended, in this very step; what is left is to wait until that has landed."""
        said: dict[Tier, Coroutine[Any, Any, None]] = {}
        for tier in self._tiers:
            try:
                said[tier] = tier.commit(intent, tags, failed=failed, hold=hold)
            except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
                self._failed("commit", tier, error)
        return said

    async def _land(self, said: dict[Tier, Coroutine[Any, Any, None]], region: Region | None) -> None:
        await self._tell("commit", tuple(said), said.__getitem__)
        if region is not None:
            self._move(region, 0.0)  # what was filled from a tier between the end of the write and its commit

    async def _tell(self, what: str, tiers: tuple[Tier, ...], say: Callable[[Tier], Coroutine[Any, Any, None]]) -> None:
        """All tiers at once. Most writes have one, which takes no task."""
        if len(tiers) == 1:
            await self._guard(say, what, tiers[0])
        else:
            told = (self._guard(say, what, tier) for tier in tiers)
            for outcome in await asyncio.gather(*told, return_exceptions=True):  # none goes on after its commit
                if outcome is not None:
                    raise outcome

    async def _guard(self, say: Callable[[Tier], Coroutine[Any, Any, None]], what: str, tier: Tier) -> None:
        """A broken cache is not a broken agent: only a refusal before the side effect gets through."""
        try:
            await say(tier)
        except Exception as error:
            if what == "begin" and isinstance(error, RemoteTierError):
                raise
            if what == "begin" and self.policy.remote.on_unreachable == "refuse":
                text = f"the write was not begun, because announcing it raised {type(error).__name__}"
                raise RemoteTierError(text, tier) from error
            self._failed(what, tier, error)

    def _failed(self, what: str, tier: Tier, error: Exception) -> None:
        log_once(f"{what} of a write in {type(tier).__name__} failed", self.name, error)


def _cancels() -> int:
    """How often the task that runs was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def outlive(work: Coroutine[Any, Any, T], *parts: Coroutine[Any, Any, Any], may_wait: bool = True) -> T | None:
    """Run to the end even if the caller is cancelled while it waits, or cannot wait at all. What came of it, if so.

    Args:
        parts: what it is going to await, to be closed with it if it never runs.
    """
    try:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[T] = loop.create_future()  # not the task: it would be told one iteration of the loop later
        task = loop.create_task(_carry_out(work, told))
    except RuntimeError:  # the call is being closed without a loop: leases end what it had announced
        _close(work, *parts)
        return None
    _commits.add(task)

    def forget(_: asyncio.Task[None]) -> None:
        _commits.discard(task)
        told.cancel()
        if task.cancelled():  # maybe before it had begun
            _close(work, *parts)

    task.add_done_callback(forget)
    return await told if may_wait else None


def _close(*coroutines: Coroutine[Any, Any, Any]) -> None:
    for each in coroutines:
        if hasattr(each, "close"):  # a tier may have returned a future
            each.close()


async def _carry_out(work: Coroutine[Any, Any, T], told: asyncio.Future[T]) -> None:
    try:
        result = await work
    except Exception as error:
        if told.done():
            raise
        told.set_exception(error)
    else:
        if not told.done():
            told.set_result(result)


def tiers_under(roots: tuple[str, ...], own: tuple[Tier, ...], *, in_sessions: bool = False) -> tuple[Tier, ...]:
    """Every tier that may hold something under these roots: one's own, the configured, and those of any tool that
    reads there.

    Args:
        in_sessions: only those that have answers of sessions, for a write that is limited to a session.
    """
    found: dict[Tier, None] = {}
    if not in_sessions:
        configured = CURRENT.value
        found.update(dict.fromkeys(own))
        found.update(dict.fromkeys(tier for tier in (configured.backup, configured.remote) if tier is not None))
    with LEDGER.lock:
        for root in roots:
            for home in LEDGER.partitions_under(root):
                if home.owner is None and (not in_sessions or home.tool.policy.remote.share):
                    found.update(dict.fromkeys(home.tool.tiers()))
    return tuple(found)
