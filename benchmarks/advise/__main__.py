"""Learns tags from one log, and replays others under them: the retail runs, and simulated worlds.

``python -m benchmarks.advise`` prints two tables: hits and stale answers without invalidation, with whole roots, with
the advised tags, with those written by hand, and of an oracle. Each figure is the sum over several logs that were
learned from, since one log may happen to show what another one does not. Rules that were learned from runs which begin
anew are replayed on such runs, and also in one world that all share. The exit code is 1 if an advised tag left an
answer stale, and 2 if the recorded runs are absent.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agent_cache.advise.calls import LoggedCall, is_failure
from agent_cache.advise.mine import mine, unwrapped
from agent_cache.advise.replay_check import Outcome, Policy, replay_all
from agent_cache.advise.tag_rules import Advice, rules_of
from benchmarks.advise.many_servers import LogShape, play_servers
from benchmarks.advise.retail_log import first_quarter, interleave, rules_by_hand
from benchmarks.advise.worlds import WORLDS, Airline, play
from benchmarks.commands import exits_without, run_progress
from benchmarks.recorded_runs import DataAbsentError, data_directory, load_retail_runs
from benchmarks.retail.store import load_store
from benchmarks.table import markdown

LEARNED, OTHERS = (0, 1, 2), (11, 12)
WORLD_CALLS, WORLD_RUNS = 2_000, 40
"""Of a log of a world, and the runs of those that begin anew each."""

RETAIL_COLUMNS = ("tags", "reads", "hits", "of the oracle's", "failed writes ignored", "stale")
WORLD_COLUMNS = (
    "world", "reads", "oracle", "whole roots", "advised", "failed writes ignored", "stale", "in one world",
    "stale there", "without tags",
)  # fmt: skip

Line = tuple[str, ...]


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    argparse.ArgumentParser(prog="python -m benchmarks.advise", description=__doc__).parse_args(arguments)
    retail, retail_stale = _retail_table()
    worlds, worlds_stale = _worlds_table()
    speed = _speed()
    print(retail, worlds, speed, sep="\n\n")
    return 1 if retail_stale or worlds_stale else 0


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
    writes = {name for name, tool in advice.tools.items() if tool.kind in ("write", "unknown")}
    outcomes = replay_all(log, policies, advice=advice)
    ignoring = replay_all(
        [one for one in log if one.tool not in writes or not is_failure(one)], policies, advice=advice
    )
    for name, outcome in outcomes.items():
        totals.setdefault(name, _Total()).add(outcome, ignoring[name])


def _worlds_table() -> tuple[str, int]:
    logs: list[tuple[str, Callable[[int], list[LoggedCall]], Callable[[int], list[LoggedCall]] | None]] = []
    for world in WORLDS:
        shared = partial(play, world, calls=WORLD_CALLS)
        logs.append((world.__name__, shared, None))
        logs.append((f"{world.__name__}, fresh", partial(play, world, calls=WORLD_CALLS, runs=WORLD_RUNS), shared))
    one_state = partial(play_servers, shape=LogShape(is_fresh=False))
    logs.append(("30 MCP servers, fresh", play_servers, one_state))
    logs.append(("30 MCP servers, meta-tool", partial(play_servers, shape=LogShape(meta=True)), one_state))
    logs.append(("30 MCP servers, one state", one_state, None))
    rows, stale = [], 0
    with run_progress("worlds", len(logs)) as advance:
        for name, log_of, shared_of in logs:
            row, found = _world_row(name, log_of, shared_of)
            rows.append(row)
            stale += found
            advance()
    return markdown(WORLD_COLUMNS, rows), stale


def _world_row(
    name: str, log_of: Callable[[int], list[LoggedCall]], shared_of: Callable[[int], list[LoggedCall]] | None
) -> tuple[Line, int]:
    policies: dict[str, Policy] = {"none": "none", "roots": "roots", "advised": "advised", "oracle": "oracle"}
    seeds = OTHERS[: 1 if "MCP" in name else 2]
    logs, shared = [log_of(seed) for seed in seeds], [shared_of(seed) for seed in seeds] if shared_of else []
    totals, there = dict[str, _Total](), dict[str, _Total]()
    for learned_from in LEARNED[: 1 if "MCP" in name else 3]:
        advice = mine(log_of(learned_from))
        for log in logs:
            _add(totals, unwrapped(log)[0], policies, advice)
        for log in shared:
            _add(there, log, {"advised": rules_of(advice), "oracle": "oracle"}, advice)
    oracle, advised = totals["oracle"].hits or 1, totals["advised"]
    in_one = (
        (f"{there['advised'].hits / there['oracle'].hits:.0%}", f"{there['advised'].stale:,}") if there else ("", "")
    )
    row = (
        name,
        f"{advised.reads:,}",
        f"{oracle:,}",
        f"{totals['roots'].hits / oracle:.0%}",
        f"{advised.hits / oracle:.0%}",
        f"{advised.ignoring / oracle:.0%}",
        f"{advised.stale:,}",
        *in_one,
        f"{totals['none'].stale:,}",
    )
    print(*row, file=sys.stderr, flush=True)
    return row, advised.stale + (there["advised"].stale if there else 0)


def _speed() -> str:
    world = Airline
    log = play(world, LEARNED[0], 100_000)
    began = time.process_time()
    advice = mine(log)
    mined = time.process_time() - began
    began = time.process_time()
    replay_all(log, {"": "advised"}, advice=advice)
    replayed = time.process_time() - began
    times = f"mined in {mined:.0f} s of processor time, replayed in {replayed:.0f} s"
    return f"{len(log):,} calls ({world.__name__}): {times}."


if __name__ == "__main__":
    sys.exit(main())
