"""P1 and P3 for every interleaving: readers, writers, cancellations, time and sessions as moves of a state machine.

Each machine runs over decorated tools, and some again over the same tools called by name through a `Toolbox`; `-m slow`
runs all, and searches longer. The oracle is `ledger`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent_cache import ToolCall, configure, invalidate
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.slow import slow_rows
from tests.properties import toolbox
from tests.properties.ledger import Broken, Key, Reader, Rejected, Write, arguments
from tests.properties.machine import Machine, searches
from tests.properties.stage import Place, Stage, Writer
from tests.properties.toolbox import TOOLBOX

RENEWING = ("renewing",)  # It reads by `fresh`, which a tool that is known by name has not.
MANY_READS = 5
MANY_SESSIONS = 3
MANY_LAYERS = 3
MANY_WRITES = 2  # More, and hardly anything is ever kept.
SECONDS = (1.5, 2.25, 5.5)  # Shorter than every hold, between settling and doubt, longer than all.


def gateway_timeout() -> Exception:
    """An error that is no timeout, and was caused by one: the far side may have done its work."""
    error = RuntimeError("the gateway gave up")
    error.__cause__ = TimeoutError()
    return error


async def pass_on(call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
    """A middleware that does what it should."""
    return await proceed()


async def fail(call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
    """One that is removed after its first call."""
    await proceed()
    raise ValueError


FAILURES = {"rejected": Rejected, "unreachable": ConnectionError, "timeout inside": gateway_timeout}

DECORATORS = "decorators"  # the body of a machine whose tools are decorated; that of the others is `TOOLBOX`


class Coherence(Machine):
    """The moves that all machines have."""

    body = DECORATORS
    patience = 5
    reader_names: tuple[str, ...] = ()
    writer_names: tuple[str, ...] = ()
    seconds = SECONDS
    load_endings: tuple[str, ...] = ("goes on", "ends", "ends", "ends", "fails")

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(self.clock)
        self.exits.callback(self.stage.scheduler.close)
        made, changed = toolbox.readers(self.body), toolbox.writers(self.body)
        self.readers = [made[name] for name in self.reader_names if self.body != TOOLBOX or name not in RENEWING]
        self.writers = [changed[name] for name in self.writer_names]

    def check(self) -> None:
        self.stage.verdict()

    def finish(self) -> None:
        self.stage.finish(self.readers)

    def moves(self) -> Iterator[str]:
        stage = self.stage
        if len(stage.waiting()) < MANY_READS:
            yield from ["start_a_read"] * 4
        if stage.loads:
            yield from ["let_a_load_go_on"] * 4
        if stage.waiting():
            yield "cancel_a_read"
        if self.writers and len(stage.writes) < MANY_WRITES:
            yield from ["start_a_write"] * 2
            if stage.loads:
                yield from ["write_and_read_again"] * 2
        if stage.writes:
            yield from ["let_a_write_go_on"] * 3
        if stage.doubtful():
            yield from ["let_a_lost_write_take_effect"] * 2
        yield from ["let_time_pass"] * (2 if stage.held() else 1)

    def choose_call(self) -> tuple[Reader, Key, Place]:
        reader = self.choose("reader", self.readers)
        return reader, self.choose("key", reader.keys), self.choose_place()

    def choose_place(self) -> Place:
        everywhere, *sessions = self.stage.places
        return self.choose("place", [*sessions[::-1] * 2, everywhere]) if sessions else everywhere

    # -- the moves ---------------------------------------------------------------------------------------------

    def start_a_read(self) -> None:
        self.stage.read(*self.choose_call(), at_once=self.choose("at once", (False, False, True)))
        self.choose_turns(self.stage.scheduler, self.patience)

    def let_a_load_go_on(self) -> None:
        load = self.choose("load", self.stage.loads)
        how = self.choose("how", self.load_endings)
        self.stage.release(load, Broken(load.number) if how == "fails" else None, to_its_end=how == "ends")
        self.choose_turns(self.stage.scheduler, self.patience)

    def cancel_a_read(self) -> None:
        self.choose("read", self.stage.waiting()).cancel()
        self.choose_turns(self.stage.scheduler, self.patience)

    def let_time_pass(self) -> None:
        self.stage.advance(self.choose("seconds", self.seconds))

    def start_a_write(self) -> None:
        writer, place = self.choose("writer", self.writers), self.choose_place()
        if place.chain or not writer.inner_only:
            key, at_once = self.choose("key", toolbox.IDS), self.choose("at once", (False, True))
            self.stage.write(writer, key, place, at_once=at_once)
        self.choose_turns(self.stage.scheduler, self.patience)

    def write_and_read_again(self) -> None:
        """A whole write while a tool runs, then the call of that tool: it must not join."""
        loads = [load for load in self.stage.loads if any(part.load for part in load.parts)]
        load, writer = self.choose("load", loads or self.stage.loads), self.choose("writer", self.writers)
        read = load.read
        if read.here.chain or not writer.inner_only:
            key = read.key if read.key in toolbox.IDS else self.choose("key", toolbox.IDS)
            self.stage.write(writer, key, read.here, at_once=True)
            self.stage.scheduler.drain()
        self.stage.read(read.reader, read.key, read.here)
        self.choose_turns(self.stage.scheduler, self.patience)

    def let_a_write_go_on(self) -> None:
        write = self.choose("write", self.stage.writes)
        how = self.choose("how", ("ends", "ends", "ends", "goes on", "cancelled", *FAILURES))
        if how == "cancelled":
            write.cancel()
        else:
            self.stage.release(write, FAILURES[how]() if how in FAILURES else None, to_its_end=how == "ends")
        self.choose_turns(self.stage.scheduler, self.patience)

    def let_a_lost_write_take_effect(self) -> None:
        self.stage.ledger.land(self.choose("write", self.stage.doubtful()))


class Invalidating(Coherence):
    """The moves of a person who invalidates by hand."""

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        if self.body == TOOLBOX:
            yield from ["invalidate_a_tag"] * 2
            yield "forget_all_tools"
        else:
            yield from ("invalidate_a_tag", "invalidate_a_call", "clear_a_tool", "refresh")

    def forget_all_tools(self) -> None:
        toolbox.NAMED.box.forget()
        for name in toolbox.readers(TOOLBOX):
            self.stage.ledger.invalidated(Write(entry=(name,)))

    def invalidate_a_tag(self) -> None:
        tag = self.choose("tag", ("sale", "sale:1", "sale:2"))
        write = Write((tuple(tag.split(":")),))
        self.stage.invalidate(write, lambda: invalidate(tag), self.choose_place())
        self.choose_turns(self.stage.scheduler, self.patience)

    def invalidate_a_call(self) -> None:
        reader, key, place = self.choose_call()
        entries = (self.stage.entries(reader, place),) if reader.scope == "global" else ()
        write = Write(entry=(reader.name, key, *entries))
        self.stage.invalidate(write, lambda: reader.call.invalidate(*arguments(key)), place)
        self.choose_turns(self.stage.scheduler, self.patience)

    def clear_a_tool(self) -> None:
        reader = self.choose("reader", self.readers)
        reader.call.clear()
        self.stage.ledger.invalidated(Write(entry=(reader.name,)))

    def refresh(self) -> None:
        self.stage.read(*self.choose_call(), fresh=True)
        self.choose_turns(self.stage.scheduler, self.patience)


class Nesting(Coherence):
    """The moves of sessions, one inside another or beside it; two that nest are there from the start."""

    tenants: tuple[str | None, ...] = (None,)

    def __init__(self) -> None:
        super().__init__()
        self.stage.enter(self.stage.enter(self.stage.everywhere))

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        if len(self.stage.places) <= MANY_SESSIONS:
            yield "open_a_session"
        if self.stage.innermost():
            yield "end_a_session"

    def open_a_session(self) -> None:
        self.stage.enter(self.choose_place(), self.choose("tenant", self.tenants))

    def end_a_session(self) -> None:
        self.stage.leave(self.choose("session", self.stage.innermost()))


class Configuring(Coherence):
    """The moves of requests that change the configuration for a while, in blocks that overlap, and of `bypass`."""

    layers: tuple[dict[str, Any], ...] = (
        {"enabled": False},
        {"max_bytes": 2_000},
        {"enabled": True},
        {"middleware": (pass_on, fail)},
    )

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        yield "bypass_the_cache"
        if len(self.stage.layers) < MANY_LAYERS:
            yield "enter_a_layer"
        if self.stage.layers:
            yield from ["leave_a_layer"] * 2

    def enter_a_layer(self) -> None:
        self.stage.configure(**self.choose("settings", self.layers))
        self.choose_turns(self.stage.scheduler, self.patience)

    def leave_a_layer(self) -> None:
        self.stage.leave_layer(self.choose("layer", self.stage.layers))
        self.choose_turns(self.stage.scheduler, self.patience)

    def bypass_the_cache(self) -> None:
        is_fresh = self.body != TOOLBOX and self.choose("fresh", (False, False, True))
        self.stage.read(*self.choose_call(), bypassed=True, fresh=is_fresh)
        self.choose_turns(self.stage.scheduler, self.patience)


class StaticAndEntityTags(Coherence):
    """Tags that are known before the load."""

    reader_names = ("listing", "entity")
    writer_names = ("entity", "root", "nobodys")


class TagsFromTheResult(Coherence):
    """Tags that only the result tells, of reads and of writes."""

    reader_names = ("lookup", "entity", "several", "listing")
    writer_names = ("entity", "told", "root", "settling_told", "told_nobodys")


class SeveralTags(Coherence):
    """Several tags, computed tags, tags below an entity, and writes whose source settles later."""

    reader_names = ("both", "below", "several", "listing", "entity")
    writer_names = ("both", "computed", "settling", "line")


class ExpiryAndEviction(Invalidating):
    """Entries that go by themselves or by hand."""

    reader_names = ("brief", "tight", "lookup")
    writer_names = ("entity",)


class ExpiredAnswers(Coherence):
    """Results that may be served when they have expired, but never when a write has dropped them.

    Loads fail more often than elsewhere, and time passes faster.
    """

    reader_names = ("graceful", "resilient")
    writer_names = ("entity",)
    seconds = (1.5, 5.5, 5.5)
    load_endings = ("goes on", "ends", "ends", "fails", "fails")

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        yield from ["let_time_pass"] * 3


class ExpiredAnswersByHand(ExpiredAnswers, Invalidating):
    """The same with late tags, a life of each result, and invalidation by hand."""

    reader_names = ("varied", "graceful")
    writer_names = ("told",)


class GivenResults(Invalidating):
    """Writes that give the read its new result, among others that do not."""

    reader_names = ("entity", "listing")
    writer_names = ("giving", "giving", "entity")


class OneCallManyCallers(Invalidating):
    """A crowd on one key: leaders and waiters come, go and are cancelled, often before they have woken up."""

    patience = 1
    reader_names = ("listing",)

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        if self.stage.waiting():
            yield from ["cancel_a_read"] * 3


class Composing(Invalidating):
    """The moves over reads that make reads: what stands at a gate goes on."""

    share = 0.8  # They are longer than others.

    def let_a_load_go_on(self) -> None:
        standing = [load for load in self.stage.loads if load.gate is not None and not load.gate.done()]
        load = self.choose("load", standing or self.stage.loads)
        makes_reads = load.parts or load.read.reader.name in toolbox.OUTER
        how = self.choose("how", ("goes on",) * 4 + ("ends", "fails") if makes_reads else self.load_endings)
        self.stage.release(load, Broken(load.number) if how == "fails" else None, to_its_end=how == "ends")
        self.choose_turns(self.stage.scheduler, self.patience)


class ReadsWithinReads(Composing):
    """Reads that make reads, under writes to what only these depend on."""

    reader_names = ("page", "card", "entity", "lookup")
    writer_names = ("entity", "told", "root")


class ReadsWithinReadsWithinReads(Composing):
    """Reads of reads of reads, in tasks of their own, that go on when some of them fail, are cancelled or are slow."""

    reader_names = ("book", "front", "forgiving", "hasty", "renewing", "page")
    writer_names = ("entity", "settling")


class ExpiryWithinReads(Composing):
    """Reads that make reads which expire."""

    reader_names = ("bounded", "front", "brief")
    writer_names = ("entity",)


class SessionsWithinReads(Nesting, Composing):
    """Reads of both scopes that make reads of both scopes."""

    reader_names = ("own_page", "own_book", "leaking", "own_entity")
    writer_names = ("inner", "told", "entity")


class ManyTags(Composing):
    """Writes of many tags at once, or by hand, and reads of many tags, which their results give or which they inherit.

    From more than 256 inherited tags on, their roots count.
    """

    reader_names = ("summary", "digest", "entity")
    writer_names = ("many", "many_told", "most", "in_a_block", "entity")

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        yield "invalidate_many_tags"

    def invalidate_many_tags(self) -> None:
        key = self.choose("key", (*toolbox.IDS, toolbox.READ[0], "nothing"))
        tags = (f"sale:{key}", *[f"sale:{other}" for other in toolbox.MANY])
        write = Write((("sale", key),))
        self.stage.invalidate(write, lambda: invalidate(*tags), self.choose_place())
        self.choose_turns(self.stage.scheduler, self.patience)


class Sessions(Nesting):
    """Session-scoped tools in sessions that nest, under writes of both scopes."""

    reader_names = ("own_entity", "own_lookup", "entity")
    writer_names = ("inner", "entity", "told")


class SessionsInvalidatedByHand(Nesting, Invalidating):
    """The same with invalidation by tag, and a list."""

    reader_names = ("own_listing", "own_entity")
    writer_names = ("root",)


class Tenants(Nesting, Invalidating):
    """Sessions of several tenants, who share nothing."""

    tenants = ("ada", "bob", None)
    reader_names = ("entity", "own_entity", "page", "graceful")
    writer_names = ("entity", "told", "inner")

    def __init__(self) -> None:
        super().__init__()
        for tenant in self.tenants[:2]:
            self.stage.enter(self.stage.everywhere, tenant)


class WritesOfEntries(Composing):
    """Writes that name the entries that they touch, and reads of these entries."""

    reader_names = ("page", "entity")
    writer_names = ("keyed", "keyed", "entity")


class FewVersions(Nesting, Composing):
    """So few versions are kept that what is older counts as written."""

    reader_names = ("entity", "own_entity", "page", "lookup", "own_page")
    writer_names = ("entity", "told", "inner", "both")

    def __init__(self) -> None:
        super().__init__()
        self.exits.enter_context(library.few_versions(2))
        self.stage.ledger.forgets = True


class Layers(Configuring, Invalidating):
    """Layers without tiers: what is off, or has no room, and what bypasses the cache."""

    reader_names = ("entity", "lookup", "own_entity")
    writer_names = ("entity", "told")


class LayersOverATier(Configuring):
    """Layers that take a tier away for a while, while writes go on; each layer empties the local store."""

    reader_names = ("entity", "lookup")
    writer_names = ("entity", "root")

    def __init__(self) -> None:
        super().__init__()
        other = MemoryTier(MemoryServer())
        self.layers = ({"remote": None}, {"remote": None}, {"remote": other}, {"backup": other}, {"enabled": False})
        configure(remote=MemoryTier(MemoryServer()))
        self.stage.ledger.is_tiered = True

    def moves(self) -> Iterator[str]:
        yield from super().moves()
        if not self.stage.layers:
            yield from ["enter_a_layer"] * 2


MACHINES = (
    StaticAndEntityTags,
    TagsFromTheResult,
    SeveralTags,
    ExpiryAndEviction,
    ExpiredAnswers,
    ExpiredAnswersByHand,
    GivenResults,
    OneCallManyCallers,
    Sessions,
    SessionsInvalidatedByHand,
    ReadsWithinReads,
    ReadsWithinReadsWithinReads,
    ExpiryWithinReads,
    SessionsWithinReads,
    ManyTags,
    Tenants,
    WritesOfEntries,
    FewVersions,
    Layers,
    LayersOverATier,
)
BY_NAME = (TagsFromTheResult, SeveralTags, ExpiredAnswers, OneCallManyCallers, Sessions, ReadsWithinReads, Layers)
"""The machines that run over a toolbox each time: one for each option that a rule passes on. `-m slow` runs all."""


@pytest.mark.parametrize(
    ("how", "warm"),
    [("returned", False), ("lost", True), ("reads fail", False), *slow_rows(("returned", True), ("lost", False))],
)
def test_a_whole_write_at_each_gate_of_a_read(how: str, warm: bool) -> None:
    """Reads that make reads are stopped at each gate of these; after the write the same call is made again."""
    readers, writers = toolbox.readers(DECORATORS), toolbox.writers(DECORATORS)
    every = [readers[name] for name in ("lookup", *toolbox.OUTER)]
    for reader, writer in itertools.product(every, ("entity", "told", "root", "keyed", "inner")):
        for gates in itertools.count(1):
            machine = Coherence()
            try:
                if not _write_at(machine.stage, reader, writers[writer], gates, how, warm=warm):
                    break
            except AssertionError as error:
                pytest.fail(f"{writer} at gate {gates} of {reader}: {error}")
            finally:
                machine.exits.close()


def _write_at(stage: Stage, reader: Reader, writer: Writer, gates: int, how: str, *, warm: bool) -> bool:
    """Write when the read has come to so many gates, or to its end. Returns whether it had not ended."""
    key, place = reader.keys[0], stage.enter(stage.everywhere)
    if warm:
        made = toolbox.readers(DECORATORS)
        for name in ("entity", "lookup", "brief", "own_entity", "own_lookup", "page", "card"):
            stage.read(made[name], made[name].keys[0], place, at_once=True)
    stage.scheduler.drain()
    stage.read(reader, key, place)
    for gate in range(gates):
        stage.scheduler.drain()
        if stage.loads and gate < gates - 1:
            load = stage.loads[-1]
            stage.release(load, Broken(load.number) if how == "reads fail" and len(stage.loads) > 1 else None)
    is_over = not stage.loads
    write = stage.write(writer, key if key in toolbox.IDS else "1", place)
    stage.scheduler.drain()
    stage.release(write, TimeoutError() if how == "lost" else None, to_its_end=True)
    stage.scheduler.drain()
    for moment in range(3):
        stage.read(reader, key, place, at_once=moment > 0)
        stage.scheduler.drain()
        for load in list(stage.loads):
            stage.release(load, to_its_end=True)
        stage.scheduler.drain()
        if moment == 0 and stage.doubtful():
            stage.ledger.land(write)
        else:
            stage.advance(SECONDS[-1])
    stage.finish([reader])
    return not is_over


FEW, MANY = 30, 300
for machine in MACHINES:
    globals().update(searches(machine, FEW, MANY))
    if machine not in (GivenResults, WritesOfEntries):  # tools that are known by name have no `set` and no keys
        globals().update(searches(machine, FEW // 2 * (machine in BY_NAME), MANY, "by_name", body=TOOLBOX))
del machine
