"""Requests of a tool, which OpenTelemetry's own instrumentation of httpx traces, inside of the spans of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')
pytest.importorskip("httpx", reason='pip install "agent-cache[clients]" brings httpx')
pytest.importorskip("opentelemetry.instrumentation.httpx", reason="pip install opentelemetry-instrumentation-httpx")

import httpx
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, otel, testing
from tests.harness.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    testing.reset()
    made = Telemetry()
    otel.instrument(made.tracers, made.meters)
    yield made
    testing.reset()
    made.close()


def requests_in(telemetry: Telemetry, name: str) -> list[str]:
    """The requests that were made inside of the one span with this name."""
    span = telemetry.span(f"execute_tool {name}", agent_cache__source="miss")
    inside = [one for one in telemetry.spans() if one.parent is not None and one.parent.span_id == span.context.span_id]
    for one in inside:
        assert span.start_time <= one.start_time <= one.end_time <= span.end_time
        assert one.context.trace_id == span.context.trace_id
    return [f"{one.name} {one.attributes['http.url'].rpartition('/')[2]}" for one in inside]


async def test_requests_are_inside_of_the_span_of_their_miss_and_a_hit_makes_none(telemetry, server):
    async with httpx.AsyncClient(base_url=server.url) as client:
        HTTPXClientInstrumentor.instrument_client(client, tracer_provider=telemetry.tracers)

        @AgentCache("otel_http:{order_id}", name="otel_http_order")
        async def get_order(order_id: str) -> int:
            first, second = await asyncio.gather(client.get(f"/order?{order_id}"), client.get("/user"))
            return int(first.status_code + second.status_code)

        @AgentCacheInvalidator("otel_http:{order_id}", name="otel_http_cancel")
        async def cancel_order(order_id: str) -> int:
            return int((await client.post("/cancel")).status_code)

        async with AgentCacheSession():
            assert await asyncio.gather(get_order("7"), get_order("7")) == [400, 400]
            assert await get_order("7") == 400
            await cancel_order("7")
    assert sorted(requests_in(telemetry, "otel_http_order")) == ["GET order?7", "GET user"]
    write = telemetry.span("execute_tool otel_http_cancel")
    (post,) = telemetry.spans("POST")
    assert post.parent.span_id == write.context.span_id
    (shared,) = telemetry.spans("execute_tool otel_http_order", agent_cache__source="shared")
    assert telemetry.spans("execute_tool otel_http_order", agent_cache__source="hit") == []
    assert shared.context.span_id not in {one.parent.span_id for one in telemetry.spans() if one.parent is not None}
    assert len(server.requests) == 3
