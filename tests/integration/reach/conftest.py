from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def rules(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of the rules of the test's module."""
    path = tmp_path / "rules.toml"
    path.write_text(request.module.RULES)
    return path


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Where a run is recorded."""
    return tmp_path / "run.jsonl"
