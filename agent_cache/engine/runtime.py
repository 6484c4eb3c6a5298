"""The objects that stages work on: the operation, its call, the load it takes part in, its scope and its plan.

An `Operation` is one decorated tool. A `Scope` is where a call is made: outside of any session, or inside a chain of
them; one context variable holds it. For each operation a scope has one `Plan`, compiled once by `engine.plan`. A `Call`
exists only where no local hit answered; a `Flight` is one load that several calls may wait for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.lease import Lease
from agent_cache.core.options import ReadPolicy, WritePolicy
from agent_cache.core.parameters import Parameters
from agent_cache.core.store import Entry, Store
from agent_cache.core.tags import Tag, TagSet
from agent_cache.engine.flight import STRANDED, Flight
from agent_cache.engine.state import RootUse, forget_oldest, uses_of
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics, Stats
from agent_cache.values.canonical import MISSING

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Request, Ticket, Tier

__all__ = [
    "INTERCEPTORS",
    "PLACE",
    "InsideLoad",
    "MAX_PLANS",
    "ROOT",
    "TENANT",
    "UNKEYED",
    "CacheKey",
    "Call",
    "CallObserver",
    "Enter",
    "Interceptor",
    "Leave",
    "Observe",
    "Operation",
    "Participant",
    "Plan",
    "Proceed",
    "Replacement",
    "Scope",
    "Stage",
    "closes_generator",
    "count",
    "known_tags",
    "leave_scope",
    "report_escape",
]

P = TypeVar("P", bound="ReadPolicy | WritePolicy")

TENANT: Final = object()
"""Marks the key of a tenant's entry. No argument can produce it."""

UNKEYED: Final = object()
"""The key of a call that has no identity. Nothing is ever stored under it."""


# Sessions in a call


class Replacement(NamedTuple):
    """An answer that a session gives in place of the tool's.

    Attributes:
        answer: the value.
        outcome: the name of this outcome in the trace.
        kind: the loop or the budget behind it.
    """

    answer: Any
    outcome: str
    kind: str


Observe = Callable[[Hashable, Entry, Any, float, Mapping[str, Any] | None, "Call | None"], Any]
"""Shown each local hit: key, entry, value, clock reading, the arguments where the tool's loop guard needs them, and the
call whose tool makes it. Returns the value that the caller gets, or raises.
"""

Enter = Callable[["Call", float], Replacement | None]
"""Admits a call at this clock reading by returning None, or replaces its answer, or raises."""

Leave = Callable[["Call", Any, BaseException | None, float], Replacement | None]
"""Shown how a call ended: its value or its error, and the clock reading. Replaces the answer, or leaves it by None."""


class CallObserver(Protocol):
    """The part of a session in the calls of one operation. All of it is synchronous.

    - `ask` refuses a call by raising, or replaces its answer, or admits it by None. It counts nothing. It is given the
      answer of a hit.
    - `admit` lets a miss or a write in; given the clock reading, it asks first.
    - `hit` is shown a local hit, which has ended by then; it refuses or replaces it likewise. `see` does the same for a
      hit that was asked about.
    - `done` is shown how an admitted call ended, and may replace its answer, or raise.
    - `blocked` notes a call that another session refused; `answered` notes a hit whose answer another session
      replaced, which counts as a hit all the same.
    - `has_refused` recognises the errors that this session raised.

    Attributes:
        stats: the session's counters of these calls, beside the process-wide ones.
    """

    stats: Stats

    @property
    def hit(self) -> Observe: ...
    @property
    def see(self) -> Observe: ...

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Replacement | None: ...
    def admit(self, call: Call, now: float | None = None) -> Replacement | None: ...
    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None: ...
    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None: ...
    def answered(self) -> None: ...
    def has_refused(self, error: Exception) -> bool: ...


class Participant(Protocol):
    """A session, as the calls made inside it see it."""

    metrics: Metrics
    session_id: str

    def observer_of(self, operation: Operation[Any], *, is_innermost: bool, is_replay: bool = False) -> CallObserver:
        """The observer of this operation's calls. Those of a replay are traced, and not checked for loops."""
        ...

    def store_of(self, operation: Any) -> Store:
        """The store of the answers of a session-scoped `ReadOperation`."""
        ...

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """End the run for a loop that was detected when it was recorded."""
        ...


# Recorders and players


class Interceptor(Protocol):
    """A recorder or a player: receives every call of a scope before anything is looked up.

    Attributes:
        thread: the identifier of the thread that it was installed in.
    """

    thread: int

    def play(self, call: Any) -> Awaitable[Any]:
        """Return what the caller gets: the outcome of ``call.proceed()``, or a recorded one.

        Args:
            call: an `engine.interception.InterceptedCall`.
        """
        ...

    def play_stream(self, call: Any) -> Any:
        """As `play`, for a streaming tool: return what the caller iterates over, a generator or an async one."""
        ...

    def escaped(self, called: Any) -> None:
        """Handle a call in another thread that may belong to this run, but has lost its context.

        Args:
            called: the tool's operation, or the recorder's own description of a function.
        """
        ...


INTERCEPTORS: dict[Interceptor, str] = {}
"""Active interceptors of this process, and the real path of each one's file; empty for those without one."""


def report_escape(called: Any) -> None:
    """Report a call without an interceptor to those of other threads.

    In a thread in which no interceptor was installed, a call may have lost its context on the way there, also if that
    thread has an event loop of its own. In any other thread it was made outside of the recording on purpose.
    """
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        return
    for interceptor in list(INTERCEPTORS):
        if interceptor.thread != thread:
            interceptor.escaped(called)


# Plans and scopes


class Plan:
    """How the calls of one operation run in one scope. Compiled once, by `engine.plan`.

    Attributes:
        store: where the answers are; None if they are not stored.
        admit: the synchronous half. Takes a key, and the arguments as `observe` does; returns the value of a local hit,
            or `MISSING`.
        observe: shows a local hit to the sessions, for callers that found one without `admit`.
        enter: asks the sessions whether a call may run; None outside of sessions.
        leave: shows the sessions how the call ended; None outside of sessions.
        run: the asynchronous half, from single flight to the tool.
        reload: the same for a load in the background, which is no call: middleware do not see it.
        load: the stages behind single flight.
        uncached: the tool alone.
        observers: those of the sessions of the scope, innermost first.
        stats: counters of the tool, in the process and in each session.
        tenant: the owner of these entries, None without tenants.
        lease: the trust in local copies of what its tiers have; None without tiers.
        configuration: the settings it was compiled under.
        keeps_plain: whether immutable results are stored as they are: without tiers, a bound on sizes, and entries that
            are kept after their expiry.
        has_detour: whether a call that no lookup has answered needs a second look: its answer is not stored, or some
            lookups find nothing on purpose.
        unsampled: `admit` as it is without audits, of a tool whose hits are audited; else None.
        follows_at_once: whether a call may wait for another one's load before any stage: nothing stands in between.
    """

    __slots__ = (
        "admit",
        "configuration",
        "enter",
        "follows_at_once",
        "has_detour",
        "keeps_plain",
        "lease",
        "leave",
        "load",
        "observe",
        "observers",
        "reload",
        "run",
        "stats",
        "store",
        "tenant",
        "uncached",
        "unsampled",
    )

    def __init__(
        self,
        *,
        store: Store | None,
        admit: Callable[..., Any],
        observe: Observe,
        enter: Enter | None,
        leave: Leave | None,
        run: Callable[[Call], Awaitable[Entry]],
        reload: Callable[[Call], Awaitable[Entry]],
        load: Callable[[Call], Awaitable[Entry]],
        uncached: Callable[[Call], Awaitable[Entry]],
        observers: tuple[CallObserver, ...],
        stats: tuple[Stats, ...],
        tenant: Hashable | None,
        lease: Lease | None,
        configuration: Configuration,
        keeps_plain: bool = False,
        follows_at_once: bool = False,
        unsampled: Callable[..., Any] | None = None,
    ) -> None:
        self.has_detour = store is None or unsampled is not None or not configuration.enabled
        self.unsampled = unsampled
        self.configuration = configuration
        self.keeps_plain = keeps_plain
        self.follows_at_once = follows_at_once
        self.store: Any = store
        self.admit = admit
        self.observe = observe
        self.enter = enter
        self.leave = leave
        self.run = run
        self.reload = reload
        self.load = load
        self.uncached = uncached
        self.observers = observers
        self.stats = stats
        self.tenant = tenant
        self.lease = lease

    def has_refused(self, error: Exception) -> bool:
        """Whether a session around the call raised this error, for a call that the tool made.

        Such an error is no result of the tool, so it is not shared with other runs.
        """
        return any(observer.has_refused(error) for observer in self.observers)

    def qualify(self, key: Hashable) -> Hashable:
        """The key under which an entry is stored: with the tenant, where there is one."""
        return key if self.tenant is None else (TENANT, self.tenant, key)


MAX_PLANS: Final = 1_000
"""How many tools have a plan in one scope. A long session may decorate tools as it goes, and each plan keeps its tool
alive. The plan that was compiled longest ago is dropped, and compiled again if the tool is called again."""


class Scope:
    """A place in the nesting of sessions. It does not change, unless its innermost session is left in another context.

    Attributes:
        participants: the sessions, innermost first; empty for the root.
        owners: the same sessions as a set, which an invalidation with ``scope="session"`` reaches.
        is_call, call: False and None: it is the place of calls that the tool of no other call makes.
        tenant: whose run this is, None without tenants.
        bypasses: whether reads made here run their tools uncached: see `bypass`.
        answers_inline: whether the generated body of a global tool may look into its store directly: not for tenants,
            whose keys differ, nor inside `bypass`, nor under an interceptor, which receives every call.
        interceptor: records or replays the calls made here; None outside of recordings.
        plans: compiled plans by operation; a cache of at most `MAX_PLANS`.
        inside: the same scope inside of a load, once it was needed.
        became: the place that this one stands for, since its session has ended; None if it is a place of its own.
    """

    __slots__ = (
        "__weakref__",
        "_aliases",
        "_variants",
        "answers_inline",
        "became",
        "bypasses",
        "call",
        "inside",
        "interceptor",
        "owners",
        "participants",
        "plans",
        "tenant",
    )  # fmt: skip

    is_call = False

    def __init__(
        self, participants: tuple[Participant, ...] = (), tenant: Hashable | None = None, *, bypasses: bool = False
    ) -> None:
        self.call: Call | None = None  # a slot is read in 20 ns less than an attribute of the class
        self.inside: Scope | None = None
        self.participants = participants
        self.tenant = tenant
        self.bypasses = bypasses
        self.answers_inline = tenant is None and not bypasses
        self.owners: frozenset[object] = frozenset(participants)
        self.plans: dict[Operation[Any], Plan] = {}
        self.interceptor: Interceptor | None = None
        self.became: Scope | None = None
        self._aliases: weakref.WeakSet[Scope] | None = None
        self._variants: weakref.WeakSet[Scope] | None = None

    @property
    def scope(self) -> Scope:
        """Itself, as the scope of the calls that are made here."""
        return self

    def enter(self) -> Token[Any]:
        """Make this the scope of the running context. A call whose tool is running there stays the enclosing one."""
        call = PLACE.get().call
        return PLACE.set(self if call is None else Within(self, call))

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """This place with one more session, innermost."""
        return Scope((participant, *self.participants), tenant, bypasses=self.bypasses)

    def check_write(self, name: str) -> None:
        """Raise if nothing may be written here: by the tool of an audit."""

    def variant(self, *, bypasses: bool) -> Scope:
        """This place with another flag."""
        return self._follow(Scope(self.participants, self.tenant, bypasses=bypasses))

    def _follow(self, variant: Scope) -> Scope:
        """Let a variant of this place become the same variant of another one when this place does."""
        if self is not ROOT:  # which never ends
            if self._variants is None:
                self._variants = weakref.WeakSet()
            self._variants.add(variant)
        return variant

    def storing(self) -> Scope:
        """The place whose plans know where results are stored: this one without `bypass` and interceptors."""
        return self.variant(bypasses=False) if self.bypasses else self

    @property
    def outside_of_load(self) -> Scope:
        """The same place outside of a load: itself, unless it is the inside of one."""
        return self

    def inside_load(self) -> Scope:
        """The same place inside of a load, where the load inherits what each hit depends on."""
        if self.inside is None:
            self.inside = InsideLoad(self)
        return self.inside

    def plan(self, operation: Operation[Any]) -> Plan:
        """The plan of an operation here, compiled at its first call and again after a change of the configuration."""
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            plan = self.keep_plan(operation, operation.compile(operation, self))
        return plan

    def keep_plan(self, operation: Operation[Any], plan: Plan) -> Plan:
        """Keep a plan for the next call."""
        self.plans.pop(operation, None)  # compiled again, it is the newest
        self.plans[operation] = plan
        if len(self.plans) > MAX_PLANS:
            forget_oldest(self.plans, MAX_PLANS)
        return plan

    def is_at(self, other: Scope) -> bool:
        """Whether this is that place, or stands for it."""
        return self is other or self.became is other

    def become(self, other: Scope) -> None:
        """Stand for another place from now on: in contexts that still have this one after its session has ended."""
        other = other.became or other
        for kind in type(self).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if hasattr(other, name) and name not in _OWN:
                    setattr(self, name, getattr(other, name))
        self.plans = {}
        self.became = other
        if self.inside is not None and self.inside is not self:
            self.inside.become(other.inside_load())
        if self.outside_of_load is not self and not self.outside_of_load.is_at(other.outside_of_load):
            self.outside_of_load.become(other.outside_of_load)
        for variant in list(self._variants or ()):
            variant.become(other.variant(bypasses=variant.bypasses))
        for alias in list(self._aliases or ()):
            alias.become(other)
        if other is not ROOT:  # which never ends
            if other._aliases is None:
                other._aliases = weakref.WeakSet()
            other._aliases.add(self)


_OWN: Final = frozenset(
    {"__weakref__", "_aliases", "_outside", "_outside_of_load", "_variants", "became", "inside", "plans"}
)
"""What a scope does not take over from another one."""


class _Root(Scope):
    """The scope outside of any session. Each operation keeps its own plan, so that both are freed together."""

    __slots__ = ()

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = operation.root_plan
        if plan is None or plan.configuration is not CURRENT.value:
            plan = operation.root_plan = operation.compile(operation, self)
        return plan


class InsideLoad(Scope):
    """A scope as the tool of a cached read finds it. No hit is answered inline, because the load inherits from it."""

    __slots__ = ("_outside",)

    def __init__(self, outside: Scope) -> None:
        super().__init__(outside.participants, outside.tenant, bypasses=outside.bypasses)
        self.answers_inline = False
        self._outside = outside

    @property
    def outside_of_load(self) -> Scope:
        return self._outside

    def inside_load(self) -> Scope:
        return self

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """A session that is opened inside of a load is a part of it."""
        return self.outside_of_load.within(participant, tenant).inside_load()

    def variant(self, *, bypasses: bool) -> Scope:
        return self.outside_of_load.variant(bypasses=bypasses).inside_load()

    def storing(self) -> Scope:
        return self.outside_of_load.storing()

    def plan(self, operation: Operation[Any]) -> Plan:
        if self._outside is not ROOT:
            return super().plan(operation)
        plan = operation.plan_inside_load
        if plan is None or plan.configuration is not CURRENT.value:
            plan = operation.plan_inside_load = operation.compile(operation, self)
        return plan


ROOT: Final[Scope] = _Root()
"""Outside of any session."""


class Within:
    """The place of a scope that was entered while a tool runs: a session, a recording or `bypass` inside of it."""

    __slots__ = ("call", "scope")

    is_call = True
    answers_inline = False

    def __init__(self, scope: Scope, call: Call) -> None:
        self.scope = scope
        self.call = call


PLACE: ContextVar[Scope | Call | Within] = ContextVar("agent_cache_place", default=ROOT)
"""Where calls of the running context are made: in a scope, or by the tool of a call, which has its scope. Child tasks
and threads inherit it.

It is one variable, because to set and reset another one takes 0.4 us, which is 10 % of a miss.
"""


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
    if error is None:
        return False
    pending: list[BaseException | None] = [error]
    seen = set[int]()
    while pending:
        one = pending.pop()
        if isinstance(one, GeneratorExit):
            return True
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            pending += [one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return False


# Calls


class Call:
    """A miss, a write or an uncached run. A local hit has none.

    Attributes:
        is_dependency: whether a load that it is made in inherits from it.
        operation: the tool's `ReadOperation` or `WriteOperation`.
        key: its identity, None where it has none.
        args, kwargs: its arguments in the one canonical spelling.
        tags: its dependencies beside the static tags, as far as they are known before the load; of a write all that it
            has touched so far.
        asked: tiers that were asked before single flight, with their tickets: for a tool with strong consistency.
        source: how it was answered: ``miss``, ``hit`` (of a tier), ``shared``, ``uncached`` or ``write``.
        is_fresh: the caller asked for a fresh value: no lookup, and no flight of others is joined.
        parent: the call whose tool made this one, or None.
        leading: the innermost flight that this call runs under: its own, or its parent's.
        within: the load that inherits from the reads made under this call; None if there is none.
        flight: the flight it leads or follows. Only a call that takes part in one has it.
        scope: the scope that it is made in; while its tool loads, the inside of it.
        started: clock reading when the tool was started.
        numbers: its number in each session that saw it; None outside of sessions.
        depth: how many running calls enclose it, itself included; 0 once it has ended.
        began: how many calls its session's loop guard had counted when it began.
        loop_key: its identity for the loop guard, set where that compares it.
    """

    __slots__ = (
        "_arguments",
        "args",
        "asked",
        "began",
        "depth",
        "flight",
        "is_fresh",
        "key",
        "kwargs",
        "leading",
        "loop_key",
        "numbers",
        "operation",
        "parent",
        "plan",
        "scope",
        "source",
        "started",
        "tags",
        "within",
    )

    is_call = is_dependency = True
    answers_inline = False
    flight: Flight
    began: int
    loop_key: Hashable

    def __init__(
        self, operation: Any, plan: Plan, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], source: str
    ) -> None:
        self.operation = operation
        self.plan = plan
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.source = source
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
        self.started = 0.0
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
        tenant = self.plan.tenant
        return frozenset() if tenant is None else frozenset({tenant})

    def number_in(self, session: object) -> int | None:
        """Its number among the calls of a session, if that session saw it."""
        return None if self.numbers is None else self.numbers.get(session)


def known_tags(call: Call) -> tuple[Tag, ...]:
    """The dependencies of a read as far as they are known before it: a root stands for those that are not."""
    tags = call.operation.tags
    early = call.tags or tuple(rule.root for rule in tags.early)
    return (*tags.static, *early, *(rule.root for rule in tags.late))


Proceed = Callable[[Call], Awaitable[Entry]]
"""The rest of the plan."""


class Stage(Protocol):
    """A step that may wait. It calls `proceed` to go on, or answers the call itself.

    `proceed` comes first, so that a plan can bind it by position: bound by name, it takes 80 ns more.
    """

    def __call__(self, proceed: Proceed, call: Call) -> Awaitable[Entry]: ...


# Operations


class Operation(Generic[P]):
    """One decorated tool: everything that was settled at decoration. Base of `ReadOperation` and `WriteOperation`.

    Attributes:
        is_stream: whether the tool is a generator: see `engine.streaming`.
        compile: makes the plan of a scope: ``read_plan`` or ``write_plan`` of `engine.plan`.
        is_sync: whether it is a `def`, whose calls are made in the calling thread: see `engine.blocking`.
        coroutine_function: what the stages call and await; of a `def` its function, which they do not await, unless it
            is replaced by another one.
        own_tiers: the tiers that its decorator named, nearest first.
        recorded: what recordings know of its function, None until one does.
        heeds_contexts: whether it gets contexts that may say who asks, and its options leave that to them.
        root_plan: its plan outside of sessions.
        plan_inside_load: the same inside of a load.
        root_uses: who writes its roots.
    """

    __slots__ = (
        "__weakref__",
        "compile",
        "coroutine_function",
        "function",
        "heeds_contexts",
        "is_sync",
        "name",
        "own_tiers",
        "parameters",
        "plan_inside_load",
        "policy",
        "recorded",
        "root_plan",
        "root_uses",
        "stats",
        "tags",
    )

    is_read: bool
    is_stream = False

    @property
    def returns_at_once(self) -> bool:
        """Whether its function returns the result itself, and nothing to be awaited."""
        return self.is_sync and self.coroutine_function is self.function

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        parameters: Parameters,
        tags: TagSet,
        policy: P,
        backup: Tier | None,
        remote: Tier | None,
        compile: Callable[[Any, Scope], Plan],  # noqa: A002 - the attribute's name
        *,
        is_sync: bool = False,
    ) -> None:
        self.function = self.coroutine_function = function
        self.is_sync = is_sync
        self.name = name
        self.parameters = parameters
        self.tags = tags
        self.policy = policy
        self.heeds_contexts = policy.heeds_contexts and parameters.may_say_who_asks
        self.own_tiers = tuple(tier for tier in (backup, remote) if tier is not None)
        self.recorded: Any = None
        self.compile = compile
        self.stats = METRICS.stats_of(name, tags.roots)
        self.root_plan: Plan | None = None
        self.plan_inside_load: Plan | None = None
        self.root_uses: tuple[RootUse, ...] = uses_of(tags.roots)

    def local_hit(self, scope: Scope, key: Hashable, arguments: Mapping[str, Any]) -> Any:
        """The value of a local hit, or `MISSING`."""
        raise NotImplementedError

    def answer(
        self, scope: Scope, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_fresh: bool = False
    ) -> Awaitable[Any]:
        """Run a call that no local hit has answered."""
        raise NotImplementedError

    async def invoke(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the tool with any spelling of its arguments. The generated body does the same in fewer steps."""
        raise NotImplementedError

    def asker_of(self, arguments: Mapping[str, Any]) -> Any:
        """Who makes a call, as far as it tells callers apart; None if nothing does.

        What `vary=` returns, or the fields of the contexts among the arguments that say who asks. Equal in every
        process for equal fields.

        Args:
            arguments: the arguments by name, contexts included.

        Raises:
            UncacheableArgumentsError: if `vary=` raises.
            UnknownAsker: if a context may say it, in a form that cannot be compared.
        """
        varied = self.parameters.varied(arguments)
        if varied is not None:
            return varied
        return self.parameters.asker(arguments) if self.heeds_contexts else None

    def is_successful(self, value: Any) -> bool:
        """Whether a call that returned this value achieved its purpose."""
        raise NotImplementedError

    def notice(self, loop: AgentLoopDetectedError) -> Any:
        """What its caller gets in place of an answer, where a session answers a loop by a notice."""
        return str(loop)

    async def _run(self, call: Call, run: Callable[[Call], Awaitable[Entry]]) -> Any:
        """Let the sessions admit a call, run it, count it, and show the sessions how it ended."""
        if INTERCEPTORS and call.scope.interceptor is None:
            report_escape(self)
        plan = call.plan
        if plan.enter is not None:
            call.started = now = CLOCK.now()
            replacement = plan.enter(call, now)
            if replacement is not None:
                return replacement.answer
        token = PLACE.set(call)
        try:
            entry = await run(call)
        except BaseException as error:
            count(call, 0.0, failed=isinstance(error, Exception))
            replacement = None if plan.leave is None else plan.leave(call, None, error, CLOCK.now())
            if replacement is None:
                raise
            return replacement.answer
        finally:
            call.depth = 0
            flight = call.leading
            if flight is not None and flight.leader is call and flight.is_open:
                # Nothing could end it: there was no room on the stack. Without a call, as there is none here either.
                flight.is_open = flight.joinable = False
                flight.store.flights.pop(flight.id, None)
                STRANDED.append(flight)
            try:
                PLACE.reset(token)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it ran in
        if call.source == "miss":
            for stats in plan.stats:
                stats.misses += 1
        elif call.source == "write":
            for stats in plan.stats:
                stats.writes += 1
        else:
            count(call, entry.cost)
        if plan.leave is None:
            return entry.value
        replacement = plan.leave(call, entry.value, None, CLOCK.now())
        return entry.value if replacement is None else replacement.answer


def count(call: Call, cost: float, *, failed: bool = False) -> None:
    """Count a call by its source, and a failure where the tool itself was run."""
    source = call.source
    for stats in call.plan.stats:
        if source == "miss":
            stats.misses += 1
        elif source == "write":
            stats.writes += 1
        elif source == "uncached":
            stats.bypassed += 1
        elif source == "hit":
            stats.hits += 1
            stats.time_saved += cost
        else:  # who has waited for a run has saved nothing
            stats.shared += 1
        if failed and source != "shared":
            stats.errors += 1


class CacheKey:
    """Identity of one call of one tool: opaque, hashable, equal for every spelling of the call.

    It includes the tenant and what `vary=` returned when it was made.

    Attributes:
        request: the call as tiers know it. The key itself names classes and instances by numbers of this process.
    """

    __slots__ = ("_key", "_tool", "request")

    def __init__(self, tool: Operation[Any], key: Hashable, request: Request) -> None:
        self._tool = tool
        self._key = key
        self.request = request

    @property
    def entry(self) -> tuple[Operation[Any], Hashable]:
        """The tool and the key of the entry."""
        return self._tool, self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.entry == other.entry

    def __hash__(self) -> int:
        return hash((self._tool.name, self._key))

    def __repr__(self) -> str:
        return f"<CacheKey of {self._tool.name}, {hash(self) & 0xFFFFFFFF:08x}>"
