"""The messages of JSON-RPC 2.0 as lines: parsing as far as a relay needs it, and the errors of the protocol.

A message is parsed into its members, whose contents stay as they came. So what only passes by is never built as
objects, and what is passed on is what came, byte for byte. Of a message that no JSON parser here can read (it is nested
too deeply, or has half of a character), the members are found by its brackets, so that it reaches whom it is for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from agent_cache.recording import register
from agent_cache.values.compare import utf8_text

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603

MODERN: Final = "2026-07-28"
"""From this revision on, a request has no session, and who closes its response over HTTP cancels it."""

_ENVELOPE: Final = "io.modelcontextprotocol/"
"""Since that revision the ``_meta`` of every request says under such names who asks, and by which version."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_BYTES: Final = msgspec.Raw()


class Message(msgspec.Struct):
    """One message. A request has an id and a method, a notification a method, a response an id.

    Attributes:
        params, result, error: as they came; empty where the message has none.
    """

    id: Any = None
    method: str = ""
    params: msgspec.Raw = _NO_BYTES
    result: msgspec.Raw = _NO_BYTES
    error: msgspec.Raw = _NO_BYTES

    @property
    def is_request(self) -> bool:
        """Whether it waits for a response."""
        return bool(self.method) and self.id is not None

    def params_by_name(self) -> dict[str, Any]:
        """Its parameters; none if they cannot be read, or are something else."""
        params = data_of(self.params)
        return params if isinstance(params, dict) else {}


_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


def parsed(line: bytes) -> Message | None:
    """The message in a line; None if the line is no JSON object. One that is no message of the protocol is empty.

    It never raises. A member that cannot be read is in the message as it came.
    """
    try:
        return _decoder.decode(line)
    except _UNREADABLE:
        members = _members_of(line.strip())
    if members is None:
        return None
    raw = {name: msgspec.Raw(members[key]) for name, key in _MEMBERS.items() if key in members}
    method = data_of(members.get(b'"method"', b""))
    return Message(id=data_of(members.get(b'"id"', b"")), method=method if isinstance(method, str) else "", **raw)


_MEMBERS: Final = {"params": b'"params"', "result": b'"result"', "error": b'"error"'}
_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)


def _members_of(text: bytes) -> dict[bytes, bytes] | None:
    """The members of an object, however deeply they are nested. None if it is none, or its brackets do not match."""
    found: dict[bytes, bytes] = {}
    depth, name, begin = 0, b"", 1
    for token in _TOKENS.finditer(text) if text[:1] == b"{" else ():
        symbol, at = token[0], token.start()
        depth += (symbol in (b"{", b"[")) - (symbol in (b"}", b"]"))
        if symbol == b":" and depth == 1:
            name, begin = text[begin:at].strip(), token.end()
        elif (symbol == b"," and depth == 1) or depth == 0:
            value = text[begin:at].strip()
            if (name[:1] == b'"') != bool(value):
                return None
            if value:
                found[name] = value
            if depth == 0:
                return found if token.end() == len(text) else None
            name, begin = b"", token.end()
    return None


def refusal_of(line: bytes, message: Message | None) -> bytes | None:
    """The error that answers a message of a host which may call a tool in a way that servers read differently: a batch,
    no JSON, a name that occurs twice, a number beyond all bounds, NaN, what is no Unicode, an id that identifies
    nothing. None for any other message.
    """
    is_call = message is not None and message.method == "tools/call"
    if not is_call and b"tools/call" not in line and b"tools\\/call" not in line:
        return None
    id = message.id if message is not None and is_id(message.id) else None  # noqa: A001 - the protocol's name
    try:
        msgspec.json.decode(line)
        json.loads(line.decode(), object_pairs_hook=_checked_object)
    except (ValueError, RecursionError) as error:
        code = PARSE_ERROR if message is None else INVALID_REQUEST
        return error_line(id, f"a call of a tool that cannot be read in one way is not passed on ({error})", code)
    if message is None or (is_call and id is None):
        why = "a call of a tool is one request, whose id is a text or a whole number; this is not passed on"
        return error_line(None, why, INVALID_REQUEST)
    is_known = message.method or message.result or message.error
    return (
        None if is_known else error_line(id, "this is no message of the protocol; it is not passed on", INVALID_REQUEST)
    )


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def is_id(id: Any) -> bool:  # noqa: A002 - the protocol's name
    """Whether it identifies a request: MCP has texts and whole numbers."""
    return type(id) is int or (type(id) is str and utf8_text(id) == id)


def envelope_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a request of revision 2026-07-28 or later says of its host in its ``_meta``; empty for an earlier one."""
    meta = params.get("_meta")
    return {key: said for key, said in meta.items() if key.startswith(_ENVELOPE)} if isinstance(meta, dict) else {}


def data_of(raw: msgspec.Raw | bytes) -> Any:
    """The content of a member; None if there is none, or if it cannot be read."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except _UNREADABLE:
        return None


def one_line(text: bytes) -> bytes:
    """JSON without line ends: these are only between its tokens."""
    return text.strip().replace(b"\r", b" ").replace(b"\n", b" ")


def _line_of(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message) + b"\n"


def request_line(id: Any, method: str, params: Any) -> bytes:  # noqa: A002 - the protocol's name
    """A request; a notification if `id` is None."""
    identity = {} if id is None else {"id": id}
    return _line_of({"jsonrpc": "2.0", **identity, "method": method, "params": params})


def result_line(id: Any, result: Any) -> bytes:  # noqa: A002 - as above
    """A response with a result."""
    return _line_of({"jsonrpc": "2.0", "id": id, "result": result})


def error_line(id: Any, error: dict[str, Any] | str, code: int = INTERNAL_ERROR) -> bytes:  # noqa: A002 - as above
    """A response with an error of the protocol, or with one of the relay's own, as text."""
    said = {"code": code, "message": f"agent-cache: {error}"} if isinstance(error, str) else error
    return _line_of({"jsonrpc": "2.0", "id": id, "error": said})


class Response:
    """The server's response to a request: the message as it came, and parsed. `is_refusal`: see `RpcError`."""

    __slots__ = ("is_refusal", "line", "message")

    def __init__(self, line: bytes, message: Message, *, is_refusal: bool = False) -> None:
        self.line, self.message, self.is_refusal = line, message, is_refusal

    def result(self) -> Any:
        """The result; as it came, without line ends, if it cannot be read.

        Raises:
            RpcError: if it is an error.
        """
        raw = self.message.result
        if self.message.error:
            error = RpcError.of(data_of(self.message.error))
            error.is_refusal = self.is_refusal
            raise error
        try:
            return msgspec.json.decode(raw) if raw else None
        except _UNREADABLE:
            return msgspec.Raw(one_line(bytes(raw)))


class RpcError(Exception):
    """A request was answered by an error.

    Attributes:
        error: the error as the protocol has it.
        is_refusal: whether HTTP has refused the request, perhaps for reasons of its session. That says nothing of an
            equal one.
    """

    is_refusal = False

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.error: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data

    @classmethod
    def of(cls, error: Any) -> RpcError:
        """The exception for the content of an error response."""
        if not isinstance(error, dict):
            return cls(INTERNAL_ERROR, "the error of the server cannot be read" if error is None else str(error))
        return cls(error.get("code", INTERNAL_ERROR), str(error.get("message", "")), error.get("data"))

    def __str__(self) -> str:
        return f"{self.error['message']} ({self.error['code']})"


register(RpcError)  # so that a replay raises it again


class ConnectionLost(OSError):
    """The server has gone before it answered. As an `OSError` it leaves a write in doubt."""


_MAX_PAGES: Final = 1000


async def listed(ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> list[Any]:
    """The tools of all pages of a list. A server whose cursor does not advance has given its last page.

    Args:
        ask: gets a page by its parameters, which are empty or have a ``cursor``.

    Raises:
        RpcError: if the list has no end.
    """
    tools: list[Any] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    while isinstance(page := _read(await ask(params)), dict):
        tools += page.get("tools") or []
        cursor = page.get("nextCursor")  # an empty text is one
        if cursor is None or repr(cursor) in seen:
            break
        seen.add(repr(cursor))
        if len(seen) >= _MAX_PAGES:
            raise RpcError(INTERNAL_ERROR, f"agent-cache: the list has {_MAX_PAGES} pages, and no end")
        params = {"cursor": cursor}
    return tools


def _read(page: Any) -> Any:
    """A page in which msgspec cannot read the name of one tool, as of half a character: the others are read."""
    try:
        return json.loads(bytes(page)) if isinstance(page, msgspec.Raw) else page
    except (ValueError, RecursionError):
        return None


def by_name(tools: Any) -> dict[str, Mapping[str, Any]]:
    """The tools of a list that have a name."""
    named = (tool for tool in (tools if isinstance(tools, list) else ()) if isinstance(tool, dict))
    return {tool["name"]: tool for tool in named if isinstance(tool.get("name"), str)}
