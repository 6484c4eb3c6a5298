"""Puts the seams into the client libraries while a recording with HTTP is open, and takes them out after the last.

A seam replaces one method of a class of a library through which every request passes. The context decides in each call
whether the request concerns a recording, so clients that were made before, and tasks outside of the recording, need
nothing. The libraries that are installed are imported for it.

What the seams do not know, such as WebSockets or bare http.client, would run live in a replay, and miss in a recording.
`install_guard` refuses it in strict recordings and replays that ask for it by ``Http(guard=True)``.
"""

from __future__ import annotations

import functools
import importlib
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agent_cache.at_fork import lock_of
from agent_cache.engine.scope import PLACE
from agent_cache.recording.http import aiohttp_seam, http_client_seams, httpx_seam
from agent_cache.recording.http.exchange import IS_CONNECTING, Patch, running_call
from agent_cache.recording.tape import Tape

_SEAMS: dict[str, Callable[[Any], list[Patch]]] = {  # by the name of the library
    "httpx": httpx_seam.patches,
    "httpx2": httpx_seam.patches,
    "aiohttp": aiohttp_seam.patches,
    "urllib3": http_client_seams.patches,
    "urllib.request": http_client_seams.patches,
}


class Seams:
    """The seams of the process, in place while at least one block has entered and not left.

    What replaces a method above ours stays. Then ours stays, too, and passes on what it is called for by another one.
    """

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._blocks = 0
        self._replaced: list[tuple[type, str, Any, Any]] = []

    def enter(self) -> None:
        """Put them in place, for one more block."""
        with self._lock:
            if not self._blocks:
                for name, patches in _SEAMS.items():
                    with suppress(Exception):  # of a library that is not installed, or broken: no program uses it
                        importlib.import_module(name)
                    for owner, attribute, make in patches(sys.modules[name]) if name in sys.modules else ():
                        original = vars(owner)[attribute]
                        setattr(owner, attribute, ours := make(original))
                        self._replaced.append((owner, attribute, original, ours))
            self._blocks += 1

    def leave(self) -> None:
        """Take them away after the last block."""
        with self._lock:
            self._blocks -= 1
            while self._replaced and not self._blocks:
                owner, attribute, original, ours = self._replaced.pop()
                if vars(owner).get(attribute) is ours:
                    setattr(owner, attribute, original)


# Connections that no seam has made


@functools.cache
def install_guard() -> None:
    """Install the audit hook (PEP 578) by which CPython tells of every connection; it cannot be removed again."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a connection, or the look-up of a host before it."""
    if event not in ("socket.connect", "socket.getaddrinfo") or IS_CONNECTING.get():
        return
    scope: Any = PLACE.get().scope
    if event == "socket.connect":
        sock, arguments = arguments
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
    host, port = arguments[:2]
    if not host:
        return
    host = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    parts = urlsplit(f"tcp://[{host}]/" if ":" in host else f"tcp://{host}/")
    while scope.hook is not None:
        tape, scope = scope.hook, scope.outside
        is_guarded = isinstance(tape, Tape) and tape.is_strict and tape.http is not None and tape.http.guard
        if is_guarded and tape.http.takes(parts) and running_call(tape) is None:
            tape.refuse_connection(f"{host}:{port}" if port else host)
