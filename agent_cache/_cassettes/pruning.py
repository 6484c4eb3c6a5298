"""`cassette prune`: what can go. Nothing is deleted unless it is told so."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_cache._cassettes.findings import rules_of
from agent_cache._cassettes.rewriting import rewrite
from agent_cache.cli.output import Screen, cassettes_in, load, print_json
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.partial import is_idle

__all__ = ["prune", "prune_calls"]


def prune(folders: list[Path], *, is_meant: bool, as_json: bool) -> int:
    """Delete cassettes that no test uses, as pytest collects them, and what killed recordings have left.

    The exit code: 1 if there is something to delete, and it was not meant.

    Raises:
        CassetteError: if the tests cannot be collected: then nothing is known, and nothing is deleted.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(f"prune takes folders of tests, and {str(folder)!r} is none; see --calls")
    found = [(path, "no test uses it") for path in _orphans(folders)]
    for folder in folders:
        for pattern in ("*.jsonl.partial", "*.jsonl.partial.old"):
            found += [(path, "left by a killed recording") for path in sorted(folder.rglob(pattern)) if is_idle(path)]
    if is_meant:
        for path, _ in found:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CassetteError(f"cannot be deleted: {error.strerror}", path) from error
    if as_json:
        print_json(
            {"deleted": is_meant, "cassettes": [{"path": str(path), "reason": reason} for path, reason in found]}
        )
    else:
        _say(Screen(), [f"{path}  {reason}" for path, reason in found], is_meant=is_meant)
    return 1 if found and not is_meant else 0


def prune_calls(paths: list[Path], patterns: list[str], *, is_meant: bool, as_json: bool) -> int:
    """Remove calls of some names, and what they enclose, from cassettes.

    The exit code: 1 if there are such calls, and it was not meant.

    Raises:
        CassetteError: if a file cannot be read or written.
    """
    if not paths:
        raise ConfigurationError("prune --calls needs cassettes, or folders of them")
    results = []
    for path in cassettes_in(paths):
        cassette = load(path)
        if any(call.form for call in cassette):
            raise CassetteError("is a cassette of agentcassette; convert it first", path)
        doomed: set[int] = set()
        for call in sorted(cassette, key=lambda call: call.id):
            if call.parent in doomed or any(fnmatch.fnmatchcase(call.name, pattern) for pattern in patterns):
                doomed.add(call.id)
        if doomed and is_meant:
            rewrite(path, cassette, rules_of(cassette), frozenset(doomed))
        if doomed:
            results.append({"path": str(path), "calls": len(doomed), "of": len(cassette)})
    if as_json:
        print_json({"deleted": is_meant, "cassettes": results})
    else:
        lines = [f"{one['path']}  {one['calls']} of {one['of']} calls" for one in results]
        _say(Screen(), lines, is_meant=is_meant)
    return 1 if results and not is_meant else 0


def _orphans(folders: list[Path]) -> list[Path]:
    """Asked of pytest itself, in a process of its own: only it knows which tests there are."""
    if importlib.util.find_spec("pytest") is None:
        raise ConfigurationError("prune asks pytest which tests there are, and pytest is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "orphans.json")
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--agent-orphans=report"]
        command += [f"--agent-orphans-file={answer}", "-p", "no:cacheprovider", *map(str, folders)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if run.returncode not in (0, 5) or not answer.exists():
            tail = "\n".join((run.stdout + run.stderr).strip().splitlines()[-15:])
            raise CassetteError(f"the tests could not be collected, so nothing was deleted:\n{tail}", folders[0])
        return [Path(path) for path in json.loads(answer.read_text("utf-8"))]


def _say(screen: Screen, lines: list[str], *, is_meant: bool) -> None:
    for line in lines:
        screen.line(line)
    if not lines:
        screen.line("There is nothing to prune.")
    elif is_meant:
        screen.line("Deleted.")
    else:
        screen.line("Nothing was deleted; --yes does it.")
