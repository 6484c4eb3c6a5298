"""What the tiers of other processes tell by the file: their writes, and ttls that are set at run time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from agent_cache.remote.file.cell_names import CellNames
from agent_cache.remote.file.database import Database
from agent_cache.remote.protocol import Listener, Touched
from agent_cache.remote.reports import Log

__all__ = ["FileTtls", "ChangeFeed"]

TtlListener = Callable[[Mapping[str, float]], None]


class ChangeFeed:
    """Writes of other tiers, handed to the listeners of this one. For any thread.

    Attributes:
        origin: what marks the messages of this tier.
        listeners: see `Tier.subscribe`.
        applied: the number of the last message that was handled; None if none was looked for yet.
        received: writes of others so far.
    """

    def __init__(self, names: CellNames, log: Log) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.applied: int | None = None
        self.received = 0
        self._names = names
        self._log = log
        self.after_fork()

    def after_fork(self) -> None:
        """In the child, which is another process: its messages are not its parent's."""
        self.origin = secrets.randbits(62)
        self._lock = threading.RLock()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a listener told of what comes from now on.

        Returns:
            What ends that.
        """
        own = partial(listener)  # one object for each subscription
        with self._lock:
            if not self.listeners:
                self.applied = None  # not the page's: it may count one that is being written
            self.listeners += (own,)

        def end() -> None:
            with self._lock:
                self.listeners = tuple(each for each in self.listeners if each is not own)

        return end

    def look(self, database: Database) -> None:
        """Handle what is new."""
        with self._lock:
            if self.applied is None:
                self.applied = database.last_number()
            are_missing, changes = database.changes_since(self.applied)
            if are_missing:
                self.tell_of_all()
            for change in changes:
                if change.origin != self.origin:
                    self.received += 1
                    touched = self._names.touched(change.root, change.cells, change.entries)
                    if touched is None or change.are_all:
                        self.tell_of_all()
                    elif touched.tags or touched.keys:
                        self._tell(touched)
                self.applied = change.number

    def lose(self) -> None:
        """The files were replaced, so anything may have changed."""
        with self._lock:
            self.applied = None
            self.tell_of_all()

    def tell_of_all(self) -> None:
        """Have the listeners drop all copies."""
        forgotten = self._names.forgotten
        self._tell(None)
        self._names.understood = forgotten  # no older copy is left

    def _tell(self, touched: Touched | None) -> None:
        for listener in self.listeners:
            try:
                listener(touched)
            except Exception as error:  # noqa: BLE001 - the user's function, in a thread that all depend on
                self._log.once("a listener raised", error)


class FileTtls:
    """Ttls that are set at run time, as one tier knows them, and changes on their way to the file. For any thread.

    Attributes:
        unsent: changes that are not in the file yet, by tool; None takes a ttl back.
    """

    def __init__(self) -> None:
        self.unsent: dict[str, float | None] = {}
        self._known: dict[str, float] = {}
        self._listeners: tuple[TtlListener, ...] = ()
        self._seen = -1  # the page's number of them
        self.after_fork()

    def after_fork(self) -> None:
        """In the child."""
        self._lock = threading.RLock()

    def set(self, tool: str, ttl: float | None) -> None:
        """Set one here. `exchange` writes it."""
        with self._lock:
            self.unsent[tool] = ttl
            self._known = _with_ttl(self._known, tool, ttl)
            known, listeners = self._known, self._listeners
        for listener in listeners:
            listener(known)

    def follow(self, listener: TtlListener) -> Callable[[], None]:
        """Have a listener told of all that are set, now and after each change.

        Returns:
            What ends that.
        """
        own = partial(listener)
        with self._lock:
            self._listeners += (own,)
            known = self._known
        if known:
            own(known)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not own)

        return end

    def look(self, database: Database) -> None:
        """Exchange them with the file, if there is a change on one side."""
        if self.unsent or (self._listeners and database.page.ttls != self._seen):
            self.exchange(database)

    def lose(self) -> None:
        """The files were replaced: read them again."""
        with self._lock:
            self._seen = -1

    def exchange(self, database: Database) -> None:
        """Write the changes of this tier, and read those of others."""
        for tool, ttl in list(self.unsent.items()):
            database.set_ttl(tool, ttl)
            with self._lock:
                if self.unsent.get(tool, _ABSENT) == ttl:
                    del self.unsent[tool]
        seen = database.page.ttls  # first: what is set meanwhile is read the next time
        ttls = database.ttls()
        with self._lock:
            for tool, ttl in self.unsent.items():
                ttls = _with_ttl(ttls, tool, ttl)
            self._seen = seen
            is_new, self._known, listeners = ttls != self._known, ttls, self._listeners
        for listener in listeners if is_new else ():
            listener(ttls)


_ABSENT: Final = object()


def _with_ttl(ttls: Mapping[str, float], tool: str, ttl: float | None) -> dict[str, float]:
    return {name: each for name, each in ttls.items() if name != tool} | ({} if ttl is None else {tool: ttl})
