"""A first file of rules for a server, made of what the server says of its tools.

Nothing in it is stored until a person says so: hints tell what reads, never what an answer depends on, nor how long it
lives. So each tool stands there as a proposal, a comment of one line. Whichever of these lines are made active or
deleted, what is left is a file of rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from agent_cache import Toolbox
from agent_cache.relay.messages import MODERN, Pages, RpcError
from agent_cache.relay.relay import listed_tools
from agent_cache.toolbox.box import has_rule
from agent_cache.values.compare import utf8_text

_PREFIX: Final = "io.modelcontextprotocol/"
_CLIENT: Final = {"name": "agent-cache", "version": "1"}
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
_ENVELOPE: Final = {
    f"{_PREFIX}protocolVersion": MODERN, f"{_PREFIX}clientInfo": _CLIENT, f"{_PREFIX}clientCapabilities": {},
}  # fmt: skip
_ID: Final = re.compile(r"(.+?)_?(?:id|ids|path|name|key|uri|url|slug|number)$", re.IGNORECASE)
"""A parameter that names an entity, and the entity: ``repo_path``, ``orderId``."""
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: Final = re.compile(r"[a-z]+|[A-Z][a-z]*")
_BY_ITSELF: Final = frozenset({
    "clock", "current", "date", "diff", "health", "latest", "now", "ping", "poll", "price", "progress", "random",
    "recent", "search", "staged", "status", "time", "today", "unstaged", "uuid", "weather",
})  # fmt: skip
"""Words in the name of a tool whose answer changes although no tool writes."""


async def introduced(ask: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Make the acquaintance of a server: its name, and its tools by name.

    Raises:
        RpcError: if it refuses.
    """
    envelope: dict[str, Any] = {}
    try:
        server = (await ask("initialize", _HELLO)).get("serverInfo") or {}
        await ask("notifications/initialized", {})
    except RpcError:  # a server that knows only the protocol without a handshake
        envelope = {"_meta": _ENVELOPE}
        hello = await ask("server/discover", envelope)
        server = (hello.get("_meta") or {}).get(f"{_PREFIX}serverInfo") or {}
    tools: dict[str, Mapping[str, Any]] = {}
    params, pages = dict(envelope), Pages()
    while True:
        page = await ask("tools/list", params)
        tools |= listed_tools(page)
        cursor = pages.next(page)
        if cursor is None:
            return str(server.get("name") or "mcp"), tools
        params = {**envelope, "cursor": cursor}


def starter_rules(namespace: str, tools: Iterable[Mapping[str, Any]]) -> str:
    """A file of rules, as TOML. The namespace is one of the characters of this that can stand in one."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", namespace).strip("-").lower() or "mcp"
    head = f'namespace = "{name}"\nhints = "kind"\nunknown = "write"\n'
    hint = "# Nothing is stored yet: remove the # in front of the lines that begin with tools.\n"
    return f"{head}\n{hint}\n{proposals(tools)}"


def proposals(tools: Iterable[Mapping[str, Any]], box: Toolbox | None = None) -> str:
    """Lines of a file of rules, which stand above its first table.

    Args:
        tools: as the server lists them. One whose name is no Unicode is left out: TOML cannot name it.
        box: the rules that there are. Tools that have one are left out.
    """
    named = [tool for tool in tools if utf8_text(tool["name"]) == tool["name"]]
    return "\n".join(_proposal(tool) for tool in named if box is None or not has_rule(box, tool["name"]))


def _proposal(tool: Mapping[str, Any]) -> str:
    title = _one_line(tool.get("description") or tool.get("title") or "")
    reads = (tool.get("annotations") or {}).get("readOnlyHint")
    if reads is True and not _BY_ITSELF.isdisjoint(map(str.lower, _WORDS.findall(tool["name"]))):
        why, rule = "it reads what changes by itself, so it is not stored: safe", 'kind = "watch"'
    elif reads is True:
        why = "it reads; safe if its answer depends on these tags alone, or may be 60 s old"
        rule = f'kind = "read", tags = {_tags_for(tool)}, ttl = 60'
    else:
        why = "it writes" if reads is False else "nobody says what it does"
        why += ": each call drops every stored answer; safe if it changes these tags alone"
        rule = f'kind = "write", tags = {_tags_for(tool)}'
    lines = [f"# {line}" for line in (title, why) if line]
    return "\n".join([*lines, f"# tools.{_key(tool['name'])} = {{ {rule} }}", ""])


def _key(name: str) -> str:
    """A name as a key of TOML. What a terminal would interpret is escaped."""
    if _BARE.fullmatch(name):
        return name
    quoted = json.dumps(name, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def _tags_for(tool: Mapping[str, Any]) -> str:
    """A proposal: the entity that the first parameter with the name of one has."""
    schema = tool.get("inputSchema") or {}
    required = schema.get("required")
    properties = schema.get("properties") or {}
    names = [name for name in properties if not isinstance(required, list) or name in required]
    for name in (*names, *properties):
        found = _ID.match(name)
        if found is not None and name.isidentifier():
            return json.dumps([f"{found[1].rstrip('_').lower()}:{{{name}}}"])
    noun = re.sub(r"[^a-z0-9]+", "_", tool["name"].lower()).strip("_").rpartition("_")[2] or "all"
    return json.dumps([noun])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= 100 else f"{line[:97]}..."
