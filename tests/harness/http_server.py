"""A server that answers requests in every way that a recording has to repeat: bodies, streams, faults.

It also speaks the APIs of Gemini and Bedrock; `model_api` has those of OpenAI and Anthropic.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.model_api import ModelApi

COOKIE = "session-of-the-user"  # the value of the cookie that ``/cookie`` sets
KEY = "sk-" + "Zq9" * 12  # the secret in the path that ``/moved`` leads to

GEMINI: dict[str, Any] = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Oslo"}]}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
    "modelVersion": "gemini-9",
}
CONVERSE: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Oslo"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
    "metrics": {"latencyMs": 7},
}
CONVERSE_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Os"}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "lo"}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": CONVERSE["usage"], "metrics": CONVERSE["metrics"]}),
]
COUNTS = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 3, "outputTokenCount": 2}}
INVOKED = {"bytes": base64.b64encode(json.dumps(COUNTS).encode()).decode()}


def aws_frame(kind: str, event: dict[str, Any]) -> bytes:
    """A message of an AWS event stream."""
    headers = b""
    for name, value in {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}.items():
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    payload = json.dumps(event).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


class HttpServer:
    """The server.

    Attributes:
        url: of the root.
        requests: method and path of each request.
        next_piece: is waited for before each piece of a streamed body behind the first.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[str] = []
        self.next_piece = threading.Event()
        self.next_piece.set()
        self.model_api = ModelApi(url)
        self.close: Callable[[], None] = lambda: None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: HttpServer

    def do_GET(self) -> None:
        self.api.requests.append(f"{self.command} {self.path}")
        body = self._body()
        path, _, _ = self.path.partition("?")
        name = path.strip("/").split("/")[0].partition(":")[0]
        answer = getattr(self, f"_{name}", None)
        if path.startswith(("/v1/chat", "/v1/responses", "/v1/messages")):
            status, kind, text = self.api.model_api.answer(self.path, json.loads(body))
            waits = {"retry_after": "7", "openai_poll_after_ms": "900"}
            self._send(status, kind, text.encode(), x_request_id="req_1", request_id="req_1", **waits)
        elif "generatecontent" in path.lower():
            self._gemini(path)
        elif path.startswith("/model/"):
            self._bedrock(path)
        elif answer is not None:
            answer(body)
        else:
            shown = {"method": self.command, "path": self.path, "body": body.decode("latin-1")}
            self._send(200, "application/json", json.dumps(shown).encode())

    do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_TRACE = do_QUERY = do_GET

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, kind: str, content: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        if self.path == "/json":
            self.send_header("x-ratelimit-remaining", str(time.monotonic_ns()))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, kind: str, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, piece in enumerate(pieces):
            if number:
                self.api.next_piece.wait(30)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _gemini(self, path: str) -> None:
        if "stream" not in path:
            self._send(200, "application/json", json.dumps(GEMINI, indent=2).encode())
            return
        self._stream("text/event-stream", [f"data: {json.dumps(GEMINI)}\r\n\r\n".encode()] * 2)

    def _bedrock(self, path: str) -> None:
        if path.endswith("/converse"):
            self._send(200, "application/json", json.dumps(CONVERSE).encode(), x_amzn_requestid="r1")
        else:
            events = [("chunk", INVOKED)] if "invoke" in path else CONVERSE_EVENTS
            self._stream("application/vnd.amazon.eventstream", [aws_frame(*event) for event in events])

    def _gzip(self, body: bytes) -> None:
        content = gzip.compress(b'{"packed": true}')
        self._send(200, "application/json", content, content_encoding="gzip")

    def _twice(self, body: bytes) -> None:
        content = gzip.compress(zlib.compress(json.dumps({"password": COOKIE}).encode()))
        self._send(200, "application/json", content, content_encoding="deflate, gzip")

    def _split(self, body: bytes) -> None:
        """A streamed completion that says what it was told, in pieces of five letters."""
        text = f"key: {json.loads(body)['messages'][0]['content']} end"
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "large-1"}
        events = []
        for at in range(0, len(text), 5):
            choice = {"index": 0, "delta": {"content": text[at : at + 5]}, "finish_reason": None}
            events.append(f"data: {json.dumps({**base, 'choices': [choice]})}\n\n".encode())
        self._stream("text/event-stream", events)

    def _events(self, body: bytes) -> None:
        self._stream("text/event-stream", [b'data: {"number":%d}\n\n' % number for number in range(4)])

    def _lines(self, body: bytes) -> None:
        self._stream("application/x-ndjson", [b'{"number": %d}\n' % number for number in range(4)])

    def _pieces(self, body: bytes) -> None:
        self._stream("text/plain", ["grün".encode()[:3], "grün".encode()[3:], b" und blau"])

    def _binary(self, body: bytes) -> None:
        self._send(200, "image/png", bytes(range(256)), x_amz_crc32="7")

    def _latin(self, body: bytes) -> None:
        self._send(200, "text/plain; charset=iso-8859-1", "grün".encode("latin-1"))

    def _cookie(self, body: bytes) -> None:
        self._send(200, "text/plain", b"ok", set_cookie=f"sid={COOKIE}; Path=/")

    def _echo(self, body: bytes) -> None:
        self._send(200, self.headers.get("content-type") or "text/plain", body)

    def _redirect(self, body: bytes) -> None:
        self._send(302, "text/plain", b"", location="/gzip")

    def _moved(self, body: bytes) -> None:
        self._send(302, "text/plain", b"It is there.", location=f"/kept/{KEY}")

    def _letters(self, body: bytes) -> None:
        self._send(200, "text/plain", b"ok", x_title="grün")

    def _empty(self, body: bytes) -> None:
        self.send_response(204)
        self.end_headers()

    def _missing(self, body: bytes) -> None:
        self._send(404, "text/plain", b"no such thing")

    def _busy(self, body: bytes) -> None:
        self._send(503, "text/plain", b"busy", retry_after="7")

    def _cut(self, body: bytes, header: str = "content-length", value: str = "100", sent: bytes = b"abc") -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header(header, value)
        self.end_headers()
        self.wfile.write(sent)
        self.close_connection = True

    def _broken(self, body: bytes) -> None:
        self._cut(body, "transfer-encoding", "chunked", b"64\r\nabc")

    def _reset(self, body: bytes) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200  # of connections that are opened at once

    def handle_error(self, *_: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def http_server() -> Iterator[HttpServer]:
    """Run a server on loopback, until the block ends or its `close` is called."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {}))
    api = HttpServer(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass.api = api  # type: ignore[attr-defined]  # it was made above
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    is_closed = threading.Event()

    def close() -> None:
        if not is_closed.is_set():
            is_closed.set()
            api.next_piece.set()
            server.shutdown()
            server.server_close()
            thread.join()

    api.close = close
    try:
        yield api
    finally:
        close()
