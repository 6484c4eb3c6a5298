"""Plays a log under a set of tags, and compares the tags in use with a log.

How many reads the cache would have answered, and how many of them wrongly: tags are made and matched by the library's
own functions (`agent_cache.core.tags`, `core.versions`), from the rules of a `Toolbox` or the operations of decorated
tools, in the order of its engine: a write drops what its arguments name before it runs, and what its result names when
it has ended; if it fails, the whole roots of what only its result would have named. A read that a write overlaps is not
stored. Repeated reads whose answer the log lacks or has from a cache, and those without arguments, count as unjudged.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from agent_cache.advise.calls import UNKNOWN, LoggedCall, answer_digest, is_failure, is_transient, key_of
from agent_cache.advise.tag_rules import Advice, needs_parsing, rules_of
from agent_cache.core.keys import key_part
from agent_cache.core.options import ReadPolicy
from agent_cache.core.parameters import Named
from agent_cache.core.tags import Tag, TagSet, meet
from agent_cache.core.versions import paths_read, paths_written
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import TOOLS
from agent_cache.engine.write import WriteOperation
from agent_cache.errors import ConfigurationError
from agent_cache.toolbox.box import Toolbox
from agent_cache.toolbox.rules import Read, Rule, Write, compiled_tags, find_rule

__all__ = ["Match", "Outcome", "Policy", "StaleAnswer", "cause_of", "replay_all", "tags_in_use", "tags_of"]

Tags = Rule | ReadOperation | WriteOperation
"""What decides on the tags of a tool: the rule of a toolbox, or the operation of a decorated function."""
Policy = Literal["none", "roots", "advised", "oracle"] | Mapping[str, Tags]
"""What is replayed: ``"none"`` drops nothing; ``"roots"`` has the advised tags without ids; ``"oracle"`` knows which
answers are still true. A mapping has the names of the log; a tool that is not in it is neither cached nor a write."""

_MOST_STALE: Final = 1_000
_MOST_WRITES: Final = 100
_UNJUDGED: Final = 0.05
"""How many reads may be unjudged for each hit, before the replay proves too little."""


class StaleAnswer(NamedTuple):
    """An answer that the cache would have given although it was not true any more."""

    served: LoggedCall
    loaded: LoggedCall
    writes: tuple[LoggedCall, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a log under one policy: calls that read, those that the cache would have answered, also by tool,
    those that it would have answered wrongly, and those that it may have answered and that are unjudged.
    """

    reads: int
    hits: int
    stale: int
    unjudged: int
    hits_of: Mapping[str, int]
    stale_answers: tuple[StaleAnswer, ...]

    @property
    def proves_little(self) -> bool:
        """Whether so many reads are unjudged that stale answers may be among them."""
        return self.unjudged > _UNJUDGED * self.hits


def replay_all(
    calls: Iterable[LoggedCall], policies: Mapping[str, Policy], *, advice: Advice | None = None
) -> dict[str, Outcome]:
    """Play a log under several policies, in one pass over it."""
    players = {name: _Player(policy, advice) for name, policy in policies.items()}
    for call in calls:
        answer = answer_digest(call.result) if call.error is None and call.result is not UNKNOWN else None
        for player in players.values():
            player.play(call, answer)
    return {name: player.outcome() for name, player in players.items()}


# Tags of calls


class _Tool(NamedTuple):
    """A tool, compiled for the replay."""

    kind: Literal["read", "write"]
    tags: TagSet
    is_named: bool
    is_per_session: bool
    ttl: float | None
    key: Callable[..., Any] | None
    left_out: frozenset[str]

    def key_of(self, call: LoggedCall) -> Any:
        """What tells a read from others, as the cache does; None if nothing does."""
        if self.key is not None and call.is_keyed:
            try:
                return key_part(self.key(**call.arguments))
            except Exception:  # noqa: BLE001 - as the engine: it is not cached
                return None
        if self.left_out.isdisjoint(call.arguments):
            return key_of(call)
        return key_of(replace(call, arguments={n: one for n, one in call.arguments.items() if n not in self.left_out}))

    def arguments(self, call: LoggedCall) -> Mapping[str, Any]:
        if self.is_named:
            return Named(call.arguments, None, is_read=self.kind == "read")
        return defaultdict(lambda: None, call.arguments)  # a log does not show the defaults of a decorated tool


def _compiled(name: str, rule: Tags) -> _Tool | None:
    if isinstance(rule, Read | Write):
        policy, tags = rule.decorator.policy, compiled_tags(rule, None, name)
    elif isinstance(rule, ReadOperation | WriteOperation):
        policy, tags = rule.policy, rule.tags
    else:
        return None
    kind: Literal["read", "write"] = "read" if isinstance(rule, Read | ReadOperation) else "write"
    ttl, key = (policy.ttl, policy.key) if isinstance(policy, ReadPolicy) else (None, None)
    parameters = rule.parameters.all if isinstance(rule, ReadOperation) else ()
    left_out = frozenset(one.name for one in parameters if not one.in_key)
    is_per_session, ttl = policy.scope == "session", None if callable(ttl) else ttl
    return _Tool(kind, tags, isinstance(rule, Read | Write), is_per_session, ttl, key, left_out)


def tags_of(rule: Tags, call: LoggedCall) -> tuple[Tag, ...]:
    """The tags that a rule gives a call: what the entry of a read depends on, or what a write drops.

    Empty for a rule without tags, and for an answer that is not stored because a template does not fit it.
    """
    if (tool := _compiled(call.tool, rule)) is None:
        return ()
    if tool.kind == "read":
        return _tags_of_read(call, tool) or ()
    tags, bare = _tags_of_write(call, tool)
    return tuple(dict.fromkeys(tags + bare))


def _tags_of_read(call: LoggedCall, tool: _Tool) -> tuple[Tag, ...] | None:
    """The tags of an entry; None if they cannot be made, so that the answer is not stored."""
    arguments, tags = tool.arguments(call), tool.tags.static
    for rule in (*tool.tags.early, *tool.tags.late):
        try:
            tags += rule.make(arguments, call.result)
        except Exception:  # noqa: BLE001 - as the engine: what has no tags is not stored
            return None
    return tuple(dict.fromkeys(tags))


def _tags_of_write(call: LoggedCall, tool: _Tool) -> tuple[tuple[Tag, ...], tuple[Tag, ...]]:
    """What a write drops: tags, and roots of which only what depends on the whole root is dropped."""
    arguments, tags, bare = tool.arguments(call), tool.tags.static, tuple[Tag, ...]()
    has_result = call.error is None and call.result is not UNKNOWN
    for rule in (*tool.tags.early, *tool.tags.late):
        try:
            made = (rule.root,) if rule.when == "late" and not has_result else rule.make(arguments, call.result)
        except Exception:  # noqa: BLE001 - as the engine: the whole root
            made = (rule.root,)
        else:
            is_answered = rule.when != "late" or has_result
            if is_answered and made == (rule.root,) and not (rule.null_is_all and rule.names_null(arguments)):
                bare += made
                continue
        tags += made
    return tags, bare


# The replay


@dataclass(slots=True, eq=False)
class _Entry:
    """A stored answer: when it was stored, when a call showed last that it is true, and what may have changed it since
    one showed that it is not.
    """

    answer: bytes
    call: LoggedCall
    paths: frozenset[Hashable]
    at: int
    true_at: int
    writes: tuple[LoggedCall, ...] | None = None


class _Ran(NamedTuple):
    """A write that ran."""

    position: int
    call: LoggedCall
    paths: frozenset[Hashable]


class _Player:
    """Plays calls, one after the other."""

    def __init__(self, policy: Policy, advice: Advice | None) -> None:
        self.is_oracle, self.drops = policy == "oracle", policy not in ("none", "oracle")
        if isinstance(policy, str):
            assert advice is not None, "it says what each tool is"
            policy = rules_of(advice, whole=policy == "roots")
        self.find = {name: _compiled(name, rule) for name, rule in policy.items()}.get
        known = advice.tools if advice else {}
        self.writes = frozenset(name for name, one in known.items() if one.kind in ("write", "unknown"))
        self.is_shared = advice is None or advice.is_shared
        self.entries: dict[tuple[str, str | None, Any], _Entry] = {}
        self.blank = set[tuple[str, str | None, Any]]()  # reads that the log shows no answer of
        self.written: dict[Any, int] = {}
        self.hits_of = Counter[str]()
        self.stale_answers: list[StaleAnswer] = []
        self.reads = self.stale = self.unjudged = self.at = 0
        self.recent: deque[_Ran] = deque(maxlen=10_000)

    def outcome(self) -> Outcome:
        hits = self.hits_of.total()
        return Outcome(self.reads, hits, self.stale, self.unjudged, self.hits_of, tuple(self.stale_answers))

    def play(self, call: LoggedCall, answer: bytes | None) -> None:
        self.at += 1
        tool = self.find(call.tool)
        if tool is not None and tool.kind == "read":
            self._read(call, tool, answer)
        elif tool is not None or call.tool in self.writes:
            paths = frozenset[Hashable]()
            if tool is not None and self.drops:
                tags, bare = _tags_of_write(call, tool)
                paths = frozenset(
                    [*(path for tag in tags for path in paths_written(tag)), *(f"{one}:*" for one in bare)]
                )
                named = [(call.run, one) for one in paths] if tool.is_per_session else paths
                self.written.update(dict.fromkeys(named, self.at))
            self.recent.append(_Ran(self.at, call, paths))

    def _read(self, call: LoggedCall, tool: _Tool, answer: bytes | None) -> None:
        self.reads += 1
        if (own := tool.key_of(call)) is None:
            self.unjudged += not call.arguments  # redacted ones are told apart as little in the next log
            return
        key = (call.tool, call.run if tool.is_per_session or not self.is_shared else None, own)
        entry = self.entries.get(key)
        if entry is not None and not self._has_ended(entry, call, tool, answer):
            self._hit(entry, call, answer)
            return
        self.entries.pop(key, None)
        if answer is None and call.error is None:
            self.unjudged += key in self.blank
            self.blank.add(key)
        if answer is not None and (tags := _tags_of_read(call, tool)) is not None:
            paths = frozenset(path for tag in tags for path in paths_read(tag))
            if not self.drops or all(ran.paths.isdisjoint(paths) for ran in self._overlapping(call)):
                self.entries[key] = _Entry(answer, call, paths, self.at, self.at)

    def _has_ended(self, entry: _Entry, call: LoggedCall, tool: _Tool, answer: bytes | None) -> bool:
        """Whether a write has dropped an entry, or its time is over, or an oracle knows that it is stale."""
        written = self.written
        if any(written.get(path, 0) > entry.at or written.get((call.run, path), 0) > entry.at for path in entry.paths):
            return True
        if self.is_oracle:
            return call.error is not None or (answer is not None and entry.answer != answer)
        began, now = (one.started if one.started is not None else one.ended for one in (entry.call, call))
        return tool.ttl is not None and began is not None and now is not None and now - began >= tool.ttl

    def _hit(self, entry: _Entry, call: LoggedCall, answer: bytes | None) -> None:
        self.hits_of[call.tool] += 1
        if answer == entry.answer:
            entry.true_at, entry.writes = self.at, None
            return
        if answer is None and (call.error is None or is_transient(call)):
            self.unjudged += call.error is None
            return
        if self._overlapping(call):
            return  # both answers were true while the read was running
        self.stale += 1
        if entry.writes is None:
            between = [ran.call for ran in self.recent if ran.position > entry.true_at and not is_failure(ran.call)]
            entry.writes = tuple(between[:_MOST_WRITES])
        if len(self.stale_answers) < _MOST_STALE:
            self.stale_answers.append(StaleAnswer(call, entry.call, entry.writes))

    def _overlapping(self, read: LoggedCall) -> list[_Ran]:
        """The writes that ended after a read had begun. Calls come in the order of their ends, so few are looked at."""
        found: list[_Ran] = []
        for ran in reversed(self.recent) if read.started is not None else ():
            if ran.call.ended is not None:
                if ran.call.ended <= (read.started or 0.0):
                    break
                found.append(ran)
        return found


# The tags in use


@dataclass(frozen=True, slots=True)
class Match:
    """The tools of a log: what is in use for each, why others have nothing; and what is in use and not in the log."""

    policy: dict[str, Tags] = field(default_factory=dict)
    without_rule: dict[str, str] = field(default_factory=dict)
    without_calls: list[str] = field(default_factory=list)


class TagsInUse:
    """What is in use: the operations of decorated tools by name; or the rules of a toolbox."""

    def __init__(self, tools: Mapping[str, ReadOperation | WriteOperation], box: Toolbox | None = None) -> None:
        self._box, self._tools = box, dict(tools)
        self._rules = {row.tool: box.rule(row.tool) for row in box.explain()} if box is not None else {}

    def match(self, tools: Mapping[str, Mapping[str, bool]]) -> Match:
        """Find what is in use for each tool of a log, given the annotations of an MCP server for it."""
        found, used, in_use = Match(), set[str](), {**self._tools, **self._rules}
        for tool, hints in tools.items():
            names = self._names(tool)
            used.update(names)
            if len(names) > 1:
                found.without_rule[tool] = f"it may be {' or '.join(sorted(names))}"
            elif names:
                found.policy[tool] = in_use[names[0]]
            elif self._box is None:
                found.without_rule[tool] = "it is not decorated"
            else:
                rule = found.policy[tool] = self._box.rule(tool, dict(hints) or None)
                if rule is self._box.rule(tool):
                    [row] = self._box.explain([tool])
                    instead = {"write": f"each call drops {row.tags}", "watch": "it is not stored"}
                    found.without_rule[tool] = instead.get(row.kind, "it is left alone")
        found.without_calls.extend(sorted({*in_use} - used - {"*"}))
        return found

    def _names(self, tool: str) -> list[str]:
        """What may be in use for a tool: by its whole name, else by what follows the first colon, else the last dot."""
        short = tool.partition(":")[2] or tool
        if self._box is not None:
            rule = find_rule(self._rules, tool if tool in self._rules else short)
            return [name for name, one in self._rules.items() if rule and one is rule.rule]
        if tool in self._tools:
            return [tool]
        last = short.rpartition(".")[2]
        alike = [name for name in self._tools if name.partition(":")[2] == short]
        return alike or [name for name in self._tools if re.split("[:.]", name)[-1] == last]


def tags_in_use(target: str) -> TagsInUse:
    """Find the tags that a target names."""
    path, colon, attribute = target.rpartition(":")
    if not colon or "/" in attribute or "\\" in attribute:  # the colon of a drive
        path, attribute = target, ""
    if not attribute and path.endswith(".toml"):
        return TagsInUse({}, Toolbox.from_file(path, hints="kind"))
    module = _imported(path)
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, Toolbox):
            raise ConfigurationError(f"{target}: {attribute} is no Toolbox of {module.__name__}")
        return TagsInUse({}, found)
    if tools := {tool.name: tool for tool in TOOLS.all()}:
        return TagsInUse(tools)
    boxes = [value for value in vars(module).values() if isinstance(value, Toolbox)]
    if len(boxes) != 1:
        several = f"{len(boxes)} Toolboxes: name one, as in {target}:toolbox" if boxes else "no Toolbox"
        raise ConfigurationError(f"{target}: it imports no decorated tool, and has {several}")
    return TagsInUse({}, boxes[0])


def _imported(target: str) -> ModuleType:
    """Import a module by its name or its file, as a program in this folder would. What it prints goes to stderr."""
    is_file = target.endswith(".py")
    folders = [str(Path(target).absolute().parent)] if is_file else []
    sys.path[:0] = [folder for folder in [*folders, str(Path.cwd())] if folder not in sys.path]  # later imports, too
    with contextlib.redirect_stdout(sys.stderr):
        try:
            module = importlib.import_module(Path(target).stem if is_file else target)
        except (Exception, SystemExit) as error:  # the user's code, which may raise anything
            text = " ".join(str(error).split())
            raise ConfigurationError(f"{target} cannot be imported: {type(error).__name__}: {text}") from error
    if is_file and Path(str(module.__file__)).resolve() != Path(target).resolve():
        raise ConfigurationError(f"{target}: another module is named {module.__name__}: name it as package.module")
    return module


# Why an answer would have been stale


def cause_of(
    stale: StaleAnswer, in_use: Mapping[str, Tags], advice: Advice
) -> tuple[LoggedCall | None, dict[str, str]]:
    """Find the write that made an answer stale, if one is known, and the tags that are missing, by their tools."""
    needed = _templates(advice, stale.loaded)
    present = tags_of(in_use[stale.loaded.tool], stale.loaded)
    for write in reversed(stale.writes):  # the last one made the answer what it was
        for write_template, write_tags in _templates(advice, write).items():
            for read_template, read_tags in needed.items():
                if any(meet(one, other) for one in read_tags for other in write_tags):
                    of_read = {stale.loaded.tool: read_template} if {*read_tags}.isdisjoint(present) else {}
                    return write, of_read | {write.tool: write_template}
    return (stale.writes[-1] if stale.writes else None), {}


def _templates(advice: Advice, call: LoggedCall) -> dict[str, tuple[str, ...]]:
    """The tags that a call needs, by the template that gives them."""
    if (tool := advice.tools.get(call.tool)) is None:
        return {}
    parse: Literal["json"] | None = "json" if needs_parsing(tool) else None
    kind = Read if tool.kind == "read" else Write
    return {tag: tags_of(kind(tag, parse=parse), call) for tag in tool.tags}
