"""`agent-cache tier stats`, `keys`, `clear` and `doctor`: what a tier holds, from outside of its processes, and whether
its server or file is fit for it.

Exit codes: 0 fine or done, 1 findings (`doctor` alone), 2 usage, or a server or file that cannot be used.

A server and a file are looked at in the same way. All but `clear` and `doctor` only read, and no command makes a file
that is not there; one that is damaged is set aside, as any process does. No message contains a URL, which may have a
password in it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from agent_cache.cli.output import Printer, escaped, plural, print_json, shortened, size_text
from agent_cache.core.options import count, seconds
from agent_cache.core.tags import parse_tag
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import WriteIntent, path_of_url
from agent_cache.remote.backend import checked_namespace, entries_of
from agent_cache.remote.cells import Cells, root_of_cell

__all__ = ["add_options", "run"]

_URL_VARIABLE: Final = "AGENT_CACHE_URL"
_LONGEST_NAME: Final = 60
_HINT: Final = "; see agent-cache tier doctor"


# Options


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the options of a command."""
    descriptions = {
        "stats": "Counts what a tier holds for each resource root.",
        "keys": "Lists entries: digests, tags and sizes. Neither arguments nor values are shown.",
        "clear": "Drops entries by tag, in every process and at once, as a write to these tags would.",
        "doctor": "Checks that a server or a file is fit for a tier. It writes and deletes some small keys of its own "
        "on a server, and nothing into a file.",
    }
    parser.description = f"{descriptions[command]} Exit codes: 0 fine or done, 1 findings, 2 usage or no answer."
    parser.add_argument(
        "--url",
        default=os.environ.get(_URL_VARIABLE),
        help=f"redis://[user:password@]host:port/0, rediss://... or unix://...; of a cluster, any node. Or a file: "
        f"sqlite:///relative.db, sqlite:////absolute.db, ./relative.db or /absolute.db. Default: the environment "
        f"variable {_URL_VARIABLE}, which other users of the machine do not see",
    )
    parser.add_argument("--namespace", default="agent_cache", help="of the tier (default: agent_cache)")
    help_text = "for the server or the file to answer (default: 5)"
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help=help_text)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    if command == "keys":
        help_text = "only entries that `clear` with the same tags would drop"
        parser.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help=help_text)
        parser.add_argument("--limit", type=int, default=100, metavar="N", help="entries to list (default: 100)")
    elif command == "clear":
        parser.add_argument("tags", nargs="*", metavar="TAG", help="such as order:7, or order for all orders")
        help_text = "everything under the namespace, or in the file; needs --yes"
        parser.add_argument("--all", action="store_true", help=help_text)
        parser.add_argument("--yes", action="store_true", help="confirms --all")


def _tags_of(options: argparse.Namespace) -> list[str]:
    """The tags among the options.

    Raises:
        ConfigurationError: if one is not valid. A URL is not repeated.
    """
    if any("://" in tag for tag in options.tags):
        raise ConfigurationError(
            "a tag has no :// in it; did you mean --url URL? A colon in an id is written %3A: page:https%3A//host"
        )
    return [parse_tag(tag) and parse_tag(tuple(map(unquote, tag.split(":")))) for tag in options.tags]


def _named(options: argparse.Namespace) -> tuple[str | None, str]:
    """The path of the file that ``--url`` names, None if it names a server, and the namespace.

    A text that is no URL is a path if it begins as one, or if there is such a file.

    Raises:
        ConfigurationError: if one of them is not valid, there is no such file, or nothing in it.
    """
    url: str = options.url
    is_path = "://" not in url and (url.startswith(("/", "./", "../", "~")) or Path(url).is_file())
    path = url if is_path else path_of_url(url)
    file = None if path is None else Path(os.path.expanduser(path))  # noqa: PTH111 - a home that nobody knows stays
    if file is not None and not (file.is_file() and file.stat().st_size):
        raise ConfigurationError(
            f"there is no file {path!r}, or it is empty; a tier makes it when a program first uses it"
        )
    return path, checked_namespace(options.namespace, "--namespace")


# The tier


@asynccontextmanager
async def _opened(options: argparse.Namespace) -> AsyncIterator[tuple[str, dict[str, Any], Any]]:
    """Open what the options name: a name of it for people, the same for JSON, and the tier.

    Raises:
        ConfigurationError: if the URL or the namespace is not valid, or there is no such file.
        ConnectionError: if it cannot be used.
    """
    path, namespace = _named(options)
    if path is not None:
        from agent_cache.remote import FileTier

        async with FileTier(path, namespace=namespace, timeout=options.timeout) as file:
            yield str(file.path), {"path": str(file.path), "namespace": namespace}, file
        return
    from agent_cache.remote import RedisTier
    from agent_cache.remote.deployments import Deployment

    client = Deployment.of_url(options.url).connect(options.timeout)
    async with client, asyncio.timeout(options.timeout):
        info = await client.info("cluster")
    settings = {"namespace": namespace, "timeout": options.timeout, "max_staleness": 1.2 * options.timeout}
    async with RedisTier.from_url(options.url, cluster=bool(info.get("cluster_enabled")), **settings) as server:
        names = list(server.stats()["servers"])
        yield ", ".join(names), {"servers": names, "namespace": namespace}, server


def run(options: argparse.Namespace, *, command: str) -> int:
    """Run `stats`, `keys`, `clear` or `doctor`. A file needs no redis-py."""
    if not options.url:
        print(f"no tier is given: use --url, or set {_URL_VARIABLE}", file=sys.stderr)
        return 2
    log = logging.StreamHandler()
    log.addFilter(lambda record: "damaged" in record.getMessage())  # of the rest the command says what is wrong
    logging.getLogger("agent_cache").addHandler(log)
    try:
        seconds(options.timeout, "--timeout")
        return asyncio.run({"stats": _stats, "keys": _keys, "clear": _clear, "doctor": _doctor}[command](options))
    except RemoteTierError as error:
        print(f"{escaped(error)}{_HINT}", file=sys.stderr)
    except (ConfigurationError, ModuleNotFoundError) as error:  # the user has called no function
        print(re.sub(r"\A(RedisTier(\.from_url)?|FileTier): ", "", escaped(error)), file=sys.stderr)
    except Exception as error:
        is_known = isinstance(error, OSError | TimeoutError) or type(error).__module__.partition(".")[0] == "redis"
        if isinstance(error, BrokenPipeError) or not is_known:  # of the output
            raise
        cause: BaseException = error  # that of redis-py says of a missing right that there is no cluster
        while type(cause).__name__ == "RedisClusterException" and (inner := cause.__cause__ or cause.__context__):
            cause = inner
        reason = str(cause) or f"no answer within {options.timeout:g} s"
        print(f"it cannot be used: {escaped(reason)}{_HINT if command != 'doctor' else ''}", file=sys.stderr)
    finally:
        logging.getLogger("agent_cache").removeHandler(log)
    return 2


# stats


async def _stats(options: argparse.Namespace) -> int:
    """Print entries and bytes of each resource root."""
    totals: Counter[str] = Counter(entries=0, bytes=0, unreadable=0)
    roots: defaultdict[str, Counter[str]] = defaultdict(lambda: Counter(entries=0, bytes=0, current=0))
    async with _opened(options) as (_, document, tier):
        async for entry, cells in entries_of(tier, {}):
            totals.update(entries=1, bytes=entry["bytes"], unreadable=not cells)
            for root in {root_of_cell(cell) for cell in cells} - {""}:
                roots[root].update(entries=1, bytes=entry["bytes"], current=entry["is_current"])
    if options.json:
        print_json({**document, **totals, "roots": dict(sorted(roots.items()))})
        return 0
    rows = [
        (shortened(name, _LONGEST_NAME), f"{of['entries']:,}", size_text(of["bytes"]), f"{of['current']:,}")
        for name, of in sorted(roots.items(), key=lambda each: (-each[1]["bytes"], each[0]))
    ]
    unreadable = f"; {totals['unreadable']:,} of another version or damaged" if totals["unreadable"] else ""
    last = f"{_entries_text(totals['entries'])} in {options.namespace!r}, {size_text(totals['bytes'])}{unreadable}"
    _print_table(("root", "entries", "bytes", "current"), rows, last)
    return 0


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], last: str, *, left: int = 1) -> None:
    printer = Printer()
    if rows:
        printer.table(head, rows, left=left)
        printer.line()
    printer.line(last)


def _entries_text(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


# keys


async def _keys(options: argparse.Namespace) -> int:
    """Print entries: digests, tools, tags, sizes and ages."""
    count(1, options.limit, "--limit")
    tags, is_cut = _tags_of(options), False
    listed: list[dict[str, Any]] = []
    names = Cells(options.namespace)
    written = names.written(tags)
    named = {names.read(tag)[-1]: ":".join(tag.split(":")[:2]) for tag in tags if ":" in tag}
    async with _opened(options) as (_, document, tier), aclosing(entries_of(tier, named)) as found:
        async for entry, cells in found:
            if not tags or not written.isdisjoint(cells):
                if is_cut := len(listed) == options.limit:
                    break
                listed.append(entry)
    if options.json:
        print_json({**document, "entries": listed, "is_cut": is_cut})
        return 0
    rows = [
        (
            each["digest"][:12],
            shortened(each["tool"], _LONGEST_NAME),
            shortened(", ".join(each["tags"]), _LONGEST_NAME),
            size_text(each["bytes"]),
            *["-" if each[name] is None else f"{each[name]:.0f} s" for name in ("age", "expires_in")],
            "yes" if each["is_current"] else "no",
        )
        for each in listed
    ]
    last = f"{_entries_text(len(rows))}{f', and more: --limit {options.limit}' if is_cut else ''}"
    _print_table(("digest", "tool", "depends on", "bytes", "age", "expires in", "current"), rows, last, left=3)
    return 0


# clear


async def _clear(options: argparse.Namespace) -> int:
    """Drop entries by tag: begin and commit a write of these tags, which has no other effect."""
    tags = tuple(_tags_of(options))
    if options.all == bool(tags):
        raise ConfigurationError("clear: name tags, such as order:7 or order, or --all for everything; not both")
    async with _opened(options) as (name, document, tier):
        if options.all and not options.yes:
            print(f"This drops everything in {name}, in every process. Add --yes.", file=sys.stderr)
            return 2
        deleted = await tier.clear() if options.all else 0
        if tags:
            write = WriteIntent(os.urandom(16).hex(), tags, on_unreachable="refuse")
            await tier.begin(write)
            await tier.commit(write, tags, failed=False, hold=0.0)
            if tier.stats()["pending"]:
                raise ConnectionError("it was lost between begin and commit: run the command again, to be sure")
    if options.json:
        print_json({**document, "tags": tags, "deleted": deleted})
    else:
        print(f"deleted {_entries_text(deleted)}" if options.all else f"cleared {', '.join(tags)}")
    return 0


# doctor

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


async def _doctor(options: argparse.Namespace) -> int:
    """Check a server or a file, and print the results. Returns 1 if there are findings."""
    path, namespace, printer, results = *_named(options), Printer(), list[_Result]()
    async for one in _of_server(options, namespace) if path is None else _of_file(path, options):
        results.append(one)
        if not options.json:
            printer.line("  ", (f"{one.verdict:<7}", _STYLES[one.verdict]), f"  {one.name:<12} {one.says}")
            if one.do:
                printer.line(f"{'':24}-> {one.do}")
    findings = sum(result.verdict == "finding" for result in results)
    if options.json:
        print_json({"namespace": namespace, "findings": findings, "checks": [asdict(result) for result in results]})
    else:
        printer.line(plural(findings, "finding") if findings else "nothing is wrong")
    return 1 if findings else 0


# doctor, of a server


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
    return _result("rights", refused, says or f"all {len(_COMMANDS)} commands that a tier uses are allowed", do)


# doctor, of a file


async def _of_file(path: str, options: argparse.Namespace) -> AsyncIterator[_Result]:
    import sqlite3

    from agent_cache.remote.file import checked_path

    place = checked_path(path)  # on Windows it says so; the next module cannot be imported there
    from agent_cache.remote.database import beside, require_ours

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
