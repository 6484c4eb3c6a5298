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
from functools import partial
from typing import NoReturn

from agent_cache.cli import demo
from agent_cache.cli.output import escaped
from agent_cache.errors import CassetteError, ConfigurationError

__all__ = ["main"]


class Parser(argparse.ArgumentParser):
    """A parser that repeats no URL in its errors: it may contain a password, and logs of jobs keep what was printed."""

    def error(self, message: str) -> NoReturn:
        """Show the usage and the error, and exit with 2."""
        shown, count = re.subn(r"[\w.+-]*://.*", "...", message, flags=re.DOTALL)
        super().error(f"{shown}\nthe URL of a server belongs to --url, or into AGENT_CACHE_URL" if count else message)


def _functions(command: str) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Import `add_options`, which declares the options of a command, and `run`, which returns its exit code.

    This is done for the given command alone, so that none waits for the imports of another (recording takes 0.1 s), or
    needs its extra.

    Raises:
        ModuleNotFoundError: if the command needs an extra that is not installed. The text names it.
    """
    if command == "demo":
        return demo.add_options, demo.run
    if command == "cassette":
        from agent_cache.cli import cassettes

        return cassettes.add_options, cassettes.run
    if command in {"drift", "baseline"}:
        from agent_cache.cli import baselines

        if command == "drift":
            return baselines.add_drift_options, baselines.run_drift
        return baselines.add_baseline_options, baselines.run_baseline
    if command == "advise":
        from agent_cache.cli import advise

        return advise.add_options, advise.run
    if command in {"report", "trace"}:
        from agent_cache.cli import report

        if command == "report":
            return report.add_report_options, report.run_report
        return report.add_trace_options, report.run_trace
    if command == "mcp":
        from agent_cache.cli import mcp_relay

        return mcp_relay.add_options, mcp_relay.run
    from agent_cache.cli import tier_options

    if command == "doctor":
        return tier_options.add_doctor_options, partial(_run_on_tier, command=command)
    return partial(tier_options.add_options, command=command), partial(_run_on_tier, command=command)


def _run_on_tier(options: argparse.Namespace, *, command: str) -> int:
    """Run `stats`, `keys`, `clear` or `doctor`: a file needs no redis-py, and a server no SQLite.

    Raises:
        ConfigurationError: if the URL is that of neither.
    """
    from agent_cache.cli.tier_options import URL_VARIABLE, file_of

    if not options.url:
        print(f"no tier is given: use --url, or set {URL_VARIABLE}", file=sys.stderr)
        return 2
    path = file_of(options.url)
    if path is not None:
        from agent_cache.cli import file_commands

        return file_commands.COMMANDS[command](path, options)
    try:
        from agent_cache.cli import fleet  # its text names the extra
    except ModuleNotFoundError as error:
        print(f"agent-cache: {error}", file=sys.stderr)
        return 2
    from agent_cache.cli import doctor

    jobs = {"stats": fleet.stats, "keys": fleet.keys, "clear": fleet.clear, "doctor": doctor.run}
    return jobs[command](options)


COMMANDS = {
    "demo": demo.SUMMARY,
    "cassette": "show, compare, fork, redact, verify, convert and prune recordings",
    "drift": "compare a run with accepted runs: exit code 1 if it has drifted",
    "baseline": "accept runs, to compare later ones with them",
    "advise": "find the tags of tools in recorded runs, or check those in use",
    "report": "show recorded runs as a page of HTML, side by side if there are several",
    "trace": "write a recorded run as a trace, which Perfetto opens",
    "mcp": "cache, record or replay the tool calls between an MCP host and an MCP server",
    "stats": "count what a tier holds for each resource, and its hits",
    "keys": "list the entries of a tier",
    "clear": "drop entries of a tier by tag, in every process",
    "doctor": "check that the servers or the file of a tier are fit for it",
}
"""The summary of each, in the order of `--help`."""


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
    if options.run_command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        exit_code = _exit_code(options)
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


def _exit_code(options: argparse.Namespace) -> int:
    """Run the command. Returns 2 for an error of a file or of usage that it does not handle itself."""
    try:
        exit_code: int = options.run_command(options)
    except (CassetteError, ConfigurationError) as error:
        print(escaped(error, keep="\n"), file=sys.stderr)
        return 2
    return exit_code


def _close_output() -> None:
    """Send the rest of the output nowhere, so that Python does not fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(prog="agent-cache", description="Coherent caching for the tool calls of async Python agents.")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(run_command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    given = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if name == given:
            add_options, run = _functions(name)
            add_options(subparser)
            subparser.set_defaults(run_command=run)
    return parser
