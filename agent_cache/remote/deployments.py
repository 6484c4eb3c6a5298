"""The servers that a URL or a client of the user's stands for, and the clients of redis-py that a tier makes for them.

Every word of a URL or a keyword argument takes effect, is refused, or is on the list of those that are ignored. No
error text holds credentials.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from agent_cache.errors import ConfigurationError

__all__ = ["TIER_OPTIONS", "Deployment", "close_client", "deployment_of_client", "deployment_of_url"]

_CONNECTIONS = 16
"""Of each event loop: lookups of one moment share one command, and writes have one each."""
_PLACE = frozenset({"host", "port", "path"})
_KEPT = frozenset({
    "db", "username", "password", "credential_provider", "client_name", "socket_keepalive", "socket_keepalive_options",
    "socket_type", *(name for name in inspect.signature(SSLConnection).parameters if name.startswith("ssl_")),
})  # fmt: skip
# A URL may hold these for other clients that read it as well. A tier has timeouts, retries and a protocol of its own.
_IGNORED = frozenset({
    "socket_timeout", "socket_connect_timeout", "socket_read_size", "timeout", "retry_on_timeout",
    "health_check_interval", "max_connections", "decode_responses", "encoding", "encoding_errors", "protocol",
    "legacy_responses", "lib_name", "lib_version",
})  # fmt: skip
TIER_OPTIONS = frozenset({"namespace", "max_staleness", "timeout", "lease", "remote_ttl", "codec", "max_value_size"})
"""The options of `RedisTier`."""

_CLASSES = {"tls": SSLConnection, "unix": UnixDomainSocketConnection, "tcp": Connection}
_Wire = Literal["tcp", "tls", "unix"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers of one kind, and the settings of every connection to them.

    Attributes:
        kind: one server, the primary of a group that Sentinels watch, or a cluster.
        settings: as redis-py names them: credentials, TLS, database. Never a timeout or a retry: those are the tier's.
        seeds: host and port of the server, of the Sentinels, or of some nodes; of a unix socket, its path and 0.
        service: name of the group, for Sentinels.
        sentinel_settings, sentinel_transport: the same for connections to the Sentinels themselves.
    """

    kind: Literal["single", "sentinel", "cluster"]
    settings: Mapping[str, Any]
    seeds: tuple[tuple[str, int], ...]
    transport: _Wire = "tcp"
    service: str = ""
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict)
    sentinel_transport: _Wire = "tcp"

    @property
    def names(self) -> list[str]:
        """The seeds as texts."""
        return [f"{host}:{port}" if port else host for host, port in self.seeds]

    def connect(self, timeout: float) -> Any:
        """A client for the running event loop.

        Args:
            timeout: seconds to connect. The caller limits the time of each command.
        """
        options = dict(self.settings) | {"socket_timeout": None, "socket_connect_timeout": timeout}
        options["retry"] = Retry(NoBackoff(), 1)  # a connection that was used before may have been cut meanwhile
        if self.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in self.seeds]
            known = inspect.signature(RedisCluster.__init__).parameters.keys() - {"db"}
            own = {name: value for name, value in options.items() if name in known}
            return RedisCluster(startup_nodes=nodes, ssl=self.transport == "tls", **own)
        if self.kind == "sentinel":
            own = dict(self.sentinel_settings) | {"socket_timeout": timeout, "socket_connect_timeout": timeout}
            own |= {"ssl": self.sentinel_transport == "tls", "retry": Retry(NoBackoff(), 0)}
            sentinels = Sentinel(list(self.seeds), sentinel_kwargs=own, **options)  # type: ignore[no-untyped-call]  # redis-py has no types there
            return sentinels.master_for(self.service, ssl=self.transport == "tls")
        ((host, port),) = self.seeds
        options |= {"path": host} if self.transport == "unix" else {"host": host, "port": port}
        kind: Any = _CLASSES[self.transport]
        return Redis.from_pool(
            BlockingConnectionPool(connection_class=kind, timeout=timeout, max_connections=_CONNECTIONS, **options)
        )


async def close_client(client: Any) -> None:
    """Close a client that `Deployment.connect` has made, with those of the Sentinels that it has asked."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for each in (client, *(() if manager is None else manager.sentinels)):
        await each.aclose()


def deployment_of_client(client: Any) -> Deployment:
    """Take over the settings of a client of redis-py or valkey-py: single, Sentinel or Cluster, async or not.

    Raises:
        ConfigurationError: if it is no such client.
    """
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        settings = dict(getattr(client, "connection_kwargs", None) or getattr(manager, "connection_kwargs", {}))
        nodes = list(manager.startup_nodes.values())
        classes = [getattr(node, "connection_class", None) for node in nodes] + [settings.get("connection_class")]
        is_tls = settings.get("ssl") or any(each is not None and _transport_of(each) == "tls" for each in classes)
        seeds = tuple((str(node.host), int(node.port)) for node in nodes)
        return Deployment("cluster", _kept(settings), seeds, "tls" if is_tls else "tcp")
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise ConfigurationError(
            f"RedisTier needs a client of redis-py or valkey-py, or a URL by RedisTier.from_url; got "
            f"{type(client).__qualname__}"
        )
    settings, transport = dict(pool.connection_kwargs), _transport_of(pool.connection_class)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return Deployment("single", _kept(settings), (_address(settings, transport),), transport)
    pools = [sentinel.connection_pool for sentinel in manager.sentinels]
    return Deployment(
        "sentinel",
        _kept(settings),
        tuple(_address(each.connection_kwargs, "tcp") for each in pools),
        transport,
        service=pool.service_name,
        sentinel_settings=_kept(pools[0].connection_kwargs),
        sentinel_transport=_transport_of(pools[0].connection_class),
    )


def deployment_of_url(url: str, *, cluster: bool, options: Mapping[str, Any]) -> Deployment:
    """Read ``redis://``, ``rediss://`` or ``unix://`` the way redis-py does.

    Args:
        options: keyword arguments beside the URL, as redis-py's connections take them.

    Raises:
        ConfigurationError: if it is no such URL, or anything in it or among the options would have no effect.
    """
    try:
        parsed: dict[str, Any] = dict(parse_url(url))
    except (ValueError, TypeError, AttributeError):
        parsed = {}
    # What a URL names no server by: a password with / ? # or @ in it ends its host too early.
    if not parsed.keys() & _PLACE or "@" in str(parsed.get("host", "")) or "#" in url:
        raise ConfigurationError(  # the URL, and redis-py's text, may hold the password
            "RedisTier.from_url: the URL cannot be read: it is redis://user:password@host:6379/0, rediss://... or "
            "unix://path; the characters / ? # @ in a user name or a password are quoted, as urllib.parse.quote does"
        ) from None
    transport = _transport_of(parsed.pop("connection_class", Connection))
    unknown = sorted((parsed.keys() - _IGNORED | options.keys()) - _KEPT - _PLACE)
    if transport != "tls":
        unknown += sorted(name for name in {*parsed, *options} if name.startswith("ssl_") and name in _KEPT)
    if unknown:
        raise ConfigurationError(
            f"RedisTier.from_url: {', '.join(map(repr, unknown))} would have no effect; a tier has timeouts and "
            "retries of its own, and TLS begins with rediss://"
        )
    settings = {**parsed, **options}
    if cluster and (transport == "unix" or settings.get("db")):
        raise ConfigurationError("RedisTier.from_url: a cluster has no unix socket, and no database but 0")
    return Deployment("cluster" if cluster else "single", _kept(settings), (_address(settings, transport),), transport)


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a client that the tier's connections are made with.

    Raises:
        ConfigurationError: if the client demands a check of certificates that the tier cannot make: the settings of a
            synchronous client know more of them than those of redis.asyncio.
    """
    lost = [name for name in settings if name.startswith("ssl_") and name not in _KEPT and settings[name]]
    if lost:
        raise ConfigurationError(
            f"RedisTier: {', '.join(lost)} of the client would be ignored: connections of redis.asyncio cannot do it; "
            "leave it out if you can do without"
        )
    return {name: value for name, value in settings.items() if name in _KEPT and value is not None}


def _address(settings: Mapping[str, Any], transport: str) -> tuple[str, int]:
    if transport == "unix":
        return str(settings.get("path", "")), 0
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))


def _transport_of(connection_class: Any) -> _Wire:
    """The transport of a class of connections, or of the one it is derived from.

    Raises:
        ConfigurationError: if that is unknown: a guess might send a password in clear.
    """
    # By name: a synchronous client's classes are others, and so are valkey-py's.
    names = {base.__name__ for base in getattr(connection_class, "__mro__", ())}
    found: dict[str, _Wire] = {"SSLConnection": "tls", "UnixDomainSocketConnection": "unix", "Connection": "tcp"}
    for name, transport in found.items():
        if name in names:
            return transport
    raise ConfigurationError(
        f"RedisTier: {getattr(connection_class, '__qualname__', connection_class)} is none of redis-py's or "
        "valkey-py's connections, so it is unknown whether it uses TLS; give a URL to RedisTier.from_url"
    )
