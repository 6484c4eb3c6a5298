"""Several event loops and threads over one decorated tool: one after the other, side by side, and all at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from tests.harness.gates import Gate, cancelled, started

pytestmark = pytest.mark.usefixtures("nothing_left")

PATIENCE = 30.0  # Seconds until something that waits for another thread counts as hung.


def in_threads(*mains: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run each in a thread and an event loop of its own; return what they returned, or raise what the first raised."""
    outcomes: list[Any] = [TimeoutError("the thread has not ended")] * len(mains)

    def work(number: int) -> None:
        try:
            outcomes[number] = asyncio.run(asyncio.wait_for(mains[number](), PATIENCE))
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(mains))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def test_a_tool_may_be_run_in_one_event_loop_after_another():
    """`asyncio.run` twice: the second loop finds the answer of the first, and loads what is missing."""
    runs = 0

    @AgentCache("order:{id}")
    async def get(id: str) -> int:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        return runs

    async def crowd(id: str) -> list[int]:
        return await asyncio.gather(*(get(id) for _ in range(5)))

    assert asyncio.run(crowd("7")) == [1] * 5
    assert asyncio.run(crowd("7")) == [1] * 5
    assert asyncio.run(crowd("8")) == [2] * 5


def test_a_load_that_its_loop_has_cancelled_leaves_nothing_behind():
    """`asyncio.run` cancels what is left over; the next loop starts afresh and waits for nobody."""
    runs = 0

    @AgentCache("order")
    async def get() -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.get_running_loop().create_future()
        return runs

    async def leave() -> None:
        await started(get())
        await started(get())

    asyncio.run(leave())
    assert asyncio.run(get()) >= 2


def test_a_load_that_was_abandoned_with_its_loop_blocks_nobody():
    """A loop that is closed without a clean-up: its flight is never joined by another loop."""
    runs = 0

    @AgentCache("order")
    async def get() -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.get_running_loop().create_future()
        return runs

    loop = asyncio.new_event_loop()
    task = loop.create_task(get())
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # The test abandons it on purpose.
    loop.close()
    del task
    assert asyncio.run(get()) == 2


def test_two_loops_load_side_by_side():
    """Each loop runs the tool once for its own callers; neither waits for the other's future."""
    all_wait = threading.Barrier(2, timeout=PATIENCE)
    gates: dict[int, Gate] = {}

    @AgentCache("order")
    async def get() -> str:
        return await gates[threading.get_ident()]()

    def crowd(answer: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
        async def main() -> list[str]:
            gate = gates[threading.get_ident()] = Gate()
            callers = [await started(get()) for _ in range(5)]
            await asyncio.to_thread(all_wait.wait)
            assert len(gate.calls) == 1
            gate.last.returns(answer)
            return await asyncio.gather(*callers)

        return main

    assert in_threads(crowd("a"), crowd("b")) == [["a"] * 5, ["b"] * 5]


def test_a_leader_is_replaced_within_its_own_loop():
    """Cancelled in one thread while another thread loads the same: the waiter of its own loop takes over."""
    all_wait = threading.Barrier(2, timeout=PATIENCE)
    gates: dict[int, Gate] = {}

    @AgentCache("order")
    async def get() -> str:
        return await gates[threading.get_ident()]()

    def crowd(answer: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
        async def main() -> list[str]:
            gate = gates[threading.get_ident()] = Gate()
            callers = [await started(get()) for _ in range(3)]
            await asyncio.to_thread(all_wait.wait)
            await cancelled(callers[0])
            assert [held.cancelled for held in gate.calls] == [1, 0]
            gate.last.returns(answer)
            return await asyncio.gather(*callers[1:])

        return main

    assert in_threads(crowd("a"), crowd("b")) == [["a"] * 2, ["b"] * 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_child_that_was_forked_in_a_write_or_a_load_is_not_held_up_by_it():
    """They end in the parent. A tool may start a pool of processes."""
    runs: list[str] = []
    parent = os.getpid()

    @AgentCache("forked:{id}")
    async def get(id: str) -> str:
        runs.append(id)
        if os.getpid() == parent:
            fork()
        return id

    @AgentCacheInvalidator("forked:{id}")
    async def put(id: str) -> None:
        fork()

    reader, writer = os.pipe()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            try:
                asyncio._set_running_loop(None)
                runs.clear()
                for id in ("loading", "written", "loading", "written"):
                    asyncio.run(get(id))
                os.write(writer, f"{runs} ".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    await get("loading")
    await put("written")
    os.close(writer)
    with os.fdopen(reader) as said:
        assert said.read() == "['loading', 'written'] ['written'] "  # the second found what the first has loaded
    runs.clear()
    await get("loading")
    assert runs == []  # in the parent nothing has changed
