"""What options mean once they are checked: durations, choices, and which failures leave a write in doubt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError
from tests.harness import library


class Lost(Exception):
    """An exception that the user has named."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def after(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


def ring(cause: BaseException | None = None) -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    other.__cause__ = cause
    return one


ENDS: dict[str, tuple[BaseException, bool]] = {
    "cancelled": (asyncio.CancelledError(), True),
    "interrupted": (KeyboardInterrupt(), True),
    "timeout": (TimeoutError(), True),
    "os error": (OSError(), True),
    "named": (Lost(), True),
    "subclass of a named one": (type("Gone", (Lost,), {})(), True),
    "caused by a timeout": (caused(ValueError(), TimeoutError()), True),
    "after a timeout": (after(ValueError(), TimeoutError()), True),
    "cause of a context": (after(ValueError(), caused(KeyError(), OSError())), True),
    "group with a timeout": (ExceptionGroup("g", [ValueError(), TimeoutError()]), True),
    "group in a group": (ExceptionGroup("g", [ExceptionGroup("h", [Lost()])]), True),
    "base group": (BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()]), True),
    "ring with a timeout in it": (ring(TimeoutError()), True),
    "plain": (ValueError(), False),
    "runtime error": (RuntimeError(), False),
    "caused": (caused(ValueError(), KeyError()), False),
    "group": (ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [KeyError()])]), False),
    "ring": (ring(), False),
    "like a timeout by name": (type("TimeoutError", (Exception,), {})(), False),
}


@pytest.mark.parametrize("name", ENDS)
def test_whether_a_write_that_ended_so_may_still_take_effect(name: str, clock: library.Clock):
    """Then nothing under its tags is stored for a while."""
    error, is_doubtful = ENDS[name]

    @AgentCacheInvalidator("options", doubt=5.0, in_doubt=(Lost,))
    def write() -> None:
        raise error

    @AgentCache("options")
    def read() -> int:
        return 1

    with pytest.raises(type(error)):
        write()
    read()
    assert read.contains() is not is_doubtful
    clock.advance(5.1)
    read()
    assert read.contains()


@pytest.mark.parametrize("ttl", [1, 0.5, timedelta(minutes=1), timedelta(microseconds=500_000)])
def test_a_duration_is_seconds_or_a_timedelta(ttl: Any, clock: library.Clock):
    @AgentCache("options", ttl=ttl)
    def read() -> int:
        return 1

    read()
    lasts = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    clock.advance(0.9 * lasts)
    assert read.contains()
    clock.advance(0.2 * lasts)
    assert not read.contains()
    AgentCacheInvalidator("options", settle=0 * ttl)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        *(-1, float("nan"), float("inf"), float("-inf"), True, "1", Fraction(1), [1], timedelta(seconds=-1)),
        *(pytest.param(10**400, id="more than a float holds"), 0, -0.0, timedelta(0)),
    ],
)
def test_what_is_no_duration_is_refused(value: Any, zero: bool):
    if zero and value in (0, timedelta(0)):
        return
    with pytest.raises(ConfigurationError, match="settle" if zero else "ttl"):
        AgentCacheInvalidator("options", settle=value) if zero else AgentCache("options", ttl=value)
