"""`agent-cache mcp --url --listen`: hosts and servers of Streamable HTTP, over the sockets of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import asynccontextmanager
from importlib.util import find_spec

import pytest

pytest.importorskip("mcp", reason="the servers of these tests are made by its SDK")
pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from tests.harness.mcp_host import RELAY, started, text_of
from tests.harness.mcp_http_host import HttpHost, hosted, listen, relaying, running, serving

pytestmark = pytest.mark.usefixtures("clean")

RULES = """
namespace = "relay"
new_turn_after = 1000
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.set_value = { kind = "write", tags = ["value:{key}"] }
tools.slow_write = { kind = "write", tags = ["value:{key}"] }
tools.wait_for = { kind = "read", tags = ["gate:{key}"] }
tools."ask_*" = { kind = "read", tags = ["ask"] }
tools.whoami = { kind = "read", tags = ["who"] }
tools.fail = { kind = "read", tags = ["fail"] }
tools.large = { kind = "read", tags = ["large"] }
tools.drop_stream = { kind = "read", tags = ["stream"] }
tools.die = { kind = "write", tags = ["death"] }
tools.run_count = { kind = "pass" }
tools.open_gate = { kind = "pass" }
tools.change_list = { kind = "pass" }
"""

IS_MODERN = find_spec("mcp.server.mcpserver") is not None
LATEST = ["2025-11-25", "2026-07-28"] if IS_MODERN else ["2025-11-25"]
VERSIONS = pytest.mark.parametrize("version", ["2025-03-26", *LATEST])


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def json_server():
    with serving("json") as url:
        yield url


@pytest.fixture(scope="module")
def resumable():
    with serving("resumable") as url:
        yield url


@pytest.fixture
async def relay(server, rules):
    async with relaying(server, rules) as relay:
        yield relay


@pytest.fixture
def key(request):
    """A key that no other test has."""
    return request.node.name


@VERSIONS
async def test_a_read_runs_once_until_something_writes_what_it_reads(relay, key, version):
    async with hosted(relay.url, version=version) as host:
        first = await host.call("get_value", key=key)
        assert await host.call("get_value", key=key) == first
        await host.call("set_value", key=f"not {key}", value="x")
        assert await host.call("get_value", key=key) == first
        await host.call("set_value", key=key, value="x")
        assert (await host.call("get_value", key=key)).startswith("x (")


@VERSIONS
async def test_the_host_gets_the_bytes_that_it_would_get_from_the_server(server, relay, key, version):
    async with hosted(server, version=version) as direct, hosted(relay.url, version=version) as host:
        for method, params in [
            ("tools/list", {}),
            ("prompts/get", {"name": "greet", "arguments": {"name": "you"}}),
            ("resources/templates/list", {}),
            ("no/such", {"a": [1.0, 1e5, "é\u2028"]}),
            ("tools/call", {"name": "get_value", "arguments": {"key": 1}}),
            ("tools/call", {"name": "get_value", "arguments": "no object"}),
            ("tools/call", {"name": "no such tool", "arguments": {}}),
            ("tools/call", {"arguments": {}}),
            ("tools/call", {"name": "fail", "arguments": {}}),
            ("tools/call", {"name": "large", "arguments": {"size": 200_000}}),
        ]:
            one, other = await direct.request(method, params), await host.request(method, params)
            assert (other.status, without_counts(other.body)) == (one.status, without_counts(one.body)), method
            assert names(other) == names(one)


def without_counts(body: bytes) -> bytes:
    return re.sub(rb"\(\d+\)", b"", body)


def names(answer):
    return sorted(set(answer.headers) - {"server", "date", "connection"})


async def test_requests_that_are_no_messages_pass(server, relay):
    async with hosted(server) as direct, hosted(relay.url) as host:
        odd = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}'
        for body in (b"no json", b"[]", b"17", b'{"jsonrpc":"2.0"}', b"\xff", b"", odd):
            one, other = await direct.post(body), await host.post(body)
            assert (one.status, one.body) == (other.status, other.body), body


async def test_headers_go_to_the_server_as_they_came_and_nothing_is_added(server, relay, key):
    async with hosted(server, **{"x-test": key, "user-agent": "ua"}) as direct:
        await direct.call("get_value", key=key)
    async with hosted(relay.url, **{"x-test": f"{key} relayed", "user-agent": "ua"}) as host:
        await host.call("get_value", key=key)
        seen = json.loads((await host.get("/seen")).body)

    def of(mark):
        found = [(method, path, headers) for method, path, headers in seen if ["x-test", mark] in headers]
        drop = ("host", "mcp-session-id", "x-test", "accept-encoding", "content-length", "connection")
        return [(method, path, sorted(h for h in headers if h[0] not in drop)) for method, path, headers in found]

    direct_ones = of(key)
    assert direct_ones[:2] == of(f"{key} relayed")[:2]  # initialize, initialized; then the relay asks for the tools
    assert direct_ones[-1] == of(f"{key} relayed")[-1]


async def test_a_session_ends_where_the_host_ends_it(relay, key):
    async with hosted(relay.url) as host:
        await host.call("get_value", key=key)
        assert (await host.delete()).status == 200
        gone = await host.begin("get_value", key=f"{key} 2")
        assert gone.status == 404


# Streams


async def test_the_server_can_ask_the_host_during_a_read_which_is_not_stored_then(relay, key):
    async with hosted(relay.url) as host:
        one = await host.call("ask_host", key=key)
        host.answer = {"action": "accept", "content": {"color": "blue"}}
        other = await host.call("ask_host", key=key)
    assert (one.split()[0], other.split()[0]) == ("red", "blue")
    assert len(host.asked) == 2


async def test_when_the_list_of_tools_changes_what_was_stored_is_dropped(relay, key):
    async with hosted(relay.url) as host:
        host.listen()
        first = await host.call("get_value", key=key)
        await host.call("change_list")
        await host.until(lambda: host.notifications)
        assert await host.call("get_value", key=key) != first


async def test_a_stream_that_the_server_breaks_off_is_resumed_by_the_host_through_the_relay(resumable, rules):
    async with relaying(resumable, rules) as relay, hosted(relay.url) as host:
        broken = await host.begin("drop_stream")
        assert not any("result" in message or "error" in message for message in broken.messages)
        await resumed(host, broken)
        assert text_of(host.messages[-1]["result"]) == "resumed (1)"


async def resumed(host, broken):
    number = host.last_id
    last = [line.partition(b":")[2].strip() for line in broken.body.splitlines() if line.startswith(b"id:")][-1]
    host.listen(**{"last-event-id": last.decode()})
    await host.until(lambda: host.messages[-1].get("id") == number)


@pytest.mark.parametrize("end", ["answer", "cancelled", "deleted"])
async def test_a_write_whose_response_is_broken_off_for_its_host_to_poll_runs_on(clock, resumable, rules, key, end):
    async with relaying(resumable, rules) as relay, hosted(relay.url) as host, hosted(relay.url) as reader:
        broken = await host.begin("slow_write", key=key, leave=True)
        assert not any("result" in message or "error" in message for message in broken.messages)
        clock.advance(60)
        first = await reader.call("get_value", key=key)
        assert await reader.call("get_value", key=key) != first
        if end == "answer":
            rest = asyncio.create_task(resumed(host, broken))
            await reader.call("open_gate", key=key)
            await rest
            assert (await reader.call("get_value", key=key)).startswith("written")
        else:
            lost = {"requestId": host.last_id}
            await (host.notify("notifications/cancelled", lost) if end == "cancelled" else host.delete())
            assert await reader.call("get_value", key=key) != await reader.call("get_value", key=key)
        clock.advance(6)
        assert await reader.call("get_value", key=key) == await reader.call("get_value", key=key)


@pytest.mark.parametrize("kind", ["events", "json"])
async def test_what_is_loaded_after_its_host_was_answered_is_stored(server, json_server, tmp_path, key, kind):
    path = tmp_path / "grace.toml"
    late = 'tags = ["gate:{key}"], ttl = 0.001, grace = 1000'
    path.write_text('on_loop = "off"\n' + RULES.replace('tags = ["gate:{key}"]', late))
    async with relaying(server if kind == "events" else json_server, path) as relay, hosted(relay.url) as host:
        await host.call("open_gate", key=key)
        first = await host.call("wait_for", key=key)
        while await host.call("wait_for", key=key) == first:  # it has progress to tell, which nobody waits for
            pass
        assert relay.relay.session.get_metrics()["errors"] == 0


# Several hosts


async def test_equal_calls_of_two_sessions_share_one_run(relay, key):
    async with hosted(relay.url) as one, hosted(relay.url) as other:
        first = one.begin("wait_for", key=key)
        await one.until(lambda: one.notifications)
        second = other.begin("wait_for", key=key)
        await other.call("open_gate", key=key)
        answers = await first, await second
        assert [answer.text for answer in answers] == [f"{key} open (1)"] * 2


@pytest.mark.parametrize("by", ["disconnecting", "a notification"])
async def test_when_the_leader_is_cancelled_a_waiter_runs_the_tool_anew(relay, key, by):
    async with hosted(relay.url) as one, hosted(relay.url) as other:
        first = one.begin("wait_for", key=key)
        leader = one.last_id
        await one.until(lambda: one.notifications)
        second = other.begin("wait_for", key=key)
        await other.call("run_count", name="any")  # the second call has come in before this one is answered
        if by == "disconnecting":
            first.cancel()
        else:
            await one.notify("notifications/cancelled", {"requestId": leader})
            assert (await first).last["error"]
        await other.until(lambda: other.notifications)
        assert other.notifications[0]["params"]["progressToken"].startswith("of ")
        await other.call("open_gate", key=key)
        assert (await second).text == f"{key} open (2)"


@VERSIONS
async def test_loops_are_judged_for_each_session_alone_or_for_each_connection(server, tmp_path, key, version):
    path, to = tmp_path / "loops.toml", {"version": version}
    path.write_text(RULES.replace('namespace = "relay"', 'namespace = "relay"\nmax_tool_repeats = 3'))
    async with relaying(server, path) as relay, hosted(relay.url, **to) as one, hosted(relay.url, **to) as other:
        texts = [await one.call("get_value", key=key) for _ in range(3)]
        assert texts[0] == texts[1] != texts[2]
        assert [await other.call("get_value", key=key) for _ in range(2)] == texts[:2]


# What is refused, and what fails


async def test_a_refusal_by_the_server_passes_with_its_headers_and_is_shared_with_nobody(rules, key):
    with serving("guarded") as url:
        async with relaying(url, rules) as relay:
            host = HttpHost(relay.url)
            for method in ("initialize", "tools/call"):
                body, _ = host.message(method, {"name": "get_value", "arguments": {}})
                refused = await host.post(body)
                assert refused.status == 401
                assert refused.body == b'{"error":"invalid_token"}'
                assert refused.headers["www-authenticate"].startswith("Bearer resource_metadata=")
                assert refused.headers.get_list("set-cookie") == ["a=1", "b=2"]
            await host.close()
            async with hosted(relay.url, authorization="Bearer a") as other:
                assert await other.call("get_value", key=key)
                seen = json.loads((await other.get("/seen")).body)
                assert not any(name == "cookie" for _, _, headers in seen for name, _ in headers)


async def test_who_waits_for_a_call_that_is_refused_for_its_session_gets_an_answer(server, relay, key):
    async with hosted(relay.url) as one, hosted(relay.url) as other:
        for host in (one, other):
            await host.call("run_count", name="of the first call, before which the relay asks for the tools")
        direct = HttpHost(server, **{"mcp-session-id": one.headers["mcp-session-id"]})
        assert (await direct.delete()).status == 200
        await direct.close()
        one.headers["x-request-id"] = "hold"
        refused = one.begin("get_value", key=key)
        await other.call("run_count", name=key)
        waiting = other.begin("get_value", key=key)
        await other.call("run_count", name=key)
        assert not waiting.done()
        await other.call("open_gate", key="hold")
        assert (await refused).status == 404
        assert (await waiting).text.startswith("nothing")


@pytest.mark.parametrize(
    ("header", "value"),
    [("origin", "http://evil.example"), ("origin", "null"), ("origin", "http://127.0.0.1.evil.example"),
     ("host", "evil.example")],
)  # fmt: skip
async def test_pages_of_the_web_and_names_of_others_are_refused(relay, header, value):
    host = HttpHost(relay.url, **{header: value})
    refused = await host.request("initialize")
    assert refused.status == 403
    assert header in refused.last["error"]["message"]
    await host.close()


async def test_a_server_that_is_away_is_a_clear_error(rules, key):
    with serving() as url:
        pass
    async with relaying(url, rules) as relay:
        host = HttpHost(relay.url, modern=True)
        for method, params in [("initialize", {}), ("tools/call", {"name": "get_value", "arguments": {"key": key}})]:
            answer = await host.request(method, params)
            assert "cannot be reached" in answer.last["error"]["message"]
            assert answer.last["id"] == host.last_id
        await host.close()


async def test_a_server_that_dies_in_a_write_leaves_it_in_doubt(clock, server, rules, key):
    async with relaying(server, rules) as other, hosted(other.url) as reader:
        with serving() as url:
            async with relaying(url, rules) as relay, hosted(relay.url) as host:
                writing = host.begin("slow_write", key=key)
                await host.until(lambda: host.notifications)
                host.begin("die", code=1)
                answer = await writing
                assert "agent-cache: the server has broken off" in answer.last["error"]["message"]
                assert answer.last["id"] == writing.result().last["id"]
        assert await reader.call("get_value", key=key) != await reader.call("get_value", key=key)
        assert await reader.call("whoami") == await reader.call("whoami")


class Proxy:
    """What a proxy on the way may do: it redirects, and answers writes by itself."""

    runs = 0

    async def __call__(self, scope, receive, send):
        request = Request(scope, receive)
        to = {"/old": "/mcp", "/moved": "/moved/"}.get(scope["path"])
        message = {} if to else await request.json()
        if to:
            response = RedirectResponse(request.url.replace(path=to))
        elif "set_value" in str(message):
            response = Response("bad gateway", 502, {"retry-after": "7"})
        else:
            self.runs += 1
            result = {"tools": [], "content": [{"type": "text", "text": str(self.runs)}]}
            response = JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})
        await response(scope, receive, send)


async def test_a_write_that_a_proxy_has_answered_is_in_doubt_and_a_redirection_leads_to_the_relay(clock, rules, key):
    async with running(Proxy()) as origin, relaying(f"{origin}/mcp", rules) as relay:
        host = HttpHost(relay.url)
        first = await host.call("get_value", key=key)
        assert await host.call("get_value", key=key) == first
        refused = await host.begin("set_value", key=key, value="x")
        assert (refused.status, refused.headers["retry-after"], refused.body) == (502, "7", b"bad gateway")
        assert len({await host.call("get_value", key=key) for _ in range(2)} | {first}) == 3
        redirected = await host.get("/old")
        assert (redirected.status, redirected.headers["location"]) == (307, "/mcp")
        await host.close()


async def test_a_redirection_to_another_spelling_of_the_endpoint_leads_to_that(rules, key, caplog):
    async with running(Proxy()) as origin, relaying(f"{origin}/moved", rules) as relay:
        host = HttpHost(relay.url)
        redirected = await host.begin("get_value", key=key)
        assert (redirected.status, redirected.headers["location"]) == (307, "/moved/")
        assert f"its endpoint is {origin}/moved/" in caplog.text
        host.url += "/"
        assert await host.call("get_value", key=key) == await host.call("get_value", key=key)
        await host.close()


EVENTS = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        ({}, '{"jsonrpc":"2.0","id":"another","result":{"content":[]}}', '"another"'),
        (EVENTS, 'data: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n', "without an answer"),
        ({"content-encoding": "gzip"}, "no gzip", "broken off"),
    ],
)
async def test_what_is_no_answer_is_an_error_each_time(rules, key, headers, body, said, caplog):
    sent = Response(body, headers={"content-type": "application/json", **headers})
    async with running(sent) as origin, relaying(f"{origin}/mcp", rules) as relay:
        host = HttpHost(relay.url)
        for _ in range(2):
            [message] = (await host.begin("get_value", key=key)).messages
            assert said in json.dumps(message)
        await host.close()
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("path", ["/mcp/", "/%6dcp", "/x/../mcp", "/./mcp"])
async def test_a_call_on_another_spelling_of_the_path_goes_through_the_rules(relay, key, path):
    async with hosted(relay.url) as host:
        first = await host.call("get_value", key=key)
        origin = relay.url.removesuffix("/mcp")
        write, headers = host.message("tools/call", {"name": "set_value", "arguments": {"key": key, "value": "x"}})
        sent = await host._send("POST", headers, json.dumps(write).encode(), origin + path)
        assert sent.status in (200, 307, 404)
        assert sent.status != 200 or await host.call("get_value", key=key) != first


async def test_a_call_on_another_path_is_refused(relay, key, caplog):
    async with hosted(relay.url) as host:
        write, headers = host.message("tools/call", {"name": "set_value", "arguments": {"key": key, "value": "x"}})
        sent = await host._send("POST", headers, json.dumps(write).encode(), relay.url + "/more")
        assert sent.status == 404
        assert "calls of tools go to /mcp" in sent.body.decode()
        assert "a call of a tool came to /mcp/more" in caplog.text


async def test_a_signal_in_the_first_moment_ends_it(server, rules):
    async with relaying(server, rules) as relay:
        stopped = listen(relay.listener, ("127.0.0.1", 0), lambda _: os.kill(os.getpid(), signal.SIGTERM))
        await asyncio.wait_for(stopped, 60)


# The command


@asynccontextmanager
async def listening(url, *options, **environment):
    """The process of a relay that listens, its URL, and what it has said by then."""
    async with started(
        (*RELAY, *options, "--url", url, "--listen", "127.0.0.1:0"), greets=False, **environment
    ) as relay:
        await relay.until(lambda: "relays to" in relay.errors or relay.process.returncode is not None)
        yield relay, re.search(r"http://127\S+", relay.errors)[0]
        if relay.process.returncode is None:
            relay.process.send_signal(signal.SIGTERM)


async def test_the_command_listens_until_a_signal_which_finishes_the_recording(server, rules, tmp_path, key):
    path = tmp_path / "run.jsonl"
    options = ("--config", rules, "--record", path, "--stats")
    async with listening(server, *options) as (relay, url), hosted(url) as host:
        stream = host.listen()
        answers = [await host.call("get_value", key=key) for _ in range(2)]
        assert answers[0] == answers[1]
        relay.process.send_signal(signal.SIGTERM)
        assert await relay.process.wait() == 0
        await asyncio.wait([stream])
    assert "hits 1" in relay.errors
    async with listening(server, "--config", rules, "--replay", path) as (relay, url), hosted(url) as host:
        assert [await host.call("get_value", key=key) for _ in range(2)] == answers


async def test_a_header_of_the_command_goes_where_the_host_has_none(server, rules):
    header = ("--header", "authorization: Bearer ${TOKEN}")
    async with (
        listening(server, "--config", rules, *header, TOKEN="abc\n") as (_, url),
        hosted(url) as host,
        hosted(url, authorization="Bearer other") as other,
    ):
        assert (await host.call("whoami")).startswith("Bearer abc")
        assert (await other.call("whoami")).startswith("Bearer other")


async def test_an_address_that_others_reach_is_warned_of(server):
    options = ("--url", server, "--listen", "0.0.0.0:0")
    async with started((*RELAY, *options), greets=False) as relay:
        await relay.until(lambda: "relays to" in relay.errors)
        assert "0.0.0.0 can be reached from other machines" in relay.errors
        relay.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(("mode", "expected"), [("", b"get_value"), ("guarded", b"HTTP 401: it wants credentials")])
async def test_explain_asks_a_server_over_http(mode, expected, rules):
    with serving(mode) as url:
        command, to = (*RELAY, "--config", str(rules), "--explain", "--url", url), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=to, stderr=asyncio.subprocess.STDOUT)
        shown, _ = await process.communicate()
    assert expected in shown
