"""What the tests of decorated tools share: an empty library, and tools that answer by either call body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import library


@pytest.fixture
def clock() -> Iterator[library.Clock]:
    """An empty library on a clock that stands still."""
    with library.fresh_library() as clock:
        yield clock


@pytest.fixture(params=library.CALL_BODIES)
def body(request: pytest.FixtureRequest, clock: library.Clock) -> Iterator[str]:
    """Answer calls by a generated body, and then once more by the general path. Only `tests/unit/test_codegen.py`
    and the property tests ask for both: they prove that the two agree, and all other tests use the generated one.
    """
    with library.call_body(request.param):
        yield request.param
