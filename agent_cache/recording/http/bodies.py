"""Bodies of HTTP as plain data that people can read, and back as the same bytes.

A response body is written in the first form that gives every byte back: JSON with the name of its spelling (``json``),
the events of a stream (``events``, ``frames``, ``lines``), text (``text``), else base64 (``bytes``, ``chunks``).
Content-encoding is taken off first. A request body is only compared, so spaces of its JSON and the boundary of its
parts are left out, and of binary content there is a digest.
"""

from __future__ import annotations

import base64
import codecs
import functools
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.message import Message
from email.parser import BytesParser
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

Headers: TypeAlias = Mapping[str, str]
"""Names are in lower case."""

_FORM = "application/x-www-form-urlencoded"
_SSE = "text/event-stream"
_AWS_STREAM = "application/vnd.amazon.eventstream"
_LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
_IN_ONE_PIECE = re.compile(r"text/(?!plain$).*|.*[/+](json|xml)$|application/(javascript|x-www-form-urlencoded)")
"""Types of bodies that nobody reads piece by piece. The sizes of their pieces depend on the network only."""


def media_type(headers: Headers) -> str:
    """The type of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _charset(headers: Headers) -> str:
    message = Message()
    message["content-type"] = headers.get("content-type", "")
    found = message.get_content_charset() or "utf-8"
    try:
        "".encode(found)  # there are codecs that are not for text, such as "hex"
        return codecs.lookup(found).name
    except (LookupError, ValueError):
        return "utf-8"


# JSON

_MAX_INDENT = 8
_INDENTS = {"compact": -1, "spaced": 0} | {f"indent{number}": number for number in range(1, _MAX_INDENT + 1)}


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


def spelled(raw: bytes) -> tuple[Any, str] | None:
    """The value of a JSON text, and the name of its spelling. None if `written` would give other bytes back.

    A spelling is ``compact``, ``spaced`` or ``indent1`` to ``indent8``; then ``python`` or ``ascii`` if numbers and
    letters are written as `json.dumps` does; then ``newline`` if there is one at the end.
    """
    try:
        value = _read_json(raw)
        text = raw.removesuffix(b"\n")
        compact = msgspec.json.format(text, indent=-1)
        layout = _layout_of(text, compact)
        if layout is None:
            return None
        for letters in ("", "python", "ascii"):
            if _letters(value, letters) == compact:
                break
        else:
            return None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return value, " ".join(filter(None, (layout, letters, "newline" if len(text) < len(raw) else "")))


def written(value: Any, spelling: str = "compact") -> bytes:
    """JSON in the spelling of this name.

    Raises:
        ValueError: if there is no such spelling.
    """
    layout, *others = spelling.split(" ")
    letters = [one for one in others if one in ("python", "ascii")]
    if layout not in _INDENTS or len(letters) > 1 or not {*others} <= {"python", "ascii", "newline"}:
        raise ValueError(f"there is no spelling {spelling!r} of JSON")
    raw = _letters(value, letters[0] if letters else "")
    if layout != "compact":
        raw = msgspec.json.format(raw, indent=_INDENTS[layout])
    return raw + b"\n" if "newline" in others else raw


def _letters(value: Any, letters: str) -> bytes:
    if not letters:
        return msgspec.json.encode(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=letters == "ascii").encode()


def _layout_of(text: bytes, compact: bytes) -> str | None:
    """How a JSON text is laid out that is `compact` without its spaces."""
    if text == compact:
        return "compact"
    line_end = text.find(b"\n")
    if line_end < 0:
        name = "spaced"
    else:
        rest = text[line_end + 1 : line_end + 2 + _MAX_INDENT]
        name = f"indent{len(rest) - len(rest.lstrip(b' '))}"
    found = name in _INDENTS and msgspec.json.format(compact, indent=_INDENTS[name]) == text
    return name if found else None


def _json_data(raw: bytes) -> dict[str, Any] | None:
    """The fields ``json`` and ``spelling``; None if these bytes are not JSON in a known spelling."""
    found = spelled(raw)
    if found is None:
        return None
    value, spelling = found
    return {"json": value} if spelling == "compact" else {"json": value, "spelling": spelling}


def _json_bytes(data: Mapping[str, Any]) -> bytes:
    return written(data["json"], data.get("spelling", "compact"))


# Content-encoding


class _Inflate:
    """Takes gzip or deflate off, of several members and with or without the header of zlib."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._wbits = 31 if is_gzip else 15
        self._inner: Any = None

    def decompress(self, data: bytes) -> bytes:
        out = b""
        while data:
            if self._inner is None or self._inner.eof:
                self._inner = zlib.decompressobj(self._wbits)
                try:
                    out += self._inner.decompress(data)
                except zlib.error:
                    if self._wbits != 15:
                        raise
                    self._inner = zlib.decompressobj(-15)
                    out += self._inner.decompress(data)
            else:
                out += self._inner.decompress(data)
            data = self._inner.unused_data
        return out


class _Brotli:
    def __init__(self, module: Any) -> None:
        inner = module.Decompressor()
        self.decompress: Callable[[bytes], bytes] = getattr(inner, "process", None) or inner.decompress


def _decompressor(encoding: str) -> Any:
    """An object that takes this encoding off. A client that accepts one has imported the package for it.

    Raises:
        LookupError: if it is not known here.
    """
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflate(is_gzip=encoding != "deflate")
    names: tuple[str, ...] = ()
    if encoding == "br":
        names = ("brotli", "brotlicffi")
    elif encoding == "zstd":
        names = ("compression.zstd", "backports.zstd", "zstandard")
    module: Any = next((sys.modules[name] for name in names if name in sys.modules), None)
    if module is None:
        raise LookupError(encoding)
    if encoding == "br":
        return _Brotli(module)
    made: Any = module.ZstdDecompressor()
    return made.decompressobj() if hasattr(made, "decompressobj") else made


def _decompressors(headers: Headers) -> list[Any]:
    """Raises LookupError if one is not known."""
    encodings = [one.strip().lower() for one in headers.get("content-encoding", "").split(",")]
    return [_decompressor(one) for one in reversed(encodings) if one not in ("", "identity")]


# Requests


def request_arguments(headers: Headers, body: bytes) -> dict[str, Any]:
    """What identifies a request body: one of ``json``, ``form``, ``multipart``, ``text`` and ``bytes``.

    Args:
        headers: those of the request, with names in lower case.
        body: as it is sent.
    """
    if not body:
        return {}
    if "content-encoding" in headers:
        try:
            for one in _decompressors(headers):
                body = one.decompress(body)
        except Exception:  # noqa: BLE001 - the sender's own format; then the bytes identify it
            return _digest(body)
    kind = media_type(headers)
    if kind.startswith("multipart/"):
        parts = _parts(headers["content-type"], body)
        if parts is not None:
            return {"multipart": parts}
    if body[:1] in b"{[" or kind.endswith("json"):  # some clients call everything a form
        try:
            return {"json": _read_json(body)}
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    if kind == _FORM:
        try:
            return {"form": pairs_of(parse_qsl(body.decode(), keep_blank_values=True, errors="backslashreplace"))}
        except UnicodeDecodeError:
            return _digest(body)
    try:
        text = body.decode(_charset(headers))
        text.encode()  # some codecs give surrogates, which no file can have
    except UnicodeError:
        return _digest(body)
    return {"text": text}


def _digest(body: bytes) -> dict[str, Any]:
    return {"bytes": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}}


def pairs_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Pairs by name. A name that occurs more than once has a list."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def _parts(content_type: str, body: bytes) -> list[dict[str, Any]] | None:
    message = BytesParser().parsebytes(
        b"Content-Type: " + content_type.encode("latin-1", "replace") + b"\r\n\r\n" + body
    )
    payload = message.get_payload()
    if not isinstance(payload, list):
        return None
    parts = []
    for part in payload:
        assert isinstance(part, Message)
        data: dict[str, Any] = {}
        for header, value in list(part.raw_items()):  # the parser takes them for ASCII, and clients send UTF-8
            part.replace_header(header, value.encode("ascii", "surrogateescape").decode("utf-8", "backslashreplace"))
        name = part.get_param("name", header="content-disposition")
        if name is not None:
            data["name"] = str(name)
        if (filename := part.get_filename()) is not None:
            data["filename"] = filename
        inner = {} if "content-type" not in part else {"content-type": str(part["content-type"])}
        if inner:
            data["type"] = inner["content-type"]
        if part.is_multipart():  # of parts, or a mail
            data["type"] = part.get_content_type()
            inside: Any = part.get_payload()
            parts.append(data | request_arguments({}, b"".join(one.as_bytes() for one in inside)))
            continue
        content = part.get_payload(decode=True)
        parts.append(data | request_arguments(inner, content if isinstance(content, bytes) else b""))
    return parts


# Responses while they arrive

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\n")


def _split(pattern: re.Pattern[bytes], data: bytes) -> tuple[list[bytes], bytes]:
    """Pieces that end as the pattern says, and the rest."""
    pieces, begin = [], 0
    for match in pattern.finditer(data):
        pieces.append(data[begin : match.end()])
        begin = match.end()
    return pieces, data[begin:]


def _split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    pieces = []
    while len(data) >= 4:
        (size,) = struct.unpack_from(">I", data)
        if size < 16 or len(data) < size:
            break
        pieces.append(data[:size])
        data = data[size:]
    return pieces, data


class ResponseBody:
    """The body of a response while it arrives.

    Args:
        headers: those of the response, with names in lower case.

    Attributes:
        size: bytes that were added so far, as they were sent.
        is_encoded: whether `data` has the bytes as they were sent, with their content-encoding, because that cannot be
            taken off here.
    """

    def __init__(self, headers: Headers) -> None:
        self.size = 0
        self.is_encoded = False
        self._headers = headers
        self._kind = media_type(headers)
        self._chunks: list[bytes] = []
        self._sent: list[bytes] = []
        self._rest = b""
        try:
            self._decompressors = _decompressors(headers)
        except LookupError:
            self._decompressors, self.is_encoded = [], True
        self._split: Callable[[bytes], tuple[list[bytes], bytes]] | None = None
        self._field = "chunks"
        self._read: Callable[[bytes], dict[str, Any]] = self._chunk_data
        if self._kind == _SSE:
            self._field, self._read = "events", _event_data
            self._split = lambda data: _split(_EVENT_END, data)
        elif self._kind == _AWS_STREAM:
            self._field, self._read, self._split = "frames", _frame_data, _split_frames
        elif self._kind in _LINES:
            self._field, self._read = "lines", _line_data
            self._split = lambda data: _split(_LINE_END, data)

    @property
    def is_stream(self) -> bool:
        """Whether it has events, frames or lines, which a replay hands out one by one."""
        return self._split is not None

    def add(self, data: bytes, *, is_decoded: bool = False) -> None:
        """Add what has arrived.

        Args:
            data: the bytes.
            is_decoded: whether content-encoding was taken off already.
        """
        if not data:
            return
        self.size += len(data)
        if self._decompressors and not is_decoded:
            self._sent.append(data)
            try:
                for one in self._decompressors:
                    data = one.decompress(data)
            except Exception:  # noqa: BLE001 - the client will not be able to read it either
                self.is_encoded, self._decompressors, self._split = True, [], None
                self._chunks, self._rest = self._sent, b""
                self._field, self._read = "chunks", self._chunk_data
                return
        if self._split is not None:
            pieces, self._rest = self._split(self._rest + data)
            self._chunks += pieces
        elif data:
            self._chunks.append(data)

    def data(self, *, is_whole: bool = True) -> dict[str, Any]:
        """The body as plain data, with the field that says its form. Nothing for an empty body.

        Args:
            is_whole: whether all of it has arrived.
        """
        chunks = [*self._chunks, self._rest] if self._rest else self._chunks
        if not chunks:
            return {}
        if self._field != "chunks":
            return {self._field: [self._read(chunk) for chunk in chunks]}
        is_in_pieces = "content-length" not in self._headers and not _IN_ONE_PIECE.fullmatch(self._kind)
        if len(chunks) > 1 and is_in_pieces:
            return {"chunks": self._text_chunks(chunks) or [self._read(chunk) for chunk in chunks]}
        whole = b"".join(chunks)
        if is_whole and (self._kind.endswith("json") or whole[:1] in b"{["):
            found = _json_data(whole)
            if found is not None:
                return found
        return self._chunk_data(whole)

    def _text_chunks(self, chunks: list[bytes]) -> list[dict[str, Any]] | None:
        """Pieces of a text. A letter that was sent in two pieces stands in the second one."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            texts = [decoder.decode(chunk, final=at == len(chunks)) for at, chunk in enumerate(chunks, 1)]
        except UnicodeDecodeError:
            return None
        return [{"text": text} for text in texts if text]

    def _chunk_data(self, raw: bytes) -> dict[str, Any]:
        try:
            return {"text": raw.decode()}
        except UnicodeDecodeError:
            pass
        charset = _charset(self._headers)
        if charset != "utf-8":
            try:
                text = raw.decode(charset)
                text.encode()  # no file can have surrogates
                if text.encode(charset) == raw:
                    return {"text": text, "charset": charset}
            except UnicodeError:
                pass
        return _binary(raw)


def _binary(raw: bytes) -> dict[str, Any]:
    return {"bytes": base64.b64encode(raw).decode()}


def _chunk_bytes(data: Mapping[str, Any]) -> bytes:
    if "bytes" in data:
        return base64.b64decode(data["bytes"], validate=True)
    text: str = data["text"]
    return text.encode(data.get("charset", "utf-8"))


# Server-sent events

_FIELDS = ("event", "id", "retry")


def _event_data(raw: bytes) -> dict[str, Any]:
    """An event as data, if `_event_bytes` gives every byte of it back; else its text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _binary(raw)
    event: dict[str, Any] = {}
    lines: list[str] = []
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "data":
            lines.append(value.removeprefix(" "))
        elif name in _FIELDS:
            event[name] = value.removeprefix(" ")
    if not lines:
        return {"text": text}
    found = _json_data(lines[0].encode()) if len(lines) == 1 and lines[0][:1] in "{[" else None
    event |= {"data": "\n".join(lines)} if found is None else found
    for style in ("", "tight", "crlf", "tight crlf"):
        styled = {**event, "style": style} if style else event
        if _event_bytes(styled) == raw:
            return styled
    return {"text": text}


def _event_bytes(event: Mapping[str, Any]) -> bytes:
    if "data" not in event and "json" not in event:
        return _chunk_bytes(event)
    style = event.get("style", "").split(" ")
    colon = ":" if "tight" in style else ": "
    lines = [f"{name}{colon}{event[name]}" for name in _FIELDS if name in event]
    data = _json_bytes(event).decode() if "json" in event else event["data"]
    lines += [f"data{colon}{line}" for line in data.split("\n")]
    line_end = "\r\n" if "crlf" in style else "\n"
    return (line_end.join(lines) + line_end * 2).encode()


def _line_data(raw: bytes) -> dict[str, Any]:
    try:
        return _json_data(raw) or {"text": raw.decode()}
    except UnicodeDecodeError:
        return _binary(raw)


def _line_bytes(line: Mapping[str, Any]) -> bytes:
    return _json_bytes(line) if "json" in line else _chunk_bytes(line)


# Event streams of AWS: https://smithy.io/2.0/aws/amazon-eventstream.html. botocore reads frames and writes none, so
# both directions are here, and a frame is data only if it is written as the same bytes.

_STRING = 7
"""The type of a header whose value is text."""


def _frame_data(raw: bytes) -> dict[str, Any]:
    try:
        headers_size = struct.unpack_from(">I", raw, 4)[0]
        headers, at = {}, 12
        while at < 12 + headers_size:
            name_size = raw[at]
            name = raw[at + 1 : at + 1 + name_size].decode()
            kind, value_size = struct.unpack_from(">BH", raw, at + 1 + name_size)
            begin = at + 4 + name_size
            if kind != _STRING:
                return _binary(raw)
            headers[name] = raw[begin : begin + value_size].decode()
            at = begin + value_size
        payload = raw[12 + headers_size : -4]
        body = (_json_data(payload) if payload else None) or {"data": payload.decode()}
        frame = {"headers": headers, **body}
        if _frame_bytes(frame) == raw:
            return frame
    except (struct.error, IndexError, ValueError):
        pass
    return _binary(raw)


def _frame_bytes(frame: Mapping[str, Any]) -> bytes:
    if "headers" not in frame:
        return _chunk_bytes(frame)
    payload = _json_bytes(frame) if "json" in frame else frame["data"].encode()
    headers = b""
    for name, value in frame["headers"].items():
        raw_name, raw_value = name.encode(), value.encode()
        headers += struct.pack(">B", len(raw_name)) + raw_name
        headers += struct.pack(">BH", _STRING, len(raw_value)) + raw_value
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


# Recorded responses


class ResponseShape(msgspec.Struct):
    """What stands under ``response`` in an outcome, which may have been edited."""

    status: int
    reason: str = ""
    headers: dict[str, str | list[str]] = {}
    json: Any = None
    spelling: str = "compact"
    charset: str = "utf-8"
    text: str | None = None
    bytes: str | None = None
    events: list[dict[str, Any]] | None = None
    frames: list[dict[str, Any]] | None = None
    lines: list[dict[str, Any]] | None = None
    chunks: list[dict[str, Any]] | None = None
    end: dict[str, Any] | None = None


_STREAMS: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "events": _event_bytes,
    "frames": _frame_bytes,
    "lines": _line_bytes,
    "chunks": _chunk_bytes,
}


class Pieces:
    """The bytes of a recorded body: of a stream one piece for each event, else one, or none of an empty body.

    They are checked at once and written one by one, so that the first one does not wait for the last.

    Raises:
        LookupError, TypeError, ValueError: if the file was edited, and it is no body.
    """

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._pieces: list[Any] = []
        self._write: Callable[[Any], bytes] = bytes
        for field, write in _STREAMS.items():
            if field in response:
                may_be_json = field in ("events", "lines")
                self._pieces = [one for one in response[field] if (may_be_json and _is_plain(one)) or write(one)]
                self._write = write
                return
        if "json" in response:
            self._pieces = [_json_bytes(response)]
        elif ("text" in response or "bytes" in response) and (piece := _chunk_bytes(response)):
            self._pieces = [piece]

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._write, self._pieces)


def _is_plain(piece: Any) -> bool:
    """Whether a piece of a stream is JSON that can be written: any value can."""
    if type(piece) is not dict or "json" not in piece or not piece.keys() <= _PLAIN:
        return False
    _check_spelling(piece.get("spelling", "compact"))
    return isinstance(piece.get("style", ""), str)


_PLAIN = frozenset({"event", "id", "retry", "json", "spelling", "style"})


@functools.lru_cache
def _check_spelling(spelling: str) -> None:
    written(None, spelling)


def is_stream(response: Mapping[str, Any]) -> bool:
    """Whether a recorded body has several pieces."""
    return not _STREAMS.keys().isdisjoint(response)


def model_payloads(response: Mapping[str, Any]) -> Iterator[Any]:
    """The JSON values of a recorded body: itself, or that of each event."""
    if "json" in response:
        yield response["json"]
    for field in _STREAMS:
        for one in response.get(field, ()):
            if "json" in one:
                yield one["json"]


_PAYLOAD = ("headers", "json", "text", "events", "frames", "lines", "chunks")
_COOKIE = "set-cookie"


def map_response(response: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with its headers and its body changed, and the rest left alone.

    Cookies are left alone, too: their values are not recorded. Binary content is changed as a text, if it changes.

    Raises:
        TypeError: if the change does not give back a dict for one.
    """
    payload = {name: response[name] for name in _PAYLOAD if name in response}
    cookies = None
    if _COOKIE in response.get("headers", {}):
        payload["headers"] = dict(payload["headers"])
        cookies = payload["headers"].pop(_COOKIE)
    changed = change(payload)
    if type(changed) is not dict:
        raise TypeError(f"expected a dict, got {type(changed).__name__}")
    changed = {**response, **changed}
    if cookies is not None:
        changed["headers"] = {**changed.get("headers", {}), _COOKIE: cookies}
    if "bytes" in changed:
        changed["bytes"] = _changed_bytes(changed["bytes"], change)
    for field in _STREAMS:
        if field in changed:
            changed[field] = [
                {**one, "bytes": _changed_bytes(one["bytes"], change)} if "bytes" in one else one
                for one in changed[field]
            ]
    return changed


def _changed_bytes(encoded: str, change: Callable[[Any], Any]) -> str:
    text = base64.b64decode(encoded, validate=True).decode("latin-1")
    changed = change(text)
    if changed == text or not isinstance(changed, str):
        return encoded
    return base64.b64encode(changed.encode("latin-1", "replace")).decode()
