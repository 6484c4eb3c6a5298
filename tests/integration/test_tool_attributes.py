"""What a decorated tool has beside its call: `invalidate`, `fresh`, `cache_key`, `contains`, `cache_info`, `clear`."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, get_metrics

pytestmark = pytest.mark.usefixtures("clock")


class Source(abc.ABC):
    @abc.abstractmethod
    async def orders(self, limit: int = 10) -> str: ...


class Shop(Source):
    """A shop that counts the runs of its tools."""

    runs = 0

    def __init__(self, name: str = "shop") -> None:
        self.name = name

    @AgentCache("orders")
    async def orders(self, limit: int = 10) -> str:
        Shop.runs += 1
        return f"{self.name} {limit} {Shop.runs}"

    @AgentCache("orders", skip_args=1)
    async def shared(self, limit: int = 10) -> str:
        Shop.runs += 1
        return f"any {limit} {Shop.runs}"

    @classmethod
    @AgentCache("orders")
    async def of_all(cls, limit: int = 10) -> str:
        Shop.runs += 1
        return f"{cls.__name__} {limit} {Shop.runs}"

    @staticmethod
    @AgentCache("orders")
    async def anywhere(limit: int = 10) -> str:
        Shop.runs += 1
        return f"anywhere {limit} {Shop.runs}"

    @AgentCacheInvalidator("orders")
    async def cancel(self, limit: int = 10) -> str:
        return f"{self.name} {limit}"

    first = functools.partialmethod(orders, 1)


class Depot(Shop):
    pass


class Stand(Shop):
    async def orders(self, limit: int = 10) -> str:
        return "stand over " + await super().orders(limit)


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str

    @AgentCache("orders")
    async def orders(self, limit: int = 10) -> str:
        return f"{self.name} {limit}"


WITHOUT_RECEIVER = [((2,), {}), (("7", 2), {}), ((None,), {}), ((), {"limit": 2}), ((), {}), ((Shop, 2), {})]
ATTRIBUTES = ["cache_key", "invalidate", "fresh", "refresh", "contains"]
RECEIVERS: dict[str, Callable[[], Any]] = {
    "an instance": Shop,
    "one of a subclass": Depot,
    "one of a subclass that overrides it": Stand,
    "one of a class made anew by its decorator": lambda: Slotted("slotted"),
    "an autospecced mock": lambda: mock.create_autospec(Shop("spec"), instance=True),
}


async def used(attribute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of an attribute, awaited if it is to be."""
    result = attribute(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


# -- Methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("name", ["orders", "shared"])
@pytest.mark.parametrize("call", WITHOUT_RECEIVER)
async def test_an_attribute_never_takes_an_argument_for_the_instance(attribute: str, name: str, call: Any):
    args, kwargs = call
    shop = Shop()
    for owner in (shop, Shop, super(Stand, Stand())):
        with pytest.raises(TypeError, match=rf"Shop\.{name}\.{attribute.removeprefix('re')}\(shop, \.\.\.\)"):
            await used(getattr(getattr(owner, name), attribute), *args, **kwargs)
    assert get_metrics()["calls"] == 0


@pytest.mark.parametrize("kind", RECEIVERS)
async def test_an_attribute_takes_the_instance_as_first_argument(kind: str):
    receiver = RECEIVERS[kind]()
    method = type(receiver).orders if isinstance(receiver, Slotted) else Shop.orders
    assert method.cache_key(receiver, 2) == method.cache_key(self=receiver, limit=2) != method.cache_key(receiver, 3)
    assert method.contains(receiver, 2) is False
    value = await method.fresh(receiver, 2)
    assert method.contains(receiver, 2) is True
    assert await method(receiver, 2) == value
    assert await method.invalidate(receiver, 2) is True
    assert method.contains(receiver, 2) is False


# -- contains ------------------------------------------------------------------------------------------------


@AgentCache("order:{order_id}", ttl=10, maxsize=2)
async def get_order(order_id: Any, *, full: bool = False) -> dict[str, Any]:
    return {"id": order_id, "full": full}


@AgentCacheInvalidator("order:{order_id}")
async def cancel_order(order_id: str) -> None: ...


@AgentCache("cart", "session", maxsize=3)
async def get_cart(user_id: str) -> str:
    return user_id


async def test_contains_looks_where_a_call_would():
    assert get_cart.contains("u") is False
    async with AgentCacheSession() as outer:
        await get_cart("u")
        assert get_cart.contains("u") is True
        async with AgentCacheSession():
            assert get_cart.contains("u") is False
        assert get_cart.contains("u") is True
        del outer
    assert get_cart.contains("u") is False
    async with AgentCacheSession(tenant="a"):
        await get_order("1")
        assert get_order.contains("1") is True
    async with AgentCacheSession(tenant="b"):
        assert get_order.contains("1") is False
    assert get_order.contains("1") is False


# -- cache_info ----------------------------------------------------------------------------------------------


async def test_cache_info_reads_as_that_of_functools():
    @functools.lru_cache(maxsize=2)
    def model(order_id: str) -> str:
        return order_id

    get_order.clear()
    for order_id in "11232":
        model(order_id)
        await get_order(order_id)
    assert get_order.cache_info() == model.cache_info() == (2, 3, 2, 2)
    assert get_order.cache_info()._fields == model.cache_info()._fields
    assert get_order.clear() == 2
    assert get_order.cache_info() == (2, 3, 2, 0)
    assert "hits=2, misses=3, maxsize=2, currsize=0" in repr(get_order.cache_info())


def test_a_write_has_none_of_them():
    assert not any(hasattr(cancel_order, name) for name in (*ATTRIBUTES, "clear", "cache_info"))
