"""Synchronous tools behind shared tiers: the same entries as asynchronous ones, waited for in the calling thread."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import RemoteTierError
from agent_cache.remote import Tier
from agent_cache.testing import MemoryServer
from tests.harness.threads import interrupting, until
from tests.pipeline.fleet import Process, Truth, WatchedTier


class SyncProcess:
    """The tools of `fleet.Process` as plain functions: the same names, so the same entries in the tier."""

    def __init__(self, truth: Truth, remote: Tier | None, backup: Tier | None = None, **options: Any) -> None:
        def get_order(id: str) -> str:
            return truth.load(id)

        def find_order(name: str) -> dict[str, str]:
            return {"id": "7", "value": truth.load("7")}

        def set_order(id: str) -> str:
            return truth.save(id)

        tiers = {"remote_cache": remote, "backup": backup}
        self.get_order = AgentCache("order:{id}", name="process:get_order", **tiers, **options)(get_order)
        self.find_order = AgentCache("order:{result[id]}", name="process:find_order", **tiers, **options)(find_order)
        self.set_order = AgentCacheInvalidator("order:{id}", name="process:set_order")(set_order)


@pytest.fixture
def elsewhere(server: MemoryServer) -> WatchedTier:
    return WatchedTier(server)


# Two processes


async def test_the_other_process_may_be_asynchronous(truth: Truth, here: WatchedTier, elsewhere: WatchedTier):
    plain, other = SyncProcess(truth, here), Process(truth, elsewhere)
    assert await asyncio.to_thread(plain.get_order, "7") == await other.get_order("7") == "old"
    assert truth.runs == ["get 7"]
    await other.set_order("7")
    assert await asyncio.to_thread(plain.get_order, "7") == "new"
    assert await other.get_order("7") == "new"
    truth.orders["7"] = "old"
    await asyncio.to_thread(plain.set_order, "7")
    assert await other.get_order("7") == "new"
    assert truth.runs == ["get 7", "set 7", "get 7", "set 7", "get 7"]


async def test_a_synchronous_call_in_the_thread_of_a_loop_uses_the_tier_as_well(
    truth: Truth, here: WatchedTier, elsewhere: WatchedTier
):
    """It waits for the tier, which needs none of this loop, and for no load of others."""
    plain, other = SyncProcess(truth, here), SyncProcess(truth, elsewhere)
    assert plain.get_order("7") == other.get_order("7") == "old"
    plain.set_order("7")
    assert other.get_order("7") == "new"
    assert truth.runs == ["get 7", "set 7", "get 7"]


# A tier that fails


class Gate(asyncio.Event):
    """Opened from another thread than that of the loop in which it is waited for."""

    async def wait(self) -> Any:
        self.loop = asyncio.get_running_loop()
        return await super().wait()

    def open(self) -> None:
        until(lambda: hasattr(self, "loop"))
        self.loop.call_soon_threadsafe(self.set)


def test_a_write_that_may_not_run_unannounced_is_refused(truth: Truth, here: WatchedTier):
    @AgentCache("order:{id}", remote_cache=here)
    def read_it(id: str) -> str:
        return truth.load(id)

    @AgentCacheInvalidator("order:{id}", remote=RemotePolicy(on_unreachable="refuse"))
    def change(id: str) -> str:
        return truth.save(id)

    here.fail("begin", OSError("gone"))
    with pytest.raises(RemoteTierError):
        change("7")
    assert truth.runs == []
    assert change("7") == "7"
    assert read_it("7") == "new"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_a_write_is_announced_ends_it_before_its_side_effect(
    truth: Truth, here: WatchedTier, elsewhere: WatchedTier
):
    """What was announced is withdrawn in the background: others store again what it would have touched."""
    one, other = SyncProcess(truth, here), SyncProcess(truth, elsewhere)
    gate = Gate()
    here.hang("begin", gate)
    pressing = interrupting(lambda: here.orders == ["begin"])
    with pytest.raises(KeyboardInterrupt):
        one.set_order("7")
    pressing.result()
    assert truth.runs == []
    gate.open()
    until(lambda: here.orders == ["begin", "commit"])
    until(lambda: other.get_order("7") == "old" and other.get_order.contains("7"))
    assert "set 7" not in truth.runs


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_a_write_is_committed_does_not_stop_the_commit(
    truth: Truth, here: WatchedTier, elsewhere: WatchedTier
):
    one, other = SyncProcess(truth, here), SyncProcess(truth, elsewhere)
    other.get_order("7")
    gate = Gate()
    here.hang("commit", gate)
    pressing = interrupting(lambda: here.orders == ["begin", "commit"])
    with pytest.raises(KeyboardInterrupt):
        one.set_order("7")
    pressing.result()
    gate.open()
    until(lambda: other.get_order("7") == "new" and other.get_order.contains("7"))
    assert other.get_order("7") == "new"


# Expired entries, processes


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_a_background_thread_of_its_own(truth: Truth, here: WatchedTier, elsewhere: WatchedTier):
    one = SyncProcess(truth, here)
    one.get_order("7")
    assert any(thread.name == "agent_cache tiers" for thread in threading.enumerate())
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if one.get_order("8") == "old" and one.set_order("7") == "7" and one.get_order("7") == "new" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.get_order("8") == "old"
