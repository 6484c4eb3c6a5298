"""Where the calls of an agent lie in time: one row of cells, each a mark and its style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from agent_cache._demo.chronicle import Act, Call
from agent_cache._demo.signs import sign_of

__all__ = ["Cell", "axis", "lane"]

Cell = tuple[str, str]

_EMPTY: Cell = (" ", "")
_BORDER: Cell = ("┊", "bright_black")


def lane(calls: Iterable[Call], acts: Sequence[Act], *, width: int, span: float, now: float) -> list[Cell]:
    """Draw one agent's calls over `span` seconds: bars first, and points over them, since a hit is one cell wide."""
    cells = [_EMPTY] * width
    for act in acts[1:]:
        cells[_column(act.begins, width, span)] = _BORDER
    for call in sorted(calls, key=_is_point):
        sign = sign_of(call)
        first = _column(call.started, width, span)
        if _is_point(call):
            cells[first] = (sign.point, sign.style)
            continue
        # A bar ends before the cell in which its successor may begin, so that two of them stay two.
        last = max(first, ceil((now if call.ended is None else call.ended) / span * width) - 2)
        cells[first : last + 1] = [(sign.bar, sign.style)] * (min(last, width - 1) - first + 1)
    return cells


def axis(acts: Sequence[Act], current: int, *, width: int, span: float) -> list[Cell]:
    """Write the name of each act where it begins, cut off where the next one does; acts to come stay blank."""
    cells = [_EMPTY] * width
    for number, act in enumerate(acts[: current + 1]):
        style = "bold" if number == current else "bright_black"
        first = _column(act.begins, width, span)
        ends = _column(acts[number + 1].begins, width, span) - 1 if number + 1 < len(acts) else width
        for column, letter in zip(range(first, ends), f"{number + 1} {act.name}", strict=False):
            cells[column] = (letter, style)
    return cells


def _is_point(call: Call) -> bool:
    return call.outcome in {"hit", "stopped"}


def _column(moment: float, width: int, span: float) -> int:
    return min(width - 1, int(moment / span * width))
