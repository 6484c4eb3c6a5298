"""Links between the pages: what they lead to is there, headings included. Sphinx sees those of `docs/` alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and Sphinx make them; and those that it sets itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"[`*]|\[|\]\([^)]*\)", "", one) for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_links_to_is_there(page: Path) -> None:
    text = _CODE.sub("``", page.read_text("utf-8"))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors_of(found)):
            broken.append(target)
    assert not broken
