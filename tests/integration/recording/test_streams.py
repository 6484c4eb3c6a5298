"""Streams come back chunk by chunk, and end as they ended: of functions, of clients, and of cached tools."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import Cassette, ReplayExhausted, intercept, record, replay
from agent_cache.resume import Journal


class Source:
    """Streams that are switched off once they are recorded."""

    def __init__(self, stage) -> None:
        self.closed: list[str] = []
        source = self

        @intercept(name="words")
        async def words(text: str):
            stage.real()
            for word in text.split():
                await asyncio.sleep(0)
                yield word

        @intercept(name="letters")
        def letters(text: str):
            stage.real()
            got = yield from text
            return len(text) if got is None else got

        class Stream:
            """As an SDK's: awaited for, then iterated over, with attributes of its own."""

            status = 200

            def __init__(self, text: str) -> None:
                self._words = iter(text.split())

            def __aiter__(self):
                return self

            async def __anext__(self) -> str:
                for word in self._words:
                    return word
                raise StopAsyncIteration

            async def close(self) -> None:
                source.closed.append("stream")

        @intercept(name="create")
        async def create(text: str) -> Stream:
            stage.real()
            return Stream(text)

        self.words, self.letters, self.create = words, letters, create


@pytest.fixture
def source(stage) -> Source:
    return Source(stage)


async def test_a_stream_that_was_closed_early_has_no_more_to_say(source, stage, path):
    async def run(count: int) -> list[str]:
        seen = []
        async with aclosing(source.words("a b c d")) as stream:
            async for word in stream:
                seen.append(word)
                if len(seen) == count:
                    break
        return seen

    assert await stage.twice(lambda: run(2)) == ["a", "b"]
    assert Cassette.load(path)[0].outcome["stream"]["end"] == {"closed": True}
    late = pytest.raises(ReplayExhausted, match="closed after 2 chunks")
    with late, replay(path), contextlib.suppress(ReplayExhausted):  # it is raised again at the end
        await run(3)


async def test_a_plain_generator_is_replayed_with_the_value_it_returns_and_is_sent_nothing(source, stage):
    def run() -> list[Any]:
        def outer():
            return (yield from source.letters("xyz"))

        sent, seen, stream = source.letters("abc"), [], outer()
        seen += [next(sent), sent.send("ignored"), next(sent)]
        while True:
            try:
                seen.append(next(stream))
            except StopIteration as stop:
                return [*seen, stop.value]

    assert await stage.twice(run) == ["a", "b", "c", "x", "y", "z", 3]


async def test_a_generator_that_has_become_asynchronous_is_replayed_and_one_that_is_none_any_more(path):
    def plain(text: str):
        yield from text

    async def awaited(text: str):
        for letter in text:
            yield letter

    async def run(function: Any) -> list[str]:
        stream = intercept(function, name="letters")("abc")
        return [one async for one in stream] if function is awaited else list(stream)

    for before, now in ((plain, awaited), (awaited, plain)):
        with record(path):
            await run(before)
        with replay(path, strict=True):
            assert await run(now) == ["a", "b", "c"]


async def test_a_stream_object_is_itself_while_it_is_recorded(source, stage):
    async def run() -> list[str]:
        async with await source.create("a b") as stream:
            assert not stage.is_live or stream.status == 200
            return [word async for word in stream]

    assert await stage.twice(run) == ["a", "b"]
    assert source.closed == ["stream"]


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_stream_that_is_left_in_the_middle_is_closed_there(source, path, is_awaited):
    """Without a word: neither generator nor iterator tell their caller to close them."""
    with record(path) as recorder:
        if is_awaited:
            stream = await source.create("a b c")
            assert await anext(stream) == "a"
        else:
            stream = intercept(lambda: iter("abc"), name="plain")()
            assert next(stream) == "a"
        del stream
        gc.collect()
        assert recorder.steps[0].outcome["stream"]["end"] == {"closed": True}


class Bare:
    """An iterator that cannot be closed."""

    def __init__(self) -> None:
        self._numbers = iter(range(3))

    def __iter__(self):
        return self

    def __next__(self) -> int:
        return next(self._numbers)


class Either(Bare):
    """As LiteLLM has it: one object for both ways of reading."""

    def __aiter__(self):
        return self

    async def __anext__(self) -> int:
        for number in self._numbers:
            return number
        raise StopAsyncIteration


class Begun:
    """Something to iterate over, which is no iterator, and is closed."""

    def __iter__(self):
        return iter(range(3))

    def close(self) -> None: ...


class BegunAwaited:
    async def __aiter__(self):
        for number in range(3):
            yield number

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("kind", [Either, Bare, Begun, BegunAwaited, lambda: iter([0, 1, 2])])
async def test_whatever_can_be_read_like_a_stream_is_one(kind, stage):
    @intercept(name="ask")
    def ask():
        stage.real()
        return kind()

    async def run() -> list[int]:
        stream = ask()
        return [one async for one in stream] if hasattr(type(stream), "__aiter__") else list(stream)

    assert await stage.twice(run) == [0, 1, 2]


# Cached tools that stream


@dataclass
class Word:
    text: str


class Broken(Exception):
    """What a tool raises."""


class Killed(BaseException):
    """The process ends here."""


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

        @AgentCache("order:{id}", name="streaming:plain_words")
        def plain_words(id: str) -> Iterator[Word]:
            self.runs.append(f"plain {id}")
            yield from map(Word, "abc")

        @AgentCacheInvalidator("order:{id}", name="streaming:change")
        async def change(id: str) -> AsyncIterator[str]:
            self.runs.append(f"change {id}")
            yield "half"
            if self.error is not None:
                raise self.error
            yield "done"

        self.words, self.plain_words, self.change = words, plain_words, change


@pytest.fixture
def shop(clock: object) -> Shop:
    return Shop()


async def collected(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def agent(shop: Shop) -> list[Any]:
    """Hits, misses, followers, writes, an early end and an error, and what the session has seen of them."""
    found: list[Any] = []
    async with AgentCacheSession() as session:
        for make in (shop.words, shop.words, shop.change):
            found.append(await collected(make("7")))
        found.append(await asyncio.gather(*(collected(shop.words("7")) for _ in range(3))))
        async with aclosing(shop.words("8")) as stream:
            found.append(await anext(stream))
        shop.error = Broken("no more")
        with pytest.raises(Broken, match="no more"):
            async for chunk in shop.words("9"):
                found.append(chunk)
        shop.error = None
        found += [await collected(shop.words.fresh("7")), list(shop.plain_words("7")), list(shop.plain_words("7"))]
        # What tools call does not run in a replay.
        trace = [one for one in session.get_execution_trace() if one.tool != "streaming:get"]
    return [*found, [(one.tool, one.source, one.outcome) for one in trace]]


async def test_a_replay_of_tools_that_stream_sees_and_traces_the_same_and_runs_nothing(shop: Shop, path: Path):
    async with record(path):
        recorded = await agent(shop)
    shop.runs.clear()
    shop.words.clear()
    shop.plain_words.clear()
    async with replay(path, strict=True):
        replayed = await agent(shop)
    assert replayed == recorded
    assert (type(replayed[0][0]), shop.runs) == (Word, [])
    calls = [call for call in Cassette.load(path).steps if not call.parent]
    assert [(call.name.partition(":")[2], call.source) for call in calls] == [
        ("words", "miss"), ("words", "hit"), ("change", "write"), ("words", "miss"), ("words", "shared"),
        ("words", "shared"), ("words", "miss"), ("words", "miss"), ("words", "miss"), ("plain_words", "miss"),
        ("plain_words", "hit"),
    ]  # fmt: skip
    assert calls[2].tags == ["order:7"]
    assert [list(call.outcome["stream"]["end"]) for call in calls[6:8]] == [["closed"], ["error"]]


def test_a_journal_answers_whole_streams_and_doubts_a_write_that_was_cut(shop: Shop, tmp_path: Path):
    async def program() -> Any:
        found = [await collected(shop.words("7")), await collected(shop.change("7"))]
        shop.error = kill
        return [*found, await collected(shop.change("8"))]

    def journaled(**options: Any) -> Any:
        async def run() -> Any:
            async with AgentCacheSession("run", journal=Journal(tmp_path, **options)):
                return await program()

        return asyncio.run(run())

    kill: BaseException | None = Killed()
    with pytest.raises(Killed):
        journaled()
    shop.error, shop.runs[:], kill = None, [], None
    with pytest.raises(InDoubtError):
        journaled()
    assert shop.runs == []
    found = journaled(on_doubt={"streaming:change": "rerun"})
    assert found == [[Word("a7"), Word("b7"), Word("c7")], ["half", "done"], ["half", "done"]]
    assert shop.runs == ["change 8"]
