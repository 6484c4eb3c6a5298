"""The ttls that were set at run time, in a hash on the server that every process of the fleet reads.

The hash has a field for each tool, ``name -> seconds``, and under the empty name a version: a random text that each
change replaces. The heartbeats to its server ask for the version, before the trust in local copies is extended. So a
process that serves local copies knows every ttl that was set up to `max_staleness` ago, whether it was started later,
was disconnected, or has missed the message that a change also publishes, which makes it known at once. Of a cluster
only one server has the hash, and its heartbeats alone extend this promise.

A change stays pending until the server has taken it. If the server has lost its data, or has evicted the hash, a
process that knows what was in it puts it back, unless another one was faster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from redis.crc import key_slot

from agent_cache.remote.redis.connection import Connection, Log, Moving, Refused, ReplyError
from agent_cache.remote.redis.keyspace import Keyspace
from agent_cache.remote.redis.scripts import RESTORE_TTLS, SET_TTLS, Script

__all__ = ["TtlHash"]

_MAX_TTLS: Final = 10_000
_MAX_NAME: Final = 1_000
_MAX_SECONDS: Final = 1e15
_AT_ONCE: Final = 500
"""Changes that are sent in one call of the script."""

Listener = Callable[[Mapping[str, float]], None]


class TtlHash:
    """The hash as this process knows it, and changes on their way to it. For any thread.

    Attributes:
        key: of the hash.
        channel: where a change is published.
        slot: of both.
        wake: called when there is something to send.
    """

    def __init__(self, keyspace: Keyspace, log: Log, script: Callable[[Script], Script]) -> None:
        root = keyspace.root(":ttl")  # no root of a tag has a colon
        self.key = root.cell(b"ttls")
        self.channel = root.channel
        self.slot = key_slot(self.key)
        self.wake: Callable[[], None] = _do_nothing
        self._log = log
        self._script = script
        self._listeners: tuple[Listener, ...] = ()
        self._known: dict[str, float] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: the parent delivers what is pending, and the next heartbeat reads the hash."""
        self._lock = threading.RLock()
        self._pending: dict[str, tuple[float | None]] = {}  # in tuples: a change is known by its identity
        self._version: bytes | None = None
        self._refused: Connection | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether the server has taken all changes that were made here, or will not."""
        return not self._pending or self._refused is not None

    def set(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool, or take it back: here at once, elsewhere as soon as the server has it."""
        with self._lock:
            self._pending[tool] = (ttl,)
            self._notify()
        self.wake()

    def follow(self, listener: Listener) -> Callable[[], None]:
        """See `SharedTtls`."""
        own = partial(listener)  # one object for each subscription
        with self._lock:
            self._listeners += (own,)
            if self._version is not None or self._pending:
                own(self._view())

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not own)

        return end

    def _view(self) -> dict[str, float]:
        view = dict(self._known)
        for tool, (ttl,) in self._pending.items():
            if ttl is None:
                view.pop(tool, None)
            else:
                view[tool] = ttl
        return view

    def _notify(self) -> None:
        view = self._view()
        for listener in self._listeners:
            try:
                listener(view)
            except Exception as error:  # noqa: BLE001 - in the thread that all depend on
                self._log.once("a listener raised", error)

    # In the thread of the tier

    def is_asked(self, commands: Connection) -> bool:
        """Whether heartbeats over a connection ask for the version: not after a refusal."""
        return self._refused is not commands

    def question(self) -> tuple[bytes, ...]:
        """The command of a heartbeat that asks for the version."""
        return b"HGET", self.key, b""

    async def exchange(self, commands: Connection, version: Any) -> None:
        """Send what is pending, and read the hash if its version is another one than before.

        Args:
            version: the reply to `question`.

        Raises:
            Unreachable: if the server does not answer.
        """
        if isinstance(version, ReplyError):
            if not version.is_redirect:
                self._refuse(commands, version)
            return
        fields: Any = None
        try:
            with self._lock:
                pending = dict(list(self._pending.items())[:_AT_ONCE])
                known = dict(self._known) if version is None and self._version is not None else None
            if known is not None:
                fields = await self._run(commands, RESTORE_TTLS, {tool: (ttl,) for tool, ttl in known.items()})
            if pending:
                fields = await self._run(commands, SET_TTLS, pending)
            elif known is None and version != self._version:
                (fields,) = await commands.request((b"HGETALL", self.key))
                if isinstance(fields, ReplyError):
                    self._refuse(commands, fields)
                    return
        except Refused as error:
            self._refuse(commands, error)
            return
        except Moving:
            return  # the next heartbeat of the server that has the slot then
        if fields is not None:
            with self._lock:
                for tool, change in pending.items():
                    if self._pending.get(tool) is change:
                        del self._pending[tool]
                found = _parsed(fields)
                self._version = found.pop(b"", b"")
                decoded = ((_text(name), _seconds(text)) for name, text in found.items())
                self._known = {tool: ttl for tool, ttl in decoded if tool and ttl is not None}
                self._notify()
        self._refused = None
        if self._pending:
            self.wake()

    async def _run(self, commands: Connection, script: Script, changes: Mapping[str, tuple[float | None]]) -> Any:
        arguments = [os.urandom(12).hex().encode(), self.channel]
        for tool, (ttl,) in changes.items():
            arguments += [tool.encode("utf-8", "surrogatepass"), b"" if ttl is None else repr(ttl).encode()]
        return await commands.run(self._script(script), [self.key], arguments)

    def _refuse(self, commands: Connection, reason: object) -> None:
        self._refused = commands
        self._log.once(
            "the server refuses the hash of ttls that are set at run time, so they stay in this process", reason
        )


def _do_nothing() -> None:
    """Wake nobody."""


def _parsed(fields: Any) -> dict[bytes, bytes]:
    """The fields of a hash, as far as they can be ours: nothing on a server is trusted."""
    if not isinstance(fields, list):
        return {}
    pairs = zip(fields[::2], fields[1::2], strict=False)
    found = {name: value for name, value in pairs if type(name) is bytes and type(value) is bytes}
    return found if len(found) <= _MAX_TTLS else {b"": found.get(b"", b"")}


def _text(name: bytes) -> str | None:
    try:
        return name.decode("utf-8", "surrogatepass") if len(name) <= _MAX_NAME else None
    except UnicodeDecodeError:
        return None


def _seconds(text: bytes) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number <= _MAX_SECONDS else None
