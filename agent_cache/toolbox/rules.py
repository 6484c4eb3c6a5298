"""The rules of a toolbox: what each tool is, a read, a write, or something that is not cached; and the table of tools.

`Read` and `Write` have the options of the decorators and check them by the decorators, so that a mistake fails where
the rule is written.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any, Literal, NamedTuple

from agent_cache.core.options import NO_HINTS, LoopHints, checked_choice, checked_hints, checked_text, no_life
from agent_cache.core.tags import ComputedTags, TagSet, escape, parse_template, unescape
from agent_cache.errors import ConfigurationError
from agent_cache.tool_types import Resource
from agent_cache.tools import AgentCache, AgentCacheInvalidator, Decorator
from agent_cache.values.compare import escaped

__all__ = [
    "Found", "Inner", "Pass", "Read", "Rule", "ToolInfo", "ToolRow", "ToolTable", "Watch", "Write",
    "compiled_tags", "find_rule", "is_shared", "roots_of", "row_of", "says_who_asks", "templates_of",
]  # fmt: skip


Parse = Literal["json"] | None


class ToolRule:
    """What all rules derive from: a dict of several kinds is one of these to type checkers."""

    __slots__ = ()
    kind: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TaggedRule(ToolRule):
    """What a tool depends on, or touches, with the options of its decorator."""

    __slots__ = ("decorator", "resource", "resources", "shared")

    _made_by: type[AgentCache | AgentCacheInvalidator]
    _without: tuple[str, ...]
    """Options of the decorator that a rule has not, beside those that say how a function is called."""

    def __init__(self, resource: Resource, *, parse: Parse = None, **options: Any) -> None:
        kind = type(self).__name__
        for option in ("skip_args", "ignore", "name", *self._without):
            if option in options:
                raise ConfigurationError(f"{kind}: {option!r} is an option of functions, and not of rules")
        if parse is not None:
            checked_choice(parse, ("json",), f"{kind}: parse", or_else="None")
        self.decorator: Decorator = self._made_by(resource, **options).by_name(None if parse is None else parsed)
        self.resource = resource
        self.resources = [resource] if isinstance(resource, str | ComputedTags) else resource
        self.shared: bool = options.get("shared", False)
        compiled_tags(self, None, kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resource!r})"


class Read(TaggedRule):
    """A tool that reads: its answers are cached until something that they depend on is written.

    Args:
        resource: what an answer depends on, as for `agent_cache.AgentCache`. A template reads the arguments by name and
            the answer as ``result``; an argument that is absent stands for the whole root.
        parse: ``"json"`` for a tool that answers with JSON as text: templates see the parsed answer.
        options: the options of `agent_cache.AgentCache`, but for ``skip_args``, ``ignore`` and ``name``. ``key`` is
            called with the arguments by name, and ``validate`` with the answer and these.

    Raises:
        ConfigurationError: if an option cannot work.
    """

    __slots__ = ()

    kind, _made_by = "read", AgentCache
    _without = ("max_stream_bytes",)


class Write(TaggedRule):
    """A tool that writes: it drops what it touches before it runs, and again when it has ended, however it ended.

    Args:
        resource: what it touches, as for `agent_cache.AgentCacheInvalidator`. An argument that is absent or null
            stands for the whole root.
        parse: as for `Read`.
        options: the options of `agent_cache.AgentCacheInvalidator`, but for ``skip_args``, ``ignore``, ``clear_all``,
            ``key_fn`` and ``name``.

    Raises:
        ConfigurationError: if an option cannot work.
    """

    __slots__ = ()

    kind, _made_by = "write", AgentCacheInvalidator
    _without = ("clear_all", "key_fn")


class Watch(ToolRule):
    """A tool that reads what no write of the agent changes, such as a clock or a search of the web.

    Concurrent identical calls share one run, unless a write of the toolbox has begun since. Its calls are traced,
    checked for loops and recorded. Nothing is stored, and no epoch of the loop detector ends.

    Args:
        loop: how a session's loop guard compares its calls: see `agent_cache.LoopHints`.

    Raises:
        ConfigurationError: if `loop` is something else.
    """

    __slots__ = ("decorator",)

    kind = "watch"

    def __init__(self, *, loop: LoopHints = NO_HINTS) -> None:
        # An answer without a life is not stored, and no failure. What it depends on is said by the toolbox.
        self.decorator = AgentCache("watch", ttl=no_life, loop=checked_hints(loop, "Watch", is_write=False))


class Pass(ToolRule):
    """A tool that is left alone: neither cached, nor traced, nor recorded. Handoffs, agents as tools."""

    __slots__ = ()

    kind = "pass"


class Inner(ToolRule):
    """A tool that calls another one, which its arguments name: ``route``, ``execute-tool``. A call of it goes by the
    rule of the inner tool, with the inner tool's arguments.

    A call whose arguments name no tool is one of a tool without a rule, whatever its hints say.

    Args:
        tool: the argument that has the name of the inner tool.
        arguments: the argument that has its arguments: an object, or the same as a text of JSON.

    Raises:
        ConfigurationError: if one of them is no name.
    """

    __slots__ = ("arguments", "tool")

    kind = "inner"

    def __init__(self, *, tool: str, arguments: str) -> None:
        self.tool = checked_text(tool, "Inner: tool")
        self.arguments = checked_text(arguments, "Inner: arguments")

    def __repr__(self) -> str:
        return f"Inner(tool={self.tool!r}, arguments={self.arguments!r})"

    def of(self, name: str, given: Any) -> tuple[str, dict[str, Any]] | None:
        """The inner tool, and its arguments; None if the call names none. What the meta-tool `name` is given beside
        these two is one more argument.
        """
        inner = given.get(self.tool) if isinstance(given, Mapping) else None
        passed = given.get(self.arguments) if isinstance(inner, str) else None
        if isinstance(passed, str):
            try:
                passed = json.loads(passed)
            except (ValueError, RecursionError):
                return None
        if not isinstance(inner, str) or not isinstance(passed, Mapping | None):
            return None
        rest = {key: value for key, value in given.items() if key not in (self.tool, self.arguments)}
        return inner, {**(passed or {}), name: rest} if rest else dict(passed or {})


Rule = Read | Write | Watch | Pass | Inner


# Which rule is that of a tool


class Found(NamedTuple):
    """The rule of a tool, and why it is that one."""

    rule: Rule
    why: str
    is_unknown: bool = False
    is_pattern: bool = False


_AFTER_A_SERVER = re.compile(r"__|[./:]|-(?=[^-_]*_[^-]*$)")
"""What stands between the name of a server and that of its tool: ``mcp__git__git_log``, ``git.log``, and
``filesystem-read_file``, but not ``delete-list``, which is one name.
"""


def find_rule(rules: Mapping[str, Rule], name: str) -> Found | None:
    """The rule of this name, else of the first pattern that it matches, in the order written. A name with that of a
    server or a host in front is also the name alone.
    """
    names = [name, *[rest for found in _AFTER_A_SERVER.finditer(name) if (rest := name[found.end() :])]]
    for one in names:
        if one in rules:
            return Found(rules[one], f"rule {one!r}")
    for pattern, rule in rules.items():
        if any(fnmatch.fnmatchcase(one, pattern) for one in names):
            return Found(rule, f"rule {pattern!r}", is_pattern=True)
    return None


def is_shared(rule: Rule) -> bool:
    """Whether a rule says that all users share the answers of its tool."""
    return isinstance(rule, TaggedRule) and rule.shared


def says_who_asks(rule: Rule) -> bool:
    """Whether a rule says what tells users apart, by `vary`, or that nothing does."""
    return isinstance(rule, TaggedRule) and not rule.decorator.policy.heeds_contexts


def hinted_kind(annotations: Any) -> Literal["read", "write"] | None:
    """What the annotations of an MCP tool say of it: the hint is ``readOnlyHint``, or ``read_only_hint``."""
    for name in ("read_only_hint", "readOnlyHint"):  # FastMCP warns of the latter on a model of mcp 2
        if (said := _member(annotations, name)) is not None:
            return "read" if said is True else "write"
    return None


def roots_of(rules: Mapping[str, Rule], namespace: str) -> tuple[str, ...]:
    """Every root that a tool of these rules reads or writes; the namespace if there is none."""
    resources = [one for rule in rules.values() if isinstance(rule, TaggedRule) for one in rule.resources]
    found = [
        escape(one.root if isinstance(one, ComputedTags) else parse_template(one, _AnyName(), "rule")[0])
        for one in resources
    ]
    return tuple(dict.fromkeys(found)) or (escape(namespace),)


def templates_of(roots: tuple[str, ...]) -> tuple[str, ...]:
    """The resource of a rule whose tags are these roots."""
    return tuple(unescape(root).replace("{", "{{").replace("}", "}}") for root in roots)


# Tags


class _AnyName(tuple[str, ...]):
    """The parameters of a tool whose schema is not known: every name but ``result``."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return name != "result"


def compiled_tags(rule: TaggedRule, names: tuple[str, ...] | None, tool: str) -> TagSet:
    """The tags of a rule for one tool, by the arguments in its schema, None if that is not known. Raises
    `ConfigurationError`, which names the tool, if a template is malformed, or names no argument.
    """
    return rule.decorator.tags(_AnyName() if names is None else names, tool)


def parsed(result: Any) -> Any:
    """An answer that is JSON as text, as data: a str, bytes, or the one text among the contents of an MCP result.
    Raises `ValueError` if it is no JSON.
    """
    content = result if isinstance(result, str | bytes | bytearray) else _member(result, "content")
    if isinstance(content, list | tuple) and len(content) == 1:
        content = _member(content[0], "text")
    return json.loads(content) if isinstance(content, str | bytes | bytearray) else result


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


# The table of tools


class ToolInfo(NamedTuple):
    """A tool as a framework or a server describes it.

    Attributes:
        name: its name.
        schema: the JSON schema of its arguments, if it is known.
        annotations: what an MCP server says of it: ``readOnlyHint`` and others.
        is_decorated: whether its function has a decorator of agent_cache, which a toolbox leaves to do its work.
        takes_context: whether its framework gives it a context that may say who asks.
    """

    name: str
    schema: Mapping[str, Any] | None = None
    annotations: Any = None
    is_decorated: bool = False
    takes_context: bool = False


class ToolRow(NamedTuple):
    """What is done with one tool.

    Attributes:
        tool: its name.
        kind: ``read``, ``write``, ``watch``, ``pass`` or ``decorated``.
        tags: what it depends on, or touches.
        ttl: seconds that its answers live, as text.
        why: the rule, the hint or the default that decides.
    """

    tool: str
    kind: str
    tags: str
    ttl: str
    why: str


class ToolTable(tuple[ToolRow, ...]):  # noqa: SLOT001 - a tuple cannot have slots
    """The rows of `Toolbox.explain`, one for each tool; its text is a table, in which what a terminal would interpret
    is escaped.

    Attributes:
        problems: sentences on rules that cannot work, or never apply.
    """

    problems: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<ToolTable of {len(self)} tools, {len(self.problems)} problems>"

    def __str__(self) -> str:
        lines = [[shorten(escaped(one), 160) for one in row] for row in (("tool", "kind", "tags", "ttl", "why"), *self)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*text, *(f"problem: {escaped(problem)}" for problem in self.problems)])


def row_of(info: ToolInfo, found: Found) -> ToolRow:
    """The row of a tool by its rule."""
    rule, why = found.rule, found.why
    tags = ttl = ""
    if isinstance(rule, Read | Write):
        tags = ", ".join(one if isinstance(one, str) else f"{one.root}: computed" for one in rule.resources)
    if isinstance(rule, Inner):
        why += f"; by the rule of the tool that {rule.tool!r} names"
    if isinstance(rule, Read):
        life = rule.decorator.policy.ttl
        ttl = "" if life is None else "by result" if callable(life) else f"{life:.12g} s"
        if info.takes_context and rule.decorator.policy.heeds_contexts:
            why += "; by who asks, as its context says"
    return ToolRow(info.name, rule.kind, tags, ttl, why)
