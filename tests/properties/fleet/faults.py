"""What happens to messages, and to the server."""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.checker import Step
from tests.properties.fleet.server import CELLS, Server, replaced
from tests.properties.fleet.state import PROCESSES, RUNNING, State, World, cut, spent


def news(world: World, state: State) -> Iterator[Step[State]]:
    """A message arrives, a subscription breaks, a process subscribes again."""
    for process, queue in enumerate(state.queues):
        if queue:
            heard = world.touched(state, process, queue[0])
            yield f"process {process} is told", heard._replace(queues=replaced(state.queues, process, queue[1:]))
        if not state.is_live[process]:
            again = world.touched(state, process, CELLS, drops=world.rules.drops_on_resubscribe)
            yield f"process {process} subscribes again", again._replace(is_live=replaced(state.is_live, process, True))
        elif state.faults.loss:
            yield f"process {process} LOSES its subscription", spent(cut(state, process), "loss")


def outages(world: World, state: State) -> Iterator[Step[State]]:
    """The server forgets something, everything, or what it did last."""
    faults, server = state.faults, state.server
    if faults.eviction:
        for cell in CELLS:
            if server.cells[cell] is not None:
                without = server._replace(cells=replaced(server.cells, cell, None))
                yield f"{'SDT'[cell]} is EVICTED", spent(state._replace(server=without), "eviction")
    if faults.expiry:
        for place, value in enumerate(server.values):
            if value is not None and not value.is_expired:
                aged = server._replace(values=replaced(server.values, place, value._replace(is_expired=True)))
                yield f"the ttl of {world.keys[place]} ENDS", spent(state._replace(server=aged), "expiry")
    empty = Server((None,) * len(CELLS), (None,) * len(server.registry), (None,) * len(server.values))
    if faults.flush:
        flushed = server._replace(cells=empty.cells, registry=empty.registry, values=empty.values)
        yield "FLUSHALL", spent(_unsettled(state._replace(server=flushed)), "flush")
    if faults.restart:
        reborn = empty._replace(promotions=server.promotions + 1, node=2)
        yield "RESTART, empty", spent(_promoted(state, reborn), "restart")
    if state.replica is not None and faults.failover:
        if faults.replication:
            yield "the replica catches up", spent(state._replace(replica=server), "replication")
        heir = state.replica._replace(promotions=server.promotions + 1, node=1)
        if world.configuration.values_apart:
            heir = heir._replace(values=server.values)
        yield "FAILOVER", spent(_promoted(state, heir)._replace(replica=None), "failover")
    if faults.failback and server.node == 1:
        heir = server._replace(promotions=server.promotions + 1, node=0)
        yield "FAILBACK", spent(_promoted(state, heir), "failback")
    if not state.is_settled and _have_registered(world, state):
        yield "a third of a lease passes", state._replace(is_settled=True)


def _promoted(state: State, heir: Server) -> State:
    """Another server answers: all connections are new, and whoever subscribes again knows that."""
    for process in PROCESSES:
        state = cut(state, process)
    return _unsettled(state._replace(server=heir))


def _unsettled(state: State) -> State:
    """Registrations are lost. That a write dies before it can register again is a second fault."""
    is_settled = all(write.at not in RUNNING for write in state.writes)
    return state._replace(is_settled=is_settled)


def _have_registered(world: World, state: State) -> bool:
    if not world.rules.registers_again:
        return True
    return all(
        state.server.registry[number] is not None or write.at not in RUNNING
        for number, write in enumerate(state.writes)
    )
