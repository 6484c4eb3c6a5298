"""The comparison of recorders of HTTP: what it measures, and what its cells say."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from benchmarks import recorders
from tests.harness.http_server import http_server


@pytest.mark.parametrize("name", list(recorders.SCENARIOS))
async def test_a_scenario_is_right_here_and_wrong_without_a_recorder(name, tmp_path):
    _, record = recorders.RECORDERS["agent_cache"]
    _, opened = recorders.CLIENTS["urllib.request"]
    with http_server() as server:
        case = recorders.Case(server, tmp_path / "cassette.jsonl", record, opened)
        assert await recorders.SCENARIOS[name](case)
    if name not in {"a connection that is refused", "a changed body is refused"}:  # as without a server
        with http_server() as server:
            case = recorders.Case(server, tmp_path / "none" / "cassette.jsonl", _nothing, opened)
            case.path.parent.mkdir()
            assert not await recorders.SCENARIOS[name](case) or name == "one request too many is refused"


@contextmanager
def _nothing(path, *, is_replay):
    yield


def test_a_cell_says_which_clients_are_wrong():
    results = {"a": True, "b": False, "c": False}
    assert recorders._cell(results, {"a"}) == "right"
    assert recorders._cell(results, {"a", "b"}) == "wrong: b"
    assert recorders._cell(results, {"b", "c"}) == "**wrong**"
