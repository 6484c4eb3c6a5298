"""Controls for tests of agents: reset, a fake clock, a tier that fails on demand.

`reset` clears the state of the whole process; decorated tools stay decorated. `FakeClock` replaces the library's clock.
`FaultyTier` wraps a tier and fails or hangs, to show how a tool behaves when its shared cache does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.audit import audits_running, forget_audits
from agent_cache.engine.flight import ALONE
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import TOOLS, clear_everything, forget_warnings
from agent_cache.engine.tiers import unsubscribe_all
from agent_cache.engine.ttls import TTLS
from agent_cache.metrics import METRICS
from agent_cache.session.session import WATCHERS

if TYPE_CHECKING:
    from agent_cache.remote.versioned import Tier

    _Forwarded = Tier
else:
    _Forwarded = object

__all__ = ["FakeClock", "FaultyTier", "Order", "calls_waiting", "loads_in_flight", "reset"]


def reset() -> None:
    """Empty the cache: no entries, no writes in flight or in doubt, counters at zero, the default configuration, the
    ttls that the code declares, no instrumentation.

    Decorated tools stay decorated.
    """
    WATCHERS.clear()
    CURRENT.restore()
    forget_audits()
    unsubscribe_all()
    clear_everything()
    VERSIONS.release_all()
    TTLS.clear()
    METRICS.clear()
    for tool in TOOLS.readers():
        if isinstance(tool, ReadOperation):
            tool.evidence.restart()
    forget_warnings()


def loads_in_flight() -> int:
    """Return the number of runs of read tools that have started and not ended, audits included."""
    return audits_running() + len([flight for flight in _flights() if flight.is_open])


def calls_waiting() -> int:
    """Return the number of calls that wait for such a run of another call."""
    return sum([not one.done() for flight in _flights() for one in list(flight.waiters or ())])


def _flights() -> list[Any]:
    found = [flight for tool in TOOLS.readers() for store in tool.stores() for flight in list(store.flights.values())]
    return [*found, *list(ALONE)]


class FakeClock:
    """Replaces the library's clock by one that is moved by hand: ``with FakeClock() as clock: clock.advance(60)``."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.time = start
        self._former: Callable[[], float] | None = None

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.time

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds

    def __enter__(self) -> Self:
        self._former = CLOCK.now
        CLOCK.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            CLOCK.set(self._former)


Order = Literal["lookup", "store", "discard", "begin", "renew", "commit", "aclose"]


def _with_faults(order: Order) -> Any:
    async def method(self: FaultyTier, *arguments: Any, **options: Any) -> Any:
        self.orders.append(order)
        fault = self._faults[order].popleft() if self._faults[order] else None
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            await fault.wait()
        return await getattr(self.tier, order)(*arguments, **options)

    return method


class FaultyTier(_Forwarded):
    """Wraps a tier and lets its methods fail or hang.

    Faults of one method are used one by one, in the order in which they were added; without one the call goes through.

    Attributes:
        orders: names of the methods that were called, in order.

    Example: ``tier.fail("lookup", OSError("gone"))``, ``tier.hang("commit", until=event)``.
    """

    lookup, store, discard = _with_faults("lookup"), _with_faults("store"), _with_faults("discard")
    begin, renew, commit = _with_faults("begin"), _with_faults("renew"), _with_faults("commit")
    aclose = _with_faults("aclose")
    never_waits = False  # it hangs

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.orders: list[Order] = []
        self._faults: defaultdict[Order, deque[BaseException | asyncio.Event]] = defaultdict(deque)

    def fail(self, order: Order, error: BaseException, *, times: int = 1) -> None:
        """Let the next calls of a method raise an error."""
        self._faults[order].extend([error] * times)

    def hang(self, order: Order, until: asyncio.Event) -> None:
        """Let the next call of a method wait for an event before it goes through."""
        self._faults[order].append(until)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)
