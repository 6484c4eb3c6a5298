"""Shared by the benchmark commands: options, progress, and the machine's description."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from typing import ParamSpec

from benchmarks.timing import progress

P = ParamSpec("P")


def command_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every command that reads recorded runs."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N runs of each set")
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
