"""`python -m benchmarks.recording`: record every retail run, and replay it without a store behind the tools.

Each run is made in three ways: its calls one after the other, as the agent did; those of a round at once, in another
order when it is replayed; and with a new secret in each call. Does every call of the replay get its recorded answer,
does a tool run, and is a secret in a file?
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import inspect
import json
import random
import string
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from agent_cache import AgentCacheSession
from agent_cache.recording import CassetteError, intercept, record, replay
from agent_cache.testing import reset
from benchmarks.commands import command_parser, exits_without, positive, run_progress
from benchmarks.recorded_runs import RETAIL_SETS, DataAbsentError, RecordedCall, Run, data_directory, load_runs
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.retail.tools import Tool, make_tools, some_turns
from benchmarks.table import markdown

SEEDS: Final = 20
COLUMNS: Final = ("runs of", "made", "runs", "calls", "as the agent's", "equal", "executions", "left over", "found")
FORMS: Final[Sequence[Callable[[str], Any]]] = (
    lambda secret: {"api_key": secret},
    lambda secret: {"client": {"options": [{"refresh-token": secret, "retries": 3}]}},
    lambda secret: [("Accept", "*/*"), ("Authorization", f"Bearer {secret}")],
    lambda secret: f"use sk-{secret} for this one, please",
    lambda secret: f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZ2VudCJ9.{secret}",
    lambda secret: f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n{secret[::-1]}\n-----END RSA PRIVATE KEY-----",
    lambda secret: f"postgres://agent:{secret}@db/retail",
    lambda secret: json.dumps({"arguments": json.dumps({"password": secret})}).encode(),
)
"""Ways to pass a secret to a tool."""


class Shop:
    """The retail tools, all of them recorded, with a store behind them or none. They take a ``context`` besides."""

    def __init__(self, store: RetailStore) -> None:
        self._original, self.store = store, store
        self.has_store, self.executions = True, 0
        self.chance = random.Random()
        tools = make_tools(
            self,
            policy=tags_from_results(store.owner_of),
            latency=lambda: some_turns(self.chance),
            change=_with_context,
        )
        self.tools = {
            name: tool if hasattr(tool, "__agent_cache__") else intercept(tool, name=f"retail:{name}", kind="tool")
            for name, tool in tools.items()
        }

    def begin(self, *, has_store: bool, seed: str) -> None:
        """Empty the caches, and put a fresh copy of the store behind the tools, or take it away."""
        reset()
        self.chance.seed(seed)
        self.has_store, self.store = has_store, self._original.copy()

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store."""
        self.executions += not self.has_store
        return self.store.answer(tool, arguments)

    async def make(self, run: Run, *, at_once: bool, context: Callable[[], Any]) -> Counter[tuple[Any, ...]]:
        """Make the calls of a run in a session. Returns what they were, with their answers, of each round."""
        seen = Counter[tuple[Any, ...]]()

        async def make_one(number: int, call: RecordedCall) -> None:
            if at_once:
                await some_turns(self.chance)
            answer = await self.tools[call.tool](**call.arguments, context=context())
            seen[number, call.tool, call.identity, answer] += 1

        async with AgentCacheSession(loop_detection=False) as session:
            calls = (call for call in run.calls if not call.is_oddity)
            for number, (_, of_round) in enumerate(groupby(calls, key=lambda call: call.turn)):
                session.new_turn()
                made = [make_one(number, call) for call in of_round]
                if at_once:
                    await asyncio.gather(*made)
                else:
                    for one in made:
                        await one
        return seen


def _with_context(tool: Tool) -> Tool:
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
    """Result of recording and replaying a set of runs.

    Attributes:
        faithful: calls with the same answer in the recording as in the agent's run.
        equal: calls with the same answer in the replay as in the recording.
        executions: tools that ran in a replay.
        left_over: recorded calls that were not made in a replay.
        found: secrets with a trace in a file.
    """

    run_set: str
    way: str
    runs: int = 0
    calls: int = 0
    faithful: int = 0
    equal: int = 0
    executions: int = 0
    left_over: int = 0
    found: int = 0

    async def add(self, shop: Shop, run: Run, seed: int, *, at_once: bool, has_secrets: bool) -> None:
        """Record a run, and replay it."""
        chance, secrets = random.Random(f"{seed} {run.id}"), list[str]()

        def context() -> Any:
            secrets.append("".join(chance.choices(string.ascii_letters + string.digits, k=32)))
            return FORMS[len(secrets) % len(FORMS)](secrets[-1]) if has_secrets else None

        make = partial(shop.make, run, at_once=at_once, context=context)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.jsonl")
            shop.begin(has_store=True, seed=f"{seed} {run.id}")
            with record(path):
                seen = await make()
            written = b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())
            self.found += sum(any(one[at : at + 8].encode() in written for at in range(25)) for one in secrets)
            secrets.clear()  # so that each call has the form that it had
            shop.begin(has_store=False, seed=f"{seed} {run.id} again")
            try:
                with replay(path, strict=not at_once) as player:
                    self.equal += (seen & await make()).total()
                self.left_over += player.remaining
            except CassetteError as error:
                print(f"{run.id}: {error}", file=sys.stderr)
        self.runs += 1
        self.calls += seen.total()
        real = Counter(str(call.result) for call in run.calls if not call.is_oddity)
        self.faithful += (real & Counter(answer for *_, answer in seen.elements())).total()
        self.executions, shop.executions = self.executions + shop.executions, 0

    @property
    def is_perfect(self) -> bool:
        """Whether all is as it was recorded."""
        return self.equal == self.calls and not (self.executions or self.left_over or self.found)

    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        figures = (self.runs, self.calls, self.faithful, self.equal, self.executions, self.left_over, self.found)
        return (self.run_set, self.way, *(f"{one:,}" for one in figures))


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 0: all equal, nothing ran, no secret found; 1: not so; 2: no data."""
    parser: argparse.ArgumentParser = command_parser("benchmarks.recording", __doc__)
    parser.add_argument("--seeds", type=positive, default=SEEDS, metavar="N", help=f"of rounds at once; {SEEDS}")
    options = parser.parse_args(arguments)
    shop, outcomes = Shop(load_store(data_directory())), []
    ways: dict[str, tuple[bool, bool, int]] = {
        "one after the other": (False, False, 1), "rounds at once": (True, False, options.seeds),
        "with new secrets": (False, True, 1),
    }  # fmt: skip
    for name in RETAIL_SETS:
        runs = load_runs(data_directory(), name, options.limit)
        for way, (at_once, has_secrets, seeds) in ways.items():
            outcomes.append(Outcome(name, way))
            with run_progress(f"{name}, {way}", seeds * len(runs)) as advance:
                for seed in range(seeds):
                    for run in runs:
                        asyncio.run(outcomes[-1].add(shop, run, seed, at_once=at_once, has_secrets=has_secrets))
                        advance()
    print(markdown(COLUMNS, [one.row() for one in outcomes]))
    return 0 if all(one.is_perfect for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
