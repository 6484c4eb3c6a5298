"""`agent-cache mcp --url`: the command, with a host over stdio or over HTTP, and a server over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager
from importlib.util import find_spec

import pytest

pytest.importorskip("mcp", reason="the servers of these tests are made by its SDK")
pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

from tests.harness.mcp_host import ENVELOPE, RELAY, started, text_of
from tests.harness.mcp_http_host import hosted, serving

ERAS = [False, True] if find_spec("mcp.server.mcpserver") is not None else [False]
RULES = """
namespace = "relay"
new_turn_after = 1000
[tools."get_*"]
kind = "read"
tags = ["value:{key}"]
[tools.set_value]
kind = "write"
tags = ["value:{key}"]
[tools.wait_for]
kind = "read"
tags = ["gate:{key}"]
[tools.ask_host]
kind = "read"
tags = ["ask"]
[tools.whoami]
kind = "read"
tags = ["who"]
[tools.drop_stream]
kind = "read"
tags = ["stream"]
[tools.slow_write]
kind = "write"
tags = ["value:{key}"]
[tools.die]
kind = "write"
tags = ["death"]
[tools.run_count]
kind = "pass"
[tools.open_gate]
kind = "pass"
[tools.change_resource]
kind = "pass"
"""


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


@pytest.fixture
def key(request):
    """A key that no other test has."""
    return request.node.name


def relayed(url, *options, **more):
    """A host over stdio of a relay in front of a server over HTTP."""
    return started((*RELAY, *options, "--url", url), **more)


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


# A host over stdio


async def test_a_host_over_stdio_reaches_a_server_over_http(server, rules, key):
    async with relayed(server, "--config", rules) as host:
        first = await host.call("get_value", key=key)
        assert await host.call("get_value", key=key) == first
        await host.call("set_value", key=key, value="x")
        assert (await host.call("get_value", key=key)).startswith("x (")


@pytest.mark.parametrize("is_modern", ERAS)
async def test_requests_of_each_revision_get_the_headers_that_it_wants(server, rules, key, is_modern):
    async with relayed(server, "--config", rules, greets=not is_modern) as host:
        host.meta = ENVELOPE if is_modern else {}
        assert await host.call("get_value", key=f"é {key}") == await host.call("get_value", key=f"é {key}")
        assert (await host.request("tools/list"))["tools"]
        assert (await host.request("resources/read", {"uri": "text://some%20thing"}))["contents"]


async def test_the_server_can_ask_the_host_over_stdio(server, rules, key):
    async with relayed(server, "--config", rules) as host:
        assert (await host.call("ask_host", key=key)).startswith("red")
        assert len(host.asked) == 1


async def test_messages_outside_of_calls_come_too(server, rules):
    async with relayed(server, "--config", rules) as host:
        await host.call("get_value", key="the stream may be open by now")
        while not any("resources/updated" in each["method"] for each in host.notifications):
            await host.call("change_resource", uri="a://b")


@pytest.mark.parametrize("is_modern", ERAS)
async def test_a_call_that_a_host_over_stdio_cancels_is_run_anew_for_another(server, rules, key, is_modern):
    async with relayed(server, "--config", rules, greets=not is_modern) as host:
        host.meta = ENVELOPE if is_modern else {}
        first, leader = host.begin("wait_for", key=key), host.last_id
        second = host.begin("wait_for", key=key)
        while await host.call("run_count", name=f"wait_for {key}") != "1":
            pass
        await host.notify("notifications/cancelled", {"requestId": leader})
        while await host.call("run_count", name=f"wait_for {key}") != "2":
            pass
        await host.call("open_gate", key=key)
        assert text_of((await second)["result"]) == f"{key} open (2)"
        assert not first.done() or "error" in first.result()


async def test_a_stream_that_the_server_breaks_off_is_an_error(rules):
    with serving("resumable") as url:
        async with relayed(url, "--config", rules, greets=False) as host:
            await host.handshake("2025-11-25")
            response = await host.begin("drop_stream")
            assert "ended its response without an answer" in response["error"]["message"]


async def test_a_session_that_the_server_has_ended_is_begun_anew(server, rules, key):
    async with relayed(server, "--config", rules) as host:
        first = await host.call("get_value", key=key)
        async with hosted(server) as other:
            seen = json.loads((await other.get("/seen")).body)
            ids = [dict(headers).get("mcp-session-id") for _, _, headers in seen]
            for each in {one for one in ids if one} - {other.headers["mcp-session-id"]}:
                other.headers["mcp-session-id"] = each
                await other.delete()
        assert await host.call("get_value", key=key) == first
        assert await host.call("get_value", key=f"{key} 2")


async def test_a_server_that_is_away_is_a_clear_error_and_may_come_back(rules, key):
    with serving() as url:
        pass
    async with relayed(url, "--config", rules, greets=False) as host:
        with pytest.raises(RuntimeError, match="cannot be reached"):
            await host.handshake()
        with pytest.raises(RuntimeError, match="cannot be reached"):
            await host.call("get_value", key=key)


async def test_credentials_come_from_the_environment(rules, server):
    header = ("--header", "Authorization: Bearer ${OF_THIS_TEST}")
    async with relayed(server, "--config", rules, *header, OF_THIS_TEST="abc") as host:
        assert (await host.call("whoami")).startswith("Bearer abc")


async def test_a_server_that_wants_credentials_says_so(rules):
    with serving("guarded") as url:
        async with relayed(url, "--config", rules, greets=False) as host:
            with pytest.raises(RuntimeError, match="401 Unauthorized; give it credentials: --header"):
                await host.handshake()


async def test_a_recording_of_a_server_over_http_replays_over_stdio_alone(server, rules, tmp_path, key):
    path = tmp_path / "run.jsonl"

    async def run(*options):
        async with started((*RELAY, "--config", rules, *options)) as host:
            return [await host.call("get_value", key=key) for _ in range(2)] + [
                await host.call("set_value", key=key, value="x")
            ]

    recorded = await run("--record", path, "--url", server)
    assert await run("--replay", path) == recorded


# A host over HTTP


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
    header = ("--header", "authorization: Bearer abc")
    async with (
        listening(server, "--config", rules, *header) as (_, url),
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


async def test_explain_asks_a_server_over_http(server, rules):
    process = await asyncio.create_subprocess_exec(
        *RELAY, "--config", str(rules), "--explain", "--url", server, stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await process.communicate()
    assert b"get_value" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "example.com/mcp"], "give the endpoint of the server"),
        (["--url", "http://a/", "--", "command"], "not both"),
        (["--listen", "127.0.0.1:1"], "--listen needs --url"),
        (["--url", "http://a/", "--listen", "nowhere"], "'nowhere' is no address"),
        (["--url", "http://a/", "--header", "Authorization"], "write NAME:VALUE"),
        (["--url", "http://a/", "--header", "A: ${NO_SUCH_VARIABLE_HERE}"], "no variable 'NO_SUCH_VARIABLE_HERE'"),
        (["--url", "http://a/", "--allow-origin", "http://b"], "needs --listen"),
    ],
)
async def test_wrong_options_are_told(options, said):
    if "--listen" in options and "--url" not in options:
        options = ["--replay", "x", *options]
    process = await asyncio.create_subprocess_exec(
        *RELAY, *options, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert said in errors.decode()
