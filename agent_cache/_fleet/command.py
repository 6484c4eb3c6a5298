"""The command lines of `stats`, `keys`, `clear` and `doctor`, and what their exit codes say.

Exit codes: 0 fine or done, 1 findings, 2 usage, or a server that cannot be reached.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["COMMANDS"]

_URL = "AGENT_CACHE_URL"
_CALL = re.compile(r"\ARedisTier(\.from_url)?: ")
"""What an error of the library begins with, and somebody who has typed a command has never called."""

Job = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def _common(parser: argparse.ArgumentParser, description: str) -> None:
    parser.description = f"{description} Exit codes: 0 fine or done, 1 findings, 2 usage or no answer."
    parser.add_argument(
        "--url",
        default=os.environ.get(_URL),
        help=f"redis://[user:password@]host:port/0, rediss://... or unix://...; of a cluster, any node. Default: the "
        f"environment variable {_URL}, which other users of the machine do not see",
    )
    parser.add_argument("--namespace", default="agent_cache", help="of the tier (default: agent_cache)")
    parser.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="for the server to answer (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout")


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError(f"seconds are wanted, more than 0 and less than 3600, not {text!r}")
    return number


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a number is wanted, 1 or more, not {text!r}")
    return number


def _stats_options(parser: argparse.ArgumentParser) -> None:
    _common(parser, "Counts what a tier holds for each resource root.")
    parser.add_argument(
        "--sample",
        type=_count,
        default=10_000,
        metavar="N",
        help="values of each server to look into; what is beyond is counted, and shared out as these are (default: "
        "10,000)",
    )


def _keys_options(parser: argparse.ArgumentParser) -> None:
    _common(parser, "Lists entries: digests, tags and sizes. Neither arguments nor values are shown.")
    _add_tags(parser, "only what `clear` with the same tags would drop")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="entries to list (default: 100)")


def _clear_options(parser: argparse.ArgumentParser) -> None:
    _common(parser, "Drops entries by tag, in every process and at once, as a write to these tags would.")
    parser.add_argument("tags", nargs="*", metavar="TAG", help="such as order:7, or order for all orders")
    parser.add_argument(
        "--entity", nargs=2, action="append", default=[], metavar=("ROOT", "ID"), help="for an id with a colon in it"
    )
    parser.add_argument("--all", action="store_true", help="everything under the namespace; needs --yes")
    parser.add_argument("--yes", action="store_true", help="yes, everything")


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    _common(parser, "Checks that a server is fit for a tier. It writes and deletes some small keys of its own.")
    parser.add_argument(
        "--tier-timeout",
        type=_seconds,
        default=0.25,
        metavar="SECONDS",
        help="what the fleet's RedisTier has as timeout (default: 0.25)",
    )


def _add_tags(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help=purpose)
    parser.add_argument(
        "--entity",
        nargs=2,
        action="append",
        default=[],
        metavar=("ROOT", "ID"),
        help="likewise, for an id with a colon",
    )


def _runs(job_of: Callable[[], Job]) -> Callable[[argparse.Namespace], int]:
    """What the command line calls: usage first, then the server."""

    def run(options: argparse.Namespace) -> int:
        if not options.url:
            print(f"which server? Give --url, or set {_URL}", file=sys.stderr)
            return 2
        try:
            job = job_of()
        except ModuleNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
        from agent_cache._fleet.screen import shown
        from agent_cache.errors import ConfigurationError, RemoteTierError
        from agent_cache.remote.redis.wire import ReplyError, Unreachable

        try:
            with _unlogged():
                return asyncio.run(job(options))
        except (ConfigurationError, RemoteTierError) as error:
            print(shown(_CALL.sub("", str(error))), file=sys.stderr)
        except Unreachable as error:
            print(f"the server cannot be used: {shown(error)}", file=sys.stderr)
        except ReplyError as error:
            print(f"the server has refused: {shown(error)}", file=sys.stderr)
        return 2

    return run


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what the library logs off the terminal, where Python puts it if nobody has said where else: a command says
    itself what went wrong, and that a tier goes on trying is not true of its tier.
    """
    log, nowhere = logging.getLogger("agent_cache"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        yield
    finally:
        log.removeHandler(nowhere)


def _stats() -> Job:
    from agent_cache.cli.fleet import stats

    return stats


def _keys() -> Job:
    from agent_cache._fleet.listing import keys

    return keys


def _clear() -> Job:
    from agent_cache._fleet.clearing import clear

    return clear


def _doctor() -> Job:
    from agent_cache._fleet.doctor import doctor

    return doctor


COMMANDS = (
    ("stats", "what a tier holds for each resource, and how often it is hit", _stats_options, _runs(_stats)),
    ("keys", "list the entries of a tier", _keys_options, _runs(_keys)),
    ("clear", "drop entries of a tier by tag, in every process", _clear_options, _runs(_clear)),
    ("doctor", "check that a server is fit for a tier, and say what is wrong", _doctor_options, _runs(_doctor)),
)
"""Name, summary, what declares its options, what runs it."""
