"""An agent whose tools are those of an MCP server, replayed from its recording: without network, key and cost.

pip install ".[mcp]"
python examples/mcp_agent.py             # --record asks the model, and records it anew
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server.mcpserver import MCPServer

from agent_cache import AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations.mcp_client import CachedClient
from agent_cache.recording import cached_llm_call, record, replay

RECORDING = Path(__file__).parent / "recordings/mcp_agent.jsonl"
ORDERS = {"W1": "pending"}
server = MCPServer("shop")  # somebody else's: any server that a client reaches


@server.tool()
def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return ORDERS[order_id]


@server.tool()
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    ORDERS[order_id] = "cancelled"
    return "done"


@cached_llm_call(name="model")
async def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask the model for its next message."""
    from openai import AsyncOpenAI  # for a recording alone: a replay does not come here

    answer = await AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=messages, tools=tools)
    return answer.choices[0].message.model_dump(exclude_none=True)


async def agent(client: CachedClient, question: str) -> str:
    """Let the model call tools until it has an answer."""
    described = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
        for tool in (await client.list_tools()).tools
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    while calls := (message := await ask(messages, described)).get("tool_calls"):
        messages.append(message)
        for call in calls:
            function = call["function"]
            answer = await client.call_tool(function["name"], json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer.content[0].text})
    return str(message["content"])


async def main() -> None:
    """Run it, and show what became of each call of a tool."""
    box = Toolbox({"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}, namespace="shop")
    async with Client(server) as client, record(RECORDING) if "--record" in sys.argv else replay(RECORDING):
        # A third equal call without progress is a loop: the model is told so, in place of an answer.
        async with AgentCacheSession(max_tool_repeats=3, on_loop="notice") as session:
            print(await agent(CachedClient(client, box), "Cancel order W1."))
    for call in session.get_execution_trace():
        print(call.tool.partition(":")[2], call.source, call.outcome)


if __name__ == "__main__":
    asyncio.run(main())
