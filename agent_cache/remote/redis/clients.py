"""What one event loop has to say to the servers: lookups of a tick are one MGET, everything else joins the same write.

A batch is closed when it is handed to the socket. To let a later lookup share a key that is under way would answer it
from before a write that has ended in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_cache.remote.redis.identity import INFO, identity_in, introduced
from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.links import Answered, Link, into
from agent_cache.remote.redis.topology import Node
from agent_cache.remote.redis.wire import Interrupted, ReplyError, Unreachable, pack

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core
    from agent_cache.remote.redis.scripts import Script

__all__ = ["Fetched", "LoopClient"]

Fetched = tuple[dict[bytes, Any], "bytes | dict[bytes, bytes]"]
"""What was read: values by key, and the identity of the server that has them; by key where they are several."""

_REDIRECTS = frozenset({"MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY"})
_INFO = pack(*INFO)


class LoopClient:
    """One connection for each server, made when it is first needed, gone with the loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._lines: dict[Node, _Line] = {}
        # A loop that ends cancels its tasks: that is how its connections learn of it.
        self._keeper = self._loop.create_task(self._keep(), name="agent_cache keeps connections")

    async def _keep(self) -> None:
        try:
            await self._loop.create_future()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections. Called in the loop."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._core.forget_client(self._loop)
        if not self._keeper.done():
            self._keeper.cancel()

    def _line(self, node: Node) -> _Line:
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = _Line(self._core, node, self._loop)
        return line

    async def fetch(self, keys: Iterable[tuple[bytes, int]], *, strong: bool = False) -> Fetched:
        """Read keys, given with their slots, together with what others read now.

        Args:
            strong: have the server say who it is after it has answered.

        Raises:
            Unreachable: if a server does not answer, or is not asked since it did not.
        """
        topology = self._core.topology
        if not topology.is_cluster:
            return await self._line(topology.of(0) or await topology.find(0)).get([key for key, _ in keys], strong)
        by_node: dict[Node, list[tuple[bytes, int]]] = {}
        for key in keys:
            by_node.setdefault(topology.of(key[1]) or await topology.find(key[1]), []).append(key)
        pending = [
            self._line(node).get([key for key, _ in wanted], strong, [slot for _, slot in wanted])
            for node, wanted in by_node.items()
        ]
        values: dict[bytes, Any] = {}
        idents: dict[bytes, bytes] = {}
        try:
            for wanted, future in zip(by_node.values(), pending, strict=True):
                some, ident = await future
                for name, _ in wanted:
                    values[name], idents[name] = some[name], ident
        finally:
            for future in pending:
                if future.done() and not future.cancelled():
                    future.exception()
        return values, idents

    async def run(self, script: Script, slot: int, keys: list[bytes], arguments: list[bytes]) -> tuple[Any, bytes]:
        """Run a script; the reply, and who has run it. Loads it where it is not known yet.

        Raises:
            Unreachable: if it is not known to have run. It may have.
        """
        tail = (b"%d" % len(keys), *keys, *arguments)
        reply, ident = await self.call(slot, b"EVALSHA", script.digest, *tail, errors=frozenset({"NOSCRIPT"}))
        if isinstance(reply, ReplyError):
            reply, ident = await self.call(slot, b"EVAL", script.source, *tail)
        return reply, ident

    async def call(self, slot: int, *parts: bytes, errors: frozenset[str] = frozenset()) -> tuple[Any, bytes]:
        """One command for the server of a slot. Errors other than these mean that it is not available.

        Raises:
            Unreachable: as `run`.
        """
        packed = pack(*parts)
        for is_last in (False, True):
            node = await self._core.topology.find(slot)
            line = self._line(node)
            future: asyncio.Future[list[Any]] = self._loop.create_future()
            line.put(packed, 1, into(future))
            try:
                (reply,) = await future
            except Unreachable as error:
                if not isinstance(error, Interrupted):
                    self._core.failed(node, str(error))
                raise
            if not isinstance(reply, ReplyError) or reply.code in errors:
                return reply, line.ident
            if reply.code in _REDIRECTS and not is_last and self._core.topology.deployment.kind != "single":
                self._core.topology.is_stale = True
                await self._core.topology.look()
                continue
            self._core.failed(node, str(reply))
            raise Unreachable(str(reply))
        raise AssertionError("not reached")


class _Line:
    """What this loop has to say to one server."""

    def __init__(self, core: Core, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._node = node
        self._loop = loop
        self._link: Link | None = None
        self._generation = -1
        self._opening: asyncio.Task[None] | None = None
        self._is_due = False
        self._commands: list[tuple[bytes, int, Answered, float]] = []
        self._gets: list[tuple[list[bytes], list[int] | None, asyncio.Future[tuple[dict[bytes, Any], bytes]]]] = []
        self._since = 0.0
        self._wants_ident = False
        self._checked = float("-inf")
        self.ident = b""

    def get(
        self,
        keys: list[bytes],
        strong: bool,  # noqa: FBT001 - private, and on the path of every hit
        slots: list[int] | None = None,
    ) -> asyncio.Future[tuple[dict[bytes, Any], bytes]]:
        """Read keys with the next write; in a cluster, with their slots."""
        future: asyncio.Future[tuple[dict[bytes, Any], bytes]] = self._loop.create_future()
        if not self._gets:
            self._since = self._loop.time()
            self._schedule()
        self._gets.append((keys, slots, future))
        if strong:
            self._wants_ident = True
        return future

    def put(self, packed: bytes, count: int, answered: Answered) -> None:
        """Send commands with the next write."""
        self._commands.append((packed, count, answered, self._loop.time()))
        self._schedule()

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._fail(Unreachable("the connection was closed"))

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if self._node.breaker.is_open:
            self._fail(Unreachable(f"{self._node} is not asked: {self._node.breaker.reason}"))
            return
        link = self._link
        if link is None or not link.is_open or self._generation != self._node.generation:
            if link is not None:
                link.close()
                self._link = None
            if self._opening is None:
                self._opening = self._loop.create_task(self._open(), name="agent_cache connects")
            return
        commands, self._commands = self._commands, []
        for packed, count, answered, since in commands:
            link.send(packed, count, answered, since)
        if self._gets:
            self._send_gets(link)

    async def _open(self) -> None:
        try:
            self._generation = self._node.generation
            async with asyncio.timeout(self._core.timeout):
                self._link, self.ident = await introduced(self._core, self._node)
            self._checked = boottime()
        except (Unreachable, TimeoutError) as error:
            reason = str(error) or "no connection within the timeout"
            if self._generation == self._node.generation:
                self._core.failed(self._node, reason)
            self._fail(Unreachable(reason))
        finally:
            self._opening = None
        if self._commands or self._gets:
            self._flush()

    def _send_gets(self, link: Link) -> None:
        gets, self._gets = self._gets, []
        strong, self._wants_ident = self._wants_ident, False
        # Who it is was asked when the connection was made, and is asked by each heartbeat. Should those stop, here.
        strong |= boottime() - max(self._checked, self._node.checked) > self._core.max_staleness
        by_slot: dict[int, dict[bytes, None]] = {0: {}}
        for keys, slots, _ in gets:
            if slots is None:
                by_slot[0].update(dict.fromkeys(keys))
            else:
                for key, slot in zip(keys, slots, strict=True):
                    by_slot.setdefault(slot, {})[key] = None
        batches = [wanted for wanted in by_slot.values() if wanted]
        packed = b"".join([pack(b"MGET", *wanted) for wanted in batches])
        sent = boottime()

        def answered(replies: list[Any] | Unreachable) -> None:
            try:
                if isinstance(replies, Unreachable):
                    raise replies
                if strong:
                    self._is_still(identity_in(replies[-1]), sent)
                values: dict[bytes, Any] = {}
                for wanted, reply in zip(batches, replies, strict=False):
                    if isinstance(reply, ReplyError):
                        self._core.topology.is_stale |= reply.code in _REDIRECTS
                        raise Unreachable(str(reply))  # noqa: TRY301 - one place that tells all who wait
                    values.update(zip(wanted, reply, strict=True))
            except Unreachable as error:
                if not isinstance(error, Interrupted):
                    self._core.failed(self._node, str(error))
                for _, _, future in gets:
                    if not future.done():
                        future.set_exception(error)
                return
            found = values, self.ident
            for _, _, future in gets:
                if not future.done():
                    future.set_result(found)

        self._core.counters.batches += 1
        link.send(packed + _INFO if strong else packed, len(batches) + strong, answered, self._since)

    def _is_still(self, ident: bytes, sent: float) -> None:
        self._checked = sent
        if ident != self.ident:
            self._core.met(self._node, ident)
            raise Interrupted("the server has another identity than before")

    def _fail(self, error: Unreachable) -> None:
        commands, self._commands = self._commands, []
        for _, _, answered, _ in commands:
            answered(error)
        gets, self._gets = self._gets, []
        for _, _, future in gets:
            if not future.done():
                future.set_exception(error)
