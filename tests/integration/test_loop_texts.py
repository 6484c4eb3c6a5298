"""What a model is told of a loop names the tools as the model knows them; the error has their full names."""

from __future__ import annotations

from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, AgentLoopDetectedError, LoopPolicy, Read, Toolbox, Watch

pytestmark = pytest.mark.usefixtures("clock")


async def pending() -> str:
    return "pending"


async def test_a_notice_names_a_tool_without_the_namespace_of_its_toolbox():
    box = Toolbox({"get_*": Read("order:{order_id}"), "git.log": Watch()}, namespace="shop")
    async with AgentCacheSession(on_loop="notice"):
        texts = [await box.call("get_order", {"order_id": "W1"}, pending) for _ in range(5)]
    assert texts[-1].startswith("get_order was called 5 times")
    assert "shop" not in texts[-1]
    async with AgentCacheSession(on_loop="notice"):
        texts = [await box.call("git.log", {}, pending) for _ in range(5)]
    assert texts[-1].startswith("git.log was called 5 times")


async def test_a_notice_names_a_function_without_its_module():
    @AgentCache("order")
    async def get_order() -> str:
        return "pending"

    async with AgentCacheSession(on_loop="notice"):
        texts = [await get_order() for _ in range(5)]
    assert texts[-1].startswith("get_order was called 5 times")


@pytest.mark.parametrize("name", ["prices in euros", "prices v1.2"])
async def test_a_name_of_the_users_own_stays(name: str):
    tool = AgentCache("order", name=name)(pending)
    async with AgentCacheSession(on_loop="notice"):
        texts = [await tool() for _ in range(5)]
    assert texts[-1].startswith(f"{name} was called 5 times")


async def test_the_calls_of_a_round_are_named_likewise_and_the_attributes_are_whole():
    box = Toolbox({"get_*": Watch()}, namespace="shop")

    async def go_round() -> Any:
        async with AgentCacheSession(loop_policy=LoopPolicy(repeat=None)):
            for _ in range(20):
                await box.call("get_order", {}, pending)
                await box.call("get_user", {}, pending)

    with pytest.raises(AgentLoopDetectedError) as caught:
        await go_round()
    assert "shop:" not in str(caught.value)
    assert "get_order" in str(caught.value)
    assert "get_user" in str(caught.value)
    assert caught.value.tool.startswith("shop:get_")
    assert set(caught.value.calls) == {"shop:get_order", "shop:get_user"}


class Block:
    """As frameworks give text to a model."""

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    "result",
    [
        [Block("pending")],
        [{"type": "text", "text": "pending"}],
        {"content": [{"type": "text", "text": "pending"}], "isError": False},
    ],
    ids=["objects", "dicts", "a result of MCP"],
)
async def test_a_result_in_blocks_is_shown_by_its_text(result: Any):
    @AgentCache("order", copy="never")
    async def get_order() -> Any:
        return result

    async with AgentCacheSession(on_loop="notice"):
        texts = [await get_order() for _ in range(5)]
    assert "('pending')" in texts[-1]
