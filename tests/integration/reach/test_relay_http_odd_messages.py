"""Messages that no parser reads, and ids that identify nothing, over Streamable HTTP."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

import httpx2

from agent_cache.testing import reset
from tests.harness.mcp_http_host import ACCEPT, relaying, running
from tests.harness.odd_mcp_host import call_of
from tests.harness.odd_mcp_server import ODD, OddApplication
from tests.integration.reach.test_relay_odd_messages import MALFORMED, NOT_JUDGED, RULES

__all__ = ["RULES"]


@pytest.fixture(autouse=True)
def clean():
    """No write in doubt is left to the next test."""
    yield
    reset()


@pytest.fixture(params=[False, True], ids=["JSON", "events"])
def application(request):
    return OddApplication(events=request.param)


class RawHttpHost:
    """A host that posts bytes."""

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self.url = url
        self.client = client

    async def post(self, body: bytes) -> httpx2.Response:
        return await self.client.post(self.url, content=body, headers=ACCEPT)

    async def call(self, tool: str, key: str = "") -> str:
        body = (await self.post(call_of(tool, key, b"1"))).content
        message = body.partition(b"data: ")[2] if body.startswith(b"event") else body
        return json.loads(message)["result"]["content"][0]["text"]


@asynccontextmanager
async def hosted(application, rules, **options):
    async with (
        running(application) as origin,
        relaying(f"{origin}/mcp", rules, **options) as relay,
        httpx2.AsyncClient(timeout=None) as client,
    ):
        yield RawHttpHost(relay.url, client)


@pytest.fixture
async def host(application, rules):
    async with hosted(application, rules) as host:
        yield host


async def test_a_call_in_a_form_that_nobody_can_judge_is_refused_and_reaches_no_server(host, application):
    first = await host.call("get", "a")
    for line in NOT_JUDGED:
        found = await host.post(line)
        assert found.status_code == 400
        assert found.json()["error"]["code"] == -32600, line
    assert await host.call("get", "a") == first
    assert not any(line in application.server.seen for line in NOT_JUDGED)


async def test_a_call_whose_parameters_a_server_may_take_for_a_write_ends_what_it_touches(host, application):
    for line in MALFORMED:
        first = await host.call("get", "a")
        assert (await host.post(line)).status_code == 200
        assert application.server.seen[-1] == line
        assert await host.call("get", "a") != first


async def test_an_answer_that_cannot_be_read_passes_as_it_came(host):
    for kind in ODD:
        found = await host.post(call_of("odd", kind, b"2"))
        assert b'{"jsonrpc":"2.0","id":2,"result":{"content":[],"odd":%b}}' % ODD[kind] in found.content
    assert await host.call("get", "a") == "nothing (1)"
    assert await host.call("get", "a") == "nothing (1)"
