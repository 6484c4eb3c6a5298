"""Asynchronous tools need asyncio where they wait, and tiers threads of the system: where there are others, the error
says so.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AsyncCache,
    Read,
    Toolbox,
    invalidate,
    writing,
)
from agent_cache.errors import NoEventLoopError
from agent_cache.remote import FileTier
from agent_cache.testing import MemoryTier

ran: list[str] = []  # by tools of a root that no other test has: what is left of these may have a tier for it


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@AgentCache("far_away:{order_id}", name="other_loops:get")
async def get_order(order_id: str) -> str:
    ran.append(f"get {order_id}")
    return order_id


@AgentCache("far_away:{order_id}", name="other_loops:stream")
async def stream_order(order_id: str) -> AsyncIterator[str]:
    yield order_id


@AgentCacheInvalidator("far_away:{order_id}", name="other_loops:cancel")
async def cancel_order(order_id: str) -> str:
    ran.append(f"cancel {order_id}")
    return order_id


async def streamed() -> Any:
    return [chunk async for chunk in stream_order("7")]


async def loaded() -> Any:
    return await AsyncCache().get("7", loader=functools.partial(get_order.__wrapped__, "7"))


BOX = Toolbox({"get": Read("far_away:{order_id}")}, namespace="other_loops")
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a read": (functools.partial(get_order, "7"), "other_loops:get"),
    "a fresh read": (functools.partial(get_order.fresh, "7"), "other_loops:get"),
    "a result that is given": (functools.partial(get_order.set, "a", "7"), "other_loops:get"),
    "by name": (lambda: BOX.call("get", {}, functools.partial(get_order.__wrapped__, "7")), "other_loops:get"),
    "a stream": (streamed, "other_loops:stream"),
    "a loader": (loaded, "AsyncCache"),
}


@pytest.mark.parametrize("where", ["trio", "no event loop"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_has_to_wait_says_that_it_needs_asyncio(name: str, where: str):
    run = pytest.importorskip("trio").run if where == "trio" else lambda call: call().send(None)
    call, tool = CALLS[name]
    with pytest.raises(NoEventLoopError, match=f"{tool} needs an event loop of asyncio") as caught:
        run(call)
    assert isinstance(caught.value, RuntimeError)
    assert ran == []


def test_writes_and_hits_need_none():
    trio = pytest.importorskip("trio")

    async def run() -> list[Any]:
        async with AgentCacheSession(), writing("far_away:8"):
            await invalidate("far_away:9")
        return [await get("7"), await get("7"), await cancel_order("7")]

    get = AgentCache("far_away:{order_id}", name="other_loops:hits")(get_order.__wrapped__)
    asyncio.run(get("7"))
    assert trio.run(run) == ["7", "7", "7"]
    assert ran == ["get 7", "cancel 7"]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_write_that_is_announced_in_a_tier_is_refused_before_its_effect(kind: str, tmp_path: Path):
    trio = pytest.importorskip("trio")
    tier: Any = MemoryTier() if kind == "memory" else FileTier(tmp_path / "cache.db")

    @AgentCacheInvalidator("far_away:{order_id}", remote_cache=tier, name="other_loops:put")
    async def put(order_id: str) -> None:
        ran.append("put")

    with pytest.raises(NoEventLoopError):
        trio.run(put, "7")
    assert ran == []


GREENLETS = """\
from gevent import joinall, monkey, sleep, spawn
monkey.patch_all()
from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError, configure
from agent_cache.testing import MemoryTier

@AgentCache("order:{order_id}")
def get_order(order_id: str) -> list[str]:
    ran.append(order_id)
    sleep(0.01)
    return [order_id]

ran = []
joinall([spawn(get_order, "7") for _ in range(9)], raise_error=True)
assert ran == ["7"], ran
AgentCacheInvalidator("order:{order_id}")(lambda order_id: None)("7")
assert get_order("7") == ["7"] and ran == ["7", "7"], ran
try:
    configure(remote=MemoryTier())
except ConfigurationError as error:
    print(error)
"""


def test_greenlets_share_loads_in_memory_and_a_tier_says_that_it_needs_threads():
    pytest.importorskip("gevent")
    run = subprocess.run([sys.executable, "-c", GREENLETS], capture_output=True, text=True, check=False)
    assert "configure: remote" in run.stdout, run.stderr
    assert "gevent" in run.stdout
