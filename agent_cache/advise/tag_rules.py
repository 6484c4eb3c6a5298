"""The tags that follow from what a log shows: templates for `Read`, `Write` and the decorators.

Reads that the same writes change through the same values share a root, and no others do: so a write drops what it was
seen to change, and nothing beside it. A read with several such sets of writes has a tag for each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agent_cache.advise.calls import LoggedCall

if TYPE_CHECKING:
    from agent_cache.toolbox.rules import Rule

__all__ = ["Advice", "Kind", "Link", "Origin", "Resets", "ToolAdvice", "Why", "rules_of", "tag_templates"]

Kind = Literal["read", "write", "watch", "pass", "unknown"]
Why = Literal["given", "hint", "evidence", "name", "unknown"]
Origin = Literal["evidence", "same entity", "whole root"]


@dataclass(frozen=True, slots=True)
class ToolAdvice:
    """What the log shows of one tool.

    Attributes:
        tool: its name in the log.
        kind: ``"watch"`` reads what changes without a write; ``"pass"`` is neither a read, nor does an answer change
            after it; ``"unknown"`` is what nothing is known of, so that it has to be taken for a write of everything.
        why: how its kind is known. ``"name"``: its name alone says so, which is to be checked.
        reason: the same in half a sentence.
        calls: how often it was called.
        errors: how often it failed.
        repeats: how often it was called with arguments that were seen before.
        parameters: its arguments in the order seen, and whether every call had them.
        tags: templates of its tags. Empty for ``"watch"`` and ``"pass"``.
        parse: whether its templates need ``parse="json"``: its answers are JSON as text.
    """

    tool: str
    kind: Kind
    why: Why
    reason: str
    calls: int = 0
    errors: int = 0
    repeats: int = 0
    parameters: Mapping[str, bool] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    parse: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A write that changes a read, and through which values.

    Attributes:
        write: the tool that writes.
        write_path: the path of the value in its call, as in a template: ``"order_id"``, ``"result[orders][][id]"``.
            Several that must all meet are joined by colons, as in a tag: ``"repo:number"``. Empty: whatever the call.
        read: the tool that reads.
        read_path: the same of the read.
        root: the root of the tag that both have.
        origin: ``"evidence"``: it explains changes. ``"same entity"``: nothing contradicts it. ``"whole root"``: it is
            not known what the write leaves unchanged.
        changes: how many changes of answers it explains.
        exposed: how many intervals it met, changed or not.
        unchanged: how many of them did not change.
    """

    write: str
    write_path: str
    read: str
    read_path: str
    origin: Origin
    changes: int
    exposed: int
    unchanged: int
    root: str = ""


@dataclass(frozen=True, slots=True)
class Resets:
    """That runs of a log begin anew, so that its answers contradict each other.

    Attributes:
        count: how many reads were answered in a later run as before a write that an earlier run had seen take effect.
        changed: the read of the earlier run, for the first of them.
        again: the read of the later run.
    """

    count: int
    changed: LoggedCall
    again: LoggedCall


@dataclass(frozen=True, slots=True)
class Advice:
    """What a log says about caching its tools.

    Attributes:
        tools: each tool of the log, by name.
        links: what changes what.
        unknown: what could not be concluded, a sentence each.
        changes: how many changes of answers there were.
        explained: how many of them links explain.
        is_shared: whether the runs work on one state. If not, each begins anew, and nothing can be cached across them.
        resets: answers of later runs that contradict those of earlier ones. None if there are none. What writes leave
            unchanged is not known then.
    """

    tools: Mapping[str, ToolAdvice]
    links: tuple[Link, ...]
    unknown: tuple[str, ...]
    changes: int = 0
    explained: int = 0
    is_shared: bool = True
    resets: Resets | None = None


def rules_of(advice: Advice) -> dict[str, Rule]:
    """The rules of a `Toolbox`, by the names of the tools in the log.

    Where each run begins with a state of its own, they have ``scope="session"``.
    """
    from agent_cache.toolbox.rules import Pass, Read, Watch, Write

    scope: Literal["global", "session"] = "global" if advice.is_shared else "session"
    rules: dict[str, Rule] = {}
    for name, tool in advice.tools.items():
        parse: Literal["json"] | None = "json" if needs_parsing(tool) else None
        if tool.kind == "read":
            rules[name] = Read(list(tool.tags), parse=parse, scope=scope)
        elif tool.kind in ("write", "unknown"):
            rules[name] = Write(list(tool.tags), parse=parse, scope=scope)
        elif tool.kind == "watch":
            rules[name] = Watch()
        else:
            rules[name] = Pass()
    return rules


def needs_parsing(tool: ToolAdvice) -> bool:
    """Whether its templates look into answers that are JSON as text."""
    return tool.parse and any("{result[" in tag for tag in tool.tags)


Path = str


def tag_templates(
    links: Sequence[tuple[str, Path, str, Path]],
    *,
    reads: Sequence[str],
    writes: Sequence[str],
    names: Mapping[str, Sequence[str]],
    entity: Callable[[str, Path], Sequence[str]],
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Templates for tools, from links between them.

    Args:
        links: (write, its path, read, its path), as in `Link`.
        reads: the tools that read; one without a link gets a root that nothing writes.
        writes: the tools that write, likewise.
        names: the words that each tool is about, for the names of roots.
        entity: ``entity(tool, path)``: the words that a path is about.

    Returns:
        The templates of each tool, and the root of each link.
    """
    writers: dict[tuple[str, Path], set[tuple[str, Path]]] = defaultdict(set)
    paths: dict[str, list[Path]] = {read: [] for read in reads}
    for write, write_path, read, read_path in links:
        if read_path:
            writers[read, read_path].add((write, write_path))
            if read_path not in paths[read]:
                paths[read].append(read_path)
    for read in reads:
        paths[read].sort(key=lambda path: (path.startswith("result"), len(path), path))
        if not paths[read]:
            paths[read].append("")
    for write, _, read, read_path in links:
        if not read_path:
            writers[read, paths[read][0]].add((write, ""))
    roots: dict[frozenset[tuple[str, Path]], str] = {}
    taken: set[str] = set()

    def root_for(read: str, path: Path) -> str:
        group = frozenset(writers[read, path])
        if not group:  # nothing writes it: no other read needs to share its root
            group = frozenset({(read, path)})
        if group not in roots:
            words = entity(read, path) if path and ":" not in path else names.get(read, ())
            roots[group] = _free_name(["_".join(words), "_".join(names.get(read, ())), _as_name(read)], taken)
        return roots[group]

    # Reads by arguments name their roots first: theirs are the plain ones.
    tags: dict[str, list[str]] = defaultdict(list)
    order = sorted(reads, key=lambda read: (paths[read][0] == "", paths[read][0].startswith("result"), read))
    for read in order:
        for path in paths[read]:
            _add(tags[read], template_of(root_for(read, path), path))
    of_links = []
    for write, write_path, read, read_path in links:
        root = root_for(read, read_path or paths[read][0])
        of_links.append(root)
        _add(tags[write], template_of(root, write_path))
    for write in writes:
        if write not in tags:
            tags[write].append(_free_name([_as_name(write)], taken))
    return {tool: tuple(_without_covered(own)) for tool, own in tags.items()}, of_links


def _add(tags: list[str], tag: str) -> None:
    if tag not in tags:
        tags.append(tag)


def _without_covered(tags: Sequence[str]) -> list[str]:
    """Without those whose whole root is among them, too."""
    whole = {tag for tag in tags if ":" not in tag}
    return [tag for tag in tags if tag in whole or tag.partition(":")[0] not in whole]


def template_of(root: str, path: Path) -> str:
    """The template of the tag that a path becomes. One that is empty is that of the whole root."""
    return ":".join([root, *(f"{{{one}}}" for one in path.split(":") if one)])


def _as_name(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "tool"


def _free_name(wishes: Sequence[str], taken: set[str]) -> str:
    wanted = [_as_name(wish) for wish in wishes if wish]
    for name in wanted:
        if name not in taken:
            taken.add(name)
            return name
    number = 2
    while f"{wanted[0]}_{number}" in taken:
        number += 1
    taken.add(f"{wanted[0]}_{number}")
    return f"{wanted[0]}_{number}"
