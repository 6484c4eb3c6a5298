"""What a toolbox does with each tool, as a table, and what is wrong with its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_cache.core.tags import ComputedTags
from agent_cache.toolbox.rules import Found, Inner, Pass, Read, Rule, Write, find_rule, is_pattern, roots_of
from agent_cache.values.compare import escaped

__all__ = ["ToolInfo", "ToolRow", "ToolTable", "problems_of", "row_of"]


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


class ToolTable(Sequence[ToolRow]):
    """The rows of `Toolbox.explain`; its text is a table, in which what a terminal would interpret is escaped.

    Attributes:
        rows: one for each tool.
        problems: sentences on rules that cannot work, or never apply.
    """

    def __init__(self, rows: Sequence[ToolRow], problems: Sequence[str]) -> None:
        self.rows = tuple(rows)
        self.problems = tuple(problems)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ToolRow]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __repr__(self) -> str:
        return f"<ToolTable of {len(self.rows)} tools, {len(self.problems)} problems>"

    def __str__(self) -> str:
        lines = [tuple(map(escaped, row)) for row in (("tool", "kind", "tags", "ttl", "why"), *self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*text, *(f"problem: {escaped(problem)}" for problem in self.problems)])


def row_of(info: ToolInfo, found: Found, fields: str | None) -> ToolRow:
    """The row of a tool by its rule, and by what counts of its contexts, if that is known."""
    rule, why = found.rule, found.why
    tags = ttl = ""
    if isinstance(rule, Read | Write):
        resources = [rule.resource] if isinstance(rule.resource, str | ComputedTags) else rule.resource
        tags = ", ".join(one if isinstance(one, str) else f"{one.root}: computed" for one in resources)
    if isinstance(rule, Inner):
        why += f"; by the rule of the tool that {rule.tool!r} names"
    if isinstance(rule, Read):
        life = rule.decorator.policy.ttl
        ttl = "" if life is None else "by result" if callable(life) else f"{life:.12g} s"
        if info.takes_context and rule.decorator.policy.heeds_contexts:
            why += f"; by who asks, as its context says{f' ({fields})' if fields else ''}"
    return ToolRow(info.name, rule.kind, tags, ttl, why)


def problems_of(rules: Mapping[str, Rule], names: Sequence[str]) -> list[str]:
    """Sentences on rules of which one hides another, by the names of the tools if there are any; and on roots that are
    only written.
    """
    problems = []
    patterns = [name for name in rules if is_pattern(name)]
    for place, pattern in enumerate(patterns if not names else ()):
        of_all = [one for one in patterns[:place] if not set(one) & {"?", "["} and find_rule({one: Pass()}, pattern)]
        if of_all:
            problems.append(
                f"the rule {pattern!r} never applies: {of_all[0]!r} is written first and matches all of its names"
            )
    for name in names:
        of_it = [pattern for pattern in patterns if find_rule({pattern: Pass()}, name)]
        if name not in rules and len(of_it) > 1:
            others = ", ".join(map(repr, of_it[1:]))
            problems.append(f"{name!r} matches {of_it[0]!r}, which is written first and holds, and {others}")
    read, written = (
        {root for rule in rules.values() if isinstance(rule, kind) for root in roots_of({"": rule}, "")}
        for kind in (Read, Write)
    )
    problems += [
        f"no rule reads {root!r}, so its writes drop nothing under it, unless other tools have this tag"
        for root in sorted(written - read)
    ]
    return problems
