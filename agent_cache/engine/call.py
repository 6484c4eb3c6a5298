"""One call that did not end at the gates, and the call that it was made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from agent_cache.core.store import Entry
from agent_cache.core.tags import Tag

if TYPE_CHECKING:
    from agent_cache.engine.scope import Plan
    from agent_cache.engine.single_flight import Flight
    from agent_cache.remote.protocol import Ticket, Tier

__all__ = ["ENCLOSING", "Call", "Proceed", "Stage"]


class Call:
    """A miss, a write or an uncached run: built once the gates have let it through.

    Attributes:
        operation: the tool's `ReadOperation` or `WriteOperation`.
        key: its identity, None where it has none.
        args, kwargs: its arguments in the one canonical spelling.
        tags: what it depends on beside the static tags, as far as that is known before the load.
        asked: tiers that were asked before the flight, and their tickets: by a tool whose every hit asks.
        source: how it was answered: ``miss``, ``hit`` (a tier's), ``shared``, ``uncached`` or ``write``.
        is_fresh: the caller wants what is true now: look nothing up and join nobody.
        parent: the call whose tool made this one, or None.
        leading: the innermost flight this call runs under: its own, or its parent's.
        flight: the flight it leads or has followed, or what stands for one where the tiers answered before it led any.
            Only a call that takes part in one has it.
        started: clock reading when the tool was started.
        numbers: its number in each session that saw it; None outside of sessions.
        depth: how many calls it stands in, itself included.
        began: how many calls its session's loop guard had counted when it began.
        loop_key: what tells it apart there; None if nothing does.
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
        "source",
        "started",
        "tags",
    )

    flight: Flight
    began: int
    loop_key: Hashable | None

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
        self.parent = parent = ENCLOSING.get()
        if parent is None:
            self.leading: Flight | None = None
            self.depth = 1
        else:
            self.leading = parent.leading
            self.depth = parent.depth + 1
        self.started = 0.0
        self.tags: tuple[Tag, ...] = ()
        self.numbers: dict[object, int] | None = None
        self._arguments: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameter names and values, injected contexts included."""
        if self._arguments is None:
            self._arguments = self.operation.parameters.named(self.args, self.kwargs)
        return self._arguments

    @property
    def witness(self) -> Entry | None:
        """What the answer was stored as; None if it was not."""
        if self.source == "uncached" or self.source == "write" or self.flight.kept_tags is None:
            return None
        return self.flight.kept

    def number_in(self, session: object) -> int | None:
        """Its number among the calls of a session, if that session saw it."""
        return None if self.numbers is None else self.numbers.get(session)


ENCLOSING: ContextVar[Call | None] = ContextVar("agent_cache_enclosing_call", default=None)
"""The call whose tool is running in this context. Child tasks and threads inherit it."""

Proceed = Callable[[Call], Awaitable[Entry]]
"""The rest of the plan."""


class Stage(Protocol):
    """A step that may wait. It calls `proceed` to go on, or answers by itself."""

    def __call__(self, call: Call, proceed: Proceed) -> Awaitable[Entry]: ...
