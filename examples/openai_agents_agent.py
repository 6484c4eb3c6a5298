"""An agent of the OpenAI Agents SDK, replayed from its recording: without network, key and cost.

pip install ".[openai-agents]"
python examples/openai_agents_agent.py             # --record asks the model, and records it anew
"""

import asyncio
import os
import sys
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from agent_cache import AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations.openai_agents import cached
from agent_cache.recording import record, replay

RECORDING = Path(__file__).parent / "recordings/openai_agents_agent.jsonl"
URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8765/v1")  # of examples/provider.py, which is not asked
ORDERS = {"W1": "pending"}


@function_tool
def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return ORDERS[order_id]


@function_tool
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    ORDERS[order_id] = "cancelled"
    return "done"


async def main() -> None:
    """Run it, and show what became of each call of a tool."""
    set_tracing_disabled(True)  # the SDK would send its spans to OpenAI
    box = Toolbox({"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}, namespace="shop")
    client = AsyncOpenAI(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = OpenAIChatCompletionsModel("gpt-5-mini", client)
    agent = cached(Agent("support", model=model, tools=[get_order, cancel_order]), box)
    async with record(RECORDING, http=True) if "--record" in sys.argv else replay(RECORDING):
        # A third equal call without progress is a loop: the model is told so, in place of an answer.
        async with AgentCacheSession(max_tool_repeats=3, on_loop="notice") as session:
            print((await Runner.run(agent, "Cancel order W1.")).final_output)
    for call in session.get_execution_trace():
        print(call.tool.partition(":")[2], call.source, call.outcome)


if __name__ == "__main__":
    asyncio.run(main())
