"""What is left of a tier that was closed, forgotten, or used by a loop that is over: nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import WriteIntent
from agent_cache.remote.redis import RedisTier
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.proxies import Proxy
from tests.harness.servers import Server
from tests.harness.slow import slow
from tests.harness.tiers import until


@pytest.fixture
def way(valkey: Server) -> Iterator[Proxy]:
    """A proxy, which knows how many connections there are."""
    with Proxy.start(valkey.port) as proxy:
        yield proxy


def ours() -> list[str]:
    """Tasks of this loop and threads of this process that belong to a tier."""
    names = [task.get_name() for task in asyncio.all_tasks()] + [thread.name for thread in threading.enumerate()]
    in_background = "agent_cache tiers"  # the loop of synchronous tools, which is the process's own
    return [name for name in names if name.startswith("agent_cache") and name != in_background]


@pytest.mark.parametrize("delay", [0.05, 100.0, *slow(0.0, 0.2)])
async def test_closing_ends_everything_whatever_is_under_way(way: Proxy, delay: float):
    """Connections that are being made, reads that wait for messages, for values, or for cells, and writes."""
    tier = RedisTier.from_url(way.url, timeout=0.4)
    tier.subscribe(lambda _: None)
    if delay < 100:
        await load(tier, read("order:7"), "value")
    way.delay(to_client=delay)
    intent = write("order:7")
    work = [
        asyncio.create_task(tier.lookup(read("order:7"))),
        asyncio.create_task(tier.lookup(read("order:8", key="8"))),
        asyncio.create_task(tier.lookup(read("other:7", key="9"))),
        asyncio.create_task(tier.begin(intent)),
        asyncio.create_task(commit(tier, intent)),
    ]
    await asyncio.sleep(0.06)
    await tier.aclose()
    async with asyncio.timeout(60):
        await asyncio.gather(*work)
    await until(lambda: not ours())
    way.heal()
    await until(lambda: way.connections == 0)
    found, ticket = await tier.lookup(read("order:7"))
    assert found is None
    assert not ticket.is_clean()
    await tier.store(ticket, "value", (), 0.1, age=0.0)
    assert not await tier.caught_up()
    await asyncio.sleep(0.05)
    assert way.connections == 0
    assert not ours()


async def test_a_closed_tier_refuses_and_says_that_nobody_is_told(valkey: Server, caplog: pytest.LogCaptureFixture):
    """A strong reader elsewhere would go on finding the old answer, and nobody would know why."""
    tier = RedisTier.from_url(valkey.url)
    await load(tier, read("order:7"), "old")
    await tier.aclose()
    with pytest.raises(RemoteTierError, match="closed"):
        await tier.begin(WriteIntent("w", ("order:7",), on_unreachable="refuse"))
    for _ in range(3):
        intent = write("order:7")
        await tier.begin(intent)
        await commit(tier, intent)
    assert tier.stats()["unannounced"] == 3
    assert caplog.text.count("after the tier was closed") == 1


@pytest.mark.parametrize("is_back", [True, False])
async def test_closing_tries_once_to_deliver_what_is_owed(
    way: Proxy, valkey: Server, caplog: pytest.LogCaptureFixture, *, is_back: bool
):
    tier = RedisTier.from_url(way.url, timeout=9.0 if is_back else 0.4, max_staleness=30.0)
    async with RedisTier.from_url(valkey.url, timeout=9.0, max_staleness=30.0) as other:
        await load(other, read("order:7"), "old")
    await tier.lookup(read("order:7"))
    way.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    assert tier.stats()["pending"] == 1
    way.heal() if is_back else way.half_open()
    async with asyncio.timeout(60):
        await tier.aclose()
    assert tier.stats()["pending"] == (0 if is_back else 1)
    assert caplog.text.count("closed before all invalidations had landed") == (0 if is_back else 1)
    async with RedisTier.from_url(valkey.url, timeout=9.0, max_staleness=30.0) as other:
        assert await value_of(other, read("order:7")) == ("nothing" if is_back else "old")
    await until(lambda: not ours())


async def test_a_loop_that_is_over_leaves_no_connection(way: Proxy):
    """In good order by `asyncio.run`, whatever its reads were doing."""
    tier = RedisTier.from_url(way.url, timeout=0.4)
    tier.subscribe(lambda _: None)
    await load(tier, read("order:7"), "value")
    await until(lambda: way.connections == 3)

    async def briefly() -> None:
        await tier.lookup(read("order:7"))
        assert way.connections == 4
        left = asyncio.create_task(tier.lookup(read("other:7", key="9")))
        await asyncio.sleep(0)
        assert not left.done()

    for _ in range(3):
        await asyncio.to_thread(asyncio.run, briefly())
    await until(lambda: way.connections == 3)
    assert len(tier._transport.clients()) == 1
    await tier.aclose()


QUIET = """
import asyncio, gc, logging, sys
from agent_cache import AgentCacheInvalidator
from agent_cache.remote import RedisTier

logging.basicConfig(level=logging.WARNING)
logging.getLogger("asyncio").addFilter(lambda said: " took " not in said.getMessage())  # that the machine is busy
tiers = []

async def main():
    tier = RedisTier.from_url(sys.argv[1], timeout=9.0, max_staleness=30.0)
    started = asyncio.Event()

    @AgentCacheInvalidator("order:{id}", remote_cache=tier, doubt=0)
    async def change(id):
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(change(7))
    await started.wait()
    KEEP and tiers.append(tier)
    return task

asyncio.run(main())
gc.collect()
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, *slow(False)])
async def test_a_loop_that_ends_in_the_middle_of_a_write_says_nothing_and_commits_it(valkey: Server, *, keep: bool):
    """Whether its tier is used again or not."""
    valkey.command("FLUSHALL")
    code = QUIET.replace("KEEP", str(keep))
    python = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", code, valkey.url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await python.communicate()
    assert said.decode() == ""
    assert python.returncode == 0
    assert not valkey.command("EXISTS", "w:{agent_cache:order}")


@pytest.mark.parametrize("closed", [True, False])
async def test_a_tier_that_nobody_has_any_more_is_gone(way: Proxy, *, closed: bool):
    """With the tools that have used it, and with its thread and connections."""
    tier = RedisTier.from_url(way.url, timeout=9.0, max_staleness=30.0)

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: int) -> int:
        return id

    await get_order(7)
    assert await tier.caught_up()
    if closed:
        await tier.aclose()
    left = weakref.ref(tier)
    del tier, get_order

    def gone() -> bool:
        gc.collect()
        return left() is None and not ours() and way.connections == 0

    await until(gone)


async def test_closing_ends_the_connections_of_a_loop_that_stands_still(way: Proxy):
    loop = asyncio.new_event_loop()
    tier = RedisTier.from_url(way.url, timeout=0.4)
    await asyncio.to_thread(loop.run_until_complete, load(tier, read("order:7"), "value"))
    assert way.connections > 0
    await tier.aclose()
    await until(lambda: way.connections == 0)
    await asyncio.to_thread(loop.run_until_complete, loop.shutdown_asyncgens())
    assert not tier._transport.clients()
    loop.close()


@pytest.mark.parametrize("steps", [*range(0, 40, 9), *slow(*(steps for steps in range(0, 40, 3) if steps % 9))])
async def test_a_call_may_be_cancelled_at_any_point(way: Proxy, steps: int):
    """Nothing of it is left, and the next one works."""
    async with RedisTier.from_url(way.url, timeout=5, max_staleness=6) as tier:
        tier.subscribe(lambda _: None)
        for number in range(3):
            request = read(f"order:{steps}-{number}", key=f"{steps}-{number}")
            task = asyncio.create_task(load(tier, request, "value"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with ExitStack() as exits:
                exits.enter_context(pytest.raises(asyncio.CancelledError)) if not task.done() else None
                await task
            assert not tier._subscriber._waiters
        await load(tier, request, "value")
        found, _ = await tier.lookup(request)
        assert found is not None
        assert found.value == "value"
        assert tier.stats()["failures"] == 0


async def test_a_tier_that_was_closed_says_so(valkey: Server, caplog: pytest.LogCaptureFixture):
    """A program that runs one loop after the other may close it in the first."""
    tier = RedisTier.from_url(valkey.url)
    async with tier:
        await load(tier, read("order:7"), "value")
    for _ in range(2):
        assert await value_of(tier, read("order:7")) == "nothing"
    assert set(tier.stats()["servers"].values()) == {"the tier was closed"}
    assert caplog.text.count("the tier was closed") == 1
    with pytest.raises(ConfigurationError, match="make a new one"):
        async with tier:
            pass
