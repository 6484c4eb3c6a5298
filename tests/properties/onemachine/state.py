"""What a configuration of processes on one machine is, and everything that one state of it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from tests.properties.onemachine.rules import Rules

S, D, T, OTHER = 0, 1, 2, 3
"""Moved by writes to the root; by every write at or below it; by writes to one entity, and to another one."""
CELLS = (S, D, T, OTHER)
DEPENDS_ON = {"entity": (S, T), "root": (D,), "result": (S, T)}
LOOKS_AT = {"entity": (S, T), "root": (D,), "result": (S, D)}
"""Cells fetched before the load: the tag from a result is not known yet."""
MOVES = {"entity": (T, D), "root": (S, D), "result": (T, D), "other": (OTHER, D)}
ROOT = (S, D)

NEW_VERSION = 1_000_000
"""Of a cell: one that was never seen. `renamed` gives it a small name."""
JUMP = 1_000_000
"""What a suspension adds to the sequence."""
FAR = 50
"""More steps than are ever made: a sequence that has jumped so far is not reached from before the jump."""
NO_STAMP = -9
E_ = TypeVar("E_")


def replaced(row: Sequence[E_], index: int, item: E_) -> tuple[E_, ...]:
    """A copy of a tuple with another item."""
    return (*row[:index], item, *row[index + 1 :])


class Faults(NamedTuple):
    """How often each may happen."""

    crash: int = 0  # a process is killed, in whatever step
    keeper: int = 0  # a process is killed that recovers something
    late: int = 0  # the effect of a write lands after its process has died, or after it failed in doubt
    doubt: int = 0  # a write fails without telling whether its side effect happens
    failure: int = 0  # a write with its tag from the result fails after its side effect
    unrecorded: int = 0  # a transaction fails in whatever step, and the write goes on
    locked: int = 0  # ... or before its first step
    doubled: int = 0  # a transaction has succeeded and is taken for failed
    lapse: int = 0  # a write is not renewed for a lease
    prune: int = 0  # an idle cell is removed


Party = tuple[str, int]
"""A read or a write: its key and its process."""


class Configuration(NamedTuple):
    """Who takes part, and what may go wrong.

    Attributes:
        slots: of the cells in the page.
        copies: processes with local copies at the start.
        kept: keys of these that are not read otherwise.
    """

    reads: tuple[Party, ...]
    writes: tuple[Party, ...]
    faults: Faults = Faults()
    slots: tuple[int, int, int, int] = (0, 1, 2, 3)
    is_warm: bool = True
    is_strong: bool = True
    copies: tuple[int, ...] = (0,)
    kept: tuple[str, ...] = ()
    are_pruned: bool = False  # no cell is there at the start


Word = tuple[int, bool]
"""The generation of a slot, and whether it is busy."""
Words = tuple[tuple[int, Word], ...]
"""(slot, what it held) of each."""
Versions = tuple[tuple[int, int], ...]
"""(cell, version) of each."""


class Page(NamedTuple):
    sequence: int
    slots: tuple[Word, ...]
    words: tuple[int, ...]  # by process: its invalidations that are not in the database
    hint: int = 0  # or the mark that the last suspension has raised
    cleared: int = 0  # the mark that was raised when nothing was suspended

    def is_suspended(self, rules: Rules) -> bool:
        """As a process sees it that reads all of that at once."""
        if rules.suspends == "words":
            return any(self.words)
        return self.hint != self.cleared


class Row(NamedTuple):
    owner: int | None
    held: tuple[int, ...]
    armed: tuple[int, ...] = ()
    is_over: bool = False  # its deadline has passed
    is_expired: bool = False  # ... and that has been handled


class Value(NamedTuple):
    version: int
    header: Versions


class Database(NamedTuple):
    cells: tuple[int | None, ...]  # versions
    rows: tuple[Row | None, ...]  # by write
    values: tuple[Value | None, ...]  # by key
    floor: int = 0

    def version(self, cell: int) -> int:
        """Also of a cell that is missing."""
        found = self.cells[cell]
        return self.floor if found is None else found

    def is_held(self, cells: Iterable[int]) -> bool:
        return any(row and not row.is_expired and cell in row.held for cell in cells for row in self.rows)

    def is_armed(self, cells: Iterable[int]) -> bool:
        return any(row and not row.is_expired and cell in row.armed for cell in cells for row in self.rows)


class Transaction(NamedTuple):
    """One that runs: the page changes step by step, the database at its end."""

    kind: str
    subject: int  # a write, a slot, a process or a cell
    base: int  # the sequence at its start
    slots: tuple[tuple[int, bool], ...]  # to be changed: whether each is busy from now on
    at: int = 0


class Copy(NamedTuple):
    version: int
    slots: Words
    stamp: int


class Test(NamedTuple):
    """A local hit whose stamp is old."""

    since: int  # what was promised when the read started
    sequence: int = NO_STAMP
    at: int = 0


class Read(NamedTuple):
    at: str = "idle"
    since: int = 0  # what was promised when it started
    slots: Words = ()
    cells: Versions = ()
    is_idle: bool = False  # the cells at the lookup
    is_held: bool = False
    value: Value | None = None  # found
    version: int = 0  # loaded
    looked: int = 0  # words of processes that it has read


class Write(NamedTuple):
    at: Literal["idle", "begun", "done", "returned", "doubted", "dead", "gone"] = "idle"
    version: int = 0
    does: str = ""  # the transaction that runs, or must be suspended or tried again
    suspends: int = 0  # steps of a suspension, from 1
    owes: str = ""  # the transaction that is not in the database
    is_counted: bool = False  # among the words
    clears_hint: bool = False  # it must, since it has lowered its word
    is_covered: bool = True  # it died so that nobody may miss it from then on


class State(NamedTuple):
    truth: int
    floor: int  # what a read that starts now must see
    page: Page
    db: Database
    lock: int | None  # the actor that has the write lock: the number of a write, or one more: recovery
    work: tuple[Transaction | None, ...]  # by actor
    local: tuple[tuple[Copy | None, ...], ...]  # by process and key
    tests: tuple[tuple[Test | None, ...], ...]
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    is_alive: tuple[bool, ...]
    faults: Faults
    broken: str | None = None


class World:
    """One configuration under one set of rules: what all steps need to know."""

    def __init__(self, configuration: Configuration, rules: Rules) -> None:
        self.configuration = configuration
        self.rules = rules
        read = {key for key, _ in configuration.reads}
        self.keys = tuple(key for key in DEPENDS_ON if key in read or key in configuration.kept)
        parties = (*configuration.reads, *configuration.writes)
        self.processes = 1 + max([*(process for _, process in parties), *configuration.copies])
        self.keeper = len(configuration.writes)
        self.suspends = any(
            (configuration.faults.unrecorded, configuration.faults.locked, configuration.faults.doubled)
        )
        self.watched = sorted({process for _, process in configuration.writes})

    def order_of_hit(self, slots: int) -> list[int | str]:
        """What the hit of a copy that depends on so many slots reads if its stamp is old."""
        rules = self.rules
        looks: list[int | str] = []
        if self.suspends:
            looks = [f"look {n}" for n in (self.watched if rules.suspends == "words" else [-1])]
        order: list[int | str] = [*looks, *range(slots)] if rules.words_before_slots else [*range(slots), *looks]
        return ["sequence", *order] if rules.sequence_before_slots else [*order, "sequence"]

    def slots_of(self, cells: Iterable[int]) -> tuple[int, ...]:
        """Each once."""
        return tuple(sorted({self.configuration.slots[cell] for cell in cells}))

    def start(self) -> State:
        """Version 0 everywhere, or nothing anywhere."""
        config = self.configuration
        page = Page(0, ((0, False),) * (1 + max(config.slots)), (0,) * self.processes)
        cells: tuple[int | None, ...] = (None if config.are_pruned else 0,) * len(CELLS)
        values: tuple[Value | None, ...] = (None,) * len(self.keys)
        nothing: tuple[Copy | None, ...] = (None,) * len(self.keys)
        local = [nothing] * self.processes
        if config.is_warm:
            values = tuple(Value(0, tuple((cell, 0) for cell in DEPENDS_ON[key])) for key in self.keys)
            for process in config.copies:
                local[process] = tuple(
                    Copy(0, tuple((slot, page.slots[slot]) for slot in self.slots_of(DEPENDS_ON[key])), 0)
                    for key in self.keys
                )
        return State(
            truth=0,
            floor=0,
            page=page,
            db=Database(cells, (None,) * len(config.writes), values),
            lock=None,
            work=(None,) * (self.keeper + 1),
            local=tuple(local),
            tests=((None,) * len(self.keys),) * self.processes,
            reads=(Read(),) * len(config.reads),
            writes=(Write(),) * len(config.writes),
            is_alive=(True,) * self.processes,
            faults=config.faults,
        )


def spent(state: State, fault: str) -> State:
    """One fault less to come."""
    left: int = getattr(state.faults, fault)
    return state._replace(faults=state.faults._replace(**{fault: left - 1}))


def renamed(state: State, before: State) -> State:
    """The same state with the smallest numbers, so that those that differ in names alone are one."""
    if state.db is not before.db or state.reads is not before.reads:
        state = _with_small_versions(state)
    if (
        state.page is not before.page
        or state.local is not before.local
        or state.reads is not before.reads
        or state.work is not before.work
        or state.tests is not before.tests
    ):
        state = _with_small_sequences(state)
    return state


def _with_small_versions(state: State) -> State:
    """Of cells. Only whether two are equal matters."""
    names: dict[int, int] = {0: 0}  # of a cell that is missing at the start

    def named(version: int) -> int:
        return names.setdefault(version, len(names))

    def all_of(versions: Versions) -> Versions:
        return tuple([(cell, named(version)) for cell, version in versions])

    db = state.db
    floor = named(db.floor)
    cells = tuple([None if version is None else named(version) for version in db.cells])
    values = tuple([value and value._replace(header=all_of(value.header)) for value in db.values])
    reads = []
    for read in state.reads:
        if read.cells or read.value:
            value = read.value and read.value._replace(header=all_of(read.value.header))
            read = read._replace(cells=all_of(read.cells), value=value)
        reads.append(read)
    return state._replace(db=db._replace(cells=cells, values=values, floor=floor), reads=tuple(reads))


def _with_small_sequences(state: State) -> State:
    """Of the page. Whether two are equal matters, and whether one follows the other."""
    used = {state.page.sequence, *(generation for generation, _ in state.page.slots)}
    for copies in state.local:
        for copy in copies:
            if copy:
                used.add(copy.stamp)
                used.update(word[0] for _, word in copy.slots)
    for read in state.reads:
        used.update(word[0] for _, word in read.slots)
    for tests in state.tests:
        used.update(test.sequence for test in tests if test)
    used.update(work.base for work in state.work if work)
    used.discard(NO_STAMP)
    ordered = sorted(used)
    names = {NO_STAMP: NO_STAMP}
    last, name = ordered[0], 0
    for number in ordered:
        name += min(number - last, 2) if number - last < FAR else 2 * FAR
        names[number] = name
        last = number

    def all_of(slots: Words) -> Words:
        return tuple([(slot, (names[word[0]], word[1])) for slot, word in slots])

    page = state.page._replace(
        sequence=names[state.page.sequence], slots=tuple([(names[word[0]], word[1]) for word in state.page.slots])
    )
    local = tuple(
        [
            tuple([copy and copy._replace(slots=all_of(copy.slots), stamp=names[copy.stamp]) for copy in copies])
            for copies in state.local
        ]
    )
    reads = tuple([read._replace(slots=all_of(read.slots)) if read.slots else read for read in state.reads])
    tests = tuple(
        [tuple([test and test._replace(sequence=names[test.sequence]) for test in row]) for row in state.tests]
    )
    work = tuple([each and each._replace(base=names[each.base]) for each in state.work])
    return state._replace(page=page, local=local, reads=reads, tests=tests, work=work)
