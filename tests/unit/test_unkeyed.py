"""What is said of a call that has no key, so that the loop detector can compare it."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import pytest

from agent_cache.core.parameters import Parameters
from agent_cache.session.unkeyed import UnkeyedCalls


class Thing:
    """Has no identity, and any attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("__weakref__", "text")

    def __init__(self, text: str) -> None:
        self.text = text


class Rigid:
    """Cannot be referred to weakly."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Hostile:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


async def tool(first: Any, second: Any = 0, *rest: Any, **more: Any) -> None: ...


_PARAMETERS = Parameters.of(tool, 0, "tool")


def key(calls: UnkeyedCalls, *args: Any, **kwargs: Any) -> Hashable:
    found = calls.key(_PARAMETERS, _PARAMETERS.bind(args, kwargs))
    hash(found)
    return found


@pytest.mark.parametrize("make", [Thing, object, lambda: Slotted("a"), lambda: Rigid("a"), Hostile, lambda: iter([])])
def test_one_object_is_one_argument(make: Any) -> None:
    """Also if it was seen in another place of another call before."""
    calls, thing = UnkeyedCalls(), make()
    assert key(calls, thing) == key(calls, thing)
    assert key(calls, [thing]) == key(calls, [thing])
    assert key(calls, thing) != key(calls, [thing])


def test_an_object_stays_the_same_argument_when_it_changes() -> None:
    """A context that counts its requests is one context."""
    calls, thing = UnkeyedCalls(), Thing(requests=0)
    before = key(calls, thing)
    thing.requests = 1
    assert key(calls, thing) == before


@pytest.mark.parametrize("make", [Thing, lambda: Slotted("a"), lambda: (each for each in "a")])
def test_objects_that_live_at_one_time_are_others(make: Any) -> None:
    """However alike they are."""
    calls, things = UnkeyedCalls(), [make() for _ in range(20)]
    assert len({key(calls, thing) for thing in things}) == 20
    assert key(calls, things[3]) == key(calls, things[3])


@pytest.mark.parametrize("make", [Thing, object, lambda: Slotted("a"), lambda: Rigid("a"), lambda: {"x": [Thing()]}])
def test_an_object_that_is_made_anew_for_each_call_cannot_be_told_apart(make: Any) -> None:
    """Unless the one before is still alive."""
    calls = UnkeyedCalls()
    assert len({key(calls, make()) for _ in range(20)}) == 1


@pytest.mark.parametrize("make", [lambda text: Thing(text=text), Slotted, Rigid, lambda text: (text, object())])
def test_objects_that_differ_in_what_can_be_compared_are_others(make: Any) -> None:
    """Their attributes, in the dict or in slots."""
    calls = UnkeyedCalls()
    assert len({key(calls, make(f"text {number}")) for number in range(20)}) == 20


def test_an_object_that_loads_itself_when_it_is_asked_is_not_loaded() -> None:
    """As the lazy objects of some frameworks do."""
    asked = []

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return name

        @property
        def content(self) -> str:
            asked.append("content")
            return "loaded"

    assert key(UnkeyedCalls(), Lazy(), [Lazy()])
    assert asked == []


def test_types_and_names_are_compared() -> None:
    """The functions of C have a name and nothing else."""
    calls = UnkeyedCalls()
    assert key(calls, len) != key(calls, print)
    assert key(calls, object()) != key(calls, iter([]))
    assert key(calls, functools.partial(print)) != key(calls, print)


def test_the_other_arguments_are_compared_by_their_keys() -> None:
    """Of a call with an argument without a key, and of a container with such a member."""
    calls, thing = UnkeyedCalls(), Thing()
    arguments = [
        ((thing, 1), {}),
        ((thing, 2), {}),
        ((thing, 2, 3), {}),
        ((thing,), {"more": 1}),
        ((thing,), {"more": 2}),
        ((thing, [thing, 1]), {}),
        ((thing, [thing, 2]), {}),
        ((thing, {"x": thing, "y": 1}), {}),
        ((thing, {"x": thing, "y": 2}), {}),
    ]
    assert len({key(calls, *args, **kwargs) for args, kwargs in arguments}) == len(arguments)
    assert [key(calls, *args, **kwargs) for args, kwargs in arguments] == [
        key(calls, *args, **kwargs) for args, kwargs in arguments
    ]


def test_containers_are_read_within_bounds() -> None:
    """A cycle, a deep one, a wide one: each has an identity, and little of it is read."""
    calls = UnkeyedCalls()
    cyclic: list[Any] = [object()]
    cyclic.append(cyclic)
    deep: Any = object()
    for _ in range(50):
        deep = [deep, deep]
    wide = [object() for _ in range(100_000)]
    for value in (cyclic, deep, wide, dict.fromkeys(range(100_000), deep)):
        assert key(calls, value) == key(calls, value)
        assert len(repr(key(calls, value))) < 1_000


def test_memory_is_bounded() -> None:
    """However many objects a session sees, and however large they are."""
    calls = UnkeyedCalls()
    things = [Thing(text=f"{number} " * 1_000) for number in range(1_000)]
    for thing in things:
        assert len(repr(key(calls, thing))) < 1_000
        key(calls, Thing())
    assert max(len(calls._known), len(calls._latest)) <= 256
