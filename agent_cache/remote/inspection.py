"""What a tier holds, read from outside of its processes: for `agent-cache tier`.

Nothing here makes a file or changes one: the database is opened read-only, and all that is read of it is of one moment.
Nothing that is stored is trusted: what cannot be read is counted as unreadable, or left out. Cells name roots; the id
of an entity is a keyed digest, and of calls there are digests alone.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import HELD, Head, Refused, State, open_head
from agent_cache.remote.cells import STORE, Cell, root_of_cell
from agent_cache.remote.file import checked_path

if TYPE_CHECKING:
    from agent_cache.remote.redis import RedisTier

__all__ = ["FileInspection", "ServerInspection", "StoredValue"]

_SHORT_HEAD, _LONG_HEAD = 4_096, 1 << 18


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value in a tier.

    Attributes:
        digest: of its call.
        size: its bytes.
        head: what it depends on; None if it is damaged or of another version.
        age, left: seconds since its load, and until it ends, its grace included; None if that is not known, or never.
        is_current: whether a lookup would find it.
    """

    digest: str
    size: int
    head: Head | None
    age: float | None
    left: float | None
    is_current: bool

    @property
    def roots(self) -> set[str]:
        """The roots that it depends on."""
        return {root for cell in (self.head.versions if self.head else ()) if (root := root_of_cell(cell))}

    @classmethod
    def of(
        cls,
        address: Cell,
        raw_head: bytes,
        states: Mapping[Cell, State],
        others: State,
        *,
        size: int,
        now: float,
        left: float | None,
    ) -> StoredValue:
        """Look whether a value is current under these states of its cells, and of all others."""
        head = open_head(raw_head)
        is_current = head is not None and (left is None or left > 0)
        for cell, version in head.versions.items() if head else ():
            present, mode = states.get(cell, others)
            is_current = is_current and present == version and mode < HELD
        age = None if head is None else max(0.0, now - head.loaded)
        return cls(address[1:], size, head, age, None if left is None else max(0.0, left), is_current)

    def tags(self, named: Mapping[Cell, str]) -> list[str]:
        """What it depends on. An entity is ``order:#`` and its digest, unless it is among the named."""
        found: set[str] = set()
        for cell in self.head.versions if self.head else ():
            root, _, rest = cell.partition(":")
            if rest[:1] == ":":
                found.add(named.get(cell, f"{root}:#{rest[1:13]}"))
            elif rest == "D":
                found.add(root)
        return sorted(found)


class FileInspection:
    """A database at one moment. What its methods raise is a `ConnectionError`.

    Args:
        patience: seconds to wait for who holds it alone, as while it is closed.

    Raises:
        ConfigurationError: if there is no such file, or it is not a tier's of this version.
        Refused: if it is damaged, or locked.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str, *, patience: float) -> None:
        from agent_cache.remote.database import prepare, wall_time

        self.path: Path = checked_path(path)
        if not self.path.is_file():
            raise ConfigurationError(
                f"there is no file {str(self.path)!r}; a tier makes it when a program first uses it"
            )
        self._namespace = namespace
        self._db: sqlite3.Connection | None = None
        try:
            uri = f"{self.path.as_uri()}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None)
            is_ours = prepare(self._db, self.path, makes=False)
            self._db.execute("begin")
            self._now = wall_time()
            self.meta: dict[str, int] = dict(self.rows("select name, value from meta")) if is_ours else {}
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise Refused(str(error)) from error
            raise
        if not is_ours:
            self.close()
            raise ConfigurationError(f"{str(self.path)!r} is no file of a tier of this version")

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a query."""
        assert self._db is not None
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise Refused(str(error)) from error

    async def count(self) -> int:
        """How many values there are."""
        return int(self.rows("select count(*) from value where space = ?", self._namespace)[0][0])

    async def values(self) -> AsyncIterator[list[StoredValue]]:
        """All values, without what they hold, some at a time."""
        others = self.meta["floor"], 0
        states: dict[Cell, State] = {cell: (number, 0) for cell, number in self.rows("select * from cell")}
        for cell, mode in self.rows("select cell, max(mode) from hold group by cell"):
            states[cell] = states.get(cell, others)[0], mode
        states[STORE] = self.meta["token"], 0
        statement = "select address, head, size, ends from value where space = ? order by address"
        for address, head, size, ends in self.rows(statement, self._namespace):
            left = None if ends is None else ends - self._now
            yield [StoredValue.of(address, head, states, others, size=size, now=self._now, left=left)]

    async def writers(self) -> Counter[str]:
        """How many writes run under each root."""
        held = self.rows("select distinct writer, cell from hold where deadline > ?", self._now)
        return Counter(root_of_cell(cell) for _, cell in held if cell.endswith(":D"))

    def close(self) -> None:
        """End the look."""
        if self._db is not None:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerInspection:
    """A server, through a tier that nothing else uses. It has the methods of `FileInspection`."""

    def __init__(self, tier: RedisTier) -> None:
        self._tier = tier
        self._backend = tier.backend

    async def count(self) -> int:
        await self._backend.read((), None)  # which a replica refuses
        return sum([len(keys) async for keys in self._backend.scan("v:@")])

    async def values(self) -> AsyncIterator[list[StoredValue]]:
        async for keys in self._backend.scan("v:@"):
            asked = [(key, "strlen", ()) for key in keys] + [(key, "pttl", ()) for key in keys]
            found = await self._backend.ask([*asked, *((key, "getrange", (0, _SHORT_HEAD - 1)) for key in keys)])
            count = len(keys)
            sizes, lefts, starts = found[:count], found[count : 2 * count], [one or b"" for one in found[2 * count :]]
            long = [at for at, start in enumerate(starts) if len(start) == _SHORT_HEAD and b"\n" not in start]
            for at, start in zip(
                long,
                await self._backend.ask([(keys[at], "getrange", (0, _LONG_HEAD)) for at in long]),
                strict=True,
            ):
                starts[at] = start  # it names so many entities
            heads = [start.partition(b"\n")[0] for start in starts]
            wanted = {cell for raw in heads if (head := open_head(raw)) for cell in head.versions}
            reading = await self._backend.read(wanted, None)
            start = len(self._backend.prefix) + 2
            yield [
                StoredValue.of(
                    key[start:].decode("utf-8", "replace"), head, reading.states, (None, HELD),
                    size=size, now=reading.now, left=left / 1000 if left >= 0 else None,
                )
                for key, head, size, left in zip(keys, heads, sizes, lefts, strict=True)
                if size
            ]  # fmt: skip

    async def writers(self) -> Counter[str]:
        roots: Counter[str] = Counter()
        for packed in (await self._backend.ask([(f"{self._backend.prefix}r", "hvals", ())]))[0]:
            roots.update({root_of_cell(cell) for cell in _cells_of(packed)} - {""})
        return roots


def _cells_of(packed: bytes) -> Sequence[str]:
    """The cells of a writer, as the scripts keep them."""
    try:
        return msgspec.json.decode(packed, type=list[str])
    except msgspec.DecodeError:
        return ()
