"""Days of a shop: the calls of its agents, as they were interleaved, and the shop itself to play them in.

The tools: `get_order` and `get_user` read; `cancel_order` changes the order, and the balance of a user who stands only
in its answer; `set_address` changes a user; `list_products` never changes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Call = dict[str, Any]


class Shop:
    """The state of a shop, and its tools."""

    def __init__(self, users: int = 8, orders: int = 24) -> None:
        self.users = {f"user_{n:03}": {"address": f"{n} Old Street", "balance": 0} for n in range(users)}
        names = list(self.users)
        self.orders = {
            f"#W{1000 + n}": {"user_id": names[n % users], "status": "pending", "total": 10 + n} for n in range(orders)
        }

    def get_order(self, order_id: str) -> dict[str, Any]:
        return {"order_id": order_id, **self.orders[order_id]}

    def get_user(self, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id, **self.users[user_id]}

    def list_products(self) -> list[str]:
        return ["tea", "coffee"]

    def cancel_order(self, order_id: str, reason: str) -> dict[str, Any]:
        order = self.orders[order_id]
        if order["status"] != "pending":
            raise ValueError("it is not pending")
        order["status"] = "cancelled"
        self.users[order["user_id"]]["balance"] += order["total"]
        return {"order_id": order_id, **order}

    def set_address(self, user_id: str, address: str) -> dict[str, Any]:
        self.users[user_id]["address"] = address
        return {"user_id": user_id, "address": address}


def conversation(shop: Shop, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """What one agent calls."""
    order_id = chance.choice(list(shop.orders))
    user_id = shop.orders[order_id]["user_id"]
    yield "get_user", {"user_id": user_id}
    yield "list_products", {}
    for _ in range(chance.randint(1, 3)):
        yield "get_order", {"order_id": order_id}
        yield "get_order", {"order_id": chance.choice(list(shop.orders))}
        yield "get_user", {"user_id": chance.choice(list(shop.users))}
    if chance.random() < 0.5:
        yield "cancel_order", {"order_id": order_id, "reason": "no longer needed"}
    else:
        yield "set_address", {"user_id": user_id, "address": f"{chance.randint(1, 99)} New Street"}
    yield "get_order", {"order_id": order_id}
    yield "get_user", {"user_id": user_id}


def day(seed: int = 1, agents: int = 60) -> list[Call]:
    """The calls of a day, in the order in which they ended: ``tool, arguments, result or error, time, run``."""
    chance, shop = random.Random(seed), Shop()
    running = {f"run-{n:03}": conversation(shop, chance) for n in range(agents)}
    time, calls = 1_790_000_000.0, []
    while running:
        run = chance.choice(list(running)[:6])
        step = next(running[run], None)
        if step is None:
            del running[run]
            continue
        tool, arguments = step
        time += 1
        call: Call = {"tool": tool, "arguments": arguments, "time": time, "run": run}
        try:
            call["result"] = getattr(shop, tool)(**arguments)
        except ValueError as error:
            call["error"] = f"ValueError: {error}"
        calls.append(call)
    return calls


def written(path: Path, calls: Iterable[Call]) -> Path:
    """A log of these calls, as JSON Lines."""
    path.write_text("".join(f"{json.dumps(call)}\n" for call in calls), "utf-8")
    return path
