"""Plays a provider of models, for whoever has no key: it answers as OpenAI's API does, by a script.

python examples/provider.py            # records all examples anew, from this model
python examples/provider.py --serve    # stays, at $OPENAI_BASE_URL = http://127.0.0.1:8765/v1
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = ["get_order", "get_order", "cancel_order", "get_order", "get_order", "get_order"]
"""The tools that the model calls, one a turn. It reads the same order again and again, and then is told so."""

END = "Order W1 is cancelled."


class Provider(BaseHTTPRequestHandler):
    """Its next step is known by how many it has made in this conversation."""

    def do_POST(self) -> None:
        """Answer `chat/completions`."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": None if turn < len(SCRIPT) else END}
        if turn < len(SCRIPT):
            function = {"name": SCRIPT[turn], "arguments": json.dumps({"order_id": "W1"})}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        reason = "tool_calls" if turn < len(SCRIPT) else "stop"
        usage = {"prompt_tokens": 120 + 40 * turn, "completion_tokens": 20, "total_tokens": 140 + 40 * turn}
        answer = {
            "id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1_790_000_000, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage,
        }  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 8765), Provider)
    if "--serve" in sys.argv:
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model = {"OPENAI_BASE_URL": "http://127.0.0.1:8765/v1", "OPENAI_API_KEY": "none"}
    for example in sorted(Path(__file__).parent.glob("*_agent.py")):
        print(example.name, flush=True)
        subprocess.run([sys.executable, str(example), "--record"], check=True, env={**os.environ, **model})
