"""The judge of the coherence runs: what counts as stale, and how late it was."""

from __future__ import annotations

import pytest

pytest.importorskip("benchmarks.fleet.verdict", reason="the benchmarks are not part of this tree")

from benchmarks.fleet.verdict import judge

MS = 1_000_000


def read(version: int, start: int, process: str = "reader"):
    return ["read", "entity", {"7": version}, start * MS, process]


def write(version: int, end: int, name: str = "writer/0", how: str = "returned"):
    return [["effect", 7, version, (end - 1) * MS, name], [how, name, end * MS]]


def test_a_read_that_starts_after_a_write_and_gets_what_was_before_it_is_stale():
    verdict = judge([*write(1, end=10), read(0, start=15)])
    assert [(stale.entity, stale.version, stale.lag) for stale in verdict.stale] == [(7, 0, 0.005)]
    assert verdict.worst == 0.005


@pytest.mark.parametrize("lines", [
    [*write(1, end=10), read(0, start=10)],  # it started before the write had returned
    [*write(1, end=10), read(1, start=15)],
    [*write(1, end=10), read(2, start=15)],  # another write has had its effect and not returned
    [["effect", 7, 1, 5 * MS, "w"], read(0, start=15)],  # it never returned, nor did it die
    [read(0, start=15)],
])  # fmt: skip
def test_what_is_not_stale(lines):
    assert judge(lines).stale == []


def test_the_lag_counts_from_the_first_write_that_replaced_it():
    lines = [*write(1, end=10, name="a"), *write(2, end=20, name="b"), read(0, start=30), read(1, start=30)]
    assert [stale.lag for stale in judge(lines).stale] == [0.020, 0.010]


def test_each_entity_of_a_read_of_all_is_checked():
    lines = [*write(1, end=10), ["effect", 8, 1, 9 * MS, "writer/0"]]
    verdict = judge([*lines, ["read", "root", {"6": 0, "7": 0, "8": 0}, 15 * MS, "reader"]])
    assert [stale.entity for stale in verdict.stale] == [7, 8]
    assert verdict.stale_reads == 1


def test_an_armed_write_that_died_may_be_missed_for_a_lease():
    died = [["effect", 7, 1, 9 * MS, "w"], ["died", "w", 10 * MS, True]]
    verdict = judge([*died, read(0, start=1_500)])
    assert len(verdict.stale) == 1
    assert verdict.later_than(bound=1.0, lease=0.4) == verdict.stale
    assert verdict.later_than(bound=1.0, lease=0.5) == []
    held = judge([died[0], [*died[1][:3], False], read(0, start=1_500)])
    assert held.later_than(bound=1.0, lease=0.5) == held.stale


def test_a_process_that_misses_its_own_write_is_told_apart():
    lines = [*write(1, end=10, name="a/0"), *write(2, end=20, name="b/0")]
    verdict = judge([*lines, read(0, 15, "a"), read(0, 15, "b"), read(1, 30, "a"), read(1, 30, "b")])
    assert [stale.is_own for stale in verdict.stale] == [True, False, False, True]
    assert len(verdict.own) == 2


def test_a_refusal_lasts_until_the_next_write_that_is_not_refused():
    ends = [("failed", 1), ("failed", 3), ("returned", 6), ("failed", 7), ("returned", 8)]
    lines = [[how, f"a/{end}", end * 1_000_000_000] for how, end in ends]
    assert judge(reversed(lines)).refusal == 5.0
    assert judge([*lines, ["open", 2_000_000_000, 4_000_000_000]]).refusal == 3.0
    assert judge(lines[2:3]).refusal == 0.0


def test_refusals_in_a_row_are_counted_but_for_those_while_a_slot_was_open():
    ends = [("failed", 1), ("failed", 3), ("returned", 6), ("failed", 7), ("returned", 8)]
    lines = [[how, f"a/{end}", end] for how, end in ends]
    assert judge(reversed(lines)).refusals == 2
    assert judge([*lines, ["open", 2, 6]]).refusals == 1
    assert judge(lines[2:3]).refusals == 0
