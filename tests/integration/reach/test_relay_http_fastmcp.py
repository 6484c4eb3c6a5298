"""`agent-cache mcp --url --listen` between a server and a client of FastMCP, which are not those of the MCP SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("fastmcp", reason="both ends are its own")
pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")

from agent_cache.testing import reset
from tests.harness.mcp_http_host import relaying

SERVER = """
import socket, sys
import uvicorn
from fastmcp import Context, FastMCP

server = FastMCP("orders")
runs = {"get": 0}

@server.tool
async def get_order(order_id: str, ctx: Context) -> dict:
    runs["get"] += 1
    await ctx.report_progress(1, 2)
    return {"order_id": order_id, "run": runs["get"]}

@server.tool
def cancel_order(order_id: str) -> str:
    return "cancelled"

@server.resource("text://one")
def one() -> str:
    return "one"

bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
bound.bind(("127.0.0.1", 0))
bound.listen()
sys.stdout.write(f"{bound.getsockname()[1]}\\n")
sys.stdout.flush()
uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error")).run(sockets=[bound])
"""
RULES = """
namespace = "orders"
[tools.get_order]
kind = "read"
tags = ["order:{order_id}"]
[tools.cancel_order]
kind = "write"
tags = ["order:{order_id}"]
"""


async def test_a_client_of_fastmcp_gets_answers_until_a_write(tmp_path):
    from fastmcp import Client

    rules, progress = tmp_path / "rules.toml", []
    rules.write_text(RULES)

    async def on_progress(done, total, message):
        progress.append((done, total))

    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
            async with relaying(url, rules) as relay, Client(relay.url, progress_handler=on_progress) as client:
                assert {tool.name for tool in await client.list_tools()} == {"get_order", "cancel_order"}
                runs = [(await client.call_tool("get_order", {"order_id": "7"})).data["run"] for _ in range(2)]
                assert progress == [(1, 2)]
                await client.call_tool("cancel_order", {"order_id": "7"})
                runs.append((await client.call_tool("get_order", {"order_id": "7"})).data["run"])
                assert runs == [1, 1, 2]
                assert (await client.read_resource("text://one"))[0].text == "one"
        finally:
            process.kill()
            reset()
