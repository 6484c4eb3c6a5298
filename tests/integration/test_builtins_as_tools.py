"""A builtin is a tool if its signature can be read and a module has it; any other is refused with what to do."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError, Read, Toolbox, Write

REFUSED: dict[str, Any] = {
    "without a signature": max,
    "another without a signature": getattr,
    "a method of a class": str.upper,
    "a method of a value": "".join,
    "a method of a list": [].append,
    "a slot": object.__init__,
    "a method of a number": (1).__add__,
    "an object without a signature": operator.itemgetter(1),
    "a partial of one": functools.partial(max, 1),
    "a partial of a method": functools.partial(str.upper),
}


@pytest.mark.parametrize("decorator", [AgentCache, AgentCacheInvalidator])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_apart_is_refused_at_decoration(decorator: Any, name: str):
    with pytest.raises(ConfigurationError, match=r"`def`"):
        decorator("number")(REFUSED[name])


def test_a_toolbox_refuses_it_likewise():
    box = Toolbox({"upper": Read("text"), "max": Write("text")}, namespace="builtins")
    for function in (str.upper, max):
        with pytest.raises(ConfigurationError, match=r"`def`"):
            box.tool(function)


def test_a_builtin_with_a_signature_is_a_tool():
    size, root = AgentCache("size")(len), AgentCache("root")(math.sqrt)
    assert [size("abc"), size("abc"), root(16)] == [3, 3, 4.0]
    assert size.cache_info().hits == 1


def test_around_any_other_a_def_is_a_tool():
    @AgentCache("largest")
    def largest(numbers: list[int]) -> int:
        return max(numbers)

    assert [largest([1, 3]), largest(numbers=[1, 3])] == [3, 3]
    assert largest.cache_info().hits == 1
