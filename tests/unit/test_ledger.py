"""What a write does to loads and entries: marked, detached, dropped, held off, and no more than it names."""

from __future__ import annotations

from typing import Any

import pytest

from agent_cache.core.coherence import Ledger, Load, Partition, Region
from agent_cache.core.store import NEVER, Entry

INDEFINITELY = float("inf")


class Joined(Load):
    """A load that says whether readers may still join it."""

    is_joinable = True

    def detach(self) -> None:
        self.is_joinable = False


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def partition_in(
    ledger: Ledger, *static: str, roots: tuple[str, ...] = (), owner: object = None, tool: object = "tool"
) -> Partition:
    """A partition within reach of writes."""
    partition = Partition(tool, owner, static, roots or tuple(tag.partition(":")[0] for tag in static), None)
    ledger.register(partition)
    return partition


def loading(ledger: Ledger, partition: Partition, *tags: str, late: tuple[str, ...] = (), key: Any = "k") -> Joined:
    load = Joined(partition, key, (*partition.static, *tags), late)
    ledger.start(load)
    return load


def put(partition: Partition, key: Any, *tags: str) -> None:
    partition.store.insert(key, Entry(key, NEVER, 0.0, tags))


def fate(load: Joined) -> str:
    return {(True, True): "untouched", (False, False): "dirty", (True, False): "detached"}[
        load.is_clean, load.is_joinable
    ]


# -- Loads in flight -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "written", "expected"),
    [
        (["order:7"], "order:7", "dirty"),
        (["order:7"], "order", "dirty"),
        (["order:7"], "order:7:lines", "dirty"),
        (["order:7:lines"], "order:7", "dirty"),
        (["order:7"], "order:8", "untouched"),
        (["order:7"], "cart", "untouched"),
        (["order:7", "order:8"], "order:8", "dirty"),
        ([], "order:7", "untouched"),
    ],
)
def test_a_write_marks_the_loads_it_meets_and_no_other(ledger: Ledger, tags: list[str], written: str, expected: str):
    load = loading(ledger, partition_in(ledger, roots=("order", "cart")), *tags)
    ledger.invalidate(Region((written,)))
    assert fate(load) == expected
    assert ledger.may_store(load, tags) is (expected == "untouched")


def test_a_load_that_has_ended_is_compared_with_nothing(ledger: Ledger):
    partition = partition_in(ledger, "order")
    load = loading(ledger, partition)
    assert ledger.loads_in_flight() == 1
    for loads in partition.loads:
        loads.discard(load)
    assert ledger.loads_in_flight() == 0
    ledger.invalidate(Region(("order",)))
    assert fate(load) == "untouched"


def test_a_load_of_several_roots_is_one_load(ledger: Ledger):
    load = loading(ledger, partition_in(ledger, "order", "cart"))
    assert ledger.loads_in_flight() == 1
    ledger.invalidate(Region(("cart",)))
    assert fate(load) == "dirty"


def test_what_was_written_before_a_load_begins_again_does_not_concern_it(ledger: Ledger):
    partition = partition_in(ledger, "order", roots=("order", "user"))
    load = loading(ledger, partition, late=("user",))
    ledger.invalidate(Region(("order", "user:1")))
    load.restart()
    assert load.is_clean
    load.resolve(["user:1"])
    assert ledger.may_store(load, ["order", "user:1"])


@pytest.mark.parametrize(
    ("written", "resolved", "stored"),
    [
        ("user:1", ["user:1"], False),
        ("user:1", ["user:2"], True),
        ("user:1", ["user"], False),
        ("user", ["user:1"], False),
        ("user:1:cards", ["user:1"], False),
        ("cart:1", ["user:1"], True),
        ("user:1", ["user:2", "user:1"], False),
    ],
)
def test_a_load_whose_tags_are_not_known_yet_is_compared_when_they_are(
    ledger: Ledger, written: str, resolved: list[str], stored: bool
):
    load = loading(ledger, partition_in(ledger, roots=("user", "cart")), late=("user",))
    ledger.invalidate(Region((written,)))
    assert fate(load) == ("untouched" if written.startswith("cart") else "detached")
    load.resolve(resolved)
    assert ledger.may_store(load, resolved) is stored


def test_a_load_during_which_more_was_written_than_it_remembers_is_not_stored(ledger: Ledger):
    for count, stored in ((64, True), (65, False)):
        load = loading(ledger, partition_in(ledger, roots=("user",)), late=("user",))
        for number in range(count):
            ledger.invalidate(Region((f"user:{number}",)))
        load.resolve(["user:other"])
        assert ledger.may_store(load, ["user:other"]) is stored, count


# -- Entries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("order:7", ["8"]),
        ("order:8", ["7", "7:lines"]),
        ("order:7:lines", ["8"]),
        ("order:7:notes", ["7:lines", "8"]),
        ("order:9", ["7", "7:lines", "8"]),
        ("order", []),
        ("cart", ["all", "7", "7:lines", "8"]),
    ],
)
def test_a_write_drops_what_it_meets_and_nothing_beside_it(ledger: Ledger, written: str, left: list[str]):
    partition = partition_in(ledger, roots=("order",))
    put(partition, "all", "order")
    put(partition, "7", "order:7")
    put(partition, "7:lines", "order:7:lines")
    put(partition, "8", "order:8")
    ledger.invalidate(Region((written,)))
    assert partition.store.keys() == left


@pytest.mark.parametrize(
    ("static", "written", "emptied"),
    [
        ("order", "order:7", True),
        ("order:list", "order:list", True),
        ("order:list", "order", True),
        ("order:list", "order:list:open", True),
        ("order:list", "order:7", False),
    ],
)
def test_what_every_entry_of_a_tool_depends_on_needs_no_index(ledger: Ledger, static: str, written: str, emptied: bool):
    partition = partition_in(ledger, static)
    put(partition, "k")
    ledger.invalidate(Region((written,)))
    assert partition.store.keys() == ([] if emptied else ["k"])


def test_a_write_that_touched_no_entity_drops_what_depends_on_all_and_nothing_below(ledger: Ledger):
    whole, parts = partition_in(ledger, "order"), partition_in(ledger, roots=("order",))
    put(whole, "k")
    put(parts, "all", "order")
    put(parts, "7", "order:7")
    loads = [loading(ledger, whole), loading(ledger, parts, "order"), loading(ledger, parts, "order:7")]
    ledger.invalidate(Region(bare=("order",)))
    assert whole.store.keys() == []
    assert parts.store.keys() == ["7"]
    assert [fate(load) for load in loads] == ["dirty", "dirty", "untouched"]


def test_a_write_that_touched_no_entity_is_remembered_by_loads_that_may_depend_on_all(ledger: Ledger):
    for resolved, stored in (("order", False), ("order:7", True)):
        load = loading(ledger, partition_in(ledger, roots=("order",)), late=("order",))
        ledger.invalidate(Region(bare=("order",)))
        load.resolve([resolved])
        assert ledger.may_store(load, [resolved]) is stored


def test_what_touches_a_whole_root_is_not_made_less_by_what_touches_no_entity_of_it(ledger: Ledger):
    """One tag of a write gave no id, another could not be made: all of the root may have changed."""
    partition = partition_in(ledger, roots=("order",))
    put(partition, "all", "order")
    put(partition, "7", "order:7")
    ledger.invalidate(Region(("order",), bare=("order",)))
    assert partition.store.keys() == []


@pytest.mark.parametrize("region", [Region(("order:7",)), Region(bare=("order",))])
def test_a_write_that_meets_more_than_a_write_may_take_empties_the_store_at_once(ledger: Ledger, region: Region):
    """One by one they take 5 us each, and a write must not hold the event loop for long: all go, which is safe."""
    partition = partition_in(ledger, roots=("order",))
    put(partition, "8", "order:8")
    for number in range(5_000):
        put(partition, number, *(region.paths or region.bare))
    store = partition.store._data
    ledger.invalidate(region)
    assert len(partition.store) == 0
    assert len(store) == 5_001, "handed back whole, to be freed in slices"


def test_what_was_dropped_is_handed_back_alive(ledger: Ledger):
    partition = partition_in(ledger, roots=("order",))
    put(partition, "7", "order:7")
    assert [entry.value for [entry] in [dropped for dropped in ledger.invalidate(Region(("order:7",))) if dropped]] == [
        "7"
    ]


# -- Reach ---------------------------------------------------------------------------------------------------


def test_a_write_limited_to_sessions_reaches_them_alone(ledger: Ledger):
    mine, others, everyones = (partition_in(ledger, "order", owner=owner) for owner in ("mine", "other", None))
    loads = [loading(ledger, partition) for partition in (mine, others, everyones)]
    for partition in (mine, others, everyones):
        put(partition, "k")
    ledger.hold(Region(("order",), (), frozenset({"mine"})))
    ledger.invalidate(Region(("order",), (), frozenset({"mine"})))
    assert [len(partition.store) for partition in (mine, others, everyones)] == [0, 1, 1]
    assert [fate(load) for load in loads] == ["dirty", "untouched", "untouched"]
    fresh = [loading(ledger, partition) for partition in (mine, others, everyones)]
    assert [ledger.may_store(load, ["order"]) for load in fresh] == [False, True, True]


def test_single_keys_of_single_tools(ledger: Ledger):
    partitions = [
        partition_in(ledger, "order", owner=owner, tool=tool) for tool in ("a", "b") for owner in (None, "session")
    ]
    loads = [loading(ledger, partition, key=key) for partition in partitions for key in ("k", "other")]
    for partition in partitions:
        put(partition, "k")
        put(partition, "other")
    region = Region(keys=(("a", "k"),))
    hold = ledger.hold(region)
    ledger.invalidate(region)
    assert [partition.store.keys() for partition in partitions] == [
        ["other"],
        ["other"],
        ["k", "other"],
        ["k", "other"],
    ]
    dirty = ["dirty", "untouched"]
    assert [fate(load) for load in loads] == [*dirty, *dirty, *["untouched"] * 4]
    fresh = [loading(ledger, partition, key=key) for partition in partitions for key in ("k", "other")]
    assert [ledger.may_store(load, ["order"]) for load in fresh] == [False, True, False, True, *[True] * 4]
    ledger.release(hold)
    assert all(ledger.may_store(load, ["order"]) for load in fresh)


def test_a_partition_that_has_left_is_reached_no_more_and_its_root_is_forgotten(ledger: Ledger):
    partition = partition_in(ledger, "order")
    put(partition, "k")
    assert ledger.partitions_under("order") == [partition]
    ledger.unregister(partition)
    ledger.unregister(partition)
    assert ledger.partitions() == []
    assert ledger._partitions == {}
    ledger.invalidate(Region(("order",)))
    assert partition.store.keys() == ["k"]


def test_clearing_one_tool_spares_the_others(ledger: Ledger):
    one, other = partition_in(ledger, "order", tool="one"), partition_in(ledger, "order", tool="other")
    loads = [loading(ledger, one), loading(ledger, other)]
    put(one, "k")
    put(other, "k")
    assert sum(len(dropped[0]) for dropped in ledger.clear("one")) == 1
    assert [len(one.store), len(other.store)] == [0, 1]
    assert [fate(load) for load in loads] == ["dirty", "untouched"]
    ledger.clear()
    assert len(other.store) == 0
    assert fate(loads[1]) == "dirty"


# -- Holds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "tag", "stored"),
    [
        (Region(("order:7",)), "order:7", False),
        (Region(("order:7",)), "order", False),
        (Region(("order",)), "order:7", False),
        (Region(("order:7",)), "order:8", True),
        (Region(("order:7",)), "cart", True),
        (Region(bare=("order",)), "order", False),
        (Region(bare=("order",)), "order:7", True),
    ],
)
def test_while_a_write_is_in_flight_nothing_it_names_is_stored(ledger: Ledger, held: Region, tag: str, stored: bool):
    partition = partition_in(ledger, roots=("order", "cart"))
    hold = ledger.hold(held)
    load = loading(ledger, partition, tag)
    assert ledger.may_store(load, [tag]) is stored
    ledger.release(hold)
    assert ledger.may_store(load, [tag])
    assert not ledger.holds_anything


def test_of_two_writes_each_has_its_own_hold(ledger: Ledger):
    partition = partition_in(ledger, "order")
    first, second = ledger.hold(Region(("order",))), ledger.hold(Region(("order",)))
    load = loading(ledger, partition)
    ledger.release(first)
    assert not ledger.may_store(load, ["order"])
    ledger.release(first)
    assert not ledger.may_store(load, ["order"]), "released twice, it must not release the other"
    ledger.release(second)
    assert ledger.may_store(load, ["order"])


def test_a_hold_of_several_roots_is_released_in_all(ledger: Ledger):
    hold = ledger.hold(Region(("order:1", "order:2", "cart"), (("tool", "k"),), bare=("user",)), 5.0)
    assert ledger.timed_holds == [hold]
    ledger.release(hold)
    assert not ledger.holds_anything
    assert ledger.timed_holds == []


def test_a_hold_expires_at_its_time_and_not_before(ledger: Ledger):
    partition = partition_in(ledger, "order")
    ledger.hold(Region(("order",)), 10.0)
    ledger.hold(Region(("cart",)), 20.0)
    put(partition, "k")
    load = loading(ledger, partition)
    ledger.expire_holds(9.9)
    assert not ledger.may_store(load, ["order"])
    assert partition.store.keys() == ["k"]
    ledger.expire_holds(10.0)
    assert [hold.until for hold in ledger.timed_holds] == [20.0]
    assert ledger.may_store(loading(ledger, partition), ["order"])


def test_the_end_of_a_hold_invalidates(ledger: Ledger):
    """What began to load inside it may be from before the effect; what was kept inside it likewise."""
    partition = partition_in(ledger, "order")
    ledger.hold(Region(("order",)), 10.0)
    load = loading(ledger, partition)
    put(partition, "k")
    ledger.expire_holds(10.0)
    assert fate(load) == "dirty"
    assert partition.store.keys() == []


def test_a_write_in_flight_never_expires(ledger: Ledger):
    ledger.hold(Region(("order",)))
    ledger.expire_holds(1e300)
    assert not ledger.may_store(loading(ledger, partition_in(ledger, "order")), ["order"])
    ledger.release_all()
    assert not ledger.holds_anything


def test_a_hold_is_there_although_the_last_other_one_is_let_go_of_meanwhile(ledger: Ledger):
    """By a garbage collection, for one: it closes a write that somebody has given up."""

    class Collecting(dict[str, Any]):
        def setdefault(self, key: str, default: Any = None) -> Any:
            holds = super().setdefault(key, default)
            if garbage:
                ledger.release(garbage.pop())
            return holds

    region = Region(("order:7",))
    garbage = [ledger.hold(region)]
    ledger._holds = Collecting(ledger._holds)
    second = ledger.hold(region)
    assert ledger._holds == {"order": [second]}
