"""What a process tells operators of its calls, through the tier that it shares with others.

A report is JSON: ``{root: [hits, misses, shared]}``, and under `TOOLS`, which is no root, what the loads of the tools
have shown.
"""

from __future__ import annotations

import json
from typing import Any, Final

from agent_cache.metrics import METRICS, evidence_by_tool

__all__ = ["TOOLS", "report_text"]

TOOLS: Final = ":tools"
"""The key of a report that is no root: a colon never begins one."""

_MAX_ROOTS: Final = 100
_MAX_BYTES: Final = 8_192


def report_text() -> str:
    """The report of this process: its hundred busiest roots, and its busiest tools as long as it takes a few kilobytes.

    Roots that nothing was read of are left out: tools are often decorated in every process and used in a few.
    """
    resources = METRICS.snapshot()["resources"].items()
    counts = {root: [calls[name] for name in ("hits", "misses", "shared")] for root, calls in resources}
    busiest = sorted((root for root in counts if any(counts[root])), key=lambda root: -sum(counts[root]))
    report: dict[str, Any] = {root: counts[root] for root in busiest[:_MAX_ROOTS]}
    found = {tool: seen for tool, seen in evidence_by_tool().items() if any(seen.causes.values())}
    tools: dict[str, list[Any]] = {}
    room = _MAX_BYTES
    for tool in sorted(found, key=lambda tool: -found[tool].loads):
        numbers = found[tool].as_json()
        room -= len(tool) + len(json.dumps(numbers))
        if room < 0:
            break
        tools[tool] = numbers
    if tools:
        report[TOOLS] = tools
    return json.dumps(report, separators=(",", ":"))
