"""Which MCP server answers, and as whom: two connections share answers only if the same is sent by both.

That is the URL with its query and user, every header, and what signs the requests; or the command, its arguments, its
environment and its directory. What cannot be read, such as an ``auth`` object or a factory of HTTP clients, may send
anything, so the connection is itself alone.
"""

from __future__ import annotations

import json
import secrets
import weakref
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

_ALONE: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()


def alone(connection: Any) -> str:
    """An identity that no other object has, in any process."""
    return _ALONE.setdefault(connection, secrets.token_hex(8))


def identity_of_sent(sent: Mapping[str, Any]) -> str:
    """A hash of what is sent."""
    text = json.dumps(sent, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def identity_of_params(params: Mapping[str, Any], owner: Any) -> str:
    """The same of the parameters of a connection by their names; `alone` of its owner, if they may send anything."""
    if params.get("auth") is not None or params.get("httpx_client_factory") is not None:
        return alone(owner)
    return identity_of_sent({name: params.get(name) for name in ("command", "args", "env", "cwd", "url", "headers")})


_HTTP: Final = frozenset({"SSETransport", "StreamableHttpTransport"})
_STDIO: Final = frozenset(f"{kind}StdioTransport" for kind in ("", "FastMCP", "Node", "Npx", "Python", "Uv", "Uvx"))


def identity_of_client(client: Any) -> str:
    """The same of a client of the SDK, where it was made of a URL or a command. A session does not show what it sends,
    nor does a transport that the user has made: it is itself alone.
    """
    server = getattr(client, "server", None)
    if isinstance(server, str):
        return identity_of_sent({"url": server})
    if type(server).__module__ == "mcp.client.stdio":
        return identity_of_sent({name: getattr(server, name) for name in ("command", "args", "env", "cwd")})
    is_of_process = type(server).__module__.startswith("mcp.server.")
    return alone(server if is_of_process else getattr(client, "session", client))


def identity_of_transport(transport: Any) -> str:
    """The same of a transport of a FastMCP client. One of a class of the user's own is itself alone."""
    kind = type(transport)
    if not kind.__module__.startswith("fastmcp.client.transports."):
        return alone(transport)
    if kind.__name__ in _STDIO:
        names = ("command", "args", "env", "cwd")
        return identity_of_sent({name: getattr(transport, name, None) for name in names})
    if kind.__name__ in _HTTP:
        auth = getattr(transport, "auth", None)
        is_bearer = f"{type(auth).__module__}.{type(auth).__name__}" == "fastmcp.client.auth.bearer.BearerAuth"
        token = getattr(auth, "token", None) if is_bearer else None
        secret = getattr(token, "get_secret_value", None)
        if transport.httpx_client_factory is None and (auth is None or secret is not None):
            signed = None if secret is None else secret()
            return identity_of_sent({"url": transport.url, "headers": transport.headers, "bearer": signed})
    server = getattr(transport, "server", None)  # in this process
    return alone(transport if server is None else server)
