"""Streaming tools: generators whose chunks pass to their callers while they run, and are stored when they have ended.

A `Stream` is one run of a generator with its chunks so far, which is read on when a caller wants a chunk that is not
there. A `Cursor` is one call: what its caller iterates over, and where it is in the chunks of the run that answers it.
It makes that call as other tools are called, with the tuple of the chunks as the result. Of an `async def` the call is
a task, since a generator with timeouts or context variables has to stay in one. It goes on when its own caller has
left, and is cancelled with the last one that follows it. Of a `def` it is a coroutine that its caller continues by
hand, in its thread, and nobody else follows it.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import partial
from sys import getsizeof
from types import coroutine
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.options import DEFAULT_STREAM_BYTES
from agent_cache.core.store import Entry, UnsharedEntry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.blocking import PAUSE, run_blocking
from agent_cache.engine.call import hit, run
from agent_cache.engine.flight import Flight
from agent_cache.engine.hooks import HookedCall, answered_plainly
from agent_cache.engine.operation import TOO_LONG, Operation, Proceed
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.result import count_unstored, store_result
from agent_cache.engine.scope import PLACE, Call, Scope
from agent_cache.engine.state import event_loop, warn_once
from agent_cache.engine.write import Fill, WriteOperation
from agent_cache.values.canonical import MISSING, size_of
from agent_cache.values.copies import IMMUTABLE, CopyRule, UncopyableError, auto_copier, shared

__all__ = ["END", "WAIT", "StreamingRead", "StreamingWrite"]

END: Final = object()
"""What a cursor gives after the last chunk."""

WAIT: Final = object()
"""What a cursor gives if the next chunk is not there yet."""

_NOT_SHARED: Final = UnsharedEntry(None, 0.0, 0.0)
"""Lets a call that waits for a load run the tool by itself."""


# Runs


@dataclass(slots=True, eq=False)
class _Chunk:
    """One chunk of a run, or its beginning. Linked, as in `itertools.tee`: what all have passed is freed."""

    value: Any = None  # for the call that leads, and for others if it may be shared
    copier: Callable[[], Any] | None = None  # makes what others get and what is stored
    next: _Chunk | None = None


class Stream:
    """One run of a generator, and who follows its chunks: that is changed under the lock of the versions.

    The call of `leader` runs it; none does for a reload in the background. There is no `flight` where the run is not
    shared. Its beginning is kept until the chunks are too long to be stored. `seconds` are those of the generator
    alone, without what its callers took between the chunks.
    """

    def __init__(self, operation: Any, leader: Cursor | None, flight: Flight | None = None) -> None:
        self._operation, self._flight = operation, flight
        self._room: int = operation.policy.max_stream_bytes if operation.is_read else DEFAULT_STREAM_BYTES
        self._rule: CopyRule | None = None if flight is None else operation.chunk_rule
        self._last = _Chunk()
        self._beginning: _Chunk | None = self._last
        self._cursors: list[Cursor] = []
        self.leader, self.seconds, self.wanted = leader, 0.0, asyncio.Event()
        self.error: Exception | None = None
        if leader is not None:
            self.admit(leader)

    async def run(self, generator: Any) -> Any:
        """Read a generator to its end, as its callers want it; without one, until it is too long to be stored. Returns
        the tuple of its chunks, or `TOO_LONG`.
        """
        is_sync = self._operation.is_sync
        end = StopIteration if is_sync else StopAsyncIteration
        try:
            while self.leader is not None or self._cursors or self._beginning is not None:
                began = CLOCK.now()
                try:
                    value = next(generator) if is_sync else await anext(generator)
                except end:
                    break
                finally:
                    self.seconds += CLOCK.now() - began
                self._add(value)
                if self.leader is not None and is_sync:
                    await _pause()
                elif self.leader is not None:
                    self.wanted.clear()
                    await self.wanted.wait()
        except Exception as error:
            self.error = error
            raise
        finally:
            if is_sync:
                generator.close()
            else:
                await generator.aclose()
        chunk, chunks = self._beginning, []
        try:
            while chunk is not None and (chunk := chunk.next) is not None:
                chunks.append(chunk.value if chunk.copier is None else chunk.copier())
        except Exception as error:  # noqa: BLE001 - of a function that is `copy=`
            self._beginning = None
            warn_once("a chunk could not be copied, so its stream was not cached", self._operation.name, error)
        return TOO_LONG if self._beginning is None else tuple(chunks)

    def _add(self, value: Any) -> None:
        copier, flight = None, self._flight
        if self._rule is not None and type(value) not in IMMUTABLE:
            try:
                copier = self._rule(value)
            except UncopyableError as error:
                self.unshare("it has a chunk that cannot be copied")
                self._rule = self._beginning = None
                warn_once("a chunk could not be copied, so its stream was not cached", self._operation.name, error)
        if flight is not None and flight.inherited is not None:
            leader: Any = flight.leader
            if not flight.inherited.belongs_to(flight.store.owner, leader.local.tenant):
                self.unshare("it depends on a session or a tenant, whose data other callers must not get")
        self._last.next = self._last = _Chunk(value, copier)
        self._room -= getsizeof(value) if type(value) in IMMUTABLE else size_of(value)  # which takes 1 us
        if self._beginning is not None and self._room < 0:
            with VERSIONS.lock:
                self._beginning = None
                if flight is not None:
                    flight.detach()
            if flight is not None:
                warn_once("a stream was longer than max_stream_bytes, so it was not cached", self._operation.name)
        for cursor in tuple(self._cursors):
            cursor.wake()

    def admit(self, cursor: Cursor) -> None:
        """Let a call follow it from its beginning. If it is shared, the caller holds the lock."""
        cursor.at, cursor.stream = self._beginning, self
        self._cursors.append(cursor)
        cursor.wake()

    def remove(self, cursor: Cursor) -> bool:
        """Let a call go. Returns whether it was the last one: then nobody joins any more."""
        with VERSIONS.lock:
            if cursor in self._cursors:
                self._cursors.remove(cursor)
            is_last = not self._cursors and self.leader is not None
            if is_last and self._flight is not None:
                self._flight.detach()
        return is_last

    def unshare(self, reason: str) -> None:
        """Leave it to the call that leads. The others run the tool by themselves, or raise if they have chunks."""
        flight, self._flight = self._flight, None
        with VERSIONS.lock:
            for cursor in tuple(self._cursors):
                if cursor is not self.leader:
                    self._cursors.remove(cursor)
                    cursor.at = cursor.stream = None
                    cursor.lost = reason
            if flight is not None:
                flight.land(_NOT_SHARED)


class StreamFlight(Flight):
    """The load of a streaming tool: whoever joins it follows its stream, and nobody else leads it. That of a `def` is
    not joined: a generator would go on in the threads of others.
    """

    __slots__ = ("stream",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stream = Stream(self.store.tool, _cursor_here(), self)

    def is_current(self) -> bool:
        return not self.store.tool.is_sync and super().is_current()

    def join(self) -> Any:
        waiter = super().join()
        cursor = _cursor_here()
        if cursor is not None:
            self.stream.admit(cursor)
        return waiter

    def hand_over(self) -> None:
        self.stream.unshare("its run was interrupted")
        self.land(_NOT_SHARED)


# Calls


class Cursor:
    """One call of a streaming tool: `answer` makes it, or `value` has answered it already.

    Attributes:
        stream, at: the run that it follows, and the last chunk of it that was taken; None until there is one.
        count: how many chunks were taken.
        call: its `Call`, once there is one.
        lost: why it cannot follow its run any more.
        outcome: what the call has returned, or raised.
    """

    def __init__(
        self, operation: Operation[Any], answer: Callable[[], Awaitable[Any]] | None = None, value: Any = None
    ) -> None:
        self.stream: Stream | None = None
        self.at: _Chunk | None = None
        self.count, self.lost = 0, ""
        self.call: Call | None = None
        self._running: Any = None  # the task of the call; of a `def` its context and its coroutine
        self.outcome: tuple[Any, BaseException | None] | None = (value, None) if answer is None else None
        if answer is not None:
            self._start(operation, answer)

    async def _make_call(self, answer: Callable[[], Awaitable[Any]]) -> None:
        _CURSOR.set(self)
        try:
            self.outcome = await answer(), None
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller; a task would end the event loop
            self.outcome = None, error
        self.wake()

    def take(self) -> Any:
        """The next chunk, `WAIT`, or `END`. Raises what the call has raised, after its chunks."""
        at, stream = self.at, self.stream
        if at is not None and stream is not None and (chunk := at.next) is not None:
            self.at = chunk
            self.count += 1
            return chunk.value if chunk.copier is None or self is stream.leader else chunk.copier()
        if self.outcome is None:
            return WAIT
        value, error = self.outcome
        if error is None and self.count and stream is not None:
            error = stream.error  # a stored answer would replace the chunks that were taken
        if error is not None:
            raise error
        if value is TOO_LONG:
            value = ()
        # A session may give a text in place of the chunks.
        rest = iter(value[self.count :] if type(value) is tuple else (value,))
        self.take = partial(next, rest, END)  # type: ignore[method-assign]  # a hit takes its chunks without a frame
        return next(rest, END)

    def refuse(self) -> None:
        """Refuse a value that is sent into the stream: other callers may have the same one."""
        raise TypeError("no value can be sent into a cached stream; make it an argument of the tool")

    # What differs for a `def`: see `ThreadCursor`

    def _start(self, operation: Operation[Any], answer: Any) -> None:
        self._news = asyncio.Event()
        loop, name = event_loop(operation.name), f"agent_cache streams {operation.name}"
        self._running = loop.create_task(self._make_call(answer), name=name)

    async def wait(self) -> None:
        """Wait until there may be another chunk."""
        self._news.clear()
        if self.stream is not None:
            self.stream.wanted.set()
        await self._news.wait()

    def wake(self) -> None:
        """Let it look again, if it waits."""
        self._news.set()

    async def leave(self) -> None:
        """Stop reading, and wait until the run has ended, if nobody else follows it."""
        stream = self.stream
        leader = self if stream is None else stream.leader
        is_last = stream is None or stream.remove(self)
        running = [one for one in {self, leader} if one is not None and one.outcome is None]
        ending = [one for one in running if is_last or one is not leader]
        for one in ending:
            one._running.cancel()
        if ending:  # cancelled itself, it cancels them again
            await asyncio.gather(*[one._running for one in ending], return_exceptions=True)
        self._let_go(may_raise=self in ending)

    def _let_go(self, *, may_raise: bool) -> None:
        """After the end of the call, raise what is left to be raised, and refer to nothing: its run refers to it, and
        the chunks would be freed by the next garbage collection only.
        """
        if self.outcome is None or self._running is None:  # it goes on for others, or was a hit
            return
        error, stream = self.outcome[1], self.stream
        if stream is not None and stream.leader is self:
            stream._flight = None
        self.stream = self.at = self.call = self._running = None
        self.outcome = None, None
        if may_raise and error is not None and not isinstance(error, CancelledError):
            raise error


_CURSOR: ContextVar[Cursor | None] = ContextVar("agent_cache_cursor", default=None)
"""The cursor whose call is made in this context, or around it."""


def _cursor_here() -> Cursor | None:
    """The cursor of the call that is being made here: not that of a call around it."""
    cursor = _CURSOR.get()
    return cursor if cursor is not None and cursor.call is PLACE.get().call is not None else None


@coroutine
def _pause() -> Generator[object, None, None]:
    """Return from the run of a `def` to the caller that has continued it."""
    yield PAUSE


class ThreadCursor(Cursor):
    """The call of a synchronous generator, which its caller continues, in a context of its own."""

    def _start(self, operation: Operation[Any], answer: Any) -> None:  # noqa: ARG002 - as `Cursor` has it
        self._running = copy_context(), self._make_call(answer)

    def wait(self) -> None:  # type: ignore[override]  # nothing is to be awaited
        """Go on to the next chunk, or to the end."""
        self._go_on()

    def wake(self) -> None:
        """Nothing waits."""

    def leave(self) -> None:  # type: ignore[override]  # nothing is to be awaited
        if may_raise := self.outcome is None:
            try:
                self._go_on(is_left=True)
            except CancelledError:
                return  # it had not begun
            while self.outcome is None:
                self._go_on()
        self._let_go(may_raise=may_raise)

    def _go_on(self, *, is_left: bool = False) -> None:
        context, work = self._running
        try:
            context.run(run_blocking, work, CancelledError("nobody reads this stream any more") if is_left else None)
        except BaseException as error:  # it has met the call before its first step, or after its last one
            work.close()
            self.outcome = None, error
            raise


# Operations


async def _load_stream(call: Call) -> Any:
    """Run a streaming tool under single flight, and store its chunks if it ends by itself: its `own_load`."""
    operation = call.operation
    flight: StreamFlight = call.flight  # type: ignore[assignment]  # of its `flight_class`
    call.within = flight if operation.policy.inherit else None
    call.started = CLOCK.now()
    value = await flight.stream.run(operation.function(*call.args, **call.kwargs))
    call.cost = flight.stream.seconds
    if value is not TOO_LONG:
        store_result(call, value)
        return value
    flight.result = Entry(value, 0.0, call.cost)
    count_unstored(call)
    if call.is_fresh or operation.policy.kept_for:
        with VERSIONS.lock:
            _former = flight.store.discard(call.key)
    return value


async def _note_call(proceed: Proceed, call: Call) -> Any:
    """Let its cursor know a call. Around each call of a streaming tool."""
    cursor = _CURSOR.get()
    if cursor is not None:
        cursor.call = call
    if call.within is not None and call.operation.is_read:
        # The tool that reads this stream may have ended before the stream does, since it has left the loop.
        call.within.inherit_tags(call.known_tags())
    return await proceed(call)


class _Streaming(Operation[Any]):
    """What streaming tools of both kinds have in common."""

    __slots__ = ()

    is_stream = True
    iterate: Callable[[Callable[[], Cursor]], Any]
    """Makes a generator, or an async one, over the cursor that its argument makes: see `engine.body`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.coroutine_function, self.returns_at_once = self._run_alone, False  # which is awaited
        self.around = _note_call

    async def _run_alone(self, *args: Any, **kwargs: Any) -> Any:
        """Run the tool where its run is not shared: uncached, or as a write."""
        cursor = _cursor_here()
        if cursor is not None and cursor.count:
            raise RuntimeError(f"this stream was shared with another caller, and now {cursor.lost}")
        return await Stream(self, cursor).run(self.function(*args, **kwargs))

    def cursor(self, answer: Callable[[], Awaitable[Any]] | None = None, value: Any = None) -> Cursor:
        """A cursor over the answer to a call: see `Cursor`."""
        return (ThreadCursor if self.is_sync else Cursor)(self, answer, value)

    def read(
        self, scope: Scope, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_fresh: bool = False
    ) -> Cursor:
        """Begin a call that no local hit has answered: as `engine.call.run`."""
        if scope.hook is None:
            return self.cursor(partial(run, self, scope, key, args, kwargs, is_fresh=is_fresh))
        hooked = HookedCall(self, scope, key, args, kwargs, is_fresh=is_fresh)
        outside = partial(run, self, hooked.outside, key, args, kwargs, is_fresh=is_fresh, hooked=hooked)
        chunks = answered_plainly(scope, hooked, partial(self.iterate, partial(self.cursor, outside)))
        return self.cursor(lambda: Stream(self, _CURSOR.get()).run(chunks))

    def is_successful(self, value: Any) -> bool:
        return value is TOO_LONG or super().is_successful(value)


class StreamingRead(_Streaming, ReadOperation):
    """A decorated read tool that is a generator function, async or not. Its result is the tuple of its chunks, which
    `chunk_rule` protects from callers that change them.
    """

    __slots__ = ("chunk_rule", "iterate")

    def __init__(self, function: Any, name: str, parameters: Any, tags: Any, policy: Any, *rest: Any, **options: Any):
        self.chunk_rule: CopyRule = policy.copy_rule
        policy = replace(policy, copy_rule=_of_chunks(policy.copy_rule))
        super().__init__(function, name, parameters, tags, policy, *rest, **options)
        self.own_load, self.flight_class = _load_stream, StreamFlight

    @property
    def returns(self) -> Any:
        """The annotation of the tuple of its chunks."""
        if self._returns is None:
            from agent_cache.values.typed import ReturnedChunks

            self._returns = ReturnedChunks(self.function)
        return self._returns

    def begin(self, /, *args: Any, **kwargs: Any) -> Cursor:
        """Begin a call with arguments in their canonical spelling."""
        arguments = self.parameters.named(args, kwargs)
        here = PLACE.get()
        key = self.key_or_unkeyed(arguments)
        value = hit(self, here, key, arguments)
        return self.read(here.scope, key, args, kwargs) if value is MISSING else self.cursor(value=value)

    def fresh(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the tool now, whatever is cached, and store its chunks; inside `bypass` they are not stored."""
        arguments = self.bind("fresh", args, kwargs)
        split = self.parameters.split(arguments)
        return self.iterate(lambda: self.read(PLACE.get().scope, self.key_or_unkeyed(arguments), *split, is_fresh=True))

    async def set(self, value: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Store the chunks of a stream that the caller has, as if a load had yielded them: as `ReadOperation.set`."""
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"set takes the sequence of chunks of {self.name}, not a {type(value).__name__}")
        return await super().set(tuple(value), *args, **kwargs)

    def _fill(self, call: Call, value: Any) -> Fill | None:
        return None if sum(map(size_of, value)) > self.policy.max_stream_bytes else super()._fill(call, value)


class StreamingWrite(_Streaming, WriteOperation):
    """A decorated write tool that is a generator function: it begins with the iteration, and ends with it."""

    __slots__ = ("iterate",)

    def begin(self, /, *args: Any, **kwargs: Any) -> Cursor:
        """Begin a call with arguments in their canonical spelling."""
        return self.read(PLACE.get().scope, None, args, kwargs)


def _of_chunks(rule: CopyRule) -> CopyRule:
    """The rule for tuples of chunks, by the rule for chunks."""

    def snapshot(chunks: Sequence[Any]) -> Callable[[], Any]:
        pairs = [(chunk, None if type(chunk) in IMMUTABLE else rule(chunk)) for chunk in chunks]
        return lambda: tuple([chunk if copier is None else copier() for chunk, copier in pairs])

    return rule if rule in (auto_copier, shared) else snapshot
