"""Ends the servers of a test run that can no longer do it, however it ended.

A child of the run, in a session of its own. It reads `+pid folder`, `-pid` and `=folder` from its standard input. When
that ends, or the run is gone although a forked child still holds the other end, it kills what is left and removes the
folders: also those of processes that were killed before and never came back.
Run as a file: it must start fast and imports nothing of ours.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

POLL = 0.5


class Lifeline:
    """The end of the pipe that a test run holds. Starts its watchdog with the first server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._watchdog: subprocess.Popen[bytes] | None = None

    def hold(self, pid: int, folder: Path) -> None:
        """Have a process killed and its folder removed when this process ends."""
        self._tell(f"+{pid} {folder}\n")

    def release(self, pid: int) -> None:
        """Forget a process that has ended, before its number belongs to another. Its folder waits for `leave`."""
        self._tell(f"-{pid}\n")

    def leave(self, folder: Path) -> None:
        """Have a folder left alone: it is gone, or is to be kept."""
        self._tell(f"={folder}\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._owner != os.getpid():  # also after a fork: each process answers for its own servers
                self._watchdog = subprocess.Popen(
                    [sys.executable, "-IS", __file__, str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._owner = os.getpid()
                atexit.register(self._end)
            assert self._watchdog is not None
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.write(line.encode())
            self._watchdog.stdin.flush()

    def _end(self) -> None:
        """Let the watchdog do its work now, so that nothing outlives an orderly exit either."""
        if self._owner == os.getpid() and self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=30)


LIFELINE = Lifeline()


def lines(run: int) -> Iterator[str]:
    """What the run says, until it is gone."""
    unread = b""
    while os.getppid() == run:
        if not select.select([0], [], [], POLL)[0]:
            continue
        if not (said := os.read(0, 65536)):
            return
        *whole, unread = (unread + said).split(b"\n")
        for line in whole:
            yield line.decode()


def watch(run: int) -> None:
    held: set[int] = set()
    folders: set[str] = set()
    for line in lines(run):
        number, _, folder = line[1:].partition(" ")
        if line[0] == "+":
            held.add(int(number))
            folders.add(folder)
        elif line[0] == "-":
            held.discard(int(number))
        else:
            folders.discard(line[1:])
    for pid in held:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for folder in folders:
        remove(folder)


def remove(folder: str) -> None:
    """Remove a folder, again if one that is just being killed has put another file there meanwhile."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
