"""`CachedClient` around a `ClientSession` of the SDK that is installed, version 1 or 2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the MCP client is tested where an MCP SDK is installed")

import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

from agent_cache import Pass, Read, Toolbox, Write
from agent_cache.integrations.mcp_client import CachedClient
from agent_cache.recording import record, replay
from tests.harness.mcp_host import SERVER

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

VALUE = {"key": "a"}
DOUBTED = {"key": f"doubted over stdio, {version('mcp')}"}
IS_OLD = version("mcp").startswith("1.")


def new_box() -> Toolbox:
    value = "value:{key}"
    rules = {"get_value": Read(value), "fail": Read("fail"), "set_value": Write(value), "wait_for": Write(value)}
    return Toolbox({**rules, "die": Write("value"), "run_count": Pass()}, namespace="sdk")


@asynccontextmanager
async def connected(box: Toolbox | None = None) -> AsyncIterator[CachedClient]:
    command = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:]])
    async with stdio_client(command) as streams, mcp.ClientSession(*streams) as session:
        await session.initialize()
        yield CachedClient(session, box or new_box())


def data(answer: Any) -> Any:
    return answer.model_dump(by_alias=True)["structuredContent"]["result"]


async def test_reads_are_cached_and_writes_drop_them():
    async with connected() as client:
        first, hit = [await client.call_tool("get_value", VALUE) for _ in range(2)]
        assert hit == first
        assert type(hit) is type(first)
        await client.call_tool("set_value", {**VALUE, "value": "x"})
        assert data(await client.call_tool("get_value", VALUE)) == "x (2)"
        for _ in range(2):
            refused = await client.call_tool("fail")
            assert refused.model_dump(by_alias=True)["isError"]
        assert data(await client.call_tool("run_count", {"name": "fail"})) == "2"
        assert {tool.name for tool in await client.tools()} >= {"get_value", "set_value"}


async def test_a_write_without_an_answer_in_time_is_in_doubt_and_its_error_is_replayed(tmp_path: Path):
    limit: Any = timedelta(seconds=0.2) if IS_OLD else 0.2

    async def run() -> Any:
        async with connected() as client:
            await client.call_tool("get_value", DOUBTED)
            with pytest.raises(Exception, match=r"(?i)timed out") as raised:
                await client.call_tool("wait_for", DOUBTED, read_timeout_seconds=limit)
            error: Any = raised.value
            answers = [data(await client.call_tool("get_value", DOUBTED)) for _ in range(2)]
            return type(error), error.error.code, answers

    with record(tmp_path / "run.jsonl"):
        recorded = await run()
    assert recorded[2] == ["nothing (2)", "nothing (3)"]
    with replay(tmp_path / "run.jsonl", strict=True):
        assert await run() == recorded


async def test_a_write_whose_server_has_died_is_in_doubt():
    box = new_box()
    async with connected(box) as client:
        for _ in range(2):
            assert data(await client.call_tool("get_value", VALUE)) == "nothing (1)"
        with pytest.raises(Exception, match="Connection closed") as raised:
            await client.call_tool("die", {"code": 1})
        assert type(raised.value).__module__.startswith("mcp.")
    async with connected(box) as client:  # no value is stored now
        assert [data(await client.call_tool("get_value", VALUE)) for _ in range(2)] == ["nothing (1)", "nothing (2)"]
