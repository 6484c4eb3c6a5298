"""What has happened so far: the calls of all agents, in the order they began, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agent_cache import AgentCacheSession

__all__ = ["Act", "Call", "Chronicle", "Outcome", "Totals"]

Outcome = Literal["hit", "miss", "shared", "write", "stopped", "uncached"]


@dataclass(frozen=True, slots=True)
class Act:
    """A part of the play: its name, when it begins in seconds, and what there is to see."""

    name: str
    begins: float
    caption: str


@dataclass(slots=True)
class Call:
    """One call of one agent; the fields below `started` are filled in when it ends.

    Attributes:
        saved: seconds of waiting that the cache has spared it.
        drops: tags that a write has invalidated.
        is_right: what the store says of the answer; None where there is none: a write, or a call that was stopped.
    """

    agent: str
    tool: str
    arguments: tuple[object, ...]
    started: float
    ended: float | None = None
    outcome: Outcome | None = None
    saved: float = 0.0
    drops: tuple[str, ...] = ()
    is_right: bool | None = None

    def __str__(self) -> str:
        return f"{self.tool}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Totals:
    """The cache's own counts of a run, what the agents' sessions stopped, and what the check of the answers found."""

    hits: int
    misses: int
    shared: int
    invalidations: int
    stopped: int
    hit_rate: float
    time_saved: float
    checked: int
    stale: int

    @property
    def avoided(self) -> int:
        """Runs of tools that did not have to be."""
        return self.hits + self.shared


@dataclass(slots=True)
class Chronicle:
    """One run of the demo as it unfolds.

    Attributes:
        session: encloses those of all agents, so that what they count adds up in it.
        clock: gives the seconds since the run began.
        is_simulated: whether these are a simulated clock's.
    """

    seed: int
    agents: tuple[str, ...]
    acts: tuple[Act, ...]
    session: AgentCacheSession
    clock: Callable[[], float]
    is_simulated: bool
    calls: list[Call] = field(default_factory=list)

    @property
    def act(self) -> int:
        """Index of the act that is on."""
        now = self.clock()
        return max(index for index, act in enumerate(self.acts) if act.begins <= now or index == 0)

    @property
    def ended(self) -> list[Call]:
        """Calls that are over, the last to end last."""
        return sorted((call for call in self.calls if call.ended is not None), key=lambda call: call.ended or 0.0)

    def close(self) -> None:
        """Let the clock stand still where it is: the run is over."""
        ended = self.clock()
        self.clock = lambda: ended

    def totals(self) -> Totals:
        """Everything so far added up."""
        counted = self.session.get_metrics()
        verdicts = [call.is_right for call in self.calls if call.is_right is not None]
        return Totals(
            hits=counted["hits"],
            misses=counted["misses"],
            shared=counted["shared"],
            invalidations=counted["invalidations"],
            stopped=sum(call.outcome == "stopped" for call in self.calls),
            hit_rate=counted["hit_rate"],
            time_saved=counted["time_saved"],
            checked=len(verdicts),
            stale=verdicts.count(False),
        )
