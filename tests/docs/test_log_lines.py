"""The pages of the tiers list every line that they log, and no other. Those of every tier are on the first page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_cache

DOCS = Path(__file__).parents[2] / "docs"
TIERS = Path(agent_cache.__file__).parent / "remote"
PAGES = {"redis": ("how-to/survive-an-outage.md",), "file": ("how-to/survive-an-outage.md", "reference/file-tier.md")}
BOTH = ("feed.py", "keeper.py", "versioned.py")
FILES = {"redis": (*BOTH, "redis.py"), "file": (*BOTH, "file/__init__.py", "database.py")}


def texts(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The texts that an argument may have, with an X for what is filled in: of a literal, a variable or a function."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
        case ast.Name(id=name):
            for node in ast.walk(tree):
                match node:
                    case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                        yield from texts(node.value, tree)
        case ast.Call(func=ast.Name(id=name)):
            for node in ast.walk(tree):
                match node:
                    case ast.FunctionDef(name=function, body=[*_, ast.Return(value=ast.expr() as text)]) if (
                        function == name
                    ):
                        yield from texts(text, tree)


def logged(tier: str) -> set[str]:
    """The first argument of every ``log.once``."""
    found = set()
    for file in [TIERS / name for name in FILES[tier]]:
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("log") | ast.Attribute(attr="log" | "_log"), attr="once"),
                    args=[event, *_],
                ):
                    said = set(texts(event, tree))
                    assert said, f"{file.name}:{node.lineno} says what cannot be read here"
                    found |= said
    return found


def listed(tier: str) -> dict[str, re.Pattern[str]]:
    """The lines of the tables. ``...`` stands for anything, ``(...)`` at the end for a reason."""
    lines: list[str] = []
    for page in PAGES[tier]:
        _, _, rest = (DOCS / page).read_text("utf-8").partition("\n| line | means |\n")
        rows = re.match(r"(?:\|.*\n)+", rest)
        assert rows is not None
        lines += [line for row in rows[0].splitlines() for line in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return {
        line: re.compile(".*".join(re.escape(part.strip()) for part in line.removesuffix(" (...)").split("...")))
        for line in lines
    }


@pytest.mark.parametrize("tier", PAGES)
def test_every_line_of_a_tier_is_in_the_table_and_the_table_has_no_other(tier: str):
    events, lines = logged(tier), listed(tier)
    assert len(events) > 10
    assert sorted(event for event in events if not any(line.fullmatch(event) for line in lines.values())) == []
    assert sorted(said for said, line in lines.items() if not any(map(line.fullmatch, events))) == []
