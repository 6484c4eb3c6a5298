"""Messages that no parser reads, and ids that identify nothing, between a host and a server over stdio."""

from __future__ import annotations

import json

import pytest

from tests.harness.mcp_host import text_of
from tests.harness.odd_mcp_host import ODD_SERVER, call_of, raw_relay
from tests.harness.odd_mcp_server import ODD

RULES = """
namespace = "odd"
on_loop = "off"
[tools.get]
kind = "read"
tags = ["value:{key}"]
[tools.set]
kind = "write"
tags = ["value:{key}"]
[tools.odd]
kind = "read"
tags = ["odd"]
[tools.hold]
kind = "read"
tags = ["hold"]
[tools.release]
kind = "pass"
[tools.seen]
kind = "pass"
"""

UNREADABLE = [kind for kind in ODD if kind not in ("large", "plain")]
READ_DIFFERENTLY = [
    b'{"jsonrpc":"2.0","id":2,"method":"ping","method":"tools/call","params":{"name":"set","arguments":{"key":"a"}}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","method":"ping","params":{"name":"set","arguments":{"key":"a"}}}',
    b'{"jsonrpc":"2.0","id":2,"Method":"tools/call","params":{"name":"set","arguments":{"key":"a"}}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a","key":"b"}}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":null,"key":"a"}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":["set",{"name":"set","key":"a"}]}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":["set"],"tool":{"name":"set","key":"a"}}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a"}},}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a"}}}',
    b'[{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"set","arguments":{"key":"a","x":"\xff"}}},1]',
]
"""Writes of ``a``, each by some server's reading."""


@pytest.fixture
async def host(rules):
    async with raw_relay("--config", rules, "--", *ODD_SERVER) as host:
        yield host


# Ids


@pytest.mark.slow
@pytest.mark.parametrize("id", [None, b"null", b"[1]", b"true", b"1.5"])
async def test_a_write_under_an_id_that_identifies_nothing_ends_what_it_touches(host, id):
    assert await host.call("get", "a") == "nothing (1)"
    await host.send(call_of("set", "a", id))
    assert await host.call("get", "a") == "written (2)"
    assert (await host.seen())[-3] == call_of("set", "a", id)


async def test_a_read_that_is_sent_right_behind_such_a_write_does_not_get_what_was_stored_before(host):
    assert await host.call("get", "a") == "nothing (1)"
    await host.send(call_of("set", "a", None), call_of("get", "a", b"2"))
    assert b"(1)" not in await host.response(b"2")


async def test_a_call_whose_id_is_in_use_goes_through_the_rules_and_both_are_answered(host):
    assert await host.call("get", "a") == "nothing (1)"
    await host.send(call_of("hold", "", b"7"), call_of("set", "a", b"7"))
    assert text_of(json.loads(await host.response(b"7"))["result"]) == "written (1)"
    assert await host.call("get", "a") == "written (2)"
    await host.send(call_of("release", "", b"8"))
    assert text_of(json.loads(await host.response(b"7"))["result"]) == "held "
    assert await host.call("hold", "") == "held "  # it is stored, and is not the answer to the other one


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_request_that_passes_under_the_id_of_a_call_is_not_answered_for_it(host, is_first):
    listing = b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}'
    first = [listing, call_of("get", "a", b"7")] if is_first else [call_of("get", "a", b"7"), listing]
    await host.send(*first)
    found = [json.loads(await host.response(b"7"))["result"] for _ in first]
    assert sorted(map(list, found)) == [["content"], ["tools"]]
    assert await host.call("get", "a") == "nothing (1)"


async def test_an_id_like_those_of_the_relay_is_answered(host):
    for number in range(3):
        id = b'"agent-cache:%d"' % number
        await host.send(call_of("get", "a", id), b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % id)
        assert await host.response(id)
        assert await host.response(id)


async def test_a_batch_with_such_ids_drops_what_it_may_touch(host):
    assert await host.call("get", "a") == "nothing (1)"
    await host.send(b"[%b]" % call_of("set", "a", b"null"))
    assert await host.call("get", "a") == "written (2)"


# Messages of the host


@pytest.mark.parametrize("kind", ["no Unicode", "deep", "twice"])
async def test_a_write_that_cannot_be_read_passes_as_it_came_and_ends_what_it_touches(host, kind):
    assert await host.call("get", "a") == "nothing (1)"
    line = call_of("set", "a", b"2", b',"odd":' + ODD[kind])
    await host.send(line)
    assert text_of(json.loads(await host.response(b"2"))["result"]) == "written (1)"
    assert await host.call("get", "a") == "written (2)"
    assert line in await host.seen()


@pytest.mark.parametrize("line", [READ_DIFFERENTLY[number] for number in (0, 4, 8, 9)])
async def test_whatever_a_server_may_take_for_a_write_ends_what_it_touches(host, line):
    assert await host.call("get", "a") == "nothing (1)"
    await host.send(line)
    assert await host.response(b"2")
    assert not (await host.call("get", "a")).endswith("(1)")
    assert line in await host.seen()


async def test_what_is_no_call_and_cannot_be_read_ends_nothing(host):
    assert await host.call("get", "a") == "nothing (1)"
    line = b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":%b}}' % ODD["deep"]
    await host.send(line, b"", b"  ")
    assert await host.response(b"2")
    assert await host.call("get", "a") == "nothing (1)"
    assert line in await host.seen()


async def test_without_a_server_what_cannot_be_read_is_refused(rules, tape):
    async with raw_relay("--config", rules, "--record", tape, "--", *ODD_SERVER) as host:
        await host.call("get", "a")
        await host.ended()
    async with raw_relay("--config", rules, "--replay", tape) as host:
        await host.send(call_of("set", "a", None))
        assert json.loads(await host.line())["error"]["code"] == -32600
        await host.send(call_of("set", "a", b"2", b',"odd":' + ODD["deep"]))
        found = json.loads(await host.line())
        assert (found["id"], found["error"]["code"]) == (2, -32600)
        assert await host.call("get", "a") == "nothing (1)"


# Messages of the server


async def test_an_answer_that_cannot_be_read_passes_as_it_came(host):
    for kind in ODD:
        await host.send(call_of("odd", kind, b"2"))
        assert await host.line() == b'{"jsonrpc":"2.0","id":2,"result":{"content":[],"odd":%b}}' % ODD[kind]
    assert await host.call("get", "a") == "nothing (1)"


async def test_who_waits_for_an_answer_that_cannot_be_read_gets_it_too(host):
    for kind in set(UNREADABLE) - {"twice"}:  # of which the last one counts
        await host.send(call_of("odd", kind, b"2"), call_of("odd", kind, b"3"))
        for id in (b"2", b"3"):
            assert ODD[kind] in await host.response(id), kind


async def test_a_write_whose_answer_cannot_be_read_has_ended(rules):
    rules.write_text(
        RULES.replace('[tools.odd]\nkind = "read"', '[tools.odd]\nkind = "write"') + '[tools."g*"]\n'
        'kind = "read"\ntags = ["odd"]\n'
    )
    async with raw_relay("--config", rules, "--", *ODD_SERVER) as host:
        await host.send(call_of("odd", "deep", b"2"))
        await host.response(b"2")
        first = await host.call("get_odd")
        assert await host.call("get_odd") == first
