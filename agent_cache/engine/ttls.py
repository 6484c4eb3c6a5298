"""Ttls that are set at run time, by the name of the tool, and what reloads show of them, for `recommendations()`.

A tool that is decorated later gets the ttl of its name. A tier that passes them on (`VersionedTier.follow_ttls`) gives
all of its own at once, so one that is not among them any more has been taken back.

A shorter ttl drops what is stored, what was made of it, and what is loading, since it may have computed its expiry
already. A longer one counts for what is loaded from now on: nothing outlives the ttl that was in force when it was
stored, and nothing is stored that the code does not let be stored.

A reload of an expired result that no write has touched is compared with that one. All else that is recommended rests on
the counters of the tool.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.scope import Call
from agent_cache.engine.state import TOOLS, clear_tools
from agent_cache.metrics import Stats
from agent_cache.values.compare import fingerprint

if TYPE_CHECKING:
    from agent_cache.remote.versioned import Tier

__all__ = ["SHORTEST", "TTLS", "Evidence", "Ttls", "follow"]


class Ttls:
    """The ttls that are set at run time, in seconds by the name of the tool; and by tier, those that each has."""

    def __init__(self) -> None:
        self._by_name: dict[str, float] = {}
        self._of_tiers: weakref.WeakKeyDictionary[Tier, dict[str, float | None]] = weakref.WeakKeyDictionary()

    def get(self, name: str) -> float | None:
        """The ttl of a tool; None if its code decides."""
        return self._by_name.get(name)

    def set(self, name: str, ttl: float | None) -> None:
        """Set the ttl of all tools of this name in this process; None takes it back."""
        shortened = []
        with VERSIONS.lock:  # a tool that is being decorated takes it from here, or is changed below
            self._by_name.pop(name, None)
            if ttl is not None:
                self._by_name[name] = ttl
            for tool in TOOLS.readers():
                if getattr(tool, "name", None) == name and hasattr(tool, "declared"):  # it is not being made
                    former, changed = tool.policy, tool.declared.with_ttl(ttl)
                    if changed.ttl != former.ttl or changed.bound != former.bound:
                        tool.set_policy(changed)
                        life, before = changed.longest_ttl, former.longest_ttl
                        if life is not None and (before is None or life < before):
                            shortened.append(tool)
        if shortened:
            clear_tools(shortened)

    def note_published(self, tier: Tier, name: str, ttl: float | None) -> None:
        """Note what a tier is about to be given, so that it is taken back here when the tier has it no more."""
        self._of_tiers.setdefault(tier, {})[name] = ttl

    def receive(self, tier: Tier, ttls: Mapping[str, float]) -> None:
        """Set all ttls that a tier has, and take back those that it had and has no more."""
        former = self._of_tiers.get(tier, {})
        self._of_tiers[tier] = dict(ttls)
        for name in {*former, *ttls}:
            if self._by_name.get(name) != ttls.get(name):
                self.set(name, ttls.get(name))

    def clear(self) -> None:
        """Take all back."""
        self._of_tiers.clear()
        for name in list(self._by_name):
            self.set(name, None)


TTLS: Final = Ttls()


def follow(tier: Tier) -> Callable[[], None]:
    """Follow the ttls that a tier passes on. Returns a function that ends this."""
    reference = weakref.ref(tier)

    def receive(ttls: Mapping[str, float]) -> None:
        if (alive := reference()) is not None:
            TTLS.receive(alive, ttls)

    return tier.follow_ttls(receive)


# Reloads

SHORTEST: Final = 1e-3
"""Seconds. Shorter loads are not looked at: there is little to save, and a comparison would take a good part of it."""


class Evidence:
    """What was seen of one tool, with the counters `stats`. Threads take no lock for it: a count may be lost."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self.expired = 0  # how many loads have replaced a result that had expired
        self.restart()

    def restart(self) -> None:
        """Count anew, since the ttl is another one now: a rate is estimated from intervals that are alike."""
        self._began = CLOCK.now() if self.expired else -math.inf  # of what was loaded before, the ttl was another one
        self.expired = self.changed = self.unchanged = 0
        self.seconds = 0.0  # the intervals between the compared loads and the ones before, in sum
        self._former = self._counted()

    def _counted(self) -> tuple[int, ...]:
        stats = self._stats
        return stats.hits + stats.shared, stats.misses, stats.evictions

    @property
    def counts(self) -> tuple[int, ...]:
        """Calls that were answered without a load, loads, and evictions."""
        return tuple([max(0, now - before) for now, before in zip(self._counted(), self._former, strict=True)])

    def note(self, call: Call, value: Any, former: Entry) -> None:
        """Note that a result takes the place of one that still counted, but for its age."""
        policy = call.operation.policy
        ttl, outcome_key = policy.ttl, policy.loop.outcome_key
        if ttl is None or callable(ttl) or former.expires > call.started:
            return
        interval = call.started - former.expires + ttl
        if interval <= 0 or call.started - interval < self._began:
            return
        self.expired += 1
        results = former.expired_value(), value
        try:
            one, other = map(fingerprint, results if outcome_key is None else map(outcome_key, results))
        except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
            return
        if one is not None and other is not None:
            self.unchanged += one == other
            self.changed += one != other
            self.seconds += interval
