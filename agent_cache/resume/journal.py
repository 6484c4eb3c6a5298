"""The file of a journal: its name, its lines, reading it, and writing it under a lock. JSON Lines, version 1.

docs/reference/journal-format.md has the lines. One process writes, the others read as they like: each line is one
`os.write` at the end of the file, and a line that could not be written as a whole is taken back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec

from agent_cache.at_fork import at_fork
from agent_cache.errors import CassetteError, CassetteNotFound, JournalError
from agent_cache.recording.cassette import Cassette, apply_rules, recorded_rules
from agent_cache.recording.encryption import LineCipher, decrypted, is_encrypted, key_of
from agent_cache.recording.file import (
    JOURNAL_VERSION,
    Intent,
    OpenCall,
    RecordedCall,
    check_version,
    is_inside,
    now_text,
    read_bytes,
)
from agent_cache.recording.outcomes import encode
from agent_cache.recording.partial_file import open_locked, write_whole
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.checkpoints import Checkpoint, checkpoint_of

__all__ = ["StoredJournal", "branch_journal", "read_journal"]

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_MAX_NAME = 180  # bytes of an escaped id: with the part for a sealed journal and the suffix, file systems take 255


def journal_path(directory: Path, session_id: str) -> Path:
    """The file of a session's journal. Two ids never have one file, also where case does not matter."""
    raw = session_id.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if len(name) > _MAX_NAME:  # a tilde is in no other name
        name = f"{name[: _MAX_NAME - 40]}~{blake2b(raw, digest_size=16).hexdigest()}"
    return directory / f"{name}.jsonl"


@contextmanager
def _reported(path: Path, action: str) -> Iterator[None]:
    """Raise errors of the system, and of cassettes, as those of a journal that cannot be read or written."""
    try:
        yield
    except JournalError:
        raise
    except CassetteNotFound:
        raise CassetteNotFound("there is no journal", path) from None
    except CassetteError as error:
        raise JournalError(error.reason.removesuffix("; record it again"), error.path, error.line) from error
    except OSError as error:
        raise JournalError(f"cannot be {action}: {error.strerror or error}", path) from error


# Lines


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        agent_cache_journal: version of the format.
        session_id: id of the session.
        recorded_at: when the run began, in UTC.
        run: random; names this run of the session.
        secret: random; key of the places and of the idempotency keys.
        redact, http: as in the header of a cassette.
        restored: of a session that the service has restored: the record of that.
    """

    agent_cache_journal: int = JOURNAL_VERSION
    session_id: str
    recorded_at: str = msgspec.field(default_factory=now_text)
    run: str = msgspec.field(default_factory=lambda: os.urandom(16).hex())
    secret: str = msgspec.field(default_factory=lambda: os.urandom(16).hex())
    redact: dict[str, Any] = {}
    http: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    restored: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_SINGLE = ("BaseException", "BaseExceptionGroup", "GeneratorExit", "KeyboardInterrupt", "SystemExit")
_NO_ANSWERS = frozenset({*_SINGLE, *(f"builtins:{name}" for name in _SINGLE)})
"""Exceptions that end the run and not the call: they are given back to nobody."""


def is_answer(outcome: dict[str, Any]) -> bool:
    """Whether a call with this outcome has ended by itself, so that a resumed run gets its outcome.

    One that was cancelled, that the end of the process has cut off, or whose stream was left, has not: a read runs
    again, a write is in doubt.
    """
    if "cancelled" in outcome or "unfinished" in outcome or "closed" in outcome:
        return False
    if "error" in outcome:
        error = outcome["error"]
        return error.get("type") not in _NO_ANSWERS and error.get("base") not in _NO_ANSWERS
    inner = outcome.get("stream") or outcome.get("response") or {}
    return not inner.get("end") or is_answer(inner["end"])


class _Noted(threading.local):
    is_changed = False


class NotingRedaction(Redaction):
    """Rules of redaction that note, in each thread, whether they have changed anything: that cannot be given back."""

    def __init__(self, rules: Redaction) -> None:
        self.__dict__.update(vars(rules))
        self.rules = rules
        self.noted = _Noted()

    def apply(self, data: Any) -> Any:
        return self._compared(data, self.rules.apply(data))

    def text(self, text: str, depth: int = 0) -> str:
        return str(self._compared(text, self.rules.text(text, depth)))

    def labelled(self, name: str, text: str) -> str:
        return str(self._compared(text, self.rules.labelled(name, text)))

    def is_secret(self, name: str) -> bool:
        self.noted.is_changed |= (found := self.rules.is_secret(name))
        return found

    def _compared(self, before: Any, after: Any) -> Any:
        self.noted.is_changed |= after is not before and after != before
        return after


# Reading


class StoredJournal:
    """A journal as it was when it was read.

    Attributes:
        path: the file.
        header: the first line.
        session_id, run: id of the session, and the name of this run of it.
        cassette: its calls, to be answered from.
        begun: the writes that have begun, and the other calls that enclose calls, by id.
        is_torn: whether a line without its end follows, of a process that was killed while it wrote it.
    """

    def __init__(self, path: Path, text: bytes, *, is_torn: bool = False) -> None:
        self.path, self.is_torn = path, is_torn
        self.header = _header_of(path, text.partition(b"\n")[0])
        self.session_id, self.run = self.header.session_id, self.header.run
        self.cassette = Cassette.read(path, text)
        if not all(call.place for call in self.cassette):
            raise JournalError("has a call without a place", path)
        self.cassette.is_partial = False  # it is resumed, and not replayed as it is
        others = self.cassette.others
        begun = [one.intent or one.open for _, one in others]
        self.begun: dict[int, OpenCall] = {one.id: one for one in begun if one is not None}
        made, self.idle = {one.id for one in self.cassette.intents}, 0
        for number, one in reversed(others):  # lines at the end by which nothing was made
            if number + self.idle != text.count(b"\n") or (one.intent.id in made if one.intent else not one.resumed):
                break
            self.idle += 1
        self._checkpoints = [(number, one.checkpoint) for number, one in others if bytes(one.checkpoint)]

    @property
    def is_sealed(self) -> bool:
        """Whether the run has come to its end. Else it can be resumed."""
        return self.cassette.trailer is not None

    @property
    def calls(self) -> Sequence[RecordedCall]:
        """The calls that have ended, in the order in which they ended."""
        return self.cassette.steps

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, in their order. A broken one raises `JournalError`."""
        found = []
        for number, raw in self._checkpoints:
            try:
                found.append(checkpoint_of(msgspec.json.decode(raw), self.session_id))
            except (msgspec.DecodeError, ValueError) as error:
                raise JournalError(f"this checkpoint is broken: {error}", self.path, number) from error
        return found

    @property
    def in_doubt(self) -> list[Intent]:
        """The writes that had begun and may or may not have taken effect, in the order in which they began."""
        ended = {call.id for call in self.calls if is_answer(call.outcome)}
        begun = [one for _, one in sorted(self.intents.items()) if not one.refused]
        return [one for one in begun if not is_inside(one.id, ended, self.parents)]

    @property
    def intents(self) -> dict[int, Intent]:
        """The writes that have begun, by id."""
        return {number: one for number, one in self.begun.items() if isinstance(one, Intent)}

    @cached_property
    def parents(self) -> dict[int, int | None]:
        """The calls that enclose calls, by id."""
        return {number: one.parent for number, one in self.begun.items()} | {one.id: one.parent for one in self.calls}


def read_journal(path: str | os.PathLike[str], *, key: bytes | None = None) -> StoredJournal:
    """Read a journal, also one that is being written. Nothing is locked or changed. A torn last line is left out.

    Args:
        path: the file.
        key: of a journal that has one; by default the environment variable ``AGENT_CACHE_JOURNAL_KEY`` has it, in
            hexadecimal digits. Its calls are redacted when they are read, by the names and patterns of its `Journal`.

    Raises:
        CassetteNotFound: if there is no such file.
        JournalError: if it cannot be read or decrypted, is no journal, or one of a newer version; with the line.
    """
    found, data = _read(Path(path), key)
    if is_encrypted(data):  # it is as the run has seen it
        rules = Redaction().joined(recorded_rules(found.cassette))
        apply_rules(found.cassette, rules)
        for number, one in found.intents.items():
            found.begun[number] = msgspec.structs.replace(one, arguments=rules.apply(one.arguments))
    return found


def _read(path: Path, key: bytes | None) -> tuple[StoredJournal, bytes]:
    with _reported(path, "read"):
        data = read_bytes(path)
        found = _stored_in(path, data, key)
    if found is None:
        raise JournalError("is empty: its run was killed before it made a call", path)
    return found, data


def _stored_in(path: Path, data: bytes, key: bytes | None) -> StoredJournal | None:
    """The journal that a file of this content is; None if there is not even a header."""
    whole = data[: data.rfind(b"\n") + 1]
    # A machine that stops may leave zeros where the rest should be.
    if not whole and b'{"agent_cache_journal":'.startswith(data.rstrip(b"\0")[:23]):
        return None
    return StoredJournal(path, decrypted(path, whole, key), is_torn=len(whole) < len(data))


def _header_of(path: Path, line: bytes) -> JournalHeader:
    try:
        version = msgspec.json.decode(line)["agent_cache_journal"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        raise JournalError("is no journal of agent-cache", path, 1) from None
    check_version(path, version, JOURNAL_VERSION, JournalError)
    try:
        return msgspec.json.decode(line, type=JournalHeader)
    except msgspec.DecodeError as error:
        raise JournalError(f"its header is broken: {error}", path, 1) from error


# Writing

_open_files: WeakSet[JournalFile] = WeakSet()


class JournalFile:
    """A journal that this process may write, and no other, nor a forked child. It is created if there is none.

    With a key each line is encrypted; if it `is_durable`, urgent lines wait for the disk.
    """

    def __init__(self, path: Path, *, is_durable: bool, key: bytes | None = None) -> None:
        self.path, self.is_closed = path, False
        self._is_durable, self._key = is_durable, key
        self._cipher = None if key is None else LineCipher(key)
        self._size = self._lines = self._idle = 0
        with _reported(path, "opened and locked"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._descriptor = open_locked(path, 0o600, os.O_APPEND | getattr(os, "O_NONBLOCK", 0))
            except BlockingIOError:
                text = "is being written by another session of this id; only one at a time can make its run"
                raise JournalError(text, path) from None
            _open_files.add(self)
            if is_durable:
                _sync_directory(path.parent)

    def read(self) -> StoredJournal | None:
        """What is in it; None if not even a header. A torn line at the end is taken off."""
        with _reported(self.path, "read"):
            data = read_bytes(self.path)
            if b"\n" in data and is_encrypted(data) != (self._cipher is not None):
                how = "without a key=" if self._cipher is not None else "with a key=, which encrypts it"
                raise JournalError(f"was begun {how}, and can only be resumed as it was begun", self.path)
            found = _stored_in(self.path, data, self._key)
            is_first, self._size, self._lines = not self._size, data.rfind(b"\n") + 1, data.count(b"\n")
            self._idle = found.idle if found is not None and is_first else 0
            self._take_back()
        return found

    def append(self, *lines: bytes, is_urgent: bool = False) -> None:
        """Write lines, all of them or, as on a full disk, which raises `OSError`, none."""
        if self.is_closed:
            raise OSError(0, "an earlier line was not written")
        if self._idle:  # the new process has its line in the place of those of one that has done nothing
            kept = read_bytes(self.path).splitlines(keepends=True)[: -self._idle]
            self._size, self._lines, self._idle = sum(map(len, kept)), len(kept), 0
            self._take_back()
        if is_urgent:  # a resume must find the file, with what this process has written and nothing else
            is_there, own = self.path.exists(), os.fstat(self._descriptor)
            if not is_there or not os.path.samestat(self.path.stat(), own) or own.st_size != self._size:
                raise OSError(0, "it was moved, deleted or changed by somebody else; put it back to resume the run")
        if self._cipher is not None:
            lines = tuple(self._cipher.encrypt(line, self._lines + at) for at, line in enumerate(lines, 1))
        data = b"".join(lines)
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                write_whole(self._descriptor, data[written:])
            if is_urgent and self._is_durable:
                getattr(os, "fdatasync", os.fsync)(self._descriptor)
        except OSError:
            self._take_back()
            raise
        self._size += len(data)
        self._lines += len(lines)

    def set_aside(self, run: str) -> None:
        """Give a sealed journal the name of its run, and close it: the next run of the session has the name."""
        aside = self.path.with_name(f"{self.path.stem}.{run[:8]}.jsonl")
        try:
            with _reported(self.path, f"renamed to {aside.name}"):
                if os.name == "nt":  # Windows does not rename an open file
                    self.close()
                if aside.exists():
                    raise FileExistsError(0, "there is such a file")
                self.path.replace(aside)
        finally:
            self.close()

    def close(self) -> None:
        """Let another process have it."""
        if not self.is_closed:
            self.is_closed = True
            os.close(self._descriptor)

    def _take_back(self) -> None:
        """Remove what does not belong to a whole line."""
        try:
            if os.fstat(self._descriptor).st_size > self._size:
                os.ftruncate(self._descriptor, self._size)
        except OSError:
            self.close()  # nothing must be written behind half a line
            raise


def _sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    if os.name != "nt":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _leave_to_parent() -> None:
    """Close what a forked child has of its parent's: a lock is held as long as any copy of the descriptor is open."""
    for file in list(_open_files):
        file.close()


at_fork(after_in_child=_leave_to_parent)


# Branches


def branch_journal(
    source: str | os.PathLike[str],
    to_session_id: str,
    *,
    until: Checkpoint,
    directory: str | os.PathLike[str],
    events: bool = False,
    key: bytes | None = None,
) -> Path:
    """Make a journal for another session that goes on where a run was at a checkpoint.

    The new session gets the outcomes of the calls that had ended by then. Writes that it makes have keys of their own.
    Writes that had begun and not ended are in doubt in it, too, with the keys that they had.

    Args:
        source: the journal of the run, also one that is being written.
        to_session_id: id of the new session. It must not have a journal.
        until: a checkpoint of the run.
        directory: of the new journal.
        events: also take the calls that ended after the checkpoint, as far as the journal has them.
        key: as in `read_journal`. The new journal has the same.

    Returns:
        The new file.

    Raises:
        JournalError: if there is a journal of that session already, the checkpoint is not in the source, or a file
            cannot be read or written.
        CassetteNotFound: if there is no such source.
    """
    path, target = Path(source), journal_path(Path(directory), to_session_id)
    lines = branched_lines(path, to_session_id, until.id, events=events, key=key)
    with _reported(target, "written"):
        try:
            write_new(target, lines, path, key)
        except FileExistsError:
            raise JournalError(f"there is a journal of the session {to_session_id!r} already", target) from None
    return target


def branched_lines(
    path: Path, session_id: str, until: str, *, events: bool, label: str | None = None, key: bytes | None = None
) -> list[bytes]:
    """The lines of a branch: those of a run as they were at a checkpoint; with `events`, all but those of its end.

    Its checkpoints have ids of their own, and the last one this label, unless that is None. Calls that were cut off are
    left out, as in any journal that can be resumed.
    """
    old, data = _read(path, key)
    if until not in [one.id for one in old.checkpoints]:
        raise JournalError(f"has no checkpoint {until!r}", path)
    new = JournalHeader(session_id=session_id, secret=old.header.secret, redact=old.header.redact, http=old.header.http)
    lines, answers = [encode(new) + b"\n"], {call.id for call in old.calls if is_answer(call.outcome)}
    for line in decrypted(path, data[: data.rfind(b"\n") + 1], key).splitlines(keepends=True)[1:]:
        found = msgspec.json.decode(line)
        if checkpoint := found.get("checkpoint"):
            is_last = checkpoint["id"] == until
            if is_last and label is not None:
                checkpoint["label"] = label
            checkpoint["id"] = os.urandom(16).hex()
            lines.append(encode(found) + b"\n")
            if is_last and not events:
                break
        elif found.get("id") in answers or found.keys() & {"intent", "open"}:
            lines.append(line)
    return lines


def write_new(target: Path, lines: list[bytes], source: Path, key: bytes | None) -> None:
    """Write a journal in one step, encrypted as its source is. Only its owner may read it. It replaces none."""
    if is_encrypted(read_bytes(source)):
        cipher = LineCipher(key_of(source, key))
        lines = [cipher.encrypt(line, number) for number, line in enumerate(lines, 1)]
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.link(scratch, target)  # which never replaces a file
    finally:
        scratch.unlink(missing_ok=True)
    _sync_directory(target.parent)
