"""`agent-cache cassette fork`: checks a fork of a recording, and prints how to run it; what a branch says of itself.

The command runs nothing: only the program itself can make its calls. It is told by an environment variable, which
`fork.from_env` reads.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.cli.output import escaped, json_text, plural, print_json
from agent_cache.errors import ConfigurationError
from agent_cache.recording import Cassette, fork
from agent_cache.recording.branch import FORK_VARIABLE, WORLDS

_END = "end"


def add_options(command: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache cassette fork`."""
    command.add_argument("path", type=Path, metavar="RUN")
    command.add_argument(
        "--at", required=True, type=_id, metavar="ID", help=f"the first call that runs, or '{_END}' to answer all"
    )
    command.add_argument("--to", required=True, type=Path, metavar="PATH", help="where the branch is recorded")
    command.add_argument(
        "--edit", action="append", default=[], type=_edit, metavar="ID=JSON", help="what this call answers instead"
    )
    command.add_argument("--world", choices=WORLDS, default=WORLDS[0], help="what the branch finds there")


def run(options: argparse.Namespace) -> int:
    """Check a fork, and print how to run it. Returns 0."""
    edits = dict(options.edit)
    if len(edits) < len(options.edit):
        raise ConfigurationError("--edit: a call was edited twice")
    counts = fork(options.path, at=options.at, to=options.to, edits=edits, world=options.world).counts
    given: dict[str, Any] = {"cassette": str(options.path), "to": str(options.to), "at": options.at}
    given |= {"edits": {str(number): edit for number, edit in edits.items()}} if edits else {}
    given |= {"world": options.world} if options.world != WORLDS[0] else {}
    text = json_text(given)
    if options.json:
        print_json({"environment": {FORK_VARIABLE: text}, **counts})
        return 0
    live = "nothing of the recording" if options.at is None else f"call {options.at} and what follows"
    answered = plural(counts["answered"], "call") + (f", {counts['edited']} edited" if edits else "")
    again = f" Made again: {plural(counts['repeated'], 'write')} before it." if counts["repeated"] else ""
    lines = (
        f"{answered}, will be answered; {live} will run.{again} Start the program with\n\n"
        f"    {FORK_VARIABLE}={shlex.quote(text)}\n\n"
        "in its environment. It records with\n\n    with fork.from_env() or record(PATH):"
    )
    print(escaped(lines, keep="\n"))
    return 0


def branch_text(cassette: Cassette) -> str:
    """Which run a branch has left, and where; an empty text for any other recording."""
    origin = cassette.header.forked_from
    if origin is msgspec.UNSET:
        return ""
    where = "after its end" if origin.get("at") is None else f"at call {origin['at']}"
    when = f", recorded {origin['recorded_at']}" if origin.get("recorded_at") else ""
    found = origin.get("edits")
    edits = ", ".join(map(str, found)) if isinstance(found, list) else ""
    changed = f"; edited: call{'s' if ',' in edits else ''} {edits}" if edits else ""
    return f"A branch of {origin.get('path') or 'a cassette in memory'}{when}, which it left {where}{changed}."


def _id(text: str) -> int | None:
    return None if text == _END else int(text)


def _edit(text: str) -> tuple[int, Any]:
    number, _, value = text.partition("=")
    try:
        return int(number), json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ID=JSON: {error}") from error
