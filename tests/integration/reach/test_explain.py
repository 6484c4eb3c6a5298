"""`explain` finds the adapter of an agent by its class, and prints what is done with its tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langchain", reason="explain is tested with the frameworks that share an environment")
pytest.importorskip("agents", reason="explain is tested with the frameworks that share an environment")
pytest.importorskip("pydantic_ai", reason="explain is tested with the frameworks that share an environment")
pytest.importorskip("fastmcp", reason="explain is tested with the frameworks that share an environment")

from agents import Agent, function_tool
from fastmcp import FastMCP
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from agent_cache import AgentCache, Read, Toolbox
from agent_cache.integrations import explain


def get_order(order_id: str) -> str:
    """Say how an order stands."""
    return order_id


@AgentCache("order:{order_id}", name="get_decorated")
async def get_decorated(order_id: str) -> str:
    """The same, decorated."""
    return order_id


def of_langchain() -> Any:
    class Model(FakeListChatModel):
        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

    return create_agent(Model(responses=["done"]), [get_order, get_decorated])


def of_openai_agents() -> Any:
    return Agent(name="clerk", tools=[function_tool(get_order), function_tool(get_decorated)])


def of_pydantic_ai() -> Any:
    return PydanticAgent(TestModel(), tools=[get_order, get_decorated])


def of_fastmcp() -> Any:
    server: Any = FastMCP("shop")
    server.tool(get_order)
    server.tool(get_decorated)
    return server


@pytest.mark.parametrize("make", [of_langchain, of_openai_agents, of_pydantic_ai, of_fastmcp])
def test_an_agent_is_explained_by_the_adapter_of_its_framework(
    make: Callable[[], Any], capsys: pytest.CaptureFixture[str]
):
    table = explain(make(), Toolbox({"get_*": Read("order:{order_id}", ttl=60)}, namespace="shop"))
    assert [(row.tool, row.kind, row.ttl) for row in table] == [
        ("get_order", "read", "60 s"),
        ("get_decorated", "decorated", ""),
    ]
    assert capsys.readouterr().out == f"{table}\n"


def test_a_template_that_names_no_argument_is_a_problem_of_the_table():
    table = explain(of_pydantic_ai(), Toolbox({"get_order": Read("order:{ordr_id}")}, namespace="shop"))
    assert any("ordr_id" in problem for problem in table.problems)
