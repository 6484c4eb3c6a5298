"""A server as the doctor looks at it: what it says of itself, and keys of its own that may be written."""

from __future__ import annotations

import os

from agent_cache._fleet.servers import Server, Servers, fields_of
from agent_cache.remote.redis.names import RootNames
from agent_cache.remote.redis.wire import ReplyError, Unreachable

__all__ = ["Patient"]


class Patient:
    """One server under examination.

    Attributes:
        info: all of INFO.
        root: a root that nobody uses, whose slot this server has.
        timeout: what the tiers that use it have.
    """

    def __init__(self, servers: Servers, server: Server, info: dict[str, str], timeout: float) -> None:
        self.servers = servers
        self.server = server
        self.info = info
        self.timeout = timeout
        names, serial = servers.core.names, os.urandom(6).hex()
        self.root = self._own_root(serial)
        self.value = next(
            key for n in range(1 << 16) if self._has(key := names.value(b"%012x%x" % (int(serial, 16), n)))
        )
        self.claim = next(
            key for n in range(1 << 16) if self._has(key := names.claim(b"%012x%x" % (int(serial, 16), n)))
        )
        self.heartbeat = next(filter(self._has, names.heartbeats(b"doctor-" + serial.encode())))

    @classmethod
    async def admitted(cls, servers: Servers, server: Server, timeout: float) -> Patient:  # noqa: ASYNC109 - not its own
        """Ask a server about itself."""
        return cls(servers, server, fields_of(await server.ask(b"INFO")), timeout)

    def _has(self, key: bytes) -> bool:
        return self.servers.of(key) is self.server

    def _own_root(self, serial: str) -> RootNames:
        for number in range(1 << 16):
            root = self.servers.core.names.root(f"doctor-{serial}-{number}")
            if self._has(root.s):
                return root
        raise Unreachable("the server has no slots")

    def number(self, name: str) -> int:
        """A number in INFO; 0 where it is not there."""
        text = self.info.get(name, "0")
        return int(text) if text.lstrip("-").isdigit() else 0

    async def setting(self, name: str) -> str | None:
        """One setting; None if we may not ask, or there is none."""
        try:
            reply = await self.server.ask(b"CONFIG", b"GET", name.encode())
        except ReplyError:
            return None
        return str(reply[1].decode()) if len(reply) > 1 else None

    async def clean_up(self) -> None:
        """Delete what was written. What may not be deleted expires."""
        keys = (self.root.s, self.root.d, self.root.registry, self.value, self.claim, self.heartbeat)
        await self.server.ask_all([(b"DEL", key) for key in keys])
