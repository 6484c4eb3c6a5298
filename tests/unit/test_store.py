"""The store against a model that is too simple to be wrong: a list of keys, oldest first, and a list of writes."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_cache.core.store import NEVER, Entry, Sizes, Store
from agent_cache.core.tags import meet
from agent_cache.core.versions import Versions

KEYS = st.sampled_from([None, 0, "0", (1, b"T")])
TAGS = st.sampled_from(["a", "a:1", "a:2", "a:1:x", "a:1:y", "b:1:x"])
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
        tags=st.lists(TAGS, max_size=3),
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

    @rule(tag=TAGS)
    def write(self, tag: str) -> None:
        self.store.versions.write([tag])
        self.stale |= {entry for entry in self.entries.values() if any(meet(tag, one) for one in entry.tags)}

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
        expected = sum(not self.is_dead(entry) for entry in self.entries.values())
        assert self.store.count_current(self.now) == expected
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
