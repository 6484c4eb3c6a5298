"""How far a run has come."""

from __future__ import annotations

from typing import Any

from agent_cache._core.loop_policy import NO_LIMIT

__all__ = ["Progress"]


class Progress:
    """How many calls a run has made, and the iteration of the event loop it is in.

    Attributes:
        calls: calls made so far, refused ones not counted.
        loop: the event loop whose current iteration has been noticed; None until a call is made in it.
        limit: how many it may make; 0 once it has been stopped, so that one comparison says both.
        tick: number of that iteration.
    """

    __slots__ = ("calls", "limit", "loop", "tick")

    def __init__(self, limit: int | None) -> None:
        self.calls = 0
        self.tick = 0
        self.restart(limit)

    def restart(self, limit: int | None) -> None:
        """The run begins, perhaps again: its calls go on from where they were."""
        self.limit = NO_LIMIT if limit is None else limit
        self.loop: Any = None
