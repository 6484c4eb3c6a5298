"""A remote tier in memory: the protocol of a fleet without a network. Each `MemoryTier` stands for a process.

It is the reference implementation of the protocol that `remote/redis` speaks to real servers.

A *cell* is a version: a random token that is never used again. Each root has the cells S, changed by writes to the
root, and D, changed by every write at or below it; each entity has a cell T. A read of ``order:7`` depends on S and T,
a read of all of ``order`` on D. A write to ``order:7`` changes T and D, a write to ``order`` S and D. So a write costs
two cells, however many entries there are.

A value is stored with the tokens that were read before its load and is valid only while they are current. While a write
runs, its cells are *held*: they match nothing, so nothing is found, and a value loaded meanwhile is never valid. If
only the write's result will tell its entity, S and D of the root are *armed*: they keep their tokens, and hits go on,
but if the writer dies they expire with its lease, and everything under the root with them. Writers are registered by
id, so a command that is late or repeated invalidates entries and restores none.

In Redis each method of `MemoryServer` is one script on the keys of one root, which share a slot; a block under `_lock`
is what a script does atomically. Left out is what a server in one process does not need: its identity in each value
(against failover and restarts from an old image), and eviction.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from agent_cache.clock import CLOCK
from agent_cache.core.options import configures
from agent_cache.core.store import NEVER
from agent_cache.core.tags import meet, root_of
from agent_cache.errors import RemoteTierError
from agent_cache.remote.protocol import Found, Listener, LoaderWait, Request, Ticket, Touched, Versions, WriteIntent
from agent_cache.values.copies import UncopyableError, auto_copier

__all__ = ["MemoryServer", "MemoryTier"]

MAX_CELLS = 1_024
"""Cells of one value, inherited ones included. One that depends on more is not stored."""

CELL_TTL = 7200.0
"""Seconds that an idle cell lives, longer than any value: a value whose cell has expired is not valid."""

# Cells. Tags of more than two segments count as their first two.

CellName = tuple[str, Hashable]
"""Root, and one of its cells: ``"S"``, ``"D"``, or ``":7"`` for the T of an entity."""


def cells_of_root(root: str) -> frozenset[CellName]:
    """S and D: one of them changes at every write at or below the root, both at a write to the root."""
    return frozenset({(root, "S"), (root, "D")})


def cell_of_entry(tool: str, key: Hashable) -> frozenset[CellName]:
    """The cell of a single entry, for writes that name it by its key. No root has an empty name."""
    return frozenset({("", (tool, key))})


def cells_read(tag: str) -> frozenset[CellName]:
    """The cells that a value with this tag depends on."""
    root, *segments = tag.split(":")
    return frozenset({(root, "S"), (root, ":" + segments[0])}) if segments else frozenset({(root, "D")})


def cells_written(tags: Iterable[str], keys: Iterable[tuple[str, Hashable]]) -> frozenset[CellName]:
    """The cells that a write to these tags and single entries changes."""
    cells: set[CellName] = set().union(*(cell_of_entry(tool, key) for tool, key in keys))
    for tag in tags:
        root, *segments = tag.split(":")
        cells |= {(root, ":" + segments[0]), (root, "D")} if segments else cells_of_root(root)
    return frozenset(cells)


def cells_armed(write: WriteIntent) -> frozenset[CellName]:
    """The cells of the roots under which the write's result will name entities."""
    return frozenset[CellName]().union(*map(cells_of_root, write.late_roots))


# The server

Mode = Literal["idle", "held", "armed"]
Receiver = Callable[[object, Touched], None]
"""Called with the client that wrote, and what it wrote."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A token, whether a write holds or arms it, and when it expires."""

    token: str
    mode: Mode
    until: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A value and the tokens it was loaded under.

    Attributes:
        copy: makes a fresh copy of a mutable value; None if the value may be shared.
        header: a token for each cell it depends on.
        loaded: clock reading at which its load started.
        expires: clock reading at which it ends.
    """

    value: Any
    copy: Callable[[], Any] | None
    header: Mapping[CellName, str]
    tags: tuple[str, ...]
    cost: float
    loaded: float
    expires: float


@dataclass(slots=True)
class Registration:
    """The cells that a writer holds or arms until its deadline."""

    cells: frozenset[CellName]
    deadline: float


class MemoryServer:
    """The server of any number of `MemoryTier` clients, each of which stands for a process: ``MemoryTier(server)``.

    It evicts nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_up = True
        self._cells: dict[CellName, Cell] = {}
        self._writers: dict[tuple[str, Mode], Registration] = {}
        self._values: dict[Hashable, Stored] = {}
        self._receivers: dict[object, Receiver] = {}
        self._ttls: dict[str, float] = {}
        self._claims: dict[Hashable, tuple[str, float]] = {}

    # Ttls that are set at run time

    def set_ttl(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool for all clients, or take it back, and tell them."""
        with self._lock:
            self._require_up()
            if ttl is None:
                self._ttls.pop(tool, None)
            else:
                self._ttls[tool] = ttl
        for client in list(self._receivers):
            if isinstance(client, MemoryTier):
                client.receive_ttls()

    def ttls(self) -> dict[str, float]:
        """Those that are set."""
        with self._lock:
            self._require_up()
            return dict(self._ttls)

    # Values

    def fetch(
        self, address: Hashable, cells: Iterable[CellName], *, strong: bool = False
    ) -> tuple[Stored | None, dict[CellName, Cell]]:
        """Return a value, if it is valid, and the state of these cells at the same moment.

        `strong`: a value under an armed root counts as invalid too, since its writer may have died after its effect.
        """
        with self._lock:
            self._require_up()
            stored = self._values.get(address)
            if stored is not None and not self._is_valid(stored, ("idle",) if strong else ("idle", "armed")):
                stored = None
            return stored, self._read(cells)

    def store(self, address: Hashable, stored: Stored) -> None:
        """Store a value. If its tokens are not current it is invalid already, so nothing is compared here."""
        with self._lock:
            self._require_up()
            self._values[address] = stored

    def _is_valid(self, stored: Stored, modes: tuple[Mode, ...]) -> bool:
        cells = self._read(stored.header)
        is_current = all(
            cells[name].token == token and cells[name].mode in modes for name, token in stored.header.items()
        )
        return is_current and CLOCK.now() < stored.expires

    # Claims to load a value, each with the claimant and its deadline

    def claim(self, name: Hashable, claimant: str, lease: float) -> str:
        """Claim a load until the lease ends, unless it is claimed. Returns whose it is."""
        with self._lock:
            self._require_up()
            now = CLOCK.now()
            present, deadline = self._claims.get(name, (claimant, now))
            if deadline > now:
                return present
            self._claims[name] = claimant, now + lease
            return claimant

    def renew_claim(self, name: Hashable, claimant: str, lease: float) -> None:
        """Extend the lease of a claim, unless it has become another one's."""
        with self._lock:
            self._require_up()
            if self._claims.get(name, ("", 0.0))[0] == claimant:
                self._claims[name] = claimant, CLOCK.now() + lease

    def give_up_claim(self, name: Hashable, claimant: str) -> None:
        """End a claim, unless it has become another one's."""
        with self._lock:
            self._require_up()
            if self._claims.get(name, ("", 0.0))[0] == claimant:
                del self._claims[name]

    # Writers. Every command is idempotent by id.

    def begin(
        self, sender: object, writer: str, cells: Mapping[Mode, frozenset[CellName]], lease: float, touched: Touched
    ) -> None:
        """Hold and arm cells until the lease ends, and publish that."""
        if not cells:
            return
        with self._lock:
            self._require_up()
            self._expire_writers()
            for mode in cells:
                self._register(writer, mode, cells[mode], lease)
        self._publish(sender, touched)

    def renew(self, writer: str, cells: Mapping[Mode, frozenset[CellName]], lease: float) -> None:
        """Extend a lease. A writer that is unknown, or was forgotten, begins again."""
        with self._lock:
            self._require_up()
            self._expire_writers()
            for mode in cells:
                if (writer, mode) in self._writers:
                    self._writers[writer, mode].deadline = CLOCK.now() + lease
                    self._update(cells[mode])
                else:
                    self._register(writer, mode, cells[mode], lease)

    def commit(self, sender: object, writer: str, cells: frozenset[CellName], hold: float, touched: Touched) -> None:
        """End a write: change these cells and release its others. `hold`: seconds that they are held nevertheless."""
        with self._lock:
            self._require_up()
            self._expire_writers()
            ended = [self._writers.pop((writer, mode), None) for mode in ("held", "armed")]
            if hold:
                self._writers[writer, "held"] = Registration(cells, CLOCK.now() + hold)
            self._change(cells)
            self._update(frozenset().union(*(each.cells for each in ended if each is not None)) - cells)
        self._publish(sender, touched)

    def _register(self, writer: str, mode: Mode, cells: frozenset[CellName], lease: float) -> None:
        self._writers[writer, mode] = Registration(cells, CLOCK.now() + lease)
        if mode == "held":
            self._change(cells)
        else:
            self._update(cells)

    def _expire_writers(self) -> None:
        """Change the cells of writers whose deadline is over: they may have had their effect before they died."""
        now = CLOCK.now()
        for key, dead in [(key, one) for key, one in self._writers.items() if one.deadline <= now]:
            del self._writers[key]
            self._change(dead.cells)

    # Cells

    def _read(self, names: Iterable[CellName]) -> dict[CellName, Cell]:
        """Return these cells at one moment. Missing ones are created, so that there is a token before a load begins.

        If "missing" were a state that a value could be stored under, an old value would be valid again when the cell
        had expired.
        """
        names, now = tuple(names), CLOCK.now()
        missing = [name for name in names if name not in self._cells or self._cells[name].until <= now]
        if missing:
            self._expire_writers()
            self._change(missing)
        return {name: self._cells[name] for name in names}

    def _change(self, names: Iterable[CellName]) -> None:
        for name in names:
            self._set(name, secrets.token_hex(8))

    def _update(self, names: Iterable[CellName]) -> None:
        for name, cell in self._read(names).items():
            self._set(name, cell.token)

    def _set(self, name: CellName, token: str) -> None:
        """Held if any writer holds it, armed if any arms it; such a cell expires with the last of their leases."""
        writers = [(mode, one.deadline) for (_, mode), one in self._writers.items() if name in one.cells]
        until = max((deadline for _, deadline in writers), default=CLOCK.now() + CELL_TTL)
        modes = {mode for mode, _ in writers}
        self._cells[name] = Cell(token, "held" if "held" in modes else "armed" if modes else "idle", until)

    # Connections

    def connect(self, client: object, receiver: Receiver) -> None:
        """Send a client every begin and every commit."""
        self._receivers[client] = receiver

    def disconnect(self, client: object) -> None:
        """Send a client nothing more."""
        self._receivers.pop(client, None)

    def _publish(self, sender: object, touched: Touched) -> None:
        # Without the lock: clients call listeners, which take locks of their own.
        for receiver in list(self._receivers.values()):
            receiver(sender, touched)

    @property
    def is_up(self) -> bool:
        """Whether commands are answered."""
        return self._is_up

    def stop(self) -> None:
        """Answer no command until `start`. Nothing is lost."""
        self._is_up = False

    def start(self, *, empty: bool = False) -> None:
        """Answer again; `empty`: having lost everything. Then each client must `reconnect`, too."""
        with self._lock:
            self._is_up = True
            if empty:
                self._cells.clear()
                self._writers.clear()
                self._values.clear()
                self._ttls.clear()
                self._claims.clear()

    def _require_up(self) -> None:
        if not self._is_up:
            raise ConnectionError("the server in memory is stopped")


# The tier


@configures
class MemoryTier:
    """A client of a `MemoryServer`. Two of them on one server are two processes.

    The subscription has three states for tests. *Live*: messages arrive at once and every PING is answered. *Stalled*:
    they wait in the connection, and trust lapses after `max_staleness`; `resume` delivers them. *Cut*: they are lost
    without any sign, until `reconnect` tells the listeners that anything may have changed.

    Args:
        server: None for one of its own.
        lease: seconds that a write is announced for, without renewal.
        max_staleness: seconds that local copies are trusted after the last answered PING.
        max_ttl: the longest life of a value in seconds, whatever is lost.
        on_unreachable: ``"run"`` lets a write run that cannot be announced, and commits it later; ``"refuse"`` stops
            it.
    """

    def __init__(
        self,
        server: MemoryServer | None = None,
        *,
        lease: float = 10.0,
        max_staleness: float = 1.0,
        max_ttl: float = 3600.0,
        on_unreachable: Literal["run", "refuse"] = "run",
    ) -> None:
        self.server = MemoryServer() if server is None else server
        self.lease = lease
        self.max_staleness = max_staleness
        self.max_ttl = max_ttl
        self._refuses = on_unreachable == "refuse"
        self._lock = threading.RLock()
        self._tickets: weakref.WeakSet[MemoryTicket] = weakref.WeakSet()
        self._listeners: list[Listener] = []
        self._pending: dict[str, Callable[[], None]] = {}
        self._dependents: defaultdict[CellName, set[tuple[str, Hashable]]] = defaultdict(set)
        self._connection: Literal["live", "stalled", "cut"] = "live"
        self._delayed: list[tuple[object, Touched]] = []
        self._ttl_listeners: list[Callable[[Mapping[str, float]], None]] = []
        self._answered = -NEVER
        self.server.connect(self, self._receive)

    # Reads

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Fetch the value and the cells it must agree with, in one command."""
        ticket = MemoryTicket(self, request)
        with self._lock:
            self._tickets.add(ticket)  # before the lookup, so that no message falls in between
        try:
            self._send_pending()
            stored, ticket.cells = self.server.fetch(
                _address(request), ticket.depends_on | ticket.watches, strong=request.strong
            )
        except ConnectionError:
            return None, ticket
        if stored is None or not self._depend_on(ticket, request, stored):
            return None, ticket
        now = CLOCK.now()
        expires = stored.expires if request.ttl is None else min(stored.expires, stored.loaded + request.ttl)
        if expires <= now:  # the ttl of its tool has been shortened since
            ticket.versions = None
            return None, ticket
        value = stored.value if stored.copy is None else stored.copy()
        return Found(value, stored.tags, age=now - stored.loaded, cost=stored.cost, ttl=expires - now), ticket

    def _depend_on(self, ticket: MemoryTicket, request: Request, stored: Stored) -> bool:
        """Note what a value that was found depends on. Returns whether it is still valid.

        Its header may name cells that were not fetched with it, and its tags roots that the ticket did not watch: a
        message about them is noticed from now on, and one that came before has changed a cell.
        """
        if not stored.header.keys() <= ticket.cells.keys():
            ticket.tags = stored.tags
            self._keep_dependent(ticket, stored.header)
            again, cells = self.server.fetch(_address(request), stored.header, strong=request.strong)
            ticket.cells |= cells
            if again is not stored:
                return False
        if all(ticket.cells[name].mode == "idle" for name in stored.header):
            ticket.versions = stored.header
        return True

    def _keep_dependent(self, ticket: MemoryTicket, header: Mapping[CellName, str]) -> None:
        """Remember which single entries a value is made of: a message about one of them concerns this one, too."""
        with self._lock:
            for name in header.keys() - ticket.depends_on:
                if not name[0]:
                    self._dependents[name].add((ticket.request.tool, ticket.request.key))

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """See `SharedLoads`. Loads of requests that do not ask for it are not shared."""
        if not request.shares_load or not isinstance(ticket, MemoryTicket):
            return None, ticket
        wait = LoaderWait(may_wait)
        try:
            while (name := _claim_name(ticket)) is not None:
                claimant = secrets.token_hex(8)
                loader = self.server.claim(name, claimant, self.lease)
                if loader != claimant and not await wait.pause(loader):
                    break
                found, again = await self.lookup(request)  # also by who leads: another load may just have ended
                assert isinstance(again, MemoryTicket)
                if found is not None:
                    if loader == claimant:
                        self.server.give_up_claim(name, claimant)
                    return found, again
                ticket = again
                if loader == claimant:
                    ticket.claim = name, claimant
                    break
        except ConnectionError:
            pass  # what cannot be claimed is loaded
        return None, ticket

    def renew_claim(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, MemoryTicket) and ticket.claim is not None:
            try:
                self.server.renew_claim(*ticket.claim, self.lease)
            except ConnectionError:
                pass  # the next renewal may come in time

    def give_up(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, MemoryTicket) and ticket.claim is not None:
            claim, ticket.claim = ticket.claim, None
            try:
                self.server.give_up_claim(*claim)
            except ConnectionError:
                pass  # it expires

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
        """Store under the tokens read before the load, so that a value overtaken by a write is invalid."""
        assert isinstance(ticket, MemoryTicket)
        ticket.versions = None  # those of a value that was found are not those of this one
        loaded = CLOCK.now() - age
        lasts = ticket.lasts if ttl is None else min(ttl, ticket.lasts)
        try:
            self._send_pending()
            cells = self._cells(ticket, tags, inherited)
            if cells is None:
                return
            header = {name: cell.token for name, cell in cells.items()}
            for versions in inherited:
                header.update(versions)
            self._keep_dependent(ticket, header)
            if all(cell.mode == "idle" for cell in cells.values()):
                ticket.versions = header
            if len(header) > MAX_CELLS:
                return
            copy = auto_copier(value)
            stored = Stored(value if copy is None else None, copy, header, tags, cost, loaded, loaded + lasts)
            self.server.store(_address(ticket.request), stored)
        except (ConnectionError, UncopyableError):
            pass  # the value is not shared; the tool's caller has it all the same

    def _cells(
        self, ticket: MemoryTicket, tags: tuple[str, ...], inherited: Sequence[Versions]
    ) -> dict[CellName, Cell] | None:
        """The cells a value itself depends on, as they were before its load; None if it must not be stored."""
        before = ticket.cells
        if not ticket.depends_on <= before.keys() or any(before[name].mode == "held" for name in ticket.depends_on):
            return None
        header = {name: before[name] for name in ticket.depends_on}
        known: dict[CellName, str] = {}
        for versions in inherited:
            if any(known.setdefault(name, versions[name]) != versions[name] for name in versions):
                return None
        late_roots = ticket.request.late_roots
        # Also those that a read in its load has named: the read may have come after a write, the load begun before it.
        late = [tag for tag in tags if not cells_read(tag) <= ticket.depends_on and root_of(tag) in late_roots]
        if not all(_is_covered(tag, known.keys() | header.keys()) for tag in tags if root_of(tag) not in late_roots):
            return None
        if late:
            # The entity's own cell is read only now. That it was not written during the load is proven by D, which
            # every write under the root changes, and S; that none was at work before, by their not being held.
            watched = frozenset().union(*(cells_of_root(root_of(tag)) for tag in late))
            _, after = self.server.fetch(None, watched | frozenset().union(*map(cells_read, late)))
            for name in watched:
                if name not in before or before[name].mode == "held" or before[name].token != after[name].token:
                    return None
            header |= {name: after[name] for tag in late for name in cells_read(tag)}
        return header if all(known.get(name, cell.token) == cell.token for name, cell in header.items()) else None

    async def discard(self, request: Request) -> bool:
        """Commit a write to the entry itself, so that no load under way restores it."""
        try:
            was_there = self.server.fetch(_address(request), ())[0] is not None
        except ConnectionError:
            was_there = False
        write = WriteIntent(uuid4().hex, (), keys=((request.tool, request.key),), entries=(request,))
        await self.commit(write, (), failed=False, hold=0.0)
        return was_there

    # Writes

    async def begin(self, write: WriteIntent) -> None:
        """Hold the cells of its tags and keys, arm those of its late roots."""
        touched = Touched(write.tags + write.late_roots, write.keys)
        try:
            self._send_pending()
            self.server.begin(self, write.id, _cells_by_mode(write), self.lease, touched)
        except ConnectionError as error:
            if self._refuses or write.on_unreachable == "refuse":
                raise RemoteTierError("the write could not be announced, so it was not begun", self) from error
            self._add_pending(write, write.tags, failed=True, hold=0.0)

    async def renew(self, write: WriteIntent) -> None:
        """Extend the lease."""
        try:
            self.server.renew(write.id, _cells_by_mode(write), self.lease)
        except ConnectionError:
            pass  # the next renewal or the commit makes up for it

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """Change the cells it touched. A commit that fails is sent before this client's next command."""
        self._add_pending(write, tags, failed=failed, hold=hold)
        try:
            self._send_pending()
        except ConnectionError:
            pass

    def _add_pending(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """Add a commit to the pending invalidations."""
        cells = cells_written(tags, write.keys) | (cells_armed(write) if failed else frozenset())
        touched = Touched(tags + (write.late_roots if failed else ()), write.keys)
        self._pending[write.id] = lambda: self.server.commit(self, write.id, cells, hold, touched)

    def _send_pending(self) -> None:
        """Send the pending invalidations, before any other command: a process must not find what it has overwritten."""
        for writer, send in list(self._pending.items()):
            send()
            if self._pending.get(writer) is send:
                del self._pending[writer]

    # The subscription

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with the writes of other clients."""
        with self._lock:
            self._listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unsubscribe

    def trusted_until(self) -> float:
        """`max_staleness` from the sending of the last PING that was answered."""
        self._ping()
        return self._answered + self.max_staleness if self._listeners else -NEVER

    def _ping(self) -> None:
        """PINGs are sent all the time: one was answered just now, after all earlier messages, if any can be."""
        if self._connection == "live" and self.server.is_up:
            self._answered = CLOCK.now()

    def _receive(self, sender: object, touched: Touched) -> None:
        match self._connection:
            case "live":
                self._apply(sender, touched)
            case "stalled":
                self._delayed.append((sender, touched))

    def _apply(self, sender: object, touched: Touched | None) -> None:
        with self._lock:
            tickets, listeners = list(self._tickets), tuple(self._listeners)
        for ticket in tickets:
            if touched is None or ticket.concerns(touched):
                ticket.is_touched = True
        if sender is not self:  # a writer has dropped its own copies itself
            if touched is not None and touched.keys:  # with the entries whose values are made of these
                with self._lock:
                    made = set[tuple[str, Hashable]]().union(
                        *(self._dependents.get(("", key), ()) for key in touched.keys)
                    )
                touched = replace(touched, keys=(*touched.keys, *made))
            for listener in listeners:
                listener(touched)

    def stall(self) -> None:
        """Let messages wait in the connection, and PINGs go unanswered."""
        self._ping()
        self._connection = "stalled"

    def resume(self) -> None:
        """Deliver the delayed messages in order. Nothing was lost, so local copies are still valid."""
        self._connection, delayed, self._delayed = "live", self._delayed, []
        for sender, touched in delayed:
            self._apply(sender, touched)
        self.receive_ttls()

    def cut(self) -> None:
        """Lose messages from now on, with no sign but unanswered PINGs."""
        self._ping()
        self._connection = "cut"
        self._delayed.clear()

    def reconnect(self) -> None:
        """Subscribe again. The messages in between are unknown."""
        self._apply(None, None)
        self._connection = "live"
        self.receive_ttls()

    # Ttls that are set at run time

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """See `SharedTtls`. A server that is away gets it before this client's next command."""
        self._pending[f"ttl of {tool}"] = lambda: self.server.set_ttl(tool, ttl)
        try:
            self._send_pending()
        except ConnectionError:
            pass

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """See `SharedTtls`."""
        own = partial(listener)  # one object for each subscription: a listener may be equal to another one
        with self._lock:
            self._ttl_listeners.append(own)
        self.receive_ttls()

        def unfollow() -> None:
            with self._lock:
                self._ttl_listeners = [each for each in self._ttl_listeners if each is not own]

        return unfollow

    def receive_ttls(self) -> None:
        """Give the listeners all ttls of the server, unless they cannot be known now."""
        if self._connection != "live":
            return
        with self._lock:
            try:
                ttls, listeners = self.server.ttls(), tuple(self._ttl_listeners)
            except ConnectionError:
                return
        for listener in listeners:
            listener(ttls)

    async def aclose(self) -> None:
        """Leave the server. Local copies are not trusted any more."""
        self.server.disconnect(self)
        self.cut()
        self._answered = -NEVER


class MemoryTicket:
    """The cells that a lookup saw.

    Attributes:
        depends_on: cells of all tags known before the load, and the entry's own.
        watches: S and D of the roots under which the result will name entities.
        cells: all of these as they were; empty if the server could not be asked.
        tags: tags known before the load, or all tags of the value that was found.
        asked: clock reading at which the lookup began.
        versions: see `Ticket`.
        claim: name and claimant of the claim to the load, if this process has it.
        is_touched: a message that concerns it has come since, or messages may have been lost.
    """

    __slots__ = (
        "__weakref__", "asked", "cells", "claim", "depends_on", "is_touched", "request", "tags", "tier", "versions",
        "watches",
    )  # fmt: skip

    def __init__(self, tier: MemoryTier, request: Request) -> None:
        self.tier = tier
        self.request = request
        self.depends_on = frozenset().union(cell_of_entry(request.tool, request.key), *map(cells_read, request.tags))
        self.watches = frozenset[CellName]().union(*map(cells_of_root, request.late_roots))
        self.cells: dict[CellName, Cell] = {}
        self.tags = request.tags
        self.versions: Versions | None = None
        self.claim: tuple[Hashable, str] | None = None
        self.asked = CLOCK.now()
        self.is_touched = False

    @property
    def has_claim(self) -> bool:
        """See `SharedLoads`."""
        return self.claim is not None

    def is_clean(self) -> bool:
        # Under an armed root a value may be stored in the tier, where it expires with its writer's lease. A local copy
        # would not.
        return (
            bool(self.cells)
            and not self.request.strong
            and not self.is_touched
            and all(cell.mode == "idle" for cell in self.cells.values())
        )

    def is_joinable(self) -> bool:
        if self.request.strong or self.is_touched or any(cell.mode == "held" for cell in self.cells.values()):
            return False
        now = CLOCK.now()
        return now < self.asked + self.tier.max_staleness or now < self.tier.trusted_until()

    @property
    def lasts(self) -> float:
        ttl = self.request.ttl
        return self.tier.max_ttl if ttl is None else min(ttl, self.tier.max_ttl)

    def agrees_with(self, other: Ticket) -> bool:
        if not isinstance(other, MemoryTicket) or not self.cells:
            return False
        return all(cell.mode == "idle" for cell in self.cells.values()) and {
            name: cell.token for name, cell in self.cells.items()
        } == {name: cell.token for name, cell in other.cells.items()}

    def concerns(self, touched: Touched) -> bool:
        """Whether a write changes a tag or the key of the load."""
        request = self.request
        return any(key == (request.tool, request.key) or ("", key) in self.cells for key in touched.keys) or any(
            root_of(path) in request.late_roots or any(meet(tag, path) for tag in self.tags) for path in touched.tags
        )


def _is_covered(tag: str, known: Set[CellName]) -> bool:
    """Whether the versions of a tag's cells are known. A root may stand for its entities, if they were too many."""
    return cells_read(tag) <= known or (":" not in tag and any(root == tag for root, _ in known))


def _address(request: Request) -> Hashable:
    return request.tool, request.session, request.tenant, request.key


def _claim_name(ticket: MemoryTicket) -> Hashable | None:
    """What the load of a value is claimed under: the tokens of now are a part of it. None if it cannot be claimed,
    because they are unknown or a write holds one of them.
    """
    cells = ticket.cells
    if not ticket.depends_on <= cells.keys() or any(cell.mode == "held" for cell in cells.values()):
        return None
    return _address(ticket.request), frozenset((name, cells[name].token) for name in ticket.depends_on)


def _cells_by_mode(write: WriteIntent) -> dict[Mode, frozenset[CellName]]:
    cells: dict[Mode, frozenset[CellName]] = {
        "held": cells_written(write.tags, write.keys),
        "armed": cells_armed(write),
    }
    return {mode: names for mode, names in cells.items() if names}
