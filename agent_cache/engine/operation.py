"""A decorated tool as the engine has it: everything that was settled at decoration, or by the configuration.

`ReadOperation` (`engine.read`) and `WriteOperation` (`engine.write`) derive from `Operation`. A `Setup` is what the
configuration adds to the calls of a tool: `make_setup` of each makes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar

from agent_cache.config import Configuration
from agent_cache.core.lease import Lease
from agent_cache.core.options import ReadPolicy, WritePolicy
from agent_cache.core.parameters import Parameters
from agent_cache.core.tags import Tag, TagRule, TagSet
from agent_cache.engine.scope import Call, LocalTool, Scope
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Request
    from agent_cache.remote.versioned import Tier

__all__ = ["TOO_LONG", "UNKEYED", "CacheKey", "Operation", "PlacedRule", "Proceed", "Setup"]

P = TypeVar("P", bound="ReadPolicy | WritePolicy")

Proceed = Callable[[Call], Awaitable[Any]]
"""What runs a call, or the rest of it. Returns its value."""

PlacedRule = tuple[TagRule, Callable[[Any], tuple[Tag, ...]] | None, int]
"""A rule of tags. ``root:{parameter}`` is read straight from its place among the arguments: its function, and the
place; None and 0 for all others.
"""

UNKEYED: Final = object()
"""The key of a call that has no identity. Nothing is ever stored under it."""

TOO_LONG: Final = object()
"""The result of a stream that was longer than what may be kept. No tag can be made of it."""


@dataclass(slots=True, eq=False)
class Setup:
    """What the configuration adds to the calls of one tool, for all scopes.

    Attributes:
        configuration: the settings it was made for.
        run: runs a call: all that `make_setup` puts around `engine.call.load`, or around a write.
        uncached: the same around a run whose result is not stored; `bare` is that run without middleware.
        reload: the same as `run` for a load in the background, which is no call: middleware do not see it.
        tiers: the tiers behind the local store, nearest first.
        lease: the trust in local copies of what they have; None without tiers.
        audited: the share of its hits that is audited.
        keeps_simply: whether nothing but a write keeps a result from being stored as it is, if its ttl is a number.
        follows_at_once: whether a call may wait for another one's load before anything else: nothing stands in between.
    """

    configuration: Configuration
    run: Proceed
    uncached: Proceed
    reload: Any = None
    bare: Any = None
    tiers: tuple[Tier, ...] = ()
    lease: Lease | None = None
    audited: float = 0.0
    keeps_simply: bool = False
    follows_at_once: bool = False


class Operation(Generic[P]):
    """One decorated tool: everything that was settled at decoration. Base of `ReadOperation` and `WriteOperation`.

    Attributes:
        is_stream: whether the tool is a generator: see `engine.streaming`.
        is_sync: whether it is a `def`, whose calls are made in the calling thread: see `engine.blocking`.
        coroutine_function: what a call runs and awaits; of a `def` its function, which is not awaited, unless it is
            replaced by another one.
        returns_at_once: whether that returns the result itself, and nothing to be awaited.
        around: an ``async def (proceed, call)`` around each of its calls; None for most tools.
        own_load: an ``async def (call)`` that runs a load in its own way, and stores its result; None for most tools.
        own_tiers: the tiers that its decorator named, nearest first.
        recorded: what recordings know of its function, None until one does.
        is_global: whether its answers, or what it writes, are those of all sessions.
        heeds_contexts: whether it gets contexts that may say who asks, and its options leave that to them.
        early_rules: the rules of the tags that are known before a call.
        at_root: what it has outside of sessions.
        counted_as: its name and its roots, by which metrics have its counters.
    """

    __slots__ = (
        "__weakref__", "_setup", "around", "at_root", "coroutine_function", "counted_as", "early_rules", "function",
        "heeds_contexts", "is_global", "is_read", "is_sync", "name", "own_load", "own_tiers", "parameters", "policy",
        "recorded", "returns_at_once", "stats", "tags",
    )  # fmt: skip

    _is_read: ClassVar[bool]
    is_stream = False

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        parameters: Parameters,
        tags: TagSet,
        policy: P,
        tiers: tuple[Tier, ...],
        *,
        is_sync: bool = False,
    ) -> None:
        self.function = self.coroutine_function = function
        self.is_read = self._is_read  # a slot is read in a tenth of the time of a value of the class
        self.is_sync = self.returns_at_once = is_sync
        self.is_global = policy.scope == "global"
        self.around: Callable[[Proceed, Call], Awaitable[Any]] | None = None
        self.own_load: Callable[[Call], Awaitable[Any]] | None = None
        self.name, self.parameters, self.tags, self.policy = name, parameters, tags, policy
        self.early_rules: tuple[PlacedRule, ...] = tuple(
            (rule, rule.of_one[1], parameters.names.index(rule.of_one[0]))
            if rule.of_one is not None and parameters.is_positional
            else (rule, None, 0)
            for rule in tags.early
        )
        self.heeds_contexts = policy.heeds_contexts and parameters.may_say_who_asks
        self.own_tiers = tiers
        self.recorded: Any = None
        self.counted_as = name, tags.roots
        self.stats = METRICS.stats_of(self.counted_as)
        self.at_root: LocalTool | None = None
        self._setup: Setup | None = None

    def __deepcopy__(self, _memo: object = None) -> Self:
        """Itself, as of a function: a copy of what has `tool.clear` as a callback means the same tool."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name} is sent to another process by its name alone: define it in a module that both import, not in "
            "a script, a notebook or a function, and send the tool itself instead of its attributes and keys"
        )

    def setup_for(self, configuration: Configuration) -> Setup:
        """What these settings add to its calls."""
        setup = self._setup
        if setup is None or setup.configuration is not configuration:
            setup = self._setup = self.make_setup(configuration)
        return setup

    def make_setup(self, configuration: Configuration) -> Setup:
        """Make that."""
        raise NotImplementedError

    def store_in(self, scope: Scope) -> tuple[Any, Hashable | None]:
        """Where its answers are in a scope, None if they are not stored; and the tenant that they belong to."""
        raise NotImplementedError

    def is_successful(self, value: Any) -> bool:
        """Whether a call that returned this value achieved its purpose."""
        raise NotImplementedError

    def asker_of(self, arguments: Mapping[str, Any]) -> Any:
        """Who makes a call with these arguments, contexts included, as far as it tells callers apart: what `vary=`
        returns, or the fields of its contexts that say who asks. Equal in every process for equal fields; None if
        nothing says it.

        Raises:
            UncacheableArgumentsError: if `vary=` raises.
            UnknownAsker: if a context may say it, in a form that cannot be compared.
        """
        varied = self.parameters.varied(arguments)
        if varied is not None:
            return varied
        return self.parameters.asker(arguments) if self.heeds_contexts else None

    def notice(self, loop: AgentLoopDetectedError) -> Any:
        """What its caller gets in place of an answer, where a session answers a loop by a notice."""
        return str(loop)


@dataclass(frozen=True, slots=True, repr=False)
class CacheKey:
    """Identity of one call of one tool: opaque, hashable, equal for every spelling of the call.

    It includes the tenant and what `vary=` returned when it was made.

    Attributes:
        request: the call as tiers know it. The key itself names classes and instances by numbers of this process.
    """

    _tool: Operation[Any]
    _key: Hashable
    request: Request = field(compare=False)

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    @property
    def entry(self) -> tuple[Operation[Any], Hashable]:
        """The tool and the key of the entry."""
        return self._tool, self._key

    def __repr__(self) -> str:
        return f"<CacheKey of {self._tool.name}, {hash(self) & 0xFFFFFFFF:08x}>"
