"""The rows of cost run in a small form, and check themselves what they have run."""

from __future__ import annotations

import math

import pytest

from benchmarks.budgets import measured
from benchmarks.others import tried
from benchmarks.rows import journals, sessions, writes
from benchmarks.timing import Effort

SMALL = Effort(rounds=2, seconds=0.0001, entries=1_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS", 20)
    for name, value in {"CALLS": 20, "RESUMED": 50}.items():
        monkeypatch.setattr(journals, name, value)
    for name, value in {"READERS": 10, "MANY_TOOLS": 3}.items():
        monkeypatch.setattr(writes, name, value)


@pytest.mark.parametrize(
    ("group", "whats"),
    [
        ("write", ["local write, 1 ", "local write, 3 ", "the same, 3 ", "in a session", "one write, 10 sessions"]),
        ("sessions", ["first call", "the same, memory", "opening", "20 at once, a call", "20 at once, each"]),
        ("tiers", ["FileTier: hit", "FileTier: answer", "FileTier: write"]),
        pytest.param(
            "journal",
            ["a call", "a write: its intent", "resuming a run of 50 calls", "the same with all"],
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_group_has_a_figure_in_each_of_its_rows(group: str, whats: list[str]) -> None:
    table = await measured([group], SMALL)
    assert {row.group for row in table} == {group}
    for row, what in zip(table, whats, strict=group != "tiers"):  # those of a server where there is one
        assert row.what.startswith(what)
        assert math.isfinite(row.measured.median)
        assert row.measured.low <= row.measured.median <= row.measured.high


async def test_a_write_that_reaches_no_session_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "AgentCacheInvalidator", lambda tags: lambda tool: tool)
    with pytest.raises(AssertionError, match="10 executions"):
        await writes.session_readers(SMALL)


@pytest.mark.parametrize(
    ("cache", "after_a_write", "of_two", "arguments"),
    [
        ("agent-cache", "new", "gets the answer", "4 of 4, in a list 4 of 4"),
        ("functools", "stale if it was being read", "runs it, too", "3 of 4, in a list refused"),
    ],
)
async def test_the_first_page_says_what_caches_do_that_are_always_there(
    cache: str, after_a_write: str, of_two: str, arguments: str
) -> None:
    assert await tried(cache) == [after_a_write, of_two, arguments]
