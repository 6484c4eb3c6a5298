"""One HTML file that shows a run, or several side by side: `page` writes it.

The file needs nothing beside it. Bokeh draws the timeline on a canvas; a table has the same calls as text. Bokeh's
program and the data of the figures are compressed in the file. A policy in its head (CSP) forbids every request, and
every script but these three, by their digests: a text of a run can be no program, whatever it contains.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING

from agent_cache.errors import ConfigurationError
from agent_cache.recording.call_text import duration_text
from agent_cache.report.timeline import CATEGORIES, Comparison, TimedCall, Timeline

if TYPE_CHECKING:
    from bokeh.plotting import figure
    from markupsafe import Markup

__all__ = ["page"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_GROUP = 250
"""Rows of a table. A browser lays out the tables that are seen."""
_DRAWN = ("function", "world", "model", "request", "uncached", "miss", "shared", "validated", "hit", "write", "blocked")
"""In this order, so that what is short or rare is above the rest."""
_CROWDED = 600
"""Bars in view from which edges and patterns would hide them, and take most of the time of drawing. `page.js` changes
them when it zooms."""
_UNITS = (("milliseconds", 1.0, 2e3), ("seconds", 1e3, 240e3), ("minutes", 6e4, 1.44e7), ("hours", 3.6e6, float("inf")))
_ABOVE, _SUMS = 0.4, 2.4
"""Heights, in rows, of what is left free above the first one for marks, and of the sum of tokens or money below."""


def page(timelines: Sequence[Timeline], comparison: Comparison | None = None) -> str:
    """The page of these runs."""
    if len(timelines) > len(_LETTERS):
        raise ConfigurationError(f"a report shows up to {len(_LETTERS)} runs, got {len(timelines)}")
    try:
        from bokeh.embed import json_item
        from bokeh.resources import Resources
        from bokeh.themes import Theme
        from jinja2 import Environment, PackageLoader
    except ImportError as error:
        raise ConfigurationError('a report needs Bokeh and Jinja2: pip install "agent-cache[report]"') from error
    program = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    looks = json.loads(_text_of("looks.json"))
    theme, plots = Theme(json=looks["theme"]), zip(_figures(timelines, looks["categories"]), _LETTERS, strict=False)
    shorts = {call.name: call.short_name for timeline in timelines for call in timeline.calls}
    often = Counter(shorts.values())
    short = {name: one if often[one] == 1 else name for name, one in shorts.items()}  # whole where two would be alike
    numbers = {name: number for number, name in enumerate(short)}
    data = {
        "items": [json_item(plot, f"figure-{letter}", theme) for plot, letter in plots],
        "runs": [{"height": _height(max(t.rows, 1)), "names": [numbers[c.name] for c in t.calls]} for t in timelines],
        "names": list(short.values()),
        "styles": {name: look[1:] for name, look in looks["categories"].items()},
        "crowded": _CROWDED,
    }
    script = _text_of("page.js")
    environment = Environment(
        loader=PackageLoader("agent_cache.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "duration": duration_text, "money": _money_text, "whole": "{:,}".format,
        "share": lambda part, whole: f"{part / whole:.0%}" if whole else "", "inner": _inner_text,
    }  # fmt: skip
    shown = {name for one in timelines for name in one.categories}
    values = {
        "runs": [_View(timeline, letter) for timeline, letter in zip(timelines, _LETTERS, strict=False)],
        "several": len(timelines) > 1,
        "comparison": comparison or Comparison(),
        "severities": Counter(drift.severity.name.lower() for drift in comparison.drifts) if comparison else {},
        "rows": _paired(timelines, comparison) if comparison and not comparison.refusal else None,
        "colours": {name: look[1] for name, look in looks["categories"].items()},
        "categories": {name: looks["categories"][name][0] for name in CATEGORIES if name in shown},
        "has_models": any(timeline.models.calls for timeline in timelines),
        "short": short,
        "group": _GROUP,
        "style": _text_of("page.css"),
        "script": script,
        "hashes": [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (script, program)],
        "bokeh": _packed(program),
        "data": _packed(json.dumps(data, separators=(",", ":"), allow_nan=False)),
    }
    return "".join(environment.get_template("page.html").generate(values))


def _text_of(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


# Texts


def _money_text(cost: Decimal | None) -> str:
    """An amount in US dollars; empty if it is not known."""
    if cost is None:
        return ""
    if not cost:
        return "$0"
    return f"${cost:,.2f}" if cost >= 10 else f"${cost:.4f}" if cost >= Decimal("0.0001") else "<$0.0001"


def _inner_text(text: str) -> Markup:
    """A text inside of an element. Quotes stay there, which they may: they are half of what a call contains."""
    from markupsafe import Markup

    return Markup(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))  # noqa: S704 - just escaped


class _View:
    """A run, with the sums that the page shows."""

    def __init__(self, timeline: Timeline, letter: str) -> None:
        self.timeline, self.letter = timeline, letter
        self.tools, counts = timeline.tools(), timeline.categories
        self.errors = sum(call.state == "raised" for call in timeline.calls)
        self.loops = sum(bool(call.loops) for call in timeline.calls)
        self.reads = sum(counts.get(one, 0) for one in ("hit", "validated", "shared", "miss", "uncached"))
        self.cached = timeline.saved.hits + timeline.saved.shared
        took = f" in {duration_text(timeline.duration)}" if timeline.has_times else ""
        parts = ", ".join(f"{count} {name}" for name, count in counts.items())
        self.summary = f"Timeline of {timeline.title}: {len(timeline.calls)} calls{took}: {parts}."
        """The timeline in one sentence, for those who do not see it."""


def _paired(timelines: Sequence[Timeline], comparison: Comparison) -> Iterator[tuple[int | None, int | None]]:
    """Rows of the first run and the last beside each other: positions of calls, None where a run does not have it.

    They are in the order of the last run. What only the first has stands before the call that follows it there.
    """
    of_last = {other: one for one, other in comparison.pairs}
    both, first = set(of_last.values()), timelines[0].tree()
    rank = {position: number for number, position in enumerate(first)}
    alone = deque(position for position in first if position not in both)
    for other in timelines[-1].tree():
        one = of_last.get(other)
        while one is not None and alone and rank[alone[0]] < rank[one]:
            yield alone.popleft(), None
        yield one, other
    yield from ((one, None) for one in alone)


# Figures


def _figures(timelines: Sequence[Timeline], looks: Mapping[str, Sequence[str]]) -> list[figure]:
    """A figure for each run. All begin with one scale of time. `looks` are those of categories, in `looks.json`:
    what a call of it is, its colour, that of edges, and a pattern for those who cannot tell the colours.
    """
    longest = max((timeline.duration for timeline in timelines), default=0.0) or 1.0
    has_times = any(timeline.has_times for timeline in timelines)
    unit, scale, _ = next(one for one in _UNITS if longest < one[2])
    if not has_times:
        unit, scale = "order of starts and ends", 1.0
    return [_figure(timeline, unit, scale, longest / scale, looks) for timeline in timelines]


def _height(rows: int) -> float:
    """Pixels of a row: as many rows as fit are comfortable, and a figure is never taller than a canvas may be."""
    return max(min(26, 900 // rows), 5) if rows <= 180 else max(min(5, 3600 // rows), min(2, 12_000 / rows))


def _figure(timeline: Timeline, unit: str, scale: float, longest: float, looks: Mapping[str, Sequence[str]]) -> figure:
    from bokeh.models import ColumnDataSource, FixedTicker, HBar, PanTool, Range1d, Scatter, Text, WheelZoomTool
    from bokeh.plotting import figure as new_figure

    rows, (paid, is_money) = max(timeline.rows, 1), _paid(timeline)
    total = rows + (_SUMS if paid else 0)
    pixels = _height(rows)
    digits = max(0, 8 - math.floor(math.log10(longest)))  # more would be seen at no zoom, and are half of the file
    ends = -0.01 * longest, 1.01 * longest
    times = Range1d(*ends, bounds=ends, min_interval=longest / 1e6)
    pan, wheel = PanTool(dimensions="width"), WheelZoomTool(dimensions="width", modifiers="ctrl")
    plot = new_figure(
        height=round(pixels * (total + _ABOVE)) + 48, sizing_mode="stretch_width", x_range=times,
        y_range=Range1d(total, -_ABOVE),
        tools=[pan, wheel], active_drag=pan, active_scroll=wheel, toolbar_location=None, output_backend="canvas",
        x_axis_location="below", name="plot",
    )  # fmt: skip
    plot.xaxis.axis_label = unit
    plot.yaxis.major_tick_line_color = plot.ygrid.grid_line_color = None
    plot.xaxis.formatter.use_scientific = False
    labels = {track.first + track.rows / 2: track.label for track in timeline.tracks}
    if paid:
        labels[rows + _SUMS / 2] = "price" if is_money else "tokens"
        _draw_steps(plot, paid, rows, scale, longest, looks["model"][1], is_money=is_money)
    plot.yaxis.ticker = FixedTicker(ticks=[*labels])
    plot.yaxis.major_label_overrides = labels
    shaded = timeline.tracks[::2]
    plot.hbar(
        y=[track.first + track.rows / 2 for track in shaded], height=[track.rows for track in shaded],
        left=-longest, right=2 * longest, color="#8090a8", alpha=0.09, line_color=None, level="underlay",
    )  # fmt: skip
    is_crowded = len(timeline.calls) > _CROWDED
    by_category: dict[str, list[int]] = {}
    for position, call in enumerate(timeline.calls):
        by_category.setdefault(call.category, []).append(position)
    for category in _DRAWN:
        if positions := by_category.get(category):
            calls = [timeline.calls[position] for position in positions]
            source = ColumnDataSource({
                "left": [round(call.start / scale, digits) for call in calls],
                "right": [round(call.end / scale, digits) for call in calls],
                "y": [call.row + 0.5 for call in calls],
                "n": positions,
            })  # fmt: skip
            _, colour, edge, pattern = looks[category]
            is_plain = category == "hit" or is_crowded  # hits take microseconds, and are to be seen
            bar = HBar(
                y="y", left="left", right="right", height=0.8, hatch_pattern="blank" if is_crowded else pattern,
                fill_color=colour, line_color=colour if is_plain else edge,
                line_width=3 if category == "hit" and not is_crowded else 1,
            )  # fmt: skip
            plot.add_glyph(source, bar, name=category)
    outlined = ColumnDataSource({"left": [], "right": [], "y": []})
    outline = HBar(y="y", left="left", right="right", height=0.98, fill_color=None, line_color="#111827", line_width=3)
    plot.add_glyph(outlined, outline, name="selected")
    texts = ColumnDataSource({"x": [], "y": [], "text": [], "colour": [], "behind": []})
    plot.add_glyph(
        texts,
        Text(x="x", y="y", text="text", text_color="colour", text_baseline="middle", x_offset=4, padding=2,
             text_font_size=f"{max(8, min(11, int(pixels) // 2))}px", background_fill_color="behind", border_radius=3),
        name="labels",
    )  # fmt: skip
    for name, marker, colour, height, found in _marks(timeline):
        starts = [round(call.start / scale, digits) for call in found]
        source = ColumnDataSource({"x": starts, "y": [call.row + height for call in found]})
        line = {"line_color": colour, "line_width": 3} if marker == "x" else {"line_color": "white", "line_width": 1.2}
        shape = Scatter(x="x", y="y", marker=marker, size=9 if marker == "x" else 11, fill_color=colour, **line)
        plot.add_glyph(source, shape, name=name)
    return plot


def _paid(timeline: Timeline) -> tuple[list[tuple[float, float]], bool]:
    """What model calls have taken, by the end of each; and whether that is money, or tokens if no price is known."""
    is_money = any(call.cost for call in timeline.calls)
    parts = [
        (call.end, float(call.cost or 0) if is_money else call.input_tokens + call.output_tokens)
        for call in timeline.calls
    ]
    return sorted(one for one in parts if one[1]), is_money


def _draw_steps(
    plot: figure, paid: Sequence[tuple[float, float]], rows: int, scale: float, longest: float, colour: str, *,
    is_money: bool,
) -> None:  # fmt: skip
    from bokeh.models import ColumnDataSource, Text

    sums = [*accumulate(part for _, part in paid)]
    floor, room, whole = rows + _SUMS - 0.15, _SUMS - 0.75, sums[-1]
    x = [0.0, *(time / scale for time, _ in paid), longest]
    y = [floor - room * part / whole for part in (0.0, *sums, whole)]
    plot.varea_step(x=x, y1=[floor] * len(x), y2=y, step_mode="after", fill_color=colour, fill_alpha=0.16)
    plot.step(x=x, y=y, mode="after", line_color=colour, line_width=2)
    label = _money_text(Decimal(str(round(whole, 9)))) if is_money else f"{int(whole):,}"
    plot.add_glyph(
        ColumnDataSource({"x": [longest], "y": [floor - room], "text": [label]}),
        Text(x="x", y="y", text="text", text_align="right", text_baseline="bottom", text_color="#5f35ab", y_offset=-3,
             text_font_size="11px", text_font_style="bold"),
        name="sum",
    )  # fmt: skip


def _marks(timeline: Timeline) -> Iterator[tuple[str, str, str, float, list[TimedCall]]]:
    """What is marked at the starts of bars: name, shape, colour, height in the row, and at which calls. A call may have
    several: each has a shape and a place of its own.
    """
    calls = timeline.calls
    marked = (
        ("raised", "x", "#c21f3a", 0.1, [call for call in calls if call.state == "raised"]),
        ("doubtful", "circle_cross", "#c21f3a", 0.1, [call for call in calls if call.state == "in doubt"]),
        ("loops", "inverted_triangle", "#e0a100", 0.5, [call for call in calls if call.loops]),
        ("drifts", "diamond", "#d6249f", 0.9, [call for call in calls if call.drifts]),
    )
    yield from (mark for mark in marked if mark[-1])
