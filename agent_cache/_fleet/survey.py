"""What of a tier stands on a server, found by SCAN: no more than one batch of it is ever held."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_cache._fleet.servers import Server, Servers
from agent_cache.remote.redis.identity import INFO, identity_in
from agent_cache.remote.redis.names import CellKey
from agent_cache.remote.redis.values import BadValue, Header, Seen, is_held, unpacked, version_of
from agent_cache.remote.redis.wire import ReplyError

__all__ = ["Batch", "Entry", "batches", "entries_of", "looked_up", "root_of_cell"]

_HEAD = 2048
_MAX_HEAD = 1 << 20
_BATCH = 500
_NO_VALUE = "WRONGTYPE"
"""Code of the error where a key of ours holds something else: one stray key is no reason to see none."""


@dataclass(slots=True)
class Batch:
    """Keys of a tier, by what they are."""

    values: list[bytes] = field(default_factory=list)
    cells: list[bytes] = field(default_factory=list)
    registries: list[bytes] = field(default_factory=list)
    claims: list[bytes] = field(default_factory=list)
    heartbeats: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """One value on a server.

    Attributes:
        bytes: that its value takes; 0 if it is none that can be measured.
        left: seconds until the server forgets it.
        header: what it depends on; None if it is no value of this version.
        is_current: whether nothing that it depends on was written since: otherwise it only waits to expire.
    """

    digest: str
    bytes: int
    left: float
    header: Header | None
    is_current: bool

    @property
    def roots(self) -> set[str]:
        """Roots that it depends on. The cell of an entry itself says nothing of that."""
        cells = () if self.header is None else self.header.cells
        return {root_of_cell(cell) for cell in cells if not cell.rpartition(b":")[2].startswith(b"K")}


def root_of_cell(cell: CellKey) -> str:
    """``t:{namespace:order}:S`` belongs to ``order``."""
    inside = cell.partition(b"{")[2].rpartition(b"}")[0]
    return inside.partition(b":")[2].decode("utf-8", "replace")


async def batches(server: Server, namespace: str, tick: Callable[[int], None] | None = None) -> AsyncIterator[Batch]:
    """All keys of a namespace. A key may come twice while the server's table is growing, as SCAN says."""
    name = re.escape(namespace.encode())
    kinds = re.compile(
        rb"(?:(?P<values>v:%b:[0-9a-f]+)|(?P<cells>t:\{%b:.*\}:[SDTK][0-9a-f]*)|(?P<registries>w:\{%b:.*\})"
        rb"|(?P<claims>r:%b:[0-9a-f]+)|(?P<heartbeats>%b:hb:.*))\Z" % (name, name, name, name, name),
        re.DOTALL,
    )
    pattern = b"*" + re.sub(rb"([*?\[\]\\^-])", rb"\\\1", namespace.encode()) + b":*"
    cursor, seen = b"0", 0
    while True:
        cursor, keys = await server.ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % (2 * _BATCH))
        batch = Batch()
        for key in keys:
            match = kinds.match(key)
            if match is not None:
                getattr(batch, str(match.lastgroup)).append(key)
        seen += 2 * _BATCH
        if tick is not None:
            tick(seen)
        yield batch
        if cursor == b"0":
            return


async def looked_up(server: Server, commands: Iterable[tuple[bytes, ...]]) -> list[Any]:
    """Replies of commands that read keys of ours. An error stands among them where a key holds something else.

    Raises:
        ReplyError: any other. A right that is missing would else look like keys with nothing in them.
    """
    replies = await server.ask_all(commands)
    for reply in replies:
        if isinstance(reply, ReplyError) and reply.code != _NO_VALUE:
            raise reply
    return replies


async def entries_of(servers: Servers, server: Server, keys: list[bytes]) -> list[Entry]:
    """What these values say of themselves; those that are gone meanwhile are left out."""
    found = []
    for at in range(0, len(keys), _BATCH):
        some = keys[at : at + _BATCH]
        replies = await looked_up(
            server,
            (
                command
                for key in some
                for command in ((b"STRLEN", key), (b"PTTL", key), (b"GETRANGE", key, b"0", b"%d" % (_HEAD - 1)))
            ),
        )
        heads = [await _header(server, key, *replies[3 * n : 3 * n + 3 : 2]) for n, key in enumerate(some)]
        cells = await _cells(servers, (cell for head in heads if head is not None for cell in head.cells))
        for n, (key, header) in enumerate(zip(some, heads, strict=True)):
            size, left = replies[3 * n], replies[3 * n + 1]
            if size:
                digest, size = key.rpartition(b":")[2].decode(), size if isinstance(size, int) else 0
                found.append(Entry(digest, size, max(0, left) / 1000, header, _is_current(header, cells)))
    return found


async def _header(server: Server, key: bytes, size: int | ReplyError, head: bytes | ReplyError) -> Header | None:
    if isinstance(size, ReplyError) or isinstance(head, ReplyError):
        return None
    try:
        return unpacked(head)[0]
    except BadValue:
        if size <= len(head):
            return None
    # It names many entities, so that its header is longer than what was asked for.
    try:
        return unpacked(await server.ask(b"GETRANGE", key, b"0", b"%d" % (_MAX_HEAD - 1)))[0]
    except (BadValue, ReplyError):
        return None


async def _cells(servers: Servers, keys: Iterable[CellKey]) -> Mapping[CellKey, Seen]:
    by_server: dict[Server, dict[CellKey, None]] = {}
    ours = b"t:{%b:" % servers.core.names.namespace.encode()
    for key in keys:
        if key.startswith(ours):  # a forged value may name any key, also one that nobody may read
            by_server.setdefault(servers.of(key), {})[key] = None
    seen: dict[CellKey, Seen] = {}
    for server, wanted in by_server.items():
        info, *values = await looked_up(server, [INFO, *((b"GET", key) for key in wanted)])
        ident = identity_in(info)
        seen |= {key: (value, ident) for key, value in zip(wanted, values, strict=True) if type(value) is bytes}
    return seen


def _is_current(header: Header | None, cells: Mapping[CellKey, Seen]) -> bool:
    return header is not None and all(
        key in cells and cells[key][0] != b"" and not is_held(cells[key]) and version_of(cells[key]) == version
        for key, version in header.cells.items()
    )
