"""Values of a parameter that only runs with `-m slow` use: continuous integration's, not those of a laptop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pytest


def slow(*values: object) -> list[object]:
    """Mark these values of a `parametrize`; those beside them are tested by default: ``[0, *slow(1, 2)]``."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def slow_rows(*rows: tuple[object, ...]) -> list[object]:
    """The same for several parameters at once."""
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def slow_but(quick: Collection[str], values: Mapping[str, object]) -> list[object]:
    """Values and their ids, of which those that are not `quick` only run with `-m slow`."""
    assert set(quick) <= set(values)
    marks = {name: () if name in quick else pytest.mark.slow for name in values}
    return [pytest.param(value, id=name, marks=marks[name]) for name, value in values.items()]


def crossed(one: Iterable[object], other: Iterable[object]) -> list[object]:
    """All pairs, of which those that have the first value of neither only run with `-m slow`."""
    (first, *more), (second, *others) = one, other
    quick = [*((first, each) for each in (second, *others)), *((each, second) for each in more)]
    return [
        *(pytest.param(*pair) for pair in quick),
        *slow_rows(*((each, with_it) for each in more for with_it in others)),
    ]
