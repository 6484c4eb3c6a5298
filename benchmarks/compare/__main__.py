"""Ours against its peers on the same tool bodies: `python -m benchmarks.compare`.

Needs whichever of async-lru, cachebox, async-cache, cashews, aiocache and theine are to be compared; the rest is left
out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from benchmarks import page
from benchmarks.compare.peers import CACHEBOX, OURS, PEERS, Peer, is_present
from benchmarks.compare.resident import bytes_per_entry as resident_bytes_per_entry
from benchmarks.crowd import Crowd
from benchmarks.machine import described
from benchmarks.memory import bytes_per_entry, marks
from benchmarks.table import markdown
from benchmarks.timing import QUICK, Effort, Figure, Spread, calling, hitting, measure, progress
from benchmarks.workload import FILTERS, USER, filter_tool, scalar_tool

OF_CACHEBOX = 0.75
MAXSIZE = 1024


async def _hits(peers: list[Peer], effort: Effort) -> dict[str, Figure]:
    subjects = {peer.name: hitting(peer.scalar(scalar_tool(), MAXSIZE), USER) for peer in peers}
    return await measure({"bare": calling(scalar_tool(), USER), **subjects}, effort, title="hits, scalar argument")


async def _nested(peers: list[Peer], effort: Effort) -> dict[str, Figure]:
    subjects = {peer.name: hitting(peer.nested(filter_tool(), MAXSIZE), FILTERS) for peer in peers}
    return await measure(
        {"bare": calling(filter_tool(), FILTERS), **subjects}, effort, title="hits, nested dict argument"
    )


async def _stampede(peers: list[Peer], effort: Effort) -> tuple[dict[str, Figure], dict[str, int]]:
    crowds = {"bare": Crowd(), **{peer.name: Crowd(partial(peer.stampede, maxsize=MAXSIZE)) for peer in peers}}
    subjects = {name: crowd.sample for name, crowd in crowds.items()}
    figures = await measure(subjects, effort, title="a thousand tasks on one cold key")
    return figures, {name: crowd.most_executions for name, crowd in crowds.items()}


async def _memory(peers: list[Peer]) -> dict[str, Spread]:
    sizes = {}
    for done, peer in enumerate(peers):
        progress("bytes per entry", done, len(peers))
        sizes[peer.name] = await bytes_per_entry(partial(peer.scalar, maxsize=10 * marks()[-1]))
    progress("bytes per entry", len(peers), len(peers))
    return sizes


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f}x ({spread.low:.2f} to {spread.high:.2f})"


async def compared(peers: list[Peer], effort: Effort) -> tuple[list[tuple[str, ...]], dict[str, object]]:
    """The lines of the table, and every figure for the record."""
    hits = await _hits(peers, effort)
    nested = await _nested(peers, effort)
    crowd, executions = await _stampede(peers, effort)
    traced = await _memory(peers)
    lines: list[tuple[str, ...]] = []
    record: dict[str, object] = {"bare_ns": hits["bare"].spread.median * 1e9}
    for peer in peers:
        progress(f"resident memory of {peer.name}")
        resident = resident_bytes_per_entry(peer)
        name = peer.name
        lines.append(
            (
                f"{name} {peer.version or '(source tree)'}",
                _ratio(hits[name].over(hits["bare"])),
                _ratio(nested[name].over(nested["bare"])),
                _ratio(crowd[name].over(crowd["bare"])),
                str(executions[name]),
                f"{traced[name].median:.0f}",
                "" if resident is None else f"{resident:.0f}",
                peer.remark,
            )
        )
        record[name] = {
            "version": peer.version,
            "hit": hits[name].over(hits["bare"]).median,
            "nested": nested[name].over(nested["bare"]).median,
            "cold_gather": crowd[name].over(crowd["bare"]).median,
            "executions": executions[name],
            "traced_bytes": traced[name].median,
            "resident_bytes": resident,
        }
    if OURS in peers and CACHEBOX in peers:
        record["of_cachebox"] = hits[OURS.name].over(hits[CACHEBOX.name]).median
    return lines, record


HEADINGS = (
    "cache",
    "hit, scalar argument",
    "hit, nested dict",
    "1,000 tasks, cold key",
    "executions",
    "bytes an entry (traced)",
    "(resident)",
    "note",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds: a look, not a verdict")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to PATH")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    options = parser.parse_args(argv)
    peers = [peer for peer in PEERS if is_present(peer)]
    for absent in (peer for peer in PEERS if peer not in peers):
        print(f"{absent.name} is not installed and is left out", file=sys.stderr)
    lines, record = asyncio.run(compared(peers, QUICK if options.quick else Effort()))
    shown = (
        f"{described([peer.distribution for peer in peers])}\n\n"
        f"Multiples of the bare tool ({record['bare_ns']:.0f} ns for the scalar one), median and quartiles.\n\n"
        f"{markdown(HEADINGS, lines)}"
    )
    print(shown)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.page:
        page.put("compare", shown)
    if not isinstance(fraction := record.get("of_cachebox"), float):
        return 0
    verdict = "ok" if fraction <= OF_CACHEBOX else "MISSED"
    print(
        f"\nA hit of ours costs {fraction:.2f} of one of cachebox's in the same run (budget {OF_CACHEBOX}): {verdict}."
    )
    return 0 if fraction <= OF_CACHEBOX else 1


if __name__ == "__main__":
    sys.exit(main())
