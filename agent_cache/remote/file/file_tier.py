"""`FileTier`: one coherent cache for the processes of one machine, in a file, without a server."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from agent_cache.clock import CLOCK
from agent_cache.core.options import configures, refresh_window, seconds
from agent_cache.core.store import NEVER
from agent_cache.core.tags import root_of
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.codecs import Codec, MessagePackCodec, Undecodable, Unencodable
from agent_cache.remote.file.cell_names import CellNames, RootChanges
from agent_cache.remote.file.change_feed import ChangeFeed, FileTtls
from agent_cache.remote.file.database import (
    ARMED,
    HELD,
    IDLE,
    Busy,
    Cell,
    Damaged,
    Database,
    Unwritable,
    WriteCells,
    mode_of,
    version_of,
)
from agent_cache.remote.file.open_files import Unreachable, open_files
from agent_cache.remote.file.shared_page import PageLease, SharedPage, Use, is_settled, reader_of
from agent_cache.remote.file.stored_value import (
    late_context,
    open_head,
    pack_head,
    pack_versions,
    unpack_versions,
    value_context,
    was_loaded_under,
)
from agent_cache.remote.file.tickets import FileTicket, Idle, Place, Places
from agent_cache.remote.protocol import (
    Found,
    Listener,
    LoaderWait,
    Request,
    SentCommit,
    Ticket,
    Versions,
    WriteIntent,
)
from agent_cache.values.canonical import make_room

__all__ = ["Counters", "FileTier"]

_MAX_REFRESHED: Final = 4_096
"""Entries whose refreshes are remembered."""
_MOST_BYTES: Final = 1 << 62
_MAX_CELLS: Final = 1_024
"""Cells of one value, inherited ones included. One that depends on more is not stored."""
_MAX_LATE: Final = 256
"""Entities that one result may name before it depends on their whole root instead."""
_INLINE: Final = 65_536
"""Bytes of the longest value that is written in the thread of its caller."""
_SPIN: Final = 0.001
_TRUST: Final = 0.05
"""Seconds that `FileTier.trusted_until` looks ahead, for who asks now."""


@dataclass(slots=True)
class Counters:
    """Events since the tier was made.

    Attributes:
        hits: values found and current.
        misses: lookups that found none.
        stores: values written.
        unencodable: values that could not be encoded, or were too large.
        bad_values: values that could not be read: forged, damaged or of another version.
        failures: lookups, stores and writes that could not use the file.
        losses: times that the files were replaced.
    """

    hits: int = 0
    misses: int = 0
    stores: int = 0
    unencodable: int = 0
    bad_values: int = 0
    failures: int = 0
    losses: int = 0


class _OvertakenError(Exception):
    """A write has come between two parts of a lookup."""


class _Written(SentCommit):
    """A commit that has landed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


_WRITTEN: Final = _Written()


def _checked_options(
    namespace: Any, remote_ttl: Any, codec: Any, max_bytes: Any, max_value_size: Any
) -> tuple[float | None, Codec, int]:
    """Check options of a tier.

    Raises:
        ConfigurationError: naming the option and the fix.
    """
    if not isinstance(namespace, str) or not re.fullmatch(r"[^\s{}:]{1,64}", namespace):
        raise ConfigurationError(
            f"FileTier: namespace must be a short text without spaces, braces and colons, got {namespace!r}"
        )
    for name in ("encode", "decode"):
        if codec is not None and not callable(getattr(codec, name, None)):
            raise ConfigurationError(f"FileTier: codec {codec!r} cannot {name}")
    for name, number, least in (("max_bytes", max_bytes, 65_536), ("max_value_size", max_value_size, 1024)):
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_whole and least <= number <= _MOST_BYTES):
            raise ConfigurationError(f"FileTier: {name} must be bytes, {least} to 2**62, got {number!r}")
    if max_bytes is None:
        raise ConfigurationError("FileTier: max_bytes must be bytes: the file has a bound")
    if codec is None:
        codec = MessagePackCodec() if max_value_size is None else MessagePackCodec(max_size=max_value_size)
    allowed = getattr(codec, "max_size", None)
    if max_value_size is None:
        max_value_size = allowed or MessagePackCodec().max_size
    elif allowed is not None and allowed < max_value_size:
        raise ConfigurationError(
            f"FileTier: max_value_size={max_value_size}, but {codec!r} takes no more than {allowed} bytes; give it a "
            "larger max_size, or leave out max_value_size"
        )
    return None if remote_ttl is None else seconds(remote_ttl, "FileTier: remote_ttl"), codec, max_value_size


@configures
class FileTier:
    """A tier in one SQLite file, which the processes of one machine share: workers of a server, of pytest-xdist, a
    script that is started again. No server, and nothing but the standard library.

    As soon as a write has ended in any process, no process returns what was loaded before, also from its local copies:
    a hit compares a word of memory that all processes share. What is in the file survives the processes, and the
    machine's restart as far as SQLite's log does (``synchronous=NORMAL``).

    The files are ``path``, and beside it ``-wal``, ``-shm``, ``.page`` and ``.lock``, readable for this user alone. A
    file that cannot be used, also when the tier is made, costs a call at most `timeout`; the tools run without it, and
    what they write is made up for before anybody uses the file again. A damaged file is set aside as ``path.corrupt``,
    and a new one is begun. Do not copy the files to another machine, and remove them all or none. Windows and network
    file systems are refused.

    One tier serves any number of event loops and threads, and may be used after a fork.

    Args:
        path: of the database. Its directory exists, and not everybody may write into it.
        namespace: keeps the entries of different programs in one file apart.
        timeout: seconds that a call waits for a file that other processes have locked.
        lease: seconds that what a process was writing when it died is held: its effect may still come.
        remote_ttl: seconds that a value lives whose tool has no ttl. None is as long as there is room: mind that writes
            between two runs of a program, by whatever else, are not seen.
        codec: how values are written; the default is MessagePack.
        max_bytes: bytes of all values. Those that were not used for longest make room.
        max_value_size: bytes of the longest value that is stored or read. None is as much as the codec allows, which is
            1 MiB for the default.

    Raises:
        ConfigurationError: if any of this cannot work. A file that is not a tier's is left as it is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "agent_cache",
        timeout: float | timedelta = 0.25,
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta | None = 3600.0,
        codec: Codec | None = None,
        max_bytes: int = 268_435_456,
        max_value_size: int | None = None,
    ) -> None:
        self.remote_ttl, self._codec, self._max_value_size = _checked_options(
            namespace, remote_ttl, codec, max_bytes, max_value_size
        )
        self._lease = seconds(lease, "FileTier: lease")
        patience = seconds(timeout, "FileTier: timeout")
        self.names = CellNames(namespace)
        self._counters = Counters()
        self._places = Places(self.names)
        self._tried: dict[int, float] = {}  # by entry, when the value was loaded that it last tried to refresh
        self._claims: dict[int, int] = {}  # by entry, under which number this process has claimed to refresh it
        self.use = Use()
        self._files = files = open_files(path, timeout=patience, max_bytes=max_bytes)
        self._feed = ChangeFeed(self.names, files.log)
        self._ttls = FileTtls()
        files.lease = max(files.lease, self._lease)
        files.join(self)
        self._leave = weakref.finalize(self, files.leave)
        _TIERS.add(self)

    def __repr__(self) -> str:
        return f"FileTier({str(self._files.path)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FileTier cannot be copied or sent: in each process, make a FileTier of the same path")

    @property
    def path(self) -> Path:
        """Where the database is."""
        return self._files.path

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        return self._lease

    # Lookups

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """See `Tier`. Nearly always in this thread, in some microseconds: readers do not wait for writers."""
        ticket = FileTicket(self, request, self._places.of(request))
        files = self._files
        if self.use.is_over:
            files.log.once("the tier was closed, so nothing is found in it")
            return None, ticket
        try:
            step = partial(self._look_up, ticket)
            try:
                found = files.now(step)  # nearly always; without the coroutine, 0.6 us less
            except Busy:
                found = await files.run(step)
        except Unreachable as error:
            self._note_failure(error)
            found, ticket.cells, ticket.found = None, {}, None
        if found is None:
            ticket.versions = None
            self._counters.misses += 1
        else:
            self._counters.hits += 1
            files.note_use(ticket.place.entry)
        return found, ticket

    def _note_failure(self, error: object) -> None:
        self._counters.failures += 1
        self._files.log.once("the file cannot be used, so the tools run without it", error)

    def _look_up(self, ticket: FileTicket, database: Database) -> Found | None:
        place, page = ticket.place, database.page
        feed = self._feed
        if feed.listeners and page.changes != feed.applied:
            feed.look(database)
        if place.known is not None:
            stored = self._look_again(ticket, database, place.known)
            if stored is not None:
                return self._find_current(ticket, database, *stored)
        is_last = False
        while True:
            read = place.read_slots
            slots = read(page.words)  # before the cells: a write that comes in between has changed them then
            if not page.is_usable:
                raise Unreachable("invalidations are missing in it")
            states, head, payload = database.look_up(place.cells, place.entry)
            committed = database.committed
            if not page.is_usable:
                raise Unreachable("invalidations are missing in it")
            known = place.known
            if known is not None and known.slots == slots and known.states == states:
                ticket.is_idle, cells = True, known.cells
                break
            cells = dict(zip(place.cells, states, strict=True))
            if is_last or not self._has_recovered(database, place, slots, cells):
                ticket.is_idle = is_settled(slots, committed) and self._note_idle(page, place, slots, states, cells)
                break
            is_last = True
        ticket.set_slots(page, read, slots, is_settled=is_settled(slots, committed))
        ticket.cells = cells
        if head is None or place.digest is None:
            return None
        return self._find_current(ticket, database, head, payload)

    def _look_again(self, ticket: FileTicket, database: Database, known: Idle) -> tuple[bytes, bytes] | None:
        """Head and payload, if they were stored under the versions that were seen, and no write has begun since then.

        The slots tell that: a statement that reads the cells, too, takes twice as long. Pruned cells they do not tell,
        but what is stored after that has other versions.
        """
        place = ticket.place
        ticket.set_slots(known.page, place.read_slots, known.slots, is_settled=True)
        if place.digest is None or not ticket.lease.is_current:
            return None
        stored = database.value(place.entry)
        if stored is None or not was_loaded_under(stored[0], place.digest, known.header):
            return None
        ticket.cells, ticket.is_idle = known.cells, True
        return stored

    def _note_idle(
        self, page: SharedPage, place: Place, slots: tuple[int, ...], states: tuple[Cell, ...], cells: dict[int, Cell]
    ) -> bool:
        """Whether no write is running on a place. If so, what was seen is kept, for the next lookup."""
        if any(mode_of(cell) for cell in cells.values()) or any(slot & 1 for slot in slots):
            return False
        own = {cell: cells[cell] for cell in place.depends_on}
        versions = {cell: version_of(seen) for cell, seen in own.items()}
        place.known = Idle(page, slots, states, cells, own, versions, pack_versions(versions))
        return True

    def _has_recovered(
        self, database: Database, place: Place, slots: tuple[int, ...], cells: Mapping[int, Cell]
    ) -> bool:
        """Whether writes of dead processes were handled, so that it is worth to look again."""
        if any(mode_of(cell) for cell in cells.values()):
            return database.recover()
        if any(slot & 1 for slot in slots):
            return database.repair(database.page.busy(place.cells))
        return False

    def _find_current(self, ticket: FileTicket, database: Database, head: bytes, payload: bytes) -> Found | None:
        """The value, if every cell in its header has the version there."""
        request, place = ticket.request, ticket.place
        digest, known = place.digest, place.known
        assert digest is not None
        try:
            opened = open_head(head, digest)
            if opened is None:
                return None
            loaded, ttl, grace, cost, start, end = opened
            late: list[str] = []
            if ticket.is_idle and known is not None and head[start:] == known.header:
                ticket.found, ticket.versions = known.own, known.versions
            else:
                header = head[start:end]
                if not self._is_current(ticket, database, header):
                    ticket.former_cost = cost
                    return None
                if end < len(head):
                    late = self._late_tags(head[end:], digest, header)
            value = self._codec.decode(payload, request.returns, context=value_context(head))
        except _OvertakenError:
            return None
        except Exception as error:
            # Damaged data, or a codec that was not made for it.
            if isinstance(error, Busy | Damaged | Unreachable | Unwritable):
                raise
            self._counters.bad_values += 1
            reason = error if isinstance(error, Undecodable) else type(error).__name__
            self._files.log.once("a value in the file cannot be read", f"{request.tool}: {reason}")
            return None
        tags = request.tags + tuple(late) if late else request.tags
        return self._aged(ticket, database, Found(value, tags, cost=cost), loaded, ttl, grace)

    def _is_current(self, ticket: FileTicket, database: Database, header: bytes) -> bool:
        """Whether the cells of a value have the versions in its header. If so, the ticket notes them."""
        versions = unpack_versions(header)
        if not versions.keys() >= {*ticket.place.depends_on} or len(versions) > _MAX_CELLS:
            return False  # of a tool that was declared otherwise
        found = self._cells_of(ticket, database, ticket.cells, versions)
        least = IDLE if ticket.request.strong else ARMED
        for cell, version in versions.items():
            seen = found[cell]
            if version_of(seen) != version or mode_of(seen) > least:
                return False
        ticket.found, ticket.is_idle = found, False
        ticket.versions = versions if all(mode_of(seen) == IDLE for seen in found.values()) else None
        return True

    def _cells_of(
        self, ticket: FileTicket, database: Database, cells: dict[int, Cell], header: Collection[int]
    ) -> dict[int, Cell]:
        """The cells that a value was loaded under, and their slots: those that only it names are read now."""
        place, page = ticket.place, database.page
        more = [cell for cell in header if cell not in cells]
        read = reader_of(header)
        slots = read(page.words)
        if more:
            cells = cells | database.cells(more)
            ticket.is_settled = ticket.is_settled and is_settled(slots, database.committed)
            place.keep_late(cell for cell in header if cell not in place.depends_on)
            for cell in more:
                self.names.keep_dependent(cell, place.entry)
        if not ticket.lease.is_current:
            raise _OvertakenError
        # Not that of the whole root, which its own lookup has to watch.
        ticket.lease = PageLease(page, self.use, read, slots)
        return {cell: cells[cell] for cell in header}

    def _late_tags(self, data: bytes, digest: bytes, header: bytes) -> list[str]:
        late = self._codec.decode(data, list[str], context=late_context(digest, header))
        if not isinstance(late, list) or not all(isinstance(tag, str) for tag in late):
            raise Undecodable("with malformed tags")
        for tag in late:  # so that messages about them can be understood
            self.names.cells_read(tag)
        return late

    def _aged(
        self, ticket: FileTicket, database: Database, found: Found, loaded: float, ttl: float, grace: float
    ) -> Found | None:
        """Add age and remaining ttl. Within its grace, and shortly before its ttl ends, a value is served while one
        process refreshes it.
        """
        request, entry = ticket.request, ticket.place.entry
        age = time.time() - loaded
        if age < 0.0:  # the clock was set back, so how old it is nobody knows
            ticket.former_cost = found.cost
            return None
        # `min` and `max` would take longer, here and below.
        lasts = ttl if request.ttl is None or ttl < request.ttl else request.ttl
        if lasts == NEVER:
            found.age = age
            return found
        left = lasts - age
        if left <= 0 and left + min(grace, request.grace) <= 0:
            ticket.former_cost = found.cost
            return None
        is_ending = left <= 0 or (left <= refresh_window(found.cost, lasts) and self._tried.get(entry) != loaded)
        if is_ending:
            make_room(self._tried, _MAX_REFRESHED)
            self._tried[entry] = loaded
            number = secrets.randbits(62)
            if database.claim(entry, number, self._lease) == number:
                make_room(self._claims, _MAX_REFRESHED)
                self._claims[entry] = number
                found.is_to_refresh = True
        found.age, found.ttl = age, left
        return found

    # Loads that processes share

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """See `SharedLoads`. Loads of requests that do not ask for it are not shared. The claim of a process that has
        died counts no more at once.
        """
        if not request.shares_load or not isinstance(ticket, FileTicket) or ticket.tier is not self:
            return None, ticket
        wait, own = LoaderWait(may_wait), secrets.randbits(62)
        key: int | None = None
        try:
            while (key := self._claim_key(ticket)) is not None:
                loader = await self._files.run(partial(_claim, key, own, self._lease), patience=_SPIN)
                if loader != own and not await wait.pause(loader):
                    break
                found, again = await self.lookup(request)  # also by who leads: another load may just have ended
                if found is not None:
                    if loader == own:
                        self._give_up(key, own)
                    return found, again
                assert isinstance(again, FileTicket)
                ticket = again
                if loader == own:
                    ticket.claim = key, own
                    break
        except Unreachable as error:  # what cannot be claimed is loaded
            self._note_failure(error)
        except BaseException:
            if key is not None:
                self._give_up(key, own)  # also one that is not known to be its own
            raise
        return None, ticket

    def _claim_key(self, ticket: FileTicket) -> int | None:
        """What the load of a value is claimed under: the versions of now are a part of it. None if it cannot be
        claimed, because they are unknown or a write holds one of them.
        """
        place, cells = ticket.place, ticket.cells
        if place.digest is None or not cells or any(mode_of(cell) == HELD for cell in cells.values()):
            return None
        versions = [str(version_of(cells[cell])) for cell in place.depends_on]
        return self.names.number("", "claim", place.digest.decode(), *versions)

    def renew_claim(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, FileTicket) and ticket.claim is not None and not self.use.is_over:
            self._files.soon(partial(_renew_claim, *ticket.claim, self._lease))

    def give_up(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, FileTicket) and ticket.claim is not None:
            claim, ticket.claim = ticket.claim, None
            self._give_up(*claim)

    def _give_up(self, key: int, claim: int) -> None:
        if not self.use.is_over:
            self._files.soon(partial(_give_up, key, claim))

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
        if not isinstance(ticket, FileTicket) or ticket.tier is not self:
            return
        ticket.versions = None  # those of a value that was found are not those of this one
        place, seen, request = ticket.place, ticket.cells, ticket.request
        if (
            place.digest is None
            or not seen
            or self.use.is_over
            or any(mode_of(seen[cell]) == HELD for cell in place.depends_on)
        ):
            return
        bounds = [bound for bound in (ttl, ticket.lasts) if bound is not None]
        lasts = min(bounds, default=NEVER)
        if lasts + request.grace - age <= 0:
            return
        versions = {cell: version_of(seen[cell]) for cell in place.depends_on}
        late = named = [tag for tag in dict.fromkeys(tags) if tag not in request.tags]
        if inherited:
            if not _merge(versions, inherited):
                return
            # Those of its own result are rechecked, although they may be inherited as well: the load may have looked at
            # the data itself before a write, and made a read after it.
            named = [tag for tag in late if root_of(tag) in request.late_roots]
            if not all(self._is_covered(tag, versions) for tag in late if tag not in named):
                return
        loaded = time.time() - age
        try:
            if named:
                recheck = partial(self._recheck, ticket, named)
                late_versions = await self._files.run(recheck)
                if late_versions is None or not _merge(versions, (late_versions,)):
                    return
            if all(mode_of(cell) == IDLE for cell in seen.values()):
                ticket.versions = versions
            data = self._encoded(ticket, value, late, versions, cost, loaded, lasts)
            if data is None:
                return
            ends = loaded + lasts + request.grace
            step = partial(self._put, ticket, *data, ends)
            if len(data[1]) > _INLINE:
                await asyncio.wrap_future(self._files.later(step))
            else:
                await self._files.run(step, patience=_SPIN)
        except Unreachable as error:  # the caller has its result, and a later hit is not promised
            self._note_failure(error)
            return
        self._counters.stores += 1
        if late or len(versions) > len(place.depends_on):
            others = [cell for cell in versions if cell not in place.depends_on]
            place.keep_late(others)
            for cell in others:
                self.names.keep_dependent(cell, place.entry)

    def _put(self, ticket: FileTicket, head: bytes, payload: bytes, ends: float, database: Database) -> None:
        if not database.page.is_usable:
            raise Unreachable("invalidations are missing in it")
        if not ticket.lease.is_of(database.page):
            raise Unreachable("it was replaced since the lookup")
        place = ticket.place
        size = database.store(place.entry, head, payload, ends, ticket.request.tool, place.home)
        self._files.note_stored(len(payload), size)
        claim = self._claims.pop(place.entry, None) if self._claims else None
        if claim is not None:  # or nobody could refresh it again until the claim ends, however short its ttl is
            database.give_up(place.entry, claim)

    def _encoded(
        self,
        ticket: FileTicket,
        value: Any,
        late: list[str],
        versions: dict[int, int],
        cost: float,
        loaded: float,
        lasts: float,
    ) -> tuple[bytes, bytes] | None:
        """The head and the payload of a value; None if it cannot be encoded, or is too large."""
        request, codec, digest, log = ticket.request, self._codec, ticket.place.digest, self._files.log
        assert digest is not None
        try:
            header = pack_versions(versions)
            packed_late = codec.encode(late, list[str], context=late_context(digest, header)) if late else b""
            head = pack_head(digest, header, packed_late, loaded=loaded, ttl=lasts, grace=request.grace, cost=cost)
            payload = codec.encode(value, request.returns, context=value_context(head))
        except Exception as error:  # noqa: BLE001 - an exception of the user's codec does not fail a call
            self._counters.unencodable += 1
            reason = error if isinstance(error, Unencodable) else type(error).__name__
            log.once(f"a result of {request.tool} cannot be encoded, so it is kept in this process alone", reason)
            return None
        if len(versions) > _MAX_CELLS:
            self._counters.unencodable += 1
            log.once(
                f"a result of {request.tool} depends on too much, so it is kept in this process alone", len(versions)
            )
            return None
        if len(payload) > self._max_value_size or len(payload) + len(head) > self._files.max_bytes // 2:
            self._counters.unencodable += 1
            log.once(f"a result of {request.tool} is too large, so it is kept in this process alone", len(payload))
            return None
        return head, payload

    def _is_covered(self, tag: str, versions: Collection[int]) -> bool:
        """Whether the versions of a tag's cells are known. A root may stand for its entities, if they were too many:
        each of them depends on S.
        """
        return all(cell in versions for cell in self.names.cells_read(tag)) or (
            ":" not in tag and self.names.cells_of_root(tag)[0] in versions
        )

    def _recheck(self, ticket: FileTicket, late: list[str], database: Database) -> dict[int, int] | None:
        """The versions of the cells that only the result has named; None if their roots were written during the load.

        An entity's own cell, read after the load, would look current whatever was written before. D proves that it was
        not, which every write under the root changes, together with S; that neither was held before proves that no
        write was running.
        """
        names, before = self.names, ticket.cells
        if not ticket.lease.is_of(database.page):
            return None
        tags = late if len(late) <= _MAX_LATE else sorted({root_of(tag) for tag in late})
        named = {cell for tag in tags for cell in names.cells_read(tag)}
        watched = {cell for tag in tags for cell in names.cells_of_root(root_of(tag))}
        if any(cell not in before or mode_of(before[cell]) == HELD for cell in watched):
            return None
        after = database.cells(named | watched)
        if any(mode_of(after[cell]) == HELD or version_of(after[cell]) != version_of(before[cell]) for cell in watched):
            return None
        return {cell: version_of(after[cell]) for cell in named}

    async def discard(self, request: Request) -> bool:
        """Invalidate the entry itself, so that a load that is running does not bring it back. See `Tier`."""
        write = WriteIntent(os.urandom(16).hex(), (), entries=(request,))
        was_there = False
        try:
            ticket = FileTicket(self, request, self._places.of(request))
            if not self.use.is_over:
                was_there = await self._files.run(partial(self._look_up, ticket)) is not None
        except Unreachable:
            pass  # unknown
        finally:
            await self.commit(write, (), failed=False, hold=0.0)
        return was_there

    # Writes

    async def begin(self, write: WriteIntent) -> None:
        """See `Tier`. While an announcement cannot be written, nobody uses the file.

        Raises:
            RemoteTierError: if the write is to be refused then.
        """
        if self.use.is_over:
            failure: Unreachable | None = Unreachable("the tier was closed")
        else:
            failure = await self._announce(write)
        if failure is not None and write.on_unreachable == "refuse":
            raise RemoteTierError(
                f"the write was not begun, because other processes could not be told of it: {failure}", self
            ) from failure

    async def _announce(self, write: WriteIntent) -> Unreachable | None:
        step = partial(_begin, self._cells(write), self._feed.origin, self._lease)
        if write.on_unreachable == "refuse":
            try:
                await self._files.run(step, patience=_SPIN)
            except Unreachable as error:
                return error
            return None
        outcome = self._files.write(write.id, step)
        return None if outcome is None else await outcome

    async def renew(self, write: WriteIntent) -> None:
        """See `Tier`."""
        if not self.use.is_over:
            step = partial(_renew, self._cells(write), self._feed.origin, self._lease)
            try:
                await self._files.run(step, patience=_SPIN)
            except Unreachable as error:
                self._note_failure(error)

    def _cells(self, write: WriteIntent) -> WriteCells:
        names = self.names
        held, armed, entries = names.cells_written(write.tags), names.cells_armed(write), names.entries_written(write)
        return WriteCells(
            write.id, frozenset((*held, *entries)), frozenset(armed), names.by_root(held | armed, entries)
        )

    def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> Awaitable[None]:
        """See `Tier`. It is written in the call itself, or by the keeper, whatever becomes of the event loop."""
        if self.use.is_over:
            self._counters.failures += 1
            self._files.log.once(
                "a write ended after the tier was closed; others serve what it has changed up to their ttl"
            )
            return _WRITTEN
        names = self.names
        cells, entries = names.cells_written(tags), names.entries_written(write)
        if failed:
            cells |= names.cells_armed(write)
        changes = names.by_root(cells, entries)
        step = partial(_commit, write.id, frozenset((*cells, *entries)), hold, self._feed.origin, changes)
        outcome = self._files.write(write.id, step)
        return _WRITTEN if outcome is None else _landed(outcome)

    # What other processes tell

    def trusted_until(self) -> float:
        """See `Tier`. Local copies of a tool that has this tier alone are compared with the page instead, by the lease
        of their tickets; this is for what depends on messages.
        """
        page, feed = self._files.page, self._feed
        if not feed.listeners or self.use.is_over or not page.is_usable or page.changes != feed.applied:
            return -NEVER
        return CLOCK.now() + _TRUST

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See `Tier`. A message arrives within a tenth of a second; a lookup handles those before it."""
        end = self._feed.subscribe(listener)
        self._files.start()
        return end

    def look(self, database: Database) -> None:
        """Handle messages and ttls, if the page says that there are new ones."""
        feed = self._feed
        if feed.listeners and database.page.changes != feed.applied:
            feed.look(database)
        self._ttls.look(database)

    def lose(self) -> None:
        """Drop all copies: the files were replaced, so anything may have changed."""
        self._counters.losses += 1
        self._ttls.lose()
        self._feed.lose()

    async def caught_up(self) -> bool:
        """Wait until all messages so far were handled. Returns whether the file can be used."""
        if self.use.is_over:
            return False
        try:
            await self._files.run(self.look)
        except Unreachable:
            return False
        return self._files.page.is_usable

    # Ttls that are set at run time

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """See `SharedTtls`. It is written in the call itself, or by the keeper as soon as the file can be used."""
        if self.use.is_over:
            self._files.log.once("a ttl was set after the tier was closed, so it stays in this process", tool)
            return
        self._ttls.set(tool, ttl)
        self._files.soon(self._ttls.exchange)

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """See `SharedTtls`. What other processes have set is known when this returns, if the file can be used."""
        end = self._ttls.follow(listener)
        self._files.soon(self._ttls.exchange)
        self._files.start()
        return end

    # State and end

    async def clear(self) -> int:
        """Drop every value in the file, of every namespace, and all copies of them in all processes, at once. What is
        being loaded is not stored.

        Returns:
            How many there were.

        Raises:
            RemoteTierError: if the file cannot be used: nothing was dropped.
        """
        if self.use.is_over:
            raise RemoteTierError("nothing was dropped: the tier was closed", self)
        try:
            return await self._files.run(lambda database: database.clear(), patience=_SPIN)
        except Unreachable as error:
            raise RemoteTierError(f"nothing was dropped: {error}", self) from error

    def stats(self) -> dict[str, Any]:
        """Counts of this process and its present state: a plain copy, to be logged or exported.

        Returns:
            The fields of `Counters`, and ``invalidations`` (writes of others that were received), ``pending`` (own ones
            that are not written yet), ``trusted`` (whether the file is used now).
        """
        return asdict(self._counters) | {
            "invalidations": self._feed.received,
            "pending": len(self._files.pending),
            "trusted": not self.use.is_over and self._files.page.is_usable,
        }

    def after_fork(self) -> None:
        """In the child: see `OpenFiles.after_fork`."""
        self._feed.after_fork()
        self._ttls.after_fork()

    async def aclose(self) -> None:
        """Close the files, unless another tier of this process uses them. Nothing is trusted any more, a write cannot
        be announced, and a read finds nothing.
        """
        if self.use.is_over:
            return
        self.use.is_over = True
        self._feed.tell_of_all()
        try:
            if self._files.pending or self._ttls.unsent:
                await asyncio.wrap_future(self._files.later(self._ttls.exchange))
        except Unreachable as error:
            self._note_failure(error)
        finally:
            is_closed = self._leave()
            if is_closed is not None:
                await asyncio.wrap_future(is_closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _claim(key: int, claim: int, lease: float, database: Database) -> int:
    return database.claim(key, claim, lease)


def _renew_claim(key: int, claim: int, lease: float, database: Database) -> None:
    database.renew_claim(key, claim, lease)


def _give_up(key: int, claim: int, database: Database) -> None:
    database.give_up(key, claim)


def _begin(write: WriteCells, origin: int, lease: float, database: Database) -> None:
    database.begin(write, origin, lease)


def _renew(write: WriteCells, origin: int, lease: float, database: Database) -> None:
    database.renew(write, origin, lease)


def _commit(
    write_id: str, cells: frozenset[int], hold: float, origin: int, changes: RootChanges, database: Database
) -> None:
    database.commit(write_id, cells, hold, origin, changes)


async def _landed(outcome: Awaitable[Unreachable | None]) -> None:
    """Wait until a commit has been written, or is pending."""
    await outcome


def _merge(versions: dict[int, int], more: Iterable[Versions]) -> bool:
    """Add the versions of further cells. Returns whether no cell has two: such a value would be of two times."""
    return all(versions.setdefault(cell, version) == version for each in more for cell, version in each.items())


_TIERS: weakref.WeakSet[FileTier] = weakref.WeakSet()


def _after_fork() -> None:
    """A child is another process: its messages are not its parent's, and no other thread has its locks."""
    for tier in _TIERS:
        tier.after_fork()


os.register_at_fork(after_in_child=_after_fork)
