"""One connection to each server that has keys, for commands that ask more than a tier may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agent_cache.remote.redis.connections import Deployment
from agent_cache.remote.redis.core import Core
from agent_cache.remote.redis.links import Link, into
from agent_cache.remote.redis.options import options_of
from agent_cache.remote.redis.topology import Node
from agent_cache.remote.redis.urls import of_url
from agent_cache.remote.redis.wire import ReplyError, Unreachable, pack

__all__ = ["Server", "Servers", "fields_of", "opened"]

_LIMIT = 1 << 26


class Server:
    """A connection to one server."""

    def __init__(self, node: Node, link: Link) -> None:
        self.node = node
        self._link = link

    async def ask(self, *parts: bytes) -> Any:
        """One command.

        Raises:
            ReplyError: if that is the answer.
            Unreachable: if there is none.
        """
        (reply,) = await self.ask_all([parts])
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def ask_all(self, commands: Iterable[tuple[bytes, ...]]) -> list[Any]:
        """Several commands in one trip; errors stand among the replies."""
        commands = list(commands)
        if not commands:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        packed = b"".join([pack(*parts) for parts in commands])
        self._link.send((packed, len(commands), into(future), loop.time()))
        return await future

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()

    def __repr__(self) -> str:
        return str(self.node)


class Servers:
    """All servers that have slots.

    Attributes:
        core: names, slots and scripts, as a tier has them.
        all: each of them once.
    """

    def __init__(self, core: Core, servers: dict[Node, Server]) -> None:
        self.core = core
        self.all = list(servers.values())
        self._servers = servers

    @property
    def deployment(self) -> Deployment:
        """How they are reached. A `RedisTier` takes it as well."""
        return self.core.topology.deployment

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several."""
        return self.core.topology.is_cluster

    def of(self, key: bytes) -> Server:
        """The one that has a key.

        Raises:
            Unreachable: if none has.
        """
        node = self.core.topology.of(self.core.slot(key))
        if node is None or node not in self._servers:
            raise Unreachable("a part of the slots has no server")
        return self._servers[node]

    async def connect(self, server: Server, receive: Callable[[Any], None]) -> Link:
        """One more connection, that gives what arrives to a function: for a subscription.

        Raises:
            Unreachable: if there is none.
        """
        return await Link.open(
            self.deployment, server.node.address, limit=_LIMIT, timeout=self.core.timeout, receive=receive
        )


@asynccontextmanager
async def opened(
    url: str,
    namespace: str,
    timeout: float,  # noqa: ASYNC109 - of each answer, not of all
) -> AsyncIterator[Servers]:
    """Connect to the server of a URL, and to all others if it belongs to a cluster.

    Raises:
        ConfigurationError: if the URL or the namespace cannot be one.
        Unreachable: if a server does not answer.
    """
    deployment = of_url(url, cluster=False, options={})
    options = options_of(
        namespace=namespace, max_staleness=4 * timeout, timeout=timeout, lease=10.0, remote_ttl=3600.0,
        codec=None, max_value_size=_LIMIT,
    )  # fmt: skip
    servers: dict[Node, Server] = {}
    first: Server | None = None

    async def connect(node: Node) -> Server:
        return Server(node, await Link.open(deployment, node.address, limit=_LIMIT, timeout=timeout))

    try:
        core = Core(deployment, options)
        first = await connect(core.topology.nodes[0])
        found = fields_of(await first.ask(b"INFO"))
        if "sentinel" in {found.get("redis_mode"), found.get("server_mode")}:
            raise Unreachable("this is a Sentinel; give the URL of the primary that it watches")
        if found.get("cluster_enabled") == "1":
            deployment = replace(deployment, kind="cluster")
            core = Core(deployment, options)
            await core.topology.look()
            if not core.topology.nodes:
                raise Unreachable("the cluster has no slots yet")
            for node in core.topology.nodes:
                servers[node] = await connect(node)
        else:
            servers[first.node] = first
        yield Servers(core, servers)
    finally:
        for server in {first, *servers.values()}:
            if server is not None:
                server.close()


def fields_of(info: object) -> dict[str, str]:
    """A reply to INFO as a table."""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else ""
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}
