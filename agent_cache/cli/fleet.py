"""`agent-cache tier stats`, `keys` and `clear`: what a Redis tier holds, from outside of its processes.

Exit codes: 0 fine or done, 2 usage, or a server that cannot be used.

`stats` and `keys` go through all keys by SCAN, a batch at a time, so neither the server is blocked nor does memory grow
with the number of keys. Nothing on the server is trusted: what cannot be read is counted as unreadable, or left out. No
message contains a URL, which may have a password in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

try:
    from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('this command needs redis-py: pip install "agent-cache[redis]"') from error
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from agent_cache.cli.output import Printer, escaped, print_json, progress, size_text
from agent_cache.cli.tier_options import (
    CALLS,
    duration_text,
    report_of,
    reported_calls,
    tags_of,
)
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import RedisTier, WriteIntent
from agent_cache.remote.backend import HELD, Head, open_head
from agent_cache.remote.cells import STORE, Cells
from agent_cache.remote.deployments import Deployment, deployment_of_url
from agent_cache.remote.inspection import StoredValue, root_of_cell

__all__ = [
    "Fleet",
    "Server",
    "Unusable",
    "clear",
    "code_of",
    "connected",
    "error_text",
    "fields_of",
    "keys",
    "server_command",
    "stats",
]

_CALL = re.compile(r"\ARedisTier(\.from_url)?: ")
"""The beginning of an error text that names the function which was called: a user of the command line called none."""
_CODES = ((NoPermissionError, "NOPERM"), (OutOfMemoryError, "OOM"), (ReadOnlyError, "READONLY"))
_SCAN = 1000
_VALUES = 500
"""Values whose headers are read in one round trip."""
_HEAD, _MAX_HEAD = 2048, 1 << 20
_MAX_ROOTS = 10_000
_ROOTS_AT_ONCE = 100
_LEAST_FOR_A_PROGRESS_BAR = 20_000  # keys
_DIGEST = 12
_NO_LOG = logging.Handler(logging.CRITICAL + 1)
"""Stands for a program that has set up logging."""


# Servers


class Unusable(Exception):
    """The URL does not lead to a server that can be asked."""


class Server:
    """One server, asked through a client of redis-py that never retries and returns replies as they are received."""

    def __init__(self, deployment: Deployment, address: tuple[str, int], timeout: float) -> None:
        host, port = address
        self.name = f"{host}:{port}" if port else host
        self.timeout = timeout
        kinds: dict[str, Any] = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        place: dict[str, Any] = {"path": host} if deployment.transport == "unix" else {"host": host, "port": port}
        self.client = Redis(
            connection_pool=ConnectionPool(
                kinds[deployment.transport],
                **deployment.settings,
                **place,
                protocol=2,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                retry_on_timeout=False,
                health_check_interval=0,
            )
        )
        self.client.response_callbacks.clear()

    async def ask(self, *command: str | bytes) -> Any:
        """Send one command.

        Raises:
            ResponseError: if the reply is an error.
            Unusable: if there is no reply in time.
        """
        (reply,) = await self.ask_all([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def ask_all(self, commands: Iterable[Sequence[str | bytes]]) -> list[Any]:
        """Send commands in one round trip. Errors that the server replies with stand among the replies.

        Raises:
            ResponseError: if the server refuses the connection.
            Unusable: if there is no reply in time.
        """
        try:
            async with self.client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute(raise_on_error=False)
        except ResponseError:
            raise
        except RedisError as error:
            raise Unusable(f"{self.name}: {error}") from error

    async def look_up(self, commands: Iterable[Sequence[str | bytes]]) -> list[Any]:
        """The same for commands that read keys of the tier, with None where a key has a value of another type.

        Raises:
            ResponseError: for other errors. A missing right would otherwise look like keys without values.
            Unusable: if there is no reply in time.
        """
        replies = await self.ask_all(commands)
        for index, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                if code_of(reply) != "WRONGTYPE":
                    raise reply
                replies[index] = None
        return replies


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The server of a tier; of a cluster, the node that has the namespace."""

    namespace: str
    cells: Cells
    server: Server
    is_cluster: bool

    @property
    def prefix(self) -> bytes:
        """What all keys begin with."""
        return b"{%b}:" % self.namespace.encode()


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[Fleet]:
    """Connect to the server that the options name, and to all others if it is a node of a cluster.

    Raises:
        ConfigurationError: if the URL or the namespace is not valid.
        ResponseError: if a server refuses the connection.
        Unusable: if a server does not answer, or is a Sentinel.
    """
    deployment = deployment_of_url(options.url, cluster=False, options={})
    _tier(options, is_cluster=False)  # checks the namespace
    made = [Server(deployment, deployment.seeds[0], options.timeout)]
    try:
        (server,) = made
        info = fields_of(await server.ask("INFO"))
        if "sentinel" in {info.get("redis_mode"), info.get("server_mode")}:
            raise Unusable("this is a Sentinel; give the URL of the primary that it watches")
        is_cluster = info.get("cluster_enabled") == "1"
        if is_cluster:
            slot = key_slot(options.namespace.encode())
            for low, high, (host, port, *_), *_ in await server.ask("CLUSTER", "SLOTS"):
                if low <= slot <= high:
                    address = (host.decode() or deployment.seeds[0][0], int(port))
                    made.append(server := Server(deployment, address, options.timeout))
                    break
            else:
                raise Unusable("no server has the slot of this namespace")
        yield Fleet(options.namespace, Cells(options.namespace), server, is_cluster)
    finally:
        for one in made:
            await one.client.aclose()
            await one.client.connection_pool.disconnect()


def _tier(options: argparse.Namespace, *, is_cluster: bool) -> RedisTier:
    return RedisTier.from_url(
        options.url,
        cluster=is_cluster,
        namespace=options.namespace,
        timeout=options.timeout,
        max_staleness=1.2 * options.timeout,
    )


def fields_of(info: bytes) -> dict[str, str]:
    """Parse the reply to INFO, or to CLUSTER INFO."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def code_of(error: ResponseError) -> str:
    """The code of an error reply, such as ``NOPERM``. redis-py removes it where it has a class for the error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    word = str(error).partition(" ")[0]
    return word if re.fullmatch("[A-Z]{3,}", word) else "ERR"


def error_text(error: ResponseError) -> str:
    """The text of an error reply with its code, as the server has sent it."""
    code, text = code_of(error), str(error)
    return text if text.startswith(code) else f"{code} {text}"


def server_command(
    job: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    """Make a command of a coroutine function. It prints errors of usage and of servers, and then returns 2."""

    def run(options: argparse.Namespace) -> int:
        # Without logging configured, Python prints warnings of the library to stderr. The command reports its errors
        # itself, and its tier does not try again, as the warnings say.
        logging.getLogger("agent_cache").addHandler(_NO_LOG)
        try:
            return asyncio.run(job(options))
        except (ConfigurationError, RemoteTierError) as error:
            print(escaped(_CALL.sub("", str(error))), file=sys.stderr)
        except ResponseError as error:
            print(f"the server has refused: {escaped(error_text(error))}", file=sys.stderr)
        except (RedisError, Unusable) as error:
            print(f"the server cannot be used: {escaped(error)}", file=sys.stderr)
        finally:
            logging.getLogger("agent_cache").removeHandler(_NO_LOG)
        return 2

    return run


# Keys and entries


async def _scan(fleet: Fleet, label: str) -> AsyncIterator[dict[str, list[bytes]]]:
    """All keys of the namespace, in batches, by their kind. SCAN may return a key twice while the server resizes its
    table.
    """
    server, prefix = fleet.server, fleet.prefix
    kinds = {b"v:@": "values", b"c:": "cells", b"p:": "reports"}
    pattern = re.sub(rb"([*?\[\]\\^-])", rb"\\\1", prefix) + b"*"
    size = await server.ask("DBSIZE")
    with progress(label, size, least=_LEAST_FOR_A_PROGRESS_BAR) as update:
        cursor, seen = b"0", 0
        while True:
            cursor, found = await server.ask("SCAN", cursor, "MATCH", pattern, "COUNT", str(_SCAN))
            batch: dict[str, list[bytes]] = {kind: [] for kind in kinds.values()}
            for key in found:
                for start, kind in kinds.items():
                    if key.startswith(prefix + start):
                        batch[kind].append(key)
            seen += _SCAN
            update(seen)
            yield batch
            if cursor == b"0":
                break


async def _entries(fleet: Fleet, keys: Sequence[bytes]) -> list[StoredValue]:
    """Look at values, without their payloads. Those that have expired by now are left out."""
    found: list[StoredValue] = []
    server, prefix = fleet.server, fleet.prefix
    for start in range(0, len(keys), _VALUES):
        some = keys[start : start + _VALUES]
        info, time_parts, *replies = await server.look_up(
            (
                ("INFO", "replication"),
                ("TIME",),
                *(
                    command
                    for key in some
                    for command in (("STRLEN", key), ("PTTL", key), ("GETRANGE", key, "0", str(_HEAD - 1)))
                ),
            )
        )
        fields = fields_of(info)
        if fields.get("role") != "master":
            raise Unusable("it is a replica; give the URL of the primary")
        now = int(time_parts[0]) + int(time_parts[1]) / 1e6
        sizes, lefts, starts = replies[::3], replies[1::3], replies[2::3]
        heads = [await _head(server, *each) for each in zip(some, sizes, starts, strict=True)]
        wanted = sorted({cell for head in heads if head is not None for cell in head.versions if cell != STORE})
        states: dict[str, tuple[Any, int]] = {STORE: (fields["master_replid"], 0)}
        versions = await server.look_up(("GET", prefix + b"c:" + cell.encode()) for cell in wanted)
        modes = await server.look_up(("HVALS", prefix + b"h:" + cell.encode()) for cell in wanted)
        for cell, version, holders in zip(wanted, versions, modes, strict=True):
            mode = max([int(one) for one in holders or () if one.isdigit()], default=0)
            states[cell] = (None if version is None else version.decode("utf-8", "replace")), min(mode, HELD)
        for key, size, left, head in zip(some, sizes, lefts, heads, strict=True):
            if size != 0:
                address = key[len(prefix) + 2 :].decode("utf-8", "replace")
                life = max(0, left) / 1000
                found.append(StoredValue.of(address, head, states, size=size or 0, now=now, left=life))
    return found


async def _head(server: Server, key: bytes, size: int | None, start: bytes | None) -> Head | None:
    if size is None or start is None:
        return None
    text, newline, _ = start.partition(b"\n")
    if not newline and size > len(start):  # it names so many entities that it is longer than what was read
        try:
            text = (await server.ask("GETRANGE", key, "0", str(_MAX_HEAD - 1))).partition(b"\n")[0]
        except ResponseError:
            return None
    return open_head(text)


# stats


@server_command
async def stats(options: argparse.Namespace) -> int:
    """Print entries, bytes and hit rates for each resource root."""
    totals: Counter[str] = Counter()
    roots: defaultdict[str, Counter[str]] = defaultdict(Counter)
    processes: set[bytes] = set()

    def counts_of(root: str) -> Counter[str]:
        return roots[root if root in roots or len(roots) < _MAX_ROOTS else "(others)"]  # forged keys name any number

    async with connected(options) as fleet:
        left = options.sample
        async for batch in _scan(fleet, "scanning"):
            sample = batch["values"][:left]
            left -= len(sample)
            totals.update(entries=len(batch["values"]), inspected=len(sample))
            for entry in await _entries(fleet, sample):
                totals.update(bytes=entry.size, unreadable=entry.head is None)
                for root in entry.roots:
                    counts_of(root).update(entries=1, bytes=entry.size, current=entry.is_current)
            for key in batch["cells"]:
                cell = key[len(fleet.prefix) + 2 :].decode("utf-8", "replace")
                if (root := root_of_cell(cell)) and cell.startswith(f"{root}::"):
                    counts_of(root)["entities"] += 1
            reports = await fleet.server.look_up(("GET", key) for key in batch["reports"])
            for key, report in zip(batch["reports"], reports, strict=True):
                if report is not None and key not in processes:
                    processes.add(key)
                    for root, calls in reported_calls(report_of(report)):
                        counts_of(root).update(calls)
        (writers,) = await fleet.server.look_up([("HVALS", fleet.prefix + b"r")])
        for packed in writers or ():
            for root in {root_of_cell(cell) for cell in _cells_of(packed)} - {""}:
                counts_of(root)["writers"] += 1
    scale = totals["entries"] / totals["inspected"] if totals["inspected"] else 1.0
    shown: dict[str, Any] = {
        "namespace": options.namespace,
        "servers": [fleet.server.name],
        "entries": totals["entries"],
        "bytes": round(totals["bytes"] * scale),
        "inspected": totals["inspected"],
        "unreadable": totals["unreadable"],
        "processes": len(processes),
        "roots": {root: _root_document(counts, scale) for root, counts in sorted(roots.items())},
    }
    if options.json:
        print_json(shown)
    else:
        _print_stats(shown)
    return 0


def _root_document(counts: Counter[str], scale: float) -> dict[str, Any]:
    calls = sum(counts[name] for name in CALLS)
    return {
        **{name: round(counts[name] * scale) for name in ("entries", "bytes", "current")},
        **{name: counts[name] for name in ("entities", "writers")},
        **{name: counts.get(name) for name in CALLS},  # None: no process has reported this root
        "hit_rate": counts["hits"] / calls if calls else None,
    }


def _print_stats(document: dict[str, Any]) -> None:
    printer, is_sample = Printer(), document["inspected"] < document["entries"]
    about = "~" if is_sample else ""
    rows = [
        (
            name,
            f"{about}{root['entries']:,}",
            f"{about}{size_text(root['bytes'])}",
            f"{root['current'] / root['entries']:.0%}" if root["entries"] else "-",
            f"{root['entities']:,}",
            str(root["writers"]),
            "-" if root["hit_rate"] is None else f"{root['hit_rate']:.1%}",
        )
        for name, root in sorted(document["roots"].items(), key=lambda each: (-each[1]["bytes"], each[0]))
    ]
    if rows:
        printer.table(("root", "entries", "bytes", "current", "entities", "writers", "hit rate"), rows)
        printer.line()
    sampled = f", {document['inspected']:,} of them looked into" if is_sample else ""
    unreadable = f"; {document['unreadable']:,} of another version or damaged" if document["unreadable"] else ""
    printer.line(
        f"{document['entries']:,} entries in {document['namespace']!r}{sampled}, {about}{size_text(document['bytes'])}"
        f"{unreadable}; {document['processes']} processes"
    )


# keys


@server_command
async def keys(options: argparse.Namespace) -> int:
    """Print entries: digests, tags, sizes and ages."""
    tags = tags_of(options)
    listed: list[dict[str, Any]] = []
    is_cut = False
    async with connected(options) as fleet, aclosing(_matching(fleet, tags)) as found:
        named = {fleet.cells.read(tag)[-1]: ":".join(tag.split(":")[:2]) for tag in tags if ":" in tag}
        async for entry in found:
            if is_cut := len(listed) == options.limit:
                break
            listed.append(_entry_document(entry, named))
    if options.json:
        print_json({"namespace": options.namespace, "entries": listed, "is_cut": is_cut})
        return 0
    rows = [
        (
            each["digest"][:_DIGEST],
            ", ".join((*each["tags"][:4], *(["..."] if len(each["tags"]) > 4 else []))),
            size_text(each["bytes"]),
            "-" if each["age"] is None else duration_text(each["age"]),
            duration_text(each["expires_in"]),
            "yes" if each["is_current"] else "no",
        )
        for each in listed
    ]
    printer = Printer()
    if rows:
        printer.table(("digest", "depends on", "bytes", "age", "expires in", "current"), rows, left=2)
        printer.line()
    more = f", and more: --limit {options.limit}" if is_cut else ""
    printer.line(f"{len(rows)} {'entry' if len(rows) == 1 else 'entries'}{more}")
    return 0


async def _matching(fleet: Fleet, tags: list[str]) -> AsyncGenerator[StoredValue, None]:
    """All entries, or with tags those that a write of these tags would drop."""
    written = fleet.cells.written(tags)
    async for batch in _scan(fleet, "scanning"):
        for entry in await _entries(fleet, batch["values"]):
            if not tags or (entry.head is not None and not written.isdisjoint(entry.head.versions)):
                yield entry


def _cells_of(packed: bytes) -> list[str]:
    """The cells of a writer, as the scripts keep them."""
    try:
        cells = json.loads(packed)
    except ValueError:
        return []
    return [cell for cell in cells if isinstance(cell, str)] if isinstance(cells, list) else []


def _entry_document(entry: StoredValue, named: Mapping[str, str]) -> dict[str, Any]:
    """Facts of an entry. The id of an entity is a digest, ``order:#3fa9c1d2e4b5``, unless the command line names it."""
    head = entry.head
    return {
        "digest": entry.digest,
        "tool": "" if head is None else head.tool,
        "tags": entry.tags(named),
        "bytes": entry.size,
        "age": None if entry.age is None else round(entry.age, 3),
        "ttl": None if head is None else head.ttl,
        "grace": None if head is None else head.grace,
        "cost": None if head is None else round(head.cost, 6),
        "expires_in": entry.left,
        "is_current": entry.is_current,
    }


# clear


@server_command
async def clear(options: argparse.Namespace) -> int:
    """Drop entries by tag: begin and commit a write of these tags, which has no other effect."""
    tags = tags_of(options)
    if options.all == bool(tags):
        raise ConfigurationError("clear: name tags, such as order:7 or order, or --all for everything; not both")
    if options.all and not options.yes:
        print(f"This drops everything under {options.namespace!r}, in every process. Add --yes.", file=sys.stderr)
        return 2
    deleted = 0
    async with connected(options) as fleet, _tier(options, is_cluster=fleet.is_cluster) as tier:
        if options.all:
            deleted = await tier.clear()
        for start in range(0, len(tags), _ROOTS_AT_ONCE):
            some = tuple(tags[start : start + _ROOTS_AT_ONCE])
            write = WriteIntent(os.urandom(16).hex(), some, on_unreachable="refuse")
            await tier.begin(write)
            await tier.commit(write, some, failed=False, hold=0.0)
            if tier.stats()["pending"]:
                raise Unusable(
                    "the connection was lost between begin and commit; the tags are dropped when the lease "
                    "expires, but run the command again to be sure"
                )
    if options.json:
        print_json({"namespace": options.namespace, "tags": tags, "deleted": deleted})
    elif options.all:
        print(f"cleared everything, deleted {deleted:,} entries")
    else:
        print(f"cleared {', '.join(tags)}")
    return 0
