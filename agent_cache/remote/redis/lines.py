"""What one event loop has to say to one server."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from agent_cache.remote.redis.identity import INFO, identity_in, introduced
from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.topology import Node
from agent_cache.remote.redis.transport import Answered, Link, Sent
from agent_cache.remote.redis.wire import Interrupted, NotAsked, ReplyError, Unreachable, pack

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["REDIRECTS", "Line"]

REDIRECTS: Final = frozenset({"MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY"})
"""Errors that say that a key is elsewhere, or soon will be."""

_INFO = pack(*INFO)

_Listed: TypeAlias = "asyncio.Future[tuple[list[Any], bytes]]"
_Mapped: TypeAlias = "asyncio.Future[tuple[dict[bytes, Any], bytes]]"


class Line:
    """What this loop has to say to one server."""

    def __init__(self, core: Core, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._node = node
        self._loop = loop
        self._link: Link | None = None
        self._generation = -1
        self._opening: asyncio.Task[None] | None = None
        self._is_due = False
        self._commands: list[Sent] = []
        self._gets: dict[tuple[bytes, ...], tuple[bytes, list[_Listed]]] = {}
        self._gets_by_slot: list[tuple[list[bytes], list[int], _Mapped]] = []
        self._since = 0.0
        self._wants_ident = False
        self._checked = float("-inf")
        self.ident = b""

    def get(
        self,
        keys: tuple[bytes, ...],
        packed: bytes,
        strong: bool,  # noqa: FBT001 - private, and on the path of every hit
        since: float,
    ) -> _Listed:
        """Read keys with the next write: their values in the same order, and who has them.

        `since` is when its user began to wait, by the loop's clock: that is what a timeout counts from.

        Who reads the same keys shares the answer; keys that only some share are asked for again, which costs less
        than to find out.
        """
        future: _Listed = self._loop.create_future()
        known = self._gets.get(keys)
        if known is None:
            self._begin_batch(since)
            self._gets[keys] = packed, [future]
        else:
            known[1].append(future)
        if strong:
            self._wants_ident = True
        return future

    def get_by_slot(
        self,
        keys: list[bytes],
        slots: list[int],
        strong: bool,  # noqa: FBT001 - as above
        since: float,
    ) -> _Mapped:
        """The same in a cluster, by key: there is one command for each slot."""
        future: _Mapped = self._loop.create_future()
        self._begin_batch(since)
        self._gets_by_slot.append((keys, slots, future))
        if strong:
            self._wants_ident = True
        return future

    def _begin_batch(self, since: float) -> None:
        if self._gets or self._gets_by_slot:
            self._since = min(self._since, since)
        else:
            self._since = since
            self._schedule()

    def put(self, packed: bytes, count: int, answered: Answered, since: float) -> None:
        """Send commands: at once if nothing else was said in this iteration of the loop, else with the next write."""
        self._commands.append((packed, count, answered, since))
        if not self._is_due:
            self._schedule()
            link = self._link
            if link is not None and self._is_current(link) and not self._node.breaker.is_open:
                commands, self._commands = self._commands, []
                link.send(*commands)

    def prepare(self) -> None:
        """Connect, if it is not: somebody will have something to say."""
        is_open = self._link is not None and self._link.is_open
        if not is_open and not self._node.breaker.is_open and not self._core.is_closed:
            self._connect(self._loop.time())

    def close(self) -> None:
        """End the connection. Whoever waits is told."""
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._fail(NotAsked("the connection was closed"))

    def cut(self) -> None:
        """End the connection where the loop does not run that could close it. Called in any thread."""
        link = self._link
        if link is not None:
            link.cut()

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if not (self._commands or self._gets or self._gets_by_slot):
            return
        if self._core.is_closed:
            self._fail(NotAsked("the tier was closed"))
            return
        if self._node.breaker.is_open:
            self._fail(self._node.not_asked())
            return
        link = self._link
        if link is None or not self._is_current(link):
            if link is not None:
                link.close()
                self._link = None
            waiting = [since for *_, since in self._commands]
            self._connect(min([self._since, *waiting] if self._gets or self._gets_by_slot else waiting))
            return
        commands, self._commands = self._commands, []
        if self._gets or self._gets_by_slot:
            commands.append(self._reading())
        link.send(*commands)

    def _is_current(self, link: Link) -> bool:
        return link.is_open and self._generation == self._node.generation

    def _connect(self, since: float) -> None:
        if self._opening is None:
            due = max(since + self._core.timeout, self._loop.time() + self._core.timeout / 4)
            # In a context of its own: the transport keeps that of who has opened it.
            self._opening = self._loop.create_task(self._open(due), name="agent_cache connects", context=Context())
            self._opening.add_done_callback(self._opened, context=Context())

    async def _open(self, due: float) -> None:
        try:
            self._generation = self._node.generation
            async with asyncio.timeout_at(due):
                self._link, self.ident = await introduced(self._core, self._node)
            self._checked = boottime()
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits
            reason = str(error) or "no connection within the timeout"
            was_busy = self._loop.time() - due > self._core.timeout / 4  # the loop, not the server
            if self._generation == self._node.generation and not was_busy:
                self._core.failed(self._node, reason)
            self._fail(NotAsked(reason))

    def _opened(self, _: asyncio.Task[None]) -> None:
        """Also if it was cancelled by a loop that ends, maybe before its first step: a commit may wait for it."""
        self._opening = None
        self._flush()

    def _reading(self) -> Sent:
        """What reads all that is wanted, and tells those who want it."""
        gets, self._gets = self._gets, {}
        by_slot, self._gets_by_slot = self._gets_by_slot, []
        strong, self._wants_ident = self._wants_ident, False
        # Who it is was asked when the connection was made, and is asked by each heartbeat. Should those stop, here.
        strong |= boottime() - max(self._checked, self._node.checked) > self._core.max_staleness
        commands, sizes = [], []
        if gets:
            sizes.append(sum(map(len, gets)))
            head = b"*%d\r\n$4\r\nMGET\r\n" % (1 + sizes[0])
            commands.append(b"".join([head, *[packed for packed, _ in gets.values()]]))
        batches = _by_slot(by_slot) if by_slot else []
        if batches:
            sizes += map(len, batches)
            commands += [pack(b"MGET", *wanted) for wanted in batches]
        expected = len(commands) + strong
        if strong:
            commands.append(_INFO)
        sent = boottime()

        def answered(replies: list[Any] | Unreachable) -> None:
            try:
                if isinstance(replies, Unreachable):
                    raise replies
                if strong:
                    self._is_still(identity_in(replies.pop()), sent)
                for reply, size in zip(replies, sizes, strict=True):
                    if type(reply) is not list or len(reply) != size:
                        self._core.topology.is_stale |= type(reply) is ReplyError and reply.code in REDIRECTS
                        reason = str(reply) if type(reply) is ReplyError else "the server talks nonsense"
                        raise Unreachable(reason)  # noqa: TRY301 - one place that tells all who wait
            except Unreachable as error:
                if not isinstance(error, Interrupted):
                    self._core.failed(self._node, str(error))
                _tell_all(gets, by_slot, error)
                return
            at, ident = 0, self.ident
            for keys, (_, futures) in gets.items():
                found = replies[0][at : at + len(keys)], ident
                at += len(keys)
                for future in futures:
                    if not future.done():
                        future.set_result(found)
            if by_slot:
                values: dict[bytes, Any] = {}
                for wanted, reply in zip(batches, replies[len(gets) > 0 :], strict=True):
                    values.update(zip(wanted, reply, strict=True))
                for _, _, mapped in by_slot:
                    if not mapped.done():
                        mapped.set_result((values, ident))

        self._core.counters.batches += 1
        return b"".join(commands), expected, answered, self._since

    def _is_still(self, ident: bytes, sent: float) -> None:
        self._checked = sent
        if ident != self.ident:
            self._core.met(self._node, ident)
            raise Interrupted("the server has another identity than before")

    def _fail(self, error: Unreachable) -> None:
        commands, self._commands = self._commands, []
        for _, _, answered, _ in commands:
            answered(error)
        gets, self._gets = self._gets, {}
        by_slot, self._gets_by_slot = self._gets_by_slot, []
        _tell_all(gets, by_slot, error)


def _by_slot(gets: list[tuple[list[bytes], list[int], _Mapped]]) -> list[dict[bytes, None]]:
    """What is wanted of each slot, once."""
    batches: dict[int, dict[bytes, None]] = {}
    for keys, slots, _ in gets:
        for key, slot in zip(keys, slots, strict=True):
            batches.setdefault(slot, {})[key] = None
    return list(batches.values())


def _tell_all(
    gets: dict[tuple[bytes, ...], tuple[bytes, list[_Listed]]],
    by_slot: list[tuple[list[bytes], list[int], _Mapped]],
    error: Unreachable,
) -> None:
    waiting: list[asyncio.Future[Any]] = [future for _, futures in gets.values() for future in futures]
    waiting += [future for _, _, future in by_slot]
    for future in waiting:
        if not future.done():
            future.set_exception(error)
