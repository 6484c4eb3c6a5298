"""Tools as a user's module has them: annotations that are text, types that only this module knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_cache import AgentCache, AgentCacheInvalidator

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Order:
    order_id: str
    lines: list[str]


def plain_functions() -> dict[str, Callable[..., Any]]:
    """Undecorated tools of every shape of signature."""

    async def get_order(order_id: str, *, verbose: bool = False) -> Order:
        """Look an order up.

        Args:
            order_id: its number.
        """
        return Order(order_id, [])

    async def positional(a: int, /, b: int = 2, *args: str, c: Order | None = None, **kwargs: int) -> list[Order]:
        """Every kind of parameter."""
        return []

    async def defaults(a: list[int] = [1], b: Order = Order("1", []), c: object = print) -> dict[str, Order]:  # noqa: B006, B008
        """Defaults that no literal can spell."""
        return {}

    async def bare(a, b=1):  # type: ignore[no-untyped-def]
        return a

    async def nothing() -> None:
        """Takes nothing."""

    async def shadowing(key: str, entry: int, scope: str, type: str, value: int, str: str, store: int) -> str:
        """Parameters that are called as a generated body might call its own names."""
        return key

    return {function.__name__: function for function in (get_order, positional, defaults, bare, nothing, shadowing)}


def make_shop() -> type:
    class Shop:
        """A class whose methods are tools."""

        name = "shop"

        @AgentCache("stock:{item}")
        async def stock(self, item: str, *, at: Order | None = None) -> list[Order]:
            """How much there is."""
            return [Order(item, [self.name])]

        @AgentCacheInvalidator("stock:{item}")
        async def take(self, item: str) -> Order:
            """Take one."""
            return Order(item, [])

        @staticmethod
        @AgentCache("price:{item}")
        async def price(item: str, currency: str = "EUR") -> Order:
            """What it costs."""
            return Order(item, [currency])

        @classmethod
        @AgentCache("label")
        async def label(cls, item: str) -> Order:
            """What it is called."""
            return Order(item, [cls.name])

    return Shop
