"""The messages of JSON-RPC 2.0 as lines: parsing as far as a relay needs it, and the errors of the protocol.

A message is parsed into its members, whose contents stay as they came. So what only passes by is never built as
objects, and what is passed on is what came, byte for byte.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from agent_cache.recording import register

__all__ = [
    "INTERNAL_ERROR",
    "PARSE_ERROR",
    "ConnectionLost",
    "LineSplitter",
    "Message",
    "Response",
    "RpcError",
    "batch_of",
    "data_of",
    "error_line",
    "parsed",
    "request_line",
    "result_line",
]

PARSE_ERROR: Final = -32700
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
    """The message in a line; None if the line is no JSON object. One that is no message of the protocol is empty."""
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        return Message() if line.lstrip()[:1] == b"{" else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parsed_leniently(line)


def _parsed_leniently(line: bytes) -> Message | None:
    """The same for what the standard library takes for JSON although it is none, such as NaN."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if not isinstance(found.get("method", ""), str):
        return Message()
    members = {name: msgspec.Raw(json.dumps(found[name]).encode()) for name in _MEMBERS if name in found}
    return Message(id=found.get("id"), method=found.get("method", ""), **members)


_MEMBERS = ("params", "result", "error")


def batch_of(line: bytes) -> list[bytes] | None:
    """The messages of a batch, each as a line; None if the line is no batch."""
    if line.lstrip()[:1] != b"[":
        return None
    try:
        return [bytes(part) + b"\n" for part in _parts_decoder.decode(line)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def data_of(raw: msgspec.Raw | bytes) -> Any:
    """The content of a member; None if there is none."""
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(bytes(raw))


def _line_of(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message) + b"\n"


def request_line(id: Any, method: str, params: Any) -> bytes:  # noqa: A002 - the protocol's name
    """A request; a notification if `id` is None."""
    identity = {} if id is None else {"id": id}
    return _line_of({"jsonrpc": "2.0", **identity, "method": method, "params": params})


def result_line(id: Any, result: Any) -> bytes:  # noqa: A002 - as above
    """A response with a result."""
    return _line_of({"jsonrpc": "2.0", "id": id, "result": result})


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

    def result(self) -> Any:
        """The result.

        Raises:
            RpcError: if it is an error.
        """
        if self._message.error:
            raise RpcError.of(data_of(self._message.error))
        raw = self._message.result
        try:
            return msgspec.json.decode(raw) if raw else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.is_json = False
            return data_of(raw)


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
            return cls(INTERNAL_ERROR, str(error))
        return cls(error.get("code", INTERNAL_ERROR), str(error.get("message", "")), error.get("data"))

    def __str__(self) -> str:
        return f"{self.error['message']} ({self.code})"


register(RpcError)  # so that a replay raises it again


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
