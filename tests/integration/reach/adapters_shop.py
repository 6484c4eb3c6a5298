"""A server of MCP's SDK of version 1, over stdio, for the tests of langchain-mcp-adapters."""

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

server = FastMCP("shop", log_level="WARNING")
runs: list[str] = []


@server.tool()
def get_order(order_id: str, page: int = 1) -> dict[str, str]:
    """Say how an order stands."""
    runs.append(f"get {order_id} {page}")
    if order_id == "lost":
        raise ValueError("no such order")
    return {"id": order_id, "runs": str(len(runs))}


@server.tool()
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    runs.append(f"cancel {order_id}")
    return "ok"


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def say_again() -> str:
    """Say the same, again and again."""
    return "the same"


@server.tool()
def list_runs() -> list[str]:
    """What has run."""
    return runs


if __name__ == "__main__":
    server.run()
