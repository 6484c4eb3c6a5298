"""A bounded store of entries: strict LRU, expiry, and an index from tag to keys. Free of clocks and of locks.

Its owner calls `insert`, `discard` and the `drop_*` orders under one lock. Hits take none: `lookup` and `touch` are
the bound C methods of the current mapping, each of them atomic under the GIL. Dropping everything swaps the mapping,
so it costs the same for ten entries as for a million; what was dropped is handed back to be freed in slices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from agent_cache.core.entries import Entry
from agent_cache.core.tags import Tag, ancestors

__all__ = ["Store"]

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
