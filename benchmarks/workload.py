"""Tools and arguments shared by all measurements, of agent_cache and of the caches it is compared with.

Each `..._tool` function returns a new undecorated tool, so that no two subjects share a code object (see
`timing.calling`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

ScalarTool = Callable[[str], Coroutine[Any, Any, str]]
FilterTool = Callable[[dict[str, Any]], Coroutine[Any, Any, str]]
FlatTool = Callable[[str], Coroutine[Any, Any, dict[str, Any]]]

USER = "sara_doe_496"
CARD = "gift_card_3827561"
TTL = 3600.0

FILTERS: dict[str, Any] = json.loads('{"status": "pending", "price": {"min": 10, "max": 250}, "limit": 20}')
"""A nested argument as frameworks parse them from JSON: three keys, an object inside, four leaves."""

LARGER_FILTERS: dict[str, Any] = json.loads(
    '{"status": ["pending", "delivered"], "price": {"min": 10, "max": 250}, "sort": "created", "limit": 20}'
)
"""Four keys, a list and an object inside, six leaves."""


def scalar_tool() -> ScalarTool:
    """Takes a string and returns a constant string."""

    async def get_card(user_id: str) -> str:
        return CARD

    return get_card


def filter_tool() -> FilterTool:
    """Takes a nested dict and returns a constant string."""

    async def search(filters: dict[str, Any]) -> str:
        return CARD

    return search


def flat_tool() -> FlatTool:
    """Takes a string and returns a new flat dict of five scalars."""

    async def get_user(user_id: str) -> dict[str, Any]:
        return {"user_id": user_id, "name": "Sara Doe", "email": "sara@example.com", "orders": 4, "active": True}

    return get_user


def tree(order_id: str) -> dict[str, Any]:
    """A new tree: two levels of dicts and a list in a dict, twelve leaves."""
    return {
        "order_id": order_id,
        "user_id": USER,
        "status": "pending",
        "address": {"street": "Main Street 1", "city": "Springfield", "zip": "02134"},
        "items": [
            {"item_id": "6086499569", "name": "Bookshelf", "price": 539.25},
            {"item_id": "9408160950", "name": "Lamp", "price": 135.0},
        ],
    }


def tree_tool() -> FlatTool:
    """Takes a string and returns a new `tree`."""

    async def get_order(order_id: str) -> dict[str, Any]:
        return tree(order_id)

    return get_order


def new_ids(prefix: str) -> Callable[[int], Sequence[str]]:
    """A function that returns `n` ids, different ones in each call."""
    numbers = itertools.count()

    def batch(n: int) -> Sequence[str]:
        return [f"{prefix}{number}" for number in itertools.islice(numbers, n)]

    return batch


USERS = 100


def users_in_turn(n: int) -> Sequence[str]:
    """`n` ids that repeat after `USERS`."""
    return [f"user_{number % USERS}" for number in range(n)]


TASKS = 1_000
