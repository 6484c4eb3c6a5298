"""What the relay does with a host's requests, whatever carries them: a transport in memory, and a clock that is set."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent_cache import Read, Toolbox, Write
from agent_cache.relay.messages import ConnectionLost, Response, parsed
from agent_cache.relay.relay import HostRequest, Relay
from agent_cache.relay.relay_settings import RelaySettings
from agent_cache.relay.starter import proposals
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

    def __init__(self, serve, method, params, id=1):
        super().__init__(id, method, params)
        self.serve = serve
        self.replies = []

    async def forward(self):
        line = await self.serve(self)
        return Response(line, parsed(line))

    async def ask(self, method, params):
        line = result([], tools=[])
        return Response(line, parsed(line))

    def reply(self, line):
        self.replies.append(json.loads(line))


def result(content, **more):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": content, **more}}).encode() + b"\n"


class Server:
    """Counts its calls, and loses those of `is_lost`."""

    def __init__(self):
        self.calls = 0
        self.is_lost = False

    async def __call__(self, request):
        self.calls += 1
        if self.is_lost:
            raise ConnectionLost("gone")
        return result([{"type": "text", "text": str(self.calls)}])


RULES = {"get": Read("thing:{id}"), "put": Write("thing:{id}")}


async def answer(relay, serve, tool, **arguments):
    request = MemoryRequest(serve, "tools/call", {"name": tool, "arguments": arguments})
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


async def test_a_task_of_a_server_that_has_gone_leaves_its_write_in_doubt(clock):
    async def begin(request):
        return result([], task={"taskId": "t", "status": "working", "ttl": 60_000})

    serve = Server()
    async with Relay(Toolbox(RULES, namespace="tasks")) as relay:
        request = MemoryRequest(begin, "tools/call", {"name": "put", "arguments": {"id": "a"}, "task": {}})
        task = relay.start(request)
        while not request.replies:
            await asyncio.sleep(0)
        assert not task.done()
        relay.lose_server()
        await task
        assert len(request.replies) == 1
        for number in (1, 2):
            assert text(await answer(relay, serve, "get", id="a")) == str(number)


async def test_a_status_notification_ends_a_task(clock):
    async def begin(request):
        return result([], task={"taskId": "t", "status": "working", "ttl": None})

    serve = Server()
    async with Relay(Toolbox(RULES, namespace="status")) as relay:
        request = MemoryRequest(begin, "tools/call", {"name": "put", "arguments": {"id": "a"}, "task": {}})
        task = relay.start(request)
        while not request.replies:
            await asyncio.sleep(0)
        await relay.observe("notifications/tasks/status", {"taskId": "t", "status": "working"})
        assert text(await answer(relay, serve, "get", id="a")) == "1"
        await relay.observe("notifications/tasks/status", {"taskId": "t", "status": "completed"})
        await task
        for _ in range(2):
            assert text(await answer(relay, serve, "get", id="a")) == "2"


async def test_callers_that_vary_share_no_answers(clock):
    serve = Server()
    async with Relay(Toolbox(RULES, namespace="varies")) as relay:
        found = []
        for who in ("one", "two", "one"):
            request = MemoryRequest(serve, "tools/call", {"name": "get", "arguments": {"id": "a"}})
            request.vary = who
            await relay.start(request)
            found.append(text(request.replies[0]))
        assert found == ["1", "2", "1"]


async def test_versions_of_a_tool_as_fastmcp_names_them_share_no_answers(clock):
    serve = Server()
    async with Relay(Toolbox(RULES, namespace="versions")) as relay:
        found = []
        for meta in (
            {"fastmcp": {"version": "1"}},
            {"fastmcp": {"version": "2"}},
            {"progressToken": 1},
            {"x": 2},
            None,
        ):
            params = {"name": "get", "arguments": {"id": "a"}, "_meta": meta}
            request = MemoryRequest(serve, "tools/call", params)
            await relay.start(request)
            found.append(text(request.replies[0]))
        assert found == ["1", "2", "3", "3", "3"]


async def test_a_notification_that_does_not_say_what_has_changed_drops_everything(clock):
    serve = Server()
    settings = RelaySettings(on={"notifications/resources/updated": ("thing:{params[uri]}",)})
    async with Relay(Toolbox(RULES, namespace="notified"), settings) as relay:
        for number, params in enumerate(({"uri": "a"}, {}, None, [1]), 2):
            assert text(await answer(relay, serve, "get", id="a")) == str(number - 1)
            await relay.observe("notifications/resources/updated", params)
            assert text(await answer(relay, serve, "get", id="a")) == str(number)


# Lines


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"noise", b"[1", b"12", b'"x"', b"\xff\xfe", b"{'id': 1}", b"[INFO] start"]
)
def test_what_is_no_message_is_none(line):
    assert parsed(line) is None


@pytest.mark.parametrize("line", [b'{"method": 5}', b'{"method": null, "id": 1}', b'{"method": 5, "x": NaN}'])
def test_an_object_that_is_no_message_of_the_protocol_is_an_empty_one(line):
    assert not parsed(line).is_request


def test_looking_for_tools_without_a_rule_warns_of_no_rule(clock, caplog):
    box = Toolbox({"get": Read("x"), "list_*": Read("x")}, namespace="shop")
    rules = proposals([{"name": "get"}, {"name": "list_orders"}, {"name": "cancel"}], box)
    assert "# tools.cancel = {" in rules
    assert "get" not in rules
    assert "list" not in rules
    assert caplog.text == ""
