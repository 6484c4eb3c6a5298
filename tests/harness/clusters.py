"""A real cluster with replicas on loopback: formed, resharded, failed over and back, and robbed of its primaries.

By commands alone, since the wheel that brings the server brings no command-line client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from tests.harness.binaries import Kind
from tests.harness.servers import HOST, Deployment, Server, free_port, wait_until

SLOTS = 16384
TOGETHER = 10  # keys of one MIGRATE, as many as `redis-cli --cluster reshard` moves at a time


class Node(Server):
    """A server in cluster mode. It keeps its place in the cluster over a restart."""

    bus_port = 0

    def choose_ports(self) -> None:
        super().choose_ports()
        self.bus_port = free_port()  # the default, port + 10,000, is as often no port at all

    def settings(self) -> dict[str, object]:
        return super().settings() | {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-config-file": "nodes.conf",
            "cluster-replica-validity-factor": 0,  # whatever a test did to the link: a replica may take over
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }

    @property
    def id(self) -> str:
        """What the others call it."""
        return str(self.command("CLUSTER", "MYID"))

    def cluster_info(self) -> dict[str, str]:
        """How it sees the cluster."""
        return dict(line.split(":", 1) for line in self.command("CLUSTER", "INFO").split())

    @property
    def is_primary(self) -> bool:
        """Whether it takes writes, as far as it knows."""
        return bool(self.info("replication")["role"] == "master")


class Cluster(Deployment):
    """Primaries that share the slots evenly, each with replicas.

    Attributes:
        nodes: all of them, primaries of the start first.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.nodes = tuple(nodes)

    @classmethod
    def start(
        cls,
        primaries: int = 3,
        replicas: int = 1,
        *,
        kind: Kind = "valkey",
        folder: Path | None = None,
        node_timeout: float = 2.0,
        **options: object,
    ) -> Self:
        """Start one, and return when every node says that all is well.

        Args:
            primaries: at least three, or none of them can be replaced when it dies.
            replicas: of each primary.
            node_timeout: seconds of silence after which the others call a node dead.
            options: of every node, as for `Server.start`.
        """
        given = {"cluster_node_timeout": int(node_timeout * 1000), **options}
        with ExitStack() as undo:
            nodes = []
            for _ in range(primaries * (1 + replicas)):
                nodes.append(Node.start(kind, folder=folder, **given))
                undo.callback(nodes[-1].stop)
            cluster = cls(nodes)
            cluster._form(nodes[:primaries], nodes[primaries:])
            undo.pop_all()
        return cluster

    def _form(self, primaries: Sequence[Node], replicas: Sequence[Node]) -> None:
        bounds = [SLOTS * each // len(primaries) for each in range(len(primaries) + 1)]
        for epoch, (node, (first, behind)) in enumerate(zip(primaries, itertools.pairwise(bounds), strict=True), 1):
            node.command("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        meeting = self.nodes[0]
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", HOST, meeting.port, meeting.bus_port)
        everyone = {node.id for node in self.nodes}
        for node in self.nodes:
            wait_until("all nodes know each other", partial(_knows, node, everyone))
        for number, node in enumerate(replicas):
            node.command("CLUSTER", "REPLICATE", primaries[number % len(primaries)].id)
        self.wait_until_ok()

    # What it is

    @property
    def url(self) -> str:
        """Of a node that runs: a client finds the others from there."""
        return next(node.url for node in self.nodes if node.is_running)

    @property
    def primaries(self) -> list[Node]:
        """Those that have slots now."""
        return [node for node in self._running() if node.is_primary]

    def replicas_of(self, primary: Node) -> list[Node]:
        """Those that copy it now."""
        found = [node for node in self._running() if not node.is_primary]
        return [node for node in found if node.info("replication")["master_port"] == primary.port]

    def primary_for(self, key: str) -> Node:
        """The node that answers for a key now."""
        return self._owner(slot_of(key))

    def another_than(self, node: Node) -> Node:
        """A primary that is not this one."""
        return next(each for each in self.primaries if each is not node)

    def _owner(self, slot: int) -> Node:
        for first, last, ports in _slots(next(self._running())):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == ports[0])
        raise LookupError(f"nobody has slot {slot}")

    def _running(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.is_running)

    # What happens to it

    def wait_until_ok(self) -> None:
        """Wait until every running node agrees about who has which slots, and replicas have caught up."""
        wait_until("the cluster is whole", self._is_ok)

    def _is_ok(self) -> bool:
        views, running = [], list(self._running())
        for node in running:
            info, replication = node.cluster_info(), node.info("replication")
            if info["cluster_state"] != "ok" or int(info["cluster_slots_ok"]) != SLOTS:
                return False
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                return False
            views.append(sorted(_slots(node)))
        serving = {port for _, _, ports in views[0] for port in ports}
        return all(view == views[0] for view in views) and serving >= {node.port for node in running}

    def failover(self, primary: Node, *, force: bool = False) -> Node:
        """Have a replica take over, and return it when all know. Neither loses writes unless `force`.

        Args:
            primary: it becomes a replica; call this with the new one to fail back.
            force: without asking the primary, as if it were dead: what it acknowledged last may be lost.
        """
        heir = self.replicas_of(primary)[0]
        heir.command("CLUSTER", "FAILOVER", *(["FORCE"] if force else []))
        wait_until("the replica has taken over", lambda: heir.is_primary)
        wait_until("the old primary follows", lambda: not primary.is_running or not primary.is_primary)
        self.wait_until_ok()
        return heir

    def move_slot(self, slot: int, target: Node) -> Iterator[int]:
        """Move a slot as `redis-cli --cluster reshard` does, and yield the number of keys after each batch of them.

        The slot is open until the iterator has ended. One that is closed before leaves it open.
        """
        source = self._owner(slot)
        with source.client() as at_source, target.client() as at_target:
            at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
            at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
            moved = 0
            yield moved
            while keys := at_source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, TOGETHER):
                # A key that has expired meanwhile is not there any more: NOKEY.
                at_source.execute_command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
                moved += len(keys)
                yield moved
        for node in (target, source, *(each for each in self.primaries if each not in (source, target))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def keep_slot(self, slot: int, target: Node) -> None:
        """Give up a move that has begun, before any key of the slot has moved."""
        for node in (target, self._owner(slot)):
            node.command("CLUSTER", "SETSLOT", slot, "STABLE")

    def move_slot_atomically(self, slot: int, target: Node) -> None:
        """Have a server move a slot by itself (Valkey 9 and later), and return when the other one has it."""
        source = self._owner(slot)
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        wait_until("the slot has moved", lambda: self._owner(slot) is target)


def slot_of(key: str) -> int:
    """The slot of a key."""
    from redis.crc import key_slot

    return key_slot(key.encode())


def _knows(node: Node, everyone: set[str]) -> bool:
    """Whether a node has shaken hands with all of these ids."""
    lines = [line.split() for line in node.command("CLUSTER", "NODES").splitlines()]
    return {words[0] for words in lines if "handshake" not in words[2]} >= everyone


def _slots(node: Node) -> list[tuple[int, int, list[int]]]:
    """(first slot, last slot, ports of the primary and then its replicas) of each range, as a node sees it."""
    said = node.command("CLUSTER", "SLOTS")
    return [(first, last, [primary[1], *sorted(each[1] for each in rest)]) for first, last, primary, *rest in said]
