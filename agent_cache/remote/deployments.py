"""The servers that a URL or a client of the user's stands for, and the clients of redis-py that a tier makes for them.

No error text holds credentials.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from agent_cache.errors import ConfigurationError

__all__ = ["Deployment"]

_URL: Final = re.compile(
    r"rediss?://([^/?#]*@)?(\[[^]@/?#]+]|[^][@,:/?#\s]+)(:[1-9]\d*)?/*\d*/*(\?[^#]*)?|unix://([^/?#]*@)?/[^?#]+(\?[^#]*)?",
    re.IGNORECASE,
)
"""Of what it does not match, redis-py passes over something."""
_NAMES: Final = (
    ("driver_info",) if "driver_info" in inspect.signature(Redis).parameters else ("lib_name", "lib_version")
)
_BRIEF: Final[Mapping[str, Any]] = {"protocol": 2, **dict.fromkeys(_NAMES)}
"""By this a new connection asks nothing for itself before its first command."""
_KEPT: Final = frozenset({
    "db", "username", "password", "credential_provider", "client_name", "socket_keepalive", "socket_keepalive_options",
    "socket_type", *(name for name in inspect.signature(SSLConnection).parameters if name.startswith("ssl_")),
})  # fmt: skip
"""The settings of a client that the tier's have, too."""
_OWN: Final = frozenset({
    "socket_timeout", "socket_connect_timeout", "socket_read_size", "timeout", "retry_on_timeout",
    "health_check_interval", "max_connections", "decode_responses", "encoding", "encoding_errors", "protocol",
    "legacy_responses", "lib_name", "lib_version",
})  # fmt: skip
"""A tier has timeouts, retries and a protocol of its own. A URL may hold these for other clients that read it."""


class _Tls(SSLConnection):
    """Reads its certificates whenever it connects: they are replaced while programs run."""

    async def connect(self) -> None:
        self.ssl_context.context = None
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py has no types there


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers: one, the primary of a group that Sentinels watch, or a cluster."""

    names: list[str]  # their addresses, for messages
    connect: Callable[[float], Any]  # makes a client for the running event loop, given the seconds to connect

    @classmethod
    def of_url(cls, url: str, *, cluster: bool = False, options: Mapping[str, Any] | None = None) -> Deployment:
        """Read ``redis://``, ``rediss://`` or ``unix://`` the way redis-py does.

        Args:
            options: keyword arguments beside the URL, as redis-py's connections take them.

        Raises:
            ConfigurationError: if it is no such URL, or redis-py does not know a setting, or the tier has its own.
        """
        parsed: dict[str, Any] = {}
        with suppress(ValueError, TypeError, AttributeError):
            parsed = dict(parse_url(url)) if _URL.fullmatch(url.strip()) else {}
        if not parsed:  # the URL, and redis-py's text, may hold the password
            raise ConfigurationError(
                "RedisTier.from_url: the URL cannot be read: it is redis://user:password@host:6379/0 with the number "
                "of a database, rediss://... or unix:///path; in a name or password / ? # @ are quoted, as "
                "urllib.parse.quote does; Sentinels have none: use RedisTier(Sentinel(...).master_for(...))"
            )
        kind = parsed.pop("connection_class", Connection)
        if own := sorted(_OWN & (options or {}).keys()):
            raise ConfigurationError(f"RedisTier.from_url: leave out {', '.join(own)}: a tier has its own")
        settings = {**{name: value for name, value in parsed.items() if name not in _OWN}, **(options or {})}
        try:
            made = kind(**settings)  # which checks each name, and connects to nothing
            if kind is SSLConnection:
                made.ssl_context.get()  # which reads the files
            if not cluster:
                return _single(kind, settings)
            nodes = [(settings.pop("host"), settings.pop("port", 6379))]
            return _cluster(nodes, settings, is_tls=kind is SSLConnection)
        except Exception as error:
            reason = f"{error} (ssl_... are for rediss://, and name files that can be read)"
            raise ConfigurationError(f"RedisTier.from_url: redis-py refuses a setting: {reason}") from error

    @classmethod
    def of_client(cls, client: Any) -> Deployment:
        """Take over the settings of a client of `redis.asyncio`: single, Sentinel or Cluster.

        Raises:
            ConfigurationError: if it is no such client.
        """
        if isinstance(client, RedisCluster):
            nodes, settings = list(client.nodes_manager.startup_nodes.values()), _kept(client.connection_kwargs)
            is_tls = any(issubclass(node.connection_class, SSLConnection) for node in nodes)
            return _cluster([(node.host, int(node.port)) for node in nodes], settings, is_tls=is_tls)
        if not isinstance(client, Redis):
            raise ConfigurationError(
                f"RedisTier needs a client of redis.asyncio, or a URL by RedisTier.from_url; got "
                f"{type(client).__module__}.{type(client).__qualname__}"
            )
        pool: Any = client.connection_pool
        kind, given = pool.connection_class, pool.connection_kwargs
        manager = getattr(pool, "sentinel_manager", None)
        if manager is None:
            place = {name: given[name] for name in ("host", "port", "path") if name in given}
            return _single(kind, {**_kept(given), **place})
        pools = [sentinel.connection_pool for sentinel in manager.sentinels]
        seeds = [(each.connection_kwargs.get("host"), each.connection_kwargs.get("port", 26379)) for each in pools]
        own = {**_kept(pools[0].connection_kwargs), "ssl": issubclass(pools[0].connection_class, SSLConnection)}
        settings, service, is_tls = _kept(given), pool.service_name, issubclass(kind, SSLConnection)

        def connect(timeout: float) -> Any:
            limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
            sentinels = Sentinel(seeds, sentinel_kwargs={**own, **limits}, **settings, **_limits(timeout))  # type: ignore[no-untyped-call]  # redis-py has no types there
            return sentinels.master_for(service, ssl=is_tls)

        return Deployment([_name(each.connection_kwargs) for each in pools], connect)

    @staticmethod
    async def close(client: Any) -> None:
        """Close a client that a deployment has made, with those of the Sentinels that it has asked."""
        manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
        for each in (client, *(() if manager is None else manager.sentinels)):
            await each.aclose()


def _limits(timeout: float) -> dict[str, Any]:
    """The caller limits the time of each command. A connection that was used before may have been cut meanwhile."""
    return {"socket_timeout": None, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 1), **_BRIEF}


def _single(kind: Any, settings: Mapping[str, Any]) -> Deployment:
    def connect(timeout: float) -> Any:
        return Redis.from_pool(ConnectionPool(connection_class=kind, **settings, **_limits(timeout)))

    kind = _Tls if kind is SSLConnection else kind
    return Deployment([_name(settings)], connect)


def _cluster(nodes: list[tuple[str, int]], settings: Mapping[str, Any], *, is_tls: bool) -> Deployment:
    def connect(timeout: float) -> Any:
        seeds = [ClusterNode(host, port) for host, port in nodes]
        return RedisCluster(startup_nodes=seeds, ssl=is_tls, **settings, **_limits(timeout))

    connect(1.0)
    return Deployment([f"{host}:{port}" for host, port in nodes], connect)


def _name(settings: Mapping[str, Any]) -> str:
    return str(settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}")


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a client that the tier's connections are made with."""
    return {name: value for name, value in settings.items() if name in _KEPT and value is not None}
