"""`agent-cache keys`: entries by digest. What they were asked with cannot be seen from them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from agent_cache._fleet.screen import amount, duration, print_json, print_table, progress
from agent_cache._fleet.servers import opened
from agent_cache._fleet.survey import Entry, batches, entries_of, root_of_cell
from agent_cache.core.tags import parse_tag
from agent_cache.errors import ConfigurationError
from agent_cache.remote.redis.names import CellKey

__all__ = ["keys", "tags_of"]

_SHOWN = 12


def tags_of(options: argparse.Namespace) -> list[str]:
    """The tags that the command line names.

    Raises:
        ConfigurationError: if one is none. A URL, which may have a password in it, is not repeated.
    """
    if any("://" in root for root in [*options.tags, *(root for root, _ in options.entity)]):
        raise ConfigurationError(
            "a tag has no :// in it; did you mean --url URL? An id with a colon in it is given by --entity ROOT ID"
        )
    return [parse_tag(tag) for tag in [*options.tags, *options.entity]]


async def keys(options: argparse.Namespace) -> int:
    """Run the command."""
    tags = tags_of(options)
    listed: list[dict[str, Any]] = []
    is_cut = False
    async with opened(options.url, options.namespace, options.timeout) as servers:
        names = servers.core.names
        known = {
            names.entity(names.root(head), segments[0]): f"{head}:{segments[0]}"
            for head, *segments in (tag.split(":", 2) for tag in tags)
            if segments
        }
        moved = names.moved_by(tags).keys()
        sizes = [await server.ask(b"DBSIZE") for server in servers.all]
        with progress("scanning", sum(sizes)) as tick:
            before = 0
            for server, size in zip(servers.all, sizes, strict=True):
                async for batch in batches(server, options.namespace, lambda done, past=before: tick(past + done)):  # type: ignore[misc]
                    for entry in await entries_of(servers, server, batch.values):
                        if tags and (entry.header is None or moved.isdisjoint(entry.header.cells)):
                            continue
                        if len(listed) == options.limit:
                            is_cut = True
                            break
                        listed.append(_facts(entry, known))
                    if is_cut:
                        break
                before += size
                if is_cut:
                    break
    if options.json:
        print_json({"namespace": options.namespace, "entries": listed, "is_cut": is_cut})
        return 0
    if listed:
        rows = [
            (
                each["digest"][:_SHOWN], ", ".join(each["tags"][:4]) + (", ..." if len(each["tags"]) > 4 else ""),
                amount(each["bytes"]), "-" if each["age"] is None else duration(each["age"]),
                duration(each["expires_in"]), "yes" if each["is_current"] else "no",
            )
            for each in listed
        ]  # fmt: skip
        print_table(("digest", "depends on", "bytes", "age", "expires in", "current"), rows, left=2)
        print()
    print(
        f"{len(listed)} {'entry' if len(listed) == 1 else 'entries'}"
        + (f", and more: --limit {options.limit}" if is_cut else "")
    )
    return 0


def _facts(entry: Entry, known: Mapping[CellKey, str]) -> dict[str, Any]:
    header = entry.header
    return {
        "digest": entry.digest,
        "tags": [] if header is None else _tags(header.cells, known),
        "bytes": entry.bytes,
        "age": None if header is None else max(0.0, round(time.time() - header.loaded, 3)),
        "ttl": None if header is None else header.ttl,
        "grace": None if header is None else header.grace,
        "cost": None if header is None else round(header.cost, 6),
        "expires_in": entry.left,
        "is_current": entry.is_current,
    }


def _tags(cells: Mapping[CellKey, bytes], known: Mapping[CellKey, str]) -> list[str]:
    """An entity is its digest, ``order:#3fa9c1d2e4b5``, unless the command line has named it."""
    tags: dict[str, None] = {}
    for cell in cells:
        name = cell.rpartition(b":")[2].decode("utf-8", "replace")
        root = root_of_cell(cell)
        if cell in known:
            tags[known[cell]] = None
        elif name.startswith("T"):
            tags[f"{root}:#{name[1 : 1 + _SHOWN]}"] = None
        elif name == "D":
            tags[root] = None
    return list(tags)
