"""Where calls are made: a `Scope`, which one context variable holds, and what each tool has in it.

A scope is a chain of sessions with a tenant, perhaps inside of `bypass` and of recordings. Outside of all these it is
`ROOT`. The tool of a call finds that call in its place, which has the scope that it was made in. `LocalTool` is what
one tool has in one scope: its store, its counters, and the sessions that observe its calls.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_cache.config import CURRENT
from agent_cache.core.store import Entry
from agent_cache.core.tags import Tag
from agent_cache.engine.flight import Flight
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import Stats
from agent_cache.values.canonical import MISSING, forget_oldest

if TYPE_CHECKING:
    from agent_cache.remote.versioned import Ticket, Tier

__all__ = [
    "HOOKS", "MAX_TOOLS", "PLACE", "ROOT", "TENANT", "Call", "Hook", "LocalTool",
    "Participant", "Replacement", "Scope", "closes_generator", "leave_scope", "report_escape",
]  # fmt: skip

TENANT: Final = object()
"""Marks the key of a tenant's entry. No argument can produce it."""

MAX_TOOLS: Final = 1_000
"""How many tools are remembered in one scope. A long session may decorate tools as it goes, and what is remembered
keeps a tool alive. The one that came longest ago is forgotten, and made again if it is called again."""


# Sessions in a call


class Replacement(NamedTuple):
    """An answer that a session gives in place of the tool's: the value, the name of this outcome in the trace, and the
    kind of loop or budget behind it.
    """

    answer: Any
    outcome: str
    kind: str


Participant = Any
"""A session, as the calls made inside it see it: `session.session.AgentCacheSession`.

``session_id`` and ``metrics`` are its own. ``tool_class(operation, scope, session)`` makes its part in the calls of a
tool, ``store_of(operation)`` gives the store of the answers of a session-scoped tool. ``stop(error)`` ends the run for
a loop that a replay has raised again.
"""


# Hooks


Hook = Any
"""A hook around all calls of a scope, such as a tape: see `engine.hooks`."""

HOOKS: dict[Hook, None] = {}
"""The hooks of all scopes of this process, in the order in which they were entered."""


def report_escape(called: Any) -> None:
    """Report a call without a hook to those of other threads.

    In a thread in which no hook was installed, a call may have lost its context on the way there, also if that
    thread has an event loop of its own. In any other thread it was made outside of the recording on purpose.
    """
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        return
    for hook in list(HOOKS):
        if hook.thread != thread:
            hook.escaped(called)


# Tools in a scope


class LocalTool:
    """What one tool has in one scope. Made at its first call there, and again after a change of the configuration.

    In a session it is a `session.guard.ToolInSession`, in several sessions a `ToolInSessions`. These observe its calls:
    `hit` is shown a local hit, and returns what the caller gets; `admit` lets a call run by None, or replaces its
    answer; `done` is told how it ended, and may replace it, too. All three raise, if the guard of a session does.

    Attributes:
        configuration, setup: the settings it was made under, and what they add to its calls: an `operation.Setup`.
        store, tenant: where its answers are, None if they are not stored; and whose they are, None without tenants.
        stats: counters of the tool, in the process and in each session.
        is_plain: whether its hits are those of the global store, and sessions observe them: without tenant, recording
            and audit.
    """

    __slots__ = ("configuration", "is_observed", "is_plain", "setup", "stats", "store", "tenant")

    def __init__(self, operation: Any, scope: Scope) -> None:
        self.is_observed = self.is_plain = False  # a slot is read in a tenth of the time of a value of the class
        self.configuration = CURRENT.value  # first: a change in another thread meanwhile makes this an outdated one
        self.setup: Any = operation.setup_for(self.configuration)
        self.store: Any
        self.store, self.tenant = operation.store_in(scope)
        self.stats: tuple[Stats, ...] = (operation.stats,)

    def observe(self, operation: Any, scope: Scope) -> None:
        """As `__init__`, for one that observes. Where a scope adds nothing, it has what the tool has at the root."""
        if scope.adds_nothing and operation.is_global:
            root = operation.at_root
            if root is None or root.configuration is not CURRENT.value:
                root = ROOT.add_local(operation)
            self.is_observed, self.configuration, self.tenant = True, root.configuration, None
            self.setup, self.store = setup, store = root.setup, root.store
            self.is_plain = store is not None and not setup.audited
        else:
            LocalTool.__init__(self, operation, scope)
            self.is_observed = True

    def qualify(self, key: Hashable) -> Hashable:
        """The key under which an entry is stored: with the tenant, where there is one."""
        return key if self.tenant is None else (TENANT, self.tenant, key)

    def has_refused(self, error: Exception) -> bool:  # noqa: ARG002 - for those that observe
        """Whether a session around the call raised this error, for a call that the tool made.

        Such an error is no result of the tool, so it is not shared with other runs.
        """
        return False


class ToolInSessions(LocalTool):
    """What a tool has in a scope of several sessions: all are asked before any of them sees a call."""

    __slots__ = ("_observers",)

    def __init__(self, operation: Any, scope: Scope) -> None:
        self.observe(operation, scope)
        innermost = scope.participants[0]
        self._observers: tuple[Any, ...] = tuple(
            [one.tool_class(operation, scope, one, is_innermost=one is innermost) for one in scope.participants]
        )
        self.stats = (operation.stats, *[one.own for one in self._observers])

    def has_refused(self, error: Exception) -> bool:
        return any(observer.has_refused(error) for observer in self._observers)

    def admit(self, call: Call, now: float) -> Replacement | None:
        replacement = self._ask(call.key, now, call)
        if replacement is None:
            for observer in self._observers:
                observer.admit(call, now, True)  # noqa: FBT003 - as it is declared
        return replacement

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None:
        """Every session sees how it ended, also if one stops the run because of it."""
        last: Replacement | None = None
        stopped: AgentLoopDetectedError | None = None
        for observer in self._observers:
            try:
                last = observer.done(call, value, error, now) or last
            except AgentLoopDetectedError as loop:
                stopped = stopped or loop
        if stopped is not None:
            raise stopped
        return last

    def hit(
        self,
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
    ) -> Any:
        replacement = self._ask(key, now, cached=value)
        if replacement is not None:
            for observer in self._observers:
                observer.own.hits += 1
            return replacement.answer
        for observer in self._observers:
            try:
                value = observer.hit(key, entry, value, now, arguments, parent, True)  # noqa: FBT003 - as it is declared
            except AgentLoopDetectedError as loop:
                self._report_blocked(observer, key, now, type(loop).__name__, loop.kind)
                raise
        return value

    def _ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Replacement | None:
        for observer in self._observers:
            try:
                replacement: Replacement | None = observer.ask(key, now, call, cached)
            except AgentLoopDetectedError as loop:
                # Of a write, the first of them has set the key.
                self._report_blocked(observer, call.key if call else key, now, type(loop).__name__, loop.kind)
                raise
            if replacement is not None:
                key = call.key if call else key
                self._report_blocked(observer, key, now, replacement.outcome, replacement.kind)
                return replacement
        return None

    def _report_blocked(self, by: object, key: Hashable, now: float, outcome: str, kind: str) -> None:
        for observer in self._observers:
            if observer is not by:
                observer.blocked(key, now, outcome, kind)


# Scopes


class Scope:
    """A place in the nesting of sessions. It changes only when it begins to stand for another one: see `become`.

    Attributes:
        participants, owners: the sessions, innermost first, and as a set; none for the root.
        call: always None: as a place, a scope has no call around it.
        tenant: whose run this is, None without tenants.
        bypasses: whether reads made here run their tools uncached: see `bypass`.
        hook: the innermost hook, such as a tape (`engine.hooks`); None outside of recordings.
        adds_nothing: whether there is no tenant, no `bypass` and no recording.
        outside: the same place without this hook; None without one.
        tools: what each tool has here; at most `MAX_TOOLS`. Those of the root are with the tools themselves.
        became: the place that this one stands for, since its session has ended; None if it is a place of its own.
    """

    __slots__ = (
        "__weakref__", "_followers", "adds_nothing", "became", "bypasses", "call", "hook", "outside", "owners",
        "participants", "tenant", "tools",
    )  # fmt: skip

    def __init__(
        self,
        participants: tuple[Participant, ...] = (),
        tenant: Hashable | None = None,
        *,
        bypasses: bool = False,
        hook: Hook | None = None,
        outside: Scope | None = None,
    ) -> None:
        self.call: Call | None = None  # a slot is read in 20 ns less than an attribute of the class
        self.participants, self.tenant, self.bypasses = participants, tenant, bypasses
        self.hook, self.outside = hook, outside
        self.adds_nothing = tenant is None and not bypasses and hook is None
        self.owners: frozenset[object] = frozenset(participants)
        self.tools: dict[Any, LocalTool] = {}
        self.became: Scope | None = None
        # Its variants, and what has become it: they become what it becomes.
        self._followers: weakref.WeakSet[Scope] | None = None

    @property
    def scope(self) -> Scope:
        """Itself, as the scope of the calls that are made here."""
        return self

    def enter(self) -> Token[Any]:
        """Make this the scope of the running context. A call whose tool is running there stays the enclosing one."""
        call = PLACE.get().call
        return PLACE.set(self if call is None else ScopeInCall(self, call))

    def local(self, operation: Any) -> LocalTool:
        """What a tool has here."""
        found = operation.at_root if self is ROOT else self.tools.get(operation)
        return self.add_local(operation) if found is None or found.configuration is not CURRENT.value else found

    def add_local(self, operation: Any) -> LocalTool:
        """Make what a tool has here, and keep it: it has nothing yet, or that of former settings."""
        participants = self.participants
        if len(participants) == 1:
            made: LocalTool = participants[0].tool_class(operation, self, participants[0])
        else:
            made = ToolInSessions(operation, self) if participants else LocalTool(operation, self)
        if self is ROOT:
            operation.at_root = made
            return made
        tools = self.tools
        if operation in tools:
            tools.pop(operation, None)  # made again, it is the newest
        tools[operation] = made
        if len(tools) > MAX_TOOLS:
            forget_oldest(tools, MAX_TOOLS)
        return made

    def check_write(self, name: str) -> None:
        """Raise if nothing may be written here: by the tool of an audit."""

    # Others like it

    def like(self, participants: tuple[Participant, ...], tenant: Hashable | None, *, bypasses: bool) -> Scope:
        """A place of the same kind, outside of recordings."""
        return Scope(participants, tenant, bypasses=bypasses)

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """This place with one more session, innermost. In a recording it is recorded, too."""
        if self.outside is not None and self.hook is not None:
            return self.outside.within(participant, tenant).with_hook(self.hook)
        return self.like((participant, *self.participants), tenant, bypasses=self.bypasses)

    def with_hook(self, hook: Hook) -> Scope:
        """This place with a hook, which receives every call before any other one around it does."""
        return Scope(self.participants, self.tenant, bypasses=self.bypasses, hook=hook, outside=self)

    def variant(self, *, bypasses: bool, tenant: Any = ...) -> Scope:
        """This place with another flag, or for another tenant."""
        tenant = self.tenant if tenant is ... else tenant
        if self.outside is not None and self.hook is not None:
            made = self.outside.variant(bypasses=bypasses, tenant=tenant).with_hook(self.hook)
        else:
            made = self.like(self.participants, tenant, bypasses=bypasses)
        self._add_follower(made)
        return made

    def without_recordings(self) -> Scope:
        """This place outside of all hooks."""
        scope = self
        while scope.outside is not None:
            scope = scope.outside
        return scope

    def storing(self) -> Scope:
        """The place in which tools know where their results are stored: this one without `bypass` and hooks."""
        scope = self.without_recordings()
        return scope.variant(bypasses=False) if scope.bypasses else scope

    # Ends

    def is_at(self, other: Scope) -> bool:
        """Whether this is that place, or stands for it."""
        return self is other or self.became is other

    def become(self, other: Scope) -> None:
        """Stand for another place from now on: in contexts that still have this one after its session has ended."""
        other, (bypassed, tenant) = other.became or other, (self.bypasses, self.tenant)
        self.participants, self.owners, self.tenant = other.participants, other.owners, other.tenant
        self.bypasses, self.hook, self.outside = other.bypasses, other.hook, other.outside
        self.adds_nothing = other.adds_nothing
        self.tools = {}
        self.became = other
        for one in list(self._followers or ()):
            is_like = (one.bypasses, one.tenant) == (bypassed, tenant)
            one.become(other if is_like else other.variant(bypasses=one.bypasses, tenant=one.tenant))
        other._add_follower(self)

    def _add_follower(self, other: Scope) -> None:
        if self is not ROOT:  # which never ends
            if self._followers is None:
                self._followers = weakref.WeakSet()
            self._followers.add(other)


ROOT: Final[Scope] = Scope()
"""Outside of any session."""


class ScopeInCall(NamedTuple):
    """The place of a scope that was entered while a tool runs: a session, a recording or `bypass` inside of it."""

    scope: Scope
    call: Call


PLACE: ContextVar[Scope | Call | ScopeInCall] = ContextVar("agent_cache_place", default=ROOT)
"""Where calls of the running context are made: in a scope, or by the tool of a call, which has its scope, or in one
that was entered while a tool runs (`ScopeInCall`). Child tasks and threads inherit it.

It is one variable, because to set and reset another one takes 0.4 us, which is 10 % of a miss.
"""


class Call:
    """A miss, a write or an uncached run; the place of the calls that its tool makes. A local hit has none.

    Attributes:
        operation, local: the tool's `Operation`, and what it has in the scope of the call.
        key: its identity, None where it has none.
        args, kwargs: its arguments in the one canonical spelling.
        tags: its dependencies beside the static tags, as far as they are known before the load; of a write all that it
            has touched so far.
        asked: the tiers that were asked for it, with their tickets.
        source: how it was answered: ``miss``, ``hit`` (of a tier), ``validated``, ``shared``, ``uncached`` or
            ``write``; ``write`` also for a read that `set` or `invalidate` name.
        cost: seconds that its tool took, or that its answer has saved.
        is_fresh: the caller asked for a fresh value: no lookup, and no flight of others is joined.
        call, parent: itself, as the place of the calls that its tool makes; the call whose tool made this one, or None.
        leading: the innermost flight that this call runs under: its own, or its parent's.
        within: the load that inherits what is read: the one that this call is made in; once its tool runs, its own.
        flight: the flight it leads or follows, or what stands for one if a tier or an entry has answered it before
            single flight. Other calls have none.
        admitted: clock reading when the sessions admitted it; set only in sessions.
        started: clock reading when the tool was started; of what a tier had, when its tool was.
        numbers: its number in each session that saw it; None outside of sessions.
        depth: how many running calls enclose it, itself included; 0 once it has ended.
        began: how many calls its session's loop guard had counted when it began.
        loop_key: its identity for the loop guard, set where that compares it.
    """

    __slots__ = (
        "_arguments", "admitted", "args", "asked", "began", "cost", "depth", "flight", "is_fresh", "key", "kwargs",
        "leading", "local", "loop_key", "numbers", "operation", "parent", "scope", "source", "started", "tags",
        "within",
    )  # fmt: skip

    flight: Flight
    began: int
    loop_key: Hashable

    def __init__(
        self, operation: Any, local: Any, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], source: str
    ) -> None:
        self.operation, self.local, self.key = operation, local, key
        self.args, self.kwargs, self.source = args, kwargs, source
        self.is_fresh = False
        self.asked: tuple[tuple[Tier, Ticket], ...] = ()
        place = PLACE.get()
        self.parent = parent = place.call
        if parent is None:
            self.scope: Scope = place  # type: ignore[assignment]  # all others have a call, and isinstance() takes 60 ns
            self.leading: Flight | None = None
            self.within: Flight | None = None
            self.depth = 1
        else:
            self.scope = place.scope
            self.leading = parent.leading
            self.within = parent.within
            self.depth = 1 + parent.running_depth()
        self.admitted = self.started = self.cost = 0.0
        self.tags: tuple[Tag, ...] = ()
        self.numbers: dict[object, int] | None = None
        self._arguments: dict[str, Any] | None = None

    def running_depth(self) -> int:
        """How many calls that still run enclose it, itself included. Of those that have ended, it keeps one in a row.

        A task that a tool has started may outlive it, and start the next one: no call keeps all those before it alive.
        The call that a running one was made from stays, since the trace has its number.
        """
        call: Call | None = self
        depth = 0
        while call is not None:
            above = call.parent
            if call.depth:
                depth += 1
            else:
                while above is not None and not above.depth:
                    above = above.parent
                call.parent = above
            call = above
        return depth

    @property
    def call(self) -> Call:
        """Itself, as the place of the calls that its tool makes."""
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameter names and values, injected contexts included."""
        if self._arguments is None:
            self._arguments = self.operation.parameters.named(self.args, self.kwargs)
        return self._arguments

    @property
    def tenants(self) -> frozenset[Hashable]:
        """The tenant that its answer belongs to, as a set; empty without tenants."""
        tenant = self.local.tenant
        return frozenset() if tenant is None else frozenset({tenant})

    def number_in(self, session: object) -> int | None:
        """Its number among the calls of a session, if that session saw it."""
        return None if self.numbers is None else self.numbers.get(session)

    def known_tags(self) -> tuple[Tag, ...]:
        """The dependencies of a read as far as they are known before it: a root stands for those that are not."""
        tags = self.operation.tags
        early = self.tags or tuple(rule.root for rule in tags.early)
        return (*tags.static, *early, *(rule.root for rule in tags.late))

    def count(self, *, failed: bool = False) -> None:
        """Count it by its source, and a failure where the tool itself was run."""
        source = self.source
        for stats in self.local.stats:
            if source == "miss":
                stats.misses += 1
            elif source == "write":
                stats.writes += 1
            elif source == "uncached":
                stats.bypassed += 1
            elif source == "hit":
                stats.hits += 1
                stats.time_saved += self.cost
            elif source == "validated":
                stats.validated += 1
            else:  # who has waited for a run has saved nothing
                stats.shared += 1
            if failed and source != "shared":
                stats.errors += 1


def leave_scope(scope: Scope, outer: Scope, token: Token[Any], *, is_closing: bool) -> bool:
    """Make the outer scope the current one again.

    While a generator is being closed, contexts in which the scope is still the current one are at the outer one from
    now on.

    Args:
        is_closing: whether an async generator is being closed around it: then another scope may be the current one.

    Returns:
        Whether this is the context that the scope was entered in.
    """
    if is_closing and scope is not outer and not PLACE.get().scope.is_at(scope):
        scope.become(outer)  # when what was entered inside of it is left, this scope is the current one again
        return True
    try:
        PLACE.reset(token)
    except ValueError:
        if is_closing and scope is not outer:
            scope.become(outer)
        return False
    return True


def closes_generator(error: BaseException | None) -> bool:
    """Whether an async generator is being closed, by what a context manager around its ``yield`` is given.

    A loop that leaves an ``async for`` by ``break`` does not close the generator. The event loop does it later, in a
    task and a context of its own, and code in between may have put the `GeneratorExit` into a group, or raised another
    error because of it.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if isinstance(one, GeneratorExit):
            return True
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            pending += [one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return False
