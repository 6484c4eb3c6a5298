"""The steps of a write: begin, side effect, commit, return, and the ways in which it does not get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.properties.checker import Step
from tests.properties.fleet import server as scripts
from tests.properties.fleet.server import Mode, replaced
from tests.properties.fleet.state import MOVES, ROOT, RUNNING, Read, State, World, Write, spent


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """What each write may do next."""
    for number, (key, process) in enumerate(world.configuration.writes):
        for label, after in _write(world, state, number, key, process):
            yield f"write {number} ({key}) {label}", after
    for number in state.on_the_way:
        arrived = state._replace(on_the_way=tuple(other for other in state.on_the_way if other != number))
        yield f"the begin of write {number} ARRIVES", _begun(world, arrived, number)


def settled(state: State) -> State:
    """What a dead armed write has changed must be seen when the last overlapping lease is over."""
    if state.owed and not any(
        one is not None and one.mode == "armed" and not one.is_over for one in state.server.registry
    ):
        return state._replace(floor=max(state.floor, state.owed), owed=0)
    return state


def _write(world: World, state: State, number: int, key: str, process: int) -> Iterator[Step[State]]:
    write, rules, faults = state.writes[number], world.rules, state.faults
    moves = MOVES[key]

    def to(state: State, **changes: Any) -> State:
        return state._replace(writes=replaced(state.writes, number, write._replace(**changes)))

    match write.at:
        case "idle":
            if not rules.begins:
                yield "starts", to(state, at="begun")
                return
            yield "begins", _begun(world, to(state, at="begun"), number)
            if faults.unreachable and world.configuration.is_strong:
                yield "is REFUSED", spent(to(state, at="gone"), "unreachable")
            elif faults.unreachable:
                owing = state._replace(pending=replaced(state.pending, number, ROOT if key == "result" else moves))
                owing = spent(to(owing, at="begun", is_announced=False), "unreachable")
                yield "begins UNREACHABLE", owing
                if faults.late:
                    on_the_way = (*owing.on_the_way, number)
                    yield "begins LATE", spent(owing._replace(on_the_way=on_the_way), "late")
        case "begun":
            touched = world.touched(state, process, ROOT if key == "result" else moves)
            yield "drops its own copies", to(touched, at="running")
        case "running":
            version = state.db + 1
            yield "takes effect", to(state, at="done", version=version)._replace(db=version)
            if faults.crash:
                covered = write.is_announced and state.is_settled
                died = to(spent(state, "crash"), at="dead early", is_covered=covered)
                yield "DIES before its effect", _died(world, died, process)
            if faults.doubt:
                cells = ROOT if key == "result" else moves
                server = scripts.commit(state.server, number, cells, rules, hold=True)
                held = to(spent(state, "doubt"), at="doubted", is_covered=True)
                held = world.published(held._replace(server=server), process, cells)
                yield "FAILS in doubt", world.touched(held, process, cells)
        case "done":
            if faults.crash:
                covered = write.is_announced and state.is_settled
                died = to(spent(state, "crash"), at="dead", is_covered=covered)
                yield "DIES after its effect", _mourned(world, _died(world, died, process), number)
            yield from _commit(world, state, number, moves)
            if _returns_early(world, state, number):
                sent = to(state, at="committed", is_sent=True)
                sent = sent._replace(pending=replaced(state.pending, number, moves))
                yield "sends its commit and returns", _returned(world, sent, number)
            if faults.failure and key == "result":
                for label, after in _commit(world, spent(state, "failure"), number, ROOT):
                    yield f"FAILS and {label}", after
        case "committed":
            yield "returns", _returned(world, state, number)
        case "returned" if write.is_sent and state.pending[number] is not None and faults.crash:
            yield "DIES before its commit lands", _died(world, spent(state, "crash"), process)
        case "doubted" | "dead early" if _has_lease(state, number):
            version = state.db + 1
            landed = to(state, at="dead", version=version)._replace(db=version)
            yield "takes effect LATE", _mourned(world, landed, number)
    yield from _keep_alive(world, state, number, key)
    if (owed := state.pending[number]) is not None:
        server = scripts.commit(state.server, number, owed, rules)
        landed = to(state._replace(server=server, pending=replaced(state.pending, number, None)), is_sent=False)
        if write.at in RUNNING:
            landed = to(
                landed, is_announced=False, is_sent=False
            )  # a commit ends its registration; the next renewal begins again
        if write.at == "returned":
            landed = landed._replace(floor=max(landed.floor, write.version))
        yield "is made good", world.published(landed, process, owed)


def _returns_early(world: World, state: State, number: int) -> bool:
    """Whether a write returns when its commit was sent: what it has changed is held until that lands."""
    awaited = world.rules.awaits_commits == "of results' tags" and world.configuration.writes[number][0] == "result"
    is_refused = world.configuration.is_strong  # if it cannot be announced: such a write waits
    return world.rules.begins and state.writes[number].is_announced and not (awaited or is_refused)


def _returned(world: World, state: State, number: int) -> State:
    """The caller goes on. From now on its process finds what was written; others do if cells are held, or moved."""
    (key, process), write = world.configuration.writes[number], state.writes[number]
    after = world.touched(state, process, (*MOVES[key], *ROOT) if key == "result" else MOVES[key])
    after = after._replace(
        own=replaced(after.own, process, max(after.own[process], write.version)),
        writes=replaced(after.writes, number, write._replace(at="returned")),
    )
    is_held = write.is_announced and state.is_settled and (world.configuration.is_strong or write.is_sent)
    if state.pending[number] is None or is_held:
        after = after._replace(floor=max(after.floor, write.version))
    return after


def _begun(world: World, state: State, number: int) -> State:
    """The begin has reached the server."""
    key, process = world.configuration.writes[number]
    if key == "result" and not world.rules.arms:
        return world.published(state, process, ROOT)
    mode: Mode = "armed" if key == "result" else "held"
    cells = ROOT if key == "result" else MOVES[key]
    server = scripts.begin(state.server, number, mode, cells)
    return world.published(state._replace(server=server), process, cells)


def _commit(world: World, state: State, number: int, cells: tuple[int, ...]) -> Iterator[Step[State]]:
    """The ways of a commit: it lands, it lands without an answer, or it does not land."""
    _, process = world.configuration.writes[number]
    ended = state._replace(writes=replaced(state.writes, number, state.writes[number]._replace(at="committed")))
    server = scripts.commit(state.server, number, cells, world.rules)
    landed = world.published(ended._replace(server=server), process, cells)
    yield "commits", landed._replace(pending=replaced(state.pending, number, None))
    owing = replaced(state.pending, number, cells)
    if state.faults.doubled:
        yield "commits, REPLY LOST", spent(landed._replace(pending=owing), "doubled")
    if state.faults.unreachable:
        yield "commits UNREACHABLE", spent(ended._replace(pending=owing), "unreachable")


def _keep_alive(world: World, state: State, number: int, key: str) -> Iterator[Step[State]]:
    """Leases: renewed by who runs, over some time after who does not."""
    write, registration = state.writes[number], state.server.registry[number]
    is_running = write.at in RUNNING
    registers = world.rules.begins and (key != "result" or world.rules.arms)
    if is_running and registers and world.rules.registers_again and registration is None:
        again = state._replace(writes=replaced(state.writes, number, write._replace(is_announced=True)))
        yield "registers again", _begun(world, again, number)
    has_lease = _has_lease(state, number)
    may_end = not is_running or not world.rules.renews
    if has_lease and may_end and write.at != "committed":
        yield "has its lease END", _lapsed(state, number)
    if not has_lease and write.at in ("dead", "dead early"):
        yield "has been dead for a lease", _lapsed(state, number)


def _lapsed(state: State, number: int) -> State:
    """A lease is over, or has been over for a write that is dead."""
    write = state.writes[number]
    state = state._replace(server=scripts.end_lease(state.server, number))
    if write.at not in ("dead", "dead early", "doubted"):
        return state
    if write.at == "dead" and write.is_covered:
        state = state._replace(owed=max(state.owed, write.version))
    return state._replace(writes=replaced(state.writes, number, Write("gone")))


def _has_lease(state: State, number: int) -> bool:
    registration = state.server.registry[number]
    return registration is not None and not registration.is_over


def _died(world: World, state: State, process: int) -> State:
    """A process is gone, and with it what it kept, what it was reading and what it owed."""
    config = world.configuration
    reads = [Read("ended") if config.reads[n][1] == process else read for n, read in enumerate(state.reads)]
    pending = [None if config.writes[n][1] == process else cells for n, cells in enumerate(state.pending)]
    return state._replace(
        reads=tuple(reads),
        pending=tuple(pending),
        local=replaced(state.local, process, (None,) * len(world.keys)),
        own=replaced(state.own, process, 0),
    )


def _mourned(world: World, state: State, number: int) -> State:
    """A dead write has had its effect: nobody may miss it from now on, or from the end of its lease if it was armed."""
    write, (key, _) = state.writes[number], world.configuration.writes[number]
    registration = state.server.registry[number]
    held = key != "result" or (registration is not None and registration.mode == "held")
    held = held or world.configuration.is_strong
    if write.is_covered and held:
        return state._replace(floor=max(state.floor, write.version))
    return state
