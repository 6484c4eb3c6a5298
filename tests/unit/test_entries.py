"""What a caller does to an answer never shows in a later one, and what a hit gives is what the tool gave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent_cache.core.lease import Lease
from agent_cache.core.store import NEVER, Entry
from agent_cache.values.canonical import MISSING
from agent_cache.values.copies import UncopyableError, auto_copier
from tests.harness.slow import slow
from tests.harness.structure import Point


def nested(depth: int, wrap: Callable[[Any], Any], innermost: Any = ()) -> Any:
    value: Any = innermost or []
    for _ in range(depth):
        value = wrap(value)
    return value


def cycle() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


AWKWARD: dict[str, Callable[[], Any]] = {
    "list 3,000 deep": lambda: nested(3_000, lambda value: [value]),
    "tuple 3,000 deep": lambda: nested(3_000, lambda value: (value,)),
    "immutable tuple 3,000 deep": lambda: nested(3_000, lambda value: (value,), 1),
    "frozenset 3,000 deep": lambda: nested(3_000, lambda value: frozenset([value]), 1),
    "dict 3,000 deep": lambda: nested(3_000, lambda value: {"a": value}),
    "dataclass 3,000 deep": lambda: nested(3_000, Point),
    "list 100,000 deep": lambda: nested(100_000, lambda value: [value]),
    "tuple 100,000 deep": lambda: nested(100_000, lambda value: (value,)),
    "cycle": cycle,
    "lock": threading.Lock,
    "lock in a dict": lambda: {"a": [threading.Lock()]},
    "generator": lambda: (x for x in [1]),
    "memoryview": lambda: memoryview(b"x"),
    "lone surrogate": lambda: ["\ud800"],
    "large integer": lambda: [10**5000],
    "list of 60,000 lists": lambda: [[number] for number in range(60_000)],
}


DEEPEST = ("list 100,000 deep", "tuple 100,000 deep", "list of 60,000 lists")


@pytest.mark.parametrize("name", [*(name for name in AWKWARD if name not in DEEPEST), *slow(*DEEPEST)])
def test_what_cannot_be_copied_is_refused_in_one_way(name: str):
    value = AWKWARD[name]()
    try:
        make = auto_copier(value)
    except UncopyableError:
        return
    if make is not None:
        assert type(make()) is type(value)
        assert make() is not make()


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


def test_an_entry_of_a_tier_expires_and_is_kept_as_others_are():
    asked = Asked()
    asked.may_serve = True
    entry = Entry("value", 10.0, 0.5, ("order:7",), size=70, lease=Lease(asked), kept_for=5.0)
    assert (entry.expires, entry.kept_until, entry.tags, entry.size) == (10.0, 15.0, ("order:7",), 70)
    entry.expire_by(8.0)
    assert (entry.expires, entry.kept_until) == (8.0, 13.0)
    assert entry.share() == "value"
