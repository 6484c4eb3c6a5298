"""What goes wrong during a run, by name. Each fault is a script that a thread plays until the processes are done."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.fleet.tools import Death
from benchmarks.fleet.truth import Journal
from tests.harness.clusters import Cluster, Node, slot_of
from tests.harness.proxies import Proxy
from tests.harness.servers import HOST, Server, wait_until

Where = Literal["server", "pair", "cluster"]
Side = Literal["readers", "writers"]
RARELY: dict[str, Any] = {
    "entities": 40, "heat": 0.05, "writes": 0.01, "write_kinds": {"entity": 6, "result": 3},
}  # fmt: skip
"""What a lost message leaves behind stays until the next write of the same entity, and is too late after a while only.
So there are many entities, each of them written now and then, and never all together; also not by the beginning of a
write whose tag its result will tell, which drops the local copies of all.
"""
ROOT = "{fleet}"
"""Hash tag of the namespace of a run."""
RESHARDED = 4_000
"""Keys in the slot of that root besides its own."""
TRIP = 0.005
"""Seconds between two batches of keys, which are ten each: the slot is open for some two seconds."""
NEWS_DELAY = 0.6
"""Seconds. Longer than `max_staleness` and the timeout together, and nobody would listen at all."""


@dataclass(slots=True)
class Scene:
    """What a fault may lay hands on.

    Attributes:
        proxy: before the server.
        standby: a second server, for a fault that needs a pair; the proxy may lead there as well.
        line: the way from the standby to the server.
        journal: where the fault notes what the verdict must know of it.
    """

    server: Server | None = None
    cluster: Cluster | None = None
    proxy: Proxy | None = None
    standby: Server | None = None
    line: Proxy | None = None
    journal: Journal | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> bool:
        """Let some time pass; whether the run still goes on then."""
        return not self.over.wait(seconds)


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table.

    Attributes:
        where: what the processes talk to; of a pair to the one that is in office, through the proxy.
        cut_off: whose way to the server leads through the proxy; half of the processes then only read, and the others
            do all the writing. By default there is no proxy, and everybody does both.
        play: plays it until the run is over, and returns how often it struck.
        options: of the server.
        apart: half of the processes only read, and the others do all the writing.
        dies: processes die in their last write, and are replaced.
        steps: wall clocks jump.
        fleet: what its processes do, where the usual would hide it.
    """

    play: Callable[[Scene], int] = lambda _: 0
    where: Where = "server"
    cut_off: Side | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    apart: bool = False
    dies: Death | None = None
    steps: bool = False
    fleet: Mapping[str, Any] = field(default_factory=dict)


def kill_connections(scene: Scene) -> int:
    """All of them, each 200 ms."""
    struck = 0
    while scene.wait(0.2):
        struck += int(_server(scene).command("CLIENT", "KILL", "TYPE", "normal")) > 0
    return struck


def restart_empty(scene: Scene) -> int:
    struck = 0
    while scene.wait(0.7):
        _server(scene).kill()
        time.sleep(0.1)
        _server(scene).restart(empty=True)
        struck += 1
    return struck


def restart_from_a_snapshot(scene: Scene) -> int:
    """Each time with what was there some time before, acknowledged writes undone."""
    struck, server = 0, _server(scene)
    snapshot = server.snapshot()
    while scene.wait(0.7):
        server.restart(snapshot=snapshot)
        struck += 1
        if not scene.wait(0.3):
            break
        snapshot = server.snapshot()
    return struck


def freeze(scene: Scene) -> int:
    """For a moment, and for longer than any timeout, in turn."""
    struck = 0
    while scene.wait(0.4):
        _server(scene).pause()
        time.sleep(0.05 if struck % 2 else 0.6)
        _server(scene).resume()
        struck += 1
    return struck


def stutter(scene: Scene) -> int:
    """Stopped for longer than a timeout, often for longer than local copies are trusted, again and again, with short
    gaps between: in some of them one process gets an answer, and another one does not.
    """
    struck, lengths = 0, random.Random(1)
    while scene.wait(lengths.uniform(0.005, 0.2)):
        _server(scene).pause()
        scene.over.wait(lengths.uniform(0.2, 2.0))
        _server(scene).resume()
        struck += 1
    return struck


def flush(scene: Scene) -> int:
    struck = 0
    while scene.wait(0.15):
        _server(scene).command("FLUSHALL")
        struck += 1
    return struck


def evict(scene: Scene) -> int:
    """Fill the memory, again and again: what goes is tokens, registries and values, as the server likes."""
    server, before = _server(scene), 0
    with server.client() as client:
        while scene.wait(0.02):
            pipeline = client.pipeline(transaction=False)
            for number in range(200):
                pipeline.set(f"filler:{before + number}", "x" * 400, ex=3600)
            pipeline.execute()
            before += 200
    return int(server.info("stats")["evicted_keys"])


def delay(scene: Scene) -> int:
    """Bytes take up to 150 ms, commands and messages alike, never the same time for long."""
    struck = 0
    while scene.wait(0.1):
        struck += 1
        _proxy(scene).delay(to_server=0.02 * (struck % 4), to_client=0.05 * (struck % 4))
    return struck


def cut(scene: Scene) -> int:
    struck = 0
    while scene.wait(0.15):
        _proxy(scene).cut()
        struck += 1
    return struck


def cut_at_scripts(scene: Scene) -> int:
    """Whoever wants a script run loses the connection, again and again, while reads go through."""
    struck = 0
    while scene.wait(0.2):
        _proxy(scene).cut_at(b"EVAL")
        time.sleep(0.3)
        _proxy(scene).heal()
        struck += 1
    return struck


def delay_news(scene: Scene) -> int:
    """What a server says to who follows the feed comes late, for good; everything else does not."""
    _proxy(scene).delay_news(NEWS_DELAY)
    scene.over.wait()
    return 1


def half_open(scene: Scene) -> int:
    """The way to the server, the way back, or both let nothing through, for longer than local copies are trusted."""
    struck = 0
    while scene.wait(0.5):
        _proxy(scene).half_open(*((["to_server"], ["to_client"], [])[struck % 3]))  # type: ignore[arg-type]
        time.sleep(1.5)
        _proxy(scene).heal()
        struck += 1
    return struck


def fail_over_and_back(scene: Scene) -> int:
    """A standby that lags takes over, and hands over again: the first server is back with what it had some time ago."""
    server, standby, line, struck = _server(scene), scene.standby, scene.line, 0
    assert standby is not None
    assert line is not None
    while True:
        standby.command("REPLICAOF", HOST, line.port)
        wait_until("the standby has everything", lambda: standby.info("replication")["master_link_status"] == "up")
        if not scene.wait(0.4):
            return struck
        line.refuse()
        if not scene.wait(0.3):
            return struck
        _proxy(scene).refuse()
        standby.command("REPLICAOF", "NO", "ONE")
        server.command("REPLICAOF", HOST, standby.port)
        wait_until("the first has everything", lambda: server.info("replication")["master_link_status"] == "up")
        server.command("REPLICAOF", "NO", "ONE")
        for proxy in (line, _proxy(scene)):
            proxy.heal()
        struck += 1


def fail_over(scene: Scene) -> int:
    """Primaries in turn hand over to their replica, and take over again the time after the next."""
    assert scene.cluster is not None
    struck = 0
    while scene.wait(0.5):
        scene.cluster.failover(scene.cluster.primary_for(ROOT), force=struck % 2 == 1)
        struck += 1
    return struck


def reshard(scene: Scene) -> int:
    """The slot of the namespace moves to the next primary key by key, and belongs to neither of them meanwhile."""
    cluster = _filled(scene)
    struck = 0
    while scene.wait(1.0):
        start = time.monotonic_ns()
        for _ in cluster.move_slot(slot_of(ROOT), _next_primary(cluster)):
            time.sleep(TRIP)
        if scene.journal is not None:
            scene.journal.note("open", start, time.monotonic_ns())
        struck += 1
    return struck


def migrate_atomically(scene: Scene) -> int:
    """The slot of the namespace moves as a whole, once the next primary has a copy of all that is in it."""
    cluster = _filled(scene)
    struck = 0
    while scene.wait(0.5):
        cluster.move_slot_atomically(slot_of(ROOT), _next_primary(cluster))
        struck += 1
    return struck


def _filled(scene: Scene) -> Cluster:
    assert scene.cluster is not None
    with scene.cluster.primary_for(ROOT).client() as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(RESHARDED):
            pipeline.set(f"filler:{ROOT}:{number}", "x" * 100)
        pipeline.execute()
    return scene.cluster


def _next_primary(cluster: Cluster) -> Node:
    primaries = sorted(cluster.primaries, key=lambda node: node.port)
    return primaries[(primaries.index(cluster.primary_for(ROOT)) + 1) % len(primaries)]


FAULTS: dict[str, Fault] = {
    "none": Fault(),
    "none, cluster": Fault(where="cluster"),
    "connections killed": Fault(kill_connections),
    "restarted empty": Fault(restart_empty),
    "restarted from a snapshot": Fault(restart_from_a_snapshot),
    "server frozen": Fault(freeze),
    "stutter": Fault(stutter, fleet=RARELY),
    "flushed": Fault(flush),
    "evicting": Fault(evict, options={"maxmemory": "5mb", "maxmemory_policy": "allkeys-random"}),
    "writer dies before its effect": Fault(dies="before"),
    "writer dies after its effect": Fault(dies="after"),
    "writer dies after a late effect": Fault(dies="late"),
    "readers delayed": Fault(delay, cut_off="readers"),
    "readers cut": Fault(cut, cut_off="readers"),
    "news delayed": Fault(delay_news, cut_off="readers"),
    "readers half-open": Fault(half_open, cut_off="readers"),
    "writers delayed": Fault(delay, cut_off="writers"),
    "writers cut": Fault(cut, cut_off="writers"),
    "writers' scripts cut": Fault(cut_at_scripts, cut_off="writers"),
    "writers half-open": Fault(half_open, cut_off="writers"),
    "failover and failback": Fault(fail_over_and_back, where="pair", options={"repl_diskless_sync_delay": 0}),
    "failover": Fault(fail_over, where="cluster"),
    "slot resharded": Fault(reshard, where="cluster", apart=True),
    "slot migrated atomically": Fault(migrate_atomically, where="cluster", apart=True),
    "clock steps": Fault(steps=True),
}


def _server(scene: Scene) -> Server:
    assert scene.server is not None
    return scene.server


def _proxy(scene: Scene) -> Proxy:
    assert scene.proxy is not None
    return scene.proxy
