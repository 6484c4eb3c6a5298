"""Rules that a log of calls shows to be needed, as text to be pasted: Python, TOML and JSON, each with its evidence.

Names of tools and arguments come from a log that others can write to. In code they stand as literals, in comments every
character that is not printable is escaped, and a name in which redaction finds a secret stands nowhere.
"""

from __future__ import annotations

import keyword
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_cache.advise.replay import Outcome, ToolOutcome
from agent_cache.advise.tag_rules import Advice, Link, ToolAdvice, needs_parsing, template_of
from agent_cache.cli.output import escaped, json_text, plural, shortened
from agent_cache.core.tags import Field, parse_template
from agent_cache.recording import Redaction
from agent_cache.toolbox.rules import AnyName

__all__ = ["FORMATS", "Names", "Rules", "percent", "saved_text"]

_UNNAMED: Final = "tools"
"""The namespace where the log gives none."""
_LONGEST: Final = 60
"""Characters of a name in a comment. In code it stands as it is."""
_WIDTH: Final = 79
"""Characters of a line of a comment."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DECORATORS: Final = {"read": "AgentCache", "write": "AgentCacheInvalidator", "unknown": "AgentCacheInvalidator"}
_CLASSES: Final = {"read": "Read", "write": "Write", "unknown": "Write", "watch": "Watch", "pass": "Pass"}
_DATA: Final = """


def data(result):
    \"\"\"The result as data: the log has it as a text that is JSON.\"\"\"
    return json.loads(result) if isinstance(result, str | bytes) else result
"""


# Names


class Names:
    """The names of rules for tools of a log.

    A recording calls a tool ``namespace:tool`` or ``module:function``, other logs just ``tool``. A rule is of ``tool``,
    unless tools of two modules share this name.

    Attributes:
        namespace: what a toolbox of these rules is called.
        of: the name of the rule by that of the tool. A tool that can have no rule is missing.
        problems: sentences on tools that can have none.
    """

    def __init__(self, tools: Iterable[str], redaction: Redaction) -> None:
        self._redaction = redaction
        tools = list(tools)
        prefixes = {prefix for prefix, colon, _ in (tool.partition(":") for tool in tools) if colon}
        [prefix] = prefixes if len(prefixes) == 1 else [_UNNAMED]
        self.namespace: Final = prefix if prefix not in ("", "__main__") and self._can_stand(prefix) else _UNNAMED
        shared = Counter(map(_short, tools))
        self.of: Final[dict[str, str]] = {}
        self.problems: Final[list[str]] = []
        for tool in tools:
            name = _short(tool) if shared[_short(tool)] == 1 else tool
            if not name:
                self.problems.append("a tool of the log has an empty name, so it has no rule")
            elif not self._can_stand(name):
                self.problems.append(
                    f"{self.shown(tool)} has no rule: redaction finds a secret in its name, or it is not Unicode"
                )
            else:
                self.of[tool] = name

    def shown(self, name: str) -> str:
        """A name from the log for people: redacted, short, and without anything that a terminal would interpret."""
        return shortened(escaped(self._redaction.text(name)), _LONGEST)

    def _can_stand(self, name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            return False
        return self._redaction.text(name) == name


def _short(tool: str) -> str:
    return tool.partition(":")[2] or tool


def percent(part: int, whole: int) -> str:
    """A share, in whole percent: 100 % is all of it, and 0 % nothing."""
    if not whole:
        return "-"
    share = 100 * part / whole
    return f"{min(99, max(1, round(share))) if 0 < part < whole else share:.0f} %"


def saved_text(seconds: float | None, dollars: float | None) -> str:
    """Time and money: ``12.4 s, $0.10``; empty where the log has neither, or next to nothing was saved."""
    parts = []
    if seconds is not None and seconds >= 0.001:
        parts.append(f"{seconds:,.{0 if seconds >= 100 else 1}f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms")
    if dollars is not None and dollars >= 0.01:
        parts.append(f"${dollars:,.2f}")
    return ", ".join(parts)


# Rules


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one tool, ready to be written.

    Attributes:
        tool: its name in the log.
        name: that of the rule.
        kind: ``read``, ``write``, ``watch`` or ``unknown``.
        tags: templates.
        parse: whether the templates see the parsed result.
        evidence: what is known of it, in lines for people.
    """

    tool: str
    name: str
    kind: str
    tags: tuple[str, ...]
    parse: bool
    evidence: tuple[str, ...]


class Rules:
    """The rules of an advice, and their text in each format.

    Args:
        advice: what was mined.
        outcomes: the log replayed, by the name of the policy: ``none``, ``roots``, ``advised``, ``oracle``.
        sources: what the log is called.
        notes: sentences of who has read the log.
        has_hints: whether the log has the annotations of an MCP server, so that tools without a rule may have some.

    Attributes:
        rules: one for each tool that can have one.
        problems: sentences on the tools that can have none.
    """

    def __init__(
        self,
        advice: Advice,
        outcomes: Mapping[str, Outcome],
        *,
        sources: Iterable[str],
        notes: Iterable[str] = (),
        has_hints: bool = False,
        redaction: Redaction,
    ) -> None:
        self.names: Final = Names(advice.tools, redaction)
        self.advice: Final = advice
        self.outcomes: Final = outcomes
        self.redaction: Final = redaction
        self._text = redaction.text
        self._sources = [escaped(redaction.text(source)) for source in sources]
        self._notes, self._has_hints = [redaction.text(note) for note in notes], has_hints
        self._scope = "" if advice.is_shared else ', scope="session"'
        self.rules: Final[list[Rule]] = []
        self.problems: Final = list(self.names.problems)
        for tool in advice.tools.values():
            if tool.tool not in self.names.of:
                continue
            if any(redaction.text(tag) != tag for tag in tool.tags):
                self.problems.append(f"{self.names.shown(tool.tool)} has no rule: redaction finds a secret in its tags")
                continue
            self.rules.append(
                Rule(
                    tool.tool,
                    self.names.of[tool.tool],
                    tool.kind,
                    tool.tags,
                    needs_parsing(tool),
                    tuple(self._evidence(tool)),
                )
            )

    # Evidence

    def unknown(self) -> list[str]:
        """What the log cannot tell, in sentences: also which tools have no rule, and why."""
        return [*map(escaped, map(self._text, self.advice.unknown)), *self.problems]

    def _evidence(self, tool: ToolAdvice) -> Iterator[str]:
        yield from self._counts(tool)
        yield f"{_KINDS[tool.kind]}: {escaped(self._text(tool.reason))}"
        for tag in tool.tags:
            links = self._links(tool, tag)
            for link in links:
                if link.changes:
                    yield f"{escaped(tag)}: {self._of_link(tool, link)}"
            for origin, why in _WITHOUT_EVIDENCE.items():
                others = [self._other(tool, link) for link in links if link.origin == origin and not link.changes]
                if others:
                    by = "changed" if tool.kind == "read" else "read"
                    yield f"{escaped(tag)}: {by} by {', '.join(dict.fromkeys(others))}: without evidence, {why}"

    def _counts(self, tool: ToolAdvice) -> Iterator[str]:
        name = self.names.shown(tool.tool)
        errors = f", {plural(tool.errors, 'error')}" if tool.errors else ""
        repeats = f", {plural(tool.repeats, 'repeat')}" if tool.kind in ("read", "watch") else ""
        yield f"{name}: {plural(tool.calls, 'call')}{errors}{repeats}"
        if tool.kind == "read":
            found = self.outcomes["advised"].tools.get(tool.tool, ToolOutcome())
            saved = saved_text(found.seconds, found.dollars)
            of_calls = f"{plural(found.hits, 'hit')} expected, {percent(found.hits, tool.calls)} of its calls"
            yield f"{of_calls}{f'; saves {saved}' if saved else ''}"

    def _links(self, tool: ToolAdvice, tag: str) -> list[Link]:
        """The links that a tag stands for: those through its value, and those of its whole root."""
        root, is_read = tag.partition(":")[0], tool.kind == "read"
        found = []
        for link in self.advice.links:
            own, path = (link.read, link.read_path) if is_read else (link.write, link.write_path)
            if own == tool.tool and link.root == root and (not path or tag in (root, template_of(root, path))):
                found.append(link)
        return found

    def _other(self, tool: ToolAdvice, link: Link) -> str:
        """The tool at the other end of a link, and the path there."""
        other, path = (link.write, link.write_path) if tool.kind == "read" else (link.read, link.read_path)
        by = f" ({shortened(escaped(self._text(path)), _LONGEST)})" if path else ""
        return f"{self.names.shown(self.names.of.get(other, other))}{by}"

    def _of_link(self, tool: ToolAdvice, link: Link) -> str:
        by = "changed" if tool.kind == "read" else "read"
        unchanged = f", {link.unchanged} unchanged" if link.unchanged else ""
        by_no_id = ", by no id that both have" if link.origin == "whole root" else ""
        return (
            f"{by} by {self._other(tool, link)}: {plural(link.changes, 'change')} explained{by_no_id}, "
            f"{plural(link.exposed, 'interval')} exposed{unchanged}"
        )

    # Text

    def _head(self) -> list[str]:
        unknown = self.unknown()
        advised = self.outcomes["advised"]
        hits = f"{plural(advised.hits, 'hit')} ({percent(advised.hits, advised.reads)})"
        return [
            f"Rules for the tools of {shortened(', '.join(self._sources), 200)}, by `agent-cache advise`.",
            f"Replayed on it: {plural(advised.reads, 'read')}, {hits}, {advised.stale} stale.",
            *(["Not known:"] if unknown else []),
            *(f"- {line}" for line in unknown),
        ]

    def python(self) -> str:
        """Decorators, each above a function that stands for the tool."""
        blocks, imported, needs_data = [], set[str](), False
        functions = Counter[str]()
        for rule in self.rules:
            lines = _comments(rule.evidence)
            tool = self.advice.tools[rule.tool]
            parameters = list(tool.parameters)
            if rule.kind not in _DECORATORS:
                lines.append("# Leave it undecorated.")
            elif not all(_is_parameter(name) and self._text(name) == name for name in parameters):
                lines.append("# No function of Python has such parameters: take --format toolbox for it.")
            else:
                decorator, is_computed = _DECORATORS[rule.kind], rule.parse or "result" in parameters
                tags = [_tag_in_python(tag, is_computed=is_computed) for tag in rule.tags]
                imported |= {decorator, *(["tags_from"] if any("tags_from(" in tag for tag in tags) else [])}
                needs_data = needs_data or any("data(result)" in tag for tag in tags)
                name = _function_name(rule.name)
                functions[name] += 1
                name = name if functions[name] == 1 else f"{name}_{functions[name]}"
                needed = [one for one in parameters if tool.parameters[one]]
                others = [f"{one}=None" for one in parameters if not tool.parameters[one]]
                lines += [
                    f"@{decorator}({_listed(tags)}{self._scope})",
                    f"async def {name}({', '.join([*needed, *others])}): ...",
                ]
            blocks.append("\n".join(lines))
        head = _comments([*self._head(), "Put each decorator above your own function, which may be a plain def."])
        imports = ["import json\n"] if needs_data else []
        imports += [f"from agent_cache import {', '.join(sorted(imported))}"] if imported else []
        top = "\n".join([*head, "", *imports]) + (_DATA if needs_data else "")
        return "\n\n\n".join([top.rstrip("\n"), *blocks]) + "\n"

    def toolbox(self) -> str:
        """A `Toolbox`, as Python."""
        names = sorted({"Toolbox", *(_CLASSES[rule.kind] for rule in self.rules)})
        lines = _comments(self._head())
        lines += ["", f"from agent_cache import {', '.join(names)}", "", "toolbox = Toolbox(", "    {"]
        for rule in self.rules:
            lines += _comments(rule.evidence, "        ")
            options = ""
            if rule.kind in _DECORATORS:
                options = _listed([_python(tag) for tag in rule.tags], "        ") + self._scope
                options += ', parse="json"' if rule.parse else ""
            lines.append(f"        {_python(_pattern_free(rule.name))}: {_CLASSES[rule.kind]}({options}),")
        hints = '    hints="kind",\n' if self._has_hints else ""
        return "\n".join([*lines, "    },", f"    namespace={_python(self.names.namespace)},\n{hints})"]) + "\n"

    def toml(
        self,
        *,
        relay: str | None = None,
        has_rule: Callable[[str], bool] = lambda _name: False,
        is_new: bool = True,
    ) -> str:
        """A file that `Toolbox.from_file` and `agent-cache mcp --config` read.

        Args:
            relay: the namespace of a relay, whose tools may have hints; None for any other file.
            has_rule: whether a tool of this name has a rule already.
            is_new: False for text to be appended to a file.
        """
        head = _comments(self._head())
        if is_new:
            namespace = self.names.namespace
            if relay is not None and namespace == _UNNAMED:
                namespace = re.sub(r"[^A-Za-z0-9_-]+", "-", relay).strip("-").lower() or "mcp"
            head += ["", f"namespace = {_toml(namespace)}"]
            head += ['hints = "kind"'] if relay is not None or self._has_hints else []
            head.append('unknown = "write"')
        blocks = ["\n".join(head)]
        for rule in self.rules:
            if has_rule(rule.name):
                continue
            lines = _comments(rule.evidence)
            key = rule.name if _BARE.fullmatch(rule.name) else _toml(_pattern_free(rule.name))
            lines += [f"[tools.{key}]", f"kind = {_toml('write' if rule.kind == 'unknown' else rule.kind)}"]
            if rule.kind in _DECORATORS:
                lines.append(f"tags = {_array([_toml(tag) for tag in rule.tags])}")
                lines += [] if self.advice.is_shared else ['scope = "session"']
                lines += ['parse = "json"'] if rule.parse else []
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks) + "\n"

    def json(self) -> str:
        """Every figure, as one document."""
        return json_text(self.document(), indent=2) + "\n"

    def document(self) -> dict[str, Any]:
        """The same as data."""
        written = {rule.tool: rule for rule in self.rules}
        advice, text = self.advice, self._text
        tools = []
        for tool in advice.tools.values():
            rule, found = written.get(tool.tool), self.outcomes["advised"].tools.get(tool.tool)
            hits = 0 if found is None else found.hits
            tools.append({
                "tool": text(tool.tool),
                "rule": None if rule is None else rule.name,
                "kind": tool.kind,
                "why": tool.why,
                "reason": text(tool.reason),
                "tags": [] if rule is None else list(rule.tags),
                "parse": needs_parsing(tool),
                "calls": tool.calls,
                "errors": tool.errors,
                "repeats": tool.repeats,
                "hits": hits,
                "hit_rate": hits / tool.calls if tool.calls else 0.0,
                "stale": 0 if found is None else found.stale,
                "seconds_saved": None if found is None else found.seconds,
                "dollars_saved": None if found is None else found.dollars,
            })  # fmt: skip
        return {
            "sources": self._sources,
            "namespace": self.names.namespace,
            "notes": self._notes,
            "tools": tools,
            "links": [
                {
                    "write": text(link.write),
                    "write_path": text(link.write_path),
                    "read": text(link.read),
                    "read_path": text(link.read_path),
                    "root": text(link.root),
                    "origin": link.origin,
                    "changes": link.changes,
                    "exposed": link.exposed,
                    "unchanged": link.unchanged,
                }
                for link in advice.links
            ],
            "is_shared": advice.is_shared,
            "resets": 0 if advice.resets is None else advice.resets.count,
            "changes": advice.changes,
            "explained": advice.explained,
            "unknown": [*map(text, advice.unknown), *self.problems],
            "outcomes": {
                name: {"reads": one.reads, "hits": one.hits, "stale": one.stale} for name, one in self.outcomes.items()
            },
        }


_WITHOUT_EVIDENCE: Final = {
    "same entity": "both name the entity",
    "whole root": "so the whole root",
}
_KINDS: Final = {
    "read": "a read",
    "write": "a write",
    "watch": "a read, and not to be stored",
    "pass": "neither a read nor a write",
    "unknown": "not known, and so taken for a write of everything",
}

FORMATS: Final[Mapping[str, Callable[[Rules], str]]] = {
    "python": Rules.python,
    "toolbox": Rules.toolbox,
    "toml": Rules.toml,
    "json": Rules.json,
}
"""The text of rules, by the name of a format."""


def _pattern_free(name: str) -> str:
    """A name as that of a rule which is of this tool alone, whatever characters it has."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _is_parameter(name: str) -> bool:
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and name != "__debug__"
        and unicodedata.normalize("NFKC", name) == name  # as the parser reads it
    )


def _comments(lines: Iterable[str], indent: str = "") -> list[str]:
    width = _WIDTH - len(indent) - 2
    return [
        f"{indent}# {part}"
        for line in lines
        for part in textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)
    ]


def _function_name(name: str) -> str:
    found = re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_") or "tool"
    return found if found.isidentifier() and not keyword.iskeyword(found) else f"tool_{found}"


def _listed(items: list[str], indent: str = "") -> str:
    """The resource of a call that is indented so far: one tag, or a list of them."""
    return items[0] if len(items) == 1 else _array(items, indent)


def _array(items: list[str], indent: str = "") -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH:
        return line
    return "".join(["[\n", *(f"{indent}    {item},\n" for item in items), f"{indent}]"])


def _python(text: str) -> str:
    """A literal of Python, in which nothing is left that a terminal or an editor would interpret."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _tag_in_python(tag: str, *, is_computed: bool) -> str:
    """A tag of a decorator. What reads a result that is a text is computed by a function, since templates cannot."""
    root, below = parse_template(tag, AnyName(), "advise")
    if not is_computed or not any(isinstance(one, Field) and one.of_result for part in below for one in part):
        return _python(tag)
    [segment, *others] = below
    if others or len(segment) != 1 or not isinstance(segment[0], Field):
        return _python(root)  # a function gives one segment: the whole root is always right
    expression, loops = "data(result)", list[str]()
    for is_attribute, step in segment[0].path:
        if step == "" and not is_attribute:
            item = f"item{len(loops) or ''}"
            loops.append(f"for {item} in {expression}")
            expression = item
        else:
            expression += f"[{_python(step) if isinstance(step, str) else step}]"
    ids = f"[{expression} {' '.join(loops)}]" if loops else expression
    return f"tags_from({_python(root)}, lambda arguments, result: {ids})"


def _toml(text: str) -> str:
    """A basic string of TOML, in which nothing is left that a terminal or an editor would interpret."""
    return '"' + "".join(_toml_character(character) for character in text) + '"'


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"
