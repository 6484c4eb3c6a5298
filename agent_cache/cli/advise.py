"""`agent-cache advise`: the rules that recorded runs show to be needed; `--check`: whether the rules in use are these.

The rules, or what `--check` has found, go to stdout, or into a file; everything else goes to stderr. Whatever comes
from a log is redacted, and nothing in it is left that a terminal would interpret.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from agent_cache import AgentCacheError, ConfigurationError
from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.logs import read_log
from agent_cache.advise.mine import mine, unwrapped
from agent_cache.advise.replay_check import Match, Outcome, StaleAnswer, cause_of, replay_all, tags_in_use
from agent_cache.advise.tag_rules import Advice, RuleText, shown_name
from agent_cache.cli.output import Printer, escaped, plural, shortened, write_file
from agent_cache.recording import Redaction

__all__ = ["add_options", "run"]

_SHOWN: Final = 5
"""Stale answers of one cause that are shown."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache advise RUNS... [--format python|toml] [-o FILE]\n"
        "       agent-cache advise --check TARGET RUNS... [--fail-on any|stale]"
    )
    parser.description = (
        "Find the tags of tools in recorded runs. Exit codes: 0 fine, 1 --check has found something, 2 usage, or "
        "something that cannot be read."
    )
    parser.epilog = "example: agent-cache advise runs/ --format toml -o rules.toml"
    add = parser.add_argument
    several: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    add("runs", nargs="+", metavar="RUNS", help="recordings and other logs of calls, or folders of them")
    targets = "rules.toml, package.module, module:toolbox, file.py"
    add("--check", metavar="TARGET", help=f"compare the rules in use: {targets}")
    add("--format", choices=("python", "toml"), default="python", help="decorators (default), or a file of rules")
    add("-o", "--output", type=Path, metavar="FILE", help="write the rules into a new file; - is stdout")
    what = "of --check: what exit code 1 is for (default: any)"
    add("--fail-on", choices=("any", "stale"), default="any", help=what)
    for kind in ("read", "write"):
        says = f"what the log does not say: this tool {kind}s; may have * in it, and be repeated"
        add(f"--{kind}", dest="kinds", type=partial(lambda kind, name: (name, kind), kind), help=says, **several)
    add("--ignore", help="this tool does neither; likewise", **several)
    add("--redact", help="redact arguments of this name, too", **several)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    redaction = Redaction(options.redact)
    try:
        return _advise(options, redaction) if options.check is None else _check(options, redaction)
    except BrokenPipeError:
        raise
    except (AgentCacheError, OSError) as error:
        is_of_file = isinstance(error, OSError) and error.strerror and error.filename is not None
        reason = f"{error.filename}: {error.strerror}" if is_of_file else str(error)  # type: ignore[union-attr]
        print(f"agent-cache advise: {escaped(redaction.text(reason))}", file=sys.stderr)
        return 2


# The log


def _studied(
    options: argparse.Namespace, redaction: Redaction
) -> tuple[list[LoggedCall], dict[str, Mapping[str, bool]], Advice]:
    """Read a log, say what was read, and mine it: its calls, the annotations of each tool, and what is learned."""
    log = read_log(options.runs)
    for note in (*log.notes, *log.problems):
        print(escaped(redaction.text(note)), file=sys.stderr)
    if not log.calls:
        where = "the page on forms of logs says what is read"
        raise AgentCacheError(f"there is no call of a tool in {', '.join(options.runs)}: {where}")
    given = {tool: kind for tool in {call.tool for call in log.calls} if (kind := _given(tool, options.kinds))}
    calls = [replace(call, kind=given.get(call.tool, call.kind)) for call in log.calls]
    advice = mine(calls, ignore=options.ignore)
    calls, _ = unwrapped(calls)
    hints: dict[str, Mapping[str, bool]] = {}
    for call in calls:
        hints[call.tool] = {**hints.get(call.tool, {}), **call.hints}
    return calls, hints, advice


def _given(tool: str, kinds: Sequence[tuple[str, Literal["read", "write"]]]) -> Literal["read", "write"] | None:
    names = tool, tool.partition(":")[2]
    exact = [kind for name, kind in kinds if name in names]
    fitting = [kind for pattern, kind in kinds if any(fnmatchcase(name, pattern) for name in names)]
    return next(iter((*exact, *fitting)), None)


def _advise(options: argparse.Namespace, redaction: Redaction) -> int:
    output = None if options.output == Path("-") else options.output
    if output is not None and output.is_file():
        raise ConfigurationError(f"{output} is there already: remove it, or choose another name")
    calls, hints, advice = _studied(options, redaction)
    outcomes = replay_all(calls, {name: name for name in _POLICIES}, advice=advice)
    rules = RuleText(advice, outcomes, sources=options.runs, has_hints=any(hints.values()), redaction=redaction)
    text = rules.toml() if options.format == "toml" else rules.python()
    if output is None:
        print(text, end="", flush=True)
    else:
        write_file(output, [text])
    _print_summary(rules)
    if output is not None:
        print(f"written: {escaped(redaction.text(str(output)))}", file=sys.stderr)
    return 0


_POLICIES: Final[dict[Any, str]] = {
    "none": "no invalidation", "roots": "whole roots", "advised": "advised", "oracle": "oracle"
}  # fmt: skip


def _print_summary(rules: RuleText) -> None:
    """What has to be decided, what is not known, and what the rules are worth."""
    printer, width = Printer(sys.stderr), shutil.get_terminal_size().columns
    rows = [
        (label, f"{one.reads:,}", f"{one.hits:,}", _percent(one.hits, one.reads), f"{one.stale:,}")
        for label, one in zip(_POLICIES.values(), rules.outcomes.values(), strict=True)
    ]
    printer.line()
    printer.table(("replayed on this log", "reads", "hits", "of reads", "stale"), rows)
    for line in rules.unknown():
        for part in textwrap.wrap(f"- {line}", max(40, width), subsequent_indent="  "):
            printer.line(part)


def _percent(part: int, whole: int) -> str:
    """A share, in whole percent: 100 % is all of it, and 0 % nothing."""
    if not whole:
        return "-"
    share = 100 * part / whole
    return f"{min(99, max(1, round(share))) if 0 < part < whole else share:.0f} %"


# Check


def _check(options: argparse.Namespace, redaction: Redaction) -> int:
    in_use = tags_in_use(options.check)
    calls, hints, advice = _studied(options, redaction)
    match = in_use.match({tool: said for tool, said in hints.items() if tool not in advice.ignored})
    outcome = replay_all(calls, {"": match.policy}, advice=advice)[""]
    has_failed = bool(outcome.stale) or outcome.proves_little
    has_failed |= options.fail_on == "any" and bool(match.without_rule or match.without_calls)
    printer, numbers = Printer(), Counter(call.tool for call in calls)
    shown = partial(shown_name, redaction=redaction)
    _print_stale(printer, match, outcome, advice, redaction)
    for tool, instead in match.without_rule.items():
        text = f"  {shown(tool)}: {plural(numbers[tool], 'call')}; {redaction.text(instead)}"
        printer.line(("no rule", "yellow"), text)
    for name in match.without_calls:
        printer.line(("no calls", "yellow"), f"  {shown(name)}")
    if outcome.unjudged:
        printer.line(
            ("no proof", "red" if outcome.proves_little else "yellow"),
            f"  {plural(outcome.unjudged, 'repeated read')} without arguments or an answer in the log, or with one of "
            "a cache: it does not show what was true. Record with record(path, cache=False), spans with content=True",
        )
    counts = {
        f"{plural(outcome.reads, 'read')}, {plural(outcome.hits, 'hit')} ({_percent(outcome.hits, outcome.reads)})": 1,
        f"{outcome.stale:,} stale": 1,
        f"{outcome.unjudged:,} not judged": outcome.unjudged,
        f"{plural(len(match.without_rule), 'tool')} without a rule": len(match.without_rule),
        f"{plural(len(match.without_calls), 'rule')} without a call": len(match.without_calls),
    }
    result = ("failed", "bold red") if has_failed else ("ok", "bold green")
    text = ", ".join(text for text, number in counts.items() if number)
    printer.line(result, f"  {redaction.text(options.check)}: {text}")
    return int(has_failed)


def _print_stale(printer: Printer, match: Match, outcome: Outcome, advice: Advice, redaction: Redaction) -> None:
    """The stale answers, by what has to be mended."""
    shown = partial(shown_name, redaction=redaction)
    groups: dict[tuple[str, str], list[str]] = {}
    for stale in outcome.stale_answers:
        write, missing = cause_of(stale, match.policy, advice)
        by = "" if write is None else f", changed by {_call_text(write, redaction)}"
        text = f"       {_call_text(stale.served, redaction)}, loaded{_at(stale.loaded)}{by}"
        groups.setdefault((stale.served.tool, _mend(stale, write, missing, shown)), []).append(text)
    for (tool, mend), found in groups.items():
        printer.line(("stale", "red"), f"  {shown(tool)}: {plural(len(found), 'answer')}; {mend}")
        for text in found[:_SHOWN]:
            printer.line(text)
    if (more := outcome.stale - len(outcome.stale_answers)) > 0:
        printer.line(("stale", "red"), f"  and {more:,} more answers")


def _mend(stale: StaleAnswer, write: LoggedCall | None, missing: Mapping[str, str], shown: Callable[[str], str]) -> str:
    """What to do about a stale answer."""
    if write is None:
        return "no write was in between: give it a ttl, or look for a write that is not in the log"
    if missing:
        return " and ".join(f"add {shown(tag)!r} to {shown(tool)}" for tool, tag in missing.items())
    last = f"{shown(write.tool)} was the last of {plural(len(stale.writes), 'write')} in between"
    return f"{last}, and no tag that both have is known: tag both with one whole root"


def _call_text(call: LoggedCall, redaction: Redaction) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in redaction.apply(call.arguments).items())
    return shortened(escaped(f"{redaction.text(call.tool)}({text})"), 100) + _at(call)


def _at(call: LoggedCall) -> str:
    time = call.ended if call.ended is not None else call.started
    return "" if time is None else f" at {datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%SZ}"
