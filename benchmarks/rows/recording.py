"""Rows of recording: the time that recording and replaying add to a call with a result of about 1 KB of JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import Any

from agent_cache import AgentCache
from agent_cache.recording import intercept, record, replay
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling_each, measure
from benchmarks.workload import new_ids

CALLS = 1_000
"""In one recording: enough that opening and closing it does not show in a call."""

AsyncTool = Callable[[str], Coroutine[Any, Any, dict[str, Any]]]

ORDER: dict[str, Any] = {
    "order_id": "#W2378156",
    "user_id": "yusuf_rossi_9620",
    "status": "delivered",
    "address": {"street": "763 Broadway", "city": "Philadelphia", "state": "PA", "zip": "19122"},
    "items": [
        {
            "name": name,
            "product_id": f"16563670{number}",
            "item_id": f"11512936{number}",
            "price": 272.33 + number,
            "options": {"size": "full", "color": "black"},
        }
        for number, name in enumerate(("Keyboard", "Thermostat", "Headphones", "Vacuum Cleaner", "Smart Watch"))
    ],
    "note": "Left with the neighbour on the second floor; a call before noon, please, and the refund to the gift card.",
}
"""An order as a tool of a shop returns it: 1 KB of JSON."""


def order_tool() -> AsyncTool:
    """A new undecorated tool."""

    async def get_order(order_id: str) -> dict[str, Any]:
        return ORDER

    return get_order


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def in_recordings(one: Callable[[], Awaitable[float]]) -> Sample:
    """A sample of whole recordings or replays of `CALLS` calls, at least one."""

    async def run(n: int) -> float:
        count = max(1, round(n / CALLS))
        return sum([await one() for _ in range(count)]) * n / (count * CALLS)

    return run


def record_sample(tool: AsyncTool, path: Path) -> Sample:
    """Calls that are recorded; opening and closing the recording is not timed."""
    call = calling_each(tool, new_ids("order_"))

    async def one() -> float:
        with record(path):
            return await call(CALLS)

    return in_recordings(one)


def replay_sample(tool: AsyncTool, path: Path) -> Sample:
    """Calls that are replayed; loading the recording is not timed."""
    call = calling_each(tool, _same_ids)

    async def one() -> float:
        await ensure_recorded(tool, path)
        with replay(path):
            return await call(CALLS)

    return in_recordings(one)


def load_and_replay_sample(tool: AsyncTool, path: Path) -> Sample:
    """Whole replays, loading included."""
    call = calling_each(tool, _same_ids)

    async def one() -> float:
        await ensure_recorded(tool, path)
        start = thread_time()
        with replay(path):
            await call(CALLS)
        return thread_time() - start

    return in_recordings(one)


async def ensure_recorded(tool: AsyncTool, path: Path) -> None:
    if path.exists():  # noqa: ASYNC240 - a benchmark, alone in its event loop
        return
    with record(path):
        for order_id in _same_ids(CALLS):
            await tool(order_id)


def _same_ids(n: int) -> list[str]:
    return [f"order_{number}" for number in range(n)]


async def rows(effort: Effort) -> list[Row]:
    with folder() as place:
        plain = intercept(order_tool(), name="get_order")
        cached = AgentCache("order:{order_id}", name="cached:get_order")(order_tool())
        figures = await measure(
            {
                "bare": calling_each(order_tool(), _same_ids),
                "miss": calling_each(AgentCache("order:{order_id}")(order_tool()), new_ids("missing_")),
                "record": record_sample(plain, place / "recorded.jsonl"),
                "replay": replay_sample(plain, place / "replayed.jsonl"),
                "all": load_and_replay_sample(plain, place / "all.jsonl"),
                "record cached": record_sample(cached, place / "cached recorded.jsonl"),
                "replay cached": replay_sample(cached, place / "cached again.jsonl"),
            },
            Effort(rounds=max(9, effort.rounds // 3), seconds=effort.seconds),
            title="recording",
        )

    def row(what: str, name: str, limit: float | None, note: str = "", base: str = "bare") -> Row:
        return Row("recording", what, figures[name].above(figures[base]).scaled(1e6), "us", limit, note)

    return [
        row("record a call", "record", 25.0, "1 KB result; over the bare call"),
        row("replay a call", "replay", 15.0, "over the bare call"),
        row("the same with its share of loading", "all", None),
        row("record a cached tool", "record cached", None, "over its miss", base="miss"),
        row("replay a cached tool", "replay cached", None, "over the bare call"),
    ]
