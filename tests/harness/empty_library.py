"""What the tests of decorated tools share: an empty library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import library


@pytest.fixture
def clock() -> Iterator[library.Clock]:
    """An empty library on a clock that stands still."""
    with library.fresh_library() as clock:
        yield clock
