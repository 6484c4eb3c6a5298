"""What a configuration of the fleet is, and everything that one state of it holds."""

from __future__ import annotations

from typing import NamedTuple

from tests.properties.fleet import server as scripts
from tests.properties.fleet.rules import Rules
from tests.properties.fleet.server import CELLS, MISSING, D, S, Server, T, Value, replaced

PROCESSES = (0, 1)
INNER: dict[str, tuple[str, ...]] = {
    "over entity": ("entity",),
    "over root": ("root",),
    "over result": ("result",),
    "over entity twice": ("entity", "entity"),
    "over entity and root": ("entity", "root"),
    "result, over entity": ("entity",),
}
"""Reads that the load of a read makes, in this order. The last one looks at the data as well, before them."""
KEYS = ("entity", "root", "result", *INNER)
DEPENDS_ON = {"entity": (S, T), "root": (D,), "result": (S, T), "result, over entity": (S, T)}
DEPENDS_ON |= {
    outer: tuple(sorted({cell for key in inner for cell in DEPENDS_ON[key]})) for outer, inner in INNER.items()
}
LOOKS_AT: dict[str, tuple[int, ...]] = {"entity": (S, T), "root": (D,), "result": (S, D)}
LOOKS_AT |= dict.fromkeys(INNER, ()) | {"result, over entity": (S, D)}
"""Cells fetched before the load: the tag from the result is not known yet. Most reads that make others have no tag here
of their own.
"""
NO_VERSION = 99
"""Later than any: what a load has seen that has seen nothing yet."""
MOVES = {"entity": (T, D), "root": (S, D), "result": (T, D)}
ROOT = (S, D)


Tokens = tuple[tuple[int, int], ...]
"""(cell, token) of each."""


class Faults(NamedTuple):
    """How often each may happen."""

    crash: int = 0  # a writer's process dies, before or after the side effect
    doubt: int = 0  # a write fails without telling whether its side effect happens
    failure: int = 0  # a write with its tag from the result fails after its side effect
    loss: int = 0  # a subscription breaks: messages are lost, and nobody notices for a while
    unreachable: int = 0  # a begin or a commit does not reach the server
    late: int = 0  # ... and a begin of those comes after all
    doubled: int = 0  # a commit's reply is lost, so it is said again
    failover: int = 0  # a replica that lags takes over
    failback: int = 0  # the first server takes over again
    replication: int = 0  # the replica catches up
    flush: int = 0  # FLUSHALL
    restart: int = 0  # killed, and started empty
    eviction: int = 0  # of one cell
    expiry: int = 0  # the ttl of a value passes


Party = tuple[str, int]
"""A read or a write: its key and its process."""


class Configuration(NamedTuple):
    """Who takes part, and what may go wrong."""

    reads: tuple[Party, ...]
    writes: tuple[Party, ...]
    faults: Faults = Faults()
    is_warm: bool = True  # values and local copies are there at the start, but for reads over others
    values_apart: bool = False  # a cluster: values are on another node than the cells
    shares_loads: bool = False  # between processes
    is_strong: bool = False  # reads ask at every hit and keep nothing locally; writes that cannot begin are refused


class Copy(NamedTuple):
    """A local copy, and what it was valid under where a read may inherit that."""

    version: int
    tokens: Tokens = ()  # none: nothing that depends on it is stored
    ident: int = 0


class Inner(NamedTuple):
    """The read that a load makes now."""

    place: int = 0  # in the row of reads that the load makes
    at: str = "idle"
    tokens: Tokens = ()  # as of those of a read
    ident: int = 0


class Read(NamedTuple):
    at: str = "idle"
    touched: frozenset[int] = frozenset()  # cells that messages and own writes have moved since it started
    tokens: Tokens = ()  # what it will store under; none: it will not
    ident: int = 0
    may_keep: bool = False
    version: int = 0
    since: int = 0  # the floor when it started, where a load is shared
    inner: Inner | None = None  # while its load makes reads
    inherited: Tokens | None = ()  # what these were valid under; none: it is not stored


class Write(NamedTuple):
    at: str = "idle"
    version: int = 0
    is_announced: bool = True
    is_covered: bool = True  # it died so that the failure table promises something
    is_sent: bool = False  # it has returned, and its commit is on its way


class State(NamedTuple):
    db: int
    floor: int
    own: tuple[int, ...]
    owed: int  # becomes the floor when no armed write is left
    server: Server
    replica: Server | None
    is_settled: bool  # every running write has had the time to register again
    local: tuple[tuple[Copy | None, ...], ...]  # by process and key
    queues: tuple[tuple[tuple[int, ...], ...], ...]  # messages on their way to each process
    is_live: tuple[bool, ...]
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    pending: tuple[tuple[int, ...] | None, ...]  # by write: the cells that its commit will move
    on_the_way: tuple[int, ...]  # writes whose begin may still arrive
    faults: Faults
    broken: str | None = None


RUNNING = ("begun", "running", "done")


class World:
    """One configuration under one set of rules: what all steps need to know.

    Attributes:
        keys: what is read in it; values and copies stand in this order.
        inherits: whether any load makes other reads.
    """

    def __init__(self, configuration: Configuration, rules: Rules) -> None:
        writers = [process for _, process in configuration.writes]
        if configuration.faults.crash and len({*writers}) < len(writers):
            raise ValueError("a process dies with all of its writes: where one may crash, each needs its own process")
        self.configuration = configuration
        self.rules = rules
        read = {key for key, _ in configuration.reads}
        inherited = {inner for outer in read for inner in INNER.get(outer, ())}
        self.keys = tuple(key for key in KEYS if key in read | inherited)
        self.inherits = bool(inherited)

    def start(self) -> State:
        """Version 0 everywhere, or nothing anywhere."""
        config, rules = self.configuration, self.rules
        nobody = (None,) * len(config.writes)
        server = Server((None,) * len(CELLS), nobody, (None,) * len(self.keys))
        local: tuple[Copy | None, ...] = (None,) * len(self.keys)
        if config.is_warm:
            server = scripts.mint(server, CELLS)
            headers = [tuple((cell, scripts.token(server, cell)) for cell in DEPENDS_ON[key]) for key in self.keys]
            ident = scripts.ident(server, rules)
            values = [
                None if key in INNER else Value(0, ident, header)
                for key, header in zip(self.keys, headers, strict=True)
            ]
            server = server._replace(values=tuple(values))
            if not config.is_strong:
                local = tuple(value and self.copied(value.version, value.header, value.ident) for value in values)
        return renamed(
            State(
                db=0,
                floor=0,
                own=(0,) * len(PROCESSES),
                owed=0,
                server=server,
                replica=server if config.faults.failover else None,
                is_settled=True,
                local=(local,) * len(PROCESSES),
                queues=((),) * len(PROCESSES),
                is_live=(True,) * len(PROCESSES),
                reads=(Read(),) * len(config.reads),
                writes=(Write(),) * len(config.writes),
                pending=nobody,
                on_the_way=(),
                faults=config.faults,
            )
        )

    def copied(self, version: int, tokens: Tokens, ident: int) -> Copy:
        """A local copy."""
        return Copy(version, tokens, ident) if self.inherits else Copy(version)

    def waits(self, state: State, process: int) -> bool:
        """Whether a process stays away from the server for an invalidation of its own that has not landed."""
        return self.rules.waits_for_pending and any(
            cells is not None
            and self.configuration.writes[write][1] == process
            and (self.rules.waits_for_own_commit or not state.writes[write].is_sent)
            for write, cells in enumerate(state.pending)
        )

    def published(self, state: State, sender: int, cells: tuple[int, ...]) -> State:
        """Send the news to all other processes that are subscribed; a writer skips its own."""
        queues = [
            queue if process == sender or not state.is_live[process] else (*queue, cells)
            for process, queue in enumerate(state.queues)
        ]
        return state._replace(queues=tuple(queues))

    def touched(self, state: State, process: int, cells: tuple[int, ...], *, drops: bool = True) -> State:
        """Drop a process's copies that depend on cells, and tell its reads."""
        copies = [
            None if drops and set(cells).intersection(DEPENDS_ON[key]) else copy
            for key, copy in zip(self.keys, state.local[process], strict=True)
        ]
        reads = [
            read._replace(touched=read.touched.union(cells))
            if self.configuration.reads[number][1] == process and read.at not in ("idle", "ended")
            else read
            for number, read in enumerate(state.reads)
        ]
        return state._replace(local=replaced(state.local, process, tuple(copies)), reads=tuple(reads))


def cut(state: State, process: int) -> State:
    """A subscription is gone, with what was on its way. The process does not know."""
    return state._replace(is_live=replaced(state.is_live, process, False), queues=replaced(state.queues, process, ()))


def spent(state: State, fault: str) -> State:
    """One fault less to come."""
    left: int = getattr(state.faults, fault)
    return state._replace(faults=state.faults._replace(**{fault: left - 1}))


NAMING = tuple(State._fields.index(field) for field in ("server", "replica", "local", "reads"))
"""Where tokens stand."""


def renamed(state: State, before: State | None = None) -> State:
    """The same state with the smallest tokens, so that those that differ in names alone are one."""
    if before is not None and all(state[field] is before[field] for field in NAMING):
        return state
    names: dict[int, int] = {MISSING: MISSING}

    def named(token: int) -> int:
        return names.setdefault(token, len(names))

    def all_of(tokens: Tokens) -> Tokens:
        return tuple([(cell, named(token)) for cell, token in tokens])

    def of(server: Server) -> Server:
        cells = [cell and cell._replace(token=named(cell.token)) for cell in server.cells]
        values = [value and value._replace(header=all_of(value.header)) for value in server.values]
        return server._replace(cells=tuple(cells), values=tuple(values))

    server = of(state.server)
    replica = state.replica and of(state.replica)
    local = tuple(
        [
            tuple([copy._replace(tokens=all_of(copy.tokens)) if copy and copy.tokens else copy for copy in copies])
            for copies in state.local
        ]
    )
    reads = []
    for read in state.reads:
        if read.tokens:
            read = read._replace(tokens=all_of(read.tokens))
        if read.inner is not None and read.inner.tokens:
            read = read._replace(inner=read.inner._replace(tokens=all_of(read.inner.tokens)))
        if read.inherited:
            read = read._replace(inherited=all_of(read.inherited))
        reads.append(read)
    return state._replace(server=server, replica=replica, local=local, reads=tuple(reads))
