"""What the agents do, and when: five acts, each there for one thing that a cache may get wrong."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from agent_cache._demo.agent import Agent
from agent_cache._demo.chronicle import Act
from agent_cache._demo.tools import ShopTools, Tool

__all__ = ["ACTS", "CAST", "LENGTH"]

ACTS = (
    Act("look around", 0.0, "The first to ask waits for the store; whoever asks later does not."),
    Act("burst", 1.7, "All five ask for the same product at once: one run, one answer, shared."),
    Act("overlap", 2.7, "A price changes while Ben reads it: he may see the old one, nobody later."),
    Act("result tags", 4.1, "A cancelled order drops what its result names: its customer and its product."),
    Act("loop", 5.7, "Eve asks the same again and again: stopped at the fifth equal answer."),
)
LENGTH = 7.0
"""Seconds that the whole takes, give or take the latencies."""

LOOK_AROUND, BURST, OVERLAP, RESULT_TAGS, LOOP = (act.begins for act in ACTS)
MIA = "mia@example.com"


async def ada(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Support: looks after Mia, and cancels an order of hers."""
    await agent.call(shop.find_customer, MIA)
    await agent.think()
    await agent.call(shop.list_orders, "mia")
    await agent.think()
    await agent.call(shop.get_order, 1001)
    await browse(agent, shop, chance)

    await burst(agent, shop)

    await agent.until(OVERLAP + 0.55)
    await agent.call(shop.get_product, "bag")
    await agent.think()
    await agent.call(shop.find_customer, MIA)

    await agent.until(RESULT_TAGS)
    await agent.call(shop.list_orders, "mia")
    await agent.think()
    await agent.call(shop.cancel_order, 1001)
    await agent.think()
    await agent.call(shop.list_orders, "mia")
    await agent.think()
    await agent.call(shop.get_customer, "mia")

    await agent.until(LOOP + 0.05)
    await browse(agent, shop, chance)


async def ben(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Sales: reads a price while it changes, and sells a lamp."""
    await agent.call(shop.list_products)
    await agent.think()
    await agent.call(shop.get_product, "mug")
    await agent.think()
    await agent.call(shop.get_product, "lamp")
    await browse(agent, shop, chance)

    await burst(agent, shop)

    await agent.until(OVERLAP)
    await agent.call(shop.get_product, "bag")
    await agent.until(OVERLAP + 0.75)
    await agent.call(shop.get_product, "bag")
    await agent.think()
    await agent.call(shop.list_products)

    await agent.until(RESULT_TAGS)
    await agent.call(shop.find_customer, MIA)
    await agent.until(RESULT_TAGS + 0.6)
    await agent.call(shop.find_customer, MIA)
    await agent.think()
    await agent.call(shop.get_customer, "noah")

    await agent.until(LOOP)
    await agent.call(shop.place_order, "noah", "lamp")
    await agent.think()
    await agent.call(shop.get_customer, "noah")
    await agent.think()
    await agent.call(shop.list_products)


async def cleo(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Pricing: changes a price while it is being read."""
    await agent.until(LOOK_AROUND + 0.45)
    await agent.call(shop.list_products)
    await agent.think()
    await agent.call(shop.get_product, "mug")
    await browse(agent, shop, chance)

    await burst(agent, shop)

    await agent.until(OVERLAP + 0.08)
    await agent.call(shop.set_price, "bag", 49)
    await agent.think(0.05)
    await agent.call(shop.get_product, "bag")
    await agent.think()
    await agent.call(shop.list_products)

    await agent.until(RESULT_TAGS + 0.05)
    await agent.call(shop.get_product, "mug")
    await agent.until(RESULT_TAGS + 0.65)
    await agent.call(shop.get_product, "mug")
    await agent.think()
    await agent.call(shop.get_product, "radio")

    await agent.until(LOOP + 0.1)
    await browse(agent, shop, chance)


async def dev(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Warehouse: watches orders, and ships one."""
    await agent.until(LOOK_AROUND + 0.1)
    await agent.call(shop.get_order, 1001)
    await agent.think()
    await agent.call(shop.get_order, 1003)
    await agent.think()
    await agent.call(shop.list_products)
    await browse(agent, shop, chance)

    await burst(agent, shop)

    await agent.until(OVERLAP + 0.2)
    await agent.call(shop.get_order, 1002)
    await agent.until(OVERLAP + 0.9)
    await agent.call(shop.get_product, "bag")

    await agent.until(RESULT_TAGS + 0.1)
    await agent.call(shop.get_order, 1001)
    await agent.until(RESULT_TAGS + 0.7)
    await agent.call(shop.get_order, 1001)
    await agent.think()
    await agent.call(shop.get_order, 1003)

    await agent.until(LOOP + 0.15)
    await agent.call(shop.ship_order, 1003)
    await agent.think()
    await agent.call(shop.get_order, 1003)


async def eve(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Follow-up: means well, and ends up waiting for an order that does not move."""
    await agent.until(LOOK_AROUND + 0.6)
    await agent.call(shop.find_customer, MIA)
    await agent.think()
    await agent.call(shop.get_customer, "zoe")
    await browse(agent, shop, chance)

    await burst(agent, shop)

    await agent.until(OVERLAP + 0.15)
    await agent.call(shop.get_product, "lamp")
    await agent.until(OVERLAP + 0.95)
    await agent.call(shop.get_product, "bag")

    await agent.until(RESULT_TAGS + 0.7)
    await agent.call(shop.get_product, "lamp")
    await agent.think()
    await agent.call(shop.get_customer, "zoe")

    await agent.until(LOOP)
    while (await agent.call(shop.get_order, 1004))["status"] == "pending":
        await agent.think(0.2)


async def browse(agent: Agent, shop: ShopTools, chance: Random) -> None:
    """Read a few records, each once: what they are is the one thing that a seed decides, beside the latencies."""
    records: list[tuple[Tool, object]] = [
        (shop.get_product, "lamp"),
        (shop.get_order, 1002),
        (shop.list_orders, "noah"),
        (shop.get_customer, "noah"),
    ]
    for tool, key in chance.sample(records, 3):
        await agent.think(0.08)
        await agent.call(tool, key)


async def burst(agent: Agent, shop: ShopTools) -> None:
    """Ask what everybody else is asking at this moment, and once more when it is known."""
    await agent.until(BURST)
    await agent.call(shop.get_product, "radio")
    await agent.until(BURST + 0.5)
    await agent.call(shop.get_product, "radio")


CAST: dict[str, Callable[[Agent, ShopTools, Random], Coroutine[Any, Any, None]]] = {
    "Ada": ada,
    "Ben": ben,
    "Cleo": cleo,
    "Dev": dev,
    "Eve": eve,
}
