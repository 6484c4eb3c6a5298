"""The command line: `agent-cache COMMAND`. Data goes to stdout, messages to stderr.

Exit codes: 0 fine, 1 findings, 2 usage or an error of the operating system, 130 interrupted, 141 if the reader of the
output has closed it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from agent_cache.cli import demo

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: `add_options` declares its options, `run` runs it and returns the exit code.

    Both are called only if the command is given, so that no command waits for the imports of another (recording takes
    0.1 s), or needs its extra.
    """

    name: str
    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that repeats no URL in its errors: it may contain a password, and logs of jobs keep what was printed."""

    def error(self, message: str) -> NoReturn:
        """Show the usage and the error, and exit with 2."""
        shown, count = re.subn(r"[\w.+-]*://.*", "...", message, flags=re.DOTALL)
        super().error(f"{shown}\nthe URL of a server belongs to --url, or into AGENT_CACHE_URL" if count else message)


def _functions(command: str) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Import `add_options` and `run` of a command.

    Raises:
        ModuleNotFoundError: if the command needs an extra that is not installed. The text names it.
    """
    if command == "cassette":
        from agent_cache.cli import cassettes

        return cassettes.add_options, cassettes.run
    if command in {"drift", "baseline"}:
        from agent_cache.cli import baselines

        if command == "drift":
            return baselines.add_drift_options, baselines.run_drift
        return baselines.add_baseline_options, baselines.run_baseline
    if command == "doctor":
        from agent_cache.cli import doctor

        return doctor.add_options, doctor.run
    from agent_cache.cli import fleet

    commands = {"stats": fleet.stats, "keys": fleet.keys, "clear": fleet.clear}
    return partial(fleet.add_options, command=command), commands[command]


def _imported_later(name: str, summary: str) -> Command:
    def add_options(parser: argparse.ArgumentParser) -> None:
        _functions(name)[0](parser)

    def run(options: argparse.Namespace) -> int:
        return _functions(name)[1](options)

    return Command(name, summary, add_options, run)


COMMANDS = (
    Command("demo", demo.SUMMARY, demo.add_options, demo.run),
    _imported_later("cassette", "show, compare, fork, redact, verify, convert and prune recordings"),
    _imported_later("drift", "compare a run with accepted runs: exit code 1 if it has drifted"),
    _imported_later("baseline", "accept runs, to compare later ones with them"),
    _imported_later("stats", "count what a tier holds for each resource, and its hits"),
    _imported_later("keys", "list the entries of a tier"),
    _imported_later("clear", "drop entries of a tier by tag, in every process"),
    _imported_later("doctor", "check that the servers of a tier are fit for it"),
)
"""In the order of `--help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. For wrong arguments, argparse exits with 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        parser = _parser(arguments)
    except ModuleNotFoundError as error:
        print(f"agent-cache: {error}", file=sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    if options.version:
        print(f"agent-cache {importlib.metadata.version('agent-cache')}")
        return 0
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        exit_code: int = options.command.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _close_output()
        return 141
    except OSError as error:
        print(f"agent-cache: {error.strerror or error}", file=sys.stderr)
        _close_output()
        return 2
    return exit_code


def _close_output() -> None:
    """Send the rest of the output nowhere, so that Python does not fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(prog="agent-cache", description="Coherent caching for the tool calls of async Python agents.")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    given = next((argument for argument in arguments if not argument.startswith("-")), None)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary)
        if command.name == given:
            command.add_options(subparser)
        subparser.set_defaults(command=command)
    return parser
