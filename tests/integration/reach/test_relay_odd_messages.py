"""Messages that no parser reads, and ids that identify nothing, between a host and a server over stdio."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.harness import odd_mcp_server
from tests.harness.mcp_host import RELAY, piped, text_of
from tests.harness.odd_mcp_server import FORMS, ODD, call_of

RULES = """
namespace = "odd"
on_loop = "off"
tools.get = { kind = "read", tags = ["value:{key}"] }
tools.set = { kind = "write", tags = ["value:{key}"] }
tools.odd = { kind = "read", tags = ["odd"] }
tools.form = { kind = "read", tags = ["form"] }
tools.hold = { kind = "read", tags = ["hold"] }
tools.release = { kind = "pass" }
tools.seen = { kind = "pass" }
"""

UNREADABLE = ("no Unicode", "half a character", "no number", "too deep")
NOT_JUDGED = [
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a"}},}',
    b"[%b]" % call_of("set", "a", b"2"),
    *(call_of("set", "a", id) for id in (None, b"null", b"[1]", b"true", b"1.5")),
    *(call_of("set", "a", b"2", b',"odd":' + ODD[kind]) for kind in UNREADABLE),
    call_of("set", "a", b"2", b',"odd":NaN,"key":"b"'),
]
"""Writes of ``a`` in forms that a server may take, or refuse."""
MALFORMED = [
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":null,"key":"a"}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":["set",{"name":"set","key":"a"}]}',
]
"""Calls whose parameters some server may take for a write of ``a``."""


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


@pytest.mark.parametrize("line", [*NOT_JUDGED, *MALFORMED])
async def test_a_call_in_a_form_that_nobody_can_judge_passes_and_ends_all_that_it_may_have_written(host, line):
    first = await host.call("get", "a")
    await host.send(line)
    while line not in await host.seen():
        pass
    assert await host.call("get", "a") != first


@pytest.mark.parametrize("other", [call_of("set", "a", b"7"), b'{"jsonrpc":"2.0","id":7,"method":"ping"}'])
async def test_of_two_requests_with_one_id_both_are_answered_and_what_they_may_have_written_ends(host, other):
    first = await host.call("get", "a")
    await host.send(call_of("hold", "b", b"7"), other)
    assert await host.response(b"7")
    await host.send(call_of("release", "", b"8"))
    assert text_of(json.loads(await host.response(b"7"))["result"]) == "held b"
    assert await host.call("get", "a") != first


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


@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_in_an_odd_form_is_one_for_who_waits_and_for_later_calls(host, form):
    await host.send(call_of("form", form, b"2"), call_of("form", form, b"3"))
    answers = [json.loads(await host.line()) for _ in range(2)]
    assert [int(one["id"]) for one in answers] == [2, 3]
    texts = [text_of(one["result"]) for one in answers]
    assert [*texts, await host.call("form", form)] == [f"{form} (1)"] * 3


async def test_who_waits_for_an_answer_that_cannot_be_read_gets_it_too(host):
    for kind in UNREADABLE:
        await host.send(call_of("odd", kind, b"2"), call_of("odd", kind, b"3"))
        for id in (b"2", b"3"):
            assert ODD[kind] in await host.response(id), kind
