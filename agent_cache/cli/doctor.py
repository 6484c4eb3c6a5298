"""`agent-cache tier doctor`: whether the servers of a Redis tier are fit for it, and the remedy if they are not.

Exit codes: 0 nothing is wrong, 1 findings, 2 usage, or a server that cannot be used.

Each check is a function of a `Target` and returns its results; `_CHECKS` has their order. The doctor writes some small
keys of its own and deletes them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Literal

from redis.exceptions import ResponseError

from agent_cache.cli.fleet import Fleet, code_of, connected, error_text, fields_of, server_command
from agent_cache.cli.output import Printer, print_json, size_text
from agent_cache.cli.tier_options import Result, print_result, print_verdict
from agent_cache.remote.redis import SCRIPTS

__all__ = ["Target", "run", "version"]

_TRIPS = 100
_REFUSALS = frozenset({"READONLY", "OOM", "MISCONF", "NOREPLICAS"})
_COMMANDS = (
    "PING", "INFO replication", "TIME", "SET KEY x PX 5000", "GET KEY", "DEL KEY", "INCR KEY", "PEXPIRE KEY 5000",
    "DEL KEY", "HSET KEY x 1", "HGET KEY x", "HMGET KEY x", "HVALS KEY", "HGETALL KEY", "HEXISTS KEY x", "HDEL KEY x",
    "ZADD KEY 1 x", "ZCARD KEY", "ZRANGEBYSCORE KEY 0 1", "ZREM KEY x", "XADD KEY MAXLEN ~ 10 1-0 m x",
    "XRANGE KEY - +", "XREAD COUNT 1 STREAMS KEY 0", "DEL KEY", "EVAL return(1) 1 KEY", f"EVALSHA {'0' * 40} 1 KEY",
)  # fmt: skip
"""What a tier sends, itself or in a script."""
_CLUSTER_COMMANDS = ("CLUSTER SLOTS",)
_NO_LIMIT = "set maxmemory, and maxmemory-policy volatile-ttl: a server that takes all the memory there is gets killed"
_NO_EVICTION = (
    "a full server refuses writes, and invalidations with them; raise maxmemory, or set maxmemory-policy volatile-ttl"
)
_WRONG_EVICTION = (
    "set maxmemory-policy volatile-ttl, which takes values first: this one may take a registry of writers, and if such "
    "a writer then dies, its change goes unnoticed until the ttl"
)
_NO_FENCE = (
    "set min-replicas-to-write 1 and min-replicas-max-lag 2 on every node: otherwise a primary that is cut off from "
    "them goes on answering readers on its side, for as long as nobody demotes it"
)


class Target:
    """The server that is checked, and a key of its own that the doctor may write.

    Attributes:
        info: the fields of INFO.
        timeout: that of the tiers which use the server.
    """

    def __init__(self, fleet: Fleet, info: dict[str, str], timeout: float) -> None:
        self.server = fleet.server
        self.info = info
        self.timeout = timeout
        self.namespace = fleet.namespace
        self.prefix = fleet.prefix
        self.is_cluster = fleet.is_cluster
        self.key = self.prefix + b"doctor:" + os.urandom(6).hex().encode()

    def number(self, name: str) -> int:
        """A number in INFO; 0 if it is missing."""
        text = self.info.get(name, "0")
        return int(text) if text.lstrip("-").isdigit() else 0

    async def setting(self, name: str) -> str | None:
        """A setting of the server; None if it does not exist or CONFIG GET is not allowed."""
        try:
            reply = await self.server.ask("CONFIG", "GET", name)
        except ResponseError:
            return None
        return str(reply[1].decode()) if len(reply) > 1 else None

    async def delete_keys(self) -> None:
        """Delete what was written. What may not be deleted expires."""
        await self.server.ask_all([("DEL", self.key + suffix) for suffix in (b"", b":n", b":c:*")])


# The command


@server_command
async def run(options: argparse.Namespace) -> int:
    """Check every server, and print the results. Returns 1 if there are findings."""
    printer = Printer()
    results: dict[str, list[Result]] = {}
    show = (lambda _: None) if options.json else partial(print_result, printer)
    async with connected(options) as fleet:
        server = fleet.server
        target = Target(fleet, fields_of(await server.ask("INFO")), options.tier_timeout)
        if not options.json:
            printer.line(f"{server.name}, namespace {options.namespace!r}")
        try:
            results[server.name] = await _checked(target, show)
        finally:
            await target.delete_keys()
    findings = sum(result.verdict == "finding" for found in results.values() for result in found)
    if options.json:
        servers = {name: [asdict(result) for result in found] for name, found in results.items()}
        print_json({"namespace": options.namespace, "findings": findings, "servers": servers})
    else:
        print_verdict(printer, findings)
    return 1 if findings else 0


async def _checked(target: Target, show: Callable[[Result], None]) -> list[Result]:
    results: list[Result] = []
    for check in _CHECKS:
        try:
            found = await check(target)
        except ResponseError as error:  # most likely a missing right, which `rights` reports
            found = [Result(check.__name__, "note", f"could not be looked at: {error_text(error)}")]
        for result in found:
            results.append(result)
            show(result)
            if result.name == "role":
                return results  # the server cannot be written to
    return results


# What a server reports about itself


async def version(target: Target) -> list[Result]:
    """Redis 6.2, in a cluster 7.0; Valkey 7.2."""
    is_valkey = target.info.get("server_name") == "valkey" or "valkey_version" in target.info
    name, field = ("Valkey", "valkey_version") if is_valkey else ("Redis", "redis_version")
    text = target.info.get(field, "")
    needed = (7, 2) if is_valkey else (7, 0) if target.is_cluster else (6, 2)
    found = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    says = f"{name} {text or 'of an unknown version'}"
    if found >= needed:
        return [Result("version", "fine", says)]
    where = " in a cluster" if target.is_cluster else ""
    do = f"a tier needs {name} {needed[0]}.{needed[1]} or later{where}; upgrade the server"
    return [Result("version", "finding", says, do)]


async def role(target: Target) -> list[Result]:
    """A tier uses primaries only, because a replica may be behind."""
    if target.info.get("role") != "master":
        says = f"a replica of {target.info.get('master_host')}:{target.info.get('master_port')}"
        return [Result("role", "finding", says, "give the URL of the primary, or reach it through Sentinels")]
    if target.info.get("loading") == "1":
        says = "a primary that is still loading its data"
        return [Result("role", "finding", says, "wait, or set appendonly no")]
    return []


async def cluster(target: Target) -> list[Result]:
    """All slots of a cluster must be served."""
    if not target.is_cluster:
        return []
    fields = fields_of(await target.server.ask("CLUSTER", "INFO"))
    state, served = fields.get("cluster_state"), fields.get("cluster_slots_ok")
    says = f"{state}, {served} of 16384 slots served"
    if state == "ok" and served == "16384":
        return [Result("cluster", "fine", says)]
    return [Result("cluster", "finding", says, "see CLUSTER NODES for what is missing")]


async def memory(target: Target) -> list[Result]:
    """Eviction must take values before registries of writers, which have the longest ttl of all keys."""
    policy, limit = target.info.get("maxmemory_policy", "unknown"), target.number("maxmemory")
    used = target.number("used_memory")
    if not limit:
        return [Result("memory", "finding", f"{size_text(used)} used, without a limit", _NO_LIMIT)]
    says = f"{size_text(used)} of {size_text(limit)} used, {policy}"
    if policy == "noeviction":
        is_full = used >= 0.8 * limit
        return [Result("memory", "finding", says, _NO_EVICTION) if is_full else Result("memory", "fine", says)]
    says = f"{says}, {target.number('evicted_keys'):,} evicted"
    if policy == "volatile-ttl":
        return [Result("memory", "fine", says)]
    return [Result("memory", "finding", says, _WRONG_EVICTION)]


async def persistence(target: Target) -> list[Result]:
    """A tier needs no persistence, since a restart makes all values invalid. It must not stop writes."""
    info = target.info
    stops = await target.setting("stop-writes-on-bgsave-error") != "no"
    saves = await target.setting("save")
    has_log = info.get("aof_enabled") == "1"
    if info.get("aof_last_write_status", "ok") != "ok":
        says, do = "the append-only file cannot be written", "free the disk, or set appendonly no"
    elif info.get("rdb_last_bgsave_status", "ok") != "ok" and stops and saves != "":
        says = "the last snapshot failed, so writes are refused, and invalidations with them"
        do = 'free the disk, or set save "": a tier needs no snapshots'
    elif has_log and await target.setting("appendfsync") == "always":
        says = "each write waits for the disk (appendfsync always)"
        do = "set appendonly no, or appendfsync everysec: a restart makes all values count as dead anyway"
    else:
        kinds = " and ".join(name for name, is_on in (("append-only file", has_log), ("snapshots", saves)) if is_on)
        return [Result("persistence", "fine", f"{kinds or 'none'}; a tier needs none")]
    return [Result("persistence", "finding", says, do)]


async def replication(target: Target) -> list[Result]:
    """A primary that is cut off from its replicas must stop answering."""

    def result(verdict: Literal["fine", "finding", "note"], says: str, do: str | None = None) -> list[Result]:
        return [Result("replication", verdict, says, do)]

    replicas = target.number("connected_slaves")
    least = await target.setting("min-replicas-to-write")
    lag = await target.setting("min-replicas-max-lag")
    if least is None and "min_slaves_good_slaves" in target.info:  # INFO has it only if the setting is not 0
        least = "1"
    if least not in (None, "0"):
        good = target.number("min_slaves_good_slaves")
        if good < int(least or 0):
            says = f"{good} good replicas, and writes need {least}: they are refused now"
            return result("finding", says, "bring the replicas back; until then tools run without the tier")
        return result("fine", f"{replicas} replicas, min-replicas-to-write {least}, max-lag {lag or 'unknown'} s")
    if target.is_cluster:
        period = await target.setting("cluster-node-timeout")
        bound = f"{int(period) / 1000:g} s" if period and period.isdigit() else "cluster-node-timeout"
        return result("note", f"{replicas} replicas; a primary that is cut off goes on answering for {bound}")
    if replicas and least == "0":
        return result("finding", f"{replicas} replicas, and min-replicas-to-write is 0", _NO_FENCE)
    if replicas:
        says = f"{replicas} replicas; whether min-replicas-to-write is set cannot be seen"
        return result("note", says, "see that it is 1, or let this user run CONFIG GET")
    return result("fine", "no replicas: a restart empties the cache, and nothing else")


async def clients(target: Target) -> list[Result]:
    """Each process has three connections, and one more for each event loop beyond the first."""
    connections, limit = target.number("connected_clients"), target.number("maxclients")
    says = f"{connections:,} of {limit:,}" if limit else f"{connections:,}"
    if limit and connections > 0.9 * limit:
        do = "raise maxclients: a process that gets no connection runs without the tier"
        return [Result("clients", "finding", says, do)]
    return [Result("clients", "fine", says)]


# What is tried


async def rights(target: Target) -> list[Result]:
    """Try every command of a tier."""
    lines = [*_COMMANDS, *(_CLUSTER_COMMANDS if target.is_cluster else ())]
    commands = [[target.key if part == "KEY" else part for part in line.split()] for line in lines]
    replies = await target.server.ask_all(commands)
    forbidden: dict[str, None] = {}
    refused: list[str] = []
    for line, reply in zip(lines, replies, strict=True):
        if isinstance(reply, ResponseError) and code_of(reply) == "NOPERM":
            pattern = [f"~{{{target.namespace}}}:*"] if " KEY" in line else []
            forbidden[" ".join((line.split()[0], *pattern))] = None
        elif isinstance(reply, ResponseError) and code_of(reply) in _REFUSALS:
            refused.append(error_text(reply))
    results = []
    if forbidden:
        do = "give the user the rights that the reference lists (docs/reference/tiers.md)"
        results.append(Result("rights", "finding", "; ".join(forbidden), do))
    elif not refused:
        results.append(Result("rights", "fine", f"all {len(lines)} commands that a tier uses are allowed"))
    if refused:
        do = "until writes are taken again, tools run without the tier"
        results.append(Result("writes", "finding", refused[0], do))
    return results


async def messages(target: Target) -> list[Result]:
    """What is appended to a stream must be read from it."""
    start = time.perf_counter()
    try:
        await target.server.ask("XADD", target.key, "1-0", "m", "doctor")
        found = await target.server.ask("XREAD", "COUNT", "1", "STREAMS", target.key, "0")
        await target.server.ask("DEL", target.key)
    except ResponseError:
        return []  # `rights` has reported it
    took = (time.perf_counter() - start) * 1000
    if not found:
        do = "is there a proxy that sends reads to a replica? Connect to the primary itself"
        return [Result("messages", "finding", "what was appended to a stream is not read from it", do)]
    return [Result("messages", "fine", f"appended and read within {took:.1f} ms")]


async def latency(target: Target) -> list[Result]:
    """Measure round trips of the commands that a tier sends most: a ping, a read, a script."""
    text, digest = SCRIPTS["read"]
    script: tuple[str | bytes, ...] = ("2", target.key + b":none", target.key + b":n", "5000", "0", '[[["*"],false]]')
    medians, slowest = [], 0.0
    try:
        await target.server.ask("EVAL", text, *script)
        commands: tuple[tuple[str | bytes, ...], ...] = (("PING",), ("GET", target.key), ("EVALSHA", digest, *script))
        for command in commands:
            times = []
            for _ in range(_TRIPS):
                before = time.perf_counter()
                await target.server.ask(*command)
                times.append(time.perf_counter() - before)
            medians.append(f"{command[0]!s} {statistics.median(times) * 1000:.2f} ms")
            slowest = max(slowest, sorted(times)[_TRIPS * 98 // 100])
    except ResponseError as error:
        return [Result("latency", "note", f"could not be measured: {error_text(error)}")]
    says = f"{', '.join(medians)} (medians of {_TRIPS}), 98 of 100 within {slowest * 1000:.1f} ms"
    if slowest > target.timeout:
        do = (
            f"the tier gives up after timeout={target.timeout:g} s: move the server closer, or raise timeout and "
            "max_staleness"
        )
    elif slowest > target.timeout / 5:
        do = "a hit takes one such trip: is the server in another region, or busy with something slow (SLOWLOG GET)?"
    else:
        return [Result("latency", "fine", says)]
    return [Result("latency", "finding", says, do)]


async def clock(target: Target) -> list[Result]:
    """The clock of the server, which leases and ages are counted by, may be wrong but must not jump."""
    before, started, one_trip = await _server_time(target)
    await asyncio.sleep(0.5)
    after, ended, other_trip = await _server_time(target)
    jump = (after - before) - (ended - started)
    offset = after - time.time()
    says = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(jump) > 0.1 + (one_trip + other_trip) / 2:
        says += f", and jumped by {jump:+.3f} s within half a second"
        return [Result("clock", "finding", says, "see to its time service")]
    return [Result("clock", "fine", f"{says}; it counts alone, and runs evenly")]


async def _server_time(target: Target) -> tuple[float, float, float]:
    """The time of the server, the time here in the middle of the trip that asked for it, and how long that took.

    All are in seconds. The server may have been asked at any moment of the trip.
    """
    before = time.monotonic()
    whole, micros = await target.server.ask("TIME")
    after = time.monotonic()
    return int(whole) + int(micros) / 1e6, (before + after) / 2, after - before


_CHECKS: tuple[Callable[[Target], Awaitable[list[Result]]], ...] = (
    version,
    role,
    cluster,
    memory,
    persistence,
    replication,
    clients,
    rights,
    messages,
    latency,
    clock,
)
