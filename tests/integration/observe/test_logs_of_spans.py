"""The spans that `agent_cache.otel` exports, read as a log of the calls."""

import io

import pytest

pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, otel, testing
from agent_cache.advise.calls import UNKNOWN
from agent_cache.advise.logs import read_log


@AgentCache("spanned_order:{order_id}")
async def get_spanned_order(order_id: str, token: str = "") -> dict[str, object]:
    if order_id == "none":
        raise LookupError("no such order")
    return {"id": order_id, "status": "late"}


@AgentCache("spanned_text:{size}")
async def get_spanned_text(size: int) -> str:
    return "word " * (size // 5)


@AgentCacheInvalidator("spanned_order:{order_id}")
async def refund_spanned_order(order_id: str) -> str:
    return f"refunded {order_id}"


@pytest.fixture(autouse=True)
def _reset():
    testing.reset()
    yield
    testing.reset()


@pytest.fixture
def console():
    text = io.StringIO()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=text)))
    yield text, provider
    provider.shutdown()


async def test_spans_with_content_are_a_log(console, tmp_path):
    text, provider = console
    with otel.instrument(provider, content=True):
        async with AgentCacheSession("talk-1"):
            await get_spanned_order("W1")
            await get_spanned_order("W1")
            await refund_spanned_order("W1")
            await get_spanned_order("W1", token="sk-proj-" + "Zq9xK2" * 8)
            with pytest.raises(LookupError):
                await get_spanned_order("none")
            await get_spanned_text(100_000)
    (tmp_path / "spans").write_text(text.getvalue(), "utf-8")
    log = read_log(tmp_path / "spans")
    calls = [
        (call.tool.rpartition(":")[2], call.kind, call.arguments.get("order_id"), call.result, call.error, call.run)
        for call in log.calls
        if call.is_keyed or call.arguments
    ]
    assert not [
        call for call in log.calls if call.tool.endswith("text") and call.is_whole and call.result is not UNKNOWN
    ]
    order = {"id": "W1", "status": "late"}
    assert calls == [
        ("get_spanned_order", "read", "W1", order, None, "talk-1"),
        ("refund_spanned_order", "write", "W1", "refunded W1", None, "talk-1"),
        ("get_spanned_order", "read", "W1", order, None, "talk-1"),
        ("get_spanned_order", "read", "none", UNKNOWN, "LookupError: no such order", "talk-1"),
        ("get_spanned_text", "read", None, UNKNOWN, None, "talk-1"),
    ]


async def test_spans_without_content_are_evidence_of_nothing(console, tmp_path):
    text, provider = console
    with otel.instrument(provider):
        async with AgentCacheSession("talk-1"):
            await get_spanned_order("W1")
    (tmp_path / "spans").write_text(text.getvalue(), "utf-8")
    log = read_log(tmp_path / "spans")
    [call] = log.calls
    assert (call.arguments, call.is_keyed, call.result, call.kind) == ({}, False, UNKNOWN, "read")
