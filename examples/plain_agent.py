"""An agent in a plain loop, replayed from its recording: without network, key and cost.

python examples/plain_agent.py             # needs agent-cache alone
python examples/plain_agent.py --record    # asks OpenAI, or the model of $OPENAI_BASE_URL, and records it anew
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.recording import cached_llm_call, record, replay

RECORDING = Path(__file__).parent / "recordings/plain_agent.jsonl"
ORDERS = {"W1": "pending"}


@AgentCache("order:{order_id}")  # what the answer depends on
async def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return ORDERS[order_id]


@AgentCacheInvalidator("order:{order_id}")  # what the write changes
async def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    ORDERS[order_id] = "cancelled"
    return "done"


TOOLS = {"get_order": get_order, "cancel_order": cancel_order}
ORDER_ID = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
DESCRIBED = [
    {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": ORDER_ID}}
    for name, tool in TOOLS.items()
]


@cached_llm_call(name="model")
async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask the model for its next message."""
    from openai import AsyncOpenAI  # for a recording alone: a replay does not come here

    answer = await AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=messages, tools=DESCRIBED)
    return answer.choices[0].message.model_dump(exclude_none=True)


async def agent(question: str) -> str:
    """Let the model call tools until it has an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    while calls := (message := await ask(messages)).get("tool_calls"):
        messages.append(message)
        for call in calls:
            function = call["function"]
            answer = await TOOLS[function["name"]](**json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    return str(message["content"])


async def main() -> None:
    """Run it, and show what became of each call of a tool."""
    async with record(RECORDING) if "--record" in sys.argv else replay(RECORDING):
        # A third equal call without progress is a loop: the model is told so, in place of an answer.
        async with AgentCacheSession(max_tool_repeats=3, on_loop="notice") as session:
            print(await agent("Cancel order W1."))
    for call in session.get_execution_trace():
        print(call.tool.partition(":")[2], call.source, call.outcome)


if __name__ == "__main__":
    asyncio.run(main())
