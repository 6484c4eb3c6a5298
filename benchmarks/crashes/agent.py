"""An agent whose runs are scripted, its tools, and the line to the benchmark on which it says how far it is.

The script of a run follows from its seed, so each process of the run makes the same calls unless it is answered
otherwise. The tools here are bare; a worker decorates them for what it tries. This module imports nothing of
agent_cache, since other libraries run the same agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

STEPS: Final = ("before the intent", "before the effect", "after the effect", "after the line")
"""Moments of a write at which a process can be stopped: before the call; in the tool, before and after its request; and
when the call has returned to the agent. Calls of the model have them too."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What an agent does next: calls of one kind, all at once, about orders of these numbers."""

    kind: str
    names: tuple[str, ...]


_FIRST: Final = ("ask", "look", "refund", "together")
_OTHERS: Final = ("refund", "together", "settle", "close", "mail", "ship", "ask", "look")


def script(seed: int) -> tuple[Phase, ...]:
    """The phases of a run. Operations have names of their own; `look` reads orders that were written to before."""
    chance = random.Random(seed)
    kinds = [*_FIRST, *chance.sample(_OTHERS, len(_OTHERS))]
    phases: list[Phase] = []
    orders: list[str] = []
    for number, kind in enumerate(kinds):
        if kind == "look":
            names = tuple(dict.fromkeys([*orders[-2:], f"order{number}"]))
        elif kind == "together":
            names = tuple(f"order{number}x{part}" for part in range(3))
        else:
            names = (f"order{number}",)
        phases.append(Phase(kind, names))
        orders.extend(names)
    return (*phases, Phase("ask", ("end",)))


def operations(seed: int) -> tuple[list[str], list[str]]:
    """The writes and the requests to the model that a run makes, each of them once."""
    writes: list[str] = []
    asked: list[str] = []
    for phase in script(seed):
        for name in phase.names:
            match phase.kind:
                case "ask":
                    asked.append(f"ask-{name}")
                case "look":
                    pass
                case "together":
                    writes.append(f"change-of-{name}")
                case "settle":
                    writes += [f"refund-of-{name}", f"ship-of-{name}"]
                    asked.append(f"ask-{name}")
                case "close":
                    writes += [f"note-of-{name}", f"close-of-{name}"]
                case kind:
                    writes.append(f"{kind}-of-{name}")
    return writes, asked


class Tools(Protocol):
    """The tools of the agent. A write returns its receipt."""

    async def ask(self, name: str, seen: str) -> str:
        """A call of the model."""

    async def look(self, order: str) -> Any:
        """Read an order."""

    async def refund(self, order: str) -> Any:
        """A write."""

    async def change(self, order: str) -> Any:
        """A write, of which several are made at once."""

    async def settle(self, order: str) -> Any:
        """Not a write itself; it makes two and asks the model between them."""

    async def close(self, order: str) -> Any:
        """A write that makes another one first."""

    async def mail(self, order: str) -> Any:
        """A bare request, which is no tool."""

    async def ship(self, order: str) -> Any:
        """A write by a function that is no cached tool."""


async def run_agent(tools: Tools, seed: int) -> list[Any]:
    """One run. Returns what it has seen."""
    seen: list[Any] = []
    for phase in script(seed):
        match phase.kind:
            case "ask":
                answers = [await tools.ask(phase.names[0], json.dumps(seen))]
            case "look":
                answers = list(await asyncio.gather(*(tools.look(name) for name in phase.names)))
            case "together":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(tools.change(name)) for name in phase.names]
                answers = [task.result() for task in tasks]
            case kind:
                answers = [await getattr(tools, kind)(name) for name in phase.names]
        seen.append(answers)
    return seen


class Line:
    """The line to the benchmark, and the moment at which this process is to stand still until it is killed.

    Args:
        stop: step and operation of that moment; None: there is none.
    """

    def __init__(self, stop: tuple[str, str] | None = None) -> None:
        self._stop = stop

    def say(self, what: str, content: Any = None) -> None:
        """Write one line, which is not lost if this process is killed."""
        os.write(sys.stdout.fileno(), json.dumps([what, content]).encode() + b"\n")

    def reach(self, step: str, operation: str) -> None:
        """This process has come to this moment."""
        if self._stop == (step, operation):
            self.say("stopped")
            sys.stdin.buffer.read()  # nothing is ever sent
        if step == "after the line":
            self.say("returned", operation)


@dataclass(frozen=True, slots=True)
class Client:
    """The requests of one process to the receiver."""

    url: str
    run: str
    life: int
    line: Line

    async def request(self, what: str, operation: str, key: str = "", *, method: str = "GET") -> Any:
        """The answer; None for 404."""
        return await asyncio.to_thread(self.fetch, what, operation, key, method=method)

    def fetch(self, what: str, operation: str, key: str = "", *, method: str = "GET") -> Any:
        """The same, waiting for it in this thread."""
        headers = {"x-life": str(self.life), "content-type": "application/json"}
        if key:
            headers["idempotency-key"] = key
        data = json.dumps({"operation": operation}).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self.url}/{self.run}/{what}/{operation}", data, headers, method=method)
        try:
            with _OPENER.open(request) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise

    async def write(self, operation: str, key: str = "") -> Any:
        """The body of a write tool."""
        self.line.reach("before the effect", operation)
        answer = await self.request("write", operation, key, method="POST")
        self.line.reach("after the effect", operation)
        return answer

    async def ask(self, operation: str) -> str:
        """The body of a call of the model."""
        self.line.reach("before the effect", operation)
        answer = await self.request("ask", operation, method="POST")
        self.line.reach("after the effect", operation)
        return str(answer["text"])

    async def call(self, operation: str, tool: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Call a decorated tool from the agent's side."""
        self.line.reach("before the intent", operation)
        answer = await tool(*args)
        self.line.reach("after the line", operation)
        return answer


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is started with.

    Attributes:
        row: what is tried: a policy, or another way to resume.
        folder: for what the worker stores.
        run: the name of the run, which is also its session id.
        seed: of its script.
        url: of the receiver.
        life: number of this process of the run, from 1.
        stop: as in `Line`.
    """

    row: str
    folder: str
    run: str
    seed: int
    url: str
    life: int = 1
    stop: tuple[str, str] | None = None

    @classmethod
    def read(cls, text: str) -> Task:
        """From the worker's argument."""
        fields: Mapping[str, Any] = json.loads(text)
        stop = fields["stop"]
        return cls(**{**fields, "stop": None if stop is None else (stop[0], stop[1])})

    def client(self) -> Client:
        """The client of this worker."""
        return Client(self.url, self.run, self.life, Line(self.stop))
