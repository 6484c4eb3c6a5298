"""Where the commands write: colours and a progress bar on a terminal with `rich`, plain text everywhere else."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_cache.errors import CassetteNotFound
from agent_cache.recording import Cassette

__all__ = ["Screen", "as_json_text", "cassettes_in", "load", "print_json", "visible"]

_CONTROLS = (*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What a terminal obeys, or reads backwards, instead of showing it."""
_VISIBLE = {each: repr(chr(each))[1:-1] for each in _CONTROLS}
_IN_JSON = {each: f"\\u{each:04x}" for each in _CONTROLS if each >= 0x7F}
_WORTH_A_BAR = 1_000_000
_STRIDE = 1 << 17


class Screen:
    """Lines on stdout."""

    def __init__(self) -> None:
        self._console: Any = None
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            try:
                from rich.console import Console
            except ImportError:
                return
            self._console = Console(highlight=False, soft_wrap=True)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line of texts, or of texts with a style. What a cassette has of control characters is escaped."""
        parts = tuple(visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts)
        if self._console is None:
            print("".join(part if isinstance(part, str) else part[0] for part in parts).rstrip())
        else:
            from rich.text import Text

            self._console.print(Text.assemble(*parts))


def visible(text: str, keeping: str = "") -> str:
    """The same text with control characters escaped, but for those in `keeping`."""
    return text.translate({each: shown for each, shown in _VISIBLE.items() if chr(each) not in keeping})


def load(path: Path) -> Cassette:
    """Read a cassette, with a progress bar if it is a long one and somebody looks on.

    Raises:
        CassetteError: as `Cassette.load`.
    """
    with _bar(path) as tick:
        return Cassette.load(path, progress=tick)


def cassettes_in(paths: list[Path]) -> list[Path]:
    """These files, and every cassette in those of them that are folders.

    Raises:
        CassetteNotFound: if a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise CassetteNotFound("there is no cassette in this folder", path)
        found += inside
    return list(dict.fromkeys(found))


def print_json(data: Any) -> None:
    """One document on stdout."""
    print(as_json_text(data, indent=2))


def as_json_text(data: Any, indent: int | None = None) -> str:
    """JSON to be read by people, too, with nothing in it that a terminal obeys."""
    return json.dumps(data, indent=indent, ensure_ascii=False).translate(_IN_JSON)


@contextmanager
def _bar(path: Path) -> Iterator[Callable[[int], None] | None]:
    try:
        size = path.stat().st_size
    except (OSError, ValueError):  # the latter for a null in the name
        size = 0
    if size < _WORTH_A_BAR or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield _plain_bar(path.name, size)
        print("\r\033[K", end="", file=sys.stderr, flush=True)
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"reading {path.name}", total=size)
        yield _in_strides(lambda done: progress.update(task, completed=done))


def _plain_bar(name: str, size: int) -> Callable[[int], None]:
    def draw(done: int) -> None:
        filled = 30 * done // size
        print(f"\rreading {name} [{'#' * filled:<30}] {done / size:4.0%}", end="", file=sys.stderr, flush=True)

    return _in_strides(draw)


def _in_strides(draw: Callable[[int], object]) -> Callable[[int], None]:
    """Drawing costs more than reading a line."""
    last = 0

    def tick(done: int) -> None:
        nonlocal last
        if done - last >= _STRIDE:
            last = done
            draw(done)

    return tick
