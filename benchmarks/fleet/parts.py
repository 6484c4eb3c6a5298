"""The parts of the protocol, and how a process of a run does without one.

This is for runs that show what a part is for (`amputations`). It replaces private functions of the library in this
process, so it says so loudly where one is not there any more.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_cache.remote.protocol import WriteIntent
    from agent_cache.remote.redis.connection import Connection
    from agent_cache.remote.redis.reads import Reader, RedisTicket
    from agent_cache.remote.redis.subscriber import Subscription
    from agent_cache.remote.redis.transport import Client
    from agent_cache.remote.redis.writes import Writer


def _put(owner: object, name: str, new: Any) -> None:
    old = getattr(owner, name, None)
    if old is None:
        raise AttributeError(f"{owner!r} has no {name} any more: say anew how to take that part out")
    if callable(old) and [*signature(old).parameters] != [*signature(new).parameters]:
        raise TypeError(f"{owner!r} calls {name} with other arguments now: say anew how to take that part out")
    setattr(owner, name, new)


def _rewrite_scripts(old: str, new: str = "") -> None:
    """Replace a text in all scripts that have it."""
    from agent_cache.remote.redis import reads, scripts, writes

    users = {"BEGIN": writes, "RENEW": writes, "COMMIT": writes, "MINT": reads}
    found = 0
    for name, user in users.items():
        source = getattr(scripts, name).source.decode()
        found += source.count(old)
        _put(user, name, scripts.Script.of(source.replace(old, new)))
    if not found:
        raise LookupError(f"no script has {old!r} any more: say anew how to take that part out")


def no_begin() -> None:
    """The server learns of a write when it is over, and not before. The own process knows, as ever."""
    from agent_cache.remote.redis.writes import Writer

    async def begin(self: Writer, write: WriteIntent) -> None:
        self.invalidations.add(self.keyspace.cells_written(write.tags) | self.keyspace.cells_armed(write))

    _put(Writer, "begin", begin)
    no_renewal()


def no_registry() -> None:
    """A cell is marked for a lease, and no writer is registered: the next one to end lifts the mark."""
    announce = "\nannounce()"
    _rewrite_scripts(announce, f"\nleave('held', held, '') leave('armed', armed, '~') {announce}")


def no_renewal() -> None:
    """A lease is not extended, however long the write takes."""
    from agent_cache.remote.redis.writes import Writer

    async def renew(self: Writer, write: WriteIntent) -> None:
        pass

    _put(Writer, "renew", renew)


def no_identity() -> None:
    """All servers are the same one."""
    _identify(lambda fields: b"somebody")


def run_id() -> None:
    """A server is known by its run id, which it keeps when it is demoted and promoted again."""
    from agent_cache.remote.redis import subscriber, transport

    for user in (subscriber, transport):
        _put(user, "INFO", (b"INFO",))
    _identify(lambda fields: fields[b"run_id"].strip())


def _identify(by: Callable[[dict[bytes, bytes]], bytes]) -> None:
    from agent_cache.remote.redis import connection, subscriber, transport

    whole = connection.replication_id_of

    def replication_id_of(info: Any) -> bytes:
        whole(info)  # a primary, as ever
        return by(dict(line.partition(b":")[::2] for line in info.splitlines()))

    for user in (subscriber, transport):
        _put(user, "replication_id_of", replication_id_of)


def no_recheck() -> None:
    """A result that names its tags is stored under their cells as they are after the load, whatever came during it."""
    from agent_cache.remote.redis.keyspace import version_of
    from agent_cache.remote.redis.reads import Reader

    async def _recheck(
        self: Reader, client: Client, ticket: RedisTicket, late: list[str], started_at: float
    ) -> dict[bytes, bytes]:
        named = {key: root for tag in late for key, root in self.keyspace.cells_read(tag).items()}
        seen = await self.fetch_or_mint(client, named, started_at)
        self.keyspace.keep_late_cells(ticket.place.digest or b"", named)
        return {key: version_of(seen[key]) for key in named}

    _put(Reader, "_recheck", _recheck)


def no_arming() -> None:
    """A write whose tags its result will name leaves nothing behind that ends if it dies."""
    _rewrite_scripts("  register('armed', armed, '~')\n")


def no_drop() -> None:
    """Copies that were kept before a subscription was lost are valid again after it."""
    from agent_cache.remote.redis.connection import boottime
    from agent_cache.remote.redis.subscriber import Subscription

    def _become_live(self: Subscription) -> None:
        self.is_live = True
        self.term.clock = boottime
        self._subscriber.changed()

    _put(Subscription, "_become_live", _become_live)


def from_arrival() -> None:
    """Local copies are trusted from the moment a PONG arrives."""
    from agent_cache.remote.redis.connection import boottime
    from agent_cache.remote.redis.subscriber import Subscription

    whole = Subscription._pong

    def _pong(self: Subscription, nonce: bytes) -> None:
        if nonce in self._pings:
            self._pings[nonce] = boottime(), boottime(), self._pings[nonce][2]
        whole(self, nonce)

    _put(Subscription, "_pong", _pong)


def no_pending_rule() -> None:
    """Pending invalidations do not keep this process from reading on the server."""
    from agent_cache.remote.redis.writes import PendingInvalidations

    _put(PendingInvalidations, "blocks", lambda self, cells: False)


def no_handing_over() -> None:
    """A write that its server does not answer returns with its invalidations in the memory of its process alone."""
    from agent_cache.remote.redis.subscriber import Subscription

    _put(Subscription, "hand_over", lambda self, call: None)


def no_mark() -> None:
    """Who listens to parts of a root does not look whether an earlier version has written to it."""
    from agent_cache.remote.redis.subscriber import Subscription

    async def _look_for_marks(self: Subscription, commands: Connection) -> None:
        self.marks = dict.fromkeys(self.parts, b"")

    _put(Subscription, "_look_for_marks", _look_for_marks)


def split_early() -> None:
    """Listen to the parts of each root that any message comes about. No part of the protocol is missing."""
    from agent_cache.remote.redis import subscriber

    _put(subscriber, "_BUSY", 0.0)
    _put(subscriber, "_WHOLE_PERIOD", 0.0)


def earlier_version() -> None:
    """Be of a version that knows no parts of roots: it publishes and hears all on their own channels."""
    from agent_cache.remote.redis import subscriber, writes
    from agent_cache.remote.redis.keyspace import messages

    _put(subscriber, "_BUSY", float("inf"))
    _rewrite_scripts("'(0', now", "'-inf', now")
    _put(writes, "messages", lambda process, kind, root, cells: messages(process, kind, root, cells)[:2])


PARTS: dict[str, Callable[[], None]] = {
    "begin": no_begin,
    "registry": no_registry,
    "renewal": no_renewal,
    "identity": no_identity,
    "replication id": run_id,
    "recheck of S and D": no_recheck,
    "arming": no_arming,
    "drop on re-subscribe": no_drop,
    "lease from sending": from_arrival,
    "pending rule": no_pending_rule,
    "handing over": no_handing_over,
    "mark": no_mark,
}
"""What takes a part out, for this process. Called before there is a tier."""
