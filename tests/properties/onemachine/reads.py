"""Reads: a lookup in the file, a load, a store, a local copy; and the hit of a local copy whose stamp is old."""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.checker import Step
from tests.properties.onemachine.state import (
    DEPENDS_ON,
    LOOKS_AT,
    NO_STAMP,
    Copy,
    Read,
    State,
    Test,
    Value,
    World,
    replaced,
)


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """Everything that may happen next to a read."""
    for number, read in enumerate(state.reads):
        key, process = world.configuration.reads[number]
        if read.at != "ended":
            for label, after in _of_read(world, state, number, read, key):
                yield f"read {number} ({key}, process {process}): {label}", after
    for process, copies in enumerate(state.local):
        for place, copy in enumerate(copies):
            if copy is not None:
                for label, after in _of_copy(world, state, process, place, copy):
                    yield f"process {process} hits its copy of {world.keys[place]}: {label}", after


def _to(state: State, number: int, read: Read) -> State:
    return state._replace(reads=replaced(state.reads, number, read))


# Lookups: each step is called by its name, and says which one is next.


def _of_read(world: World, state: State, number: int, read: Read, key: str) -> Iterator[Step[State]]:
    rules = world.rules
    if read.at == "idle":
        first = "slots" if rules.slots_before_database else "look before"
        read = read._replace(at=first, since=state.floor)
    if read.at == "slots":
        yield from _slots(world, state, number, read, LOOKS_AT[key], "look before")
    elif read.at == "look before":
        yield from _looks(world, state, number, read, "snapshot", wanted=rules.looks_before_snapshot)
    elif read.at == "snapshot":
        yield "sees the database", _snapshot(world, state, number, read, key)
    elif read.at == "look after":
        yield from _looks(world, state, number, read, _after_look(world, read, key), wanted=rules.looks_after_snapshot)
    elif read.at == "late slots":
        yield from _slots(world, state, number, read, DEPENDS_ON[key], "decide")
    elif read.at == "late snapshot":
        yield "sees the other cells", _late_snapshot(state, number, read, key)
    elif read.at == "decide":
        yield from _decided(world, state, number, read, key)
    elif read.at == "load":
        then = "slots for recheck" if key == "result" else "store"
        yield f"loads version {state.truth}", _to(state, number, read._replace(at=then, version=state.truth))
    elif read.at == "slots for recheck":
        yield from _slots(world, state, number, read, DEPENDS_ON[key], "recheck")
    elif read.at == "recheck":
        yield from _recheck(world, state, number, read, key)
    elif read.at == "store":
        yield from _store(world, state, number, read, key)
    elif read.at == "keep":
        yield from _keep(world, state, number, read, key)


def _slots(
    world: World, state: State, number: int, read: Read, cells: tuple[int, ...], then: str
) -> Iterator[Step[State]]:
    """Read the slots that are not known yet, one by one."""
    known = {slot for slot, _ in read.slots}
    missing = [slot for slot in world.slots_of(cells) if slot not in known]
    if not missing:
        yield from _of_read(world, state, number, read._replace(at=then), world.configuration.reads[number][0])
        return
    slots = (*read.slots, (missing[0], state.page.slots[missing[0]]))
    at = read.at if missing[1:] else then
    yield f"reads slot {missing[0]}", _to(state, number, read._replace(at=at, slots=slots))


def _looks(world: World, state: State, number: int, read: Read, then: str, *, wanted: bool) -> Iterator[Step[State]]:
    """Look whether any process has suspended the page."""
    key = world.configuration.reads[number][0]
    if not wanted or not world.suspends:
        yield from _of_read(world, state, number, read._replace(at=then, looked=0), key)
        return
    if world.rules.suspends != "words":
        is_suspended, is_last = state.page.is_suspended(world.rules), True
    else:
        is_suspended = bool(state.page.words[world.watched[read.looked]])
        is_last = read.looked + 1 == len(world.watched)
    if is_suspended:
        yield "finds the page suspended, and runs its tool alone", _to(state, number, Read("ended"))
    elif is_last:
        yield "finds nothing suspended", _to(state, number, read._replace(at=then, looked=0))
    else:
        yield "reads a word", _to(state, number, read._replace(looked=read.looked + 1))


def _snapshot(world: World, state: State, number: int, read: Read, key: str) -> State:
    db = state.db
    cells = tuple((cell, db.version(cell)) for cell in LOOKS_AT[key])
    is_held, is_armed = db.is_held(LOOKS_AT[key]), db.is_armed(LOOKS_AT[key])
    value = db.values[world.keys.index(key)]
    if value is not None and not _counts(world, value, dict(cells), is_held=is_held, is_armed=is_armed):
        value = None
    is_idle = not is_held and not (is_armed and world.rules.keeps_idle_only == "all")
    seen = read._replace(
        at="look after",
        cells=cells,
        is_idle=is_idle or world.rules.keeps_idle_only == "any",
        is_held=is_held,
        value=value,
    )
    return _to(state, number, seen)


def _counts(world: World, value: Value, cells: dict[int, int], *, is_held: bool, is_armed: bool) -> bool:
    """Whether the cells that are known are those of the value, and allow a hit."""
    if is_held or (is_armed and world.configuration.is_strong and world.rules.strong_passes_over_armed):
        return False
    return all(cells[cell] == version for cell, version in value.header if cell in cells)


def _after_look(world: World, read: Read, key: str) -> str:
    if key == "result" and read.value is not None:
        return "late slots" if world.rules.slots_before_database else "late snapshot"
    return "decide"


def _late_snapshot(state: State, number: int, read: Read, key: str) -> State:
    """The cells that only the header of the value names, in a second snapshot."""
    known = {cell for cell, _ in read.cells}
    others = tuple(cell for cell in DEPENDS_ON[key] if cell not in known)
    cells = tuple((cell, state.db.version(cell)) for cell in others)
    value = read.value
    if value is None or state.db.is_held(others) or any(pair in value.header for pair in cells) is False:
        value = None
    is_idle = read.is_idle and not state.db.is_held(others) and not state.db.is_armed(others)
    return _to(state, number, read._replace(at="decide", cells=read.cells + cells, value=value, is_idle=is_idle))


def _decided(world: World, state: State, number: int, read: Read, key: str) -> Iterator[Step[State]]:
    if not world.rules.slots_before_database and len(read.slots) < len(world.slots_of(_wanted(read, key))):
        yield from _slots(world, state, number, read, _wanted(read, key), "decide")
        return
    if key == "result" and read.value is not None and len(read.cells) == len(LOOKS_AT[key]):
        yield "sees the other cells", _late_snapshot(state, number, read, key)
        return
    if read.value is None:
        cells = tuple(pair for pair in read.cells if pair[0] in LOOKS_AT[key])
        slots = tuple(pair for pair in read.slots if pair[0] in world.slots_of(LOOKS_AT[key]))
        yield "misses", _to(state, number, read._replace(at="load", cells=cells, slots=slots))
        return
    broken = None
    if read.value.version < read.since:
        broken = f"version {read.value.version} of {key} is found by a read that started after {read.since}"
    found = read._replace(at="keep", version=read.value.version, value=None)
    yield f"finds version {read.value.version}", _to(state, number, found)._replace(broken=broken)


def _wanted(read: Read, key: str) -> tuple[int, ...]:
    return DEPENDS_ON[key] if read.value is not None else LOOKS_AT[key]


def _recheck(world: World, state: State, number: int, read: Read, key: str) -> Iterator[Step[State]]:
    """S and D once more, and T for the first time, in one snapshot after the load."""
    db = state.db
    is_same = all(db.version(cell) == version for cell, version in read.cells) and not db.is_held(LOOKS_AT[key])
    if world.rules.rechecks and not (is_same and not read.is_held):
        yield "sees that S or D has changed", _to(state, number, Read("ended"))
        return
    cells = tuple((cell, db.version(cell)) for cell in DEPENDS_ON[key])
    others = [cell for cell in DEPENDS_ON[key] if cell not in LOOKS_AT[key]]
    is_idle = read.is_idle and not db.is_held(others) and not db.is_armed(others)
    yield "looks again", _to(state, number, read._replace(at="store", cells=cells, is_idle=is_idle))


def _store(world: World, state: State, number: int, read: Read, key: str) -> Iterator[Step[State]]:
    if read.is_held:
        yield "does not store", _to(state, number, read._replace(at="keep"))
        return
    if state.lock is not None:
        return
    is_suspended = state.page.is_suspended(world.rules)
    if is_suspended and world.rules.looks_at_store:
        yield "does not store into a suspended file", _to(state, number, Read("ended"))
        return
    values = replaced(state.db.values, world.keys.index(key), Value(read.version, read.cells))
    stored = state._replace(db=state.db._replace(values=values))
    yield "stores", _to(stored, number, read._replace(at="keep"))


def _keep(world: World, state: State, number: int, read: Read, key: str) -> Iterator[Step[State]]:
    process, rules = world.configuration.reads[number][1], world.rules
    is_busy = any(word[1] for _, word in read.slots)
    is_same = all(state.page.slots[slot] == word for slot, word in read.slots)
    if is_busy or not read.is_idle or (rules.rechecks_insertion and not is_same):
        yield "keeps no copy", _to(state, number, Read("ended"))
        return
    needed = world.slots_of(DEPENDS_ON[key])
    slots = tuple(sorted(pair for pair in read.slots if pair[0] in needed))
    stamp = NO_STAMP if rules.first_stamp == "none" else state.page.sequence
    copies = replaced(state.local[process], world.keys.index(key), Copy(read.version, slots, stamp))
    tests = replaced(state.tests[process], world.keys.index(key), None)
    kept = state._replace(local=replaced(state.local, process, copies), tests=replaced(state.tests, process, tests))
    yield "keeps a copy", _to(kept, number, Read("ended"))


# Local hits. One whose stamp is the sequence is a single step, which `protocol.broken` looks at in every state.


def _of_copy(world: World, state: State, process: int, place: int, copy: Copy) -> Iterator[Step[State]]:
    test = state.tests[process][place]

    def to(after: Test | None, state: State = state) -> State:
        return state._replace(tests=replaced(state.tests, process, replaced(state.tests[process], place, after)))

    def without() -> State:
        return to(None, state._replace(local=replaced(state.local, process, replaced(copies, place, None))))

    copies = state.local[process]
    page = state.page
    order = world.order_of_hit(len(copy.slots))
    if test is None:
        if copy.stamp == page.sequence:
            return
        test = Test(state.floor)
    step = order[test.at]
    after = test._replace(at=test.at + 1)
    if step == "sequence":
        after = after._replace(sequence=page.sequence)
        label = "reads the sequence"
    elif isinstance(step, int):
        slot, word = copy.slots[step]
        if page.slots[slot] != word:
            yield f"slot {slot} has changed, a miss", without()
            return
        label = f"slot {slot} is the same"
    else:
        looked = int(step.removeprefix("look "))
        if page.words[looked] if looked >= 0 else page.is_suspended(world.rules):
            yield "the page is suspended, a miss", to(None)
            return
        label = "nothing is suspended"
    if after.at < len(order):
        yield label, to(after)
        return
    served = state._replace(
        local=replaced(state.local, process, replaced(copies, place, copy._replace(stamp=after.sequence)))
    )
    if copy.version < test.since:
        key = world.keys[place]
        served = served._replace(
            broken=f"a copy of version {copy.version} of {key} is served to a read that started after {test.since}"
        )
    yield f"{label}, served", to(None, served)
