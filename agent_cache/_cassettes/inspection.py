"""`cassette verify`: whether a recording is whole, matches what it says, and has no secrets left in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_cache._cassettes.calls import called
from agent_cache._cassettes.findings import rules_of, secret_places
from agent_cache.cli.output import Screen, cassettes_in, load, print_json
from agent_cache.errors import CassetteError, CassetteNotFound
from agent_cache.recording import Cassette, RecordedCall
from agent_cache.recording.identity import digest_of, digest_of_key
from agent_cache.recording.subject import KINDS

__all__ = ["verify"]

_FORMS = frozenset({"value", "typed", "any", "object", "error", "stream", "cancelled", "unencodable", "unfinished"})


def verify(paths: list[Path], *, as_json: bool) -> int:
    """Print what is wrong with cassettes. The exit code: 1 if something is.

    Raises:
        CassetteNotFound: if there is none.
    """
    screen, results, count = Screen(), [], 0
    for path in cassettes_in(paths):
        findings, calls = _findings(path)
        count += len(findings)
        results.append({"path": str(path), "calls": calls, "findings": findings})
        if as_json:
            continue
        if not findings:
            screen.line(("ok", "green"), f"  {path}  {calls} calls")
        for finding in findings:
            place = f"{path}:{finding['line']}" if finding["line"] else str(path)
            screen.line((f"{finding['kind']}", "red"), f"  {place}: {finding['message']}")
    if as_json:
        print_json({"findings": count, "cassettes": results})
    elif count:
        screen.line(f"{count} finding{'' if count == 1 else 's'} in {len(results)} cassette{'s'[: len(results) > 1]}")
    return 1 if count else 0


def _findings(path: Path) -> tuple[list[dict[str, Any]], int]:
    try:
        cassette = load(path)
    except CassetteNotFound:
        raise
    except CassetteError as error:
        if error.reason.startswith("cannot be read"):
            raise
        return [_finding("structure", error.line, error.reason)], 0
    found: list[dict[str, Any]] = []
    if cassette.is_partial:
        found.append(_finding("structure", 0, "the recording was killed: it has no trailer, and calls may be missing"))
    elif cassette.trailer is not None and cassette.trailer.calls != len(cassette):
        found.append(
            _finding("structure", 0, f"the trailer says {cassette.trailer.calls} calls, and there are {len(cassette)}")
        )
    found += _of_calls(cassette)
    return found, len(cassette)


def _of_calls(cassette: Cassette) -> list[dict[str, Any]]:
    ids = {call.id for call in cassette}
    rules = rules_of(cassette)
    found = []
    is_ours = not any(call.form for call in cassette)  # of another package's JSON there is no line to name
    for index, call in enumerate(cassette):
        line = index + 2 if is_ours else 0
        found += [
            _finding(kind, line, f"step {index}, {called(call) if kind != 'secret' else call.name}: {message}")
            for kind, message in (*_structure(call, ids), *_digest(call))
        ]
        found += [
            _finding("secret", line, f"step {index}, {call.name}: {place} has a secret in it")
            for place in secret_places(call, rules)
        ]
    return found


def _structure(call: RecordedCall, ids: set[int]) -> list[tuple[str, str]]:
    found = []
    if call.kind not in KINDS and call.kind != "env":
        found.append(f"its kind {call.kind!r} is none")
    if call.parent is not None and (call.parent not in ids or call.parent >= call.id):
        found.append(f"it is enclosed by call {call.parent}, which is not there or began later")
    if call.after and call.after not in ids:
        found.append(f"it began after call {call.after}, which is not there")
    if len(_FORMS & call.outcome.keys()) != 1:
        found.append(f"its outcome is of no known kind: {', '.join(call.outcome) or 'empty'}")
    return [("structure", message) for message in found]


def _digest(call: RecordedCall) -> list[tuple[str, str]]:
    known = digest_of(call.name, call.arguments) if call.key is None else digest_of_key(call.name, call.key)
    if call.digest == known.hex():
        return []
    return [("digest", "its digest is not that of its name and arguments: it was edited, and will not be found")]


def _finding(kind: str, line: int, message: str) -> dict[str, Any]:
    return {"kind": kind, "line": line, "message": message}
