"""Spans that frameworks make for the calls of their tools are annotated, and no second ones are made beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')
pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed")

from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

from agent_cache import AgentCache, AgentCacheSession, Read, Toolbox, Write, otel, testing
from agent_cache.integrations.pydantic_ai import AgentCacheCapability
from tests.harness.processes import run_python
from tests.harness.scripted_models import pydantic_model
from tests.harness.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    testing.reset()
    made = Telemetry()
    yield made
    testing.reset()
    made.close()


def get_order(order_id: str) -> str:
    return f"order {order_id} is pending"


async def cancel_order(order_id: str) -> str:
    if order_id == "none":
        raise LookupError("there is no such order")
    return "cancelled"


@AgentCache("reach_otel_user:{user}")
async def get_user(user: str) -> str:
    return user


def agent_of(telemetry: Telemetry, calls: list[tuple[str, dict[str, str]]]) -> Agent[None, str]:
    """An agent whose model makes these calls, and which is instrumented by its own framework."""
    rules = {"get_order": Read("reach_otel_order:{order_id}"), "cancel_order": Write("reach_otel_order:{order_id}")}
    agent = Agent(
        pydantic_model(*[[call] for call in calls]),
        tools=[get_order, cancel_order, get_user],
        capabilities=[AgentCacheCapability(Toolbox(rules, namespace="reach_otel"))],
    )
    agent.instrument = InstrumentationSettings(tracer_provider=telemetry.tracers, include_content=False)
    return agent


ORDER, USER = {"order_id": "W1"}, {"user": "ann"}
CALLS = [("get_order", ORDER), ("get_order", ORDER), ("cancel_order", ORDER), ("get_user", USER), ("get_user", USER)]


async def test_the_spans_of_pydantic_ai_are_annotated(telemetry):
    otel.instrument(telemetry.tracers, telemetry.meters, content=True)
    async with AgentCacheSession("chat"):
        await agent_of(telemetry, CALLS).run("Cancel it.")
    ((session, (run, *steps)),) = telemetry.tree()
    assert (session, run) == ("agent_cache.session", "invoke_agent agent")
    chat = ["chat function:answer:stream"]
    # The span of a hit is the framework's alone
    told = ("get_order miss", "get_order", "cancel_order write", "get_user miss", "get_user")
    assert steps == [chat, *(step for one in told for step in ([f"execute_tool {one}"], chat))]
    miss = telemetry.span("execute_tool get_order", agent_cache__source="miss")
    assert miss.instrumentation_scope.name == "pydantic-ai"
    assert miss.attributes["agent_cache.tool"] == "reach_otel:get_order"
    assert miss.attributes["gen_ai.tool.call.id"]
    assert "gen_ai.tool.call.arguments" not in miss.attributes  # whose content that is decides the framework
    assert telemetry.span("agent_cache.session").attributes["agent_cache.hits"] == 2


async def test_a_failure_is_told_by_the_framework_and_ours_says_where_it_came_from(telemetry):
    otel.instrument(telemetry.tracers, telemetry.meters)
    with pytest.raises(LookupError):
        await agent_of(telemetry, [("cancel_order", {"order_id": "none"})]).run("Cancel it.")
    span = telemetry.span("execute_tool cancel_order")
    assert span.attributes["agent_cache.source"] == "write"
    assert not span.status.is_ok
    (attributes,) = (dict(key) for key in telemetry.points("gen_ai.execute_tool.duration"))
    assert attributes["error.type"] == "LookupError"


FASTMCP = """
import asyncio
from fastmcp import Client, FastMCP
from opentelemetry import trace
from agent_cache import AgentCache, Read, Toolbox, otel
from agent_cache.integrations.fastmcp import AgentCacheMiddleware
from tests.harness.telemetry import Telemetry

telemetry = Telemetry()
trace.set_tracer_provider(telemetry.tracers)
otel.instrument(telemetry.tracers, telemetry.meters)
mcp = FastMCP("shop")

@mcp.tool
@AgentCache("reach_otel_stock:{item}")
async def get_stock(item: str) -> str:
    return item

async def use():
    async with Client(mcp) as client:
        for _ in range(2):
            await client.call_tool("get_stock", {"item": "tea"})

asyncio.run(use())
named = [one for one in telemetry.spans() if (one.attributes or {}).get("agent_cache.tool")]
print([(one.name, one.kind.name, one.attributes["agent_cache.source"]) for one in named])
print([one.name for one in telemetry.spans() if one.instrumentation_scope.name == "agent_cache"])
"""


def test_the_span_of_fastmcp_for_a_decorated_tool_is_annotated():
    pytest.importorskip("fastmcp", reason="FastMCP is not installed")
    assert run_python(FASTMCP).splitlines() == ["[('tools/call get_stock', 'SERVER', 'miss')]", "[]"]
