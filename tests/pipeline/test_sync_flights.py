"""P3 for synchronous tools: concurrent identical reads of all threads run the tool once, and none waits for itself."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, invalidate_sync, tags_from
from tests.harness import library
from tests.harness.threads import PATIENCE, Call, Held, followers_of, interrupting, until

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def get_order(held: Held) -> Any:
    @AgentCache("order:{order_id}", ttl=600, grace=60)
    def get_order(order_id: int) -> Any:
        return held(order_id)

    return get_order


def test_callers_in_64_threads_share_one_run_and_each_gets_a_copy_of_its_own(held, get_order):
    """One run, 64 answers, and then a hit. What one caller changes, no other sees."""
    calls = [Call(get_order, 1) for _ in range(64)]
    held.has_begun()
    until(lambda: followers_of(get_order) == 63)
    held.ends(["tea"])
    answers = [call.result() for call in calls]
    answers[0].append("milk")
    answers[1].append("cake")
    assert answers[2:] == [["tea"]] * 62
    assert get_order(1) == ["tea"]
    assert len(held.runs) == 1


@pytest.mark.usefixtures("interruptible")
def test_a_signal_interrupts_the_main_thread_where_it_waits(held, get_order):
    """Ctrl-C ends a wait at once, while the leader and another follower go on."""
    leader = Call(get_order, 1)
    held.has_begun()
    follower = Call(get_order, 1)
    until(lambda: followers_of(get_order) == 1)
    pressing = interrupting(lambda: followers_of(get_order) == 2)
    with pytest.raises(KeyboardInterrupt):
        get_order(1)
    pressing.result()
    held.ends("one")
    assert [leader.result(), follower.result()] == ["one"] * 2
    assert get_order(1) == "one"
    assert len(held.runs) == 1


# Who would wait for itself


def in_worker(function: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, function).result(PATIENCE)


@pytest.mark.parametrize("how", [lambda call: call(), in_worker])
def test_a_tool_that_calls_itself_runs(how):
    """Re-entered with the same arguments, it would wait for its own end. A worker's context tells whose load it is."""
    runs: list[int] = []

    @AgentCache("tree")
    def walk() -> int:
        runs.append(1)
        return int(how(walk)) + 1 if len(runs) < 3 else 0

    assert Call(walk).result() == 2
    assert len(runs) == 3


@pytest.mark.parametrize("size", [2, 8])
def test_threads_that_wait_in_a_ring_end(size):
    """Each of these loads needs that of the next."""
    all_run = threading.Barrier(size, timeout=PATIENCE)
    first_runs = threading.local()

    @AgentCache("ring:{number}")
    def get(number: int) -> int:
        if getattr(first_runs, "is_over", False):
            return number
        first_runs.is_over = True
        all_run.wait()
        get((number + 1) % size)
        return number

    calls = [Call(get, number) for number in range(size)]
    assert [call.result() for call in calls] == list(range(size))


async def test_a_synchronous_call_in_the_thread_of_a_loop_waits_for_nobody(held, get_order):
    """The load under way may need this very loop to end. The call runs the tool itself."""
    leader = Call(get_order, 1)
    await asyncio.to_thread(held.has_begun)
    opening = Call(lambda: (held.has_begun(2), held.ends("own")))
    assert get_order(1) == "own"
    opening.result()
    held.ends("first", 0)
    assert await asyncio.to_thread(leader.result) == "first"
    assert len(held.runs) == 2


async def test_an_async_tool_whose_synchronous_read_needs_the_loop_does_not_stop_it():
    """The read of a thread asks the loop; the loop calls the same read meanwhile."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    runs: list[str] = []

    @AgentCache("rate")
    def rate() -> str:
        runs.append("run")
        if len(runs) == 1:
            loop.call_soon_threadsafe(asked.set)
            return asyncio.run_coroutine_threadsafe(answer(), loop).result(PATIENCE)
        return "at once"

    async def answer() -> str:
        return "from the loop"

    first = asyncio.create_task(asyncio.to_thread(rate))
    await asked.wait()
    assert rate() in ("at once", "from the loop")
    assert await first == "from the loop"


def test_a_read_that_another_thread_has_just_stored_depends_on_its_tags_alone(held):
    """And not, beside them, on whatever its result might have named: the load that has made it can be joined."""
    asked: list[int] = []

    def entity(arguments: Any) -> int:
        asked.append(arguments["n"])
        if len(asked) == 1:  # after the lookup: until the load begins another thread has the answer
            contextvars.Context().run(Call, rate, 1).result()
        return int(arguments["n"])

    @AgentCache([tags_from("rate", entity), "user:{result}"])
    def rate(n: int) -> str:
        return f"user {n}"

    @AgentCache("report")
    def report() -> Any:
        return held(rate(1))

    first = Call(report)
    held.has_begun()
    invalidate_sync("user:another")
    second = Call(report)
    until(lambda: second.is_over() or followers_of(report) == 1 or len(held.runs) == 2)
    assert len(held.runs) == 1
    held.ends("done")
    assert [first.result(), second.result()] == ["done", "done"]


# Sessions, processes


def test_threads_of_one_session_share_its_store_and_its_trace(held):
    @AgentCache("note:{n}", scope="session")
    def note(n: int) -> Any:
        return held(n)

    with AgentCacheSession() as session:
        calls = [Call(note, 1) for _ in range(4)]
        held.has_begun()
        until(lambda: library.calls_waiting() == 3)
        held.ends("one")
        assert [call.result() for call in calls] == ["one"] * 4
        assert note(1) == "one"
    sources = sorted(record.source for record in session.get_execution_trace())
    assert sources == ["hit", "miss", "shared", "shared", "shared"]
    assert len(held.runs) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_expired", [False, True])
def test_a_forked_child_does_not_wait_for_the_loads_and_reloads_of_its_parent(held, get_order, clock, is_expired):
    """The parent's thread, which runs the load, does not exist in the child."""
    leader = Call(get_order, 1)
    held.has_begun()
    if is_expired:
        held.ends("old")
        clock.advance(601 if leader.result() else 0)
        assert get_order(1) == "old"
        held.has_begun(2)
    runs = len(held.runs)
    child = os.fork()
    if not child:
        code = 1
        try:
            opening = Call(lambda: (held.has_begun(runs + 1), held.ends("child")))
            until(lambda: get_order(1) == "child", 10.0)
            opening.result()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.ends("parent")
    until(lambda: get_order(1) == "parent")


def test_a_reload_for_which_no_thread_can_be_started_is_tried_again(clock, monkeypatch: pytest.MonkeyPatch):
    runs = []

    @AgentCache("rate", ttl=10, grace=60)
    def rate() -> int:
        runs.append(threading.current_thread().name)
        return len(runs)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    assert rate() == 1
    clock.advance(11)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert rate() == 1
    assert len(runs) == 1
    monkeypatch.undo()
    assert rate() == 1
    until(lambda: rate() == 2)
    assert runs[1].startswith("agent_cache refreshes")
