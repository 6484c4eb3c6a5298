"""What sessions contribute to a call: each its watch, and how several of them are asked, shown and told together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

from agent_cache.core.store import Entry
from agent_cache.engine.call import Call
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.values.canonical import MISSING

__all__ = ["Enter", "Instead", "Leave", "Observe", "Watch", "entrance", "exit_past", "observer"]

Observe = Callable[[Hashable, Entry, Any, float, Mapping[str, Any] | None], Any]
"""Key, entry, value and clock reading of a hit, and its arguments where the tool's loop guard needs them; gives the
value that the caller is to have, or raises.
"""

Enter = Callable[[Call, float], "Instead | None"]
"""Lets a call in by None, at this clock reading, or says what its caller gets instead, or raises."""

Leave = Callable[[Call, Any, BaseException | None, float], "Instead | None"]
"""What a call has come to: its value or its error, and the clock reading. Says what the caller gets instead; None if
that stands.
"""


class Instead(NamedTuple):
    """What a caller gets instead of what it has asked for.

    Attributes:
        answer: the value.
        outcome: how the trace calls it.
        kind: the loop or the budget that is behind it.
    """

    answer: Any
    outcome: str
    kind: str


class Watch(Protocol):
    """What a session contributes to the calls of one operation: a gate before, an observation after. All synchronous.

    `ask` refuses a call by raising, or answers it, or lets it go on by None; it counts nothing, and is given the answer
    of a hit. `admit` lets a miss or a write in; given the clock reading, it asks first. `hit` sees a local hit, which
    is over when it is seen, and refuses it likewise or gives another answer; `see` is the same of a hit that was asked
    about. `done` sees how a call that was let in has ended, and may give another answer, or raise. `blocked` is told of
    a call that another session has refused, `answered` of a hit that got another answer: it counts as a hit all the
    same. `has_refused` knows the errors that it has raised.
    """

    hit: Observe
    see: Observe

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Instead | None: ...
    def admit(self, call: Call, now: float | None = None) -> Instead | None: ...
    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Instead | None: ...
    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None: ...
    def answered(self) -> None: ...
    def has_refused(self, error: Exception) -> bool: ...


def entrance(watches: tuple[Watch, ...]) -> Enter | None:
    """What lets a call in: the session itself where there is just one; else all, once all have been asked. None where
    nobody watches.
    """
    if len(watches) < 2:
        return watches[0].admit if watches else None

    def enter(call: Call, now: float) -> Instead | None:
        instead = _ask(watches, call.key, now, call)
        if instead is None:
            for watch in watches:
                watch.admit(call)
        return instead

    return enter


def exit_past(watches: tuple[Watch, ...]) -> Leave | None:
    """What sees how a call that was let in has ended: every session, also if one of them stops the run over it."""
    if len(watches) < 2:
        return watches[0].done if watches else None

    def leave(call: Call, value: Any, error: BaseException | None, now: float) -> Instead | None:
        last: Instead | None = None
        stopped: AgentLoopDetectedError | None = None
        for watch in watches:
            try:
                last = watch.done(call, value, error, now) or last
            except AgentLoopDetectedError as loop:
                stopped = stopped or loop
        if stopped is not None:
            raise stopped
        return last

    return leave


def observer(watches: tuple[Watch, ...]) -> Observe:
    """What sees each local hit: the session itself where there is just one; else all, once all have been asked."""
    if len(watches) == 1:
        return watches[0].hit

    def observe(key: Hashable, entry: Entry, value: Any, now: float, arguments: Mapping[str, Any] | None = None) -> Any:
        instead = _ask(watches, key, now, cached=value)
        if instead is not None:
            for watch in watches:
                watch.answered()
            return instead.answer
        for watch in watches:
            try:
                value = watch.see(key, entry, value, now, arguments)
            except AgentLoopDetectedError as loop:
                _tell(watches, watch, key, now, type(loop).__name__, loop.kind)
                raise
        return value

    return observe


def _ask(
    watches: tuple[Watch, ...], key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING
) -> Instead | None:
    for watch in watches:
        try:
            instead = watch.ask(key, now, call, cached)
        except AgentLoopDetectedError as loop:
            _tell(watches, watch, key, now, type(loop).__name__, loop.kind)
            raise
        if instead is not None:
            _tell(watches, watch, key, now, instead.outcome, instead.kind)
            return instead
    return None


def _tell(watches: tuple[Watch, ...], by: Watch, key: Hashable, now: float, outcome: str, kind: str) -> None:
    for watch in watches:
        if watch is not by:
            watch.blocked(key, now, outcome, kind)
