"""Where the servers are and how one connects to them, taken over from a client of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from agent_cache.errors import ConfigurationError

__all__ = ["KEPT", "KEPT_FOR_TLS", "Address", "Deployment", "address_of", "kept", "of_client", "transport_of"]

Address = tuple[str, int]
"""Host and port; of a unix socket, its path and 0."""

KEPT = frozenset({
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name",
    "socket_keepalive", "socket_keepalive_options", "socket_type",
})  # fmt: skip
KEPT_FOR_TLS = frozenset(name for name in inspect.signature(SSLConnection).parameters if name.startswith("ssl_"))


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers of one kind, and the settings that every connection to them is made with.

    Attributes:
        kind: one server, one of a group that Sentinels watch, or a cluster.
        settings: what redis-py's connections take: credentials, TLS, database. Never a timeout or a retry: those are
            the tier's own.
        seeds: where to begin: the server, the Sentinels, or some nodes of the cluster.
        service: name of the group, for Sentinels.
        sentinel_settings: as `settings`, for connections to the Sentinels themselves.
    """

    kind: Literal["single", "sentinel", "cluster"]
    settings: Mapping[str, Any]
    seeds: tuple[Address, ...]
    transport: Literal["tcp", "tls", "unix"] = "tcp"
    service: str = ""
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict)
    sentinel_transport: Literal["tcp", "tls", "unix"] = "tcp"

    def connection(
        self,
        address: Address,
        timeout: float,
        *,
        to_sentinel: bool = False,
        log_in: Callable[[Any], Awaitable[None]] | None = None,
    ) -> Any:
        """A connection of redis-py's, not opened yet: without retries and health checks, since its user has its own.

        Args:
            log_in: an ``async def`` that is given the connection once it stands, and calls its ``on_connect``.
        """
        settings = dict(self.sentinel_settings if to_sentinel else self.settings)
        transport = self.sentinel_transport if to_sentinel else self.transport
        settings |= {"path": address[0]} if transport == "unix" else {"host": address[0], "port": address[1]}
        kinds: dict[str, Any] = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        return kinds[transport](
            **settings,
            protocol=2,
            redis_connect_func=log_in,
            socket_timeout=None,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            retry_on_timeout=False,
            health_check_interval=0,
        )


def of_client(client: Any) -> Deployment:
    """Take over the settings of a client of redis-py's or of valkey-py's: single, Sentinel or Cluster, async or not.

    Raises:
        ConfigurationError: if it is none.
    """
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        settings = dict(getattr(client, "connection_kwargs", None) or getattr(manager, "connection_kwargs", {}))
        nodes = list(manager.startup_nodes.values())
        kinds = [getattr(node, "connection_class", None) for node in nodes] + [settings.get("connection_class")]
        is_tls = settings.get("ssl") or any(kind is not None and transport_of(kind) == "tls" for kind in kinds)
        seeds = tuple((str(node.host), int(node.port)) for node in nodes)
        return Deployment("cluster", kept(settings), seeds, "tls" if is_tls else "tcp")
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise ConfigurationError(
            f"RedisTier needs a client of redis-py or valkey-py, or a URL by RedisTier.from_url; got "
            f"{type(client).__qualname__}"
        )
    settings, transport = dict(pool.connection_kwargs), transport_of(pool.connection_class)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return Deployment("single", kept(settings), (address_of(settings, transport),), transport)
    sentinels = [sentinel.connection_pool for sentinel in manager.sentinels]
    return Deployment(
        "sentinel",
        kept(settings),
        tuple(address_of(one.connection_kwargs, "tcp") for one in sentinels),
        transport,
        service=pool.service_name,
        sentinel_settings=kept(sentinels[0].connection_kwargs),
        sentinel_transport=transport_of(sentinels[0].connection_class),
    )


def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client that a connection of the tier's is made with.

    Raises:
        ConfigurationError: if the client demands a check that the tier's connections cannot make. Those of a
            synchronous client know more about TLS.
    """
    lost = [name for name in settings if name.startswith("ssl_") and name not in KEPT_FOR_TLS and settings[name]]
    if lost:
        raise ConfigurationError(
            f"RedisTier: {', '.join(lost)} of the client would be ignored: connections of redis.asyncio cannot do it; "
            "leave it out if you can do without"
        )
    names = (KEPT | KEPT_FOR_TLS) - {"host", "port", "path"}
    return {name: value for name, value in settings.items() if name in names and value is not None}


def address_of(settings: Mapping[str, Any], transport: str) -> Address:
    """Where these settings lead."""
    if transport == "unix":
        return str(settings.get("path", "")), 0
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))


def transport_of(kind: Any) -> Literal["tcp", "tls", "unix"]:
    """What connections of a class go over, or of one that it is derived from.

    Raises:
        ConfigurationError: if that cannot be told: a guess might send a password in clear.
    """
    # By name: a synchronous client's classes are others, and so are valkey-py's.
    names = {base.__name__ for base in getattr(kind, "__mro__", ())}
    if "SSLConnection" in names:
        return "tls"
    if "UnixDomainSocketConnection" in names:
        return "unix"
    if "Connection" in names:
        return "tcp"
    raise ConfigurationError(
        f"RedisTier: {getattr(kind, '__qualname__', kind)} is none of redis-py's or valkey-py's connections, so it "
        "cannot be told whether it uses TLS; give a URL to RedisTier.from_url"
    )
