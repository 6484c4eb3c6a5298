"""The rules that a log shows to be needed, and their text: Python and TOML, each with its evidence.

Reads that the same writes change through the same values share a root, and no others do: so a write drops what it was
seen to change, and nothing beside it. A read with several such sets of writes has a tag for each.

Names of tools and arguments come from a log that others can write to. In code they stand as literals, in comments every
character that is not printable is escaped, and a name in which redaction finds a secret stands nowhere.
"""

from __future__ import annotations

import keyword
import re
import textwrap
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from agent_cache.advise.paths import Pair, nouns_of, path_of, server_of
from agent_cache.recording import Redaction
from agent_cache.toolbox.rules import Pass, Read, Rule, Watch, Write
from agent_cache.values.compare import escaped, plural, shortened

__all__ = [
    "BY_NAME", "Advice", "Kind", "Link", "Origin", "RuleText", "ToolAdvice", "needs_parsing", "rules_of", "shown_name",
    "tagged",
]  # fmt: skip

Kind = Literal["read", "write", "watch", "pass", "unknown"]
Origin = Literal["evidence", "same entity", "whole root"]
BY_NAME: Final = "its name says so"


@dataclass(frozen=True, slots=True)
class ToolAdvice:
    """What the log shows of one tool.

    Attributes:
        kind: ``"watch"`` reads what changes without a write; ``"pass"`` is neither a read, nor does an answer change
            after it; ``"unknown"`` is what nothing is known of, so that it has to be taken for a write of everything.
        reason: how its kind is known, in half a sentence. `BY_NAME` is to be checked.
        repeats: how often it was called with arguments that were seen before.
        parameters: its arguments in the order seen, and whether every call had them.
        tags: templates of its tags. Empty for ``"watch"`` and ``"pass"``.
        parse: whether its answers are JSON as text.
    """

    tool: str
    kind: Kind
    reason: str
    calls: int = 0
    repeats: int = 0
    parameters: Mapping[str, bool] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    parse: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A write that changes a read, and the pair of paths through which the two meet.

    Attributes:
        origin: ``"evidence"``: it explains changes. ``"same entity"``: nothing contradicts it. ``"whole root"``: it is
            not known what the write leaves unchanged.
        changes, unchanged: how many changes of answers it explains, and how many intervals it met that did not change.
        root: the root of the tag that both have.
    """

    pair: Pair
    origin: Origin
    changes: int
    unchanged: int
    root: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a log says about caching its tools.

    Attributes:
        ignored: tools that were left out: handlers of an agent, and what the user has named.
        inner: meta-tools, and the arguments that have the name of the tool that they call, and its arguments.
        is_shared: whether the log shows that its runs work on one state. If not, only what happens within one counts.
        resets: how many answers of later runs were as before a change of an earlier one: then each run begins anew.
    """

    tools: Mapping[str, ToolAdvice]
    links: tuple[Link, ...]
    ignored: tuple[str, ...] = ()
    inner: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_shared: bool = True
    resets: int = 0


def rules_of(advice: Advice, *, whole: bool = False) -> dict[str, Rule]:
    """The rules of a `Toolbox`, by the names of the tools in the log; with `whole` their tags are without ids.

    Where each run begins with a state of its own, they have ``scope="session"``.
    """
    scope: Literal["global", "session"] = "session" if advice.resets else "global"
    rules: dict[str, Rule] = {}
    for name, tool in advice.tools.items():
        parse: Literal["json"] | None = "json" if needs_parsing(tool) and not whole else None
        tags = list(dict.fromkeys(tag.partition(":")[0] if whole else tag for tag in tool.tags))
        if tool.kind == "read":
            rules[name] = Read(tags, parse=parse, scope=scope)
        elif tool.kind in ("write", "unknown"):
            rules[name] = Write(tags, parse=parse, scope=scope)
        else:
            rules[name] = Watch() if tool.kind == "watch" else Pass()
    return rules


def needs_parsing(tool: ToolAdvice) -> bool:
    """Whether its templates look into answers that are JSON as text."""
    return tool.parse and any("{result[" in tag for tag in tool.tags)


def tagged(links: Sequence[Link], tools: Mapping[str, ToolAdvice]) -> tuple[dict[str, ToolAdvice], tuple[Link, ...]]:
    """The tools with templates of their tags, and the links with their roots."""
    writers: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    found: dict[str, set[str]] = {name: set() for name, tool in tools.items() if tool.kind == "read"}
    pairs = [link.pair for link in links]
    for pair in pairs:
        if not pair.is_root:
            writers[pair.read, pair.read_path].add((pair.write, pair.write_path))
            found[pair.read].add(pair.read_path)
    paths = {
        read: sorted(own, key=lambda path: (path.startswith("result"), len(path), path)) or [""]
        for read, own in found.items()
    }
    for pair in pairs:
        if pair.is_root:
            writers[pair.read, paths[pair.read][0]].add((pair.write, ""))
    roots: dict[frozenset[tuple[str, str]], str] = {}
    taken: set[str] = set()
    tags: dict[str, dict[str, None]] = defaultdict(dict)

    def root_for(read: str, path: str) -> str:
        group = frozenset(writers[read, path]) or frozenset({(read, path)})  # what nothing writes has its own root
        if group not in roots:
            nouns = "_".join(sorted(nouns_of(read)))
            words = "_".join(sorted(path_of(read, path).entity)) if path and ":" not in path else nouns
            roots[group] = _free_name([words, nouns, _as_name(read)], taken)
        return roots[group]

    # Reads by arguments name their roots first: theirs are the plain ones.
    for read in sorted(paths, key=lambda read: (paths[read][0] == "", paths[read][0].startswith("result"), read)):
        tags[read].update((_template(root_for(read, path), path), None) for path in paths[read])
    rooted = tuple(
        replace(link, root=root_for(link.pair.read, link.pair.read_path or paths[link.pair.read][0])) for link in links
    )
    for link in rooted:
        tags[link.pair.write][_template(link.root, link.pair.write_path)] = None
    for name, tool in tools.items():
        if tool.kind in ("write", "unknown") and name not in tags:
            tags[name][_free_name([_as_name(name)], taken)] = None
    with_tags = {}
    for name, tool in tools.items():
        whole = {tag for tag in tags[name] if ":" not in tag}
        kept = tuple(tag for tag in tags[name] if tag in whole or tag.partition(":")[0] not in whole)
        with_tags[name] = replace(tool, tags=kept)
    return with_tags, rooted


def _template(root: str, path: str) -> str:
    """The template of the tag that a path becomes. One that is empty is that of the whole root."""
    return ":".join([root, *(f"{{{one}}}" for one in path.split(":") if one)])


def _as_name(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "tool"


def _free_name(wishes: Sequence[str], taken: set[str]) -> str:
    wanted = [_as_name(wish) for wish in wishes if wish]
    numbered = (f"{wanted[0]}_{number}" for number in range(2, len(taken) + 3))
    name = next(one for one in (*wanted, *numbered) if one not in taken)
    taken.add(name)
    return name


# Text

_WIDTH: Final = 100
_MOST_LINKS: Final = 5
_MOST_NAMES: Final = 8
"""Names that a comment has in a row, before it only counts them."""
_DECORATORS: Final = {"read": "AgentCache", "write": "AgentCacheInvalidator"}


def shown_name(name: str, redaction: Redaction) -> str:
    """A name from the log for people: redacted, short, and without anything that a terminal would interpret."""
    return shortened(escaped(redaction.text(name)), 60)


def _short(tool: str) -> str:
    return tool.partition(":")[2] or tool


class RuleText:
    """The rules of an advice as text, with its evidence as comments.

    A recording calls a tool ``namespace:tool`` or ``module:function``, other logs just ``tool``. A rule is of ``tool``,
    unless tools of two modules share this name. `outcomes` are of `replay_all`.
    """

    def __init__(
        self, advice: Advice, outcomes: Mapping[str, Any], *, sources: Iterable[str], has_hints: bool = False,
        redaction: Redaction,
    ) -> None:  # fmt: skip
        self.advice, self.outcomes, self.redaction, self._has_hints = advice, outcomes, redaction, has_hints
        self._sources = ", ".join(map(self._text, sources))
        self._scope = ', scope="session"' if advice.resets else ""
        prefixes = {tool.partition(":")[0] for tool in advice.tools if ":" in tool} - {"", "__main__"}
        self._namespace = prefixes.pop() if len(prefixes) == 1 and self._is_clean(*prefixes) else "tools"
        alike = Counter(map(_short, advice.tools))
        self._names: dict[str, str] = {}
        for name, tool in advice.tools.items():
            rule = _short(name) if alike[_short(name)] == 1 else name
            if rule and self._is_clean(rule, *tool.tags):
                self._names[name] = rule
        named = [tool for tool in advice.tools.values() if tool.tool in self._names and tool.kind != "unknown"]
        self._written = sorted(named, key=lambda tool: tool.kind == "pass")

    def _text(self, text: str) -> str:
        return escaped(self.redaction.text(text))

    def _shown(self, name: str) -> str:
        return shown_name(name, self.redaction)

    def _is_clean(self, *texts: str) -> bool:
        """Whether redaction finds no secret in these, and they can be written."""
        return all(self.redaction.text(one) == one and not re.search("[\ud800-\udfff]", one) for one in texts)

    def _several(self, names: Iterable[str]) -> str:
        """Names in a row, those of a server together: the first ones, and how many more there are."""
        ordered = sorted(dict.fromkeys(names), key=lambda name: (server_of(name)[0], name))
        shown = ", ".join(map(self._shown, ordered[:_MOST_NAMES]))
        return shown + (f" and {len(ordered) - _MOST_NAMES:,} more" if len(ordered) > _MOST_NAMES else "")

    def unknown(self) -> Iterator[str]:
        """What the log cannot tell, a sentence each: first what has to be decided by somebody."""
        advice = self.advice
        by_kind: dict[str, list[str]] = defaultdict(list)
        for tool in advice.tools.values():
            by_kind[f"{tool.kind} by name" if tool.reason == BY_NAME else tool.kind].append(tool.tool)
        unsure = "may read or write, and so drop every answer until --read, --write or --ignore says what they are"
        guess = "by name alone, to be checked"
        to_decide = {"unknown": ("tool", unsure), "read by name": ("read", guess), "write by name": ("write", guess)}
        for kind, (noun, text) in to_decide.items():
            if several := by_kind[kind]:
                yield f"{plural(len(several), noun)} {text}: {self._several(several)}"
        for one in by_kind["watch"]:
            yield f"{self._shown(one)} is not to be cached: {self._text(advice.tools[one].reason)}"
        if guessed := [link for link in advice.links if link.origin == "whole root" and not link.changes]:
            reads, writes = {link.pair.read for link in guessed}, {link.pair.write for link in guessed}
            dropped = f"the whole root is dropped of {plural(len(reads), 'read')} by {plural(len(writes), 'tool')}"
            yield f"{dropped} (too rarely seen between equal answers): {self._several(reads)}"
        if advice.resets:
            yield "runs begin anew: nothing was concluded across runs, and the rules hold within a session"
        elif not advice.is_shared:
            yield "the log does not show that its runs share one state: nothing was concluded across runs"
        for one, (name, _) in advice.inner.items():
            yield f"{self._shown(one)} calls other tools, which its {self._shown(name)} names: the rules are theirs"
        if advice.ignored:
            yield f"left out: {self._several(advice.ignored)}"
        for one in advice.tools:
            if one not in self._names:
                yield f"{self._shown(one)!r} has no rule: it is no name, or redaction finds a secret in it"

    def _evidence(self, tool: ToolAdvice) -> Iterator[str]:
        """A line of figures; and of a read one for each of its strongest links."""
        figures = [plural(tool.calls, "call")]
        if tool.kind in ("read", "watch"):
            figures.append(plural(tool.repeats, "repeat"))
        if tool.kind == "read":
            figures.append(f"{self.outcomes['advised'].hits_of[tool.tool]:,} hits expected")
        yield f"{self._shown(tool.tool)}: {', '.join(figures)}; {tool.kind}: {self._text(tool.reason)}"
        links = sorted((one for one in self.advice.links if one.pair.read == tool.tool), key=lambda one: -one.changes)
        for link in links[:_MOST_LINKS]:
            path = shortened(self._text(link.pair.write_path), 60)
            shown = self._shown(_short(link.pair.write)) + (f" ({path})" if path else "")
            if link.changes:
                why = f"changed by {shown}, {link.changes} of {plural(link.changes + link.unchanged, 'time')}"
            else:
                why = f"{shown} names it, too" if link.origin == "same entity" else f"too little was seen of {shown}"
            yield f"{self._text(_template(link.root, link.pair.read_path))}: {why}"
        if len(links) > _MOST_LINKS:
            yield f"and {len(links) - _MOST_LINKS} more"

    def _head(self, *more: str) -> list[str]:
        advised = self.outcomes["advised"]
        share = f"{100 * advised.hits / advised.reads:.0f} %" if advised.reads else "-"
        return _comments([
            f"Rules for the tools of {shortened(self._sources, 200)}, by `agent-cache advise`.",
            f"Replayed: {plural(advised.reads, 'read')}, {advised.hits:,} hits ({share}), {advised.stale} stale.",
            *(f"- {line}" for line in self.unknown()),
            *more,
        ])  # fmt: skip

    # Formats

    def python(self) -> str:
        """Decorators, each above a function that stands for the tool."""
        taken: set[str] = set()
        blocks = [self._function(tool, taken) for tool in self._written if tool.kind != "pass"]
        unknown = [tool.tool for tool in self.advice.tools.values() if tool.kind == "unknown"]
        tags = [tag for tool in self._written if tool.kind == "read" for tag in tool.tags]
        put = []
        if unknown and tags:
            put = [f"Put @AgentCacheInvalidator(EVERYTHING) above {self._several(unknown)}."]
            every = dict.fromkeys(_python(tag.partition(":")[0]) for tag in tags)
            blocks.insert(0, f"EVERYTHING = {_array([*every])}")
        head = self._head("Put each decorator above your own function, which may be a plain def.", *put)
        text = "\n".join([*put, *blocks])
        used = [name for name in _DECORATORS.values() if f"@{name}(" in text]
        imports = [f"from agent_cache import {', '.join(used)}"] if used else []
        return "\n\n\n".join(["\n".join([*head, "", *imports]).rstrip(), *blocks]) + "\n"

    def _function(self, tool: ToolAdvice, taken: set[str]) -> str:
        lines = _comments(self._evidence(tool))
        if tool.kind == "watch":
            return "\n".join([*lines, "# Leave it undecorated."])
        name, given = self._names[tool.tool].rpartition(".")[2], tool.parameters
        parameters = sorted(given, key=lambda one: not given[one])  # those with a default behind the others
        if name in taken or not all(_is_name(one) and self.redaction.text(one) == one for one in (name, *parameters)):
            return "\n".join([*lines, "# No function of Python has this name and such parameters: take --format toml."])
        taken.add(name)
        tags = list(tool.tags)
        if needs_parsing(tool) or "result" in parameters:
            tags = [tag.partition(":")[0] if "{result[" in tag else tag for tag in tags]
            lines.append("# Its answers are JSON as text, which --format toml reads: so whole roots.")
        needed = [one if given[one] else f"{one}=None" for one in parameters]
        literals = [_python(tag) for tag in dict.fromkeys(tags)]
        resource = literals[0] if len(literals) == 1 else _array(literals)
        lines.append(f"@{_DECORATORS[tool.kind]}({resource}{self._scope})")
        return "\n".join([*lines, f"async def {name}({', '.join(needed)}): ..."])

    def toml(self) -> str:
        """A file that `Toolbox.from_file` and `agent-cache mcp --config` read."""
        hints = ['hints = "kind"'] if self._has_hints else []
        head = [*self._head(), "", f"namespace = {_toml(self._namespace)}", *hints, 'unknown = "write"']
        blocks = ["\n".join(head)]
        for tool in self._written:
            name = self._names[tool.tool]
            key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(re.sub(r"([*?[])", r"[\1]", name))
            lines = [*_comments(self._evidence(tool)), f"[tools.{key}]", f"kind = {_toml(tool.kind)}"]
            if tool.kind in _DECORATORS:
                lines.append(f"tags = {_array([_toml(tag) for tag in tool.tags])}")
                lines += ['scope = "session"'] if self._scope else []
                lines += ['parse = "json"'] if needs_parsing(tool) else []
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks) + "\n"


def _is_name(name: str) -> bool:
    is_name = name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"
    return is_name and unicodedata.normalize("NFKC", name) == name  # as the parser reads it


def _comments(lines: Iterable[str]) -> list[str]:
    wrapped = (textwrap.wrap(line, _WIDTH - 2, subsequent_indent="    ", break_on_hyphens=False) for line in lines)
    return [f"# {part}" for parts in wrapped for part in parts]


def _array(items: list[str]) -> str:
    """A list in Python or TOML, in as many lines as it needs."""
    line = ", ".join(items)
    if len(line) <= _WIDTH - 2:
        return f"[{line}]"
    lines = textwrap.wrap(f"{line},", _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return "\n".join(["[", *(f"    {one}" for one in lines), "]"])


def _python(text: str) -> str:
    """A literal of Python, in which nothing is left that a terminal or an editor would interpret."""
    literal = ascii(text) if not text.isprintable() else repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _toml(text: str) -> str:
    """A basic string of TOML, in which nothing is left that a terminal or an editor would interpret."""
    parts = [f"\\{one}" if one in '"\\' else one if one.isprintable() else f"\\U{ord(one):08x}" for one in text]
    return f'"{"".join(parts)}"'
