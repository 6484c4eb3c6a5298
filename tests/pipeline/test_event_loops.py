"""Several event loops and threads over one decorated tool: one after the other, side by side, and all at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, Read, Toolbox, get_metrics
from agent_cache.integrations import wrap
from agent_cache.recording import record
from tests.harness.gates import Gate, cancelled, started
from tests.harness.threads import PATIENCE, Call, Held, in_threads

pytestmark = pytest.mark.usefixtures("nothing_left")


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


@pytest.mark.parametrize("is_closed_at_once", [False, True])
def test_a_load_whose_loop_has_ended_leaves_nothing_behind(is_closed_at_once):
    """`asyncio.run` cancels what is left over, a loop that is closed does not: the next one waits for neither."""
    runs = 0

    @AgentCache("order")
    async def get() -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.get_running_loop().create_future()
        return runs

    async def leave() -> list[asyncio.Task[Any]]:
        return [await started(get()) for _ in range(2)]

    if is_closed_at_once:
        loop = asyncio.new_event_loop()
        for task in loop.run_until_complete(leave()):
            task._log_destroy_pending = False  # The test abandons it on purpose.
        loop.close()
    else:
        asyncio.run(leave())
    assert asyncio.run(get()) >= 2


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_two_loops_load_side_by_side(is_cancelled):
    """Each loop runs the tool once for its own callers; neither waits for the other's future. If a leader is cancelled,
    a waiter of its own loop takes over.
    """
    all_wait = threading.Barrier(2, timeout=PATIENCE)
    gates: dict[int, Gate] = {}

    @AgentCache("order")
    async def get() -> str:
        return await gates[threading.get_ident()]()

    async def crowd(number: int) -> list[str]:
        gate = gates[threading.get_ident()] = Gate()
        callers = [await started(get()) for _ in range(3)]
        await asyncio.to_thread(all_wait.wait)
        if is_cancelled:
            await cancelled(callers.pop(0))
        assert [held.cancelled for held in gate.calls] == [1, 0][not is_cancelled :]
        gate.last.returns("ab"[number])
        return await asyncio.gather(*callers)

    answers = in_threads(2, lambda number: asyncio.run(crowd(number)))
    assert answers == [["a"] * (3 - is_cancelled), ["b"] * (3 - is_cancelled)]


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of 3.12 and later, if there are threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_that_was_forked_while_other_threads_had_locks_does_not_wait_for_them(tmp_path):
    """Threads of the parent enter sessions, read counters, decorate, record and call tools as a worker is started."""
    box = Toolbox({"get": Read("forked")}, namespace="forked")
    in_child = AgentCache("forked")(lambda: "a read")
    with record(tmp_path / "run.jsonl") as tape:
        owners = [box, tape, *(one for name, one in sys.modules.items() if name.startswith("agent_cache"))]
        locks = [vars(owner)[name] for owner in owners for name in ("_lock", "_LOCK") if name in vars(owner)]
        held = Held()

        def hold() -> None:
            with ExitStack() as stack:
                held([stack.enter_context(lock) for lock in locks])

        holding = Call(hold)
        held.has_begun()
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)  # ends a child that waits
                with AgentCacheSession(), record(tmp_path / "child.jsonl"):
                    wrap(in_child.__wrapped__, box=box, name="get")()
                    in_child()
                AgentCache("forked")(lambda: "another")()
                code = 0 if get_metrics() else 2
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        held.ends(None)
        holding.result()
    assert (len(locks) > 4, os.waitstatus_to_exitcode(status)) == (True, 0)
