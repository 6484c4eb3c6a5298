"""How a call is answered or run, by what it is: awaited, plain, or a stream."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import Token
from typing import Any

from agent_cache.errors import CassetteError
from agent_cache.recording.deadlines import until_cancelled
from agent_cache.recording.failures import raised_from
from agent_cache.recording.frame import FRAME, Frame
from agent_cache.recording.streams import is_stream, played_stream, recorded_stream

__all__ = ["perform", "perform_now"]


async def perform(frame: Frame, proceed: Callable[[], Awaitable[Any]]) -> Any:
    """Answer an awaited call from the recording, or run it and write down what it came to."""
    if frame.recorded is not None:
        return await _answer(frame)
    token = FRAME.set(frame)
    try:
        value = await proceed()
    except BaseException as error:
        frame.tape.raised(frame, error)
        raise
    finally:
        _reset(token)
    if is_stream(value):
        return recorded_stream(frame, value)
    frame.tape.returned(frame, value)
    return value


def perform_now(frame: Frame, proceed: Callable[[], Any]) -> Any:
    """The same for a plain call. What it returns may be awaited later: then that is what it comes to."""
    if frame.recorded is not None:
        return _answer_later(frame) if frame.recorded.outcome.get("awaited") else _answer_now(frame)
    token = FRAME.set(frame)
    try:
        value = proceed()
    except BaseException as error:
        frame.tape.raised(frame, error)
        raise
    finally:
        _reset(token)
    if hasattr(type(value), "__await__"):
        return _awaiting(frame, value)
    if is_stream(value):
        return recorded_stream(frame, value)
    frame.tape.returned(frame, value)
    return value


async def _answer(frame: Frame) -> Any:
    recorded, tape = frame.recorded, frame.tape
    assert recorded is not None
    outcome = recorded.outcome
    try:
        if recorded.source != "hit":
            await _turn()  # as the run did: it lets others run, and notices that it was cancelled
        if "stream" in outcome:
            return played_stream(frame)
        if "cancelled" in outcome or "unfinished" in outcome:
            await _cancelled_again(frame)
        if "error" in outcome:
            error = raised_from(outcome["error"], frame.subject.module)
            tape.retold(frame, None, error)
            raise error
        value = tape.read(frame, outcome)
        if frame.taped is not None:
            tape.retold(frame, value, None)
        return value
    finally:
        if "stream" not in outcome:
            tape.played(frame)


def _answer_now(frame: Frame) -> Any:
    recorded, tape = frame.recorded, frame.tape
    assert recorded is not None
    outcome = recorded.outcome
    if "stream" in outcome:
        return played_stream(frame)
    try:
        if "cancelled" in outcome or "unfinished" in outcome:
            assert tape.player is not None
            raise tape.player.latch(
                CassetteError(
                    f"{recorded.name} had not ended when the recording did",
                    tape.player.cassette.path,
                    (frame.index or 0) + 2,
                )
            )
        if "error" in outcome:
            raise raised_from(outcome["error"], frame.subject.module)
        return tape.read(frame, outcome)
    finally:
        tape.played(frame)


async def _answer_later(frame: Frame) -> Any:
    return await _answer(frame)


async def _awaiting(frame: Frame, value: Awaitable[Any]) -> Any:
    """What a plain function returned, to be awaited: the call is over when that is."""
    frame.is_awaited = True

    async def wait() -> Any:
        return await value

    return await perform(frame, wait)


async def _cancelled_again(frame: Frame) -> None:
    try:
        await until_cancelled(frame)
    except asyncio.CancelledError as error:
        frame.tape.retold(frame, None, error)
        raise


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """`asyncio.sleep(0)` without its own frame."""
    yield


def _reset(token: Token[Frame | None]) -> None:
    try:
        FRAME.reset(token)
    except ValueError:
        pass  # closed by the garbage collector, in another context than it ran in
