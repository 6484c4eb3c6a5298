"""What recording and replaying cost, beside agentcassette if it is there: `python -m benchmarks.recording.speed`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from importlib.util import find_spec

from benchmarks import page
from benchmarks.machine import described
from benchmarks.recording import large
from benchmarks.rows import recording
from benchmarks.table import HEADINGS, markdown
from benchmarks.timing import QUICK, Effort, progress

CALLS = 100_000
_COLUMNS = ("cassette of", "calls", "size", "record", "load", "replay", "load and replay", "memory for both")


def main(argv: list[str] | None = None) -> int:
    """Measure and print. 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds, and a tenth of the calls")
    parser.add_argument("--json", action="store_true", help="facts for machines in place of the tables")
    parser.add_argument("--page", action="store_true", help="also put the tables into docs/benchmarks.md")
    options = parser.parse_args(argv)
    rows = asyncio.run(recording.rows(QUICK if options.quick else Effort()))
    calls = CALLS // 10 if options.quick else CALLS
    packages = [name for name in ("agent_cache", "agentcassette") if find_spec(name) is not None]
    if len(packages) < 2:
        print("agentcassette is not installed and is left out", file=sys.stderr)
    facts = {}
    for name in packages:
        progress(f"{calls:,} calls with {name}")
        facts[name] = large.measured(name, calls)
    if options.json:
        print(json.dumps({"rows": [row.as_json() for row in rows], "large": facts}, indent=1))
    else:
        print(markdown(HEADINGS, [row.cells() for row in rows]))
    table = markdown(_COLUMNS, [_line(name, calls, found) for name, found in facts.items()])
    if not options.json:
        print(f"\n{table}")
    if options.page:
        page.put("large cassette", f"{described([name.replace('_', '-') for name in packages])}\n\n{table}")
    return 0 if all(row.holds for row in rows) else 1


def _line(name: str, calls: int, found: dict[str, float]) -> tuple[str, ...]:
    def each(*names: str) -> str:
        seconds = sum(found[one] for one in names)
        return f"{seconds:.2f} s, {seconds / calls * 1e6:.1f} us a call"

    return (
        name,
        f"{calls:,}",
        f"{found['bytes'] / 1e6:.0f} MB",
        each("record"),
        each("load"),
        each("replay"),
        each("load", "replay"),
        f"{found['peak'] / 1e6:.0f} MB",
    )


if __name__ == "__main__":
    sys.exit(main())
