"""Bodies of HTTP become data that people can read, and give every byte back."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import zlib
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, strategies as st

from agent_cache.recording.http import bodies
from agent_cache.recording.http.bodies import ResponseBody, map_response, model_payloads, pieces_of, request_arguments
from tests.harness.http_server import CONVERSE_EVENTS, aws_frame
from tests.harness.searches import searched

AS_JSON = {"content-type": "application/json"}
EVENTS, FRAMES = "text/event-stream; charset=utf-8", "application/vnd.amazon.eventstream"


def received(headers: dict[str, str], *pieces: bytes) -> dict[str, Any]:
    """The body of a response with these headers, recorded."""
    body = ResponseBody(headers)
    for piece in pieces:
        body.add(piece)
    return body.data()


def back(data: dict[str, Any]) -> bytes:
    return b"".join(pieces_of({"status": 200, **data}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
LAYOUTS: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}]
SPELLED = st.builds(
    lambda value, layout, is_ascii, end: (json.dumps(value, ensure_ascii=is_ascii, **layout) + end).encode(
        "utf-8", "surrogatepass"
    ),
    JSON, st.sampled_from(LAYOUTS), st.booleans(), st.sampled_from(["", "\n"]),
)  # fmt: skip
LINES = ["data: a", 'data: {"a":1}', "event: x", "id: 7", ": ping", "data:b", "", "retry: 5", "é"]
STREAMED = st.builds(
    lambda lines, line_end: line_end.join(lines).encode(),
    st.lists(st.sampled_from(LINES)), st.sampled_from(["\n", "\r\n", "\r"]),
)  # fmt: skip
KINDS = ["", "application/json", "text/plain", "image/png", EVENTS, FRAMES, "application/x-ndjson"]


@searched(40, 300, SPELLED | STREAMED | st.binary(max_size=200), st.sampled_from(KINDS), st.lists(st.integers(0, 200)))
@example(b'{\n  "a": [],\n  "b": {}\n}', "application/json", [])
@example(b"abc\xff", "text/plain; charset=iso-8859-1", [])
def test_any_body_comes_back_however_it_was_cut(raw: bytes, kind: str, cuts: list[int]):
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    data = received({"content-type": kind}, *(raw[begin:end] for begin, end in pairwise(places)))
    assert back(data) == raw
    assert "json" not in data or json.loads(json.dumps(data["json"])) == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"a":1.50}', b'{"a":NaN}', b'{"a" :1}', b'{"a":1}\n\n', b'{"a":"\\/"}', b"[" * 300 + b"]" * 300,
     b"{"],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
def test_json_that_would_lose_a_byte_stays_text(raw: bytes):
    assert received(AS_JSON, raw) == {"text": raw.decode()}


FRAME = aws_frame(*CONVERSE_EVENTS[0])
MESSAGE_START = {
    "headers": {":event-type": "messageStart", ":content-type": "application/json", ":message-type": "event"},
    "json": {"role": "assistant"}, "spelling": "spaced",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("application/json", b'{\n  "a": 1\n}\n', {"json": {"a": 1}, "spelling": "indent2 newline"}),
        ("application/json", '{"a":"é"}'.encode(), {"json": {"a": "é"}}),
        (EVENTS, b'event: a\nid: 7\ndata: {"a":1}\n\n', {"events": [{"event": "a", "id": "7", "json": {"a": 1}}]}),
        (EVENTS, b"data: [DONE]\n\n: ping\n\n", {"events": [{"data": "[DONE]"}, {"text": ": ping\n\n"}]}),
        (EVENTS, b'data:{"b":2}\r\n\r\n', {"events": [{"json": {"b": 2}, "style": "tight crlf"}]}),
        (FRAMES, FRAME, {"frames": [MESSAGE_START]}),
        (FRAMES, FRAME + FRAME[:11], {"frames": [MESSAGE_START, {"bytes": base64.b64encode(FRAME[:11]).decode()}]}),
        (FRAMES, FRAME[:-1] + b"\0", {"frames": [{"bytes": base64.b64encode(FRAME[:-1] + b"\0").decode()}]}),
        ("image/png", b"\xff\0", {"bytes": "/wA="}),
    ],
)  # fmt: skip
def test_bodies_are_data_that_people_can_read(kind: str, raw: bytes, expected: dict[str, Any]):
    data = received({"content-type": kind}, *(raw[at : at + 7] for at in range(0, len(raw), 7)))
    assert data == expected
    assert back(data) == raw
    payloads = [one["json"] for one in (data, *data.get("events", ()), *data.get("frames", ())) if "json" in one]
    assert list(model_payloads(data)) == payloads


def test_what_bedrock_packs_into_a_message_is_data_that_people_can_read():
    raw = aws_frame("chunk", {"bytes": base64.b64encode(b'{"a": 1}').decode(), "p": "abc"})
    data = received({"content-type": FRAMES}, raw)
    assert data["frames"][0]["json"] == {"bytes": {"json": {"a": 1}, "spelling": "spaced"}, "p": "abc"}
    assert (back(data), list(model_payloads(data))) == (raw, [{"a": 1}])


PACKED = b'{"packed":true}'
RAW_DEFLATE = zlib.compress(PACKED)[2:-4]
"""As some servers have it, without the header of zlib; clients unpack it all the same."""


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ("gzip", gzip.compress(PACKED)),
        ("gzip", gzip.compress(PACKED[:4]) + gzip.compress(PACKED[4:])),
        ("gzip", gzip.compress(PACKED) + bytes(8)),
        ("deflate", zlib.compress(PACKED)),
        ("deflate", RAW_DEFLATE),
        ("br", None),
        ("gzip, gzip", gzip.compress(gzip.compress(PACKED))),
        ("Deflate,identity, X-GZIP", gzip.compress(zlib.compress(PACKED))),
        ("gzip, br", None),
        ("zstd", None),
    ],
    ids=["gzip", "in members", "padded", "deflate", "raw", "br", "twice", "deflate and gzip", "gzip and br", "zstd"],
)
def test_content_encodings_are_taken_off(encoding: str, sent: bytes | None):
    """Several in the reverse order, as each is of the body with those before it (RFC 9110, 8.4)."""
    if sent is None:
        compress = pytest.importorskip("zstandard" if encoding == "zstd" else "brotli").compress
        parts = [PACKED[:9], PACKED[9:]] if encoding == "zstd" else [PACKED]  # in two frames
        sent = b"".join(compress(gzip.compress(one) if "gzip" in encoding else one) for one in parts)
    headers = {**AS_JSON, "content-encoding": encoding}
    assert received(headers, sent[:5], sent[5:]) == {"json": {"packed": True}}
    assert request_arguments(headers, sent) == {"json": {"packed": True}}


@pytest.mark.parametrize("encoding", ["gzip", "of-tomorrow", "of-tomorrow, gzip", ", ".join(["gzip"] * 9)])
def test_what_cannot_be_unpacked_keeps_its_bytes_and_its_encoding(encoding: str):
    body = ResponseBody({"content-type": EVENTS, "content-encoding": encoding})
    body.add(b"\x1f\x8bnot ")
    body.add(b"gzip\xff")
    assert back(body.data()) == b"\x1f\x8bnot gzip\xff"
    assert body.is_encoded


def test_what_was_packed_to_fill_the_memory_is_not_unpacked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "_LARGEST", 1000)
    often = PACKED
    for _ in range(6):
        often = gzip.compress(often)
    large = [(gzip.compress(bytes(1001)), "gzip"), (gzip.compress(bytes(600)) * 2, "gzip"), (often, ", gzip" * 6)]
    for name, encoding in (("brotli", "br"), ("zstandard", "zstd")):  # where a client has it
        with suppress(ImportError):
            large.append((importlib.import_module(name).compress(bytes(1001)), encoding))
    for sent, encoding in large:
        body = ResponseBody({"content-encoding": encoding})
        body.add(sent)
        assert back(body.data()) == sent
        assert body.is_encoded


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/json", b'{"b": [1,\n 2]}', {"json": {"b": [1, 2]}}),
        ("", b'{"b":1}', {"json": {"b": 1}}),
        ("application/x-www-form-urlencoded", b"a=1&b=&a=2", {"form": {"a": ["1", "2"], "b": ""}}),
        ("text/plain", b"hello", {"text": "hello"}),
        ("application/json", b"[1, NaN]", {"text": "[1, NaN]"}),
        ("application/json", b"", {}),
    ],
)
def test_a_request_is_known_by_its_content(kind: str, body: bytes, expected: dict[str, Any]):
    assert request_arguments({"content-type": kind}, body) == expected


def test_the_boundary_of_parts_does_not_identify_a_request():
    def request(boundary: str, content: bytes = b"\xff\x00\r\n\n") -> dict[str, Any]:
        raw = (
            b'--%b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
        )
        raw += content + '\r\n--%b\r\nContent-Disposition: form-data; name="note"\r\n\r\ngrün\r\n--%b--\r\n'.encode()
        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        return request_arguments(headers, raw.replace(b"%b", boundary.encode()))

    one = request("one")
    assert one == request("b1946ac92492d2347c6235b4d2611184")
    assert one != request("one", b"\xff\x01\r\n\n")
    file, note = one["multipart"]
    assert (file["name"], file["filename"], file["bytes"]["size"]) == ("file", "a.png", 5)
    assert note == {"name": "note", "text": "grün"}


def test_a_change_reaches_headers_and_bodies_and_no_cookie():
    def change(data: Any) -> Any:
        return json.loads(json.dumps(data).replace("secret", "-"))

    binary = base64.b64encode(b"\xff secret").decode()
    wide = base64.b64encode("secret".encode("utf-16")).decode()
    changed = map_response({"headers": {"a": "secret", "set-cookie": "secret=x"}, "bytes": binary}, change)
    assert (changed["headers"], back(changed)) == ({"a": "-", "set-cookie": "secret=x"}, b"\xff -")
    assert back(map_response({"bytes": wide}, change)).decode("utf-16") == "-"
    assert back(map_response({"lines": [{"bytes": binary}, {"text": "secret"}]}, change)) == b"\xff --"
    with pytest.raises(TypeError, match="expected a dict"):
        map_response({}, lambda data: None)


@pytest.mark.parametrize("field", ["events", "lines", "frames"])
@pytest.mark.parametrize("piece", [{"json": 1, "spelling": "curly"}, {"event": "a"}, "json", ["json"], {"bytes": "?"}])
def test_a_piece_that_was_edited_is_found_before_the_first_one_is_handed_out(field: str, piece: Any):
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        pieces_of({"status": 200, field: [{"text": "a"}, piece]})
