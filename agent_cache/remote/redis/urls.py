"""A deployment as a URL and keyword arguments have it: every word of them counts, or is refused, or is ignored here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS, Connection, parse_url

from agent_cache.errors import ConfigurationError
from agent_cache.remote.redis.connections import KEPT, KEPT_FOR_TLS, Deployment, address_of, kept, transport_of

__all__ = ["of_url"]

_SCHEMES = ("redis", "rediss", "unix")
_IGNORED = frozenset({
    "socket_timeout", "socket_connect_timeout", "socket_read_size", "timeout", "retry_on_timeout",
    "health_check_interval", "max_connections", "decode_responses", "encoding", "encoding_errors", "protocol",
    "legacy_responses", "lib_name", "lib_version",
})  # fmt: skip
"""What a URL may say to other clients that read it as well: a tier has timeouts, retries and a protocol of its own."""
_OPTIONS = frozenset({
    "cluster", "namespace", "max_staleness", "timeout", "lease", "remote_ttl", "codec", "max_value_size", "ssl",
})  # fmt: skip


def of_url(url: str, *, cluster: bool, options: Mapping[str, Any]) -> Deployment:
    """Read ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it.

    Raises:
        ConfigurationError: if it is none of these, or anything in it or among the options has no effect. Neither
            credentials nor values are in its text.
    """
    said = _read(url)
    _check(said.keys() - _IGNORED - {"connection_class"}, "in the URL")
    _check(options.keys() - {"ssl"}, "an option")
    transport = transport_of(said.get("connection_class", Connection))
    wants_tls = options.get("ssl", transport == "tls")
    if not isinstance(wants_tls, bool) or (transport != "tcp" and wants_tls != (transport == "tls")):
        raise ConfigurationError("RedisTier.from_url: ssl= must be True or False, and agree with the URL")
    if wants_tls:
        transport = "tls"
    read = {**said, **options}
    if transport != "tls" and (names := sorted(read.keys() & KEPT_FOR_TLS)):
        raise ConfigurationError(f"RedisTier.from_url: {', '.join(names)} without TLS: use rediss:// or ssl=True")
    if cluster and transport == "unix":
        raise ConfigurationError("RedisTier.from_url: a cluster is not reached through a unix socket")
    if cluster and read.get("db"):
        raise ConfigurationError("RedisTier.from_url: a cluster has no database but 0; leave it out of the URL")
    return Deployment("cluster" if cluster else "single", kept(read), (address_of(read, transport),), transport)


def _read(url: object) -> dict[str, Any]:
    why = _why_unreadable(url) if isinstance(url, str) else "it is no text"
    if not why:
        try:
            return dict(parse_url(str(url)))
        except (ValueError, TypeError, AttributeError):  # its text may have the password in it
            why = "it is no URL of a server"
    raise ConfigurationError(f"RedisTier.from_url: {_bare(url)} cannot be read: {why}")


def _why_unreadable(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon or scheme not in _SCHEMES:
        return "it must begin with redis://, rediss:// or unix://"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its host is none"
    if ("@" in parts.path and scheme != "unix") or parts.fragment:
        return "what / ? # and @ are in a user name or a password must be quoted there, as urllib.parse.quote does"
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
            return f"the value of {name} is none that it can have"
    return ""


def _bare(url: object) -> str:
    """Scheme and host, as far as they are certain not to be a part of a password."""
    found = re.match(r"(rediss?)://(?:[^/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+)?[^@]*\Z", str(url))
    if found is None or not found[2]:
        return "the URL"
    return f"{found[1]}://{found[2]}"


def _check(names: set[str], where: str) -> None:
    for name in sorted(names - KEPT - KEPT_FOR_TLS):
        if name in _IGNORED:
            hint = "; a tier has timeouts, retries and connections of its own"
        elif name == "ssl":
            hint = "; with TLS it begins with rediss://"
        else:
            near = get_close_matches(name, sorted(KEPT | KEPT_FOR_TLS | _OPTIONS), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"RedisTier.from_url: {name!r} is {where} and would have no effect{hint}")
