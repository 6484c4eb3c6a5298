"""What is noted of loads, its sums as JSON, and the estimate of how often results change."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from agent_cache.core.evidence import BY_NUMBER, CAUSES, Changes, Evidence, LastLoad, Seen, interval_of
from agent_cache.tuning import change_rate, recommend
from tests.harness.slow import slow


def evidence() -> Evidence:
    return Evidence("tool", SimpleNamespace(hits=0, shared=0, misses=0), 128)


def note(
    seen: Evidence,
    at: float,
    digest: bytes = b"a",
    *,
    key: Any = "k",
    ttl: float = 10.0,
    present: bool = True,
    **more: Any,
) -> None:
    """A load whose former entry is still there, or is not."""
    former = seen.latest.get(key)
    seen.note(
        key,
        LastLoad(at, at + ttl, digest, more.pop("serial", 0), is_stored=more.pop("is_stored", True)),
        former.expires if present and former is not None else None,
        more.pop("written", 0),
        is_miss=True,
    )


# Causes


def test_the_cause_of_each_load():
    seen = evidence()
    note(seen, 0)
    note(seen, 10)  # it has expired
    note(seen, 25, present=False)  # it had, and was removed meanwhile
    seen.latest["k"].evicted = BY_NUMBER
    note(seen, 26, present=False)
    note(seen, 27, present=False, is_stored=False, written=1)  # a write has dropped it
    note(seen, 28, present=False)
    assert seen.seen().causes == {"cold": 1, "expired": 2, "evicted": 1, "invalidated": 1, "unstored": 1}


def test_what_was_dropped_without_a_write_has_no_cause():
    seen = evidence()
    note(seen, 0, serial=5)
    note(seen, 1, present=False, written=5)
    found = seen.seen()
    assert (sum(found.causes.values()), found.dropped) == (1, 0)


def test_a_load_of_what_is_still_fresh_has_no_cause():
    """Its tier did not confirm it in time, or another event loop has loaded it, too."""
    seen = evidence()
    note(seen, 0)
    note(seen, 5)
    assert sum(seen.seen().causes.values()) == 1


# Comparisons


def test_reloads_are_compared_if_no_write_can_explain_a_change():
    seen = evidence()
    note(seen, 0, b"a")
    note(seen, 10, b"a")
    note(seen, 20, b"b")
    assert (seen.seen().unchanged, seen.seen().unchanged_seconds, seen.seen().changed) == (1, 10.0, {13: 1})
    note(seen, 30, b"c", present=False)  # dropped by a write after its end, or so it may be
    note(seen, 40, b"d", is_stored=False)  # overlapped by a write
    note(seen, 50, b"e")
    assert seen.seen().compared == 2


def test_what_was_evicted_is_compared_if_no_write_under_its_roots_came_since():
    seen = evidence()
    for serial, written in ((5, 5), (5, 6)):
        note(seen, 0, b"a", key=written, serial=serial)
        seen.latest[written].evicted = BY_NUMBER
        note(seen, 5, b"b", key=written, present=False, written=written)
    assert seen.seen().compared == 1


def test_an_entry_of_another_load_is_not_taken_for_the_one_that_is_remembered():
    """One that was not noted has been stored in between, maybe after a write."""
    seen = evidence()
    note(seen, 0, b"a")
    load = LastLoad(100, 110, b"b", 0, is_stored=True)
    seen.note("k", load, 77.0, 0, is_miss=True)
    assert seen.seen().compared == 0


def test_what_a_write_has_dropped_is_counted_by_itself():
    seen = evidence()
    note(seen, 0, b"a")
    for at, digest in ((1, b"a"), (2, b"a"), (3, b"b")):
        note(seen, at, digest, present=False, written=1)
    found = seen.seen()
    assert (found.dropped, found.dropped_unchanged, found.compared) == (3, 2, 0)


def test_a_result_without_a_digest_is_not_compared():
    seen = evidence()
    seen.note("k", LastLoad(0, 10, None, 0, is_stored=True), None, 0, is_miss=True)
    note(seen, 10, b"a")
    assert (seen.seen().compared, seen.seen().causes["expired"]) == (0, 1)


# Bounds


@pytest.mark.parametrize("keys", [list(range(20_000)), [f"key{number}" for number in range(20_000)]])
def test_of_many_calls_a_bounded_part_is_remembered_and_all_of_their_loads_are_seen(keys: list[Any]):
    seen = evidence()
    for turn in range(3):
        for key in keys:
            if seen.is_chosen(key):
                note(seen, 20.0 * turn, key=key)
        assert 30 < len(seen.latest) <= 128
    found = seen.seen()
    assert 0.5 * len(keys) < found.calls < 2 * len(keys)
    kept = len(seen.latest)
    assert found.causes["expired"] >= 2 * kept - 128


def test_the_time_for_comparisons_is_a_hundredth_of_that_of_loads():
    seen = evidence()
    assert seen.allowance == 0
    seen.earn(1e-5)
    assert seen.allowance == 0
    seen.earn(0.1)
    assert seen.allowance == pytest.approx(0.001)
    for _ in range(10_000):
        seen.earn(60)
    assert seen.allowance == pytest.approx(0.05)


def test_sums_of_comparisons_are_halved_so_that_what_was_seen_lately_counts_more():
    seen = evidence()
    for at in range(10_000):
        note(seen, 10.0 * at, b"a")
    for at in range(10_000, 20_000):
        note(seen, 10.0 * at, str(at).encode())
    found = seen.seen()
    assert found.compared <= 4_096
    assert found.unchanged < 0.2 * found.compared


def test_another_ttl_forgets_the_causes_and_keeps_the_comparisons():
    seen = evidence()
    seen.stats.misses = 2
    note(seen, 0)
    note(seen, 10)
    seen.restart()
    found = seen.seen()
    assert (sum(found.causes.values()), found.loads, found.unchanged) == (0, 0, 1)


# As JSON


def some() -> Seen:
    causes = dict(zip(CAUSES, (1, 2, 3, 4, 5), strict=True))
    return Seen(60.0, False, 128, True, 5, 7, 3, causes, 1, 4.0, 20.5, {-3: 1, 9: 2.5}, 2, 1, Changes(3, 0.5, 1, 9.5))


def test_what_was_seen_survives_json():
    seen = some()
    again = Seen.from_json(json.loads(json.dumps(seen.as_json())))
    assert again is not None
    assert again.as_json() == seen.as_json()


BAD: list[Any] = [None, 7, "x", {}, [], [1] * 14, [1] * 16, [None] * 15]
for _at, _bad in [
    (0, 0), (0, -1), (0, math.nan), (0, math.inf), (0, "60"), (0, True), (1, 2), (2, 0), (2, 1.5), (2, -7), (3, "no"),
    (4, -1), (4, True), (4, 1.0), (5, None), (6, 1 << 70), (7, [1, 2]), (7, [1, 2, 3, 4, -5]), (7, {}), (8, -1),
    (9, -1), (9, math.nan), (10, math.inf), (11, []), (11, {"x": 1}), (11, {"9": -1}), (11, {"999": 1}),
    (11, {"1": []}),
    (11, {"9": math.nan}), (11, {"00009": 1}), (12, 0), (13, 3),
    (14, []), (14, 7), (14, [1, 2, 3]), (14, [1, 2, 3, -4]), (14, [1, 2, 3, math.nan]), (14, [1, 2, 3, "4"]),
]:  # fmt: skip
    _numbers = some().as_json()
    _numbers[_at] = _bad
    BAD.append(_numbers)


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_what_cannot_be_a_report_is_none(value: Any):
    assert Seen.from_json(value) is None


def test_sums_of_two_processes():
    both = some().with_sums_of(some())
    assert both.as_json() == [
        60.0, 0, 128, 1, 10, 14, 3, [2, 4, 6, 8, 10], 2, 8.0, 41.0, {"-3": 2, "9": 5.0}, 4, 2, [3, 0.5, 1, 9.5],
    ]  # fmt: skip


@pytest.mark.parametrize("ten", range(30))
def test_whatever_a_report_says_something_or_nothing_follows_and_nothing_is_raised(ten: int):
    for seed in range(10 * ten, 10 * ten + 10):
        try_report(random.Random(seed))


def try_report(chance: random.Random) -> None:
    def number() -> float:
        return chance.choice([0, 1, 2, 19, 20, 199, 1e3, 1e17, 1e-17, chance.random(), chance.random() * 1e6])

    values = [
        chance.choice([None, 1e-17, 1e17, 10.0]), chance.randrange(2), chance.choice([None, 1, 1 << 60]),
        chance.randrange(2), *(round(number()) for _ in range(3)), [round(number()) for _ in CAUSES], round(number()),
        number(), number(), {str(chance.randrange(-120, 201)): number() for _ in range(chance.randrange(5))}, 50, 40,
        [number() for _ in range(4)],
    ]  # fmt: skip
    seen = Seen.from_json(values)
    assert seen is not None
    for each in recommend("tool", seen):
        assert each.evidence >= 20
        assert each.reason
        assert each.suggested is None or 0 < each.suggested < math.inf


# How often results change


@pytest.mark.parametrize("interval", [0.001, 1.0, 3600.0, 1e8])
@pytest.mark.parametrize(("changed", "unchanged"), [(1, 1), (5, 95), (90, 10), (1, 999)])
def test_the_most_likely_rate_of_equal_intervals_is_the_known_one(interval: float, changed: int, unchanged: int):
    rate = change_rate({interval: changed}, unchanged * interval)
    assert rate is not None
    assert rate.likely == pytest.approx(-math.log(unchanged / (changed + unchanged)) / interval, rel=1e-6)
    assert 0 <= rate.least < rate.likely < rate.most
    for bound in (rate.least, rate.most):
        likelihood = changed * math.log(-math.expm1(-bound * interval)) - bound * unchanged * interval
        best = changed * math.log(changed / (changed + unchanged)) + unchanged * math.log(
            unchanged / (changed + unchanged)
        )
        assert best - likelihood == pytest.approx(math.log(20), rel=1e-3)


def test_without_a_change_the_rate_is_bounded_by_the_rule_of_three():
    rate = change_rate({}, 300.0)
    assert rate is not None
    assert rate.least == 0
    assert rate.likely == rate.most == pytest.approx(3 / 300, rel=0.01)
    assert math.exp(-rate.most * 300) == pytest.approx(0.05)


def test_where_every_reload_has_changed_it_has_no_upper_bound():
    rate = change_rate({10.0: 5}, 0.0)
    assert rate is not None
    assert (rate.likely, rate.most) == (rate.least, math.inf)
    assert (-math.expm1(-rate.least * 10)) ** 5 == pytest.approx(0.05)


def test_without_reloads_nothing_is_known():
    assert change_rate({}, 0.0) is None
    assert change_rate({10.0: 0}, 0.0) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("between", [0.5, 60.0, 86_400.0])
def test_the_estimate_finds_the_rate_from_bins_of_mixed_intervals(seed: int, between: float):
    chance = random.Random(seed)
    seen = Seen()
    for _ in range(3_000):
        interval = between * 10 ** chance.uniform(-1.5, 0.5)
        seen.compare(interval, is_same=chance.random() < math.exp(-interval / between))
    rate = change_rate({interval_of(number): count for number, count in seen.changed.items()}, seen.unchanged_seconds)
    assert rate is not None
    assert 1 / rate.likely == pytest.approx(between, rel=0.1)
    assert rate.least < 1.05 / between
    assert rate.most > 0.95 / between


@pytest.mark.parametrize("reloads", [20, *slow(60)])
def test_what_is_true_is_rarely_refuted(reloads: int):
    """A rate outside of the bounds is at most as frequent as it should be: one in twenty on each side."""
    chance, outside = random.Random(reloads), 0
    for _ in range(300):
        seen = Seen()
        for _ in range(reloads):
            interval = chance.uniform(0.2, 2.0)
            seen.compare(interval, is_same=chance.random() < math.exp(-interval))
        rate = change_rate({interval_of(number): n for number, n in seen.changed.items()}, seen.unchanged_seconds)
        assert rate is not None
        outside += not rate.least <= 1.0 <= rate.most
    assert outside <= 15


@pytest.mark.parametrize(
    ("changed", "compared", "is_raised"), [(1, 100, False), (10, 1_000, True), (0, 200, False), (0, 230, True)]
)
def test_a_ttl_is_raised_only_if_the_fastest_rate_that_fits_allows_the_present_one(
    changed: int, compared: int, is_raised: bool
):
    """The same estimate, with more behind it."""
    seen = Seen(ttl=60.0, maxsize=128, hits=compared, loads=compared)
    seen.causes["expired"] = compared
    for number in range(compared):
        seen.compare(60.0, is_same=number >= changed)
    found = recommend("tool", seen)
    assert [each.action for each in found] == (["raise_ttl"] if is_raised else ["keep"])
