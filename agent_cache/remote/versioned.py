"""A coherent tier over any store of versions: the protocol of `Tier`, once.

A value is stored with the versions of everything that it depends on, its *cells*, as they were before its load, and
counts while all of them are current. A write gives the cells that it touches a new version before its side effect and
after it; in between they are *held*: what was read meanwhile is never found. If only its result will name an entity,
its root is *armed*: hits go on, but a writer that dies then takes the whole root with it. What others write reaches
this process by the `Feed`. All of that is here; a `Backend` is a few atomic operations on cells.

Processes share loads by claims. A claim proves nothing: what another process has loaded is found by a whole lookup, as
any value. So a claim that is lost, or held by a process that has died, costs one more load.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, Self

import msgspec

from agent_cache.clock import CLOCK, boottime
from agent_cache.core.lease import Term
from agent_cache.core.options import count, refresh_window, seconds
from agent_cache.core.store import NEVER
from agent_cache.core.tags import root_of
from agent_cache.core.versions import VERSIONS
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.backend import (  # fmt: skip
    ARMED,
    HELD,
    IDLE,
    Backend,
    Head,
    Reading,
    Refused,
    checked_namespace,
    drive,
    encode_head,
)
from agent_cache.remote.cells import EVERYTHING, MOST_ENTITIES, STORE, Cell, Cells, whole_roots
from agent_cache.remote.codecs import Codec, MessagePackCodec, Undecodable, Unencodable
from agent_cache.remote.feed import Feed, FeedLease, Log, Message
from agent_cache.remote.protocol import Found, Listener, Request, SentCommit, Ticket, Versions, WriteIntent
from agent_cache.remote.tickets import VersionedTicket
from agent_cache.values.canonical import make_room

__all__ = ["UNUSABLE", "VersionedTier"]

_MOST_CELLS: Final = 1_024
"""Cells of one value, inherited ones included. One that depends on more is not stored."""
_MOST_LATE: Final = 256
"""Entities that one result may name before it depends on their whole roots instead."""
_MOST_PENDING: Final = 1_000
_ALL_WRITES: Final = "all writes"
_MOST_ASKED_FOR: Final = 4_096
"""Values of which it is remembered that their early reload was claimed, by this process or another."""
_SHORT_LOAD: Final = 0.002
"""Seconds of a load that is not worth a claim."""
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1
_MOST_LOADERS: Final = 2
"""Of other processes that a reader waits for. The second one replaces a process that has died."""
UNUSABLE = "it cannot be used, so the tools run without it"


@dataclass(slots=True, eq=False)
class _Pending:
    """A step that is not known to have landed, the seconds that what it has changed is held then, and the task that
    sends it.
    """

    send: Callable[[bytes], Awaitable[int]]
    message: Message
    hold: float = 0.0
    task: asyncio.Task[None] | None = None

    def is_on_its_way(self) -> bool:
        return self.task is not None and not self.task.done()


class VersionedTier:
    """A tier over a `Backend`. See `Tier` for its methods.

    Args:
        backend: the store.
        namespace: keeps the entries of different programs in one store apart.
        lease: seconds that what a process was writing when it died is held: its effect may still come.
        remote_ttl: seconds that a value lives whose tool has no ttl; None is as long as there is room.
        codec: how values are written; the default is MessagePack.
        max_value_size: bytes of the longest value; None is as much as the codec allows.
        max_staleness: seconds that local copies are served after the last question for the feed that was answered was
            sent: a lookup after that asks for it first. 0 lets none be served.

    Attributes:
        trust: the lease in all local copies.

    Raises:
        ConfigurationError: if any of this cannot work.
    """

    reloads_early = True
    """Whether values are reloaded before they end, or within their grace, by one process."""
    never_waits = False
    """Whether no operation of the backend waits for anything but itself."""
    copies_outlive_values = False
    """Whether `remote_ttl` bounds the values in the store alone, and not the copies in processes."""
    waits_after_writes = False
    """Whether others wait for what loads again what a write has invalidated, also if they were not asked to."""

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
        self.max_staleness = seconds(max_staleness, f"{kind}: max_staleness", zero=True)
        self.heard = Term(boottime)
        self._asleep = boottime() - time.monotonic()
        self.trust = FeedLease(self, term=Term(boottime))
        self.trust.stamp = 0
        names = ("hits", "misses", "stores", "unencodable", "bad_values", "failures", "unannounced")
        self.counts = dict.fromkeys(names, 0)
        self.pending: dict[str, _Pending] = {}
        self.is_closed = False
        self._held_until: dict[str, float] = {}
        self._asked_for: dict[str, None] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or sent: make one in each process")

    # Reads

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        self._keep_up()
        return await self._look_up(VersionedTicket(self, request))

    async def _look_up(self, ticket: VersionedTicket) -> tuple[Found | None, VersionedTicket]:
        if self.is_closed:
            self.log.once("the tier was closed, so nothing is found in it")
            return None, ticket
        place, found = ticket.place, None
        try:
            if self.pending:
                await self.flush()
            if self.feed.ttls_are_old or not (self.never_waits or self.heard.is_running()):
                await self.catch_up_with_ttls()
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
                raise Refused("it was stopped for a time, so what it says may be old")
        except ConnectionError as error:
            self._note_failure(error)
            ticket.seen, ticket.versions, found = {}, None, None
        self.counts["misses" if found is None else "hits"] += 1
        return found, ticket

    async def _found(self, ticket: VersionedTicket, reading: Reading, head: Head) -> Found | None:
        """The value, if every cell that it depends on has the version there."""
        request, place, states = ticket.request, ticket.place, reading.states
        assert place.address is not None
        most = IDLE if request.strong else ARMED
        for cell, version in head.versions.items():
            present, mode = states[cell]
            if present != version or mode > most:
                ticket.former_cost = head.cost
                return None
        if not place.depends_on <= head.versions.keys():
            return None  # of a tool that was declared otherwise
        address, tags = place.address.encode(), request.tags
        try:
            value = self.codec.decode(reading.payload, request.returns, context=address + b"\n" + reading.raw_head)
            if head.late:
                late = self.codec.decode(head.late, list[str], context=b"tags of " + address)
                tags += tuple(msgspec.convert(late, list[str]))
        except Exception as error:  # noqa: BLE001 - damaged data, or a codec that was not made for it
            self._note_bad_value(request, error if isinstance(error, Undecodable) else type(error).__name__)
            return None
        found = await self._aged(ticket, head, reading.now, Found(value, tags, cost=head.cost))
        if found is None:
            ticket.former_cost = head.cost
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

    async def _aged(self, ticket: VersionedTicket, head: Head, now: float, found: Found) -> Found | None:
        """Add age and remaining ttl. Within its grace, and shortly before its ttl ends, a value is served while one
        process loads it again.
        """
        request, age = ticket.request, now - head.loaded + (CLOCK.now() - ticket.asked)
        if age < -1.0:  # a clock was set back, so how old it is nobody knows
            return None
        found.age = max(0.0, age)  # two clocks may run a little differently
        lasts = request.ttl if head.ttl is None or (request.ttl is not None and request.ttl < head.ttl) else head.ttl
        if lasts is None:
            return found
        found.ttl = left = lasts - found.age
        if left <= 0 and (left + min(head.grace, request.grace) <= 0 or not self.reloads_early):
            return None
        if not self.reloads_early or not ticket.may_refresh:
            return found
        name = f"refresh {ticket.place.address} {head.loaded}"
        if left <= 0 or (left <= refresh_window(head.cost, lasts) and name not in self._asked_for):
            make_room(self._asked_for, _MOST_ASKED_FOR)
            self._asked_for[name] = None
            me = os.urandom(8).hex()
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
        """See `Tier`. A value that cannot be encoded is kept in this process alone, counted, and logged once."""
        if not isinstance(ticket, VersionedTicket) or ticket.tier is not self:
            return
        ticket.versions = None  # those of a value that was found are not those of this one
        place, seen, lasts, grace = ticket.place, ticket.seen, ticket.lasts, ticket.request.grace
        if self.is_closed or place.address is None or not place.depends_on <= seen.keys():
            return
        if any(seen[cell][1] == HELD for cell in place.depends_on):
            return
        if ttl is not None and (lasts is None or ttl < lasts):
            lasts = ttl
        keep = self.remote_ttl if lasts is None else lasts + grace - age
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
            await self.backend.put(place.address, *encoded, store=versions[STORE], keep=keep)
            self.counts["stores"] += 1
            for cell in versions:
                if cell[0] == "@":
                    self.feed.entries.note(cell, ticket.request)
        except ConnectionError as error:  # the caller has its result, and a later hit is not promised
            self._note_failure(error)

    async def _versions(
        self, ticket: VersionedTicket, tags: tuple[str, ...], inherited: Sequence[Versions]
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
            roots = whole_roots(map(root_of, late))
            now = (await self.backend.read(named | roots | {STORE}, None)).states
            for cell in (*roots, STORE):
                if cell not in seen or seen[cell][1] == HELD or now[cell][0] != seen[cell][0]:
                    return None
            if not _merge(versions, ({cell: now[cell][0] for cell in named},)):
                return None
        return versions

    def _encoded(
        self, ticket: VersionedTicket, address: bytes, value: Any, tags: tuple[str, ...], head: Head
    ) -> tuple[bytes, bytes] | None:
        """Head and payload of a value; None if it cannot be encoded, or is too large."""
        request = ticket.request
        late = [tag for tag in tags if tag not in request.tags]
        reason: object
        try:
            if late:
                late_tags = self.codec.encode(late, list[str], context=b"tags of " + address)
                head = msgspec.structs.replace(head, late=late_tags)
            raw_head = encode_head(head)
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
        """Invalidate the entry itself, so that a load that is running does not bring it back. See `Tier`."""
        found = None
        try:
            ticket = VersionedTicket(self, request)
            ticket.may_refresh = False
            found, _ = await self._look_up(ticket)
        finally:
            write = WriteIntent(os.urandom(16).hex(), (), entries=(request,))
            await self.commit(write, (), failed=False, hold=0.0)
        return found is not None

    # Loads that processes share

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """Lead the load of an answer that `lookup` has not found, or wait for the process that leads it.

        If the request says ``shares_load``, every load is claimed, for `lease` seconds and longer while `renew_claim`
        is called, and waited for until its value is there, or its claim has ended. Who has seen two loads end without
        a value loads itself. Nobody waits for a load that a write has overtaken, or claims what a write holds. On a
        server, what a write has invalidated is loaded by one process also without ``shares_load``, and the others wait
        for twice the time that its last load has taken.

        Args:
            may_wait: called before each pause, in the thread of this coroutine. Where it returns False, the caller
                loads itself: what it would wait for may be waiting for it.

        Returns:
            What another process has loaded meanwhile, and the ticket of that; else None, and a ticket for storing.
        """
        if not isinstance(ticket, VersionedTicket) or ticket.tier is not self or ticket.place.address is None:
            return None, ticket
        own, ends, now = ticket, NEVER, asyncio.get_running_loop().time
        if not request.shares_load:
            cost = own.former_cost
            if not self.waits_after_writes or request.strong or cost is None or cost < _SHORT_LOAD:
                return None, own
            ends = now() + 2 * cost + self.lease / 40
        me, name, pause = os.urandom(8).hex(), "", _SHORTEST_PAUSE
        loaders: set[str] = set()
        try:
            while own.seen and not own.is_held() and (ends == NEVER or now() < ends):
                versions = sorted((cell, own.seen[cell][0]) for cell in own.place.depends_on)
                name = f"{own.place.address} {versions}"
                loader = await self.backend.claim(name, me, self.lease)
                if loader != me:
                    loaders.add(loader)
                    if len(loaders) > _MOST_LOADERS or (may_wait is not None and not may_wait()):
                        break
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, _LONGEST_PAUSE)
                # Also by who leads: another load may just have ended.
                found, own = await self._look_up(VersionedTicket(self, request))
                if found is None and loader != me:
                    continue
                if found is None:
                    own.claim = name, me
                elif loader == me:
                    await self.backend.claim(name, me, 0.0)
                return found, own
        except ConnectionError as error:  # what cannot be claimed is loaded
            self._note_failure(error)
        except BaseException:
            if name:
                self._claim_soon(name, me, 0.0)
            raise
        return None, own

    def renew_claim(self, ticket: Ticket) -> None:
        """Let a claim last for another `lease`, if it is still one's own. It does not wait."""
        if isinstance(ticket, VersionedTicket) and ticket.claim is not None:
            self._claim_soon(*ticket.claim, self.lease, renew=True)

    def give_up(self, ticket: Ticket) -> None:
        """End what `claim` has claimed: the load has ended, and was stored or will not be. It does not wait."""
        if isinstance(ticket, VersionedTicket) and ticket.claim is not None:
            claim, ticket.claim = ticket.claim, None
            self._claim_soon(*claim, 0.0)

    def _claim_soon(self, name: str, who: str, lease: float, *, renew: bool = False) -> None:
        """Claim, or give up, what nobody waits for. If it fails, a claim expires."""

        async def steps() -> None:
            with suppress(ConnectionError):
                await self.backend.claim(name, who, lease, renew=renew)

        if self.never_waits:
            drive(steps())
        elif not self.is_closed:
            self._start(steps())

    # Writes

    def _entries(self, write: WriteIntent) -> set[Cell]:
        """The cells of the single entries that a write names."""
        found = {address for one in write.entries if (address := self.cells.place_of(one).address) is not None}
        named = {(request.tool, request.key) for request in write.entries}
        for key in write.keys:
            if key not in named:
                found |= self.feed.entries.addresses(key)
        return found

    def _message(self, tags: Sequence[str], entries: Iterable[Cell]) -> Message:
        named = tags if len(tags) <= MOST_ENTITIES else map(root_of, tags)
        return Message(self.feed.origin, tuple(dict.fromkeys(named)), tuple(entries))

    async def _announce(self, write: WriteIntent, *, renew: bool) -> None:
        """Begin a write in the store, or let its lease begin anew."""
        entries, now = self._entries(write), CLOCK.now()
        message = self._message((*write.tags, *write.late_roots), entries)
        held, armed = self.cells.written(write.tags) | entries, whole_roots(write.late_roots)
        encoded = message.encode(self.codec)
        number = await self.backend.begin(write.id, held, armed - held, self.lease, encoded, renew=renew)
        if not renew:
            self.feed.note_own(message, number)
        if write.id in self._held_until or (not renew and not write.late_roots and write.on_unreachable == "run"):
            self._held_until[write.id] = now + self.lease / 2

    async def begin(self, write: WriteIntent) -> None:
        """See `Tier`.

        Raises:
            RemoteTierError: if the write is to be refused while the store cannot be used.
        """
        self._keep_up()
        try:
            if self.is_closed:
                raise Refused("the tier was closed")
            if self.pending:
                await self.flush()
            await self._announce(write, renew=False)
        except ConnectionError as error:
            self._note_failure(error)
            if write.on_unreachable == "refuse":
                raise RemoteTierError(
                    f"the write was not begun, because other processes could not be told of it: {error}", self
                ) from error
            if not self.is_closed:  # until it has landed, this process neither reads nor stores anything here
                self._add(write, write.tags, failed=True, hold=0.0)

    async def renew(self, write: WriteIntent) -> None:
        if not self.is_closed:
            try:
                await self._announce(write, renew=True)
            except ConnectionError as error:
                self._note_failure(error)

    def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> Awaitable[None]:
        """See `Tier`. What cannot be delivered is delivered before anything else."""
        if self.is_closed:
            self.counts["unannounced"] += 1
            self.log.once("a write ended after the tier was closed; others serve what it has changed up to their ttl")
            return SentCommit()
        held_until = self._held_until.pop(write.id, None)
        one = self._add(write, tags, failed=failed, hold=hold)
        is_held = held_until is not None and CLOCK.now() < held_until and not hold and not {*tags} - {*write.tags}
        return self._start_step(write.id, one, may_return=is_held and not failed)

    def _add(self, write: WriteIntent, tags: Sequence[str], *, failed: bool, hold: float) -> _Pending:
        entries = self._entries(write)
        moved = self.cells.written(tags) | entries
        if failed:
            moved |= whole_roots(write.late_roots)
            tags = (*tags, *write.late_roots)
        if len(self.pending) >= _MOST_PENDING:
            self._merge_pending()
        send = partial(self.backend.commit, write.id, moved, hold)
        one = self.pending[write.id] = _Pending(send, self._message(tags, entries), hold)
        return one

    def _merge_pending(self) -> None:
        """Let one step that changes everything take the place of very many writes that have not landed."""
        merged = {
            name: one for name, one in self.pending.items() if not one.message.has_ttls and not one.is_on_its_way()
        }
        hold = max([one.hold for one in merged.values()], default=0.0)
        for name in merged:
            self.pending.pop(name, None)
        send = partial(self.backend.commit, os.urandom(16).hex(), {EVERYTHING}, hold)
        self.pending[_ALL_WRITES] = _Pending(send, Message(self.feed.origin, is_of_everything=True), hold)

    def _start_step(self, name: str, one: _Pending, *, may_return: bool) -> Awaitable[None]:
        """Send a step in this very call, as far as it does not wait."""
        if self.never_waits:
            drive(self._deliver(name, one))
            return SentCommit()
        task = one.task = self._start(self._deliver(name, one))
        return task if task is not None and not may_return else SentCommit(task)

    def _start(self, steps: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run what its caller does not wait for. Without an event loop it is done in this call."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(steps)
            return None
        task = loop.create_task(steps)
        _RUNNING.add(task)
        task.add_done_callback(_RUNNING.discard)
        return task

    async def _deliver(self, name: str, one: _Pending) -> None:
        try:
            await self._send(name, one)
        except ConnectionError as error:
            self._note_failure(error)

    async def _send(self, name: str, one: _Pending) -> None:
        number = await one.send(one.message.encode(self.codec))
        self.feed.note_own(one.message, number)
        if self.pending.get(name) is one:
            del self.pending[name]
            self._note_pending()

    async def flush(self, *, leaves_running: bool = False) -> None:
        """Deliver what could not be delivered, before anything else: a process must not find what it has overwritten.

        Args:
            leaves_running: whether what is on its way in another event loop is left alone.

        Raises:
            ConnectionError: if something is left.
        """
        for name, one in list(self.pending.items()):
            task = one.task if one.is_on_its_way() else None
            if task is not None and task.get_loop() is asyncio.get_running_loop():
                await asyncio.wait([task])
                if self.pending.get(name) is one:
                    raise Refused("an invalidation is pending")
            elif task is None or not leaves_running or not task.get_loop().is_running():
                await self._send(name, one)

    def _note_pending(self) -> None:
        """Called when a step has not landed, and when one that was pending has."""

    def _note_failure(self, error: Exception) -> None:
        self.counts["failures"] += 1
        self.log.once(UNUSABLE, error)
        if self.pending:
            self._note_pending()

    # What others write

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        end = self.feed.subscribe(listener)
        self._keep_up()
        self.receive()
        return end

    def _keep_up(self) -> None:
        """Start the thread that applies what others write, if there is to be one."""

    def receive(self) -> None:
        """Apply what others have written, where that does not wait."""

    async def catch_up(self) -> None:
        """Apply what others have written up to now.

        Raises:
            ConnectionError: if that cannot be known.
        """
        until = boottime() + self.max_staleness
        asleep = boottime() - time.monotonic()
        if asleep > self._asleep + 1.0:  # the ttls of copies from before a suspension have not counted it
            self.feed.lose()
        self._asleep = asleep
        self.feed.apply(await self.backend.feed(self.feed.number))
        self.heard.until = max(self.heard.until, until)
        term = self.trust.term
        if term is not None and self.feed.has_listeners and not self.feed.ttls_are_old and not self.is_closed:
            term.until = max(term.until, until)

    async def caught_up(self) -> bool:
        """Wait until everything that was written so far has been applied. Returns whether that could be done."""
        self._keep_up()
        try:
            if self.pending:
                await self.flush()
            await self.catch_up_with_ttls()
        except ConnectionError as error:
            self._note_failure(error)
            return False
        return True

    async def catch_up_with_ttls(self) -> None:
        """The same as `catch_up`, and read the ttls if they were changed."""
        await self.catch_up()
        for _ in range(3):  # others may be set while they are read
            if self.feed.ttls_are_old and not any(one.message.has_ttls for one in self.pending.values()):
                changes = self.feed.ttl_changes  # before they are read: another message may come meanwhile
                self.feed.set_ttls(await self.backend.ttls(), changes)
                await self.catch_up()  # copies are served from now on

    def is_complete(self) -> bool:
        """Apply what others have written, in a hit, and say whether copies may be served. It does not wait."""
        return False

    def trusted_until(self) -> float:
        term = self.trust.term
        if not self.feed.has_listeners or not self.trust.is_valid():
            return -NEVER
        return CLOCK.now() + (0.05 if term is None else max(0.0, term.until - term.clock()))

    # Ttls that are set at run time

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool in all processes, in seconds; None takes it back. It does not wait: it is delivered as
        soon as it can be. Of several for one tool the last one counts that has arrived.
        """
        if self.is_closed:
            self.log.once("a ttl was set after the tier was closed, so it stays in this process", tool)
            return
        name, send = f"ttl of {tool}", partial(self.backend.set_ttl, tool, ttl)
        one = self.pending[name] = _Pending(send, Message(self.feed.origin, has_ttls=True))
        others = {name: other for name, other in self.feed.ttls.items() if name != tool}
        self.feed.set_ttls(others if ttl is None else {**others, tool: ttl})
        self._start_step(name, one, may_return=True)

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """Call a listener with all ttls that are set, by the names of the tools, when they are known and after each
        change, in any thread. What was published here counts at once. Returns a function that ends this.
        """
        self._keep_up()
        self.receive()
        return self.feed.follow_ttls(listener)

    # State and end

    async def clear(self) -> int:
        """Drop every value, and all copies in all processes. What is being loaded is not stored.

        Returns:
            How many there were.

        Raises:
            RemoteTierError: if the store cannot be used: nothing was dropped.
        """
        try:
            return await self.backend.clear()
        except ConnectionError as error:
            raise RemoteTierError(f"nothing was dropped: {error}", self) from error

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
            if self.trust.term is not None:
                self.trust.term.end()
            self.trust.page, self.trust.stamp = (0,), -1
            self.feed.lose()
        await self.backend.aclose()

    async def __aenter__(self) -> Self:
        if self.is_closed:
            raise ConfigurationError(f"this {type(self).__name__} was closed; make a new one")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_RUNNING: Final[set[asyncio.Task[Any]]] = set()


def _merge(versions: dict[Cell, Any], more: Iterable[Versions]) -> bool:
    """Add the versions of further cells. Returns whether no cell has two: such a value would be of two times."""
    return all(versions.setdefault(cell, version) == version for each in more for cell, version in each.items())
