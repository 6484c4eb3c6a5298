"""What the retail store answers to each of its tools, without any cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from benchmarks.retail.calculator import calculate
from benchmarks.retail.records import (
    Record,
    RefusedError,
    Table,
    address_record,
    check_covers,
    first_not_ordered,
    found,
    item_of,
    payment_entry,
)

READ_TOOLS = (
    "get_user_details",
    "get_order_details",
    "get_product_details",
    "find_user_id_by_name_zip",
    "find_user_id_by_email",
    "list_all_product_types",
    "calculate",
)
WRITE_TOOLS = (
    "cancel_pending_order",
    "modify_pending_order_items",
    "modify_pending_order_payment",
    "modify_pending_order_address",
    "modify_user_address",
    "return_delivered_order_items",
    "exchange_delivered_order_items",
)
OTHER_TOOLS = ("think", "transfer_to_human_agents")
TOOLS = READ_TOOLS + WRITE_TOOLS + OTHER_TOOLS

_CANCEL_REASONS = ("no longer needed", "ordered by mistake")


class RetailStore:
    """The retail store: three tables, and every tool as a method that answers in text.

    A write *replaces* the records it changes and never mutates one. So a fresh copy of the whole store costs two
    shallow copies of a table (a thousand runs each get their own), and a write shows only when its checks are done.
    `version` counts the writes that were not refused.
    """

    def __init__(self, users: Table, orders: Table, products: Table) -> None:
        self.users = dict(users)
        self.orders = dict(orders)
        self.products = products
        self.version = 0

    def copy(self) -> RetailStore:
        """A store in the same state that no write to this one reaches."""
        return RetailStore(self.users, self.orders, self.products)

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool. A failed check answers `Error: ...`, as the real tools do, and never raises."""
        if tool not in TOOLS:
            raise LookupError(f"{tool!r} is no tool of the store")
        try:
            text: str = getattr(self, tool)(**arguments)
        except RefusedError as refusal:
            return f"Error: {refusal}"
        return text

    def owner_of(self, order_id: str) -> str | None:
        """Whose order it is, which no write changes. No tool: what the application around the tools knows anyway."""
        order = self.orders.get(order_id)
        return None if order is None else order["user_id"]

    # reads

    def get_user_details(self, user_id: str) -> str:
        return json.dumps(found(self.users, user_id, "user"))

    def get_order_details(self, order_id: str) -> str:
        return json.dumps(found(self.orders, order_id, "order"))

    def get_product_details(self, product_id: str) -> str:
        return json.dumps(found(self.products, product_id, "product"))

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:  # noqa: A002 - the tool's own name
        wanted = (first_name.lower(), last_name.lower(), zip)
        for user_id, user in self.users.items():
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return user_id
        raise RefusedError("user not found")

    def find_user_id_by_email(self, email: str) -> str:
        for user_id, user in self.users.items():
            if user["email"].lower() == email.lower():
                return user_id
        raise RefusedError("user not found")

    def list_all_product_types(self) -> str:
        return json.dumps(dict(sorted((product["name"], id_) for id_, product in self.products.items())))

    def calculate(self, expression: str) -> str:
        return calculate(expression)

    # neither

    def think(self, thought: str) -> str:
        return ""

    def transfer_to_human_agents(self, summary: str) -> str:
        return "Transfer successful"

    # writes

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        order = self._pending(order_id, "cancelled")
        if reason not in _CANCEL_REASONS:
            raise RefusedError("invalid reason")
        refunds = [
            payment_entry("refund", paid["amount"], paid["payment_method_id"]) for paid in order["payment_history"]
        ]
        for refund in refunds:
            self._move_balance(order["user_id"], refund["payment_method_id"], refund["amount"])
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        order["payment_history"].extend(refunds)
        return self._put(self.orders, order_id, order)

    def modify_pending_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> str:
        order = self._pending(order_id, "modified")
        difference = self._price_difference(order, item_ids, new_item_ids)
        method = self._payment_method(order, payment_method_id)
        check_covers(method, difference, "the new item")
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(payment_entry(kind, abs(difference), payment_method_id))
        self._move_balance(order["user_id"], payment_method_id, -difference)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = item_of(order, item_id)
            variant = self.products[item["product_id"]]["variants"][new_item_id]
            item.update(item_id=new_item_id, price=variant["price"], options=variant["options"])
        order["status"] = "pending (item modified)"
        return self._put(self.orders, order_id, order)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        order = self._pending(order_id, "modified")
        method = self._payment_method(order, payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise RefusedError("there should be exactly one payment for a pending order")
        amount, old_method_id = history[0]["amount"], history[0]["payment_method_id"]
        if old_method_id == payment_method_id:
            raise RefusedError("the new payment method should be different from the current one")
        check_covers(method, amount, "the order")
        history += [payment_entry("payment", amount, payment_method_id), payment_entry("refund", amount, old_method_id)]
        self._move_balance(order["user_id"], payment_method_id, -amount)
        self._move_balance(order["user_id"], old_method_id, amount)
        return self._put(self.orders, order_id, order)

    def modify_pending_order_address(self, order_id: str, **address: str) -> str:
        order = self._pending(order_id, "modified")
        order["address"] = address_record(**address)
        return self._put(self.orders, order_id, order)

    def modify_user_address(self, user_id: str, **address: str) -> str:
        user = {**found(self.users, user_id, "user"), "address": address_record(**address)}
        return self._put(self.users, user_id, user)

    def return_delivered_order_items(self, order_id: str, item_ids: Sequence[str], payment_method_id: str) -> str:
        order = self._delivered(order_id, "returned")
        method = self._payment_method(order, payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise RefusedError("payment method should be either the original payment method or a gift card")
        if first_not_ordered(order, item_ids) is not None:
            raise RefusedError("some item not found")
        order["status"] = "return requested"
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return self._put(self.orders, order_id, order)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> str:
        order = self._delivered(order_id, "exchanged")
        difference = round(self._price_difference(order, item_ids, new_item_ids), 2)
        method = self._payment_method(order, payment_method_id)
        check_covers(method, difference, "the price difference")
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return self._put(self.orders, order_id, order)

    # what the writes have in common

    def _pending(self, order_id: str, verb: str) -> Record:
        return self._order_to_change(order_id, "pending", verb)

    def _delivered(self, order_id: str, verb: str) -> Record:
        return self._order_to_change(order_id, "delivered", verb)

    def _order_to_change(self, order_id: str, status: str, verb: str) -> Record:
        """A private copy of the order: nothing is visible before `_put`."""
        order = found(self.orders, order_id, "order")
        if order["status"] != status:
            raise RefusedError(f"non-{status} order cannot be {verb}")
        return deepcopy(order)

    def _put(self, table: Table, key: str, record: Record) -> str:
        table[key] = record
        self.version += 1
        return json.dumps(record)

    def _payment_method(self, order: Record, payment_method_id: str) -> Record:
        methods: Table = self.users[order["user_id"]]["payment_methods"]
        return found(methods, payment_method_id, "payment method")

    def _move_balance(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Raise a gift card's balance by `amount` (lower it if negative); other methods hold no balance."""
        user = self.users[user_id]
        method = user["payment_methods"].get(payment_method_id, {})
        if method.get("source") == "gift_card":
            moved = {**method, "balance": round(method["balance"] + amount, 2)}
            self.users[user_id] = {**user, "payment_methods": {**user["payment_methods"], payment_method_id: moved}}

    def _price_difference(self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> float:
        excess = first_not_ordered(order, item_ids)
        if excess is not None:
            raise RefusedError(f"{excess} not found")
        if len(item_ids) != len(new_item_ids):
            raise RefusedError("the number of items to be exchanged should match")
        difference = 0.0
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = item_of(order, item_id)
            variant = self.products[item["product_id"]]["variants"].get(new_item_id)
            if variant is None or not variant["available"]:
                raise RefusedError(f"new item {new_item_id} not found or available")
            difference += variant["price"] - item["price"]
        return difference
