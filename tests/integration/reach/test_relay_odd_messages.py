"""Messages that no parser reads, and ids that identify nothing, between a host and a server over stdio."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.harness import odd_mcp_server
from tests.harness.mcp_host import RELAY, piped, text_of
from tests.harness.odd_mcp_server import ODD, call_of

RULES = """
namespace = "odd"
on_loop = "off"
tools.get = { kind = "read", tags = ["value:{key}"] }
tools.set = { kind = "write", tags = ["value:{key}"] }
tools.odd = { kind = "read", tags = ["odd"] }
tools.hold = { kind = "read", tags = ["hold"] }
tools.release = { kind = "pass" }
tools.seen = { kind = "pass" }
"""

UNREADABLE = ("no Unicode", "half a character", "no number")
NOT_JUDGED = [
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a"}},}',
    b"[%b]" % call_of("set", "a", b"2"),
    *(call_of("set", "a", id) for id in (None, b"null", b"[1]", b"true", b"1.5")),
    *(call_of("set", "a", b"2", b',"odd":' + ODD[kind]) for kind in UNREADABLE),
]
"""Writes of ``a``. They are refused."""
MALFORMED = [
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":null,"key":"a"}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":["set",{"name":"set","key":"a"}]}',
]
"""Calls whose parameters some server may take for a write of ``a``. They pass."""


class RawHost:
    """A host that parses nothing but what it is asked to."""

    def __init__(self, process):
        self.process = process

    async def send(self, *lines: bytes) -> None:
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        """The next line that comes."""
        return (await self.process.stdout.readline()).rstrip(b"\n")

    async def response(self, id: bytes) -> bytes:
        """The next line with this id; those before it are dropped."""
        while b'"id":%b,' % id not in (line := await self.line()):
            assert line, "the relay has ended"
        return line

    async def call(self, tool: str, key: str = "") -> str:
        """The text that a tool answers with."""
        await self.send(call_of(tool, key, b"1000"))
        return text_of(json.loads(await self.response(b"1000"))["result"])

    async def seen(self) -> list[bytes]:
        """What the server has got."""
        return [each.encode("latin-1") for each in json.loads(await self.call("seen"))]


@pytest.fixture
async def host(rules):
    command = (*RELAY, "--config", rules, "--", sys.executable, odd_mcp_server.__file__)
    process = await piped(command, limit=1 << 26, environment=os.environ)
    yield RawHost(process)
    if process.returncode is None:
        process.kill()
        await process.wait()
    process.close()


async def test_a_call_in_a_form_that_nobody_can_judge_is_refused_and_reaches_no_server(host):
    assert await host.call("get", "a") == "nothing (1)"
    for line in NOT_JUDGED:
        await host.send(line)
        error = json.loads(await host.line())["error"]
        assert error["code"] == -32600, line
        assert "not passed on" in error["message"]
    assert await host.call("get", "a") == "nothing (1)"
    seen = await host.seen()
    assert not any(line in seen for line in NOT_JUDGED)


async def test_a_call_whose_parameters_a_server_may_take_for_a_write_ends_what_it_touches(host):
    for line in MALFORMED:
        first = await host.call("get", "a")
        await host.send(line)
        assert await host.response(b"2")
        assert await host.call("get", "a") != first
        assert line in await host.seen()


async def test_a_request_whose_id_is_in_use_is_refused_and_the_other_one_is_answered(host):
    await host.call("get", "a")  # from here on the relay knows the tools, and calls go on in their order
    for key, other in (("b", call_of("set", "a", b"7")), ("c", b'{"jsonrpc":"2.0","id":7,"method":"ping"}')):
        await host.send(call_of("hold", key, b"7"), other)
        assert json.loads(await host.response(b"7"))["error"]["code"] == -32600
        await host.send(call_of("release", "", b"8"))
        assert text_of(json.loads(await host.response(b"7"))["result"]) == f"held {key}"
    assert not any(call_of("set", "a", b"7") in line for line in await host.seen())


async def test_what_is_no_call_and_cannot_be_read_passes_as_it_came_and_ends_nothing(host):
    assert await host.call("get", "a") == "nothing (1)"
    line = b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":%b}}' % ODD["no Unicode"]
    await host.send(line, b"", b"  ")
    assert await host.response(b"2")
    assert await host.call("get", "a") == "nothing (1)"
    assert line in await host.seen()


# Messages of the server


async def test_an_answer_that_cannot_be_read_passes_as_it_came(host):
    for kind in ODD:
        await host.send(call_of("odd", kind, b"2"))
        assert await host.line() == b'{"jsonrpc":"2.0","id":2,"result":{"content":[],"odd":%b}}' % ODD[kind]
    assert await host.call("get", "a") == "nothing (1)"


async def test_what_a_server_prints_to_standard_output_does_not_reach_the_host(host):
    await host.send(call_of("noisy", "", b"2"))
    assert text_of(json.loads(await host.line())["result"]) == "said it"


async def test_who_waits_for_an_answer_that_cannot_be_read_gets_it_too(host):
    for kind in UNREADABLE:
        await host.send(call_of("odd", kind, b"2"), call_of("odd", kind, b"3"))
        for id in (b"2", b"3"):
            assert ODD[kind] in await host.response(id), kind
