"""What the tests of requests share: a server that they are made to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.http_server import HttpServer, http_server


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """A server on loopback, of this test alone."""
    with http_server() as running:
        yield running
