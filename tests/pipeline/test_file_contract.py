"""The tier in a file keeps the contract that every tier must keep."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_cache.remote import Tier
from agent_cache.remote.file import FileTier
from tests.contract import TierContract
from tests.harness.processes import until


class TestFileTier(TierContract):
    """Two tiers on one file. They share what a process has open, as two tiers of a program do."""

    max_staleness = 0.3
    moment = 0.15
    short_lease = 0.5
    leases_need_messages = False  # processes share memory

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> Iterator[None]:
        self.paths = (tmp_path / f"{number}.cache" for number in itertools.count())
        self.locker = None
        yield
        if self.locker is not None:
            self.locker.close()

    async def make_tiers(self) -> tuple[Tier, Tier]:
        path = next(self.paths)
        self.a, self.b = (FileTier(path, lease=self.lease, timeout=0.1) for _ in range(2))
        return self.a, self.b

    async def arrive(self) -> None:
        for tier in (self.a, self.b):
            await tier.caught_up()

    async def stop_server(self) -> None:
        """The write lock is held, and an invalidation of a process that lives could not be written."""
        self.locker = sqlite3.connect(self.a.path, isolation_level=None)
        self.locker.execute("BEGIN IMMEDIATE")
        files = self.a._files
        files.page.suspend(files.number, 1)

    async def start_server(self) -> None:
        self.locker.close()
        files = self.a._files
        files.page.suspend(files.number, len(files.pending))
        await until(lambda: all(tier.stats()["trusted"] and not tier.stats()["pending"] for tier in (self.a, self.b)))
