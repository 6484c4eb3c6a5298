"""One load for a fleet: tools with ``RemotePolicy(flight="fleet")``, in processes that share a tier in memory.

With real processes: `test_process_flights`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, RemotePolicy
from agent_cache.remote import Request
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
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


async def test_a_tool_whose_results_are_not_stored_answers_everybody(tiers: list[Loader]):
    gate = Gate()
    tools = [reader(tier, gate, cache_if=lambda _: False) for tier in tiers]
    calls = [await started(tools[0]("7"))]
    calls += [await waiting(tier, tool("7")) for tier, tool in zip(tiers[1:], tools[1:], strict=True)]
    for runs in range(1, 5):
        await until(lambda runs=runs: len(gate.calls) >= runs)
        gate.calls[runs - 1].returns("new")
    assert await asyncio.gather(*calls) == ["new"] * 4


async def test_a_loader_that_is_cancelled_lets_another_process_load(tiers: list[Loader]):
    gate = Gate()
    a, b = (reader(tier, gate) for tier in tiers[:2])
    loading, waits = await started(a("7")), await waiting(tiers[1], b("7"))
    loading.cancel()
    await until(lambda: len(gate.calls) == 2)
    gate.last.returns("new")
    assert await waits == "new"


async def test_the_timeout_of_a_caller_ends_its_wait(tiers: list[Loader]):
    gate = Gate()
    a, b = (reader(tier, gate) for tier in tiers[:2])
    loading = await started(a("7"))

    async def impatient() -> None:
        async with asyncio.timeout(None) as timeout:
            timeouts.append(timeout)
            await b("7")

    timeouts: list[asyncio.Timeout] = []
    waits = await waiting(tiers[1], impatient())
    timeouts[0].reschedule(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await waits
    gate.last.returns("new")
    assert await loading == await b("7") == "new"
    assert len(gate.calls) == 1


# Loads that need each other


async def test_a_load_inside_of_a_load_is_shared_too(tiers: list[Loader]):
    gate = Gate()
    (a_part, b_part) = (reader(tier, gate, "part") for tier in tiers[:2])
    whole = reader(tiers[0], a_part, "whole")
    loading = await started(whole("7"))
    waits = await waiting(tiers[1], b_part("7"))
    gate.last.returns("new")
    assert await asyncio.gather(loading, waits) == ["new"] * 2
    assert len(gate.calls) == 1


async def test_two_processes_whose_loads_need_each_other_both_end(tiers: list[Loader], clock: FakeClock):
    """Each has claimed what the other one needs: a claim lasts for a lease."""
    gates = Gate(), Gate()
    a, b = (Crossed(tier, *gates) for tier in tiers[:2])
    loading = [await started(a.left("7")), await started(b.right("7"))]
    gates[0].last.returns(None)
    gates[1].last.returns(None)
    await until(lambda: tiers[0].waits and tiers[1].waits)
    clock.advance(11.0)
    await until(lambda: len(gates[0].calls) == len(gates[1].calls) == 2)
    for gate in gates:
        gate.last.returns("inner")
    assert await asyncio.gather(*loading) == ["left of inner", "right of inner"]


class Crossed:
    """A process with two tools. The run that is let go with None calls the other tool, any other run returns."""

    def __init__(self, tier: Loader, left: Gate, right: Gate) -> None:
        async def run_left(id: str) -> str:
            return await left(id) or f"left of {await self.right(id)}"

        async def run_right(id: str) -> str:
            return await right(id) or f"right of {await self.left(id)}"

        self.left = reader(tier, run_left, "left")
        self.right = reader(tier, run_right, "right")


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


async def test_a_read_that_a_write_makes_of_its_own_tag_claims_nothing(tiers: list[Loader]):
    async def run(id: str) -> str:
        return "new"

    get_order = reader(tiers[0], run)

    @AgentCacheInvalidator("get_order:{id}", name="fleet:set_order", remote_cache=tiers[0])
    async def set_order(id: str) -> str:
        return await get_order(id)

    assert await set_order("7") == "new"
    assert tiers[0].claims == 0


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


async def test_results_of_a_session_are_loaded_once_if_they_are_shared(tiers: list[Loader]):
    gate = Gate()
    shared = RemotePolicy(flight="fleet", share=True)
    a, b = (reader(tier, gate, scope="session", remote=shared) for tier in tiers[:2])

    async def in_session(tool: Any) -> Any:
        async with AgentCacheSession(session_id="s"):
            return await tool("7")

    calls = [await started(in_session(a)), await waiting(tiers[1], in_session(b))]
    gate.last.returns("new")
    assert await asyncio.gather(*calls) == ["new"] * 2
    assert len(gate.calls) == 1


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
