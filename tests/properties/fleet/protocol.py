"""The fleet protocol as a state machine: two processes, a server, what they read and write, and what may go wrong.

Written from the protocol's text: one root with one entity; reads of the entity, of the whole root, and of the entity
with the tag taken from the result; writes likewise. A key is read by as many reads as a configuration says, each going
its way once: look up, load, look again, store, keep locally. What a further read would get is not played but looked up
in every state (`broken`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.properties.checker import Model, Step
from tests.properties.fleet import faults, reads, server as scripts, writes
from tests.properties.fleet.rules import WHOLE, Rules
from tests.properties.fleet.state import PROCESSES, Configuration, State, World, renamed


def model(configuration: Configuration, rules: Rules = WHOLE) -> Model[State]:
    """For the checker."""
    world = World(configuration, rules)
    return Model(world.start(), partial(steps, world), partial(broken, world))


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """Everything that may happen next."""
    for label, after in reads.steps(world, state):
        yield label, renamed(after, state)
    for source in (writes.steps, faults.news, faults.outages):
        for label, after in source(world, state):
            yield label, renamed(writes.settled(after), state)


def broken(world: World, state: State) -> str | None:
    """What a read that starts now could get, although it must not."""
    if state.broken:
        return state.broken
    for place, key in enumerate(world.keys):
        value = state.server.values[place]
        if value is not None and scripts.counts(
            state.server, value, world.rules, is_strong=world.configuration.is_strong
        ):
            for process in PROCESSES:
                asks = not world.waits(state, process)
                if value.version < state.floor or (asks and value.version < state.own[process]):
                    return f"process {process} finds version {value.version} of {key}, older than it may be"
        for process in PROCESSES:
            copy = state.local[process][place]
            has_heard_all = state.is_live[process] and not state.queues[process]
            least = max(state.own[process], state.floor if has_heard_all else 0)
            if copy is not None and copy.version < least:
                return f"process {process} has kept version {copy.version} of {key}, older than it may be"
    return None
