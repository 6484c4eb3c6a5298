"""Real generators over what has the interface of one, so that breaking off a loop closes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

__all__ = ["relay", "relay_async", "thrown"]


def relay(tap: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A real generator over a tap, so that breaking off a loop closes it."""
    return (yield from tap)


async def relay_async(tap: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """The same for an asynchronous one."""
    step = tap.asend(None)
    while True:
        try:
            chunk = await step
        except StopAsyncIteration:
            return
        try:
            sent = yield chunk
        except GeneratorExit:
            await tap.aclose()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer, and handed on
            step = tap.athrow(error)
        else:
            step = tap.asend(sent)


def thrown(kind: Any, value: Any, traceback: Any) -> Any:
    """What `throw` was given, in either of its spellings."""
    return kind if value is None and traceback is None else value
