"""What is noted of loads, and the estimate of how often results change."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from agent_cache import tuning
from agent_cache.core.evidence import BY_NUMBER, Evidence, LastLoad

rate_of = tuning._rate


def evidence() -> Evidence:
    return Evidence(SimpleNamespace(hits=0, shared=0, misses=0))


def compared(seen: Evidence) -> float:
    return seen.changed + seen.unchanged


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
    assert seen.causes == {"cold": 1, "expired": 2, "evicted": 1, "invalidated": 1, "unstored": 1}


def test_what_was_dropped_without_a_write_has_no_cause():
    seen = evidence()
    note(seen, 0, serial=5)
    note(seen, 1, present=False, written=5)
    assert (sum(seen.causes.values()), seen.dropped) == (1, 0)


def test_a_load_of_what_is_still_fresh_has_no_cause():
    """Its tier did not confirm it in time, or another event loop has loaded it, too."""
    seen = evidence()
    note(seen, 0)
    note(seen, 5)
    assert sum(seen.causes.values()) == 1


# Comparisons


def test_reloads_are_compared_if_no_write_can_explain_a_change():
    seen = evidence()
    note(seen, 0, b"a")
    note(seen, 10, b"a")
    note(seen, 20, b"b")
    assert (seen.unchanged, seen.changed, seen.seconds) == (1, 1, 20.0)
    note(seen, 30, b"c", present=False)  # dropped by a write after its end, or so it may be
    note(seen, 40, b"d", is_stored=False)  # overlapped by a write
    note(seen, 50, b"e")
    assert compared(seen) == 2


def test_what_was_evicted_is_compared_if_no_write_under_its_roots_came_since():
    seen = evidence()
    for serial, written in ((5, 5), (5, 6)):
        note(seen, 0, b"a", key=written, serial=serial)
        seen.latest[written].evicted = BY_NUMBER
        note(seen, 5, b"b", key=written, present=False, written=written)
    assert compared(seen) == 1


def test_an_entry_of_another_load_is_not_taken_for_the_one_that_is_remembered():
    """One that was not noted has been stored in between, maybe after a write."""
    seen = evidence()
    note(seen, 0, b"a")
    load = LastLoad(100, 110, b"b", 0, is_stored=True)
    seen.note("k", load, 77.0, 0, is_miss=True)
    assert compared(seen) == 0


def test_what_a_write_has_dropped_is_counted_by_itself():
    seen = evidence()
    note(seen, 0, b"a")
    for at, digest in ((1, b"a"), (2, b"a"), (3, b"b")):
        note(seen, at, digest, present=False, written=1)
    assert (seen.dropped, seen.dropped_unchanged, compared(seen)) == (3, 2, 0)


def test_a_result_without_a_digest_is_not_compared():
    seen = evidence()
    seen.note("k", LastLoad(0, 10, None, 0, is_stored=True), None, 0, is_miss=True)
    note(seen, 10, b"a")
    assert (compared(seen), seen.causes["expired"]) == (0, 1)


# Bounds


@pytest.mark.parametrize("keys", [list(range(20_000)), [f"key{number}" for number in range(20_000)]])
def test_of_many_calls_a_bounded_part_is_remembered_and_all_of_their_loads_are_seen(keys: list[Any]):
    seen = evidence()
    for turn in range(3):
        for key in keys:
            if seen.is_chosen(key):
                note(seen, 20.0 * turn, key=key)
        assert 30 < len(seen.latest) <= 128
    assert 0.5 * len(keys) < seen.different_calls < 2 * len(keys)
    assert seen.causes["expired"] >= 2 * len(seen.latest) - 128


def test_sums_of_comparisons_are_halved_so_that_what_was_seen_lately_counts_more():
    seen = evidence()
    for at in range(10_000):
        note(seen, 10.0 * at, b"a")
    for at in range(10_000, 20_000):
        note(seen, 10.0 * at, str(at).encode())
    assert compared(seen) <= 4_096
    assert seen.unchanged < 0.2 * compared(seen)


def test_another_ttl_begins_the_counts_anew():
    stats = SimpleNamespace(hits=0, shared=0, misses=2)
    seen = Evidence(stats)
    note(seen, 0)
    note(seen, 10)
    seen.restart()
    stats.misses, stats.hits = 5, 1
    assert (sum(seen.causes.values()), seen.calls, compared(seen)) == (0, (1, 3), 0)
    note(seen, 20)
    assert (seen.causes["expired"], compared(seen)) == (1, 1)


# How often results change


@pytest.mark.parametrize("interval", [0.001, 1.0, 3600.0, 1e8])
@pytest.mark.parametrize(("changed", "unchanged"), [(1, 1), (5, 95), (90, 10), (1, 999)])
def test_the_rate_of_equal_intervals_is_the_known_one(interval: float, changed: int, unchanged: int):
    count = changed + unchanged
    rate = rate_of(changed, unchanged, count * interval)
    assert rate is not None
    assert rate.likely == pytest.approx(-math.log(unchanged / count) / interval)
    assert 0 < rate.least < rate.likely < rate.most < math.inf
    for bound, sign in ((rate.least, 1), (rate.most, -1)):  # Wilson: the share is 1.645 deviations from the bound
        share = -math.expm1(-bound * interval)
        deviation = math.sqrt(share * (1 - share) / count)
        assert changed / count == pytest.approx(share + sign * 1.645 * deviation)


def test_without_a_change_the_rate_is_bounded_by_the_rule_of_three():
    rate = rate_of(0, 300, 300.0)
    assert rate is not None
    assert rate.least == 0
    assert rate.likely == rate.most == pytest.approx(3 / 300, rel=0.01)


def test_where_every_reload_has_changed_it_has_no_upper_bound():
    rate = rate_of(5, 0, 50.0)
    assert rate is not None
    assert (rate.likely, rate.most) == (rate.least, math.inf)
    assert (-math.expm1(-rate.least * 10)) ** 5 == pytest.approx(0.05)


def test_without_reloads_nothing_is_known():
    assert rate_of(0, 0, 0.0) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("between", [0.5, 60.0, 86_400.0])
def test_the_estimate_finds_the_rate_from_intervals_of_one_ttl(seed: int, between: float):
    """They are as long as the ttl and the time until the next call."""
    chance = random.Random(seed)
    for ttl in (0.05 * between, 0.3 * between, between):
        intervals = [ttl * (1 + chance.expovariate(5)) for _ in range(3_000)]
        changed = sum(chance.random() > math.exp(-each / between) for each in intervals)
        rate = rate_of(changed, len(intervals) - changed, sum(intervals))
        assert rate is not None
        assert 1 / rate.likely == pytest.approx(between, rel=0.2)
        assert rate.least < 1.05 / between
        assert rate.most > 0.95 / between


def test_what_is_true_is_rarely_refuted():
    """A rate outside of the bounds is about as frequent as it should be: one in twenty on each side."""
    chance, outside = random.Random(20), 0
    for _ in range(300):
        changed = sum(chance.random() > math.exp(-1.0) for _ in range(20))
        rate = rate_of(changed, 20 - changed, 20.0)
        assert rate is not None
        outside += not rate.least <= 1.0 <= rate.most
    assert outside <= 45
