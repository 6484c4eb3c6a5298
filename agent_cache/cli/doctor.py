"""`agent-cache tier doctor`: whether the server or the file of a tier is fit for it, and the remedy if it is not.

The doctor writes some small keys of its own on a server and deletes them, and nothing into a file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from agent_cache.cli.output import Printer, print_json, size_text
from agent_cache.remote.backend import checked_namespace

__all__ = ["examine"]

_COMMANDS: Final = (
    "PING", "INFO replication", "TIME", "SET KEY x PX 5000", "GET KEY", "DEL KEY", "INCR KEY", "PEXPIRE KEY 5000",
    "DEL KEY", "HSET KEY x 1", "HGET KEY x", "HMGET KEY x", "HVALS KEY", "HGETALL KEY", "HEXISTS KEY x", "HDEL KEY x",
    "ZADD KEY 1 x", "ZCARD KEY", "ZRANGEBYSCORE KEY 0 1", "ZREM KEY x", "XADD KEY MAXLEN ~ 10 1-0 m x",
    "XRANGE KEY - +", "XREAD COUNT 1 STREAMS KEY 0", "DEL KEY", "EVAL return(1) 1 KEY", f"EVALSHA {'0' * 40} 1 KEY",
)  # fmt: skip
"""What a tier sends, itself or in a script."""
_STYLES: Final = {"fine": "green", "finding": "red"}


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a check: the facts, and what to do, if anything."""

    name: str
    verdict: Literal["fine", "finding"]
    says: str
    do: str | None = None


def _result(name: str, problem: object, says: str, do: str) -> _Result:
    """A finding with its remedy if there is a problem; else the facts are fine."""
    return _Result(name, "finding", says, do) if problem else _Result(name, "fine", says)


async def examine(options: argparse.Namespace, path: str | None) -> int:
    """Check a server, or the file at a path, and print the results. Returns 1 if there are findings.

    Raises:
        ConfigurationError: if the options name none, or it is no tier's.
        OSError, redis.RedisError: if it cannot be used.
    """
    namespace, printer, results = checked_namespace(options.namespace, "--namespace"), Printer(), []
    checks = _of_server(options, namespace) if path is None else _of_file(path, options)
    async for one in checks:
        results.append(one)
        if not options.json:
            printer.line("  ", (f"{one.verdict:<7}", _STYLES[one.verdict]), f"  {one.name:<12} {one.says}")
            if one.do:
                printer.line(f"{'':24}-> {one.do}")
    findings = sum(result.verdict == "finding" for result in results)
    if options.json:
        print_json({"namespace": namespace, "findings": findings, "checks": [asdict(result) for result in results]})
    else:
        wrong = "thing is wrong" if findings == 1 else "things are wrong"
        printer.line(f"{findings} {wrong}" if findings else "nothing is wrong")
    return 1 if findings else 0


# A server


async def _of_server(options: argparse.Namespace, namespace: str) -> AsyncIterator[_Result]:
    import agent_cache.remote.redis  # noqa: F401  # isort: skip  # its text names the extra
    from redis.exceptions import RedisError, ResponseError

    from agent_cache.remote.deployments import Deployment

    deployment, info = Deployment.of_url(options.url), dict[str, Any]()
    async with deployment.connect(options.timeout) as client, asyncio.timeout(options.timeout):
        with suppress(ResponseError):  # the last check says so
            info = await client.info()
    is_cluster = bool(info.get("cluster_enabled"))
    if is_cluster:  # of its nodes the one that has the namespace
        async with Deployment.of_url(options.url, cluster=True).connect(options.timeout) as client:
            node = client.get_node_from_key(f"{{{namespace}}}")
        deployment = Deployment.of_url(options.url, options={"host": node.host, "port": node.port})
    key = f"{{{namespace}}}:doctor:{os.urandom(6).hex()}"
    async with deployment.connect(options.timeout) as client:
        if info:
            info = await client.info()
            yield _version(info, is_cluster=is_cluster)
            if info.get("role") != "master" or info.get("loading"):
                do = "give the URL of the primary, or wait until it has loaded"
                kind = "a Sentinel" if "sentinel_masters" in info else "a replica, or still loading its data"
                yield _Result("role", "finding", kind, do)
                return
            yield _memory(info)
            yield _replication(info, is_cluster=is_cluster)
        try:
            yield await _rights(client, namespace, key)
        finally:
            with suppress(RedisError):  # what may not be deleted expires
                await client.delete(key)


def _version(info: dict[str, Any], *, is_cluster: bool) -> _Result:
    """Redis 6.2, in a cluster 7.0; Valkey 7.2."""
    is_valkey = "valkey_version" in info
    name, text = ("Valkey", info["valkey_version"]) if is_valkey else ("Redis", info.get("redis_version", "0"))
    needed = (7, 2) if is_valkey else (7, 0) if is_cluster else (6, 2)
    is_old = tuple(int(part) for part in re.findall(r"\d+", str(text))[:2]) < needed
    return _result("version", is_old, f"{name} {text}", f"a tier needs {name} {needed[0]}.{needed[1]} or later")


def _memory(info: dict[str, Any]) -> _Result:
    """Eviction must take values before registries of writers, which have the longest ttl of all keys."""
    policy, limit, used = info.get("maxmemory_policy", "unknown"), info.get("maxmemory", 0), info.get("used_memory", 0)
    of_limit = f"of {size_text(limit)}" if limit else "used, without a limit"
    says = f"{size_text(used)} {of_limit}, {policy}, {info.get('evicted_keys', 0):,} evicted"
    if limit and policy == "noeviction":
        do = "a full server refuses writes, and invalidations with them; raise maxmemory, or set volatile-ttl"
        return _result("memory", used >= 0.8 * limit, says, do)
    do = "set maxmemory, and maxmemory-policy volatile-ttl: others may forget a writer, which then dies unnoticed"
    return _result("memory", not limit or policy != "volatile-ttl", says, do)


def _replication(info: dict[str, Any], *, is_cluster: bool) -> _Result:
    """A primary that is cut off from its replicas must stop answering. INFO counts those that are not, if it does."""
    replicas, good = info.get("connected_slaves", 0), info.get("min_slaves_good_slaves")
    if good is not None:
        do = "bring the replicas back: writes are refused now"
        return _result("replication", not good, f"{replicas} replicas, {good} of them reached", do)
    do = (
        "set min-replicas-to-write 1 and min-replicas-max-lag 2 on every node: otherwise a primary that is cut off "
        "from them goes on answering readers on its side, for as long as nobody demotes it"
    )
    return _result("replication", replicas and not is_cluster, f"{replicas} replicas", do)


async def _rights(client: Any, namespace: str, key: str) -> _Result:
    """Try every command of a tier."""
    from redis.exceptions import NoScriptError, RedisError

    refused: dict[str, dict[str, None]] = {}  # the commands, by the reason
    for line in _COMMANDS:
        try:
            await client.execute_command(*[key if part == "KEY" else part for part in line.split()])
        except NoScriptError:
            pass
        except RedisError as error:
            place = f" ~{{{namespace}}}:*" if " KEY" in line else ""
            refused.setdefault(f"{place}: {error}", {})[line.split()[0]] = None
    do = "give the user the rights that the guide lists (docs/how-to/run-a-fleet.md), and let the server take writes"
    says = "; ".join(f"{', '.join(names)}{reason}" for reason, names in refused.items())
    says = says or f"all {len(_COMMANDS)} commands that a tier uses are allowed"
    return _result("rights", refused, says, do)


# A file


async def _of_file(path: str, options: argparse.Namespace) -> AsyncIterator[_Result]:
    from agent_cache.remote.database import beside, require_ours
    from agent_cache.remote.file import checked_path

    place = checked_path(path)
    try:
        with closing(sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True, timeout=options.timeout)) as db:
            require_ours(db, place)
            damages = "; ".join(str(text) for (text,) in db.execute("pragma quick_check(5)") if text != "ok")
    except sqlite3.Error as error:
        damages = str(error)
    files = [one for suffix in ("", "-wal", "-shm", ".page") if (one := beside(place, suffix)).exists()]
    exposed = ", ".join(one.name for one in files if one.stat().st_mode & 0o077)
    says = f"others may read or write {exposed}" if exposed else "only this user may read and write the files"
    yield _result("permissions", exposed, says, "chmod 600 them: values are in there, and invalidations")
    disk = os.statvfs(place.parent)
    left = disk.f_bavail * disk.f_frsize
    is_full = left < 1 << 20 or (disk.f_files and not disk.f_favail)
    do = "make room: until an invalidation can be written, nobody uses the file"
    yield _result("space", is_full, f"{size_text(left)} and {disk.f_favail:,} files are free on its disk", do)
    do = "see which program holds it (lsof); a damaged one is set aside by the next process that uses it"
    yield _result("integrity", damages, damages or "quick_check finds nothing", do)
