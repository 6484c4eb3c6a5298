"""Lists of tools in pages: they end where the server's cursor does not advance."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("mcp", reason="the clients of these tests are its SDK's")

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from agent_cache import Read, Toolbox
from agent_cache.integrations.mcp_client import CachedClient
from tests.harness.mcp_host import RELAY

SERVER = """
import json, sys
cursors = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    hello = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    result = {**hello, "serverInfo": {"name": "p", "version": "1"}}
    if message["method"] == "tools/list":
        cursor = (message.get("params") or {}).get("cursor", "first")
        hints = {"readOnlyHint": True}
        tool = {"name": f"tool {cursor}", "inputSchema": {"type": "object"}, "annotations": hints}
        result = {"tools": [tool], "nextCursor": cursors.get(cursor)}
        if result["nextCursor"] is None and cursors.get("omits"):
            del result["nextCursor"]
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

REPEATED = {"first": "same", "same": "same"}
EMPTY = {"first": "", "": "last"}
LISTS = [
    (REPEATED, ["tool first", "tool same"]),
    (EMPTY, ["tool first", "tool ", "tool last"]),
    ({"first": None}, ["tool first"]),
    ({"omits": True}, ["tool first"]),
]


def server(cursors):
    return sys.executable, "-c", SERVER, json.dumps(cursors)


@asynccontextmanager
async def client_of(cursors):
    command, *arguments = server(cursors)
    async with (
        stdio_client(StdioServerParameters(command=command, args=arguments)) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        yield CachedClient(session, Toolbox({"tool*": Read("x")}, namespace="pages"))


@pytest.mark.parametrize(("cursors", "tools"), LISTS)
async def test_a_client_has_every_page_once(cursors, tools):
    async with client_of(cursors) as client:
        assert [tool.name for tool in await client.tools()] == tools
        assert (await client.call_tool("tool first", {})).content[0].text == "tool first"


@pytest.mark.parametrize(("cursors", "tools"), LISTS)
async def test_explain_prints_every_page_once(cursors, tools):
    code, shown, errors = await explained(cursors)
    assert code == 0, errors
    found = [line.partition(" = ")[0] for line in shown if line.startswith("# tools.")]
    assert found == [f'# tools."{name}"' for name in tools]


async def explained(cursors):
    process = await asyncio.create_subprocess_exec(
        *RELAY, "--explain", "--", *server(cursors), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    shown, errors = await process.communicate()
    return process.returncode, shown.decode().splitlines(), errors.decode()
