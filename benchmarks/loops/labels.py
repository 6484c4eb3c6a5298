"""Which recorded runs loop, judged in hindsight: with all their calls known, and by another rule than the library's.

A run loops if a block of (tool, arguments, result) of period 1 to 10 stands at least three times in a row, or if one
such triple occurs at least four times with no new successful write between.
"""

from __future__ import annotations

from typing import TypeAlias

from benchmarks.loops.runs import RecordedCall, Run

Triple: TypeAlias = tuple[str, str, str]

LONGEST_PERIOD = 10
TIMES_IN_A_ROW = 3
TIMES_IN_ALL = 4


def loop_start(run: Run) -> int | None:
    """Place of the call that completes the first labelled loop, None if there is none."""
    triples = [_triple(call) for call in run.calls]
    in_epoch: dict[Triple, int] = {}
    written: set[Triple] = set()
    matching = [0] * (LONGEST_PERIOD + 1)  # by period: how many calls in a row equal the one a period before
    for at, (call, triple) in enumerate(zip(run.calls, triples, strict=True)):
        if call.is_write and not call.error and triple not in written:
            written.add(triple)
            in_epoch.clear()
        in_epoch[triple] = in_epoch.get(triple, 0) + 1
        for period in range(1, LONGEST_PERIOD + 1):
            is_match = at >= period and triple == triples[at - period]
            matching[period] = matching[period] + 1 if is_match else 0
            if matching[period] >= period * (TIMES_IN_A_ROW - 1):
                return at
        if in_epoch[triple] >= TIMES_IN_ALL:
            return at
    return None


def _triple(call: RecordedCall) -> Triple:
    return call.tool, call.identity, call.result
