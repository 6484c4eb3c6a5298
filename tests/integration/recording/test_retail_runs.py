"""Runs of real agents: a fork in a sandbox is its original again; a repeat has no drift, and a changed run has some."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCacheSession
from agent_cache.recording import Cassette, diff_cassettes, fork, record
from agent_cache.testing import reset
from benchmarks.drift.measure import Measurement
from benchmarks.drift.runs import SHAPES
from benchmarks.recorded_runs import RecordedCall, Run, data_directory, load_retail_runs
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS, RetailStore, load_store
from benchmarks.retail.tools import make_tools, some_turns
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def store() -> RetailStore:
    return load_store(data_directory())


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return load_retail_runs(data_directory())


NUMBER: ContextVar[int] = ContextVar("number of the agent's call")


class Shop:
    """Tools over a store, and the agent that makes a recorded run again. `executed` has the numbers of its calls."""

    def __init__(self, store: RetailStore, *, at_once: bool) -> None:
        self.original, self.store, self.at_once, self.chance = store, store, at_once, random.Random(0)
        self.executed: list[tuple[str, int]] = []
        self.tools = make_tools(
            self, policy=tags_from_results(store.owner_of), latency=partial(some_turns, self.chance)
        )

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store, as `Backend.answer`."""
        self.executed.append((tool, NUMBER.get()))
        return self.store.answer(tool, arguments)

    async def make(self, calls: Sequence[RecordedCall], seed: str) -> list[str]:
        """Make the calls of a run on a fresh store, in a session; three reads at once, if any. Returns the answers."""
        reset()
        self.store, self.executed = self.original.copy(), []
        self.chance.seed(seed)
        answers, gate = [""] * len(calls), asyncio.Semaphore(3)

        async def make_one(number: int) -> None:
            async with gate:
                NUMBER.set(number)
                answers[number] = await self.tools[calls[number].tool](**calls[number].arguments)

        async with AgentCacheSession(loop_detection=False):
            together: list[int] = []
            for number, call in enumerate(calls):
                together.append(number)
                if call.tool in WRITE_TOOLS or not self.at_once:
                    *reads, last = together
                    await asyncio.gather(*map(make_one, reads))
                    await make_one(last)
                    together.clear()
            await asyncio.gather(*map(make_one, together))
        return answers


def numbers_before(cassette: Cassette, calls: Sequence[RecordedCall], at: int) -> set[int]:
    """The agent's calls that had started before a call of the cassette; equal ones were recorded in their order."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in reversed(range(len(calls))):
        numbers[calls[number].tool, calls[number].identity].append(number)
    found: set[int] = set()
    for index in cassette.outline.starts():
        call = cassette[index]
        if call.id == at:
            break
        found.add(numbers[call.name.partition(":")[2], json.dumps(call.arguments, sort_keys=True)].pop())
    return found


@pytest.mark.parametrize("share", [45, *slow(1)])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_fork_in_a_sandbox_equals_the_original_and_reads_nothing_again(
    store: RetailStore, runs: list[Run], at_once: bool, share: int, tmp_path: Path
) -> None:
    """Without edits: the same calls in the same order, with the same answers, and the same store afterwards."""
    shop, forks, writes_again = Shop(store, at_once=at_once), 0, 0
    original, branch = tmp_path / "run.jsonl", tmp_path / "branch.jsonl"
    for run in runs[::share]:
        calls = [call for call in run.calls if not call.is_oddity and call.tool in READ_TOOLS + WRITE_TOOLS]
        if len(calls) < 3:  # one before, the first live one, one behind it
            continue
        branch.unlink(missing_ok=True)
        with record(original):
            seen = await shop.make(calls, run.id)
        left, cassette = shop.store, Cassette.load(original)
        at = random.Random(f"{at_once} {run.id}").choice(cassette.steps).id
        before = numbers_before(cassette, calls, at)
        with fork(original, at=at, to=branch, world="sandbox"):
            assert await shop.make(calls, f"{run.id} again") == seen, run.id
        assert diff_cassettes(original, branch).identical, run.id
        assert (shop.store.users, shop.store.orders) == (left.users, left.orders), run.id
        again = [tool for tool, number in shop.executed if number in before]
        assert not {*again} & {*READ_TOOLS}, run.id
        forks += 1
        writes_again += len(again)
    assert forks >= 450 // share
    assert writes_again > 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_repeats_have_no_drift_and_changes_have(store: RetailStore, runs: list[Run], shape: str) -> None:
    measured = Measurement(store, runs[::9])
    counts = await measured.shape(shape, repeats=2)
    measured.close()
    assert (counts.examples, counts.alarms, counts.missed) == ([], 0, 0)
    assert counts.found.total() > 0.75 * counts.injected.total()


@pytest.mark.parametrize("every", [600, *slow(5)])
async def test_volatile_fields_alarm_with_one_recording_and_not_with_two(store, runs, every: int) -> None:
    measured = Measurement(store, runs[::every])
    one, two = await measured.volatile(len(measured))
    measured.close()
    assert one.alarms == one.repeats > 0
    assert (two.examples, two.alarms, two.missed) == ([], 0, 0)
