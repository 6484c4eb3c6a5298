"""Streaming tools: a generator whose chunks pass to its callers while it runs, and are stored when it has ended.

The engine runs a streaming tool like any other: its result is the tuple of its chunks. A task of its own, the *pump*,
makes that call, since a generator with context variables, timeouts or cancel scopes has to stay in one task, whoever
reads it. What the caller iterates over takes the chunks from the `Stream` of that run (`engine.stream_chunks`), its own
or that of the call that leads.

The hardest case: a caller that leads leaves the loop by `break`, and another one has joined. The pump goes on for that
one; when it leaves, too, the pump is cancelled, which closes the generator, and the reader waits for that. The event
loop closes a generator that was left by `break` in another task, so nothing here depends on the task of the reader.

A stream is read on demand: the generator goes on when one of its readers wants a chunk that is not there. A fast
reader is not held up by a slow one until it leads by ``max_stream_bytes``; so no more than that is kept for the slow
one. Nor is it held up then by a reader that cannot go on before it does, as far as that can be known.

Synchronous generators have no task: see `engine.thread_streams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.core.options import DEFAULT_STREAM_BYTES
from agent_cache.core.store import Entry, Store, UnsharedEntry
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS
from agent_cache.engine import stream_chunks
from agent_cache.engine.blocking import running_loop
from agent_cache.engine.call import hit, run
from agent_cache.engine.flight import Flight
from agent_cache.engine.interception import InterceptedCall
from agent_cache.engine.operation import Operation, Proceed
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.result import count_unstored, store_result
from agent_cache.engine.scope import PLACE, Call, Scope
from agent_cache.engine.state import event_loop, warn_once
from agent_cache.engine.stream_chunks import END, READER, TOO_LONG, Reader, Stream, reader_here
from agent_cache.engine.thread_streams import (
    ThreadReader,
    ThreadRelay,
    ThreadStream,
    ThreadStreamFlight,
    consume_in_thread,
)
from agent_cache.engine.write import Fill, WriteOperation
from agent_cache.values.canonical import MISSING, size_of
from agent_cache.values.copies import IMMUTABLE, CopyRule

__all__ = [
    "END",
    "StreamingRead",
    "StreamingWrite",
    "proceed_stream",
    "relayed",
]

Copier = Callable[[], Any]


# Runs in a task


class LoopStream(Stream):
    """A run of an async generator, in the pump of the call that leads."""

    __slots__ = ("_gate", "_held_up")

    def __init__(self, limit: int, rule: CopyRule | None = None, flight: Flight | None = None) -> None:
        super().__init__(limit, rule, flight)
        self._gate: asyncio.Future[None] | None = None
        self._held_up: dict[Reader, int] = {}

    async def run(self, generator: AsyncGenerator[Any, Any]) -> Any:
        """Read a generator to its end, as far as its readers want it. Returns the tuple of its chunks.

        Raises:
            CancelledError: if no reader is left.
            BaseException: what the generator raised.
        """
        try:
            while True:
                request = await self._wanted()
                began = CLOCK.now()
                try:
                    chunk = await (anext(generator) if request is None else request(generator))
                except StopAsyncIteration:
                    break
                finally:
                    self.seconds += CLOCK.now() - began
                self.publish(chunk)
        except (asyncio.CancelledError, GeneratorExit):  # the run was given up: it has no outcome
            raise
        except BaseException as error:
            self.error = error
            raise
        finally:
            await generator.aclose()
        return self.result()

    async def _wanted(self) -> Callable[[Any], Any] | None:
        """Wait until a reader wants the next chunk. Returns what it sends or throws into the generator."""
        while True:
            if self.is_abandoned:
                raise asyncio.CancelledError("nobody reads this stream any more")
            eager = [reader for reader in self.readers if reader.position == self.count and reader.is_waiting]
            if self.is_free or (eager and not (self.is_long and self._is_throttled())):
                return eager[0].take_request() if eager else None
            self._gate = asyncio.get_running_loop().create_future()
            await self._gate

    def _is_throttled(self) -> bool:
        """Whether others have to wait for a slow reader. It is cut off if it does not go on."""
        laggards = self.laggards()
        for reader in laggards:
            if self._held_up.get(reader) != reader.position:
                self._held_up[reader] = reader.position
                reader.owner.add_done_callback(self._owner_ended)
                loop = asyncio.get_running_loop()
                loop.call_later(stream_chunks.PATIENCE, self._look_after, reader, reader.position)
        return bool(laggards)

    def _owner_ended(self, _task: object) -> None:
        self.poke()

    def _look_after(self, reader: Reader, position: int) -> None:
        if reader.position == position and reader in self.readers and any(one.is_waiting for one in self.readers):
            self.cut_off(reader)

    def poke(self) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    def restart_as(self, other: Stream) -> None:
        """The run was interrupted: another one takes its place for those that have not taken a chunk of this one."""
        readers, self.readers = [*self.readers, *self.late], []
        for reader in readers:
            if reader.has_left:
                continue
            if reader.position:
                reader.fail(self.error or asyncio.CancelledError("the run of this stream was cancelled"))
            else:
                other.admit(reader)


class StreamFlight(Flight):
    """The load of a streaming tool. Whoever joins it reads its chunks from the first one on."""

    __slots__ = ("stream",)

    def __init__(
        self,
        store: Store,
        id: tuple[Hashable, Any],  # noqa: A002 - as in Flight
        tags: tuple[Tag, ...],
        late_roots: tuple[str, ...],
    ) -> None:
        super().__init__(store, id, tags, late_roots)
        self.stream: LoopStream = self._new_stream()

    def _new_stream(self) -> LoopStream:
        operation = self.store.tool
        return LoopStream(operation.policy.max_stream_bytes, operation.chunk_rule, self)

    def join(self) -> Any:
        waiter = super().join()
        reader = reader_here()
        if reader is not None:
            reader.waits_for = waiter
            self.stream.admit(reader)
        return waiter

    def restart(self) -> None:
        super().restart()
        former, self.stream = self.stream, self._new_stream()
        former.restart_as(self.stream)


class LoopReader(Reader):
    """One call of an async streaming tool."""

    __slots__ = ("_loop", "_waiter")

    def __init__(self, operation: Operation[Any], answer: Callable[[], Awaitable[Any]] | None = None) -> None:
        super().__init__(operation)
        self._waiter: asyncio.Future[None] | None = None
        if answer is not None:
            self._loop = event_loop(operation.name)
            name = f"agent_cache streams {operation.name}"
            self.pump = self._loop.create_task(self._make_call(answer), name=name)
            self.pump.add_done_callback(self._pump_ended)

    async def _make_call(self, answer: Callable[[], Awaitable[Any]]) -> Any:
        READER.set(self)
        try:
            return await answer()
        except (KeyboardInterrupt, SystemExit) as error:
            # Raised by a task it would end the event loop, and the caller would be cancelled in place of getting it.
            if self.has_left:
                raise
            self.fail(error)
            return ()

    def _pump_ended(self, pump: asyncio.Task[Any]) -> None:
        if not pump.cancelled():
            pump.exception()  # whether or not anybody is left to raise it to
        self.wake()

    @property
    def has_ended_owner(self) -> bool:
        return self.owner is None or self.owner.done()

    @property
    def is_waiting(self) -> bool:  # type: ignore[override]  # it is read only
        return self._waiter is not None and not self._waiter.done()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Any:
        """The next chunk, or `END`."""
        while self._rest is None:
            stream = self.stream
            if stream is not None and self.may_take():
                return stream.take(self)
            if self._error is not None or self.pump.done():
                self.finish()
                continue
            self._waiter = self._loop.create_future()
            self.owner = asyncio.current_task()
            if stream is not None:
                stream.poke()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return next(self._rest, END)

    async def leave(self) -> None:
        """Stop reading. If nobody else reads the run, it is cancelled, and has ended when this returns.

        Raises:
            Exception: what the generator raised when it was closed.
        """
        self.has_left = True
        stream, own = self.stream, self.pump
        leader = None if stream is None else stream.leader
        pumps: list[asyncio.Task[Any]] = []
        if stream is not None:
            stream.remove(self)
            if leader is not None and not stream.readers:
                pumps.append(leader.pump)
        if own is not None and leader is not self:
            pumps.append(own)
        running = [pump for pump in pumps if not pump.done()]
        if not running or self._loop.is_closed():
            return
        if running_loop() is not self._loop:  # closed by another loop, or by the garbage collector without one
            for pump in running:
                self._loop.call_soon_threadsafe(pump.cancel)
            return
        is_cancelled = False
        for pump in running:
            pump.cancel()
        while waiting := [pump for pump in running if not pump.done()]:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError:
                is_cancelled = True
                for pump in waiting:
                    pump.cancel()
        if is_cancelled:
            raise asyncio.CancelledError
        if own in running and not own.cancelled():
            own.result()


class LoopRelay:
    """Reads a stream that a recorder or a player gives, in place of one of ours.

    Args:
        stream: the stream.
        prepare: is awaited before the first chunk.
    """

    __slots__ = ("_prepare", "_step", "_stream")

    def __init__(
        self, stream: AsyncGenerator[Any, Any], prepare: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self._stream = stream
        self._prepare = prepare
        self._step: Callable[[], Awaitable[Any]] = self._receive

    def _receive(self) -> Awaitable[Any]:
        return anext(self._stream)

    async def next(self) -> Any:
        prepare, self._prepare = self._prepare, None
        if prepare is not None:
            await prepare()
        step, self._step = self._step, self._receive
        try:
            return await step()
        except StopAsyncIteration:
            return END

    def send(self, value: Any) -> None:
        self._step = partial(self._stream.asend, value)

    def throw(self, error: BaseException) -> None:
        self._step = partial(self._stream.athrow, error)

    async def leave(self) -> None:
        await self._stream.aclose()


async def consume(begin: Callable[[], Any], note_end: Callable[[], object] = int) -> AsyncGenerator[Any, Any]:
    """An async generator over what a reader gives. The generated body of a streaming tool does the same.

    Args:
        begin: is called when the iteration begins.
        note_end: is called when it has ended.
    """
    reader = begin()
    try:
        while True:
            chunk = await reader.next()
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
            await reader.leave()
        finally:
            note_end()


def relayed(stream: Any, prepare: Callable[[], Coroutine[Any, Any, object]], *, is_sync: bool) -> Any:
    """A stream that a recorder or a player gives, with something to be awaited before its first chunk."""
    if is_sync:
        return consume_in_thread(partial(ThreadRelay, stream, prepare))
    return consume(partial(LoopRelay, stream, prepare))


def proceed_stream(call: InterceptedCall) -> Any:
    """Make an intercepted call of a streaming tool as if there were no interceptor: as `InterceptedCall.proceed`.

    Returns:
        A generator, or an async one.
    """
    operation: Any = call.operation

    def begin() -> Any:
        outside = call.outside
        if outside.interceptor is not None:
            return operation.relay(outside.interceptor.play_stream(call.inside_of(outside)))
        token = call.enter()
        try:
            value = call.local_hit()
            if value is not MISSING:
                return operation.reader_of(value)
            return operation.read(outside, call.key, call.args, call.kwargs, is_fresh=call.is_fresh, intercepted=call)
        finally:
            call.leave(token)

    return operation.consume(begin, call.note_source)


# Runs


async def load_stream(call: Call) -> Any:
    """Run a streaming tool under single flight, and store its chunks if it ends by itself: its `own_load`."""
    operation = call.operation
    flight: StreamFlight | ThreadStreamFlight = call.flight  # type: ignore[assignment]  # of `flight_class`
    stream, reader = flight.stream, reader_here()
    if reader is not None and reader.position:
        # The run that this caller has read was interrupted, and another one would begin with the first chunk again.
        raise asyncio.CancelledError("the run of this stream was cancelled")
    call.within = flight if operation.policy.inherit else None
    call.started = CLOCK.now()
    value = await _start(stream, reader, call)
    call.cost = stream.seconds
    if value is not TOO_LONG and stream.uncopyable is None:
        store_result(call, value)
        return value
    if stream.uncopyable is None:
        flight.result = Entry(value, 0.0, call.cost)
        warn_once("a stream was longer than max_stream_bytes, so it was not cached", operation.name)
    else:
        flight.result = UnsharedEntry(None, 0.0, call.cost)
        warn_once("a chunk could not be copied, so its stream was not cached", operation.name, stream.uncopyable)
    count_unstored(call)
    if call.is_fresh or operation.policy.kept_for:
        with VERSIONS.lock:
            _former = flight.store.discard(call.key)
    return value


def _start(stream: LoopStream | ThreadStream, reader: Reader | None, call: Call) -> Awaitable[Any]:
    stream.start(call, reader)
    return stream.run(call.operation.function(*call.args, **call.kwargs))


def _collecting(operation: Operation[Any], limit: int) -> Callable[..., Coroutine[Any, Any, Any]]:
    """What runs a streaming tool where its run is not shared: uncached, or as a write."""
    kind = ThreadStream if operation.is_sync else LoopStream

    @wraps(operation.function)
    async def collect(*_args: Any, **_kwargs: Any) -> Any:
        call: Any = PLACE.get().call
        reader = reader_here()
        if reader is not None and reader.position:
            return TOO_LONG  # it has taken all chunks of a run that could not be stored
        return await _start(kind(limit), reader, call)

    return collect


async def _known_to_reader(proceed: Proceed, call: Call) -> Any:
    """Let the reader of a call know it. Around each call of a streaming tool."""
    reader = READER.get()
    if reader is not None:
        reader.call = call
    if call.within is not None and call.operation.is_read:
        # The tool that reads this stream may have ended before the stream does, since it has left the loop.
        call.within.inherit_tags(call.known_tags())
    return await proceed(call)


# Operations


class _Streaming(Operation[Any]):
    """What streaming tools of both kinds have in common."""

    __slots__ = ()

    is_stream = True

    def relay(self, stream: Any) -> Any:
        """A reader of a stream that a recorder or a player gives."""
        return ThreadRelay(stream) if self.is_sync else LoopRelay(stream)

    def consume(self, begin: Callable[[], Any], note_end: Callable[[], object] = int) -> Any:
        """A generator, or an async one, over what a reader gives."""
        return consume_in_thread(begin, note_end) if self.is_sync else consume(begin, note_end)

    def reader_of(self, value: Any) -> Reader:
        """A reader of an answer that was stored."""
        reader = ThreadReader(self) if self.is_sync else LoopReader(self)
        reader.answer(value)
        return reader

    def read(
        self,
        scope: Scope,
        key: Hashable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_fresh: bool = False,
        intercepted: InterceptedCall | None = None,
    ) -> Any:
        """Begin a call that no local hit has answered. Returns its reader."""
        if scope.interceptor is not None:
            call = InterceptedCall(self, scope, key, args, kwargs, is_fresh=is_fresh)
            return self.relay(scope.interceptor.play_stream(call))
        answer = partial(run, self, scope, key, args, kwargs, is_fresh=is_fresh, intercepted=intercepted)
        return ThreadReader(self, answer) if self.is_sync else LoopReader(self, answer)

    def is_successful(self, value: Any) -> bool:
        return value is TOO_LONG or super().is_successful(value)


class StreamingRead(_Streaming, ReadOperation):
    """A decorated read tool that is a generator function, async or not. Its result is the tuple of its chunks.

    Attributes:
        chunk_rule: how chunks are protected from readers that change them.
    """

    __slots__ = ("chunk_rule",)

    def __init__(
        self, function: Callable[..., Any], name: str, parameters: Any, tags: Any, policy: Any, *rest: Any,
        **options: Any,
    ) -> None:  # fmt: skip
        self.chunk_rule: CopyRule = policy.copy_rule
        policy = replace(policy, copy_rule=_of_chunks(policy.copy_rule))
        super().__init__(function, name, parameters, tags, policy, *rest, **options)
        self.run_with(_collecting(self, policy.max_stream_bytes))
        self.around, self.own_load = _known_to_reader, load_stream
        self.flight_class = ThreadStreamFlight if self.is_sync else StreamFlight

    @property
    def returns(self) -> Any:
        """The annotation of the tuple of its chunks."""
        if self._returns is None:
            from agent_cache.values.typed import ReturnedChunks

            self._returns = ReturnedChunks(self.function)
        return self._returns

    def begin(self, /, *args: Any, **kwargs: Any) -> Any:
        """Begin a call with arguments in their canonical spelling. Returns its reader."""
        arguments = self.parameters.named(args, kwargs)
        here = PLACE.get()
        key = self.key_or_unkeyed(arguments)
        value = hit(self, here, key, arguments)
        return self.read(here.scope, key, args, kwargs) if value is MISSING else self.reader_of(value)

    def fresh(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the tool now, whatever is cached, and store its chunks; inside `bypass` they are not stored."""
        arguments = self.bind("fresh", args, kwargs)
        split = self.parameters.split(arguments)

        def begin() -> Any:
            return self.read(PLACE.get().scope, self.key_or_unkeyed(arguments), *split, is_fresh=True)

        return self.consume(begin)

    async def set(self, value: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Store the chunks of a stream that the caller has, as if a load had yielded them. See `ReadOperation.set`.

        Raises:
            TypeError: if they are not a sequence of chunks.
        """
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"set takes the sequence of chunks of {self.name}, not a {type(value).__name__}")
        return await super().set(tuple(value), *args, **kwargs)

    def _fill(self, call: Call, value: Any) -> Fill | None:
        return None if sum(map(size_of, value)) > self.policy.max_stream_bytes else super()._fill(call, value)


class StreamingWrite(_Streaming, WriteOperation):
    """A decorated write tool that is a generator function: it begins with the iteration, and ends with it."""

    __slots__ = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.run_with(_collecting(self, DEFAULT_STREAM_BYTES))
        self.around = _known_to_reader

    def begin(self, /, *args: Any, **kwargs: Any) -> Any:
        """Begin a call with arguments in their canonical spelling. Returns its reader."""
        return self.read(PLACE.get().scope, None, args, kwargs)


def _of_chunks(rule: CopyRule) -> CopyRule:
    """The rule for tuples of chunks, by the rule for chunks."""
    if rule.name in ("auto", "never"):
        return rule

    def snapshot(chunks: Sequence[Any]) -> Copier | None:
        copiers = [None if type(chunk) in IMMUTABLE else rule.snapshot(chunk) for chunk in chunks]
        if not any(copiers):
            return None
        pairs = list(zip(chunks, copiers, strict=True))
        return lambda: tuple([chunk if copier is None else copier() for chunk, copier in pairs])

    return CopyRule(rule.name, snapshot)
