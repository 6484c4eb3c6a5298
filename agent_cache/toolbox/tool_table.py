"""What a toolbox does with each tool, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_cache.values.compare import escaped

__all__ = ["ToolInfo", "ToolRow", "ToolTable"]


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
