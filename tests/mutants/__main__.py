"""`python -m tests.mutants FOLDER`: makes small faults in a part of the package, and counts those that tests find.

A mutant is killed if a test fails, or hangs: it ran for ten seconds, and five times as long as without the fault. If
the time of a mutant ends while its tests make progress, its time ran out, and it is not killed. Lines that no test
runs in its own process are not covered, and are counted apart. Examples of documents are not used as tests.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from coverage import Coverage, CoverageData

from tests.mutants.mutations import Mutant, sample

LEFT_OUT = (".git", ".mutants", ".venv*", "venv", ".*_cache", ".hypothesis", "__pycache__", "_build", "build", "dist")
PLUGINS = ("-ptests.mutants.plugin", "-pno:cacheprovider", "-pno:langsmith_plugin")  # that takes a second to import
LIMIT = 30.0  # seconds for the run of one mutant
ENOUGH = 20.0  # seconds that its tests may take by the recording
HANGS = 10.0  # a test hangs that runs for so many seconds, and five times as long as it did when it was recorded
show = partial(print, flush=True)
COLUMNS = ("killed", "survived", "not covered", "time ran out")


class Run:
    """What a run of pytest noted. Its exit code is None if its time was over."""

    def __init__(self, code: int | None, notes: list[list[Any]]) -> None:
        self.code = code
        self.collected = {test for kind, *tests in notes if kind == "collected" for test in tests}
        self.started = [["an import or a collection", 0.0], *(fact for kind, *fact in notes if kind == "started")]
        reports = [note for note in notes if note[0] not in ("collected", "started")]
        self.ended = {test for when, test, *_ in reports if when == "teardown"}
        self.failed = [test for _, test, outcome, _ in reports if outcome == "failed"]
        self.passed = {test for when, test, outcome, _ in reports if (when, outcome) == ("call", "passed")}
        self.passed.difference_update(self.failed)
        self.seconds = Counter[str]()
        for _, test, _, seconds in reports:
            self.seconds[test] += seconds


class Copy:
    """A copy of the checkout, in which one thing is run at a time."""

    def __init__(self, original: Path, work: Path) -> None:
        self.work, self.root, self.changes = work, work / "checkout", 0
        self.process: subprocess.Popen[bytes] | None = None
        shutil.copytree(original, self.root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def pytest(self, *arguments: str, limit: float | None = None, measured: str = "") -> Run:
        """Run pytest to its end or until its time is over, and leave nothing of its group of processes."""
        notes, temporary = self.work / "notes", self.work / "t"
        notes.write_text("")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
        environment |= {"MUTANTS_NOTES": str(notes), "MUTANTS_MEASURED": measured, "COVERAGE_CORE": "ctrace"}
        environment |= {"TMPDIR": str(temporary), "CI": "true", "PYTHONHASHSEED": "0"}
        environment["PYTHONPATH"] = f"{self.root}{os.pathsep}{Path(__file__).parents[2]}"
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=line", *PLUGINS, *arguments]
        output = subprocess.DEVNULL if limit else None
        settings = {"env": environment, "stdout": output, "stderr": output}
        self.process = subprocess.Popen(command, cwd=self.root, start_new_session=True, **settings)
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(limit)
        finally:
            self.kill()
        return Run(code, [json.loads(line) for line in notes.read_text().splitlines()])

    def run_tests(self, tests: list[str], *options: str, limit: float | None = None) -> Run:
        (self.work / "tests").write_text("\n".join(tests))
        return self.pytest("-pno:xdist", *options, f"@{self.work / 'tests'}", limit=limit)

    def kill(self) -> None:
        with suppress(ProcessLookupError, AttributeError):  # none was started
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def try_mutant(self, mutant: Mutant, tests: dict[str, float], known: int) -> dict[str, Any]:
        """Run the tests, of which each took so many seconds, with the mutant; so many are known that run it."""
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
        by, at = run.started[-1]
        if run.code is None:
            is_hanging = by not in run.ended and time.monotonic() - at > max(HANGS, 5 * tests.get(by, 0.0))
            status = "killed" if is_hanging else "time ran out"
            by = f"a hang of {by}" if is_hanging else by
        else:
            status, by = (
                ("killed", [*run.failed, by][0]) if run.code else ("survived", f"{len(tests)} of {known} tests")
            )
        return {"status": status, "by": by, "seconds": round(time.monotonic() - began, 1)}


def choose(
    mutant: Mutant, contexts: dict[int, list[str]], known: dict[str, tuple[float, int]]
) -> tuple[dict[str, float], int]:
    """Of the tests that run it those that fit into the time, with their seconds, and how many there are.

    By file, the most specific and quickest first, and last those that may run it while something is imported. Of each
    test it is known how many seconds it takes, and how many lines it runs.
    """
    names = {name for line in mutant.lines for name in contexts.get(line, ())} or {*contexts.get(mutant.statement, ())}
    direct, files = known.keys() & names, tuple(f"{name}::" for name in names if name.endswith(".py"))
    found = direct | {test for test in known if test.startswith(files)}
    if mutant.at_import or (names and not found):
        found = known.keys() & {name for names in contexts.values() for name in names}
    cost = {test: (test not in direct, (known[test][0] + 0.02) * known[test][1], test) for test in found}
    chosen: dict[str, float] = {}
    for test in sorted(found, key=cost.__getitem__):
        if sum(chosen.values()) + known[test][0] <= ENOUGH or not chosen:
            chosen[test] = known[test][0]
    order = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
    return dict(sorted(chosen.items(), key=lambda item: order.index(item[0].partition("::")[0]))), len(found)


def record(copy: Copy, package: str, tests: list[str], folder: Path) -> None:
    """Run the tests once under coverage. The folder is given its `tests.json` only if the run came to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parallel = ("-nauto", "--maxprocesses=4", "--dist=loadfile") if importlib.util.find_spec("xdist") else ()
    run = copy.pytest(*parallel, *tests, measured=f"{copy.root / package}\n{copy.work / 'coverage'}")
    if not run.collected or run.collected - run.ended:
        sys.exit(f"not recorded: {len(run.ended)} of {len(run.collected)} tests came to their end, code {run.code}")
    combined, lines = Coverage(str(folder / "coverage"), config_file=False), Counter[str]()
    combined.combine([str(copy.work)])
    combined.save()
    for path in combined.get_data().measured_files():
        for names in combined.get_data().contexts_by_lineno(path).values():
            lines.update(names)
    recorded = {test: (run.seconds[test], lines[test]) for test in sorted(run.passed) if ".py::" in test}
    facts = {"root": str(copy.root), "tests": recorded, "failed": sorted(set(run.failed))}
    (folder / "new.json").write_text(json.dumps(facts))
    (folder / "new.json").rename(folder / "tests.json")


def identify(root: Path, names: list[str]) -> str:
    """A hash of these files and folders."""
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for file in (file for name in names for file in sorted([root / name, *(root / name).rglob("*")])):
        if file.is_file():
            digest.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def report(results: list[tuple[Mutant, dict[str, Any]]], sources: dict[str, bytes]) -> str:
    """A table by file, the rate, and the mutants that were not killed."""
    found = {column: [mutant for mutant, result in results if result["status"] == column] for column in COLUMNS}
    files = list(dict.fromkeys(mutant.path for mutant, _ in results))
    text = f"| file | mutants | {' | '.join(COLUMNS)} |\n|---|{'--:|' * (1 + len(COLUMNS))}\n"
    for label, paths in [*((path, [path]) for path in files), ("all", files)]:
        counts = [sum(mutant.path in paths for mutant in mutants) for mutants in found.values()]
        text += f"| {' | '.join(map(str, [label, sum(counts), *counts]))} |\n"
    killed, covered = len(found["killed"]), len(results) - len(found["not covered"])
    hangs = sum(result["by"].startswith("a hang of") for _, result in results)
    text += (
        f"\nkilled: {killed} of {covered} covered mutants ({killed / max(covered, 1):.0%}), {hangs} of them by a hang\n"
    )
    for column in COLUMNS[1:]:
        text += f"\n{column}:\n" if found[column] else ""
        for mutant, result in results:
            if result["status"] == column:
                line = sources[mutant.path].split(b"\n")[mutant.lines[0] - 1].decode().strip()
                text += f"- {mutant} in `{line}` by {result['by']}\n"
    return text


def try_mutants(options: argparse.Namespace, root: Path, work: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    [package], testpaths = settings["coverage"]["run"]["source"], settings["pytest"]["ini_options"]["testpaths"]
    copy = Copy(root, work / "0")
    part = copy.root / package / options.folder.removeprefix(f"{package}/")
    files = sorted(part.rglob("*.py")) if part.is_dir() else [part] if part.exists() else []
    sources = {file.relative_to(copy.root).as_posix(): file.read_bytes() for file in files}
    if not (mutants := sample(sources, options.count, options.seed)):
        sys.exit(f"nothing can be mutated in {options.folder}")
    if options.list:
        show("\n".join(map(str, mutants)))
        return
    tree = identify(copy.root, [package, *testpaths, "conftest.py", "pyproject.toml"])
    folder = root / ".mutants" / f"{tree}-{hashlib.sha256(repr(options.tests).encode()).hexdigest()[:6]}"
    if not (folder / "tests.json").exists():
        show("recording which tests run which lines of the package")
        record(copy, package, options.tests, folder)
        for other in set(folder.parent.glob("*-*")) - set(folder.parent.glob(f"{tree}*")):
            shutil.rmtree(other)
    recorded, data = json.loads((folder / "tests.json").read_text()), CoverageData(str(folder / "coverage"))
    data.read()
    contexts = {path: data.contexts_by_lineno(f"{recorded['root']}/{path}") for path in sources}
    chosen = {one: choose(one, contexts[one.path], recorded["tests"]) for one in mutants}
    unmutated = sorted({test for tests, _ in chosen.values() for test in tests})
    show(f"{len(unmutated)} tests are run without a mutant")
    passed = copy.run_tests(unmutated).passed if unmutated else set()
    results: list[tuple[Mutant, dict[str, Any]]] = []
    for number, (mutant, (tests, known)) in enumerate(chosen.items(), 1):
        result: dict[str, Any] = {"status": "not covered", "by": "any test", "seconds": 0.0}
        if tests := {test: seconds for test, seconds in tests.items() if test in passed}:
            result = copy.try_mutant(mutant, tests, known)
        results.append((mutant, result))
        show(f"{number}/{len(mutants)} {result['status']} {mutant} by {result['by']} ({result['seconds']} s)")
    show(f"\n{report(results, sources)}")
    for test in sorted({*recorded["failed"], *unmutated} - passed):
        show(f"left out, because it fails without a mutant: {test}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants")
    parser.add_argument("folder", help="a folder or file of the package: core, remote/file, engine/read.py")
    parser.add_argument("--count", type=int, default=100, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=1, help="another one draws other mutants")
    parser.add_argument("--tests", nargs="+", default=[], help="record and run these tests only")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as work:
        try:
            try_mutants(parser.parse_args(arguments), Path.cwd(), Path(work))
        except KeyboardInterrupt:
            show("interrupted")
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
