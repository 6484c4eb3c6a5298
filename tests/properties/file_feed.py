"""A model of the tier in a file: an entity, a process that writes it, one that reads it, a file that may be locked.

What is modelled: the number in the page and the rows, the version of a cell, the hold of a writer and its lease, the
mark of invalidations that could not be noted, a local copy, and the value in the file. The writer may die at each
step, and its effect may come after that, until its lease has passed. The promise: no read that starts after a write has
ended, or that starts after the lease of a dead one, returns the old value.

`WITHOUT` are the parts that can be taken out. Each leads to a stale answer, and `test_tier_models` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.properties.checker import Model, Step

__all__ = ["WITHOUT", "State", "model"]

WITHOUT = (
    "a message at the begin",
    "a hold",
    "a version at the end",
    "a version when a lease passes",
    "no copies of what was held",
    "the page",
    "the mark",
    "the mark before the effect",
    "everything counts as written by a lapsed mark",
    "a hold for a lease by a lapsed mark",
    "a look at the marks in each hit",
)


@dataclass(frozen=True, slots=True)
class State:
    """One moment.

    Attributes:
        truth: what is read, 0 before the effect of the write.
        number, cell, told: of the newest step, of the last that changed the entity, and of the last whose message
            names it: that drops copies.
        held: 0 nobody, 1 the writer, 2 everything is held for a dead one, 3 the writer has it armed.
        mark: whether the writer's mark in the page is set.
        locked: whether the file takes no step now.
        writer: 0 before, 1 begun, 2 the effect is done, 3 ended, 4 dead.
        pending: whether a step of it is not noted.
        coming: whether the effect of a dead writer may still come.
        overdue: whether a lease has passed while the writer lived: then it was stopped, and if it dies now its effect
            does not come any more. What comes later than a lease after a writer was last heard of is not promised.
        stored: the value in the file and the version of its cell.
        copy: the local copy; None without one. It is dropped by what is applied.
        applied: the number up to which the reader has applied the feed.
        reader: 0 idle, 1 it has looked into the file, 2 it has loaded.
        seen: version and mode of the cell at its look, and what was applied.
        loaded: what it has loaded.
        must: what it may return at least.
        answer: what it has returned, and what it had to.
    """

    truth: int = 0
    number: int = 1
    cell: int = 1
    told: int = 1
    held: int = 0
    mark: bool = False
    locked: bool = False
    writer: int = 0
    pending: bool = False
    coming: bool = False
    overdue: bool = False
    stored: tuple[int, int] | None = None
    copy: int | None = None
    applied: int = 1
    reader: int = 0
    seen: tuple[int, int, int] = (0, 0, 0)
    loaded: int = 0
    must: int = 0
    answer: tuple[int, int] = (1, 0)


def model(without: str = "", *, late: bool = False) -> Model[State]:
    """The model, maybe without a part.

    Args:
        late: whether only the result of the write names the entity, so that its root is armed and not held.
    """
    return Model(State(stored=(0, 1)), lambda state: steps(state, without, late), broken)


def broken(state: State) -> str | None:
    """Whether an answer is too old."""
    value, must = state.answer
    return "stale" if value < must else None


def steps(state: State, without: str, late: bool) -> Iterator[Step[State]]:
    """All that may happen next."""
    if state.writer < 3:
        yield ("the file is free" if state.locked else "the file is locked"), replace(state, locked=not state.locked)
    yield from _writer(state, without, late)
    yield from _time(state, without)
    yield from _reader(state, without)


def _moved(state: State, **changes: object) -> State:
    """A step that changes the entity, and tells it unless the changes say otherwise."""
    number = state.number + 1
    return replace(state, **({"number": number, "cell": number, "told": number} | changes))  # type: ignore[arg-type]  # of State


def _writer(state: State, without: str, late: bool) -> Iterator[Step[State]]:
    has_mark = without != "the mark"
    if state.writer == 0:
        held = 0 if without == "a hold" else 3 if late else 1
        if not state.locked:
            told = state.told if without == "a message at the begin" else state.number + 1
            cell = state.cell if late else state.number + 1
            yield "begin", _moved(state, cell=cell, told=told, held=held, writer=1)
        else:
            early = has_mark and without != "the mark before the effect"
            yield "begin cannot be noted", replace(state, pending=True, mark=early, writer=1)
    elif state.writer == 1:
        yield "effect", replace(state, truth=1, writer=2)
        coming = not state.overdue
        yield "the writer dies, its effect may come", replace(state, writer=4, coming=coming, pending=False)
    elif state.writer == 2:
        if state.locked:
            yield "end cannot be noted", replace(state, pending=True, mark=has_mark, writer=3)
        else:
            held = state.held if state.held == 2 else 0
            ended = replace(state, number=state.number + 1, held=held, mark=False, pending=False, writer=3)
            is_told = without != "a version at the end" or state.pending
            yield "end", _moved(state, held=held, mark=False, pending=False, writer=3) if is_told else ended
        yield "the writer dies", replace(state, writer=4, pending=False)
    elif state.writer == 3 and state.pending:
        if not state.locked:
            held = state.held if state.held == 2 else 0
            yield "it is noted", _moved(state, held=held, mark=False, pending=False)
        else:
            yield "the file is free", replace(state, locked=False)
        yield "the writer dies with it", replace(state, writer=4, pending=False)
    if state.writer == 4 and state.coming:
        yield "the effect comes", replace(state, truth=1, coming=False)
        yield "the effect never comes", replace(state, coming=False)


def _time(state: State, without: str) -> Iterator[Step[State]]:
    """Leases, and marks of processes that are stopped or dead. A lease passes when the effect of a dead writer has
    come, or never will.
    """
    if state.held and not state.coming and not state.locked:
        overdue = state.overdue or state.writer == 1
        if without == "a version when a lease passes":
            yield "the lease passes", replace(state, number=state.number + 1, held=0, overdue=overdue)
        else:
            yield "the lease passes", _moved(state, told=state.told, held=0, overdue=overdue)
    if state.mark and not state.locked:  # it has not been set anew for a lease
        overdue = state.overdue or state.writer == 1
        held = state.held if without == "a hold for a lease by a lapsed mark" else 2
        if without == "everything counts as written by a lapsed mark":
            yield "the mark is cleared", replace(state, mark=False, overdue=overdue)
        else:
            yield "the mark lapses", _moved(state, mark=False, held=held, overdue=overdue)


def _over(state: State) -> int:
    """What a read that starts now may return at least."""
    is_dead = state.writer == 4 and not state.coming and not state.overdue
    is_over = state.writer == 3 or (is_dead and not state.held and not state.mark)
    return state.truth if is_over else 0


def _reader(state: State, without: str) -> Iterator[Step[State]]:
    if state.reader == 0:
        must = _over(state)
        looks_at_marks = without != "a look at the marks in each hit"
        is_complete = state.applied == state.number or without == "the page"
        if state.copy is not None and is_complete and not (state.mark and looks_at_marks):
            yield "hit", replace(state, answer=(state.copy, must))
        elif state.mark:
            yield "the tool runs without the file", replace(state, answer=(state.truth, must))
        else:
            is_told = state.told > state.applied and without != "the page"
            applied = replace(state, applied=state.number, copy=None if is_told else state.copy, must=must)
            if applied.copy is not None:
                yield "hit after a look", replace(applied, answer=(applied.copy, must), must=0)
                return
            found = applied.stored
            if found is not None and found[1] == state.cell and state.held in (0, 3):
                copy = None if state.held else found[0]
                yield "found", replace(applied, answer=(found[0], must), copy=copy, must=0)
            else:
                yield "look", replace(applied, reader=1, seen=(state.cell, state.held, state.number))
    elif state.reader == 1:
        yield "load", replace(state, reader=2, loaded=state.truth)
    else:
        cell, held, number = state.seen
        done = replace(state, reader=0, answer=(state.loaded, state.must), seen=(0, 0, 0), loaded=0, must=0)
        is_idle = not held or without == "no copies of what was held"
        if (is_idle or held == 3) and not state.mark and not state.locked:
            done = replace(done, stored=(state.loaded, cell))
        if is_idle and not state.mark and state.told <= number:
            done = replace(done, copy=state.loaded, applied=state.number)
        yield "keep", done
