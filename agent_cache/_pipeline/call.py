"""One call that did not end at the gates, and the call that it was made from."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agent_cache._core.entries import Entry
from agent_cache._core.tags import Tag

if TYPE_CHECKING:
    from agent_cache._pipeline.operation import Operation
    from agent_cache._pipeline.scope import Plan
    from agent_cache._pipeline.single_flight import Flight

__all__ = ["ENCLOSING", "NEXT_ID", "Call", "Proceed", "Stage"]

NEXT_ID: Callable[[], int] = itertools.count(1).__next__
"""Numbers calls and hits alike, through all sessions, in the order they start."""


class Call:
    """A miss, a write or an uncached run: built once the gates have let it through.

    Attributes:
        key: its identity, None where it has none.
        args, kwargs: its arguments in the one canonical spelling.
        parent: the call whose tool made this one, or None.
        flight: the flight it leads. Only a call that leads one has it.
        leading: the innermost flight this call runs under: its own, or its parent's.
        source: how it was answered: ``miss``, ``hit`` (a tier's), ``shared``, ``uncached`` or ``write``.
        is_fresh: the caller wants what is true now: look nothing up and join nobody.
    """

    __slots__ = ("_arguments", "args", "flight", "id", "is_fresh", "key", "kwargs", "leading", "operation", "parent", "plan", "source", "started", "tags")

    def __init__(
        self, operation: Operation[Any], plan: Plan, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], source: str
    ) -> None:
        self.operation = operation
        self.plan = plan
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.source = source
        self.id = NEXT_ID()
        self.parent: Call | None = ENCLOSING.get()
        self.leading: Flight | None = self.parent.leading if self.parent is not None else None
        self.flight: Flight
        self.started = 0.0
        self.is_fresh = False
        self.tags: tuple[Tag, ...] = ()
        self._arguments: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameter names and values, injected contexts included."""
        if self._arguments is None:
            self._arguments = self.operation.parameters.named(self.args, self.kwargs)
        return self._arguments


ENCLOSING: ContextVar[Call | None] = ContextVar("agent_cache_enclosing_call", default=None)
"""The call whose tool is running in this context. Child tasks and threads inherit it."""

Proceed = Callable[[Call], Awaitable[Entry]]
"""The rest of the plan."""

Stage = Callable[[Call, Proceed], Awaitable[Entry]]
"""A step that may wait. It calls `proceed` to go on, or answers by itself."""
