"""Which server has which slot."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from agent_cache.remote.redis.breaker import Breaker
from agent_cache.remote.redis.connections import Address, Deployment
from agent_cache.remote.redis.transport import Link
from agent_cache.remote.redis.wire import NotAsked, Unreachable

__all__ = ["Node", "Topology"]

_SLOTS = 16_384
_LIMIT = 1 << 24


class Node:
    """A server that has slots, or did.

    Attributes:
        breaker: whether it is asked.
        ident: its replication id when it was last asked. Values of another are dead: a server that was demoted and
            promoted again has an earlier state, and says so by a new id (its run id stays the same).
        generation: moves when connections that were made before must not be used.
        checked: reading of `boottime` at which a heartbeat was sent that it has answered.
        clock_offset: its time of day less the clock of `boottime` here, in seconds.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.breaker = Breaker()
        self.ident: bytes | None = None
        self.generation = 0
        self.clock_offset: float | None = None
        self.checked = float("-inf")

    def __repr__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}" if self.address[1] else self.address[0]

    def not_asked(self) -> NotAsked:
        """Why it is not, while its breaker is open."""
        return NotAsked(f"{self} is not asked: {self.breaker.reason}")


class Topology:
    """The servers as they were when somebody last looked. Looking is done when a node is unknown or a reply says so.

    Attributes:
        is_stale: a reply has said that the slots are elsewhere.
        is_lost: whoever was asked for them last has not answered. Only the thread of the tier goes on asking then.
    """

    def __init__(self, deployment: Deployment, timeout: float) -> None:
        self.deployment = deployment
        self.is_stale = False
        self.is_lost = False
        self.is_cluster = deployment.kind == "cluster"
        self._timeout = timeout
        self._nodes: dict[Address, Node] = {}
        self._slots: list[Node | None] = [None]
        self._lock = threading.RLock()
        self._looking: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            weakref.WeakKeyDictionary()
        )
        if deployment.kind == "single":
            self._adopt([deployment.seeds[0]])

    def of(self, slot: int) -> Node | None:
        """The server that has a slot; None if that is unknown."""
        slots = self._slots
        return slots[slot] if len(slots) > 1 else slots[0]

    @property
    def nodes(self) -> list[Node]:
        """All servers that have slots."""
        return list(dict.fromkeys(node for node in self._slots if node is not None))

    async def find(self, slot: int, since: float) -> Node:
        """The server that has a slot, if need be by asking the others.

        Args:
            since: when the caller began to wait, by the loop's clock.

        Raises:
            Unreachable: if nobody knows, or says so within the timeout.
        """
        node = self.of(slot)
        if node is None:
            if self.is_lost:
                raise Unreachable("no server says who has these keys")
            await self.look_again(since)
            node = self.of(slot)
        if node is None:
            raise Unreachable("no server is known to have these keys")
        return node

    async def look_again(self, since: float) -> None:
        """The same as `look`, for a caller that has waited since then, by the loop's clock.

        Raises:
            Unreachable: as `look`, or if nobody has answered within the timeout.
        """
        try:
            async with asyncio.timeout_at(since + self._timeout):
                await self.look()
        except TimeoutError:
            self.is_lost = not self.nodes
            raise Unreachable(f"no server has said within {self._timeout:g} s who has which keys") from None

    async def look(self) -> None:
        """Ask who has what. Several callers of one loop ask once.

        Raises:
            Unreachable: if nobody answers.
        """
        if self.deployment.kind == "single":
            self.is_stale = False
            return
        loop = asyncio.get_running_loop()
        task = self._looking.get(loop)
        if task is None or task.done():
            task = self._looking[loop] = loop.create_task(self._look(), name="agent_cache looks for servers")
            task.add_done_callback(_seen)
        await asyncio.shield(task)

    async def _look(self) -> None:
        is_sentinel = self.deployment.kind == "sentinel"
        known = [] if is_sentinel else [node.address for node in self.nodes]
        reasons = []
        for address in dict.fromkeys([*known, *self.deployment.seeds]):
            try:
                link = await Link.open(
                    self.deployment, address, limit=_LIMIT, timeout=self._timeout, to_sentinel=is_sentinel
                )
                try:
                    if is_sentinel:
                        service = self.deployment.service.encode()
                        (reply,) = await link.ask((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service))
                        if reply is None:
                            reasons.append(f"{address[0]}:{address[1]} knows no group {self.deployment.service!r}")
                            continue
                        self._adopt([(reply[0].decode(), int(reply[1]))])
                    else:
                        (reply,) = await link.ask((b"CLUSTER", b"SLOTS"))
                        self._adopt_slots(reply, address)
                finally:
                    link.close()
            except (Unreachable, ValueError, IndexError, TypeError) as error:
                reasons.append(str(error))
                continue
            self.is_stale = False
            return
        self.is_lost = True
        raise Unreachable("; ".join(reasons))

    def _adopt(self, addresses: list[Address]) -> None:
        with self._lock:
            self._nodes = {address: self._nodes.get(address) or Node(address) for address in addresses}
            self._slots = [self._nodes[addresses[0]]]
            self.is_lost = False

    def _adopt_slots(self, reply: Any, asked: Address) -> None:
        slots: list[Node | None] = [None] * _SLOTS
        with self._lock:
            nodes: dict[Address, Node] = {}
            for first, last, primary, *_ in reply:
                host = primary[0].decode() if primary[0] else asked[0]
                address = (host, int(primary[1]))
                node = nodes[address] = nodes.get(address) or self._nodes.get(address) or Node(address)
                slots[first : last + 1] = [node] * (last + 1 - first)
            self._nodes, self._slots, self.is_lost = nodes, slots, False


def _seen(task: asyncio.Task[None]) -> None:
    """Whoever waited may be gone: its exception was seen all the same."""
    if not task.cancelled():
        task.exception()
