"""Writing of files under a lock: line by line beside the old one, whose place they take in one step."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agent_cache.at_fork import lock_of
from agent_cache.errors import CassetteError
from agent_cache.recording.file import partial_of

try:
    import fcntl
except ImportError:  # Windows: only recorders and sessions of one process exclude each other there
    fcntl = None  # type: ignore[assignment]


_LOG = logging.getLogger("agent_cache")
_VARYING = re.compile(r".*(request-?id|ratelimit.*|processing-ms)|set-cookie|x-amz-id-2")  # headers
_OF_JOURNAL = b'{"agent_cache_journal":'

_open_paths: set[str] = set()
_lock = lock_of(__name__)


class PartialFile:
    """A file that is written line by line and takes the place of another file when it is finished.

    Each line is handed to the operating system at once, so that it survives a killed process. A forked child writes
    nothing to the file. If the path is a symbolic link, the file that it leads to is written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._process = path, os.getpid()
        with _lock, self.reported():
            self.partial = partial_of(path)
            self._target = Path(os.path.realpath(path))
            self._check_target()
            self._mode = self._target.stat().st_mode & 0o777 if self._target.exists() else 0o666
            self._key = os.path.normcase(self._target)  # Windows knows no case
            if self._key in _open_paths:
                raise _taken(path)
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            self._sorted = self.partial.with_name(self.partial.name + ".sorted")
            with suppress(FileNotFoundError):
                self._sorted.lstat()  # an error for a name that would be too long at the end
            try:
                self._descriptor = open_locked(self.partial, self._mode)
            except BlockingIOError:
                raise _taken(path) from None
            self._keep_remains()
            _open_paths.add(self._key)

    def append(self, line: bytes) -> None:
        """Write a line."""
        if os.getpid() == self._process and (done := os.write(self._descriptor, line)) < len(line):
            write_whole(self._descriptor, line[done:])

    def finish(self, sort: Callable[[], Iterable[bytes]] | None = None) -> None:
        """Replace the old file, by the lines that `sort` makes of the written ones.

        An old file that has the same calls stays as it is then, with its times.
        """
        with self._closing() as is_own:
            if not is_own:
                return
            if sort is None:
                if fcntl is not None:
                    os.fsync(self._descriptor)
                self.partial.replace(self._target)
                return
            content = b"".join(sort())
            old = self._target.read_bytes() if self._target.exists() else b""  # git may have ended its lines otherwise
            if list(map(_without_times, content.splitlines())) != list(map(_without_times, old.splitlines())):
                try:
                    with _created(self._sorted, self._mode) as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file)
                    self._sorted.replace(self._target)
                finally:
                    self._sorted.unlink(missing_ok=True)
            self.partial.unlink()

    def discard(self, *, keeps_lines: bool = False) -> None:
        """Leave the old file as it is, and delete the lines, unless they are kept beside it."""
        with self._closing() as is_own:
            if is_own and not keeps_lines:
                self.partial.unlink(missing_ok=True)

    @contextmanager
    def _closing(self) -> Iterator[bool]:
        """Close the file behind what is done. False in a forked child, which leaves the files to its parent."""
        try:
            with self.reported(f"; the recording is in {self.partial.name}"):
                if fcntl is None:  # Windows neither renames nor deletes a file that is open
                    os.fsync(self._descriptor)
                    os.close(self._descriptor)
                yield os.getpid() == self._process
        finally:
            _open_paths.discard(self._key)
            if fcntl is not None:
                os.close(self._descriptor)

    @contextmanager
    def reported(self, advice: str = "") -> Iterator[None]:
        """Report errors of the system as ours."""
        try:
            yield
        except (OSError, ValueError) as error:  # the latter for a name that has a null in it
            reason = getattr(error, "strerror", None) or error
            raise CassetteError(f"cannot be written: {reason}{advice}", self.path) from error

    def _check_target(self) -> None:
        if not self._target.exists():
            return
        if not self._target.is_file():
            raise CassetteError("cannot be written: it is not a regular file", self.path)
        if not os.access(self._target, os.W_OK):
            raise CassetteError("cannot be written: it is read-only", self.path)
        with self._target.open("rb") as file:
            start = file.read(len(_OF_JOURNAL)).removeprefix(b"\xef\xbb\xbf").lstrip()
        if start == _OF_JOURNAL:
            raise CassetteError("cannot be written: it is a journal, by which a run is resumed", self.path)
        if start and not start.startswith((b"{", b"<<<<<<< ")):
            raise CassetteError("would be lost: it is no recording; give another path, or delete it", self.path)

    def _keep_remains(self) -> None:
        """Copy aside what a killed recording has left. Only the latest is kept."""
        try:
            if os.fstat(self._descriptor).st_size:
                remains = self.partial.with_name(self.partial.name + ".old")
                with self.partial.open("rb") as left, _created(remains, self._mode) as file:
                    shutil.copyfileobj(left, file)
                os.ftruncate(self._descriptor, 0)
                _LOG.warning("%s was left by a recording that was killed; it is kept as %s", self.partial, remains.name)
        except OSError:
            os.close(self._descriptor)
            raise


def _created(path: Path, mode: int) -> BinaryIO:
    """A new file in the place of what stands there: a link that another user has put there is not followed."""
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def _taken(path: Path) -> CassetteError:
    return CassetteError("is being recorded by another recorder; only one at a time can record to a path", path)


def _without_times(line: bytes) -> Any:
    """What a line says, other than when and how long a run was, and what a server says anew in each response."""
    if not line.startswith((b'{"trailer":', b'{"agent_cache_cassette"')) and b'"response":{"status":' not in line:
        return line
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line
    (data.get("trailer") or {}).pop("duration_ms", None)
    headers = ((data.get("outcome") or {}).get("response") or {}).get("headers") or {}
    for name in filter(_VARYING.fullmatch, [*headers]):
        del headers[name]
    return {name: one for name, one in data.items() if name not in ("recorded_at", "times")}


def open_locked(path: Path, mode: int, flags: int = 0) -> int:
    """Open a file, create it if there is none, and take its lock without waiting.

    Raises:
        BlockingIOError: if another process, or another part of this one, has it.
    """
    flags |= os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        descriptor = os.open(path, flags, mode)
        try:
            if fcntl is None:
                return descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner has renamed it meanwhile


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of the data: `os.write` may write a part of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def is_being_recorded(path: Path) -> bool:
    """Whether a tape of this process is writing this path."""
    return os.path.normcase(os.path.realpath(path)) in _open_paths


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file in one step: a reader sees the old one or the new one. The old one stays if that fails."""
    file = PartialFile(path)
    try:
        with file.reported():
            file.append(b"".join(lines))
    except BaseException:
        file.discard()
        raise
    file.finish()
