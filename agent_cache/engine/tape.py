"""What stands around every call of a scope that is recorded or replayed."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from agent_cache.config import CURRENT
from agent_cache.core.store import Entry
from agent_cache.engine.assemble import beneath_a_tape, under_a_tape
from agent_cache.engine.call import Call, Proceed
from agent_cache.engine.scope import Participant, Plan, Scope
from agent_cache.engine.watches import Instead
from agent_cache.values.canonical import MISSING

if TYPE_CHECKING:
    from agent_cache.engine.operation import Operation
    from agent_cache.engine.read_operation import ReadOperation
    from agent_cache.engine.write_operation import WriteOperation
    from agent_cache.metrics import Metrics

__all__ = ["ACTIVE", "Tape", "TapedCall", "TapedScope", "mind_escape", "tell_tape", "tell_tape_of_loop"]


class Tape(Protocol):
    """Records the calls of a scope, or answers them.

    Attributes:
        thread: the identifier of the thread that it was put up in.
    """

    thread: int

    def play(self, call: TapedCall) -> Awaitable[Any]:
        """What the caller gets: `call.proceed()`, or something that was recorded."""
        ...

    def escaped(self, called: Any) -> None:
        """A call in another thread has no tape around it: it may belong to this run, and cannot tell.

        Args:
            called: the tool's operation, or what the tape itself knows of a function.
        """
        ...


ACTIVE: dict[Tape, str] = {}
"""Tapes that are up in this process, and the real path of each; a barrier has none."""


def mind_escape(called: Any) -> None:
    """A call has no tape around it. In a thread that no tape was put up in, it may have lost its context on the way
    there, also where that thread has an event loop of its own; everywhere else it was meant to be outside.
    """
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        return
    for tape in list(ACTIVE):
        if tape.thread != thread:
            tape.escaped(called)


class TapedCall:
    """One call of a tool as a tape has it, before anything is looked up.

    Attributes:
        operation: the tool's `ReadOperation` or `WriteOperation`.
        scope: where it is made.
        key, args, kwargs: as a `Call` has them.
        is_fresh: the caller wants what is true now.
        above: the same call as an inner tape has it, where one recording is made inside of another.
        call: what it became beneath the tape; None for a local hit, and for who waited for another's run.
        source: how it was answered, once it was: as `Call.source` says it, or ``"blocked"`` by a session.
        instead: how a session came to answer it, and over what kind of loop; None if none did.
        loops: what sessions noticed at it and let pass: ``"notice"`` or ``"loop"``, the kind of loop, and which
            session, counted from the innermost.
    """

    __slots__ = (
        "above", "args", "call", "instead", "is_fresh", "key", "kwargs", "loops", "operation", "scope", "source",
    )  # fmt: skip

    def __init__(
        self,
        operation: Any,
        scope: Scope,
        key: Hashable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_fresh: bool = False,
        above: TapedCall | None = None,
    ) -> None:
        self.operation = operation
        self.scope = scope
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.is_fresh = is_fresh
        self.above = above
        self.call: Call | None = None
        self.source = "shared"
        self.instead: tuple[str, str] | None = None
        self.loops: list[tuple[str, str, int]] = []

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameter names and values, injected contexts included."""
        named: dict[str, Any] = self.operation.parameters.named(self.args, self.kwargs)
        return named

    async def proceed(self) -> Any:
        """Make the call as if there were no tape, and note how it was answered."""
        assert isinstance(self.scope, TapedScope)
        outside = self.scope.outside
        try:
            if outside.tape is not None:
                return await outside.tape.play(
                    TapedCall(
                        self.operation, outside, self.key, self.args, self.kwargs, is_fresh=self.is_fresh, above=self
                    )
                )
            return await self._run(self.scope.beneath)
        finally:
            if self.call is not None:
                self.source = self.call.source
            if self.above is not None:
                self.above.source, self.above.call, self.above.instead = self.source, self.call, self.instead
                self.above.loops = self.loops

    async def _run(self, beneath: Scope) -> Any:
        operation: Operation[Any] = self.operation
        if beneath.plan(operation).watches:
            self.source = (
                "blocked"  # unless it is seen on its way: nobody follows another's run by himself in a session
            )
        token = _TAPED.set(self)
        try:
            if hasattr(operation, "write"):
                write: WriteOperation = operation  # type: ignore[assignment]
                return await write.write(beneath, self.args, self.kwargs)
            read: ReadOperation = operation  # type: ignore[assignment]
            if not self.is_fresh:
                value = beneath.plan(read).admit(self.key, self.arguments)
                if value is not MISSING:
                    self.source = "hit"
                    return value
            return await read.answer(beneath, self.key, self.args, self.kwargs, is_fresh=self.is_fresh)
        finally:
            try:
                _TAPED.reset(token)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it ran in


_TAPED: ContextVar[TapedCall | None] = ContextVar("agent_cache_taped_call", default=None)


def _sight(call: Call, proceed: Proceed) -> Awaitable[Entry]:
    """Show the tape what its call has become."""
    taped = _TAPED.get()
    if taped is not None and taped.operation is call.operation:
        taped.call = call
    return proceed(call)


def tell_tape(operation: Operation[Any], instead: Instead) -> None:
    """Tell the tape, if there is one, that a session has answered its call."""
    taped = _TAPED.get()
    if taped is not None and taped.operation is operation:
        taped.instead = (instead.outcome, instead.kind)


def tell_tape_of_loop(level: str, kind: str, metrics: Metrics) -> None:
    """Tell the tape, if there is one, that a session with these metrics has noticed a loop and changed nothing."""
    taped = _TAPED.get()
    if taped is not None:
        for depth, participant in enumerate(taped.scope.participants):
            if participant.metrics is metrics:
                taped.loops.append((level, kind, depth))


class TapedScope(Scope):
    """A place in the nesting of sessions, with a tape around every call that is made in it.

    Attributes:
        outside: the same place without this tape.
        beneath: that place as the tape lets calls go on to it.
    """

    __slots__ = ("beneath", "outside")

    def __init__(self, outside: Scope, tape: Tape) -> None:
        super().__init__(outside.participants, outside.tenant)
        self.answers_inline = False
        self.tape = tape
        self.outside = outside
        self.beneath = _Beneath(outside)

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """The tape stays around the calls of a session that is opened inside of the recording."""
        assert self.tape is not None
        return TapedScope(self.outside.within(participant, tenant), self.tape)

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            plan = self.plans[operation] = under_a_tape(self.outside.plan(operation))
        return plan


class _Beneath(Scope):
    """A scope whose plans are those of another one, with a tape looking on: sessions keep what they count there."""

    __slots__ = ("_of",)

    def __init__(self, of: Scope) -> None:
        super().__init__(of.participants, of.tenant)
        self._of = of

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            plan = self.plans[operation] = beneath_a_tape(self._of.plan(operation), _sight)
        return plan
