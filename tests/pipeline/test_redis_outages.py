"""A server that is away costs one call the timeout; a tier that is closed, or whose loop has ended, leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import time
import weakref
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("redis")

import redis.asyncio.cluster
import redis.asyncio.sentinel
from redis.asyncio.connection import Connection

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import RedisTier, WriteIntent
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.gates import idle
from tests.harness.proxies import Proxy
from tests.harness.servers import HOST, Server
from tests.harness.slow import slow
from tests.harness.tiers import PATIENT, Make, making, until

TIMEOUT = 1.0
HASTY = {"timeout": TIMEOUT, "max_staleness": 3.0}


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(is_heard=True) as make:
        yield make


@pytest.fixture
def behind() -> Iterator[Callable[[int], Proxy]]:
    """Put a proxy before a port."""
    with ExitStack() as exits:
        yield lambda port: exits.enter_context(Proxy.start(port))


class Attempts:
    """Connections that the event loops of readers have asked for, and commands that went over them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._thread = threading.current_thread()
        for name in ("connect", "send_packed_command"):
            monkeypatch.setattr(Connection, name, self._counted(getattr(Connection, name)))

    def _counted(self, method: Any) -> Any:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._attempt()
            return await method(*args, **kwargs)

        return counted

    def _attempt(self) -> None:
        self.count += threading.current_thread() is self._thread


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)


async def miss(tier: RedisTier, tag: str = "order:7") -> Any:
    """Look up what cannot be found."""
    found, ticket = await tier.lookup(read(tag))
    assert found is None
    assert not ticket.is_clean()
    return ticket


async def costs_nothing_more(tier: RedisTier, attempts: Attempts) -> None:
    """What follows is answered without asking anybody."""
    before = attempts.count
    for _ in range(100):
        ticket = await miss(tier)
        await tier.store(ticket, "value", (), 0.1, age=0.0)
    assert attempts.count == before


@pytest.mark.slow  # of real time
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("fault", ["hung", "black hole"])
async def test_a_server_that_does_not_answer_costs_the_timeout_once(
    make: Make, own_valkey: Server, behind, attempts: Attempts, fault: str, *, is_new: bool
):
    """Whether it was used before or not."""
    proxy = behind(own_valkey.port)
    tier = make(proxy.url, **HASTY)
    if not is_new:
        await load(tier, read("order:7"), "old")
    if fault == "hung":
        own_valkey.pause()
    else:
        proxy.half_open()
    before = attempts.count
    await miss(tier)
    assert attempts.count - before <= 2  # a connection, and what is sent over it
    await costs_nothing_more(tier, attempts)
    own_valkey.resume()


def client_of(kind: str, ports: list[int]) -> Any:
    """A client of redis-py that has asked nobody yet."""
    if kind == "sentinel":
        return redis.asyncio.sentinel.Sentinel([(HOST, port) for port in ports]).master_for("shop")
    nodes = [redis.asyncio.cluster.ClusterNode(HOST, port) for port in ports]
    return redis.asyncio.RedisCluster(startup_nodes=nodes)


@pytest.mark.slow  # of real time
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_nodes_that_do_not_say_who_has_what_cost_the_timeout_once(make: Make, attempts: Attempts, kind: str):
    """However many of them there are to be asked."""
    with ExitStack() as exits:  # connections are taken there, and nothing is ever said
        sinks = [exits.enter_context(socket.create_server((HOST, 0))) for _ in range(4)]
        tier = make(client_of(kind, [sink.getsockname()[1] for sink in sinks]), **HASTY)
        await miss(tier)
        assert attempts.count <= 2
        await costs_nothing_more(tier, attempts)


@pytest.mark.parametrize("kind", ["single", *slow("cluster")])
async def test_a_write_that_a_stopped_server_does_not_answer_is_on_its_way_when_it_returns(
    make: Make, request: pytest.FixtureRequest, kind: str
):
    """The server executes it before anything that it is sent later, whatever happens to its writer."""
    if kind == "single":
        server = request.getfixturevalue("own_valkey")
    else:
        server = request.getfixturevalue("cluster").primary_for("{agent_cache}")
    options = {"cluster": True} if kind == "cluster" else {}
    tier, other = make(server.url, **HASTY, **options), make(server.url, **options)
    requests = [read(f"order:{number}", key=str(number)) for number in range(3)]
    for each in requests:
        await load(other, each, "old")
    await until(tier.trust.is_valid)
    tier.flush = lambda: asyncio.sleep(0)  # from now on nothing is sent once more
    server.pause()
    for number in range(3):  # the first one finds out that the server does not answer
        await tier.begin(intent := write(f"order:{number}"))
        await commit(tier, intent)
    assert tier.stats()["pending"] == 3
    server.resume()
    while not await other.caught_up():
        await asyncio.sleep(0.01)
    assert [await value_of(other, each) for each in requests] == ["nothing"] * 3


async def test_a_server_that_is_stopped_for_long_is_sent_a_bounded_number_of_writes(
    make: Make, own_valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    """Those after them neither wait until a connection has room for more, nor stay in memory."""
    tier = make(own_valkey.url, **HASTY)
    await until(tier.trust.is_valid)
    own_valkey.pause()
    sent, opened = list[str](), list[str]()
    send, connect = Connection.send_command, Connection.connect

    def counted(self: Connection, command: str, *words: Any, **options: Any) -> Any:
        sent.append(command)
        return send(self, command, *words, **options)

    def noted(self: Connection) -> Any:
        opened.append("")
        return connect(self)

    monkeypatch.setattr(Connection, "send_command", counted)
    monkeypatch.setattr(Connection, "connect", noted)
    for number in range(1_200):
        await tier.begin(intent := write(f"order:{number}"))
        await commit(tier, intent)
        if number == 100:  # the system has taken new connections by then, and the server has not
            opened.clear()
            await until(lambda: len(opened) > 2)
    assert 0 < sent.count("EVAL") <= 1_000
    own_valkey.resume()


async def test_what_a_process_that_stood_still_has_read_before_is_not_believed(
    make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    tier = make(valkey.url)
    await load(tier, read("order:7"), "old")
    ask = tier.backend.read

    async def late(*arguments: Any) -> Any:
        reading = await ask(*arguments)
        tier.heard.until = float("-inf")
        return reading

    monkeypatch.setattr(tier.backend, "read", late)
    assert await value_of(tier, read("order:7")) == "nothing"


async def test_copies_count_from_the_question_before_the_last_one_that_was_answered(
    make: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch
):
    """What the server was sent before that one was executed before the last one; what it was sent later may not be."""
    tier = make(valkey.url, max_staleness=300.0)  # the thread asks once, and then no more
    await until(tier.trust.is_valid)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for second in (100.0, 200.0, 290.0):
        monkeypatch.setattr("agent_cache.remote.versioned.boottime", lambda second=second: now + second)
        await tier.catch_up()
        assert tier.heard.until == now + second + 300.0
        tier.trust.term.until = min(tier.trust.term.until, now + second + 299.0)
    assert tier.trust.term.until == now + 200.0 + 300.0


async def test_very_many_writes_that_could_not_be_announced_are_one_when_the_server_is_back(
    make: Make, valkey: Server, proxy: Proxy
):
    tier, other = make(proxy.url), make(valkey.url)
    for request in (read("order:7"), read("user:1", key="1")):
        await load(other, request, "old")
    await tier.lookup(read("order:7"))
    proxy.refuse()
    for number in range(2_500):
        await tier.begin(intent := write(f"order:{number}"))
        await commit(tier, intent)
    assert tier.stats()["pending"] <= 1_001
    valkey.command("CONFIG", "RESETSTAT")
    proxy.heal()
    while tier.stats()["pending"]:
        await asyncio.gather(*(tier.lookup(read("order:7")) for _ in range(50)))
    assert valkey.info("commandstats")["cmdstat_xadd"]["calls"] < 3_000  # one of them delivers for all
    assert await value_of(other, read("order:7")) == "nothing"
    assert await value_of(other, read("user:1", key="1")) == "nothing"  # the price of forgetting their names
    await load(tier, read("order:7"), "new")
    assert await value_of(other, read("order:7")) == "new"


@pytest.mark.slow  # of real time
async def test_commands_that_wait_for_each_other_are_no_outage(make: Make, valkey: Server, proxy: Proxy):
    """An event loop has sixteen connections."""
    tier = make(proxy.url, timeout=3.0)
    await tier.lookup(read("order:7"))
    proxy.delay(to_client=1.2)
    await asyncio.gather(*(load(tier, read(f"order:{number}", key=number), "value") for number in range(33)))
    assert tier.stats()["stores"] == 33
    assert tier.stats()["failures"] == 0


def test_a_server_that_is_back_is_used_again_under_uvloop(valkey: Server, proxy: Proxy):
    """Its closed connections raise another error than those of asyncio."""
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        async with making() as make:
            tier, other = make(proxy.url, max_staleness=10.0), make(valkey.url)
            await load(other, read("order:7"), "old")
            await tier.caught_up()
            proxy.refuse()
            assert await value_of(tier, read("order:7")) == "nothing"
            proxy.heal()
            while not await tier.caught_up():
                await asyncio.sleep(0.01)
            assert await value_of(tier, read("order:7")) == "old"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_a_server_that_is_full_forgets_no_writer(make: Make, own_valkey: Server):
    tier = make(own_valkey.url)
    first, second = write("order:1"), write("order:2")
    await tier.begin(first)
    own_valkey.command("CONFIG", "SET", "maxmemory", "1mb")
    await tier.begin(second)
    assert tier.stats()["pending"] == 1
    assert own_valkey.command("ZCARD", "{agent_cache}:w") == 1
    own_valkey.command("CONFIG", "SET", "maxmemory", "0")
    await until(lambda: tier.stats()["pending"] == 0)
    for intent in (first, second):
        await commit(tier, intent)
    await until(lambda: own_valkey.command("ZCARD", "{agent_cache}:w") == 0)


async def test_a_server_of_another_identity_has_no_values_and_is_a_loss(make: Make, start_server):
    """As after a restart, a failover and a failback."""
    server = start_server(enable_debug_command="yes")
    tier = make(server.url)
    told: list[Any] = []
    tier.subscribe(told.append)
    strong = replace(read("order:7"), strong=True)
    await load(tier, strong, "old")
    assert await value_of(tier, strong) == "old"
    server.command("DEBUG", "CHANGE-REPL-ID")
    assert await value_of(tier, strong) == "nothing"
    await tier.caught_up()
    assert told == [None]
    await load(tier, strong, "new")
    assert await value_of(tier, strong) == "new"


@pytest.mark.parametrize("pattern", ["*", "*:n"])
async def test_an_older_copy_of_the_keys_that_was_put_back_has_no_values(make: Make, own_valkey: Server, pattern: str):
    """Under a server that runs: of all keys, or of the number alone, which writes could not go on from."""
    tier = make(own_valkey.url)
    await load(tier, read("order:7"), "old")
    with own_valkey.client(decode_responses=False) as raw:
        copies = [(key, raw.dump(key)) for key in raw.keys(pattern)]
        await commit(tier, write("order:7"))
        await tier.caught_up()
        for key, copy in copies:
            raw.restore(key, 0, copy, replace=True)
    await tier.caught_up()
    assert await value_of(tier, read("order:7")) == "nothing"
    await commit(tier, write("order:7"))
    assert tier.stats()["pending"] == 0


async def test_a_replica_is_not_used(make: Make, valkey: Server, own_valkey: Server):
    own_valkey.command("REPLICAOF", HOST, valkey.port)
    tier = make(own_valkey.url)
    await miss(tier)
    await until(lambda: "it is a replica" in str(tier.stats()["servers"]))  # first it loads


@pytest.mark.slow
async def test_a_master_that_may_not_write_is_not_used(make: Make, own_valkey: Server):
    """It is cut off from its replicas, and refuses if it is told to: what it has may be overtaken."""
    tier = make(own_valkey.url, **HASTY)
    await load(tier, read("order:7"), "old")
    await until(tier.trust.is_valid)
    own_valkey.config_set(min_replicas_to_write=1)
    await until(lambda: not tier.trust.is_valid() and "NOREPLICAS" in str(tier.stats()["servers"]))
    assert await value_of(tier, read("order:7")) == "nothing"
    own_valkey.config_set(min_replicas_to_write=0)
    while await value_of(tier, read("order:7")) != "old":
        await asyncio.sleep(0.01)


FRESH = """
import asyncio, sys
from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.remote import from_url

@AgentCache("order:{id}")
async def get(id):
    return f"order {id}"

@AgentCacheInvalidator("order:{id}")
async def put(id):
    return f"put {id}"

async def main():
    configure(remote=from_url(sys.argv[1], timeout=float(sys.argv[2]), max_staleness=20.0))
    for number in range(5):
        print(await get(number), await put(number))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(50):
        print(await get(number % 7), await put(number))

asyncio.run(main())
"""


@pytest.mark.parametrize("fault", ["down at the start", "down", "hung", "full", "emptied", "another", "refuses"])
async def test_a_fresh_process_says_an_outage_on_stderr_once_and_its_tools_run(start_server, fault: str):
    """It has set up no logging."""
    server = start_server(enable_debug_command="yes")
    if fault == "down at the start":
        server.kill()
    timeout = "0.2" if fault == "hung" else "9"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FRESH, server.url, timeout, stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    while not lines or lines[-1] != b"ready\n":
        lines.append(await process.stdout.readline())
        assert lines[-1]
    match fault:
        case "down":
            server.kill()
        case "hung":
            server.pause()
        case "full":
            server.command("CONFIG", "SET", "maxmemory", "1mb")
        case "emptied":
            server.command("FLUSHALL")
        case "another":
            server.command("DEBUG", "CHANGE-REPL-ID")
        case "refuses":
            server.command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    said, errors = await process.communicate(b"\n")
    server.resume() if fault == "hung" else None
    assert process.returncode == 0
    assert said.decode().splitlines() == [f"order {number % 7} put {number}" for number in range(50)]
    told = [line for line in errors.decode().splitlines() if "agent_cache: " in line]
    if fault in ("emptied", "another"):
        assert told == []
    else:
        assert len(told) == 1
        assert "it cannot be used, so the tools run without it" in told[0]


def ours() -> list[str]:
    """Tasks of this loop and threads of this process that belong to a tier."""
    names = [task.get_name() for task in asyncio.all_tasks()] + [thread.name for thread in threading.enumerate()]
    in_background = "agent_cache tiers"  # the loop of synchronous tools, which is the process's own
    return [name for name in names if name.startswith("agent_cache") and name != in_background]


@pytest.mark.parametrize("delay", [100.0, *slow(0.05)])
async def test_closing_ends_everything_whatever_is_under_way(proxy: Proxy, delay: float):
    """Connections that are being made, reads that wait for messages, for values, or for cells, and writes."""
    tier = RedisTier.from_url(proxy.url, timeout=0.4)
    tier.subscribe(lambda _: None)
    if delay < 100:
        await load(tier, read("order:7"), "value")
    proxy.delay(to_client=delay)
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
    proxy.heal()
    await until(lambda: proxy.connections == 0)
    found, ticket = await tier.lookup(read("order:7"))
    assert found is None
    assert not ticket.is_clean()
    await tier.store(ticket, "value", (), 0.1, age=0.0)
    assert not await tier.caught_up()
    assert proxy.connections == 0
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
    proxy: Proxy, valkey: Server, caplog: pytest.LogCaptureFixture, *, is_back: bool
):
    tier = RedisTier.from_url(proxy.url, timeout=9.0 if is_back else 0.4, max_staleness=30.0)
    async with RedisTier.from_url(valkey.url, **PATIENT) as other:
        await load(other, read("order:7"), "old")
    await tier.lookup(read("order:7"))
    proxy.refuse()
    intent = write("order:7")
    await tier.begin(intent)
    await commit(tier, intent)
    assert tier.stats()["pending"] == 1
    proxy.heal() if is_back else proxy.half_open()
    async with asyncio.timeout(60):
        await tier.aclose()
    assert tier.stats()["pending"] == (0 if is_back else 1)
    assert caplog.text.count("closed before all invalidations had landed") == (0 if is_back else 1)
    async with RedisTier.from_url(valkey.url, **PATIENT) as other:
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


async def test_a_closed_tier_that_nobody_has_any_more_is_gone(proxy: Proxy):
    """With the tools that have used it, and with its thread and connections."""
    tier = RedisTier.from_url(proxy.url, **PATIENT)

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
        return left() is None and not ours() and proxy.connections == 0

    await until(gone)


# Loops that end, and tasks that are cancelled


async def test_a_commit_that_is_cancelled_on_its_way_is_owed(proxy: Proxy, make: Make):
    tier = make(proxy.url)
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


async def test_a_lookup_that_is_cancelled_says_nothing(own_valkey: Server, make: Make):
    """As by `asyncio.timeout` around a call: asyncio would log that nobody has asked for its outcome."""
    tier, said = make(own_valkey.url), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    await tier.lookup(read("order:7"))
    own_valkey.pause()
    asked = tier.stats()["batches"]
    looking = asyncio.create_task(tier.lookup(read("order:7")))
    while tier.stats()["batches"] == asked:
        await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    assert looking.cancelled()
    own_valkey.resume()
    del looking  # with the frames of its traceback
    gc.collect()
    assert said == []


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
    async with RedisTier.from_url(valkey.url, **PATIENT) as tier, RedisTier.from_url(valkey.url, **PATIENT) as other:

        @AgentCacheInvalidator("order:{id}", remote_cache=tier, remote=RemotePolicy(on_unreachable=on_unreachable))
        async def put(id: str) -> None: ...

        await load(other, read("order:7"), "old")
        started(monkeypatch, no_thread)
        await put("7")
        assert await value_of(other, read("order:7")) == "nothing"
        monkeypatch.undo()
