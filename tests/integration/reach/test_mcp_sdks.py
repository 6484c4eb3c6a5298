"""`CachedClient` around a `ClientSession` of the SDK that is installed, version 1 or 2."""

from __future__ import annotations

import sys
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

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}
DOUBTED = {"order_id": f"doubted over stdio, {version('mcp')}"}
SERVER = StdioServerParameters(
    command=sys.executable,
    args=[str(Path(__file__).with_name("sdk_shop.py"))],
    env={"PYTHONPATH": ":".join(sys.path)},
)
IS_OLD = version("mcp").startswith("1.")


def new_box() -> Toolbox:
    rules = {"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}"), "count_runs": Pass()}
    return Toolbox(rules, namespace="sdk")


@asynccontextmanager
async def connected(box: Toolbox | None = None) -> AsyncIterator[CachedClient]:
    async with stdio_client(SERVER) as streams, mcp.ClientSession(*streams) as session:
        await session.initialize()
        yield CachedClient(session, box or new_box())


def data(answer: Any) -> Any:
    return answer.model_dump(by_alias=True)["structuredContent"]


async def test_reads_are_cached_and_writes_drop_them():
    async with connected() as client:
        first, hit = [await client.call_tool("get_order", ORDER) for _ in range(2)]
        assert hit == first
        assert type(hit) is type(first)
        await client.call_tool("cancel_order", ORDER)
        assert data(await client.call_tool("get_order", ORDER))["run"] == 3
        for _ in range(2):
            refused = await client.call_tool("get_refused", ORDER)
            assert refused.model_dump(by_alias=True)["isError"]
        assert data(await client.call_tool("count_runs"))["result"] == 5
        assert {tool.name for tool in await client.tools()} >= {"get_order", "cancel_order"}


async def test_a_write_without_an_answer_in_time_is_in_doubt_and_its_error_is_replayed(tmp_path: Path):
    limit: Any = timedelta(seconds=0.2) if IS_OLD else 0.2

    async def run() -> Any:
        async with connected() as client:
            await client.call_tool("get_order", DOUBTED)
            with pytest.raises(Exception, match=r"(?i)timed out") as raised:
                await client.call_tool("cancel_slowly", DOUBTED, read_timeout_seconds=limit)
            error: Any = raised.value
            answers = [data(await client.call_tool("get_order", DOUBTED)) for _ in range(2)]
            return type(error), error.error.code, answers

    with record(tmp_path / "run.jsonl"):
        recorded = await run()
    assert [answer["run"] for answer in recorded[2]] == [3, 4]
    with replay(tmp_path / "run.jsonl", strict=True):
        assert await run() == recorded


async def test_a_write_whose_server_has_died_is_in_doubt():
    box = new_box()
    async with connected(box) as client:
        for _ in range(2):
            assert data(await client.call_tool("get_order", ORDER))["run"] == 1
        with pytest.raises(Exception, match="Connection closed") as raised:
            await client.call_tool("cancel_and_die", ORDER)
        assert type(raised.value).__module__.startswith("mcp.")
    async with connected(box) as client:  # nothing of this order is stored now
        assert [data(await client.call_tool("get_order", ORDER))["run"] for _ in range(2)] == [1, 2]


async def test_the_private_names_of_a_session_are_those_that_are_used():
    async with connected() as client:
        for name in ("_message_handler", "_elicitation_callback", "_sampling_callback", "_list_roots_callback"):
            assert getattr(client, name).__module__ == "mcp.client.session"
