"""Finds logs whose runs begin anew: a later run shows what a read answered before a write of an earlier run.

In such a log, a read that is equal before and after a write may be equal because the world was reset, not because the
write is harmless. Three sights of one read show a reset: an answer that a run saw before it wrote anything; another one
that a run saw after a write of its own; and in a later run, which has not written anything yet, the first one again.

Writes in between explain it if they name a value among the arguments of the read, or name nothing, or if the run that
saw the change goes on with what its own writes returned (a charge that is refunded, a note that is deleted). What
changes by itself is left out: tools whose answers changed within one run without a write. Where runs share one state,
they find what others have changed: then there is no reset, unless these are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.paths import answer_digest, is_failure
from agent_cache.advise.tag_rules import Resets
from agent_cache.core.keys import Uncacheable, key_part

__all__ = ["ResetFinder"]

_LEAST: Final = 2
"""One answer that went back may have been put back by somebody else."""
_TIMES_AS_MANY: Final = 3
"""Resets must be more than this many times the answers that lasted into another run."""
_MAX_READS: Final = 100_000
_MAX_VALUES: Final = 500_000
_MAX_OF_CALL: Final = 200


@dataclass(slots=True)
class _Seen:
    """What is known of one read.

    Attributes:
        names: the values among its arguments.
        first: the answer that a run saw before it wrote anything.
        changed: the call of a run that saw another one after a write of its own.
        changed_to, changed_at: its answer, and its position.
        last, last_run, last_at: the last answer, by whom, and where.
    """

    names: tuple[str, ...]
    first: bytes | None = None
    changed: LoggedCall | None = None
    changed_to: bytes = b""
    changed_at: int = 0
    last: bytes = b""
    last_run: str = ""
    last_at: int = -1


class ResetFinder:
    """Is given the calls of a log in their order, and says whether its runs begin anew.

    Args:
        writers: the tools that may write.
        readers: the tools that may read.
    """

    def __init__(self, writers: Iterable[str], readers: Iterable[str]) -> None:
        self._writers, self._readers = frozenset(writers), frozenset(readers)
        self._seen: dict[tuple[str, Any], _Seen] = {}
        self._at = 0
        self._written_at = -1
        self._unnamed_at = -1
        self._named_at: dict[str, int] = {}
        self._made: dict[str, set[str]] = {}
        self._went_on_at: dict[str, int] = {}
        self._room = _MAX_VALUES
        self._resets: Counter[str] = Counter()
        self._lasting: Counter[str] = Counter()
        self._unstable: set[str] = set()
        self._examples: dict[str, tuple[LoggedCall, LoggedCall]] = {}

    def add(self, call: LoggedCall) -> None:
        """Look at the next call."""
        self._at += 1
        if call.tool in self._readers:
            self._read(call)
        if call.tool in self._writers:
            self._write(call)

    def found(self) -> Resets | None:
        """The resets; None if there are none, or no more than what may have been put back by somebody else."""
        tools = [tool for tool in self._resets if tool not in self._unstable]
        number = sum(self._resets[tool] for tool in tools)
        lasting = sum(count for tool, count in self._lasting.items() if tool not in self._unstable)
        if number < _LEAST or number <= _TIMES_AS_MANY * lasting:
            return None
        changed, again = self._examples[tools[0]]
        return Resets(number, changed, again)

    def _write(self, call: LoggedCall) -> None:
        at, run = self._at, call.run
        named = set(_values(call.arguments))
        returned = set() if call.result is UNKNOWN else set(_values(call.result))
        made = self._made.setdefault(run, set())
        if not made.isdisjoint(named):
            self._went_on_at[run] = at
        made |= returned
        self._written_at = at
        if not named:
            self._unnamed_at = at
        self._named_at.update(dict.fromkeys(named | returned, at))
        self._room -= len(named) + len(returned)
        if self._room < 0:  # forget what was named, and so conclude nothing from what came before
            self._unnamed_at = at
            self._named_at.clear()
            self._made = {each: set() for each in self._made}
            self._room = _MAX_VALUES

    def _is_explained(self, seen: _Seen) -> bool:
        """Whether a write since the sight of a change may have undone it."""
        since = seen.changed_at
        if self._written_at <= since:
            return False
        if not seen.names or self._unnamed_at > since or any(self._named_at.get(one, -1) > since for one in seen.names):
            return True
        return seen.changed is not None and self._went_on_at.get(seen.changed.run, -1) > since

    def _read(self, call: LoggedCall) -> None:
        if not call.is_keyed or not call.is_whole or call.result is UNKNOWN or is_failure(call):
            return
        try:
            key = call.tool, key_part(call.arguments)
        except (Uncacheable, TypeError, ValueError):
            return
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _MAX_READS:
                return
            seen = self._seen[key] = _Seen(tuple(set(_values(call.arguments))))
        answer, at = answer_digest(call.result), self._at
        if seen.last_run == call.run and seen.last != answer and self._written_at <= seen.last_at:
            self._unstable.add(call.tool)
        seen.last, seen.last_run, seen.last_at = answer, call.run, at
        if call.run in self._made:  # it has written
            if answer != seen.first:
                seen.changed, seen.changed_to, seen.changed_at = call, answer, at
            elif seen.changed is not None:
                seen.changed = None
            return
        changed = seen.changed
        if changed is not None:
            if call.started is not None and changed.ended is not None and call.started < changed.ended:
                return  # both answers were true while it was running
            if not self._is_explained(seen):
                if answer == seen.changed_to:
                    self._lasting[call.tool] += 1
                elif answer == seen.first:
                    self._resets[call.tool] += 1
                    self._examples.setdefault(call.tool, (changed, call))
        seen.first, seen.changed = answer, None


def _values(value: Any) -> Iterator[str]:
    """The texts and numbers in a value, as texts; the first ones if there are many."""
    waiting, count = [value], 0
    while waiting and count < _MAX_OF_CALL:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            count += 1
            yield str(one)
