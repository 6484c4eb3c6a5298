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
from typing import Any, Literal

from agent_cache.cli import tier_options
from agent_cache.cli.output import Printer, escaped, plural, print_json, shortened, size_text
from agent_cache.cli.tier_options import LONGEST_NAME, Result, duration_text
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote import FileTier, WriteIntent
from agent_cache.remote.backend import checked_namespace
from agent_cache.remote.cells import Cells
from agent_cache.remote.inspection import FileFacts, FileInspection, UnreadableError, file_facts, inspected

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
            checked_namespace(options.namespace, "FileTier")
            return job(path, options)
        except (ConfigurationError, RemoteTierError) as error:
            print(escaped(str(error).removeprefix("FileTier: ")), file=sys.stderr)
        except UnreadableError as error:
            print(f"the file cannot be used: {escaped(error)}; see agent-cache tier doctor", file=sys.stderr)
        return 2

    return run


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


# stats


@_command
def stats(path: str, options: argparse.Namespace) -> int:
    """Print values, bytes and hit rates of each root and tool, and what runs on the file."""
    with inspected(path, patience=options.timeout) as file:
        document = _stats_document(file, options.namespace)
    if options.json:
        print_json(document)
        return 0
    printer = Printer()
    for kind in ("root", "tool"):
        rows = [
            (
                shortened(name, LONGEST_NAME), f"{one['entries']:,}", size_text(one["bytes"]),
                f"{one['current'] / one['entries']:.0%}" if one["entries"] else "-",
                *((str(one["writers"]), "-" if one["hit_rate"] is None else f"{one['hit_rate']:.1%}")
                  if kind == "root" else ()),
            )
            for name, one in sorted(document[f"{kind}s"].items(), key=lambda each: (-each[1]["bytes"], each[0]))
        ]  # fmt: skip
        if rows:
            more = ("writers", "hit rate") if kind == "root" else ()
            printer.table((kind, "entries", "bytes", "current", *more), rows)
            printer.line()
    bound = f" of {size_text(document['max_bytes'])}" if document["max_bytes"] else ""
    unreadable = f"; {document['unreadable']:,} of another version or damaged" if document["unreadable"] else ""
    others = f"; {document['others']:,} in other namespaces" if document["others"] else ""
    writes = document["writes"]
    late = f", {writes['late']} not renewed" if writes["late"] else ""
    page = "missing" if document["sequence"] is None else document["sequence"]
    have = "process has" if document["processes"] == 1 else "processes have"
    pids = f": {', '.join(map(str, document['pids']))}" if document["pids"] else ""
    printer.line(
        f"{_entries(document['entries'])} in {document['namespace']!r}{unreadable}{others}; "
        f"{size_text(document['used_bytes'])}{bound} in the file"
    )
    printer.line(f"{document['cells']:,} cells; {plural(writes['running'], 'write')} running{late}; page {page}")
    printer.line(f"{document['processes']} {have} it open{pids}")
    if missing := _missing_text(document["pending"], document["pending_of_the_dead"]):
        printer.line(f"nobody uses the file: {missing}")
    return 0


def _stats_document(file: FileInspection, namespace: str) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    roots: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
    processes = file.processes()
    for _, report in processes:
        for root, calls in tier_options.reported_calls(tier_options.report_of(report)):
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
        **{name: totals[name] for name in ("entries", "bytes", "unreadable")},
        "used_bytes": file.used_bytes,
        "max_bytes": file.max_bytes,
        "others": file.others(namespace),
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


def _root_document(counts: Counter[str]) -> dict[str, Any]:
    calls = sum(counts[name] for name in tier_options.CALLS)
    return {
        **{name: counts[name] for name in ("entries", "bytes", "current", "writers")},
        **{name: counts.get(name) for name in tier_options.CALLS},  # None: no process has reported this root
        "hit_rate": counts["hits"] / calls if calls else None,
    }


def _missing_text(pending: int, dead: int) -> str:
    """Which invalidations are not in the file."""
    late = f"{plural(pending, 'process')} could not write an invalidation yet" if pending else ""
    who = "a process has" if dead == 1 else f"{dead} processes have"
    gone = f"{who} died with some, so the next one drops all values" if dead else ""
    return "; ".join(filter(None, (late, gone)))


# keys


@_command
def keys(path: str, options: argparse.Namespace) -> int:
    """Print entries: digests, tools, roots, sizes and ages."""
    tags, cells = tier_options.tags_of(options), Cells(options.namespace)
    listed: list[dict[str, Any]] = []
    is_cut = False
    named = {cells.read(tag)[-1]: ":".join(tag.split(":")[:2]) for tag in tags if ":" in tag}
    written = cells.written(tags)
    with inspected(path, patience=options.timeout) as file:
        for value in file.values(options.namespace):
            head = value.head
            if tags and written.isdisjoint(() if head is None else head.versions):
                continue
            if is_cut := len(listed) == options.limit:
                break
            listed.append(
                {
                    "digest": value.digest,
                    "tool": "" if head is None else head.tool,
                    "tags": sorted(value.tags(named)),  # an id is a digest, unless the command line names it
                    "bytes": value.size,
                    "age": None if value.age is None else round(value.age, 3),
                    "ttl": None if head is None else head.ttl,
                    "grace": None if head is None else head.grace,
                    "cost": None if head is None else round(head.cost, 6),
                    "expires_in": None if value.left is None else round(value.left, 3),
                    "is_current": value.is_current,
                }
            )
    if options.json:
        print_json({"path": str(file.path), "namespace": options.namespace, "entries": listed, "is_cut": is_cut})
        return 0
    rows = [
        (
            each["digest"][:_DIGEST],
            shortened(each["tool"], LONGEST_NAME),
            ", ".join((*each["tags"][:4], *(["..."] if len(each["tags"]) > 4 else []))),
            size_text(each["bytes"]),
            *("-" if each[one] is None else duration_text(each[one]) for one in ("age", "expires_in")),
            "yes" if each["is_current"] else "no",
        )
        for each in listed
    ]
    printer = Printer()
    if rows:
        printer.table(("digest", "tool", "depends on", "bytes", "age", "expires in", "current"), rows, left=3)
        printer.line()
    printer.line(f"{_entries(len(rows))}{f', and more: --limit {options.limit}' if is_cut else ''}")
    return 0


# clear


@_command
def clear(path: str, options: argparse.Namespace) -> int:
    """Drop entries by tag: begin and commit a write of these tags, which has no other effect."""
    tags = tier_options.tags_of(options)
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
    else:
        print(f"deleted {_entries(deleted)}" if options.all else f"cleared {', '.join(tags)}")
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
    facts, results = file_facts(path), list[Result]()
    try:
        results += _checks_outside(facts)
        with inspected(facts.path, patience=options.timeout) as file:
            results.extend(_checks_inside(file, facts))  # those before one that cannot be read are kept
    except UnreadableError as error:
        if not any(one.name == "integrity" and one.verdict == "finding" for one in results):
            results.append(Result("database", "finding", str(error), _LOCKED if "locked" in str(error) else _DAMAGED))
    findings = sum(result.verdict == "finding" for result in results)
    if options.json:
        print_json({"path": str(facts.path), "findings": findings, "checks": [asdict(result) for result in results]})
        return 1 if findings else 0
    printer = Printer()
    printer.line(str(facts.path))
    for result in results:
        tier_options.print_result(printer, result)
    tier_options.print_verdict(printer, findings)
    return 1 if findings else 0


def _checked(name: str, says: str, *faults: tuple[object, Literal["finding", "note"], str, str | None]) -> Result:
    """A result: the first fault that is there, as (whether it is, verdict, facts, what to do), else that it is fine."""
    for is_there, verdict, facts, do in faults:
        if is_there:
            return Result(name, verdict, facts, do)
    return Result(name, "fine", says)


def _checks_outside(facts: FileFacts) -> Iterator[Result]:
    """The files, who may change them, where they are, and the library."""
    name, folder = facts.path.name, str(facts.path.parent)
    sizes = {suffix: size_text(one.st_size) for suffix, one in facts.files.items()}
    parts = [sizes.get("", size_text(0)), *(f"{one} {sizes[one]}" for one in ("-wal", ".page") if one in sizes)]
    corrupt, lies = facts.path.with_name(f"{name}.corrupt"), ", ".join(parts)
    aside = f"{lies}; {corrupt.name} is a damaged one that was set aside"
    do = "look into why (disk, power, copies of an open file), then remove it"
    yield _checked("files", lies, (corrupt.exists(), "note", aside, do))
    loose = ", ".join(name + suffix for suffix, one in facts.files.items() if one.st_mode & 0o077)
    foreign = ", ".join(name + suffix for suffix, one in facts.files.items() if one.st_uid != os.geteuid())
    yield _checked(
        "permissions", "the files are readable and writable for this user alone",
        (facts.folder_mode & 0o002, "finding", f"everybody may write into {folder!r}",
         "use a directory of your own (mkdir -m 700)"),
        (loose, "finding", f"others may read or write {loose}",
         "chmod 600 them: values are in there, and invalidations"),
        (foreign, "note", f"{foreign} belong to another user",
         "processes of one user can share a file: run this as that user"),
    )  # fmt: skip
    do = "move it to a local disk, or share the cache by a RedisTier"
    yield _checked(
        "file system", facts.kind,
        (facts.is_network, "finding", f"{facts.kind}, of a network", do),
        (not facts.kind, "note", "of an unknown type", "it must be a local disk"),
    )  # fmt: skip
    needed, says = ".".join(map(str, _OLDEST_SQLITE)), f"SQLite {sqlite3.sqlite_version}"
    is_old = sqlite3.sqlite_version_info < _OLDEST_SQLITE
    yield _checked("version", says, (is_old, "finding", says, f"a tier needs SQLite {needed}: use a newer Python"))


def _checks_inside(file: FileInspection, facts: FileFacts) -> Iterator[Result]:
    """The log, the content, the page, who has it open, what is written, and the space."""
    mode, size = file.log_mode(), facts.files["-wal"].st_size if "-wal" in facts.files else 0
    says = f"a write-ahead log of {size_text(size)}"
    yield _checked(
        "log", says,
        (mode != "wal", "finding", f"the journal mode is {mode}",
         "another program has changed it; a process that opens the file sets WAL"),
        (size > _LONG_LOG, "finding", says,
         "a program reads the file without end (lsof), so the log cannot be reset"),
    )  # fmt: skip
    damages = "; ".join(file.damages())
    yield _checked("integrity", "quick_check finds nothing", (damages, "finding", damages, _DAMAGED))
    pids = [pid for pid, _ in file.processes()]
    says = "is that of another database" if ".page" in facts.files else "is not there"
    do = "the processes notice within a second and make a new one; never copy or remove these files one by one"
    is_missing = file.page_number is None
    yield _checked(
        "page", f"belongs to the database; sequence {file.page_number}",
        (is_missing and pids, "finding", says, do),
        (is_missing, "note", f"{says}; the next process that opens the file makes it", None),
    )  # fmt: skip
    have = "has" if len(pids) == 1 else "have"
    named = f": {', '.join(map(str, pids))}" if pids else ""
    yield Result("processes", "fine", f"{len(pids)} {have} the file open{named}")
    late, (pending, dead) = file.late(), file.pending()
    if late or not (pending or dead):
        do = "its process has died or was stopped; the next call ends it"
        says = f"{plural(late, 'write')} not renewed within the lease"
        yield _checked("writers", f"{plural(file.writes()[0], 'write')} running", (late, "note", says, do))
    if pending:
        do = "see why the file cannot be written (disk, permissions, locks), and the log of these processes"
        yield Result("pending", "finding", f"nobody uses the file: {_missing_text(pending, 0)}", do)
    if dead:
        yield Result("pending", "note", _missing_text(0, dead))
    used, bound = file.used_bytes, file.max_bytes
    says = f"{size_text(facts.free)} free; {size_text(used)}{f' of {size_text(bound)}' if bound else ''} in values"
    do = "free some, or lower max_bytes: on a full disk nobody uses the file until what was written is noted in it"
    yield _checked("space", says, (facts.free < max(_LITTLE_SPACE, (bound or 0) - used), "finding", says, do))


COMMANDS: Mapping[str, _Command] = {"stats": stats, "keys": keys, "clear": clear, "doctor": doctor}
"""By name. Each takes the path of the file, and returns its exit code."""
