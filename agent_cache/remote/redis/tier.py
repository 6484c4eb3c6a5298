"""`RedisTier`: one coherent cache for a fleet, on Redis or Valkey."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from agent_cache.clock import CLOCK
from agent_cache.core.lease import Lease
from agent_cache.core.options import configures
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.codecs import Codec
from agent_cache.remote.protocol import Found, Listener, Request, SentCommit, Ticket, Versions, WriteIntent
from agent_cache.remote.redis.connection import Unreachable, boottime
from agent_cache.remote.redis.deployments import Deployment, check_options, deployment_of_client, deployment_of_url
from agent_cache.remote.redis.keyspace import MAX_HEAD, Invalidations, Keyspace
from agent_cache.remote.redis.reads import Reader, RedisTicket
from agent_cache.remote.redis.subscriber import Subscriber
from agent_cache.remote.redis.transport import Transport
from agent_cache.remote.redis.ttl_hash import TtlHash
from agent_cache.remote.redis.writes import Writer

__all__ = ["RedisTier"]

_PAUSE = 0.002
"""Seconds between two looks at what the thread has delivered."""


@configures
class RedisTier:
    """A tier on a server that a fleet shares: Redis 6.2 or later (a cluster: 7.0), Valkey 7.2 or later.

    After a write has ended, other processes stop serving what was loaded before it within `max_staleness` seconds,
    whatever happens to their network, and normally within one message. A server that is down, slow or hung costs
    one read at most `timeout`; tools run without it until it answers again.

    One tier serves any number of event loops and threads, and may be used after a fork. It makes one connection per
    event loop and server when it is first used, and one daemon thread per process that receives invalidations.

    Args:
        client: an existing client of redis-py or valkey-py: single, Sentinel or Cluster, async or not. Its settings are
            taken over; its connections, timeouts and retries are not used. See also `from_url`.
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
        deployment = client if isinstance(client, Deployment) else deployment_of_client(client)
        self._options = options = check_options(
            namespace=namespace,
            max_staleness=max_staleness,
            timeout=timeout,
            lease=lease,
            remote_ttl=remote_ttl,
            codec=codec,
            max_value_size=max_value_size,
        )
        transport = Transport(deployment, options.timeout, options.max_staleness, options.max_value_size + MAX_HEAD)
        keyspace = Keyspace(options.namespace)
        invalidations = Invalidations(transport.counters, transport.log)
        writer = Writer(transport, keyspace, invalidations, options)
        ttls = TtlHash(keyspace, transport.log, transport.script)
        subscriber = Subscriber(transport, keyspace, invalidations, writer, ttls)
        ttls.wake = subscriber.exchange_ttls
        transport.on_failure = subscriber.server_failed
        transport.on_move = subscriber.wake
        transport.on_new_identity = subscriber.identity_changed
        writer.wake = subscriber.wake
        writer.hand_over = subscriber.hand_over
        self._transport = transport
        self._invalidations = invalidations
        self._writer = writer
        self._subscriber = subscriber
        self._ttls = ttls
        self._reader = Reader(transport, keyspace, invalidations, writer.pending, subscriber, options)
        _TIERS.add(self)
        weakref.finalize(self, subscriber.stop)

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
            url: as redis-py reads it, parameters included (``?ssl_ca_certs=...``). Parameters for timeouts, retries,
                pools and decoding of other clients that use the same URL are ignored.
            cluster: the server is a node of a cluster.
            connection: further settings of redis-py's connections: ``username``, ``ssl_ca_certs``,
                ``credential_provider``... ``ssl=True`` is the same as ``rediss://``. A setting without effect, such as
                a timeout of redis-py's, is refused.

        The other arguments are described with the class.
        """
        return cls(
            deployment_of_url(url, cluster=cluster, options=connection),
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
        return self._options.lease

    @property
    def max_staleness(self) -> float:
        """Seconds that a local copy may be served without hearing from the server."""
        return self._options.max_staleness

    # Reads

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """One round trip, shared with every other lookup of this iteration of the event loop. See `Tier`."""
        self._start()
        ticket = RedisTicket(self._reader, request)
        if self._transport.is_closed:
            self._transport.log.once("the tier was closed, so nothing is found in it")
            return None, ticket
        try:
            found = await self._reader.lookup(ticket)
        except Unreachable:
            ticket.seen = {}
            found = None
        if found is not None and not ticket.is_young():
            found = None  # a caller that joined it meanwhile may have begun after a write that it has not seen
        if found is None:
            ticket.versions = None
            self._transport.counters.misses += 1
            ticket.pause()
        else:
            self._transport.counters.hits += 1
        return found, ticket

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """Of the processes that miss a value, one loads it, and the others wait for that. Unless the request says
        ``shares_load``, only if a write has invalidated it, and for twice the time that its last load has taken, and a
        timeout. See `SharedLoads`.
        """
        if not isinstance(ticket, RedisTicket) or not (request.shares_load or ticket.former_cost is not None):
            return None, ticket
        if request.shares_load:
            found, own = await self._reader.share(request, ticket, may_wait)
        else:
            found, own = await self._reader.claim(request, ticket)
        if found is None or not own.is_young():  # as in `lookup`
            own.versions = None
            return None, own
        self._transport.counters.hits += 1
        return found, own

    def renew_claim(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, RedisTicket):
            self._reader.renew_claim(ticket)

    def give_up(self, ticket: Ticket) -> None:
        """See `SharedLoads`."""
        if isinstance(ticket, RedisTicket) and ticket.claim is not None:
            self._reader.give_up(ticket)

    async def store(
        self,
        ticket: Ticket,
        value: Any,
        tags: tuple[str, ...],
        cost: float,
        *,
        age: float,
        ttl: float | None = None,
        inherited: Sequence[Versions] = (),
    ) -> None:
        """See `Tier`. A value that cannot be encoded is kept in this process alone, counted, and logged once."""
        if isinstance(ticket, RedisTicket) and ticket.reader is self._reader and not self._transport.is_closed:
            try:
                await self._reader.store(ticket, value, tags, cost, age=age, ttl=ttl, inherited=inherited)
            except Unreachable:
                pass  # the caller has its result, and a later hit is not promised

    async def discard(self, request: Request) -> bool:
        """Invalidate the entry itself, so that a load that is running does not bring it back. See `Tier`."""
        self._start()
        write, ticket = WriteIntent(os.urandom(16).hex(), (), entries=(request,)), RedisTicket(self._reader, request)
        ticket.may_refresh = False
        was_there = False
        try:
            was_there = await self._reader.lookup(ticket) is not None
        except Unreachable:
            pass  # unknown
        finally:
            await self.commit(write, (), failed=False, hold=0.0)
        return was_there

    # Writes

    async def begin(self, write: WriteIntent) -> None:
        """See `Tier`. An announcement that cannot be delivered is retried until it is.

        Raises:
            RemoteTierError: if the write is to be refused then.
        """
        self._start()
        failure = Unreachable("the tier was closed") if self._transport.is_closed else await self._writer.begin(write)
        if failure is not None and write.on_unreachable == "refuse":
            raise RemoteTierError(
                f"the write was not begun, because other processes could not be told of it: {failure}", self
            ) from failure

    async def renew(self, write: WriteIntent) -> None:
        """See `Tier`."""
        if not self._transport.is_closed:
            self._start()
            await self._writer.renew(write)

    def commit(
        self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float
    ) -> Coroutine[Any, Any, None] | SentCommit:
        """See `Tier`. It is delivered as soon as possible even if the returned coroutine is not awaited to its end."""
        self._start()
        if self._transport.is_closed:
            self._transport.counters.unannounced += 1
            event = "a write ended after the tier was closed; others serve what it has changed up to their ttl"
            self._transport.log.once(event)
            return _do_nothing()
        return self._writer.commit(write, tags, failed=failed, hold=hold)

    # Invalidations by others

    def trusted_until(self) -> float:
        """See `Tier`. It reads two clocks and asks no server: a machine that was suspended has missed messages."""
        return self._subscriber.trusted_whole_until()

    def merge_leases(self, leases: Iterable[Lease]) -> list[Lease]:
        """See `Ticket.lease`. One lease asks for each connection that the copies depend on, however many."""
        return self._subscriber.merge(leases)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See `Tier`."""
        self._start()
        return self._invalidations.listen(listener)

    # Ttls that are set at run time

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """See `SharedTtls`. The thread of the tier delivers it as soon as the server answers; `aclose` waits for it."""
        if self._transport.is_closed:
            self._transport.log.once("a ttl was set after the tier was closed, so it stays in this process", tool)
            return
        self._start()
        self._ttls.set(tool, ttl)

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """See `SharedTtls`."""
        self._start()
        return self._ttls.follow(listener)

    async def caught_up(self) -> bool:
        """Wait until all messages published so far were handled. Returns whether local copies are trusted then."""
        self._start()
        try:
            if self._subscriber.is_running:
                await self._subscriber.catch_up()
        except Unreachable:
            return False
        return self._subscriber.trusted_until() > CLOCK.now()

    def stats(self) -> dict[str, Any]:
        """Counts of this process and its present state: a plain copy, to be logged or exported.

        Returns:
            The fields of `Counters`, and ``pending`` (invalidations that are not delivered yet), ``servers`` (address
            to ``"ok"`` or why it is not asked), ``trusted`` (whether local copies are served now).
        """
        transport = self._transport
        return transport.counters.as_dict() | {
            "pending": self._writer.pending.undelivered,
            "servers": {str(server): transport.state_of(server) for server in transport.topology.servers},
            "trusted": self._subscriber.trusted_until() > CLOCK.now(),
        }

    # Start and end

    def _start(self) -> None:
        if not self._subscriber.is_running and not self._transport.is_closed:
            self._subscriber.start()

    async def aclose(self) -> None:
        """Close all connections, those of other event loops too, and end the thread. Nothing is trusted any more.

        Pending invalidations are delivered first, if that takes no longer than the timeout. From then on a write cannot
        be announced, and a read finds nothing.
        """
        transport, pending = self._transport, self._writer.pending
        was_closed = transport.is_closed
        try:
            if len(pending) and not was_closed:
                await self._writer.deliver_all()
            if not was_closed:
                await self._deliver_ttls()
        finally:
            if len(pending) and not transport.is_closed:
                event = "closed before all invalidations had landed; others serve those entries up to their ttl"
                transport.log.once(event, f"{len(pending)} of them")
            transport.is_closed = True
            self._subscriber.stop()
            transport.close()
        await asyncio.to_thread(self._subscriber.join, self._options.timeout * 2)

    async def _deliver_ttls(self) -> None:
        """Wait for the thread to deliver what is pending, at most two timeouts: it may have to connect first."""
        due = boottime() + 2 * self._options.timeout
        while not self._ttls.is_delivered and self._subscriber.is_running:
            if boottime() > due:
                self._transport.log.once("closed before all ttls that were set had been delivered")
                return
            await asyncio.sleep(_PAUSE)

    async def __aenter__(self) -> Self:
        if self._transport.is_closed:
            raise ConfigurationError("RedisTier: it was closed, and is not opened again; make a new one")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{self._transport.log.tier} namespace={self._options.namespace!r}>"

    def _after_fork(self) -> None:
        self._transport.after_fork()
        self._invalidations.after_fork()
        self._writer.after_fork()
        self._ttls.after_fork()
        self._subscriber.after_fork()


async def _do_nothing() -> None:
    pass


_TIERS: weakref.WeakSet[RedisTier] = weakref.WeakSet()


def _after_fork() -> None:
    for tier in list(_TIERS):
        tier._after_fork()


os.register_at_fork(after_in_child=_after_fork)
