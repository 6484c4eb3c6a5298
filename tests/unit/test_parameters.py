"""The parameters of a tool: which identify a call, what its one canonical spelling is, and what is its receiver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from agent_cache import ConfigurationError, UncacheableArgumentsError
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


def test_a_positional_only_name_may_come_again_among_the_keywords():
    parameters = parameters_of(every_kind)
    assert parameters.split(parameters.bind((1,), {"a": 2})) == ((1, "b"), {"c": False, "a": 2})

    async def optional(a: int = 0, /, **rest: int) -> None: ...

    parameters = parameters_of(optional)
    assert parameters.split(parameters.bind((), {"a": 2})) == ((0,), {"a": 2})


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"b": 1, "c": 2, "d": 3}), ((1, 2), {"b": 1})])
def test_a_wrong_call_is_a_type_error(args: Any, kwargs: Any):
    async def tool(a: int, b: int = 0, *, c: int = 0) -> None: ...

    with pytest.raises(TypeError):
        parameters_of(tool).bind(args, kwargs)


def test_a_call_without_identity_has_no_key():
    async def two(a: Any, b: Any) -> None: ...

    with pytest.raises(UncacheableArgumentsError):
        parameters_of(two).key({"a": "x", "b": object()})


@pytest.mark.parametrize(("skip", "names"), [(0, ("a", "b", "args", "c", "rest")), (1, ("b", "args", "c", "rest"))])
def test_leading_positional_parameters_may_be_left_out_of_the_key(skip: int, names: tuple[str, ...]):
    assert tuple(one.name for one in parameters_of(every_kind, skip).all if one.in_key) == names


@pytest.mark.parametrize("skip", [-1, 3, True, "1", None, 1.0])
def test_no_more_than_there_are_can_be_left_out(skip: Any):
    with pytest.raises(ConfigurationError, match="skip_args"):
        parameters_of(every_kind, skip)


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


def test_a_receiver_without_fields_is_known_by_its_serial():
    parameters = parameters_of(Shop.method)
    one, other = Shop(), Shop()
    keys = [parameters.key({"self": shop, "item": "tea"}) for shop in (one, other, one)]
    assert keys[0] == keys[2] != keys[1]


def test_a_wrapped_function_is_read_as_what_it_wraps():
    @functools.wraps(every_kind)
    async def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert parameters_of(wrapper).names == ("a", "b", "args", "c", "rest")


class Options:
    def __init__(self, limit: Any) -> None:
        self.limit = limit


@pytest.mark.parametrize(("default", "is_constant"), [(object(), True), (Options("all"), True), (Options([]), False)])
def test_a_default_is_a_constant_of_the_key_if_it_has_nothing_but_a_name(default: Any, is_constant: bool):
    def tool(options: Any = default) -> None: ...

    (one,) = parameters_of(tool).all
    assert one.is_sentinel is is_constant
