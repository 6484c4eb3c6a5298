"""Plays a log under a set of tags: how many reads the cache would have answered, and how many of them wrongly.

Tags are made and matched by the library's own functions (`agent_cache.core.tags`), from the rules of a `Toolbox` or the
operations of decorated tools, in the order of its engine: a write drops what its arguments name before it runs, and
what its result names when it has ended; if it fails, the whole roots of what only its result would have named. A read
that a write overlaps is not stored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, takewhile
from typing import Any, Final, Literal, cast

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.paths import answer_digest, is_failure, is_transient
from agent_cache.advise.tag_rules import Advice, rules_of
from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.options import ReadPolicy
from agent_cache.core.parameters import Named
from agent_cache.core.tags import Tag, TagSet
from agent_cache.core.versions import paths_read, paths_written
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.write import WriteOperation
from agent_cache.toolbox.box import Toolbox
from agent_cache.toolbox.rules import Read, Rule, Write, compiled_tags

__all__ = ["Outcome", "Policy", "StaleAnswer", "ToolOutcome", "replay", "replay_all", "tags_of"]

Policy = Literal["none", "roots", "advised", "oracle"] | Toolbox | Mapping[str, Rule | ReadOperation | WriteOperation]
"""What is replayed: ``"none"`` drops nothing; ``"roots"`` has the advised tags without ids; ``"oracle"`` knows which
answers are still true. A mapping has the names of the log; a tool that is not in it is neither cached nor a write."""

_MOST_STALE: Final = 1_000
_MOST_WRITES: Final = 100


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """An answer that the cache would have given although it was not true any more.

    Attributes:
        served: the call that got it, with what the log really answered.
        loaded: the call whose answer the cache had stored.
        writes: the writes between the last call that showed that the answer was true and the first that showed that it
            was not: the oldest first, at most a hundred. One of them, or something that is not in the log, changed it.
        tags: the tags that it was stored under.
    """

    served: LoggedCall
    loaded: LoggedCall
    writes: tuple[LoggedCall, ...]
    tags: tuple[Tag, ...] = ()


@dataclass(slots=True)
class ToolOutcome:
    """The figures of one tool that reads.

    Attributes:
        reads: its calls.
        hits: those that the cache would have answered.
        stale: those that it would have answered wrongly.
        seconds: what the hits would have saved; None if the log has no times.
        dollars: the same in money; None if the log has none.
    """

    reads: int = 0
    hits: int = 0
    stale: int = 0
    seconds: float | None = None
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a log under one policy.

    Attributes:
        reads: calls of tools that the policy caches.
        hits: those that the cache would have answered, stale ones included.
        stale: those that it would have answered wrongly.
        tools: the same for each of them.
        stale_answers: the first thousand.
        from_cache: those of `reads` that a cache has answered in the log: whether they would be stale is not known.
    """

    reads: int
    hits: int
    stale: int
    tools: Mapping[str, ToolOutcome]
    stale_answers: tuple[StaleAnswer, ...] = ()
    from_cache: int = 0

    @property
    def proves_little(self) -> bool:
        """Whether a cache has answered most of the reads, so that few stale answers can show."""
        return 2 * self.from_cache > self.reads


@dataclass(frozen=True, slots=True)
class _Tool:
    """A tool, compiled for the replay."""

    kind: Literal["read", "write"]
    tags: TagSet
    is_named: bool = True
    is_per_session: bool = False
    ttl: float | None = None

    def arguments(self, call: LoggedCall) -> Mapping[str, Any]:
        if self.is_named:
            return Named(call.arguments, None, is_read=self.kind == "read")
        return _Bound(call.arguments)


class _Bound(dict[str, Any]):
    """The arguments of a decorated tool, whose defaults a log does not show."""

    def __missing__(self, name: str) -> None:
        return None


@dataclass(slots=True, eq=False)
class _Entry:
    key: tuple[str, Any, Any]
    answer: bytes
    call: LoggedCall
    tags: tuple[Tag, ...]
    true_at: int
    """The position of the last call that showed that the answer was still true."""
    writes: tuple[LoggedCall, ...] | None = None
    """The writes that may have changed it, once a call has shown that it is true no more."""


@dataclass(slots=True)
class _Store:
    """Entries, and an index of the paths that concern them: see `agent_cache.core.versions`."""

    entries: dict[tuple[str, Any, Any], _Entry] = field(default_factory=dict)
    concerned: dict[Hashable, set[tuple[str, Any, Any]]] = field(default_factory=lambda: defaultdict(set))

    def put(self, entry: _Entry) -> None:
        self.drop(entry.key)
        self.entries[entry.key] = entry
        for path in _read(entry.tags):
            self.concerned[path].add(entry.key)

    def drop(self, key: tuple[str, Any, Any]) -> None:
        entry = self.entries.pop(key, None)
        if entry is None:
            return
        for path in _read(entry.tags):
            keys = self.concerned[path]
            keys.discard(key)
            if not keys:
                del self.concerned[path]

    def invalidate(self, written: _Written, run: str | None) -> None:
        """Drop what a write touches.

        Args:
            written: what it has written.
            run: the only run whose entries are dropped, None for every.
        """
        touched = [key for path in written.paths for key in self.concerned.get(path, ())]
        for key in touched:
            if run is None or key[1] == run:
                self.drop(key)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a write has written: tags, and roots without an id: only what depends on all of such a root changes."""

    tags: tuple[Tag, ...]
    bare: tuple[str, ...]

    @property
    def paths(self) -> set[Hashable]:
        """The paths that it concerns."""
        return {path for tag in self.tags for path in paths_written(tag)}.union([root + ":*" for root in self.bare])


def _read(tags: Iterable[Tag]) -> set[Hashable]:
    return {path for tag in tags for path in paths_read(tag)}


Failures = Literal["drop", "ignore"]


def replay(
    calls: Iterable[LoggedCall],
    policy: Policy,
    *,
    advice: Advice | None = None,
    failures: Failures = "drop",
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Play a log under a policy.

    Args:
        calls: the log, in the order of one time line.
        policy: see `Policy`.
        advice: what each tool is, for the policies that are words. Writes that it knows and the policy does not are
            among `StaleAnswer.writes`.
        failures: what a write that failed does. ``"drop"``: what the library does, which drops what it names, since it
            may have taken effect. ``"ignore"``: nothing, as if it were known beforehand that it has no effect.
        progress: called with the number of calls done, now and then.

    Raises:
        ValueError: if a policy that is a word comes without advice.
        ConfigurationError: if a template of a rule cannot be compiled.
    """
    return replay_all(calls, {"": policy}, advice=advice, failures=failures, progress=progress)[""]


def replay_all(
    calls: Iterable[LoggedCall],
    policies: Mapping[str, Policy],
    *,
    advice: Advice | None = None,
    failures: Failures = "drop",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Outcome]:
    """Play a log under several policies, in one pass over it. See `replay`."""
    players = {name: _Player(_tools_of(policy, advice), policy, advice, failures) for name, policy in policies.items()}
    number = 0
    for number, call in enumerate(calls, 1):
        for player in players.values():
            player.play(call)
        if progress is not None and number % 1_000 == 0:
            progress(number)
    if progress is not None:
        progress(number)
    return {name: player.outcome() for name, player in players.items()}


def tags_of(rule: Rule | ReadOperation | WriteOperation, call: LoggedCall) -> tuple[Tag, ...]:
    """The tags that a rule gives a call: what the entry of a read depends on, or what a write drops.

    Empty for a rule without tags, and for an answer that is not stored because a template does not fit it.

    Raises:
        ConfigurationError: if a template of the rule cannot be compiled.
    """
    tool = _compiled(call.tool, rule)
    if tool is None:
        return ()
    if tool.kind == "read":
        return _tags_of_read(call, tool) or ()
    written = _written_by(call, tool)
    return tuple(dict.fromkeys(written.tags + written.bare))


def _tools_of(policy: Policy, advice: Advice | None) -> Callable[[str], _Tool | None]:
    rules: Mapping[str, Any]
    if isinstance(policy, str):
        if advice is None:
            raise ValueError(f"replay under {policy!r} needs advice=, which says what each tool is")
        rules = rules_of(advice)
        if policy == "roots":
            rules = {name: _without_ids(rule) for name, rule in rules.items()}
    elif isinstance(policy, Toolbox):
        return cache(lambda name: _compiled(name, policy.rule(name)))
    else:
        rules = policy
    compiled = {name: _compiled(name, rule) for name, rule in rules.items()}
    return compiled.get


def _without_ids(rule: Rule) -> Rule:
    if not isinstance(rule, Read | Write):
        return rule
    resource = cast("list[str]", rule.resource)
    roots = list(dict.fromkeys(tag.partition(":")[0] for tag in resource))
    return Read(roots) if isinstance(rule, Read) else Write(roots)


def _compiled(name: str, rule: Rule | ReadOperation | WriteOperation) -> _Tool | None:
    is_named = isinstance(rule, Read | Write)
    if isinstance(rule, Read | Write):
        policy, tags = rule.decorator.policy, compiled_tags(rule, None, name)
    elif isinstance(rule, ReadOperation | WriteOperation):
        policy, tags = rule.policy, rule.tags
    else:
        return None
    kind: Literal["read", "write"] = "read" if isinstance(rule, Read | ReadOperation) else "write"
    ttl = policy.ttl if isinstance(policy, ReadPolicy) and not callable(policy.ttl) else None
    return _Tool(kind, tags, is_named, policy.scope == "session", ttl)


@dataclass(frozen=True, slots=True)
class _Ran:
    position: int
    call: LoggedCall
    written: _Written | None


class _Player:
    """Plays calls, one after the other."""

    def __init__(
        self, find: Callable[[str], _Tool | None], policy: Policy, advice: Advice | None, failures: Failures
    ) -> None:
        self.find = find
        self.is_oracle = policy == "oracle"
        self.drops = policy not in ("none", "oracle")
        self.drops_failed = failures == "drop"
        self.writes = frozenset(
            name for name, one in (advice.tools if advice else {}).items() if one.kind in ("write", "unknown")
        )
        self.is_shared = advice is None or advice.is_shared
        self.store = _Store()
        self.tools: dict[str, ToolOutcome] = {}
        self.stale: list[StaleAnswer] = []
        self.from_cache = 0
        self.recent: deque[_Ran] = deque(maxlen=10_000)
        self.at = 0

    def play(self, call: LoggedCall) -> None:
        self.at += 1
        tool = self.find(call.tool)
        if tool is None:
            if call.tool in self.writes:
                self.recent.append(_Ran(self.at, call, None))
            return
        if tool.kind == "write":
            self._write(call, tool)
        else:
            self._read(call, tool)

    def outcome(self) -> Outcome:
        tools = self.tools
        return Outcome(
            reads=sum(one.reads for one in tools.values()),
            hits=sum(one.hits for one in tools.values()),
            stale=sum(one.stale for one in tools.values()),
            tools=tools,
            stale_answers=tuple(self.stale),
            from_cache=self.from_cache,
        )

    def _write(self, call: LoggedCall, tool: _Tool) -> None:
        written = None
        if self.drops and (self.drops_failed or not is_failure(call)):
            written = _written_by(call, tool)
            self.store.invalidate(written, call.run if tool.is_per_session else None)
        self.recent.append(_Ran(self.at, call, written))

    def _read(self, call: LoggedCall, tool: _Tool) -> None:
        figures = self.tools.setdefault(call.tool, ToolOutcome())
        figures.reads += 1
        self.from_cache += call.is_from_cache
        owner = call.run if tool.is_per_session or not self.is_shared else None
        if not call.is_keyed:
            return
        try:
            key = (call.tool, owner, key_part(call.arguments))
        except (Uncacheable, TypeError, ValueError):
            return
        entry = self.store.entries.get(key)
        if entry is not None and _has_expired(entry.call, call, tool.ttl):
            self.store.drop(key)
            entry = None
        is_known = call.error is None and call.result is not UNKNOWN
        answer = answer_digest(call.result) if is_known else b""
        if entry is not None and self.is_oracle and (call.error is not None or (is_known and entry.answer != answer)):
            self.store.drop(key)
            entry = None
        if entry is not None:
            self._hit(figures, entry, call, answer if is_known else None)
        elif is_known:
            self._miss(key, call, tool, answer)

    def _hit(self, figures: ToolOutcome, entry: _Entry, call: LoggedCall, answer: bytes | None) -> None:
        figures.hits += 1
        if call.duration is not None:
            figures.seconds = (figures.seconds or 0.0) + call.duration
        if call.cost is not None:
            figures.dollars = (figures.dollars or 0.0) + call.cost
        if answer == entry.answer:
            entry.true_at, entry.writes = self.at, None
            return
        if answer is None and (call.error is None or is_transient(call)):
            return  # the log does not say what was true
        if next(self._overlapping(call), None) is not None:
            return  # both answers were true while the read was running
        figures.stale += 1
        if entry.writes is None:
            since = list(takewhile(lambda ran: ran.position > entry.true_at, reversed(self.recent)))
            between = (ran.call for ran in reversed(since) if not is_failure(ran.call))
            entry.writes = tuple(islice(between, _MOST_WRITES))
        if len(self.stale) < _MOST_STALE:
            self.stale.append(StaleAnswer(call, entry.call, entry.writes, entry.tags))

    def _overlapping(self, read: LoggedCall) -> Iterator[_Ran]:
        """The writes that ended after a read had begun. Calls come in the order of their ends, so few are looked at."""
        if read.started is None:
            return
        for ran in reversed(self.recent):
            ended = ran.call.ended
            if ended is None:
                continue
            if ended <= read.started:
                return
            yield ran

    def _miss(self, key: tuple[str, Any, Any], call: LoggedCall, tool: _Tool, answer: bytes) -> None:
        tags = _tags_of_read(call, tool)
        if tags is None:
            return
        if self.drops:
            for ran in self._overlapping(call):
                if ran.written is not None and not ran.written.paths.isdisjoint(_read(tags)):
                    return
        self.store.put(_Entry(key, answer, call, tags, self.at))


def _tags_of_read(call: LoggedCall, tool: _Tool) -> tuple[Tag, ...] | None:
    """The tags of an entry; None if they cannot be made, so that the answer is not stored."""
    arguments = tool.arguments(call)
    tags = tool.tags.static
    for rule in (*tool.tags.early, *tool.tags.late):
        try:
            tags += rule.make(arguments, call.result)
        except Exception:  # noqa: BLE001 - as the engine: what has no tags is not stored
            return None
    return tuple(dict.fromkeys(tags))


def _has_expired(loaded: LoggedCall, call: LoggedCall, ttl: float | None) -> bool:
    if ttl is None:
        return False
    began = loaded.started if loaded.started is not None else loaded.ended
    now = call.started if call.started is not None else call.ended
    return began is not None and now is not None and now - began >= ttl


def _written_by(call: LoggedCall, tool: _Tool) -> _Written:
    """What a write drops, before it runs and when it has ended."""
    arguments = tool.arguments(call)
    paths, bare = tool.tags.static, tuple[Tag, ...]()
    has_result = call.error is None and call.result is not UNKNOWN
    for rule in (*tool.tags.early, *tool.tags.late):
        if rule.when == "late" and not has_result:
            paths += (rule.root,)
            continue
        try:
            made = rule.make(arguments, call.result)
        except Exception:  # noqa: BLE001 - as the engine: the whole root
            paths += (rule.root,)
            continue
        if made == (rule.root,) and not (rule.null_is_all and rule.names_null(arguments)):
            bare += made
        else:
            paths += made
    return _Written(paths, bare)
