"""`RedisTier`: one coherent cache for a fleet, on Redis or Valkey."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from agent_cache.clock import CLOCK
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.codecs import Codec
from agent_cache.remote.protocol import Found, Listener, Request, Ticket, WriteIntent
from agent_cache.remote.redis.connections import Deployment, of_client
from agent_cache.remote.redis.core import Core
from agent_cache.remote.redis.options import options_of
from agent_cache.remote.redis.reads import look_up
from agent_cache.remote.redis.stores import store
from agent_cache.remote.redis.subscriber import Attendant, stop_with
from agent_cache.remote.redis.tickets import RedisTicket
from agent_cache.remote.redis.urls import of_url
from agent_cache.remote.redis.wire import Unreachable
from agent_cache.remote.redis.writes import begin, commit, renew

__all__ = ["RedisTier"]


class RedisTier:
    """A tier on a server that a fleet shares: Redis 6.2 or later (a cluster: 7.0), Valkey 7.2 or later.

    After a write has ended, other processes stop serving what was loaded before it within `max_staleness` seconds,
    whatever happens to their network, and normally within one message. A server that is down, slow or hung costs
    one read at most `timeout`; tools run without it until it answers again.

    One tier serves any number of event loops and threads, and may be used after a fork. It makes one connection per
    event loop and server when something is first asked for, and one daemon thread per process that listens.

    Args:
        client: a client of redis-py or valkey-py that is there already: single, Sentinel or Cluster, async or not. Its
            settings are taken over; its connections, timeouts and retries are not used. See also `from_url`.
        namespace: what all keys and channels begin with. Fleets that share a server and no data have one each.
        max_staleness: seconds that a process may serve a local copy without hearing from the server.
        timeout: seconds that the server may take to connect or to answer. Less than `max_staleness`.
        lease: seconds after which a writer that is not heard of any more counts as dead.
        remote_ttl: seconds that a value lives whose tool has no ttl.
        codec: how values are written; the default is MessagePack.
        max_value_size: bytes of the longest value that is stored or read. None is as much as the codec allows, which is
            1 MiB for the default; more than that is refused.

    Raises:
        ConfigurationError: if any of this cannot work.
    """

    def __init__(
        self,
        client: Any,
        *,
        namespace: str = "agent_cache",
        max_staleness: float | timedelta = 1.0,
        timeout: float | timedelta = 0.25,
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta = 3600.0,
        codec: Codec | None = None,
        max_value_size: int | None = None,
    ) -> None:
        deployment = client if isinstance(client, Deployment) else of_client(client)
        options = options_of(
            namespace=namespace,
            max_staleness=max_staleness,
            timeout=timeout,
            lease=lease,
            remote_ttl=remote_ttl,
            codec=codec,
            max_value_size=max_value_size,
        )
        self._core = Core(deployment, options)
        self._start_lock = threading.RLock()
        _TIERS.add(self)
        stop_with(self, self._core)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        cluster: bool = False,
        namespace: str = "agent_cache",
        max_staleness: float | timedelta = 1.0,
        timeout: float | timedelta = 0.25,
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta = 3600.0,
        codec: Codec | None = None,
        max_value_size: int | None = None,
        **connection: Any,
    ) -> Self:
        """A tier on the server at ``redis://user:password@host:6379/0``, ``rediss://...`` (TLS) or ``unix://path``.

        Args:
            url: as redis-py reads it, parameters included (``?ssl_ca_certs=...``). Those that other clients of the same
                URL have timeouts, retries, pools and decoding from are ignored.
            cluster: the server is a node of a cluster.
            connection: further settings of redis-py's connections: ``username``, ``ssl_ca_certs``,
                ``credential_provider``... ``ssl=True`` is the same as ``rediss://``. What would have no effect, a
                timeout of redis-py's for one, is refused.

        The other arguments are described with the class.
        """
        return cls(
            of_url(url, cluster=cluster, options=connection),
            namespace=namespace,
            max_staleness=max_staleness,
            timeout=timeout,
            lease=lease,
            remote_ttl=remote_ttl,
            codec=codec,
            max_value_size=max_value_size,
        )

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        return self._core.options.lease

    @property
    def max_staleness(self) -> float:
        """Seconds that a local copy may be served without hearing from the server."""
        return self._core.max_staleness

    # Reads

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """One round trip, shared with every other lookup of this iteration of the event loop. See `Tier`."""
        core = self._started()
        ticket = RedisTicket(core, request)
        if core.is_closed:
            core.log.once("the tier was closed, so nothing is found in it")
            return None, ticket
        try:
            found = await look_up(core, ticket)
        except Unreachable:
            ticket.seen = {}
            found = None
        if found is not None and not ticket.is_young():
            found = None  # whoever joined it meanwhile may have begun after a write that it has not seen
        if found is None:
            core.counters.misses += 1
            ticket.rest()
        else:
            core.counters.hits += 1
        return found, ticket

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float, *, age: float) -> None:
        """See `Tier`. What cannot be written down is kept in this process alone, counted, and logged once."""
        core = self._core
        if isinstance(ticket, RedisTicket) and ticket.core is core and not core.is_closed:
            try:
                await store(core, ticket, value, tags, cost, age=age)
            except Unreachable:
                pass  # the answer is there, and nobody is promised to find it

    async def discard(self, request: Request) -> bool:
        """Write the entry itself: whoever is loading it now does not bring it back. See `Tier`."""
        write = WriteIntent(os.urandom(16).hex(), (), entries=(request,))
        try:
            found, _ = await self.lookup(request)
        finally:  # whether there was one is worth nothing to anybody else
            await self.commit(write, (), failed=False, hold=0.0)
        return found is not None

    # Writes

    async def begin(self, write: WriteIntent) -> None:
        """See `Tier`. What cannot be announced is made up for as soon as it can.

        Raises:
            RemoteTierError: if the write is to be refused then.
        """
        core = self._started()
        failure = Unreachable("the tier was closed") if core.is_closed else await begin(core, write)
        if failure is not None and write.on_unreachable == "refuse":
            raise RemoteTierError(
                f"the write was not begun, because other processes could not be told of it: {failure}", self
            ) from failure

    async def renew(self, write: WriteIntent) -> None:
        """See `Tier`."""
        if not self._core.is_closed:
            await renew(self._started(), write)

    def commit(
        self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float
    ) -> Coroutine[Any, Any, None]:
        """See `Tier`. What is not awaited to its end lands all the same, as soon as it can."""
        core = self._started()
        if core.is_closed:
            core.counters.unannounced += 1
            core.log.once("a write ended after the tier was closed; others serve what it has changed up to their ttl")
            return _nothing()
        return commit(core, write, tags, failed=failed, hold=hold)

    # News

    def trusted_until(self) -> float:
        """See `Tier`. It asks nobody, and reads both clocks: a machine that has slept has missed messages."""
        return self._core.trusted_until()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See `Tier`."""
        core = self._started()
        own = partial(listener)  # one object for each subscription
        with core.lock:
            core.listeners += (own,)

        def end() -> None:
            with core.lock:
                core.listeners = tuple(one for one in core.listeners if one is not own)

        return end

    async def caught_up(self) -> bool:
        """Wait until everything that has been said so far was heard, and local copies are trusted. Whether they are."""
        attendant = self._started().attendant
        try:
            if attendant is not None:
                await attendant.catch_up()
        except Unreachable:
            return False
        return self.trusted_until() > CLOCK.now()

    def stats(self) -> dict[str, Any]:
        """Counts of this process, and how it stands: a plain copy, to be logged or exported.

        Returns:
            The fields of `Counters`, and ``pending`` (invalidations that are owed), ``servers`` (address to
            ``"ok"`` or why it is not asked), ``trusted`` (whether local copies are served now).
        """
        core = self._core
        return core.counters.as_dict() | {
            "pending": core.pending.owed,
            "servers": {str(node): core.state_of(node) for node in core.topology.nodes},
            "trusted": self.trusted_until() > CLOCK.now(),
        }

    # Its life

    def _started(self) -> Core:
        core = self._core
        if core.attendant is None and not core.is_closed:
            with self._start_lock:
                if core.attendant is None and not core.is_closed:
                    core.attendant = attendant = Attendant(core)  # first: a collection may come by here again
                    try:
                        attendant.start()
                    except RuntimeError as error:  # no more threads; the next call tries again
                        core.attendant = None
                        core.log.once("no thread could be started to listen, so nothing is kept locally", error)
        return core

    async def aclose(self) -> None:
        """Close all connections, those of other event loops too, and end the thread. Nothing is trusted any more.

        What is owed to a server is delivered first, if that takes no longer than the timeout. From then on a write is
        one that cannot be announced, and a read finds nothing.
        """
        core = self._core
        try:
            if len(core.pending) and not core.is_closed:
                await core.settle_all()
        finally:
            attendant = self._close()
        if attendant is not None:
            await asyncio.to_thread(attendant.stop, core.timeout * 2)

    def _close(self) -> Attendant | None:
        core = self._core
        if len(core.pending) and not core.is_closed:
            event = "closed before all invalidations had landed; others serve those entries up to their ttl"
            core.log.once(event, f"{len(core.pending)} of them")
        core.is_closed = True
        attendant, core.attendant = core.attendant, None
        if attendant is not None:
            attendant.stop()
        for loop, client in core.clients():
            if loop is asyncio.get_running_loop():
                client.close()
            else:
                try:
                    loop.call_soon_threadsafe(client.close)
                except RuntimeError:  # that loop is over
                    pass
                if not loop.is_running():
                    client.cut()
        return attendant

    async def __aenter__(self) -> Self:
        if self._core.is_closed:
            raise ConfigurationError("RedisTier: it was closed, and is not opened again; make a new one")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{self._core.log.tier} namespace={self._core.options.namespace!r}>"


async def _nothing() -> None:
    pass


_TIERS: weakref.WeakSet[RedisTier] = weakref.WeakSet()


def _after_fork() -> None:
    for tier in list(_TIERS):
        tier._start_lock = threading.RLock()
        tier._core.after_fork()


os.register_at_fork(after_in_child=_after_fork)
