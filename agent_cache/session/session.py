"""`AgentCacheSession`: one run of an agent, with its own cache, trace, metrics and loop guard."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import Token
from types import TracebackType
from typing import Any, Protocol, Self

from agent_cache.at_fork import at_fork, lock_of
from agent_cache.clock import CLOCK
from agent_cache.config import BlockOnly
from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.options import checked_flag, checked_text, count
from agent_cache.core.store import NEVER, Store
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.scope import MAX_TOOLS, PLACE, Hook, Scope, closes_generator, leave_scope
from agent_cache.errors import ConfigurationError
from agent_cache.metrics import Metrics
from agent_cache.session.guard import LoopGuard, OnLoop, OnNotice, ToolInSession
from agent_cache.session.loop_detector import LoopDetector
from agent_cache.session.loop_policy import ANY_NUMBER, LoopPolicy, policy_of, seconds_of
from agent_cache.session.trace import Trace, TraceRecord
from agent_cache.values.canonical import forget_oldest

__all__ = ["WATCHERS", "AgentCacheSession", "AttachedBlock", "Attachment"]

_lock = lock_of(__name__)
"""For what is rare: entering, leaving, and the first call of a tool. Calls take no lock. Re-entrant, since a garbage
collection may run anything meanwhile."""


class Attachment(Protocol):
    """What a session can be given to be entered around it: a journal, a drift detector."""

    def attach(self, session_id: str) -> AbstractContextManager[Any]:
        """The block to enter around a session, each time that this is entered. It is left with the session's error."""


WATCHERS: list[Callable[[AgentCacheSession], AbstractContextManager[Any]]] = []
"""Each makes a block that is entered around every session, and left with the error that leaves the session: what
exports a span for it. The blocks raise nothing."""


class AgentCacheSession(BlockOnly, LoopGuard):
    """One run of an agent: ``async with AgentCacheSession() as session: ...``, or a plain ``with`` where nothing is
    asynchronous.

    Inside, session-scoped tools have a cache of their own, every call is traced and counted, and a run that repeats
    itself without progress, or makes too many calls, is stopped. Child tasks belong to the session they were
    started in; other tasks, requests and threads join it by `attach`. The calls of an inner session
    also count in the trace, the metrics and the budgets of the outer one, but are not checked for loops there; a
    new successful write of theirs starts the loop counts of the outer one again. Calls that a tool makes by itself
    are treated likewise. Metrics and trace stay readable after the end, and only then the session may be entered again:
    the id stays, the cache is empty, the loop checks begin anew; the counters, the trace and the budget of calls go on.

    Args:
        session_id: the name of the run; a random one if left out.
        loop_detection: False checks neither loops nor budgets; calls are traced and counted.
        max_tool_repeats: how often one call may have one outcome without progress of the run between; the call that
            reaches this number is acted upon. At least 2. Short for ``LoopPolicy(repeat=...)``; the default is 5.
        max_execution_depth: how many calls the run may make. Short for ``LoopPolicy(max_execution_depth=...)``; the
            default is 200. None leaves the policy as it is: for any number, such as in the session of a server, give it
            ``loop_policy=LoopPolicy(max_execution_depth=None)``.
        on_loop: what happens to a call that continues a loop or exceeds a budget.

            ``"raise"`` raises `AgentLoopDetectedError`. It is latched: later calls are refused too, and it is raised
            again at exit if something has swallowed it.
            ``"warn"`` logs one line for each streak; the call goes on.
            ``"short_circuit"`` returns the cached result of exactly this call; without one, and for writes, it raises
            `AgentLoopDetectedError`, not latched.
            ``"notice"`` returns the text of the error, for the model to read; a write that is refused so is not carried
            out.
            A function gets the `AgentLoopDetectedError` and returns one of these words, or None to let the call go on.

            A read is refused or replaced at once, also if it has failed. The result of a write is returned, and the
            next call is refused. A call that a tool makes never gets the text instead of its result.
        tenant: the owner of the run. Tenants never get each other's results. An inner session has the tenant of the
            outer one unless it names its own.
        trace_size: how many calls the trace keeps.
        loop_policy: the thresholds and the budgets: a `LoopPolicy`, or a mapping of its arguments.
        on_notice: a function called at the notice level, with an `AgentLoopDetectedError` that is not raised.
        journal: an `agent_cache.resume.Journal`: the run can be resumed after a crash of the process, by a session of
            the same `session_id`, which is required then.
        drift: an `agent_cache.recording.DriftDetector`, which compares the run with a baseline.

    Attributes:
        session_id: the name of the run.
        metrics: the counters of the run.
        loop_error: the loop or the spent budget that has stopped this run; None if none has.

    Raises:
        ConfigurationError: if an argument cannot work; on entering a session that is already entered; on leaving it in
            another context than it was entered in, or before one that was entered inside it, unless this closes an
            async generator.
    """

    def __init__(
        self,
        session_id: str | None = None,
        loop_detection: bool = True,  # noqa: FBT001, FBT002 - positional for those who come from async-cache's agent layer
        max_tool_repeats: int | None = None,
        max_execution_depth: int | None = None,
        on_loop: OnLoop = "raise",
        *,
        tenant: Hashable | None = None,
        trace_size: int = 10_000,
        loop_policy: LoopPolicy | Mapping[str, Any] | None = None,
        on_notice: OnNotice | None = None,
        journal: Attachment | None = None,
        drift: Attachment | None = None,
    ) -> None:
        if session_id is not None:
            checked_text(session_id, "AgentCacheSession: session_id")
        if journal is not None and session_id is None:
            raise ConfigurationError(
                "AgentCacheSession: journal= needs a session_id, by which a later process finds the journal"
            )
        super().__init__(on_loop, on_notice)
        self.session_id = session_id or _random_id()
        self.metrics = Metrics(max_rows=MAX_TOOLS)
        self.trace = Trace(count(1, trace_size, "AgentCacheSession: trace_size"))
        self._policy = policy = policy_of(loop_policy, max_tool_repeats, max_execution_depth)
        self._detects_loops = checked_flag(loop_detection, "AgentCacheSession: loop_detection")
        if not loop_detection:
            policy = LoopPolicy(max_execution_depth=None, max_nesting=None)
        self.calls = 0  # so far, without the refused ones
        self.most_calls = policy.max_execution_depth or ANY_NUMBER
        self.most_nested = policy.max_nesting or ANY_NUMBER
        self.limits_tools = policy.max_tool_calls is not None  # whether tools have budgets of their own
        self._longest = seconds_of(policy.max_duration, "max_duration")
        self.is_bounded = self.limits_tools or self._longest is not None
        self.deadline = NEVER  # the clock reading after which no call is admitted
        self._tenant = None if tenant is None else _tenant_part(tenant)
        self._journal = _checked_attachment(journal, "journal", "an agent_cache.resume.Journal")
        self._drift = _checked_attachment(drift, "drift", "an agent_cache.recording.DriftDetector")
        self._attached: ExitStack | None = None
        self._journal_block: Any = None
        self._entered: tuple[Scope, Scope, Token[Any]] | None = None  # its place, the one around it, and the way back
        self._blocks: dict[Scope, Scope] = {}  # those of `attach`, each with the place that it was entered in
        self._stores: dict[ReadOperation, Store] = {}
        self._used: dict[str, list[int]] = {}
        self._detector: LoopDetector | None = None

    def __deepcopy__(self, _memo: object = None) -> Self:
        """Itself: what is copied with it belongs to the same run."""
        return self

    __copy__ = __deepcopy__

    def __getstate__(self) -> object:
        if self._entered is not None:
            raise TypeError(f"session {self.session_id!r} is entered here, and cannot be sent to another process")
        return super().__getstate__()

    # Entering and leaving

    def __enter__(self) -> Self:
        with _lock:
            if self._entered is not None:
                raise ConfigurationError(
                    f"session {self.session_id!r} is already entered; use another AgentCacheSession inside it, or join "
                    "it from other tasks, requests and threads by `with session.attach():`"
                )
            if self._journal is None and self._drift is None and not WATCHERS:
                self._enter()
                return self
            with ExitStack() as blocks:
                for watcher in tuple(WATCHERS):
                    blocks.enter_context(watcher(self))
                if self._journal is not None:
                    self._journal_block = blocks.enter_context(self._journal.attach(self.session_id))
                if self._drift is not None:
                    blocks.enter_context(self._drift.attach(self.session_id))
                self._enter()
                blocks.push(self._leave)
                self._attached = blocks.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocks, self._attached, self._journal_block = self._attached, None, None
        leave = self._leave if blocks is None else blocks.__exit__
        leave(kind, error, trace)

    def _enter(self) -> None:
        outer = PLACE.get().scope
        self.begin()
        self.limit = self.most_calls
        if self._longest is not None:
            self.deadline = CLOCK.now() + self._longest
        scope = outer.within(self, outer.tenant if self._tenant is None else self._tenant)
        self._entered = scope, outer, scope.enter()

    def _leave(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with _lock:
            entered, self._entered, self._detector = self._entered, None, None
            blocks, stores, self._blocks, self._stores = self._blocks, self._stores, {}, {}
        if entered is None:
            raise ConfigurationError(f"session {self.session_id!r} is not entered")
        scope, outer, token = entered
        for store in stores.values():
            _close(store)
        is_closing = error is not None and closes_generator(error)
        place = PLACE.get()
        is_innermost = place is scope or place.scope.is_at(scope)
        for block, around in blocks.items():
            is_of_it = around.tenant == block.tenant
            block.become(around if is_of_it else around.variant(bypasses=around.bypasses, tenant=block.tenant))
        is_here = leave_scope(scope, outer, token, is_closing=is_closing)
        if not (is_here and is_innermost) and not is_closing:
            raise ConfigurationError(_misplaced(f"session {self.session_id!r}")) from error
        if error is None and self._is_raised and self.loop_error is not None:  # and something has swallowed it
            raise self.loop_error.with_traceback(None)

    def attach(self) -> AttachedBlock:
        """Make this session, which is entered already, the current one inside a block: ``with session.attach(): ...``

        Any number of tasks, requests, threads and event loops may be in such blocks at once, each by a call of its own.
        ``async with`` does the same. Inside, calls are made as inside of the session itself: in its cache, its trace,
        its budgets and its loop guard, and in the recordings and sessions that it was entered in. Inside of another
        session, which sees the calls as well, it is the innermost one. Leaving the block ends and empties nothing. If
        the session ends meanwhile, the calls of the block are made where the block was entered.

        The session's tenant is the tenant of the calls, also when it has ended. A session without one cannot be joined
        from inside of a tenant.

        Raises:
            ConfigurationError: on entering the block, if the session is not entered, or has no tenant and the place has
                one; on leaving it in another context than it was entered in, or before what was entered inside it,
                unless this closes an async generator.
        """
        return AttachedBlock(self)

    def _join(self, here: Scope) -> Scope:
        """A place of its own for one block: that of this session, joined from another place."""
        with _lock:
            if self._entered is None:
                raise ConfigurationError(
                    f"session {self.session_id!r} is not entered, so there is nothing to attach to; keep it open by "
                    "`async with session:` for as long as others use it"
                )
            own = self._entered[0]
            if own.tenant is None and here.tenant is not None:
                raise ConfigurationError(
                    f"session {self.session_id!r} has no tenant, and is attached to inside of a session that has one; "
                    "make it with AgentCacheSession(tenant=...)"
                )
            participants = own.participants + tuple(one for one in here.participants if one not in own.owners)
            scope = here.like(participants, own.tenant, bypasses=own.bypasses or here.bypasses)
            is_same = type(scope) is type(own) and scope.bypasses == own.bypasses
            if own.outside is None and scope.participants == own.participants and is_same:
                scope.tools = own.tools  # to make them takes 10 us a tool
            around, beside = [*_hooks(own)], [*_hooks(here)]
            if any(one not in around for one in beside):
                around = [*beside, *(one for one in around if one not in beside)]
            for hook in reversed(around):
                scope = scope.with_hook(hook)
            self._blocks[scope] = here
        return scope

    # What users ask of it

    async def checkpoint(self, label: str, state: Any, *, importance: float = 0.5) -> Any:
        """Write the state of the agent into the journal, to restore it from there.

        Args:
            label: a text by which it is found, of at most 200 characters.
            state: a `LangChainState`, an `OpenAIAgentsState`, a `CustomState` or one of a class that was given to
                `agent_cache.resume.register_state`.
            importance: from 0 to 1; an `AutoReplayManager` can leave out what has less than it asks for.

        Returns:
            The `agent_cache.resume.Checkpoint`.

        Raises:
            ConfigurationError: if the session has no journal, or is not entered.
            CheckpointError: if the state cannot be written, with the field.
            JournalError: if the journal cannot be written.
        """
        if self._journal_block is None:
            raise ConfigurationError(
                f"session {self.session_id!r} has no journal for checkpoints, or is not entered; make it with "
                "AgentCacheSession(session_id, journal=Journal(directory))"
            )
        return await self._journal_block.checkpoint(label, state, importance)

    def new_turn(self) -> None:
        """Start the loop counts again at a new user turn. Call it before each turn."""
        if self._detector is not None:
            self._detector.end_epoch()

    def get_metrics(self) -> dict[str, Any]:
        """The counters of this session, in the form of `agent_cache.get_metrics`."""
        return self.metrics.snapshot()

    def get_execution_trace(self) -> list[TraceRecord]:
        """The last `trace_size` calls, in the order they ended."""
        return self.trace.records()

    def raise_for_loop(self) -> None:
        """Raise `loop_error`, if there is one: for code behind a framework that swallows exceptions.

        Raises:
            AgentLoopDetectedError: also if no call has been refused for it yet.
        """
        if self.loop_error is not None:
            raise self.loop_error.with_traceback(None)

    # engine.scope.Participant

    tool_class = ToolInSession
    """What a tool has in a scope of this session."""

    def make_detector(self) -> LoopDetector:
        """Make its loop detector, for the first call."""
        with _lock:
            found = self._detector or LoopDetector(self._policy, CLOCK.now())
            if self._entered is not None:  # else it is for a task that has outlived the session
                self._detector = found
        return found

    def used_by(self, tool: str) -> list[int] | None:
        """How many calls a tool with a budget of its own has made, and may make: a list. None for any other tool."""
        most = self._policy.calls_of(tool) if self.limits_tools else None
        if most is None:
            return None
        with _lock:
            found = self._used.setdefault(tool, [0, most])
            forget_oldest(self._used, MAX_TOOLS)
            return found

    def store_of(self, operation: ReadOperation) -> Store:
        """The store of the results of a session-scoped tool. It is closed when the session ends."""
        with _lock:
            store = self._stores.pop(operation, None)
            if store is None:
                store = operation.new_store(self)
            self._stores[operation] = superfluous = store  # it is the newest, as its `LocalTool`
            if self._entered is None:  # called by a task that has outlived the session
                self._stores = {}
            elif len(self._stores) > MAX_TOOLS:
                superfluous = self._stores.pop(next(iter(self._stores)))
            else:
                return store
        _close(superfluous)
        return store


class AttachedBlock(BlockOnly):
    """A block of `AgentCacheSession.attach`."""

    __slots__ = ("_entered", "_session")

    def __init__(self, session: AgentCacheSession) -> None:
        self._session = session
        self._entered: tuple[Scope, Scope, Token[Any]] | None = None

    def __enter__(self) -> AgentCacheSession:
        if self._entered is not None:
            raise ConfigurationError("this block is already entered; call session.attach() for each `with`")
        outer = PLACE.get().scope
        scope = self._session._join(outer)
        self._entered = scope, outer, scope.enter()
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is None:
            raise ConfigurationError("this block is not entered")
        is_here, is_closing = PLACE.get().scope is entered[0], closes_generator(error)
        with _lock:
            self._session._blocks.pop(entered[0], None)
        leave_scope(*entered, is_closing=is_closing)
        if not is_here and not is_closing:
            raise ConfigurationError(_misplaced(f"a block of session {self._session.session_id!r}")) from error


_IDS: list[str] = []
"""Random ids for the next sessions: to ask the operating system for each takes as long as all the rest."""

at_fork(after_in_child=_IDS.clear)  # or the sessions of all workers of a server would have the same ones


def _random_id() -> str:
    while True:
        try:
            return _IDS.pop()
        except IndexError:
            digits = os.urandom(1_600).hex()
            _IDS.extend([digits[at : at + 32] for at in range(0, len(digits), 32)])


def _misplaced(what: str) -> str:
    return (
        f"{what} was left in another context than it was entered in, or before what was entered inside it, so calls in "
        "between may have been outside of it; enter and leave it in the same task, as one `async with` does"
    )


def _close(store: Store) -> None:
    with VERSIONS.lock:
        _dropped = store.close()  # freed after the lock


def _hooks(scope: Scope) -> Iterator[Hook]:
    """The hooks of a scope, the innermost first."""
    while scope.outside is not None:
        if scope.hook is not None:
            yield scope.hook
        scope = scope.outside


def _checked_attachment(given: Attachment | None, name: str, wanted: str) -> Attachment | None:
    if given is not None and (isinstance(given, type) or not callable(getattr(given, "attach", None))):
        raise ConfigurationError(f"AgentCacheSession: {name} must be {wanted}, got {given!r}")
    return given


def _tenant_part(tenant: Hashable) -> Hashable:
    try:
        return key_part(tenant)
    except Uncacheable as error:
        raise ConfigurationError(
            f"AgentCacheSession: tenant must be a value with an identity, such as a str: {error.reason}"
        ) from error
