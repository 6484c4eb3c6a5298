"""Digests of many calls, printed: the same on every line wherever and by whichever Python this is run."""

from __future__ import annotations

import dataclasses
import enum
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from agent_cache.values.canonical import lasting_digest, segment_digest


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Paint(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    LOW = "low"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    x: Any
    y: Any = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any = 1
    y: Any = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    x: Any = 1
    y: Any = 2


class Outer:
    @dataclasses.dataclass
    class Inner:
        x: Any = 1


WORDS = [f"word-{number}" for number in range(30)]
CORPUS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, float("inf"), 1e300),
    *("", "0", "1", "a", "ä", "\ud800"),
    *(b"", b"1", b"a", [], (), {}, set(), frozenset(), [1], (1,), [True], [1.0], ["1"], [[1]], [(1,)]),
    *({1}, frozenset({1}), {1: 1}, {"1": 1}, {True: 1}, {1: True}, {"a": {"b": [1, {2}]}}, [None], [1, 2], [2, 1]),
    *(set(WORDS), frozenset(WORDS), dict.fromkeys(WORDS, 1), {word: {word} for word in WORDS}, [*WORDS], (*WORDS,)),
    *({(1, word) for word in WORDS}, Fraction(1, 3)),
    *(Colour.RED, Colour.GREEN, Paint.RED, Level.LOW, Word.LOW, Access(0), Access.READ, Access.READ | Access.WRITE),
    *(Pair(1, 2), Point(1, 2), Place(1, 2), Point(2, 1), Point(Colour.RED, {Colour.RED, Colour.GREEN}), Outer.Inner()),
    *(Decimal(1), Decimal("1.0"), uuid.UUID(int=1), PurePosixPath("a"), ip_address("::1"), ip_network("10.0.0.0/8")),
    *(date(2026, 1, 1), time(1), time(1, fold=1), timedelta(1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001
    *(timezone(timedelta(hours=2)), datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    *(int, Colour, Outer.Inner, ValueError),
]  # fmt: skip
"""No two of them are the same."""


def digest(
    *values: Any,
    tool: str = "shop:get",
    tenant: Any = None,
    session: str | None = None,
    namespace: str = "test",
    version: int = 1,
) -> str | None:
    arguments = tuple((f"argument_{number}", value) for number, value in enumerate(values))
    return lasting_digest(tool, (arguments, tenant, session), namespace=namespace, version=version)


def lines() -> list[str]:
    return [
        *(f"{digest(value)} {number}" for number, value in enumerate(CORPUS)),
        f"{digest(*CORPUS, tenant=('acme', Colour.RED), session='s')} all",
        *(segment_digest(segment, namespace="test") for segment in ("", "7", "ä", "\ud800")),
    ]


if __name__ == "__main__":
    from tests.harness import digests

    sys.stdout.write("\n".join(digests.lines()))
