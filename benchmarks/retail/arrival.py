"""In what order the agents come to the shared store."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import TypeAlias

from benchmarks.retail.data import RecordedCall, Run

Arrival: TypeAlias = Callable[[Iterable[Run], random.Random], list[Run]]


def shuffled(runs: Iterable[Run], chance: random.Random) -> list[Run]:
    """As it happens."""
    return sorted(runs, key=lambda run: chance.random())


def crowded(runs: Iterable[Run], chance: random.Random) -> list[Run]:
    """All that serve one customer together, so that their reads and writes meet as often as can be."""
    return sorted(shuffled(runs, chance), key=_customer)


def _customer(run: Run) -> str:
    return next(filter(None, map(_named_customer, run.calls)), "")


def _named_customer(call: RecordedCall) -> str:
    if call.result.startswith("Error"):
        return ""
    if call.tool.startswith("find_user_id"):
        return call.result
    if call.result.startswith('{"order_id"'):
        user_id: str = json.loads(call.result)["user_id"]
        return user_id
    return str(call.arguments.get("user_id", ""))
