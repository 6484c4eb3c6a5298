"""What a store holds: an entry is a value, until when it may be served without a second look, and what it cost to
load.
"""

from __future__ import annotations

import copy
import marshal
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any, Final

from agent_cache.core.tags import Tag, ancestors
from agent_cache.values.canonical import MISSING, text_of_standard_value

__all__ = [
    "Entry",
    "GuardedEntry",
    "IMMUTABLE",
    "NEVER",
    "CopyRule",
    "Store",
    "UncopyableError",
    "copy_rule_named",
    "auto_copier",
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

    def value_at(self, now: float) -> Any:
        """A second look, after the inline test has failed: there is nothing more to it than that it has expired."""
        return self.value if now < self.fast else MISSING


class GuardedEntry(Entry):
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

    def value_at(self, now: float) -> Any:
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


class UncopyableError(Exception):
    """A result cannot be copied, so it is returned and not stored."""


@dataclass(frozen=True, slots=True)
class CopyRule:
    """How a cached value is kept apart from callers that mutate what they were given.

    `snapshot(value)` is called once, before the first caller has the value: it returns None if the value may be
    shared as it is, or a function that makes a fresh copy for each hit. It raises `UncopyableError`.
    """

    name: str
    snapshot: Callable[[Any], Callable[[], Any] | None]


_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None), bytes, complex})
IMMUTABLE: frozenset[type] = _SCALARS | {datetime, date, time, timedelta, timezone, range, type(Ellipsis)}
"""Types whose values are shared as they are, whatever `copy=` says."""

_MAX_NODES = 100_000


def auto_copier(value: Any) -> Callable[[], Any] | None:
    """Share what is immutable, copy what is not: the rule of ``copy="auto"``.

    A flat dict, list or set is copied by its own `copy` (60 ns), a tree of plain builtins by reading back its
    `marshal` image (0.5 us for 12 leaves; `copy.deepcopy` takes 3.5), anything else by `copy.deepcopy`.

    Raises:
        UncopyableError: if the value cannot be copied.
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
        raise UncopyableError(f"a result of type {kind.__qualname__} cannot be copied") from error
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


AUTO: Final = CopyRule("auto", auto_copier)
SHARED: Final = CopyRule("never", lambda _value: None)


def copy_rule_named(choice: object) -> CopyRule | None:
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
            raise UncopyableError(f"copy={copier!r} failed") from error

    return CopyRule("custom", snapshot)


# A bounded store of entries: strict LRU, expiry, and an index from tag to keys. Free of clocks and of locks.
#
# Its owner calls `insert`, `discard` and the `drop_*` orders under one lock. Hits take none: `lookup` and `touch` are
# the bound C methods of the current mapping, each of them atomic under the GIL. Dropping everything swaps the mapping,
# so it costs the same for ten entries as for a million; what was dropped is handed back to be freed in slices.


Key = Hashable


class _Keys(set[Key]):
    """Several keys under one tag. A tag with one key holds the key itself, which saves 200 bytes an entry."""

    __slots__ = ()


def _nothing(_key: Key) -> None:
    """`lookup` of a store that is switched off."""


class Store:
    """Entries of one tool in one scope.

    Args:
        maxsize: how many entries at the most, least recently used first out; None for no bound.
    """

    __slots__ = ("__weakref__", "_below", "_data", "_exact", "bytes", "lookup", "maxsize", "newest", "touch")

    lookup: Callable[[Key], Entry | None]
    touch: Callable[[Key], None]

    def __init__(self, maxsize: int | None) -> None:
        self.maxsize = maxsize
        self._renew()

    def _renew(self) -> None:
        self._data: OrderedDict[Key, Entry] = OrderedDict()
        self._exact: dict[Tag, Key | _Keys] = {}
        # Keys whose tag lies strictly below a tag other than the root: only tags of three segments and more need it.
        self._below: dict[Tag, Key | _Keys] = {}
        self.bytes = 0
        self.lookup = self._data.get
        self.touch = self._data.move_to_end
        self.newest: Entry | None = None

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Key) -> bool:
        return key in self._data

    def peek(self, key: Key) -> Entry | None:
        """The entry under a key, also while the store is switched off, without counting as a use."""
        return self._data.get(key)

    def keys(self) -> list[Key]:
        """All keys, least recently used first."""
        return list(self._data)

    def switch(self, *, on: bool) -> None:
        """Answer lookups, or none. Entries stay and can be dropped either way."""
        self.lookup = self._data.get if on else _nothing

    def use(self, key: Key, entry: Entry) -> None:
        """Make an entry the most recently used. The caller asks `newest` first: the same thing read twice needs no
        move.
        """
        try:
            self.touch(key)
        except KeyError:
            return  # dropped by another thread since it was looked up: this call began before that
        self.newest = entry

    def insert(self, key: Key, entry: Entry) -> Entry | None:
        """Put an entry in, in place of an older one. Returns the entry that had to make room, if one had to."""
        data = self._data
        if key in data:
            self.discard(key)
        data[key] = entry
        self.newest = entry
        self.bytes += entry.size
        if entry.tags:
            self._index(key, entry.tags)
        if self.maxsize is None or len(data) <= self.maxsize:
            return None
        key, entry = data.popitem(last=False)
        self.bytes -= entry.size
        if entry.tags:
            self._unindex(key, entry.tags)
        return entry

    def evict(self) -> Entry:
        """Take the least recently used entry out."""
        entry = self.discard(next(iter(self._data)))
        assert entry is not None
        return entry

    def discard(self, key: Key) -> Entry | None:
        """Take one entry out, if it is there."""
        entry = self._data.pop(key, None)
        if entry is not None:
            self.bytes -= entry.size
            self._unindex(key, entry.tags)
            if entry is self.newest:
                self.newest = None
        return entry

    def count_under(self, tag: Tag) -> int:
        """How many entries `drop_tag` would take out, at the most."""
        found = [self._exact.get(tag, _ABSENT), self._below.get(tag, _ABSENT)]
        found += [self._exact.get(above, _ABSENT) for above in ancestors(tag)]
        return sum(len(keys) if type(keys) is _Keys else keys is not _ABSENT for keys in found)

    def drop_tag(self, tag: Tag) -> list[Entry]:
        """Take out what meets a tag below the root: its own entries, those below it, and those tagged with an
        ancestor.
        """
        keys: dict[Key, None] = dict.fromkeys(_members(self._exact.get(tag, _ABSENT)))
        if self._below:
            keys.update(dict.fromkeys(_members(self._below.get(tag, _ABSENT))))
        for above in ancestors(tag):
            keys.update(dict.fromkeys(_members(self._exact.get(above, _ABSENT))))
        return [entry for key in keys if (entry := self.discard(key)) is not None]

    def drop_exactly(self, tag: Tag) -> list[Entry]:
        """Take out what is tagged with just this tag, and nothing below it."""
        return [entry for key in _members(self._exact.get(tag, _ABSENT)) if (entry := self.discard(key)) is not None]

    def drop_all(self) -> tuple[dict[Any, Any], ...]:
        """Empty the store in constant time and hand back what it was made of, the entries first, to be freed in
        pieces.
        """
        was_on, dropped = self.lookup is not _nothing, (self._data, self._exact, self._below)
        self._renew()
        self.switch(on=was_on)
        return dropped

    def _index(self, key: Key, tags: tuple[Tag, ...]) -> None:
        exact = self._exact
        for tag in tags:
            if tag in exact:
                _link(exact, tag, key)
            else:
                exact[tag] = key
            if tag.count(":") > 1:
                for above in ancestors(tag)[1:]:
                    _link(self._below, above, key)

    def _unindex(self, key: Key, tags: tuple[Tag, ...]) -> None:
        exact = self._exact
        for tag in tags:
            if exact.get(tag, _ABSENT) is key:
                del exact[tag]
            else:
                _unlink(exact, tag, key)
            if tag.count(":") > 1:
                for above in ancestors(tag)[1:]:
                    _unlink(self._below, above, key)


_ABSENT: Any = object()  # None is a key like any other: that of a call whose only argument is None


def _link(index: dict[Tag, Any], tag: Tag, key: Key) -> None:
    present = index.get(tag, _ABSENT)
    if present is _ABSENT:
        index[tag] = key
    elif type(present) is _Keys:
        present.add(key)
    elif present != key:
        index[tag] = _Keys((present, key))


def _unlink(index: dict[Tag, Any], tag: Tag, key: Key) -> None:
    present = index.get(tag, _ABSENT)
    if type(present) is _Keys:
        present.discard(key)
        if not present:
            del index[tag]
    elif present is not _ABSENT and present == key:
        del index[tag]


def _members(present: Key | _Keys) -> Iterable[Key]:
    return () if present is _ABSENT else tuple(present) if isinstance(present, _Keys) else (present,)
