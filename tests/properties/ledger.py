"""The model: a plain dict of versions, and what P1 and P3 say about every read that ends.

Every event gets the next number of one sequence. A *load* is one execution of a read tool, a *read* one call of
it, a *write* whatever invalidates. The checks compare nothing but these numbers and the clock:

- `check_truth` looks at values: no version older than what landed under a write that was over before the read started.
- `check_overlap` looks at loads: none that overlaps a write, or anything that holds stores off, is kept.
- `check_expiry`, `check_kept` and `check_alone`: nothing outlives its ttl and what may follow it, nothing is dropped
  without a cause, and identical reads of one scope share one load.
- `check_dropped`: what has expired is served, in its grace or for an error, only if no write has ever dropped it.

A load may make reads itself. Each of them is a read like any other, and judged as one; the load keeps them as its
*parts*. `check_parts`: what is made of an answer is never served where the answer itself could not be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
class Reader:
    """A read tool and what the model knows of it."""

    name: str
    call: Callable[..., object]
    keys: tuple[Key, ...]
    tags: Callable[[Key, Loaded | None], tuple[Path, ...]]  # Without a result: what is known before the load.
    scope: str = "global"
    ttl: float = NEVER
    life: Callable[[Loaded], float] | None = None  # Instead of `ttl`: what the tool's own function says of a result.
    grace: float = 0.0
    stale: float = 0.0  # `stale_if_error=`.
    roomy: bool = True  # Whether there is room for every key, so that nothing may be evicted.

    def __repr__(self) -> str:
        return self.name

    def lives(self, value: Loaded) -> float:
        """For how long a result may be kept, counted from the start of its load."""
        return self.ttl if self.life is None else self.life(value)


@dataclass(eq=False, repr=False)
class Read:
    """One call of a read tool."""

    reader: Reader
    key: Key
    place: object  # The session whose entries answer; one constant for the global scope.
    fresh: bool = False
    open: bool = False  # Whether its loads stand at no gate.
    started: int = 0
    ended: int = 0
    clock: float = 0.0
    loads: list[Load] = field(default_factory=list)
    cancelled: bool = False
    task: asyncio.Task[Any] | None = None
    here: Any = None  # Where it is made.
    within: Load | None = None  # The load that makes it.

    def __repr__(self) -> str:
        return f"{self.reader}({self.key}) in {self.place}, since {self.started}"

    @property
    def is_of_session(self) -> bool:
        return self.reader.scope != "global" and bool(self.here.chain)

    @property
    def is_homeless(self) -> bool:
        """Whether it has no entry: nothing keeps an answer that is a session's, outside of sessions."""
        return self.reader.scope != "global" and not self.here.chain

    @property
    def given_up(self) -> bool:
        """Whether it has been cancelled, or the read has for which it is made."""
        return self.cancelled or (self.within is not None and self.within.read.given_up)

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def identity(self) -> tuple[object, ...]:
        """Which call of which tool it is, and whose entries answer it."""
        return (self.reader.name, self.key, self.place)


@dataclass(eq=False, repr=False)
class Load:
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
    parts: list[Part] = field(default_factory=list)
    write: Write | None = None  # The write that has given this result to the read, from its beginning to its end.

    def __repr__(self) -> str:
        return f"load {self.number} ({self.started}-{self.ended or ''}) for {self.read}"

    @property
    def tags(self) -> tuple[Path, ...]:
        return self.read.reader.tags(self.read.key, self.value)


@dataclass(eq=False)
class Part:
    """A read that a load makes."""

    read: Read
    load: Load | None = None  # Where its answer, or its error, came from: known once it has ended.
    failed: bool = False  # Whether it had no answer that could be kept.

    def belongs_to_another(self, read: Read) -> bool:
        """Whether it is of a session, and this read is not of that session."""
        return self.read.is_of_session and self.read.place != read.place


@dataclass(eq=False, repr=False)
class Write:
    """One call of a write tool, or anything else that invalidates."""

    names: tuple[Path, ...] = ()  # Known when it begins.
    late: tuple[Path, ...] = ()  # Roots of the tags that only the result tells ...
    told: tuple[Path, ...] = ()  # ... and those tags, when it has ended.
    chain: tuple[object, ...] | None = None  # The sessions it is limited to.
    entry: tuple[object, ...] | None = None  # The one entry, or the one tool, that it is limited to.
    began: int = 0
    ended: int = 0
    released: float = -1.0  # Clock: until when stores are held off after it has ended.
    big: bool = False  # Whether it names so much that stores may be held off until some calls later.
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
            return read.identity[: len(self.entry)] == self.entry and not read.is_homeless
        return self.chain is None or read.place in self.chain

    def concerns(self, load: Load) -> bool:
        """Whether it names what this load depends on."""
        return self.entry is not None or meet((*self.names, *self.told), load.tags)

    def held(self, since: float, now: float = NEVER) -> bool:
        """Whether it has held stores off after its end, at some time in between."""
        return 0 <= self.released <= now and (self.big or since <= self.released)

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
        self.given: list[Load] = []  # Numbered from -1 downwards.
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.broken: list[str] = []
        self.configured = 0  # When the configuration changed last.
        self.layers = 0  # How many layers are over its base.
        self.forgets = False  # Whether entries may go, and loads be parted, without a cause: few versions are known.
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
        load = Load(len(self.loads), read, self.tick(), self.clock, first, seen=dict(self.truth), open=read.open)
        self.check_alone(load, [other for other in rivals if not other.ended])
        self.loads.append(load)
        read.loads.append(load)
        return load

    def end_load(self, load: Load, outcome: str) -> None:
        load.ended, load.clock_ended, load.outcome = self.tick(), self.clock, outcome

    def start_part(self, load: Load, read: Read) -> Part:
        self.start_read(read)
        part = Part(read)
        load.parts.append(part)
        return part

    def end_part(self, load: Load, part: Part, source: int | None) -> None:
        """Note which load an answer or an error came from; None if the read was given up."""
        if load.ended:
            return  # It has been left behind.
        read = part.read
        if source is None:
            part.load = Load(-1, read, read.started, read.clock, first=False, seen=dict(self.truth), ended=self.now)
            part.load.clock_ended = self.clock
        else:
            part.load = self.loads[source] if source >= 0 else self.given[-1 - source]
        part.failed = part.load.outcome != "returned" or read.is_homeless

    def give(self, read: Read, write: Write) -> Loaded:
        """Note a result that a write gives to a read: it is good if no other write overlaps this one."""
        number = -1 - len(self.given)
        load = Load(number, read, write.began, self.clock, first=False, seen=dict(self.truth), write=write)
        load.clock_ended, load.outcome, load.value = self.clock, "given", Loaded(number, None)
        self.given.append(load)
        return load.value

    def change_configuration(self, layers: int) -> None:
        """Note a change after which nothing must have been kept: a tier is another one, or something was not stored."""
        self.configured, self.layers = self.tick(), layers

    def begin_write(self, write: Write) -> None:
        if write.big or any(other.big for other in self.writes):
            # A hold that ends with a large one, or after it, may wait behind it.
            for each in (write, *self.writes):
                each.big = True
        write.began = self.tick()
        self.writes.append(write)

    def land(self, write: Write) -> None:
        write.landed = True
        for path in write.lands:
            self.truth[path] = version = self.tick()
            self.effects.append(Effect(path, version, write))

    def end_write(self, write: Write, outcome: str, *, told: tuple[Path, ...] = (), hold: float = 0.0) -> None:
        write.ended, write.outcome, write.told = self.tick(), outcome, told
        for load in self.given:
            if load.write is write:
                load.ended = write.ended
        if hold:
            write.released = self.clock + hold

    def invalidated(self, write: Write) -> None:
        """Note a write that begins, takes effect and ends at once."""
        self.begin_write(write)
        self.end_write(write, "returned")

    # -- what must hold ----------------------------------------------------------------------------------------

    def got(self, read: Read, value: Loaded) -> None:
        """Judge what a read returned."""
        load = self.loads[value.load] if value.load >= 0 else self.given[-1 - value.load]
        problem = (
            self.check_same(read, load, value)
            or self.check_given(load)
            or self.check_truth(read, load)
            or ("" if self.is_tiered else self.check_overlap(read, load))
            or self.check_expiry(read, load)
            or self.check_dropped(read, load)
            or self.check_parts(read, load)
            or self.check_kept(read, load)
        )
        if problem:
            self.broken.append(f"{read} got {load}: {problem}")
        read.ended = self.now

    def failed(self, read: Read, error: Broken) -> None:
        """Judge what a read raised: errors are shared, and never kept."""
        load = self.loads[error.load]
        if load.read.identity != read.identity:
            self.broken.append(f"{read} raised the error of another call, {load.read.identity}")
        if load.ended < read.started:
            self.broken.append(f"{read} raised an error that was over before it started: errors are never cached")
        reader = read.reader
        if reader.stale and reader.life is None and reader.roomy and not read.fresh:
            for kept in self.loads:
                if kept.read.identity == read.identity and self._is_kept(kept, read, reader.stale, self.clock):
                    self.broken.append(f"{read} raised an error although {kept} could replace it")

    def check_same(self, read: Read, load: Load, value: Loaded) -> str:
        if load.read.identity != read.identity:
            return f"it belongs to {load.read.identity}"
        if load.value != value:
            return f"it was {load.value} and became {value}"
        if read.fresh and load.started < read.started:
            return "a refresh must run the tool"
        for other in self.reads:
            is_over = other.fresh and 0 < other.ended < read.started and other.identity == read.identity
            if is_over and not self.is_tiered and load.write is None and load.started < other.started:
                return f"it is older than what a refresh has got, {other}"
        return ""

    def check_given(self, load: Load) -> str:
        if load.write is not None and load.write.outcome != "returned":
            return f"the {load.write} that gave it has not succeeded"
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
            if write is load.write or not write.reaches(read):
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
            # What only its result names gets a version at its end, and is not held before that.
            is_named = write.entry is not None or meet(write.names, load.tags)
            if under_way and is_named and write.began < load.ended < read.started:
                return f"it was kept while a {write} is under way"
            if under_way and write.entry is None and meet(write.names, load.tags) and load.ended < read.started:
                return f"it outlived the beginning of a {write}"
        return ""

    def check_expiry(self, read: Read, load: Load) -> str:
        if not self._has_expired(read, load):
            return ""
        reader, expired = read.reader, load.clock + self._life(load)
        if read.clock < expired + reader.grace and not read.fresh:
            return ""
        failures = [
            other.clock_ended
            for other in self.loads
            if other.read.identity == read.identity and other.outcome == "raised" and other.ended > read.started
        ]
        if failures and min(failures) < expired + reader.stale and not read.fresh:
            return ""
        return f"it expired at {expired}, it is {read.clock}"

    def check_dropped(self, read: Read, load: Load) -> str:
        """No write that concerns it may have begun, up to the moment of an answer that has expired."""
        if not self._has_expired(read, load):
            return ""
        for write in self.writes:
            if not (write.reaches(read) and write.began > load.ended):
                continue
            if write.entry is not None or meet(write.names, load.tags) or (write.ended and write.concerns(load)):
                return f"it has expired, and a {write} has dropped it"
        return ""

    def check_parts(self, read: Read, load: Load) -> str:
        """What a load has read must be as good as if this read had asked for it, and be its own to keep."""
        was_kept = load.ended < read.started
        if was_kept and self._is_doubtful(load):
            return "it was kept without a ttl, and something that it has read could not be"
        for part in self.ended_parts(load):
            assert part.load is not None
            as_if = replace(part.read, started=read.started, clock=read.clock)
            seen = replace(part.load, ended=load.ended)
            problem = self.check_truth(as_if, seen) or self.check_overlap(as_if, seen) or self.check_expiry(as_if, seen)
            if problem:
                return f"of its part {part.load}: {problem}"
            came_later = part.read.started < read.started and part.read.here is not read.here
            if (was_kept or came_later) and part.belongs_to_another(read):
                return f"its part {part.load} belongs to {part.read.place}"
        return ""

    def check_kept(self, read: Read, got: Load) -> str:
        """A read that loads must have a cause: nothing kept, or something that took it away."""
        if not read.loads or read.fresh or not read.reader.roomy or read.here.closed:
            return ""
        # In its grace it is loaded behind the answer. A result that was not stored has ended the grace of another.
        grace = read.reader.grace if got.started > read.started and read.reader.life is None else 0.0
        for load in self.loads:
            if load.read.identity == read.identity and self._is_kept(load, read, grace):
                return f"{load} was there, and nothing had touched it"
        return ""

    def check_alone(self, load: Load, running: list[Load]) -> None:
        """Two loads of one call at a time need a cause: something that parted them."""
        for other in running:
            if not (self._parted(other, load) or self._parts_parted(other, load)):
                self.broken.append(f"{load} runs beside {other}")

    # -- how it is known ---------------------------------------------------------------------------------------

    def ended_parts(self, load: Load) -> Iterator[Part]:
        """What an answer is made of: the parts of a load, and theirs."""
        for part in load.parts:
            if part.load is not None:
                yield part
                yield from self.ended_parts(part.load)

    def reads_within(self, read: Read, since: int, clock: float) -> Iterator[tuple[Read, int, float]]:
        """Every read made by a load that this one leads or may wait for, another's, also if it hands over.

        With the moment from which on a write counts that concerns it: when the oldest load around it began.
        """
        around = [load for load in self.loads if load.read.identity == read.identity]
        around = [load for load in around if not 0 < load.ended < read.started]
        since = min([since, *[load.read.started for load in around]])
        clock = min([clock, *[load.read.clock for load in around]])
        for load in around:
            for part in load.parts:
                yield part.read, since, clock
                yield from self.reads_within(part.read, since, clock)
                if part.load is not None:
                    yield from ((inner.read, since, clock) for inner in self.ended_parts(part.load))

    def _is_doubtful(self, load: Load) -> bool:
        """Whether only a ttl of its own allows to keep it."""
        return load.read.reader.ttl == NEVER and any(
            part.load is not None and (part.failed or self._is_doubtful(part.load)) for part in load.parts
        )

    def _life(self, load: Load) -> float:
        return NEVER if load.value is None else load.read.reader.lives(load.value)

    def _has_expired(self, read: Read, load: Load) -> bool:
        """Whether a read that got this found it in the store, at an age at which it only may be served if..."""
        return load.ended < read.started and load.clock + self._life(load) <= read.clock

    def _is_kept(self, load: Load, read: Read, beyond: float = 0.0, at: float | None = None) -> bool:
        """Whether a load must still be in the store: up to so many seconds beyond its expiry, when the read started."""
        if load.outcome != "returned" or load.ended > read.started or not load.first or load.read.fresh:
            return False
        if self.is_tiered or self.forgets or self.layers or load.read.started < self.configured:
            return False
        if load.clock + self._life(load) + beyond <= (read.clock if at is None else at):
            return False
        since = load.read.started
        return (
            not any(self._touches(write, load, since) for write in self.writes)
            and not any(
                other.fresh and other.identity == read.identity and other.started > since for other in self.reads
            )
            and all(self._is_part_kept(part, load, read) for part in load.parts)
        )

    def _is_part_kept(self, part: Part, load: Load, read: Read) -> bool:
        """Whether nothing is known of a part that may keep the load from being stored, or drop it."""
        source = part.load
        if source is None or part.failed or not source.first or not part.read.reader.roomy:
            return False
        if part.belongs_to_another(read):
            return False
        if source.clock + part.read.reader.ttl <= read.clock:
            return False
        # A write before a part was read counts as well, if it came after the load that reads it began.
        since, tags = min(source.read.started, load.read.started), source.tags
        for write in self.writes:
            reaches = write.reaches(part.read) or write.reaches(load.read)
            clock = min(source.clock, load.clock)
            if reaches and write.may_concern(tags) and (not 0 < write.ended < since or write.held(clock)):
                return False
        return not any(
            other.fresh and other.identity == part.read.identity and other.started > since for other in self.reads
        ) and all(self._is_part_kept(inner, load, read) for inner in source.parts)

    def _touches(self, write: Write, load: Load, since: int) -> bool:
        if not (write.reaches(load.read) and write.may_concern(load.tags)):
            return False
        return not 0 < write.ended < since or write.held(load.clock)

    def _parted(self, one: Load, other: Load) -> bool:
        """Whether, since the older of the two calls, a write, the end of one or a refresh may have parted them."""
        since, clock = min(one.read.started, other.read.started), min(one.read.clock, other.read.clock)
        if self.is_tiered or self.forgets or since < self.configured:
            return True
        known = one.read.reader.tags(one.read.key, None)
        refreshed = any(
            read.started > since for read in self.reads if read.fresh and read.identity == one.read.identity
        )
        return refreshed or any(
            write.began > since or write.ended > since or write.held(clock, self.clock)
            for write in self.writes
            if write.reaches(one.read) and write.may_concern(known)
        )

    def _parts_parted(self, one: Load, other: Load) -> bool:
        """The same for what they have read, and read: also before one took over, as the flight is older then."""
        since, clock = min(one.read.started, other.read.started), min(one.read.clock, other.read.clock)
        within = (*self.reads_within(one.read, since, clock), *self.reads_within(other.read, since, clock))
        for inner, since, clock in within:
            if Part(inner).belongs_to_another(one.read):
                return True
            known = inner.reader.tags(inner.key, None)
            if inner.is_homeless:
                known = tuple(path[:1] for path in known)  # Nothing is stored, so ids need not be told apart.
            for write in self.writes:
                # What is read during a write is not good enough to be joined after it, nor to be kept.
                counts = not 0 < write.ended < since or write.held(clock)
                if counts and (write.reaches(inner) or write.reaches(one.read)) and write.may_concern(known):
                    return True
            if any(read.fresh and read.identity == inner.identity and read.started > since for read in self.reads):
                return True
        return False
