"""Ways to tag the store's tools: the recommended one, and simpler ones to compare it with.

A policy is two tables: the tags that each read depends on, and those that each write changes. A tool in neither is left
undecorated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agent_cache import tags_from

Arguments: TypeAlias = Mapping[str, Any]
Owners: TypeAlias = Callable[[str], str | None]

# A template, a `tags_from`, or a list of them: passed to a decorator as it is.
Resource: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Policy:
    """The tags of one set of tools.

    `is_complete`: the writes name everything they change, so that no read may be stale.
    """

    name: str
    reads: Mapping[str, Resource] = field(default_factory=dict)
    writes: Mapping[str, Resource] = field(default_factory=dict)
    is_complete: bool = True


def found_user(arguments: Arguments, result: str) -> list[str]:
    """The user that a lookup found; no id if it found none, so that it depends on every user."""
    return [] if is_refusal(result) else [result]


def gift_card_owner(arguments: Arguments, result: str) -> list[str]:
    """The user whose record a write to an order changed: one who pays, or is refunded, by gift card."""
    if is_refusal(result):
        return []
    order = json.loads(result)
    by_card = any(entry["payment_method_id"].startswith("gift_card") for entry in order["payment_history"])
    return [order["user_id"]] if by_card else []


def is_refusal(result: str) -> bool:
    """Whether a tool of the store returned `Error: ...`, where a library would raise; nothing was changed then."""
    return result.startswith("Error: ")


_RECORDS: dict[str, Resource] = {
    "get_user_details": "user:{user_id}",
    "get_order_details": "order:{order_id}",
    "get_product_details": "product:{product_id}",
    "list_all_product_types": "product",
    "calculate": "arithmetic",
}
_ORDER_WRITES = (
    "cancel_pending_order",
    "modify_pending_order_items",
    "modify_pending_order_payment",
    "modify_pending_order_address",
    "return_delivered_order_items",
    "exchange_delivered_order_items",
)
# A return or an exchange is only requested: no balance moves before it is carried out, which no tool of the store does.
_MOVE_BALANCES = ("cancel_pending_order", "modify_pending_order_items", "modify_pending_order_payment")
_LOOKUPS = ("find_user_id_by_name_zip", "find_user_id_by_email")

_GOOD_READS = _RECORDS | {tool: tags_from("user", found_user) for tool in _LOOKUPS}


def tags_from_results(owner_of: Owners) -> Policy:
    """The recommended tags: by entity, a lookup by the user it found, and an order's writes also by the order's user.

    That user's record holds the gift card that receives a refund, but the user is not among the write's arguments, so
    tags from arguments alone miss it. The user of an order never changes and the application knows it (`owner_of`), so
    the tag is known *before* the call. While a write is running whose user only its result names, nothing can be stored
    for any user. The tag does not depend on whether a card paid for the order: that can change before the write.
    """

    def owner(arguments: Arguments) -> list[str]:
        user_id = owner_of(arguments["order_id"])
        return [] if user_id is None else [user_id]

    return _good_policy("tags from results", tags_from("user", owner))


def _good_policy(name: str, owner: Resource) -> Policy:
    return Policy(
        name=name,
        reads=_GOOD_READS,
        writes={
            **dict.fromkeys(_ORDER_WRITES, "order:{order_id}"),
            **{tool: ["order:{order_id}", owner] for tool in _MOVE_BALANCES},
            "modify_user_address": "user:{user_id}",
        },
    )


# The same without `owner_of`: the order's user is taken from the result of the write.
WRITES_FROM_RESULTS_TOO = _good_policy("... of writes too", tags_from("user", gift_card_owner))

TAGS_FROM_ARGUMENTS = Policy(
    name="tags from arguments",
    reads=_RECORDS
    | {
        "find_user_id_by_name_zip": "user_by_name:{first_name}:{last_name}:{zip}",
        "find_user_id_by_email": "user_by_email:{email}",
    },
    writes=dict.fromkeys(_ORDER_WRITES, "order:{order_id}") | {"modify_user_address": "user:{user_id}"},
    is_complete=False,
)

NO_INVALIDATION = Policy(name="no invalidation", reads=_GOOD_READS, is_complete=False)

CLEAR_EVERYTHING = Policy(
    name="clear everything",
    reads=dict.fromkeys(_GOOD_READS, "store"),
    writes=dict.fromkeys((*_ORDER_WRITES, "modify_user_address"), "store"),
)

WHOLE_RESOURCE = Policy(
    name="whole resource",
    reads={
        "get_user_details": "user",
        "get_order_details": "order",
        "get_product_details": "product",
        "list_all_product_types": "product",
        "calculate": "arithmetic",
        **dict.fromkeys(_LOOKUPS, "user"),
    },
    writes={
        **dict.fromkeys(_ORDER_WRITES, "order"),
        **{tool: ["order", "user"] for tool in _MOVE_BALANCES},
        "modify_user_address": "user",
    },
)

NO_CACHE = Policy(name="no cache")


def policies(owner_of: Owners) -> tuple[Policy, ...]:
    """All policies, the recommended one first."""
    return (
        tags_from_results(owner_of),
        WRITES_FROM_RESULTS_TOO,
        TAGS_FROM_ARGUMENTS,
        WHOLE_RESOURCE,
        CLEAR_EVERYTHING,
        NO_INVALIDATION,
        NO_CACHE,
    )
