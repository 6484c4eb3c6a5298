"""The figures of a fleet can still be taken: short runs of `benchmarks.fleet`, whose figures mean nothing."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("redis")

from benchmarks.fleet import stampedes
from tests.harness.binaries import ServerUnavailableError

pytestmark = pytest.mark.slow


def test_loads_of_a_fleet_are_counted(capsys: pytest.CaptureFixture[str]):
    options = ["--processes", "2", "--writes", "3", "--ttl", "0.4", "--load", "0.02", "--json"]
    try:
        assert stampedes.main(options) == 0
    except ServerUnavailableError as absent:
        pytest.skip(str(absent))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["value"], row["shares"]) for row in rows] == [
        (value, shares) for value in ("is written", "expires") for shares in (True, False)
    ]
    assert all(row["loads"] > 0 and row["longest"] > 0 for row in rows)
