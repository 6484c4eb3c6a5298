"""How long a tool keeps its caller waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Latency: TypeAlias = Callable[[], Awaitable[None]]
RandomLatency: TypeAlias = Callable[[random.Random], Awaitable[None]]

# In seconds, paid twice by every executed tool. Long enough that at 16 sessions most calls overlap some write, short
# enough that the 4,145 calls of one policy take seconds even one after the other.
LONGEST_SLEEP = 0.002
MOST_TURNS = 8


async def no_latency() -> None:
    """A store that is as near as can be."""


async def short_sleep(chance: random.Random) -> None:
    """Up to two milliseconds of the clock: what is saved of it can be measured."""
    await asyncio.sleep(chance.uniform(0.0, LONGEST_SLEEP))


async def some_turns(chance: random.Random) -> None:
    """A few turns of the event loop and no clock: calls overlap as much, and one seed always interleaves them alike."""
    for _ in range(chance.randint(0, MOST_TURNS)):
        await asyncio.sleep(0)
