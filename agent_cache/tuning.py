"""Ttls at run time, and what to change about the options of tools.

How often a result changes is estimated from reloads alone (`engine.ttls`), which tell whether it has changed since
the load before, and not when. With changes that come at random at a rate of ``r`` a second, an interval ``t`` shows one
with probability ``p = 1 - exp(-r * t)``. With ``n`` reloads of which ``x`` have not changed,
``r = -log((x + 0.5) / (n + 0.5)) / t`` (Cho and Garcia-Molina: Estimating Frequency of Change, ACM Transactions on
Internet Technology 3(3), 2003).

A result is served at any age from 0 to the ttl, and is stale by then with probability ``1 - exp(-r * age)``. On average
that is ``r * ttl / 2`` as long as it is small. So a share ``eps`` of stale answers allows ``ttl = 2 * eps / r``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from agent_cache.config import CURRENT
from agent_cache.core.options import no_life, seconds
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import TOOLS, warn_once
from agent_cache.engine.ttls import TTLS
from agent_cache.errors import ConfigurationError

__all__ = ["Recommendation", "get_ttl", "recommendations", "set_ttl"]


# Ttls at run time


def set_ttl(tool: Callable[..., Any] | str, ttl: float | timedelta | None) -> None:
    """Set the ttl of a read tool while the program runs, in this process at once, and in every process of its fleet.

    A shorter ttl counts at once: what is stored is dropped, and loaded anew when it is asked for. A longer one counts
    for what is loaded from now on. It never lets a result be stored that the code does not: where ``ttl=`` is a
    function of the result, the seconds are a bound on what it returns.

    It concerns all tools of the name. With a tier that can pass it on (`FileTier`, `RedisTier`, `MemoryTier`) it is
    delivered as soon as the file can be used or the server answers; processes that are started later learn it before
    they serve a local copy. Otherwise it lasts as long as the process.

    Args:
        tool: a decorated tool, or the full name of one: ``"module:qualname"``, its ``name=``, or ``"namespace:name"``
            of a tool that a `Toolbox` has called.
        ttl: seconds, or a `timedelta`. None takes it back: the ttl is what the code declares. That results never
            expire can only be declared in code.

    Raises:
        ConfigurationError: if no read tool of this name is known here, or `ttl` is anything else. Nothing has changed.
    """
    name, tools = _find(tool, "set_ttl")
    what = f"set_ttl: the ttl of {name!r} (a function of the result can only be declared in code)"
    life = None if ttl is None else seconds(ttl, what)
    TTLS.set(name, life)
    every = {id(tier): tier for one in tools for tier in (one.own_tiers or CURRENT.value.tiers)}
    for tier in every.values():
        TTLS.note_published(tier, name, life)
    for tier in every.values():
        try:
            tier.publish_ttl(name, life)
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            warn_once(f"a ttl could not be passed to {type(tier).__name__}", name, error)


def get_ttl(tool: Callable[..., Any] | str) -> float | Callable[[Any], Any] | None:
    """The ttl of a read tool that is in force in this process.

    Args:
        tool: as for `set_ttl`.

    Returns:
        Seconds; None if its results never expire; the function if ``ttl=`` is one and no bound was set.

    Raises:
        ConfigurationError: if no read tool of this name is known here, or two of them declare different ones and the
            name was given.
    """
    name, tools = _find(tool, "get_ttl")
    own = getattr(tool, "__agent_cache__", None)
    policies = [one.policy for one in (tools if own is None else [own])]
    ttls = {each.ttl if each.longest_ttl is None else each.longest_ttl for each in policies}
    if len(ttls) > 1:
        raise ConfigurationError(f"get_ttl: several tools are called {name!r}, whose ttls differ: give the tool itself")
    return ttls.pop()


def _find(tool: Any, function: str) -> tuple[str, list[ReadOperation]]:
    """The name of a tool, and all read tools of this name."""
    name = getattr(getattr(tool, "__agent_cache__", None), "name", tool)
    found = [one for one in _read_tools() if one.name == name]
    if not found:
        raise ConfigurationError(
            f"{function}: {name!r} is no read tool of this process; give the tool that AgentCache decorates, or its "
            "name: 'module:qualname', its name=, or 'namespace:name' of one that a toolbox has called"
        )
    return name, found


def _read_tools() -> list[ReadOperation]:
    return [one for one in TOOLS.readers() if isinstance(one, ReadOperation) and one.declared.ttl is not no_life]


# Recommendations

_Action = Literal["keep", "raise_ttl", "shorten_ttl", "raise_maxsize", "no_reuse"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to change about a tool, and why.

    Attributes:
        tool: its full name.
        action: ``"raise_ttl"``, ``"shorten_ttl"`` or ``"raise_maxsize"``: to `suggested`; ``"no_reuse"``: hardly any
            call is answered from the cache; ``"keep"``: nothing.
        reason: one or two sentences with the figures.
        evidence: how many calls, loads or reloads it rests on.
        current: the ttl in seconds, or the maxsize, that is in force; None for none.
        suggested: the value to set now; a ttl changes at most by a factor of four at a time. None where there is none.
        changed: how many of the compared reloads had changed.
        compared: how many reloads of expired results were compared that no write has touched.
        seconds_between_changes: the estimate; None if nothing was seen to change.
    """

    tool: str
    action: _Action
    reason: str
    evidence: int
    current: float | None = None
    suggested: float | None = None
    changed: int = 0
    compared: int = 0
    seconds_between_changes: float | None = None


# Of fewer reloads a share is known no better than by 22 points to either side. After so many calls without a hit, less
# than 2 % are repeats: 0.98 ** 150 < 0.05.
_LEAST_COMPARED, _LEAST_CALLS = 20, 200

# A ttl is changed by at most the first factor at a time, and not for less than the second one.
_STEP, _NOTABLE = 4.0, 1.5

# Shares of the calls: from which evictions matter; from which expiries do; and below which hits do not count.
_MANY, _SOME, _FEW = 0.1, 0.05, 0.02


def recommendations(*, max_stale: float = 0.01) -> list[Recommendation]:
    """What to change about the tools of this process, by their counters and reloads since they were decorated, or since
    `set_ttl` was last called for them.

    A tool is left out as long as there is too little evidence: less than 20 reloads that could be compared, and less
    than 200 calls. Reloads that take less than a millisecond are not looked at.

    Args:
        max_stale: which share of the answers may be stale because of changes that no write announces, between 0 and 1.

    Returns:
        By tool, the most important first.

    Raises:
        ConfigurationError: if `max_stale` is no such share.
    """
    if isinstance(max_stale, bool) or not isinstance(max_stale, int | float) or not 0 < max_stale < 1:
        raise ConfigurationError(f"recommendations: max_stale must be a share between 0 and 1, got {max_stale!r}")
    return [each for tool in sorted(_read_tools(), key=attrgetter("name")) for each in _advice_for(tool, max_stale)]


def _advice_for(tool: ReadOperation, max_stale: float) -> list[Recommendation]:
    """The recommendations for one tool. Nothing without evidence."""
    seen, ttl, maxsize = tool.evidence, tool.policy.longest_ttl, tool.policy.maxsize
    hits, loads, evicted = seen.counts
    calls, changed, compared = hits + loads, seen.changed, seen.changed + seen.unchanged
    rate, least, most = (
        _rate(each, compared, seen.seconds) if compared else 0.0
        for each in (changed, changed - 2 * math.sqrt(changed), changed + 2 * math.sqrt(changed) + 3)
    )
    made = partial(Recommendation, tool.name, changed=changed, compared=compared)
    if changed:
        made = partial(made, seconds_between_changes=1 / rate)
    counted = f"{changed:,} of {compared:,} reloads had changed"
    found: list[Recommendation] = []
    has_hits = hits > _FEW * calls

    is_full = any(len(store) == maxsize for store in tool.stores())  # else `max_bytes` evicts
    if maxsize and is_full and evicted > _MANY * calls and calls >= _LEAST_CALLS and has_hits:
        reason = f"{evicted:,} results were evicted in {calls:,} calls"
        found.append(made("raise_maxsize", reason, calls, maxsize, 2 * maxsize))

    if calls >= _LEAST_CALLS and not has_hits and seen.expired <= _FEW * calls:
        reason = (
            f"{hits:,} of {calls:,} calls were hits: caching saves nothing here, unless an argument differs each time "
            "that does not matter (ignore=), or writes drop more than they change"
        )
        found.append(made("no_reuse", reason, calls))

    if ttl is not None and compared >= _LEAST_COMPARED:
        best = 2 * max_stale / rate if rate else math.inf
        every = f", about every {_duration(1 / rate)}" if changed else ""
        if best < ttl / _NOTABLE and 2 * max_stale <= ttl * least:
            stale = 1 + math.expm1(-rate * ttl) / (rate * ttl)
            reason = f"{counted}{every}: about {stale:.0%} of the hits may be stale; shorten it, or name the writes"
            if changed > 0.99 * compared:
                reason += "; if they differ by a time or a random id, leave it out by LoopHints(outcome_key=...)"
            found.append(made("shorten_ttl", reason, compared, ttl, _rounded(max(best, ttl / _STEP))))
        elif best > ttl * _NOTABLE and 2 * max_stale >= ttl * most and seen.expired > _SOME * calls:
            late = f"{seen.expired / calls:.0%} of {calls:,} calls came too late by the ttl alone"
            reason = f"{counted}{every}, and {late}"
            found.append(made("raise_ttl", reason, compared, ttl, _rounded(min(best, ttl * _STEP))))

    if not found and calls >= _LEAST_CALLS and (compared >= _LEAST_COMPARED or 2 * hits >= calls):
        found.append(made("keep", f"{hits / calls:.0%} of {calls:,} calls were hits; {counted}", calls, ttl))
    return found


def _rate(changed: float, compared: float, seconds: float) -> float:
    """How often results change, in changes a second, by reloads after so many seconds in sum."""
    unchanged = min(max(compared - changed, 0.0), compared)
    return -math.log((unchanged + 0.5) / (compared + 0.5)) * compared / seconds


def _rounded(duration: float) -> float:
    """A duration to two digits."""
    return float(f"{duration:.2g}")


def _duration(duration: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if duration >= 2 * size:
            return f"{duration / size:.2g} {unit}" if duration < 10 * size else f"{duration / size:.0f} {unit}"
    return f"{duration:.2g} s"
