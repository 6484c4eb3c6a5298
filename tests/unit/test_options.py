"""What options mean once they are checked: durations, choices, and which failures leave a write in doubt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from agent_cache import ConfigurationError
from agent_cache.core.options import WritePolicy, seconds


class Lost(Exception):
    """An exception that the user has named."""


def leaves_in_doubt(error: BaseException) -> bool:
    policy = WritePolicy("global", 0.0, 5.0, (Lost,), (), None, None)
    return policy.leaves_in_doubt(error)


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


DOUBTFUL: dict[str, BaseException] = {
    "cancelled": asyncio.CancelledError(),
    "interrupted": KeyboardInterrupt(),
    "timeout": TimeoutError(),
    "os error": OSError(),
    "named": Lost(),
    "subclass of a named one": type("Gone", (Lost,), {})(),
    "caused by a timeout": caused(ValueError(), TimeoutError()),
    "after a timeout": after(ValueError(), TimeoutError()),
    "cause of a context": after(ValueError(), caused(KeyError(), OSError())),
    "group with a timeout": ExceptionGroup("g", [ValueError(), TimeoutError()]),
    "group in a group": ExceptionGroup("g", [ExceptionGroup("h", [Lost()])]),
    "base group": BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()]),
    "ring with a timeout in it": ring(TimeoutError()),
}
DEFINITE: dict[str, BaseException] = {
    "plain": ValueError(),
    "runtime error": RuntimeError(),
    "caused": caused(ValueError(), KeyError()),
    "group": ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [KeyError()])]),
    "ring": ring(),
    "like a timeout by name": type("TimeoutError", (Exception,), {})(),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_write_that_ended_so_may_still_take_effect(name: str):
    assert leaves_in_doubt(DOUBTFUL[name])


@pytest.mark.parametrize("name", DEFINITE)
def test_a_write_that_ended_so_has_failed(name: str):
    assert not leaves_in_doubt(DEFINITE[name])


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (timedelta(microseconds=1), 1e-6)]
)
def test_a_duration_is_seconds_or_a_timedelta(value: Any, expected: float):
    assert seconds(value, "ttl") == expected
    assert type(seconds(value, "ttl")) is float


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, -0.0, float("nan"), float("inf"), float("-inf"), True, "1", None, Fraction(1), [1]),
        *(timedelta(0), timedelta(seconds=-1)),
        pytest.param(10**400, id="more than a float holds"),
    ],
)
def test_what_is_no_duration_is_refused(value: Any):
    with pytest.raises(ConfigurationError, match="ttl"):
        seconds(value, "ttl")


def test_nothing_is_a_duration_where_that_means_something():
    assert seconds(0, "settle", zero=True) == 0.0
    assert seconds(timedelta(0), "settle", zero=True) == 0.0
    for wrong in (-1, True, float("nan"), timedelta(seconds=-1)):
        with pytest.raises(ConfigurationError, match="settle"):
            seconds(wrong, "settle", zero=True)
