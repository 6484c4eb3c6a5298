"""The run as lines of text, one for each call: for pipes, logs, and where `rich` is not installed."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_cache._demo.chronicle import Act, Call, Chronicle
from agent_cache._demo.closing import EXAMPLE, findings, verdict
from agent_cache._demo.signs import sign_of
from agent_cache._demo.spectator import Spectator

__all__ = ["PlainText"]


class PlainText(Spectator):
    """Writes a run to stdout as it goes, in ASCII."""

    @asynccontextmanager
    async def watching(self, chronicle: Chronicle) -> AsyncIterator[None]:
        print(f"agent-cache demo: {len(chronicle.agents)} agents, one store, seed {chronicle.seed}", flush=True)
        yield

    def act_began(self, number: int, act: Act) -> None:
        print(f"\n{number}. {act.caption}", flush=True)

    def call_ended(self, call: Call) -> None:
        ended = call.ended or 0.0
        took = f"{(ended - call.started) * 1000:.0f} ms"
        line = f"{ended:6.2f} s  {call.agent:<5}{call!s:<31} {sign_of(call).word:<8}{took:>7}  {_remark(call)}"
        print(line.rstrip(), flush=True)

    def finished(self, chronicle: Chronicle) -> None:
        totals = chronicle.totals()
        print("\nWhat happened")
        for _, count, kind, meaning in findings(chronicle):
            print(f"{count:5} {kind:<8} {meaning}")
        print(f"\nHit rate {totals.hit_rate:.0%}, {totals.avoided} tool runs avoided, {totals.time_saved:.1f} s saved.")
        print(f"{verdict(chronicle)[1]}.")
        print(f"\nTo have the same for your own tools:\n\n{textwrap.indent(EXAMPLE, '    ')}", end="", flush=True)


def _remark(call: Call) -> str:
    if call.drops:
        return f"drops {', '.join(call.drops)}"
    match call.is_right:
        case None:
            return ""
        case True:
            return f"true, saved {call.saved * 1000:.0f} ms" if call.saved else "true"
        case False:
            return "not what the store says"
