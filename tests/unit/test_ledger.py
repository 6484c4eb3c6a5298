"""What a write does to loads and entries: marked, detached, dropped, held off, and no more than it names."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from hypothesis import strategies as st

from agent_cache.core import coherence
from agent_cache.core.coherence import Ledger, Load, Partition
from agent_cache.core.store import NEVER, Entry
from agent_cache.core.tags import Region, meet
from tests.harness.interruptions import interrupted
from tests.harness.searches import searched


class Joined(Load):
    """A load that says whether readers may still join it."""

    is_joinable = True

    def detach(self) -> None:
        self.is_joinable = False


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def partition_in(
    ledger: Ledger,
    *static: str,
    roots: tuple[str, ...] = (),
    owner: object = None,
    tool: object = None,
    of: Partition | None = None,
) -> Partition:
    """A partition within reach of writes: of a tool of its own, or of the one that another partition has."""
    tool = of.tool if of is not None else object() if tool is None else tool
    roots = roots or tuple(tag.partition(":")[0] for tag in static)
    partition = Partition(tool, owner, static, roots, None, None if of is None else of.group)
    ledger.register(partition)
    return partition


def loading(ledger: Ledger, partition: Partition, *tags: str, late: tuple[str, ...] = (), key: Any = "k") -> Joined:
    load = Joined(partition, key, (*partition.static, *tags), late)
    load.start()
    return load


def put(partition: Partition, key: Any, *tags: str) -> None:
    partition.insert(key, Entry(key, NEVER, 0.0, tags))


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
    load.finish()
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
    assert ledger.may_store(load, resolved) is stored


def test_a_load_during_which_more_was_written_than_is_noted_is_not_stored(ledger: Ledger):
    for number_of_tags, stored in ((9_000, True), (10_001, False)):
        load = loading(ledger, partition_in(ledger, roots=("user",)), late=("user",))
        for number in range(0, number_of_tags, 1_000):
            ledger.invalidate(
                Region(tuple(f"user:{one}" for one in range(number, min(number + 1_000, number_of_tags))))
            )
        assert ledger.may_store(load, ["user:other"]) is stored, number_of_tags
        load.finish()


def test_what_is_noted_is_forgotten_when_nobody_needs_it(ledger: Ledger):
    partition = partition_in(ledger, roots=("user",))
    root = partition.group.roots["user"]
    assert root is not None
    load = loading(ledger, partition, late=("user",))
    ledger.invalidate(Region(("user:1",)))
    assert root.noted
    assert not ledger.may_store(load, ["user:1"])
    assert root.written
    ledger.invalidate(Region(("user:1",)))
    load.finish()
    assert not root.written
    assert not root.noted
    ledger.invalidate(Region(("user:1",)))
    assert not root.noted


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
    everyones = partition_in(ledger, "order")
    mine, others = (partition_in(ledger, "order", owner=owner, of=everyones) for owner in ("mine", "other"))
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
    tools = [partition_in(ledger, "order", tool=tool) for tool in ("a", "b")]
    partitions = [one for tool in tools for one in (tool, partition_in(ledger, "order", owner="session", of=tool))]
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


def test_a_tool_that_is_gone_is_reached_no_more_and_its_root_is_forgotten(ledger: Ledger):
    partition = partition_in(ledger, "order")
    put(partition, "k")
    assert ledger.partitions() == [partition]
    assert ledger.tools_under("order") == [partition.tool]
    del partition
    gc.collect()
    assert ledger.partitions() == []
    assert dict(ledger._roots) == {}


def test_a_session_that_has_ended_is_reached_no_more(ledger: Ledger):
    tool = partition_in(ledger, "order")
    session = partition_in(ledger, "order", owner="session", of=tool)
    put(session, "k")
    ledger.unregister(session)
    ledger.unregister(session)
    assert ledger.partitions() == [tool]
    assert ledger.invalidate(Region(("order:7",))) == []
    put(tool, "mine")
    dropped = ledger.invalidate(Region(("order:7",)))
    assert [list(store[0]) for store in dropped] == [["mine"]], "of the tool in the global scope alone"


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
    assert [timed for _, _, timed in ledger.timed_holds] == [hold]
    ledger.release(hold)
    assert not ledger.holds_anything
    assert dict(ledger._roots) == {}


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
    assert [until for until, _, _ in ledger.timed_holds] == [20.0]
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

    class Collecting(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            holds = super().setdefault(key, default)
            if garbage:
                ledger.release(garbage.pop())
            return holds

    region = Region(("order:7", "order:8"))
    garbage = [ledger.hold(region)]
    (root,) = garbage[0].roots
    garbage[0].enter_indexes()
    root.held.sets = Collecting(root.held.sets)
    second = ledger.hold(region)
    second.enter_indexes()
    assert root.held.sets == {(None, "order:7"): {second}, (None, "order:8"): {second}}
    third = ledger.hold(region)
    garbage = [third]
    third.enter_indexes()
    assert root.held.sets == {(None, "order:7"): {second}, (None, "order:8"): {second}}, "which was itself released"


def test_a_write_in_flight_whose_hold_was_released_drops_what_was_stored_since(ledger: Ledger):
    """Under a hold nothing is stored, so the end of a write looks for entries only if its hold was no longer there."""
    partition = partition_in(ledger, roots=("order",))
    region = Region(("order:7",))
    for is_held in (True, False):
        hold, _ = ledger.begin(region, region)
        assert not ledger.may_store(loading(ledger, partition, "order:7"), ["order:7"])
        if not is_held:
            ledger.release_all()  # as in a forked child, and between two tests
            put(partition, "k", "order:7")
        ledger.end(hold, region)
        assert partition.store.keys() == []
        assert not ledger.holds_anything


def test_a_write_drops_at_its_end_what_only_its_result_names(ledger: Ledger):
    partition = partition_in(ledger, roots=("order", "user"))
    put(partition, "7", "order:7")
    put(partition, "u1", "user:1")
    put(partition, "u2", "user:2")
    put(partition, "u3", "user:3")
    early, held = Region(("order:7",)), Region(("order:7", "user"))
    hold, _ = ledger.begin(early, held)
    assert partition.store.keys() == ["u1", "u2", "u3"]
    ledger.end(hold, early, Region(("user:1",)))
    assert partition.store.keys() == ["u2", "u3"]
    hold, _ = ledger.begin(early, held)
    ledger.end(hold, Region(("user:2",)))
    assert partition.store.keys() == ["u3"]


def test_the_end_of_a_write_of_several_roots_finds_each_of_them(ledger: Ledger):
    """What it holds has its roots in another order than what it began with, if its result may name some of them."""
    partition = partition_in(ledger, roots=("order", "user", "list"))
    early = Region(("order:7",), bare=("list",))
    held = early.beside(Region(("order", "user")))
    assert [part.root for part in held.parts[:2]] != [part.root for part in early.parts]
    hold, _ = ledger.begin(early, held)
    loads = [loading(ledger, partition, tag) for tag in ("order:7", "list", "user:1", "order:8")]
    ledger.end(hold, early, Region(("user:1",)))
    assert [fate(load) for load in loads] == ["dirty", "dirty", "dirty", "untouched"]


def test_the_end_of_a_write_marks_the_loads_that_began_inside(ledger: Ledger):
    partition = partition_in(ledger, roots=("order",))
    region = Region(("order:7",))
    hold, _ = ledger.begin(region, region)
    loads = [loading(ledger, partition, "order:7"), loading(ledger, partition, "order:8")]
    ledger.end(hold, region, None, region, 10.0)
    assert [fate(load) for load in loads] == ["dirty", "untouched"]
    assert not ledger.may_store(loading(ledger, partition, "order:7"), ["order:7"])
    ledger.expire_holds(10.0)
    assert ledger.may_store(loading(ledger, partition, "order:7"), ["order:7"])


# -- What it costs: the lines of the library that one more write, load or hold runs ----------------------------


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of Python the library runs for this."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal count
        count += event == "line"
        return trace if "agent_cache" in frame.f_code.co_filename else None

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def test_a_write_costs_what_it_names_while_loads_wait_for_tags_from_their_results(ledger: Ledger):
    partition = partition_in(ledger, roots=("user",))
    loads = [loading(ledger, partition, late=("user",)) for _ in range(100)]
    ledger.invalidate(Region(("user:first",)))
    few = lines_of(lambda: ledger.invalidate(Region(("user:a",))))
    many = lines_of(lambda: ledger.invalidate(Region(tuple(f"user:{number}" for number in range(1_000)))))
    assert many < 20_000 + few, "no product of the tags written and the loads in flight"
    tags = [f"user:other{number}" for number in range(1_000)]
    assert lines_of(lambda: ledger.may_store(loads[0], tags)) < 30 * len(tags)
    assert ledger.may_store(loads[0], tags)
    assert not ledger.may_store(loads[1], ["user:77"])


def test_a_write_costs_nothing_for_loads_of_other_tags(ledger: Ledger):
    partition = partition_in(ledger, roots=("order",))
    loading(ledger, partition, "order:another")
    ledger.invalidate(Region(("order:8",)))  # the first one lists the loads that have started
    alone = lines_of(lambda: ledger.invalidate(Region(("order:7",))))
    for number in range(1_000):
        loading(ledger, partition, f"order:other{number}", key=number)
    ledger.invalidate(Region(("order:8",)))
    assert lines_of(lambda: ledger.invalidate(Region(("order:7",)))) <= alone + 5


def test_a_load_costs_nothing_for_other_writes_in_flight(ledger: Ledger):
    load = loading(ledger, partition_in(ledger, roots=("order",)), "order:7")
    holds = [ledger.hold(Region(("order:0",)))]
    assert ledger.may_store(load, ["order:7"])
    few = lines_of(lambda: ledger.may_store(load, ["order:7"]))
    holds += [ledger.hold(Region((f"order:other{number}",))) for number in range(1_000)]
    first = lines_of(lambda: ledger.may_store(load, ["order:7"]))  # lists the last holds that were not
    assert first < few + 40 * coherence._UNLISTED
    assert lines_of(lambda: ledger.may_store(load, ["order:7"])) == few
    assert lines_of(lambda: ledger.release(holds[500])) < 60


def test_a_write_costs_the_sessions_that_have_what_it_names_and_no_others(ledger: Ledger):
    tool = partition_in(ledger, "order:list", roots=("order",))
    partitions = [partition_in(ledger, "order:list", owner=object(), of=tool) for _ in range(1_000)]
    for number, partition in enumerate(partitions):
        put(partition, "k", f"order:{number}")
    assert lines_of(lambda: ledger.invalidate(Region(("order:500",)))) < 150
    assert [len(partition.store) for partition in partitions[499:502]] == [1, 0, 1]
    assert lines_of(lambda: ledger.invalidate(Region(("order:list",)))) < 150
    assert all(partition.store.lookup("k") is None for partition in partitions)
    put(partitions[3], "k", "order:3")
    assert partitions[3].store.lookup("k") is not None
    assert partitions[4].store.lookup("k") is None


def test_a_key_of_a_session_is_found_without_asking_the_others(ledger: Ledger):
    tool = partition_in(ledger, roots=("order",))
    partitions = [partition_in(ledger, owner=object(), of=tool) for _ in range(1_000)]
    for number, partition in enumerate(partitions):
        put(partition, number, "order:1")
    assert lines_of(lambda: ledger.invalidate(Region(keys=((tool.tool, 500),)))) < 100
    assert [len(partition.store) for partition in partitions[499:502]] == [1, 0, 1]


def test_more_sessions_than_a_write_may_visit_lose_everything_at_once(ledger: Ledger):
    tool = partition_in(ledger, roots=("order",))
    partitions = [partition_in(ledger, owner=object(), of=tool) for _ in range(2_000)]
    for partition in partitions:
        put(partition, "k", "order:1")
        put(partition, "other", "order:2")
    assert lines_of(lambda: ledger.invalidate(Region(("order:1",)))) < 4_500
    assert not any(partition.store.lookup(key) for partition in partitions for key in ("k", "other"))


def test_a_write_looks_for_entries_once(ledger: Ledger):
    """Its end costs the same however many tools share the root."""

    def lines_of_an_end() -> int:
        hold, _ = ledger.begin(region, region)
        return lines_of(lambda: ledger.end(hold, region))

    region = Region(("order:7",))
    tools = [partition_in(ledger, roots=("order",))]
    alone = lines_of_an_end()
    tools += [partition_in(ledger, roots=("order",)) for _ in range(100)]
    assert lines_of_an_end() == alone


def test_a_write_drops_so_many_entries_one_by_one_in_all_tools_together(ledger: Ledger):
    """The tools that it then comes to lose all their entries, in constant time."""
    tools = [partition_in(ledger, roots=("order",)) for _ in range(20)]
    in_sessions = [partition_in(ledger, owner=object(), of=tool) for tool in tools for _ in range(100)]
    for partition in (*tools, *in_sessions):
        put(partition, "other", "order:8")
        for number in range(10):
            put(partition, number, "order:7")
    lines = lines_of(lambda: ledger.invalidate(Region(("order:7",))))
    assert lines < 30 * coherence._MANY
    partitions = (*tools, *in_sessions)
    assert not any(partition.store.lookup(number) for partition in partitions for number in range(10))
    assert any(partition.store.lookup("other") for partition in partitions), "some are dropped one by one"


def test_the_lists_of_sessions_that_are_dropped_at_once_are_handed_back(ledger: Ledger):
    """They are freed in slices, outside of the lock, as the entries are."""
    tool = partition_in(ledger, "order")
    sessions = [partition_in(ledger, "order", owner=object(), of=tool) for _ in range(100)]
    for number, session in enumerate(sessions):
        put(session, number, f"user:{number}")
    outdated, lists = ledger.invalidate(Region(("order",)))
    assert len(outdated) == 100
    assert [len(each) for each in lists] == [0, 100, 100, 1, 100]


def test_the_lists_of_a_session_are_those_of_its_entries(ledger: Ledger):
    tool = partition_in(ledger, roots=("order",))
    session = Partition(tool.tool, "mine", (), ("order",), 5, tool.group)
    ledger.register(session)
    for number in range(10_000):
        put(session, number, f"order:{number}")
        assert len(tool.group._tags.exact.sets) <= 16, "the keys of entries that are gone may be long"
    ledger.unregister(session)
    assert not tool.group._tags.exact.sets
    assert not tool.group._tags.below.sets
    assert not tool.group._keys.sets


def test_a_session_that_was_never_left_is_unlisted_when_it_is_freed(ledger: Ledger):
    tool = partition_in(ledger, roots=("order",))
    put(partition_in(ledger, owner=object(), of=tool), "k", "order:1")
    gc.collect()
    put(partition_in(ledger, owner=object(), of=tool), "k", "order:2")
    gc.collect()
    assert "order:1" not in tool.group._tags.exact.sets


def test_very_many_writes_in_doubt_hold_their_whole_roots(ledger: Ledger):
    partition = partition_in(ledger, roots=("order", "cart"))
    for number in range(20_000):
        ledger.hold(Region((f"order:{number}",)), 10.0 + number / 1_000)
    assert len(ledger.holds) < 2_000
    assert not ledger.may_store(loading(ledger, partition, "order:19999"), ["order:19999"])
    assert ledger.may_store(loading(ledger, partition, "cart"), ["cart"])
    ledger.expire_holds(29.0)
    while ledger.is_behind(29.0):
        ledger.expire_holds(29.0)
    assert not ledger.may_store(loading(ledger, partition, "order:19999"), ["order:19999"]), "until the last has ended"
    ledger.expire_holds(30.0)
    assert ledger.may_store(loading(ledger, partition, "order:19999"), ["order:19999"])
    assert not ledger.holds_anything


def test_holds_that_are_over_are_released_a_few_at_a_time_and_hold_until_then(ledger: Ledger):
    partition = partition_in(ledger, roots=("order",))
    for number in range(900):
        ledger.hold(Region((f"order:{number}",)), 10.0)
    loads = [loading(ledger, partition, f"order:{number}") for number in range(900)]
    ledger.expire_holds(11.0)
    assert 0 < len(ledger.holds) < 900
    assert ledger.is_behind(11.0)
    assert not any(ledger.may_store(load, load.tags) for load in loads), "each began while its write was in doubt"
    while ledger.is_behind(11.0):
        ledger.expire_holds(11.0)
    assert not ledger.holds
    assert not any(load.is_clean for load in loads)


SEGMENTS = st.sampled_from(["order", "order:7", "order:8", "order:7:lines", "order:7:lines:1", "order:70", "cart:7"])


@searched(30, 100, st.lists(SEGMENTS), st.lists(SEGMENTS), st.lists(SEGMENTS))
def test_what_holds_and_what_was_written_is_what_meets(tags: list[str], held: list[str], written: list[str]):
    """A result with many tags is compared with all of them at once."""
    ledger = Ledger()
    partition = partition_in(ledger, roots=("order", "cart"))
    load = loading(ledger, partition, late=("order", "cart"))
    ledger.invalidate(Region(tuple(written)))
    is_overlapped = any(meet(tag, one) for tag in tags for one in written)
    assert ledger.may_store(load, tags) is not is_overlapped
    hold = ledger.hold(Region(tuple(held)))
    is_held = any(meet(tag, one) for tag in tags for one in held)
    assert ledger.is_held(tags, partition, "k") is is_held
    ledger.release(hold)
    assert not ledger.is_held(tags, partition, "k")


def test_many_tags_of_a_result_are_compared_with_writes_and_holds_at_once(ledger: Ledger):
    partition = partition_in(ledger, roots=("order",))
    tags = [f"order:{number}" for number in range(5_000)]
    load = loading(ledger, partition, late=("order",))
    ledger.invalidate(Region(("order:other",)))
    hold = ledger.hold(Region(("order:another",)))
    assert lines_of(lambda: ledger.may_store(load, tags)) < 15 * len(tags)
    ledger.release(hold)
    ledger.invalidate(Region(("order:4999",)))
    assert not ledger.may_store(load, tags)


def test_an_entry_of_very_many_tags_counts_as_several(ledger: Ledger):
    """To take each of its tags from the index is work as well."""
    partition = partition_in(ledger, roots=("order",))
    put(partition, "other", "order:8")
    put(partition, "long", *(f"order:x{number}" for number in range(5_000)))
    ledger.invalidate(Region(("order:x7",)))
    assert partition.store.keys() == ["other"]
    for key in range(5):
        put(partition, key, *(f"order:x{number}" for number in range(5_000)))
    assert lines_of(lambda: ledger.invalidate(Region(("order:x7",)))) < 1_000
    assert partition.store.keys() == []


# -- Writes that overlap -------------------------------------------------------------------------------------------


def test_a_write_is_told_of_others_that_it_has_overlapped(ledger: Ledger):
    partition = partition_in(ledger, roots=("order", "cart"))
    earlier = ledger.hold(Region(("order:1",)))
    mine = ledger.hold(Region(("order", "cart")))

    def overlapped(tag: str) -> bool:
        return ledger.was_overlapped(mine, [tag], partition, "k")

    assert [overlapped(tag) for tag in ("order:1", "order:2", "cart", "order")] == [True, False, False, True]
    ledger.release(earlier)
    ledger.invalidate(earlier.region)
    assert [overlapped(tag) for tag in ("order:1", "order:2", "cart", "order")] == [True, False, False, True]
    ledger.invalidate(Region(("order:2",)))
    assert overlapped("order:2")
    assert overlapped("user:1"), "a root that the write does not name is not watched"
    ledger.release(mine)
    assert not any(root.noted or root.written for root in ledger._roots.values())


def test_a_write_is_told_of_entries_that_were_invalidated_by_their_keys(ledger: Ledger):
    partition, another = partition_in(ledger, roots=("order",)), partition_in(ledger, roots=("order",))
    ledger.invalidate(Region(keys=((partition.tool, "earlier"),)))
    mine = ledger.hold(Region(("order",)))

    def overlapped(key: str, of: Partition = partition) -> bool:
        return ledger.was_overlapped(mine, ["order:1"], of, key)

    assert not overlapped("earlier")
    ledger.invalidate(Region(keys=((partition.tool, "a"),)))
    assert [overlapped(key) for key in "ab"] == [True, False]
    assert not overlapped("a", another)
    ledger.clear(partition.tool)
    assert [overlapped("b"), overlapped("b", another)] == [True, False]
    ledger.clear()
    assert overlapped("b", another)
    ledger.release(mine)
    assert not ledger._named
    ledger.invalidate(Region(keys=((partition.tool, "a"),)))
    assert not ledger._named, "nobody is there to be told"


def test_what_is_noted_of_keys_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    """Beyond the bound, everything counts as overlapped for the writes that run."""
    monkeypatch.setattr(coherence, "_MAX_WRITTEN", 10)
    partition = partition_in(ledger, roots=("order",))
    mine = ledger.hold(Region(("order",)))
    for key in range(11):
        ledger.invalidate(Region(keys=((partition.tool, key),)))
    later = ledger.hold(Region(("cart",)))
    assert len(ledger._named) <= 10
    assert ledger.was_overlapped(mine, ["order:1"], partition, "another")
    ledger.release(mine)
    assert not ledger.was_overlapped(later, ["cart"], partition, "another")


def test_a_write_that_names_an_entry_by_its_key_is_told_of_writes_to_the_roots_of_its_tool(ledger: Ledger):
    partition = partition_in(ledger, roots=("order", "cart"))
    mine = ledger.hold(Region(keys=((partition.tool, "k"),)))

    def overlapped() -> bool:
        return ledger.was_overlapped(mine, ["order:1", "cart"], partition, "k")

    assert not overlapped()
    ledger.invalidate(Region(("order:2",)))
    assert not overlapped()
    ledger.invalidate(Region(("cart",)))
    assert overlapped()
    ledger.release(mine)
    assert not any(root.noted or root.written or root.watchers for root in ledger._roots.values())


# -- A write that Ctrl-C interrupts ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begin", "end"])
@pytest.mark.parametrize("by", ["tag", "key"])
def test_a_step_that_is_interrupted_anywhere_leaves_nothing_half_done(ledger: Ledger, step: str, by: str):
    """The write has ended then, and the next one finds whatever there is to be dropped or not to be stored."""
    partition = partition_in(ledger, roots=("order",))
    other = ledger.hold(Region(("cart",)))  # without any, nothing is looked for
    for stop in count(1):
        tag = f"order:{stop}"
        region = Region((tag,)) if by == "tag" else Region(keys=((partition.tool, stop),))
        load = loading(ledger, partition, tag, late=("order",), key=stop)
        put(partition, stop, tag)
        if step == "begin":
            where = interrupted(lambda region=region: ledger.begin(region, region), stop)
        else:
            hold, _ = ledger.begin(region, region)
            second = loading(ledger, partition, tag, key=stop)
            where = interrupted(lambda hold=hold, region=region: ledger.end(hold, region), stop)
            if where is not None:
                ledger.end(hold, region)  # as a write does
            assert fate(second) == "dirty", where
            second.finish()
        if where is None:
            assert stop > 5, "the call came through the ledger without being seen"
            break
        assert ledger.holds == {other}, where
        third = loading(ledger, partition, tag, key=stop)
        ledger.invalidate(Region(("order:0",)))
        assert ledger.may_store(third, (tag,)), where
        third.finish()
        hold, _ = ledger.begin(region, region)
        ledger.end(hold, region)
        assert not ledger.may_store(load, (tag,)), where
        load.finish()
        assert partition.store.keys() == [], where


def test_a_write_is_told_of_other_writes_of_an_entry_after_an_interrupted_one(ledger: Ledger):
    partition = partition_in(ledger, "order")
    region = Region(("order",))
    for stop in count(1):
        where = interrupted(lambda: ledger.release(ledger.hold(region)), stop)
        ledger.release_all()
        if where is None:
            assert stop > 3, "the call came through the ledger without being seen"
            break
        mine = ledger.hold(region)
        ledger.invalidate(Region(keys=((partition.tool, "k"),)))
        assert ledger.was_overlapped(mine, ("order",), partition, "k"), where
        ledger.release(mine)


@pytest.mark.parametrize("step", ["begin", "end"])
def test_a_load_may_start_at_any_moment_of_a_write(ledger: Ledger, step: str):
    """Another thread starts it without the lock. The next write finds it."""
    partition = partition_in(ledger, roots=("order",))
    region = Region(("order:7",))
    for stop in count(1):
        loads = [loading(ledger, partition, "order:7")]
        hold, _ = ledger.begin(region, region) if step == "end" else (None, None)
        loads.append(loading(ledger, partition, "order:7"))
        begin_or_end = partial(ledger.begin, region, region) if hold is None else partial(ledger.end, hold, region)
        where = interrupted(
            begin_or_end, stop, by=lambda loads=loads: loads.append(loading(ledger, partition, "order:7"))
        )
        ledger.release_all()
        ledger.invalidate(region)
        assert [fate(load) for load in loads] == ["dirty"] * len(loads), where
        for load in loads:
            load.finish()
        if where is None:
            assert stop > 5, "the call came through the ledger without being seen"
            break
        assert len(loads) == 3
