"""What agent frameworks and their instrumentations export, read as logs: real ones, with offline models."""

from __future__ import annotations

import io
import json

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the spans of these tests are made by the SDK of OpenTelemetry")
pytest.importorskip("opentelemetry.exporter.otlp.proto.common", reason="and written by its exporter of OTLP")
pytest.importorskip("openinference.instrumentation.langchain", reason="and made by OpenInference")
pytest.importorskip("pydantic_ai", reason="and made by Pydantic AI")

from google.protobuf.json_format import MessageToDict
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel

from tests.harness.advice import UNKNOWN, read_log


class Exports:
    """The same spans, as each exporter writes them."""

    def __init__(self):
        self.provider = TracerProvider()
        self.console = io.StringIO()
        self.memory = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=self.console)))
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))

    def written(self, how):
        if how == "console":
            return self.console.getvalue()
        message = encode_spans(self.memory.get_finished_spans())
        return json.dumps(MessageToDict(message)) + "\n"  # as the collector writes files


FORMS = ["console", "otlp"]


@pytest.fixture
def exports():
    found = Exports()
    yield found
    found.provider.shutdown()


def read(tmp_path, text, *problems):
    path = tmp_path / "log"
    path.write_text(text, "utf-8")
    log = read_log(path)
    assert [problem.partition(":")[0] for problem in log.problems] == [*problems]
    return log.calls


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("version", [5, 6])
async def test_spans_of_pydantic_ai(tmp_path, exports, how, version):
    settings = InstrumentationSettings(tracer_provider=exports.provider, version=version)
    Agent.instrument_all(settings)
    try:
        agent = Agent(TestModel())

        @agent.tool_plain
        def get_order(order_id: str) -> dict[str, object]:
            return {"id": order_id, "items": [1, {"n": None}]}

        @agent.tool_plain
        async def refund(amount: int) -> str:
            raise ValueError("too much")

        with agent.override(model=TestModel(call_tools=["get_order"])):
            await agent.run("hello", conversation_id="talk-1")
        with agent.override(model=TestModel(call_tools=["refund"])), pytest.raises(ValueError, match="too much"):
            await agent.run("hello", conversation_id="talk-1")
    finally:
        Agent.instrument_all(False)
    calls = {call.tool: call for call in read(tmp_path, exports.written(how))}
    assert calls.keys() == {"get_order", "refund"}
    order, refund_call = calls["get_order"], calls["refund"]
    assert (order.arguments, order.result, order.error) == (
        {"order_id": "a"}, {"id": "a", "items": [1, {"n": None}]}, None,
    )  # fmt: skip
    assert (refund_call.result, refund_call.error) == (UNKNOWN, "ValueError: too much")
    assert order.run == refund_call.run == "talk-1"
    assert order.started <= order.ended


@tool
def get_user(user_id: str, full: bool = False) -> dict:
    """Look a user up."""
    return {"user": user_id, "orders": ["W1"]}


@tool
def find_user(email: str) -> dict:
    """Find a user."""
    raise KeyError("nobody")


@pytest.mark.parametrize("how", FORMS)
def test_spans_of_openinference(tmp_path, exports, how):
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=exports.provider)
    try:
        get_user.invoke({"user_id": "u1", "full": True})
        get_user.invoke({"type": "tool_call", "id": "c1", "name": "get_user", "args": {"user_id": "u2", "full": False}})
        with pytest.raises(KeyError):
            find_user.invoke({"email": "x"})
    finally:
        instrumentor.uninstrument()
    one, two, failed = read(tmp_path, exports.written(how))
    assert (one.tool, one.arguments, one.result) == (
        "get_user", {"user_id": "u1", "full": True}, {"user": "u1", "orders": ["W1"]},
    )  # fmt: skip
    assert (two.arguments, two.result) == ({"user_id": "u2", "full": False}, {"user": "u2", "orders": ["W1"]})
    # OpenInference writes the value of a single argument without its name.
    assert (failed.arguments, failed.error) == ({"input": "x"}, "KeyError: 'nobody'")
