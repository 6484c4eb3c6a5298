"""Values of a parameter that only runs with `-m slow` use: continuous integration's, not those of a laptop."""

from __future__ import annotations

import pytest


def slow(*values: object) -> list[object]:
    """Mark these values of a `parametrize`; those beside them are tested by default: ``[0, *slow(1, 2)]``."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
