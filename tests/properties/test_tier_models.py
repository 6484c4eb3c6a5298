"""The models of the feeds: whole they keep their promises, and without any part they do not."""

from __future__ import annotations

import pytest

from tests.properties import file_feed, server_feed, stopped_server
from tests.properties.checker import explore


@pytest.mark.parametrize(
    "model",
    [file_feed.model(), file_feed.model(late=True), server_feed.model(), stopped_server.model()],
    ids=["file", "late", "server", "stopped"],
)
def test_the_whole_keeps_its_promise(model):
    verdict = explore(model)
    assert verdict.holds, str(verdict)


@pytest.mark.parametrize("part", file_feed.WITHOUT)
def test_a_file_without_a_part_is_stale(part: str):
    assert not all(explore(file_feed.model(part, late=late)).holds for late in (False, True))


@pytest.mark.parametrize("part", server_feed.WITHOUT)
def test_a_server_without_a_part_is_stale(part: str):
    assert not explore(server_feed.model(part)).holds


@pytest.mark.parametrize("part", stopped_server.WITHOUT)
def test_a_server_that_stops_without_a_part_is_stale(part: str):
    assert not explore(stopped_server.model(part)).holds
