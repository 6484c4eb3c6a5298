"""A server that is not there costs one read at most the timeout, whatever that waits for, and the next ones nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, RemoteTierError
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.connection import Connection, Replies
from agent_cache.remote.redis.deployments import Deployment
from agent_cache.remote.redis.reads import RedisTicket
from agent_cache.remote.redis.transport import Client, Transport
from tests.contract.workbench import load, read, value_of, write
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.servers import HOST, Server, free_port
from tests.harness.slow import slow
from tests.harness.stopwatch import Stopwatch
from tests.harness.tiers import Make, making

TIMEOUT = 1.0
ONCE = 1.6 * TIMEOUT
"""Less than two timeouts, and enough for a machine that has other things to do."""
AT_ONCE = 0.4 * TIMEOUT


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(is_heard=True, max_staleness=3.0, timeout=TIMEOUT) as make:
        yield make


@pytest.fixture
def behind() -> Iterator[Callable[[int], Proxy]]:
    """Put a proxy before a port."""
    with ExitStack() as exits:
        yield lambda port: exits.enter_context(Proxy.start(port))


@pytest.fixture
def sink() -> Iterator[Callable[[], int]]:
    """Ports on which connections are taken and nothing is ever said."""
    with ExitStack() as exits:

        def listen() -> int:
            return exits.enter_context(socket.create_server((HOST, 0))).getsockname()[1]

        yield listen


class Attempts:
    """Connections that the event loops of readers have asked for, and commands that went over them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._thread = threading.current_thread()
        opened, sent = Connection.open, Connection.send

        async def open_counted(*args: Any, **kwargs: Any) -> Connection:
            self._attempt()
            return await opened(*args, **kwargs)

        def send_counted(connection: Connection, *args: Any) -> None:
            self._attempt()
            sent(connection, *args)

        monkeypatch.setattr(Connection, "open", open_counted)
        monkeypatch.setattr(Connection, "send", send_counted)

    def _attempt(self) -> None:
        self.count += threading.current_thread() is self._thread


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)


async def miss(tier: RedisTier, tag: str = "order:7") -> RedisTicket:
    """Look up what cannot be found."""
    found, ticket = await tier.lookup(read(tag))
    assert found is None
    assert not ticket.is_clean()
    assert isinstance(ticket, RedisTicket)
    return ticket


async def costs_nothing_more(tier: RedisTier, attempts: Attempts) -> None:
    """What follows is answered without asking anybody."""
    before = attempts.count
    with Stopwatch() as stopwatch:
        for _ in range(100):
            ticket = await miss(tier)
            await tier.store(ticket, "value", (), 0.1, age=0.0)
    assert stopwatch.running < AT_ONCE
    assert attempts.count == before


@pytest.mark.parametrize("tag", ["order:7", *slow("other:7")])
@pytest.mark.parametrize("is_new", [*slow(True), False])
@pytest.mark.parametrize("fault", ["hung", *slow("black hole")])
async def test_a_server_that_does_not_answer_costs_the_timeout_once(
    make: Make, own_valkey: Server, behind, attempts: Attempts, fault: str, tag: str, *, is_new: bool
):
    """Whether it was used before or not, and whether its messages about the root are heard or waited for."""
    proxy = behind(own_valkey.port)
    tier = make(proxy.url)
    if not is_new:
        await load(tier, read("order:7"), "old")
    if fault == "hung":
        own_valkey.pause()
    else:
        proxy.half_open()
    with Stopwatch() as stopwatch:
        await miss(tier, tag)
    assert stopwatch.seconds > 0.4 * TIMEOUT
    assert stopwatch.running < ONCE
    await costs_nothing_more(tier, attempts)
    own_valkey.resume()


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_port_that_refuses_costs_nothing(
    make: Make, valkey: Server, behind, attempts: Attempts, *, is_new: bool
):
    proxy = behind(valkey.port)
    tier = make(proxy.url)
    if not is_new:
        await load(tier, read("order:7"), "old")
    proxy.refuse()
    with Stopwatch() as stopwatch:
        await miss(tier, "other:7")
    assert stopwatch.running < AT_ONCE
    await costs_nothing_more(tier, attempts)


@pytest.mark.parametrize("kind", ["cluster", *slow("sentinel")])
async def test_nodes_that_do_not_say_who_has_what_cost_the_timeout_once(make: Make, sink, attempts: Attempts, kind):
    """However many of them there are to be asked."""
    tier = make(Deployment(kind, {}, tuple((HOST, sink()) for _ in range(4)), service="shop"))
    with Stopwatch() as stopwatch:
        await miss(tier)
    assert stopwatch.running < ONCE
    await costs_nothing_more(tier, attempts)


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_nodes_that_refuse_cost_nothing(make: Make, attempts: Attempts, kind):
    tier = make(Deployment(kind, {}, tuple((HOST, free_port()) for _ in range(4)), service="shop"))
    with Stopwatch() as stopwatch:
        await miss(tier)
    assert stopwatch.running < AT_ONCE
    await costs_nothing_more(tier, attempts)


async def test_what_is_not_asked_does_not_fail_again(make: Make, own_valkey: Server):
    """However many writes an outage lasts, the reason stays the one that it began with."""
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    own_valkey.kill()
    await tier.begin(write("order:7"))
    (reason,) = tier.stats()["servers"].values()
    before = tier.stats()["failures"]
    for number in range(300):
        with pytest.raises(RemoteTierError) as refused:
            await tier.begin(replace(write(f"order:{number}"), on_unreachable="refuse"))
        assert str(refused.value).endswith(f"is not asked: {reason}")
    assert list(tier.stats()["servers"].values()) == [reason]
    assert tier.stats()["failures"] - before < 50  # the heartbeats' own


async def test_an_answer_that_was_to_be_forgotten_is_although_its_caller_was_cancelled(make: Make, own_valkey: Server):
    here, elsewhere = make(own_valkey.url), make(own_valkey.url)
    truth = ["old"]

    @AgentCache("order:{id}", remote_cache=here, name="get_order")
    async def get_order(id: int) -> str:
        return truth[0]

    assert await get_order(7) == "old"
    request = get_order.cache_key(7).request
    assert await value_of(elsewhere, request) == "old"
    truth[0] = "new"
    own_valkey.pause()
    forgetting = asyncio.create_task(get_order.invalidate(7))
    await asyncio.sleep(0.1)
    forgetting.cancel()
    await asyncio.wait([forgetting])
    assert forgetting.cancelled()
    own_valkey.resume()
    async with asyncio.timeout(60):
        while await value_of(elsewhere, request) == "old":
            await asyncio.sleep(0.02)
    assert await get_order(7) == "new"


@pytest.mark.slow
async def test_a_server_that_stops_in_the_middle_of_a_read_costs_the_timeout_once(
    make: Make, own_valkey: Server, attempts: Attempts, monkeypatch
):
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    whole = Client.read

    async def then_it_stops(*args: Any, **kwargs: Any) -> Any:
        found = await whole(*args, **kwargs)
        await asyncio.sleep(0.8 * TIMEOUT)
        own_valkey.pause()
        return found

    monkeypatch.setattr(Client, "read", then_it_stops)
    with Stopwatch() as stopwatch:
        await miss(tier, "order:8")  # its cells are missing: they are made, by a second question
    assert stopwatch.running < 1.2 * TIMEOUT  # 0.8, and what was left; not 0.8 and one more
    monkeypatch.setattr(Client, "read", whole)
    own_valkey.resume()


@pytest.mark.slow
async def test_a_store_has_what_its_lookup_has_left_over(make: Make, valkey: Server, behind):
    proxy = behind(valkey.port)
    tier = make(proxy.url)
    await load(tier, read("order:7"), "old")
    proxy.delay(to_client=0.8 * TIMEOUT)
    with Stopwatch() as lookup:
        found, ticket = await tier.lookup(read("order:7", key="another"))
    assert found is None
    await asyncio.sleep(TIMEOUT)  # the tool runs, which is not the server's time
    proxy.half_open()
    with Stopwatch() as store:
        await tier.store(ticket, "value", (), 0.1, age=0.0)
    assert lookup.running + store.running < 1.3 * TIMEOUT


@pytest.mark.slow  # of real time: a server that answers 0.2 s later is at fault
async def test_a_loop_that_was_blocked_is_not_the_servers_fault(make: Make, valkey: Server):
    tier = make(valkey.url, timeout=0.8, max_staleness=3.0)
    await load(tier, read("order:7"), "old")
    lookup = asyncio.create_task(tier.lookup(read("order:7")))
    asyncio.get_running_loop().call_soon(time.sleep, 1.0)  # before what was asked for is sent
    found, _ = await lookup
    assert found is not None
    assert tier.stats()["failures"] == 0


async def test_who_no_longer_waits_for_messages_is_forgotten(make: Make, sink):
    tier = make(f"redis://{HOST}:{sink()}")
    readers = [asyncio.create_task(tier.lookup(read("order:7"))) for _ in range(50)]
    await asyncio.sleep(0)
    waiters = tier._subscriber._waiters
    assert sum(map(len, waiters.values())) == 50
    for reader in readers[:25]:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert not waiters


@pytest.mark.slow
async def test_nodes_that_answer_later_are_found(make: Make, cluster: Cluster, behind):
    proxy = behind(cluster.primaries[0].port)
    proxy.refuse()
    tier = make(Deployment("cluster", {}, ((HOST, proxy.port),)), max_staleness=1.5)
    await miss(tier)
    proxy.heal()
    deadline = time.monotonic() + 60
    while await value_of(tier, read("order:7")) == "nothing":
        assert time.monotonic() < deadline
        await load(tier, read("order:7"), "value")


@pytest.mark.parametrize("error", [KeyError("anything"), OSError("no"), RuntimeError("yes")])
async def test_whatever_connecting_raises_nobody_waits_for_ever(make: Make, valkey: Server, monkeypatch, error):
    tier = make(valkey.url)

    async def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(Transport, "connect", broken)
    async with asyncio.timeout(60):
        await miss(tier)


@pytest.mark.parametrize(
    "nonsense",
    [b"*1\r\n$1\r\nx\r\n", b"?", *slow(b"$1\r\nx\r\n", b":1\r\n", b"*-1\r\n", b"*1\r\n" * 1000)],
)
@pytest.mark.parametrize("kind", ["single", *slow("cluster")])
async def test_a_server_that_talks_nonsense_is_not_waited_for(
    make: Make, request: pytest.FixtureRequest, monkeypatch, kind: str, nonsense: bytes
):
    url = request.getfixturevalue("valkey" if kind == "single" else "cluster").url
    tier = make(url, cluster=kind == "cluster", timeout=0.3, max_staleness=1.0)
    await load(tier, read("order:7"), "value")
    fed = Replies.feed
    monkeypatch.setattr(
        Replies, "feed", lambda self, data: fed(self, nonsense if threading.current_thread() is main else data)
    )
    main = threading.current_thread()
    async with asyncio.timeout(60):
        await miss(tier)
    assert tier.stats()["failures"] + tier.stats()["misses"] > 0


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_nobody_waits_for_a_thread_that_has_ended(make: Make, valkey: Server):
    tier = make(valkey.url, timeout=0.1)
    await load(tier, read("order:7"), "value")
    subscriber = tier._subscriber
    own, subscriber._loop = subscriber._loop, asyncio.new_event_loop()  # one that takes what it is given and is over
    async with asyncio.timeout(60):
        assert not await tier.caught_up()
    subscriber._loop.close()
    subscriber._loop = own


@pytest.mark.slow
async def test_a_caller_without_time_left_is_not_the_servers_fault(make: Make, valkey: Server, behind):
    """A lookup took most of the timeout, so its store is given up, and the server is asked again at once."""
    proxy = behind(valkey.port)
    tier = make(proxy.url, timeout=3.0, max_staleness=9.0)
    await tier.lookup(read("order:7", key="another"))  # it is known by now
    proxy.delay(to_client=0.6 * 3.0)
    await load(tier, read("order:7", key="another"), "value")
    assert tier.stats()["failures"] == 0
    assert set(tier.stats()["servers"].values()) == {"ok"}
    proxy.heal()
    assert await value_of(tier, read("order:7", key="another")) == "value"  # it did arrive


async def test_what_a_blocked_loop_reads_too_late_is_no_hit(make: Make, valkey: Server):
    """The reply has waited for longer than the bound, and so may have been joined by who started after a write."""
    tier = make(valkey.url, timeout=0.2, max_staleness=0.4)
    await load(tier, read("order:7"), "old")
    lookup = asyncio.create_task(tier.lookup(read("order:7")))
    for _ in range(3):
        await asyncio.sleep(0)  # it is on its way
    time.sleep(0.5)
    found, _ = await lookup
    assert found is None
