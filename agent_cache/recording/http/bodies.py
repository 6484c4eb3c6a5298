"""Bodies of HTTP as plain data that people can read, and back as the same bytes.

A response body is written in the first form that gives every byte back: JSON with the name of its spelling (``json``),
the events of a stream (``events``, ``frames``, ``lines``), text (``text``), else base64 (``bytes``). Content-encoding
is taken off first. A request body is only compared, so spaces of its JSON and the boundary of its parts are left out,
and of binary content there is a digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from email.message import Message
from email.parser import Parser
from typing import Any, TypeAlias, TypeGuard
from urllib.parse import parse_qsl

import msgspec

Headers: TypeAlias = Mapping[str, str]
"""Names are in lower case."""


# JSON

_LAYOUTS = {"compact": -1, "spaced": 0, "indent2": 2, "indent4": 4}
_MAX_DEPTH = 200
"""Lists and dicts within each other. What goes deeper is text: Python walks over 1,000 levels at most."""


def _read_json(raw: bytes) -> Any:
    """Raises ValueError or msgspec.MsgspecError if it is none, or too deep."""
    value = msgspec.json.decode(raw)
    if type(value) in (dict, list) and _is_deep(value, _MAX_DEPTH):
        raise ValueError("too deep")
    return value


def _is_deep(value: Any, left: int) -> bool:
    values = value.values() if type(value) is dict else value
    return not left or any(_is_deep(one, left - 1) for one in values if type(one) in (dict, list))


def _json_data(raw: bytes) -> dict[str, Any] | None:
    """The fields ``json`` and ``spelling``; None if these bytes are not JSON in a spelling that gives them back."""
    try:
        value = _read_json(raw)
        end = " newline" if raw.endswith(b"\n") else ""
        for layout in ("indent2", "indent4") if b"\n" in raw[:-1] else ("compact", "spaced"):
            for letters in ("", " ascii"):
                spelling = layout + letters + end
                data = {"json": value} if spelling == "compact" else {"json": value, "spelling": spelling}
                if _json_bytes(data) == raw:
                    return data
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    return None


def _json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON in the spelling of this name: a layout, ``ascii`` if letters and numbers are as `json.dumps` writes them,
    and ``newline`` if there is one at the end.
    """
    layout, *others = data.get("spelling", "compact").split(" ")
    value, indent = data["json"], _LAYOUTS[layout]
    raw = json.dumps(value, separators=(",", ":")).encode() if "ascii" in others else msgspec.json.encode(value)
    raw = raw if indent < 0 else msgspec.json.format(raw, indent=indent)
    return raw + b"\n" if "newline" in others else raw


# Content-encoding

_PACKAGES = {"br": ("brotli", "brotlicffi"), "zstd": ("compression.zstd", "backports.zstd", "zstandard")}
_MOST_ENCODINGS = 5
_LARGEST = 1 << 28
"""Bytes of a body without its encodings: what is larger was made to fill the memory, and stays packed."""


def unpacked(headers: Headers, raw: bytes) -> bytes:
    """A body without its content-encodings, as far as it has come. The last one is taken off first.

    Raises:
        Exception: of any kind, if it is broken or too large, or if no package that is imported has an encoding.
    """
    encodings = [one.strip().lower() for one in headers.get("content-encoding", "").split(",")]
    encodings = [one for one in encodings if one not in ("", "identity")]
    if len(encodings) > _MOST_ENCODINGS:
        raise ValueError(f"it has {len(encodings)} encodings")
    for encoding in reversed(encodings):
        raw = _inflated(encoding, raw) if encoding in ("gzip", "x-gzip", "deflate") else _decompressed(encoding, raw)
    return raw


def _inflated(encoding: str, raw: bytes) -> bytes:
    """A body without gzip, which may have several members, or deflate, of which some servers leave the header out."""
    content = b""
    is_bare = encoding == "deflate" and raw[:1] not in b"x\x1f"
    while raw:
        step = zlib.decompressobj(-15 if is_bare else 47)
        try:
            content += step.decompress(raw, _LARGEST)
        except zlib.error:
            if not content:
                raise
            break  # what comes behind the end is left out, as clients do
        if step.unconsumed_tail or len(content) > _LARGEST:
            raise ValueError("it is too large")
        raw = step.unused_data
    return content


def _decompressed(encoding: str, raw: bytes) -> bytes:
    """The same of another encoding. A client that accepts one has imported the package for it."""
    module: Any = sys.modules[next((one for one in _PACKAGES.get(encoding, ()) if one in sys.modules), encoding)]
    content, step = bytearray(), None
    for begin in range(0, len(raw), 1024):  # not every version has a bound of its own
        piece = raw[begin : begin + 1024]
        while piece:
            if step is None or getattr(step, "eof", False):  # zstd may have several frames
                step = module.Decompressor() if encoding == "br" else module.ZstdDecompressor()
                step = step.decompressobj() if hasattr(step, "decompressobj") else step
            content += step.process(piece) if encoding == "br" else step.decompress(piece)
            piece = step.unused_data if getattr(step, "eof", False) else b""
        if len(content) > _LARGEST:
            raise ValueError("it is too large")
    return bytes(content)


# Requests


def request_arguments(headers: Headers, body: bytes) -> dict[str, Any]:
    """What identifies a request body: one of ``json``, ``form``, ``multipart``, ``text`` and ``bytes``."""
    if not body:
        return {}
    try:
        body = unpacked(headers, body)
    except Exception:  # noqa: BLE001 - the sender's own format; then the bytes identify it
        return _digest(body)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("multipart/") and (parts := _parts(headers["content-type"], body)) is not None:
        return {"multipart": parts}
    if body[:1] in b"{[" or kind.endswith("json"):  # some clients call everything a form
        try:
            return {"json": _read_json(body)}
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    try:
        if kind == "application/x-www-form-urlencoded":
            return {"form": pairs_of(parse_qsl(body.decode(), keep_blank_values=True, errors="backslashreplace"))}
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return _digest(body)


def _digest(body: bytes) -> dict[str, Any]:
    return {"bytes": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}}


def pairs_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Pairs by name. A name that occurs more than once has a list."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        known = found.get(name)
        found[name] = [*known, value] if isinstance(known, list) else value if known is None else [known, value]
    return found


def _parts(content_type: str, body: bytes) -> list[dict[str, Any]] | None:
    def text(value: str) -> str:  # clients send UTF-8, which the parser gets as Latin-1
        return value.encode("latin-1", "replace").decode("utf-8", "backslashreplace")

    payload = Parser().parsestr(f"Content-Type: {content_type}\r\n\r\n{body.decode('latin-1')}").get_payload()
    if not isinstance(payload, list):
        return None
    parts = []
    for part in payload:
        assert isinstance(part, Message)
        name, filename = part.get_param("name", header="content-disposition"), part.get_filename()
        named = {"name": name, "filename": filename, "type": part["content-type"]}
        data: dict[str, Any] = {key: text(str(value)) for key, value in named.items() if value is not None}
        content = str(part).encode("latin-1", "replace") if part.is_multipart() else part.get_payload(decode=True)
        assert isinstance(content, bytes)
        parts.append(data | request_arguments({"content-type": data.get("type", "")}, content))
    return parts


# Responses while they arrive


class ResponseBody:
    """The body of a response while it arrives, with these headers, whose names are in lower case.

    It `is_encoded`, as `data` finds, if its content-encoding cannot be taken off here.
    """

    def __init__(self, headers: Headers) -> None:
        self.is_encoded, self._headers = False, headers
        self.sent = bytearray()
        self.add = self.sent.extend

    def data(self, *, is_whole: bool = True) -> dict[str, Any]:
        """The body as plain data, with the field that says its form. Nothing for an empty body."""
        content, kind = bytes(self.sent), self._headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            content = unpacked(self._headers, content)
        except Exception:  # noqa: BLE001 - no package has it, or it is broken: the client will not read it either
            self.is_encoded = True
        if not content:
            return {}
        if not self.is_encoded and (field := _FIELD_OF_TYPE.get(kind)) is not None:
            return {field: list(map(_STREAMS[field][0], _pieces(field, content)))}
        is_json = is_whole and (kind.endswith("json") or content[:1] in b"{[")
        return _data(content) if is_json else _text_data(content)


def _data(raw: bytes) -> dict[str, Any]:
    return _json_data(raw) or _text_data(raw)


def _text_data(raw: bytes) -> dict[str, Any]:
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(raw).decode()}


def _bytes(data: Mapping[str, Any]) -> bytes:
    """What `_data` or `_text_data` was made of."""
    if "json" in data:
        return _json_bytes(data)
    if "bytes" in data:
        return base64.b64decode(data["bytes"], validate=True)
    return str.encode(data["text"])


# Streams: server-sent events, event streams of AWS, lines

_PIECE = {"events": re.compile(rb"[\s\S]*?(?:\r\n\r\n|\n\n|\r\r)|[\s\S]+"), "lines": re.compile(rb"[^\n]*\n|[^\n]+")}


def _pieces(field: str, content: bytes) -> list[bytes]:
    """The events, frames or lines of a body. The last one may not be whole."""
    if field != "frames":
        return _PIECE[field].findall(content)
    pieces, begin = [], 0
    while begin < len(content):
        size = struct.unpack_from(">I", content, begin)[0] if len(content) - begin >= 4 else 0
        end = begin + size if size >= 16 else len(content)
        pieces.append(content[begin:end])
        begin = end
    return pieces


_NAMES_IN_EVENTS = ("event", "id", "retry")


def _event_data(raw: bytes) -> dict[str, Any]:
    """An event as data, if `_event_bytes` gives every byte of it back; else its text."""
    found = _text_data(raw)
    event: dict[str, Any] = {}
    lines: list[str] = []
    for line in found.get("text", "").splitlines():
        name, _, value = line.partition(":")
        if name == "data":
            lines.append(value.removeprefix(" "))
        elif name in _NAMES_IN_EVENTS:
            event[name] = value.removeprefix(" ")
    if lines:
        value = _json_data(lines[0].encode()) if len(lines) == 1 and lines[0][:1] in "{[" else None
        event |= {"data": "\n".join(lines)} if value is None else value
        for style in ("", "tight", "crlf", "tight crlf"):
            styled = {**event, "style": style} if style else event
            if _event_bytes(styled) == raw:
                return styled
    return found


def _event_bytes(event: Mapping[str, Any]) -> bytes:
    if "data" not in event and "json" not in event:
        return _bytes(event)
    style = event.get("style", "").split(" ")
    colon = ":" if "tight" in style else ": "
    lines = [f"{name}{colon}{event[name]}" for name in _NAMES_IN_EVENTS if name in event]
    data = _json_bytes(event).decode() if "json" in event else event["data"]
    lines += [f"data{colon}{line}" for line in data.split("\n")]
    line_end = "\r\n" if "crlf" in style else "\n"
    return (line_end.join(lines) + line_end * 2).encode()


_STRING = 7
"""The type of a header whose value is text."""


def _is_packed(value: Any, form: type) -> TypeGuard[dict[str, Any]]:
    """Whether a message has, in base64 or as data, what a model of another provider streams through Bedrock."""
    return type(value) is dict and type(value.get("bytes")) is form


def _frame_data(raw: bytes) -> dict[str, Any]:
    """A frame of https://smithy.io/2.0/aws/amazon-eventstream.html, if `_frame_bytes` gives every byte of it back.

    botocore reads frames and writes none, so both directions are here.
    """
    try:
        size = struct.unpack_from(">I", raw, 4)[0]
        headers, at = {}, 12
        while at < 12 + size:
            begin = at + 1 + raw[at]
            kind, length = struct.unpack_from(">BH", raw, begin)
            if kind != _STRING:
                break
            headers[raw[at + 1 : begin].decode()] = raw[begin + 3 : begin + 3 + length].decode()
            at = begin + 3 + length
        payload = raw[12 + size : -4]
        found = (_json_data(payload) if payload else None) or {"data": payload.decode()}
        frame: dict[str, Any] = {"headers": headers, **found}
        if _is_packed(value := found.get("json"), str):
            frame["json"] = {**value, "bytes": _data(base64.b64decode(value["bytes"], validate=True))}
        if _frame_bytes(frame) == raw:
            return frame
    except (struct.error, IndexError, ValueError):
        pass
    return {"bytes": base64.b64encode(raw).decode()}


def _frame_bytes(frame: Mapping[str, Any]) -> bytes:
    if "headers" not in frame:
        return _bytes(frame)
    if _is_packed(value := frame.get("json"), dict):
        frame = {**frame, "json": {**value, "bytes": base64.b64encode(_bytes(value["bytes"])).decode()}}
    payload = _json_bytes(frame) if "json" in frame else frame["data"].encode()
    headers = b""
    for name, value in ((name.encode(), value.encode()) for name, value in frame["headers"].items()):
        headers += struct.pack(">B", len(name)) + name + struct.pack(">BH", _STRING, len(value)) + value
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


_STREAMS: dict[str, tuple[Callable[[bytes], dict[str, Any]], Callable[[Mapping[str, Any]], bytes]]] = {
    "events": (_event_data, _event_bytes),
    "frames": (_frame_data, _frame_bytes),
    "lines": (_data, _bytes),
}
_FIELD_OF_TYPE = {"text/event-stream": "events", "application/vnd.amazon.eventstream": "frames"} | dict.fromkeys(
    (f"application/{x}{name}" for x in ("", "x-") for name in ("ndjson", "jsonl", "jsonlines", "stream+json")), "lines"
)


# Recorded responses


class ResponseShape(msgspec.Struct):
    """What stands under ``response`` in an outcome, which may have been edited."""

    status: int
    reason: str = ""
    headers: dict[str, str | list[str]] = {}
    events: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    frames: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    lines: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    end: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def pieces_of(response: Mapping[str, Any]) -> list[bytes]:
    """The bytes of a recorded body: of a stream one piece for each event, else one, or none of an empty body."""
    for field, (_, write) in _STREAMS.items():
        if field in response:
            return [piece for one in response[field] if (piece := write(one))]
    has_body = not {"json", "text", "bytes"}.isdisjoint(response)
    return [piece] if has_body and (piece := _bytes(response)) else []


def is_stream(response: Mapping[str, Any]) -> bool:
    """Whether a recorded body has several pieces."""
    return not _STREAMS.keys().isdisjoint(response)


def model_payloads(response: Mapping[str, Any]) -> Iterator[Any]:
    """The JSON values of a recorded body: itself, or that of each event."""
    for one in (response, *(one for field in _STREAMS for one in response.get(field, ()))):
        if "json" in one:
            yield one["json"].get("bytes", {}).get("json") if _is_packed(one["json"], dict) else one["json"]


def map_response(response: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with its headers and its body changed, and the rest left alone.

    Cookies are left alone, too: their values are not recorded. Binary content is changed as a text, if it changes.
    """

    def with_bytes(holder: dict[str, Any]) -> dict[str, Any]:
        if "bytes" not in holder:
            return holder
        content, charset = base64.b64decode(holder["bytes"], validate=True), "latin-1"
        if (found := json.detect_encoding(content)).startswith(("utf-16", "utf-32")):
            with suppress(ValueError):
                content.decode(found)
                charset = found
        changed = change(text := content.decode(charset))
        if changed == text or not isinstance(changed, str):
            return holder
        return {**holder, "bytes": base64.b64encode(changed.encode(charset, "replace")).decode()}

    payload = {name: response[name] for name in ("headers", "json", "text", *_STREAMS) if name in response}
    cookies = payload.get("headers", {}).get("set-cookie")
    changed = change(payload)
    if type(changed) is not dict:
        raise TypeError(f"expected a dict, got {type(changed).__name__}")
    changed = with_bytes({**response, **changed})
    if cookies is not None:
        changed["headers"] = {**changed.get("headers", {}), "set-cookie": cookies}
    return {name: list(map(with_bytes, value)) if name in _STREAMS else value for name, value in changed.items()}
