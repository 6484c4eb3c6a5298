"""The harness itself: what the proxy does to a connection is what a real client behind it meets."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from tests.harness.proxies import Proxy
from tests.harness.servers import HOST, PATIENCE, Server, free_port, wait_until
from tests.harness.stopwatch import Stopwatch

redis = pytest.importorskip("redis")

SHORT = 1.5


def through(port: int, timeout: float = SHORT, **options: object):
    """A client that tries once and waits for a short time."""
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return redis.Redis(host=HOST, port=port, retry=retry, socket_timeout=timeout, decode_responses=True, **options)


@pytest.fixture
def client(proxy: Proxy):
    """One connection through the proxy."""
    with through(proxy.port, single_connection_client=True) as client:
        client.ping()
        yield client


def test_bytes_of_any_number_go_through_unchanged(proxy: Proxy, client, valkey: Server):
    value = "0123456789" * 300_000
    client.set("key", value)
    assert client.get("key") == value == valkey.command("GET", "key")
    assert proxy.connections == 1


@pytest.mark.slow
def test_a_delay_holds_for_open_connections_and_ends(proxy: Proxy, client):
    proxy.delay(to_server=0.05, to_client=0.05)
    assert took(client.ping).seconds >= 0.1
    proxy.delay()
    assert min(took(client.ping).running for _ in range(5)) < 0.05


@pytest.mark.slow
def test_a_delay_does_not_add_up_over_what_is_sent_at_once(proxy: Proxy, client):
    proxy.delay(to_server=0.1)
    value = "0123456789" * 300_000  # some fifty pieces: one after another they would take five seconds
    stopwatch = took(lambda: client.set("key", value))
    assert stopwatch.seconds > 0.1
    assert stopwatch.running < 1.0
    assert client.get("key") == value


def test_a_cut_breaks_open_connections_and_lets_new_ones_through(proxy: Proxy, client):
    proxy.cut()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()  # it has connected again


def test_refused_connections_fail_at_once_until_it_heals(proxy: Proxy, client):
    proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    with Stopwatch() as stopwatch, pytest.raises(redis.ConnectionError):
        client.ping()
    assert stopwatch.running < 0.3
    proxy.heal()
    assert client.ping()


@pytest.mark.parametrize(
    ("direction", "arrives"), [("to_client", True), pytest.param("to_server", False, marks=pytest.mark.slow)]
)
def test_half_open_loses_one_direction_and_says_nothing(proxy: Proxy, client, valkey: Server, direction, arrives: bool):
    proxy.half_open(direction)
    with pytest.raises(redis.TimeoutError):
        client.set("key", "value")
    if arrives:
        wait_until("the command has run", lambda: valkey.command("GET", "key") == "value")
    else:
        assert valkey.command("GET", "key") is None
    assert proxy.connections >= 1


@pytest.mark.slow
def test_a_half_open_connection_is_not_told_that_the_server_died(own_valkey: Server):
    with Proxy.start(own_valkey.port) as proxy, through(proxy.port) as client, client.pubsub() as subscription:
        subscription.subscribe("news")
        assert subscription.get_message(timeout=PATIENCE)["type"] == "subscribe"
        proxy.half_open()
        own_valkey.command("PUBLISH", "news", "held up")
        own_valkey.command("PING")  # it may answer whoever publishes before it has told all who listen
        own_valkey.kill()
        assert subscription.get_message(timeout=SHORT) is None
        proxy.heal()
        # As over a cable that is mended: first what was on its way, then the end.
        assert subscription.get_message(timeout=PATIENCE)["data"] == "held up"


@pytest.mark.slow
def test_a_reset_waits_behind_what_was_sent_before_it():
    with (
        socket.create_server((HOST, 0)) as listener,
        Proxy.start(listener.getsockname()[1]) as proxy,
        socket.create_connection((HOST, proxy.port), SHORT) as client,
    ):
        server, _ = listener.accept()
        proxy.half_open()
        server.sendall(b"held up")
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        with pytest.raises(TimeoutError):
            client.recv(100)
        client.settimeout(PATIENCE)
        proxy.heal()
        assert client.recv(100) == b"held up"
        with pytest.raises(ConnectionResetError):
            client.recv(100)


@pytest.mark.slow
def test_a_new_connection_through_a_half_open_proxy_is_accepted_and_never_answered(proxy: Proxy):
    proxy.half_open()
    with through(proxy.port) as client, pytest.raises(redis.TimeoutError):
        client.ping()


@pytest.mark.slow
def test_what_was_held_up_arrives_when_it_heals(proxy: Proxy, client, valkey: Server):
    proxy.half_open("to_server")
    with pytest.raises(redis.TimeoutError):
        client.publish("nobody", "x")
    with through(proxy.port, PATIENCE) as patient:
        before = proxy.connections
        late = threading.Thread(target=patient.set, args=("key", "late"))
        late.start()
        wait_until("it is connected", lambda: proxy.connections > before)
        assert valkey.command("GET", "key") is None
        proxy.heal()
        late.join(PATIENCE)
        assert valkey.command("GET", "key") == "late"


def test_nobody_behind_the_proxy_is_a_broken_connection():
    with Proxy.start(free_port()) as proxy, through(proxy.port) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.slow
async def test_an_asyncio_client_meets_the_same(proxy: Proxy):
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry

    retry = Retry(redis.backoff.NoBackoff(), 0)
    async with Redis(host=HOST, port=proxy.port, retry=retry, socket_timeout=SHORT) as client:
        assert await client.ping()
        proxy.half_open()
        with pytest.raises(redis.TimeoutError):
            await client.ping()
        proxy.heal()
        async with asyncio.timeout(PATIENCE):
            assert await client.ping()


def test_stopping_it_leaves_no_thread(valkey: Server):
    before = threading.active_count()
    with Proxy.start(valkey.port) as proxy, through(proxy.port) as client:
        client.ping()
        proxy.half_open()
    assert threading.active_count() == before
    proxy.stop()


def took(call) -> Stopwatch:
    """How long a call took."""
    with Stopwatch() as stopwatch:
        call()
    return stopwatch
