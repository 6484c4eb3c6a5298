"""Refuses connections that no seam has made, in strict recordings and replays that ask for it by ``Http(guard=True)``.

What the seams do not know, such as gRPC, WebSockets or bare http.client, would run live in a replay, and miss in a
recording. CPython tells of every connection by an audit hook (PEP 578). A hook cannot be removed, so there is one. It
is installed when the first guard is asked for, and looks at the context: outside of such blocks it lets all pass.
"""

from __future__ import annotations

import functools
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from agent_cache.engine.scope import PLACE
from agent_cache.recording.http.exchange import IS_CONNECTING, running_call
from agent_cache.recording.http.identity import Http
from agent_cache.recording.tape import Tape

__all__ = ["install"]

_EVENTS = frozenset({"socket.connect", "socket.getaddrinfo"})
_LIBRARIES = frozenset(
    {"agent_cache", "anyio", "asyncio", "concurrent", "http", "selectors", "socket", "ssl", "uvloop"}
)
"""Top-level modules that make connections for others."""


@functools.cache
def install() -> None:
    """Install the hook, once a process."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a connection, or the look-up of a host before it.

    Raises:
        CassetteError: if it is refused.
    """
    if event not in _EVENTS or IS_CONNECTING.get():
        return
    scope: Any = PLACE.get().scope
    if scope.interceptor is None:
        return
    if event == "socket.connect":
        if arguments[0].family not in (socket.AF_INET, socket.AF_INET6):
            return
        host, port = arguments[1][:2]
    else:
        host, port = arguments[:2]
    if not host:
        return
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    while scope.interceptor is not None:
        interceptor = scope.interceptor
        settings: Http | None = getattr(interceptor, "http", None)
        if isinstance(interceptor, Tape) and settings is not None and settings.guard and interceptor.is_strict:
            url = f"tcp://[{host}]/" if ":" in host else f"tcp://{host}/"
            if settings.takes(url, urlsplit(url)) and running_call(interceptor) is None:
                interceptor.refuse_connection(f"{host}:{port}" if port else host, _caller())
        scope = scope.outside


def _caller() -> str:
    """The module that has asked for the connection."""
    frame = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES:
            return module
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an event loop"
