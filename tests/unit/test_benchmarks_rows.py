"""The rows of cost run in a small form, and check themselves what they have run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent_cache.core.lease import UNTRUSTED
from benchmarks.budgets import measured
from benchmarks.rows import calls, journals, process, requests_of_clients, scale, tiers, typed, writes
from benchmarks.timing import Effort
from tests.harness.binaries import ServerUnavailableError

SMALL = Effort(rounds=2, seconds=0.0001, entries=1_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SESSIONS": 20, "MANY_TOOLS": 40, "HIDDEN": 4, "MISSES_OF_A_THREAD": 50}.items():
        monkeypatch.setattr(scale, name, value)
    for name, value in {"CALLS": 20, "RESUMED": 50}.items():
        monkeypatch.setattr(journals, name, value)
    for name, value in {"READERS": 10, "NAMED": 50, "MANY_TOOLS": 3}.items():
        monkeypatch.setattr(writes, name, value)


@pytest.mark.parametrize(
    ("group", "whats"),
    [
        ("write", ["local write, 1 ", "local write, 3 ", "the same, 3 ", "in a session", "one write, 10 sessions"]),
        ("named", ["50 ids: a read", "50 ids: invalidate()", "50 ids: a write"]),
        ("sessions", ["first call", "the same, memory", "opening", "20 at once, a call", "20 at once, each"]),
        pytest.param(
            "journal",
            ["a call", "a write: its intent", "resuming a run of 50 calls", "the same with all"],
            marks=pytest.mark.slow,
        ),
        ("typed", ["dataclass", "Struct", "tree with a datetime", "pydantic model"]),
        ("nested", ["hit inside a load"]),
        ("tools", ["decoration, each of 40", "get_metrics(), 40 tools", "decorating 4 tools"]),
        ("threads", ["a miss in each of two threads"]),
        ("collection", ["longest collection while growing to 1,500"]),
        pytest.param("faces", ["from agent_cache import AgentCache, "], marks=pytest.mark.slow),
    ],
)
async def test_a_group_has_a_figure_in_each_of_its_rows(group: str, whats: list[str]) -> None:
    if group == "typed":
        pytest.importorskip("pydantic")
    table = await measured([group], SMALL)
    assert [row.group for row in table] == [group] * len(whats)
    for row, what in zip(table, whats, strict=True):
        assert row.what.startswith(what)
        assert math.isfinite(row.measured.median)
        assert row.measured.low <= row.measured.median <= row.measured.high


async def test_each_client_that_is_installed_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx")
    monkeypatch.setattr(requests_of_clients, "REQUESTS", 3)
    monkeypatch.setattr(requests_of_clients, "LOADED", 3)
    monkeypatch.setattr(requests_of_clients, "PIECES", 3)
    table = await measured(["requests"], SMALL)
    assert len(table) % 6 == 2
    assert [row.what for row in table][:6] == [
        "httpx: live", "httpx: outside of a recording", "httpx: recorded", "httpx: replayed",
        "httpx: first piece of a stream, recorded", "httpx: first piece of a stream, replayed",
    ]  # fmt: skip
    assert [row.what for row in table][-2:] == ["loading 3 of them", "the same, memory"]


async def test_hits_with_tiers_have_a_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one less where there is no server."""

    def start(*_: object) -> Any:
        raise ServerUnavailableError

    monkeypatch.setattr(tiers.Server, "start", start)
    (row,) = await tiers.hits(SMALL)
    assert row.what == "a copy of a tier whose trust is one word"
    assert row.measured.low <= row.measured.median <= row.measured.high


async def test_a_copy_that_is_no_hit_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "Lease", lambda page, stamp: UNTRUSTED)
    with pytest.raises(AssertionError, match="ran more than once"):
        await tiers.hits(SMALL)


async def test_a_write_that_reaches_no_session_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "AgentCacheInvalidator", lambda tags: lambda tool: tool)
    with pytest.raises(AssertionError, match="10 executions"):
        await writes.session_readers(SMALL)


async def test_a_result_that_callers_share_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")

    def shared(*tags: object, **options: object) -> Any:
        return calls.AgentCache("order", copy="never")

    monkeypatch.setattr(typed, "AgentCache", shared)
    with pytest.raises(AssertionError, match="not an equal result"):
        await typed.rows(SMALL)


async def test_sessions_make_all_their_calls_and_stay_open_in_the_block() -> None:
    made: list[str] = []

    async def count(user_id: str) -> str:
        made.append(user_id)
        return user_id

    async with scale.open_sessions([count] * scale.TOOLS, 3):
        assert len(made) == 3 * scale.CALLS_OF_A_SESSION
    assert len(set(made)) == 3 * scale.IDS


def test_a_module_of_tools_has_a_file_and_is_forgotten() -> None:
    """Annotations under TYPE_CHECKING are looked up in the source of the module."""
    with scale.module_of("async def tool_0() -> None: ...") as (tool,):
        assert tool.__code__.co_filename.endswith(f"{tool.__module__}.py")
    with pytest.raises(ImportError):
        __import__(tool.__module__)


async def test_an_import_is_timed_in_an_interpreter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    def seconds(statement: str, byte_code: str) -> float:
        run.append(statement)
        return float("from agent_cache" in statement)

    monkeypatch.setattr(process, "_seconds", seconds)
    (row,) = await process.faces(SMALL)
    assert row.measured.median == 1.0
    assert set(run) == {"import asyncio", f"import asyncio; from agent_cache import {process.FACES}"}
