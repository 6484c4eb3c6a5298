"""A server of MCP without any library, which counts its runs in a file that several processes share.

``python plain_mcp_server.py COUNTER``. It knows the tools `get_value`, `set_value` and `die`, and answers batches as
batches, as servers of protocol 2025-03-26 did.
"""

import json
import os
import sys
from pathlib import Path

COUNTER = Path(sys.argv[1])
TOOLS = [
    {"name": "get_value", "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}}},
    {"name": "set_value", "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}}},
    {"name": "die", "inputSchema": {"type": "object"}},
    {"name": "odd_number", "inputSchema": {"type": "object", "properties": {}}},
]


def count() -> int:
    with COUNTER.open("a") as file:
        file.write("x")
    return COUNTER.stat().st_size


def answer(message: dict) -> dict | None:
    method = message.get("method")
    if "id" not in message or method is None:
        return None
    result: dict = {}
    if method == "initialize":
        capabilities = {"tools": {}}
        info = {"name": "plain", "version": "1"}
        result = {"protocolVersion": "2025-03-26", "capabilities": capabilities, "serverInfo": info}
    elif method == "tools/list":  # two tools a page
        begin = int(message.get("params", {}).get("cursor", 0))
        result = {"tools": TOOLS[begin : begin + 2]}
        if begin + 2 < len(TOOLS):
            result["nextCursor"] = str(begin + 2)
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "die":
            os._exit(3)
        result = {"content": [{"type": "text", "text": f"{name} ({count()})"}]}
        if name == "odd_number":
            result["number"] = float("nan")
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


for line in sys.stdin:
    try:
        found = json.loads(line)
    except ValueError:
        continue
    if isinstance(found, list):
        answers = [each for each in map(answer, found) if each is not None]
        text = json.dumps(answers) if answers else ""
    else:
        one = answer(found)
        text = "" if one is None else json.dumps(one)
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
