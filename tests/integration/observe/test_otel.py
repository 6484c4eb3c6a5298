"""What `agent_cache.otel` exports, read from the SDK's exporters in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ConfigurationError, configure, otel
from agent_cache.testing import reset
from tests.harness import page_examples
from tests.harness.telemetry import Telemetry

PAGE = "how-to/export-metrics-and-spans.md"
SECRET = "sk-proj-" + "Zq9xK2" * 8


class Card(NamedTuple):
    user: str
    password: str


@AgentCache("otel_order:{order_id}")
async def get_order(order_id: str, password: str = "") -> str:
    await asyncio.sleep(0)
    return f"order {order_id}"


@AgentCache("otel_order:{order_id}")
async def get_summary(order_id: str) -> list[str]:
    return [await get_order(order_id), await get_order(order_id)]


@AgentCacheInvalidator("otel_order:{order_id}")
async def cancel_order(order_id: str) -> str:
    return "cancelled"


@AgentCache("otel_stock:{item}")
def get_stock(item: str) -> int:
    return len(item)


@AgentCacheInvalidator("otel_stock:{item}")
def sell(item: str) -> None:
    if not item:
        raise ValueError("empty")


@AgentCache("otel_rate")
async def get_rate(currency: str) -> float:
    raise LookupError(f"no rate of {currency}, api_key={SECRET}")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.close()


@pytest.fixture
def instrument(telemetry: Telemetry) -> Callable[..., otel.Instrumentation]:
    def instrument(**options: Any) -> otel.Instrumentation:
        return otel.instrument(telemetry.tracers, telemetry.meters, **options)

    return instrument


# Live spans


async def test_a_miss_a_write_and_an_uncached_call_have_spans_with_the_names_of_the_conventions(instrument, telemetry):
    instrument()
    await get_order("1")
    await cancel_order("1")
    with agent_cache.bypass():
        await get_order("1")
    await asyncio.gather(get_order("2"), get_order("2"))
    get_stock("tea")
    sell("tea")
    kinds = [(span.name, span.attributes["agent_cache.source"]) for span in telemetry.spans()]
    assert kinds == [
        ("execute_tool get_order", "miss"),
        ("execute_tool cancel_order", "write"),
        ("execute_tool get_order", "uncached"),
        ("execute_tool get_order", "miss"),
        ("execute_tool get_order", "shared"),
        ("execute_tool get_stock", "miss"),
        ("execute_tool sell", "write"),
    ]
    miss = telemetry.spans()[0]
    assert miss.kind is SpanKind.INTERNAL
    assert miss.status.status_code is StatusCode.UNSET
    assert dict(miss.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "get_order",
        "gen_ai.tool.type": "function",
        "agent_cache.tool": f"{__name__}:get_order",
        "agent_cache.source": "miss",
        "gen_ai.tool.cache.hit": False,
    }


async def test_a_hit_has_no_live_span(instrument, telemetry):
    instrument()
    for _ in range(2):
        telemetry.clear()
        await get_order("1")
        get_stock("tea")
    assert telemetry.spans() == []


async def test_a_span_of_a_framework_for_this_tool_is_annotated_and_not_doubled(instrument, telemetry):
    instrument()
    tracer = telemetry.tracers.get_tracer("framework")
    named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_order"}
    with tracer.start_as_current_span("running tool", attributes=named):
        await get_summary("1")  # another tool, although inside of that span
    assert telemetry.tree() == [
        ["running tool", ["execute_tool get_summary miss", ["execute_tool get_order miss"]]],
    ]
    telemetry.clear()
    with tracer.start_as_current_span("running tool", attributes=named):
        await get_order("2")
    with tracer.start_as_current_span(
        "get_order", attributes={"openinference.span.kind": "TOOL", "tool.name": "get_order"}
    ):
        await get_order("3")
    with tracer.start_as_current_span("execute_tool get_order"):  # of one that sets its attributes at the end
        await get_order("4")
    assert telemetry.tree() == [["running tool miss"], ["get_order miss"], ["execute_tool get_order miss"]]
    assert {one.instrumentation_scope.name for one in telemetry.spans()} == {"framework"}
    assert telemetry.span("running tool").attributes["agent_cache.tool"] == f"{__name__}:get_order"
    assert sum(telemetry.points("gen_ai.execute_tool.duration").values()) == 5


async def test_a_stream_has_one_span_that_its_reads_are_inside_of(instrument, telemetry):
    instrument(content=True)

    @AgentCache("otel_lines:{name}", name="otel_lines")
    async def lines(name: str) -> AsyncIterator[str]:
        for number in ("1", "2"):
            yield await get_order(number)

    assert [line async for line in lines("a")] == ["order 1", "order 2"]
    assert telemetry.tree() == [
        ["execute_tool otel_lines miss", ["execute_tool get_order miss"], ["execute_tool get_order miss"]],
    ]
    result = telemetry.span("execute_tool otel_lines").attributes["gen_ai.tool.call.result"]
    assert json.loads(result) == {"$tuple": ["order 1", "order 2"]}
    telemetry.clear()
    stopped = lines("b")
    await anext(stopped)
    await stopped.aclose()
    span = telemetry.span("execute_tool otel_lines")
    assert span.status.status_code is StatusCode.UNSET, "a reader may stop"
    assert not {"error.type", "gen_ai.tool.call.result"} & span.attributes.keys()
    assert not any("error.type" in dict(key) for key in telemetry.points("gen_ai.execute_tool.duration"))


# Content


async def test_arguments_results_and_errors_are_exported_only_with_content_and_without_secrets(instrument, telemetry):
    @AgentCache(["otel_card:{card.user}", "otel_key:{card.password}", "otel_key:{result[token]}"], name="otel_card")
    async def get_card(card: Card) -> dict[str, Any]:
        return {"user": card.user, "note": f"the key is {SECRET}", "token": "tok-123456789", "lines": ["a", 1]}

    card = Card("ann", "hunter2-hunter2")
    instrument()
    await get_card(card)
    assert "ann" not in telemetry.span("execute_tool otel_card").to_json()
    telemetry.clear()

    instrument(content=True)
    await get_card.refresh(card)
    await get_order("7", password="hunter2-hunter2")
    with pytest.raises(LookupError):
        await get_rate("EUR")
    text = "".join(span.to_json() for span in telemetry.spans())
    assert SECRET not in text
    assert "hunter2" not in text
    assert "tok-123456789" not in text
    span = telemetry.span("execute_tool otel_card")
    assert json.loads(span.attributes["gen_ai.tool.call.result"])["lines"] == ["a", 1]
    assert "ann" in span.attributes["gen_ai.tool.call.arguments"]
    assert sorted({*span.attributes["agent_cache.tags"]}) == ["otel_card:ann", "otel_key:[redacted]"]
    arguments = json.loads(telemetry.span("execute_tool get_order").attributes["gen_ai.tool.call.arguments"])
    assert arguments == {"order_id": "7", "password": "[redacted]"}
    failed = telemetry.span("execute_tool get_rate")
    assert failed.status.description == "no rate of EUR, api_key=[redacted]"
    (event,) = failed.events
    assert dict(event.attributes) == {"exception.type": "LookupError", "exception.message": failed.status.description}


async def test_a_session_has_a_span_with_what_its_calls_were(instrument, telemetry):
    instrument()
    async with AgentCacheSession("chat") as session:
        for _ in range(4):
            await get_order("1")
        await cancel_order("1")
        with pytest.raises(LookupError):
            await get_rate("EUR")
    span = telemetry.span("agent_cache.session")
    counts = {key.removeprefix("agent_cache."): value for key, value in span.attributes.items() if "agent_" in key}
    assert counts.pop("time_saved") == session.get_metrics()["time_saved"] > 0
    none = dict.fromkeys(("shared", "validated", "uncached", "loop_detections"), 0)
    own = {"hits": 3, "misses": 2, "writes": 1, "errors": 1, f"hits_of.{__name__}:get_order": 3}
    assert counts == none | own
    assert span.attributes["gen_ai.conversation.id"] == "chat"
    assert span.status.status_code is StatusCode.UNSET
    inside = telemetry.spans(gen_ai__operation__name="execute_tool")
    assert {one.attributes["gen_ai.conversation.id"] for one in inside} == {"chat"}
    calls = [["execute_tool get_order miss"], ["execute_tool cancel_order write"], ["execute_tool get_rate miss"]]
    assert telemetry.tree() == [["agent_cache.session", *calls]]
    async with session:  # its counters go on, and this span has those of this block
        await get_order("1")
    assert telemetry.spans("agent_cache.session")[-1].attributes["agent_cache.misses"] == 1


# What fails


class Raising(SpanProcessor):
    """A processor that fails at the start and at the end of a span."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("a processor that fails")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("a processor that fails")


class RaisingExporter(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError("an exporter that fails")


@pytest.mark.parametrize("processor", [Raising(), SimpleSpanProcessor(RaisingExporter()), None])
async def test_what_raises_is_logged_once_and_changes_no_call(processor, caplog):
    """Nor does a provider that records nothing."""
    provider, telemetry = TracerProvider(shutdown_on_exit=False), Telemetry()
    if processor is not None:
        provider.add_span_processor(processor)
    otel.instrument(provider if processor else trace.NoOpTracerProvider(), telemetry.meters, content=True)
    async with AgentCacheSession():
        assert await get_summary("1") == ["order 1", "order 1"]
        await cancel_order("1")
        with pytest.raises(LookupError):
            await get_rate("EUR")
        get_stock("tea")
        sell("tea")
    assert sum(telemetry.points("gen_ai.execute_tool.duration").values()) == 6  # metrics do not depend on spans
    telemetry.close()
    assert trace.get_current_span() is trace.INVALID_SPAN
    ours = [record for record in caplog.records if record.name == "agent_cache"]
    assert len(ours) == isinstance(processor, Raising)
    assert all("a processor that fails" in record.getMessage() for record in ours)


# One instrumentation at a time


async def test_it_is_taken_away(instrument, telemetry):
    seen = []

    async def observe(call: Any, proceed: Any) -> Any:
        seen.append(call.tool)
        return await proceed()

    with configure(middleware=(observe,)):
        with instrument() as made:
            configure(middleware=(observe,))
            await get_order("1")
            assert made.is_active
        await get_order("2")
        async with AgentCacheSession():
            await cancel_order("1")
        made.uninstrument()
        assert not made.is_active
    assert telemetry.tree() == [["execute_tool get_order miss"]]
    assert telemetry.points("agent_cache.requests") == {}
    assert len(seen) == 3


@pytest.mark.parametrize(("code", "output"), page_examples.examples(PAGE, "opentelemetry.sdk"))
def test_the_example_of_the_page_prints_what_the_page_says(code, output, capsys):
    page_examples.run(code, {"__name__": __name__})
    assert capsys.readouterr().out == output


def test_the_page_names_every_metric_and_attribute_that_is_exported(instrument, telemetry):
    instrument()
    with AgentCacheSession(max_tool_repeats=2, on_loop="notice"):
        for _ in range(4):
            get_stock("tea")
        with pytest.raises(ValueError, match="empty"):
            sell("")
    text = (page_examples.DOCS / PAGE).read_text("utf-8")
    attributes = {key for span in telemetry.spans("agent_cache.session") for key in span.attributes}
    shown = {key.replace("agent_cache.", ".") if key != "agent_cache.hits" else key for key in attributes}
    for name in {metric.name for metric in telemetry.metrics()} | {key for key in shown if "hits_of" not in key}:
        assert f"`{name}`" in text, name
    for span in telemetry.spans(gen_ai__operation__name="execute_tool"):
        for key in span.attributes:
            assert f"`{key}`" in text, key


@pytest.mark.parametrize(
    ("options", "named"),
    [({"content": "yes"}, "content"), ({"redact": ["a"]}, "content=True"), ({"content": True, "redact": 5}, "redact")],
)
def test_an_argument_that_cannot_work_is_refused(options, named):
    with pytest.raises(ConfigurationError, match=named):
        otel.instrument(**options)


# Metrics


async def test_the_counters_are_those_of_get_metrics(instrument, telemetry):
    """In full they are compared where Prometheus reads them."""
    instrument()
    for _ in range(2):
        await get_order("1")
    await cancel_order("1")
    await agent_cache.invalidate("otel_order:9")
    points = telemetry.points("agent_cache.requests")
    requests = {(dict(key)["tool"].partition(":")[2], dict(key)["source"]): value for key, value in points.items()}
    assert {key: value for key, value in requests.items() if value} == {
        ("get_order", "hit"): 1, ("get_order", "miss"): 1, ("cancel_order", "write"): 1
    }  # fmt: skip
    saved = sum(telemetry.points("agent_cache.time_saved").values())
    assert saved == pytest.approx(agent_cache.get_metrics()["time_saved"])
    assert telemetry.points("agent_cache.invalidations")[(("tool", "(no tool)"),)] == 1
    units = {metric.name: metric.unit for metric in telemetry.metrics()}
    assert units["agent_cache.time_saved"] == units["gen_ai.execute_tool.duration"] == "s"
    assert units["agent_cache.requests"] == "{request}"
