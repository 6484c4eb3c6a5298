"""Loads that several callers may wait for: a flight, its followers, and what it has read.

A flight keeps `since`, the version at which it began. Whether a reader that starts now may have its value is asked when
it would join: no write since then may concern a tag of the flight, nor one of a load that it leads or waits for now.
Whether its value may be stored is asked once more when it has ended: see `core.versions`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agent_cache.core.store import Entry, Store
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS, EntryTag, Path, paths_of
from agent_cache.engine.blocking import THREADS, Waiter, running_loop
from agent_cache.engine.inheritance import Inherited, Inherits

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Versions
    from agent_cache.remote.versioned import Ticket, Tier

__all__ = ["ALONE", "BECOME_LEADER", "STRANDED", "Failure", "Flight", "wake_stranded"]

BECOME_LEADER: Final = object()
"""Wakes a follower that must run the tool, because the leader was cancelled."""

STRANDED: Final[list[Flight]] = []
"""Flights whose leader had no room on the stack, or was interrupted, before it could wake those that wait for them."""


def wake_stranded() -> None:
    """Let those lead that wait for a flight whose leader could not wake them."""
    while STRANDED:
        STRANDED.pop().hand_over()


ALONE: weakref.WeakSet[Flight] = weakref.WeakSet()
"""Flights that no reader may join any more, or ever could, for `agent_cache.testing`; also some that have ended."""


class Failure:
    """The exception of a load, with the traceback and the context it had when it left the tool."""

    __slots__ = ("context", "error", "traceback")

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback = error.__traceback__
        self.context = error.__context__  # kept here, since followers in other threads may raise it at this moment

    def raise_again(self) -> NoReturn:
        """Raise it for one more follower."""
        try:
            raise BaseException.with_traceback(self.error, self.traceback)
        finally:
            # The exception that this follower was handling does not concern the others. A frozen class refuses to have
            # its attributes set, and would be replaced by the error about that.
            BaseException.__setattr__(self.error, "__context__", self.context)
            del self  # or the frame, which the error has, would have the error


class Flight:
    """One running load and the callers that wait for it.

    Attributes:
        store, key: where its result goes.
        id: its key and its event loop; `blocking.THREADS` in its place for a synchronous tool: all threads share it.
        tags: everything that it is known to depend on before it runs, the static tags included.
        late_roots: roots of the tags that are known only from the result.
        since: the version at which it began.
        leader: the call whose tool runs, until it has ended the flight or given it up.
        is_open: whether it has not ended.
        joinable: whether readers find it.
        is_clean: False if its value is not to be stored, whatever is written: somebody has asked for a newer one.
        is_cached: whether its result was cached: see `Inherits`.
        waiters: a future for each follower, in order, as keys: one that was interrupted is removed at once. None until
            there is one, and after the landing.
        waits_for: flights that calls made under this one wait for, or lead: the edges of the wait-for graph.
        reading: the decorated reads that it makes now, each with what is known of its tags.
        inherited: what it has read through other decorated reads; None as long as it has read nothing.
        tickets: one from each tier that was asked.
        claim: gives up its claim in a tier; None without one.
        result: the entry that followers are answered from, set by `store_result`.
        life: seconds that the value may live, None for ever. Set by `store_result` where the lives of results vary.
        end_tags: everything that its result depends on itself, static tags included; None until that is known.
        stored_tags: the same with what it has inherited, if no write has overlapped it: the tags for the tiers.
    """

    __slots__ = (
        "__weakref__", "_paths", "claim", "end_tags", "id", "inherited", "is_cached", "is_clean", "is_open", "joinable",
        "key", "late_roots", "leader", "life", "reading", "result", "since", "store", "stored_tags", "tags", "tickets",
        "waiters", "waits_for",
    )  # fmt: skip

    life: float | None

    def __init__(
        self,
        store: Store,
        id: tuple[Any, Any],  # noqa: A002 - the attribute's name
        tags: tuple[Tag, ...],
        late_roots: tuple[str, ...],
    ) -> None:
        self.store = store
        self.key = id[0]
        self.id = id
        self.tags = tags
        self.late_roots = late_roots
        self.since = store.versions.now
        self.is_clean = self.is_open = True
        self.is_cached = self.joinable = False
        self.leader: object = None
        self.claim: Callable[[], object] | None = None
        self.waiters: dict[Any, None] | None = None
        self.waits_for: list[Flight] | None = None
        self.result: Entry | None = None
        self.end_tags: tuple[Tag, ...] | None = None
        self.stored_tags: tuple[Tag, ...] | None = None
        self.tickets: tuple[Ticket, ...] = ()
        self.inherited: Inherited | None = None
        self.reading: dict[object, tuple[Tag | EntryTag, ...]] | None = None
        self._paths: tuple[Path, ...] | None = None  # of what it depends on by itself

    def restart(self) -> None:
        """Start again with another run of the tool, which earlier writes do not concern."""
        self.is_clean = self.is_open = True
        self.since = self.store.versions.now
        self.tickets = ()
        self.inherited = self.reading = self.end_tags = self.stored_tags = None

    # Whether its value counts

    def dependencies(self) -> tuple[Tag | EntryTag, ...]:
        """Everything that it is known to depend on by now, the roots of what is not known included."""
        inherited = self.inherited
        own: tuple[Tag | EntryTag, ...] = self.tags + self.late_roots
        if inherited is not None:
            own = (*own, *inherited.tags, *inherited.entries)
        if self.reading:
            own = (*own, *[tag for tags in list(self.reading.values()) for tag in tags])
        return own

    def is_current(self) -> bool:
        """Whether no write since it began concerns it, nor a load that it leads or waits for now."""
        if not self.waits_for and self.inherited is None and not self.reading:  # nearly all
            if self._paths is None:
                self._paths = paths_of(self.dependencies())
            return self.is_clean and not self.store.is_written(self.key, self._paths, self.since)
        return all(
            one.is_clean and not one.store.is_touched(one.key, one.dependencies(), one.since) for one in self._reached()
        )

    def may_be_joined(self) -> bool:
        """Whether a reader that starts now may have its value. A strong one asks the tier itself."""
        is_strong = self.store.tool.policy.remote.is_strong
        if is_strong or not self.is_open or not all(ticket.is_joinable() for ticket in self.tickets):
            return False
        return (self.inherited is None or self.inherited.is_trusted()) and self.is_current()

    @property
    def versions(self) -> Mapping[Tier, Versions | None]:
        """The versions of its value in the tiers of its tool, as far as they are known by now."""
        if self.stored_tags is None:
            return {}
        return {tier: ticket.versions for tier, ticket in zip(self.store.tool.tiers(), self.tickets, strict=False)}

    def give_up(self) -> None:
        """Do not store its value, and let no reader join it any more: it is older than what is asked for now."""
        self.is_clean = False
        self.detach()

    def detach(self) -> None:
        """Let no reader that starts later join."""
        if self.joinable:
            self.joinable = False
            self.store.flights.pop(self.id, None)
            ALONE.add(self)

    # What it reads. A task that it has left behind is no part of it: once it has ended, it inherits nothing.

    def begin_read(self, call: object, tags: tuple[Tag | EntryTag, ...], owner: object | None = None) -> None:
        """Depend on what a decorated read depends on that is about to be made, as far as it is known, until it has
        ended.

        Before the read is answered: who asks whether this load may be joined is to see it.

        Args:
            call: the read.
            tags: its tags, and the roots of those that are not known.
            owner: the session that the answer belongs to, if it does not belong to all. Callers in others are not to
                have what is this session's.
        """
        with VERSIONS.lock:
            self.reading = self.reading or {}
            self.reading[call] = tags
            if owner is not None and owner is not self.store.owner:
                self.detach()

    def end_read(self, call: object) -> None:
        """Take `begin_read` back: the read has not been answered."""
        with VERSIONS.lock:
            if self.reading:
                self.reading.pop(call, None)

    def inherit(self, read: Inherits, hit: Entry | None = None, call: object = None) -> None:
        """Depend on what a decorated read depends on that the load has made.

        Args:
            hit: the local entry that has answered it.
            call: what was given to `begin_read`.
        """
        with VERSIONS.lock:
            self.end_read(call)
            if self.is_open:
                self.inherited = self.inherited or Inherited()
                new = self.inherited.add(read, hit)
                if read.owners and not read.owners <= {self.store.owner}:
                    self.detach()
                self.store.tool.extend(new)
                for tiers in read.leases.values():
                    self.store.tool.depend_on(tiers)

    def inherit_tags(self, tags: tuple[Tag | EntryTag, ...]) -> None:
        """Depend on these tags, too."""
        with VERSIONS.lock:
            if self.is_open:
                self.inherited = self.inherited or Inherited()
                self.store.tool.extend(self.inherited.add_tags(tags))

    # Its followers. What concerns who waits is done under the lock of the versions: so nobody joins after the last look
    # at the waiters, and of a follower that is interrupted it is known whether it has become the leader.

    def finish(self) -> None:
        """End the load: no reader joins any more."""
        if self.joinable:
            self.joinable = False
            self.store.flights.pop(self.id, None)
        self.is_open = False  # last: after an interrupt the call that leads it ends it

    def land(self, outcome: object) -> None:
        """Give every follower the outcome."""
        with VERSIONS.lock:
            if self.is_open:
                self.finish()
            # Taken away first: a garbage collection that starts in the loop may close a follower, which leaves then.
            waiters, self.waiters = self.waiters, None
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(outcome)

    def join(self) -> Any:
        """Wait for the outcome. The caller holds the lock, in which it has found the flight, and runs in its loop.

        Returns:
            A future for this follower alone.
        """
        loop = self.id[1]
        waiter = Waiter() if loop is THREADS else loop.create_future()
        self.waiters = self.waiters or {}
        self.waiters[waiter] = None
        return waiter

    def leave(self, waiter: Any) -> None:
        """Remove a follower that was interrupted. If it had just become the leader, the next follower does."""
        with VERSIONS.lock:
            if waiter.done() and not waiter.cancelled() and waiter.result() is BECOME_LEADER:
                self.hand_over()
            elif self.waiters:
                waiter.cancel()  # it may not have been: its caller is closed, and does not wait any more
                self.waiters.pop(waiter, None)

    def hand_over(self) -> None:
        """Make the first follower that still waits the leader; without one the flight ends."""
        loop = self.id[1]
        with VERSIONS.lock:
            if self.waiters and loop is not THREADS and running_loop() is not loop:
                # The garbage collector closes an abandoned call, on whatever thread it runs.
                try:
                    loop.call_soon_threadsafe(self.hand_over)
                    return
                except RuntimeError:
                    self.waiters.clear()  # the loop is closed: nobody waits on it any more
            while self.waiters:
                waiter = next(iter(self.waiters))
                del self.waiters[waiter]
                if not waiter.done():
                    waiter.set_result(BECOME_LEADER)
                    return
            self.finish()

    # The wait-for graph. Calls of several threads may be made under a flight.

    def _reached(self) -> Iterator[Flight]:
        """This flight, and all that it leads or waits for now, directly or through others."""
        pending, seen = [self], {id(self)}
        while pending:
            flight = pending.pop()
            yield flight
            for under in tuple(flight.waits_for or ()):  # in one step: other threads remove some
                if id(under) not in seen:
                    seen.add(id(under))
                    pending.append(under)

    def would_wait_for(self, other: Flight) -> bool:
        """Whether this flight, directly or through others, waits for another one (or is it)."""
        return any(flight is other for flight in self._reached())

    def wait_for(self, other: Flight) -> None:
        """Note that something under this flight waits for another one."""
        with VERSIONS.lock:
            if self.waits_for is None:
                self.waits_for = []
            self.waits_for.append(other)
