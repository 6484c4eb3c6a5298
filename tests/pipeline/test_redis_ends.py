"""What is left of a tier that was closed, forgotten, or used by a loop that has ended at any step: nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import RedisTier, WriteIntent
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.gates import idle
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


@pytest.mark.parametrize("delay", [100.0, *slow(0.05)])
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
    await idle()
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
    assert way.connections == 0
    assert not ours()


async def test_a_closed_tier_refuses_and_says_that_nobody_is_told(valkey: Server, caplog: pytest.LogCaptureFixture):
    """A strong reader elsewhere would go on finding the old answer, and nobody would know why."""
    tier = RedisTier.from_url(valkey.url)
    async with tier:
        await load(tier, read("order:7"), "old")
    for _ in range(2):
        assert await value_of(tier, read("order:7")) == "nothing"
    assert set(tier.stats()["servers"].values()) == {"the tier was closed"}
    assert caplog.text.count("the tier was closed") == 1
    with pytest.raises(RemoteTierError, match="closed"):
        await tier.begin(WriteIntent("w", ("order:7",), on_unreachable="refuse"))
    for _ in range(3):
        intent = write("order:7")
        await tier.begin(intent)
        await commit(tier, intent)
    assert tier.stats()["unannounced"] == 3
    assert caplog.text.count("after the tier was closed") == 1
    with pytest.raises(ConfigurationError, match="make a new one"):
        async with tier:
            pass


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
    assert not valkey.command("EXISTS", "{agent_cache}:w")


async def test_a_closed_tier_that_nobody_has_any_more_is_gone(way: Proxy):
    """With the tools that have used it, and with its thread and connections."""
    tier = RedisTier.from_url(way.url, timeout=9.0, max_staleness=30.0)

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: int) -> int:
        return id

    await get_order(7)
    assert await tier.caught_up()
    await tier.aclose()
    left = weakref.ref(tier)
    del tier, get_order

    def gone() -> bool:
        gc.collect()
        return left() is None and not ours() and way.connections == 0

    await until(gone)


# Loops that end, and tasks that are cancelled


async def test_a_commit_that_is_cancelled_on_its_way_is_owed(valkey: Server):
    with Proxy.start(valkey.port) as proxy:
        tier = RedisTier.from_url(proxy.url, timeout=1.5, max_staleness=3.0)
        await load(tier, read("order:7"), "old")
        intent = replace(write("order:7", "user:1"), on_unreachable="refuse")  # waited for
        await tier.begin(intent)
        proxy.half_open()
        landing = asyncio.ensure_future(tier.commit(intent, intent.tags, failed=False, hold=0.0))
        await idle()
        landing.cancel()
        await asyncio.wait([landing])
        assert tier.stats()["pending"] == 1
        proxy.heal()
        await until(lambda: tier.stats()["pending"] == 0)
        await tier.aclose()


def started(monkeypatch: pytest.MonkeyPatch, start: Callable[[threading.Thread], None]) -> None:
    """Have a tier's thread started by this."""
    whole = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda each: (start if each.name.startswith("agent_cache") else whole)(each)
    )


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("on_unreachable", ["run", "refuse"])
async def test_a_tier_without_a_thread_tells_the_others(
    valkey: Server, on_unreachable: Any, monkeypatch: pytest.MonkeyPatch
):
    """As it is where a container may have no more of them."""
    options: dict[str, Any] = {"timeout": 1.5, "max_staleness": 3.0}
    async with RedisTier.from_url(valkey.url, **options) as tier, RedisTier.from_url(valkey.url, **options) as other:

        @AgentCacheInvalidator("order:{id}", remote_cache=tier, remote=RemotePolicy(on_unreachable=on_unreachable))
        async def put(id: str) -> None: ...

        await load(other, read("order:7"), "old")
        started(monkeypatch, no_thread)
        await put("7")
        assert await value_of(other, read("order:7")) == "nothing"
        monkeypatch.undo()
