"""How far a run has come."""

from __future__ import annotations

from typing import Any

from agent_cache.session.loop_policy import NEVER

__all__ = ["Progress"]


class Progress:
    """How many calls a run has made, and the iteration of the event loop it is in.

    Attributes:
        calls: calls made so far, refused ones not counted.
        loop: the event loop whose current iteration has been noticed; None until a call is made in it.
        task: the task that was seen last in that iteration, and no longer.
        shift: number of that task: another one for each task and each iteration, so that no task need be kept.
        since: the first number of this iteration.
        limit: how many it may make; 0 once it has been stopped, so that one comparison says both.
        used: calls made so far of each tool that may make only so many.
    """

    __slots__ = ("calls", "limit", "loop", "shift", "since", "task", "used")

    def __init__(self, limit: int | None) -> None:
        self.calls = 0
        self.shift = self.since = 0
        self.task: Any = None
        self.used: dict[str, int] = {}
        self.restart(limit)

    def restart(self, limit: int | None) -> None:
        """The run begins, perhaps again: its calls go on from where they were."""
        self.limit = NEVER if limit is None else limit
        self.loop: Any = None

    def notice(self, task: Any) -> None:
        """This task is about to be seen. `SessionWatch` says it again, in the path of every hit."""
        if task is not self.task:
            self.task = task
            self.shift += 1

    def end_tick(self) -> None:
        """The iteration is over."""
        self.shift += 1
        self.since = self.shift
        self.loop = self.task = None
