"""Forks retail runs at a random call, and compares the branch with the original: for tests.

A run is recorded on a fresh store. It is forked without edits in a sandbox, so a branch that is right equals its
original: the same calls in the same order, with the same answers, and the same store afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from agent_cache import AgentCacheSession
from agent_cache.recording import Cassette, diff_cassettes, fork, record
from agent_cache.testing import reset
from benchmarks.recorded_runs import RecordedCall, Run
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS, RetailStore
from benchmarks.retail.tools import make_tools, some_turns

LEAST: Final = 3
"""Calls of a run that is forked: one before, the first live one, one behind it."""
TOGETHER: Final = 3
"""Reads that are in flight at the same time, where they are made at once."""

Ways: TypeAlias = Literal["one after the other", "reads at once"]
WAYS: Final[tuple[Ways, ...]] = ("one after the other", "reads at once")

_number: ContextVar[int] = ContextVar("number of the agent's call")


@dataclass(slots=True)
class Outcome:
    """What became of the forks of one kind.

    Attributes:
        way: how the agent makes its calls.
        forks, equal: how many there were, and how many were like their original.
        reads_before: reads before the fork that a tool executed; should be 0.
        writes_again: writes before the fork that were made again.
        different: ids of the runs that were not equal.
    """

    way: Ways
    forks: int = 0
    equal: int = 0
    reads_before: int = 0
    writes_again: int = 0
    different: list[str] = field(default_factory=list)

    @property
    def is_perfect(self) -> bool:
        """Whether it is as a sandbox must be."""
        return not self.reads_before and self.equal == self.forks


class Shop:
    """The tools, the store behind them, and the agent that makes a recorded run again.

    Attributes:
        store: behind the tools.
        executed: tool and number of the agent's call, of each that a tool executed.
    """

    def __init__(self, store: RetailStore, way: Ways) -> None:
        self._original = store
        self._way = way
        self._chance = random.Random(0)
        self.store = store
        self.executed: list[tuple[str, int]] = []
        self._tools = make_tools(
            self, policy=tags_from_results(store.owner_of), latency=partial(some_turns, self._chance)
        )

    def open(self) -> None:
        """Put a fresh store behind the tools, and clear the caches."""
        reset()
        self.store = self._original.copy()
        self.executed.clear()

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store, as `Backend.answer`."""
        self.executed.append((tool, _number.get()))
        return self.store.answer(tool, arguments)

    async def make(self, calls: Sequence[RecordedCall], seed: str) -> list[str]:
        """Make the calls of a run in a session, and return the answers. The seed sets how long the tools take."""
        self._chance.seed(seed)
        answers = [""] * len(calls)
        gate = asyncio.Semaphore(TOGETHER)

        async def make_one(number: int) -> None:
            async with gate:
                _number.set(number)
                answers[number] = await self._tools[calls[number].tool](**calls[number].arguments)

        async with AgentCacheSession(loop_detection=False):
            together: list[int] = []
            for number, call in enumerate(calls):
                if call.tool in READ_TOOLS and self._way == "reads at once":
                    together.append(number)
                    continue
                await asyncio.gather(*map(make_one, together))
                together.clear()
                await make_one(number)
            await asyncio.gather(*map(make_one, together))
        return answers


def forked_calls(run: Run) -> list[RecordedCall]:
    """The calls of a run to the tools that read and write."""
    return [call for call in run.calls if not call.is_oddity and call.tool in READ_TOOLS + WRITE_TOOLS]


async def fork_all(runs: Iterable[Run], store: RetailStore, way: Ways) -> Outcome:
    """Record and fork each run that is long enough."""
    outcome = Outcome(way)
    shop = Shop(store, way)
    for run in runs:
        calls = forked_calls(run)
        if len(calls) >= LEAST:
            with tempfile.TemporaryDirectory() as folder:
                await _fork_one(run.id, calls, shop, outcome, Path(folder))
    return outcome


async def _fork_one(run: str, calls: Sequence[RecordedCall], shop: Shop, outcome: Outcome, folder: Path) -> None:
    original, branch = folder / "run.jsonl", folder / "branch.jsonl"
    shop.open()
    with record(original):
        seen = await shop.make(calls, run)
    left = shop.store
    cassette = Cassette.load(original)
    chance = random.Random(f"{outcome.way} {run}")
    at = chance.choice(cassette.steps).id
    before = _numbers_before(cassette, calls, at)
    shop.open()
    with fork(original, at=at, to=branch, world="sandbox"):
        again = await shop.make(calls, f"{run} again")
    is_equal = again == seen and diff_cassettes(original, branch).identical
    is_equal = is_equal and (shop.store.users, shop.store.orders) == (left.users, left.orders)
    outcome.forks += 1
    outcome.equal += is_equal
    outcome.reads_before += sum(tool in READ_TOOLS and number in before for tool, number in shop.executed)
    outcome.writes_again += sum(tool in WRITE_TOOLS and number in before for tool, number in shop.executed)
    if not is_equal:
        outcome.different.append(run)


def _numbers_before(cassette: Cassette, calls: Sequence[RecordedCall], at: int) -> set[int]:
    """The numbers of the agent's calls that had started before a call of the cassette.

    Equal calls were recorded in the order in which the agent made them.
    """
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in reversed(range(len(calls))):
        numbers[calls[number].tool, calls[number].identity].append(number)
    found: set[int] = set()
    for index in cassette.outline.starts():
        call = cassette[index]
        if call.id == at:
            break
        identity = json.dumps(call.arguments, sort_keys=True)
        found.add(numbers[call.name.partition(":")[2], identity].pop())
    return found
