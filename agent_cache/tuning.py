"""Ttls at run time, and what to change about the options of tools.

`recommendations` reads what the loads of each tool have shown (`core.evidence`): why they were needed, and whether the
results had changed.

How often a result changes is estimated from reloads alone. A reload tells whether it has changed since the load
before, not when. With changes that come at random at a rate of ``r`` a second, an interval ``t`` shows one with
probability ``p = 1 - exp(-r * t)``, so the share of the reloads that have changed gives ``r = -log(1 - p) / t`` (Cho
and Garcia-Molina: Estimating Frequency of Change, ACM Transactions on Internet Technology 3(3), 2003), with the mean of
the intervals for ``t``. The bounds of ``p`` are one-sided at 95 %: exact where no reload or every reload has changed,
else those of Wilson (Probable Inference, Journal of the American Statistical Association 22, 1927).

A result is served at any age from 0 to the ttl, and is stale by then with probability ``1 - exp(-r * age)``. On average
that is ``r * ttl / 2`` as long as it is small. So a share ``eps`` of stale answers allows ``ttl = 2 * eps / r``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from agent_cache.config import CURRENT
from agent_cache.core.options import ReadPolicy, no_life, seconds
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import READERS, is_writer, warn_once
from agent_cache.engine.ttls import TTLS
from agent_cache.engine.write import WriteOperation
from agent_cache.errors import ConfigurationError

__all__ = ["Recommendation", "get_ttl", "recommendations", "set_ttl"]


# Ttls at run time


def set_ttl(tool: Callable[..., Any] | str, ttl: float | timedelta | None) -> None:
    """Set the ttl of a read tool while the program runs, in this process at once, and in every process of its fleet.

    A shorter ttl counts at once: what is stored is dropped, and loaded anew when it is asked for.
    A longer one counts for what is loaded from now on: nothing that is stored lives longer than it was promised to. It
    never lets a result be stored that the code does not: where ``ttl=`` is a function of the result, the seconds are a
    bound on what it returns.

    It concerns all tools of the name. With a tier that can pass it on (`FileTier`, `RedisTier`, `MemoryTier`) it is
    delivered as soon as the file can be used or the server answers; processes that are started later learn it before
    they serve a local copy. Otherwise it lasts as long as the process.

    Args:
        tool: a decorated tool, or the full name of one: ``"module:qualname"``, its ``name=``, or ``"namespace:name"``
            of a `Toolbox`.
        ttl: seconds, or a `timedelta`. None takes it back: the ttl is what the code declares. That results never
            expire can only be declared in code.

    Raises:
        ConfigurationError: if no read tool of this name is known here, or `ttl` is anything else. Nothing has changed.
    """
    found = _find(tool, "set_ttl")
    what = f"set_ttl: the ttl of {found.name!r} (a function of the result can only be declared in code)"
    life = None if ttl is None else seconds(ttl, what)
    TTLS.set(found.name, life)
    for tier in found.tiers:
        TTLS.note_published(tier, found.name, life)
    for tier in found.tiers:
        try:
            tier.publish_ttl(found.name, life)
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            warn_once(f"a ttl could not be passed to {type(tier).__name__}", found.name, error)


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
    found = _find(tool, "get_ttl")
    own = getattr(tool, "__agent_cache__", None)
    policies = found.policies if own is None else [own.policy]
    ttls = [each.ttl if each.longest_ttl is None else each.longest_ttl for each in policies]
    if any(each != ttls[0] for each in ttls):
        raise ConfigurationError(
            f"get_ttl: several tools are called {found.name!r}, with different ttls: give the tool itself"
        )
    return ttls[0]


class _Found(NamedTuple):
    """The tools of a name, or the rule of one that has not been called yet: their policies, and the tiers behind them
    that pass a ttl on.
    """

    name: str
    policies: list[ReadPolicy]
    tiers: list[Any]


def _find(tool: Any, function: str) -> _Found:
    operation = getattr(tool, "__agent_cache__", None)
    if not isinstance(tool, str) and not isinstance(operation, ReadOperation | WriteOperation):
        raise ConfigurationError(
            f"{function}: {tool!r} is neither a tool that AgentCache decorates nor the name of one"
        )
    name = tool if operation is None else operation.name
    reads = [one for one in READERS.all() if isinstance(one, ReadOperation)]
    operations = [one for one in reads if one.name == name]
    if isinstance(operation, WriteOperation) or (not operations and is_writer(name)):
        raise ConfigurationError(f"{function}: {name!r} is a write tool, which has no ttl; name one that reads")
    if operations:
        if all(one.declared.ttl is no_life for one in operations):
            raise ConfigurationError(f"{function}: {name!r} is a watch, of which nothing is stored, so it has no ttl")
        return _Found(name, [one.policy for one in operations], _tiers_of([one.own_tiers for one in operations]))
    from agent_cache.toolbox.box import rule_named
    from agent_cache.toolbox.rules import Read

    rule = rule_named(name)
    if isinstance(rule, Read):
        policy: ReadPolicy = rule.decorator.policy
        return _Found(name, [policy.with_ttl(TTLS.get(name))], _tiers_of([rule.decorator.tiers]))
    if rule is not None:
        raise ConfigurationError(f"{function}: the rule of {name!r} is {rule!r}, which has no ttl; name a Read(...)")
    from difflib import get_close_matches  # for an error alone

    near = get_close_matches(name, {one.name for one in reads}, 1, cutoff=0.4)
    raise ConfigurationError(
        f"{function}: no read tool called {name!r} is known in this process; the name is 'module:qualname', the name= "
        f"of its decorator, or 'namespace:name' of a toolbox{f'; is {near[0]!r} meant?' if near else ''}"
    )


def _tiers_of(named: list[Any]) -> list[Any]:
    """The tiers behind tools that name these themselves, each once, as far as they pass a ttl on."""
    configured = CURRENT.value
    found = {id(tier): tier for own in named for tier in (own or configured.tiers)}
    return [tier for tier in found.values() if hasattr(tier, "publish_ttl")]


# The rate of change


class _Rate(NamedTuple):
    """How often results change, in changes a second.

    Attributes:
        likely: the estimate. Where every reload has changed, which any higher rate explains even better, `least`; where
            none has, `most`.
        least, most: rates below and above are refuted; 0 and infinity where none is.
    """

    likely: float
    least: float
    most: float


def _rate(changed: float, unchanged: float, seconds: float) -> _Rate | None:
    """Estimate how often results change; None if there were no reloads.

    Args:
        seconds: the intervals of all reloads, in sum.
    """
    count = changed + unchanged
    if not count or seconds <= 0:
        return None
    share, spread = changed / count, _Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / 4 / count)
    least = 0.0 if not changed else 0.05 ** (1 / count) if not unchanged else centre - half
    most = 1.0 if not unchanged else 1 - 0.05 ** (1 / count) if not changed else centre + half
    likely = share if changed and unchanged else least if changed else most
    return _Rate(*[-math.log1p(-each) * count / seconds if each < 1 else math.inf for each in (likely, least, most)])


_Z: Final = 1.645
"""The quantile of the normal distribution at 95 %."""


# Recommendations

_Action = Literal[
    "keep", "raise_ttl", "shorten_ttl", "raise_maxsize", "raise_max_bytes", "no_reuse", "name_writes", "narrow_tags",
    "store_results",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to change about a tool, and why.

    Attributes:
        tool: its full name.
        action: ``"raise_ttl"``, ``"shorten_ttl"``, ``"raise_maxsize"`` or ``"raise_max_bytes"``: to `suggested`;
            ``"no_reuse"``: hardly any call is made twice; ``"name_writes"``: results change and no write was seen;
            ``"narrow_tags"``: writes drop results that have not changed; ``"store_results"``: results are not stored;
            ``"keep"``: nothing.
        reason: one or two sentences with the figures.
        evidence: how many loads or reloads it rests on.
        current: the ttl in seconds, or the maxsize, that is in force; None for none.
        suggested: the value to set now; a ttl changes at most by a factor of four at a time. None where there is none.
        changed: how many of the compared reloads had changed.
        compared: how many reloads of results were compared that no write is known to have touched.
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


# Of fewer loads or reloads a share is known no better than by 22 points to either side. A few changed ones may be races
# outside of this program. After so many calls without a hit, less than 2 % are repeats: 0.98 ** 150 < 0.05.
_LEAST_COMPARED, _LEAST_CHANGED, _LEAST_CALLS = 20, 5, 200

# A ttl is changed by at most the first factor at a time, and not for less than the second one.
_STEP, _NOTABLE = 4.0, 1.5

# Shares of the calls: from which evictions, and results that are not stored, matter; from which expiries do; and up to
# which calls are said not to be repeated.
_MANY, _SOME, _FEW = 0.1, 0.05, 0.02


def recommendations(*, max_stale: float = 0.01) -> list[Recommendation]:
    """What to change about the tools of this process, by what their loads have shown since they were decorated, or
    since `set_ttl` was last called for them.

    A tool is left out as long as there is too little evidence: less than 20 reloads that could be compared, or loads of
    one cause, and less than 200 calls. Loads that take less than a millisecond are not looked at.

    Args:
        max_stale: which share of the answers may be stale because of changes that no write announces, between 0 and 1.

    Returns:
        By tool, the most important first.

    Raises:
        ConfigurationError: if `max_stale` is no such share.
    """
    if isinstance(max_stale, bool) or not isinstance(max_stale, int | float) or not 0 < max_stale < 1:
        raise ConfigurationError(f"recommendations: max_stale must be a share between 0 and 1, got {max_stale!r}")
    tools = [one for one in READERS.all() if isinstance(one, ReadOperation) and one.declared.ttl is not no_life]
    return [each for tool in sorted(tools, key=attrgetter("name")) for each in _Advice(tool, max_stale).given()]


class _Advice:
    """What follows from what was seen of one tool.

    Attributes:
        ttl: the longest life of a result in seconds, None without a bound.
        calls: hits and loads.
        watched: loads whose cause is known.
        compared: reloads of results that no write is known to have touched.
        rate: how often results change that no write announces.
    """

    def __init__(self, tool: ReadOperation, max_stale: float) -> None:
        self.tool, self.max_stale, self.seen, self.ttl = tool, max_stale, tool.evidence, tool.policy.longest_ttl
        seen = self.seen
        self.hits, loads = seen.calls
        self.calls, self.watched = self.hits + loads, sum(seen.causes.values())
        self.hit_rate = self.hits / self.calls if self.calls else 0.0
        self.compared = seen.changed + seen.unchanged
        self.counted = f"{seen.changed:,.0f} of {self.compared:,.0f} reloads had changed"
        self.rate = _rate(seen.changed, seen.unchanged, seen.seconds)
        self.found: list[Recommendation] = []

    def given(self) -> list[Recommendation]:
        """The most important first. Nothing without evidence."""
        for rule in (self.evictions, self.reuse, self.lifetime, self.unannounced, self.needless_drops, self.unstored):
            rule()
        is_seen = self.compared >= _LEAST_COMPARED or self.hit_rate >= 1 / 2
        if not self.found and self.calls >= _LEAST_CALLS and self.watched and is_seen:
            reason = f"{self.hit_rate:.0%} of {self.calls:,} calls were hits; {self.counted}"
            self.add("keep", reason, self.calls, self.ttl)
        return self.found

    def add(
        self, action: _Action, reason: str, evidence: float, current: float | None = None, new: float | None = None
    ) -> None:
        changed = round(self.seen.changed)
        between = 1 / self.rate.likely if self.rate is not None and changed else None
        name, compared = self.tool.name, round(self.compared)
        made = Recommendation(name, action, reason, round(evidence), current, new, changed, compared, between)
        self.found.append(made)

    def share(self, cause: str) -> float:
        """The share of all calls that were loads of this cause."""
        return (1 - self.hit_rate) * self.seen.causes[cause] / self.watched if self.watched else 0.0

    def evictions(self) -> None:
        evicted, share, maxsize = self.seen.causes["evicted"], self.share("evicted"), self.tool.policy.maxsize
        if evicted < _LEAST_COMPARED or share <= _MANY:
            return
        reason = f"{share:.0%} of {self.calls:,} calls asked for what was evicted"
        if maxsize is None or 2 * self.seen.by_size > evicted:
            self.add("raise_max_bytes", f"{reason}: raise configure(max_bytes=...)", evicted)
            return
        different = self.seen.different_calls
        wanted = 1 << max(different, maxsize + 1).bit_length()
        reason = f"{reason}; there are about {different:,} different calls"
        self.add("raise_maxsize", reason, evicted, maxsize, min(wanted, int(_STEP) * maxsize))

    def reuse(self) -> None:
        cold = self.seen.causes["cold"]
        if self.calls < _LEAST_CALLS or self.watched < _LEAST_CALLS:
            return
        # Of the calls that were looked at, and of all: an upper bound of the share that were made before, at 95 %.
        for repeated, calls in ((self.watched - cold, self.watched), (self.hits, self.calls)):
            if repeated + 2 * math.sqrt(repeated) + 3 > _FEW * calls:
                return
        counted = f"{cold:,} of {self.watched:,} loads were the first of their call"
        hint = "caching saves nothing here, unless an argument differs each time that does not matter (ignore=)"
        self.add("no_reuse", f"{counted}, and {self.hits:,} of {self.calls:,} calls were hits: {hint}", self.watched)

    def lifetime(self) -> None:
        rate, ttl, max_stale, changed, compared = self.rate, self.ttl, self.max_stale, self.seen.changed, self.compared
        if rate is None or ttl is None or compared < _LEAST_COMPARED:
            return
        best = 2 * max_stale / rate.likely
        about = "at least" if rate.most == math.inf else "about"
        every = f", {about} every {_duration(1 / rate.likely)}" if changed else ""
        if best < ttl / _NOTABLE and 2 * max_stale <= ttl * rate.least:
            stale = 1 + math.expm1(-rate.likely * ttl) / (rate.likely * ttl)
            reason = (
                f"{self.counted}{every}: {about} {stale:.0%} of the hits may be stale; shorten it, or name the writes"
            )
            if changed > 0.99 * compared:
                reason += "; if they differ by a time or a random id, leave it out by LoopHints(outcome_key=...)"
            self.add("shorten_ttl", reason, compared, ttl, _rounded(max(best, ttl / _STEP)))
            return
        share = self.share("expired")
        is_short = best > ttl * _NOTABLE and 2 * max_stale >= ttl * rate.most
        if is_short and share > _SOME and not callable(self.tool.policy.ttl):
            reason = f"{self.counted}{every}, and {share:.0%} of {self.calls:,} calls came too late by the ttl alone"
            self.add("raise_ttl", reason, compared, ttl, _rounded(min(best, ttl * _STEP)))

    def unannounced(self) -> None:
        if self.seen.changed < _LEAST_CHANGED or self.compared < _LEAST_COMPARED or self.rate is None:
            return
        expires = self.ttl is not None or callable(self.tool.policy.ttl)
        if expires and not any(use.is_written or use.writers for use in self.tool.root_uses):
            return  # nobody says that writes announce the changes: the ttl is there for them
        reason = f"{self.counted}, and no write was seen: a tag is missing, or somebody writes around the cache"
        new = None if expires else _rounded(2 * self.max_stale / self.rate.likely)
        self.add("name_writes", reason, self.compared, self.ttl, new)

    def needless_drops(self) -> None:
        share, dropped, unchanged = self.share("invalidated"), self.seen.dropped, self.seen.dropped_unchanged
        if dropped >= _LEAST_COMPARED and share > _MANY and unchanged >= 0.9 * dropped:
            reason = (
                f"{share:.0%} of {self.calls:,} calls asked for what a write had dropped, and {unchanged:,.0f} of "
                f"{dropped:,.0f} of these results had not changed: the tags name more than the writes change"
            )
            self.add("narrow_tags", reason, dropped)

    def unstored(self) -> None:
        number, share = self.seen.causes["unstored"], self.share("unstored")
        if number >= _LEAST_COMPARED and share > _MANY:
            why = "cache_if= or ttl= refuses it, it cannot be copied, or writes overlap its loads"
            reason = f"{share:.0%} of {self.calls:,} calls asked again for what had not been stored: {why}"
            self.add("store_results", reason, number)


def _rounded(duration: float) -> float:
    """A duration to two digits."""
    return float(f"{duration:.2g}")


def _duration(duration: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if duration >= 2 * size:
            return f"{duration / size:.2g} {unit}" if duration < 10 * size else f"{duration / size:.0f} {unit}"
    return f"{duration:.2g} s"
