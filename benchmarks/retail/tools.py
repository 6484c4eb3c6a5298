"""The store's tools as an agent calls them: async, with latency, and decorated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from benchmarks.retail.policies import Policy, is_refusal

Tool: TypeAlias = Callable[..., Awaitable[str]]
Latency: TypeAlias = Callable[[], Awaitable[None]]
RandomLatency: TypeAlias = Callable[[random.Random], Awaitable[None]]

# In seconds, waited twice by every executed tool. Long enough that at 16 sessions most calls overlap some write, short
# enough that the 4,145 calls of one policy take seconds even in sequence.
LONGEST_SLEEP = 0.002
MOST_TURNS = 8


async def no_latency() -> None:
    """Return at once."""


async def short_sleep(chance: random.Random) -> None:
    """Sleep up to two milliseconds, so that the time saved by the cache can be measured."""
    await asyncio.sleep(chance.uniform(0.0, LONGEST_SLEEP))


async def some_turns(chance: random.Random) -> None:
    """Await a few turns of the event loop: calls overlap as much, and a seed always gives the same interleaving."""
    for _ in range(chance.randint(0, MOST_TURNS)):
        await asyncio.sleep(0)


class Backend(Protocol):
    """Runs the tools' calls: a store, or a connection to one."""

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool and return its text."""


def make_tools(
    backend: Backend,
    *,
    policy: Policy,
    latency: Latency = no_latency,
    change: Callable[[Tool], Tool] = lambda tool: tool,
    remote: RemotePolicy | None = None,
) -> dict[str, Tool]:
    """Every tool of the store by name, wrapped by `change` and then decorated by the policy.

    `remote` is the remote policy of the tools that read.

    The latency is awaited twice, before and after the call of the backend: a write takes effect in the middle of the
    call, and a read has its result some time before it returns. These are the moments at which a cache goes wrong.
    """

    async def ask(tool: str, **arguments: Any) -> str:
        await latency()
        text = backend.answer(tool, arguments)
        await latency()
        return text

    async def get_user_details(user_id: str) -> str:
        return await ask("get_user_details", user_id=user_id)

    async def get_order_details(order_id: str) -> str:
        return await ask("get_order_details", order_id=order_id)

    async def get_product_details(product_id: str) -> str:
        return await ask("get_product_details", product_id=product_id)

    async def find_user_id_by_name_zip(first_name: str, last_name: str, zip: str) -> str:  # noqa: A002 - the tool's own name
        return await ask("find_user_id_by_name_zip", first_name=first_name, last_name=last_name, zip=zip)

    async def find_user_id_by_email(email: str) -> str:
        return await ask("find_user_id_by_email", email=email)

    async def list_all_product_types() -> str:
        return await ask("list_all_product_types")

    async def calculate(expression: str) -> str:
        return await ask("calculate", expression=expression)

    async def think(thought: str) -> str:
        return await ask("think", thought=thought)

    async def transfer_to_human_agents(summary: str) -> str:
        return await ask("transfer_to_human_agents", summary=summary)

    async def cancel_pending_order(order_id: str, reason: str) -> str:
        return await ask("cancel_pending_order", order_id=order_id, reason=reason)

    async def modify_pending_order_items(
        order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        return await ask(
            "modify_pending_order_items",
            order_id=order_id,
            item_ids=item_ids,
            new_item_ids=new_item_ids,
            payment_method_id=payment_method_id,
        )

    async def modify_pending_order_payment(order_id: str, payment_method_id: str) -> str:
        return await ask("modify_pending_order_payment", order_id=order_id, payment_method_id=payment_method_id)

    async def modify_pending_order_address(
        order_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,  # noqa: A002 - the tool's own name
    ) -> str:
        return await ask(
            "modify_pending_order_address",
            order_id=order_id,
            address1=address1,
            address2=address2,
            city=city,
            state=state,
            country=country,
            zip=zip,
        )

    async def modify_user_address(
        user_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,  # noqa: A002 - the tool's own name
    ) -> str:
        return await ask(
            "modify_user_address",
            user_id=user_id,
            address1=address1,
            address2=address2,
            city=city,
            state=state,
            country=country,
            zip=zip,
        )

    async def return_delivered_order_items(order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        return await ask(
            "return_delivered_order_items",
            order_id=order_id,
            item_ids=item_ids,
            payment_method_id=payment_method_id,
        )

    async def exchange_delivered_order_items(
        order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        return await ask(
            "exchange_delivered_order_items",
            order_id=order_id,
            item_ids=item_ids,
            new_item_ids=new_item_ids,
            payment_method_id=payment_method_id,
        )

    tools: list[Callable[..., Any]] = [
        get_user_details,
        get_order_details,
        get_product_details,
        find_user_id_by_name_zip,
        find_user_id_by_email,
        list_all_product_types,
        calculate,
        think,
        transfer_to_human_agents,
        cancel_pending_order,
        modify_pending_order_items,
        modify_pending_order_payment,
        modify_pending_order_address,
        modify_user_address,
        return_delivered_order_items,
        exchange_delivered_order_items,
    ]
    return {tool.__name__: _decorated(change(tool), policy, remote or RemotePolicy()) for tool in tools}


def _decorated(tool: Callable[..., Any], policy: Policy, remote: RemotePolicy) -> Tool:
    """Decorate one tool.

    Unbounded, so that the hit rate depends on invalidations and not on the bound. Results that say "not found" are
    cached as well, because each is tagged with the entity whose change would make it wrong.
    """
    name = f"retail:{tool.__name__}"
    decorated: Tool = tool
    if tool.__name__ in policy.reads:
        decorated = AgentCache(policy.reads[tool.__name__], maxsize=None, name=name, remote=remote)(tool)
    elif tool.__name__ in policy.writes:
        decorated = AgentCacheInvalidator(policy.writes[tool.__name__], ok=_is_success, name=name)(tool)
    return decorated


def _is_success(result: str) -> bool:
    return not is_refusal(result)
