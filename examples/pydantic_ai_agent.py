"""An agent of Pydantic AI, replayed from its recording: without network, key and cost.

pip install ".[pydantic-ai]" openai
python examples/pydantic_ai_agent.py             # --record asks the model, and records it anew
"""

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent_cache import AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations.pydantic_ai import AgentCacheCapability
from agent_cache.recording import record, replay

RECORDING = Path(__file__).parent / "recordings/pydantic_ai_agent.jsonl"
URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8765/v1")  # of examples/provider.py, which is not asked
ORDERS = {"W1": "pending"}


def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return ORDERS[order_id]


def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    ORDERS[order_id] = "cancelled"
    return "done"


async def main() -> None:
    """Run it, and show what became of each call of a tool."""
    box = Toolbox({"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}, namespace="shop")
    provider = OpenAIProvider(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = OpenAIChatModel("gpt-5-mini", provider=provider)
    agent = Agent(model, tools=[get_order, cancel_order], capabilities=[AgentCacheCapability(box)])
    async with record(RECORDING, http=True) if "--record" in sys.argv else replay(RECORDING):
        # A third equal call without progress is a loop: the model is told so, in place of an answer.
        async with AgentCacheSession(max_tool_repeats=3, on_loop="notice") as session:
            print((await agent.run("Cancel order W1.")).output)
    for call in session.get_execution_trace():
        print(call.tool.partition(":")[2], call.source, call.outcome)


if __name__ == "__main__":
    asyncio.run(main())
