"""Recovery: what any process does about dead writers, leases that are over, and what they have left behind.

It is played by one process that dies and is there again. It may do all that is to be done at any time, or never.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.checker import Step
from tests.properties.onemachine import transactions
from tests.properties.onemachine.state import CELLS, DEPENDS_ON, State, Transaction, World, replaced, spent


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """Everything that may happen next."""
    for label, after in _steps(world, state):
        yield f"recovery: {label}", after
    if state.faults.prune:
        for cell in CELLS:
            named = any(row and cell in (*row.held, *row.armed) for row in state.db.rows)
            if state.db.cells[cell] is not None and not named and state.lock is None:
                db, _ = transactions.outcome(world, state.db, "prune", cell)
                yield f"cell {'SDTU'[cell]} is PRUNED", spent(state, "prune")._replace(db=db)


def _steps(world: World, state: State) -> Iterator[Step[State]]:
    actor = world.keeper
    work = state.work[actor]
    if work is None:
        for kind, subject in to_do(world, state):
            started = transactions.start(world, state, actor, kind, subject)
            if started is not None:
                yield f"starts {kind} {subject}", started
        return
    if work.kind == "clear hint":
        yield from _cleared(world, state, work)
    elif work.kind == "clear word":
        words = replaced(state.page.words, work.subject, 0)
        cleared = transactions.rolled_back(state._replace(page=state.page._replace(words=words)), actor)
        yield f"clears the word of process {work.subject}", cleared
    else:
        yield from transactions.advance(world, state, actor)
        if transactions.is_ready(world, state, actor):
            ended = transactions.committed(world, state, actor)
            if work.kind == "flush":
                ended = ended._replace(work=replaced(ended.work, actor, work._replace(kind="clear word")))
            yield f"commits {work.kind} {work.subject}", ended
    if state.faults.keeper:
        yield "its process is KILLED", spent(transactions.rolled_back(state, actor), "keeper")


def to_do(world: World, state: State) -> Iterator[tuple[str, int]]:
    """What recovery can start now."""
    rules = world.rules
    for write, row in enumerate(state.db.rows):
        if row is None:
            continue
        is_dead = row.owner is not None and not state.is_alive[row.owner]
        if is_dead:
            yield "take over", write
        elif (row.owner is None and state.writes[write].at == "gone") or (row.owner is not None and row.is_over):
            yield "expire", write
    if rules.repairs:
        for slot, (_, is_busy) in enumerate(state.page.slots):
            if is_busy and not transactions.is_named(world, state.db, slot):
                yield "repair", slot
    for process, word in enumerate(state.page.words):
        if word and not state.is_alive[process]:
            if not rules.flushes_for_dead:
                yield "clear word", process
            elif not rules.flush_waits or _is_long_dead(world, state, process):
                yield "flush", process
    is_raised = state.page.hint != state.page.cleared
    if is_raised and (any(write.clears_hint for write in state.writes) or not any(state.page.words)):
        yield "clear hint", 0


def _is_long_dead(world: World, state: State, process: int) -> bool:
    """Whether no effect of its writes can land any more."""
    mine = [number for number, (_, owner) in enumerate(world.configuration.writes) if owner == process]
    return all(state.writes[number].at not in ("dead", "doubted") for number in mine)


def _cleared(world: World, state: State, work: Transaction) -> Iterator[Step[State]]:
    """The hint: set to zero, then the words are read, or before that as well."""
    actor = world.keeper
    kind, is_suspended = world.rules.suspends, any(state.page.words)
    if kind == "marks":
        yield from _cleared_marks(state, work)
    elif work.at == 0:
        if kind == "hint after words" and is_suspended:
            yield "leaves the hint", _done(state, actor)
            return
        to = state._replace(work=replaced(state.work, actor, work._replace(at=1)))
        yield "will clear the hint", to
    elif work.at == 1:
        to = state._replace(page=state.page._replace(hint=0), work=replaced(state.work, actor, work._replace(at=2)))
        yield "clears the hint", to
    else:
        hint = int(is_suspended and kind != "hint without words")
        ended = _done(state, actor)
        yield "reads the words", ended._replace(page=ended.page._replace(hint=hint))


def _cleared_marks(state: State, work: Transaction) -> Iterator[Step[State]]:
    """The mark: read, then the words, then it is the one that is cleared."""
    actor = len(state.work) - 1
    if work.at == 0:
        read = work._replace(subject=state.page.hint, at=1)
        yield "reads the mark", state._replace(work=replaced(state.work, actor, read))
    elif work.at == 1 and any(state.page.words):
        yield "finds a word that is not zero", _done(state, actor)
    elif work.at == 1:
        yield "finds all words zero", state._replace(work=replaced(state.work, actor, work._replace(at=2)))
    else:
        ended = _done(state, actor)
        yield "clears the mark", ended._replace(page=ended.page._replace(cleared=work.subject))


def _done(state: State, actor: int) -> State:
    """The hint is as it should be, for all that have lowered their words."""
    writes = tuple(write._replace(clears_hint=False) if write.clears_hint else write for write in state.writes)
    return transactions.rolled_back(state._replace(writes=writes), actor)


def stuck(world: World, state: State) -> str | None:
    """What is left for ever, although no write runs and everything was recovered."""
    if state.lock is not None or any(state.work) or any(to_do(world, state)):
        return None
    ended = ("idle", "returned", "gone")
    if any(
        write.at not in ended or write.does or write.suspends or write.owes or write.is_counted
        for write in state.writes
    ):
        return None
    for slot, (_, is_busy) in enumerate(state.page.slots):
        if is_busy:
            return f"slot {slot} is busy for ever"
    if any(state.db.is_held(DEPENDS_ON[key]) or state.db.is_armed(DEPENDS_ON[key]) for key in world.keys):
        return "a cell is held for ever"
    if any(state.page.words) or state.page.hint != state.page.cleared:
        return "the page is suspended for ever"
    return None
