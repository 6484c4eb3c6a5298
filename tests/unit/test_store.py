"""The store against a model that is too simple to be wrong: a list of keys, oldest first."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_cache.core.store import NEVER, Entry, SizedEntry, Store, Stored, entry_of, expires_of, expiring_by, tags_of
from agent_cache.core.tags import Part, Region

KEYS = st.sampled_from([None, 0, "0", (1, b"T")])
TAGS = st.sampled_from(["a", "a:1", "a:2", "a:1:x", "a:1:y", "b:1:x"])
ROOTS = ["a", "b"]
BELOW_ROOT = ["a:1", "a:2", "a:1:x", "a:1:y", "b:1", "b:1:x"]


def made(value: Any, *tags: str, size: int = 0) -> Stored:
    """An entry, plain as those of most results if it has no size."""
    return SizedEntry(value, NEVER, 0.0, tags, size) if size else (value, NEVER, 0.0, *tags)


def meets(one: str, other: str) -> bool:
    """One list of segments begins with the other."""
    first, second = one.split(":"), other.split(":")
    length = min(len(first), len(second))
    return first[:length] == second[:length]


def written(tag: str = "", *, bare: str = "") -> Part:
    """What a write of this tag names."""
    (part,) = Region((tag,) if tag else (), bare=(bare,) if bare else ()).parts
    return part


def dropped(store: Store, tag: str = "", *, bare: str = "") -> list[Stored]:
    """What a write of this tag drops."""
    found = store.drop_meeting(written(tag, bare=bare), 1_000)
    assert found is not None
    return found


class Model(RuleBasedStateMachine):
    """Every order to a store, and what it must have left."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[Any, Stored] = {}

    @initialize(maxsize=st.sampled_from([1, 2, 3, None]))
    def begin(self, maxsize: int | None) -> None:
        self.maxsize = maxsize
        self.store = Store(maxsize)

    @rule(key=KEYS, tags=st.lists(TAGS, max_size=3), size=st.integers(0, 9))
    def insert(self, key: Any, tags: list[str], size: int) -> None:
        entry = made(object(), *tags, size=size)
        self.entries.pop(key, None)
        self.entries[key] = entry
        evicted = self.store.insert(key, entry)
        expected = None
        if self.maxsize is not None and len(self.entries) > self.maxsize:
            expected = self.entries.pop(next(iter(self.entries)))
        assert evicted is expected

    @rule(key=KEYS)
    def hit(self, key: Any) -> None:
        """As every hit does it: what was used last needs no move."""
        found = self.store.lookup(key)
        assert found is self.entries.get(key)
        if found is not None:
            if found is not self.store.newest:
                self.store.use(key, found)
            self.entries[key] = self.entries.pop(key)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def hits(self, keys: list[Any]) -> None:
        """Several in a row, so that most steps of a run are uses and not drops."""
        for key in keys:
            self.hit(key)

    @rule(key=KEYS, tags=st.lists(TAGS, max_size=2))
    def miss(self, key: Any, tags: list[str]) -> None:
        """As every miss does it."""
        if self.store.lookup(key) is None:
            self.insert(key, tags, 1)

    @rule(key=KEYS)
    def use_what_has_just_been_dropped(self, key: Any) -> None:
        """A hit in another thread may have looked an entry up before it went."""
        if key not in self.entries:
            before = self.store.newest
            self.store.use(key, made("gone"))
            assert self.store.newest is before

    @rule(key=KEYS)
    def peek(self, key: Any) -> None:
        assert self.store.peek(key) is self.entries.get(key)
        assert (key in self.store) is (key in self.entries)

    @rule(key=KEYS)
    def discard(self, key: Any) -> None:
        assert self.store.discard(key) is self.entries.pop(key, None)

    @rule(tag=st.sampled_from(BELOW_ROOT))
    def drop_tag(self, tag: str) -> None:
        least = sum(any(meets(one, tag) for one in tags_of(entry)) for entry in self.entries.values())
        if least:
            assert self.store.drop_meeting(written(tag), least - 1) is None, "nothing is removed if there are more"
        self.expect_gone(dropped(self.store, tag), lambda entry: any(meets(one, tag) for one in tags_of(entry)))

    @rule(root=st.sampled_from(ROOTS))
    def drop_a_root(self, root: str) -> None:
        self.expect_gone(dropped(self.store, root), lambda entry: any(meets(one, root) for one in tags_of(entry)))

    @rule(root=st.sampled_from(ROOTS))
    def drop_what_depends_on_a_whole_root(self, root: str) -> None:
        self.expect_gone(dropped(self.store, bare=root), lambda entry: root in tags_of(entry))

    def expect_gone(self, dropped: list[Stored], goes: Any) -> None:
        gone = {key for key, entry in self.entries.items() if goes(entry)}
        assert {id(entry) for entry in dropped} == {id(self.entries[key]) for key in gone}
        assert len(dropped) == len(gone)
        for key in gone:
            del self.entries[key]

    @rule()
    @precondition(lambda self: len(self.entries) >= 3)
    def drop_all(self) -> None:
        before, after = dict(self.entries), self.store.drop_all()
        assert after[0] == before
        self.entries.clear()

    @rule()
    @precondition(lambda self: self.entries)
    def evict(self) -> None:
        key = next(iter(self.entries))
        assert self.store.evict() is self.entries.pop(key)

    @rule(key=KEYS)
    def switched_off_it_answers_nothing_and_forgets_nothing(self, key: Any) -> None:
        self.store.switch(on=False)
        assert self.store.lookup(key) is None
        assert self.store.peek(key) is self.entries.get(key)
        self.store.switch(on=True)

    @invariant()
    def holds_just_that(self) -> None:
        store = self.store
        assert store.keys() == list(self.entries)
        assert len(store) == len(self.entries)
        assert store.bytes == sum(entry_of(entry).size for entry in self.entries.values())
        indexed = {tag for entry in self.entries.values() for tag in tags_of(entry)}
        assert set(store._exact) == indexed, "a tag without entries leaves nothing behind"
        below = {":".join(tag.split(":")[:2]) for tag in indexed if tag.count(":") == 2}
        assert set(store._below) == below


TestStore = Model.TestCase
TestStore.settings = settings(max_examples=20)
TestStoreLonger = pytest.mark.slow(type("LongerModel", (Model,), {}).TestCase)


def test_the_least_recently_used_entry_makes_room():
    store = Store(2)
    a, b, c = (made(name) for name in "abc")
    store.insert("a", a)
    store.insert("b", b)
    store.use("a", a)
    assert store.insert("c", c) is b
    assert store.keys() == ["a", "c"]


def test_what_was_used_last_is_no_more_the_last_once_another_has_come():
    """A hit asks `newest` first, so whatever puts an entry last must say so there."""
    store = Store(2)
    a, b = made("a"), made("b")
    store.insert("a", a)
    store.use("a", a)
    assert store.newest is a
    store.insert("b", b)
    assert store.newest is b


def test_replacing_an_entry_forgets_the_tags_of_the_old_one():
    store = Store(None)
    store.insert("k", made(1, "a:1"))
    store.insert("k", made(2, "a:2"))
    assert dropped(store, "a:1") == []
    assert [entry_of(entry).value for entry in dropped(store, "a:2")] == [2]


def test_an_entry_that_depends_on_a_whole_root_goes_with_anything_below_it():
    store = Store(None)
    store.insert("all", made("all", "order"))
    store.insert("8", made("8", "order:8"))
    assert [entry_of(entry).value for entry in dropped(store, "order:7")] == ["all"]
    assert store.keys() == ["8"]


def test_dropping_a_tag_exactly_spares_what_lies_below_it():
    store = Store(None)
    store.insert("all", made("all", "order"))
    store.insert("7", made("7", "order:7"))
    assert [entry_of(entry).value for entry in dropped(store, bare="order")] == ["all"]
    assert store.keys() == ["7"]


def test_none_is_a_key_and_its_tags_are_found():
    store = Store(None)
    store.insert(None, made("none", "a:1"))
    store.insert("other", made("other", "a:1"))
    assert {entry_of(entry).value for entry in dropped(store, "a:1")} == {"none", "other"}


def test_a_store_that_is_switched_off_can_still_be_emptied_and_stays_off():
    store = Store(None)
    store.insert("k", made(1))
    store.switch(on=False)
    store.drop_all()
    store.insert("k", made(2))
    assert store.lookup("k") is None
    store.switch(on=True)
    found = store.lookup("k")
    assert found is not None
    assert entry_of(found).value == 2


@pytest.mark.parametrize("order", ["discard", "drop_tag", "drop_bare", "evict"])
def test_what_was_dropped_is_let_go_of(order: str):
    class Value:
        pass

    store = Store(None)
    value = Value()
    reference = weakref.ref(value)
    store.insert("k", made(value, "a:1", "a"))
    del value
    {
        "discard": lambda: store.discard("k"),
        "drop_tag": lambda: dropped(store, "a:1"),
        "drop_bare": lambda: dropped(store, bare="a"),
        "evict": store.evict,
    }[order]()
    gc.collect()
    assert reference() is None, "an entry that was dropped must not live on in the store"


def test_an_entry_of_many_tags_is_dropped_by_an_equal_key_without_comparing_it_for_each():
    """The key of a call with a long argument is as long, and `tool.invalidate(...)` makes another one."""

    class Long:
        compared = 0

        def __eq__(self, other: object) -> bool:
            Long.compared += 1
            return isinstance(other, Long)

        def __hash__(self) -> int:
            return 1

    store = Store(None)
    store.insert(Long(), Entry("value", NEVER, 0.0, tuple(f"order:{number}" for number in range(1_000))))
    Long.compared = 0
    assert store.discard(Long()) is not None
    assert Long.compared < 10
    assert not store._exact


@pytest.mark.parametrize("tags", [(), ("a:1",), ("a:1", "b")])
def test_a_plain_entry_says_the_same_as_an_object(tags: tuple[str, ...]):
    plain, entry = ("value", 10.0, 0.5, *tags), Entry("value", 10.0, 0.5, tags)
    for now in (9.9, 10.0):
        assert entry_of(plain).value_at(now) == entry.value_at(now)
        assert entry_of(plain).is_valid_at(now, 0.05) == entry.is_valid_at(now, 0.05)
    assert entry_of(plain).share() == "value"
    assert entry_of(plain).cost == 0.5
    assert tags_of(plain) == tags_of(entry) == entry_of(plain).tags == tags
    assert expires_of(plain) == expires_of(entry) == 10.0
    for stored in (plain, entry):
        assert expires_of(expiring_by(stored, 20.0)) == 10.0
        assert expires_of(expiring_by(stored, 5.0)) == 5.0
        assert tags_of(expiring_by(stored, 5.0)) == tags
    assert entry_of(entry) is entry
