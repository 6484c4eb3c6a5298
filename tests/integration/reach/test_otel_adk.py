"""Google ADK's own span of a tool call is annotated. It gets its attributes when it ends, and is known by its name."""

from __future__ import annotations

import pytest

pytest.importorskip("google.adk", reason="the adapter of Google ADK needs google-adk")
pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')

from tests.harness.processes import run_python

# In a process of its own, since ADK takes the global provider, which can be set once.
PROGRAM = """
import asyncio
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from opentelemetry import trace
from agent_cache import AgentCacheSession, Read, Toolbox, Write, otel
from agent_cache.integrations.adk import cached
from tests.harness.scripted_models import adk_model
from tests.harness.telemetry import Telemetry

telemetry = Telemetry()
trace.set_tracer_provider(telemetry.tracers)
otel.instrument(telemetry.tracers, telemetry.meters)
TURNS = [[(name, {"order": "W1"})] for name in ("get_order", "get_order", "cancel_order")]

def get_order(order: str) -> str:
    return "pending"

async def cancel_order(order: str) -> str:
    return "cancelled"

async def main():
    rules = {"get_order": Read("adk_otel:{order}"), "cancel_order": Write("adk_otel:{order}")}
    box = Toolbox(rules, namespace="adk_otel")
    agent = cached(LlmAgent(name="shop", model=adk_model(*TURNS), tools=[get_order, cancel_order]), box)
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="ann")
    content = types.Content(role="user", parts=[types.Part(text="hi")])
    async with AgentCacheSession():
        async for _ in runner.run_async(user_id="ann", session_id=session.id, new_message=content):
            pass

asyncio.run(main())
for span in telemetry.spans():
    if span.name.startswith("execute_tool"):
        print(span.name, span.instrumentation_scope.name != "agent_cache", span.attributes.get("agent_cache.source"))
"""


def test_the_spans_of_google_adk_are_annotated():
    assert run_python(PROGRAM, "-W", "ignore").splitlines() == [
        "execute_tool get_order True miss",
        "execute_tool get_order True None",
        "execute_tool cancel_order True write",
    ]
