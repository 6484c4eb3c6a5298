"""What a function of the user's raises, or a tier that was closed, fails no call: the call goes on without it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    LoopHints,
    RemotePolicy,
    bypass,
    configure,
    get_metrics,
    recommendations,
    tags_from,
    writing,
)
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.gates import Gate, idle, started


class Wordless(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError


def failing(*_: Any) -> Any:
    raise Wordless


def failing_at(number: int) -> Any:
    """Copies a list, but for the copy of this number."""
    copies = itertools.count(1)
    return lambda value: failing() if next(copies) == number else [*value]


async def test_a_hit_whose_copy_fails_is_loaded_anew(caplog: pytest.LogCaptureFixture):
    runs = itertools.count()

    @AgentCache("order", copy=failing_at(3), name="copied")
    async def read() -> list[int]:
        return [next(runs)]

    assert [await read() for _ in range(4)] == [[0], [0], [1], [1]]
    assert [text for text in caplog.messages if "loaded anew" in text and "(Wordless)" in text], "by its class"


async def test_a_stream_whose_chunks_cannot_be_copied_to_be_stored_is_given_to_its_caller():
    @AgentCache("order", copy=failing_at(2))
    async def read() -> AsyncIterator[list[int]]:
        yield [1]

    for is_stored in (False, True):
        assert [chunk async for chunk in read()] == [[1]]
        assert read.contains() is is_stored


async def test_who_waits_for_a_result_that_cannot_be_copied_for_him_runs_the_tool():
    gate = Gate()

    @AgentCache("order", copy=failing_at(2))
    async def read() -> list[int]:
        return [await gate()]

    leader, follower = await started(read()), await started(read())
    gate.calls[0].returns(1)
    assert await leader == [1]
    await idle()
    gate.calls[1].returns(2)
    assert await follower == [2]


async def test_a_write_whose_ok_raises_was_successful(clock: library.Clock, caplog: pytest.LogCaptureFixture):
    @AgentCache("order", name="read")
    async def read() -> int:
        return 1

    @AgentCacheInvalidator("order", ok=failing, settle=10, name="paid")
    async def pay() -> str:
        return "paid"

    assert await pay() == "paid"
    await read()
    assert not read.contains(), "so what it settles is not kept"
    clock.advance(10)
    await read()
    assert read.contains()
    assert "ok= raised" in caplog.text


async def test_tags_that_cannot_be_computed_leave_a_result_out_and_a_middleware_sees_their_root():
    seen = []

    async def watch(call: Any, proceed: Any) -> Any:
        answer = await proceed()
        seen.append((repr(call), call.tags))
        return answer

    @AgentCache(tags_from("order", failing), name="shop:read")
    async def read() -> int:
        return 1

    assert await read.set(7) is False
    with configure(middleware=[watch]):
        assert await read() == 1
    assert seen == [("<ToolCall of shop:read>", ("order",))]


async def test_an_outcome_key_that_raises_says_nothing_of_a_ttl(clock: library.Clock):
    @AgentCache("order", ttl=10, loop=LoopHints(outcome_key=failing), name="read")
    async def read() -> int:
        clock.advance(1)
        return 1

    for _ in range(3):
        await read()
        clock.advance(20)
    assert get_metrics()["misses"] == 3
    assert not [one for one in recommendations() if one.tool == "read" and one.ttl is not None]


# Calls without identity


async def test_a_call_without_identity_is_nowhere():
    @AgentCache("order", name="read")
    async def read(filters: dict[str, Any]) -> int:
        return 1

    given = {"by": object.__new__(type("Unweak", (), {"__slots__": ()}))}
    assert await read(given) == 1
    assert get_metrics()["uncached"] == 1
    assert [read.contains(given), await read.set(7, given), await read.invalidate(given)] == [False] * 3


# Tiers that were closed, or have come


async def test_a_tier_that_drops_nothing_keeps_no_answer_here(caplog: pytest.LogCaptureFixture):
    tier = FaultyTier(MemoryTier(MemoryServer()))
    tier.fail("discard", OSError("gone"))

    @AgentCache("order:{number}", remote_cache=tier, name="read")  # type: ignore[arg-type]  # it wraps one
    async def read(number: int) -> int:
        return number

    await read(7)
    assert await read.invalidate(7), "it was there"
    assert not read.contains(7)
    assert "discarding in FaultyTier failed (OSError: gone)" in caplog.text


async def test_a_tier_that_comes_while_a_write_runs_hears_of_its_end():
    server, gate = MemoryServer(), Gate()
    other = MemoryTier(server)

    @AgentCache("order:{number}", remote_cache=other, name="there")
    async def there(number: int) -> int:
        return number

    @AgentCacheInvalidator("order:{number}", name="pay")
    async def pay(number: int) -> None:
        await gate()

    await there(7)
    paying = await started(pay(7))
    with configure(remote=MemoryTier(server)):
        gate.calls[0].returns(None)
        await paying
        assert not there.contains(7)


def test_a_def_drops_its_answer_in_a_tier():
    @AgentCache("order:{number}", remote_cache=MemoryTier(MemoryServer()), name="read")
    def read(number: int) -> int:
        return number

    read(7)
    assert read.invalidate(7)
    assert not read.contains(7)


@pytest.mark.parametrize(
    ("scope", "remote"), [("session", RemotePolicy(share=True)), ("global", RemotePolicy(flight="fleet"))]
)
async def test_what_has_no_effect_without_a_tier_says_so(scope: Any, remote: Any, caplog: pytest.LogCaptureFixture):
    @AgentCache("order", scope=scope, remote=remote, name="read")
    async def read() -> int:
        return 1

    async with AgentCacheSession():
        await read()
    assert "has no effect without a remote tier" in caplog.text


# Sessions


async def test_each_session_sees_a_loop_that_ends_the_run():
    @AgentCache("order", cache_if=lambda answer: False, name="read")
    async def read() -> str:
        return "the same"

    async with AgentCacheSession() as outer:
        with pytest.raises(AgentLoopDetectedError):
            async with AgentCacheSession(max_tool_repeats=3):
                for _ in range(20):
                    await read()
    assert len(outer.get_execution_trace()) == outer.get_metrics()["misses"] > 2


async def test_a_result_for_another_session_is_not_stored_in_a_write_of_one():
    @AgentCache("order:{number}", name="read")
    async def read(number: int) -> int:
        return number

    @AgentCacheInvalidator("order:{number}", scope="session", name="pay")
    async def pay(number: int) -> None:
        assert await read.set(8, number) is False

    async with AgentCacheSession():
        await read(7)
        await pay(7)
        assert not read.contains(7), "what was there is older than what was given"


async def test_bypass_in_a_recording_is_recorded_and_stored_nowhere(tmp_path: Any):
    from agent_cache.recording import record, replay

    @AgentCache("order", name="read")
    async def read() -> int:
        return 1

    with record(tmp_path / "run.jsonl"), bypass():
        assert [await read(), await read()] == [1, 1]
    assert not read.contains()
    with replay(tmp_path / "run.jsonl") as played, bypass():
        assert [await read(), await read()] == [1, 1]
    assert played.remaining == 0


# Bounds


async def test_what_a_write_has_ended_makes_room_before_what_counts():
    @AgentCache("item:{number}", name="read")
    async def read(number: int) -> str:
        return f"{number}" * 3_000

    with configure(max_bytes=8_000):
        await read(1)
        await read(2)
        async with writing("item:2"):
            pass
        await read(3)
        assert [read.contains(number) for number in (1, 2, 3)] == [True, False, True]


# Streams


async def test_chunks_that_are_given_have_copies_of_their_own():
    @AgentCache("log", copy=lambda chunk: [*chunk], max_stream_bytes=1_000, name="lines")
    async def lines(size: int) -> Any:
        for _ in range(size):
            yield [0]

    with pytest.raises(TypeError, match="sequence of chunks of lines, not a str"):
        await lines.set("abc", 2)
    assert await lines.set([[1], [2]], 2)
    first = [chunk async for chunk in lines(2)]
    first[0].append(3)
    assert [chunk async for chunk in lines(2)] == [[1], [2]]
    assert len([chunk async for chunk in lines.fresh(2)]) == 2
    assert [chunk async for chunk in lines(2)] == [[0], [0]]


async def test_a_fresh_stream_that_is_too_long_drops_what_is_older():
    sizes = iter([1, 5_000])

    @AgentCache("log", max_stream_bytes=1_000, name="lines")
    async def lines() -> Any:
        for _ in range(next(sizes)):
            yield "line"

    assert len([line async for line in lines()]) == 1
    assert lines.contains()
    assert len([line async for line in lines.fresh()]) == 5_000
    assert not lines.contains()
