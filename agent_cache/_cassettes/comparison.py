"""`cassette diff`: what a second run did that the first did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agent_cache._cassettes.calls import called, came_to
from agent_cache.cli.output import Screen, load, print_json
from agent_cache.recording import Cassette, CassetteDiff, diff_cassettes

__all__ = ["compare"]

_LONGEST = 200


def compare(a: Path, b: Path, *, as_json: bool) -> int:
    """Print how two cassettes differ. The exit code: 1 if they do.

    Raises:
        CassetteError: if one cannot be read.
    """
    one, other = load(a), load(b)
    diff = diff_cassettes(one, other)
    if as_json:
        data = {name: getattr(diff, name) for name in CassetteDiff.__dataclass_fields__}
        print_json(
            {
                "a": str(a),
                "b": str(b),
                "identical": diff.identical,
                "token_delta": diff.token_delta,
                **msgspec.to_builtins(data),
            }
        )
    else:
        _print_lines(one, other, diff, Screen())
    return 0 if diff.identical else 1


def _print_lines(one: Cassette, other: Cassette, diff: CassetteDiff, screen: Screen) -> None:
    screen.line(("--- ", "red"), f"{one.path}  {len(one)} calls")
    screen.line(("+++ ", "green"), f"{other.path}  {len(other)} calls")
    for index in diff.dropped_steps:
        screen.line((f"- {index:>5}  {called(one[index])} -> {came_to(one[index])}", "red"))
    for index in diff.new_steps:
        screen.line((f"+ {index:>5}  {called(other[index])} -> {came_to(other[index])}", "green"))
    for change in diff.changed_calls:
        where = (
            f"{change['index']}" if change["index"] == change["index_b"] else f"{change['index']}>{change['index_b']}"
        )
        screen.line((f"~ {where:>5}  {change['name']}: {', '.join(change['changed'])}", "yellow"))
        for part in change["changed"]:
            was, now = getattr(change["a"], part), getattr(change["b"], part)
            for path, before, after in _differences(was, now, part):
                screen.line(f"           {path}: ", (_short(before), "red"), " -> ", (_short(after), "green"))
    for move in diff.moved_calls:
        screen.line((f"> {move['index']:>5}  {move['name']} is now step {move['index_b']}", "cyan"))
    if diff.identical:
        screen.line("The same calls in the same order, with the same outcomes.")
    else:
        screen.line(
            f"{len(diff.new_steps)} new, {len(diff.dropped_steps)} dropped, {len(diff.changed_calls)} changed, "
            f"{len(diff.moved_calls)} moved, {diff.token_delta:+} tokens"
        )


class _Absent:
    def __repr__(self) -> str:
        return "(none)"


_ABSENT = _Absent()


def _differences(was: Any, now: Any, path: str) -> list[tuple[str, Any, Any]]:
    """The innermost parts that differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        return [
            found
            for key in dict.fromkeys((*was, *now))
            for found in _differences(was.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}")
        ]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [
            found
            for at, (before, after) in enumerate(zip(was, now, strict=True))
            for found in _differences(before, after, f"{path}[{at}]")
        ]
    return [] if was == now and type(was) is type(now) else [(path, was, now)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
