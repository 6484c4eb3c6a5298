"""`python -m tests.fuzz --seconds 3600`: readers and writers at random, in threads and event loops, and an oracle.

The truth is a counter for each key. A write raises it in its tool, at a moment of its own, and notes that number as
*done* when its caller has its answer. A read has to return at least what was done before it was made: less is stale.
Every caller changes the answer that it got: whoever gets a changed one shares a value with another caller. A call that
has not ended after `PATIENCE` seconds hangs.

Drawn at random: `async def`, `def` and streaming tools, of one key, of all keys and of what others read (nested), in
three event loops and two threads without one; decorated writes that succeed, raise, time out, are cancelled, or give
the new answer by `set`, and `invalidate` and `writing` around others; sessions, tenants and session scope, `bypass`,
layers of `configure`, `fresh`, `clear`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    bypass,
    configure,
    get_metrics,
    invalidate,
    writing,
)

KEYS: Final = tuple("abcdefgh")
PATIENCE: Final = 60.0
LOOPS, THREADS, TASKS = 3, 2, 5
_PAUSE: Final = 0.002


show = partial(print, flush=True)


class Failed(Exception):
    """A write that has told its caller so, before or after it took effect."""


class World:
    """What the tools read and change."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.Lock()
        self.truth = Counter[str]()
        self.done = Counter[str]()
        self.counts = Counter[str]()
        self.findings: list[str] = []
        self.running: dict[int, tuple[float, str]] = {}
        self.seed = seed
        self.ends = 0.0
        self._numbers = itertools.count()

    def change(self, key: str) -> int:
        with self.lock:
            self.truth[key] += 1
            return self.truth[key]

    def note_done(self, key: str, number: int) -> None:
        with self.lock:
            self.done[key] = max(self.done[key], number)

    @contextlib.contextmanager
    def watched(self, name: str) -> Any:
        number = next(self._numbers)
        self.running[number] = time.monotonic(), name
        try:
            yield
        finally:
            del self.running[number]
            self.counts[name.partition(" ")[0]] += 1

    def check(self, what: str, key: str, least: int, answer: Any) -> None:
        """Check the answer of a read, and change it."""
        if type(answer) is not list or len(answer) != 1:
            self.findings.append(f"{what}: a value is shared by two callers: {answer!r}")
        elif answer[0] < least:
            self.findings.append(f"{what} {key}: stale: {answer[0]}, and {least} was done before")
        else:
            answer.append("changed by its caller")


WORLD = World(0)


def pause() -> float:
    return random.random() * _PAUSE if random.random() < 0.3 else 0.0


@AgentCache("thing:{key}", maxsize=20, ttl=2.0)
async def read(key: str) -> list[int]:
    found = WORLD.truth[key]
    await asyncio.sleep(pause())
    return [found]


@AgentCache("thing:{key}", ttl=1.0, jitter=0.5)
async def read_for_a_while(key: str) -> list[int]:
    await asyncio.sleep(pause())
    return [WORLD.truth[key]]


async def is_unchanged(previous: list[int], key: str) -> bool:
    return previous == await read_for_a_while.__wrapped__(key)


@AgentCache("thing:{key}", ttl=0.01, validate=is_unchanged)
async def read_validated(key: str) -> list[int]:
    await asyncio.sleep(pause())
    return [WORLD.truth[key]]


def is_unchanged_in_thread(previous: list[int], key: str) -> bool:
    found = WORLD.truth[key]
    time.sleep(pause())
    return previous == [found]


@AgentCache("thing:{key}", ttl=0.01, validate=is_unchanged_in_thread)
def read_in_thread(key: str) -> list[int]:
    found = WORLD.truth[key]
    time.sleep(pause())
    return [found]


@AgentCache("thing:{key}", scope="session")
async def read_of_session(key: str) -> list[int]:
    found = WORLD.truth[key]
    await asyncio.sleep(pause())
    return [found]


@AgentCache("summary")
async def read_through(key: str) -> list[int]:
    await asyncio.sleep(pause())
    (found,) = await random.choice((read, read_for_a_while, read_validated))(key)
    return [found]


@AgentCache("thing:{key}")
async def read_as_stream(key: str) -> AsyncIterator[list[int]]:
    found = WORLD.truth[key]
    await asyncio.sleep(pause())
    yield [found]
    await asyncio.sleep(pause())
    yield [found]


async def first_of_stream(key: str) -> list[int]:
    chunks = [chunk async for chunk in read_as_stream(key)]
    return chunks[-1]


async def _write(key: str, how: str) -> int:
    await asyncio.sleep(pause())
    if how == "refused":
        raise Failed
    number = WORLD.change(key)
    if how == "set":
        await read.set([number], key)
    await asyncio.sleep(pause())
    if how == "raises":
        raise Failed
    if how == "times out":
        raise TimeoutError
    return number


write = AgentCacheInvalidator("thing:{key}", name="write", doubt=0.02)(_write)
write_root = AgentCacheInvalidator("thing", name="write_root", doubt=0.02, settle=0.002)(_write)


@AgentCacheInvalidator("thing:{result[key]}", doubt=0.02)
async def write_late(key: str) -> dict[str, Any]:
    await asyncio.sleep(pause())
    number = WORLD.change(key)
    await asyncio.sleep(pause())
    return {"key": key, "number": number}


@AgentCacheInvalidator("thing:{key}", doubt=0.02)
def write_in_thread(key: str) -> int:
    time.sleep(pause())
    number = WORLD.change(key)
    time.sleep(pause())
    return number


READS: Final[dict[str, Callable[[str], Awaitable[list[int]]]]] = {
    "read": read,
    "read_for_a_while": read_for_a_while,
    "read_validated": read_validated,
    "read_of_session": read_of_session,
    "read_through": read_through,
    "stream": first_of_stream,
    "fresh": read.fresh,
}
MOST: Final = ("read", "read", "read_for_a_while", "read_validated", "read_of_session", "read_through", "stream")
HOWS: Final = ("", "", "", "set", "raises", "times out", "refused")


async def one_step(chance: random.Random) -> None:
    key, what = chance.choice(KEYS), chance.random()
    if what < 0.94:
        name = chance.choice([*READS]) if chance.random() < 0.1 else chance.choice(MOST)
        least = WORLD.done[key]
        with WORLD.watched(f"{name} {key}"):
            answer = await READS[name](key)
        WORLD.check(name, key, least, answer)
    elif what < 0.96:
        with WORLD.watched(f"cancelled {key}"), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause()):
                some: Any = chance.choice([read, read_through, write_late])
                await some(key)
    elif what < 0.985:
        tool = write if chance.random() < 0.9 else write_root
        with WORLD.watched(f"write {key}"), contextlib.suppress(Failed, TimeoutError):
            WORLD.note_done(key, await tool(key, chance.choice(HOWS)))
    elif what < 0.99:
        with WORLD.watched(f"write_late {key}"):
            WORLD.note_done(key, (await write_late(key))["number"])
    elif what < 0.995:
        with WORLD.watched(f"writing {key}"):
            async with writing(("thing", key)):
                number = WORLD.change(key)
                await asyncio.sleep(pause())
            WORLD.note_done(key, number)
    else:
        with WORLD.watched(f"invalidate {key}"):
            number = WORLD.change(key)
            await invalidate(("thing", key))
            WORLD.note_done(key, number)


async def agent(chance: random.Random) -> None:
    """Steps, now and then in a session, without the cache, or under other settings."""
    while time.monotonic() < WORLD.ends and not WORLD.findings:
        kind = chance.random()
        async with contextlib.AsyncExitStack() as stack:
            if kind < 0.4:
                limits: Any = {"on_loop": "warn", "max_execution_depth": 10**9}
                await stack.enter_async_context(AgentCacheSession(tenant=chance.choice([None, "ada", "bob"]), **limits))
            elif kind < 0.45:
                stack.enter_context(bypass())
            elif kind < 0.452:
                stack.enter_context(configure(enabled=chance.random() < 0.8, max_bytes=chance.choice([None, 50_000])))
            for _ in range(chance.randrange(1, 12)):
                await one_step(chance)
        if chance.random() < 0.005:
            read.clear()


def in_loop(number: int) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(agent(random.Random(f"{WORLD.seed} {number} {task}")))

    asyncio.run(main())


def in_thread(number: int) -> None:
    chance = random.Random(f"{WORLD.seed} thread {number}")
    while time.monotonic() < WORLD.ends and not WORLD.findings:
        key = chance.choice(KEYS)
        if chance.random() < 0.95:
            least = WORLD.done[key]
            with WORLD.watched(f"read_in_thread {key}"):
                answer = read_in_thread(key)
            WORLD.check("read_in_thread", key, least, answer)
        else:
            with WORLD.watched(f"write_in_thread {key}"):
                WORLD.note_done(key, write_in_thread(key))


def run(seconds: float, seed: int) -> list[str]:
    """Run for so long, or until something is found. Returns what was found."""
    WORLD.seed, WORLD.ends = seed, time.monotonic() + seconds
    random.seed(seed)
    threads = [threading.Thread(target=in_loop, args=(number,), daemon=True) for number in range(LOOPS)]
    threads += [threading.Thread(target=in_thread, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    shown = time.monotonic()
    while any(thread.is_alive() for thread in threads) and not WORLD.findings:
        time.sleep(0.1)
        now = time.monotonic()
        late = [name for began, name in list(WORLD.running.values()) if now - began > PATIENCE]
        WORLD.findings += [f"{name} hangs" for name in late]
        if now - shown > 60:
            shown = now
            show(f"{sum(WORLD.counts.values()):,} calls, {WORLD.ends - now:,.0f} s left")
    if WORLD.findings:
        faulthandler.dump_traceback(all_threads=True)
    for thread in threads:
        thread.join(PATIENCE)
    if any(thread.is_alive() for thread in threads):
        WORLD.findings.append("a thread has not ended")
    return WORLD.findings


def main() -> int:
    parser = argparse.ArgumentParser(description="Readers and writers at random, checked by an oracle.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    show(f"seed {options.seed}")
    found = run(options.seconds, options.seed)
    metrics = get_metrics()
    hits = {name: metrics[name] for name in ("hits", "shared", "misses", "validated", "writes", "uncached", "errors")}
    show(f"{sum(WORLD.counts.values()):,} calls: {dict(WORLD.counts)}; {hits}")
    show("\n".join(found) or "nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
