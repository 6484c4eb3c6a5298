"""A server of MCP that runs a write as a task of the protocol (2025-11-25), for mcp 1: `python mcp_task_server.py`."""

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server = Server("tasks")
server.experimental.enable_tasks()
gate = anyio.Event()
values: dict[str, str] = {}
reads = 0

KEY = {"type": "object", "properties": {"key": {"type": "string"}}}


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    as_task = types.ToolExecution(taskSupport="required")
    return [
        types.Tool(name="get_value", inputSchema=KEY),
        types.Tool(name="set_later", inputSchema=KEY, execution=as_task),
        types.Tool(name="read_later", inputSchema=KEY, execution=as_task),
        types.Tool(name="release", inputSchema={"type": "object"}),
    ]


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, str]) -> object:
    global reads
    if name == "get_value":
        reads += 1
        return [types.TextContent(type="text", text=f"{values.get(arguments['key'], 'nothing')} ({reads})")]
    if name == "release":
        gate.set()
        return [types.TextContent(type="text", text="released")]

    async def work(task: object) -> types.CallToolResult:
        await gate.wait()
        if name == "set_later":
            values[arguments["key"]] = "x"
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return await server.request_context.experimental.run_task(work)


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
