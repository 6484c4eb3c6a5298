"""What a caller does to an answer never shows in a later one, and what a hit gives is what the tool gave."""

from __future__ import annotations

import pytest

from agent_cache.core.lease import Lease
from agent_cache.core.store import NEVER, Entry
from agent_cache.values.canonical import MISSING


def test_an_entry_ends_when_it_expires_and_not_before():
    entry = Entry("value", 10.0, 0.5)
    assert entry.value_at(9.9) == "value"
    assert entry.value_at(10.0) is MISSING
    assert entry.expires == 10.0
    assert Entry(None, NEVER, 0.0).value_at(1e300) is None, "None is a value"


def test_a_mutable_entry_never_passes_the_inline_test_and_gives_copies_until_it_expires():
    entry = Entry(None, 10.0, 0.5, copy=[1].copy)
    assert not (entry.fast > -1e300)
    first = entry.value_at(9.9)
    first.append(2)
    assert entry.value_at(9.9) == [1]
    assert entry.value_at(10.0) is MISSING
    assert entry.expires == 10.0


class Asked:
    """The tier of a lease."""

    may_serve = False

    def is_complete(self) -> bool:
        return self.may_serve


def test_an_entry_of_a_tier_is_served_only_while_its_lease_is_valid():
    lease = Lease(Asked(), page := [1], stamp=1)
    entry = Entry("value", 10.0, 0.5, lease=lease)
    assert entry.value_at(9.9) == "value"
    assert entry.value_at(10.0) is MISSING
    page[0] = 2
    assert entry.value_at(9.9) is MISSING
    assert not entry.is_valid_at(9.9)
    lease.stamp = 2
    assert entry.value_at(9.9) == "value"
    assert entry.is_valid_at(9.9)


def test_a_mutable_entry_of_a_tier_is_copied_only_while_its_lease_is_valid():
    entry = Entry(None, NEVER, 0.5, copy=[1].copy, lease=Lease(Asked(), page := [1], stamp=1))
    assert entry.value_at(4.9) == [1]
    assert entry.value_at(4.9) is not entry.value_at(4.9)
    page[0] = 2
    assert entry.fast == -NEVER
    assert entry.value_at(4.9) is MISSING


@pytest.mark.parametrize("is_mutable", [False, True])
def test_an_entry_asks_its_lease_where_the_page_says_no(is_mutable: bool):
    asked = Asked()
    asked.may_serve = True
    entry = Entry([1], 10.0, 0.5, copy=[1].copy if is_mutable else None, lease=Lease(asked))
    assert entry.value_at(9.9) == [1]
    assert entry.expired_value() == [1]
    asked.may_serve = False
    assert entry.value_at(9.9) is MISSING
    assert entry.expired_value() is MISSING
