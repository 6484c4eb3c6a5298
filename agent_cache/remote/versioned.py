"""A coherent tier over any store of versions.

It keeps one promise: a value that `lookup` finds was loaded after the last write that `commit` acknowledged for any of
its tags, and a value that is stored under a `Ticket` counts only if no `begin` and no `commit` came between the lookup
that gave the ticket and the `store`.

A value is stored with the versions of everything that it depends on, its *cells*, as they were before its load, and
counts while all of them are current. A write gives the cells that it touches a new version before its side effect and
after it; in between they are *held*: what was read meanwhile is never found. If only its result will name an entity,
its root is *armed*: hits go on, but a writer that dies then takes the whole root with it. What others write reaches
this process by the `Feed`. All of that is here; a `Backend` is a few atomic operations on cells.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, Self

import msgspec

from agent_cache.at_fork import notice_fork
from agent_cache.clock import CLOCK, boottime
from agent_cache.core.lease import Lease, Term
from agent_cache.core.options import count, seconds
from agent_cache.core.tags import root_of
from agent_cache.core.versions import VERSIONS
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.backend import ARMED, HELD, IDLE, Backend, Head, Reading, Refused, checked_namespace, drive
from agent_cache.remote.cells import EVERYTHING, STORE, Cell, Cells
from agent_cache.remote.codecs import Codec, MessagePackCodec, Undecodable, Unencodable
from agent_cache.remote.feed import LOST, Feed, Log, Message
from agent_cache.remote.keeper import TIERS, Keeper
from agent_cache.remote.protocol import Found, Listener, Request, Versions, WriteIntent

__all__ = ["Ticket", "Tier", "VersionedTier"]

_MOST_CELLS: Final = 1_024
"""Cells of one value, inherited ones included. One that depends on more is not stored."""
_MOST_LATE: Final = 256
"""Entities that one result may name before it depends on their whole roots instead."""
_MOST_PENDING: Final = 1_000
_MOST_LOADERS: Final = 2
"""Of other processes that a reader waits for. The second one replaces a process that has died."""
UNUSABLE = "it cannot be used, so the tools run without it"


@dataclass(slots=True, eq=False)
class _Pending:
    """A step that is not known to have landed; a message of None is for everything. Nobody waits for the first sending
    of one that is held: all that it changes has been since it began. One that has failed is missing in the store.
    """

    send: Callable[[bytes], Awaitable[int]]
    message: Message | None
    hold: float = 0.0
    is_held: bool = False
    may_wait: bool = False
    has_failed: bool = False
    has_landed: bool = False


class Ticket:
    """The cells that a lookup saw. Without any, the store could not be asked, and nothing is stored.

    Attributes:
        seen: these cells, or those of the value that was found.
        known: the tags and roots known so far: for messages.
        versions: of everything that the value depends on that was found or stored, for reads that depend on it. None if
            one is not known, or a write was running on one: nothing that depends on the value is stored then.
        asked, started: when the lookup began; `started` by a clock that runs while the machine is suspended.
        ahead: seconds that the clock of the backend is ahead of this process's, at the least.
        since: the version of the feed before it.
        claim: name and claimant of the claim to the load, if this process has it.
    """

    __slots__ = "ahead", "asked", "claim", "known", "place", "request", "seen", "since", "started", "tier", "versions"

    def __init__(self, tier: Any, request: Request) -> None:
        self.tier = tier
        self.request = request
        self.place = place = tier.cells.place_of(request)
        self.seen: Mapping[Cell, tuple[Any, int]] = {}
        self.known: tuple[str, ...] = request.tags + request.late_roots
        if place.address is not None:
            self.known += (place.address,)
        self.asked = CLOCK.now()
        self.started = boottime()
        self.ahead = 0.0
        self.since = tier.feed.versions.now
        self.versions: Versions | None = None
        self.claim: tuple[str, str] | None = None

    @property
    def lasts(self) -> float | None:
        """Seconds that a local copy may live; None for ever."""
        own, most = self.tier.remote_ttl if self.request.ttl is None else self.request.ttl, self.tier.longest_ttl
        return own if most is None or (own is not None and own < most) else most

    def is_clean(self) -> bool:
        """Whether a local copy may be stored: no dependency was being written at the lookup, or has been since.

        Under an armed root a value may be stored in the tier, where it ends with its writer's lease. A copy would not.
        """
        if not self.seen or self.request.strong or not self.is_idle() or not self.tier.trust.is_valid():
            return False
        return not self.tier.feed.is_touched(self.known, self.since)

    def is_doubted(self) -> bool:
        """Whether what has read the value may not be stored: a write may overlap it."""
        return self.versions is None if self.request.strong else not self.is_clean()

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for."""
        if self.is_held() or self.tier.feed.is_touched(self.known, self.since):
            return False
        bound: float = self.tier.max_staleness
        is_young = CLOCK.now() < self.asked + bound and boottime() < self.started + bound
        return is_young or bool(self.seen and self.tier.trust.is_valid())

    def is_idle(self) -> bool:
        """Whether nothing was being written."""
        return all([mode == IDLE for _, mode in self.seen.values()])  # noqa: C419 - a generator takes twice as long

    def is_held(self) -> bool:
        """Whether a write was running on something."""
        return any([mode == HELD for _, mode in self.seen.values()])  # noqa: C419 - likewise

    def give_up(self) -> None:
        """End the claim to the load, if there is one: it has ended, and was stored or will not be. It does not wait."""
        claim, self.claim = self.claim, None
        if claim is not None:
            self.tier.give_up(*claim)


class VersionedTier:
    """A tier over a `Backend`: what `RedisTier`, `FileTier` and `MemoryTier` are.

    Its methods may be called from several event loops and threads. None fails because a server does: it degrades,
    counts it and logs it once. Only `begin` may raise, for a tool with ``on_unreachable="refuse"``.

    Args:
        backend: the store.
        namespace: keeps the entries of different programs in one store apart.
        lease: seconds that what a process was writing when it died is held: its effect may still come.
        remote_ttl: seconds that a value lives whose tool has no ttl; None is as long as there is room.
        codec: how values are written; the default is MessagePack.
        max_value_size: bytes of the longest value; None is as much as the codec allows.
        max_staleness: seconds that local copies are served, from when the last but one answered question for the feed
            was sent. So long after the last one, a lookup asks first.

    Attributes:
        trust: the lease in all local copies.
        keeper: the thread that applies what others write, and delivers what is pending; None without one.

    Raises:
        ConfigurationError: if any of this cannot work.
    """

    never_waits = False
    """Whether no operation of the backend waits for anything but itself."""
    longest_ttl: float | None = None
    """Seconds that a value lives at most, whatever its tool says; None for no bound."""

    def __init__(
        self,
        backend: Backend,
        *,
        namespace: str = "agent_cache",
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta | None = 3600.0,
        codec: Codec | None = None,
        max_value_size: int | None = None,
        max_staleness: float | timedelta = 1.0,
    ) -> None:
        kind = type(self).__name__
        self.backend = backend
        if max_value_size is not None:
            count(1024, max_value_size, f"{kind}: max_value_size")
        if codec is None:
            codec = MessagePackCodec() if max_value_size is None else MessagePackCodec(max_size=max_value_size)
        if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
            raise ConfigurationError(f"{kind}: codec {codec!r} cannot encode and decode")
        self.codec = codec
        self.max_value_size: int = min(max_value_size or 1 << 62, getattr(codec, "max_size", 1 << 20))
        self.namespace = checked_namespace(namespace, kind)
        self.lease: float = seconds(lease, f"{kind}: lease")
        self.remote_ttl = None if remote_ttl is None else seconds(remote_ttl, f"{kind}: remote_ttl")
        self.cells = Cells(namespace)
        self.log = Log(repr(self))
        self.feed = Feed(self.codec, self.log)
        self.max_staleness = seconds(max_staleness, f"{kind}: max_staleness", zero=self.never_waits)
        self.heard = Term(boottime)
        self._answered = float("-inf")
        self.trust = Lease(self, stamp=0, term=Term(boottime))
        names = ("hits", "misses", "stores", "unencodable", "bad_values", "failures", "unannounced")
        self.counts = dict.fromkeys(names, 0)
        self.pending: dict[str, _Pending] = {}
        self.is_closed = False
        self.keeper: Keeper | None = Keeper()
        TIERS.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or sent: make one in each process")

    # Reads

    async def lookup(self, request: Request, *, lead: bool = False) -> tuple[Found | None, Ticket]:
        """Find a current answer, and take a ticket for storing one.

        Args:
            lead: of all processes that look up the answer so and miss it, one claims its load, for `lease` seconds: its
                ticket has a `claim`, to be given up when the load has ended. The others wait for its value, or until
                the claim has ended. Nobody waits for a load that a write has overtaken, or claims what a write holds.
        """
        self._keep_up()
        found, ticket = await self._look_up(Ticket(self, request))
        return await self._claim(ticket) if found is None and lead else (found, ticket)

    async def _look_up(self, ticket: Ticket) -> tuple[Found | None, Ticket]:
        if self.is_closed:
            self.log.once("the tier was closed, so nothing is found in it")
            return None, ticket
        place, found = ticket.place, None
        try:
            if self.pending:
                await self.flush()
            if self.feed.ttls is None or not (self.never_waits or self.heard.is_running()):
                await self.catch_up()
            ticket.since = self.feed.versions.now
            reading = await self.backend.read(place.depends_on | place.watches, place.address)
            ticket.ahead = reading.now - CLOCK.now()
            if reading.head is not None:
                found = await self._found(ticket, reading, reading.head)
            elif reading.raw_head:
                self._note_bad_value(ticket.request, "a damaged head")
            if found is None:
                ticket.seen = {cell: reading.states[cell] for cell in place.depends_on | place.watches}
            if not self.never_waits and not self.heard.is_running():
                raise Refused("it was stopped for a time, so what it says may be old")  # noqa: TRY301 - as an outage
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            self._note_failure(error)
            ticket.seen, ticket.versions, found = {}, None, None
        self.counts["misses" if found is None else "hits"] += 1
        return found, ticket

    async def _found(self, ticket: Ticket, reading: Reading, head: Head) -> Found | None:
        """The value, if every cell that it depends on has the version there."""
        request, place, states = ticket.request, ticket.place, reading.states
        assert place.address is not None
        most = IDLE if request.strong else ARMED
        for cell, version in head.versions.items():
            present, mode = states[cell]
            if present != version or mode > most:
                return None
        address, tags = place.address.encode(), request.tags
        try:
            value = self.codec.decode(reading.payload, request.returns, context=address + b"\n" + reading.raw_head)
            if head.late:
                late = self.codec.decode(head.late, list[str], context=b"tags of " + address)
                tags += tuple(msgspec.convert(late, list[str]))
        except Exception as error:  # noqa: BLE001 - damaged data, or a codec that was not made for it
            self._note_bad_value(request, error if isinstance(error, Undecodable) else type(error).__name__)
            return None
        if not (place.depends_on <= head.versions.keys() and {*request.late_roots} <= {*map(root_of, tags)}):
            return None  # of a tool that was declared otherwise
        found = await self._aged(ticket, head, reading.now, Found(value, tags, cost=head.cost))
        if found is None:
            return None
        ticket.seen = {cell: states[cell] for cell in head.versions}
        if ticket.is_idle():
            ticket.versions = head.versions
        entries = [cell for cell in head.versions if cell[0] == "@"]
        ticket.known = (*tags, *entries)
        for cell in entries:  # whoever writes one of these ends this one, too
            self.feed.entries.note(cell, request)
        return found

    def _note_bad_value(self, request: Request, reason: object) -> None:
        self.counts["bad_values"] += 1
        self.log.once("a value cannot be read", f"{request.tool}: {reason}")

    async def _aged(self, ticket: Ticket, head: Head, now: float, found: Found) -> Found | None:
        """Add age and remaining ttl. Within its grace a value is served while one process loads it again."""
        request, age = ticket.request, now - head.loaded + (CLOCK.now() - ticket.asked)
        if age < -1.0:  # a clock was set back, so how old it is nobody knows
            return None
        found.age = max(0.0, age)  # two clocks may run a little differently
        lasts = request.ttl if head.ttl is None or (request.ttl is not None and request.ttl < head.ttl) else head.ttl
        if lasts is None:
            return found
        found.ttl = left = lasts - found.age
        if left <= 0:
            if left + min(head.grace, request.grace) <= 0:
                return None
            name, me = f"refresh {ticket.place.address} {head.loaded}", os.urandom(8).hex()
            found.is_to_refresh = await self.backend.claim(name, me, self.lease) == me
        return found

    # Stores

    async def store(
        self,
        ticket: Ticket,
        value: Any,
        tags: tuple[str, ...],
        cost: float,
        *,
        age: float,
        ttl: float | None = None,
        inherited: Sequence[Versions] = (),
    ) -> None:
        """Store a value that was loaded after `ticket` was taken, unless a dependency was written since.

        A value that cannot be encoded is kept in this process alone, counted, and logged once.

        Args:
            tags: all dependencies of the value. With one that is neither in the request, nor under its `late_roots`,
                nor covered by `inherited`, where a root stands for its entities, it is not stored.
            cost: seconds its load took.
            age: seconds since its load started: its ttl counts from there.
            ttl: seconds that this very value may live, if that is less than the ticket `lasts`.
            inherited: `Ticket.versions` of *every* read that the load made, through this same tier: the value is found
                only while all of them are current. If two of them differ, it is of two times and not stored.
        """
        ticket.versions = None  # those of a value that was found are not those of this one
        place, seen, lasts, grace = ticket.place, ticket.seen, ticket.lasts, ticket.request.grace
        if self.is_closed or place.address is None or not place.depends_on <= seen.keys():
            return
        if any(seen[cell][1] == HELD for cell in place.depends_on):
            return
        if ttl is not None and (lasts is None or ttl < lasts):
            lasts = ttl
        keep = None if lasts is None else lasts + grace - age
        if keep is not None and keep <= 0:
            return
        try:
            if self.pending:
                await self.flush()
            versions = await self._versions(ticket, tags, inherited)
            if versions is None:
                return
            if ticket.is_idle():
                ticket.versions = versions
            loaded = CLOCK.now() + ticket.ahead - age
            head = Head(versions, loaded, lasts, grace, cost, ticket.request.tool)
            encoded = self._encoded(ticket, place.address.encode(), value, tags, head)
            if encoded is None:
                return
            await self.backend.put(place.address, *encoded, keep=keep)
            self.counts["stores"] += 1
            for cell in versions:
                if cell[0] == "@":
                    self.feed.entries.note(cell, ticket.request)
        except Exception as error:  # noqa: BLE001 - the caller has its result, and a later hit is not promised
            self._note_failure(error)

    async def _versions(
        self, ticket: Ticket, tags: tuple[str, ...], inherited: Sequence[Versions]
    ) -> dict[Cell, Any] | None:
        """The versions that a value depends on, as they were before its load; None if it must not be stored."""
        seen, late_roots = ticket.seen, ticket.request.late_roots
        versions = {cell: seen[cell][0] for cell in ticket.place.depends_on}
        if not _merge(versions, inherited):
            return None
        # Also those that a read in its load has named: the read may have come after a write, the load begun before it.
        late = [tag for tag in tags if tag not in ticket.request.tags and root_of(tag) in late_roots]
        for tag in tags:
            is_known = root_of(tag) in late_roots or all(cell in versions for cell in self.cells.read(tag))
            # A root may stand for its entities, if they were too many.
            if not is_known and (":" in tag or not any(cell.startswith(f"{tag}:") for cell in versions)):
                return None  # nobody knows under which version one was read
        if late:
            # The version of the entity is read only now. That it was not written during the load is proven by its root:
            # every write under it changes D, a write of all of it S, and neither was held before.
            some = late if len(late) <= _MOST_LATE else map(root_of, late)
            named = {cell for tag in some for cell in self.cells.read(tag)}
            roots = self.cells.whole(map(root_of, late))
            now = (await self.backend.read(named | roots | {STORE}, None)).states
            for cell in (*roots, STORE):
                if cell not in seen or seen[cell][1] == HELD or now[cell][0] != seen[cell][0]:
                    return None
            if not _merge(versions, ({cell: now[cell][0] for cell in named},)):
                return None
        return versions

    def _encoded(
        self, ticket: Ticket, address: bytes, value: Any, tags: tuple[str, ...], head: Head
    ) -> tuple[bytes, bytes] | None:
        """Head and payload of a value; None if it cannot be encoded, or is too large."""
        request = ticket.request
        late = [tag for tag in tags if tag not in request.tags]
        reason: object
        try:
            if late:
                late_tags = self.codec.encode(late, list[str], context=b"tags of " + address)
                head = msgspec.structs.replace(head, late=late_tags)
            raw_head = head.encode()
            payload = self.codec.encode(value, request.returns, context=address + b"\n" + raw_head)
        except Exception as error:  # noqa: BLE001 - an exception of the user's codec does not fail a call
            text, reason = "cannot be encoded", error if isinstance(error, Unencodable) else type(error).__name__
        else:
            if len(head.versions) > _MOST_CELLS:
                text, reason = "depends on too much", len(head.versions)
            elif len(payload) > self.max_value_size:
                text, reason = "is too large", len(payload)
            else:
                return raw_head, payload
        self.counts["unencodable"] += 1
        self.log.once(f"a result of {request.tool} {text}, so it is kept in this process alone", reason)
        return None

    async def discard(self, request: Request) -> bool:
        """Drop one answer, so that a load that is running does not bring it back. Returns whether there was one."""
        found, _ = await self._look_up(Ticket(self, request))
        await self.commit(WriteIntent(os.urandom(16).hex(), (), entries=(request,)), (), failed=False, hold=0.0)
        return found is not None

    # Loads that processes share

    async def _claim(self, ticket: Ticket) -> tuple[Found | None, Ticket]:
        me, pause, loaders = os.urandom(8).hex(), 0.005, dict[str, float]()
        name = ""
        try:
            while ticket.seen and not ticket.is_held() and ticket.place.address is not None:
                versions = sorted((cell, ticket.seen[cell][0]) for cell in ticket.place.depends_on)
                name = f"{ticket.place.address} {versions}"
                loader = await self.backend.claim(name, me, self.lease)
                if loader != me:
                    ends = loaders.setdefault(loader, boottime() + 2 * self.lease)  # also if a clock is set back
                    if len(loaders) > _MOST_LOADERS or boottime() > ends:
                        break
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, 0.1)
                # Also by who leads: another load may just have ended.
                found, ticket = await self._look_up(Ticket(self, ticket.request))
                if loader == me:
                    ticket.claim = name, me
                    if found is not None:
                        ticket.give_up()
                if found is not None or loader == me:
                    return found, ticket
        except Exception as error:  # noqa: BLE001 - what cannot be claimed is loaded
            self._note_failure(error)
        except BaseException:
            if name:
                self.give_up(name, me)
            raise
        return None, ticket

    def give_up(self, name: str, who: str) -> None:
        """Give up a claim: see `Ticket.give_up`. If that fails, it ends with its lease."""
        self._start(self._guarded(partial(self.backend.claim, name, who, 0.0)))

    # Writes

    def _entries(self, write: WriteIntent) -> set[Cell]:
        """The cells of the single entries that a write names."""
        return {address for one in write.entries if (address := self.cells.place_of(one).address) is not None}

    def _message(self, tags: Sequence[str], entries: Iterable[Cell]) -> Message:
        return Message(self.feed.origin, self.cells.named(tags), tuple(entries))

    async def _announce(self, write: WriteIntent, *, renew: bool) -> None:
        """Begin a write in the store, or let its lease begin anew."""
        if self.is_closed:
            raise Refused("the tier was closed")
        if self.pending and not renew:
            await self.flush()
        entries = self._entries(write)
        message = self._message((*write.tags, *write.late_roots), entries)
        held, armed = self.cells.written(write.tags) | entries, self.cells.whole(write.late_roots)
        encoded = message.encode(self.codec)
        number = await self.backend.begin(write.id, held, armed - held, self.lease, encoded, renew=renew)
        if not renew:
            self.feed.note_own(message, number)

    async def begin(self, write: WriteIntent) -> None:
        """Announce a write before its side effect. From now until `commit`, nothing it touches is stored.

        Raises:
            RemoteTierError: if the write is to be refused while the store cannot be used.
        """
        self._keep_up()
        try:
            await self._announce(write, renew=False)
        except Exception as error:
            if not (self.is_closed or write.on_unreachable == "refuse"):
                # Until it has landed, this process neither reads nor stores anything here.
                self._add(write, write.tags, failed=True, hold=0.0).has_failed = True
            self._note_failure(error)
            if write.on_unreachable == "refuse":
                raise RemoteTierError(
                    f"the write was not begun, because other processes could not be told of it: {error}", self
                ) from error

    async def renew(self, write: WriteIntent) -> None:
        """Extend the lease of a write that is still running."""
        if not self.is_closed:
            await self._guarded(partial(self._announce, write, renew=True))

    def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> Awaitable[None]:
        """End a write: everything it touched is dropped when this has run, or before anything else is read.

        It is noted in the call itself, not in the first step of a coroutine: the event loop may end before.

        Args:
            tags: all tags it touched, those from its result included.
            failed: its tags under `late_roots` are unknown, so everything under these roots is dropped.
            hold: seconds during which nothing under its tags may be stored yet (a write in doubt, or `settle`).
        """
        if self.is_closed:
            self.counts["unannounced"] += 1
            self.log.once("a write ended after the tier was closed; others serve what it has changed up to their ttl")
            return asyncio.sleep(0)
        return self._guarded(partial(self._send, write.id, self._add(write, tags, failed=failed, hold=hold)))

    def _add(self, write: WriteIntent, tags: Sequence[str], *, failed: bool, hold: float) -> _Pending:
        entries = self._entries(write)
        moved = self.cells.written(tags) | entries
        if failed:
            moved |= self.cells.whole(write.late_roots)
            tags = (*tags, *write.late_roots)
        if len(self.pending) >= _MOST_PENDING:  # one step that changes everything takes the place of them
            most = max(one.hold for one in self.pending.values())
            others = {name: one for name, one in self.pending.items() if one.message is not None and one.message.tool}
            all_of_them = partial(self.backend.commit, os.urandom(16).hex(), {EVERYTHING}, most)
            self.pending = others | {"all writes": _Pending(all_of_them, None, most, has_failed=True)}
        has_failed = write.id in self.pending  # to begin
        is_held = not (has_failed or failed or hold or write.late_roots)
        send = partial(self.backend.commit, write.id, moved, hold)
        one = _Pending(send, self._message(tags, entries), hold, is_held, has_failed=has_failed)
        self.pending[write.id] = one
        return one

    def _start(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run what its caller does not wait for. Without an event loop the thread delivers what is pending."""
        self._keep_up()
        if self.never_waits:
            drive(steps)
            return
        try:
            task = asyncio.get_running_loop().create_task(steps)
        except RuntimeError:
            steps.close()
        else:
            _RUNNING.add(task)
            task.add_done_callback(_RUNNING.discard)

    async def _guarded(self, begin: Callable[[], Awaitable[object]]) -> None:
        """Wait for something of the store, if it can be done. What is closed before its first step begins nothing."""
        try:
            await begin()
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            self._note_failure(error)

    async def _send(self, name: str, one: _Pending) -> None:
        one.may_wait = one.is_held
        try:
            number = await one.send(LOST if one.message is None else one.message.encode(self.codec))
        except BaseException:
            one.is_held, one.may_wait, one.has_failed = False, False, True
            raise
        one.has_landed = True
        if one.message is None:
            self.feed.lose()
        else:
            self.feed.note_own(one.message, number)
        if self.pending.get(name) is one:
            del self.pending[name]
            self._note_pending()
        if one.message is not None and one.message.tool and self.feed.number is not None:
            await self._read_ttls()

    async def flush(self) -> None:
        """Deliver what could not be delivered, before anything else: a process must not find what it has overwritten.
        What another caller delivers is sent once more: that ends nothing else, and nobody knows when the other lands.

        Raises:
            ConnectionError: if something is left.
        """
        for name, one in list(self.pending.items()):
            if not (one.may_wait or one.has_landed):
                await self._send(name, one)

    def _note_pending(self) -> None:
        """Called when a step has not landed, and when one that was pending has."""

    def _note_failure(self, error: Exception) -> None:
        self.counts["failures"] += 1
        if not getattr(self.backend, "is_over", False):
            self.log.once(UNUSABLE, error if isinstance(error, ConnectionError) else repr(error))
        if self.pending:
            self._note_pending()

    # What others write

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with the writes of other processes. Returns a function that ends this. For any thread."""
        end = self.feed.subscribe(listener)
        self._keep_up()
        self.receive()
        return end

    def _keep_up(self) -> None:
        """Start the thread that applies what others write, if there is to be one."""
        notice_fork()
        if self.keeper is not None and not self.is_closed:
            self.keeper.start(self)

    async def look_after(self) -> Awaitable[object]:
        """Apply what others have written, and deliver what is pending. Called by the thread again and again.

        Returns:
            What lasts until there may be news, or for a third of `max_staleness`.
        """
        period = self.max_staleness / 3
        try:
            await self.catch_up()
            self.log.allow_again(UNUSABLE)
            if self.pending:
                await self.flush()
        except ConnectionError as error:
            if not self.is_closed:
                self._note_failure(error)
            return asyncio.sleep(period / 2)
        return self.wait_for_news(period)

    def wait_for_news(self, period: float) -> Awaitable[object]:
        """What lasts until there may be news, and for so many seconds at most."""
        return asyncio.sleep(period)

    def receive(self) -> None:
        """Apply what others have written, where that does not wait."""

    async def catch_up(self) -> None:
        """Apply what others have written up to now.

        Values of the store count from then on for `max_staleness`. Local copies count from the question before, which
        had been answered when this one was sent: a server that was stopped may answer one before it executes the end of
        a write that has waited there for longer. Of a backend with a `failure`, only the thread asks, if there is one.

        Raises:
            ConnectionError: if that cannot be known.
        """
        failure, keeper = getattr(self.backend, "failure", None), self.keeper
        if failure and keeper is not None and keeper.is_alive() and not (keeper.is_here() or self.is_closed):
            raise Refused(failure)
        before, asked = self._answered, boottime()
        news = await self.backend.feed(since := self.feed.number)
        if since is None and self.feed.number is not None:  # another first look was answered: what lies between
            news = await self.backend.feed(self.feed.number)
        self.feed.apply(news)
        self._answered = max(self._answered, asked)
        await self._read_ttls()
        self.heard.until = max(self.heard.until, asked + self.max_staleness)
        term = self.trust.term
        if term is not None and self.feed.listeners and self.feed.ttls is not None and not self.is_closed:
            term.until = max(term.until, before + self.max_staleness)

    async def _read_ttls(self) -> None:
        """Read all ttls if they are not known: where this process has set one, when that has landed. Those that are set
        later come with the feed, whose place is known.
        """
        while self.feed.ttls is None and not any(
            one.message and one.message.tool for one in list(self.pending.values())
        ):
            changes = self.feed.ttl_changes
            found = await self.backend.ttls()
            if changes == self.feed.ttl_changes:  # else another one was set meanwhile
                self.feed.set_ttls(found)

    async def caught_up(self) -> bool:
        """Wait until everything that was written so far has been applied. Returns whether that could be done."""
        self._keep_up()
        try:
            if self.pending:
                await self.flush()
            await self.catch_up()
        except ConnectionError as error:
            self._note_failure(error)
            return False
        return True

    def is_complete(self) -> bool:
        """Apply what others have written, in a hit, and say whether copies may be served. It does not wait."""
        return False

    # Ttls that are set at run time

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool in all processes, in seconds; None takes it back. It does not wait: it is delivered as
        soon as it can be. Of several for one tool the last one counts that has arrived.
        """
        if self.is_closed:
            self.log.once("a ttl was set after the tier was closed, so it stays in this process", tool)
            return
        name, send = f"ttl of {tool}", partial(self.backend.set_ttl, tool, ttl)
        message = Message(self.feed.origin, tool=tool, ttl=ttl)
        one = self.pending[name] = _Pending(send, message, is_held=True)
        self.feed.set_ttl(tool, ttl)
        self._start(self._guarded(partial(self._send, name, one)))

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """Call a listener with all ttls that are set, by the names of the tools, when they are known and after each
        change, in any thread. Returns a function that ends this.
        """
        self._keep_up()
        self.receive()
        return self.feed.follow_ttls(listener)

    # State and end

    async def clear(self) -> int:
        """Drop every value, and all copies in all processes; what is being loaded is not stored. Returns how many.

        Raises:
            RemoteTierError: if the store cannot be used: what was dropped is not known.
        """
        try:
            return await self.backend.clear()
        except Exception as error:
            raise RemoteTierError(f"not everything was dropped: {error}", self) from error

    def stats(self) -> dict[str, Any]:
        """Counts of this process since the tier was made, and its present state: a copy, to be logged or exported.

        Returns:
            ``hits``, ``misses``, ``stores``; ``unencodable`` (values that could not be encoded, were too large, or
            depend on too much); ``bad_values`` (forged, damaged or of another version); ``failures`` (lookups, stores
            and writes for which the store could not be used); ``unannounced`` (writes that ended when the tier was
            closed); ``invalidations`` (writes of others that were received), ``losses`` (how often some may have been
            missed), ``pending`` (own ones that have not landed), ``trusted`` (whether local copies are served now).
        """
        return self.counts | {
            "invalidations": self.feed.received,
            "losses": self.feed.losses,
            "pending": len(self.pending),
            "trusted": not self.is_closed and self.trust.is_valid(),
        }

    async def aclose(self) -> None:
        """Deliver what is pending, if that can be done at once, and close. Nothing is trusted any more, a write cannot
        be announced, and a read finds nothing.
        """
        if self.is_closed:
            return
        try:
            await self.flush()
        except ConnectionError as error:
            self.log.once("closed before all invalidations had landed; others serve what was changed", error)
        self.is_closed = True
        with VERSIONS.lock:
            self.trust.page, self.trust.stamp = (0,), -1
            self.feed.lose()
        await self.backend.aclose()
        if self.keeper is not None:
            self.keeper.stop()
            if not self.never_waits:
                await self.keeper.ended()

    # Forks

    def before_fork(self) -> Callable[[], None]:
        """Called in the parent. Returns what it does after it."""
        return self.backend.before_fork() if hasattr(self.backend, "before_fork") else lambda: None

    def after_fork(self) -> None:
        """In the child, which is another process: what is pending is delivered by the parent."""
        getattr(self.backend, "after_fork", lambda: None)()
        self.pending = {}
        self.feed.after_fork()
        self.heard, self._answered = Term(boottime), float("-inf")
        if self.trust.term is not None and not self.is_closed:
            self.trust.term.until = self.heard.until
        self.keeper = self.keeper and Keeper()

    async def __aenter__(self) -> Self:
        if self.is_closed:
            raise ConfigurationError(f"this {type(self).__name__} was closed; make a new one")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_RUNNING: Final[set[asyncio.Task[Any]]] = set()

Tier = VersionedTier
"""What annotations call it."""


def _merge(versions: dict[Cell, Any], more: Iterable[Versions]) -> bool:
    """Add the versions of further cells. Returns whether no cell has two: such a value would be of two times."""
    return all(versions.setdefault(cell, version) == version for each in more for cell, version in each.items())
