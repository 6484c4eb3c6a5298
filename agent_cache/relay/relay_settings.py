"""The settings of a relay, from one TOML file: the rules of its tools, what concerns loops and notifications; and a
first file for a server, made of what the server says of its tools.

`Toolbox.from_file` reads the rules. The other keys here are the relay's own.

Nothing in a first file is stored until a person says so: hints tell what reads, never what an answer depends on, nor
how long it lives. So each tool stands there as a proposal, a comment of one line. Whichever of these lines are made
active or deleted, what is left is a file of rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from agent_cache import AgentCacheSession, ConfigurationError, LoopPolicy, Toolbox, Write
from agent_cache.relay.messages import object_in
from agent_cache.toolbox.rules import compiled_tags, find_rule
from agent_cache.values.compare import escaped


class _Ends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a notification invalidates."""

    invalidate: Annotated[list[str], Meta(min_length=1)]


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay does beside the rules of its tools. The page on the relay says what each key means."""

    on_loop: Literal["notice", "warn", "short_circuit", "raise", "off"] = "notice"
    max_tool_repeats: Annotated[int, Meta(ge=2)] = 5
    vary: list[str] | None = None  # the rules read it, too
    new_turn_after: Annotated[float, Meta(gt=0, le=1e9)] | None = 60.0
    on: dict[Annotated[str, Meta(pattern="^notifications/")], _Ends] = {}


def load(path: str | Path | None) -> tuple[Toolbox, RelaySettings]:
    """Read a file of rules and settings, if there is one. Raises `ConfigurationError`, which names file and key."""
    if path is None:
        return Toolbox({}, namespace="mcp", hints="kind"), RelaySettings()
    box = Toolbox.from_file(path, hints="kind")
    try:
        settings = msgspec.toml.decode(Path(path).read_text("utf-8-sig"), type=RelaySettings)
        for method, ends in settings.on.items():
            compiled_tags(Write(ends.invalidate), ("params",), method)
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return box, settings


def new_session(settings: RelaySettings) -> AgentCacheSession:
    """A session of a host with these settings."""
    return AgentCacheSession(
        loop_detection=settings.on_loop != "off",
        on_loop="notice" if settings.on_loop == "off" else settings.on_loop,
        max_tool_repeats=settings.max_tool_repeats,
        loop_policy=LoopPolicy(max_execution_depth=None, new_turn_after=settings.new_turn_after),
        trace_size=1,  # nobody reads it
    )


# A first file

_HEAD: Final = """\
namespace = "{namespace}"
hints = "kind"
unknown = "write"

# Nothing is stored yet: remove the # in front of the lines that begin with tools.
"""
_PROPOSAL: Final = """
# {title}
# {why}
# tools.{key} = {{ {rule} }}
"""
_KINDS: Final = {
    "changes": ("it reads what changes by itself, so it is not stored: safe", 'kind = "watch"'),
    "reads": (
        "it reads; safe if its answer depends on these tags alone, or may be 60 s old",
        'kind = "read", tags = {tags}, ttl = 60',
    ),
    "writes": (
        "it may write: each call drops every stored answer; safe if it changes these tags alone",
        'kind = "write", tags = {tags}',
    ),
}
_ID: Final = re.compile(r"(.+?)_?(?:id|ids|(path|uri|url)|name|key|slug|number)$", re.IGNORECASE)
"""A parameter that names an entity, and the entity: ``repo_path``, ``orderId``. A path has several spellings."""
_WORDS: Final = re.compile(r"[a-z]+|[A-Z][a-z]*")
_BY_ITSELF: Final = frozenset({
    "clock", "current", "date", "diff", "health", "latest", "now", "ping", "poll", "price", "progress", "random",
    "recent", "search", "staged", "status", "time", "today", "unstaged", "uuid", "weather",
})  # fmt: skip
"""Words in the name of a tool whose answer changes although no tool writes."""


def starter_rules(namespace: str, tools: Iterable[Mapping[str, Any]]) -> str:
    """A file of rules, as TOML. The namespace is one of the characters of this that can stand in one."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", namespace).strip("-").lower() or "mcp"
    return _HEAD.format(namespace=name) + proposals(tools)


def proposals(tools: Iterable[Mapping[str, Any]], box: Toolbox | None = None) -> str:
    """Lines of a file of rules, which stand above its first table, for tools as a server lists them, but for those that
    have a rule in the box already.
    """
    named = [tool for tool in tools if tool["name"] and tool["name"].isprintable()]
    return "".join(_proposal(tool) for tool in named if box is None or find_rule(box.rules, tool["name"]) is None)


def _proposal(tool: Mapping[str, Any]) -> str:
    name, reads = tool["name"], tool.get("annotations", {}).get("readOnlyHint") is True
    changes = reads and not _BY_ITSELF.isdisjoint(map(str.lower, _WORDS.findall(name)))
    why, rule = _KINDS["changes" if changes else "reads" if reads else "writes"]
    title = " ".join((tool.get("description") or tool.get("title") or name).split())[:100]
    key = name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    return _PROPOSAL.format(title=escaped(title), why=why, key=key, rule=rule.format(tags=_tags_for(tool)))


def _tags_for(tool: Mapping[str, Any]) -> str:
    """A proposal: the entity that the first parameter with the name of one has."""
    schema = tool.get("inputSchema", {})
    properties, required = object_in(schema.get("properties")), schema.get("required")
    first = required if isinstance(required, list) else ()
    for name in sorted(properties, key=lambda one: one not in first):
        found = _ID.match(name)
        if found is not None and name.isidentifier():
            root = found[1].rstrip("_").lower()
            return json.dumps([root if found[2] else f"{root}:{{{name}}}"])
    return json.dumps([re.sub(r"[^a-z0-9]+", "_", tool["name"].lower()).strip("_").rpartition("_")[2] or "all"])
