"""Prints what the commands have found: lines, tables and JSON on stdout. Writes their files.

Lines are coloured on a terminal if `rich` is installed (extra ``cli``) and `NO_COLOR` is not set; otherwise the same
text is plain. Names, arguments and keys come from files and servers that others can write to: all that a terminal
would interpret is escaped.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from agent_cache.errors import ConfigurationError
from agent_cache.values.compare import escaped, plural, shortened

__all__ = ["Printer", "escaped", "json_text", "plural", "print_json", "shortened", "size_text", "write_file"]

_INVISIBLE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that `json.dumps` leaves as they are, and a terminal interprets or cannot encode."""


class Printer:
    """Prints lines and tables, in colours where that is possible."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console: Any = None
        self._stream = sys.stdout if stream is None else stream
        if self._stream.isatty() and not os.environ.get("NO_COLOR"):
            try:
                from rich.console import Console
            except ImportError:
                return
            self._console = Console(file=self._stream, highlight=False, soft_wrap=True)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line. Each part is a text, or a text and a style of `rich`."""
        pairs = [(escaped(part), "") if isinstance(part, str) else (escaped(part[0]), part[1]) for part in parts]
        if self._console is None:
            print("".join(text for text, _ in pairs).rstrip(), file=self._stream)
        else:
            from rich.text import Text

            self._console.print(Text.assemble(*pairs))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
        """Print rows under a head; the first `left` columns are aligned to the left, the others to the right."""
        cells = [tuple(map(escaped, row)) for row in (head, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for number, row in enumerate(cells):
            aligned = [
                cell.ljust(width) if column < left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line(("  ".join(aligned), "" if number else "bold"))


def size_text(size: float) -> str:
    """A number of bytes, in the unit that fits: ``441 B``, ``4.1 MB``."""
    if size < 1000:
        return f"{size:.0f} B"
    unit, least = next(one for one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= one[1])
    return f"{size / least:.1f} {unit}"


def print_json(data: Any) -> None:
    """Print one JSON document."""
    print(json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """The data as JSON that can be shown on a terminal: what it would interpret is escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return _INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def write_file(target: Path, texts: Iterable[str]) -> int:
    """Write texts in one step: what stood there stays until all is written. Returns the number of bytes."""
    data = "".join(texts).encode()
    try:
        if target.exists() and not target.is_file():  # a device or a pipe, which nothing can take the place of
            return target.write_bytes(data)
        target = Path(os.path.realpath(target))  # which takes links that lead to each other
        scratch = target.with_name(f".{target.name[:100]}.{os.getpid()}")
        try:
            scratch.unlink(missing_ok=True)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666
            # A link that another user has put there meanwhile is refused, and not followed.
            with open(scratch, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                file.write(data)
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{target}: cannot be written: {getattr(error, 'strerror', error)}") from error
    return len(data)
