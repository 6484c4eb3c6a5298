"""Tiers in memory and in a file keep the contract that every tier must keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.remote import FileTier, Tier, file
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.contract import TierContract
from tests.properties.test_inherited_versions import play


class TestMemoryTier(TierContract):
    @pytest.fixture(autouse=True)
    def on_a_clock_that_stands_still(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.server = MemoryServer()
        return MemoryTier(self.server), MemoryTier(self.server)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def cut(self, tier: Tier) -> None:
        tier.cut()

    async def reconnect(self, tier: Tier) -> None:
        tier.reconnect()

    async def stop_server(self) -> None:
        self.server.stop()

    async def start_server(self) -> None:
        self.server.start()


class Away(file.SqliteBackend):
    """A database that another program may have locked."""

    is_locked = False

    def _transaction(self):
        if Away.is_locked:
            raise ConnectionError("locked")
        return super()._transaction()


class TestFileTier(TierContract):
    """Two tiers on one file, on a clock that stands still."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.paths = (tmp_path / f"{number}.cache" for number in itertools.count())
        monkeypatch.setattr(file, "SqliteBackend", Away)
        Away.is_locked = False
        with FakeClock() as self.clock:
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        path = next(self.paths)
        self.a, self.b = (FileTier(path, lease=self.lease) for _ in range(2))
        return self.a, self.b

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def arrive(self) -> None:
        for tier in (self.a, self.b):
            await tier.caught_up()

    async def stop_server(self) -> None:
        """The write lock is held, and an invalidation of a process that lives could not be written."""
        Away.is_locked = True
        self.a.backend.mark(is_missing=True)

    async def start_server(self) -> None:
        Away.is_locked = False
        self.a.backend.mark(is_missing=False)
        for tier in (self.a, self.b):
            (await tier.look_after()).close()


async def test_nothing_is_found_in_a_file_that_is_older_than_a_write_that_has_returned(tmp_path: Path):
    """By random schedules of reads that are made of others, of writes and of dying writers."""
    number = 0

    def make(server: Any) -> Any:
        nonlocal number
        number += 1
        tier = FileTier(tmp_path / f"{(number + 1) // 2}.cache")  # each world has two processes
        tier.keeper.start = lambda _: None
        return tier

    played = await play(range(20), make)
    assert [(seed, each.stale) for seed, each in enumerate(played) if each.stale] == []
    assert min(sum(each.found for each in played), sum(each.stored for each in played)) > 70
