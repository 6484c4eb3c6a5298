"""A server of MCP that takes what no parser takes, and answers what none reads: `python odd_mcp_server.py`.

It finds tool, key and id in a message by their text alone, whatever is around them. `get` reads a value, `set` writes
it, `odd` answers with the value of `key` in `ODD`, `form` in a form of `FORMS`, `hold` when `release` is called,
`noisy` writes lines that are no message before, and `seen` tells the messages that came.
"""

from __future__ import annotations

import json
import re
import sys

ODD = {
    "no Unicode": b'"\xff\xfe"',
    "half a character": b'"\\ud800"',
    "no number": b"NaN",
    "too deep": b"[" * 5000 + b"]" * 5000,
    "large": b'"' + b"x" * 300_000 + b'"',
    "plain": b'"plain"',
}

FORMS = {
    "null error": b'{"jsonrpc":"2.0","id":%b,"result":%b,"error":null}',
    "all members": b'{"jsonrpc":"2.0","id":%b,"method":null,"params":null,"result":%b,"error":null}',
    "id as text": b'{"jsonrpc":"2.0","id":"%b","result":%b}',
}
"""Forms of a response that hosts take."""

WHOAMI = b"""{"name":"whoami","inputSchema":{"type":"object","properties":{"key":{"type":"string"}}},\
"annotations":{"readOnlyHint":true}}"""


class OddServer:
    """The server, whatever carries its messages.

    Attributes:
        seen: the messages that came.
        runs: how often each tool ran.
    """

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.runs: dict[str, int] = {}
        self.values: dict[str, str] = {}
        self.held: list[bytes] = []

    def answers(self, message: bytes) -> list[bytes]:
        """The messages that a message is answered with."""
        self.seen.append(message)
        id = _text(rb'"id"\s*:\s*("[^"]*"|[^\s,}]+)', message) or b"null"
        method = _text(rb'"method"\s*:\s*"([\w/]*)"', message).decode()
        tool = _text(rb'"name"\s*:\s*"(\w*)"', message).decode()
        key = _text(rb'"key"\s*:\s*"([^"]*)"', message).decode()
        if method == "initialize":
            server = b'"capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}'
            return [_response(id, b'{"protocolVersion":"2025-06-18",%b}' % server)]
        if method == "tools/list":
            return [_response(id, b'{"tools":[%b]}' % WHOAMI)]
        if not tool:
            error = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32601,"message":"Method not found"}}' % id
            return [] if id == b"null" else [_response(id, b"{}") if method == "ping" else error]
        self.runs[tool] = self.runs.get(tool, 0) + 1
        if tool == "hold":
            self.held.append(_response(id, _result(f"held {key}")))
            return []
        if tool == "release":
            held, self.held = self.held, []
            return [*held, _response(id, _result("released"))]
        if tool == "set":
            self.values[key] = "written"
        if tool == "odd":
            return [_response(id, b'{"content":[],"odd":%b}' % ODD[key])]
        if tool == "form":
            return [FORMS[key] % (id, _result(f"{key} ({self.runs[tool]})"))]
        if tool == "noisy":
            return [b"this is no protocol", b'{"level":30,"msg":"a log"}', _response(id, _result("said it"))]
        if tool == "seen":
            return [_response(id, _result(json.dumps([each.decode("latin-1") for each in self.seen])))]
        return [_response(id, _result(f"{self.values.get(key, 'nothing')} ({self.runs[tool]})"))]


class OddApplication:
    """The server over Streamable HTTP: it answers by JSON, or by events. `whoami` tells all that says who asks; it was
    called `calls` times.
    """

    def __init__(self, *, events: bool = False) -> None:
        self.server = OddServer()
        self.url, self.calls = "", 0
        self._events = events

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if b'"whoami"' in body:
            id = _text(rb'"id"\s*:\s*("[^"]*"|[^\s,}]+)', body)
            self.calls += 1
            told = [scope["query_string"].decode(), *(" ".join(pair) for pair in headers.items())]
            basic = headers.get("authorization", "").startswith("Basic")
            said = [part for part in told if "ada" in part or "bob" in part or (basic and "authorization" in part)]
            answers = [_response(id, _result(" ".join(said)))]
        else:
            answers = self.server.answers(body)
        kind, status = b"application/json", 200 if answers else 202 if scope["method"] == "POST" else 405
        whole = answers[0] if answers else b""
        if self._events and answers:
            kind, whole = (
                b"text/event-stream",
                b"".join(b"event: message\r\ndata: %b\r\n\r\n" % each for each in answers),
            )
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": whole})


def call_of(tool: str, key: str, id: bytes | None, more: bytes = b"") -> bytes:
    """A call of a tool; without an id where that is None."""
    named = b"" if id is None else b'"id":%b,' % id
    arguments = b'{"key":"%b"%b}' % (key.encode(), more)
    params = b'{"name":"%b","arguments":%b}' % (tool.encode(), arguments)
    return b'{"jsonrpc":"2.0",%b"method":"tools/call","params":%b}' % (named, params)


def _text(pattern: bytes, message: bytes) -> bytes:
    found = re.search(pattern, message)
    return found[1] if found else b""


def _response(id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)


def _result(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


if __name__ == "__main__":
    server = OddServer()
    for line in sys.stdin.buffer:
        for answer in server.answers(line.rstrip(b"\n")):
            sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
