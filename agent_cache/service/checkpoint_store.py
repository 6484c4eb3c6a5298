"""A directory of journals as a store of checkpoints: what is listed, read, restored and compared there.

A restore makes two files, each of which is put in place in one step: first the record
``.restores/<hash of checkpoint and idempotency key>.json`` of what was asked for and answered, then the journal of the
new session. A session that has a journal is never replaced. ``.restores/session-<hash of its id>.json`` is another name
of the record.

Of several servers one restores at a time. If one is killed in between, the same request, sent again, makes the session.
Idempotency keys and tokens are not in the files, only their hashes.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from hmac import compare_digest
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from agent_cache.errors import AgentCacheError, CassetteError, CheckpointError, ConfigurationError
from agent_cache.recording.drift import Baseline
from agent_cache.recording.drift_events import DriftEvent, DriftReport, Tolerance
from agent_cache.recording.encryption import cipher_of, decrypted
from agent_cache.recording.file import JOURNAL_VERSION, RecordedCall
from agent_cache.recording.outcomes import encode
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.checkpoints import CheckpointEntry
from agent_cache.resume.event_replay import events_after
from agent_cache.resume.journal import (
    JournalHeader,
    StoredJournal,
    branched_lines,
    journal_path,
    open_regular,
    read_journal,
    stored_journal,
    sync_directory,
    write_new,
)

try:
    import fcntl
except ImportError:  # Windows: only servers of one process wait for each other there
    fcntl = None  # type: ignore[assignment]

RECORDS = ".restores"
"""Name of the folder of the records of restores."""

_LOG = logging.getLogger("agent_cache")
_lock = threading.Lock()


class StoreError(AgentCacheError):
    """A request that is refused, with the status, the detail, the wrong field and the headers of its answer."""

    def __init__(self, status: int, detail: str, *, field: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status, self.detail, self.field, self.headers = status, detail, field, headers


# What is sent and answered


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be restored from a checkpoint."""

    session_id: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    replay_events: bool = False
    track_drift: bool = False


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A write of the original session."""

    id: int
    name: str
    arguments: dict[str, Any]


class WriteInDoubt(Write, frozen=True, kw_only=True):
    """A write of the original session that had begun and not ended."""

    key: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the new session from the original."""

    severity: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["info", "warning", "critical"]})]
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
    in_doubt: list[WriteInDoubt]
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
    """The record of a restored session: hashes of request and token, the runs of both journals, and the answer."""

    fingerprint: str
    salt: str
    token: str
    track_drift: bool
    run: str
    original_run: str
    response: RestoreResponse

    def is_token(self, token: str) -> bool:
        """Whether a token is the one that the restore has answered."""
        return compare_digest(self.token, _hash(token))


def _hash(*parts: str, key: str = "") -> str:
    return blake2b(encode([list(parts), key]), digest_size=32).hexdigest()


def _token(secret: str, salt: str) -> str:
    """The token of a restore: it can be computed again from the idempotency key, and not from what is in the files."""
    return _hash("restore token", secret, key=salt)


# The list

Position = tuple[str, str, int, str]
"""The place of a checkpoint in the list: its time, its session, its number there, its id."""


class _Journal(NamedTuple):
    """A file as it was when it was read: inode, size and time of change; the header of a journal; its checkpoints."""

    stamp: tuple[int, int, int]
    header: JournalHeader | None
    entries: list[CheckpointEntry]


def position_of(entry: CheckpointEntry) -> Position:
    """The place of a checkpoint in the list."""
    return entry.created_at, entry.session_id, entry.sequence, entry.id


class CheckpointStore:
    """The checkpoints of a directory of journals. Every method may be called from any thread, and waits for the disk.

    The list is kept in memory. Before each query, files that have changed are read again.

    Args:
        directory: the directory.
        tolerance: what of a drift is accepted.
        key: of encrypted journals.

    Raises:
        ConfigurationError: if it is not a directory.
    """

    def __init__(self, directory: str | os.PathLike[str], tolerance: Tolerance | None, key: bytes | None) -> None:
        try:
            self._directory = Path(os.path.realpath(directory))
            is_directory = self._directory.is_dir()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"store must be a directory of journals, got {directory!r}") from error
        if not is_directory:
            raise ConfigurationError(
                f"store must be a directory of journals, and {str(directory)!r} is none; create it"
            )
        self._records = self._directory / RECORDS
        self._tolerance = Tolerance() if tolerance is None else tolerance
        self._key = key
        self._lock = threading.Lock()
        self._journals: dict[str, _Journal] = {}
        self._by_id: dict[str, tuple[CheckpointEntry, str]] = {}  # with the names of their files
        self._positions: list[Position] = []  # of all checkpoints, the oldest first

    def listed(self, session_id: str | None, label: str | None, after: Position | None) -> Iterator[CheckpointEntry]:
        """The checkpoints of a session, of exactly this label, after a place in the list; newest first."""
        self._refresh()
        positions, by_id = self._positions, self._by_id
        end = len(positions) if after is None else bisect_left(positions, after)
        for at in range(end - 1, -1, -1):
            entry, _ = by_id[positions[at][3]]
            if session_id in (None, entry.session_id) and label in (None, entry.label):
                yield entry

    def find(self, checkpoint_id: str) -> CheckpointEntry | None:
        """The checkpoint of an id."""
        self._refresh()
        return self._by_id.get(checkpoint_id, (None,))[0]

    def _journal_of(self, session_id: str, run: str | None = None) -> Path | None:
        """The journal of a session, or of one run of it."""
        self._refresh()
        for name, (_, header, _) in self._journals.items():
            if header is not None and header.session_id == session_id and run in (None, header.run):
                return self._directory / name
        return None

    def _refresh(self) -> None:
        with self._lock:
            found: dict[str, _Journal] = {}
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl") and not entry.name.startswith("."):
                        one = self._current(entry)
                        if one is not None:
                            found[entry.name] = one
            if found != self._journals:
                self._journals = found
                self._by_id = {one.id: (one, name) for name, journal in found.items() for one in journal.entries}
                self._positions = sorted(position_of(one) for one, _ in self._by_id.values())

    def _current(self, file: os.DirEntry[str]) -> _Journal | None:
        """What is known of a file, which is read if it has changed."""
        stamp = 0, 0, 0
        try:
            about = file.stat(follow_symlinks=False)
            stamp = about.st_ino, about.st_size, about.st_mtime_ns
            known = self._journals.get(file.name)
            if known is not None and known.stamp == stamp:
                return known
            return self._read(Path(file.path), stamp)
        except FileNotFoundError:  # it went while the directory was read
            return None
        except (OSError, CassetteError) as error:
            _LOG.warning("%s cannot be read, so its checkpoints are not listed: %s", file.name, error)
            return _Journal(stamp, None, [])

    def _read(self, path: Path, stamp: tuple[int, int, int]) -> _Journal:
        with os.fdopen(open_regular(path, follows=False), "rb") as file:
            text = decrypted(path, file, cipher_of(path, self._key, file.peek(64)))
            try:
                header = msgspec.json.decode(text.readline(), type=JournalHeader)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return _Journal(stamp, None, [])  # another file, or one whose first line is being written
            if header.agent_cache_journal > JOURNAL_VERSION:
                _LOG.warning("%s is a journal of a newer version, so its checkpoints are not listed", path.name)
                return _Journal(stamp, None, [])
            entries = []
            for line in text:
                if line.startswith(b'{"checkpoint"') and line.endswith(b"\n"):
                    try:
                        fields = msgspec.json.decode(line)["checkpoint"] | {"session_id": header.session_id}
                        entries.append(msgspec.convert(fields, CheckpointEntry))
                    except (msgspec.DecodeError, ValueError, TypeError) as error:
                        _LOG.warning("%s has a broken checkpoint, which is not listed: %s", path.name, error)
        return _Journal(stamp, header, entries)

    def read(self, entry: CheckpointEntry) -> StoredCheckpoint | None:
        """A checkpoint of the list with its state. None if it is gone."""
        self._refresh()
        _, name = self._by_id.get(entry.id, (None, ""))
        try:
            with os.fdopen(open_regular(self._directory / name, follows=False), "rb") as file:
                for line in decrypted(Path(name), file, cipher_of(self._directory / name, self._key)):
                    if line.startswith(b'{"checkpoint"') and entry.id.encode() in line:
                        found = msgspec.json.decode(line)["checkpoint"]
                        if found["id"] == entry.id:
                            state = {"framework": found["framework"], **found["state"]}
                            return StoredCheckpoint(**msgspec.structs.asdict(entry), state=state)
        except (OSError, CassetteError, msgspec.DecodeError, LookupError, TypeError):
            pass  # it was replaced since it was listed
        return None

    # Restoring

    def restore(self, entry: CheckpointEntry, request: RestoreRequest, key: str | None) -> RestoreResponse | None:
        """Make a session that goes on from a checkpoint. None if the checkpoint is gone.

        The same idempotency key, checkpoint and request give the same answer, and one session.
        """
        secret = secrets.token_hex(16) if key is None else key
        fingerprint = _hash(encode(request).decode())
        self._records.mkdir(mode=0o700, exist_ok=True)
        path = self._records / f"{_hash(entry.id, secret)}.json"
        with self._one_at_a_time():
            record = _record_at(path)
            if record is not None and record.fingerprint != fingerprint:
                raise StoreError(
                    422, "this key was used for another request to this checkpoint", field="Idempotency-Key"
                )
            if record is None or self._journal_of(record.response.new_session_id, record.run) is None:
                checkpoint = self.read(entry)
                if checkpoint is None:
                    return None
                session_id = request.session_id or str(uuid.uuid4())
                exists = StoreError(409, "there is a session of this id already", field="session_id")
                if self._journal_of(session_id) is not None:
                    raise exists
                with _readable(f"the checkpoint {entry.id!r}"):
                    record, lines = self._branch(checkpoint, session_id, request)
                salt = secrets.token_hex(16)
                record = msgspec.structs.replace(
                    record, fingerprint=fingerprint, salt=salt, token=_hash(_token(secret, salt))
                )
                _write_private(path, encode(record) + b"\n")
                try:
                    cipher = cipher_of(self._directory / self._by_id[entry.id][1], self._key)
                    write_new(journal_path(self._directory, session_id), lines, cipher)
                except FileExistsError:
                    path.unlink()
                    raise exists from None
            _write_private(self._record_of(record.response.new_session_id), encode(record) + b"\n")
            return msgspec.structs.replace(record.response, restore_token=_token(secret, record.salt))

    def _branch(
        self, checkpoint: StoredCheckpoint, session_id: str, request: RestoreRequest
    ) -> tuple[Restored, list[bytes]]:
        """The record of a restore but for its hashes, and the lines of the new journal."""
        original = self._directory / self._by_id[checkpoint.id][1]
        source = read_journal(original, key=self._key)
        label = Redaction().joined({**source.header.redact, "hook": False}).text(request.label)
        lines = branched_lines(
            original,
            session_id,
            checkpoint.id,
            events=request.replay_events,
            label=label or f"restored from {checkpoint.id[:8]}",
            key=self._key,
        )
        header = msgspec.json.decode(lines[0], type=JournalHeader)
        new = stored_journal(original, header, BytesIO(b"".join(lines)), redacts=False)
        until = next(one for one in source.checkpoints if one.id == checkpoint.id)
        copied = {line.id for line in new.lines}
        later = [one for one in events_after(source.calls, until) if isinstance(one, RecordedCall)]
        drifts = self._drifts(source, new) if request.track_drift else []
        response = RestoreResponse(
            checkpoint_id=checkpoint.id,
            original_session_id=checkpoint.session_id,
            new_session_id=session_id,
            restored_at=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            state=checkpoint.state,
            restore_token="",
            replayed_events_count=sum(call.id in copied for call in later),
            drift_detected=self._tolerance.fails(drifts) if request.track_drift else None,
            copied_call_count=len(copied) - sum(call.id in copied for call in later),
            in_doubt=[
                WriteInDoubt(id=one.id, name=one.name, arguments=one.arguments, key=one.key) for one in source.in_doubt
            ],
            later_writes=[
                Write(id=call.id, name=call.name, arguments=call.arguments)
                for call in later
                if call.is_write and call.id not in copied and "error" not in call.outcome
                and call.id not in {one.id for one in source.in_doubt}
            ],
            drifts=[_drift(one, is_provisional=True) for one in drifts],
            new_checkpoint_id=next(one.id for one in new.checkpoints if one.sequence == until.sequence),
        )  # fmt: skip
        record = Restored(
            fingerprint="", salt="", token="", track_drift=request.track_drift, run=new.run, original_run=source.run,
            response=response,
        )  # fmt: skip
        return record, lines

    def _record_of(self, session_id: str) -> Path:
        return self._records / f"session-{_hash(session_id)}.json"

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Keep other servers from restoring meanwhile, and threads of this one."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(self._records / ".lock", flags, 0o600)
        try:
            with _lock:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
        finally:
            os.close(descriptor)

    # Drift

    def restored(self, session_id: str) -> Restored | None:
        """The restore that made a session whose drift is tracked. None for any other session."""
        record = _record_at(self._record_of(session_id))
        return record if record is not None and record.track_drift else None

    def drift(self, restored: Restored) -> DriftOfSession:
        """Compare a restored session with the original."""
        answer = restored.response
        with _readable(f"the session {answer.new_session_id!r}"):
            new = self._journal(answer.new_session_id, restored.run)
            original = self._journal(answer.original_session_id, restored.original_run)
            drifts = self._drifts(original, new)
        about = DriftReport(tuple(drifts), len(new.lines)).to_dict()
        return DriftOfSession(
            session_id=answer.new_session_id,
            original_session_id=answer.original_session_id,
            checkpoint_id=answer.checkpoint_id,
            is_ended=new.is_sealed,
            calls=about["calls"],
            drift_detected=self._tolerance.fails(drifts),
            worst=about["worst"],
            counts=about["counts"],
            drifts=[_drift(one, is_provisional=not new.is_sealed) for one in drifts],
        )

    def _journal(self, session_id: str, run: str) -> StoredJournal:
        path = self._journal_of(session_id, run)
        if path is None:
            raise CassetteError(f"the journal of the session {session_id!r} is gone")
        return read_journal(path, key=self._key)

    def _drifts(self, original: StoredJournal, new: StoredJournal) -> list[DriftEvent]:
        """The drifts of a session from the original, as far as both have got.

        While it goes on, nothing is missing. What it does beyond the end of an original that was killed has nothing to
        be compared with.
        """
        made = [call.id for call in new.calls if call.kind != "env"]
        if not made or all(call.kind == "env" for call in original.calls):
            return []
        tolerance = self._tolerance
        if not (original.is_sealed and new.is_sealed):
            tolerance = replace(tolerance, tokens=None)
        try:
            drifts = Baseline(original.cassette).compare(new.cassette, tolerance)
        except (CassetteError, ConfigurationError) as error:
            text = "the session cannot be compared with the original; the log of the server says why"
            _LOG.warning("the drift of the session %r cannot be judged: %s", new.session_id, error)
            raise StoreError(409, text) from error
        if not original.is_sealed and not any(one.kind == "missing" for one in drifts):
            beyond = {one.call_id for one in drifts if one.kind in ("extra", "repeated")}
            while made and made[-1] in beyond:
                drifts = [one for one in drifts if one.call_id != made[-1]]
                made.pop()
        return [one for one in drifts if new.is_sealed or one.kind != "missing"]


def _drift(event: DriftEvent, *, is_provisional: bool) -> Drift:
    return msgspec.convert({**event.to_dict(), "provisional": is_provisional}, Drift)


def _record_at(path: Path) -> Restored | None:
    """The record in a file; None if there is none."""
    try:
        with os.fdopen(open_regular(path, follows=False), "rb") as file:
            return msgspec.json.decode(file.read(), type=Restored)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _LOG.warning("the record %s is broken: %s", path.name, error)
        raise StoreError(409, _GONE) from error


def _write_private(path: Path, content: bytes) -> None:
    """Write a file in one step, which only its owner may read."""
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)  # of a server that was killed here
    with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_directory(path.parent)


_GONE = "a journal that is needed is gone or broken"


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Answer that journals which are read here are gone or broken."""
    try:
        yield
    except (CassetteError, CheckpointError, ConfigurationError) as error:
        _LOG.warning("%s cannot be restored or judged: %s", what, error)
        raise StoreError(409, _GONE) from error
