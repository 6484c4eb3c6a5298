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


_ADDRESS = "address1: str, address2: str, city: str, state: str, country: str, zip: str"
_SIGNATURES = {
    "get_user_details": "user_id: str",
    "get_order_details": "order_id: str",
    "get_product_details": "product_id: str",
    "find_user_id_by_name_zip": "first_name: str, last_name: str, zip: str",
    "find_user_id_by_email": "email: str",
    "list_all_product_types": "",
    "calculate": "expression: str",
    "think": "thought: str",
    "transfer_to_human_agents": "summary: str",
    "cancel_pending_order": "order_id: str, reason: str",
    "modify_pending_order_items": (
        "order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str"
    ),
    "modify_pending_order_payment": "order_id: str, payment_method_id: str",
    "modify_pending_order_address": f"order_id: str, {_ADDRESS}",
    "modify_user_address": f"user_id: str, {_ADDRESS}",
    "return_delivered_order_items": "order_id: str, item_ids: list[str], payment_method_id: str",
    "exchange_delivered_order_items": (
        "order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str"
    ),
}
"""The store's tools and their parameters."""


def functions_with(body: str, **names: Any) -> dict[str, Callable[..., Any]]:
    """The tools as functions with their signatures and this one line, in which ``{name}`` is that of the tool and
    ``{arguments}`` are the items of a dict with its arguments. A common function that all call would be a cost of its
    own.
    """
    scope = dict(names)
    for name, signature in _SIGNATURES.items():
        parameters = [one.partition(":")[0].strip() for one in signature.split(", ") if one]
        line = body.format(name=name, arguments=", ".join(f"'{one}': {one}" for one in parameters))
        exec(f"async def {name}({signature}): {line}", scope)
    return {name: scope[name] for name in _SIGNATURES}


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

    async def ask(tool: str, arguments: Mapping[str, Any]) -> str:
        await latency()
        text = backend.answer(tool, arguments)
        await latency()
        return text

    tools = functions_with("return await ask('{name}', {{{arguments}}})", ask=ask)
    return {name: _decorated(change(tool), policy, remote or RemotePolicy()) for name, tool in tools.items()}


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
