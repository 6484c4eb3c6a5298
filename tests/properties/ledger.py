"""The model: a plain dict of versions, and what P1 and P3 say about every read that ends.

Every event gets the next number of one sequence. A *load* is one execution of a read tool, a *read* one call of
it, a *write* whatever invalidates. The checks compare nothing but these numbers and the clock:

- `check_truth` looks at values: no version older than what landed under a write that was over before the read started.
- `check_overlap` looks at loads: none that overlaps a write, or anything that holds stores off, is kept.
- `check_expiry`, `check_kept` and `check_alone`: nothing outlives its ttl, nothing is dropped without a cause, and
  identical reads of one scope share one load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis.vendor.pretty import RepresentationPrinter

Path = tuple[str, ...]
Key = str
NEVER = float("inf")


def related(a: Path, b: Path) -> bool:
    """Whether a write to one of them concerns an entry that is tagged with the other."""
    shared = min(len(a), len(b))
    return a[:shared] == b[:shared]


def meet(some: Iterable[Path], others: Iterable[Path]) -> bool:
    """Whether any of these paths concerns any of those."""
    others = tuple(others)
    return any(related(a, b) for a in some for b in others)


def arguments(key: Key) -> tuple[str, ...]:
    """Spell a key as the arguments of a call."""
    return (key,) if key else ()


class Terse:
    """Shows itself in one line, also in Hypothesis's reports, which would spell a dataclass out."""

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self))


class Loaded(NamedTuple):
    """What a read tool answers: which load it came from, and the id that a tag may need."""

    load: int
    owner: str | None
    other: str | None = None


class Rejected(Exception):
    """The store refused a write: definitely nothing more will happen."""


class Broken(Exception):
    """A load failed."""

    def __init__(self, load: int) -> None:
        super().__init__(load)
        self.load = load


@dataclass(frozen=True, repr=False)
class Reader(Terse):
    """A read tool and what the model knows of it."""

    name: str
    call: Callable[..., object]
    keys: tuple[Key, ...]
    tags: Callable[[Key, Loaded | None], tuple[Path, ...]]  # Without a result: what is known before the load.
    scope: str = "global"
    ttl: float = NEVER
    roomy: bool = True  # Whether there is room for every key, so that nothing may be evicted.

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, repr=False)
class Read(Terse):
    """One call of a read tool."""

    reader: Reader
    key: Key
    place: object  # The session whose entries answer; one constant for the global scope.
    fresh: bool = False
    open: bool = False  # Whether its loads stand at no gate.
    started: int = 0
    clock: float = 0.0
    loads: list[Load] = field(default_factory=list)
    cancelled: bool = False
    task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.reader}({self.key}) in {self.place}, since {self.started}"

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def identity(self) -> tuple[object, ...]:
        """Which call of which tool it is, and whose entries answer it."""
        return (self.reader.name, self.key, self.place)


@dataclass(eq=False, repr=False)
class Load(Terse):
    """One execution of a read tool."""

    number: int
    read: Read
    started: int
    clock: float
    first: bool  # Whether its read found no load to join.
    seen: dict[Path, int] = field(default_factory=dict)
    value: Loaded | None = None
    ended: int = 0
    clock_ended: float = NEVER
    outcome: str = "running"
    gate: asyncio.Future[None] | None = None
    open: bool = False  # Whether it need not stand at any more gates.

    def __repr__(self) -> str:
        return f"load {self.number} ({self.started}-{self.ended or ''}) for {self.read}"

    @property
    def tags(self) -> tuple[Path, ...]:
        return self.read.reader.tags(self.read.key, self.value)


@dataclass(eq=False, repr=False)
class Write(Terse):
    """One call of a write tool, or anything else that invalidates."""

    names: tuple[Path, ...] = ()  # Known when it begins.
    late: tuple[Path, ...] = ()  # Roots of the tags that only the result tells ...
    told: tuple[Path, ...] = ()  # ... and those tags, when it has ended.
    chain: tuple[object, ...] | None = None  # The sessions it is limited to.
    entry: tuple[object, ...] | None = None  # The one entry, or the one tool, that it is limited to.
    began: int = 0
    ended: int = 0
    released: float = -1.0  # Clock: until when stores are held off after it has ended.
    outcome: str = "waiting"
    lands: tuple[Path, ...] = ()  # What it changes in the store.
    landed: bool = False
    gate: asyncio.Future[None] | None = None
    open: bool = False  # Whether it need not stand at any more gates.
    task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"write of {self.entry or self.names or self.late} ({self.began}-{self.ended or ''}, {self.outcome})"

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def reaches(self, read: Read) -> bool:
        """Whether it may concern what answers this read at all."""
        if self.entry is not None:
            return read.identity[: len(self.entry)] == self.entry
        return self.chain is None or read.place in self.chain

    def concerns(self, load: Load) -> bool:
        """Whether it names what this load depends on."""
        return self.entry is not None or meet((*self.names, *self.told), load.tags)

    def may_concern(self, tags: Iterable[Path]) -> bool:
        """The same, when its result is not known yet or was not."""
        return self.entry is not None or meet((*self.names, *self.late), tags)


@dataclass(frozen=True)
class Effect:
    """A version that landed in the store."""

    path: Path
    version: int
    write: Write


class Ledger:
    """Everything that happened, and the verdict on every read."""

    def __init__(self) -> None:
        self.now = 0
        self.clock = 0.0
        self.truth: dict[Path, int] = {}
        self.effects: list[Effect] = []
        self.loads: list[Load] = []
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.broken: list[str] = []
        self.configured = 0  # When the configuration changed last.
        self.layers = 0  # How many layers are over its base.
        self.is_tiered = False  # Whether tiers are in use. A write waits for them, so only what it changed is compared.

    def tick(self) -> int:
        self.now += 1
        return self.now

    # -- what happens ------------------------------------------------------------------------------------------

    def start_read(self, read: Read) -> None:
        read.started, read.clock = self.tick(), self.clock
        self.reads.append(read)

    def start_load(self, read: Read) -> Load:
        rivals = [load for load in self.loads if load.read.identity == read.identity]
        first = not any(other.started < read.started and not 0 < other.ended < read.started for other in rivals)
        load = Load(len(self.loads), read, self.tick(), self.clock, first, open=read.open)
        self.check_alone(load, [other for other in rivals if not other.ended])
        self.loads.append(load)
        read.loads.append(load)
        return load

    def end_load(self, load: Load, outcome: str) -> None:
        load.ended, load.clock_ended, load.outcome = self.tick(), self.clock, outcome

    def change_configuration(self, layers: int) -> None:
        """Note a change after which nothing must have been kept: a tier is another one, or something was not stored."""
        self.configured, self.layers = self.tick(), layers

    def begin_write(self, write: Write) -> None:
        write.began = self.tick()
        self.writes.append(write)

    def land(self, write: Write) -> None:
        write.landed = True
        for path in write.lands:
            self.truth[path] = version = self.tick()
            self.effects.append(Effect(path, version, write))

    def end_write(self, write: Write, outcome: str, *, told: tuple[Path, ...] = (), hold: float = 0.0) -> None:
        write.ended, write.outcome, write.told = self.tick(), outcome, told
        if hold:
            write.released = self.clock + hold

    def invalidated(self, write: Write) -> None:
        """Note a write that begins, takes effect and ends at once."""
        self.begin_write(write)
        self.end_write(write, "returned")

    # -- what must hold ----------------------------------------------------------------------------------------

    def got(self, read: Read, value: Loaded) -> None:
        """Judge what a read returned."""
        load = self.loads[value.load]
        problem = (
            self.check_same(read, load, value)
            or self.check_truth(read, load)
            or ("" if self.is_tiered else self.check_overlap(read, load))
            or self.check_expiry(read, load)
            or self.check_kept(read)
        )
        if problem:
            self.broken.append(f"{read} got {load}: {problem}")

    def failed(self, read: Read, error: Broken) -> None:
        """Judge what a read raised: errors are shared, and never kept."""
        load = self.loads[error.load]
        if load.read.identity != read.identity:
            self.broken.append(f"{read} raised the error of another call, {load.read.identity}")
        if load.ended < read.started:
            self.broken.append(f"{read} raised an error that was over before it started: errors are never cached")

    def check_same(self, read: Read, load: Load, value: Loaded) -> str:
        if load.read.identity != read.identity:
            return f"it belongs to {load.read.identity}"
        if load.value != value:
            return f"it was {load.value} and became {value}"
        if read.fresh and load.started < read.started:
            return "a refresh must run the tool"
        return ""

    def check_truth(self, read: Read, load: Load) -> str:
        for effect in self.effects:
            write = effect.write
            if not (write.reaches(read) and write.concerns(load) and meet((effect.path,), load.tags)):
                continue
            over = 0 < write.ended < read.started and effect.version < write.ended
            lapsed = 0 < write.ended < read.started and 0 <= write.released < read.clock
            seen = load.seen.get(effect.path, 0)
            if seen < effect.version and (over or (lapsed and effect.version < read.started)):
                return f"{effect.path} was {seen} there, and {effect.version} before the read started"
        return ""

    def check_overlap(self, read: Read, load: Load) -> str:
        for write in self.writes:
            if not write.reaches(read):
                continue
            over = 0 < write.ended < read.started
            if over and write.concerns(load):
                if load.started < write.ended:
                    return f"it overlaps a {write} that ended before the read started"
                if read.clock < write.released and load.ended < read.started:
                    return f"it was kept while a {write} is in doubt or settles"
                if 0 <= write.released < read.clock and load.clock < write.released:
                    return f"it began while a {write} was in doubt or settled"
            under_way = write.began < read.started and not over
            if under_way and write.may_concern(load.tags) and write.began < load.ended < read.started:
                return f"it was kept while a {write} is under way"
            if under_way and write.entry is None and meet(write.names, load.tags) and load.ended < read.started:
                return f"it outlived the beginning of a {write}"
        return ""

    def check_expiry(self, read: Read, load: Load) -> str:
        if load.ended < read.started and load.clock_ended + read.reader.ttl <= read.clock:
            return f"it expired at {load.clock_ended + read.reader.ttl}, it is {read.clock}"
        return ""

    def check_kept(self, read: Read) -> str:
        """A read that loads must have a cause: nothing kept, or something that took it away."""
        if not read.loads or read.fresh or not read.reader.roomy:
            return ""
        for load in self.loads:
            if load.read.identity == read.identity and self._is_kept(load, read):
                return f"{load} was there, and nothing had touched it"
        return ""

    def check_alone(self, load: Load, running: list[Load]) -> None:
        """Two loads of one call at a time need a cause: something that parted them."""
        for other in running:
            if not self._parted(other, load):
                self.broken.append(f"{load} runs beside {other}")

    # -- how it is known ---------------------------------------------------------------------------------------

    def _is_kept(self, load: Load, read: Read) -> bool:
        if load.outcome != "returned" or load.ended > read.started or not load.first or load.read.fresh:
            return False
        if self.is_tiered or self.layers or load.read.started < self.configured:
            return False
        if load.clock + read.reader.ttl <= read.clock:
            return False
        since = load.read.started
        return not any(self._touches(write, load, since) for write in self.writes) and not any(
            other.fresh and other.identity == read.identity and other.started > since for other in self.reads
        )

    def _touches(self, write: Write, load: Load, since: int) -> bool:
        if not (write.reaches(load.read) and write.may_concern(load.tags)):
            return False
        return not 0 < write.ended < since or write.released >= load.clock

    def _parted(self, one: Load, other: Load) -> bool:
        """Whether, since the older of the two calls, a write, the end of one or a refresh may have parted them."""
        since, clock = min(one.read.started, other.read.started), min(one.read.clock, other.read.clock)
        if self.is_tiered or since < self.configured:
            return True
        known = one.read.reader.tags(one.read.key, None)
        refreshed = any(
            read.started > since for read in self.reads if read.fresh and read.identity == one.read.identity
        )
        return refreshed or any(
            write.began > since or write.ended > since or clock <= write.released <= self.clock
            for write in self.writes
            if write.reaches(one.read) and write.may_concern(known)
        )
