"""Compares agent_cache with other caches on the same tools: `python -m benchmarks.compare`.

Each cache is used as its own documentation says for an async function with a time to live, all in one process and
interleaved. Compared are those of async-lru, cachebox, async-cache, cashews, aiocache and theine that are installed.
They are imported by name inside the function that needs them, because some have no type hints and one calls its
top-level package `cache`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from benchmarks.commands import describe_machine, installed_version, put_table, write_facts
from benchmarks.rows.process import bytes_per_entry, marks
from benchmarks.table import markdown
from benchmarks.timing import QUICK, Effort, Figure, Spread, calling, hitting, measure, progress
from benchmarks.workload import FILTERS, TTL, USER, Stampede, filter_tool, scalar_tool

OF_CACHEBOX = 0.75
MAXSIZE = 1024
Tool = Callable[[Any], Awaitable[Any]]


class Decorate(Protocol):
    """Decorate a tool of one argument for at most so many entries."""

    def __call__(self, tool: Tool, /, maxsize: int) -> Tool: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """One cache: how it decorates a tool with a scalar argument, with a nested dict, and for a stampede."""

    name: str
    distribution: str
    scalar: Decorate
    nested: Decorate
    stampede: Decorate
    remark: str = ""

    @property
    def version(self) -> str | None:
        """The installed version; None where the peer is not installed."""
        return installed_version(self.distribution)


def json_key(filters: dict[str, Any]) -> str:
    """The key that people write by hand for an argument that cannot be hashed."""
    return json.dumps(filters, sort_keys=True)


def _agent_cache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("agent_cache").AgentCache(resource="card", ttl=TTL, maxsize=maxsize)(tool)
    return decorated


def _async_lru(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("async_lru").alru_cache(maxsize=maxsize, ttl=TTL)(tool)
    return decorated


def _async_lru_nested(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("async_lru").alru_cache(maxsize=maxsize, ttl=TTL, key=json_key)(tool)
    return decorated


def _cachebox(tool: Tool, maxsize: int) -> Tool:
    cachebox = import_module("cachebox")
    decorated: Tool = cachebox.cached(cachebox.TTLCache(maxsize, TTL))(tool)
    return decorated


def _cachebox_nested(tool: Tool, maxsize: int) -> Tool:
    cachebox = import_module("cachebox")
    decorated: Tool = cachebox.cached(cachebox.TTLCache(maxsize, TTL), key_maker=json_key)(tool)
    return decorated


def _async_cache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("cache").AsyncTTL(time_to_live=TTL, maxsize=maxsize)(tool)
    return decorated


def _cashews(tool: Tool, maxsize: int) -> Tool:
    cache = import_module("cashews").Cache()
    cache.setup("mem://", size=maxsize)
    decorated: Tool = cache(ttl=timedelta(seconds=TTL))(tool)
    return decorated


def _aiocache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("aiocache").cached(ttl=TTL)(tool)  # its memory cache has no bound
    return decorated


def _aiocache_stampede(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("aiocache").cached_stampede(ttl=TTL)(tool)
    return decorated


def _theine(tool: Tool, maxsize: int) -> Tool:
    decorated: Any = import_module("theine").Memoize(maxsize, timedelta(seconds=TTL))(tool)
    decorated.key(lambda argument: f"card:{argument}")
    keyed: Tool = decorated
    return keyed


def _theine_stampede(tool: Tool, maxsize: int) -> Tool:
    decorated = _theine(tool, maxsize)

    async def call(argument: Any) -> Any:  # equal calls return one awaitable, which `gather` would await only once
        return await decorated(argument)

    return call


def _theine_nested(tool: Tool, maxsize: int) -> Tool:
    decorated: Any = import_module("theine").Memoize(maxsize, timedelta(seconds=TTL))(tool)
    decorated.key(json_key)
    keyed: Tool = decorated
    return keyed


BY_HAND = "nested key by hand: json.dumps"

OURS = Peer("agent_cache", "agent-cache", _agent_cache, _agent_cache, _agent_cache)
CACHEBOX = Peer("cachebox", "cachebox", _cachebox, _cachebox_nested, _cachebox, f"TTLCache, Rust; {BY_HAND}")
PEERS = (
    OURS,
    CACHEBOX,
    Peer("async-lru", "async-lru", _async_lru, _async_lru_nested, _async_lru, BY_HAND),
    Peer("theine", "theine", _theine, _theine_nested, _theine_stampede, f"Rust policy; {BY_HAND}"),
    Peer("async-cache", "async-cache", _async_cache, _async_cache, _async_cache, "AsyncTTL"),
    Peer("aiocache", "aiocache", _aiocache, _aiocache, _aiocache_stampede, "memory; cold key: cached_stampede"),
    Peer("cashews", "cashews", _cashews, _cashews, _cashews, "mem://"),
)


def is_present(peer: Peer) -> bool:
    """Whether the peer can be imported; ours may be a source tree that was never installed."""
    if peer is not OURS:
        return peer.version is not None
    try:
        return hasattr(import_module("agent_cache"), "AgentCache")
    except ImportError:
        return False


ENTRIES = 200_000
STATM = Path("/proc/self/statm")


def resident_bytes_per_entry(peer: Peer) -> float | None:
    """Resident bytes per entry over key and value; None where the system has no /proc.

    `tracemalloc` counts only Python's own allocations, and two of the caches hold a part of theirs in Rust. So each
    cache is filled in a process of its own, whose growth is divided by the number of entries.
    """
    if not STATM.exists():
        return None
    command = [sys.executable, "-m", "benchmarks.compare", "--resident", peer.name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _resident() -> int:
    gc.collect()
    return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _growth(peer: Peer) -> float:
    keys = [f"user_{number:08d}" for number in range(ENTRIES)]
    values = {key: f"card {key}" for key in keys}

    async def get_card(user_id: str) -> str:
        return values[user_id]

    tool = peer.scalar(get_card, ENTRIES)
    await tool(keys[0])
    before = _resident()
    for key in keys:
        await tool(key)
    return (_resident() - before) / ENTRIES


async def _hits(peers: list[Peer], effort: Effort) -> dict[str, Figure]:
    subjects = {peer.name: hitting(peer.scalar(scalar_tool(), MAXSIZE), USER) for peer in peers}
    return await measure({"bare": calling(scalar_tool(), USER), **subjects}, effort, title="hits, scalar argument")


async def _nested(peers: list[Peer], effort: Effort) -> dict[str, Figure]:
    subjects = {peer.name: hitting(peer.nested(filter_tool(), MAXSIZE), FILTERS) for peer in peers}
    return await measure(
        {"bare": calling(filter_tool(), FILTERS), **subjects}, effort, title="hits, nested dict argument"
    )


async def _stampede(peers: list[Peer], effort: Effort) -> tuple[dict[str, Figure], dict[str, int]]:
    stampedes = {"bare": Stampede(), **{peer.name: Stampede(partial(peer.stampede, maxsize=MAXSIZE)) for peer in peers}}
    subjects = {name: one.sample for name, one in stampedes.items()}
    figures = await measure(subjects, effort, title="a thousand tasks on one cold key")
    return figures, {name: one.most_executions for name, one in stampedes.items()}


async def _memory(peers: list[Peer]) -> dict[str, Spread]:
    sizes = {}
    for done, peer in enumerate(peers):
        progress("bytes per entry", done, len(peers))
        sizes[peer.name] = await bytes_per_entry(partial(peer.scalar, maxsize=10 * marks()[-1]))
    progress("bytes per entry", len(peers), len(peers))
    return sizes


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f}x ({spread.low:.2f} to {spread.high:.2f})"


async def compared(peers: list[Peer], effort: Effort) -> tuple[list[tuple[str, ...]], dict[str, object]]:
    """The lines of the table, and every figure for `--json`."""
    hits = await _hits(peers, effort)
    nested = await _nested(peers, effort)
    cold, executions = await _stampede(peers, effort)
    traced = await _memory(peers)
    lines: list[tuple[str, ...]] = []
    record: dict[str, object] = {"bare_ns": hits["bare"].spread.median * 1e9}
    for peer in peers:
        progress(f"resident memory of {peer.name}")
        resident = resident_bytes_per_entry(peer)
        name = peer.name
        lines.append(
            (
                f"{name} {peer.version or '(source tree)'}",
                _ratio(hits[name].over(hits["bare"])),
                _ratio(nested[name].over(nested["bare"])),
                _ratio(cold[name].over(cold["bare"])),
                str(executions[name]),
                f"{traced[name].median:.0f}",
                "" if resident is None else f"{resident:.0f}",
                peer.remark,
            )
        )
        record[name] = {
            "version": peer.version,
            "hit": hits[name].over(hits["bare"]).median,
            "nested": nested[name].over(nested["bare"]).median,
            "cold_gather": cold[name].over(cold["bare"]).median,
            "executions": executions[name],
            "traced_bytes": traced[name].median,
            "resident_bytes": resident,
        }
    if OURS in peers and CACHEBOX in peers:
        record["of_cachebox"] = hits[OURS.name].over(hits[CACHEBOX.name]).median
    return lines, record


HEADINGS = (
    "cache",
    "hit, scalar argument",
    "hit, nested dict",
    "1,000 tasks, cold key",
    "executions",
    "bytes an entry (traced)",
    "(resident)",
    "note",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds: not exact")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write every figure to PATH")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    parser.add_argument("--resident", choices=[peer.name for peer in PEERS], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.resident:
        (chosen,) = (peer for peer in PEERS if peer.name == options.resident)
        print(asyncio.run(_growth(chosen)))
        return 0
    peers = [peer for peer in PEERS if is_present(peer)]
    for absent in (peer for peer in PEERS if peer not in peers):
        print(f"{absent.name} is not installed and is left out", file=sys.stderr)
    lines, record = asyncio.run(compared(peers, QUICK if options.quick else Effort()))
    shown = (
        f"{describe_machine([peer.distribution for peer in peers])}\n\n"
        f"Multiples of the bare tool ({record['bare_ns']:.0f} ns for the scalar one), median and quartiles.\n\n"
        f"{markdown(HEADINGS, lines)}"
    )
    print(shown)
    write_facts(options.json, record)
    if options.page:
        put_table("compare", shown)
    if not isinstance(fraction := record.get("of_cachebox"), float):
        return 0
    verdict = "ok" if fraction <= OF_CACHEBOX else "MISSED"
    print(f"\nA hit takes {fraction:.2f} of the time of cachebox's in the same run (budget {OF_CACHEBOX}): {verdict}.")
    return 0 if fraction <= OF_CACHEBOX else 1


if __name__ == "__main__":
    sys.exit(main())
