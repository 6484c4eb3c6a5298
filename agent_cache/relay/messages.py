"""The messages of JSON-RPC 2.0 as lines: parsing as far as a relay needs it, and the errors of the protocol.

A message is parsed into its members, whose contents stay as they came. So what only passes by is never built as
objects, and what is passed on is what came, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from agent_cache.recording import register

INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603

MODERN: Final = "2026-07-28"
"""Since this revision a request has no session, and its ``_meta`` says who asks, and by which version."""
ENVELOPE: Final = "io.modelcontextprotocol/"
"""How the names of these entries begin."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOTHING: Final = msgspec.Raw()
_MAX_PAGES: Final = 1000


class Message(msgspec.Struct):
    """One message. A request has an id and a method, a notification a method, a response an id.

    Attributes:
        params, result, error: as they came; empty where the message has none.
    """

    id: str | int | None = None
    method: str = ""
    params: msgspec.Raw = _NOTHING
    result: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING

    @property
    def is_request(self) -> bool:
        """Whether it waits for a response."""
        return bool(self.method) and self.id is not None

    def params_by_name(self) -> dict[str, Any]:
        """Its parameters; none if they are something else."""
        params = data_of(self.params)
        return params if isinstance(params, dict) else {}


_decoder = msgspec.json.Decoder(Message)


def parsed(line: bytes) -> Message | None:
    """The message in a line; None for anything else, which passes as it came."""
    try:
        return _decoder.decode(line)
    except _UNREADABLE:
        pass
    found = _leniently(line)
    if not isinstance(found, dict):
        return None
    members = {name: found[name] for name in ("params", "result", "error") if name in found}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}
    try:
        return msgspec.convert({"id": found.get("id"), "method": found.get("method", ""), **raw}, Message)
    except msgspec.ValidationError:
        return None


def _leniently(text: bytes) -> Any:
    """What some servers write: NaN, halves of characters, other encodings. None for anything else."""
    try:
        return json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def refusal_of(line: bytes, message: Message | None) -> bytes | None:
    """The error that answers a message of a host which calls a tool in a form that nobody can judge: a batch, a call
    without an id, what is no JSON. None for any other message.
    """
    if message is None:
        is_judged = b"tools/call" not in line
    else:
        is_judged = message.method != "tools/call" or (message.id is not None and _is_json(message.params))
    if is_judged:
        return None
    id = None if message is None else message.id  # noqa: A001 - the protocol's name
    return error_line(id, "a call of a tool is one request of plain JSON; this is not passed on", INVALID_REQUEST)


def _is_json(raw: msgspec.Raw) -> bool:
    try:
        msgspec.json.decode(raw)
    except _UNREADABLE:
        return not raw
    return True


def envelope_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a request of revision 2026-07-28 or later says of its host in its ``_meta``; empty for an earlier one."""
    meta = params.get("_meta")
    return {key: said for key, said in meta.items() if key.startswith(ENVELOPE)} if isinstance(meta, dict) else {}


def data_of(raw: msgspec.Raw | bytes) -> Any:
    """The content of a member; None if there is none, or nobody can read it."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except _UNREADABLE:
        return _leniently(bytes(raw))


def _line_of(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"


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

    def __init__(self, line: bytes, message: Message, *, is_refusal: bool = False) -> None:
        self.line, self.message, self.is_refusal = line, message, is_refusal

    @property
    def is_json(self) -> bool:
        """Whether the result can be written again as it came."""
        return _is_json(self.message.result)

    def result(self) -> Any:
        """The result. Raises `RpcError` if it is an error."""
        if self.message.error:
            error = RpcError.of(data_of(self.message.error))
            error.is_refusal = self.is_refusal
            raise error
        return data_of(self.message.result)


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
            return cls(INTERNAL_ERROR, str(error))
        return cls(error.get("code", INTERNAL_ERROR), str(error.get("message", "")), error.get("data"))

    def __str__(self) -> str:
        return f"{self.error['message']} ({self.error['code']})"


register(RpcError)  # so that a replay raises it again


class ConnectionLost(OSError):
    """The server has gone before it answered. As an `OSError` it leaves a write in doubt."""


async def listed(ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> list[Any]:
    """The tools of all pages of a list.

    Args:
        ask: gets a page by its parameters, which are empty or have a ``cursor``.
    """
    tools: list[Any] = []
    params: dict[str, Any] = {}
    for _ in range(_MAX_PAGES):
        page = await ask(params)
        tools += page.get("tools") or []
        cursor = page.get("nextCursor")
        if cursor is None or cursor == params.get("cursor"):
            break
        params = {"cursor": cursor}
    return tools


def by_name(tools: list[Any]) -> dict[str, Mapping[str, Any]]:
    """The tools of a list by their names."""
    return {tool["name"]: tool for tool in tools}
