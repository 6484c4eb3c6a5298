"""Streams come back chunk by chunk, and end as they ended."""

import asyncio
import gc

import pytest

from agent_cache.recording import ReplayExhausted, intercept, record, replay


class Source:
    """Streams that are switched off once they are recorded."""

    def __init__(self) -> None:
        self.is_on = True
        self.closed: list[str] = []
        source = self

        @intercept(name="words")
        async def words(text: str, fail: bool = False):
            assert source.is_on
            try:
                for word in text.split():
                    await asyncio.sleep(0)
                    yield word
                if fail:
                    raise ConnectionError("cut off", 7)
            finally:
                source.closed.append(text)

        @intercept(name="letters")
        def letters(text: str):
            assert source.is_on
            try:
                got = yield from text
            finally:
                source.closed.append(text)
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
            assert source.is_on
            return Stream(text)

        self.words, self.letters, self.create = words, letters, create


@pytest.fixture
def source() -> Source:
    return Source()


async def test_a_stream_that_was_closed_early_has_no_more_to_say(source, path):
    async def run(count: int) -> list[str]:
        stream, seen = source.words("a b c d"), []
        async for word in stream:
            seen.append(word)
            if len(seen) == count:
                break
        await stream.aclose()
        return seen

    with record(path) as recorder:
        await run(2)
    assert recorder.steps[0].outcome["stream"]["end"] == {"closed": True}
    source.is_on = False
    with replay(path, strict=True):
        assert await run(2) == ["a", "b"]
    with pytest.raises(ReplayExhausted, match="closed after 2 chunks"), replay(path):
        await run(3)


def test_a_plain_generator_is_replayed_with_the_value_it_returns(source, path):
    def run() -> tuple[list[str], int]:
        seen = []

        def outer():
            return (yield from source.letters("xyz"))

        stream = outer()
        while True:
            try:
                seen.append(next(stream))
            except StopIteration as stop:
                return seen, stop.value

    with record(path):
        assert run() == (["x", "y", "z"], 3)
    source.is_on = False
    with replay(path, strict=True):
        assert run() == (["x", "y", "z"], 3)


def test_what_is_sent_into_a_plain_generator_does_not_reach_it(source, path):
    def run() -> list[str]:
        stream = source.letters("xyz")
        return [next(stream), stream.send("a"), next(stream)]

    with record(path):
        assert run() == ["x", "y", "z"]
    source.is_on = False
    with replay(path, strict=True):
        assert run() == ["x", "y", "z"]


async def test_a_stream_object_is_itself_while_it_is_recorded(source, path):
    async def run() -> list[str]:
        async with await source.create("a b") as stream:
            return [word async for word in stream]

    with record(path):
        stream = await source.create("a b")
        assert stream.status == 200
        assert [word async for word in stream] == ["a", "b"]
        await run()
        assert source.closed == ["stream"]
    source.is_on = False
    with replay(path, strict=True):
        assert await run() == ["a", "b"]
        assert await run() == ["a", "b"]


async def test_calls_inside_of_a_stream_are_enclosed_by_it(source, path):
    @intercept(name="inner")
    async def inner(number: int) -> int:
        return number

    @intercept(name="numbers")
    async def numbers():
        for number in range(2):
            yield await inner(number)

    with record(path) as recorder:
        async for number in numbers():
            await inner(number)
    assert [(call.name, call.parent) for call in recorder.steps] == [
        ("numbers", None), ("inner", 1), ("inner", None), ("inner", 1), ("inner", None)
    ]  # fmt: skip
    with replay(path, strict=True):
        async for number in numbers():
            assert await inner(number) == number


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


class Either:
    """As LiteLLM has it: one object for both ways of reading."""

    def __init__(self, count: int = 3) -> None:
        self._numbers = iter(range(count))

    def __iter__(self):
        return self

    def __next__(self) -> int:
        return next(self._numbers)

    def __aiter__(self):
        return self

    async def __anext__(self) -> int:
        for number in self._numbers:
            return number
        raise StopAsyncIteration


class Bare:
    """An iterator that cannot be closed."""

    def __init__(self) -> None:
        self._numbers = iter(range(3))

    def __iter__(self):
        return self

    def __next__(self) -> int:
        return next(self._numbers)


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


async def read(stream) -> list[int]:
    return [one async for one in stream] if hasattr(type(stream), "__aiter__") else list(stream)


@pytest.mark.parametrize("kind", [Either, Bare, Begun, BegunAwaited, lambda: iter([0, 1, 2])])
async def test_whatever_can_be_read_like_a_stream_is_one(kind, path):
    ask = intercept(lambda: kind(), name="ask")
    with record(path):
        assert await read(ask()) == [0, 1, 2]
    with replay(path, strict=True):
        assert await read(ask()) == [0, 1, 2]
