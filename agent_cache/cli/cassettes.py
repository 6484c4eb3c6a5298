"""`agent-cache cassette`: shows, compares, forks, redacts, verifies, converts and prunes recordings.

Exit codes: 0 no differences or findings, 1 differences or findings, 2 usage, or a file that cannot be read or written.

Cassettes may be large: every command reads them call by call and keeps a few bytes of each. A file is replaced as a
whole. Of a secret, the place is printed and never the text.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.cli import forks
from agent_cache.cli.output import Printer, escaped, json_text, plural, print_json, progress, shortened
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording import Cassette, RecordedCall, Redaction, Savings, diff_cassettes
from agent_cache.recording.call_text import call_text, duration_text, has_error, outcome_text
from agent_cache.recording.cassette import recorded_rules, redact_call, redacted_header, redacted_name
from agent_cache.recording.file import StoredCalls, digest_of, digest_of_key
from agent_cache.recording.foreign import is_foreign, read_foreign
from agent_cache.recording.functions import RecordedFunction
from agent_cache.recording.http.bodies import pieces_of
from agent_cache.recording.litellm import fixture_line, from_cassette, is_fixture, read_fixture, to_cassette
from agent_cache.recording.outcomes import check_outcome, encode, problems_of, read_value
from agent_cache.recording.partial_file import is_idle, replace_file
from agent_cache.recording.prices import model_calls, savings_of
from agent_cache.recording.recorded_tools import recorded_function

__all__ = ["add_options", "load_cassette", "redaction_rules", "run", "secret_places", "secrets_in"]

_BAR = 16
_DEEPEST = 12
_LEAST_FOR_A_PROGRESS_BAR = 1_000_000  # bytes
_LONG = 200
_ONE_LINE = 80
_STYLES = {"hit": "green", "shared": "green", "miss": "yellow", "write": "magenta", "blocked": "red", "llm": "cyan"}
_KINDS = frozenset({"tool", "llm", "call", "write", "env", "http"})
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
_FORMS = frozenset(
    {"value", "typed", "any", "object", "error", "stream", "response", "cancelled", "unencodable", "unfinished"}
)
_SOURCES = "agentcassette, vcrpy, cassetter, betamax and Reyn"


class _Missing:
    def __repr__(self) -> str:
        return "(none)"


_MISSING = _Missing()


# Options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache cassette`."""
    parser.description = "Exit codes: 0 the same or fine, 1 differences or findings, 2 usage or an unreadable file."
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True, dest="cassette_command")

    def add(
        name: str, function: Callable[[argparse.Namespace], int], summary: str, *, json: bool = True
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.set_defaults(run_cassette=function)
        if json:
            command.add_argument("--json", action="store_true", help="JSON on stdout")
        return command

    command = add("show", _show, "show the calls of a recording, in the order in which they started")
    command.add_argument("path", type=Path)
    command.add_argument("--limit", type=_count, metavar="N", help="show the first N calls only")
    command.add_argument("--name", metavar="PATTERN", help="only calls of this name, such as 'shop:*'")
    command.add_argument("--errors", action="store_true", help="only calls that raised")

    command = add("text", _text, "print a recording as text without times and numbers, for `git diff`", json=False)
    command.add_argument("path", type=Path)

    command = add("diff", _diff, "compare two recordings")
    command.add_argument("a", type=Path)
    command.add_argument("b", type=Path)

    command = add("fork", forks.run, "check a fork of a recording, and print how to run it")
    forks.add_options(command)

    cassettes: dict[str, Any] = {"type": Path, "nargs": "+", "metavar": "PATH", "help": "cassettes, or folders of them"}
    command = add("redact", _redact, "remove secrets from recordings, in place")
    command.add_argument("paths", **cassettes)
    command.add_argument("--name", action="append", default=[], metavar="NAME", help="redact values of this name, too")
    command.add_argument("--pattern", action="append", default=[], metavar="REGEX", help="redact matching text, too")
    command.add_argument("--check", action="store_true", help="write nothing; exit code 1 if there is something to do")

    command = add("verify", _verify, "check structure and digests, search for secrets and what cannot be replayed")
    command.add_argument("paths", **cassettes)
    command.add_argument(
        "--import", action="append", default=[], metavar="MODULE", dest="modules",
        help="read what its functions returned, as a replay does: their classes may have changed",
    )  # fmt: skip

    command = add("convert", _convert, "convert recordings of other tools, or to the fixtures of Reyn")
    command.description = f"Convert recordings of {_SOURCES}, redacted as a recording would be."
    command.add_argument("paths", type=Path, nargs="+", metavar="SOURCE")
    command.add_argument(
        "--to", choices=("agent-cache", "reyn"), default="agent-cache", help="reyn: calls of litellm, as its fixtures"
    )
    command.add_argument("-o", "--output", type=Path, metavar="PATH", help="default: SOURCE with the ending .jsonl")
    command.add_argument("--force", action="store_true", help="replace an existing file")

    command = add("prune", _prune, "delete cassettes that no test uses")
    command.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", default=[Path()], help="of tests")
    command.add_argument("--yes", action="store_true", help="delete; without it, only list what would be deleted")


def run(options: argparse.Namespace) -> int:
    """Run a subcommand. Returns its exit code.

    Raises:
        CassetteError, ConfigurationError: for an error of a file or of usage.
    """
    code: int = options.run_cassette(options)
    return code


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def load_cassette(path: Path) -> Cassette:
    """Load a cassette, with a progress bar if it is large.

    Raises:
        CassetteError: as `Cassette.load`.
    """
    try:
        size = path.stat().st_size
    except (OSError, ValueError):  # ValueError: a null character in the name
        size = 0
    with progress(f"reading {path.name}", size, least=_LEAST_FOR_A_PROGRESS_BAR) as update:
        return Cassette.load(path, progress=update)


def _cassettes_in(paths: list[Path]) -> list[Path]:
    """The files among `paths`, and all ``*.jsonl`` in the folders among them.

    Raises:
        CassetteNotFound: if a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise CassetteNotFound("there is no cassette in this folder", path)
        found += inside
    return list(dict.fromkeys(found))


def _has_our_format(path: Path) -> bool:
    """Whether a file that was loaded is one of agent-cache, and not one of agentcassette."""
    with path.open("rb") as file:
        return b'"agent_cache_cassette"' in file.readline()


# One call as text


def _tokens_text(call: RecordedCall) -> str:
    parts = [call.model] if call.model else []
    if call.input_tokens or call.output_tokens:
        parts.append(f"{call.input_tokens}+{call.output_tokens} tokens")
    if call.cache_read_tokens:
        parts.append(f"{call.cache_read_tokens} from the prompt cache")
    return f"  ({', '.join(parts)})" if parts else ""


# show


_Steps = Iterator[tuple[int, RecordedCall]]


def _show(options: argparse.Namespace) -> int:
    """Print the calls of a cassette in the order in which they started, nested as they were."""
    cassette = load_cassette(options.path)
    order, depths, totals = _timeline(cassette)

    def calls() -> _Steps:
        for index in order:
            call = cassette[index]
            is_named = not options.name or fnmatch.fnmatchcase(call.name, options.name)
            if is_named and (not options.errors or has_error(call)):
                yield index, call

    chosen = islice(calls(), options.limit)
    if options.json:
        _show_json(cassette, chosen, depths, totals)
    else:
        _show_lines(cassette, chosen, depths, totals)
    return 0


def _timeline(cassette: Cassette) -> tuple[Sequence[int], array[int], dict[str, Any]]:
    """Indices of the calls in the order of their start, how deep each is nested, and the totals."""
    ids: dict[int, int] = {}
    parents = array("q")
    kinds: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    errors = input_tokens = output_tokens = 0
    for index, call in enumerate(cassette):
        ids[call.id] = index
        parents.append(0 if call.parent is None else call.parent)
        kinds[call.kind] += 1
        sources[call.source] += 1
        errors += has_error(call)
        input_tokens += call.input_tokens
        output_tokens += call.output_tokens
    order = cassette.outline.starts()
    depths = array("H", bytes(2 * len(order)))
    for index in order:  # a call starts after the one that encloses it
        if parents[index] in ids:
            depths[index] = min(depths[ids[parents[index]]] + 1, _DEEPEST)
    totals = {
        "calls": len(order),
        "kinds": dict(kinds),
        "sources": {source: number for source, number in sources.items() if source},
        "errors": errors,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    return order, depths, totals


def _model_calls(cassette: Cassette) -> Savings:
    """The sum of all model calls of a cassette, with their price."""
    outline = cassette.outline
    calls = model_calls(cassette.steps, outline.of_models, outline.enclosing().__getitem__)
    return savings_of(calls, cassette.recorded_at)


def _show_json(cassette: Cassette, calls: _Steps, depths: array[int], totals: dict[str, Any]) -> None:
    """Print one document with one line for each call, without holding it in memory."""
    head = {"path": cassette.path, "header": msgspec.to_builtins(cassette.header), "is_partial": cassette.is_partial}
    sys.stdout.write(f'{json_text(head)[:-1]},\n"calls": [')
    for number, (index, call) in enumerate(calls):
        row = {"depth": depths[index], **msgspec.to_builtins(call)}
        sys.stdout.write(f"{',' if number else ''}\n{json_text(row)}")
    trailer = msgspec.to_builtins(cassette.trailer)
    sums = {"totals": totals, "model_calls": msgspec.to_builtins(_model_calls(cassette))}
    tail = {**sums, "duration_ms": cassette.duration_ms, "trailer": trailer}
    sys.stdout.write(f"],\n{json_text(tail)[1:]}\n")


def _show_lines(cassette: Cassette, calls: _Steps, depths: array[int], totals: dict[str, Any]) -> None:
    printer, whole = Printer(), cassette.duration_ms
    facts = [f"recorded {cassette.recorded_at}" if cassette.recorded_at else "", cassette.model or ""]
    printer.line((cassette.path, "bold"), *(f"  {fact}" for fact in facts if fact))
    if cassette.is_partial:
        printer.line(("The recording was killed: calls may be missing.", "red"))
    elif cassette.trailer is not None and cassette.trailer.ended != "returned":
        printer.line((f"The run {cassette.trailer.ended}.", "red"))
    if branch := forks.branch_text(cassette):
        printer.line(branch)
    printer.line((f"{'id':>6}  {'start':>8}  {'took':>8}  {'':{_BAR}}  {'':8}  call", "dim"))
    shown = 0
    for index, call in calls:
        shown += 1
        kind, error_style = call.source or call.kind, "red" if has_error(call) else ""
        style = error_style or _STYLES.get(kind, "")
        printer.line(
            f"{call.id:>6}  {duration_text(call.started_ms):>8}  {duration_text(call.duration_ms):>8}  ",
            (_bar(call, whole), style),
            "  ",
            (f"{kind:<8}", style),
            f"  {'  ' * depths[index]}{call_text(call)}",
            (" -> ", "dim"),
            (outcome_text(call), error_style),
            (_tokens_text(call), "dim"),
        )
    if shown < len(cassette):
        printer.line((f"{len(cassette) - shown} more calls are not shown", "dim"))
    parts = [f"{plural(totals['calls'], 'call')} in {duration_text(whole)}"]
    parts += [f"{number} {name}" for name, number in sorted(totals["sources"].items())]
    parts += [f"{number} {name}" for name, number in sorted(totals["kinds"].items()) if name not in {"tool", "call"}]
    if totals["input_tokens"] or totals["output_tokens"]:
        parts.append(f"{totals['input_tokens']}+{totals['output_tokens']} tokens")
    if (models := _model_calls(cassette)).calls:
        printer.line(str(models))
    printer.line(", ".join((*parts, plural(totals["errors"], "error"))))


def _bar(call: RecordedCall, whole: float) -> str:
    """The part of the run in which the call was running."""
    if whole <= 0:
        return " " * _BAR
    start = min(int(_BAR * call.started_ms / whole), _BAR - 1)
    length = max(1, min(round(_BAR * call.duration_ms / whole), _BAR - start))
    return f"{' ' * start}{'=' * length}".ljust(_BAR)


# text


def _text(options: argparse.Namespace) -> int:
    """Print a cassette as text in which an equal line means an equal thing: for a diff driver of git.

    A file that is no cassette, or is in conflict, is printed as it is: else git could not show its history.
    """
    try:
        for line in _text_lines(load_cassette(options.path)):
            sys.stdout.write(f"{escaped(line)}\n")
    except CassetteNotFound:
        raise
    except CassetteError:
        sys.stdout.write(escaped(options.path.read_text("utf-8", "replace"), keep="\n"))
    return 0


def _text_lines(cassette: Cassette) -> Iterator[str]:
    depths: dict[int, int] = {}
    lane = 0
    for raw in cassette.lines():
        line = msgspec.json.decode(raw)
        if "agent_cache_cassette" in line:
            yield from _rows(
                "cassette", {name: line[name] for name in ("model", "redact", "forked_from") if line.get(name)}, ""
            )
        elif "trailer" in line:
            yield f"ended: {line['trailer']['ended']}"
        else:
            depths[line["id"]] = depth = depths.get(line.get("parent", 0), -1) + 1
            margin = "  " * depth
            if line.get("lane", 0) != lane:
                lane = line.get("lane", 0)
                yield f"{margin}({'another task' if lane else 'the first task'})"
            overlap = ", open while others were started" if "until" in line else ""
            yield f"{margin}{line['kind']} {line['name']}{overlap}"
            yield from _call_rows(line, f"{margin}    ")


def _call_rows(line: dict[str, Any], margin: str) -> Iterator[str]:
    prefix = line.get("prefix", {})
    if "key" in line:
        yield from _rows("key", line["key"], margin)
    for name, value in line.get("arguments", {}).items():
        yield from _rows(name, value, margin, prefix, f"/arguments/{name}")
    for name, value in line["outcome"].items():
        yield from _rows(f"-> {name}", value, margin, prefix, f"/outcome/{name}")
    for name in ("asker", "source", "model", *_TOKENS, "form"):
        if name in line:
            yield f"{margin}{name}: {line[name]}"


def _rows(
    name: str, value: Any, margin: str, prefix: dict[str, list[int]] | None = None, pointer: str = ""
) -> Iterator[str]:
    """A named value as lines: a short one on one, a text line by line, and other ones part by part."""
    prefix = prefix or {}
    plain = json.dumps(value, ensure_ascii=False)
    is_whole = not any(each == pointer or each.startswith(f"{pointer}/") for each in prefix)
    if isinstance(value, str) and "\n" in value:
        yield f"{margin}{name}:"
        yield from (f"{margin}  | {each}" for each in value.split("\n"))
    elif is_whole and (not isinstance(value, dict | list) or not value or len(plain) <= _ONE_LINE):
        yield f"{margin}{name}: {plain}"
    elif isinstance(value, dict):
        yield f"{margin}{name}:"
        for key, each in value.items():
            escaped_key = key.replace("~", "~0").replace("/", "~1")
            yield from _rows(key, each, f"{margin}  ", prefix, f"{pointer}/{escaped_key}")
    else:
        yield f"{margin}{name}:"
        if pointer in prefix:
            yield f"{margin}  ... {plural(prefix[pointer][1], 'element')} as in an earlier call"
        for each in value:
            yield from _rows("-", each, f"{margin}  ")


# diff


def _diff(options: argparse.Namespace) -> int:
    """Print how two cassettes differ. Returns 1 if they do."""
    one, other = load_cassette(options.a), load_cassette(options.b)
    diff = diff_cassettes(one, other)
    exit_code = 0 if diff.identical else 1
    if options.json:
        names = {"a": str(options.a), "b": str(options.b)}
        sums = {"identical": diff.identical, "token_delta": diff.token_delta}
        print_json({**names, **sums, **msgspec.to_builtins(diff)})
        return exit_code
    printer = Printer()
    printer.line(("--- ", "red"), f"{one.path}  {len(one)} calls")
    printer.line(("+++ ", "green"), f"{other.path}  {len(other)} calls")
    for cassette in (one, other):
        if branch := forks.branch_text(cassette):
            printer.line(f"{cassette.path}: {branch}")
    for sign, style, cassette, ids in (("-", "red", one, diff.dropped_ids), ("+", "green", other, diff.new_ids)):
        for call in _calls_of(cassette, ids):
            printer.line((f"{sign} {call.id:>5}  {call_text(call)} -> {outcome_text(call)}", style))
    for change in diff.changed_calls:
        a, b = change["id"], change["id_b"]
        steps = f"{a}" if a == b else f"{a}>{b}"
        printer.line((f"~ {steps:>5}  {change['name']}: {', '.join(change['changed'])}", "yellow"))
        for part in change["changed"]:
            for path, before, after in _differences(getattr(change["a"], part), getattr(change["b"], part), part):
                texts = shortened(repr(before), _LONG), shortened(repr(after), _LONG)
                printer.line(f"           {path}: ", (texts[0], "red"), " -> ", (texts[1], "green"))
    for move in diff.moved_calls:
        printer.line((f"> {move['id']:>5}  {move['name']} is now call {move['id_b']}", "cyan"))
    if diff.identical:
        printer.line("The same calls in the same order, with the same outcomes.")
    else:
        printer.line(
            f"{len(diff.new_ids)} new, {len(diff.dropped_ids)} dropped, {len(diff.changed_calls)} changed, "
            f"{len(diff.moved_calls)} moved, {diff.token_delta:+} tokens"
        )
    return exit_code


def _calls_of(cassette: Cassette, ids: Sequence[int]) -> Iterator[RecordedCall]:
    """The calls of these ids."""
    index_of = cassette.outline.index_of()
    return (cassette[index_of(number)] for number in ids)


def _differences(before: Any, after: Any, path: str, *, hides_keys: bool = False) -> Iterator[tuple[str, Any, Any]]:
    """The innermost parts of plain data that differ: path, part before, part after.

    With `hides_keys`, a dict whose keys differ counts as one part, because the keys must not be named.
    """
    if isinstance(before, dict) and isinstance(after, dict) and not (hides_keys and list(before) != list(after)):
        for key in dict.fromkeys((*before, *after)):
            values = before.get(key, _MISSING), after.get(key, _MISSING)
            yield from _differences(*values, f"{path}.{key}", hides_keys=hides_keys)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, values in enumerate(zip(before, after, strict=True)):
            yield from _differences(*values, f"{path}[{index}]", hides_keys=hides_keys)
    elif before != after or type(before) is not type(after):
        yield path, before, after


# redact, convert


def secret_places(call: RecordedCall, rules: Redaction) -> list[str]:
    """Paths of the parts of a call that contain secrets."""
    clean = redact_call(call, rules)
    found = [
        path
        for part in ("arguments", "outcome")
        for path, _, _ in _differences(getattr(call, part), getattr(clean, part), part, hides_keys=True)
    ]
    return found + [part for part in ("name", "key", "model") if getattr(call, part) != getattr(clean, part)]


def redaction_rules(cassette: Cassette, options: argparse.Namespace | None = None) -> Redaction:
    """The default rules, those of the recording, and those of the options."""
    given = Redaction() if options is None else Redaction(options.name, options.pattern)
    return given.joined(recorded_rules(cassette))


def secrets_in(cassette: Cassette, rules: Redaction) -> Counter[str]:
    """How often each part of the calls of each name contains a secret."""
    found = Counter(
        f"{redacted_name(call.name, rules)} {place}" for call in cassette for place in secret_places(call, rules)
    )
    if has_secret_header(cassette, rules):
        found["header model"] += 1
    return found


def has_secret_header(cassette: Cassette, rules: Redaction) -> bool:
    """Whether the header has a secret."""
    header = cassette.header
    return redacted_header(header, rules, header.redact) != header


class _RedactedCalls(Sequence[RecordedCall]):
    """The calls of a cassette, redacted when they are read."""

    def __init__(self, cassette: Cassette, rules: Redaction) -> None:
        self._calls = cassette.steps
        self._rules = rules

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: Any) -> Any:
        return redact_call(self._calls[index], self._rules)


def _rewrite(cassette: Cassette, path: Path, rules: Redaction) -> None:
    """Write a cassette redacted, with new digests.

    Raises:
        CassetteError: if it cannot be written.
    """
    hook = {"hook": True} if cassette.header.redact.get("hook") else {}
    cassette.header = redacted_header(cassette.header, rules, {**rules.describe(), **hook})
    cassette.steps = _RedactedCalls(cassette, rules)
    cassette.save(path)


def _redact(options: argparse.Namespace) -> int:
    """Redact cassettes in place. Returns 1 with ``--check`` if there is something to redact.

    An error ends the command; files before it are redacted by then.
    """
    printer, results, count = Printer(), [], 0
    for path in _cassettes_in(options.paths):
        cassette = load_cassette(path)
        if not _has_our_format(path):
            raise CassetteError("is a cassette of agentcassette; `agent-cache cassette convert` redacts it, too", path)
        rules = redaction_rules(cassette, options)
        found = secrets_in(cassette, rules)
        count += found.total()
        is_written = not options.check and (found.total() > 0 or rules.describe() != recorded_rules(cassette))
        if is_written:
            if cassette.header.redact.get("hook"):
                print(f"{escaped(path)}: its recording had a redaction hook; a replay still needs it", file=sys.stderr)
            _rewrite(cassette, path, rules)
        results.append({"path": str(path), "redacted": dict(found), "is_written": is_written})
        if not options.json:
            _print_secrets(printer, path, found, "to redact" if options.check else "redacted")
    if options.json:
        print_json({"findings": count, "cassettes": results})
    return 1 if options.check and count else 0


def _print_secrets(printer: Printer, path: Path, found: Counter[str], verb: str) -> None:
    printer.line(f"{path}: {found.total() or 'nothing'} {verb}")
    for place, number in found.most_common():
        printer.line(f"  {number:>6} x {place}")


def _convert(options: argparse.Namespace) -> int:
    """Convert recordings of other tools, redacted as a recording would be; or cassettes to fixtures of Reyn."""
    if options.output is not None and len(options.paths) > 1:
        raise ConfigurationError("--output takes one SOURCE")
    printer, results = Printer(), []
    for path in options.paths:
        cassette = load_cassette(path) if options.to == "reyn" else _load_other(path)
        target = options.output or path.with_suffix(".jsonl")
        if target.exists() and not options.force:
            raise CassetteError("exists already; --force replaces it, --output gives another path", target)
        rules = redaction_rules(cassette)
        found = secrets_in(cassette, rules)
        if options.to == "reyn":
            cassette.steps = _RedactedCalls(cassette, rules)
            entries = from_cassette(cassette)
            count = len(entries)
            replace_file(target, map(fixture_line, entries))
        else:
            count = len(cassette)
            _rewrite(cassette, target, rules)
        results.append({"path": str(path), "target": str(target), "calls": count, "redacted": dict(found)})
        if not options.json:
            printer.line(f"{path} -> {target}  {count} calls")
            if found:
                _print_secrets(printer, target, found, "redacted")
    if options.json:
        print_json({"cassettes": results})
    return 0


def _load_other(path: Path) -> Cassette:
    """The recording of another tool, as a cassette.

    Raises:
        CassetteError: if it is none, or a cassette already.
        ConfigurationError: if it is YAML, and PyYAML is not installed.
    """
    is_ours = path.is_file() and _has_our_format(path)
    if not is_ours and is_fixture(path):
        return to_cassette(read_fixture(path), path)
    if not is_ours and is_foreign(path):
        return read_foreign(path)
    cassette = load_cassette(path)
    if is_ours:
        raise CassetteError("is a cassette of agent-cache already", path)
    return cassette


# verify


def _verify(options: argparse.Namespace) -> int:
    """Print what is wrong with cassettes. Returns 1 if something is."""
    printer, results, count = Printer(), [], 0
    functions = _functions_in(options.modules)
    for path in _cassettes_in(options.paths):
        findings, calls = _findings(path, functions)
        count += len(findings)
        results.append({"path": str(path), "calls": calls, "findings": findings})
        if options.json:
            continue
        if not findings:
            printer.line(("ok", "green"), f"  {path}  {calls} calls")
        for finding in findings:
            place = f"{path}:{finding['line']}" if finding["line"] else str(path)
            printer.line((finding["kind"], "red"), f"  {place}: {finding['message']}")
    if options.json:
        print_json({"findings": count, "cassettes": results})
    elif count:
        printer.line(f"{plural(count, 'finding')} in {plural(len(results), 'cassette')}")
    return 1 if count else 0


def _functions_in(modules: Sequence[str]) -> dict[str, RecordedFunction]:
    """The functions that these modules record, by their names in cassettes.

    The user names the modules: what a cassette names is never imported.

    Raises:
        ConfigurationError: if one cannot be imported.
    """
    found: dict[str, RecordedFunction] = {}
    if modules and "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise ConfigurationError(f"--import {name}: it cannot be imported ({error!r})") from error
        classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name]
        for holder in (module, *classes):
            for one in vars(holder).values():
                function = recorded_function(getattr(one, "__func__", one))
                if function is not None:
                    found.setdefault(function.name, function)
    return found


def _reading_problems(call: RecordedCall, function: RecordedFunction, path: Path, line: int) -> Iterator[str]:
    """What a replay could not read, as the function is annotated now."""
    outcomes = [(call.outcome, function.schema)]
    stream = call.outcome.get("stream")
    if stream is not None:
        outcomes = [(chunk, function.chunk_schema) for chunk in stream["chunks"]]
    for outcome, schema in outcomes:
        if not outcome.keys().isdisjoint(("typed", "any", "object")):
            try:
                read_value(outcome, schema, str(path), line)
            except CassetteError as error:
                yield error.reason
                return


def _findings(path: Path, functions: dict[str, RecordedFunction]) -> tuple[list[dict[str, Any]], int]:
    """What is wrong with one cassette, and how many calls it has.

    Args:
        path: the cassette.
        functions: by their names in cassettes; what they returned is read.
    """
    found: list[dict[str, Any]] = []

    def add(kind: str, line: int, message: str) -> None:
        found.append({"kind": kind, "line": line, "message": message})

    try:
        cassette = load_cassette(path)
    except CassetteError as error:
        if isinstance(error, CassetteNotFound) or error.reason.startswith("cannot be read"):
            raise
        add("structure", error.line, error.reason)
        return found, 0
    if cassette.is_partial:
        add("structure", 0, "the recording was killed: the trailer is missing, and calls may be missing too")
    elif cassette.trailer is not None and cassette.trailer.calls != len(cassette):
        add("structure", 0, f"the trailer counts {cassette.trailer.calls} calls, but the file has {len(cassette)}")
    if isinstance(cassette.steps, StoredCalls):
        for message in cassette.steps.table_problems():
            add("structure", 0, message)
    ids = {call.id for call in cassette}
    rules = redaction_rules(cassette)
    if has_secret_header(cassette, rules):
        add("secret", 1, "the label of the recording contains a secret")
    has_lines = _has_our_format(path)  # a document of agentcassette does not have one line for each call
    for index, call in enumerate(cassette):
        line = index + 2 if has_lines else 0
        digest = digest_of(call.name, call.arguments) if call.key is None else digest_of_key(call.name, call.key)
        messages = [("structure", message) for message in _structure_findings(call, ids)]
        if call.digest != digest.hex():
            what = "the digest does not match the name and the arguments"
            messages.append(("digest", f"{what}; the line was edited, and a replay will not find the call"))
        clean = redact_call(call, rules)
        for kind, message in messages:
            add(kind, line, f"call {call.id}, {call_text(clean)}: {message}")
        for problem in problems_of(call.outcome):
            add("replay", line, f"call {call.id}: {clean.name} {problem}")
        if call.name in functions and b'"$function"' not in encode(call.arguments):  # a class may have been passed
            for problem in _reading_problems(call, functions[call.name], path, line):
                add("replay", line, f"call {call.id}, {clean.name}: {problem}")
        for place in secret_places(call, rules):
            add("secret", line, f"call {call.id}, {clean.name}: {place} contains a secret")
    return found, len(cassette)


def _structure_findings(call: RecordedCall, ids: set[int]) -> Iterator[str]:
    if call.kind not in _KINDS:
        yield f"the kind {call.kind!r} is unknown"
    if call.parent is not None and (call.parent not in ids or call.parent >= call.id):
        yield f"it is enclosed by call {call.parent}, which is missing or started later"
    if call.after and call.after not in ids:
        yield f"it started after call {call.after}, which is missing"
    if call.until and (call.until not in ids or call.until <= call.id):
        yield f"it was open when call {call.until} was started, which is missing or was started earlier"
    if len(_FORMS & call.outcome.keys()) != 1:
        yield f"the outcome has no known form: {', '.join(call.outcome) or 'empty'}"
    if "response" in call.outcome:
        try:
            check_outcome(call.outcome)
            pieces_of(call.outcome["response"])
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            yield f"the response is malformed: {error}"


# prune


def _prune(options: argparse.Namespace) -> int:
    """Delete cassettes with ``--yes``, otherwise list them. Returns 1 if there are some, and no ``--yes``."""
    results = _prune_files(options.folders, deletes=options.yes)
    if options.json:
        print_json({"deleted": options.yes, "cassettes": results})
    else:
        printer = Printer()
        for one in results:
            printer.line(f"{one['path']}  {one['reason']}")
        if not results:
            printer.line("There is nothing to prune.")
        else:
            printer.line("Deleted." if options.yes else "Nothing was deleted; --yes does it.")
    return 1 if results and not options.yes else 0


def _prune_files(folders: list[Path], *, deletes: bool) -> list[dict[str, Any]]:
    """Delete cassettes that no test uses, and partial files of recordings that were killed."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(f"prune takes folders of tests, and {str(folder)!r} is not a folder")
    found = [(path, "no test uses it") for path in _orphans(folders)]
    for folder in folders:
        for pattern in ("*.jsonl.partial", "*.jsonl.partial.old"):
            found += [(path, "left by a killed recording") for path in sorted(folder.rglob(pattern)) if is_idle(path)]
        for path in sorted(folder.rglob("*.jsonl.partial.sorted")):
            log = path.with_suffix("")  # its recorder has locked this one
            if not log.exists() or is_idle(log):
                found.append((path, "left by a killed recording"))
    for path, _ in found if deletes else ():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CassetteError(f"cannot be deleted: {error.strerror}", path) from error
    return [{"path": str(path), "reason": reason} for path, reason in found]


def _orphans(folders: list[Path]) -> list[Path]:
    """The cassettes that no test uses. Only pytest knows which tests there are: it is asked in a process of its own.

    Raises:
        CassetteError: if the tests cannot be collected.
    """
    if importlib.util.find_spec("pytest") is None:
        raise ConfigurationError("prune needs pytest to find out which tests there are, and it is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "orphans.json")
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--agent-orphans=report"]
        command += [f"--agent-orphans-file={report}", "-p", "no:cacheprovider", *map(str, folders)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if result.returncode not in (0, 5) or not report.exists():
            tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
            raise CassetteError(f"the tests could not be collected, so nothing was deleted:\n{tail}", folders[0])
        return [Path(path) for path in json.loads(report.read_text("utf-8"))]
