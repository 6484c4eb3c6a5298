"""Processes of an agent are killed and resumed; a receiver in another process counts what they did.

`benchmarks.crashes` makes the same runs with two hundred kills for each policy, and also without a journal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.crashes.__main__ import JOURNAL, is_kept, rows
from benchmarks.crashes.agent import STEPS, operations
from benchmarks.crashes.kills import STRIKES, Kill, Killer, Verdict
from benchmarks.crashes.receiver import Receiver

pytestmark = [
    pytest.mark.slow,  # test_journal_processes.py kills processes by default
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL"),
]

ROWS = rows()
SEED = 0
WRITES, ASKED = operations(SEED)
"""Of the run with this number."""
KINDS = {name.partition("-")[0]: name for name in (*WRITES, *ASKED)}
"""An operation of each kind."""


def the_first(kind: str, *, after: str = "") -> str:
    """The first write of this kind, or the first one behind that."""
    begin = WRITES.index(after) + 1 if after else 0
    return next(name for name in WRITES[begin:] if name.startswith(kind))


@pytest.fixture
def killer_of(tmp_path: Path) -> Iterator[Callable[[str], Killer]]:
    receiver = Receiver()
    with receiver.running():
        yield lambda name: Killer(ROWS[name], receiver, tmp_path)


def keeps_its_promise(verdict: Verdict) -> None:
    assert verdict.failure == ""
    assert (verdict.doubled, verdict.lost, verdict.paid_twice) == (0, 0, 0)
    assert verdict.is_equal
    assert is_kept([verdict])


@pytest.mark.parametrize("name", JOURNAL)
def test_a_run_whose_processes_were_killed_in_a_write_is_resumed(killer_of, name):
    """While the answer to a write is under way, and when another one has taken effect."""
    first = the_first("refund")
    kills = [Kill("answer lost", first), Kill("after the effect", the_first("change", after=first))]
    del kills[1 if name in {"raise", "notice"} else 2 :]  # there each of them takes longer
    verdict = killer_of(name).run(SEED, kills)
    keeps_its_promise(verdict)
    assert verdict.kills == [kill.moment for kill in kills]
    assert verdict.in_doubt == (name == "raise")
    assert verdict.notices == (name == "notice")


def test_an_answered_call_of_the_model_is_not_made_again(killer_of):
    answered, killed = ASKED[:2]
    verdict = killer_of("check").run(SEED, [Kill("after the line", answered), Kill("answer lost", killed)])
    keeps_its_promise(verdict)
    assert verdict.kills == ["after the line", "answer lost"]
    assert verdict.asked_again == 1, "the one whose answer never came"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", [*STEPS, *STRIKES])
@pytest.mark.parametrize("name", JOURNAL)
def test_a_kill_at_each_moment_of_each_kind_of_call(killer_of, name, moment):
    killer = killer_of(name)
    for operation in KINDS.values():
        verdict = killer.run(SEED, [Kill(moment, operation)])
        keeps_its_promise(verdict)
        assert verdict.kills == [moment]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", JOURNAL)
def test_forty_kills_at_random_moments(killer_of, name):
    killer = killer_of(name)
    kills = number = 0
    while kills < 40:
        verdict = killer.run(1000 + number)
        keeps_its_promise(verdict)
        kills, number = kills + len(verdict.kills), number + 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["check", "notice"])
def test_what_a_check_has_read_is_not_believed_by_the_next_process(killer_of, name):
    killer = killer_of(name)
    for kind, operation in KINDS.items():
        if kind == "ask":
            continue
        kills = [Kill("request lost", operation), Kill("answer lost", operation)]
        verdict = killer.run(SEED, kills)
        keeps_its_promise(verdict)
        assert verdict.kills == ["request lost", "answer lost"]


def test_a_recording_that_is_continued_writes_twice(killer_of):
    """The benchmark can tell: what the journal prevents happens without it."""
    verdict = killer_of("new_episodes").run(SEED, [Kill("answer lost", the_first("refund"))])
    assert verdict.kills == ["answer lost"]
    assert verdict.doubled == 1
    assert not is_kept([verdict])
