"""An agent of LangChain, replayed from its recording: without network, key and cost.

    pip install ".[langchain]"
    python examples/langchain_agent.py             # --record runs its tools, and records them anew

Its model is LangChain's own fake one, which plays a script: the tools are what is recorded.
"""

import asyncio
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage

from agent_cache import AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations.langchain import AgentCacheMiddleware
from agent_cache.recording import record, replay

RECORDING = Path(__file__).parent / "recordings/langchain_agent.jsonl"
ORDERS = {"W1": "pending"}
SCRIPT = ["get_order", "get_order", "cancel_order", "get_order", "get_order", "get_order"]


def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return ORDERS[order_id]


def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    ORDERS[order_id] = "cancelled"
    return "done"


class Model(FakeMessagesListChatModel):
    """Calls one tool a turn."""

    def bind_tools(self, tools, **options):
        """Take any tools."""
        return self


async def main() -> None:
    """Run it, and show what became of each call of a tool."""
    box = Toolbox({"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}, namespace="shop")
    calls = [[{"name": name, "args": {"order_id": "W1"}, "id": f"call_{turn}"}] for turn, name in enumerate(SCRIPT)]
    model = Model(responses=[*(AIMessage("", tool_calls=each) for each in calls), AIMessage("Order W1 is cancelled.")])
    agent = create_agent(model, [get_order, cancel_order], middleware=[AgentCacheMiddleware(box)])
    async with record(RECORDING) if "--record" in sys.argv else replay(RECORDING):
        # A third equal call without progress is a loop: the model is told so, in place of an answer.
        async with AgentCacheSession(max_tool_repeats=3, on_loop="notice") as session:
            state = await agent.ainvoke({"messages": [("user", "Cancel order W1.")]})
    print(state["messages"][-1].content)
    for call in session.get_execution_trace():
        print(call.tool.partition(":")[2], call.source, call.outcome)


if __name__ == "__main__":
    asyncio.run(main())
