"""What a file tier keeps: how much, for how long, in which form, and for whom."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.errors import ConfigurationError
from agent_cache.remote.codecs import EncryptedCodec, MessagePackCodec
from agent_cache.remote.file import FileTier
from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import load, read, value_of, writing

KEY = bytes(range(32))


def _rows(path: Path, statement: str, *parameters: Any) -> list[Any]:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()


# Bytes


async def test_the_bytes_of_all_values_stay_below_the_bound(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, max_bytes=100_000) as tier:
        for number in range(400):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        ((size, counted),) = _rows(
            path, "SELECT (SELECT sum(size) FROM value), (SELECT value FROM meta WHERE name = 'bytes')"
        )
        assert 50_000 < size <= 100_000
        assert size == counted
        assert await value_of(tier, read("order:399", key=399)) == "x" * 1_000


async def test_what_has_ended_makes_room_first_and_then_what_was_stored_first(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, max_bytes=100_000) as tier:
        for number in range(60):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        _rows(path, "UPDATE value SET stored = stored - 1000")
        _rows(path, "UPDATE value SET ends = 1 WHERE address IN (SELECT address FROM value ORDER BY stored LIMIT 5)")
        for number in range(60, 90):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        assert not _rows(path, "SELECT 1 FROM value WHERE ends = 1")
        assert await value_of(tier, read("order:89", key=89)) != "nothing"
        assert sum([await value_of(tier, read(f"order:{n}", key=n)) == "nothing" for n in range(60)]) > 10
        assert all([await value_of(tier, read(f"order:{n}", key=n)) != "nothing" for n in range(60, 90)])


async def test_a_value_that_is_too_large_stays_in_this_process(tmp_path: Path):
    async with FileTier(tmp_path / "cache", max_value_size=2_000) as tier:
        await load(tier, read("order:7"), "x" * 1_500)
        await load(tier, read("order:8", key="8"), [str(number) * 50 for number in range(1_000)])
        assert await value_of(tier, read("order:7")) == "x" * 1_500
        assert await value_of(tier, read("order:8", key="8")) == "nothing"
        assert tier.stats()["unencodable"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": 10},
        {"max_bytes": None},
        {"max_value_size": 10},
        {"namespace": "with space"},
        {"codec": object()},
        {"timeout": -1},
        {"lease": 0},
        {"remote_ttl": -1},
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        FileTier(tmp_path / "cache", **options)


# Codecs and namespaces


def _encrypted() -> Any:
    pytest.importorskip("cryptography")
    return EncryptedCodec(MessagePackCodec(), KEY)


async def test_an_encrypted_file_shows_no_value_and_no_argument(tmp_path: Path):
    async with FileTier(tmp_path / "cache", codec=_encrypted()) as tier:
        await load(tier, read("order:topsecret", key="topsecret"), "classified")
        async with writing(tier, "order:topsecret"):
            pass
    for path in tmp_path.iterdir():
        assert b"topsecret" not in path.read_bytes()
        assert b"classified" not in path.read_bytes()


async def test_namespaces_of_one_file_know_nothing_of_each_other(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, namespace="one") as one, FileTier(path, namespace="two") as two:
        await load(one, read("order:7"), "of one")
        assert await value_of(two, read("order:7")) == "nothing"
        await load(two, read("order:7"), "of two")
        async with writing(two, "order:7"):
            pass
        assert await value_of(one, read("order:7")) == "of one"
        assert await value_of(two, read("order:7")) == "nothing"


# Messages


@pytest.mark.parametrize("where", ["elsewhere", "here"])
async def test_a_backup_in_a_file_holds_nothing_that_was_written_behind_the_tier_above(tmp_path: Path, where: str):
    server = MemoryServer()
    remote, elsewhere = MemoryTier(server), MemoryTier(server)
    numbers = [0] * 10
    loads: list[int] = []
    async with FileTier(tmp_path / "cache") as backup:

        @AgentCache("order:{order}", name="get_with_backup", ttl=60, remote_cache=remote, backup=backup)
        async def get(order: int) -> int:
            loads.append(order)
            return numbers[order]

        @AgentCacheInvalidator("order:{order}", name="put_with_backup", remote_cache=remote, backup=backup)
        async def put(order: int, number: int) -> None:
            numbers[order] = number

        assert [await get(7), await get(8)] == [0, 0]
        get.clear()
        assert [await get(7), await get(8)] == [0, 0]
        assert loads == [7, 8]
        if where == "here":
            await put(7, 1)
        else:
            async with writing(elsewhere, "order:7"):
                numbers[7] = 1
        assert [await get(7), await get(8)] == [1, 0]
        get.clear()
        assert [await get(7), await get(8)] == [1, 0]
        assert loads == [7, 8, 7]


@pytest.mark.slow  # how long the log gets depends on when its thread runs
async def test_the_log_is_bounded_while_values_are_stored_all_the_time(tmp_path: Path):
    """It cannot begin anew while some of it is not in the database yet."""
    log, longest = tmp_path / "cache-wal", 0
    values = ["".join(chr(33 + number * (number + seed) % 89) for number in range(30_000)) for seed in range(8)]
    async with FileTier(tmp_path / "cache", codec=MessagePackCodec(compress_above=None)) as tier:
        for number in range(1_200):
            await load(tier, read(f"order:{number % 50}", key=number % 50), values[number % 8])
            if number % 10 == 0:
                longest = max(longest, log.stat().st_size)
    assert longest < 40_000_000
