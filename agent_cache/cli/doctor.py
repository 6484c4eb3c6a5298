"""What a server says of itself: version, role, memory, persistence, replication, clients."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from agent_cache._fleet.findings import Check, finding, fine, note
from agent_cache._fleet.patient import Patient
from agent_cache._fleet.screen import amount

__all__ = ["clients", "cluster", "memory", "persistence", "replication", "role", "version"]


async def version(patient: Patient) -> AsyncIterator[Check]:
    """Redis 6.2, in a cluster 7.0; Valkey 7.2."""
    info = patient.info
    is_valkey = info.get("server_name") == "valkey" or "valkey_version" in info
    name = "Valkey" if is_valkey else "Redis"
    text = info.get("valkey_version" if is_valkey else "redis_version", "")
    needed = (7, 2) if is_valkey else (7, 0) if patient.servers.is_cluster else (6, 2)
    found = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    says = f"{name} {text or 'of an unknown version'}"
    if found >= needed:
        yield fine("version", says)
    else:
        where = " in a cluster" if patient.servers.is_cluster else ""
        yield finding(
            "version", says, f"a tier needs {name} {needed[0]}.{needed[1]} or later{where}; upgrade the server"
        )


async def role(patient: Patient) -> AsyncIterator[Check]:
    """A tier uses primaries alone: a replica may be behind."""
    if patient.info.get("role") != "master":
        primary = f"{patient.info.get('master_host')}:{patient.info.get('master_port')}"
        yield finding("role", f"a replica of {primary}", "give the URL of the primary, or reach it through Sentinels")
    elif patient.info.get("loading") == "1":
        yield finding("role", "a primary that is still loading its data", "wait, or set appendonly no")


async def memory(patient: Patient) -> AsyncIterator[Check]:
    """Eviction must take values before registries of writers: those have the longest ttl of all."""
    policy, limit = patient.info.get("maxmemory_policy", "unknown"), patient.number("maxmemory")
    used = patient.number("used_memory")
    share = used / limit if limit else 0.0
    of = f"{amount(used)} of {amount(limit)} used" if limit else f"{amount(used)} used, without a limit"
    if not limit:
        yield finding(
            "memory", of,
            "set maxmemory, and maxmemory-policy volatile-ttl: a server that takes all the memory there is gets killed",
        )  # fmt: skip
    elif policy == "noeviction":
        says = f"{of}, {policy}"
        if share < 0.8:
            yield fine("memory", says)
        else:
            yield finding(
                "memory", says,
                "a full server refuses writes, and invalidations with them; raise maxmemory, or set maxmemory-policy "
                "volatile-ttl",
            )  # fmt: skip
    elif policy == "volatile-ttl":
        yield fine("memory", f"{of}, {policy}, {patient.number('evicted_keys'):,} evicted")
    else:
        yield finding(
            "memory", f"{of}, {policy}, {patient.number('evicted_keys'):,} evicted",
            "set maxmemory-policy volatile-ttl, which takes values first: this one may take a registry of writers, and "
            "if such a writer then dies, its change goes unnoticed until the ttl",
        )  # fmt: skip


async def persistence(patient: Patient) -> AsyncIterator[Check]:
    """A tier needs none, since a restart makes all values count as dead. It must not stop writes."""
    info = patient.info
    stops = await patient.setting("stop-writes-on-bgsave-error") != "no"
    saves = await patient.setting("save")
    if info.get("aof_last_write_status", "ok") != "ok":
        yield finding("persistence", "the append-only file cannot be written", "free the disk, or set appendonly no")
    elif info.get("rdb_last_bgsave_status", "ok") != "ok" and stops and saves != "":
        yield finding(
            "persistence", "the last snapshot failed, so writes are refused, and invalidations with them",
            'free the disk, or set save "": a tier needs no snapshots',
        )  # fmt: skip
    elif info.get("aof_enabled") == "1" and await patient.setting("appendfsync") == "always":
        yield finding(
            "persistence", "each write waits for the disk (appendfsync always)",
            "set appendonly no, or appendfsync everysec: a restart makes all values count as dead anyway",
        )  # fmt: skip
    else:
        kinds = [
            name
            for name, is_on in (("append-only file", info.get("aof_enabled") == "1"), ("snapshots", saves))
            if is_on
        ]
        yield fine("persistence", f"{' and '.join(kinds) or 'none'}; a tier needs none")


async def replication(patient: Patient) -> AsyncIterator[Check]:
    """A primary that is cut off must stop to answer as one."""
    replicas = patient.number("connected_slaves")
    least = await patient.setting("min-replicas-to-write")
    lag = await patient.setting("min-replicas-max-lag")
    if least is None:  # INFO tells as well, if it is switched on
        least = "1" if "min_slaves_good_slaves" in patient.info else None
    if least not in (None, "0"):
        good = patient.number("min_slaves_good_slaves")
        if good < int(least or 0):
            yield finding(
                "replication", f"{good} good replicas, and writes need {least}: they are refused now",
                "bring the replicas back; until then tools run without the tier",
            )  # fmt: skip
        else:
            yield fine(
                "replication", f"{replicas} replicas, min-replicas-to-write {least}, max-lag {lag or 'unknown'} s"
            )
    elif patient.servers.is_cluster:
        period = await patient.setting("cluster-node-timeout")
        bound = f"{int(period) / 1000:g} s" if period and period.isdigit() else "cluster-node-timeout"
        yield note("replication", f"{replicas} replicas; a primary that is cut off goes on answering for {bound}")
    elif replicas and least == "0":
        yield finding(
            "replication", f"{replicas} replicas, and min-replicas-to-write is 0",
            "set min-replicas-to-write 1 and min-replicas-max-lag 2 on every node: else a primary that is cut off from "
            "them goes on answering readers on its side, for as long as nobody demotes it",
        )  # fmt: skip
    elif replicas:
        yield note(
            "replication", f"{replicas} replicas; whether min-replicas-to-write is set cannot be seen",
            "see that it is 1, or let this user run CONFIG GET",
        )  # fmt: skip
    else:
        yield fine("replication", "no replicas: a restart empties the cache, and nothing else")


async def clients(patient: Patient) -> AsyncIterator[Check]:
    """Each process takes three connections and one for each event loop beyond the first."""
    connected, limit = patient.number("connected_clients"), patient.number("maxclients")
    says = f"{connected:,} of {limit:,}" if limit else f"{connected:,}"
    if limit and connected > 0.9 * limit:
        yield finding("clients", says, "raise maxclients: a process that gets no connection runs without the tier")
    else:
        yield fine("clients", says)


async def cluster(patient: Patient) -> AsyncIterator[Check]:
    """All slots are served."""
    if patient.servers.is_cluster:
        reply = await patient.server.ask(b"CLUSTER", b"INFO")
        found = dict(line.split(":", 1) for line in reply.decode().split() if ":" in line)
        says = f"{found.get('cluster_state')}, {found.get('cluster_slots_ok')} of 16384 slots served"
        if found.get("cluster_state") == "ok" and found.get("cluster_slots_ok") == "16384":
            yield fine("cluster", says)
        else:
            yield finding("cluster", says, "see CLUSTER NODES for what is missing")
