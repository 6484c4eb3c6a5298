"""`python -m benchmarks.crashes`: kill the processes of agents at random moments, resume them, and count what they did.

Each row is a way to resume. A run makes writes, reads, calls of a model, nested calls, tasks at once and bare
requests; up to three of its processes are killed by SIGKILL, those that resume it among them. Half of the kills come at
a random time, half at a named moment of a random call: before its intent, before or after its effect, when it has
returned, while its request or its answer is under way. A receiver in another process counts.

The exit code is 1 if a row doubled or lost a write, or made an answered call of the model again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.commands import positive
from benchmarks.crashes.kills import Killer, Row, Verdict
from benchmarks.crashes.receiver import Receiver
from benchmarks.table import markdown
from benchmarks.timing import progress

HEADINGS = (
    "on a write in doubt", "kills", "runs", "writes doubled", "writes lost", "answered model calls paid twice",
    "stopped in doubt", "told in doubt", "ended as if undisturbed",
)  # fmt: skip
KILLS = 200
QUICK = 30


def journal_is_sealed(folder: Path, run: str) -> bool:
    """Whether a run under a journal has ended."""
    from agent_cache.resume.journal import read_journal

    return read_journal(folder / f"{run}.jsonl").is_sealed


ROWS = {
    row.name: row
    for row in (
        Row("raise", "raise an error", is_over=journal_is_sealed),
        Row("rerun", "run again; the receiver knows the key", is_idempotent=True, is_over=journal_is_sealed),
        Row("check", "ask the receiver by the key", is_over=journal_is_sealed),
        Row("notice", "tell the model", is_over=journal_is_sealed),
    )
}


def verdicts_of(row: Row, kills: int, folder: Path, jobs: int) -> list[Verdict]:
    """Runs of a row, until so many processes were killed."""
    verdicts: list[Verdict] = []
    lock = threading.Lock()
    numbers = itertools.count()
    done = 0
    title = f"{row.label}: kills"
    progress(title, 0, kills)
    receiver = Receiver()
    with receiver.running(), ThreadPoolExecutor(jobs) as pool:
        killer = Killer(row, receiver, folder)

        def work() -> None:
            nonlocal done
            while done < kills:
                verdict = killer.run(next(numbers))
                with lock:
                    verdicts.append(verdict)
                    done += len(verdict.kills)
                    progress(title, max(1, min(done, kills)), kills)
                if verdict.failure:
                    print(f"{row.name}: {verdict.failure}", file=sys.stderr)

        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    return verdicts


def line_of(row: Row, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The row of the table."""
    total = Counter[str]()
    for verdict in verdicts:
        total.update(doubled=verdict.doubled, lost=verdict.lost, paid=verdict.paid_twice)
        total.update(kills=len(verdict.kills), in_doubt=verdict.in_doubt, notices=verdict.notices)
        total.update(equal=verdict.is_equal, doubled_runs=verdict.doubled > 0, lost_runs=verdict.lost > 0)
        total.update(paid_runs=verdict.paid_twice > 0)
    return (
        row.label,
        str(total["kills"]),
        str(len(verdicts)),
        _in_runs(total["doubled"], total["doubled_runs"]),
        _in_runs(total["lost"], total["lost_runs"]),
        _in_runs(total["paid"], total["paid_runs"]),
        str(total["in_doubt"]) if row.name == "raise" else "",
        str(total["notices"]) if row.name == "notice" else "",
        str(total["equal"]),
    )


def _in_runs(times: int, runs: int) -> str:
    return "0" if not times else f"{times} in {runs} {'run' if runs == 1 else 'runs'}"


def is_kept(verdicts: Sequence[Verdict]) -> bool:
    """Whether every run ended, and no write was doubled or lost, and no answered call of the model made again."""
    return not any(verdict.doubled or verdict.lost or verdict.paid_twice or verdict.failure for verdict in verdicts)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every promise was kept; 1: one was not."""
    options = _parser().parse_args(arguments)
    kills = options.kills or (QUICK if options.quick else KILLS)
    lines: list[tuple[str, ...]] = []
    broken = False
    for name in options.rows:
        row = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            verdicts = verdicts_of(row, kills, Path(folder), options.jobs)
        lines.append(line_of(row, verdicts))
        broken = broken or not is_kept(verdicts)
    print(markdown(HEADINGS, lines))
    return int(broken)


def _parser() -> argparse.ArgumentParser:
    names = list(ROWS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crashes", description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--kills", type=positive, metavar="N", help=f"of each row; by default {KILLS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} kills of each row")
    parser.add_argument("--jobs", type=positive, default=2, metavar="N", help="runs at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
