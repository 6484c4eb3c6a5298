"""`agent-cache tier stats`, `keys`, `clear` and `doctor` for a tier in a file, from outside of its processes.

Exit codes: 0 fine or done, 1 findings (`doctor` alone), 2 usage, or a file that cannot be used.

All but `clear` open the file read-only. No command makes a file that is not there, replaces a damaged one, or keeps a
process waiting for longer than a transaction takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

from agent_cache.cli.output import Printer, escaped, plural, print_json, shortened, size_text
from agent_cache.cli.tier_options import (
    CALLS,
    LONGEST_NAME,
    Result,
    duration_text,
    print_result,
    print_verdict,
    report_of,
    reported_calls,
    tags_of,
)
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import FileTier, WriteIntent
from agent_cache.remote.backend import checked_namespace
from agent_cache.remote.cells import Cells
from agent_cache.remote.inspection import (
    FileFacts,
    FileInspection,
    StoredValue,
    UnreadableError,
    file_facts,
    inspected,
)

__all__ = ["COMMANDS"]

_OLDEST_SQLITE = (3, 35, 0)
_ROOTS_AT_ONCE = 100
_DIGEST = 12
_UNBOUNDED = 1 << 62
_LONG_LOG = 1 << 28
_LITTLE_SPACE = 1 << 26
_DAMAGED = "the next process that comes across it sets the file aside as PATH.corrupt and begins a new one"
_LOCKED = "see which program holds it (lsof), and run this again"

_Command = Callable[[str, argparse.Namespace], int]


def _command(job: _Command) -> _Command:
    """A command that prints errors of usage and of the file, and then returns 2."""

    @wraps(job)
    def run(path: str, options: argparse.Namespace) -> int:
        try:
            return job(path, options)
        except (ConfigurationError, RemoteTierError) as error:
            print(escaped(str(error).removeprefix("FileTier: ")), file=sys.stderr)
        except UnreadableError as error:
            print(f"the file cannot be used: {escaped(error)}; see agent-cache tier doctor", file=sys.stderr)
        return 2

    return run


def _namespace(options: argparse.Namespace) -> str:
    return checked_namespace(options.namespace, "FileTier")


# stats


@_command
def stats(path: str, options: argparse.Namespace) -> int:
    """Print values, bytes and hit rates of each root and tool, and what runs on the file."""
    namespace = _namespace(options)
    with inspected(path, patience=options.timeout) as file:
        shown = _stats_document(file, namespace)
    if options.json:
        print_json(shown)
    else:
        _print_stats(shown)
    return 0


def _stats_document(file: FileInspection, namespace: str) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    roots: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
    processes = file.processes()
    for root, calls in _reports(processes):
        roots[root].update(calls)
    for value in file.values(namespace):
        totals.update(entries=1, bytes=value.size, unreadable=int(value.head is None))
        tool = "" if value.head is None else value.head.tool
        for counts in (tools[tool], *(roots[root] for root in value.roots)):
            counts.update(entries=1, bytes=value.size, current=int(value.is_current))
    running, writers = file.writes()
    for root, count in writers.items():
        roots[root]["writers"] += count
    pending, of_the_dead = file.pending()
    return {
        "path": str(file.path),
        "namespace": namespace,
        "entries": totals["entries"],
        "bytes": totals["bytes"],
        "used_bytes": file.used_bytes,
        "max_bytes": file.max_bytes,
        "others": file.others(namespace),
        "unreadable": totals["unreadable"],
        "cells": file.cell_count,
        "writes": {"running": running, "late": file.late()},
        "processes": len(processes),
        "pids": [pid for pid, _ in processes],
        "pending": pending,
        "pending_of_the_dead": of_the_dead,
        "is_usable": not pending and not of_the_dead,
        "sequence": file.page_number,
        "roots": {root: _root_document(counts) for root, counts in sorted(roots.items())},
        "tools": {
            tool: {name: counts[name] for name in ("entries", "bytes", "current")}
            for tool, counts in sorted(tools.items())
        },
    }


def _reports(processes: list[tuple[int, str]]) -> list[tuple[str, dict[str, int]]]:
    """What the processes have counted, by root."""
    return [calls for _, report in processes for calls in reported_calls(report_of(report))]


def _root_document(counts: Counter[str]) -> dict[str, Any]:
    calls = sum(counts[name] for name in CALLS)
    return {
        **{name: counts[name] for name in ("entries", "bytes", "current", "writers")},
        **{name: counts.get(name) for name in CALLS},  # None: no process has reported this root
        "hit_rate": counts["hits"] / calls if calls else None,
    }


def _print_stats(document: dict[str, Any]) -> None:
    printer = Printer()

    def largest_first(counts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield from sorted(counts.items(), key=lambda each: (-each[1]["bytes"], each[0]))

    def common(name: str, counts: Mapping[str, Any]) -> tuple[str, ...]:
        share = f"{counts['current'] / counts['entries']:.0%}" if counts["entries"] else "-"
        return shortened(name, LONGEST_NAME), f"{counts['entries']:,}", size_text(counts["bytes"]), share

    if document["roots"]:
        rows = [
            (
                *common(name, root),
                str(root["writers"]),
                "-" if root["hit_rate"] is None else f"{root['hit_rate']:.1%}",
            )
            for name, root in largest_first(document["roots"])
        ]
        printer.table(("root", "entries", "bytes", "current", "writers", "hit rate"), rows)
        printer.line()
    if document["tools"]:
        rows = [common(name, tool) for name, tool in largest_first(document["tools"])]
        printer.table(("tool", "entries", "bytes", "current"), rows)
        printer.line()
    bound = f" of {size_text(document['max_bytes'])}" if document["max_bytes"] else ""
    unreadable = f"; {document['unreadable']:,} of another version or damaged" if document["unreadable"] else ""
    others = f"; {document['others']:,} in other namespaces" if document["others"] else ""
    printer.line(
        f"{document['entries']:,} {'entry' if document['entries'] == 1 else 'entries'} in {document['namespace']!r}"
        f"{unreadable}{others}; {size_text(document['used_bytes'])}{bound} in the file"
    )
    writes = document["writes"]
    late = f", {writes['late']} not renewed" if writes["late"] else ""
    printer.line(
        f"{document['cells']:,} cells; {plural(writes['running'], 'write')} running{late}; "
        f"page {'missing' if document['sequence'] is None else document['sequence']}"
    )
    pids = ", ".join(map(str, document["pids"]))
    count = document["processes"]
    printer.line(f"{count} {'process has' if count == 1 else 'processes have'} it open{f': {pids}' if pids else ''}")
    if document["pending"] or document["pending_of_the_dead"]:
        printer.line(f"nobody uses the file: {_missing_text(document['pending'], document['pending_of_the_dead'])}")


def _missing_text(pending: int, dead: int) -> str:
    """Which invalidations are not in the file."""
    parts = []
    if pending:
        parts.append(f"{plural(pending, 'process')} could not write an invalidation yet")
    if dead:
        processes = "a process has" if dead == 1 else f"{dead} processes have"
        parts.append(f"{processes} died with some, so the next one drops all values")
    return "; ".join(parts)


# keys


@_command
def keys(path: str, options: argparse.Namespace) -> int:
    """Print entries: digests, tools, roots, sizes and ages."""
    tags = tags_of(options)
    namespace = _namespace(options)
    cells = Cells(namespace)
    listed: list[dict[str, Any]] = []
    is_cut = False
    named = {cells.read(tag)[-1]: ":".join(tag.split(":")[:2]) for tag in tags if ":" in tag}
    written = cells.written(tags)
    with inspected(path, patience=options.timeout) as file:
        for value in file.values(namespace):
            versions = () if value.head is None else value.head.versions
            if tags and written.isdisjoint(versions):
                continue
            if is_cut := len(listed) == options.limit:
                break
            listed.append(_entry_document(value, named))
    if options.json:
        document = {"path": str(file.path), "namespace": options.namespace, "entries": listed, "is_cut": is_cut}
        print_json(document)
        return 0
    rows = [
        (
            each["digest"][:_DIGEST],
            shortened(each["tool"], LONGEST_NAME),
            ", ".join((*each["tags"][:4], *(["..."] if len(each["tags"]) > 4 else []))),
            size_text(each["bytes"]),
            "-" if each["age"] is None else duration_text(each["age"]),
            "-" if each["expires_in"] is None else duration_text(each["expires_in"]),
            "yes" if each["is_current"] else "no",
        )
        for each in listed
    ]
    printer = Printer()
    if rows:
        printer.table(("digest", "tool", "depends on", "bytes", "age", "expires in", "current"), rows, left=3)
        printer.line()
    more = f", and more: --limit {options.limit}" if is_cut else ""
    printer.line(f"{len(rows)} {'entry' if len(rows) == 1 else 'entries'}{more}")
    return 0


def _entry_document(value: StoredValue, named: Mapping[str, str]) -> dict[str, Any]:
    """Facts of an entry. The id of an entity is a digest, unless the command line names it."""
    head = value.head
    return {
        "digest": value.digest,
        "tool": "" if head is None else head.tool,
        "tags": sorted(value.tags(named)),
        "bytes": value.size,
        "age": None if value.age is None else round(value.age, 3),
        "ttl": None if head is None else head.ttl,
        "grace": None if head is None else head.grace,
        "cost": None if head is None else round(head.cost, 6),
        "expires_in": None if value.left is None else round(value.left, 3),
        "is_current": value.is_current,
    }


# clear


@_command
def clear(path: str, options: argparse.Namespace) -> int:
    """Drop entries by tag: begin and commit a write of these tags, which has no other effect."""
    tags = tags_of(options)
    if options.all == bool(tags):
        raise ConfigurationError("clear: name tags, such as order:7 or order, or --all for everything; not both")
    with inspected(path, patience=options.timeout) as file:  # a tier would make one, or replace what is no tier's
        place = file.path
    if options.all and not options.yes:
        print(f"This drops everything in {str(place)!r}, in every process. Add --yes.", file=sys.stderr)
        return 2
    deleted = asyncio.run(_clear(place, tags, options))
    if options.json:
        print_json({"path": str(place), "namespace": options.namespace, "tags": tags, "deleted": deleted})
    elif options.all:
        print(f"deleted {deleted:,} {'entry' if deleted == 1 else 'entries'}")
    else:
        print(f"cleared {', '.join(tags)}")
    return 0


async def _clear(path: Path, tags: list[str], options: argparse.Namespace) -> int:
    """Returns how many values were deleted: those under tags only become invalid."""
    # Without a bound of its own: the processes may have a larger one than the default.
    async with FileTier(path, namespace=options.namespace, timeout=options.timeout, max_bytes=_UNBOUNDED) as tier:
        if not tags:
            return await tier.clear()
        for start in range(0, len(tags), _ROOTS_AT_ONCE):
            some = tuple(tags[start : start + _ROOTS_AT_ONCE])
            write = WriteIntent(os.urandom(16).hex(), some, on_unreachable="refuse")
            await tier.begin(write)
            await tier.commit(write, some, failed=False, hold=0.0)
        if tier.stats()["pending"]:
            raise UnreadableError("it was locked between begin and commit, so run the command again")
    return 0


# doctor


@_command
def doctor(path: str, options: argparse.Namespace) -> int:
    """Check the files, and print the results. Returns 1 if there are findings."""
    try:
        with inspected(path, patience=options.timeout):
            pass  # what is no tier's is not checked
    except UnreadableError:
        pass  # reported below
    facts = file_facts(path)
    printer = Printer()
    results: list[Result] = []
    if not options.json:
        printer.line(str(facts.path))
    for result in _results(facts, options):
        results.append(result)
        if not options.json:
            print_result(printer, result)
    findings = sum(result.verdict == "finding" for result in results)
    if options.json:
        print_json({"path": str(facts.path), "findings": findings, "checks": [asdict(result) for result in results]})
    else:
        print_verdict(printer, findings)
    return 1 if findings else 0


def _results(facts: FileFacts, options: argparse.Namespace) -> Iterator[Result]:
    """The results of all checks; those of the inside end with the first that cannot be read."""
    for check in _CHECKS:
        yield from check(facts)
    is_damaged = False
    try:
        with inspected(facts.path, patience=options.timeout) as file:
            for look in _CHECKS_INSIDE:
                for result in look(file, facts):
                    is_damaged = is_damaged or (look is _check_integrity and result.verdict == "finding")
                    yield result
    except UnreadableError as error:
        if is_damaged:
            return
        yield Result("database", "finding", str(error), _LOCKED if "locked" in str(error) else _DAMAGED)


def _check_path(facts: FileFacts) -> list[Result]:
    """The database, and what lies beside it."""
    sizes = {suffix: size_text(one.st_size) for suffix, one in facts.files.items()}
    parts = [sizes.get("", size_text(0)), *(f"{name} {sizes[name]}" for name in ("-wal", ".page") if name in sizes)]
    corrupt = facts.path.with_name(facts.path.name + ".corrupt")
    if corrupt.exists():
        says = f"{', '.join(parts)}; {corrupt.name} is a damaged one that was set aside"
        return [Result("files", "note", says, "look into why (disk, power, copies of an open file), then remove it")]
    return [Result("files", "fine", ", ".join(parts))]


def _check_permissions(facts: FileFacts) -> list[Result]:
    """Whoever may write the files decides what tools answer."""
    if facts.folder_mode & 0o002:
        says = f"everybody may write into {str(facts.path.parent)!r}"
        return [Result("permissions", "finding", says, "use a directory of your own (mkdir -m 700)")]
    open_to_others = [facts.path.name + suffix for suffix, one in facts.files.items() if one.st_mode & 0o077]
    if open_to_others:
        says = f"others may read or write {', '.join(open_to_others)}"
        return [Result("permissions", "finding", says, "chmod 600 them: values are in there, and invalidations")]
    foreign = [facts.path.name + suffix for suffix, one in facts.files.items() if one.st_uid != os.geteuid()]
    if foreign:
        says = f"{', '.join(foreign)} belong to another user"
        return [Result("permissions", "note", says, "processes of one user can share a file: run this as that user")]
    return [Result("permissions", "fine", "the files are readable and writable for this user alone")]


def _check_file_system(facts: FileFacts) -> list[Result]:
    """Processes of several machines cannot share memory."""
    if facts.is_network:
        do = "move it to a local disk, or share the cache by a RedisTier"
        return [Result("file system", "finding", f"{facts.kind}, of a network", do)]
    if not facts.kind:
        return [Result("file system", "note", "of an unknown type", "it must be a local disk")]
    return [Result("file system", "fine", facts.kind)]


def _check_sqlite(_: FileFacts) -> list[Result]:
    """The version of the library, which is that of this Python."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        says = f"SQLite {sqlite3.sqlite_version}"
        return [Result("version", "finding", says, f"a tier needs SQLite {needed}: use a newer Python")]
    return [Result("version", "fine", f"SQLite {sqlite3.sqlite_version}")]


def _check_log(file: FileInspection, facts: FileFacts) -> list[Result]:
    """Readers must not wait for writers."""
    mode, size = file.log_mode(), facts.files["-wal"].st_size if "-wal" in facts.files else 0
    if mode != "wal":
        says = f"the journal mode is {mode}"
        return [
            Result("log", "finding", says, "another program has changed it; a process that opens the file sets WAL")
        ]
    if size > _LONG_LOG:
        says = f"a write-ahead log of {size_text(size)}"
        return [
            Result("log", "finding", says, "a program reads the file without end (lsof), so the log cannot be reset")
        ]
    return [Result("log", "fine", f"a write-ahead log of {size_text(size)}")]


def _check_integrity(file: FileInspection, _: FileFacts) -> list[Result]:
    """What SQLite's quick_check finds."""
    damages = file.damages()
    if damages:
        return [Result("integrity", "finding", "; ".join(damages), _DAMAGED)]
    return [Result("integrity", "fine", "quick_check finds nothing")]


def _check_page(file: FileInspection, facts: FileFacts) -> list[Result]:
    """The page must be that of the database."""
    if file.page_number is not None:
        return [Result("page", "fine", f"belongs to the database; sequence {file.page_number}")]
    says = "is that of another database" if ".page" in facts.files else "is not there"
    if file.processes():
        do = "the processes notice within a second and make a new one; never copy or remove these files one by one"
        return [Result("page", "finding", says, do)]
    return [Result("page", "note", f"{says}; the next process that opens the file makes it")]


def _check_writers(file: FileInspection, _: FileFacts) -> list[Result]:
    """Writes that never ended, and invalidations that are not in the file."""
    results = []
    if late := file.late():
        says = f"{plural(late, 'write')} not renewed within the lease"
        results.append(Result("writers", "note", says, "its process has died or was stopped; the next call ends it"))
    pending, of_the_dead = file.pending()
    if pending:
        says = f"nobody uses the file: {_missing_text(pending, 0)}"
        do = "see why the file cannot be written (disk, permissions, locks), and the log of these processes"
        results.append(Result("pending", "finding", says, do))
    if of_the_dead:
        results.append(Result("pending", "note", _missing_text(0, of_the_dead)))
    if not results:
        results.append(Result("writers", "fine", f"{plural(file.writes()[0], 'write')} running"))
    return results


def _check_processes(file: FileInspection, _: FileFacts) -> list[Result]:
    """Who has reported lately."""
    pids = [pid for pid, _ in file.processes()]
    named = f": {', '.join(map(str, pids))}" if pids else ""
    says = f"{len(pids)} {'has' if len(pids) == 1 else 'have'} the file open{named}"
    return [Result("processes", "fine", says)]


def _check_space(file: FileInspection, facts: FileFacts) -> list[Result]:
    """A full disk takes no invalidations."""
    used, bound = file.used_bytes, file.max_bytes
    says = f"{size_text(facts.free)} free; {size_text(used)}{f' of {size_text(bound)}' if bound else ''} in values"
    if facts.free < max(_LITTLE_SPACE, (bound or 0) - used):
        do = "free some, or lower max_bytes: on a full disk nobody uses the file until what was written is noted in it"
        return [Result("space", "finding", says, do)]
    return [Result("space", "fine", says)]


_CHECKS: tuple[Callable[[FileFacts], list[Result]], ...] = (
    _check_path,
    _check_permissions,
    _check_file_system,
    _check_sqlite,
)
_CHECKS_INSIDE: tuple[Callable[[FileInspection, FileFacts], list[Result]], ...] = (
    _check_log,
    _check_integrity,
    _check_page,
    _check_processes,
    _check_writers,
    _check_space,
)

COMMANDS: Mapping[str, _Command] = {"stats": stats, "keys": keys, "clear": clear, "doctor": doctor}
"""By name. Each takes the path of the file, and returns its exit code."""
