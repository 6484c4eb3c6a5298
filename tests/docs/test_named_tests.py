"""Documents that name a test name one that exists, and the page of defects names all that were written for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFECTS = ROOT / "docs" / "explanation" / "other-recorders.md"
PRIOR_ART = "tests/integration/recording/test_prior_art.py"

_NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+(?:::\w+)*)`")


def named_in(page: Path) -> list[str]:
    """Ids of tests on a page, each in backticks."""
    return _NAMED.findall(page.read_text("utf-8"))


def ids_of(file: Path) -> set[str]:
    """Ids of the tests of a file, without parameters."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], place: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{place}::{node.name}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"{place}::{node.name}")

    visit(ast.parse(file.read_text("utf-8")).body, file.relative_to(ROOT).as_posix())
    return found


PAGES = [page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md")) if named_in(page)]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    """A test that is renamed or removed is missed here."""
    named = named_in(ROOT / page)
    files = {ROOT / one.partition("::")[0] for one in named}
    existing = set().union(*(ids_of(file) for file in files if file.exists()))
    assert sorted(set(named) - existing) == []


def test_the_page_of_defects_names_every_test_that_was_written_for_one() -> None:
    """What is not on the page was not shown to anybody."""
    assert sorted(ids_of(ROOT / PRIOR_ART) - set(named_in(DEFECTS))) == []


@pytest.mark.parametrize("heading", ["Rewind", "agentcassette"])
def test_each_row_of_the_page_of_defects_names_a_test(heading: str) -> None:
    """A row without one would be a claim."""
    sections = re.split(r"^## ", DEFECTS.read_text("utf-8"), flags=re.MULTILINE)[1:]
    [section] = [one for one in sections if heading in one.partition("\n")[0]]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    assert [row for row in rows if not _NAMED.search(row)] == []
