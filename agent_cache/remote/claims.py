"""Loads that processes share: one of them claims the load of an answer, and the others wait for its value.

A claim proves nothing: what another process has loaded is found by a whole lookup, as any value. So a claim that is
lost, or held by a process that has died, costs one more load.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from agent_cache.core.store import NEVER
from agent_cache.remote.backend import Backend, drive
from agent_cache.remote.protocol import Found, Request, Ticket
from agent_cache.remote.tickets import Issuer, VersionedTicket

_SHORT_LOAD: Final = 0.002
"""Seconds of a load that is not worth a claim."""
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1
_MOST_LOADERS: Final = 2
"""The second one replaces a process that has died."""


class ClaimsLoads(Issuer):
    """The part of `versioned.VersionedTier` that shares loads. What it uses of the rest is declared here."""

    backend: Backend
    lease: float
    is_closed: bool
    never_waits: bool
    _look_up: Callable[[VersionedTicket], Coroutine[Any, Any, tuple[Found | None, VersionedTicket]]]
    _note_failure: Callable[[Exception], None]
    _start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]
    _waits_after_writes = False
    """Whether others wait for what loads again what a write has invalidated, also if they were not asked to."""

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """Lead the load of an answer that `lookup` has not found, or wait for the process that leads it.

        If the request says ``shares_load``, every load is claimed: for `lease` seconds, and longer while `renew_claim`
        is called. It is waited for until its value is there, or its claim has ended; then one of those that wait leads.
        Who has seen two loads end without a value loads itself. A claim proves nothing: what is found is found by a
        whole lookup. Nobody waits for a load that a write has overtaken, and under what a write holds nothing is
        claimed. On a server, what a write has invalidated is loaded by one process also without ``shares_load``, and
        the others wait for twice the time that its last load has taken.

        Args:
            may_wait: called before each pause, in the thread of this coroutine. Where it returns False, the caller
                loads itself: what it would wait for may be waiting for it.

        Returns:
            What another process has loaded meanwhile, and the ticket of that; else None, and a ticket for storing.
        """
        if not isinstance(ticket, VersionedTicket) or ticket.tier is not self or ticket.place.address is None:
            return None, ticket
        ends = NEVER
        if not request.shares_load:
            cost = ticket.former_cost
            if not self._waits_after_writes or request.strong or cost is None or cost < _SHORT_LOAD:
                return None, ticket
            ends = asyncio.get_running_loop().time() + 2 * cost + self.lease / 40
        me, name, pause = os.urandom(8).hex(), "", _SHORTEST_PAUSE
        loaders: set[str] = set()
        try:
            while ticket.seen and not ticket.is_held() and (ends == NEVER or asyncio.get_running_loop().time() < ends):
                name = (
                    f"{ticket.place.address} {sorted((cell, ticket.seen[cell][0]) for cell in ticket.place.depends_on)}"
                )
                loader = await self.backend.claim(name, me, self.lease)
                if loader != me:
                    loaders.add(loader)
                    if len(loaders) > _MOST_LOADERS or (may_wait is not None and not may_wait()):
                        break
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, _LONGEST_PAUSE)
                # Also by who leads: another load may just have ended.
                found, ticket = await self._look_up(VersionedTicket(self, request))
                if found is not None:
                    if loader == me:
                        await self.backend.release(name, me)
                    return found, ticket
                if loader == me:
                    ticket.claim = name, me
                    break
        except ConnectionError as error:  # what cannot be claimed is loaded
            self._note_failure(error)
        except BaseException:
            if name:
                self._soon(self.backend.release(name, me))
            raise
        return None, ticket

    def renew_claim(self, ticket: Ticket) -> None:
        """Let a claim last for another `lease`, if it is still one's own. It does not wait."""
        if isinstance(ticket, VersionedTicket) and ticket.claim is not None and not self.is_closed:
            self._soon(self.backend.claim(*ticket.claim, self.lease, renew=True))

    def give_up(self, ticket: Ticket) -> None:
        """End what `claim` has claimed: the load has ended, and was stored or will not be. It does not wait."""
        if isinstance(ticket, VersionedTicket) and ticket.claim is not None:
            claim, ticket.claim = ticket.claim, None
            if not self.is_closed:
                self._soon(self.backend.release(*claim))

    def _soon(self, steps: Coroutine[Any, Any, Any]) -> None:
        """Do what nobody waits for. If it fails, a claim expires."""
        if self.never_waits:
            drive(_ignoring(steps))
        else:
            self._start(_ignoring(steps))


async def _ignoring(steps: Coroutine[Any, Any, Any]) -> None:
    with suppress(ConnectionError):
        await steps
