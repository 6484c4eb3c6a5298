"""The steps of a load that makes other reads: each is answered by a local copy, by the server or by a load of its own,
and what it was valid under is inherited.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.checker import Step
from tests.properties.fleet import server as scripts
from tests.properties.fleet.server import CELLS, S, Server, T, Value, replaced
from tests.properties.fleet.state import (
    DEPENDS_ON,
    INNER,
    LOOKS_AT,
    NO_VERSION,
    Inner,
    Read,
    State,
    Tokens,
    World,
)


def steps(world: World, state: State, number: int, key: str, process: int) -> Iterator[Step[State]]:
    """What a read may do next from its own lookup, which found nothing, to its store."""
    read = state.reads[number]

    def to(read: Read, state: State = state) -> State:
        return state._replace(reads=replaced(state.reads, number, read))

    match read.at:
        case "looked" if LOOKS_AT[key]:
            yield f"looks at version {state.db}", to(read._replace(at="nested", version=state.db, inner=Inner()))
        case "looked":
            # Nothing that is written before the first read of the load can matter to it.
            yield "begins", to(read._replace(at="nested", version=NO_VERSION, inner=Inner(), touched=frozenset()))
        case "nested":
            for label, after in _inner(world, state, read, key, process):
                yield label, after if isinstance(after, State) else to(after)
        case "loaded" if _needs_mint(world, state.server, key):
            yield "mints", state._replace(server=scripts.mint(state.server, DEPENDS_ON[key]))
        case "loaded":
            header = None if world.waits(state, process) else _header(world, state.server, read, key)
            if header is None:
                yield "is not stored", to(read._replace(at="stored", tokens=(), inherited=()))
            elif _is_fetched(world, key):
                yield "fetches cells", to(read._replace(at="named", tokens=header, inherited=()))
            else:
                value = Value(read.version, read.ident, header)
                values = replaced(state.server.values, world.keys.index(key), value)
                stored = to(read._replace(at="stored", tokens=header, inherited=()))
                yield "is stored", stored._replace(server=state.server._replace(values=values))


def look_again(world: World, server: Server, read: Read) -> Read:
    """Fetch S, D and T after the load: store only if nothing was written meanwhile."""
    now = {cell: scripts.token(server, cell) for cell in CELLS}
    unmoved = bool(read.tokens) and all(now[cell] == known for cell, known in read.tokens)
    keeps = read.may_keep and not scripts.marks(server, CELLS)
    if not world.rules.rechecks or unmoved:
        return read._replace(tokens=((S, now[S]), (T, now[T])), may_keep=keeps)
    return read._replace(tokens=(), may_keep=False)


# The reads that a load makes


def _inner(world: World, state: State, read: Read, key: str, process: int) -> Iterator[tuple[str, Read | State]]:
    """What the read that the load makes now may do next."""
    assert read.inner is not None
    inner, server, name = read.inner, state.server, INNER[key][read.inner.place]
    place = world.keys.index(name)
    strong = world.configuration.is_strong
    match inner.at:
        case "idle":
            copy = state.local[process][place]
            if copy is not None:
                yield (
                    f"reads a copy of version {copy.version}",
                    _inherit(world, read, key, copy.version, copy.tokens, copy.ident),
                )
            if world.waits(state, process):
                yield "reads, and does not look", read._replace(may_keep=False, inner=inner._replace(at="looked"))
                return
            if world.rules.mints and any(server.cells[cell] is None for cell in LOOKS_AT[name]):
                yield "reads, and mints", state._replace(server=scripts.mint(server, LOOKS_AT[name]))
                return
            marked = scripts.marks(server, {*LOOKS_AT[name], *DEPENDS_ON[name]})
            keeps = read._replace(may_keep=read.may_keep and not marked)
            found = server.values[place]
            if found is not None and scripts.counts(server, found, world.rules, is_strong=strong):
                header = () if marked else found.header
                yield (
                    f"reads version {found.version} on the server",
                    _inherit(world, keeps, key, found.version, header, found.ident),
                )
                return
            tokens = () if marked else tuple((cell, scripts.token(server, cell)) for cell in LOOKS_AT[name])
            looked = inner._replace(at="looked", tokens=tokens, ident=scripts.ident(server, world.rules))
            yield "reads, and finds nothing", keeps._replace(inner=looked)
        case "looked" if name == "result":
            version = min(read.version, state.db)
            yield f"reads version {state.db}", read._replace(version=version, inner=inner._replace(at="loaded"))
        case "looked":
            yield f"reads version {state.db}", _inherit(world, read, key, state.db, inner.tokens, inner.ident)
        case "loaded" if inner.tokens and server.cells[T] is None and world.rules.mints:
            yield "mints", state._replace(server=scripts.mint(server, [T]))
        case "loaded":
            again = look_again(world, server, Read(tokens=inner.tokens, may_keep=read.may_keep))
            keeps = read._replace(may_keep=again.may_keep)
            yield "looks again", _inherit(world, keeps, key, read.version, again.tokens, inner.ident)


def _inherit(world: World, read: Read, key: str, version: int, tokens: Tokens, ident: int) -> Read:
    """Add what one of the reads was valid under, and go on to the next."""
    assert read.inner is not None
    is_first = not read.tokens and not read.inherited
    inherited = _merged(world, read.inherited, tokens) if tokens and (is_first or ident == read.ident) else None
    place = read.inner.place + 1
    is_last = place == len(INNER[key])
    return read._replace(
        at="loaded" if is_last else "nested",
        version=min(read.version, version),
        ident=ident if is_first and tokens else read.ident,
        inner=None if is_last else Inner(place),
        inherited=inherited,
    )


def _merged(world: World, one: Tokens | None, other: Tokens | None) -> Tokens | None:
    """The cells of both, each in one version; None if there is none for some."""
    if one is None or other is None:
        return None
    merged = dict(one)
    for cell, known in other:
        if merged.setdefault(cell, known) != known and world.rules.inherits == "versions":
            return None
        merged[cell] = known
    return tuple(sorted(merged.items()))


# What the whole is stored under


def _is_fetched(world: World, key: str) -> bool:
    """Whether any of it is fetched after the load."""
    return world.rules.inherits == "versions fetched anew" or (bool(LOOKS_AT[key]) and world.rules.rechecks_covered)


def _needs_mint(world: World, server: Server, key: str) -> bool:
    missing = any(server.cells[cell] is None for cell in DEPENDS_ON[key])
    return world.rules.mints and missing and _is_fetched(world, key)


def _header(world: World, server: Server, read: Read, key: str) -> Tokens | None:
    """The cells and their versions; None if it is not stored."""
    if read.inherited is None:
        return None
    if world.rules.inherits == "versions fetched anew":
        if "held" in scripts.marks(server, DEPENDS_ON[key]):
            return None
        return tuple((cell, scripts.token(server, cell)) for cell in DEPENDS_ON[key])
    if not LOOKS_AT[key]:
        return read.inherited
    if not read.tokens:
        return None
    if not world.rules.rechecks_covered:
        return read.inherited
    own = look_again(world, server, read).tokens
    return _merged(world, read.inherited, own) if own else None
