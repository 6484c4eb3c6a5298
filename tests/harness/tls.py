"""TLS for tests: an authority that signs certificates, and what terminates TLS before a server that has none."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.harness.servers import HOST

__all__ = ["Authority", "Identity", "Terminator"]


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

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._carry, HOST, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # a task that is cancelled before its first step never closes what was accepted for it
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # One that was cancelled on its way to the server behind would be found later, unclosed.
        for transport in [*getattr(self._loop, "_transports", {}).values()]:
            transport.abort()
        for _ in range(5):  # an accepted socket whose handshake was cut short is closed some steps later
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
