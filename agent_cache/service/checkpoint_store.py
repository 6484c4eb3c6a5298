"""A directory of journals as a store of checkpoints: what is listed, read, restored and compared there.

A restore makes one file, the journal of the new session, which is put in place in one step and never replaces another.
Its header has the record of the restore: hashes of the idempotency key, the request and the token, and the answer. So
the same request, sent again, to this server or to another one, finds the session that it has made.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from starlette.exceptions import HTTPException

from agent_cache.errors import CassetteError, CheckpointError, ConfigurationError
from agent_cache.recording.drift import Baseline, DriftEvent, DriftReport, Tolerance
from agent_cache.recording.encryption import decrypted
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.checkpoints import CheckpointEntry, state_data
from agent_cache.resume.event_replay import events_after
from agent_cache.resume.journal import (
    JournalHeader,
    StoredJournal,
    branched_lines,
    journal_path,
    read_journal,
    read_regular,
    write_new,
)

_LOG = logging.getLogger("agent_cache")


class Refused(HTTPException):
    """A request that is refused; with the part of it that is wrong, if it is one."""

    def __init__(self, status: int, detail: str, field: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.field = field


# What is sent and answered


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be restored from a checkpoint."""

    session_id: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    replay_events: bool = False
    track_drift: bool = False


class Write(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A write of the original session; with its idempotency key, if it had begun and not ended."""

    id: int
    name: str
    arguments: dict[str, Any]
    key: str = ""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the new session from the original."""

    severity: Literal["info", "warning", "critical"]
    kind: str
    name: str
    description: str
    original_value: Any
    restored_value: Any
    event_type: str
    call_id: int | None
    path: str
    provisional: bool


class RestoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The new session."""

    checkpoint_id: str
    original_session_id: str
    new_session_id: str
    restored_at: str
    state: dict[str, Any]
    restore_token: str
    replayed_events_count: int
    drift_detected: bool | None
    copied_call_count: int
    in_doubt: list[Write]
    later_writes: list[Write]
    drifts: list[Drift]
    new_checkpoint_id: str


class DriftOfSession(msgspec.Struct, frozen=True, kw_only=True):
    """What a restored session has done so far, compared with the original."""

    session_id: str
    original_session_id: str
    checkpoint_id: str
    is_ended: bool
    calls: int
    drift_detected: bool
    worst: str | None
    counts: dict[str, int]
    drifts: list[Drift]


class StoredCheckpoint(CheckpointEntry, frozen=True, kw_only=True):
    """A checkpoint."""

    state: dict[str, Any]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a restore in the header of the new journal. `key` and `token` are hashes."""

    key: str
    request: str
    salt: str
    token: str
    track_drift: bool
    original_run: str
    response: RestoreResponse

    def is_token(self, token: str) -> bool:
        """Whether a token is the one that the restore has answered."""
        return compare_digest(self.token, _hash(token))


def _hash(*parts: str) -> str:
    return blake2b(encode(list(parts)), digest_size=32).hexdigest()


# The store

Position = tuple[str, str, int, str]
"""The place of a checkpoint in the list: its time, its session, its number there, its id."""


def position_of(entry: CheckpointEntry) -> Position:
    """The place of a checkpoint in the list."""
    return entry.created_at, entry.session_id, entry.sequence, entry.id


class _Journal(NamedTuple):
    """A file as it was when it was read: inode, size and time of change; the header; the checkpoints."""

    stamp: tuple[int, int, int]
    header: JournalHeader | None
    entries: list[CheckpointEntry]


class CheckpointStore:
    """The checkpoints of a directory of journals. Every method may be called from any thread, and waits for the disk.

    The list is kept in memory. Before each query, files that have changed are read again.

    Raises:
        ConfigurationError: if it is not a directory.
    """

    def __init__(self, directory: str | os.PathLike[str], tolerance: Tolerance | None, key: bytes | None) -> None:
        if not isinstance(directory, str | os.PathLike) or not Path(directory).is_dir():
            raise ConfigurationError(f"store must be a directory of journals, and {directory!r} is none; create it")
        self._directory = Path(os.path.realpath(directory))
        self._tolerance = Tolerance() if tolerance is None else tolerance
        self._key = key
        self._lock = threading.Lock()
        self._journals: dict[Path, _Journal] = {}
        self._by_id: dict[str, tuple[CheckpointEntry, Path]] = {}

    def listed(self, session_id: str | None, label: str | None, after: Position | None) -> list[CheckpointEntry]:
        """The checkpoints of a session, of exactly this label, after a place in the list; newest first."""
        self._refresh()
        found = [
            one
            for one, _ in self._by_id.values()
            if session_id in (None, one.session_id)
            and label in (None, one.label)
            and (after is None or position_of(one) < after)
        ]
        return sorted(found, key=position_of, reverse=True)

    def find(self, checkpoint_id: str) -> CheckpointEntry | None:
        """The checkpoint of an id."""
        self._refresh()
        return self._by_id.get(checkpoint_id, (None,))[0]

    def read(self, entry: CheckpointEntry) -> StoredCheckpoint:
        """A checkpoint of the list with its state."""
        return self._read_with_journal(entry)[0]

    def _read_with_journal(self, entry: CheckpointEntry) -> tuple[StoredCheckpoint, StoredJournal]:
        with _readable(f"the checkpoint {entry.id!r}"):
            stored = read_journal(self._by_id[entry.id][1], key=self._key)
            found = next(one for one in stored.checkpoints if one.id == entry.id)
        state = {"framework": found.framework, **state_data(found.state)}
        return StoredCheckpoint(**msgspec.structs.asdict(entry), state=state), stored

    def _refresh(self) -> None:
        with self._lock:
            found: dict[Path, _Journal] = {}
            for path in self._directory.glob("[!.]*.jsonl"):
                stamp = 0, 0, 0
                try:
                    about = path.lstat()
                    stamp = about.st_ino, about.st_size, about.st_mtime_ns
                    known = self._journals.get(path)
                    found[path] = known if known is not None and known.stamp == stamp else self._listed_in(path, stamp)
                except FileNotFoundError:  # it went while the directory was read
                    continue
                except (OSError, CassetteError, msgspec.DecodeError, ValueError) as error:
                    _LOG.warning("%s cannot be read, so its checkpoints are not listed: %s", path.name, error)
                    found[path] = _Journal(stamp, None, [])
            if found != self._journals:
                self._journals = found
                self._by_id = {one.id: (one, path) for path, journal in found.items() for one in journal.entries}

    def _listed_in(self, path: Path, stamp: tuple[int, int, int]) -> _Journal:
        first, *text = decrypted(path, read_regular(path, follows=False), self._key).splitlines(keepends=True)
        header = msgspec.json.decode(first, type=JournalHeader)
        lines = [line for line in text if line.startswith(b'{"checkpoint"') and line.endswith(b"\n")]
        fields = [msgspec.json.decode(line)["checkpoint"] | {"session_id": header.session_id} for line in lines]
        return _Journal(stamp, header, msgspec.convert(fields, list[CheckpointEntry]))

    def restore(self, entry: CheckpointEntry, request: RestoreRequest, key: str | None) -> RestoreResponse:
        """Make a session that goes on from a checkpoint.

        The same idempotency key, checkpoint and request give the same answer, and one session.
        """
        secret = key or secrets.token_hex(16)
        hashed, asked = _hash(entry.id, secret), _hash(encode(request).decode())
        made = self._made_with(hashed) or self._make(entry, request, secret, hashed, asked)
        if made.request != asked:
            raise Refused(422, "this key was used for another request to this checkpoint", "Idempotency-Key")
        return msgspec.structs.replace(made.response, restore_token=_hash(secret, made.salt))

    def _made_with(self, key: str) -> Restored | None:
        return next((made for made, _ in self._restores() if made.key == key), None)

    def _restores(self) -> Iterator[tuple[Restored, JournalHeader]]:
        self._refresh()
        for _, header, _ in self._journals.values():
            if header is not None and header.restored is not msgspec.UNSET:
                yield msgspec.convert(header.restored, Restored), header

    def _make(self, entry: CheckpointEntry, request: RestoreRequest, secret: str, hashed: str, asked: str) -> Restored:
        """Write the journal of a new session, with the record of the restore in its header."""
        session_id = request.session_id or str(uuid.UUID(hashed[:32]))  # so that two servers make the same file
        salt = secrets.token_hex(16)
        with _readable(f"the checkpoint {entry.id!r}"):
            checkpoint, source = self._read_with_journal(entry)
            label = Redaction().joined({**source.header.redact, "hook": False}).text(request.label)
            lines = branched_lines(
                source.path, session_id, entry.id, events=request.replay_events,
                label=label or f"restored from {entry.id[:8]}", key=self._key,
            )  # fmt: skip
            response = self._response(checkpoint, source, StoredJournal(source.path, b"".join(lines)), request)
            made = Restored(
                key=hashed, request=asked, salt=salt, token=_hash(_hash(secret, salt)), track_drift=request.track_drift,
                original_run=source.run, response=msgspec.structs.replace(response, new_session_id=session_id),
            )  # fmt: skip
            header = msgspec.json.decode(lines[0], type=JournalHeader)
            lines[0] = encode(msgspec.structs.replace(header, restored=msgspec.to_builtins(made))) + b"\n"
            try:
                write_new(journal_path(self._directory, session_id), lines, source.path, self._key)
            except FileExistsError:  # another request was faster, or the session was there
                found = self._made_with(hashed)
                if found is None:
                    raise Refused(409, "there is a session of this id already", "session_id") from None
                return found
        return made

    def _response(
        self, checkpoint: StoredCheckpoint, source: StoredJournal, new: StoredJournal, request: RestoreRequest
    ) -> RestoreResponse:
        until = next(one for one in source.checkpoints if one.id == checkpoint.id)
        copied, doubts = {call.id for call in new.calls}, {one.id: one for one in source.in_doubt}
        later = [one for one in events_after(source, until) if isinstance(one, RecordedCall)]
        replayed = sum(call.id in copied for call in later)
        drifts = self._drifts(source, new) if request.track_drift else []
        return RestoreResponse(
            checkpoint_id=checkpoint.id,
            original_session_id=checkpoint.session_id,
            new_session_id="",
            restored_at=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            state=checkpoint.state,
            restore_token="",
            replayed_events_count=replayed,
            drift_detected=self._tolerance.fails(drifts) if request.track_drift else None,
            copied_call_count=len(copied) - replayed,
            in_doubt=[Write(id=one.id, name=one.name, arguments=one.arguments, key=one.key) for one in doubts.values()],
            later_writes=[
                Write(id=call.id, name=call.name, arguments=call.arguments)
                for call in later
                if call.is_write and call.id not in copied and "error" not in call.outcome and call.id not in doubts
            ],
            drifts=_shown(drifts, is_provisional=True),
            new_checkpoint_id=next(one.id for one in new.checkpoints if one.sequence == until.sequence),
        )

    def restored(self, session_id: str) -> tuple[Restored, str] | None:
        """The restore that made a session whose drift is tracked, and its run. None for any other session."""
        for made, header in self._restores():
            if header.session_id == session_id and made.track_drift:
                return made, header.run
        return None

    def drift(self, restored: Restored, run: str) -> DriftOfSession:
        """Compare a restored session with the original."""
        answer = restored.response
        with _readable(f"the session {answer.new_session_id!r}"):
            new = self._journal(answer.new_session_id, run)
            original = self._journal(answer.original_session_id, restored.original_run)
            drifts = self._drifts(original, new)
        report = DriftReport(tuple(drifts), len(new.calls)).to_dict()
        return DriftOfSession(
            session_id=answer.new_session_id,
            original_session_id=answer.original_session_id,
            checkpoint_id=answer.checkpoint_id,
            is_ended=new.is_sealed,
            drift_detected=self._tolerance.fails(drifts),
            **report | {"drifts": _shown(drifts, is_provisional=not new.is_sealed)},
        )

    def _journal(self, session_id: str, run: str) -> StoredJournal:
        """The journal of one run of a session."""
        for path, (_, header, _) in self._journals.items():
            if header is not None and (header.session_id, header.run) == (session_id, run):
                return read_journal(path, key=self._key)
        raise CassetteError(f"the journal of the session {session_id!r} is gone")

    def _drifts(self, original: StoredJournal, new: StoredJournal) -> list[DriftEvent]:
        """The drifts of a session from the original, as far as both have got.

        While it goes on, nothing is missing. What it does beyond the end of an original that was killed has nothing to
        be compared with.
        """
        if any(all(call.kind == "env" for call in journal.calls) for journal in (original, new)):
            return []
        tolerance = self._tolerance
        if not (original.is_sealed and new.is_sealed):
            tolerance = msgspec.structs.replace(tolerance, tokens=None)
        drifts, pairs = Baseline(original.cassette).compare_calls(new.cassette, tolerance)
        missing = [one for one in drifts if one.kind == "missing"]
        if not original.is_sealed and not missing:
            beyond = {call.id for call in new.calls[max(index for _, index in pairs) + 1 :]}
            drifts = [one for one in drifts if one.call_id not in beyond]
        return [one for one in drifts if new.is_sealed or one not in missing]


def _shown(drifts: list[DriftEvent], *, is_provisional: bool) -> list[Drift]:
    return [Drift(**one.to_dict(), provisional=is_provisional) for one in drifts]


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Answer that journals which are read here are gone, broken, or of other agents."""
    try:
        yield
    except (CassetteError, CheckpointError, ConfigurationError, LookupError, StopIteration) as error:
        _LOG.warning("%s cannot be restored or judged: %s", what, error)
        raise Refused(409, "a journal that is needed is gone, broken, or of another agent") from error
