"""Clock, identifiers and chance, recorded and given back. Explicit calls: nothing global is patched."""

from __future__ import annotations

import random as chance
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar

from agent_cache.recording.functions import Subject
from agent_cache.recording.intercept import taped

__all__ = ["now", "random", "uuid4"]

F = TypeVar("F", bound=Callable[..., Any])


def _env(function: F) -> F:
    wrapped: F = taped(function, Subject(function, f"agent_cache.recording:{function.__name__}", "env"))
    return wrapped


@_env
def now(tz: tzinfo | None = UTC) -> datetime:
    """The time, in UTC unless told otherwise; in a replay the time of then. None is local time without a zone."""
    return datetime.now(tz)


@_env
def uuid4() -> uuid.UUID:
    """A random identifier; in a replay the one that it was then."""
    return uuid.uuid4()


@_env
def random() -> float:
    """A number from 0 up to 1; in a replay the one that it was then. Not for secrets."""
    return chance.random()  # noqa: S311 - as said
