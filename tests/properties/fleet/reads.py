"""The steps of a read: look up, load, look again, store, keep locally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.properties.checker import Step
from tests.properties.fleet import nested, server as scripts
from tests.properties.fleet.nested import look_again
from tests.properties.fleet.server import T, Value, replaced
from tests.properties.fleet.state import DEPENDS_ON, INNER, LOOKS_AT, Read, State, Tokens, World


def steps(world: World, state: State) -> Iterator[Step[State]]:
    """What each read may do next."""
    for number, (key, process) in enumerate(world.configuration.reads):
        for label, after in _read(world, state, number, key, process):
            yield f"read {number} ({key}) {label}", after


def _read(world: World, state: State, number: int, key: str, process: int) -> Iterator[Step[State]]:
    read, place = state.reads[number], world.keys.index(key)

    def to(read: Read, **changes: Any) -> State:
        return state._replace(reads=replaced(state.reads, number, read), **changes)

    match read.at:
        case "idle":
            yield from _look_up(world, state, number, key, process)
        case "found" | "stored":
            keeps = read.may_keep and not world.configuration.is_strong
            if keeps and not read.touched.intersection(DEPENDS_ON[key]):
                copy = world.copied(read.version, read.tokens, read.ident)
                copies = replaced(state.local[process], place, copy)
                yield "is kept locally", to(Read("ended"), local=replaced(state.local, process, copies))
            else:
                yield "is not kept", to(Read("ended"))
        case _ if key in INNER and read.at in ("looked", "nested", "loaded"):
            yield from nested.steps(world, state, number, key, process)
        case "looked":
            at = "shares" if world.configuration.shares_loads else "loaded"
            yield f"loads version {state.db}", to(read._replace(at=at, version=state.db))
        case "shares":
            yield "hands its load over", _hand_over(state, number)
        case "loaded" if key == "result" and read.tokens and state.server.cells[T] is None and world.rules.mints:
            yield "mints", state._replace(server=scripts.mint(state.server, [T]))
        case "loaded":
            if key == "result":
                read = look_again(world, state.server, read)
            if not read.tokens or world.waits(state, process):
                yield "is not stored", to(read._replace(at="stored", tokens=()))
            elif key == "result":
                yield "names its tag", to(read._replace(at="named"))
            else:
                yield "is stored", _stored(to(read._replace(at="stored")), place, read)
        case "named" if world.waits(state, process):
            yield "is not stored", to(read._replace(at="stored", tokens=()))
        case "named":
            yield "is stored", _stored(to(read._replace(at="stored")), place, read)


def _stored(state: State, place: int, read: Read) -> State:
    value = Value(read.version, read.ident, read.tokens)
    server = state.server
    return state._replace(server=server._replace(values=replaced(server.values, place, value)))


def _look_up(world: World, state: State, number: int, key: str, process: int) -> Iterator[Step[State]]:
    server, looks_at = state.server, LOOKS_AT[key]
    found = server.values[world.keys.index(key)]

    def to(read: Read) -> State:
        return state._replace(reads=replaced(state.reads, number, read))

    if world.waits(state, process):
        yield "does not look", to(Read("looked", may_keep=False))
        return
    if world.rules.mints and any(server.cells[cell] is None for cell in looks_at):
        yield "mints", state._replace(server=scripts.mint(server, looks_at))
        return
    marked = scripts.marks(server, {*looks_at, *DEPENDS_ON[key]})
    if found is not None and scripts.counts(server, found, world.rules, is_strong=world.configuration.is_strong):
        read = Read("found", may_keep=not marked, version=found.version)
        if world.inherits and not marked:
            read = read._replace(tokens=found.header, ident=found.ident)
        yield f"finds version {found.version}", to(read)
        return
    if key in INNER:
        marked = scripts.marks(server, looks_at)
    held = "held" in scripts.marks(server, looks_at)
    tokens = tuple((cell, scripts.token(server, cell)) for cell in looks_at)
    ident = scripts.ident(server, world.rules)
    missed = Read("looked", tokens=() if held else tokens, ident=ident, may_keep=not marked)
    if world.configuration.shares_loads:
        yield from _share(world, state, number, missed, tokens)
    else:
        yield "finds nothing", to(missed)


def _share(world: World, state: State, number: int, missed: Read, tokens: Tokens) -> Iterator[Step[State]]:
    """Wait for a load under the same tokens on the same server, or be the one that others wait for."""
    process = world.configuration.reads[number][1]

    def to(read: Read) -> State:
        since = max(state.floor, state.own[process])
        return state._replace(reads=replaced(state.reads, number, read._replace(since=since)))

    if not missed.tokens and not world.rules.shares_under_hold:
        yield "finds nothing", to(missed)
        return
    # A follower only waits, so what it would store under is free to say for which load.
    shared = missed._replace(tokens=tokens)
    leaders = [other for other, read in enumerate(state.reads) if read.at in ("looked", "shares")]
    if any(_is_one_load(state.reads[other], shared) for other in leaders):
        yield "follows", to(shared._replace(at="follows"))
    else:
        yield "leads", to(shared)


def _is_one_load(one: Read, other: Read) -> bool:
    return (one.ident, one.tokens) == (other.ident, other.tokens)


def _hand_over(state: State, number: int) -> State:
    leader, broken = state.reads[number], None
    reads = []
    for other, read in enumerate(state.reads):
        if read.at == "follows" and _is_one_load(read, leader):
            if leader.version < read.since:
                broken = f"read {other} is handed version {leader.version}, although {read.since} was there before it"
            read = Read("ended")
        reads.append(read)
    reads[number] = leader._replace(at="loaded")
    return state._replace(reads=tuple(reads), broken=broken)
