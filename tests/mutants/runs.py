"""Runs pytest in copies of the checkout: to record which tests run which lines, and to try mutants."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests.mutants.mutations import Mutant

HERE = Path(__file__).resolve().parents[2]
LEFT_OUT = (".git", ".mutants", ".venv*", "venv", ".*_cache", ".hypothesis", "__pycache__", "_build", "build", "dist")
LIMIT = 30.0  # seconds for the run of one mutant
ENOUGH = 20.0  # seconds that its tests may take by the recording
HANGS = 10.0  # a test hangs that runs for so many seconds, and five times as long as it did when it was recorded
FIRST = 10  # tests of any files; those after them are sorted by file, so that a file's fixtures are made once
START = "an import or a collection"


def unit(test: str) -> str:
    """The examples of a document are one test: each needs those above it."""
    return test if ".py::" in test else test.partition("::")[0]


class Run:
    """What a run of pytest noted. Its exit code is None if its time was over."""

    def __init__(self, code: int | None, notes: list[list[Any]]) -> None:
        self.code = code
        self.collected = {test for kind, *tests in notes if kind == "collected" for test in tests}
        self.started = [(test, at) for kind, test, at in (note[:3] for note in notes if note[0] == "started")]
        self.ended = {note[1]: note[2:] for note in notes if note[0] == "ended"}  # outcome and seconds
        self.failed = {unit(test): True for test, (outcome, _) in self.ended.items() if outcome == "failed"}
        self.passed: Counter[str] = Counter()  # seconds
        for test, (outcome, seconds) in self.ended.items():
            if outcome == "passed" and unit(test) not in self.failed:
                self.passed[unit(test)] += seconds


class Copy:
    """A copy of the checkout, in which one thing is run at a time."""

    def __init__(self, original: Path, work: Path) -> None:
        self.work, self.root, self.changes = work, work / "checkout", 0
        self.process: subprocess.Popen[bytes] | None = None
        shutil.copytree(original, self.root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def pytest(self, *arguments: str, limit: float | None = None, **environment: str) -> Run:
        """Run pytest to its end or until its time is over, and leave nothing of its group of processes."""
        notes, temporary = self.work / "notes", self.work / "t"
        notes.write_text("")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment |= {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
        environment |= {"MUTANTS_NOTES": str(notes), "TMPDIR": str(temporary), "CI": "true", "PYTHONHASHSEED": "0"}
        environment["PYTHONPATH"] = f"{self.root}{os.pathsep}{HERE}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider"]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} if limit else {}
        self.process = subprocess.Popen(
            [*command, *arguments], cwd=self.root, env=environment, start_new_session=True, **output
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(limit)
        finally:
            self.stop()
        return Run(code, [json.loads(line) for line in notes.read_text().splitlines()])

    def run_tests(self, tests: list[str], *options: str, limit: float | None = None) -> Run:
        (self.work / "tests").write_text("\n".join(tests))
        return self.pytest("-p", "no:xdist", *options, f"@{self.work / 'tests'}", limit=limit)

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def try_mutant(self, mutant: Mutant, tests: dict[str, float]) -> dict[str, Any]:
        """Run the tests, of which each took so many seconds, with the mutant."""
        path, began = self.root / mutant.path, time.monotonic()
        source, times = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        self.changes += 1
        os.utime(path, (self.changes, self.changes))  # else the bytecode of another mutant of this size may be taken
        try:
            run = self.run_tests(list(tests), "-x", limit=LIMIT)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        last, at = run.started[-1] if run.started else (START, began)
        if run.code is None:
            is_hanging = last not in run.ended and time.monotonic() - at > max(HANGS, 5 * tests.get(unit(last), 0.0))
            status, by = "hung" if is_hanging else "time ran out", last
        else:
            status, by = ("killed", next(iter(run.failed), last)) if run.code else ("survived", f"{len(tests)} tests")
        return {"status": status, "by": by, "seconds": round(time.monotonic() - began, 1)}


class Recording:
    """Which lines each test runs, and how long it takes; kept in a folder."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / "tests.json").read_text())
        self.tests: dict[str, tuple[float, int]] = facts["tests"]  # seconds, and how many lines it runs
        self.failed: list[str] = facts["failed"]
        data = CoverageData(str(folder / "coverage"))
        data.read()
        self.contexts = cache(lambda path: data.contexts_by_lineno(f"{facts['root']}/{path}"))

    def covering(self, mutant: Mutant) -> list[str]:
        """The tests that run it, the quickest and most specific first; last those that may run it while they import."""
        by_line = self.contexts(mutant.path)
        names = {name for line in mutant.lines for name in by_line.get(line, ())} or {
            *by_line.get(mutant.statement, ())
        }
        direct = self.tests.keys() & set(map(unit, names))
        files = tuple(f"{name}::" for name in names - direct if name)
        indirect = {test for test in self.tests if test.startswith(files)}
        if mutant.at_import or (names and not direct and not indirect):
            indirect = self.tests.keys() & {unit(name) for names in by_line.values() for name in names}
        cost = {test: ((seconds + 0.02) * lines, test) for test, (seconds, lines) in self.tests.items()}
        return sorted(direct, key=cost.__getitem__) + sorted(indirect - direct, key=cost.__getitem__)

    def choose(self, covering: list[str]) -> dict[str, float]:
        """Those of the tests that fit into the time, with their seconds, in the order in which they are run."""
        chosen, total = {}, 0.0
        for test in covering:
            seconds, _ = self.tests[test]
            total += seconds
            if total <= ENOUGH or not chosen:
                chosen[test] = seconds
        files = list(dict.fromkeys(test.partition("::")[0] for test in list(chosen)[FIRST:]))
        places = {test: max(number - FIRST, -1) for number, test in enumerate(chosen)}
        order = sorted(chosen, key=lambda test: -1 if places[test] < 0 else files.index(test.partition("::")[0]))
        return {test: chosen[test] for test in order}


def identify(copy: Copy, names: list[str]) -> str:
    """A hash of these files and folders."""
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for path in (copy.root / name for name in names):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.relative_to(copy.root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def record(copy: Copy, package: str, tests: list[str], folder: Path) -> None:
    """Run the tests once under coverage. The folder is given its `tests.json` only if the run came to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parallel = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile") if importlib.util.find_spec("xdist") else ()
    environment = {
        "MUTANTS_DATA": str(copy.work / "coverage"),
        "MUTANTS_MEASURED": str(copy.root / package),
        "COVERAGE_CORE": "ctrace",
    }  # it knows contexts
    run = copy.pytest(*parallel, "-rfE", "--tb=line", *tests, **environment)
    if not run.collected or run.collected - run.ended.keys():
        sys.exit(f"not recorded: {len(run.ended)} of {len(run.collected)} tests came to their end, code {run.code}")
    data, lines = CoverageData(str(folder / "coverage")), Counter[str]()
    for part in sorted(copy.work.glob("coverage.*")):
        other = CoverageData(str(part))
        other.read()
        data.update(other)
        part.unlink()
    data.write()
    for path in data.measured_files():
        for names in data.contexts_by_lineno(path).values():
            lines.update(map(unit, names))
    recorded = {test: (seconds, lines[test]) for test, seconds in run.passed.items()}
    facts = {"root": str(copy.root), "tests": recorded, "failed": list(run.failed)}
    (folder / "new.json").write_text(json.dumps(facts))
    (folder / "new.json").rename(folder / "tests.json")
