"""Cached tools that stream are recorded chunk by chunk, and a replay streams without running anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import Cassette, record, replay
from agent_cache.resume import Journal


@dataclass
class Word:
    text: str


class Broken(Exception):
    """What a tool raises."""


class Shop:
    """Streaming tools that count their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.error: BaseException | None = None

        @AgentCache("order:{id}", name="streaming:get")
        async def get(id: str) -> str:
            self.runs.append(f"get {id}")
            return id

        @AgentCache("order:{id}", name="streaming:words")
        async def words(id: str) -> AsyncIterator[Word]:
            self.runs.append(f"words {id}")
            for letter in "abc":
                await asyncio.sleep(0)
                yield Word(letter + await get(id))
            if self.error is not None:
                raise self.error

        @AgentCacheInvalidator("order:{id}", name="streaming:change")
        async def change(id: str) -> AsyncIterator[str]:
            self.runs.append(f"change {id}")
            yield "half"
            if self.error is not None:
                raise self.error
            yield "done"

        @AgentCache("order:{id}", name="streaming:plain_words")
        def plain_words(id: str) -> Iterator[Word]:
            self.runs.append(f"plain {id}")
            for letter in "abc":
                yield Word(letter)

        @AgentCacheInvalidator("order:{id}", name="streaming:plain_change")
        def plain_change(id: str) -> Iterator[str]:
            self.runs.append(f"plain change {id}")
            yield "done"

        self.get, self.words, self.change = get, words, change
        self.plain_words, self.plain_change = plain_words, plain_change


@pytest.fixture
def shop(clock: object) -> Shop:
    return Shop()


async def collected(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def agent(shop: Shop) -> list[Any]:
    """Hits, misses, followers, writes, an early end and an error, and what the session has seen of them."""
    found: list[Any] = []
    async with AgentCacheSession() as session:
        found.append(await collected(shop.words("7")))
        found.append(await collected(shop.words("7")))
        found.append(await collected(shop.change("7")))
        found.append(await asyncio.gather(*(collected(shop.words("7")) for _ in range(3))))
        async with aclosing(shop.words("8")) as stream:
            found.append(await anext(stream))
        shop.error = Broken("no more")
        chunks: list[Any] = []
        try:
            async for chunk in shop.words("9"):
                chunks.append(chunk)
        except Broken as error:
            found.append((chunks, str(error)))
        shop.error = None
        found.append(await collected(shop.words.fresh("7")))
        found.append(traced(session))
    return found


def traced(session: AgentCacheSession) -> list[tuple[str, str, str]]:
    """What the session has seen of the agent's own calls. What tools call does not run in a replay."""
    calls = session.get_execution_trace()
    return [(one.tool, one.source, one.outcome) for one in calls if one.tool != "streaming:get"]


async def test_a_replay_streams_the_same_and_runs_nothing(shop: Shop, path: Path):
    async with record(path):
        recorded = await agent(shop)
    shop.runs.clear()
    shop.words.clear()
    async with replay(path, strict=True) as player:
        replayed = await agent(shop)
    assert replayed == recorded
    assert type(replayed[0][0]) is Word
    assert shop.runs == []
    assert player.remaining == 0


async def test_a_cassette_shows_how_each_stream_was_answered(shop: Shop, path: Path):
    async with record(path):
        await agent(shop)
    calls = [call for call in Cassette.load(path).steps if not call.parent]
    assert [(call.name.partition(":")[2], call.source) for call in calls] == [
        ("words", "miss"),
        ("words", "hit"),
        ("change", "write"),
        ("words", "miss"),
        ("words", "shared"),
        ("words", "shared"),
        ("words", "miss"),
        ("words", "miss"),
        ("words", "miss"),
    ]
    assert calls[2].tags == ["order:7"]
    ends = [call.outcome["stream"]["end"] for call in calls]
    assert ends[6] == {"closed": True}
    assert list(ends[7]) == ["error"]


class Killed(BaseException):
    """The process ends here."""


def journaled(directory: Path, program: Any, **options: Any) -> Any:
    async def run() -> Any:
        async with AgentCacheSession("run", journal=Journal(directory, **options)):
            return await program()

    return asyncio.run(run())


def test_a_journal_answers_whole_streams_and_doubts_a_write_that_was_cut(shop: Shop, tmp_path: Path):
    async def program() -> Any:
        found = [await collected(shop.words("7")), await collected(shop.change("7"))]
        shop.error = kill
        return [*found, await collected(shop.change("8"))]

    kill: BaseException | None = Killed()
    with pytest.raises(Killed):
        journaled(tmp_path, program)
    shop.error, shop.runs[:], kill = None, [], None
    with pytest.raises(InDoubtError):
        journaled(tmp_path, program)
    assert shop.runs == []
    found = journaled(tmp_path, program, on_doubt={"streaming:change": "rerun"})
    assert found == [[Word("a7"), Word("b7"), Word("c7")], ["half", "done"], ["half", "done"]]
    assert shop.runs == ["change 8"]
