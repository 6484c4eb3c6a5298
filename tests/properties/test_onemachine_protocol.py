"""The protocol of one machine, every interleaving of small configurations: whole it keeps its promises, and no part of
it can be left out but those that are named. `python -m tests.properties.onemachine` prints what leads to each loss."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest

from tests.harness.slow import slow
from tests.properties.checker import Model, explore
from tests.properties.onemachine import protocol
from tests.properties.onemachine.configurations import AMPUTATIONS, CONFIGURATIONS, DISPENSABLE, LIMIT
from tests.properties.onemachine.rules import WHOLE, Rules
from tests.properties.onemachine.state import State

SMALL = (  # less than half a second each; they cover each part of the protocol and some faults
    "entity read and written",
    "entity read, root written",
    "root read, entity written",
    "entity read, a result's tag written",
    "tags from read results, nothing there yet",
    "weak reads, a result's tag written",
    "a reader dies",
    "a write dies, and who recovers",
    "a write of a result's tag is not renewed, and dies",
    "cells are pruned",
)


LARGE = frozenset({  # ten seconds and more: `python -m tests.properties.onemachine` alone explores these
    "entity read in both processes",
    "transactions fail, and the write dies",
    "a transaction fails",
    "a transaction fails, and the write dies",
    "a transaction fails, late",
    "the database is locked for two processes",
    "the database is locked for two processes, one dies",
    "transactions of two processes fail",
})  # fmt: skip


@pytest.mark.parametrize("name", [*SMALL, *slow(*(name for name in CONFIGURATIONS if name not in {*SMALL, *LARGE}))])
def test_the_whole_protocol_keeps_its_promises_and_gets_stuck_nowhere(name: str):
    verdict = explore(protocol.model(CONFIGURATIONS[name]), LIMIT)
    sys.stdout.write(f"{name}: {verdict}\n")
    assert verdict.holds, str(verdict)


LONG = (  # a quarter of a second and more
    "no busy bit",
    "slots of armed cells that are not busy",
    "a dead process's word cleared only",
    "a dead writer's cells released at once",
    "an expired row deleted",
    "a flush that leaves the slots",
    "a flush without a lease",
    "no look at suspensions before the snapshot",
    "the page changed outside of the lock",
    "a hint that is cleared before the words are read",
    "a hint that is cleared if the words were zero",
    "a hint that is cleared without reading the words",
)


@pytest.mark.parametrize("part", [*(part for part in AMPUTATIONS if part not in LONG), *slow(*LONG)])
def test_a_part_that_is_taken_out_is_missed(part: str):
    rules, configuration = AMPUTATIONS[part]
    verdict = explore(protocol.model(configuration, rules), LIMIT)
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds
    assert ("for ever" in str(verdict.broken)) == (part == "no repair")


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part, (_, names) in DISPENSABLE.items() if LARGE.isdisjoint(names)])
def test_a_part_that_another_one_does_is_not_missed(part: str):
    rules, names = DISPENSABLE[part]
    for name in names:
        verdict = explore(protocol.model(CONFIGURATIONS[name], rules), LIMIT)
        assert verdict.holds, f"{name}: {verdict}"


LARGE_IF_WHOLE = (
    "a flush without a lease",
    "no look at suspensions before the snapshot",
    "a hint that is cleared before the words are read",
    "a hint that is cleared if the words were zero",
    "a hint that is cleared without reading the words",
)


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in AMPUTATIONS if part not in LARGE_IF_WHOLE])
def test_the_whole_protocol_holds_where_a_part_is_missed(part: str):
    verdict = explore(protocol.model(AMPUTATIONS[part][1]), LIMIT)
    assert verdict.holds, str(verdict)


def test_every_part_is_taken_out_once():
    taken_out = [rules for rules, _ in (*AMPUTATIONS.values(), *DISPENSABLE.values())]
    for field in dataclasses.fields(Rules):
        values = {getattr(rules, field.name) for rules in taken_out}
        assert values > {getattr(WHOLE, field.name)}, f"{field.name} stays whole in all of them"


# A promise is also kept by a model in which nothing happens, so here is what must happen.

REACHED: dict[str, tuple[str, Callable[[State], bool]]] = {
    "a copy is kept after a write, and hit": (
        "entity read and written",
        lambda state: any(copy and copy.version == 1 and copy.stamp == state.page.sequence for copy in state.local[0]),
    ),
    "a value that was loaded after a write is in the file": (
        "tags from read results, nothing there yet",
        lambda state: any(value and value.version == 1 for value in state.db.values) and state.floor == 1,
    ),
    "a read overlaps a whole write": (
        "entity read, root written",
        lambda state: any(read.at == "store" and read.version < state.floor for read in state.reads),
    ),
    "a slot is busy for nobody": (
        "a write dies, and who recovers",
        lambda state: state.lock is None and state.page.slots[1][1] and state.db.rows == (None,),
    ),
    "who recovers is killed too, and another one ends it": (
        "a write dies, and who recovers",
        lambda state: not any(state.faults) and state.floor == 1 and state.db.rows == (None,) and state.lock is None,
    ),
    "two writes have cells in one slot, and one of them dies": (
        "a write dies beside another, one slot",
        lambda state: None not in state.db.rows and False in state.is_alive,
    ),
    "a write that has expired returns": (
        "a write is not renewed, and dies",
        lambda state: state.writes[0].at == "returned" and not state.faults.lapse,
    ),
    "a write that has expired is dead, and holds its cells once more": (
        "a write is not renewed, and dies",
        lambda state: not state.faults.lapse and state.writes[0].at == "dead" and state.db.is_held((2,)),
    ),
    "an effect lands after its write has failed": (
        "a write of a result's tag fails in doubt",
        lambda state: state.writes[0].at == "gone" and not state.faults.late and state.floor == 1,
    ),
    "a commit lands twice, the second time under another write": (
        "a commit is doubled",
        lambda state: state.writes[0].owes == "commit" and state.writes[1].at == "begun",
    ),
    "a write has returned that is not recorded": (
        "transactions fail",
        lambda state: state.writes[0].at == "returned" and state.writes[0].owes == "commit" and state.floor == 1,
    ),
    "all values were deleted for a process that has died": (
        "transactions fail, and the write dies",
        lambda state: False in state.is_alive and state.db.values == (None,) and not any(state.page.words),
    ),
}


REACHED_LATE = (  # half a second and more
    "a commit lands twice, the second time under another write",
    "all values were deleted for a process that has died",
)


@pytest.mark.parametrize("what", [*(what for what in REACHED if what not in REACHED_LATE), *slow(*REACHED_LATE)])
def test_the_model_gets_to_where_it_is_interesting(what: str):
    name, is_there = REACHED[what]
    whole = protocol.model(CONFIGURATIONS[name])
    assert not explore(Model(whole.start, whole.steps, lambda state: what if is_there(state) else None), LIMIT).holds
