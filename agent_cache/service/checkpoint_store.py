"""A directory of journals as a store of checkpoints: what is listed, read, restored and compared there.

A restore makes one file, the journal of the new session, which is put in place in one step and never replaces another.
Its header has the record of the restore: hashes of the idempotency key, the request and the token, and the answer. So
the same request, sent again, to this server or to another one, finds the session that it has made.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException

from agent_cache.errors import CassetteError, CassetteNotFound, CheckpointError, ConfigurationError
from agent_cache.recording.differences import pair_runs, read_run
from agent_cache.recording.drift import Baseline, DriftEvent, DriftReport, Tolerance
from agent_cache.recording.encryption import decrypted
from agent_cache.recording.file import RecordedCall, now_text, read_bytes
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


class Write(msgspec.Struct, frozen=True, omit_defaults=True):
    """A write of the original session; with its idempotency key, if it had begun and not ended."""

    id: int
    name: str
    arguments: dict[str, Any]
    key: str = ""


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
    drifts: list[dict[str, Any]]


class StoredCheckpoint(CheckpointEntry, frozen=True, kw_only=True):
    """A checkpoint."""

    state: dict[str, Any]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a restore in the header of the new journal. `key` and `token` are hashes."""

    key: str
    request: str
    token: str
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
    """A file when it was read: inode, size and time of change; header; checkpoints; up to where it stays as it is."""

    stamp: tuple[int, int, int]
    header: JournalHeader | None
    entries: list[CheckpointEntry]
    end: int = 0


class CheckpointStore:
    """The checkpoints of a directory of journals. Every method may be called from any thread, and waits for the disk.

    The list is kept in memory. Before each query, files that have changed are read, of a longer one the new lines.

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

    # The list

    def listed(self, session_id: str | None, label: str | None, after: Position | None) -> list[CheckpointEntry]:
        """The checkpoints of a session, of exactly this label, after a place in the list; newest first."""
        self._refresh()
        of_session = (one for one, _ in self._by_id.values() if session_id in (None, one.session_id))
        found = (one for one in of_session if label in (None, one.label))
        found = (one for one in found if after is None or position_of(one) < after)
        return sorted(found, key=position_of, reverse=True)

    def find(self, checkpoint_id: str) -> CheckpointEntry | None:
        """The checkpoint of an id."""
        self._refresh()
        return self._by_id.get(checkpoint_id, (None,))[0]

    def _refresh(self) -> None:
        with self._lock:
            found: dict[Path, _Journal] = {}
            for path in (one for one in self._directory.iterdir() if one.match("[!.]*.jsonl")):
                stamp = 0, 0, 0
                try:
                    about = path.stat()
                    stamp = about.st_ino, about.st_size, about.st_mtime_ns
                    known = self._journals.get(path)
                    found[path] = known if known and known.stamp == stamp else self._listed_in(path, stamp, known)
                except (FileNotFoundError, CassetteNotFound):  # it went while the directory was read
                    continue
                except (OSError, CassetteError, msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
                    _LOG.warning("%s cannot be read, so its checkpoints are not listed: %s", path.name, error)
                    found[path] = _Journal(stamp, None, [])
            if found != self._journals:
                # Of several files of one run, such as a copy of an earlier state, the longest is the journal.
                self._journals = found = dict(sorted(found.items(), key=lambda item: item[1].stamp[1]))
                self._by_id = {one.id: (one, path) for path, journal in found.items() for one in journal.entries}

    def _listed_in(self, path: Path, stamp: tuple[int, int, int], known: _Journal | None) -> _Journal:
        new = b""
        if known and known.end and known.stamp[0] == stamp[0]:
            with path.open("rb") as file:
                is_same = msgspec.json.decode(file.readline(), type=JournalHeader) == known.header
                file.seek(known.end - 1)
                new = file.read() if is_same else b""
        if known and known.header is not None and new.startswith(b"\n"):
            header, entries, end = known.header, known.entries, known.end
        else:  # it is another file, or was not read yet
            data, entries = read_bytes(path), []
            new = decrypted(path, data, self._key)
            header, end = msgspec.json.decode(new.partition(b"\n")[0], type=JournalHeader), int(new is data)
        new = new[: new.rfind(b"\n") + 1]
        lines = re.findall(rb'\n({"checkpoint".*)', new)
        fields = [msgspec.json.decode(line)["checkpoint"] | {"session_id": header.session_id} for line in lines]
        if end:  # a resume takes off other lines, and of an encrypted one it is not known where they are
            end += new.find(b"\n", max(new.rfind(b'\n{"id"'), new.rfind(b'\n{"checkpoint"')) + 1)
        return _Journal(stamp, header, [*entries, *msgspec.convert(fields, list[CheckpointEntry])], end)

    # One checkpoint

    def read(self, entry: CheckpointEntry) -> StoredCheckpoint:
        """A checkpoint of the list with its state."""
        with _readable(f"the checkpoint {entry.id!r}"):
            return self._with_state(entry, read_journal(self._by_id[entry.id][1], key=self._key))

    def _with_state(self, entry: CheckpointEntry, source: StoredJournal) -> StoredCheckpoint:
        found = next(one for one in source.checkpoints if one.id == entry.id)
        state = {"framework": found.framework, **state_data(found.state)}
        return StoredCheckpoint(**msgspec.structs.asdict(entry), state=state)

    def restore(self, entry: CheckpointEntry, request: RestoreRequest, key: str | None) -> RestoreResponse:
        """Make a session that goes on from a checkpoint.

        The same idempotency key, checkpoint and request give the same answer, and one session.
        """
        secret = key or secrets.token_hex(16)
        hashed, asked = _hash(entry.id, secret), _hash(encode(request).decode())
        if (found := self._made_by(hashed)) is None:
            session_id = request.session_id or str(uuid.UUID(hashed[:32]))  # so that two servers make the same file
            with _readable(f"the checkpoint {entry.id!r}"):
                source = read_journal(self._by_id[entry.id][1], key=self._key)
                label = Redaction().joined({**source.header.redact, "hook": False}).text(request.label)
                lines = branched_lines(
                    source.path, session_id, entry.id, events=request.replay_events,
                    label=label or f"restored from {entry.id[:8]}", key=self._key,
                )  # fmt: skip
                new = StoredJournal(source.path, b"".join(lines))
                made = Restored(
                    key=hashed, request=asked, token=_hash(_hash(secret, new.run)), original_run=source.run,
                    response=self._response(self._with_state(entry, source), request, source, new),
                )  # fmt: skip
                lines[0] = encode(msgspec.structs.replace(new.header, restored=msgspec.to_builtins(made))) + b"\n"
                found = made, new.run
                try:
                    write_new(journal_path(self._directory, session_id), lines, source.path, self._key)
                except FileExistsError:  # another request was faster, or the session was there
                    if (found := self._made_by(hashed)) is None:
                        raise Refused(409, "there is a session of this id already", "session_id") from None
        made, run = found
        if made.request != asked:
            raise Refused(422, "this key was used for another request to this checkpoint", "Idempotency-Key")
        return msgspec.structs.replace(made.response, restore_token=_hash(secret, run))

    def _restores(self) -> Iterator[tuple[Restored, str]]:
        """The restores that have made sessions here, and the names of their runs, which no answer has."""
        self._refresh()
        for _, header, *_ in self._journals.values():
            if header is not None and header.restored is not msgspec.UNSET:
                with suppress(msgspec.ValidationError):  # of another version
                    yield msgspec.convert(header.restored, Restored), header.run

    def _made_by(self, hashed: str) -> tuple[Restored, str] | None:
        return next((one for one in self._restores() if one[0].key == hashed), None)

    def _response(
        self, checkpoint: StoredCheckpoint, request: RestoreRequest, source: StoredJournal, new: StoredJournal
    ) -> RestoreResponse:
        copied, doubts = {call.id for call in new.calls}, {one.id: one for one in source.in_doubt}
        later = [one for one in events_after(source, checkpoint) if isinstance(one, RecordedCall)]
        replayed = sum(call.id in copied for call in later)
        return RestoreResponse(
            checkpoint_id=checkpoint.id,
            original_session_id=checkpoint.session_id,
            new_session_id=new.session_id,
            restored_at=now_text(),
            state=checkpoint.state,
            restore_token="",
            replayed_events_count=replayed,
            drift_detected=False if request.track_drift else None,  # by now the two have done the same
            copied_call_count=len(copied) - replayed,
            in_doubt=[Write(one.id, one.name, one.arguments, one.key) for one in doubts.values()],
            later_writes=[
                Write(call.id, call.name, call.arguments)
                for call in later
                if call.is_write and call.id not in copied and "error" not in call.outcome and call.id not in doubts
            ],
            new_checkpoint_id=next(one.id for one in new.checkpoints if one.sequence == checkpoint.sequence),
        )

    # The drift of a restored session

    def restored(self, session_id: str) -> tuple[Restored, str] | None:
        """The restore that made a session whose drift is tracked, and its run. None for any other session."""
        found = (one for one in self._restores() if one[0].response.new_session_id == session_id)
        return next((one for one in found if one[0].response.drift_detected is not None), None)

    def drift(self, restored: Restored, run: str) -> DriftOfSession:
        """Compare a restored session with the original, as far as both have got.

        While it goes on, nothing is missing. What it does beyond the end of an original that was killed has nothing to
        be compared with.
        """
        answer = restored.response
        with _readable(f"the session {answer.new_session_id!r}"):
            new, original = self._journal_of(run), self._journal_of(restored.original_run)
            tolerance, drifts = self._tolerance, list[DriftEvent]()
            if not (original.is_sealed and new.is_sealed):
                tolerance = msgspec.structs.replace(tolerance, tokens=None)
            if all(any(call.kind != "env" for call in journal.calls) for journal in (original, new)):
                drifts = Baseline(original.cassette).compare(new.cassette, tolerance)
                if not original.is_sealed and all(one.kind != "missing" for one in drifts):
                    pairs = pair_runs(read_run(original.cassette), read_run(new.cassette))
                    places = {call.id: place for place, call in enumerate(new.calls)}
                    last = max(places[other.call.id] for one, other, _ in pairs if one and other)
                    drifts = [one for one in drifts if places[one.call_id or 0] <= last]
            drifts = [one for one in drifts if new.is_sealed or one.kind != "missing"]
        return DriftOfSession(
            session_id=answer.new_session_id,
            original_session_id=answer.original_session_id,
            checkpoint_id=answer.checkpoint_id,
            is_ended=new.is_sealed,
            drift_detected=self._tolerance.fails(drifts),
            **DriftReport(tuple(drifts), len(new.calls)).to_dict(),
        )

    def _journal_of(self, run: str) -> StoredJournal:
        """The journal of a run."""
        found = [path for path, one in self._journals.items() if one.header is not None and one.header.run == run]
        if not found:
            raise CassetteError(f"the journal of the run {run} is gone")
        return read_journal(found[-1], key=self._key)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Answer that journals which are read here are gone, broken, or of other agents."""
    try:
        yield
    except (CassetteError, CheckpointError, ConfigurationError, LookupError, StopIteration) as error:
        _LOG.warning("%s cannot be restored or judged: %s", what, error)
        raise Refused(409, "a journal that is needed is gone, broken, or of another agent") from error
