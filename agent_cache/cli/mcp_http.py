"""The part of `agent-cache mcp` that has to do with a server of Streamable HTTP. It needs the extra ``mcp-http``."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import string
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from agent_cache import ConfigurationError
from agent_cache.relay import stdio
from agent_cache.relay.relay import Relay

try:
    from agent_cache.relay import http_link, http_transport
    from agent_cache.relay.streamable_http import Headers, Upstream, identity_of
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'--url needs {error.name}: pip install "agent-cache[mcp-http]"', name=error.name
    ) from error

__all__ = ["connected", "loop_factory", "relayed"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop of a relay that listens. None stands for asyncio's own, as on Windows."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def connected(options: argparse.Namespace) -> AbstractAsyncContextManager[Any]:
    """A connection to the server that is only asked what it has."""
    return http_link.connected(Upstream(options.url), _headers(options.header))


async def relayed(relay: Relay, options: argparse.Namespace) -> int:
    """Relay between a host and a server of Streamable HTTP, and return the exit code.

    Raises:
        ConfigurationError: if an option is malformed.
        OSError: if an address cannot be bound.
    """
    upstream, headers = Upstream(options.url), _headers(options.header)
    try:
        if options.listen is None:

            def connect(on_line: Any, on_lost: Any) -> http_link.HttpServer:
                return http_link.HttpServer(
                    upstream, headers=headers, on_line=on_line, on_lost=on_lost, schema_of=relay.schema_of
                )

            who = identity_of(headers, url=str(upstream.url))  # a tier may be shared with the processes of others
            return await stdio.serve(relay, connect, vary=who, reads_in_thread=options.stdin_in_thread)
        host, port = http_transport.address_of(options.listen)
        is_local = http_transport.is_loopback(host)
        if not is_local:
            _say(f"{host} can be reached from other machines, and whoever reaches it uses the server and the cache")
        listener = http_transport.HttpListener(
            relay,
            upstream,
            headers=headers,
            vary_by=options.vary_header,
            is_local=is_local,
            origins=options.allow_origin,
        )
        async with relay:
            await http_transport.listen(listener, (host, port), lambda url: _say(f"{url} relays to {upstream.name}"))
        return 0
    finally:
        await upstream.aclose()


def _say(text: str) -> None:
    print(f"agent-cache mcp: {text}", file=sys.stderr, flush=True)


def _headers(texts: list[str]) -> Headers:
    """The headers that ``--header`` gives.

    Raises:
        ConfigurationError: for a header without name, or an unknown variable. The value is not shown.
    """
    found = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _TOKEN.fullmatch(name.strip()):
            raise ConfigurationError("--header: write NAME:VALUE, as in --header 'Authorization: Bearer ${TOKEN}'")
        try:
            filled = string.Template(value.strip()).substitute(os.environ)
            found.append((name.strip().lower().encode(), filled.encode("latin-1")))
        except KeyError as error:
            raise ConfigurationError(f"--header: the environment has no variable {error}") from None
        except ValueError:
            raise ConfigurationError(
                f"--header: the value of {name.strip()} has a $ that names no variable (write $$ for a $), or a letter "
                "that headers cannot have"
            ) from None
    return found
