"""An agent that asks for what it is told to ask, one call after the other, or all calls of a round at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from agent_cache import AgentCacheSession
from benchmarks.loops.runs import RecordedCall, Run
from benchmarks.retail.latency import MOST_TURNS
from benchmarks.retail.tools import Tool

Answers: TypeAlias = list[tuple[Any, str]]
"""What each call got: who the call was, and the answer."""
Extra: TypeAlias = Callable[[], Mapping[str, Any]]
"""Arguments that every call carries beside its own."""


class Agent:
    """Makes recorded runs again.

    Args:
        tools: what it calls, by name.
        at_once: the calls of a round are made together, each after a few turns of the event loop.
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
                        answers.append(((number, call.tool, call.identity), await self._ask(call)))
        return answers

    async def _together(self, number: int, calls: Sequence[RecordedCall], chance: random.Random, out: Answers) -> None:
        waits = [chance.randint(0, MOST_TURNS) for _ in calls]

        async def one(call: RecordedCall, turns: int) -> str:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await self._ask(call)

        answers = await asyncio.gather(*map(one, calls, waits))
        out += [((number, call.tool, call.identity), got) for call, got in zip(calls, answers, strict=True)]

    async def _ask(self, call: RecordedCall) -> str:
        return await self._tools[call.tool](**call.arguments, **self._extra())


def rounds_of(run: Run) -> list[list[RecordedCall]]:
    """What was called between one word of the user and the next."""
    calls = (call for call in run.calls if not call.is_oddity)
    return [list(group) for _, group in groupby(calls, key=lambda call: call.turn)]


def equal_answers(seen: Answers, again: Answers) -> int:
    """How many calls got the same. Those of one round that are identical may have changed places."""
    return (Counter(seen) & Counter(again)).total()
