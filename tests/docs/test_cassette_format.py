"""The reference of the cassette format names every field that a recording can write, and no other."""

import asyncio
import contextlib
import dataclasses
import datetime
import re
import urllib.request
from pathlib import Path

import msgspec
import pytest

from agent_cache import AgentCache, AgentCacheSession
from agent_cache.recording import Redaction, cached_llm_call, intercept, record, register
from agent_cache.recording.file import Header, RecordedCall, Trailer
from agent_cache.recording.outcomes import Failure, Stream
from tests.harness.http_server import http_server

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cassette-format.md").read_text()


def table_after(line: str) -> list[str]:
    """First cells of the table that follows this line."""
    rest = PAGE[PAGE.index(line) + len(line) :].splitlines()
    start = next(number for number, each in enumerate(rest) if each.startswith("| ---"))
    rows = []
    for each in rest[start + 1 :]:
        if not each.startswith("|"):
            break
        rows.append(each.split("|")[1])
    return rows


def named(line: str) -> set[str]:
    """Fields in the first cells, as ``name`` or as the key of what is shown."""
    return set(re.findall(r'`(?:\{?")?(\w+)', " ".join(table_after(line))))


@pytest.mark.slow
def test_every_line_has_the_fields_of_its_table():
    assert named("## Header") == set(Header.__struct_fields__)
    assert named("## A call") == set(RecordedCall.__struct_fields__) - {"place", "hidden"}  # which journals have
    assert named("## Trailer") == set(Trailer.__struct_fields__)
    assert named("in this order, with") < set(RecordedCall.__struct_fields__)
    assert named("An exception has") == set(Failure.__struct_fields__)
    assert named("and a stream") == set(Stream.__struct_fields__)


def test_what_a_redaction_is_described_by_is_named():
    described = Redaction(["a"], [re.compile("b")], lambda data: data, replacement="x", defaults=False).describe()
    row = next(line for line in PAGE.splitlines() if line.startswith("| `redact`"))
    assert set(described) <= set(re.findall(r"`(\w+)`", row))


@register
class Point(msgspec.Struct):
    x: int


class Odd:
    __slots__ = ()


class Plain(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Hidden:
    token: datetime.date


class Missing(KeyError):
    """Is not found under its name."""

    __qualname__ = "Lost"


async def everything(path: Path) -> None:
    """A run that has every kind of outcome in it."""

    @AgentCache(resource="thing")
    async def look(name: str) -> int:
        return 1

    @intercept
    def give(number: int):
        return [1, {1, 2}, Point(1), Odd(), Plain(1), contextlib.ExitStack()][number]

    @intercept
    def hidden() -> Hidden:
        return Hidden(datetime.date(2026, 1, 2))

    @intercept
    async def typed() -> Point:
        return Point(2)

    @intercept
    def later():
        return asyncio.sleep(0)

    @intercept
    async def hang() -> None:
        await asyncio.Event().wait()

    @intercept
    def fail(number: int) -> None:
        errors = [ValueError("x", object()), ExceptionGroup("several", [KeyError("a")]), Missing("a")]
        error = errors[number]
        error.add_note("noted")
        error.more = 1
        raise error from TypeError("cause")

    @cached_llm_call()
    def words(number: int):
        yield from range(number)
        raise KeyError("end")

    @intercept
    async def stream():
        yield 1
        await asyncio.Event().wait()

    async def read_on() -> None:
        async for _ in stream():
            pass

    with http_server() as server, record(path, http=True):
        urllib.request.urlopen(server.url).close()
        for number in range(6):
            give(number)
        hidden()
        await typed()
        await later()
        for number in range(3):
            try:
                fail(number)
            except (ValueError, KeyError, ExceptionGroup):
                pass
        for wanted in (1, 5):
            try:
                for _, _ in zip(range(wanted), words(2), strict=False):
                    pass
            except KeyError:
                pass
        async with AgentCacheSession(on_loop="notice", max_tool_repeats=3):
            for _ in range(5):
                await look("a")
        for each in (hang, read_on):
            task = asyncio.create_task(each())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        left = asyncio.create_task(hang())
        await asyncio.sleep(0)
    left.cancel()


async def test_every_outcome_that_is_written_is_in_the_reference(tmp_path):
    await everything(tmp_path / "run.jsonl")
    calls = [msgspec.json.decode(line) for line in (tmp_path / "run.jsonl").read_bytes().splitlines()]
    written, errors, streams, ends = set(), set(), set(), set()

    def look_at(outcome: dict) -> None:
        written.update(outcome)
        failure = outcome.get("error")
        while failure:
            errors.update(failure)
            failure = failure.get("cause")
        if "stream" in outcome:
            streams.update(outcome["stream"])
            ends.update(outcome["stream"]["end"])

    for call in calls:
        if "outcome" in call:
            look_at(call["outcome"])
    written |= {"made"}  # of LiteLLM, which has an environment and tests of its own
    assert written == named("### Outcomes") | named("It may also have these fields:")
    assert errors == named("An exception has")
    assert streams == named("and a stream")
    end = next(line for line in PAGE.splitlines() if line.startswith("| `end` |"))
    assert ends <= set(re.findall(r'\{"(\w+)"', end))
