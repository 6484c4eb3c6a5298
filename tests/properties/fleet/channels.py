"""What a local copy is bound to: the uninterrupted subscriptions to the channels of all its roots.

One process, and two roots on two servers, each with a connection and a channel of its own. Time is left out: `trust`
has that. A connection that is broken without notice is trusted for the bound, so a copy is judged only while the
connections that it depends on are whole and all messages have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.properties.checker import Model, Step
from tests.properties.fleet.rules import WHOLE, Rules
from tests.properties.fleet.server import replaced

ROOTS = (0, 1)


class Link(NamedTuple):
    """The connection to the server of one root.

    Attributes:
        lease: number of the connection, or of the servers that the root has been on.
        is_moving: the slot of the root was moved away, which the process has not been told yet.
    """

    lease: int = 0
    is_whole: bool = True
    is_moving: bool = False
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
        def to(state: State = state, **changes: Any) -> State:
            return state._replace(links=replaced(state.links, root, link._replace(**changes)))

        if not state.written[root]:
            queue = (*link.queue, "news") if link.is_subscribed else link.queue
            yield "a write returns", to(state._replace(written=replaced(state.written, root, 1)), queue=queue)
        if link.queue:
            heard = to(queue=link.queue[1:], is_confirmed=link.is_confirmed or link.queue[0] == "confirmed")
            if link.queue[0] == "news" and link.is_confirmed:
                heard = heard._replace(copy=None, load=None)
            if link.queue[0] == "moved":  # by the server it was on, after its last messages
                lease = link.lease + 1 if self.rules.ends_trust_in_what_moves else link.lease
                heard = to(queue=link.queue[1:], lease=lease, is_moving=False, is_confirmed=False)
            yield f"{link.queue[0]} arrives", heard
        if link.is_whole and not link.is_subscribed and not link.is_moving:
            yield "it is subscribed to", to(is_subscribed=True, queue=(*link.queue, "confirmed"))
        in_use = state.copy is not None or state.load is not None
        may_leave = link.is_confirmed and not link.is_moving
        if may_leave and state.leaves and not (in_use and self.rules.keeps_channels_of_copies):
            left = state._replace(leaves=state.leaves - 1)
            yield "it is UNSUBSCRIBED from", to(left, is_subscribed=False, is_confirmed=False)
        if link.is_whole and state.losses:
            lost = state._replace(losses=state.losses - 1)
            yield (
                "the connection BREAKS, unnoticed",
                to(lost, is_whole=False, is_moving=False, is_subscribed=False, queue=()),
            )
            if link.is_subscribed and not link.is_moving:
                yield "its slot MOVES", to(lost, is_moving=True, is_subscribed=False, queue=(*link.queue, "moved"))
        if not link.is_whole:
            lease = link.lease + 1 if self.rules.drops_on_resubscribe else link.lease
            yield "it is connected to again", to(lease=lease, is_whole=True, is_confirmed=False)


# A root that is split


PARTS: dict[str, frozenset[str]] = {"e": frozenset({"*", "e"}), "f": frozenset({"*", "f"}), "list": frozenset()}
"""The channels that cover a copy together: those of two entities, and of a list, which only the whole covers."""
WHOLE_ROOT = "whole"
WRITES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "e": ((WHOLE_ROOT, "e"), ("e", "list")),
    "root": ((WHOLE_ROOT, "*"), ("e", "f", "list")),
}
"""Where the message of a write goes, and the copies that it ends."""
EARLIER: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "e, by an earlier version": ((WHOLE_ROOT,), ("e", "list")),
    "f, by an earlier version": ((WHOLE_ROOT,), ("f", "list")),
}
"""The same of a version that knows no parts."""


class Split(NamedTuple):
    """One connection.

    Attributes:
        written: what was written.
        commands: on their way to the server: "+" or "-" and a channel.
        subscribed: on the server.
        confirmed: channels whose messages arrive, as far as the process knows and wants.
        queue: on its way back: "+" or "-" and a channel, or "!" and what was written.
        copies, loads: by key, what had been written when it was loaded.
        is_splitting: the process has begun to subscribe to parts.
        mark: on the server, 0 after a write of an earlier version.
        known_mark: as the process knows it, 0 before it has split the root.
        is_beaten: a heartbeat was answered since that write. Until then its copies are trusted from before.
    """

    written: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    subscribed: frozenset[str] = frozenset({WHOLE_ROOT})
    confirmed: frozenset[str] = frozenset({WHOLE_ROOT})
    queue: tuple[str, ...] = ()
    copies: frozenset[tuple[str, frozenset[str]]] = frozenset()
    loads: frozenset[tuple[str, frozenset[str]]] = frozenset()
    is_splitting: bool = False
    mark: int = 0
    known_mark: int = 0
    is_beaten: bool = True
    changes: int = 2


class SplitRoot:
    """The steps of a process that listens to the whole root, or to the parts that its copies depend on.

    Attributes:
        writes: those of processes of this version, or of an earlier one.
    """

    def __init__(self, rules: Rules = WHOLE, *, is_mixed: bool = False) -> None:
        self.rules = rules
        self.writes = EARLIER if is_mixed else WRITES

    def model(self) -> Model[Split]:
        """For the checker."""
        return Model(Split(changes=1 if self.writes is EARLIER else 2), self.steps, self.broken)

    def broken(self, state: Split) -> str | None:
        """Whether a read that starts now is served what it must not be, although all messages have arrived."""
        if any(each.startswith("!") for each in state.queue):
            return None
        for key, seen in state.copies:
            ending = {name for name, (_, ended) in self.writes.items() if key in ended}
            if not state.is_beaten:
                ending.difference_update(EARLIER)
            if state.written & ending != seen & ending:
                return f"a copy of {key} is served that does not know of {sorted(state.written & ending - seen)}"
        return None

    def _covers(self, state: Split, key: str) -> bool:
        return WHOLE_ROOT in state.confirmed or (key != "list" and self._parts({key}) <= state.confirmed)

    def _parts(self, keys: Iterable[str]) -> frozenset[str]:
        parts = frozenset({"*"}).union(*(PARTS[key] for key in keys))
        return parts if self.rules.splits_with_root_channel else parts - {"*"}

    def steps(self, state: Split) -> Iterator[Step[Split]]:
        """Everything that may happen next."""
        for name, (channels, _) in self.writes.items():
            if name not in state.written:
                news = tuple("!" + name for channel in channels if channel in state.subscribed)
                after = state._replace(written=state.written | {name}, queue=state.queue + news)
                if name in EARLIER:
                    after = after._replace(mark=0, is_beaten=False)
                yield f"{name} is written", after
        if state.commands:
            first, *rest = state.commands
            sign, channel = first[0], first[1:]
            subscribed = state.subscribed | {channel} if sign == "+" else state.subscribed - {channel}
            executed = state._replace(commands=tuple(rest), subscribed=subscribed, queue=(*state.queue, first))
            yield f"the server executes {first}", executed
        if state.queue:
            yield f"{state.queue[0]} arrives", self._heard(state._replace(queue=state.queue[1:]), state.queue[0])
        yield from self._loads(state)
        yield from self._changes(state)
        if not state.is_beaten or state.mark != state.known_mark:
            yield "a heartbeat is answered", self._beaten(state._replace(is_beaten=True))

    def _beaten(self, state: Split) -> Split:
        """Look for the mark, and plant another one where it is gone. Whoever has missed messages drops all copies."""
        if state.mark == state.known_mark or not (state.known_mark and self.rules.looks_for_marks):
            return state
        marked = state._replace(mark=3 - state.known_mark)
        marked = marked._replace(known_mark=marked.mark, is_splitting=False)
        if WHOLE_ROOT in state.confirmed:
            return marked
        commands = state.commands if "+" + WHOLE_ROOT in state.commands else (*state.commands, "+" + WHOLE_ROOT)
        return marked._replace(copies=frozenset(), loads=frozenset(), commands=commands)

    def _heard(self, state: Split, what: str) -> Split:
        if what.startswith("!"):
            ended = self.writes[what[1:]][1]
            return state._replace(
                copies=frozenset(copy for copy in state.copies if copy[0] not in ended),
                loads=frozenset(load for load in state.loads if load[0] not in ended),
            )
        if what[0] != "+":
            return state
        if what[1:] == WHOLE_ROOT and self.rules.looks_for_marks:  # earlier versions may have written since a heartbeat
            state = state._replace(copies=frozenset(), loads=frozenset())
        return state._replace(confirmed=state.confirmed | {what[1:]})

    def _loads(self, state: Split) -> Iterator[Step[Split]]:
        running, kept = dict(state.loads), dict(state.copies)
        for key in PARTS:
            if key in running:
                ended = state._replace(loads=state.loads - {(key, running[key])})
                yield f"a load of {key} ends", ended._replace(copies=state.copies | {(key, running[key])})
            elif key not in kept and self._covers(state, key):
                # It looks at once: what it would see later is newer.
                yield f"a load of {key} looks", state._replace(loads=state.loads | {(key, state.written)})

    def _changes(self, state: Split) -> Iterator[Step[Split]]:
        """From the whole to parts and back. A copy, or a load that is under way, may depend on any time since."""
        used = {key for key, _ in (*state.copies, *state.loads)}
        is_idle = not state.commands and not any(each[0] in "+-" for each in state.queue)
        if (
            not state.is_splitting
            and WHOLE_ROOT in state.confirmed
            and is_idle
            and state.changes
            and "list" not in used
        ):
            commands = tuple("+" + part for part in sorted(self._parts(used)))
            asked = state._replace(commands=commands, changes=state.changes - 1, mark=1, known_mark=1)
            yield "it begins to split", asked._replace(is_splitting=True)
        may_leave = self._parts(used) <= state.confirmed and "list" not in used
        if state.is_splitting and WHOLE_ROOT in state.confirmed and (may_leave or not self.rules.parts_before_leaving):
            left = state._replace(confirmed=state.confirmed - {WHOLE_ROOT})
            yield "it leaves the whole", left._replace(commands=(*state.commands, "-" + WHOLE_ROOT))
        elif state.is_splitting and WHOLE_ROOT in state.confirmed and is_idle and not may_leave:
            yield "it gives up", state._replace(is_splitting=False)
        if WHOLE_ROOT not in state.confirmed and is_idle and state.changes:
            again = state._replace(commands=("+" + WHOLE_ROOT,), changes=state.changes - 1, is_splitting=False)
            yield "it wants the whole again", again
        if WHOLE_ROOT not in state.confirmed and is_idle and "f" not in state.confirmed:
            yield "it wants another part", state._replace(commands=("+f",))
