from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_cache.testing import reset


@pytest.fixture
def rules(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of the rules of the test's module."""
    path = tmp_path / "rules.toml"
    path.write_text(request.module.RULES)
    return path


@pytest.fixture
def clean() -> Iterator[None]:
    """An empty library, and no write in doubt that is left to the next test: what is tested is in this process."""
    reset()
    yield
    reset()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Where a run is recorded."""
    return tmp_path / "run.jsonl"
