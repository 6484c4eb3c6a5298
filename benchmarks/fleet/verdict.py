"""Was any read stale, and for how long after the write? Decided afterwards, from what all processes have noted."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Lines: TypeAlias = Iterable[list[Any]]
Ending = Literal["returned", "died", "died armed"]


@dataclass(frozen=True, slots=True)
class Stale:
    """A read that got what a write had replaced before it started.

    Attributes:
        lag: seconds from the write's end to the read's start.
        write: which one; its name says what kind it was of.
        ending: how it had ended. One that died armed may be missed for a lease.
        is_own: a write of the reading process had returned by then, which no fault excuses.
    """

    entity: int
    version: int
    kind: str
    lag: float
    write: str
    ending: Ending
    is_own: bool


@dataclass(slots=True)
class Verdict:
    """What came out of one run.

    Attributes:
        stale_reads: how many reads were stale; one of all entities may miss several writes.
        refusal: the longest time in seconds from a write that was refused to the next one that was not, without those
            for which a slot was open.
        refusals: the most writes in a row that were refused, but for those while a slot was open.
    """

    reads: int = 0
    stale_reads: int = 0
    writes: int = 0
    failed: int = 0
    dead: int = 0
    hits: int = 0
    refusal: float = 0.0
    refusals: int = 0
    stale: list[Stale] = field(default_factory=list)

    @property
    def operations(self) -> int:
        """Reads and writes, however they ended."""
        return self.reads + self.writes + self.failed + self.dead

    @property
    def worst(self) -> float:
        """The longest lag in seconds, 0 if nothing was stale."""
        return max((stale.lag for stale in self.stale), default=0.0)

    @property
    def own(self) -> list[Stale]:
        """Those by which a process did not see what it had written itself."""
        return [stale for stale in self.stale if stale.is_own]

    def later_than(self, bound: float, lease: float) -> list[Stale]:
        """The stale reads that nothing excuses: later than the bound, or than lease and bound after an armed death."""
        return [one for one in self.stale if one.lag > bound + (lease if one.ending == "died armed" else 0.0)]


def judge(lines: Lines) -> Verdict:
    """Check every read against every write.

    The lines, times in nanoseconds: ``["read", kind, {entity: version}, start, process]``; ``["effect", entity,
    version, time, write]``; then ``["returned", write, time]``, ``["failed", write, time]`` or ``["died", write, time,
    is_armed]``; ``["hits", number]``; ``["open", start, end]`` of a slot that moves key by key. A write is
    called ``process/number``.

    A read of version v that starts after the end of any write with a higher version is stale. Writes that failed and
    had their effect count like those that returned: their caller knows of them.
    """
    verdict = Verdict()
    reads: list[tuple[str, dict[str, int], int, str]] = []
    effects: list[tuple[int, int, str]] = []
    ends: dict[str, tuple[int, Ending]] = {}
    outcomes: list[tuple[int, bool]] = []
    moves: list[tuple[int, int]] = []
    for what, *rest in lines:
        match what, rest:
            case "read", [kind, versions, start, process]:
                reads.append((kind, versions, start, process))
            case "effect", [entity, version, _, write]:
                effects.append((entity, version, write))
            case ("returned" | "failed") as how, [write, end]:
                ends[write] = (end, "returned")
                verdict.writes += how == "returned"
                verdict.failed += how == "failed"
                outcomes.append((end, how == "failed"))
            case "died", [write, end, is_armed]:
                ends[write] = (end, "died armed" if is_armed else "died")
                verdict.dead += 1
            case "hits", [number]:
                verdict.hits += number
            case "open", [start, end]:
                moves.append((start, end))
            case _:
                raise ValueError(f"a line that nobody writes: {[what, *rest]!r}")
    verdict.reads = len(reads)
    verdict.refusal, verdict.refusals = _longest_refusal(outcomes, moves), _most_refusals(outcomes, moves)
    finished = _finished(effects, ends)
    for kind, versions, start, process in reads:
        before = len(verdict.stale)
        for name, version in versions.items():
            entity = finished[int(name)]
            if (replaced := entity.replaced(version, start)) is not None:
                end, ending, write = replaced
                is_own = entity.was_replaced_by(process, version, start)
                verdict.stale.append(Stale(int(name), version, kind, (start - end) / 1e9, write, ending, is_own))
        verdict.stale_reads += len(verdict.stale) > before
    return verdict


def _longest_refusal(outcomes: Iterable[tuple[int, bool]], moves: list[tuple[int, int]]) -> float:
    since, longest = None, 0
    for end, was_refused in sorted(outcomes):
        if since is not None:
            open_for = sum(max(0, min(end, last) - max(since, first)) for first, last in moves)
            longest = max(longest, end - since - open_for)
        since = None if not was_refused else end if since is None else since
    return longest / 1e9


def _most_refusals(outcomes: Iterable[tuple[int, bool]], moves: list[tuple[int, int]]) -> int:
    count = most = 0
    for at, was_refused in sorted(outcomes):
        if not was_refused:
            count = 0
        elif not any(start <= at <= end for start, end in moves):
            count += 1
            most = max(most, count)
    return most


class _Entity:
    """The writes of one entity that have ended, by version."""

    def __init__(self, writes: Iterable[tuple[int, int, Ending, str]]) -> None:
        self._writes = ordered = sorted(writes)
        self._versions = [version for version, *_ in ordered]
        # The earliest end among each write and all later ones: what has been readable since then.
        self._since: list[tuple[int, Ending, str]] = []
        for _, end, ending, name in reversed(ordered):
            since = (end, ending, name)
            self._since.append(min(since, self._since[-1]) if self._since else since)
        self._since.reverse()

    def replaced(self, version: int, start: int) -> tuple[int, Ending, str] | None:
        """Since when, how and by which write a version had been replaced when a read of it started, if it had been."""
        place = bisect_right(self._versions, version)
        if place == len(self._versions) or self._since[place][0] >= start:
            return None
        return self._since[place]

    def was_replaced_by(self, process: str, version: int, start: int) -> bool:
        """Whether a write of that process had replaced it."""
        later = self._writes[bisect_right(self._versions, version) :]
        return any(end < start and name.rpartition("/")[0] == process for _, end, _, name in later)


def _finished(effects: Iterable[tuple[int, int, str]], ends: dict[str, tuple[int, Ending]]) -> dict[int, _Entity]:
    by_entity: dict[int, list[tuple[int, int, Ending, str]]] = defaultdict(list)
    for entity, version, write in effects:
        if write in ends:
            by_entity[entity].append((version, *ends[write], write))
    return defaultdict(lambda: _Entity(()), {entity: _Entity(writes) for entity, writes in by_entity.items()})
