"""P1 between threads, line by line: a call stands still while another thread makes a whole one.

Whatever the first had looked at by then: once both are over, nobody is given an old version, what was read is stored,
and no two callers share an object. A stress hits the few instructions between two steps once in many runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, invalidate, writing
from tests.harness import library
from tests.harness.preemption import PACKAGE, stopped_everywhere
from tests.harness.slow import slow

SHARED = tuple(f"{PACKAGE}/{file}.py" for file in ("core/versions", "core/store", "engine/flight"))
"""The modules whose state threads share. With `-m slow` a call is stopped in all modules, and in its generated body."""

pytestmark = [
    pytest.mark.usefixtures("_begin_anew"),
    pytest.mark.parametrize("files", [SHARED, *slow((PACKAGE, "<agent_cache"))], ids=["shared", "all"]),
]


class Shop:
    """One order with a version, and how often it was looked at."""

    version = runs = 0


@pytest.fixture
def _begin_anew() -> Iterator[None]:
    Shop.version = Shop.runs = 0
    yield
    assert library.nothing_in_flight()


def look(id: str) -> list[Any]:
    Shop.runs += 1
    return [id, Shop.version]


async def look_later(id: str) -> list[Any]:
    return look(id)


def change(id: str) -> str:
    Shop.version += 1
    return id


async def change_later(id: str) -> str:
    return change(id)


by_id, by_root, by_result = (
    AgentCache(resource, name=f"by {resource}")(look)
    for resource in ("preempted:{id}", "preempted", "preempted:{result[0]}")
)
later_by_id, later_by_result = (
    AgentCache(resource, name=f"later by {resource}")(look_later)
    for resource in ("preempted:{id}", "preempted:{result[0]}")
)
of_session = AgentCache("preempted:{id}", scope="session", name="of session")(look_later)
changes, changes_root, changes_result, changes_below = (
    AgentCacheInvalidator(resource, name=f"changes {resource}")(change)
    for resource in ("preempted:{id}", "preempted", "preempted:{result}", "preempted:{id}:lines")
)
changes_later = AgentCacheInvalidator("preempted:{id}", name="changes later")(change_later)
changes_in_session = AgentCacheInvalidator("preempted:{id}", scope="session", name="changes there")(change_later)
elsewhere = AgentCacheInvalidator("preempted:{id}", name="changes nothing of it")(lambda id: None)


@AgentCache("outer")
def outer(id: str) -> list[Any]:
    return by_id(id)


@AgentCache("outer")
async def outer_later(id: str) -> list[Any]:
    return await later_by_id(id)


READS: tuple[Any, ...] = (by_id, by_root, by_result, later_by_id, later_by_result, outer, outer_later, of_session)


def run(call: Any) -> Any:
    return asyncio.run(call) if inspect.isawaitable(call) else call


def forget() -> None:
    """Nothing is stored, and the next writes begin a generation of paths now and then."""
    for read in READS:
        read.clear()
    Shop.runs = 0


@pytest.fixture(params=["a generation of 16,000 paths", "a generation of three"])
def _generations(request: pytest.FixtureRequest) -> Iterator[None]:
    with library.few_versions(3 if request.param == "a generation of three" else 16_000):
        yield


def pairs(reads: tuple[Any, ...], writes: tuple[Any, ...]) -> list[Any]:
    """Each read with one of the writes."""
    return [
        pytest.param(read, writes[number % len(writes)], id=read.__agent_cache__.name)
        for number, read in enumerate(reads)
    ]


BESIDE = pairs((by_id, by_root, by_result, later_by_id, outer), (changes, changes_below, changes_later, changes_root))
"""Reads and writes of what these depend on, of both kinds."""


def write_and_read(write: Any, read: Any) -> None:
    """Whoever reads after a write waits for no load that began before it."""
    run(write("7"))
    least = Shop.version
    assert run(read("7"))[1] >= least


def check(read: Any, where: str) -> None:
    assert run(read("7"))[1] == Shop.version, where
    runs = Shop.runs
    assert run(read("7"))[1] == Shop.version
    assert Shop.runs == runs, f"it is not stored after {where}"


@pytest.mark.parametrize(("read", "write"), BESIDE)
def test_a_read_that_runs_its_tool_may_be_stopped_by_a_write(read, write, files):
    for where in stopped_everywhere(lambda: read("7"), lambda: write_and_read(write, read), forget, files):
        check(read, where)


@pytest.mark.usefixtures("_generations")
@pytest.mark.parametrize(("read", "write"), BESIDE[1:])
def test_a_hit_may_be_stopped_by_a_write(read, write, files):
    """It has to look at the versions, since there was another write."""

    def before() -> None:
        run(read("7"))
        elsewhere("8")

    for where in stopped_everywhere(lambda: read("7"), lambda: write("7"), before, files):
        check(read, where)


@pytest.mark.usefixtures("_generations")
@pytest.mark.parametrize(("read", "write"), [*BESIDE[:3], *pairs((by_id, later_by_result), (changes_result,))])
def test_a_write_may_be_stopped_by_a_hit(read, write, files):
    for where in stopped_everywhere(lambda: write("7"), lambda: read("7"), lambda: run(read("7")), files):
        check(read, where)


@pytest.mark.parametrize(
    ("read", "write"), pairs((by_id, later_by_result, outer_later), (changes_result, changes_later))
)
def test_a_write_may_be_stopped_by_a_read_that_runs_its_tool(read, write, files):
    for where in stopped_everywhere(lambda: write("7"), lambda: read("7"), forget, files):
        check(read, where)


@pytest.mark.parametrize("inner_is_there", [True, False])
@pytest.mark.parametrize(("read", "inner"), [(outer, by_id), (outer_later, later_by_id)])
def test_a_read_of_a_read_may_be_stopped_by_a_write(read, inner, inner_is_there, files):
    """Also while it is told what the inner read depends on."""

    def before() -> None:
        forget()
        if inner_is_there:
            run(inner("7"))

    for where in stopped_everywhere(lambda: read("7"), lambda: write_and_read(changes, read), before, files):
        check(read, where)


def test_a_read_may_be_stopped_by_the_same_read_of_another_thread(files):
    """Whoever was first, the tool has run once for both."""
    for where in stopped_everywhere(lambda: by_id("7"), lambda: by_id("7"), forget, files):
        assert Shop.runs == 1, where
        check(by_id, where)


@pytest.mark.parametrize("how", ["invalidate a tag", "invalidate a call", "clear", "set"])
def test_a_read_may_be_stopped_by_what_is_done_by_hand(how, files):
    async def act() -> None:
        Shop.version += 1
        if how == "invalidate a tag":
            await invalidate("preempted:7")
        elif how == "invalidate a call":
            await later_by_id.invalidate("7")
        elif how == "clear":
            later_by_id.clear()
        else:
            assert await later_by_id.set(["7", Shop.version], "7")

    for where in stopped_everywhere(lambda: later_by_id("7"), act, forget, files):
        check(later_by_id, where)
    for where in stopped_everywhere(act, lambda: later_by_id("7"), lambda: run(later_by_id("7")), files):
        check(later_by_id, where)


def test_reads_and_writes_of_one_session_may_stop_each_other(files):
    session = AgentCacheSession(loop_detection=False)

    async def inside() -> None:
        async with session:
            context = contextvars.copy_context()
            read, write = (
                lambda tool=tool: context.copy().run(asyncio.run, tool("7"))
                for tool in (of_session, changes_in_session)
            )
            for stopped, whole in ((read, write), (write, read)):
                for where in stopped_everywhere(stopped, whole, of_session.clear, files):
                    assert (await of_session("7"))[1] == Shop.version, where

    asyncio.run(inside())


@pytest.mark.parametrize("is_held", [True, False])
def test_no_two_callers_are_given_one_object(is_held, files):
    """While a write runs, a result that nobody else waits for needs no copy. Whether anybody does is decided once."""
    given: list[Any] = []

    def forget_all() -> None:
        forget()
        given.clear()

    def read() -> None:
        given.append(by_id("7"))

    with writing("preempted:7") if is_held else nullcontext():
        for where in stopped_everywhere(read, read, forget_all, files):
            one, other = given
            assert one == other
            assert one is not other, where
