"""Logs of the recorded retail runs, interleaved on one store: every call is answered by the real state."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.toolbox.rules import Read, Rule, Write
from benchmarks.recorded_runs import RecordedCall, Run
from benchmarks.retail.policies import WRITES_FROM_RESULTS_TOO, is_refusal
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS, RetailStore

AT_ONCE = 16


def interleave(runs: Iterable[Run], store: RetailStore, seed: int, *, as_text: bool = False) -> list[LoggedCall]:
    """One log of all runs on a copy of the store, `AT_ONCE` of them at any time.

    Args:
        seed: of their order, and of whose turn it is.
        as_text: whether answers stay texts, as the tools gave them, instead of parsed.
    """
    chance = random.Random(seed)
    waiting = sorted(runs, key=lambda run: chance.random())
    active: list[tuple[str, Iterator[RecordedCall]]] = []
    shop, log = store.copy(), list[LoggedCall]()
    while waiting or active:
        while waiting and len(active) < AT_ONCE:
            run = waiting.pop()
            active.append((run.id, iter([call for call in run.calls if not call.is_oddity])))
        turn = chance.randrange(len(active))
        name, calls = active[turn]
        call = next(calls, None)
        if call is None:
            active.pop(turn)
        else:
            log.append(_logged(call, shop.answer(call.tool, call.arguments), float(len(log)), name, as_text=as_text))
    return log


def _logged(call: RecordedCall, answer: str, at: float, run: str, *, as_text: bool) -> LoggedCall:
    failed = is_refusal(answer)
    result: Any = UNKNOWN if failed else answer
    if not failed and not as_text and answer[:1] in ("{", "["):
        result = json.loads(answer)
    return LoggedCall(
        tool=call.tool,
        arguments=dict(call.arguments),
        result=result,
        error=answer if failed else None,
        started=at,
        ended=at + 0.5,
        run=run,
        kind="read" if call.tool in READ_TOOLS else "write" if call.tool in WRITE_TOOLS else None,
        is_parsed=True,
    )


def rules_by_hand() -> dict[str, Rule]:
    """The tags that `benchmarks.retail` has written by hand, for a log of texts."""
    policy = WRITES_FROM_RESULTS_TOO
    rules: dict[str, Rule] = {name: Read(resource) for name, resource in policy.reads.items()}
    return rules | {name: Write(resource) for name, resource in policy.writes.items()}


def first_quarter(log: Sequence[LoggedCall]) -> Sequence[LoggedCall]:
    """What a team has after a quarter of the time."""
    return log[: len(log) // 4]
