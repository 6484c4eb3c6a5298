"""What the relay does with a host's requests, whatever carries them: a transport in memory, and a clock that is set."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading

import msgspec
import pytest

from agent_cache import Read, Toolbox, Write
from agent_cache.relay.messages import ConnectionLost, listed, parsed
from agent_cache.relay.relay import HostRequest, Relay
from agent_cache.relay.relay_settings import RelaySettings, load, proposals, starter_rules
from agent_cache.relay.stdio import LineWriter
from agent_cache.testing import FakeClock, reset


@pytest.fixture
def clock():
    """A clock that stands still, and an empty cache."""
    reset()
    with FakeClock() as clock:
        yield clock
    reset()


class MemoryRequest(HostRequest):
    """A request that the function `serve` answers in place of a server."""

    def __init__(self, serve, method, params, id=1, vary=None, host=None):
        super().__init__(parsed(json.dumps({"id": id, "method": method, "params": params}).encode()), vary, host)
        self.serve = serve
        self.replies = []

    async def forward(self):
        line = await self.serve(self)
        return parsed(line)

    async def ask(self, method, params):
        if getattr(self.serve, "is_lost", False):
            raise ConnectionLost("gone")
        line = result([], tools=getattr(self.serve, "tools", []))
        return parsed(line)

    def reply(self, line):
        self.replies.append(json.loads(line))


def result(content, **more):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": content, **more}}).encode() + b"\n"


class Server:
    """Counts its calls, and loses requests while it `is_lost`."""

    def __init__(self):
        self.calls = 0
        self.is_lost = False

    async def __call__(self, request):
        self.calls += 1
        if self.is_lost:
            raise ConnectionLost("gone")
        return result([{"type": "text", "text": str(self.calls)}])


RULES = {"get": Read("thing:{id}"), "put": Write("thing:{id}")}


async def answer(relay, serve, tool, _vary=None, _meta=None, _host=None, **arguments):
    params = {"name": tool, "arguments": arguments, "_meta": _meta}
    request = MemoryRequest(serve, "tools/call", params, vary=_vary, host=_host)
    await relay.start(request)
    [reply] = request.replies
    return reply


def text(reply):
    return reply["result"]["content"][0]["text"]


async def test_silence_begins_a_new_turn_and_with_it_the_count_of_repeated_calls(clock):
    serve = Server()
    box = Toolbox(RULES, namespace="turns")
    async with Relay(box, RelaySettings(max_tool_repeats=3, new_turn_after=60)) as relay:
        for _ in range(3):
            for _ in range(2):
                assert text(await answer(relay, serve, "get", id="a")) == "1"
            clock.advance(61)
        for _ in range(2):
            await answer(relay, serve, "get", id="a")
        assert (await answer(relay, serve, "get", id="a"))["result"]["isError"]
    assert serve.calls == 1


async def test_a_write_whose_server_has_gone_is_in_doubt(clock):
    serve = Server()
    async with Relay(Toolbox(RULES, namespace="doubt")) as relay:
        assert text(await answer(relay, serve, "get", id="a")) == "1"
        serve.is_lost = True
        assert (await answer(relay, serve, "put", id="a"))["error"]["code"] == -32603
        serve.is_lost = False
        assert text(await answer(relay, serve, "get", id="a")) == "3"
        assert text(await answer(relay, serve, "get", id="a")) == "4"
        clock.advance(6)
        assert text(await answer(relay, serve, "get", id="a")) == "5"
        assert text(await answer(relay, serve, "get", id="a")) == "5"


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "the server goes", "its time"])
async def test_a_task_ends_by_its_status_and_is_in_doubt_if_nobody_sees_its_end(clock, end, caplog):
    async def begin(request):
        return result([], task={"taskId": "t", "status": "working", "ttl": 0 if end == "its time" else None})

    serve = Server()
    async with Relay(Toolbox(RULES, namespace="tasks")) as relay:
        request = MemoryRequest(begin, "tools/call", {"name": "put", "arguments": {"id": "a"}, "task": {}})
        task = relay.start(request)
        while not request.replies:
            await asyncio.sleep(0)
        await relay.observe("notifications/tasks/status", {"taskId": "t", "status": "working"})
        assert text(await answer(relay, serve, "get", id="a")) == "1"
        if end == "the server goes":
            relay.lose_server()
        elif end != "its time":
            assert not task.done()
            await relay.observe("notifications/tasks/status", {"taskId": "t", "status": end})
        await task
        assert len(request.replies) == 1
        found = [text(await answer(relay, serve, "get", id="a")) for _ in range(2)]
        assert found == (["2", "3"] if end in ("the server goes", "its time") else ["2", "2"])
    assert "could not be answered" not in caplog.text


async def test_callers_that_vary_and_versions_of_a_tool_share_no_answers(clock):
    serve = Server()
    async with Relay(Toolbox(RULES, namespace="varies")) as relay:
        found = [text(await answer(relay, serve, "get", who, id="a")) for who in ("one", "two", "one")]
        assert found == ["1", "2", "1"]
        metas = [{"fastmcp": {"version": "1"}}, {"fastmcp": {"version": "2"}}, {"progressToken": 1}, {"x": 2}, None]
        found = [text(await answer(relay, serve, "get", _meta=meta, id="a")) for meta in metas]
        assert found == ["3", "4", "5", "5", "5"]


async def test_a_notification_that_does_not_say_what_has_changed_drops_all_of_its_roots(clock):
    serve = Server()
    ends = {"notifications/resources/updated": {"invalidate": ["thing:{params[uri]}"]}}
    settings = msgspec.convert({"on": ends}, RelaySettings)
    async with Relay(Toolbox(RULES, namespace="notified"), settings) as relay:
        for number, params in enumerate(({"uri": "a"}, {}, None, [1]), 2):
            assert text(await answer(relay, serve, "get", id="a")) == str(number - 1)
            await relay.observe("notifications/resources/updated", params)
            assert text(await answer(relay, serve, "get", id="a")) == str(number)


async def test_a_list_that_was_lost_is_asked_for_again(clock):
    serve = Server()
    serve.tools, serve.is_lost = [{"name": "look", "annotations": {"readOnlyHint": True}}], True
    async with Relay(Toolbox(RULES, namespace="lost", hints="kind")) as relay:
        assert "error" in await answer(relay, serve, "get", id="a")
        serve.is_lost = False
        found = [text(await answer(relay, serve, tool, id="a")) for tool in ("get", "look", "get")]
        assert found == ["2", "3", "2"]  # it is known that a look writes nothing


async def test_the_sessions_of_a_server_keep_one_list_of_its_tools(clock):
    serve = Server()
    serve.tools = [{"name": "get", "description": "x"}]
    async with Relay(Toolbox(RULES, namespace="sessions")) as relay:
        hosts = [relay.host(name) for name in ("one", "two")]
        for host in hosts:
            await answer(relay, serve, "get", _host=host, id="a")
        assert hosts[0].tools.result() is hosts[1].tools.result() != {}


async def test_sessions_whose_lists_describe_a_tool_in_other_words_share_its_answers(clock):
    serve = Server()
    async with Relay(Toolbox(RULES, namespace="words")) as relay:
        for number in range(6):
            properties = {"id": {"type": "string", "description": f"today is {number}"}}
            serve.tools = [{"name": "get", "inputSchema": {"properties": properties}}]
            assert text(await answer(relay, serve, "get", _host=relay.host(str(number % 3)), id="a")) == "1"


# Lists and resources, by their hints

ENVELOPE = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


async def asked(relay, serve, method="tools/list", vary=None, meta=None, **params):
    """The answer to a request of revision 2026-07-28."""
    request = MemoryRequest(serve, method, {**params, "_meta": {**ENVELOPE, **(meta or {})}}, vary=vary)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": request.params}).encode()
    assert relay.answers(parsed(line))
    await relay.start(request)
    [reply] = request.replies
    return reply["result"]


class Lists:
    """Answers each request with the number of it, and with hints."""

    def __init__(self, **hints):
        self.calls = 0
        self.hints = hints

    async def __call__(self, request):
        self.calls += 1
        return result([], number=self.calls, **self.hints)


@pytest.mark.parametrize("scope", ["public", "private"])
async def test_a_list_is_answered_from_the_cache_of_its_asker_while_it_is_fresh(clock, scope, monkeypatch):
    monkeypatch.setattr("time.time", clock)
    serve = Lists(ttlMs=60_000, cacheScope=scope)
    async with Relay(Toolbox(RULES, namespace="lists")) as relay:
        found = [(await asked(relay, serve, vary=vary))["number"] for vary in ("ada", "ada", "bob", "ada")]
        assert found == [1, 1, 2, 1]
        clock.advance(20)
        assert (await asked(relay, serve, vary="ada"))["ttlMs"] == 40_000
        clock.advance(41)
        assert (await asked(relay, serve, vary="ada"))["number"] == 3


FRESH = {"ttlMs": 60_000, "cacheScope": "public"}


@pytest.mark.parametrize("more", [{}, {"requestState": "s", "inputResponses": {}}])
@pytest.mark.parametrize("hints", [{}, {"ttlMs": 60_000}, {**FRESH, "ttlMs": 0}, {**FRESH, "cacheScope": "us"}, FRESH])
async def test_neither_a_list_without_hints_is_stored_nor_what_continues_a_question(clock, hints, more):
    serve = Lists(**hints)
    async with Relay(Toolbox(RULES, namespace="lists")) as relay:
        assert not relay.answers(parsed(b'{"id": 1, "method": "tools/list"}')), "of an earlier revision"
        found = [(await asked(relay, serve, "resources/read", uri="a://b", **more))["number"] for _ in range(2)]
        assert found == ([1, 1] if hints is FRESH and not more else [1, 2])


@pytest.mark.parametrize(
    ("method", "params", "notification", "changed", "other"),
    [
        ("tools/list", {}, "notifications/tools/list_changed", {}, "notifications/prompts/list_changed"),
        ("prompts/list", {}, "notifications/prompts/list_changed", {}, "notifications/tools/list_changed"),
        ("resources/list", {}, "notifications/resources/list_changed", {}, "notifications/tools/list_changed"),
        ("resources/read", {"uri": "a://b"}, "notifications/resources/updated", {"uri": "a://b"}, ""),
    ],
)
async def test_a_notification_ends_what_it_names(clock, method, params, notification, changed, other, caplog):
    serve = Lists(ttlMs=60_000, cacheScope="public")
    async with Relay(Toolbox(RULES, namespace="lists")) as relay:
        await relay.observe(notification, changed)
        assert caplog.text == ""  # nobody has asked for the list before
        assert (await asked(relay, serve, method, **params))["number"] == 1
        await relay.observe(*((other, {}) if other else (notification, {"uri": "a://c"})))
        assert (await asked(relay, serve, method, **params))["number"] == 1
        await relay.observe(notification, changed)
        assert (await asked(relay, serve, method, **params))["number"] == 2


async def test_what_keeps_a_connection_alive_is_not_recorded_and_a_replay_answers_it(tmp_path):
    ping, listen = (parsed(b'{"id": 1, "method": "%b"}' % method) for method in (b"ping", b"subscriptions/listen"))
    async with Relay(Toolbox(RULES, namespace="alive"), record_to=tmp_path / "run.jsonl") as relay:
        assert [relay.answers(one) for one in (ping, listen)] == [False, False]
    async with Relay(Toolbox(RULES, namespace="alive"), replay_from=tmp_path / "run.jsonl") as relay:
        for method, answer in (("ping", "result"), ("subscriptions/listen", "error")):
            request = MemoryRequest(None, method, {})
            await relay.start(request)
            assert answer in request.replies[0]


async def test_what_traces_a_request_is_no_part_of_what_is_asked(clock):
    serve, forwarded = Server(), []

    async def noting(request):
        forwarded.append(request.params)
        return await serve(request)

    async with Relay(Toolbox(RULES, namespace="traced")) as relay:
        for number in range(2):
            meta = {"traceparent": f"00-{number}", "tracestate": f"a={number}", "progressToken": number}
            await answer(relay, noting, "get", _meta=meta, id="a")
            lists = Lists(ttlMs=60_000, cacheScope="public")
            assert (await asked(relay, lists if number == 0 else None, meta=meta))["number"] == 1
    assert [each["_meta"]["traceparent"] for each in forwarded] == ["00-0"]


@pytest.mark.parametrize("name", ["cache_hint", "io.modelcontextprotocol/cache_hint"])
async def test_a_result_that_its_server_keeps_from_caches_is_not_stored(clock, name):
    serve = Lists(_meta={name: "no-cache"})
    async with Relay(Toolbox(RULES, namespace="hinted")) as relay:
        for _ in range(2):
            await answer(relay, serve, "get", id="a")
    assert serve.calls == 2


async def test_a_tool_that_reads_by_its_hint_is_no_write_because_of_a_pattern(clock):
    serve = Server()
    serve.tools = [
        {"name": name, "annotations": {"readOnlyHint": name not in ("git_add", "git_commit")}}
        for name in ("git_log", "git_status", "git_show", "git_add")
    ]
    rules = {"git_log": Read("repo:{repo}"), "git_*": Write("repo:{repo}")}
    async with Relay(Toolbox(rules, namespace="git", hints="kind")) as relay:
        found = []
        for tool in ("git_log", "git_status", "git_log", "git_show", "git_log", "git_add", "git_log"):
            reply = await answer(relay, serve, tool, repo="r")
            found += [text(reply)] if tool == "git_log" else []
    assert found == ["1", "1", "1", "5"]


# The file to begin with

TOOLS = [
    {"name": "git_log", "annotations": {"readOnlyHint": True}, "inputSchema": {"properties": {"repo_path": {}}}},
    {"name": "git_status", "annotations": {"readOnlyHint": True}},
    {"name": "get current time", "annotations": {"readOnlyHint": True}},
    {"name": "git_commit", "annotations": {"readOnlyHint": False}, "inputSchema": {"properties": {"repo_path": {}}}},
    {"name": 'a "b" \N{PILE OF POO}.c', "description": "one\ntwo"},
    {"name": ""},  # no rule can be of it
]


@pytest.mark.parametrize("chosen", range(32))
def test_a_file_to_begin_with_is_one_however_its_lines_are_chosen(chosen, tmp_path):
    path = tmp_path / "rules.toml"
    lines, number = [], 0
    for line in starter_rules("Git Server", TOOLS).splitlines():
        if line.startswith("# tools."):
            number += 1
            line = line.removeprefix("# ") if chosen >> (number - 1) & 1 else line
        lines.append(line)
    path.write_text("\n".join(lines), "utf-8")
    box, _ = load(path)
    active = [tool["name"] for place, tool in enumerate(TOOLS) if chosen >> place & 1]
    assert [row.tool for row in box.explain()] == active
    assert number == 5


def test_nothing_that_changes_by_itself_is_proposed_to_be_stored():
    rules = starter_rules("Git Server", TOOLS)
    assert rules.count('kind = "read"') == 1
    assert 'tools.git_log = { kind = "read", tags = ["repo"], ttl = 60 }' in rules  # a path has several spellings


# Lines


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"noise", b"[1", b"12", b'"x"', b"\xff\xfe", b"{'id': 1}", b"[INFO] start", b'{"method": 5}',
        b'{"id": 1.5}', b'{"jsonrpc":"2.0","id":1,"res',
    ],
)  # fmt: skip
def test_what_is_no_message_is_none(line):
    assert parsed(line) is None


def test_looking_for_tools_without_a_rule_warns_of_no_rule(clock, caplog):
    box = Toolbox({"get": Read("x"), "list_*": Read("x")}, namespace="shop")
    rules = proposals([{"name": "get"}, {"name": "list_orders"}, {"name": "cancel"}], box)
    assert "# tools.cancel = {" in rules
    assert "get" not in rules
    assert "list" not in rules
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("cursors", "names"),
    [
        ({"first": None}, ["first"]),
        ({"first": "", "": "last"}, ["first", "", "last"]),
        ({"first": "same", "same": "same"}, ["first", "same"]),
    ],
)
async def test_a_list_has_every_page_and_ends_where_the_cursor_does_not_advance(cursors, names):
    async def page(params):
        cursor = params.get("cursor", "first")
        return {"tools": [{"name": cursor}], "nextCursor": cursors.get(cursor)}

    assert [tool["name"] for tool in await listed(page)] == names


class Pipe(io.FileIO):
    """An end that notes whether it is full, and whether anybody writes to it again before there is room."""

    def __init__(self, descriptor):
        super().__init__(descriptor, "w")
        self.is_full, self.hurried = threading.Event(), 0

    def write(self, data):
        written = super().write(data)
        self.hurried += written is None and self.is_full.is_set()
        (self.is_full.set if written is None else self.is_full.clear)()
        return written


def test_a_pipe_that_does_not_block_gets_every_line_and_is_waited_for():
    out, into = os.pipe()
    os.set_blocking(into, False)
    pipe, lines = Pipe(into), [b"%d %s\n" % (number, b"x" * 30_000) for number in range(10)]
    writer = LineWriter(pipe)
    for line in lines:
        writer.write(line)
    assert pipe.is_full.wait(60)
    with os.fdopen(out, "rb") as reader:
        assert [reader.readline() for _ in lines] == lines
    writer.close(60)
    assert not pipe.hurried
