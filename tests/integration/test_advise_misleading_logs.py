"""`agent-cache advise` says where a log misleads: runs that begin anew, and answers that came from a cache."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent_cache.cli.main import main
from tests.harness.shop_days import Call, Shop, conversation, day, written

RULES = """
namespace = "shop"

[tools.get_order]
kind = "read"
tags = ["order:{order_id}"]

[tools.cancel_order]
kind = "write"
tags = ["order:{order_id}"]
"""


def timed(calls: Iterable[tuple[str, Call]]) -> list[Call]:
    """Calls of runs, a second apart."""
    return [{**call, "run": run, "time": 1_790_000_000.0 + at} for at, (run, call) in enumerate(calls)]


def called(shop: Shop, tool: str, arguments: dict[str, Any]) -> Call:
    """A call and its answer."""
    try:
        return {"tool": tool, "arguments": arguments, "result": getattr(shop, tool)(**arguments)}
    except ValueError as error:
        return {"tool": tool, "arguments": arguments, "error": f"ValueError: {error}"}


def evaluation(runs: int) -> list[list[Call]]:
    """The calls of runs, each with a shop of its own."""
    made = []
    for number in range(runs):
        shop = Shop(users=3, orders=6)
        made.append([called(shop, *step) for step in conversation(shop, random.Random(number))])
    return made


def advised(capsys: pytest.CaptureFixture[str], log: Path, *options: str) -> tuple[int, str, str]:
    """The exit code, the rules, and what was said, as running text."""
    code = main(["advise", str(log), *options])
    printed = capsys.readouterr()
    return code, printed.out, " ".join(printed.err.split())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["one after another", "at the same time"])
def test_runs_that_begin_anew_are_worlds_of_their_own(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [[(f"run-{number}", call) for call in calls] for number, calls in enumerate(evaluation(40))]
    if order == "one after another":
        calls = list(itertools.chain(*runs))
    else:  # four at any time
        waves = [itertools.zip_longest(*runs[at : at + 4]) for at in range(0, 40, 4)]
        calls = [step for wave in waves for turn in wave for step in turn if step is not None]
    log = written(tmp_path / "evaluation.jsonl", timed(calls))
    code, out, err = advised(capsys, log)
    assert code == 0
    assert "runs begin anew" in err
    assert "def get_order(order_id)" in out
    assert 'scope="session"' in out
    assert re.search(r" advised \d+ \d+ \d+ % 0 ", err)


def test_runs_of_which_none_looks_again_are_not_taken_for_one_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for run in range(40):
        shop = Shop()
        read, cancel = {"order_id": f"#W{1000 + run % 4}"}, {"order_id": f"#W{1000 + run % 4}", "reason": "none"}
        calls += [(str(run), called(shop, *step)) for step in (("get_order", read), ("cancel_order", cancel))]
    code, out, err = advised(capsys, written(tmp_path / "log.jsonl", timed(calls)))
    assert code == 0
    assert "the log does not show that its runs share one state" in err
    assert '@AgentCacheInvalidator("order:{order_id}")' in out


def shared_shop() -> list[Call]:
    return day(3)


def external_changes() -> list[Call]:
    """Somebody else changes addresses, which runs have changed before, to new ones and now and then back."""
    chance, shop, calls = random.Random(5), Shop(users=3), []
    for run in range(40):
        for user in [*shop.users, *shop.users]:
            calls.append((str(run), called(shop, "get_user", {"user_id": user})))
        user = chance.choice([*shop.users])
        former = shop.users[user]["address"]
        calls.append((str(run), called(shop, "set_address", {"user_id": user, "address": f"{run} Street"})))
        calls.append((str(run), called(shop, "get_user", {"user_id": user})))
        if run % 5 == 0:
            shop.users[user]["address"] = former
        elif run % 3 == 0:
            shop.users[user]["address"] = f"{run} Elsewhere"
    return timed(calls)


@pytest.mark.parametrize("made", [shared_shop, external_changes])
def test_runs_that_find_what_others_changed_share_a_world(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = advised(capsys, written(tmp_path / "log.jsonl", made()))
    assert code == 0
    assert "begin anew" not in err
    assert "share one state" not in err


# Answers of a cache


@pytest.mark.parametrize(("hits", "code"), [(0, 0), (1, 0), (2, 1), (30, 1)])
def test_a_check_says_how_many_hits_cannot_be_judged_and_fails_if_these_are_one_in_twenty(
    hits: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    read = {"tool": "get_order", "arguments": {"order_id": "o1"}, "kind": "read"}
    calls = [{**read, "result": "paid", **({"source": "hit"} if at >= 31 - hits else {})} for at in range(31)]
    calls.append({"tool": "cancel_order", "arguments": {"order_id": "o1"}, "result": "ok", "kind": "write"})
    log = written(tmp_path / "log.jsonl", timed(("1", call) for call in calls))
    options = ["advise", "--check", str(tmp_path / "rules.toml"), str(log), "--fail-on", "stale"]
    assert main(options) == code
    said, out = f"{hits} of 30 hits are on calls that a cache answered in the log", capsys.readouterr().out
    assert (said in out) == bool(hits)
    assert ("30 hits (97 %), 0 stale" in out, f"{hits} not judged" in out) == (True, bool(hits))
