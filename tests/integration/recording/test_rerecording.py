"""A recording of a run that does the same again is the same file, and a changed run changes the lines of that alone."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_cache.recording import Cassette, DivergenceError, fork, intercept, record, replay


@intercept(name="ask")
async def ask(question: str) -> str:
    for _ in range(World.latency.get(question, 1)):
        await asyncio.sleep(0)
    return World.answers.get(question, question + "?")


class World:
    latency: dict[str, int] = {}
    answers: dict[str, str] = {}


@pytest.fixture(autouse=True)
def unchanged_world():
    World.latency, World.answers = {}, {}


async def in_turn(*questions: str) -> None:
    for question in questions:
        await ask(question)


async def agents() -> None:
    """Two agents at once between two questions of the main one; the second has two of its own."""

    async def team() -> None:
        await ask("b1")
        await asyncio.gather(in_turn("c1", "c2"), in_turn("d1", "d2"))
        await ask("b2")

    await ask("first")
    await asyncio.gather(in_turn("a1", "a2", "a3"), team())
    await ask("last")


async def lines_of(path: Path, run: Callable[[], Awaitable[object]] = agents) -> list[bytes]:
    with record(path):
        await run()
    return path.read_bytes().splitlines(keepends=True)


LATENCIES = [{}, {"a1": 9, "c1": 5}, {"a1": 3, "b1": 7, "d1": 4, "d2": 8}, {"a2": 20, "c2": 12, "b2": 2}]


@pytest.mark.parametrize("latency", LATENCIES[1:])
async def test_the_lines_do_not_depend_on_how_long_calls_take_and_a_changed_answer_changes_its_line(latency, tmp_path):
    one = await lines_of(tmp_path / "one.jsonl")
    World.latency = latency
    other = await lines_of(tmp_path / "other.jsonl")
    assert one[1:-1] == other[1:-1]
    World.answers = {"c1": "something else"}
    changed = await lines_of(tmp_path / "other.jsonl")
    [line] = [old for old, new in zip(one[1:-1], changed[1:-1], strict=True) if old != new]
    assert json.loads(line)["arguments"]["question"] == "c1"
    assert [json.loads(line)["arguments"]["question"] for line in one[1:-1]] == [
        "first", "a1", "a2", "a3", "b1", "c1", "c2", "d1", "d2", "b2", "last"
    ]  # fmt: skip


async def test_which_task_makes_the_first_call_makes_no_difference_to_a_file_that_is_there(path):
    async def late(cycles: int, *questions: str) -> None:
        for _ in range(cycles):  # a call that is not recorded
            await asyncio.sleep(0)
        await in_turn(*questions)

    async def run(*cycles: int) -> None:
        names = ["a", "b", "c"]
        await asyncio.gather(*(late(count, name, "same") for count, name in zip(cycles, names, strict=True)))
        await ask("last")

    before = await lines_of(path, lambda: run(0, 1, 2))
    assert await lines_of(path, lambda: run(5, 3, 0)) == before
    World.answers = {"last": "new"}
    after = await lines_of(path, lambda: run(2, 0, 4))
    assert len([old for old, new in zip(before[1:-1], after[1:-1], strict=True) if old != new]) == 1
    Cassette.load(path).save(path)
    assert path.read_bytes().splitlines(keepends=True) == after


@pytest.mark.parametrize(("mode", "end"), [("rewrite", "\n"), ("all", "\r\n"), ("new_episodes", "\n")])
async def test_an_equal_run_leaves_the_file_untouched_also_with_the_ends_of_lines_that_git_made(mode, end, path):
    before = [line.replace(b"\n", end.encode()) for line in await lines_of(path)]
    path.write_bytes(b"".join(before))
    os.utime(path, (1, 1))
    World.latency = LATENCIES[1]
    with record(path, mode=mode) as recorder:
        await agents()
    assert path.read_bytes().splitlines(keepends=True) == before
    assert path.stat().st_mtime == 1
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is left beside it"
    assert len(recorder.cassette) == 11


@dataclass
class Found:
    z: dict[str, set[int]]
    a: frozenset[tuple[int, str]]


@pytest.mark.parametrize("hint", [Found, Any])
async def test_the_order_of_a_set_which_chance_decides_changes_no_line(hint, path):
    def find() -> Any:
        numbers = members.pop()
        found = {"z": {"b": {*numbers}, "a": set()}, "a": frozenset((one, "x") for one in numbers)}
        return Found(**found) if hint is Found else found

    async def run() -> None:
        seen.append(intercept(find, name="find")())

    find.__annotations__["return"] = hint
    members: list[tuple[int, ...]] = [(8, 0, 16), (0, 16, 8), (16, 8, 0)]  # which have one hash in a small set
    seen: list[Any] = []
    before = await lines_of(path, run)
    for _ in range(2):
        assert await lines_of(path, run) == before
    assert len({*map(repr, seen)}) > 1
    with replay(path):
        await run()
    assert seen[0] == seen[-1]
    found = vars(seen[-1]) if hint is Found else seen[-1]
    assert [*found, *found["z"]] == ["z", "a", "b", "a"], "a dict has an order"


async def test_what_a_run_does_to_its_answers_is_neither_written_nor_answered_once_more(path):
    @intercept(name="tell")
    def tell() -> dict[str, list[str]]:
        return {"words": ["a"]}

    @intercept(name="words")
    async def words():
        yield {"word": "a", "usage": [3]}

    async def run() -> dict[str, list[str]]:
        answer = tell()
        answer["words"].append("b")
        async for chunk in words():
            chunk.pop("usage")
        return answer

    before = await lines_of(path, run)
    with record(path, mode="new_episodes"):
        await run()
        await ask("more")
    assert path.read_bytes().splitlines(keepends=True)[1:-2] == before[1:-1]
    original = Cassette.load(path)
    for number in range(2):
        with fork(original, at=3, to=path.with_name(f"{number}.jsonl")):
            assert await run() == {"words": ["a", "b"]}


async def test_a_killed_recording_has_its_calls_as_they_ended(path, tmp_path):
    World.latency = {"a1": 9}
    partial, copy = path.with_name(path.name + ".partial"), tmp_path / "copy.jsonl"
    with record(path):
        await asyncio.gather(in_turn("a1", "a2"), in_turn("b1", "b2"))
        copy.write_bytes(partial.read_bytes())
    calls = [json.loads(line) for line in copy.read_bytes().splitlines()[1:]]
    assert [call["arguments"]["question"] for call in calls] == ["b1", "b2", "a1", "a2"]
    assert [(call["id"], call.get("after", 0)) for call in calls] == [(2, 0), (3, 2), (1, 0), (4, 1)]
    assert all(call["duration_ms"] for call in calls)
    killed = Cassette.load(copy)
    assert killed.is_partial
    killed.save(tmp_path / "saved.jsonl")
    assert (tmp_path / "saved.jsonl").read_bytes() == copy.read_bytes()
    with replay(copy, strict=True):
        await asyncio.gather(in_turn("a1", "a2"), in_turn("b1", "b2"))
    with pytest.raises(DivergenceError, match="too early"), replay(copy, strict=True):
        await asyncio.gather(in_turn("a2", "a1"), in_turn("b1", "b2"))


async def test_what_a_kept_call_encloses_overlaps_as_it_did(path):
    @intercept(name="words")
    async def words():
        yield "a"
        yield "b"

    @intercept(name="team")
    async def team() -> None:
        stream = words()
        await anext(stream)
        await in_turn("one", "two")
        await stream.aclose()
        await asyncio.gather(in_turn("x1", "x2"), in_turn("y1", "y2"))

    async def run() -> None:
        await team()
        await ask("later")

    before = await lines_of(path, run)
    events = Cassette.load(path).outline.events()
    with record(path, mode="new_episodes"):
        await run()
        await ask("more")
    assert path.read_bytes().splitlines(keepends=True)[1:-2] == before[1:-1]
    assert Cassette.load(path).outline.events()[:-2] == events
