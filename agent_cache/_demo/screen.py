"""The run as a terminal shows it: one picture that is drawn again and again in place, and a summary below it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from agent_cache._demo.chronicle import Chronicle
from agent_cache._demo.frame import MINIMUM, closing_panel, frame
from agent_cache._demo.spectator import Spectator

__all__ = ["Screen", "has_room", "save_svg"]

_FRAMES_PER_SECOND = 12
_FONTS = "Menlo, Consolas, DejaVu Sans Mono, monospace"


def has_room(console: Console) -> bool:
    """Whether this is a terminal that can be drawn on."""
    columns, lines = console.size
    can_draw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return can_draw and columns >= MINIMUM[0] and lines >= MINIMUM[1]


class Screen(Spectator):
    """Draws a run.

    Args:
        console: where.
        is_live: False draws the last picture only, for a run that takes no time.
    """

    def __init__(self, console: Console, *, is_live: bool) -> None:
        self._console = console
        self._is_live = is_live

    @asynccontextmanager
    async def watching(self, chronicle: Chronicle) -> AsyncIterator[None]:
        if not self._is_live:
            yield
            return
        with Live(self._frame(chronicle), console=self._console, auto_refresh=False) as live:
            drawing = asyncio.create_task(self._draw(live, chronicle))
            try:
                yield
            finally:
                drawing.cancel()
                live.update(self._frame(chronicle), refresh=True)

    def finished(self, chronicle: Chronicle) -> None:
        if not self._is_live:
            self._console.print(self._frame(chronicle))
        self._console.print(closing_panel(chronicle))

    async def _draw(self, live: Live, chronicle: Chronicle) -> None:
        while True:
            live.update(self._frame(chronicle), refresh=True)
            await asyncio.sleep(1 / _FRAMES_PER_SECOND)

    def _frame(self, chronicle: Chronicle) -> RenderableType:
        columns, lines = self._console.size
        return frame(chronicle, width=columns, height=min(lines - 1, 30))


def save_svg(chronicle: Chronicle, path: Path) -> None:
    """Save the last picture and the summary: the same bytes for the same run."""
    console = Console(
        record=True,
        file=StringIO(),
        width=100,
        height=31,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    screen = Screen(console, is_live=False)
    screen.finished(chronicle)
    picture = console.export_svg(title="agent-cache demo", unique_id="agent-cache-demo")
    # Fonts come from the reader's machine: as it stands, the picture would have them fetched from a third party.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    path.write_text(picture.replace("Fira Code, monospace", _FONTS), "utf-8")
