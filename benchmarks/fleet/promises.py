"""What a run must keep, by its fault and its consistency."""

from __future__ import annotations

from benchmarks.fleet.conductor import Fleet, Outcome
from benchmarks.fleet.faults import FAULTS
from benchmarks.fleet.tools import TTL
from benchmarks.fleet.verdict import Stale, Verdict

LATE = 0.05
"""Without a fault no more than this part of the reads is stale, within the bound: messages arrive. A third is without
any. How long one takes is a matter of the machine's load, and no promise: on a busy one it was half a second.
"""

REFUSAL = 1.0
"""Seconds for which a slot that has moved to another server may keep all writes from being announced."""

REFUSALS = 30
"""Writes in a row that may be refused then, until the tiers have asked again. Counted and not timed: a loaded machine
makes fewer in the same time. While it moves key by key no server runs a script on it, whoever asks."""

OVERLAPPING = 2
"""Leases that a write may be missed for that died armed: its root ends with the last lease that overlaps its own."""


def complaint(name: str, outcome: Outcome, fleet: Fleet) -> str | None:
    """The promise that a run has broken; None if it kept all."""
    verdict = outcome.verdict
    if outcome.complaints:
        return "a process failed"
    if verdict.own:
        return "a process missed its own write"
    if beyond(name, verdict, fleet):
        return "stale reads" if fleet.consistency == "strong" else "stale beyond the bound"
    if name.startswith("slot") and (verdict.refusal > REFUSAL or verdict.refusals > REFUSALS):
        return "writes refused for too long"
    if name.startswith("none") and verdict.stale_reads > LATE * verdict.reads:
        return "messages do not arrive"
    return None


def beyond(name: str, verdict: Verdict, fleet: Fleet) -> list[Stale]:
    """The stale reads that no promise allows for: all strong ones, a process' own, and those later than the bound."""
    if fleet.consistency == "strong":
        return list(verdict.stale)
    # A writer that is cut off alone cannot tell the others: they see it when what they have expires.
    bound = TTL if FAULTS[name].cut_off == "writers" else fleet.max_staleness
    return list(dict.fromkeys([*verdict.own, *verdict.later_than(bound, OVERLAPPING * fleet.lease)]))
