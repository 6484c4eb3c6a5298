"""`agent-cache report` shows recorded runs as a page of HTML, or writes one for Perfetto or as a trajectory (ATIF)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from agent_cache.cli.output import Printer, escaped, json_text, plural, size_text, write_file
from agent_cache.errors import ConfigurationError
from agent_cache.recording import Cassette
from agent_cache.report.chrome_trace import trace_lines
from agent_cache.report.page import page
from agent_cache.report.timeline import compared, read_timeline, text_limit
from agent_cache.report.trajectory import trajectory

__all__ = ["add_options", "run"]

_STDOUT = Path("-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = (
        "Show recorded runs as one page of HTML, which needs nothing beside it: a timeline, what the run took and what "
        "the cache saved, and the calls as a table. Several runs are shown side by side, and it is marked where the "
        "last one drifts from those before it. Exit codes: 0 written, 2 usage or a file that cannot be read or written."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="recordings, or journals of sessions")
    add = parser.add_mutually_exclusive_group().add_argument
    where = "the page; - is stdout (default: in this folder, with the name of the last RUN and .html)"
    trace = "write one run in Chrome's Trace Event Format instead, which https://ui.perfetto.dev opens"
    add("-o", "--output", type=Path, metavar="FILE", help=where)
    add("--trace", type=Path, metavar="FILE", help=trace)
    add("--atif", type=Path, metavar="FILE", help="write one run as a trajectory in ATIF-v1.7; calls are whole")


def run(options: argparse.Namespace) -> int:
    """Write the page of some runs, or another form of one."""
    last, other = options.runs[-1], options.trace or options.atif
    if other is not None and len(options.runs) > 1:
        raise ConfigurationError("--trace and --atif write one RUN")
    cassettes = [Cassette.load(path) for path in options.runs]
    target = other or options.output or Path(last.name).with_suffix(".html")
    if target != _STDOUT and any(path.exists() and target.exists() and target.samefile(path) for path in options.runs):
        raise ConfigurationError(f"{target} is a run that is read: choose another name with -o")
    limit = text_limit(sum(map(len, cassettes)))
    timelines = [read_timeline(cassette, limit=limit) for cassette in cassettes]
    comparison = compared(timelines, cassettes) if len(timelines) > 1 else None
    if options.trace is not None:
        texts: Iterable[str] = (f"{line}\n" for line in trace_lines(timelines[0]))
    elif options.atif is not None:
        texts = [json_text(trajectory(cassettes[0], timelines[0]), indent=1), "\n"]
    else:
        texts = [page(timelines, comparison)]
    size = sum(map(sys.stdout.write, texts)) if target == _STDOUT else write_file(target, texts)
    for path, timeline in zip(options.runs, timelines, strict=True):
        for note in timeline.notes:
            print(f"{escaped(path)}: {note}", file=sys.stderr)
    facts = [plural(sum(len(timeline.calls) for timeline in timelines), "call"), size_text(size)]
    if comparison is not None and comparison.refusal:
        print(f"{escaped(last)}: {escaped(comparison.refusal)}", file=sys.stderr)
    elif comparison is not None:
        facts.insert(1, plural(len(comparison.drifts), "drift"))
    if target != _STDOUT:
        Printer().line((str(target), "bold"), f"  {', '.join(facts)}")
    return 0
