"""`agent-cache report` shows recorded runs as a page of HTML, `agent-cache trace` writes one for Perfetto.

Exit codes: 0 written, 2 usage, or a file that cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from agent_cache.cli.cassettes import load_cassette
from agent_cache.cli.output import Printer, escaped, is_same_file, plural, progress, size_text, write_file
from agent_cache.errors import ConfigurationError
from agent_cache.recording import Cassette
from agent_cache.report.chrome_trace import trace_lines
from agent_cache.report.page import page
from agent_cache.report.timeline import Timeline, compared, read_timeline, text_limit

__all__ = ["add_report_options", "add_trace_options", "run_report", "run_trace"]

_LEAST_FOR_A_PROGRESS_BAR = 2000  # calls
_STDOUT = Path("-")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache report`."""
    parser.description = (
        "Show recorded runs as one page of HTML, which needs nothing beside it: a timeline, what the run took and what "
        "the cache saved, and the calls as a table. Several runs are shown side by side, and it is marked where the "
        "last one drifts from those before it. Exit codes: 0 written, 2 usage or a file that cannot be read or written."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="recordings, or journals of sessions")
    _add_output(parser, "html")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache trace`."""
    parser.description = (
        "Write a recorded run in Chrome's Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open. "
        "Exit codes: 0 written, 2 usage or a file that cannot be read or written."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a recording, or the journal of a session")
    _add_output(parser, "json")


def _add_output(parser: argparse.ArgumentParser, ending: str) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help=f"where it is written; - is stdout (default: in this folder, with the name of RUN and .{ending})",
    )  # fmt: skip


def run_report(options: argparse.Namespace) -> int:
    """Write the page of some runs.

    Raises:
        CassetteError, ConfigurationError: if one cannot be read, or it cannot be written.
    """
    target = _target(options.output, options.runs, ".html")
    cassettes = [load_cassette(path) for path in options.runs]
    limit = text_limit(sum(map(len, cassettes)))
    timelines = [_read(cassette, limit) for cassette in cassettes]
    comparison = compared(timelines, cassettes) if len(timelines) > 1 else None
    size = _write(target, [page(timelines, comparison)])
    for path, timeline in zip(options.runs, timelines, strict=True):
        _print_notes(path, timeline)
    if comparison is not None and comparison.refusal:
        print(f"{escaped(options.runs[-1])}: {escaped(comparison.refusal)}", file=sys.stderr)
    facts = [_size_of(timelines), size_text(size)]
    if comparison is not None and not comparison.refusal:
        facts.insert(1, plural(len(comparison.drifts), "drift"))
    _print_written(target, facts)
    return 0


def run_trace(options: argparse.Namespace) -> int:
    """Write the trace of a run.

    Raises:
        CassetteError, ConfigurationError: if it cannot be read or written.
    """
    target = _target(options.output, [options.run], ".json")
    cassette = load_cassette(options.run)
    timeline = _read(cassette, text_limit(len(cassette)))
    size = _write(target, (f"{line}\n" for line in trace_lines(timeline)))
    _print_notes(options.run, timeline)
    _print_written(target, [_size_of([timeline]), size_text(size)])
    return 0


def _read(cassette: Cassette, limit: int) -> Timeline:
    label = f"reading calls of {Path(cassette.path).name}"
    with progress(label, len(cassette), least=_LEAST_FOR_A_PROGRESS_BAR) as update:
        return read_timeline(cassette, limit=limit, progress=update)


def _size_of(timelines: list[Timeline]) -> str:
    return plural(sum(len(timeline.calls) for timeline in timelines), "call")


def _print_notes(path: Path, timeline: Timeline) -> None:
    for note in timeline.notes:
        print(f"{escaped(path)}: {note}", file=sys.stderr)


def _print_written(target: Path, facts: list[str]) -> None:
    if target != _STDOUT:
        Printer().line((str(target), "bold"), f"  {', '.join(facts)}")


# The file


def _target(given: Path | None, runs: list[Path], ending: str) -> Path:
    """Where to write.

    Raises:
        ConfigurationError: if that is one of the runs, or a folder.
    """
    target = Path(runs[-1].name).with_suffix(ending) if given is None else given
    if target == _STDOUT:
        return target
    if any(is_same_file(target, run) for run in runs):
        raise ConfigurationError(f"{target} is a run that is read: choose another name with -o")
    if _is_folder(target):
        raise ConfigurationError(f"{target} is a folder: name a file in it")
    return target


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # the name is too long, or none at all: writing says so
        return False


def _write(target: Path, texts: Iterable[str]) -> int:
    """Write texts to the file, or to stdout. Returns the number of bytes of the file.

    Raises:
        ConfigurationError: if it cannot be written.
    """
    if target == _STDOUT:
        return sum(map(sys.stdout.write, texts))
    return write_file(target, texts)
