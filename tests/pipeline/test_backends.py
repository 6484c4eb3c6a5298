"""The backends keep the contract that `agent_cache.testing.tier_contract` gives to whoever writes one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_cache.remote import FileTier
from agent_cache.remote.backend import Backend
from agent_cache.testing import FakeClock, MemoryServer
from agent_cache.testing.tier_contract import BackendContract


class TestMemory(BackendContract):
    @pytest.fixture(autouse=True)
    def on_a_clock_that_stands_still(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_backends(self) -> tuple[Backend, Backend]:
        server = MemoryServer()
        return server, server

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestFile(TestMemory):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"{number}.cache" for number in itertools.count())

    async def make_backends(self) -> tuple[Backend, Backend]:
        path = next(self.paths)
        self.both = FileTier(path), FileTier(path)
        return self.both[0].backend, self.both[1].backend
