"""What an outcome has to look like in a file that somebody may have edited."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = ["Failure", "Stream", "check_outcome"]


class Failure(msgspec.Struct):
    """What stands under ``error``: an exception.

    Attributes:
        type: ``module:qualname`` of its class.
        message: its text.
        args: what its constructor was given; ``{"$any": ...}`` where that is no JSON.
        state: its attributes.
        notes: of `BaseException.add_note`.
        cause: what it was raised from.
        group: members of an exception group.
    """

    type: str = ""
    message: str = ""
    args: list[Any] | dict[str, Any] = []
    state: dict[str, Any] = {}
    notes: list[str] = []
    cause: Failure | None = None
    group: list[Failure] = []


class Stream(msgspec.Struct):
    """What stands under ``stream``.

    Attributes:
        chunks: an outcome each.
        end: how it ended.
        plain: whether it was not awaited.
    """

    chunks: list[dict[str, Any]]
    end: dict[str, Any]
    plain: bool = False


class _Rest(msgspec.Struct):
    error: Failure | None = None
    stream: Stream | None = None
    instead: tuple[str, str] | None = None
    loops: list[tuple[str, str, Annotated[int, msgspec.Meta(ge=0)]]] = []
    awaited: bool = False


def check_outcome(outcome: dict[str, Any]) -> None:
    """See that it can be taken apart. Values are looked at by who reads them.

    Raises:
        msgspec.ValidationError: if not, with where in the line.
    """
    rest = msgspec.convert(outcome, _Rest)
    if rest.stream is not None:
        check_outcome(rest.stream.end)
