"""The file that a recording grows in: `PATH.partial`, renamed to `PATH` at the end, whatever the end is."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from agent_cache.errors import CassetteError

try:
    import fcntl
except ImportError:  # Windows: recorders of one process are told apart, those of several are not
    fcntl = None  # type: ignore[assignment]

__all__ = ["PartialFile", "is_being_recorded", "is_idle", "partial_of", "replace_file"]

_LOG = logging.getLogger("agent_cache")

_open_paths: set[str] = set()
_lock = threading.RLock()


class PartialFile:
    """A file that is written line by line and takes the place of another one when it is finished.

    Each line is handed to the operating system at once: what a killed process had recorded is there. A child that was
    forked has the file, too, and writes nothing to it. Where the path is a symbolic link, the file that it leads to is
    written.

    Raises:
        CassetteError: if somebody is recording to this path, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._name = os.path.realpath(path)
            self._target = Path(self._name)
            self.partial = partial_of(path)
            if self._target.exists() and not self._target.is_file():
                what = "a directory" if self._target.is_dir() else "no regular file"
                raise CassetteError(f"cannot be written: it is {what}", path)
        except (OSError, ValueError) as error:  # a name that is too long, or has a null in it
            raise CassetteError(f"cannot be written: {getattr(error, 'strerror', None) or error}", path) from error
        self._process = os.getpid()
        with _lock:
            if self._name in _open_paths:
                raise _taken(path)
            _open_paths.add(self._name)
        try:
            self._descriptor = self._open()
        except BaseException:
            _open_paths.discard(self._name)
            raise

    def append(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OSError: if the disk does not take it.
        """
        if not self._is_ours():
            return
        done = os.write(self._descriptor, line)
        while done < len(line):
            done += os.write(self._descriptor, line[done:])

    def finish(self) -> None:
        """Put it in the place of the old file."""
        try:
            if self._is_ours():
                os.fsync(self._descriptor)
                self.partial.replace(self._target)
        except OSError as error:
            raise CassetteError(
                f"cannot be written: {error.strerror}; the recording is in {self.partial.name}", self.path
            ) from error
        finally:
            self._close()

    def discard(self) -> None:
        """Leave the old file as it is, and nothing beside it."""
        try:
            if self._is_ours():
                self.partial.unlink(missing_ok=True)
        finally:
            self._close()

    def leave(self) -> None:
        """Leave what was written beside the old file, as a killed process does."""
        self._close()

    def _is_ours(self) -> bool:
        return os.getpid() == self._process

    def _close(self) -> None:
        try:
            os.close(self._descriptor)
        finally:
            _open_paths.discard(self._name)

    def _open(self) -> int:
        try:
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            if self._target.exists() and not os.access(self._target, os.W_OK):
                raise CassetteError("cannot be written: it is read-only", self.path)
            while True:
                descriptor = self._open_partial()
                try:
                    is_ours = self._lock_file(descriptor)
                    if is_ours and not os.fstat(descriptor).st_size:
                        return descriptor
                    if is_ours and fcntl is not None:
                        self._keep_remains()
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
                if is_ours and fcntl is None:  # where nothing is renamed that is open
                    self._keep_remains()
        except OSError as error:
            raise CassetteError(f"cannot be written: {error.strerror}", self.path) from error

    def _lock_file(self, descriptor: int) -> bool:
        """Take the lock. False if the file was renamed meanwhile, by a recorder that has just finished."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _taken(self.path) from None
        try:
            return os.path.samestat(os.fstat(descriptor), self.partial.stat())
        except FileNotFoundError:
            return False

    def _open_partial(self) -> int:
        """Never what somebody has put in its place: a link leads to another file."""
        if self.partial.is_symlink():
            raise CassetteError(f"cannot be written: {self.partial.name} is a symbolic link; remove it", self.path)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.partial, flags | getattr(os, "O_NONBLOCK", 0), 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CassetteError(f"cannot be written: {self.partial.name} is no regular file; remove it", self.path)
        return descriptor

    def _keep_remains(self) -> None:
        """What a killed recording has left is moved aside; only the latest such file is kept."""
        remains = self.partial.with_name(self.partial.name + ".old")
        self.partial.replace(remains)
        _LOG.warning("%s was left by a recording that was killed; it is kept as %s", self.partial, remains.name)


def partial_of(path: Path) -> Path:
    """What a recording to this path grows in."""
    return Path(os.path.realpath(path) + ".partial")


def is_being_recorded(path: Path) -> bool:
    """Whether a recorder of this process is writing this path."""
    return os.path.realpath(path) in _open_paths


def is_idle(partial: Path) -> bool:
    """Whether nobody, of any process, is writing this file."""
    if fcntl is None:
        return True
    descriptor = os.open(partial, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write a whole file at once: it is there as it was, or as it is to be.

    Raises:
        CassetteError: if it cannot be written, or is being recorded.
    """
    file = PartialFile(path)
    try:
        for line in lines:
            file.append(line)
    except BaseException as error:
        file.discard()
        if isinstance(error, OSError):
            raise CassetteError(f"cannot be written: {error.strerror}", path) from error
        raise
    file.finish()


def _taken(path: Path) -> CassetteError:
    return CassetteError("is being recorded by somebody else; one recorder a path", path)
