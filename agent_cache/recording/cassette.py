"""Cassettes in memory: `Cassette`, a recording to inspect, change and save, and `diff_cassettes`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.cassette_file import (
    EARLIER,
    VERSION,
    Header,
    Outline,
    RecordedCall,
    StoredCalls,
    Trailer,
    converted,
    digest_of,
    digest_of_key,
    finished_lines,
    log_lines,
    read_file,
    replace_file,
)
from agent_cache.recording.http.bodies import ResponseShape
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.recording.results import redact_chunks, redact_payload, redact_response

__all__ = [
    "Cassette",
    "CassetteDiff",
    "apply_rules",
    "diff_cassettes",
    "recorded_rules",
    "redact_call",
    "redacted_header",
    "redacted_name",
]


class Cassette:
    """A recording: each `RecordedCall`, in the order of their numbers; of one that was killed, as they ended.

    A loaded cassette reads each call from its file when it is accessed, so its size in memory does not depend on the
    size of results.

    Args:
        steps: the calls.
        model: a label.
        recorded_at: start of the recording, in UTC.
        duration_ms: duration of the recording.
        path: the file it was loaded from, for messages.

    Attributes:
        steps, model, recorded_at, duration_ms, path: the same.
        header: the first line of the file.
        trailer: the last line; None if the recording was killed.
        is_partial: whether the recording was killed, so that calls may be missing.
    """

    def __init__(
        self,
        steps: Sequence[RecordedCall] | None = None,
        *,
        model: str | None = None,
        recorded_at: str | None = None,
        duration_ms: float = 0.0,
        path: str | os.PathLike[str] = "",
    ) -> None:
        self.steps: Sequence[RecordedCall] = [] if steps is None else steps
        self.header = Header(model=model, recorded_at=recorded_at)
        self.trailer: Trailer | None = Trailer(calls=len(self.steps), duration_ms=duration_ms)
        self.path = os.fspath(path)
        self.is_partial = False
        self._order: Sequence[int] = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> Self:
        """Read a cassette, of agent_cache or agentcassette, and check every line.

        Args:
            path: the file.
            progress: is called with the number of bytes read so far.

        Raises:
            CassetteNotFound: if there is no such file.
            CassetteError: if it is broken, in conflict, of a newer version, or another file, with the line.
        """
        return cls._of(*read_file(Path(path), progress), path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cassette in one step. Directories are created.

        Raises:
            CassetteError: if it cannot be written, or the path is being recorded.
        """
        replace_file(Path(path), self.lines())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """A cassette from the result of `to_dict`, or from a document of agentcassette.

        Raises:
            CassetteError: if it is neither.
        """
        if isinstance(data, dict) and "steps" in data and "agent_cache_cassette" not in data:
            return cls._of(*converted(data))
        try:
            version = data["agent_cache_cassette"]
            if type(version) is not int or not 1 <= version <= VERSION:
                raise CassetteError(f"has the format version {version!r}; this agent-cache reads 1 to {VERSION}")
            calls = msgspec.convert(data.get("calls", []), list[RecordedCall])
            if version == 1:
                calls = [msgspec.structs.replace(call, form=call.form or EARLIER) for call in calls]
            header = msgspec.convert({name: data[name] for name in Header.__struct_fields__ if name in data}, Header)
            trailer = msgspec.convert(data.get("trailer"), Trailer | None)
            order = msgspec.convert(data.get("order", []), list[int])
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise CassetteError(f"is not a result of Cassette.to_dict: {error}") from error
        cassette = cls._of(header, calls, trailer)
        cassette._order = order
        return cassette

    @classmethod
    def _of(
        cls,
        header: Header,
        calls: Sequence[RecordedCall],
        trailer: Trailer | None,
        path: str | os.PathLike[str] = "",
    ) -> Self:
        cassette = cls(calls, path=path)
        cassette.header, cassette.trailer = header, trailer
        cassette.is_partial = trailer is None
        if isinstance(calls, StoredCalls):
            cassette._order = calls.outline.order
        return cassette

    def to_dict(self) -> dict[str, Any]:
        """The whole cassette as plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self.header)
        data["calls"] = [msgspec.to_builtins(call) for call in self.steps]
        data["trailer"] = None if self.trailer is None else msgspec.to_builtins(self.trailer)
        if self._order:
            data["order"] = list(self._order)
        return data

    @property
    def outline(self) -> Outline:
        """The fields of all calls that a replay needs to find them.

        Raises:
            CassetteError: if a digest or a number of a call is invalid.
        """
        if isinstance(self.steps, StoredCalls):
            return self.steps.outline
        try:
            return Outline(self.steps, is_log=self.header.is_log, order=self._order)
        except ValueError as error:
            raise CassetteError(str(error), self.path) from error

    @property
    def model(self) -> str | None:
        """The label of the recording."""
        return self.header.model

    @property
    def recorded_at(self) -> str | None:
        """The start of the recording, in UTC."""
        return self.header.recorded_at

    @property
    def duration_ms(self) -> float:
        """The duration of the recording; of one that was killed, until the end of its last known call."""
        if self.trailer is not None:
            return self.trailer.duration_ms
        return max((call.started_ms + call.duration_ms for call in self.steps), default=0.0)

    @property
    def num_steps(self) -> int:
        """The number of calls."""
        return len(self.steps)

    @property
    def total_input_tokens(self) -> int:
        """Tokens sent to models, as far as they are known."""
        return sum(call.input_tokens for call in self.steps)

    @property
    def total_output_tokens(self) -> int:
        """Tokens received from models, as far as they are known."""
        return sum(call.output_tokens for call in self.steps)

    @property
    def total_tokens(self) -> int:
        """Tokens sent and received, as far as they are known."""
        return sum(call.input_tokens + call.output_tokens for call in self.steps)

    def redact(self, *names: str, replacement: str = "[redacted]") -> Self:
        """Remove the values of these names from arguments and outcomes, at any depth. Returns the cassette.

        Digests change with the arguments, and the header keeps the names, so a replay still matches. The file changes
        by `save`.
        """
        apply_rules(self, Redaction(names, replacement=replacement).joined(recorded_rules(self)))
        return self

    def lines(self, *, like: str | os.PathLike[str] | None = None) -> Iterator[bytes]:
        """The lines of its file, one by one, so that a large cassette is never in memory as a whole.

        Args:
            like: the file of an earlier recording. Tasks that both have are in its order, where only chance decides
                which of them was first.

        Raises:
            CassetteError: if a call cannot be read.
        """
        if self.trailer is None:
            return log_lines(self.header, self.steps)
        outline, earlier = self.outline, None
        if like is not None and any(outline.lanes):
            try:
                earlier = Cassette.load(like).outline
            except CassetteError:  # none, or broken: it is replaced anyway
                pass
        return finished_lines(self.header, self.steps, outline, self.trailer, earlier)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> RecordedCall:
        return self.steps[index]

    def __repr__(self) -> str:
        return f"<Cassette of {len(self)} calls{f' from {self.path}' if self.path else ''}>"


# Redaction


def recorded_rules(cassette: Cassette) -> dict[str, Any]:
    """The redaction rules in the header, except for a hook: its code is not in the file, and it has run."""
    return {name: value for name, value in cassette.header.redact.items() if name != "hook"}


def apply_rules(cassette: Cassette, rules: Redaction) -> None:
    """Redact every call by these rules, and note them in the header. The note of a hook stays there."""
    cassette.steps = [redact_call(call, rules) for call in cassette.steps]
    described = rules.describe()
    if cassette.header.redact.get("hook"):
        described["hook"] = True
    cassette.header = redacted_header(cassette.header, rules, described)


def redacted_header(header: Header, rules: Redaction, described: dict[str, Any]) -> Header:
    """A header without secrets, with these rules."""
    model = None if header.model is None else rules.labelled("model", header.model)
    return msgspec.structs.replace(header, redact=described, model=model)


def redact_call(call: RecordedCall, rules: Redaction) -> RecordedCall:
    """The same call without its secrets, with the digest of its new arguments or key."""
    arguments, key, digest = redacted_identity(call, rules)
    if "response" in call.outcome:
        outcome = {**call.outcome, "response": _redacted_response(call.outcome["response"], rules)}
    else:
        outcome = redact_payload(call.outcome, rules)
    if "stream" in outcome:
        chunks = redact_chunks(call.outcome["stream"]["chunks"], rules)
        outcome["stream"] = {**outcome["stream"], "chunks": chunks}
    return msgspec.structs.replace(
        call,
        name=redacted_name(call.name, rules),
        arguments=arguments,
        key=key,
        digest=digest.hex(),
        model=None if call.model is None else rules.labelled("model", call.model),
        outcome=outcome,
    )


def _redacted_response(response: Any, rules: Redaction) -> Any:
    try:
        msgspec.convert(response, ResponseShape)
        redacted = redact_response(response, rules)
    except (msgspec.ValidationError, ValueError):  # the file was edited, and this is no response
        return rules.apply(response)
    return {**redacted, "end": redact_payload(redacted["end"], rules)} if "end" in redacted else redacted


def redacted_name(name: str, rules: Redaction) -> str:
    """The name of a call; of a request, without the secrets of its URL."""
    return rules.request_name(name) if "://" in name else name


def redacted_identity(call: RecordedCall, rules: Redaction) -> tuple[Any, str | None, bytes]:
    """The arguments of a call and its key without their secrets, and the digest that it has then."""
    arguments = rules.apply(call.arguments)
    key = None if call.key is None else redact_key(call.key, call.arguments, arguments, rules)
    name = redacted_name(call.name, rules)
    return arguments, key, digest_of(name, arguments) if key is None else digest_of_key(name, key)


# Differences of two cassettes

_MAX_ALIGNED = 5000
"""Calls between two common ones up to which calls of one name are paired. Of longer stretches none are: it takes
quadratic time."""


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    """The differences of a recording `b` from a recording `a`.

    Attributes:
        new_calls: names of calls that only `b` has, sorted; a name appears once for each such call.
        dropped_calls: the same for `a`.
        changed_calls: calls of both whose arguments, asker or outcome differ: ``{"id", "id_b", "name", "changed", "a",
            "b"}``, with the names of the parts that differ under ``"changed"``.
        moved_calls: calls that are the same in both, in another order: ``{"id", "id_b", "name"}``.
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
        """Whether both made the same calls in the same order, with the same outcomes. Times do not count."""
        return not (self.new_ids or self.dropped_ids or self.changed_calls or self.moved_calls)


def diff_cassettes(a: Cassette | str | os.PathLike[str], b: Cassette | str | os.PathLike[str]) -> CassetteDiff:
    """Compare two recordings, given as cassettes or as paths.

    Calls are compared in the order in which a finished cassette has them: those of one task in the order in which they
    were started. Calls that are the same in both are aligned first; in between, calls of one name count as changed. A
    call that is the same in both but out of order counts as moved.

    Raises:
        CassetteError: if one cannot be loaded.
    """
    one = a if isinstance(a, Cassette) else Cassette.load(a)
    other = b if isinstance(b, Cassette) else Cassette.load(b)
    keys, order = _keys_and_order(one)
    keys_b, order_b = _keys_and_order(other)
    pairs: list[tuple[int, int]] = []
    left, right = set(order), set(order_b)
    matcher = SequenceMatcher(None, [keys[at] for at in order], [keys_b[at] for at in order_b], autojunk=False)
    for tag, start, end, start_b, end_b in matcher.get_opcodes():
        stretch, stretch_b = order[start:end], order_b[start_b:end_b]
        if tag == "equal":
            found = list(zip(stretch, stretch_b, strict=True))
        else:
            found = _pairs_of_one_name(keys, keys_b, stretch, stretch_b)
        pairs += found
        left.difference_update(at for at, _ in found)
        right.difference_update(at for _, at in found)
    moved = _moved(keys, keys_b, left, right)
    dropped = sorted(left.difference(at for at, _ in moved))
    new = sorted(right.difference(at for _, at in moved))
    ids, ids_b = one.outline.ids, other.outline.ids
    return CassetteDiff(
        new_calls=sorted(keys_b[at][0] for at in new),
        dropped_calls=sorted(keys[at][0] for at in dropped),
        changed_calls=[
            change for at, at_b in sorted((*pairs, *moved)) if (change := _change(one[at], other[at_b])) is not None
        ],
        moved_calls=[{"id": ids[at], "id_b": ids_b[at_b], "name": keys[at][0]} for at, at_b in moved],
        new_ids=[ids_b[at] for at in new],
        dropped_ids=[ids[at] for at in dropped],
        input_token_delta=other.total_input_tokens - one.total_input_tokens,
        output_token_delta=other.total_output_tokens - one.total_output_tokens,
        step_delta=len(other) - len(one),
    )


_Keys: TypeAlias = list[tuple[str, str]]
"""Name and digest of each call, with its asker."""


def _keys_and_order(cassette: Cassette) -> tuple[_Keys, Sequence[int]]:
    """The keys of all calls, and their indices in the order of the lines of a finished cassette."""
    outline = cassette.outline
    keys: _Keys = [("", "")] * len(outline)
    for name, indices in outline.names.items():
        for index in indices:
            keys[index] = name, outline.digests[index].hex()
    return keys, outline.order_of_lines()


def _pairs_of_one_name(keys: _Keys, keys_b: _Keys, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Pair calls of one name, in order, between two common calls: they are the same call with other arguments.

    Calls that are on both sides have moved, and are no part of a pair.
    """
    if len(left) > _MAX_ALIGNED or len(right) > _MAX_ALIGNED:
        return []
    common = {keys[at][1] for at in left} & {keys_b[at][1] for at in right}
    left = [at for at in left if keys[at][1] not in common]
    right = [at for at in right if keys_b[at][1] not in common]
    matcher = SequenceMatcher(None, [keys[at][0] for at in left], [keys_b[at][0] for at in right], autojunk=False)
    return [
        (left[block.a + at], right[block.b + at]) for block in matcher.get_matching_blocks() for at in range(block.size)
    ]


def _moved(keys: _Keys, keys_b: _Keys, left: set[int], right: set[int]) -> list[tuple[int, int]]:
    """Pairs of the same call in another place."""
    places: dict[tuple[str, str], list[int]] = {}
    for at in sorted(right):
        places.setdefault(keys_b[at], []).append(at)
    return [(at, places[keys[at]].pop(0)) for at in sorted(left) if places.get(keys[at])]


def _change(before: RecordedCall, after: RecordedCall) -> dict[str, Any] | None:
    changed = [
        part
        for part in ("name", "arguments", "key", "asker", "outcome")
        if getattr(before, part) != getattr(after, part)
    ]
    if not changed:
        return None
    return {"id": before.id, "id_b": after.id, "name": before.name, "changed": changed, "a": before, "b": after}
