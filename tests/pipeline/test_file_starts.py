"""A process starts while the file cannot be opened for a reason that passes: it runs without it, until it can.

The disk is full, another process has the file locked, this one has too many files open: that is no wrong setting, and
a worker that is started again just then must not stay away.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import FileTier
from tests.contract.workbench import load, read, value_of
from tests.harness.forks import forks

STARTED = """
import asyncio, json, resource, sys
from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.remote import FileTier

path, limit = sys.argv[1], getattr(resource, sys.argv[2])
VERSION = ["loaded without the file"]

@AgentCache("order:{order_id}", name="starts:get")
async def get(order_id: str) -> str:
    return VERSION[0]

@AgentCacheInvalidator("order:{order_id}", name="starts:put")
async def put(order_id: str) -> None:
    VERSION[0] = "written"

async def main() -> None:
    for tool in (get, put):  # what is imported late is imported now
        await tool("0")
    VERSION[0] = "loaded without the file"
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (0 if limit == resource.RLIMIT_FSIZE else 3, hard))
    tier = FileTier(path, timeout=0.01)
    with configure(remote=tier):
        seen = [await get("7")]
        await put("7")
        seen += [await get("7"), tier.stats()["pending"], tier.stats()["trusted"]]
        resource.setrlimit(limit, (soft, hard))
        while not await tier.caught_up():
            pass
        seen += [tier.stats()["pending"], tier.stats()["trusted"], await get("7")]
        await tier.aclose()
    print(json.dumps(seen))

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
@pytest.mark.parametrize("is_new", [False, True], ids=["the file is there", "there is none"])
def test_a_process_that_starts_on_a_full_disk_runs_without_the_file_until_it_can_be_used(
    tmp_path: Path, limit: str, *, is_new: bool
):
    """What it writes meanwhile is made up for before anybody is given what was loaded before."""
    path = tmp_path / "cache"

    @AgentCache("order:{order_id}", name="starts:get")
    async def get(order_id: str) -> str:
        return "loaded here"

    async def asked() -> str:
        async with FileTier(path) as tier:
            tool = AgentCache("order:{order_id}", name="starts:get", remote_cache=tier)(get.__wrapped__)
            return await tool("7")

    if not is_new:
        assert asyncio.run(asked()) == "loaded here"
    done = forks().run("-c", STARTED, path, limit, imports=["asyncio", "agent_cache.remote"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '["loaded without the file", "written", 1, false, 0, true, "written"]'
    assert asyncio.run(asked()) == "written"


async def test_a_file_that_another_process_has_locked_is_used_when_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "cache"
    async with FileTier(path) as tier:
        await load(tier, read("order:7"), "stored")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING, "agent_cache"):
        tier = FileTier(path, timeout=0.01)
        assert await value_of(tier, read("order:7")) == "nothing"
        assert await value_of(tier, read("order:7")) == "nothing"
    assert len([one for one in caplog.records if "cannot be opened" in one.getMessage()]) == 1
    assert "lock" in caplog.text
    with pytest.raises(RemoteTierError):
        await tier.clear()
    other.close()
    while not await tier.caught_up():
        pass
    assert await value_of(tier, read("order:7")) == "stored"
    await tier.aclose()


async def test_a_write_that_is_to_be_refused_is_refused_meanwhile(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    ran = []

    @AgentCacheInvalidator(
        "order", remote_cache=FileTier(path, timeout=0.01), remote=RemotePolicy(on_unreachable="refuse")
    )
    async def put() -> None:
        ran.append("put")

    with pytest.raises(RemoteTierError):
        await put()
    assert ran == []
    other.close()


@pytest.mark.parametrize("kind", ["no database", "another program's", "no directory"])
def test_a_wrong_setting_is_still_refused(tmp_path: Path, kind: str):
    path = tmp_path / "cache"
    if kind == "no database":
        path.write_bytes(b"notes of somebody's " * 100)
    elif kind == "another program's":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE notes (text)")
        other.close()
    else:
        path = tmp_path / "nowhere" / "cache"
    with pytest.raises(ConfigurationError, match="FileTier"):
        FileTier(path)
