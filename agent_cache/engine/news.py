"""What other processes write, as it reaches this one.

Local copies go at once. So does what a nearer tier has: it stands to a farther one as the local store does, dropped at
news, dropped when news may have been lost, and believed only as long as the farther one is trusted to pass news on.
Since a listener cannot wait, the nearer tier is told when it is next asked, and before it is.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Hashable
from functools import partial

from agent_cache.clock import CLOCK
from agent_cache.core.coherence import Region
from agent_cache.core.store import NEVER
from agent_cache.core.tags import root_of
from agent_cache.engine.reaper import free
from agent_cache.engine.state import LEDGER, drop, log_once
from agent_cache.remote.protocol import Tier, Touched, WriteIntent

__all__ = ["forget_tiers", "is_trusted", "settle", "trust_in"]

_MAX_OWED = 1_000
"""Paths that a nearer tier is owed before they are taken together by root."""

_next_serial = itertools.count().__next__
# A tier that nobody has any more is gone, with all that is known of it.
_subscriptions: weakref.WeakKeyDictionary[Tier, Callable[[], None]] = weakref.WeakKeyDictionary()
_debts: weakref.WeakKeyDictionary[Tier, _Debt] = weakref.WeakKeyDictionary()
_in_front: weakref.WeakKeyDictionary[Tier, weakref.WeakSet[Tier]] = weakref.WeakKeyDictionary()


class _Debt:
    """What a nearer tier has not been told yet, each with a serial number: what is owed anew meanwhile is not paid.

    Attributes:
        roots: roots under which it holds nothing from before this process began to listen.
    """

    __slots__ = ("keys", "paths", "roots")

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}
        self.keys: dict[tuple[str, Hashable], int] = {}
        self.roots: set[str] = set()

    def owe(self, touched: Touched | None) -> None:
        """After a loss, everything under every root."""
        serial = _next_serial()
        self.paths.update(dict.fromkeys(self.roots if touched is None else touched.tags, serial))
        if len(self.paths) > _MAX_OWED:
            self.paths = dict.fromkeys(map(root_of, self.paths), serial)
        if touched is not None:
            self.keys.update(dict.fromkeys(touched.keys, serial))

    def pay(self, paths: dict[str, int], keys: dict[tuple[str, Hashable], int]) -> None:
        """These have been told."""
        for path, serial in paths.items():
            if self.paths.get(path) == serial:
                del self.paths[path]
        for key, serial in keys.items():
            if self.keys.get(key) == serial:
                del self.keys[key]


def trust_in(tiers: tuple[Tier, ...]) -> Callable[[], float] | None:
    """Listen to these tiers, nearest first. Returns up to when a local copy may be served that they vouch for."""
    deadlines = [tier.trusted_until if _listen_to(tier, tiers[:index]) else _never for index, tier in enumerate(tiers)]
    if len(deadlines) < 2:
        return deadlines[0] if deadlines else None
    return lambda: min(deadline() for deadline in deadlines)


def is_trusted(tier: Tier) -> bool:
    """Whether what stands in front of this tier may be believed now."""
    return tier in _subscriptions and CLOCK.now() < tier.trusted_until()


async def settle(tier: Tier, roots: tuple[str, ...]) -> None:
    """Before a nearer tier is asked: tell it what it does not know. Raises what the tier raises; it stays owed then."""
    with LEDGER.lock:
        debt = _debts.setdefault(tier, _Debt())
        new = [root for root in roots if root not in debt.roots]
        if not new and not debt.paths and not debt.keys:
            return
        debt.paths.update(dict.fromkeys(new, _next_serial()))
        paths, keys = dict(debt.paths), dict(debt.keys)
    tags = tuple(paths)
    await tier.commit(WriteIntent(os.urandom(16).hex(), tags, keys=tuple(keys)), tags, failed=False, hold=0.0)
    with LEDGER.lock:
        debt.pay(paths, keys)
        debt.roots.update(new)


def forget_tiers() -> None:
    """Stop listening. Plans that are compiled later listen again."""
    with LEDGER.lock:
        ends = list(_subscriptions.values())
        for state in (_subscriptions, _debts, _in_front):
            state.clear()
    for end in ends:
        end()


def _listen_to(tier: Tier, nearer: tuple[Tier, ...]) -> bool:
    """Subscribe once per tier, before anything that it vouches for is kept. Whether that succeeded."""
    with LEDGER.lock:
        _in_front.setdefault(tier, weakref.WeakSet()).update(nearer)
        if tier in _subscriptions:
            return True
    try:
        end = tier.subscribe(partial(_hear, weakref.ref(tier)))
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        log_once("subscription failed, so nothing it vouches for is served", type(tier).__name__, error)
        return False
    with LEDGER.lock:
        if _subscriptions.setdefault(tier, end) is end:
            return True
    end()  # another thread was faster
    return True


def _hear(listened_to: weakref.ref[Tier], touched: Touched | None) -> None:
    """Somebody else writes, or news of that may have been missed."""
    tier = listened_to()
    if tier is None:
        return
    with LEDGER.lock:
        for nearer in _in_front.get(tier, ()):
            _debts.setdefault(nearer, _Debt()).owe(touched)
    if touched is None:
        _drop_all_behind(tier)
    else:  # what never leaves this process depends on the same data, so it goes as well
        drop(Region(touched.tags, _named(touched.keys) if touched.keys else ()))


def _named(keys: tuple[tuple[str, Hashable], ...]) -> tuple[tuple[object, Hashable], ...]:
    with LEDGER.lock:
        tools = {home.tool for home in LEDGER.partitions()}
    return tuple((tool, key) for name, key in keys for tool in tools if tool.name == name)


def _drop_all_behind(tier: Tier) -> None:
    """Drop what this tier vouches for; tools that have nothing to do with it keep their answers."""
    garbage = []
    with LEDGER.lock:
        for tool in {home.tool for home in LEDGER.partitions()}:
            if tier in tool.tiers():
                garbage += LEDGER.clear(tool)
    free(garbage)


def _never() -> float:
    return -NEVER
