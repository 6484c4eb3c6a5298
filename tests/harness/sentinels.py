"""A real primary with replicas, and a sentinel that puts one of them in its place when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.harness.binaries import Kind
from tests.harness.servers import HOST, Deployment, Server, wait_until

NAME = "primary"  # what the sentinel calls what it watches: the service name that a client asks for


class Watcher(Server):
    """A server in sentinel mode."""

    def settings(self) -> dict[str, object]:
        return {name: value for name, value in super().settings().items() if name in ("bind", "port", "dir", "logfile")}

    def command_line(self) -> list[str]:
        return [*super().command_line(), "--sentinel"]


class Sentinel(Deployment):
    """One primary, its replicas, and one sentinel whose word is enough.

    Attributes:
        watcher: the sentinel itself.
        nodes: the servers that it watches.
    """

    def __init__(self, nodes: Sequence[Server], watcher: Watcher) -> None:
        super().__init__((watcher, *nodes))
        self.nodes = tuple(nodes)
        self.watcher = watcher

    @classmethod
    def start(
        cls,
        replicas: int = 1,
        *,
        kind: Kind = "valkey",
        folder: Path | None = None,
        down_after: float = 1.0,
        **options: object,
    ) -> Self:
        """Start all, and return when the sentinel knows the replicas.

        Args:
            down_after: seconds of silence after which the primary counts as dead.
            options: of the primary and the replicas, as for `Server.start`.
        """
        with ExitStack() as undo:

            def started(server: Server) -> Server:
                undo.callback(server.stop)
                return server

            given = {"repl_diskless_sync_delay": 0, **options}
            primary = started(Server.start(kind, folder=folder, **given))
            follow = {"replicaof": f"{HOST} {primary.port}"}
            nodes = [primary, *(started(Server.start(kind, folder=folder, **given, **follow)) for _ in range(replicas))]
            watch = [
                f"monitor {NAME} {HOST} {primary.port} 1",
                f"down-after-milliseconds {NAME} {int(down_after * 1000)}",
                f"failover-timeout {NAME} 10000",
            ]
            watcher = Watcher.start(kind, folder=folder, sentinel=watch)
            undo.callback(watcher.stop)
            deployment = cls(nodes, watcher)
            wait_until("the sentinel knows the replicas", deployment._knows_all)
            undo.pop_all()
        return deployment

    def _knows_all(self) -> bool:
        known = self.watcher.command("SENTINEL", "REPLICAS", NAME)
        links = [node.info("replication").get("master_link_status", "up") for node in self.nodes]
        return len(known) == len(self.nodes) - 1 and set(links) == {"up"}

    @property
    def address(self) -> tuple[str, int]:
        """Of the sentinel, for `redis.sentinel.Sentinel([address])`."""
        return HOST, self.watcher.port

    @property
    def primary(self) -> Server:
        """Whom the sentinel names."""
        _, port = self.watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return next(node for node in self.nodes if node.port == int(port))

    def kill(self) -> Server:
        """SIGKILL the primary, and return the replica that has taken over."""
        before = self.primary
        before.kill()
        return self._successor_of(before)

    def _successor_of(self, before: Server) -> Server:
        wait_until("the sentinel names another primary", lambda: self.primary is not before, patience=40)
        wait_until("the sentinel trusts it", self._trusts_primary)
        return self.primary

    def _trusts_primary(self) -> bool:
        words = self.watcher.command("SENTINEL", "MASTER", NAME)
        return bool(words[words.index("flags") + 1] == "master")
