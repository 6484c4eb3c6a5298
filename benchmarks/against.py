"""Compares the budget rows of two checkouts in one process: `python -m benchmarks.budgets --against PATH`.

Both packages are loaded side by side. While a checkout measures, `sys.modules`, `sys.path`, the working directory and
`PYTHONPATH` are its own, so every import, also one inside a function and one in a child process, finds its own
`agent_cache` and its own `benchmarks`. A round measures every row of a group once in each checkout, and the next round
begins with the other one. A row's ratio is taken within a round, where both met the same machine. Tools are decorated
anew in each round, so that where an object lies in memory does not favour one side. The budgets are those of this
checkout.

The other checkout needs `agent_cache/` and, in its `benchmarks/`, `budgets.GROUPS`, `budgets.measured(groups, effort)`
and `timing.Effort`. Its rows may import whatever private modules its package has. A group that it lacks is left out.
"""

from __future__ import annotations

import asyncio
import io
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from benchmarks.table import format_figure, markdown
from benchmarks.timing import Spread, progress

ROOT: Final = Path(__file__).resolve().parents[1]
SLOWER: Final = 1.05
"""A row fails if the lower quartile of its ratios exceeds this: three rounds of four are slower by more than 5 %."""

ROUNDS: Final[Mapping[str, int]] = {
    "hit": 15,
    "recording": 15,
    "trace": 9,
    "write": 9,
    "sessions": 9,
}
"""By group, where a round takes seconds or hardly varies; other groups have `MOST_ROUNDS`."""
MOST_ROUNDS: Final = 25
ENTRIES: Final = 30_000
QUICK_ROUNDS: Final = 7

HEADINGS: Final = ("", "what", "before", "after", "budget", "", "after/before", "quartiles", "", "note")
_PACKAGES: Final = ("agent_cache", "benchmarks")


class Checkout:
    """A source tree whose package and benchmarks are loaded into this process under their usual names.

    Raises `ValueError` if the folder lacks one of them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._modules: dict[str, ModuleType] = {}
        for needed in ("agent_cache/__init__.py", "benchmarks/budgets.py", "benchmarks/timing.py"):
            if not (self._root / needed).is_file():
                raise ValueError(f"{str(root)!r} is no checkout of agent-cache: it has no {needed}")
        with self._active():
            invalidate_caches()
            self._budgets: Any = import_module("benchmarks.budgets")
            self._effort: Any = import_module("benchmarks.timing").Effort
            for package in _PACKAGES:
                origin = Path(str(import_module(package).__file__))
                if not origin.is_relative_to(self._root):
                    raise ValueError(f"{package} of {str(root)!r} was imported from {str(origin)!r}")
        self.groups: tuple[str, ...] = tuple(self._budgets.GROUPS)

    def measure(self, group: str, *, rounds: int, seconds: float, entries: int) -> dict[str, Any]:
        """Measure every row of a group once. Returns the rows by their `what`."""
        effort = self._effort(rounds=rounds, seconds=seconds, entries=entries)
        with self._active(), redirect_stderr(io.StringIO()):  # its own progress lines
            rows = asyncio.run(self._budgets.measured([group], effort))
        return {row.what: row for row in rows}

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Make this checkout's modules the ones that imports find, here and in child processes."""
        others = _take_modules()
        path, python_path = sys.path[:], os.environ.get("PYTHONPATH")
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._root))
        os.environ["PYTHONPATH"] = str(self._root)
        try:
            with chdir(self._root):
                yield
        finally:
            self._modules = _take_modules()
            sys.modules.update(others)
            sys.path[:] = path
            if python_path is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = python_path


def _take_modules() -> dict[str, ModuleType]:
    """Remove both packages from `sys.modules` and return their modules."""
    names = [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]
    return {name: sys.modules.pop(name) for name in names}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row in both checkouts, one figure a round.

    A row is shown and not judged where its figure before is smaller than the distance of its own quartiles: it is the
    difference of two larger times, and around zero.
    """

    group: str
    what: str
    unit: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    limit: float | None = None

    @property
    def ratio(self) -> Spread | None:
        """After over before, each round against itself; None for a row that is not judged."""
        if not (self.before and self.after):
            return None
        before = Spread.of(self.before)
        if before.median <= 0 or before.high - before.low > before.median:
            return None
        return Spread.of([new / old for old, new in zip(self.before, self.after, strict=True) if old > 0])

    @property
    def is_slower(self) -> bool:
        return self.ratio is not None and self.ratio.low > SLOWER

    def cells(self) -> tuple[str, ...]:
        before, after = (
            format_figure(statistics.median(figures), self.unit) if figures else ""
            for figures in (self.before, self.after)
        )
        row = (self.group, self.what, before, after, *self._budget_cells())
        if not (self.before and self.after):
            note = "only before" if self.before else "only after"
            return (*row, "", "", "", note)
        if self.ratio is None:
            return (*row, "", "", "", "around zero: not judged")
        quartiles = f"{self.ratio.low:.3f} to {self.ratio.high:.3f}"
        verdict = "SLOWER" if self.is_slower else "ok"
        return (*row, f"{self.ratio.median:.3f}", quartiles, verdict, "")

    def _budget_cells(self) -> tuple[str, str]:
        """The budget of the row, and whether the median after is within it."""
        if self.limit is None or not self.after:
            return ("", "")
        verdict = "ok" if statistics.median(self.after) <= self.limit else "MISSED"
        return (format_figure(self.limit, self.unit), verdict)


def compare(old: Path, new: Path, groups: Sequence[str] = (), *, quick: bool = False) -> list[Comparison]:
    """Measure the rows of both checkouts in alternation. Without `groups`, all that both have."""
    before, after = Checkout(old), Checkout(new)
    common = [group for group in groups or after.groups if group in before.groups]
    return [row for group in common for row in _compare_group(before, after, group, quick=quick)]


def _compare_group(before: Checkout, after: Checkout, group: str, *, quick: bool) -> list[Comparison]:
    rounds = QUICK_ROUNDS if quick else ROUNDS.get(group, MOST_ROUNDS)
    seconds, entries = (0.002, 10_000) if quick else (0.004, ENTRIES)
    figures: dict[str, dict[Checkout, list[float]]] = {}
    units: dict[str, str] = {}
    limits: dict[str, float | None] = {}
    for round_ in range(rounds):
        progress(f"{group}, in both checkouts", round_, rounds)
        for checkout in (before, after) if round_ % 2 == 0 else (after, before):
            for what, row in checkout.measure(group, rounds=3, seconds=seconds, entries=entries).items():
                units[what] = row.unit
                if checkout is after:
                    limits[what] = row.limit
                figures.setdefault(what, {before: [], after: []})[checkout].append(row.measured.median)
    progress(f"{group}, in both checkouts", rounds, rounds)
    return [
        Comparison(group, what, units[what], tuple(both[before]), tuple(both[after]), limits.get(what))
        for what, both in figures.items()
    ]


def print_comparison(old: Path, groups: Sequence[str], *, quick: bool) -> int:
    """Compare another checkout with this one, and return the exit code of the command: 1 if a row is slower."""
    table = compare(old, ROOT, groups, quick=quick)
    print(report(table))
    return 1 if any(row.is_slower for row in table) else 0


def report(table: Sequence[Comparison]) -> str:
    """The table, and one sentence that names the slower rows."""
    slower = [row.what for row in table if row.is_slower]
    judged = sum(row.ratio is not None for row in table)
    sentence = (
        f"{len(slower)} of {judged} rows are slower (lower quartile above {SLOWER}): {'; '.join(slower)}"
        if slower
        else f"No row of {judged} is slower (lower quartile above {SLOWER})."
    )
    return f"{markdown(HEADINGS, [row.cells() for row in table])}\n\n{sentence}"
