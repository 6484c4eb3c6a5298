"""What an option was given, checked at the earliest moment: durations, functions, words, counts."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from agent_cache.errors import ConfigurationError

__all__ = ["checked_choice", "checked_flag", "checked_function", "checked_text", "count", "seconds"]

_LONGEST = 1e15
"""30 million years. What is longer was not meant, and may be more than a float holds."""


def seconds(value: Any, what: str, *, zero: bool = False) -> float:
    """Read a duration: seconds or `timedelta`.

    Args:
        zero: whether 0 is a duration here.

    Raises:
        ConfigurationError: if it is neither, not finite, negative, or 0 where that means nothing.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, got {value!r}")
    if not (number > 0 or (zero and number == 0)) or number > _LONGEST:
        bound = "0 or more" if zero else "more than 0"
        hint = "" if zero else "; leave it out (None) for what never expires"
        raise ConfigurationError(f"{what} must be {bound} seconds, got {value!r}{hint}")
    return float(number)


def checked_function(value: Any, what: str) -> None:
    """A plain function, or None. A coroutine function is refused: its answer is needed at once, and a coroutine is
    true, and hashable by address.
    """
    if value is None:
        return
    if not callable(value):
        raise ConfigurationError(f"{what} must be a function, got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ConfigurationError(f"{what} must be a plain function: its answer is needed at once, got an `async def`")


def checked_choice(value: Any, choices: tuple[str, ...], what: str, or_else: str = "") -> Any:
    """One of a few words; a misspelt one fails at once."""
    if value not in choices:
        allowed = f"one of {', '.join(map(repr, choices))}{f', or {or_else}' if or_else else ''}"
        raise ConfigurationError(f"{what} must be {allowed}, got {value!r}")
    return value


def checked_flag(value: Any, what: str) -> None:
    """True or False, and nothing that only counts as one: ``"off"`` is true."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be True or False, got {value!r}")


def checked_text(value: Any, what: str) -> None:
    """A text with something in it."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text that is not empty, got {value!r}")


def count(bound: int, value: Any, what: str) -> int:
    """A number of things.

    Raises:
        ConfigurationError: if it is none, or below `bound`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"{what} must be a number, {bound} or more, got {value!r}")
    return value
