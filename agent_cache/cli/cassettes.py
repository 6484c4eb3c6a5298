"""`agent-cache cassette`: shows, compares, forks, redacts, verifies and converts recordings.

Exit codes: 0 no differences or findings, 1 differences or findings, 2 usage, or a file that cannot be read or written.

A file is replaced as a whole. Of a secret, the place is printed, and never the text.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.cli import forks
from agent_cache.cli.output import Printer, escaped, plural, print_json
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording import Cassette, RecordedCall, Redaction, diff_cassettes
from agent_cache.recording.call_text import call_text, described, duration_text, has_error, outcome_text
from agent_cache.recording.cassette import recorded_rules, redact_call, redacted_header, redacted_name
from agent_cache.recording.differences import changes
from agent_cache.recording.file import digest_of
from agent_cache.recording.foreign import is_foreign, read_foreign
from agent_cache.recording.functions import RecordedFunction, recorded_function
from agent_cache.recording.http.bodies import pieces_of
from agent_cache.recording.litellm import is_fixture, read_fixture, to_cassette
from agent_cache.recording.outcomes import encode, problems_of, read_value
from agent_cache.recording.prices import model_calls, savings_of
from agent_cache.resume.journal import read_journal

_ONE_LINE = 80
_EXAMPLES = {
    "diff": "before.jsonl after.jsonl", "fork": "run.jsonl --at 7 --to branch.jsonl", "redact": "tests/recordings",
    "verify": "tests/recordings", "convert": "vcr.yaml -o run.jsonl",
}  # fmt: skip
_ENDS = ("asker", "source", "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
         "cache_write_1h_tokens", "form")  # fmt: skip
"""Fields of a call behind its outcome, in `text`."""
_FORMS = frozenset(
    {"value", "typed", "any", "object", "error", "stream", "response", "cancelled", "unencodable", "unfinished"}
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache cassette`."""
    parser.description = "Exit codes: 0 the same or fine, 1 differences or findings, 2 usage or an unreadable file."
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True, dest="cassette_command")

    def add(name: str, function: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.epilog = f"example: agent-cache cassette {name} {_EXAMPLES.get(name, 'run.jsonl')}"
        command.set_defaults(run_cassette=function)
        if name != "text":
            command.add_argument("--json", action="store_true", help="JSON on stdout")
        return command

    command = add("show", _show, "show the calls of a recording, in the order in which they started")
    command.add_argument("path", type=Path)
    command.add_argument("--limit", type=int, metavar="N", help="show the first N calls only")
    command.add_argument("--name", default="*", metavar="PATTERN", help="only calls of this name, such as 'shop:*'")
    command.add_argument("--errors", action="store_true", help="only calls that raised")

    command = add("text", _text, "print a recording as text without times and numbers, for `git diff`")
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

    command = add("convert", _convert, "convert recordings of agentcassette, vcrpy, cassetter, betamax and Reyn")
    command.add_argument("paths", type=Path, nargs="+", metavar="SOURCE")
    command.add_argument("-o", "--output", type=Path, metavar="PATH", help="default: SOURCE with the ending .jsonl")
    command.add_argument("--force", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace) -> int:
    """Run a subcommand. Returns its exit code."""
    return int(options.run_cassette(options))


def _cassettes_in(paths: list[Path]) -> list[Path]:
    """The files among `paths`, and all ``*.jsonl`` in the folders among them."""
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


# show


def _show(options: argparse.Namespace) -> int:
    """Print the calls of a cassette in the order in which they started, nested as they were."""
    cassette = Cassette.load(options.path)
    outline = cassette.outline
    order, enclosing, depths = outline.starts(), outline.enclosing(), [0] * len(cassette)
    for index in order:  # a call starts after the one that encloses it
        depths[index] = depths[enclosing[index]] + 1 if enclosing[index] >= 0 else 0
    chosen = [
        (depths[index], cassette[index])
        for index in order
        if fnmatch.fnmatchcase(cassette[index].name, options.name)
        and (has_error(cassette[index]) or not options.errors)
    ][: options.limit]
    totals = {"calls": len(cassette), "errors": sum(map(has_error, cassette))}
    totals |= {name: sum(getattr(call, name) for call in cassette) for name in ("input_tokens", "output_tokens")}
    models = savings_of(model_calls(cassette.steps, outline.of_models, enclosing.__getitem__), cassette.recorded_at)
    doubts = read_journal(options.path).in_doubt if cassette.intents else []
    if options.json:
        facts = {"path": cassette.path, "is_partial": cassette.is_partial, "duration_ms": cassette.duration_ms}
        facts |= {"header": msgspec.to_builtins(cassette.header), "trailer": msgspec.to_builtins(cassette.trailer)}
        facts |= {"totals": totals, "model_calls": msgspec.to_builtins(models), "in_doubt": msgspec.to_builtins(doubts)}
        print_json(facts | {"calls": [{"depth": depth, **msgspec.to_builtins(call)} for depth, call in chosen]})
        return 0
    printer = Printer()
    facts_of_run = [f"recorded {cassette.recorded_at}" if cassette.recorded_at else "", cassette.model or ""]
    printer.line((cassette.path, "bold"), *(f"  {fact}" for fact in facts_of_run if fact))
    if cassette.is_partial:
        printer.line(("The recording was killed: calls may be missing.", "red"))
    elif cassette.trailer is not None and cassette.trailer.ended != "returned":
        printer.line((f"The run {cassette.trailer.ended}.", "red"))
    if branch := forks.branch_text(cassette):
        printer.line(branch)
    printer.line((f"{'id':>6}  {'start':>8}  {'took':>8}  {'':8}  call", "dim"))
    for depth, call in chosen:
        tokens = f"{call.input_tokens}+{call.output_tokens} tokens" if call.input_tokens or call.output_tokens else ""
        model = ", ".join(part for part in (call.model, tokens) if part)
        times = f"{duration_text(call.started_ms):>8}  {duration_text(call.duration_ms):>8}"
        printer.line(
            f"{call.id:>6}  {times}  {call.source or call.kind:<8}  {'  ' * depth}{call_text(call)}",
            (" -> ", "dim"),
            (outcome_text(call), "red" if has_error(call) else ""),
            (f"  ({model})" if model else "", "dim"),
        )
    for one in doubts:
        text = f"{described(one.name, one.arguments)} (idempotency key {one.key})"
        printer.line(f"{one.id:>6}  {'':18}  ", ("in doubt", "red"), f"  {text}")
    if len(chosen) < len(cassette):
        printer.line((f"{len(cassette) - len(chosen)} more calls are not shown", "dim"))
    if models.calls:
        printer.line(str(models))
    parts = [f"{plural(len(cassette), 'call')} in {duration_text(cassette.duration_ms)}"]
    if totals["input_tokens"] or totals["output_tokens"]:
        parts.append(f"{totals['input_tokens']}+{totals['output_tokens']} tokens")
    printer.line(", ".join((*parts, plural(totals["errors"], "error"))))
    return 0


# text


def _text(options: argparse.Namespace) -> int:
    """Print a cassette as text in which an equal line means an equal thing: for a diff driver of git.

    A file that is no cassette, or is in conflict, is printed as it is: else git could not show its history.
    """
    try:
        for line in _text_lines(Cassette.load(options.path)):
            sys.stdout.write(f"{escaped(line)}\n")
    except CassetteNotFound:
        raise
    except CassetteError:
        sys.stdout.write(escaped(options.path.read_text("utf-8", "replace"), keep="\n"))
    return 0


def _text_lines(cassette: Cassette) -> Iterator[str]:
    depths: dict[int, int] = {}
    for line in map(msgspec.json.decode, cassette.lines()):
        if "agent_cache_cassette" in line:
            shown = {name: line[name] for name in ("model", "redact", "forked_from") if line.get(name)}
            yield from _rows("cassette", shown)
        elif "trailer" in line:
            yield f"ended: {line['trailer']['ended']}"
        else:
            depths[line["id"]] = depth = depths.get(line.get("parent", 0), -1) + 1
            yield f"{'  ' * depth}{line['kind']} {line['name']}"
            parts = [("key", line["key"])] if "key" in line else []
            parts += line.get("arguments", {}).items()
            parts += ((f"-> {name}", value) for name, value in line["outcome"].items())
            for name, value in parts:
                yield from _rows(name, value, f"{'  ' * depth}    ")
            yield from (f"{'  ' * depth}    {name}: {line[name]}" for name in _ENDS if name in line)


def _rows(name: str, value: Any, margin: str = "") -> Iterator[str]:
    """A named value as lines: a short one on one, a text line by line, and other ones part by part."""
    plain = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and "\n" in value:
        yield f"{margin}{name}:"
        yield from (f"{margin}  | {each}" for each in value.split("\n"))
    elif not isinstance(value, dict | list) or not value or len(plain) <= _ONE_LINE:
        yield f"{margin}{name}: {plain}"
    else:
        yield f"{margin}{name}:"
        for key, each in value.items() if isinstance(value, dict) else (("-", each) for each in value):
            yield from _rows(key, each, f"{margin}  ")


# diff


def _diff(options: argparse.Namespace) -> int:
    """Print how two cassettes differ. Returns 1 if they do."""
    one, other = Cassette.load(options.a), Cassette.load(options.b)
    diff = diff_cassettes(one, other)
    if options.json:
        facts = {"a": str(options.a), "b": str(options.b), "identical": diff.identical, "token_delta": diff.token_delta}
        print_json(facts | msgspec.to_builtins(diff))
        return 0 if diff.identical else 1
    printer = Printer()
    for sign, style, cassette in (("---", "red", one), ("+++", "green", other)):
        printer.line((f"{sign} ", style), f"{cassette.path}  {len(cassette)} calls")
        if branch := forks.branch_text(cassette):
            printer.line(f"{cassette.path}: {branch}")
    for sign, style, cassette, ids in (("-", "red", one, diff.dropped_ids), ("+", "green", other, diff.new_ids)):
        index_of = cassette.outline.index_of
        for call in (cassette[index_of[number]] for number in ids):
            printer.line((f"{sign} {call.id:>5}  {call_text(call)} -> {outcome_text(call)}", style))
    for change in diff.changed_calls:
        a, b = change["id"], change["id_b"]
        number = f"{a}" if a == b else f"{a}>{b}"
        printer.line((f"~ {number:>5}  {change['name']}: {', '.join(change['changed'])}", "yellow"))
        for part in change["changed"]:
            for line in changes(getattr(change["a"], part), getattr(change["b"], part), part):
                printer.line(f"           {line}")
    for move in diff.moved_calls:
        printer.line((f"> {move['id']:>5}  {move['name']} is now call {move['id_b']}", "cyan"))
    if diff.identical:
        printer.line("The same calls in the same order, with the same outcomes.")
    else:
        printer.line(
            f"{len(diff.new_ids)} new, {len(diff.dropped_ids)} dropped, {len(diff.changed_calls)} changed, "
            f"{len(diff.moved_calls)} moved, {diff.token_delta:+} tokens"
        )
    return 0 if diff.identical else 1


# redact, convert


def _changed_places(before: Any, after: Any, path: str) -> Iterator[str]:
    """Paths of the innermost parts of plain data that differ. Keys that differ are not named: they may be secrets."""
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        for key, value in before.items():
            yield from _changed_places(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (value, other) in enumerate(zip(before, after, strict=True)):
            yield from _changed_places(value, other, f"{path}[{index}]")
    elif before != after or type(before) is not type(after):
        yield path


def secret_places(call: RecordedCall, rules: Redaction) -> list[str]:
    """Paths of the parts of a call that contain secrets."""
    clean = redact_call(call, rules)
    parts = ("arguments", "outcome", "name", "key", "model")
    return [path for part in parts for path in _changed_places(getattr(call, part), getattr(clean, part), part)]


def redaction_rules(cassette: Cassette, options: argparse.Namespace | None = None) -> Redaction:
    """The default rules, those of the recording, and those of the options."""
    given = Redaction() if options is None else Redaction(options.name, options.pattern)
    return given.joined(recorded_rules(cassette))


def secrets_in(cassette: Cassette, rules: Redaction) -> Counter[str]:
    """How often each part of the calls of each name contains a secret."""
    found = Counter(
        f"{redacted_name(call.name, rules)} {place}" for call in cassette for place in secret_places(call, rules)
    )
    if redacted_header(cassette.header, rules, cassette.header.redact) != cassette.header:
        found["header model"] += 1
    return found


def _rewrite(cassette: Cassette, path: Path, rules: Redaction) -> None:
    """Write a cassette redacted, with new digests."""
    hook = {"hook": True} if cassette.header.redact.get("hook") else {}
    cassette.header = redacted_header(cassette.header, rules, {**rules.describe(), **hook})
    cassette.steps = [redact_call(call, rules) for call in cassette]
    cassette.save(path)


def _redact(options: argparse.Namespace) -> int:
    """Redact cassettes in place. Returns 1 with ``--check`` if there is something to redact.

    An error ends the command; files before it are redacted by then.
    """
    results: list[dict[str, Any]] = []
    for path in _cassettes_in(options.paths):
        cassette = Cassette.load(path)
        if not _has_our_format(path):
            if cassette.header.log and any(call.place for call in cassette):
                raise CassetteError("is a journal, which stays as it is; see `agent-cache cassette verify`", path)
            raise CassetteError("is a cassette of agentcassette; `agent-cache cassette convert` redacts it, too", path)
        rules = redaction_rules(cassette, options)
        found = secrets_in(cassette, rules)
        is_written = not options.check and (found.total() > 0 or rules.describe() != recorded_rules(cassette))
        if is_written:
            if cassette.header.redact.get("hook"):
                print(f"{escaped(path)}: its recording had a redaction hook; a replay still needs it", file=sys.stderr)
            _rewrite(cassette, path, rules)
        results.append({"path": str(path), "redacted": dict(found), "is_written": is_written})
        if not options.json:
            _print_secrets(path, found, "to redact" if options.check else "redacted")
    count = sum(sum(one["redacted"].values()) for one in results)
    if options.json:
        print_json({"findings": count, "cassettes": results})
    return 1 if options.check and count else 0


def _print_secrets(path: Path, found: Counter[str], verb: str) -> None:
    printer = Printer()
    printer.line(f"{path}: {found.total() or 'nothing'} {verb}")
    for place, number in found.most_common():
        printer.line(f"  {number:>6} x {place}")


def _convert(options: argparse.Namespace) -> int:
    """Convert recordings of other tools, redacted as a recording would be."""
    if options.output is not None and len(options.paths) > 1:
        raise ConfigurationError("--output takes one SOURCE")
    results = []
    for path in options.paths:
        cassette = _load_other(path)
        target = options.output or path.with_suffix(".jsonl")
        if target.exists() and not options.force:
            raise CassetteError("exists already; --force replaces it, --output gives another path", target)
        rules = redaction_rules(cassette)
        found = secrets_in(cassette, rules)
        _rewrite(cassette, target, rules)
        results.append({"path": str(path), "target": str(target), "calls": len(cassette), "redacted": dict(found)})
        if not options.json:
            Printer().line(f"{path} -> {target}  {len(cassette)} calls")
            if found:
                _print_secrets(target, found, "redacted")
    if options.json:
        print_json({"cassettes": results})
    return 0


def _load_other(path: Path) -> Cassette:
    """The recording of another tool, as a cassette."""
    if path.is_file() and _has_our_format(path):
        raise CassetteError("is a cassette of agent-cache already", path)
    if is_fixture(path):
        return to_cassette(read_fixture(path), path)
    return read_foreign(path) if is_foreign(path) else Cassette.load(path)


# verify


def _verify(options: argparse.Namespace) -> int:
    """Print what is wrong with cassettes. Returns 1 if something is."""
    printer, functions = Printer(), _functions_in(options.modules)
    results: list[dict[str, Any]] = []
    for path in _cassettes_in(options.paths):
        calls: int = 0
        try:
            cassette = Cassette.load(path)
        except CassetteError as error:
            if isinstance(error, CassetteNotFound) or error.reason.startswith("cannot be read"):
                raise
            found = [("structure", error.line, error.reason)]
        else:
            calls, found = len(cassette), list(_findings(cassette, path, functions))
        findings = [{"kind": kind, "line": line, "message": message} for kind, line, message in found]
        results.append({"path": str(path), "calls": calls, "findings": findings})
        if options.json:
            continue
        if not found:
            printer.line(("ok", "green"), f"  {path}  {calls} calls")
        for kind, line, message in found:
            printer.line((kind, "red"), f"  {path}{f':{line}' if line else ''}: {message}")
    count = sum(len(one["findings"]) for one in results)
    if options.json:
        print_json({"findings": count, "cassettes": results})
    elif count:
        printer.line(f"{plural(count, 'finding')} in {plural(len(results), 'cassette')}")
    return 1 if count else 0


def _functions_in(modules: Sequence[str]) -> dict[str, RecordedFunction]:
    """The functions that these modules record, by their names in cassettes.

    The user names the modules: what a cassette names is never imported.
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
                if (function := recorded_function(getattr(one, "__func__", one))) is not None:
                    found.setdefault(function.name, function)
    return found


def _findings(cassette: Cassette, path: Path, functions: dict[str, RecordedFunction]) -> Iterator[tuple[str, int, str]]:
    """Kind, line and text of what is wrong with one cassette. What these functions returned is read."""
    if cassette.is_partial:
        yield "structure", 0, "the recording was killed: the trailer is missing, and calls may be missing too"
    elif cassette.trailer is not None and cassette.trailer.calls != len(cassette):
        yield "structure", 0, f"the trailer counts {cassette.trailer.calls} calls, but the file has {len(cassette)}"
    rules = redaction_rules(cassette)
    if redacted_header(cassette.header, rules, cassette.header.redact) != cassette.header:
        yield "secret", 1, "the label of the recording contains a secret"
    has_lines = _has_our_format(path)  # a document of agentcassette does not have one line for each call
    for index, call in enumerate(cassette):
        line, clean = index + 2 if has_lines else 0, redact_call(call, rules)
        shown = f"call {call.id}, {call_text(clean)}"
        yield from (("structure", line, f"{shown}: {message}") for message in _structure_findings(call))
        digest = digest_of(call.name, call.arguments, call.key)
        if call.digest != digest.hex():
            what = "the digest does not match the name and the arguments"
            yield "digest", line, f"{shown}: {what}; the line was edited, and a replay will not find the call"
        problems = [*problems_of(call.outcome), *_reading_problems(call, functions, path, line)]
        yield from (("replay", line, f"call {call.id}: {clean.name} {problem}") for problem in problems)
        for place in secret_places(call, rules):
            yield "secret", line, f"call {call.id}, {clean.name}: {place} contains a secret"


def _structure_findings(call: RecordedCall) -> Iterator[str]:
    if len(_FORMS & call.outcome.keys()) != 1:
        yield f"the outcome has no known form: {', '.join(call.outcome) or 'empty'}"
    try:
        if "response" in call.outcome:
            pieces_of(call.outcome["response"])
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"the response is malformed: {error}"


def _reading_problems(
    call: RecordedCall, functions: dict[str, RecordedFunction], path: Path, line: int
) -> Iterator[str]:
    """What a replay could not read, as the function is annotated now."""
    function = functions.get(call.name)
    if function is None or b'"$function"' in encode(call.arguments):  # a class may have been passed
        return
    outcomes = [(call.outcome, function.schema)]
    if "stream" in call.outcome:
        outcomes = [(chunk, function.chunk_schema) for chunk in call.outcome["stream"]["chunks"]]
    for outcome, schema in outcomes:
        if not outcome.keys().isdisjoint(("typed", "any", "object")):
            try:
                read_value(outcome, schema, str(path), line)
            except CassetteError as error:
                yield error.reason
                return
