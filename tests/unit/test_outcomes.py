"""What stands for an outcome when two are compared, and when one is shown."""

from __future__ import annotations

from typing import Any

import pytest

from agent_cache.values.compare import fingerprint, is_empty, shown, signature_of
from tests.harness.searches import searched
from tests.harness.structure import near_pairs, same


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoText:
    def __repr__(self) -> str:
        return None  # type: ignore[return-value]


@searched(20, 100, near_pairs())
def test_two_outcomes_have_one_fingerprint_if_and_only_if_they_are_the_same(pair: tuple[Any, Any]):
    one, other = pair
    first, second = fingerprint(one), fingerprint(other)
    assert first is not None
    assert second is not None
    assert len(first) == 16
    assert (first == second) is same(one, other)


def test_what_has_no_identity_has_no_fingerprint():
    assert fingerprint(object()) is None
    assert fingerprint([object()]) is None


def test_a_value_is_shown_briefly_whatever_its_repr_does():
    assert shown("x") == "'x'"
    assert shown(Unprintable()).startswith("<Unprintable")
    assert len(shown("x" * 1_000)) == 80
    assert shown("x" * 1_000).endswith("...")
    assert shown(NoText()).startswith("<NoText")


@pytest.mark.parametrize(
    "value",
    [None, False, 0, 0.0, "", b"", [], (), {}, set(), {"items": [], "total": 0}, [[], None], {"page": {"rows": ()}}],
)
def test_an_answer_with_nothing_in_it_is_empty(value: Any):
    assert is_empty(value)


def test_an_answer_with_something_in_it_is_not_empty():
    endless: list[Any] = []
    endless.append(endless)
    for value in (
        True,
        1,
        "Error",
        [0, 1],
        {"error": "down"},
        {"items": [], "page": 1},
        object(),
        endless,
        [None] * 9999,
    ):
        assert not is_empty(value)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_two_errors_are_the_same_by_type_and_whole_message():
    assert signature_of(LookupError("x")) == signature_of(LookupError("x"))
    assert signature_of(LookupError("x")) != signature_of(ValueError("x"))
    assert signature_of(LookupError("x" * 200 + "1")) != signature_of(LookupError("x" * 200 + "2"))
    assert signature_of(Silent()) is None
    same_name = type("LookupError", (Exception,), {})
    assert signature_of(same_name("x")) != signature_of(LookupError("x"))


def test_two_groups_of_errors_are_the_same_by_what_is_in_them():
    def group(*errors: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("tasks failed", list(errors))

    one = signature_of(group(ValueError("a"), LookupError("b")))
    assert one is not None
    assert one == signature_of(group(LookupError("b"), ValueError("a"))), "whichever task was first"
    others = [
        group(ValueError("a"), LookupError("c")),
        group(ValueError("a"), KeyError("b")),
        group(ValueError("a"), LookupError("b"), LookupError("b")),
        group(group(ValueError("a"), LookupError("b"))),
        ExceptionGroup("other tasks failed", [ValueError("a"), LookupError("b")]),
    ]
    assert len({one, *map(signature_of, others)}) == 6
    assert signature_of(group(ValueError("a"), Silent())) is None
    deep = ValueError("a")
    for _ in range(200):
        deep = group(deep)  # type: ignore[assignment]
    assert signature_of(deep) is not None
