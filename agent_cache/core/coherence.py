"""The rules of coherence in one process: which load may be stored, and what a write does to loads and entries.

A load is stored only if, since it *started*, no write has touched one of its tags and none is in flight. There is no
table of versions: a write acts on the loads and entries that exist. It acts twice, before it runs and when it has
ended, however it ended. The second time is what makes "no read that starts later sees the old value" true; the first
keeps a value that was read during the write from being stored. In between it holds its region: nothing is stored there,
so the second time finds loads, and entries only where the region has changed.

Everything is found by tag, so that a write costs what it names and what it touches, however many loads, entries, writes
and sessions there are. A load that starts is put into a set, and gets its places in the indexes when the next write to
one of its roots comes: most loads end before that, and pay nothing. Likewise holds get theirs when something is to be
stored under one of their roots. The tags of some loads are known only from their result; while one of them is in
flight, what is written under its root is noted, and compared by `Ledger.may_store`.

Every method of `Ledger` runs under its `lock`, which the caller takes around each of: {join or lead a load again},
{check, insert}, and {mark loads, drop entries, detach flights}. Time is an argument.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from agent_cache.core.store import NEVER, Dropped, Store, Stored, tags_of
from agent_cache.core.tags import EVERY_KEY, Part, Region, Tag, ancestors, every_key_of, root_of

__all__ = ["NO_PLACES", "EntryTag", "Hold", "Ledger", "Load", "Outdated", "Partition", "PartitionGroup"]

_MANY: Final = 1_000
"""How many entries one invalidation drops one by one, at 2 us each. Of the tools that it then comes to, all entries are
dropped at once: that is always safe, and a write must not hold the event loop for long."""

_OF_SESSION: Final = 2
"""As how many of them a session counts that has to be visited for its entries."""

_FEW: Final = 16
"""How many names of entries of a session are listed before those that are gone are looked for."""

_MAX_WRITTEN: Final = 10_000
"""How many tags are noted under one root while the tags of a load in flight are unknown. After more of them such loads
are not stored."""

_UNLISTED: Final = 100
"""How many holds there may be for one to have no places in the indexes: what is then stored gives them theirs."""

_MAX_TIMED: Final = 1_000
"""How many writes are held by what they name while they are in doubt or settle. Those beyond hold their whole roots."""

_EXPIRED_AT_ONCE: Final = 500
"""How many tags of holds that are over are released by one call of `Ledger.expire_holds`: about 2 ms."""


# Indexes


class Places:
    """An index from names to members that can be removed again without a search."""

    __slots__ = ("sets",)

    def __init__(self) -> None:
        self.sets: dict[Hashable, set[Any]] = {}

    def add(self, name: Hashable, member: Any) -> None:
        """Put a member under a name."""
        members: set[Any] | None = None
        # Repeated if a garbage collection has removed the last other member, and its set with it, meanwhile.
        while members is None or self.sets.get(name) is not members:
            members = self.sets.setdefault(name, set())
            members.add(member)

    def discard(self, name: Hashable, member: Any) -> None:
        """Remove a member from a name."""
        members = self.sets.get(name)
        if members is not None:
            members.discard(member)
            if not members and self.sets.get(name) is members:
                del self.sets[name]

    def under(self, name: Hashable) -> Iterable[Any]:
        """The members under a name."""
        return self.sets.get(name, ())


class TagIndex:
    """Finds members by the tags that they depend on: loads in flight, or partitions of sessions.

    Attributes:
        exact: members by tag.
        below: members by each proper ancestor of their tags.
    """

    __slots__ = ("below", "exact")

    def __init__(self) -> None:
        self.exact = Places()
        self.below = Places()

    def add(self, tag: Tag, member: Any) -> None:
        self.exact.add(tag, member)
        if ":" in tag:
            for above in ancestors(tag):
                self.below.add(above, member)

    def discard(self, tag: Tag, member: Any) -> None:
        """Remove a member. Its other tags below a common ancestor must be removed with this one."""
        self.exact.discard(tag, member)
        if ":" in tag:
            for above in ancestors(tag):
                self.below.discard(above, member)

    def met_by(self, part: Part) -> set[Any]:
        """The members with a tag that this part of a write touches."""
        exact, below = self.exact.sets, self.below.sets
        if part.is_whole:
            return {*exact.get(part.root, ()), *below.get(part.root, ())}
        found: set[Any] = set()
        for tag in exact.keys() & part.names:
            found |= exact.get(tag, _NOTHING)
        for path in below.keys() & part.paths:
            found |= below.get(path, _NOTHING)
        return found


_NOTHING: Final[frozenset[Any]] = frozenset()


# What is known under a root


class Root:
    """What the ledger knows under one root of tags. It exists while a tool, a load or a hold refers to it.

    Attributes:
        groups: the tools whose entries may depend on it, by the identity of the group.
        starting: the loads of these that started after the last write, likewise.
        loads: the other loads in flight, by tag.
        late: loads in flight some of whose tags under this root are not known yet.
        late_joinable: those that readers may still join, by owner.
        watchers: late loads, and writes in flight: while there are any, the tags written are noted.
        noted: writes that nobody has asked for yet: what they name, under which owners, their serial numbers.
        written: of the other writes, for (owner, tag), the serial number of the last one that named it.
        written_above: the same for tags that were touched as they are, without what lies below them.
        unread: how many names these have.
        floor: the serial number up to which nothing is known, because there was too much of it.
        last: the serial number of the latest write that has named anything at or below it.
        new_holds: holds that have no places in the indexes yet, since nothing was to be stored under this root.
        held: the other holds, by (owner, tag) that they name.
        held_above: the same for tags that are touched as they are.
    """

    __slots__ = (
        "__weakref__", "floor", "groups", "held", "held_above", "last", "late", "late_joinable", "loads", "name",
        "new_holds", "noted", "starting", "unread", "watchers", "written", "written_above",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        # A plain dict: to iterate a WeakSet takes 1 us, and 0.15 us for each member.
        self.groups: dict[int, weakref.ref[PartitionGroup]] = {}
        self.starting: dict[int, set[Load]] = {}
        self.loads = TagIndex()
        self.late: set[Load] = set()
        self.late_joinable = Places()
        self.watchers: set[object] = set()
        self.floor = 0
        self.last = 0
        self.noted: list[tuple[Part, Iterable[object], int]] = []
        self.unread = 0
        self.written: dict[tuple[object, Tag], int] = {}
        self.written_above: dict[tuple[object, Tag], int] = {}
        self.new_holds: set[Hold] = set()
        self.held = Places()
        self.held_above = Places()

    # Tools

    def add(self, group: PartitionGroup) -> None:
        """Let writes to this root reach the entries and loads of a tool, as long as it exists."""
        ident = id(group)
        self.starting[ident] = group.starting
        self.groups[ident] = weakref.ref(group, partial(self._forget, ident))

    def _forget(self, ident: int, _reference: object) -> None:
        self.groups.pop(ident, None)
        self.starting.pop(ident, None)

    def tools(self) -> list[PartitionGroup]:
        """The groups of the tools whose entries may depend on it."""
        # The list is made in one step of the interpreter: a garbage collection may free a tool at any other.
        return [group for reference in list(self.groups.values()) if (group := reference()) is not None]

    def tools_met_by(self, part: Part) -> list[PartitionGroup]:
        """Those that may have an entry that a part of a write touches. Most have none, which is found out here."""
        return [
            group
            for reference in list(self.groups.values())
            if (group := reference()) is not None
            and (group.static or group.filled or part.is_whole or group.store.may_meet(part))
        ]

    # Writes that are noted while somebody needs them

    def note(self, part: Part, region: Region, serial: int) -> None:
        """Note what a write names, until somebody asks."""
        self.noted.append((part, region.scopes, serial))
        self.unread += 1 + len(part.names)
        if self.unread > _MAX_WRITTEN:
            self._read_notes()

    def _read_notes(self) -> None:
        """Enter what was noted into the indexes. If it is too much, it counts as everything."""
        noted, self.noted, self.unread = self.noted, [], 0
        for part, owners, serial in noted:
            written, written_above = self.written, self.written_above
            for owner in owners:
                if part.is_whole:
                    written[owner, self.name] = serial
                for tag in part.names:
                    (written if tag in part.paths else written_above)[owner, tag] = serial
            if len(written) + len(written_above) > _MAX_WRITTEN:
                self.forget_written()
                self.floor = serial

    def forget_written(self) -> None:
        """Forget what was noted and read."""
        self.written, self.written_above = {}, {}

    def unwatch(self, watcher: object) -> None:
        """Note no more on behalf of a watcher."""
        self.watchers.discard(watcher)
        if not self.watchers:
            if self.noted:
                self.noted, self.unread = [], 0
            if self.written or self.written_above:
                self.forget_written()

    def was_written(self, tags: Iterable[Tag], owner: object, since: int) -> bool:
        """Whether a write after this serial number has touched what depends on tags under this root."""
        if self.noted:
            self._read_notes()
        if since < self.floor:
            return True
        if not (self.written or self.written_above):
            return False
        found, found_above = self._found(tags, owner, self.written, self.written_above)
        return any(self.written[name] > since for name in found) or any(
            self.written_above[name] > since for name in found_above
        )

    def _found(
        self, tags: Iterable[Tag], owner: object, named: dict[Any, Any], named_above: dict[Any, Any]
    ) -> tuple[set[Any], set[Any]]:
        """The (owner, tag) in two indexes that these tags lie at or below, and those that they are.

        By sets, because a result may have thousands of tags, and because the indexes may have as many.
        """
        scopes = (None,) if owner is None else (None, owner)
        names = {(scope, tag) for scope in scopes for tag in tags}
        found_above = named_above.keys() & names
        names.update([(scope, self.name) for scope in scopes])
        names.update([(scope, one) for scope, tag in names if tag.count(":") > 1 for one in ancestors(tag)])
        return named.keys() & names, found_above

    # Holds

    def list_hold(self, part: Part, hold: Hold) -> None:
        """Let nothing be stored that a part of a hold's region touches."""
        for owner in hold.region.scopes:
            if part.is_whole:
                self.held.add((owner, self.name), hold)
            for tag in part.names:
                (self.held if tag in part.paths else self.held_above).add((owner, tag), hold)

    def unlist_hold(self, part: Part, hold: Hold) -> None:
        """Undo `list_hold`."""
        for owner in hold.region.scopes:
            if part.is_whole:
                self.held.discard((owner, self.name), hold)
            for tag in part.names:
                (self.held if tag in part.paths else self.held_above).discard((owner, tag), hold)

    def holds_on(self, tags: Iterable[Tag], owner: object) -> Iterator[set[Hold]]:
        """The sets of holds that keep what depends on tags under this root from being stored."""
        for hold in list(self.new_holds):
            hold.enter_indexes()
        held, held_above = self.held.sets, self.held_above.sets
        if held or held_above:
            found, found_above = self._found(tags, owner, held, held_above)
            yield from (held[name] for name in found if name in held)
            yield from (held_above[name] for name in found_above if name in held_above)

    # Loads

    def mark_loads(self, part: Part, region: Region, serial: int) -> None:
        """Mark and detach the loads that a part of a write touches, and note what it names for those that are late.

        Args:
            serial: the serial number of the write.
        """
        self.last = serial
        if any(self.starting.values()):
            for starting in list(self.starting.values()):
                _index(starting, serial - 1)
        loads = self.loads
        if loads.exact.sets:
            for load in loads.met_by(part):
                if region.reaches(load.partition.owner):
                    load.mark_dirty()
                    load.leave_places()
        if self.watchers:
            self.note(part, region, serial)
            if self.late_joinable.sets:
                self._detach_late(region)

    def _detach_late(self, region: Region) -> None:
        """Let nobody join loads whose tags are unknown. Whether they may be stored is decided when these are known."""
        sets = self.late_joinable.sets
        for owner in list(sets) if region.owners is None else region.owners:
            for load in list(sets.pop(owner, ())):
                load.detach()


def _index(starting: set[Load], serial: int) -> None:
    """Give the loads that have started since the write with this serial number their places in the indexes."""
    while starting:
        for load in list(starting):  # in one step of the interpreter: other threads start loads meanwhile
            if load not in starting:
                continue  # it has just ended
            try:
                load.enter_indexes(serial)
            except KeyboardInterrupt:  # half-way: a later write might not find it
                load.mark_dirty()
                raise


# Partitions


class Outdated:
    """The entries of sessions that were all dropped at once. Each store is emptied when it is used again, or closed."""

    __slots__ = ("_contents",)

    def __init__(self, contents: Iterable[Contents]) -> None:
        self._contents = contents

    def __len__(self) -> int:
        partitions = [one for contents in self._contents if (one := contents.partition()) is not None]
        return sum(len(partition.store) for partition in partitions if partition.is_outdated)


_ENTRIES: Final = "\0entries"

_next_number = itertools.count(1).__next__


class EntryTag(str):
    """The tag of one entry, on which what has read it depends; or of all entries of a tool, above these.

    It exists while something depends on it.

    Attributes:
        group: refers to the group that the entry belongs to.
    """

    __slots__ = ("__weakref__", "group")
    group: weakref.ref[PartitionGroup]


_NO_STORE: Final = Store(None)
"""The global store of a tool that has none. Nothing is ever stored in it."""


def _drop_from(store: Store, part: Part, garbage: list[Any], room: int, *, is_all: bool) -> int:
    """Drop what a part of a write touches: one by one as long as there is room, else the whole store."""
    if is_all:
        if len(store) or store.newest is not None:
            garbage.append(store.drop_all())
    else:
        dropped = store.drop_meeting(part, room)
        if dropped is None:
            garbage.append(store.drop_all())
        elif dropped:
            garbage.append(dropped)
            room -= len(dropped)
    return room


class PartitionGroup:
    """All partitions of one tool: the global one, and those of sessions, with the loads in flight.

    A write finds the entries of sessions by name, or drops them all at once: it replaces `epoch`, and what was stored
    under another epoch is not found any more.

    Attributes:
        tool: the operation.
        static: tags that every entry depends on. They need no index.
        own_roots: roots that every entry depends on, or on something below.
        roots: all roots that any entry may depend on. The ledger adds those of inherited tags.
        starting: loads that started after the last write to one of their roots.
        loads: the other loads in flight.
        by_key: those that no write has touched, by key.
        partition: the partition of the global scope.
        sessions: the partitions of sessions, by owner.
        entry_tags: the tags of entries that something depends on, by key. That of all entries is under `EVERY_KEY`.
        store: the entries of the global scope.
        filled: the lists of the entries of sessions, by the identity of the session.
        epoch: stands for the time since the entries of all sessions were last dropped at once.
    """

    __slots__ = (
        "__weakref__", "_abandoned", "_entries_path", "_keys", "_tags", "by_key", "entry_tags", "epoch", "filled",
        "loads", "own_roots", "partition", "roots", "sessions", "starting", "static", "store", "tool",
    )  # fmt: skip

    def __init__(self, tool: Any, static: tuple[Tag, ...], roots: tuple[str, ...]) -> None:
        self.tool = tool
        self.static = static
        self.own_roots = frozenset(roots)
        self.roots: dict[str, Root | None] = dict.fromkeys(roots)
        self.starting: set[Load] = set()
        self.loads: set[Load] = set()
        self.by_key = Places()
        self.partition: weakref.ref[Partition] | None = None
        self.store = _NO_STORE
        self.sessions: weakref.WeakValueDictionary[object, Partition] = weakref.WeakValueDictionary()
        self.entry_tags: weakref.WeakValueDictionary[Hashable, EntryTag] = weakref.WeakValueDictionary()
        self._entries_path = f"{_ENTRIES}:{_next_number()}"
        self.epoch = object()
        self.filled: dict[object, Contents] = {}
        self._tags = TagIndex()
        self._keys = Places()
        self._abandoned: deque[Contents] = deque()

    def partitions(self) -> list[Partition]:
        """Every partition that a write can reach."""
        of_all = None if self.partition is None else self.partition()
        return [*([] if of_all is None else [of_all]), *self.sessions.values()]

    # Entries

    def entry_tag(self, key: Hashable) -> EntryTag:
        """The tag of the entry under a key, or of all entries for `EVERY_KEY`."""
        tag = self.entry_tags.get(key)
        if tag is None:
            path = self._entries_path
            tag = EntryTag(path if key is EVERY_KEY else f"{path}:{_next_number()}")
            tag.group = weakref.ref(self)
            self.entry_tags[key] = tag
        return tag

    def tags_below(self, key: Hashable) -> tuple[Tag, ...]:
        """The tags to write to when an entry is invalidated, or all entries are: none if nothing depends on them."""
        tags = self.entry_tags
        if not tags:
            return ()
        tag = tags.get(key)
        if tag is not None:
            return (tag,)
        if key is EVERY_KEY:
            return (self._entries_path,)
        return (f"{self._entries_path}:0",) if EVERY_KEY in tags else ()  # it has no entry of that number

    def drop(self, part: Part, region: Region, garbage: list[Any], room: int) -> int:
        """Drop the entries that a part of a write touches.

        Args:
            garbage: takes what is dropped.
            room: how many may still be dropped one by one.

        Returns:
            What is left of `room`.
        """
        is_all = any(map(part.touches, self.static)) or (part.is_whole and part.root in self.own_roots)
        if region.owners is None:
            room = _drop_from(self.store, part, garbage, room, is_all=is_all)
        if not self.filled:
            return room
        if region.owners is not None:
            reached: Iterable[Contents] = [
                contents for owner in region.owners if (contents := self.filled.get(id(owner))) is not None
            ]
        else:
            reached = () if is_all else self._tags.met_by(part)
            if is_all or _OF_SESSION * len(reached) > room:
                garbage += self._drop_sessions()
                return room
        for contents in reached:
            if (partition := contents.partition()) is not None:
                room = _drop_from(partition.store, part, garbage, room - _OF_SESSION, is_all=is_all)
        return room

    def drop_key(self, key: Hashable, region: Region) -> Iterator[Any]:
        """Drop the entries under a key."""
        if region.owners is None and (entry := self.store.discard(key)) is not None:
            yield [entry]
        in_sessions = list(self._keys.under(key))
        if _OF_SESSION * len(in_sessions) > _MANY and region.owners is None:
            yield from self._drop_sessions()
            return
        for contents in in_sessions:
            partition = contents.partition()
            if partition is not None and region.reaches(partition.owner):
                entry = partition.store.discard(key)
                if entry is not None:
                    yield [entry]

    def _drop_sessions(self) -> list[Any]:
        """Drop every entry of every session, in constant time. Their lists are returned, too, to be freed in slices."""
        outdated = Outdated(self.filled.values())
        lists = Dropped(((), self.filled, self._tags.exact.sets, self._tags.below.sets, self._keys.sets))
        self.epoch, self.filled = object(), {}
        self._tags, self._keys = TagIndex(), Places()
        return [outdated, lists]

    # Names of the entries of sessions

    def list_entry(self, contents: Contents, owner: object, key: Hashable, tags: tuple[Tag, ...]) -> None:
        """Let writes find an entry of a session by its key and its tags."""
        while self._abandoned:
            self.unlist(self._abandoned.popleft())
        self.filled[owner] = contents
        contents.keys.add(key)
        self._keys.add(key, contents)
        for tag in tags:
            contents.tags.add(tag)
            self._tags.add(tag, contents)

    def unlist(self, contents: Contents) -> None:
        """Undo `list_entry` for all entries of a session."""
        for key in contents.keys:
            self._keys.discard(key, contents)
        for tag in contents.tags:
            self._tags.discard(tag, contents)
        if self.filled.get(contents.owner) is contents:
            del self.filled[contents.owner]

    def abandon(self, contents: Contents) -> None:
        """Unlist a partition that was freed with its session, when the lock is next taken. For any thread."""
        self._abandoned.append(contents)


class Contents:
    """The names under which the entries of one session are listed in the group of a tool.

    Attributes:
        keys, tags: of its entries, and of some that are gone.
    """

    __slots__ = ("keys", "owner", "partition", "tags")

    def __init__(self, partition: Partition) -> None:
        group = weakref.ref(partition.group)

        def abandoned(_: object) -> None:
            if (alive := group()) is not None:
                alive.abandon(self)

        self.partition = weakref.ref(partition, abandoned)
        self.owner = id(partition.owner)
        self.keys: set[Hashable] = set()
        self.tags: set[Tag] = set()


def _if_current(
    group: PartitionGroup, lookup: Callable[[Hashable], Stored | None]
) -> Callable[[Hashable], Stored | None]:
    """Look up entries until those of all sessions are dropped at once."""
    epoch = group.epoch
    return lambda key: lookup(key) if group.epoch is epoch else None


class Partition:
    """The store of one tool in one scope.

    Args:
        group: the partitions of the same tool; None makes a group of its own.

    Attributes:
        tool: the operation whose results it holds.
        owner: the session it belongs to; None for the global scope.
        static: tags that every entry depends on.
        loads: where loads are put when they start, and taken from when they end.
        flights: loads in flight that a reader may join, by (key, event loop).
        requests: the requests that tiers were sent for calls, by key. Bounded.
        is_open: False once its session has ended: nothing is stored any more.
    """

    __slots__ = (
        "__weakref__", "_contents", "_epoch", "_most", "flights", "group", "is_open", "loads", "owner", "requests",
        "static", "store", "tool",
    )  # fmt: skip

    def __init__(
        self,
        tool: Any,
        owner: object | None,
        static: tuple[Tag, ...],
        roots: tuple[str, ...],
        maxsize: int | None,
        group: PartitionGroup | None = None,
    ) -> None:
        self.group = PartitionGroup(tool, static, roots) if group is None else group
        self.tool = tool
        self.owner = owner
        self.static = static
        self._epoch = self.group.epoch
        self._contents: Contents | None = None
        self._most = _FEW
        self.store = Store(maxsize, None if owner is None else partial(_if_current, self.group))
        self.flights: dict[tuple[Hashable, object], Any] = {}
        self.loads: Any = self.group.starting
        self.requests: dict[Hashable, Any] = {}
        self.is_open = True

    @property
    def roots(self) -> Iterable[str]:
        """Roots that any of its entries may depend on."""
        return self.group.roots

    @property
    def is_outdated(self) -> bool:
        """Whether all its entries were dropped with those of the other sessions."""
        return self.owner is not None and self._epoch is not self.group.epoch

    def insert(self, key: Hashable, entry: Stored) -> tuple[Stored | None, list[Any]]:
        """Insert or replace an entry.

        Returns:
            The entry that was evicted for it, if one was, and what else was dropped, for the caller to free.
        """
        if self.owner is None:
            return self.store.insert(key, entry), []
        garbage: list[Any] = []
        if self.is_outdated:
            self._epoch, self._contents = self.group.epoch, None
            garbage.append(self.store.drop_all())
        contents = self._contents
        if contents is None:
            contents = self._contents = Contents(self)
        self.group.list_entry(contents, id(self.owner), key, tags_of(entry))
        evicted = self.store.insert(key, entry)
        if len(contents.keys) + len(contents.tags) > self._most:
            self._list_anew(contents)
        return evicted, garbage

    def _list_anew(self, contents: Contents) -> None:
        """List the present entries only. Done each time that the lists have doubled: the keys of entries that are gone
        may be long, and ``max_bytes`` does not count them.
        """
        self.group.unlist(contents)
        self._contents = contents = Contents(self)
        for key, entry in self.store.items():
            self.group.list_entry(contents, id(self.owner), key, tags_of(entry))
        self._most = max(_FEW, 2 * (len(contents.keys) + len(contents.tags)))

    def close(self) -> list[Any]:
        """Store nothing any more, since the session has ended. Returns what was dropped."""
        self.is_open = False
        if self.group.sessions.get(self.owner) is self:
            del self.group.sessions[self.owner]
        if self._contents is not None and not self.is_outdated:
            self.group.unlist(self._contents)
        self._contents = None
        return [self.store.drop_all()]


# Loads


class Load:
    """One run of a read tool, from its start until its result is stored or discarded.

    Attributes:
        tags: the tags known before the load.
        late_roots: roots of the tags that are known only from the result.
        is_clean: whether no write has touched it, so that it may be stored.
        is_open: whether it has not ended.
        since: serial number of the last write before it was given its places in the indexes; -1 without any, as long as
            no write has come.
    """

    __slots__ = ("_places", "is_clean", "is_open", "key", "late_roots", "partition", "since", "tags")

    def __init__(self, partition: Partition, key: Hashable, tags: tuple[Tag, ...], late_roots: tuple[str, ...]) -> None:
        self.partition = partition
        self.key = key
        self.tags = tags
        self.late_roots = late_roots
        self.is_clean = True
        self.is_open = True
        self.since = -1
        self._places: list[tuple[TagIndex, Tag]] = NO_PLACES

    def restart(self) -> None:
        """Start again with another run of the tool, which earlier writes do not concern."""
        if self.since >= 0:
            self.leave_indexes()
        self.is_clean = True
        self.start()

    def start(self) -> None:
        """Compare every write with this load, until it is finished."""
        self.is_open = True
        self.partition.loads.add(self)

    def mark_dirty(self) -> None:
        """Do not store this load, and let no reader join it any more."""
        self.is_clean = False
        self.detach()

    def detach(self) -> None:
        """Let no reader that starts later join. `engine.runtime.Flight` overrides it."""

    def dependencies(self) -> Iterable[Tag]:
        """Everything that it is known to depend on by now. `engine.runtime.Flight` adds what it has inherited."""
        return self.tags

    def finish(self) -> None:
        """End it: writes need not consider it any more."""
        self.is_open = False
        self.partition.loads.discard(self)
        if self.since >= 0:
            self.leave_indexes()

    # Its places in the indexes of its group and its roots

    def enter_indexes(self, serial: int) -> None:
        """Let writes after the one with this serial number find it by its tags and its key."""
        group = self.partition.group
        group.starting.discard(self)
        group.loads.add(self)
        self.since = serial
        self._places = []
        if not self.is_clean:
            return
        group.by_key.add(self.key, self)
        self.add_places(self.dependencies())
        for name in self.late_roots:
            root = group.roots[name]
            assert root is not None
            root.late.add(self)
            root.watchers.add(self)
            root.late_joinable.add(self.partition.owner, self)

    def add_places(self, tags: Iterable[Tag]) -> None:
        """Let writes to these tags find it."""
        roots = self.partition.group.roots
        for tag in tags:
            root = roots[root_of(tag)]
            assert root is not None
            root.loads.add(tag, self)
            self._places.append((root.loads, tag))

    def leave_places(self) -> None:
        """Let no write find it any more, since one has marked it."""
        group = self.partition.group
        group.by_key.discard(self.key, self)
        places, self._places = self._places, NO_PLACES
        for index, tag in places:
            index.discard(tag, self)
        for name in self.late_roots:
            root = group.roots[name]
            assert root is not None
            if self in root.late:
                root.late.discard(self)
                root.late_joinable.discard(self.partition.owner, self)
                root.unwatch(self)

    def leave_indexes(self) -> None:
        """Undo `enter_indexes` and `add_places`."""
        self.leave_places()
        self.partition.group.loads.discard(self)
        self.since = -1


NO_PLACES: list[tuple[TagIndex, Tag]] = []
"""The places of a load that no write has looked for. Never changed."""


class Hold:
    """A write in flight, or one that may still take effect: nothing in its region is stored until the release.

    Most end before anything is stored under their roots. So they are given their places in the indexes when it is.

    Attributes:
        until: clock reading of its end; infinite for a write in flight.
        since: serial number of the last write before it.
        is_released: whether it has ended.
        is_listed: whether it has its places in the indexes.
        roots: those of the parts of its region.
        watched: for a write that names entries by their keys, the roots that these may depend on.
        emptied: the region in which there was no entry when it began, so that there is none as long as it lasts.
    """

    __slots__ = ("emptied", "is_listed", "is_released", "region", "roots", "since", "until", "watched")

    def __init__(self, region: Region, until: float, since: int, roots: tuple[Root, ...]) -> None:
        self.region = region
        self.until = until
        self.since = since
        self.is_released = self.is_listed = False
        self.roots = roots
        self.watched: tuple[Root, ...] = ()
        self.emptied: Region | None = None

    def enter_indexes(self) -> None:
        """Let it be found by what it names."""
        roots, parts = self.roots, self.region.parts
        self.is_listed = True
        for root, part in zip(roots, parts, strict=False):
            root.new_holds.discard(self)
            root.list_hold(part, self)
        if self.is_released:  # by a garbage collection meanwhile, which has closed the call of its write
            for root, part in zip(roots, parts, strict=False):
                root.unlist_hold(part, self)

    def leave_indexes(self) -> None:
        """Let it be found no more."""
        for root in self.roots:
            root.new_holds.discard(self)
        if self.is_listed:
            for root, part in zip(self.roots, self.region.parts, strict=False):
                root.unlist_hold(part, self)
        self.roots = ()


class Ledger:
    """All loads in flight, all holds and all partitions of the process, by root.

    Attributes:
        timed_holds: the holds with an end, as a heap: when to look at it, a number, the hold.
        holds: every hold.
        serial: the number of invalidations so far.
        links: how often a root was given another tool.
        writes: the holds of writes in flight. While there are any, the entries that invalidations name are noted.
    """

    def __init__(self) -> None:
        # Re-entrant: a garbage collection that starts inside may close an abandoned call, whose clean-up locks again.
        self.lock = threading.RLock()
        self._roots: weakref.WeakValueDictionary[str, Root] = weakref.WeakValueDictionary()
        self._groups: weakref.WeakValueDictionary[int, PartitionGroup] = weakref.WeakValueDictionary()
        self.holds: set[Hold] = set()
        self._key_holds = Places()
        self.timed_holds: list[tuple[float, int, Hold]] = []
        self.serial = 0
        self.links = 0
        self.writes: set[Hold] = set()
        self._named: dict[tuple[int, Hashable], int] = {}
        self._named_floor = 0
        os.register_at_fork(
            before=self.lock.acquire, after_in_parent=self.lock.release, after_in_child=self._reset_in_child
        )

    def _reset_in_child(self) -> None:
        """End the writes and loads of the parent process, which nothing would end in a forked child."""
        try:
            for hold in list(self.holds):
                if hold.until == NEVER:
                    self.release(hold)
            for load in self._open_loads():
                load.mark_dirty()
                load.finish()
        finally:
            self.lock.release()

    def _root(self, name: str) -> Root:
        root = self._roots.get(name)
        if root is None:
            root = self._roots[name] = Root(name)
        return root

    def _roots_of(self, region: Region) -> tuple[Root, ...]:
        return tuple([self._root(part.root) for part in region.parts])

    # Partitions

    def register(self, partition: Partition) -> None:
        """Let writes to its roots reach a partition, as long as it exists."""
        group = partition.group
        self._groups[id(group.tool)] = group
        self.extend(group, group.roots)
        if partition.owner is None:
            group.partition, group.store = weakref.ref(partition), partition.store
        else:
            group.sessions[partition.owner] = partition

    def extend(self, group: PartitionGroup, roots: Iterable[str]) -> None:
        """Let writes to these roots, too, reach the entries and loads of a tool."""
        for name in tuple(roots):
            if group.roots.get(name) is None:
                root = group.roots[name] = self._root(name)
                root.add(group)
                self.links += 1

    def unregister(self, partition: Partition) -> list[Any]:
        """Let no write reach a partition any more, since its session has ended. Returns what was dropped."""
        return partition.close()

    def groups(self) -> list[PartitionGroup]:
        """The partitions of every tool."""
        return list(self._groups.values())

    def partitions(self) -> list[Partition]:
        """Every partition that a write can reach."""
        return [partition for group in self.groups() for partition in group.partitions()]

    def tools_under(self, root: str) -> list[Any]:
        """Every tool whose entries may depend on a root."""
        found = self._roots.get(root)
        return [] if found is None else [group.tool for group in found.tools()]

    # Loads

    def add_tags(self, load: Load, tags: Sequence[Tag]) -> None:
        """Compare every write from now on with more tags of a load, which are among its `dependencies` by now."""
        group = load.partition.group
        for tag in tags:
            if group.roots.get(root := root_of(tag)) is None:
                self.extend(group, (root,))
        if load.since >= 0:
            load.add_places(tags)

    def _open_loads(self) -> list[Load]:
        return [load for group in self.groups() for load in (*group.starting, *group.loads)]

    def loads_in_flight(self) -> int:
        """The number of loads that have started and not ended. For diagnosis and tests."""
        return len(self._open_loads())

    def may_store(self, load: Load, tags: Sequence[Tag]) -> bool:
        """Whether the result of a load may be stored: no write since it started, none in flight, none in doubt.

        Args:
            tags: everything that the entry will depend on, the tags from the result included.
        """
        if load.is_clean and load.since >= 0 and load.late_roots:
            self._resolve(load, tags)
        return load.is_clean and not (self.holds and self.is_held(tags, load.partition, load.key))

    def _resolve(self, load: Load, tags: Sequence[Tag]) -> None:
        """Compare the writes that happened meanwhile with the tags that the result has given."""
        roots, owner = load.partition.group.roots, load.partition.owner
        for name, under in _by_root(tags):
            root = roots.get(name)
            if root is not None and load in root.late and root.was_written(under, owner, load.since):
                load.is_clean = False
                return

    def is_held(self, tags: Sequence[Tag], partition: Partition, key: Hashable, *, beside: Hold | None = None) -> bool:
        """Whether a write in flight or in doubt keeps an entry from being stored.

        Args:
            beside: a hold that does not count.
        """
        for name, under in _by_root(tags):
            root = self._roots.get(name)
            if root is not None:
                for holds in root.holds_on(under, partition.owner):
                    if beside is None or holds != {beside}:
                        return True
        if not self._key_holds.sets:
            return False
        holds = {*self._key_holds.under((id(partition.tool), key)), *self._key_holds.under(id(partition.tool))}
        return any(hold is not beside and hold.region.reaches(partition.owner) for hold in holds)

    def was_overlapped(self, hold: Hold, tags: Sequence[Tag], partition: Partition, key: Hashable) -> bool:
        """Whether another write has touched these tags, or this entry, since a write began, or is about to.

        Args:
            hold: that of the write, which has not been released. Only tags under its own roots, and under those of the
                tools whose entries it names, can be answered for.
        """
        named, tool = self._named.get, id(partition.tool)
        if max(self._named_floor, named((tool, key), 0), named((tool, EVERY_KEY), 0)) > hold.since:
            return True
        if self.is_held(tags, partition, key, beside=hold):
            return True
        roots = {root.name: root for root in (*hold.roots, *hold.watched)}
        return any(
            (root := roots.get(name)) is None or root.was_written(under, partition.owner, hold.since)
            for name, under in _by_root(tags)
        )

    def clear(self, tool: object | None = None) -> list[Any]:
        """Drop all entries, of one tool or of all, and let none of their loads in flight be stored or joined."""
        groups = [group for group in self.groups() if tool is None or group.tool is tool]
        self.serial += 1
        for group in groups:
            self._note_named(group.tool, EVERY_KEY)
            for load in (*group.starting, *group.loads):
                load.mark_dirty()
        partitions = [partition for group in groups for partition in group.partitions()]
        return [partition.store.drop_all() for partition in partitions if not partition.is_outdated]

    def clear_dependents(self, tool: object) -> list[Any]:
        """Drop what has read any entry of a tool, and let no load that has read one be stored or joined."""
        group = self._groups.get(id(tool))
        tags = () if group is None or group.tool is not tool else group.tags_below(EVERY_KEY)
        return self.invalidate(Region(tags)) if tags else []

    # Writes

    def begin(self, region: Region, held: Region) -> tuple[Hold, list[Any]]:
        """Begin a write: drop what it is known to touch, and hold what it may touch until `end`.

        Args:
            held: the same region, or a wider one.

        Returns:
            The hold, and the dropped objects as `invalidate` does.
        """
        roots = self._roots_of(held)
        garbage = self.invalidate(region, roots if held is region else ())
        hold = self.hold(held, roots=roots)  # after it, to be told of other writes only
        hold.emptied = region
        return hold, garbage

    def end(
        self,
        hold: Hold,
        region: Region,
        late: Region | None = None,
        settled: Region | None = None,
        until: float = NEVER,
    ) -> list[Any]:
        """End a write: release its hold, and invalidate what it has touched.

        Under a hold nothing is stored. So there are no entries to look for in the region that it began with.
        If Ctrl-C interrupts it, it may be repeated.

        Args:
            region: the region that it began with.
            late: what else it has touched, or may have.
            settled: what is held further on.
            until: the clock reading until which it is.
        """
        is_empty = hold.emptied is region and not hold.is_released  # so never when it is repeated
        roots = hold.roots if hold.region is region else ()
        self.release(hold)
        if settled is not None and (settled.parts or settled.keys):
            self.hold(settled, until)
        garbage = self.invalidate(region, roots, is_empty=is_empty)
        if late is not None:
            garbage += self.invalidate(late)
        return garbage

    def hold(self, region: Region, until: float = NEVER, roots: tuple[Root, ...] = ()) -> Hold:
        """Let nothing in a region be stored, until the hold is released or until a clock reading.

        While it is a write in flight, what other writes name is noted, for `was_overlapped`.

        Args:
            roots: those of its parts, if they are known.
        """
        is_timed = until != NEVER
        if is_timed and len(self.timed_holds) >= _MAX_TIMED:
            widest = self._widest_timed(region, until)
            if widest is not None:
                return widest
            region, roots = _widened(region), ()
        hold = Hold(region, until, self.serial, roots or self._roots_of(region))
        try:
            self.holds.add(hold)
            if not is_timed:
                self.writes.add(hold)
            for root in hold.roots:
                root.new_holds.add(hold)
                if not is_timed:
                    root.watchers.add(hold)
            if is_timed or len(self.holds) > _UNLISTED:
                hold.enter_indexes()
            for tool, key in region.keys:
                self._key_holds.add(id(tool) if key is EVERY_KEY else (id(tool), key), hold)
            if region.keys and not is_timed:
                named = [group for tool, _ in region.keys if (group := self._groups.get(id(tool))) is not None]
                hold.watched = tuple({root for group in named for root in group.roots.values() if root is not None})
                for root in hold.watched:
                    root.watchers.add(hold)
            if is_timed:
                heapq.heappush(self.timed_holds, (until, id(hold), hold))
        except KeyboardInterrupt:  # the caller does not know it, so nobody would release it
            self.release(hold)
            raise
        return hold

    def _widest_timed(self, region: Region, until: float) -> Hold | None:
        """A hold of these whole roots and tools, extended until then; None if there is none."""
        found: set[Hold] | None = None
        for part in region.parts:
            root = self._roots.get(part.root)
            holds = set() if root is None else {h for h in root.held.under((None, part.root)) if h.until < NEVER}
            found = holds if found is None else found & holds
        for tool in {id(tool) for tool, _ in region.keys}:
            wide = {h for h in self._key_holds.under(tool) if h.until < NEVER and h.region.owners is None}
            found = wide if found is None else found & wide
        for hold in found or ():
            hold.until = max(hold.until, until)  # `expire_holds` puts it back into the heap when its turn comes
            return hold
        return None

    def release(self, hold: Hold) -> None:
        """End a hold. It may have ended, or half-way: Ctrl-C may have interrupted this."""
        hold.is_released = True
        self.holds.discard(hold)
        self.writes.discard(hold)
        if not self.writes and self._named:
            self._named = {}
        for root in hold.roots:
            root.unwatch(hold)
        hold.leave_indexes()
        for tool, key in hold.region.keys:
            self._key_holds.discard(id(tool) if key is EVERY_KEY else (id(tool), key), hold)
        for root in hold.watched:
            root.unwatch(hold)
        hold.watched = ()

    @property
    def holds_anything(self) -> bool:
        """Whether any write is in flight or in doubt."""
        return bool(self.holds)

    def release_all(self) -> None:
        """Release every hold."""
        for hold in list(self.holds):
            self.release(hold)
        self.timed_holds.clear()

    def expire_holds(self, now: float) -> list[Any]:
        """Release the holds whose time is over, and invalidate their regions.

        A load that began during a hold, when the effect of the write may not have landed yet, is not stored and not
        joined after it. If very many are over at once, some stay until the next call: see `is_behind`.
        """
        garbage: list[Any] = []
        names, timed = _EXPIRED_AT_ONCE, self.timed_holds
        while timed and names > 0 and timed[0][0] <= now:
            hold = heapq.heappop(timed)[2]
            if hold.until > now:
                heapq.heappush(timed, (hold.until, id(hold), hold))  # it was extended
            elif not hold.is_released:
                self.release(hold)
                garbage += self.invalidate(hold.region)
                names -= 1 + len(hold.region.paths) + len(hold.region.keys)
        return garbage

    def is_behind(self, now: float) -> bool:
        """Whether there are holds that are over and have not been released yet. They still hold."""
        return bool(self.timed_holds) and self.timed_holds[0][0] <= now

    def invalidate(self, region: Region, roots: tuple[Root, ...] = (), *, is_empty: bool = False) -> list[Any]:
        """Mark and detach the loads that a region touches, and drop the entries.

        Args:
            roots: those of its parts, if they are known: to find one takes 0.15 us.
            is_empty: whether there are no entries under its tags.

        Returns:
            The dropped objects, for the caller to free outside the lock, in slices.
        """
        garbage: list[Any] = []
        self.serial = serial = self.serial + 1
        room = _MANY
        for at, part in enumerate(region.parts):
            root = roots[at] if roots else self._roots.get(part.root)
            if root is not None:
                root.mark_loads(part, region, serial)
                if not is_empty:
                    for group in root.tools_met_by(part):
                        room = group.drop(part, region, garbage, room)
        for tool, key in region.keys:
            garbage.extend(self._invalidate_key(tool, key, region))
        return garbage

    def _invalidate_key(self, tool: object, key: Hashable, region: Region) -> Iterator[Any]:
        group = self._groups.get(id(tool))
        if group is None or group.tool is not tool:
            return
        if key is EVERY_KEY:
            yield from self.clear(tool)
            yield from self.clear_dependents(tool)
            return
        self._note_named(tool, key)
        _index(group.starting, self.serial)
        for load in list(group.by_key.under(key)):
            if region.reaches(load.partition.owner):
                load.mark_dirty()
                load.leave_places()
        yield from group.drop_key(key, region)
        tags = group.tags_below(key)
        if tags:
            yield from self.invalidate(Region(tags, owners=region.owners))

    def _note_named(self, tool: object, key: Hashable) -> None:
        """Note that an entry was invalidated by its key, for the writes in flight."""
        if self.writes:
            self._named[id(tool), key] = self.serial
            if len(self._named) > _MAX_WRITTEN:
                self._named, self._named_floor = {}, self.serial


def _by_root(tags: Iterable[Tag]) -> Iterable[tuple[str, list[Tag]]]:
    """These tags under each of their roots."""
    under: dict[str, list[Tag]] = {}
    for tag in tags:
        root = root_of(tag)
        if root in under:
            under[root].append(tag)
        else:
            under[root] = [tag]
    return under.items()


def _widened(region: Region) -> Region:
    """A region of the whole roots and tools that another one names a part of."""
    return Region(
        tuple(part.root for part in region.parts),
        every_key_of(region.keys),
    )
