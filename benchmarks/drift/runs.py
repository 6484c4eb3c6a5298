"""Records retail runs in several shapes of concurrency, and changes them on purpose.

A *shape* is how an agent makes its calls: one after the other, or by tasks. A repeat of a run makes the same calls in
the same shape, and only chance decides how its tasks are interleaved.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent_cache import AgentCacheSession
from agent_cache.recording import Cassette, intercept, record
from agent_cache.testing import reset
from benchmarks.recorded_runs import Run
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS, RetailStore
from benchmarks.retail.tools import Tool, make_tools, some_turns

Call: TypeAlias = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
Tools: TypeAlias = Mapping[str, Tool]

SHAPES: Final = ("in sequence", "model and tools", "task per call", "fan-out", "two agents")
CONCURRENT_READS: Final = 3
LEAST_CALLS: Final = 3


@intercept(name="model", kind="llm")
async def _model(prompt: str) -> str:
    await asyncio.sleep(0)
    return f"calls of {prompt}"


class Backend:
    """The store, with a request id in each answer, or one answer changed.

    Args:
        store: answers.
        change: the call whose answer is changed: its tool, its arguments as text, and ``"raise"`` or ``"change"``.
        volatile: makes the request ids.
    """

    def __init__(
        self, store: RetailStore, change: tuple[str, str, str] | None = None, volatile: random.Random | None = None
    ) -> None:
        self._store = store
        self._change = change
        self._volatile = volatile

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool and return its text."""
        text = self._store.answer(tool, arguments)
        if self._change is not None and self._change[:2] == (tool, _text(arguments)):
            if self._change[2] == "raise":
                raise ConnectionError("the backend is down")
            text = _changed(text)
        if self._volatile is not None and text.startswith("{"):
            text = json.dumps(json.loads(text) | {"request_id": f"{self._volatile.random():.12f}"})
        return text


def _changed(text: str) -> str:
    if not text.startswith("{"):
        return f"{text} changed"
    data = json.loads(text)
    data["status" if "status" in data else next(iter(data))] = "changed"
    return json.dumps(data)


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)


def calls_of(run: Run) -> list[Call]:
    """The calls of a run that the store answers, without those that neither read nor write."""
    known = (*READ_TOOLS, *WRITE_TOOLS)
    return [(call.tool, dict(call.arguments)) for call in run.calls if not call.is_oddity and call.tool in known]


# Shapes


async def _call(tools: Tools, call: Call) -> None:
    try:
        await tools[call[0]](**call[1])
    except ConnectionError:
        pass


async def _in_sequence(tools: Tools, calls: Sequence[Call]) -> None:
    for call in calls:
        await _call(tools, call)


def turns_of(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls that a model asks for together: a write, or up to two reads."""
    turns: list[list[Call]] = []
    for call in calls:
        last = turns[-1] if turns else []
        if last and call[0] in READ_TOOLS and last[-1][0] in READ_TOOLS and len(last) < 2:
            last.append(call)
        else:
            turns.append([call])
    return turns


async def _model_and_tools(tools: Tools, calls: Sequence[Call]) -> None:
    for number, turn in enumerate(turns_of(calls)):
        await _model(f"turn {number}")
        await asyncio.gather(*(_call(tools, call) for call in turn))


async def _task_per_call(tools: Tools, calls: Sequence[Call]) -> None:
    for call in calls:
        await asyncio.create_task(_call(tools, call))


async def _fan_out(tools: Tools, calls: Sequence[Call], chance: random.Random) -> None:
    """Reads between two writes at once, started in any order, a few at a time."""
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def one(call: Call) -> None:
        async with gate:
            await _call(tools, call)

    reads: list[Call] = []
    for call in [*calls, None]:
        if call is not None and call[0] in READ_TOOLS:
            reads.append(call)
            continue
        chance.shuffle(reads)
        await asyncio.gather(*map(one, reads))
        reads = []
        if call is not None:
            await _call(tools, call)


@dataclass(frozen=True, slots=True)
class Scene:
    """How a run is made.

    Attributes:
        shape: one of `SHAPES`.
        calls: its calls.
        other: the calls of a second agent, which is about another customer.
        seed: of the latencies and of the order in which tasks start.
        change: as of `Backend`.
        is_volatile: whether each answer has a request id of its own.
        is_warm: whether some reads are in the cache before the run.
    """

    shape: str
    calls: Sequence[Call]
    other: Sequence[Call] = ()
    seed: int = 0
    change: tuple[str, str, str] | None = None
    is_volatile: bool = False
    is_warm: bool = False


class RunRecorder:
    """Makes runs, each on a store of its own, and records them. Its tools are made once.

    Args:
        store: what each run starts from.
    """

    def __init__(self, store: RetailStore) -> None:
        self._store = store
        self._backend = Backend(store)
        self._chance = random.Random(0)
        self._tools = make_tools(
            self, policy=tags_from_results(store.owner_of), latency=lambda: some_turns(self._chance)
        )

    async def record(self, scene: Scene, path: Path) -> Cassette:
        """Make a run and record it."""
        reset()
        self._chance = random.Random(scene.seed)
        volatile = random.Random(scene.seed + 1) if scene.is_volatile else None
        self._backend = Backend(self._store.copy(), scene.change, volatile)
        if scene.is_warm:
            reads = [call for call in scene.calls if call[0] in READ_TOOLS]
            for call in self._chance.sample(reads, min(2, len(reads))):
                await _call(self._tools, call)
        async with AgentCacheSession(loop_detection=False):
            with record(path):
                await _made(self._tools, scene, self._chance)
        return Cassette.load(path)

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool of the run that is being made."""
        return self._backend.answer(tool, arguments)


def _made(tools: Tools, scene: Scene, chance: random.Random) -> Awaitable[Any]:
    match scene.shape:
        case "in sequence":
            return _in_sequence(tools, scene.calls)
        case "model and tools":
            return _model_and_tools(tools, scene.calls)
        case "task per call":
            return _task_per_call(tools, scene.calls)
        case "fan-out":
            return _fan_out(tools, scene.calls, chance)
        case _:
            return asyncio.gather(_in_sequence(tools, scene.calls), _in_sequence(tools, scene.other))


# Changes


@dataclass(frozen=True, slots=True)
class Injection:
    """A change of a run.

    Attributes:
        scene: the changed run.
        is_in_hole: whether it is only the order of calls of different tasks, which is not judged.
    """

    scene: Scene
    is_in_hole: bool = False


class Injector:
    """Changes runs: ``Injector(store).inject("extra write", scene, chance)``

    Args:
        store: has the ids of orders and products that calls are changed to.
    """

    def __init__(self, store: RetailStore) -> None:
        self._orders = sorted(store.orders)
        self._products = sorted(store.products)
        self.kinds: dict[str, Callable[[list[Call], random.Random], list[Call] | None]] = {
            "arguments of a read": partial(self._other_arguments, READ_TOOLS),
            "arguments of a write": partial(self._other_arguments, WRITE_TOOLS),
            "missing read": partial(_without_one, READ_TOOLS),
            "missing write": partial(_without_one, WRITE_TOOLS),
            "new read": self._with_new_read,
            "repeated read": partial(_with_one_twice, READ_TOOLS),
            "repeated write": partial(_with_one_twice, WRITE_TOOLS),
            "two reads swapped": partial(_swapped, READ_TOOLS, READ_TOOLS),
            "read behind the write": partial(_swapped, READ_TOOLS, WRITE_TOOLS),
            "two writes swapped": partial(_swapped, WRITE_TOOLS, WRITE_TOOLS),
        }

    KINDS: Final = (
        "arguments of a read",
        "arguments of a write",
        "missing read",
        "missing write",
        "new read",
        "repeated read",
        "repeated write",
        "two reads swapped",
        "read behind the write",
        "two writes swapped",
        "changed result",
        "new error",
    )

    def inject(self, kind: str, scene: Scene, chance: random.Random) -> Injection | None:
        """A run with one change of this kind; None if it has no place for it."""
        if kind in ("changed result", "new error"):
            reads = [call for call in scene.calls if call[0] in READ_TOOLS]
            if not reads:
                return None
            tool, arguments = chance.choice(reads)
            return Injection(
                replace(scene, change=(tool, _text(arguments), "raise" if kind == "new error" else "change"))
            )
        before = [(tool, json.loads(json.dumps(arguments))) for tool, arguments in scene.calls]
        calls = self.kinds[kind](before, chance)
        if calls is None:
            return None
        return Injection(replace(scene, calls=calls), _is_in_hole(scene, calls))

    def _other_arguments(self, tools: Sequence[str], calls: list[Call], chance: random.Random) -> list[Call] | None:
        places = [place for place, (tool, arguments) in enumerate(calls) if tool in tools and arguments]
        if not places:
            return None
        arguments = calls[chance.choice(places)][1]
        name = chance.choice(sorted(arguments))
        value = arguments[name]
        if name == "order_id":
            arguments[name] = chance.choice([one for one in self._orders if one != value])
        elif name == "product_id":
            arguments[name] = chance.choice([one for one in self._products if one != value])
        elif isinstance(value, list):
            arguments[name] = [*value[:-1], str(int(value[-1]) + 1) if value and str(value[-1]).isdigit() else "x"]
        else:
            arguments[name] = f"{value}1" if name == "expression" else f"{value}x"
        return calls

    def _with_new_read(self, calls: list[Call], chance: random.Random) -> list[Call]:
        known = {arguments.get("order_id") for _, arguments in calls}
        order = chance.choice([one for one in self._orders if one not in known])
        calls.insert(chance.randrange(len(calls) + 1), ("get_order_details", {"order_id": order}))
        return calls


def _without_one(tools: Sequence[str], calls: list[Call], chance: random.Random) -> list[Call] | None:
    if place := _place(tools, calls, chance):
        del calls[place - 1]
    return calls if place else None


def _with_one_twice(tools: Sequence[str], calls: list[Call], chance: random.Random) -> list[Call] | None:
    if place := _place(tools, calls, chance):
        calls.insert(place, calls[place - 1])
    return calls if place else None


def _place(tools: Sequence[str], calls: list[Call], chance: random.Random) -> int:
    """The number, from 1, of a random call of these tools; 0 if there is none."""
    return chance.choice([number for number, (tool, _) in enumerate(calls, 1) if tool in tools] or [0])


def _swapped(
    first: Sequence[str], second: Sequence[str], calls: list[Call], chance: random.Random
) -> list[Call] | None:
    places = [
        place
        for place in range(len(calls) - 1)
        if calls[place][0] in first and calls[place + 1][0] in second and calls[place] != calls[place + 1]
    ]
    if first is not second:  # of a call that is made twice, nothing says which of the two has moved
        places = [place for place in places if calls.count(calls[place]) == 1]
    if not places:
        return None
    place = chance.choice(places)
    calls[place], calls[place + 1] = calls[place + 1], calls[place]
    return calls


def _is_in_hole(scene: Scene, calls: Sequence[Call]) -> bool:
    """Whether all that has changed is the order of calls where each tool runs in a task of its own."""

    def sorted_calls(those: Sequence[Call]) -> list[str]:
        return sorted(f"{tool} {_text(arguments)}" for tool, arguments in those)

    has_tasks = scene.shape in ("task per call", "model and tools", "fan-out")
    return has_tasks and sorted_calls(scene.calls) == sorted_calls(calls)
