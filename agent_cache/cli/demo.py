"""The command line of the demo: its options, who looks on, and what the exit code says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_cache._demo.spectator import Spectator

__all__ = ["SUMMARY", "add_options", "run"]

SUMMARY = "watch five agents share a cache, with every answer checked"

_COLOURS = 'pip install "agent-cache[cli]"'


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what `agent-cache demo` understands."""
    parser.description = (
        "Runs five scripted agents at once against a small store in a temporary SQLite file, shows what the cache "
        "does, and compares every answer with the store. Exit code 0: all answers were right; 1: one was stale."
    )
    parser.add_argument("--fast", action="store_true", help="no waiting: the same run on a simulated clock")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of latencies and of what is browsed (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of pictures")
    parser.add_argument("--svg", type=Path, metavar="PATH", help="also save the last picture (needs rich)")
    parser.add_argument(
        "--sabotage",
        action="store_true",
        help="leave the decorator off one write, to see the check catch it (exit code 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from agent_cache import configure
    from agent_cache._demo.play import play
    from agent_cache._demo.tools import ForgetfulTools, ShopTools
    from agent_cache.config import CURRENT

    if options.svg is not None and not _can_save(options.svg):
        return 2
    with configure():
        if not CURRENT.value.enabled:
            print("AGENT_CACHE_ENABLED switches caching off, so there is nothing to see; unset it.", file=sys.stderr)
            return 2
    tools = ForgetfulTools if options.sabotage else ShopTools
    chronicle = play(_spectator(options), seed=options.seed, is_fast=options.fast, tools=tools)
    if options.svg is not None:
        from agent_cache._demo.screen import save_svg

        try:
            save_svg(chronicle, options.svg)
        except OSError as error:
            print(f"--svg: {error}", file=sys.stderr)
            return 2
        print(f"saved {options.svg}", file=sys.stderr)
    return 1 if chronicle.totals().stale else 0


def _spectator(options: argparse.Namespace) -> Spectator:
    from agent_cache._demo.document import Document
    from agent_cache._demo.plain import PlainText

    if options.json:
        return Document()
    if not sys.stdout.isatty():
        return PlainText()
    try:
        from rich.console import Console

        from agent_cache._demo.screen import Screen, has_room
    except ImportError:
        print(f"For colours and a live picture: {_COLOURS}", file=sys.stderr)
        return PlainText()
    console = Console(highlight=False)
    return Screen(console, is_live=not options.fast) if has_room(console) else PlainText()


def _can_save(path: Path) -> bool:
    try:
        import rich  # noqa: F401  # only whether it is there
    except ImportError:
        print(f"--svg draws with rich: {_COLOURS}", file=sys.stderr)
        return False
    if not path.parent.is_dir():
        print(f"--svg: there is no folder {str(path.parent)!r}", file=sys.stderr)
        return False
    return True
