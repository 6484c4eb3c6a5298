"""What a store holds: an entry is a value, until when it may be served without a second look, and what it cost to
load.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any, Final

from agent_cache.values.standard import text_of_standard_value
from agent_cache.core.tags import Tag

__all__ = [
    "IMMUTABLE",
    "NEVER",
    "Entry",
    "Guarded",
    "Protection",
    "Unprotectable",
    "protection_named",
    "structural",
]


NEVER: Final = float("inf")


class Entry:
    """A cached answer that may be handed out as it is.

    `fast` is the clock reading before which a hit needs no second look. `cost` is the load time that a hit saves, in
    seconds. `tags` are the ones it can be dropped by, beside the static tags of its tool.
    """

    __slots__ = ("cost", "fast", "size", "tags", "value")

    def __init__(self, value: Any, fast: float, cost: float, tags: tuple[Tag, ...] = (), size: int = 0) -> None:
        self.value = value
        self.fast = fast
        self.cost = cost
        self.tags = tags
        self.size = size

    @property
    def expires(self) -> float:
        """Clock reading at which the entry ends."""
        return self.fast

    def share(self) -> Any:
        """The value for one who has waited for its load, `MISSING` if it cannot be copied for him."""
        return self.value

    def recall(self, now: float) -> Any:
        """A second look, after the inline test has failed: there is nothing more to it than that it has expired."""
        return self.value if now < self.fast else MISSING


class Guarded(Entry):
    """A cached answer that needs a second look at each hit: a copy of a mutable value, or a remote tier that must be
    trusted.

    Its `fast` lies in the past, so the inline test sends every hit here and costs the others nothing. A trust that was
    noted there would be measured by the clock of the hits, which stands still while a machine sleeps.
    """

    __slots__ = ("_expires", "copy", "failure", "trust")

    def __init__(
        self,
        value: Any,
        fast: float,
        cost: float,
        tags: tuple[Tag, ...],
        size: int,
        expires: float,
        copy: Callable[[], Any] | None,
        trust: Callable[[], float] | None = None,
    ) -> None:
        # As Entry.__init__, without the call.
        self.value = value
        self.fast = fast
        self.cost = cost
        self.tags = tags
        self.size = size
        self._expires = expires
        self.copy = copy
        self.trust = trust
        self.failure: Exception | None = None

    @property
    def expires(self) -> float:
        return self._expires

    def recall(self, now: float) -> Any:
        """The second look: a fresh copy if it has neither expired nor lost the trust of its tiers, else `MISSING`."""
        if now >= self._expires or (self.trust is not None and now >= self.trust()):
            return MISSING
        if self.copy is None:
            return self.value
        try:
            return self.copy()  # as share(), without the frame
        except Exception as error:  # noqa: BLE001 - as there
            self.failure = error
            return MISSING

    def share(self) -> Any:
        if self.copy is None:
            return self.value
        try:
            return self.copy()
        except Exception as error:  # noqa: BLE001 - the user's function; what it cannot copy is loaded anew
            self.failure = error
            return MISSING


class Unprotectable(Exception):
    """A result cannot be copied, so it is returned and not stored."""


@dataclass(frozen=True, slots=True)
class Protection:
    """How a cached value is kept apart from callers that mutate what they were given.

    `snapshot(value)` is called once, before the first caller has the value: it returns None if the value may be
    shared as it is, or a function that makes a fresh copy for each hit. It raises `Unprotectable`.
    """

    name: str
    snapshot: Callable[[Any], Callable[[], Any] | None]


_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None), bytes, complex})
IMMUTABLE: frozenset[type] = _SCALARS | {datetime, date, time, timedelta, timezone, range, type(Ellipsis)}
"""Types whose values are shared as they are, whatever `copy=` says."""

_MAX_NODES = 100_000


def structural(value: Any) -> Callable[[], Any] | None:
    """Share what is immutable, copy what is not: the rule of ``copy="auto"``.

    A flat dict, list or set is copied by its own `copy` (60 ns), a tree of plain builtins by reading back its
    `marshal` image (0.5 us for 12 leaves; `copy.deepcopy` takes 3.5), anything else by `copy.deepcopy`.

    Raises:
        Unprotectable: if the value cannot be copied.
    """
    kind = type(value)
    if kind is dict or kind is list or kind is set:
        members = value.values() if kind is dict else value
        if IMMUTABLE.issuperset(map(type, members)) and (kind is not dict or IMMUTABLE.issuperset(map(type, value))):
            return value.copy().copy  # type: ignore[no-any-return]
    try:
        if _is_immutable(value, kind):
            return None
        if (kind is tuple or kind is frozenset) and _is_deeply_immutable(value):
            return None
        if _is_plain_tree(value):
            return partial(marshal.loads, marshal.dumps(value))
        original = copy.deepcopy(value)
    except Exception as error:
        raise Unprotectable(f"a result of type {kind.__qualname__} cannot be copied") from error
    return partial(copy.deepcopy, original)


_NAMED = (Enum, type)


def _is_immutable(value: Any, kind: type) -> bool:
    return kind in IMMUTABLE or isinstance(value, _NAMED) or text_of_standard_value(kind) is not None


def _is_deeply_immutable(value: Any) -> bool:
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(map(_is_deeply_immutable, value))
    return _is_immutable(value, kind)


def _is_plain_tree(value: Any) -> bool:
    """Whether `marshal` gives it back exactly: builtin containers of builtin scalars, without bytes-like strangers."""
    pending, seen = [value], 0
    while pending:
        members = pending.pop()
        kind = type(members)
        if kind is dict:
            if not _SCALARS.issuperset(map(type, members)):
                pending.extend(key for key in members if type(key) not in _SCALARS)
            members = members.values()
        elif kind is not list and kind is not tuple and kind is not set and kind is not frozenset:
            return False
        if not _SCALARS.issuperset(map(type, members)):
            pending.extend(member for member in members if type(member) not in _SCALARS)
        seen += 1 + len(members)
        if seen > _MAX_NODES:
            return False
    return True


AUTO: Final = Protection("auto", structural)
SHARED: Final = Protection("never", lambda _value: None)


def protection_named(choice: object) -> Protection | None:
    """Read what stands after ``copy=``: ``"auto"``, ``"never"`` or a callable; None if it is none of these."""
    if choice == "auto":
        return AUTO
    if choice == "never":
        return SHARED
    if not callable(choice):
        return None
    copier: Callable[[Any], Any] = choice

    def snapshot(value: Any) -> Callable[[], Any]:
        try:
            return partial(copier, copier(value))
        except Exception as error:
            raise Unprotectable(f"copy={copier!r} failed") from error

    return Protection("custom", snapshot)
