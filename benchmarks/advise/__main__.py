"""Learns tags from one log, and replays others under them: the retail runs, and simulated worlds.

``python -m benchmarks.advise`` prints two tables: hits and stale answers without invalidation, with whole roots, with
the advised tags, with those written by hand, and of an oracle. Each figure is the sum over several logs that were
learned from, since one log may happen to show what another one does not. ``--page`` puts the tables into
docs/benchmarks.md. The exit code is 1 if an advised tag left an answer stale, and 2 if the recorded runs are absent.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.mine import mine, unwrapped
from agent_cache.advise.replay_check import Outcome, Policy, replay, replay_all
from agent_cache.advise.tag_rules import Advice, rules_of
from benchmarks.advise.many_servers import LogShape, play_servers
from benchmarks.advise.retail_log import first_quarter, interleave, rules_by_hand
from benchmarks.advise.worlds import WORLDS, play
from benchmarks.commands import describe_machine, exits_without, put_table, run_progress
from benchmarks.recorded_runs import DataAbsentError, data_directory, load_retail_runs
from benchmarks.retail.store import load_store
from benchmarks.table import markdown

LEARNED, OTHERS = (0, 1, 2, 3), (11, 12, 13)
WORLD_CALLS, WORLD_RUNS = 2_000, 40
"""Of a log of a world, and the runs of those that begin anew each."""

RETAIL_COLUMNS = ("tags", "reads", "hits", "of the oracle's", "failed writes ignored", "stale")
WORLD_COLUMNS = ("world", "reads", "oracle", "whole roots", "advised", "failed writes ignored", "stale", "without tags")

Line = tuple[str, ...]


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    options = _parser().parse_args(arguments)
    retail, retail_stale = _retail_table()
    worlds, worlds_stale = _worlds_table()
    speed = _speed()
    print(retail, worlds, speed, sep="\n\n")
    if options.page:
        machine = describe_machine(["agent-cache"])
        put_table("advise", f"{machine}\n\n{retail}\n\n{worlds}\n\n{speed}")
    return 1 if retail_stale or worlds_stale else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advise", description=__doc__)
    parser.add_argument("--page", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser


def _retail_table() -> tuple[str, int]:
    directory = data_directory()
    store = load_store(directory)
    runs = load_retail_runs(directory)
    logs = [(interleave(runs, store, seed), interleave(runs, store, seed, as_text=True)) for seed in OTHERS]
    totals: dict[str, _Total] = {}
    with run_progress("retail", len(LEARNED)) as advance:
        for learned_from in LEARNED:
            learned = interleave(runs, store, learned_from)
            advice, early = mine(learned), mine(first_quarter(learned))
            policies: dict[str, Policy] = {
                "no invalidation": "none",
                "whole roots": "roots",
                "advised": rules_of(advice),
                "advised, from a quarter of the log": rules_of(early),
                "oracle": "oracle",
            }
            for log, texts in logs:
                _add(totals, log, policies, advice)
                _add(totals, texts, {"by hand": rules_by_hand()}, advice)
            advance()
    oracle = totals["oracle"].hits
    order = ("no invalidation", "whole roots", "advised, from a quarter of the log", "advised", "by hand", "oracle")
    rows = [totals[name].row(name, oracle) for name in order]
    return markdown(RETAIL_COLUMNS, rows), sum(totals[name].stale for name in order if name.startswith("advised"))


class _Total:
    """Figures of several logs."""

    def __init__(self) -> None:
        self.reads = self.hits = self.stale = self.ignoring = 0

    def add(self, outcome: Outcome, ignoring: Outcome) -> None:
        self.reads += outcome.reads
        self.hits += outcome.hits
        self.stale += max(outcome.stale, ignoring.stale)
        self.ignoring += ignoring.hits

    def row(self, name: str, oracle: int) -> Line:
        share = f"{self.hits / oracle:.1%}", f"{self.ignoring / oracle:.1%}"
        return (name, f"{self.reads:,}", f"{self.hits:,}", *share, f"{self.stale:,}")


def _add(totals: dict[str, _Total], log: Sequence[LoggedCall], policies: Mapping[str, Policy], advice: Advice) -> None:
    outcomes = replay_all(log, policies, advice=advice)
    ignoring = replay_all(log, policies, advice=advice, failures="ignore")
    for name, outcome in outcomes.items():
        totals.setdefault(name, _Total()).add(outcome, ignoring[name])


def _worlds_table() -> tuple[str, int]:
    logs: list[tuple[str, Callable[[int], list[LoggedCall]]]] = []
    for world in WORLDS:
        logs.append((world.__name__, partial(play, world, calls=WORLD_CALLS)))
        logs.append((f"{world.__name__}, fresh", partial(play, world, calls=WORLD_CALLS, runs=WORLD_RUNS)))
    logs.append(("30 MCP servers, fresh", play_servers))
    logs.append(("30 MCP servers, meta-tool", partial(play_servers, shape=LogShape(meta=True))))
    logs.append(("30 MCP servers, one state", partial(play_servers, shape=LogShape(is_fresh=False))))
    rows, stale = [], 0
    with run_progress("worlds", len(logs)) as advance:
        for name, log_of in logs:
            row, found = _world_row(name, log_of)
            rows.append(row)
            stale += found
            advance()
    return markdown(WORLD_COLUMNS, rows), stale


def _world_row(name: str, log_of: Callable[[int], list[LoggedCall]]) -> tuple[Line, int]:
    policies: dict[str, Policy] = {"none": "none", "roots": "roots", "advised": "advised", "oracle": "oracle"}
    others = OTHERS if "MCP" not in name else OTHERS[:1]
    logs = [log_of(seed) for seed in others]
    totals: dict[str, _Total] = {}
    for learned_from in LEARNED[: 4 if "MCP" not in name else 2]:
        advice = mine(log_of(learned_from))
        for log in logs:
            _add(totals, unwrapped(log)[0], policies, advice)
    oracle, advised = totals["oracle"].hits or 1, totals["advised"]
    row = (
        name,
        f"{advised.reads:,}",
        f"{oracle:,}",
        f"{totals['roots'].hits / oracle:.0%}",
        f"{advised.hits / oracle:.0%}",
        f"{advised.ignoring / oracle:.0%}",
        f"{advised.stale:,}",
        f"{totals['none'].stale:,}",
    )
    print(*row, file=sys.stderr, flush=True)
    return row, advised.stale


def _speed() -> str:
    world = WORLDS[8]
    log = play(world, LEARNED[0], 100_000)
    began = time.process_time()
    advice = mine(log)
    mined = time.process_time() - began
    began = time.process_time()
    replay(log, "advised", advice=advice)
    replayed = time.process_time() - began
    times = f"mined in {mined:.0f} s of processor time, replayed in {replayed:.0f} s"
    return f"{len(log):,} calls ({world.__name__}): {times}."


if __name__ == "__main__":
    sys.exit(main())
