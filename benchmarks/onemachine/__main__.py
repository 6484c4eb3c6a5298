"""Faults of the file tier: processes read and write while they are struck, and each read is checked.

A source of truth lies in shared memory. A write's effect raises a number there, and when the write has returned the
number counts as ended. A read that starts after that and returns less is stale, whoever answered it: the promise is
that there is none. The one exception is a file that somebody deletes: that is noticed within a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.onemachine.shared import Count, Flag, Shared
from benchmarks.onemachine.worker import Job, Worker
from benchmarks.table import markdown

LEASE: Final = 0.3
TIMEOUT: Final = 0.1
MARGIN: Final = 0.2
"""Seconds after the lease of a dead writer from which what it has done counts as ended."""
VICTIM: Final = 15
WRITE_KINDS: Final = 3
HEADINGS: Final = (
    "fault", "operations", "reads", "local", "in the file", "misses", "writes", "struck", "stale", "slowest call",
    "errors", "",
)  # fmt: skip

_context = multiprocessing.get_context("fork")


def _run(job: Job) -> None:
    Worker(job).run()


@dataclass
class Run:
    """A run of one row.

    Attributes:
        seconds: that it lasts; 0 is until all operations are done.
        struck: how often a fault was played.
        notes: what else is to be said of it.
    """

    folder: Path
    processes: int
    operations: int
    template: Job
    seconds: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    struck: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = Shared(self.folder)
        self.database = self.folder / "cache"
        self.workers: dict[int, Any] = {}
        self.due: list[tuple[float, list[tuple[int, int]]]] = []
        self.begun = time.monotonic()

    # Processes

    def start(self, process: int) -> None:
        job = replace(self.template, process=process, seed=self.rng.randrange(1 << 30))
        self.workers[process] = worker = _context.Process(target=_run, args=(job,), daemon=True)
        worker.start()

    def kill(self, process: int) -> None:
        """Kill a process, and start it again."""
        worker = self.workers[process]
        if worker.is_alive() and not self.is_over():
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            self.note_death(process)
            self.start(process)
            self.struck += 1

    def note_death(self, process: int) -> None:
        """What it had done counts as ended some time later."""
        self.due.append((time.monotonic() + LEASE + MARGIN, self.shared.written_by(process)))

    def is_over(self) -> bool:
        if self.seconds:
            return time.monotonic() > self.begun + self.seconds
        done = sum(self.shared.counted(process, Count.OPERATIONS) for process in range(self.processes))
        return done >= self.processes * self.template.operations

    def tick(self) -> None:
        now = time.monotonic()
        for due in [one for one in self.due if one[0] <= now]:
            self.due.remove(due)
            for entity, number in due[1]:
                self.shared.end(entity, number)
        for process, worker in self.workers.items():
            if worker.exitcode not in (None, 0) and worker.exitcode != -signal.SIGKILL:
                self.notes.append(f"process {process} ended with {worker.exitcode}")
                self.start(process)
                return
        time.sleep(0.002)

    def pause(self, seconds: float) -> Iterator[None]:
        """Let the processes work."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield

    def play(self, fault: Callable[[Run], Iterator[None]]) -> None:
        for process in range(self.processes):
            self.start(process)
        acting = fault(self)
        shown = 0.0
        begun = time.monotonic()
        is_acting = True
        while is_acting or not self.is_over():
            self.tick()
            if is_acting and next(acting, self) is self:
                is_acting = False
            if time.monotonic() > shown + 0.5:
                shown = time.monotonic()
                done = self.shared.total(Count.OPERATIONS)
                print(f"\r  {done:>9,} operations, {self.struck} faults  ", end="", file=sys.stderr, flush=True)
            if time.monotonic() > begun + 900 + self.seconds:
                self.notes.append("ended after 900 s")
                break
        del acting
        for flag in (Flag.IS_FULL, Flag.IS_READ_ONLY):
            self.shared.flags[flag] = 0
        self.shared.flags[Flag.IS_OVER] = 1
        end = time.monotonic() + 30
        for process, worker in self.workers.items():
            worker.join(max(0.1, end - time.monotonic()))
            if worker.is_alive():
                self.notes.append(f"process {process} does not end")
                os.kill(worker.pid, signal.SIGABRT if "-v" in sys.argv else signal.SIGKILL)
        print(f"\r  {time.monotonic() - begun:.1f} s{' ' * 40}", file=sys.stderr)


# Faults. Each yields for as long as the processes are to work.


def calm(run: Run) -> Iterator[None]:
    yield


def kills(seconds: float) -> Callable[[Run], Iterator[None]]:
    def fault(run: Run) -> Iterator[None]:
        while not run.is_over():
            run.kill(run.rng.randrange(run.processes))
            yield from run.pause(seconds)

    return fault


def kills_at_every_step(run: Run) -> Iterator[None]:
    """Of a write: each statement and each word of the page, until a write has no more."""
    for kind in range(WRITE_KINDS):
        step = 0
        while True:
            job = replace(run.template, process=VICTIM, seed=step, dies_at=step, kind=kind)
            victim = _context.Process(target=_run, args=(job,), daemon=True)
            victim.start()
            while victim.is_alive():
                yield
            if victim.exitcode == 0:
                break
            run.note_death(VICTIM)
            run.struck += 1
            step += 1
        run.notes.append(f"{step} steps")


def stops(run: Run) -> Iterator[None]:
    while not run.is_over():
        pids = [one.pid for one in run.rng.sample(list(run.workers.values()), 2) if one.is_alive()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        run.struck += 1
        try:
            yield from run.pause(2 * LEASE)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        yield from run.pause(LEASE)


def locks(run: Run) -> Iterator[None]:
    while not run.is_over():
        connection = sqlite3.connect(run.database, isolation_level=None, timeout=5)
        connection.execute("BEGIN IMMEDIATE")
        run.struck += 1
        try:
            yield from run.pause(3 * TIMEOUT)
        finally:
            connection.close()
        yield from run.pause(5 * TIMEOUT)


def flagged(flag: Flag) -> Callable[[Run], Iterator[None]]:
    def fault(run: Run) -> Iterator[None]:
        while not run.is_over():
            run.shared.flags[flag] = 1
            run.struck += 1
            yield from run.pause(0.3)
            run.shared.flags[flag] = 0
            yield from run.pause(0.5)

    return fault


def deletes(*suffixes: str) -> Callable[[Run], Iterator[None]]:
    def fault(run: Run) -> Iterator[None]:
        yield from run.pause(0.5)
        while not run.is_over():
            run.shared.flags[Flag.DELETED_AT] = time.monotonic_ns()
            for suffix in suffixes:
                run.database.with_name(f"cache{suffix}").unlink(missing_ok=True)
            # One that is started now makes the files anew, while the others still use the deleted ones.
            run.kill(run.rng.randrange(run.processes))
            yield from run.pause(1.5)
        noticed = run.shared.largest(Count.NOTICED) / 1e9
        run.notes.append(f"noticed within {noticed:.2f} s, {run.shared.total(Count.STALE_IN_WINDOW)} stale until then")

    return fault


def damages(how: str) -> Callable[[Run], Iterator[None]]:
    def fault(run: Run) -> Iterator[None]:
        yield from run.pause(0.5)
        while not run.is_over():
            size = run.database.stat().st_size if run.database.exists() else 0
            try:
                if how == "truncated":
                    os.truncate(run.database, run.rng.choice([0, 4096, size // 8192 * 4096]))
                else:
                    with run.database.open("r+b") as file:
                        file.seek(run.rng.choice([0, 4096 * run.rng.randrange(max(1, size // 4096))]))
                        file.write(run.rng.randbytes(8192))
                run.struck += 1
            except FileNotFoundError:
                pass
            yield from run.pause(1.0)
        aside = len(list(run.folder.glob("*.corrupt")))
        run.notes.append("set aside" if aside else "never set aside")

    return fault


def bounded(run: Run) -> Iterator[None]:
    """No fault: how many bytes the files have at most."""
    values = log = whole = 0
    yield from run.pause(0.5)
    connection = sqlite3.connect(run.database, timeout=5)
    while not run.is_over():
        ((size,),) = connection.execute("SELECT value FROM meta WHERE name = 'bytes'").fetchall()
        values = max(values, size)
        log = max(log, run.database.with_name("cache-wal").stat().st_size)
        whole = max(whole, run.database.stat().st_size)
        yield from run.pause(0.05)
    connection.close()
    run.notes.append(f"values {values >> 10} KiB, database {whole >> 10} KiB, log {log >> 10} KiB at most")


FAULTS: Final[dict[str, tuple[Callable[[Run], Iterator[None]], dict[str, Any]]]] = {
    "calm": (calm, {}),
    "killed at random": (kills(0.08), {}),
    "killed every 300 ms": (kills(0.3), {}),
    "killed at every step of a write": (kills_at_every_step, {}),
    "stopped for two leases": (stops, {}),
    "locked for three timeouts": (locks, {}),
    "disk full": (flagged(Flag.IS_FULL), {"hooked": True}),
    "read-only": (flagged(Flag.IS_READ_ONLY), {"hooked": True}),
    "all files deleted": (deletes("", "-wal", "-shm", ".page"), {}),
    "database deleted": (deletes(""), {}),
    "log deleted": (deletes("-wal"), {}),
    "page deleted": (deletes(".page"), {}),
    "database truncated": (damages("truncated"), {}),
    "database overwritten": (damages("overwritten"), {}),
    "forks": (calm, {"forks": 150}),
    "64 KiB for all values": (bounded, {"max_bytes": 65_536, "padding": 4_000}),
}


def play(name: str, *, processes: int, operations: int, seconds: float = 0.0) -> tuple[tuple[str, ...], bool]:
    """Play a row. Returns its cells, and whether the promises were kept."""
    fault, options = FAULTS[name]
    with tempfile.TemporaryDirectory(prefix="onemachine-") as folder:
        each = 1 << 60 if seconds else operations // processes
        template = Job(Path(folder), 0, each, 1, lease=LEASE, timeout=TIMEOUT, **options)
        run = Run(Path(folder), processes, operations, template, seconds)
        run.play(fault)
        shared = run.shared
        complaints = run.folder / "complaints"
        if complaints.exists():
            print("".join(complaints.open().readlines()[:40]), file=sys.stderr)
    total = shared.total
    reads, found, loads = total(Count.READS), total(Count.FOUND), total(Count.LOADS)
    if total(Count.UNUSABLE):
        run.notes.append(f"{total(Count.UNUSABLE)} processes cannot use the file at the end")
    cells = (
        name, f"{total(Count.OPERATIONS):,}", f"{reads:,}", f"{max(0, reads - found - loads):,}", f"{found:,}",
        f"{loads:,}", f"{total(Count.WRITES):,}", str(run.struck), str(total(Count.STALE)),
        f"{shared.largest(Count.SLOWEST) / 1e6:.0f} ms", str(total(Count.ERRORS)), "; ".join(run.notes),
    )  # fmt: skip
    return cells, not total(Count.STALE) and not total(Count.ERRORS) and not total(Count.UNUSABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every promise was kept; 1: one was not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onemachine", description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="NAME")
    parser.add_argument("--processes", type=int, default=8, metavar="N")
    parser.add_argument("--operations", type=int, default=100_000, metavar="N", help="of all processes, a row")
    help_text = "that a row lasts, in place of a number of operations"
    parser.add_argument("--seconds", type=float, default=0.0, help=help_text)
    parser.add_argument("-v", action="store_true", help="abort a process that does not end, for its stack")
    options = parser.parse_args(arguments)
    lines, kept = [], True
    for number, name in enumerate(options.faults, 1):
        print(f"{name} ({number} of {len(options.faults)})", file=sys.stderr, flush=True)
        cells, is_kept = play(name, processes=options.processes, operations=options.operations, seconds=options.seconds)
        lines.append(cells)
        kept = kept and is_kept
        print("  " + " | ".join(cells), file=sys.stderr, flush=True)
    print(markdown(HEADINGS, lines))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
