from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache.recording import record, replay
from tests.harness.http_server import HttpServer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test records to."""
    return tmp_path / "cassettes" / "run.jsonl"


class Stage:
    """Functions that call `real` fail in a replay: nothing runs there."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_live = path, True

    def real(self) -> None:
        assert self.is_live, "the real function ran in a replay"

    def replay(self, **options: Any) -> Any:
        self.is_live = False
        return replay(self.path, **options)

    async def twice(self, run: Callable[[], Any], again: Callable[[], Any] | None = None, **options: Any) -> Any:
        """What a run has seen when it was recorded. A strict replay of it, made by `again`, sees the same."""

        async def made(function: Callable[[], Any]) -> Any:
            value = function()
            return await value if inspect.isawaitable(value) else value

        with record(self.path):
            recorded = await made(run)
        with self.replay(**{"strict": True, **options}):
            assert await made(again or run) == recorded
        return recorded


@pytest.fixture
def stage(path: Path) -> Stage:
    return Stage(path)


@pytest.fixture
def gone(server: HttpServer, path: Path) -> Callable[[Callable[[], Any]], Any]:
    """Record a run with its requests, of which a strict replay sees the same with the server gone."""

    async def gone(run: Callable[[], Any]) -> Any:
        with record(path, http=True):
            recorded = await run()
        server.close()
        with replay(path, strict=True) as tape:
            assert await run() == recorded
            assert not tape.remaining
        return recorded

    return gone
