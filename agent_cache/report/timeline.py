"""A recorded run as it is shown: its calls with times and rows, what they cost, and what the cache saved.

`read_timeline` reads a cassette or a journal and redacts every call again, since a file may be older than a rule.
`compared` marks where a run drifts from others. `page` and `chrome_trace` write what is here, and compute nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent_cache.errors import CassetteError
from agent_cache.recording.call_text import arguments_text, has_error, last_text, outcome_text
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.differences import pair_runs, read_run
from agent_cache.recording.drift import Baseline, DriftSeverity
from agent_cache.recording.file import Intent, RecordedCall
from agent_cache.recording.prices import Savings, model_calls, savings_of
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.journal import read_journal
from agent_cache.values.compare import escaped, plural, shortened

__all__ = [
    "CATEGORIES", "Comparison", "TimedCall", "Timeline", "compared", "model_texts", "read_timeline", "text_limit"
]  # fmt: skip

CATEGORIES: Final = (
    "hit", "validated", "shared", "miss", "write", "uncached", "blocked", "model", "request", "function", "world"
)  # fmt: skip
"""What kinds of calls there are, as in a trace; `looks.json` says what each is."""
_OF_KINDS: Final = {"llm": "model", "http": "request", "env": "world", "write": "write", "tool": "uncached"}
_ALL_TEXTS: Final = 800_000
_LEAST, _MOST = 40, 2000
_LONGEST_NAME: Final = 200


def text_limit(calls: int) -> int:
    """Characters of arguments, and of an outcome, that are shown of each of so many calls: a page stays small."""
    return max(_LEAST, min(_MOST, _ALL_TEXTS // (2 * max(calls, 1))))


class _Drift(NamedTuple):
    """One difference of the last run from those before it: severity and kind as in `DriftEvent`, one sentence, whether
    its call is in the last run (that of a missing call is in the first), and the position of the call in
    `Timeline.calls`, -1 if it is of the whole run.
    """

    severity: DriftSeverity
    kind: str
    description: str
    is_in_last: bool
    position: int


@dataclass(slots=True, kw_only=True)
class TimedCall:
    """A call of a run, redacted, its texts cut to the limit of the timeline. Other fields are those of `RecordedCall`.

    Attributes:
        index: in `Cassette.steps`; -1 for a write in doubt, which has no line there.
        identity: what tells it from other calls of its name.
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
    identity: str
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
    drifts: list[_Drift] = field(default_factory=list)

    @property
    def end(self) -> float:
        """Milliseconds from the beginning of the run."""
        return self.start + self.duration

    @property
    def short_name(self) -> str:
        """The name without its module; of a request, with the method and the URL."""
        return self.name if " " in self.name else self.name.rpartition(":")[2]


class _Track(NamedTuple):
    """Rows of one task, or of several that follow each other: whose they are, the first one, and how many."""

    label: str
    first: int
    rows: int


class _Saved(NamedTuple):
    """What hits, validated ones included, and shared calls have saved: runs of tools, and how many seconds the loads
    took whose results the hits gave again, without the time of the hits; hits of which no load is in the run.
    """

    hits: int = 0
    shared: int = 0
    seconds: float = 0.0
    unknown: int = 0


@dataclass(slots=True)
class _ToolSums:
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
    is_journal: bool
    has_times: bool
    duration: float
    calls: list[TimedCall]
    tracks: list[_Track]
    models: Savings
    saved: _Saved
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
        return {category: found[category] for category in CATEGORIES if found[category]}

    def tree(self) -> list[int]:
        """Positions of the calls, each behind the call that encloses it and what that encloses before it."""
        inner: dict[int, list[int]] = {}
        for position, call in enumerate(self.calls):
            inner.setdefault(call.parent, []).append(position)
        found: list[int] = []
        ahead = inner.get(-1, [])[::-1]
        while ahead:
            found.append(ahead.pop())
            ahead += inner.get(found[-1], [])[::-1]
        return found

    def tools(self) -> list[_ToolSums]:
        """The calls by name, those that took longest first."""
        found: dict[str, _ToolSums] = {}
        for call in self.calls:
            sums = found.setdefault(call.name, _ToolSums(call.name))
            sums.calls += 1
            sums.categories[call.category] += 1
            sums.errors += call.state == "raised"
            sums.ms += call.duration
            sums.tokens += call.input_tokens + call.output_tokens
            if call.cost is not None:
                sums.cost = (sums.cost or Decimal(0)) + call.cost
        return sorted(found.values(), key=lambda sums: (-sums.ms, sums.name))


# Reading


def read_timeline(cassette: Cassette, *, limit: int | None = None) -> Timeline:
    """Read a run."""
    rules = Redaction().joined(recorded_rules(cassette))
    outline, journal = cassette.outline, _journal_of(cassette)
    enclosing, order = outline.enclosing(), outline.starts()
    reader = _Reader(rules, text_limit(len(order)) if limit is None else limit)
    positions, calls = {index: position for position, index in enumerate(order)}, list[TimedCall]()
    for index in order:
        try:
            calls.append(reader.shown(cassette[index], index))
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            reason = f"call {cassette[index].id} is not as a recording writes it, and cannot be shown: {error}"
            raise CassetteError(escaped(reason), cassette.path) from error
        if enclosing[index] >= 0:
            calls[-1].parent = positions[enclosing[index]]
    has_times = not calls or any(call.duration or call.start for call in calls)
    if not has_times:
        for time, event in enumerate(outline.events()):
            call = calls[positions[event if event >= 0 else ~event]]
            call.start, call.duration = (time, call.duration) if event >= 0 else (call.start, time - call.start)
    duration = max((call.end for call in calls), default=0.0)
    if has_times:
        duration = max(duration, cassette.duration_ms)
    models = _money(cassette, outline.of_models, enclosing, positions, calls)
    _add_writes_in_doubt(calls, journal or (), reader, duration)
    for position, call in enumerate(calls):
        call.task = call.lane
        if 0 <= call.parent < position:
            outer = calls[call.parent]
            call.depth, call.task = outer.depth + 1, outer.task
        else:
            call.parent = -1
    return Timeline(
        title=escaped(rules.text(Path(cassette.path).name)),
        recorded_at=escaped(cassette.recorded_at or ""),
        model=escaped(rules.labelled("model", cassette.model or "")),
        is_journal=journal is not None,
        has_times=has_times,
        duration=duration,
        calls=calls,
        tracks=_laid_out(calls),
        models=models,
        saved=_saved(calls),
        cut=reader.limit,
        cut_texts=reader.cut_texts,
        notes=_notes(cassette, calls, rules, is_journal=journal is not None, has_times=has_times),
    )


class _Reader:
    """Makes calls as they are shown of those that are recorded, with texts of up to `limit` characters."""

    def __init__(self, rules: Redaction, limit: int) -> None:
        self.limit, self.cut_texts = limit, 0
        self._rules = rules
        # A name, redacted: there are few of them.
        self._text = cache(lambda text: shortened(escaped(rules.text(text)), _LONGEST_NAME))

    def shown(self, recorded: RecordedCall, index: int) -> TimedCall:
        """A call as it is shown."""
        call = redact_call(recorded, self._rules)
        asked, answer = model_texts(call) if call.kind == "llm" else ("", "")
        arguments = repr(call.key) if call.key is not None else arguments_text(call, 2 * self.limit, 2 * self.limit)
        category = call.source if call.source in CATEGORIES else "write" if call.is_write else ""
        return TimedCall(
            id=call.id,
            index=index,
            identity=recorded.digest + recorded.asker,
            kind=call.kind,
            name=self._text(call.name),
            category=category or _OF_KINDS.get(call.kind, "function"),
            state=_state(call),
            arguments=self._cut(asked or arguments),
            outcome=self._cut(answer.strip() or outcome_text(call, 2 * self.limit)),
            start=max(call.started_ms, 0.0),
            duration=max(call.duration_ms, 0.0),
            lane=call.lane,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cache_read_tokens=call.cache_read_tokens,
            model=self._text(call.model or ""),
            tags=tuple(self._text(tag) for tag in call.tags),
            loops=tuple(map(self._text, _loops(call.outcome))),
        )

    def _cut(self, text: str) -> str:
        text = escaped(text)
        self.cut_texts += len(text) > self.limit
        return shortened(text, self.limit)


def model_texts(call: RecordedCall) -> tuple[str, str]:
    """The last message that a model was sent, and its answer: empty where a call has them in no known form.

    Known are the requests and answers of OpenAI (both APIs), Anthropic and Google, and functions with a ``prompt``.
    """
    return last_text(call.arguments) or "", _answer_of(call.outcome)


_ANSWERED = (
    "choices", "message", "delta", "candidates", "content", "parts", "output", "output_text", "text", "json", "value",
    "typed", "any", "response", "events", "chunks", "data",
)  # fmt: skip


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


def _state(call: RecordedCall) -> str:
    if has_error(call):
        return "raised"
    ends = [call.outcome, call.outcome.get("stream"), call.outcome.get("response")]
    ends += [one.get("end") for one in ends if isinstance(one, dict)]
    states = (state for state in ("cancelled", "unfinished") if any(isinstance(e, dict) and state in e for e in ends))
    return next(states, "")


def _loops(outcome: dict[str, Any]) -> list[str]:
    """What sessions have said about a call."""
    instead = outcome.get("instead")
    found = [f"{instead[1]}: answered by a {instead[0].replace('_', ' ')}"] if instead else []
    return found + [f"{text}: {kind}" for kind, text, *_ in outcome.get("loops", ())]


def _notes(
    cassette: Cassette, calls: Sequence[TimedCall], rules: Redaction, *, is_journal: bool, has_times: bool
) -> list[str]:
    ended = "" if cassette.trailer is None else escaped(rules.text(cassette.trailer.ended))
    doubts = sum(call.state == "in doubt" for call in calls)
    notes = {
        "The run has no calls.": not calls,
        "The recording was killed: calls may be missing.": cassette.is_partial and not is_journal,
        "The journal is not sealed: its run goes on, or its process has died, so calls may be missing.":
            cassette.is_partial and is_journal,
        f"The run {ended}.": not cassette.is_partial and ended != "returned",
        f"{plural(doubts, 'write')} in doubt: begun, and without an outcome. Its end is not known.": doubts,
        "The recording has no times: calls are drawn in the order in which they started and ended.": not has_times,
    }  # fmt: skip
    return [text for text, is_so in notes.items() if is_so]


# Writes in doubt


def _journal_of(cassette: Cassette) -> list[Intent] | None:
    """The writes in doubt of a journal; None if the cassette is none."""
    if cassette.header.log is not True or not cassette.path:
        return None
    try:
        return read_journal(cassette.path).in_doubt
    except (OSError, CassetteError):  # a recording; or it is gone, or written meanwhile: its calls have been read
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


def _laid_out(calls: Sequence[TimedCall]) -> list[_Track]:
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
        tracks.append(_Track(label, row, height))
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
    cassette: Cassette, of_models: Iterable[int], enclosing: Sequence[int], positions: Mapping[int, int],
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


def _saved(calls: Sequence[TimedCall]) -> _Saved:
    """What hits and shared calls have saved, by the loads of the same run."""
    loads: dict[tuple[str, str], float] = {}
    hits = unknown = 0
    ms = 0.0
    for call in calls:
        if call.category == "miss":
            loads[call.name, call.identity] = call.duration
        if call.category in ("hit", "validated"):
            load = loads.get((call.name, call.identity))
            hits, unknown = hits + 1, unknown + (load is None)
            ms += max((load or 0.0) - call.duration, 0.0)
    return _Saved(hits, sum(call.category == "shared" for call in calls), ms / 1000, unknown)


# Drift


class Comparison(NamedTuple):
    """A run compared with others: all drifts, each also in `TimedCall.drifts` of its call; positions of the same call
    in the first run and in the last; why the runs were not compared, empty if they were.
    """

    drifts: tuple[_Drift, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    refusal: str = ""


def compared(timelines: Sequence[Timeline], cassettes: Sequence[Cassette]) -> Comparison:
    """Compare the last run with those before it, and mark in both where it drifts.

    What varies between several runs before it is accepted. A call that is missing in the last is marked in the first.
    """
    rules = Redaction()
    for cassette in cassettes:
        rules = rules.joined(recorded_rules(cassette))
    for cassette in cassettes:
        cassette.steps = [redact_call(call, rules) for call in cassette.steps]  # drifts show the values that differ
    try:
        found = Baseline(*cassettes[:-1]).compare(cassettes[-1])
    except CassetteError as error:
        return Comparison(refusal=escaped(rules.text(error.reason)))
    sides = timelines[0], timelines[-1]
    at_id = [{call.id: at for at, call in enumerate(side.calls)} for side in sides]
    drifts = []
    for event in found:
        is_in_last = event.kind != "missing"
        at, text = at_id[is_in_last].get(event.call_id or 0, -1), escaped(rules.text(event.description))
        drifts.append(_Drift(event.severity, event.kind, text, is_in_last or at < 0, at))
        if at >= 0:
            sides[is_in_last].calls[at].drifts.append(drifts[-1])
    runs = pair_runs(read_run(cassettes[0]), read_run(cassettes[-1]))
    pairs = sorted((at_id[0][one.call.id], at_id[1][other.call.id]) for one, other, _ in runs if one and other)
    return Comparison(tuple(drifts), tuple(pairs))
