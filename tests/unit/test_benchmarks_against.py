"""Two checkouts are measured in one process, each with its own modules, and a slower row fails the comparison."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import Comparison, compare

ROOT = Path(__file__).resolve().parents[2]

BUDGETS = """
import os
from dataclasses import dataclass
from pathlib import Path
from benchmarks.timing import Spread

GROUPS = {"hit": None, "OWN": None}

@dataclass
class Row:
    what: str
    measured: Spread
    unit: str = "us"
    limit: float | None = 2.5

async def measured(groups, effort):
    from agent_cache.late import COST

    assert groups[0] in GROUPS
    assert Path.cwd() == Path(__file__).parents[1]
    assert os.environ["PYTHONPATH"] == str(Path.cwd())
    return [Row(f"{groups[0]}, cost", Spread(COST)), Row(f"{groups[0]}, constant", Spread(effort.rounds))]
"""
TIMING = """
from dataclasses import dataclass

@dataclass
class Effort:
    rounds: int
    seconds: float
    entries: int

@dataclass
class Spread:
    median: float
"""


def checkout(root: Path, cost: float, own: str) -> Path:
    """A source tree whose package costs this much: a constant in a module that is imported while it is measured."""
    files = {
        "agent_cache/__init__.py": "",
        "agent_cache/late.py": f"COST = {cost}",
        "benchmarks/__init__.py": "",
        "benchmarks/budgets.py": BUDGETS.replace("OWN", own),
        "benchmarks/timing.py": TIMING,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def comparison(before: list[float], after: list[float]) -> Comparison:
    return Comparison("hit", "a row", "us", tuple(before), tuple(after))


@pytest.mark.parametrize(
    ("after", "is_slower"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], False),
        ([1.04, 1.04, 1.04, 1.04, 1.04], False),
        ([1.06, 1.06, 1.06, 1.06, 1.06], True),
        ([1.0, 1.0, 1.2, 1.2, 1.2], False),  # the median is, the lower quartile is not
        ([1.0, 1.06, 1.06, 1.2, 1.2], True),
        ([0.5, 0.5, 0.5, 0.5, 9.0], False),
    ],
)
def test_a_row_is_slower_if_the_lower_quartile_of_its_ratios_exceeds_the_limit(
    after: list[float], is_slower: bool
) -> None:
    assert comparison([1.0] * 5, after).is_slower is is_slower


def test_a_row_around_zero_is_shown_and_not_judged() -> None:
    row = comparison([-0.1, -0.2, 0.1], [9.0, 9.0, 9.0])
    assert row.ratio is None
    assert not row.is_slower
    assert "not judged" in row.cells()[-1]


def test_each_checkout_is_measured_with_its_own_modules(tmp_path: Path) -> None:
    old, new = checkout(tmp_path / "old", 2.0, "old"), checkout(tmp_path / "new", 3.0, "new")
    modules, surroundings = dict(sys.modules), (list(sys.path), Path.cwd(), os.environ.get("PYTHONPATH"))
    cost, constant = compare(old, new, ["hit"])
    assert (cost.group, cost.what, set(cost.before), set(cost.after)) == ("hit", "hit, cost", {2.0}, {3.0})
    assert len(cost.before) == len(cost.after) == against.ROUNDS["hit"]
    assert cost.is_slower
    assert not constant.is_slower
    assert {name: sys.modules[name] for name in modules} == modules
    assert "agent_cache.late" not in sys.modules
    assert (sys.path, Path.cwd(), os.environ.get("PYTHONPATH")) == surroundings
