"""One load for a fleet: tools with ``RemotePolicy(flight="fleet")``, in processes that share a tier in memory.

With real processes: `test_process_flights`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, RemotePolicy
from agent_cache.remote import Request
from agent_cache.remote.protocol import Ticket
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.harness.gates import Gate, started
from tests.harness.processes import until
from tests.harness.threads import Call, Held, until as until_in_thread
from tests.pipeline.fleet import WatchedTier

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
        waits: how often it was about to wait for another process.
        claimed: loads that it was asked to claim.
        renewed: tickets whose claim was renewed.
        may_look: is waited for by lookups.
    """

    def __init__(self, server: MemoryServer, **options: Any) -> None:
        super().__init__(server, **options)
        self.waits = 0
        self.claimed: list[Request] = []
        self.renewed: list[Any] = []
        self.may_look = asyncio.Event()
        self.may_look.set()

    async def lookup(self, request: Request) -> Any:
        await self.may_look.wait()
        return await super().lookup(request)

    async def claim(self, request: Request, ticket: Ticket, **options: Any) -> Any:
        if "may_wait" in options:
            options["may_wait"] = self._counted(options["may_wait"])
        self.claimed.append(request)
        return await super().claim(request, ticket, **options)

    def renew_claim(self, ticket: Ticket) -> None:
        self.renewed.append(ticket)
        super().renew_claim(ticket)

    def _counted(self, may_wait: Callable[[], bool]) -> Callable[[], bool]:
        def counted() -> bool:
            waits = may_wait()
            self.waits += waits
            return waits

        return counted


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


async def test_an_expired_result_is_loaded_once(tiers: list[Loader], clock: FakeClock):
    gate = Gate()
    tools = [reader(tier, gate, ttl=10.0) for tier in tiers[:2]]
    first = await started(tools[0]("7"))
    gate.last.returns("old")
    assert await first == await tools[1]("7") == "old"
    clock.advance(11.0)
    calls = [await started(tools[0]("7")), await waiting(tiers[1], tools[1]("7"))]
    gate.last.returns("new")
    assert await asyncio.gather(*calls) == ["new"] * 2
    assert len(gate.calls) == 2


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


async def test_a_loader_that_is_cancelled_is_replaced_in_its_process_or_in_another_one(tiers: list[Loader]):
    """Once, whoever is faster."""
    gate = Gate()
    a, b = (reader(tier, gate) for tier in tiers[:2])
    loading = await started(a("7"))
    calls = [await started(a("7")), await waiting(tiers[1], b("7"))]
    loading.cancel()
    await until(lambda: len(gate.calls) == 2)
    gate.last.returns("new")
    assert await asyncio.gather(*calls) == ["new"] * 2
    assert len(gate.calls) == 2


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


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_claim_is_renewed_until_its_load_ends(server: MemoryServer, is_sync):
    """By timers of a real event loop; of a synchronous tool, that in which the tier works for it."""
    tier = Loader(server, lease=0.03)

    def is_renewed(id: str) -> bool:
        return sum(ticket.request.key == tier.claimed[-1].key for ticket in tier.renewed) >= 3

    async def get_order(id: str) -> str:
        await until(lambda: is_renewed(id))
        return id

    def get_order_in_thread(id: str) -> str:
        until_in_thread(lambda: is_renewed(id))
        return id

    tool: Any = AgentCache("renewed:{id}", name="fleet:renewed", remote_cache=tier, remote=FLEET)(
        get_order_in_thread if is_sync else get_order
    )

    async def call(id: str) -> str:
        return await asyncio.to_thread(tool, id) if is_sync else await tool(id)

    assert await call("7") == "7"
    former = len(tier.renewed)
    assert await call("8") == "8"
    assert {ticket.request.key for ticket in tier.renewed[former:]} == {tier.claimed[-1].key}


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


async def test_two_processes_whose_loads_need_each_other_both_end(tiers: list[Loader]):
    """Each has claimed what the other one needs."""
    gates = Gate(), Gate()
    a, b = (Crossed(tier, *gates) for tier in tiers[:2])
    loading = [await started(a.left("7")), await started(b.right("7"))]
    gates[0].last.returns(None)
    gates[1].last.returns(None)
    await until(lambda: len(gates[0].calls) == len(gates[1].calls) == 2)
    for gate in gates:
        gate.last.returns("inner")
    assert await asyncio.gather(*loading) == ["left of inner", "right of inner"]


async def test_loads_that_need_each_other_through_callers_that_wait_end_too(tiers: list[Loader]):
    """In each process a call waits already for the other process, and the load joins that call."""
    gates = Gate(), Gate()
    a, b = (Crossed(tier, *gates) for tier in tiers[:2])
    loading = [await started(a.left("7")), await started(b.right("7"))]
    waits = [await waiting(tiers[0], a.right("7")), await waiting(tiers[1], b.left("7"))]
    gates[0].last.returns(None)
    gates[1].last.returns(None)
    await until(lambda: len(gates[0].calls) == len(gates[1].calls) == 2)
    for gate in gates:
        gate.last.returns("inner")
    await asyncio.gather(*loading, *waits)


class Crossed:
    """A process with two tools. The run that is let go with None calls the other tool, any other run returns."""

    def __init__(self, tier: Loader, left: Gate, right: Gate) -> None:
        async def run_left(id: str) -> str:
            return await left(id) or f"left of {await self.right(id)}"

        async def run_right(id: str) -> str:
            return await right(id) or f"right of {await self.left(id)}"

        self.left = reader(tier, run_left, "left")
        self.right = reader(tier, run_right, "right")


async def test_a_load_that_needs_itself_in_another_form_ends(tiers: list[Loader]):
    """Its own process has the claim."""
    runs: list[str] = []

    async def run_outer(id: str) -> str:
        runs.append("outer")
        return "end" if len(runs) > 1 else await inner(id)

    async def run_inner(id: str) -> str:
        return await outer(id)

    outer, inner = reader(tiers[0], run_outer, "outer"), reader(tiers[0], run_inner, "inner")
    assert await outer("7") == "end"
    assert runs == ["outer", "outer"]


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
    assert tiers[0].claimed == []


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


async def test_a_strong_read_inside_of_a_load_is_inherited_from_where_it_was_loaded(tiers: list[Loader]):
    """What was made of it ends with it."""
    gate = Gate()
    strong = RemotePolicy(flight="fleet", consistency="strong")
    a, b = (reader(tier, gate, "part", remote=strong) for tier in tiers[:2])
    runs: list[int] = []

    def whole_of(number: int, part: Any) -> Any:
        async def run(id: str) -> Any:
            runs.append(number)
            return await part(id)

        return reader(tiers[number], run, "whole", remote=RemotePolicy())

    whole, elsewhere = whole_of(1, b), whole_of(3, reader(tiers[3], gate, "part", remote=strong))
    calls = [await started(a("7")), await waiting(tiers[1], whole("7"))]
    gate.last.returns("old")
    assert await asyncio.gather(*calls) == ["old"] * 2
    assert await elsewhere("7") == "old"
    assert runs == [1]
    await writer(tiers[2], "part")("7")
    call = await started(whole("7"))
    gate.last.returns("new")
    assert await call == "new"
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


async def test_without_a_tier_that_shares_loads_it_has_no_effect_and_that_is_logged(
    server: MemoryServer, caplog: pytest.LogCaptureFixture
):
    async def run(id: str) -> str:
        return "new"

    for number, tier in enumerate((None, WatchedTier(server))):
        assert await reader(tier, run, f"alone{number}")("7") == "new"
    assert [record.getMessage().count('flight="fleet" has no effect') for record in caplog.records] == [1, 1]


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
    """The loop would stand still, and the load that it waits for may need it. But others wait for it."""
    held = Held()
    waits: list[Call] = []

    def tool_of(tier: Loader) -> Any:
        def get_order(id: str) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return held(id)
            if id == "8":
                waits.append(Context().run(Call, a, id))  # no part of this load
                until_in_thread(lambda: tiers[0].waits)
            return "loop"

        return AgentCache("loops:{id}", name="fleet:loops", remote_cache=tier, remote=FLEET)(get_order)

    a, b = map(tool_of, tiers[:2])
    loading = Call(a, "7")
    held.has_begun()
    assert b("7") == "loop"
    held.ends("new")
    assert loading.result() == "new"
    assert tiers[1].waits == 0
    assert b("8") == "loop"
    assert await asyncio.to_thread(waits[0].result) == "loop"
    assert len(held.runs) == 1


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
