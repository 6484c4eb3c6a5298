"""A call of a tool as a log tells of it: the one form that every log is read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

__all__ = ["UNKNOWN", "LoggedCall", "Unknown"]


class Unknown(Enum):
    """The type of `UNKNOWN`."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""The result of a call that shows none: the log has none, or a cache answered, or the call failed."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call of a tool.

    Attributes:
        tool: its name in the log.
        arguments: by parameter name, JSON values. A leaf that was redacted is None.
        result: a JSON value; a text that is a JSON object or list is parsed. A leaf that was redacted is None.
            `UNKNOWN` where the log has no result, or one that says nothing about the world: of a call that failed, was
            cancelled, or was answered by a cache.
        error: what it raised, as ``"TypeName: text"``. None where it answered.
        started: when it began, in Unix seconds. None where the log does not say.
        ended: when it ended, in Unix seconds. None where the log does not say. Not before `started`.
        run: of which run it is a part.
        kind: what the log says that the tool is. None where it says nothing.
        hints: the annotations of MCP, where the log has them: ``{"readOnlyHint": True}``.
        duration: seconds.
        cost: US dollars.
        is_parsed: whether the result stood in the log as a text, which was parsed.
        is_keyed: whether the arguments tell this call from others. False where they are missing, cut off or redacted:
            then no other call is the same call.
        is_whole: whether the result is complete. False where a part of it was redacted: then another answer proves a
            change, and an equal one proves nothing.
        is_from_cache: whether a cache answered it, so that it shows nothing of the world.
        encloses: whether other calls of the log were made inside of it, as of an agent's own handler.
    """

    tool: str
    arguments: dict[str, Any]
    result: Any = UNKNOWN
    error: str | None = None
    started: float | None = None
    ended: float | None = None
    run: str = ""
    kind: Literal["read", "write"] | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)
    duration: float | None = None
    cost: float | None = None
    is_parsed: bool = False
    is_keyed: bool = True
    is_whole: bool = True
    is_from_cache: bool = False
    encloses: bool = False
