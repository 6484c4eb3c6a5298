"""The command line: `agent-cache COMMAND`, data on stdout, messages on stderr.

Exit codes: 0 all is well, 1 findings, 2 usage or a disk that is full, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from agent_cache._cassettes import command as cassette
from agent_cache._fleet import command as fleet
from agent_cache.cli import demo

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: `add_options` declares what it understands, `run` does it and returns the exit code.

    Both live in a module that is cheap to import; what the command needs is imported when it runs.
    """

    name: str
    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """One that repeats no URL in its errors: there may be a password in it, and logs keep what a job has printed."""

    def error(self, message: str) -> NoReturn:
        """Show the usage and the error, and exit with 2."""
        shown, count = re.subn(r"[\w.+-]*://.*", "...", message, flags=re.DOTALL)
        super().error(f"{shown}\nthe URL of a server belongs to --url, or into AGENT_CACHE_URL" if count else message)


COMMANDS = (
    Command("demo", demo.SUMMARY, demo.add_options, demo.run),
    Command("cassette", cassette.SUMMARY, cassette.add_options, cassette.run),
    *(Command(*each) for each in fleet.COMMANDS),
)
"""In the order of `--help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits, with 2, where it cannot read the arguments."""
    parser = _parser()
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
    except BrokenPipeError:  # whoever read the output has had enough
        _close_output()
        return 141
    except OSError as error:
        print(f"agent-cache: {error.strerror or error}", file=sys.stderr)
        _close_output()
        return 2
    return exit_code


def _close_output() -> None:
    """Or Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="agent-cache", description="Coherent caching for the tool calls of async Python agents.")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary)
        command.add_options(subparser)
        subparser.set_defaults(command=command)
    return parser
