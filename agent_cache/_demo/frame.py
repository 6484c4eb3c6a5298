"""The picture of a run in a terminal, at one moment: lanes, the last calls, and what they add up to."""

from __future__ import annotations

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent_cache._demo.chronicle import Call, Chronicle, Totals
from agent_cache._demo.closing import EXAMPLE, findings, verdict
from agent_cache._demo.lanes import Cell, axis, lane
from agent_cache._demo.script import LENGTH
from agent_cache._demo.signs import SIGNS, STALE, sign_of

__all__ = ["MINIMUM", "closing_panel", "frame"]

MINIMUM = (80, 20)
"""Columns and lines below which there is no room for the picture."""

_AROUND_THE_LOG = 15
"""Lines of a frame that are not the last calls."""


def frame(chronicle: Chronicle, *, width: int, height: int) -> RenderableType:
    """Everything, in at most `height` lines, none of them wrapped; each frame of a run is as high as the others."""
    totals = chronicle.totals()
    return Group(
        _lanes(chronicle, totals, width - 4),
        _log(chronicle.ended, max(3, height - _AROUND_THE_LOG)),
        _sums(totals),
    )


def _lanes(chronicle: Chronicle, totals: Totals, width: int) -> Panel:
    now, current = chronicle.clock(), chronicle.act
    span = max(LENGTH, now)
    name = max(map(len, chronicle.agents)) + 2
    room = width - name
    rows = [_line([(chronicle.acts[current].caption, "bold")]), Text()]
    for agent in chronicle.agents:
        calls = [call for call in chronicle.calls if call.agent == agent]
        rows.append(_line([(agent.ljust(name), ""), *lane(calls, chronicle.acts, width=room, span=span, now=now)]))
    rows.append(_line([(" " * name, ""), *axis(chronicle.acts, current, width=room, span=span)]))
    return Panel(
        Group(*rows),
        title=_title(chronicle),
        title_align="left",
        subtitle=_legend(totals),
        subtitle_align="left",
        box=ROUNDED,
        border_style="bright_black",
    )


def _title(chronicle: Chronicle) -> Text:
    simulated = ", simulated" if chronicle.is_simulated else ""
    return Text.assemble(
        ("agent-cache demo", "bold default"),
        (" ─ ", "bright_black"),
        f"five agents, one store, seed {chronicle.seed}",
        (f" ─ {chronicle.clock():.1f} s{simulated}", "bright_black"),
    )


def _legend(totals: Totals) -> Text:
    counts = {
        "miss": totals.misses,
        "hit": totals.hits,
        "shared": totals.shared,
        "write": totals.invalidations,
        "stopped": totals.stopped,
    }
    legend = Text()
    for outcome, count in counts.items():
        sign = SIGNS[outcome]
        legend.append(sign.point, sign.style).append(f" {count:>2} {sign.word}  ")
    legend.rstrip()
    return legend


def _log(ended: list[Call], lines: int) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column("sec", justify="right", width=5, no_wrap=True)
    table.add_column("agent", width=5, no_wrap=True)
    table.add_column("call", width=30, no_wrap=True)
    table.add_column("outcome", width=9, no_wrap=True)
    table.add_column("ms", justify="right", width=4, no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    last = ended[-lines:]
    for call in last:
        sign = sign_of(call)
        table.add_row(
            f"{call.ended:.2f}",
            call.agent,
            str(call),
            Text(f"{sign.point} {sign.word}", sign.style),
            f"{((call.ended or 0.0) - call.started) * 1000:.0f}",
            _remark(call),
        )
    for _ in range(lines - len(last)):
        table.add_row()
    return table


def _remark(call: Call) -> Text:
    if call.is_right is False:
        return Text("✗ not what the store says", "red")
    if call.outcome == "write":
        return Text("drops " + " ".join(call.drops) if call.drops else "drops nothing", "magenta")
    if call.outcome == "stopped":
        return Text("the same answer again", "red")
    saved = f", saved {call.saved * 1000:.0f} ms" if call.saved else ""
    return Text("✓ true", "green").append(saved, "bright_black")


def _sums(totals: Totals) -> Panel:
    right = "bold green" if not totals.stale else STALE.style
    cells = [
        (f"{totals.hit_rate:.0%}", "hit rate", "bold"),
        (f"{totals.time_saved:.1f} s", "time saved", "bold"),
        (f"{totals.avoided}", "runs avoided", "bold"),
        (f"{totals.checked - totals.stale} of {totals.checked}", "answers right", "bold"),
        (f"{totals.stale}", "stale", right),
    ]
    grid = Table.grid(expand=True)
    for _ in cells:
        grid.add_column(justify="center", ratio=1, no_wrap=True)
    grid.add_row(*(Text(value, style) for value, _, style in cells))
    grid.add_row(*(Text(label, "bright_black") for _, label, _ in cells))
    return Panel(grid, box=ROUNDED, border_style="bright_black")


def closing_panel(chronicle: Chronicle) -> RenderableType:
    """What happened, in one line each, and the lines to copy."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for sign, count, kind, meaning in findings(chronicle):
        grid.add_row(Text(sign.point, sign.style), str(count), Text(kind, sign.style), meaning)
    is_right, sentence = verdict(chronicle)
    judged = Text("✓ " if is_right else "✗ ", "bold green" if is_right else "bold red").append(sentence, "bold")
    code = Syntax(EXAMPLE.rstrip(), "python", theme="ansi_dark", background_color="default")
    body = Group(grid, judged, Text(), Text("To have the same for your own tools:", "bright_black"), code)
    return Panel(
        body, title="[bold default]What happened[/]", title_align="left", box=ROUNDED, border_style="bright_black"
    )


def _line(cells: list[Cell]) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for mark, style in cells:
        line.append(mark, style)
    return line
