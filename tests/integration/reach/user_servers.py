"""An MCP server over HTTP that answers with what it is told of its client, by the protocol alone."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

_TOOL = {
    "name": "get_me",
    "description": "Say who asks.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True},
}


class WhoAmI:
    """The server, in a thread.

    Attributes:
        calls: how many calls of its tool it has answered.
    """

    def __init__(self) -> None:
        self.calls = 0
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self._send(405, b"")

            do_DELETE = do_GET

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                if "id" not in message:
                    self._send(202, b"")
                    return
                result = owner.answer(message, self.path, {name.lower(): one for name, one in self.headers.items()})
                unknown = {"error": {"code": -32601, "message": "Method not found"}}
                answer = unknown if result is None else {"result": result}
                self._send(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def answer(self, message: dict[str, Any], path: str, headers: dict[str, str]) -> Any:
        if message["method"] == "initialize":
            version = message["params"].get("protocolVersion", "2025-06-18")
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "who", "version": "1"},
            }
        if message["method"] == "tools/list":
            return {"tools": [_TOOL]}
        if message["method"] == "tools/call":
            self.calls += 1
            seen = [path, headers.get("authorization"), headers.get("x-user")]
            return {"content": [{"type": "text", "text": json.dumps(seen)}]}
        return {} if message["method"] == "ping" else None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
