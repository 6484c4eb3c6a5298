"""Synchronous streaming tools: generators that are read in threads, and stored as async ones are.

There is no task that could run the generator. The call of a reader is a coroutine of the engine (`engine.blocking`),
which a `HandPump` drives, in the thread of whoever needs a chunk: the reader that leads, or one that follows and is
ahead of it. A lock lets one of them at a time. So the first caller holds up no other one, and one that has left is
continued by those that are there; in turn a generator may be continued in the thread of another caller.

Nobody waits for a flight here: a follower drives the call that leads. So two readers in one thread cannot wait for each
other, and if a run is interrupted, each follower that has taken nothing runs the tool itself.
"""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from concurrent.futures import CancelledError as CancelledFuture
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.store import Store, UnsharedEntry
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS
from agent_cache.engine import stream_chunks
from agent_cache.engine.blocking import Waiter, run_blocking, running_loop
from agent_cache.engine.flight import Flight
from agent_cache.engine.operation import Operation
from agent_cache.engine.stream_chunks import END, READER, Reader, Stream, leave_to_itself, reader_here
from agent_cache.values.canonical import MISSING

__all__ = ["ThreadReader", "ThreadRelay", "ThreadStream", "ThreadStreamFlight", "consume_in_thread"]

_POLL: Final = 1.0
"""Seconds between two looks whether the thread of a slow reader has ended, which tells nobody."""


class _Pause:
    """Awaited by a run after each chunk: its pump returns to the reader."""

    __slots__ = ()

    def __await__(self) -> Generator[_Pause, None, None]:
        yield self


_PAUSE: Final = _Pause()


class ThreadStream(Stream):
    """A run of a generator, in the pump of the call that leads."""

    __slots__ = ("_changed",)

    def __init__(self, limit: int, rule: Any = None, flight: Any = None) -> None:
        super().__init__(limit, rule, flight)
        self._changed = threading.Condition(self._lock)

    async def run(self, generator: Generator[Any, Any, Any]) -> Any:
        """Read a generator to its end, as far as its readers want it. Returns the tuple of its chunks.

        Raises:
            CancelledError: if it is a reload that nobody may keep.
            BaseException: what the generator raised.
        """
        try:
            while True:
                request = self._request()
                began = CLOCK.now()
                try:
                    chunk = next(generator) if request is None else request(generator)
                except StopIteration:
                    break
                finally:
                    self.seconds += CLOCK.now() - began
                self.publish(chunk)
                if self.is_free:
                    self._check_kept()
                else:
                    await _PAUSE
        except Exception as error:
            self.error = error
            raise
        finally:
            generator.close()
        return self.result()

    def _check_kept(self) -> None:
        """Break a reload off that nobody reads and that is too long to be stored."""
        if self.is_abandoned:
            raise CancelledError("this stream is reloaded, and is longer than what may be kept")

    def _request(self) -> Callable[[Any], Any] | None:
        with self._lock:
            return self.readers[0].take_request() if self.readers and self._flight is None else None

    def wait_for_slow(self, is_needed: Callable[[], bool]) -> None:
        """Wait until no reader is too far behind, or the next chunk is not needed. Who does not go on is cut off."""
        if not self.is_long or running_loop() is not None:
            return
        end = monotonic() + stream_chunks.PATIENCE
        with self._changed:
            positions: dict[Reader, int] = {}
            while is_needed():
                laggards = self.laggards()
                if not laggards:
                    return
                left = end - monotonic()
                if left <= 0:
                    for one in laggards:
                        if positions.get(one) == one.position:
                            self.cut_off(one)
                    end = monotonic() + stream_chunks.PATIENCE
                    positions.clear()
                for one in laggards:
                    positions.setdefault(one, one.position)
                self._changed.wait(max(0.0, min(left, _POLL)))

    def interrupt(self) -> None:
        """Leave the followers that have taken nothing to themselves. The others fail after the chunks that are there.

        In one step: a follower may be taking its first chunk in another thread.
        """
        with self._lock:
            followers = [reader for reader in self.readers if reader is not self.leader]
            for reader in followers:
                if not reader.position:
                    self.remove(reader)
                    reader.stream = None
        for reader in followers:
            if reader.stream is self:
                reader.fail(self.error or RuntimeError("the run of this stream was interrupted"))
        self.poke()

    def poke(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ThreadStreamFlight(Flight):
    """The load of a synchronous streaming tool. Whoever joins it reads its chunks from the first one on."""

    __slots__ = ("stream",)

    def __init__(
        self,
        store: Store,
        id: tuple[Hashable, Any],  # noqa: A002 - as in Flight
        tags: tuple[Tag, ...],
        late_roots: tuple[str, ...],
    ) -> None:
        super().__init__(store, id, tags, late_roots)
        operation = store.tool
        self.stream = ThreadStream(operation.policy.max_stream_bytes, operation.chunk_rule, self)
        self.stream.leader = reader_here()  # before anybody joins, who may have to continue its call

    def join(self) -> Any:
        waiter = super().join()
        reader = reader_here()
        if reader is not None:
            reader.waits_for = waiter
            if not self.stream.admit(reader):
                leave_to_itself(reader)
        return waiter

    def hand_over(self) -> None:
        """The run was interrupted: each follower runs the tool itself, since the thread of none is to wait for another.

        One that has taken chunks is told.
        """
        with VERSIONS.lock:
            waiters, self.waiters = self.waiters, None
            self.finish()
        self.stream.interrupt()
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(UnsharedEntry(None, 0.0, 0.0))


# Pumps


class HandPump:
    """Makes the call of one reader, driven by hand by the threads that need it to go on."""

    __slots__ = ("_context", "_coroutine", "_error", "_is_done", "_lock", "_reader", "_result", "_thread", "_waiter")

    def __init__(self, reader: ThreadReader, call: Coroutine[Any, Any, Any]) -> None:
        self._context = copy_context()
        self._coroutine = call
        self._error: BaseException | None = None
        self._is_done = False
        self._lock = threading.RLock()
        self._reader = reader
        self._result: Any = None
        self._thread: int | None = None
        self._waiter: Waiter | None = None

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether it was interrupted."""
        return isinstance(self._error, CancelledError)

    def exception(self) -> BaseException | None:
        """What it has raised."""
        return self._error

    def result(self) -> Any:
        """What it has returned.

        Raises:
            BaseException: what it has raised.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def advance(self, is_needed: Callable[[], bool]) -> None:
        """Go on to the next chunk, to the end, or to where it waits for another call whose chunks its reader takes.

        Args:
            is_needed: asked once no other thread is at it: whether it is still to go on.

        Raises:
            BaseException: what interrupts this thread, such as a `KeyboardInterrupt`.
        """
        if self._thread == threading.get_ident():
            raise ValueError("this stream is read by the generator that yields it")
        with self._lock:
            if not self._is_done and is_needed():
                self._go_on(None)

    def cancel(self) -> None:
        """Interrupt the call, and wait until it has ended."""
        if self._thread == threading.get_ident():
            return  # by the garbage collector, from inside of the generator
        with self._lock:
            interruption: BaseException | None = CancelledError("nobody reads this stream any more")
            while not self._is_done:
                self._go_on(interruption)
                interruption = None

    def _go_on(self, interruption: BaseException | None) -> None:
        self._thread = threading.get_ident()
        try:
            while True:
                if interruption is None and self._waiter is not None and not self._waiter.done():
                    if self._reader.follows(self._waiter):
                        return
                    interruption = _interruption_of(self._waiter)
                step = self._coroutine.send if interruption is None else self._coroutine.throw
                argument, interruption = interruption, None
                try:
                    waiter = self._context.run(step, argument)  # type: ignore[arg-type]  # None is what it is sent
                except StopIteration as end:
                    self._result = end.value
                    self._is_done = True
                    return
                except BaseException as error:
                    self._error = error
                    self._is_done = True
                    if isinstance(error, Exception | CancelledError):
                        return
                    self._context.run(self._coroutine.close)  # which has not begun its step, if it was met before it
                    # It interrupts this thread. Who reads the call in another one is told so by an error of its own.
                    self._error = RuntimeError("the run of this stream was interrupted in another thread")
                    self._error.__cause__ = error
                    raise
                if waiter is _PAUSE:
                    self._waiter = None
                    return
                self._waiter = waiter
        finally:
            self._thread = None


def _interruption_of(waiter: Waiter) -> BaseException | None:
    """Wait in this thread. Returns what has interrupted it, to be handled by the code that waits."""
    try:
        waiter.exception()
    except CancelledFuture:
        return None  # what awaits it raises this
    except BaseException as interruption:  # noqa: BLE001 - it is raised where this is awaited
        return interruption
    return None


class ThreadReader(Reader):
    """One call of a synchronous streaming tool."""

    __slots__ = ("is_waiting",)

    _send, _throw = "send", "throw"

    def __init__(self, operation: Operation[Any], answer: Callable[[], Awaitable[Any]] | None = None) -> None:
        super().__init__(operation)
        self.is_waiting = False
        if answer is not None:
            self.pump = HandPump(self, self._make_call(answer))

    async def _make_call(self, answer: Callable[[], Awaitable[Any]]) -> Any:
        READER.set(self)
        return await answer()

    @property
    def has_ended_owner(self) -> bool:
        return self.owner is None or not self.owner.is_alive()

    def wake(self) -> None:
        """It waits for the lock of a pump, or for slow readers, and looks again by itself."""

    def follows(self, waiter: Waiter) -> bool:
        """Whether it takes the chunks of the call that it waits for by this future."""
        leader = None if self.stream is None else self.stream.leader
        return waiter is self.waits_for and leader is not None and not leader.pump.done()

    def next(self) -> Any:
        """The next chunk, or `END`."""
        while self._rest is None:
            stream = self.stream
            # Asked before the look for a chunk: another thread may end the run after it, with chunks it has not seen.
            has_ended = self._error is not None or self.pump.done()
            if stream is not None and self.may_take():
                chunk = stream.take(self)
                if chunk is not MISSING:
                    return chunk
            elif has_ended:
                self.finish()
            else:
                self._go_on(stream)
        return next(self._rest, END)

    def _go_on(self, stream: Any) -> None:
        leader = None if stream is None else stream.leader
        self.owner = threading.current_thread()
        self.is_waiting = True
        try:
            if leader is None or leader.pump.done():
                self.pump.advance(_always)
            else:
                wants = partial(self._wants, stream)
                stream.wait_for_slow(wants)
                leader.pump.advance(wants)
        finally:
            self.is_waiting = False

    def _wants(self, stream: Stream) -> bool:
        if self.stream is not stream or self._error is not None or self.position != stream.count:
            return False
        return stream.leader is not None and not stream.leader.pump.done()

    def leave(self) -> None:
        """Stop reading. If nobody else reads the run, it is interrupted, and has ended when this returns.

        Raises:
            Exception: what the generator raised when it was closed.
        """
        stream, own = self.stream, self.pump
        if own is None:
            return
        was_done = own.done()
        leader = None if stream is None else stream.leader
        if stream is not None:
            stream.remove(self)
            if leader is not None and not stream.readers:
                leader.pump.cancel()
        if leader is not self:
            own.cancel()
        error = own.exception()
        if not was_done and own.done() and error is not None and not own.cancelled():
            raise error


def _always() -> bool:
    return True


class ThreadRelay:
    """Reads a stream that a recorder or a player gives, in place of one of ours.

    Args:
        stream: the stream.
        prepare: is run before the first chunk.
    """

    __slots__ = ("_prepare", "_step", "_stream")

    def __init__(
        self, stream: Generator[Any, Any, Any], prepare: Callable[[], Coroutine[Any, Any, object]] | None = None
    ) -> None:
        self._stream = stream
        self._prepare = prepare
        self._step: Callable[[], Any] = self._receive

    def _receive(self) -> Any:
        return next(self._stream)

    def next(self) -> Any:
        prepare, self._prepare = self._prepare, None
        if prepare is not None:
            run_blocking(prepare())
        step, self._step = self._step, self._receive
        try:
            return step()
        except StopIteration:
            return END

    def send(self, value: Any) -> None:
        self._step = partial(self._stream.send, value)

    def throw(self, error: BaseException) -> None:
        self._step = partial(self._stream.throw, error)

    def leave(self) -> None:
        self._stream.close()


def consume_in_thread(begin: Callable[[], Any], note_end: Callable[[], object] = int) -> Generator[Any, Any, Any]:
    """A generator over what a reader gives: as `engine.streaming.consume`."""
    reader = begin()
    try:
        while True:
            chunk = reader.next()
            if chunk is END:
                return
            try:
                sent = yield chunk
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - thrown in by the consumer, and passed on
                reader.throw(error)
            else:
                if sent is not None:
                    reader.send(sent)
    finally:
        try:
            reader.leave()
        finally:
            note_end()
