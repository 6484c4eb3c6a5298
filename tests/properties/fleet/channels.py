"""What a local copy is bound to: the uninterrupted subscriptions to the channels of all its roots.

One process, and two roots on two servers, each with a connection and a channel of its own. Time is left out: `trust`
has that. A connection that is broken without notice is trusted for the bound, so a copy is judged only while the
connections that it depends on are whole and all messages have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.properties.fleet.checker import Model, Step
from tests.properties.fleet.rules import WHOLE, Rules
from tests.properties.fleet.server import replaced

ROOTS = (0, 1)


class Link(NamedTuple):
    """The connection to one server."""

    lease: int = 0  # number of the connection
    is_whole: bool = True
    is_subscribed: bool = False  # on the server
    is_confirmed: bool = False
    queue: tuple[str, ...] = ()


class Kept(NamedTuple):
    """A copy, or the load that it comes from."""

    leases: tuple[int, ...]
    seen: tuple[int, ...] | None = None


class State(NamedTuple):
    written: tuple[int, ...] = (0,) * len(ROOTS)
    links: tuple[Link, ...] = (Link(),) * len(ROOTS)
    copy: Kept | None = None
    load: Kept | None = None
    losses: int = 1
    leaves: int = 2
    loads: int = 2


class Channels:
    """The steps of a process whose copy is made of both roots, under a set of rules."""

    def __init__(self, rules: Rules = WHOLE) -> None:
        self.rules = rules

    def model(self) -> Model[State]:
        """For the checker."""
        return Model(State(), self.steps, self.broken)

    def broken(self, state: State) -> str | None:
        """Whether a read that starts now is served what it must not be."""
        copy = state.copy
        if copy is None or not self._is_trusted(state, copy):
            return None
        if all(link.is_whole and not link.queue for link in state.links) and copy.seen != state.written:
            return f"a copy of versions {copy.seen} is served, older than it may be: {state.written} were written"
        return None

    def _is_trusted(self, state: State, kept: Kept) -> bool:
        bound_to = ROOTS if self.rules.trusts_all_roots else ROOTS[:1]
        return all(state.links[root].lease == kept.leases[root] for root in bound_to)

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Everything that may happen next."""
        for root in ROOTS:
            for label, after in self._of_root(state, root, state.links[root]):
                yield f"root {root}: {label}", after
        load = state.load
        leases = tuple(link.lease for link in state.links)
        if load is None and state.loads and all(link.is_confirmed for link in state.links):
            yield "a load begins", state._replace(load=Kept(leases), loads=state.loads - 1)
        elif load is not None and load.seen is None:
            yield f"it sees {state.written}", state._replace(load=load._replace(seen=state.written))
        elif load is not None:
            is_clean = self._is_trusted(state, load) and all(state.links[root].is_confirmed for root in ROOTS)
            yield "it ends", state._replace(load=None, copy=load if is_clean else state.copy)

    def _of_root(self, state: State, root: int, link: Link) -> Iterator[Step[State]]:
        def to(state: State = state, **changes: object) -> State:
            return state._replace(links=replaced(state.links, root, link._replace(**changes)))

        if not state.written[root]:
            queue = (*link.queue, "news") if link.is_subscribed else link.queue
            yield "a write returns", to(state._replace(written=replaced(state.written, root, 1)), queue=queue)
        if link.queue:
            heard = to(queue=link.queue[1:], is_confirmed=link.is_confirmed or link.queue[0] == "confirmed")
            if link.queue[0] == "news" and link.is_confirmed:
                heard = heard._replace(copy=None, load=None)
            yield f"{link.queue[0]} arrives", heard
        if link.is_whole and not link.is_subscribed:
            yield "it is subscribed to", to(is_subscribed=True, queue=(*link.queue, "confirmed"))
        in_use = state.copy is not None or state.load is not None
        if link.is_confirmed and state.leaves and not (in_use and self.rules.keeps_channels_of_copies):
            left = state._replace(leaves=state.leaves - 1)
            yield "it is UNSUBSCRIBED from", to(left, is_subscribed=False, is_confirmed=False)
        if link.is_whole and state.losses:
            lost = state._replace(losses=state.losses - 1)
            yield "the connection BREAKS, unnoticed", to(lost, is_whole=False, is_subscribed=False, queue=())
        if not link.is_whole:
            lease = link.lease + 1 if self.rules.drops_on_resubscribe else link.lease
            yield "it is connected to again", to(lease=lease, is_whole=True, is_confirmed=False)
