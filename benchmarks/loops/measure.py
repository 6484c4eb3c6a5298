"""Every measurement over all the recorded runs: which runs, which readings, which policies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_cache import LoopPolicy
from benchmarks.loops import injected, recorded
from benchmarks.loops.audit import Audit
from benchmarks.loops.families import HONEST, LOOPS, Loop
from benchmarks.loops.injected import Injection
from benchmarks.loops.recorded import Reading
from benchmarks.loops.runs import RETAIL_SETS, SHELL_SETS, Run, load_runs
from benchmarks.loops.tally import Tally
from benchmarks.retail.data import load_store
from benchmarks.retail.report import progress
from benchmarks.retail.store import RetailStore

GUARDED: Final = (Reading.RETAIL, Reading.SHELL, Reading.SHELL_AS_READ)
AUDITED: Final = (*GUARDED, Reading.SHELL_FROM_CACHE)

# The same for all data sets. What is not named has its default.
FRONTIER: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"write_repeat": 5},
    {"any_error": 8},
    {"any_error": None},
    {"error": 3},
    {"error": 3, "any_error": 8},
    {"error": 3, "any_error": 8, "write_repeat": 5},
    {"repeat": 4, "error": 3},
    {"repeat": 4, "error": 3, "any_error": 8},
    {"repeat": 4, "error": 3, "any_error": 8, "write_repeat": 4},
    {"repeat": 4, "error": 3, "cycle": 4, "any_error": 8, "write_repeat": 4},
    {"repeat": 3, "error": 3, "cycle": 4, "any_error": 8, "write_repeat": 3},
)


@dataclass(frozen=True, slots=True)
class Recordings:
    """The recorded runs by data set, and the store behind the retail ones."""

    store: RetailStore
    runs: Mapping[str, list[Run]]

    @classmethod
    def load(cls, directory: Path, limit: int | None = None) -> Recordings:
        runs = {name: load_runs(directory, name, limit) for name in (*RETAIL_SETS, *SHELL_SETS)}
        return cls(load_store(directory), runs)

    def of(self, reading: Reading) -> dict[str, list[Run]]:
        names = RETAIL_SETS if reading is Reading.RETAIL else SHELL_SETS
        return {name: self.runs[name] for name in names}

    def count(self, reading: Reading) -> int:
        return sum(map(len, self.of(reading).values()))

    @property
    def successful_retail(self) -> list[Run]:
        return [run for name in RETAIL_SETS for run in self.runs[name] if run.success]


@dataclass(slots=True)
class Measured:
    """What came of a reading, by data set and in sum."""

    reading: Reading
    sets: dict[str, Tally] = field(default_factory=dict)
    all: Tally = field(default_factory=Tally)


async def over_recordings(recordings: Recordings) -> list[Measured]:
    """Stop every run where it is to be stopped, by every reading."""
    measured = []
    for reading in GUARDED:
        with progress(f"recorded, {reading.value}", recordings.count(reading)) as advance:
            measured.append(await _measured(recordings, reading, advance=advance))
    return measured


async def over_frontier(recordings: Recordings) -> list[tuple[Mapping[str, Any], list[Measured]]]:
    """The same at several thresholds."""
    rows = []
    total = len(FRONTIER) * sum(map(recordings.count, GUARDED))
    with progress(f"recorded, {len(FRONTIER)} policies", total) as advance:
        for levels in FRONTIER:
            policy = LoopPolicy(**levels)
            rows.append((levels, [await _measured(recordings, one, policy, advance=advance) for one in GUARDED]))
    return rows


async def _measured(
    recordings: Recordings, reading: Reading, policy: LoopPolicy | None = None, *, advance: Callable[[], None]
) -> Measured:
    agent, measured = recorded.agent_for(reading, recordings.store), Measured(reading)
    for name, runs in recordings.of(reading).items():
        tally = measured.sets[name] = Tally()
        for run in runs:
            outcome = await recorded.guarded(agent, run, reading, policy)
            tally.add(run, outcome)
            measured.all.add(run, outcome)
            advance()
    return measured


async def over_families(recordings: Recordings, families: Mapping[str, Loop]) -> list[Injection]:
    """Append each family to every run that it can be appended to."""
    agent, runs, measured = injected.agent_with(recordings.store), recordings.successful_retail, []
    with progress(f"{len(families)} families, each appended", len(runs) * len(families)) as advance:
        for name, loop in families.items():
            injection = Injection(name, loop.length)
            for run, calls in injected.over(loop.family, runs):
                await injected.guarded(agent, run, calls, injection)
                advance()
            measured.append(injection)
    return measured


async def audits(recordings: Recordings) -> dict[str, Audit]:
    """Make everything once more with `on_loop="short_circuit"`, by what it is made through."""
    found = {}
    for reading in AUDITED:
        agent = recorded.agent_for(reading, recordings.store)
        runs = [run for some in recordings.of(reading).values() for run in some]
        with progress(f"short_circuit, {reading.value}", len(runs)) as advance:
            for run in runs:
                await recorded.audited(agent, run, reading)
                advance()
        name = "retail" if reading is Reading.RETAIL else f"shell and code: {reading.value}"
        found[name] = agent.audit
    agent, runs = injected.agent_with(recordings.store), recordings.successful_retail
    families = [loop.family for loop in (*LOOPS.values(), *HONEST.values())]
    with progress("short_circuit, appended", len(runs) * len(families)) as advance:
        for family in families:
            for run, calls in injected.over(family, runs):
                await injected.audited(agent, run, calls)
                advance()
    found["retail, with loops and honest work appended"] = agent.audit
    return found


@contextmanager
def loops_unsaid() -> Iterator[None]:
    """Keep thousands of warnings of loops out of the terminal. Whatever else is logged is shown."""
    log, events = logging.getLogger("agent_cache"), ("loop", "loop_notice")

    def is_other(record: logging.LogRecord) -> bool:
        return getattr(record, "agent_cache_event", None) not in events

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)
