"""`Cassette`: a recording, to look at, to change and to save."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.cassette_file import Lines, read_file
from agent_cache.recording.format import (
    VERSION,
    Header,
    RecordedCall,
    Trailer,
    call_line,
    header_line,
    trailer_line,
)
from agent_cache.recording.legacy import calls_of_agentcassette
from agent_cache.recording.outline import Outline
from agent_cache.recording.partial import replace_file
from agent_cache.recording.redacted import redacted_call
from agent_cache.recording.redaction import Redaction

__all__ = ["Cassette", "bring_under", "said_of"]


class Cassette:
    """A recording: each `RecordedCall`, in the order in which they ended.

    A cassette that was loaded reads each call from its file when it is asked for, so its size in memory does not depend
    on what was recorded.

    Args:
        steps: the calls.
        model: a label.
        recorded_at: when, in UTC.
        duration_ms: how long the recorded run took.
        path: where it was loaded from, for messages.

    Attributes:
        steps, model, recorded_at, duration_ms, path: the same.
        header: all that the file says about itself.
        trailer: how the recording ended; None if it was killed.
        is_partial: whether it was killed, so that calls may be missing.
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

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> Self:
        """Read a cassette, of ours or of agentcassette, and check every line.

        Args:
            path: the file.
            progress: is told how many bytes were read.

        Raises:
            CassetteNotFound: if there is none.
            CassetteError: if it is broken, in conflict, of a newer version, or something else, with the line.
        """
        file = Path(path)
        found = read_file(file, progress)
        if found.foreign is not None:
            header, calls, duration = calls_of_agentcassette(found.foreign, file)
            cassette = cls(calls, path=file)
            cassette.header, cassette.trailer = header, Trailer(calls=len(calls), duration_ms=duration)
            return cassette
        cassette = cls(found.lines, path=file)
        cassette.header, cassette.trailer = found.header, found.trailer
        cassette.is_partial = found.trailer is None
        return cassette

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, at once and as a whole. Directories are created.

        Raises:
            CassetteError: if that is not possible, or the path is being recorded.
        """
        replace_file(Path(path), self._lines())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """What `to_dict` gave; a document of agentcassette will do as well.

        Raises:
            CassetteError: if it is neither.
        """
        if isinstance(data, dict) and "steps" in data and "agent_cache_cassette" not in data:
            header, calls, duration = calls_of_agentcassette(data)
            cassette = cls(calls)
            cassette.header, cassette.trailer = header, Trailer(calls=len(calls), duration_ms=duration)
            return cassette
        try:
            version = data["agent_cache_cassette"]
            if type(version) is not int or not 1 <= version <= VERSION:
                raise CassetteError(f"has the format version {version!r}; this agent-cache reads 1 to {VERSION}")
            cassette = cls(msgspec.convert(data.get("calls", []), list[RecordedCall]))
            cassette.header = msgspec.convert(
                {name: data[name] for name in Header.__struct_fields__ if name in data}, Header
            )
            trailer = data.get("trailer")
            cassette.trailer = None if trailer is None else msgspec.convert(trailer, Trailer)
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise CassetteError(f"is not what Cassette.to_dict gives: {error}") from error
        cassette.is_partial = cassette.trailer is None
        return cassette

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self.header)
        data["calls"] = [msgspec.to_builtins(call) for call in self.steps]
        data["trailer"] = None if self.trailer is None else msgspec.to_builtins(self.trailer)
        return data

    @property
    def outline(self) -> Outline:
        """What is known of all calls without reading them.

        Raises:
            CassetteError: if a call has a digest that is none.
        """
        if isinstance(self.steps, Lines):
            return self.steps.outline
        try:
            return Outline.of(self.steps)
        except ValueError as error:
            raise CassetteError(str(error), self.path) from error

    @property
    def model(self) -> str | None:
        """The label that the recording was given."""
        return self.header.model

    @property
    def recorded_at(self) -> str | None:
        """When the recording was begun, in UTC."""
        return self.header.recorded_at

    @property
    def duration_ms(self) -> float:
        """How long the recording lasted; of one that was killed, as far as is known."""
        if self.trailer is not None:
            return self.trailer.duration_ms
        return max((call.started_ms + call.duration_ms for call in self.steps), default=0.0)

    @property
    def num_steps(self) -> int:
        """How many calls there are."""
        return len(self.steps)

    @property
    def total_input_tokens(self) -> int:
        """Tokens that went to models, as far as is known."""
        return sum(call.input_tokens for call in self.steps)

    @property
    def total_output_tokens(self) -> int:
        """Tokens that came from models, as far as is known."""
        return sum(call.output_tokens for call in self.steps)

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return sum(call.input_tokens + call.output_tokens for call in self.steps)

    def redact(self, *names: str, replacement: str = "[redacted]") -> Self:
        """Take out what stands under these names, in arguments and outcomes, at any depth. Returns the cassette.

        Digests are made anew, and the names are remembered, so that a replay still matches. Files change by `save`.
        """
        bring_under(self, Redaction(names, replacement=replacement).joined(said_of(self)))
        return self

    def _lines(self) -> Iterator[bytes]:
        """Line by line, so that a large cassette is never in memory as a whole."""
        yield header_line(self.header)
        steps = self.steps
        for index in range(len(steps)):
            yield steps.raw(index) if isinstance(steps, Lines) else call_line(steps[index])
        if self.trailer is not None:
            yield trailer_line(msgspec.structs.replace(self.trailer, calls=len(self)))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> RecordedCall:
        return self.steps[index]

    def __repr__(self) -> str:
        return f"<Cassette of {len(self)} calls{f' from {self.path}' if self.path else ''}>"


def said_of(cassette: Cassette) -> dict[str, Any]:
    """What a cassette says that was redacted, without a hook: what one did is done."""
    return {name: value for name, value in cassette.header.redact.items() if name != "hook"}


def bring_under(cassette: Cassette, rules: Redaction) -> None:
    """Redact every call by these rules, and remember them beside a hook that there was."""
    cassette.steps = [redacted_call(call, rules) for call in cassette.steps]
    said = rules.describe()
    if cassette.header.redact.get("hook"):
        said["hook"] = True
    cassette.header = msgspec.structs.replace(cassette.header, redact=said)
