"""Bodies of HTTP become data that people can read, and give every byte back."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import example, strategies as st

from agent_cache.recording.http.bodies import (
    ResponseBody,
    map_response,
    model_payloads,
    pieces_of,
    request_arguments,
)
from tests.harness.http_server import CONVERSE_EVENTS, aws_frame
from tests.harness.searches import searched

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
LAYOUTS: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}]


def received(headers: dict[str, str], *pieces: bytes) -> dict[str, Any]:
    """The body of a response with these headers, recorded and in its headers."""
    body = ResponseBody(headers)
    for piece in pieces:
        body.add(piece)
    return body.data()


def back(data: dict[str, Any]) -> bytes:
    return b"".join(pieces_of({"status": 200, **data}))


@searched(15, 100, JSON, st.sampled_from(LAYOUTS), st.booleans(), st.sampled_from(["", "\n"]))
@example({"a": [], "b": {}}, {"indent": 2}, False, "")
def test_json_gives_every_byte_back(value, layout, is_ascii, end):
    raw = (json.dumps(value, ensure_ascii=is_ascii, **layout) + end).encode("utf-8", "surrogatepass")
    data = received({"content-type": "application/json"}, raw)
    assert back(data) == raw
    assert "json" not in data or json.loads(json.dumps(data["json"])) == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"a":1.50}', b'{"a":NaN}', b'{"a" :1}', b'{"a":1}\n\n', b'{"a":"\\/"}', b"[" * 300 + b"]" * 300,
     b"{"],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
def test_json_that_would_lose_a_byte_stays_text(raw: bytes):
    assert received({"content-type": "application/json"}, raw) == {"text": raw.decode()}


@searched(
    30, 100, st.binary(max_size=200), st.sampled_from(["", "application/json", "text/plain", "image/png", "text/html"])
)
@example(b"abc\xff", "text/plain; charset=iso-8859-1")
def test_any_body_comes_back(raw: bytes, kind: str):
    headers = {"content-type": kind, "content-length": str(len(raw))}
    assert b"".join(pieces_of({"status": 200, **received(headers, raw)})) == raw


@searched(
    30,
    100,
    st.lists(
        st.sampled_from(["data: a", 'data: {"a":1}', "event: x", "id: 7", ": ping", "data:b", "", "retry: 5", "é"])
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 200)),
)
def test_any_stream_of_events_comes_back_however_it_was_cut(lines: list[str], line_end: str, cuts: list[int]):
    raw = line_end.join(lines).encode()
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[begin:end] for begin, end in pairwise(places)]
    data = received({"content-type": "text/event-stream"}, *pieces)
    assert b"".join(pieces_of(data)) == raw


def test_events_are_data():
    raw = b'event: done\nid: 7\ndata: {"a": 1}\n\ndata: [DONE]\n\n: ping\n\ndata:{"b":2}\r\n\r\n'
    data = received({"content-type": "text/event-stream; charset=utf-8"}, raw[:20], raw[20:])
    assert data == {
        "events": [
            {"event": "done", "id": "7", "json": {"a": 1}, "spelling": "spaced"},
            {"data": "[DONE]"},
            {"text": ": ping\n\n"},
            {"json": {"b": 2}, "style": "tight crlf"},
        ]
    }
    assert b"".join(pieces_of(data)) == raw
    assert list(model_payloads(data)) == [{"a": 1}, {"b": 2}]


def test_frames_of_aws_are_data_in_whatever_pieces_they_come():
    raw = b"".join(aws_frame(*event) for event in CONVERSE_EVENTS)
    headers = {"content-type": "application/vnd.amazon.eventstream"}
    data = received(headers, *(raw[at : at + 7] for at in range(0, len(raw), 7)))
    assert [frame["json"] for frame in data["frames"]] == [event for _, event in CONVERSE_EVENTS]
    assert data["frames"][0]["headers"][":event-type"] == "messageStart"
    assert b"".join(pieces_of(data)) == raw


@pytest.mark.parametrize("cut", [3, 11, 40])
def test_a_frame_that_is_none_or_not_whole_keeps_its_bytes(cut: int):
    frame = aws_frame(*CONVERSE_EVENTS[0])
    broken = frame[:-1] + bytes([frame[-1] ^ 1])
    data = received({"content-type": "application/vnd.amazon.eventstream"}, frame, broken, frame[:cut])
    assert "json" in data["frames"][0]
    assert [list(one) for one in data["frames"][1:]] == [["bytes"], ["bytes"]]
    assert b"".join(pieces_of(data)) == frame + broken + frame[:cut]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_content_encoding_is_taken_off_as_it_comes(encoding: str):
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}
    pack: Any = packed[encoding] if encoding in packed else pytest.importorskip("brotli").compress
    sent = pack(b'{"packed":true}')
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert received(headers, sent[:5], sent[5:]) == {"json": {"packed": True}}


@pytest.mark.parametrize("encoding", ["gzip", "of-tomorrow"])
def test_what_cannot_be_unpacked_keeps_its_bytes_and_its_encoding(encoding: str):
    body = ResponseBody({"content-type": "text/event-stream", "content-encoding": encoding})
    body.add(b"\x1f\x8bnot ")
    body.add(b"gzip\xff")
    assert b"".join(pieces_of(body.data())) == b"\x1f\x8bnot gzip\xff"
    assert body.is_encoded


def test_a_request_is_known_by_its_content():
    as_json = {"content-type": "application/json"}
    assert request_arguments(as_json, b'{"b": [1,\n 2]}') == {"json": {"b": [1, 2]}}
    assert request_arguments({}, b'{"b":1}') == {"json": {"b": 1}}
    assert request_arguments({"content-type": "application/x-www-form-urlencoded"}, b"a=1&b=&a=2") == {
        "form": {"a": ["1", "2"], "b": ""}
    }
    assert request_arguments({"content-type": "text/plain"}, b"hello") == {"text": "hello"}
    digest = request_arguments({"content-type": "image/png"}, b"\xff\x00")
    assert digest["bytes"]["size"] == 2
    assert digest != request_arguments({"content-type": "image/png"}, b"\xff\x01")
    packed = {**as_json, "content-encoding": "gzip"}
    assert request_arguments(packed, gzip.compress(b"[1]")) == {"json": [1]}
    assert request_arguments(as_json, b"[1, NaN]") == {"text": "[1, NaN]"}
    assert request_arguments(as_json, b"") == {}


def test_the_boundary_of_parts_does_not_identify_a_request():
    def request(boundary: str, content: bytes = b"\xff\x00\r\n\n") -> dict[str, Any]:
        lines = [
            b"--%b",
            b'Content-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n',
            content,
            b"--%b",
            b'Content-Disposition: form-data; name="note"\r\n',
            "grün".encode(),
            b"--%b--",
            b"",
        ]
        raw = b"\r\n".join(line.replace(b"%b", boundary.encode()) for line in lines)
        return request_arguments({"content-type": f"multipart/form-data; boundary={boundary}"}, raw)

    one = request("one")
    assert one == request("b1946ac92492d2347c6235b4d2611184")
    assert one != request("one", b"\xff\x01\r\n\n")
    assert [part["name"] for part in one["multipart"]] == ["file", "note"]
    assert one["multipart"][0]["filename"] == "a.png"
    assert one["multipart"][0]["bytes"]["size"] == 5
    assert one["multipart"][1]["text"] == "grün"


def test_a_change_reaches_headers_and_bodies_and_no_cookie():
    def change(data: Any) -> Any:
        if isinstance(data, str):
            return data.replace("secret", "-")
        if isinstance(data, list):
            return [change(one) for one in data]
        return {key: change(value) for key, value in data.items()} if isinstance(data, dict) else data

    binary = base64.b64encode(b"\xff secret").decode()
    response = {"status": 200, "headers": {"a": "secret", "set-cookie": "secret=x"}, "bytes": binary}
    changed = map_response(response, change)
    assert changed["headers"] == {"a": "-", "set-cookie": "secret=x"}
    assert b"".join(pieces_of(changed)) == b"\xff -"
    wide = base64.b64encode("secret".encode("utf-16")).decode()
    assert b"".join(pieces_of(map_response({"status": 200, "bytes": wide}, change))).decode("utf-16") == "-"
    changed = map_response({"status": 200, "lines": [{"bytes": binary}, {"text": "secret"}]}, change)
    assert list(pieces_of(changed)) == [b"\xff -", b"-"]
    with pytest.raises(TypeError, match="expected a dict"):
        map_response(response, lambda data: None)


EDITED: list[Any] = [{"json": 1, "spelling": "curly"}, {"event": "a"}, "json", ["json"], {"bytes": "?"}]


@pytest.mark.parametrize(
    ("field", "piece"),
    [
        *product(["events", "lines", "frames"], EDITED),
        ("events", {"json": 1, "style": 1}),
    ],
    ids=str,
)
def test_a_piece_that_was_edited_is_found_before_the_first_one_is_handed_out(field, piece):
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        pieces_of({"status": 200, field: [{"text": "a"}, piece]})
