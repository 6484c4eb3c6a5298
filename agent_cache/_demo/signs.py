"""How each outcome looks: a colour for those who see it, and a mark of its own for everyone."""

from __future__ import annotations

from dataclasses import dataclass

from agent_cache._demo.chronicle import Call

__all__ = ["SIGNS", "STALE", "WAITING", "Sign", "sign_of"]


@dataclass(frozen=True, slots=True)
class Sign:
    """Attributes:
    word: what people read.
    bar: what a call that takes time is drawn with, in a lane of a terminal's picture.
    point: what stands for a call that takes none, and for the whole kind in a legend.
    style: for `rich`.
    """

    word: str
    bar: str
    point: str
    style: str


SIGNS = {
    "hit": Sign("hit", "●", "●", "bold green"),
    "miss": Sign("miss", "━", "━", "yellow"),
    "shared": Sign("shared", "┅", "┅", "cyan"),
    "write": Sign("write", "▆", "▆", "magenta"),
    "stopped": Sign("stopped", "✗", "✗", "bold red"),
    "uncached": Sign("uncached", "━", "━", "yellow"),
}
STALE = Sign("STALE", "▲", "▲", "bold white on red")
WAITING = Sign("", "─", "─", "bright_black")


def sign_of(call: Call) -> Sign:
    """What to show for a call: that its answer was stale, if it was, before anything else."""
    if call.is_right is False:
        return STALE
    return WAITING if call.outcome is None else SIGNS[call.outcome]
