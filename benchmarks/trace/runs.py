"""Makes the trace through a cache: timed against the bare tools, and judged by the store.

Timed, tools answer with what was recorded. Judged, twice: each run alone must see exactly its recorded answers, and all
runs on one store must see answers that were true while the call ran (`benchmarks.retail.truth`).
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any, Final

from agent_cache import testing
from benchmarks.recorded_runs import data_directory
from benchmarks.retail.store import RetailStore
from benchmarks.retail.truth import ObservedStore, Verdict
from benchmarks.table import Row
from benchmarks.timing import Effort, Figure, Spread, progress
from benchmarks.trace.contenders import BARE, OURS, Contender
from benchmarks.trace.workload import (
    ANSWER,
    Tool,
    Tools,
    TraceCall,
    TraceRun,
    as_text,
    count_calls,
    from_text,
    load_trace,
    make_tools,
)

AGENTS: Final = 64
MOST_TURNS: Final = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a call over the bare tools, one number a round; and those of the bare tools themselves."""

    over: Figure
    bare: Figure

    @property
    def per_thousand(self) -> Spread:
        """Milliseconds per 1,000 calls, over the bare tools."""
        return self.over.spread.scaled(1e6)


async def time_contenders(
    contenders: Sequence[Contender], trace: Sequence[TraceRun], rounds: int, *, agents: int = AGENTS
) -> dict[str, Cost]:
    """Make the whole trace through each contender once a round, right after the bare tools.

    Every round decorates anew and begins with empty caches. The clock is the processor time of the process, so that
    what a cache does in another thread counts, and so do garbage collections, as in a program.
    """
    over: dict[str, list[float]] = {one.name: [] for one in contenders}
    bare: dict[str, list[float]] = {one.name: [] for one in contenders}
    calls = count_calls(trace)
    order = list(contenders)
    chance = random.Random(7)
    with _quiet():
        await _timed(BARE, trace, agents)
        for round_ in range(rounds):
            progress("the trace", round_, rounds)
            runs = chance.sample(trace, len(trace))
            chance.shuffle(order)
            for contender in order:
                base = await _timed(BARE, runs, agents)
                mine = await _timed(contender, runs, agents)
                over[contender.name].append((mine - base) / calls)
                bare[contender.name].append(base / calls)
        progress("the trace", rounds, rounds)
    return {one.name: Cost(Figure(tuple(over[one.name])), Figure(tuple(bare[one.name]))) for one in contenders}


async def _timed(contender: Contender, runs: Sequence[TraceRun], agents: int) -> float:
    """Seconds of processor time, in an event loop of its own: some caches leave a timer for each entry in the loop,
    which keeps the entry. What others have left in memory is frozen, so that no collection in here looks at it.
    """
    tools = contender.decorate(make_tools())
    testing.reset()

    async def timed() -> float:
        start = process_time()
        await _with_agents(agents, runs, functools.partial(_make, contender, tools))
        return process_time() - start

    gc.collect()
    gc.freeze()
    try:
        return await asyncio.to_thread(asyncio.run, timed())
    finally:
        gc.unfreeze()


async def _with_agents(agents: int, runs: Sequence[TraceRun], make: Callable[[TraceRun], Any]) -> None:
    """So many agents at once; each takes the next run when it has ended one."""
    waiting = iter(runs)

    async def work() -> None:
        for run in waiting:
            await make(run)

    async with asyncio.TaskGroup() as group:
        for _ in range(agents):
            group.create_task(work())


async def _make(contender: Contender, tools: Tools, run: TraceRun) -> None:
    async with contender.session():
        for call in run:
            await asyncio.sleep(0)  # the model's turn
            ANSWER.set(call)
            await tools[call.tool](**call.arguments)


@dataclass(slots=True)
class Judgement:
    """How the answers of a cache compare with the truth.

    Attributes:
        calls: calls of runs that were made alone, each with an empty cache.
        different: those whose answer was not the recorded one.
        reads: reads of all runs on one store.
        executions: those of them that ran the tool.
        stale: those whose answer was true at no moment since the last write that had ended before them.
    """

    calls: int = 0
    different: int = 0
    reads: int = 0
    executions: int = 0
    stale: int = 0

    @property
    def hit_rate(self) -> float:
        return 1 - self.executions / self.reads if self.reads else 0.0

    @property
    def is_right(self) -> bool:
        return not (self.different or self.stale)


async def judge(
    contender: Contender, trace: Sequence[TraceRun], store: RetailStore, *, agents: int = AGENTS, seed: int = 0
) -> Judgement:
    """Count wrong answers: of each run alone, and of all runs on one store by so many agents."""
    judgement = Judgement()
    with _quiet():
        await _judge_alone(contender, trace, judgement)
        await _judge_together(contender, trace, store, judgement, agents, seed)
    testing.reset()
    return judgement


async def _judge_alone(contender: Contender, trace: Sequence[TraceRun], judgement: Judgement) -> None:
    for done, run in enumerate(trace):
        progress(f"{contender.name}: runs alone", done, len(trace))
        tools = contender.decorate(make_tools())
        async with contender.session():
            for call in run:
                ANSWER.set(call)
                result = await tools[call.tool](**call.arguments)
                judgement.calls += 1
                judgement.different += result != call.result
    progress(f"{contender.name}: runs alone", len(trace), len(trace))


@dataclass(frozen=True, slots=True)
class _StoreAnswer:
    """The answer of the store at the moment when the tool asks for it."""

    store: ObservedStore
    call: TraceCall

    @property
    def result(self) -> Any:
        return from_text(self.store.answer(self.call.tool, self.call.arguments))


async def _judge_together(
    contender: Contender,
    trace: Sequence[TraceRun],
    store: RetailStore,
    judgement: Judgement,
    agents: int,
    seed: int,
) -> None:
    """A tool waits some turns of the loop before and after it asks the store.

    So a write takes effect in the middle of its call, and a read has its result some time before it returns. The runs
    come sorted by customer, so that agents meet over the same records as often as possible.
    """
    chance = random.Random(seed)
    runs = sorted(chance.sample(trace, len(trace)), key=_customer)
    observed = ObservedStore(store.copy())
    tools = contender.decorate({name: _slow(tool, chance) for name, tool in make_tools().items()})

    async def make(run: TraceRun) -> None:
        async with contender.session():
            for call in run:
                ANSWER.set(_StoreAnswer(observed, call))
                if call.is_write:
                    with observed.writing():
                        await tools[call.tool](**call.arguments)
                    continue
                with observed.watching(call.tool, call.arguments) as witness:
                    result = await tools[call.tool](**call.arguments)
                judgement.reads += 1
                judgement.stale += witness.verdict(as_text(result)) is Verdict.STALE

    progress(f"{contender.name}: all runs on one store")
    await _with_agents(agents, runs, make)
    judgement.executions += observed.reads_executed


def _customer(run: TraceRun) -> str:
    """The first user that a run names."""
    for call in run:
        record = call.result if isinstance(call.result, dict) else {}
        user_id = call.arguments.get("user_id", record.get("user_id"))
        if isinstance(user_id, str):
            return user_id
    return ""


def _slow(tool: Tool, chance: random.Random) -> Tool:
    @functools.wraps(tool)
    async def slow(*arguments: Any, **named: Any) -> Any:
        for _ in range(chance.randint(0, MOST_TURNS)):
            await asyncio.sleep(0)
        result = await tool(*arguments, **named)
        for _ in range(chance.randint(0, MOST_TURNS)):
            await asyncio.sleep(0)
        return result

    return slow


@contextmanager
def _quiet() -> Iterator[None]:
    """Without log lines: a guard in the mode `"warn"` writes one for each loop of a recorded agent."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def row_of(contender: Contender, cost: Cost) -> Row:
    """The budget row of a contender of ours."""
    what = f"1,000 calls of recorded agents{', in sessions' if contender is not OURS[-1] else ''}"
    note = f"processor time over the bare tools ({cost.bare.spread.median * 1e6:.1f} ms); {AGENTS} agents at once"
    return Row("trace", what, cost.per_thousand, "ms", contender.limit, note)


async def rows(effort: Effort) -> list[Row]:
    """Our rows alone, as a group of `benchmarks.budgets`."""
    trace = load_trace(data_directory())
    costs = await time_contenders(OURS, trace, max(1, effort.rounds // 3))
    return [row_of(one, costs[one.name]) for one in OURS]
