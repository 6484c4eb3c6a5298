"""Small worlds with tools, whose calls make logs: state machines to learn tags from, and to judge them.

No world is in the data of the benchmarks. A log is made by `play`: agents take turns at random, and every call is
answered by the one state that they share. The names of arguments, the forms of ids and of answers are those of many
real servers: integers that are ids here and amounts there, ids that only a result names, texts, tables, lists.
"""

import inspect
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

from agent_cache.advise.calls import UNKNOWN, LoggedCall

Draws = dict[str, Callable[[Any, random.Random], Any]]


class RefusedError(Exception):
    """A tool refused a call; nothing has changed."""


class World:
    """A state and its tools: the public methods that `reads` and `writes` name.

    Attributes:
        reads: the tools that read.
        writes: the tools that write.
        volatile: those of `reads` whose answers change by themselves.
        draws: how an agent chooses an argument, by its name; or all arguments of a tool, by the name of that.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    volatile: ClassVar[tuple[str, ...]] = ()
    share_of_writes: ClassVar[float] = 0.25
    draws: ClassVar[Draws] = {}

    def __init__(self) -> None:
        self.tick = 0

    def arguments(self, tool: str, chance: random.Random) -> dict[str, Any]:
        """Arguments for a call, as an agent would choose them."""
        if tool in self.draws:
            return dict(self.draws[tool](self, chance))
        return {name: self.draws[name](self, chance) for name in inspect.signature(getattr(self, tool)).parameters}


def play(
    world: type[World],
    seed: int,
    calls: int,
    *,
    is_told: bool = True,
    overlap: bool = False,
    share_of_writes: float | None = None,
    runs: int = 1,
) -> list[LoggedCall]:
    """The log of agents at work in a new world.

    Args:
        seed: of which calls are made; the world begins in the same state.
        calls: how many.
        is_told: whether the log says what reads and what writes.
        overlap: whether calls take time, so that they overlap.
        share_of_writes: of the calls; as the world has it if None.
        runs: of agents, one after the other, each of which begins in a new world.
    """
    chance = random.Random(f"{world.__name__}:{seed}")
    state = world()
    share = world.share_of_writes if share_of_writes is None else share_of_writes
    recent: list[tuple[str, dict[str, Any]]] = []
    log: list[LoggedCall] = []
    for at in range(calls):
        if at and at * runs // calls != (at - 1) * runs // calls:
            state, recent = world(), []
        state.tick = at
        if chance.random() < share:
            tool = chance.choice(world.writes)
            arguments = state.arguments(tool, chance)
        elif recent and chance.random() < 0.55:
            tool, arguments = chance.choice(recent[-40:])
        else:
            tool = chance.choice(world.reads)
            arguments = state.arguments(tool, chance)
            recent.append((tool, arguments))
        began = float(at * 2)
        taken = chance.uniform(0.5, 6.0) if overlap else 1.0
        made = _made(state, tool, json.loads(json.dumps(arguments)), began, taken, is_told)
        log.append(replace(made, run=str(at * runs // calls)))
    log.sort(key=lambda call: call.ended or 0.0)
    return log


def _made(state: World, tool: str, arguments: dict[str, Any], began: float, taken: float, is_told: bool) -> LoggedCall:
    kind: Literal["read", "write"] | None = None
    if is_told:
        kind = "write" if tool in state.writes else "read"
    result, error = UNKNOWN, None
    try:
        result = json.loads(json.dumps(getattr(state, tool)(**arguments)))
    except RefusedError as refusal:
        error = f"RefusedError: {refusal}"
    return LoggedCall(tool, arguments, result, error, began, began + taken, run="1", kind=kind)


def _get(table: dict[Any, Any], key: Any) -> Any:
    try:
        return table[key]
    except KeyError:
        raise RefusedError(f"{key!r} not found") from None


class Repositories(World):
    """Composite keys: the same number is another issue in another repository."""

    reads = ("get_issue", "list_issues", "get_repository", "get_labels")
    writes = ("update_issue", "close_issue", "open_issue", "star_repository", "add_label")
    draws: ClassVar[Draws] = {
        "repo": lambda world, chance: chance.choice([*world.repos]),
        "number": lambda _, chance: chance.randint(1, 12),
        "title": lambda _, chance: f"t{chance.randint(1, 99)}",
        "label": lambda _, chance: chance.choice(("bug", "docs", "help", "later")),
    }

    def __init__(self) -> None:
        super().__init__()
        names = ("acme/web", "acme/api", "ümlaut/x:y")
        self.repos: dict[str, dict[str, Any]] = {name: {"name": name, "stars": 0, "private": False} for name in names}
        self.issues = {
            (name, n): {"repo": name, "number": n, "title": f"t{n}", "open": True}
            for name in names
            for n in range(1, 13)
        }
        self.labels: dict[tuple[str, int], list[str]] = {key: [] for key in self.issues}

    def get_issue(self, repo: str, number: int) -> dict[str, Any]:
        return dict(_get(self.issues, (repo, number)))

    def list_issues(self, repo: str) -> dict[str, Any]:
        return {"items": [{"number": n, "open": i["open"]} for (r, n), i in self.issues.items() if r == repo]}

    def get_repository(self, repo: str) -> dict[str, Any]:
        return dict(_get(self.repos, repo))

    def get_labels(self, repo: str, number: int) -> list[str]:
        return list(_get(self.labels, (repo, number)))

    def update_issue(self, repo: str, number: int, title: str) -> dict[str, Any]:
        self.issues[repo, number] = {**_get(self.issues, (repo, number)), "title": title}
        return dict(self.issues[repo, number])

    def close_issue(self, repo: str, number: int) -> dict[str, Any]:
        if not _get(self.issues, (repo, number))["open"]:
            raise RefusedError("already closed")
        self.issues[repo, number] = {**self.issues[repo, number], "open": False}
        return {"closed": True}

    def open_issue(self, repo: str, title: str) -> dict[str, Any]:
        number = 1 + max(n for r, n in self.issues if r == repo)
        self.issues[repo, number] = {"repo": repo, "number": number, "title": title, "open": True}
        self.labels[repo, number] = []
        return {"number": number}

    def star_repository(self, repo: str) -> dict[str, Any]:
        self.repos[repo] = {**_get(self.repos, repo), "stars": self.repos[repo]["stars"] + 1}
        return {"stars": self.repos[repo]["stars"]}

    def add_label(self, repo: str, number: int, label: str) -> str:
        labels = _get(self.labels, (repo, number))
        if label not in labels:
            labels.append(label)
        return "ok"


class Git(World):
    """A working copy: most answers are texts that depend on all of it; commits never change."""

    reads = ("git_status", "git_log", "git_show", "git_branches", "read_blob")
    writes = ("git_commit", "git_checkout", "edit_file", "create_branch")
    draws: ClassVar[Draws] = {
        "branch": lambda world, chance: chance.choice([*world.logs][:6]),
        "sha": lambda world, chance: chance.choice([*world.commits][-12:]),
        "path": lambda world, chance: chance.choice([*world.blobs]),
        "message": lambda _, chance: f"fix {chance.randint(1, 99)}",
        "text": lambda _, chance: "x" * chance.randint(1, 5),
        "name": lambda _, chance: f"feature/{chance.randint(1, 9)}",
    }

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.branch = "main"
        self.commits: dict[str, str] = {}
        self.logs: dict[str, list[str]] = {"main": [], "dev": []}
        self.dirty: set[str] = set()
        self.blobs: dict[str, int] = dict.fromkeys(("a.py", "b.py", "c.py", "lib/d.py"), 0)
        for branch in ("dev", "main"):
            self.branch = branch
            for n in range(4):
                self.dirty.add("a.py")
                self.git_commit(f"{branch} {n}")

    def git_status(self) -> str:
        changes = "".join(f"\n M {path}" for path in sorted(self.dirty)) or "\nnothing to commit"
        return f"On branch {self.branch}{changes}"

    def git_log(self, branch: str) -> str:
        return "\n".join(f"{sha} {self.commits[sha]}" for sha in reversed(_get(self.logs, branch)))

    def git_show(self, sha: str) -> str:
        return f"commit {sha}\n\n    {_get(self.commits, sha)}"

    def git_branches(self) -> str:
        return "\n".join(("* " if name == self.branch else "  ") + name for name in sorted(self.logs))

    def read_blob(self, path: str) -> dict[str, Any]:
        return {"path": path, "lines": _get(self.blobs, path)}

    def git_commit(self, message: str) -> str:
        if not self.dirty:
            raise RefusedError("nothing to commit")
        self.dirty.clear()
        self.count += 1
        sha = f"{self.count * 7919:07x}"
        self.commits[sha] = message
        self.logs[self.branch].append(sha)
        return f"[{self.branch} {sha}] {message}"

    def git_checkout(self, branch: str) -> str:
        _get(self.logs, branch)
        self.branch = branch
        return f"Switched to branch '{branch}'"

    def edit_file(self, path: str, text: str) -> dict[str, Any]:
        self.blobs[path] = self.blobs.get(path, 0) + len(text)
        self.dirty.add(path)
        return {"edited": path}

    def create_branch(self, name: str) -> str:
        if name in self.logs:
            raise RefusedError("exists")
        self.logs[name] = list(self.logs[self.branch])
        return f"created {name}"


class Database(World):
    """Rows of tables with integer ids that collide between tables, and with values."""

    reads = ("select_row", "count_rows", "find_rows", "describe_table")
    writes = ("insert_row", "update_row", "delete_row")
    draws: ClassVar[Draws] = {
        "table": lambda world, chance: chance.choice([*world.tables]),
        "value": lambda _, chance: chance.randint(0, 5),
        "select_row": lambda world, chance: world.row(chance),
        "delete_row": lambda world, chance: world.row(chance),
        "update_row": lambda world, chance: {**world.row(chance), "value": chance.randint(0, 9)},
    }

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, dict[int, dict[str, Any]]] = {
            table: {n: {"id": n, "value": n % 5, "done": False} for n in range(1, 16)}
            for table in ("users", "tasks", "tags")
        }

    def select_row(self, table: str, id: int) -> dict[str, Any]:  # noqa: A002 - the name that such tools have
        return dict(_get(_get(self.tables, table), id))

    def count_rows(self, table: str) -> dict[str, Any]:
        return {"table": table, "count": len(_get(self.tables, table))}

    def find_rows(self, table: str, value: int) -> list[dict[str, Any]]:
        return [dict(row) for row in _get(self.tables, table).values() if row["value"] == value]

    def describe_table(self, table: str) -> dict[str, Any]:
        _get(self.tables, table)
        return {"table": table, "columns": ["id", "value", "done"]}

    def insert_row(self, table: str, value: int) -> dict[str, Any]:
        rows = _get(self.tables, table)
        number = max(rows, default=0) + 1
        rows[number] = {"id": number, "value": value, "done": False}
        return {"id": number}

    def update_row(self, table: str, id: int, value: int) -> dict[str, Any]:  # noqa: A002 - as above
        rows = _get(self.tables, table)
        rows[id] = {**_get(rows, id), "value": value}
        return {"updated": 1}

    def delete_row(self, table: str, id: int) -> dict[str, Any]:  # noqa: A002 - as above
        rows = _get(self.tables, table)
        _get(rows, id)
        del rows[id]
        return {"deleted": 1}

    def row(self, chance: random.Random) -> dict[str, Any]:
        table = chance.choice([*self.tables])
        return {"table": table, "id": chance.choice([*self.tables[table]][-15:] or [1])}


class Mail(World):
    """A mailbox in which reading a message marks it, so that a read changes others."""

    reads = ("list_folder", "read_message", "unread_count", "get_contact")
    writes = ("send_message", "move_message", "delete_message", "mark_unread", "update_contact")
    draws: ClassVar[Draws] = {
        "folder": lambda _, chance: chance.choice(("inbox", "sent", "archive")),
        "message_id": lambda world, chance: chance.choice([*world.messages][-25:] or ["<0.x@mail>"]),
        "email": lambda _, chance: f"u{chance.randint(0, 8)}@mail.example",
        "to": lambda _, chance: [f"u{chance.randint(0, 7)}@mail.example"],
        "subject": lambda _, chance: f"Re: {chance.randint(1, 99)}",
        "vip": lambda _, chance: chance.random() < 0.5,
    }

    def __init__(self) -> None:
        super().__init__()
        self.next = 0
        self.messages: dict[str, dict[str, Any]] = {}
        self.contacts = {f"u{n}@mail.example": {"name": f"User {n}", "vip": False} for n in range(8)}
        chance = random.Random(2)
        for _ in range(25):
            self.send_message(**self.arguments("send_message", chance))

    def list_folder(self, folder: str) -> list[dict[str, Any]]:
        return [{"id": i, "subject": m["subject"]} for i, m in self.messages.items() if m["folder"] == folder]

    def read_message(self, message_id: str) -> dict[str, Any]:
        message = _get(self.messages, message_id)
        message["unread"] = False
        return {"id": message_id, "subject": message["subject"], "to": message["to"], "folder": message["folder"]}

    def unread_count(self) -> int:
        return sum(1 for one in self.messages.values() if one["unread"])

    def get_contact(self, email: str) -> dict[str, Any]:
        return dict(_get(self.contacts, email))

    def send_message(self, to: list[str], subject: str) -> dict[str, Any]:
        self.next += 1
        message_id = f"<{self.next}.x@mail>"
        self.messages[message_id] = {"to": to, "subject": subject, "folder": "sent", "unread": True}
        return {"status": "sent", "id": message_id}

    def move_message(self, message_id: str, folder: str) -> str:
        _get(self.messages, message_id)["folder"] = folder
        return "moved"

    def delete_message(self, message_id: str) -> str:
        _get(self.messages, message_id)
        del self.messages[message_id]
        return "deleted"

    def mark_unread(self, message_id: str) -> None:
        _get(self.messages, message_id)["unread"] = True

    def update_contact(self, email: str, vip: bool) -> dict[str, Any]:
        self.contacts[email] = {**_get(self.contacts, email), "vip": vip}
        return {"email": email}


class Inventory(World):
    """Stock of articles whose integer numbers collide with quantities; shipments name several in a list."""

    reads = ("get_stock", "get_product", "list_low_stock", "get_shipment")
    writes = ("ship_items", "restock", "set_price", "reserve_for_shipment")
    draws: ClassVar[Draws] = {
        "product_id": lambda _, chance: chance.randint(1, 30),
        "threshold": lambda _, chance: chance.choice((5, 10, 20)),
        "shipment_id": lambda world, chance: chance.choice([*world.shipments][-12:]),
        "lines": lambda _, chance: [
            {"product_id": one, "quantity": chance.randint(1, 3)}
            for one in chance.sample(range(1, 31), chance.randint(1, 3))
        ],
        "quantity": lambda _, chance: chance.randint(1, 30),
        "price": lambda _, chance: float(chance.randint(1, 99)),
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {n: 20 + n % 7 for n in range(1, 31)}
        self.prices = {n: n * 1.5 for n in self.stock}
        self.shipments: dict[str, dict[str, Any]] = {}
        chance = random.Random(3)
        for _ in range(10):
            self.ship_items(**self.arguments("ship_items", chance))

    def get_stock(self, product_id: int) -> dict[str, Any]:
        return {"product_id": product_id, "quantity": _get(self.stock, product_id)}

    def get_product(self, product_id: int) -> dict[str, Any]:
        return {"product_id": product_id, "name": f"Product {product_id}", "price": _get(self.prices, product_id)}

    def list_low_stock(self, threshold: int) -> list[int]:
        return [n for n, left in self.stock.items() if left < threshold]

    def get_shipment(self, shipment_id: str) -> dict[str, Any]:
        return dict(_get(self.shipments, shipment_id))

    def ship_items(self, lines: list[dict[str, int]]) -> dict[str, Any]:
        for line in lines:
            if _get(self.stock, line["product_id"]) < line["quantity"]:
                raise RefusedError("not enough")
        for line in lines:
            self.stock[line["product_id"]] -= line["quantity"]
        shipment_id = f"SHP-{len(self.shipments) + 1:04}"
        self.shipments[shipment_id] = {"shipment_id": shipment_id, "lines": lines, "state": "sent"}
        return {"shipment_id": shipment_id}

    def restock(self, product_id: int, quantity: int) -> dict[str, Any]:
        self.stock[product_id] = _get(self.stock, product_id) + quantity
        return {"quantity": self.stock[product_id]}

    def set_price(self, product_id: int, price: float) -> bool:
        _get(self.prices, product_id)
        self.prices[product_id] = price
        return True

    def reserve_for_shipment(self, shipment_id: str) -> dict[str, Any]:
        shipment = _get(self.shipments, shipment_id)
        first = shipment["lines"][0]["product_id"]
        if self.stock[first] < 1:
            raise RefusedError("nothing left")
        self.stock[first] -= 1
        return {"reserved": {"product_id": first, "quantity": 1}}


class Airline(World):
    """Bookings of flights: which flight a cancelled booking frees stands only in the result."""

    reads = ("search_flights", "get_flight", "get_booking", "get_passenger")
    writes = ("book_flight", "cancel_booking", "change_seat", "update_passenger")
    cities = ("HAM", "MUC", "LHR")
    draws: ClassVar[Draws] = {
        "search_flights": lambda world, chance: dict(
            zip(("origin", "destination"), chance.sample(world.cities, 2), strict=True)
        ),
        "flight_number": lambda world, chance: chance.choice([*world.flights]),
        "reservation_code": lambda world, chance: chance.choice([*world.bookings][-20:]),
        "passenger_id": lambda world, chance: chance.choice([*world.passengers]),
        "seat": lambda _, chance: f"{chance.randint(1, 30)}{chance.choice('ABC')}",
        "name": lambda _, chance: f"P{chance.randint(1, 99)}",
    }

    def __init__(self) -> None:
        super().__init__()
        pairs = [(a, b) for a in self.cities for b in self.cities if a != b]
        self.flights: dict[str, dict[str, Any]] = {
            f"AC{100 + n}": {"flight_number": f"AC{100 + n}", "origin": a, "destination": b, "seats": 30}
            for n, (a, b) in enumerate(pairs * 2)
        }
        self.passengers = {
            f"pax_{n:03}": {"passenger_id": f"pax_{n:03}", "name": f"P{n}", "bookings": []} for n in range(15)
        }
        self.bookings: dict[str, dict[str, Any]] = {}
        chance = random.Random(4)
        for _ in range(15):
            self.book_flight(**self.arguments("book_flight", chance))

    def search_flights(self, origin: str, destination: str) -> list[dict[str, Any]]:
        return [dict(f) for f in self.flights.values() if (f["origin"], f["destination"]) == (origin, destination)]

    def get_flight(self, flight_number: str) -> dict[str, Any]:
        return dict(_get(self.flights, flight_number))

    def get_booking(self, reservation_code: str) -> dict[str, Any]:
        return dict(_get(self.bookings, reservation_code))

    def get_passenger(self, passenger_id: str) -> dict[str, Any]:
        return dict(_get(self.passengers, passenger_id))

    def book_flight(self, passenger_id: str, flight_number: str) -> dict[str, Any]:
        flight, passenger = _get(self.flights, flight_number), _get(self.passengers, passenger_id)
        if not flight["seats"]:
            raise RefusedError("full")
        flight["seats"] -= 1
        code = f"R{len(self.bookings) + 1:05}"
        self.bookings[code] = {
            "reservation_code": code,
            "flight_number": flight_number,
            "passenger_id": passenger_id,
            "seat": "1A",
        }
        passenger["bookings"] = [*passenger["bookings"], code]
        return dict(self.bookings[code])

    def cancel_booking(self, reservation_code: str) -> dict[str, Any]:
        booking = _get(self.bookings, reservation_code)
        if booking["seat"] == "cancelled":
            raise RefusedError("already cancelled")
        self.bookings[reservation_code] = {**booking, "seat": "cancelled"}
        self.flights[booking["flight_number"]]["seats"] += 1
        return {"reservation_code": reservation_code, "flight_number": booking["flight_number"]}

    def change_seat(self, reservation_code: str, seat: str) -> dict[str, Any]:
        booking = _get(self.bookings, reservation_code)
        if booking["seat"] == "cancelled":
            raise RefusedError("cancelled")
        self.bookings[reservation_code] = {**booking, "seat": seat}
        return {"seat": seat}

    def update_passenger(self, passenger_id: str, name: str) -> dict[str, Any]:
        self.passengers[passenger_id] = {**_get(self.passengers, passenger_id), "name": name}
        return {"passenger_id": passenger_id, "name": name}


class Bank(World):
    """Accounts with integer numbers that collide with amounts; a transfer touches two of them, and totals."""

    reads = ("get_balance", "get_account", "get_customer_total", "get_statement", "get_rate")
    writes = ("transfer", "deposit", "set_limit")
    draws: ClassVar[Draws] = {
        **dict.fromkeys(
            ("account_id", "from_account", "to_account", "amount"), lambda _, chance: chance.randint(1, 25)
        ),
        "customer_id": lambda _, chance: f"c{chance.randint(0, 4)}",
        "currency": lambda _, chance: chance.choice(("EUR", "USD", "CHF")),
        "limit": lambda _, chance: chance.choice((100, 500, 900)),
    }

    def __init__(self) -> None:
        super().__init__()
        self.balances = dict.fromkeys(range(1, 26), 100)
        self.limits = dict.fromkeys(self.balances, 500)
        self.moves: dict[int, list[int]] = {n: [] for n in self.balances}

    def get_balance(self, account_id: int) -> int:
        return int(_get(self.balances, account_id))

    def get_account(self, account_id: int) -> dict[str, Any]:
        limit = _get(self.limits, account_id)
        return {"account_id": account_id, "customer_id": f"c{account_id % 5}", "limit": limit, "active": True}

    def get_customer_total(self, customer_id: str) -> dict[str, Any]:
        return {"total": sum(money for n, money in self.balances.items() if f"c{n % 5}" == customer_id)}

    def get_statement(self, account_id: int) -> list[int]:
        return list(_get(self.moves, account_id))

    def get_rate(self, currency: str) -> float:
        return {"EUR": 1.0, "USD": 1.25, "CHF": 0.5}[currency]

    def transfer(self, from_account: int, to_account: int, amount: int) -> dict[str, Any]:
        if _get(self.balances, from_account) < amount:
            raise RefusedError("insufficient funds")
        _get(self.balances, to_account)
        for account, money in ((from_account, -amount), (to_account, amount)):
            self.balances[account] += money
            self.moves[account].append(money)
        return {"status": "done", "amount": amount}

    def deposit(self, account_id: int, amount: int) -> dict[str, Any]:
        self.balances[account_id] = _get(self.balances, account_id) + amount
        self.moves[account_id].append(amount)
        return {"account_id": account_id, "customer_id": f"c{account_id % 5}"}

    def set_limit(self, account_id: int, limit: int) -> None:
        _get(self.limits, account_id)
        self.limits[account_id] = limit


class Station(World):
    """Answers that change by themselves, beside settings that do not; some writes set what is already so."""

    reads = ("get_time", "random_number", "get_setting", "get_sensor", "list_settings")
    writes = ("set_setting", "ping", "reset_settings")
    volatile = ("get_time", "random_number", "get_sensor")
    draws: ClassVar[Draws] = {
        "limit": lambda _, chance: chance.choice((10, 100)),
        "sensor_id": lambda _, chance: f"s-{chance.randint(1, 5)}",
        "key": lambda _, chance: f"key.{chance.randint(0, 11)}",
        "value": lambda _, chance: chance.randint(0, 2),
        "host": lambda _, chance: f"h{chance.randint(1, 4)}.example",
    }

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {f"key.{n}": n % 3 for n in range(12)}
        self.noise = random.Random(5)

    def get_time(self) -> dict[str, Any]:
        return {"now": f"2026-03-01T{self.tick // 60 % 24:02}:{self.tick % 60:02}:00Z"}

    def random_number(self, limit: int) -> int:
        return self.noise.randint(0, limit)

    def get_sensor(self, sensor_id: str) -> dict[str, Any]:
        return {"sensor_id": sensor_id, "celsius": 20 + self.tick // 50 % 7}

    def get_setting(self, key: str) -> Any:
        return {"key": key, "value": _get(self.settings, key)}

    def list_settings(self) -> dict[str, Any]:
        return dict(self.settings)

    def set_setting(self, key: str, value: int) -> str:
        self.settings[key] = value
        return "ok"

    def ping(self, host: str) -> str:
        return f"pong from {host}"

    def reset_settings(self) -> str:
        self.settings = dict.fromkeys(self.settings, 0)
        return "reset"


class Directory(World):
    """People with three names each, found by any of them, and listed in pages."""

    reads = ("get_user", "find_user_by_email", "find_user_by_handle", "list_users", "get_team")
    writes = ("update_user", "change_email", "rename_handle", "join_team", "register_user")
    draws: ClassVar[Draws] = {
        "user_id": lambda world, chance: chance.choice([*world.users][:25]),
        "email": lambda _, chance: f"mail{chance.randint(0, 24)}@example.org",
        "handle": lambda _, chance: f"h{chance.randint(0, 24)}_ñ",
        "page": lambda _, chance: chance.randint(1, 4),
        "per_page": lambda _, chance: 6,
        "team": lambda _, chance: chance.choice(("blue", "red", "green")),
        "bio": lambda _, chance: f"bio {chance.randint(1, 99)}",
        "change_email": lambda _, chance: dict(
            zip(("old_email", "new_email"), (f"mail{n}@example.org" for n in chance.sample(range(25), 2)), strict=True)
        ),
        "rename_handle": lambda _, chance: dict(
            zip(("handle", "new_handle"), (f"h{n}_ñ" for n in chance.sample(range(25), 2)), strict=True)
        ),
        "register_user": lambda world, chance: world.person(chance.randint(20, 40)),
    }

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, dict[str, Any]] = {}
        for n in range(20):
            self.register_user(**self.person(n))

    def _found(self, name: str, value: str) -> dict[str, Any]:
        for user in self.users.values():
            if user[name] == value:
                return user
        raise RefusedError("no such user")

    def get_user(self, user_id: str) -> dict[str, Any]:
        return dict(_get(self.users, user_id))

    def find_user_by_email(self, email: str) -> str:
        return str(self._found("email", email)["id"])

    def find_user_by_handle(self, handle: str) -> dict[str, Any]:
        return {"user": dict(self._found("handle", handle))}

    def list_users(self, page: int, per_page: int) -> dict[str, Any]:
        rows = [*self.users.values()][(page - 1) * per_page : page * per_page]
        return {"page": page, "users": [{"id": one["id"], "handle": one["handle"]} for one in rows]}

    def get_team(self, team: str) -> dict[str, Any]:
        return {"team": team, "members": [one["id"] for one in self.users.values() if one["team"] == team]}

    def update_user(self, user_id: str, bio: str) -> dict[str, Any]:
        self.users[user_id] = {**_get(self.users, user_id), "bio": bio}
        return {"id": user_id}

    def change_email(self, old_email: str, new_email: str) -> dict[str, Any]:
        user = self._found("email", old_email)
        if any(one["email"] == new_email for one in self.users.values()):
            raise RefusedError("taken")
        self.users[user["id"]] = {**user, "email": new_email}
        return {"id": user["id"]}

    def rename_handle(self, handle: str, new_handle: str) -> dict[str, Any]:
        user = self._found("handle", handle)
        if any(one["handle"] == new_handle for one in self.users.values()):
            raise RefusedError("taken")
        self.users[user["id"]] = {**user, "handle": new_handle}
        return dict(self.users[user["id"]])

    def join_team(self, user_id: str, team: str) -> str:
        self.users[user_id] = {**_get(self.users, user_id), "team": team}
        return "joined"

    def register_user(self, handle: str, email: str) -> dict[str, Any]:
        if any(handle == one["handle"] or email == one["email"] for one in self.users.values()):
            raise RefusedError("taken")
        user_id = f"usr-{len(self.users) + 1}"
        self.users[user_id] = {"id": user_id, "handle": handle, "email": email, "bio": "", "team": "blue"}
        return {"id": user_id}

    def person(self, number: int) -> dict[str, Any]:
        return {"handle": f"h{number}_ñ", "email": f"mail{number}@example.org"}


class Projects(World):
    """Tasks in projects: the name of a project stands in its tasks, and a project counts them."""

    reads = ("get_task", "get_project", "list_project_tasks", "get_member_load")
    writes = ("create_task", "complete_task", "rename_project", "move_task", "archive_project")
    draws: ClassVar[Draws] = {
        "task_id": lambda world, chance: chance.choice([*world.tasks][-40:]),
        "project_id": lambda world, chance: chance.choice([*world.projects]),
        "member": lambda _, chance: chance.choice(("ann", "ben", "cem", "dot")),
        "name": lambda _, chance: f"N{chance.randint(1, 99)}",
    }

    def __init__(self) -> None:
        super().__init__()
        self.projects = {f"prj{n}": {"id": f"prj{n}", "name": f"N{n}", "archived": False} for n in range(8)}
        self.tasks: dict[str, dict[str, Any]] = {}
        chance = random.Random(6)
        for _ in range(40):
            self.create_task(**self.arguments("create_task", chance))

    def get_task(self, task_id: str) -> dict[str, Any]:
        task = _get(self.tasks, task_id)
        return {**task, "project": self.projects[task["project_id"]]["name"]}

    def get_project(self, project_id: str) -> dict[str, Any]:
        open_tasks = sum(1 for one in self.tasks.values() if one["project_id"] == project_id and not one["done"])
        return {**_get(self.projects, project_id), "open_tasks": open_tasks}

    def list_project_tasks(self, project_id: str) -> list[dict[str, Any]]:
        return [{"task_id": i, "done": t["done"]} for i, t in self.tasks.items() if t["project_id"] == project_id]

    def get_member_load(self, member: str) -> int:
        return sum(1 for one in self.tasks.values() if one["member"] == member and not one["done"])

    def create_task(self, project_id: str, member: str) -> dict[str, Any]:
        if _get(self.projects, project_id)["archived"]:
            raise RefusedError("archived")
        task_id = f"task-{len(self.tasks) + 1}"
        self.tasks[task_id] = {"task_id": task_id, "project_id": project_id, "member": member, "done": False}
        return {"task_id": task_id}

    def complete_task(self, task_id: str) -> dict[str, Any]:
        self.tasks[task_id] = {**_get(self.tasks, task_id), "done": True}
        return dict(self.tasks[task_id])

    def rename_project(self, project_id: str, name: str) -> str:
        self.projects[project_id] = {**_get(self.projects, project_id), "name": name}
        return "renamed"

    def move_task(self, task_id: str, project_id: str) -> str:
        _get(self.projects, project_id)
        self.tasks[task_id] = {**_get(self.tasks, task_id), "project_id": project_id}
        return "moved"

    def archive_project(self, project_id: str) -> dict[str, Any]:
        project = _get(self.projects, project_id)
        self.projects[project_id] = {**project, "archived": not project["archived"]}
        return {"archived": not project["archived"]}


WORLDS: tuple[type[World], ...] = (
    Repositories, Git, Database, Mail, Inventory, Airline, Bank, Station, Directory, Projects,
)  # fmt: skip
