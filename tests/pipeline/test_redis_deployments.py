"""How a tier reaches its servers: URLs, clients as templates, sockets, TLS, Sentinels and clusters."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")
pytest.importorskip("cryptography")

import redis
import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.connection import SSLConnection

import agent_cache.remote.redis
from agent_cache.errors import ConfigurationError
from agent_cache.remote import RedisTier, Request
from tests.contract.workbench import load, read, value_of, writing
from tests.harness.clusters import Cluster, slot_of
from tests.harness.sentinels import NAME, Sentinel
from tests.harness.servers import HOST, Server, free_port
from tests.harness.slow import slow
from tests.harness.tiers import Make, making, until

Deployment = agent_cache.remote.redis.Deployment
AUTHORITY = Path(__file__).parents[1] / "harness" / "authority.pem"


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(is_heard=True) as make:
        yield make


async def works(tier: RedisTier) -> None:
    """Values, steps and the feed all go over it."""
    await load(tier, read("order:7"), "old")
    assert await value_of(tier, read("order:7")) == "old"
    async with writing(tier, "order:7"):
        pass
    assert await value_of(tier, read("order:7")) == "nothing"
    assert await tier.caught_up()
    await load(tier, read("order:7"), "new")
    assert await value_of(tier, read("order:7")) == "new"


# URLs, clients and sockets


@pytest.mark.parametrize("kind", ["url", "client", "provider"])
async def test_every_connection_logs_in_with_the_settings_of_its_url_or_client(
    make: Make, own_valkey: Server, kind: str
):
    own_valkey.command("ACL", "SETUSER", "me", "on", ">p@ss", "~*", "&*", "+@all")
    address = f"redis://me:p%40ss@{HOST}:{own_valkey.port}/2?client_name=agent"
    provider = redis.UsernamePasswordCredentialProvider("me", "p@ss")
    given = redis.asyncio.Redis.from_url(address) if kind == "client" else address
    if kind == "provider":
        given = redis.asyncio.Redis.from_url(address.replace("me:p%40ss@", ""), credential_provider=provider)
    await works(make(given))
    with own_valkey.client() as client:

        def logged_in() -> set[tuple[str, str]]:
            connections = [each for each in client.client_list() if each["user"] == "me"]
            is_whole = len(connections) >= 2  # of this loop, and of the thread
            return {(each["name"], each["db"]) for each in connections if is_whole}

        # One that is being opened has its name before its database.
        await until(lambda: logged_in() == {("agent", "2")})
        assert not client.keys("{agent_cache}:v:*")
        # A question before the first costs a far server's time.
        assert "cmdstat_hello" not in client.info("commandstats")


@pytest.mark.parametrize("kind", ["url", "client"])
async def test_a_server_is_reached_over_a_unix_socket(make: Make, start_server: Callable[..., Server], kind: str):
    with tempfile.TemporaryDirectory(prefix="agent_cache") as folder:  # the path of a socket has 107 characters at most
        path = Path(folder, "socket")
        start_server(unixsocket=path)
        await works(make(f"unix://{path}" if kind == "url" else redis.asyncio.Redis(unix_socket_path=str(path))))


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("http://me:secret@localhost", {}, "redis://user:password@host"),
        ("me:secret@localhost:6379", {}, "redis://user:password@host"),
        ("redis://:secret@host:port", {}, "redis://user:password@host"),
        ("redis://:secret@host:0", {}, "redis://user:password@host"),
        ("redis://:sec/ret@host/0", {}, "are quoted"),
        ("redis://:secret@one,two:6379/0", {}, "redis://user:password@host"),
        ("redis+sentinel://:secret@host:26379/shop", {}, "master_for"),
        ("unix://:secret@tmp/socket", {}, "unix:///path"),
        *((f"redis://:secret@host/{path}", {}, "number of a database") for path in ("shop", "0/shop", "1/2", "-1")),
        ("redis://:secret@host?db=shop", {}, "number of a database"),
        ("rediss://:secret@host?ssl_min_version=TLSv1.2", {}, "cannot be read"),
        ("redis://:secret@host?namespace=shop", {}, "'namespace'"),
        # redis-py would connect to a cluster without TLS then, and find a missing file at the first connection
        *(("redis://:secret@host?ssl_ca_certs=ca.pem", {"cluster": of}, "are for rediss://") for of in (True, False)),
        *(
            ("rediss://:secret@host?ssl_certfile=no.pem", {"cluster": of}, "files that can be read")
            for of in (True, False)
        ),
    ],
)
def test_a_url_that_would_not_do_what_it_says_is_refused_without_its_password(url: str, options: Any, says: str):
    with pytest.raises(ConfigurationError, match=says) as raised:
        RedisTier.from_url(url, **options)
    assert "sec" not in str(raised.value)


@pytest.mark.parametrize("path", ["", "/", "/3", "/3/", "//3", "/3\n"])
def test_a_database_is_named_by_its_number(path: str):
    client = Deployment.of_url(f"redis://host{path}").connect(1.0)
    assert client.connection_pool.connection_kwargs.get("db", 0) == (3 if "3" in path else 0)


@pytest.mark.parametrize("given", [object(), redis.Redis()])
def test_what_is_no_client_of_asyncio_is_refused(given: Any):
    with pytest.raises(ConfigurationError, match=r"needs a client of redis\.asyncio, or a URL"):
        RedisTier(given)


# TLS, which is redis-py's


@pytest.mark.parametrize("kind", ["url", "options", "client", "cluster"])
def test_certificates_and_checks_are_those_of_the_settings(kind: str):
    settings: dict[str, Any] = {
        "ssl_ca_certs": str(AUTHORITY), "ssl_cert_reqs": "required", "ssl_check_hostname": False,
    }  # fmt: skip
    url = "rediss://host:6380"
    whole = f"{url}?{'&'.join(f'{name}={value}' for name, value in settings.items())}"
    match kind:
        case "client":
            deployment = Deployment.of_client(redis.asyncio.Redis(host="host", port=6380, ssl=True, **settings))
        case "options":
            deployment = Deployment.of_url(url, options=settings)
        case _:
            deployment = Deployment.of_url(whole, cluster=kind == "cluster")
    client = deployment.connect(1.0)
    servers = client.nodes_manager.startup_nodes["host:6380"] if kind == "cluster" else client.connection_pool
    assert issubclass(servers.connection_class, SSLConnection)
    assert {name: servers.connection_kwargs[name] for name in settings} == settings


async def test_certificates_are_read_anew_by_a_connection_that_is_made_again(tmp_path: Path):
    """They are replaced while programs run."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes(AUTHORITY.read_bytes())
    client = Deployment.of_url(f"rediss://{HOST}:{free_port()}?ssl_ca_certs={authority}").connect(9.0)
    for says in ("Connect call failed", "No such file"):
        with pytest.raises(redis.ConnectionError, match=says):
            await client.ping()
        authority.unlink(missing_ok=True)
    await Deployment.close(client)


# Clusters


@pytest.fixture
async def in_cluster() -> AsyncIterator[Make]:
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=3.0) as make:
        yield make


async def until_found(tier: RedisTier, request: Request, value: str) -> None:
    """Load and store until the value is found, and may be kept locally."""
    async with asyncio.timeout(60):
        while True:
            await load(tier, request, value)
            found, ticket = await tier.lookup(request)
            if found is not None and ticket.is_clean():
                break
            await asyncio.sleep(0.01)
    assert found.value == value


@pytest.mark.parametrize("kind", ["url", *slow("client")])
async def test_a_cluster_is_reached_by_a_url_or_a_client(cluster: Cluster, make: Make, kind: str):
    if kind == "url":
        await works(make(cluster.url, cluster=True))
    else:
        client = redis.asyncio.RedisCluster(host=HOST, port=cluster.primaries[0].port)
        await works(make(client))
        await client.aclose()


async def test_a_node_of_a_cluster_says_what_to_do(cluster: Cluster, make: Make):
    """One that is taken for a server, which names another node for most namespaces, or whose user lacks a right."""
    other = cluster.another_than(cluster.primary_for("{agent_cache}"))
    other.command("ACL", "SETUSER", "me", "on", ">secret", "~*", "+@all", "-cluster")
    url = f"redis://me:secret@{HOST}:{other.port}"
    for tier, says in ((make(other.url), "cluster=True"), (make(url, cluster=True), "permission")):
        assert not await tier.caught_up()
        assert says in str(tier.stats()["servers"])
    other.command("ACL", "DELUSER", "me")


@pytest.mark.slow
async def test_a_failover_is_a_loss_and_nothing_from_before_is_found(own_cluster: Cluster, in_cluster: Make):
    """Its new primary has another identity. Afterwards everything works again."""
    tier = in_cluster(own_cluster.url)
    told: list[Any] = []
    tier.subscribe(told.append)
    await load(tier, read("order:7"), "old")
    assert await tier.caught_up()
    await asyncio.to_thread(own_cluster.failover, own_cluster.primary_for("{agent_cache}"))
    await until(lambda: None in told)
    assert await value_of(tier, read("order:7")) == "nothing"
    await until_found(tier, read("order:7"), "new")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["key by key", "about to, and did not", "atomically"])
async def test_what_a_write_replaces_while_the_slot_moves_is_not_found(cluster: Cluster, in_cluster: Make, way: str):
    """Tools run without the tier meanwhile."""
    slot = slot_of("{agent_cache}")
    target = cluster.another_than(cluster.primary_for("{agent_cache}"))
    reader, writer = in_cluster(cluster.url), in_cluster(cluster.url)
    await load(reader, read("order:7"), "old")
    if way == "atomically":
        await asyncio.to_thread(cluster.move_slot_atomically, slot, target)
        steps: Iterator[int] = iter(())
    else:
        steps = cluster.move_slot(slot, target)
        next(steps)
    async with writing(writer, "order:7"):
        pass
    for _ in steps if way == "key by key" else ():
        assert await value_of(reader, read("order:7")) == "nothing"
    if way == "about to, and did not":
        cluster.keep_slot(slot, target)
    await until(lambda: writer.stats()["pending"] == 0)
    assert await value_of(reader, read("order:7")) == "nothing"
    assert await value_of(in_cluster(cluster.url), read("order:7")) == "nothing"  # which knows nothing of the move
    await until_found(reader, read("order:7"), "new")


# Sentinels


@pytest.mark.slow
async def test_behind_sentinels_the_tier_follows_the_primary(own_sentinel: Sentinel, make: Make):
    watchers = redis.asyncio.sentinel.Sentinel([own_sentinel.address])
    client = watchers.master_for(NAME)
    tier = make(client, max_staleness=3.0, timeout=1.5)
    told: list[Any] = []
    tier.subscribe(told.append)
    await load(tier, read("order:7"), "old")
    assert await value_of(tier, read("order:7")) == "old"
    assert await tier.caught_up()
    await asyncio.to_thread(own_sentinel.kill)
    await until(lambda: None in told)
    await until(lambda: tier.stats()["servers"] == {"{}:{}".format(*own_sentinel.address): "ok"})
    assert await value_of(tier, read("order:7")) == "nothing"
    await until_found(tier, read("order:7"), "new")
    for each in (client, *watchers.sentinels):
        await each.aclose()
