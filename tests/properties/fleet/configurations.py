"""What is explored: configurations of the whole protocol, and each of its parts taken out where it is missed."""

from __future__ import annotations

from dataclasses import replace

from tests.properties.fleet.rules import WHOLE, Rules
from tests.properties.fleet.state import Configuration, Faults, Party

ENTITY: tuple[Party, Party] = (("entity", 0), ("entity", 1))
ROOT: tuple[Party, Party] = (("root", 0), ("root", 1))
RESULT: tuple[Party, Party] = (("result", 0), ("result", 1))
OVER_ENTITY: tuple[Party, Party] = (("over entity", 0), ("over entity", 1))


def _case(reads: list[Party], writes: list[Party], *, warm: bool = True, **faults: int) -> Configuration:
    return Configuration(tuple(reads), tuple(writes), Faults(**faults), is_warm=warm)


CONFIGURATIONS: dict[str, Configuration] = {
    # Who reads and who writes
    "entity and root read, entity written": _case([ROOT[0], ENTITY[0]], [ENTITY[1]], crash=1, loss=1),
    "entity read in both processes, root written": _case([*ENTITY], [ROOT[1]], crash=1, loss=1),
    "tags from read results, entity written": _case([RESULT[0], RESULT[0]], [ENTITY[1]], crash=1, loss=1),
    "tags from read and written results": _case(
        [RESULT[0], ENTITY[0]], [RESULT[1]], crash=1, loss=1, failure=1, doubt=1
    ),
    "tags from read results, nothing there yet": _case([*RESULT], [ENTITY[1]], warm=False, crash=1),
    "entity written from both processes": _case([ENTITY[0]], [*ENTITY], crash=1, doubt=1),
    "root and a result's tag written": _case([ROOT[0]], [RESULT[0], ROOT[1]], crash=1, doubt=1),
    "results' tags written twice, nothing there yet": _case([RESULT[0]], [*RESULT], warm=False, crash=2, failure=1),
    "the own process reads": _case([ENTITY[0], ROOT[0]], [ENTITY[0]], doubt=1, loss=1),
    # Writes that die
    "a write dies": _case([ENTITY[0]], [ENTITY[1]], crash=1),
    "a write with its tag from the result dies": _case([ENTITY[0]], [RESULT[1]], crash=1),
    # Commits that are not waited for
    "the own process reads after a flush": _case([ENTITY[0], ENTITY[0]], [ENTITY[0]], flush=1),
    "a write dies while its commit is on its way": _case([ENTITY[0], ROOT[0]], [ENTITY[1]], crash=1),
    # Commands that do not land, or twice, or late
    "a write is cut off": _case([ENTITY[0]], [ENTITY[0]], unreachable=2),
    "a write with its tag from the result is cut off": _case([RESULT[0]], [RESULT[0]], unreachable=2, failure=1),
    "lost, late and doubled commands": _case([ENTITY[0]], [ENTITY[0]], unreachable=1, late=1, doubled=1),
    "a doubled commit beside another write": _case([ENTITY[0]], [*ENTITY], crash=1, doubled=1),
    "a write is cut off, and a write dies": _case([ENTITY[0]], [ENTITY[1]], unreachable=1, late=1, crash=1),
    # Subscriptions
    "a subscription breaks": _case([ENTITY[0]], [ENTITY[1]], loss=1),
    "a subscription breaks twice": _case([ROOT[0]], [RESULT[1]], loss=2, crash=1),
    # Servers
    "failover": _case([ENTITY[0]], [ENTITY[1]], failover=1),
    "failover and failback": _case([ENTITY[0]], [ENTITY[1]], failover=1, failback=1, replication=1),
    "failover of the cells' node": _case([ENTITY[0]], [ENTITY[1]], failover=1, failback=1)._replace(values_apart=True),
    "failover while a write dies": _case([ENTITY[0]], [ENTITY[1]], failover=1, crash=1, replication=1),
    "failover while a write of a result's tag dies": _case([RESULT[0]], [RESULT[1]], failover=1, crash=1),
    "restart": _case([ENTITY[0]], [ENTITY[1]], restart=1, crash=1),
    "flush": _case([ENTITY[0]], [ENTITY[1]], flush=1, crash=1),
    # Memory and time
    "a cell is evicted": _case([ENTITY[0], ENTITY[0]], [ENTITY[1]], warm=False, eviction=1),
    "a cell is evicted while a write dies": _case([RESULT[0]], [RESULT[1]], eviction=1, crash=1),
    "a ttl passes": _case([ENTITY[0]], [ENTITY[1]], expiry=1, crash=1),
    # Strong reads
    "strong reads, entity written": _case([ENTITY[0]], [ENTITY[1]], unreachable=1, crash=1)._replace(is_strong=True),
    "strong reads, a result's tag written": _case([ENTITY[0]], [RESULT[1]], unreachable=1, crash=1)._replace(
        is_strong=True
    ),
    "strong reads with tags from results": _case([RESULT[0]], [RESULT[1]], unreachable=1, crash=1)._replace(
        is_strong=True
    ),
    # Reads whose loads make other reads
    "a read over an entity's": _case([OVER_ENTITY[0]], [ENTITY[1]], crash=1, loss=1),
    "a read over an entity's, in the writing process": _case([OVER_ENTITY[0]], [ENTITY[0]], unreachable=1, doubt=1),
    "a read over an entity's, beside it": _case([OVER_ENTITY[0], ENTITY[0]], [ENTITY[1]], crash=1),
    "a read over an entity's, in both processes": _case([*OVER_ENTITY], [ENTITY[1]], crash=1, loss=1),
    "a read over an entity's, a result's tag written": _case(
        [OVER_ENTITY[0], ENTITY[0]], [RESULT[1]], crash=1, failure=1
    ),
    "a read over an entity's, the root written": _case([OVER_ENTITY[0]], [ROOT[1]], crash=1, loss=1),
    "a read over an entity's, late and doubled commands": _case(
        [OVER_ENTITY[0]], [ENTITY[0]], unreachable=1, late=1, doubled=1
    ),
    "a read over an entity's, failover": _case([OVER_ENTITY[0]], [ENTITY[1]], failover=1, failback=1, replication=1),
    "a read over an entity's, flush and eviction": _case(
        [OVER_ENTITY[0]], [ENTITY[1]], warm=False, flush=1, eviction=1
    ),
    "a read over a root's": _case([("over root", 0)], [ENTITY[1]], crash=1, loss=1),
    "a read over a result's": _case([("over result", 0)], [RESULT[1]], crash=1, loss=1),
    "a read over a result's, nothing there yet": _case([("over result", 0)], [*ENTITY], warm=False, doubt=1),
    "a read over two of an entity": _case([("over entity twice", 0)], [*ENTITY], crash=1),
    "a read over an entity's and a root's": _case([("over entity and root", 0)], [ENTITY[1]], crash=1, loss=1),
    "a read over an entity's with the same tag from its result": _case(
        [("result, over entity", 0)], [ENTITY[1]], crash=1, loss=1
    ),
    "strong reads over an entity's": _case([OVER_ENTITY[0]], [RESULT[1]], unreachable=1, crash=1)._replace(
        is_strong=True
    ),
    # Loads that processes share
    "a shared load": _case([*ENTITY], [ENTITY[1]], crash=1, doubt=1)._replace(shares_loads=True),
    "a shared load of a root": _case([ROOT[0], ROOT[0]], [RESULT[1]], crash=1, failure=1)._replace(shares_loads=True),
}

AMPUTATIONS: dict[str, tuple[Rules, str]] = {
    "no begin": (replace(WHOLE, begins=False), "a write dies"),
    "a count of writers for their ids": (replace(WHOLE, registry="counts"), "a doubled commit beside another write"),
    "no renewal": (replace(WHOLE, renews=False), "a write dies"),
    "no registering again": (replace(WHOLE, registers_again=False), "flush"),
    "no identity": (replace(WHOLE, identity="none"), "failover"),
    "the run id for the replication id": (replace(WHOLE, identity="run id"), "failover and failback"),
    "the identity of the value's node": (replace(WHOLE, identity="value's node"), "failover of the cells' node"),
    "no recheck of S and D": (replace(WHOLE, rechecks=False), "tags from read results, nothing there yet"),
    "no arming": (replace(WHOLE, arms=False), "a write with its tag from the result dies"),
    "no drop on re-subscribe": (replace(WHOLE, drops_on_resubscribe=False), "a subscription breaks"),
    "no pending rule": (replace(WHOLE, waits_for_pending=False), "a write is cut off"),
    "no waiting for the own commit": (
        replace(WHOLE, waits_for_own_commit=False),
        "the own process reads after a flush",
    ),
    "no commit waited for": (replace(WHOLE, awaits_commits="of none"), "a write with its tag from the result dies"),
    "a missing cell as a value": (replace(WHOLE, mints=False), "a cell is evicted"),
    "grace across a write": (replace(WHOLE, grace_ends_with_a_write=False), "a ttl passes"),
    "strong reads under an armed cell": (
        replace(WHOLE, strong_reads_pass_over_armed=False),
        "strong reads, a result's tag written",
    ),
    "inherited versions fetched anew": (replace(WHOLE, inherits="versions fetched anew"), "a read over an entity's"),
    "the later of two inherited versions": (
        replace(WHOLE, inherits="the later versions"),
        "a read over two of an entity",
    ),
    "no recheck of covered tags": (
        replace(WHOLE, rechecks_covered=False),
        "a read over an entity's with the same tag from its result",
    ),
    "a shared load under a hold": (replace(WHOLE, shares_under_hold=True), "a shared load"),
}

AMPUTATIONS_OF_CHANNELS: dict[str, Rules] = {
    "a lease that outlives its connection": replace(WHOLE, drops_on_resubscribe=False),
    "the trust of one root for a copy of two": replace(WHOLE, trusts_all_roots=False),
    "a trust that outlives the move of a slot": replace(WHOLE, ends_trust_in_what_moves=False),
    "a channel left that a copy depends on": replace(WHOLE, keeps_channels_of_copies=False),
}

AMPUTATIONS_OF_SPLITTING: dict[str, Rules] = {
    "parts without the channel of the root": replace(WHOLE, splits_with_root_channel=False),
    "the whole left before its parts are heard": replace(WHOLE, parts_before_leaving=False),
}

AMPUTATIONS_OF_MIXING: dict[str, Rules] = {
    "parts beside writes of an earlier version, without a mark": replace(WHOLE, looks_for_marks=False),
}

AMPUTATIONS_OF_TRUST: dict[str, Rules] = {
    "a lease from the PONG's arrival": replace(WHOLE, trusts_from_sending=False),
    "no drop on re-subscribe": replace(WHOLE, drops_on_resubscribe=False),
}

AMPUTATIONS_OF_STUTTER: dict[str, Rules] = {
    "a lease from the sending of the PING": replace(WHOLE, trusts_from_heartbeat=False),
    "lookups without a young heartbeat": replace(WHOLE, lookups_follow_heartbeats=False),
    "a write that returns with nothing sent": replace(WHOLE, hands_over=False),
}
