"""The tier over TLS: from a URL and from clients, each side proving who it is."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ipaddress
import socket
import ssl
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")
pytest.importorskip("cryptography")

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent_cache.clock import CLOCK
from agent_cache.errors import ConfigurationError
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.connection import Connection
from agent_cache.remote.redis.deployments import deployment_of_client, deployment_of_url
from tests.contract.workbench import load, read, value_of, writing
from tests.harness.servers import HOST, Server

Make = Callable[..., RedisTier]


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates. It is made for one run of the tests."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(self._signed(self._subject, self._key.public_key(), is_authority=True))

    def issue(self, name: str) -> Identity:
        """A certificate for this machine's loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = Identity(self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key")
        made.certificate.write_bytes(self._signed(subject, key.public_key(), is_authority=False))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def _signed(self, subject: x509.Name, key: Any, *, is_authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(loopback, critical=False)
            # What `ssl` asks of a chain since Python 3.13.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(is_authority=is_authority), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    uses = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    nothing = dict.fromkeys([*uses, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**nothing | {"key_cert_sign" if is_authority else "digital_signature": True})


class Terminator:
    """Stands before a server that has no TLS of its own, as stunnel does, and counts connections."""

    def __init__(self, target: int, identity: Identity, clients: Authority | None) -> None:
        self._target = target
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(identity.certificate, identity.key)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients.certificate)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.accepted = 0
        self.port = 0

    def __enter__(self) -> Terminator:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def freeze(self) -> threading.Event:
        """Have it do nothing until the event is set that this gives."""
        is_frozen, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            is_frozen.set()
            go_on.wait(60)

        self._loop.call_soon_threadsafe(wait)
        assert is_frozen.wait(60)
        return go_on

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._carry, HOST, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # One that was cancelled on its way to the server behind would be found later, unclosed.
        for transport in [*getattr(self._loop, "_transports", {}).values()]:
            transport.abort()
        await asyncio.sleep(0)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        behind, onwards = await asyncio.open_connection(HOST, self._target)
        try:
            await asyncio.wait(
                [asyncio.ensure_future(_pour(*way)) for way in ((reader, onwards), (behind, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            onwards.transport.abort()
            writer.transport.abort()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(65_536):
            sink.write(chunk)
            await sink.drain()
    except OSError:
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture
def behind(valkey: Server, authority: Authority) -> Iterator[Callable[..., Terminator]]:
    """TLS before the server. `clients` must have signed who connects."""
    with ExitStack() as exits:
        yield lambda clients=None: exits.enter_context(Terminator(valkey.port, authority.issue("server"), clients))


PATIENT: dict[str, Any] = {"timeout": 9.0, "max_staleness": 30.0}
"""A busy machine may take seconds for a handshake."""


@pytest.fixture
async def works() -> AsyncIterator[Callable[..., Any]]:
    made: list[RedisTier] = []

    async def works(tier: RedisTier) -> None:
        """Values, messages and scripts all go over it."""
        made.append(tier)
        tier.subscribe(lambda _: None)
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        async with writing(tier, "order:7"):
            pass
        assert await value_of(tier, read("order:7")) == "nothing"
        deadline = time.monotonic() + 60
        while tier.trusted_until() <= CLOCK.now():
            assert time.monotonic() < deadline, "its messages are not heard"
            await asyncio.sleep(0.01)

    yield works
    for tier in made:
        await tier.aclose()


async def test_a_url(works, behind, authority: Authority):
    tls = behind()
    url = f"rediss://{HOST}:{tls.port}?ssl_ca_certs={authority.certificate}"
    await works(RedisTier.from_url(url, **PATIENT))
    assert tls.accepted >= 3  # of this loop, and two of the thread


async def test_a_url_with_settings_beside_it(works, behind, authority: Authority):
    """And a client's certificate, which the server asks for."""
    mine = authority.issue("client")
    await works(
        RedisTier.from_url(
            f"rediss://{HOST}:{behind(authority).port}",
            **PATIENT,
            ssl_ca_certs=str(authority.certificate),
            ssl_certfile=str(mine.certificate),
            ssl_keyfile=str(mine.key),
            ssl_check_hostname=True,
        )
    )


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
async def test_a_client_is_a_template(works, behind, authority: Authority, kind: Any):
    """Whatever else a client of that kind knows about TLS."""
    mine = authority.issue("client")
    client = kind(
        host=HOST,
        port=behind(authority).port,
        ssl=True,
        ssl_ca_certs=str(authority.certificate),
        ssl_certfile=str(mine.certificate),
        ssl_keyfile=str(mine.key),
        ssl_check_hostname=True,
    )
    await works(RedisTier(client, **PATIENT))


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
async def test_a_client_made_from_a_url_is_a_template(works, behind, authority: Authority, kind: Any):
    url = f"rediss://{HOST}:{behind().port}?ssl_cert_reqs=required&ssl_ca_certs={authority.certificate}"
    await works(RedisTier(kind.from_url(url), **PATIENT))


async def test_a_server_that_cannot_prove_who_it_is_is_not_used(
    behind, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    stranger = Authority(tmp_path, "stranger")
    url = f"rediss://{HOST}:{behind().port}?ssl_ca_certs={stranger.certificate}"
    async with RedisTier.from_url(url, **PATIENT) as tier:
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "nothing"
        assert set(tier.stats()["servers"].values()) != {"ok"}
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("is_checked", [True, False])
async def test_the_name_of_a_server_is_checked_unless_the_settings_say_no(
    behind, authority: Authority, is_checked: bool
):
    """The certificate is for an address, and the tier connects to a name."""
    url = f"rediss://localhost:{behind().port}?ssl_ca_certs={authority.certificate}&ssl_check_hostname={is_checked}"
    async with RedisTier.from_url(url, **PATIENT) as tier:
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == ("nothing" if is_checked else "old")


async def test_a_client_that_cannot_prove_who_it_is_is_a_miss(behind, authority: Authority):
    url = f"rediss://{HOST}:{behind(authority).port}?ssl_ca_certs={authority.certificate}"
    async with RedisTier.from_url(url, **PATIENT) as tier:
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "nothing"


@pytest.mark.parametrize("stuck", ["in the handshake", "in the log in"])
def test_a_connection_that_is_given_up_half_way_is_closed_at_once(authority: Authority, stuck: str):
    """Its loop may end right then, and what is said to a silent server would never be answered."""
    with ExitStack() as exits:
        silent = exits.enter_context(socket.create_server((HOST, 0)))
        port, tls = silent.getsockname()[1], None
        if stuck == "in the log in":
            tls = exits.enter_context(Terminator(port, authority.issue("server"), None))
            port = tls.port

        async def give_up() -> None:
            opening = asyncio.create_task(Connection.open(deployment, deployment.seeds[0], limit=100, timeout=9.0))
            arrived, _ = await asyncio.to_thread(silent.accept)
            exits.enter_context(arrived)
            await asyncio.to_thread(arrived.recv, 1)
            if tls is not None:
                exits.callback(tls.freeze().set)  # it does not say goodbye back before the loop is over
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

        deployment = deployment_of_url(
            f"rediss://{HOST}:{port}/1?ssl_ca_certs={authority.certificate}", cluster=False, options={}
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            asyncio.run(give_up())
            gc.collect()
        assert [str(one.message) for one in said] == []


def test_a_check_that_would_be_left_out_is_refused():
    """Rather than to connect to whom the client would not have connected to."""
    with pytest.raises(ConfigurationError, match="ssl_validate_ocsp"):
        RedisTier(redis.Redis(ssl=True, ssl_validate_ocsp=True))


def test_clients_of_a_cluster_and_of_sentinels_keep_their_tls():
    authorities = {"ssl_ca_certs": "/ca.pem"}
    node = deployment_of_client(redis.asyncio.RedisCluster(host=HOST, port=1, ssl=True, **authorities))
    assert (node.transport, node.settings.get("ssl_ca_certs")) == ("tls", "/ca.pem")
    for module in (redis.sentinel, redis.asyncio.sentinel):
        sentinel = module.Sentinel([(HOST, 1)], sentinel_kwargs={"ssl": True, "ssl_ca_certs": "/watcher.pem"})
        group = deployment_of_client(sentinel.master_for("shop", ssl=True, **authorities))
        assert (group.transport, group.settings.get("ssl_ca_certs")) == ("tls", "/ca.pem")
        assert (group.sentinel_transport, group.sentinel_settings.get("ssl_ca_certs")) == ("tls", "/watcher.pem")
        plain = deployment_of_client(module.Sentinel([(HOST, 1)]).master_for("shop", ssl=True, **authorities))
        assert (plain.transport, plain.sentinel_transport) == ("tls", "tcp")
