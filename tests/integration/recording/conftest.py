from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test records to."""
    return tmp_path / "cassettes" / "run.jsonl"
