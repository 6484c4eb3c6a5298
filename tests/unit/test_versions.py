"""The rule of coherence: what a write gives a version, what it holds, and for how long. And the store, which asks it,
beside a model that is too simple to be wrong: a list of keys, oldest first, and a list of writes.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_cache.core import versions as module
from agent_cache.core.store import NEVER, Entry, Sizes, Store
from agent_cache.core.versions import Hold, Versions, Written, paths_of, paths_read, paths_written
from tests.harness.interruptions import interrupted

TAGS = st.lists(st.sampled_from(["a", "b", "7", "*"]), min_size=1, max_size=5).map(":".join)


def begun(versions: Versions, *tags: Any, **options: Any) -> Hold:
    """The hold of a write that has begun."""
    hold = Hold(*tags, **({"scopes": [versions]} | options))
    versions.begin(hold)
    return hold


@pytest.fixture
def versions() -> Versions:
    return Versions()


def meets(one: str, other: str) -> bool:
    """Equal, or one is a prefix of the other, segment by segment."""
    first, second = one.split(":"), other.split(":")
    return all(a == b for a, b in zip(first, second, strict=False))


# Tags and paths


@given(TAGS, TAGS)
def test_a_write_concerns_what_depends_on_its_tag_or_above_or_below_it(read: str, written: str):
    """An id that looks like a path may be found written more often than it was."""
    is_met = not set(paths_read(read)).isdisjoint(paths_written(written))
    assert is_met is meets(read, written) or (is_met and "*" in read)


@given(TAGS, st.sampled_from(["a", "b"]))
def test_a_write_of_no_entity_of_a_root_concerns_what_depends_on_the_whole_root(read: str, root: str):
    versions = Versions()
    versions.end(Hold((), [root], (versions,)))
    assert versions.touches(paths_of([read]), 1) is (read == root) or "*" in read


@pytest.mark.parametrize("read", [(1, "k"), (1,)])
@pytest.mark.parametrize("written", [(1, "k"), (1, "l"), (1,), (2, "k"), (2,)])
def test_entries_have_tags_below_that_of_their_tool(read: Any, written: Any):
    meet = read[0] == written[0] and (len(read) == 1 or len(written) == 1 or read == written)
    assert set(paths_read(read)).isdisjoint(paths_written(written)) is not meet


# Versions


def watching(versions: Versions, then: Callable[[Any], None]) -> None:
    """Call this with each path as soon as it has a version."""

    class Paths(dict[Any, int]):
        def __setitem__(self, path: Any, version: int) -> None:
            super().__setitem__(path, version)
            then(path)

    versions.known = (Paths(), {}, 0)


def test_a_write_in_the_middle_of_another_is_one_of_its_own(versions: Versions):
    """A finalizer ends a write wherever the garbage collector starts."""
    before, inner = versions.now, []
    watching(versions, lambda path: path == "a:1" and not inner and inner.append(versions.write(["c"])))
    outer = versions.write(["a:1", "b"])
    assert before < inner[0] < outer == versions.now
    assert versions.touches(paths_of(["a:1"]), inner[0])
    assert versions.touches(paths_of(["b"]), inner[0])
    assert not versions.touches(paths_of(["c"]), inner[0])


def test_a_generation_that_is_dropped_is_freed_outside_of_the_lock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "GENERATION", 1)
    versions, free = Versions(), []

    class Key:
        def __del__(self) -> None:
            free.append(not versions.lock._is_owned())

    versions.write([(1, Key())])
    for number in range(3):
        versions.write([f"a:{number}"])
    gc.collect()
    assert free == [True]


# Holds


def test_what_is_held_for_a_time_is_held_on_when_the_write_ends_again(versions: Versions):
    """As it does when its tiers know of it."""
    hold = begun(versions, ["order:7"])
    versions.end(hold, until=5.0)
    versions.end(hold, ["order:8"])
    assert versions.holds(paths_of(["order:7"]))
    versions.expire(5.0)
    assert not versions.holds(paths_of(["order:7", "order:8"]))
    assert not versions.held


def test_a_write_that_ends_while_others_expire_holds_what_it_names(versions: Versions):
    """In the middle of it: see above."""
    versions.end(begun(versions, ["a"]), ["a"], until=5.0)
    open_writes = [begun(versions, ["b"])]
    watching(versions, lambda _: open_writes and versions.end(open_writes.pop(), ["b"], until=1.0))
    versions.expire(5.0)
    versions.expire(5.0)
    assert not versions.held


def test_a_write_knows_its_own_hold_from_those_of_others(versions: Versions):
    one = begun(versions, ["order:7"])
    assert not versions.holds(paths_of(["order:7", "cart"]), one)
    begun(versions, ["cart"])
    assert versions.holds(paths_of(["order:7", "cart"]), one)
    assert not versions.holds(paths_of(["order:7"]), one)
    begun(versions, ["order"])
    assert versions.holds(paths_of(["order:7"]), one)


@pytest.mark.parametrize("until", [None, 5.0])
def test_an_end_that_was_interrupted_anywhere_is_repeated(until: float | None):
    for stop in itertools.count(1):
        versions = Versions()
        hold = begun(versions, ["order:7", "cart"])
        since = versions.now
        where = interrupted(lambda: versions.end(hold, ["order:7", "user"], until=until), stop)  # noqa: B023
        versions.end(hold, ["order:7", "user"], until=until)
        assert versions.touches(paths_of(["order:7"]), since), where
        assert versions.touches(paths_of(["user"]), since), where
        assert not versions.running, where
        assert until is None or versions.holds(paths_of(["user"])), where
        versions.expire(5.0)
        assert not versions.held, where
        if where is None:
            break


# Sessions, forks


class Session:
    """Something that writes are limited to."""


@pytest.mark.parametrize("limited", [False, True])
def test_in_a_child_nothing_is_held_by_writes_that_run_in_its_parent(versions: Versions, limited: bool):
    session = Session()
    own: Written = versions.of_session(session) if limited else versions
    scopes = [versions.of_session(session) if limited else versions]
    versions.end(begun(versions, ["cart"], scopes=scopes), ["cart"], until=5.0)
    begun(versions, ["order:7"], scopes=scopes, late=("user",))
    since = versions.now
    versions.lock.acquire()
    versions.after_fork()
    assert not own.holds(paths_of(["order:7"]))
    assert own.holds(paths_of(["cart"])), "this may take effect whatever the process"
    assert own.touches(paths_of(["order:7"]), since)
    assert own.touches(paths_of(["user:1"]), since), "it may have named it"
    assert not own.touches(paths_of(["order:8"]), since)
    versions.expire(5.0)
    assert not own.held


# The store

KEYS = st.sampled_from([None, 0, "0", (1, b"T")])
ENTRY_TAGS = st.sampled_from(["a", "a:1", "a:2", "a:1:x", "a:1:y", "b:1:x"])
TOOL = 7


def store_for(maxsize: int | None, owner: Any = None) -> Store:
    """A store on its own, whose tool has no entry that was written by its key."""
    return Store(maxsize, SimpleNamespace(number=TOOL, is_named=False), owner, versions=Versions())


def insert(store: Store, key: Any, entry: Entry, now: float = 0.0) -> tuple[Entry | None, list[Entry]]:
    """Store an entry whose load begins and ends now. Returns what was evicted, and what was dead."""
    entry.checked = store.versions.now
    dropped = store.insert(key, entry, now)
    return (None, []) if dropped is None else (dropped.evicted, list(dropped.swept))


def made(value: Any, *tags: str, size: int = 0, expires: float = NEVER, kept_for: float = 0.0) -> Entry:
    return Entry(value, expires, 0.0, tags, size=size, kept_for=kept_for)


class Model(RuleBasedStateMachine):
    """Every order to a store, and what it must have left."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[Any, Entry] = {}
        self.stale: set[Entry] = set()  # what a write has concerned
        self.now = 0.0

    @initialize(maxsize=st.sampled_from([1, 2, 3, None]))
    def begin(self, maxsize: int | None) -> None:
        self.maxsize = maxsize
        self.store = store_for(maxsize)
        self.store.sizes = self.sizes = Sizes()

    def is_dead(self, entry: Entry) -> bool:
        return entry in self.stale or entry.expires + entry.kept_for <= self.now

    def gone(self, key: Any) -> Entry:
        entry = self.entries.pop(key)
        self.stale.discard(entry)
        return entry

    @rule(
        key=KEYS,
        tags=st.lists(ENTRY_TAGS, max_size=3),
        size=st.integers(0, 9),
        life=st.sampled_from([1.0, 5.0, NEVER]),
        kept_for=st.sampled_from([0.0, 3.0]),
    )
    def insert(self, key: Any, tags: list[str], size: int, life: float, kept_for: float) -> None:
        if key in self.entries:
            self.gone(key)
        entry = made(object(), *tags, size=size, expires=self.now + life, kept_for=kept_for)
        evicted, swept = insert(self.store, key, entry, self.now)
        self.entries[key] = entry
        for dead in swept:
            assert self.is_dead(dead), "only what is of no more use is swept"
            self.gone(next(key for key, one in self.entries.items() if one is dead))
        if self.maxsize is not None and len(self.entries) > self.maxsize:
            assert evicted is self.gone(next(iter(self.entries)))
        else:
            assert evicted is None

    @rule(key=KEYS)
    def hit(self, key: Any) -> None:
        """As every hit does it: what was used last needs no move."""
        expected = self.entries.get(key)
        if expected is not None and expected in self.stale:
            self.gone(key)
            expected = None
        found = self.store.find(key)
        assert found is expected, "what counts is found, and what is stale is removed where it is met"
        if found is not None:
            if found is not self.store.newest:
                self.store.use(key, found)
            self.entries[key] = self.entries.pop(key)

    @rule(key=KEYS)
    def use_what_has_just_been_dropped(self, key: Any) -> None:
        """A hit in another thread may have looked an entry up before it went."""
        if key not in self.entries:
            before = self.store.newest
            self.store.use(key, made("gone"))
            assert self.store.newest is before

    @rule(key=KEYS)
    def discard(self, key: Any) -> None:
        assert self.store.discard(key) is (self.gone(key) if key in self.entries else None)

    @rule(tag=ENTRY_TAGS)
    def write(self, tag: str) -> None:
        self.store.versions.write([tag])
        self.stale |= {entry for entry in self.entries.values() if any(meets(tag, one) for one in entry.tags)}

    @rule(key=KEYS)
    def write_an_entry(self, key: Any) -> None:
        self.store.tool.is_named = True
        self.store.versions.write([(TOOL, key)])
        self.stale |= {entry for one, entry in self.entries.items() if one == key}

    @rule()
    def wait(self) -> None:
        self.now += 2.0

    @rule()
    @precondition(lambda self: len(self.entries) >= 3)
    def drop_all(self) -> None:
        assert set(self.store.drop_all().values()) == set(self.entries.values())
        self.entries.clear()
        self.stale.clear()

    @rule()
    @precondition(lambda self: self.entries)
    def evict(self) -> None:
        assert self.store.evict() is self.gone(next(iter(self.entries)))

    @rule(key=KEYS)
    def switched_off_it_answers_nothing_and_forgets_nothing(self, key: Any) -> None:
        self.store.switch(on=False)
        assert self.store.lookup(key) is self.store.find(key) is None
        assert self.store.peek(key) is self.entries.get(key)
        self.store.switch(on=True)

    @rule()
    def count(self) -> None:
        """It removes what is stale, as whoever meets it."""
        assert self.store.count_current(self.now) == sum(not self.is_dead(entry) for entry in self.entries.values())
        self.entries = {key: entry for key, entry in self.entries.items() if key in self.store}

    @invariant()
    def holds_just_that(self) -> None:
        store = self.store
        assert store.keys() == list(self.entries)
        assert len(store) == len(self.entries)
        assert store.bytes == self.sizes.total == sum(entry.size for entry in self.entries.values())


TestStore = Model.TestCase
TestStore.settings = settings(max_examples=20)
TestStoreLonger = pytest.mark.slow(type("LongerModel", (Model,), {}).TestCase)


@pytest.mark.parametrize("how", ["expired", "written", "written by its key"])
def test_dead_entries_make_room_before_a_living_one(how: str):
    store = store_for(4)
    for number in range(4):
        insert(store, number, made(number, f"a:{number}", expires=5.0 if how == "expired" and number > 1 else NEVER))
    if how == "written":
        store.versions.write(["a:2", "a:3"])
    elif how == "written by its key":
        store.tool.is_named = True
        store.versions.write([(TOOL, 2), (TOOL, 3)])
    evicted, swept = insert(store, "new", made("new"), 6.0)
    assert (evicted, bool(swept)) == (None, True)
    insert(store, "newer", made("newer"), 6.0)
    assert set(store.keys()) >= {0, 1, "new", "newer"}


def test_without_a_bound_what_is_dead_goes_while_others_come():
    store = store_for(None)
    for number in range(100):
        insert(store, number, made(number, "a", expires=5.0, kept_for=5.0))
    for number in range(100, 400):
        insert(store, number, made(number), 9.0)
    assert len(store) == 400, "all are still of use"
    for number in range(400, 800):
        insert(store, number, made(number), 10.0)
    assert store.keys() == list(range(100, 800))


def test_a_store_that_is_switched_off_can_still_be_emptied_and_stays_off():
    store = store_for(None)
    store.switch(on=False)
    store.drop_all()
    insert(store, "k", made(2))
    assert store.lookup("k") is None
    store.switch(on=True)
    assert store.lookup("k").value == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("order", ["discard", "find", "sweep", "evict", "drop_all"])
def test_what_was_dropped_is_let_go_of(order: str):
    class Value:
        pass

    store = store_for(None)
    value = Value()
    reference = weakref.ref(value)
    insert(store, "k", made(value, "a:1"))
    del value
    if order in {"find", "sweep"}:
        store.versions.write(["a:1"])
    {
        "discard": lambda: store.discard("k"),
        "find": lambda: store.find("k"),
        "sweep": lambda: store.sweep(0.0),
        "evict": store.evict,
        "drop_all": store.drop_all,
    }[order]()
    gc.collect()
    assert reference() is None, "an entry that was dropped must not live on in the store"
