"""The command line of cassettes: its subcommands, what they understand, and what the exit code says.

Exit codes: 0 the same or fine, 1 differences or findings, 2 usage or a file that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["SUMMARY", "add_options", "run"]

SUMMARY = "show, compare, redact, verify, convert and prune recordings"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what `agent-cache cassette` understands."""
    parser.description = "Exit codes: 0 the same or fine, 1 differences or findings, 2 usage or an unreadable file."
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True, dest="cassette_command")

    show = _command(commands, "show", _show, "what a run called, in the order it was started")
    show.add_argument("path", type=Path)
    show.add_argument("--limit", type=_count, metavar="N", help="show the first N calls only")
    show.add_argument("--name", metavar="PATTERN", help="only calls of this name, such as 'shop:*'")
    show.add_argument("--errors", action="store_true", help="only calls that raised")

    diff = _command(commands, "diff", _diff, "what a second run did that the first did not")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)

    redact = _command(commands, "redact", _redact, "take secrets out of recordings, in place")
    _add_paths(redact)
    redact.add_argument("--name", action="append", default=[], metavar="NAME", help="a secret beside the known ones")
    redact.add_argument("--pattern", action="append", default=[], metavar="REGEX", help="a text beside the known ones")
    redact.add_argument("--check", action="store_true", help="write nothing; exit code 1 if there is something to do")

    verify = _command(commands, "verify", _verify, "check structure and digests, and look for secrets that are left")
    _add_paths(verify)

    convert = _command(commands, "convert", _convert, "cassettes of agentcassette (JSON) as cassettes of agent-cache")
    convert.add_argument("paths", type=Path, nargs="+", metavar="SOURCE")
    convert.add_argument("-o", "--output", type=Path, metavar="PATH", help="default: SOURCE with the ending .jsonl")
    convert.add_argument("--force", action="store_true", help="replace a file that is there already")

    prune = _command(commands, "prune", _prune, "delete cassettes that no test uses, or calls of a name")
    prune.add_argument("paths", type=Path, nargs="*", metavar="PATH", help="folders of tests; with --calls, cassettes")
    prune.add_argument("--calls", action="append", default=[], metavar="PATTERN", help="remove calls of this name")
    prune.add_argument("--yes", action="store_true", help="do it; otherwise it is only said what would be done")


def run(options: argparse.Namespace) -> int:
    """Run a subcommand; what cannot be read ends it with 2."""
    from agent_cache.cli.output import visible
    from agent_cache.errors import CassetteError, ConfigurationError

    try:
        code: int = options.run_cassette(options)
    except (CassetteError, ConfigurationError) as error:
        print(visible(str(error), keeping="\n"), file=sys.stderr)
        return 2
    return code


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run_cassette=function)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    return parser


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="cassettes, or folders of them")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _show(options: argparse.Namespace) -> int:
    from agent_cache.cli.cassettes import show

    return show(options.path, options.limit, options.name, only_errors=options.errors, as_json=options.json)


def _diff(options: argparse.Namespace) -> int:
    from agent_cache._cassettes.comparison import compare

    return compare(options.a, options.b, as_json=options.json)


def _redact(options: argparse.Namespace) -> int:
    from agent_cache._cassettes.rewriting import redact

    return redact(options.paths, options.name, options.pattern, is_check=options.check, as_json=options.json)


def _verify(options: argparse.Namespace) -> int:
    from agent_cache._cassettes.inspection import verify

    return verify(options.paths, as_json=options.json)


def _convert(options: argparse.Namespace) -> int:
    from agent_cache._cassettes.rewriting import convert

    return convert(options.paths, options.output, is_forced=options.force, as_json=options.json)


def _prune(options: argparse.Namespace) -> int:
    from agent_cache._cassettes.pruning import prune, prune_calls

    if options.calls:
        return prune_calls(options.paths, options.calls, is_meant=options.yes, as_json=options.json)
    return prune(options.paths or [Path()], is_meant=options.yes, as_json=options.json)
