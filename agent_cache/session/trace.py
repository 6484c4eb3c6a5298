"""The trace of a session: its last calls, kept as tuples and read as `TraceRecord` objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

__all__ = ["Trace", "TraceRecord"]


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One call of a session.

    Attributes:
        tool: ``module:qualname``, or its `name=`.
        key: identity of the call: hashable, equal for equal calls of one tool. It is the one argument, or a tuple of
            all, in the form of cache keys: a text stands for itself. Of a write as of a read; None without identity.
        kind: ``"read"`` or ``"write"``.
        source: where the result came from: ``"hit"``, ``"miss"``, ``"shared"``, ``"validated"``, ``"uncached"``,
            ``"write"``, or ``"blocked"`` if the session refused the call.
        outcome: ``"ok"``, ``"cancelled"``, or the class name of the exception.
        started: reading of the monotonic clock when the call began, in seconds; of a hit, when it was answered.
        duration: seconds it took; 0.0 for a hit that no tier was asked for.
        parent: `number` of the call whose tool made this one, or None.
        number: its place among the calls of the session, from 1, in the order in which they began; a blocked call has
            the number of the last call that was admitted.
        is_inner: whether it was made in an inner session, whose trace has it as well.
        etag: of a tool with ``validate=``, a digest of the result: equal for equal results. Else None.
    """

    tool: str
    key: Hashable
    kind: str
    source: str
    outcome: str
    started: float
    duration: float
    parent: int | None
    number: int
    is_inner: bool = False
    etag: str | None = None


class Trace:
    """The last `size` calls.

    `add` takes the fields of a `TraceRecord` by place, as one tuple, in 60 ns instead of 900 ns of the record: nine, or
    of a hit the five that vary. `add_inner` puts a tenth, or a sixth, behind them; with an etag both are there.
    `session.guard` calls them in `hit`, `done` and `_record_refusal`, and `records` tells a hit by the length.
    """

    __slots__ = ("_calls", "add")

    def __init__(self, size: int) -> None:
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=size)
        self.add = self._calls.append

    def add_inner(self, fields: tuple[Any, ...]) -> None:
        self.add((*fields, True))

    def recent_tools(self, count: int) -> tuple[str, ...]:
        """The tools of the last few calls, oldest first."""
        # By place, since another thread may add a call meanwhile, which ends an iteration over a deque by an error.
        calls = self._calls
        return tuple(calls[at][0] for at in range(-min(count, len(calls)), 0))

    def records(self) -> list[TraceRecord]:
        """All records, oldest first."""
        return [TraceRecord(*(_of_hit(*fields) if len(fields) < 8 else fields)) for fields in list(self._calls)]


def _of_hit(tool: str, key: Hashable, started: float, parent: int | None, number: int, *rest: Any) -> tuple[Any, ...]:
    return tool, key, "read", "hit", "ok", started, 0.0, parent, number, *rest
