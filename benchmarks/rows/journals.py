"""Rows of journals: the time that a line adds to a recorded call, and the time until a run goes on."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from time import thread_time

from agent_cache.recording import intercept
from agent_cache.resume import Journal
from benchmarks.rows.recording import AsyncTool, folder, in_recordings, order_tool, record_sample
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling_each, measure
from benchmarks.workload import new_ids

CALLS = 1_000
"""In one journal of the rows of a call: as in the rows of recording."""
RESUMED = 10_000
"""In the journal that is resumed. Every fifth is a write."""


class Stopped(Exception):
    """Leaves a run that is to be resumed."""


def journal_sample(tool: AsyncTool, place: Path) -> Sample:
    """Calls that are written into a journal; opening and closing it is not timed."""
    call = calling_each(tool, new_ids("order_"))
    numbers = itertools.count()

    async def one() -> float:
        with Journal(place).attach(f"run-{next(numbers)}"):
            return await call(CALLS)

    return in_recordings(one)


async def _run(tools: list[AsyncTool]) -> None:
    for number in range(RESUMED):
        await tools[number % len(tools)](f"order_{number}")


async def begin(place: Path, tools: list[AsyncTool]) -> None:
    """Make a run of `RESUMED` calls that can be resumed."""
    with suppress(Stopped), Journal(place).attach("long"):
        await _run(tools)
        raise Stopped


def resume_sample(place: Path) -> Sample:
    """The time until the first call of a resumed run can be answered."""

    async def run(n: int) -> float:
        seconds = 0.0
        for _ in range(n):
            start = thread_time()
            with suppress(Stopped), Journal(place).attach("long"):
                seconds += thread_time() - start
                raise Stopped
        return seconds

    return run


def answer_sample(place: Path, tools: list[AsyncTool]) -> Sample:
    """The time of a whole resumed run all of whose calls are answered."""

    async def run(n: int) -> float:
        seconds = 0.0
        for _ in range(n):
            start = thread_time()
            with suppress(Stopped), Journal(place).attach("long"):
                await _run(tools)
                seconds += thread_time() - start
                raise Stopped
        return seconds

    return run


async def rows(effort: Effort) -> list[Row]:
    """The rows."""
    with folder() as place:
        read = intercept(order_tool(), name="get_order")
        write = intercept(order_tool(), name="change_order", kind="write")
        tools = [write, read, read, read, read]
        await begin(place, tools)
        figures = await measure(
            {
                "record": record_sample(read, place / "recorded.jsonl"),
                "record write": record_sample(write, place / "recorded writes.jsonl"),
                "journal": journal_sample(read, place / "reads"),
                "journal write": journal_sample(write, place / "writes"),
                "resume": resume_sample(place),
                "answer": answer_sample(place, tools),
            },
            Effort(rounds=max(5, effort.rounds // 5), seconds=effort.seconds),
            title="journal",
        )

    def row(what: str, name: str, base: str, limit: float, note: str) -> Row:
        return Row("journal", what, figures[name].above(figures[base]).scaled(1e6), "us", limit, note)

    size = f"{RESUMED:,} calls"
    return [
        row("a call", "journal", "record", 15.0, "1 KB result; over recording it"),
        row("a write: its intent and its outcome", "journal write", "record write", 30.0, "likewise"),
        Row(
            "journal",
            f"resuming a run of {size}",
            figures["resume"].spread,
            "s",
            1.0,
            "until the first call is answered",
        ),
        Row("journal", "the same with all its answers", figures["answer"].spread, "s", 1.0, ""),
    ]
