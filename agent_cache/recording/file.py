"""The lines of the file of a recording, and what identifies a call in them. JSON Lines, version 2.

    {"agent_cache_cassette": 2, "recorded_at": "2026-01-01T12:00:00Z", "model": null, "redact": {}}
    {"id": 1, "kind": "tool", "name": "shop:get_order", "arguments": {"order_id": "7"}, "digest": "5f1c...", ...}
    {"trailer": {"calls": 1, "duration_ms": 12.5, "ended": "returned"}, "times": [[120, 11950]]}

What depends on how long calls took is in the header and the trailer alone, so that a run that does the same again has
the same lines. The forms of an outcome are in `outcomes`; what a *log* is says `cassette`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from agent_cache.errors import CassetteError, CassetteNotFound
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.outcomes import encode, encode_sorted

VERSION = 2
JOURNAL_VERSION = 1  # of a journal (`resume.journal`), whose lines are a log, and others that a cassette has not
CALLS_OF_LITELLM = ("litellm:acompletion", "litellm:aembedding")  # from fixtures of Reyn

NO_TIME: Final = 0.0  # a time that is not written: msgspec omits the very object that is the default

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Hexadecimal: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{2})*$")]


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The first line. In a `log` the lines are in the order in which the calls ended."""

    agent_cache_cassette: int = VERSION
    recorded_at: str | None = None
    model: str | None = None
    redact: dict[str, Any] = {}
    http: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    forked_from: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    log: bool | msgspec.UnsetType = msgspec.UNSET


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line. It is missing if the process was killed."""

    calls: int = 0
    duration_ms: float = 0.0
    ended: str = "returned"


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call and its outcome. The reference of the cassette format says what each field means.

    In a finished file the trailer has `started_ms` and `duration_ms`; of a stream, until it was closed. No two calls of
    a run start or end at one time. A journal has `place`, and `hidden`: whether redaction has changed the outcome.
    """

    id: _Number
    parent: _Number | None = None
    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str | None = None
    digest: _Hexadecimal = ""
    asker: str = ""
    after: _Number = 0
    lane: _Number = 0
    forked: _Number = 0
    outcome: dict[str, Any]
    source: str = ""
    tags: list[str] = []
    started_ms: float = NO_TIME
    duration_ms: float = NO_TIME
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cache_read_tokens: _Count = 0
    cache_write_tokens: _Count = 0
    cache_write_1h_tokens: _Count = 0
    model: str | None = None
    form: str = ""
    place: _Hexadecimal = ""
    hidden: bool = False

    @property
    def is_write(self) -> bool:
        """Whether it has changed something outside: a write tool, or a request of another method than GET, HEAD and
        OPTIONS. Requests of models change nothing.
        """
        if self.kind == "http":
            return is_unsafe(self.name)
        return self.source == "write" or self.kind == "write"


def is_unsafe(name: str) -> bool:
    """Whether a request of this name, its method and its URL, may change something (RFC 9110, 9.2.1)."""
    return name.partition(" ")[0] not in _SAFE_METHODS


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, where a call is that had begun. Its fields are those of a `RecordedCall`."""

    id: int
    parent: int | None = None
    place: str
    after: int = 0
    lane: int = 0
    forked: int = 0


class Intent(OpenCall, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, a write that begins."""

    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str
    tags: list[str] = []
    refused: bool = False


class OtherLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a journal that is no call, or the trailer, with start and duration of each call in microseconds."""

    trailer: Trailer | None = None
    times: list[tuple[int, int]] = []
    intent: Intent | None = None
    open: OpenCall | None = None
    checkpoint: msgspec.Raw = msgspec.Raw()
    resumed: dict[str, Any] | None = None


def line_of(content: RecordedCall | Header | dict[str, Any]) -> bytes:
    """The line of a call, of a header, or of something else by its name."""
    return encode(content) + b"\n"


# Identity

UNKNOWN_ASKER = "unknown"
"""The asker of a call whose context may say who makes it, in a form that cannot be compared: it is no recorded call."""


def digest_of(name: str, arguments: dict[str, Any], key: str | None = None) -> bytes:
    """Digest of a call by its redacted arguments, or by the redacted key that ``cache_key=`` returned."""
    if key is not None:
        return blake2b(encode_sorted([name, key]), digest_size=12, person=b"key").digest()
    return blake2b(encode_sorted([name, arguments]), digest_size=12).digest()


def digest_of_asker(parts: Mapping[str, Any]) -> str:
    """Digest of who asks, from each thing that tells callers apart, by name. Empty if none does."""
    found = {name: one for name, one in parts.items() if one is not None}
    if not found:
        return ""
    return blake2b(encode_sorted(plain_arguments(found)[0]), digest_size=8, person=b"asker").hexdigest()


def with_asker(digest: bytes, asker: str) -> bytes:
    """What makes a call equal to another one: the digest that its line has, and its asker."""
    return digest + asker.encode() if asker else digest


def is_inside(number: int | None, others: Collection[int], parents: Mapping[int, int | None]) -> bool:
    """Whether the call of a number, or one that encloses it, is among others."""
    for _ in parents:  # at most: in a file that was edited, calls may enclose each other
        if number is None or number in others:
            break
        number = parents.get(number)
    return number in others


# Reading


def read_bytes(path: Path) -> bytes:
    """What is in a file."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise CassetteError("cannot be read: it is not a regular file", path)
        data = path.read_bytes()
    except FileNotFoundError:
        reason, partial = "there is no cassette", partial_of(path)
        if os.path.exists(partial):  # noqa: PTH110 - not an error for a name that is too long
            reason += f", but {partial.name}, written by a recording that was killed; rename it to replay that far"
        raise CassetteNotFound(f"{reason}; record it first", path) from None
    except (OSError, ValueError) as error:  # as for a name with a null in it
        raise CassetteError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    if data.startswith(b"version https://git-lfs"):
        raise CassetteError("is a pointer of Git LFS in the place of a file; get that by `git lfs pull`", path, 1)
    return data


def check_version(path: Path, version: Any, known: int, kind: type[CassetteError] = CassetteError) -> None:
    """Check that a file is of the version that can be read."""
    if type(version) is not int or version != known:
        advice = "; update agent-cache" if type(version) is int and version > known else ""
        raise kind(f"has format version {version!r}, and this agent-cache reads {known}{advice}", path, 1)


def now_text() -> str:
    """The time in UTC, as headers have it: runs that follow each other within a millisecond keep their order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def partial_of(path: Path) -> Path:
    """The file that a recording to this path writes to until it ends."""
    return Path(os.path.realpath(path) + ".partial")
