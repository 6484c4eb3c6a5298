"""The messages of JSON-RPC 2.0: parsing as far as a relay needs it, and the errors of the protocol.

A message is parsed into its members, whose contents stay as they came until somebody asks for them. So what only passes
by is never built as objects, and what is passed on is what came, byte for byte.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from agent_cache.recording import register

INTERNAL_ERROR: Final = -32603
MODERN: Final = "2026-07-28"
"""Since this revision a request has no session, and its ``_meta`` says who asks, and by which version."""
ENVELOPE: Final = "io.modelcontextprotocol/"
"""How the names of these entries begin."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOTHING: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")
_ID_OF_RESPONSE: Final = re.compile(
    rb'\A\s*\{[^\[{]*?"id"\s*:\s*(\d+|"[\w.:-]*")|"id"\s*:\s*(\d+|"[\w.:-]*")[^\[\]{}]*\}\s*\Z'
)
"""What is known of one that is nested too deep to be read; its caller waits for it."""


class Message(msgspec.Struct, dict=True):
    """One message. A request has an id and a method, a notification a method, a response an id.

    `params`, `result` and `error` are as they came, empty where the message has none; `line` is all of it.
    """

    id: str | int | None = None
    method: str = ""
    params: msgspec.Raw = _NOTHING
    result: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING
    line: bytes = msgspec.field(default=b"", name="")  # no member has this name

    @property
    def is_request(self) -> bool:
        """Whether it waits for a response."""
        return bool(self.method) and self.id is not None

    @functools.cached_property
    def _read(self) -> tuple[Any, bool]:
        raw = self.params if self.method else self.error or self.result
        try:
            return msgspec.json.decode(raw) if raw else None, True
        except _UNREADABLE:
            return _leniently(bytes(raw)), False

    @property
    def content(self) -> Any:
        """The content of its parameters, its error or its result; None if there is none, or nobody can read it."""
        return self._read[0]

    @property
    def is_plain(self) -> bool:
        """Whether its content can be written again as it came."""
        return self._read[1]

    @property
    def params_by_name(self) -> dict[str, Any]:
        """Its parameters; none if they are something else."""
        return object_in(self.content)

    def answer(self) -> Any:
        """The content of its result. Raises `RpcError` if it is an error."""
        if self.error:
            raise RpcError(self.content)
        return self.content


_decoder = msgspec.json.Decoder(Message)


def parsed(line: bytes) -> Message | None:
    """The message in a line; None for anything else, which passes as it came."""
    try:
        message = _decoder.decode(line)
    except _UNREADABLE:
        found = _leniently(line)
        if not isinstance(found, dict):
            is_whole = b'"method"' not in line and line.count(b"{") == line.count(b"}")
            name = _ID_OF_RESPONSE.search(line) if is_whole and b'"jsonrpc"' in line else None
            return name and Message(id=json.loads(name[1] or name[2]), result=msgspec.Raw(line), line=line)
        kept = [name for name in ("params", "result", "error") if found.get(name) is not None]
        members = {name: msgspec.Raw(json.dumps(found[name]).encode()) for name in kept}
        try:
            message = msgspec.convert({"id": found.get("id"), "method": found.get("method") or "", **members}, Message)
        except msgspec.ValidationError:
            return None
    if message.error == _NULL:  # which some servers write beside a result
        message.error = _NOTHING
    message.line = line
    return message


def _leniently(text: bytes) -> Any:
    """What some servers write: NaN, halves of characters, other encodings. None for anything else."""
    try:
        return json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def is_unjudged(line: bytes, message: Message | None) -> bool:
    """Whether a message of a host may call a tool in a form that no response tells the end of: a batch, a call without
    a usable id, what is no JSON.
    """
    return bool(line.strip()) if message is None else message.method == "tools/call" and message.id is None


def envelope_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a request of revision 2026-07-28 or later says of its host in its ``_meta``; empty for an earlier one."""
    return {key: said for key, said in object_in(params.get("_meta")).items() if key.startswith(ENVELOPE)}


def line_of(**members: Any) -> bytes:
    """A message of these members."""
    return msgspec.json.encode({"jsonrpc": "2.0", **members}) + b"\n"


def request_line(id: Any, method: str, params: Any) -> bytes:  # noqa: A002 - the protocol's name
    """A request; a notification if `id` is None."""
    return line_of(method=method, params=params, **({} if id is None else {"id": id}))


def error_line(id: Any, error: Any) -> bytes:  # noqa: A002 - as above
    """A response with an error of the protocol, or with one of the relay's own, of which the text is told."""
    found = error.error if isinstance(error, RpcError) else error
    told = found if isinstance(found, dict) else {"code": INTERNAL_ERROR, "message": f"agent-cache: {found}"}
    return line_of(id=id, error=told)


@register  # so that a replay raises it again
class RpcError(Exception):
    """A request was answered by an error: the content of it, as the protocol has it."""

    def __init__(self, error: Any) -> None:
        super().__init__(error)
        own = {"code": INTERNAL_ERROR, "message": str(error)}
        self.error: dict[str, Any] = error if isinstance(error, dict) else own

    def __str__(self) -> str:
        return f"{self.error.get('message')} ({self.error.get('code')})"


class ConnectionLost(OSError):
    """The server has gone before it answered. As an `OSError` it leaves a write in doubt."""


def object_in(found: Any) -> dict[str, Any]:
    """An object of JSON; an empty one in place of anything else, as a server may answer it."""
    return found if isinstance(found, dict) else {}


_OF_TOOL: Final = {"title": str, "description": str, "inputSchema": dict, "annotations": dict}
"""What is read of a tool beside its name, if it is what the protocol says."""


async def listed(ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> list[dict[str, Any]]:
    """The tools of all pages of a list, each name once: its first one. `ask` gets a page by its parameters, which are
    empty or have a ``cursor``.
    """
    tools: dict[str, dict[str, Any]] = {}
    params: dict[str, Any] = {}
    for _ in range(1_000):  # a server may have no end
        page = object_in(await ask(params))
        found = page.get("tools")
        for tool in map(object_in, found if isinstance(found, list) else ()):
            if isinstance(name := tool.get("name"), str):
                told = {part: tool[part] for part, kind in _OF_TOOL.items() if isinstance(tool.get(part), kind)}
                tools.setdefault(name, {"name": name, **told})
        cursor = page.get("nextCursor")
        if cursor is None or cursor == params.get("cursor"):
            break
        params = {"cursor": cursor}
    return list(tools.values())
