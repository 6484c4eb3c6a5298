"""Makes recorded retail runs again under `record`, and replays them without a store behind the tools.

Three questions: does every call of the replay get its recorded answer, does a tool run, and does a credential that was
passed to a tool leave a trace in a file?
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent_cache import AgentCacheSession
from agent_cache.recording import CassetteError, Redaction, intercept, record, replay
from agent_cache.testing import reset
from benchmarks.recorded_runs import RecordedCall, Run
from benchmarks.recording.credentials import Credential, fresh
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import RetailStore
from benchmarks.retail.tools import MOST_TURNS, Latency, Tool, make_tools, no_latency, some_turns

SEEDS: Final = 20

Answers: TypeAlias = list[tuple[Any, str]]
"""For each call: its identity, and the answer."""
Extra: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns arguments that a call passes besides its own."""


class Agent:
    """Makes recorded runs again.

    Args:
        tools: by name.
        at_once: make the calls of a round together, each after a few turns of the event loop.
        extra: see `Extra`.
    """

    def __init__(self, tools: Mapping[str, Tool], *, at_once: bool = False, extra: Extra = dict) -> None:
        self._tools = tools
        self._at_once = at_once
        self._extra = extra

    async def make(self, run: Run, chance: random.Random) -> Answers:
        """Make a run in a session of its own."""
        answers: Answers = []
        async with AgentCacheSession(loop_detection=False) as session:
            for number, calls in enumerate(rounds_of(run)):
                session.new_turn()
                if self._at_once:
                    await self._together(number, calls, chance, answers)
                else:
                    for call in calls:
                        answers.append(((number, call.tool, call.identity), await self._call(call)))
        return answers

    async def _together(self, number: int, calls: Sequence[RecordedCall], chance: random.Random, out: Answers) -> None:
        waits = [chance.randint(0, MOST_TURNS) for _ in calls]

        async def one(call: RecordedCall, turns: int) -> str:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await self._call(call)

        answers = await asyncio.gather(*map(one, calls, waits))
        out += [((number, call.tool, call.identity), got) for call, got in zip(calls, answers, strict=True)]

    async def _call(self, call: RecordedCall) -> str:
        return await self._tools[call.tool](**call.arguments, **self._extra())


def rounds_of(run: Run) -> list[list[RecordedCall]]:
    """The calls between one message of the user and the next."""
    calls = (call for call in run.calls if not call.is_oddity)
    return [list(group) for _, group in groupby(calls, key=lambda call: call.turn)]


def equal_answers(seen: Answers, again: Answers) -> int:
    """The number of calls with the same answer. Identical calls of one round may have changed places."""
    return (Counter(seen) & Counter(again)).total()


class ExecutedError(AssertionError):
    """A tool ran in a replay."""


class RetailBackend:
    """The retail tools, decorated once, with or without a store behind them.

    Attributes:
        tools: by name; those that no policy decorates are under `intercept`.
        executions: how often a tool ran while there was no store.
    """

    def __init__(self, store: RetailStore, *, latency: Latency, with_credentials: bool = False) -> None:
        self._original = store
        self._store: RetailStore | None = None
        self.executions = 0
        policy = tags_from_results(store.owner_of)
        make = functools.partial(make_tools, self, policy=policy, latency=latency)
        tools = make(change=_with_credential) if with_credentials else make()
        self.tools: dict[str, Tool] = {
            name: tool if hasattr(tool, "__agent_cache__") else intercept(tool, name=f"retail:{name}", kind="tool")
            for name, tool in tools.items()
        }

    def open(self) -> None:
        """Put a fresh copy of the store behind the tools, and clear the caches."""
        reset()
        self._store = self._original.copy()

    def close(self) -> None:
        """Remove the store from behind the tools, and clear the caches."""
        reset()
        self._store = None

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store, as `Backend.answer`."""
        if self._store is None:
            self.executions += 1
            raise ExecutedError(f"{tool} ran in a replay")
        return self._store.answer(tool, arguments)


def _with_credential(tool: Tool) -> Tool:
    """The same tool with one more argument, under a name that does not suggest a secret."""

    @functools.wraps(tool)
    async def with_context(*args: Any, context: Any, **arguments: Any) -> str:
        return await tool(*args, **arguments)

    signature = inspect.signature(tool)
    one_more = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY)
    with_context.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), one_more]
    )
    return with_context


@dataclass(slots=True)
class Outcome:
    """Result of recording and replaying a set of runs; `differences` and the counts below it should be empty or zero.

    Attributes:
        way: how the runs were made.
        equal: calls with the same answer in the replay as in the recording.
        faithful: calls with the same answer in the recording as in the original run; None where runs were made in
            another way than the original ones.
        differences: ids of runs with a call whose answer differed.
        executions: tools that ran in a replay.
        left_over: recorded calls that were not made in a replay.
        credentials: number of credentials passed to tools; found: those with a trace in a file.
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
    """Make the calls in sequence, as the original agents did, and replay them strictly."""
    outcome = Outcome("one after the other, strict", run_set, faithful=0)
    backend = RetailBackend(store, latency=no_latency)
    agent = Agent(backend.tools)
    for run in runs:
        with _folder() as folder:
            seen = await _recorded(backend, agent, run, folder, random.Random(0), outcome)
            await _replayed(backend, agent, run, folder, random.Random(0), outcome, seen, strict=True)
        real = [call.result for call in run.calls if not call.is_oddity]
        assert outcome.faithful is not None
        outcome.faithful += sum(answer == result for (_, answer), result in zip(seen, real, strict=True))
        advance()
    return outcome


async def at_once(
    run_set: str, runs: Iterable[Run], store: RetailStore, advance: Advance, seeds: Iterable[int] = range(SEEDS)
) -> Outcome:
    """Make the calls of each round together. A seed sets the tools' latencies, and another order for the replay."""
    runs = list(runs)
    seeds = list(seeds)
    outcome = Outcome(f"rounds at once, {len(seeds)} seeds", run_set)
    chance = random.Random()
    backend = RetailBackend(store, latency=partial(some_turns, chance))
    agent = Agent(backend.tools, at_once=True)
    for seed, run in itertools.product(seeds, runs):
        chance.seed(f"{seed} {run.id}")
        with _folder() as folder:
            seen = await _recorded(backend, agent, run, folder, chance, outcome)
            await _replayed(backend, agent, run, folder, random.Random(f"{seed} {run.id} again"), outcome, seen)
        advance()
    return outcome


async def with_credentials(
    run_set: str, runs: Iterable[Run], store: RetailStore, advance: Advance, redaction: Redaction | None = None
) -> Outcome:
    """Make the calls in sequence, each with a new credential, and with another one in the replay."""
    outcome = Outcome("with fresh credentials", run_set)
    backend = RetailBackend(store, latency=no_latency, with_credentials=True)
    chance = random.Random(0)
    carried: list[Credential] = []
    numbers = {"recorded": itertools.count(), "replayed": itertools.count()}

    def next_for(which: str) -> Mapping[str, Any]:
        credential = fresh(chance, next(numbers[which]))
        carried.append(credential)
        return {"context": credential.argument}

    recording = Agent(backend.tools, extra=partial(next_for, "recorded"))
    replaying = Agent(backend.tools, extra=partial(next_for, "replayed"))
    for run in runs:
        with _folder() as folder:
            carried.clear()
            seen = await _recorded(backend, recording, run, folder, chance, outcome, redaction)
            outcome.credentials += len(carried)
            files = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
            outcome.found += sum(any(trace in files for trace in one.traces()) for one in carried)
            await _replayed(backend, replaying, run, folder, chance, outcome, seen, strict=True)
        advance()
    return outcome


async def _recorded(
    backend: RetailBackend,
    agent: Agent,
    run: Run,
    folder: Path,
    chance: random.Random,
    outcome: Outcome,
    redaction: Redaction | None = None,
) -> Answers:
    backend.open()
    path = folder / "run.jsonl"
    with record(path, redact=redaction):
        seen = await agent.make(run, chance)
    outcome.runs += 1
    outcome.calls += len(seen)
    outcome.bytes += path.stat().st_size
    return seen


async def _replayed(
    backend: RetailBackend,
    agent: Agent,
    run: Run,
    folder: Path,
    chance: random.Random,
    outcome: Outcome,
    seen: Answers,
    *,
    strict: bool = False,
) -> None:
    backend.close()
    before = backend.executions
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
    outcome.executions += backend.executions - before


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
