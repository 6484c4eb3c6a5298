"""`python -m benchmarks.trace`: recorded agents through agent_cache and through other caches."""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.commands import describe_machine, exits_without, positive
from benchmarks.recorded_runs import DataAbsentError, data_directory
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.table import format_figure, markdown
from benchmarks.trace.contenders import BARE, OURS, PEERS, Contender
from benchmarks.trace.runs import AGENTS, Cost, Judgement, judge, time_contenders
from benchmarks.trace.workload import TraceRun, count_calls, load_trace

ROUNDS = 25
QUICK_ROUNDS = 5
HEADINGS = (
    "cache", "ms per 1,000 calls", "quartiles", "budget", "", "tool not run", "not as recorded", "stale", "sessions",
    "coherent", "note",
)  # fmt: skip


@exits_without(DataAbsentError)
def main(argv: list[str] | None = None) -> int:
    """Exit code 0; 1 if a budget of ours is missed, or one of our answers is wrong; 2 without the recorded runs."""
    options = _parser().parse_args(argv)
    directory = data_directory()
    trace, store = load_trace(directory, options.limit), load_store(directory)
    contenders = _present()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    costs, judgements = asyncio.run(_measured(contenders, trace, store, rounds))
    print(_introduction(contenders, trace, costs, rounds), end="\n\n")
    print(markdown(HEADINGS, [_line(one, costs[one.name], judgements[one.name]) for one in contenders]))
    missed = [one.name for one in OURS if not _holds(one, costs[one.name])]
    wrong = [one.name for one in OURS if not judgements[one.name].is_right]
    for text, names in (("over the budget", missed), ("WRONG ANSWERS", wrong)):
        if names:
            print(f"{text}: {'; '.join(names)}", file=sys.stderr)
    return 1 if missed or wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trace", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rounds", type=positive, metavar="N", help=f"default: {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds: not exact")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N runs of each set")
    return parser


def _present() -> list[Contender]:
    for absent in (peer for peer in PEERS if peer.version is None):
        print(f"{absent.name} is not installed and is left out", file=sys.stderr)
    return [*OURS, *(peer for peer in PEERS if peer.version is not None)]


async def _measured(
    contenders: list[Contender], trace: list[TraceRun], store: RetailStore, rounds: int
) -> tuple[dict[str, Cost], dict[str, Judgement]]:
    if not (sanity := await judge(BARE, trace, store)).is_right:
        message = f"the bare tools give wrong answers, so nothing can be judged: {sanity}"
        raise AssertionError(message)
    judgements = {one.name: await judge(one, trace, store) for one in contenders}
    return await time_contenders(contenders, trace, rounds), judgements


def _introduction(contenders: list[Contender], trace: list[TraceRun], costs: dict[str, Cost], rounds: int) -> str:
    bare = costs[OURS[0].name].bare.spread.median * 1e6
    return (
        f"{describe_machine(list(dict.fromkeys(one.distribution for one in contenders)))}\n\n"
        f"{count_calls(trace):,} calls of {len(trace):,} recorded runs, {AGENTS} agents at once, {rounds} rounds. "
        f"Milliseconds of processor time over the bare tools ({bare:.1f} ms per 1,000 calls), median and quartiles."
    )


def _holds(contender: Contender, cost: Cost) -> bool:
    return contender.limit is None or cost.per_thousand.median <= contender.limit


def _line(contender: Contender, cost: Cost, judgement: Judgement) -> tuple[str, ...]:
    spread, limit = cost.per_thousand, contender.limit
    return (
        contender.name,
        format_figure(spread.median, "ms"),
        f"{format_figure(spread.low, 'ms')} to {format_figure(spread.high, 'ms')}",
        "" if limit is None else format_figure(limit, "ms"),
        "" if limit is None else "ok" if _holds(contender, cost) else "MISSED",
        f"{judgement.hit_rate:.1%}",
        f"{judgement.different:,} of {judgement.calls:,}",
        f"{judgement.stale:,} of {judgement.reads:,}",
        "yes" if contender is OURS[0] else "no",
        "yes" if contender.is_coherent else "no",
        contender.note,
    )


if __name__ == "__main__":
    sys.exit(main())
