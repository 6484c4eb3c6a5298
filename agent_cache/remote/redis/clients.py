"""What one event loop has to say to the servers: lookups of a tick are one MGET, everything else joins the same write.

A batch is closed when it is handed to the socket. To let a later lookup share a key that is under way would answer it
from before a write that has ended in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from agent_cache.remote.redis.lines import REDIRECTS, Line
from agent_cache.remote.redis.topology import Node
from agent_cache.remote.redis.transport import into
from agent_cache.remote.redis.wire import (
    Expired,
    Interrupted,
    NotAsked,
    Refused,
    ReplyError,
    Unreachable,
    bulk,
    pack,
)  # fmt: skip

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core
    from agent_cache.remote.redis.places import Place
    from agent_cache.remote.redis.scripts import Script

__all__ = ["Fetched", "LoopClient"]

_T = TypeVar("_T")
_OF_SCRIPTS = frozenset({"NOSCRIPT", "ERR", "WRONGTYPE"})

Fetched = tuple[dict[bytes, Any], "bytes | dict[bytes, bytes]"]
"""What was read: values by key, and the identity of the server that has them; by key where they are several."""


class LoopClient:
    """One connection for each server, made when it is first needed, gone with the loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.loop = self._loop = asyncio.get_running_loop()
        self._lines: dict[Node, Line] = {}
        self._nobody = Context()  # a timer keeps the context that it was made in, also after it was cancelled
        # A loop that ends closes its generators, after its tasks were cancelled and have ended: a write that was
        # cancelled so is still committed over these connections.
        self._end: AsyncGenerator[None, None] | None = self._until_the_end()
        _step(self._end.asend(None))

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._end = None
            self.close()

    def close(self) -> None:
        """Close the connections. Called in the loop."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._core.forget_client(self._loop)
        end, self._end = self._end, None
        if end is not None:
            _step(end.aclose())

    def cut(self) -> None:
        """End the connections of a loop that does not run now. Called in any thread."""
        for line in list(self._lines.values()):
            line.cut()

    def _line(self, node: Node) -> Line:
        """What is said to a server.

        Raises:
            NotAsked: if it has failed, until it answers again.
        """
        if node.breaker.is_open:
            raise node.not_asked()
        line = self._lines.get(node)
        if line is None:
            nodes = self._core.topology.nodes
            for gone in [known for known in self._lines if known not in nodes]:
                self._lines.pop(gone).close()
            line = self._lines[node] = Line(self._core, node, self._loop)
        return line

    def prepare(self, node: Node) -> None:
        """Connect to a server that will be asked."""
        if not node.breaker.is_open:
            self._line(node).prepare()

    async def fetch(
        self,
        keys: Iterable[tuple[bytes, int]],
        *,
        strong: bool = False,
        since: float | None = None,
        silent: float | None = None,
    ) -> Fetched:
        """Read keys, given with their slots, together with what others read now.

        Args:
            strong: have the server say who it is after it has answered.
            since: when the caller began to wait, by the loop's clock: the timeout counts from there. None is now.
            silent: since when the server itself owes an answer. None is now.

        Raises:
            Unreachable: if a server does not answer, or is not asked since it did not.
        """
        topology, now = self._core.topology, self.loop.time()
        if not topology.is_cluster:
            names = tuple(dict.fromkeys(key for key, _ in keys))
            line = self._line(topology.of(0) or await topology.find(0, since or silent or now))
            found, ident = await self._within(line.get(names, b"".join(map(bulk, names)), strong, silent or now), since)
            return dict(zip(names, found, strict=True)), ident
        by_node: dict[Node, list[tuple[bytes, int]]] = {}
        for key in keys:
            by_node.setdefault(topology.of(key[1]) or await topology.find(key[1], since or silent or now), []).append(
                key
            )
        lines = [self._line(node) for node in by_node]
        pending = [
            line.get_by_slot([key for key, _ in wanted], [slot for _, slot in wanted], strong, silent or now)
            for line, wanted in zip(lines, by_node.values(), strict=True)
        ]
        values: dict[bytes, Any] = {}
        idents: dict[bytes, bytes] = {}
        try:
            for wanted, future in zip(by_node.values(), pending, strict=True):
                some, ident = await self._within(future, since)
                for name, _ in wanted:
                    values[name], idents[name] = some[name], ident
        finally:
            for future in pending:
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return values, idents

    def read(self, place: Place, *, strong: bool, silent: float) -> Awaitable[tuple[list[Any], bytes]]:
        """Read an entry where there are no slots: its cells and its value, in the order of its keys.

        Args:
            silent: since when the server itself owes an answer, by the loop's clock.

        Raises:
            Unreachable: as `fetch`.
        """
        node = self._core.topology.of(0)
        if node is None:
            return self._read_once_found(place, strong=strong, silent=silent)
        return self._line(node).get(place.keys, place.packed, strong, silent)

    async def _read_once_found(self, place: Place, *, strong: bool, silent: float) -> tuple[list[Any], bytes]:
        line = self._line(await self._core.topology.find(0, silent))
        return await line.get(place.keys, place.packed, strong, silent)

    async def run(
        self, script: Script, slot: int, keys: list[bytes], arguments: list[bytes], *, since: float | None = None
    ) -> tuple[Any, bytes]:
        """Run a script; the reply, and who has run it. Loads it where it is not known yet.

        Raises:
            Unreachable: if it is not known to have run. It may have.
        """
        tail = (b"%d" % len(keys), *keys, *arguments)
        now = self.loop.time()
        reply, ident = await self.call(slot, b"EVALSHA", script.digest, *tail, errors=_OF_SCRIPTS, since=since)
        if isinstance(reply, ReplyError) and not reply.is_of_command:
            reply, ident = await self.call(slot, b"EVAL", script.source, *tail, errors=_OF_SCRIPTS, since=since or now)
        if isinstance(reply, ReplyError):
            self._core.counters.failures += 1
            raise Refused(str(reply))
        return reply, ident

    async def call(
        self, slot: int, *parts: bytes, errors: frozenset[str] = frozenset(), since: float | None = None
    ) -> tuple[Any, bytes]:
        """One command for the server of a slot. Errors other than these mean that it is not available.

        Args:
            since: when the caller began to wait, by the loop's clock; None is now. It has an answer within the timeout
                from there, or none.

        Raises:
            Unreachable: as `run`.
        """
        packed, now, topology = pack(*parts), self.loop.time(), self._core.topology
        for is_last in (False, True):
            node = topology.of(slot) or await topology.find(slot, since or now)
            line = self._line(node)
            future: asyncio.Future[list[Any]] = self._loop.create_future()
            line.put(packed, 1, into(future), now)
            try:
                (reply,) = await self._within(future, since)
            except Unreachable as error:
                if not isinstance(error, Interrupted | Expired | NotAsked):
                    self._core.failed(node, str(error))
                raise
            if not isinstance(reply, ReplyError) or reply.code in errors:
                return reply, line.ident
            if reply.code in REDIRECTS and not is_last and topology.deployment.kind != "single":
                topology.is_stale = True
                await topology.look_again(since or now)
                continue
            self._core.failed(node, str(reply))
            raise Unreachable(str(reply))
        raise AssertionError("not reached")

    async def _within(self, future: asyncio.Future[_T], since: float | None) -> _T:
        """Wait for an answer no longer than the timeout from there; None is now. That it takes too long for one who has
        waited for other things before is not the server's fault.
        """
        if since is None:
            return await future
        timer = self.loop.call_at(since + self._core.timeout, _expire, future, context=self._nobody)
        try:
            return await future
        finally:
            timer.cancel()


def _step(work: Coroutine[Any, Any, None]) -> None:
    """Carry out what does not wait for anything."""
    try:
        work.send(None)
    except StopIteration:
        pass


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Expired("no answer within what was left of the timeout"))
