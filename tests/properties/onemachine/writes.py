"""Writes: begin, the side effect, commit; and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.checker import Step
from tests.properties.onemachine import transactions
from tests.properties.onemachine.state import JUMP, State, World, Write, replaced, spent


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """Everything that may happen next to a write."""
    for number, write in enumerate(state.writes):
        key, process = world.configuration.writes[number]
        for label, after in _of_write(world, state, number, write):
            yield f"write {number} ({key}, process {process}): {label}", after
    for process, is_alive in enumerate(state.is_alive):
        if is_alive and state.faults.crash:
            yield f"process {process} is KILLED", spent(_killed(world, state, process), "crash")


def _to(state: State, number: int, write: Write) -> State:
    return state._replace(writes=replaced(state.writes, number, write))


def _of_write(world: World, state: State, number: int, write: Write) -> Iterator[Step[State]]:
    key, process = world.configuration.writes[number]
    faults = state.faults
    if write.at in ("dead", "doubted"):
        if not write.version and faults.late and key != "other":
            landed = spent(_landed(world, state, number), "late")
            covered = write.is_covered
            yield (
                "its effect lands LATE",
                landed._replace(floor=landed.truth) if covered else landed,
            )
        row = state.db.rows[number]
        is_handled = row is None or row.owner is None
        is_recorded = not (write.owes or write.does or write.is_counted)
        if (write.at == "dead" or is_recorded or not state.is_alive[process]) and is_handled:
            floor = max(state.floor, write.version)
            yield "a lease has passed", _to(state, number, write._replace(at="gone"))._replace(floor=floor)
    if write.at in ("dead", "gone") or not state.is_alive[process]:
        return
    if write.suspends:
        yield from _suspension(world, state, number, write)
    elif write.does:
        yield from _transaction(world, state, number, write)
    else:
        if write.owes:
            again = transactions.start(world, state, number, write.owes, number)
            if again is not None:
                yield f"tries {write.owes} again", _to(again, number, write._replace(does=write.owes))
        if write.is_counted and not write.owes:
            clears = world.rules.suspends != "words"
            recorded = write._replace(is_counted=False, clears_hint=clears)
            yield "is no longer SUSPENDED", _counted(world, state, number, recorded, -1)
        yield from _own(world, state, number, write, key)


def _own(world: World, state: State, number: int, write: Write, key: str) -> Iterator[Step[State]]:
    if write.at == "idle":
        yield from _started(world, state, number, write, "begin")
    if write.at == "begun":
        yield "has its effect", _landed(world, state, number)
    if write.at == "done":
        yield from _started(world, state, number, write, "commit")
        if key == "result" and state.faults.failure:
            yield from _started(world, spent(state, "failure"), number, write, "commit failed")
    if write.at in ("begun", "done") and state.faults.doubt:
        yield from _started(world, spent(state, "doubt"), number, write, "doubt")
    row = state.db.rows[number]
    if write.at in ("begun", "done") and row is not None:
        if state.faults.lapse and not row.is_over and not row.is_expired:
            over = row._replace(is_over=True)
            yield "is not RENEWED", spent(state, "lapse")._replace(db=transactions.with_row(state.db, number, over))
        if row.is_over and state.lock is None:
            renewed = transactions.with_row(state.db, number, row._replace(is_over=False))
            yield "is renewed", state._replace(db=renewed)


def _started(world: World, state: State, number: int, write: Write, kind: str) -> Iterator[Step[State]]:
    started = transactions.start(world, state, number, kind, number)
    if started is not None:
        yield f"starts {kind}", _to(started, number, write._replace(does=kind, owes=""))
    fault = "locked" if state.faults.locked else "unrecorded"
    if getattr(state.faults, fault):
        yield f"cannot start {kind}", _failed(spent(state, fault), number, write._replace(does=kind))


def _transaction(world: World, state: State, number: int, write: Write) -> Iterator[Step[State]]:
    yield from transactions.advance(world, state, number)
    if transactions.is_ready(world, state, number):
        ended = transactions.committed(world, state, number)
        yield f"commits {write.does}", _went_on(ended, number, write._replace(owes=""))
        if state.faults.doubled:
            yield f"commits {write.does}, which is TAKEN FOR FAILED", spent(_failed(ended, number, write), "doubled")
    if state.faults.unrecorded:
        failed = _failed(transactions.rolled_back(state, number), number, write)
        yield f"{write.does} is ROLLED BACK", spent(failed, "unrecorded")


def _failed(state: State, number: int, write: Write) -> State:
    """A transaction has not succeeded, as far as the process knows."""
    if write.is_counted:
        return _went_on(state, number, write._replace(owes=write.does))
    return _to(state, number, write._replace(suspends=1))


def _suspension(world: World, state: State, number: int, write: Write) -> Iterator[Step[State]]:
    """The words, the hint, the sequence, in this order; only then the write goes on."""
    if write.suspends == 1:
        yield "SUSPENDS the page", _counted(world, state, number, write._replace(suspends=2, is_counted=True), 1)
        return
    if write.suspends == 2 and world.rules.suspends != "words":
        hinted = state._replace(
            page=state.page._replace(hint=state.page.hint + 1 if world.rules.suspends == "marks" else 1)
        )
        yield "sets the hint", _to(hinted, number, write._replace(suspends=3))
        return
    sequence = state.page.sequence + (JUMP if world.rules.jumps else 0)
    jumped = state._replace(page=state.page._replace(sequence=sequence))
    yield "makes the sequence jump", _went_on(jumped, number, write._replace(suspends=0, owes=write.does))


def _counted(world: World, state: State, number: int, write: Write, by: int) -> State:
    process = world.configuration.writes[number][1]
    words = replaced(state.page.words, process, state.page.words[process] + by)
    return _to(state._replace(page=state.page._replace(words=words)), number, write)


def _went_on(state: State, number: int, write: Write) -> State:
    """What the write does once a transaction of it is recorded, or suspended."""
    kind, write = write.does, write._replace(does="")
    if kind == "begin" and write.at == "idle":
        return _to(state, number, write._replace(at="begun"))
    if write.at in ("begun", "done") and kind != "begin":
        at = "doubted" if kind == "doubt" else "returned"
        floor = max(state.floor, write.version)
        return _to(state, number, write._replace(at=at))._replace(floor=floor)  # type: ignore[arg-type]
    return _to(state, number, write)


def _landed(world: World, state: State, number: int) -> State:
    """The side effect. That of a write to the other entity is not looked at: no read of it is played."""
    write, truth = state.writes[number], state.truth + 1
    if world.configuration.writes[number][0] == "other":
        return _to(state, number, write._replace(at="done"))
    at = "done" if write.at == "begun" else write.at
    return _to(state, number, write._replace(at=at, version=truth))._replace(truth=truth)


def _killed(world: World, state: State, process: int) -> State:
    """A process is gone, and with it what it kept, what it was reading and its transactions."""
    config = world.configuration
    reads = tuple(type(read)("ended") if config.reads[n][1] == process else read for n, read in enumerate(state.reads))
    nothing = (None,) * len(world.keys)
    state = state._replace(
        reads=reads,
        local=replaced(state.local, process, nothing),
        tests=replaced(state.tests, process, nothing),
        is_alive=replaced(state.is_alive, process, False),
    )
    for number, (_, owner) in enumerate(config.writes):
        if owner == process:
            state = _died(world, transactions.rolled_back(state, number), number)
    return state


def _died(world: World, state: State, number: int) -> State:
    """Nobody may miss the effect of a dead write from now on, or from the end of its lease if it held nothing."""
    write, row = state.writes[number], state.db.rows[number]
    if write.at == "idle":
        return _to(state, number, Write("gone"))
    if write.at not in ("begun", "done"):  # it has returned
        kept = write._replace(does="", suspends=0, owes="", is_counted=False, clears_hint=False)
        return _to(state, number, kept if write.at == "doubted" else Write("gone"))
    in_time = row is not None and not row.is_expired and not row.is_over
    is_held = in_time and bool(row.held or (row.armed and world.configuration.is_strong))
    covered = is_held or write.is_counted
    dead = Write("dead", write.version, is_covered=covered)
    floor = max(state.floor, write.version) if covered else state.floor
    return _to(state, number, dead)._replace(floor=floor)
