"""Where the commands write: tables on stdout, and on a terminal a progress bar on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["amount", "duration", "print_json", "print_table", "progress", "shown"]

_WORTH_A_BAR = 20_000
_UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""What JSON lets stand as it is, and a terminal takes for an order."""


def print_json(data: Any) -> None:
    """One document."""
    print(_UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], json.dumps(data, indent=2, ensure_ascii=False)))


def shown(text: object) -> str:
    """What came from a server, on one line, and without a word to the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Columns, the first of them aligned to the left."""
    rows = [tuple(map(shown, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def amount(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("not reached")


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """What draws how far it is: nothing, unless it takes long and somebody looks on."""
    if total < _WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda _: None
        return

    def draw(done: int) -> None:
        share = min(1.0, done / total)
        print(f"\r{what} [{'#' * int(30 * share):<30}] {share:4.0%}", end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
