"""Tools of a FastMCP server that may run as tasks (SEP-2663), by the extension of fastmcp-tasks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastmcp_tasks", reason="tasks are an extension of FastMCP with a package of its own")

from fastmcp import Client, FastMCP
from fastmcp_tasks import TasksExtension, call_tool_task

from agent_cache import ConfigurationError, Read, Toolbox, Write
from agent_cache.integrations.fastmcp import AgentCacheMiddleware

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}


async def test_a_read_as_a_task_is_not_stored_and_a_write_that_may_be_one_is_refused():
    rules = {"get_*": Read("order:{order_id}"), "cancel_*": Write("order:{order_id}")}
    server: FastMCP[Any] = FastMCP("shop", middleware=[AgentCacheMiddleware(Toolbox(rules, namespace="shop"))])
    server.add_extension(TasksExtension(url="memory://"))
    runs: list[str] = []

    @server.tool(task=True)
    async def get_order(order_id: str) -> str:
        runs.append("get")
        return order_id

    @server.tool(task=True)
    async def cancel_order(order_id: str) -> str:
        runs.append("cancel")
        return order_id

    async with Client(server) as client:
        for _ in range(2):
            task = await call_tool_task(client, "get_order", ORDER)
            assert (await task.result()).data == "1"
        for _ in range(2):
            assert (await client.call_tool("get_order", ORDER)).data == "1"
        assert runs == ["get"] * 3
    with pytest.raises(ConfigurationError, match="AgentCacheInvalidator"):
        await server.call_tool("cancel_order", ORDER)
    assert runs == ["get"] * 3
