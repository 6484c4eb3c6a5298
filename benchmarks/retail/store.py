"""The retail store without a cache: its records, its tools, and the database it starts from.

`benchmarks/data/RETAIL.md` describes the tools. With each run on a fresh copy of the database they return every
recorded result byte for byte.
"""

from __future__ import annotations

import ast
import gzip
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
Table: TypeAlias = dict[str, Record]

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


class RefusedError(Exception):
    """A tool's check failed and nothing was changed; the tool returns `Error: ...` with this text."""


class RetailStore:
    """The retail store: three tables, and every tool as a method that returns text.

    A write *replaces* the records it changes and never mutates one. So a copy of the whole store costs two shallow
    copies of a table (each of a thousand runs gets its own), and a write is visible only after all its checks.
    `version` counts the writes that were not refused.
    """

    def __init__(self, users: Table, orders: Table, products: Table) -> None:
        self.users = dict(users)
        self.orders = dict(orders)
        self.products = products
        self.version = 0

    def copy(self) -> RetailStore:
        """An independent store in the same state."""
        return RetailStore(self.users, self.orders, self.products)

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool. A failed check returns `Error: ...`, as in the real tools, and never raises."""
        if tool not in TOOLS:
            raise LookupError(f"{tool!r} is not a tool of the store")
        try:
            text: str = getattr(self, tool)(**arguments)
        except RefusedError as refusal:
            return f"Error: {refusal}"
        return text

    def owner_of(self, order_id: str) -> str | None:
        """The user of an order, which no write changes. Not a tool: an application knows it without a call."""
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

    # neither reads nor writes

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

    # shared by the writes

    def _pending(self, order_id: str, verb: str) -> Record:
        return self._order_to_change(order_id, "pending", verb)

    def _delivered(self, order_id: str, verb: str) -> Record:
        return self._order_to_change(order_id, "delivered", verb)

    def _order_to_change(self, order_id: str, status: str, verb: str) -> Record:
        """A private copy of the order; nothing is visible before `_put`."""
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


def load_store(directory: Path) -> RetailStore:
    """The store in the state in which every recorded run began."""
    return RetailStore(
        *(_load_table(directory / "retail_db" / f"{table}.json.gz") for table in ("users", "orders", "products"))
    )


def _load_table(path: Path) -> Table:
    with gzip.open(path, "rt", encoding="utf-8") as text:
        table: Table = json.load(text)
    return table


def found(table: Table, key: str, what: str) -> Record:
    try:
        return table[key]
    except KeyError:
        raise RefusedError(f"{what} not found") from None


def item_of(order: Record, item_id: str) -> Record:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def first_not_ordered(order: Record, item_ids: Sequence[str]) -> str | None:
    ordered = [item["item_id"] for item in order["items"]]
    return next((id_ for id_ in item_ids if item_ids.count(id_) > ordered.count(id_)), None)


def payment_entry(kind: str, amount: float, payment_method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}


def address_record(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:  # noqa: A002 - the tool's own name
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}


def check_covers(method: Record, amount: float, what: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise RefusedError(f"insufficient gift card balance to pay for {what}")


_ALLOWED = frozenset("0123456789+-*/(). ")
_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to 2 places, or an error text. Nothing is executed."""
    if not _ALLOWED.issuperset(expression):
        return "Error: invalid characters in expression"
    try:
        return str(round(float(_value(ast.parse(expression.strip(), mode="eval").body)), 2))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as problem:
        return f"Error: {problem}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case _:
            raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")
