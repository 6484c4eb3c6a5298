"""Writes: what is said to the server before, during and after a side effect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from agent_cache.remote.protocols import WriteIntent
from agent_cache.remote.redis.leases import NEVER, boottime
from agent_cache.remote.redis.messages import message
from agent_cache.remote.redis.names import CellKey, RootNames
from agent_cache.remote.redis.pending import Order
from agent_cache.remote.redis.scripts import BEGIN, COMMIT, RENEW, Script
from agent_cache.remote.redis.wire import Interrupted, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["begin", "commit", "of_whole_root", "renew"]

_BY_ROOT = dict[RootNames, list[CellKey]]
_MAX_PATHS = 1_000
"""Of one command, and so of one message: a script stops the server for everybody, and a message is read whole."""


async def begin(core: Core, write: WriteIntent) -> Unreachable | None:
    """Announce a write to every root that it names. What could not be announced is pending; why, if anything."""
    orders = _announcements(core, write, BEGIN)
    cells = [cell for order in orders for cell in order.cells]
    core.epochs.touch(cells)
    failure = await _give(core, orders)
    core.epochs.touch(cells)  # again: its own message is skipped, and a lookup may have come before it landed
    return failure


async def renew(core: Core, write: WriteIntent) -> None:
    """Prolong its lease, or announce it again where that is not known any more."""
    orders = _announcements(core, write, RENEW)
    outcomes = await asyncio.gather(*(_give_one(core, order) for order in orders))
    for order, outcome in zip(orders, outcomes, strict=True):
        if outcome is None:
            core.epochs.touch(order.cells)  # as a begin: it may have been one
            core.pending.announced(order)


async def commit(core: Core, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
    """End it under every root that it has named or touched. What does not land is pending."""
    moved = core.names.moved_by(tags) | _own_cells(core, write)
    if failed:
        moved |= core.names.armed_by(write)
    until = boottime() + hold if hold else NEVER
    begun = {(root, writer): cells for root, writer, *cells in _announced(core, write)}
    ended = {(root, part): own for root, cells in _grouped(moved).items() for part, own in _parts(write.id, cells)}
    orders = [
        _committing(core, root, part, ended.get((root, part), []), until, *begun.get((root, part), ([], [])))
        for root, part in dict.fromkeys([*ended, *begun])
    ]
    core.epochs.touch(moved)
    await _give(core, orders)
    core.epochs.touch(moved)


def of_whole_root(core: Core, order: Order) -> Order:
    """The command that does the same to all of the root."""
    cells = [order.root.s, order.root.d]
    if order.announces:
        return _announcing(core, order.root, order.writer, cells, [], BEGIN)
    return _committing(core, order.root, order.writer, cells, order.until or NEVER)


def _committing(
    core: Core,
    root: RootNames,
    writer: str,
    cells: list[CellKey],
    until: float,
    held: Iterable[CellKey] = (),
    armed: Iterable[CellKey] = (),
) -> Order:
    """The command that ends a write under one root, and holds what it has touched until then.

    Args:
        held, armed: what it was announced with.
    """
    names = [root.name(cell) for cell in cells]
    doomed = [core.names.value(name[1:]) for name in names if name.startswith(b"K")] if core.deletes else []
    arguments = [
        *_head(core, root, writer, 0.0), *_listed(names), *_listed(map(root.name, held)),
        *_listed(map(root.name, armed)), *_listed(doomed), root.channel,
        message(core, b"C", root, cells),
    ]  # fmt: skip
    keys = [root.registry, *cells, *doomed]
    return Order(writer, root, core.script(COMMIT), keys, arguments, frozenset(cells), until=until)


def _announcements(core: Core, write: WriteIntent, script: Script) -> list[Order]:
    return [_announcing(core, root, writer, own, late, script) for root, writer, own, late in _announced(core, write)]


def _announced(core: Core, write: WriteIntent) -> Iterator[tuple[RootNames, str, list[CellKey], list[CellKey]]]:
    """Root, writer's id, what it holds and what it arms: the same whenever it is asked for."""
    held = _grouped(core.names.moved_by(write.tags) | _own_cells(core, write))
    armed = _grouped(core.names.armed_by(write))
    for root in dict.fromkeys([*held, *armed]):
        late = armed.get(root, [])
        for writer, own in _parts(write.id, held.get(root, [])):
            yield root, writer, own, late
            late = []


def _announcing(
    core: Core, root: RootNames, writer: str, own: list[CellKey], late: list[CellKey], script: Script
) -> Order:
    # If the writer of an armed root dies, nobody will say more: local copies go now.
    said = message(core, b"B", root, late or own)
    arguments = [
        *_head(core, root, writer, core.options.lease),
        *_listed(map(root.name, own)), *_listed(map(root.name, late)),
        root.channel, said,
    ]  # fmt: skip
    keys = [root.registry, *dict.fromkeys([*own, *late])]
    return Order(writer, root, core.script(script), keys, arguments, frozenset([*own, *late]), announces=True)


async def _give(core: Core, orders: list[Order]) -> Unreachable | None:
    """Have all carried out at once; those that are not known to have been are owed."""
    if len(orders) == 1:  # most writes: without a task of its own
        outcomes = [await _give_one(core, orders[0])]
    else:
        outcomes = await asyncio.gather(*(_give_one(core, order) for order in orders))
    failure = None
    for order, outcome in zip(orders, outcomes, strict=True):
        if outcome is not None:
            failure = outcome
            core.pending.add(
                order,
                core.options.lease,
                lambda root, until: _committing(core, root, os.urandom(16).hex(), [root.s, root.d], until),
            )
            core.log.once("an invalidation could not be delivered; it is retried until it is", outcome)
        else:
            core.pending.settle(order.root, order.writer)
    if failure is not None and core.attendant is not None:
        core.attendant.wake()
    return failure


async def _give_one(core: Core, order: Order) -> Unreachable | None:
    for is_last in (False, True):
        try:
            await core.client().run(order.script, order.root.slot, order.keys, order.told())
        except Interrupted as error:  # it may have been carried out: then it is twice, which is harmless
            if is_last:
                return error
        except Unreachable as error:
            return error
        else:
            break
    return None


def _own_cells(core: Core, write: WriteIntent) -> dict[CellKey, RootNames]:
    """The cells of single entries."""
    cells: dict[CellKey, RootNames] = {}
    for request in write.entries:
        cells |= core.names.own_cell(request)
    told = {(request.tool, request.key) for request in write.entries}
    for tool, key in write.keys:
        if (tool, key) not in told:
            cells |= core.memo.cell(tool, key)
    return cells


def _grouped(cells: dict[CellKey, RootNames]) -> _BY_ROOT:
    grouped: _BY_ROOT = {}
    for cell, root in cells.items():
        grouped.setdefault(root, []).append(cell)
    return {root: _bounded(root, own) for root, own in grouped.items()}


def _bounded(root: RootNames, cells: list[CellKey]) -> list[CellKey]:
    """For very many entities all of the root moves: what depends on one of them depends on S as well. An entry need
    not, so each that is named moves by itself.
    """
    entries = [cell for cell in cells if root.name(cell).startswith(b"K")]
    return cells if len(cells) - len(entries) <= _MAX_PATHS else [root.s, root.d, *entries]


def _parts(writer: str, cells: list[CellKey]) -> Iterator[tuple[str, list[CellKey]]]:
    """Commands of a bounded size: each has a writer's id of its own, and the same at the begin and at the commit."""
    yield writer, cells[:_MAX_PATHS]
    for start in range(_MAX_PATHS, len(cells), _MAX_PATHS):
        yield f"{writer}+{start}", cells[start : start + _MAX_PATHS]


def _head(core: Core, root: RootNames, writer: str, period: float) -> list[bytes]:
    return [
        root.prefix, b"%d" % int(core.options.cell_ttl * 1000), b"",  # see `Order.told`
        writer.replace("|", "_").encode(), b"%d" % int(period * 1000),
    ]  # fmt: skip


def _listed(items: Iterable[bytes]) -> list[bytes]:
    items = list(items)
    return [b"%d" % len(items), *items]
