"""Calls of a FastMCP server that go on as tasks (SEP-2663), by the extension of fastmcp-tasks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("fastmcp_tasks", reason="tasks are an extension of FastMCP with a package of its own")

from fastmcp import Client, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension, call_tool_task

from agent_cache import Read, Toolbox, Write
from agent_cache.integrations.fastmcp import AgentCacheMiddleware

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}
SOON = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=10))


class Tasks:
    """A server whose tools run as tasks, and wait for a gate there."""

    def __init__(self) -> None:
        rules = {"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}
        self.server: FastMCP[Any] = FastMCP("shop", middleware=[AgentCacheMiddleware(Toolbox(rules, namespace="shop"))])
        self.server.add_extension(TasksExtension(url="memory://"))
        self.runs: list[str] = []
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        server, runs = self.server, self.runs

        async def pass_gate(name: str) -> None:
            runs.append(name)
            self.started.set()
            await self.gate.wait()

        @server.tool
        async def get_order(order_id: str) -> str:
            runs.append("get_order")
            return f"order {len(runs)}"

        @server.tool(task=SOON)
        async def get_long(order_id: str) -> str:
            await pass_gate("get_long")
            return "long"

        @server.tool(task=SOON)
        async def cancel_order(order_id: str) -> str:
            await pass_gate("cancel_order")
            return "cancelled"

        @server.tool(task=SOON)
        async def cancel_broken(order_id: str) -> str:
            await pass_gate("cancel_broken")
            raise ValueError("it is on its way")


async def until_stored(client: Client[Any]) -> None:
    """Read until an answer is stored: the middleware has seen that the task has ended."""
    before = None
    while (answer := (await client.call_tool("get_order", ORDER)).data) != before:
        before = answer


@pytest.mark.parametrize("tool", ["cancel_order", "cancel_broken"])
async def test_a_write_that_goes_on_as_a_task_holds_its_tags_until_it_has_ended(tool: str):
    shop = Tasks()
    async with Client(shop.server) as client:
        for _ in range(2):
            assert (await client.call_tool("get_order", ORDER)).data == "order 1"
        task = await call_tool_task(client, tool, ORDER)
        await shop.started.wait()
        assert [(await client.call_tool("get_order", ORDER)).data for _ in range(2)] == ["order 3", "order 4"]
        shop.gate.set()
        assert (await task.wait()).status == "completed"  # with an error as result, if the tool has raised one
        await until_stored(client)


async def test_a_read_as_a_task_runs_once_for_clients_that_ask_meanwhile_and_later():
    shop = Tasks()
    async with Client(shop.server) as client:
        first = await call_tool_task(client, "get_long", ORDER)
        await shop.started.wait()
        second = asyncio.ensure_future(client.call_tool("get_long", ORDER))
        await client.call_tool("get_order", ORDER)
        shop.gate.set()
        assert (await second).data == "long"
        assert (await first.result()).data == "long"
        assert (await client.call_tool("get_long", ORDER)).data == "long"
    assert shop.runs == ["get_long", "get_order"]


async def test_a_cancelled_task_is_a_write_in_doubt():
    shop = Tasks()
    async with Client(shop.server) as client:
        task = await call_tool_task(client, "cancel_order", ORDER)
        await shop.started.wait()
        await task.cancel()
        await task.wait()
        answers = [(await client.call_tool("get_order", ORDER)).data for _ in range(3)]
        assert len(set(answers)) == 3
