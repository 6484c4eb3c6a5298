"""Loops and honest work, appended to every successful retail run: what is found, what it costs, who is disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from statistics import median

from agent_cache import AgentCacheSession, AgentLoopDetectedError
from benchmarks.loops.agent import Agent, Asked, Round, is_refusal
from benchmarks.loops.audit import Ledger
from benchmarks.loops.families import HINTS, Family, is_success
from benchmarks.loops.recorded import Reading, rounds_of
from benchmarks.loops.runs import Run
from benchmarks.loops.tally import Share
from benchmarks.loops.tools import RetailTools, ScriptedTools, Step
from benchmarks.retail.store import RetailStore


@dataclass(slots=True)
class Injection:
    """What became of one family over all runs.

    Attributes:
        name: of the family.
        length: calls in one round of the loop; 0 for honest work.
        noticed: runs in which there was anything at all, a notice included.
        wasted: for each run that was stopped, the appended calls that were answered before the first refusal, less one
            round, which was worth making. To be found with the last of the ten copies is to be stopped.
    """

    name: str
    length: int = 0
    runs: int = 0
    noticed: int = 0
    wasted: list[int] = field(default_factory=list)

    @property
    def stopped(self) -> Share:
        return Share(len(self.wasted), self.runs)

    @property
    def notices(self) -> Share:
        return Share(self.noticed, self.runs)

    @property
    def median_wasted(self) -> float:
        return median(self.wasted) if self.wasted else 0.0

    @property
    def most_wasted(self) -> int:
        return max(self.wasted, default=0)


def agent_with(store: RetailStore) -> Agent:
    ledger = Ledger()
    return Agent(ledger, ScriptedTools(ledger, HINTS, is_success), RetailTools(store, ledger))


async def guarded(agent: Agent, run: Run, calls: Iterable[Asked], injection: Injection) -> None:
    """Make a run and the appended calls with `on_loop="raise"`, up to the first of these that is refused."""
    notices: list[AgentLoopDetectedError] = []
    session = AgentCacheSession(on_loop="raise", on_notice=notices.append)
    agent.start()
    answered = 0
    try:
        async with session:
            for _, asked in rounds_of(run, Reading.RETAIL):
                await agent.take(asked, session)
            session.raise_for_loop()
            notices.clear()
            for asked in _rounds(calls):
                refused = [is_refusal(one) for one in await agent.take(asked, session)]
                answered += refused.count(False)
                if any(refused):
                    break
    except AgentLoopDetectedError:
        pass  # again at the end of the session, since the agent has swallowed it
    injection.runs += 1
    injection.noticed += bool(notices) or session.loop_error is not None
    if session.loop_error is not None:
        injection.wasted.append(max(0, answered - injection.length))


async def audited(agent: Agent, run: Run, calls: Iterable[Asked]) -> None:
    """Make all of it with `on_loop="short_circuit"`, and judge every answer."""
    agent.start()
    recorded = (asked for _, asked in rounds_of(run, Reading.RETAIL))
    async with AgentCacheSession(on_loop="short_circuit") as session:
        for asked in chain(recorded, _rounds(calls)):
            await agent.checked(asked, session)


def over(family: Family, runs: Iterable[Run]) -> Iterator[tuple[Run, Iterable[Asked]]]:
    """The runs that the family can be appended to, each with its calls."""
    for seed, run in enumerate(runs):
        calls = family(run, seed)
        if calls is not None:
            yield run, calls


def _rounds(calls: Iterable[Asked]) -> Iterator[Round]:
    """Steps of one round together, every other call by itself."""
    numbered = enumerate(calls)
    for _, together in groupby(numbered, key=lambda one: _round_of(one[1]) if _round_of(one[1]) >= 0 else -1 - one[0]):
        batch = [call for _, call in together]
        first = batch[0]
        yield Round(batch, spoke=isinstance(first, Step) and first.is_turn)


def _round_of(call: Asked) -> int:
    return call.round if isinstance(call, Step) else -1
