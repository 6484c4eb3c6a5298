"""The rules of the loop guard as a table: sequences of calls, and what the guard says to which of them.

Each row is run in a session that only warns, in every way in which a call can get its answer.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, LoopHints, LoopPolicy

pytestmark = pytest.mark.usefixtures("clock")


@dataclass(frozen=True)
class Step:
    """One call: of which tool, with which argument, and what it gives.

    Tools that begin with "w" are writes, with "p" polls of up to three unchanged answers, with "off" not checked.
    """

    tool: str = "get"
    argument: Hashable = 0
    answer: Any = "same"
    fails: bool = False


@dataclass(frozen=True)
class Together:
    """Calls that different tasks make at once."""

    steps: tuple[Step, ...]


NEW_TURN = "a new turn of the user"
Sequence = list[Any]


def read(tool: str = "get", argument: Hashable = 0, answer: Any = "same") -> Sequence:
    return [Step(tool, argument, answer)]


def write(argument: Hashable = 0, answer: Any = "ok", tool: str = "write") -> Sequence:
    return [Step(tool, argument, answer)]


def fails(argument: Hashable = 0, error: str = "no", tool: str = "get") -> Sequence:
    return [Step(tool, argument, error, fails=True)]


def together(steps: Sequence) -> Sequence:
    return [Together(tuple(steps))]


def each(steps: Any) -> Sequence:
    return [step for one in steps for step in one]


class Stage:
    """The tools of a sequence, made as they are needed, and how a read gets its answer.

    Args:
        way: "run": the tool runs each time. "hit": the same answer is one entry of the cache. "reloaded": it is stored
            anew each time. "tree": as "hit", and the answer is a dict that each caller has of its own. "uncached": no
            answer is stored. "sync": as "run", of a `def`.
    """

    def __init__(self, way: str) -> None:
        self.way = way
        self.tools: dict[str, Any] = {}
        self.answers: dict[tuple[str, Hashable], Step] = {}
        self.waiting: asyncio.Semaphore | None = None

    def answer(self, tool: str, argument: Hashable) -> Any:
        step = self.answers[tool, argument]
        if step.fails:
            raise LookupError(step.answer)
        return {"answer": [step.answer]} if self.way == "tree" else step.answer

    def tool(self, name: str) -> Any:
        if name not in self.tools:
            self.tools[name] = self.make(name)
        return self.tools[name]

    def make(self, name: str) -> Any:
        async def tool(argument: Hashable) -> Any:
            if self.waiting is not None:
                await self.waiting.acquire()
            return self.answer(name, argument)

        def sync_tool(argument: Hashable) -> Any:
            return self.answer(name, argument)

        function = sync_tool if self.way == "sync" else tool
        if name.startswith("w"):
            return AgentCacheInvalidator("written", name=name)(function)
        hints = LoopHints()
        if name.startswith("p"):
            hints = LoopHints(poll=True, max_unchanged=3)
        elif name.startswith("off"):
            hints = LoopHints(off=True)
        ttl = (lambda _answer: 0.0) if self.way == "uncached" else None
        return AgentCache("read", name=name, loop=hints, ttl=ttl, maxsize=None)(function)

    async def call(self, step: Step) -> None:
        tool, before = self.tool(step.tool), self.answers.get((step.tool, step.argument))
        self.answers[step.tool, step.argument] = step
        call = tool
        if not step.tool.startswith("w"):
            if self.way == "reloaded":
                await tool.invalidate(step.argument)
            elif self.way in ("run", "sync") or before != step or step.fails:  # errors are not stored; a result may be
                call = tool.fresh
        try:
            answer = call(step.argument)
            if self.way != "sync":
                await answer
        except LookupError:
            assert step.fails

    async def overlap(self, steps: tuple[Step, ...]) -> None:
        """Calls that have all begun before the first one ends. They end in one iteration of the event loop, or each in
        one of its own.
        """
        self.waiting = asyncio.Semaphore(0)
        for step in steps:
            self.answers[step.tool, step.argument] = step
        calls = [asyncio.ensure_future(self.tool(step.tool).fresh(step.argument)) for step in steps]
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in calls:
            self.waiting.release()
            for _ in range(0 if self.way == "tree" else 5):
                await asyncio.sleep(0)
        await asyncio.gather(*calls, return_exceptions=True)
        self.waiting = None


def said(session: AgentCacheSession) -> Counter[str]:
    metrics = session.get_metrics()
    assert not metrics["callback_errors"]
    notices = Counter({f"notice of {kind}": count for kind, count in metrics["loop_notices"].items()})
    return notices + Counter(metrics["loops"])


async def verdicts(steps: Sequence, way: str = "run", *, pause: bool = True, **policy: Any) -> dict[int, str]:
    """What the guard says to which call, counted from one."""
    stage, found = Stage(way), dict[int, str]()
    policy.setdefault("max_execution_depth", None)
    async with AgentCacheSession(on_loop="warn", loop_policy=LoopPolicy(**policy)) as session:
        number, heard = 0, Counter[str]()
        for step in steps:
            if step is NEW_TURN:
                session.new_turn()
                continue
            if isinstance(step, Together):
                await stage.overlap(step.steps)
            else:
                await stage.call(step)
            if pause:
                await asyncio.sleep(0)
            number += 1
            heard, before = said(session), heard
            assert (heard - before).total() <= 1
            for kind in heard - before:
                found[number] = kind
    return found


def repeats(first: int, last: int, kind: str = "repeat") -> dict[int, str]:
    return dict.fromkeys(range(first, last + 1), kind)


AB = read("a") + read("b")
ABC = AB + read("c")
ONLY_CYCLES = {"repeat": 99, "error": 99, "any_error": 99}

RULES: dict[str, tuple[Sequence, dict[int, str], dict[str, Any]]] = {
    # repeat
    "the fifth same answer is the first one that is acted upon, after a notice at the third": (
        read() * 7,
        {3: "notice of repeat"} | repeats(5, 7),
        {},
    ),
    "another answer each time is no loop": (each(read(answer=n) for n in range(30)), {}, {}),
    "an answer that comes back goes on with its own count": (
        each(read(answer=a) for a in "aabaabaab"),
        {5: "notice of repeat", 7: "repeat", 8: "repeat", 9: "cycle"},
        {},
    ),
    "another argument is another call": (each(read(argument=n) for n in range(30)), {}, {}),
    "a lower limit comes with a lower notice": (read() * 4, {2: "notice of repeat"} | repeats(3, 4), {"repeat": 3}),
    "a check that is off finds nothing": (read() * 20, {}, {"repeat": None}),
    "a new turn begins anew": ((read() * 4 + [NEW_TURN]) * 4, dict.fromkeys((3, 7, 11, 15), "notice of repeat"), {}),
    # error
    "the fourth same error is the first one that is acted upon": (
        fails() * 5,
        {2: "notice of error", 3: "notice of repeat"} | repeats(4, 4, "error") | repeats(5, 5),
        {},
    ),
    "a success between ends a row of errors": (
        fails() * 3 + read() + fails(),
        {2: "notice of error", 3: "notice of repeat"},
        {},
    ),
    "another error between ends it as well": (
        fails() * 3 + fails(error="other") + fails() * 2,
        {2: "notice of error", 3: "notice of repeat", 6: "repeat"},
        {},
    ),
    # any_error
    "the sixth same error of one tool, whatever the arguments": (
        each(fails(n) for n in range(7)),
        {4: "notice of any_error"} | repeats(6, 7, "any_error"),
        {},
    ),
    "another call between ends the row of a tool": (
        each(fails(n) for n in range(5)) + read("list") + each(fails(n) for n in range(5, 10)),
        dict.fromkeys((4, 10), "notice of any_error"),
        {},
    ),
    "another tool's error between does, too": (
        each(fails(n) for n in range(5)) + fails(tool="list") + each(fails(n) for n in range(5, 10)),
        dict.fromkeys((4, 10), "notice of any_error"),
        {},
    ),
    # cycle
    "two calls in turn": (AB * 4, {5: "notice of cycle", 6: "notice of repeat"} | repeats(7, 8, "cycle"), {}),
    "three calls in turn": (ABC * 4, {7: "notice of cycle"} | repeats(8, 12, "cycle"), {}),
    "a set may be read twice": (each(read(argument=n) for n in range(30)) * 2, {}, {}),
    "and not three times": (
        each(read(argument=n) for n in range(10)) * 2 + each(read(argument=n) for n in range(4)),
        repeats(21, 24, "cycle"),
        {},
    ),
    "one call again and again is no cycle": (AB * 2 + read("list") + read() * 12, {}, {"repeat": (99, 100)}),
    "two answers of one call in turn": (
        each(read(answer=n % 2) for n in range(8)),
        {5: "notice of cycle"} | repeats(7, 8, "cycle"),
        ONLY_CYCLES | {"repeat": (98, 99)},
    ),
    "something new ends it": (
        each(read("news", n) if n % 5 == 0 else read("ab"[n % 2]) for n in range(40)),
        dict.fromkeys(range(9, 40, 5), "notice of cycle"),
        ONLY_CYCLES | {"repeat": (98, 99)},
    ),
    # progress
    "a look-up for every item of a batch": (each(read() + read("item", n) for n in range(40)), {}, {}),
    "that goes on when the batch is done": (
        each(read() + read("item", n) for n in range(40)) + read() * 6,
        {83: "notice of repeat"} | repeats(84, 86),
        {},
    ),
    "a look-up between new failures": (
        each(fails(n, f"no {n}", "query") + read() for n in range(8)),
        {8: "notice of repeat"} | dict.fromkeys((12, 14, 16), "repeat"),
        {},
    ),
    "progress takes back half of what a repetition had added": (
        read() * 3 + each(read("item", n) + read() for n in range(3)) + read() * 3,
        {3: "notice of repeat"} | repeats(11, 12),
        {},
    ),
    "one error for every item of a batch": (each(fails() + read("item", n) for n in range(40)), {}, {}),
    # writes
    "a write with a new signature begins anew": (each(read() * 2 + write(n) for n in range(10)), {}, {}),
    "the same write with the same answer does not": (
        (read() + write()) * 5,
        {6: "notice of cycle", 7: "notice of repeat"} | repeats(8, 10, "cycle"),
        {},
    ),
    "a failed write does not": (
        each(read() + fails(n, f"no {n}", "write") for n in range(6)),
        {7: "notice of repeat", 11: "repeat"},
        {},
    ),
    "a write was seen before, however long ago": (
        each(write(n % 2) for n in range(9)),
        {6: "notice of cycle"} | repeats(8, 9, "cycle"),
        {},
    ),
    "a write that succeeds has its own level": (
        write() * 11,
        {5: "notice of repeat"} | repeats(10, 11),
        {},
    ),
    "a write that fails has that of a read": (
        fails(tool="write") * 4,
        {2: "notice of error", 3: "notice of repeat", 4: "error"},
        {},
    ),
    # hints
    "a poll is judged by its own limit": (read("poll") * 5, repeats(3, 5), {}),
    "a poll that changes begins again": (each(read("poll", answer=n // 2 % 2) for n in range(30)), {}, {}),
    "a poll is no part of a cycle": (
        (read("a") + read("poll", answer="x") + read("b")) * 2,
        {},
        {"cycle": (3, 4)},
    ),
    "a tool that is off is not looked at": (read("off") * 30, {}, {}),
    "and its writes end the epoch": (each(read() + write(n, tool="w off") for n in range(20)), {}, {}),
}

WAYS = ["run", "hit", "reloaded", "tree", "uncached", "sync"]


async def broken(rules: dict[str, tuple[Sequence, dict[int, str], dict[str, Any]]], way: str, **options: Any) -> Any:
    """What the guard said instead, by rule."""
    found = {rule: await verdicts(steps, way, **options, **policy) for rule, (steps, _, policy) in rules.items()}
    return {rule: given for rule, given in found.items() if given != rules[rule][1]}


@pytest.mark.parametrize("ways", [WAYS[:2], WAYS[2:4], WAYS[4:]], ids=" and ".join)
async def test_the_rules(ways: list[str]):
    assert {way: await broken(RULES, way) for way in ways} == {way: {} for way in ways}


async def test_a_loop_may_live_in_one_iteration_of_the_event_loop():
    assert await broken(RULES, "hit", pause=False) == {}


@pytest.mark.parametrize("period", [2, 3, 8, 20, 40])
async def test_a_cycle_of_any_period_is_found(period: int):
    """At five calls without news, the last of them made three times."""
    found = await verdicts(each(read(f"t{n}") for n in range(period)) * 4)
    acted = [number for number, kind in found.items() if kind == "cycle"]
    assert acted[0] == max(period + 5, 2 * period + 1)


ROUNDS: dict[str, tuple[Sequence, dict[int, str], dict[str, Any]]] = {
    "identical calls at once are one": (together(read() * 20) * 5, {3: "notice of repeat", 5: "repeat"}, {}),
    "an outage that a fan-out meets is one error": (together(each(fails(n) for n in range(20))), {}, {}),
    "and one error a round": (
        each(together(each(fails((turn, n)) for n in range(5))) for turn in range(6)),
        {4: "notice of any_error", 6: "any_error"},
        {},
    ),
    "a set may be read twice at once": (together(each(read(argument=n) for n in range(20))) * 2, {}, {}),
}


@pytest.mark.parametrize("way", ["run", "tree"])
async def test_what_runs_at_once_is_one_round(way: str):
    assert await broken(ROUNDS, way) == {}


@pytest.mark.parametrize("way", ["run", "hit", "uncached"])
async def test_what_a_session_remembers_is_bounded(way: str):
    """Of calls, of outcomes of one call, of their order, of answers that the cache has dropped, and of what is refused:
    more calls take no more memory.
    """

    async def calls(first: int, last: int) -> int:
        for number in range(first, last):
            await stage.call(Step("get", number, f"{number}" * 500))
            await stage.call(Step("get", -1, f"outcome {number}"))
            await stage.call(Step("write", -1, "full", fails=True))
            stage.answers.clear()
        stage.tool("get").clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    stage = Stage(way)
    policy = LoopPolicy(max_execution_depth=None)
    async with AgentCacheSession(on_loop="warn", loop_policy=policy, trace_size=10):
        await calls(0, 50)
        tracemalloc.start()
        try:
            first = await calls(50, 1_200)
            more = await calls(1_200, 1_700)
        finally:
            tracemalloc.stop()
    assert more < first * 1.1 + 50_000
