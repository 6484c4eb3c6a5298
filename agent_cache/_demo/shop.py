"""What is in the shop, and what can be asked of it and done to it: plain SQLite, no cache, no waiting."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["READS", "Row", "Shop"]

Row = dict[str, Any]

READS = frozenset({"find_customer", "get_customer", "get_order", "get_product", "list_orders", "list_products"})
"""The methods of `Shop` that change nothing."""

_CONTENT = """
create table customers (id text primary key, name text, email text unique, balance integer);
create table products (id text primary key, price integer, stock integer);
create table orders (id integer primary key, customer_id text, product_id text, paid integer, status text);
insert into customers values ('mia', 'Mia Lind', 'mia@example.com', 120),
                             ('noah', 'Noah Berg', 'noah@example.com', 310),
                             ('zoe', 'Zoe Falk', 'zoe@example.com', 75);
insert into products values ('bag', 59, 12), ('mug', 25, 40), ('lamp', 39, 7), ('radio', 89, 3);
insert into orders values (1001, 'mia', 'mug', 25, 'pending'), (1002, 'mia', 'radio', 89, 'shipped'),
                          (1003, 'noah', 'lamp', 39, 'pending'), (1004, 'zoe', 'bag', 59, 'pending');
"""


class Shop:
    """A shop in one SQLite file.

    It is asked from the event loop's own thread: a row of so small a file takes 20 us, and what a real store takes is
    simulated by the tools. So each change happens at one instant, between two steps of the loop.

    Attributes:
        on_change: called at that instant.
    """

    def __init__(self, path: Path) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._database = sqlite3.connect(path)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_CONTENT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    # Reads

    def find_customer(self, email: str) -> Row:
        return self._row("select * from customers where email = ?", email)

    def get_customer(self, customer_id: str) -> Row:
        return self._row("select * from customers where id = ?", customer_id)

    def get_product(self, product_id: str) -> Row:
        return self._row("select * from products where id = ?", product_id)

    def list_products(self) -> list[Row]:
        return self._rows("select * from products order by id")

    def get_order(self, order_id: int) -> Row:
        return self._row("select * from orders where id = ?", order_id)

    def list_orders(self, customer_id: str) -> list[Row]:
        return self._rows("select * from orders where customer_id = ? order by id", customer_id)

    # Writes

    def set_price(self, product_id: str, price: int) -> Row:
        self._write(("update products set price = ? where id = ?", (price, product_id)))
        return self.get_product(product_id)

    def place_order(self, customer_id: str, product_id: str) -> Row:
        price = self.get_product(product_id)["price"]
        order_id = self._row("select max(id) + 1 as next from orders")["next"]
        self._write(
            ("insert into orders values (?, ?, ?, ?, 'pending')", (order_id, customer_id, product_id, price)),
            ("update customers set balance = balance - ? where id = ?", (price, customer_id)),
            ("update products set stock = stock - 1 where id = ?", (product_id,)),
        )
        return self.get_order(order_id)

    def cancel_order(self, order_id: int) -> Row:
        order = self.get_order(order_id)
        self._write(
            ("update orders set status = 'cancelled' where id = ?", (order_id,)),
            ("update customers set balance = balance + ? where id = ?", (order["paid"], order["customer_id"])),
            ("update products set stock = stock + 1 where id = ?", (order["product_id"],)),
        )
        return self.get_order(order_id)

    def ship_order(self, order_id: int) -> Row:
        self._write(("update orders set status = 'shipped' where id = ?", (order_id,)))
        return self.get_order(order_id)

    def _rows(self, question: str, *values: object) -> list[Row]:
        with closing(self._database.execute(question, values)) as cursor:
            return [dict(row) for row in cursor]

    def _row(self, question: str, *values: object) -> Row:
        (row,) = self._rows(question, *values)
        return row

    def _write(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self._database:
            for statement, values in statements:
                self._database.execute(statement, values)
        self.on_change()
