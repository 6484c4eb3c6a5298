"""Writes: the script calls that announce, renew and end them, and those that have not been delivered yet.

While an invalidation is pending, this process neither reads nor writes the cells under it on the server: it would find
what it has itself overwritten. It is retried under its writer's id until it is delivered. A process that dies loses its
pending invalidations, and others serve what they have until its ttl ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_cache.remote.protocol import SentCommit, WriteIntent
from agent_cache.remote.redis.connection import NEVER, Connection, Interrupted, Moving, Refused, Unreachable, boottime
from agent_cache.remote.redis.deployments import Options
from agent_cache.remote.redis.keyspace import CellKey, Cells, Invalidations, Keyspace, Root, messages
from agent_cache.remote.redis.scripts import BEGIN, COMMIT, RENEW, Script
from agent_cache.remote.redis.transport import Server, Transport
from agent_cache.values.canonical import is_large, make_room

__all__ = ["Call", "Calls", "PendingInvalidations", "Waiter", "Writer", "release", "set_done"]

_MAX_PENDING = 1_000
_MAX_PLANS = 4_096
_MAX_CALLS_OF_PLAN, _MAX_TAGS_OF_PLAN = 2, 16
"""Of a write whose calls are remembered: some 3 KB for its begin and its end."""
_MAX_ANNOUNCED = 10_000
_UNDELIVERED = "an invalidation could not be delivered; it is retried until it is"
_MAX_PATHS = 1_000
"""Of one call, and so of one message: a script blocks the server for all clients, and a message is parsed whole."""

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
"""A future, and the loop of those that wait for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One script call of a writer under one root.

    Attributes:
        cells: cells that it moves or arms, which must not be read while it is pending.
        is_begin: it announces a write, and does not end it.
        until: reading of `boottime` up to which it holds the cells. None if the period counts from its execution.
        messages: that it publishes, each after its channel.
    """

    writer: str
    root: Root
    script: Script
    keys: list[bytes]
    arguments: list[bytes]
    cells: frozenset[CellKey] = field(default_factory=frozenset)
    is_begin: bool = False
    until: float | None = None
    messages: Sequence[bytes] = ()

    def fresh_arguments(self) -> list[bytes]:
        """The arguments to be sent now. Tokens are new each time: others may have read those of an earlier attempt that
        was executed, and a token that comes back would make values valid again that were stored under it.
        """
        arguments = self.arguments.copy()
        arguments[2] = os.urandom(12).hex().encode()
        if self.until is not None:
            arguments[4] = b"%d" % int(max(0.0, self.until - boottime()) * 1000)
        return arguments


class PendingInvalidations:
    """Script calls that are on their way or not known to have been executed, by root and writer.

    The latest call of a writer replaces its earlier ones. A garbage collection may come back in here from inside of
    itself: so loops go over copies, and each change is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._calls: dict[tuple[str, str], Call] = {}
        self._in_flight: dict[Call, float] = {}
        self._waiters: dict[Call, list[Waiter]] = {}
        self._version = object()
        self._cells: tuple[object, frozenset[CellKey]] = self._version, frozenset()

    def __len__(self) -> int:
        return len(self._calls) + len(self._in_flight)

    @property
    def undelivered(self) -> int:
        """Number of calls that have failed. Those in flight have not failed yet."""
        return len(self._calls)

    def after_fork(self) -> None:
        """In the child, which delivers the same: both may. Calls in flight are so in the parent."""
        self._lock = threading.RLock()
        self._in_flight = {}
        self._waiters = {}

    def blocks(self, cells: Collection[CellKey]) -> bool:
        """Whether an invalidation of any of these cells is pending."""
        if not (self._calls or self._in_flight):  # at nearly every hit, twice
            return False
        return self._has_failed(cells) or bool(self._in_flight_to(cells))

    def _has_failed(self, cells: Collection[CellKey]) -> bool:
        if not self._calls:
            return False
        version = self._version
        known, pending = self._cells
        if known is not version:
            pending = frozenset().union(*(call.cells for call in self.calls()))
            self._cells = version, pending
        return not pending.isdisjoint(cells)

    def _in_flight_to(self, cells: Collection[CellKey]) -> list[Call]:
        """The calls of any of these cells that are on their way."""
        if not self._in_flight:
            return []
        return [call for call in self._in_flight.copy() if not call.cells.isdisjoint(cells)]

    async def wait(self, cells: Collection[CellKey], until: float) -> bool:
        """Wait for the invalidations of any of these cells that are on their way now. Not for those that are sent
        meanwhile, whose writes have not ended before: in a process that writes all the time there would be no end.

        Args:
            until: reading of the loop's clock at which the caller waits no longer.

        Returns:
            Whether all of them have landed, and none has failed.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until):
                for call in self._in_flight_to(cells):
                    if self._has_failed(cells):
                        return False
                    landed = loop.create_future()
                    self._waiters.setdefault(call, []).append((loop, landed))
                    if call in self._in_flight:
                        await landed
                    else:  # it has landed meanwhile, in another thread
                        self._release(call)
        except TimeoutError:
            return False
        return not self._has_failed(cells)

    def _release(self, call: Call) -> None:
        """Have those that wait for this call look again. It is not in flight any more."""
        release(self._waiters.pop(call, ()))

    def send(self, call: Call) -> None:
        """Note a call that is about to be sent. Its sender adds or acknowledges it, unless its loop ends before."""
        self._in_flight[call] = boottime()

    def add(self, call: Call, lease: float, commit_root: Callable[[Root, float], Call]) -> None:
        """Add a call that is not known to have been executed.

        Args:
            lease: seconds that a begin would hold its cells.
            commit_root: makes the call that invalidates a whole root up to a reading of `boottime`: too many calls are
                merged into one for each root.
        """
        with self._lock:
            self._calls[call.root.name, call.writer] = call
            self._version = object()
            self._in_flight.pop(call, None)
            self._release(call)
            if len(self._calls) > _MAX_PENDING:
                until: dict[Root, float] = {}
                pending = self._calls.copy()
                for each in pending.values():
                    end = boottime() + lease if each.is_begin else each.until or NEVER
                    until[each.root] = max(end, until.get(each.root, NEVER))
                merged = [commit_root(root, end) for root, end in until.items()]
                self._calls.update({(each.root.name, each.writer): each for each in merged})
                for key, each in pending.items():
                    if self._calls.get(key) is each:
                        self._calls.pop(key, None)
                self._version = object()

    def acknowledge(self, call: Call) -> None:
        """Remove a call that was executed, and an earlier begin of its writer."""
        self._in_flight.pop(call, None)
        if self._waiters:
            self._release(call)
        if self._calls:
            with self._lock:
                key = call.root.name, call.writer
                pending = self._calls.get(key)
                if pending is not None and (pending is call or pending.is_begin):
                    self._calls.pop(key, None)
                    self._version = object()

    def replace(self, call: Call, by: Call) -> None:
        """Deliver another call instead, if this one is still pending."""
        with self._lock:
            if self.is_pending(call):
                self._calls[by.root.name, by.writer] = by
                self._version = object()
                self._in_flight.pop(call, None)

    def is_pending(self, call: Call) -> bool:
        """Whether this is still the latest of its writer: a begin that is executed after its commit costs a lease."""
        return call in self._in_flight or self._calls.get((call.root.name, call.writer)) is call

    def calls(self) -> list[Call]:
        """All calls that have failed."""
        return [*self._calls.copy().values()]

    def overdue(self, patience: float) -> list[Call]:
        """Calls that have been in flight for more than so many seconds: their event loop may have ended."""
        late = boottime() - patience
        return [call for call, since in self._in_flight.copy().items() if since <= late]


def release(waiters: Iterable[Waiter]) -> None:
    """Let those go on that wait in loops of other threads."""
    for loop, future in waiters:
        try:
            loop.call_soon_threadsafe(set_done, future)
        except RuntimeError:  # that loop is closed
            pass


def set_done(future: asyncio.Future[None]) -> None:
    """End a future, unless it has ended."""
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A script call without its writer and its end.

    Attributes:
        suffix: added to the writer's id: each of several calls to one root has an id of its own.
        arguments: of the script, without the writer and the messages, which are the last.
    """

    suffix: str
    root: Root
    script: Script
    keys: list[bytes]
    arguments: list[bytes]
    cells: frozenset[CellKey]
    is_begin: bool
    messages: Sequence[bytes]

    def by(self, writer: str, until: float | None = None) -> Call:
        name = writer + self.suffix
        writer_id, said = name.replace("|", "_").encode(), self.messages
        arguments = [*self.arguments[:3], writer_id, *self.arguments[3:], *_list(said)]
        return Call(name, self.root, self.script, self.keys, arguments, self.cells, self.is_begin, until, said)


class Calls:
    """Makes the script calls of writes, in commands of a bounded size. Plans of common writes are remembered.

    Attributes:
        cell_ttl: of cells and registries, in milliseconds.
    """

    def __init__(self, transport: Transport, keyspace: Keyspace, options: Options, process: bytes) -> None:
        self._transport = transport
        self.keyspace = keyspace
        self._lease = options.lease
        self.cell_ttl = b"%d" % int(options.cell_ttl * 1000)
        self._process = process
        self._plans: dict[tuple[object, ...], Sequence[_Plan]] = {}

    def begin(self, write: WriteIntent) -> list[Call]:
        """Announce a write to every root that it names."""
        return self._announce(write, BEGIN)

    def renew(self, write: WriteIntent) -> list[Call]:
        """Extend its lease there, or announce it again."""
        return self._announce(write, RENEW)

    def _announce(self, write: WriteIntent, script: Script) -> list[Call]:
        key = _plan_key(write, script)
        plans = self._plans.get(key)
        if plans is None:
            plans = [self._plan_begin(script, *announced) for announced in self._announced(write)]
            self._keep(key, plans, len(write.tags))
        return [plan.by(write.id) for plan in plans]

    def commit(self, write: WriteIntent, tags: tuple[str, ...], until: float, *, failed: bool) -> list[Call]:
        """End a write under every root that it has named or touched, and hold the touched cells until then."""
        key = _plan_key(write, COMMIT, tuple(tags), failed)
        plans = self._plans.get(key)
        if plans is None:
            plans = list(self._plan_commits(write, tags, failed=failed))
            self._keep(key, plans, len(write.tags) + len(tags))
        return [plan.by(write.id, until) for plan in plans]

    def for_whole_root(self, call: Call) -> Call:
        """The call that does to a whole root what this one does to some of its cells."""
        root = call.root
        if call.is_begin:
            return self._plan_begin(BEGIN, root, "", [root.s, root.d], []).by(call.writer)
        return self.commit_root(root, call.until or NEVER, call.writer)

    def commit_root(self, root: Root, until: float, writer: str = "") -> Call:
        """The call that ends a write of a whole root."""
        return self._plan_commit(root, "", [root.s, root.d], [], []).by(writer or os.urandom(16).hex(), until)

    def _keep(self, key: tuple[object, ...], plans: list[_Plan], tags: int) -> None:
        if key and len(plans) <= _MAX_CALLS_OF_PLAN and tags <= _MAX_TAGS_OF_PLAN and not is_large(key[1:]):
            make_room(self._plans, _MAX_PLANS)
            self._plans[key] = plans

    def _announced(self, write: WriteIntent) -> Iterator[tuple[Root, str, list[CellKey], list[CellKey]]]:
        """Root, suffix, cells that the write holds and cells that it arms: the same each time."""
        held = _by_root(self.keyspace.cells_written(write.tags) | self._entry_cells(write))
        armed = _by_root(self.keyspace.cells_armed(write))
        for root in dict.fromkeys([*held, *armed]):
            late = armed.get(root, [])
            for suffix, part in _parts(held.get(root, [])):
                yield root, suffix, part, late
                late = []

    def _plan_begin(self, script: Script, root: Root, suffix: str, held: list[CellKey], armed: list[CellKey]) -> _Plan:
        # Armed cells are part of the message: if the writer dies, no commit follows, so local copies are dropped now.
        arguments = [
            *self._head(root, self._lease), *_list(map(root.cell_name, held)), *_list(map(root.cell_name, armed)),
        ]  # fmt: skip
        cells = dict.fromkeys([*held, *armed])
        keys = [root.registry, *cells, *self._transport.whole_slot(root.absent)]
        said = messages(self._process, b"B", root, armed or held)
        script = self._transport.script(script)
        return _Plan(suffix, root, script, keys, arguments, frozenset(cells), is_begin=True, messages=said)

    def _plan_commits(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool) -> Iterator[_Plan]:
        moved = self.keyspace.cells_written(tags) | self._entry_cells(write)
        if failed:
            moved |= self.keyspace.cells_armed(write)
        begun = {(root, suffix): cells for root, suffix, *cells in self._announced(write)}
        ended = {(root, suffix): part for root, cells in _by_root(moved).items() for suffix, part in _parts(cells)}
        for root, suffix in dict.fromkeys([*ended, *begun]):
            yield self._plan_commit(root, suffix, ended.get((root, suffix), []), *begun.get((root, suffix), ([], [])))

    def _plan_commit(
        self, root: Root, suffix: str, moved: list[CellKey], held: list[CellKey], armed: list[CellKey]
    ) -> _Plan:
        """End a write under one root.

        Args:
            held, armed: the cells it was announced with.
        """
        names = [root.cell_name(cell) for cell in moved]
        # In a cluster values are in other slots, where this script may not delete them: their cells end them.
        is_cluster = self._transport.topology.is_cluster
        values = [] if is_cluster else [self.keyspace.value(name[1:]) for name in names if name.startswith(b"K")]
        arguments = [
            *self._head(root, 0.0), *_list(names), *_list(map(root.cell_name, held)),
            *_list(map(root.cell_name, armed)), *_list(values),
        ]  # fmt: skip
        keys = [root.registry, *moved, *values, *self._transport.whole_slot(root.absent)]
        said, script = messages(self._process, b"C", root, moved), self._transport.script(COMMIT)
        return _Plan(suffix, root, script, keys, arguments, frozenset(moved), is_begin=False, messages=said)

    def _entry_cells(self, write: WriteIntent) -> Cells:
        """The cells of single entries that the write names."""
        cells: Cells = {}
        for request in write.entries:
            cells |= self.keyspace.entry_cell(request)
        named = {(request.tool, request.key) for request in write.entries}
        for tool, key in write.keys:
            if (tool, key) not in named:
                cells |= self.keyspace.cell_of_call(tool, key)
        return cells

    def _head(self, root: Root, period: float) -> list[bytes]:
        return [root.prefix, self.cell_ttl, b"", b"%d" % int(period * 1000)]  # the token: see `Call.fresh_arguments`


def _plan_key(write: WriteIntent, script: Script, *more: object) -> tuple[object, ...]:
    """What the calls of a write depend on; empty for a write that names entries, whose number is unbounded."""
    if write.entries or write.keys:
        return ()
    return script, tuple(write.tags), tuple(write.late_roots), *more


def _by_root(cells: Cells) -> dict[Root, list[CellKey]]:
    """Cells by root. Instead of very many entities the whole root is invalidated, since all that depends on one of them
    depends on S as well. An entry may not, so entries stay.
    """
    by_root: dict[Root, list[CellKey]] = {}
    for cell, root in cells.items():
        by_root.setdefault(root, []).append(cell)
    for root, own in by_root.items():
        entries = [cell for cell in own if root.cell_name(cell).startswith(b"K")]
        if len(own) - len(entries) > _MAX_PATHS:
            by_root[root] = [root.s, root.d, *entries]
    return by_root


def _parts(cells: list[CellKey]) -> Iterator[tuple[str, list[CellKey]]]:
    """Parts of a bounded size, with the suffix of each: the same at the begin and at the commit."""
    yield "", cells[:_MAX_PATHS]
    for start in range(_MAX_PATHS, len(cells), _MAX_PATHS):
        yield f"+{start}", cells[start : start + _MAX_PATHS]


async def _nowhere(_: list[Call]) -> None:
    """Hand over to nobody."""


def _list(items: Iterable[bytes]) -> list[bytes]:
    items = list(items)
    return [b"%d" % len(items), *items]


class _Sent(SentCommit):
    """A commit whose calls have been sent."""

    __slots__ = ("_calls", "_writer")

    def __init__(self, writer: Writer, calls: list[Call]) -> None:
        self._writer = writer
        self._calls = calls

    def __await__(self) -> Generator[Any, Any, None]:
        return self._writer.landed(self._calls).__await__()


class Writer:
    """Announces writes and invalidations to the servers, and delivers later what could not be delivered at once.

    Attributes:
        process: id of this process in messages. A child has another one after a fork.
        wake: wakes the thread of the tier, because calls are pending.
        hand_over: has the thread of the tier send calls at once to servers that do not answer, and returns when it has.
    """

    def __init__(
        self, transport: Transport, keyspace: Keyspace, invalidations: Invalidations, options: Options
    ) -> None:
        self.pending = PendingInvalidations()
        self.wake: Callable[[], None] = lambda: None
        self.hand_over: Callable[[list[Call]], Awaitable[None]] = _nowhere
        self._transport = transport
        self.keyspace = keyspace
        self.invalidations = invalidations
        self._options = options
        self._announced: dict[str, float] = {}  # by write, when the latest executed begin or renewal was sent
        self._begin_process()

    def _begin_process(self) -> None:
        self.process = os.urandom(8).hex().encode()
        self.calls = Calls(self._transport, self.keyspace, self._options, self.process)

    def after_fork(self) -> None:
        """In the child: another process, with the same pending invalidations."""
        self.pending.after_fork()
        self._begin_process()

    async def begin(self, write: WriteIntent) -> Unreachable | None:
        """Announce a write to every root that it names. Returns why it could not be announced to one, if so: the
        announcement is pending then.
        """
        calls, sent, announced = self.calls.begin(write), boottime(), self._announced
        failure = await self._send(calls)
        if failure is None and not any(map(self.pending.is_pending, calls)):
            make_room(announced, _MAX_ANNOUNCED)
            announced[write.id] = sent
        return failure

    async def renew(self, write: WriteIntent) -> None:
        """Extend its lease, or announce it again where it is not registered any more."""
        calls, sent, announced = self.calls.renew(write), boottime(), self._announced
        failures = await asyncio.gather(*map(self._send_one, calls))
        for call, failure in zip(calls, failures, strict=True):
            if failure is None:
                self.invalidations.add(call.cells)  # as after a begin: it may have been one
        if write.id in announced and not any(failures) and not any(map(self.pending.is_pending, calls)):
            announced[write.id] = sent

    def forget_announced(self) -> None:
        """A server has lost data, perhaps the cells that running writes hold: these wait for their commits."""
        self._announced = {}  # another one: a begin may have been answered before, and not have been noted yet

    def commit(
        self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float
    ) -> Coroutine[Any, Any, None] | SentCommit:
        """End a write under every root that it has named or touched.

        It is pending from now on, before anything is awaited: if the loop ends here, the tier's thread delivers it.

        Until it lands, what a write has announced stays held, and nobody finds what it has replaced. So the caller need
        not wait, if the cells are known to be held for now, and are all that it has touched, and the commit can be sent
        at once. A write that is refused when it cannot be announced waits: strong reads rely on that, and the server
        may have lost what it held without anybody's notice.
        """
        until = boottime() + hold if hold else NEVER
        calls = self.calls.commit(write, tags, until, failed=failed)
        for call in calls:  # in this order: a lookup of another thread waits for it, or keeps nothing
            self.pending.send(call)
            self.invalidations.add(call.cells)
        announced = self._announced.pop(write.id, NEVER)
        is_held = boottime() < announced + self._options.lease
        is_plain = not (failed or hold or write.late_roots) and write.on_unreachable == "run"
        if is_held and is_plain and tags == write.tags and self._is_connected(calls):
            for call in calls:
                self._post(call)
            return _Sent(self, calls)
        return self._end(calls)

    def _is_connected(self, calls: list[Call]) -> bool:
        try:
            client = self._transport.client()
            return all(client.is_connected(call.root.slot) for call in calls)
        except Unreachable:  # the tier was closed, or a server is not asked now
            return False

    def _post(self, call: Call) -> None:
        """Send a call that nobody waits for."""

        def on_end(failure: Unreachable | None) -> None:
            if failure is None:
                self.pending.acknowledge(call)
                self.invalidations.add(call.cells)
            elif self.pending.is_pending(call):
                self.add_pending(call)
                self._transport.log.once(_UNDELIVERED, failure)
                self.wake()

        try:
            self._transport.client().post(call.script, call.root.slot, call.keys, call.fresh_arguments(), on_end)
        except Unreachable as error:
            on_end(error)

    async def landed(self, calls: list[Call]) -> None:
        """Wait until calls have been executed, or are delivered later."""
        cells = frozenset().union(*(call.cells for call in calls))
        await self.pending.wait(cells, asyncio.get_running_loop().time() + 2 * self._options.timeout)

    async def _end(self, calls: list[Call]) -> None:
        may_wait = True
        try:
            await self._send(calls)
        except BaseException as error:  # cancelled, or closed: it is unknown whether they were executed
            may_wait = isinstance(error, asyncio.CancelledError)
            for call in calls:
                if self.pending.is_pending(call):
                    self.add_pending(call)
            self.wake()
            raise
        finally:
            unheard = [call for call in calls if self.pending.is_pending(call)]
            if unheard and may_wait:  # before the write returns: see `Subscriber.hand_over`
                await self.hand_over(unheard)

    async def _send(self, calls: list[Call]) -> Unreachable | None:
        """Send all calls at once; those that are not known to have been executed are pending."""
        for call in calls:
            self.invalidations.add(call.cells)
        if len(calls) == 1:  # most writes: without a task of its own
            failures = [await self._send_one(calls[0])]
        else:
            failures = await asyncio.gather(*map(self._send_one, calls))
        failed = None
        for call, failure in zip(calls, failures, strict=True):
            if failure is not None:
                failed = failure
                self.add_pending(call)
                self._transport.log.once(_UNDELIVERED, failure)
        if failed is not None:
            self.wake()
        for call in calls:  # again: the own message is skipped, and a lookup may have come before the script ran
            self.invalidations.add(call.cells)
        return failed

    async def _send_one(self, call: Call) -> Unreachable | None:
        for is_last in (False, True):
            try:
                client = self._transport.client()
                await client.run(call.script, call.root.slot, call.keys, call.fresh_arguments())
            except Interrupted as error:  # it may have been executed: then it is twice, which is harmless
                if is_last:
                    return error
            except Moving as error:
                return await self._hold_while_moving(call, error)
            except Unreachable as error:
                return error
            else:
                self.pending.acknowledge(call)
                break
        return None

    async def _hold_while_moving(self, call: Call, reason: Moving) -> Unreachable | None:
        """Deliver a call whose slot moves to another server key by key, so that neither of the two runs its script.

        Each cell is held by a command of its own, which is executed by whichever server has the cell. So all that was
        stored under the cells is invalid, and nothing is stored under them until the script, which stays pending, has
        been executed, or the lease has ended. Writers that share a cell are told apart only after that.

        Returns:
            Why it is not held, if so.
        """
        period = max(self._options.lease, 0.0 if call.until is None else call.until - boottime())
        token, slot = os.urandom(12).hex().encode(), call.root.slot
        said = zip(call.messages[::2], call.messages[1::2], strict=True)
        try:
            client = self._transport.client()
            hold = (b"!" + token, b"PX", b"%d" % int(period * 1000))
            await asyncio.gather(*(client.call(slot, b"SET", cell, *hold) for cell in call.cells))
            await asyncio.gather(*(client.call(slot, b"SPUBLISH", channel, text) for channel, text in said))
        except Unreachable:
            return reason
        self.add_pending(call)
        self.wake()
        return None

    # Pending invalidations

    def add_pending(self, call: Call) -> None:
        """Deliver a call later that is not known to have been executed."""
        self.pending.add(call, self._options.lease, self.calls.commit_root)

    async def deliver_pending(self, server: Server, connection: Connection, patience: float | None = None) -> None:
        """Deliver the pending calls of a server. A call that it refuses is replaced by one for the whole root.

        Args:
            patience: seconds that calls in flight are left to their senders. None is twice the timeout.

        Raises:
            Unreachable: if it takes none.
        """
        for call in self.pending.overdue(2 * self._options.timeout if patience is None else patience):
            self.add_pending(call)
        for call in self.pending.calls():
            if self._transport.topology.server_of(call.root.slot) is not server or not self.pending.is_pending(call):
                continue
            try:
                await connection.run(call.script, call.keys, call.fresh_arguments())
            except Moving as error:  # left to a heartbeat of the server that has the slot then
                if error.reply is not None:
                    self._transport.redirect(server, error.reply)
            except Refused as error:
                self._transport.log.once("an invalidation was refused; all of its root is invalidated instead", error)
                self.pending.replace(call, self.calls.for_whole_root(call))  # delivered by the next heartbeat
            else:
                self.invalidations.add(call.cells)
                self.pending.acknowledge(call)

    async def deliver_all(self) -> None:
        """Try once to deliver all pending calls, within one timeout."""
        await asyncio.gather(*map(self._deliver_at_last, self._transport.topology.servers))

    async def _deliver_at_last(self, server: Server) -> None:
        try:
            async with asyncio.timeout(self._options.timeout):
                connection, _ = await self._transport.connect(server)
                try:
                    await self.deliver_pending(server, connection, 0.0)
                    await self.deliver_pending(server, connection, 0.0)  # those that were replaced
                finally:
                    connection.close()
        except Exception as error:  # noqa: BLE001 - the tier is closed all the same
            event = "pending invalidations could not be delivered before closing"
            self._transport.log.once(event, str(error) or "no answer in time")
