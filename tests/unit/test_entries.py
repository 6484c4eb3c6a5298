"""What a caller does to an answer never shows in a later one, and what a hit gives is what the tool gave."""

from __future__ import annotations

import copy
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agent_cache.core.lease import Lease
from agent_cache.core.store import NEVER, Entry
from agent_cache.values.canonical import MISSING
from agent_cache.values.copies import UncopyableError, auto_copier, copy_rule_named, faster
from tests.harness.searches import searched
from tests.harness.slow import slow
from tests.harness.structure import VALUES, WHEN, Colour, Pair, Place, Point, same, spoil

SHARED = [
    *("text", 7, 2**70, 1.5, True, None, b"bytes", 1j, ..., range(3)),
    *(Decimal(1), Fraction(1), UUID(int=1), Path("a"), timedelta(1), WHEN, UTC, Colour.RED, int),
    *((), (1, "a", (2.0, None)), frozenset({1, (2,)}), (Colour.RED, Path("a"))),
]


@pytest.mark.parametrize("value", SHARED, ids=repr)
def test_what_is_immutable_is_shared_as_it_is(value: Any):
    assert auto_copier(value) is None


@searched(30, 100, VALUES)
def test_a_copy_is_exactly_what_the_tool_gave_and_nobody_can_spoil_the_next_one(value: Any):
    truth = copy.deepcopy(value)
    make = auto_copier(value)
    if make is None:
        assert not spoil(value), "what is shared must have no place to be changed at"
        return
    spoil(value)
    for each in (make, faster(make), make, faster(make)):
        given = each()
        assert same(given, truth)
        spoil(given)


@searched(30, 100, VALUES)
def test_parts_that_were_one_object_are_one_in_the_copy(value: Any):
    make = auto_copier([value, value])
    assert make is not None
    first, second = make()
    assert first is second


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


def test_a_cycle_stays_a_cycle():
    make = auto_copier(cycle())
    assert make is not None
    given = make()
    assert given[1] is given
    assert given[0] == 1


class Sealed:
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise RuntimeError("no copies")


@pytest.mark.parametrize("value", [Sealed(), [Sealed()], {"a": (1, Sealed())}, threading.Lock()])
def test_an_object_that_refuses_to_be_copied_is_unprotectable(value: Any):
    with pytest.raises(UncopyableError):
        auto_copier(value)


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(list, a=[1]),
        Counter("aab"),
        {1: "a", None: [1], (): "b"},
        {(1, 2): {3}},
        [b"x", bytearray(b"x")],
        (1, [2]),
        {"a": Pair(1, 2)},
        [Place(1, [2])],
        [0.0, -0.0],
        {"nested": {"tuple": (1, {"set": {1, 2}})}},
    ],
    ids=repr,
)
def test_the_types_of_a_copy_are_those_of_the_value(value: Any):
    make = auto_copier(value)
    assert make is not None

    def shape(part: Any) -> Any:
        if isinstance(part, dict):
            return (type(part), [(shape(key), shape(item)) for key, item in part.items()])
        if isinstance(part, (list, tuple)):
            return (type(part), [shape(member) for member in part])
        return (type(part), repr(part))

    assert shape(make()) == shape(value)


def test_a_choice_that_is_none_is_told_apart():
    assert copy_rule_named("auto") is not None
    assert copy_rule_named("never") is not None
    assert copy_rule_named(copy.copy) is not None
    for wrong in ("deep", "", None, 1, True):
        assert copy_rule_named(wrong) is None


def test_a_copier_of_the_users_own_makes_the_snapshot_and_each_copy():
    copy_rule = copy_rule_named(list)
    assert copy_rule is not None
    value = [1]
    make = copy_rule.snapshot(value)
    assert make is not None
    value.append(2)
    make().append(3)
    assert make() == [1]


def test_a_copier_that_raises_makes_the_value_unprotectable():
    copy_rule = copy_rule_named(lambda value: value.nothing)
    assert copy_rule is not None
    with pytest.raises(UncopyableError) as caught:
        copy_rule.snapshot([])
    assert isinstance(caught.value.__cause__, AttributeError)


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
