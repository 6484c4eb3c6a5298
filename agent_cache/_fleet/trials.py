"""What is tried on a server: rights, round trips, its clock, and messages."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

from agent_cache._fleet.findings import Check, finding, fine, note
from agent_cache._fleet.patient import Patient
from agent_cache.remote.redis.links import Link
from agent_cache.remote.redis.scripts import MINT
from agent_cache.remote.redis.wire import ReplyError, Unreachable

__all__ = ["clock", "messages", "rights", "round_trips"]

_TRIPS = 100
_PERIOD = b"5000"


async def rights(patient: Patient) -> AsyncIterator[Check]:
    """Try everything that a tier does, on keys of each kind."""
    root = patient.root
    publish = b"SPUBLISH" if patient.servers.is_cluster else b"PUBLISH"
    attempts: list[tuple[bytes, ...]] = [
        (b"PING",), (b"INFO", b"replication"), (b"TIME",),
        (b"SET", patient.heartbeat, b"", b"PX", _PERIOD), (b"SET", patient.value, b"x", b"PX", _PERIOD),
        (b"SET", patient.claim, b"x", b"NX", b"PX", _PERIOD), (b"SET", root.s, b"x", b"PX", _PERIOD),
        (b"MGET", patient.value), (b"MGET", root.s), (b"GET", root.s),
        (b"ZADD", root.registry, b"1", b"x"), (b"ZRANGE", root.registry, b"0", b"-1"),
        (b"PEXPIRE", root.registry, _PERIOD), (b"ZREM", root.registry, b"x"),
        (b"EVAL", b"return 1", b"1", root.s), (b"EVALSHA", b"0" * 40, b"1", root.s),
        (publish, root.channel, b"doctor"), (b"DEL", patient.value),
    ]  # fmt: skip
    if patient.servers.is_cluster:
        attempts.append((b"CLUSTER", b"SLOTS"))
    replies = await patient.server.ask_all(attempts)
    link, _, heard = await _listening(patient)
    link.close()
    refused: dict[str, str] = {}
    for attempt, reply in [*zip(attempts, replies, strict=True), ((b"(S)SUBSCRIBE", root.channel), heard)]:
        if isinstance(reply, ReplyError) and reply.code in {"NOPERM", "READONLY", "OOM", "MISCONF", "NOREPLICAS"}:
            refused.setdefault(f"{reply.code} {_kind(patient, attempt)}", str(reply))
    if not refused:
        yield fine("rights", f"all {len(attempts) + 1} commands that a tier uses are allowed")
    elif any(what.startswith("NOPERM") for what in refused):
        yield finding(
            "rights", "; ".join(what.removeprefix("NOPERM ") for what in refused if what.startswith("NOPERM")),
            "give the user the rights that the reference lists (docs/reference/tiers.md)",
        )  # fmt: skip
    for what, reply in refused.items():
        if not what.startswith("NOPERM"):
            yield finding("writes", reply, "until writes are taken again, tools run without the tier")
            break


def _kind(patient: Patient, attempt: tuple[bytes, ...]) -> str:
    """What was tried, with the pattern that its key belongs to in place of the key."""
    namespace = patient.servers.core.names.namespace
    patterns = {
        patient.root.s: f"~t:{{{namespace}:*", patient.root.registry: f"~w:{{{namespace}:*",
        patient.root.channel: f"&c:{{{namespace}:*", patient.value: f"~v:{namespace}:*",
        patient.claim: f"~r:{namespace}:*", patient.heartbeat: f"~{namespace}:hb:*",
    }  # fmt: skip
    pattern = next((patterns[part] for part in attempt if part in patterns), "")
    return f"{attempt[0].decode()} {pattern}".strip()


async def round_trips(patient: Patient) -> AsyncIterator[Check]:
    """Medians of what a tier does most: a ping, a read, a script."""
    root, mint = patient.root, patient.servers.core.script(MINT)
    script = (
        root.registry,
        root.s,
        root.prefix,
        _PERIOD,
        os.urandom(12).hex().encode(),
        b"",
        b"0",
        b"1",
        root.name(root.s),
    )
    medians, slowest = [], 0.0
    try:
        await patient.server.ask(b"EVAL", mint.source, b"2", *script)
        for name, command in (
            ("PING", (b"PING",)),
            ("MGET", (b"MGET", root.s)),
            ("EVALSHA", (b"EVALSHA", mint.digest, b"2", *script)),
        ):
            times = []
            for _ in range(_TRIPS):
                before = time.perf_counter()
                await patient.server.ask(*command)
                times.append(time.perf_counter() - before)
            medians.append(f"{name} {statistics.median(times) * 1000:.2f} ms")
            slowest = max(slowest, sorted(times)[-max(1, _TRIPS // 100) - 1])
    except ReplyError as error:  # what is refused takes no time
        yield note("latency", f"could not be measured: {error}")
        return
    says = f"{', '.join(medians)} (medians of {_TRIPS}), 98 of 100 within {slowest * 1000:.1f} ms"
    if slowest > patient.timeout:
        yield finding(
            "latency", says,
            f"the tier gives up after timeout={patient.timeout:g} s: move the server closer, or raise timeout and "
            "max_staleness",
        )  # fmt: skip
    elif slowest > patient.timeout / 5:
        yield finding(
            "latency", says,
            "a hit takes one such trip: is the server in another region, or busy with something slow (SLOWLOG GET)?",
        )  # fmt: skip
    else:
        yield fine("latency", says)


async def clock(patient: Patient) -> AsyncIterator[Check]:
    """Leases and ages are counted by the server's clock. It may be wrong, but must not jump."""
    before, started = await _server_time(patient)
    await asyncio.sleep(0.5)
    after, ended = await _server_time(patient)
    jump = (after - before) - (ended - started)
    offset = after - time.time()
    says = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(jump) > 0.1:
        yield finding("clock", f"{says}, and jumped by {jump:+.3f} s within half a second", "see to its time service")
    else:
        yield fine("clock", f"{says}; it counts alone, and runs evenly")


async def _server_time(patient: Patient) -> tuple[float, float]:
    before = time.monotonic()
    seconds, micros = await patient.server.ask(b"TIME")
    return int(seconds) + int(micros) / 1e6, (before + time.monotonic()) / 2


async def messages(patient: Patient) -> AsyncIterator[Check]:
    """A message arrives, and a PING is answered behind it on the same connection."""
    link, arrived, heard = await _listening(patient)
    try:
        if isinstance(heard, ReplyError):
            return  # `rights` has said so
        publish = b"SPUBLISH" if patient.servers.is_cluster else b"PUBLISH"
        before = time.perf_counter()
        try:
            await patient.server.ask(publish, patient.root.channel, b"doctor")
        except ReplyError:
            return
        link.push(b"PING", b"nonce")
        said: list[Any] = []
        try:
            async with asyncio.timeout(patient.timeout + 1.0):
                while len(said) < 2:
                    said.append(await arrived.get())
        except TimeoutError:
            pass
        took = (time.perf_counter() - before) * 1000
        if [reply[0] for reply in said[:1] if isinstance(reply, list)] not in ([b"message"], [b"smessage"]):
            yield finding(
                "messages", "what was published did not arrive", "is there a proxy that has no publish/subscribe?"
            )
        elif isinstance(said[-1], ReplyError):  # if it is for a right, `rights` has said what to do
            told = f"a PING on a subscription is refused: {said[-1]}"
            if said[-1].code == "NOPERM":
                yield note("messages", told)
            else:
                yield finding("messages", told, "see what refuses it: until it is answered, nothing is kept locally")
        elif said[1:] != [[b"pong", b"nonce"]]:
            yield finding(
                "messages", "a PING on a subscription is not answered by the server",
                "a proxy stands in between (Envoy?): connect to the server itself, or nothing is kept locally",
            )  # fmt: skip
        else:
            yield fine("messages", f"published, heard and answered within {took:.1f} ms")
    finally:
        link.close()


async def _listening(patient: Patient) -> tuple[Link, asyncio.Queue[Any], Any]:
    """A connection that has asked for messages, what arrives on it, and the first of that.

    Raises:
        Unreachable: if nothing does.
    """
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    link = await patient.servers.connect(patient.server, arrived.put_nowait)
    link.push(b"SSUBSCRIBE" if patient.servers.is_cluster else b"SUBSCRIBE", patient.root.channel)
    try:
        async with asyncio.timeout(patient.servers.core.timeout):
            return link, arrived, await arrived.get()
    except TimeoutError:
        link.close()
        raise Unreachable("a subscription is not confirmed") from None
