"""Makes recorded runs, and runs with calls appended to them, in guarded sessions.

Every call goes through a decorated tool in an `AgentCacheSession`. With `on_loop="raise"` a run ends at its first
refused call; with `on_loop="short_circuit"` it is made to its end, and every answer is audited.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Final

from agent_cache import AgentCacheSession, AgentLoopDetectedError, LoopPolicy
from benchmarks.commands import run_progress
from benchmarks.loops.agent import Agent, Asked, Ledger, RetailTools, Round, ScriptedTools, Step, is_refusal
from benchmarks.loops.families import HINTS, Family, Loop, is_success
from benchmarks.loops.tally import Injection, Outcome, Tally
from benchmarks.recorded_runs import RETAIL_SETS, SHELL_SETS, RecordedCall, Run, load_runs
from benchmarks.retail.store import RetailStore, load_store


class Reading(enum.Enum):
    """The tools through which recorded calls are made."""

    RETAIL = "the store's tools"
    SHELL = "kinds as recorded"
    SHELL_AS_READ = "one read tool"
    SHELL_FROM_CACHE = "one read tool, from the cache where it can"


GUARDED: Final = (Reading.RETAIL, Reading.SHELL, Reading.SHELL_AS_READ)
AUDITED: Final = (*GUARDED, Reading.SHELL_FROM_CACHE)


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
    """Results of a reading, by data set and in sum."""

    reading: Reading
    sets: dict[str, Tally] = field(default_factory=dict)
    all: Tally = field(default_factory=Tally)


async def over_recordings(recordings: Recordings) -> list[Measured]:
    """Make every recorded run in a guarded session, by every reading."""
    measured = []
    for reading in GUARDED:
        with run_progress(f"recorded, {reading.value}", recordings.count(reading)) as advance:
            agent = agent_for(reading, recordings.store)
            measured.append(await _measure(agent, recordings.of(reading), reading, advance=advance))
    return measured


async def _measure(
    agent: Agent,
    runs: Mapping[str, list[Run]],
    reading: Reading,
    policy: LoopPolicy | None = None,
    *,
    advance: Callable[[], None],
) -> Measured:
    measured = Measured(reading)
    for name in runs:
        tally = measured.sets[name] = Tally()
        for run in runs[name]:
            outcome = await make_guarded(agent, run, reading, policy)
            tally.add(run, outcome)
            measured.all.add(run, outcome)
            advance()
    return measured


async def over_families(recordings: Recordings, families: Mapping[str, Loop]) -> list[Injection]:
    """Append each family to every run to which it can be appended."""
    agent, runs, measured = scripted_agent(recordings.store), recordings.successful_retail, []
    with run_progress(f"{len(families)} families, each appended", len(runs) * len(families)) as advance:
        for name, loop in families.items():
            injection = Injection(name, loop.length)
            for run, calls in applicable(loop.family, runs):
                await inject_guarded(agent, run, calls, injection)
                advance()
            measured.append(injection)
    return measured


@contextmanager
def muted_loop_warnings() -> Iterator[None]:
    """Keep thousands of loop warnings out of the terminal; other log records are shown."""
    log, events = logging.getLogger("agent_cache"), ("loop", "loop_notice")

    def is_other(record: logging.LogRecord) -> bool:
        return getattr(record, "agent_cache_event", None) not in events

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def agent_for(reading: Reading, store: RetailStore) -> Agent:
    """An agent with the tools of this reading."""
    ledger = Ledger()
    retail = RetailTools(store, ledger) if reading is Reading.RETAIL else None
    return Agent(ledger, ScriptedTools(ledger), retail)


async def make_guarded(agent: Agent, run: Run, reading: Reading, policy: LoopPolicy | None = None) -> Outcome:
    """Make a run with `on_loop="raise"`, up to the first call that is refused."""
    notices: list[AgentLoopDetectedError] = []
    session = AgentCacheSession(on_loop="raise", loop_policy=policy, on_notice=notices.append)
    agent.start()
    stopped: int | None = None
    try:
        async with session:
            for places, asked in rounds_of(run, reading):
                got = await agent.make(asked, session)
                stopped = next((at for at, one in zip(places, got, strict=True) if is_refusal(one)), None)
                if stopped is not None:
                    break
    except AgentLoopDetectedError:
        pass  # raised again at the end of the session, because the agent caught it
    return Outcome(stopped, session.loop_error, bool(notices) or session.loop_error is not None)


async def make_audited(agent: Agent, run: Run, reading: Reading) -> None:
    """Make a whole run with `on_loop="short_circuit"`, and judge every answer."""
    agent.start()
    async with AgentCacheSession(on_loop="short_circuit") as session:
        for _, asked in rounds_of(run, reading):
            await agent.make_audited(asked, session)


def rounds_of(run: Run, reading: Reading) -> Iterator[tuple[list[int], Round]]:
    """The calls that were made together, and their positions in the run."""
    turn: int | None = None
    calls = ((at, call) for at, call in enumerate(run.calls) if not call.is_oddity)
    for _, together in groupby(calls, key=lambda one: one[1].batch):
        batch = list(together)
        now = batch[0][1].turn
        asked = [call if reading is Reading.RETAIL else _step(call, reading) for _, call in batch]
        yield [at for at, _ in batch], Round(asked, new_turn=turn is not None and now is not None and now != turn)
        turn = now


def _step(call: RecordedCall, reading: Reading) -> Step:
    """A step that repeats a recorded shell call with its outcome. Reads bypass the cache, but for one reading."""
    is_write = call.is_write and reading is Reading.SHELL
    is_fresh = not is_write and reading is not Reading.SHELL_FROM_CACHE
    return Step(call.tool, call.identity, call.result, fails=call.error, is_write=is_write, is_fresh=is_fresh)


def scripted_agent(store: RetailStore) -> Agent:
    """An agent with the retail tools and the scripted tools of all families."""
    ledger = Ledger()
    return Agent(ledger, ScriptedTools(ledger, HINTS, is_success), RetailTools(store, ledger))


async def inject_guarded(agent: Agent, run: Run, calls: Iterable[Asked], injection: Injection) -> None:
    """Make a run and the appended calls with `on_loop="raise"`, up to the first of these that is refused."""
    notices: list[AgentLoopDetectedError] = []
    session = AgentCacheSession(on_loop="raise", on_notice=notices.append)
    agent.start()
    answered = 0
    try:
        async with session:
            for _, asked in rounds_of(run, Reading.RETAIL):
                await agent.make(asked, session)
            session.raise_for_loop()
            notices.clear()
            for asked in _rounds(calls):
                refused = [is_refusal(one) for one in await agent.make(asked, session)]
                answered += refused.count(False)
                if any(refused):
                    break
    except AgentLoopDetectedError:
        pass  # as in `make_guarded`
    injection.runs += 1
    injection.noticed += bool(notices) or session.loop_error is not None
    if session.loop_error is not None:
        injection.wasted.append(max(0, answered - injection.length))
        injection.kinds[session.loop_error.kind] += 1


async def inject_audited(agent: Agent, run: Run, calls: Iterable[Asked]) -> None:
    """Make all of it with `on_loop="short_circuit"`, and judge every answer."""
    agent.start()
    recorded = (asked for _, asked in rounds_of(run, Reading.RETAIL))
    async with AgentCacheSession(on_loop="short_circuit") as session:
        for asked in chain(recorded, _rounds(calls)):
            await agent.make_audited(asked, session)


def applicable(family: Family, runs: Iterable[Run]) -> Iterator[tuple[Run, Iterable[Asked]]]:
    """The runs to which the family can be appended, each with the calls to append."""
    for seed, run in enumerate(runs):
        calls = family(run, seed)
        if calls is not None:
            yield run, calls


def _rounds(calls: Iterable[Asked]) -> Iterator[Round]:
    """Steps of one round together, every other call by itself."""
    numbered = enumerate(calls)
    for _, together in groupby(numbered, key=lambda one: _round_of(one[1]) if _round_of(one[1]) >= 0 else -1 - one[0]):
        batch = [call for _, call in together]
        first = batch[0]
        yield Round(batch, new_turn=isinstance(first, Step) and first.is_turn)


def _round_of(call: Asked) -> int:
    return call.round if isinstance(call, Step) else -1
