"""The command line: `agent-cache COMMAND`. Data goes to stdout, messages to stderr.

Exit codes: 0 fine, 1 findings, 2 usage or an error of the operating system, 130 interrupted, 141 if the reader of the
output has closed it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from agent_cache.cli.output import escaped
from agent_cache.errors import CassetteError, ConfigurationError

__all__ = ["COMMANDS", "main"]


class Parser(argparse.ArgumentParser):
    """A parser that repeats no URL in its errors: it may contain a password, and logs of jobs keep what was printed."""

    def error(self, message: str) -> NoReturn:
        """Show the usage and the error, and exit with 2."""
        shown, count = re.subn(r"[\w.+-]*://.*", "...", message, flags=re.DOTALL)
        super().error(f"{shown}\nthe URL of a server belongs to --url, or into AGENT_CACHE_URL" if count else message)


class _Command(NamedTuple):
    """A command: its words, its group and summary in the help, an example, and the module that has its functions.

    This is imported when the command is given, so that none waits for the imports of another, or needs its extra.
    """

    words: str
    group: str
    summary: str
    example: str
    module: str
    add_options: str = "add_options"
    run: str = "run"

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options and its function."""
        module = importlib.import_module(f"agent_cache.cli.{self.module}")
        add, run, job = getattr(module, self.add_options), None, self.words.rpartition(" ")[2]
        if self.group == "tiers":
            add, run = partial(add, command=job), partial(module.run, command=job)
        parser.epilog = f"example: agent-cache {self.words} {self.example}"
        add(parser)
        parser.set_defaults(run_command=run or getattr(module, self.run))


_RUNS, _TIER = "tests/recordings", "--url redis://localhost:6379/0"
COMMANDS: Final = tuple(_Command(*row) for row in (
    ("report", "see", "recorded runs as a page, side by side if there are several", "run.jsonl", "report"),
    ("advise", "see", "find the tags of tools in recorded runs, or check those in use", _RUNS, "advise"),
    ("cassette", "recordings", "show, compare, fork, redact, verify and convert recordings", "show run.jsonl",
     "cassettes"),
    ("drift check", "recordings", "compare a run with accepted runs: exit code 1 if it has drifted",
     "accepted/ run.jsonl", "baselines", "add_drift_options", "run_drift"),
    ("drift accept", "recordings", "accept runs, to compare later ones with them", "run.jsonl --as accepted/",
     "baselines", "add_accept_options", "run_baseline"),
    ("tier stats", "tiers", "count what a tier holds for each resource", _TIER, "tier"),
    ("tier keys", "tiers", "list the entries of a tier", f"--tag order {_TIER}", "tier"),
    ("tier clear", "tiers", "drop entries of a tier by tag, in every process", f"order:7 {_TIER}", "tier"),
    ("tier doctor", "tiers", "check that the servers or the file of a tier are fit", _TIER, "tier"),
    ("demo", "run", "watch five agents share a cache, with every answer checked", "--fast", "demo"),
    ("mcp", "run", "cache, record or replay the calls between an MCP host and a server", "-- uvx mcp-server-git",
     "mcp_relay"),
))  # fmt: skip
"""In the order of `--help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. For wrong arguments, argparse exits with 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # it was closed
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    if isinstance(sys.stdout, TextIOWrapper):
        is_settled = sys.stdout.isatty() or "PYTHONIOENCODING" in os.environ
        sys.stdout.reconfigure(encoding=None if is_settled else "utf-8", errors="backslashreplace")
    try:
        parser = _parser(arguments)
        if "" in arguments[: arguments.index("--") if "--" in arguments else None]:
            parser.error("an argument is empty: is a variable of the shell not set?")
        options = parser.parse_args(arguments)
        exit_code = 0
        if options.version:
            print(f"agent-cache {importlib.metadata.version('agent-cache')}")
        elif options.run_command is None:
            parser.print_help(sys.stderr)
            exit_code = 2
        else:
            exit_code = options.run_command(options)
        sys.stdout.flush()
    except (CassetteError, ConfigurationError, ModuleNotFoundError) as error:  # a file, usage, an extra
        print(escaped(error, keep="\n"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (MemoryError, RecursionError):
        print("agent-cache: not enough memory, or nested too deeply: give it fewer or smaller files", file=sys.stderr)
        return 2
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            name = "agent-cache" if error.filename is None else escaped(error.filename)
            print(f"{name}: {error.strerror or error}", file=sys.stderr)
        # The rest of the output goes nowhere, so that Python does not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141 if isinstance(error, BrokenPipeError) else 2
    return exit_code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line, which knows the options of the command in it alone."""
    groups: dict[str, list[str]] = {}
    for command in COMMANDS:
        groups.setdefault(command.group, []).append(f"  {command.words:<14}{command.summary}")
    parser = Parser(
        prog="agent-cache",
        usage="agent-cache COMMAND ...",
        description="Coherent caching for the tool calls of async Python agents.",
        epilog="\n\n".join(f"{group}:\n" + "\n".join(lines) for group, lines in groups.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(run_command=None)
    words = [argument for argument in arguments if not argument.startswith("-")]
    first = parser.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog="agent-cache")
    second: dict[str, Any] = {}
    for command in COMMANDS:
        above, _, name = command.words.rpartition(" ")
        if above and above not in second:
            outer = first.add_parser(above)
            second[above] = outer.add_subparsers(metavar="COMMAND", title="commands", required=True)
        made = (second[above] if above else first).add_parser(name, help=command.summary)
        if words[: 1 + bool(above)] == command.words.split():
            command.declare(made)
    return parser
