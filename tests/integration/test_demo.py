"""`agent-cache demo`: every outcome occurs, every answer is checked, and the check can fail."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

pytest.importorskip("rich", reason="the demo draws with it")

from rich.console import Console

from agent_cache.__main__ import main
from agent_cache.cli.demo import EXAMPLE, AnswerChecker, Call, Run
from tests.harness.slow import slow

KINDS = {"hit", "miss", "shared", "write", "stopped"}


def played(*, seed: int = 0, sabotage: bool = False) -> Run:
    run = Run(seed=seed, is_simulated=True, sabotage=sabotage)
    run.play()
    return run


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return played().calls


def test_what_is_counted_is_what_was_called():
    run = played()
    kinds = Counter(call.outcome for call in run.calls)
    assert [call.agent for call in run.calls if call.outcome == "stopped"] == ["Eve"]
    counted = {"hit": "hits", "miss": "misses", "shared": "shared", "write": "invalidations"}
    metrics = run.session.get_metrics()
    assert {kind: metrics[name] for kind, name in counted.items()} == {kind: kinds[kind] for kind in counted}
    checked = len(run.calls) - kinds["write"] - kinds["stopped"]
    assert run.answers == {"checked": checked, "right": checked, "stale": 0}


def test_a_burst_of_identical_reads_is_one_run(calls):
    burst = [call.outcome for call in calls if call.arguments == ("radio",) and call.started == pytest.approx(1.7)]
    assert Counter(burst) == {"miss": 1, "shared": 4}


def test_a_read_that_overlaps_a_write_is_not_kept(calls):
    read, write, *later = [call for call in calls if call.arguments[:1] == ("bag",)]
    assert (read.outcome, write.tool) == ("miss", "set_price")
    assert read.started < write.started < read.ended
    assert [later[0].outcome, *{call.outcome for call in later[1:]} - {"hit"}] == ["miss", "shared"]


def test_a_write_drops_what_only_its_result_names(calls):
    (write,) = [call for call in calls if call.tool == "cancel_order"]
    assert write.drops == ("order:1001", "customer:mia", "product:mug")
    seen = [call.outcome for call in calls if (call.agent, call.tool) == ("Ben", "find_customer")]
    assert seen == ["hit", "miss"]


@pytest.mark.parametrize("seed", [1, 2, *slow(*range(3, 13))])
def test_any_seed_shows_everything_and_is_right_unless_an_invalidation_is_forgotten(seed):
    run = played(seed=seed)
    assert {call.outcome for call in run.calls} == KINDS
    assert run.answers["stale"] == 0
    assert 5 < run.clock() < 9
    assert played(seed=seed, sabotage=True).answers["stale"] > 0


def test_an_answer_is_right_if_it_was_true_at_some_moment_of_the_call():
    """Nobody knows of a write that has not returned."""
    price = 39
    checker = AnswerChecker(lambda tool, arguments: price)

    def right(read: Call) -> list[int]:
        return [answer for answer in (39, 49, 59, 69) if checker.is_right(read, answer)]

    reads = [Call("Ben", "get_product", ("lamp",), started) for started in (0.0, 3.0, 5.0, 7.0)]
    checker.watch(reads[0])
    writes = {new: Call("Cleo", "set_price", ("lamp", new), started=1.0) for new in (49, 59)}
    for price in (49, 59):
        checker.record_change(writes[price])
    assert right(reads[0]) == right(reads[1]) == [39, 49, 59]
    writes[49].ended = 4.0
    assert right(reads[1]) == [39, 49, 59]
    assert right(reads[2]) == [49, 59]
    writes[59].ended = 6.0
    assert right(reads[3]) == [59]


def test_a_write_that_skips_its_invalidation_makes_the_command_fail(capsys):
    assert main(["demo", "--fast", "--sabotage"]) == 1
    assert "STALE" in capsys.readouterr().out


def test_without_rich_the_demo_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "agent_cache.cli.demo")
    assert main(["demo", "--fast"]) == 2
    assert "agent-cache[cli]" in capsys.readouterr().err


def test_the_lines_to_copy_run():
    class Shop:
        async def get(self, order_id):
            return {"id": order_id}

        ship = get

    code = compile(EXAMPLE, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    namespace = {"shop": Shop(), "__name__": "example"}

    async def run() -> None:
        await eval(code, namespace)
        assert await namespace["get_order"](7) == {"id": 7}

    asyncio.run(run())


@pytest.mark.parametrize("width", [1, 80])
def test_a_terminal_is_drawn_on(width, monkeypatch, capsys):
    """The run is drawn in place while it goes on; here its end, since no time passes."""
    narrow = partial(Console, force_terminal=True, width=width, height=24)
    monkeypatch.setattr("agent_cache.cli.demo.PipedConsole", narrow)
    monkeypatch.setattr(Run, "play", lambda run: None)
    assert main(["demo"]) == 0
    drawn = capsys.readouterr().out
    assert width == 1 or ("answers right" in drawn and "What happened" in drawn)


def test_a_reader_that_has_gone_is_no_stale_answer():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "agent_cache", "demo", "--fast"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_picture_is_the_same_each_time_and_asks_nobody_for_fonts(tmp_path, capsys):
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        assert main(["demo", "--fast", "--svg", str(path)]) == 0
    first, second = (path.read_text("utf-8") for path in paths)
    assert first == second
    assert "url(" not in first.replace("url(#", "")
    assert "76 of 76 answers" in first.replace("&#160;", " ")
    assert "saved" in capsys.readouterr().err
    assert main(["demo", "--fast", "--svg", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
