"""`agent-cache mcp --url --listen`: the command."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("mcp", reason="the servers of these tests are made by its SDK")
pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

from tests.harness.mcp_host import RELAY, started
from tests.harness.mcp_http_host import hosted, serving

RULES = """
namespace = "relay"
new_turn_after = 1000
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.whoami = { kind = "read", tags = ["who"] }
"""


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


@pytest.fixture
def key(request):
    """A key that no other test has."""
    return request.node.name


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
        (["--url", "example.com/mcp", "--listen", "1"], "give the endpoint of the server"),
        (["--url", "http://a/", "--listen", "nowhere"], "'nowhere' is no address"),
        (["--url", "http://a/", "--listen", "1", "--header", "Authorization"], "write NAME:VALUE"),
        (
            ["--url", "http://a/", "--listen", "1", "--header", "A: ${NO_SUCH_VARIABLE_HERE}"],
            "no variable 'NO_SUCH_VARIABLE_HERE'",
        ),
    ],
)
async def test_wrong_options_are_told(options, said):
    process = await asyncio.create_subprocess_exec(
        *RELAY, *options, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert said in errors.decode()
