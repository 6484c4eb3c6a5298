"""`agent-cache advise`: the rules that recorded runs show to be needed; `--check`: whether the rules in use are these.

Exit codes: 0 fine, 1 the rules in use would have given stale answers, or leave tools out, or a cache answered most
reads of the log, or the runs of the log begin anew, so that its rules are not to be trusted, 2 usage, or a log or a
target that cannot be read.

The rules, or what `--check` has found, go to stdout, or into a file; everything else goes to stderr. Whatever comes
from a log is redacted, and nothing in it is left that a terminal would interpret.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from agent_cache import AgentCacheError, ConfigurationError
from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.check import Cause, Match, cause_of, tags_in_use
from agent_cache.advise.forms import FORMS, Form
from agent_cache.advise.logs import CallLog, open_logs
from agent_cache.advise.mining import mine
from agent_cache.advise.paths import is_failure
from agent_cache.advise.records import Scratch, files_of
from agent_cache.advise.replay import Failures, Outcome, Policy, StaleAnswer, replay_all
from agent_cache.advise.tag_rules import Advice, Resets
from agent_cache.cli.output import (
    Printer,
    escaped,
    is_same_file,
    plural,
    print_json,
    progress,
    shortened,
    write_file,
)
from agent_cache.cli.rule_text import FORMATS, Names, Rules, percent, saved_text
from agent_cache.recording import Redaction

__all__ = ["add_options", "advised_rules", "exit_code_of", "print_summary", "refusal_of", "run"]

_LEAST_BYTES: Final = 1_000_000
_LEAST_CALLS: Final = 2_000
"""From how much on a progress bar is drawn."""
_PASSES: Final = 2
"""How often mining reads a log, most of the time."""
_SHOWN: Final = 5
"""Stale answers of one cause that are shown as text."""
_MOST_TOOLS: Final = 40
_LONG: Final = 100
Kind = Literal["read", "write"]
_KINDS: Final[tuple[Kind, ...]] = ("read", "write")
_POLICIES: Final = {
    "none": "no invalidation",
    "roots": "whole roots",
    "advised": "advised",
    "failures_ignored": "  failed writes ignored",
    "oracle": "oracle",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache advise RUNS... [--format python|toolbox|toml|json] [-o FILE]\n"
        "       agent-cache advise --check TARGET RUNS... [--fail-on any|stale] [--format text|json]"
    )
    parser.description = (
        "Find the tags of tools in recorded runs. Exit codes: 0 fine, 1 --check has found something, or the runs of "
        "the log begin anew, 2 usage, or something that cannot be read."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="recordings and other logs of calls, or folders of them"
    )
    parser.add_argument(
        "--check",
        metavar="TARGET",
        help="compare the rules in use: rules.toml, package.module, module:toolbox, file.py",
    )
    parser.add_argument(
        "--format",
        choices=("python", "toolbox", "toml", "json", "text"),
        help="decorators (default), a Toolbox as Python or as a file of rules, every figure; of --check: text, json",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the rules into a file, in place of stdout")
    parser.add_argument("--force", action="store_true", help="with -o: replace an existing file")
    parser.add_argument(
        "--fail-on", choices=("any", "stale"), default="any", help="of --check: what exit code 1 is for (default: any)"
    )
    for kind in _KINDS:
        parser.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            dest="kinds",
            metavar="NAME",
            type=partial(_of_kind, kind),
            help=f"what the log does not say: this tool {kind}s; may have * in it, and be repeated",
        )
    parser.add_argument("--form", choices=FORMS, help="of the logs, where it is not recognised")
    parser.add_argument(
        "--redact", action="append", default=[], metavar="NAME", help="redact arguments of this name, too"
    )


def _of_kind(kind: Kind, name: str) -> tuple[str, Kind]:
    return name, kind


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    redaction = Redaction(options.redact)
    try:
        if mistake := _mistake_in(options):
            return _refused(mistake, options, redaction)
        if options.check is not None:
            return _check(options, redaction)
        return _advise(options, redaction)
    except BrokenPipeError:
        raise
    except (AgentCacheError, OSError) as error:
        return _refused(error, options, redaction)


def refusal_of(error: Exception | str, redaction: Redaction) -> str:
    """What cannot be done, and why, in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        error = f"{error.filename}: {error.strerror}"
    return escaped(redaction.text(str(error)))


def _refused(error: Exception | str, options: argparse.Namespace, redaction: Redaction) -> int:
    line = refusal_of(error, redaction)
    if options.check is not None and options.format == "json":
        print_json({"error": line})
    print(f"agent-cache advise: {line}", file=sys.stderr)
    return 2


def _mistake_in(options: argparse.Namespace) -> str:
    if options.check is None:
        if options.format == "text":
            return "--format text is for --check"
        if options.fail_on != "any":
            return "--fail-on is for --check"
        if options.force and options.output is None:
            return "--force is for -o"
        if options.output is not None and Path(options.output).exists() and not options.force:
            return f"{options.output} exists; --force replaces it"
        return ""
    if options.format not in (None, "text", "json"):
        return "--check has the formats text and json"
    if options.output is not None or options.force:
        return "--check writes no rules, so -o and --force are not for it"
    return ""


class _Bar:
    """Shows how far a pass over a log is."""

    def __init__(self) -> None:
        self.draw: Callable[[int], None] = lambda _: None

    def __call__(self, done: int) -> None:
        self.draw(done)

    @contextmanager
    def over(self, label: str, total: int, *, least: int) -> Iterator[None]:
        """Draw a bar while the block runs."""
        with progress(label, total, least=least) as self.draw:
            yield
        self.draw = lambda _: None


# The log


@dataclass(frozen=True, slots=True)
class Study:
    """A log, and what is to be learned from it.

    Attributes:
        log: the calls, to be iterated over again and again.
        count: their number.
        notes: what was read, what is missing, and what can be concluded: one line each.
        hints: the annotations of each tool, empty where the log has none.
        calls: how many calls each tool has.
        failing: tools of which a call has failed.
    """

    log: Iterable[LoggedCall]
    count: int
    notes: list[str]
    hints: dict[str, Mapping[str, bool]]
    calls: dict[str, int]
    failing: set[str]
    advice: Advice


class _Seen:
    """The calls of a log, with the kinds that the user gives. How often each tool was called, and its annotations, are
    noted when they are first iterated over.
    """

    def __init__(self, log: CallLog, kinds: Sequence[tuple[str, Kind]]) -> None:
        self._log = log
        self._kinds = kinds
        self._kind_of: dict[str, Kind | None] = {}
        self._is_noted = False
        self.calls: dict[str, int] = {}
        self.failing: set[str] = set()
        self.hints: dict[str, Mapping[str, bool]] = {}

    def __iter__(self) -> Iterator[LoggedCall]:
        is_first, self._is_noted = not self._is_noted, True
        for call in self._log:
            if is_first:
                self.calls[call.tool] = self.calls.get(call.tool, 0) + 1
                if is_failure(call):
                    self.failing.add(call.tool)
                if call.hints:
                    self.hints[call.tool] = {**self.hints.get(call.tool, {}), **call.hints}
            kind = self._given(call.tool) if self._kinds else None
            yield call if kind is None else replace(call, kind=kind)

    def _given(self, tool: str) -> Kind | None:
        if tool not in self._kind_of:
            names = tool, tool.partition(":")[2]
            exact = [kind for name, kind in self._kinds if name in names]
            fitting = [kind for pattern, kind in self._kinds if any(fnmatchcase(name, pattern) for name in names)]
            self._kind_of[tool] = next(iter((*exact, *fitting)), None)
        return self._kind_of[tool]


@contextmanager
def _studied(
    runs: Sequence[str], form: Form | None, redaction: Redaction, kinds: Sequence[tuple[str, Kind]] = ()
) -> Iterator[Study]:
    """Read a log, say what was read, and mine it.

    Raises:
        AgentCacheError, OSError: if it cannot be read, or has no calls.
    """
    bar = _Bar()
    with open_logs(runs, form=form, progress=bar) as log:
        with bar.over("reading", log.size, least=_LEAST_BYTES):
            log.inspect()
        notes = [escaped(redaction.text(str(note))) for note in log.notes]
        for note in notes:
            print(note, file=sys.stderr)
        if not log.count:
            raise AgentCacheError(f"there is no call of a tool in {', '.join(runs)}")
        seen = _Seen(log, kinds)
        with bar.over("mining", _PASSES * log.count, least=_LEAST_CALLS):
            advice = mine(seen, progress=bar)
        yield Study(seen, log.count, notes, seen.hints, seen.calls, seen.failing, advice)


def _replayed(study: Study, policies: Mapping[str, Policy], failures: Failures = "drop") -> dict[str, Outcome]:
    bar = _Bar()
    with bar.over("replaying", study.count, least=_LEAST_CALLS):
        return replay_all(study.log, policies, advice=study.advice, failures=failures, progress=bar)


# Advice


def advised_rules(
    runs: Sequence[str], redaction: Redaction, *, form: Form | None = None, kinds: Sequence[tuple[str, Kind]] = ()
) -> Rules:
    """The rules that a log shows to be needed. What is read of it is said on stderr.

    Args:
        kinds: those of tools, by their names or patterns of these: the exact name comes first, then the patterns in
            their order.

    Raises:
        AgentCacheError, OSError: if it cannot be read, or has no calls.
    """
    with _studied(runs, form, redaction, kinds) as study:
        outcomes = _replayed(study, {name: name for name in ("none", "roots", "advised", "oracle")})
        if any(study.advice.tools[tool].kind == "write" for tool in study.failing):
            outcomes["failures_ignored"] = _replayed(study, {"": "advised"}, failures="ignore")[""]
    has_hints = any(study.hints.values())
    return Rules(study.advice, outcomes, sources=runs, notes=study.notes, has_hints=has_hints, redaction=redaction)


def _is_log(path: Path, runs: Sequence[str], form: Form | None) -> bool:
    """Whether a file is a log that is read: it is named as one, or it is in a folder or a pattern, and has calls.

    The rules that were written before may be in that folder, too.

    Raises:
        OSError: if a log is not there.
    """
    if not path.is_file():
        return False
    named = [run for run in runs if run != "-"]
    if any(is_same_file(path, run) for run in named):
        return True
    if not any(is_same_file(path, file.path) for file in files_of(named, Scratch())):
        return False
    with open_logs(path, form=form) as log:
        log.inspect()
        return log.count > 0


def _advise(options: argparse.Namespace, redaction: Redaction) -> int:
    if options.output is not None and _is_log(Path(options.output), options.runs, options.form):
        raise ConfigurationError(f"{options.output} is a log that is read: choose another name with -o")
    rules = advised_rules(options.runs, redaction, form=options.form, kinds=options.kinds)
    text = FORMATS[options.format or "python"](rules)
    if options.output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_file(Path(options.output), [text])
    print_summary(rules)
    if options.output is not None:
        print(f"written: {escaped(redaction.text(options.output))}", file=sys.stderr)
    return exit_code_of(rules)


def exit_code_of(rules: Rules) -> int:
    """1 where the log misleads, so that the rules are not to be trusted; otherwise 0."""
    return int(rules.advice.resets is not None)


def _warning_of(resets: Resets, redaction: Redaction) -> str:
    """That runs begin anew, with an example, and what to do."""
    changed, again = (escaped(redaction.text(call.run)) for call in (resets.changed, resets.again))
    return (
        f"warning: {plural(resets.count, 'answer')} of later runs contradict those of earlier ones, and no write of "
        f"the log explains it. The first: run {changed!r} saw {_call_text(resets.changed, redaction)} change after a "
        f"write, and run {again!r} got the answer from before. It seems that each run began anew, as in evaluation "
        "sets and in CI. What a reset put back looks as if no write had changed it, so the tags may lack some. Advise "
        "on the log of one world at a time, or on runs that share a database."
    )


def print_summary(rules: Rules) -> None:
    """What the rules are worth, and what is not known."""
    printer = Printer(sys.stderr)
    rows = [
        (text, f"{one.reads:,}", f"{one.hits:,}", percent(one.hits, one.reads), f"{one.stale:,}")
        for name, text in _POLICIES.items()
        if (one := rules.outcomes.get(name)) is not None
    ]
    printer.line()
    printer.table(("replayed on this log", "reads", "hits", "of reads", "stale"), rows)
    ignored = rules.outcomes.get("failures_ignored")
    if ignored is not None and ignored.hits > rules.outcomes["advised"].hits:
        printer.line()
        _print_wrapped(
            "A write that failed drops what it names, since it may have taken effect. Where a failure means that "
            "nothing was changed, no_effect= or ok= of the write says so.",
            printer,
        )
    printer.line()
    _tools(rules, printer)
    if unknown := rules.unknown():
        printer.line()
        printer.line(("Not known:", "bold"))
        for line in unknown:
            _print_wrapped(f"- {line}", printer)
    if rules.advice.resets is not None:
        printer.line()
        _print_wrapped(_warning_of(rules.advice.resets, rules.redaction), printer)


def _print_wrapped(text: str, printer: Printer) -> None:
    width = max(40, shutil.get_terminal_size().columns)
    for line in textwrap.wrap(text, width, subsequent_indent="  " if text[0] == "-" else "", break_on_hyphens=False):
        printer.line(line)


def _tools(rules: Rules, printer: Printer) -> None:
    tools = list(rules.advice.tools.values())
    rows = []
    for tool in tools[:_MOST_TOOLS]:
        found = rules.outcomes["advised"].tools.get(tool.tool)
        saved = hits = rate = repeats = ""
        if tool.kind == "read" and found is not None:
            saved = saved_text(found.seconds, found.dollars)
            hits, rate = f"{found.hits:,}", percent(found.hits, tool.calls)
        if tool.kind in ("read", "watch"):
            repeats = f"{tool.repeats:,}"
        rows.append((rules.names.shown(tool.tool), tool.kind, f"{tool.calls:,}", repeats, hits, rate, saved))
    head = ("tool", "kind", "calls", "repeats", "hits", "rate", "saved")
    others = sum(max(len(row[column]) for row in (head, *rows)) + 2 for column in range(1, len(head)))
    room = max(20, shutil.get_terminal_size().columns - others)
    printer.table(head, [(shortened(row[0], room), *row[1:]) for row in rows], left=2)
    if (more := len(tools) - _MOST_TOOLS) > 0:
        printer.line(f"and {plural(more, 'tool')} more: see --format json")


# Check


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `--check` has found."""

    match: Match
    outcome: Outcome
    causes: list[tuple[StaleAnswer, Cause]]
    study: Study

    def has_failed(self, fail_on: str) -> bool:
        """Whether the exit code is 1. What cannot be checked fails in any case: several rules may be meant, or a cache
        has answered most reads.
        """
        match, outcome = self.match, self.outcome
        return bool(
            outcome.stale
            or outcome.proves_little
            or match.ambiguous
            or (fail_on == "any" and (match.without_rule or match.without_calls))
        )


def _check(options: argparse.Namespace, redaction: Redaction) -> int:
    in_use = tags_in_use(options.check)
    with _studied(options.runs, options.form, redaction, options.kinds) as study:
        match = in_use.match({tool: study.hints.get(tool, {}) for tool in study.calls})
        outcome = _replayed(study, {"check": match.policy})["check"]
    causes = [(stale, cause_of(stale, match.policy, study.advice)) for stale in outcome.stale_answers]
    verdict = Verdict(match, outcome, causes, study)
    has_failed = verdict.has_failed(options.fail_on)
    if options.format == "json":
        print_json(_verdict_document(verdict, options, redaction, has_failed=has_failed))
    else:
        _print_verdict(verdict, options, redaction, has_failed=has_failed)
    return int(has_failed)


def _print_verdict(verdict: Verdict, options: argparse.Namespace, redaction: Redaction, *, has_failed: bool) -> None:
    printer, match, outcome = Printer(), verdict.match, verdict.outcome
    shown = Names(verdict.study.calls, redaction).shown
    groups: dict[tuple[Any, ...], list[tuple[StaleAnswer, Cause]]] = {}
    for stale, cause in verdict.causes:
        write = None if cause.write is None else cause.write.tool
        groups.setdefault((stale.served.tool, write, cause.read_tag, cause.write_tag), []).append((stale, cause))
    for (tool, _, _, _), found in groups.items():
        mend = _mend(found[0], verdict, shown)
        printer.line(("stale", "red"), f"  {shown(tool)}: {plural(len(found), 'answer')}; {mend}")
        alike: dict[tuple[str, str], list[StaleAnswer]] = {}
        for stale, cause in found:
            write = "" if cause.write is None else f"changed by {_call_text(cause.write, redaction)}{_at(cause.write)}"
            loaded = f"loaded{_at(stale.loaded)}" if _at(stale.loaded) else ""
            key = _call_text(stale.served, redaction), ", ".join(filter(None, (loaded, write)))
            alike.setdefault(key, []).append(stale)
        for (read, about), answers in list(alike.items())[:_SHOWN]:
            often = "" if len(answers) == 1 else f", and {plural(len(answers) - 1, 'time')} more"
            printer.line(f"       {read}{_at(answers[0].served)}{often}")
            printer.line(f"         {about}")
        if len(alike) > _SHOWN:
            printer.line(f"       and {len(alike) - _SHOWN:,} more: see --format json")
    if (more := outcome.stale - len(verdict.causes)) > 0:
        printer.line(("stale", "red"), f"  and {more:,} more answers")
    for tool, names in match.ambiguous.items():
        text = ", ".join(shown(name) for name in names)
        printer.line(("ambiguous", "red"), f"  {shown(tool)} may be {text}: not checked")
    for tool, instead in match.without_rule.items():
        calls = plural(verdict.study.calls[tool], "call")
        printer.line(("no rule", "yellow"), f"  {shown(tool)}: {calls}; {redaction.text(instead)}")
    for name in match.without_calls:
        printer.line(("no calls", "yellow"), f"  {shown(name)}")
    if outcome.from_cache:
        reads, mend = plural(outcome.reads, "read"), "; record with AGENT_CACHE_ENABLED=0"
        printer.line(
            ("no proof", "red" if outcome.proves_little else "yellow"),
            f"  {outcome.from_cache:,} of {reads} were answered by a cache in the log: they prove nothing, and are no "
            f"evidence{mend if outcome.proves_little else ''}",
        )
    parts = [f"{plural(outcome.reads, 'read')}, {plural(outcome.hits, 'hit')} ({percent(outcome.hits, outcome.reads)})"]
    parts.append(f"{outcome.stale:,} stale")
    parts += [f"{plural(len(match.without_rule), 'tool')} without a rule"] if match.without_rule else []
    parts += [f"{plural(len(match.without_calls), 'rule')} without a call"] if match.without_calls else []
    parts += [f"{len(match.ambiguous)} ambiguous"] if match.ambiguous else []
    result = ("failed", "bold red") if has_failed else ("ok", "bold green")
    printer.line(result, f"  {redaction.text(options.check)}: {', '.join(parts)}")


def _mend(found: tuple[StaleAnswer, Cause], verdict: Verdict, shown: Callable[[str], str]) -> str:
    """What to do about a stale answer."""
    stale, cause = found
    if cause.write is None:
        return "no write was in between: give it a ttl, or look for a write that is not in the log"
    tools = verdict.study.advice.tools
    parts = [
        f"add {shown(tag)!r} to {shown(tool)}"
        + (" (its result is JSON as text)" if tools[tool].parse and "{result" in tag else "")
        for tag, tool in ((cause.read_tag, stale.served.tool), (cause.write_tag, cause.write.tool))
        if tag is not None
    ]
    if parts:
        return " and ".join(parts)
    which = "changes it" if cause.is_certain else f"was the last of {len(stale.writes)} writes in between"
    return f"{shown(cause.write.tool)} {which}, and no tag that both have is known: tag both with one whole root"


def _call_text(call: LoggedCall, redaction: Redaction) -> str:
    arguments = redaction.apply(call.arguments)
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return shortened(escaped(f"{redaction.text(call.tool)}({text})"), _LONG)


def _time(call: LoggedCall) -> float | None:
    return call.ended if call.ended is not None else call.started


def _clock(time: float) -> str:
    try:
        return datetime.fromtimestamp(time, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return f"{time:.0f}"


def _at(call: LoggedCall) -> str:
    time = _time(call)
    return "" if time is None else f" at {_clock(time)}"


def _verdict_document(
    verdict: Verdict, options: argparse.Namespace, redaction: Redaction, *, has_failed: bool
) -> dict[str, Any]:
    match, outcome, text = verdict.match, verdict.outcome, redaction.text
    return {
        "target": text(options.check),
        "sources": [text(run) for run in options.runs],
        "fail_on": options.fail_on,
        "has_failed": has_failed,
        "notes": verdict.study.notes,
        "calls": sum(verdict.study.calls.values()),
        "reads": outcome.reads,
        "hits": outcome.hits,
        "stale": outcome.stale,
        "from_cache": outcome.from_cache,
        "stale_answers": [
            {
                **_call_document(stale.served, redaction),
                "rule": text(match.names.get(stale.served.tool, "")),
                "loaded_at": _time(stale.loaded),
                "writes_between": len(stale.writes),
                "write": None if cause.write is None else _call_document(cause.write, redaction),
                "is_certain": cause.is_certain,
                "add_to_read": None if cause.read_tag is None else text(cause.read_tag),
                "add_to_write": None if cause.write_tag is None else text(cause.write_tag),
            }
            for stale, cause in verdict.causes
        ],
        "ambiguous": {text(tool): [text(name) for name in names] for tool, names in match.ambiguous.items()},
        "without_rule": [
            {"tool": text(tool), "calls": verdict.study.calls[tool], "instead": text(instead)}
            for tool, instead in match.without_rule.items()
        ],
        "without_calls": [text(name) for name in match.without_calls],
    }


def _call_document(call: LoggedCall, redaction: Redaction) -> dict[str, Any]:
    return {
        "tool": redaction.text(call.tool),
        "arguments": redaction.apply(call.arguments),
        "run": redaction.text(call.run),
        "at": _time(call),
    }
