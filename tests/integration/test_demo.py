"""`agent-cache demo`: every outcome occurs, every answer is checked, and the check can fail."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections import Counter
from dataclasses import asdict
from functools import partial

import pytest

pytest.importorskip("rich", reason="the demo draws with it")

from rich.console import Console

from agent_cache.cli.demo import EXAMPLE, AnswerChecker, Call, Run
from agent_cache.cli.main import main
from tests.harness.processes import run_python
from tests.harness.slow import slow

KINDS = {"hit", "miss", "shared", "write", "stopped"}


def played(*, seed: int = 0, sabotage: bool = False) -> Run:
    run = Run(seed=seed, is_simulated=True, sabotage=sabotage)
    run.play()
    return run


@pytest.fixture(scope="module")
def facts() -> dict:
    run = played()
    calls = [{**asdict(call), "arguments": list(call.arguments), "drops": list(call.drops)} for call in run.calls]
    return {"calls": calls, "answers": run.answers, "metrics": run.session.get_metrics()}


def test_every_outcome_occurs_and_no_answer_of_a_read_is_stale(facts):
    kinds = Counter(call["outcome"] for call in facts["calls"])
    assert set(kinds) == KINDS
    assert [call["agent"] for call in facts["calls"] if call["outcome"] == "stopped"] == ["Eve"]
    counted = {"hit": "hits", "miss": "misses", "shared": "shared", "write": "invalidations"}
    assert {kind: facts["metrics"][name] for kind, name in counted.items()} == {kind: kinds[kind] for kind in counted}
    verdicts = [call["is_right"] for call in facts["calls"] if call["outcome"] not in ("write", "stopped")]
    assert set(verdicts) == {True}
    assert facts["answers"] == {"checked": len(verdicts), "right": len(verdicts), "stale": 0}


def test_a_burst_of_identical_reads_is_one_run(facts):
    burst = [
        call for call in facts["calls"] if call["arguments"] == ["radio"] and call["started"] == pytest.approx(1.7)
    ]
    assert Counter(call["outcome"] for call in burst) == {"miss": 1, "shared": 4}


def test_a_read_that_overlaps_a_write_is_not_kept(facts):
    read, write, *later = [call for call in facts["calls"] if call["arguments"][:1] == ["bag"]]
    assert (read["outcome"], write["tool"]) == ("miss", "set_price")
    assert read["started"] < write["started"] < read["ended"]
    assert later[0]["outcome"] == "miss"
    assert {call["outcome"] for call in later[1:]} == {"shared", "hit"}


def test_a_write_drops_what_only_its_result_names(facts):
    (write,) = [call for call in facts["calls"] if call["tool"] == "cancel_order"]
    assert write["drops"] == ["order:1001", "customer:mia", "product:mug"]
    seen = [call for call in facts["calls"] if call["agent"] == "Ben" and call["tool"] == "find_customer"]
    assert [call["outcome"] for call in seen] == ["hit", "miss"]


@pytest.mark.parametrize("seed", [1, 2, 3, *slow(*range(4, 13))])
def test_any_seed_shows_everything_and_is_right_unless_an_invalidation_is_forgotten(seed):
    run = played(seed=seed)
    assert {call.outcome for call in run.calls} == KINDS
    assert run.answers["stale"] == 0
    assert 5 < run.clock() < 9
    assert played(seed=seed, sabotage=True).answers["stale"] > 0


def test_a_write_that_skips_its_invalidation_makes_the_command_fail(capsys):
    assert main(["demo", "--fast", "--sabotage"]) == 1
    assert "STALE" in capsys.readouterr().out


def test_an_answer_is_right_if_it_was_true_at_some_moment_of_the_call():
    """Nobody knows of a write that has not returned."""
    price = 39
    checker = AnswerChecker(lambda tool, arguments: price)

    def read():
        is_right = checker.begin_read("get_product", ("lamp",))
        return lambda *answers: [is_right(answer) for answer in answers]

    early = read()
    writes = []
    for price in (49, 59):
        writes.append(Call("Cleo", "set_price", ("lamp", price), started=0.0))
        checker.record_change(writes[-1])
    late = read()
    writes[0].ended = 1.0
    later = read()
    writes[1].ended = 2.0
    assert early(39, 49, 59, 69) == late(39, 49, 59, 69) == [True, True, True, False]
    assert later(39, 49, 59) == [False, True, True]
    assert read()(39, 49, 59) == [False, False, True]


def test_no_command_is_a_usage_error_that_names_them(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "demo" in err


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("agent-cache ")


def test_without_rich_the_demo_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "agent_cache.cli.demo")
    assert main(["demo", "--fast"]) == 2
    assert "agent-cache[cli]" in capsys.readouterr().err


def test_importing_the_package_does_not_load_the_demo():
    script = "import agent_cache, sys; print([m for m in sys.modules if m.startswith('agent_cache.cli')])"
    assert run_python(script) == "[]\n"


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


def test_a_terminal_is_drawn_on(monkeypatch, capsys):
    """The run is drawn in place while it goes on; here its end, since no time passes."""
    monkeypatch.setattr("agent_cache.cli.demo.Console", partial(Console, force_terminal=True, width=80, height=24))
    monkeypatch.setattr(Run, "play", lambda run: None)
    assert main(["demo"]) == 0
    drawn = capsys.readouterr().out
    assert "answers right" in drawn
    assert "What happened" in drawn


def test_the_picture_is_the_same_each_time_and_asks_nobody_for_fonts(tmp_path, capsys):
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        assert main(["demo", "--fast", "--svg", str(path)]) == 0
    first, second = (path.read_text("utf-8") for path in paths)
    assert first == second
    assert "url(" not in first.replace("url(#", "")
    assert "saved" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["nowhere/demo.svg", "."])
def test_a_picture_that_cannot_be_saved_is_a_usage_error(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--fast", "--svg", path]) == 2
    assert "cannot be written" in capsys.readouterr().err
