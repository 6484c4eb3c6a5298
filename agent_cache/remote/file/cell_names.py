"""Cells: what a read depends on and a write changes, by numbers; and which tags and calls the numbers stand for.

Each root has the cells S, changed by writes to the root, and D, changed by every write at or below it; each entity has
a cell T, and each entry a cell of its own. A read of ``order:7`` depends on S and T, a read of all of ``order`` on D. A
write to ``order:7`` changes T and D, a write to ``order`` S and D: see `docs/explanation/fleet.md`, which shows why.

In the file a cell is a number of 63 bits, made of a keyed digest: no argument value appears there. Two cells of one
number are changed together, which costs a load and never a stale answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Any, Final

from agent_cache.core.tags import root_of
from agent_cache.remote.protocol import Request, Touched, WriteIntent
from agent_cache.values.canonical import is_large, lasting_digest, make_room

__all__ = ["CellNames", "RootChanges"]

SCHEMA: Final = 1
"""Version of digests and numbers. Values of another version are not found."""

_MAX_TAGS: Final = 100_000
_MAX_CALLS: Final = 50_000
_MAX_NUMBERS: Final = 4_096
_MAX_DEPENDENTS: Final = 16
"""Entries that are known to be made of one other. With more, messages about that one name its whole root."""

RootChanges = dict[str, tuple[list[int], list[int]]]
"""What a write changes, by root: cells of entities (S among them: the whole root), and cells of entries."""


class CellNames:
    """The cells of one namespace.

    What numbers stand for is remembered in bounded tables. Any thread may use them: they are changed in single steps of
    the interpreter.

    Attributes:
        forgotten: how often a table was full and was emptied.
        understood: the same when all local copies were last dropped. While they differ, there may be copies that depend
            on what is not remembered any more.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.forgotten = self.understood = 0
        self._key = blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self._numbers: dict[tuple[str, ...], int] = {}
        self._cells_read: dict[str, tuple[int, ...]] = {}
        self._tags: dict[int, str] = {}
        self._calls: dict[int, tuple[str, Hashable, str] | None] = {}
        self._dependents: dict[int, frozenset[int]] = {}

    def _number(self, *names: str) -> int:
        number = self._numbers.get(names)
        if number is None:
            number = self.number(*names)
            make_room(self._numbers, _MAX_NUMBERS)
            self._numbers[names] = number
        return number

    def number(self, *names: str) -> int:
        """The number that these names have in all processes, and no other names have, as far as can be."""
        text = "\0".join(names).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8, key=self._key).digest()) >> 1 or 1  # 0: see `database`

    # Tags. Those of more than two segments count as their first two.

    def cells_of_root(self, root: str) -> tuple[int, int]:
        """S and D."""
        return self._number(root, "S"), self._number(root, "D")

    def cells_read(self, tag: str) -> tuple[int, ...]:
        """The cells that a value with this tag depends on."""
        cells = self._cells_read.get(tag)
        if cells is None:
            root, *segments = tag.split(":", 2)
            s, d = self.cells_of_root(root)
            entity = self._number(root, "T", segments[0]) if segments else 0
            cells = (s, entity) if segments else (d,)
            if len(self._cells_read) >= _MAX_TAGS:
                self._forget(self._cells_read, self._tags)
            if segments:
                self._tags[entity] = f"{root}:{segments[0]}"
            self._cells_read[tag] = cells
        return cells

    def cells_written(self, tags: Iterable[str]) -> dict[int, str]:
        """The cells that a write of these tags changes, with their roots."""
        cells: dict[int, str] = {}
        for tag in tags:
            root, *segments = tag.split(":", 2)
            s, d = self.cells_of_root(root)
            cells[self._number(root, "T", segments[0]) if segments else s] = root
            cells[d] = root
        return cells

    def cells_armed(self, write: WriteIntent) -> dict[int, str]:
        """S and D of each root whose entities the result of the write will name."""
        return {cell: root for root in write.late_roots for cell in self.cells_of_root(root)}

    # Entries

    def digest(self, request: Request) -> tuple[bytes | None, bool]:
        """The digest of an entry, None if it has no identity outside of this process; and whether that is final."""
        identity = request.arguments, request.tenant, request.session
        digest, lasts = lasting_digest(request.tool, identity, namespace=self.namespace, version=SCHEMA)
        return None if digest is None else digest.encode(), lasts

    def entry(self, digest: bytes) -> int:
        """The number of an entry, in the table of values and as a cell."""
        return self._number("", digest.decode())

    def home(self, request: Request) -> str:
        """The root that stands for the entry itself in messages: the first by name, so the same in every process."""
        return min(request.roots or {*map(root_of, request.tags), *request.late_roots}, default="")

    def entries_written(self, write: WriteIntent) -> dict[int, str]:
        """The cells of single entries that a write names."""
        cells: dict[int, str] = {}
        for request in write.entries:
            digest, _ = self.digest(request)
            if digest is not None:
                cells[self.entry(digest)] = self.home(request)
        named = {(request.tool, request.key) for request in write.entries}
        for tool, key in write.keys:  # calls that only another tier has named: slow
            if (tool, key) not in named:
                known = [(cell, call) for cell, call in list(self._calls.items()) if call is not None]
                cells |= {cell: home for cell, (own, call, home) in known if own == tool and call == key}
        return cells

    def keep_call(self, cell: int, request: Request, home: str) -> None:
        """Remember which call an entry is."""
        if cell not in self._calls:
            if len(self._calls) >= _MAX_CALLS:
                self._forget(self._calls)
            self._calls[cell] = None if is_large(request.key) else (request.tool, request.key, home)

    def keep_dependent(self, cell: int, dependent: int) -> None:
        """Remember that the value of an entry is made of another one."""
        found = self._dependents.get(cell, frozenset())
        if dependent not in found and len(found) <= _MAX_DEPENDENTS:
            if len(self._dependents) >= _MAX_CALLS:
                self._forget(self._dependents)
            self._dependents[cell] = found | {dependent}

    def _forget(self, *tables: dict[Any, Any]) -> None:
        self.forgotten += 1
        for table in tables:
            table.clear()

    # Messages

    def by_root(self, cells: dict[int, str], entries: dict[int, str]) -> RootChanges:
        """What a write changes, as its messages say it."""
        changes: RootChanges = {}
        for cell, root in cells.items():
            changes.setdefault(root, ([], []))[0].append(cell)
        for cell, root in entries.items():
            changes.setdefault(root, ([], []))[1].append(cell)
        return changes

    def touched(self, root: str, cells: Iterable[int], entries: Iterable[int]) -> Touched | None:
        """What listeners are told of a message; None if it may concern copies of what is not remembered any more."""
        s, d = self.cells_of_root(root)
        tags: dict[str, None] = {}
        keys: list[tuple[str, Hashable]] = []
        for cell in cells:
            if cell == s:
                tags[root] = None
            elif cell != d:
                tag = self._tags.get(cell)
                if tag is None and self.forgotten != self.understood:
                    return None
                # Entries that depend on the whole root are dropped, and no other one here can depend on this entity.
                tags[tag or f"{root}:{cell:x}"] = None
        for cell in entries:
            if self.forgotten != self.understood:
                return None
            dependents = self._dependents.get(cell, frozenset())
            known = [self._calls[one] for one in (cell, *dependents) if one in self._calls]
            keys += [call[:2] for call in known if call is not None]
            if None in known or len(dependents) > _MAX_DEPENDENTS:
                tags[root] = None
        return Touched(tuple(tags), tuple(keys))
