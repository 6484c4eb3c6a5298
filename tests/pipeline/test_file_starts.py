"""A process starts while the file cannot be opened for a reason that passes: it runs without it, until it can.

The disk is full, another process has the file locked, this one has too many files open: that is no wrong setting, and
a worker that is started again just then must not stay away.
"""

from __future__ import annotations

import gc
import logging
import resource
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import RemoteTierError
from agent_cache.remote import FileTier
from tests.contract.workbench import load, read, value_of


@contextmanager
def limited(limit: str) -> Iterator[None]:
    """Let this process write no byte into files, or open no more of them."""
    kind = getattr(resource, limit)
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (0 if limit == "RLIMIT_FSIZE" else 3, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@pytest.mark.usefixtures("caplog")  # which hears what would go to stderr, a file
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
@pytest.mark.parametrize("is_new", [False, True], ids=["the file is there", "there is none"])
async def test_a_process_that_starts_on_a_full_disk_runs_without_the_file_until_it_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, *, is_new: bool
):
    """What it writes meanwhile is made up for before anybody is given what was loaded before."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an event loop that gets no socket is not closed
    path, state = tmp_path / "cache", ["before"]

    async def get(order_id: str) -> str:
        return state[0]

    async def put(order_id: str) -> None:
        state[0] = "written"

    async def asked() -> str:
        async with FileTier(path) as tier:
            tool = AgentCache("order:{order_id}", name="starts:get", remote_cache=tier)(get)
            return await tool("7")

    if not is_new:
        assert await asked() == "before"
    with limited(limit):
        tier = FileTier(path, timeout=0.01)
        here = AgentCache("order:{order_id}", name="starts:get", remote_cache=tier)(get)
        write = AgentCacheInvalidator("order:{order_id}", name="starts:put", remote_cache=tier)(put)
        assert await here("7") == "before"
        await write("7")
        assert await here("7") == "written"
        assert tier.stats() | {"pending": 1, "trusted": False} == tier.stats()
    while not await tier.caught_up():
        pass
    assert tier.stats() | {"pending": 0, "trusted": True} == tier.stats()
    assert await here("7") == "written"
    await tier.aclose()
    assert await asked() == "written"
    gc.collect()


async def test_a_file_that_another_process_has_locked_is_used_when_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "cache"
    async with FileTier(path) as tier:
        await load(tier, read("order:7"), "stored")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    tier = FileTier(path, timeout=0.01)
    refuses = RemotePolicy(on_unreachable="refuse")

    @AgentCacheInvalidator("user", remote_cache=tier, remote=refuses)
    async def put() -> None:
        raise AssertionError("it was to be refused")

    with caplog.at_level(logging.WARNING, "agent_cache"):
        assert [await value_of(tier, read("order:7")) for _ in range(2)] == ["nothing"] * 2
    assert len([one for one in caplog.records if "cannot be opened" in one.getMessage()]) == 1
    assert "lock" in caplog.text
    for refused in (tier.clear, put):
        with pytest.raises(RemoteTierError):
            await refused()
    other.close()
    while not await tier.caught_up():
        pass
    assert await value_of(tier, read("order:7")) == "stored"
    await tier.aclose()
