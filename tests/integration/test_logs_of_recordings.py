"""What this library writes of its calls, read as logs: cassettes, journals, broken ones, and spans."""

import asyncio
import gzip
import io
import json
import os
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, Read, Toolbox, Write
from agent_cache.recording import cached_llm_call, intercept, record
from agent_cache.resume import Journal
from tests.harness.advice import UNKNOWN, read_log, tags_of

STOCK = {}


@AgentCache("logged_item:{item}", name="logged:get_item")
async def get_item(item: str, *, full: bool = False) -> dict:
    if item == "none":
        raise LookupError("no such item")
    await asyncio.sleep(0)
    return {"item": item, "left": STOCK.setdefault(item, 5), "api_key": "sk-0123456789abcdef0123456789"}


@AgentCacheInvalidator("logged_item:{item}", name="logged:take")
async def take(item: str) -> str:
    STOCK[item] = STOCK.get(item, 5) - 1
    return f"took {item}"


@AgentCache("logged_list", name="logged:names")
async def names(first: str) -> set[str]:
    return {first}


@AgentCache("logged_stream:{item}", name="logged:pages")
async def pages(item: str):
    for number in range(2):
        yield {"page": number}


@intercept(kind="call", name="logged:count")
def count(item: str) -> int:
    return len(item)


@intercept(kind="write", name="logged:send")
def send(item: str) -> str:
    return f"sent {item}"


@cached_llm_call(name="logged:ask")
async def ask(question: str) -> str:
    return "yes"


@pytest.fixture(autouse=True)
def stock():
    STOCK.clear()
    yield
    for tool in (get_item, names, pages):
        tool.clear()


async def agent(item="a1"):
    await ask("what?")
    await get_item(item)
    await get_item(item)
    with pytest.raises(LookupError):
        await get_item("none")
    await take(item)
    await get_item(item, full=False)
    await names("x")
    async for _ in pages(item):
        pass
    count(item)
    send(item)


def short(calls):
    return [(call.tool.removeprefix("logged:"), call.kind, call.result, call.error) for call in calls]


EXPECTED = [
    ("get_item", "read", {"item": "a1", "left": 5, "api_key": None}, None),
    ("get_item", "read", UNKNOWN, None),  # a hit
    ("get_item", "read", UNKNOWN, "LookupError: no such item"),
    ("take", "write", "took a1", None),
    ("get_item", "read", {"item": "a1", "left": 4, "api_key": None}, None),
    ("names", "read", ["x"], None),
    ("pages", "read", [{"page": 0}, {"page": 1}], None),
    ("count", None, 2, None),
    ("send", "write", "sent a1", None),
]


async def test_a_cassette(tmp_path):
    path = tmp_path / "run.jsonl"
    before = datetime.now(UTC).timestamp()
    with record(path):
        await agent()
    after = datetime.now(UTC).timestamp()
    log = read_log(path)
    calls = log.calls
    notes = [note.replace(str(path), "run") for note in log.problems]
    assert short(calls) == EXPECTED
    assert [call.is_whole for call in calls] == [False, True, True, True, False, True, True, True, True]
    assert [call.is_parsed for call in calls] == [False] * 9
    assert calls[0].arguments == {"item": "a1", "full": False}
    assert all(before - 0.01 <= call.started <= call.ended <= after + 0.01 for call in calls)
    assert [call.ended for call in calls] == sorted(call.ended for call in calls)
    assert "answers that came from a cache: they show nothing of the world: 1 (first: run, call 3)" in notes
    assert len(notes) == 2


@dataclass
class Owner:
    id: UUID
    credit: Decimal


OWNER = Owner(UUID(int=7), Decimal("1.50"))


@AgentCache("logged_owner:{owner_id}", name="logged:get_owner")
async def get_owner(owner_id, *, days=()):
    return {"owner": OWNER, "days": [date(2026, 1, 2)], "note": '{"$oid": 1}'}


@pytest.mark.parametrize("form", ["recording", "spans"])
async def test_values_that_json_has_not_are_those_that_tags_take(tmp_path, form):
    """So rules for them hold in a check, and can be found."""
    path, asked = tmp_path / "log", (OWNER.id, {1, 2})
    if form == "recording":
        with record(path):
            await get_owner(asked[0], days=asked[1])
    else:
        path.write_text(await spans_of(lambda: get_owner(asked[0], days=asked[1])))
    [call] = read_log(path).calls
    get_owner.clear()
    owner_id = str(OWNER.id)
    assert call.arguments == {"owner_id": owner_id, "days": [1, 2]}
    assert call.result == {"owner": {"id": owner_id, "credit": "1.50"}, "days": ["2026-01-02"], "note": '{"$oid": 1}'}
    assert not call.is_parsed
    rule = Read(["logged_owner:{owner_id}", "logged_owner:{result[owner][id]}"])
    assert tags_of(rule, call) == (f"logged_owner:{owner_id}",)


async def test_a_journal_that_was_resumed(tmp_path):
    journal = Journal(tmp_path)

    class Ended(BaseException):
        pass

    with pytest.raises(Ended):
        async with AgentCacheSession("s1", journal=journal):
            send("a1")
            raise Ended
    path = journal.path("s1")
    header, *rest = path.read_text().splitlines()
    fields = json.loads(header)
    fields["recorded_at"] = "2026-01-01T10:00:00.000Z"
    path.write_text("\n".join([json.dumps(fields, separators=(",", ":")), *rest]) + "\n")
    async with AgentCacheSession("s1", journal=journal):
        send("a1")
        await take("a1")
    now = datetime.now(UTC).timestamp()
    log = read_log(tmp_path)
    first, second = log.calls
    assert not log.problems
    assert first.ended - datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp() < 60
    assert abs(second.ended - now) < 60


@pytest.mark.parametrize("form", ["a folder", "standard input", "a pipe", "compressed", "an editor's"])
async def test_short_runs_one_after_the_other_keep_their_order(tmp_path, monkeypatch, form):
    """Several begin within one millisecond; and all of them may come as one stream."""
    items = [f"s{number:02}" for number in range(40)]
    for item in items:
        with record(tmp_path / f"{item}.jsonl"):
            await get_item(item)
            await take(item)
    data = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.jsonl")))
    stream = tmp_path.parent / f"{tmp_path.name}-all.jsonl"
    if form == "standard input":
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    elif form == "a pipe":
        os.mkfifo(stream)
        threading.Thread(target=stream.write_bytes, args=[data]).start()
    elif form != "a folder":
        windows = b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
        stream.write_bytes(gzip.compress(data) if form == "compressed" else windows)
    log = read_log({"a folder": tmp_path, "standard input": "-"}.get(form, stream))
    assert [call.arguments["item"] for call in log.calls] == [item for item in items for _ in range(2)]
    assert [call.kind for call in log.calls] == ["read", "write"] * len(items)
    assert len({call.run for call in log.calls}) == len(items)


@pytest.mark.parametrize("rules", [{}, {"take": Write("logged_item:{item}"), "list": Read("logged_list")}])
def test_a_toolbox_does_not_say_what_a_tool_without_a_rule_is(tmp_path, rules):
    box = Toolbox(rules, namespace="bare")
    with record(tmp_path / "run.jsonl", cache=False):
        for tool in ("get_item", *rules):
            box.call_sync(tool, {"item": 1}, lambda: 1)
    assert [one.kind for one in read_log(tmp_path / "run.jsonl").calls] == [None, "write", "read"][: 1 + len(rules)]


async def test_a_recording_with_a_broken_line_is_left_out_with_the_line(tmp_path):
    path = tmp_path / "run.jsonl"
    with record(path):
        await agent()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3][:-40] + b"\n", *lines[4:]]))
    log = read_log(path)
    assert log.calls == []
    assert "recordings that cannot be read were left out" in log.problems[0]
    assert "line 4" in log.problems[0]


async def spans_of(make_calls, **options):
    """What the console exporter writes of some calls."""
    pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    from agent_cache import otel

    text, provider = io.StringIO(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=text)))
    with otel.instrument(provider, **{"content": True, **options}):
        await make_calls()
    provider.shutdown()
    return text.getvalue()


@pytest.mark.parametrize("content", [True, False])
async def test_spans(tmp_path, content):
    """Without their content they are evidence of nothing."""

    async def talk():
        async with AgentCacheSession("talk-1"):
            await get_item("a1")
            await get_item("a1")
            await take("a1")
            with pytest.raises(LookupError):
                await get_item("none")
            await names("word " * 20_000)

    (tmp_path / "spans").write_text(await spans_of(talk, content=content), "utf-8")
    calls = read_log(tmp_path / "spans").calls
    item = {"item": "a1", "left": 5, "api_key": None}
    results = [item, "took a1", UNKNOWN, UNKNOWN] if content else [UNKNOWN] * 4
    assert [call.tool.rpartition(":")[2] for call in calls] == ["get_item", "take", "get_item", "names"]
    assert [call.kind for call in calls] == ["read", "write", "read", "read"]
    assert [call.result for call in calls] == results, "the last one is cut off"
    assert [call.is_keyed for call in calls] == [content, content, content, False]
    assert calls[2].error == f"LookupError: {'no such item' if content else 'LookupError'}"
    assert {call.run for call in calls} == {"talk-1"}
