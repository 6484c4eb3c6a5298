"""Real processes are killed at chosen points, and others go on with their runs."""

import multiprocessing
import random
import sys
from collections import Counter

import pytest

from agent_cache.recording import Cassette
from agent_cache.resume.journal import read_journal
from tests.integration.resume import killed_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system has no SIGKILL")


class Runs:
    """The processes of one run, and what they have done outside."""

    def __init__(self, directory):
        self.directory = directory
        self.ledger = directory / "ledger"
        self.journal = directory / "journals" / "run.jsonl"
        self.points = []

    def run(self, kill_at=None, on_doubt="raise", kill_after=None):
        """Make the run in a process, and kill that at a point, or after this many. Returns what it has said, if it has
        come to its end."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([killed_run.__name__])
        here, there = context.Pipe()
        arguments = str(self.journal.parent), str(self.ledger), on_doubt, there
        process = context.Process(target=killed_run.main, args=arguments)
        process.start()
        there.close()
        self.points = []
        said = None
        with here:
            while said is None:
                point = here.recv()
                if isinstance(point, list):
                    (said,) = point
                    break
                self.points.append(point)
                if point == kill_at or len(self.points) == kill_after:
                    process.kill()
                    break
                here.send("go on")
            process.join()
        process.close()
        return said

    @property
    def done(self):
        """How often each thing was done outside."""
        return Counter(line.split()[0] for line in self.ledger.read_text().splitlines())

    @property
    def keys(self):
        """The keys of each thing that was done outside."""
        found = {}
        for line in self.ledger.read_text().splitlines():
            what, key = line.split()
            found.setdefault(what, []).append(key)
        return found


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


ALL = Counter(
    ["ask-plan", "ask-about-1", "ask-done", "pay-1", "ship-1", "pay-2", "pay-3"],
)


@pytest.mark.parametrize(
    ("point", "tool"),
    [("before pay 1", "killed:pay"), ("after pay 1", "killed:pay"), ("after ship 1", "killed:ship")],
)
def test_a_process_that_is_killed_in_a_write_leaves_it_in_doubt(runs, point, tool):
    assert runs.run(kill_at=point) is None
    (doubt,) = read_journal(runs.journal).in_doubt
    for _ in range(2):
        assert runs.run() == f"in doubt {tool} {doubt.key}"
    done = point.startswith("after")
    assert runs.done[f"{tool.removeprefix('killed:')}-1"] == done
    assert runs.run(on_doubt="check") == "done"
    assert runs.done == ALL
    assert runs.keys["pay-1"] == ([doubt.key] if tool == "killed:pay" else runs.keys["pay-1"])


def test_an_answered_model_call_is_not_paid_twice_and_one_without_an_answer_is_made(runs):
    assert runs.run(kill_at="asking about-1") is None
    assert runs.run(kill_at="before pay 1") is None
    assert runs.done == {"ask-plan": 1, "ask-about-1": 1}
    assert runs.run(on_doubt="check") == "done"
    assert runs.done == ALL
    calls = {call.arguments["prompt"]: call.outcome for call in Cassette.load(runs.journal).steps if call.kind == "llm"}
    assert len({outcome["value"].split("-")[1] for outcome in calls.values()}) == 3  # the three processes


def kill_often(runs, chance):
    for _ in range(4):
        if runs.run(kill_after=chance.randint(1, 8), on_doubt="check") is not None:
            break
    else:
        assert runs.run(on_doubt="check") == "done"
    assert {what: count for what, count in runs.done.items() if what.startswith(("pay", "ship"))} == {
        what: 1 for what in ALL if what.startswith(("pay", "ship"))
    }
    assert read_journal(runs.journal).is_sealed
    assert set(runs.done) == set(ALL)


def test_a_run_that_is_killed_again_and_again_writes_once(runs):
    kill_often(runs, random.Random(1))
