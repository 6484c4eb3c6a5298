"""A store, and a server of it that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.stored_journals import WrittenJournal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A directory of journals."""
    directory = tmp_path / "journals"
    directory.mkdir()
    return directory


@pytest.fixture
def journal(store: Path) -> Callable[..., WrittenJournal]:
    """Begins the journal of a session."""

    def begin(session_id: str = "ann-1", **header: object) -> WrittenJournal:
        return WrittenJournal(store, session_id, **header)

    return begin


@pytest.fixture
def served(store: Path) -> Iterator[str]:
    """URL of a server of the store. Whoever is named may see the sessions that begin with the name."""
    for name in ("starlette", "uvicorn", "httpx", "openapi_spec_validator"):
        pytest.importorskip(name)
    from agent_cache.service import restore_app
    from tests.harness.checkpoint_service import by_name, running

    with running(restore_app(store, authorize=by_name)) as url:
        yield url
