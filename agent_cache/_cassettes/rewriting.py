"""`cassette redact` and `cassette convert`: the same calls, written anew."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent_cache._cassettes.findings import rules_of, secret_places
from agent_cache.cli.output import Screen, cassettes_in, load, print_json
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording import Cassette, Redaction
from agent_cache.recording.format import Trailer, call_line, header_line, trailer_line
from agent_cache.recording.partial import replace_file
from agent_cache.recording.redacted import redacted_call

__all__ = ["convert", "redact", "rewrite"]


def redact(paths: list[Path], names: list[str], patterns: list[str], *, is_check: bool, as_json: bool) -> int:
    """Take secrets out of cassettes, each written anew as a whole. What was found is said, and not what it was.

    The exit code: 1 with `is_check` if there is something to do.

    Raises:
        CassetteError: if a file cannot be read or written. Files before it are done.
    """
    screen, results, count = Screen(), [], 0
    for path in cassettes_in(paths):
        cassette = load(path)
        if any(call.form for call in cassette) and not _is_ours(path):
            raise CassetteError("is a cassette of agentcassette; `agent-cache cassette convert` redacts it, too", path)
        rules = rules_of(cassette, names, patterns)
        found = _count(cassette, rules)
        count += found.total()
        is_new = any(name not in cassette.header.redact.get("names", ()) for name in rules.names) or any(
            one not in cassette.header.redact.get("patterns", ()) for one in rules.patterns
        )
        writes = not is_check and (found.total() > 0 or is_new)
        if writes:
            rewrite(path, cassette, rules)
            if cassette.header.redact.get("hook"):
                print(f"{path}: its recording had a redaction hook; a replay still needs it", file=sys.stderr)
        results.append({"path": str(path), "redacted": dict(found), "is_written": writes})
        if not as_json:
            _say(screen, path, found, "to redact" if is_check else "redacted")
    if as_json:
        print_json({"findings": count, "cassettes": results})
    return 1 if is_check and count else 0


def convert(paths: list[Path], output: Path | None, *, is_forced: bool, as_json: bool) -> int:
    """Write cassettes of agentcassette as ours, redacted as a recording would be.

    Raises:
        CassetteError: if a file cannot be read or written, is ours already, or the target is there.
    """
    if output is not None and len(paths) > 1:
        raise ConfigurationError("--output takes one SOURCE")
    screen, results = Screen(), []
    for path in paths:
        cassette = load(path)
        if _is_ours(path):
            raise CassetteError("is a cassette of agent-cache already", path)
        target = output or path.with_suffix(".jsonl")
        if target.exists() and not is_forced:
            raise CassetteError("is there already; --force replaces it", target)
        rules = rules_of(cassette)
        found = _count(cassette, rules)
        rewrite(target, cassette, rules)
        results.append({"path": str(path), "target": str(target), "calls": len(cassette), "redacted": dict(found)})
        if not as_json:
            screen.line(f"{path} -> {target}  {len(cassette)} calls")
            if found:
                _say(screen, target, found, "redacted")
    if as_json:
        print_json({"cassettes": results})
    return 0


def rewrite(path: Path, cassette: Cassette, rules: Redaction, without: frozenset[int] = frozenset()) -> None:
    """Write a cassette anew, redacted, with digests to match, without some of its calls by id.

    Raises:
        CassetteError: if it cannot be written.
    """
    replace_file(path, _lines(cassette, rules, without))


def _lines(cassette: Cassette, rules: Redaction, without: frozenset[int]) -> Iterator[bytes]:
    said = rules.describe()
    if cassette.header.redact.get("hook"):
        said["hook"] = True
    yield header_line(msgspec.structs.replace(cassette.header, redact=said))
    last = written = 0
    for call in cassette:
        if call.id in without:
            continue
        changes = {} if call.after not in without else {"after": last if last < call.id else 0}
        yield call_line(msgspec.structs.replace(redacted_call(call, rules), **changes))
        last, written = call.id, written + 1
    if cassette.trailer is not None:
        trailer: Trailer = msgspec.structs.replace(cassette.trailer, calls=written)
        yield trailer_line(trailer)


def _count(cassette: Cassette, rules: Redaction) -> Counter[str]:
    """How many secrets stand in which part of calls of which name."""
    return Counter(f"{call.name} {place}" for call in cassette for place in secret_places(call, rules))


def _say(screen: Screen, path: Path, found: Counter[str], what: str) -> None:
    screen.line(f"{path}: {found.total() or 'nothing'} {what}")
    for place, number in found.most_common():
        screen.line(f"  {number:>6} x {place}")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"agent_cache_cassette"' in file.readline()
