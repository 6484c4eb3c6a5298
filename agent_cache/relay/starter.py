"""A first file of rules for a server, made of what the server says of its tools.

Nothing in it is stored until a person says so: hints tell what reads, never what an answer depends on, nor how long it
lives. So each tool that may be stored stands there with a proposal in comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from agent_cache import Toolbox
from agent_cache.relay.messages import Pages, RpcError
from agent_cache.relay.relay import listed_tools
from agent_cache.toolbox.box import has_rule
from agent_cache.values.compare import utf8_text

__all__ = ["introduced", "starter_rules"]

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]

_HANDSHAKE = "2025-11-25"
_MODERN = "2026-07-28"
_CLIENT = {"name": "agent-cache", "version": "1"}
_ID = re.compile(r"(.+?)_?(?:id|ids|path|name|key|uri|url|slug|number)$", re.IGNORECASE)
"""A parameter that names an entity, and the entity: ``repo_path``, ``orderId``."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


async def introduced(ask: Ask) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Make the acquaintance of a server: its name, and its tools by name.

    Raises:
        RpcError: if it refuses.
    """
    envelope: dict[str, Any] = {}
    try:
        hello = await ask("initialize", {"protocolVersion": _HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT})
        server = hello.get("serverInfo") or {}
        await ask("notifications/initialized", {})
    except RpcError:  # a server that knows only the protocol without a handshake
        prefix = "io.modelcontextprotocol/"
        envelope = {
            "_meta": {
                f"{prefix}protocolVersion": _MODERN, f"{prefix}clientInfo": _CLIENT, f"{prefix}clientCapabilities": {},
            }
        }  # fmt: skip
        hello = await ask("server/discover", envelope)
        server = (hello.get("_meta") or {}).get(f"{prefix}serverInfo") or {}
    tools: dict[str, Mapping[str, Any]] = {}
    params, pages = dict(envelope), Pages()
    while True:
        page = await ask("tools/list", params)
        tools |= listed_tools(page)
        cursor = pages.next(page)
        if cursor is None:
            return str(server.get("name") or "mcp"), tools
        params = {**envelope, "cursor": cursor}


def starter_rules(namespace: str, tools: Iterable[Mapping[str, Any]], box: Toolbox | None = None) -> str:
    """A file of rules, as TOML.

    Args:
        namespace: that of the file; None of its characters has to fit.
        tools: as the server lists them. One whose name is no Unicode is left out: TOML cannot name it.
        box: the rules that there are; only tools without one are in the file then, and it has no head.
    """
    parts = []
    if box is None:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", namespace).strip("-").lower() or "mcp"
        parts.append(f'namespace = "{name}"\nhints = "kind"\nunknown = "write"')
    named = [tool for tool in tools if utf8_text(tool["name"]) == tool["name"]]
    parts += [_rule_for(tool) for tool in named if box is None or not has_rule(box, tool["name"])]
    return "\n\n".join(parts) + "\n" if parts else ""


def _rule_for(tool: Mapping[str, Any]) -> str:
    name = _key(tool["name"])
    tags = _tags_for(tool)
    hints = tool.get("annotations") or {}
    title = _one_line(tool.get("description") or tool.get("title") or "")
    lines = [f"# {title}"] if title else []
    if hints.get("readOnlyHint") is True:
        lines += [
            f"[tools.{name}]",
            'kind = "watch"  # it reads, and no answer is stored; to store them, write instead:',
            f'# kind = "read"\n# tags = {tags}\n# ttl = 60',
        ]
    elif "readOnlyHint" in hints:
        lines += [
            "# It writes: each call drops every answer that is stored, unless a rule says what it changes:",
            f'# [tools.{name}]\n# kind = "write"\n# tags = {tags}',
        ]
    else:
        lines += [
            "# Nobody says what it does, so each call drops every answer that is stored, unless a rule says better:",
            f'# [tools.{name}]\n# kind = "write"\n# tags = {tags}',
        ]
    return "\n".join(lines)


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
