"""Leases: a word that is compared, a term that runs, and what is asked where these say no."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest

from agent_cache.core.lease import UNTRUSTED, CombinedLease, Lease, Term


class Asked(Lease):
    """A lease that counts how often it is asked, and answers as it is told."""

    def __init__(self, *arguments: object, answer: bool = False) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # those of `Lease`
        self.answer = answer
        self.times = 0

    def renew(self) -> bool:
        self.times += 1
        return self.answer


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


def shared_page() -> memoryview:
    return memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")[7:]


@pytest.mark.parametrize("make", [lambda: [0], shared_page], ids=["list", "shared memory"])
def test_a_lease_is_valid_while_the_word_is_its_stamp_and_is_not_asked_then(make: Callable[[], list[int]]):
    page = make()
    page[0] = 2**63
    lease = Asked(page, 2**63)
    assert lease.is_valid()
    assert lease.times == 0
    page[0] += 1
    assert not lease.is_valid()
    assert lease.times == 1
    lease.stamp += 1
    assert lease.is_valid()
    assert lease.times == 1


def test_a_lease_with_a_term_is_valid_while_that_runs_as_well(watch: Watch):
    page, term = [1], Term(watch, until=5.0)
    lease = Asked(page, 1, term)
    watch.now = 4.9
    assert lease.is_valid()
    watch.now = 5.0
    assert not lease.is_valid()
    assert lease.times == 1
    term.until = 6.0
    assert lease.is_valid()
    page[0] = 2
    assert not lease.is_valid()


def test_a_lease_that_is_renewed_lets_copies_be_served(watch: Watch):
    lease = Asked([1], 0, answer=True)
    assert lease.is_valid()
    assert lease.times == 1


def test_a_lease_that_renews_itself_is_not_asked_again():
    class Renewed(Asked):
        def renew(self) -> bool:
            self.times += 1
            self.stamp = self.page[0]
            return True

    page = [1]
    lease = Renewed(page, 1)
    page[0] = 2
    assert [lease.is_valid() for _ in range(3)] == [True] * 3
    assert lease.times == 1


def test_a_term_that_has_not_begun_lets_nothing_be_served(watch: Watch):
    assert not Lease([1], 1, Term(watch)).is_valid()


def test_a_term_that_was_ended_does_not_come_back(watch: Watch):
    """Another thread may move its end at the same moment."""
    term = Term(watch, until=5.0)
    lease = Lease([1], 1, term)
    assert not term.is_over
    assert term.is_running()
    term.end()
    term.until = 100.0
    assert term.is_over
    assert not term.is_running()
    assert not lease.is_valid()


def test_a_lease_without_arguments_is_never_valid():
    assert not Lease().is_valid()
    assert not UNTRUSTED.is_valid()


def test_a_combined_lease_is_valid_while_all_of_its_parts_are(watch: Watch):
    page, term = [1], Term(watch, until=5.0)
    asked = Asked(answer=True)
    lease = CombinedLease([Lease(page, 1), Lease([1], 1, term), asked])
    assert lease.is_valid()
    watch.now = 5.0
    assert not lease.is_valid()
    watch.now = 0.0
    assert lease.is_valid()
    asked.answer = False
    assert not lease.is_valid()
    asked.answer = True
    page[0] = 2
    assert not lease.is_valid()


def test_only_several_leases_are_combined():
    one, other = Lease(), Lease()
    assert CombinedLease.of([]) is None
    assert CombinedLease.of([one]) is one
    both = CombinedLease.of(iter([one, other]))
    assert isinstance(both, CombinedLease)
    assert both.parts == (one, other)
