"""The rule of coherence: what a write gives a version, what it holds, and for how long."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agent_cache.core import versions as module
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
