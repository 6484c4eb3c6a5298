"""The feed of a tier: what other processes have written, in order, as it reaches this one.

Each step of a write on a tier has a number and a message. Applying the feed tells the listeners, which give what it
names a new version here. So a hit asks nothing of the tier but one question: *is the feed complete up to now?* See
`core.lease.Lease`.

The lock of the feed is that of the versions of this process: what is applied is applied in one step with them, and a
hit may ask under that lock. So applying a feed never waits for a server.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from agent_cache.clock import boottime
from agent_cache.core.versions import VERSIONS, Versions, paths_of
from agent_cache.remote.cells import Cell
from agent_cache.remote.codecs import Codec
from agent_cache.remote.protocol import Listener, Request, Touched

__all__ = ["LOST", "Feed", "Log", "Message", "News"]

LOST: Final = b"?"
"""A message that stands for everything."""
_LOG_AGAIN_AFTER: Final = 60.0
_MAX_LOGGED: Final = 1_000
_MOST_KNOWN: Final = 50_000


class Log:
    """Logs each warning once, and writes it to stderr if no logging is set up. None contains values of arguments."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._logged: dict[str, float] = {}

    def once(self, event: str, reason: object = "") -> None:
        """Log a warning, unless the same event was logged before."""
        if event not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged[event] = boottime()
            logger = logging.getLogger("agent_cache")
            text = f"{self._tier}: {event}{f' ({reason})' if reason else ''}"
            logger.warning("%s", text, extra={"agent_cache_event": event, "agent_cache_tier": self._tier})
            if not _is_heard(logger):
                with suppress(OSError, ValueError, AttributeError):  # it may be closed, full or missing
                    sys.stderr.write(f"agent_cache: {text}\n")

    def allow_again(self, event: str) -> None:
        """Let an event that has ended be logged again, at most once a minute."""
        if boottime() - self._logged.get(event, float("-inf")) > _LOG_AGAIN_AFTER:
            self._logged.pop(event, None)


def _is_heard(logger: logging.Logger | None) -> bool:
    """Whether a program has set up logging: the library's own handler writes nowhere."""
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@dataclass(frozen=True, slots=True)
class News:
    """What is in the feed of a store after some number: that of the newest step, and the messages of those in between
    with their numbers, the oldest first; None if some of them are gone.
    """

    store: str
    number: int
    messages: Sequence[tuple[int, bytes]] | None


class Message(msgspec.Struct, array_like=True, frozen=True):
    """What one step of a process, the origin, has touched: tags, or roots that a write may still name, and single
    entries by their addresses; or the ttl of a tool, None if that was taken back.
    """

    origin: str
    tags: tuple[str, ...] = ()
    entries: tuple[Cell, ...] = ()
    tool: str = ""
    ttl: float | None = None

    def encode(self, codec: Codec) -> bytes:
        """Write it as values are written, so that it is signed or encrypted if they are. What cannot be written stands
        for everything.
        """
        try:
            return codec.encode(msgspec.json.encode(self).decode(), str, context=b"feed")
        except Exception:  # noqa: BLE001 - of a user's codec
            return LOST


class Feed:
    """Applies the feed of a tier in this process.

    Attributes:
        number: of the last step that was applied; None before the first look.
        versions: what was written since, by this process too: for tickets.
        ttls: those that are set at run time; None while they are to be read anew.
    """

    def __init__(self, codec: Codec, log: Log) -> None:
        self._codec = codec
        self._log = log
        self._store = ""
        self.listeners: list[Callable[..., object]] = []
        self._ttl_listeners: list[Callable[..., object]] = []
        self.ttls: dict[str, float] | None = None
        self.ttl_changes = 0
        self.entries = _KnownEntries()
        self.versions = Versions()
        self.number: int | None = None
        self.received = self.losses = 0
        self.origin = os.urandom(8).hex()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with what others write. Returns a function that ends this."""
        return _add(self.listeners, listener)

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """Call a listener with all ttls, now if they are known and after each change. Returns what ends that."""
        end = _add(self._ttl_listeners, listener)
        if self.ttls is not None:
            listener(dict(self.ttls))
        return end

    def set_ttls(self, ttls: Mapping[str, float]) -> None:
        """Take these for all ttls of the tier."""
        self.ttls = dict(ttls)
        self._call(self._ttl_listeners, dict(ttls))

    def set_ttl(self, tool: str, ttl: float | None) -> None:
        """Note that one was set, or taken back, if the others are known."""
        self.ttl_changes += 1
        if self.ttls is not None:
            others = {name: life for name, life in self.ttls.items() if name != tool}
            self.set_ttls(others if ttl is None else {**others, tool: ttl})

    def _call(self, listeners: list[Callable[..., object]], argument: Any) -> None:
        for listener in list(listeners):
            try:
                listener(argument)
            except Exception as error:  # noqa: BLE001 - the others are told all the same
                self._log.once("a listener raised", type(error).__name__)

    # Each of these is called under the lock of the versions

    def apply(self, news: News) -> None:
        """Apply what is new."""
        with VERSIONS.lock:
            former, is_same = self.number, news.store == self._store
            if former is None or not is_same or (news.messages is None and news.number != former):
                self._store, self.number = news.store, news.number
                if former is not None:
                    self.lose()
                return
            for number, data in news.messages or ():
                if data and number > former:
                    self._receive(data)
            self.number = max(former, news.number)  # last: who has seen it finds what was written

    def _receive(self, data: bytes) -> None:
        if data == LOST:
            self.lose()
            return
        try:
            text: Any = self._codec.decode(data, str, context=b"feed")
            message = msgspec.json.decode(text, type=Message)
            if message.tool:
                self.set_ttl(message.tool, message.ttl)
        except Exception as error:  # noqa: BLE001 - damaged, or of another codec
            self._log.once("a message cannot be read, so all copies are dropped", type(error).__name__)
            self.lose()
            return
        calls = self.entries.calls(message.entries)
        if message.origin != self.origin:
            self.received += 1
            if calls is None:
                self.lose()
                return
        self._note(message)
        if message.origin != self.origin and (message.tags or message.entries):
            self._call(self.listeners, Touched(message.tags, calls or ()))

    def _note(self, message: Message) -> None:
        if message.tags or message.entries:
            self.versions.write((*message.tags, *message.entries))

    def note_own(self, message: Message, number: int) -> None:
        """Note a step of this process, after it has landed. Its copies are dropped by whoever writes."""
        with VERSIONS.lock:
            self._note(message)
            if self.number == number - 1:
                self.number = number

    def lose(self) -> None:
        """Take everything as written: messages may have been missed."""
        with VERSIONS.lock:
            self.losses += 1
            self.ttls = None
            self.versions.write_everything()
            self._call(self.listeners, None)

    def is_touched(self, tags: Iterable[str], since: int) -> bool:
        """Whether any of these was written after a version of `versions`."""
        return self.versions.touches(paths_of(tuple(tags)), since)

    def after_fork(self) -> None:
        """The child is another process. It goes on from the last step that its parent had applied: so what the parent
        writes from now on reaches the copies that it has inherited.
        """
        self.origin = os.urandom(8).hex()
        self.versions = Versions()
        self.versions.write_everything()


class _KnownEntries:
    """Which calls of this process have looked at which entries: messages of other processes name entries by address.

    It is bounded: of entries that have been forgotten, nobody knows whether copies depend on them.
    """

    def __init__(self) -> None:
        self._calls: dict[Cell, set[tuple[str, Hashable]]] = {}
        self._has_forgotten = False

    def note(self, address: Cell, request: Request) -> None:
        """Note that the answer to a request depends on an entry."""
        if address not in self._calls and len(self._calls) >= _MOST_KNOWN:
            self._calls, self._has_forgotten = {}, True
        self._calls.setdefault(address, set()).add((request.tool, request.key))

    def calls(self, addresses: Iterable[Cell]) -> tuple[tuple[str, Hashable], ...] | None:
        """The calls that depend on these entries; None if that is not known any more."""
        if self._has_forgotten and not self._calls.keys() >= set(addresses):
            return None
        return tuple({call: None for address in addresses for call in self._calls.get(address, ())})


def _add(listeners: list[Callable[..., object]], listener: Callable[..., object]) -> Callable[[], None]:
    own = partial(listener)  # an object of its own for each subscription: partials are equal to themselves alone
    listeners.append(own)

    def end() -> None:
        with suppress(ValueError):
            listeners.remove(own)

    return end
