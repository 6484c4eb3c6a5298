"""Where two values and two runs differ: divergences, ``cassette diff`` and drift show what is found here.

In values, elements of lists are aligned, and texts that are JSON are compared as what they say. Calls are compared lane
by lane, a *lane* being what one task does in order: docs/explanation/drift.md says which call is which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import islice, starmap
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import common_length, encode, encode_sorted

T = TypeVar("T")

ABSENT: Final[Any] = object()  # stands for a value that only the other side has

Places: TypeAlias = dict[str, tuple[Any, Any]]
"""By path, ``result.items[*].price``: the value on the one side and on the other; None if it is not there."""
KEY: Final = r'(?:\.[^\s.:\[\]"]+|\["(?:[^"\\]|\\.)*"\])'  # a pattern of the step of a path to a key of an object
_LONG = 60  # up to which texts are shown as a whole
_AROUND = 24
_MAX_SHOWN = 100
_MAX_LINES = 12
_MAX_ELEMENTS = 1000
_MAX_DEPTH = 50
_ELEMENT = re.compile(r"\[\d+\]")
_PLAIN_KEY = re.compile(r"[^\s.:*\[\]\"]+")
_WORD = re.compile(r"\w+|\W")


def differences(was: Any, now: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any, Any]]:
    """The places where two values differ: the path, as ``result.items[2].price``, and both values, or `ABSENT`."""
    if type(was) is str and type(now) is str:
        one, other = read_json(was), read_json(now)
        if one is not None and other is not None:
            was, now = one, other
    if was is not ABSENT and now is not ABSENT and encode_sorted(was) == encode_sorted(now):  # 1, 1.0 and True are not
        return
    if type(was) is dict and type(now) is dict and depth < _MAX_DEPTH:
        for name in {**was, **now}:
            yield from differences(was.get(name, ABSENT), now.get(name, ABSENT), joined(path, name), depth + 1)
    elif type(was) is list and type(now) is list and max(len(was), len(now)) <= _MAX_ELEMENTS and depth < _MAX_DEPTH:
        for one, other, number in _aligned(was, now):
            yield from differences(one, other, f"{path}[{number}]", depth + 1)
    else:
        yield path, was, now


def read_json(text: str) -> Any:
    """The object or list that a text is as JSON, else None."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def joined(path: str, key: str) -> str:
    """The path to a key of an object. Other keys than words stand in brackets and quotes."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{encode_sorted(key).decode()}]"


def places_of(was: Any, now: Any, most: int = 1_000) -> Places:
    """Where two values differ, with the first two values at each place; lists are one place for all elements."""
    found: Places = {}
    for path, one, other in islice(differences(was, now, ""), most):
        pair = None if one is ABSENT else one, None if other is ABSENT else other
        found.setdefault(_ELEMENT.sub("[*]", path), pair)
    return found


def _aligned(was: list[Any], now: list[Any]) -> Iterator[tuple[Any, Any, int]]:
    """Pairs of elements that differ, and the number of the first of them. What was added or removed has no other."""
    ones, others = list(map(encode_sorted, was)), list(map(encode_sorted, now))
    first = common_length(ones, others)
    matcher = SequenceMatcher(None, ones[first:], others[first:], autojunk=False)
    for tag, begin, end, begin_now, end_now in matcher.get_opcodes():
        if tag == "equal":
            continue
        for at in range(first, first + max(end - begin, end_now - begin_now)):
            one = was[begin + at] if begin + at < end + first else ABSENT
            other = now[begin_now + at] if begin_now + at < end_now + first else ABSENT
            yield one, other, begin_now + at if one is ABSENT else begin + at


def changes(was: Any, now: Any, path: str) -> list[str]:
    """Lines that say where `now` differs from `was`, each with the path to the place."""
    lines: list[str] = []
    for place, one, other in differences(was, now, path):
        if type(one) is str and type(other) is str and max(len(one), len(other)) > _LONG:
            lines.append(f"{place}{_change_of_text(one, other)}")
        else:
            texts = [one, other] if _short(one) != _short(other) else [repr(one), repr(other)]  # "1" and 1
            lines.append(f"{place}: {' -> '.join(map(_short, texts))}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return lines


def _change_of_text(was: str, now: str) -> str:
    """What stands between the words that both texts begin and end with, and a little around it."""
    ones, others = _WORD.findall(was), _WORD.findall(now)
    first = common_length(ones, others)
    last = common_length(ones[first:][::-1], others[first:][::-1])
    before, after = "".join(ones[:first]), "".join(ones[len(ones) - last :])
    removed, added = ("".join(one[first : len(one) - last]) for one in (ones, others))
    line = f" line {before.count(chr(10)) + 1}: " if "\n" in was else ": "
    head, tail = before.rpartition("\n")[2][-_AROUND:], after.partition("\n")[0][:_AROUND]
    change = (f"[-{_short(removed)}-]" if removed else "") + (f"{{+{_short(added)}+}}" if added else "")
    return f"{line}{head}{change}{tail}"


def _short(value: Any) -> str:
    text = "(none)" if value is ABSENT else value.replace("\n", "\\n") if type(value) is str else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


# Which call of one run is which call of another

_MAX_COMPARED = 900  # pairs of calls of one name, up to which all are compared: of more, those in the same place


@dataclass(slots=True, eq=False)
class Step:
    """A call in its run.

    Attributes:
        number: its position in the order in which calls started.
        chain: the names of the calls that enclose it.
        identity: what tells it apart, as far as it counts: its arguments, and its key and its asker if it has any.
        ended: how it ended, as far as it counts: as `ending_of` has it.
        key: the same for the same call; `outcome`: the same for the same ending.
    """

    call: RecordedCall
    number: int
    chain: tuple[str, ...]
    identity: dict[str, Any]
    ended: dict[str, Any]
    key: Hashable
    outcome: bytes


class Match(NamedTuple):
    """A call of the first run, and the one of the second run that it is. There is one of them at least.

    `over` gives, once, the calls of the first run that it was moved over in its task, which may be thousands each.
    """

    one: Step | None
    other: Step | None
    over: Iterator[Step] = iter(())


def step_of(call: RecordedCall, chain: tuple[str, ...], number: int = 0) -> Step:
    """A call in its run."""
    given = {"arguments": call.arguments, "key": call.key, "asker": call.asker or None}
    identity = {name: one for name, one in given.items() if one is not None}
    ended = ending_of(call.outcome)
    return Step(call, number, chain, identity, ended, (chain, call.digest + call.asker), digest_of(ended))


def digest_of(value: Any) -> bytes:
    """16 bytes that are the same for the same plain data."""
    return blake2b(encode(value), digest_size=16).digest()


def ending_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What of an outcome counts: ``result`` or ``error``, or that it was ``cancelled`` or is ``unfinished``.

    Of a response, the status and the body count; one of a status from 400 is an error (RFC 9110, 15.5). Headers do not:
    most change with each request.
    """
    for name in ("error", "cancelled", "unfinished"):
        if name in outcome:
            return {name: outcome[name]}
    inner = outcome.get("stream") or outcome.get("response")
    if inner is None:
        rest = {name: one for name, one in outcome.items() if name not in ("instead", "loops", "awaited")}
        return {"result": next((outcome[one] for one in _RESULTS if one in outcome), rest)}
    ended = ending_of(inner.get("end") or {})
    shown = {name: one for name, one in inner.items() if name not in _NO_CONTENT}
    if "stream" in outcome:
        shown["chunks"] = [ending_of(chunk).get("result") for chunk in inner.get("chunks", ())]
    status = shown.get("status")
    if "result" not in ended:
        return ended if "error" in ended else ended | {"result": shown}
    is_error = isinstance(status, int) and status >= 400
    return {"error": {"type": f"HTTP {status}", **shown}} if is_error else {"result": shown}


_RESULTS = ("value", "typed", "any", "object", "unencodable")
_NO_CONTENT = ("headers", "spelling", "reason", "charset", "end")


def read_run(cassette: Cassette) -> list[Step]:
    """The calls of a recording in the order in which they started."""
    enclosing = cassette.outline.enclosing()
    chains: dict[int, tuple[str, ...]] = {-1: (), -2: ("",)}
    steps: list[Step] = []
    for number, index in enumerate(cassette.outline.starts()):
        call, chain = cassette.steps[index], chains[enclosing[index]]
        chains[index] = (*chain, call.name)
        steps.append(step_of(call, chain, number))
    return steps


def pair_runs(
    base: Sequence[Step], new: Sequence[Step], count: Callable[[Step, Step], int] | None = None
) -> list[Match]:
    """Say of each call of two runs which one of the other run it is. `count` says in how many places two differ."""
    found, count = list[Match](), count or (lambda one, other: len(places_of(one.identity, other.identity)))
    left, right = dict.fromkeys(base), dict.fromkeys(new)

    def take(pairs: Iterable[tuple[Step, Step]]) -> list[tuple[Step, Step]]:
        taken = list(pairs)
        for one, other in taken:
            del left[one], right[other]
        return taken

    def same(ones: Iterable[Step], others: Iterable[Step]) -> list[tuple[Step, Step]]:
        pairs: list[tuple[Step, Step]] = []
        for of in (_outcome, _key):
            pairs += take(_equal(of, filter(left.__contains__, ones), filter(right.__contains__, others)))
        return pairs

    twins = _twin_lanes(base, new)
    lanes = _grouped(new, lambda step: (twins.get(step.call.lane), step.chain))
    for lane, ones in _grouped(base, lambda step: (step.call.lane, step.chain)).items():
        others = lanes.get(lane, [])
        ordered = take(_in_order(ones, others, _outcome))
        moved = same(ones, others)
        pairs = ordered + moved
        found += starmap(Match, ordered)
        found += (Match(one, other, _moved_over(one, other, pairs)) for one, other in moved)
    found += starmap(Match, same(base, new))
    known = {step.key for step in base}  # what the base has, too, is no other call with changed arguments
    groups = _grouped((step for step in right if step.key not in known), _name)
    for name, ones in _grouped(left, _name).items():
        found += starmap(Match, take(_nearest(ones, groups.get(name, []), count)))
    return [*found, *(Match(None, other) for other in right), *(Match(one, None) for one in left)]


_key: Callable[[Step], Hashable] = attrgetter("key")
_outcome: Callable[[Step], Hashable] = attrgetter("key", "outcome")
_name: Callable[[Step], Hashable] = attrgetter("chain", "call.name")


def _grouped(items: Iterable[T], of: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(of(item), []).append(item)
    return found


def _equal(of: Callable[[T], Hashable], ones: Iterable[T], others: Iterable[T]) -> list[tuple[T, T]]:
    """Pairs of what is equal in this respect, in their order."""
    waiting = _grouped(reversed([*others]), of)
    return [(one, waiting[of(one)].pop()) for one in ones if waiting.get(of(one))]


def _in_order(ones: list[Step], others: list[Step], of: Callable[[Step], Hashable]) -> Iterator[tuple[Step, Step]]:
    """Pair the same calls in their order, of several those with the same outcome."""
    matcher = SequenceMatcher(None, list(map(of, ones)), list(map(of, others)))
    for tag, begin, end, begin_new, end_new in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(ones[begin:end], others[begin_new:end_new], strict=True)
        elif tag == "replace" and of is _outcome:
            yield from _in_order(ones[begin:end], others[begin_new:end_new], _key)


def _moved_over(one: Step, other: Step, pairs: list[tuple[Step, Step]]) -> Iterator[Step]:
    before, before_now = one.number, other.number
    return (was for was, now in pairs if (was.number < before) != (now.number < before_now))


def _nearest(ones: list[Step], others: list[Step], count: Callable[[Step, Step], int]) -> Iterator[tuple[Step, Step]]:
    """Pair calls of one name, those with the fewest changes first."""
    if len(ones) * len(others) > _MAX_COMPARED:
        yield from zip(ones, others, strict=False)
        return
    taken = set[Step]()
    pairs = [(one, other) for one in ones for other in others]
    for one, other in sorted(pairs, key=lambda pair: (count(*pair), abs(pair[0].number - pair[1].number))):
        if taken.isdisjoint((one, other)):
            taken.update((one, other))
            yield one, other


def _twin_lanes(base: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """By lane of the new run, the lane that it belongs together with: both make the same calls, or are left over."""
    ones, others = ([*_grouped(steps, lambda step: step.call.lane).values()] for steps in (base, new))
    twins: dict[int, int] = {}
    signatures: tuple[Callable[[list[Step]], Hashable], ...] = (
        lambda lane: tuple(map(_outcome, lane)), lambda lane: tuple(map(_key, lane)), lambda _: None,
    )  # fmt: skip
    for signature in signatures:
        pairs = {one[0].call.lane: other[0].call.lane for one, other in _equal(signature, ones, others)}
        twins |= {other: one for one, other in pairs.items()}
        ones = [steps for steps in ones if steps[0].call.lane not in pairs]
        others = [steps for steps in others if steps[0].call.lane not in twins]
    return twins


# Differences of two cassettes


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    """The differences of a recording `b` from a recording `a`.

    Attributes:
        new_calls: names of calls that only `b` has, sorted; a name appears once for each such call.
        dropped_calls: the same for `a`.
        changed_calls: calls of both whose arguments, asker or outcome differ: ``{"id", "id_b", "name", "changed", "a",
            "b"}``, with the names of the parts that differ under ``"changed"``.
        moved_calls: calls that are the same in both, in another order of their task: ``{"id", "id_b", "name"}``.
        new_ids, dropped_ids: ids of these calls in `b` and in `a`.
        input_token_delta, output_token_delta, token_delta, step_delta: `b` minus `a`.
    """

    new_calls: list[str] = field(default_factory=list)
    dropped_calls: list[str] = field(default_factory=list)
    changed_calls: list[dict[str, Any]] = field(default_factory=list)
    moved_calls: list[dict[str, Any]] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    dropped_ids: list[int] = field(default_factory=list)
    input_token_delta: int = 0
    output_token_delta: int = 0
    step_delta: int = 0

    @property
    def token_delta(self) -> int:
        """The difference in tokens sent and received."""
        return self.input_token_delta + self.output_token_delta

    @property
    def identical(self) -> bool:
        """Whether the tasks of both made the same calls in one order, with the same outcomes. Times do not count."""
        return not (self.new_ids or self.dropped_ids or self.changed_calls or self.moved_calls)


def diff_cassettes(a: Cassette | str | os.PathLike[str], b: Cassette | str | os.PathLike[str]) -> CassetteDiff:
    """Compare two recordings, given as cassettes or as paths. Which call is which is found as for drift.

    Raises:
        CassetteError: if one cannot be loaded.
    """
    before, after = (each if isinstance(each, Cassette) else Cassette.load(each) for each in (a, b))
    diff = CassetteDiff(
        input_token_delta=after.total_input_tokens - before.total_input_tokens,
        output_token_delta=after.total_output_tokens - before.total_output_tokens,
        step_delta=len(after) - len(before),
    )
    for one, other, over in pair_runs(read_run(before), read_run(after)):
        if one is None or other is None:
            names, ids = (diff.new_calls, diff.new_ids) if one is None else (diff.dropped_calls, diff.dropped_ids)
            call = (one or other).call  # type: ignore[union-attr]  # there is one of them
            names.append(call.name)
            ids.append(call.id)
            continue
        was, now = one.call, other.call
        about = {"id": was.id, "id_b": now.id, "name": was.name}
        parts = ("name", "arguments", "key", "asker", "outcome")
        if changed := [part for part in parts if getattr(was, part) != getattr(now, part)]:
            diff.changed_calls.append({**about, "changed": changed, "a": was, "b": now})
        if any(over):
            diff.moved_calls.append(about)
    diff.changed_calls.sort(key=lambda one: one["id"])
    for names in (diff.new_calls, diff.dropped_calls):
        names.sort()
    return diff
