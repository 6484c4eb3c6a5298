"""What stands for an outcome when two are compared, and when one is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agent_cache._core.outcomes import fingerprint, shown
from tests.harness.structure import near_pairs, same


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoText:
    def __repr__(self) -> str:
        return None  # type: ignore[return-value]


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
