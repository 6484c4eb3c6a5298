"""What is explored: configurations of the whole protocol, and each of its parts taken out where it is missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.properties.onemachine.rules import WHOLE, Rules
from tests.properties.onemachine.state import Configuration, Faults, Party

ENTITY: tuple[Party, ...] = (("entity", 0), ("entity", 1), ("entity", 2))
ROOT: tuple[Party, ...] = (("root", 0), ("root", 1), ("root", 2))
RESULT: tuple[Party, ...] = (("result", 0), ("result", 1), ("result", 2))
OTHER: Party = ("other", 2)
ONE_SLOT = (0, 0, 0, 0)
TWO_SLOTS = (0, 1, 0, 1)
"""One for what a copy of the entity depends on, one for all else."""


def _case(reads: list[Party], writes: list[Party], **options: Any) -> Configuration:
    faults = {name: options.pop(name) for name in list(options) if name in Faults._fields}
    return Configuration(tuple(reads), tuple(writes), Faults(**faults), **options)


def _copies(writes: list[Party], key: str = "entity", **options: Any) -> Configuration:
    """No lookup is played: only a local copy that is there at the start, and its hits."""
    return _case([], writes, kept=(key,), **options)


CONFIGURATIONS: dict[str, Configuration] = {
    # Who reads and who writes
    "entity read and written": _case([ENTITY[0]], [ENTITY[1]]),
    "entity read, root written": _case([ENTITY[0]], [ROOT[1]]),
    "root read, entity written": _case([ROOT[0]], [ENTITY[1]]),
    "entity read, a result's tag written": _case([ENTITY[0]], [RESULT[1]], failure=1),
    "tags from read results, nothing there yet": _case([RESULT[0]], [ENTITY[1]], is_warm=False),
    "tags from read and written results": _case([RESULT[0]], [RESULT[1]], failure=1),
    "entity read in both processes": _case([ENTITY[0], ENTITY[1]], [ENTITY[1]], copies=(0, 1)),
    "entity and root read, entity written": _case([ENTITY[0], ROOT[0]], [ENTITY[1]], copies=()),
    "entity read in the process of the write": _case([ENTITY[0]], [ENTITY[0]], doubt=1, late=1),
    "written in two processes": _case([ENTITY[0]], [ENTITY[1], ROOT[2]], copies=()),
    "written in two processes, one slot": _case([ENTITY[0]], [ENTITY[1], ROOT[2]], slots=ONE_SLOT),
    "another entity written that shares a slot": _case([ENTITY[0]], [OTHER], slots=(0, 1, 2, 2), crash=1, late=1),
    "both entities written, one slot": _case([ENTITY[0]], [ENTITY[1], OTHER], slots=(0, 1, 2, 2), copies=()),
    "an entity and a result's tag written, one slot": _case([ROOT[0]], [ENTITY[1], RESULT[2]], slots=ONE_SLOT),
    # Processes that are killed
    "a write dies": _case([ENTITY[0]], [ENTITY[1]], crash=1, late=1),
    "a write of the root dies": _case([ENTITY[0]], [ROOT[1]], crash=1, late=1),
    "a write dies, the root is read": _case([ROOT[0]], [ENTITY[1]], crash=1, late=1),
    "a write with its tag from the result dies": _case([ENTITY[0]], [RESULT[1]], crash=1, late=1),
    "a write dies, tags from read results": _case([RESULT[0]], [ENTITY[1]], crash=1, late=1),
    "a write dies, tags from read and written results": _case([RESULT[0]], [RESULT[1]], crash=1, late=1, copies=()),
    "a write dies, and who recovers": _copies([ENTITY[1]], crash=1, keeper=1, late=1),
    "a write dies beside another, one slot": _copies([ENTITY[1], ROOT[2]], crash=1, slots=ONE_SLOT),
    "two writes die, one slot": _copies([ENTITY[1], ENTITY[2]], crash=2, slots=ONE_SLOT),
    "a write dies, one slot": _case([ENTITY[0]], [ENTITY[1]], crash=1, keeper=1, slots=ONE_SLOT),
    "a reader dies": _case([ENTITY[0]], [ENTITY[0]], crash=1),
    # Leases
    "a write fails in doubt": _case([ENTITY[0]], [ENTITY[1]], doubt=1, late=1, crash=1, copies=()),
    "a write of a result's tag fails in doubt": _case([ENTITY[0]], [RESULT[1]], doubt=1, late=1),
    "a write is not renewed": _case([ENTITY[0]], [ENTITY[1]], lapse=1),
    "a write is not renewed, and dies": _copies([ENTITY[1]], lapse=1, crash=1, late=1, keeper=1),
    "a write is not renewed, read, and dies": _case([ENTITY[0]], [ENTITY[1]], lapse=1, crash=1, copies=()),
    "a write of a result's tag is not renewed, and dies": _copies([RESULT[1]], lapse=1, crash=1, late=1),
    # Lookups that pass over held cells only
    "weak reads, a result's tag written": _case([ENTITY[0]], [RESULT[1]], is_strong=False, failure=1),
    "weak reads, a write of a result's tag dies": _case([ENTITY[0]], [RESULT[1]], is_strong=False, crash=1, late=1),
    # Invalidations that are not in the database
    "a transaction fails": _case([ENTITY[0]], [ENTITY[1]], unrecorded=1),
    "transactions fail": _copies([ENTITY[1]], unrecorded=2),
    "transactions fail, and the write dies": _copies([ENTITY[1]], unrecorded=2, crash=1, late=1, keeper=1),
    "a transaction fails, and the write dies": _case([ENTITY[0]], [ENTITY[1]], unrecorded=1, crash=1, copies=()),
    "a transaction fails, late": _case([ENTITY[0]], [ENTITY[1]], unrecorded=1, crash=1, late=1, copies=()),
    "a transaction of a result's tag fails": _copies([RESULT[1]], unrecorded=2, failure=1),
    "a transaction fails, and the write in doubt": _copies([ENTITY[1]], unrecorded=1, doubt=1, late=1),
    "a commit is doubled": _copies([ENTITY[1], ENTITY[2]], doubled=1, slots=ONE_SLOT),
    "a commit is doubled, and the write dies": _case([ENTITY[0]], [ENTITY[1]], doubled=1, crash=1, copies=()),
    "the database is locked for two processes": _copies([ENTITY[1], OTHER], locked=3, slots=TWO_SLOTS),
    "the database is locked for two processes, one dies": _copies(
        [ENTITY[1], OTHER], locked=2, crash=1, slots=TWO_SLOTS
    ),
    "transactions of two processes fail": _copies([ENTITY[1], ENTITY[2]], unrecorded=2, slots=ONE_SLOT),
    # Cells that are removed
    "cells are pruned": _case([ENTITY[0]], [ENTITY[1]], prune=2, is_warm=False, are_pruned=True),
    "cells are pruned, tags from read results": _case([RESULT[0]], [ENTITY[1]], prune=2, is_warm=False),
}


def without(**rules: Any) -> Rules:
    """The protocol with other parts."""
    return replace(WHOLE, **rules)


_SUSPENDED_TWICE = _copies([ENTITY[1], OTHER], locked=3, slots=TWO_SLOTS)

AMPUTATIONS: dict[str, tuple[Rules, Configuration]] = {
    # The page
    "the sequence before the slots, by writers": (
        without(sequence_after_slots=False),
        _copies([ENTITY[1]], crash=1),
    ),
    "the slots before the sequence, by readers": (
        without(sequence_before_slots=False),
        _case([ENTITY[0]], [ENTITY[1]]),
    ),
    "the page changed outside of the lock": (
        without(locks_page=False),
        _case([ENTITY[0]], [ENTITY[1]], crash=1),
    ),
    "no busy bit": (without(has_busy_bit=False), _case([ENTITY[0]], [ENTITY[1]], crash=1)),
    "slots of armed cells that are not busy": (
        without(marks_armed=False),
        _case([ENTITY[0]], [RESULT[1]], crash=1),
    ),
    "the database before the slots": (
        without(slots_before_database=False),
        _case([ENTITY[0]], [ENTITY[1]]),
    ),
    "a stamp at insertion, without a recheck": (
        without(rechecks_insertion=False, first_stamp="sequence"),
        _case([ENTITY[0]], [ENTITY[1]], crash=1),
    ),
    "copies beside armed cells": (
        without(keeps_idle_only="not held"),
        _case([ENTITY[0]], [RESULT[1]], is_strong=False),
    ),
    "no repair": (without(repairs=False), _copies([ENTITY[1]], crash=1)),
    # The database
    "a dead writer's cells released at once": (
        without(holds_for_dead=False),
        _case([ENTITY[0]], [ENTITY[1]], crash=1, late=1),
    ),
    "an expired row deleted": (
        without(keeps_expired=False),
        _case([ENTITY[0]], [ENTITY[1]], crash=1, lapse=1),
    ),
    "armed cells passed by strong reads": (
        without(strong_passes_over_armed=False),
        _case([ENTITY[0]], [RESULT[1]], crash=1),
    ),
    "no recheck of S and D": (without(rechecks=False), _case([RESULT[0]], [ENTITY[1]], is_warm=False)),
    "no arming": (without(arms=False), _copies([RESULT[1]], crash=1)),
    "D not moved by writes of entities": (without(moves_root=False), _case([ROOT[0]], [ENTITY[1]])),
    "one version for all missing cells": (
        without(raises_floor=False),
        _case([ENTITY[0]], [ENTITY[1]], prune=1, is_warm=False, are_pruned=True),
    ),
    # Suspensions
    "no jump of the sequence": (without(jumps=False), _copies([ENTITY[1]], unrecorded=1, crash=1)),
    "the suspensions after the slots": (
        without(words_before_slots=False),
        _copies([ENTITY[1]], locked=2),
    ),
    "a hint that is cleared before the words are read": (without(suspends="hint"), _SUSPENDED_TWICE),
    "a hint that is cleared if the words were zero": (without(suspends="hint after words"), _SUSPENDED_TWICE),
    "a hint that is cleared without reading the words": (without(suspends="hint without words"), _SUSPENDED_TWICE),
    "no look at suspensions before the snapshot": (
        without(looks_before_snapshot=False),
        _case([ENTITY[0]], [ENTITY[1]], unrecorded=1, crash=1, copies=()),
    ),
    "a dead process's word cleared only": (
        without(flushes_for_dead=False),
        _copies([ENTITY[1]], unrecorded=1, crash=1),
    ),
    "a flush that leaves the slots": (
        without(flush_ends_copies=False),
        _copies([ENTITY[1]], unrecorded=1, crash=1),
    ),
    "a flush without a lease": (
        without(flush_waits=False),
        _case([ENTITY[0]], [ENTITY[1]], unrecorded=1, crash=1, late=1, copies=()),
    ),
}
"""Each is missed where it stands."""

DISPENSABLE: dict[str, tuple[Rules, tuple[str, ...]]] = {
    "marks, where all words are read": (
        without(suspends="words"),
        (
            "transactions fail",
            "the database is locked for two processes",
            "a transaction fails, and the write in doubt",
        ),
    ),
    "a recheck of the slots at insertion, as the first hit reads them": (
        without(rechecks_insertion=False),
        ("a write dies", "a write with its tag from the result dies", "a write is not renewed"),
    ),
    "looks at suspensions after the snapshot and at the store": (
        without(looks_after_snapshot=False, looks_at_store=False),
        ("a transaction fails", "a transaction fails, late"),
    ),
    "slots that stay busy for other writes, as the cells are held": (
        without(keeps_others_busy=False),
        ("written in two processes, one slot", "an entity and a result's tag written, one slot"),
    ),
    "idle cells of local copies, where all lookups are strong": (
        without(keeps_idle_only="any"),
        ("a write dies", "a write with its tag from the result dies"),
    ),
}
"""What does the work of another part once more, and where that was looked at."""

LIMIT = 600_000
"""States of one configuration."""
