"""Transactions: under the write lock the page changes word by word, and the database at the commit, all at once.

A transaction is the work of an actor: of a write, or of recovery, which any process may do. The mode of a cell is what
the rows say that name it, so it is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.properties.checker import Step
from tests.properties.onemachine.rules import Rules
from tests.properties.onemachine.state import (
    CELLS,
    MOVES,
    NEW_VERSION,
    ROOT,
    Database,
    Page,
    Row,
    State,
    Transaction,
    World,
    replaced,
)


def moved(world: World, key: str, kind: str) -> tuple[int, ...]:
    """The cells that a write moves at its end."""
    cells = MOVES[key]
    if key == "result" and kind != "commit":
        cells = ROOT
    return cells if world.rules.moves_root or key == "root" else (cells[0],)


def held(world: World, key: str) -> tuple[int, ...]:
    """The cells that it holds while it runs."""
    return () if key == "result" else moved(world, key, "begin")


def row_of(world: World, write: int, *, owner: int | None) -> Row:
    """The row of a write that begins."""
    key, _ = world.configuration.writes[write]
    armed = ROOT if key == "result" and world.rules.arms else ()
    return Row(owner, held(world, key), armed)


def with_new_versions(world: World, db: Database, cells: Iterable[int]) -> Database:
    """Cells moved."""
    versions = list(db.cells)
    for cell in cells:
        versions[cell] = NEW_VERSION
    return db._replace(cells=tuple(versions))


def with_row(db: Database, write: int, row: Row | None) -> Database:
    return db._replace(rows=replaced(db.rows, write, row))


def outcome(world: World, db: Database, kind: str, subject: int) -> tuple[Database, tuple[int, ...]]:
    """The database after a transaction, and the cells whose slots it changes."""
    if kind in ("begin", "commit", "commit failed", "doubt"):
        return _of_write(world, db, kind, subject)
    if kind in ("take over", "expire"):
        return _of_row(world, db, kind, subject)
    if kind == "flush":
        emptied = with_new_versions(world, db, CELLS)._replace(values=(None,) * len(db.values))
        return emptied, CELLS if world.rules.flush_ends_copies else ()
    if kind == "prune":
        floor = NEW_VERSION if world.rules.raises_floor else db.floor
        return db._replace(cells=replaced(db.cells, subject, None), floor=floor), ()
    return db, ()


def _of_write(world: World, db: Database, kind: str, write: int) -> tuple[Database, tuple[int, ...]]:
    key, process = world.configuration.writes[write]
    if kind == "begin":
        row = row_of(world, write, owner=process)
        return with_new_versions(world, with_row(db, write, row), row.held), (*row.held, *row.armed)
    known = db.rows[write] or row_of(world, write, owner=process)
    cells = moved(world, key, kind)
    row_after = Row(None, cells) if kind == "doubt" else None
    after = with_new_versions(world, with_row(db, write, row_after), cells)
    return after, (*known.held, *known.armed, *cells)


def _of_row(world: World, db: Database, kind: str, write: int) -> tuple[Database, tuple[int, ...]]:
    row = db.rows[write]
    if row is None:
        return db, ()
    cells = (*row.held, *row.armed)
    if kind == "take over":
        after = Row(None, cells) if world.rules.holds_for_dead else None
    elif row.owner is None or not world.rules.keeps_expired:
        after = None
    else:
        after = row._replace(is_expired=True, is_over=False)
    return with_new_versions(world, with_row(db, write, after), cells), cells


def is_named(world: World, db: Database, slot: int, *, is_busy_for: int | None = None) -> bool:
    """Whether a row, or that of one write, keeps a slot busy."""
    for write, row in enumerate(db.rows):
        if row is None or row.is_expired or is_busy_for not in (None, write):
            continue
        cells = (*row.held, *row.armed) if world.rules.marks_armed else row.held
        if slot in world.slots_of(cells):
            return True
    return False


def planned(world: World, state: State, kind: str, subject: int) -> Transaction:
    """A transaction at its start."""
    after, cells = outcome(world, state.db, kind, subject)
    slots = (subject,) if kind == "repair" else world.slots_of(cells)
    only = subject if kind in ("commit", "commit failed") and not world.rules.keeps_others_busy else None
    busy = [world.rules.has_busy_bit and is_named(world, after, slot, is_busy_for=only) for slot in slots]
    return Transaction(kind, subject, state.page.sequence, tuple(zip(slots, busy, strict=True)))


def start(world: World, state: State, actor: int, kind: str, subject: int) -> State | None:
    """An actor takes the write lock, if it is free."""
    if not world.rules.locks_page:
        return state._replace(work=replaced(state.work, actor, planned(world, state, kind, subject)))
    if state.lock is not None:
        return None
    work = replaced(state.work, actor, planned(world, state, kind, subject))
    return state._replace(lock=actor, work=work)


def changes(work: Transaction, rules: Rules) -> list[int]:
    """Its steps on the page: numbers in its slots, and -1 for the sequence."""
    if not work.slots:
        return []
    slots = list(range(len(work.slots)))
    return [*slots, -1] if rules.sequence_after_slots else [-1, *slots]


def advance(world: World, state: State, actor: int) -> Iterator[Step[State]]:
    """The next step of a transaction on the page; nothing if only its commit is left."""
    work = state.work[actor]
    if work is None:
        return
    steps = changes(work, world.rules)
    if work.at >= len(steps):
        return
    page = changed(state.page, work, steps[work.at])
    label = "the sequence" if steps[work.at] == -1 else f"slot {work.slots[steps[work.at]][0]}"
    after = state._replace(page=page, work=replaced(state.work, actor, work._replace(at=work.at + 1)))
    yield f"{work.kind} changes {label}", after


def changed(page: Page, work: Transaction, step: int) -> Page:
    """A page after one of the steps of a transaction."""
    if step == -1:
        return page._replace(sequence=work.base + 1)
    slot, is_busy = work.slots[step]
    return page._replace(slots=replaced(page.slots, slot, (work.base + 1, is_busy)))


def is_ready(world: World, state: State, actor: int) -> bool:
    """Whether a transaction can commit now."""
    work = state.work[actor]
    if work is None or work.at < len(changes(work, world.rules)):
        return False
    return state.lock == (actor if world.rules.locks_page else None)


def committed(world: World, state: State, actor: int) -> State:
    """A transaction is over, and the lock is free."""
    work = state.work[actor]
    assert work is not None
    after, _ = outcome(world, state.db, work.kind, work.subject)
    return state._replace(db=after, lock=None, work=replaced(state.work, actor, None))


def rolled_back(state: State, actor: int) -> State:
    """A transaction has failed, or its process is dead. The page keeps what it has changed."""
    lock = None if state.lock == actor else state.lock
    return state._replace(lock=lock, work=replaced(state.work, actor, None))
