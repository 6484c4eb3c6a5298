"""Shared by the benchmark commands: options, progress, the machine's description, and tables in the documentation."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import ParamSpec

from benchmarks.timing import progress

P = ParamSpec("P")

DOCS = Path(__file__).parent.parent / "docs"
OTHER_CACHES = DOCS / "explanation" / "other-caches.md"
BENCHMARKS = DOCS / "benchmarks.md"
LOOPS = DOCS / "explanation" / "loops.md"
FLEET = DOCS / "explanation" / "fleet.md"


def command_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every command that reads recorded runs."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N runs of each set")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def exits_without(*errors: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Let a command end with exit code 2 and the text of the error, if what it needs is absent."""

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @wraps(main)
        def command(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except errors as absent:
                print(absent, file=sys.stderr)
                return 2

        return command

    return decorate


def positive(text: str) -> int:
    """Parse an integer of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


@contextmanager
def run_progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show on stderr how many of `total` runs are done. Yields the function to call after each run."""
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(title, done, total)

    progress(title, 0, total)
    yield advance


def describe_machine(distributions: Sequence[str]) -> str:
    """One paragraph above a table: interpreter, system, cores, date, and the versions of these distributions."""
    versions = ", ".join(f"{name} {installed_version(name) or '(source tree)'}" for name in distributions)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {today}; {versions}."
    )


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def write_facts(path: Path | None, facts: object) -> None:
    """Write facts as JSON, if the command was given a path."""
    if path is not None:
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def put_table(name: str, text: str, page: Path = BENCHMARKS) -> None:
    """Replace the text between the comments `<!-- name: begin -->` and `<!-- name: end -->` of a page.

    Tables of measured figures get into the documentation this way and never by hand.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    old, _, after = rest.partition(end)
    if not old:
        message = f"{page.name} has no place for {name!r}: it needs the lines {begin!r} and {end!r}"
        raise SystemExit(message)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def put_row(first: str, cells: Sequence[str], page: Path) -> None:
    """Replace the cells of a table's row that begins with `first`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith(f"| {first} |")]
    if len(found) != 1:
        message = f"{page.name} has {len(found)} rows that begin with {first!r}"
        raise SystemExit(message)
    lines[found[0]] = "| " + " | ".join((first, *cells)) + " |"
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
