"""The one-machine protocol as a state machine: a database, a page of shared memory, and what may go wrong.

One root with one entity; reads of the entity, of the whole root, and of the entity with the tag taken from the result;
writes likewise. Each read goes its way once: look up, load, store, keep locally. What a further read would be served at
once is not played but looked at in every state (`broken`). Any process may be killed between any two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.properties.checker import Model, Step
from tests.properties.onemachine import reads, recovery, writes
from tests.properties.onemachine.rules import WHOLE, Rules
from tests.properties.onemachine.state import Configuration, State, World, renamed


def model(configuration: Configuration, rules: Rules = WHOLE) -> Model[State]:
    """For the checker."""
    world = World(configuration, rules)
    return Model(world.start(), partial(steps, world), partial(broken, world))


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """Everything that may happen next."""
    for source in (reads.steps, writes.steps, recovery.steps):
        for label, after in source(world, state):
            yield label, renamed(after, state)


def broken(world: World, state: State) -> str | None:
    """What a read that starts now could get although it must not, or what is stuck."""
    if state.broken:
        return state.broken
    page, db = state.page, state.db
    for process, copies in enumerate(state.local):
        for place, copy in enumerate(copies):
            if copy is not None and copy.stamp == page.sequence and copy.version < state.floor:
                return f"process {process} serves its copy of {world.keys[place]}, older than {state.floor}"
    is_suspended = page.is_suspended(world.rules)
    for place, value in enumerate(db.values):
        if value is None or value.version >= state.floor or is_suspended:
            continue
        cells = [cell for cell, _ in value.header]
        is_kept = db.is_held(cells) or (
            world.configuration.is_strong and world.rules.strong_passes_over_armed and db.is_armed(cells)
        )
        if not is_kept and all(db.version(cell) == version for cell, version in value.header):
            return f"version {value.version} of {world.keys[place]} is found in the file, older than {state.floor}"
    return recovery.stuck(world, state)
