"""`agent-cache stats`: entries, bytes and hit rates for each resource root."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agent_cache._fleet.screen import amount, print_json, print_table, progress
from agent_cache._fleet.servers import Server, Servers, opened
from agent_cache._fleet.survey import Batch, batches, entries_of, looked_up, root_of_cell

__all__ = ["stats"]

_MAX_ROOTS = 10_000
_COUNTED = ("hits", "misses", "shared")
_MAX_COUNT = 1 << 63


@dataclass(slots=True)
class RootCount:
    """What there is of one root. Values are those that were looked into."""

    entries: int = 0
    bytes: int = 0
    current: int = 0
    entities: int = 0
    writers: int = 0
    calls: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """What there is of a namespace."""

    roots: dict[str, RootCount] = field(default_factory=dict)
    values: int = 0
    inspected: int = 0
    bytes: int = 0
    unreadable: int = 0
    processes: set[str] = field(default_factory=set)

    def root(self, name: str) -> RootCount:
        """The count of a root; beyond ten thousand of them they are taken together."""
        if name not in self.roots and len(self.roots) >= _MAX_ROOTS:
            name = "(others)"
        return self.roots.setdefault(name, RootCount())


async def stats(options: argparse.Namespace) -> int:
    """Run the command."""
    tally = Tally()
    async with opened(options.url, options.namespace, options.timeout) as servers:
        sizes = [await server.ask(b"DBSIZE") for server in servers.all]
        with progress("scanning", sum(sizes)) as tick:
            before = 0
            for server, size in zip(servers.all, sizes, strict=True):
                left = options.sample
                async for batch in batches(server, options.namespace, lambda done, past=before: tick(past + done)):  # type: ignore[misc]
                    tally.values += len(batch.values)
                    chosen, left = batch.values[:left], max(0, left - len(batch.values))
                    await _count_values(tally, servers, server, chosen)
                    await _count_others(tally, server, batch)
                before += size
    if options.json:
        print_json(_document(tally, options.namespace, servers))
    else:
        _show(tally, options.namespace)
    return 0


async def _count_values(tally: Tally, servers: Servers, server: Server, keys: list[bytes]) -> None:
    tally.inspected += len(keys)  # what is gone meanwhile counts too: it would be missing elsewhere as well
    for entry in await entries_of(servers, server, keys):
        tally.bytes += entry.bytes
        tally.unreadable += entry.header is None
        for root in entry.roots:
            count = tally.root(root)
            count.entries += 1
            count.bytes += entry.bytes
            count.current += entry.is_current


async def _count_others(tally: Tally, server: Server, batch: Batch) -> None:
    for cell in batch.cells:
        count = tally.root(root_of_cell(cell))
        count.entities += cell.rpartition(b":")[2].startswith(b"T")
    writers = await looked_up(server, [(b"ZCARD", registry) for registry in batch.registries])
    for registry, number in zip(batch.registries, writers, strict=True):
        tally.root(root_of_cell(registry)).writers += number if isinstance(number, int) else 0
    reports = await looked_up(server, [(b"GET", key) for key in batch.heartbeats])
    for key, report in zip(batch.heartbeats, reports, strict=True):
        process = key.rpartition(b":")[2].decode("utf-8", "replace")
        if process not in tally.processes and type(report) is bytes:  # one for each server of a cluster
            tally.processes.add(process)
            for root, calls in _reported(report).items():
                tally.root(root).calls.update(calls)


def _reported(report: bytes) -> dict[str, dict[str, int]]:
    """What a process says in its heartbeat of its own calls: root to hits, misses and shared ones.

    Whoever may write to the server may write this. What says of a root anything but counts says nothing of it.
    """
    try:
        said = json.loads(report)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {
        str(root): dict(zip(_COUNTED, numbers, strict=False))
        for root, numbers in said.items()
        if isinstance(numbers, list) and len(numbers) >= len(_COUNTED) and all(map(_is_count, numbers))
    }


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < _MAX_COUNT


def _hit_rate(calls: Counter[str]) -> float | None:
    total = sum(calls[name] for name in _COUNTED)
    return calls["hits"] / total if total else None


def _document(tally: Tally, namespace: str, servers: Servers) -> dict[str, Any]:
    scale = tally.values / tally.inspected if tally.inspected else 1.0
    return {
        "namespace": namespace,
        "servers": [str(server) for server in servers.all],
        "entries": tally.values,
        "bytes": round(tally.bytes * scale),
        "inspected": tally.inspected,
        "unreadable": tally.unreadable,
        "processes": len(tally.processes),
        "roots": {
            root: {
                "entries": round(count.entries * scale),
                "bytes": round(count.bytes * scale),
                "current": round(count.current * scale),
                "entities": count.entities,
                "writers": count.writers,
                **{name: count.calls[name] if count.calls else None for name in _COUNTED},
                "hit_rate": _hit_rate(count.calls),
            }
            for root, count in sorted(tally.roots.items())
        },
    }


def _show(tally: Tally, namespace: str) -> None:
    is_sample = tally.inspected < tally.values
    scale = tally.values / tally.inspected if tally.inspected else 1.0
    about = "~" if is_sample else ""
    rows = []
    for root, count in sorted(tally.roots.items(), key=lambda each: (-each[1].bytes, each[0])):
        rate = _hit_rate(count.calls)
        rows.append((
            root,
            f"{about}{count.entries * scale:,.0f}",
            f"{about}{amount(count.bytes * scale)}",
            "-" if not count.entries else f"{count.current / count.entries:.0%}",
            f"{count.entities:,}",
            str(count.writers),
            "-" if rate is None else f"{rate:.1%}",
        ))  # fmt: skip
    if rows:
        print_table(("root", "entries", "bytes", "current", "entities", "writers", "hit rate"), rows)
        print()
    sampled = f", {tally.inspected:,} of them looked into" if is_sample else ""
    unreadable = f"; {tally.unreadable:,} of another version or damaged" if tally.unreadable else ""
    print(
        f"{tally.values:,} entries in {namespace!r}{sampled}, {about}{amount(tally.bytes * scale)}{unreadable}; "
        f"{len(tally.processes)} processes"
    )
