"""A recorded run as it is shown: its calls with times and rows, what they cost, and what the cache saved.

`read_timeline` reads a cassette or a journal and redacts every call again, since a file may be older than a rule.
`compared` marks where a run drifts from others. `page` and `chrome_trace` write what is here, and compute nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from agent_cache.errors import CassetteError
from agent_cache.recording.call_text import arguments_text, has_error, outcome_text
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.drift import Baseline, DriftSeverity
from agent_cache.recording.file import Intent, RecordedCall
from agent_cache.recording.prices import Savings, model_calls, savings_of
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.journal import read_journal
from agent_cache.values.compare import escaped, shortened

__all__ = [
    "CATEGORIES", "Comparison", "Drift", "Saved", "TimedCall", "Timeline", "ToolSums", "Track", "compared",
    "model_texts", "read_timeline", "text_limit",
]  # fmt: skip

# What calls are


class Category(NamedTuple):
    """What kind of call a bar or a row shows: the word for it, as in a trace, and one sentence."""

    name: str
    meaning: str


CATEGORIES: tuple[Category, ...] = tuple(Category(*row) for row in (
    ("hit", "answered from the cache"),
    ("shared", "waited for the same call that was running"),
    ("miss", "a read tool ran, and its result was cached"),
    ("write", "a tool or a request that changes something"),
    ("uncached", "a tool ran, and nothing was cached"),
    ("blocked", "refused by a session, and did not run"),
    ("model", "a call of a language model"),
    ("request", "an HTTP request"),
    ("function", "a function that encloses other calls"),
    ("world", "a time, a random number or a name of the environment"),
))  # fmt: skip
_NAMES = frozenset(category.name for category in CATEGORIES)
_OF_KINDS = {"llm": "model", "http": "request", "env": "world", "write": "write", "tool": "uncached"}


def _category(call: RecordedCall) -> str:
    if call.source in _NAMES:
        return call.source
    if call.is_write:
        return "write"
    return _OF_KINDS.get(call.kind, "function")


@dataclass(slots=True)
class Drift:
    """One difference of the last run from those before it: severity and kind as in `DriftEvent`, one sentence, whether
    its call is in the last run (that of a missing call is in the first), and the position of the call in
    `Timeline.calls`, -1 if it is of the whole run.
    """

    severity: DriftSeverity
    kind: str
    description: str
    is_in_last: bool = True
    position: int = -1


@dataclass(slots=True, kw_only=True)
class TimedCall:
    """A call of a run, redacted, its texts cut to the limit of the timeline. Other fields are those of `RecordedCall`.

    Attributes:
        index: in `Cassette.steps`; -1 for a write in doubt, which has no line there.
        state: ``""`` if it answered, else ``raised``, ``cancelled``, ``unfinished`` or ``in doubt``.
        start, duration: milliseconds from the beginning of the run.
        parent, depth: position of the call that encloses it in `Timeline.calls`, -1 if none does, and how many do.
        task: the lane of the outermost call around it: tasks that a call waits for are drawn inside of it.
        row: where its bar is drawn, from 0 at the top.
        cost: US dollars; None if it is no model call that counts, or its price is not known.
        loops, drifts: what sessions said about it, and where it differs from the run that it is compared with.
    """

    id: int
    index: int
    kind: str
    name: str
    category: str
    state: str
    arguments: str
    outcome: str
    start: float
    duration: float
    lane: int
    parent: int = -1
    depth: int = 0
    task: int = 0
    row: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    model: str = ""
    cost: Decimal | None = None
    tags: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    drifts: list[Drift] = field(default_factory=list)

    @property
    def end(self) -> float:
        """Milliseconds from the beginning of the run."""
        return self.start + self.duration

    @property
    def short_name(self) -> str:
        """The name without its module; of a request, with the method and the URL."""
        return self.name if " " in self.name else self.name.rpartition(":")[2]


class Track(NamedTuple):
    """Rows of one task, or of several that follow each other: whose they are, the first one, and how many."""

    label: str
    first: int
    rows: int


class Saved(NamedTuple):
    """What hits and shared calls have saved: runs of tools, and how many seconds the loads took whose results the hits
    gave again, without the time of the hits; hits of which no load is in the run.
    """

    hits: int = 0
    shared: int = 0
    seconds: float = 0.0
    unknown: int = 0


@dataclass(slots=True)
class ToolSums:
    """The calls of one name: how many, of each category, how many raised, their durations together, and of those that
    are model calls the tokens and US dollars, as far as known.
    """

    name: str
    calls: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    ms: float = 0.0
    tokens: int = 0
    cost: Decimal | None = None


@dataclass(slots=True, kw_only=True)
class Timeline:
    """A run as it is shown.

    Attributes:
        title: name of the file.
        ended: ``returned``, or by which exception it ended; empty if the process was killed, or goes on.
        has_times: whether times were recorded. If not, times count starts and ends of calls.
        calls: in the order in which they started.
        tracks: the rows of the timeline from the top.
        models: the sum of the model calls.
        cut, cut_texts: characters after which arguments and outcomes are cut, and how many were.
        notes: one sentence for each thing that a reader should know.
    """

    title: str
    recorded_at: str
    model: str
    ended: str
    is_journal: bool
    has_times: bool
    duration: float
    calls: list[TimedCall]
    tracks: list[Track]
    models: Savings
    saved: Saved
    cut: int
    cut_texts: int
    notes: list[str]

    @property
    def rows(self) -> int:
        """Rows of the timeline."""
        return sum(track.rows for track in self.tracks)

    @property
    def categories(self) -> dict[str, int]:
        """How many calls there are of each category, in the order of `CATEGORIES`."""
        found = Counter(call.category for call in self.calls)
        return {category.name: found[category.name] for category in CATEGORIES if found[category.name]}

    def tree(self) -> list[int]:
        """Positions of the calls, each behind the call that encloses it and what that encloses before it."""
        inner: dict[int, list[int]] = {}
        for position, call in enumerate(self.calls):
            inner.setdefault(call.parent, []).append(position)
        found: list[int] = []
        ahead = inner.get(-1, [])[::-1]
        while ahead:
            position = ahead.pop()
            found.append(position)
            ahead += inner.get(position, [])[::-1]
        return found

    def tools(self) -> list[ToolSums]:
        """The calls by name, those that took longest first."""
        found: dict[str, ToolSums] = {}
        for call in self.calls:
            sums = found.setdefault(call.name, ToolSums(call.name))
            sums.calls += 1
            sums.categories[call.category] += 1
            sums.errors += call.state == "raised"
            sums.ms += call.duration
            sums.tokens += call.input_tokens + call.output_tokens
            if call.cost is not None:
                sums.cost = (sums.cost or Decimal(0)) + call.cost
        return sorted(found.values(), key=lambda sums: (-sums.ms, sums.name))


class Comparison(NamedTuple):
    """A run compared with others: all drifts, each also in `TimedCall.drifts` of its call; positions of the same call
    in the first run and in the last; why the runs were not compared, empty if they were.
    """

    drifts: tuple[Drift, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    refusal: str = ""


_ALL_TEXTS = 800_000
_LEAST, _MOST = 40, 2000
_LONGEST_NAME = 200
_LONGEST_TIME = 1e12


def text_limit(calls: int) -> int:
    """Characters of arguments, and of an outcome, that are shown of each of so many calls: a page stays small."""
    return max(_LEAST, min(_MOST, _ALL_TEXTS // (2 * max(calls, 1))))


# Reading


def read_timeline(
    cassette: Cassette, *, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> Timeline:
    """Read a run."""
    rules = Redaction().joined(recorded_rules(cassette))
    outline = cassette.outline
    enclosing, order = outline.enclosing(), outline.starts()
    reader = _Reader(rules, text_limit(len(order)) if limit is None else limit)
    positions = array("q", bytes(8 * len(order)))
    for position, index in enumerate(order):
        positions[index] = position
        recorded = cassette[index]
        try:
            reader.add(recorded, index)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            reason = f"call {recorded.id} is not as a recording writes it, and cannot be shown: {error}"
            raise CassetteError(escaped(reason), cassette.path) from error
        if progress is not None:
            progress(position + 1)
    calls = reader.calls
    for index, outer in enumerate(enclosing):
        if outer >= 0:
            calls[positions[index]].parent = positions[outer]
    has_times = not calls or any(call.duration or call.start for call in calls)
    if not has_times:
        for time, event in enumerate(outline.events()):
            call = calls[positions[event if event >= 0 else ~event]]
            call.start, call.duration = (time, call.duration) if event >= 0 else (call.start, time - call.start)
    duration = max((call.end for call in calls), default=0.0)
    if has_times:
        duration = max(duration, cassette.duration_ms)
    models = _money(cassette, outline.of_models, enclosing, positions, calls)
    journal = _journal_of(cassette)
    if journal is not None:
        _add_writes_in_doubt(calls, journal, reader, duration)
    _set_depths(calls)
    ended = "" if cassette.trailer is None else escaped(rules.text(cassette.trailer.ended))
    timeline = Timeline(
        title=escaped(rules.text(Path(cassette.path).name)),
        recorded_at=escaped(cassette.recorded_at or ""),
        model=escaped(rules.labelled("model", cassette.model or "")),
        ended=ended,
        is_journal=journal is not None,
        has_times=has_times,
        duration=duration,
        calls=calls,
        tracks=_laid_out(calls),
        models=models,
        saved=_saved(calls, reader.identities),
        cut=reader.limit,
        cut_texts=reader.cut_texts,
        notes=[],
    )
    timeline.notes = _notes(timeline, cassette)
    return timeline


class _Reader:
    """Makes calls as they are shown of those that are recorded, with texts of up to `limit` characters.

    `identities` has the name and the digest of each, by `TimedCall.index`.
    """

    def __init__(self, rules: Redaction, limit: int) -> None:
        self.limit = limit
        self.calls: list[TimedCall] = []
        self.identities: dict[int, tuple[str, str]] = {}
        self.cut_texts = 0
        self._rules = rules
        self._known: dict[str, str] = {}

    def add(self, recorded: RecordedCall, index: int) -> None:
        self.identities[index] = recorded.name, recorded.digest + recorded.asker
        self.calls.append(self.shown(recorded, index))

    def shown(self, recorded: RecordedCall, index: int) -> TimedCall:
        call = redact_call(recorded, self._rules)
        asked, answer = model_texts(call) if call.kind == "llm" else ("", "")
        arguments = repr(call.key) if call.key is not None else arguments_text(call, 2 * self.limit, 2 * self.limit)
        return TimedCall(
            id=call.id,
            index=index,
            kind=call.kind,
            name=self._text(call.name),
            category=_category(call),
            state=_state(call),
            arguments=self._cut(asked or arguments),
            outcome=self._cut(answer.strip() or outcome_text(call, 2 * self.limit)),
            start=_checked(call.started_ms),
            duration=_checked(call.duration_ms),
            lane=call.lane,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cache_read_tokens=call.cache_read_tokens,
            model=self._text(call.model or ""),
            tags=tuple(self._text(tag) for tag in call.tags),
            loops=_loops(call.outcome),
        )

    def _text(self, text: str) -> str:
        """A name, redacted: there are few of them."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = shortened(escaped(self._rules.text(text)), _LONGEST_NAME)
        return found

    def _cut(self, text: str) -> str:
        text = escaped(text)
        self.cut_texts += len(text) > self.limit
        return shortened(text, self.limit)


def model_texts(call: RecordedCall) -> tuple[str, str]:
    """The last message that a model was sent, and its answer: empty where a call has them in no known form.

    Known are the requests and answers of OpenAI (both APIs), Anthropic and Google, and functions with a ``prompt``.
    """
    return _last_message(call.arguments), _answer_of(call.outcome)


_ASKED = ("messages", "input", "contents", "prompt", "question", "text", "body", "json", "request")
_ANSWERED = (
    "choices", "message", "delta", "candidates", "content", "parts", "output", "output_text", "text", "json", "value",
    "typed", "any", "response", "events", "chunks", "data",
)  # fmt: skip


def _last_message(value: Any, depth: int = 0) -> str:
    if isinstance(value, str):
        return value if depth else ""
    if isinstance(value, list) and value:
        return _last_message(value[-1], depth + 1)
    if isinstance(value, dict) and depth < 8:
        for name in ("content", "parts", *_ASKED):
            if found := _last_message(value.get(name), depth + 1):
                return found
    return ""


def _answer_of(value: Any, depth: int = 0) -> str:
    """The texts of an answer, those of its chunks one after the other, and the calls of tools that it asks for."""
    if isinstance(value, str):
        return value if depth > 1 else ""
    if isinstance(value, list):
        return "".join(_answer_of(one, depth + 1) for one in value)
    if not isinstance(value, dict) or depth > 12:
        return ""
    inner = value.get("function")
    function = inner if isinstance(inner, dict) else value
    if value.get("type") in ("function", "tool_use", "function_call") and isinstance(function.get("name"), str):
        return f" [{function['name']}]"
    if "stream" in value and depth == 0:
        return _answer_of(value["stream"], depth + 1)
    found = next((text for name in _ANSWERED if (text := _answer_of(value.get(name), depth + 1))), "")
    return found + _answer_of(value.get("tool_calls") or [], depth + 1)


def _checked(ms: float) -> float:
    """A time that a file has, which may have been edited."""
    return min(max(ms, 0.0), _LONGEST_TIME)


def _state(call: RecordedCall) -> str:
    if has_error(call):
        return "raised"
    ends = [call.outcome, call.outcome.get("stream"), call.outcome.get("response")]
    ends += [one.get("end") for one in ends if isinstance(one, dict)]
    for state in ("cancelled", "unfinished"):
        if any(isinstance(one, dict) and state in one for one in ends):
            return state
    return ""


def _loops(outcome: dict[str, Any]) -> tuple[str, ...]:
    """What sessions have said about a call. Files are edited by hand, so other forms are left out."""
    found = []
    instead, loops = outcome.get("instead"), outcome.get("loops")
    if isinstance(instead, list) and len(instead) == 2:
        found.append(f"{instead[1]}: answered by a {str(instead[0]).replace('_', ' ')}")
    marks = loops if isinstance(loops, list) else []
    found += [f"{one[1]}: {one[0]}" for one in marks if isinstance(one, list) and len(one) >= 2]
    return tuple(shortened(escaped(one), _LONGEST_NAME) for one in found)


def _notes(timeline: Timeline, cassette: Cassette) -> list[str]:
    notes = []
    if not timeline.calls:
        notes.append("The run has no calls.")
    if cassette.is_partial and not timeline.is_journal:
        notes.append("The recording was killed: calls may be missing.")
    elif cassette.is_partial:
        notes.append("The journal is not sealed: its run goes on, or its process has died, so calls may be missing.")
    elif timeline.ended != "returned":
        notes.append(f"The run {timeline.ended}.")
    if doubts := sum(call.state == "in doubt" for call in timeline.calls):
        several = "" if doubts == 1 else "s"
        notes.append(f"{doubts:,} write{several} in doubt: begun, and without an outcome. Its end is not known.")
    if not timeline.has_times:
        notes.append("The recording has no times: calls are drawn in the order in which they started and ended.")
    return notes


def _set_depths(calls: Sequence[TimedCall]) -> None:
    for position, call in enumerate(calls):
        call.task = call.lane
        if 0 <= call.parent < position:
            outer = calls[call.parent]
            call.depth, call.task = outer.depth + 1, outer.task
        else:
            call.parent = -1


# Writes in doubt


def _journal_of(cassette: Cassette) -> list[Intent] | None:
    """The writes in doubt of a journal; None if the cassette is none."""
    if not cassette.header.is_log or not cassette.path:
        return None
    try:
        with Path(cassette.path).open("rb") as file:
            is_journal = file.read(100).startswith(b'{"agent_cache_journal"')
        return read_journal(cassette.path).in_doubt if is_journal else None
    except (OSError, CassetteError):  # gone, or written meanwhile: its calls have been read
        return None


def _add_writes_in_doubt(calls: list[TimedCall], intents: Iterable[Intent], reader: _Reader, duration: float) -> None:
    """Mark the writes that have begun and have no outcome, and add those that have no line behind the others."""
    positions = {call.id: position for position, call in enumerate(calls)}
    for intent in intents:
        if intent.id in positions:  # cancelled, or cut off
            calls[positions[intent.id]].state = "in doubt"
            continue
        start = calls[positions[intent.after]].end if intent.after in positions else 0.0
        recorded = RecordedCall(
            id=intent.id, kind=intent.kind, name=intent.name, arguments=intent.arguments, lane=intent.lane,
            outcome={"unfinished": True}, source="write", tags=intent.tags, started_ms=start,
            duration_ms=max(duration - start, 0.0),
        )  # fmt: skip
        call = reader.shown(recorded, -1)
        call.state, call.outcome, call.parent = "in doubt", "not known", positions.get(intent.parent or 0, -1)
        positions[intent.id] = len(calls)
        calls.append(call)


# Rows


def _laid_out(calls: Sequence[TimedCall]) -> list[Track]:
    """Give each call a row, so that no two overlap and each is below the call that encloses it.

    Tasks that follow each other have the same rows: there may be thousands of short ones, and few at a time.
    """
    tasks: dict[int, list[TimedCall]] = {}
    for call in calls:
        tasks.setdefault(call.task, []).append(call)
    first = {task: min(call.start for call in members) for task, members in tasks.items()}
    bands: list[tuple[list[int], int, float]] = []  # tasks, how many rows, and when the last of them ends
    for task in sorted(tasks, key=lambda task: (task != 0, first[task], task)):
        members = tasks[task]
        height, end = _stack(members, calls), max(call.end for call in members)
        free = (number for number, (own, _, last) in enumerate(bands) if last <= first[task] and own[0] != 0)
        if (number := next(free, None)) is None:
            bands.append(([task], height, end))
        else:
            bands[number] = [*bands[number][0], task], max(height, bands[number][1]), end
    tracks, row = [], 0
    for own, height, _ in bands:
        for call in (call for task in own for call in tasks[task]):
            call.row += row
        label = "main task" if own[0] == 0 else f"task {own[0]}" if len(own) == 1 else f"{len(own)} tasks"
        tracks.append(Track(label, row, height))
        row += height
    return tracks


def _stack(members: Sequence[TimedCall], calls: Sequence[TimedCall]) -> int:
    """Give the calls of a task rows from 0, and return how many these are."""
    ends: list[float] = []
    for call in sorted(members, key=lambda call: (call.start, call.depth, -call.duration)):
        row = calls[call.parent].row + 1 if call.parent >= 0 else 0
        while row < len(ends) and ends[row] > call.start:
            row += 1
        ends.extend([float("-inf")] * (row + 1 - len(ends)))
        ends[row] = call.end
        call.row = row
    return len(ends)


# Money and savings


def _money(
    cassette: Cassette, of_models: Iterable[int], enclosing: Sequence[int], positions: Sequence[int],
    calls: Sequence[TimedCall],
) -> Savings:  # fmt: skip
    """Set what model calls cost, and return their sum. Of calls inside of each other, one has the tokens of all."""
    ids = {call.id: call for call in calls}
    total = Savings()
    for recorded in model_calls(cassette.steps, of_models, enclosing.__getitem__):
        one = savings_of([recorded], cassette.recorded_at)
        total += one
        ids[recorded.id].cost = None if one.unpriced else one.cost
    for index in of_models:
        call = outer = calls[positions[index]]
        while call.cost is None and outer.parent >= 0:
            outer = calls[outer.parent]
            if outer.kind == "llm" and (outer.input_tokens or outer.output_tokens):
                call.input_tokens = call.output_tokens = call.cache_read_tokens = 0
    return total


def _saved(calls: Sequence[TimedCall], identities: dict[int, tuple[str, str]]) -> Saved:
    """What hits and shared calls have saved, by the loads of the same run."""
    loads: dict[tuple[str, str], float] = {}
    hits = shared = unknown = 0
    ms = 0.0
    for call in calls:
        identity = identities.get(call.index, (call.name, ""))
        if call.category == "miss":
            loads[identity] = call.duration
        shared += call.category == "shared"
        if call.category == "hit":
            hits += 1
            unknown += identity not in loads
            ms += max(loads.get(identity, 0.0) - call.duration, 0.0)
    return Saved(hits, shared, ms / 1000, unknown)


# Drift


def compared(timelines: Sequence[Timeline], cassettes: Sequence[Cassette]) -> Comparison:
    """Compare the last run with those before it, and mark in both where it drifts.

    What varies between several runs before it is accepted, as by `Baseline`. A call that is missing in the last run is
    marked in the first.
    """
    rules = Redaction()
    for cassette in cassettes:
        own = Redaction().joined(recorded_rules(cassette))
        rules = rules.joined(recorded_rules(cassette))
        cassette.steps = _RedactedCalls(cassette.steps, own)  # drifts show the values that differ
    try:
        found, pairs = Baseline(*cassettes[:-1]).compare_calls(cassettes[-1])
    except CassetteError as error:
        return Comparison(refusal=escaped(rules.text(error.reason)))
    first, last = timelines[0], timelines[-1]
    places = [{call.index: at for at, call in enumerate(one.calls)} for one in (first, last)]
    index_of = [one.outline.index_of() for one in (cassettes[0], cassettes[-1])]
    drifts = []
    for event in found:
        drift = Drift(event.severity, event.kind, escaped(rules.text(event.description)))
        drifts.append(drift)
        side, timeline = (0, first) if event.kind == "missing" else (1, last)
        at = None if event.call_id is None else places[side].get(index_of[side](event.call_id))
        if at is not None:
            drift.is_in_last, drift.position = side == 1, at
            timeline.calls[at].drifts.append(drift)
    both = ((places[0].get(one), places[1].get(other)) for one, other in pairs)
    return Comparison(
        tuple(drifts), tuple((one, other) for one, other in both if one is not None and other is not None)
    )


class _RedactedCalls(Sequence[RecordedCall]):
    """The calls of a cassette, redacted when they are read."""

    def __init__(self, calls: Sequence[RecordedCall], rules: Redaction) -> None:
        self._calls, self._rules = calls, rules

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: Any) -> Any:
        return redact_call(self._calls[index], self._rules)
