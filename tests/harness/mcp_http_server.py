"""The server of `mcp_server`, over Streamable HTTP: `python mcp_http_server.py [json|resumable|guarded]`.

It prints its port.

`guarded` asks for a token, as OAuth has it. Each request's headers are kept, and `/seen` tells them.
"""

import json
import socket
import sys
from importlib import import_module
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parent))
tests = import_module("mcp_server")
server, is_modern = tests.server, tests.is_modern
seen: list[list[object]] = []


@server.tool(annotations=tests.READS)
def whoami(ctx: tests.Context) -> str:
    """Who asks."""
    number = tests.count("whoami")
    request = ctx.request_context.request
    return f"{request.headers.get('authorization', 'nobody')} ({number})"


@server.tool(annotations=tests.READS)
async def drop_stream(ctx: tests.Context) -> str:
    """Close the connection before the answer is there: the host has to resume it."""
    number = tests.count("drop_stream")
    await ctx.report_progress(1, 2)
    await ctx.request_context.close_sse_stream()
    return f"resumed ({number})"


@server.tool(annotations=tests.WRITES)
async def slow_write(key: str, ctx: tests.Context, leave: bool = False) -> str:
    """Write, after `open_gate`. Its host may have to poll."""
    await ctx.report_progress(1, 2)
    if leave:
        await ctx.request_context.close_sse_stream()
    await tests.gate(key).wait()
    tests.values[key] = "written"
    return "written"


class Events:
    """Keeps events, so that streams can be resumed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    async def store_event(self, stream_id: str, message: object) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback) -> str:
        message_class = import_module("mcp.server.streamable_http").EventMessage
        stream_id = self.events[int(last_event_id) - 1][0]
        for number, (stream, message) in enumerate(self.events[int(last_event_id) :], int(last_event_id) + 1):
            if stream == stream_id and message is not None:
                await send_callback(message_class(message, str(number)))
        return stream_id


async def shown(scope, receive, send):
    """The application, and what it has seen."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    headers = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    status, kind, body, more = None, b"application/json", b"", []
    if scope["path"] == "/seen":
        status, body = 200, json.dumps(seen).encode()
    elif scope["path"].startswith("/.well-known/oauth-protected-resource"):
        found = {"resource": "http://the.server/mcp", "query": scope["query_string"].decode()}
        status, body = 200, json.dumps(found).encode()
    elif mode == "guarded" and "authorization" not in dict(headers):
        status, body = 401, b'{"error":"invalid_token"}'
        more = [(b"www-authenticate", b'Bearer resource_metadata="http://the.server/.well-known/x"')]
        more += [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    else:
        if dict(headers).get("x-request-id") == "hold":  # it comes in once the gate is open
            await tests.gate("hold").wait()
        seen.append([scope["method"], scope["path"], headers])
    if status is None:
        await app(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *more]})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    events = Events() if mode == "resumable" else None
    if is_modern:
        app = server.streamable_http_app(json_response=mode == "json", event_store=events, retry_interval=10)
    else:
        server.settings.json_response = mode == "json"
        server._event_store, server._retry_interval = events, 10
        app = server.streamable_http_app()
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    sys.stdout.write(f"{bound.getsockname()[1]}\n")
    sys.stdout.flush()  # who connects now waits until the server runs
    uvicorn.Server(uvicorn.Config(shown, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[bound])
