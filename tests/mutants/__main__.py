"""`python -m tests.mutants FOLDER`: makes small faults in a part of the package, and counts those that tests find.

A mutant is killed if a test fails, or hangs: it ran for ten seconds, and five times as long as without the fault. If
the time of a mutant ends while its tests make progress, its time ran out, and it is not killed. Lines that no test
runs in its own process are not covered, and are counted apart.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.mutations import Mutant, sample
from tests.mutants.runs import Copy, Recording, identify, record

COLUMNS = ("killed", "survived", "not covered", "time ran out")


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants")
    parser.add_argument("folder", help="a folder or file of the package: core, remote/file, engine/read.py")
    parser.add_argument("--count", type=int, default=100, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=1, help="another one draws other mutants")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at the same time")
    parser.add_argument("--record", action="store_true", help="record again which tests run which lines")
    parser.add_argument("--tests", nargs="+", default=[], help="record and run these tests only")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as work:
        try:
            return try_mutants(options, Path.cwd(), Path(work))
        except KeyboardInterrupt:
            show("interrupted; the same command goes on from here")
            return 130


def try_mutants(options: argparse.Namespace, root: Path, work: Path) -> int:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    [package] = settings["coverage"]["run"]["source"]
    copy = Copy(root, work / "0")
    part = copy.root / package / options.folder
    files = sorted(part.rglob("*.py")) if part.is_dir() else [part]
    sources = {file.relative_to(copy.root).as_posix(): file.read_bytes() for file in files}
    mutants = sample(sources, options.count, options.seed)
    if options.list:
        show("\n".join(map(str, mutants)))
        return 0
    tree = identify(copy, [package, *settings["pytest"]["ini_options"]["testpaths"], "conftest.py", "pyproject.toml"])
    state = "-".join([tree, *options.tests]).replace("/", "_")
    store, name = root / ".mutants", options.folder.strip("/").removesuffix(".py").replace("/", "-")
    folder, results = store / f"recording-{state}", store / f"{name}.jsonl"
    if options.record or not (folder / "tests.json").exists():
        show("recording which tests run which lines of the package")
        record(copy, package, options.tests, folder)
        for other in set(store.glob("recording-*")) - set(store.glob(f"recording-{tree}*")):
            shutil.rmtree(other)
    recording = Recording(folder)
    lines = results.read_text().splitlines() if results.exists() else []
    known = {result["id"]: result for result in map(json.loads, lines) if result["state"] == state}
    chosen = {one: recording.choose(recording.covering(one)) for one in mutants if one.id not in known}
    passes = check(copy, folder / "unmutated.json", {test for tests in chosen.values() for test in tests})
    copies = [copy, *(Copy(root, work / str(number)) for number in range(1, options.jobs))]

    def keep(mutant: Mutant, result: dict[str, Any]) -> None:
        known[mutant.id] = {"state": state, "id": mutant.id, **result}
        with results.open("a") as file:
            file.write(f"{json.dumps(known[mutant.id])}\n")
        number = sum(one.id in known for one in mutants)
        show(f"{number}/{len(mutants)} {result['status']} {mutant} by {result['by']} ({result['seconds']} s)")

    try_each(
        {one: {test: tests[test] for test in tests if passes[test]} for one, tests in chosen.items()}, copies, keep
    )
    failed = sorted({*recording.failed, *(test for test in passes if not passes[test])})
    text = report([(mutant, known[mutant.id]) for mutant in mutants], sources)
    text += "".join(f"\nleft out, because it fails without a mutant: {test}" for test in failed)
    (store / f"{name}.md").write_text(f"{text}\n")
    show(f"\n{text}")
    return 0


def check(copy: Copy, file: Path, tests: set[str]) -> dict[str, bool]:
    """Whether each of these tests passes without a mutant, when it is run as with one."""
    passes: dict[str, bool] = json.loads(file.read_text()) if file.exists() else {}
    if unknown := sorted(tests - passes.keys()):
        show(f"running {len(unknown)} tests without a mutant")
        run = copy.run_tests(unknown, "-rfE", "--tb=line")
        passes |= {test: test in run.passed for test in unknown}
        file.write_text(json.dumps(passes))
    return passes


def try_each(chosen: dict[Mutant, dict[str, float]], copies: list[Copy], keep: Callable[..., None]) -> None:
    """Try each mutant with its tests, in as many threads as there are copies."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_one(mutant: Mutant) -> dict[str, Any]:
        if not chosen[mutant]:
            return {"status": "not covered", "by": "any test", "seconds": 0.0}
        copy = free.get()
        try:
            return copy.try_mutant(mutant, chosen[mutant])
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        futures = {pool.submit(try_one, mutant): mutant for mutant in chosen}
        try:
            for future in as_completed(futures):
                keep(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


def report(results: list[tuple[Mutant, dict[str, Any]]], sources: dict[str, bytes]) -> str:
    """A table by file, the rate, and the mutants that were not killed."""
    found: dict[str, list[Mutant]] = {column: [] for column in COLUMNS}
    for mutant, result in results:
        found["killed" if result["status"] == "hung" else result["status"]].append(mutant)
    files = sorted({mutant.path for mutant, _ in results})
    lines = [f"| file | mutants | {' | '.join(COLUMNS)} |", f"|---|{'--:|' * (1 + len(COLUMNS))}"]
    for label, paths in [*((path, [path]) for path in files), ("all", files)]:
        counts = [sum(mutant.path in paths for mutant in mutants) for mutants in found.values()]
        lines.append(f"| {' | '.join(map(str, [label, sum(counts), *counts]))} |")
    covered = len(results) - len(found["not covered"])
    lines.append(
        f"\nkilled: {len(found['killed'])} of {covered} covered mutants ({len(found['killed']) / max(covered, 1):.0%})"
    )
    for column in COLUMNS[1:]:
        lines += [f"\n{column}:"] * bool(found[column])
        lines += [f"- {mutant.difference(sources[mutant.path])}" for mutant in found[column]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
