"""What a read depends on and a write touches: templates, computed tags, and the one rule of what concerns what."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st

from agent_cache import ConfigurationError, tags_from
from agent_cache.core.tags import (
    EVERY_KEY,
    MANY_PATHS,
    TagSet,
    ancestors,
    escape,
    every_key_of,
    meet,
    parse_tag,
    root_of,
    within_limit,
)
from tests.harness.searches import searched

SEGMENTS = st.text(alphabet="ab:%5A2", max_size=4)
"""Ids with everything in them that the separator, or its escape, is written with."""
PATHS = st.lists(SEGMENTS.filter(bool), min_size=1, max_size=4)


def tags_of(resource: Any, arguments: Mapping[str, Any] | None = None, result: Any = None) -> dict[str, list[str]]:
    """All tags that a resource gives, by when they are known."""
    tags = TagSet.compile(resource, tuple(arguments or ()), "tool")
    return {
        "static": list(tags.static),
        "early": [tag for rule in tags.early for tag in rule.make(arguments or {}, None)],
        "late": [tag for rule in tags.late for tag in rule.make(arguments or {}, result)],
    }


def only(when: str, *tags: str) -> dict[str, list[str]]:
    return {"static": [], "early": [], "late": []} | {when: list(tags)}


# -- Tags ----------------------------------------------------------------------------------------------------


@searched(30, 100, SEGMENTS)
def test_an_escaped_segment_is_one_segment_and_can_be_read_back(segment: str):
    escaped = escape(segment)
    assert ":" not in escaped
    assert escaped.replace("%3A", ":").replace("%25", "%") == segment


@searched(30, 100, PATHS, PATHS)
def test_a_write_concerns_what_lies_below_it_above_it_and_nothing_beside_it(one: list[str], other: list[str]):
    shorter, longer = sorted((one, other), key=len)
    related = longer[: len(shorter)] == shorter
    first, second = parse_tag(one), parse_tag(other)
    assert meet(first, second) is related
    assert meet(second, first) is related
    assert (first == second) is (one == other)


@searched(30, 100, PATHS)
def test_the_ancestors_of_a_tag_are_its_proper_prefixes_the_root_first(path: list[str]):
    tag = parse_tag(path)
    assert ancestors(tag) == [parse_tag(path[:length]) for length in range(1, len(path))]
    assert root_of(tag) == parse_tag(path[:1])


def test_a_tag_is_read_as_text_or_as_segments_and_what_is_none_is_refused():
    assert [parse_tag(tag) for tag in ("order", "order:7:lines", ("order", 7))] == ["order", "order:7:lines", "order:7"]
    assert parse_tag(["order", "a:b", "50%", "*"]) == "order:a%3Ab:50%25:*"
    wrong: list[Any] = ["", ":", "order:", ":7", "a::b", "a:*", (), ("a", ""), None, 7, b"order", {"order"}]
    for tag in wrong:
        with pytest.raises(ConfigurationError, match="tag"):
            parse_tag(tag)


# -- Templates -----------------------------------------------------------------------------------------------

ORDER = types.SimpleNamespace(
    id="7",
    user=types.SimpleNamespace(id="u1"),
    lines=["a", "b"],
    meta={"k": {"n": 1, "none": None}},
    none=[],
    groups=[{"ids": [types.SimpleNamespace(n=1), types.SimpleNamespace(n=2)]}, {"ids": [types.SimpleNamespace(n=3)]}],
)

TEMPLATES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a fixed tag": ("order", "static", ("order",)),
    "each item": ("order:{order.lines[]}", "early", ("order:a", "order:b")),
    "each item, below and beside something": ("order:x:{order.lines[]}-{id}", "early", ("order:x:a-7", "order:x:b-7")),
    "a part of each item of each item": ("o:{order.groups[][ids][].n}", "early", ("o:1", "o:2", "o:3")),
    "no items": ("order:{order.none[]}", "early", ("order",)),
    "a fixed path": ("order:list:open", "static", ("order:list:open",)),
    "braces that stand for themselves": ("order:{{x}}", "static", ("order:{x}",)),
    "a parameter": ("order:{id}", "early", ("order:7",)),
    "a colon in the value": ("order:{odd}", "early", ("order:a%3Ab%25",)),
    "part of a segment": ("order:no-{id}-x", "early", ("order:no-7-x",)),
    "two in one segment": ("order:{id}-{number}", "early", ("order:7-7",)),
    "two segments": ("order:{id}:{odd}", "early", ("order:7:a%3Ab%25",)),
    "fixed below": ("order:{id}:lines", "early", ("order:7:lines",)),
    "an attribute": ("order:{order.id}", "early", ("order:7",)),
    "a key": ("order:{mapping[id]}", "early", ("order:9",)),
    "a key with a colon": ("order:{mapping[a:b]}", "early", ("order:11",)),
    "a list has each item": ("o:{order.lines}", "early", ("o:['a', 'b']", "o:a", "o:b")),
    "a list in a part": ("o:{id}-{order.lines}:x", "early", ("o:7-['a', 'b']:x", "o:7-a:x", "o:7-b:x")),
    "an empty list is the whole root": ("o:{order.none}", "early", ("o",)),
    "an index": ("line:{order.lines[1]}", "early", ("line:b",)),
    "a negative number is a key": ("order:{mapping[-1]}", "early", ("order:12",)),
    "a mix of steps": ("n:{order.meta[k][n]}", "early", ("n:1",)),
    "the result": ("user:{result.id}", "late", ("user:7",)),
    "the result and a parameter": ("user:{odd}:{result.id}", "late", ("user:a%3Ab%25:7",)),
    "None is the whole root": ("order:{nothing}", "early", ("order",)),
    "None in a part is the whole root": ("order:{id}:{nothing}", "early", ("order",)),
    "an empty text is an id": ("order:{empty}", "early", ("order:",)),
    "False is an id": ("order:{false}", "early", ("order:False",)),
    "a root that is escaped": ("50%:{id}", "early", ("50%25:7",)),
    "an attribute of the result": ("order:{result.user.id}", "late", ("order:u1",)),
    "an item of the result": ("line:{result.lines[0]}", "late", ("line:a",)),
    "a key of the result": ("n:{result.meta[k][n]}", "late", ("n:1",)),
    "None in the result": ("order:{result.meta[k][none]}", "late", ("order",)),
}
ARGUMENTS: dict[str, Any] = {"id": "7", "number": 7, "odd": "a:b%", "order": ORDER, "nothing": None, "empty": ""}
ARGUMENTS |= {"false": False, "mapping": {"id": 9, "a:b": 11, "-1": 12}}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives(name: str):
    template, when, expected = TEMPLATES[name]
    assert tags_of(template, ARGUMENTS, ORDER) == only(when, *expected)
    with_result = tags_of(template, {**ARGUMENTS, "result": ORDER}, None)
    assert with_result == only("early" if when == "late" else when, *expected), "a parameter called result wins"


@searched(30, 100, st.text(max_size=8), st.text(max_size=8))
def test_values_with_different_texts_are_different_tags_and_none_reaches_beyond_its_root(one: str, other: str):
    for template in ("order:{a}", "order:x-{a}", "order:{a}:lines"):
        (first,), (second,) = (tags_of(template, {"a": value})["early"] for value in (one, other))
        assert (first == second) is (one == other)
        assert meet(first, second) is (one == other)
        assert root_of(first) == "order"
        assert first.count(":") == template.count(":")


def test_what_depends_on_a_whole_root_needs_nothing_below_it():
    assert tags_of(["order", "order:{id}", "order:{result}"], {"id": "7"}, "8") == only("static", "order")
    both = {"static": ["order:list"], "early": ["order:7"], "late": []}
    assert tags_of(["order:list", "order:{id}"], {"id": "7"}) == both


# -- Computed tags -------------------------------------------------------------------------------------------

COMPUTED: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "one id": (lambda arguments: arguments["id"], "early", ("order:7",)),
    "bytes are one id": (lambda arguments: b"7", "early", ("order:b'7'",)),
    "a list": (lambda arguments: ["7", 8], "early", ("order:7", "order:8")),
    "a generator": (lambda arguments: (one for one in "78"), "early", ("order:7", "order:8")),
    "the same twice": (lambda arguments: ["7", 7, "7"], "early", ("order:7",)),
    "a colon": (lambda arguments: ["a:b"], "early", ("order:a%3Ab",)),
    "None": (lambda arguments: None, "early", ("order",)),
    "none": (lambda arguments: [], "early", ("order",)),
    "None among others": (lambda arguments: [None, "7"], "early", ("order:7",)),
    "from the result": (lambda arguments, result: [arguments["id"], result], "late", ("order:7", "order:r")),
    "a default": (lambda arguments, result=None: result, "late", ("order:r",)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_function_gives(name: str):
    function, when, expected = COMPUTED[name]
    assert tags_of(tags_from("order", function), {"id": "7"}, "r") == only(when, *expected)


class Status(str, enum.Enum):  # noqa: UP042 - as it is written where Python 3.10 counts, with another `str`
    OPEN = "open"


class Level(enum.Enum):
    HIGH = 7


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


SAME: list[tuple[Any, Any]] = [
    (Status.OPEN, "open"), (Level.HIGH, 7), (7.0, "7"), (7.5, "7.5"), (NOON, NOON.isoformat()), (NOON, str(NOON)),
    ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1}), ({1, 2}, {2.0, 1}), ((Status.OPEN,), ("open",)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(SAME)))
def test_values_that_stand_for_one_entity_have_a_tag_in_common(case: int):
    """A framework gives one tool a member of an enum, and another one its value."""
    one, other = SAME[case]
    for resource in ("s:{a}", "s:{a}:x", "s:{a[]}", tags_from("s", lambda given: given["a"])):
        values = ([one], [other]) if resource == "s:{a[]}" else (one, other)
        first, second = (tags_of(resource, {"a": value})["early"] for value in values)
        assert {*first} & {*second}
    assert parse_tag(("s", one)) in tags_of("s:{a}", {"a": one})["early"]


def test_each_item_of_a_text_or_a_mapping_is_refused():
    for value in ("text", b"bytes", {"a": 1}):
        with pytest.raises(TypeError, match=r"\[\] stands for each item of a list"):
            tags_of("order:{id[]}", {"id": value})


def test_a_write_of_very_many_tags_names_their_roots():
    """So each step of a write is bounded, whatever it names."""
    many = tuple(f"order:{number}" for number in range(MANY_PATHS))
    assert within_limit(many) == many
    assert within_limit((*many, "user:1", "cart")) == ("order", "user", "cart")


def test_a_write_of_very_many_entries_names_all_of_their_tools():
    keys = tuple((tool, number) for number in range(1_500) for tool in ("a", "b"))
    assert every_key_of(keys) == (("a", EVERY_KEY), ("b", EVERY_KEY))
