"""The chunks of a streaming tool between its generator and its readers: what async and synchronous streams share.

A `Stream` is one run of a generator. It keeps the chunks for those who join later and to be stored, up to a number of
bytes; of a longer stream, what some reader has not taken. A `Reader` is one call: what its caller iterates over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from operator import methodcaller
from sys import getsizeof
from typing import Any, Final

from agent_cache.core.store import UnsharedEntry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.flight import Flight
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE, Call
from agent_cache.values.canonical import MISSING, size_of
from agent_cache.values.copies import IMMUTABLE, CopyRule, UncopyableError

__all__ = [
    "END",
    "PATIENCE",
    "READER",
    "TOO_LONG",
    "Reader",
    "Stream",
    "leave_to_itself",
    "reader_here",
]

Copier = Callable[[], Any]
Request = Callable[[Any], Any]

END: Final = object()
"""What a reader gives after the last chunk."""

PATIENCE = 60.0
"""Seconds that a reader may hold up others without taking a chunk. Then it is cut off: it may wait for them in some way
that cannot be seen, and all would wait for ever."""

_NO_SIZE: Final = size_of()


class _TooLong:
    """The result of a stream that was longer than what may be kept: without identity, and no tag can be made of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a stream of more than max_stream_bytes>"


TOO_LONG: Final = _TooLong()


class _Chunk:
    """One chunk, until all readers have taken it.

    Attributes:
        original: what the generator yielded; `MISSING` once a reader has it and could change it.
        copier: makes what further readers get; None if the chunk may be shared.
        before: the bytes of all chunks before it.
    """

    __slots__ = ("before", "copier", "original")

    def __init__(self, original: Any, copier: Copier | None, before: int) -> None:
        self.original = original
        self.copier = copier
        self.before = before

    def take(self) -> Any:
        """The chunk for one more reader."""
        if self.copier is None:
            return self.original
        original, self.original = self.original, MISSING
        return self.copier() if original is MISSING else original

    def for_storage(self) -> Any:
        """The chunk as it was when it was yielded."""
        return self.original if self.copier is None else self.copier()


class Stream:
    """One run of a generator, and the chunks that its readers have yet to take.

    Its lock is taken inside of the ledger's, never around it.

    Args:
        limit: bytes of chunks that are kept for later readers and for storage, and by which a reader may lead.
        rule: protects chunks from readers that change them; None for a single reader.
        flight: the load that this is, if it may be shared.

    Attributes:
        readers: those that take its chunks. Without any the run is abandoned.
        count: how many chunks there were.
        is_long: whether they were more than `limit`.
        is_closed: whether its last reader has left, so that it is about to be interrupted.
        is_complete: whether the generator has ended by itself.
        late: those that have come since it was closed.
        is_free: whether it runs without a reader: a reload in the background.
        error: the exception that has ended the generator.
        leader: the reader whose call leads the load, and whose pump runs the generator.
        seconds: for how long the generator has run: not for how long it waited for its readers.
        tenant: that of the leading call.
        uncopyable: why its chunks could not be protected, if they could not.
    """

    __slots__ = (
        "_chunks", "_first", "_flight", "_is_shared", "_limit", "_lock", "_rule", "_size", "count", "error",
        "is_closed",
        "is_complete", "is_free", "is_long", "late", "leader", "readers", "seconds", "tenant", "uncopyable",
    )  # fmt: skip

    def __init__(self, limit: int, rule: CopyRule | None = None, flight: Flight | None = None) -> None:
        self._chunks: deque[_Chunk] = deque()
        self._first = 0
        self._flight = flight
        self._is_shared = flight is not None
        self._limit = limit
        self._lock = threading.RLock()
        self._rule = rule
        self._size = 0
        self.count = 0
        self.error: BaseException | None = None
        self.is_closed = self.is_complete = self.is_free = self.is_long = False
        self.late: list[Reader] = []
        self.leader: Reader | None = None
        self.readers: list[Reader] = []
        self.seconds = 0.0
        self.tenant: Hashable | None = None
        self.uncopyable: UncopyableError | None = None

    def poke(self) -> None:
        """Look again whether the generator may go on."""
        raise NotImplementedError

    # The generator's side

    def start(self, call: Call, reader: Reader | None) -> None:
        """Begin the run that a call leads. Without a reader it is a reload in the background."""
        self.leader = reader
        self.tenant = call.local.tenant
        if reader is None:
            self.is_free = True
        else:
            self.admit(reader)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody wants its chunks."""
        return not self.readers and (not self.is_free or self.is_long)

    def publish(self, chunk: Any) -> None:
        """Add what the generator has yielded."""
        copier, reason = None, ""
        if self._rule is not None and type(chunk) not in IMMUTABLE:
            try:
                copier = self._rule.snapshot(chunk)
            except UncopyableError as error:
                self._rule = None
                self.uncopyable = error
                reason = f"has a chunk that cannot be copied: {error}"
        if self._is_shared and not self._may_share():
            reason = "depends on a session or a tenant, whose data other callers must not get"
        size = getsizeof(chunk) if type(chunk) in IMMUTABLE else size_of(chunk) - _NO_SIZE  # `size_of` takes 1 us
        others: list[Reader] = []
        with self._lock:
            if reason:
                others = self._unshare()
            self._chunks.append(_Chunk(chunk, copier, self._size))
            self.count += 1
            self._size += size
            has_grown_long = not self.is_long and self._size > self._limit
            if has_grown_long:
                self.is_long = True
            if self.is_long:
                self._drop_taken()
            readers = tuple(self.readers)
        if (has_grown_long or reason) and self._flight is not None:
            with VERSIONS.lock:
                self._flight.detach()
        for reader in others:
            if reader.position:
                reader.fail(RuntimeError(f"this stream was shared with another caller, and now it {reason}"))
            else:
                leave_to_itself(reader)
        for reader in readers:
            reader.wake()

    def result(self) -> Any:
        """The tuple of all chunks, after the generator has ended by itself."""
        self.is_complete = True
        return TOO_LONG if self.is_long else tuple([chunk.for_storage() for chunk in self._chunks])

    def _may_share(self) -> bool:
        flight = self._flight
        inherited = None if flight is None else flight.inherited
        return inherited is None or inherited.belongs_to(flight.store.owner, self.tenant)  # type: ignore[union-attr]

    def _unshare(self) -> list[Reader]:
        """Leave the stream to the leading call. Returns the other readers."""
        self._is_shared = False
        others = [reader for reader in self.readers if reader is not self.leader]
        self.readers = [reader for reader in self.readers if reader is self.leader]
        for reader in others:
            reader.stream = None
        return others

    def laggards(self) -> list[Reader]:
        """The readers that are so far behind that the others have to wait for them.

        Nobody waits for a reader whose task or thread waits for the next chunk of this very stream, or has ended.
        """
        waiting = {reader.owner for reader in self.readers if reader.is_waiting and reader.position == self.count}
        return [
            reader
            for reader in tuple(self.readers)
            if reader.position < self.count
            and self._size - self._at(reader).before > self._limit
            and reader.owner not in waiting
            and not reader.has_ended_owner
        ]

    def cut_off(self, reader: Reader) -> None:
        """Go on without a reader that has held up the others for too long."""
        with self._lock:
            self.remove(reader)
            reader.stream = None
        reader.fail(
            RuntimeError(
                f"this stream was shared with other callers, which have waited {PATIENCE:.0f} s for this one: it was "
                "more than max_stream_bytes behind. Read it faster, close it, or give the tool a larger "
                "max_stream_bytes"
            )
        )

    # The readers' side

    def admit(self, reader: Reader) -> bool:
        """Let a reader take the chunks from the first one on. Returns whether it may."""
        with self._lock:
            if reader.stream is self:
                return True
            if self.is_closed:
                self.late.append(reader)
                return False
            is_joinable = self._is_shared and not self.is_long  # until the flight is detached, a step later
            if self._flight is not None and not is_joinable and reader is not self.leader:
                return False
            self.readers.append(reader)
            reader.stream = self
        reader.wake()
        return True

    def take(self, reader: Reader) -> Any:
        """The next chunk of a reader; `MISSING` if it reads another stream since."""
        with self._lock:
            if reader.stream is not self:
                return MISSING
            chunk = self._at(reader).take()
            reader.position += 1
            if self.is_long:
                self._drop_taken()
        if self.is_long:
            self.poke()
        return chunk

    def remove(self, reader: Reader) -> None:
        """Let a reader go."""
        with self._lock:
            if reader not in self.readers:
                return
            self.readers.remove(reader)
            if not self.readers and not self.is_free:
                self.is_closed = True
            if self.is_long:
                self._drop_taken()
        self.poke()

    def _at(self, reader: Reader) -> _Chunk:
        return self._chunks[reader.position - self._first]

    def _drop_taken(self) -> None:
        first = min((reader.position for reader in self.readers), default=self.count)
        while self._first < first:
            self._chunks.popleft()
            self._first += 1


def leave_to_itself(reader: Reader) -> None:
    """Let a follower that has not taken a chunk run the tool by itself."""
    waiter = reader.waits_for
    if waiter is not None and not waiter.done():
        waiter.set_result(UnsharedEntry(None, 0.0, 0.0))


# Readers


class Reader:
    """One call of a streaming tool: takes the chunks of the run that answers it, or those of a stored answer.

    Attributes:
        pump: makes the call: a task, or a `HandPump`; None if a hit has answered it.
        call: the `Call` that the pump makes, once there is one.
        stream: the run that it reads, once there is one.
        position: how many chunks of it were taken.
        has_left: whether its caller has stopped reading.
        owner: the task, or the thread, that has wanted the last chunk.
        is_waiting: whether it wants a chunk that is not there.
        waits_for: for a follower, the future of the flight that it has joined.
    """

    __slots__ = (
        "_error", "_is_writer", "_request", "_rest", "call", "has_left", "owner", "position", "pump",
        "stream", "waits_for",
    )  # fmt: skip

    is_waiting: bool
    _send, _throw = "asend", "athrow"  # methods of the generator

    def __init__(self, operation: Operation[Any]) -> None:
        self._error: BaseException | None = None
        self._is_writer = not operation.is_read
        self._request: Request | None = None
        self._rest: Iterator[Any] | None = None
        self.call: Call | None = None
        self.has_left = False
        self.owner: Any = None
        self.position = 0
        self.pump: Any = None
        self.stream: Stream | None = None
        self.waits_for: Any = None

    @property
    def has_ended_owner(self) -> bool:
        """Whether the task or the thread has ended that has wanted the last chunk."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let it look again, if it waits."""
        raise NotImplementedError

    def answer(self, value: Any) -> None:
        """Give it an answer that was stored, in place of a run."""
        self._rest = _chunks_of(value)

    def fail(self, error: BaseException) -> None:
        """End it by an exception, after the chunks that it can still take."""
        self._error = error
        self.wake()

    def may_take(self) -> bool:
        """Whether the next chunk is there. A whole answer that replaces a run is preferred to its first chunk."""
        stream, pump = self.stream, self.pump
        if stream is None or self.position >= stream.count:
            return False
        if self.position or stream.is_complete:
            return True
        return not pump.done() or pump.cancelled() or pump.exception() is not None

    def finish(self) -> None:
        """Read what the call has returned, after its chunks.

        Raises:
            BaseException: what it has raised; that of the run, if chunks of it were taken and another answer would
                replace them.
        """
        if self._error is not None:
            raise self._error
        answer, stream = self.pump.result(), self.stream
        if type(answer) is tuple:
            if stream is not None and stream.is_complete:
                answer = ()
            elif self.position:
                raise RuntimeError("this stream has failed") if stream is None or stream.error is None else stream.error
        self._rest = _chunks_of(answer)

    def take_request(self) -> Request | None:
        """What it sends or throws into the generator with this step."""
        request, self._request = self._request, None
        return request

    def send(self, value: Any) -> None:
        """Send a value into the generator with the next step.

        Raises:
            TypeError: for a read.
        """
        if not self._is_writer:
            raise TypeError(
                "no value can be sent into the stream of a read tool, since other callers may have the same one; make "
                "it an argument of the tool, or leave the tool undecorated"
            )
        self._request = methodcaller(self._send, value)

    def throw(self, error: BaseException) -> None:
        """Throw an exception into the generator with the next step; that of a read is left, and raises it."""
        if not self._is_writer:
            raise error
        self._request = methodcaller(self._throw, error)


def _chunks_of(answer: Any) -> Iterator[Any]:
    """The chunks of an answer. A session may give a text in place of one."""
    if answer is TOO_LONG:
        return iter(())
    return iter(answer if type(answer) is tuple else (answer,))


READER: ContextVar[Reader | None] = ContextVar("agent_cache_reader", default=None)
"""The reader that the running pump belongs to. What the tool calls and starts inherits it."""


def reader_here() -> Reader | None:
    """The reader of the call that is being made here: not that of a call around it."""
    reader = READER.get()
    return reader if reader is not None and reader.call is PLACE.get().call else None
