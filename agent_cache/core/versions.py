"""Versions: the one rule of coherence in a process.

    A write gives the tags that it names a new version, when it begins and when it has ended. A value counts while no
    tag that it depends on has a newer version than the moment at which its load began.

So a write touches nothing but its own names, and a value is checked where it is used: an entry that nothing lists is
checked all the same. `Versions.now` grows with each begin and each end. A write of ``a:b:c`` gives versions to the
paths ``a:b:c``, ``a:b:*`` and ``a:*`` ("something below these was written"); who depends on ``a:b`` asks ``a:b``,
``a:b:*`` and what lies above, ``a``. In this order, which other threads rely on:

- A write enters its paths, then publishes the new `now`: who sees it sees every path of that write.
- A reader takes an entry, then reads `now`, then asks for the paths. It may note this `now` in the entry: until the
  next write one comparison is enough.

Between its begin and its end a write *holds* its paths, and for some time longer if it may still take effect: nothing
that depends on them is stored, so that what was read of a half-done write is not kept. When the time of a hold is over,
whoever stores, joins or starts a load next gives its paths a version again, and then removes the hold.

Only the last writes are known: two generations of paths, the older one dropped when the newer is full. What is older
than both counts as written. `tests/properties/versions_model.py` searches the rule for a stale answer, with each part
of it taken out.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from agent_cache.at_fork import at_fork
from agent_cache.core.tags import Tag, ancestors

__all__ = [
    "VERSIONS", "EntryTag", "Hold", "Versions", "Written", "all_paths", "entry_tag", "paths_of", "paths_read",
    "paths_written",
]  # fmt: skip

Path = Hashable
"""What has a version: a tag, ``tag:*`` for what lies below it, or an `EntryTag`."""

EntryTag = tuple[int, Hashable] | tuple[int]
"""The tag of the entry under a key of one tool, ``(number of the tool, key)``; ``(number,)`` for all of its entries."""

_BELOW: Final = object()
"""In the place of a key: an entry of this tool was written."""

GENERATION: Final = 16_000
"""How many paths one generation has."""


def entry_tag(number: int, key: Hashable) -> EntryTag:
    """The tag of an entry."""
    return (number, key)


def paths_read(tag: Tag | EntryTag) -> tuple[Path, ...]:
    """The paths whose versions concern what depends on a tag."""
    if isinstance(tag, tuple):
        return (tag, (tag[0], _BELOW)) if len(tag) == 1 else (tag, tag[:1])
    at = tag.find(":")
    if at < 0:
        return tag, tag + ":*"
    if at == tag.rfind(":"):  # nearly all
        return tag, tag + ":*", tag[:at]
    return tag, tag + ":*", *ancestors(tag)


def paths_of(tags: Sequence[Tag | EntryTag]) -> tuple[Path, ...]:
    """The paths whose versions concern what depends on any of these tags."""
    return paths_read(tags[0]) if len(tags) == 1 else tuple([path for tag in tags for path in paths_read(tag)])


def paths_written(tag: Tag | EntryTag) -> tuple[Path, ...]:
    """The paths that a write of a tag gives a version."""
    if isinstance(tag, tuple):
        return (tag,) if len(tag) == 1 else (tag, (tag[0], _BELOW))
    at = tag.find(":")
    if at < 0:
        return (tag,)
    if at == tag.rfind(":"):
        return tag, tag[:at] + ":*"
    return tag, *[above + ":*" for above in ancestors(tag)]


def all_paths(tags: Iterable[Tag | EntryTag], bare: Iterable[str]) -> tuple[Path, ...]:
    """The paths that a write of these tags gives a version, and of what depends on the whole of these roots."""
    paths = dict.fromkeys([path for tag in tags for path in paths_written(tag)])
    paths.update(dict.fromkeys([root + ":*" for root in bare]))
    return tuple(paths)


class Hold:
    """A write that runs, or one that may still take effect.

    Args:
        tags: what it holds.
        bare: roots of which it holds only what depends on the whole root.
        scopes: where: in the whole process, or in the sessions that the write is limited to.
        late: roots of what its result may name, which it does not hold.

    Attributes:
        paths: what it holds.
        since: the version that its begin has given; 0 before.
        until: the clock reading until which it holds, if it has ended and may still take effect.
    """

    __slots__ = ("late", "paths", "scopes", "since", "until")

    def __init__(
        self,
        tags: Sequence[Tag | EntryTag],
        bare: Iterable[str] = (),
        scopes: Sequence[Written] | None = None,
        late: tuple[str, ...] = (),
    ) -> None:
        self.paths = paths_written(tags[0]) if len(tags) == 1 and not bare else all_paths(tags, bare)
        self.scopes = (VERSIONS,) if scopes is None else scopes
        self.late = late
        self.since = 0
        self.until: float | None = None


_ZEROS: Final = itertools.repeat(0)
"""The version of each path of which none is known."""


class Written:
    """What was written lately, and what is held: in the whole process, or by writes that are limited to one session.

    Attributes:
        known: the paths that were written lately with their versions, the generation before that, and the version
            below which nothing is known. Replaced as one, so that a reader has three that belong together.
        held: the holds of each path: a set, or a tuple of one, which is made in a quarter of the time.
    """

    __slots__ = ("__weakref__", "_rotated", "held", "known")

    def __init__(self) -> None:
        self.known: tuple[dict[Path, int], dict[Path, int], int] = ({}, {}, 0)
        self.held: dict[Path, set[Hold] | tuple[Hold]] = {}
        self._rotated = 0

    def touches(self, paths: Sequence[Path], since: int) -> bool:
        """Whether a write that is newer than this version concerns what depends on these paths. Takes no lock."""
        latest, former, floor = self.known
        if since < floor or not paths:
            return since < floor
        if max(map(latest.get, paths, _ZEROS)) > since:
            return True
        return bool(former) and max(map(former.get, paths, _ZEROS)) > since

    def holds(self, paths: Sequence[Path], beside: Hold | None = None) -> bool:
        """Whether a write, but for that of the hold `beside`, concerns what depends on these paths, since it runs, or
        may still take effect.
        """
        if self.held:
            for path in paths:
                found = self.held.get(path)
                if found and (len(found) > 1 or beside is None or beside not in found or beside.until is not None):
                    return True
        return False

    def rotate(self, version: int) -> dict[Path, int]:
        """Begin a generation with this version. The caller holds the lock. Returns the one that is dropped, for the
        caller to free it after that.
        """
        latest, former, _ = self.known
        self.known = {}, latest, self._rotated
        self._rotated = version - 1
        return former


class Versions(Written):
    """The versions of everything that is written in this process.

    Attributes:
        now: the version of the last begin or end of a write.
        lock: taken around each change. Re-entrant: garbage collection and signals may end a write inside of it. No
            value, key or callback of a user's is touched under it.
        running: the holds of writes that run.
        timed: the holds with an end: clock reading, number, hold. A heap.
    """

    __slots__ = ("_numbers", "_of_sessions", "lock", "now", "running", "timed")

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.now = 1
        self.timed: list[tuple[float, int, Hold]] = []
        self.running: set[Hold] = set()
        self._numbers = itertools.count()
        self._of_sessions: weakref.WeakKeyDictionary[object, Written] = weakref.WeakKeyDictionary()

    def of_session(self, session: object) -> Written:
        """What writes that are limited to a session have written."""
        with self.lock:
            found = self._of_sessions.get(session)
            if found is None:
                found = self._of_sessions[session] = Written()
            return found

    def write(self, tags: Sequence[Tag | EntryTag]) -> int:
        """Give what these tags name a new version, which is returned."""
        return self.end(Hold(tags, scopes=(self,)))

    def write_everything(self) -> None:
        """Give everything a new version."""
        with self.lock:
            self.known = {}, {}, self.now + 1
            self._rotated = self.now
            self.now += 1

    # Begin and end of a write may be repeated, if they were interrupted: an interrupt can come wherever something has
    # been called, so each of their steps may be done twice.

    def begin(self, hold: Hold) -> int:
        """Give what a write names a version, which is returned, and hold it until its end."""
        freed: list[object] = []  # to be freed after the lock
        with self.lock:
            self.running.add(hold)
            while True:
                version = self.now + 1
                for scope in hold.scopes:
                    if len(scope.known[0]) >= GENERATION:
                        freed.append(scope.rotate(version))
                    latest, held = scope.known[0], scope.held
                    for path in hold.paths:
                        latest[path] = version
                        found = held.get(path)
                        if found is None:
                            held[path] = (hold,)
                        elif isinstance(found, set):
                            found.add(hold)
                        else:
                            held[path] = {*found, hold}
                if self.now < version:  # else a finalizer has written meanwhile
                    break
            hold.since = self.now = version
        return version

    def end(
        self, hold: Hold, tags: Sequence[Tag | EntryTag] = (), bare: Iterable[str] = (), until: float | None = None
    ) -> int:
        """Give what a write has named a version, which is returned, and hold it no more.

        Args:
            tags, bare: what it has written beside what it began with.
            until: the clock reading until which all of it is held further on, since the write may still take effect.
        """
        if tags or bare:
            more = paths_written(tags[0]) if len(tags) == 1 and not bare else all_paths(tags, bare)
            hold.paths = hold.paths + more if hold.paths else more
        freed: list[object] = []  # to be freed after the lock
        with self.lock:
            while True:
                version = self.now + 1
                for scope in hold.scopes:
                    if len(scope.known[0]) >= GENERATION:
                        freed.append(scope.rotate(version))
                    latest = scope.known[0]
                    for path in hold.paths:
                        latest[path] = version
                if self.now < version:  # else a finalizer has written meanwhile
                    break
            self.now = version
            if until is not None:
                self._hold_on(hold, until)
            elif hold.until is None:
                alone = (hold,)
                for scope in hold.scopes:
                    held = scope.held
                    for path in hold.paths:
                        found = held.get(path)
                        if isinstance(found, set):
                            found.discard(hold)
                        if found == alone or not found:
                            held.pop(path, None)
            self.running.discard(hold)
        return version

    def _hold_on(self, hold: Hold, until: float) -> None:
        """Hold what a write that has ended has named until a clock reading. The caller has the lock."""
        for scope in hold.scopes:
            for path in hold.paths:
                scope.held[path] = {*scope.held.get(path, ()), hold}
        heapq.heappush(self.timed, (until, next(self._numbers), hold))
        hold.until = until

    def expire(self, now: float) -> None:
        """Give what is held until before this clock reading a version, and hold it no more."""
        with self.lock:
            while self.timed and self.timed[0][0] <= now:
                item = self.timed[0]
                item[2].until = None
                self.end(item[2])
                if self.timed[0] is item:
                    heapq.heappop(self.timed)
                else:  # a finalizer has ended a write meanwhile
                    self.timed.remove(item)
                    heapq.heapify(self.timed)

    def release_all(self) -> None:
        """Hold nothing any more. For tests, between which nothing goes on."""
        self.expire(float("inf"))
        for hold in list(self.running):
            self.end(hold)

    def after_fork(self) -> None:
        """In the child, with the lock of before: what the parent writes ends there, and here nobody ends it."""
        for hold in list(self.running):
            self.end(hold, hold.late)
        self.now += 1
        with suppress(RuntimeError):  # nobody took it if Python was not told of the fork
            self.lock.release()


VERSIONS: Final = Versions()
"""Those of this process."""

at_fork(before=VERSIONS.lock.acquire, after_in_parent=VERSIONS.lock.release, after_in_child=VERSIONS.after_fork)
