"""What the tiers are told of a write: that it begins, that it goes on, and how it has ended.

Each step goes to all tiers at once. A tier that fails is logged: a broken cache is not a broken agent. Only before the
side effect, and only a tier that is in use, may refuse the write.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agent_cache.config import CURRENT
from agent_cache.core.tags import Tag
from agent_cache.engine.blocking import in_background
from agent_cache.engine.state import TOOLS, event_loop, run_shielded, warn_once
from agent_cache.errors import RemoteTierError
from agent_cache.values.canonical import forget_oldest

if TYPE_CHECKING:
    from agent_cache.remote.protocol import WriteIntent
    from agent_cache.remote.versioned import Tier

__all__ = ["ENDED", "WITHOUT_TIERS", "Announcement", "tiers_under"]


class _Ended:
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


ENDED: Final = _Ended()
"""The end of a write in no tier: there is nothing to wait for."""


def tiers_under(roots: tuple[str, ...], own: tuple[Tier, ...], *, in_sessions: bool = False) -> dict[Tier, bool]:
    """Every tier that may hold entries under these roots: the writer's own, those of any tool that reads there, and all
    that were ever configured, as other processes or an earlier block may have stored something there.

    Args:
        in_sessions: only tiers with answers of sessions, for a write that is limited to a session.

    Returns:
        The tiers, and whether each is in use: named by a tool, or by a plain call or an entered block of `configure`.
        The others are told like them, but a tier that was given up must not stop a write.
    """
    state = CURRENT.once_configured, TOOLS.links
    found: dict[Tier, bool] = {}
    readers = _readers_with_tiers(roots)
    if in_sessions:
        readers = [tool for tool in readers if tool.policy.remote.share]
    if not in_sessions or any(not tool.own_tiers for tool in readers):
        found.update(dict.fromkeys(CURRENT.tiers_once_configured(), False))
        found.update(dict.fromkeys(CURRENT.configured_tiers(), True))
    if not in_sessions:
        found.update(dict.fromkeys(own, True))
    for tool in readers:
        if tool.own_tiers:
            found.update(dict.fromkeys(tool.tiers(), True))
    if in_sessions:
        if not found:
            tiers_under(roots, own)  # for the note that there is none at all
    elif not found:
        forget_oldest(WITHOUT_TIERS, _MAX_ROOTS - 1)
        WITHOUT_TIERS[roots] = state
    return found


def _readers_with_tiers(roots: tuple[str, ...]) -> list[Any]:
    """The read tools under these roots that name tiers of their own, or have answers of sessions in tiers."""
    links, known = _READERS.get(roots, (None, ()))
    if links != TOOLS.links:
        links, tools = TOOLS.links, dict.fromkeys(tool for root in roots for tool in TOOLS.readers(root))
        known = tuple(weakref.ref(tool) for tool in tools if tool.own_tiers or tool.policy.remote.share)
        forget_oldest(_READERS, _MAX_ROOTS - 1)
        _READERS[roots] = links, known
    return [tool for one in known if (tool := one()) is not None]


_MAX_ROOTS: Final = 1_000

_READERS: Final[dict[tuple[str, ...], tuple[int, tuple[weakref.ref[Any], ...]]]] = {}
"""What `_readers_with_tiers` found, each with the state of the tools: a write must not look at each of them."""

WITHOUT_TIERS: Final[dict[tuple[str, ...], tuple[object, int]]] = {}
"""Roots under which no tier has anything, each with the state of tiers and tools under which this was found. A write
must not look at each tool that reads there.
"""


class Announcement:
    """A write as its tiers see it. For a write without an event loop, all of it is done in the background loop.

    Args:
        intent: what they are told of it.
        tiers: the tiers, and whether each is in use: see `tiers_under`.
        name: the writer, for messages.
        is_sync: whether it has no event loop.

    Attributes:
        is_ended: whether its end was begun.
    """

    __slots__ = ("_begun", "_is_sync", "_name", "_renewal", "intent", "is_ended", "tiers")

    def __init__(self, intent: WriteIntent, tiers: dict[Tier, bool], name: str, *, is_sync: bool) -> None:
        self.intent = intent
        self.tiers = tiers
        self.is_ended = False
        self._name, self._is_sync = name, is_sync
        self._begun: asyncio.Future[None] | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Announce it, and renew that until it ends. If this raises, some tiers may know of it: end it.

        Raises:
            RemoteTierError: if a tier refuses it.
        """
        await (in_background(self._begin, is_shielded=True) if self._is_sync else self._begin())

    async def _begin(self) -> None:
        loop, intent = event_loop(self._name), self.intent
        self._begun = loop.create_future()
        to_former = intent if all(self.tiers.values()) else replace(intent, on_unreachable="run")
        try:
            await self._send("begin", lambda tier: tier.begin(intent if self.tiers[tier] else to_former))
            interval = min(tier.lease for tier in self.tiers) / 3
            # A task is made only for a write that takes that long. The timer gets an empty context: also a cancelled
            # one keeps its context alive.
            self._renewal = loop.call_later(interval, self._renew_later, interval, copy_context(), context=Context())
        finally:
            self._begun.set_result(None)

    def _renew_later(self, interval: float, context: Context) -> None:
        loop, name = asyncio.get_running_loop(), f"agent_cache renews {self._name}"
        self._renewal = loop.create_task(self._renew(interval), name=name, context=context)

    async def _renew(self, interval: float) -> None:
        while True:
            await self._send("renew", lambda tier: tier.renew(self.intent))
            await asyncio.sleep(interval)

    def end(
        self,
        tags: tuple[Tag, ...],
        then: Callable[[], Awaitable[None]] = lambda: ENDED,
        *,
        failed: bool,
        hold: float,
        may_wait: bool,
        then_waits: bool = False,
    ) -> Awaitable[None]:
        """End it: `commit` of every tier is called in this very step, or in the background loop.

        Args:
            tags: all that the write has touched, or may have.
            then: what follows when all tiers know of it.
            failed: whether what it has touched is not known.
            hold: seconds in which it may still take effect.
            may_wait: False for a caller that is being closed.
            then_waits: whether `then` may wait for anything but the tiers.

        Returns:
            The rest, which goes on if who awaits it is cancelled.
        """

        def commit() -> Awaitable[None]:
            if self._renewal is not None:
                self._renewal.cancel()
            commits = {tier: tier.commit(self.intent, tags, failed=failed, hold=hold) for tier in self.tiers}
            if len(commits) == 1 and not then_waits and all(tier.never_waits for tier in commits):
                return finish(commits)  # which nothing can come between, and which takes no task
            return run_shielded(finish(commits), *commits.values(), may_wait=may_wait)

        async def finish(commits: dict[Tier, Awaitable[None]]) -> None:
            await self._send("commit", commits.__getitem__)
            await then()

        async def commit_when_begun() -> None:
            if self._begun is not None:  # the caller may have been interrupted while it waited for that
                await self._begun
            await commit()

        ended = in_background(commit_when_begun, is_shielded=True) if self._is_sync else commit()
        self.is_ended = True
        return ended if may_wait or not self._is_sync else ENDED

    async def _send(self, step: str, to_tier: Callable[[Tier], Awaitable[None]]) -> None:
        """Do one step in all tiers at once. Most writes have one tier, which takes no task."""
        steps = [self._guarded(to_tier, step, tier) for tier in self.tiers]
        if len(steps) == 1:
            await steps[0]
            return
        for outcome in await asyncio.gather(*steps, return_exceptions=True):  # wait for all before one raises
            if outcome is not None:
                raise outcome

    async def _guarded(self, to_tier: Callable[[Tier], Awaitable[None]], step: str, tier: Tier) -> None:
        try:
            await to_tier(tier)
        except Exception as error:
            if step == "begin" and self.tiers[tier]:
                if isinstance(error, RemoteTierError):
                    raise
                if self.intent.on_unreachable == "refuse":
                    text = f"the write was not begun, because announcing it raised {type(error).__name__}"
                    raise RemoteTierError(text, tier) from error
            warn_once(f"{step} of a write in {type(tier).__name__} failed", self._name, error)
