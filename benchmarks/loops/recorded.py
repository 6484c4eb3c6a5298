"""Recorded runs in a guarded session: where each is stopped, if it is."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from agent_cache import AgentCacheSession, AgentLoopDetectedError, LoopPolicy
from benchmarks.loops.agent import Agent, Round, is_refusal
from benchmarks.loops.audit import Ledger
from benchmarks.loops.runs import RecordedCall, Run
from benchmarks.loops.tools import RetailTools, ScriptedTools, Step
from benchmarks.retail.store import RetailStore


class Reading(enum.Enum):
    """What the recorded calls are made through."""

    RETAIL = "the store's tools"
    SHELL = "kinds as recorded"
    SHELL_AS_READ = "one read tool"
    SHELL_FROM_CACHE = "one read tool, from the cache where it can"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run.

    Attributes:
        stopped: place of the first call that was refused; None if none was.
        loop: what the session had found by the end, also if no call was left to refuse.
        noticed: whether there was anything at all, a notice included.
    """

    stopped: int | None
    loop: AgentLoopDetectedError | None
    noticed: bool


def agent_for(reading: Reading, store: RetailStore) -> Agent:
    ledger = Ledger()
    retail = RetailTools(store, ledger) if reading is Reading.RETAIL else None
    return Agent(ledger, ScriptedTools(ledger), retail)


async def guarded(agent: Agent, run: Run, reading: Reading, policy: LoopPolicy | None = None) -> Outcome:
    """Make a run with `on_loop="raise"`, up to the first call that is refused."""
    notices: list[AgentLoopDetectedError] = []
    session = AgentCacheSession(on_loop="raise", loop_policy=policy, on_notice=notices.append)
    agent.start()
    stopped: int | None = None
    try:
        async with session:
            for places, asked in rounds_of(run, reading):
                got = await agent.take(asked, session)
                stopped = next((at for at, one in zip(places, got, strict=True) if is_refusal(one)), None)
                if stopped is not None:
                    break
    except AgentLoopDetectedError:
        pass  # again at the end of the session, since the agent has swallowed it
    return Outcome(stopped, session.loop_error, bool(notices) or session.loop_error is not None)


async def audited(agent: Agent, run: Run, reading: Reading) -> None:
    """Make a whole run with `on_loop="short_circuit"`, and judge every answer."""
    agent.start()
    async with AgentCacheSession(on_loop="short_circuit") as session:
        for _, asked in rounds_of(run, reading):
            await agent.checked(asked, session)


def rounds_of(run: Run, reading: Reading) -> Iterator[tuple[list[int], Round]]:
    """The calls that were asked for together, and their places in the run."""
    turn: int | None = None
    calls = ((at, call) for at, call in enumerate(run.calls) if not call.is_oddity)
    for _, together in groupby(calls, key=lambda one: one[1].batch):
        batch = list(together)
        now = batch[0][1].turn
        asked = [call if reading is Reading.RETAIL else _step(call, reading) for _, call in batch]
        yield [at for at, _ in batch], Round(asked, spoke=turn is not None and now is not None and now != turn)
        turn = now


def _step(call: RecordedCall, reading: Reading) -> Step:
    """A recorded call of a shell, to be made again with the outcome it had: reads ask anew, unless the cache may
    answer.
    """
    is_write = call.is_write and reading is Reading.SHELL
    is_fresh = not is_write and reading is not Reading.SHELL_FROM_CACHE
    return Step(call.tool, call.identity, call.result, fails=call.error, is_write=is_write, is_fresh=is_fresh)
