"""Every test here runs twice, over the generated call body and over the general path, on a clock that stands still."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.harness import library


@pytest.fixture(autouse=True, params=library.CALL_BODIES)
def clock(request: pytest.FixtureRequest) -> Iterator[library.Clock]:
    """Isolate the test; and whatever it was about, no load may be left in flight when it has ended."""
    with library.fresh_library() as clock, library.call_body(request.param):
        yield clock
        gc.collect()  # A call that was abandoned ends when it is collected.
        assert library.nothing_in_flight()
