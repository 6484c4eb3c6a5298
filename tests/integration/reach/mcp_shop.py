"""A shop as a FastMCP server, in this process and over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult, ToolAnnotations

from agent_cache import Read, Toolbox, Watch, Write

READ_ONLY = ToolAnnotations(read_only_hint=True)


def rules() -> dict[str, Any]:
    order = "order:{order_id}"
    return {
        "get_*": Read(order, ttl=60),
        "list_orders": Read("order", ttl=60),
        "cancel_*": Write(order),
        "now": Watch(),
    }


def new_box(namespace: str = "shop", **options: Any) -> Toolbox:
    return Toolbox(rules(), namespace=namespace, **options)


class Shop:
    """The server; `runs` has the name of each tool that has run."""

    def __init__(self, *middleware: Any, **options: Any) -> None:
        self.runs: list[str] = []
        self.server: FastMCP[Any] = FastMCP("shop", middleware=list(middleware), **options)
        self.add_tools()

    def add_tools(self) -> None:
        server, runs = self.server, self.runs

        @server.tool(annotations=READ_ONLY)
        async def get_order(order_id: str, full: bool = False) -> dict[str, Any]:
            """How an order stands."""
            runs.append("get_order")
            return {"id": order_id, "run": len(runs), "note": None}

        @server.tool
        async def get_refused(order_id: str) -> str:
            runs.append("get_refused")
            raise ToolError("no such order")

        @server.tool
        async def get_error(order_id: str) -> ToolResult:
            runs.append("get_error")
            return ToolResult("try later", is_error=True)

        @server.tool
        async def get_elicited(order_id: str, ctx: Context) -> str:
            runs.append("get_elicited")
            answer = await ctx.elicit("sure?", str)
            return str(answer.action)

        @server.tool
        async def get_state(order_id: str, ctx: Context) -> str:
            runs.append("get_state")
            return str(await ctx.get_state("seen"))

        @server.tool
        async def get_set_state(order_id: str, ctx: Context) -> str:
            runs.append("get_set_state")
            await ctx.set_state("seen", order_id)
            return "set"

        @server.tool
        async def get_guarded(order_id: str, ctx: Context) -> str | InputRequiredResult:
            runs.append("get_guarded")
            if ctx.input_responses is None:
                question = ElicitRequestFormParams(
                    message="sure?", requested_schema={"type": "object", "properties": {}}
                )
                return InputRequiredResult(input_requests={"sure": ElicitRequest(params=question)}, request_state="one")
            return f"{order_id} {ctx.request_state}"

        @server.tool
        async def list_orders() -> list[str]:
            runs.append("list_orders")
            return ["1", "2"]

        @server.tool
        async def cancel_order(order_id: str) -> str:
            runs.append("cancel_order")
            return "cancelled"

        @server.tool
        async def now() -> str:
            runs.append("now")
            return str(len(runs))


@contextmanager
def over_http(server: FastMCP[Any], **options: Any) -> Iterator[str]:
    """Serve on a free port of loopback, in a thread; gives the URL."""
    config = uvicorn.Config(server.http_app(**options), port=0, log_level="critical", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        thread.join()
