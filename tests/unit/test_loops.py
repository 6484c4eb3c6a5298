"""When a run repeats itself: what is the same outcome, one round, a new epoch, and how much is remembered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agent_cache._core.entries import NEVER, Entry, Guarded
from agent_cache._core.loops import Progress, Streak, Streaks, fingerprint, shown
from tests.harness.structure import VALUES, near_pairs, same


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoText:
    def __repr__(self) -> str:
        return None  # type: ignore[return-value]


class Clock:
    """Counts one streak up, call by call."""

    def __init__(self) -> None:
        self.streak = Streak()
        self.tick = 0

    def see(
        self, outcome: Any, witness: Entry | None = None, *, epoch: int = 0, task: Any = "t", tick: Any = None
    ) -> int:
        self.tick += 1
        return self.streak.see(outcome, witness, epoch, self.tick if tick is None else tick, task)


# -- Outcomes ------------------------------------------------------------------------------------------------


@given(near_pairs())
def test_two_outcomes_have_one_fingerprint_if_and_only_if_they_are_the_same(pair: tuple[Any, Any]):
    one, other = pair
    first, second = fingerprint(one), fingerprint(other)
    assert first is not None
    assert second is not None
    assert len(first) == 16
    assert (first == second) is same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("N", None), ("T", True), ("F", False), (".", ...), ("", None), ("1", 1), (b"x", "x"), ("i1:1", 1), ("s1:x", "x")],
)
def test_a_text_is_not_taken_for_the_code_of_something_else(one: Any, other: Any):
    assert fingerprint(one) != fingerprint(other)


def test_what_has_no_identity_has_no_fingerprint():
    assert fingerprint(object()) is None
    assert fingerprint([object()]) is None


def test_a_value_is_shown_briefly_whatever_its_repr_does():
    assert shown("x") == "'x'"
    assert shown(Unprintable()) == "<Unprintable>"
    assert len(shown("x" * 1_000)) == 80
    assert shown("x" * 1_000).endswith("...")
    assert shown(NoText()) == "<NoText>"


# -- Counting ------------------------------------------------------------------------------------------------


def test_one_outcome_again_and_again_is_counted_up_and_another_begins_anew():
    clock = Clock()
    assert [clock.see(outcome) for outcome in ["a", "a", "a", "b", "b", "a"]] == [1, 2, 3, 1, 2, 1]


@given(VALUES)
def test_an_outcome_is_recognised_with_and_without_a_witness(value: Any):
    clock = Clock()
    entry = Entry(value, NEVER, 0.0)
    counts = [
        clock.see(value, entry),
        clock.see(value, entry),
        clock.see(value),
        clock.see(value, Entry(value, NEVER, 0.0)),
    ]
    assert counts == [1, 2, 3, 4]


def test_a_mutable_answer_is_compared_as_it_was_kept():
    clock = Clock()
    entry = Guarded(None, -NEVER, 0.0, (), 0, NEVER, [1].copy)
    spoilt = entry.share()
    assert clock.see(spoilt, entry) == 1
    spoilt.append(2)
    assert clock.see([1], None) == 2
    assert clock.see(spoilt, None) == 1


def test_outcomes_without_identity_never_repeat():
    clock = Clock()
    value = object()
    assert [clock.see(value) for _ in range(5)] == [1] * 5


def test_a_new_epoch_begins_at_one():
    clock = Clock()
    entry = Entry("a", NEVER, 0.0)
    assert [clock.see("a", entry, epoch=epoch) for epoch in (0, 0, 1, 1, 2)] == [1, 2, 1, 2, 1]
    assert [clock.see("a", epoch=epoch) for epoch in (2, 3, 3)] == [2, 1, 2]


@pytest.mark.parametrize("witness", [None, Entry("a", NEVER, 0.0)])
def test_identical_calls_of_different_tasks_in_one_tick_are_one_round(witness: Entry | None):
    clock = Clock()
    assert [clock.see("a", witness, task=task, tick=1) for task in range(10)] == [1] * 10
    assert [clock.see("a", witness, task=task, tick=2) for task in range(10)] == [2] * 10


@pytest.mark.parametrize("witness", [None, Entry("a", NEVER, 0.0)])
def test_identical_calls_of_one_task_count_even_in_one_tick(witness: Entry | None):
    clock = Clock()
    assert [clock.see("a", witness, task="t", tick=1) for _ in range(4)] == [1, 2, 3, 4]


def test_an_error_between_two_answers_is_another_outcome():
    clock = Clock()
    entry = Entry("a", NEVER, 0.0)
    assert [clock.see("a", entry), clock.see((ValueError, "no")), clock.see("a", entry)] == [1, 1, 1]


# -- What is remembered --------------------------------------------------------------------------------------


def test_a_bounded_number_of_calls_is_remembered_the_oldest_are_forgotten():
    streaks = Streaks()
    first = streaks.of("first")
    assert streaks.of("first") is first
    for number in range(999):
        streaks.of(number)
    assert streaks.of("first") is first
    assert len(streaks) == 1_000
    streaks.of("one more")
    assert len(streaks) == 1_000
    assert "first" not in streaks
    assert streaks.of("first") is not first


def test_a_run_begins_with_nothing_done():
    progress = Progress(7)
    assert (progress.calls, progress.limit, progress.epoch, progress.tick, progress.loop) == (0, 7, 0, 0, None)
