"""The messages of JSON-RPC 2.0 as lines: parsing as far as a relay needs it, and the errors of the protocol.

A message is parsed into its members, whose contents stay as they came. So what only passes by is never built as
objects, and what is passed on is what came, byte for byte. Of a message that no JSON parser here can read (it is nested
too deeply, or is no Unicode), the members are found by its brackets, so that it reaches whom it is for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent_cache.recording import register
from agent_cache.values.compare import utf8_text

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_REQUEST",
    "PARSE_ERROR",
    "ConnectionLost",
    "LineSplitter",
    "Message",
    "Pages",
    "Response",
    "RpcError",
    "batch_of",
    "data_of",
    "error_line",
    "has_one_meaning",
    "is_id",
    "message_line",
    "one_line",
    "parsed",
    "request_line",
    "result_line",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603

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


_decoder = msgspec.json.Decoder(Message)
_parts_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


def parsed(line: bytes) -> Message | None:
    """The message in a line; None if the line is no JSON object. One that is no message of the protocol is empty.

    It never raises. A member that cannot be read is in the message as it came.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parts = _parts_of(line, b"{")
        return None if parts is None else _message_of(dict(parts))


def _message_of(members: dict[bytes, bytes]) -> Message:
    raw = {name: msgspec.Raw(members[key]) for name, key in _MEMBERS.items() if key in members}
    method = data_of(members.get(b'"method"', b""))
    return Message(id=data_of(members.get(b'"id"', b"")), method=method if isinstance(method, str) else "", **raw)


_MEMBERS: Final = {"params": b'"params"', "result": b'"result"', "error": b'"error"'}

_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)


def _parts_of(text: bytes, opening: bytes) -> list[tuple[bytes, bytes]] | None:
    """The members of an object, or the elements of an array under empty names, however deeply they are nested.

    None if the text does not begin with `opening`, or its brackets do not match.
    """
    found: list[tuple[bytes, bytes]] = []
    text = text.strip()
    depth, name, begin = 0, b"", 1
    for token in _TOKENS.finditer(text) if text[:1] == opening else ():
        symbol, at = token[0], token.start()
        if symbol in (b"{", b"["):
            depth += 1
        elif symbol in (b"}", b"]"):
            depth -= 1
        elif symbol == b":" and depth == 1:
            name, begin = text[begin:at].strip(), token.end()
        if (symbol == b"," and depth == 1) or depth == 0:
            value = text[begin:at].strip()
            if value:
                found.append((name, value))
            if (name[:1] == b'"') != (opening == b"{" and bool(value)):
                return None
            name, begin = b"", token.end()
            if depth == 0:
                return found if begin == len(text) else None
    return None


_PERHAPS_A_CALL: Final = (b"tools/call", b"\\u", b"\\/")
"""A line without any of these calls no tool: its method is written out, and no letter of it as an escape."""


def has_one_meaning(line: bytes, message: Message) -> bool:
    """Whether every server finds in a line of the host what `parsed` has found: that it calls a tool, and how.

    Parsers differ over a name that occurs twice, numbers beyond all bounds, NaN, and what is no Unicode.
    """
    if message.method != "tools/call" and not any(part in line for part in _PERHAPS_A_CALL):
        return True
    try:
        if b"\\" not in line and line.count(b'"') == 2 * _texts_in(msgspec.json.decode(line)):
            return bool(message.method or message.result or message.error)  # a tenth of the time of what follows
        found = _strict_decoder.decode(line.decode())
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()  # fails for half a character
    except (ValueError, RecursionError):
        return False
    return bool(message.method or message.result or message.error)


def _texts_in(data: Any) -> int:
    """How many texts are in the content of a message, with the names in its objects."""
    if isinstance(data, dict):
        return len(data) + sum(map(_texts_in, data.values()))
    if isinstance(data, list):
        return sum(map(_texts_in, data))
    return isinstance(data, str)


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    found = float(text)
    return found if abs(found) < float("inf") else _refuse(text)


_strict_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_checked_object, parse_constant=_refuse, parse_float=_finite
)


def is_id(id: Any) -> bool:  # noqa: A002 - the protocol's name
    """Whether it identifies a request: MCP has texts and whole numbers."""
    return type(id) is int or (type(id) is str and (id.isascii() or utf8_text(id) == id))


def batch_of(line: bytes) -> list[bytes] | None:
    """The messages of a batch, each as a line; None if the line is no batch."""
    if line.lstrip()[:1] != b"[":
        return None
    try:
        return [bytes(part) + b"\n" for part in _parts_decoder.decode(line)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parts = _parts_of(line, b"[")
        return None if parts is None else [part + b"\n" for _, part in parts]


def data_of(raw: msgspec.Raw | bytes) -> Any:
    """The content of a member; None if there is none, or if it cannot be read."""
    try:
        return _data(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _data(raw: msgspec.Raw | bytes) -> Any:
    """The content of a member.

    Raises:
        ValueError, RecursionError: if it cannot be read.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(bytes(raw))


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


def message_line(message: Message, id: Any) -> bytes:  # noqa: A002 - as above
    """A message under another id, with its members as they came."""
    members = ((name, getattr(message, name)) for name in _MEMBERS)
    method = {"method": message.method} if message.method else {}
    return _line_of({"jsonrpc": "2.0", "id": id, **method, **{name: raw for name, raw in members if raw}})


def error_line(id: Any, error: dict[str, Any]) -> bytes:  # noqa: A002 - as above
    """A response with an error."""
    return _line_of({"jsonrpc": "2.0", "id": id, "error": error})


class Response:
    """The server's response to a request.

    Args:
        line: the message as it came, under the id of the request.
        message: the same, parsed.

    Attributes:
        is_json: whether the result, once it was read, was JSON. NaN is none, and would leave a cache as null.
    """

    __slots__ = ("_message", "is_json", "line")

    def __init__(self, line: bytes, message: Message) -> None:
        self.line = line
        self.is_json = True
        self._message = message

    def under(self, id: Any) -> Response:  # noqa: A002 - the protocol's name
        """The same under another id."""
        return Response(message_line(self._message, id), self._message)

    def unread(self) -> msgspec.Raw:
        """The result as it came, without line ends."""
        return msgspec.Raw(one_line(bytes(self._message.result)))

    def result(self) -> Any:
        """The result; as `unread`, if it cannot be read.

        Raises:
            RpcError: if it is an error.
        """
        if self._message.error:
            raise RpcError.of(data_of(self._message.error))
        raw = self._message.result
        try:
            return msgspec.json.decode(raw) if raw else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.is_json = False
            try:
                return _data(raw)
            except (ValueError, RecursionError):
                return self.unread()


class RpcError(Exception):
    """A request was answered by an error.

    Attributes:
        code: its number.
        error: the error as the protocol has it.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
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
        return f"{self.error['message']} ({self.code})"


register(RpcError)  # so that a replay raises it again


_MAX_PAGES: Final = 1000
"""How many pages a list may have."""


class Pages:
    """The cursors of a list that comes in pages: where it goes on, and that it ends.

    A server whose cursor does not advance has given its last page.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def next(self, page: Mapping[str, Any]) -> Any:
        """The cursor of the page after this one; None after the last one. An empty text is a cursor.

        Raises:
            RpcError: if the list has no end.
        """
        cursor = page.get("nextCursor")
        if cursor is None or repr(cursor) in self._seen:
            return None
        self._seen.add(repr(cursor))
        if len(self._seen) >= _MAX_PAGES:
            raise RpcError(INTERNAL_ERROR, f"agent-cache: the list has {_MAX_PAGES} pages, and no end")
        return cursor


class ConnectionLost(OSError):
    """The server has gone before it answered. As an `OSError` it leaves a write in doubt."""


class LineSplitter:
    """Cuts a stream of bytes into lines, however long they are."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that this chunk completes, each with its newline."""
        *ended, rest = data.split(b"\n")
        lines = [line + b"\n" for line in ended]
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
        if rest:
            self._parts.append(rest)
        return lines

    def rest(self) -> bytes:
        """What came after the last newline."""
        rest = b"".join(self._parts)
        self._parts.clear()
        return rest
