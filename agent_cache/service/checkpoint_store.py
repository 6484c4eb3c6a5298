"""A directory of journals as a store of checkpoints: what is read, restored and compared there.

A restore makes three files, each of which is put in place in one step:

- ``.restores/<hash of checkpoint and idempotency key>.json``, the record: what was asked for, and the answer.
- the journal of the new session, which is made in a folder of its own beside the record and linked into the directory
  when the record is there. A session that has a journal is never replaced.
- ``.restores/session-<hash of the new session's id>.json``, another name of the record.

Of several servers one restores at a time. One that is killed leaves the folder, and perhaps the record: the same
request, sent again, goes on from there. Idempotency keys and tokens are not in the files, only their hashes.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from agent_cache.errors import AgentCacheError, CassetteError, CassetteNotFound, CheckpointError, ConfigurationError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.drift import Baseline
from agent_cache.recording.drift_events import DriftEvent, DriftReport, Tolerance
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.checkpoints import Checkpoint
from agent_cache.resume.event_replay import events_after
from agent_cache.resume.journal import StoredJournal, branch_journal, read_journal, sync_directory
from agent_cache.service.checkpoint_index import CheckpointEntry, CheckpointIndex, Row, open_journal

try:
    import fcntl
except ImportError:  # Windows: only servers of one process wait for each other there
    fcntl = None  # type: ignore[assignment]


T = TypeVar("T")

RECORDS = ".restores"
"""Name of the folder of the records of restores."""

_LOG = logging.getLogger("agent_cache")
_lock = threading.Lock()


# Errors


class KeyReusedError(AgentCacheError):
    """An idempotency key was used for another request already."""


class SessionExistsError(AgentCacheError):
    """There is a session of the id that the new one was to have."""


class NotRestorableError(AgentCacheError):
    """The files that are needed are gone or broken, so that nothing can be restored or compared."""


class NotComparableError(AgentCacheError):
    """The new session cannot be compared with the original: it is of another agent, or was redacted in another way."""


# What is sent and answered


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be restored from a checkpoint.

    Attributes:
        session_id: id of the new session; a new one is made if it is null or empty.
        label: of the checkpoint that the new session begins with.
        replay_events: whether the new session also gets the calls that had ended after the checkpoint.
        track_drift: whether the new session can be compared with the original.
    """

    session_id: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    replay_events: bool = False
    track_drift: bool = False


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A write of the original session.

    Attributes:
        id: number of the call in the original session.
        name: name of the function.
        arguments: its arguments, redacted as in the journal.
    """

    id: int
    name: str
    arguments: dict[str, Any]


class WriteInDoubt(Write, frozen=True, kw_only=True):
    """A write of the original session that had begun and not ended.

    Attributes:
        key: its idempotency key: the one that the receiver got, if it got one.
    """

    key: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the new session from the original.

    Attributes:
        severity: how much it matters.
        kind: what differs: arguments, missing, extra, repeated, order, result, error or tokens.
        name: name of the function.
        description: one sentence.
        original_value: the value in the original session.
        restored_value: the value in the new session.
        event_type: kind of the call.
        call_id: id of the call in the new session; of one that is missing, in the original.
        path: the place that differs, inside of the call.
        provisional: whether the new session goes on, so that what follows may change this.
    """

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
    """The new session.

    Attributes:
        checkpoint_id: id of the checkpoint.
        original_session_id: id of its session.
        new_session_id: id of the new session.
        restored_at: time of the restore, in UTC.
        state: the state of the checkpoint, with its kind as `framework`.
        restore_token: proves to this service that its holder made the new session.
        replayed_events_count: number of calls after the checkpoint that the new session has got.
        drift_detected: whether the new session differs from the original by now; null if that is not tracked.
        copied_call_count: number of calls until the checkpoint that the new session has got.
        in_doubt: the writes of the original that had begun and not ended.
        later_writes: the writes of the original after the checkpoint that the new session has not got. If it makes
            them, they are made twice.
        drifts: the differences by now.
        new_checkpoint_id: id of the checkpoint that the new session begins with.
    """

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
    """What a restored session has done so far, compared with the original.

    Attributes:
        session_id: id of the restored session.
        original_session_id: id of the original.
        checkpoint_id: the checkpoint that it was restored from.
        is_ended: whether the restored session has come to its end. Until then nothing is missing that may still come.
        calls: number of its calls that have ended.
        drift_detected: whether a drift is as severe as the tolerance of the service allows not.
        worst: the greatest severity; null without drifts.
        counts: number of drifts by severity.
        drifts: the drifts.
    """

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
    """A checkpoint.

    Attributes:
        state: the state as the journal has it, with its kind as `framework`.
    """

    state: dict[str, Any]


class _State(msgspec.Struct, frozen=True):
    id: str
    framework: str
    state: dict[str, Any]


class _StateLine(msgspec.Struct, frozen=True):
    checkpoint: _State


# Records


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a restored session.

    Attributes:
        fingerprint: hash of the request.
        salt: makes the token another than that of the same key elsewhere.
        token: hash of the token.
        track_drift: as in the request.
        run: the run of the new journal.
        original_run: the run of the original session whose checkpoint it is.
        journal: the name of the new journal.
        response: the answer, without the token.
    """

    fingerprint: str
    salt: str
    token: str
    track_drift: bool
    run: str
    original_run: str
    journal: str
    response: RestoreResponse

    def is_token(self, token: str) -> bool:
        """Whether a token is the one that the restore has answered."""
        return compare_digest(self.token, _hash(token))


_state_decoder = msgspec.json.Decoder(_StateLine)
_CHECKPOINT = b'{"checkpoint":'
_NO_EFFECT = ("error", "cancelled", "unfinished")  # the latter two are in doubt


def _hash(*parts: str, key: str = "") -> str:
    digest = blake2b(digest_size=32, key=key.encode())
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


class CheckpointStore:
    """The checkpoints of a directory of journals. Every method may be called from any thread, and waits for the disk.

    Args:
        directory: the directory.
        tolerance: what of a drift is accepted.

    Attributes:
        index: the list of the checkpoints.

    Raises:
        ConfigurationError: if it is not a directory.
    """

    def __init__(self, directory: str | os.PathLike[str], *, tolerance: Tolerance | None = None) -> None:
        try:
            self._directory = Path(os.path.realpath(directory))
            is_directory = self._directory.is_dir()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"store must be a directory of journals, got {directory!r}") from error
        if not is_directory:
            raise ConfigurationError(
                f"store must be a directory of journals, and {str(directory)!r} is none; create it first, if no "
                "session has written a journal yet"
            )
        self._records = self._directory / RECORDS
        self._tolerance = Tolerance() if tolerance is None else tolerance
        self.index = CheckpointIndex(self._directory)

    def read(self, row: Row) -> StoredCheckpoint | None:
        """A checkpoint of the list with its state. None if it is gone."""
        for _ in range(2):
            try:
                descriptor = open_journal(self._directory / row.journal)
                try:
                    found = _state_decoder.decode(os.pread(descriptor, row.length, row.start)).checkpoint
                finally:
                    os.close(descriptor)
                if found.id == row.entry.id:
                    state = {"framework": found.framework, **found.state}
                    return StoredCheckpoint(**msgspec.structs.asdict(row.entry), state=state)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                pass  # it was replaced since it was listed
            self.index.forget(row.journal)
            again = self.index.find(row.entry.id)
            if again is None:
                return None
            row = again
        return None

    # Restoring

    def restore(self, row: Row, request: RestoreRequest, key: str | None = None) -> RestoreResponse | None:
        """Make a session that goes on from a checkpoint. None if the checkpoint is gone.

        Args:
            row: the checkpoint, from the list.
            request: what is asked for.
            key: idempotency key: the same key, checkpoint and request give the same answer, and one session.

        Raises:
            KeyReusedError: if the key was used with another request.
            SessionExistsError: if the request names a session that has a journal.
            NotRestorableError: if the journal is broken.
            NotComparableError: if drift is to be tracked, and nothing can be compared with this session.
            OSError: if something cannot be written.
        """
        secret = secrets.token_hex(16) if key is None else key
        fingerprint = _hash(encode(request).decode())
        self._records.mkdir(mode=0o700, exist_ok=True)
        path = self._records / f"{_hash(row.entry.id, secret)}.json"
        stage = path.with_suffix("")
        with self._locked():
            record = _record_at(path)
            if record is not None and record.fingerprint != fingerprint:
                raise KeyReusedError("this key was used with another request")
            if record is None:
                checkpoint = self.read(row)
                if checkpoint is None:
                    return None
                if request.session_id and self.index.journal_of(request.session_id) is not None:
                    raise SessionExistsError(request.session_id)
                salt = secrets.token_hex(16)
                record = self._stage(stage, checkpoint, self._directory / row.journal, request)
                record = msgspec.structs.replace(
                    record, fingerprint=fingerprint, salt=salt, token=_hash(_token(secret, salt))
                )
                _write_private(path, [encode(record) + b"\n"])
            if (staged := stage / record.journal).exists():
                if not self._publish(staged, record):
                    path.unlink()
                    shutil.rmtree(stage)
                    raise SessionExistsError(record.response.new_session_id)
                self._name_after_session(path, record.response.new_session_id)
            shutil.rmtree(stage, ignore_errors=True)
            return msgspec.structs.replace(record.response, restore_token=_token(secret, record.salt))

    def _stage(self, stage: Path, checkpoint: StoredCheckpoint, original: Path, request: RestoreRequest) -> Restored:
        """Make the new journal where nobody sees it, and the record but for its hashes."""
        session_id = request.session_id or str(uuid.uuid4())
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(mode=0o700)
        until = _known(lambda: _without_state(checkpoint))
        path = _known(
            lambda: branch_journal(original, session_id, until=until, directory=stage, events=request.replay_events)
        )
        new_checkpoint_id = _rename_checkpoints(path, checkpoint.id, request.label)
        new = _known(lambda: read_journal(path))
        source = _known(lambda: read_journal(original))  # it may have grown, and has all that the new one has
        later = _known(lambda: events_after(source.calls, until))
        copied = {call.id for call in new.calls}
        replayed = [call for call in later if call.id in copied]
        drifts = self._drifts(source, new) if request.track_drift else []
        response = RestoreResponse(
            checkpoint_id=checkpoint.id,
            original_session_id=checkpoint.session_id,
            new_session_id=session_id,
            restored_at=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            state=checkpoint.state,
            restore_token="",
            replayed_events_count=len(replayed),
            drift_detected=self._tolerance.fails(drifts) if request.track_drift else None,
            copied_call_count=len(new.calls) - len(replayed),
            in_doubt=[
                WriteInDoubt(id=one.id, name=one.name, arguments=one.arguments, key=one.key) for one in source.in_doubt
            ],
            later_writes=[
                Write(id=call.id, name=call.name, arguments=call.arguments)
                for call in later
                if isinstance(call, RecordedCall)
                and call.is_write
                and call.outcome.keys().isdisjoint(_NO_EFFECT)
                and call.id not in copied
            ],
            drifts=[_drift(one, is_provisional=True) for one in drifts],
            new_checkpoint_id=new_checkpoint_id,
        )
        return Restored(
            fingerprint="", salt="", token="", track_drift=request.track_drift, run=new.run, original_run=source.run,
            journal=path.name, response=response,
        )  # fmt: skip

    def _publish(self, staged: Path, record: Restored) -> bool:
        """Put the new journal in its place. False if the session has another."""
        try:
            os.link(staged, self._directory / staged.name)
        except FileExistsError:
            # A server that was killed may have put this one there, and the session may be over by now.
            return self.index.journal_of(record.response.new_session_id, record.run) is not None
        sync_directory(self._directory)
        return True

    def _name_after_session(self, record: Path, session_id: str) -> None:
        """Give a record another name, by which the session finds it. The session may have had one before."""
        name = self._session_record(session_id)
        link = name.with_suffix(f".{secrets.token_hex(8)}")
        os.link(record, link)
        link.replace(name)
        link.unlink(missing_ok=True)  # two names of one file: the system has nothing to replace, and keeps both
        sync_directory(self._records)

    def _session_record(self, session_id: str) -> Path:
        return self._records / f"session-{_hash(session_id)}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
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
        record = _record_at(self._session_record(session_id))
        return record if record is not None and record.track_drift else None

    def drift(self, restored: Restored) -> DriftOfSession:
        """Compare a restored session with the original.

        Raises:
            NotRestorableError: if the journal of one of them is gone or broken.
            NotComparableError: if the two cannot be compared.
        """
        answer = restored.response
        new = self._journal(answer.new_session_id, restored.run)
        original = self._journal(answer.original_session_id, restored.original_run)
        drifts = self._drifts(original, new)
        about = DriftReport(tuple(drifts), len(new.calls)).to_dict()
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
        name = self.index.journal_of(session_id, run)
        if name is None:
            raise NotRestorableError(f"the journal of the session {session_id!r} is gone")
        return _known(lambda: read_journal(self._directory / name))

    def _drifts(self, original: StoredJournal, new: StoredJournal) -> list[DriftEvent]:
        """The drifts of a session from the original, as far as both have got.

        Calls that may still come are not missing, and calls beyond the end of an original that was killed are not
        extra: it has nothing to compare them with.
        """
        approved, other = _known(lambda: (Cassette.load(original.path), Cassette.load(new.path)))
        if not _judged(approved) or not _judged(other):
            return []
        approved.is_partial = other.is_partial = False
        are_whole = original.is_sealed and new.is_sealed
        tolerance = self._tolerance if are_whole else replace(self._tolerance, tokens=None)
        try:
            drifts = Baseline(approved).compare(other, tolerance)
        except (CassetteError, ConfigurationError) as error:
            raise NotComparableError(str(error)) from error
        if not original.is_sealed and not any(one.kind == "missing" for one in drifts):
            place = {number: place for place, number in enumerate(_judged(other))}
            beyond = {one.call_id for one in drifts if one.kind in ("extra", "repeated")}
            last = max((place[number] for number in place if number not in beyond), default=-1)
            drifts = [
                one for one in drifts if one.call_id is None or one.call_id not in beyond or place[one.call_id] < last
            ]
        return drifts if new.is_sealed else _without_trailing(drifts, approved)


def _judged(cassette: Cassette) -> list[int]:
    """Ids of the calls that are compared, in the order in which they ended: times and random numbers are not."""
    return [call.id for call in cassette if call.kind != "env"]


def _without_trailing(drifts: list[DriftEvent], approved: Cassette) -> list[DriftEvent]:
    """The drifts without the calls that are missing at the end, which may still come. Identical calls are one call."""
    index_of = approved.outline.index_of()

    def identity(number: int | None) -> tuple[str, str]:
        call = approved[index_of(number or 0)]
        return call.name, call.digest + call.asker

    missing = Counter(identity(one.call_id) for one in drifts if one.kind == "missing")
    trailing: Counter[tuple[str, str]] = Counter()
    for number in reversed(_judged(approved)):
        if trailing[identity(number)] == missing[identity(number)]:
            break
        trailing[identity(number)] += 1
    kept: list[DriftEvent] = []
    for one in reversed(drifts):
        if one.kind == "missing" and trailing[identity(one.call_id)]:
            trailing[identity(one.call_id)] -= 1
        else:
            kept.append(one)
    return kept[::-1]


def _record_at(path: Path) -> Restored | None:
    """The record in a file; None if there is none.

    Raises:
        NotRestorableError: if it is broken.
    """
    try:
        with os.fdopen(open_journal(path), "rb") as file:
            return msgspec.json.decode(file.read(), type=Restored)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotRestorableError(f"the record {path.name} is broken: {error}") from error


def _write_private(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file in one step, which only its owner may read."""
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)  # of a server that was killed here
    with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _token(secret: str, salt: str) -> str:
    """The token of a restore: it can be computed again from the idempotency key, and not from what is in the files."""
    return _hash("restore token", secret, key=salt)


def _rename_checkpoints(path: Path, until: str, label: str) -> str:
    """Give the checkpoints of a branch ids of their own, and its last one a label. Returns the id of that one."""
    redact = _known(lambda: read_journal(path)).header.redact
    label = Redaction().joined({**redact, "hook": False}).text(label)
    new_id = uuid.uuid4().hex

    def renamed(line: bytes) -> bytes:
        if not line.startswith(_CHECKPOINT):
            return line
        data = msgspec.json.decode(line)
        checkpoint = data["checkpoint"]
        is_last = checkpoint["id"] == until
        checkpoint["id"] = new_id if is_last else uuid.uuid4().hex
        if is_last:
            checkpoint["label"] = label or f"restored from {until[:8]}"
        return encode(data) + b"\n"

    with path.open("rb") as source:
        _write_private(path, map(renamed, source))
    return new_id


def _without_state(checkpoint: StoredCheckpoint) -> Checkpoint:
    """The place of a checkpoint in its run."""
    fields = {name: getattr(checkpoint, name) for name in CheckpointEntry.__struct_fields__ if name != "framework"}
    return Checkpoint(**fields, state={})


def _drift(event: DriftEvent, *, is_provisional: bool) -> Drift:
    return msgspec.convert({**event.to_dict(), "provisional": is_provisional}, Drift)


def _known(read: Callable[[], T]) -> T:
    """What a function returns, which reads journals.

    Raises:
        NotRestorableError: if one is gone or broken.
    """
    try:
        return read()
    except CassetteNotFound as error:
        raise NotRestorableError("the journal is gone") from error
    except (CassetteError, CheckpointError, ConfigurationError) as error:
        raise NotRestorableError(f"the journal cannot be used: {error}") from error
