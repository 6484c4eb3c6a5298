"""What a write says to each root that it touches, in commands of a bounded size: worked out once for its tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_cache.remote.protocol import WriteIntent
from agent_cache.remote.redis.keyspace import CellKey, RootNames
from agent_cache.remote.redis.leases import NEVER
from agent_cache.remote.redis.messages import message
from agent_cache.remote.redis.pending import Order
from agent_cache.remote.redis.scripts import BEGIN, COMMIT, RENEW, Script
from agent_cache.values.canonical import is_large, make_room

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["Orders"]

_MAX = 4_096
_MAX_FORMS, _MAX_TAGS = 2, 16
"""Of a write whose commands are remembered: that is some 3 KB for its begin and its end."""
_MAX_PATHS = 1_000
"""Of one command, and so of one message: a script stops the server for everybody, and a message is read whole."""


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """One command, but for who gives it and until when it holds.

    Attributes:
        suffix: what the writer's id ends with here: each of several commands to one root has an id of its own.
        arguments: as the script has them, without the writer.
    """

    suffix: str
    root: RootNames
    script: Script
    keys: list[bytes]
    arguments: list[bytes]
    cells: frozenset[CellKey]
    announces: bool

    def by(self, writer: str, until: float | None = None) -> Order:
        """The command as this writer gives it."""
        name = writer + self.suffix
        arguments = [*self.arguments[:3], name.replace("|", "_").encode(), *self.arguments[3:]]
        return Order(name, self.root, self.script, self.keys, arguments, self.cells, self.announces, until)


class Orders:
    """The commands of writes. Bounded; dicts alone, so that any thread may use it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[tuple[object, ...], Sequence[_Form]] = {}

    def beginning(self, write: WriteIntent) -> list[Order]:
        """Announce a write to every root that it names."""
        return self._announcing(write, BEGIN)

    def renewing(self, write: WriteIntent) -> list[Order]:
        """Prolong its lease there, or announce it again."""
        return self._announcing(write, RENEW)

    def _announcing(self, write: WriteIntent, script: Script) -> list[Order]:
        known = _known_as(write, script)
        forms = self._known.get(known)
        if forms is None:
            forms = [self._announcement(script, *announced) for announced in self._announced(write)]
            self._keep(known, forms, len(write.tags))
        return [form.by(write.id) for form in forms]

    def ending(self, write: WriteIntent, tags: tuple[str, ...], until: float, *, failed: bool) -> list[Order]:
        """End it under every root that it has named or touched, and hold what it has touched until then."""
        known = _known_as(write, COMMIT, tuple(tags), failed)
        forms = self._known.get(known)
        if forms is None:
            forms = list(self._commits(write, tags, failed=failed))
            self._keep(known, forms, len(write.tags) + len(tags))
        return [form.by(write.id, until) for form in forms]

    def of_whole_root(self, order: Order) -> Order:
        """The command that does the same to all of the root."""
        root = order.root
        if order.announces:
            return self._announcement(BEGIN, root, "", [root.s, root.d], []).by(order.writer)
        return self.commit_of_root(root, order.writer, order.until or NEVER)

    def commit_of_root(self, root: RootNames, writer: str, until: float) -> Order:
        """The command that ends a write of all of a root."""
        return self._commit(root, "", [root.s, root.d], [], []).by(writer, until)

    def _keep(self, known: tuple[object, ...], forms: list[_Form], tags: int) -> None:
        if known and len(forms) <= _MAX_FORMS and tags <= _MAX_TAGS and not is_large(known[1:]):
            make_room(self._known, _MAX)
            self._known[known] = forms

    def _commits(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool) -> Iterator[_Form]:
        moved = self._core.names.moved_by(tags) | self._own_cells(write)
        if failed:
            moved |= self._core.names.armed_by(write)
        begun = {(root, suffix): cells for root, suffix, *cells in self._announced(write)}
        ended = {(root, part): own for root, cells in _grouped(moved).items() for part, own in _parts(cells)}
        for root, part in dict.fromkeys([*ended, *begun]):
            yield self._commit(root, part, ended.get((root, part), []), *begun.get((root, part), ([], [])))

    def _announced(self, write: WriteIntent) -> Iterator[tuple[RootNames, str, list[CellKey], list[CellKey]]]:
        """Root, suffix, what the write holds and what it arms: the same whenever it is asked for."""
        held = _grouped(self._core.names.moved_by(write.tags) | self._own_cells(write))
        armed = _grouped(self._core.names.armed_by(write))
        for root in dict.fromkeys([*held, *armed]):
            late = armed.get(root, [])
            for suffix, own in _parts(held.get(root, [])):
                yield root, suffix, own, late
                late = []

    def _announcement(
        self, script: Script, root: RootNames, suffix: str, held: list[CellKey], armed: list[CellKey]
    ) -> _Form:
        core = self._core
        arguments = [
            *self._head(root, core.options.lease),
            *_listed(map(root.name, held)), *_listed(map(root.name, armed)),
            # If the writer of an armed root dies, nobody will say more: local copies go now.
            root.channel, message(core, b"B", root, armed or held),
        ]  # fmt: skip
        cells = dict.fromkeys([*held, *armed])
        script = core.script(script)
        return _Form(suffix, root, script, [root.registry, *cells], arguments, frozenset(cells), announces=True)

    def _commit(
        self, root: RootNames, suffix: str, moved: list[CellKey], held: list[CellKey], armed: list[CellKey]
    ) -> _Form:
        """The command that ends a write under one root.

        Args:
            held, armed: what it was announced with.
        """
        core = self._core
        names = [root.name(cell) for cell in moved]
        doomed = [core.names.value(name[1:]) for name in names if name.startswith(b"K")] if core.deletes else []
        arguments = [
            *self._head(root, 0.0), *_listed(names), *_listed(map(root.name, held)),
            *_listed(map(root.name, armed)), *_listed(doomed), root.channel,
            message(core, b"C", root, moved),
        ]  # fmt: skip
        keys = [root.registry, *moved, *doomed]
        return _Form(suffix, root, core.script(COMMIT), keys, arguments, frozenset(moved), announces=False)

    def _own_cells(self, write: WriteIntent) -> dict[CellKey, RootNames]:
        """The cells of single entries."""
        core = self._core
        cells: dict[CellKey, RootNames] = {}
        for request in write.entries:
            cells |= core.names.own_cell(request)
        told = {(request.tool, request.key) for request in write.entries}
        for tool, key in write.keys:
            if (tool, key) not in told:
                cells |= core.memo.cell(tool, key)
        return cells

    def _head(self, root: RootNames, period: float) -> list[bytes]:
        ttl = b"%d" % int(self._core.options.cell_ttl * 1000)
        return [root.prefix, ttl, b"", b"%d" % int(period * 1000)]  # the token: see `Order.told`


def _known_as(write: WriteIntent, script: Script, *more: object) -> tuple[object, ...]:
    """What its commands follow from. Nothing, and so never known, if it names entries: there is no end of them."""
    if write.entries or write.keys:
        return ()
    return script, tuple(write.tags), tuple(write.late_roots), *more


def _grouped(cells: dict[CellKey, RootNames]) -> dict[RootNames, list[CellKey]]:
    grouped: dict[RootNames, list[CellKey]] = {}
    for cell, root in cells.items():
        grouped.setdefault(root, []).append(cell)
    return {root: _bounded(root, own) for root, own in grouped.items()}


def _bounded(root: RootNames, cells: list[CellKey]) -> list[CellKey]:
    """For very many entities all of the root moves: what depends on one of them depends on S as well. An entry need
    not, so each that is named moves by itself.
    """
    entries = [cell for cell in cells if root.name(cell).startswith(b"K")]
    return cells if len(cells) - len(entries) <= _MAX_PATHS else [root.s, root.d, *entries]


def _parts(cells: list[CellKey]) -> Iterator[tuple[str, list[CellKey]]]:
    """Commands of a bounded size: each has the same suffix at the begin and at the commit."""
    yield "", cells[:_MAX_PATHS]
    for start in range(_MAX_PATHS, len(cells), _MAX_PATHS):
        yield f"+{start}", cells[start : start + _MAX_PATHS]


def _listed(items: Iterable[bytes]) -> list[bytes]:
    items = list(items)
    return [b"%d" % len(items), *items]
