"""The parameters of a tool: which identify a call, what its one canonical spelling is, and what is its receiver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from agent_cache.core.parameters import Parameters


def parameters_of(function: Callable[..., Any], skip_args: int = 0) -> Parameters:
    return Parameters.of(function, skip_args, "tool")


async def every_kind(a: int, /, b: str = "b", *args: int, c: bool = False, **rest: int) -> None: ...


def test_a_call_has_one_canonical_spelling():
    parameters = parameters_of(every_kind)
    for args, kwargs in (((1,), {}), ((1, "b"), {}), ((1,), {"b": "b"}), ((1,), {"c": False, "b": "b"})):
        arguments = parameters.bind(args, kwargs)
        assert parameters.split(arguments) == ((1, "b"), {"c": False})
    arguments = parameters.bind((1, "x", 2, 3), {"z": 9, "c": True})
    assert parameters.split(arguments) == ((1, "x", 2, 3), {"c": True, "z": 9})
    assert parameters.named(*parameters.split(arguments)) == arguments


@pytest.mark.parametrize(("skip", "names"), [(0, ("a", "b", "args", "c", "rest")), (1, ("b", "args", "c", "rest"))])
def test_leading_positional_parameters_may_be_left_out_of_the_key(skip: int, names: tuple[str, ...]):
    assert tuple(one.name for one in parameters_of(every_kind, skip).all if one.in_key) == names


class Shop:
    async def method(self, item: str) -> None: ...

    @classmethod
    async def of_class(cls, item: str) -> None: ...

    @staticmethod
    async def static(self: str, item: str) -> None: ...

    async def this(this, item: str) -> None: ...

    class Inner:
        async def method(self) -> None: ...

    def make(self) -> Any:
        async def tool(self: str) -> None: ...

        return tool


async def at_module_level(self: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "receiver"),
    [
        (Shop.method, "self"),
        (Shop.of_class.__func__, "cls"),
        (Shop.Inner.method, "self"),
        (Shop.this, None),
        (Shop().make(), None),
        (at_module_level, None),
    ],
)
def test_the_receiver_is_the_first_parameter_of_what_a_class_defines(function: Any, receiver: str | None):
    assert [one.name for one in parameters_of(function).all if one.is_receiver] == ([receiver] if receiver else [])


def test_a_wrapped_function_is_read_as_what_it_wraps():
    @functools.wraps(every_kind)
    async def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert parameters_of(wrapper).names == ("a", "b", "args", "c", "rest")
