"""A shop as a server of the MCP SDK alone, of version 1 or 2, over stdio: ``python sdk_shop.py``."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from typing import Any

if version("mcp").startswith("1."):
    from mcp.server.fastmcp import FastMCP as Server
else:
    from mcp.server.mcpserver import MCPServer as Server

server: Any = Server("shop")
runs: list[str] = []


@server.tool(structured_output=True)
async def get_order(order_id: str, page: int = 1) -> dict[str, Any]:
    """How an order stands."""
    runs.append("get_order")
    return {"id": order_id, "run": len(runs), "note": None}


@server.tool()
async def get_refused(order_id: str) -> str:
    """Fail."""
    runs.append("get_refused")
    raise ValueError("no such order")


@server.tool()
async def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    runs.append("cancel_order")
    return "cancelled"


@server.tool()
async def cancel_slowly(order_id: str) -> str:
    """Never answer."""
    runs.append("cancel_slowly")
    await asyncio.Event().wait()
    return "never"


@server.tool()
async def cancel_and_die(order_id: str) -> str:
    """End the process."""
    os._exit(1)


@server.tool()
async def get_same() -> str:
    """Say the same, again and again."""
    return "the same"


@server.tool(name="count_runs")
async def count_sdk_runs() -> int:
    """How many tools have run."""
    return len(runs)


if __name__ == "__main__":
    server.run()
