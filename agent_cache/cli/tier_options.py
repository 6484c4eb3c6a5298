"""What the commands for a tier have in common, on servers or in a file: options, tags, reports of processes, results of
checks.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_cache.cli.output import Printer
from agent_cache.core.tags import parse_tag
from agent_cache.errors import ConfigurationError
from agent_cache.remote.addresses import path_of_url

__all__ = [
    "CALLS", "LONGEST_NAME", "URL_VARIABLE", "Result", "add_doctor_options", "add_options", "duration_text", "file_of",
    "print_result", "print_verdict", "report_of", "reported_calls",
    "tags_of",
]  # fmt: skip

URL_VARIABLE = "AGENT_CACHE_URL"
CALLS = ("hits", "misses", "shared")
LONGEST_NAME = 60
_STYLES = {"fine": "green", "note": "cyan", "finding": "red"}


# Options


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the options of `agent-cache tier stats`, `keys` or `clear`."""
    if command == "stats":
        _add_common_options(parser, "Counts what a tier holds for each resource root.")
        help_text = "values of each server to read; more are estimated from these (default: 10,000). Of a file, all are"
        parser.add_argument("--sample", type=_count, default=10_000, metavar="N", help=help_text)
        return
    if command == "keys":
        _add_common_options(parser, "Lists entries: digests, tags and sizes. Neither arguments nor values are shown.")
        help_text = "only entries that `clear` with the same tags would drop"
        parser.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help=help_text)
        parser.add_argument("--limit", type=_count, default=100, metavar="N", help="entries to list (default: 100)")
    else:
        text = "Drops entries by tag, in every process and at once, as a write to these tags would."
        _add_common_options(parser, text)
        parser.add_argument("tags", nargs="*", metavar="TAG", help="such as order:7, or order for all orders")
        parser.add_argument(
            "--all", action="store_true", help="everything under the namespace, or in the file; needs --yes"
        )
        parser.add_argument("--yes", action="store_true", help="confirms --all")
    help_text = "a tag whose id contains a colon"
    parser.add_argument("--entity", nargs=2, action="append", default=[], metavar=("ROOT", "ID"), help=help_text)


def _add_common_options(parser: argparse.ArgumentParser, description: str) -> None:
    """Declare the options of every command that looks at a tier."""
    parser.description = f"{description} Exit codes: 0 fine or done, 1 findings, 2 usage or no answer."
    parser.add_argument(
        "--url",
        default=os.environ.get(URL_VARIABLE),
        help=f"redis://[user:password@]host:port/0, rediss://... or unix://...; of a cluster, any node. Or a file: "
        f"sqlite:///relative.db, sqlite:////absolute.db, ./relative.db or /absolute.db. Default: the environment "
        f"variable {URL_VARIABLE}, which other users of the machine do not see",
    )
    parser.add_argument("--namespace", default="agent_cache", help="of the tier (default: agent_cache)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="for the server or the file to answer (default: 5)",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache tier doctor`."""
    _add_common_options(
        parser,
        "Checks that a server or a file is fit for a tier. It writes and deletes some small keys of its own on a "
        "server, and nothing into a file.",
    )
    parser.add_argument(
        "--tier-timeout",
        type=_seconds,
        default=0.25,
        metavar="SECONDS",
        help="the timeout of the fleet's RedisTier (default: 0.25)",
    )


def _seconds(text: str) -> float:
    """Parse a duration on the command line."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError(f"must be seconds, more than 0 and less than 3600, not {text!r}")
    return number


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a number, 1 or more, not {text!r}")
    return number


def file_of(url: str) -> str | None:
    """The path of the file that ``--url`` names; None if it names a server.

    A text that is no URL is a path if it begins as one, or if there is such a file.

    Raises:
        ConfigurationError: if it names neither.
    """
    if "://" not in url and (url.startswith(("/", "./", "../", "~")) or Path(url).is_file()):
        return url
    try:
        return path_of_url(url)
    except ConfigurationError as error:
        if "://" in url:
            raise
        raise ConfigurationError(f"{error}; and there is no file {url!r} here") from None


def tags_of(options: argparse.Namespace) -> list[str]:
    """The tags among the options.

    Raises:
        ConfigurationError: if one is not valid. A URL is not repeated.
    """
    if any("://" in root for root in [*options.tags, *(root for root, _ in options.entity)]):
        raise ConfigurationError(
            "a tag has no :// in it; did you mean --url URL? An id with a colon in it is given by --entity ROOT ID"
        )
    return [parse_tag(tag) for tag in [*options.tags, *options.entity]]


# Reports of processes: see `agent_cache.remote.reports`


def report_of(report: bytes | str) -> dict[str, Any]:
    """What a process reports with its heartbeat; empty for what can be no report."""
    try:
        document = json.loads(report)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def reported_calls(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """Hits, misses and shared calls of each root.

    Whoever can write to the server can forge a report: a root whose numbers cannot be counts is left out.
    """
    for root, numbers in document.items():
        if isinstance(numbers, list) and len(numbers) >= len(CALLS) and all(map(_is_count, numbers)):
            yield root, dict(zip(CALLS, numbers, strict=False))


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 63


def duration_text(duration: float) -> str:
    """Seconds in the unit that fits: ``90 s``, ``12 min``, ``3 h``."""
    if duration < 120:
        return f"{duration:.0f} s"
    return f"{duration / 60:.0f} min" if duration < 7200 else f"{duration / 3600:.0f} h"


# Results of checks


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check.

    Attributes:
        verdict: ``"note"`` if it cannot be told from here whether something is wrong.
        says: the facts.
        do: what to do, if anything.
    """

    name: str
    verdict: Literal["fine", "finding", "note"]
    says: str
    do: str | None = None


def print_result(printer: Printer, result: Result) -> None:
    """Print the result of a check, and what to do."""
    verdict = f"{result.verdict:<7}", _STYLES[result.verdict]
    printer.line("  ", verdict, f"  {result.name:<12} {result.says}")
    if result.do:
        printer.line(f"{'':24}-> {result.do}")


def print_verdict(printer: Printer, findings: int) -> None:
    """Print how many of the results are findings."""
    if findings:
        printer.line(f"{findings} {'thing is' if findings == 1 else 'things are'} wrong")
    else:
        printer.line("nothing is wrong")
