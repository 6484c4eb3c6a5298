"""The servers that a URL or a client of the user's stands for, and the clients of redis-py that a tier makes for them.

Every word of a URL or a keyword argument takes effect, is refused, or is on the list of those that are ignored. No
error text holds credentials.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from agent_cache.errors import ConfigurationError

__all__ = ["TIER_OPTIONS", "Address", "Deployment", "deployment_of_client", "deployment_of_url"]

_CONNECTIONS = 16
"""Of each event loop: lookups of one moment share one command, and writes have one each."""
_SCHEMES = ("redis", "rediss", "unix")
_KEPT = frozenset({
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name",
    "socket_keepalive", "socket_keepalive_options", "socket_type",
})  # fmt: skip
_KEPT_FOR_TLS = frozenset(name for name in inspect.signature(SSLConnection).parameters if name.startswith("ssl_"))
# A URL may hold these for other clients that read it as well. A tier has timeouts, retries and a protocol of its own.
_IGNORED = frozenset({
    "socket_timeout", "socket_connect_timeout", "socket_read_size", "timeout", "retry_on_timeout",
    "health_check_interval", "max_connections", "decode_responses", "encoding", "encoding_errors", "protocol",
    "legacy_responses", "lib_name", "lib_version",
})  # fmt: skip
TIER_OPTIONS = frozenset({"namespace", "max_staleness", "timeout", "lease", "remote_ttl", "codec", "max_value_size"})
"""The options of `RedisTier`."""

Address = tuple[str, int]
"""Host and port; of a unix socket, its path and 0."""

Wire = Literal["tcp", "tls", "unix"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers of one kind, and the settings of every connection to them.

    Attributes:
        kind: one server, the primary of a group that Sentinels watch, or a cluster.
        settings: as redis-py names them: credentials, TLS, database. Never a timeout or a retry: those are the tier's.
        seeds: addresses to begin with: the server, the Sentinels, or some nodes of the cluster.
        service: name of the group, for Sentinels.
        sentinel_settings, sentinel_transport: the same for connections to the Sentinels themselves.
    """

    kind: Literal["single", "sentinel", "cluster"]
    settings: Mapping[str, Any]
    seeds: tuple[Address, ...]
    transport: Wire = "tcp"
    service: str = ""
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict)
    sentinel_transport: Wire = "tcp"

    def connect(self, timeout: float) -> Any:
        """A client for the running event loop.

        Args:
            timeout: seconds to connect. The caller limits the time of each command.
        """
        options = dict(self.settings) | {"socket_timeout": None, "socket_connect_timeout": timeout}
        if self.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in self.seeds]
            return RedisCluster(
                startup_nodes=nodes, ssl=self.transport == "tls", retry=Retry(NoBackoff(), 1), **_for_cluster(options)
            )
        options["retry"] = Retry(NoBackoff(), 1)  # a connection that was used before may have been cut meanwhile
        if self.kind == "sentinel":
            own = dict(self.sentinel_settings) | {"socket_timeout": timeout, "socket_connect_timeout": timeout}
            own["ssl"] = self.sentinel_transport == "tls"
            own["retry"] = Retry(NoBackoff(), 0)
            sentinels = Sentinel(list(self.seeds), sentinel_kwargs=own, **options)  # type: ignore[no-untyped-call]  # redis-py has no types there
            return sentinels.master_for(self.service, ssl=self.transport == "tls")
        ((host, port),) = self.seeds
        where: dict[str, Any] = {"path": host} if self.transport == "unix" else {"host": host, "port": port}
        kind = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}[self.transport]
        pool = BlockingConnectionPool(
            connection_class=kind, timeout=timeout, max_connections=_CONNECTIONS, **where, **options
        )
        return Redis.from_pool(pool)


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
    sentinels = [sentinel.connection_pool for sentinel in manager.sentinels]
    return Deployment(
        "sentinel",
        _kept(settings),
        tuple(_address(each.connection_kwargs, "tcp") for each in sentinels),
        transport,
        service=pool.service_name,
        sentinel_settings=_kept(sentinels[0].connection_kwargs),
        sentinel_transport=_transport_of(sentinels[0].connection_class),
    )


def deployment_of_url(url: str, *, cluster: bool, options: Mapping[str, Any]) -> Deployment:
    """Read ``redis://``, ``rediss://`` or ``unix://`` the way redis-py does.

    Args:
        options: keyword arguments beside the URL, as redis-py's connections take them.

    Raises:
        ConfigurationError: if it is no such URL, or anything in it or among the options would have no effect.
    """
    parsed = _parse_url(url)
    _refuse_unknown(parsed.keys() - _IGNORED - {"connection_class"}, "in the URL")
    _refuse_unknown(options.keys() - {"ssl"}, "an option")
    transport = _transport_of(parsed.get("connection_class", Connection))
    wants_tls = options.get("ssl", transport == "tls")
    if not isinstance(wants_tls, bool) or (transport != "tcp" and wants_tls != (transport == "tls")):
        raise ConfigurationError("RedisTier.from_url: ssl= must be True or False, and agree with the URL")
    if wants_tls:
        transport = "tls"
    settings = {**parsed, **options}
    if transport != "tls" and (names := sorted(settings.keys() & _KEPT_FOR_TLS)):
        raise ConfigurationError(f"RedisTier.from_url: {', '.join(names)} without TLS: use rediss:// or ssl=True")
    if cluster and transport == "unix":
        raise ConfigurationError("RedisTier.from_url: a cluster is not reached through a unix socket")
    if cluster and settings.get("db"):
        raise ConfigurationError("RedisTier.from_url: a cluster has no database but 0; leave it out of the URL")
    kind: Literal["single", "cluster"] = "cluster" if cluster else "single"
    return Deployment(kind, _kept(settings), (_address(settings, transport),), transport)


def _for_cluster(options: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(RedisCluster.__init__).parameters
    return {name: value for name, value in options.items() if name in known and name != "db"}


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a client that the tier's connections are made with.

    Raises:
        ConfigurationError: if the client demands a check of certificates that the tier cannot make: the settings of a
            synchronous client know more of them than those of redis.asyncio.
    """
    lost = [name for name in settings if name.startswith("ssl_") and name not in _KEPT_FOR_TLS and settings[name]]
    if lost:
        raise ConfigurationError(
            f"RedisTier: {', '.join(lost)} of the client would be ignored: connections of redis.asyncio cannot do it; "
            "leave it out if you can do without"
        )
    names = (_KEPT | _KEPT_FOR_TLS) - {"host", "port", "path"}
    return {name: value for name, value in settings.items() if name in names and value is not None}


def _address(settings: Mapping[str, Any], transport: str) -> Address:
    if transport == "unix":
        return str(settings.get("path", "")), 0
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))


def _transport_of(connection_class: Any) -> Wire:
    """The transport of a class of connections, or of the one it is derived from.

    Raises:
        ConfigurationError: if that is unknown: a guess might send a password in clear.
    """
    # By name: a synchronous client's classes are others, and so are valkey-py's.
    names = {base.__name__ for base in getattr(connection_class, "__mro__", ())}
    if "SSLConnection" in names:
        return "tls"
    if "UnixDomainSocketConnection" in names:
        return "unix"
    if "Connection" in names:
        return "tcp"
    raise ConfigurationError(
        f"RedisTier: {getattr(connection_class, '__qualname__', connection_class)} is none of redis-py's or "
        "valkey-py's connections, so it is unknown whether it uses TLS; give a URL to RedisTier.from_url"
    )


def _parse_url(url: object) -> dict[str, Any]:
    reason = _reason_unreadable(url) if isinstance(url, str) else "it is no text"
    if not reason:
        try:
            return dict(parse_url(str(url)))
        except (ValueError, TypeError, AttributeError):  # its text may hold the password
            reason = "it is no URL of a server"
    raise ConfigurationError(f"RedisTier.from_url: {_without_secrets(url)} cannot be read: {reason}")


def _reason_unreadable(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon or scheme not in _SCHEMES:
        return "it must begin with redis://, rediss:// or unix://"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its host is malformed"
    if ("@" in parts.path and scheme != "unix") or parts.fragment:
        return "the characters / ? # @ in a user name or a password must be quoted, as urllib.parse.quote does"
    try:
        _ = parts.port
    except ValueError:
        return "the port must be a number up to 65535, and / ? # in a password must be quoted"
    if scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", parts.path):
        return "the database must be a number"
    for name, (value, *_more) in parse_qs(parts.query).items():
        parser = URL_QUERY_ARGUMENT_PARSERS.get(name)
        try:
            if parser is not None:
                parser(value)
        except (TypeError, ValueError):
            return f"the value of {name} is malformed"
    return ""


def _without_secrets(url: object) -> str:
    """Scheme and host, as far as they are certain not to be a part of a password."""
    found = re.match(r"(rediss?)://(?:[^/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+)?[^@]*\Z", str(url))
    if found is None or not found[2]:
        return "the URL"
    return f"{found[1]}://{found[2]}"


def _refuse_unknown(names: set[str], place: str) -> None:
    for name in sorted(names - _KEPT - _KEPT_FOR_TLS):
        if name in _IGNORED:
            hint = "; a tier has timeouts, retries and connections of its own"
        elif name == "ssl":
            hint = "; with TLS it begins with rediss://"
        else:
            near = get_close_matches(name, sorted(_KEPT | _KEPT_FOR_TLS | TIER_OPTIONS | {"cluster", "ssl"}), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"RedisTier.from_url: {name!r} is {place} and would have no effect{hint}")
