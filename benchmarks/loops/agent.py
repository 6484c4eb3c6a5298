"""An agent that makes given calls through decorated tools in a session, and the audit of their answers.

The tools are the retail store's, or scripted ones. Their bodies note every execution in a ledger, and the audit
compares it with the answers: did the session skip a write or invent an answer?
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, LoopHints
from benchmarks.recorded_runs import RecordedCall, identity_of
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, RetailStore
from benchmarks.retail.tools import make_tools

Identity: TypeAlias = tuple[str, str]
"""A tool, and its arguments as text."""
NO_HINTS: Final[Mapping[str, LoopHints]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a scripted tool, and the result of running it.

    Attributes:
        key: its arguments.
        request: another argument without meaning for the call: an id, a timestamp.
        gives: the value it returns, or the argument of the `ToolFailed` that it raises if it `fails`.
        is_fresh: a read that bypasses the cache.
        round: consecutive steps with one number are made at the same time; -1 for a step by itself.
        is_turn: the user sent a message before it.
    """

    tool: str
    key: Any
    gives: Any
    request: Any = None
    fails: bool = False
    is_write: bool = False
    is_fresh: bool = False
    round: int = -1
    is_turn: bool = False

    @property
    def identity(self) -> str:
        return repr((self.key, self.request))


Asked: TypeAlias = RecordedCall | Step
"""A recorded call is made through the store's tools, a step through a scripted tool."""


@dataclass(slots=True)
class Ledger:
    """The executions of the tools' own bodies.

    Attributes:
        latest: the last answer to each call, which a cache may hold.
        given: answers in the current round.
        runs: executions of each call in the current round, failures included.
    """

    latest: dict[Identity, Any] = field(default_factory=dict)
    given: dict[Identity, list[Any]] = field(default_factory=dict)
    runs: Counter[Identity] = field(default_factory=Counter)

    def ran(self, call: Identity) -> None:
        self.runs[call] += 1

    def gave(self, call: Identity, answer: Any) -> None:
        self.latest[call] = answer
        self.given.setdefault(call, []).append(answer)

    def start_run(self) -> None:
        """Forget all answers: nothing is cached, so nothing may be answered without an execution."""
        self.latest.clear()
        self.start_round()

    def start_round(self) -> None:
        """Forget the executions of the last round, but not the latest answers."""
        self.given.clear()
        self.runs.clear()


@dataclass(slots=True)
class Audit:
    """Counts over many rounds of calls.

    Attributes:
        refused: calls that got `AgentLoopDetectedError`.
        repeated: reads that were answered without an execution of their own.
        skipped: writes that neither ran nor raised; must be 0, or the agent believes in a write that never happened.
        invented: answers that no execution of exactly this call gave, in this round if it ran, else in the last before;
            must be 0.
    """

    calls: int = 0
    refused: int = 0
    repeated: int = 0
    skipped: int = 0
    invented: int = 0

    def check(self, asked: Sequence[Asked], got: Sequence[Any], ledger: Ledger) -> None:
        """Judge one round: the calls made at once, and the answer or exception of each."""
        answered: Counter[Identity] = Counter()
        for call, answer in zip(asked, got, strict=True):
            self.calls += 1
            if isinstance(answer, BaseException):
                self.refused += isinstance(answer, AgentLoopDetectedError)
                continue
            identity = call.tool, call.identity
            if call.is_write:
                answered[identity] += 1
            elif identity not in ledger.runs:
                self.repeated += 1
            self.invented += not _is_one_of(answer, ledger, identity)
        self.skipped += sum(max(0, count - ledger.runs[identity]) for identity, count in answered.items())

    def add(self, other: Audit) -> None:
        self.calls += other.calls
        self.refused += other.refused
        self.repeated += other.repeated
        self.skipped += other.skipped
        self.invented += other.invented


def _is_one_of(answer: Any, ledger: Ledger, identity: Identity) -> bool:
    candidates: Iterable[Any] = ledger.given.get(identity) or (
        [ledger.latest[identity]] if identity in ledger.latest else []
    )
    return any(type(one) is type(answer) and one == answer for one in candidates)


class ToolFailed(Exception):
    """Raised by a tool whose call failed."""


class RetailTools:
    """The store's tools, decorated once; each run starts on a fresh copy of the store, with nothing cached.

    `think` and `transfer_to_human_agents` stay undecorated, as in the retail benchmark.
    """

    def __init__(self, store: RetailStore, ledger: Ledger) -> None:
        self._original = store
        self._store = store
        self._ledger = ledger
        self._tools: dict[str, Any] = make_tools(self, policy=tags_from_results(store.owner_of))

    def start(self) -> None:
        self._store = self._original.copy()
        for name in READ_TOOLS:
            self._tools[name].clear()

    async def call(self, call: RecordedCall) -> Any:
        return await self._tools[call.tool](**call.arguments)

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool on the store; called by the bodies of the tools."""
        call = tool, identity_of(arguments)
        self._ledger.ran(call)
        text = self._store.answer(tool, arguments)
        self._ledger.gave(call, text)
        return text


class ScriptedTools:
    """Tools by name, decorated when first called. A read and a write of one name are one tool to the loop guard.

    Every write invalidates every read.

    Args:
        hints: by tool.
        is_success: whether a returned value is a success; None means that each is.
    """

    def __init__(
        self,
        ledger: Ledger,
        hints: Mapping[str, LoopHints] = NO_HINTS,
        is_success: Callable[[Any], bool] | None = None,
    ) -> None:
        self._ledger = ledger
        self._hints = hints
        self._is_success = is_success
        self._reads: dict[str, Any] = {}
        self._writes: dict[str, Any] = {}
        self._script: dict[Identity, Step] = {}

    def start(self) -> None:
        self._script.clear()
        for tool in self._reads.values():
            tool.clear()

    async def call(self, step: Step) -> Any:
        self._script[step.tool, step.identity] = step
        tool = self._tool(step)
        return await (tool.fresh if step.is_fresh else tool)(step.key, step.request)

    def _tool(self, step: Step) -> Any:
        tool, made = step.tool, self._writes if step.is_write else self._reads
        if tool not in made:
            hints, name = self._hints.get(tool, LoopHints()), f"scripted:{tool}"

            async def run(key: Any, request: Any) -> Any:
                return await self._execute(tool, key, request)

            if step.is_write:
                made[tool] = AgentCacheInvalidator("scripted", ok=self._is_success, loop=hints, name=name)(run)
            else:
                made[tool] = AgentCache("scripted", cache_if=self._is_success, loop=hints, name=name)(run)
        return made[tool]

    async def _execute(self, tool: str, key: Any, request: Any) -> Any:
        call = tool, repr((key, request))
        self._ledger.ran(call)
        step = self._script[call]
        await asyncio.sleep(0)  # a real tool waits for something, so simultaneous calls overlap
        if step.fails:
            raise ToolFailed(step.gives)
        self._ledger.gave(call, step.gives)
        return step.gives


@dataclass(frozen=True, slots=True)
class Round:
    """Calls that an agent makes at once. `new_turn`: the user sent a message before them."""

    calls: Sequence[Asked]
    new_turn: bool = False


class Agent:
    """Makes the rounds of runs in a session, each run with nothing cached and a fresh store.

    Attributes:
        audit: counts over the rounds made by `make_audited`.
    """

    def __init__(self, ledger: Ledger, scripted: ScriptedTools, retail: RetailTools | None = None) -> None:
        self._ledger = ledger
        self._scripted = scripted
        self._retail = retail
        self.audit = Audit()

    def start(self) -> None:
        """Begin a run: clear the caches, and restore the store."""
        self._ledger.start_run()
        self._scripted.start()
        if self._retail is not None:
            self._retail.start()

    async def make(self, one: Round, session: AgentCacheSession) -> list[Any]:
        """Make a round, and return the answer or exception of each call. Several calls run in a task each."""
        if one.new_turn:
            session.new_turn()
        if len(one.calls) > 1:
            return await asyncio.gather(*map(self._call, one.calls), return_exceptions=True)
        try:
            return [await self._call(one.calls[0])]
        except Exception as error:  # noqa: BLE001 - the agent gets whatever a tool raises
            return [error]

    async def make_audited(self, one: Round, session: AgentCacheSession) -> None:
        """Make a round, and judge every answer."""
        self._ledger.start_round()
        self.audit.check(one.calls, await self.make(one, session), self._ledger)

    def _call(self, call: Asked) -> Awaitable[Any]:
        if isinstance(call, Step):
            return self._scripted.call(call)
        assert self._retail is not None, "recorded calls need the store's tools"
        return self._retail.call(call)


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, AgentLoopDetectedError)
