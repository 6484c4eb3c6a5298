"""Runs that are made, recorded, and replayed with nobody behind the tools: what differs, what ran, what leaked."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent_cache.recording import CassetteError, Redaction, record, replay
from benchmarks.loops.runs import Run
from benchmarks.recording.agent import Agent, Answers, equal_answers
from benchmarks.recording.credentials import Credential, fresh
from benchmarks.recording.stage import ExecutedError, Stage
from benchmarks.retail.latency import no_latency, some_turns
from benchmarks.retail.store import RetailStore

SEEDS: Final = 20


@dataclass(slots=True)
class Outcome:
    """What came of recording and replaying a set of runs; `differences` is to be empty, and what follows it zero.

    Attributes:
        way: how the runs were made.
        equal: calls that got in the replay what they got when they were recorded.
        faithful: calls that got, when they were recorded, what the real agent once got; None where runs were not made
            as the real agent made them.
        differences: ids of runs with a call that did not get the same.
        executions: tools that ran in a replay.
        left_over: recorded calls that a replay did not ask for.
        credentials: how many were passed to tools; found: how many left a trace in a file.
        bytes: size of all cassettes.
    """

    way: str
    run_set: str
    runs: int = 0
    calls: int = 0
    equal: int = 0
    faithful: int | None = None
    differences: list[str] = field(default_factory=list)
    executions: int = 0
    left_over: int = 0
    credentials: int = 0
    found: int = 0
    bytes: int = 0

    @property
    def is_perfect(self) -> bool:
        return not (self.differences or self.executions or self.left_over or self.found) and self.equal == self.calls


Advance = Callable[[], None]


async def in_turn(run_set: str, runs: Iterable[Run], store: RetailStore, advance: Advance) -> Outcome:
    """One call after the other, as the real agents did, and replayed strictly."""
    outcome = Outcome("one after the other, strict", run_set, faithful=0)
    stage = Stage(store, latency=no_latency)
    agent = Agent(stage.tools)
    for run in runs:
        with _folder() as folder:
            seen = await _recorded(stage, agent, run, folder, random.Random(0), outcome)
            await _replayed(stage, agent, run, folder, random.Random(0), outcome, seen, strict=True)
        real = [call.result for call in run.calls if not call.is_oddity]
        assert outcome.faithful is not None
        outcome.faithful += sum(answer == result for (_, answer), result in zip(seen, real, strict=True))
        advance()
    return outcome


async def at_once(
    run_set: str, runs: Iterable[Run], store: RetailStore, advance: Advance, seeds: Iterable[int] = range(SEEDS)
) -> Outcome:
    """The calls of each round together. A seed draws the latencies of the tools, and another order for the replay."""
    runs = list(runs)
    seeds = list(seeds)
    outcome = Outcome(f"rounds at once, {len(seeds)} seeds", run_set)
    chance = random.Random()
    stage = Stage(store, latency=partial(some_turns, chance))
    agent = Agent(stage.tools, at_once=True)
    for seed, run in itertools.product(seeds, runs):
        chance.seed(f"{seed} {run.id}")
        with _folder() as folder:
            seen = await _recorded(stage, agent, run, folder, chance, outcome)
            await _replayed(stage, agent, run, folder, random.Random(f"{seed} {run.id} again"), outcome, seen)
        advance()
    return outcome


async def with_credentials(
    run_set: str, runs: Iterable[Run], store: RetailStore, advance: Advance, redaction: Redaction | None = None
) -> Outcome:
    """One call after the other, each with a new credential, which is another one in the replay."""
    outcome = Outcome("with fresh credentials", run_set)
    stage = Stage(store, latency=no_latency, with_credentials=True)
    chance = random.Random(0)
    carried: list[Credential] = []
    numbers = {"live": itertools.count(), "dead": itertools.count()}

    def next_for(which: str) -> Mapping[str, Any]:
        credential = fresh(chance, next(numbers[which]))
        carried.append(credential)
        return {"context": credential.argument}

    live = Agent(stage.tools, extra=partial(next_for, "live"))
    dead = Agent(stage.tools, extra=partial(next_for, "dead"))
    for run in runs:
        with _folder() as folder:
            carried.clear()
            seen = await _recorded(stage, live, run, folder, chance, outcome, redaction)
            outcome.credentials += len(carried)
            files = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
            outcome.found += sum(any(trace in files for trace in one.traces()) for one in carried)
            await _replayed(stage, dead, run, folder, chance, outcome, seen, strict=True)
        advance()
    return outcome


async def _recorded(
    stage: Stage,
    agent: Agent,
    run: Run,
    folder: Path,
    chance: random.Random,
    outcome: Outcome,
    redaction: Redaction | None = None,
) -> Answers:
    stage.live()
    path = folder / "run.jsonl"
    with record(path, redact=redaction):
        seen = await agent.make(run, chance)
    outcome.runs += 1
    outcome.calls += len(seen)
    outcome.bytes += path.stat().st_size
    return seen


async def _replayed(
    stage: Stage,
    agent: Agent,
    run: Run,
    folder: Path,
    chance: random.Random,
    outcome: Outcome,
    seen: Answers,
    *,
    strict: bool = False,
) -> None:
    stage.dead()
    before = stage.executions
    player = None
    try:
        with replay(folder / "run.jsonl", strict=strict) as player:
            again = await agent.make(run, chance)
    except (CassetteError, ExecutedError):
        outcome.differences.append(run.id)
    else:
        equal = equal_answers(seen, again)
        outcome.equal += equal
        if equal < len(seen) or len(again) > len(seen):
            outcome.differences.append(run.id)
    outcome.left_over += 0 if player is None else player.remaining
    outcome.executions += stage.executions - before


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
