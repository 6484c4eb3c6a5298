"""One decorated tool: what was settled at decoration, and how a call of it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from agent_cache.clock import CLOCK
from agent_cache.core.parameters import Parameters
from agent_cache.core.policies import ReadPolicy, WritePolicy
from agent_cache.core.store import Entry
from agent_cache.core.tags import TagSet
from agent_cache.engine.call import ENCLOSING, Call
from agent_cache.engine.scope import SCOPE, Plan, Scope
from agent_cache.engine.tape import ACTIVE, mind_escape
from agent_cache.metrics import METRICS
from agent_cache.remote.protocol import Tier

__all__ = ["Operation", "count"]

P = TypeVar("P", bound="ReadPolicy | WritePolicy")


class Operation(Generic[P]):
    """What reads and writes have in common."""

    __slots__ = ("__weakref__", "function", "name", "own_tiers", "parameters", "policy", "root_plan", "stats", "tags")

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        name: str,
        parameters: Parameters,
        tags: TagSet,
        policy: P,
        backup: Tier | None,
        remote: Tier | None,
    ) -> None:
        self.function = function
        self.name = name
        self.parameters = parameters
        self.tags = tags
        self.policy = policy
        self.own_tiers = tuple(tier for tier in (backup, remote) if tier is not None)
        self.stats = METRICS.stats_of(name, tags.roots)
        self.root_plan: Plan | None = None

    def compile(self, scope: Scope) -> Plan:
        raise NotImplementedError

    async def invoke(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the tool in any spelling: what adapters use, and what the generated body does in fewer steps."""
        raise NotImplementedError

    def is_successful(self, value: Any) -> bool:
        """Whether a call that returned this has done what it was called for."""
        raise NotImplementedError

    async def _run(self, call: Call, run: Callable[[Call], Awaitable[Entry]]) -> Any:
        """Let the sessions admit a call, run it, count it, and let them see how it ended."""
        if ACTIVE and SCOPE.get().tape is None:
            mind_escape(self)
        plan = call.plan
        if plan.enter is not None:
            call.started = now = CLOCK.now()
            instead = plan.enter(call, now)
            if instead is not None:
                return instead.answer
        token = ENCLOSING.set(call)
        try:
            entry = await run(call)
        except BaseException as error:
            count(call, 0.0, failed=isinstance(error, Exception))
            instead = None if plan.leave is None else plan.leave(call, None, error, CLOCK.now())
            if instead is None:
                raise
            return instead.answer
        finally:
            try:
                ENCLOSING.reset(token)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it ran in
        if call.source == "miss":
            for stats in plan.stats:
                stats.misses += 1
        else:
            count(call, entry.cost)
        if plan.leave is None:
            return entry.value
        instead = plan.leave(call, entry.value, None, CLOCK.now())
        return entry.value if instead is None else instead.answer


def count(call: Call, cost: float, *, failed: bool = False) -> None:
    """Count a call under what it turned out to be; a failure where the tool was run."""
    source = call.source
    for stats in call.plan.stats:
        if source == "miss":
            stats.misses += 1
        elif source == "write":
            stats.writes += 1
        elif source == "uncached":
            stats.bypassed += 1
        else:
            stats.time_saved += cost
            if source == "hit":
                stats.hits += 1
            else:
                stats.shared += 1
        if failed and source != "shared":
            stats.errors += 1
