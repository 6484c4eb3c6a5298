"""The shop's tools as an agent has them: asynchronous, slow, and decorated."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from
from agent_cache._demo.shop import Row, Shop

__all__ = ["ForgetfulTools", "ShopTools", "Tool", "tags_written"]

R = TypeVar("R")

Tool = Callable[..., Coroutine[Any, Any, Any]]

READING = 0.24
WRITING = 0.32
"""Seconds that a call of the store takes, there and back, give or take a fifth."""


class ShopTools:
    """What the agents may call.

    Args:
        shop: answers at once, half-way through the call: a request travels, is served, and its reply travels back. A
            write therefore has an effect that its caller has not been told of yet, which is when caches go wrong.
        chance: where the latencies come from.
    """

    def __init__(self, shop: Shop, chance: Random) -> None:
        self._shop = shop
        self._chance = chance

    @AgentCache("customer:{result[id]}")  # which customer it depends on shows only in what it found
    async def find_customer(self, email: str) -> Row:
        """The customer with this address."""
        return await self._served(READING, self._shop.find_customer, email)

    @AgentCache("customer:{customer_id}")
    async def get_customer(self, customer_id: str) -> Row:
        """One customer, with the balance."""
        return await self._served(READING, self._shop.get_customer, customer_id)

    @AgentCache("product:{product_id}")
    async def get_product(self, product_id: str) -> Row:
        """One product, with price and stock."""
        return await self._served(READING, self._shop.get_product, product_id)

    @AgentCache("product")  # every product: a write to any of them drops it
    async def list_products(self) -> list[Row]:
        """The whole catalogue."""
        return await self._served(READING, self._shop.list_products)

    @AgentCache("order:{order_id}")
    async def get_order(self, order_id: int) -> Row:
        """One order."""
        return await self._served(READING, self._shop.get_order, order_id)

    @AgentCache(["customer:{customer_id}", tags_from("order", lambda _, result: [order["id"] for order in result])])
    async def list_orders(self, customer_id: str) -> list[Row]:
        """All orders of a customer."""
        return await self._served(READING, self._shop.list_orders, customer_id)

    @AgentCacheInvalidator("product:{product_id}")
    async def set_price(self, product_id: str, price: int) -> Row:
        """Give a product a new price."""
        return await self._served(WRITING, self._shop.set_price, product_id, price)

    @AgentCacheInvalidator(["customer:{customer_id}", "product:{product_id}"])
    async def place_order(self, customer_id: str, product_id: str) -> Row:
        """Buy one piece of a product."""
        return await self._served(WRITING, self._shop.place_order, customer_id, product_id)

    @AgentCacheInvalidator(["order:{order_id}", "customer:{result[customer_id]}", "product:{result[product_id]}"])
    async def cancel_order(self, order_id: int) -> Row:
        """Take an order back: the customer is refunded, and the piece is in stock again."""
        return await self._served(WRITING, self._shop.cancel_order, order_id)

    @AgentCacheInvalidator("order:{order_id}")
    async def ship_order(self, order_id: int) -> Row:
        """Send an order off."""
        return await self._served(WRITING, self._shop.ship_order, order_id)

    async def _served(self, latency: float, serve: Callable[..., R], *arguments: object) -> R:
        there, back = (latency / 2 * self._chance.uniform(0.8, 1.2) for _ in range(2))
        await asyncio.sleep(there)
        answer = serve(*arguments)
        await asyncio.sleep(back)
        return answer


class ForgetfulTools(ShopTools):
    """The same, with a price change that nobody told the cache of: what the check of the answers is there to catch."""

    async def set_price(self, product_id: str, price: int) -> Row:
        """Give a product a new price."""
        return await self._served(WRITING, self._shop.set_price, product_id, price)


def tags_written(tool: Tool, arguments: tuple[object, ...], result: object) -> tuple[str, ...]:
    """The tags that a call of a write tool has dropped, filled in: for people to read."""
    resource = getattr(tool, "resource", ())
    templates = (resource,) if isinstance(resource, str) else resource
    given = dict(zip(inspect.signature(tool).parameters, arguments, strict=False))
    return tuple(template.format(**given, result=result) for template in templates)
