"""Clock, identifiers and chance, recorded and given back. Explicit calls: nothing global is patched."""

from __future__ import annotations

import random as chance
import uuid
from datetime import datetime, timezone, tzinfo

from agent_cache.recording.intercept import taped
from agent_cache.recording.subject import Subject

__all__ = ["now", "random", "uuid4"]


def _env(function):  # type: ignore[no-untyped-def]
    return taped(function, Subject(function, f"agent_cache.recording:{function.__name__}", "env"))


@_env
def now(tz: tzinfo | None = timezone.utc) -> datetime:
    """The time, in UTC if no zone is given; in a replay the time that it was then. None gives local time without zone."""
    return datetime.now(tz)


@_env
def uuid4() -> uuid.UUID:
    """A random identifier; in a replay the one that it was then."""
    return uuid.uuid4()


@_env
def random() -> float:
    """A number from 0 up to 1; in a replay the one that it was then. Not for secrets."""
    return chance.random()  # noqa: S311 - as said
