"""The protocol of the fleet, every interleaving of small configurations: whole it keeps its promises, and no part of it
can be left out. `python -m tests.properties.fleet` prints what leads to each loss."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest

from tests.harness.slow import slow
from tests.properties.checker import Model, TooManyStatesError, explore
from tests.properties.fleet import protocol
from tests.properties.fleet.channels import WHOLE_ROOT, Channels, Split, SplitRoot
from tests.properties.fleet.configurations import (
    AMPUTATIONS,
    AMPUTATIONS_OF_CHANNELS,
    AMPUTATIONS_OF_MIXING,
    AMPUTATIONS_OF_SPLITTING,
    AMPUTATIONS_OF_STUTTER,
    AMPUTATIONS_OF_TRUST,
    CONFIGURATIONS,
)
from tests.properties.fleet.rules import WHOLE, Rules
from tests.properties.fleet.state import Configuration, Copy, Faults, State
from tests.properties.fleet.stutter import Stutter
from tests.properties.fleet.trust import Trust

LARGE = (  # a quarter of a second and more each; the others cover most parts of the protocol and most faults
    "entity and root read, entity written",
    "entity read in both processes, root written",
    "tags from read results, entity written",
    "tags from read and written results",
    "entity written from both processes",
    "root and a result's tag written",
    "results' tags written twice, nothing there yet",
    "the own process reads",
    "the own process reads after a flush",
    "lost, late and doubled commands",
    "a doubled commit beside another write",
    "failover and failback",
    "failover while a write dies",
    "a cell is evicted",
    "a read over an entity's, in both processes",
    "a read over an entity's, late and doubled commands",
    "a read over an entity's, failover",
    "a read over a result's, nothing there yet",
    "a read over two of an entity",
    "tags from read results, nothing there yet",
    "a write dies while its commit is on its way",
    "a write with its tag from the result is cut off",
    "a write is cut off, and a write dies",
    "failover",
    "failover of the cells' node",
    "failover while a write of a result's tag dies",
    "restart",
    "a read over an entity's, in the writing process",
    "a read over an entity's, beside it",
    "a read over an entity's, a result's tag written",
    "a read over an entity's, flush and eviction",
    "a read over an entity's and a root's",
    "a read over an entity's with the same tag from its result",
    "a shared load",
    "a read over an entity's, the root written",
    "a read over a root's",
    "a write is cut off",
)


@pytest.mark.parametrize("name", [*(name for name in CONFIGURATIONS if name not in LARGE), *slow(*LARGE)])
def test_the_whole_protocol_keeps_its_promises(name: str):
    verdict = explore(protocol.model(CONFIGURATIONS[name]))
    sys.stdout.write(f"{name}: {verdict}\n")
    assert verdict.holds, str(verdict)


def test_local_copies_are_never_trusted_for_longer_than_the_bound():
    verdict = explore(Trust().model())
    sys.stdout.write(f"{verdict}\n")
    assert verdict.holds, str(verdict)


def test_local_copies_are_not_trusted_beyond_the_subscriptions_of_their_roots():
    verdict = explore(Channels().model())
    sys.stdout.write(f"{verdict}\n")
    assert verdict.holds, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_server_that_stutters_keeps_no_write_from_being_seen_for_longer_than_the_bound(is_announced):
    verdict = explore(Stutter(is_announced=is_announced).model())
    sys.stdout.write(f"{verdict}\n")
    assert verdict.holds, str(verdict)


def test_the_model_of_channels_keeps_copies_and_leaves_channels():
    whole = Channels().model()
    for is_there in (
        lambda state: state.copy is not None and state.copy.seen == (1, 1) and state.copy.leases == (1, 0),
        lambda state: state.copy is not None and not state.leaves,
    ):
        assert not explore(Model(whole.start, whole.steps, lambda state: "it is" if is_there(state) else None)).holds  # noqa: B023


LONG = (  # half a second and more
    "a count of writers for their ids",
    "no waiting for the own commit",
    "the later of two inherited versions",
    "no recheck of covered tags",
    "no recheck of S and D",
    "a shared load under a hold",
)


@pytest.mark.parametrize("part", [*(part for part in AMPUTATIONS if part not in LONG), *slow(*LONG)])
def test_a_part_that_is_taken_out_is_missed(part: str):
    rules, name = AMPUTATIONS[part]
    verdict = explore(protocol.model(CONFIGURATIONS[name], rules))
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds
    assert "older than it may be" in str(verdict.broken) or "although" in str(verdict.broken)


@pytest.mark.parametrize("part", AMPUTATIONS_OF_TRUST)
def test_a_part_of_trust_that_is_taken_out_is_missed(part: str):
    verdict = explore(Trust(AMPUTATIONS_OF_TRUST[part]).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True], ids=["all of one version", "beside an earlier version"])
def test_a_process_that_listens_to_parts_of_a_root_misses_nothing_of_its_copies(is_mixed: bool):
    verdict = explore(SplitRoot(is_mixed=is_mixed).model())
    sys.stdout.write(f"{verdict}\n")
    assert verdict.holds, str(verdict)


@pytest.mark.slow
def test_the_model_of_parts_keeps_copies_without_the_whole():
    whole = SplitRoot().model()
    for key in ("e", "f", "list"):

        def is_there(state: Split, key: str = key) -> str | None:
            is_whole = WHOLE_ROOT in state.subscribed
            is_kept = any(name == key and seen == {"e", "root"} for name, seen in state.copies)
            return "it is" if is_kept and not state.changes and is_whole == (key == "list") else None

        assert not explore(Model(whole.start, whole.steps, is_there)).holds


@pytest.mark.parametrize("part", AMPUTATIONS_OF_SPLITTING)
def test_a_part_of_the_rules_of_splitting_that_is_taken_out_is_missed(part: str):
    verdict = explore(SplitRoot(AMPUTATIONS_OF_SPLITTING[part]).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


@pytest.mark.slow
@pytest.mark.parametrize("part", AMPUTATIONS_OF_MIXING)
def test_a_part_of_the_rules_beside_an_earlier_version_that_is_taken_out_is_missed(part: str):
    verdict = explore(SplitRoot(AMPUTATIONS_OF_MIXING[part], is_mixed=True).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


@pytest.mark.parametrize("part", AMPUTATIONS_OF_CHANNELS)
def test_a_part_of_the_rules_of_channels_that_is_taken_out_is_missed(part: str):
    verdict = explore(Channels(AMPUTATIONS_OF_CHANNELS[part]).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


@pytest.mark.parametrize("part", AMPUTATIONS_OF_STUTTER)
def test_a_part_that_a_server_that_stutters_is_met_with_is_missed(part: str):
    verdict = explore(Stutter(AMPUTATIONS_OF_STUTTER[part]).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


def test_a_write_that_does_not_wait_for_its_commit_is_missed_without_its_begin():
    verdict = explore(Stutter(dataclasses.replace(WHOLE, begins=False), is_announced=True).model())
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds


def test_every_part_is_taken_out_once():
    taken_out = [rules for rules, _ in AMPUTATIONS.values()]
    taken_out += [
        *AMPUTATIONS_OF_CHANNELS.values(),
        *AMPUTATIONS_OF_SPLITTING.values(),
        *AMPUTATIONS_OF_MIXING.values(),
    ]
    taken_out += [*AMPUTATIONS_OF_TRUST.values(), *AMPUTATIONS_OF_STUTTER.values()]
    for field in dataclasses.fields(Rules):
        values = {getattr(rules, field.name) for rules in taken_out}
        assert values > {getattr(WHOLE, field.name)}, f"{field.name} stays whole in all of them"


# A promise is also kept by a model in which nothing happens, so here is what must happen.

REACHED: dict[str, tuple[str, Callable[[State], bool]]] = {
    "a value that was loaded after a write is found": (
        "tags from read results, nothing there yet",
        lambda state: any(value and value.version == 1 for value in state.server.values) and state.floor == 1,
    ),
    "a copy is kept locally after a write": (
        "the own process reads",
        lambda state: state.local[0][0] == Copy(1) and state.own[0] == 1,
    ),
    "a read overlaps a whole write": (
        "entity and root read, entity written",
        lambda state: any(read.at == "loaded" and read.version < state.floor for read in state.reads),
    ),
    "a dead write's effect lands late and is seen": (
        "a write dies",
        lambda state: state.floor == 1 and state.writes[0].at == "gone" and state.reads[0].version == 1,
    ),
    "an armed write that died ends what depends on its root": (
        "a write with its tag from the result dies",
        lambda state: state.floor == 1 and state.server.cells[0] is None and state.server.values[0] is not None,
    ),
    "an invalidation lands after its write has returned": (
        "a write is cut off",
        lambda state: state.faults.unreachable == 0 and state.floor == 1 and state.pending == (None,),
    ),
    "a begin arrives after its write has returned": (
        "lost, late and doubled commands",
        lambda state: state.writes[0].at == "returned" and state.server.registry[0] is not None,
    ),
    "a write registers again after everything was flushed": (
        "flush",
        lambda state: state.faults.flush == 0 and state.is_settled and state.writes[0].at == "done",
    ),
    "the first server takes over again": (
        "failover and failback",
        lambda state: state.server.promotions == 2 and state.server.node == 0 and state.reads[0].at == "stored",
    ),
    "a read follows another's load": (
        "a shared load",
        lambda state: any(read.at == "follows" for read in state.reads) and state.floor == 1,
    ),
    "what inherited an outdated copy is stored, and is dead": (
        "a read over an entity's",
        lambda state: state.server.values[1] is not None and state.server.values[1].version < state.floor,
    ),
    "a read over another is stored after a write, and kept": (
        "a read over an entity's, in the writing process",
        lambda state: state.server.values[1] is not None and state.local[0][1] is not None and state.floor == 1,
    ),
    "two armed writes overlap, and both die": (
        "results' tags written twice, nothing there yet",
        lambda state: state.faults.crash == 0 and state.floor == 2,
    ),
}


REACHED_LATE = (  # half a second and more
    "a copy is kept locally after a write",
    "a read over another is stored after a write, and kept",
    "two armed writes overlap, and both die",
    "a value that was loaded after a write is found",
)


@pytest.mark.parametrize("what", [*(what for what in REACHED if what not in REACHED_LATE), *slow(*REACHED_LATE)])
def test_the_model_gets_to_where_it_is_interesting(what: str):
    name, is_there = REACHED[what]
    whole = protocol.model(CONFIGURATIONS[name])
    assert not explore(Model(whole.start, whole.steps, lambda state: what if is_there(state) else None)).holds


def test_a_process_that_may_die_has_one_write():
    with pytest.raises(ValueError, match="own process"):
        protocol.model(Configuration((), (("entity", 1), ("root", 1)), Faults(crash=1)))


# The checker itself


def up_to(last: int, bad: int | None = None) -> Model[int]:
    """A counter that takes one or two steps at a time."""
    return Model(
        0,
        lambda n: [(f"+{by}", n + by) for by in (1, 2) if n + by <= last],
        lambda n: f"{n} is bad" if n == bad else None,
    )


def test_the_checker_looks_at_every_state_once():
    verdict = explore(up_to(10))
    assert verdict.holds
    assert verdict.states == 11
    assert str(verdict) == "11 states, all promises kept"


def test_the_checker_finds_the_shortest_way_to_a_broken_promise():
    verdict = explore(up_to(10, bad=5))
    assert verdict.broken == "5 is bad"
    assert sorted(verdict.trace) == ["+1", "+2", "+2"]


def test_the_checker_finds_a_start_that_is_broken_already():
    assert explore(up_to(10, bad=0)).trace == ()


def test_the_checker_says_when_it_cannot_look_at_everything():
    with pytest.raises(TooManyStatesError):
        explore(up_to(1000), limit=100)
