"""`agent-cache stats`, `keys` and `clear`: count, list and drop what a Redis tier holds, from outside of its processes.

Exit codes: 0 fine or done, 2 usage, or a server that cannot be used.

`stats` and `keys` go through all keys by SCAN, a batch at a time, so neither the server is blocked nor does memory grow
with the number of keys. Nothing on the server is trusted: what cannot be read is counted as unreadable, or left out. No
message contains a URL, which may have a password in it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import time
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
from agent_cache.remote.redis.deployments import Deployment, deployment_of_url
from agent_cache.remote.redis.keyspace import (
    BadValue,
    CellKey,
    Header,
    Keyspace,
    SeenCell,
    is_held,
    unpack_value,
    version_of,
)

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
_NO_LOG = logging.NullHandler()


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
    """The servers of a tier: one, or all primaries of a cluster.

    Attributes:
        names: the layout of the keys.
        slots: of a cluster: first slot, last slot, and the server that has them.
    """

    names: Keyspace
    servers: list[Server]
    slots: list[tuple[int, int, Server]]

    @property
    def is_cluster(self) -> bool:
        """Whether the keys are spread over several servers."""
        return bool(self.slots)

    def server_of(self, key: bytes) -> Server:
        """The server that has a key.

        Raises:
            Unusable: if no server has its slot.
        """
        if not self.slots:
            return self.servers[0]
        slot = key_slot(key)
        for first, last, server in self.slots:
            if first <= slot <= last:
                return server
        raise Unusable("a part of the slots has no server")


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
    names = Keyspace(options.namespace)
    by_address = {deployment.seeds[0]: Server(deployment, deployment.seeds[0], options.timeout)}
    try:
        (first,) = by_address.values()
        info = fields_of(await first.ask("INFO"))
        if "sentinel" in {info.get("redis_mode"), info.get("server_mode")}:
            raise Unusable("this is a Sentinel; give the URL of the primary that it watches")
        slots: list[tuple[int, int, Server]] = []
        if info.get("cluster_enabled") == "1":
            for low, high, (host, port, *_), *_ in await first.ask("CLUSTER", "SLOTS"):
                address = (host.decode() or deployment.seeds[0][0], int(port))
                if address not in by_address:
                    by_address[address] = Server(deployment, address, options.timeout)
                slots.append((low, high, by_address[address]))
            if not slots:
                raise Unusable("no slots of the cluster are assigned yet")
        servers = list(dict.fromkeys(server for _, _, server in slots)) or [first]
        yield Fleet(names, servers, slots)
    finally:
        for server in by_address.values():
            await server.client.aclose()
            await server.client.connection_pool.disconnect()


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


_Batch = Mapping[str, list[bytes]]
"""Keys by kind: ``values``, ``cells``, ``registries``, ``claims`` and ``heartbeats``."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value on a server.

    Attributes:
        size: its length in bytes; 0 if the key holds something else.
        left: seconds until the server deletes it.
        header: what it depends on; None if it is damaged or of another version.
        is_current: whether a lookup would find it: nothing that it depends on was written since.
    """

    digest: str
    size: int
    left: float
    header: Header | None
    is_current: bool

    @property
    def roots(self) -> set[str]:
        """Roots that it depends on. The cell of the entry itself (K) belongs to a root, but is no dependency."""
        cells = () if self.header is None else self.header.cells
        return {_root_of(cell) for cell in cells if not _name_of(cell).startswith(b"K")}


def _root_of(key: bytes) -> str:
    """The root of a cell, a registry or a channel: ``t:{namespace:order}:S`` belongs to ``order``."""
    inside = key.partition(b"{")[2].rpartition(b"}")[0]
    return inside.partition(b":")[2].decode("utf-8", "replace")


def _name_of(cell: CellKey) -> bytes:
    return cell.rpartition(b":")[2]


async def _scan(fleet: Fleet, label: str) -> AsyncIterator[tuple[Server, _Batch]]:
    """All keys of the namespace, in batches. SCAN may return a key twice while the server resizes its table."""
    name = re.escape(fleet.names.namespace.encode())
    kinds = re.compile(
        rb"(?:(?P<values>v:%b:[0-9a-f]+)|(?P<cells>t:\{%b:.*\}:[SDTK][0-9a-f]*)|(?P<registries>w:\{%b:.*\})"
        rb"|(?P<claims>r:%b:[0-9a-f]+(?::[0-9a-f]+)?)|(?P<heartbeats>%b:hb:.*))\Z" % (name, name, name, name, name),
        re.DOTALL,
    )
    pattern = b"*" + re.sub(rb"([*?\[\]\\^-])", rb"\\\1", fleet.names.namespace.encode()) + b":*"
    sizes = [await server.ask("DBSIZE") for server in fleet.servers]
    with progress(label, sum(sizes), least=_LEAST_FOR_A_PROGRESS_BAR) as update:
        for number, server in enumerate(fleet.servers):
            cursor, seen = b"0", sum(sizes[:number])
            while True:
                cursor, found = await server.ask("SCAN", cursor, "MATCH", pattern, "COUNT", str(_SCAN))
                batch: defaultdict[str, list[bytes]] = defaultdict(list)
                for key in found:
                    if match := kinds.match(key):
                        batch[str(match.lastgroup)].append(key)
                seen += _SCAN
                update(seen)
                yield server, batch
                if cursor == b"0":
                    break


async def _entries(fleet: Fleet, server: Server, keys: Sequence[bytes]) -> list[_Entry]:
    """Read the headers of values. Values that have expired by now are left out."""
    found = []
    for start in range(0, len(keys), _VALUES):
        some = keys[start : start + _VALUES]
        replies = await server.look_up(
            command
            for key in some
            for command in (("STRLEN", key), ("PTTL", key), ("GETRANGE", key, "0", str(_HEAD - 1)))
        )
        sizes, lefts, heads = replies[::3], replies[1::3], replies[2::3]
        headers = [await _header(server, *each) for each in zip(some, sizes, heads, strict=True)]
        cells = await _cells(fleet, {cell for header in headers if header is not None for cell in header.cells})
        for key, size, left, header in zip(some, sizes, lefts, headers, strict=True):
            if size != 0:
                digest, is_current = key.rpartition(b":")[2].decode(), _is_current(header, cells)
                found.append(_Entry(digest, size or 0, max(0, left) / 1000, header, is_current))
    return found


async def _header(server: Server, key: bytes, size: int | None, head: bytes | None) -> Header | None:
    if size is None or head is None:
        return None
    try:
        return unpack_value(head)[0]
    except BadValue:
        if size <= len(head):
            return None
    try:  # the header names so many entities that it is longer than what was read
        return unpack_value(await server.ask("GETRANGE", key, "0", str(_MAX_HEAD - 1)))[0]
    except (BadValue, ResponseError):
        return None


async def _cells(fleet: Fleet, keys: Iterable[CellKey]) -> Mapping[CellKey, SeenCell]:
    """Read cells. Only keys of cells are read: a forged header may name any key, also one that may not be read."""
    by_server: defaultdict[Server, list[CellKey]] = defaultdict(list)
    prefix = b"t:{%b:" % fleet.names.namespace.encode()
    for key in keys:
        if key.startswith(prefix):
            by_server[fleet.server_of(key)].append(key)
    seen: dict[CellKey, SeenCell] = {}
    for server, wanted in by_server.items():
        info, *values = await server.look_up([("INFO", "replication"), *(("GET", key) for key in wanted)])
        fields = fields_of(info)
        if fields.get("role") != "master":
            raise Unusable("it is a replica; give the URL of the primary")
        replication_id = fields["master_replid"].encode()
        seen |= {key: (value, replication_id) for key, value in zip(wanted, values, strict=True) if value}
    return seen


def _is_current(header: Header | None, cells: Mapping[CellKey, SeenCell]) -> bool:
    return header is not None and all(
        key in cells and not is_held(cells[key]) and version_of(cells[key]) == version
        for key, version in header.cells.items()
    )


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
        left = dict.fromkeys(fleet.servers, options.sample)
        async for server, batch in _scan(fleet, "scanning"):
            values, registries, heartbeats = batch["values"], batch["registries"], batch["heartbeats"]
            sample = values[: left[server]]
            left[server] -= len(sample)
            totals.update(entries=len(values), inspected=len(sample))
            for entry in await _entries(fleet, server, sample):
                totals.update(bytes=entry.size, unreadable=entry.header is None)
                for root in entry.roots:
                    counts_of(root).update(entries=1, bytes=entry.size, current=entry.is_current)
            for cell in batch["cells"]:
                counts_of(_root_of(cell))["entities"] += _name_of(cell).startswith(b"T")
            numbers = await server.look_up(("ZCOUNT", registry, "(0", "+inf") for registry in registries)
            for registry, number in zip(registries, numbers, strict=True):
                counts_of(_root_of(registry))["writers"] += number or 0
            reports = await server.look_up(("GET", heartbeat) for heartbeat in heartbeats)
            for heartbeat, report in zip(heartbeats, reports, strict=True):
                if report is not None and _name_of(heartbeat) not in processes:  # a process has one on each server
                    processes.add(_name_of(heartbeat))
                    for root, calls in reported_calls(report_of(report)):
                        counts_of(root).update(calls)
    scale = totals["entries"] / totals["inspected"] if totals["inspected"] else 1.0
    shown: dict[str, Any] = {
        "namespace": options.namespace,
        "servers": [server.name for server in fleet.servers],
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
        named = {
            cell: ":".join(tag.split(":")[:2]) for tag in tags if ":" in tag for cell in fleet.names.cells_read(tag)
        }
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


async def _matching(fleet: Fleet, tags: list[str]) -> AsyncGenerator[_Entry, None]:
    """All entries, or with tags those that a write of these tags would drop."""
    written = fleet.names.cells_written(tags).keys()
    async for server, batch in _scan(fleet, "scanning"):
        for entry in await _entries(fleet, server, batch["values"]):
            if not tags or (entry.header is not None and not written.isdisjoint(entry.header.cells)):
                yield entry


def _entry_document(entry: _Entry, named: Mapping[CellKey, str]) -> dict[str, Any]:
    """Facts of an entry. The id of an entity is a digest, ``order:#3fa9c1d2e4b5``, unless the command line names it."""
    header = entry.header
    tags: dict[str, None] = {}
    for cell in () if header is None else header.cells:
        name, root = _name_of(cell).decode("utf-8", "replace"), _root_of(cell)
        if name.startswith("T"):
            tags[named.get(cell, f"{root}:#{name[1 : 1 + _DIGEST]}")] = None
        elif name == "D":
            tags[root] = None
    return {
        "digest": entry.digest,
        "tags": list(tags),
        "bytes": entry.size,
        "age": None if header is None else max(0.0, round(time.time() - header.loaded, 3)),
        "ttl": None if header is None else header.ttl,
        "grace": None if header is None else header.grace,
        "cost": None if header is None else round(header.cost, 6),
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
    async with connected(options) as fleet:
        if options.all:
            tags = sorted(await _all_roots(fleet))
        async with _tier(options, is_cluster=fleet.is_cluster) as tier:
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
        if options.all:
            deleted = await _delete_values(fleet)
    if options.json:
        print_json({"namespace": options.namespace, "tags": tags, "deleted": deleted})
    elif options.all:
        print(f"cleared {len(tags)} roots, deleted {deleted:,} entries")
    else:
        print(f"cleared {', '.join(tags)}")
    return 0


async def _all_roots(fleet: Fleet) -> set[str]:
    """Every root that has a key on the servers, or that a process listens to: that process may have local copies."""
    roots: set[str] = set()
    prefix = b"c:{%b:" % fleet.names.namespace.encode()
    for server in fleet.servers:
        channels = await server.ask("PUBSUB", "SHARDCHANNELS" if fleet.is_cluster else "CHANNELS")
        roots |= {_root_of(channel) for channel in channels if channel.startswith(prefix)}
    async for server, batch in _scan(fleet, "looking for roots"):
        roots |= {_root_of(key) for key in [*batch["cells"], *batch["registries"]]}
        for entry in await _entries(fleet, server, batch["values"]):
            roots |= entry.roots
    return {root for root in roots if root and ":" not in root}  # one with a colon is none of a tag: see `ttl_hash`


async def _delete_values(fleet: Fleet) -> int:
    """Free the memory of values, which count as invalid since the write. Returns how many there were."""
    deleted = 0
    async for server, batch in _scan(fleet, "deleting"):
        values = batch["values"]
        replies = await server.look_up(("UNLINK", key) for key in [*values, *batch["claims"]])
        deleted += sum(replies[: len(values)])
    return deleted
