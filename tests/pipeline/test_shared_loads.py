"""One load for a fleet: tools with ``RemotePolicy(flight="fleet")``, in processes that share a tier in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.remote import Request
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness.gates import Gate, started
from tests.harness.processes import until
from tests.harness.threads import Call, Held, until as until_in_thread

FLEET = RemotePolicy(flight="fleet")


pytestmark = pytest.mark.usefixtures("clock")
"""No claim expires but where a test says so."""


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """A deadlock is a failure here, not a test run that never ends."""
    async with asyncio.timeout(30):
        yield


class Loader(MemoryTier):
    """The tier of one process.

    Attributes:
        waits: how often a claim that it asked for was another one's.
        claims: how often it has asked for one.
        may_look: is waited for by lookups.
    """

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.waits = self.claims = 0
        self.may_look = asyncio.Event()
        self.may_look.set()
        self.backend: Any = Counting(self)

    async def lookup(self, request: Request, *, lead: bool = False) -> Any:
        await self.may_look.wait()
        return await super().lookup(request, lead=lead)


class Counting:
    """The server, as one process sees it."""

    def __init__(self, tier: Loader) -> None:
        self.tier = tier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier.server, name)

    async def claim(self, name: str, who: str, lease: float) -> str:
        owner = await self.tier.server.claim(name, who, lease)
        self.tier.claims += 1
        self.tier.waits += owner != who
        return owner

    async def read(self, cells: Any, address: Any) -> Any:
        await self.tier.may_look.wait()
        return await self.tier.server.read(cells, address)


def reader(tier: Any, body: Callable[..., Any], name: str = "get_order", **options: Any) -> Any:
    """A tool of the process that has this tier."""

    async def get_order(id: str) -> Any:
        return await body(id)

    return AgentCache(f"{name}:{{id}}", name=f"fleet:{name}", remote_cache=tier, **{"remote": FLEET, **options})(
        get_order
    )


def writer(tier: Any, name: str = "get_order") -> Any:
    async def set_order(id: str) -> None:
        pass

    return AgentCacheInvalidator(f"{name}:{{id}}", name="fleet:set_order", remote_cache=tier)(set_order)


@pytest.fixture
def tiers(server: MemoryServer) -> list[Loader]:
    return [Loader(server) for _ in range(4)]


async def waiting(tier: Loader, call: Any) -> asyncio.Task[Any]:
    """Start a call, and return when it waits for another process."""
    before = tier.waits
    task = await started(call)
    await until(lambda: tier.waits > before)
    return task


async def test_a_loader_that_is_cancelled_lets_another_process_load(tiers: list[Loader]):
    gate = Gate()
    a, b = (reader(tier, gate) for tier in tiers[:2])
    loading, waits = await started(a("7")), await waiting(tiers[1], b("7"))
    loading.cancel()
    await until(lambda: len(gate.calls) == 2)
    gate.last.returns("new")
    assert await waits == "new"


async def test_nobody_waits_for_a_claim_that_does_not_end_since_a_clock_was_set_back(server: MemoryServer):
    gate = Gate()
    a, b = (reader(MemoryTier(server, lease=0.05), gate) for _ in range(2))
    loading, waits = await started(a("7")), await started(b("7"))
    await until(lambda: len(gate.calls) == 2)
    gate.last.returns("new")
    assert await waits == "new"
    loading.cancel()


# Writes


async def test_who_waits_is_never_given_what_was_loaded_before_a_write(tiers: list[Loader]):
    gate = Gate()
    a, b = (reader(tier, gate) for tier in tiers[:2])
    set_order = writer(tiers[2])
    loading, waits = await started(a("7")), await waiting(tiers[1], b("7"))
    tiers[1].may_look.clear()  # what it would load during the write would not be stored
    await set_order("7")
    tiers[1].may_look.set()
    await until(lambda: len(gate.calls) == 2)
    gate.calls[0].returns("old")
    assert await loading == "old"
    gate.calls[1].returns("new")
    assert await waits == await a("7") == await b("7") == "new"
    assert len(gate.calls) == 2


# Policies


async def test_strong_reads_share_loads_too(tiers: list[Loader]):
    gate = Gate()
    a, b = (reader(tier, gate, remote=RemotePolicy(flight="fleet", consistency="strong")) for tier in tiers[:2])
    calls = [await started(a("7")), await waiting(tiers[1], b("7"))]
    calls.append(await started(b("7")))  # follows the one that waits
    gate.last.returns("new")
    assert await asyncio.gather(*calls) == ["new"] * 3
    assert await a("7") == await b("7") == "new"
    assert len(gate.calls) == 1
    await writer(tiers[2])("7")
    calls = [await started(a("7")), await waiting(tiers[1], b("7"))]
    gate.last.returns("newer")
    assert await asyncio.gather(*calls) == ["newer"] * 2
    assert len(gate.calls) == 2


# Synchronous tools, and generators


def test_synchronous_tools_in_threads_share_loads(tiers: list[Loader]):
    held = Held()

    def tool_of(tier: Loader) -> Any:
        def get_order(id: str) -> Any:
            return held(id)

        return AgentCache("threads:{id}", name="fleet:threads", remote_cache=tier, remote=FLEET)(get_order)

    a, b = map(tool_of, tiers[:2])
    loading = Call(a, "7")
    held.has_begun()
    waits = Call(b, "7")
    until_in_thread(lambda: tiers[1].waits)
    held.ends("new")
    assert (loading.result(), waits.result()) == ("new", "new")
    assert len(held.runs) == 1


async def test_a_synchronous_tool_in_a_running_loop_waits_for_nobody(tiers: list[Loader]):
    """The loop would stand still."""
    held = Held()

    def tool_of(tier: Loader) -> Any:
        def get_order(id: str) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return held(id)
            return "loop"

        return AgentCache("loops:{id}", name="fleet:loops", remote_cache=tier, remote=FLEET)(get_order)

    a, b = map(tool_of, tiers[:2])
    loading = Call(a, "7")
    held.has_begun()
    assert b("7") == "loop"
    held.ends("new")
    assert loading.result() == "new"
    assert tiers[1].waits == 0


async def test_a_stream_is_loaded_once(tiers: list[Loader]):
    gate = Gate()

    def tool_of(tier: Loader) -> Any:
        async def read_order(id: str) -> AsyncIterator[str]:
            yield "one"
            yield await gate(id)

        return AgentCache("streams:{id}", name="fleet:streams", remote_cache=tier, remote=FLEET)(read_order)

    async def chunks(tool: Any) -> list[str]:
        return [chunk async for chunk in tool("7")]

    a, b = map(tool_of, tiers[:2])
    calls = [await started(chunks(a)), await waiting(tiers[1], chunks(b))]
    gate.last.returns("two")
    assert await asyncio.gather(*calls) == [["one", "two"]] * 2
    assert len(gate.calls) == 1
