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
    from agent_cache.remote.redis.clients import LoopClient
    from agent_cache.remote.redis.core import Core
    from agent_cache.remote.redis.subscription import Subscription
    from agent_cache.remote.redis.tickets import RedisTicket


def _put(owner: object, name: str, new: Any) -> None:
    old = getattr(owner, name, None)
    if old is None:
        raise AttributeError(f"{owner!r} has no {name} any more: say anew how to take that part out")
    if callable(old) and [*signature(old).parameters] != [*signature(new).parameters]:
        raise TypeError(f"{owner!r} calls {name} with other arguments now: say anew how to take that part out")
    setattr(owner, name, new)


def _rewrite_scripts(old: str, new: str = "") -> None:
    """Put other words for these, or none, into all scripts that have them."""
    from agent_cache.remote.redis import orders, reads, scripts

    names = {"BEGIN": orders, "RENEW": orders, "COMMIT": orders, "MINT": reads}
    found = 0
    for name, user in names.items():
        source = getattr(scripts, name).source.decode()
        found += source.count(old)
        _put(user, name, scripts.Script.of(source.replace(old, new)))
    if not found:
        raise LookupError(f"no script has {old!r} any more: say anew how to take that part out")


def no_begin() -> None:
    """The server is told of a write when it is over, and not before. The own process knows, as ever."""
    from agent_cache.remote.redis import tier

    async def begin(core: Core, write: WriteIntent) -> None:
        core.epochs.touch(core.names.moved_by(write.tags) | core.names.armed_by(write))

    _put(tier, "begin", begin)
    no_renewal()


def no_registry() -> None:
    """A cell is marked for a lease, and nobody remembers by whom: the next one to end lifts the mark."""
    said = "announce(ARGV[at], ARGV[at + 1])"
    _rewrite_scripts(said, f"leave('held', held, '') leave('armed', armed, '~') {said}")


def no_renewal() -> None:
    """A lease is not prolonged, however long the write takes."""
    from agent_cache.remote.redis import tier

    async def renew(core: Core, write: WriteIntent) -> None:
        pass

    _put(tier, "renew", renew)


def no_identity() -> None:
    """All servers are the same one."""
    _identify(lambda fields: b"somebody")


def run_id() -> None:
    """A server is known by its run id, which it keeps when it is demoted and promoted again."""
    from agent_cache.remote.redis import identity, lines, subscription
    from agent_cache.remote.redis.wire import pack

    everything = (b"INFO",)
    for user in (identity, subscription):
        _put(user, "INFO", everything)
    _put(lines, "_INFO", pack(*everything))
    _identify(lambda fields: fields[b"run_id"].strip())


def _identify(by: Callable[[dict[bytes, bytes]], bytes]) -> None:
    from agent_cache.remote.redis import identity, lines, subscription

    whole = identity.identity_in

    def identity_in(info: Any) -> bytes:
        whole(info)  # a master, as ever
        return by(dict(line.partition(b":")[::2] for line in info.splitlines()))

    for user in (identity, lines, subscription):
        _put(user, "identity_in", identity_in)


def no_recheck() -> None:
    """A result that names its tags is stored under their cells as they are after the load, whatever came during it."""
    from agent_cache.remote.redis import stores
    from agent_cache.remote.redis.reads import mint, seen_in
    from agent_cache.remote.redis.values import version_of

    async def _recheck(
        core: Core, client: LoopClient, ticket: RedisTicket, late: list[str], since: float
    ) -> dict[bytes, bytes]:
        named = {key: root for tag in late for key, root in core.names.read_by(tag).items()}
        seen = seen_in(named, await client.fetch([(key, root.slot) for key, root in named.items()], since=since))
        for root in dict.fromkeys(named.values()):
            keys = [key for key, own in named.items() if own is root]
            if any(key not in seen for key in keys):
                seen |= await mint(core, client, root, keys, since)
        core.memo.keep_cells(ticket.place.digest or b"", named)
        return {key: version_of(seen[key]) for key in named}

    _put(stores, "_recheck", _recheck)


def no_arming() -> None:
    """A write whose tags its result will tell leaves nothing behind that ends if it dies."""
    _rewrite_scripts("  register('armed', armed, '~')\n")


def no_drop() -> None:
    """What was kept before a subscription was lost counts again after it."""
    from agent_cache.remote.redis.subscription import Subscription

    def _become_live(self: Subscription) -> None:
        self.is_live = True
        self._on_change()

    _put(Subscription, "_become_live", _become_live)


def from_arrival() -> None:
    """Local copies are trusted from the moment a PONG arrives."""
    from agent_cache.remote.redis.leases import boottime
    from agent_cache.remote.redis.subscription import Subscription

    whole = Subscription._pong

    def _pong(self: Subscription, nonce: bytes) -> None:
        if nonce in self._pings:
            self._pings[nonce] = boottime(), self._pings[nonce][1]
        whole(self, nonce)

    _put(Subscription, "_pong", _pong)


def no_pending_rule() -> None:
    """What this process owes the server does not keep it from reading there."""
    from agent_cache.remote.redis.pending import Pending

    _put(Pending, "blocks", lambda self, cells: False)


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
}
"""What takes a part out, for this process. Called before there is a tier."""
