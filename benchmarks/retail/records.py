"""What the store's records look like, and the checks on one record that several tools share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
Table: TypeAlias = dict[str, Record]


class RefusedError(Exception):
    """A tool's check failed and nothing was changed; the tool answers `Error: ...` with this text."""


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
