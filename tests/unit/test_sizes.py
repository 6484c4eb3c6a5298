"""How large a value is taken to be: roughly right, each object once, whatever is in it."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from agent_cache.values.canonical import size_of

NOTHING = size_of(None)


def test_a_value_counts_with_all_it_contains():
    assert size_of("x" * 1_000) - NOTHING == pytest.approx(1_000, rel=0.1)
    assert size_of(["x" * 1_000, {"k": b"y" * 1_000}]) - NOTHING == pytest.approx(2_000, rel=0.3)
    assert size_of({"x" * 1_000: 1}) > 1_000
    assert size_of((frozenset(["x" * 1_000]),)) > 1_000


def test_an_object_counts_with_its_fields():
    @dataclasses.dataclass
    class Open:
        text: str

    @dataclasses.dataclass(slots=True)
    class Slotted:
        text: str

    class OneSlot:
        __slots__ = "text"

        def __init__(self, text: str) -> None:
            self.text = text

    for kind in (Open, Slotted, OneSlot):
        assert size_of(kind("x" * 1_000)) > 1_000
        assert size_of(kind("x" * 1_000)) < 2_000


def test_what_is_there_twice_counts_once():
    text = "x" * 1_000
    assert size_of([text, text, [text]]) < 2_000
    cycle: list[Any] = [text]
    cycle.append(cycle)
    assert size_of(cycle) < 2_000


def test_what_lies_beyond_the_bound_is_extrapolated():
    small, large = (size_of([str(number) * 10 for number in range(count)]) for count in (5_000, 500_000))
    assert large / small == pytest.approx(100, rel=0.3)


class Unreadable:
    """Every look at it fails."""

    __slots__ = ("field",)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __sizeof__(self) -> int:
        raise RuntimeError


class Unbound:
    """A proxy of nothing: even its class cannot be asked for."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("nothing bound")


class Negative:
    def __sizeof__(self) -> int:
        return -1


class OddSlots:
    __slots__ = iter(("a", "b"))


@pytest.mark.parametrize("kind", [Unreadable, Unbound, Negative, OddSlots])
def test_what_cannot_be_looked_at_is_estimated_all_the_same(kind: Any):
    assert NOTHING <= size_of(kind()) + sys.getsizeof(None) < NOTHING + 1_000
    assert size_of([kind(), "x" * 1_000]) > 1_000
