"""Writes: what is said to the server before, during and after a side effect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from agent_cache.remote.protocol import WriteIntent
from agent_cache.remote.redis.leases import NEVER, boottime
from agent_cache.remote.redis.pending import Order
from agent_cache.remote.redis.wire import Interrupted, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["begin", "commit", "renew"]


async def begin(core: Core, write: WriteIntent) -> Unreachable | None:
    """Announce a write to every root that it names. What could not be announced is pending; why, if anything."""
    return await _give(core, core.orders.beginning(write))


async def renew(core: Core, write: WriteIntent) -> None:
    """Prolong its lease, or announce it again where that is not known any more."""
    orders = core.orders.renewing(write)
    outcomes = await asyncio.gather(*(_give_one(core, order) for order in orders))
    for order, outcome in zip(orders, outcomes, strict=True):
        if outcome is None:
            core.epochs.touch(order.cells)  # as a begin: it may have been one


def commit(
    core: Core, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float
) -> Coroutine[Any, Any, None]:
    """End it under every root that it has named or touched.

    It is pending from now on, before anything is awaited: a loop may end here, and what was armed would be found again.
    """
    until = boottime() + hold if hold else NEVER
    orders = core.orders.ending(write, tags, until, failed=failed)
    for order in orders:
        core.epochs.touch(order.cells)
        core.pending.send(order)
    return _end(core, orders)


async def _end(core: Core, orders: list[Order]) -> None:
    try:
        await _give(core, orders)
    except BaseException:  # cancelled, or closed: whether it has landed is not known
        for order in orders:
            if core.pending.owes(order):
                core.owe(order)
        if core.attendant is not None:
            core.attendant.wake()
        raise


async def _give(core: Core, orders: list[Order]) -> Unreachable | None:
    """Have all carried out at once; those that are not known to have been are owed."""
    for order in orders:
        core.epochs.touch(order.cells)
    if len(orders) == 1:  # most writes: without a task of its own
        outcomes = [await _give_one(core, orders[0])]
    else:
        outcomes = await asyncio.gather(*(_give_one(core, order) for order in orders))
    failure = None
    for order, outcome in zip(orders, outcomes, strict=True):
        if outcome is not None:
            failure = outcome
            core.owe(order)
            core.log.once("an invalidation could not be delivered; it is retried until it is", outcome)
    if failure is not None and core.attendant is not None:
        core.attendant.wake()
    for order in orders:  # again: one's own message is skipped, and a lookup may have come before it landed
        core.epochs.touch(order.cells)
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
            core.pending.landed(order)
            if order.announces:
                core.pending.announced(order)
            else:
                core.pending.settle(order.root, order.writer)
            break
    return None
