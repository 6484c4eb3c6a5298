"""A server of MCP for the tests, by the SDK of either era: `python mcp_server.py`.

Its tools count their runs in `runs`. Nothing sleeps: `wait_for` waits until `open_gate` is called.
"""

import os

import anyio

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    is_modern = True
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

    is_modern = False

from mcp.types import ToolAnnotations
from pydantic import BaseModel

READS = ToolAnnotations(**{"read_only_hint" if is_modern else "readOnlyHint": True})
WRITES = ToolAnnotations(**{"read_only_hint" if is_modern else "readOnlyHint": False})

server = MCPServer("tests")
runs: dict[str, int] = {}
values: dict[str, str] = {}
gates: dict[str, anyio.Event] = {}


def count(name: str) -> int:
    runs[name] = runs.get(name, 0) + 1
    return runs[name]


def gate(key: str) -> anyio.Event:
    return gates.setdefault(key, anyio.Event())


@server.tool(annotations=READS)
def get_value(key: str, form: str = "long") -> str:
    """Read a value."""
    return f"{values.get(key, 'nothing')} ({count('get_value')})"


@server.tool(annotations=WRITES)
def set_value(key: str, value: str) -> str:
    """Write a value."""
    values[key] = value
    return f"set ({count('set_value')})"


@server.tool(annotations=READS)
def clock() -> str:
    """A clock, which the hints call a read."""
    return f"tick {count('clock')}"


@server.tool()
def undescribed() -> str:
    """No hint says what it does."""
    return f"done ({count('undescribed')})"


@server.tool(annotations=READS)
async def wait_for(key: str, ctx: Context) -> str:
    """Wait for `open_gate`."""
    number = count(f"wait_for {key}")
    await ctx.report_progress(number, 10)
    await gate(key).wait()
    return f"{key} open ({number})"


@server.tool(annotations=READS)
def open_gate(key: str) -> str:
    """Let `wait_for` go."""
    gate(key).set()
    return "opened"


@server.tool(annotations=READS)
def fail() -> str:
    """Always an error result."""
    raise ToolError(f"refused ({count('fail')})")


class Answer(BaseModel):
    color: str


@server.tool(annotations=READS)
async def ask_host(key: str, ctx: Context) -> str:
    """Ask the host something in the middle."""
    number = count("ask_host")
    answer = await ctx.elicit("Which color?", Answer)
    return f"{answer.data.color} ({number})"


@server.tool(annotations=READS)
def large(size: int) -> str:
    """A large result."""
    count("large")
    return "x" * size


@server.tool(annotations=WRITES)
def die(code: int) -> str:
    """End the process."""
    os._exit(code)


@server.tool(annotations=READS)
async def change_list(ctx: Context) -> str:
    """Say that the tools are others."""
    await ctx.session.send_tool_list_changed()
    return "changed"


@server.tool(annotations=READS)
def run_count(name: str) -> str:
    """How often a tool ran."""
    return str(runs.get(name, 0))


if is_modern:
    import mcp_types

    def question() -> mcp_types.InputRequiredResult:
        form = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
        params = mcp_types.ElicitRequestFormParams(message="Which color?", requested_schema=form)
        return mcp_types.InputRequiredResult(
            input_requests={"q": mcp_types.ElicitRequest(params=params)}, request_state="the state"
        )

    @server.tool(annotations=READS)
    async def read_by_question(key: str, ctx: Context) -> str | mcp_types.InputRequiredResult:
        """Ask the host, as protocol 2026-07-28 does: by a result."""
        number = count("read_by_question")
        answers = ctx.input_responses
        return question() if answers is None else f"{answers['q'].content['color']} ({number})"

    @server.tool(annotations=WRITES)
    async def write_by_question(key: str, ctx: Context) -> str | mcp_types.InputRequiredResult:
        """Likewise, and write."""
        answers = ctx.input_responses
        if answers is None:
            return question()
        values[key] = answers["q"].content["color"]
        return "set"


@server.prompt()
def greet(name: str) -> str:
    """A prompt."""
    return f"Greet {name} ({count('greet')})"


@server.resource("text://{name}")
def text(name: str) -> str:
    """A resource."""
    return f"text of {name} ({count('text')})"


if __name__ == "__main__":
    server.run()
