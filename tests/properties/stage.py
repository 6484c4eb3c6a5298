"""One example on its stage: the scheduler, the clock, the open sessions, and the ledger that watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_cache import AgentCacheSession, bypass, configure
from tests.harness import library
from tests.properties.ledger import Broken, Key, Ledger, Load, Loaded, Path, Read, Reader, Rejected, Write, arguments
from tests.properties.scheduler import Scheduler

DOUBT = 5.0  # The library's default, in seconds.
ENOUGH_ROUNDS = 200  # To end what is left, every round releases all gates.
LONG_AFTER = 60.0  # Every doubt is over by then, everything has settled and every ttl has passed.

stage: ContextVar[Stage] = ContextVar("stage")
reading: ContextVar[Read] = ContextVar("reading")
changing: ContextVar[Write] = ContextVar("changing")


@dataclass(frozen=True, repr=False)
class Writer:
    """A write tool and what the model knows of it."""

    name: str
    call: Callable[[str], Awaitable[object]]
    names: Callable[[str], tuple[Path, ...]]  # What it invalidates from its beginning on.
    late: tuple[Path, ...] = ()  # The roots of what only its result tells ...
    told: Callable[[str], tuple[Path, ...]] = lambda _: ()  # ... and what the result tells then.
    settle: float = 0.0
    big: bool = False
    inner_only: bool = False  # Limited to the session that it runs in.
    entry: Callable[[str], tuple[object, ...] | None] = lambda _: None  # The one entry that it is limited to.

    def __repr__(self) -> str:
        return self.name


class Inner(NamedTuple):
    """A read that a read tool makes."""

    reader: Reader
    key: Key = ""
    fresh: bool = False


@dataclass(eq=False, repr=False)
class Place:
    """Where calls are made: the process, or an open session."""

    name: str
    context: Context
    chain: tuple[Place, ...] = ()
    tenant: str | None = None
    closed: bool = False
    gate: asyncio.Future[None] | None = None
    task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return self.name


class Layer(NamedTuple):
    """Settings, for as long as a block lasts, which has begun."""

    settings: dict[str, object]
    block: AbstractContextManager[object]


@dataclass(eq=False)
class Stage:
    """Everything that one example needs, and the moves it can make."""

    clock: library.Clock
    scheduler: Scheduler = field(default_factory=Scheduler)
    ledger: Ledger = field(default_factory=Ledger)
    loads: list[Load] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    sessions: int = 0
    loads_before: int = field(default_factory=library.loads_in_flight)

    def __post_init__(self) -> None:
        context = Context()
        context.run(stage.set, self)
        self.everywhere = Place("the process", context)
        self.places.append(self.everywhere)

    # -- what the tools do -------------------------------------------------------------------------------------

    async def load(self, read: Read, owner: str | None, other: str | None) -> Loaded:
        """Look at the store at one gate, answer at the next."""
        load = self.ledger.start_load(read)
        self.loads.append(load)
        outcome = "cancelled"
        try:
            await self._stand(load)
            load.seen = dict(self.ledger.truth)
            await self._stand(load)
            load.value = Loaded(load.number, owner, other)
            outcome = "returned"
            return load.value
        except Broken:
            outcome = "raised"
            raise
        finally:
            self.ledger.end_load(load, outcome)
            self.loads.remove(load)

    async def compose(
        self, read: Read, inner: Iterable[Inner], how: str, owner: str | None, *, forgives: bool
    ) -> Loaded:
        """Make other reads, at gates before, between and after them; answer, also if some of them fail.

        Args:
            how: "in turn", or each in a task of its own, "together"; or until the "first" of them has ended.
        """
        load = self.ledger.start_load(read)
        self.loads.append(load)
        outcome = "cancelled"
        try:
            await self._stand(load)
            load.seen = dict(self.ledger.truth)
            succeeded: list[object] = []
            tasks = []
            for call in inner:
                part = Read(call.reader, call.key, self.entries(call.reader, read.here), call.fresh, open=load.open)
                part.here, part.within = read.here, load
                if how == "in turn":
                    succeeded.append(await self._inner(load, part))
                    await self._stand(load)
                else:
                    part.task = asyncio.create_task(self._inner(load, part))
                    tasks.append(part.task)
            self.tasks += tasks
            if how == "together":
                succeeded += await asyncio.gather(*tasks, return_exceptions=True)
            elif how == "first":
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                succeeded += [task in done and not task.cancelled() and task.result() for task in tasks]
            if tasks:
                await self._stand(load)
            if not forgives and not all(each is True for each in succeeded):
                raise Broken(load.number)
            load.value = Loaded(load.number, owner)
            outcome = "returned"
            return load.value
        except Broken:
            outcome = "raised"
            raise
        finally:
            self.ledger.end_load(load, outcome)
            self.loads.remove(load)

    async def _inner(self, load: Load, read: Read) -> bool:
        """Make a read within a load. Returns whether it succeeded."""
        outer = reading.set(read)
        part = self.ledger.start_part(load, read)
        tool: Any = read.reader.call
        try:
            value = await (tool.fresh if read.fresh else tool)(*arguments(read.key))
        except Broken as error:
            self.ledger.failed(read, error)
            self.ledger.end_part(load, part, error.load)
            return False
        except asyncio.CancelledError:
            if not read.given_up:
                self.ledger.broken.append(f"{read.identity} was cancelled, and nobody had cancelled it")
            self.ledger.end_part(load, part, None)
            raise
        else:
            self.ledger.got(read, value)
            self.ledger.end_part(load, part, value.load)
            return True
        finally:
            reading.reset(outer)

    async def change(self, write: Write, paths: Iterable[Path], gives: Iterable[tuple[Reader, Key]] = ()) -> None:
        """Change the store at one gate, give the new result to these reads, answer at the next gate."""
        self.writes.append(write)
        write.lands = tuple(paths)
        try:
            await self._stand(write)
            self.ledger.land(write)
            for reader, key in gives:
                value = self.ledger.give(Read(reader, key, self.everywhere), write)
                await reader.call.set(value, *arguments(key))
            await self._stand(write)
        finally:
            self.writes.remove(write)

    def release(self, actor: Load | Write, error: Exception | None = None, *, to_its_end: bool = False) -> None:
        """Let a tool pass its gate, or fail there; or let it run through the gates that are left."""
        actor.open = to_its_end
        if actor.gate is not None and not actor.gate.done():
            actor.gate.set_exception(error) if error else actor.gate.set_result(None)

    async def _stand(self, actor: Load | Write) -> None:
        if not actor.open:
            actor.gate = self.scheduler.gate()
            await actor.gate

    # -- what can be done --------------------------------------------------------------------------------------

    def read(
        self,
        reader: Reader,
        key: Key,
        place: Place,
        *,
        at_once: bool = False,
        fresh: bool = False,
        bypassed: bool = False,
    ) -> Read:
        """Call a read tool in a task of its own."""
        read = Read(reader, key, self.entries(reader, place), fresh, open=at_once, here=place)
        read.task = self._spawn(self._read(read, bypassed=bypassed), place)
        return read

    def entries(self, reader: Reader, place: Place) -> object:
        """Name the entries that answer there: a session-scoped tool outside a session has none to share."""
        if reader.scope == "global":
            return place.tenant or self.everywhere
        return place if place.chain else object()

    async def _read(self, read: Read, *, bypassed: bool) -> None:
        reading.set(read)
        if bypassed or not self.is_caching():
            read.place = object()  # nothing is shared with other calls, in either direction
        self.ledger.start_read(read)
        tool: Any = read.reader.call
        is_contained = not read.fresh and not bypassed and tool.contains(*arguments(read.key))
        before = tool.cache_info()
        try:
            with bypass() if bypassed else nullcontext():
                value = await (tool.fresh if read.fresh else tool)(*arguments(read.key))
        except Broken as error:
            self.ledger.failed(read, error)
        except asyncio.CancelledError:
            if not read.cancelled:
                self.ledger.broken.append(f"{read.identity} was cancelled, and nobody had cancelled it")
        else:
            if is_contained and tool.cache_info()[:2] != (before.hits + 1, before.misses):
                self.ledger.broken.append(f"{read.identity} was contained, and was no hit")
            self.ledger.got(read, value)

    def write(self, writer: Writer, key: str, place: Place, *, at_once: bool = False) -> Write:
        """Call a write tool in a task of its own."""
        chain = place.chain if writer.inner_only else None
        entry = writer.entry(key)
        write = Write(writer.names(key), writer.late, chain=chain, entry=entry, open=at_once, big=writer.big)
        write.task = self._spawn(self._write(write, writer, key), place)
        return write

    async def _write(self, write: Write, writer: Writer, key: str) -> None:
        changing.set(write)
        self.ledger.begin_write(write)
        try:
            await writer.call(key)
        except Rejected:
            self.ledger.end_write(write, "rejected", told=writer.late)
        except (asyncio.CancelledError, OSError, RuntimeError):
            self.ledger.end_write(write, "in doubt", told=writer.late, hold=DOUBT)
        else:
            self.ledger.end_write(write, "returned", told=writer.told(key), hold=writer.settle)

    def invalidate(self, write: Write, how: Callable[[], Awaitable[object]], place: Place) -> None:
        """Invalidate by a call that has no tool's body between its beginning and its end."""
        self._spawn(self._invalidate(write, how), place)

    async def _invalidate(self, write: Write, how: Callable[[], Awaitable[object]]) -> None:
        self.ledger.begin_write(write)
        await how()
        self.ledger.end_write(write, "returned")

    def enter(self, outer: Place, tenant: str | None = None) -> Place:
        """Open a session, inside another one or not."""
        self.sessions += 1
        place = Place(f"session {self.sessions}", Context(), gate=self.scheduler.gate())
        place.chain, place.tenant = (*outer.chain, place), tenant or outer.tenant
        place.task = self._spawn(self._session(place, tenant), outer)
        self.scheduler.drain()
        self.places.append(place)
        return place

    async def _session(self, place: Place, tenant: str | None) -> None:
        async with AgentCacheSession(loop_detection=False, tenant=tenant):
            place.context = copy_context()
            assert place.gate is not None
            await place.gate

    def configure(self, **settings: object) -> None:
        """Enter a layer of the configuration."""
        self.layers.append(Layer(settings, configure(**settings)))  # type: ignore[arg-type]  # settings of any kind
        self.layers[-1].block.__enter__()
        self.ledger.change_configuration(len(self.layers))

    def is_caching(self) -> bool:
        """Whether caching is on: the layer that was entered last decides, of those that say it."""
        said = [layer.settings["enabled"] for layer in self.layers if "enabled" in layer.settings]
        return not said or bool(said[-1])

    def leave_layer(self, layer: Layer) -> None:
        """Leave a layer, which need not be the last one."""
        layer.block.__exit__(None, None, None)
        self.layers.remove(layer)
        self.ledger.change_configuration(len(self.layers))

    def leave(self, place: Place) -> None:
        """End a session; what still runs in it runs on."""
        self.places.remove(place)
        place.closed = True
        assert place.gate is not None
        place.gate.set_result(None)
        self.scheduler.drain()

    def innermost(self) -> list[Place]:
        """The sessions that may end now: those with no other inside."""
        around = {outer for place in self.places for outer in place.chain[:-1]}
        return [place for place in self.places if place.chain and place not in around]

    def advance(self, seconds: float) -> None:
        """Let time pass, for the library, for the event loop and for the model."""
        self.clock.advance(seconds)
        self.scheduler.loop.now += seconds
        self.ledger.clock += seconds

    def _spawn(self, work: Awaitable[None], place: Place) -> asyncio.Task[None]:
        task = self.scheduler.spawn(work, place.context)
        self.tasks.append(task)
        return task

    def waiting(self) -> list[Read]:
        """The reads that have not ended and that nobody has cancelled."""
        reads = (read for read in self.ledger.reads if not read.cancelled)
        return [read for read in reads if read.task is not None and not read.task.done()]

    def doubtful(self) -> list[Write]:
        """The writes that ended without an answer, and may still take effect."""
        return [
            write
            for write in self.ledger.writes
            if write.outcome == "in doubt" and not write.landed and self.ledger.clock < write.released
        ]

    def held(self) -> bool:
        """Whether an end of doubt, or of settling, is still to come."""
        return any(self.ledger.clock < write.released for write in self.ledger.writes)

    # -- how it ends -------------------------------------------------------------------------------------------

    def verdict(self) -> None:
        """Fail if anything went wrong so far."""
        assert not self.ledger.broken, "\n".join(self.ledger.broken)
        assert not self.scheduler.complaints, self.scheduler.complaints
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        self.tasks = [task for task in self.tasks if not task.done()]

    def finish(self, readers: Iterable[Reader]) -> None:
        """Let everything go on to its end, where nothing may hang; then read everything once more, long after."""
        self._end_all_tools()
        for layer in list(self.layers):
            self.leave_layer(layer)
        self.advance(LONG_AFTER)
        for place in self.places:
            for reader in readers:
                for key in reader.keys:
                    self.read(reader, key, place, at_once=True)
        self._end_all_tools()
        for place in reversed(self.places[1:]):
            self.leave(place)
        hung = [task for task in self.tasks if not task.done()]
        assert not hung, f"{len(hung)} task(s) hang although no tool runs: {hung}"
        self.verdict()
        left = library.loads_in_flight() - self.loads_before
        assert left <= 0, f"every task has ended, and the library still knows of {left} load(s)"

    def _end_all_tools(self) -> None:
        for _ in range(ENOUGH_ROUNDS):
            self.scheduler.drain()
            if not self.loads and not self.writes:
                return
            for actor in (*self.loads, *self.writes):
                self.release(actor, to_its_end=True)
        raise AssertionError(f"tools still run after {ENOUGH_ROUNDS} rounds: they start each other without end")
