"""Ttls at run time, and what to change about the options of tools.

`recommendations` reads what the loads of each tool have shown (`core.evidence`): why they were needed, and whether the
results had changed. Each rule is a function of these sums.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from agent_cache.config import CURRENT
from agent_cache.core.evidence import Evidence
from agent_cache.core.options import no_life, seconds
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import READERS, is_writer, warn_once
from agent_cache.engine.ttls import TTLS
from agent_cache.engine.write import WriteOperation
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Tier

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
    life = None if ttl is None else _checked_ttl(ttl, found.name)
    TTLS.set(found.name, life)
    sharing: list[Any] = [tier for tier in found.tiers if hasattr(tier, "publish_ttl")]
    for tier in sharing:
        TTLS.note_published(tier, found.name, life)
    for tier in sharing:
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
    operations = found.operations if isinstance(tool, str) else [_operation_of(tool, "get_ttl")]
    if not operations:
        return TTLS.get(found.name) if TTLS.get(found.name) is not None else found.declared
    ttls = [_in_force(operation) for operation in operations]
    if any(each != ttls[0] for each in ttls):
        raise ConfigurationError(
            f"get_ttl: several tools are called {found.name!r}, with different ttls: give the tool itself"
        )
    return ttls[0]


def _in_force(operation: ReadOperation) -> float | Callable[[Any], Any] | None:
    policy = operation.policy
    return policy.ttl if policy.longest_ttl is None else policy.longest_ttl


class _Found(NamedTuple):
    """The tools of a name.

    Attributes:
        tiers: where a ttl is to be published.
        declared: the ttl of a rule whose tool has not been called yet.
    """

    name: str
    operations: list[ReadOperation]
    tiers: list[Tier]
    declared: Any = None


def _find(tool: Any, function: str) -> _Found:
    name = tool if isinstance(tool, str) else _operation_of(tool, function).name
    tools = READERS.all()
    operations = [one for one in tools if isinstance(one, ReadOperation) and one.name == name]
    if operations:
        if all(operation.declared.ttl is no_life for operation in operations):
            raise ConfigurationError(f"{function}: {name!r} is a watch, of which nothing is stored, so it has no ttl")
        return _Found(name, operations, _tiers_of([operation.own_tiers for operation in operations]))
    if is_writer(name):
        raise ConfigurationError(f"{function}: {name!r} is a write tool, which has no ttl; name one that reads")
    from agent_cache.toolbox.box import rule_named
    from agent_cache.toolbox.rules import Read

    rule = rule_named(name)
    if isinstance(rule, Read):
        own = tuple(tier for tier in rule.decorator.tiers if tier is not None)
        return _Found(name, [], _tiers_of([own]), rule.decorator.policy.ttl)
    if rule is not None:
        raise ConfigurationError(f"{function}: the rule of {name!r} is {rule!r}, which has no ttl; name a Read(...)")
    known = sorted({one.name for one in tools if isinstance(one, ReadOperation)})
    from difflib import get_close_matches  # for an error alone

    near = get_close_matches(name, known, 1, cutoff=0.4)
    hint = f"; is {near[0]!r} meant?" if near else ""
    raise ConfigurationError(
        f"{function}: no read tool called {name!r} is known in this process; the name is 'module:qualname', the name= "
        f"of its decorator, or 'namespace:name' of a toolbox{hint}"
    )


def _operation_of(tool: Any, function: str) -> ReadOperation:
    operation = getattr(tool, "__agent_cache__", None)
    if isinstance(operation, ReadOperation):
        return operation
    if isinstance(operation, WriteOperation):
        raise ConfigurationError(
            f"{function}: {operation.name!r} is a write tool, which has no ttl; name one that reads"
        )
    raise ConfigurationError(f"{function}: {tool!r} is neither a tool that AgentCache decorates nor the name of one")


def _tiers_of(named: Iterable[tuple[Tier, ...]]) -> list[Tier]:
    """The tiers behind tools that name these themselves, each once."""
    configured = CURRENT.value
    found: dict[int, Tier] = {}
    for own in named:
        for tier in own or (configured.backup, configured.remote):
            if tier is not None:
                found[id(tier)] = tier
    return list(found.values())


def _checked_ttl(ttl: Any, name: str) -> float:
    if callable(ttl):
        raise ConfigurationError(
            f"set_ttl: the ttl of {name!r} must be seconds, which a fleet can be told; a function of the result can "
            "only be declared in code"
        )
    try:
        return seconds(ttl, "ttl")
    except ConfigurationError:
        raise ConfigurationError(
            f"set_ttl: the ttl of {name!r} must be seconds or a timedelta, more than 0 and finite, or None for what "
            f"its code declares, got {ttl!r}"
        ) from None


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


_LEAST_COMPARED: Final = 20
"""Reloads, or loads of one cause. With fewer, a share is known no better than by 22 points to either side."""

_LEAST_CHANGED: Final = 5
"""Reloads that have changed and that no write explains: a few may be races outside of this program."""

_LEAST_CALLS: Final = 200
"""Calls without a hit after which less than 2 % of the calls are repeats: ``0.98 ** 150 < 0.05``, and some to spare."""

_STEP: Final = 4.0
_NOTABLE: Final = 1.5
"""A ttl is changed by at most the first factor at a time, and not for less than the second one."""

_MANY: Final = 0.1
_SOME: Final = 0.05
_FEW: Final = 0.02
"""Shares of the calls: from which evictions, and results that are not stored, matter; from which expiries do; and up to
which calls are said not to be repeated."""


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
    return [each for tool in sorted(tools, key=attrgetter("name")) for each in _recommend(tool, max_stale)]


def _recommend(tool: ReadOperation, max_stale: float) -> list[Recommendation]:
    """What follows from what was seen of one tool. Nothing without evidence."""
    facts = _Facts.of(tool, max_stale)
    rules = (_evictions, _reuse, _ttl, _unannounced, _needless_drops, _unstored)
    found = [each for rule in rules if (each := rule(facts)) is not None]
    is_seen = facts.compared >= _LEAST_COMPARED or facts.hit_rate >= 1 / 2
    if not found and facts.calls >= _LEAST_CALLS and facts.watched and is_seen:
        reloads = f"{_number(facts.compared)} reloads compared, {_number(facts.seen.changed)} changed"
        reason = f"{facts.hit_rate:.0%} of {facts.calls:,} calls were hits; {reloads}"
        found = [facts.made("keep", reason, facts.calls, facts.ttl)]
    return found


class _Facts(NamedTuple):
    """Figures that several rules need.

    Attributes:
        tool: the tool.
        seen: what its loads have shown.
        ttl: the longest life of a result in seconds, None without a bound.
        max_stale: which share of the answers may be stale.
        calls: hits and loads.
        watched: loads whose cause is known.
        compared: reloads of results that no write is known to have touched.
        rate: how often results change that no write announces.
    """

    tool: ReadOperation
    seen: Evidence
    ttl: float | None
    max_stale: float
    hits: int
    calls: int
    hit_rate: float
    watched: int
    compared: float
    rate: _Rate | None

    @classmethod
    def of(cls, tool: ReadOperation, max_stale: float) -> _Facts:
        seen = tool.evidence
        hits, loads = seen.calls
        calls, compared = hits + loads, seen.changed + seen.unchanged
        rate = _rate(seen.changed, seen.unchanged, seen.seconds)
        hit_rate, watched = hits / calls if calls else 0.0, sum(seen.causes.values())
        return cls(tool, seen, tool.policy.longest_ttl, max_stale, hits, calls, hit_rate, watched, compared, rate)

    def share(self, cause: str) -> float:
        """The share of all calls that were loads of this cause."""
        return (1 - self.hit_rate) * self.seen.causes[cause] / self.watched if self.watched else 0.0

    def made(
        self,
        action: _Action,
        reason: str,
        evidence: float,
        current: float | None = None,
        suggested: float | None = None,
    ) -> Recommendation:
        changed, compared = round(self.seen.changed), round(self.compared)
        between = 1 / self.rate.likely if self.rate is not None and changed else None
        return Recommendation(
            self.tool.name, action, reason, round(evidence), current, suggested, changed, compared, between
        )


def _evictions(facts: _Facts) -> Recommendation | None:
    seen, evicted, share = facts.seen, facts.seen.causes["evicted"], facts.share("evicted")
    maxsize, different = facts.tool.policy.maxsize, facts.seen.different_calls
    if evicted < _LEAST_COMPARED or share <= _MANY:
        return None
    reason = f"{share:.0%} of {facts.calls:,} calls asked for what was evicted ({evicted:,} of {facts.watched:,} loads)"
    if maxsize is None or 2 * seen.by_size > evicted:
        return facts.made("raise_max_bytes", f"{reason}: raise configure(max_bytes=...)", evicted)
    wanted = 1 << max(different, maxsize + 1).bit_length()
    reason = f"{reason}; there are about {different:,} different calls"
    return facts.made("raise_maxsize", reason, evicted, maxsize, min(wanted, int(_STEP) * maxsize))


def _reuse(facts: _Facts) -> Recommendation | None:
    cold = facts.seen.causes["cold"]
    if facts.calls < _LEAST_CALLS or facts.watched < _LEAST_CALLS:
        return None
    # Of the calls that were looked at, and of all: an upper bound of the share that were made before, at 95 %.
    for repeated, calls in ((facts.watched - cold, facts.watched), (facts.hits, facts.calls)):
        if repeated + 2 * math.sqrt(repeated) + 3 > _FEW * calls:
            return None
    reason = (
        f"{cold:,} of {facts.watched:,} loads were the first of their call, and {facts.hits:,} of {facts.calls:,} "
        "calls were hits: caching saves nothing here, unless an argument differs each time that does not matter "
        "(ignore=)"
    )
    return facts.made("no_reuse", reason, facts.watched)


def _ttl(facts: _Facts) -> Recommendation | None:
    rate, ttl, max_stale, changed, compared = facts.rate, facts.ttl, facts.max_stale, facts.seen.changed, facts.compared
    if rate is None or ttl is None or compared < _LEAST_COMPARED:
        return None
    best = 2 * max_stale / rate.likely
    counted = f"{_number(changed)} of {_number(compared)} reloads had changed"
    about = "at least" if rate.most == math.inf else "about"
    every = f", {about} every {_duration(1 / rate.likely)}" if changed else ""
    if best < ttl / _NOTABLE and 2 * max_stale <= ttl * rate.least:
        stale = 1 + math.expm1(-rate.likely * ttl) / (rate.likely * ttl)
        hint = ""
        if changed > 0.99 * compared:
            hint = "; if they differ by a time or a random id, leave it out by LoopHints(outcome_key=...)"
        reason = f"{counted}{every}: {about} {stale:.0%} of the hits may be stale; shorten it, or name the writes{hint}"
        return facts.made("shorten_ttl", reason, compared, ttl, _rounded(max(best, ttl / _STEP)))
    share = facts.share("expired")
    is_short = best > ttl * _NOTABLE and 2 * max_stale >= ttl * rate.most
    if is_short and share > _SOME and not callable(facts.tool.policy.ttl):
        reason = f"{counted}{every}, and {share:.0%} of {facts.calls:,} calls came too late by the ttl alone"
        return facts.made("raise_ttl", reason, compared, ttl, _rounded(min(best, ttl * _STEP)))
    return None


def _unannounced(facts: _Facts) -> Recommendation | None:
    changed, compared = facts.seen.changed, facts.compared
    if changed < _LEAST_CHANGED or compared < _LEAST_COMPARED or facts.rate is None:
        return None
    expires = facts.ttl is not None or callable(facts.tool.policy.ttl)
    if expires and not any(use.is_written or use.writers for use in facts.tool.root_uses):
        return None  # nobody says that writes announce the changes: the ttl is there for them
    reason = (
        f"{_number(changed)} of {_number(compared)} reloads had changed, and no write was seen: a tag is missing, or "
        "somebody writes around the cache"
    )
    suggested = None if expires else _rounded(2 * facts.max_stale / facts.rate.likely)
    return facts.made("name_writes", reason, compared, facts.ttl, suggested)


def _needless_drops(facts: _Facts) -> Recommendation | None:
    share, dropped, unchanged = facts.share("invalidated"), facts.seen.dropped, facts.seen.dropped_unchanged
    if dropped < _LEAST_COMPARED or share <= _MANY or unchanged < 0.9 * dropped:
        return None
    reason = (
        f"{share:.0%} of {facts.calls:,} calls asked for what a write had dropped, and {_number(unchanged)} of "
        f"{_number(dropped)} of these results had not changed: the tags name more than the writes change"
    )
    return facts.made("narrow_tags", reason, dropped)


def _unstored(facts: _Facts) -> Recommendation | None:
    count, share = facts.seen.causes["unstored"], facts.share("unstored")
    if count < _LEAST_COMPARED or share <= _MANY:
        return None
    reason = (
        f"{share:.0%} of {facts.calls:,} calls asked again for what had not been stored: cache_if= or ttl= refuses it, "
        "it cannot be copied, or writes overlap its loads"
    )
    return facts.made("store_results", reason, count)


def _number(count: float) -> str:
    return f"{round(count):,}"


def _rounded(duration: float) -> float:
    """A duration to two digits."""
    return float(f"{duration:.2g}")


def _duration(duration: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if duration >= 2 * size:
            return f"{duration / size:.2g} {unit}" if duration < 10 * size else f"{duration / size:.0f} {unit}"
    return f"{duration:.2g} s"
