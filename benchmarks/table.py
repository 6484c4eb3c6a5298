"""Tables: the rows of figures with their limits, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarks.timing import Spread

Unit = Literal["x", "us", "ms", "s", "B"]

_FORMAT: dict[str, str] = {"x": "{:.2f}x", "us": "{:.2f} us", "ms": "{:.2f} ms", "s": "{:.3f} s", "B": "{:.0f} B"}


def format_figure(value: float, unit: str) -> str:
    """A figure with its unit, with as many places as tables show."""
    return _FORMAT[unit].format(value)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure. A row without a `limit` is for comparison and cannot fail."""

    group: str
    what: str
    measured: Spread
    unit: Unit
    limit: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the median is within the limit; the quartiles are only shown."""
        return self.limit is None or self.measured.median <= self.limit

    def cells(self) -> tuple[str, ...]:
        show = _FORMAT[self.unit].format
        spread = f"{show(self.measured.low)} to {show(self.measured.high)}"
        judged = ("", "") if self.limit is None else (show(self.limit), "ok" if self.holds else "MISSED")
        return (self.group, self.what, show(self.measured.median), spread, *judged, self.note)


HEADINGS = ("", "what", "measured", "quartiles", "budget", "", "note")


def markdown(headings: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """A table that reads well as Markdown and as plain text."""
    cells = [tuple(cell.replace("|", "\\|") for cell in line) for line in (headings, *lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    padded = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join((padded[0], rule, *padded[1:]))
