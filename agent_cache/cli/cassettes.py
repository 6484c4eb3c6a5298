"""`cassette show`: the calls of a run in the order in which they were started, nested as they were."""

from __future__ import annotations

import fnmatch
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent_cache._cassettes.calls import called, came_to, duration, error_of, how, tokens
from agent_cache.cli.output import Screen, as_json_text, load
from agent_cache.recording import Cassette, RecordedCall

__all__ = ["show"]

_BAR = 16
_DEEPEST = 12
_STYLES = {"hit": "green", "shared": "green", "miss": "yellow", "write": "magenta", "blocked": "red", "llm": "cyan"}


class _Sums:
    """What the calls of a run add up to."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.errors = self.input_tokens = self.output_tokens = 0

    def add(self, call: RecordedCall) -> None:
        self.kinds[call.kind] += 1
        if call.source:
            self.sources[call.source] += 1
        self.errors += error_of(call) is not None
        self.input_tokens += call.input_tokens
        self.output_tokens += call.output_tokens

    def data(self) -> dict[str, Any]:
        return {
            "calls": self.kinds.total(),
            "kinds": dict(self.kinds),
            "sources": dict(self.sources),
            "errors": self.errors,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }


def show(path: Path, limit: int | None, pattern: str | None, *, only_errors: bool, as_json: bool) -> int:
    """Print a cassette. A few bytes a call are kept, so its length does not matter.

    Raises:
        CassetteError: if it cannot be read.
    """
    cassette = load(path)
    depths, order = _nesting(cassette)
    sums = _Sums()

    def chosen() -> Iterator[tuple[int, RecordedCall]]:
        shown = 0
        for index in order:
            call = cassette[index]
            sums.add(call)
            if (pattern and not fnmatch.fnmatchcase(call.name, pattern)) or (only_errors and error_of(call) is None):
                continue
            shown += 1
            if limit is None or shown <= limit:
                yield index, call

    if as_json:
        _print_json(cassette, path, chosen(), depths, sums)
    else:
        _print_lines(cassette, path, chosen(), depths, sums)
    return 0


def _nesting(cassette: Cassette) -> tuple[array[int], list[int]]:
    """How deep each call stands, and their indices in the order in which they were started."""
    ids: dict[int, int] = {}
    parents = array("q")
    for index, call in enumerate(cassette):
        ids[call.id] = index
        parents.append(0 if call.parent is None else call.parent)
    order = [ids[number] for number in sorted(ids)]
    depths = array("H", bytes(2 * len(order)))
    for index in order:  # a call starts after the one that encloses it
        if parents[index] in ids:
            depths[index] = min(depths[ids[parents[index]]] + 1, _DEEPEST)
    return depths, order


def _print_json(
    cassette: Cassette, path: Path, calls: Iterator[tuple[int, RecordedCall]], depths: array[int], sums: _Sums
) -> None:
    """One document, a line a call."""
    head = {"path": str(path), "header": msgspec.to_builtins(cassette.header), "is_partial": cassette.is_partial}
    sys.stdout.write(f"{as_json_text(head)[:-1]},\n")
    sys.stdout.write('"calls": [')
    for number, (index, call) in enumerate(calls):
        row = {"index": index, "depth": depths[index], **msgspec.to_builtins(call)}
        sys.stdout.write(f"{',' if number else ''}\n{as_json_text(row)}")
    tail = {"totals": sums.data(), "duration_ms": cassette.duration_ms, "trailer": _trailer(cassette)}
    sys.stdout.write(f"],\n{as_json_text(tail)[1:]}\n")


def _trailer(cassette: Cassette) -> Any:
    return None if cassette.trailer is None else msgspec.to_builtins(cassette.trailer)


def _print_lines(
    cassette: Cassette, path: Path, calls: Iterator[tuple[int, RecordedCall]], depths: array[int], sums: _Sums
) -> None:
    screen = Screen()
    whole = cassette.duration_ms
    facts = [f"recorded {cassette.recorded_at}" if cassette.recorded_at else "", cassette.model or ""]
    screen.line((str(path), "bold"), *(f"  {fact}" for fact in facts if fact))
    if cassette.is_partial:
        screen.line(("The recording was killed: calls may be missing.", "red"))
    elif cassette.trailer is not None and cassette.trailer.ended != "returned":
        screen.line((f"The run {cassette.trailer.ended}.", "red"))
    screen.line((f"{'step':>6}  {'start':>8}  {'took':>8}  {'':{_BAR}}  {'':8}  call", "dim"))
    number = 0
    for index, call in calls:
        number += 1
        failed = error_of(call) is not None
        style = "red" if failed else _STYLES.get(how(call), "")
        spent = tokens(call)
        screen.line(
            f"{index:>6}  {duration(call.started_ms):>8}  {duration(call.duration_ms):>8}  ",
            (_bar(call, whole), style),
            "  ",
            (f"{how(call):<8}", style),
            "  " + "  " * depths[index],
            called(call),
            (" -> ", "dim"),
            (came_to(call), "red" if failed else ""),
            (f"  ({spent})" if spent else "", "dim"),
        )
    if number < len(cassette):
        screen.line((f"{len(cassette) - number} more calls are not shown", "dim"))
    screen.line(_total(sums, whole))


def _bar(call: RecordedCall, whole: float) -> str:
    """When it ran, from the beginning of the run to its end."""
    if whole <= 0:
        return " " * _BAR
    start = min(int(_BAR * call.started_ms / whole), _BAR - 1)
    size = max(1, min(round(_BAR * call.duration_ms / whole), _BAR - start))
    return f"{' ' * start}{'=' * size}".ljust(_BAR)


def _total(sums: _Sums, whole: float) -> str:
    count = sums.kinds.total()
    parts = [f"{count} call{'' if count == 1 else 's'} in {duration(whole)}"]
    parts += [f"{number} {name}" for name, number in sorted(sums.sources.items())]
    parts += [f"{number} {name}" for name, number in sorted(sums.kinds.items()) if name not in ("tool", "call")]
    if sums.input_tokens or sums.output_tokens:
        parts.append(f"{sums.input_tokens}+{sums.output_tokens} tokens")
    parts.append(f"{sums.errors} error{'' if sums.errors == 1 else 's'}")
    return ", ".join(parts)
