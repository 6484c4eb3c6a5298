"""A store, and a server of it that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


class Switch:
    """An app that is another for each test: to start and stop a server takes as long as all else that a test does."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Switch]]:
    """A server, and what it serves."""
    for name in ("starlette", "uvicorn", "httpx", "openapi_spec_validator"):
        pytest.importorskip(name)
    from tests.harness.checkpoint_service import running

    switch = Switch()
    with running(switch) as url:
        yield url, switch


@pytest.fixture
def served(store: Path, server: tuple[str, Switch]) -> str:
    """URL of a server of the store. Whoever is named may see the sessions that begin with the name."""
    from agent_cache.service import restore_app
    from tests.harness.checkpoint_service import by_name

    url, switch = server
    switch.app = restore_app(store, authorize=by_name)
    return url
